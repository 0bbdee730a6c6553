"""Export to Google's original format, by the reader's tables.

Source: github.com/google-research/bert, modeling.py, run_classifier.py and run_squad.py.
"""

import os

from kerasbert.backend.tensorflow import tf
from kerasbert.base.files import write_files, write_json
from kerasbert.base.keywords import own_class
from kerasbert.base.parts import encoder_of, head_weights
from kerasbert.checkpoints import google
from kerasbert.checkpoints.writing import (
    canonical,
    check_settings,
    head_kind,
    named_tensors,
    values_of,
)
from kerasbert.families.bert import GOOGLE_CONFIG
from kerasbert.text.transformers_files import transformers_files
from kerasbert.tokenizers import BertTokenizer

WHAT = "google-research/bert"


def write(model, tokenizer, directory, max_shard_size=None):
    """Write `bert_config.json`, `vocab.txt` and `bert_model.ckpt.*`.

    Args:
        model: one of our encoders or tasks.
        tokenizer: a `BertTokenizer`, or `None`.
        directory: an empty directory.
        max_shard_size: unused; this format has a single file of weights.

    Returns:
        `(name, settings)`: the written file, and the settings that differ from the model's.

    Raises:
        ValueError: if the format cannot hold the model, before weights are written.
    """
    encoder, kind = encoder_of(model), head_kind(model)
    if encoder.family != "bert":
        raise ValueError(
            f"Google's format only holds BERT, not the family {encoder.family}; use "
            "format='huggingface'."
        )
    if not isinstance(tokenizer, (BertTokenizer, type(None))):
        raise ValueError(
            f"Google's format needs a WordPiece vocabulary, not a {type(tokenizer).__name__}; "
            "convert with tokenizer=False."
        )
    settings = own_class(type(encoder)).get_config(encoder)
    write_json(os.path.join(directory, "bert_config.json"), _config(settings))
    checkpoint = google.read_checkpoint(directory)
    check_settings(
        canonical(settings, encoder),
        canonical(checkpoint.encoder, encoder),
        WHAT,
        "Use format='huggingface', which has keys for more of them.",
    )
    tensors = named_tensors(values_of(encoder.weights), checkpoint.encoder_map, WHAT)
    tensors |= named_tensors(values_of(head_weights(model)), checkpoint.head_maps.get(kind), WHAT)
    if tokenizer is not None:
        files = transformers_files(
            tokenizer,
            "bert",
            settings["max_sequence_length"],
            has_segments=True,
            finds_special=hasattr(model, "fill_mask"),
        )
        # Google's scripts take these as flags.
        names = ("vocab.txt", "tokenizer_config.json")
        write_files(directory, {name: files[name] for name in names})
    names = sorted(tensors)
    # TensorFlow 1's Saver uses this op, which needs no graph.
    tf.raw_ops.SaveV2(
        prefix=os.path.join(directory, "bert_model.ckpt"),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(tensors[name]) for name in names],
    )
    return "bert_model.ckpt", {}


def _config(settings):
    """Return Google's config for an encoder's settings."""
    activations = {ours: theirs for theirs, ours in google.ACTIVATIONS.items()}
    if settings["activation"] not in activations:
        raise ValueError(
            f"{WHAT} has no activation '{settings['activation']}' (its \"gelu\" is the tanh form): "
            "pass encoder={'activation': 'gelu_approximate'}, which moves outputs by up to 1e-3, "
            "or use format='huggingface'."
        )
    config = {key: settings[ours] for ours, key in GOOGLE_CONFIG.items()}
    return {**config, "hidden_act": activations[settings["activation"]]}
