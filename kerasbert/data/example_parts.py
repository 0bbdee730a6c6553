"""The order of pre-training examples: parts, shuffling, and random numbers."""

import functools
import itertools

import numpy as np

from kerasbert.data.example_files import IN_TURNS, reading_examples, records_in
from kerasbert.data.manifest import check_shards

# Up to this many bytes of shards, hashes are checked within seconds.
FEW_BYTES = 1 << 30


class ExampleParts:
    """The parts of the records, and those of a process.

    Shapes: S parts, B rows per batch, R = B / S rows of each part.

    Args:
        source: an `ExampleFiles`.
        batch_size: int. B.
        index, count: ints. The process takes B / count rows, from `index * B / count` on.
        in_order: whether to keep the order by using one part only.
    """

    def __init__(self, source, batch_size, index, count, in_order):
        most = min(IN_TURNS, len(source.paths), source.examples)
        number = max(n for n in range(1, most + 1) if batch_size % n == 0)
        self.source, self.number = source, 1 if in_order else number
        self.rows = batch_size // self.number
        own = batch_size // count
        self.first = index * own // self.rows
        self.last = -(-(index + 1) * own // self.rows)  # exclusive
        # All rows of its parts, unless there are more processes than parts.
        begin = index * own - self.first * self.rows
        self.own = slice(begin, begin + own)
        self.num_batches = max(1, -(-source.examples // batch_size))
        self.pieces = _cut(source.counts, self.number)[self.first : self.last]

    def check(self):
        """Check that the files of these parts have not changed."""
        if self.source.shards is None:
            return  # `_look` has read and checked them.
        files = sorted({file for pieces in self.pieces for file, _, _ in pieces})
        shards = [self.source.shards[file] for file in files]
        # Records have checksums, which find damage in larger shards during training.
        hashed = sum(shard["bytes"] for shard in shards) <= FEW_BYTES
        check_shards(self.source.folder, shards, hashed)

    def batches(self, start_step, seed, shuffle_buffer, repeat, fill):
        """Yield the serialized records of this process in each batch, from `start_step` on.

        With `fill`, `None` stands for missing records of a part.
        """
        window = -(-shuffle_buffer // self.number)
        parts = []
        for part, pieces in enumerate(self.pieces, self.first):
            total = sum(number for _, _, number in pieces)
            done = start_step * self.rows
            if fill:
                done = min(start_step, self.num_batches) * total // self.num_batches
            random = functools.partial(_random, seed, 0, part)
            records = self._part(pieces, random, window, *divmod(done, total), repeat)
            parts.append(self._filled(records, start_step, total) if fill else records)
        records = self._in_turn(parts)
        while some := list(itertools.islice(records, self.rows * len(self.pieces))):
            yield some[self.own]

    def _in_turn(self, parts):
        """Yield R records of each part in turn."""
        while parts:
            for part in list(parts):
                some = list(itertools.islice(part, self.rows))
                yield from some
                if len(some) < self.rows:
                    parts.remove(part)

    def _filled(self, records, start_step, total):
        """Yield R items per step: a share of a part's records, then `None`."""
        for step in range(start_step, self.num_batches):
            share = (step + 1) * total // self.num_batches - step * total // self.num_batches
            yield from itertools.islice(records, share)
            yield from [None] * (self.rows - share)

    def _part(self, pieces, random, window, epoch, skip, repeat):
        """Yield a part's records, shuffled in windows, from record `skip` of an epoch on."""
        while repeat or epoch == 0:
            number, rest = divmod(skip, window or 1)
            if window:
                ordered = [pieces[i] for i in random(epoch, 0).permutation(len(pieces))]
                records = self._read(ordered, skip - rest)
                while some := list(itertools.islice(records, window)):
                    number += 1
                    order = random(epoch, number).permutation(len(some))
                    yield from (some[i] for i in order[rest:])
                    rest = 0
            else:
                yield from self._read(pieces, skip)
            epoch, skip = epoch + 1, 0

    def _read(self, pieces, skip):
        """Yield the records of pieces of files, all but the first `skip`."""
        for file, first, number in pieces:
            left_out = min(skip, number)
            skip -= left_out
            if left_out < number:
                path = self.source.paths[file]
                with reading_examples(path):
                    records = records_in(self.source.opened(path))
                    yield from itertools.islice(records, first + left_out, first + number)

    def draws(self, seed, step):
        """Return a function of a shape (N, B, T) that draws random numbers for a step.

        They do not depend on the number of processes.
        """
        length = self.source.length

        def draw(shape):
            drawn = [
                _random(seed, 1, part, step).integers(1 << 23, size=(shape[0], self.rows, length))
                for part in range(self.first, self.last)
            ]
            # A single process' last batch may be smaller.
            drawn = np.concatenate(drawn, axis=1)[:, self.own][:, : shape[1], : shape[2]]
            return (drawn / (1 << 23)).astype("float32")

        draw.seed = np.array([seed, step])
        return draw


def _random(seed, *key):
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def _cut(counts, parts):
    """Split files, given their numbers of records, into equal parts.

    A part is a list of pieces `(file, first record, number of records)`.

    >>> _cut([5, 3], 2)
    [[(0, 0, 4)], [(0, 4, 1), (1, 0, 3)]]
    """
    ends = np.cumsum([0, *counts])
    edges = [int(ends[-1]) * part // parts for part in range(parts + 1)]
    found = []
    for low, high in zip(edges, edges[1:]):
        pieces = []
        file = int(np.searchsorted(ends, low, side="right")) - 1
        while low < high:
            number = min(high, int(ends[file + 1])) - low
            if number:
                pieces.append((file, low - int(ends[file]), number))
            low, file = low + number, file + 1
        found.append(pieces)
    return found
