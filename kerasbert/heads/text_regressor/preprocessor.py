"""Preprocessing for regression on texts and pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.heads.base.long_preprocessor import LongTextPreprocessor
from kerasbert.text.label_warnings import counted, warn_of_equal
from kerasbert.text.texts import number_rows, numbers_in_graph

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor


@keras.saving.register_keras_serializable(package="kerasbert")
class BertTextRegressorPreprocessor(LongTextPreprocessor):
    """Packs texts or pairs like `BertPreprocessor`; labels `y` are floats (B,).

    Takes the arguments of `BertPreprocessor`, and `long` as `BertTextClassifierPreprocessor` does.

    Raises:
        ValueError: for a label that is not a finite number, with its position.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "fine", "awful"]
    >>> preprocessor = BertTextRegressorPreprocessor(BertTokenizer(tokens, lowercase=True))
    >>> features, y = preprocessor(["Fine", "Awful"], [4.5, 1])
    >>> np.asarray(y).tolist()
    [4.5, 1.0]
    """

    def check_labels(self, y: Any, count: int) -> np.ndarray:
        rows = number_rows(y, count, np.isfinite, "one finite number for each text")
        return np.asarray(rows, "float32")

    def check_variety(self, segments: Any, y: Any = None, sample_weight: Any = None) -> None:
        if y is not None:
            warn_of_equal(counted(y, sample_weight), "labels")

    def check_labels_in_graph(self, y: Any) -> Tensor:
        return numbers_in_graph(y, "float32", "text")
