"""`convert`: conversion of checkpoints and models between formats."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert import lineage, models
from kerasbert.backend.tensorflow import need_tensorflow
from kerasbert.base.errors import check_choice, did_you_mean, first_line
from kerasbert.base.files import check_room, json_in, names_in, new_folder, output_folder, read_json
from kerasbert.base.keywords import config_of, own_class
from kerasbert.base.parts import encoder_of
from kerasbert.checkpoints import (
    huggingface,
    sentence_transformers,
    to_google,
    to_huggingface,
    to_keras_hub,
)
from kerasbert.checkpoints import keras_hub as keras_hub_format
from kerasbert.checkpoints.detection import read_checkpoint
from kerasbert.checkpoints.lineage import LINEAGE_TABLES
from kerasbert.checkpoints.names import resolve
from kerasbert.checkpoints.own import is_own
from kerasbert.checkpoints.writing import canonical, check_head, check_settings
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.families import TABLES
from kerasbert.heads.base.task import BertTask
from kerasbert.kinds import kind_of, kinds_with, tables_of
from kerasbert.text.subword import SubwordTokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kerasbert.base.aliases import AnyPath

_WRITERS = {"huggingface": to_huggingface, "google": to_google, "keras_hub": to_keras_hub}
FORMATS = (*_WRITERS, "kerasbert")
_OF_LINEAGE = tuple(cls for kinds in lineage.CLASSES.values() for cls in kinds.values())
# Every checkpoint has one of these files.
_MARKS = ("config.json", "bert_config.json")


def tasks():
    """Return the model classes by the names that `convert` accepts as `task`.

    >>> tasks()["text_classifier"].__name__
    'BertTextClassifier'
    """
    rows = (kind for kind in kinds_with("model") if kind.single)
    return {"encoder": BertBackbone, **{kind.name: kind.load("model") for kind in rows}}


def convert(
    source: Any,
    target: AnyPath,
    format: str = "huggingface",
    task: str | type | None = None,
    tokenizer: SubwordTokenizer | None = None,
    encoder: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    max_shard_size: float | None = None,
) -> dict[str, Any]:
    """Convert a checkpoint or model to the format of another package.

    The output is compared with the source before it is renamed to `target`.

    Args:
        source: string or model. A preset as in `from_preset`, or a kerasbert encoder or task.
        target: output directory.
        format: "huggingface" (sentence-transformers can read embedders too), "google" (BERT
            only), "keras_hub" or "kerasbert".
        task: string or class. Kind of model to read from the source: "encoder",
            "text_classifier", "text_regressor", ...; `None` detects it.
        tokenizer: a kerasbert tokenizer that replaces the source's, or `False` to write none.
        encoder: dict. Encoder settings that override the source's, such as
            `{"activation": "gelu_approximate"}`.
        overwrite: whether to replace an existing checkpoint.
        max_shard_size: maximum size of a weight file in GB.

    Returns:
        A dict: `directory`, `format`, `model` (kerasbert class), `written` (the model's class or
        name in the target format), `tokenizer` (kerasbert class or `None`) and `files`.

    Raises:
        ValueError: for settings or weights that the format cannot hold, with a list.
    """
    check_choice("format", format, FORMATS)
    target = output_folder(target, "target")
    _check_target(target, overwrite)
    model, tokenizer = load_source(source, task, tokenizer, encoder, format)
    if isinstance(model, models.BertEnsemble):
        raise ValueError(
            f"convert() does not write an ensemble; convert each of its {len(model.members)} "
            "members, which save_to_preset writes to the folder 'members'."
        )
    extra = {}
    if format == "huggingface" and isinstance(source, (str, os.PathLike)):
        directory = resolve(os.fspath(source))
        if not is_own(directory):
            extra = {"token_ids": read_checkpoint(directory).token_ids}
    if format != "kerasbert":
        check_head(model, format)
    with new_folder(target, by="convert") as directory:
        _check_target(target, overwrite)  # Another process may have written there.
        if format == "keras_hub":
            check_room(directory, model.weights)
        if format == "kerasbert":
            written, changed = type(model).__name__, {}
            model.save_to_preset(directory, max_shard_size=max_shard_size or 10)
            if tokenizer is not None:
                tokenizer.save_to_preset(directory)
        else:
            written, changed = _WRITERS[format].write(
                model, tokenizer, directory, max_shard_size, **extra
            )
        _check(model, tokenizer, directory, changed, written)
        files = sorted(
            os.path.relpath(os.path.join(folder, file), directory).replace(os.sep, "/")
            for folder, _, names in os.walk(directory)
            for file in names
        )
    return {
        "directory": target,
        "format": format,
        "model": type(model).__name__,
        "written": written,
        "tokenizer": None if tokenizer is None else type(tokenizer).__name__,
        "files": files,
    }


def _check_target(target, overwrite):
    if not names_in(target):
        return
    if not overwrite:
        raise ValueError(
            f"'{target}' is not empty; choose another directory, or pass overwrite=True."
        )
    if not any(os.path.exists(os.path.join(target, name)) for name in _MARKS):
        raise ValueError(
            f"'{target}' holds no checkpoint, so that overwrite=True does not delete it; choose "
            "another directory."
        )


# Reading


def load_source(source, task=None, tokenizer=None, encoder=None, format="kerasbert"):
    """Return a source's model and tokenizer, or `None`; see `convert`."""
    if isinstance(source, (BertBackbone, BertTask, *_OF_LINEAGE)):
        if task is not None:
            raise ValueError(
                f"task={task!r} is for a source that is a name or directory; this one is a "
                f"{type(source).__name__}: pass its backbone for the encoder alone."
            )
        model = _by_itself(source)
        if tokenizer is None:
            tokenizer = getattr(getattr(source, "preprocessor", None), "tokenizer", None)
    elif isinstance(source, (str, os.PathLike)):
        source = os.fspath(source)
        directory = resolve(source)
        cls = class_in(directory, format) if task is None else _class_of(task)
        if tokenizer is None:
            tokenizer = _tokenizer_of(source)
        arguments = {}
        if issubclass(cls, BertTask) and not tokenizer:
            arguments["preprocessor"] = None
        if not _is_quantized(directory):
            arguments["dtype"] = "float32"
        model = cls.from_preset(source, **arguments)
        if task is None and not is_own(directory):
            _warn_left_out(model, directory)
    else:
        raise ValueError(
            "source must be a preset name, a handle, a directory or a kerasbert model; got "
            f"{source!r}."
        )
    if not hasattr(encoder_of(model), "family"):
        raise ValueError(
            f"convert() does not write a {type(model).__name__}; call its save_to_preset."
        )
    if encoder:
        model = _with_encoder(model, encoder)
    return model, tokenizer or None


def _by_itself(model):
    """Return the model, or a copy if its encoder is part of a larger one (ELECTRA's generator)."""
    scope = f"{encoder_of(model).name}/"
    if not any(weight.path.startswith(scope) for weight in model.weights):
        return model
    copy = type(model).from_config({**config_of(model), "preprocessor": None})
    for weight, own in zip(copy.weights, model.weights, strict=True):
        weight.assign(_array(own))
    return copy


def _class_of(task):
    classes = tasks()
    if isinstance(task, str) and task in classes:
        return classes[task]
    if isinstance(task, type) and issubclass(task, (BertBackbone, BertTask)):
        return task
    raise ValueError(f"task={task!r} is unknown; use one of {', '.join(classes)}.")


def class_in(directory, format=None):
    """Return the class of a directory's model, for conversion to `format`."""
    if is_own(directory):
        config = json_in(directory, "task.json") or json_in(directory, "config.json")
        found = keras.saving.get_registered_object(config.get("registered_name")) or BertBackbone
        return found.class_in(directory) if issubclass(found, models.BertEnsemble) else found
    is_theirs = sentence_transformers.is_mine(directory)
    scores_pairs = is_theirs and sentence_transformers.is_cross_encoder(directory)
    if is_theirs and not scores_pairs and format in ("huggingface", "kerasbert"):
        is_sparse = sentence_transformers.is_sparse(directory)
        return models.BertSparseEmbedder if is_sparse else models.BertTextEmbedder
    checkpoint = read_checkpoint(directory)
    if checkpoint.family in lineage.CLASSES:
        # By `architectures`, by default the family's encoder.
        table, classes = LINEAGE_TABLES[checkpoint.family], lineage.CLASSES[checkpoint.family]
        config = json_in(directory, "config.json")
        named = {table.class_of(kind): classes[kind] for kind in reversed(classes)}
        if huggingface.has_one_number(config) and (number := classes.get("text_regressor")):
            named[table.class_of("text_regressor")] = number
        names = [x for x in config.get("architectures") or () if x in named]
        return named[names[0]] if names else classes[None]
    config = json_in(directory, "config.json") if huggingface.is_mine(directory) else {}
    known = _classes_of(config, scores_pairs)
    kinds = {
        kind
        for kind in checkpoint.head_maps.keys() & known.keys()
        if kind not in TABLES[checkpoint.family].without_class
    }
    kind = _kind_by_name(directory, config, kinds, TABLES[checkpoint.family].endings)
    if kind == "unknown":
        kind = _kind_by_weights(checkpoint, known)
    return known.get(kind, BertBackbone)


def _classes_of(config, scores_pairs):
    """Return a dict of kind of head with own weights to class.

    As in transformers, a sequence classification head with one label is a regression head; in a
    cross-encoder (`scores_pairs`), a reranking head.
    """
    # Reversed, so that the first kind with the same weights stays.
    rows = [(kind_of(cls), cls) for cls in reversed(tasks().values()) if tables_of(cls)]
    known = {row.tables: cls for row, cls in rows}
    if huggingface.has_one_number(config):
        for row, cls in rows:
            if row.explains == "number" and row.takes_pairs == scores_pairs:
                known[row.tables] = cls
    return known


def _kind_by_name(directory, config, known, endings):
    """Return the kind of head by the checkpoint's class name.

    `endings` are those of the family's `Table`. `None` means no head, "unknown" no or an unknown
    class name.
    """
    if keras_hub_format.is_mine(directory):
        path = os.path.join(directory, "task.json")
        names = [read_json(path).get("registered_name", "")] if os.path.exists(path) else ["Model"]
        room = "keras_hub"
    else:
        names = config.get("architectures") or []
        room = "huggingface"
    ends = {None: "Model", **{kind.tables: getattr(kind, room) for kind in kinds_with(room)}}
    ends |= endings if room == "huggingface" else {}
    for name in names:
        for kind, end in ends.items():
            if name.endswith(end) and not name.endswith(f"LMHead{end}"):
                return kind if kind is None or kind in known else "unknown"
    return "unknown"


def _kind_by_weights(checkpoint, known):
    """Return the kind of head that matches most weights; `None` if no head matches."""
    covered = {}
    for kind, name_map in checkpoint.head_maps.items():
        names = name_map.their_prefixes()
        found = [[t for t in checkpoint.tensors if t.startswith(name)] for name in names]
        if kind in known and names and all(found):
            covered[kind] = sum(map(len, found))
    best = [kind for kind, count in covered.items() if count == max(covered.values())]
    if len(best) > 1:
        classes = ", ".join(f"'{name}'" for name, cls in tasks().items() if cls in known.values())
        raise ValueError(
            f"'{checkpoint.source}' does not say which head it has, and its weights fit "
            f"{', '.join(best)}; pass task=, one of {classes}."
        )
    return best[0] if best else None


def _warn_left_out(model, directory):
    """Warn about weights of a foreign checkpoint that the model does not use."""
    if keras_hub_format.is_mine(directory):
        return  # KerasHub's class accounts for all weights.
    checkpoint = read_checkpoint(directory)
    maps = [checkpoint.encoder_map, checkpoint.head_maps.get(tables_of(model))]
    used = {
        name
        for weight in model.weights
        for name_map in maps
        if name_map is not None
        for name in name_map.theirs(weight.path) or ()
    }
    tied = getattr(checkpoint, "tied", {})
    left = [name for name in checkpoint.tensors if name not in used and name not in tied]
    if left:
        warnings.warn(
            f"The checkpoint was read as a {type(model).__name__}, which leaves out "
            f"{', '.join(sorted(left))}.",
            stacklevel=4,
        )


def _is_quantized(directory):
    if not is_own(directory):
        return False
    dtype = read_json(os.path.join(directory, "config.json"))["config"].get("dtype")
    return isinstance(dtype, dict) and dtype["class_name"] == "DTypePolicyMap"


def _tokenizer_of(source):
    try:
        return SubwordTokenizer.from_preset(source)
    except (ValueError, ImportError, OSError) as error:
        warnings.warn(f"No tokenizer is written: {first_line(error)}", stacklevel=4)
        return None


def _with_encoder(model, settings):
    """Return the model with some encoder settings changed, and the same weights."""
    config, cls = config_of(encoder_of(model)), type(encoder_of(model))
    for name in settings:
        if name not in config:
            hint = did_you_mean(name, config, f"; it has {', '.join(sorted(config))}.")
            raise ValueError(f"encoder={settings!r}: {cls.__name__} has no setting '{name}'{hint}")
    other = cls.from_config({**config, **settings})
    if model is not encoder_of(model):
        other = type(model).from_config({**_config(model), "backbone": other})
        if model.preprocessor is not None:
            other.preprocessor = model.preprocessor
    values = {weight.path: weight for weight in model.weights}
    for weight in other.weights:
        value = values.get(weight.path)
        if value is None or tuple(value.shape) != tuple(weight.shape):
            raise ValueError(
                f"encoder={settings!r} needs weights that the source does not have: "
                f"{weight.path} {tuple(weight.shape)}."
            )
        weight.assign(value)
    return other


def _config(model):
    """Return a task's own settings; empty for an encoder."""
    config = {} if model is encoder_of(model) else config_of(model)
    return {key: x for key, x in config.items() if key not in ("backbone", "preprocessor", "name")}


def _said(model):
    """Return a task's own settings, normalized to compare."""
    known = own_class(type(model)).get_config(model)
    config = {key: x for key, x in _config(model).items() if key in known}
    if config.get("scheme"):
        config |= {"labels": model.label_names, "scheme": None}
    if all(config.get("tied_projections") or ()):
        config["tied_projections"] = None
    return config


# Checking


def _check(model, tokenizer, directory, changed, written):
    """Read the output back, and compare settings, weights and outputs."""
    arguments = {} if model is encoder_of(model) else {"preprocessor": None}
    if not _is_quantized(directory):
        arguments["dtype"] = encoder_of(model).dtype_policy if is_own(directory) else "float32"
    # Formats store a subclass as its kerasbert base class.
    again = own_class(type(model)).from_preset(directory, **arguments)
    ours, theirs = encoder_of(model), encoder_of(again)
    expected = {**own_class(type(ours)).get_config(ours), **changed}
    differ = check_settings(
        {**canonical(expected, ours), **_said(model)},
        {**canonical(theirs.get_config(), ours), **_said(again)},
        written,
        to_huggingface.REMEDY,
    )
    if differ:
        warnings.warn(
            f"{written} does not hold {', '.join(differ)}; its outputs are the same.", stacklevel=3
        )
    values = {weight.path: weight for weight in model.weights}
    skipped = ("position_embedding/", "segment_embedding/") if changed else ()
    for weight in again.weights:
        if weight.path.startswith(skipped):
            continue
        if not np.array_equal(_array(weight), _array(values[weight.path])):
            raise ValueError(
                f"{weight.path} of '{directory}' differs from what was written; convert again."
            )
    features = _features(model)
    for one, other in zip(_outputs(model, features), _outputs(again, features), strict=True):
        gap, scale = np.abs(one - other).max(), max(1.0, np.abs(one).max())
        if not gap <= 1e-4 * scale:
            raise ValueError(
                f"Outputs of the converted model in '{directory}' differ from the source by "
                f"{gap:.1e} (tolerance {1e-4 * scale:.1e})."
            )
    if tokenizer is not None:
        _check_tokenizer(tokenizer, SubwordTokenizer.from_preset(directory), written)


def _array(value):
    value = keras.ops.convert_to_tensor(value)
    if keras.backend.is_float_dtype(value.dtype):
        value = keras.ops.cast(value, "float32")
    return keras.ops.convert_to_numpy(value)


def _features(model):
    """Return random inputs of two rows; the second row is padded."""
    random = np.random.default_rng(0)
    encoder = encoder_of(model)
    length = min(8, getattr(encoder, "max_sequence_length", 8))
    features = {}
    for name in sorted(name for name in model.input if name.endswith("token_ids")):
        shape = [2] * (len(model.input[name].shape) - 1) + [length]
        mask = np.ones(shape, "int32")
        mask[-1, ..., length // 2 + 1 :] = 0
        features[name] = random.integers(0, encoder.vocabulary_size, shape, "int32")
        features[name.replace("token_ids", "padding_mask")] = mask
    if "segment_ids" in model.input:
        features["segment_ids"] = random.integers(0, encoder.num_segments, shape, "int32")
    if "target_mapping" in model.input:  # Predict the first two tokens, which are masked.
        mapping = np.broadcast_to(np.eye(2, length, dtype="float32"), (2, 2, length))
        hidden = np.broadcast_to(mapping.sum(axis=1, keepdims=True), (2, length, length))
        features |= {"target_mapping": mapping, "hidden_mask": hidden.astype("int32")}
    return features


def _outputs(model, features):
    """Return all outputs but pooled ones and padding."""
    outputs = model({name: x for name, x in features.items() if name in model.input})
    return [
        _array(x)[features["padding_mask"] > 0] if "sequence_output" in path else _array(x)
        for path, x in keras.tree.flatten_with_path(outputs)
        if "pooled_output" not in path
    ]


_TEXTS = (
    "The naïve café isn't (very) far.",
    "빠른 갈색 여우",
    "東京は日本の首都です。",
    "北京 2026",
)


def _check_tokenizer(ours, theirs, written):
    if ours.get_vocabulary() != theirs.get_vocabulary():
        raise ValueError(
            f"The vocabulary of {written} differs from the tokenizer's; convert again."
        )
    try:
        need_tensorflow("Tokenizing")
    except ImportError:
        return
    for text in _TEXTS:
        if ours(text) != theirs(text):
            warnings.warn(
                f"{written} does not hold all settings of the tokenizer: it reads {text!r} as "
                f"{theirs(text)}, not {ours(text)}.",
                stacklevel=4,
            )
            return
