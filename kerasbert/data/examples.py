"""`write_examples`: pre-training examples from a corpus, as shards of records."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import warnings
from typing import TYPE_CHECKING

from kerasbert.base.errors import check_whole
from kerasbert.base.files import fills_output, output_folder
from kerasbert.base.storage import check_writable, join, new_file, remove
from kerasbert.data.block_examples import BlockExamples
from kerasbert.data.corpus import blocks
from kerasbert.data.manifest import (
    NAME,
    check_shards,
    new_manifest,
    read_manifest,
    total,
    write_manifest,
)
from kerasbert.data.processes import map_blocks

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kerasbert.base.aliases import AnyPath, Corpus
    from kerasbert.text.subword import SubwordTokenizer

# Random next sentences come from at least POOL documents, unless the corpus has fewer or the block
# would exceed LARGEST bytes.
POOL = 8
LARGEST = 1 << 25
# A larger share of random pairs, usually a half, causes a warning.
ONE_SIDED = 0.9


@fills_output
def write_examples(
    corpus: Corpus,
    output: AnyPath,
    tokenizer: SubwordTokenizer,
    *,
    sequence_length: int = 128,
    objective: str = "next_sentence",
    copies: int = 1,
    cut_sentences: bool = False,
    short_sequence_rate: float | None = None,
    mask_selection_rate: float = 0.15,
    mask_selection_length: int | None = None,
    mask_token_rate: float = 0.8,
    random_token_rate: float = 0.1,
    mask_unit: str = "token",
    seed: int = 0,
    workers: int | None = None,
    block_bytes: int = 1 << 20,
    blocks_per_shard: int = 16,
    progress: Callable[..., Any] | None = None,
    **reading: Any,
) -> dict[str, Any]:
    """Turn a corpus into shards of examples for pre-training, on all cores.

    Writes `examples-00000.tfrecord.gz` and so on, and `manifest.json`, into `output`. Records have
    the features of google-research/bert and are masked once, as there; `read_examples` masks them
    again in every epoch. They do not depend on `workers`. A repeated call resumes after the last
    complete shard.

    Memory holds only a few blocks of whole documents, of at least `block_bytes`. A random next
    sentence comes from another document of the same block, which has at least eight if the corpus
    does; a larger `block_bytes` gives more.

    The objectives:

    - "next_sentence": B follows A, or, in about half of the pairs, comes from another document
      (BERT).
    - "sentence_order": B follows A, or, in half of the pairs, A follows B (ALBERT).
    - "translation": a sentence and its translation (XLM), from the columns or keys `text_key`, one
      per language. Segment ids are positions in the tokenizer's `languages` or else in `text_key`.
      Text in one language alone becomes a row.
    - "full_sentences": whole sentences in a row, continued in the next document after a separator
      (RoBERTa).

    Long pairs are truncated as in BERT, and sentences longer than a row of full sentences split.

    Args:
        corpus: path, pattern, folder, or a list of these; see `documents`.
        output: path of a folder, or a URL, see `kerasbert.base.storage`.
        tokenizer: a tokenizer of `kerasbert.tokenizers`.
        sequence_length: tokens per row, special tokens included.
        objective: string.
        copies: number of passes over the corpus, each with other random choices.
        cut_sentences: bool. For "full_sentences": fill rows by splitting the last sentence, whose
            rest begins the next row. Otherwise it waits for the next row, which left rows of 32
            tokens four fifths full.
        short_sequence_rate: share of documents, or of rows of full sentences, with a shorter target
            length. `None` means 0.1, or 0 for full sentences.
        mask_selection_rate: float.
        mask_selection_length: maximum tokens to predict per row; `None` means `mask_selection_rate`
            of `sequence_length`, rounded up.
        mask_token_rate: share of these that the mask token replaces.
        random_token_rate: share that a random token replaces.
        mask_unit: unit to mask: "token", "word", "span" or "ngram"; see `mask_tokens`.
        seed: int.
        workers: worker processes; `None` starts one per core, or none for few blocks. Scripts must
            call this below `if __name__ == "__main__":`.
        block_bytes: int.
        blocks_per_shard: int.
        progress: function `(share, examples)`, called after each block.
        **reading: settings of `documents`.

    Returns:
        The manifest, a dict: `counts` of documents, sentences, tokens, examples, `not_next`
        (label 1) and `masked` tokens, `settings`, `tokenizer`, `shards`.

    Raises:
        ValueError: for invalid settings, a corpus without text, one document where the objective
            needs two, and an `output` of another corpus or other settings.
        OSError: if the disk is full, without a partial file.

    Source: Devlin et al. 2019, arXiv 1810.04805, appendix A, and its released code; Lan et al.
    2020, arXiv 1909.11942; Liu et al. 2019, arXiv 1907.11692.
    """
    make = BlockExamples(
        tokenizer,
        sequence_length=sequence_length,
        objective=objective,
        copies=copies,
        cut_sentences=cut_sentences,
        short_sequence_rate=short_sequence_rate,
        mask_selection_rate=mask_selection_rate,
        mask_selection_length=mask_selection_length,
        mask_token_rate=mask_token_rate,
        random_token_rate=random_token_rate,
        mask_unit=mask_unit,
        seed=seed,
        languages=reading.get("text_key"),
    )
    check_whole("block_bytes", block_bytes)
    check_whole("blocks_per_shard", blocks_per_shard)
    if workers is not None:
        check_whole("workers", workers)
    output = output_folder(output, "output", urls=True)
    check_writable(output)
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
    tasks = ((dataclasses.replace(p, block=None), (p.number, p.block)) for p in parts)
    with contextlib.closing(map_blocks(make, tasks, workers, _blocks_left)) as results:
        groups = itertools.groupby(results, lambda result: result[0].number // blocks_per_shard)
        for number, group in groups:
            name = f"examples-{number:05}.tfrecord.gz"
            if not shards:  # Else they would be read as another tool's.
                write_manifest(output, manifest)
            with new_file(join(output, name)) as file:
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
            f"The corpus {corpus!r} gives no examples: none of its {counts['documents']:,} "
            "documents has two sentences, which objective='sentence_order' needs."
        )
    if objective == "next_sentence":
        _check_labels(corpus, output, shards, counts)
    manifest |= {"counts": counts, "complete": True}
    write_manifest(output, manifest)
    return manifest


def _remove(output, shards):
    for name in (NAME, *(shard["name"] for shard in shards)):
        remove(join(output, name))


def _check_labels(corpus, output, shards, counts):
    """Raise if no sentence has a next one, and warn if few have."""
    if counts["sentences"] == counts["documents"]:
        _remove(output, shards)
        raise ValueError(one_sided(f"The corpus {corpus!r}", counts["documents"]))
    share = counts["not_next"] / counts["examples"]
    if share > ONE_SIDED and counts["examples"] >= 100:
        warnings.warn(
            f"{share:.1%} of the pairs from the corpus {corpus!r} are random, because most of its "
            f"{counts['documents']:,} documents have one sentence. Next-sentence prediction learns "
            "little from them and its accuracy means nothing; see `document_end` and `sentences` "
            "for how text is read, or use objective='full_sentences'.",
            stacklevel=3,
        )


def one_sided(what, documents):
    """Return the error for documents of one sentence each."""
    return (
        f"{what} has {documents:,} documents of one sentence each, so that no sentence has a next "
        "one: every pair would be random, and next-sentence prediction trivial. If these are parts "
        "of larger documents, set where those end (document_end='empty_line' or 'file'; "
        "--reading document_end=file); otherwise use objective='full_sentences', which needs no "
        "pairs."
    )


def _begin(output, manifest):
    """Return the new manifest, or that of the run to resume."""
    found = read_manifest(output)
    if found is None or not (found["shards"] or found["complete"]):
        return manifest
    for part in (("settings",), ("tokenizer", "settings"), ("tokenizer",)):
        before, now = found, manifest
        for name in part:  # Innermost settings first, to name one in the error.
            before, now = before.get(name, {}), now.get(name, {})
        other = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        if other:
            raise ValueError(
                f"'{output}' has records made with other settings: {other[0]} was "
                f"{before.get(other[0])!r}, but is now {now.get(other[0])!r}; name another folder, "
                "or remove this one."
            )
    check_shards(output, found["shards"])
    return found


@dataclasses.dataclass(frozen=True)
class _Part:
    """A block with its number, hash, and the share of the corpus so far."""

    number: int
    block: object
    digest: bytes
    share: float


def _numbered(corpus, objective, block_bytes, reading):
    found = (block for _, block in blocks(corpus, block_bytes=block_bytes, **reading))
    if objective == "next_sentence":
        found = _with_others(found, corpus)
    for number, block in enumerate(found):
        digest = hashlib.sha256(b"".join(piece.data for piece in block.pieces)).digest()
        yield _Part(number, block, digest, block.progress)


def _with_others(found, corpus):
    """Merge blocks until each has several documents to draw from."""
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
            f"The corpus {corpus!r} has only one document, but a random next sentence must come "
            f"from another one: {_other_end(ready)}, or use another objective, 'sentence_order' or "
            "'full_sentences'."
        )
    yield ready


def _other_end(block):
    """Suggest a `document_end` that splits the only document."""
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
    """Count the documents of a block, up to `most`, without splitting sentences."""
    settings = dataclasses.replace(block.settings, sentences="lines")
    return sum(1 for _ in itertools.islice(dataclasses.replace(block, settings=settings), most))


def _skip_finished(parts, shards, blocks_per_shard, output):
    """Skip the parts of finished shards; raise if their text has changed."""
    finished = list(shards)  # The caller appends to `shards`.
    for number, group in itertools.groupby(parts, lambda part: part.number // blocks_per_shard):
        if number >= len(finished):
            yield from group
            continue
        text = hashlib.sha256(b"".join(part.digest for part in group))
        if text.hexdigest() != finished[number]["text_sha256"]:
            raise _other_text(output)
        finished[number] = None
    if any(finished):
        raise _other_text(output)


def _other_text(output):
    return ValueError(
        f"'{output}' has records of a text other than the corpus; name another folder, or "
        "remove this one."
    )


def _blocks_left(part):
    """Estimate the number of blocks from this one to the end."""
    return (part.number + 1) / max(part.share, 1e-9) - part.number
