"""Preprocessing for weights of words."""

import keras

from kerasbert.preprocessors.text_embedder import BertTextEmbedderPreprocessor


@keras.saving.register_keras_serializable(package="kerasbert")
class BertSparseEmbedderPreprocessor(BertTextEmbedderPreprocessor):
    """As `BertTextEmbedderPreprocessor`; labels that are vectors may be a sparse matrix of SciPy.

    Takes the arguments of `BertPreprocessor`.
    """

    kind = "sparse_embedder"

    def check_labels(self, y, count):
        return super().check_labels(y.toarray() if hasattr(y, "toarray") else y, count)
