"""Serving of `BertNextSentencePredictor`: whether a text follows another. N pairs."""

import keras

from kerasbert.heads.base.program import of_texts
from kerasbert.heads.base.served_texts import ServedTexts, of_classes

_ODDS = """\
gap = outputs["logits"][:, 0] - outputs["logits"][:, 1]
return (1 / (1 + np.exp(-gap))).tolist()
"""


class ServedNextSentence(ServedTexts):
    """SavedModel signatures of `BertNextSentencePredictor`."""

    columns = ("text", "text_b")
    takes = ("serving_default",)

    def page(self):
        return of_classes(self, ["follows", "does not follow"], "softmax", pair=True)

    def program(self):
        return of_texts("the probability that the second text follows the first", _ODDS, pairs=True)

    def decode(self, outputs, features):
        return {"probability": follows(outputs["logits"])}


def follows(logits):
    """Convert logits (N, 2) to the probability that B follows A."""
    return keras.ops.sigmoid(logits[:, 0] - logits[:, 1])
