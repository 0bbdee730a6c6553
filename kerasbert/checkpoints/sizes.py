"""Checks of a config's sizes, before a model is built."""

import fnmatch
import glob
import os

from kerasbert.base.errors import ReadError, first_line, reading
from kerasbert.base.files import read_json
from kerasbert.base.memory import memory_bytes
from kerasbert.base.paths import check_regular, inside
from kerasbert.checkpoints.name_map import check_dtype

# Layers that share weights add no tensors. The deepest published encoder has 48.
MOST_LAYERS = 1024
# Compression ratio in HDF5: trained weights reach 1.1, zeros 1,000.
MOST_PACKED = 16


def check_sizes(settings, held, source):
    """Check that an encoder needs no more weights than the checkpoint has, to prevent huge
    allocations.

    Up to four times as many are allowed: int4 packs two into one number, and loading compares names
    and shapes anyway.

    Args:
        settings: dict. Settings of `BertBackbone`.
        held: number of values in the checkpoint's tensors.
        source: string. The checkpoint, for error messages.

    Raises:
        ValueError: if the settings ask for too many.
    """
    wanted = encoder_size(settings)
    if wanted > 4 * held:
        raise ValueError(
            f"The configuration of '{source}' asks for {wanted:,} weights ({_listed(settings)}), "
            f"but its files hold {held:,}; they do not belong together: download it again."
        )
    check_buildable(settings, source)


def check_buildable(settings, source):
    """Check that an encoder fits into this machine's memory and kerasbert's maximum depth.

    Raises:
        ValueError: if it is too large or too deep.
    """
    wanted, room = 2 * encoder_size(settings), memory_bytes()  # At least 2 bytes per weight.
    if room is not None and wanted > room:
        raise ValueError(
            f"The configuration of '{source}' asks for {wanted:,} bytes of weights "
            f"({_listed(settings)}), but this machine has {room:,} bytes of memory; download it "
            "again, or use a larger machine."
        )
    layers = settings["num_layers"] * settings.get("num_inner_repetitions", 1)
    layers += settings.get("num_decoder_layers") or 0
    check_layers(layers, source)


def check_layers(count, source):
    """Check the number of layers.

    Raises:
        ValueError: if there are more than `MOST_LAYERS`.
    """
    if count > MOST_LAYERS:
        raise ValueError(
            f"The configuration of '{source}' asks for {count:,} layers, but kerasbert builds "
            f"at most {MOST_LAYERS:,}; download it again."
        )


def _listed(settings):
    names = ("vocabulary_size", "num_layers", "num_decoder_layers", "hidden_dim")
    names += ("intermediate_dim", "max_sequence_length")
    return ", ".join(f"{name}={settings[name]}" for name in names if name in settings)


def encoder_size(settings):
    """Return the number of an encoder's weights, without biases and norm scales.

    >>> encoder_size({"vocabulary_size": 10, "num_layers": 2, "hidden_dim": 4,
    ...               "intermediate_dim": 8, "max_sequence_length": 5})
    316
    """
    width, inner = settings["hidden_dim"], settings.get("intermediate_dim", 0)
    narrow = settings.get("embedding_dim") or width
    rows = settings["vocabulary_size"] + settings.get("num_segments", 0)
    if settings.get("position_embedding", "learned") == "learned":
        rows += settings.get("max_sequence_length", 0) + settings.get("position_offset", 0)
    distances = 0
    if settings.get("position_embedding") == "disentangled":
        names = ("bucket_size", "max_relative_positions", "max_sequence_length")
        distances = 2 * next(filter(None, map(settings.get, names)), 0)
    biases = 0
    if settings.get("position_bias") == "buckets":
        biases = 2 * (settings.get("bucket_size") or 0) * settings["num_heads"]
    blocks = settings.get("num_groups") or settings["num_layers"]
    blocks *= settings.get("num_inner_repetitions", 1)
    heads = settings.get("num_heads") or 1
    pairs = settings.get("num_key_value_heads") or heads
    block = (
        2 * width**2 * (heads + pairs) // heads
        + (3 if settings.get("gated_mlp") else 2) * width * inner
    )
    convolution = (settings.get("conv_kernel_size") or 0) * width**2
    # A decoder block also has cross-attention.
    decoders = settings.get("num_decoder_layers") or 0
    decoder = 8 * width**2 + 2 * width * (settings.get("decoder_intermediate_dim") or inner)
    shared = rows * narrow + distances * width + biases + convolution
    return shared + blocks * block + decoders * decoder


def check_stored(source, declared, stored, then="download it again", name=None):
    """Check that a file, or its tensor `name`, stores all declared bytes.

    Raises:
        ValueError: if it declares more.
    """
    if declared > stored:
        part = "" if name is None else f"'{name}' in "
        raise ValueError(
            f"{part}'{source}' asks for {declared:,} bytes of memory but stores {stored:,}, which "
            f"no intact file of weights does; {then}."
        )


def h5_datasets(path, then="save or download it again"):
    """Return the datasets of an HDF5 file: `(size, dtype, the attribute "dtype")` by name.

    Unwritten chunks (zeros), compression and references to other files let a small file ask for any
    amount of memory. All three raise an error, except compression by up to `MOST_PACKED`.

    Raises:
        ValueError: for such a file, and for a file that h5py cannot read.
    """
    import h5py

    found, packed, stored = {}, 0, 0
    check_regular(path)
    size = os.path.getsize(path) if os.path.exists(path) else 0

    def collect(name, item):
        nonlocal packed, stored
        if not isinstance(item, h5py.Dataset):
            return
        if item.is_virtual or item.external:
            raise ValueError(f"'{path}' keeps '{name}' in another file; {then}.")
        declared, there = (item.size or 0) * item.dtype.itemsize, item.id.get_storage_size()
        if item.id.get_create_plist().get_nfilters():
            packed += declared
        else:
            check_stored(path, declared, there, then, name)
        stored += there
        found[name] = (item.size or 0, item.dtype, item.attrs.get("dtype"))

    links = []

    def note(name, link):  # h5py swallows exceptions here.
        if not isinstance(link, h5py.HardLink):
            links.append(name)

    with reading(path, then, "truncated or not an HDF5 file"), h5py.File(path, "r") as file:
        file.visititems_links(note)
        file.visititems(collect)
    if links:
        raise ValueError(f"'{path}' has a link to another place in '{links[0]}'; {then}.")
    # Several datasets may share the same bytes.
    check_stored(path, stored, size, then)
    check_stored(path, packed, MOST_PACKED * size, then)
    return found


def h5_size(directory, stem, quantized=False):
    """Count the values in the weight files of a KerasHub preset, sharded or not.

    Args:
        directory: string.
        stem: "model" or "task", the prefix of the file names.
        quantized: bool. May weights be integers.

    Raises:
        ValueError: if a file is damaged, the encoder's is missing, or a tensor does not hold
            weights.
    """
    size = 0
    paths = sorted(glob.glob(os.path.join(glob.escape(directory), f"{stem}*.weights.h5")))
    if stem == "model" and not paths:
        raise ValueError(
            f"The preset in '{directory}' is incomplete: it has no model.weights.h5; save or "
            "download it again."
        )
    for path in paths:
        try:
            found = h5_datasets(path)
        except ReadError as error:
            raise ValueError(
                f"The preset in '{directory}' is incomplete: {os.path.basename(path)} is truncated "
                f"or damaged ({first_line(error.__cause__)}); save or download it again."
            ) from error
        for name, (count, dtype, stored_as) in found.items():
            # Keras stores bfloat16 as raw bytes, and step counts and seeds as integers.
            name_of = dtype.name if stored_as is None else str(stored_as)
            if "optimizer" in name.split("/") or "seed_generator" in name:
                continue
            if not (quantized and "int" in name_of):
                check_dtype(name, name_of, path)
            size += count
    return size


def checked_index(directory):
    """Return the path of the checked index of Keras' shards, or `None`."""
    index = os.path.join(directory, "model.weights.json")
    if not os.path.exists(index):
        return None
    names = read_json(index).get("weight_map")
    for name in names.values() if isinstance(names, dict) else ():
        for shard in name if isinstance(name, list) else [name]:
            inside(directory, shard, index)
            if not fnmatch.fnmatch(shard, "model*.weights.h5"):  # `h5_size` checks only these.
                raise ValueError(
                    f"'{index}' names {shard!r}, which is not a file of weights; download it again."
                )
    return index
