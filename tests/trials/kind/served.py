"""What is served of `BertTextCounter`: an expected number a text."""

import keras

from kerasbert.heads.base.served import ServedTexts


class ServedCounter(ServedTexts):
    """`BertTextCounter`."""

    output = "logarithm"

    def decode(self, outputs, features):
        return {"count": keras.ops.exp(outputs["logarithm"])}
