"""Hard-negative mining."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kerasbert.base.errors import check_choice, check_value, check_whole
from kerasbert.search.embedding import embed_in_role
from kerasbert.search.index import SearchIndex
from kerasbert.search.vectors import unit_vectors
from kerasbert.text.empty import are_empty

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def mine_hard_negatives(
    embedder: Any,
    queries: Sequence[str],
    texts: Sequence[str],
    corpus: Any = (),
    *,
    num_negatives: int = 1,
    range_min: int = 0,
    range_max: int | None = None,
    max_score: float | None = None,
    min_score: float | None = None,
    absolute_margin: float | None = None,
    relative_margin: float | None = None,
    sampling_strategy: str = "top",
    reranker: Any = None,
    batch_size: int = 32,
    seed: int = 0,
) -> Any:
    """Mine hard negatives: texts similar to a query but not positives.

    All texts of equal queries are positives. Texts without a token known to the embedder are never
    negatives. Pairs with too few negatives are left out.

    Args:
        embedder: an embedder, as for `SearchIndex`; its own prompts are used.
        queries: list of N strings.
        texts: list of N strings, the positive of each query.
        corpus: list of further texts to choose from.
        num_negatives: number of negatives per pair.
        range_min, range_max: ints. Negatives have ranks from `range_min` to before `range_max`,
            counted from 0 without positives; `range_max` defaults to `range_min + 10 *
            num_negatives`. The first ranks may be unlabeled positives.
        max_score, min_score: floats. Bounds of a negative's score (the cosine, or the reranker's
            score).
        absolute_margin: float. A negative must score lower than the positive by more than this.
        relative_margin: the margin relative to the positive's score: with 0.05, a negative must
            score below 95 percent of it.
        sampling_strategy: "top" chooses the nearest of the remaining texts, "random" draws some.
        reranker: a `BertReranker`, or any object with `score`. Its scores replace the cosines.
        batch_size, seed: ints.

    Returns:
        A tuple of `2 + num_negatives` lists for `BertTextEmbedder.fit`: queries, positives and
        negatives.

    Raises:
        ValueError: if a setting is invalid, or if no pair has enough negatives.

    Example:

    >>> class Letters:
    ...     def embed(self, texts, batch_size=32):
    ...         return np.array([[text.count(x) for x in "abc"] for text in texts], "float32")
    >>> mine_hard_negatives(Letters(), ["a", "c"], ["aa", "cc"], ["aab", "bc"])
    (['a', 'c'], ['aa', 'cc'], ['aab', 'bc'])

    Sources: sentence-transformers 6.2 (the settings); Moreira et al. 2024, NV-Retriever, arXiv
    2407.15831 (the margins).
    """
    queries, texts = list(queries), list(texts)
    if len(queries) != len(texts) or not queries:
        raise ValueError(
            f"There are {len(queries)} queries and {len(texts)} texts; pass one text per query."
        )
    check_whole("num_negatives", num_negatives)
    check_whole("range_min", range_min, 0)
    range_max = range_min + 10 * num_negatives if range_max is None else range_max
    check_whole("range_max", range_max, range_min + num_negatives)
    check_choice("sampling_strategy", sampling_strategy, ("top", "random"))
    for name, margin in (
        ("absolute_margin", absolute_margin),
        ("relative_margin", relative_margin),
    ):
        if margin is not None:
            check_value(name, margin, "number")

    corpus = list(dict.fromkeys([*texts, *corpus]))
    places = {text: place for place, text in enumerate(corpus)}
    right = {}
    for query, text in zip(queries, texts):
        right.setdefault(query, {})[places[text]] = None
    asked = list(right)
    vectors = unit_vectors(embed_in_role(embedder, corpus, "text", batch_size))
    asking = unit_vectors(embed_in_role(embedder, asked, "query", batch_size))
    index = SearchIndex(None, similarity="dot")
    index.add(corpus, vectors=vectors)
    empty = are_empty(embedder, corpus)
    most = range_max + max(map(len, right.values())) + int(empty.sum())
    found = index.search_vectors(asking, most)
    random = np.random.default_rng(seed)

    rows = []
    for query, vector, hits in zip(asked, asking, found):
        own_places = list(right[query])
        wrong = [hit for hit in hits if hit["id"] not in right[query] and not empty[hit["id"]]]
        wrong = wrong[range_min:range_max]
        if reranker is None:
            scores = np.array([hit["score"] for hit in wrong])
            own_scores = vectors[own_places] @ vector
        else:
            read = [*(hit["text"] for hit in wrong), *(corpus[place] for place in own_places)]
            both = np.asarray(reranker.score(([query] * len(read), read)))
            scores, own_scores = np.split(both, [len(wrong)])
        for place, own in zip(own_places, own_scores):
            keep = np.ones(len(wrong), bool)
            if max_score is not None:
                keep &= scores < max_score
            if min_score is not None:
                keep &= scores > min_score
            if absolute_margin is not None:
                keep &= scores < own - absolute_margin
            if relative_margin is not None:
                keep &= scores < own - abs(own) * relative_margin
            chosen = np.flatnonzero(keep)
            if len(chosen) < num_negatives:
                continue
            if sampling_strategy == "random":
                chosen = random.choice(chosen, num_negatives, replace=False)
            negatives = [wrong[i]["text"] for i in chosen[:num_negatives]]
            rows.append((query, corpus[place], *negatives))
    if not rows:
        raise ValueError(
            f"None of the {len(queries)} pairs has {num_negatives} negatives that meet the "
            "conditions; pass more texts as corpus, or smaller margins."
        )
    return tuple(map(list, zip(*rows)))
