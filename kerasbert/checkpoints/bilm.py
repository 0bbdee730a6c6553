"""ELMo files as written by bilm-tf and read by AllenNLP: `options.json` and `lm_weights.hdf5`.

Shapes: P width of one direction, V vocabulary size.
"""

import os
import re

import numpy as np

from kerasbert.base.errors import check_value, is_whole
from kerasbert.base.files import new_file, read_json, write_json
from kerasbert.checkpoints.name_map import check_finite
from kerasbert.checkpoints.sizes import h5_datasets

# By our setting: part of the options, key, and kind of value.
_SETTINGS = {
    "num_layers": ("lstm", "n_layers", "count"),
    "units": ("lstm", "dim", "count"),
    "projection_dim": ("lstm", "projection_dim", "count"),
    "cell_clip": ("lstm", "cell_clip", "positive?"),
    "projection_clip": ("lstm", "proj_clip", "positive?"),
    "skip_connections": ("lstm", "use_skip_connections", "flag?"),
    "filters": ("char_cnn", "filters", None),
    "character_dim": ("char_cnn", "embedding", None),
    "num_highways": ("char_cnn", "n_highway", "whole?"),
    "activation": ("char_cnn", "activation", "name"),
    "characters_per_token": ("char_cnn", "max_characters_per_token", "count"),
}
_CELL = r"RNN_\1/RNN/MultiRNNCell/Cell\2/LSTMCell/"
# Patterns of our paths, and names in the file.
_NAMES = {
    r"token_encoder/embeddings": "char_embed",
    r"token_encoder/convolution_(\d+)_kernel": r"CNN/W_cnn_\1",
    r"token_encoder/convolution_(\d+)_bias": r"CNN/b_cnn_\1",
    r"token_encoder/highway_(\d+)_gate_kernel": r"CNN_high_\1/W_carry",
    r"token_encoder/highway_(\d+)_gate_bias": r"CNN_high_\1/b_carry",
    r"token_encoder/highway_(\d+)_transform_kernel": r"CNN_high_\1/W_transform",
    r"token_encoder/highway_(\d+)_transform_bias": r"CNN_high_\1/b_transform",
    r"token_encoder/projection_kernel": "CNN_proj/W_proj",
    r"token_encoder/projection_bias": "CNN_proj/b_proj",
    r"direction_(\d)/layer_(\d+)/cell/kernel": _CELL + "W_0",
    r"direction_(\d)/layer_(\d+)/cell/bias": _CELL + "B",
    r"direction_(\d)/layer_(\d+)/cell/projection": _CELL + "W_P_0",
    r"logits/kernel": "softmax/W",
    r"logits/bias": "softmax/b",
}
_SOFTMAX = {"softmax/W", "softmax/b"}
_AGAIN = "download it again"


def read_options(path):
    """Read the settings of an `ElmoBackbone` from an `options.json`.

    Raises:
        ValueError: for a missing or invalid setting.
    """
    options, found = read_json(path), {}
    path = os.fspath(path)
    for ours, (part, theirs, kind) in _SETTINGS.items():
        if part not in options:
            raise ValueError(f"'{path}' lacks '{part}', which ELMo needs; download it again.")
        settings = options[part]
        check_value(part, settings, "object", path)
        if theirs not in settings and not (kind or "").endswith("?"):
            raise ValueError(
                f"'{path}' lacks '{theirs}' in '{part}', which ELMo needs; download it again."
            )
        found[ours] = settings.get(theirs)
        if kind:
            check_value(theirs, found[ours], kind, path)
    dim = found["character_dim"]
    found["character_dim"] = dim.get("dim") if isinstance(dim, dict) else dim
    check_value("embedding dim", found["character_dim"], "count", path)
    filters = found["filters"]
    pairs = isinstance(filters, list) and [pair for pair in filters if isinstance(pair, list)]
    if (
        not pairs
        or len(pairs) < len(filters)
        or any(len(pair) != 2 or not all(is_whole(x) and x > 0 for x in pair) for pair in pairs)
    ):
        raise ValueError(
            f"filters={filters!r} in '{path}' must be a list of convolutions, [width, count] each."
        )
    found["skip_connections"] = bool(found["skip_connections"])
    found["num_highways"] = found["num_highways"] or 0
    # n_characters is 261 for training, which does not count padding, and 262 for inference.
    return {**found, "num_characters": 262}


def check_options(options, path):
    """Check that the model needs at most four times the file's weights.

    Args:
        options: dict, from `read_options`.
        path: the file of weights.

    Raises:
        ValueError: if it needs more.
    """
    source = os.fspath(path)
    if not os.path.exists(source):
        raise FileNotFoundError(f"'{source}' is missing; download it again.")
    width, units = options["projection_dim"], options["units"]
    found = sum(count for _, count in options["filters"])
    wanted = 2 * options["num_layers"] * units * (8 * width + width)
    wanted += found * width + 2 * options["num_highways"] * found**2
    wanted += options["character_dim"] * sum(size * count for size, count in options["filters"])
    held = sum(count for count, _, _ in h5_datasets(source, _AGAIN).values())
    if wanted > 4 * held:
        raise ValueError(
            f"The options need {wanted:,} weights, but '{source}' holds {held:,}; the two files "
            "do not belong together: download both again."
        )


def read_weights(weights, path):
    """Load weights from a file; its `softmax` weights may stay unread.

    Args:
        weights: list of variables, named as in an `ElmoBackbone` or `ElmoPretrainer`.
        path: string.

    Raises:
        ValueError: for a weight that is missing, unread, not finite or of another shape; nothing is
            changed then.
    """
    import h5py

    source, values = os.fspath(path), []
    if not os.path.exists(path):
        raise FileNotFoundError(f"'{source}' is missing; download it again.")
    names = list(h5_datasets(source, _AGAIN))
    with h5py.File(path, "r") as file:
        for weight in weights:
            name = _name(weight)
            if name not in names:
                raise ValueError(f"'{source}' lacks '{name}'; download it again.")
            value = _ours(name, file[name][()])
            if value.shape != tuple(weight.shape):
                raise ValueError(
                    f"'{name}' in '{source}' has the shape {value.shape}, but the options need "
                    f"{tuple(weight.shape)}; the two files do not belong together."
                )
            check_finite(name, value, source)
            values.append(value)
    left = sorted(set(names) - set(map(_name, weights)) - _SOFTMAX)
    if left:
        raise ValueError(
            f"'{source}' has {', '.join(left)}, for which the options have no layer; the two files "
            "do not belong together."
        )
    for weight, value in zip(weights, values):
        weight.assign(value.astype("float32"))


def write_options(path, model):
    """Write the settings of an `ElmoBackbone` as `options.json`."""
    options = {"lstm": {}, "char_cnn": {"n_characters": model.num_characters}}
    for ours, (part, theirs, _) in _SETTINGS.items():
        options[part][theirs] = getattr(model, ours)
    options["char_cnn"]["embedding"] = {"dim": model.character_dim}
    options["char_cnn"]["filters"] = [list(pair) for pair in model.filters]
    write_json(path, options)


def write_weights(path, weights):
    """Write weights, an iterable of `(variable, array)`, in the format of bilm-tf."""
    import h5py

    with new_file(path) as file, h5py.File(file, "w") as weights_file:
        for weight, value in weights:
            name = _name(weight)
            weights_file[name] = _theirs(name, value)


def _name(weight):
    for ours, theirs in _NAMES.items():
        found = re.fullmatch(ours, weight.path)
        if found:
            return found.expand(theirs)
    raise ValueError(f"bilm-tf's format has no name for {weight.path}.")


def _ours(name, value):
    if name == "char_embed":  # bilm-tf has no row for padding.
        return np.pad(value, ((1, 0), (0, 0)))
    if name.startswith("CNN/W_cnn"):
        return value[0] if value.ndim == 4 else value
    return value.T if name == "softmax/W" else value


def _theirs(name, value):
    if name == "char_embed":
        return value[1:]
    if name.startswith("CNN/W_cnn"):
        return value[None]
    return value.T if name == "softmax/W" else value
