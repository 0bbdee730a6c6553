"""Files of examples for pre-training."""

import contextlib
import dataclasses
import gzip
import io
import itertools
import os
import threading
import weakref
import zlib
from collections import OrderedDict

import numpy as np

from kerasbert.base.files import temporary_folder
from kerasbert.base.paths import is_url
from kerasbert.base.storage import find, get, join
from kerasbert.data.corpus_files import as_paths
from kerasbert.data.manifest import (
    NAME,
    check_hash,
    check_shards,
    check_vocabulary,
    describe_tokenizer,
    read_manifest,
    shard_path,
)
from kerasbert.data.records import (
    NotAnExampleError,
    decode_examples,
    feature_sizes,
    read_records,
)
from kerasbert.data.sentence_pairs import LABELED

# Parts of records that are read in turn.
IN_TURNS = 16


@dataclasses.dataclass
class ExampleFiles:
    """Files of records and their properties."""

    paths: list
    counts: list  # number of records in each file
    length: int  # T, the records' length in tokens
    slots: int  # P, the predictions per record
    next_sentence: bool
    described: dict | None  # the tokenizer, as in a manifest
    opened: object  # function of a path that returns a local path with its content
    folder: str | None = None  # the manifest's folder
    shards: list | None = None  # the manifest's entry for each path

    @property
    def examples(self):
        return sum(self.counts)


def find_examples(files, tokenizer, shards=None):
    """Find and check the files; return an `ExampleFiles`."""
    given = as_paths(files)
    if len(given) == 1 and isinstance(files, (str, os.PathLike)):
        manifest = read_manifest(given[0])
        if manifest is not None:
            if shards is not None:
                named = set(shards)
                manifest["shards"] = [x for x in manifest["shards"] if x["name"] in named]
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
    opened = _Copies(paths)
    looks = [_look(path, opened, tokenizer) for path in paths]
    for path, look in zip(paths, looks):
        if look[1:] != looks[0][1:]:
            raise ValueError(
                f"'{path}' has rows of {look[1]} tokens with {look[2]} predictions, but "
                f"'{paths[0]}' has {looks[0][1]} with {looks[0][2]}; read them separately."
            )
    described = None if tokenizer is None else describe_tokenizer(tokenizer)
    counts = [look[0] for look in looks]
    return ExampleFiles(paths, counts, *looks[0][1:], True, described, opened)


def _of_a_manifest(paths):
    """Return the files' folder and its manifest of them, or `None` without one."""
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
    opened = _Copies(paths, shards)
    with reading_examples(paths[0]):
        sizes = _sizes(next(records_in(opened(paths[0]))), paths[0])
    if sizes != (settings["sequence_length"], settings["mask_selection_length"]):
        raise ValueError(
            f"'{paths[0]}' has rows of {sizes[0]} tokens with {sizes[1]} predictions, which "
            f"contradicts '{join(folder, NAME)}'; remove the folder and write the examples again."
        )
    return ExampleFiles(
        paths,
        [shard["examples"] for shard in shards],
        *sizes,
        settings["objective"] in LABELED,
        manifest["tokenizer"],
        opened,
        folder,
        shards,
    )


def _look(path, opened, tokenizer):
    """Check a file without a manifest; return its number of examples, T and P."""
    with reading_examples(path):
        records = records_in(opened(path))
        first = next(records)
        length, slots = _sizes(first, path)
        records = itertools.chain([first], records)
        limits = {"masked_lm_positions": length, "segment_ids": 2, "next_sentence_labels": 2}
        count = most = 0
        while some := list(itertools.islice(records, 4096)):
            parsed = parse_examples(some, length, slots)
            for name in ("input_ids", "masked_lm_ids", *limits):
                low, high = int(parsed[name].min()), int(parsed[name].max())
                if low < 0 or high >= limits.get(name, 1 << 31):
                    raise ValueError(
                        f"'{path}' has examples with {name} from {low} to {high}, which is out of "
                        "range; make it again."
                    )
                most = max(most, high if name in ("input_ids", "masked_lm_ids") else 0)
            if not np.isfinite(parsed["masked_lm_weights"]).all():
                raise ValueError(
                    f"'{path}' has examples with masked_lm_weights of nan or inf; make it again."
                )
            if not count:
                ids = parsed["input_ids"][0]
            count += len(some)
    if tokenizer is not None:
        begins = list(tokenizer.frame.before)
        found = ids[: len(begins)].tolist()
        if found != begins or most >= tokenizer.vocabulary_size():
            raise ValueError(
                f"The examples of '{path}' were made with another vocabulary: the first begins "
                f"with {found} and the largest id is {most}, but the tokenizer's rows begin with "
                f"{begins} and its ids are below {tokenizer.vocabulary_size()}."
            )
    return count, length, slots


@contextlib.contextmanager
def reading_examples(path):
    """Replace any error while reading a file of examples by an error that names the file."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise ValueError(
            f"'{path}' is truncated, damaged or not a TFRecord file; make it again."
        ) from None
    except StopIteration:
        raise ValueError(f"'{path}' has no examples; make it again.") from None
    except NotAnExampleError as error:
        raise ValueError(
            f"'{path}' has records that are not examples ({error}); make it again."
        ) from None


def _sizes(record, path):
    """Return the number of tokens and of predictions of an example."""
    found = feature_sizes(record)
    names = ("input_ids", "masked_lm_positions")
    sizes = tuple(found.get(name, 0) for name in names)
    for name, size in zip(names, sizes, strict=True):
        if not size:
            raise ValueError(
                f"The examples of '{path}' have no {name!r}, which pre-training needs."
            )
    return sizes


def records_in(path):
    """Yield the records of a local file."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
        yield from read_records(io.BufferedReader(file, 1 << 18))


class _Copies:
    """Function from a path or URL to a local path; files at URLs are downloaded.

    The newest `2 * IN_TURNS` copies are kept, in a temporary folder that is removed with this
    object.
    """

    def __init__(self, paths, shards=None):
        self.shards = dict(zip(paths, shards)) if shards else {}
        self.copies, self.number = OrderedDict(), 0
        if any(map(is_url, paths)):
            stack = contextlib.ExitStack()
            self.folder = stack.enter_context(temporary_folder())
            weakref.finalize(self, stack.close)
            self.lock = threading.Lock()

    def __call__(self, path):
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
            copied = os.path.join(self.folder, f"{self.number:09}-{os.path.basename(path)}")
            get(path, copied)
            if path in self.shards:
                check_hash(copied, path, self.shards[path])
            self.copies[path] = copied
            return copied


def parse_examples(records, length, slots):
    """Parse serialized examples of T tokens (`length`) with P predictions (`slots`).

    Args:
        records: list of R bytes.

    Returns:
        A dict of arrays (R, T), (R, P) and (R, 1), int64 or float32, with the names of
        google-research/bert.
    """
    sizes = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), length)
    sizes |= dict.fromkeys(("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"), slots)
    return decode_examples(records, {**sizes, "next_sentence_labels": 1}, ["masked_lm_weights"])
