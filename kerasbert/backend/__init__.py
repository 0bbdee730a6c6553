"""The backends' contract: functions that a backend may replace.

Functions marked `@kernel` are plain forms. A function of the same name in the backend's module,
such as `torch_kernels`, is called first; if it returns `None`, the plain form is used. Callers
never check which backend runs. `norm.plain` is always the plain form.

This module has the lookup, and kernels for steps, compilation and joint training in several
processes. Others are in `layers`, `attention`, `losses` and `optimizers`. A backend's module must
not import a plain kernel by name, which would count as its own.
"""

import contextlib
import functools
import importlib

import keras
from keras import ops

from kerasbert.base.finite import checks_outputs
from kerasbert.base.process import set_backend

_preferred = {}  # Kernels that override the backend's, by name.


def name():
    """Return the name of Keras' backend, for messages only; code must not branch on it."""
    return keras.backend.backend()


def has(kernel_name):
    """Return whether the backend has its own form of a kernel."""
    return hasattr(_module, kernel_name)


def kernel(plain):
    """Decorate a function that is the plain form of a kernel."""
    own_name = plain.__name__

    # A context variable would break the graphs of `torch.compile`.
    @functools.wraps(plain)
    def call(*args, **kwargs):
        own = _preferred.get(own_name) or getattr(_module, own_name, None)
        outputs = None if own is None else own(*args, **kwargs)
        return plain(*args, **kwargs) if outputs is None else outputs

    call.plain = plain
    return call


@contextlib.contextmanager
def using(kernels):
    """Override kernels by name within a context, in all threads.

    >>> from kerasbert.backend.layers import norm
    >>> ones = {"norm": lambda x, *args, **kwargs: ops.ones_like(x)}
    >>> with using(ones):
    ...     [float(value) for value in norm(np.zeros(2, "float32"), None, None, 1e-6)]
    [1.0, 1.0]
    """
    global _preferred
    before, _preferred = _preferred, kernels
    try:
        yield
    finally:
        _preferred = before


# === Steps ===


@kernel
def without_gradients():
    """Return a context that disables gradients on PyTorch; other backends need none."""
    return contextlib.nullcontext()


@kernel
def value_and_gradient(function, x):
    """Compute a function of rows and the gradient of its sum, as NumPy arrays.

    Args:
        function: function from a tensor (R, ...) to values (R,), one per row.
        x: float array (R, ...).

    Returns:
        `(values, gradient)`: (R,) and (R, ...).
    """
    raise ValueError(
        f"Keras has no gradients on {name()}; set KERAS_BACKEND to tensorflow, jax or torch."
    )


@kernel
def adversarial_step(model, arguments, perturbed, perturbations, keeps_clean):
    """Run a training step that also computes gradients with perturbed weights.

    Weights change only by the optimizer's update; loss and metrics are those without a
    perturbation.

    Args:
        model: a compiled `keras.Model`.
        arguments: list. The arguments of Keras' `train_step`.
        perturbed: list of variables, trainable or not.
        perturbations: function of lists of values and gradients, which may be `None`, to the list
            of tensors to add.
        keeps_clean: whether the optimizer gets the sum of gradients without and with the
            perturbation, instead of the latter.

    Returns:
        The result of Keras' `train_step`.
    """
    raise ValueError(
        f"Keras has no gradients on {name()}; set KERAS_BACKEND to tensorflow, jax or torch."
    )


def sums(gradients, others):
    """Add two lists of gradients, whose entries may be `None`."""
    pairs = zip(gradients, others, strict=True)
    return [a if b is None else b if a is None else a + b for a, b in pairs]


@checks_outputs
@kernel
def predict_batch(model, features):
    """Run a model on one batch and return NumPy arrays. Several threads may call this.

    Args:
        model: a `keras.Model`.
        features: dict of NumPy arrays.
    """
    return keras.Model.predict_on_batch(model, features)


@kernel
def run_in_loop(model, step, inputs):
    """Compute `step(inputs)`, as a caller does in a loop.

    Args:
        model: a `keras.Model` whose variables `step` uses.
        step: function of a dict of tensors, which depends only on these and the model's variables.
        inputs: dict of tensors.
    """
    return step(inputs)


@kernel
def scan(step, carry, xs, reverse=False, like=None):
    """Run a recurrence over the first axis of `xs`.

    Args:
        step: function of the carried tensors and a list of slices of `xs`, to the next carried
            tensors and the step's outputs.
        carry: tensor or tuple of tensors. The first carried tensors.
        xs: list of tensors (T, ...).
        reverse: whether to begin with the last slice.
        like: tensor or tuple of tensors like a step's outputs; `None` if like `carry`.

    Returns:
        The outputs (T, ...), in the order of `xs`.
    """
    if like is None:
        return ops.scan(step, carry, xs, reverse=reverse)[1]

    def both(now, x):
        # On TensorFlow, Keras' `scan` needs outputs like the carried tensors.
        found = step(now[0], x)
        return found, found

    return ops.scan(both, (carry, like), xs, reverse=reverse)[1][1]


@kernel
def predicts_by_batch():
    """Return whether `predict_batch` should also run each batch of a dataset."""
    return False


def runs_graphs(model):
    """Return whether a step of `model` may run in graphs other than Keras' own."""
    return not (model.run_eagerly or _preferred)


@kernel
def uninterrupted_step(step):
    """Wrap a step that must not be interrupted."""
    return step


@kernel
def is_distributed(model):
    """Return whether Keras splits the batches of `model` over several devices."""
    return keras.distribution.distribution() is not None


@kernel
def trains_in_graphs():
    """Return whether `fit` is fastest on a `tf.data.Dataset`."""
    return False


@kernel
def full_float32():
    """Return a context with full float32 matmuls instead of TF32."""
    return contextlib.nullcontext()


@kernel
def random_states():
    """Return the random generators' states outside of models, a dict of name to array."""
    return {}


@kernel
def set_random_states(states):
    """Restore the states that `random_states` returned."""


# === Compilation ===


@kernel
def prepare():
    """Apply settings that must be made before any computation."""


@kernel
def keep_compiled():
    """Enable the compilation cache on disk, for later processes."""


@kernel
def check_compiling(jit_compile, adversarial=None):
    """Raise if `jit_compile` is impossible here.

    Args:
        jit_compile, adversarial: the arguments of `compile`.
    """


@kernel
def compiles_shapes(jit_compile):
    """Return whether each new sequence length needs a compilation."""
    return bool(jit_compile)


@kernel
def compiling(model, say):
    """Return a context in which Keras builds a model's training function.

    Args:
        model: a compiled `keras.Model`.
        say: function of a shape, called before its compilation where supported.
    """
    return contextlib.nullcontext()


def shape_cost(width):
    """Estimate how many tokens could be trained while XLA compiles an encoder's step.

    Both times grow with the number of layers, training time also with the square of the width.
    Measured on 2 cores with 6 layers of width 384; higher on a GPU.
    """
    return 6e8 / width**2


# === Several processes ===


@kernel
def launched():
    """Return this process' index and the number of launched processes, without connecting."""
    return 0, 1


@kernel
def join_processes():
    """Connect to the other launched processes; return this process' index and their number."""
    return 0, 1


@kernel
def on_devices(devices, mesh, layout_map):
    """Return a context in which models are created on the devices of all processes.

    The context yields `(shard, replicas)`: this process' shard `(index, count)` of each batch, and
    the number of devices that split it.

    Args:
        devices: number of devices of a single process; `None` means one. Several processes use all.
        mesh: `(batch, model)`, ints. Numbers of devices over which rows and layers are split.
        layout_map: function from a `keras.distribution.DeviceMesh` to a layout map.
    """
    if devices not in (None, 1) or mesh is not None:
        raise ValueError(
            f"Several devices are not supported on {name()}; set KERAS_BACKEND to tensorflow, jax "
            "or torch."
        )
    return contextlib.nullcontext(((0, 1), 1))


def check_no_mesh(mesh):
    """Raise if the caller passed a mesh, which splits layers over devices."""
    if mesh is not None:
        raise ValueError(
            f"mesh={mesh} splits layers over devices, which Keras supports on JAX only; set "
            "KERAS_BACKEND=jax."
        )


@kernel
def data_parallel(model, **kwargs):
    """Make `model.fit` train jointly with other processes."""
    raise ValueError(
        f"Training in several processes is not supported on {name()}; set KERAS_BACKEND to "
        "tensorflow, jax or torch."
    )


@kernel
def share_steps(model, processes):
    """Make a compiled model run its steps jointly with the other processes."""
    if processes > 1:
        data_parallel(model)


@kernel
def one_after_another(step):
    """Wrap a step of `evaluate` so that it finishes before the next, where needed."""
    return step


@kernel
def of_one_process(model, processes):
    """Return the model for this process alone, with all weights."""
    return model


@kernel
def is_lost_process(error):
    """Return whether an exception means that another process has died."""
    return False


@kernel
def rows_of_process(shard, training):
    """Return the shard that this process passes to Keras; see `on_devices`.

    Args:
        training: bool. True for `fit`, false for `evaluate`.
    """
    return shard


@kernel
def of_this_process(batches):
    """Adapt a `tf.data.Dataset` of this process' rows for joint training."""
    return batches


@kernel
def predicts_while_sharing():
    """Return whether a process can predict alone while it trains with others."""
    return True


# === Values of several devices and processes ===


@kernel
def sum_over_replicas(gradients):
    """Sum gradients over the replicas of a step; `None` entries are kept."""
    return gradients


@kernel
def of_all_replicas(x):
    """Gather the rows (B, ...) of all replicas, this one's first."""
    return x


@kernel
def mean_of_replicas(x):
    """Average a tensor over the replicas of a step."""
    return x


@kernel
def sum_over_processes(values):
    """Return the sums of floats (N,) over all processes, which must all call this."""
    return values


@kernel
def whole(variable):
    """Return a variable as an array. If it is sharded over processes, all must call this."""
    return ops.convert_to_numpy(variable)


# The backend's module, or `None`. It is imported last, because it imports this module.
_module = None
set_backend(name())
if name() in ("tensorflow", "jax", "torch"):
    _module = importlib.import_module(f"{__name__}.{name()}_kernels")
    prepare()


# Mixin that keeps weights in a model during loops, where Keras does not; must precede Keras' base
# classes.
KeepsWeights = getattr(_module, "KeepsWeights", type("KeepsWeights", (), {}))
# The formats that `keras.Model.export` writes correctly.
KERAS_EXPORTS = getattr(_module, "KERAS_EXPORTS", ())
