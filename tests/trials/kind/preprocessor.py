"""Preprocessing for counts."""

import keras
import numpy as np

from kerasbert.text.preprocessor import BertPreprocessor
from kerasbert.text.texts import number_rows


@keras.saving.register_keras_serializable(package="kerasbert")
class BertTextCounterPreprocessor(BertPreprocessor):
    """Packs texts as `BertPreprocessor` does; labels `y` are numbers from 0, (B,)."""

    def check_labels(self, y, count):
        wanted = "one number from 0 for each text"
        return np.asarray(number_rows(y, count, lambda x: x >= 0, wanted), "float32")
