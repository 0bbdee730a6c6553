"""`LongTexts`, the setting for texts that do not fit into a row.

Shapes: N texts, R windows of all texts, W windows of a text, T tokens per row.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerasbert.base.errors import LONG_MODES, check_choice, check_value, check_whole
from kerasbert.base.keywords import check_keyword
from kerasbert.layers.windows import WINDOW_POOLINGS
from kerasbert.text import ops
from kerasbert.text.batch_plans import buckets_up_to
from kerasbert.text.windows import take_windows, windows_of

if TYPE_CHECKING:
    from typing import Any, Self

# With rows of 32,768 tokens, lengths stay below 2**31.
MOST_WINDOWS = 2**16 - 1
# Numbers of windows to pad to, each at most 1.5 times the previous.
_COUNTS = sorted(n * 2**power for power in range(12) for n in (2, 3))


@dataclass(frozen=True)
class LongTexts:
    """What to do with texts that do not fit into a row of `sequence_length` tokens.

    Classifiers, regressors, embedders and rerankers, and their preprocessors, take it as `long`; a
    mode's name, such as `long="windows"`, stands for its defaults, and a dict for the arguments.

    In a pair, "truncate" and "head_tail" shorten the texts that `truncate` selects. "windows"
    divides the second text or, with `truncate="only_first"`, the first text; every window also has
    the start of the other text, up to half of the row.

    Args:
        mode: "truncate" keeps the first tokens of a text. "head_tail" keeps the first and the last.
            "windows" divides a text into rows and pools their embeddings.
        head_share: float from 0 to 1, for "head_tail". Share of tokens from the start. With 0.25, a
            row of 512 tokens has the first 128 and the last 382.
        stride: int, for "windows". Number of tokens between the starts of windows. `None` means no
            overlap. The last window is moved back until it is full.
        max_windows: int, for "windows". Maximum number of windows per text; the rest is truncated.
            It limits memory: a training step has up to `batch_size` times `max_windows` rows.
        pooling: string, for "windows". "mean", "max", or "attention" (a trained weighted average).

    Raises:
        ValueError: for invalid settings, or settings of another mode.

    Example:

    >>> LongTexts("head_tail", head_share=0.5).head_share
    0.5
    >>> LongTexts.of({"mode": "windows", "pooling": "max"}).max_windows
    8

    Sources: Sun et al. 2019, arXiv 1905.05583, section 5.3 (head and tail, windows and their
    pooling); Yang et al. 2016, "Hierarchical Attention Networks", section 2.2 (attention pooling).
    """

    mode: str = "truncate"
    head_share: float = 0.25
    stride: int | None = None
    max_windows: int = 8
    pooling: str = "mean"

    def __post_init__(self) -> None:
        check_choice("long", self.mode, LONG_MODES)
        for field in dataclasses.fields(self)[1:]:
            needed = "head_tail" if field.name == "head_share" else "windows"
            value = getattr(self, field.name)
            if value != field.default and self.mode != needed:
                raise ValueError(
                    f"{field.name}={value!r} needs long={needed!r}, got {self.mode!r}; omit it, or "
                    f"pass long={{'mode': {needed!r}, {field.name!r}: {value!r}}}."
                )
        check_value("head_share", self.head_share, "spread")
        check_whole("max_windows", self.max_windows)
        if self.max_windows > MOST_WINDOWS:
            raise ValueError(f"max_windows={self.max_windows} must be at most {MOST_WINDOWS}.")
        if self.stride is not None:
            check_whole("stride", self.stride)
        check_choice("pooling", self.pooling, WINDOW_POOLINGS)

    @classmethod
    def of(cls, given: Any) -> Self:
        """Return the `LongTexts` of a mode's name, a dict or a `LongTexts`; `None` truncates."""
        if given is None or isinstance(given, str):
            return cls(given or "truncate")
        if isinstance(given, dict):
            for name in given:
                check_keyword("long", name, {field.name for field in dataclasses.fields(cls)})
            return cls(**given)
        if not isinstance(given, cls):
            raise ValueError(
                f"long={given!r} must be one of {', '.join(LONG_MODES)}, a dict such as "
                "{'mode': 'windows', 'pooling': 'max'}, or a LongTexts."
            )
        return given

    @property
    def has_windows(self) -> bool:
        """Whether texts are divided into windows."""
        return self.mode == "windows"

    def in_config(self) -> Any:
        """Return the mode, or a dict if other settings differ from its defaults, for JSON."""
        values = {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}
        usual = {x.name: x.default for x in dataclasses.fields(self)[1:]}
        given = {name: value for name, value in values.items() if value != usual.get(name)}
        return given if len(given) > 1 else self.mode

    def buckets(self, length: int) -> list[int]:
        """Return the lengths to pad to, ascending.

        `length` is that of a row; several windows count as full rows.
        """
        found = buckets_up_to(length)
        if self.has_windows and self.max_windows > 1:
            counts = [count for count in _COUNTS if count < self.max_windows]
            found += [count * length for count in (*counts, self.max_windows)]
        return found

    def shortened(self, tokens: Any, counts: Any) -> Any:
        """Return ragged rows with `counts` (N,) tokens of each text."""
        return first_and_last(tokens, counts, self.head_share if self.mode == "head_tail" else 1.0)


def first_and_last(tokens: Any, counts: Any, head_share: float = 1.0) -> Any:
    """Return the first and the last tokens of each text, ragged (N, None).

    Args:
        tokens: ragged (N, None).
        counts: ints (N,). Tokens to keep, at most those of the text.
        head_share: share of these tokens that are the first ones.

    >>> rows = ops.Ragged.from_lists([[1, 2, 3, 4, 5, 6]])
    >>> first_and_last(rows, [4], 0.25).to_list(), first_and_last(rows, [4]).to_list()
    ([[1, 4, 5, 6]], [[1, 2, 3, 4]])
    """
    counts = ops.cast(counts, "int32")
    lengths = ops.cast(tokens.row_lengths(), "int32")
    heads = ops.cast(ops.floor(ops.cast(counts, "float64") * head_share + 0.5), "int32")
    index = ops.ragged_range(counts)
    row, place = ops.rows_of(index), index.values
    place = place + ops.where(place < ops.gather(heads, row), 0, ops.gather(lengths - counts, row))
    place = place + ops.gather(ops.cast(tokens.row_starts(), "int32"), row)
    return index.with_values(ops.gather(tokens.values, place))


def divided_sizes(lengths: Any, room: int, place: int) -> tuple[Any, Any]:
    """Return how many tokens of each text are in a window.

    Args:
        lengths: list of one or two int32 (N,). Number of tokens of each text.
        room: number of tokens that fit, without special tokens.
        place: index of the text that is divided.

    Returns:
        `(sizes, others)`, int32 (N,): tokens of the divided text, and of the other text.

    >>> [int(size[0]) for size in divided_sizes([np.array([9]), np.array([30])], 10, 1)]
    [5, 5]
    """
    divided = lengths[place]
    others = ops.zeros_like(divided)
    if len(lengths) == 2:
        # The other text gets half of the row, or what a short divided text leaves.
        others = ops.minimum(lengths[1 - place], ops.maximum(room // 2, room - divided))
    return ops.maximum(room - others, 1), others


def count_windows(long: LongTexts, lengths: Any, sizes: Any) -> tuple[Any, Any]:
    """Return the number of windows of each text without `max_windows`, and their strides: (N,)."""
    strides = sizes if long.stride is None else ops.minimum(sizes, long.stride)
    return 1 - -ops.maximum(lengths - sizes, 0) // strides, strides


def in_windows(long: LongTexts, segments: Any, room: int, place: int) -> tuple[Any, Any]:
    """Divide the texts of rows into windows.

    Args:
        long: a `LongTexts`.
        segments: tuple of one or two ragged int32 (N, None).
        room, place: see `divided_sizes`.

    Returns:
        `(counts, segments)`: windows per text, int32 (N,), and their tokens, one or two ragged (R,
        None).

    >>> tokens = ops.Ragged.from_lists([[1, 2, 3, 4, 5], [6]])
    >>> counts, (windows,) = in_windows(LongTexts("windows"), (tokens,), 3, 0)
    >>> counts.tolist(), windows.to_list()
    ([2, 1], [[1, 2, 3], [3, 4, 5], [6]])
    """
    lengths = [ops.cast(segment.row_lengths(), "int32") for segment in segments]
    sizes, others = divided_sizes(lengths, room, place)
    counts, strides = count_windows(long, lengths[place], sizes)
    counts = ops.minimum(counts, long.max_windows)
    own = ops.minimum(lengths[place], sizes + (long.max_windows - 1) * strides)
    rows, starts, _ = windows_of(own, sizes, room if long.stride is None else long.stride)
    last = ops.maximum(own - sizes, 0)
    starts = ops.minimum(starts, ops.gather(last, rows))
    kept = ops.gather(ops.minimum(sizes, own), rows)
    windows = [take_windows(segments[place], rows, starts, kept)]
    if len(segments) == 2:
        other = first_and_last(segments[1 - place], others)
        windows.insert(1 - place, ops.gather(other, rows))
    return counts, tuple(windows)


def stack_windows(rows: Any, counts: Any, width: Any, fill: int = 0) -> Any:
    """Stack the windows of each text: (R, T) to (N, W, T).

    Args:
        rows: array (R, T), window by window.
        counts: int32 (N,).
        width: int. W.
        fill: number. Value of missing windows.

    >>> stack_windows(np.array([[5], [6], [7]]), np.array([1, 2]), 2)[:, :, 0].tolist()
    [[5, 0], [6, 7]]
    """
    missing = ops.fill((1, ops.shape(rows)[1]), ops.cast(fill, rows.dtype))
    place = ops.range(width)[None]
    index = ops.cumsum(counts, exclusive=True)[:, None] + place
    index = ops.where(place < counts[:, None], index, ops.shape(rows)[0])
    return ops.gather(ops.concat([rows, missing], axis=0), index)
