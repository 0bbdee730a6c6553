"""BERT in Keras 3: pretraining, fine-tuning, every checkpoint of the family, and serving."""

import os
import sys
from typing import TYPE_CHECKING

# After a product PyTorch's threads wait for the next one. By default they busy-wait for 3 ms and
# more, and starve those of tf.data: seen 12 times slower on 2 cores. Asleep they wake late: one
# short text takes twice as long. So they watch for about 0.1 ms, and sleep then. OpenMP of another
# make than GNU's knows no such number, and sleeps. It counts for a later import of torch alone.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

from kerasbert import _process  # noqa: E402, F401  Its hooks see every fork from here on.
from kerasbert._lazy import load_models, load_module  # noqa: E402
from kerasbert._memory import keep_freed_memory  # noqa: E402
from kerasbert._triton import import_triton  # noqa: E402

__version__ = "0.1.0"

# Type checkers and editors read these imports; nothing runs them.
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
    )
    from kerasbert.converter import convert
    from kerasbert.export.litert import export_litert
    from kerasbert.export.onnx import export_onnx, export_openvino
    from kerasbert.export.serving import export_serving
    from kerasbert.export.web import export_web
    from kerasbert.loading.names import builtin_presets
    from kerasbert.measuring.bench import bench
    from kerasbert.search.index import SearchIndex
    from kerasbert.training.advise import advise
    from kerasbert.training.evaluation import evaluate, predict
    from kerasbert.training.finetune import finetune
    from kerasbert.training.predict_corpus import predict_corpus, read_predictions
    from kerasbert.training.pretrain import pretrain
    from kerasbert.upload import upload_preset
    from kerasbert.vocabulary import vocab

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
]

# The modules of the public functions. The other public names are modules themselves.
_FUNCTIONS = {
    "SearchIndex": "search.index",
    "advise": "training.advise",
    "bench": "measuring.bench",
    "builtin_presets": "loading.names",
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

# Type checkers would otherwise accept any name.
if not TYPE_CHECKING:

    def __getattr__(name):
        if name in __all__:
            value = load_module(_FUNCTIONS.get(name, name))
            if name in _FUNCTIONS:
                value = globals()[name] = getattr(value, name)
            load_models()
            return value
        # With both, Python names the nearest one.
        message = f"module 'kerasbert' has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=sys.modules[__name__])


def __dir__():
    return sorted({*globals(), *__all__})


keep_freed_memory()  # First: the backend that the next ones may import keeps more.
import_triton()
if "keras" in sys.modules:
    load_models()
