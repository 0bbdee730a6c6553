"""ColBERT checkpoints: PyLate directories, and those of Stanford's code.

Both hold a Hugging Face encoder, a dense layer, and the settings for queries and texts.

Source: PyLate 1.6, and the `artifact.metadata` that colbert-ai 0.2 writes.
"""

import os
import string

from kerasbert.base.errors import check_fields
from kerasbert.base.files import json_in, write_json
from kerasbert.checkpoints.name_map import NameMap
from kerasbert.checkpoints.sentence_modules import CONFIG

PROJECTION = NameMap({"projection": "linear"}, "torch")
# PyLate's settings are in a file of sentence-transformers.
PYLATE, STANFORD = CONFIG, "artifact.metadata"
# By argument of the preprocessor: PyLate's key and default.
_PYLATE = {
    "query_token": ("query_prefix", "[Q] "),
    "text_token": ("document_prefix", "[D] "),
    "query_length": ("query_length", 32),
    "sequence_length": ("document_length", 180),
    "expand_queries": ("do_query_expansion", True),
    "attend_to_expansion": ("attend_to_expansion_tokens", False),
    "skiplist_words": ("skiplist_words", list(string.punctuation)),
}
_STANFORD = {
    "query_token": ("query_token_id", "[unused0]"),
    "text_token": ("doc_token_id", "[unused1]"),
    "query_length": ("query_maxlen", 32),
    "sequence_length": ("doc_maxlen", 180),
    "attend_to_expansion": ("attend_to_mask_tokens", False),
}
_KINDS = {
    "query_token": "name?",
    "text_token": "name?",
    "query_length": "count?",
    "sequence_length": "count?",
    "expand_queries": "flag?",
    "attend_to_expansion": "flag?",
    "skiplist_words": "names?",
}


def is_stanfords(directory):
    """Return whether a directory is in Stanford's format."""
    return json_in(directory, "config.json").get("architectures") == ["HF_ColBERT"]


def width(directory):
    """Return the embedding width of a checkpoint in Stanford's format."""
    config = json_in(directory, STANFORD)
    check_fields(config, {"dim": "count"}, os.path.join(directory, STANFORD))
    return config.get("dim", 128)


def read_settings(directory, longest):
    """Read the arguments of `BertTextEmbedderPreprocessor`.

    Args:
        directory: string.
        longest: maximum sequence length of the encoder.
    """
    is_theirs = is_stanfords(directory)
    name, fields = (STANFORD, _STANFORD) if is_theirs else (PYLATE, _PYLATE)
    config = json_in(directory, name)
    kinds = {key: _KINDS[ours] for ours, (key, _) in fields.items()}
    check_fields(config, kinds | {"mask_punctuation": "flag?"}, os.path.join(directory, name))
    found = {}
    for ours, (key, default) in fields.items():
        value = config.get(key)
        found[ours] = default if value is None else value
    if is_theirs:
        has_skiplist = config.get("mask_punctuation", True)
        found["expand_queries"] = True
        found["skiplist_words"] = list(string.punctuation) if has_skiplist else []
    for ours in ("query_length", "sequence_length"):
        found[ours] = min(found[ours], longest)
    return found


def write_settings(preprocessor, directory):
    """Write a preprocessor's settings for PyLate, the reverse of `read_settings`."""
    config = {key: getattr(preprocessor, ours) for ours, (key, _) in _PYLATE.items()}
    if preprocessor.query_length is None:
        config["query_length"] = preprocessor.sequence_length
    write_json(
        os.path.join(directory, PYLATE),
        {
            "__version__": {},
            "model_type": "ColBERT",
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "MaxSim",
            **config,
        },
    )
