"""Masked tokens: which are to be predicted, and what the model sees in their place.

B batch, T tokens, P predictions, V tokens of the vocabulary, W words of a row (at most T),
S sums of sizes of words.
"""

import functools

import numpy as np

from kerasbert._errors import check_value
from kerasbert.backend.tensorflow import tf

# What is hidden together: the odds of 1, 2, ... words.
UNITS = {
    "token": None,
    "word": (1.0,),
    # SpanBERT, arXiv 1907.10529, section 3.1: geometric, 3.8 on average.
    "span": tuple(0.2 * 0.8**length for length in range(10)),
    # ALBERT, arXiv 1909.11942, section 4.1.
    "ngram": (1.0, 1 / 2, 1 / 3),
}


def check_rates(
    mask_selection_rate,
    mask_token_rate,
    random_token_rate,
    mask_selection_length=None,
    unit="token",
    may_hide_nothing=False,
):
    """Raise a ValueError for settings of `mask_tokens` that make no sense."""
    for name, rate in (
        ("mask_selection_rate", mask_selection_rate),
        ("mask_token_rate", mask_token_rate),
        ("random_token_rate", random_token_rate),
    ):
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate <= 1:
            raise ValueError(f"{name}={rate!r} has to be a number from 0 to 1.")
    if mask_selection_rate == 0 and not may_hide_nothing:
        raise ValueError("mask_selection_rate=0 leaves nothing to predict; use 0.15, for example.")
    if mask_token_rate + random_token_rate > 1 + 1e-6:
        raise ValueError(
            f"mask_token_rate={mask_token_rate} and random_token_rate={random_token_rate} add up "
            "to more than 1, the share of all chosen tokens; lower one of them."
        )
    check_value("mask_selection_length", mask_selection_length, "count?")
    if unit not in tuple(UNITS):
        raise ValueError(
            f"mask_unit={unit!r} is no unit of masking; use one of {', '.join(map(repr, UNITS))}."
        )


def word_starts(token_ids, word_edges):
    """Which tokens begin a word, in NumPy or TensorFlow as the ids are.

    Args:
        token_ids: ints (..., T).
        word_edges: bool (V, 2), of `tokenizer.word_edges()`: whether a token begins a word, and
            whether one begins after it.

    Returns:
        bool (..., T).

    >>> edges = np.array([[True, True], [True, False], [False, False]])  # , play ##ing
    >>> word_starts(np.array([1, 2, 0, 1]), edges).tolist()
    [True, False, True, True]
    """
    begins, ends = np.asarray(word_edges).T
    if isinstance(token_ids, np.ndarray):
        after = np.roll(ends[token_ids], 1, axis=-1)
        after[..., :1] = True
        return begins[token_ids] | after
    after = tf.gather(ends, token_ids)[..., :-1]
    after = tf.concat([tf.ones_like(token_ids[..., :1], tf.bool), after], axis=-1)
    return tf.gather(begins, token_ids) | after


def prediction_slots(length, mask_selection_rate, mask_selection_length=None):
    """How many tokens to predict in rows of `length` tokens: an int, or a tensor of that shape.

    >>> prediction_slots(128, 0.15), prediction_slots(128, 0.15, 16), prediction_slots(2, 0.15)
    (19, 16, 1)
    """
    most = mask_selection_length
    if not hasattr(length, "dtype"):
        count = max(1, round(mask_selection_rate * length))
        return count if most is None else min(count, most)
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
    unit="token",
    word_starts=None,
):
    """Choose tokens to predict and hide them, eagerly or in a graph, anew for each seed.

    In a row of n tokens, max(1, round(mask_selection_rate * n)) are chosen, but no more than are
    maskable. Of these, a share of `mask_token_rate` becomes the mask token, of
    `random_token_rate` any token of the vocabulary, and the rest stays.

    `unit` says what is chosen together:

    - "token": nothing, each by itself.
    - "word": the pieces of a word.
    - "span": 1 to 10 words in a row, of lengths as in SpanBERT.
    - "ngram": 1 to 3 words in a row, n with odds of 1 / n as in ALBERT.

    A word is whole or not chosen at all, and the number of tokens is as exact as for "token": the
    words come in random order, spans as such, and one that would overshoot, or leave a rest that
    no words after it add up to, is skipped. So the last span of a row may be cut, between words.
    Only where no choice of whole words has that number, it is the largest below it that has:
    none in a row with one word, which is too long. No unit crosses a token that is not maskable.

    Each token of a word or n-gram becomes the mask token, another or itself on its own, as in
    BERT's and ALBERT's code; a span does so as a whole, each of its tokens becoming another one,
    as in SpanBERT.

    Args:
        token_ids: int32 (B, T).
        maskable: bool (B, T). What may be chosen: no padding, no special token.
        seed: ints (2,). The same seed hides the same. Or a function of a shape (4, B, T), that
            draws numbers from 0, below 1.
        vocabulary_size: int.
        mask_token_id: int.
        lengths: int32 (B,). n of each row, special tokens included; `None` takes the maskable
            tokens and two more.
        mask_selection_rate: float. 0 hides nothing; P is `mask_selection_length` then, or 1.
        mask_selection_length: int. The most tokens to choose in a row; `None` for no such limit.
        mask_token_rate: float.
        random_token_rate: float.
        unit: string.
        word_starts: bool (B, T). The tokens that begin a word; for those of a vocabulary, the
            function `word_starts` finds them, and for Chinese those who segmented the text. `None`
            makes each token a word.

    Returns:
        A dict of `token_ids` (B, T), with the chosen ones hidden; `mask_positions` int32 (B, P),
        ascending; `mask_ids` int32 (B, P), the tokens that were there; `mask_weights` float32
        (B, P). P depends on T alone. Slots that are not used come last, with zeros in all three.

    Raises:
        ValueError: for a rate outside 0 to 1, an unknown unit, and words without `word_starts`.

    >>> ids, free = [[1, 5, 6, 7, 2]], [[False, True, True, True, False]]
    >>> hidden = mask_tokens(
    ...     ids, free, (0, 0), vocabulary_size=9, mask_token_id=3, mask_selection_rate=0.4,
    ...     mask_token_rate=1.0, random_token_rate=0.0,
    ... )
    >>> hidden["mask_positions"].shape, int((hidden["token_ids"].numpy() == 3).sum())
    (TensorShape([1, 2]), 2)

    Source: Devlin et al. 2019, arXiv 1810.04805, appendix A.1; anew in every epoch as in RoBERTa,
    arXiv 1907.11692; whole words as announced with google-research/bert in May 2019; spans Joshi
    et al. 2020, arXiv 1907.10529; n-grams Lan et al. 2020, arXiv 1909.11942.
    """
    check_rates(
        mask_selection_rate,
        mask_token_rate,
        random_token_rate,
        mask_selection_length,
        unit,
        may_hide_nothing=True,
    )
    if unit == "word" and word_starts is None:
        raise ValueError(
            "unit='word' needs word_starts, which tokens begin a word; find them with "
            "kerasbert.data.word_starts(token_ids, tokenizer.word_edges())."
        )
    token_ids = tf.convert_to_tensor(token_ids, tf.int32)
    maskable = tf.convert_to_tensor(maskable)
    if mask_selection_rate == 0:
        maskable = tf.zeros_like(maskable)
    candidates = tf.reduce_sum(tf.cast(maskable, tf.int32), axis=1)  # (B,)
    lengths = candidates + 2 if lengths is None else tf.convert_to_tensor(lengths)
    count = prediction_slots(lengths, mask_selection_rate, mask_selection_length)
    length = _shape(token_ids)[1]
    slots = prediction_slots(length, mask_selection_rate, mask_selection_length)
    if mask_selection_rate == 0:
        slots = tf.minimum(mask_selection_length or 1, length)
    count = tf.minimum(tf.minimum(count, candidates), slots)
    if not callable(seed):
        # The same generator on every device.
        seed = functools.partial(tf.random.stateless_uniform, seed=seed, alg="philox")
    draws = seed((4, *_shape(token_ids)))
    roll = draws[2]  # (B, T), of 80/10/10
    if unit == "token":
        chosen = _choose(maskable, count, slots, draws[0])  # (B, T)
    else:
        starts = tf.ones_like(maskable) if word_starts is None else word_starts
        word, sizes, breaks = _words(maskable, tf.convert_to_tensor(starts))
        span = _spans(UNITS[unit], breaks, draws[3])  # (B, W)
        chosen = _choose_words(sizes, span, count, draws[0])  # (B, W)
        chosen = maskable & tf.gather(chosen, word, batch_dims=1)  # (B, T)
        if unit == "span":
            roll = tf.gather(roll, tf.gather(span, word, batch_dims=1), batch_dims=1)
    random_ids = tf.cast(draws[1] * vocabulary_size, tf.int32)
    hidden = tf.where(roll < mask_token_rate + random_token_rate, random_ids, token_ids)
    hidden = tf.where(roll < mask_token_rate, mask_token_id, hidden)
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
    length = _shape(maskable)[1]
    order = tf.where(maskable, _distinct(draws) + tf.range(length, dtype=tf.int64), -1)
    best, _ = tf.math.top_k(order, k=slots)  # (B, P)
    last = tf.gather(best, tf.maximum(count - 1, 0), batch_dims=1)
    return maskable & (order >= last[:, None])


def _distinct(draws):
    """Draws (B, T) as int64 so far apart that places added to them keep all different.

    The counts are exact though numbers may be drawn twice.
    """
    return tf.cast(draws * 2**23, tf.int64) * tf.cast(_shape(draws)[1], tf.int64)


# === Words and spans ===


def _words(maskable, starts):
    """Number the words of each row.

    Returns:
        The word of each token (B, T), the tokens of each word (B, W), 0 for those that there are
        not, and whether each word comes after a token that is not maskable (B, W).
    """
    after_break = maskable & ~tf.pad(maskable, [[0, 0], [1, 0]])[:, :-1]
    starts = (maskable & starts) | after_break
    word = tf.maximum(tf.cumsum(tf.cast(starts, tf.int32), axis=1) - 1, 0)
    sizes = _sum_by(word, tf.cast(maskable, tf.int32))
    return word, sizes, _sum_by(word, tf.cast(after_break, tf.int32)) > 0


def _sum_by(index, values):
    """Sums (B, W) of the values (B, T) of each index (B, T), W = T."""
    rows, length = _shape(index)
    index += length * tf.range(rows)[:, None]
    return tf.reshape(tf.math.unsorted_segment_sum(values, index, rows * length), (rows, length))


def _spans(odds, breaks, draws):
    """Cut rows of words into spans of random lengths, anew after a break: their numbers (B, W)."""
    rows, length = _shape(breaks)
    places = tf.tile(tf.range(length)[None], [rows, 1])  # (B, W)
    if len(odds) == 1:
        return places
    odds = np.array(odds) / sum(odds)

    def drawn(odds, draws):
        limits = np.cumsum(odds)[:-1].astype("float32")
        return 1 + tf.reduce_sum(tf.cast(draws[..., None] >= limits, tf.int32), axis=-1)

    # A row begins anywhere in a span: what is left of it has other odds.
    left = np.cumsum(odds[::-1])[::-1]
    lengths = [drawn(left / left.sum(), draws[:, :1]), drawn(odds, draws[:, 1:])]
    ends = tf.cumsum(tf.concat(lengths, axis=1), axis=1)
    span = tf.searchsorted(ends, places, side="right")
    span += tf.maximum(tf.cumsum(tf.cast(breaks, tf.int32), axis=1) - 1, 0)
    return tf.minimum(span, length - 1)  # Less already, but past the last word.


def _choose_words(sizes, span, count, draws):
    """Choose words of the sizes (B, W) with `count` (B,) tokens in all: bool (B, W)."""
    order = tf.gather(_distinct(draws), span, batch_dims=1) + tf.cast(span, tf.int64)
    # Of equal numbers the first comes first: the words of a span stay in order.
    _, order = tf.math.top_k(tf.where(sizes > 0, order, -1), k=_shape(sizes)[1])
    sizes = tf.gather(sizes, order, batch_dims=1)
    taken, left = _fill(sizes, count)
    taken = tf.cond(
        tf.reduce_any(left > 0),
        lambda: _fill_exactly(sizes, count, taken, left),
        lambda: taken,
    )
    return _sum_by(order, tf.cast(taken, tf.int32)) > 0


def _fill(sizes, count):
    """Take words in order, but for those that overshoot.

    Args:
        sizes: int32 (B, W).
        count: int32 (B,).

    Returns:
        `(taken, left)`, bool (B, W) and int32 (B,), what `count` has more than is taken.
    """

    def take(taken, left, _):
        # What is too long now is too long later: up to the first that overshoots, all are taken.
        fits = ~taken & (sizes > 0) & (sizes <= left[:, None])
        taken_now = fits & (tf.cumsum(tf.where(fits, sizes, 0), axis=1) <= left[:, None])
        left -= tf.reduce_sum(tf.where(taken_now, sizes, 0), axis=1)
        return taken | taken_now, left, tf.reduce_any(taken_now)

    start = tf.zeros_like(sizes, tf.bool), count, tf.constant(True)
    return tf.while_loop(lambda taken, left, going: going, take, start)[:2]


def _fill_exactly(sizes, count, taken, left):
    """Do the rows with something left again, and take no word that the rest cannot fill up.

    That is a sum of subsets, and exact. A row that `_fill` fills would come out as it does.
    """
    rows = tf.where(left > 0)  # (R, 1)
    sizes, count = tf.gather_nd(sizes, rows), tf.gather_nd(count, rows)
    num_words = tf.reduce_max(tf.reduce_sum(tf.cast(sizes > 0, tf.int32), axis=1))
    by_word = tf.transpose(sizes[:, :num_words])  # (W, R)
    sums = tf.range(tf.reduce_max(count) + 1)  # (S,)

    def reach(after, sizes):
        """The sums that words make from those that the words after them make: bool (R, S)."""
        without = sums - sizes[:, None]
        return after | (tf.gather(after, tf.maximum(without, 0), batch_dims=1) & (without >= 0))

    nothing = tf.zeros_like(count)[:, None] == sums  # (R, S)
    reached = tf.scan(reach, by_word, nothing, reverse=True)  # (W, R, S)
    after = tf.concat([reached[1:], nothing[None]], axis=0)
    possible = reached[0] & (sums <= count[:, None])
    most = tf.reduce_max(tf.where(possible, sums, 0), axis=1)  # (R,)

    def take(state, word):
        (_, left), (sizes, after) = state, word
        rest = left - sizes
        takes = (sizes > 0) & (rest >= 0)
        takes &= tf.gather(after, tf.maximum(rest, 0), batch_dims=1)
        return takes, tf.where(takes, rest, left)

    exact, _ = tf.scan(take, (by_word, after), (most > 0, most))  # (W, R)
    exact = tf.pad(tf.transpose(exact), [[0, 0], [0, _shape(taken)[1] - num_words]])
    return tf.tensor_scatter_nd_update(taken, rows, exact)


def _shape(x):
    """The sizes of a tensor, those that are known as ints."""
    dynamic = tf.shape(x)
    return [dynamic[i] if size is None else size for i, size in enumerate(x.shape)]
