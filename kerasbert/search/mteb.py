"""Embedders as the `mteb` package calls them.

N texts, D width of a vector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kerasbert._errors import check_whole
from kerasbert.search.index import embed_in_role
from kerasbert.search.vectors import unit_vectors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class MTEBEncoder:
    """An embedder for `mteb.evaluate`, version 2 (Muennighoff et al. 2023, arXiv 2210.07316).

    Queries and documents get the embedder's prompts of "query" and "text". Vectors have the length
    1, so similarities are cosines.

    Args:
        embedder: a `BertTextEmbedder`, or what `SearchIndex` takes.
        name: string. What results are filed under, "organization/model".
        revision: string. Of the model, in the same place.

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
                f"embedder={type(embedder).__name__} has no method `embed`; pass a model that has."
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
        """Vectors (N, D) of texts.

        Args:
            inputs: list of N strings, or batches of dicts with a list `text`, as mteb gives them.
            prompt_type: "query" or "document", or none.
            batch_size: int.
            task_metadata, hf_split, hf_subset, show_progress_bar, precision: what mteb says beside;
                nothing hangs on it.
        """
        check_whole("batch_size", batch_size)
        texts = []
        for batch in inputs:
            if not isinstance(batch, str) and "text" not in batch:
                raise ValueError(
                    f"A batch has {', '.join(batch)} and no text; an embedder here reads texts "
                    "alone."
                )
            texts += [batch] if isinstance(batch, str) else batch["text"]
        if not texts:
            raise ValueError("There are no texts to encode.")
        role = getattr(prompt_type, "value", prompt_type)
        role = {"document": "text", "passage": "text"}.get(role, role)
        return unit_vectors(embed_in_role(self.embedder, texts, role, batch_size))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Products of all with all: float32 (M, D) and (N, D) to (M, N)."""
        return np.atleast_2d(embeddings1) @ np.atleast_2d(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Products of each with its own: (N, D) twice to (N,)."""
        return (np.atleast_2d(embeddings1) * np.atleast_2d(embeddings2)).sum(axis=1)

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb files results under."""
        try:
            from mteb.models import ModelMeta
        except ImportError as error:
            raise ImportError("It needs mteb; run `pip install mteb`.") from error
        return ModelMeta.create_empty(overwrites={"name": self.name, "revision": self.revision})
