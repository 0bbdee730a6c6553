"""JAX kernels: cheap dropout, attention and norms on a GPU, and the compilation cache.

See `kerasbert.backend` for the arguments.
"""

import contextlib
import functools
import hashlib
import os
import platform
from pathlib import Path

import jax
import keras
import numpy as np
from jax import numpy as jnp
from keras import ops

from kerasbert import backend
from kerasbert.backend import layers
from kerasbert.backend.graphs import beside_prediction
from kerasbert.backend.jax_loops import KeepsWeights, with_weights  # noqa: F401
from kerasbert.backend.jax_processes import (  # noqa: F401
    data_parallel,
    is_lost_process,
    join_processes,
    launched,
    of_one_process,
    on_devices,
    one_after_another,
    predicts_while_sharing,
    share_steps,
    sum_over_processes,
    whole,
)
from kerasbert.backend.losses import log_sum_exp
from kerasbert.base import keras_internals

CACHE_BYTES = 2**30  # Maximum total size of the cache from earlier processes.


@functools.cache
def on_gpu():
    """Return whether JAX computes on a GPU."""
    return jax.default_backend() == "gpu"


# === Layers and losses ===


def dense(inputs, weights, bias=None, activation=None, training=False):
    """On a GPU, recompute the activation in the backward pass.

    XLA would store GELU's intermediate values, twice the memory of the matmul's output.
    """
    if activation is None or not on_gpu():
        return None
    finish = keras.remat(lambda rows: activation(layers.with_bias(rows, bias)))
    return layers.by_rows(inputs, lambda rows: finish(ops.matmul(rows, weights)))


def keep_mask(key, rate, shape):
    """Draw bools, `True` with probability `1 - rate`, for a `key` of two 32-bit words.

    It hashes each element's index, so that XLA can recompute the mask. JAX's generator needs ten
    times the operations, a tenth of a training step on a GPU and a sixth on a CPU, and a quarter
    more compilation time.

    Source of the hash: Wellons 2018, github.com/skeeto/hash-prospector, "lowbias32".
    """
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
    keep = keep_mask(_random_bits(seed), rate, x.shape)
    return jnp.where(keep, x * np.asarray(1 / (1 - rate), x.dtype), 0)


def _random_bits(seed):
    """Draw two random 32-bit words; a `SeedGenerator` by itself returns consecutive numbers."""
    return jax.random.bits(jax.random.wrap_key_data(seed.next(), impl="threefry2x32"), (2,))


def positions(table, offset, inputs):
    """On a GPU, return a copy of the rows for each example: (B, T, D)."""
    if not on_gpu():
        return None
    return repeat(layers.positions.plain(table, offset, inputs), inputs.shape[0])


def repeat(rows, count):
    """Repeat rows (1, T, D) for `count` examples: (B, T, D).

    The gradient is a matmul with ones: for a sum, XLA would make examples the encoder's innermost
    axis, and transpose for each matmul.
    """
    ones = jnp.ones((count, 1), rows.dtype)
    return (ones @ rows.reshape(1, -1)).reshape(count, *rows.shape[1:])


def norm(x, gamma, beta, epsilon, training=False):
    """On a GPU, use a gradient that computes two sums instead of three.

    Barriers keep XLA from recomputing the sums.
    """
    if not on_gpu():
        return None
    dtype = x.dtype

    def centered(x, mean, root):
        return (x.astype("float32") - mean) * root

    def forward(x, gamma, beta):
        wide = x.astype("float32")
        mean = jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(wide - mean), axis=-1, keepdims=True)
        root = jax.lax.rsqrt(variance + np.float32(epsilon))
        mean, root = jax.lax.optimization_barrier((mean, root))
        outputs = centered(x, mean, root) * gamma
        outputs = outputs if beta is None else outputs + beta
        return outputs.astype(dtype), (x, gamma, beta, mean, root)

    def backward(kept, gradient):
        x, gamma, beta, mean, root = kept
        wide = gradient.astype("float32")
        scaled, normal = wide * gamma, centered(x, mean, root)
        first = jnp.mean(scaled, axis=-1, keepdims=True)
        second = jnp.mean(scaled * normal, axis=-1, keepdims=True)
        of_x = root * (scaled - first - normal * second)
        of_x = jax.lax.optimization_barrier(of_x.astype(dtype))
        axes = tuple(range(x.ndim - 1))
        x, gradient = jax.lax.optimization_barrier((x, gradient))
        wide = gradient.astype("float32")
        of_gamma = jnp.sum(wide * centered(x, mean, root), axis=axes)
        of_beta = None if beta is None else jnp.sum(wide, axis=axes)
        return of_x, of_gamma, of_beta

    function = jax.custom_vjp(lambda *args: forward(*args)[0])
    function.defvjp(forward, backward)
    gamma = jnp.asarray(gamma, "float32")
    return function(x, gamma, None if beta is None else jnp.asarray(beta, "float32"))


def cross_entropy(labels, logits):
    """On a GPU, select the label's logit by comparing indices.

    A lookup is faster on a CPU, but its gradient is another pass over the logits.
    """
    if not on_gpu():
        return None
    is_label = ops.equal(ops.arange(logits.shape[-1]), labels[..., None])
    labeled = ops.sum(ops.where(is_label, logits, 0.0), axis=-1)
    return log_sum_exp(logits) - labeled


# === Attention ===


def heads_attention(query, key, value, mask=None, dropout=0.0, seed=None, maps=False, bias=None):
    """On a GPU, compute attention with JAX's kernel, or with `dropped_attention` for dropout.

    On a CPU, JAX's kernel took 1.3 to 2.7 times as long as the plain form for 25 to 384 tokens. On
    a TPU, Keras' kernel is wrong: causal without a mask, and with one it uses the first row's for
    all.
    """
    if maps or not on_gpu():
        return None
    if dropout:
        return dropped_attention(query, key, value, mask, dropout, seed, bias), None
    lengths = query.shape[1], key.shape[1]
    if any(not isinstance(length, int) or length % 2 for length in lengths):
        return None  # cuDNN has no gradients for an odd number of tokens.
    mask, bias = (x if x is None else full_mask(x, *lengths) for x in (mask, bias))
    return ops.dot_product_attention(query, key, value, bias=bias, mask=mask), None


def full_mask(mask, queries, keys):
    """Broadcast an attention mask or bias to one row per query, as cuDNN requires."""
    return jnp.broadcast_to(mask, (*mask.shape[:2], queries, keys))


def dropped_attention(query, key, value, mask, rate, seed, bias=None):
    """Compute attention with dropout of its probabilities, which no kernel of JAX supports.

    B batch, S queries, T keys, N heads, H head width. The forward pass reads the probabilities
    twice, the backward pass once, with row sums from the outputs (FlashAttention, arXiv 2205.14135,
    appendix B.4). JAX's own gradient reads them four times, at half the memory bandwidth.

    Args:
        query: (B, S, N, H).
        key, value: (B, T, N, H).
        mask: bool, broadcastable to (B, N, S, T), or `None`.
        rate: float.
        seed: a `keras.random.SeedGenerator`.
        bias: floats, broadcastable to (B, N, S, T), or `None`.
    """
    dtype, scale = query.dtype, query.shape[-1] ** -0.5
    if mask is not None:
        mask = jnp.where(mask, np.float32(0), np.float32(-1e9))

    def widened(scores, mask, bias):
        wide = scores.astype("float32")
        wide = wide if bias is None else wide + bias.astype("float32")
        return wide if mask is None else wide + mask

    def dropped(maps, key):
        keep = keep_mask(key, rate, maps.shape)
        return jnp.where(keep, maps * np.float32(1 / (1 - rate)), 0)

    def forward(query, key, value, mask, bias, bits):
        query = query * np.asarray(scale, dtype)
        scores = jnp.einsum("btnh,bsnh->bnts", query, key)
        wide = widened(scores, mask, bias)
        # Barriers prevent XLA from fusing the whole softmax, which would be slower.
        highest = jax.lax.optimization_barrier(jnp.max(wide, axis=-1, keepdims=True))
        total = jnp.sum(jnp.exp(wide - highest), axis=-1, keepdims=True)
        total = jax.lax.optimization_barrier(highest + jnp.log(total))  # (B, N, T, 1)
        maps = dropped(jnp.exp(wide - total), bits).astype(dtype)
        outputs = jnp.einsum("bnts,bsnh->btnh", maps, value)
        return outputs, (query, key, value, mask, bias, bits, scores, total, maps, outputs)

    def backward(kept, gradient):
        query, key, value, mask, bias, bits, scores, total, maps, outputs = kept
        # The barrier makes XLA recompute the dropout mask instead of keeping it.
        bits = jax.lax.optimization_barrier(bits)
        row = jnp.einsum("btnh,btnh->bnt", gradient, outputs, preferred_element_type="float32")[
            ..., None
        ]
        of_maps = jnp.einsum("btnh,bsnh->bnts", gradient, value).astype("float32")
        of_scores = jnp.exp(widened(scores, mask, bias) - total) * (dropped(of_maps, bits) - row)
        of_bias = None
        if bias is not None:
            axes = tuple(i for i, size in enumerate(bias.shape) if size != of_scores.shape[i])
            of_bias = jnp.sum(of_scores, axes, keepdims=True).astype(bias.dtype)
        of_scores = of_scores.astype(dtype)
        return (
            jnp.einsum("bnts,bsnh->btnh", of_scores, key) * np.asarray(scale, dtype),
            jnp.einsum("bnts,btnh->bsnh", of_scores, query),
            jnp.einsum("bnts,btnh->bsnh", maps, gradient),
            None,
            of_bias,
            None,
        )

    function = jax.custom_vjp(lambda *args: forward(*args)[0])
    function.defvjp(forward, backward)
    return function(query, key, value, mask, bias, _random_bits(seed))


# === Steps ===


def train_only(optimizer, weights, places):
    """Restrict the optimizer's weights, as JAX's stateless update takes all.

    Its state and indices are unchanged.
    """
    keras_internals.set_trained(optimizer, weights, places)


def value_and_gradient(function, x):
    values, pull = jax.vjp(function, jnp.asarray(x))
    return np.array(values), np.array(pull(jnp.ones_like(values))[0])


def adversarial_step(model, arguments, perturbed, perturbations, keeps_clean):
    (trained, frozen, optimizer, metrics), data = arguments
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    index = {id(variable): i for i, variable in enumerate(variables)}
    places, split = [index[id(variable)] for variable in perturbed], len(trained)
    extra = [i for i in places if i >= split]

    def loss(trained, some, frozen):
        frozen = _replaced(frozen, [i - split for i in extra], some)
        return model.compute_loss_and_updates(
            trained, frozen, metrics, x, y, sample_weight, True, optimizer
        )

    run = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    own = [frozen[i - split] for i in extra]
    (_, found), (clean, of_extra) = run(trained, own, frozen)
    unscaled, y_pred, frozen, metrics = found
    gradients = dict(enumerate(clean)) | dict(zip(extra, of_extra, strict=True))
    values = dict(enumerate(trained)) | dict(zip(extra, own, strict=True))
    added = perturbations([values[i] for i in places], [gradients[i] for i in places])
    for i, one in zip(places, added, strict=True):
        values[i] = values[i] + one
    (_, second), (gradients, _) = run(
        [values[i] for i in range(split)], [values[i] for i in extra], frozen
    )
    # The random generators' states after the second pass.
    frozen = _replaced(second[2], [i - split for i in extra], own)
    gradients = backend.sums(clean, gradients) if keeps_clean else gradients
    trained, optimizer = model.optimizer.stateless_apply(optimizer, gradients, trained)
    mapping = list(zip(model.metrics_variables, metrics, strict=True))
    with keras.StatelessScope(state_mapping=mapping) as scope:
        keras_internals.loss_tracker(model).update_state(
            unscaled, sample_weight=jax.tree.leaves(x)[0].shape[0]
        )
        logs = model.compute_metrics(x, y, y_pred, sample_weight)
    metrics = [scope.get_current_value(variable) for variable in model.metrics_variables]
    return logs, (trained, frozen, optimizer, metrics)


def _replaced(values, places, new):
    """Return a list with the values at some places replaced."""
    replaced = dict(zip(places, new, strict=True))
    return [replaced.get(i, value) for i, value in enumerate(values)]


def predict_batch(model, features):
    """Predict with a compiled step.

    Batches are padded to `_rounded` rows, for fewer shapes.
    """
    if model.run_eagerly or not model.jit_compile or backend.is_distributed(model):
        return None
    keep_compiled()

    def make():
        return jax.jit(lambda state, features: model.predict_step(state, (features,))[0])

    step = beside_prediction(model, make)
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
    return jax.default_matmul_precision("highest")


# === Compilation ===


def prepare():
    """Run steps on a CPU in the calling thread, which reuses freed memory."""
    if "JAX_CPU_ENABLE_ASYNC_DISPATCH" not in os.environ:
        jax.config.update("jax_cpu_enable_async_dispatch", False)


def compiles_shapes(jit_compile):
    """Return True: JAX compiles each shape, regardless of `jit_compile`."""
    return True


@contextlib.contextmanager
def compiling(model, say):
    """Call `say` when JAX has traced a new shape and is about to compile it."""
    if model.run_eagerly or not model.jit_compile:
        yield
        return
    step = model.train_step

    @functools.wraps(step)  # For the key of the compilation cache.
    def traced(state, data):
        features = jax.tree.leaves(keras.utils.unpack_x_y_sample_weight(data)[0])
        say(max((leaf.shape for leaf in features), key=np.prod))
        return step(state, data)

    model.__dict__["train_step"] = traced  # Keras would track a `setattr`.
    try:
        yield
    finally:
        del model.__dict__["train_step"]


@functools.cache
def keep_compiled():
    """Enable JAX's persistent compilation cache in the user's cache folder.

    The user's JAX settings take precedence. Each processor model has its own folder: machines may
    share a home folder, and not every version of JAX distinguishes processors.
    """
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
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(f"{known} {flags}".encode()).hexdigest()[:12]


def _leave(size, folder):
    """Remove a folder's least recently used files down to `size` bytes."""
    files = [(file, file.stat()) for file in folder.iterdir()]
    for file, facts in sorted(files, key=lambda one: -max(one[1].st_atime, one[1].st_mtime)):
        size -= facts.st_size
        if size < 0:
            file.unlink(missing_ok=True)
