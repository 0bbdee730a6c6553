"""Preset names, and resolution of a name, handle or path to a directory."""

from __future__ import annotations

import functools
import json
import os
from typing import TYPE_CHECKING

import keras_hub

from kerasbert.base.errors import check_value, did_you_mean
from kerasbert.base.files import check_regular_tree, json_in, read_json, settle, write_text
from kerasbert.base.strict_json import to_json
from kerasbert.checkpoints import hub
from kerasbert.checkpoints import keras_hub as keras_hub_format
from kerasbert.checkpoints.detection import of_description, read_checkpoint, with_description
from kerasbert.checkpoints.own import OwnPreset, is_own
from kerasbert.families import LINEAGE, get_family

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import AnyPath


@functools.cache
def builtin_presets() -> dict[str, dict[str, Any]]:
    """Return the described presets, a dict of name to description.

    >>> builtin_presets()["bert_base_en_uncased"]["handle"]
    'hf://google-bert/bert-base-uncased'
    """
    files = sorted(hub.preset_files().iterdir(), key=lambda file: file.name)
    texts = [file.read_text(encoding="utf-8") for file in files if file.name.endswith(".json")]
    return {preset["name"]: preset for preset in map(json.loads, texts)}


@functools.cache
def _keras_hub_presets():
    """Return KerasHub's presets of the BERT family, as a dict of name to handle."""
    classes = [getattr(keras_hub.models, name) for name in keras_hub_format.FAMILIES]
    return {name: x["kaggle_handle"] for cls in classes for name, x in cls.presets.items()}


def presets_of(cls):
    """Return `cls.presets`.

    These are those of its encoder's family, of all families outside `lineage` for `BertBackbone`,
    or those that use a tokenizer class.
    """
    presets = builtin_presets()
    if issubclass(cls, keras_hub.tokenizers.Tokenizer):
        classes = {
            name: (preset["tokenizer"] or {}).get("class") for name, preset in presets.items()
        }
        return {name: presets[name] for name, own in classes.items() if own == cls.__name__}
    encoder = getattr(cls, "backbone_cls", None) or cls
    family = getattr(encoder, "family", None)
    bases = [base.__name__ for base in encoder.__mro__]
    packing = getattr(cls, "packing", None)

    def fits(preset):
        if packing is not None:  # Preprocessors make rows of one form.
            return get_family(preset["family"]).packing == packing
        if isinstance(family, str):
            return preset["family"] == family
        return preset["family"] not in LINEAGE and "BertBackbone" in bases

    return {name: preset for name, preset in presets.items() if fits(preset)}


def resolve(preset: AnyPath, weights: bool = True) -> str:
    """Return the local directory of a preset: a name, a handle or a path.

    Args:
        preset: string.
        weights: bool. `False` downloads no weights.

    Raises:
        ValueError: for an unknown preset, with the closest names.
    """
    if preset in builtin_presets():
        return hub.fetch(builtin_presets()[preset]["handle"], weights)
    if "://" in preset:
        return hub.fetch(preset, weights)
    directory = os.path.expanduser(preset)
    if os.path.isdir(directory):
        settle(directory)
        check_regular_tree(directory)
        return directory
    if os.path.isfile(directory):
        raise ValueError(f"'{preset}' is a file; pass the preset directory that contains it.")
    if preset in _keras_hub_presets():
        return hub.fetch(_keras_hub_presets()[preset], weights)
    names = dict.fromkeys([*builtin_presets(), *_keras_hub_presets()])
    raise ValueError(
        f"Unknown preset '{preset}': it is not a built-in name, a directory, or a handle such as "
        "hf://org/name or kaggle://org/model/keras/name"
        + did_you_mean(preset, names, "; `kerasbert presets` lists the names.", 3, cutoff=0.4)
    )


def check(preset: AnyPath) -> None:
    """Check a preset's name or folder, before other work.

    Raises:
        ValueError: for an unknown name, or a folder without a checkpoint.
    """
    preset = os.fspath(preset)
    is_local = os.path.isdir(os.path.expanduser(preset))
    is_named = preset in builtin_presets() or "://" in preset
    if is_named or (not is_local and preset in _keras_hub_presets()):
        return
    directory = resolve(preset)
    if not is_own(directory):
        read_checkpoint(directory, preset)


def finetuning_learning_rate(preset: AnyPath) -> float | None:
    """Return the learning rate that a preset recommends for fine-tuning, or `None`.

    >>> finetuning_learning_rate("bert_tiny_demo_en_uncased")
    0.0005
    """
    preset = os.fspath(preset)
    if preset in builtin_presets():
        config = builtin_presets()[preset]["settings"]
    else:
        directory = resolve(preset, weights=False)
        config = json_in(directory, "config.json").get("config", {}) if is_own(directory) else {}
    rate = config.get("finetuning_learning_rate")
    check_value("finetuning_learning_rate", rate, "positive?", preset)
    return rate


def record_finetuning_learning_rate(preset: AnyPath, rate: float | None = None) -> None:
    """Write the recommended learning rate into a preset, or only check this for `rate=None`.

    Args:
        preset: a directory of `save_to_preset` or `pretrain`.
        rate: float.

    Raises:
        ValueError: for other kinds of presets.
    """
    check_value("rate", rate, "positive?")
    path = os.path.join(os.path.expanduser(os.fspath(preset)), "config.json")
    if not os.path.exists(path) or not is_own(os.path.dirname(path)):
        raise ValueError(
            f"No learning rate can be recorded in '{preset}', which must be a directory that "
            "`pretrain` or save_to_preset wrote."
        )
    if rate is not None:
        config = read_json(path)
        config["config"]["finetuning_learning_rate"] = rate
        write_text(path, to_json(config, indent=4))


def open_preset(preset, weights=True, files=True):
    """Open the preset of a name, a handle or a directory.

    Args:
        preset: string or path.
        weights: bool. `False` downloads no weights.
        files: bool. `False` uses only a built-in preset's description, without weights.

    Returns:
        An `OwnPreset` or a `Checkpoint`.

    Raises:
        ValueError: for an unknown name, or a directory of unknown format.
    """
    if not isinstance(preset, (str, os.PathLike)):
        raise ValueError(f"preset must be a name, a handle or a directory, got {preset!r}.")
    preset = os.fspath(preset)
    described = builtin_presets().get(preset)
    if described and not weights and not files:
        return of_description(described)
    directory = resolve(preset, weights)
    if is_own(directory):
        return OwnPreset(directory)
    checkpoint = read_checkpoint(directory, preset)
    return with_description(checkpoint, directory, described, weights) if described else checkpoint
