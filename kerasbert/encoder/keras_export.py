"""`model.export`: Keras' exporter for the formats that work with these models.

Errors for other formats name kerasbert's exporter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerasbert import backend
from kerasbert.base import keras_internals

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import AnyPath

# Alternatives for the formats of Keras 3.15, except `backend.KERAS_EXPORTS`: its ONNX files use
# Erfc, which ONNX lacks, its OpenVINO files halve the weights' precision, and on JAX and PyTorch
# others fail for rows of any length.
OURS = {
    "tf_saved_model": "kerasbert.export_serving(model, folder), tokens_only=True for token ids",
    "onnx": "kerasbert.export_onnx(model, folder)",
    "litert": "kerasbert.export_litert(model, folder)",
    "openvino": "kerasbert.export_openvino(model, folder)",
}


class KerasExport:
    """Mixin with `export`; must precede Keras' model."""

    def export(self, filepath: AnyPath, format: str = "tf_saved_model", **kwargs: Any) -> str:
        """Write a graph that takes token ids, with Keras' exporter; see `keras.Model.export`.

        `kerasbert.export_serving`, `export_onnx`, `export_litert` and `export_openvino` work on
        every backend, from raw texts or with the tokenizer's files, and check their output.

        Args:
            filepath: the file or folder to write.
            format: "tf_saved_model" or "litert" on TensorFlow, "torch" on PyTorch.
            **kwargs: as in `keras.Model.export`.

        Raises:
            ValueError: for a format that Keras writes incorrectly for these models.
        """
        if format in OURS and format not in backend.KERAS_EXPORTS:
            raise ValueError(
                f"model.export(format={format!r}) on {backend.name()} cannot write a working file "
                f"of this model; use {OURS[format]}."
            )
        if not keras_internals.was_called(self):
            self(self.input)  # Keras' exporter needs a called model.
        return super().export(filepath, format=format, **kwargs)
