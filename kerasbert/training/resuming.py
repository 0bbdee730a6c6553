"""Training checkpoints: the whole state in one safetensors file.

A resumed training takes the same steps as an uninterrupted one.
"""

import collections
import glob
import json
import os
import re

import keras
import ml_dtypes  # noqa: F401  Registers bfloat16 with NumPy.
import numpy as np

from kerasbert import backend
from kerasbert.base import keras_internals
from kerasbert.base.errors import first_line, reading
from kerasbert.base.files import new_file
from kerasbert.base.finite import NonFiniteError, is_finite
from kerasbert.base.strict_json import to_json

_KEY = "kerasbert"
_KEPT = "kept/"
_TYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int8": "I8",
    "uint32": "U32",
    "uint8": "U8",
    "bool": "BOOL",
}


def save_checkpoint(folder, model, step, kept=(), write=True, keep_older=False, **facts):
    """Write `checkpoint-<step>.safetensors`, atomically, then remove older ones.

    The file has the weights, and the states of the optimizer and of dropout.

    Args:
        folder: path.
        model: a compiled model whose optimizer is built.
        step: int.
        kept: list of further arrays, which `load_checkpoint` returns.
        write: bool. Of several processes, only one passes `True`. With sharded weights, all must
            call this function: the file has whole weights, to resume on any number of processes and
            any mesh.
        keep_older: whether to keep earlier checkpoints.
        **facts: further JSON values, which `load_checkpoint` returns.

    Returns:
        The path.

    Raises:
        OSError: if the disk is full; earlier checkpoints are kept.
        FloatingPointError: if a weight is not finite; earlier checkpoints are kept.
    """
    path = os.path.join(folder, f"checkpoint-{step:09}.safetensors")
    kept = {f"{_KEPT}{number:06}": array for number, array in enumerate(kept)}
    tensors = {**_variables(model), **backend.random_states(), **kept}
    header, end = {"__metadata__": {_KEY: to_json({"step": step, **facts})}}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + _dtype(tensor).itemsize * int(np.prod(tensor.shape))
        header[name] = {
            "dtype": _TYPES[_dtype(tensor).name],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = to_json(header).encode()
    text += b" " * (-len(text) % 8)
    # One at a time: all arrays at once, as safetensors needs them, took 512 MB more for 512 MB of
    # variables on TensorFlow, instead of 16 MB, the largest tensor.
    values = (backend.whole(x) if hasattr(x, "path") else x for x in tensors.values())
    if not write:
        collections.deque(values, maxlen=0)
        return path
    with new_file(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for (name, tensor), value in zip(tensors.items(), values):
            if name.startswith("weight/") and not is_finite(value):
                raise NonFiniteError(
                    f"The weight '{tensor.path}' is not finite after step {step}, so no checkpoint "
                    "is written."
                )
            file.write(np.ascontiguousarray(value, _dtype(tensor)).tobytes())
    if not keep_older:
        remove_older(folder)
    return path


def remove_older(folder):
    """Remove all checkpoints except the newest."""
    for path in sorted(_checkpoints(folder))[:-1]:
        os.remove(path)


def find_checkpoint(folder):
    """Return the path of the newest checkpoint, or `None`."""
    return max(_checkpoints(folder), default=None)


def load_checkpoint(path, model):
    """Load a checkpoint into a model and its optimizer.

    Returns:
        `(facts, kept)`: a dict of `step` and the facts of `save_checkpoint`, and its list of arrays
        `kept`.

    Raises:
        ValueError: if the file is damaged, or its variables are not the model's.
    """
    variables, states = _variables(model), backend.random_states()
    with _open(path) as file:
        _check(path, file, {**variables, **states}, [_KEPT])
        for name, variable in variables.items():
            variable.assign(file.get_tensor(name))
        backend.set_random_states({name: file.get_tensor(name) for name in states})
        kept = sorted(name for name in file.keys() if name.startswith(_KEPT))
        return _facts(file, path), [file.get_tensor(name) for name in kept]


class EpochCheckpoints(keras.callbacks.Callback):
    """Callback that saves a checkpoint per epoch, to resume bit-identically.

    Before `fit` on raw texts, call `keras.utils.set_random_seed` with the training's seed, then
    `resume`, and pass its epoch to `fit` as `initial_epoch`.

    Args:
        folder: path. The folder of this training; it need not exist.
    """

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def resume(self, model):
        """Load the newest checkpoint, if any, into a compiled model.

        Returns:
            `(epoch, facts, kept)`: the number of complete epochs, and `facts` and `kept` of `keep`.
        """
        path, facts, kept = find_checkpoint(self.folder), {}, []
        if path is not None:
            model.optimizer.build(model.trainable_variables)
            facts, kept = load_checkpoint(path, model)
        self._put_back = random_mark()
        return facts.get("step", 0), facts, kept

    def keep(self, epoch, kept=(), **facts):
        """Save the state after `epoch` epochs; see `save_checkpoint`."""
        os.makedirs(self.folder, exist_ok=True)
        save_checkpoint(self.folder, self.model, epoch, kept, **facts)

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            self._put_back()

    def on_epoch_end(self, epoch, logs=None):
        self._put_back = random_mark()


def random_mark():
    """Return a function that restores the global random generators.

    On PyTorch, `fit` draws from them to build a model and read data, and dropout in each step.
    After a reset, two calls of `fit` draw like a single one.
    """
    states = backend.random_states()
    return lambda: backend.set_random_states(states)


def load_optimizer(path, model):
    """Load a checkpoint's optimizer moments and step count."""
    variables = {
        name: variable
        for name, variable in _variables(model).items()
        if name.startswith("optimizer/") and not name.endswith(keras_internals.GRADIENT_ACCUMULATOR)
    }
    with _open(path) as file:
        others = [
            name for name in file.keys() if name.endswith(keras_internals.GRADIENT_ACCUMULATOR)
        ]
        others += ["weight/", "seed/", "random/", "scaled/", _KEPT]
        _check(path, file, variables, others)
        for name, variable in variables.items():
            variable.assign(file.get_tensor(name))


def checkpoint_facts(path):
    """Return the facts stored in a checkpoint."""
    with _open(path) as file:
        return _facts(file, path)


def _variables(model):
    """Return the variables of a step by name."""
    weights = model.weights
    known = {id(weight) for weight in weights}
    # Dropout states have no stable names.
    seeds = [variable for variable in model.variables if id(variable) not in known]
    named = [(f"weight/{weight.path}", weight) for weight in weights]
    named += [(f"seed/{number}", seed) for number, seed in enumerate(seeds)]
    # Without the optimizer's own name, to which Keras adds a counter.
    inner = getattr(model.optimizer, "inner_optimizer", None)
    own = {id(variable) for variable in (inner.variables if inner else ())}
    for variable in model.optimizer.variables:
        kind = "scaled" if inner and id(variable) not in own else "optimizer"
        # The outer optimizer's name may precede the inner one's.
        path = variable.path
        if kind == "optimizer" and inner:
            path = path[max(path.find(f"{inner.name}/"), 0) :]
        named.append((f"{kind}/{path.partition('/')[2]}", variable))
    variables = dict(named)
    if len(variables) < len(named):
        raise ValueError("Two weights of the model have the same path; give its layers names.")
    return variables


def _dtype(tensor):
    return np.dtype(keras.backend.standardize_dtype(tensor.dtype))


def _checkpoints(folder):
    """Return the paths of a folder's checkpoints."""
    paths = glob.glob(os.path.join(glob.escape(folder), "checkpoint-*.safetensors"))
    return [path for path in paths if re.search(r"checkpoint-\d+\.safetensors$", path)]


def _open(path):
    import safetensors

    try:
        return safetensors.safe_open(path, framework="numpy")
    except Exception as error:  # safetensors has its own error class for damaged files.
        raise ValueError(
            f"The checkpoint '{path}' cannot be read ({first_line(error)}): it is damaged. Remove "
            "it to start over."
        ) from None


def _facts(file, path):
    with reading(path, "remove it to start over"):
        return json.loads((file.metadata() or {}).get(_KEY, "{}"))


def _check(path, file, variables, others=()):
    """Raise unless a file's tensors have the names, shapes and types of the variables.

    Args:
        others: list of prefixes of ignored tensors.
    """
    found = {name for name in file.keys() if not name.startswith(tuple(others))}
    missing, extra = sorted(variables.keys() - found), sorted(found - variables.keys())
    if missing or extra:
        raise ValueError(
            f"The checkpoint '{path}' is from another model or optimizer: it lacks "
            f"{_some(missing)}, and also has {_some(extra)}."
        )
    for name, variable in variables.items():
        stored = file.get_slice(name)
        shape, dtype = tuple(stored.get_shape()), stored.get_dtype()
        own = tuple(variable.shape), _TYPES[_dtype(variable).name]
        if (shape, dtype) != own:
            raise ValueError(
                f"The checkpoint '{path}' is from another model: {name} is {dtype} {shape}, but "
                f"the model's is {own[1]} {own[0]}."
            )


def _some(names):
    return (", ".join(names[:3]) + (" and more" if len(names) > 3 else "")) or "nothing"
