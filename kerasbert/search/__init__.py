"""Vectors to answers: indexes of texts, and how well they find."""

from kerasbert.search.index import SearchIndex

__all__ = ["SearchIndex"]
