"""`from_preset` and `save_to_preset` of encoders, tokenizers, preprocessors and tasks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

import keras

from kerasbert.base.files import check_room, new_folder, output_folder
from kerasbert.base.finite import check_weights
from kerasbert.base.keywords import ChecksKeywords
from kerasbert.base.lazy import load_models, load_module
from kerasbert.base.moves import is_unfinished
from kerasbert.base.subclasses import rename_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath, Found


def check_content(config):
    """Raise if a config, at any depth, names a vocabulary file instead of holding its content.

    Keras' and KerasHub's classes would open any file that is named there.
    """
    if isinstance(config, (list, tuple)):
        for part in config:
            check_content(part)
    if isinstance(config, dict):
        for name, part in config.items():
            if name in ("vocabulary", "merges", "proto") and isinstance(part, str):
                raise ValueError(
                    f"The configuration has the file {name}={part!r}, but it must not open files; "
                    "pass the content, or load the assets."
                )
            check_content(part)


def _names():
    """Import `checkpoints.names`, which imports this module."""
    return load_module("checkpoints.names")


Result = TypeVar("Result")


class _ClassProperty(property):
    def __get__(self, instance, owner):
        return self.fget(owner)


def _class_property(function: Callable[[Any], Result]) -> Result:
    """Make a method a property of the class; type checkers see its return type."""
    return _ClassProperty(function)


class FromPreset(ChecksKeywords):
    """Mixin for loading from any source and saving atomically; must be the first base class."""

    @classmethod
    def from_preset(cls, preset: AnyPath, load_weights: bool = True, **kwargs: Any) -> Self:
        """Load from a preset.

        Args:
            preset: a built-in name (`kerasbert presets` lists them), a directory of kerasbert,
                KerasHub, Hugging Face or Google, `hf://org/name`, or
                `kaggle://org/model/keras/name`.
            load_weights: bool. `False` builds the architecture with random weights.
            **kwargs: settings that override those of the preset, such as `dtype="bfloat16"`. A task
                also takes `num_classes` or `labels` for a new head (`new_head=True` without
                classes), its preprocessor's `sequence_length` and `truncate`, and encoder settings.
                `special_tokens_in_strings=True` recognizes control tokens such as `[SEP]` and
                markers such as `[unused1]` in texts.

        Raises:
            ValueError: if the preset is unknown, or its weights do not fit, with missing and unused
                weights.
        """
        cls.check_arguments(kwargs)
        # Presets name registered classes, even of the encoder, so all must be imported first.
        load_models()
        source = _names().open_preset(
            preset, load_weights and issubclass(cls, keras.Model), cls.needs_files(kwargs)
        )
        with source.whole(cls):
            return cls.from_source(source, load_weights, **kwargs)

    @classmethod
    def check_arguments(cls, kwargs: Any) -> None:
        """Raise for arguments that `from_preset` does not take, before downloads."""

    @classmethod
    def needs_files(cls, kwargs: Any) -> bool:
        """Return whether a built-in preset needs files besides its description."""
        return True

    @classmethod
    def from_source(cls, source: Found, load_weights: bool = True, **kwargs: Any) -> Self:
        """Make an instance from an `OwnPreset` or a `Checkpoint` of `kerasbert.checkpoints`."""
        if not source.is_own and not hasattr(cls, "from_checkpoint"):
            raise ValueError(
                f"'{source.source}' is a foreign checkpoint, which {cls.__name__} cannot load; "
                "pass a preset that kerasbert wrote."
            )
        if source.is_own and issubclass(cls, keras.Model):
            source.check_encoder()
        made = (
            cls.from_own_preset(source.directory, **kwargs)
            if source.is_own
            else cls.from_checkpoint(source, **kwargs)
        )
        if not isinstance(made, cls):
            raise ValueError(
                f"'{source.source}' has a {type(made).__name__}, not a {cls.__name__}; load it "
                "with that class."
            )
        return made

    @_class_property
    def presets(cls) -> dict[str, Any]:
        """The built-in presets of this class, a dict of name to description."""
        return _names().presets_of(cls)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        check_content(config)
        return super().from_config(config)

    @classmethod
    def from_own_preset(cls, directory: AnyPath, **kwargs: Any) -> Self:
        """Load from a directory of `save_to_preset`, with KerasHub's loader."""
        return super().from_preset(directory, **kwargs)

    def save_to_preset(self, preset_dir: AnyPath, **kwargs: Any) -> None:
        """Write a preset directory, atomically.

        A user-defined subclass is saved as its kerasbert base class, with its own settings, and
        loaded by either.

        Args:
            preset_dir: the directory; an existing one keeps its other files.
            **kwargs: passed on, such as `max_shard_size` in GB.

        Raises:
            ValueError: if `preset_dir` is empty or a file, if weights are not finite, or for an
                unregistered subclass that its base class cannot load, for example because of more
                weights.
            OSError: if it cannot be written, or the disk has no room for the weights.
        """
        target = output_folder(preset_dir, "preset_dir")
        weights = getattr(self, "weights", ())
        check_weights(weights, f"This {type(self).__name__} is not saved")
        if is_unfinished(target):
            # The caller, such as a task, renames the folder later.
            check_room(os.path.dirname(target), weights)
            return self._save_in(target, **kwargs)
        with new_folder(target, keep=True) as folder:
            check_room(folder, weights)
            self._save_in(folder, **kwargs)

    def _save_in(self, folder, **kwargs):
        super().save_to_preset(folder, **kwargs)
        rename_in(folder, self)
