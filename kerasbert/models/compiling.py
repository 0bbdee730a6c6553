"""Losses by name, made to count from logits, which the heads here give."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import keras

from kerasbert.models.head_metrics import UnfitMetric

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
    """Mixin of models with a `compile` of their own: saved, they are compiled as they were."""

    def get_compile_config(self) -> dict[str, Any]:
        config = super().get_compile_config()
        if config and isinstance(config.get("optimizer"), dict):
            # `keras.models.clone_model` gives all other entries to Keras' own `compile`.
            config["optimizer"]["built"] = self.optimizer is not None and self.optimizer.built
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        # Keras does not compile a loaded model whose class has a `compile` of its own.
        optimizer = config.get("optimizer")
        is_built = isinstance(optimizer, dict) and optimizer.get("built", False)
        config = keras.saving.deserialize_keras_object(config)
        # Files of version 0.1 have it here.
        is_built = config.pop("optimizer_built", is_built)
        try:
            self.compile(**config)
        except UnfitMetric as error:
            warnings.warn(
                f"The model was saved with a metric, and loads without metrics: {error}",
                stacklevel=2,
            )
            self.compile(**{**config, "metrics": None, "weighted_metrics": None})
        if is_built:
            self.optimizer.build(self.trainable_variables)


def fitting_losses(task, losses):
    """Losses for `compile`: one given by name counts from logits or probabilities as the task does.

    Raises:
        ValueError: for a loss object that counts from the other.
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
    """A name in one spelling, of a string or of Keras' own function or class; `None` of others."""
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
    except NotImplementedError:  # One of the user's own, that is never saved.
        return
    if from_logits is None or bool(from_logits) == task.gives_logits():
        return
    given = f"{type(chosen).__name__}(from_logits={bool(from_logits)})"
    if task.gives_logits():
        raise ValueError(
            f"{given} takes probabilities, but the outputs of this {type(task).__name__} are "
            "logits; pass from_logits=True, or only the name, which means that here."
        )
    raise ValueError(
        f"{given} takes logits, but this {type(task).__name__} was built with an activation and "
        "gives probabilities; pass from_logits=False, or only the name, which means that here."
    )
