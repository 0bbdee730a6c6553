"""What is served of `BertBackbone`: the vectors of the tokens, and of the text."""

from kerasbert.export.program import of_texts
from kerasbert.export.served import ServedTexts
from kerasbert.parts import own_preprocessor
from kerasbert.preprocessors.packing import BertPreprocessor


class ServedEncoder(ServedTexts):
    """`BertBackbone`, with the output names of TF Hub's encoders."""

    def __init__(self, model, preprocessor=None, labels=None, settings=None):
        # It has to fit as that of a task.
        preprocessor = own_preprocessor(model, preprocessor, BertPreprocessor)
        super().__init__(model, preprocessor, labels, settings)

    def program(self):
        return of_texts("The vectors of the tokens", vectors_of_tokens("sequence_output"))

    def decode(self, outputs, features):
        default = outputs.get("pooled_output")
        more = {} if default is None else {"default": default}
        return {**outputs, **more, "padding_mask": features["padding_mask"]}


def vectors_of_tokens(output):
    """The lines of a program that return an output of all tokens without that of padding."""
    return f'return [x[: sum(row.attention_mask)] for x, row in zip(outputs["{output}"], rows)]'
