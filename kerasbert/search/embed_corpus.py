"""Embeddings of a corpus as files for any index, on one machine or with Apache Beam.

Vespa, Elasticsearch, OpenSearch and faiss load Parquet or .npy. One worker reads a file, and many
embed its shards of consecutive rows.

N: rows per shard, D: embedding width.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
import os
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.base.errors import check_choice, check_whole, need_packages, reading
from kerasbert.base.paths import check_regular
from kerasbert.base.strict_json import to_json
from kerasbert.data.beam import cached_per_worker, need_beam
from kerasbert.data.manifest import describe_tokenizer
from kerasbert.data.shards import read_shards, weights_digest, write_shards
from kerasbert.data.tables import TABLES, find_name, records
from kerasbert.data.text_files import ending_of, text_lines
from kerasbert.heads.text_embedder.model import BertTextEmbedder
from kerasbert.kinds import kind_of
from kerasbert.search.embedding import embed_in_role
from kerasbert.search.vectors import unit_vectors

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import AnyPath, Corpus

MANIFEST = "vectors.json"
FORMATS = ("parquet", "npy")
# File endings of a shard, as written.
_ENDINGS = {"parquet": (".parquet",), "npy": (".jsonl", ".npy")}
DTYPES = ("float32", "float16")
_IDS = ("id", "_id")


def embed_corpus(
    corpus: Corpus,
    output: AnyPath,
    preset: AnyPath,
    *,
    text: Any = "text",
    id: str | None = None,
    encoding: str | None = None,
    format: str = "parquet",
    dtype: str = "float32",
    dims: int | None = None,
    similarity: str = "cosine",
    prompt: str = "",
    rows: int = 10_000,
    batch_size: int = 32,
    options: Any = None,
) -> dict[str, Any]:
    """Embed a corpus, and write shards of embeddings, each atomically.

    Repeat the call to resume it, and to rebuild shards that are missing or do not match the
    manifest's hashes. `read_vectors` reads the folder.

    Args:
        corpus: path of a file or a folder, a pattern, or a list of these. Files are tables (`.csv`,
            `.tsv`, `.parquet`, `.xlsx`), JSON (`.jsonl`, `.json`) of objects or strings, or plain
            text with one text per line, also compressed (`.gz`). Blank texts are skipped. A line, a
            field or a row may have up to 64 MiB.
        output: path of the folder.
        preset: name or folder of a `BertTextEmbedder`; without `options`, also a model.
        text: string or list of strings. The column of the text, or several, joined by spaces, such
            as `["title", "text"]`.
        id: string. The column of the ids; defaults to "id" or "_id", or else file name and row
            number.
        encoding: encoding of files that are not UTF-8, such as "cp949" or "shift_jis".
        format: "parquet", with columns `id`, `text` and `vector`; or "npy", one array (N, D) per
            shard, with ids and texts in a `.jsonl` file.
        dtype: "float32" or "float16".
        dims: int. Truncate embeddings to this many dimensions, as in `SearchIndex`.
        similarity: "cosine" writes unit vectors, "dot" writes the model's output unchanged.
        prompt: prefix of each text, such as "passage: "; defaults to the embedder's prompt for
            "text", as in `SearchIndex`.
        rows: maximum number of rows per shard.
        batch_size: int.
        options: `apache_beam.options.pipeline_options.PipelineOptions`, which name Beam's runner.
            Paths are then Beam's (`gs://`, `s3://`, `hdfs://`). `None` runs without Beam.

    Returns:
        The number of rows.

    Raises:
        ValueError: if the corpus cannot be read, or the folder has embeddings from another model,
            settings or corpus.
        ImportError: if Beam or pyarrow is missing.

    Example:

    >>> import tempfile
    >>> from kerasbert.models import BertBackbone, BertTextEmbedderPreprocessor, BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]
    >>> backbone = BertBackbone(
    ...     vocabulary_size=7, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4
    ... )
    >>> preprocessor = BertTextEmbedderPreprocessor(BertTokenizer(tokens))
    >>> embedder = BertTextEmbedder(backbone, preprocessor)
    >>> folder = tempfile.mkdtemp()
    >>> with open(os.path.join(folder, "texts.txt"), "w") as file:
    ...     _ = file.write("good bad\\nbad\\n")
    >>> vectors = os.path.join(folder, "vectors")
    >>> embed_corpus(os.path.join(folder, "texts.txt"), vectors, embedder, format="npy")
    2
    >>> [(ids, texts, x.shape) for ids, texts, x in read_vectors(vectors)]
    [(['texts.txt:1', 'texts.txt:2'], ['good bad', 'bad'], (2, 4))]
    """
    check_choice("format", format, FORMATS)
    check_choice("dtype", dtype, DTYPES)
    check_choice("similarity", similarity, ("cosine", "dot"))
    check_whole("rows", rows)
    check_whole("batch_size", batch_size)
    if dims is not None:
        check_whole("dims", dims)
    if format == "parquet":
        need_packages("format='parquet'", "data", "pyarrow")
    if options is not None:
        need_beam()
        if not isinstance(preset, (str, os.PathLike)):
            raise ValueError(
                "A model in memory exists only in this process; save it with save_to_preset, and "
                "pass a folder that all workers can read."
            )
    settings = {
        "text": [text] if isinstance(text, str) else list(text),
        "id": id,
        "format": format,
        "dtype": dtype,
        "dims": dims,
        "similarity": similarity,
        "prompt": prompt,
        "rows": rows,
    }
    if encoding is not None:  # Earlier manifests have no `encoding`.
        settings["encoding"] = encoding
    encoded = functools.partial(_encoded, settings=settings, size=batch_size)
    embedder = _embedder(preset)
    model = _describe(embedder)
    if options is None:
        make = functools.partial(encoded, embedder)
    else:
        make = functools.partial(_encoded_by_beam, os.fspath(preset), to_json(model), encoded)
    done = write_shards(
        corpus,
        output,
        what="vectors",
        by="embed_corpus",
        model=model,
        settings=settings,
        endings=_ENDINGS[format],
        read=functools.partial(_read, settings=settings),
        make=make,
        fits=functools.partial(_fits, settings=settings),
        options=options,
    )
    return done["count"]


def _encoded_by_beam(preset, model, encoded, shard, part):
    yield from encoded(_loaded(preset, model), shard, part)


@cached_per_worker
def _loaded(preset, model):
    embedder = _embedder(preset)
    if _describe(embedder) != json.loads(model):
        raise ValueError(
            f"'{preset}' is a different model on this worker; pass a folder that all workers share."
        )
    return embedder


# === The folder ===


def read_vectors(folder: AnyPath) -> Any:
    """Read the embeddings that `embed_corpus` wrote, for a `SearchIndex` or any other index.

        index = kerasbert.SearchIndex(embedder)
        for ids, texts, vectors in read_vectors("vectors"):
            index.add(texts, ids, vectors)

    File sizes are verified first, hashes shard by shard.

    Args:
        folder: string.

    Yields:
        `(ids, texts, vectors)` of each shard: two lists of N strings, and an array (N, D).

    Raises:
        ValueError: if the folder is incomplete or damaged; repeat `embed_corpus` to rebuild it.
    """
    yield from read_shards(
        folder, what="vectors", by="embed_corpus", endings=_endings, decode=_decoded
    )


def _endings(settings):
    check_choice("format", settings.get("format"), FORMATS)
    return _ENDINGS[settings["format"]]


def _encoded(embedder, shard, part, settings, size):
    """Embed a part of the corpus, and yield the bytes of its shard's files."""
    ids, texts = part
    vectors = embed_in_role(embedder, texts, "text", size, settings["prompt"] or None)
    if settings["dims"] is not None and settings["dims"] > vectors.shape[1]:
        raise ValueError(
            f"dims={settings['dims']} is more than the {vectors.shape[1]} dimensions of the "
            "embeddings."
        )
    vectors = vectors[:, : settings["dims"]]
    if not np.isfinite(vectors).all():
        raise ValueError(
            f"An embedding of {shard} has NaN or infinite values; check the model's weights, or "
            "compute in float32."
        )
    if settings["similarity"] == "cosine":
        vectors = unit_vectors(vectors)
    vectors = vectors.astype(settings["dtype"])
    data = io.BytesIO()
    if settings["format"] == "parquet":
        import pyarrow
        import pyarrow.parquet

        flat = pyarrow.array(vectors.ravel())
        lists = pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        table = pyarrow.table({"id": ids, "text": texts, "vector": lists})
        pyarrow.parquet.write_table(table, data)
        yield data.getvalue()
        return
    lines = [to_json({"id": id, "text": text}) for id, text in zip(ids, texts)]
    yield "".join(f"{line}\n" for line in lines).encode()
    np.save(data, vectors)
    yield data.getvalue()


def _decoded(files, settings):
    """Return `(ids, texts, vectors)` from the files of a shard, paths or open files."""
    if len(files) == 1:
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(files[0]).combine_chunks()
        vectors = table["vector"].combine_chunks()
        width = vectors.type.list_size
        vectors = vectors.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
        ids, texts = table["id"].to_pylist(), table["text"].to_pylist()
    else:
        with open(files[0], "rb") if isinstance(files[0], str) else files[0] as file:
            found = [json.loads(line) for line in file]
        ids, texts = [row["id"] for row in found], [row["text"] for row in found]
        mapped = "r" if isinstance(files[1], str) else None
        vectors = np.load(files[1], mmap_mode=mapped, allow_pickle=False)
    if not len(ids) == len(texts) == len(vectors):
        raise ValueError(f"{len(ids)} ids, {len(texts)} texts and {len(vectors)} vectors")
    if vectors.ndim != 2 or vectors.dtype != settings["dtype"]:
        raise ValueError(f"vectors are {vectors.dtype} {vectors.shape}")
    if not all(isinstance(text, str) for text in (*ids, *texts)):
        raise ValueError("not all ids and texts are strings")
    if not np.isfinite(vectors).all():
        raise ValueError("a vector holds NaN or infinite numbers")
    if settings["similarity"] == "cosine":
        lengths = np.linalg.norm(vectors.astype("float32"), axis=1)
        if not (np.isclose(lengths, 1, atol=1e-2) | (lengths == 0)).all():
            raise ValueError("a vector does not have length 1")
    return ids, texts, vectors


def _fits(contents, part, settings):
    """Return whether a shard's files (bytes) have a part's ids and texts, and valid vectors."""
    try:
        ids, texts, _ = _decoded([io.BytesIO(data) for data in contents], settings)
    except Exception:  # Damaged files raise many types of errors.
        return False
    return (ids, texts) == part


# === The model ===


def _embedder(preset):
    is_name = isinstance(preset, (str, os.PathLike))
    embedder = BertTextEmbedder.from_preset(os.fspath(preset)) if is_name else preset
    kind = kind_of(embedder)
    if kind is None or kind.vectors != "dense" or embedder.preprocessor is None:
        raise ValueError(
            f"preset={type(embedder).__name__} must be a BertTextEmbedder with a preprocessor."
        )
    if embedder.pooling == "tokens":
        raise ValueError(
            "The embedder has pooling='tokens', which gives one vector per token; use "
            "pooling='mean' or 'cls'."
        )
    return embedder


def _describe(embedder):
    """Return a dict of plain values that determine the embeddings."""
    model = {
        "weights_sha256": weights_digest(embedder),
        "pooling": embedder.pooling,
        "layers": embedder.layers_used,
        "normalize": embedder.normalize,
        "computes_in": embedder.compute_dtype,
        "sequence_length": embedder.preprocessor.sequence_length,
        "tokenizer": describe_tokenizer(embedder.preprocessor.tokenizer),
    }
    prompt = embedder.preprocessor.for_role("text").prompt
    if prompt:
        model["prompt"] = prompt
    return json.loads(to_json(model, default=str))  # As stored in the manifest.


# === The corpus ===


def _read(name, path, settings):
    """Yield `(rows, (ids, texts))` for each shard of a file."""
    found = _rows(name, path, settings)
    while some := list(itertools.islice(found, settings["rows"])):
        yield len(some), tuple(map(list, zip(*some)))


def _rows(name, path, settings):
    """Yield `(id, text)` for the rows of a file whose text is not blank."""
    columns = settings["text"]
    wanted = [x for x in [*columns, settings["id"]] if x is not None]
    for number, row in _records(name, path, wanted, settings.get("encoding")):
        if isinstance(row, str):
            text, id = row, None
        else:
            names = {x: find_name(row, x) for x in [*wanted, *_IDS]}
            missing = [x for x in wanted if names[x] is None]
            if missing:
                raise ValueError(
                    f"'{name}', row {number}, has no column '{missing[0]}'; its columns are "
                    f"{', '.join(map(repr, row))}."
                )
            values = [row[names[x]] for x in columns]
            text = " ".join(str(x) for x in values if x not in (None, ""))
            own = settings["id"] or next((x for x in _IDS if names[x] is not None), None)
            id = None if own is None else row[names[own]]
        if text.strip():
            yield f"{name}:{number}" if id is None else str(id), text


def _records(name, path, wanted, encoding):
    """Yield `(number, row)`, counted from 1; a row is a dict or the text."""
    check_regular(path)
    with reading(name):
        if ending_of(name) not in TABLES or ending_of(name) == ".txt":
            lines = text_lines(path, encoding, name)
            for number, line in enumerate(lines, start=1):
                yield number, line.removesuffix("\n")
            return
        for number, row in records(path, name=name, wanted=wanted, encoding=encoding):
            if not isinstance(row, (str, dict)):
                raise ValueError(f"'{name}', row {number}, must be an object or a string.")
            yield number, row
