"""Engines compared with the exact search: the same hits, additions, removals and files."""

import json
import os
import random
import shutil

import numpy as np
import pytest

from kerasbert import SearchIndex
from kerasbert.base import errors as _errors
from kerasbert.search.engines import ENGINES
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
    least = 0.8 if dtype == "binary" else 0.9  # Many vectors differ in the same number of bits.
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
    assert len(again._neighbors.engine) == 801  # The engine is not rebuilt.
    assert recall(again.search_vectors(queries, 5), expected) > least
    assert len(again.search_vectors(queries[0], 900)) == 798
    for one in (exact, again):
        one.remove(range(100, 300))
    again.save(tmp_path / "index", overwrite=True)
    less = SearchIndex.load(tmp_path / "index")
    # usearch's threads add in any order, so that a single neighbor may be missed.
    assert recall(less.search_vectors(queries, 5), exact.search_vectors(queries, 5)) > least
    assert len(less) == 598
    (tmp_path / "index" / f"engine.{engine}").write_bytes(b"no index")
    with pytest.raises(ValueError, match="is damaged .* delete this file; it is rebuilt"):
        SearchIndex.load(tmp_path / "index")


@pytest.mark.peers
@pytest.mark.parametrize("engine", ["faiss", "usearch"])
def test_threads_search_while_one_adds(engine):
    index = SearchIndex(None, engine=engine)
    found, errors = search_while_others_change(index)
    assert not errors and found and len(index._neighbors.engine) <= 2000
    for hits in found:
        assert len({hit["id"] for hit in hits}) == 10


@pytest.mark.peers
def test_a_damaged_file_is_not_believed(tmp_path, monkeypatch):
    """The file begins with sizes; if text were read as sizes, usearch would allocate 14 GB."""
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
        with pytest.raises(ValueError, match="is damaged .* delete this file; it is rebuilt"):
            SearchIndex.load(tmp_path / "index")
    assert not loaded  # The hashes are compared first.
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


def saved(engine, folder, seed=0, **settings):
    """Save an index with its engine in a folder."""
    vectors = np.random.default_rng(seed).normal(size=(60, 24))
    index = fill(SearchIndex(None, engine=engine, **settings), vectors)
    index.search_vectors(vectors[0], 1)
    index.save(folder)
    return index, vectors


BOTH = pytest.mark.parametrize("engine", ["faiss", "usearch"])


@pytest.mark.peers
@BOTH
@pytest.mark.parametrize("dtype", ["float32", "binary"])
def test_no_damage_reaches_the_library(engine, dtype, tmp_path, monkeypatch):
    saved(engine, tmp_path / "index", dtype=dtype)
    opened = []
    monkeypatch.setattr(ENGINES[engine], "read", lambda self, path: opened.append(path))
    path = tmp_path / "index" / f"engine.{engine}"
    whole, draw = path.read_bytes(), random.Random(0)
    for _ in range(40):
        data, at = bytearray(whole), draw.randrange(len(whole))
        match draw.randrange(3):
            case 0:
                data[at] ^= 1 << draw.randrange(8)
            case 1:
                del data[at:]
            case 2:
                data[at : at + 4] = b"\xff\xff\xff\x7f"
        path.write_bytes(data)
        with pytest.raises(ValueError, match="is damaged .* delete this file; it is rebuilt"):
            SearchIndex.load(tmp_path / "index")
    assert not opened
    path.write_bytes(whole)
    SearchIndex.load(tmp_path / "index")
    assert opened == [str(path)]


@pytest.mark.peers
@BOTH
def test_an_engine_and_its_vectors_belong_together(engine, tmp_path):
    index, vectors = saved(engine, tmp_path / "index")
    saved(engine, tmp_path / "other", seed=1)
    expected = index.search_vectors(vectors, 3)
    name = f"engine.{engine}"
    for file in (name, "vectors.npy"):  # Of equal shape and size.
        shutil.copytree(tmp_path / "index", tmp_path / file)
        shutil.copy(tmp_path / "other" / file, tmp_path / file / file)
        with pytest.raises(ValueError, match=f"{file}' is damaged"):
            SearchIndex.load(tmp_path / file)
    # Follow the advice of the error: remove the file.
    (tmp_path / name / name).unlink()
    again = SearchIndex.load(tmp_path / name)
    # Threads insert vectors in any order, so a rebuilt graph may find a few other neighbors.
    assert recall(again.search_vectors(vectors, 3), expected) > 0.9
    shutil.copy(tmp_path / "other" / name, tmp_path / "index" / "engine.exact")
    assert len(SearchIndex.load(tmp_path / "index")) == 60
    # An index of an earlier version, whose manifest has no hashes.
    manifest = tmp_path / "index" / "index.json"
    value = json.loads(manifest.read_text())
    del value["files"]
    manifest.write_text(json.dumps(value))
    (tmp_path / "index" / name).write_bytes(b"\xff" * 100)
    with pytest.warns(UserWarning, match=f"{name}' was written by a version without hashes"):
        old = SearchIndex.load(tmp_path / "index")
    assert recall(old.search_vectors(vectors, 3), expected) > 0.9
    # An index that was saved before its first search has no engine.
    plain = fill(SearchIndex(None, engine=engine), vectors)
    plain.save(tmp_path / "plain")
    shutil.copy(tmp_path / "other" / name, tmp_path / "plain" / name)
    with pytest.raises(ValueError, match="is damaged .the index was saved without an engine"):
        SearchIndex.load(tmp_path / "plain")


@pytest.mark.peers
@BOTH
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are pipes on POSIX alone")
def test_pipes_and_devices(engine, tmp_path):
    saved(engine, tmp_path / "index")
    for name in sorted(os.listdir(tmp_path / "index")):
        path = tmp_path / "index" / name
        shutil.move(path, tmp_path / "kept")
        for kind in ("pipe", "device"):
            os.mkfifo(path) if kind == "pipe" else os.symlink("/dev/zero", path)
            for mmap in (True, False):
                with pytest.raises(ValueError, match=f"{name}' is a {kind}"):
                    SearchIndex.load(tmp_path / "index", mmap=mmap)
            path.unlink()
        shutil.move(tmp_path / "kept", path)


@pytest.mark.peers
@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("usearch", {"path": "/etc/passwd"}),
        ("usearch", {"path": "/dev/zero", "view": True}),
        ("usearch", {"multi": True}),
        ("usearch", {"ndim": 10**6}),
        ("usearch", {"metric": 140_000_000_000}),
        ("usearch", {"metric": "haversine"}),
        ("usearch", {"dtype": "x"}),
        ("usearch", {"connectivity": 10**9}),
        ("usearch", {"connectivity": -1}),
        ("usearch", {"expansion_add": 1e9}),
        ("usearch", {"expansion_search": "7"}),
        ("faiss", {"factory": "HNSW1000000000,Flat"}),
        ("faiss", {"factory": "IVF4000000000,Flat"}),
        ("faiss", {"factory": "/etc/passwd"}),
        ("faiss", {"factory": ["Flat"]}),
        ("faiss", {"factory": ""}),
        ("faiss", {"factory": "Flat" * 99}),
        ("faiss", {"search": 10**12}),
        ("faiss", {"search": "7"}),
        ("faiss", {"self": 1}),
        ("faiss", {"width": 1}),
    ],
)
def test_options_of_a_file(engine, options, tmp_path):
    saved(engine, tmp_path / "index")
    path = tmp_path / "index" / "index.json"
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "engine_options": options}))
    for call in (
        lambda: SearchIndex.load(tmp_path / "index"),
        lambda: SearchIndex(None, engine=engine, engine_options=options),
    ):
        with pytest.raises(ValueError) as error:
            call()
        assert "\n" not in str(error.value) and next(iter(options)) in str(error.value)


@pytest.mark.peers
def test_options_that_are_usual(tmp_path):
    usual = {"connectivity": 8, "expansion_add": 64, "expansion_search": 32, "dtype": "i8"}
    for engine, options in (
        ("usearch", usual),
        ("usearch", {"metric": "cos"}),
        ("faiss", {"factory": "PCA16,IVF4,PQ8x4"}),
        ("faiss", {"factory": "IVF4_HNSW32,SQ8", "search": 4}),
    ):
        folder = tmp_path / str(len(os.listdir(tmp_path)))
        index, vectors = saved(engine, folder, engine_options=options)
        found = SearchIndex.load(folder).search_vectors(vectors, 1)
        assert ids(found) == ids(index.search_vectors(vectors, 1))
    with pytest.raises(ValueError, match="factory='IVF99,Flat': faiss says .* training points"):
        saved("faiss", tmp_path / "few", engine_options={"factory": "IVF99,Flat"})
