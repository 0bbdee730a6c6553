"""Serving of `BertReranker`: the relevance of a text to a query. N pairs."""

import keras

from kerasbert.heads.base.program import of_texts
from kerasbert.heads.base.served_texts import ServedTexts

_SCORES = {
    "sigmoid": 'return (1 / (1 + np.exp(-outputs["logits"]))).tolist()',
    "linear": 'return outputs["logits"].tolist()',
}


class ServedReranker(ServedTexts):
    """SavedModel signatures of `BertReranker`."""

    columns = ("text", "text_b")
    takes = ("serving_default",)

    def program(self):
        code = _SCORES[self.model.activation]
        return of_texts("the relevance of the second text to the first, a query", code, pairs=True)

    def decode(self, outputs, features):
        logits = outputs["logits"]
        is_odds = self.model.activation == "sigmoid"
        return {"score": keras.ops.sigmoid(logits) if is_odds else logits}

    def run_as_transformers(self, features):
        return {"logits": super().run_as_transformers(features)["logits"][:, None]}
