"""Retrieval metrics, by hand and compared with sentence-transformers, and BEIR's files."""

import json

import numpy as np
import pytest

from kerasbert.search import (
    MTEBEncoder,
    SearchIndex,
    evaluate_clusters,
    evaluate_retrieval,
    evaluate_similarity,
    read_beir,
    read_sts,
)
from tests.peers import Peer

sentence_transformers = Peer("sentence_transformers")
evaluators = Peer("sentence_transformers.sentence_transformer.evaluation")


class Numbers:
    """An embedder whose texts are the names of their vectors."""

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
        ({"q99": ["d1"]}, "query 'q99', which is not in queries"),
        ({"q1": ["d99"]}, r"relevant\['q1'\] has the text 'd99', which is not in the corpus"),
        ({"q1": "d1"}, r"relevant\['q1'\] must be a list of ids, got 'd1'"),
        ({"q1": {"d1": 0}}, "no text with a grade above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate_retrieval(model, queries, corpus, relevant)
    with pytest.raises(ValueError, match="queries must be a dict with query ids .*a query"):
        evaluate_retrieval(model, ["a query"], corpus, {0: ["d1"]})
    with pytest.raises(ValueError, match="corpus must be a dict of id to text, or None .*a text"):
        evaluate_retrieval(model, queries, ["a text"], {"q1": ["d1"]})
    with pytest.raises(ValueError, match=r"scores\[1\] is nan"):
        evaluate_similarity(model, ["a", "b"], ["a", "b"], [1, float("nan")])
    with pytest.raises(ValueError, match="ks=0 must be"):
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
    rows = [
        {"query-id": "q1", "corpus-id": id, "score": grade} for id, grade in (("d1", 2), ("d2", 0))
    ]
    (tmp_path / "qrels" / "dev.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert read_beir(tmp_path, "dev") == read_beir(tmp_path)
    path.write_text("q1\td1\n")
    with pytest.raises(ValueError, match=r"Line 1 of .*test.tsv' is 'q1\\td1'; it must be"):
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


def test_similarity_and_clusters():
    rng = np.random.default_rng(0)
    vectors = {f"t{i}": rng.normal(size=8) for i in range(20)}
    model, texts = Numbers(vectors), list(vectors)
    others = [*texts[7:], *texts[:7]]

    def cosine(a, b):
        x, y = vectors[a], vectors[b]
        return x @ y / np.linalg.norm(x) / np.linalg.norm(y)

    cosines = np.array([cosine(*pair) for pair in zip(texts, others)])
    found = evaluate_similarity(model, texts, others, 3 * cosines + 1)
    assert found == pytest.approx({"spearman": 1, "pearson": 1})
    found = evaluate_similarity(model, texts, others, -np.exp(cosines))
    assert found["spearman"] == pytest.approx(-1) and -1 < found["pearson"] < -0.9
    for wrong in (
        (texts, others[1:], cosines),
        (texts, others, cosines[1:]),
        (["t1"], ["t2"], [1]),
    ):
        with pytest.raises(ValueError, match="as many of each"):
            evaluate_similarity(model, *wrong)
    places = {f"t{i}": np.array([10.0 * (i % 3), i / 100]) for i in range(30)}
    labels = [i % 3 for i in range(30)]
    assert evaluate_clusters(Numbers(places), list(places), labels)["v_measure"] == 1
    assert evaluate_clusters(Numbers(places), list(places), [0, 1] * 15)["v_measure"] < 0.2
    for wrong, message in ((labels[1:], "30 texts and 29 labels"), ([0] * 30, "one class")):
        with pytest.raises(ValueError, match=message):
            evaluate_clusters(Numbers(places), list(places), wrong)


def test_sts_files(tmp_path):
    expected = (['A man, 1 "x', "둘"], ["A cat", "셋"], [4.5, 0.0])
    files = {
        "benchmark.csv": 'g\tf\t2012\t1\t4.5\tA man, 1 "x\tA cat\ng\tf\t2012\t2\t0\t둘\t셋\n',
        "glue.tsv": 'sentence1\tsentence2\tscore\nA man, 1 "x\tA cat\t4.5\n둘\t셋\t0\n',
        "excel.csv": '\ufeffscore,sentence1,sentence2\r\n4.5,"A man, 1 ""x",A cat\r\n0,둘,셋\r\n',
        "mteb.jsonl": "\n".join(
            json.dumps({"sentence1": a, "sentence2": b, "score": s}) for a, b, s in zip(*expected)
        ),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content.encode())
        assert read_sts(tmp_path / name) == expected
    for content, message in {
        "": "has no text pairs",
        "a\tb\n": "Line 1 of .* must have sentence1, sentence2",
        "sentence1\tsentence2\tscore\na\tb\tmuch\n": "Line 2 of .* score, a number",
    }.items():
        (tmp_path / "wrong.tsv").write_text(content)
        with pytest.raises(ValueError, match=message):
            read_sts(tmp_path / "wrong.tsv")
    with pytest.raises(ValueError, match="missing"):
        read_sts(tmp_path / "none.tsv")


def test_called_as_by_mteb():
    seen = []

    class Prompted(Numbers):
        class preprocessor:
            prompts = {"query": "q: "}

        def embed(self, texts, batch_size=32, role=None):
            seen.append((role, len(texts), batch_size))
            return super().embed(texts)

    encoder = MTEBEncoder(Prompted({"a": np.array([3.0, 4.0]), "b": np.array([0.0, 2.0])}))
    batches = [{"text": ["a", "b"]}, {"text": ["a"]}]
    settings = {"task_metadata": None, "hf_split": "test", "hf_subset": "default"}
    vectors = encoder.encode(batches, **settings, prompt_type="document", batch_size=7)
    np.testing.assert_allclose(vectors, [[0.6, 0.8], [0, 1], [0.6, 0.8]])
    encoder.encode(["a"], **settings, prompt_type="query")
    assert seen == [("text", 3, 7), ("query", 1, 32)]
    np.testing.assert_allclose(encoder.similarity(vectors, vectors[:1]), [[1], [0.8], [1]])
    np.testing.assert_allclose(encoder.similarity_pairwise(vectors, vectors), 1)
    with pytest.raises(ValueError, match="no texts"):
        encoder.encode([])
    with pytest.raises(ValueError, match="A batch has image but no text"):
        encoder.encode([{"image": [1]}])
    with pytest.raises(ValueError, match="no method `embed`"):
        MTEBEncoder(max)
