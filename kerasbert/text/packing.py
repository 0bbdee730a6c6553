"""Packing of tokens into rows: `Frame` (the special tokens), truncation and padding.

Shapes: B rows, T tokens of a row.
"""

from typing import NamedTuple

from kerasbert.text import ops

ROW_SETTINGS = ("sequence_length", "truncate", "num_segments")
TRUNCATE = {
    "longest_first": "longest_first",
    "only_second": "only_second",
    "only_first": "only_first",
    "round_robin": "round_robin",
    "waterfall": "only_second",
}


class Frame(NamedTuple):
    """The ids of the special tokens around the texts of a row.

    A text A is packed as `before A after`, a pair as `before A between begin B after`, where
    `begin B after` has segment 1.

    >>> Frame(before=(2,), between=(3,), after=(3,)).count(2)
    3
    """

    before: tuple = ()
    between: tuple = ()
    begin: tuple = ()
    after: tuple = ()

    def count(self, texts):
        """Return the number of special tokens in a row of one or two texts."""
        return sum(map(len, self)) if texts == 2 else len(self.before) + len(self.after)

    @property
    def first(self):
        """The number of special tokens before A."""
        return len(self.before)

    @property
    def second(self):
        """The number of special tokens before B."""
        return len(self.before + self.between + self.begin)


def layouts(tokenizer, second=1):
    """Return the layouts of rows of a text and of a pair of texts.

    Args:
        tokenizer: a tokenizer of `kerasbert.tokenizers`.
        second: int. The segment of the second text.

    Returns:
        Two lists of `(token, segment)`; the token is `None` for a text.
    """
    if not getattr(tokenizer, "marks_ends", True):
        return [(None, 0)], [(None, 0), (None, second)]
    if getattr(tokenizer, "marks_last", False):
        cls, sep = tokenizer.cls_token, tokenizer.sep_token
        single = [(None, 0), (sep, 0), (cls, 2)]
        return single, [*single[:2], (None, 1), (sep, 1), (cls, 2)]
    before, between, begin, after = (
        [tokenizer.id_to_token(id) for id in part] for part in tokenizer.frame
    )
    first = [(token, 0) for token in (*before, None)]
    pair = [*first, *((token, 0) for token in between)]
    pair += [(token, second) for token in (*begin, None, *after)]
    return [*first, *((token, 0) for token in after)], pair


def kept_lengths(lengths, room, truncate):
    """Return how many tokens of each text truncation keeps.

    Args:
        lengths: list of one or two int32 (B,). Number of tokens of each text.
        room: number of tokens that fit, without special tokens.
        truncate: a value of `TRUNCATE`.

    Returns:
        A list of int32 (B,).

    >>> [int(kept) for kept in kept_lengths([5, 9], 7, "longest_first")]
    [3, 4]
    """
    if len(lengths) == 1:
        return [ops.minimum(lengths[0], room)]
    a, b = lengths
    if truncate in ("longest_first", "round_robin"):
        half = (room + 1) // 2
        if truncate == "longest_first":
            half = ops.where(b < a, half, room // 2)
        a = ops.minimum(a, ops.maximum(half, room - b))
    elif truncate == "only_second":
        a = ops.minimum(a, room)
    else:
        a = ops.minimum(a, room - ops.minimum(b, room))
    return [a, ops.minimum(b, room - a)]


def pack_rows(values, starts, counts, frame, pad, length, has_second=True):
    """Join the texts of each row with special tokens, and pad.

    Args:
        values: list of int32 arrays, the tokens of all texts.
        starts: list of one or two int32 (B, 1). Where each text begins in the concatenated
            `values`.
        counts: list of one or two int32 (B, 1). Number of tokens of each text.
        frame: a `Frame`.
        pad: int. The padding token.
        length: int. T; every row must fit.
        has_second: bool (B, 1). Whether a row has a second text, whose count is 0 if not.

    Returns:
        A dict of `token_ids`, int32 (B, T); `padding_mask`, bool (B, T), true for tokens;
        `is_second`, bool (B, T), true for the second text and its special tokens, `None` if there
        is none; and `lengths`, int32 (B, 1).
    """
    values = ops.concat([*values, [*sum(frame, ()), pad]], axis=0)
    empty = ops.size(values) - 1
    before, after = empty - frame.count(2), empty - len(frame.after)
    position = ops.range(length)[None]  # (1, T)
    # Index in `values` of each position's token, corrected part by part.
    first, is_second = frame.first, None
    index = ops.where(position < first, before + position, starts[0] + position - first)
    ends = first + counts[0]  # (B, 1), where A ends
    if len(counts) == 2:
        index = ops.where(position < ends, index, before + first + position - ends)
        second = ends + (frame.second - first)  # (B, 1), where B begins
        if has_second is not True:
            second = ops.where(has_second, second, ends)
        index = ops.where(position < second, index, starts[1] + position - second)
        is_second = position >= second - len(frame.begin)
        ends = second + counts[1]
    index = ops.where(position < ends, index, after + position - ends)
    lengths = ends + len(frame.after)
    used = position < lengths
    if is_second is not None:
        is_second &= used if has_second is True else used & has_second
    return {
        "token_ids": ops.gather(values, ops.where(used, index, empty)),
        "padding_mask": used,
        "is_second": is_second,
        "lengths": lengths,
    }
