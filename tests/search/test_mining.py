"""Hard negatives: those of sentence-transformers, and texts that are never selected."""

import numpy as np
import pytest

from kerasbert.search import mine_hard_negatives

LETTERS = "abcdef"


class Letters:
    """An embedder that counts letters."""

    def embed(self, texts, batch_size=32):
        return np.array([[text.count(x) + 0.01 for x in LETTERS] for text in texts], "float32")


class Lengths:
    """A reranker that prefers texts of the query's length."""

    def score(self, pairs):
        return [-abs(len(query) - len(text)) for query, text in zip(*pairs)]


def words(count, seed):
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list(LETTERS), rng.integers(1, 12))) for _ in range(count)]


QUERIES = [*words(20, 0), "ab", "ab"]
TEXTS, CORPUS = words(22, 1), [*words(40, 2), "ab"]


def cosine(a, b):
    x, y = Letters().embed([a, b])
    return x @ y / np.linalg.norm(x) / np.linalg.norm(y)


def test_they_are_the_nearest_wrong_ones():
    *columns, first, second = mine_hard_negatives(
        Letters(), QUERIES, TEXTS, CORPUS, num_negatives=2
    )
    assert sorted(zip(*columns)) == sorted(set(zip(QUERIES, TEXTS)))
    everything = set(TEXTS) | set(CORPUS)
    right = {query: {t for q, t in zip(QUERIES, TEXTS) if q == query} for query in QUERIES}
    for query, _, one, two in zip(*columns, first, second):
        wrong = sorted(-cosine(query, text) for text in everything - right[query])
        assert {one, two}.isdisjoint(right[query]) and one != two
        found = sorted(-cosine(query, text) for text in (one, two))
        assert found == pytest.approx(wrong[:2], abs=1e-6)


def test_the_reranker_decides():
    settings = {"reranker": Lengths(), "absolute_margin": 2, "range_max": 30}
    query, text, wrong = mine_hard_negatives(Letters(), QUERIES, TEXTS, CORPUS, **settings)
    score = Lengths().score
    assert all(w < r - 2 for w, r in zip(score((query, wrong)), score((query, text))))


@pytest.mark.parametrize("seed", [0, 1])
def test_at_random(seed):
    settings = {"sampling_strategy": "random", "num_negatives": 3, "seed": seed}
    found = mine_hard_negatives(Letters(), QUERIES, TEXTS, CORPUS, **settings)
    assert found == mine_hard_negatives(Letters(), QUERIES, TEXTS, CORPUS, **settings)
    assert found != mine_hard_negatives(Letters(), QUERIES, TEXTS, CORPUS, num_negatives=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], []), "0 queries and 0 texts"),
        ((["a"], ["a", "b"]), "1 queries and 2 texts"),
        ((["a"], ["a"]), "None of the 1 pairs has 1 negatives"),
        ((["a", "a"], ["a", "b"]), "None of the 2 pairs"),
    ],
)
def test_nothing_to_find(arguments, message):
    with pytest.raises(ValueError, match=message):
        mine_hard_negatives(Letters(), *arguments)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_negatives": 0}, "num_negatives=0"),
        ({"range_min": 4, "range_max": 4}, "range_max=4"),
        ({"sampling_strategy": "best"}, "sampling_strategy='best'"),
        ({"relative_margin": -1}, "relative_margin=-1"),
        ({"absolute_margin": 9}, "smaller margins"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        mine_hard_negatives(Letters(), QUERIES, TEXTS, **settings)


@pytest.mark.peers
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_negatives": 2, "range_min": 3, "range_max": 20},
        {"relative_margin": 0.1, "max_score": 0.95, "min_score": 0.2},
        {"absolute_margin": 0.05},
    ],
)
def test_as_sentence_transformers(settings):
    import torch
    from datasets import Dataset
    from sentence_transformers.util import mine_hard_negatives as theirs

    class Model:
        device = torch.device("cpu")

        def encode_query(self, texts, **kwargs):
            vectors = Letters().embed(texts)
            return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

        encode_document = encode_query

        def similarity_pairwise(self, x, y):
            return (torch.as_tensor(x) * torch.as_tensor(y)).sum(dim=1)

        def similarity(self, x, y):
            return torch.as_tensor(x) @ torch.as_tensor(y).T

        def get_embedding_dimension(self):
            return len(LETTERS)

    settings = {"num_negatives": 1, "range_max": 20, **settings}
    data = Dataset.from_dict({"query": QUERIES, "text": TEXTS})
    expected = theirs(
        data, Model(), corpus=CORPUS, output_format="n-tuple", verbose=False, **settings
    )
    found = mine_hard_negatives(Letters(), QUERIES, TEXTS, CORPUS, **settings)

    def near(columns):  # Some texts are equally close.
        query, text, *wrong = columns
        scores = ([round(float(cosine(*pair)), 4) for pair in zip(query, one)] for one in wrong)
        return sorted(zip(query, text, *scores))

    assert near(found) == near([expected[name] for name in expected.column_names])


def test_empty_texts_are_no_negatives():
    found = mine_hard_negatives(
        Letters(), ["a", "c"], ["aa", "cc"], [" ", "", "\u200b", "aab", "bc"]
    )
    assert found == (["a", "c"], ["aa", "cc"], ["aab", "bc"])
