"""`export_litert`: export of a graph from token ids to outputs for LiteRT (TensorFlow Lite)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kerasbert.base import runtimes
from kerasbert.base.parts import encoder_of
from kerasbert.export.token_graphs import exported

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import AnyPath
    from kerasbert.text.subword import SubwordTokenizer

# An encoder with more positions than this has no position table, and so no maximum length.
_ANY = 2**20


def export_litert(
    model: Any,
    directory: AnyPath,
    precision: str = "float32",
    sequence_length: int | None = None,
    tokenizer: SubwordTokenizer | None = None,
) -> str:
    """Write `model.tflite` with the tokenizer's files, and check it with LiteRT.

    Inputs, outputs, tokenizer files and errors are those of `export_onnx`, but each row is padded
    to `sequence_length` tokens, because LiteRT has no attention op for variable lengths. The batch
    size is free, and the only signature is `serving_default`. Models beyond LiteRT's built-in ops,
    such as those with a BiLSTM, cause an error.

    Args:
        precision: "float32", or "int8": kernels are int8, and their inputs are quantized at run
            time (LiteRT's "dynamic range").
        sequence_length: int. `None` means that of the preprocessor, or without a preprocessor the
            encoder's number of positions.

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
                f"A {type(model).__name__} takes rows of any length, but LiteRT needs a fixed one; "
                "pass sequence_length."
            )
        return length
    if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= (most or 1):
        raise ValueError(
            f"sequence_length={length!r} must be a whole number from 1 to the model's {most}."
        )
    return length
