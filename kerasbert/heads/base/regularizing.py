"""Regularization of fine-tuning: adversarial training and R-Drop.

B batch, T tokens, C classes.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from typing import TYPE_CHECKING

import keras
from keras import ops

import kerasbert.distribution as distribution
from kerasbert import backend
from kerasbert.backend.layers import at_least_float32
from kerasbert.base.errors import ADVERSARIES, check_choice, check_value
from kerasbert.heads.base.head_metrics import (
    CLASSES,
    NUMBERS,
    PLACES,
    SEVERAL,
    TOKEN_CLASSES,
    TOKEN_FLAGS,
)
from kerasbert.losses.logits import MeanOfWeights

if TYPE_CHECKING:
    from typing import Any

# Whether the current batch has each row twice.
_IS_DOUBLED = contextvars.ContextVar("_IS_DOUBLED", default=False)


@dataclasses.dataclass(frozen=True)
class Regularizer:
    """Arguments of `BertTask.compile` for adversarial training and R-Drop.

    >>> Regularizer("fgm").adversarial_strength
    1.0
    """

    adversarial: str | None = None
    adversarial_strength: float | None = None
    r_drop: float = 0.0

    def __post_init__(self):
        strength = self.adversarial_strength
        if self.adversarial is None and strength is not None:
            raise ValueError(
                f"adversarial_strength={strength!r} needs adversarial='fgm' or 'awp'; pass one, or "
                "omit the strength."
            )
        if self.adversarial is not None:
            check_choice("adversarial", self.adversarial, ADVERSARIES)
            strength = ADVERSARIES[self.adversarial] if strength is None else strength
            object.__setattr__(self, "adversarial_strength", strength)
            check_value("adversarial_strength", strength, "positive")
        check_value("r_drop", self.r_drop, "number")

    def check(self, task: Any) -> None:
        """Raise if the regularization does not fit a task."""
        if self.adversarial == "fgm" and not word_embeddings(task):
            raise ValueError(
                f"adversarial='fgm' perturbs word embeddings, but {type(task).__name__} has no "
                "floating-point table of them; use 'awp', which perturbs the trained weights."
            )
        if not self.r_drop:
            return
        forms = {form and form[0] for form in _by_output(task.metric_forms(), [""])}
        if not task.allows_r_drop or not forms <= _DIVERGENCES.keys():
            raise ValueError(
                f"r_drop={self.r_drop} compares the classes or scores of each row, which "
                f"{type(task).__name__} does not predict; omit it."
            )
        if getattr(task, "crf", False):
            raise ValueError(
                f"r_drop={self.r_drop} compares the class probabilities of each token, but a CRF "
                "scores whole sequences; omit r_drop, or use crf=False."
            )
        if not task.gives_logits():
            raise ValueError(
                f"r_drop={self.r_drop} compares logits, but this {type(task).__name__} was built "
                "with an activation and returns probabilities; build it without."
            )

    def config(self) -> dict[str, Any]:
        """Return the arguments that differ from the defaults."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }

    def perturbations(self, values: list[Any], gradients: list[Any]) -> list[Any]:
        """Return the tensors to add to weights with these values and gradients.

        FGM scales the gradient to the norm `adversarial_strength`. AWP scales each weight's
        gradient to `adversarial_strength` times the weight's norm.
        """
        added = []
        for value, gradient in zip(values, gradients, strict=True):
            if gradient is None:
                added.append(ops.zeros_like(value))
                continue
            gradient = ops.cast(gradient, "float32")
            length = self.adversarial_strength
            if self.adversarial == "awp":
                length = length * ops.norm(ops.cast(value, "float32"))
            # No NaN for a gradient of 0.
            scale = length / (ops.norm(gradient) + 1e-12)
            added.append(ops.cast(gradient * scale, value.dtype))
        return added


def word_embeddings(task):
    """Return a list of the word embeddings; `[]` if missing or quantized."""
    layer = getattr(getattr(task, "backbone", None), "token_embedding", None)
    weights = [] if layer is None else layer.weights
    return [w for w in weights if w.name == "embeddings" and "float" in w.dtype]


def check_devices(task: Any) -> None:
    """Raise if several devices share the steps of adversarial training."""
    # `data_parallel` on PyTorch passes a wrapper.
    is_alone = isinstance(task, keras.Model) and not backend.is_distributed(task)
    if task._running.regularizer.adversarial and not (is_alone and distribution.sharing is None):
        raise ValueError(
            f"adversarial='{task._running.regularizer.adversarial}' trains on one device only; "
            "omit it, or train without a distribution."
        )


def prepare_parts(model: Any, tasks: dict[str, Any]) -> None:
    """Prepare tasks for training as parts of a model, whose steps replace theirs.

    Raises:
        ValueError: if a task was compiled with a regularization.
    """
    name = type(model).__name__
    for part, task in tasks.items():
        for option, value in task._running.regularizer.config().items():
            way = "" if option == "r_drop" else f", and pass it to compile() of the {name}"
            raise ValueError(
                f"The task '{part}' was compiled with {option}={value!r}, which has no effect in a "
                f"{name}; compile the task without it{way}."
            )
        task.forget_calibration()


def train_step(task: Any, *arguments: Any) -> Any:
    """Run Keras' training step, with the task's regularization.

    Args:
        task: a compiled task.
        *arguments: those of Keras' `train_step`, with the batch last.
    """
    regularizer = task._running.regularizer
    with contextlib.ExitStack() as stack:
        if regularizer.r_drop:
            arguments = (*arguments[:-1], _doubled(arguments[-1]))
            stack.callback(_IS_DOUBLED.reset, _IS_DOUBLED.set(True))
        if regularizer.adversarial is None:
            return keras.Model.train_step(task, *arguments)
        check_devices(task)
        is_fgm = regularizer.adversarial == "fgm"
        perturbed = word_embeddings(task) if is_fgm else _matrices(task)
        return backend.adversarial_step(
            task, arguments, perturbed, regularizer.perturbations, keeps_clean=is_fgm
        )


def _matrices(task):
    """Return the trained weights that are not biases or scales of norms."""
    return [weight for weight in task.trainable_weights if len(weight.shape) > 1]


def _doubled(batch):
    """Return a batch with all rows twice."""

    def twice(x):
        return None if x is None else ops.concatenate([x, x], axis=0)

    parts = keras.utils.unpack_x_y_sample_weight(batch)
    return tuple(keras.tree.map_structure(twice, part) for part in parts)


def with_divergence(task: Any, loss: Any, y_pred: Any, sample_weight: Any) -> Any:
    """Add R-Drop's divergence to the loss of a doubled batch."""
    if not _IS_DOUBLED.get():
        return loss
    names = sorted(y_pred) if isinstance(y_pred, dict) else [""]
    rows = zip(
        [y_pred[name] for name in names] if isinstance(y_pred, dict) else [y_pred],
        *(
            _by_output(values, names)
            for values in (
                task.metric_forms(),
                task.loss,
                task._running.loss_weights,
                sample_weight,
            )
        ),
        strict=True,
    )
    for output, form, own_loss, share, weights in rows:
        divergence = _Divergence(form, getattr(own_loss, "reduction", "sum_over_batch_size"))
        first, second = ops.split(output, 2, axis=0)
        weights = None if weights is None else ops.split(weights, 2, axis=0)[0]
        share = task._running.regularizer.r_drop * (1.0 if share is None else share)
        if divergence.reduction == "sum":
            share = 2 * share  # The loss sums both passes.
        loss = loss + ops.cast(share * divergence(first, second, weights), loss.dtype)
    return loss


def _by_output(values, names):
    """Return each output's value from a dict, a list by name, or one value."""
    if isinstance(values, dict):
        return [values.get(name) for name in names] if names != [""] else list(values.values())
    return values if isinstance(values, list) else [values] * len(names)


class _Divergence(MeanOfWeights):
    """Half the symmetric divergence of two predictions, weighted like a loss."""

    def __init__(self, form, reduction):
        super().__init__(name="divergence", reduction=reduction)
        self.function = _DIVERGENCES[form[0]]

    def call(self, y_true, y_pred):
        return self.function(at_least_float32(y_true), at_least_float32(y_pred)) / 2


def _of_classes(logits, others):
    """Compute KL(p || q) + KL(q || p) of distributions over the last axis."""
    first, second = ops.log_softmax(logits, axis=-1), ops.log_softmax(others, axis=-1)
    return ops.sum((ops.exp(first) - ops.exp(second)) * (first - second), axis=-1)


def _of_flags(logits, others):
    """Compute KL(p || q) + KL(q || p) of the probabilities of yes and no."""
    # With two outcomes, it reduces to this product.
    return (ops.sigmoid(logits) - ops.sigmoid(others)) * (logits - others)


def _of_several(logits, others):
    return ops.mean(_of_flags(logits, others), axis=-1)


def _of_numbers(values, others):
    return 2 * ops.square(values - others)


_DIVERGENCES = {
    CLASSES: _of_classes,
    PLACES: _of_classes,
    TOKEN_CLASSES: _of_classes,
    SEVERAL: _of_several,
    TOKEN_FLAGS: _of_flags,
    NUMBERS: _of_numbers,
}
