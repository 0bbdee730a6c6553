"""Data tasks: benchmarks of the papers, and your own files.

    task = kerasbert.tasks.get_task("rte")            # builtin_tasks() returns all of them
    train = task.read("train", "glue_data")           # or with `datasets`: task.read("train")
    dev = task.read("dev", "glue_data")
    model = task.model_class.from_preset("bert_base_en_uncased", **task.model_settings())
    model.fit(train.x, train.y, callbacks=[task.score_callback(dev)])  # val_accuracy
    predictions = task.predict(model, dev)
    task.score(dev, predictions)                      # {"accuracy": ...}; see task.published
    task.write("handed_in", dev, predictions)         # RTE.tsv

`file_task(train="a.csv", dev="b.csv", columns=["text"], label="label")` makes a task of your files.
`kerasbert.finetune(task, preset, output)` runs all of this, with the paper's settings.
"""

from __future__ import annotations

from kerasbert.base import host  # noqa: F401
from kerasbert.base.errors import did_you_mean
from kerasbert.heads.base.data_task import Task
from kerasbert.heads.base.examples import Examples
from kerasbert.heads.base.task_fields import Published, Settings, Source
from kerasbert.tasks import conll, glue, japanese, korean, squad, superglue, swag
from kerasbert.tasks.own import file_task
from kerasbert.tasks.submission import zip_submission
from kerasbert.tasks.treebank import read_conllu

__all__ = [
    "Examples",
    "Published",
    "Settings",
    "Source",
    "Task",
    "builtin_tasks",
    "file_task",
    "get_task",
    "read_conllu",
    "zip_submission",
]


def builtin_tasks() -> dict[str, Task]:
    """Return the built-in tasks, a dict of name to `Task`.

    >>> builtin_tasks()["stsb"].metrics
    ('spearman', 'pearson')
    """
    groups = (glue, superglue, squad, swag, conll, korean, japanese)
    return {task.name: task for group in groups for task in group.TASKS}


def get_task(name: str) -> Task:
    """Return a task by name, ignoring case and punctuation.

    >>> get_task("STS-B").name
    'stsb'

    Raises:
        ValueError: for an unknown name; the message suggests the closest ones.
    """

    def plain(text):
        return "".join(filter(str.isalnum, str(text).lower()))

    tasks = {plain(key): task for key, task in builtin_tasks().items()}
    if plain(name) not in tasks:
        known = f"; known are {', '.join(builtin_tasks())}."
        hint = did_you_mean(plain(name), tasks, known, 3, show=lambda key: tasks[key].name)
        raise ValueError(f"Unknown task '{name}'{hint}")
    return tasks[plain(name)]
