"""BERT in Keras 3: pretraining, fine-tuning, every checkpoint of the family, and serving."""

import os
import sys

# PyTorch's threads busy-wait by default and starve those of tf.data: seen 12 times slower on 2
# cores. It counts where kerasbert is imported before torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from kerasbert._memory import keep_freed_memory  # noqa: E402
from kerasbert._triton import import_triton  # noqa: E402

# The command chooses a backend before Keras is imported, and helps and completes without it.
if os.path.basename(sys.argv[0]) not in ("kerasbert", "kerasbert.exe"):
    import_triton()
    from kerasbert import (
        data,
        distribution,
        layers,
        losses,
        metrics,
        models,
        optimizers,
        preprocessors,
        presets,
        tasks,
        tokenizers,
        visualize,
    )
    from kerasbert.converter import convert
    from kerasbert.export.litert import export_litert
    from kerasbert.export.onnx import export_onnx, export_openvino
    from kerasbert.export.serving import export_serving
    from kerasbert.presets import builtin_presets
    from kerasbert.tasks.evaluation import evaluate, predict
    from kerasbert.tasks.finetune import finetune
    from kerasbert.tasks.pretrain import pretrain
    from kerasbert.upload import upload_preset
    from kerasbert.vocabulary import vocab

keep_freed_memory()

__version__ = "0.1.0"

__all__ = [
    "builtin_presets",
    "convert",
    "data",
    "distribution",
    "evaluate",
    "export_litert",
    "export_onnx",
    "export_openvino",
    "export_serving",
    "finetune",
    "layers",
    "losses",
    "metrics",
    "models",
    "optimizers",
    "predict",
    "preprocessors",
    "presets",
    "pretrain",
    "tasks",
    "tokenizers",
    "upload_preset",
    "visualize",
    "vocab",
]
