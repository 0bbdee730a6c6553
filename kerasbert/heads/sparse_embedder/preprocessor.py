"""Preprocessing for sparse embedders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from kerasbert.heads.text_embedder.preprocessor import BertTextEmbedderPreprocessor

if TYPE_CHECKING:
    from typing import Any

    import numpy as np


@keras.saving.register_keras_serializable(package="kerasbert")
class BertSparseEmbedderPreprocessor(BertTextEmbedderPreprocessor):
    """Packs texts as `BertTextEmbedderPreprocessor` does; labels may be a SciPy sparse matrix.

    The arguments are those of `BertPreprocessor`.
    """

    kind = "sparse_embedder"

    def check_labels(self, y: Any, count: int) -> np.ndarray:
        return super().check_labels(y.toarray() if hasattr(y, "toarray") else y, count)
