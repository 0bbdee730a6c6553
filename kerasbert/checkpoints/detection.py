"""Detection of a foreign checkpoint's format, and descriptions of built-in presets."""

import dataclasses
import os

import kerasbert.tokenizers as tokenizers
from kerasbert.base.paths import file_sha256
from kerasbert.checkpoints import google, huggingface, sentence_transformers
from kerasbert.checkpoints import keras_hub as keras_hub_format
from kerasbert.checkpoints.checkpoint import Checkpoint
from kerasbert.families import LINEAGE, get_family


def read_checkpoint(directory, preset=None):
    """Describe a directory of any supported foreign format.

    Raises:
        ValueError: if its format is unknown.
    """
    for kind in (keras_hub_format, sentence_transformers, huggingface, google):
        if kind.is_mine(directory):
            return kind.read_checkpoint(directory)
    raise ValueError(
        f"'{preset or directory}' is not a checkpoint that kerasbert knows: kerasbert, KerasHub "
        "and Hugging Face presets have a config.json, Google's a bert_config.json."
    )


def of_description(described):
    """Return the `Checkpoint` of a built-in preset's description."""
    settings = {**get_family(described["family"]).encoder, **described["settings"]}
    return Checkpoint(described["name"], described["family"], settings)


def with_description(checkpoint, directory, described, weights):
    """Return a checkpoint, updated with its built-in preset's description.

    Args:
        checkpoint: a `Checkpoint`.
        directory: the folder of its files.
        described: dict. The description, a file of `presets/`.
        weights: whether to check the files' hashes.
    """
    if weights:
        _check_sha256(directory, described)
    encoder = {**checkpoint.encoder, **described["settings"]}
    if described["family"] not in LINEAGE:
        # Use the described pooler, whether or not the weights were read.
        encoder["pooler"] = of_description(described).encoder.get("pooler", True)
    settings = dict(described["tokenizer"] or {})
    name = settings.pop("class", None)

    def tokenizer(**overrides):
        if name is None:
            raise ValueError(
                f"kerasbert has no tokenizer for the vocabulary of '{described['name']}'; load it "
                "with preprocessor=None and pass token ids."
            )
        return getattr(tokenizers, name).from_files(directory, **{**settings, **overrides})

    return dataclasses.replace(checkpoint, encoder=encoder, tokenizer=tokenizer)


def _check_sha256(directory, described):
    for name, expected in described["sha256"].items():
        path = os.path.join(directory, name)
        if not os.path.exists(path):
            continue
        found = file_sha256(path)
        if found != expected:
            raise ValueError(
                f"'{path}' is not the file of '{described['name']}': its sha256 is {found}, "
                f"expected {expected}; delete it and download it again."
            )
