"""TensorFlow on any backend: late imports, and functions that run as one graph.

Encoders, safetensors and `fit` on arrays do not need TensorFlow on other backends.
"""

import contextlib
import functools
import importlib
import logging
import threading

from kerasbert.base.errors import is_installed
from kerasbert.base.process import check_process, uninterrupted
from kerasbert.base.system import IS_WINDOWS

# === Imports ===


class _Late:
    """Package that is imported on first use."""

    def __init__(self, package):
        self._package = package
        self._module = None

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)  # Introspection must not import the package.
        check_process("tensorflow")
        if self._module is None:
            need_tensorflow("This call", self._package)
            self._module = importlib.import_module(self._package)
        return getattr(self._module, name)


tf, tf_text = _Late("tensorflow"), _Late("tensorflow_text")


@functools.cache
def has_tensorflow():
    """Return whether TensorFlow and TensorFlow Text are installed, without importing them."""
    return all(map(is_installed, ("tensorflow", "tensorflow_text")))


def need_tensorflow(what, *packages):
    """Raise if TensorFlow cannot be used.

    Args:
        what: string. The feature that needs it; begins the error.
        *packages: strings. Defaults to `tensorflow` and `tensorflow_text`, which processes strings.

    Raises:
        ImportError: if a package is not installed or is broken.
        RuntimeError: in a forked process, see `check_process`.
    """
    check_process("tensorflow")
    try:
        for package in packages or ("tensorflow", "tensorflow_text"):
            importlib.import_module(package)
    except ImportError as error:
        advice = "run `pip install tensorflow tensorflow-text`"
        if IS_WINDOWS:
            advice = (
                "TensorFlow Text does not exist for Windows, so run this in WSL 2, choose "
                "KERAS_BACKEND=jax or torch for texts in lists"
            )
        raise ImportError(
            f"{what} needs TensorFlow and TensorFlow Text on every Keras backend; {advice}, or "
            "pass arrays of token ids."
        ) from error


# === Graphs ===


def _is_no_retracing(record):
    return "triggered tf.function retracing" not in record.getMessage()


@contextlib.contextmanager
def traced_on_purpose():
    """Suppress TensorFlow's warning about retracing within a context.

    TensorFlow warns after five traces in a row, but each bucket of lengths is traced once.
    """
    logger = logging.getLogger("tensorflow")
    logger.addFilter(_is_no_retracing)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_retracing)


def _open_spec(tensor):
    """Return the spec of a tensor or ragged tensor, with all sizes unknown."""
    shape = [None] * tensor.shape.rank
    if isinstance(tensor, tf.RaggedTensor):
        splits = tensor.row_splits.dtype
        return tf.RaggedTensorSpec(shape, tensor.dtype, tensor.ragged_rank, splits)
    return tf.TensorSpec(shape, tensor.dtype)


class Operation:
    """Runs a concrete function as one operation, without 0.1 ms of argument checks.

    Args:
        function: a concrete function without keyword arguments.
    """

    def __init__(self, function):
        self._function = function
        self._captured = list(function.captured_inputs)
        self._types = [output.dtype for output in function.graph.outputs]
        self._structure = function.structured_outputs

    def __call__(self, *args):
        if not tf.executing_eagerly():
            return self._function(*args)
        outputs = tf.raw_ops.StatefulPartitionedCall(
            args=[*tf.nest.flatten(args, expand_composites=True), *self._captured],
            Tout=self._types,
            f=self._function,
        )
        return tf.nest.pack_sequence_as(self._structure, outputs, expand_composites=True)


class Traced:
    """Function of tensors as one graph on the CPU, traced once for all sizes.

    Small operations are slower outside of graphs, and a `tf.function` inspects arguments for each
    size.

    Args:
        function: function of tensors and ragged tensors that returns any nesting of them.

    >>> total = Traced(lambda x: tf.reduce_sum(x))
    >>> [int(total(tf.ones(size, tf.int32))) for size in (2, 3)]
    [2, 3]
    """

    def __init__(self, function):
        self._function = function
        self._traces = {}
        self._lock = threading.Lock()

    def __call__(self, *args):
        args = [x if tf.is_tensor(x) else tf.convert_to_tensor(x) for x in args]
        kinds = tuple(map(_open_spec, args))
        if kinds not in self._traces:
            with self._lock, tf.device("cpu"):
                if kinds not in self._traces:
                    function = tf.function(self._on_cpu, input_signature=kinds, autograph=False)
                    with uninterrupted():
                        self._traces[kinds] = Operation(function.get_concrete_function())
        return self._traces[kinds](*args)

    def _on_cpu(self, *args):
        with tf.device("cpu"):
            return self._function(*args)
