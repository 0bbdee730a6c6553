"""Structural probe: syntactic distances and depths of words, from token embeddings.

B batch, T tokens, W words, D width, R rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.base.errors import check_choice, check_whole
from kerasbert.base.keywords import ChecksKeywords

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor

PROBES = ("distance", "depth")


@keras.saving.register_keras_serializable(package="kerasbert")
class WordMean(ChecksKeywords, keras.layers.Layer):
    """Layer that computes word embeddings: the mean of a word's subword embeddings, or zeros
    without any.

    Example:

    >>> x = np.array([[[9.0], [1.0], [3.0], [4.0]]])
    >>> words = WordMean()(x, starts=np.array([[1, 3, 0]]), counts=np.array([[2, 1, 0]]))
    >>> [float(v) for v in words[0, :, 0]]
    [2.0, 4.0, 0.0]
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.built = True

    def call(self, inputs: Tensor, starts: Tensor, counts: Tensor) -> Tensor:
        """Map (B, T, D) to (B, W, D).

        Args:
            inputs: floats (B, T, D).
            starts: ints (B, W). Position of each word's first subword.
            counts: ints (B, W). Number of subwords per word, 0 for padding.
        """
        places = ops.arange(ops.shape(inputs)[1], dtype="int32")  # (T,)
        starts, counts = (ops.cast(x, "int32")[..., None] for x in (starts, counts))  # (B, W, 1)
        inside = (places >= starts) & (places < starts + counts)  # (B, W, T)
        shares = ops.cast(inside, "float32") / ops.cast(ops.maximum(counts, 1), "float32")
        return ops.matmul(ops.cast(shares, inputs.dtype), inputs)

    def compute_output_spec(self, inputs: Tensor, starts: Tensor, counts: Tensor) -> Any:
        shape = (inputs.shape[0], starts.shape[1], inputs.shape[-1])
        return keras.KerasTensor(shape, dtype=self.compute_dtype)


@keras.saving.register_keras_serializable(package="kerasbert")
class StructuralProbe(ChecksKeywords, keras.layers.Layer):
    """Layer that computes squared distances or norms of word embeddings after a learned map B.

    `|B (h_i - h_j)|^2` predicts the number of edges between two words in the parse tree, and `|B
    h_i|^2` a word's depth. B is initialized uniformly between -0.05 and 0.05, and always float32.

    Args:
        kind: "distance" or "depth".
        rank: R, the rank of B (D, R).

    Example:

    >>> words = np.ones((2, 5, 8), "float32")
    >>> tuple(StructuralProbe("distance", 3)(words).shape)
    (2, 5, 5)
    >>> tuple(StructuralProbe("depth", 3)(words).shape)
    (2, 5)

    Source: Hewitt and Manning 2019, "A Structural Probe for Finding Syntax in Word
    Representations", NAACL.
    """

    def __init__(self, kind: str = "distance", rank: int = 64, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_choice("kind", kind, PROBES)
        check_whole("rank", rank)
        self.kind = kind
        self.rank = rank

    def build(self, inputs_shape: Any) -> None:
        self.projection = self.add_weight(
            name="projection",
            shape=(inputs_shape[-1], self.rank),
            initializer=keras.initializers.RandomUniform(-0.05, 0.05),
            autocast=False,
        )

    def call(self, inputs: Tensor) -> Tensor:
        """Map (B, W, D) to distances (B, W, W) or depths (B, W), float32."""
        x = ops.matmul(ops.cast(inputs, self.projection.dtype), self.projection)  # (B, W, R)
        if self.kind == "depth":
            return ops.sum(ops.square(x), axis=-1)
        # |a|^2 + |b|^2 - 2ab would be imprecise for small distances.
        return ops.sum(ops.square(x[:, :, None, :] - x[:, None, :, :]), axis=-1)

    def compute_output_spec(self, inputs: Tensor) -> Any:
        batch, words, _ = inputs.shape
        shape = (batch, words, words) if self.kind == "distance" else (batch, words)
        return keras.KerasTensor(shape, dtype=self.variable_dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "kind": self.kind, "rank": self.rank}
