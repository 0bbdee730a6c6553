"""`zip_submission`: write the zip file for a benchmark's leaderboard."""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from typing import TYPE_CHECKING

from kerasbert.base.errors import check_choice
from kerasbert.base.files import new_file
from kerasbert.base.paths import inside
from kerasbert.data.tables import json_lines
from kerasbert.data.text_files import read_text
from kerasbert.tasks import glue, superglue

if TYPE_CHECKING:
    from kerasbert.base.aliases import AnyPath

_BENCHMARKS = {"glue": glue.TASKS, "superglue": superglue.TASKS}


def zip_submission(folder: AnyPath, path: AnyPath, benchmark: str = "superglue") -> str:
    """Put the predictions for all tasks of a benchmark into the zip file of its leaderboard.

        for task in ("boolq", "cb", ...):
            kerasbert.predict(f"{task}_runs/model", "super_glue_data", "handed_in", task=task)
        zip_submission("handed_in", "superglue.zip")

    Args:
        folder: folder with the official file of each task, such as "BoolQ.jsonl", as `Task.write`
            and `kerasbert.predict` write them. Other files are left out.
        path: the zip file to write; an existing file is replaced.
        benchmark: "glue" or "superglue".

    Returns:
        The path of the zip file.

    Raises:
        ValueError: if the file of a task is missing, empty, or has an example twice.

    Source: https://super.gluebenchmark.com/submit, https://gluebenchmark.com/submit
    """
    check_choice("benchmark", benchmark, _BENCHMARKS)
    folder, path = (os.path.expanduser(os.fspath(one)) for one in (folder, path))
    files = {task.submission: task for task in _BENCHMARKS[benchmark]}
    places = {name: inside(folder, name, folder) for name in files}
    missing = [name for name, place in places.items() if not os.path.isfile(place)]
    if missing:
        raise ValueError(
            f"The folder '{folder}' lacks {', '.join(missing)}; predict the test split of "
            f"{', '.join(files[name].name for name in missing)} into it."
        )
    for place in places.values():
        _check(place)
    with new_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, place in places.items():
            archive.write(place, name)
    return path


def _check(path):
    """Raise unless a file has predictions, one per example."""
    lines = read_text(path).split("\n")
    if path.endswith(".jsonl"):
        rows = list(json_lines(lines, f"'{path}'"))
        for number, row in rows:
            if not isinstance(row, dict) or "idx" not in row:
                raise ValueError(
                    f"'{path}', line {number} has no idx; predict the test split again."
                )
        ids = [row["idx"] for _, row in rows]
    else:
        ids = [line.partition("\t")[0] for line in lines[1:] if line]
    if not ids:
        raise ValueError(f"'{path}' has no predictions; predict the test split again.")
    for idx, count in Counter(map(str, ids)).items():
        if count > 1:
            raise ValueError(f"'{path}' has the idx {idx} twice; predict the test split again.")
