"""Semantic search, bulk embedding, and evaluation of embedders."""

from typing import TYPE_CHECKING

from kerasbert.base import host  # noqa: F401
from kerasbert.base.lazy import deprecated
from kerasbert.search.embed_corpus import embed_corpus, read_vectors
from kerasbert.search.evaluation import (
    evaluate_clusters,
    evaluate_retrieval,
    evaluate_similarity,
    read_beir,
    read_sts,
)
from kerasbert.search.exports import export_records
from kerasbert.search.filters import where_inputs
from kerasbert.search.mining import mine_hard_negatives
from kerasbert.search.mteb import MTEBEncoder
from kerasbert.search.passages import PassageSplitter

__all__ = [
    "MTEBEncoder",
    "PassageSplitter",
    "embed_corpus",
    "evaluate_clusters",
    "evaluate_retrieval",
    "evaluate_similarity",
    "export_records",
    "mine_hard_negatives",
    "read_beir",
    "read_sts",
    "read_vectors",
    "where_inputs",
]

# Deprecated alias, removed in the next version; see the CHANGELOG.
if not TYPE_CHECKING:  # For type checkers, a module `__getattr__` has every name.
    __getattr__ = deprecated("kerasbert.search", {"SearchIndex": ""})
