"""Export of an index or of embeddings to files for vector databases.

N: number of texts, D: width of the embeddings.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import uuid
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.base.errors import check_choice, check_whole
from kerasbert.base.files import names_in, new_folder, output_folder
from kerasbert.base.strict_json import to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from kerasbert.base.aliases import AnyPath

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Escapes of PostgreSQL's COPY.
_COPY = str.maketrans({"\0": "", "\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})
_INDEXED = 2000  # Maximum width of vectors in an HNSW index of pgvector.


@dataclasses.dataclass(frozen=True)
class Format:
    """A vector database.

    Attributes:
        write: function of batches and `Target` that yields `(file name, lines)`, lines as strings.
        load: the command or call that loads the files.
    """

    write: Callable[..., Iterator[Any]]
    load: str


@dataclasses.dataclass(frozen=True)
class Target:
    """Target of an export: name of the collection, width D and similarity."""

    name: str
    width: int
    similarity: str
    string_ids: bool


def export_records(
    batches: Iterable[Any],
    format: str,
    directory: AnyPath,
    *,
    name: str = "passages",
    similarity: str = "cosine",
    rows: int = 1_000,
) -> dict[str, Any]:
    """Write texts, embeddings and metadata as files for a vector database.

    Args:
        batches: iterable of `(ids, texts, vectors)`, such as `read_vectors(folder)`, or of
            `(ids, texts, vectors, metadata)`.
        format: string, one of `EXPORTS`:

            - "qdrant": request bodies of `PUT /collections/<name>/points`, one `.json` per `rows`
              points, and `collection.json` for `PUT /collections/<name>`. Other ids than UUIDs and
              whole numbers from 0 become UUIDs; the payload has `id`, `text` and `metadata`.
            - "elasticsearch": bulk requests (`.ndjson`), and `index.json` with the mapping, one
              field per metadata key. "opensearch": the same for OpenSearch.
            - "vespa": `feed.jsonl` for `vespa feed`, and a schema `<name>.sd`. Metadata are a JSON
              string, and strings `key=value` in the field `tags` for exact filters. Control
              characters become spaces.
            - "pgvector": `<name>.sql`, which makes a table and loads `<name>.tsv` by `\\copy`. The
              metadata are `jsonb`. U+0000 is removed.
        directory: a new folder.
        name: name of the collection, index or table: lower-case letters, digits and "_".
        similarity: "cosine" or "dot", of the database.
        rows: maximum number of rows per request.

    Returns:
        A dict of `count` (rows), `files` (names) and `load` (how to load them).

    Raises:
        ValueError: if an argument is invalid, or if the folder is not empty.

    >>> import tempfile
    >>> batches = [(["a"], ["It rains."], [[0.6, 0.8]], [{"year": 2020}])]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export_records(batches, "vespa", folder)["files"]
    ['passages.sd', 'feed.jsonl']
    """
    check_choice("format", format, EXPORTS)
    check_choice("similarity", similarity, ("cosine", "dot"))
    check_whole("rows", rows)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"name={name!r:.70} must have lower-case letters, digits and '_' only, and begin with "
            "a letter."
        )
    folder = output_folder(directory, "directory")
    if names_in(folder):
        raise ValueError(f"'{folder}' is not empty; choose another folder.")
    records = _records(batches)
    first = next(records, None)
    if first is None:
        raise ValueError("There are no texts to export.")
    id, _, vector, _ = first
    target = Target(name, len(vector), similarity, isinstance(id, str))
    count = itertools.count()
    records = (one for one in itertools.chain([first], records) if next(count) >= 0)
    row, files = EXPORTS[format], []
    with new_folder(folder, by="export") as place:
        for file, lines in row.write(records, target, rows):
            files.append(file)
            with open(os.path.join(place, file), "w", encoding="utf-8", newline="\n") as out:
                out.writelines(lines)
    load = row.load.format(name=name, folder=folder)
    return {"count": next(count), "files": files, "load": load}


def _records(batches):
    """Yield `(id, text, vector, metadata)` with plain values; lone surrogates become "?"."""
    known = None  # The width of vectors, and the type of ids.
    for ids, texts, vectors, *metadata in batches:
        vectors = np.asarray(vectors, "float32")
        fields = metadata[0] if metadata else [{}] * len(ids)
        known = _checked(ids, texts, vectors, fields, known)
        for id, text, vector, one in zip(ids, texts, vectors, fields, strict=True):
            id = _utf8(id) if isinstance(id, str) else int(id)
            # The shortest decimal that is the same float32.
            vector = [float(str(x)) for x in vector]
            yield id, _utf8(text), vector, {_utf8(key): _clean(x) for key, x in one.items()}


def _checked(ids, texts, vectors, fields, known):
    """Return the vectors' width and whether ids are strings; raise for a bad batch."""
    sizes = [len(x) for x in (ids, texts, vectors, fields)]
    if not any(sizes):
        return known
    if len(set(sizes)) > 1 or vectors.ndim != 2:
        raise ValueError(
            f"A batch has {sizes[0]} ids, {sizes[1]} texts, vectors of shape {vectors.shape} and "
            f"{sizes[3]} metadata; each text needs one of each."
        )
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise ValueError(f"The vector of {ids[bad[0]]!r:.90} has NaN or infinity; embed it again.")
    for one in ((vectors.shape[1], isinstance(id, str)) for id in ids):
        known = known or one
        if one != known:
            raise ValueError(
                "All vectors must have the same width, and ids must be all strings or all numbers; "
                f"got vectors of width {known[0]} and {one[0]}, and ids such as {ids[0]!r:.90} and "
                f"{ids[-1]!r:.90}."
            )
    return known


def _clean(value):
    if isinstance(value, list):
        return [_clean(one) for one in value]
    return _utf8(value) if isinstance(value, str) else value


def _utf8(text):
    return text.encode("utf-8", "replace").decode("utf-8")


def _json(value):
    return to_json(value, ensure_ascii=False, separators=(",", ":"))


def _pretty(value):
    return to_json(value, ensure_ascii=False, indent=2) + "\n"


# === Qdrant ===


def _qdrant(records, target, rows):
    distance = {"cosine": "Cosine", "dot": "Dot"}[target.similarity]
    yield (
        "collection.json",
        [_pretty({"vectors": {"size": target.width, "distance": distance}})],
    )
    for number, some in enumerate(_batched(records, rows)):
        yield f"points-{number:05d}.json", _points(some)


def _points(records):
    yield '{"points":[\n'
    for place, (id, text, vector, metadata) in enumerate(records):
        payload = {"id": id, "text": text, "metadata": metadata}
        point = {"id": qdrant_id(id), "vector": vector, "payload": payload}
        yield (",\n" if place else "") + _json(point)
    yield "\n]}\n"


def qdrant_id(id: Any) -> Any:
    """Return an id as Qdrant takes it: a whole number from 0, or a UUID.

    >>> qdrant_id(7), qdrant_id("terms.txt#0")
    (7, '860027aa-1750-57f9-993d-7371a2d68fe6')
    """
    if _UUID.fullmatch(id) if isinstance(id, str) else id >= 0:
        return id
    return str(uuid.uuid5(uuid.NAMESPACE_URL, str(id)))


# === Elasticsearch and OpenSearch ===


def _elasticsearch(records, target, rows):
    dense = {"type": "dense_vector", "dims": target.width, "index": True}
    # "dot_product" takes unit vectors only.
    names = {"cosine": "cosine", "dot": "max_inner_product"}
    dense["similarity"] = names[target.similarity]
    yield from _bulk(records, target, rows, {}, dense)


def _opensearch(records, target, rows):
    space = {"cosine": "cosinesimil", "dot": "innerproduct"}[target.similarity]
    method = {"name": "hnsw", "engine": "lucene", "space_type": space}
    dense = {"type": "knn_vector", "dimension": target.width, "method": method}
    yield from _bulk(records, target, rows, {"settings": {"index": {"knn": True}}}, dense)


def _bulk(records, target, rows, settings, dense):
    kinds = {}  # Key of the metadata to the types of its values.
    for number, some in enumerate(_batched(records, rows)):
        yield f"bulk-{number:05d}.ndjson", _actions(some, target.name, kinds)
    fields = {key: {"type": _field(types)} for key, types in sorted(kinds.items())}
    properties = {
        "id": {"type": "keyword" if target.string_ids else "long"},
        "text": {"type": "text"},
        "vector": dense,
        "metadata": {"properties": fields},
    }
    yield "index.json", [_pretty({**settings, "mappings": {"properties": properties}})]


def _field(types):
    """Return the type of the field for values of some types."""
    kinds = {bool: "boolean", int: "long", float: "double"}
    if types == {int, float}:
        return "double"
    return kinds.get(next(iter(types)), "keyword") if len(types) == 1 else "keyword"


def _actions(records, name, kinds):
    for id, text, vector, metadata in records:
        for key, value in metadata.items():
            for one in value if isinstance(value, list) else [value]:
                kinds.setdefault(key, set()).add(type(one))
        yield _json({"index": {"_index": name, "_id": str(id)}}) + "\n"
        yield _json({"id": id, "text": text, "vector": vector, "metadata": metadata}) + "\n"


# === Vespa ===

_SCHEMA = """\
schema {name} {{
    document {name} {{
        field id type string {{
            indexing: attribute | summary
        }}
        field text type string {{
            indexing: index | summary
            index: enable-bm25
        }}
        field metadata type string {{
            indexing: summary
        }}
        field tags type array<string> {{
            indexing: attribute | summary
        }}
        field vector type tensor<float>(x[{width}]) {{
            indexing: attribute | index
            attribute {{
                distance-metric: {metric}
            }}
        }}
    }}
    rank-profile nearest {{
        inputs {{
            query(q) tensor<float>(x[{width}])
        }}
        first-phase {{
            expression: closeness(field, vector)
        }}
    }}
}}
"""


def _vespa(records, target, rows):
    metric = {"cosine": "angular", "dot": "dotproduct"}[target.similarity]
    schema = _SCHEMA.format(name=target.name, width=target.width, metric=metric)
    yield f"{target.name}.sd", [schema]
    yield "feed.jsonl", (_put(*one, target.name) for one in records)


def _put(id, text, vector, metadata, name):
    # Vespa rejects control characters.
    fields = {
        "id": _vespa_text(str(id)),
        "text": _vespa_text(text),
        "metadata": to_json(metadata),
        "tags": [_vespa_text(one) for one in _tags(metadata)],
        "vector": {"values": vector},
    }
    return _json({"put": f"id:{name}:{name}::{_vespa_text(str(id))}", "fields": fields}) + "\n"


def _tags(metadata):
    """Return metadata as strings `key=value`, one per value of a list, for exact filters."""
    for key, value in metadata.items():
        for one in value if isinstance(value, list) else [value]:
            yield f"{key}={one if isinstance(one, str) else to_json(one)}"


def _vespa_text(text):
    return re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ufdd0-\ufdef\ufffe\uffff]", " ", text)


# === PostgreSQL with pgvector ===

_TABLE = """\
-- Run in this folder: psql DATABASE -f {name}.sql
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE "{name}" (
    id {id} PRIMARY KEY,
    text text NOT NULL,
    metadata jsonb NOT NULL,
    embedding vector({width}) NOT NULL
);
\\copy "{name}" (id, text, metadata, embedding) FROM '{name}.tsv' WITH (ENCODING 'UTF8')
{index}
CREATE INDEX ON "{name}" USING gin (metadata);
"""


def _pgvector(records, target, rows):
    operators = {"cosine": "vector_cosine_ops", "dot": "vector_ip_ops"}[target.similarity]
    kind = "text" if target.string_ids else "bigint"
    index = f'CREATE INDEX ON "{target.name}" USING hnsw (embedding {operators});'
    if target.width > _INDEXED:
        index = f"-- An HNSW index takes at most {_INDEXED} dimensions."
    table = _TABLE.format(name=target.name, id=kind, width=target.width, index=index)
    yield f"{target.name}.sql", [table]
    yield f"{target.name}.tsv", (_copied(*one) for one in records)


def _copied(id, text, vector, metadata):
    # PostgreSQL rejects U+0000, also as \u0000 in jsonb. In CSV, psql before version 18 takes a
    # line "\." within a text for the end of the file.
    values = str(id), text, _json(_without_zeros(metadata)), _json(vector)
    return "\t".join(x.translate(_COPY) for x in values) + "\n"


def _without_zeros(value):
    if isinstance(value, dict):
        return {_without_zeros(key): _without_zeros(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_zeros(one) for one in value]
    return value.replace("\0", "") if isinstance(value, str) else value


def _batched(records, size):
    while some := list(itertools.islice(records, size)):
        yield some


EXPORTS = {
    "qdrant": Format(
        _qdrant,
        "PUT collection.json to /collections/{name}, then each points-*.json to "
        "/collections/{name}/points",
    ),
    "elasticsearch": Format(
        _elasticsearch, "PUT index.json to /{name}, then POST each bulk-*.ndjson to /_bulk"
    ),
    "opensearch": Format(
        _opensearch, "PUT index.json to /{name}, then POST each bulk-*.ndjson to /_bulk"
    ),
    "vespa": Format(_vespa, "deploy {name}.sd, then run `vespa feed {folder}/feed.jsonl`"),
    "pgvector": Format(_pgvector, "run `psql DATABASE -f {name}.sql` in {folder}"),
}
