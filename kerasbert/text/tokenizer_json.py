"""Checks of a `tokenizer.json`: its fields, and its support by a tokenizer class."""

import math
import os
import reprlib

from kerasbert.base.errors import check_fields, check_value

# Marks settings that may have any value, because the tokenizer applies them or ids do not depend on
# them.
ANY = object()
# All fields of a `tokenizer.json`, its models and added tokens. Others raise an error, because they
# could change ids.
_CONTENT_FIELDS = (
    *("version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer"),
    *("post_processor", "decoder", "model"),
)
_MODEL_FIELDS = {
    "WordPiece": ("unk_token", "continuing_subword_prefix", "max_input_chars_per_word"),
    "BPE": (
        *("unk_token", "continuing_subword_prefix", "merges", "dropout", "end_of_word_suffix"),
        *("fuse_unk", "byte_fallback", "ignore_merges"),
    ),
    "Unigram": ("unk_id", "byte_fallback"),
}
ADDED_FIELDS = ("id", "content", "single_word", "lstrip", "rstrip", "normalized", "special")
CONTENT = {
    "truncation": "object?",
    "padding": "object?",
    "model": "object?",
    "added_tokens": "list?",
    "normalizer": "object?",
    "pre_tokenizer": "object?",
    "post_processor": "object?",
}
_MODEL = {
    "max_input_chars_per_word": "count?",
    "fuse_unk": "flag?",
    "ignore_merges": "flag?",
    "end_of_word_suffix": "name?",
    "type": "name?",
    "unk_token": "name?",
    "continuing_subword_prefix": "name?",
    "merges": "list?",
    "unk_id": "whole?",
    "byte_fallback": "flag?",
}
_STEP = {
    "type": "name?",
    "lowercase": "flag?",
    "strip_accents": "flag?",
    "handle_chinese_chars": "flag?",
    "use_regex": "flag?",
    "add_prefix_space": "flag?",
    "prepend_scheme": "name?",
    "precompiled_charsmap": "name?",
    "single": "list?",
    "pair": "list?",
    "cls": "list?",
    "sep": "list?",
}
# By part of a `tokenizer.json`: a verb phrase for errors, and the field with the steps of a
# sequence.
_PARTS = {
    "normalizer": ("normalizes text with", "normalizers"),
    "pre_tokenizer": ("splits words with", "pretokenizers"),
    "post_processor": ("frames rows with", "processors"),
}
WAY_OUT = "load the model with preprocessor=None and pass token ids."


class UnsupportedError(ValueError):
    """Raised for valid files with a step or option that the class does not support."""


def check_names(what, found, known, directory):
    """Raise if the `tokenizer.json` has an unknown field."""
    for name in found:
        if name not in known:
            raise ValueError(
                f"The tokenizer.json in '{directory}' has {what} {name!r}, which is "
                f"unknown and may change the tokens; {WAY_OUT}"
            )


def model_kind(model):
    """Return the type of the model of a `tokenizer.json`."""
    kind = model.get("type")
    if kind is None:  # Files of 2020 lack the type.
        kind = "BPE" if "merges" in model else "WordPiece"
        kind = "Unigram" if isinstance(model.get("vocab"), list) else kind
    return kind


def check_content(content, directory):
    """Raise if a `tokenizer.json` has unknown fields or an invalid model."""
    path = os.path.join(directory, "tokenizer.json")
    check_names("a field", content, _CONTENT_FIELDS, directory)
    model = content.get("model")
    if not model:
        return
    check_fields(model, _MODEL, path)
    kind = model_kind(model)
    if kind in _MODEL_FIELDS:
        known = ("type", "vocab", *_MODEL_FIELDS[kind])
        check_names("an option of its model,", model, known, directory)
    if "vocab" not in model:
        raise ValueError(f"The model in '{path}' has no 'vocab'; download it again.")
    vocabulary = model["vocab"]
    check_value("vocab", vocabulary, "list" if kind == "Unigram" else "object", path)
    if kind == "BPE":
        check_value("merges", model.get("merges"), "list", path)
    if kind != "Unigram":
        return
    for id, row in enumerate(vocabulary):
        fits = isinstance(row, list) and len(row) == 2 and isinstance(row[0], str)
        fits = fits and isinstance(row[1], (int, float)) and math.isfinite(row[1])
        if not fits:
            raise ValueError(
                f"Piece {id} in '{path}' is {reprlib.repr(row)}, expected a string and a "
                "number; download it again."
            )
    unknown = model.get("unk_id")
    if unknown is not None and unknown >= len(vocabulary):
        raise ValueError(
            f"'{path}' has unk_id={unknown}, which is not one of its {len(vocabulary)} pieces; "
            "download it again."
        )


def steps_of(content, name, path):
    """Return the steps of a part of a `tokenizer.json`, without nesting.

    Args:
        content: dict. The file's content.
        name: string. The part: "normalizer", "pre_tokenizer" or "post_processor".
        path: the file, for errors.
    """
    inner = _PARTS[name][1]
    steps, rest = [], [content[name]] if content.get(name) else []
    while rest:
        step = rest.pop(0)
        check_value(name, step, "object", path)
        check_fields(step, _STEP, path)
        if step.get("type") == "Sequence":
            check_value(inner, step.get(inner), "list", path)
            rest = step[inner] + rest
        else:
            steps.append(step)
    return steps


def fits(value, values):
    """Return whether a value is one of `values`, where 0 is not `False`."""
    return values is ANY or any(value == x and type(value) is type(x) for x in values)


def follow(files, part, cls, known, orders=None):
    """Return the steps of a part of the `tokenizer.json`, or raise if any is unsupported.

    Args:
        files: `TokenizerFiles`.
        part: "normalizer", "pre_tokenizer" or "post_processor".
        cls: type. The tokenizer's class, for errors.
        known: dict of type to a list of valid forms, each a dict of field to allowed values or
            `ANY`.
        orders: list of valid lists of types, or `None` for any order.

    Raises:
        ValueError: if a type, a field, a value or the order is not supported.
    """
    verb, inner = _PARTS[part]
    if part not in files.json:
        return []  # The class then applies its default.
    steps = files.normalizers() if part == "normalizer" else files.steps(part)
    kinds = [step.get("type") for step in steps]
    if any(kind not in known for kind in kinds) or orders and kinds not in orders:
        said = " or ".join(map(str, orders)) if orders else ", ".join(known)
        raise UnsupportedError(
            f"The tokenizer.json in '{files.directory}' {verb} {kinds}, but {cls.__name__} "
            f"supports {said}; {WAY_OUT}"
        )
    for step in steps:
        forms = [{"type": ANY, **form} for form in known[step["type"]]]
        wrong = [
            [name for name, x in step.items() if not fits(x, form.get(name, ()))] for form in forms
        ]
        if all(wrong):
            name = min(wrong, key=len)[0]
            raise UnsupportedError(
                f"The tokenizer.json in '{files.directory}' {verb} {step['type']} with {name}="
                f"{reprlib.repr(step[name])}, which {cls.__name__} does not support; {WAY_OUT}"
            )
    return steps


def follow_model(files, cls, known):
    """Raise if a class does not support an option of the model.

    Args:
        files: `TokenizerFiles`.
        cls: type. The tokenizer's class.
        known: dict of option to its supported values.
    """
    for name, values in known.items():
        if name in files.model and not fits(files.model[name], values):
            raise UnsupportedError(
                f"The tokenizer.json in '{files.directory}' has {name}="
                f"{reprlib.repr(files.model[name])} in its model, which {cls.__name__} does not "
                f"support; {WAY_OUT}"
            )
