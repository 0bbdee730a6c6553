"""The presets that `from_preset` takes: their names, and the learning rate that one records."""

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
