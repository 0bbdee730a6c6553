"""Optimizers, learning rate schedules, layerwise learning rates and gradual unfreezing.

Keras itself has cosine decay with warmup, `keras.optimizers.schedules.CosineDecay(0.0, steps -
warmup, warmup_target=5e-5, warmup_steps=warmup)`, clipping (`global_clipnorm`) and
`gradient_accumulation_steps`. Schedules count batches, even with gradient accumulation.
"""

from __future__ import annotations

from kerasbert.base import host  # noqa: F401

# isort: split
import math
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert import backend
from kerasbert.base import keras_internals
from kerasbert.base.errors import check_value, check_whole
from kerasbert.base.keywords import ChecksKeywords

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from kerasbert.base.aliases import Tensor

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

#: Names of weights without weight decay, as parts of their paths.
NO_DECAY = ("bias", "gamma", "beta")

#: Peak learning rate of fine-tuning for encoders that record none: the middle one of the three for
#: Base and Large in arXiv 1810.04805, appendix A.3. Small encoders need at least ten times that.
FINETUNING_LEARNING_RATE = 3e-5

#: Weights that fuse several matrices, and how many.
MUON_PARTS = {"qkv": 3}


class _ByWeight(ChecksKeywords):
    """Mixin for weight decay exclusions and learning rate multipliers by name; first base class.

    A name matches whole parts of a weight's path: "bias" matches every bias,
    "transformer_layer_1" all weights of that layer.
    """

    def __init__(
        self,
        *args: Any,
        no_decay: Sequence[str] = NO_DECAY,
        learning_rate_multipliers: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.no_decay = tuple(no_decay or ())
        self.learning_rate_multipliers = learning_rate_multipliers
        for name, value in self._multipliers().items():
            if value < 0:
                raise ValueError(
                    f"learning_rate_multipliers['{name}'] is {value}; it must be a factor of the "
                    "learning rate, at least 0."
                )
        self._decays, self._shares = {}, {}

    def build(self, variables: Any) -> None:
        if self.built:
            return
        super().build(variables)
        for variable in variables:
            key, path = keras_internals.variable_key(self, variable), f"/{variable.path}/"
            self._decays[key] = not any(f"/{name}/" in path for name in self.no_decay)
            self._shares[key] = 1.0
            for name, value in self._multipliers().items():
                if f"/{name}/" in path:
                    self._shares[key] *= value

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Set `no_decay`; names match whole parts of a path, and a saved model keeps them."""
        if self.built:
            raise ValueError(
                "exclude_from_weight_decay() must be called before the optimizer is built; call it "
                "before training, or pass no_decay."
            )
        self.no_decay = (*(variable.path for variable in var_list or ()), *(var_names or ()))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "no_decay": list(self.no_decay),
            "learning_rate_multipliers": self._multipliers() or None,
        }

    def _multipliers(self):
        return dict(self.learning_rate_multipliers or {})

    def _use_weight_decay(self, variable):
        return self._decays[keras_internals.variable_key(self, variable)]

    def _groups(self, variables, kind):
        """Group variables by `kind(key)`: pairs `(kind, positions)`, usually just one."""
        groups = {}
        for position, variable in enumerate(variables):
            groups.setdefault(kind(keras_internals.variable_key(self, variable)), []).append(
                position
            )
        return groups.items()

    def _clip_gradients(self, grads):
        # TensorFlow's sparse gradient of embeddings has a row per occurrence of a token, and Keras
        # takes norms and squares of rows instead of sums. Adding 0.0 sums them.
        grads = [ops.add(g, 0.0) if hasattr(g, "dense_shape") else g for g in grads]
        grads = backend.sum_over_replicas(grads)
        if (self.global_clipnorm or 0) > 0 and not (self.clipnorm or self.clipvalue):
            return backend.clip_by_global_norm(grads, self.global_clipnorm)
        return super()._clip_gradients(grads)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        # Keras would clip per replica and then sum; `_clip_gradients` sums first instead.
        return grads_and_vars

    def _apply_weight_decay(self, variables):
        if not self.weight_decay:
            return
        decay, decayed = self.weight_decay, [v for v in variables if self._use_weight_decay(v)]
        for share, rows in self._groups(decayed, self._shares.get):
            weights = [decayed[i] for i in rows]
            if not backend.decay(weights, decay * share, lambda: self.learning_rate):
                self.weight_decay = decay * share
                super()._apply_weight_decay(weights)
        self.weight_decay = decay

    def _backend_update_step(self, grads, variables, learning_rate):
        for share, rows in self._groups(variables, self._shares.get):
            super()._backend_update_step(
                [grads[i] for i in rows], [variables[i] for i in rows], learning_rate * share
            )


# On PyTorch `keras.optimizers.AdamW(...)` returns an instance of a faster class, which subclasses
# would not inherit from.
_KerasAdamW = keras_internals.class_made_by(keras.optimizers.AdamW)


def _filled(beta, steps):
    """Return Adam's bias correction `1 - beta ** steps`, exactly even in float32."""
    return -ops.expm1(steps * (math.log(beta) if beta else -math.inf))


class _Adam(_KerasAdamW):
    """Adam with optional bias correction, and epsilon added after the correction.

    Keras adds epsilon before the correction, which makes it up to 30 times as large in the first
    steps; at 1e-6 this changes the losses of fine-tuning by thousandths.
    """

    def __init__(self, *args: Any, bias_correction: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bias_correction = bias_correction
        self._starts = {}

    def start(self, variables: Any) -> None:
        """Restart the step count of weights that were frozen until now.

        Without this Adam would hardly correct their moving averages, which are zero, and the first
        updates would be up to 6 times the learning rate.
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
        """Fold the bias correction into the rate and epsilon of the uncorrected step.

        The step is `rate * mean / (sqrt(square) + epsilon)`.
        """
        if not self.bias_correction:
            return rate, self.epsilon
        betas = self.beta_1, self.beta_2
        if self._is_fused():  # The kernel's `1 - beta` is float32; 0.001 keeps 5 digits.
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
            backend.adam_step(variable, mean, square, gradient, *betas, *learning_rate)
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
        backend.adam_steps(variables, grads, self.beta_1, self.beta_2, *learning_rate, *slots)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "bias_correction": self.bias_correction}


@keras.saving.register_keras_serializable(package="kerasbert")
class AdamW(_ByWeight, _Adam):
    """Adam with decoupled weight decay except for biases and norms, and clipping, as in BERT.

    It equals `torch.optim.AdamW`, which transformers uses for fine-tuning, and with
    `bias_correction=False` the optimizer of BERT's released code for pre-training. Saved models
    keep all settings.

    Args:
        learning_rate: float, or a schedule such as `LinearDecay`.
        weight_decay: float.
        beta_1: float.
        beta_2: float.
        epsilon: float. Added to the root of the second moment after its bias correction.
        bias_correction: bool. Whether to correct the moving averages for their start at 0.
        global_clipnorm: float. Limit on the global gradient norm.
        no_decay: list of names, or parts of paths, of weights without decay.
        learning_rate_multipliers: dict of parts of paths to factors of the learning rate; see
            `layerwise_learning_rates`.
        **kwargs: see `keras.optimizers.AdamW`, for example `gradient_accumulation_steps`.

    Example:

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
class Lamb(_ByWeight, keras.optimizers.Lamb):
    """LAMB, for large batches: scales updates, including weight decay, to the weights' norms.

    `keras.optimizers.Lamb` excludes the weight decay from the scaling. As in BERT's training,
    weights without weight decay are not scaled.

    Args:
        learning_rate: float, or a schedule such as `LinearDecay`.
        weight_decay: float.
        beta_1: float.
        beta_2: float.
        epsilon: float.
        global_clipnorm: float. Limit on the global gradient norm.
        no_decay: list of names, or parts of paths, of weights without decay.
        learning_rate_multipliers: dict of parts of paths to factors of the learning rate; see
            `layerwise_learning_rates`.
        **kwargs: see `keras.optimizers.Lamb`, for example `gradient_accumulation_steps`.

    Example:

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
        pass  # Weight decay is part of `update_step`.

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
            length, target = _norm(update), _norm(variable)
            is_some = ops.logical_and(length > 0, target > 0)
            update = update * ops.where(is_some, target / ops.where(is_some, length, 1.0), 1.0)
        self.assign_sub(variable, rate * update)


def _norm(x):
    return ops.sqrt(ops.sum(ops.square(x)))


@keras.saving.register_keras_serializable(package="kerasbert")
class Muon(_ByWeight, keras.optimizers.Muon):
    """Muon: orthogonalized momentum for hidden matrices, Adam for all other weights.

    Adam updates biases, norms, embeddings and the last layer of a head. Updates of matrices are
    scaled to the usual size of Adam's (`rms_rate`), so both share one learning rate and one weight
    decay. Adam has bias correction here, as in Keras. `pretrain`'s "adamw" has none, so its first
    few hundred updates are larger: tune the learning rates of the two separately.

    This adds to `keras.optimizers.Muon` the arguments shared by all optimizers here, and `parts`:
    the fused matrix of queries, keys and values is orthogonalized as three.

    Args:
        learning_rate: float, or a schedule such as `LinearDecay`.
        weight_decay: float. Applies to Adam's weights too.
        momentum: float. Decay of the moving average of a matrix's gradients.
        epsilon: float. Adam's.
        global_clipnorm: float. Limit on the global gradient norm.
        parts: dict of parts of paths to ints, the number of equally wide matrices that a weight
            fuses, such as `{"qkv": 3}`.
        exclude_layers: list of regular expressions; Adam updates weights whose path matches one.
        no_decay: list of names, or parts of paths, of weights without decay.
        learning_rate_multipliers: dict of parts of paths to factors of the learning rate; see
            `layerwise_learning_rates`.
        **kwargs: see `keras.optimizers.Muon`, for example `ns_steps`.

    Example:

    >>> optimizer = Muon(LinearDecay(1e-3, steps=1000, warmup_steps=100))
    >>> optimizer.get_config()["parts"]
    {'qkv': 3}

    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; update scale: Liu et al.
    2025, arXiv 2502.16982.
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        weight_decay: float = 0.01,
        momentum: float = 0.95,
        epsilon: float = 1e-6,
        global_clipnorm: float = 1.0,
        parts: Mapping[str, Any] = MUON_PARTS,
        exclude_layers: Sequence[str] = ("logits", "mlm_head/decoder"),
        no_decay: Any = NO_DECAY,
        learning_rate_multipliers: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate,
            weight_decay=weight_decay,
            # Keras has two settings for weight decay; `_ByWeight` applies one to all weights.
            adam_weight_decay=weight_decay,
            momentum=momentum,
            epsilon=epsilon,
            global_clipnorm=global_clipnorm,
            exclude_layers=list(exclude_layers or ()),
            no_decay=no_decay,
            learning_rate_multipliers=learning_rate_multipliers,
            **kwargs,
        )
        self.parts = dict(parts or {})
        for name, count in self.parts.items():
            check_whole(f"parts['{name}']", count)
        self._cuts = {}

    def build(self, variables: Any) -> None:
        if self.built:
            return
        super().build(variables)
        for variable in variables:
            if keras_internals.steps_by_adam(self, variable):
                continue
            path, width = f"/{variable.path}/", variable.shape[1]
            cut = math.prod(count for name, count in self.parts.items() if f"/{name}/" in path)
            if width % cut:
                raise ValueError(
                    f"'{variable.path}' has width {width}, which parts={self.parts} cannot split "
                    f"into {cut} equal matrices; remove its entry from parts."
                )
            self._cuts[keras_internals.variable_key(self, variable)] = cut

    def _muon_update_step(self, gradient, variable, lr, m):
        cut = self._cuts[keras_internals.variable_key(self, variable)]
        gradient = ops.cast(gradient, variable.dtype)
        self.assign_add(m, gradient + (self.momentum - 1) * m)
        step = gradient + self.momentum * m if self.nesterov else m
        steps = [
            self.lr_adjust(self.zeropower_via_newtonschulz5(part, self.ns_steps))
            for part in ops.split(step, cut, axis=1)
        ]
        self.assign_sub(variable, ops.cast(lr, variable.dtype) * ops.concatenate(steps, axis=1))

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "parts": self.parts}
        del config["adam_weight_decay"]
        return config


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
        learning_rate: float. Peak learning rate.
        steps: int. Batches of the whole training, warmup included: batches per epoch times epochs.
        warmup_steps: int.
        start: int. Step at which the schedule starts, for an optimizer that has trained before.

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

    Until the decay begins, the length of the training does not matter. The decay is one minus the
    square root of its progress: fast at first.

    Args:
        learning_rate: float. Peak learning rate.
        steps: int. Batches of the whole training, warmup and decay included.
        warmup_steps: int.
        decay_steps: int.
        start: int. Step at which the schedule starts, for an optimizer that has trained before.

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
    """ULMFiT's slanted triangular schedule: a short rise from a low rate and a long fall back.

    Args:
        learning_rate: float. Peak learning rate.
        steps: int. Batches of the whole training: batches per epoch times epochs.
        cut_frac: float. Share of the steps in which the rate rises.
        ratio: float. Ratio of the peak to the lowest rate.

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
        learning_rate: float. Peak learning rate, at the end of the warmup.
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


def _levels(model):
    """Return lists of the encoder's layers, bottom up: the embedding layers, then each block.

    The head, the pooler and a final norm are not included.
    """
    layers = [getattr(model, "backbone", None), model, *getattr(model, "layers", [])]
    encoder = next((layer for layer in layers if hasattr(layer, "transformer_layers")), None)
    if encoder is None:
        raise ValueError(
            f"{type(model).__name__} '{model.name}' has no encoder of kerasbert; pass a task "
            "model, a `BertBackbone` or a model that contains one."
        )
    blocks = list({id(block): block for block in encoder.transformer_layers}.values())
    others = (getattr(encoder, name, None) for name in ("pooled_dense", "final_layer_norm"))
    above = {id(layer) for layer in (*blocks, *others)}
    bottom = [layer for layer in encoder.layers if layer.weights and id(layer) not in above]
    return [bottom, *([block] for block in blocks)]


def layerwise_learning_rates(model: Any, decay: float = 0.95) -> dict[str, float]:
    """Compute learning rate multipliers that fall from top to bottom (discriminative fine-tuning).

    The head and the pooler get 1, the last of L layers `decay`, the embeddings `decay ** (L + 1)`.
    Layers that share weights (ALBERT) count once.

    Args:
        model: a task model, or a model that contains a `BertBackbone`.
        decay: float, above 0 and at most 1.

    Returns:
        A dict for the argument `learning_rate_multipliers` of the optimizers here.

    >>> from kerasbert.models import BertBackbone
    >>> backbone = BertBackbone(
    ...     vocabulary_size=9, num_layers=2, num_heads=1, hidden_dim=4, intermediate_dim=4
    ... )
    >>> shares = layerwise_learning_rates(backbone, decay=0.5)
    >>> shares["transformer_layer_1"], shares["transformer_layer_0"], shares["token_embedding"]
    (0.5, 0.25, 0.125)

    Source: Howard and Ruder 2018, arXiv 1801.06146; Sun et al. 2019, arXiv 1905.05583.
    """
    if not 0 < decay <= 1:
        raise ValueError(f"decay={decay} must be above 0 and at most 1.")
    levels = _levels(model)
    return {
        layer.path: decay ** (len(levels) - height)
        for height, layers in enumerate(levels)
        for layer in layers
    }


class GradualUnfreezing(keras.callbacks.Callback):
    """Callback that trains the head in the first epoch, then unfreezes layers from the top.

    The embeddings come last. No gradients are computed for frozen weights. When `fit` ends, all
    weights that were trainable before are trainable again. The optimizer keeps its state.

    Args:
        layers_per_epoch: int. Number of layers to unfreeze in each further epoch.

    Example:

    >>> unfreezing = GradualUnfreezing(layers_per_epoch=2)
    >>> # classifier.fit(texts, labels, epochs=8, callbacks=[unfreezing])

    Source: Howard and Ruder 2018, arXiv 1801.06146, section 3.3.
    """

    def __init__(self, layers_per_epoch: int = 1) -> None:
        super().__init__()
        if layers_per_epoch < 1:
            raise ValueError(f"layers_per_epoch={layers_per_epoch} must be at least 1.")
        self.layers_per_epoch = layers_per_epoch

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        model = self.model
        # Top down; weights that were already frozen (LoRA) stay so.
        self._levels = [
            [weight for layer in layers for weight in layer.trainable_weights]
            for layers in reversed(_levels(model))
        ]
        weights = model.trainable_variables
        self._places = {id(weight): place for place, weight in enumerate(weights)}
        optimizer = _inner(model.optimizer)
        if optimizer.use_ema:
            raise ValueError(
                "GradualUnfreezing cannot be combined with use_ema=True, since Keras averages all "
                "weights of an optimizer or none; omit one of the two."
            )
        if not model.optimizer.built:
            model.optimizer.build(weights)
        self._is_free = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        count = epoch * self.layers_per_epoch
        before, self._is_free = self._is_free, min(count, len(self._levels))
        if self._is_free == before:
            return
        new = self._levels[max(count - self.layers_per_epoch, 0) : count]
        for height, weights in enumerate(self._levels):
            for weight in weights:
                weight.trainable = height < count
        optimizer = _inner(self.model.optimizer)
        if isinstance(optimizer, AdamW):
            optimizer.start([weight for weights in new for weight in weights])
        self._retrain()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        for weights in self._levels:
            for weight in weights:
                weight.trainable = True
        self._retrain()

    def _retrain(self):
        """Update the optimizer and the compiled step to the trainable weights."""
        for optimizer in {self.model.optimizer, _inner(self.model.optimizer)}:
            backend.train_only(optimizer, self.model.trainable_variables, self._places)
        self.model.make_train_function(force=True)


def _inner(optimizer):
    return getattr(optimizer, "inner_optimizer", optimizer)
