"""Export for serving: a SavedModel that takes raw strings, and graphs that take token ids."""

from kerasbert.base import host  # noqa: F401
from kerasbert.export.litert import export_litert as export_litert
from kerasbert.export.onnx import export_onnx as export_onnx
from kerasbert.export.onnx import export_openvino as export_openvino
from kerasbert.export.serving import export_serving as export_serving
from kerasbert.export.web import export_web as export_web
