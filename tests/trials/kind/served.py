"""Serving of `BertTextCounter`: an expected number per text."""

import keras

from kerasbert.heads.base.served_texts import ServedTexts


class ServedCounter(ServedTexts):
    """The served form of `BertTextCounter`."""

    output = "logarithm"

    def decode(self, outputs, features):
        return {"count": keras.ops.exp(outputs["logarithm"])}
