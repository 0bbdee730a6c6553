"""Losses that wrap another loss, for truncated, layerwise and sparse embeddings.

Shapes as in `similarity`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.backend.layers import unit_length
from kerasbert.base.errors import check_choice, check_value

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kerasbert.base.aliases import Dtype, Tensor


class _AroundLoss(keras.losses.Loss):
    """Base class of losses that wrap another one: `loss`, an object or the config of one."""

    def __init__(self, loss: Any, name: str, dtype: Dtype) -> None:
        super().__init__(name=name, reduction=None, dtype=dtype)
        if isinstance(loss, dict):
            loss = keras.saving.deserialize_keras_object(loss)
        if not isinstance(loss, keras.losses.Loss):
            raise ValueError(
                f"loss={loss!r} must be a loss object, such as one of kerasbert.losses."
            )
        if isinstance(loss, AdaptiveLayer):
            own = type(self).__name__
            raise ValueError(
                f"AdaptiveLayer must be the outermost loss, not inside {own}; write "
                f"AdaptiveLayer({own}(...))."
            )
        self.loss = loss

    @property
    def label_range(self) -> Any:
        return getattr(self.loss, "label_range", None)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("reduction")
        return {**config, "loss": keras.saving.serialize_keras_object(self.loss)}


@keras.saving.register_keras_serializable(package="kerasbert")
class Matryoshka(_AroundLoss):
    """Matryoshka loss: the weighted sum of another loss on truncated embeddings.

    Embeddings can then be truncated to any of `dims`. Truncated ones are normalized.

    Args:
        loss: a loss on embeddings.
        dims: list of ints. Lengths to train; should include the full width.
        weights: list of floats, one per length; `None` means 1 each.
        name, dtype: see `keras.losses.Loss`.

    Example:

    >>> from kerasbert.losses import Matryoshka, MultipleNegativesRanking
    >>> vectors = np.stack([np.eye(2, 4), np.eye(2, 4)], axis=1).astype("float32")
    >>> loss = Matryoshka(MultipleNegativesRanking(scale=1.0), [4, 2])
    >>> round(float(loss(np.zeros(2), vectors)), 4)
    0.6265

    Source: Kusupati et al. 2022, arXiv 2205.13147.
    """

    def __init__(
        self,
        loss: Any,
        dims: Sequence[int],
        weights: Sequence[float] | None = None,
        name: str = "matryoshka",
        dtype: Dtype = None,
    ) -> None:
        super().__init__(loss, name, dtype)
        dims = list(dims) if hasattr(dims, "__len__") else [dims]
        for dim in dims:
            check_value("dims", dim, "count")
        weights = [1.0] * len(dims) if weights is None else list(weights)
        if not dims or len(weights) != len(dims):
            raise ValueError(
                f"dims={dims} and weights={weights} must be non-empty lists of the same length."
            )
        self.dims, self.weights = dims, weights

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> Any:
        width = y_pred.shape[-1]
        if max(self.dims) > width:
            raise ValueError(
                f"dims={self.dims} must be at most {width}, the width of the embeddings; "
                f"got {max(self.dims)}."
            )
        has_vectors = len(y_true.shape) == len(y_pred.shape) and y_true.shape[-1] == width
        total = 0.0
        for dim, weight in zip(self.dims, self.weights, strict=True):
            labels = y_true[..., :dim] if has_vectors else y_true
            vectors = unit_length(y_pred[..., :dim])
            total += weight * self.loss(labels, vectors, sample_weight)
        return total

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "dims": self.dims, "weights": self.weights}


class _DivergenceFromLast(keras.losses.Loss):
    """Kullback-Leibler divergence KL(last layer || layer) of embeddings.

    Features divided by the temperature serve as logits. The last layer gets no gradient.
    """

    def __init__(self, temperature, dtype):
        super().__init__(name="divergence", dtype=dtype)
        self.temperature = temperature

    def call(self, last, vectors):
        last = ops.log_softmax(ops.stop_gradient(last) / self.temperature, axis=-1)
        own = ops.log_softmax(vectors / self.temperature, axis=-1)
        found = ops.sum(ops.exp(last) * (last - own), axis=-1)  # (B,) or (B, C)
        return ops.mean(ops.reshape(found, (ops.shape(found)[0], -1)), axis=-1)


# Weight of the loss of layer i; layer 0 is the embedding layer.
LAYER_WEIGHTINGS = {
    "uniform": lambda i: 1.0,
    "log": lambda i: 1 / (1 + math.log(1 + i)),
    "linear": lambda i: 1 / (1 + i),
}


@keras.saving.register_keras_serializable(package="kerasbert")
class AdaptiveLayer(_AroundLoss):
    """Another loss, applied to the embeddings of the last layer and of earlier layers.

    The trained model can be truncated after any layer: `embedder.with_layers(range(3))` keeps the
    first three, which take half the time of six. A `BertTextEmbedder` with `layers="last"` passes
    this loss embeddings (B, C, L + 1, D), or (B, L + 1, D) for single texts, of the embedding layer
    (layer 0) and of L layers, all pooled, projected and normalized alike. Metrics get only the last
    layer's. Wrapped around `Matryoshka`, this is the 2D Matryoshka loss.

    The loss is the sum of `last_layer_weight` times the last layer's loss; `prior_layers_weight`
    times the mean weighted loss of the sampled layers; and for each of these, `kl_div_weight` times
    `kl_temperature` times the Kullback-Leibler divergence from the last layer.

    Args:
        loss: a loss on embeddings.
        n_layers_per_step: number of earlier layers to sample in each step; -1 means all.
        last_layer_weight, prior_layers_weight, kl_div_weight: floats.
        kl_temperature: divisor of embeddings for the divergence; 0 disables it.
        layer_weighting: weight of layer i: "uniform" 1, "log" 1 / (1 + ln(1 + i)), "linear"
            1 / (1 + i).
        seed: seed of the sampling; must be the same in all processes.
        name, dtype: see `keras.losses.Loss`.

    Example:

    >>> from kerasbert.losses import AdaptiveLayer, MultipleNegativesRanking
    >>> texts = np.stack([np.eye(2, 4), np.eye(2, 4)], axis=1)  # (B, C, D)
    >>> layers = np.stack([texts, texts, texts], axis=2).astype("float32")  # (B, C, L + 1, D)
    >>> loss = AdaptiveLayer(MultipleNegativesRanking(scale=1.0))
    >>> round(float(loss(np.zeros(2), layers)), 4)
    0.6265

    Source: Li et al. 2024, "2D Matryoshka Sentence Embeddings", arXiv 2402.14776; names and
    defaults as in sentence-transformers.
    """

    def __init__(
        self,
        loss: Any,
        n_layers_per_step: int = 1,
        last_layer_weight: float = 1.0,
        prior_layers_weight: float = 1.0,
        kl_div_weight: float = 1.0,
        kl_temperature: float = 0.3,
        layer_weighting: str = "uniform",
        seed: int | None = None,
        name: str = "adaptive_layer",
        dtype: Dtype = None,
    ) -> None:
        super().__init__(loss, name, dtype)
        if n_layers_per_step != -1:
            check_value("n_layers_per_step", n_layers_per_step, "count")
        check_choice("layer_weighting", layer_weighting, LAYER_WEIGHTINGS)
        self.settings = {
            "n_layers_per_step": n_layers_per_step,
            "last_layer_weight": last_layer_weight,
            "prior_layers_weight": prior_layers_weight,
            "kl_div_weight": kl_div_weight,
            "kl_temperature": kl_temperature,
            "layer_weighting": layer_weighting,
            "seed": seed,
        }
        for key, value in self.settings.items():
            if key.endswith(("_weight", "_temperature")):
                check_value(key, value, "number")
            setattr(self, key, value)
        self.seed_generator = keras.random.SeedGenerator(seed)

    @property
    def variables(self) -> list[Any]:
        """The random state, which the model that is trained must track."""
        return [self.seed_generator.state]

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> Tensor:
        if len(y_pred.shape) not in (3, 4):
            raise ValueError(
                "AdaptiveLayer expected the embeddings of all layers from a BertTextEmbedder, got "
                f"shape {tuple(y_pred.shape)}; compile other models with the inner loss alone."
            )
        count = y_pred.shape[-2] - 1  # L
        last, layers = y_pred[..., -1, :], y_pred[..., :-1, :]
        weights = ops.convert_to_tensor(
            [LAYER_WEIGHTINGS[self.layer_weighting](i) for i in range(count)], last.dtype
        )
        if 0 < self.n_layers_per_step < count:
            # Layers are selected by indices, not branches, so that one graph is enough.
            order = ops.argsort(keras.random.uniform((count,), seed=self.seed_generator))
            count = self.n_layers_per_step
            layers = ops.take(layers, order[:count], axis=-2)
            weights = ops.take(weights, order[:count])
        weights = weights * (self.prior_layers_weight / count)
        total = self.last_layer_weight * self.loss(y_true, last, sample_weight)
        divergence = self.kl_temperature and _DivergenceFromLast(self.kl_temperature, self.dtype)
        for i in range(count):
            vectors = layers[..., i, :]
            total = total + weights[i] * self.loss(y_true, vectors, sample_weight)
            if divergence:
                found = divergence(last, vectors, sample_weight)
                total = total + self.kl_div_weight * self.kl_temperature * found
        return total

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self.settings}


def flops(vectors: Any) -> Tensor:
    """Return the FLOPS regularizer of sparse embeddings (B, V): the sum of squared mean weights.

    It estimates the cost of retrieval; weights must not be negative.

    >>> float(flops(np.array([[1.0, 0.0], [3.0, 0.0]])))
    4.0

    Source: arXiv 2004.05665, "Minimizing FLOPs to Learn Efficient Sparse Representations".
    """
    return ops.sum(ops.square(ops.mean(vectors, axis=0)))


@keras.saving.register_keras_serializable(package="kerasbert")
class Sparse(_AroundLoss):
    """Another loss plus `flops` regularization of queries and texts, which drives weights to 0.

    Embeddings are (B, C, V), with queries in the first column, or (B, V) for texts only.

    Args:
        loss: a loss on embeddings.
        query_weight: weight of the `flops` of queries; 0 disables it.
        text_weight: weight of the `flops` of texts.
        name, dtype: see `keras.losses.Loss`.

    Example:

    >>> from kerasbert.losses import CosineRegression, Sparse
    >>> vectors = np.array([[[1, 0], [1, 0]], [[1, 0], [1, 0]]], "float32")
    >>> loss = Sparse(CosineRegression(), query_weight=0.5, text_weight=0.25)
    >>> float(loss(np.array([1.0, 1.0]), vectors))
    0.75

    Source: Formal et al. 2021, arXiv 2109.10086; weights as in sentence-transformers' example.
    """

    def __init__(
        self,
        loss: Any,
        query_weight: float = 5e-5,
        text_weight: float = 3e-5,
        name: str = "sparse",
        dtype: Dtype = None,
    ) -> None:
        super().__init__(loss, name, dtype)
        check_value("query_weight", query_weight, "number")
        check_value("text_weight", text_weight, "number")
        self.query_weight, self.text_weight = query_weight, text_weight

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> Any:
        total = self.loss(y_true, y_pred, sample_weight)
        if len(y_pred.shape) == 2:
            return total + self.text_weight * flops(y_pred)
        texts = ops.reshape(y_pred[:, 1:], (-1, y_pred.shape[-1]))
        total = total + self.query_weight * flops(y_pred[:, 0])
        return total + self.text_weight * flops(texts)

    def get_config(self) -> dict[str, Any]:
        weights = {"query_weight": self.query_weight, "text_weight": self.text_weight}
        return {**super().get_config(), **weights}


@keras.saving.register_keras_serializable(package="kerasbert")
class ActiveWords(keras.metrics.Mean):
    """Mean number of nonzero weights of sparse embeddings (B, C, V) or (B, V).

    Example:

    >>> float(ActiveWords()(np.zeros(2), np.array([[0.0, 2.0, 1.0], [0.0, 1.0, 0.0]])))
    1.5
    """

    def __init__(self, name: str = "active_words", dtype: Dtype = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self._direction = "down"

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype}

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> None:
        counts = ops.sum(ops.cast(ops.not_equal(y_pred, 0), "float32"), axis=-1)  # (B, C) or (B,)
        if len(y_pred.shape) == 3:
            counts = ops.mean(counts, axis=1)
        return super().update_state(counts, sample_weight)
