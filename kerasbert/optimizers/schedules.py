"""Learning rate schedules; they count batches, even with gradient accumulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.base.errors import check_value, check_whole

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor


def _triangle(step, peak, end):
    """Return a linear rise from 0 at step 0 to 1 at `peak`, then a fall to 0 at `end`."""
    step = ops.cast(step, "float32")
    rise, fall = step / max(peak, 1), (end - step) / max(end - peak, 1)
    return ops.maximum(ops.where(step < peak, rise, fall), 0.0)


def _check_steps(steps):
    if steps < 1:
        raise ValueError(
            f"steps={steps} must be the number of batches of the whole training, at least 1."
        )


@keras.saving.register_keras_serializable(package="kerasbert")
class LinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warmup from 0 to the peak, then linear decay to 0 at the last step.

    Args:
        learning_rate: peak learning rate.
        steps: number of batches of the whole training, including warmup: batches per epoch times
            epochs.
        warmup_steps: int.
        start: step at which the schedule starts, for an optimizer that has trained before.

    Example:

    >>> schedule = LinearDecay(1.0, steps=10, warmup_steps=2)
    >>> [round(float(schedule(step)), 3) for step in (0, 1, 2, 6, 10, 11)]
    [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]
    """

    def __init__(
        self, learning_rate: float, steps: int, warmup_steps: int = 0, start: int = 0
    ) -> None:
        super().__init__()
        _check_steps(steps)
        if not 0 <= warmup_steps <= steps:
            raise ValueError(
                f"warmup_steps={warmup_steps} must be between 0 and the {steps} steps of the whole "
                "training."
            )
        self.learning_rate = learning_rate
        self.steps = steps
        self.warmup_steps = warmup_steps
        self.start = start

    def __call__(self, step: Tensor) -> Any:
        step = ops.cast(step - self.start, "float32")
        return self.learning_rate * _triangle(step, self.warmup_steps, self.steps)

    def get_config(self) -> dict[str, Any]:
        return {
            "learning_rate": self.learning_rate,
            "steps": self.steps,
            "warmup_steps": self.warmup_steps,
            "start": self.start,
        }


@keras.saving.register_keras_serializable(package="kerasbert")
class WarmupStableDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warmup from 0, constant peak, then decay to 0 over the last steps (WSD).

    Until the decay, the schedule does not depend on the length of the training. The decay's factor
    is one minus the square root of its progress.

    Args:
        learning_rate: peak learning rate.
        steps: number of batches of the whole training, including warmup and decay.
        warmup_steps: int.
        decay_steps: int.
        start: step at which the schedule starts, for an optimizer that has trained before.

    Example:

    >>> schedule = WarmupStableDecay(1.0, steps=10, warmup_steps=2, decay_steps=4)
    >>> [round(float(schedule(step)), 3) for step in (0, 1, 2, 6, 7, 10, 11)]
    [0.0, 0.5, 1.0, 1.0, 0.5, 0.0, 0.0]

    Source: Hu et al. 2024, arXiv 2404.06395; form of the decay: Hägele et al. 2024, arXiv
    2405.18392.
    """

    def __init__(
        self,
        learning_rate: float,
        steps: int,
        warmup_steps: int = 0,
        decay_steps: int = 0,
        start: int = 0,
    ) -> None:
        super().__init__()
        _check_steps(steps)
        check_whole("warmup_steps", warmup_steps, 0)
        check_whole("decay_steps", decay_steps, 0)
        if warmup_steps + decay_steps > steps:
            raise ValueError(
                f"warmup_steps={warmup_steps} and decay_steps={decay_steps} exceed the {steps} "
                "steps of the whole training; lower one of them."
            )
        self.learning_rate = learning_rate
        self.steps = steps
        self.warmup_steps = warmup_steps
        self.decay_steps = decay_steps
        self.start = start

    def __call__(self, step: Tensor) -> Any:
        step = ops.cast(step - self.start, "float32")
        fallen = (step - (self.steps - self.decay_steps)) / max(self.decay_steps, 1)
        fall = 1.0 - ops.sqrt(ops.clip(fallen, 0.0, 1.0))
        rise = step / max(self.warmup_steps, 1)
        return self.learning_rate * ops.where(step < self.warmup_steps, rise, fall)

    def get_config(self) -> dict[str, Any]:
        return {
            "learning_rate": self.learning_rate,
            "steps": self.steps,
            "warmup_steps": self.warmup_steps,
            "decay_steps": self.decay_steps,
            "start": self.start,
        }


@keras.saving.register_keras_serializable(package="kerasbert")
class SlantedTriangular(keras.optimizers.schedules.LearningRateSchedule):
    """ULMFiT's slanted triangular schedule: a short rise from a low value and a long fall back.

    Args:
        learning_rate: peak learning rate.
        steps: number of batches of the whole training: batches per epoch times epochs.
        cut_frac: share of the steps in which the learning rate rises.
        ratio: ratio of the peak to the lowest learning rate.

    Example:

    >>> schedule = SlantedTriangular(1.0, steps=100)
    >>> [round(float(schedule(step)), 3) for step in (0, 5, 10, 55, 100)]
    [0.031, 0.516, 1.0, 0.516, 0.031]

    Source: Howard and Ruder 2018, arXiv 1801.06146, equation 3.
    """

    def __init__(
        self, learning_rate: float, steps: int, cut_frac: float = 0.1, ratio: float = 32
    ) -> None:
        super().__init__()
        _check_steps(steps)
        if not 0 < cut_frac < 1 or int(steps * cut_frac) < 1:
            raise ValueError(
                f"cut_frac={cut_frac} must be between 0 and 1 and at least one of the {steps} "
                "steps; use a larger share or more steps."
            )
        if ratio < 1:
            raise ValueError(
                f"ratio={ratio}, the peak divided by the lowest rate, must be at least 1."
            )
        self.learning_rate = learning_rate
        self.steps = steps
        self.cut_frac = cut_frac
        self.ratio = ratio

    def __call__(self, step: Tensor) -> Any:
        cut = int(self.steps * self.cut_frac)
        share = _triangle(step, cut, cut / self.cut_frac)
        return self.learning_rate * (1 + share * (self.ratio - 1)) / self.ratio

    def get_config(self) -> dict[str, Any]:
        return {
            "learning_rate": self.learning_rate,
            "steps": self.steps,
            "cut_frac": self.cut_frac,
            "ratio": self.ratio,
        }


@keras.saving.register_keras_serializable(package="kerasbert")
class WarmupInverseSqrt(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warmup from 0, then decay with the inverse square root of the step.

    In the paper the peak is `hidden_dim**-0.5 * warmup_steps**-0.5`, and Adam has `beta_1=0.9,
    beta_2=0.98, epsilon=1e-9`.

    Args:
        learning_rate: peak learning rate, at the end of the warmup.
        warmup_steps: int.

    Example:

    >>> schedule = WarmupInverseSqrt(1.0, warmup_steps=4)
    >>> [round(float(schedule(step)), 3) for step in (0, 1, 4, 16, 64)]
    [0.0, 0.25, 1.0, 0.5, 0.25]

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 5.3.
    """

    def __init__(self, learning_rate: float, warmup_steps: int = 4000) -> None:
        super().__init__()
        check_value("learning_rate", learning_rate, "positive")
        check_whole("warmup_steps", warmup_steps)
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps

    def __call__(self, step: Tensor) -> Any:
        share = ops.cast(step, "float32") / self.warmup_steps
        return self.learning_rate * ops.minimum(share, ops.rsqrt(ops.maximum(share, 1e-9)))

    def get_config(self) -> dict[str, Any]:
        return {"learning_rate": self.learning_rate, "warmup_steps": self.warmup_steps}
