"""`export_litert`: a model from token ids on, for LiteRT (TensorFlow Lite)."""

import os

from kerasbert import runtimes
from kerasbert.export.token_graphs import exported
from kerasbert.parts import encoder_of

# An encoder with more positions than this has no table of them.
_ANY = 2**20


def export_litert(model, directory, precision="float32", sequence_length=None, tokenizer=None):
    """Write `model.tflite`, with the tokenizer's files beside it, and check it with LiteRT.

    Inputs, outputs, tokenizer's files and errors are those of `export_onnx`, but each row has
    `sequence_length` tokens, padded where there are fewer: LiteRT has no op for attention over
    rows of any length. The batch is of any size. The one signature is `serving_default`. What
    LiteRT has no ops of its own for, as a BiLSTM, is refused.

    Args:
        precision: "float32", or "int8": weights of the products are int8, and the inputs of each
            become int8 as they come (LiteRT's "dynamic range").
        sequence_length: int. `None` takes the preprocessor's, or the encoder's number of positions,
            where it has one.

    Returns:
        The path of `model.tflite`.
    """
    arguments = directory, "litert", precision, _length(model, sequence_length), tokenizer
    with exported(model, *arguments) as (target, folder, check):
        check(runtimes.litert(os.path.join(folder, "model.tflite")))
    return os.path.join(target, "model.tflite")


def _length(model, length):
    most = getattr(encoder_of(model), "max_sequence_length", None)
    if length is None:
        length = getattr(getattr(model, "preprocessor", None), "sequence_length", most)
        if length is not None and length > _ANY:
            raise ValueError(
                f"A {type(model).__name__} takes rows of any length, and LiteRT those of one; pass "
                "sequence_length."
            )
        return length
    if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= (most or 1):
        raise ValueError(
            f"sequence_length={length!r} has to be a whole number from 1 to the model's {most}."
        )
    return length
