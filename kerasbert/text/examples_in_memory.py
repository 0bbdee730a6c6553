"""Examples in memory: parallel tokenization of columns, and assembly of batches.

Shapes: M texts, B per batch.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from kerasbert.backend.tensorflow import Traced, tf
from kerasbert.text import ops
from kerasbert.text.batches import Batches, batch_dataset, runs_in_numpy
from kerasbert.text.packing import ROW_SETTINGS
from kerasbert.text.text_warnings import looks_of

CHUNK = 1024  # Texts that a thread tokenizes at once.


def in_chunks(count, run):
    """Call a function with the slice of each chunk of `count` texts in parallel: the list of
    results.
    """
    if count <= CHUNK:
        return [run(slice(0, count))]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        starts = range(0, count, CHUNK)
        return list(threads.map(lambda start: run(slice(start, start + CHUNK)), starts))


def tokenize_column(preprocessor, column, tokenize):
    """Tokenize a list of texts in parallel chunks, and warn if many words are unknown.

    Args:
        preprocessor: a `BertPreprocessor`.
        column: list of strings.
        tokenize: function of strings that returns a tuple of `Ragged` and arrays, token ids first.

    Returns:
        The concatenated results of `tokenize`.
    """
    chunks = in_chunks(len(column), lambda chunk: tokenize(column[chunk]))
    found = chunks[0]
    if len(chunks) > 1:
        found = tuple(ops.concat(parts, axis=0) for parts in zip(*chunks))
    looks_of(preprocessor).at_tokens(preprocessor.tokenizer, column, found[0].flat_values)
    return found


def tokenize_columns(preprocessor, columns, most=None, owners=None):
    """Tokenize one or two lists of strings.

    Args:
        preprocessor: a `BertPreprocessor`.
        columns: one or two lists of strings.
        most: maximum row length; later tokens are dropped.
        owners: ints (M,). Index of the first text of each second text; `None` means the same index.

    Returns:
        A tuple of one `Ragged` for each column.
    """

    def tokenize(chunk):
        tokens = ops.as_ragged(preprocessor._tokens(chunk))
        lengths = tokens.row_lengths()
        if most is not None and np.max(lengths, initial=0) > most:
            kept = np.minimum(lengths, most + len(columns) - 1)
            tokens = preprocessor.long.shortened(tokens, kept)
        return tokens, lengths

    found = [tokenize_column(preprocessor, column, tokenize) for column in columns]
    segments = [tokens for tokens, _ in found]
    if most is not None and len(found) == 2:
        # Truncation depends on which text is longer, so of two texts cut above to `most + 1`
        # tokens, the shorter loses one more.
        first, second = (lengths for _, lengths in found)
        first = first if owners is None else first[owners]
        is_shorter = (second < first) & (second > most)
        if is_shorter.any():
            kept = segments[1].row_lengths() - is_shorter
            segments[1] = preprocessor.long.shortened(segments[1], kept)
    return tuple(segments)


def batch_maker(preprocessor, segments, targets, buckets):
    """Return a function that makes a batch of row numbers (B,) and, if the task draws, a seed.

    Args:
        preprocessor: a `BertPreprocessor`.
        segments: tuple of ragged tokens, of all examples.
        targets: `[labels, weights]` of all examples; each may be `None`.
        buckets: `True` to pad to a bucket, `False` to the longest row, or a tuple of lengths.
    """

    def make(rows, *seed):
        parts = tuple(ops.gather(segment, rows) for segment in segments)
        longest = None
        if buckets is not True:
            longest = ops.reduce_max(preprocessor.packed_lengths(parts))
        if isinstance(buckets, tuple):
            longest = ops.gather(buckets, ops.searchsorted(buckets, [longest])[0])
        chosen = [None if one is None else ops.gather(one, rows) for one in targets]
        drawn = {"seed": seed[0]} if preprocessor.draws else {}
        return preprocessor.assemble(parts, *chosen, length=longest, **drawn)

    return make


def assembled_batches(
    preprocessor, segments, targets, plan, buckets, seeds=lambda epoch: (0,), first_epoch=0
):
    """Return a `Batches`, or a `tf.data.Dataset` to train with TensorFlow.

    Args:
        preprocessor, segments, targets, buckets: see `batch_maker`.
        plan, seeds, first_epoch: see `Batches`; seeds count only if the task draws.
    """
    seeds = seeds if preprocessor.draws else None
    if runs_in_numpy():
        make = batch_maker(preprocessor, segments, targets, buckets)
        return Batches(plan, make, seeds, first_epoch)
    with tf.device("cpu"):
        given = [target is not None for target in targets]
        arrays = [*segments, *(target for target in targets if target is not None)]
        tensors = [ops.as_tensor(array) for array in arrays]

        def of_tensors(rows, *parts):
            seed, parts = parts[: preprocessor.draws], parts[preprocessor.draws :]
            left = iter(parts[len(segments) :])
            targets = [next(left) if one else None for one in given]
            make = batch_maker(preprocessor, parts[: len(segments)], targets, buckets)
            return make(rows, *seed)

        # Later calls use the same graph. After `setattr`, Keras and SavedModel would track the
        # attribute.
        traces = preprocessor.__dict__.setdefault("_traces", {})
        names = dict.fromkeys((*ROW_SETTINGS, *preprocessor.settings))
        settings = (repr(getattr(preprocessor, name)) for name in names)
        key = (buckets, len(segments), *given, preprocessor.tokenizer, *settings)
        traced = traces.setdefault(key, Traced(of_tensors))
        make = lambda rows, *seed: traced(rows, *seed, *tensors)  # noqa: E731
        return batch_dataset(plan, make, seeds, first_epoch)
