"""An index as a SavedModel: it finds what the index finds, with the same scores."""

import errno
import functools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from kerasbert import SearchIndex
from kerasbert.export import export_serving
from kerasbert.search.served import ServedIndex
from tests.export import tiny
from tests.export.test_serving import session_run

TEXTS = [
    "the weather in rome",
    "a good film",
    "서울의 날씨",
    "東京の天気は良い",
    "",
    "a good film",
    "gone",
    "bob is old",
    "one two three",
    " \u3000\u2003\n",
    "half a\0 pair",
    "kino 東京",
]
QUERIES = ["who is good", "", "rome 서울", "天気", "\u3000 ", "a b c " * 40]
TOP_K = [3, 2, 100, 1, 4, 5]

# All that a client's process may import.
CLIENT = """
import json, sys
import tensorflow as tf
import tensorflow_text
path, target, *queries = sys.argv[1:]
found = tf.saved_model.load(path).signatures["serving_default"](query=tf.constant(queries))
# TensorFlow itself imports Keras.
assert not {"keras_hub", "kerasbert", "torch"} & set(sys.modules)
columns = {name: x.numpy().tolist() for name, x in found.items()}
decode = lambda x: [*map(decode, x)] if isinstance(x, list) else getattr(x, "decode", lambda: x)()
json.dump({name: decode(x) for name, x in columns.items()}, open(target, "w"))
"""


@functools.cache
def model(name):
    kind = {"embedder": "TextEmbedder", "reranker": "Reranker", "reader": "QuestionAnswering"}[name]
    found = tiny.task(kind, encoder_settings={"num_layers": 1})
    found.run_eagerly = True  # No test waits for a compiler.
    return found


def make(*parts, texts=TEXTS, **settings):
    chosen = {name: model(name) for name in parts}
    index = SearchIndex(model("embedder"), texts, **chosen, **settings)
    if "gone" in texts:
        index.remove(index.ids[texts.index("gone")])
    return index


def same_hits(found, index, queries, top_k, **settings):
    """Compare columns with the hits of the index itself."""
    for row, (query, count) in enumerate(zip(queries, top_k)):
        hits = index.search(query, count, **settings)
        assert found["count"][row] == len(hits)
        for place, hit in enumerate(hits):
            one = {name: x[row][place] for name, x in found.items() if name != "count"}
            one = {name: x.decode() if isinstance(x, bytes) else x for name, x in one.items()}
            answer = hit.pop("answer", None)
            if answer is not None:
                hit |= {"answer_score" if x == "score" else x: y for x, y in answer.items()}
                hit |= {name: -1 for name in ("start", "end") if hit[name] is None}
            assert set(one) == set(hit)
            for name, value in hit.items():
                if isinstance(value, float):
                    assert one[name] == pytest.approx(value, rel=1e-5, abs=1e-5), name
                else:
                    assert one[name] == value, name


@pytest.mark.slow_on_tensorflow
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    "parts, settings",
    [
        ((), {"ids": [f"d{i}" for i in range(len(TEXTS))]}),
        (("reader",), {"dtype": "float16", "dims": 8, "query_prompt": "문: "}),
        (("reranker",), {"dtype": "int8", "similarity": "dot"}),
        ((), {"dtype": "binary", "rescore": 2}),
        ((), {"dtype": "binary", "rescore": 0, "dims": 20}),
    ],
)
def test_the_graph_finds_what_the_index_finds(tmp_path, parts, settings):
    index = make(*parts, **settings)
    more = {"candidates": 7} if "reranker" in parts else {}
    ServedIndex(index).save(tmp_path)
    task = ServedIndex(ServedIndex.read(tmp_path), settings=more)
    search = task.signatures()["search"].function
    found = search(query=tf.constant(QUERIES), top_k=tf.constant(TOP_K))
    found = {name: x.numpy() for name, x in found.items()}
    same_hits(found, index, QUERIES, TOP_K, **more)
    # Behind the last hit there is nothing.
    assert found["text"].shape == (len(QUERIES), index.findable())
    assert found["count"][1] == found["count"][4] == 0  # They say nothing.
    assert (found["text"][0, 3:] == b"").all() and (found["score"][0, 3:] == 0).all()
    # A client may ask for anything.
    found = search(query=tf.constant(["a", "b"]), top_k=tf.constant([-3, 0]))
    assert found["count"].numpy().tolist() == [0, 0] and found["text"].shape == (2, 0)
    assert search(query=tf.zeros([0], tf.string), top_k=tf.zeros([0], tf.int32))["id"].shape == (
        0,
        0,
    )


@pytest.mark.backends("tensorflow")
def test_no_variable_is_copied(tmp_path):
    """What `tf.gather` reads is copied whole whenever something else reads it."""
    ServedIndex(make(dtype="int8")).save(tmp_path)
    task = ServedIndex(ServedIndex.read(tmp_path))
    graph = task._graph.get_concrete_function().graph
    handles = {id(variable.handle) for variable in task.variables.values()}
    own = {inner.name for outer, inner in graph.captures if id(outer) in handles}
    assert len(own) == len(handles) == 5
    reading = [op.type for op in graph.get_operations() if op.inputs and op.inputs[0].name in own]
    assert "ReadVariableOp" in reading and "ResourceGather" not in reading


@pytest.mark.backends("tensorflow")
def test_vectors_in_blocks(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    index = SearchIndex(model("embedder"))
    vectors = rng.normal(size=(700, 32)).astype("float32")
    vectors[500:600] = vectors[100:200]
    texts = [f"half a pair \ud800 {i}" for i in range(700)]
    index.add(texts, vectors=vectors)
    monkeypatch.setattr("kerasbert.search.served._BYTES", 1)  # Blocks of 256.
    ServedIndex(index).save(tmp_path)
    task = ServedIndex(ServedIndex.read(tmp_path))
    queries = vectors[90:110] + 0.01
    expected = index.search_vectors(queries, 50)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    found = task._nearest(tf.constant(queries), tf.fill([20], 50))
    for row, hits in enumerate(expected):
        scores = found["score"][row].numpy()
        np.testing.assert_allclose(scores, [hit["score"] for hit in hits], atol=1e-5)
        assert found["row"][row].numpy().tolist()[:4] == [hit["id"] for hit in hits[:4]]
    # A server that answers in JSON refuses half a character.
    assert task.variables["texts"][699].numpy() == b"half a pair ? 699"


@pytest.mark.slow_on_tensorflow
@pytest.mark.backends("tensorflow", "torch")
def test_export(export):
    index = make("reranker")
    path = export(index, warmup=["who?"], signatures=["serving_default", "search"], top_k=2)
    found = session_run(path, "serving_default", query=np.array(QUERIES, object))
    same_hits(found, index, QUERIES, [2] * len(QUERIES))
    top_k = np.array(TOP_K, "int32")
    found = session_run(path, "search", query=np.array(QUERIES, object), top_k=top_k)
    same_hits(found, index, QUERIES, TOP_K)
    with open(os.path.join(path, "assets.extra", "card.json"), encoding="utf-8") as file:
        card = json.load(file)
    assert card["model"] == "SearchIndex"
    assert card["settings"] == {"top_k": 2, "candidates": None}
    assert card["signatures"]["search"]["inputs"]["top_k"] == {"dtype": "int32", "shape": [None]}


@pytest.mark.slow
def test_a_client_without_kerasbert(tmp_path):
    index = make("reranker", "reader", dtype="binary", ids=list(map(str, range(12))))
    path = export_serving(index, tmp_path / "search", null_threshold=1.5, top_k=4)
    names = {"serving_default", "search", "embedder_pair"}
    for part in ("embedder", "reranker", "reader"):
        names |= {part, f"{part}_tokens", f"{part}_preprocess"}
    assert set(tf.saved_model.load(path).signatures) == names
    script, target = tmp_path / "client.py", tmp_path / "found.json"
    script.write_text(CLIENT)
    command = [sys.executable, "-I", script, path, target, *QUERIES]
    subprocess.run(command, cwd=tmp_path, check=True)
    found = json.loads(target.read_text())
    same_hits(found, index, QUERIES, [4] * len(QUERIES), null_threshold=1.5)


def test_refusals(tmp_path):
    class Letters:
        def embed(self, texts, batch_size=32):
            return np.ones((len(texts), 3), "float32")

        def rank(self, query, texts):
            return []

    embedder = model("embedder")
    bare = tiny.models.BertTextEmbedder(embedder.backbone)
    for message, index, settings in (
        ("has no texts", SearchIndex(embedder), {}),
        ("embedder is a Letters", SearchIndex(Letters(), ["a"]), {}),
        ("embedder is None", SearchIndex(None), {}),
        ("embedder has no preprocessor", SearchIndex(bare), {}),
        ("reranker is a Letters", SearchIndex(embedder, ["a"], reranker=Letters()), {}),
        ("model has no classes", SearchIndex(embedder, ["a"]), {"labels": ["x"]}),
        ("preprocessor=", SearchIndex(embedder, ["a"]), {"preprocessor": embedder.preprocessor}),
        ("tokens_only", SearchIndex(embedder, ["a"]), {"tokens_only": True}),
        ("top_k=0", SearchIndex(embedder, ["a"]), {"top_k": 0}),
        ("n_best=3 is not a setting", SearchIndex(embedder, ["a"]), {"n_best": 3}),
        ("item at position 0 of warmup", SearchIndex(embedder, ["a"]), {"warmup": [("a", "b")]}),
    ):
        with pytest.raises(ValueError, match=message):
            export_serving(index, tmp_path / "served", **settings)
    with pytest.raises(TypeError, match="SearchIndex, got the class SearchIndex"):
        export_serving(SearchIndex, tmp_path / "served")
    assert os.listdir(tmp_path) == []


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    index = SearchIndex(model("embedder"), ["a"])
    monkeypatch.setattr(index, "write_rows", full)
    with pytest.raises(OSError, match="No space left"):
        export_serving(index, tmp_path / "served")
    assert not any(files for _, _, files in os.walk(tmp_path / "served"))
