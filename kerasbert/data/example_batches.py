"""Examples for pre-training, read: from shards of records to batches.

B batch, T tokens, P predictions.
"""

import contextlib
import dataclasses
import functools
import glob
import gzip
import os
import zlib

import numpy as np

from kerasbert._errors import check_choice, check_whole, first_line
from kerasbert.backend.tensorflow import tf
from kerasbert.data.batching import buckets_up_to, map_ahead
from kerasbert.data.corpus import as_paths
from kerasbert.data.manifest import (
    NAME,
    check_shard,
    check_vocabulary,
    describe_tokenizer,
    read_manifest,
    total,
)
from kerasbert.data.masking import check_rates, mask_tokens, word_starts

# Shards that are read in turns.
IN_TURNS = 16
# Bytes of a record that no example has.
LARGEST = 1 << 25


def read_examples(
    files,
    batch_size,
    *,
    tokenizer=None,
    masking="dynamic",
    masker=None,
    next_sentence=None,
    num_segments=2,
    seed=0,
    start_step=0,
    shuffle_buffer=1 << 16,
    repeat=True,
    shards=None,
):
    """Batches of examples for `BertPretrainer.fit`, from `write_examples` or google-research/bert.

    Batch number s depends on the files, the settings, the seed and s alone: with `start_step=k`
    come exactly the batches from the k-th on. Records before it in its epoch are read, but not
    parsed.

    In each epoch the shards are read in another order, 16 in turns, and `shuffle_buffer` records
    at a time are shuffled. Rows are cut to the longest of the batch, rounded up to a bucket of
    `kerasbert.data.buckets_up_to`.

    Files without a manifest, as those of the reference, are gone through once first, to count
    their records and to find what is cut short.

    Args:
        files: the folder of `write_examples`, or paths or patterns of TFRecords, compressed where
            the name ends in `.gz`.
        batch_size: int.
        tokenizer: that which the records were made with. Checked against the manifest; needed only
            for dynamic masking of files without one, and for words.
        masking: "dynamic" puts the hidden tokens back and hides others, in each epoch; "static"
            leaves what was hidden when the records were written.
        masker: for dynamic masking, settings of `mask_tokens` as a dict, such as
            `{"mask_selection_rate": 0.3, "unit": "word"}`, or a function
            `(token_ids, maskable, seed, lengths)` that returns what `mask_tokens` does. Here
            `mask_selection_rate` may be `(first, last, batches)`, a rate that goes evenly from one
            to the other over so many batches; slots that are no longer used are cut off then.
        next_sentence: bool. Whether there are labels of pairs; `None` is what the manifest says,
            and true without one.
        num_segments: int. 0 leaves `segment_ids` out, 1 fills it with zeros, as in RoBERTa.
        seed: int.
        start_step: int. The number of the first batch.
        shuffle_buffer: int. 0 keeps the order of files and records.
        repeat: bool. `True` never ends, one epoch after the other, also inside a batch; `False`
            is one epoch, and the last batch may be smaller.
        shards: list of strings. Of a folder with a manifest, the names of the shards to read;
            `None` is all of them.

    Returns:
        A `tf.data.Dataset` of `(x, y, sample_weight)`: `x` a dict of `token_ids` (B, T),
        `segment_ids` (B, T), `padding_mask` (B, T) and `mask_positions` (B, P); `y` and
        `sample_weight` dicts of `mlm_logits` (B, P) and `nsp_logits` (B,).

    Raises:
        ValueError: for files that are missing, cut short or no such records, for another
            vocabulary than the records', and for settings that make no sense.
    """
    check_choice("masking", masking, ("dynamic", "static"))
    check_whole("batch_size", batch_size)
    check_whole("start_step", start_step, 0)
    check_whole("shuffle_buffer", shuffle_buffer, 0)
    with tf.device("cpu"):
        source = _source(files, tokenizer, shards)
        if next_sentence is None:
            next_sentence = source.next_sentence
        mask = None if masking == "static" else _masker(masker, source.described, tokenizer)
        # Two streams of chance, whatever the backend's global seed is.
        seeds = np.random.SeedSequence(seed).generate_state(2, "uint64").astype("int64")
        records = _records(source, seeds[0], start_step * batch_size, shuffle_buffer, repeat)
        batches = records.batch(batch_size).enumerate(start_step)
        in_one_epoch = max(0, -(-source.examples // batch_size) - start_step)
        steps = tf.data.INFINITE_CARDINALITY if repeat else in_one_epoch
        batches = batches.apply(tf.data.experimental.assert_cardinality(steps))

        @tf.autograph.experimental.do_not_convert
        def make(step, serialized):
            return _batch(
                _parse(serialized, source.length, source.slots),
                mask,
                tf.stack([tf.constant(seeds[1]), step]),
                next_sentence,
                num_segments,
            )

        return map_ahead(batches, make)


@dataclasses.dataclass
class _Source:
    """Files of records and what is known of them."""

    paths: list
    examples: int
    length: int  # T of the records
    slots: int  # P of the records
    next_sentence: bool
    described: dict | None  # the tokenizer, of a manifest


def _source(files, tokenizer, shards=None):
    """Find and check the files."""
    if isinstance(files, (str, os.PathLike)) and os.path.isdir(files):
        manifest = read_manifest(files)
        if manifest is None:
            files = os.path.join(files, "*.tfrecord*")
        else:
            if shards is not None:
                named = [shard for shard in manifest["shards"] if shard["name"] in shards]
                manifest = {**manifest, "shards": named, "counts": total(named)}
            return _written(os.fspath(files), manifest, tokenizer)
    paths = []
    for pattern in as_paths(files):
        found = [pattern] if os.path.isfile(pattern) else sorted(glob.glob(pattern))
        if not found:
            raise ValueError(f"There is no file of examples '{pattern}'.")
        paths += found
    if not paths:
        raise ValueError("The list of files of examples is empty; name at least one.")
    looks = [_look(path, tokenizer) for path in paths]
    for path, look in zip(paths, looks):
        if look[1:] != looks[0][1:]:
            raise ValueError(
                f"'{path}' has rows of {look[1]} tokens with {look[2]} predictions, and "
                f"'{paths[0]}' of {looks[0][1]} with {looks[0][2]}; read them apart."
            )
    described = None if tokenizer is None else describe_tokenizer(tokenizer)
    return _Source(paths, sum(look[0] for look in looks), *looks[0][1:], True, described)


def _written(folder, manifest, tokenizer):
    if not manifest["complete"]:
        raise ValueError(
            f"The examples in '{folder}' are not complete: writing was interrupted after "
            f"{len(manifest['shards'])} shards; run `write_examples` again to go on."
        )
    if tokenizer is not None:
        check_vocabulary(manifest, tokenizer, folder)
    settings = manifest["settings"]
    paths = [check_shard(folder, shard) for shard in manifest["shards"]]
    if not paths:
        raise ValueError(f"'{os.path.join(folder, NAME)}' names no shards; write them anew.")
    with _reading(paths[0]):
        sizes = _sizes(next(iter(_open(tf.constant(paths[0])))), paths[0])
    if sizes != (settings["sequence_length"], settings["mask_selection_length"]):
        raise ValueError(
            f"'{paths[0]}' has rows of {sizes[0]} tokens with {sizes[1]} predictions, other than "
            f"'{os.path.join(folder, NAME)}' says; remove the folder and write the examples anew."
        )
    return _Source(
        paths,
        manifest["counts"]["examples"],
        *sizes,
        settings["objective"] != "full_sentences",
        manifest["tokenizer"],
    )


def _look(path, tokenizer):
    """Go through a file without a manifest: its number of examples, T and P."""
    records = _open(tf.constant(path))
    with _reading(path):
        _check_frames(path)
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
                        f"The examples of '{path}' have {name} from {low} to {high}: make it again."
                    )
                most = max(most, high if name in ("input_ids", "masked_lm_ids") else 0)
            if not tf.reduce_all(tf.math.is_finite(parsed["masked_lm_weights"])):
                raise ValueError(f"The examples of '{path}' have masked_lm_weights of nan or inf.")
            count += int(tf.size(some))
        ids = tf.io.parse_single_example(first, spec)["input_ids"].numpy()
    if tokenizer is not None and (
        ids[0] != tokenizer.start_token_id or most >= tokenizer.vocabulary_size()
    ):
        raise ValueError(
            f"The examples of '{path}' were made with another vocabulary: the first begins with "
            f"{ids[0]} and they have ids up to {most}, and the tokenizer's rows begin with "
            f"{tokenizer.start_token_id} and have ids below {tokenizer.vocabulary_size()}."
        )
    return count, length, slots


@contextlib.contextmanager
def _reading(path):
    """Say in a sentence what is wrong with a file of examples."""
    try:
        yield
    except (tf.errors.DataLossError, EOFError, gzip.BadGzipFile, zlib.error):
        raise ValueError(
            f"'{path}' is cut short, damaged or no TFRecords: make it again."
        ) from None
    except StopIteration:
        raise ValueError(f"'{path}' has no examples: make it again.") from None
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(
            f"'{path}' has records that are no examples ({first_line(error)}): make it again."
        ) from None


def _sizes(record, path):
    """How many tokens and predictions an example has."""
    features = tf.train.Example.FromString(record.numpy()).features.feature
    names = ("input_ids", "masked_lm_positions")
    sizes = tuple(len(features[name].int64_list.value) for name in names)
    for name, size in zip(names, sizes, strict=True):
        if not size:
            raise ValueError(
                f"The examples of '{path}' have no {name!r}; those of pre-training do."
            )
    return sizes


def _check_frames(path):
    """Raise an `EOFError` where a record is longer than the file, or than any example.

    TensorFlow would first ask for the memory; and of a short compressed file it may take the last
    part for its end.
    """
    with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
        while header := file.read(12):
            length = int.from_bytes(header[:8], "little")
            if len(header) < 12 or length > LARGEST or len(file.read(length + 4)) < length + 4:
                raise EOFError


def _open(path):
    packed = tf.strings.regex_full_match(path, r"(?s).*\.gz")
    return tf.data.TFRecordDataset(path, tf.where(packed, "GZIP", ""))


def _records(source, seed, skip, shuffle_buffer, repeat):
    """Serialized examples, from number `skip` on: a dataset."""
    first, skip = divmod(skip, source.examples) if repeat else (0, skip)
    shuffle = functools.partial(tf.random.experimental.stateless_shuffle, alg="philox")

    def one_epoch(epoch):
        paths = tf.constant(source.paths)
        rest = tf.where(epoch == first, tf.constant(skip, tf.int64), 0)
        # The lower half counts what is shuffled in an epoch.
        number = tf.bitwise.left_shift(epoch, 32)
        if not shuffle_buffer:
            return tf.data.Dataset.from_tensor_slices(paths).flat_map(_open).skip(rest)
        paths = tf.data.Dataset.from_tensor_slices(shuffle(paths, tf.stack([seed, number])))
        records = paths.interleave(_open, cycle_length=min(IN_TURNS, len(source.paths)))
        # Not by `shuffle`, which follows the global seed too, and cannot begin in the middle.
        windows = records.skip(rest // shuffle_buffer * shuffle_buffer).batch(shuffle_buffer)
        windows = windows.enumerate(rest // shuffle_buffer + 1)
        windows = windows.map(lambda i, window: shuffle(window, tf.stack([seed, number + i])))
        return windows.unbatch().skip(rest % shuffle_buffer)

    epochs = tf.data.Dataset.range(first, tf.int64.max if repeat else 1)
    return epochs.flat_map(tf.autograph.experimental.do_not_convert(one_epoch))


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


def _batch(parsed, mask, seed, next_sentence, num_segments):
    """From parsed features to `(x, y, sample_weight)`."""
    lengths = tf.reduce_sum(parsed["input_mask"], axis=1)  # (B,)
    buckets = tf.constant(buckets_up_to(parsed["input_mask"].shape[1]))
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
        hidden = mask(restored, x["padding_mask"], seed, lengths)
        x["token_ids"], x["mask_positions"] = hidden["token_ids"], hidden["mask_positions"]
        y["mlm_logits"], weights["mlm_logits"] = hidden["mask_ids"], hidden["mask_weights"]
    if next_sentence:
        y["nsp_logits"] = parsed["next_sentence_labels"][:, 0]
        weights["nsp_logits"] = tf.ones_like(lengths, tf.float32)
    return x, y, weights


def _restore(token_ids, positions, ids, weights):
    """Put the tokens that were hidden back."""
    used = tf.where(weights > 0)  # (slots that are used, 2): row, slot
    places = tf.stack([tf.cast(used[:, 0], tf.int32), tf.gather_nd(positions, used)], axis=1)
    return tf.tensor_scatter_nd_update(token_ids, places, tf.gather_nd(ids, used))


def _masker(masker, described, tokenizer):
    """A function of token ids, padding mask, seed and lengths that hides tokens."""
    if described is None:
        raise ValueError(
            "These files have no manifest, which would name the special tokens; pass the "
            "`tokenizer`, or masking='static'."
        )
    masker = {} if masker is None else masker
    edges = changing = None
    if isinstance(masker, dict):
        unknown = sorted(set(masker) - _MASKER)
        if unknown:
            raise ValueError(
                f"masker has {unknown[0]!r}, which is no setting of masking; those are "
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
                    f"masker with unit={masker['unit']!r} needs to know the words; pass the "
                    "`tokenizer` that the records were made with."
                )
            edges = tokenizer.word_edges()

    def mask(token_ids, padding_mask, seed, lengths):
        maskable = padding_mask
        for special in described["special_token_ids"]:
            maskable &= token_ids != special
        if callable(masker):
            return masker(token_ids, maskable, seed, lengths)
        if changing is not None:
            first, last, batches = changing
            done = tf.minimum(tf.cast(seed[1], tf.float64) / batches, 1.0)
            # A lower share of all tokens is the highest share of fewer.
            share = (first + (last - first) * done) / max(first, last)
            lengths = share * tf.cast(lengths, tf.float64)
        hidden = mask_tokens(
            token_ids,
            maskable,
            seed,
            vocabulary_size=described["vocabulary_size"],
            mask_token_id=described["mask_token_id"],
            lengths=lengths,
            word_starts=None if edges is None else word_starts(token_ids, edges),
            **masker,
        )
        return hidden if changing is None else _without_empty_slots(hidden)

    return mask


def _without_empty_slots(hidden):
    """Cut off slots that no row uses, by quarters: each number of them is compiled once."""
    slots = hidden["mask_ids"].shape[1] or tf.shape(hidden["mask_ids"])[1]
    used = tf.reduce_max(tf.reduce_sum(tf.cast(hidden["mask_weights"], tf.int32), axis=1))
    quarter = (slots + 3) // 4
    slots = tf.minimum(-(-used // quarter) * quarter, slots)
    return {name: x if name == "token_ids" else x[:, :slots] for name, x in hidden.items()}


# The settings of masking, with those defaults that `check_rates` needs.
_RATES = {"mask_selection_rate": 0.15, "mask_token_rate": 0.8, "random_token_rate": 0.1}
_MASKER = {*_RATES, "mask_selection_length", "unit"}
