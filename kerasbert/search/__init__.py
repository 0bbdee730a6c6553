"""Vectors to answers: indexes of texts, and how well they find."""

from kerasbert.search.embed_corpus import embed_corpus, read_vectors
from kerasbert.search.evaluation import (
    evaluate_clusters,
    evaluate_retrieval,
    evaluate_similarity,
    read_beir,
    read_sts,
)
from kerasbert.search.index import SearchIndex
from kerasbert.search.mining import mine_hard_negatives
from kerasbert.search.mteb import MTEBEncoder

__all__ = [
    "MTEBEncoder",
    "SearchIndex",
    "embed_corpus",
    "evaluate_clusters",
    "evaluate_retrieval",
    "evaluate_similarity",
    "mine_hard_negatives",
    "read_beir",
    "read_sts",
    "read_vectors",
]
