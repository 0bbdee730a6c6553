"""Losses for `compile` that fit a task's outputs (logits or probabilities)."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import keras

from kerasbert.heads.base.head_metrics import CLASSES, SEVERAL, TOKEN_CLASSES, UnfitMetric
from kerasbert.losses.logits import ClassCrossEntropy, TokenCrossEntropy

if TYPE_CHECKING:
    from typing import Any

_CROSSENTROPIES = {
    "binarycrossentropy": "BinaryCrossentropy",
    "bce": "BinaryCrossentropy",
    "binaryfocalcrossentropy": "BinaryFocalCrossentropy",
    "categoricalcrossentropy": "CategoricalCrossentropy",
    "categoricalfocalcrossentropy": "CategoricalFocalCrossentropy",
    "sparsecategoricalcrossentropy": "SparseCategoricalCrossentropy",
}
# Losses with label smoothing.
_SMOOTHED = (ClassCrossEntropy, TokenCrossEntropy, keras.losses.BinaryCrossentropy)


class KeepsCompile:
    """Mixin for models with their own `compile`, as which a loaded model is compiled."""

    def get_compile_config(self) -> dict[str, Any]:
        config = super().get_compile_config()
        if config and isinstance(config.get("optimizer"), dict):
            # `keras.models.clone_model` would pass another entry to Keras' `compile`.
            config["optimizer"]["built"] = self.optimizer is not None and self.optimizer.built
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        # Keras does not compile loaded models with an own `compile`.
        optimizer = config.get("optimizer")
        saved = optimizer if isinstance(optimizer, dict) else {}
        is_built = saved.get("built", False)
        regularizer = saved.get("regularizer", {})
        config = keras.saving.deserialize_keras_object(config) | regularizer
        # Files of version 0.1 store the flag under this key.
        is_built = config.pop("optimizer_built", is_built)
        try:
            self.compile(**config)
        except UnfitMetric as error:
            warnings.warn(
                "The model was saved with a metric that does not fit, and is loaded without "
                f"metrics: {error}",
                stacklevel=2,
            )
            self.compile(**{**config, "metrics": None, "weighted_metrics": None})
        if is_built:
            self.optimizer.build(self.trainable_variables)


def fitting_losses(task, losses):
    """Return losses for `compile`, with the task's `from_logits` for names.

    Raises:
        ValueError: for a loss object with the wrong `from_logits`.
    """
    if isinstance(losses, (list, tuple, dict)):
        return _each(losses, lambda loss: fitting_losses(task, loss))
    kind = _CROSSENTROPIES.get(_key(losses, keras.losses))
    if kind:
        return getattr(keras.losses, kind)(from_logits=task.gives_logits())
    _check(task, losses, keras.losses.Loss)
    return losses


def smoothed(task, loss, share):
    """Return the default loss of a task with label smoothing.

    Raises:
        ValueError: for a task without classes. Positions and choices are none: logits are very low
            at padding, so smoothing would make the loss huge.
    """
    form = task.metric_forms()
    has_classes = isinstance(form, tuple) and form[0] in (CLASSES, SEVERAL, TOKEN_CLASSES)
    if not has_classes or not isinstance(loss, _SMOOTHED):
        raise ValueError(
            f"label_smoothing={share} needs a cross-entropy of classes, but the default "
            f"loss of this {type(task).__name__} is a different one; omit it."
        )
    return type(loss).from_config({**loss.get_config(), "label_smoothing": share})


def _each(parts, fit):
    if isinstance(parts, dict):
        return {name: fit(part) for name, part in parts.items()}
    return type(parts)(fit(part) for part in parts)


def _key(chosen, module):
    """Return the name of a loss of Keras (name, function or class), or `None`."""
    if not isinstance(chosen, str):
        name = getattr(chosen, "__name__", "")
        if not name or getattr(module, name, None) is not chosen:
            return None
        chosen = name
    return chosen.replace("_", "").lower()


def _check(task, chosen, base):
    if not isinstance(chosen, base):
        return
    try:
        from_logits = chosen.get_config().get("from_logits")
    except NotImplementedError:  # A custom loss without a config.
        return
    if from_logits is None or bool(from_logits) == task.gives_logits():
        return
    given = f"{type(chosen).__name__}(from_logits={bool(from_logits)})"
    if task.gives_logits():
        raise ValueError(
            f"{given} expects probabilities, but this {type(task).__name__} returns logits; pass "
            "from_logits=True, or only the loss's name, which sets it."
        )
    raise ValueError(
        f"{given} expects logits, but this {type(task).__name__} was built with an activation and "
        "returns probabilities; pass from_logits=False, or only the loss's name, which sets it."
    )
