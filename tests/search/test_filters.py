"""Metadata of texts, and searches that they filter."""

import datetime
import json
import random

import numpy as np
import pytest

from kerasbert import SearchIndex
from kerasbert.search.vectors import DTYPES
from tests.search.test_collection import ENGINES
from tests.search.test_index import Letters, Shortest, ids

ROWS = [
    {"year": 2019, "lang": "ko", "draft": True, "tags": ["a", 1]},
    {"year": 2020.5, "lang": "ja", "draft": False, "tags": []},
    {"year": "2021", "day": "2021-03-09"},
    {},
    {"year": 2023, "lang": "en", "day": "2020-12-31", "tags": ["a", "b", True]},
    {"year": 1, "lang": "", "draft": True},
]


def made(rows=ROWS, **settings):
    index = SearchIndex(None, **settings)
    angles = np.linspace(0, np.pi / 2, len(rows))
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    index.add([f"text {i}" for i in range(len(rows))], vectors=vectors, metadata=rows)
    return index


@pytest.mark.parametrize(
    "where, expected",
    [
        (None, [0, 1, 2, 3, 4, 5]),
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"lang": "ko"}, [0]),
        ({"year": {"$gte": 2020}}, [1, 4]),
        ({"year": {"$gt": 1, "$lte": 2020.5}}, [0, 1]),
        ({"year": 2019.0}, [0]),
        ({"year": "2019"}, []),
        ({"year": {"$lt": "3"}}, [2]),
        ({"day": {"$gte": "2021-01-01"}}, [2]),
        ({"draft": True}, [0, 5]),
        ({"draft": 1}, []),
        ({"year": 1}, [5]),
        ({"year": True}, []),
        ({"lang": {"$ne": "ko"}}, [1, 2, 3, 4, 5]),
        ({"lang": {"$in": ["ko", "ja", 5]}}, [0, 1]),
        ({"lang": {"$in": []}}, []),
        ({"lang": {"$nin": {"ko", "ja"}}}, [2, 3, 4, 5]),
        ({"tags": {"$contains": "a"}}, [0, 4]),
        ({"tags": {"$contains": 1}}, [0]),
        ({"lang": {"$contains": "k"}}, []),
        ({"tags": "a"}, []),
        ({"none has it": {"$gt": 0}}, []),
        ({"none has it": {"$ne": 0}}, [0, 1, 2, 3, 4, 5]),
        ({"lang": "ko", "year": {"$gte": 2020}}, []),
        ({"$or": [{"lang": "ko"}, {"$and": [{"year": {"$gt": 2022}}, {"lang": "en"}]}]}, [0, 4]),
        ({"draft": True, "$or": [{"year": 1}, {"year": 2020.5}]}, [5]),
    ],
)
def test_conditions(where, expected):
    index = made()
    assert ids(index.get(where=where)) == expected
    assert ids(index.search_vectors([1, 0], where=where)) == expected
    assert ids(made([], dtype="int8").search_vectors([1, 0], where=where)) == []
    without = made([{}] * 6)
    assert ("metadata" in without.get(0)) is False
    hopeless = {} if not where else {"none has it": 0}
    assert len(without.search_vectors([1, 0], where=hopeless)) == (0 if where else 6)


def test_conditions_that_are_none():
    index = made()
    nested = {"year": 1}
    for _ in range(100):
        nested = {"$and": [nested]}
    deep = []
    for _ in range(3000):
        deep = [deep]
    for where, message in (
        ("year", "where must be a dict of conditions"),
        ([], "where must be a dict of conditions"),
        (np.zeros(2), "where must be a dict of conditions"),
        ({"year": {"$gt3": 2}}, "unknown operator '\\$gt3'; did you mean \\$gt"),
        ({"year": {"over": 2}}, "unknown operator 'over'; use one of \\$eq"),
        ({"year": {}}, "is empty"),
        ({"year": {1: 2}}, "unknown operator 1"),
        ({"$nor": []}, "'\\$nor' in the place of a key"),
        ({"$and": []}, "\\$and in where must be a list of conditions"),
        ({"$or": {"a": 1}}, "\\$or in where must be a list"),
        ({"$or": [{}]}, "where must be a dict of conditions"),
        ({1: 2}, "has the key 1"),
        ({"year": None}, "is None; use strings"),
        ({"year": float("nan")}, "is nan; use strings"),
        ({"year": 10**30}, "of 64 bits"),
        ({"year": [1]}, r"is \[1\]; use strings"),
        ({"year": {"$in": 5}}, "must be a list of values, got 5"),
        ({"year": {"$in": "ab"}}, "must be a list of values, got 'ab'"),
        ({"year": {"$in": np.array(5)}}, "must be a list of values, got array"),
        ({"year": deep}, "use strings"),
        ({"year": {"$in": [{}]}}, "is {}; use strings"),
        ({"year": {"$gt": True}}, "must be a number or a string"),
        ({"day": {"$gt": datetime.date(2020, 1, 2)}}, "dates as ISO strings, '2020-01-02'"),
        (nested, "nested more than 50"),
    ):
        for call in (lambda w: index.search_vectors([1, 0], where=w), lambda w: index.get(where=w)):
            with pytest.raises(ValueError, match=message):
                call(where)


def test_metadata_that_are_none():
    index = made()
    for metadata, message in (
        ({"a": 1}, "metadata must be a list of dicts"),
        ([{}, {}], "2 dicts of metadata for 1 texts"),
        (["a"], r"metadata\[0\] must be a dict, got 'a'"),
        ([{"": 1}], "has the key ''"),
        ([{"$a": 1}], r"has the key '\$a'"),
        ([{1: 1}], "has the key 1"),
        ([{"a": {"b": 1}}], r"metadata\[0\]\['a'\] is {'b': 1}"),
        ([{"a": [[1]]}], r"is \[1\]; use"),
        ([{"a": float("inf")}], "is inf; use strings, finite numbers"),
        ([{"a": np.float32("nan")}], "use strings, finite numbers"),
        ([{"a": 2**63}], "of 64 bits"),
        ([{"a": b"x"}], "is b'x'"),
        ([{"a": datetime.datetime(2020, 1, 2)}], "ISO strings, '2020-01-02T00:00:00'"),
    ):
        for call in (
            lambda m: index.add(["x"], vectors=[[1, 0]], metadata=m),
            lambda m: index.upsert(["x"], [9], vectors=[[1, 0]], metadata=m),
            lambda m: index.update([0], metadata=m),
        ):
            with pytest.raises(ValueError, match=message):
                call(metadata)
    for call in (lambda: index.update([0]), lambda: index.update([0], vectors=[[1, 0]])):
        with pytest.raises(ValueError, match="update needs texts or metadata"):
            call()
    assert [one["metadata"] for one in index.get()] == ROWS


def test_numpy_values_are_plain_ones():
    values = {"a": np.int32(1), "b": np.float64(0.5), "c": np.bool_(True), "d": np.arange(2)}
    (found,) = made([{**values, "e": None, "f": ("x",), "g": "\ud800"}]).get()
    expected = {"a": 1, "b": 0.5, "c": True, "d": [0, 1], "f": ["x"], "g": "\ud800"}
    assert found["metadata"] == expected
    assert json.dumps(found["metadata"]) == json.dumps(expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_filter_comes_before_the_ranking(engine, dtype):
    """The hits are those of a search for all texts, in order, that satisfy the condition."""
    generator, count = np.random.default_rng(0), 600
    index = SearchIndex(None, dtype=dtype, engine=engine, rescore=8)
    vectors = generator.normal(size=(count, 32))
    metadata = [{"group": int(group)} for group in generator.geometric(0.3, count)]
    index.add([""] * count, vectors=vectors, metadata=metadata)
    query = generator.normal(size=32)
    whole = index.search_vectors(query, count)
    for group in (1, 2, 5, 9):
        where = {"group": {"$gte": group}}
        allowed = [hit for hit in whole if hit["metadata"]["group"] >= group]
        found = index.search_vectors(query, 10, where=where)
        assert len(found) == min(10, len(allowed))  # Never fewer.
        if engine == "exact" and dtype != "binary":
            assert found == allowed[:10]
        shared = {*ids(found)} & {*ids(allowed[:10])}
        assert len(shared) >= 0.7 * len(found)


def test_metadata_follow_their_texts(tmp_path):
    index = SearchIndex(Letters(), ["a", "b", "c"], metadata=None)
    index.add(["d"], metadata=[{"n": 3}])
    index.add(["e"])
    index.update([0], metadata=[{"n": 0}])
    assert [one.get("metadata") for one in index.get()] == [{"n": 0}, {}, {}, {"n": 3}, {}]
    index.search("a", where={"n": 3})  # The values of the key are numbered.
    index.update([3], ["dd"])  # The metadata stay.
    index.update([1, 0], metadata=[{"n": 3, "m": "x"}, {"n": None, "k": 1}])
    index.upsert(["e2"], [4], metadata=[{"n": 3}])
    index.remove(2)
    expected = {0: {"k": 1}, 1: {"n": 3, "m": "x"}, 3: {"n": 3}, 4: {"n": 3}}
    index.save(tmp_path / "index", models=False)
    for one in (
        index,
        SearchIndex.load(tmp_path / "index", Letters()),
        SearchIndex.load(tmp_path / "index", Letters(), mmap=False),
    ):
        assert {x["id"]: x["metadata"] for x in one.get()} == expected
        assert sorted(ids(one.search("e", where={"n": 3}))) == [1, 3, 4]
        assert one.get(1, where={"n": 3})["text"] == "b" and one.get(0, where={"n": 3}) is None
    one.update([0], metadata=[{"n": 3}])
    one.upsert(["e3"], [4])
    one.save(tmp_path / "index", overwrite=True, models=False)
    last = SearchIndex.load(tmp_path / "index", Letters())
    assert sorted(ids(last.search("e", where={"n": 3}))) == [0, 1, 3]
    frame = last.to_pandas()
    assert frame["n"].tolist()[:3] == [3, 3, 3] and list(frame)[:2] == ["id", "text"]
    reranked = SearchIndex(
        Letters(), ["a", "aa", "b"], reranker=Shortest(), metadata=[{"id": 1}] * 3
    )
    assert ids(reranked.search("a", where={"id": 1}, exclude=2)) == [0, 1]
    assert list(reranked.to_pandas()) == ["id", "text", "metadata.id"]


def test_damaged_metadata(tmp_path):
    index = made()
    index.save(tmp_path / "index")
    assert json.loads((tmp_path / "index" / "index.json").read_text())["format"] == 2
    made([{}]).save(tmp_path / "plain")
    assert json.loads((tmp_path / "plain" / "index.json").read_text())["format"] == 1
    path = tmp_path / "index" / "metadata.bin"
    whole, draw = path.read_bytes(), random.Random(0)
    for bad in (
        b"[1]",
        b"NaN",
        b"",
        b'{"a": NaN}',
        b'{"a": {}}',
        b'{"$a": 1}',
        b"[" * 200,
        b"\xff",
    ):
        bad = bad.ljust(len(whole))[: len(whole)]
        path.write_bytes(bad)
        for call in (
            lambda one: one.get(),
            lambda one: one.search_vectors([1, 0]),
            lambda one: one.get(where={"year": 1}),
        ):
            try:
                call(SearchIndex.load(tmp_path / "index"))
            except ValueError as error:
                assert "is damaged; copy the whole index" in str(error)
        with pytest.raises(ValueError, match="metadata.bin' is damaged"):
            SearchIndex.load(tmp_path / "index", mmap=False)
    for _ in range(50):
        data = bytearray(whole)
        data[draw.randrange(len(data))] = draw.randrange(256)
        path.write_bytes(data)
        try:
            SearchIndex.load(tmp_path / "index").search_vectors([1, 0], where={"year": 1})
        except ValueError as error:
            assert "is damaged; copy the whole index" in str(error)
    path.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="metadata.bin"):
        SearchIndex.load(tmp_path / "index")
    path.write_bytes(whole)
    manifest = tmp_path / "index" / "index.json"
    value = json.loads(manifest.read_text())
    for changes, message in (
        ({"metadata": 3}, "metadata=3"),
        ({"format": True}, "has format True"),
        ({"rows": 5, "count": 5}, "but the index expects"),
    ):
        manifest.write_text(json.dumps({**value, **changes}))
        with pytest.raises(ValueError, match=message):
            SearchIndex.load(tmp_path / "index")
