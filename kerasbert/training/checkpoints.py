"""Checkpoints of a training: all that its next step depends on, in one file.

A file in the format of safetensors, written under another name, then renamed: it is whole, or not
there. A run that goes on from one takes the same steps as one that was never interrupted.
"""

import collections
import glob
import json
import os
import re

import keras
import ml_dtypes  # noqa: F401  It makes bfloat16 known to NumPy.
import numpy as np

from kerasbert import backend, private_names
from kerasbert._errors import first_line, reading
from kerasbert._finite import NonFiniteError, is_finite
from kerasbert._json import to_json
from kerasbert.files import new_file

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
    """Write `checkpoint-<step>.safetensors`, then remove those before it.

    Holds the weights, and the states of the optimizer and of dropout.

    Args:
        folder: path.
        model: a compiled model whose optimizer is built.
        step: int.
        kept: list of arrays beside, for `load_checkpoint` to return.
        write: bool. `False` in all but one of several processes, which have to call this all where
            a weight is cut over their devices: the file holds it whole, so that any number of
            processes and any cut goes on from it. In memory is one at a time.
        keep_older: bool. Whether to keep earlier checkpoints.
        **facts: likewise, what JSON can hold.

    Returns:
        The path.

    Raises:
        OSError: if the disk is full; what was there before is still there.
        FloatingPointError: if a weight is not finite; what was there before is still there.
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
    # By hand, one tensor at a time: the library wants all arrays at once. For 512 MB of
    # variables on TensorFlow it took 512 MB beside them; this takes 16, the largest tensor.
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
    """Remove all checkpoints but the newest."""
    for path in sorted(_checkpoints(folder))[:-1]:
        os.remove(path)


def find_checkpoint(folder):
    """Path of the newest checkpoint; `None` where there is none."""
    return max(_checkpoints(folder), default=None)


def load_checkpoint(path, model):
    """Put a checkpoint into a model and its optimizer, strictly.

    Returns:
        `(facts, kept)`: what it says of itself, `step` and the `facts` of `save_checkpoint`; and
        the list of arrays.

    Raises:
        ValueError: if it is damaged, or one of another model.
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
    """Callback that saves a checkpoint per epoch, from which a training resumes bit by bit.

    Before `fit` on raw texts, call `keras.utils.set_random_seed` with the seed of the training and
    then `resume`, and pass the epoch that it returns as `initial_epoch`.

    Args:
        folder: path. The folder of this training; it need not exist.
    """

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def resume(self, model):
        """Load the newest checkpoint, if there is one, into a compiled model.

        Returns:
            `(epoch, facts, kept)`: the number of complete epochs, and what was passed to `keep`.
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
    """A function that puts global random generators back to where they are now.

    On PyTorch `fit` draws from them where it builds a model and where it begins to read data, and
    dropout does in its steps: with this, the steps draw the same in one call of `fit` and in two.
    """
    states = backend.random_states()
    return lambda: backend.set_random_states(states)


def load_optimizer(path, model):
    """Put the state of the optimizer alone into a model's: its averages and its count of steps.

    Gradients that were being accumulated are left out.
    """
    variables = {
        name: variable
        for name, variable in _variables(model).items()
        if name.startswith("optimizer/") and not name.endswith(private_names.GRADIENT_ACCUMULATOR)
    }
    with _open(path) as file:
        others = [name for name in file.keys() if name.endswith(private_names.GRADIENT_ACCUMULATOR)]
        others += ["weight/", "seed/", "random/", "scaled/", _KEPT]
        _check(path, file, variables, others)
        for name, variable in variables.items():
            variable.assign(file.get_tensor(name))


def checkpoint_facts(path):
    """What a checkpoint says of itself."""
    with _open(path) as file:
        return _facts(file, path)


def _variables(model):
    """What a step depends on, by name: a dict of variables."""
    weights = model.weights
    known = {id(weight) for weight in weights}
    # States of dropout: they have no names that stay.
    seeds = [variable for variable in model.variables if id(variable) not in known]
    named = [(f"weight/{weight.path}", weight) for weight in weights]
    named += [(f"seed/{number}", seed) for number, seed in enumerate(seeds)]
    # Below the optimizer's own name, which counts up; where two are nested, the inner one's.
    inner = getattr(model.optimizer, "inner_optimizer", None)
    own = {id(variable) for variable in (inner.variables if inner else ())}
    for variable in model.optimizer.variables:
        kind = "scaled" if inner and id(variable) not in own else "optimizer"
        # The inner one's name stands below the outer one's if that one built it.
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
    """Paths of checkpoints; those half-written have another name."""
    paths = glob.glob(os.path.join(glob.escape(folder), "checkpoint-*.safetensors"))
    return [path for path in paths if re.search(r"checkpoint-\d+\.safetensors$", path)]


def _open(path):
    import safetensors

    try:
        return safetensors.safe_open(path, framework="numpy")
    except Exception as error:  # The library has a class of its own for what is damaged.
        raise ValueError(
            f"The checkpoint '{path}' cannot be read ({first_line(error)}): it is damaged. Remove "
            "it to start anew."
        ) from None


def _facts(file, path):
    with reading(path, "remove it to start over"):
        return json.loads((file.metadata() or {}).get(_KEY, "{}"))


def _check(path, file, variables, others=()):
    """Raise unless a file has exactly these, of these shapes and types, beside `others`.

    Args:
        others: list of beginnings of names.
    """
    found = {name for name in file.keys() if not name.startswith(tuple(others))}
    missing, extra = sorted(variables.keys() - found), sorted(found - variables.keys())
    if missing or extra:
        raise ValueError(
            f"The checkpoint '{path}' is of another model or optimizer: it lacks "
            f"{_some(missing)}, and has {_some(extra)} beside."
        )
    for name, variable in variables.items():
        stored = file.get_slice(name)
        shape, dtype = tuple(stored.get_shape()), stored.get_dtype()
        own = tuple(variable.shape), _TYPES[_dtype(variable).name]
        if (shape, dtype) != own:
            raise ValueError(
                f"The checkpoint '{path}' is of another model: {name} is {dtype} {shape} there, "
                f"and {own[1]} {own[0]} here."
            )


def _some(names):
    return (", ".join(names[:3]) + (" and more" if len(names) > 3 else "")) or "nothing"
