"""AdamW and Lamb with settings by weight name; see `weights`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert import backend
from kerasbert.backend.optimizers import adam_step, adam_steps
from kerasbert.base import keras_internals
from kerasbert.optimizers.weights import NO_DECAY, ByWeight, norm_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kerasbert.base.aliases import Tensor


# On PyTorch, `keras.optimizers.AdamW(...)` returns an instance of a faster class, which a subclass
# would not inherit.
_KerasAdamW = keras_internals.class_made_by(keras.optimizers.AdamW)


def _filled(beta, steps):
    """Return Adam's bias correction `1 - beta ** steps`, which is precise even in float32."""
    return -ops.expm1(steps * (math.log(beta) if beta else -math.inf))


class _Adam(_KerasAdamW):
    """Adam with optional bias correction, and epsilon added after the correction.

    Keras adds epsilon before the correction, up to 30 times as large in the first steps; at 1e-6
    this changes losses of fine-tuning by thousandths.
    """

    def __init__(self, *args: Any, bias_correction: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bias_correction = bias_correction
        self._starts = {}

    def start(self, variables: Any) -> None:
        """Restart the step count of weights that were frozen until now.

        Otherwise Adam hardly corrects their zero averages, and the first updates are up to 6 times
        the learning rate.
        """
        now = int(ops.convert_to_numpy(self.iterations))
        self._starts.update(
            {keras_internals.variable_key(self, variable): now for variable in variables}
        )

    def _backend_update_step(self, grads, variables, learning_rate):
        for start, rows in self._groups(variables, lambda key: self._starts.get(key, 0)):
            # Computed once per group; Keras passes the pair to `update_step` unchanged.
            pair = self._rate_and_epsilon(learning_rate, start)
            super()._backend_update_step(
                [grads[i] for i in rows], [variables[i] for i in rows], pair
            )

    def _rate_and_epsilon(self, rate, start):
        """Fold the bias correction into learning rate and epsilon of the uncorrected step.

        The step is `rate * mean / (sqrt(square) + epsilon)`.
        """
        if not self.bias_correction:
            return rate, self.epsilon
        betas = self.beta_1, self.beta_2
        if self._is_fused():  # The kernel's `1 - beta` is float32; 0.001 has 5 correct digits.
            betas = map(float, np.float32(betas))
        steps = ops.cast(self.iterations + 1 - start, "float32")
        filled_1, filled_2 = (_filled(beta, steps) for beta in betas)
        root = ops.sqrt(filled_2)
        return rate * root / filled_1, self.epsilon * root

    def _is_fused(self):
        return backend.has("adam_step") and not self.amsgrad

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Any) -> None:
        mean, square, *highest = keras_internals.averages(self, variable)
        if self._is_fused():
            betas = self.beta_1, self.beta_2
            adam_step(variable, mean, square, gradient, *betas, *learning_rate)
            return
        dtype = variable.dtype
        rate, epsilon, gradient = (ops.cast(x, dtype) for x in (*learning_rate, gradient))
        self.assign_add(mean, (1 - self.beta_1) * (gradient - mean))
        self.assign_add(square, (1 - self.beta_2) * (ops.square(gradient) - square))
        if self.amsgrad:
            self.assign(highest[0], ops.maximum(highest[0], square))
            square = highest[0]
        self.assign_sub(variable, rate * mean / (ops.sqrt(square) + epsilon))

    def _parallel_update_step(self, grads, variables, learning_rate):
        """Update all weights of one learning rate at once; Keras calls this on PyTorch only."""
        slots = zip(*(keras_internals.averages(self, variable) for variable in variables))
        slots = [[slot.value for slot in same] for same in slots]
        variables = [variable.value for variable in variables]
        adam_steps(variables, grads, self.beta_1, self.beta_2, *learning_rate, *slots)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "bias_correction": self.bias_correction}


@keras.saving.register_keras_serializable(package="kerasbert")
class AdamW(ByWeight, _Adam):
    """Adam with clipping and decoupled weight decay (not of biases and norms), as in BERT.

    It equals `torch.optim.AdamW` or, with `bias_correction=False`, the optimizer of BERT's released
    code for pre-training. Saved models keep all settings.

    Args:
        learning_rate: float, or a schedule such as `LinearDecay`.
        weight_decay: float.
        beta_1: float.
        beta_2: float.
        epsilon: float. Added to the root of the second moment after its bias correction.
        bias_correction: whether to correct the moving averages for their start at 0.
        global_clipnorm: limit on the global gradient norm.
        no_decay: list of names, or parts of paths, of weights without decay.
        learning_rate_multipliers: dict of parts of paths to factors of the learning rate; see
            `layerwise_learning_rates`.
        **kwargs: see `keras.optimizers.AdamW`, for example `gradient_accumulation_steps`.

    Example:

    >>> from kerasbert.optimizers import AdamW, LinearDecay
    >>> optimizer = AdamW(LinearDecay(5e-5, steps=1000, warmup_steps=100))
    >>> optimizer.get_config()["no_decay"]
    ['bias', 'gamma', 'beta']

    Source: Loshchilov and Hutter 2019, arXiv 1711.05101; Devlin et al. 2019, arXiv 1810.04805.
    """

    def __init__(
        self,
        learning_rate: Any = 5e-5,
        weight_decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        bias_correction: bool = True,
        global_clipnorm: float = 1.0,
        no_decay: Any = NO_DECAY,
        learning_rate_multipliers: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate,
            weight_decay=weight_decay,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            bias_correction=bias_correction,
            global_clipnorm=global_clipnorm,
            no_decay=no_decay,
            learning_rate_multipliers=learning_rate_multipliers,
            **kwargs,
        )


@keras.saving.register_keras_serializable(package="kerasbert")
class Lamb(ByWeight, keras.optimizers.Lamb):
    """LAMB, for large batches: scales updates, including weight decay, to the weights' norms.

    `keras.optimizers.Lamb` excludes the weight decay from the scaling. As in BERT's training,
    weights without weight decay are not scaled.

    Args:
        learning_rate: float, or a schedule such as `LinearDecay`.
        weight_decay: float.
        beta_1: float.
        beta_2: float.
        epsilon: float.
        global_clipnorm: limit on the global gradient norm.
        no_decay: list of names, or parts of paths, of weights without decay.
        learning_rate_multipliers: dict of parts of paths to factors of the learning rate; see
            `layerwise_learning_rates`.
        **kwargs: see `keras.optimizers.Lamb`, for example `gradient_accumulation_steps`.

    Example:

    >>> from kerasbert.optimizers import Lamb, LinearDecay
    >>> Lamb(LinearDecay(1e-3, steps=1000, warmup_steps=100)).weight_decay
    0.01

    Source: You et al. 2020, arXiv 1904.00962, algorithm 2.
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        weight_decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        global_clipnorm: float = 1.0,
        no_decay: Any = NO_DECAY,
        learning_rate_multipliers: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate,
            weight_decay=weight_decay,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            global_clipnorm=global_clipnorm,
            no_decay=no_decay,
            learning_rate_multipliers=learning_rate_multipliers,
            **kwargs,
        )

    def _apply_weight_decay(self, variables):
        pass  # `update_step` already applies weight decay.

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Any) -> None:
        dtype = variable.dtype
        rate, gradient = ops.cast(learning_rate, dtype), ops.cast(gradient, dtype)
        steps = ops.cast(self.iterations + 1, "float32")
        mean, square = keras_internals.averages(self, variable)
        self.assign_add(mean, (1 - self.beta_1) * (gradient - mean))
        self.assign_add(square, (1 - self.beta_2) * (ops.square(gradient) - square))
        filled = [ops.cast(_filled(beta, steps), dtype) for beta in (self.beta_1, self.beta_2)]
        update = mean / filled[0] / (ops.sqrt(square / filled[1]) + self.epsilon)
        if self._use_weight_decay(variable):
            update = update + (self.weight_decay or 0.0) * variable
            length, target = norm_of(update), norm_of(variable)
            is_some = ops.logical_and(length > 0, target > 0)
            update = update * ops.where(is_some, target / ops.where(is_some, length, 1.0), 1.0)
        self.assign_sub(variable, rate * update)
