"""Commands for data tasks: `tasks`, `finetune`, `evaluate` and `predict`."""

import functools
import os
from enum import StrEnum
from typing import Annotated

import typer
from rich.table import Table

from kerasbert.base.strict_json import to_json
from kerasbert.cli.app import (
    ENCODING,
    BackendOption,
    BeamOption,
    EncodingOption,
    JsonOption,
    PrecisionOption,
    RunnerOption,
    app,
    command,
    label_columns,
    show,
    text_columns,
)
from kerasbert.cli.options import takes_options
from kerasbert.kinds import kinds_with
from kerasbert.training.finetune_settings import FinetuneSettings

_HEADS = [kind.name for kind in kinds_with("data")]
Head = StrEnum("Head", {name: name for name in _HEADS})

TaskOption = Annotated[
    str | None, typer.Option(help="Built-in task; `kerasbert tasks` lists them.")
]
ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Model to use: an output folder of `finetune`, a handle or a preset."
    ),
]
BatchOption = Annotated[int, typer.Option(min=1, help="Examples per batch.")]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Maximum number of examples.")]


_own = functools.partial(typer.Option, rich_help_panel="Your own files")


@app.command()
def tasks(as_json: JsonOption = False):
    """List the built-in tasks of `finetune`, `evaluate` and `predict`.

    \b
    Examples:
      kerasbert tasks
      kerasbert tasks --json
    """
    with command():
        from kerasbert.tasks import builtin_tasks

        found = builtin_tasks().values()
    if as_json:
        print(to_json([task.as_dict() for task in found], indent=1, ensure_ascii=False))
        return
    table = Table("task", "title", "kind", "score", "splits", "license", "page")
    for task in found:
        source = task.source
        table.add_row(
            task.name,
            task.title,
            task.head,
            task.main_metric,
            " ".join(task.splits),
            source.license or "see its page",
            source.page,
        )
    show(table)


@app.command()
@takes_options(FinetuneSettings)
def finetune(
    preset: Annotated[
        str, typer.Argument(metavar="PRESET", help="Preset name, handle or directory.")
    ],
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="Output folder.")],
    task: TaskOption = None,
    train: Annotated[
        str | None,
        _own(help="Training file: .csv .tsv .jsonl .json .parquet .xlsx, or one word per line."),
    ] = None,
    dev: Annotated[
        str | None, _own(help="Validation file; defaults to --dev-share of --train.")
    ] = None,
    test: Annotated[
        str | None, _own(help="File to predict, and to score if it has labels.")
    ] = None,
    head: Annotated[
        Head,
        _own(
            metavar="KIND",
            help=f"{', '.join(_HEADS[:-1])} or {_HEADS[-1]}.",
        ),
    ] = Head.text_classifier,
    text: Annotated[str | None, _own(help="Column of the text, question, prompt or words.")] = None,
    text_b: Annotated[str | None, _own(help="Column of the second text or the context.")] = None,
    label: Annotated[
        str | None, _own(help="Column of the labels; or a,b,c with 0 and 1 for each class.")
    ] = None,
    choices: Annotated[
        str | None, _own(help="Columns of the choices, as a,b,c, or one column of lists.")
    ] = None,
    choice_start: Annotated[str, _own(help="Column of the text that all choices start with.")] = "",
    id_column: Annotated[str, _own("--id", help="Column of the example ids.")] = "",
    encoding: Annotated[str | None, _own(help=ENCODING)] = None,
    metrics: Annotated[
        str | None, _own(help="Metrics, such as f1,accuracy; the first one selects the model.")
    ] = None,
    backend: BackendOption = None,
    as_json: JsonOption = False,
    *,
    read_options,
):
    """Fine-tune a preset on a task, search its settings, and keep the best model on dev.

    A built-in task runs with all settings of its paper, your own files with one
    setting unless you pass lists. An interrupted command resumes when run again.

    OUTPUT gets the model (a preset with its card), results.json and .csv,
    predictions in submission format, and plots.

    \b
    Examples:
      kerasbert finetune bert_base_en_uncased out --task rte --data glue_data
      kerasbert finetune bert_base_en_uncased out --task mrpc --epochs 3 \\
          --learning-rates 5e-5,2e-5 --batch-sizes 32 --seeds 0,1,2
      kerasbert finetune bert_tiny_en_uncased spam --train sms.csv
      kerasbert finetune hf://org/embedder spam --train few.csv --method setfit
      kerasbert finetune klue_bert_base_ko ner --head token_classifier \\
          --train train.conll --dev dev.conll
    """
    stopped = f"Stopped. Finished runs are kept in '{output}'; run the same command to resume."
    with command(backend, stopped):
        from kerasbert import presets
        from kerasbert.training.finetune import finetune
        from kerasbert.training.report import class_tables, grid_table, score_table

        presets.check(preset)  # An unknown preset raises an error before any file is read.
        given = read_options()
        columns = text_columns(text, text_b)
        own = {
            "columns": columns,
            "label": label_columns(label),
            "choices": None if choices is None else choices.split(","),
            "choice_start": choice_start,
            "id": id_column,
            "encoding": encoding,
            "metrics": None if metrics is None else metrics.split(","),
        }
        data = given.get("data")
        found = _task(task, data, {"train": train, "dev": dev, "test": test}, str(head), own)
        results = finetune(found, preset, output, **given)
    if as_json:
        print(to_json(results, ensure_ascii=False, indent=1))
        return
    if "part" in given:
        print(
            f"Part {given['part']}: {len(results['runs'])} runs. "
            "Run it without --part to combine all parts."
        )
        return
    if "grid" not in results:
        print(
            f"Runs of this process: {len(results['runs'])}. The last process to finish combines "
            f"all in '{output}'."
        )
        return
    grid = [grid_table(results)] if len(results["runs"]) > 1 else []
    show(*grid, score_table(results), *class_tables(results))
    print(f"The model, scores and predictions are in '{output}'. Next:")
    print(f"  kerasbert predict {results['model']} FILE")


@app.command()
def evaluate(
    model: ModelArgument,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA", help="File with labels, or folder of a task's official files."
        ),
    ] = None,
    task: TaskOption = None,
    split: Annotated[str, typer.Option(help="Split of a folder.")] = "dev",
    text: Annotated[str | None, typer.Option(help="Column of the text.")] = None,
    text_b: Annotated[
        str | None, typer.Option(help="Column of the second text, for text pairs.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Column of the labels; or a,b,c with 0 and 1 for each class.")
    ] = None,
    encoding: EncodingOption = None,
    batch_size: BatchOption = 32,
    limit: LimitOption = None,
    backend: BackendOption = None,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
):
    """Evaluate a model on labeled examples.

    \b
    Examples:
      kerasbert evaluate out/model new.csv
      kerasbert evaluate out/model glue_data --split dev
      kerasbert evaluate hf://org/model glue_data --task sst2
    """
    with command(backend):
        from kerasbert.training.evaluation import evaluate
        from kerasbert.training.report import class_tables, score_table

        results = evaluate(
            model,
            data,
            task=task,
            split=split,
            columns=text_columns(text, text_b),
            label=label_columns(label),
            encoding=encoding,
            batch_size=batch_size,
            precision=None if precision is None else str(precision),
            limit=limit,
        )
    if as_json:
        print(to_json(results, ensure_ascii=False, indent=1))
        return
    show(score_table(results), *class_tables(results))
    print(_count(results["examples"], limit))


@app.command()
def predict(
    model: ModelArgument,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="Table, .txt with one text per line, or folder of a task's official files; "
            "with --rows or --runner, a folder or quoted pattern of tables.",
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="Folder for the submission file; prints by default.")
    ] = None,
    task: TaskOption = None,
    split: Annotated[str, typer.Option(help="Split of a folder.")] = "test",
    text: Annotated[str | None, typer.Option(help="Column of the text.")] = None,
    text_b: Annotated[
        str | None, typer.Option(help="Column of the second text, for text pairs.")
    ] = None,
    encoding: EncodingOption = None,
    batch_size: BatchOption = 32,
    limit: LimitOption = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Write shards of at most this many examples; defaults to 10000 with --runner.",
        ),
    ] = None,
    runner: RunnerOption = None,
    beam: BeamOption = None,
    backend: BackendOption = None,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
):
    """Write a model's predictions: ids, answers and their probabilities.

    \b
    Examples:
      kerasbert predict out/model new.csv
      kerasbert predict out/model messages.txt > answers.tsv
      kerasbert predict out/model glue_data --output handed_in
      kerasbert predict out/model glue_data --task mnli_mismatched --output handed_in
      kerasbert predict out/model 'texts/*.jsonl' --output answers --runner DirectRunner
    """
    settings = {
        "task": task,
        "encoding": encoding,
        "batch_size": batch_size,
        "precision": None if precision is None else str(precision),
    }
    if rows is not None or runner is not None or beam:
        with command(backend, "Stopped; run the same command again to resume."):
            from kerasbert.data.beam import beam_options
            from kerasbert.training.predict_corpus import predict_corpus

            options = beam_options(runner, beam)
            if data is None or output is None:
                raise ValueError(
                    "--rows and --runner write shards: pass DATA, a folder or quoted pattern, and "
                    "--output, a folder."
                )
            if limit is not None:
                raise ValueError("--limit cannot be used with --rows or --runner; omit it.")
            settings |= {"rows": rows or 10_000, "columns": text_columns(text, text_b)}
            count = predict_corpus(model, data, output, options=options, **settings)
        print(to_json({"count": count}) if as_json else f"{count:,} predictions -> {output}")
        return
    with command(backend):
        from kerasbert.training.evaluation import predict

        results = predict(
            model,
            data,
            output,
            split=split,
            columns=text_columns(text, text_b),
            limit=limit,
            **settings,
        )
    if as_json:
        print(to_json(results, ensure_ascii=False, indent=1))
    elif output is not None:
        for path in results["files"]:
            print(path)
    else:
        ids, rows = results["ids"], results["predictions"]
        # A document's sentences have no ids, so the rows are numbered.
        names = ids if len(ids) == len(rows) else range(len(rows))
        probabilities = results["probabilities"] or [None] * len(rows)
        for name, row, probable in zip(names, rows, probabilities):
            cells = [name, row if isinstance(row, str) else to_json(row, ensure_ascii=False)]
            if probable is not None:
                cells.append(f"{_largest(probable):.4f}")
            print(*cells, sep="\t")
    if limit is not None:
        typer.echo(_count(len(results["ids"]), limit), err=True)


def _largest(probabilities):
    """Return the predicted class's probability: the number itself, or the largest of several."""
    if isinstance(probabilities, dict):
        probabilities = probabilities.values()
    return probabilities if isinstance(probabilities, float) else max(probabilities)


def _count(examples, limit):
    """Return a sentence with the number of examples, which says whether `limit` was reached.

    >>> _count(7, None), _count(5, 5)
    ('7 examples.', 'Only the first 5 examples (--limit).')
    """
    is_cut = limit is not None and examples >= limit
    return (
        f"Only the first {examples:,} examples (--limit)." if is_cut else f"{examples:,} examples."
    )


def _task(task, data, files, head, own):
    """Return the built-in or file task that the options name."""
    from kerasbert.tasks import file_task, get_task

    has_files = any(path is not None for path in files.values())
    if task is None and not has_files:
        raise ValueError(
            "No task: pass --task with a name (`kerasbert tasks` lists them), or --train with your "
            "own file."
        )
    if task is None:
        if data is not None:
            raise ValueError("--data is the folder of a --task; pass your own files with --train.")
        own = {name: value for name, value in own.items() if value}
        first = next(path for path in files.values() if path is not None)
        return file_task(**files, head=head, name=_name(first), **own)
    found = get_task(task)
    encoding = own.pop("encoding") if has_files else None
    for name, value in own.items():
        if value:
            option = {"columns": "text", "choice_start": "choice-start"}.get(name, name)
            raise ValueError(
                f"--{option} is for your own files, but the task '{task}' defines it; omit it."
            )
    return found.with_files(encoding, **files) if has_files else found


def _name(path):
    """Name a file task after its file, or after its folder if the file is train, dev or test.

    >>> _name("data/films.csv"), _name("films/train.csv"), _name("train.csv")
    ('films', 'films', 'train')
    """
    name = os.path.splitext(os.path.basename(path))[0]
    folder = os.path.basename(os.path.dirname(path))
    return folder if folder.strip(".") and name in ("train", "dev", "test") else name
