"""Examples, and counts of words, by Apache Beam: for corpora that one machine is too small for.

A file is read by one worker; a large one, of plain text, JSON lines or Parquet, by one for each
`PART` bytes of it. Each document goes to a block by a hash, so that a block holds
documents from anywhere in the corpus, and a block's records are made as on one machine: the random
next sentence comes from another document of the block, and no worker holds more than a block.
Files may be wherever Beam reads and writes them (`gs://`, `s3://`, `hdfs://`).
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

from kerasbert._errors import how_to_install
from kerasbert._json import to_json
from kerasbert.data.block_examples import BlockExamples
from kerasbert.data.corpus import REPORT, as_paths, check_found, part_documents, parts
from kerasbert.data.manifest import NAME, new_manifest, total

__all__ = ["beam_options", "write_examples"]

# Documents of a block, on average, at least: hardly a block gets fewer than two by chance.
DOCUMENTS = 64
# Bytes of a file that are read in one place. Documents behind the first of these are named by them.
PART = 1 << 26
# Of all words, when the most frequent are looked for.
PARTS = 16


def write_examples(corpus, output, tokenizer, *, block_bytes=1 << 24, options=None, **settings):
    """Turn a corpus into shards of examples on a cluster, or with Beam's local runner.

    The shards, one a block, and the manifest are as of `kerasbert.data.write_examples`, and
    `read_examples` reads them. The same corpus, under the same names, settings and seed give the
    same records whatever the runner; they are other ones than those of the function for one
    machine, whose blocks are neighbouring documents.

    Args:
        corpus: path of a file, a pattern, or a list of these, as Beam names them.
        output: path of a folder.
        tokenizer: a tokenizer of `kerasbert.tokenizers`.
        block_bytes: int. About how many bytes of text a block has.
        options: `apache_beam.options.pipeline_options.PipelineOptions`, which name the runner;
            `None` runs here.
        **settings: further settings of `kerasbert.data.write_examples` and `documents`, but
            `workers`, `blocks_per_shard` and `progress`, which are the runner's.

    Returns:
        The manifest, a dict.

    Raises:
        ImportError: where Beam is not installed.
        ValueError: as `kerasbert.data.write_examples`.
    """
    need_beam()
    import apache_beam as beam
    from apache_beam.io.filesystems import FileSystems

    own = BlockExamples.__init__.__kwdefaults__
    make = BlockExamples(tokenizer, **{k: v for k, v in settings.items() if k in own})
    reading = {key: value for key, value in settings.items() if key not in own}
    found_parts = _parts(corpus)
    output = os.fspath(output)
    manifest = new_manifest(
        {**make.settings, "block_bytes": block_bytes, "reading": reading}, tokenizer
    )
    # Without a manifest, the shards would be read as records of another tool.
    write_whole(output, NAME, to_json(manifest, indent=1).encode())
    with beam.Pipeline(options=options) as pipeline:
        found = (
            pipeline
            | beam.Create(found_parts)
            | beam.Reshuffle()
            | "read" >> beam.FlatMap(_documents, reading=reading)
        )
        # Read once more, without splitting sentences: Beam's runner for Dask takes what a side
        # input and its own input have in common twice (2.77).
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
    """Raise an `ImportError` unless Beam is there."""
    try:
        import apache_beam  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"The pipeline needs Apache Beam; run {how_to_install('beam')}."
        ) from error


def beam_options(runner, options):
    """Beam's options of a runner's name and of strings such as "region=eu-west1"; `None` for none.

    Raises:
        ValueError: for options without a runner.
    """
    if runner is None:
        if options:
            raise ValueError(f"--beam {options[0]!r} is for a --runner of Apache Beam; name one.")
        return None
    need_beam()
    from apache_beam.options.pipeline_options import PipelineOptions

    return PipelineOptions([f"--{option}" for option in (f"runner={runner}", *(options or ()))])


def count_words(corpus, output, count, most, options, reading):
    """Count a corpus' words by a pipeline, which writes them to `output` on the way.

    Args:
        corpus: as of `write_examples`.
        output: path of a folder that all workers see.
        count: function of lines, that returns a Counter; it is pickled.
        most: int. How many words are kept, the most frequent ones.
        options: of Beam.
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
            # Of some parts first: one worker alone would get the words of all.
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
    """Yield `(word, number)` of a part of a file, some documents at a time."""
    found = _documents(part, {**reading, "sentences": "lines"})
    while some := list(itertools.islice(found, 1000)):
        lines = (line for _, document in some for line in document)
        yield from pickle.loads(count)(lines).items()


def _with_part(counted):
    return zlib.crc32(counted[0].encode("utf-8", "replace")) % PARTS, counted


def _most_frequent(most):
    """Beam's own gives nothing with its runner for Dask (2.77)."""
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
            # Of equals always the same ones.
            return sorted(found, key=operator.itemgetter(1, 0), reverse=True)[:most]

        def extract_output(self, found):
            return self.compact(found)

    return MostFrequent()


def _write_words(counted, output, name):
    write_whole(output, name, to_json(counted).encode())


def matched(given):
    """Files, as `kerasbert.storage.find` has them, of what Beam takes for a name or a pattern."""
    from apache_beam.io.filesystems import FileSystems

    inside, found = FileSystems.join(given, "**"), {}
    for kind, pattern in (("pattern", given), ("folder", inside)):
        if kind == "pattern" and os.path.isdir(given):  # Which Beam takes for a file.
            continue
        matches = FileSystems.match([pattern])
        found = {one.path: one.size_in_bytes for match in matches for one in match.metadata_list}
        found = {path: size for path, size in found.items() if not _is_hidden(path)}
        if found:
            break
    check_found(given, found, kind, report_in(given))
    return kind, dict(sorted(found.items()))


def report_in(folder):
    """The report that `deduplicate` left in a folder, a dict; empty where there is none."""
    from apache_beam.io.filesystems import FileSystems

    path = FileSystems.join(folder, REPORT)
    if not FileSystems.exists(path):
        return {}
    with FileSystems.open(path) as file, contextlib.suppress(ValueError):
        if isinstance(report := json.loads(file.read()), dict):
            return report
    return {}


def _parts(corpus):
    """Parts of files: list of `(path, start, end, where a document ends)`."""
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


def _is_hidden(path):
    return os.path.basename(path).startswith(".")


def _documents(part, reading):
    """Yield `((path, number), document)`; behind the first part `((path, start, number), ...)`."""
    path, start, end, document_end = part
    reading = {**reading, "document_end": reading.get("document_end") or document_end}
    place = (path, start) if start else (path,)
    for number, document in enumerate(part_documents(path, start, end, _opened, **reading)):
        yield (*place, number), document


def _opened(path):
    """A file as it is, which Beam would unpack."""
    from apache_beam.io.filesystem import CompressionTypes
    from apache_beam.io.filesystems import FileSystems

    return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)


@contextlib.contextmanager
def local_copy(path):
    """The path of a file of this machine with what a file has that Beam can read.

    Readers want one whose name tells what is in it.
    """
    from apache_beam.io.filesystem import CompressionTypes
    from apache_beam.io.filesystems import FileSystems

    if os.path.exists(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, FileSystems.split(path)[1])
        raw = CompressionTypes.UNCOMPRESSED
        with FileSystems.open(path, compression_type=raw) as file, open(local, "wb") as copy:
            shutil.copyfileobj(file, copy)
        yield local


def _size(part, reading):
    """How many documents a part has, and how many bytes these."""
    return _sum(
        (1, sum(len(line.encode()) for line in document))
        for _, document in _documents(part, reading)
    )


def _sum(sizes):
    sizes = list(sizes)
    return sum(count for count, _ in sizes), sum(size for _, size in sizes)


def _with_block(found, size, block_bytes, seed):
    """`(block, found)`, the block from a hash of the document's name."""
    count, total_bytes = size
    blocks = max(1, min(total_bytes // block_bytes, count // DOCUMENTS))
    name = to_json([seed, *found[0]]).encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "big") % blocks, found


def once_a_worker(load):
    """A function whose last result is kept, and made by one of a worker's threads alone."""
    kept, lock = functools.lru_cache(maxsize=1)(load), threading.Lock()

    @functools.wraps(load)
    def call(*args):
        with lock:
            return kept(*args)

    return call


@once_a_worker
def _maker(make):
    return pickle.loads(make)


def _write_block(block, make, output):
    """Make and write the shard of a block; what the manifest says of it."""
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
        raise ValueError("The corpus has no text of which an example could be made.")
    manifest = {**manifest, "shards": shards, "counts": total(shards), "complete": True}
    write_whole(output, NAME, to_json(manifest, indent=1).encode())


def write_whole(folder, name, data):
    """Write a file whole; a worker that repeats another's work writes the same."""
    with whole_file(folder, name) as file:
        file.write(data)


@contextlib.contextmanager
def whole_file(folder, name):
    """A file to write to that gets its name when it is whole."""
    from apache_beam.io.filesystem import BeamIOError, CompressionTypes
    from apache_beam.io.filesystems import FileSystems

    path = FileSystems.join(folder, name)
    folder, name = FileSystems.split(path)
    with contextlib.suppress(BeamIOError, OSError):  # It is there.
        FileSystems.mkdirs(folder)
    partial = FileSystems.join(folder, f".{name}.{uuid.uuid4().hex}.partial")
    # Else it would be compressed again.
    with FileSystems.create(partial, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        yield file
    FileSystems.rename([partial], [path])
