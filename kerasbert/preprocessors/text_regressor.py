"""Preprocessing for numbers of texts and pairs."""

import keras
import numpy as np

from kerasbert._tensorflow import tf_modules
from kerasbert.preprocessors.packing import BertPreprocessor
from kerasbert.preprocessors.texts import label_rows


@keras.saving.register_keras_serializable(package="kerasbert")
class BertTextRegressorPreprocessor(BertPreprocessor):
    """Packs texts or pairs as `BertPreprocessor` does; labels `y` are floats (B,).

    Takes the arguments of `BertPreprocessor`.

    Raises:
        ValueError: for a label that is no finite number, with its position.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "fine", "awful"]
    >>> preprocessor = BertTextRegressorPreprocessor(BertTokenizer(tokens, lowercase=True))
    >>> features, y = preprocessor(["Fine", "Awful"], [4.5, 1])
    >>> np.asarray(y).tolist()
    [4.5, 1.0]
    """

    def check_labels(self, y, count):
        rows = label_rows(y, count)
        for position, value in enumerate(rows):
            if isinstance(value, list) and len(value) == 1:
                value = rows[position] = value[0]
            is_number = isinstance(value, (int, float, np.number))
            if not is_number or not np.isfinite(value):
                raise ValueError(
                    f"The label at position {position} is {value!r}; pass one finite number for "
                    "each text."
                )
        return np.asarray(rows, "float32")

    def check_labels_in_graph(self, y):
        tf, _ = tf_modules(type(self).__name__)
        y = tf.cast(y, tf.float32)
        if y.shape.rank == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.shape.rank not in (None, 1):
            raise ValueError(
                f"The dataset gives labels of shape {y.shape}; give one number for each text."
            )
        return y
