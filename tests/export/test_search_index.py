"""An index as a SavedModel: it returns the index's hits, with the same scores."""

import errno
import functools
import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from kerasbert import SearchIndex
from kerasbert.export import export_serving
from kerasbert.search.filters import ORDERS, where_inputs, wheres_of
from kerasbert.search.keywords import keywords_of
from kerasbert.search.served import ServedIndex
from kerasbert.search.served_filters import ServedFilters, value_arrays
from kerasbert.search.served_keywords import keywords_in_graph
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

# The only modules that a client's process may import.
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
    found.run_eagerly = True  # Compilation takes longer.
    return found


def make(*parts, texts=TEXTS, **settings):
    chosen = {name: model(name) for name in parts}
    index = SearchIndex(model("embedder"), texts, **chosen, **settings)
    if "gone" in texts:
        index.remove(index.ids[texts.index("gone")])
    return index


def same_hits(found, index, queries, top_k, wheres=None, **settings):
    """Compare columns with the hits of the index itself."""
    for row, (query, count) in enumerate(zip(queries, top_k)):
        where = wheres and wheres[row]
        hits = index.search(query, count, where=where, **settings)
        assert found["count"][row] == len(hits)
        for place, hit in enumerate(hits):
            one = {name: x[row][place] for name, x in found.items() if name != "count"}
            one = {name: x.decode() if isinstance(x, bytes) else x for name, x in one.items()}
            if "metadata" in one:
                one["metadata"] = json.loads(one["metadata"])
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
    # Columns behind the last hit are empty.
    assert found["text"].shape == (len(QUERIES), index.findable())
    assert found["count"][1] == found["count"][4] == 0  # Texts without content.
    assert (found["text"][0, 3:] == b"").all() and (found["score"][0, 3:] == 0).all()
    # A client may ask for any number.
    found = search(query=tf.constant(["a", "b"]), top_k=tf.constant([-3, 0]))
    assert found["count"].numpy().tolist() == [0, 0] and found["text"].shape == (2, 0)
    assert search(query=tf.zeros([0], tf.string), top_k=tf.zeros([0], tf.int32))["id"].shape == (
        0,
        0,
    )


VALUES = ["", "ko", "ko ", "한국", "a\0", "a", "b" * 300, 0, 1, -2.5, 2020, 1e300, True, False]
VALUES += [["ko", 1], [True, "a\0"], []]
# Whole numbers that float64 rounds to the same number, and the ends of int64.
LARGE = [2**53, 2**53 + 1, float(2**53), -(2**53) - 1, 2**63 - 1, 2**63 - 2, -(2**63), 2.0**63]
VALUES += [*LARGE, "2024-05-01", "2024-05-01T09:30:00+09:00"]


def random_where(rng, depth=0):
    if depth < 2 and rng.random() < 0.4:
        parts = [random_where(rng, depth + 1) for _ in range(rng.randint(1, 3))]
        return {rng.choice(["$and", "$or"]): parts}
    operator = rng.choice(["$eq", "$ne", *ORDERS, "$in", "$nin", "$contains"])
    values = [one for one in VALUES if not isinstance(one, list)] + [
        "kp",
        3,
        "zz",
        2**53 - 1,
        "2024-06",
    ]
    value = rng.choice(values)
    if operator in ("$in", "$nin"):
        value = rng.sample(values, rng.randint(0, 3))
    elif operator in ORDERS and isinstance(value, bool):
        value = 2020
    return {rng.choice(["year", "lang", "other", "ключ"]): {operator: value}}


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_filters_match_the_library():
    rng = random.Random(0)
    keys = ["year", "lang", "ключ"]
    rows = [{key: rng.choice(VALUES) for key in keys if rng.random() < 0.7} for _ in range(60)]
    index = SearchIndex(None)
    index.add([""] * 60, vectors=np.ones((60, 2)), metadata=rows)
    arrays = value_arrays([json.dumps(row) for row in rows])
    arrays = {name: tf.constant(x) for name, x in arrays.items()}
    filters = ServedFilters(arrays.get, {name: len(x) for name, x in arrays.items()}, 60)
    allowed = tf.function(filters.allowed, autograph=False)
    wheres = [None, *(random_where(rng) for _ in range(200))]
    inputs = where_inputs(wheres)
    found = allowed(**{name: tf.constant(x) for name, x in inputs.items()}).numpy()
    for where, own, row in zip(wheres, wheres_of(inputs), found):
        expected = [one["id"] for one in index.get(where=where)]
        assert np.flatnonzero(row).tolist() == expected, where
        assert [one["id"] for one in index.get(where=own)] == expected
    assert 50 < sum(0 < row.sum() < 60 for row in found)
    edges = [{"year": {name: one}} for name in ("$eq", *ORDERS) for one in LARGE]
    found = allowed(**{name: tf.constant(x) for name, x in where_inputs(edges).items()}).numpy()
    for where, row in zip(edges, found):
        assert np.flatnonzero(row).tolist() == [one["id"] for one in index.get(where=where)], where
    for change, message in (
        ({"where_operator": [["$like"]]}, "where_operator must be one of"),
        ({"where_type": [["date"]]}, "where_type must be one of"),
        ({"where_value": [["two"]]}, "must be a number for the type number"),
        ({"where_value": [["9223372036854775808"]]}, "must fit into 64 bits"),
        ({"where_type": [["bool"]], "where_value": [["true"]]}, "do not compare bools"),
        ({"where_clause": [[1]]}, "where_clause must be from 0"),
    ):
        one = where_inputs([{"year": {"$gt": 1}}]) | change
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            allowed(**{name: tf.constant(x) for name, x in one.items()})
    with pytest.raises(ValueError, match="needs more than 256 clauses"):
        where_inputs([{"$or": [{"a": {"$gt": i, "$lt": i + 1}} for i in range(9)]}])


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_keywords_match_the_library():
    rng, characters = random.Random(0), "aBß ǅİ\u0301가각ｶﾞー々東京へ行_٣.²ﬁ\u00ad\u200b\u200dé①𝔸ς'"
    texts = ["".join(rng.choices(characters, k=rng.randint(0, 20))) for _ in range(200)]
    texts += QUERIES
    names, numbers = tf.function(keywords_in_graph)(tf.constant(texts))
    found = [[] for _ in texts]
    for name, number in zip(names.numpy(), numbers.numpy()):
        found[number].append(name.decode())
    assert found == [keywords_of(text) for text in texts]


METADATA = [{"year": 2015 + i, "lang": "ko" if i % 2 else "ja"} for i in range(len(TEXTS))]
WHERES = [
    {"year": {"$gte": 2019}},
    {},
    {"lang": "ko"},
    {"lang": "de"},
    {"$or": [{"year": 2016}]},
    {},
]


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    "parts, settings, more",
    [
        ((), {"keywords": True}, {}),
        ((), {"keywords": True, "dtype": "binary"}, {"alpha": 0.4, "candidates": 6}),
        (("reranker",), {"keywords": True, "dtype": "int8"}, {"candidates": 3}),
        (("reader",), {"ids": list("abcdefghijkl"), "dtype": "binary", "rescore": 0}, {}),
    ],
)
def test_filtered_and_hybrid_searches(tmp_path, parts, settings, more):
    index = make(*parts, metadata=METADATA, **settings)
    ServedIndex(index).save(tmp_path)
    task = ServedIndex(ServedIndex.read(tmp_path), settings=more)
    signatures = task.signatures()
    inputs = {"query": tf.constant(QUERIES), "top_k": tf.constant(TOP_K)}
    found = signatures["search"].checked(**inputs)
    same_hits({name: x.numpy() for name, x in found.items()}, index, QUERIES, TOP_K, **more)
    conditions = {name: tf.constant(x) for name, x in where_inputs(WHERES).items()}
    found = signatures["search_where"].checked(**inputs, **conditions)
    found = {name: x.numpy() for name, x in found.items()}
    same_hits(found, index, QUERIES, TOP_K, wheres=WHERES, **more)
    assert found["count"][3] == 0 < found["count"][0]
    # The checks of the export compare the same answers.
    own = ServedIndex(index, settings=more)
    own.margin = 1e-4
    for signature, one in own.probes()[:4]:
        expected = own.expected(signature, one)
        answer = signatures[signature].function(**{x: tf.constant(y) for x, y in one.items()})
        assert set(expected) - {"clear"} <= set(answer)
        assert answer["count"].numpy().tolist() == expected["count"]
        clear = expected["clear"]
        same = np.array(expected["id"]) == answer["id"].numpy().astype(
            np.array(expected["id"]).dtype
        )
        assert same[clear].all()


@pytest.mark.backends("tensorflow")
def test_no_variable_is_copied(tmp_path):
    """`tf.gather` copies a variable whenever something else reads it."""
    ServedIndex(make(dtype="int8")).save(tmp_path)
    task = ServedIndex(ServedIndex.read(tmp_path))
    graph = task._graph.get_concrete_function().graph
    handles = {id(variable.handle) for variable in task.rows.variables.values()}
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
    monkeypatch.setattr("kerasbert.search.served_rows._BYTES", 1)  # Blocks of 256.
    ServedIndex(index).save(tmp_path)
    task = ServedIndex(ServedIndex.read(tmp_path))
    queries = vectors[90:110] + 0.01
    expected = index.search_vectors(queries, 50)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    found = task.rows.nearest(tf.constant(queries), tf.fill([20], 50))
    for row, hits in enumerate(expected):
        scores = found["score"][row].numpy()
        np.testing.assert_allclose(scores, [hit["score"] for hit in hits], atol=1e-5)
        assert found["row"][row].numpy().tolist()[:4] == [hit["id"] for hit in hits[:4]]
    # Servers that answer in JSON reject lone surrogates.
    assert task.rows.variables["texts"][699].numpy() == b"half a pair ? 699"


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
    assert card["settings"] == {"top_k": 2, "candidates": None, "alpha": None}
    assert card["signatures"]["search"]["inputs"]["top_k"] == {"dtype": "int32", "shape": [None]}


@pytest.mark.slow
def test_a_client_without_kerasbert(tmp_path):
    settings = {"dtype": "binary", "ids": list(map(str, range(12))), "keywords": True}
    index = make("reranker", "reader", metadata=METADATA, **settings)
    path = export_serving(index, tmp_path / "search", null_threshold=1.5, top_k=4, alpha=0.5)
    names = {"serving_default", "search", "search_where", "embedder_pair"}
    for part in ("embedder", "reranker", "reader"):
        names |= {part, f"{part}_tokens", f"{part}_preprocess"}
    assert set(tf.saved_model.load(path).signatures) == names
    script, target = tmp_path / "client.py", tmp_path / "found.json"
    script.write_text(CLIENT)
    command = [sys.executable, "-I", script, path, target, *QUERIES]
    subprocess.run(command, cwd=tmp_path, check=True)
    found = json.loads(target.read_text())
    same_hits(found, index, QUERIES, [4] * len(QUERIES), null_threshold=1.5, alpha=0.5)


@pytest.mark.backends("tensorflow")
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
        ("alpha needs an index with keywords", SearchIndex(embedder, ["a"]), {"alpha": 0.5}),
        ("alpha=0 searches by keywords", SearchIndex(embedder, ["a"], keywords=True), {"alpha": 0}),
        ("alpha='x' must be a number", SearchIndex(embedder, ["a"]), {"alpha": "x"}),
        ("n_best=3 is not a setting", SearchIndex(embedder, ["a"]), {"n_best": 3}),
        ("item at position 0 of warmup", SearchIndex(embedder, ["a"]), {"warmup": [("a", "b")]}),
    ):
        with pytest.raises(ValueError, match=message):
            export_serving(index, tmp_path / "served", **settings)
    with pytest.raises(TypeError, match="SearchIndex, got the class SearchIndex"):
        export_serving(SearchIndex, tmp_path / "served")
    assert os.listdir(tmp_path) == []


@pytest.mark.backends("tensorflow")
def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    index = SearchIndex(model("embedder"), ["a"])
    monkeypatch.setattr(index, "write_rows", full)
    with pytest.raises(OSError, match="No space left"):
        export_serving(index, tmp_path / "served")
    assert not any(files for _, _, files in os.walk(tmp_path / "served"))
