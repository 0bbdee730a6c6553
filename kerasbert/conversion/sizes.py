"""Whether the files of a checkpoint back the sizes in its configuration; before any is built."""

import glob
import math
import os

from kerasbert._errors import first_line
from kerasbert.conversion.name_map import check_dtype
from kerasbert.files import check_regular, inside, read_json

# Layers that share weights have no tensors each. The deepest published encoder has 48.
MOST_LAYERS = 1024


def check_sizes(settings, held, source):
    """Raise where an encoder's settings ask for more weights than there are.

    It guards memory and time: up to four times as many pass, as int4 packs two into one, and
    loading compares names and shapes.

    Args:
        settings: dict. Settings of `BertBackbone`.
        held: int. How many numbers the checkpoint's tensors hold.
        source: string. The checkpoint, for errors.

    Raises:
        ValueError: in a sentence.
    """
    wanted = encoder_size(settings)
    layers = settings["num_layers"] * settings.get("num_inner_repetitions", 1)
    if wanted > 4 * held:
        names = (
            "vocabulary_size",
            "num_layers",
            "hidden_dim",
            "intermediate_dim",
            "max_sequence_length",
        )
        listed = ", ".join(f"{name}={settings[name]}" for name in names if name in settings)
        raise ValueError(
            f"The configuration of '{source}' asks for {wanted:,} weights ({listed}), and its "
            f"files hold {held:,}; the two do not belong together: download it again."
        )
    if layers > MOST_LAYERS:
        raise ValueError(
            f"The configuration of '{source}' asks for {layers:,} layers, and kerasbert builds "
            f"{MOST_LAYERS:,} at most; download it again."
        )


def encoder_size(settings):
    """How many weights an encoder has, but for biases and gains.

    >>> encoder_size({"vocabulary_size": 10, "num_layers": 2, "hidden_dim": 4,
    ...               "intermediate_dim": 8, "max_sequence_length": 5})
    316
    """
    width, inner = settings["hidden_dim"], settings["intermediate_dim"]
    narrow = settings.get("embedding_dim") or width
    rows = settings["vocabulary_size"] + settings.get("num_segments", 0)
    if settings.get("position_embedding", "learned") == "learned":
        rows += settings.get("max_sequence_length", 0) + settings.get("position_offset", 0)
    distances = 0
    if settings.get("position_embedding") == "disentangled":
        names = ("bucket_size", "max_relative_positions", "max_sequence_length")
        distances = 2 * next(filter(None, map(settings.get, names)), 0)
    blocks = settings.get("num_groups") or settings["num_layers"]
    blocks *= settings.get("num_inner_repetitions", 1)
    block = 4 * width**2 + (3 if settings.get("gated_mlp") else 2) * width * inner
    return rows * narrow + distances * width + blocks * block


def tensors_size(tensors):
    """How many numbers the tensors of a foreign checkpoint hold."""
    return sum(math.prod(tensors.shape(name)) for name in tensors)


def h5_size(directory, stem, quantized=False):
    """How many numbers the files of weights hold that KerasHub writes, whole or in shards.

    Args:
        directory: string.
        stem: string. "model" or "task", what their names start with.
        quantized: bool. Whether whole numbers may stand for weights.

    Raises:
        ValueError: in a sentence for a damaged file, an encoder's that is missing, and for numbers
            that are no weights.
    """
    import h5py

    size = 0
    paths = sorted(glob.glob(os.path.join(glob.escape(directory), f"{stem}*.weights.h5")))
    if stem == "model" and not paths:
        raise ValueError(
            f"The preset in '{directory}' is not whole: it has no model.weights.h5; save or fetch "
            "it again."
        )
    for path in paths:
        check_regular(path)
        found = {}

        def collect(name, item, found=found):
            if isinstance(item, h5py.Dataset):
                found[name] = (item.size, item.dtype, item.attrs.get("dtype"))

        try:
            with h5py.File(path, "r") as file:
                file.visititems(collect)
        except Exception as error:  # h5py has many.
            raise ValueError(
                f"The preset in '{directory}' is not whole: {os.path.basename(path)} is cut off or "
                f"damaged ({first_line(error)}); save or fetch it again."
            ) from error
        for name, (count, dtype, stored_as) in found.items():
            # Keras keeps bfloat16 as plain bytes, and counts of steps and draws as integers.
            name_of = dtype.name if stored_as is None else str(stored_as)
            if "optimizer" in name.split("/") or "seed_generator" in name:
                continue
            if not (quantized and "int" in name_of):
                check_dtype(name, name_of, path)
            size += count or 0
    return size


def checked_index(directory):
    """The path of the index of Keras' shards, all of whose names stay here; `None` for no index."""
    index = os.path.join(directory, "model.weights.json")
    if not os.path.exists(index):
        return None
    names = read_json(index).get("weight_map")
    for name in names.values() if isinstance(names, dict) else ():
        for shard in name if isinstance(name, list) else [name]:
            inside(directory, shard, index)
    return index
