"""ERNIE: BERT with embeddings of pre-training tasks. Sun et al. 2020, arXiv 1907.12412.

Models run with the embedding of task 0, transformers' default, which is added to every segment
embedding. Written checkpoints have the sum alone.
"""

import dataclasses

from kerasbert.families import bert
from kerasbert.families.settings import Family


def _constants(config):
    if not config.get("use_task_id"):
        return {}
    return {
        "embeddings.token_type_embeddings.weight": "embeddings.task_type_embeddings.weight",
    }


FAMILIES = {
    "ernie": Family(),
}

TABLES = {
    "ernie": dataclasses.replace(
        bert.TABLES["bert"],
        classes="Ernie",
        prefix="ernie.",
        constants=_constants,
        write=lambda settings: {"use_task_id": False},
    ),
}
