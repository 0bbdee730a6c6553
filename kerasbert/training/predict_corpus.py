"""Predictions for a whole corpus as JSON lines, also with Apache Beam."""

from __future__ import annotations

import functools
import json
import os
from typing import TYPE_CHECKING

from kerasbert.base.errors import check_whole
from kerasbert.base.strict_json import to_json
from kerasbert.data.beam import cached_per_worker, need_beam
from kerasbert.data.shards import read_shards, weights_digest, write_shards
from kerasbert.heads.base.data_task import Task
from kerasbert.training.evaluation import open_model, read_data

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from kerasbert.base.aliases import AnyPath, Corpus

_ENDINGS = (".jsonl",)


def predict_corpus(
    model: AnyPath,
    corpus: Corpus,
    output: AnyPath,
    *,
    task: Any = None,
    columns: Sequence[str] | None = None,
    encoding: str | None = None,
    precision: str | None = None,
    rows: int = 10_000,
    batch_size: int = 32,
    options: Any = None,
) -> dict[str, Any]:
    """Predict a corpus, and write shards of JSON lines, each atomically.

    A repeated call writes only missing or damaged shards. `predictions-00000-00000.jsonl` is the
    first shard of the first file. Lines have `file`, `id`, `prediction` and any `probabilities` of
    `predict`.

    Args:
        model: string, as for `kerasbert.predict`; without `options` also a model.
        corpus: path of a file or a folder, a pattern, or a list of these. Files are tables, or one
            text per line; each is read into a worker's memory.
        output: path of the folder.
        task, columns, encoding, precision: as for `predict`.
        rows: maximum number of examples per shard, which are batched by length.
        batch_size: int.
        options: `apache_beam.options.pipeline_options.PipelineOptions`, which name Beam's runner.
            Paths are then Beam's (`gs://`, `s3://`, `hdfs://`). `None` runs without Beam.

    Returns:
        The number of examples.

    Raises:
        ValueError: if a file cannot be read, or the folder has predictions of another model,
            settings or corpus.
        ImportError: if Beam is not installed.

    >>> import tempfile
    >>> from kerasbert.models import BertBackbone, BertTextClassifier
    >>> from kerasbert.models import BertTextClassifierPreprocessor, BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]
    >>> backbone = BertBackbone(
    ...     vocabulary_size=7, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4
    ... )
    >>> preprocessor = BertTextClassifierPreprocessor(BertTokenizer(tokens))
    >>> model = BertTextClassifier(backbone, labels=["no", "yes"], preprocessor=preprocessor)
    >>> folder = tempfile.mkdtemp()
    >>> with open(os.path.join(folder, "texts.txt"), "w") as file:
    ...     _ = file.write("good bad\\nbad\\n")
    >>> predict_corpus(model, os.path.join(folder, "texts.txt"), os.path.join(folder, "answers"))
    2
    >>> [row["id"] for row in read_predictions(os.path.join(folder, "answers"))]
    [0, 1]
    """
    check_whole("rows", rows)
    check_whole("batch_size", batch_size)
    if options is not None:
        need_beam()
        if not isinstance(model, (str, os.PathLike)):
            raise ValueError(
                "A model in memory exists only in this process; save it with save_to_preset, and "
                "pass a folder that all workers can read."
            )
    opened, task, _ = open_model(model, task, precision)
    settings = {"columns": columns, "encoding": encoding, "rows": rows}
    described = {**_describe(opened), "task": task.as_dict()}
    if options is None:
        make = functools.partial(_answered, opened, task, size=batch_size)
    else:
        make = functools.partial(
            _answered_by_beam, os.fspath(model), to_json(described), precision, size=batch_size
        )
    done = write_shards(
        corpus,
        output,
        what="predictions",
        by="predict_corpus",
        model=json.loads(to_json(described)),  # As stored in the manifest.
        settings=settings,
        endings=_ENDINGS,
        read=functools.partial(_read, task=task, settings=settings),
        make=make,
        fits=functools.partial(_fits, task=task),
        options=options,
    )
    return done["count"]


def read_predictions(folder: AnyPath) -> Iterator[dict[str, Any]]:
    """Yield the rows that `predict_corpus` wrote, as dicts in the order of the corpus.

    The sizes of all files are verified first, and the hash of a shard just before its rows are
    yielded.

    Raises:
        ValueError: if the folder is incomplete, or if a shard is missing or damaged. Repeat the
            call of `predict_corpus` to rebuild it.
    """
    shards = read_shards(
        folder,
        what="predictions",
        by="predict_corpus",
        endings=lambda settings: _ENDINGS,
        decode=_decoded,
    )
    for (rows,) in shards:
        yield from rows


def _decoded(paths, settings):
    with open(paths[0], encoding="utf-8") as file:
        return (_rows(file),)


def _rows(lines):
    rows = [json.loads(line) for line in lines]
    if not all(isinstance(row, dict) and {"file", "id", "prediction"} <= set(row) for row in rows):
        raise ValueError("a line is not a prediction")
    return rows


def _fits(contents, part, task):
    """Return whether a shard's file (bytes) has a line for each example of a part."""
    name, first, examples = part
    try:
        rows = _rows(contents[0].splitlines())
    except (ValueError, RecursionError):
        return False
    ids = [row["id"] for row in rows]
    numbers = list(range(first, first + task.count(examples)))
    return ids in (examples.ids, numbers) and all(row["file"] == name for row in rows)


def _read(name, path, task, settings):
    """Yield `(number of rows, part)` for each shard of a file."""
    examples = read_data(
        task, path, None, "test", settings["columns"], None, settings["encoding"], None
    )
    first = 0
    for start in range(0, len(examples), settings["rows"]):
        part = examples.take(slice(start, start + settings["rows"]))
        count = task.count(part)
        yield count, (name, first, part)
        first += count


def _answered(model, task, shard, part, size):
    """Predict the examples of a part, and yield the bytes of its shard's file."""
    name, first, examples = part
    predictions, probabilities = task.answers(model, examples, size)
    # Sentences of documents have no ids, so they are numbered.
    has_ids = len(examples.ids) == len(predictions)
    ids = examples.ids if has_ids else range(first, first + len(predictions))
    lines = []
    for place, (id, prediction) in enumerate(zip(ids, predictions)):
        row = {"file": name, "id": id, "prediction": prediction}
        if probabilities is not None:
            row["probabilities"] = probabilities[place]
        lines.append(to_json(row, ensure_ascii=False) + "\n")
    # Lone surrogates become JSON escapes.
    yield "".join(lines).encode("utf-8", "backslashreplace")


def _answered_by_beam(source, described, precision, shard, part, size):
    yield from _answered(*_loaded(source, described, precision), shard, part, size)


@cached_per_worker
def _loaded(source, described, precision):
    described = json.loads(described)
    model, task, _ = open_model(source, Task.from_dict(described.pop("task")), precision)
    if _describe(model) != described:
        raise ValueError(
            f"'{source}' is a different model on this worker; pass a folder that all workers share."
        )
    return model, task


def _describe(model):
    return {"weights_sha256": weights_digest(model), "computes_in": model.compute_dtype}
