"""The backends' contract: functions that the running backend may replace with its own.

Functions marked `@kernel` are the plain forms. If the current backend's module, such as
`torch_kernels`, has a function of the same name, that one is called first; if it returns `None`,
the plain form is used. Callers never check which backend runs. The plain form remains available, as
in `norm.plain`.

This module has the lookup, and the kernels for a model's steps, compilation and joint training in
several processes. The other kernels are in `layers`, `attention`, `losses` and `optimizers`. A
backend's module imports its kernels for several processes from another file, such as
`torch_processes`. It must not import a plain kernel by name, because the lookup would take that
kernel for the backend's own.
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

    # `_preferred` is a global, because a context variable would break the graphs of
    # `torch.compile`.
    @functools.wraps(plain)
    def call(*args, **kwargs):
        own = _preferred.get(own_name) or getattr(_module, own_name, None)
        outputs = None if own is None else own(*args, **kwargs)
        return plain(*args, **kwargs) if outputs is None else outputs

    call.plain = plain
    return call


@contextlib.contextmanager
def using(kernels):
    """Override kernels by name within a context, for example to trace a graph with other ops.

    This affects all threads.

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

    The weights keep their values except for the optimizer's update, and the loss and the metrics
    are those without a perturbation.

    Args:
        model: a compiled `keras.Model`.
        arguments: list. The arguments of Keras' `train_step`.
        perturbed: list of variables, trainable or not.
        perturbations: function of a list of values and of a list of their gradients, which may be
            `None`. It returns the list of tensors to add.
        keeps_clean: bool. Whether the optimizer gets the sum of the gradients without and with the
            perturbation, instead of only those with it.

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
    """Compute `step(inputs)` once, for a caller that does so repeatedly in a loop.

    Args:
        model: a `keras.Model` whose variables `step` uses.
        step: function of a dict of tensors. Its result depends only on these tensors and on the
            model's variables.
        inputs: dict of tensors.
    """
    return step(inputs)


@kernel
def scan(step, carry, xs, reverse=False, like=None):
    """Run a recurrence over the first axis of `xs`.

    Args:
        step: function of the carried tensors and a list of slices of `xs`. It returns the next
            carried tensors and the outputs of the step.
        carry: tensor or tuple of tensors. The first carried tensors.
        xs: list of tensors (T, ...).
        reverse: bool. Whether to begin with the last slice.
        like: tensor or tuple of tensors with the structure, shapes and types of the outputs of
            one step; `None` if they are those of `carry`.

    Returns:
        The outputs (T, ...), in the order of `xs`.
    """
    if like is None:
        return ops.scan(step, carry, xs, reverse=reverse)[1]

    def both(now, x):
        # On TensorFlow, Keras' `scan` needs outputs with the shapes of the carried tensors.
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
    """Wrap a step of a Keras loop that must not be interrupted."""
    return step


@kernel
def is_distributed(model):
    """Return whether Keras splits the batches of `model` over several devices."""
    return keras.distribution.distribution() is not None


@kernel
def trains_in_graphs():
    """Return whether `fit` is fastest on a `tf.data.Dataset`, which makes batches in a graph."""
    return False


@kernel
def full_float32():
    """Return a context with full float32 matmuls, where GPUs might otherwise use TF32."""
    return contextlib.nullcontext()


@kernel
def random_states():
    """Return the states of the random generators outside of models, as a dict of name to array."""
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
    """Raise if `jit_compile` requests a compilation that is impossible here.

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
        say: function of a shape. It is called before the compilation for that shape, on backends
            that support this.
    """
    return contextlib.nullcontext()


def shape_cost(width):
    """Estimate how many tokens could be trained while XLA compiles an encoder's step.

    Compilation time and training time both grow with the number of layers; only the training time
    per token also grows with the square of the width. This was measured on 2 cores with 6 layers of
    width 384. The number is higher where training is faster, as on a GPU.
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

    The context yields `(shard, replicas)`: the shard `(index, count)` of each batch for this
    process, and the number of devices over which the rows of a batch are split.

    Args:
        devices: int. Number of devices if there is a single process; `None` means one. Several
            processes use all their devices.
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
    """Wrap a step of `evaluate` so that, where needed, it finishes before the next one begins."""
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
    """Return the shard of each global batch that this process passes to Keras; see `on_devices`.

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
    """Return whether a process can predict alone while its devices train jointly with others."""
    return True


# === Values of several devices and processes ===


@kernel
def sum_over_replicas(gradients):
    """Sum gradients over the replicas of a step; `None` entries are kept."""
    return gradients


@kernel
def of_all_replicas(x):
    """Gather the rows (B, ...) of all replicas of a step; those of this replica come first."""
    return x


@kernel
def mean_of_replicas(x):
    """Average a tensor over the replicas of a step."""
    return x


@kernel
def sum_over_processes(values):
    """Return the sums of floats (N,) over all processes; all of them must call this."""
    return values


@kernel
def whole(variable):
    """Return a variable as an array. If it is sharded over processes, all must call this."""
    return ops.convert_to_numpy(variable)


# The current backend's module; `None` for backends without kernels. It is imported here, at the
# end, because it imports this module.
_module = None
set_backend(name())
if name() in ("tensorflow", "jax", "torch"):
    _module = importlib.import_module(f"{__name__}.{name()}_kernels")
    prepare()


# Mixin that keeps the weights in a model during loops; it must precede Keras' base classes. It is
# empty for backends on which Keras' loops keep them anyway.
KeepsWeights = getattr(_module, "KeepsWeights", type("KeepsWeights", (), {}))
# The formats that `keras.Model.export` writes correctly.
KERAS_EXPORTS = getattr(_module, "KERAS_EXPORTS", ())
