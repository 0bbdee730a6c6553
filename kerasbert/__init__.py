"""BERT in Keras 3: pretraining, fine-tuning, every checkpoint of the family, and serving."""

import importlib
import os
import sys

# After a product PyTorch's threads wait for the next one. By default they busy-wait for 3 ms and
# more, and starve those of tf.data: seen 12 times slower on 2 cores. Asleep they wake late: one
# short text takes twice as long. So they watch for about 0.1 ms, and sleep then. OpenMP of another
# make than GNU's knows no such number, and sleeps. It counts for a later import of torch alone.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

from kerasbert import _process  # noqa: E402, F401  Its hooks see every fork from here on.
from kerasbert._lazy import load_with_keras  # noqa: E402
from kerasbert._memory import keep_freed_memory  # noqa: E402
from kerasbert._triton import import_triton  # noqa: E402

__version__ = "0.1.0"

# Where each public name is; it is imported when it is first used.
_MODULES = (
    "data",
    "distribution",
    "layers",
    "lineage",
    "losses",
    "samplers",
    "metrics",
    "models",
    "optimizers",
    "preprocessors",
    "presets",
    "search",
    "tasks",
    "tokenizers",
    "visualize",
)
_FUNCTIONS = {
    "SearchIndex": "search.index",
    "advise": "training.advise",
    "bench": "measuring.bench",
    "builtin_presets": "presets",
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
    "vocab": "vocabulary",
}

__all__ = sorted([*_MODULES, *_FUNCTIONS])


def __getattr__(name):
    if name in _MODULES:
        return importlib.import_module(f"kerasbert.{name}")
    if name in _FUNCTIONS:
        globals()[name] = getattr(importlib.import_module(f"kerasbert.{_FUNCTIONS[name]}"), name)
        return globals()[name]
    # With both, Python names the nearest one.
    message = f"module 'kerasbert' has no attribute {name!r}"
    raise AttributeError(message, name=name, obj=sys.modules[__name__])


def __dir__():
    return sorted({*globals(), *__all__})


keep_freed_memory()  # First: the backend that the next ones may import keeps more.
import_triton()
load_with_keras()
