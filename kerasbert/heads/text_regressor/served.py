"""Serving of `BertTextRegressor`: a score per text."""

from kerasbert.heads.base.program import of_texts
from kerasbert.heads.base.served import REGRESS
from kerasbert.heads.base.served_texts import ServedTexts, of_classes


class ServedRegressor(ServedTexts):
    """SavedModel signatures of `BertTextRegressor`."""

    output = "score"
    of_examples = ("regress", REGRESS, "score")

    def page(self):
        return of_classes(self, ["score"], "none")

    def program(self):
        return of_texts("the score", 'return outputs["score"].tolist()')

    def answer_examples(self, inputs):
        return {"outputs": self.answer_rows(self.pack_examples(inputs))["score"]}

    def expected(self, signature, inputs):
        if signature == "regress":
            return {"outputs": self.expected_of_examples(inputs)}
        return super().expected(signature, inputs)

    def run_as_transformers(self, features):
        return {"score": super().run_as_transformers(features)["score"][:, None]}
