"""Examples for pre-training: from a corpus to shards of records, and from there to batches.

B batch, T tokens, P predictions.
"""

import collections
import contextlib
import dataclasses
import functools
import glob
import gzip
import hashlib
import itertools
import os
import warnings
import zlib

import numpy as np

from kerasbert._errors import check_whole, first_line
from kerasbert.backend.tensorflow import tf_modules
from kerasbert.data.batching import buckets_up_to, map_ahead
from kerasbert.data.block_examples import BlockExamples
from kerasbert.data.corpus import blocks
from kerasbert.data.manifest import (
    NAME,
    check_vocabulary,
    describe_tokenizer,
    new_manifest,
    read_manifest,
    total,
    write_manifest,
)
from kerasbert.data.masking import check_rates, mask_tokens, word_starts
from kerasbert.data.processes import map_in_processes
from kerasbert.files import fills_output, inside, new_file, output_folder

# A random next sentence comes from one of this many documents at least, where the corpus has so
# many, or a block of this many bytes would be exceeded.
POOL = 8
LARGEST = 1 << 25
# Blocks for which no processes are started.
FEW = 16
# Shards that are read in turns.
IN_TURNS = 16
# The share of random pairs from which a warning says so; it is about a half in running text.
ONE_SIDED = 0.9


# === Writing ===


@fills_output
def write_examples(
    corpus,
    output,
    tokenizer,
    *,
    sequence_length=128,
    objective="next_sentence",
    copies=1,
    short_sequence_rate=None,
    mask_selection_rate=0.15,
    mask_selection_length=None,
    mask_token_rate=0.8,
    random_token_rate=0.1,
    mask_unit="token",
    seed=0,
    workers=None,
    block_bytes=1 << 20,
    blocks_per_shard=16,
    progress=None,
    **reading,
):
    """Turn a corpus into shards of examples for pre-training, on all cores.

    Writes `examples-00000.tfrecord.gz` and so on, and `manifest.json`, into `output`. The records
    have the features of google-research/bert and are masked as there, once; `read_examples` masks
    them anew. They depend on the corpus, the tokenizer and the settings, not on `workers`. A run
    that was interrupted goes on after its last complete shard when it is started again.

    The text is taken in blocks of whole documents, of `block_bytes` or more. A random next sentence
    comes from another document of the same block, which has eight at least where the corpus
    does: so memory holds a few blocks and never the corpus. Pass a larger `block_bytes` to
    choose among more documents where they are long.

    The objectives:

    - "next_sentence": B follows A, or, for about half, comes from another document (BERT).
    - "sentence_order": B follows A, or, for half, A follows B (ALBERT).
    - "full_sentences": one text of whole sentences in a row, and on into the next document, after
      a separator (RoBERTa).

    A pair that is too long loses tokens as in BERT; a sentence that is too long for a row of
    full sentences is cut.

    Args:
        corpus: path, pattern, folder, or a list of these; see `documents`.
        output: path of a folder.
        tokenizer: a tokenizer of `kerasbert.tokenizers`.
        sequence_length: int. Tokens in a row, special ones included.
        objective: string.
        copies: int. How often the corpus is gone over, each time with other draws.
        short_sequence_rate: float. The share of documents, or of rows of full sentences, that aim
            at fewer tokens. `None` is 0.1, and 0 for full sentences.
        mask_selection_rate: float. The share of tokens that are to be predicted.
        mask_selection_length: int. The most of them in a row; `None` is that share of
            `sequence_length`, rounded up.
        mask_token_rate: float. The share of these that becomes the mask token.
        random_token_rate: float. The share of these that becomes any token.
        mask_unit: string. What is hidden together, "token", "word", "span" or "ngram"; see
            `mask_tokens`.
        seed: int.
        workers: int. Processes; `None` is one a core, or none beside this one for a corpus of a
            few blocks. A script that uses several has to call this below
            `if __name__ == "__main__":`.
        block_bytes: int.
        blocks_per_shard: int.
        progress: function `(share, examples)`, called after each block.
        **reading: how the corpus is read: settings of `documents`.

    Returns:
        The manifest, a dict: `counts` of documents, sentences, tokens, examples, `not_next`
        (label 1) and `masked` tokens, `settings`, `tokenizer`, `shards`.

    Raises:
        ValueError: for settings that make no sense, for a corpus without text, or with one
            document where the objective needs two, and if `output` has records of another corpus
            or other settings.
        OSError: if the disk is full. Nothing half-written is left.

    Source: Devlin et al. 2019, arXiv 1810.04805, appendix A, and its released code; Lan et al.
    2020, arXiv 1909.11942; Liu et al. 2019, arXiv 1907.11692.
    """
    make = BlockExamples(
        tokenizer,
        sequence_length=sequence_length,
        objective=objective,
        copies=copies,
        short_sequence_rate=short_sequence_rate,
        mask_selection_rate=mask_selection_rate,
        mask_selection_length=mask_selection_length,
        mask_token_rate=mask_token_rate,
        random_token_rate=random_token_rate,
        mask_unit=mask_unit,
        seed=seed,
    )
    check_whole("block_bytes", block_bytes)
    check_whole("blocks_per_shard", blocks_per_shard)
    if workers is not None:
        check_whole("workers", workers)
    output = output_folder(output, "output")
    settings = {
        **make.settings,
        "block_bytes": block_bytes,
        "blocks_per_shard": blocks_per_shard,
        "reading": reading,
    }
    manifest = _begin(output, new_manifest(settings, tokenizer))
    shards = manifest["shards"]
    examples = sum(shard["examples"] for shard in shards)
    parts = _numbered(corpus, objective, block_bytes, reading)
    parts = _skip_finished(parts, shards, blocks_per_shard, output)
    with contextlib.closing(_run(make, parts, workers)) as results:
        groups = itertools.groupby(results, lambda result: result[0].number // blocks_per_shard)
        for number, group in groups:
            name = f"examples-{number:05}.tfrecord.gz"
            with new_file(os.path.join(output, name)) as file:
                text, data = hashlib.sha256(), hashlib.sha256()
                counts = collections.Counter()
                for part, (records, counted) in group:
                    file.write(records)
                    data.update(records)
                    text.update(part.digest)
                    counts.update(counted)
                    if progress is not None:
                        progress(part.share, examples + counts["examples"])
                size = file.tell()
            hashes = {"sha256": data.hexdigest(), "text_sha256": text.hexdigest()}
            shards.append({"name": name, "bytes": size, **hashes, **counts})
            examples += counts["examples"]
            manifest["complete"] = False
            write_manifest(output, manifest)
    counts = total(shards)
    if not counts["examples"]:
        _remove(output, shards)
        raise ValueError(
            f"The corpus {corpus!r} makes no example: none of its {counts['documents']:,} "
            "documents has two sentences, which the objective 'sentence_order' needs."
        )
    if objective == "next_sentence":
        _check_labels(corpus, output, shards, counts)
    manifest |= {"counts": counts, "complete": True}
    write_manifest(output, manifest)
    return manifest


def _remove(output, shards):
    for name in (NAME, *(shard["name"] for shard in shards)):
        os.remove(os.path.join(output, name))


def _check_labels(corpus, output, shards, counts):
    """Raise where no pair can be a sentence and its next one, and warn where few are."""
    if counts["sentences"] == counts["documents"]:
        _remove(output, shards)
        raise ValueError(one_sided(f"The corpus {corpus!r}", counts["documents"]))
    share = counts["not_next"] / counts["examples"]
    if share > ONE_SIDED and counts["examples"] >= 100:
        warnings.warn(
            f"{share:.1%} of the pairs that the corpus {corpus!r} makes are random: most of its "
            f"{counts['documents']:,} documents have one sentence. Next-sentence prediction learns "
            "little of them and its accuracy says nothing; see `document_end` and `sentences` for "
            "how text is read, or take the objective 'full_sentences'.",
            stacklevel=3,
        )


def one_sided(what, documents):
    """What is said of documents that have no next sentence."""
    return (
        f"{what} has {documents:,} documents of one sentence each, so that no sentence has a next "
        "one: every pair would be random, and next-sentence prediction right without learning. "
        "If these are parts of larger documents, say where those end (document_end='empty_line' "
        "or 'file'; --reading document_end=file); else take the objective 'full_sentences', which "
        "has no pairs."
    )


def _begin(output, manifest):
    """The new manifest, or that of the run to go on with."""
    found = read_manifest(output)
    if found is None:
        return manifest
    for part in (("settings",), ("tokenizer", "settings"), ("tokenizer",)):
        before, now = found, manifest
        for name in part:  # The innermost first, so that it is the setting that is named.
            before, now = before.get(name, {}), now.get(name, {})
        other = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        if other:
            raise ValueError(
                f"'{output}' has records of other settings: {other[0]} was "
                f"{before.get(other[0])!r}, and is {now.get(other[0])!r} now; name another folder, "
                "or remove this one."
            )
    for shard in found["shards"]:
        check_shard(output, shard)
    return found


def check_shard(folder, shard):
    """Path of a shard, which is there and as it was when it was written."""
    path = inside(folder, shard["name"], os.path.join(folder, NAME))
    if not os.path.exists(path):
        raise ValueError(f"The shard '{path}' is missing; write the examples anew.")
    size = os.path.getsize(path)
    if size != shard["bytes"]:
        raise ValueError(
            f"The shard '{path}' has {size} bytes, and had {shard['bytes']} when it was written: "
            "it is cut short or damaged; remove the folder and write the examples anew."
        )
    with open(path, "rb") as file:
        # Several hundred MB a second, once, before hours of training.
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != (shard.get("sha256") or found):
        raise ValueError(
            f"The shard '{path}' has other bytes than those that were written: it is damaged; "
            "remove the folder and write the examples anew."
        )
    return path


@dataclasses.dataclass(frozen=True)
class _Part:
    """A block with its number, a hash of its text, and the share of the corpus read so far."""

    number: int
    block: object
    digest: bytes
    share: float


def _numbered(corpus, objective, block_bytes, reading):
    found = (block for _, block in blocks(corpus, block_bytes=block_bytes, **reading))
    if objective == "next_sentence":
        found = _with_others(found, corpus)
    for number, block in enumerate(found):
        digest = hashlib.sha256()
        for piece in block.pieces:
            digest.update(piece.data)
        yield _Part(number, block, digest.digest(), block.progress)


def _with_others(found, corpus):
    """Join blocks until each has documents to choose a random next sentence from."""
    ready = joined = None
    for block in found:
        joined = _join(joined, block)
        if _has_others(joined):
            if ready is not None:
                yield ready
            ready, joined = joined, None
    ready = _join(ready, joined)
    if _count(ready, 2) < 2:
        raise ValueError(
            f"The corpus {corpus!r} has one document only, and the random next sentence comes from "
            f"another one: {_other_end(ready)}, or take another objective, 'sentence_order' or "
            "'full_sentences'."
        )
    yield ready


def _other_end(block):
    """What would make several documents of one."""
    for end in ("empty_line", "line"):
        pieces = tuple(dataclasses.replace(piece, kind=end) for piece in block.pieces)
        count = _count(dataclasses.replace(block, pieces=pieces), 1000)
        if count > 1 and all(piece.kind != "json" for piece in block.pieces):
            ends = {"empty_line": "its empty lines", "line": "the ends of its lines"}[end]
            return (
                f"if documents end at {ends} ({count:,}{' or more' if count == 1000 else ''}), "
                f"pass document_end='{end}' (--reading document_end={end})"
            )
    return "end documents with an empty line"


def _join(block, other):
    if block is None or other is None:
        return block or other
    return dataclasses.replace(other, pieces=block.pieces + other.pieces)


def _has_others(block):
    count = _count(block, POOL)
    return count >= POOL or (count > 1 and block.size >= LARGEST)


def _count(block, most):
    """The documents of a block, at most so many; sentences need not be split for that."""
    settings = dataclasses.replace(block.settings, sentences="lines")
    return sum(1 for _ in itertools.islice(dataclasses.replace(block, settings=settings), most))


def _skip_finished(parts, shards, blocks_per_shard, output):
    """Leave out the parts of shards that are there, if they were made of the same text."""
    finished = list(shards)  # as they are now
    for number, group in itertools.groupby(parts, lambda part: part.number // blocks_per_shard):
        if number >= len(finished):
            yield from group
            continue
        text = hashlib.sha256()
        for part in group:
            text.update(part.digest)
        if text.hexdigest() != finished[number]["text_sha256"]:
            raise _other_text(output)
        finished[number] = None
    if any(finished):
        raise _other_text(output)


def _other_text(output):
    return ValueError(
        f"'{output}' has records of another text than the corpus has now; name another folder, or "
        "remove this one."
    )


def _run(make, parts, workers):
    """Yield `(part, make(...))` in order, made in several processes where it is worth it."""
    parts = iter(parts)
    first = list(itertools.islice(parts, 1))
    parts = itertools.chain(first, parts)
    if workers is None:
        # Processes take seconds to start.
        workers = _cores() if first and _blocks_left(first[0]) > FEW else 1
    if workers == 1:
        for part in parts:
            yield part, make(part.number, part.block)
        return
    tasks = ((dataclasses.replace(p, block=None), (p.number, p.block)) for p in parts)
    with contextlib.closing(map_in_processes(make, tasks, workers)) as results:
        yield from results


def _cores():
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _blocks_left(part):
    """About how many blocks come from this one on."""
    return (part.number + 1) / max(part.share, 1e-9) - part.number


# === Reading ===


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
            `(token_ids, maskable, seed, lengths)` that returns what `mask_tokens` does.
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
    tf, _ = tf_modules("Reading examples")
    if masking not in ("dynamic", "static"):
        raise ValueError(f"masking={masking!r} is unknown; use 'dynamic' or 'static'.")
    check_whole("batch_size", batch_size)
    check_whole("start_step", start_step, 0)
    check_whole("shuffle_buffer", shuffle_buffer, 0)
    with tf.device("cpu"):
        source = _source(files, tokenizer, shards)
        if next_sentence is None:
            next_sentence = source.next_sentence
        if masking == "static":
            mask = None
        else:
            mask = _masker(masker, source.described, tokenizer)
        # Two streams of chance, whatever the backend's global seed is.
        seeds = np.random.SeedSequence(seed).generate_state(2, "uint64").astype("int64")
        records = _records(source, seeds[0], start_step * batch_size, shuffle_buffer, repeat)
        batches = records.batch(batch_size).enumerate(start_step)
        steps = tf.data.INFINITE_CARDINALITY
        if not repeat:
            steps = max(0, -(-source.examples // batch_size) - start_step)
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
    given = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    paths = []
    for pattern in map(os.fspath, given):
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
    tf, _ = tf_modules("Reading examples")
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
    tf, _ = tf_modules("Reading examples")
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
    tf, _ = tf_modules("Reading examples")
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
    tf, _ = tf_modules("Reading examples")
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
    tf, _ = tf_modules("Reading examples")
    packed = tf.strings.regex_full_match(path, r"(?s).*\.gz")
    return tf.data.TFRecordDataset(path, tf.where(packed, "GZIP", ""))


def _records(source, seed, skip, shuffle_buffer, repeat):
    """Serialized examples, from number `skip` on: a dataset."""
    tf, _ = tf_modules("Reading examples")
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
    tf, _ = tf_modules("Reading examples")
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
    tf, _ = tf_modules("Reading examples")
    parsed = tf.io.parse_example(serialized, _spec(length, slots))
    return {
        name: value if value.dtype == tf.float32 else tf.cast(value, tf.int32)
        for name, value in parsed.items()
    }


def _batch(parsed, mask, seed, next_sentence, num_segments):
    """From parsed features to `(x, y, sample_weight)`."""
    tf, _ = tf_modules("Reading examples")
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
    tf, _ = tf_modules("Reading examples")
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
    if masker is None:
        masker = {}
    edges = None
    if isinstance(masker, dict):
        unknown = sorted(set(masker) - _MASKER)
        if unknown:
            raise ValueError(
                f"masker has {unknown[0]!r}, which is no setting of masking; those are "
                f"{', '.join(sorted(_MASKER))}."
            )
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
        return mask_tokens(
            token_ids,
            maskable,
            seed,
            vocabulary_size=described["vocabulary_size"],
            mask_token_id=described["mask_token_id"],
            lengths=lengths,
            word_starts=None if edges is None else word_starts(token_ids, edges),
            **masker,
        )

    return mask


# The settings of masking, with those defaults that `check_rates` needs.
_RATES = {"mask_selection_rate": 0.15, "mask_token_rate": 0.8, "random_token_rate": 0.1}
_MASKER = {*_RATES, "mask_selection_length", "unit"}
