"""Masked tokens: which are to be predicted, and what the model sees in their place.

B batch, T tokens, P predictions.
"""

from kerasbert._tensorflow import tf_modules


def check_rates(
    mask_selection_rate, mask_token_rate, random_token_rate, mask_selection_length=None
):
    """Raise a ValueError for settings of `mask_tokens` that make no sense."""
    for name, rate in (
        ("mask_selection_rate", mask_selection_rate),
        ("mask_token_rate", mask_token_rate),
        ("random_token_rate", random_token_rate),
    ):
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate <= 1:
            raise ValueError(f"{name}={rate!r} has to be a number from 0 to 1.")
    if mask_selection_rate == 0:
        raise ValueError("mask_selection_rate=0 leaves nothing to predict; use 0.15, for example.")
    if mask_token_rate + random_token_rate > 1 + 1e-6:
        raise ValueError(
            f"mask_token_rate={mask_token_rate} and random_token_rate={random_token_rate} add up "
            "to more than 1, the share of all chosen tokens; lower one of them."
        )
    most = mask_selection_length
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise ValueError(
            f"mask_selection_length={most!r} has to be a whole number from 1, or None."
        )


def prediction_slots(length, mask_selection_rate, mask_selection_length=None):
    """How many tokens to predict in rows of `length` tokens: an int, or a tensor of that shape.

    >>> prediction_slots(128, 0.15), prediction_slots(128, 0.15, 16), prediction_slots(2, 0.15)
    (19, 16, 1)
    """
    most = mask_selection_length
    if not hasattr(length, "dtype"):
        count = max(1, round(mask_selection_rate * length))
        return count if most is None else min(count, most)
    tf, _ = tf_modules("Masking")
    # In float64 and half to even, as Python rounds in the reference.
    count = tf.round(mask_selection_rate * tf.cast(length, tf.float64))
    count = tf.maximum(1, tf.cast(count, tf.int32))
    return count if most is None else tf.minimum(count, most)


def mask_tokens(
    token_ids,
    maskable,
    seed,
    *,
    vocabulary_size,
    mask_token_id,
    lengths=None,
    mask_selection_rate=0.15,
    mask_selection_length=None,
    mask_token_rate=0.8,
    random_token_rate=0.1,
):
    """Choose tokens to predict and hide them, eagerly or in a graph, anew for each seed.

    In a row of n tokens, max(1, round(mask_selection_rate * n)) are chosen, but no more than are
    maskable. Of these, a share of `mask_token_rate` becomes the mask token, of
    `random_token_rate` any token of the vocabulary, and the rest stays.

    Args:
        token_ids: int32 (B, T).
        maskable: bool (B, T). What may be chosen: no padding, no special token.
        seed: ints (2,). The same seed hides the same.
        vocabulary_size: int.
        mask_token_id: int.
        lengths: int32 (B,). n of each row, special tokens included; `None` takes the maskable
            tokens and two more.
        mask_selection_rate: float.
        mask_selection_length: int. The most tokens to choose in a row; `None` for no such limit.
        mask_token_rate: float.
        random_token_rate: float.

    Returns:
        A dict of `token_ids` (B, T), with the chosen ones hidden; `mask_positions` int32 (B, P),
        ascending; `mask_ids` int32 (B, P), the tokens that were there; `mask_weights` float32
        (B, P). P depends on T alone. Slots that are not used come last, with zeros in all three.

    Raises:
        ValueError: for a rate outside 0 to 1.

    >>> ids, free = [[1, 5, 6, 7, 2]], [[False, True, True, True, False]]
    >>> hidden = mask_tokens(
    ...     ids, free, (0, 0), vocabulary_size=9, mask_token_id=3, mask_selection_rate=0.4,
    ...     mask_token_rate=1.0, random_token_rate=0.0,
    ... )
    >>> hidden["mask_positions"].shape, int((hidden["token_ids"].numpy() == 3).sum())
    (TensorShape([1, 2]), 2)

    Source: Devlin et al. 2019, arXiv 1810.04805, appendix A.1; anew in every epoch as in RoBERTa,
    arXiv 1907.11692.
    """
    tf, _ = tf_modules("Masking")
    check_rates(mask_selection_rate, mask_token_rate, random_token_rate, mask_selection_length)
    token_ids = tf.convert_to_tensor(token_ids, tf.int32)
    maskable = tf.convert_to_tensor(maskable)
    candidates = tf.reduce_sum(tf.cast(maskable, tf.int32), axis=1)  # (B,)
    lengths = candidates + 2 if lengths is None else tf.convert_to_tensor(lengths)
    count = prediction_slots(lengths, mask_selection_rate, mask_selection_length)
    length = _shape(token_ids)[1]
    slots = prediction_slots(length, mask_selection_rate, mask_selection_length)
    count = tf.minimum(tf.minimum(count, candidates), slots)
    # The same generator on every device.
    draws = tf.random.stateless_uniform((3, *_shape(token_ids)), seed, alg="philox")
    chosen = _choose(maskable, count, slots, draws[0])  # (B, T)
    random_ids = tf.cast(draws[1] * vocabulary_size, tf.int32)
    hidden = tf.where(draws[2] < mask_token_rate + random_token_rate, random_ids, token_ids)
    hidden = tf.where(draws[2] < mask_token_rate, mask_token_id, hidden)
    # The first positions have the largest numbers.
    backwards = length - tf.range(length)
    backwards, positions = tf.math.top_k(tf.where(chosen, backwards, 0), k=slots)  # (B, P)
    used = backwards > 0
    positions = tf.where(used, positions, 0)
    return {
        "token_ids": tf.where(chosen, hidden, token_ids),
        "mask_positions": positions,
        "mask_ids": tf.where(used, tf.gather(token_ids, positions, batch_dims=1), 0),
        "mask_weights": tf.cast(used, tf.float32),
    }


def _choose(maskable, count, slots, draws):
    """Choose `count` (B,) of the maskable tokens, at most `slots` in a row: bool (B, T)."""
    tf, _ = tf_modules("Masking")
    length = _shape(maskable)[1]
    # The position makes numbers that were drawn twice different: the counts stay exact.
    order = tf.cast(draws * 2**23, tf.int64) * tf.cast(length, tf.int64)
    order = tf.where(maskable, order + tf.range(length, dtype=tf.int64), -1)
    best, _ = tf.math.top_k(order, k=slots)  # (B, P)
    last = tf.gather(best, tf.maximum(count - 1, 0), batch_dims=1)
    return maskable & (order >= last[:, None])


def _shape(x):
    """The sizes of a tensor, those that are known as ints."""
    tf, _ = tf_modules("Masking")
    dynamic = tf.shape(x)
    return [dynamic[i] if size is None else size for i, size in enumerate(x.shape)]
