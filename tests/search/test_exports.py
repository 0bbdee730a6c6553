"""Files for vector databases: ids, texts, metadata and vectors survive."""

import json
import re

import numpy as np
import pytest

from kerasbert import SearchIndex
from kerasbert.search import export_records
from kerasbert.search.exports import EXPORTS

IDS = ["a", "b\"'\\", "한국,\n日本\r\n", "12345678-1234-4234-8234-123456789abc", "\ud800"]
TEXTS = [
    "plain",
    "He said: \"it's \\n; DROP TABLE x; --",
    "여러\n줄\r\n\\.\n\t탭 \\N",
    "",
    "nul \0 🙂 \u2028",
]
METADATA = [
    {"year": 2020, "day": "2021-03-09", "tags": ["a", 1, True], "x.y": 0.1},
    {"year": 2020.5, "key\"'한": 'va"l\\\nue\0', "flag": False},
    {},
    {"year": "late", "flag": True, "n": -(2**53)},
    {"tags": []},
]
VECTORS = np.float32([[0.1, 1 / 3], [1e-8, -2], [1, 0], [3.5e20, 1], [0.7, 0.7]])


def expected():
    rows = zip(IDS, TEXTS, VECTORS.astype("float64"), METADATA)
    for id, text, vector, metadata in rows:
        yield id.replace("\ud800", "?"), text, vector.astype("float32").tolist(), metadata


def write(format, folder, **settings):
    found = export_records([(IDS, TEXTS, VECTORS, METADATA)], format, folder, rows=2, **settings)
    assert found["count"] == 5
    assert sorted(found["files"]) == sorted(path.name for path in folder.iterdir())
    return {name: (folder / name).read_bytes().decode("utf-8") for name in found["files"]}


def near(vector):
    return np.float32(vector).tolist()


def without_zeros(value):
    return json.loads(json.dumps(value).replace("\\u0000", ""))


def rows_of(format, files):
    """Read what `export_records` wrote."""
    match format:
        case "qdrant":
            assert json.loads(files["collection.json"])["vectors"]["size"] == 2
            points = [x for name in sorted(files)[1:] for x in json.loads(files[name])["points"]]
            assert [point["id"] for point in points][3] == IDS[3]
            assert len({point["id"] for point in points}) == 5
            for point in points:
                one = point["payload"]
                yield one["id"], one["text"], near(point["vector"]), one["metadata"]
        case "vespa":
            assert "x[2]" in files["docs.sd"] and "distance-metric: angular" in files["docs.sd"]
            for line in files["feed.jsonl"].split("\n")[:-1]:
                one = json.loads(line)
                fields = one["fields"]
                assert one["put"] == f"id:docs:docs::{fields['id']}"
                vector = near(fields["vector"]["values"])
                yield fields["id"], fields["text"], vector, json.loads(fields["metadata"])
        case "pgvector":
            assert "embedding vector(2)" in files["docs.sql"]
            assert "\\." not in files["docs.tsv"].split("\n")  # psql would stop there.
            for line in files["docs.tsv"].split("\n")[:-1]:
                id, text, metadata, vector = map(_unescaped, line.split("\t"))
                yield id, text, near(json.loads(vector)), json.loads(metadata)
        case _:
            index = json.loads(files["index.json"])["mappings"]["properties"]
            types = {key: one["type"] for key, one in index["metadata"]["properties"].items()}
            assert types["year"] == types["tags"] == "keyword" and types["flag"] == "boolean"
            assert (types["n"], types["x.y"], types["day"]) == ("long", "double", "keyword")
            for name in sorted(name for name in files if name != "index.json"):
                lines = files[name].split("\n")
                assert lines.pop() == ""
                for action, source in zip(lines[::2], lines[1::2]):
                    one = json.loads(source)
                    assert json.loads(action)["index"] == {"_index": "docs", "_id": one["id"]}
                    yield one["id"], one["text"], near(one["vector"]), one["metadata"]


def _unescaped(text):
    """Read a value as PostgreSQL's COPY does."""
    controls = {"t": "\t", "n": "\n", "r": "\r", "\\": "\\"}
    return re.sub(r"\\(.)", lambda match: controls[match[1]], text)


@pytest.mark.parametrize("format", EXPORTS)
def test_round_trip(tmp_path, format):
    rows = list(rows_of(format, write(format, tmp_path / "out", name="docs")))
    wanted = list(expected())
    if format == "pgvector":  # PostgreSQL has no character 0.
        wanted = [without_zeros(row) for row in wanted]
        rows = [list(row) for row in rows]
    elif format == "vespa":  # It rejects control characters in texts.
        wanted[4] = (wanted[4][0], wanted[4][1].replace("\0", " "), *wanted[4][2:])
    assert [tuple(row) for row in rows] == [tuple(row) for row in wanted]


def test_export_of_an_index(tmp_path):
    index = SearchIndex(None, similarity="dot", dtype="int8")
    index.add(["a", "b", "c"], vectors=VECTORS[:3], metadata=METADATA[:3])
    index.remove(1)
    found = index.export("qdrant", tmp_path / "out")
    assert found["count"] == 2 and "/collections/passages" in found["load"]
    points = json.loads((tmp_path / "out" / "points-00000.json").read_text())["points"]
    assert [point["id"] for point in points] == [0, 2]
    np.testing.assert_allclose(points[0]["vector"], VECTORS[0], atol=0.01)
    assert points[0]["payload"]["metadata"] == METADATA[0]
    distance = json.loads((tmp_path / "out" / "collection.json").read_text())["vectors"]["distance"]
    assert distance == "Dot"
    for message, call in (
        ("format='weaviate' is unknown; use one of qdrant", ("weaviate", tmp_path / "new")),
        ("is not empty; choose another folder", ("vespa", tmp_path / "out")),
    ):
        with pytest.raises(ValueError, match=message):
            index.export(*call)
    with pytest.raises(ValueError, match="name='My Docs' must have lower-case letters"):
        index.export("vespa", tmp_path / "new", name="My Docs")
    with pytest.raises(ValueError, match="no texts to export"):
        SearchIndex(None).export("vespa", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "batches, message",
    [
        ([(["a", "b"], ["x"], [[1.0], [2.0]])], "2 ids, 1 texts, vectors of shape"),
        ([(["a"], ["x"], [[np.nan]])], "vector of 'a' has NaN or infinity"),
        ([(["a"], ["x"], [[1.0]]), (["b"], ["y"], [[1.0, 2.0]])], "of width 1 and 2"),
        ([(["a", 3], ["x", "y"], [[1.0], [2.0]])], "ids such as 'a' and 3"),
    ],
)
def test_rejected_batches(tmp_path, batches, message):
    with pytest.raises(ValueError, match=message):
        export_records(batches, "pgvector", tmp_path / "out")
    assert not (tmp_path / "out").exists()
