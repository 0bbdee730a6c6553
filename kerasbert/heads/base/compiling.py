"""Losses for `compile`, matched to outputs that are logits or probabilities."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import keras

from kerasbert.heads.base.head_metrics import UnfitMetric

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


class KeepsCompile:
    """Mixin for models with their own `compile`: compile a loaded model as it was saved."""

    def get_compile_config(self) -> dict[str, Any]:
        config = super().get_compile_config()
        if config and isinstance(config.get("optimizer"), dict):
            # `keras.models.clone_model` would pass a separate entry to Keras' own `compile`.
            config["optimizer"]["built"] = self.optimizer is not None and self.optimizer.built
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        # Keras does not compile a loaded model whose class has its own `compile`.
        optimizer = config.get("optimizer")
        is_built = isinstance(optimizer, dict) and optimizer.get("built", False)
        config = keras.saving.deserialize_keras_object(config)
        # Files of version 0.1 store the flag here.
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
    """Return losses for `compile`; named ones get the `from_logits` that fits the task.

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


def _each(parts, fit):
    if isinstance(parts, dict):
        return {name: fit(part) for name, part in parts.items()}
    return type(parts)(fit(part) for part in parts)


def _key(chosen, module):
    """Normalize a name, or that of Keras' own function or class; return `None` for others."""
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
