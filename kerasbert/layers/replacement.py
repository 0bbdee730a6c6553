"""Tokens that a language model puts in the place of hidden ones.

B batch, T tokens, P predictions, V tokens of the vocabulary.
"""

import keras
from keras import ops

from kerasbert._keywords import ChecksKeywords


@keras.saving.register_keras_serializable(package="kerasbert")
class TokenReplacement(ChecksKeywords, keras.layers.Layer):
    """Draws a token for each hidden position, by its probability, and puts it there.

    No gradient passes. In training each call draws others; otherwise the same each time, so that
    `evaluate` and `predict` repeat. A slot with position 0 is empty: the first token is a special
    one and never hidden. Of two slots with one position the first counts.

    Args:
        seed: int. Of what is drawn in training.

    Example:

    >>> logits = np.array([[[0.0, 99.0, 0.0], [0.0, 0.0, 99.0]]], "float32")
    >>> ids, positions = np.array([[0, 0, 0, 0]]), np.array([[1, 3]])
    >>> replaced = TokenReplacement()(logits, token_ids=ids, mask_positions=positions)
    >>> keras.ops.convert_to_numpy(replaced).tolist()
    [[0, 1, 0, 2]]
    """

    def __init__(self, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def call(self, logits, token_ids, mask_positions, training=False):
        """Map logits (B, P, V), ids (B, T) and positions (B, P) to int32 (B, T)."""
        logits = ops.cast(ops.stop_gradient(logits), "float32")
        # One number a draw, looked up in the sums of the odds. Noise for each token of the
        # vocabulary, as in ELECTRA's code, made a step of a small model 1.2 times as long on JAX,
        # and many times under TensorFlow's XLA; this 1.0 to 1.1 times.
        odds = ops.exp(logits - ops.max(logits, axis=-1, keepdims=True))
        sums = ops.cumsum(odds, axis=-1)  # (B, P, V)
        batch, slots = ops.shape(logits)[:2]
        if training:
            draws = keras.random.uniform((batch, slots), dtype="float32", seed=self.seed_generator)
        else:
            # Multiples of the golden ratio: as even as can be, and alike however they are compiled.
            places = ops.arange(batch * slots, dtype="int32") % 32768 * 20251 % 32768
            draws = ops.reshape((ops.cast(places, "float32") + 0.5) / 32768, (batch, slots))
        is_below = ops.cast(sums <= draws[..., None] * sums[..., -1:], "int32")
        drawn = ops.minimum(ops.sum(is_below, axis=-1), logits.shape[-1] - 1)  # (B, P)
        is_hidden, drawn = at_tokens(ops.shape(token_ids)[1], mask_positions, drawn)
        return ops.where(is_hidden, drawn, ops.cast(token_ids, "int32"))

    def compute_output_spec(self, logits, token_ids, mask_positions, training=False):
        return keras.KerasTensor(token_ids.shape, dtype="int32")

    def get_config(self):
        return {**super().get_config(), "seed": self.seed}


def at_tokens(length, mask_positions, *values):
    """What stands in the slots of predictions, at the tokens that they are of.

    Args:
        length: int. T.
        mask_positions: ints (B, P), 0 where a slot is empty.
        *values: tensors (B, P).

    Returns:
        bool (B, T), whether a token has a slot; then each of the values at its token, (B, T), and
        any number where there is none.

    >>> found = at_tokens(4, np.array([[3, 1, 0]]), np.array([[7, 8, 9]]))
    >>> [keras.ops.convert_to_numpy(x).tolist() for x in found]
    [[[False, True, False, True]], [[7, 8, 7, 7]]]
    """
    places = ops.arange(1, length, dtype="int32")
    slots = ops.cast(mask_positions, "int32")[:, None] == places[:, None]  # (B, T - 1, P)
    slots = ops.pad(ops.cast(slots, "int32"), [[0, 0], [1, 0], [0, 0]])  # (B, T, P)
    first = ops.argmax(slots, axis=-1)  # Of equal ones the first.
    taken = (ops.take_along_axis(ops.convert_to_tensor(x), first, axis=1) for x in values)
    return ops.any(slots, axis=-1), *taken
