"""Learning rates per layer, and gradual unfreezing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from kerasbert.backend.optimizers import train_only
from kerasbert.optimizers.adam import AdamW

if TYPE_CHECKING:
    from typing import Any


def _levels(model):
    """Return lists of the encoder's layers from the bottom: the embedding layers, then each block.

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

    The multiplier is 1 for the head and the pooler, `decay` for the last of L layers, and
    `decay ** (L + 1)` for the embeddings.
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

    The embeddings come last. Frozen weights get no gradients, and are trainable again after `fit`.
    The optimizer keeps its state.

    Args:
        layers_per_epoch: number of layers to unfreeze in each further epoch.

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
        # Layers from the top; weights that are frozen already (LoRA) stay frozen.
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
        """Make the optimizer and the compiled step follow the trainable weights."""
        for optimizer in {self.model.optimizer, _inner(self.model.optimizer)}:
            train_only(optimizer, self.model.trainable_variables, self._places)
        self.model.make_train_function(force=True)


def _inner(optimizer):
    return getattr(optimizer, "inner_optimizer", optimizer)
