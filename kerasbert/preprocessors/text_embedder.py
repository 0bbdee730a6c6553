"""Preprocessing for vectors of texts and pairs."""

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.preprocessors.packing import BertPreprocessor
from kerasbert.preprocessors.texts import label_rows, number_rows


@keras.saving.register_keras_serializable(package="kerasbert")
class BertTextEmbedderPreprocessor(BertPreprocessor):
    """Packs texts or pairs as `BertPreprocessor` does; labels `y` are vectors (B, D').

    For a loss of one's own, they may also be numbers (B,).

    Takes the arguments of `BertPreprocessor`.

    Raises:
        ValueError: for labels that are no vectors of finite numbers, all of one width, with their
            position.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "fine", "awful"]
    >>> preprocessor = BertTextEmbedderPreprocessor(BertTokenizer(tokens, lowercase=True))
    >>> features, y = preprocessor(["Fine", "Awful"], [[1.0, 2.0], [3.0, 4.0]])
    >>> tuple(y.shape)
    (2, 2)
    """

    # Checkpoints say how long the texts of their embedder are.
    kind = "text_embedder"

    def check_labels(self, y, count):
        rows = label_rows(y, count)
        widths = [len(row) if isinstance(row, list) else None for row in rows]
        if not any(isinstance(row, (list, str)) for row in rows):
            return super().check_labels(number_rows(y, count, np.isfinite, "finite numbers"), count)
        for position, row in enumerate(rows):
            if widths[position] is None or widths[position] != widths[0]:
                raise ValueError(
                    f"The label at position {position} is {str(row)[:60]}, where that of the "
                    f"first text is {str(rows[0])[:60]}; pass one vector for each text, all of "
                    "the same width."
                )
        try:
            vectors = np.asarray(rows, "float32")
        except (TypeError, ValueError) as error:
            raise ValueError(f"The labels are no vectors of numbers: {error}.") from error
        if vectors.ndim != 2 or not np.isfinite(vectors).all():
            raise ValueError(
                f"The labels have the shape {vectors.shape} or hold NaN or infinity; pass one "
                "vector of finite numbers for each text."
            )
        return vectors

    def check_labels_in_graph(self, y):
        if y.shape.rank not in (None, 1, 2):
            raise ValueError(
                f"The dataset gives labels of shape {y.shape}; give one vector for each text."
            )
        return tf.cast(y, tf.float32) if y.shape.rank == 2 else y
