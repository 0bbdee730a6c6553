"""Engines beside the exact search: the same hits, additions, removals and files."""

import numpy as np
import pytest

from kerasbert import _errors
from kerasbert.search import SearchIndex
from kerasbert.search.vectors import DTYPES
from tests.search.test_index import search_while_others_change


def fill(index, vectors):
    index.add([f"text {i}" for i in range(len(vectors))], vectors=vectors)
    return index


def ids(results):
    return [[hit["id"] for hit in hits] for hits in results]


def recall(found, expected):
    return np.mean([len({*a} & {*b}) / len(b) for a, b in zip(ids(found), ids(expected))])


@pytest.mark.peers
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ["faiss", "usearch"])
def test_engines(engine, dtype, tmp_path):
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(800, 100))
    queries = vectors[::40] + generator.normal(size=(20, 100)) / 2
    exact = fill(SearchIndex(None, dtype=dtype), vectors)
    index = fill(SearchIndex(None, dtype=dtype, engine=engine), vectors)
    least = 0.8 if dtype == "binary" else 0.9  # Many differ by equally many bits.
    assert recall(index.search_vectors(queries, 5), exact.search_vectors(queries, 5)) > least
    single = index.search_vectors(queries[0], 5)
    assert single == index.search_vectors(queries[:1], 5)[0]
    for one in (exact, index):
        one.remove([0, 40, 80])
        one.add(["new"], vectors=queries[:1])
    assert index.search_vectors(queries[0], 2)[0]["text"] == "new"
    index.save(tmp_path / "index")
    again = SearchIndex.load(tmp_path / "index")
    expected = exact.search_vectors(queries, 5)
    assert len(again._finder) == 801  # Nothing is drawn anew.
    assert recall(again.search_vectors(queries, 5), expected) > least
    assert len(again.search_vectors(queries[0], 900)) == 798
    again.remove(range(100, 300))
    again.save(tmp_path / "index", overwrite=True)
    less = SearchIndex.load(tmp_path / "index")
    assert less.search_vectors(queries[0], 2)[0]["text"] == "new" and len(less) == 598
    (tmp_path / "index" / f"engine.{engine}").write_bytes(b"no index")
    with pytest.raises(ValueError, match="is damaged .* remove it, and it is made again"):
        SearchIndex.load(tmp_path / "index")


@pytest.mark.peers
@pytest.mark.parametrize("engine", ["faiss", "usearch"])
def test_threads_search_while_one_adds(engine):
    index = SearchIndex(None, engine=engine)
    found, errors = search_while_others_change(index)
    assert not errors and found and len(index._finder) <= 2000
    for hits in found:
        assert len({hit["id"] for hit in hits}) == 10


@pytest.mark.peers
def test_a_damaged_file_is_not_believed(tmp_path, monkeypatch):
    """Its first bytes are sizes: text there makes 14 GB."""
    from usearch.index import Index

    index = fill(SearchIndex(None, engine="usearch"), np.eye(9))
    index.search_vectors(np.eye(9)[0], 1)
    index.save(tmp_path / "index")
    path = tmp_path / "index" / "engine.usearch"
    whole = path.read_bytes()
    loaded, load = [], Index.load
    monkeypatch.setattr(Index, "load", lambda *args: loaded.append(args) or load(*args))
    for damaged in (b"no index", b"", whole[: len(whole) // 2], b"\xff" * 100 + whole[100:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="is damaged .* remove it, and it is made again"):
            SearchIndex.load(tmp_path / "index")
    assert len(loaded) == 1  # Half of a file begins with sizes that are right.
    path.write_bytes(whole)
    assert len(SearchIndex.load(tmp_path / "index")) == 9


@pytest.mark.peers
def test_options():
    vectors = np.random.default_rng(0).normal(size=(1000, 32))
    options = {"factory": "IVF8,Flat", "search": 8}
    index = fill(SearchIndex(None, engine="faiss", engine_options=options), vectors)
    exact = fill(SearchIndex(None), vectors)
    queries = vectors[:9]
    assert ids(index.search_vectors(queries, 5)) == ids(exact.search_vectors(queries, 5))
    for engine, options, message in (
        ("faiss", {"factory": "HSNW"}, "factory='HSNW': faiss says"),
        ("faiss", {"efsearch": 3}, "efsearch"),
        ("usearch", {"efsearch": 3}, "efsearch"),
    ):
        with pytest.raises(ValueError, match=message):
            SearchIndex(None, engine=engine, engine_options=options)


def test_a_missing_package(monkeypatch):
    monkeypatch.setattr(_errors.importlib.util, "find_spec", lambda name: None)
    for engine in ("faiss", "usearch"):
        with pytest.raises(ImportError, match=rf"needs the package {engine}; run .*\[{engine}\]"):
            SearchIndex(None, engine=engine)
