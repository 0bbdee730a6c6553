"""Optimizers and schedules for BERT: decay exclusions, warmup, rates by layer, unfreezing.

The cosine with warmup is Keras' own: `keras.optimizers.schedules.CosineDecay(0.0, steps - warmup,
warmup_target=5e-5, warmup_steps=warmup)`; so are clipping (`global_clipnorm`) and
`gradient_accumulation_steps`. Schedules count batches, also where gradients are accumulated.
"""

import math

import keras
import numpy as np
from keras import ops

from kerasbert import backend, private_names
from kerasbert._errors import check_value, check_whole
from kerasbert._keywords import ChecksKeywords

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

#: The weights that do not decay, by the last parts of their paths.
NO_DECAY = ("bias", "gamma", "beta")

#: The peak for encoders that record none: the middle of the paper's three for its Base and Large
#: (arXiv 1810.04805, appendix A.3). Small encoders want ten times as much and more.
FINETUNING_LEARNING_RATE = 3e-5

#: What one weight of an encoder here holds several matrices of.
MUON_PARTS = {"qkv": 3}


class _ByWeight(ChecksKeywords):
    """Mixin, first among the bases: which weights decay, and at what share of the rate each trains.

    A name stands for a weight whose path holds it as whole parts: "bias" for each bias,
    "transformer_layer_1" for all of that layer.
    """

    def __init__(self, *args, no_decay=NO_DECAY, learning_rate_multipliers=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.no_decay = tuple(no_decay or ())
        self.learning_rate_multipliers = learning_rate_multipliers
        for name, value in self._multipliers().items():
            if value < 0:
                raise ValueError(
                    f"learning_rate_multipliers['{name}'] is {value}; pass a share of the "
                    "learning rate, from 0."
                )
        self._decays, self._shares = {}, {}

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        for variable in variables:
            key, path = private_names.variable_key(self, variable), f"/{variable.path}/"
            self._decays[key] = not any(f"/{name}/" in path for name in self.no_decay)
            self._shares[key] = 1.0
            for name, value in self._multipliers().items():
                if f"/{name}/" in path:
                    self._shares[key] *= value

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        """Set `no_decay`; here names are whole parts of a path, and a saved model keeps them."""
        if self.built:
            raise ValueError(
                "The optimizer is built already, and what decays is settled; call "
                "exclude_from_weight_decay() before training, or pass no_decay."
            )
        self.no_decay = (*(variable.path for variable in var_list or ()), *(var_names or ()))

    def get_config(self):
        return {
            **super().get_config(),
            "no_decay": list(self.no_decay),
            "learning_rate_multipliers": self._multipliers() or None,
        }

    def _multipliers(self):
        return dict(self.learning_rate_multipliers or {})

    def _use_weight_decay(self, variable):
        return self._decays[private_names.variable_key(self, variable)]

    def _groups(self, variables, kind):
        """`(kind, positions)` of the variables that are of a kind; one group in most cases."""
        groups = {}
        for position, variable in enumerate(variables):
            groups.setdefault(kind(private_names.variable_key(self, variable)), []).append(position)
        return groups.items()

    def _clip_gradients(self, grads):
        # TensorFlow gives the gradient of an embedding by place, a token's once for each of its
        # places, and Keras takes norm and square of those, not of their sum: adding sums.
        grads = [ops.add(g, 0.0) if hasattr(g, "dense_shape") else g for g in grads]
        grads = backend.sum_over_replicas(grads)
        if (self.global_clipnorm or 0) > 0 and not (self.clipnorm or self.clipvalue):
            return backend.clip_by_global_norm(grads, self.global_clipnorm)
        return super()._clip_gradients(grads)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        # Keras would clip on each device of a TensorFlow strategy, then sum: see above.
        return grads_and_vars

    def _apply_weight_decay(self, variables):
        if not self.weight_decay:
            return
        decay, decayed = self.weight_decay, [v for v in variables if self._use_weight_decay(v)]
        for share, rows in self._groups(decayed, self._shares.get):
            weights = [decayed[i] for i in rows]
            if not backend.decay(weights, decay * share, lambda: self.learning_rate):
                # Keras multiplies the decay by the rate.
                self.weight_decay = decay * share
                super()._apply_weight_decay(weights)
        self.weight_decay = decay

    def _backend_update_step(self, grads, variables, learning_rate):
        for share, rows in self._groups(variables, self._shares.get):
            super()._backend_update_step(
                [grads[i] for i in rows], [variables[i] for i in rows], learning_rate * share
            )


# On torch `keras.optimizers.AdamW(...)` makes an object of a faster class, which its subclasses
# are not of.
_KerasAdamW = private_names.class_made_by(keras.optimizers.AdamW)


def _filled(beta, steps):
    """`1 - beta ** steps`, how full an average is; exact, where a power in float32 is not."""
    return -ops.expm1(steps * (math.log(beta) if beta else -math.inf))


class _Adam(_KerasAdamW):
    """Adam's step: of corrected averages, with epsilon after the correction, or of plain ones.

    Keras adds epsilon to the root before the correction, which makes it up to 30 times as large in
    the first steps: with 1e-6 that moves the losses of fine-tuning by thousandths.
    """

    def __init__(self, *args, bias_correction=True, **kwargs):
        super().__init__(*args, **kwargs)
        self.bias_correction = bias_correction
        self._starts = {}

    def start(self, variables):
        """Count the steps of these weights, which did not train until now, from here.

        Their averages are empty; without this Adam would correct them as if they were full, and
        the first updates would be up to 6 times the learning rate.
        """
        now = int(ops.convert_to_numpy(self.iterations))
        self._starts.update(
            {private_names.variable_key(self, variable): now for variable in variables}
        )

    def _backend_update_step(self, grads, variables, learning_rate):
        for start, rows in self._groups(variables, lambda key: self._starts.get(key, 0)):
            # Once for all these weights; Keras hands the pair on to the steps below as it is.
            pair = self._rate_and_epsilon(learning_rate, start)
            super()._backend_update_step(
                [grads[i] for i in rows], [variables[i] for i in rows], pair
            )

    def _rate_and_epsilon(self, rate, start):
        """Those that make `rate * mean / (sqrt(square) + epsilon)` the step, of plain averages."""
        if not self.bias_correction:
            return rate, self.epsilon
        betas = self.beta_1, self.beta_2
        if self._is_fused():  # It has `1 - beta` in float32, 0.001 only to 5 digits.
            betas = map(float, np.float32(betas))
        steps = ops.cast(self.iterations + 1 - start, "float32")
        filled_1, filled_2 = (_filled(beta, steps) for beta in betas)
        root = ops.sqrt(filled_2)
        return rate * root / filled_1, self.epsilon * root

    def _is_fused(self):
        return backend.has("adam_step") and not self.amsgrad

    def update_step(self, gradient, variable, learning_rate):
        mean, square, *highest = private_names.averages(self, variable)
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
        """All weights of a rate at once, which Keras has on PyTorch alone."""
        slots = zip(*(private_names.averages(self, variable) for variable in variables))
        slots = [[slot.value for slot in same] for same in slots]
        variables = [variable.value for variable in variables]
        backend.adam_steps(variables, grads, self.beta_1, self.beta_2, *learning_rate, *slots)

    def get_config(self):
        return {**super().get_config(), "bias_correction": self.bias_correction}


@keras.saving.register_keras_serializable(package="kerasbert")
class AdamW(_ByWeight, _Adam):
    """Adam with decoupled decay of all weights but biases and norms, clipped: as BERT trains.

    It steps as `torch.optim.AdamW`, with which transformers fine-tunes; with
    `bias_correction=False` as the optimizer of BERT's released code, which pre-trained it.

    Args:
        learning_rate: float, or a schedule such as `LinearDecay`.
        weight_decay: float.
        beta_1: float.
        beta_2: float.
        epsilon: float. Added to the root of the average of squares, after its correction.
        bias_correction: bool. Whether averages, which start at 0, are divided by how full they are.
        global_clipnorm: float. The most that the norm of all gradients together may be.
        no_decay: list of names of weights, or parts of their paths, that do not decay.
        learning_rate_multipliers: dict of parts of paths to shares of the rate; see
            `layerwise_learning_rates`.
        **kwargs: as in `keras.optimizers.AdamW`, for example `gradient_accumulation_steps`.

    Saved models keep all of these.

    Example:

    >>> optimizer = AdamW(LinearDecay(5e-5, steps=1000, warmup_steps=100))
    >>> optimizer.get_config()["no_decay"]
    ['bias', 'gamma', 'beta']

    Source: Loshchilov and Hutter 2019, arXiv 1711.05101; Devlin et al. 2019, arXiv 1810.04805.
    """

    def __init__(
        self,
        learning_rate=5e-5,
        weight_decay=0.01,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        bias_correction=True,
        global_clipnorm=1.0,
        no_decay=NO_DECAY,
        learning_rate_multipliers=None,
        **kwargs,
    ):
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
    """LAMB, for large batches: each weight's update, its decay included, is as long as the weight.

    `keras.optimizers.Lamb` leaves the decay out of what it scales. As in BERT's training, weights
    that do not decay are not scaled either.

    Args:
        learning_rate: float, or a schedule such as `LinearDecay`.
        weight_decay: float.
        beta_1: float.
        beta_2: float.
        epsilon: float.
        global_clipnorm: float. The most that the norm of all gradients together may be.
        no_decay: list of names of weights, or parts of their paths, that do not decay.
        learning_rate_multipliers: dict of parts of paths to shares of the rate; see
            `layerwise_learning_rates`.
        **kwargs: as in `keras.optimizers.Lamb`, for example `gradient_accumulation_steps`.

    Example:

    >>> Lamb(LinearDecay(1e-3, steps=1000, warmup_steps=100)).weight_decay
    0.01

    Source: You et al. 2020, arXiv 1904.00962, algorithm 2.
    """

    def __init__(
        self,
        learning_rate=1e-3,
        weight_decay=0.01,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        global_clipnorm=1.0,
        no_decay=NO_DECAY,
        learning_rate_multipliers=None,
        **kwargs,
    ):
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
        pass  # It is a part of the update.

    def update_step(self, gradient, variable, learning_rate):
        dtype = variable.dtype
        rate, gradient = ops.cast(learning_rate, dtype), ops.cast(gradient, dtype)
        steps = ops.cast(self.iterations + 1, "float32")
        mean, square = private_names.averages(self, variable)
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
    """Muon: the step of a matrix is its averaged gradient, with all singular values made alike.

    What is no matrix between two hidden states (biases, norms, embeddings, the last layer of a
    head) steps by Adam. Steps of matrices are as long as Adam's usually are (`rms_rate`), so one
    rate and one decay are for both. Adam corrects its averages here, as that of Keras does. Without
    that, as `pretrain` has it for "adamw", some hundred first steps are longer: compare the two at
    rates of their own.

    To `keras.optimizers.Muon` this adds what all optimizers here have, and `parts`: queries, keys
    and values are one matrix in this package, and each of the three is made alike by itself.

    Args:
        learning_rate: float, or a schedule such as `LinearDecay`.
        weight_decay: float. Also of what steps by Adam.
        momentum: float. The share of a matrix' average of gradients that stays at each step.
        epsilon: float. Of Adam.
        global_clipnorm: float. The most that the norm of all gradients together may be.
        parts: dict of parts of paths to ints: into how many matrices of equal width a weight is
            cut, such as `{"qkv": 3}`.
        exclude_layers: list of expressions; a weight steps by Adam where one is found in its path.
        no_decay: list of names of weights, or parts of their paths, that do not decay.
        learning_rate_multipliers: dict of parts of paths to shares of the rate; see
            `layerwise_learning_rates`.
        **kwargs: as in `keras.optimizers.Muon`, for example `ns_steps`.

    Example:

    >>> optimizer = Muon(LinearDecay(1e-3, steps=1000, warmup_steps=100))
    >>> optimizer.get_config()["parts"]
    {'qkv': 3}

    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; lengths of steps Liu et
    al. 2025, arXiv 2502.16982.
    """

    def __init__(
        self,
        learning_rate=1e-3,
        weight_decay=0.01,
        momentum=0.95,
        epsilon=1e-6,
        global_clipnorm=1.0,
        parts=MUON_PARTS,
        exclude_layers=("logits", "mlm_head/decoder"),
        no_decay=NO_DECAY,
        learning_rate_multipliers=None,
        **kwargs,
    ):
        super().__init__(
            learning_rate,
            weight_decay=weight_decay,
            # Keras has two decays; here `_ByWeight` decays all alike.
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

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        for variable in variables:
            if private_names.steps_by_adam(self, variable):
                continue
            path, width = f"/{variable.path}/", variable.shape[1]
            cut = math.prod(count for name, count in self.parts.items() if f"/{name}/" in path)
            if width % cut:
                raise ValueError(
                    f"'{variable.path}' is {width} wide, and parts={self.parts} would cut it into "
                    f"{cut} matrices; leave that out."
                )
            self._cuts[private_names.variable_key(self, variable)] = cut

    def _muon_update_step(self, gradient, variable, lr, m):
        cut = self._cuts[private_names.variable_key(self, variable)]
        gradient = ops.cast(gradient, variable.dtype)
        self.assign_add(m, gradient + (self.momentum - 1) * m)
        step = gradient + self.momentum * m if self.nesterov else m
        steps = [
            self.lr_adjust(self.zeropower_via_newtonschulz5(part, self.ns_steps))
            for part in ops.split(step, cut, axis=1)
        ]
        self.assign_sub(variable, ops.cast(lr, variable.dtype) * ops.concatenate(steps, axis=1))

    def get_config(self):
        config = {**super().get_config(), "parts": self.parts}
        del config["adam_weight_decay"]
        return config


# === Schedules ===


def _triangle(step, peak, end):
    """From 0 at step 0 to 1 at `peak`, to 0 at `end`, and 0 after it."""
    step = ops.cast(step, "float32")
    rise, fall = step / max(peak, 1), (end - step) / max(end - peak, 1)
    return ops.maximum(ops.where(step < peak, rise, fall), 0.0)


def _check_steps(steps):
    if steps < 1:
        raise ValueError(f"steps={steps} has to be the number of batches of the training, from 1.")


@keras.saving.register_keras_serializable(package="kerasbert")
class LinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """The rate rises from 0 over the warmup, then falls to 0 at the last step.

    Args:
        learning_rate: float. The peak.
        steps: int. Batches of the whole training, the warmup's too: batches an epoch times epochs.
        warmup_steps: int.
        start: int. The step that all this counts from, for an optimizer that has trained before.

    Example:

    >>> schedule = LinearDecay(1.0, steps=10, warmup_steps=2)
    >>> [round(float(schedule(step)), 3) for step in (0, 1, 2, 6, 10, 11)]
    [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]
    """

    def __init__(self, learning_rate, steps, warmup_steps=0, start=0):
        super().__init__()
        _check_steps(steps)
        if not 0 <= warmup_steps <= steps:
            raise ValueError(
                f"warmup_steps={warmup_steps} has to be from 0 to the {steps} steps of the "
                "whole training."
            )
        self.learning_rate = learning_rate
        self.steps = steps
        self.warmup_steps = warmup_steps
        self.start = start

    def __call__(self, step):
        step = ops.cast(step - self.start, "float32")
        return self.learning_rate * _triangle(step, self.warmup_steps, self.steps)

    def get_config(self):
        return {
            "learning_rate": self.learning_rate,
            "steps": self.steps,
            "warmup_steps": self.warmup_steps,
            "start": self.start,
        }


@keras.saving.register_keras_serializable(package="kerasbert")
class WarmupStableDecay(keras.optimizers.schedules.LearningRateSchedule):
    """The rate rises from 0 over the warmup, stays, and falls to 0 over the last steps.

    Until the fall begins nothing hangs on how long the training is to be. It falls as one minus
    the root of the share of the fall that is done: fast at first.

    Args:
        learning_rate: float. The peak.
        steps: int. Batches of the whole training, the warmup's and those of the fall too.
        warmup_steps: int.
        decay_steps: int. Batches of the fall.
        start: int. The step that all this counts from, for an optimizer that has trained before.

    Example:

    >>> schedule = WarmupStableDecay(1.0, steps=10, warmup_steps=2, decay_steps=4)
    >>> [round(float(schedule(step)), 3) for step in (0, 1, 2, 6, 7, 10, 11)]
    [0.0, 0.5, 1.0, 1.0, 0.5, 0.0, 0.0]

    Source: Hu et al. 2024, arXiv 2404.06395; the form of the fall Hägele et al. 2024, arXiv
    2405.18392.
    """

    def __init__(self, learning_rate, steps, warmup_steps=0, decay_steps=0, start=0):
        super().__init__()
        _check_steps(steps)
        check_whole("warmup_steps", warmup_steps, 0)
        check_whole("decay_steps", decay_steps, 0)
        if warmup_steps + decay_steps > steps:
            raise ValueError(
                f"warmup_steps={warmup_steps} and decay_steps={decay_steps} are more than the "
                f"{steps} steps of the whole training; lower one of them."
            )
        self.learning_rate = learning_rate
        self.steps = steps
        self.warmup_steps = warmup_steps
        self.decay_steps = decay_steps
        self.start = start

    def __call__(self, step):
        step = ops.cast(step - self.start, "float32")
        fallen = (step - (self.steps - self.decay_steps)) / max(self.decay_steps, 1)
        fall = 1.0 - ops.sqrt(ops.clip(fallen, 0.0, 1.0))
        rise = step / max(self.warmup_steps, 1)
        return self.learning_rate * ops.where(step < self.warmup_steps, rise, fall)

    def get_config(self):
        return {
            "learning_rate": self.learning_rate,
            "steps": self.steps,
            "warmup_steps": self.warmup_steps,
            "decay_steps": self.decay_steps,
            "start": self.start,
        }


@keras.saving.register_keras_serializable(package="kerasbert")
class SlantedTriangular(keras.optimizers.schedules.LearningRateSchedule):
    """ULMFiT's schedule: a short rise from a low rate, and a long fall back to it.

    Args:
        learning_rate: float. The peak.
        steps: int. Batches of the whole training: batches an epoch times epochs.
        cut_frac: float. The share of the steps in which the rate rises.
        ratio: float. The peak over the lowest rate.

    Example:

    >>> schedule = SlantedTriangular(1.0, steps=100)
    >>> [round(float(schedule(step)), 3) for step in (0, 5, 10, 55, 100)]
    [0.031, 0.516, 1.0, 0.516, 0.031]

    Source: Howard and Ruder 2018, arXiv 1801.06146, equation 3.
    """

    def __init__(self, learning_rate, steps, cut_frac=0.1, ratio=32):
        super().__init__()
        _check_steps(steps)
        if not 0 < cut_frac < 1 or int(steps * cut_frac) < 1:
            raise ValueError(
                f"cut_frac={cut_frac} of {steps} steps leaves no step for the rise or the fall; "
                "use a share between 0 and 1 that makes at least one step."
            )
        if ratio < 1:
            raise ValueError(f"ratio={ratio} has to be 1 or more, the peak over the lowest rate.")
        self.learning_rate = learning_rate
        self.steps = steps
        self.cut_frac = cut_frac
        self.ratio = ratio

    def __call__(self, step):
        cut = int(self.steps * self.cut_frac)
        share = _triangle(step, cut, cut / self.cut_frac)
        return self.learning_rate * (1 + share * (self.ratio - 1)) / self.ratio

    def get_config(self):
        return {
            "learning_rate": self.learning_rate,
            "steps": self.steps,
            "cut_frac": self.cut_frac,
            "ratio": self.ratio,
        }


@keras.saving.register_keras_serializable(package="kerasbert")
class WarmupInverseSqrt(keras.optimizers.schedules.LearningRateSchedule):
    """The rate rises from 0 over the warmup, then falls with the root of the step.

    The paper's own has the peak `hidden_dim**-0.5 * warmup_steps**-0.5`, and Adam with
    `beta_1=0.9, beta_2=0.98, epsilon=1e-9`.

    Args:
        learning_rate: float. The peak, at the end of the warmup.
        warmup_steps: int.

    Example:

    >>> schedule = WarmupInverseSqrt(1.0, warmup_steps=4)
    >>> [round(float(schedule(step)), 3) for step in (0, 1, 4, 16, 64)]
    [0.0, 0.25, 1.0, 0.5, 0.25]

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 5.3.
    """

    def __init__(self, learning_rate, warmup_steps=4000):
        super().__init__()
        check_value("learning_rate", learning_rate, "positive")
        check_whole("warmup_steps", warmup_steps)
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps

    def __call__(self, step):
        share = ops.cast(step, "float32") / self.warmup_steps
        return self.learning_rate * ops.minimum(share, ops.rsqrt(ops.maximum(share, 1e-9)))

    def get_config(self):
        return {"learning_rate": self.learning_rate, "warmup_steps": self.warmup_steps}


# === Layers apart ===


def _levels(model):
    """The encoder's layers from the bottom: the embeddings', then each block's, as lists.

    All else, the head, the pooler and a last norm, is above them.
    """
    layers = [getattr(model, "backbone", None), model, *getattr(model, "layers", [])]
    encoder = next((layer for layer in layers if hasattr(layer, "transformer_layers")), None)
    if encoder is None:
        raise ValueError(
            f"{type(model).__name__} '{model.name}' has no encoder of kerasbert whose layers "
            "could be told apart; pass a task model, a `BertBackbone` or a model with one inside."
        )
    blocks = list({id(block): block for block in encoder.transformer_layers}.values())
    others = (getattr(encoder, name, None) for name in ("pooled_dense", "final_layer_norm"))
    above = {id(layer) for layer in (*blocks, *others)}
    bottom = [layer for layer in encoder.layers if layer.weights and id(layer) not in above]
    return [bottom, *([block] for block in blocks)]


def layerwise_learning_rates(model, decay=0.95):
    """Shares of the learning rate that fall from layer to layer (discriminative fine-tuning).

    The head and the pooler train at the full rate, the last of L layers at `decay` times it, the
    embeddings at `decay ** (L + 1)`. Layers that share weights (ALBERT) count once.

    Args:
        model: a task model, or a model with a `BertBackbone` inside.
        decay: float.

    Returns:
        A dict for the argument `learning_rate_multipliers` of an optimizer here.

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
        raise ValueError(f"decay={decay} has to be above 0 and at most 1.")
    levels = _levels(model)
    return {
        layer.path: decay ** (len(levels) - height)
        for height, layers in enumerate(levels)
        for layer in layers
    }


class GradualUnfreezing(keras.callbacks.Callback):
    """Trains the head in the first epoch, and one more of the encoder's layers in each after it.

    The embeddings come last. What does not train yet costs no gradients; when `fit` ends, all
    that was trainable before is so again. The state of the optimizer stays.

    Args:
        layers_per_epoch: int. The number of layers that each epoch adds.

    Example:

    >>> unfreezing = GradualUnfreezing(layers_per_epoch=2)
    >>> # classifier.fit(texts, labels, epochs=8, callbacks=[unfreezing])

    Source: Howard and Ruder 2018, arXiv 1801.06146, section 3.3.
    """

    def __init__(self, layers_per_epoch=1):
        super().__init__()
        if layers_per_epoch < 1:
            raise ValueError(f"layers_per_epoch={layers_per_epoch} has to be at least 1.")
        self.layers_per_epoch = layers_per_epoch

    def on_train_begin(self, logs=None):
        model = self.model
        # From the top; weights that do not train anyway (LoRA) are left alone.
        self._levels = [
            [weight for layer in layers for weight in layer.trainable_weights]
            for layers in reversed(_levels(model))
        ]
        weights = model.trainable_variables
        self._places = {id(weight): place for place, weight in enumerate(weights)}
        optimizer = _inner(model.optimizer)
        if optimizer.use_ema:
            raise ValueError(
                "GradualUnfreezing does not go with use_ema=True: Keras averages all weights of "
                "an optimizer or none; leave one of the two out."
            )
        if not model.optimizer.built:
            model.optimizer.build(weights)
        self._is_free = None

    def on_epoch_begin(self, epoch, logs=None):
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

    def on_train_end(self, logs=None):
        for weights in self._levels:
            for weight in weights:
                weight.trainable = True
        self._retrain()

    def _retrain(self):
        """Let the compiled step follow what is trainable."""
        for optimizer in {self.model.optimizer, _inner(self.model.optimizer)}:
            backend.train_only(optimizer, self.model.trainable_variables, self._places)
        self.model.make_train_function(force=True)


def _inner(optimizer):
    return getattr(optimizer, "inner_optimizer", optimizer)
