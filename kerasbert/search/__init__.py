"""Vectors to answers: indexes of texts, and how well they find."""

from kerasbert.search.embed_corpus import embed_corpus, read_vectors
from kerasbert.search.evaluation import evaluate_retrieval, read_beir
from kerasbert.search.index import SearchIndex

__all__ = ["SearchIndex", "embed_corpus", "evaluate_retrieval", "read_beir", "read_vectors"]
