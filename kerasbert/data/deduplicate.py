"""Near-duplicate removal among documents, on one machine or on many with Apache Beam.

A document is removed if it is similar to any earlier one, even a removed one, so that results do
not depend on the number of machines.

Similarity is the Jaccard index of shingles, estimated from MinHash signatures of documents that
share a band (locality-sensitive hashing).

Source: Broder 1997, "On the resemblance and containment of documents"; Leskovec, Rajaraman and
Ullman, "Mining of Massive Datasets", chapter 3, for the bands; Li and König 2010, arXiv 0910.3349,
for 8-bit signatures.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import os
import re
import unicodedata
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.base.errors import need_packages
from kerasbert.base.files import new_file, new_folder, output_folder
from kerasbert.base.paths import check_name, is_url
from kerasbert.base.storage import check_writable, find, join, read_json, write_text
from kerasbert.base.storage import new_file as new_file_at
from kerasbert.base.strict_json import to_json
from kerasbert.data.beam import (
    local_copy,
    matched,
    need_beam,
    report_in,
    whole_file,
    write_whole,
)
from kerasbert.data.corpus import NoTextError, blocks
from kerasbert.data.corpus_files import REPORT, TABLES, as_paths
from kerasbert.data.shards import found_here, own_names
from kerasbert.data.text_files import CHUNK, ending_of, packed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kerasbert.base.aliases import AnyPath, Corpus

# Bytes of a shingle: 12 Latin letters, or 4 characters of Hangul, kana and Han. With one word in 20
# replaced, the similarity is .73 (English), .83 (Korean) or .78 (Japanese); with a tenth of the
# sentences removed, .89, .92 or .91. 1 in 1,000 unrelated pairs reached .05. Shingles of 5 letters
# gave .12 for unrelated English texts, and 13 only .59 for Japanese with replaced words.
SHINGLE = 12
HASHES = 128
# Two 8-bit hashes are equal by chance.
CHANCE = 1 / 256
_MULTIPLIER = np.uint32(0x9E3779B1)
_PART = 1 << 16  # Shingles hashed at a time, 512 bytes each.
_COMPARED = 64  # Signatures compared at a time.
_SHOWN = 100  # Pairs in the report.
_NO_TEXT = "The corpus has no text: all of its files are empty."


def deduplicate(
    corpus: Corpus,
    output: AnyPath,
    *,
    threshold: float = 0.8,
    document_end: str | None = None,
    text_key: str | Sequence[str] | None = None,
    encoding: str = "utf-8",
    errors: str = "strict",
    options: Any = None,
) -> dict[str, Any]:
    """Write a corpus without its near duplicates, to files of the same names.

    Similarity is the share of 12-byte shingles that two documents have in common, ignoring case,
    spaces and punctuation. It is estimated from 128 hashes, with a standard error of 0.035 at 0.8.
    A tenth of the pairs at the threshold are missed, hardly any 0.1 above it.

    A local folder gets all files at once. At a URL, and with `options`, the report first marks the
    folder as incomplete, and corpus readers raise an error until the call has finished. For a
    complete folder, the call returns its report.

    Needs 6 kB of memory per document; with `options`, only for documents that share a band, or the
    numbers of a file's removed documents.

    Args:
        corpus: path of a file or a folder, a pattern, or a list of these. Files are text or JSON
            lines, as for `documents`, and keep their format, in UTF-8.
        output: path of an empty or new folder, or a URL, see `kerasbert.base.storage`.
        threshold: float, above 0 and up to 1. Minimum similarity of near duplicates.
        document_end, text_key, encoding, errors: as for `documents`.
        options: `apache_beam.options.pipeline_options.PipelineOptions`, which name the runner;
            paths are then Beam's (`gs://`, `s3://`, `hdfs://`). `None` runs without Beam, with the
            same result.

    Returns:
        Dict of `threshold`, `documents`, `kept`, `characters`, `kept_characters` and `complete`;
        `pairs`, a list of the first hundred removed documents (`document` and `like`, each a file
        and a number in it, from 1, and their `similarity`); and `made_of`, a hash of settings, file
        names and sizes. It is also in the hidden file `.duplicates.json`.

    Raises:
        ValueError: if files are missing or unreadable, the output folder has files, or the corpus
            has no text.
        ImportError: if datasketch or Beam is not installed.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with open(os.path.join(folder, "a.txt"), "w") as file:
    ...     _ = file.write("The weather is lovely.\\n\\nThe weather is lovely!\\n\\nIt rains.\\n")
    >>> clean = os.path.join(folder, "clean")
    >>> found = deduplicate(os.path.join(folder, "a.txt"), clean)
    >>> found["documents"], found["kept"], found["pairs"]
    (3, 2, [{'document': 'a.txt:2', 'like': 'a.txt:1', 'similarity': 1.0}])
    >>> print(open(os.path.join(clean, "a.txt")).read())
    The weather is lovely.
    <BLANKLINE>
    It rains.
    <BLANKLINE>
    <BLANKLINE>
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold={threshold!r} must be above 0 and at most 1.")
    need_packages("deduplicate", "deduplicate", "datasketch")
    reading = {"text_key": text_key, "encoding": encoding, "errors": errors}
    output = os.fspath(output)
    if options is not None:
        need_beam()
        from apache_beam.io.filesystems import FileSystems

        files, sizes = _files(corpus, document_end, matched)
        for name, *_ in files:
            check_name(
                name, "the corpus", nested=True
            )  # Keys of an object store may contain any character.
        matches = FileSystems.match([FileSystems.join(output, "**")])
        there = [one.path for match in matches for one in match.metadata_list]
        before = report_in(output)
    else:
        output = output_folder(output, "output", urls=True)
        files, sizes = _files(corpus, document_end, found_here)
        there = find(output)[1]
        before = read_json(join(output, REPORT), {})
    described = to_json([threshold, reading, [[*x[::2], size] for x, size in zip(files, sizes)]])
    made_of = hashlib.sha256(described.encode()).hexdigest()
    if before.get("made_of") == made_of and before.get("complete"):
        return before
    there = [path for path in there if not os.path.basename(path).startswith(".")]
    if there and before.get("made_of") != made_of:
        raise ValueError(f"'{output}' is not empty; name another folder.")
    begun = {"threshold": threshold, "made_of": made_of, "complete": False}
    if options is not None:
        return _by_beam(files, output, begun, reading, options)
    return (_at_url if is_url(output) else _here)(files, output, begun, reading)


def _files(corpus, document_end, found_of):
    """Return `(files, sizes)` in corpus order; a file is `(name, path, document_end)`."""
    found, sizes = {}, {}
    for given in as_paths(corpus):
        kind, paths = found_of(given)
        sizes |= paths
        end = document_end or ("file" if kind == "folder" else "empty_line")
        for path in paths:
            if ending_of(path) in TABLES:
                raise ValueError(
                    f"'{path}' is a table, but deduplicate writes text and JSON lines; convert "
                    "it to JSON lines."
                )
            found.setdefault(path, end)
    files = [(name, *file) for name, file in zip(own_names(list(found)), found.items())]
    return files, [sizes[path] for path in found]


def _here(files, output, begun, reading):
    gone = _gone(files, begun["threshold"], reading)
    with new_folder(output, keep=True, by="deduplicate") as folder:
        found = _write_all(files, gone, functools.partial(_new_file_in, folder), begun, reading)
        with new_file(os.path.join(folder, REPORT)) as file:
            file.write(_as_json(found))
    return found


def _at_url(files, output, begun, reading):
    check_writable(output)
    gone = _gone(files, begun["threshold"], reading)
    write_text(join(output, REPORT), _as_json(begun).decode())
    found = _write_all(files, gone, lambda name: new_file_at(join(output, name)), begun, reading)
    write_text(join(output, REPORT), _as_json(found).decode())
    return found


def _gone(files, threshold, reading):
    """Find the duplicates of each file.

    Return one list per file, of `(place, first similar document, similarity)`.
    """
    seen, gone, has_text = collections.defaultdict(list), [[] for _ in files], False
    for number, (_, path, end) in enumerate(files):
        for place, (_, text) in enumerate(_sources(path, end, reading)):
            signed, has_text = signature(text), True
            likes = [
                _first_like(seen[band], (number, place), signed, threshold)
                for band in bands(signed, threshold)
            ]
            if any(likes):
                gone[number].append((place, *min(filter(None, likes))))
    if not has_text:
        raise ValueError(_NO_TEXT)
    return gone


def _write_all(files, gone, opened, begun, reading):
    parts = [
        _write((number, file, file[1]), gone[number], opened, reading)
        for number, file in enumerate(files)
    ]
    return _found(parts, files, begun)


def _new_file_in(folder, name):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return new_file(path)


def _by_beam(files, output, begun, reading, options):
    import apache_beam as beam

    threshold = begun["threshold"]
    write_whole(output, REPORT, _as_json(begun))
    numbered = list(enumerate(files))
    with beam.Pipeline(options=options) as pipeline:
        gone = (
            pipeline
            | beam.Create(numbered)
            | beam.Reshuffle()
            | "read" >> beam.FlatMap(_bands_of_file, threshold=threshold, reading=reading)
            | "documents of a band" >> beam.GroupByKey()
            | "compare" >> beam.FlatMap(_alike_in_band, threshold=threshold)
            | "the first like it" >> beam.CombinePerKey(min)
            | "by file" >> beam.Map(lambda pair: (pair[0][0], (pair[0][1], *pair[1])))
        )
        # A worker reads each file again, with the places of removed documents.
        again = pipeline | "files again" >> beam.Create(numbered)
        _ = (
            {"gone": gone, "file": again}
            | beam.CoGroupByKey()
            | "write" >> beam.Map(_write_by_beam, output=output, reading=reading)
            | beam.combiners.ToList()
            | "manifest" >> beam.Map(_end_by_beam, files=files, begun=begun, output=output)
        )
    return report_in(output)


def _bands_of_file(file, threshold, reading):
    """Yield `(band, ((file number, document number), signature))` for the documents of a file."""
    number, (_, path, end) = file
    with local_copy(path) as local:
        for place, (_, text) in enumerate(_sources(local, end, reading)):
            signed = signature(text)
            for band in bands(signed, threshold):
                yield band, ((number, place), signed)


def _alike_in_band(group, threshold):
    """Yield `(document, (first similar one, similarity))` of a band's removed documents."""
    earlier = []
    for document, signed in sorted(group[1]):
        like = _first_like(earlier, document, signed, threshold)
        if like is not None:
            yield document, like


def _write_by_beam(grouped, output, reading):
    number, found = grouped
    (file,) = found["file"]
    opened = functools.partial(whole_file, output)
    with local_copy(file[1]) as local:
        return _write((number, file, local), sorted(found["gone"]), opened, reading)


def _end_by_beam(parts, files, begun, output):
    write_whole(output, REPORT, _as_json(_found(parts, files, begun)))


# === Shared by the local and the Beam implementation ===


def _sources(path, end, reading):
    """Yield `(source, text)` of each document of a file, see `Block.sources`."""
    with contextlib.suppress(NoTextError):  # One file of many may be empty.
        for _, block in blocks(path, block_bytes=CHUNK, document_end=end, **reading):
            yield from block.sources()


def _write(file, gone, opened, reading):
    """Write a file's kept documents; return its number, counts, and some removed pairs."""
    number, (name, _, end), path = file
    places = {place for place, *_ in gone}
    counts = dict.fromkeys(("documents", "kept", "characters", "kept_characters"), 0)
    with contextlib.ExitStack() as stack:
        written = None
        for place, (source, text) in enumerate(_sources(path, end, reading)):
            counts["documents"] += 1
            counts["characters"] += len(text)
            if place not in places:
                counts["kept"] += 1
                counts["kept_characters"] += len(text)
                if written is None:  # The file is opened only if a document is kept.
                    written = stack.enter_context(packed(stack.enter_context(opened(name)), name))
                written.write(source.encode("utf-8", "replace"))
    return number, counts, gone[:_SHOWN]


def _as_json(found):
    text = to_json(found, ensure_ascii=False, indent=1) + "\n"
    return text.encode("utf-8", "backslashreplace")


def _found(parts, files, begun):
    parts = sorted(parts, key=lambda part: part[0])
    total = {name: sum(counts[name] for _, counts, _ in parts) for name in parts[0][1]}
    if not total["documents"]:
        raise ValueError(_NO_TEXT)
    pairs = [
        {
            "document": f"{files[number][0]}:{place + 1}",
            "like": f"{files[first][0]}:{other + 1}",
            "similarity": round(alike, 3),
        }
        for number, _, gone in parts
        for place, (first, other), alike in gone
    ]
    return {**begun, **total, "pairs": pairs[:_SHOWN], "complete": True}


# === Signatures ===


def shingles(text):
    """Hash all N shingles of a text, including repeated ones: uint32 (N,)."""
    plain = re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", text).casefold()) or text
    data = np.frombuffer(plain.encode("utf-8", "replace"), "uint8")
    last = max(1, len(data) - SHINGLE + 1)
    begins = np.flatnonzero(data[:last] & 0xC0 != 0x80)  # First byte of each character.
    data = np.pad(data, (0, SHINGLE)).astype("uint32")
    hashes = np.zeros(len(begins), "uint32")
    for place in range(SHINGLE):
        hashes = hashes * _MULTIPLIER + data[begins + place]
    return hashes


@functools.cache
def _no_shingles():
    from datasketch import MinHash

    return MinHash(num_perm=HASHES, hashfunc=int)  # The shingles are hashes already.


def signature(text):
    """Return the low 8 bits of a text's MinHash signature: 128 bytes."""
    made, hashes = _no_shingles().copy(), shingles(text)
    for start in range(0, len(hashes), _PART):
        made.update_batch(hashes[start : start + _PART].tolist())
    return made.hashvalues.astype("uint8").tobytes()


@functools.cache
def _bands_and_rows(threshold):
    """Return the numbers of bands and of hashes per band that miss few pairs."""
    from datasketch import MinHashLSH

    if threshold > 1 - 1 / HASHES:  # All hashes must be equal.
        return 1, HASHES
    index = MinHashLSH(threshold=threshold, num_perm=HASHES, weights=(0.1, 0.9))
    return index.b, index.r


def bands(signed, threshold):
    """Yield the bands of a signature, as bytes; documents that share a band are compared."""
    count, rows = _bands_and_rows(threshold)
    for band in range(count):
        yield bytes([band]) + signed[band * rows : (band + 1) * rows]


def _first_like(earlier, document, signed, threshold):
    """Return `(document, similarity)` of the first similar document, or `None`.

    Args:
        earlier: list of `(document, signature)`, in order; this document is appended.
    """
    new, found = np.frombuffer(signed, "uint8"), None
    for start in range(0, len(earlier), _COMPARED):
        some = earlier[start : start + _COMPARED]
        signatures = np.frombuffer(b"".join(other for _, other in some), "uint8")
        same = (signatures.reshape(-1, HASHES) == new).mean(axis=1)
        alike = (same - CHANCE) / (1 - CHANCE)
        hits = np.flatnonzero(alike >= threshold)
        if len(hits):
            found = some[hits[0]][0], float(alike[hits[0]])
            break
    # A document with an earlier one's signature is not stored: later ones that match it match the
    # earlier one too.
    if found is None or found[1] < 1:
        earlier.append((document, signed))
    return found
