"""BM25 beside the vectors: keywords, scores, fusion, and hybrid searches."""

import threading

import numpy as np
import pytest

from kerasbert import SearchIndex
from kerasbert.search.columns import TextColumn
from kerasbert.search.evaluation import evaluate_retrieval
from kerasbert.search.keywords import Keywords, best, fused, keywords_of
from tests.search.test_collection import ENGINES
from tests.search.test_index import Letters, Shortest, ids

TEXTS = [
    "the cat sat on the mat",
    "a dog and a cat, a cat!",
    "서울의 날씨는 맑습니다",
    "東京の天気は晴れ",
    "dogs",
    "the mat",
    "...",
]


class Blind:
    """An embedder for which all texts are equal."""

    def embed(self, texts, batch_size=32):
        return np.ones((len(texts), 4), "float32")


def column(texts):
    found = TextColumn()
    found.append(texts)
    return found


def bm25_of(texts, query, alive=None):
    keywords = Keywords()
    keywords.read(column(texts), len(texts))
    return keywords.scores(query, np.ones(len(texts), bool) if alive is None else alive)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", []),
        (" .,!\n", []),
        ("Don't STOP_it 3.5", ["don", "t", "stop_it", "3", "5"]),
        ("Straße CAFÉ café", ["strasse", "café", "café"]),
        ("BERT를 씀", ["bert", "를", "씀"]),
        ("한국어 모델", ["한국", "국어", "모델"]),
        ("コーヒーを飲む", ["コー", "ーヒ", "ヒー", "ーを", "を飲", "飲む"]),
        ("ﾃｽﾄABC", ["テス", "スト", "abc"]),
        ("中文e中", ["中文", "e", "中"]),
        ("\ud800 x", ["x"]),
    ],
)
def test_keywords(text, expected):
    assert keywords_of(text) == expected


@pytest.mark.peers
def test_scores_are_those_of_bm25s():
    import bm25s

    generator = np.random.default_rng(0)
    texts = [
        " ".join(generator.choice(list("abcdefghij"), generator.integers(1, 9))) for _ in range(80)
    ]
    peer = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    peer.index([keywords_of(text) for text in texts], show_progress=False)
    for query in ("a", "a b c", "j j a", *texts[:20]):
        expected = peer.get_scores(keywords_of(query))
        np.testing.assert_allclose(bm25_of(texts, query), expected, rtol=1e-5, atol=1e-6)


def test_rows_that_are_added_and_removed():
    """The scores are those of an index that is made of the remaining texts at once."""
    texts, keywords = column(TEXTS[:2]), Keywords()
    keywords.read(texts, 2)
    texts.append(TEXTS[2:])
    keywords.read(texts, len(TEXTS))
    keywords.read(texts, 3)
    alive = np.array([True, False, True, True, True, True, False])
    for query in ("the cat", "날씨", "天気は", "none of it", "", "mat mat"):
        expected = bm25_of([text for text, kept in zip(TEXTS, alive) if kept], query)
        scores = keywords.scores(query, alive)
        np.testing.assert_allclose(scores[alive], expected, rtol=1e-6)
        assert not scores[~alive].any()
    assert not keywords.scores("cat", np.zeros(7, bool)).any()
    assert keywords.scores("cat", alive[:1]).shape == (1,)
    assert bm25_of([], "a").shape == (0,)


def test_fusion():
    lists = np.array([2, 0, 1]), np.array([1, 5])
    rows = np.union1d(*lists)
    cosines, words = np.array([0.8, 0.5, 0.9, 0.4]), np.array([0.0, 3.0, 0.0, 1.5])
    order, scores = fused(rows, (cosines, words), lists, None)
    assert rows[order].tolist() == [1, 2, 0, 5]
    assert scores == pytest.approx([1 / 63 + 1 / 61, 1 / 61, 1 / 62, 1 / 62])
    order, scores = fused(rows, (cosines, words), lists, 0.5)
    assert rows[order].tolist() == [1, 2, 0, 5]
    assert scores == pytest.approx([0.6, 0.5, 0.4, 0.25])
    rows, values = np.empty(0, "int64"), np.empty(0)
    for alpha in (None, 0.5):
        assert fused(rows, (values, values), (rows, rows), alpha)[0].tolist() == []
    assert best(np.array([1.0, 0, 3, 3]), 2, np.ones(4, bool)).tolist() == [2, 3]
    assert best(np.array([1.0, 0, 3, 3]), 9, np.array([1, 1, 0, 1], bool)).tolist() == [3, 0]


@pytest.mark.parametrize("engine", ENGINES)
def test_hybrid_searches(engine):
    index = SearchIndex(Blind(), TEXTS[:6], keywords=True, engine=engine)
    # Texts 0 and 1 are first and second in one ranking each; of equal scores, the first row wins.
    assert ids(index.search("cat", 2)) == [0, 1] and ids(index.search("날씨 서울", 1)) == [2]
    hits = index.search("東京", 6)
    assert hits[0]["id"] == 3 and len(hits) == 6
    assert list(hits[0]) == ["id", "score", "text", "vector_score", "keyword_score"]
    assert hits[0]["vector_score"] == pytest.approx(1) and hits[1]["keyword_score"] == 0
    words = index.search("cat", 6, alpha=0)  # Only texts with a keyword.
    assert ids(words) == [1, 0] and words[0]["score"] == words[0]["keyword_score"] > 0
    assert "vector_score" not in words[0]
    plain = SearchIndex(Blind(), TEXTS[:6])
    assert index.search("cat", 3, alpha=1) == plain.search("cat", 3)
    assert index.search_vectors(np.ones(4), 3) == plain.search_vectors(np.ones(4), 3)
    assert ids(index.search("cat", 2, alpha=0.5)) == [1, 0]
    assert [ids(hits) for hits in index.search(["mat", "", "dogs"], 1)] == [[0], [], [4]]
    assert index.search([]) == [] and SearchIndex(Blind(), keywords=True).search("cat") == []


def test_filters_pages_and_changes():
    rows = [{"n": i} for i in range(6)]
    index = SearchIndex(Blind(), TEXTS[:6], keywords=True, metadata=rows)
    whole = index.search("the cat", 6, candidates=6)
    assert index.search("the cat", 2, offset=1, candidates=6) == whole[1:3]
    assert ids(index.search("the cat", 1, exclude=[0, 1])) == [5]
    for alpha in (None, 0, 0.3, 1):
        found = index.search("the cat", 6, where={"n": {"$lt": 2}}, alpha=alpha)
        assert sorted(ids(found)) == [0, 1]
    assert index.search("cat", 6, alpha=0, where={"n": 5}) == []
    index.remove(1)
    index.upsert(["a bird"], [0])
    index.add(["cat"])
    assert ids(index.search("cat", 6, alpha=0)) == [6] and ids(index.search("bird", 1)) == [0]
    fresh = SearchIndex(Blind(), index.texts, index.ids, keywords=True)
    assert ids(fresh.search("the dogs", 6)) == ids(index.search("the dogs", 6))


def test_files_rerankers_and_evaluation(tmp_path):
    index = SearchIndex(Letters(), TEXTS[:6], list("uvwxyz"), keywords=True)
    index.remove("v")
    index.save(tmp_path / "index", models=False)
    again = SearchIndex.load(tmp_path / "index", Letters(), Shortest())
    again.reranker = None
    assert again.keywords and again.search("the cat") == index.search("the cat")
    index.reranker = Shortest()
    hits = index.search("the cat", 3)
    assert ids(hits) == ["y", "z", "x"] and {"vector_score", "keyword_score"} < set(hits[0])
    assert hits[0]["score"] == -4 and hits[0]["vector_score"] < 1
    words = index.search("the cat", 3, alpha=0)[0]
    assert words["keyword_score"] > 0 and "vector_score" not in words
    corpus = {"a": "cats", "b": "a cat", "c": "tac"}
    asked, right = {"q": "cat"}, {"q": ["b"]}
    for alpha, expected in ((1, 0), (0, 1)):
        settings = {"ks": 1, "keywords": True, "alpha": alpha}
        assert (
            evaluate_retrieval(Letters(), asked, {**corpus}, right, **settings)["mrr@1"] == expected
        )


def test_wrong_arguments():
    index = SearchIndex(Letters(), ["a", "b"], keywords=True)
    for alpha in (-0.1, 1.1, float("nan"), "1", True, [1]):
        with pytest.raises(ValueError, match="alpha=.* must be a number from 0 to 1"):
            index.search("a", alpha=alpha)
    with pytest.raises(ValueError, match="alpha needs an index with keywords=True"):
        SearchIndex(Letters(), ["a"]).search("a", alpha=0.5)
    with pytest.raises(ValueError, match="keywords='yes' must be True or False"):
        SearchIndex(Letters(), keywords="yes")


def test_threads_search_while_one_adds():
    index = SearchIndex(Blind(), ["word 0"], keywords=True)
    errors, is_done = [], threading.Event()

    def search():
        try:
            while not is_done.is_set():
                for hit in index.search("word", 10):
                    assert hit["text"] == f"word {hit['id']}"
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(1, 150):
        index.add([f"word {i}"])
        if i % 3 == 0:
            index.remove(i)
    is_done.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert ids(index.search("149", 1, alpha=0)) == [149]
