"""Whether the files of a checkpoint back the sizes in its configuration; before any is built."""

import fnmatch
import glob
import os

from kerasbert._errors import ReadError, first_line, reading
from kerasbert._memory import memory_bytes
from kerasbert.conversion.name_map import check_dtype
from kerasbert.files import check_regular, inside, read_json

# Layers that share weights have no tensors each. The deepest published encoder has 48.
MOST_LAYERS = 1024
# The largest compression ratio that is accepted for weights in HDF5: trained weights reach 1.1,
# and nothing but zeros 1,000.
MOST_PACKED = 16


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
    if wanted > 4 * held:
        raise ValueError(
            f"The configuration of '{source}' asks for {wanted:,} weights ({_listed(settings)}), "
            f"and its files hold {held:,}; they do not belong together: download it again."
        )
    check_buildable(settings, source)


def check_buildable(settings, source):
    """Raise if an encoder is too large for this machine, or deeper than kerasbert builds any.

    Raises:
        ValueError: in a sentence.
    """
    wanted, room = 2 * encoder_size(settings), memory_bytes()  # At least 2 bytes per weight.
    if room is not None and wanted > room:
        raise ValueError(
            f"The configuration of '{source}' asks for {wanted:,} bytes of weights "
            f"({_listed(settings)}), and this machine has {room:,} bytes of memory; download it "
            "again, or use a larger machine."
        )
    layers = settings["num_layers"] * settings.get("num_inner_repetitions", 1)
    layers += settings.get("num_decoder_layers") or 0
    check_layers(layers, source)


def check_layers(count, source):
    """Raise for more layers than we build, before anything is made for each of them.

    Raises:
        ValueError: in a sentence.
    """
    if count > MOST_LAYERS:
        raise ValueError(
            f"The configuration of '{source}' asks for {count:,} layers, and kerasbert builds "
            f"{MOST_LAYERS:,} at most; download it again."
        )


def _listed(settings):
    names = ("vocabulary_size", "num_layers", "num_decoder_layers", "hidden_dim")
    names += ("intermediate_dim", "max_sequence_length")
    return ", ".join(f"{name}={settings[name]}" for name in names if name in settings)


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
    # A decoder block also has cross-attention.
    decoders = settings.get("num_decoder_layers") or 0
    decoder = 8 * width**2 + 2 * width * (settings.get("decoder_intermediate_dim") or inner)
    return rows * narrow + distances * width + blocks * block + decoders * decoder


def check_stored(source, declared, stored, then="download it again", name=None):
    """Raise if all tensors of a file, or the named one, declare more bytes than the file stores.

    Raises:
        ValueError: in a sentence.
    """
    if declared > stored:
        part = "" if name is None else f"'{name}' in "
        raise ValueError(
            f"{part}'{source}' asks for {declared:,} bytes of memory and stores {stored:,}, which "
            f"no intact file of weights does; {then}."
        )


def h5_datasets(path, then="save or fetch it again"):
    """The datasets of an HDF5 file: a dict of name to `(size, dtype, the attribute "dtype")`.

    HDF5 returns zeros for chunks that were never written, decompresses, and reads other files that
    a file refers to, so a small file may ask for any amount of memory. All of that is refused,
    except compression up to `MOST_PACKED` times.

    Raises:
        ValueError: in a sentence. Errors of h5py on damaged files are those of `reading`.
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

    def note(name, link):  # h5py swallows exceptions raised here.
        if not isinstance(link, h5py.HardLink):
            links.append(name)

    with reading(path, then, "cut off or no HDF5 file"), h5py.File(path, "r") as file:
        file.visititems_links(note)
        file.visititems(collect)
    if links:
        raise ValueError(f"'{path}' has a link to another place in '{links[0]}'; {then}.")
    # Several datasets may name the same bytes.
    check_stored(path, stored, size, then)
    check_stored(path, packed, MOST_PACKED * size, then)
    return found


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
    size = 0
    paths = sorted(glob.glob(os.path.join(glob.escape(directory), f"{stem}*.weights.h5")))
    if stem == "model" and not paths:
        raise ValueError(
            f"The preset in '{directory}' is not whole: it has no model.weights.h5; save or fetch "
            "it again."
        )
    for path in paths:
        try:
            found = h5_datasets(path)
        except ReadError as error:
            raise ValueError(
                f"The preset in '{directory}' is not whole: {os.path.basename(path)} is cut off or "
                f"damaged ({first_line(error.__cause__)}); save or fetch it again."
            ) from error
        for name, (count, dtype, stored_as) in found.items():
            # Keras keeps bfloat16 as plain bytes, and counts of steps and draws as integers.
            name_of = dtype.name if stored_as is None else str(stored_as)
            if "optimizer" in name.split("/") or "seed_generator" in name:
                continue
            if not (quantized and "int" in name_of):
                check_dtype(name, name_of, path)
            size += count
    return size


def checked_index(directory):
    """The path of the index of Keras' shards, with its names checked; `None` if there is none."""
    index = os.path.join(directory, "model.weights.json")
    if not os.path.exists(index):
        return None
    names = read_json(index).get("weight_map")
    for name in names.values() if isinstance(names, dict) else ():
        for shard in name if isinstance(name, list) else [name]:
            inside(directory, shard, index)
            if not fnmatch.fnmatch(shard, "model*.weights.h5"):  # `h5_size` checks only those.
                raise ValueError(
                    f"'{index}' names {shard!r}, which is no file of weights; download it again."
                )
    return index
