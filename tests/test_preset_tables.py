"""The tables of small presets: splits, scores and intervals, without models or network."""

import numpy as np
import preset_tables
import pytest
import real_data
from sklearn.metrics import f1_score

from kerasbert.search import evaluate_retrieval

# No backend is involved.
pytestmark = pytest.mark.backends("tensorflow")


def test_split_by_groups():
    rows = [(f"{name} {i}", name, f"{name} {i // 5}") for name in "abc" for i in range(50)]
    train, test = preset_tables.split(rows, 0)
    assert len(train) + len(test) == 150 and len(test) == 45
    assert not {row[2] for row in train} & {row[2] for row in test}
    assert {row[1] for row in train} == {row[1] for row in test} == set("abc")
    assert preset_tables.split(rows, 0) == (train, test) != preset_tables.split(rows, 1)
    # The groups may also be fixed, such as pages that no preset was trained on.
    for seed in (0, 1):
        train, test = preset_tables.split(rows, seed, lambda group: group.endswith("1"))
        assert {row[2] for row in test} == {f"{name} 1" for name in "abc"}
        assert len(test) == 15 and len(train) == 135


def test_two_of_each_class_at_least():
    rows = [(str(i), "often", i) for i in range(90)] + [(str(i), "rare", i) for i in (90, 91)]
    found = preset_tables.some(rows, 10)
    assert len(found) == 10 and [row[1] for row in found].count("rare") == 2
    assert len(preset_tables.some(rows, 0)) == 92
    assert preset_tables.some(rows, 93) is None
    inside, outside = preset_tables.apart([0] * 80 + [1] * 20)
    assert sorted([*inside, *outside]) == list(range(100))
    assert len(outside) == 20 and (outside >= 80).sum() == 4


@pytest.mark.parametrize("score", ["accuracy", "macro F1"])
def test_resampled_scores(score):
    rng = np.random.default_rng(0)
    gold = rng.integers(3, size=200)
    found = np.where(rng.random(200) < 0.7, gold, 0)
    row = {"key": ["t", "m", "full", 100, 0], "rows": {"gold": gold, "found": found}}
    scores = preset_tables.resampled(row, score)
    expected = f1_score(gold, found, average="macro") if "F1" in score else (gold == found).mean()
    assert scores[0] == pytest.approx(expected)
    value, low, high = preset_tables.over_seeds([scores])
    assert low < value == scores[0] < high and high - low < 0.2
    better = {0: scores + 0.01}
    assert preset_tables.against(better, {0: scores}).startswith("ahead +0.010")
    assert preset_tables.against({0: scores}, {0: scores}).startswith("level")


def test_gains_are_those_of_retrieval():
    rng = np.random.default_rng(0)
    queries = rng.normal(size=(30, 6)).astype("float32")
    texts = (queries + rng.normal(size=(30, 6))).astype("float32")
    vectors = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, texts)]

    class Model:
        def embed(self, names, batch_size=32):
            return np.stack([vectors["qt".index(name[0])][int(name[1:])] for name in names])

    asked = {f"q{i}": f"q{i}" for i in range(30)}
    corpus = {f"t{i}": f"t{i}" for i in range(30)}
    right = {f"q{i}": [f"t{i}"] for i in range(30)}
    expected = evaluate_retrieval(Model(), asked, corpus, right, ks=10)["ndcg@10"]
    found = preset_tables.gains(vectors[0] @ vectors[1].T).mean()
    assert found == pytest.approx(expected)


def test_bm25_finds_rare_words():
    texts = ["the cat and the dog", "the house", "a house of the cat"]
    found = preset_tables.bm25("en-library", ["dog", "house"], texts)
    assert found.argmax(1).tolist() == [0, 1]
    # Japanese has no spaces, so words would be whole texts.
    texts = ["新しい画面を開く", "古い文書を閉じる"]
    found = preset_tables.bm25("ja-pages", ["文書が閉じた", "画面"], texts)
    assert found.argmax(1).tolist() == [1, 0] and (found.max(1) > 0).all()


def test_what_belongs_together(monkeypatch):
    names = {code: [("faces", f"{code} {i // 2 * 2}") for i in range(9)] for code in ("ko", "ja")}
    monkeypatch.setattr(real_data, "emoji_names", names.get)
    queries, texts = preset_tables.asked("ko-to-ja", 0)
    assert len(queries) == len(set(queries)) == 5 == len(set(texts))
    assert [query.replace("ko", "ja") for query in queries] == texts
    chat = [("ai", "ai 0", "a"), ("ai", "ai 0", "b"), ("ai", "ai 0", "c"), ("ai", "ai 1", "d")]
    monkeypatch.setattr(real_data, "chat_topics", {"ko": chat}.get)
    assert set(zip(*preset_tables.asked("ko-replies", 0))) == {("a", "b"), ("b", "c")}
    pages = [("calc", f"page {i // 3}", f"{i // 3} {i}") for i in range(90)]
    monkeypatch.setattr(real_data, "help_topics", {"ja": pages}.get)
    queries, texts = preset_tables.asked("ja-pages", 0)
    assert [one.split()[0] for one in queries] == [one.split()[0] for one in texts]
    assert 0 < len(queries) < 30 and not set(queries) & set(texts)
    titles = [("mail", "x", f"mail {i}") for i in range(9)] + [("web", "y", "web 0")] * 2
    monkeypatch.setattr(real_data, "package_titles", {"ko": titles}.get)
    for one, other, same in zip(*preset_tables.similar_pairs("ko-similarity", 0, 20)):
        assert (one.split()[0] == other.split()[0]) == bool(same)


def test_tags_by_endings():
    tag_of = preset_tables.most_frequent([["walked", "run", "run"]], [["VERB", "NOUN", "NOUN"]])
    assert [tag_of(word) for word in ("walked", "talked", "xyz")] == ["VERB", "VERB", "NOUN"]


def test_treebank(tmp_path):
    rows = ("1-2 It's _ _ _ _ _", "1 It it PRON _ _ 2", "2 's be AUX _ _ 0")
    lines = "".join("\t".join([*row.split(), *"___"]) + "\n" for row in rows)
    lines = f"# text = It's\n{lines}"
    (tmp_path / "en_x-ud-dev.conllu").write_text(f"{lines}\n{lines}\n")
    words, tags = preset_tables.treebank(tmp_path, "en", "dev")
    assert words == [["It", "'s"]] * 2 and tags == [["PRON", "AUX"]] * 2


def test_who_takes_part():
    of = preset_tables.methods_of
    assert of("en-trec", "mini") == of("en-trec", "minilm") == ["full", "frozen"]
    assert of("ko-chat", "minilm") == of("en-trec", "BM25") == of("ko-tags", "TF-IDF") == []
    assert of("en-library", "BM25") == ["BM25"] and of("masked:x", "mini, random") == []
