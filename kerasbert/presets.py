"""Preset names for `from_preset`, and the learning rates that presets recommend."""

from kerasbert.base import host  # noqa: F401

# isort: split
from typing import TYPE_CHECKING

from kerasbert.base.lazy import deprecated
from kerasbert.checkpoints.names import (
    check,
    finetuning_learning_rate,
    record_finetuning_learning_rate,
    resolve,
)
from kerasbert.encoder.building import NoHeadError

__all__ = [
    "NoHeadError",
    "check",
    "finetuning_learning_rate",
    "record_finetuning_learning_rate",
    "resolve",
]

# The deprecated alias stays until the next version; see the CHANGELOG.
if not TYPE_CHECKING:  # Type checkers would accept any name.
    __getattr__ = deprecated("kerasbert.presets", {"builtin_presets": ""})
