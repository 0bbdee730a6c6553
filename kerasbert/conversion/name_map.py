"""One two-way engine between our weights and those of other packages.

A table is a dict from our layer to theirs, written once and read in both directions:
`{i}` stands for a layer's number, `{i}` and `{j}` for those of a layer and of a block in it, and
`[a|b|c]` for parts that we hold side by side in one matrix.
"""

import math
import re
from dataclasses import dataclass

import numpy as np

# What weights are stored in. Whole numbers are those of quantized models, whose scales we lack.
FLOATS = ("float16", "bfloat16", "float32", "float64")
# How another package calls the weights of a layer, and whether its matrices are transposed.
LEAVES = {
    "torch": {
        "kernel": "weight",
        "bias": "bias",
        "gamma": "weight",
        "beta": "bias",
        "embeddings": "weight",
    },
    # TensorFlow names: an embedding is the variable itself.
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
# As "torch", with matrices that are not transposed: transformers' Conv1D.
LEAVES["conv1d"] = LEAVES["torch"]
SEPARATORS = {"torch": ".", "conv1d": ".", "google": "/", "keras_hub": "/"}


@dataclass(frozen=True)
class NameMap:
    """A table in one layout.

    Args:
        layers: dict of our layer to theirs.
        layout: "torch", "conv1d", "google" or "keras_hub".
        verbatim: dict of our weight to theirs, for names outside the rule of `LEAVES`; a name
            that ends in ".T" is transposed, and one in "[0]" has an axis of one before ours.
        inner: int. How many of our blocks stand in one of their layers; see `{j}`.
        swapped: string. How the paths of layers end whose two halves stand there the other way
            round, as that of a gate; "" for none.

    >>> names = NameMap({"layer_{i}/qkv": "h.{i}.[q|k|v]"}, "torch")
    >>> names.theirs("layer_3/qkv/bias")
    ['h.3.q.bias', 'h.3.k.bias', 'h.3.v.bias']
    """

    layers: dict
    layout: str
    verbatim: dict = None
    inner: int = 1
    swapped: str = ""

    def theirs(self, path):
        """Their names of our weight at `path`, or `None` where the table has none."""
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
        """What their names of each layer and each verbatim weight start with.

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

    def _in_order(self, path, value):
        """A weight of ours as theirs, or of theirs as ours: halves the other way round."""
        is_swapped = self.swapped and path.rpartition("/")[0].endswith(self.swapped)
        return np.roll(value, value.shape[-1] // 2, axis=-1) if is_swapped else value

    def _is_first(self, path):
        """Whether theirs has an axis of one before ours."""
        return self.verbatim is not None and self.verbatim.get(path, "").endswith("[0]")

    def their_shapes(self, path, shape):
        """The shapes of their tensors for our weight at `path`, of `shape`, one a name."""
        names = self.theirs(path)
        if self._is_first(path):
            return [(1, *shape)]
        part = (*shape[:-1], shape[-1] // len(names))
        return [part[::-1] if self._transposed(path) else part] * len(names)

    def fits(self, path, shape, tensors):
        """Whether their `tensors` have the shapes of our weight at `path`."""
        theirs = [tuple(tensors.shape(name)) for name in self.theirs(path)]
        ours = self.their_shapes(path, shape)
        if self.layout == "keras_hub":
            # Theirs have an axis for heads: (D, N, H) and (N, H, D) where ours are (D, D).
            return [math.prod(part) for part in theirs] == [math.prod(part) for part in ours]
        return theirs == ours

    def read(self, path, shape, tensors, source="the checkpoint"):
        """Our weight at `path`, float32 of `shape`, from their `tensors`, which fit.

        Raises:
            ValueError: for tensors that `check_dtype` or `check_finite` refuse.
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
        # In rows: PyTorch would keep the columns of a transposed one, and its gradient and
        # optimizer would have theirs in other places than the weight.
        return np.ascontiguousarray(self._in_order(path, whole))

    def write(self, path, value):
        """Their tensors of our weight: a dict of name to array, the reverse of `read`.

        KerasHub's axis for heads is left to the caller, who knows the variable's shape.
        """
        names = self.theirs(path)
        parts = np.split(self._in_order(path, np.asarray(value)), len(names), axis=-1)
        if self._is_first(path):
            parts = [part[None] for part in parts]
        elif self._transposed(path):
            parts = [part.T for part in parts]
        return {name: np.ascontiguousarray(part) for name, part in zip(names, parts, strict=True)}


def _plain(name):
    """A verbatim name without what it says of the shape."""
    return name.removesuffix(".T").removesuffix("[0]")


def check_dtype(name, dtype, source):
    """Raise for a tensor that holds no plain floating-point numbers.

    Args:
        name: string. The tensor.
        dtype: string. Its type, as NumPy calls it.
        source: string. The checkpoint.

    Raises:
        ValueError: in a sentence.
    """
    if dtype not in FLOATS:
        raise ValueError(
            f"The tensor '{name}' of '{source}' holds {dtype}, and weights are one of "
            f"{', '.join(FLOATS)}; use the checkpoint as it was before it was quantized or cast."
        )


def check_finite(name, value, source):
    """Raise for an array that holds NaN or an infinity; see `check_dtype`."""
    if not np.isfinite(value).all():
        wrong = np.argwhere(~np.isfinite(value))
        place = tuple(int(i) for i in wrong[0])
        raise ValueError(
            f"The tensor '{name}' of '{source}' holds {value[place]} at {list(place)}"
            f"{f' and {len(wrong) - 1} more of the kind' if len(wrong) > 1 else ''}, which makes "
            "every output NaN; its training diverged, or the file is damaged: use another one."
        )


def load_weights(weights, tensors, name_map, source, may_stay_unread, may_stay_new=()):
    """Fill our weights from their tensors, strictly: all of them, or none on an error.

    Args:
        weights: list of variables.
        tensors: mapping of their name to array, with `shape(name)`.
        name_map: `NameMap`.
        source: string. The checkpoint, for errors.
        may_stay_unread: function of a name; true for a tensor of another part.
        may_stay_new: paths of weights that may stay as they are where the checkpoint lacks them.

    Returns:
        The list of paths that stay new.

    Raises:
        ValueError: where a weight is missing or left over, with both lists, or has another shape,
            or where a tensor holds no floating-point numbers, or NaN.
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
            "its architecture, or mend its configuration."
        )
    for weight in plan:
        if not name_map.fits(weight.path, tuple(weight.shape), tensors):
            names = name_map.theirs(weight.path)
            theirs = ", ".join(f"{name} {tuple(tensors.shape(name))}" for name in names)
            raise ValueError(
                f"The weights of '{source}' do not fit its configuration: {theirs}, where our "
                f"{weight.path} is {tuple(weight.shape)}; the two do not belong together."
            )
    for weight in plan:
        weight.assign(name_map.read(weight.path, tuple(weight.shape), tensors, source))
    return new


def _some(names, most=12):
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most] or ["none"]) + rest
