"""Scores of retrieval by hand and against sentence-transformers, and BEIR's files."""

import json

import numpy as np
import pytest

from kerasbert.search import SearchIndex, evaluate_retrieval, read_beir
from tests.peers import Peer

sentence_transformers = Peer("sentence_transformers")
evaluators = Peer("sentence_transformers.sentence_transformer.evaluation")


class Numbers:
    """A text is the name of its vector."""

    def __init__(self, vectors):
        self.vectors = vectors

    def embed(self, texts, batch_size=32):
        return np.stack([self.vectors[text] for text in texts])


def random_data(seed=0):
    generator = np.random.default_rng(seed)
    texts = [f"d{i}" for i in range(60)]
    queries = [f"q{i}" for i in range(15)]
    vectors = {name: generator.normal(size=16).astype("float32") for name in texts + queries}
    relevant = {
        query: {str(id) for id in generator.choice(texts, generator.integers(1, 14), False)}
        for query in queries
    }
    return Numbers(vectors), {q: q for q in queries}, {t: t for t in texts}, relevant


def test_by_hand():
    angles = {"q": 0.0, "a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}
    model = Numbers(
        {name: np.array([np.cos(x), np.sin(x)], "float32") for name, x in angles.items()}
    )
    corpus = {name: name for name in "dcba"}
    scores = evaluate_retrieval(model, {1: "q"}, corpus, {1: {"b": 3, "d": 1, "a": 0}}, ks=[1, 4])
    gains = 3 / np.log2(3) + 1 / np.log2(5)
    expected = {"ndcg@1": 0, "ndcg@4": gains / (3 + 1 / np.log2(3)), "mrr@1": 0, "mrr@4": 0.5}
    expected |= {"map@1": 0, "map@4": (1 / 2 + 2 / 4) / 2, "recall@1": 0, "recall@4": 1}
    assert scores == pytest.approx(expected)
    index = SearchIndex(model, list("abcd"), ids=[5, 6, 7, 8])
    assert evaluate_retrieval(index, {1: "q"}, None, {1: [6, 8]}, 4)["map@4"] == expected["map@4"]


def test_refusals():
    model, queries, corpus, _ = random_data()
    for relevant, message in (
        ({"q99": ["d1"]}, "query 'q99', which is not among the queries"),
        ({"q1": ["d99"]}, r"relevant\['q1'\] names the text 'd99', which is not in the corpus"),
        ({"q1": "d1"}, "has to be a list of ids"),
        ({"q1": {"d1": 0}}, "No query has a right text"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate_retrieval(model, queries, corpus, relevant)
    with pytest.raises(ValueError, match="ks=0 has to be"):
        evaluate_retrieval(model, queries, corpus, {"q1": ["d1"]}, ks=(0, 1))


def test_beir(tmp_path):
    rows = [{"_id": "d1", "title": "Rome", "text": "is old."}, {"_id": "d2", "text": "Sea."}]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    rows = [{"_id": "q1", "text": "what is old"}, {"_id": "q2", "text": "unasked"}]
    (tmp_path / "queries.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with pytest.raises(ValueError, match=r"dev.tsv' is missing"):
        read_beir(tmp_path, "dev")
    (tmp_path / "qrels").mkdir()
    path = tmp_path / "qrels" / "test.tsv"
    path.write_text("query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\n")
    expected = {"q1": "what is old"}, {"d1": "Rome is old.", "d2": "Sea."}
    assert read_beir(tmp_path) == (*expected, {"q1": {"d1": 2, "d2": 0}})
    path.write_text("q1\td1\n")
    with pytest.raises(ValueError, match=r"Line 1 of .*test.tsv' is 'q1\\td1'; it has to be"):
        read_beir(tmp_path)
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d1"}\n')
    with pytest.raises(ValueError, match="Line 1 of .*corpus.jsonl"):
        read_beir(tmp_path)


@pytest.mark.peers
def test_as_sentence_transformers():
    model, queries, corpus, relevant = random_data()
    ks = [1, 5, 10]
    named = {f"{name}_at_k": ks for name in ("mrr", "ndcg", "precision_recall", "map")}
    evaluator = evaluators.InformationRetrievalEvaluator(queries, corpus, relevant, **named)
    found = evaluate_retrieval(model, queries, corpus, relevant, ks)
    index = SearchIndex(model, list(corpus), list(corpus))
    hits = [
        [{"corpus_id": hit["id"], "score": hit["score"]} for hit in index.search(query, 10)]
        for query in evaluator.queries_ids
    ]
    theirs = evaluator.compute_metrics(hits)
    expected = {
        name.replace("@k", f"@{k}"): x for name, by_k in theirs.items() for k, x in by_k.items()
    }
    assert found == pytest.approx({name: expected[name] for name in found})
