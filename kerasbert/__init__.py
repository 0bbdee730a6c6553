"""BERT in Keras 3: pretraining, fine-tuning, every checkpoint of the family, and serving."""

import os

# PyTorch's threads busy-wait by default and starve those of tf.data: seen 12 times slower on 2
# cores. It counts where kerasbert is imported before torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from kerasbert import layers, metrics, models, optimizers, tasks, tokenizers  # noqa: E402
from kerasbert._memory import keep_freed_memory  # noqa: E402
from kerasbert.converter import convert  # noqa: E402
from kerasbert.export.serving import export_serving  # noqa: E402
from kerasbert.presets import builtin_presets  # noqa: E402
from kerasbert.tasks.pretrain import pretrain  # noqa: E402
from kerasbert.upload import upload_preset  # noqa: E402
from kerasbert.vocabulary import vocab  # noqa: E402

keep_freed_memory()

__version__ = "0.1.0"

__all__ = [
    "builtin_presets",
    "convert",
    "export_serving",
    "layers",
    "metrics",
    "models",
    "optimizers",
    "pretrain",
    "tasks",
    "tokenizers",
    "upload_preset",
    "vocab",
]
