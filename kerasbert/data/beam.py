"""Pre-training examples and word counts of large corpora with Apache Beam.

Files of plain text, JSON lines or Parquet are read in parts of `PART` bytes, others by one worker.
A hash assigns each document to a block, so that a block has documents of the whole corpus. Random
next sentences come from the same block, and workers hold one block. Files may be wherever Beam can
read and write (`gs://`, `s3://`, `hdfs://`).
"""

import collections
import contextlib
import functools
import hashlib
import itertools
import json
import operator
import os
import pickle
import shutil
import tempfile
import threading
import uuid
import zlib

from kerasbert.base.errors import how_to_install
from kerasbert.base.strict_json import to_json
from kerasbert.data.block_examples import BlockExamples
from kerasbert.data.corpus import part_documents, parts
from kerasbert.data.corpus_files import REPORT, as_paths, check_found
from kerasbert.data.manifest import NAME, new_manifest, total

__all__ = ["beam_options", "write_examples"]

# Minimum average number of documents per block, so that nearly all have two.
DOCUMENTS = 64
# Bytes per part of a file.
PART = 1 << 26
# Parts of the vocabulary, whose most frequent words are selected first.
PARTS = 16


def write_examples(corpus, output, tokenizer, *, block_bytes=1 << 24, options=None, **settings):
    """Turn a corpus into shards of examples on a cluster, or with Beam's local runner.

    Writes one shard per block and a manifest, for `read_examples`. The same corpus, file names,
    settings and seed give the same records on every runner, but others than
    `kerasbert.data.write_examples`, whose blocks hold consecutive documents.

    Args:
        corpus: path of a file, a pattern, or a list of these, as Beam names them.
        output: path of a folder.
        tokenizer: a tokenizer of `kerasbert.tokenizers`.
        block_bytes: approximate bytes of text per block.
        options: `apache_beam.options.pipeline_options.PipelineOptions`, which name the runner;
            `None` runs on this machine.
        **settings: settings of `kerasbert.data.write_examples` and `documents`, except `workers`,
            `blocks_per_shard` and `progress`, which the runner decides.

    Returns:
        The manifest, a dict.

    Raises:
        ImportError: if Beam is not installed.
        ValueError: as for `kerasbert.data.write_examples`.
    """
    need_beam()
    import apache_beam as beam
    from apache_beam.io.filesystems import FileSystems

    own = BlockExamples.__init__.__kwdefaults__
    made = {name: value for name, value in settings.items() if name in own}
    make = BlockExamples(tokenizer, languages=settings.get("text_key"), **made)
    reading = {key: value for key, value in settings.items() if key not in own}
    found_parts = _parts(corpus)
    output = os.fspath(output)
    manifest = new_manifest(
        {**make.settings, "block_bytes": block_bytes, "reading": reading}, tokenizer
    )
    # First, because shards without a manifest count as those of another tool.
    write_whole(output, NAME, to_json(manifest, indent=1).encode())
    with beam.Pipeline(options=options) as pipeline:
        found = (
            pipeline
            | beam.Create(found_parts)
            | beam.Reshuffle()
            | "read" >> beam.FlatMap(_documents, reading=reading)
        )
        # The corpus is read again, because Beam's Dask runner (2.77) duplicates elements of both a
        # side input and the main input.
        size = (
            pipeline
            | "files to measure" >> beam.Create(found_parts)
            | "share them out" >> beam.Reshuffle()
            | "measure" >> beam.Map(_size, reading={**reading, "sentences": "lines"})
            | beam.CombineGlobally(_sum)
        )
        _ = (
            found
            | "choose a block"
            >> beam.Map(
                _with_block,
                size=beam.pvalue.AsSingleton(size),
                block_bytes=block_bytes,
                seed=make.settings["seed"],
            )
            | beam.GroupByKey()
            | "make" >> beam.Map(_write_block, make=pickle.dumps(make), output=output)
            | beam.combiners.ToList()
            | "manifest" >> beam.Map(_write_manifest, manifest=manifest, output=output)
        )
    with FileSystems.open(FileSystems.join(output, NAME)) as file:
        return json.loads(file.read())


def need_beam():
    """Raise an `ImportError` if Apache Beam is not installed."""
    try:
        import apache_beam  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"The pipeline needs Apache Beam; run {how_to_install('beam')}."
        ) from error


def beam_options(runner, options):
    """Make Beam's options from a runner's name and strings such as "region=eu-west1".

    Returns:
        `PipelineOptions`, or `None` without a runner.

    Raises:
        ValueError: for options without a runner.
    """
    if runner is None:
        if options:
            raise ValueError(f"--beam {options[0]!r} needs a --runner of Apache Beam; name one.")
        return None
    need_beam()
    from apache_beam.options.pipeline_options import PipelineOptions

    return PipelineOptions([f"--{option}" for option in (f"runner={runner}", *(options or ()))])


def count_words(corpus, output, count, most, options, reading):
    """Count the words of a corpus with Beam, through a temporary file in `output`.

    Args:
        corpus: as for `write_examples`.
        output: path of a folder that all workers can access.
        count: picklable function of lines that returns a Counter.
        most: number of most frequent words to keep.
        options: Beam's pipeline options.
        reading: dict, settings of `documents`.

    Returns:
        A Counter.
    """
    need_beam()
    import apache_beam as beam
    from apache_beam.io.filesystems import FileSystems

    name = f".words-{uuid.uuid4().hex}.json"
    path = FileSystems.join(os.fspath(output), name)
    with beam.Pipeline(options=options) as pipeline:
        _ = (
            pipeline
            | beam.Create(_parts(corpus))
            | beam.Reshuffle()
            | "count in a file" >> beam.FlatMap(_words, count=pickle.dumps(count), reading=reading)
            | "count in all" >> beam.CombinePerKey(sum)
            # First by part; otherwise a single worker would get all words.
            | "share out" >> beam.Map(_with_part)
            | "the most frequent of a part" >> beam.CombinePerKey(_most_frequent(most))
            | "of all parts" >> beam.FlatMap(lambda part: part[1])
            | "the most frequent" >> beam.CombineGlobally(_most_frequent(most))
            | "write" >> beam.Map(_write_words, output=output, name=name)
        )
    try:
        with FileSystems.open(path) as file:
            return collections.Counter(dict(json.loads(file.read())))
    finally:
        FileSystems.delete([path])


def _words(part, count, reading):
    """Yield `(word, count)` per 1,000 documents of a part; words may recur."""
    found = _documents(part, {**reading, "sentences": "lines"})
    while some := list(itertools.islice(found, 1000)):
        lines = (line for _, document in some for line in document)
        yield from pickle.loads(count)(lines).items()


def _with_part(counted):
    return zlib.crc32(counted[0].encode("utf-8", "replace")) % PARTS, counted


def _most_frequent(most):
    """Return a combiner that keeps the most frequent words.

    Beam's own combiner fails on its Dask runner (2.77).
    """
    import apache_beam as beam

    class MostFrequent(beam.CombineFn):
        def create_accumulator(self):
            return []

        def add_input(self, found, counted):
            found.append(counted)
            return self.compact(found) if len(found) > 2 * most else found

        def merge_accumulators(self, several):
            return self.compact([counted for found in several for counted in found])

        def compact(self, found):
            # Ties by word make the result deterministic.
            return sorted(found, key=operator.itemgetter(1, 0), reverse=True)[:most]

        def extract_output(self, found):
            return self.compact(found)

    return MostFrequent()


def _write_words(counted, output, name):
    write_whole(output, name, to_json(counted).encode())


def matched(given):
    """Find files by a name or pattern with Beam, like `storage.find`."""
    from apache_beam.io.filesystems import FileSystems

    inside, found = FileSystems.join(given, "**"), {}
    for kind, pattern in (("pattern", given), ("folder", inside)):
        if kind == "pattern" and os.path.isdir(given):  # Beam would return the folder as a file.
            continue
        matches = FileSystems.match([pattern])
        found = {one.path: one.size_in_bytes for match in matches for one in match.metadata_list}
        found = {path: size for path, size in found.items() if os.path.basename(path)[:1] != "."}
        if found:
            break
    check_found(given, found, kind, report_in(given))
    return kind, dict(sorted(found.items()))


def report_in(folder):
    """Return the report of `deduplicate` in a folder, or an empty dict."""
    from apache_beam.io.filesystems import FileSystems

    path = FileSystems.join(folder, REPORT)
    if not FileSystems.exists(path):
        return {}
    with FileSystems.open(path) as file, contextlib.suppress(ValueError):
        if isinstance(report := json.loads(file.read()), dict):
            return report
    return {}


def _parts(corpus):
    """Split the files of a corpus into parts, a list of `(path, start, end, document_end)`."""
    found = {}
    for given in as_paths(corpus):
        kind, sizes = matched(given)
        for path, size in sizes.items():
            found.setdefault(path, (size, "file" if kind == "folder" else "empty_line"))
    return [
        (*part, end)
        for path, (size, end) in sorted(found.items())
        for part in parts(path, size, PART)
    ]


def _documents(part, reading):
    """Yield `(name, document)` for each document of a part.

    Names are `(path, number)` in the first part, and `(path, start, number)` later.
    """
    path, start, end, document_end = part
    reading = {**reading, "document_end": reading.get("document_end") or document_end}
    place = (path, start) if start else (path,)
    for number, document in enumerate(part_documents(path, start, end, open_raw, **reading)):
        yield (*place, number), document


def open_raw(path):
    """Open a file without Beam's automatic decompression."""
    from apache_beam.io.filesystem import CompressionTypes
    from apache_beam.io.filesystems import FileSystems

    return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)


@contextlib.contextmanager
def local_copy(path):
    """Yield the path of a local copy of any file that Beam can read.

    The copy keeps its name, which tells the format.
    """
    from apache_beam.io.filesystems import FileSystems

    if os.path.exists(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, FileSystems.split(path)[1])
        with open_raw(path) as file, open(local, "wb") as copy:
            shutil.copyfileobj(file, copy)
        yield local


def _size(part, reading):
    """Return the number of documents in a part, and their total bytes."""
    return _sum(
        (1, sum(len(line.encode()) for line in document))
        for _, document in _documents(part, reading)
    )


def _sum(sizes):
    sizes = list(sizes)
    return sum(count for count, _ in sizes), sum(size for _, size in sizes)


def _with_block(found, size, block_bytes, seed):
    """Return `(block, found)`; the block is a hash of the document's name."""
    count, total_bytes = size
    blocks = max(1, min(total_bytes // block_bytes, count // DOCUMENTS))
    name = to_json([seed, *found[0]]).encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "big") % blocks, found


def cached_per_worker(load):
    """Cache a function's last result per worker process, computed by one thread."""
    kept, lock = functools.lru_cache(maxsize=1)(load), threading.Lock()

    @functools.wraps(load)
    def call(*args):
        with lock:
            return kept(*args)

    return call


@cached_per_worker
def _maker(make):
    return pickle.loads(make)


def _write_block(block, make, output):
    """Make and write the shard of a block; return the shard's entry for the manifest."""
    number, found = block
    found = [document for _, document in sorted(found)]
    records, counts = _maker(make)(number, found)
    name = f"examples-{number:05}.tfrecord.gz"
    write_whole(output, name, records)
    text = hashlib.sha256(to_json(found).encode()).hexdigest()
    return {"name": name, "bytes": len(records), "text_sha256": text, **counts}


def _write_manifest(shards, manifest, output):
    shards = sorted(shards, key=lambda shard: shard["name"])
    if not total(shards)["examples"]:
        raise ValueError("The corpus has no text to make an example of.")
    manifest = {**manifest, "shards": shards, "counts": total(shards), "complete": True}
    write_whole(output, NAME, to_json(manifest, indent=1).encode())


def write_whole(folder, name, data):
    """Write a file atomically; workers that repeat a task write the same content."""
    with whole_file(folder, name) as file:
        file.write(data)


@contextlib.contextmanager
def whole_file(folder, name):
    """Open a file for writing; it appears under its name only when it is complete."""
    from apache_beam.io.filesystem import BeamIOError, CompressionTypes
    from apache_beam.io.filesystems import FileSystems

    path = FileSystems.join(folder, name)
    folder, name = FileSystems.split(path)
    with contextlib.suppress(BeamIOError, OSError):  # The folder may exist already.
        FileSystems.mkdirs(folder)
    partial = FileSystems.join(folder, f".{name}.{uuid.uuid4().hex}.partial")
    # The data are already compressed, so Beam must not compress them.
    with FileSystems.create(partial, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        yield file
    FileSystems.rename([partial], [path])
