"""JAX kernels: cheap dropout, GPU attention and norms, compilation cache, several processes.

See `kerasbert.backend` for the arguments.
"""

import contextlib
import functools
import hashlib
import os
import platform
from pathlib import Path

import keras
import numpy as np
from keras import ops

from kerasbert import backend
from kerasbert.backend.jax_loops import KeepsWeights as KeepsWeights
from kerasbert.backend.jax_loops import with_weights
from kerasbert.base import keras_internals
from kerasbert.base.keywords import config_of
from kerasbert.base.memory import keep_freed_memory, keep_large_blocks


def prepare():
    """Run CPU steps in the calling thread, which reuses freed memory."""
    import jax

    if "JAX_CPU_ENABLE_ASYNC_DISPATCH" not in os.environ:
        jax.config.update("jax_cpu_enable_async_dispatch", False)


def keep_memory():
    """Also keep large blocks, as XLA allocates one per step."""
    keep_freed_memory()
    keep_large_blocks()


@functools.cache
def on_gpu():
    """Return whether JAX computes on a GPU."""
    import jax

    return jax.default_backend() == "gpu"


def dense(inputs, weights, bias=None, activation=None, training=False):
    """Recompute the activation in the backward pass, on a GPU.

    XLA would store GELU's intermediate values for the gradient, twice the size of the matmul's
    output.
    """
    if activation is None or not on_gpu():
        return None
    finish = keras.remat(lambda rows: activation(backend.with_bias(rows, bias)))
    return backend.by_rows(inputs, lambda rows: finish(ops.matmul(rows, weights)))


def keep_mask(key, rate, shape):
    """Draw bools, `True` with probability `1 - rate`, from the two 32-bit words of `key`.

    It hashes each element's index, so that XLA can recompute the mask where needed. JAX's own
    generator needs ten times as many operations, which cost a tenth of a training step on a GPU, a
    sixth on a CPU, and a quarter more compilation time.

    Source of the hash: Wellons 2018, github.com/skeeto/hash-prospector, "lowbias32".
    """
    import jax
    from jax import numpy as jnp

    number = jnp.zeros(shape, "uint32")
    for axis, size in enumerate(shape):
        number = number * np.uint32(size) + jax.lax.broadcasted_iota("uint32", shape, axis)

    def scatter(x):
        x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
        x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
        return x ^ (x >> 16)

    bits = scatter(scatter(number ^ key[0]) + key[1])
    return bits >= np.uint32(round(rate * 2**32))


def dropout(x, rate, seed):
    """Apply dropout with the cheap random numbers of `keep_mask`."""
    from jax import numpy as jnp

    keep = keep_mask(_random_bits(seed), rate, x.shape)
    return jnp.where(keep, x * np.asarray(1 / (1 - rate), x.dtype), 0)


def positions(table, offset, inputs):
    """Return a copy of the rows for each example, (B, T, D), on a GPU."""
    if not on_gpu():
        return None
    return repeat(backend.positions.plain(table, offset, inputs), inputs.shape[0])


def repeat(rows, count):
    """Repeat rows (1, T, D) for `count` examples: (B, T, D).

    The gradient is a matmul with ones. For a sum, XLA would lay out the whole encoder with examples
    innermost, and transpose for each matmul.
    """
    from jax import numpy as jnp

    ones = jnp.ones((count, 1), rows.dtype)
    return (ones @ rows.reshape(1, -1)).reshape(count, *rows.shape[1:])


def full_mask(mask, queries, keys):
    """Broadcast an attention mask to one row per query, as cuDNN requires."""
    from jax import numpy as jnp

    return jnp.broadcast_to(mask, (*mask.shape[:2], queries, keys))


def heads_attention(query, key, value, mask=None, dropout=0.0, seed=None, maps=False):
    """Compute attention on a GPU with JAX's kernel, or for dropout with `dropped_attention`.

    On a CPU, JAX's kernel took 1.3 to 2.7 times as long as the plain form, for 25 to 384 tokens. On
    a TPU, Keras' kernel is wrong: without a mask it is causal, otherwise it uses the first row's
    mask.
    """
    if maps or not on_gpu():
        return None
    if dropout:
        return dropped_attention(query, key, value, mask, dropout, seed), None
    lengths = query.shape[1], key.shape[1]
    if any(not isinstance(length, int) or length % 2 for length in lengths):
        return None  # cuDNN has no gradients for an odd number of tokens.
    if mask is not None:
        mask = full_mask(mask, *lengths)
    return ops.dot_product_attention(query, key, value, mask=mask), None


def dropped_attention(query, key, value, mask, rate, seed):
    """Compute attention with dropout of its probabilities, which no kernel of JAX supports.

    B batch, S queries, T keys, N heads, H head width. The forward pass reads the probabilities
    twice, the backward pass once, with row sums derived from the outputs (FlashAttention, arXiv
    2205.14135, appendix B.4). JAX's own gradient reads them four times, at half the memory
    bandwidth.

    Args:
        query: (B, S, N, H).
        key, value: (B, T, N, H).
        mask: bool, broadcastable to (B, N, S, T), or `None`.
        rate: float.
        seed: a `keras.random.SeedGenerator`.
    """
    import jax
    from jax import numpy as jnp

    dtype, scale = query.dtype, query.shape[-1] ** -0.5
    bias = None if mask is None else jnp.where(mask, np.float32(0), np.float32(-1e9))

    def widened(scores, bias):
        wide = scores.astype("float32")
        return wide if bias is None else wide + bias

    def dropped(maps, key):
        keep = keep_mask(key, rate, maps.shape)
        return jnp.where(keep, maps * np.float32(1 / (1 - rate)), 0)

    def forward(query, key, value, bias, bits):
        query = query * np.asarray(scale, dtype)
        scores = jnp.einsum("btnh,bsnh->bnts", query, key)
        wide = widened(scores, bias)
        # Barriers prevent XLA from fusing the whole softmax, which is slower.
        highest = jax.lax.optimization_barrier(jnp.max(wide, axis=-1, keepdims=True))
        total = jnp.sum(jnp.exp(wide - highest), axis=-1, keepdims=True)
        total = jax.lax.optimization_barrier(highest + jnp.log(total))  # (B, N, T, 1)
        maps = dropped(jnp.exp(wide - total), bits).astype(dtype)
        outputs = jnp.einsum("bnts,bsnh->btnh", maps, value)
        return outputs, (query, key, value, bias, bits, scores, total, maps, outputs)

    def backward(kept, gradient):
        query, key, value, bias, bits, scores, total, maps, outputs = kept
        # The dropout mask is recomputed; the barrier stops XLA from keeping the first one.
        bits = jax.lax.optimization_barrier(bits)
        row = jnp.einsum("btnh,btnh->bnt", gradient, outputs, preferred_element_type="float32")[
            ..., None
        ]
        of_maps = jnp.einsum("btnh,bsnh->bnts", gradient, value).astype("float32")
        of_scores = jnp.exp(widened(scores, bias) - total) * (dropped(of_maps, bits) - row)
        of_scores = of_scores.astype(dtype)
        return (
            jnp.einsum("bnts,bsnh->btnh", of_scores, key) * np.asarray(scale, dtype),
            jnp.einsum("bnts,btnh->bsnh", of_scores, query),
            jnp.einsum("bnts,btnh->bsnh", maps, gradient),
            None,
            None,
        )

    function = jax.custom_vjp(lambda *args: forward(*args)[0])
    function.defvjp(forward, backward)
    return function(query, key, value, bias, _random_bits(seed))


def norm(x, gamma, beta, epsilon, training=False):
    """Use a gradient with two sums instead of three, on a GPU.

    The barriers keep XLA from recomputing the sums at each use.
    """
    if not on_gpu():
        return None
    import jax
    from jax import numpy as jnp

    dtype = x.dtype

    def centred(x, mean, root):
        return (x.astype("float32") - mean) * root

    def forward(x, gamma, beta):
        wide = x.astype("float32")
        mean = jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(wide - mean), axis=-1, keepdims=True)
        root = jax.lax.rsqrt(variance + np.float32(epsilon))
        mean, root = jax.lax.optimization_barrier((mean, root))
        outputs = centred(x, mean, root) * gamma
        outputs = outputs if beta is None else outputs + beta
        return outputs.astype(dtype), (x, gamma, beta, mean, root)

    def backward(kept, gradient):
        x, gamma, beta, mean, root = kept
        wide = gradient.astype("float32")
        scaled, normal = wide * gamma, centred(x, mean, root)
        first = jnp.mean(scaled, axis=-1, keepdims=True)
        second = jnp.mean(scaled * normal, axis=-1, keepdims=True)
        of_x = root * (scaled - first - normal * second)
        of_x = jax.lax.optimization_barrier(of_x.astype(dtype))
        axes = tuple(range(x.ndim - 1))
        x, gradient = jax.lax.optimization_barrier((x, gradient))
        wide = gradient.astype("float32")
        of_gamma = jnp.sum(wide * centred(x, mean, root), axis=axes)
        of_beta = None if beta is None else jnp.sum(wide, axis=axes)
        return of_x, of_gamma, of_beta

    function = jax.custom_vjp(lambda *args: forward(*args)[0])
    function.defvjp(forward, backward)
    gamma = jnp.asarray(gamma, "float32")
    return function(x, gamma, None if beta is None else jnp.asarray(beta, "float32"))


def cross_entropy(labels, logits):
    """Select the label's logit by comparison, on a GPU.

    A lookup is faster on a CPU, but its gradient takes another pass over the logits.
    """
    if not on_gpu():
        return None
    is_label = ops.equal(ops.arange(logits.shape[-1]), labels[..., None])
    labelled = ops.sum(ops.where(is_label, logits, 0.0), axis=-1)
    return backend.logarithm_of_odds(logits) - labelled


def train_only(optimizer, weights, places):
    """Restrict the optimizer's list of weights; JAX's stateless update takes all weights in it.

    The optimizer's state and the indices into it are unchanged.
    """
    keras_internals.set_trained(optimizer, weights, places)


def value_and_gradient(function, x):
    import jax
    from jax import numpy as jnp

    values, pull = jax.vjp(function, jnp.asarray(x))
    return np.array(values), np.array(pull(jnp.ones_like(values))[0])


def predict_batch(model, features):
    """Predict with a compiled step.

    The number of rows is rounded up, mostly to a multiple of 8, to save compilations.
    """
    if model.run_eagerly or not model.jit_compile or backend.is_distributed(model):
        return None
    import jax

    keep_compiled()

    def make():
        return jax.jit(lambda state, features: model.predict_step(state, (features,))[0])

    step = backend.beside_prediction(model, make)
    groups = model.trainable_variables, model.non_trainable_variables
    count = len(next(iter(features.values())))
    rows = np.minimum(np.arange(_rounded(count)), count - 1)
    features = {name: np.take(x, rows, axis=0) for name, x in features.items()}
    outputs = with_weights(groups, lambda state: step(state, features))
    return jax.tree.map(lambda x: np.array(x)[:count], outputs)


def _rounded(count):
    """Round up a number of rows to 1, 2, 4, 8, 16, 24, 32, ..."""
    return 1 << (count - 1).bit_length() if count <= 8 else -(-count // 8) * 8


def full_float32():
    import jax

    return jax.default_matmul_precision("highest")


@contextlib.contextmanager
def compiling(model, say):
    """Call `say` when JAX traces a new shape, just before it compiles it."""
    if model.run_eagerly or not model.jit_compile:
        yield
        return
    import jax

    step = model.train_step

    @functools.wraps(step)  # The function's name is part of the compilation cache's key.
    def traced(state, data):
        features = jax.tree.leaves(keras.utils.unpack_x_y_sample_weight(data)[0])
        say(max((leaf.shape for leaf in features), key=np.prod))
        return step(state, data)

    model.__dict__["train_step"] = traced  # Keras would track a `setattr`.
    try:
        yield
    finally:
        del model.__dict__["train_step"]


CACHE_BYTES = 2**30  # Limit on the cache entries kept from earlier processes.


@functools.cache
def keep_compiled():
    """Enable JAX's persistent compilation cache in the user's cache folder.

    The user's JAX settings take precedence. JAX reuses entries of the same version and flags. Each
    kind of processor has its own folder, since machines may share a home folder and not every
    version of JAX distinguishes processors.
    """
    import jax

    if jax.config.jax_compilation_cache_dir or not jax.config.jax_enable_compilation_cache:
        return
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "kerasbert" / "jax" / _processor()
    try:
        # Cached code is executed, so no other user may write here.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _leave(CACHE_BYTES, folder)
    except OSError:  # The cache is optional.
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))


def _processor():
    """Return a hash of the processor's features, which Linux lists in /proc/cpuinfo."""
    known = f"{platform.machine()} {platform.processor()}"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(f"{known} {flags}".encode()).hexdigest()[:12]


def _leave(size, folder):
    """Remove the least recently used files until the rest has at most `size` bytes."""
    files = [(file, file.stat()) for file in folder.iterdir()]
    for file, facts in sorted(files, key=lambda one: -max(one[1].st_atime, one[1].st_mtime)):
        size -= facts.st_size
        if size < 0:
            file.unlink(missing_ok=True)


def compiles_shapes(jit_compile):
    """Return True: JAX compiles each shape, regardless of `jit_compile`."""
    return True


# Seconds without a heartbeat after which a process counts as dead.
HEARTBEAT = 30
# Environment variables of SLURM and Open MPI: number of processes, and this one's index.
_COUNTED = {
    "SLURM_STEP_NUM_TASKS": "SLURM_PROCID",
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK",
}
_KERAS = ("JOB_ADDRESSES", "NUM_PROCESSES", "PROCESS_ID")


def join_processes():
    """Connect as set by environment variables of Keras, JAX, SLURM, Open MPI or a TPU pod."""
    import jax

    if not jax.distributed.is_initialized() and (given := _launched()) is not None:
        try:
            jax.distributed.initialize(**given, heartbeat_timeout_seconds=HEARTBEAT)
        except RuntimeError as error:
            if "before any JAX" not in str(error):
                raise
            raise RuntimeError(
                "JAX has already computed something, but processes must connect before that; call "
                "kerasbert.distribution.join() first in the script."
            ) from None
    return jax.process_index(), jax.process_count()


def launched():
    """Return `(index, count)` from the environment variables that `join_processes` reads."""
    import jax

    if jax.distributed.is_initialized():
        return jax.process_index(), jax.process_count()
    given = _launched()
    if given is None:
        return 0, 1
    if given:
        return given["process_id"], given["num_processes"]
    for count, index in _COUNTED.items():
        if int(os.environ.get(count) or 1) > 1:
            return int(os.environ[index]), int(os.environ[count])
    hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    return int(os.environ.get("TPU_WORKER_ID") or 0), len(hosts)


def _launched():
    """Return the arguments of `jax.distributed.initialize`; `None` for a single process."""
    found = [os.environ.get(f"KERAS_DISTRIBUTION_{name}") for name in _KERAS]
    if found[0]:
        address = found[0].split(",")[0]
        count = found[1] or len(found[0].split(","))
        return _meeting(address, count, found[2])
    if address := os.environ.get("JAX_COORDINATOR_ADDRESS"):
        found = [os.environ.get(f"JAX_{name}") for name in _KERAS[1:]]
        return {} if None in found else _meeting(address, *found)
    # SLURM sets its variable only in steps (`srun`); a process in a job's shell runs alone.
    several = any(int(os.environ.get(name) or 1) > 1 for name in _COUNTED)
    return {} if several or "," in os.environ.get("TPU_WORKER_HOSTNAMES", "") else None


def _meeting(address, count, index):
    count, index = int(count), int(index or 0)
    if count < 2:
        return None
    return {"coordinator_address": address, "num_processes": count, "process_id": index}


@contextlib.contextmanager
def on_devices(devices, mesh, layout_map):
    """Use the current `keras.distribution`, or set one for these devices."""
    import jax

    before = keras.distribution.distribution()
    if before is not None and (devices, mesh) != (None, None):
        raise ValueError(
            "keras.distribution.set_distribution() has already chosen the devices; omit devices "
            "and mesh."
        )
    if before is not None and jax.process_count() > 1 and before.auto_shard_dataset:
        raise ValueError(
            "The current keras.distribution would split the rows of each process again; create it "
            "with auto_shard_dataset=False."
        )
    if before is not None or (devices is None and mesh is None and jax.process_count() == 1):
        yield ((0, 1), 1) if before is None else _shard(before)
        return
    named = keras.distribution.list_devices()
    count = len(named) if devices is None else devices
    if mesh is not None:
        count = mesh[0] * mesh[1]
    if count > len(named) or (jax.process_count() > 1 and count < len(named)):
        given = f"devices={devices}" if mesh is None else f"mesh={mesh[0]}x{mesh[1]}"
        raise ValueError(
            f"{given} needs {count} devices, but the {jax.process_count()} processes have "
            f"{len(named)}: {', '.join(named[:8])}."
        )
    named = named[:count]
    if mesh is None:
        chosen = keras.distribution.DataParallel(devices=named, auto_shard_dataset=False)
    else:
        mesh = keras.distribution.DeviceMesh(mesh, ["batch", "model"], named)
        chosen = keras.distribution.ModelParallel(
            layout_map=layout_map(mesh), batch_dim_name="batch", auto_shard_dataset=False
        )
    keras.distribution.set_distribution(chosen)
    try:
        yield _shard(chosen)
    finally:
        keras.distribution.set_distribution(before)


def _shard(distribution):
    """Return `((index, count), replicas)`: this process' shard of each batch; see `on_devices`."""
    import jax

    mesh = distribution.device_mesh
    axis = mesh.axis_names.index(distribution.batch_dim_name)
    here = {f"{device.platform}:{device.id}" for device in jax.local_devices()}
    places = {place[axis] for place, name in np.ndenumerate(mesh.devices) if str(name) in here}
    replicas, width = mesh.devices.shape[axis], len(places)
    first = min(places)
    if sorted(places) != list(range(first, first + width)) or first % width or replicas % width:
        raise ValueError(
            f"The devices of this process are rows {sorted(places)} of the mesh {mesh.shape}; "
            "order the devices by their processes."
        )
    return (first // width, replicas // width), replicas


def sum_over_processes(values):
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return None
    # Sent as uint32, since JAX would round float64 to float32.
    found = multihost_utils.process_allgather(np.asarray(values, "float64").view("uint32"))
    return np.ascontiguousarray(found).view("float64").sum(axis=0).tolist()


def whole(variable):
    """Gather a variable that is sharded over processes into one array."""
    import jax
    from jax.experimental import multihost_utils

    value = ops.convert_to_tensor(variable)
    if not isinstance(value, jax.Array) or value.is_fully_addressable:
        return None
    if value.is_fully_replicated:
        return np.asarray(value.addressable_data(0))
    return multihost_utils.process_allgather(value, tiled=True)


def predicts_while_sharing():
    """Return False: computations are spread over the devices of all processes."""
    return False


def share_steps(model, processes):
    """Return True: Keras does this itself."""
    return True


def one_after_another(step):
    """Wait for each step if there are several processes with several CPU devices each.

    XLA starts many steps at once, and their collective operations may deadlock. Training reads each
    step's results anyway.
    """
    import jax

    if jax.process_count() == 1 or jax.local_device_count() == 1 or jax.default_backend() != "cpu":
        return None
    return lambda *inputs: jax.block_until_ready(step(*inputs))


def of_one_process(model, processes):
    """Return a copy of the model with all weights on the devices of this process."""
    if processes == 1:
        return None
    values = [backend.whole(variable) for variable in model.weights]
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        own = type(model).from_config(config_of(model))
        own.preprocessor = model.preprocessor  # The config does not contain the vocabulary.
        own.set_weights(values)
    finally:
        keras.distribution.set_distribution(before)
    return own


def is_lost_process(error):
    """Recognize errors of JAX's collective operations and coordination service."""
    import jax

    said = ("Gloo", "gloo", "UNAVAILABLE", "NCCL", "heartbeat", "peer", "coordination")
    return isinstance(error, (jax.errors.JaxRuntimeError, ValueError)) and any(
        part in str(error) for part in said
    )


def data_parallel(model, **kwargs):
    """Raise: Keras does this itself."""
    raise ValueError(
        "data_parallel() is not needed on JAX; call "
        "keras.distribution.set_distribution(keras.distribution.DataParallel()) instead."
    )


def _random_bits(seed):
    """Draw two 32-bit words; a `SeedGenerator` alone gives consecutive numbers."""
    import jax

    return jax.random.bits(jax.random.wrap_key_data(seed.next(), impl="threefry2x32"), (2,))
