"""Reading and replacing texts of an index, and the arguments that select hits."""

import numpy as np
import pytest

from kerasbert import SearchIndex
from tests.search.test_index import Letters, Shortest, ids

ENGINES = ["exact", *(pytest.param(x, marks=pytest.mark.peers) for x in ("faiss", "usearch"))]


def circle(count, **settings):
    """Return an index of points on a quarter circle: point 0 is nearest to (1, 0)."""
    angles = np.linspace(0, np.pi / 2, count)
    index = SearchIndex(None, **settings)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    index.add([f"point {i}" for i in range(count)], vectors=vectors)
    return index


def test_reading_is_like_a_dict():
    index = SearchIndex(Letters(), ["a", "b", "c"], ids=["x", "y", "z"])
    index.remove("y")
    assert len(index) == 2 and list(index) == index.ids == ["x", "z"]
    assert "x" in index and "y" not in index and 0 not in index
    for unhashable in ([], {}, None, np.zeros(2)):
        assert unhashable not in index
    assert index.get("z") == {"id": "z", "text": "c"}
    assert index.get(["z", "x", "z"]) == [index.get("z"), index.get("x"), index.get("z")]
    assert index.get([]) == [] and list(SearchIndex(None)) == []
    numbers = SearchIndex(Letters(), ["a", "b"])
    assert np.int64(1) in numbers and True not in numbers and numbers.get(np.int64(1))["id"] == 1
    for wrong, message in ((5, "no text with the id 5"), ([[0]], r"id \[0\]"), ({}, "a list")):
        with pytest.raises(ValueError, match=message):
            numbers.get(wrong)


def test_to_pandas():
    frame = SearchIndex(Letters(), ["a", "b"], ids=["x", "y"]).to_pandas()
    assert frame.to_dict("records") == [{"id": "x", "text": "a"}, {"id": "y", "text": "b"}]
    assert list(SearchIndex(None).to_pandas().columns) == ["id", "text"]


@pytest.mark.parametrize("engine", ENGINES)
def test_upsert_and_update(engine, tmp_path):
    index = SearchIndex(Letters(), ["aa", "bb", "cc"], engine=engine)
    index.search("a")  # An engine is built before the changes.
    index.upsert(["dd", "ee"], ids=[1, 7])
    assert index.ids == [0, 2, 1, 7] and index.texts == ["aa", "cc", "dd", "ee"]
    assert ids(index.search("d", 1)) == [1] and len(index.search("b", 10)) == 4
    index.update([0, 7], ["ff", "gg"])
    assert index.ids == [2, 1, 0, 7] and ids(index.search("f", 1)) == [0]
    index.save(tmp_path / "index")
    again = SearchIndex.load(tmp_path / "index", Letters())
    assert again.ids == index.ids and ids(again.search("g", 1)) == [7]
    again.upsert(["aa"], ids=[7])
    assert again.get(7)["text"] == "aa" and ids(again.search("a", 1)) == [7]


def test_what_upsert_and_update_refuse():
    index = SearchIndex(Letters(), ["a", "b"])
    for call, message in (
        (lambda: index.upsert(["c", "d"], ids=[1, 1]), "id 1 is given twice"),
        (lambda: index.upsert(["c"], ids=None), "ids must be a list, got None"),
        (lambda: index.upsert(["c"], ids=["x"]), "are whole numbers, but 'x' is not"),
        (lambda: index.upsert(["c"], ids=[[1]]), "all strings, or all whole numbers"),
        (lambda: index.upsert(["c"], [1], vectors=np.ones((1, 3))), "3 dimensions, but the index"),
        (lambda: index.upsert([None], [1]), r"texts\[0\] must be a string"),
        (lambda: index.update([1, 5], ["c", "d"]), "no text with the id 5"),
        (lambda: index.update([1], ["c", "d"]), "1 ids for 2 texts"),
        (lambda: index.add(["c"], ids=[1]), "already in the index; remove it first, or use"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
        assert index.ids == [0, 1] and index.texts == ["a", "b"]


def test_updates_without_content_and_from_iterators():
    index = SearchIndex(Letters(), ["a", "b"])
    index.update([], metadata=[])
    index.update([0], metadata=[{"year": None}])
    assert index.get(0) == {"id": 0, "text": "a"}
    index.update([0, 1], metadata=({"year": year, "old": 1} for year in (1, 2)))
    index.update([0, 1], metadata=({"old": None} for _ in range(2)))
    assert [one["metadata"] for one in index.get()] == [{"year": 1}, {"year": 2}]


@pytest.mark.parametrize("engine", ENGINES)
def test_pages_are_parts_of_one_search(engine):
    index = circle(50, engine=engine)
    whole = index.search_vectors([1, 0], 50)
    assert ids(whole) == list(range(50))
    for offset in (0, 1, 7, 49, 50, 10**30):
        assert index.search_vectors([1, 0], 7, offset) == whole[offset : offset + 7]
    assert index.search_vectors([1, 0], 10**30, np.int64(2**62)) == []
    assert index.search_vectors([[1, 0], [0, 1]], 2, 1) == [
        whole[1:3],
        index.search_vectors([0, 1], 2, 1),
    ]
    assert ids(index.search_vectors([1, 0], 3, exclude=[0, 2, 99, "x"])) == [1, 3, 4]
    assert ids(index.search_vectors([1, 0], 2, 1, exclude={0})) == [2, 3]
    assert ids(index.search_vectors([1, 0], 50, exclude=range(2, 50))) == [0, 1]
    assert index.search_vectors([1, 0], 50, exclude=index.ids) == []
    near = index.search_vectors([1, 0], 50, min_score=0.9)
    assert near == [hit for hit in whole if hit["score"] >= 0.9] and 0 < len(near) < 50


def test_the_arguments_of_search():
    texts = ["a", "aab", "ab", "abb", "b"]
    index = SearchIndex(Letters(), texts, reranker=Shortest())
    assert ids(index.search("a", 2)) == [0, 4] and ids(index.search("a", 2, offset=2)) == [2, 1]
    assert ids(index.search("a", 5, exclude=4, min_score=-2)) == [0, 2]
    plain = SearchIndex(Letters(), texts)
    assert [ids(hits) for hits in plain.search(["a", "", "b"], 2, offset=1)] == [[1, 2], [], [3, 2]]
    for name, value in (
        ("offset", -1),
        ("offset", 1.5),
        ("offset", True),
        ("min_score", float("nan")),
        ("min_score", "0.5"),
        ("exclude", [[1]]),
        ("exclude", {1: 2}),
        ("exclude", 1.5),
        ("exclude", [None]),
    ):
        with pytest.raises(ValueError, match=name):
            plain.search("a", **{name: value})
        with pytest.raises(ValueError, match=name):
            plain.search_vectors(np.ones(26), **{name: value})
