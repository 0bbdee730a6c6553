"""Downloads from model hubs, through the hubs' own libraries and caches."""

import fnmatch
import os
import re

from kerasbert.base.errors import first_line
from kerasbert.base.paths import packaged

# Files that describe a checkpoint; only these and the weights are downloaded.
_SMALL = (
    "*.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "spm.model",
    "source.spm",
    "target.spm",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "tokenizer.model",
    "*.ckpt.index",
)
_ASSETS = "assets/*"
# sentence-transformers' config of the pooling, and the folder of the encoder in old checkpoints.
_POOLING = "*_Pooling/config.json"
_TRANSFORMER = "0_Transformer/"
# Weight files by preference; the first kind found is downloaded.
_WEIGHTS = (
    ("model.weights.h5", "model_*.weights.h5", "task.weights.h5"),
    ("model.safetensors", "model-*.safetensors"),
    ("pytorch_model.bin", "pytorch_model-*.bin"),
    ("*.ckpt.data-*",),
)
# Possible file names of a KerasHub preset on Kaggle, which cannot list files.
_KAGGLE_SMALL = (
    "config.json",
    "tokenizer.json",
    "preprocessor.json",
    "task.json",
    "assets/tokenizer/vocabulary.txt",
    "assets/tokenizer/vocabulary.json",
    "assets/tokenizer/merges.txt",
    "assets/tokenizer/vocabulary.spm",
)


def preset_files():
    """Return the package's folder with preset descriptions and small presets."""
    return packaged("preset_files", "presets")


def fetch(handle, weights=True):
    """Download a preset.

    Args:
        handle: "hf://org/name" with an optional "@revision", "kaggle://org/model/keras/name" with
            an optional "/version", or "package://name" for a preset in the package.
        weights: bool. `False` downloads no weights.

    Returns:
        The local directory: in the hub's cache, or in the package.

    Raises:
        ValueError: for an unknown scheme or repository, or an unreachable hub.
    """
    scheme, _, name = handle.partition("://")
    if scheme == "hf":
        return _huggingface(handle, *name.partition("@")[::2], weights)
    if scheme == "kaggle":
        return _kaggle(handle, name, weights)
    if scheme == "package":
        return _packaged(handle, name)
    raise ValueError(
        f"Unknown handle '{handle}'; use hf://org/name or kaggle://org/model/keras/name."
    )


def _packaged(handle, name):
    folder = preset_files() / name
    if not re.fullmatch(r"\w+", name) or not folder.is_dir():
        raise ValueError(f"The package has no preset '{handle}'; `kerasbert presets` lists them.")
    return os.path.normpath(folder)


def _huggingface(handle, repository, revision, weights):
    import huggingface_hub
    from huggingface_hub import errors

    revision = revision or None
    try:
        # Not `list_repo_files`, which retries for half a minute without a connection.
        info = huggingface_hub.HfApi().model_info(repository, revision=revision, timeout=30)
        wanted = _wanted([file.rfilename for file in info.siblings], weights)
        return huggingface_hub.snapshot_download(
            repository, revision=revision, allow_patterns=wanted
        )
    except errors.HFValidationError as error:
        raise ValueError(f"'{handle}' is not a Hugging Face handle; use hf://org/name.") from error
    except errors.RepositoryNotFoundError as error:
        raise ValueError(
            f"The Hugging Face hub has no '{repository}', or it is private and you are not logged "
            "in; check the name, or set HF_TOKEN."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(
            f"'{repository}' has no revision '{revision}'; use one of its branches, tags or "
            "commits."
        ) from error
    except Exception as error:
        # Without a connection, a cached download is used.
        for name in ("config.json", "bert_config.json"):
            path = huggingface_hub.try_to_load_from_cache(repository, name, revision=revision)
            if isinstance(path, str):
                return os.path.dirname(path)
        raise ValueError(
            f"Cannot download '{handle}' ({first_line(error)}), and it is not in the cache; try "
            "again with a connection, or pass a local directory."
        ) from error


def _wanted(files, weights):
    def matches(file, patterns):
        return any(fnmatch.fnmatchcase(file, name) for name in patterns)

    def of_kind(patterns):
        inside = {file: file.removeprefix(_TRANSFORMER) for file in files}
        return [
            file for file, name in inside.items() if "/" not in name and matches(name, patterns)
        ]

    wanted = of_kind(_SMALL) + [file for file in files if matches(file, (_ASSETS, _POOLING))]
    return wanted + next(filter(None, map(of_kind, _WEIGHTS if weights else ())), [])


def _kaggle(handle, name, weights):
    import kagglehub

    if name.count("/") not in (3, 4):
        raise ValueError(
            f"'{handle}' is not a Kaggle handle; use kaggle://org/model/keras/name, with an "
            "optional /version."
        )
    try:
        if weights:
            return kagglehub.model_download(name)
        config = kagglehub.model_download(name, _KAGGLE_SMALL[0])
    except Exception as error:
        raise ValueError(
            f"Cannot download '{handle}' from Kaggle ({first_line(error)}); check the name and the "
            "connection."
        ) from error
    for file in _KAGGLE_SMALL[1:]:
        try:
            kagglehub.model_download(name, file)
        except Exception:
            continue  # No preset has all of these files.
    return os.path.dirname(config)
