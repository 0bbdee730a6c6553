"""Choice and replacement of tokens for masked-language modeling.

Shapes: B batch, T tokens, P predictions, V vocabulary size, W words per row (at most T), S possible
sums of word sizes.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.base.errors import check_value
from kerasbert.text import ops

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import ArrayLike

    from kerasbert.base.aliases import Tensor

# Relative probabilities that 1, 2, ... words are masked together.
UNITS = {
    "token": None,
    "word": (1.0,),
    # SpanBERT, arXiv 1907.10529, section 3.1: a geometric distribution with a mean of 3.8.
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
    may_mask_nothing=False,
):
    """Raise a `ValueError` if a setting of `mask_tokens` is invalid."""
    for name, rate in (
        ("mask_selection_rate", mask_selection_rate),
        ("mask_token_rate", mask_token_rate),
        ("random_token_rate", random_token_rate),
    ):
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate <= 1:
            raise ValueError(f"{name}={rate!r} must be a number from 0 to 1.")
    if mask_selection_rate == 0 and not may_mask_nothing:
        raise ValueError("mask_selection_rate=0 leaves nothing to predict; use 0.15, for example.")
    if mask_token_rate + random_token_rate > 1 + 1e-6:
        raise ValueError(
            f"mask_token_rate={mask_token_rate} and random_token_rate={random_token_rate} add up "
            "to more than 1, all of the chosen tokens; lower one of them."
        )
    check_value("mask_selection_length", mask_selection_length, "count?")
    if unit not in tuple(UNITS):
        raise ValueError(f"mask_unit={unit!r} must be one of {', '.join(map(repr, UNITS))}.")


def word_starts(token_ids: ArrayLike, word_edges: Tensor) -> Tensor:
    """Return which tokens begin a word, as a NumPy array or a tensor, like the ids.

    Args:
        token_ids: ints (..., T).
        word_edges: bool (V, 2), from `tokenizer.word_edges()`. Whether a token begins a word, and
            whether the token after it begins a word.

    Returns:
        bool (..., T).

    >>> edges = np.array([[True, True], [True, False], [False, False]])  # , play ##ing
    >>> word_starts(np.array([1, 2, 0, 1]), edges).tolist()
    [True, False, True, True]
    """
    begins, ends = np.asarray(word_edges).T
    after = ops.gather(ends, token_ids)[..., :-1]
    after = ops.concat([ops.ones_like(token_ids[..., :1], "bool"), after], axis=-1)
    return ops.gather(begins, token_ids) | after


def prediction_slots(length, mask_selection_rate, mask_selection_length=None):
    """Return how many of `length` tokens to predict: an int, or a tensor like `length`.

    >>> prediction_slots(128, 0.15), prediction_slots(128, 0.15, 16), prediction_slots(2, 0.15)
    (19, 16, 1)
    """
    most = mask_selection_length
    if not hasattr(length, "dtype"):
        count = max(1, round(mask_selection_rate * length))
        return count if most is None else min(count, most)
    # Rounded in float64, halves to even, as in BERT's code.
    count = ops.round(mask_selection_rate * ops.cast(length, "float64"))
    count = ops.maximum(1, ops.cast(count, "int32"))
    return count if most is None else ops.minimum(count, most)


def mask_tokens(
    token_ids: ArrayLike,
    maskable: Tensor,
    seed: ArrayLike,
    *,
    vocabulary_size: int,
    mask_token_id: int,
    lengths: ArrayLike | None = None,
    mask_selection_rate: float = 0.15,
    mask_selection_length: int | None = None,
    mask_token_rate: float = 0.8,
    random_token_rate: float = 0.1,
    unit: str = "token",
    word_starts: Tensor = None,
) -> dict[str, Any]:
    """Choose tokens to predict, and mask them.

    Results are NumPy arrays or, if an argument is one, TensorFlow tensors with the same masks.

    In a row of n tokens, max(1, round(mask_selection_rate * n)) tokens are chosen, or all maskable
    tokens if there are fewer. Of these, a share of `mask_token_rate` becomes the mask token, a
    share of `random_token_rate` random tokens, and the rest is unchanged.

    `unit` determines which tokens are chosen together:

    - "token": each token is chosen by itself.
    - "word": all word pieces of a word.
    - "span": 1 to 10 consecutive words, with the length distribution of SpanBERT.
    - "ngram": 1 to 3 consecutive words; the probability of n words is proportional to 1 / n, as in
      ALBERT.

    Except with "token", only whole words are chosen, in random order, and the number of tokens is
    still exact: a word is skipped if it is too long, or if no later words could make up the rest.
    The last span may be cut between words. If no set of whole words has this number of tokens, the
    next smaller one is chosen, which may be 0. No unit crosses a token that is not maskable.

    Tokens of a word or n-gram are replaced independently, as in BERT's and ALBERT's code; those of
    a span all become mask tokens, random tokens, or stay, as in SpanBERT.

    Args:
        token_ids: int32 (B, T).
        maskable: bool (B, T). Whether a token may be chosen; padding and special tokens may not.
        seed: ints (2,). Determines the choice. Or a function of a shape (4, B, T) that returns
            random numbers, at least 0 and below 1.
        vocabulary_size: int.
        mask_token_id: int.
        lengths: int32 (B,). n of each row, special tokens included; `None` means the maskable
            tokens plus two.
        mask_selection_rate: float. With 0, nothing is masked, and P is `mask_selection_length`, or
            1 if that is `None`.
        mask_selection_length: maximum number of tokens per row; `None` means no maximum.
        mask_token_rate: float.
        random_token_rate: float.
        unit: string.
        word_starts: bool (B, T). Whether a token begins a word, from the function `word_starts` or,
            for Chinese, a word segmenter. `None`: each token does.

    Returns:
        A dict of `token_ids` (B, T), with the chosen tokens masked; `mask_positions` int32 (B, P),
        ascending; `mask_ids` int32 (B, P), the original tokens; `mask_weights` float32 (B, P). P
        depends only on T. Unused entries are 0.

    Raises:
        ValueError: if a rate is not from 0 to 1, if the unit is unknown, or if it is "word" and
            there are no `word_starts`.

    >>> ids, free = [[1, 5, 6, 7, 2]], [[False, True, True, True, False]]
    >>> hidden = mask_tokens(
    ...     ids, free, (0, 0), vocabulary_size=9, mask_token_id=3, mask_selection_rate=0.4,
    ...     mask_token_rate=1.0, random_token_rate=0.0,
    ... )
    >>> hidden["mask_positions"].shape, int((hidden["token_ids"] == 3).sum())
    ((1, 2), 2)

    Source: Devlin et al. 2019, arXiv 1810.04805, appendix A.1; dynamic masking as in RoBERTa,
    arXiv 1907.11692; whole words as announced with google-research/bert in May 2019; spans Joshi
    et al. 2020, arXiv 1907.10529; n-grams Lan et al. 2020, arXiv 1909.11942.
    """
    check_rates(
        mask_selection_rate,
        mask_token_rate,
        random_token_rate,
        mask_selection_length,
        unit,
        may_mask_nothing=True,
    )
    if unit == "word" and word_starts is None:
        raise ValueError(
            "unit='word' needs word_starts, the tokens that begin a word; find them with "
            "kerasbert.data.word_starts(token_ids, tokenizer.word_edges())."
        )
    token_ids = ops.convert_to_tensor(token_ids, "int32")
    maskable = ops.convert_to_tensor(maskable)
    if mask_selection_rate == 0:
        maskable = ops.zeros_like(maskable)
    candidates = ops.reduce_sum(ops.cast(maskable, "int32"), axis=1)  # (B,)
    lengths = candidates + 2 if lengths is None else ops.convert_to_tensor(lengths)
    count = prediction_slots(lengths, mask_selection_rate, mask_selection_length)
    length = _shape(token_ids)[1]
    slots = prediction_slots(length, mask_selection_rate, mask_selection_length)
    if mask_selection_rate == 0:
        slots = ops.minimum(mask_selection_length or 1, length)
    count = ops.minimum(ops.minimum(count, candidates), slots)
    if not callable(seed):
        seed = functools.partial(ops.stateless_uniform, seed=seed)
    draws = seed((4, *_shape(token_ids)))
    roll = draws[2]  # (B, T), decides mask token, random token or no change
    if unit == "token":
        chosen = _choose(maskable, count, slots, draws[0])  # (B, T)
    else:
        starts = ops.ones_like(maskable) if word_starts is None else word_starts
        word, sizes, breaks = _words(maskable, ops.convert_to_tensor(starts))
        span = _spans(UNITS[unit], breaks, draws[3])  # (B, W)
        chosen = _choose_words(sizes, span, count, draws[0])  # (B, W)
        chosen = maskable & ops.gather(chosen, word, batch_dims=1)  # (B, T)
        if unit == "span":
            roll = ops.gather(roll, ops.gather(span, word, batch_dims=1), batch_dims=1)
    random_ids = ops.cast(draws[1] * vocabulary_size, "int32")
    hidden = ops.where(roll < mask_token_rate + random_token_rate, random_ids, token_ids)
    hidden = ops.where(roll < mask_token_rate, mask_token_id, hidden)
    # First positions are the largest, so `top_k` returns them in order.
    backwards = length - ops.range(length)
    backwards, positions = ops.top_k(ops.where(chosen, backwards, 0), k=slots)  # (B, P)
    used = backwards > 0
    positions = ops.where(used, positions, 0)
    return {
        "token_ids": ops.where(chosen, hidden, token_ids),
        "mask_positions": positions,
        "mask_ids": ops.where(used, ops.gather(token_ids, positions, batch_dims=1), 0),
        "mask_weights": ops.cast(used, "float32"),
    }


def _choose(maskable, count, slots, draws):
    """Choose `count` (B,) maskable tokens per row, but at most `slots`: bool (B, T)."""
    length = _shape(maskable)[1]
    order = ops.where(maskable, _distinct(draws) + ops.range(length, dtype="int64"), -1)
    best, _ = ops.top_k(order, k=slots)  # (B, P)
    last = ops.gather(best, ops.maximum(count - 1, 0), batch_dims=1)
    return maskable & (order >= last[:, None])


def _distinct(draws):
    """Return random numbers (B, T) as distinct int64, so that counts are exact."""
    return ops.cast(draws * 2**23, "int64") * ops.cast(_shape(draws)[1], "int64")


# === Words and spans ===


def _words(maskable, starts):
    """Number the words of each row.

    Returns:
        The index of each token's word (B, T), the tokens per word (B, W; 0 if unused), and whether
        a word follows a token that is not maskable (B, W).
    """
    after_break = maskable & ~ops.pad(maskable, [[0, 0], [1, 0]])[:, :-1]
    starts = (maskable & starts) | after_break
    word = ops.maximum(ops.cumsum(ops.cast(starts, "int32"), axis=1) - 1, 0)
    sizes = _sum_by(word, ops.cast(maskable, "int32"))
    return word, sizes, _sum_by(word, ops.cast(after_break, "int32")) > 0


def _sum_by(index, values):
    """Sum the values (B, T) of each index (B, T) into (B, W), W = T."""
    rows, length = _shape(index)
    index = index + length * ops.range(rows)[:, None]
    return ops.reshape(ops.unsorted_segment_sum(values, index, rows * length), (rows, length))


def _spans(odds, breaks, draws):
    """Divide rows of words into random spans, which end at breaks: span numbers (B, W)."""
    rows, length = _shape(breaks)
    places = ops.tile(ops.range(length)[None], [rows, 1])  # (B, W)
    if len(odds) == 1:
        return places
    odds = np.array(odds) / sum(odds)

    def drawn(odds, draws):
        limits = np.cumsum(odds)[:-1].astype("float32")
        return 1 + ops.reduce_sum(ops.cast(draws[..., None] >= limits, "int32"), axis=-1)

    # A row begins inside a span, whose rest has other probabilities.
    left = np.cumsum(odds[::-1])[::-1]
    lengths = [drawn(left / left.sum(), draws[:, :1]), drawn(odds, draws[:, 1:])]
    ends = ops.cumsum(ops.concat(lengths, axis=1), axis=1)
    span = ops.searchsorted(ends, places, side="right")
    span += ops.maximum(ops.cumsum(ops.cast(breaks, "int32"), axis=1) - 1, 0)
    return ops.minimum(span, length - 1)  # Only positions after the last word are above.


def _choose_words(sizes, span, count, draws):
    """Choose words, of sizes (B, W), that together have `count` (B,) tokens: bool (B, W)."""
    order = ops.gather(_distinct(draws), span, batch_dims=1) + ops.cast(span, "int64")
    # `top_k` returns equal numbers in order, so the words of a span stay in order.
    _, order = ops.top_k(ops.where(sizes > 0, order, -1), k=_shape(sizes)[1])
    sizes = ops.gather(sizes, order, batch_dims=1)
    taken, left = _fill(sizes, count)
    taken = ops.cond(
        ops.reduce_any(left > 0),
        lambda: _fill_exactly(sizes, count, taken, left),
        lambda: taken,
    )
    return _sum_by(order, ops.cast(taken, "int32")) > 0


def _fill(sizes, count):
    """Take words in order, skipping those that would exceed `count` tokens.

    Args:
        sizes: int32 (B, W). Number of tokens of each word.
        count: int32 (B,).

    Returns:
        `(taken, left)`: bool (B, W); and int32 (B,), how many tokens are missing.
    """

    def take(taken, left, _):
        # `left` only shrinks, so longer words are skipped for good. Of the others, those before the
        # first that is too much are taken.
        fits = ~taken & (sizes > 0) & (sizes <= left[:, None])
        taken_now = fits & (ops.cumsum(ops.where(fits, sizes, 0), axis=1) <= left[:, None])
        left = left - ops.reduce_sum(ops.where(taken_now, sizes, 0), axis=1)
        return taken | taken_now, left, ops.reduce_any(taken_now)

    start = ops.zeros_like(sizes, "bool"), count, ops.convert_to_tensor(True)
    return ops.while_loop(lambda taken, left, going: going, take, start)[:2]


def _fill_exactly(sizes, count, taken, left):
    """Choose again in rows where tokens are missing, by an exact solution of subset sum.

    A word is skipped if no later words could make up the rest exactly. Rows that `_fill` has
    completed would stay the same.
    """
    rows = ops.where(left > 0)  # (R, 1)
    sizes, count = ops.gather_nd(sizes, rows), ops.gather_nd(count, rows)
    num_words = ops.reduce_max(ops.reduce_sum(ops.cast(sizes > 0, "int32"), axis=1))
    by_word = ops.transpose(sizes[:, :num_words])  # (W, R)
    sums = ops.range(ops.reduce_max(count) + 1)  # (S,)

    def reach(after, sizes):
        """Return which sums this word and later ones can make up: bool (R, S)."""
        without = sums - sizes[:, None]
        return after | (ops.gather(after, ops.maximum(without, 0), batch_dims=1) & (without >= 0))

    nothing = ops.zeros_like(count)[:, None] == sums  # (R, S)
    reached = ops.scan(reach, by_word, nothing, reverse=True)  # (W, R, S)
    after = ops.concat([reached[1:], nothing[None]], axis=0)
    possible = reached[0] & (sums <= count[:, None])
    most = ops.reduce_max(ops.where(possible, sums, 0), axis=1)  # (R,)

    def take(state, word):
        (_, left), (sizes, after) = state, word
        rest = left - sizes
        takes = (sizes > 0) & (rest >= 0)
        takes &= ops.gather(after, ops.maximum(rest, 0), batch_dims=1)
        return takes, ops.where(takes, rest, left)

    exact, _ = ops.scan(take, (by_word, after), (most > 0, most))  # (W, R)
    exact = ops.pad(ops.transpose(exact), [[0, 0], [0, _shape(taken)[1] - num_words]])
    return ops.tensor_scatter_nd_update(taken, rows, exact)


def _shape(x):
    """Return the sizes of an array: ints if static, else tensors."""
    if not ops.is_tensor(x):
        return list(x.shape)
    dynamic = ops.shape(x)
    return [dynamic[i] if size is None else size for i, size in enumerate(x.shape)]
