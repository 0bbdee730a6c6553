"""`model.export`: Keras' own where its files run, and otherwise an error that names ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerasbert import backend, private_names

if TYPE_CHECKING:
    from typing import Any

    from kerasbert._typing import AnyPath

# What to use instead of a format that Keras 3.15 does not write right for these models. Those that
# it writes right are in `backend.keras_exports`. Its ONNX files hold an op that ONNX does not have
# (Erfc). Its OpenVINO files halve the weights' precision. On JAX and PyTorch the other formats fail
# because rows can have any length.
OURS = {
    "tf_saved_model": "kerasbert.export_serving(model, folder), tokens_only=True for token ids",
    "onnx": "kerasbert.export_onnx(model, folder)",
    "litert": "kerasbert.export_litert(model, folder)",
    "openvino": "kerasbert.export_openvino(model, folder)",
}


class KerasExport:
    """Mixin, before Keras' model among the bases."""

    def export(self, filepath: AnyPath, format: str = "tf_saved_model", **kwargs: Any) -> str:
        """Write a graph from token ids on with Keras' own exporter; see `keras.Model.export`.

        `kerasbert.export_serving`, `export_onnx`, `export_litert` and `export_openvino` do so on
        every backend, from raw texts or with the tokenizer's files, and check what they write.

        Args:
            filepath: string. The file or folder to write.
            format: "tf_saved_model" or "litert" on TensorFlow, "torch" on PyTorch.
            **kwargs: as in `keras.Model.export`.

        Raises:
            ValueError: for a format that Keras writes wrong of these models.
        """
        if format in OURS and format not in backend.keras_exports():
            raise ValueError(
                f"model.export(format={format!r}) on {backend.name()} writes no file of this model "
                f"that runs; use {OURS[format]}."
            )
        if not private_names.was_called(self):
            self(self.input)  # Keras asks for a call, although it knows the shapes.
        return super().export(filepath, format=format, **kwargs)
