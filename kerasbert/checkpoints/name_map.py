"""Two-way mapping between our weights and those of other packages.

"Ours" and "theirs" are the names and shapes of this package and the other one. A table is a dict of
our layer to theirs, where `{i}` is a layer's number, `{j}` that of a block in it, and `[a|b|c]`
parts that we concatenate into one matrix.
"""

import math
import re
from dataclasses import dataclass

import numpy as np

# Types of weights. The scales of quantized integers are not read.
FLOATS = ("float16", "bfloat16", "float32", "float64")
# A layer's weights in another package.
LEAVES = {
    "torch": {
        "kernel": "weight",
        "bias": "bias",
        "gamma": "weight",
        "beta": "bias",
        "embeddings": "weight",
    },
    # Google's weight of an embedding has its name.
    "google": {
        "kernel": "kernel",
        "bias": "bias",
        "gamma": "gamma",
        "beta": "beta",
        "embeddings": "",
    },
    "keras_hub": {
        "kernel": "kernel",
        "bias": "bias",
        "gamma": "gamma",
        "beta": "beta",
        "embeddings": "embeddings",
    },
}
# transformers' Conv1D: as "torch", without transposed matrices.
LEAVES["conv1d"] = LEAVES["torch"]
SEPARATORS = {"torch": ".", "conv1d": ".", "google": "/", "keras_hub": "/"}


@dataclass(frozen=True)
class NameMap:
    """A name table with its layout.

    Args:
        layers: dict of our layer to theirs.
        layout: "torch", "conv1d", "google" or "keras_hub".
        verbatim: dict of our weight to theirs, for names outside `LEAVES`; ".T" means that theirs
            is transposed, "[0]" that it has a first axis of 1.
        inner: int. Our blocks per layer of theirs; see `{j}`.
        swapped: path suffix of layers with swapped halves, such as a gate's; "" for none.
        orders: dict of our paths' suffix to `(axis, sizes, order)`, for features in another order:
            theirs, reshaped to `sizes` along this axis and transposed to `order`, are ours.

    >>> names = NameMap({"layer_{i}/qkv": "h.{i}.[q|k|v]"}, "torch")
    >>> names.theirs("layer_3/qkv/bias")
    ['h.3.q.bias', 'h.3.k.bias', 'h.3.v.bias']
    """

    layers: dict
    layout: str
    verbatim: dict = None
    inner: int = 1
    swapped: str = ""
    orders: dict = None

    def theirs(self, path):
        """Return their names for our weight at `path`, or `None` if the table has none."""
        if self.verbatim and path in self.verbatim:
            return [_plain(self.verbatim[path])]
        layer, _, leaf = path.rpartition("/")
        number = re.search(r"_(\d+)/", layer + "/")
        pattern = layer
        if number and layer not in self.layers:
            pattern = f"{layer[: number.start(1)]}{{i}}{layer[number.end(1) :]}"
        if pattern not in self.layers or leaf not in LEAVES[self.layout]:
            return None
        name = self.layers[pattern]
        if pattern != layer:
            layer, block = divmod(int(number.group(1)), self.inner)
            name = name.replace("{i}", str(layer)).replace("{j}", str(block))
        leaf = LEAVES[self.layout][leaf]
        if leaf:
            name += SEPARATORS[self.layout] + leaf
        parts = re.search(r"\[(.*)\]", name)
        if not parts:
            return [name]
        return [name.replace(parts.group(0), part) for part in parts.group(1).split("|")]

    def their_prefixes(self):
        """Return the prefix of their names for each layer and each verbatim weight.

        >>> NameMap({"logits": "classifier"}, "torch").their_prefixes()
        ['classifier.']
        """
        separator = SEPARATORS[self.layout]
        names = [re.split(r"[{\[]", name)[0] for name in self.layers.values()]
        names = [f"{name.rstrip(separator)}{separator}" for name in names]
        return names + [_plain(name) for name in (self.verbatim or {}).values()]

    def _transposed(self, path):
        if self.verbatim and path in self.verbatim:
            return self.verbatim[path].endswith(".T")
        return self.layout == "torch" and path.endswith("/kernel")

    def _in_order(self, path, value, to_theirs=False):
        """Reorder a weight's features to our order, or to theirs."""
        for end, (axis, sizes, order) in (self.orders or {}).items():
            if path.endswith(end):
                places = np.arange(math.prod(sizes)).reshape(sizes).transpose(order).ravel()
                value = np.take(value, np.argsort(places) if to_theirs else places, axis)
        is_swapped = self.swapped and path.rpartition("/")[0].endswith(self.swapped)
        return np.roll(value, value.shape[-1] // 2, axis=-1) if is_swapped else value

    def _is_first(self, path):
        """Return whether their weight has an additional first axis of size 1."""
        return self.verbatim is not None and self.verbatim.get(path, "").endswith("[0]")

    def their_shapes(self, path, shape):
        """Return the shapes of their tensors, one per name, for our weight at `path` of `shape`."""
        names = self.theirs(path)
        if self._is_first(path):
            return [(1, *shape)]
        part = (*shape[:-1], shape[-1] // len(names))
        return [part[::-1] if self._transposed(path) else part] * len(names)

    def fits(self, path, shape, tensors):
        """Return whether their `tensors` have the shapes of our weight at `path`."""
        theirs = [tuple(tensors.shape(name)) for name in self.theirs(path)]
        ours = self.their_shapes(path, shape)
        if self.layout == "keras_hub":
            # Theirs are (D, N, H) or (N, H, D) instead of our (D, D).
            return [math.prod(part) for part in theirs] == [math.prod(part) for part in ours]
        return theirs == ours

    def read(self, path, shape, tensors, source="the checkpoint"):
        """Return our weight at `path`, float32 of `shape`, from their fitting `tensors`.

        Raises:
            ValueError: by `check_dtype` or `check_finite`.
        """
        parts = []
        for name in self.theirs(path):
            part = np.asarray(tensors[name])
            check_dtype(name, part.dtype.name, source)
            part = part.astype("float32", copy=False)
            check_finite(name, part, source)
            parts.append(part)
        if self._is_first(path):
            parts = [part[0] for part in parts]
        elif self._transposed(path):
            parts = [part.T for part in parts]
        elif self.layout == "keras_hub":
            ours = self.their_shapes(path, shape)
            parts = [part.reshape(one) for part, one in zip(parts, ours, strict=True)]
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
        # PyTorch would keep a transposed array's strides, with another memory layout than gradient
        # and optimizer state.
        return np.ascontiguousarray(self._in_order(path, whole))

    def write(self, path, value):
        """Return their tensors for our weight, as a dict of name to array; the reverse of `read`.

        For KerasHub the caller, who knows the shapes, must add the axis for heads.
        """
        names = self.theirs(path)
        whole = self._in_order(path, np.asarray(value), to_theirs=True)
        parts = np.split(whole, len(names), axis=-1)
        if self._is_first(path):
            parts = [part[None] for part in parts]
        elif self._transposed(path):
            parts = [part.T for part in parts]
        return {name: np.ascontiguousarray(part) for name, part in zip(names, parts, strict=True)}


def _plain(name):
    """Remove the shape suffixes of a verbatim name."""
    return name.removesuffix(".T").removesuffix("[0]")


def check_dtype(name, dtype, source):
    """Check that a tensor holds plain floating-point numbers.

    Args:
        name: string. The tensor.
        dtype: string. Its type in NumPy.
        source: string. The checkpoint.

    Raises:
        ValueError: if its type is not one of `FLOATS`.
    """
    if dtype not in FLOATS:
        raise ValueError(
            f"The tensor '{name}' of '{source}' holds {dtype}, but weights must be one of "
            f"{', '.join(FLOATS)}; use the checkpoint from before it was quantized or cast."
        )


def check_finite(name, value, source):
    """Raise a `ValueError` if a tensor holds NaN or infinity; see `check_dtype` for arguments."""
    if not np.isfinite(value).all():
        wrong = np.argwhere(~np.isfinite(value))
        place = tuple(int(i) for i in wrong[0])
        raise ValueError(
            f"The tensor '{name}' of '{source}' holds {value[place]} at {list(place)}"
            f"{f' and {len(wrong) - 1} more such values' if len(wrong) > 1 else ''}, which makes "
            "every output NaN; its training diverged, or the file is damaged: use another one."
        )


def load_weights(weights, tensors, name_map, source, may_stay_unread, may_stay_new=()):
    """Load our weights from their tensors, all or none.

    Args:
        weights: list of variables.
        tensors: mapping of their name to array, with `shape(name)`.
        name_map: `NameMap`.
        source: string. The checkpoint, for error messages.
        may_stay_unread: function of a name: does it belong to another part of the model.
        may_stay_new: paths of weights that the checkpoint may lack.

    Returns:
        Paths of the weights that it lacks.

    Raises:
        ValueError: if weights are missing or left over (with both lists), have other shapes, or are
            not finite floating-point numbers.
    """
    read, missing, new, plan = set(), [], [], []
    for weight in weights:
        names = name_map.theirs(weight.path)
        if names is not None and all(name in tensors for name in names):
            read.update(names)
            plan.append(weight)
        elif weight.path in may_stay_new:
            new.append(weight.path)
        else:
            names = names or ["no such weight in this format"]
            missing.append(f"{weight.path} ({', '.join(names)})")
    leftover = [name for name in tensors if name not in read and not may_stay_unread(name)]
    if missing or leftover:
        raise ValueError(
            f"The weights of '{source}' do not match the model. Missing, ours (theirs): "
            f"{_some(missing)}. Left over, theirs: {_some(leftover)}. Load it with the class of "
            "its architecture, or correct its configuration."
        )
    for weight in plan:
        if not name_map.fits(weight.path, tuple(weight.shape), tensors):
            names = name_map.theirs(weight.path)
            theirs = ", ".join(f"{name} {tuple(tensors.shape(name))}" for name in names)
            raise ValueError(
                f"The weights of '{source}' do not fit its configuration: {theirs}, but our "
                f"{weight.path} is {tuple(weight.shape)}; the two do not belong together."
            )
    for weight in plan:
        weight.assign(name_map.read(weight.path, tuple(weight.shape), tensors, source))
    return new


def _some(names, most=12):
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most] or ["none"]) + rest
