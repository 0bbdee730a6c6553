"""What a task's reader gives."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass
class Examples:
    """What `read` gives.

    Args:
        x: what `fit`, `evaluate` and `predict` of the task's model take.
        y: the labels that they take; `None` where the data have none.
        ids: list of N. What a submission calls the examples.
        gold: list of what `Task.score` compares predictions with; `None` where there is none.
        sentences: list of N lists: of each document's sentences, their words' other columns. Only
            of taggers of words.
    """

    x: object
    y: object
    ids: list
    gold: list | None = None
    sentences: list | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: slice | Sequence[int]) -> Examples:
        """Some of the examples.

        Args:
            rows: a slice, or a list of ints.
        """

        def part(column):
            if column is None or isinstance(rows, slice):
                return None if column is None else column[rows]
            return [column[row] for row in rows]

        x = tuple(map(part, self.x)) if isinstance(self.x, tuple) else part(self.x)
        if self.gold is None or self.sentences is None:
            gold = part(self.gold)
        else:  # One entry a sentence.
            documents = part(_by_document(self.gold, self.sentences))
            gold = list(itertools.chain.from_iterable(documents))
        return Examples(x, part(self.y), part(self.ids), gold, part(self.sentences))


def _by_document(rows, sentences):
    """Rows, one a sentence, as lists, one a document."""
    rows = iter(rows)
    return [list(itertools.islice(rows, len(document))) for document in sentences]
