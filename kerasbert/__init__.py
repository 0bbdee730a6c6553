"""BERT in Keras 3: pretraining, fine-tuning, checkpoints of the whole family, and serving."""

import sys
from typing import TYPE_CHECKING

from kerasbert.base import process as _process  # noqa: F401  Installs its fork hooks.
from kerasbert.base.lazy import load_models, load_module

__version__ = "0.1.0"

# For type checkers and editors; never executed.
if TYPE_CHECKING:
    from kerasbert import (
        data,
        distribution,
        layers,
        lineage,
        losses,
        metrics,
        models,
        optimizers,
        preprocessors,
        presets,
        samplers,
        search,
        tasks,
        tokenizers,
        visualize,
        wrappers,
    )
    from kerasbert.checkpoints.names import builtin_presets
    from kerasbert.converter import convert
    from kerasbert.data.vocabulary import vocab
    from kerasbert.export.litert import export_litert
    from kerasbert.export.onnx import export_onnx, export_openvino
    from kerasbert.export.serving import export_serving
    from kerasbert.export.web import export_web
    from kerasbert.measuring.bench import bench
    from kerasbert.search.index import SearchIndex
    from kerasbert.training.advise import advise
    from kerasbert.training.evaluation import evaluate, predict
    from kerasbert.training.finetune import finetune
    from kerasbert.training.predict_corpus import predict_corpus, read_predictions
    from kerasbert.training.pretrain import pretrain
    from kerasbert.upload import upload_preset

__all__ = [
    "SearchIndex",
    "advise",
    "bench",
    "builtin_presets",
    "convert",
    "data",
    "distribution",
    "evaluate",
    "export_litert",
    "export_onnx",
    "export_openvino",
    "export_serving",
    "export_web",
    "finetune",
    "layers",
    "lineage",
    "losses",
    "metrics",
    "models",
    "optimizers",
    "predict",
    "predict_corpus",
    "preprocessors",
    "presets",
    "pretrain",
    "read_predictions",
    "samplers",
    "search",
    "tasks",
    "tokenizers",
    "upload_preset",
    "visualize",
    "vocab",
    "wrappers",
]

# Public functions and classes, with their modules. The other public names are modules themselves.
_FUNCTIONS = {
    "SearchIndex": "search.index",
    "advise": "training.advise",
    "bench": "measuring.bench",
    "builtin_presets": "checkpoints.names",
    "convert": "converter",
    "evaluate": "training.evaluation",
    "export_litert": "export.litert",
    "export_onnx": "export.onnx",
    "export_openvino": "export.onnx",
    "export_serving": "export.serving",
    "export_web": "export.web",
    "finetune": "training.finetune",
    "predict": "training.evaluation",
    "predict_corpus": "training.predict_corpus",
    "pretrain": "training.pretrain",
    "read_predictions": "training.predict_corpus",
    "upload_preset": "upload",
    "vocab": "data.vocabulary",
}

# Type checkers would otherwise accept any name.
if not TYPE_CHECKING:

    def __getattr__(name):
        if name in __all__:
            value = load_module(_FUNCTIONS.get(name, name))
            if name in _FUNCTIONS:
                value = globals()[name] = getattr(value, name)
            load_models()
            return value
        # With `name` and `obj`, Python suggests the closest name.
        message = f"module 'kerasbert' has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=sys.modules[__name__])


def __dir__():
    return sorted({*globals(), *__all__})


if "keras" in sys.modules:
    load_models()
