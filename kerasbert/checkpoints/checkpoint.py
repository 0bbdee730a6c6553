"""Descriptions of foreign checkpoints (`Checkpoint`), and their tensors."""

import contextlib
import functools
import math
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kerasbert.base.errors import blames_file, first_line
from kerasbert.base.files import read_json
from kerasbert.base.paths import check_regular, inside
from kerasbert.checkpoints.name_map import FLOATS, NameMap, check_dtype
from kerasbert.families import LINEAGE, get_family


@dataclass(frozen=True)
class Checkpoint:
    """A foreign checkpoint, as described by the `read_checkpoint` of its format.

    Args:
        source: its directory or name, for errors.
        family: string. A family of `kerasbert.families`.
        encoder: dict. Arguments of `BertBackbone`.
        tensors: mapping of name (without prefix) to array, with `shape(name)`.
        encoder_map: `NameMap` of the encoder.
        head_maps: dict of kind of head (the `head` of its class) to its `NameMap`.
        head: dict of kind of head to arguments that also apply to a new head, or to a function that
            returns them.
        preprocessor: dict of kind of head to arguments of its preprocessor.
        longest: number. The tokenizer's maximum length in tokens; `None` for no limit.
        num_segments: number of the encoder's segments that the tokenizer uses.
        classes: function that returns the arguments of `BertTextClassifier` for classes.
        tied: dict of the name of a tensor to that of an equal one.
        is_head: function of a name: is it a weight of a head or pooler, or a buffer.
        tokenizer: function that makes the checkpoint's tokenizer.
        refused: dict of kind of head to a reason why it cannot be loaded.
        token_ids: dict of "pad_token_id", ... to configured ids, or `None`.
        default_ids: dict of the same keys to default ids.
    """

    source: str
    family: str
    encoder: dict
    tensors: Mapping = field(default_factory=dict)
    encoder_map: NameMap = None
    head_maps: dict = field(default_factory=dict)
    head: dict = field(default_factory=dict)
    preprocessor: dict = field(default_factory=dict)
    longest: float = None
    num_segments: int = 2
    classes: Callable = dict
    tied: dict = field(default_factory=dict)
    is_head: Callable = lambda name: False
    tokenizer: Callable = None
    refused: dict = field(default_factory=dict)
    token_ids: dict = None
    default_ids: dict = field(default_factory=dict)

    is_own = False

    def whole(self, cls=None):
        """Return a context that does nothing: readers' errors name the cause."""
        return contextlib.nullcontext()

    def make_tokenizer(self, **settings):
        """Make the tokenizer, and check its padding and mask ids.

        No model reads other ids, which may be unused: ModernBERT-ja and mmBERT configure a "cls"
        token, but their sequences begin with "bos".
        """
        tokenizer = self.tokenizer(**settings)
        for role in ("pad", "mask"):
            key = f"{role}_token_id"
            said, found = (self.token_ids or {}).get(key), getattr(tokenizer, key, None)
            if said not in (None, found, self.default_ids.get(key)) and found is not None:
                raise ValueError(
                    f"The configuration of '{self.source}' has {role}_token_id={said}, but its "
                    f"tokenizer has {found}; set the id in config.json to that of the tokenizer "
                    "that the model was trained with."
                )
        return tokenizer

    def encoder_settings(self):
        """Return all arguments of the encoder, of family and checkpoint."""
        if self.family in LINEAGE:
            return {**get_family(self.family).encoder, **self.encoder}
        return {**get_family(self.family).encoder, "family": self.family, **self.encoder}


class Tensors(Mapping):
    """Arrays by name, from files that are opened on first access.

    Subclasses define `_open()`, a dict of name to the data for `__getitem__` and `shape(name)`.
    """

    def __init__(self, directory):
        self.directory = directory

    @functools.cached_property
    def index(self):
        return self._open()

    def __contains__(self, name):
        return name in self.index

    def __iter__(self):
        return iter(self.index)

    def __len__(self):
        return len(self.index)

    def size(self):
        """Return the number of stored weights."""
        return sum(math.prod(self.shape(name)) for name in self)


class TensorFiles(Tensors):
    """The tensors in a directory's safetensors or `.bin` files, in one file or sharded."""

    def rename(self, names):
        """Return a dict of the names that readers use to the names in the files."""
        return {name: name for name in names}

    def _open(self):
        stored = {}
        for path in _weight_files(self.directory):
            if path.endswith(".safetensors"):
                file = _open_safetensors(path)
                stored.update({name: (file, name) for name in file.keys()})
            else:
                stored.update({name: (None, tensor) for name, tensor in _load(path).items()})
        return {ours: stored[theirs] for ours, theirs in self.rename(stored).items()}

    def __getitem__(self, name):
        return self._array(name, *self.index[name])

    def _array(self, name, file, tensor):
        if file is not None:
            stored = file.get_slice(tensor).get_dtype()
            check_dtype(name, _SAFETENSORS.get(stored, stored), self.directory)
            return file.get_tensor(tensor)
        is_plain = str(tensor.layout) == "torch.strided"
        dtype = str(tensor.dtype).removeprefix("torch.") if is_plain else str(tensor.layout)
        check_dtype(name, dtype, self.directory)
        # Files of `torch.save` may hold parameters, which need `detach`.
        return tensor.detach().float().numpy()

    def size(self):
        """Return the number of stored weights; tensors that share storage count once."""
        shared, size = {}, 0
        for file, tensor in self.index.values():
            if file is not None:
                size += math.prod(file.get_slice(tensor).get_shape())
            elif str(tensor.layout) == "torch.strided":
                storage = tensor.untyped_storage()
                shared[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return size + sum(shared.values())

    def shape(self, name):
        """Return a tensor's shape without reading it."""
        file, tensor = self.index[name]
        return tuple(tensor.shape if file is None else file.get_slice(tensor).get_shape())


# Names of dtypes in safetensors files, and in NumPy.
_SAFETENSORS = {
    **dict(zip(("F16", "BF16", "F32", "F64"), FLOATS, strict=True)),
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "BOOL": "bool",
    "C64": "complex64",
}


def _weight_files(directory):
    for stem, end in (("model", ".safetensors"), ("pytorch_model", ".bin")):
        whole = os.path.join(directory, stem + end)
        if os.path.exists(whole):
            return [whole]
        index = os.path.join(directory, f"{stem}{end}.index.json")
        if os.path.exists(index):
            return _shards(directory, index)
    raise ValueError(
        f"'{directory}' has no weights: neither model.safetensors nor pytorch_model.bin, whole or "
        "sharded with an index; add them, or pass load_weights=False for random weights."
    )


def _shards(directory, index):
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"'{index}' names no shards in weight_map; download it again.")
    names = sorted(set(map(str, weight_map.values())))
    paths = [inside(directory, name, index, nested=True) for name in names]
    for path in paths:
        if not os.path.isfile(path):
            name = os.path.relpath(path, directory)
            raise ValueError(f"'{index}' names the shard '{name}', which is missing; download it.")
    return paths


def _open_safetensors(path):
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="numpy")
    except SafetensorError as error:
        raise ValueError(
            f"'{path}' ({os.path.getsize(path)} bytes) is truncated or not a safetensors file "
            f"({error}); download it again."
        ) from error


def _load(path):
    """Read a `.bin` file without unpickling objects; return a dict of name to tensor."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"'{path}' is in PyTorch's own format and needs torch; run `pip install torch`, or use "
            "a checkpoint with model.safetensors."
        ) from error
    check_regular(path)
    try:
        _check_archive(path)
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        if not all(torch.is_tensor(tensor) for tensor in tensors.values()):
            raise TypeError("not all its values are tensors")
        for name, tensor in tensors.items():
            _check_view(name, tensor)
        return tensors
    except Exception as error:
        if not blames_file(error):
            raise
        raise ValueError(
            f"'{path}' ({os.path.getsize(path)} bytes) is truncated, or holds objects other than "
            f"tensors, which kerasbert does not unpickle ({first_line(error)}); download it again, "
            "or use a checkpoint with model.safetensors."
        ) from error


def _check_archive(path):
    """Raise if a PyTorch archive's members exceed the file's size.

    Archives are uncompressed, so it is damaged or malicious.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            asked = sum(member.file_size for member in archive.infolist())
        if asked > os.path.getsize(path):
            raise ValueError(f"its members declare {asked:,} bytes")


def _check_view(name, tensor):
    """Raise if a tensor exceeds its storage, as with a stride of 0."""
    if str(tensor.layout) != "torch.strided":
        return  # Reading the tensor raises an error.
    asked = tensor.numel() * tensor.element_size()
    stored = tensor.untyped_storage().nbytes() if tensor.device.type == "cpu" else 0
    if asked > stored:
        raise ValueError(f"'{name}' declares {asked:,} bytes but stores {stored:,}")
