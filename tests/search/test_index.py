"""The index: search, adding and removing, files, and errors."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import kerasbert
from kerasbert import SearchIndex
from kerasbert.base import files
from kerasbert.models import (
    BertQuestionAnswering,
    BertTextEmbedder,
    BertTextEmbedderPreprocessor,
)
from tests.contracts import bert_tokenizer, perturb, tiny_backbone

LETTERS = [chr(i) for i in range(97, 123)]
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{x}" for x in LETTERS)]
TEXTS = ["good film", "the weather", "", "good film", "rome is old", "a boat at sea"]


class Letters:
    """Vectors of letter counts; records the texts that were embedded."""

    def __init__(self):
        self.seen = []

    def embed(self, texts, batch_size=32):
        self.seen += texts
        return np.array([[text.count(x) for x in LETTERS] for text in texts], "float32")


class Shortest:
    """A reranker that prefers short texts."""

    def rank(self, query, texts):
        return [{"corpus_id": i, "score": -len(text)} for i, text in enumerate(texts)]


def make_embedder(seed=0):
    backbone = perturb(tiny_backbone(vocabulary_size=len(TOKENS), dropout=0.0))
    if seed:
        for weight in backbone.weights:
            weight.assign(np.random.default_rng(seed).normal(size=weight.shape, scale=0.5))
    preprocessor = BertTextEmbedderPreprocessor(bert_tokenizer(TOKENS), sequence_length=16)
    return eager(BertTextEmbedder(backbone, preprocessor, normalize=True))


def eager(model):
    """Models run eagerly, because compilation takes longer."""
    model.run_eagerly = True
    return model


@pytest.fixture(scope="module")
def embedder():
    return make_embedder()


def ids(hits):
    return [hit["id"] for hit in hits]


def test_search_is_the_product_of_the_vectors(embedder):
    index = kerasbert.SearchIndex(embedder, TEXTS)
    vectors, query = embedder.embed(TEXTS), embedder.embed("old rome")
    scores = vectors @ query
    hits = index.search("old rome", top_k=4)
    expected = np.argsort(-scores, kind="stable")[:4]
    np.testing.assert_allclose([hit["score"] for hit in hits], scores[expected], atol=1e-5)
    assert [hit["text"] for hit in hits] == [TEXTS[i] for i in expected]
    assert ids(index.search("good film"))[:2] == [0, 3]  # Ties keep their order.
    both = index.search(["old rome", "good film"], top_k=4)
    assert [ids(one) for one in both] == [ids(hits), ids(index.search("good film", top_k=4))]
    assert index.search([]) == [] and len(index.search("a", top_k=100)) == len(TEXTS) - 1


@pytest.mark.parametrize("dtype", ["float16", "int8", "binary"])
def test_precisions_find_the_same(dtype):
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(500, 64))
    full, small = SearchIndex(None), SearchIndex(None, dtype=dtype, rescore=30)
    for index in (full, small):
        index.add([f"text {i}" for i in range(500)], vectors=vectors)
    queries = vectors[:20] + generator.normal(size=(20, 64)) / 2
    pairs = zip(full.search_vectors(queries, 5), small.search_vectors(queries, 5))
    shared = [len({*ids(a)} & {*ids(b)}) / 5 for a, b in pairs]
    assert np.mean(shared) > 0.9
    assert ids(small.search_vectors(vectors[7], 1)) == [7]


def test_settings_of_vectors():
    texts = ["aab", "abb", "ccc"]
    index = SearchIndex(Letters(), texts, dims=2)
    assert [hit["score"] for hit in index.search("ac", 3)] == pytest.approx(
        [2 / 5**0.5, 5**-0.5, 0]
    )
    index = SearchIndex(Letters(), texts, similarity="dot")
    assert [hit["score"] for hit in index.search("aac", 3)] == [4, 3, 2]
    model = Letters()
    index = SearchIndex(model, ["x", "y", "x"], query_prompt="query: ", text_prompt="passage: ")
    index.search("z")
    assert model.seen == ["passage: x", "passage: y", "query: z"]


def test_prompts_of_the_embedder(embedder):
    texts = ["good film", "bad film", "very dull"]
    prompts = {"query": "it was ", "text": "a "}
    asking = BertTextEmbedderPreprocessor(
        bert_tokenizer(TOKENS), sequence_length=16, prompts=prompts
    )
    model = eager(BertTextEmbedder(embedder.backbone, asking, normalize=True))
    hits = SearchIndex(model, texts).search("fun", 3)
    settings = {"query_prompt": "it was ", "text_prompt": "a "}
    expected = SearchIndex(embedder, texts, **settings).search("fun", 3)
    assert [hit["id"] for hit in hits] == [hit["id"] for hit in expected]
    assert [hit["score"] for hit in hits] == pytest.approx([h["score"] for h in expected], abs=1e-6)


def test_add_and_remove():
    index = SearchIndex(Letters())
    assert len(index) == 0 and index.search("a") == [] and index.search(["a", "b"]) == [[], []]
    assert index.ids == index.texts == []
    index.add([])
    index.add(["a", "b", "c"])
    index.remove([1])
    index.add(["bb"])
    index.add(["d"], ids=[np.int64(9)])
    index.add(["e"])
    assert index.ids == [0, 2, 3, 9, 10] and index.texts == ["a", "c", "bb", "d", "e"]
    assert ids(index.search("b", 1)) == [3] and len(index) == 5
    index.remove(index.ids)
    assert len(index) == 0 and index.search("b") == []
    named = SearchIndex(Letters(), ["a", "b"], ids=["x", "y"])
    named.remove("x")
    named.add(["a"], ids=["x"])
    assert named.ids == ["y", "x"]


def test_reranker_and_reader(embedder):
    preprocessor = kerasbert.models.BertQuestionAnsweringPreprocessor(
        bert_tokenizer(TOKENS), sequence_length=24, max_query_length=8
    )
    sizes = {"vocabulary_size": len(TOKENS), "max_sequence_length": 24}
    backbone = tiny_backbone(dropout=0.0, **sizes)
    reader = eager(perturb(BertQuestionAnswering(backbone, preprocessor)))
    index = SearchIndex(embedder, TEXTS, reranker=Shortest(), reader=reader)
    hits = index.search("what is old", top_k=4)
    assert [hit["text"] for hit in hits[:3]] == ["good film", "good film", "the weather"]
    assert hits[1]["score"] == -9 and -1 <= hits[1]["vector_score"] <= 1.001
    expected = reader.answer("what is old", "good film")[0]
    assert hits[1]["answer"]["answer"] == expected["answer"]
    start, end = hits[1]["answer"]["start"], hits[1]["answer"]["end"]
    assert "good film"[start:end] == expected["answer"]
    none = index.search(["what is old"], 2, null_threshold=-1e6)[0][1]["answer"]
    assert none["answer"] == "" and set(none) == set(expected)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "binary"])
@pytest.mark.parametrize("names", [None, list("uvwxyz")])
def test_save_and_load(embedder, tmp_path, dtype, names):
    index = SearchIndex(embedder, TEXTS, names, dtype=dtype, dims=8, text_prompt="a ")
    index.remove(index.ids[1])
    path = str(tmp_path / "index")
    index.save(path, models=False)
    for mmap in (True, False):
        again = SearchIndex.load(path, embedder, mmap=mmap)
        assert again.ids == index.ids and again.texts == index.texts
        assert again.search(["old", "film"]) == index.search(["old", "film"])
    more = ["later"] if names else None
    again.add(["later"], ids=more)
    again.remove(again.ids[0])
    with pytest.raises(ValueError, match="already has a search index; pass overwrite=True"):
        again.save(path, models=False)
    again.save(path, overwrite=True, models=False)
    last = SearchIndex.load(path, embedder)
    assert last.texts == again.texts and last.search("later") == again.search("later")
    assert len(last) == 5


def test_the_embedder_goes_along(embedder, tmp_path):
    index = SearchIndex(embedder, TEXTS)
    index.save(tmp_path / "index")
    again = SearchIndex.load(tmp_path / "index")
    for hit, expected in zip(again.search("old rome"), index.search("old rome")):
        assert hit["text"] == expected["text"]
        assert hit["score"] == pytest.approx(expected["score"], abs=1e-5)
    with pytest.raises(ValueError, match="is not the model that the index was made with"):
        SearchIndex.load(tmp_path / "index", make_embedder(seed=1))
    with pytest.raises(ValueError, match="have 26 dimensions, but the index"):
        SearchIndex.load(tmp_path / "index", Letters())
    SearchIndex(Letters()).save(tmp_path / "empty")
    assert SearchIndex.load(tmp_path / "empty", Letters()).search("a") == []


@pytest.mark.slow
def test_an_embedder_that_was_trained_since(tmp_path):
    embedder = make_embedder()
    index = SearchIndex(embedder, TEXTS)
    index.save(tmp_path / "index")
    again = SearchIndex.load(tmp_path / "index", embedder)
    again.save(tmp_path / "again")
    for weight in embedder.weights:
        weight.assign(np.random.default_rng(1).normal(size=weight.shape, scale=0.5))
    for stale in (index, again):
        with pytest.raises(ValueError, match="The embedder has changed since"):
            stale.save(tmp_path / "stale")
    (tmp_path / "rows").mkdir()
    with pytest.raises(ValueError, match="Make a new index after training"):
        index.write_rows(tmp_path / "rows")  # As in `export_serving`.
    assert not (tmp_path / "stale").exists() and not list((tmp_path / "rows").iterdir())
    SearchIndex(embedder, TEXTS).save(tmp_path / "stale")


def test_broken_folders(tmp_path):
    with pytest.raises(ValueError, match="There is no folder"):
        SearchIndex.load(tmp_path / "none")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="is not a search index: it has no index.json"):
        SearchIndex.load(tmp_path / "other")
    index = SearchIndex(Letters(), TEXTS)
    with pytest.raises(ValueError, match="is not empty and has no search index"):
        index.save(tmp_path / "other", overwrite=True)
    folder = tmp_path / "index"

    def broken(message, change):
        index.save(folder, overwrite=True)
        change()
        with pytest.raises(ValueError, match=message):
            SearchIndex.load(folder, Letters())

    def edit(**changes):
        path = folder / "index.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    for name in ("vectors.npy", "texts.bin", "texts.bin.ends.npy", "ids.npy", "removed.npy"):
        broken(f"{name}' is missing", (folder / name).unlink)
        size = (folder / name).stat().st_size if (folder / name).exists() else 100
        broken(name, lambda name=name, size=size: os.truncate(folder / name, size // 2))
    broken("has format 7, but this version reads 1 and 2; update", lambda: edit(format=7))
    broken("width=5 in .* contradicts dims=None and embedder_width=26", lambda: edit(width=5))
    broken("width=26 in .* contradicts dims=5 and embedder_width=26", lambda: edit(dims=5))
    broken(r"engine_options=\[1\] in .* must be an object", lambda: edit(engine_options=[1]))
    nothing = np.full((4, 26), np.nan, "float32")
    broken("is not the model that the index", lambda: np.save(folder / "probe.npy", nothing))
    broken("but the index expects", lambda: edit(rows=9, count=9))
    broken("counts more texts than rows", lambda: edit(count=9))
    broken("dtype='int3' is unknown", lambda: edit(dtype="int3"))
    broken("not valid JSON", lambda: (folder / "index.json").write_text("{"))


def test_refusals(embedder):
    index = SearchIndex(Letters(), ["a", "b"])
    for call, message in (
        (lambda: index.add("a text"), "texts must be a list of strings, got 'a text'"),
        (lambda: index.add(["a", None]), r"texts\[1\] must be a string, got None"),
        (lambda: index.add(["c"], ids=[1]), "id 1 is already in the index; remove it first"),
        (lambda: index.add(["c", "d"], ids=[7, 7]), "id 7 is given twice"),
        (lambda: index.add(["c"], ids=["x"]), "are whole numbers, but 'x' is not"),
        (lambda: index.add(["c"], ids=[1.5]), "all strings, or all whole numbers"),
        (lambda: index.add(["c"], ids=[8, 9]), "2 ids for 1 texts"),
        (
            lambda: index.add(["c"], vectors=np.ones((1, 3))),
            "3 dimensions, but the index has 26",
        ),
        (lambda: index.add(["c"], vectors=np.full((1, 26), np.nan)), "Vector 0 has NaN"),
        (lambda: index.add(["c"], vectors=["c"]), "must be numbers"),
        (lambda: index.add(["c"], vectors=[[1, 2], [3]]), "all of the same width"),
        (lambda: index.add(["c", "d"], ids="xy"), "ids must be a list, got 'xy'"),
        (lambda: index.add(["c"], ids=7), "ids must be a list, got 7"),
        (lambda: index.remove([0, 5]), "no text with the id 5"),
        (lambda: index.remove([[0]]), r"no text with the id \[0\]"),
        (lambda: index.remove(None), "ids must be a list, got None"),
        (lambda: index.search_vectors("abc"), "must be numbers"),
        (lambda: index.search_vectors(np.full(26, 1e300)), "Vector 0 has NaN or infinite"),
        (lambda: index.search("a", top_k=0), "top_k=0 must be a whole number of at least 1"),
        (lambda: index.search(5), "queries must be a list of strings, got 5"),
        (
            lambda: index.search("a", null_threshold=1),
            "'null_threshold'; use top_k, candidates, .*, and with a",
        ),
        (lambda: index.search("a", topk=1), "no argument 'topk'; did you mean top_k"),
        (lambda: SearchIndex(None, ["a"]), "has no embedder"),
        (lambda: SearchIndex(max), "has no method `embed`"),
        (lambda: SearchIndex(Letters(), ["a"], dims=27), "dims=27 is more than the 26"),
        (lambda: SearchIndex(Letters(), dtype="int4"), "dtype='int4' is unknown"),
        (lambda: SearchIndex(Letters(), text_prompt=5), "text_prompt must be a string .*got 5"),
        (
            lambda: SearchIndex(BertTextEmbedder(embedder.backbone, pooling="tokens")),
            "pooling='tokens', .* one vector per token",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert index.ids == [0, 1] and len(index.search("a")) == 2


def test_what_was_refused_leaves_nothing():
    index = SearchIndex(None)
    with pytest.raises(ValueError, match="1 vectors for 2 texts"):
        index.add(["a", "b"], ids=["x", "y"], vectors=np.ones((1, 3)))
    index.add(["a"], vectors=np.ones((1, 3)))
    assert index.ids == [0]


def test_numbers_beyond_float16():
    index = SearchIndex(None, dtype="float16", similarity="dot")
    with pytest.raises(ValueError, match="hold 1e[+]06, but float16 ends at 65504"):
        index.add(["a"], vectors=np.full((1, 3), 1e6))
    SearchIndex(None, dtype="float16").add(["a"], vectors=np.full((1, 3), 1e6))


def search_while_others_change(index):
    """Search in three threads while a fourth adds and removes texts; return the hits and errors."""
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(2000, 32))
    index.add([f"text {i}" for i in range(500)], vectors=vectors[:500])
    index.remove([3, 5])
    found, errors, is_done = [], [], threading.Event()

    def search():
        try:
            while not is_done.is_set():
                found.extend(index.search_vectors(vectors[:4], 10))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=search) for _ in range(3)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for first in range(500, 2000, 10):
            texts = [f"text {i}" for i in range(first, first + 10)]
            index.add(texts, vectors=vectors[first : first + 10])
            index.remove([first])
    finally:
        is_done.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
    assert len(index) == 2000 - 2 - 150
    return found, errors


@pytest.mark.parametrize("dtype", ["float32", "int8", "binary"])
def test_threads_search_while_one_adds(dtype):
    found, errors = search_while_others_change(SearchIndex(None, dtype=dtype))
    assert not errors and found
    for hits in found:
        assert all(hit["text"] == f"text {hit['id']}" for hit in hits)
        assert len({hit["id"] for hit in hits}) == 10


def test_threads_that_add():
    index = SearchIndex(None)

    def add(number):
        for i in range(200):
            index.add([f"text {number} {i}"], vectors=np.full((1, 8), number + 1.0))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
    finally:
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
    assert index.ids == list(range(800)) and len(set(index.texts)) == 800


def test_a_full_disk_leaves_the_old_one(tmp_path, monkeypatch):
    index = SearchIndex(Letters(), TEXTS)
    index.save(tmp_path / "index")
    before = sorted(os.listdir(tmp_path))

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    index.add(["new"])
    monkeypatch.setattr(files.os, "posix_fallocate", full)
    with pytest.raises(OSError, match="has no room for .* bytes of vectors and texts"):
        index.save(tmp_path / "index", overwrite=True)
    assert sorted(os.listdir(tmp_path)) == before
    assert len(SearchIndex.load(tmp_path / "index", Letters())) == len(TEXTS)


KILLED = """
import sys, numpy as np
from kerasbert.search.index import SearchIndex
index = SearchIndex(None)
index.add(["new"] * 30000, vectors=np.random.default_rng(0).normal(size=(30000, 64)))
print("ready", flush=True)
while True:
    index.save(sys.argv[1], overwrite=True)
    print("saved", flush=True)
"""


@pytest.mark.slow
def test_kills_while_saving(tmp_path):
    old = SearchIndex(None)
    old.add(["old"], vectors=np.ones((1, 8)))
    path = str(tmp_path / "index")
    for seed in range(4):
        old.save(path, overwrite=True)
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.02 + 0.07 * seed)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert len(SearchIndex.load(path)) in (1, 30_000)
        old.save(path, overwrite=True)
        assert os.listdir(tmp_path) == ["index"]


# Texts without visible characters, with only an accent, and with letters outside the vocabulary.
SILENT = ["", " ", "\n\t", "\u200b\ufeff", "\x00\x07", "\u3164", "\u0301", "한국", "ж ж"]


@pytest.mark.parametrize("engine", ["exact", pytest.param("faiss", marks=pytest.mark.peers)])
def test_texts_that_say_nothing_are_no_hits(embedder, engine, tmp_path):
    texts = ["good film", *SILENT, "the weather"]
    with pytest.warns(UserWarning, match="9 of 11 texts are empty .* with the id 1, ''. No"):
        index = SearchIndex(embedder, texts, engine=engine)
    index.save(tmp_path)
    assert len(index) == 11 and index.texts == texts
    for one in (index, SearchIndex.load(tmp_path)):
        assert sorted(ids(one.search("film", top_k=20))) == [0, 10]
        for text in SILENT:
            assert one.search(text) == []
        assert [len(hits) for hits in one.search(["", "film", " "], top_k=9)] == [0, 2, 0]
        assert sorted(ids(one.search_vectors(embedder.embed(" "), 20))) == [0, 10]
    index.remove([1, 10])
    assert ids(index.search("film", top_k=20)) == [0]
    with pytest.warns(UserWarning, match="1 of 1 texts are empty"):
        index.add([" "])
    assert ids(index.search("film", top_k=20)) == [0]
    with pytest.raises(ValueError, match="has no argument 'filter'; use top_k"):
        index.search("film", filter=len)


def test_only_an_index_without_an_embedder_has_empty_texts_as_hits():
    vectors = np.eye(3)
    given = SearchIndex(None)
    given.add(["", "", "a"], vectors=vectors)
    assert ids(given.search_vectors(vectors[1], 3)) == [1, 0, 2]
    with pytest.warns(UserWarning, match="2 of 3 texts are empty"):
        index = SearchIndex(Letters(), [" ", "a", "\u200b"])  # This embedder has no tokenizer.
    assert ids(index.search("ж")) == [1] and index.search("\u200b") == []
    assert index.search([]) == []


@pytest.mark.parametrize("queries", [None, [None], float("nan")])
def test_queries_that_are_no_text(queries):
    with pytest.raises(ValueError, match="queries"):
        SearchIndex(Letters(), ["a"]).search(queries)
