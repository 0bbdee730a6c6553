"""Preprocessors from presets and checkpoints: their settings and tokenizers."""

import inspect
import os

from kerasbert.base.errors import check_fields
from kerasbert.base.files import read_json
from kerasbert.base.keywords import own_class
from kerasbert.base.subclasses import as_called, own_object, with_known
from kerasbert.text.packing import ROW_SETTINGS

# Fields of a `preprocessor.json`, for all tasks.
_FIELDS = {
    "sequence_length": "count",
    "truncate": "name",
    "num_segments": "whole",
    "num_classes": "count?",
    "labels": "names?",
    "multi_label": "flag",
    "next_sentence": "flag",
    "query_length": "count?",
    "expand_queries": "flag",
    "attend_to_expansion": "flag",
    "skiplist_words": "names",
    "add_start_token": "flag",
    "add_end_token": "flag",
    "normalize": "name?",
}


def checkpoint_arguments(cls, checkpoint, kwargs):
    """Return the arguments of `cls` for a `Checkpoint`, replaced by those in `kwargs`."""
    settings = checkpoint.encoder_settings()
    parameters = inspect.signature(own_class(cls).__init__).parameters
    length = parameters["sequence_length"].default
    longest = min(length, settings.get("max_sequence_length", 512))
    known = {
        "sequence_length": int(min(longest, checkpoint.longest or longest)),
        "num_segments": min(settings.get("num_segments", 2), checkpoint.num_segments),
        **checkpoint.preprocessor.get(getattr(cls, "kind", None), {}),
    }
    known = {name: value for name, value in known.items() if name in parameters}
    settings = _tokenizer_settings(cls, kwargs)
    tokenizer = kwargs.pop("tokenizer", None) or checkpoint.make_tokenizer(**settings)
    return {"tokenizer": tokenizer, **known, **kwargs}


def load_preset(cls, directory, kwargs, base):
    """Load the preprocessor of a directory that `save_to_preset` wrote.

    Args:
        cls: type. The requested class.
        directory: string.
        kwargs: dict of replaced arguments.
        base: type. `BertPreprocessor`. As `cls`, it stands for the saved class.
    """
    saved_cls, config = as_called(_read_json(directory, "preprocessor.json"), cls)
    fits = saved_cls is not None and issubclass(saved_cls, cls)
    made = saved_cls if cls is base and fits else cls
    made.check_family(_family_in(directory), f" in '{directory}'")
    config = dict(config or {})
    check_fields(config, _FIELDS, os.path.join(directory, "preprocessor.json"))
    # A class for another task does not replace the requested one.
    if not fits or cls is not base and own_class(saved_cls) is not own_class(cls):
        backbone = _read_json(directory, "config.json").get("config", {})
        config = {"num_segments": backbone.get("num_segments", 2), **config}
        shared = {"tokenizer", *ROW_SETTINGS}
        shared &= set(inspect.signature(own_class(cls).__init__).parameters)
        config = {key: config[key] for key in shared if key in config}
        saved_cls = cls
    if "tokenizer" not in config and "tokenizer" not in kwargs:
        config["tokenizer"] = with_known(_read_json(directory, "tokenizer.json"))
        if not config["tokenizer"]:
            raise ValueError(
                f"'{directory}' has neither preprocessor.json nor tokenizer.json; pass "
                "a directory that `save_to_preset` wrote, or pass `tokenizer`."
            )
    settings = _tokenizer_settings(cls, kwargs)
    if settings:
        saved = config["tokenizer"]
        config["tokenizer"] = {**saved, "config": {**saved["config"], **settings}}
    preprocessor = saved_cls.from_config({**config, **kwargs})
    if "tokenizer" not in kwargs:
        preprocessor.load_preset_assets(directory)
    return preprocessor


def _tokenizer_settings(cls, kwargs):
    """Pop the tokenizer's settings from the arguments of `from_preset`."""
    name = "special_tokens_in_strings"
    if name not in kwargs:
        return {}
    if "tokenizer" in kwargs:
        raise ValueError(
            f"{name} was passed together with `tokenizer`; set it on that tokenizer instead."
        )
    return {name: kwargs.pop(name)}


def _family_in(directory):
    """Return the family of a preset's encoder, or `None`."""
    encoder = _read_json(directory, "config.json")
    cls = own_object(encoder.get("registered_name"))
    return getattr(cls, "family", None) or encoder.get("config", {}).get("family")


def _read_json(directory, name):
    """Return the content of a JSON file, or an empty dict without the file."""
    path = os.path.join(directory, name)
    if not os.path.exists(path):
        return {}
    return read_json(path)
