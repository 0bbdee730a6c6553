"""The manifest of a folder of records: their origin, settings and completeness.

`manifest.json` holds `settings`, `tokenizer`, `shards` (each with name, size and hash of the file,
numbers of examples, documents, sentences and tokens, and a hash of the text), `counts` (their sums)
and `complete`.
"""

import hashlib
import json
import os

from kerasbert.base.errors import check_value
from kerasbert.base.paths import file_sha256, inside, is_url
from kerasbert.base.storage import exists, find, join, read_json, write_text
from kerasbert.base.strict_json import to_json

NAME = "manifest.json"
FORMAT = 1
# Types of fields; see `check_value`.
_MANIFEST = {
    "complete": "flag",
    "settings": "object",
    "tokenizer": "object",
    "counts": "object",
    "shards": "list",
}
_COUNTS = ("documents", "sentences", "tokens", "examples", "not_next", "masked")
_SHARD = {
    "name": "name",
    "bytes": "whole",
    "sha256": "name?",  # missing in manifests of earlier versions
    "text_sha256": "name",
    **dict.fromkeys(_COUNTS, "whole"),
}
_SETTINGS = {"sequence_length": "count", "mask_selection_length": "count", "objective": "name"}
_TOKENIZER = {
    "vocabulary_size": "count",
    "vocabulary_sha256": "name",
    "special_token_ids": "list",
    "mask_token_id": "whole",
}


def new_manifest(settings, tokenizer):
    manifest = {
        "format": FORMAT,
        "complete": False,
        "settings": settings,
        "tokenizer": describe_tokenizer(tokenizer),
        "counts": {},
        "shards": [],
    }
    # Converted to JSON and back, to compare equal to a manifest from a file.
    return json.loads(to_json(manifest, default=str))


def total(shards):
    """Sum the counts of all shards into a dict."""
    return {name: sum(shard[name] for shard in shards) for name in _COUNTS}


def describe_tokenizer(tokenizer):
    """Return the properties of a tokenizer that records depend on: vocabulary hash, special tokens,
    settings.
    """
    config = tokenizer.get_config()
    unrelated = ("name", "trainable", "dtype", "config_file", "vocabulary", "merges", "proto")
    return {
        "class": type(tokenizer).__name__,
        "settings": {key: config[key] for key in sorted(config) if key not in unrelated},
        "vocabulary_size": tokenizer.vocabulary_size(),
        "vocabulary_sha256": vocabulary_hash(tokenizer),
        "special_token_ids": sorted(tokenizer.special_token_ids),
        "mask_token_id": tokenizer.mask_token_id,
    }


def vocabulary_hash(tokenizer):
    """Return the SHA-256 of the tokens by id, one per line."""
    lines = "".join(f"{token}\n" for token in tokenizer.get_vocabulary())
    return hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()


def check_vocabulary(manifest, tokenizer, folder):
    """Raise a ValueError if the records in `folder` were made with another vocabulary."""
    made = manifest["tokenizer"]
    hashes = made["vocabulary_sha256"], vocabulary_hash(tokenizer)
    if hashes[0] != hashes[1]:
        raise ValueError(
            f"The records in '{folder}' were made with another vocabulary, of "
            f"{made['vocabulary_size']} tokens (SHA-256 {hashes[0][:12]}), than the tokenizer's "
            f"of {tokenizer.vocabulary_size()} ({hashes[1][:12]}); pass the records' tokenizer, or "
            "make records with this one."
        )


def read_manifest(folder):
    """Read the manifest of a folder or a URL, or return `None`.

    Raises:
        ValueError: if it cannot be read.
    """
    path = join(folder, NAME)
    if not exists(path):
        return None
    try:
        manifest = read_json(path)
        if manifest.get("format") != FORMAT:
            raise ValueError(f"format {manifest.get('format')!r}, not {FORMAT}")
        _check_fields(manifest, _MANIFEST)
        for shard in manifest["shards"]:
            check_value("a shard", shard, "object")
            _check_fields(shard, _SHARD)
        if manifest["complete"]:
            check_value("examples", manifest["counts"].get("examples"), "count")
        _check_fields(manifest["settings"], _SETTINGS)
        _check_fields(manifest["tokenizer"], _TOKENIZER)
        for id in manifest["tokenizer"]["special_token_ids"]:
            check_value("a special token's id", id, "whole")
    except ValueError as error:
        raise ValueError(
            f"'{path}' is not a manifest of records ({error}); remove the folder and write the "
            "examples again."
        ) from None
    return manifest


def _check_fields(values, kinds):
    for name, kind in kinds.items():
        check_value(name, values.get(name), kind)


def write_manifest(folder, manifest):
    write_text(join(folder, NAME), to_json(manifest, indent=1))


def shard_path(folder, shard):
    """Return the path or URL of a shard; raise for a name that leads out of the folder."""
    return inside(folder, shard["name"], join(folder, NAME))


def check_shards(folder, shards, hashed=True):
    """Raise a `ValueError` unless the shards exist with their sizes and hashes.

    At a URL only sizes are compared; hashes are checked after each download.
    """
    sizes = find(folder)[1] if is_url(folder) else None
    for shard in shards:
        path = shard_path(folder, shard)
        if not os.path.exists(path) if sizes is None else path not in sizes:
            raise ValueError(f"The shard '{path}' is missing; write the examples again.")
        size = os.path.getsize(path) if sizes is None else sizes[path]
        if size != shard["bytes"]:
            raise ValueError(
                f"The shard '{path}' has {size} bytes, but was written with {shard['bytes']}: it "
                "is truncated or damaged; remove the folder and write the examples again."
            )
        if hashed and sizes is None:
            check_hash(path, path, shard)


def check_hash(path, name, shard):
    """Raise a `ValueError` unless a file has a shard's hash."""
    found = file_sha256(path)
    if found != (shard.get("sha256") or found):
        raise ValueError(
            f"The shard '{name}' differs from what was written; remove the folder and write the "
            "examples again."
        )
