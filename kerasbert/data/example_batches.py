"""`read_examples`: batches for pre-training from shards of records.

Shapes: B examples per batch, T tokens, P predictions.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import gzip
import os
import threading
import weakref
import zlib
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base.errors import check_choice, check_whole, first_line
from kerasbert.base.files import is_url, temporary_folder
from kerasbert.base.storage import find, get, join
from kerasbert.data.corpus import as_paths
from kerasbert.data.manifest import (
    NAME,
    check_hash,
    check_shards,
    check_vocabulary,
    describe_tokenizer,
    read_manifest,
    shard_path,
)
from kerasbert.data.records import encode_examples
from kerasbert.text.batching import buckets_up_to, map_ahead
from kerasbert.text.masking import check_rates, mask_tokens, word_starts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kerasbert.base.aliases import Corpus
    from kerasbert.text.subword import SubwordTokenizer

# Maximum number of parts that are read in turn.
IN_TURNS = 16
# Up to this many bytes, shards are checked by their hash, which takes a few seconds.
FEW_BYTES = 1 << 30
# Size in bytes that no example's record reaches.
LARGEST = 1 << 25


def read_examples(
    files: Corpus,
    batch_size: int,
    *,
    tokenizer: SubwordTokenizer | None = None,
    masking: str = "dynamic",
    masker: Any = None,
    next_sentence: bool | None = None,
    num_segments: int = 2,
    seed: int = 0,
    start_step: int = 0,
    shuffle_buffer: int = 1 << 16,
    repeat: bool = True,
    shards: Sequence[str] | None = None,
    shard: tuple[int, int] | None = None,
) -> Any:
    """Read batches for `BertPretrainer.fit` from `write_examples` or google-research/bert records.

    Batch number s depends only on the files, the settings, the seed and s: `start_step=k` yields
    exactly the batches from the k-th on. Earlier records are read again only if they were shuffled
    together with the first ones needed.

    The records are split into equal parts, at most 16, whose number divides the batch size and does
    not exceed the number of files; each batch has equally many rows of every part. In each epoch a
    part reads its files in another order, and shuffles its share of `shuffle_buffer` records at a
    time. So a process that takes the first half of every batch's rows, with `shard=(0, 2)`, reads
    half of the files, and all processes together get the batches that a single one would.

    Rows are truncated to the longest of the batch, rounded up to a bucket of
    `kerasbert.data.buckets_up_to`. If several processes share the batches, rows keep the records'
    length, because no process knows the others' rows.

    Files at a URL are downloaded one by one and checked against their hashes; up to two per part
    stay in the temporary folder. Files without a manifest, such as those of google-research/bert,
    are first read once to count their records and to find truncated files.

    Args:
        files: the folder of `write_examples`, or paths or patterns of TFRecord files, compressed if
            the name ends in `.gz`. For files of such a folder, its manifest has the counts.
        batch_size: int.
        tokenizer: the records' tokenizer. Checked against the manifest; needed only for dynamic
            masking without a manifest, and to mask whole words.
        masking: "dynamic" restores the masked tokens and masks again in every epoch; "static"
            keeps the records' masks.
        masker: for dynamic masking, settings of `mask_tokens` as a dict, such as
            `{"mask_selection_rate": 0.3, "unit": "word"}`, or a function
            `(token_ids, maskable, seed, lengths)` that returns what `mask_tokens` does. A
            `mask_selection_rate` of `(first, last, batches)` changes linearly over that number of
            batches; unused prediction slots are then removed.
        next_sentence: bool. Whether pairs have labels; `None` reads it from the manifest, and means
            true without one.
        num_segments: int. 0 leaves `segment_ids` out, 1 fills it with zeros, as in RoBERTa.
        seed: int.
        start_step: int. The number of the first batch.
        shuffle_buffer: int. 0 keeps the order of files and records; with a `shard`, that of each
            part.
        repeat: bool. `True` repeats epochs forever, also within a batch; `False` is one epoch,
            whose last batch may be smaller.
        shards: list of strings. Names of shards to read, if there is a manifest; `None` reads all.
        shard: `(index, count)`, ints. Which of `count` equal parts of each batch this process
            takes. With `repeat=False` all processes get equally many batches of equally many rows,
            padded with rows of weight 0, spread over all of them.

    Returns:
        A `tf.data.Dataset` of `(x, y, sample_weight)`: `x` a dict of `token_ids` (B, T),
        `segment_ids` (B, T), `padding_mask` (B, T) and `mask_positions` (B, P); `y` and
        `sample_weight` dicts of `mlm_logits` (B, P) and `nsp_logits` (B,).

    Raises:
        ValueError: for files that are missing, truncated or of another kind, a vocabulary other
            than the records', and invalid settings.

    Source of the parts: shards per process as in T5X's `seqio`, but with equal numbers of rows.
    """
    check_choice("masking", masking, ("dynamic", "static"))
    check_whole("batch_size", batch_size)
    check_whole("start_step", start_step, 0)
    check_whole("shuffle_buffer", shuffle_buffer, 0)
    index, count = _checked_shard(shard, batch_size)
    with tf.device("cpu"):
        source = _source(files, tokenizer, shards)
        if next_sentence is None:
            next_sentence = source.next_sentence
        mask = None if masking == "static" else _masker(masker, source, tokenizer, count > 1)
        parts = _Parts(source, batch_size, index, count, in_order=not (shuffle_buffer or shard))
        parts.check()
        # Two random streams that do not depend on the backend's global seed.
        seeds = np.random.SeedSequence(seed).generate_state(2, "uint64").astype("int64")
        fill = shard is not None and not repeat
        records = parts.records(seeds[0], start_step, shuffle_buffer, repeat, fill)
        batches = parts.batches(records).enumerate(start_step)
        in_one_epoch = max(0, -(-source.examples // batch_size) - start_step)
        steps = tf.data.INFINITE_CARDINALITY if repeat else in_one_epoch
        batches = batches.apply(tf.data.experimental.assert_cardinality(steps))

        @tf.autograph.experimental.do_not_convert
        def make(step, serialized):
            there = serialized != ""
            if fill:
                serialized = tf.where(there, serialized, _filler(source))
            return _batch(
                _parse(serialized, source.length, source.slots),
                there,
                mask,
                parts.draws(tf.constant(seeds[1]), step, source.length),
                next_sentence,
                num_segments,
                agreed=count > 1,
            )

        return map_ahead(batches, make)


def _checked_shard(shard, batch_size):
    if shard is None:
        return 0, 1
    index, count = shard
    check_whole("shard: count", count)
    check_whole("shard: index", index, 0)
    if index >= count:
        raise ValueError(f"shard={shard} has the index {index}; it must be below {count}.")
    if batch_size % count:
        raise ValueError(
            f"batch_size={batch_size} is for all {count} processes and must be a multiple of "
            f"{count}: each takes an equal part of every batch."
        )
    return int(index), int(count)


@dataclasses.dataclass
class _Source:
    """Files of records and their properties."""

    paths: list
    counts: list  # number of records in each
    length: int  # T of the records
    slots: int  # P of the records
    next_sentence: bool
    described: dict | None  # the tokenizer, as in a manifest
    opened: object  # function of a path (a tensor) that returns a dataset of its records
    folder: str | None = None  # the manifest's folder
    shards: list | None = None  # the manifest's entry for each path

    @property
    def examples(self):
        return sum(self.counts)


def _source(files, tokenizer, shards=None):
    """Find and check the files."""
    given = as_paths(files)
    if len(given) == 1 and isinstance(files, (str, os.PathLike)):
        manifest = read_manifest(given[0])
        if manifest is not None:
            if shards is not None:
                named = set(shards)
                named = [shard for shard in manifest["shards"] if shard["name"] in named]
                manifest = {**manifest, "shards": named}
            return _written(given[0], manifest, tokenizer)
    paths = []
    for pattern in given:
        kind, found = find(pattern)
        if kind == "folder":
            found = [path for path in found if ".tfrecord" in os.path.basename(path)]
        if not found:
            raise ValueError(f"No file of examples matches '{pattern}'.")
        paths += found
    if not paths:
        raise ValueError("The list of files of examples is empty; name at least one.")
    if written := _of_a_manifest(paths):
        return _written(*written, tokenizer)
    opened = _opened(paths)
    looks = [_look(path, opened, tokenizer) for path in paths]
    for path, look in zip(paths, looks):
        if look[1:] != looks[0][1:]:
            raise ValueError(
                f"'{path}' has rows of {look[1]} tokens with {look[2]} predictions, but "
                f"'{paths[0]}' has {looks[0][1]} with {looks[0][2]}; read them separately."
            )
    described = None if tokenizer is None else describe_tokenizer(tokenizer)
    counts = [look[0] for look in looks]
    return _Source(paths, counts, *looks[0][1:], True, described, opened)


def _of_a_manifest(paths):
    """Return `(folder, manifest)` with just these files, or `None` if one is not in a manifest."""
    folders = {os.path.dirname(path) for path in paths}
    manifest = read_manifest(folders.pop()) if len(folders) == 1 else None
    if manifest is None:
        return None
    shards = {shard["name"]: shard for shard in manifest["shards"]}
    named = [shards.get(os.path.basename(path)) for path in paths]
    if None in named:
        return None
    return os.path.dirname(paths[0]), {**manifest, "shards": named}


def _written(folder, manifest, tokenizer):
    if not manifest["complete"]:
        raise ValueError(
            f"The examples in '{folder}' are incomplete: writing was interrupted after "
            f"{len(manifest['shards'])} shards; run `write_examples` again to resume."
        )
    if tokenizer is not None:
        check_vocabulary(manifest, tokenizer, folder)
    settings, shards = manifest["settings"], manifest["shards"]
    if not shards:
        raise ValueError(f"'{join(folder, NAME)}' lists no shards; write the examples again.")
    paths = [shard_path(folder, shard) for shard in shards]
    check_shards(folder, shards[:1], hashed=False)
    opened = _opened(paths, shards)
    with _reading(paths[0]):
        sizes = _sizes(next(iter(opened(tf.constant(paths[0])))), paths[0])
    if sizes != (settings["sequence_length"], settings["mask_selection_length"]):
        raise ValueError(
            f"'{paths[0]}' has rows of {sizes[0]} tokens with {sizes[1]} predictions, which "
            f"contradicts '{join(folder, NAME)}'; remove the folder and write the examples again."
        )
    return _Source(
        paths,
        [shard["examples"] for shard in shards],
        *sizes,
        settings["objective"] != "full_sentences",
        manifest["tokenizer"],
        opened,
        folder,
        shards,
    )


def _look(path, opened, tokenizer):
    """Read and check a file without a manifest; returns its number of examples, T and P."""
    records = opened(tf.constant(path))
    with _reading(path):
        _check_frames(opened.here(path))
        first = next(iter(records))
        length, slots = _sizes(first, path)
        spec = _spec(length, slots)
        count = most = 0
        for some in records.batch(4096):
            parsed = tf.io.parse_example(some, spec)
            limits = {"masked_lm_positions": length, "segment_ids": 2, "next_sentence_labels": 2}
            for name in ("input_ids", "masked_lm_ids", *limits):
                low, high = (int(f(parsed[name])) for f in (tf.reduce_min, tf.reduce_max))
                if low < 0 or high >= limits.get(name, 1 << 31):
                    raise ValueError(
                        f"'{path}' has examples with {name} from {low} to {high}, which is out of "
                        "range; make it again."
                    )
                most = max(most, high if name in ("input_ids", "masked_lm_ids") else 0)
            if not tf.reduce_all(tf.math.is_finite(parsed["masked_lm_weights"])):
                raise ValueError(
                    f"'{path}' has examples with masked_lm_weights of nan or inf; make it again."
                )
            count += int(tf.size(some))
        ids = tf.io.parse_single_example(first, spec)["input_ids"].numpy()
    if tokenizer is not None and (
        ids[0] != tokenizer.start_token_id or most >= tokenizer.vocabulary_size()
    ):
        raise ValueError(
            f"The examples of '{path}' were made with another vocabulary: the first begins with id "
            f"{ids[0]} and the largest id is {most}, but the tokenizer's rows begin with "
            f"{tokenizer.start_token_id} and its ids are below {tokenizer.vocabulary_size()}."
        )
    return count, length, slots


@contextlib.contextmanager
def _reading(path):
    """Turn any error of reading a file of examples into one that names the file."""
    try:
        yield
    except (tf.errors.DataLossError, EOFError, gzip.BadGzipFile, zlib.error):
        raise ValueError(
            f"'{path}' is truncated, damaged or not a TFRecord file; make it again."
        ) from None
    except StopIteration:
        raise ValueError(f"'{path}' has no examples; make it again.") from None
    except (ValueError, OSError):
        raise
    except Exception as error:
        raise ValueError(
            f"'{path}' has records that are not examples ({first_line(error)}); make it again."
        ) from None


def _sizes(record, path):
    """Return the number of tokens and of predictions of an example."""
    features = tf.train.Example.FromString(record.numpy()).features.feature
    names = ("input_ids", "masked_lm_positions")
    sizes = tuple(len(features[name].int64_list.value) for name in names)
    for name, size in zip(names, sizes, strict=True):
        if not size:
            raise ValueError(
                f"The examples of '{path}' have no {name!r}, which pre-training needs."
            )
    return sizes


def _check_frames(path):
    """Raise an `EOFError` if a record is longer than the file, or than any example.

    TensorFlow would allocate the memory first, and may mistake the last part of a truncated gzip
    file for its end.
    """
    with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
        while header := file.read(12):
            length = int.from_bytes(header[:8], "little")
            if len(header) < 12 or length > LARGEST or len(file.read(length + 4)) < length + 4:
                raise EOFError


def _opened(paths, shards=None):
    """Return a function of one of these paths (a tensor) that returns a dataset of its records."""
    return _Fetched(paths, shards) if any(map(is_url, paths)) else _Here()


class _Here:
    """Opens local files."""

    def __call__(self, path):
        packed = tf.strings.regex_full_match(path, r"(?s).*\.gz")
        return tf.data.TFRecordDataset(path, tf.where(packed, "GZIP", ""))

    def here(self, path):
        """Return a local path with the same records."""
        return path


class _Fetched(_Here):
    """Opens files at URLs, by copies in a temporary folder that is removed with this object.

    Each part reads one file at a time, so only the newest `2 * IN_TURNS` copies are kept.
    """

    def __init__(self, paths, shards):
        self.shards = dict(zip(paths, shards)) if shards else {}
        self.copies, self.lock = collections.OrderedDict(), threading.Lock()
        self.number = 0
        stack = contextlib.ExitStack()
        self.folder = stack.enter_context(temporary_folder())
        weakref.finalize(self, stack.close)

    def __call__(self, path):
        def fetch(path):
            return self.here(np.asarray(path).item().decode())

        return super().__call__(tf.ensure_shape(tf.numpy_function(fetch, [path], tf.string), ()))

    def here(self, path):
        if not is_url(path):
            return path
        with self.lock:
            if path in self.copies:
                self.copies.move_to_end(path)
                return self.copies[path]
            while len(self.copies) >= 2 * IN_TURNS:
                with contextlib.suppress(OSError):
                    os.remove(self.copies.popitem(last=False)[1])
            self.number += 1
            copy = os.path.join(self.folder, f"{self.number:09}-{os.path.basename(path)}")
            get(path, copy)
            if path in self.shards:
                check_hash(copy, path, self.shards[path])
            self.copies[path] = copy
            return copy


class _Parts:
    """The parts that the records are split into, and those that a process reads.

    Shapes: S parts, B rows per batch, R = B / S rows of each part.

    Args:
        source: a `_Source`.
        batch_size: int. B.
        index, count: ints. The process takes B / count rows, from `index * B / count` on.
        in_order: bool. Whether to keep the order by using one part only.
    """

    def __init__(self, source, batch_size, index, count, in_order):
        most = min(IN_TURNS, len(source.paths), source.examples)
        number = max(n for n in range(1, most + 1) if batch_size % n == 0)
        self.source, self.number = source, 1 if in_order else number
        self.rows = batch_size // self.number
        own = batch_size // count
        self.first = index * own // self.rows
        self.last = -(-(index + 1) * own // self.rows)  # exclusive
        # The process owns all rows of its parts, unless there are more processes than parts.
        begin = index * own - self.first * self.rows
        self.own = slice(begin, begin + own)
        self.num_batches = -(-source.examples // batch_size)
        self.pieces = _cut(source.counts, self.number)[self.first : self.last]

    def check(self):
        """Check that the files of these parts are as they were written."""
        if self.source.shards is None:
            return  # `_look` has read and checked them.
        files = sorted({file for pieces in self.pieces for file, _, _ in pieces})
        shards = [self.source.shards[file] for file in files]
        # Beyond that, rely on the records' own checksums, which fail later, during training.
        hashed = sum(shard["bytes"] for shard in shards) <= FEW_BYTES
        check_shards(self.source.folder, shards, hashed)

    def records(self, seed, start_step, shuffle_buffer, repeat, fill):
        """Make a dataset of serialized records from a step on, R of each part in turn.

        With `fill` there are R for each part and step, with empty strings for missing ones.
        """
        shuffle = functools.partial(tf.random.experimental.stateless_shuffle, alg="philox")
        window = -(-shuffle_buffer // self.number)
        tables = np.concatenate([np.reshape(one, (-1, 3)) for one in self.pieces]).T
        files, firsts, numbers = tf.constant(tables, tf.int64)
        splits = tf.constant(np.cumsum([0, *map(len, self.pieces)]))
        paths, opened = tf.constant(self.source.paths), self.source.opened
        num_batches = max(1, self.num_batches)

        def part_of(part):
            of_part = slice(splits[part], splits[part + 1])
            path = tf.gather(paths, files[of_part])
            first, number = firsts[of_part], numbers[of_part]  # (pieces,)
            total = tf.reduce_sum(number)
            done = tf.constant(start_step * self.rows, tf.int64)
            if fill:
                done = min(start_step, num_batches) * total // num_batches
            # The lower 32 bits count the shuffles of an epoch.
            own_seed = seed + tf.cast(part + self.first, tf.int64)
            start = done // total if repeat else tf.constant(0, tf.int64)
            skip = done - start * total

            def one_epoch(epoch):
                rest = tf.where(epoch == start, skip, 0)
                count = tf.bitwise.left_shift(epoch, 32)
                order = tf.range(tf.size(number))
                begin = rest
                if window:
                    order = shuffle(order, tf.stack([own_seed, count]))
                    begin = rest // window * window
                sizes = tf.gather(number, order)
                left_out = tf.clip_by_value(begin - tf.cumsum(sizes, exclusive=True), 0, sizes)
                pieces = tf.data.Dataset.from_tensor_slices(
                    (tf.gather(path, order), tf.gather(first, order) + left_out, sizes - left_out)
                )
                pieces = pieces.filter(lambda path, first, size: size > 0)
                records = pieces.flat_map(
                    lambda path, first, size: opened(path).skip(first).take(size)
                )
                if not window:
                    return records
                # `Dataset.shuffle` also follows the global seed, and cannot start in the middle.
                windows = records.batch(window).enumerate(rest // window + 1)
                windows = windows.map(
                    lambda i, window: shuffle(window, tf.stack([own_seed, count + i]))
                )
                return windows.unbatch().skip(rest % window)

            epochs = tf.data.Dataset.range(start, tf.int64.max if repeat else 1)
            records = epochs.flat_map(one_epoch)
            if not fill:
                return records
            places = tf.data.Dataset.range(start_step * self.rows, num_batches * self.rows)

            def choose(place):
                batch = place // self.rows
                quota = (batch + 1) * total // num_batches - batch * total // num_batches
                return tf.cast(place % self.rows >= quota, tf.int64)

            filler = tf.data.Dataset.from_tensors("").repeat()
            return tf.data.Dataset.choose_from_datasets([records, filler], places.map(choose))

        parts = tf.data.Dataset.range(self.last - self.first)
        return parts.interleave(
            tf.autograph.experimental.do_not_convert(part_of),
            cycle_length=self.last - self.first,
            block_length=self.rows,
            num_parallel_calls=None,
        )

    def batches(self, records):
        """Cut the records of the process's parts into its rows of each batch."""
        rows = self.rows * (self.last - self.first)
        batches = records.batch(rows)
        if self.own == slice(0, rows):
            return batches
        return batches.map(lambda records: records[self.own])

    def draws(self, seed, step, length):
        """Return a draw function of a shape (N, B, T), the same for any number of processes."""

        def draw(shape):
            drawn = [
                tf.random.stateless_uniform(
                    (shape[0], self.rows, length),
                    tf.stack([seed, step * self.number + part]),
                    alg="philox",
                )
                for part in range(self.first, self.last)
            ]
            # The last batch of a single process may have fewer rows.
            return tf.concat(drawn, axis=1)[:, self.own][:, : shape[1], : shape[2]]

        draw.seed = tf.stack([seed, step])
        return draw


def _cut(counts, parts):
    """Split files with these numbers of records into equal parts: `(file, first, number)` lists.

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


def _filler(source):
    """Make an example of one token, for rows of weight 0."""
    sizes = {name: spec.shape[0] for name, spec in _spec(source.length, source.slots).items()}
    values = {
        name: np.zeros((1, size), "float32" if name == "masked_lm_weights" else "int64")
        for name, size in sizes.items()
    }
    values["input_mask"][:, 0] = 1
    return encode_examples(values)[0]


def _spec(length, slots):
    feature = tf.io.FixedLenFeature
    return {
        "input_ids": feature([length], tf.int64),
        "input_mask": feature([length], tf.int64),
        "segment_ids": feature([length], tf.int64),
        "masked_lm_positions": feature([slots], tf.int64),
        "masked_lm_ids": feature([slots], tf.int64),
        "masked_lm_weights": feature([slots], tf.float32),
        "next_sentence_labels": feature([1], tf.int64),
    }


def _parse(serialized, length, slots):
    parsed = tf.io.parse_example(serialized, _spec(length, slots))
    return {
        name: value if value.dtype == tf.float32 else tf.cast(value, tf.int32)
        for name, value in parsed.items()
    }


def _batch(parsed, there, mask, draw, next_sentence, num_segments, agreed):
    """Turn parsed features into `(x, y, sample_weight)`.

    Args:
        there: bool (B,). False for rows that only pad the batch.
        draw: function of a shape that draws numbers from 0 to 1.
        agreed: bool. Whether shapes must not depend on the rows, so that processes agree.
    """
    lengths = tf.reduce_sum(parsed["input_mask"], axis=1)  # (B,)
    longest = parsed["input_mask"].shape[1]
    if not agreed:
        buckets = tf.constant(buckets_up_to(longest))
        longest = tf.gather(buckets, tf.searchsorted(buckets, [tf.reduce_max(lengths)])[0])
    x = {
        "token_ids": parsed["input_ids"][:, :longest],  # (B, T)
        "padding_mask": parsed["input_mask"][:, :longest] > 0,
        "mask_positions": parsed["masked_lm_positions"],  # (B, P)
    }
    if num_segments:
        segments = parsed["segment_ids"][:, :longest]
        x["segment_ids"] = segments if num_segments > 1 else tf.zeros_like(segments)
    y = {"mlm_logits": parsed["masked_lm_ids"]}
    weights = {"mlm_logits": parsed["masked_lm_weights"]}
    if mask is not None:
        restored = _restore(x["token_ids"], x["mask_positions"], *y.values(), *weights.values())
        hidden = mask(restored, x["padding_mask"], draw, lengths)
        x["token_ids"], x["mask_positions"] = hidden["token_ids"], hidden["mask_positions"]
        y["mlm_logits"], weights["mlm_logits"] = hidden["mask_ids"], hidden["mask_weights"]
    if next_sentence:
        y["nsp_logits"] = parsed["next_sentence_labels"][:, 0]
        weights["nsp_logits"] = tf.cast(there, tf.float32)
    weights["mlm_logits"] *= tf.cast(there, tf.float32)[:, None]
    return x, y, weights


def _restore(token_ids, positions, ids, weights):
    """Put the masked tokens back."""
    used = tf.where(weights > 0)  # (slots that are used, 2): row, slot
    places = tf.stack([tf.cast(used[:, 0], tf.int32), tf.gather_nd(positions, used)], axis=1)
    return tf.tensor_scatter_nd_update(token_ids, places, tf.gather_nd(ids, used))


def _masker(masker, source, tokenizer, agreed):
    """Make a function of token ids, padding mask, `draw` and lengths that masks tokens."""
    described = source.described
    if described is None:
        raise ValueError(
            "These files have no manifest with the special tokens; pass the `tokenizer`, or "
            "masking='static'."
        )
    masker = {} if masker is None else masker
    edges = changing = None
    if isinstance(masker, dict):
        unknown = sorted(set(masker) - _MASKER)
        if unknown:
            raise ValueError(
                f"masker has the unknown setting {unknown[0]!r}; use some of "
                f"{', '.join(sorted(_MASKER))}."
            )
        rate = masker.get("mask_selection_rate")
        if isinstance(rate, (tuple, list)):
            _, last, batches = changing = rate
            check_whole("mask_selection_rate: batches", batches)
            check_rates(**{**_RATES, **masker, "mask_selection_rate": last})
            masker = {**masker, "mask_selection_rate": max(changing[:2])}
        check_rates(**{**_RATES, **masker})
        if masker.get("unit", "token") != "token":
            if tokenizer is None:
                raise ValueError(
                    f"masker with unit={masker['unit']!r} needs word boundaries; pass the "
                    "`tokenizer` that the records were made with."
                )
            edges = tokenizer.word_edges()

    def mask(token_ids, padding_mask, draw, lengths):
        maskable = padding_mask
        for special in described["special_token_ids"]:
            maskable &= token_ids != special
        if callable(masker):
            return masker(token_ids, maskable, draw.seed, lengths)
        if changing is not None:
            first, last, batches = changing
            done = tf.minimum(tf.cast(draw.seed[1], tf.float64) / batches, 1.0)
            # Apply a lower rate of all tokens as the highest rate of fewer tokens.
            share = (first + (last - first) * done) / max(first, last)
            lengths = share * tf.cast(lengths, tf.float64)
        hidden = mask_tokens(
            token_ids,
            maskable,
            draw,
            vocabulary_size=described["vocabulary_size"],
            mask_token_id=described["mask_token_id"],
            lengths=lengths,
            word_starts=None if edges is None else word_starts(token_ids, edges),
            **masker,
        )
        return hidden if changing is None or agreed else _without_empty_slots(hidden)

    return mask


def _without_empty_slots(hidden):
    """Remove slots that no row uses, in quarters, so that few shapes are compiled."""
    slots = hidden["mask_ids"].shape[1] or tf.shape(hidden["mask_ids"])[1]
    used = tf.reduce_max(tf.reduce_sum(tf.cast(hidden["mask_weights"], tf.int32), axis=1))
    quarter = (slots + 3) // 4
    slots = tf.minimum(-(-used // quarter) * quarter, slots)
    return {name: x if name == "token_ids" else x[:, :slots] for name, x in hidden.items()}


# The settings of masking, with the defaults that `check_rates` needs.
_RATES = {"mask_selection_rate": 0.15, "mask_token_rate": 0.8, "random_token_rate": 0.1}
_MASKER = {*_RATES, "mask_selection_length", "unit"}
