"""Serving of `BertBackbone`: token and text embeddings."""

from kerasbert.base.parts import own_preprocessor
from kerasbert.heads.base.program import of_texts
from kerasbert.heads.base.served_texts import ServedTexts
from kerasbert.text.preprocessor import BertPreprocessor


class ServedEncoder(ServedTexts):
    """SavedModel signatures of `BertBackbone`, with the output names of TF Hub's encoders."""

    def __init__(self, model, preprocessor=None, labels=None, settings=None):
        # Check that the preprocessor fits the encoder, as a task does.
        preprocessor = own_preprocessor(model, preprocessor, BertPreprocessor)
        super().__init__(model, preprocessor, labels, settings)

    def program(self):
        return of_texts("the embeddings of the tokens", vectors_of_tokens("sequence_output"))

    def decode(self, outputs, features):
        default = outputs.get("pooled_output")
        more = {} if default is None else {"default": default}
        return {**outputs, **more, "padding_mask": features["padding_mask"]}


def vectors_of_tokens(output):
    """Return code, for `answer.py`, that returns an output for all tokens except padding."""
    return f'return [x[: sum(row.attention_mask)] for x, row in zip(outputs["{output}"], rows)]'
