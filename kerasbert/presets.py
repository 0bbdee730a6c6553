"""Preset names as `from_preset` takes them, and the learning rates that presets recommend."""

from kerasbert.loading.names import (
    builtin_presets,
    check,
    finetuning_learning_rate,
    record_finetuning_learning_rate,
    resolve,
)
from kerasbert.models.building import NoHeadError

__all__ = [
    "NoHeadError",
    "builtin_presets",
    "check",
    "finetuning_learning_rate",
    "record_finetuning_learning_rate",
    "resolve",
]
