"""Decoding of a tagger's conditional random field (CRF) over words.

U units (mostly words) of all texts, P pieces (subwords) of all texts, N texts, L units per text,
C classes, K kinds of steps between units.
"""

import numpy as np

from kerasbert.text import ops
from kerasbert.text.tagging import classes_of_pieces

# Maximum number of entries of an array in `decode`, which limits the number of texts at a time.
_MOST = 2**21


class Chains:
    """The scores of a CRF, for units of one or of several pieces.

    With `label_pieces="all"`, the class of a unit fixes the classes of its pieces ("B-PER"
    continues as "I-PER"), so a unit is one step with the sum of their scores.

    Args:
        transitions: floats (C, C), from a class to the next one.
        start, end: floats (C,). Scores of the first and of the last class.
        names: list of C strings, empty if unknown.
        label_pieces: "first" or "all".
    """

    def __init__(self, transitions, start, end, names, label_pieces):
        self.transitions = np.asarray(transitions, "float64")
        classes = len(self.transitions)
        self.table = None
        self.edges = np.stack([start, end]).astype("float64")  # (2, C)
        # Scores of the first and the last unit, by whether it has several pieces.
        self.ends = self.edges[:, None]  # (2, 1, C)
        # Transitions between units by 2 * (first has several pieces) + (second has several pieces),
        # (4, C, C); a single one if all units have one step.
        self.steps = self.transitions[None]
        if label_pieces == "all":
            self.table = classes_of_pieces(names, classes)
            first, last = (
                np.stack([self.table[:, 1, 1], inner])
                for inner in (self.table[:, 1, 0], self.table[:, 0, 1])
            )  # (2, C)
            self.ends = np.stack([self.edges[0][first], self.edges[1][last]])  # (2, 2, C)
            self.steps = np.stack([self.transitions[np.ix_(a, b)] for a in last for b in first])

    def of_units(self, logits, first, count, rows):
        """Compute the scores of units from those of pieces.

        Args:
            logits: floats (P, C).
            first, count: ints (U,). First piece and number of pieces (1 or more) of each unit.
            rows: ints (U,). Index of the text of each unit, in ascending order.

        Returns:
            `(emissions, kinds)`: floats (U, C), with those of chain ends; and ints (U,), the index
            in `steps` of the transitions into each unit.
        """
        logits = ops.cast(logits, "float64")
        is_long = ops.cast(count > 1, "int32") if self.table is not None else count * 0
        if self.table is None:
            emissions = ops.gather(logits, first)
        else:
            emissions = self._sums(logits, first, count)
        rows = ops.cast(rows, "int64")
        begins = ops.concat([[True], rows[1:] != rows[:-1]], 0)[: ops.size(rows)]
        ends = ops.concat([rows[1:] != rows[:-1], [True]], 0)[: ops.size(rows)]
        is_long = ops.cast(is_long, "int32")
        start, end = (ops.gather(scores, is_long) for scores in self.ends)
        for edge, scores in ((begins, start), (ends, end)):
            emissions += ops.cast(edge, "float64")[:, None] * scores
        before = ops.concat([[0], is_long], 0)[: ops.size(rows)]
        return emissions, 2 * before + is_long

    def _sums(self, logits, first, count):
        """Sum the scores of each unit's pieces and the steps between them, (U, C)."""
        past = first + count
        pieces = ops.ragged_range(first, past)
        unit, piece = pieces.value_rowids(), pieces.values
        is_first = piece == ops.gather(first, unit)
        is_last = piece == ops.gather(past, unit) - 1
        index = ops.stack([ops.cast(is_first, "int32"), ops.cast(is_last, "int32")], 1)
        classes = ops.gather_nd(self.table.transpose(1, 2, 0), index)  # (pieces of units, C)
        scores = ops.gather(ops.gather(logits, piece), classes, batch_dims=1)
        before = ops.concat([classes[:1], classes], 0)[: ops.size(unit)]
        inner = ops.gather_nd(self.transitions, ops.stack([before, classes], 2))
        scores += ops.cast(~is_first, "float64")[:, None] * inner
        return ops.unsorted_segment_sum(scores, unit, ops.size(first))

    def decode(self, logits, first, count, rows):
        """Find the best path of each text and the marginal probabilities, in NumPy.

        The arguments are those of `of_units`.

        Returns:
            `(labels, probabilities)`: ints (U,) and floats (U, C).
        """
        emissions, kinds = self.of_units(logits, first, count, rows)
        labels = np.zeros(len(rows), "int64")
        probabilities = np.zeros_like(emissions)
        begins = np.flatnonzero(np.diff(rows, prepend=-1))
        counts = np.diff(begins, append=len(rows))
        order = np.argsort(counts, kind="stable")
        size = max(1, _MOST // (2 * self.transitions.size))
        for part in np.array_split(order, -(-len(order) // size)) if len(order) else []:
            steps = np.arange(counts[part].max())
            is_in = steps < counts[part][:, None]
            place = np.where(is_in, begins[part][:, None] + steps, 0)
            found = decode(emissions[place], counts[part], self.steps, kinds[place])
            labels[place[is_in]], probabilities[place[is_in]] = (x[is_in] for x in found)
        return labels, probabilities


def decode(emissions, counts, transitions, kinds):
    """Find the best paths (Viterbi) and the marginal probabilities of chains.

    `kerasbert.backend.chains` has the same recursions for graphs.

    Args:
        emissions: floats (N, L, C), with those of chain ends.
        counts: ints (N,). Number of steps of each chain.
        transitions: floats (K, C, C), from a class to the next one.
        kinds: ints (N, L). Index of the transitions into each step.

    Returns:
        `(labels, probabilities)`: ints (N, L) and floats (N, L, C), arbitrary after a chain's end.
    """
    # By step and class: scores of the best path and of all paths over later steps.
    best, total = np.zeros_like(emissions), np.zeros_like(emissions)
    for step in range(emissions.shape[1] - 1, 0, -1):
        between = transitions[kinds[:, step]]
        is_in = (step < counts)[:, None]
        paths = between + (emissions[:, step] + best[:, step])[:, None]
        best[:, step - 1] = np.where(is_in, paths.max(axis=-1), 0.0)
        paths = between + (emissions[:, step] + total[:, step])[:, None]
        highest = paths.max(axis=-1)
        sums = np.exp(paths - highest[..., None]).sum(axis=-1)
        total[:, step - 1] = np.where(is_in, highest + np.log(sums), 0.0)
    labels = np.zeros(emissions.shape[:2], "int64")
    probabilities = np.zeros_like(emissions)
    for step in range(emissions.shape[1]):
        if step == 0:
            between, before = 0.0, np.ones((len(counts), 1))
            score = best[:, 0]
        else:
            between, before = transitions[kinds[:, step]], probabilities[:, step - 1]
            score = between[np.arange(len(counts)), labels[:, step - 1]] + best[:, step]
        labels[:, step] = (emissions[:, step] + score).argmax(axis=-1)
        odds = between + (emissions[:, step] + total[:, step])[:, None]
        odds = np.exp(odds - odds.max(axis=-1, keepdims=True))
        odds /= odds.sum(axis=-1, keepdims=True)
        probabilities[:, step] = (before[:, None] @ odds)[:, 0]
    return labels, probabilities
