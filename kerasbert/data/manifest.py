"""The manifest beside records: what they were made of, how, and whether all are there.

`manifest.json` holds `settings`, `tokenizer`, `shards` (name, bytes, the counts of examples,
documents, sentences and tokens, and a hash of the text), the sums as `counts`, and `complete`.
"""

import hashlib
import json
import os

from kerasbert._files import write_text

NAME = "manifest.json"
FORMAT = 1


def new_manifest(settings, tokenizer):
    manifest = {
        "format": FORMAT,
        "complete": False,
        "settings": settings,
        "tokenizer": describe_tokenizer(tokenizer),
        "counts": {},
        "shards": [],
    }
    # As it will be read.
    return json.loads(json.dumps(manifest, default=str))


def total(shards):
    """The counts of all shards: a dict."""
    names = ("documents", "sentences", "tokens", "examples", "not_next", "masked")
    return {name: sum(shard[name] for shard in shards) for name in names}


def describe_tokenizer(tokenizer):
    """What records depend on: the vocabulary by its hash, special tokens, settings."""
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
    """The SHA-256 of the tokens, a line each, in the order of their ids."""
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
            f"of {tokenizer.vocabulary_size()} ({hashes[1][:12]}); pass theirs, or make "
            "records with this one."
        )


def read_manifest(folder):
    """The manifest of a folder; `None` where there is none.

    Raises:
        ValueError: if it cannot be read.
    """
    path = os.path.join(folder, NAME)
    if not os.path.exists(path):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']}, not {FORMAT}")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"'{path}' is no manifest of records ({error}); remove the folder and write them anew."
        ) from None
    return manifest


def write_manifest(folder, manifest):
    write_text(os.path.join(folder, NAME), json.dumps(manifest, indent=1))
