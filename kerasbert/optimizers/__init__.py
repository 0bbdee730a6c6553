"""Optimizers, learning rate schedules, layerwise learning rates and gradual unfreezing.

Keras itself has cosine decay with warmup, `keras.optimizers.schedules.CosineDecay(0.0, steps -
warmup, warmup_target=5e-5, warmup_steps=warmup)`, clipping (`global_clipnorm`) and
`gradient_accumulation_steps`. Schedules count batches, even with gradient accumulation.
"""

from kerasbert.base import host  # noqa: F401
from kerasbert.optimizers.adam import AdamW, Lamb
from kerasbert.optimizers.layerwise import GradualUnfreezing, layerwise_learning_rates
from kerasbert.optimizers.muon import Muon
from kerasbert.optimizers.schedules import (
    LinearDecay,
    SlantedTriangular,
    WarmupInverseSqrt,
    WarmupStableDecay,
)
from kerasbert.optimizers.weights import FINETUNING_LEARNING_RATE, MUON_PARTS, NO_DECAY

__all__ = [
    "AdamW",
    "FINETUNING_LEARNING_RATE",
    "GradualUnfreezing",
    "Lamb",
    "LinearDecay",
    "MUON_PARTS",
    "Muon",
    "NO_DECAY",
    "SlantedTriangular",
    "WarmupInverseSqrt",
    "WarmupStableDecay",
    "layerwise_learning_rates",
]
