"""Checkpoints of others: of which kind a directory is, and what a built-in name says of it."""

import dataclasses
import os

import kerasbert.tokenizers as tokenizers
from kerasbert.conversion import google, huggingface, sentence_transformers
from kerasbert.conversion import keras_hub as keras_hub_format
from kerasbert.conversion.checkpoint import Checkpoint
from kerasbert.families import get_family
from kerasbert.files import file_sha256


def read_checkpoint(directory, preset=None):
    """Describe a foreign directory, of whichever kind.

    Raises:
        ValueError: when it is of no known kind.
    """
    for kind in (keras_hub_format, sentence_transformers, huggingface, google):
        if kind.is_mine(directory):
            return kind.read_checkpoint(directory)
    raise ValueError(
        f"'{preset or directory}' is no checkpoint that kerasbert knows: a preset of ours or of "
        "KerasHub's and a Hugging Face one have a config.json, Google's a bert_config.json."
    )


def of_description(described):
    """What a built-in name says of its encoder, without a file."""
    settings = {**get_family(described["family"]).encoder, **described["settings"]}
    return Checkpoint(described["name"], described["family"], settings)


def with_description(checkpoint, directory, described, weights):
    """A checkpoint with the description of its built-in name, which wins over what its files say.

    Args:
        checkpoint: a `Checkpoint`.
        directory: string. Where its files are.
        described: dict. A file of `presets/`.
        weights: bool. Whether the files' hashes are checked.
    """
    if weights:
        _check_sha256(directory, described)
    # Whether there is a pooler does not hang on a look at the weights.
    pooler = of_description(described).encoder.get("pooler", True)
    settings = dict(described["tokenizer"] or {})
    name = settings.pop("class", None)

    def tokenizer(**overrides):
        if name is None:
            raise ValueError(
                f"kerasbert has no tokenizer for the vocabulary of '{described['name']}'; load it "
                "with preprocessor=None and pass token ids."
            )
        return getattr(tokenizers, name).from_files(directory, **{**settings, **overrides})

    encoder = {**checkpoint.encoder, **described["settings"], "pooler": pooler}
    return dataclasses.replace(checkpoint, encoder=encoder, tokenizer=tokenizer)


def _check_sha256(directory, described):
    for name, expected in described["sha256"].items():
        path = os.path.join(directory, name)
        if not os.path.exists(path):
            continue
        found = file_sha256(path)
        if found != expected:
            raise ValueError(
                f"'{path}' is not the file that '{described['name']}' stands for: its sha256 is "
                f"{found}, not {expected}; delete it and fetch it again."
            )
