"""What is served of `BertNextSentencePredictor`: whether a text follows another. N pairs."""

import keras

from kerasbert.export.served import ServedTexts


class ServedNextSentence(ServedTexts):
    """`BertNextSentencePredictor`."""

    columns = ("text", "text_b")
    takes = ("serving_default",)

    def program(self):
        return "The probability that the second text follows the first", (
            'gap = outputs["logits"][:, 0] - outputs["logits"][:, 1]\n'
            "return (1 / (1 + np.exp(-gap))).tolist()"
        )

    def decode(self, outputs, features):
        return {"probability": follows(outputs["logits"])}


def follows(logits):
    """Logits (N, 2) to the probability that B follows A."""
    return keras.ops.sigmoid(logits[:, 0] - logits[:, 1])
