"""Vectors to answers: indexes of texts, and how well they find."""

from kerasbert.search.evaluation import evaluate_retrieval, read_beir
from kerasbert.search.index import SearchIndex
from kerasbert.search.mining import mine_hard_negatives

__all__ = ["SearchIndex", "evaluate_retrieval", "mine_hard_negatives", "read_beir"]
