"""`Examples`: the data that a task reads."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass
class Examples:
    """Examples of `Task.read`.

    Args:
        x: input of the model's `fit`, `evaluate` and `predict`.
        y: labels for these methods; `None` for unlabeled data.
        ids: list of N. Ids of the examples in submissions.
        gold: list of references for `Task.score`; `None` for unlabeled data.
        sentences: for taggers of words, a list of N documents of sentences of words, each the cells
            except the tag.
    """

    x: object
    y: object
    ids: list
    gold: list | None = None
    sentences: list | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: slice | Sequence[int]) -> Examples:
        """Select examples.

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
        else:  # `gold` is by sentence, not by document.
            documents = part(_by_document(self.gold, self.sentences))
            gold = list(itertools.chain.from_iterable(documents))
        return Examples(x, part(self.y), part(self.ids), gold, part(self.sentences))


def _by_document(rows, sentences):
    """Group `rows`, one per sentence, by document."""
    rows = iter(rows)
    return [list(itertools.islice(rows, len(document))) for document in sentences]
