"""Adapter to evaluate embedders with the `mteb` package.

N: number of texts, D: embedding width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kerasbert.base.errors import check_whole
from kerasbert.search.embedding import embed_in_role
from kerasbert.search.vectors import unit_vectors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class MTEBEncoder:
    """An embedder for `mteb.evaluate`, version 2 (Muennighoff et al. 2023, arXiv 2210.07316).

    Queries and documents get the embedder's prompts for "query" and "text". Similarities are
    cosines.

    Args:
        embedder: an embedder, as for `SearchIndex`.
        name: "organization/model", under which mteb stores results.
        revision: string. mteb stores it with the results.

    Example:

    >>> class Letters:
    ...     def embed(self, texts, batch_size=32):
    ...         return np.array([[text.count(x) for x in "abc"] for text in texts], "float32")
    >>> encoder = MTEBEncoder(Letters())
    >>> encoder.encode(["aab", "ccc"]).round(2).tolist()[1]
    [0.0, 0.0, 1.0]

    With `mteb` installed: `mteb.evaluate(MTEBEncoder(embedder, "me/mine"), tasks)`.
    """

    def __init__(
        self, embedder: Any, name: str = "kerasbert/embedder", revision: str = "unknown"
    ) -> None:
        if not hasattr(embedder, "embed"):
            raise ValueError(
                f"embedder={type(embedder).__name__} has no method `embed`; pass a model with it."
            )
        self.embedder, self.name, self.revision = embedder, name, revision

    def encode(
        self,
        inputs: Sequence[str],
        *,
        task_metadata: Any = None,
        hf_split: Any = None,
        hf_subset: Any = None,
        prompt_type: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool = False,
        precision: str | None = None,
    ) -> np.ndarray:
        """Embed texts as float32 (N, D).

        Args:
            inputs: list of N strings, or mteb's batches: dicts with a list `text`.
            prompt_type: "query", "document" or `None`.
            batch_size: int.
            task_metadata, hf_split, hf_subset, show_progress_bar, precision: ignored; passed by
                mteb.
        """
        check_whole("batch_size", batch_size)
        texts = []
        for batch in inputs:
            if not isinstance(batch, str) and "text" not in batch:
                raise ValueError(
                    f"A batch has {', '.join(batch)} but no text; embedders here only take texts."
                )
            texts += [batch] if isinstance(batch, str) else batch["text"]
        if not texts:
            raise ValueError("inputs has no texts to encode.")
        role = getattr(prompt_type, "value", prompt_type)
        role = {"document": "text", "passage": "text"}.get(role, role)
        return unit_vectors(embed_in_role(self.embedder, texts, role, batch_size))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Return the dot products (M, N) of all pairs of vectors (M, D) and vectors (N, D)."""
        return np.atleast_2d(embeddings1) @ np.atleast_2d(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Return the dot products (N,) of corresponding rows of two arrays (N, D)."""
        return (np.atleast_2d(embeddings1) * np.atleast_2d(embeddings2)).sum(axis=1)

    @property
    def mteb_model_meta(self) -> Any:
        """The metadata under which mteb stores results."""
        try:
            from mteb.models import ModelMeta
        except ImportError as error:
            raise ImportError("mteb_model_meta needs mteb; run `pip install mteb`.") from error
        return ModelMeta.create_empty(overwrites={"name": self.name, "revision": self.revision})
