"""Evaluation of embedders on retrieval, similarity and clustering, and benchmark files.

`kerasbert.metrics.ScoreCallback` logs the scores during `fit`:

    ScoreCallback(lambda model: evaluate_retrieval(model, queries, corpus, relevant))
"""

from __future__ import annotations

import csv
import json
import math
import os
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.base.errors import check_whole, is_whole, reading
from kerasbert.base.paths import check_regular
from kerasbert.metrics import pearson, spearman
from kerasbert.metrics.ranking import average_precision, gain_share, recall, reciprocal_rank
from kerasbert.search.index import SearchIndex
from kerasbert.search.vectors import unit_vectors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from kerasbert.base.aliases import AnyPath, Texts

_SCORES = {
    "ndcg": gain_share,
    "mrr": reciprocal_rank,
    "map": average_precision,
    "recall": recall,
}


def evaluate_retrieval(
    model: Any,
    queries: Mapping[str, str],
    corpus: Mapping[str, str] | None,
    relevant: Mapping[str, Any],
    ks: Sequence[Any] = (1, 5, 10),
    alpha: float | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Evaluate the retrieval of relevant texts for queries.

    Args:
        model: an embedder, as for `SearchIndex`; or a `SearchIndex` whose text ids are those in
            `relevant`, with its reranker.
        queries: dict of id to string, Q queries.
        corpus: dict of id to string; `None` if `model` is an index.
        relevant: dict of query id to a list or set of relevant text ids, or to a dict of text id to
            grade, a whole number, above 0 if relevant. Queries without a relevant text are skipped.
        ks: int or list of ints. Cutoffs: only the first k hits are evaluated.
        alpha: as in `SearchIndex.search`, for an index with `keywords=True`.
        **settings: for an embedder, settings of its `SearchIndex`, such as `query_prompt` or
            `keywords=True`.

    Returns:
        A dict of scores, each the mean over the queries, for each k:

        - `ndcg@k`: normalized discounted cumulative gain (Järvelin and Kekäläinen 2002),
        - `mrr@k`: reciprocal rank of the first relevant text,
        - `map@k`: average precision, divided by the smaller of k and the number of relevant texts,
        - `recall@k`: share of the relevant texts that are retrieved.

    Raises:
        ValueError: if an id is unknown, or if no query has a relevant text.

    Example:

    >>> class Letters:
    ...     def embed(self, texts, batch_size=32):
    ...         return np.array([[text.count(x) for x in "abc"] for text in texts], "float32")
    >>> corpus = {"d1": "aab", "d2": "bcc", "d3": "abc"}
    >>> evaluate_retrieval(Letters(), {"q1": "aa"}, corpus, {"q1": ["d3"]}, ks=2)
    {'ndcg@2': 0.63..., 'mrr@2': 0.5, 'map@2': 0.5, 'recall@2': 1.0}
    """
    ks = [ks] if is_whole(ks) else sorted(ks)
    for k in ks:
        check_whole("ks", k)
    grades = _grades(relevant, queries)
    index = model
    if isinstance(model, SearchIndex):
        if corpus is not None or settings:
            raise ValueError(
                "model is a SearchIndex, which has its own texts and settings; pass corpus=None "
                "and no settings."
            )
    else:
        if not isinstance(corpus, dict):
            raise ValueError(
                f"corpus must be a dict of id to text, or None with an index; got {corpus!r:.50}."
            )
        texts = list(corpus.values())
        index = SearchIndex(model, texts, [str(id) for id in corpus], **settings)
    _check_ids(grades, index)
    asked = [queries[query] for query in grades]
    results = index.search(asked, max(ks), alpha=alpha)
    found = [[str(hit["id"]) for hit in hits] for hits in results]
    gains = [
        np.array([right.get(id, 0) for id in ids], float)
        for ids, right in zip(found, grades.values())
    ]
    ideal = [np.array(sorted(right.values(), reverse=True), float) for right in grades.values()]
    scores = {}
    for name, score in _SCORES.items():
        for k in ks:
            values = [score(gain[:k], best, k) for gain, best in zip(gains, ideal)]
            scores[f"{name}@{k}"] = float(np.mean(values))
    return scores


def _grades(relevant, queries):
    """Return each query's relevant text ids and their grades."""
    for name, given in (("queries", queries), ("relevant", relevant)):
        if not isinstance(given, dict):
            raise ValueError(f"{name} must be a dict with query ids as keys; got {given!r:.50}.")
    grades = {}
    for query, right in relevant.items():
        if query not in queries:
            raise ValueError(f"relevant has the query {query!r}, which is not in queries.")
        if isinstance(right, str):
            raise ValueError(f"relevant[{query!r}] must be a list of ids, got {right!r}.")
        right = right if isinstance(right, dict) else dict.fromkeys(right, 1)
        right = {str(id): grade for id, grade in right.items() if grade > 0}
        if right:
            grades[query] = right
    if not grades:
        raise ValueError("relevant has no text with a grade above 0 for any query.")
    return grades


def _check_ids(grades, index):
    known = {str(id) for id in index.ids}
    for query, right in grades.items():
        for id in right:
            if id not in known:
                raise ValueError(
                    f"relevant[{query!r}] has the text {id!r}, which is not in the corpus."
                )


def evaluate_similarity(
    model: Any, texts: Texts, others: Texts, scores: Any, batch_size: int = 32
) -> dict[str, Any]:
    """Compare cosine similarities with human similarity scores.

    Args:
        model: an embedder, as for `SearchIndex`.
        texts, others: lists of N strings, the two sides of the pairs.
        scores: N numbers, of any range.
        batch_size: int.

    Returns:
        A dict of correlations from -1 to 1: `spearman`, which is usually reported, and `pearson`.

    Example:

    >>> class Letters:
    ...     def embed(self, texts, batch_size=32):
    ...         return np.array([[text.count(x) for x in "abc"] for text in texts], "float32")
    >>> found = evaluate_similarity(Letters(), ["a", "ab", "c"], ["a", "a", "b"], [5, 3, 1])
    >>> round(found["spearman"], 2)
    1.0

    Source: Reimers et al. 2016, "Task-Oriented Intrinsic Evaluation of Semantic Textual
    Similarity".
    """
    texts, others, scores = list(texts), list(others), list(scores)
    if not len(texts) == len(others) == len(scores) or len(texts) < 2:
        raise ValueError(
            f"There are {len(texts)} and {len(others)} texts and {len(scores)} scores; pass two or "
            "more, and as many of each."
        )
    for position, score in enumerate(scores):
        try:
            is_finite = math.isfinite(score)
        except TypeError:
            is_finite = False
        if not is_finite:
            raise ValueError(f"scores[{position}] is {score!r}; pass finite numbers.")
    different = list(dict.fromkeys([*texts, *others]))
    places = {text: place for place, text in enumerate(different)}
    vectors = unit_vectors(np.asarray(model.embed(different, batch_size=batch_size)))
    first, second = (vectors[[places[text] for text in column]] for column in (texts, others))
    cosines = (first * second).sum(axis=1)
    return {"spearman": spearman(scores, cosines), "pearson": pearson(scores, cosines)}


def evaluate_clusters(
    model: Any, texts: Sequence[str], labels: Any, batch_size: int = 32, seed: int = 0
) -> dict[str, Any]:
    """Compare k-means clusters of the embeddings with classes, by V-measure.

    Args:
        model: an embedder, as for `SearchIndex`.
        texts: list of N strings.
        labels: N classes, as many as clusters.
        batch_size: int.
        seed: int, for k-means.

    Returns:
        A dict of `v_measure`, from 0 to 1.

    Example:

    >>> class Letters:
    ...     def embed(self, texts, batch_size=32):
    ...         return np.array([[text.count(x) for x in "abc"] for text in texts], "float32")
    >>> evaluate_clusters(Letters(), ["a", "aa", "aab", "c", "cc", "ccb"], [0, 0, 0, 1, 1, 1])
    {'v_measure': 1.0}

    Sources: Rosenberg and Hirschberg 2007 (V-measure); mteb 2 (k-means with batches of 512).
    """
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.metrics import v_measure_score

    texts, labels = list(texts), list(labels)
    if len(texts) != len(labels):
        raise ValueError(
            f"There are {len(texts)} texts and {len(labels)} labels; pass one label per text."
        )
    count = len(set(labels))
    if count < 2:
        raise ValueError("The labels have only one class; pass at least two.")
    vectors = np.asarray(model.embed(texts, batch_size=batch_size))
    groups = MiniBatchKMeans(count, batch_size=512, n_init="auto", random_state=seed)
    found = groups.fit_predict(vectors)
    return {"v_measure": float(v_measure_score(labels, found))}


# === Files ===


def read_sts(path: AnyPath) -> Any:
    """Read text pairs with similarity scores.

    Args:
        path: string. `.tsv` or `.csv` in the format of the STS benchmark (seven tab-separated
            columns, the score in the fifth), or with a header line, as in GLUE; `.jsonl` as in
            mteb. The columns or keys are `sentence1`, `sentence2` and `score`.

    Returns:
        `(texts, others, scores)` for `evaluate_similarity`, or for `fit` as `((texts, others),
        scores)`.

    Raises:
        ValueError: if the file is not in this format, with file and line.
    """
    path = os.path.expanduser(os.fspath(path))
    texts, others, scores = [], [], []
    for number, row in _sts_rows(path):
        try:
            one, other, score = (row[name] for name in ("sentence1", "sentence2", "score"))
            texts.append(str(one))
            others.append(str(other))
            scores.append(float(score))
        except (KeyError, TypeError, ValueError):
            raise ValueError(
                f"Line {number} of '{path}' is {str(row):.80}; it must have sentence1, sentence2 "
                "and score, a number."
            ) from None
    if not texts:
        raise ValueError(f"'{path}' has no text pairs.")
    return texts, others, scores


def _sts_rows(path):
    """Yield the number and the fields of each line."""
    lines = enumerate(_lines(path), start=1)
    if path.endswith((".jsonl", ".json")):
        for number, line in lines:
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError):
                yield number, line
        return
    names = None
    for number, line in lines:
        mark = "\t" if "\t" in line else ","
        quoting = csv.QUOTE_NONE if mark == "\t" else csv.QUOTE_MINIMAL
        with reading(path, f"fix line {number}"):  # A field may be too long for `csv`.
            cells = next(csv.reader([line], delimiter=mark, quoting=quoting))
        if names is None and "sentence1" in cells:
            names = cells
        elif names is not None:
            yield number, dict(zip(names, cells))
        else:  # Genre, file, year, number, score, both texts, optionally sources.
            yield number, dict(zip(("score", "sentence1", "sentence2"), cells[4:7]))


def read_beir(folder: AnyPath, split: str = "test") -> tuple[Any, Any, Any]:
    """Read a folder of the BEIR benchmark (Thakur et al. 2021, arXiv 2104.08663).

    Args:
        folder: string, with `corpus.jsonl`, `queries.jsonl` and `qrels/<split>.tsv`, or
            `.jsonl` as in mteb.
        split: string.

    Returns:
        `(queries, corpus, relevant)` for `evaluate_retrieval`, with only the queries of the split.
        Titles precede their texts, separated by a space.

    Raises:
        ValueError: if a file is not in this format, with file and line.
    """
    folder = os.path.expanduser(os.fspath(folder))
    corpus = {}
    for id, row in _jsonl(os.path.join(folder, "corpus.jsonl")):
        corpus[id] = f"{row.get('title') or ''} {row['text']}".strip()
    texts = {id: row["text"] for id, row in _jsonl(os.path.join(folder, "queries.jsonl"))}
    path = os.path.join(folder, "qrels", f"{split}.tsv")
    if not os.path.exists(path) and os.path.exists(f"{path.removesuffix('.tsv')}.jsonl"):
        path = f"{path.removesuffix('.tsv')}.jsonl"
    relevant = {}
    for number, row in enumerate(_lines(path), start=1):
        cells = _judgment(row, path.endswith(".jsonl"))
        if number == 1 and cells[:1] == ["query-id"]:
            continue
        if len(cells) != 3 or not cells[2].strip().lstrip("-").isdigit():
            raise ValueError(
                f"Line {number} of '{path}' is {row!r:.80}; it must be a query id, a text id and a "
                "whole number."
            )
        query, text, grade = cells
        if query not in texts:
            raise ValueError(
                f"Line {number} of '{path}' has the query {query!r}, which is not in queries.jsonl."
            )
        relevant.setdefault(query, {})[text] = int(grade)
    return {query: texts[query] for query in relevant}, corpus, relevant


def _judgment(line, is_json):
    """Return the three cells of a line: a query id, a text id and a grade."""
    if not is_json:
        return next(csv.reader([line], delimiter="\t", quoting=csv.QUOTE_NONE))
    try:
        row = json.loads(line)
        return [str(row[name]) for name in ("query-id", "corpus-id", "score")]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def _jsonl(path):
    """Yield `(id, object)` for each line of a JSON lines file."""
    for number, line in enumerate(_lines(path), start=1):
        try:
            row = json.loads(line)
            yield str(row["_id"]), {**row, "text": str(row["text"])}
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError(
                f"Line {number} of '{path}' is {line!r:.80}; it must be a JSON object with `_id` "
                "and `text`."
            ) from None


def _lines(path):
    check_regular(path)
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as file:
            for line in file:
                if line.strip():
                    yield line.rstrip("\r\n")
    except FileNotFoundError:
        raise ValueError(f"'{path}' is missing; check the name and the folder.") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"'{path}' is not UTF-8 ({error}); convert it.") from None
