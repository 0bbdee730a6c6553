"""Replacement of masked tokens by samples of a masked language model, for ELECTRA.

B batch, T tokens, P predictions, V vocabulary size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.base.keywords import ChecksKeywords

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor


@keras.saving.register_keras_serializable(package="kerasbert")
class TokenReplacement(ChecksKeywords, keras.layers.Layer):
    """Replaces masked tokens by samples of the predicted probabilities.

    No gradient flows through the samples, which are random only in training. Position 0 marks an
    empty slot, because the first token is never masked. Of two slots with the same position, the
    first counts.

    Args:
        seed: seed of the samples in training.

    Example:

    >>> logits = np.array([[[0.0, 99.0, 0.0], [0.0, 0.0, 99.0]]], "float32")
    >>> ids, positions = np.array([[0, 0, 0, 0]]), np.array([[1, 3]])
    >>> replaced = TokenReplacement()(logits, token_ids=ids, mask_positions=positions)
    >>> keras.ops.convert_to_numpy(replaced).tolist()
    [[0, 1, 0, 2]]
    """

    def __init__(self, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def call(
        self,
        logits: Tensor,
        token_ids: Tensor,
        mask_positions: Tensor,
        training: bool | None = False,
    ) -> Tensor:
        """Map logits (B, P, V), ids (B, T) and positions (B, P) to int32 (B, T)."""
        logits = ops.cast(ops.stop_gradient(logits), "float32")
        # Inverse transform sampling needs one random number per slot, and makes a small model's
        # step 1.0 to 1.1 times as long. Noise over the vocabulary, as in ELECTRA's code: 1.2 times
        # on JAX, many times under TensorFlow's XLA.
        odds = ops.exp(logits - ops.max(logits, axis=-1, keepdims=True))
        sums = ops.cumsum(odds, axis=-1)  # (B, P, V)
        batch, slots = ops.shape(logits)[:2]
        if training:
            draws = keras.random.uniform((batch, slots), dtype="float32", seed=self.seed_generator)
        else:
            # Multiples of the golden ratio are evenly spread, and the same under every compiler.
            places = ops.arange(batch * slots, dtype="int32") % 32768 * 20251 % 32768
            draws = ops.reshape((ops.cast(places, "float32") + 0.5) / 32768, (batch, slots))
        is_below = ops.cast(sums <= draws[..., None] * sums[..., -1:], "int32")
        drawn = ops.minimum(ops.sum(is_below, axis=-1), logits.shape[-1] - 1)  # (B, P)
        is_hidden, drawn = at_tokens(ops.shape(token_ids)[1], mask_positions, drawn)
        return ops.where(is_hidden, drawn, ops.cast(token_ids, "int32"))

    def compute_output_spec(
        self,
        logits: Tensor,
        token_ids: Tensor,
        mask_positions: Tensor,
        training: bool | None = False,
    ) -> Any:
        return keras.KerasTensor(token_ids.shape, dtype="int32")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "seed": self.seed}


def at_tokens(length, mask_positions, *values):
    """Scatter the values of prediction slots to their tokens.

    Args:
        length: int. T.
        mask_positions: ints (B, P), 0 for an empty slot.
        *values: tensors (B, P).

    Returns:
        A bool (B, T), whether a token has a slot; then each of the values, (B, T), arbitrary
        without a slot.

    >>> found = at_tokens(4, np.array([[3, 1, 0]]), np.array([[7, 8, 9]]))
    >>> [keras.ops.convert_to_numpy(x).tolist() for x in found]
    [[[False, True, False, True]], [[7, 8, 7, 7]]]
    """
    places = ops.arange(1, length, dtype="int32")
    slots = ops.cast(mask_positions, "int32")[:, None] == places[:, None]  # (B, T - 1, P)
    slots = ops.pad(ops.cast(slots, "int32"), [[0, 0], [1, 0], [0, 0]])  # (B, T, P)
    first = ops.argmax(slots, axis=-1)  # Of several slots, the first.
    taken = (ops.take_along_axis(ops.convert_to_tensor(x), first, axis=1) for x in values)
    return ops.any(slots, axis=-1), *taken
