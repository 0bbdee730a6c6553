"""Commands on tasks: `tasks`, `finetune`, `evaluate` and `predict`."""

import functools
import os
from enum import StrEnum
from typing import Annotated

import typer
from rich.table import Table

from kerasbert._json import to_json
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
    numbers,
    settings,
    show,
    text_columns,
)
from kerasbert.kinds import kinds_with

# The kinds of heads that read data.
_HEADS = [kind.name for kind in kinds_with("tasks")]
Head = StrEnum("Head", {name: name for name in _HEADS})
Method = StrEnum("Method", {name: name for name in ("full", "lora", "frozen", "setfit")})

TaskOption = Annotated[
    str | None, typer.Option(help="A task of the papers; `kerasbert tasks` lists them.")
]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="What finetune left, a handle or a directory.")
]
BatchOption = Annotated[int, typer.Option(min=1, help="Examples at a time.")]
LimitOption = Annotated[int | None, typer.Option(min=1, help="The most examples.")]


_own = functools.partial(typer.Option, rich_help_panel="Your own files")
_grid = functools.partial(typer.Option, rich_help_panel="The search, lists such as 16,32")
_training = functools.partial(typer.Option, rich_help_panel="The training")


@app.command()
def tasks(as_json: JsonOption = False):
    """List the tasks that `finetune`, `evaluate` and `predict` know by name.

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
def finetune(
    preset: Annotated[
        str, typer.Argument(metavar="PRESET", help="A preset's name, a handle or a directory.")
    ],
    output: Annotated[
        str, typer.Argument(metavar="OUTPUT", help="The folder for all that comes out.")
    ],
    task: TaskOption = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="The folder of the task's official files; without it the `datasets` library "
            "gets them."
        ),
    ] = None,
    train: Annotated[
        str | None,
        _own(help="File to train on: .csv .tsv .jsonl .json .parquet .xlsx or words a line."),
    ] = None,
    dev: Annotated[
        str | None, _own(help="File to choose by; by default a tenth of --train.")
    ] = None,
    test: Annotated[
        str | None, _own(help="File to predict, and to score where it has labels.")
    ] = None,
    head: Annotated[
        Head,
        _own(
            metavar="KIND",
            help=f"{', '.join(_HEADS[:-1])} or {_HEADS[-1]}.",
        ),
    ] = Head.text_classifier,
    text: Annotated[
        str | None, _own(help="Column of the text, the question, the prompt or the words.")
    ] = None,
    text_b: Annotated[str | None, _own(help="Column of the second text, or the context.")] = None,
    label: Annotated[
        str | None, _own(help="Column of the labels; or a,b,c, of 0 and 1 for each class.")
    ] = None,
    choices: Annotated[
        str | None, _own(help="Columns of the choices: a,b,c, or one that has lists of them.")
    ] = None,
    choice_start: Annotated[str, _own(help="Column that all choices begin with.")] = "",
    id_column: Annotated[str, _own("--id", help="Column of the examples' names.")] = "",
    encoding: Annotated[str | None, _own(help=ENCODING)] = None,
    metrics: Annotated[str | None, _own(help="Scores; the first one chooses: f1,accuracy.")] = None,
    batch_sizes: Annotated[
        str | None, _grid(help="By default those of the task's paper; 32 for your own files.")
    ] = None,
    learning_rates: Annotated[
        str | None, _grid(help="By default what PRESET records; else likewise, or 3e-5.")
    ] = None,
    epochs: Annotated[str | None, _grid(help="Likewise; 3 for your own files.")] = None,
    record_rate: Annotated[
        bool,
        _grid(
            "--record-rate", help="Write the best learning rate into PRESET, a directory of ours."
        ),
    ] = False,
    seeds: Annotated[str, _grid(help="Every setting runs with each of them.")] = "0",
    sequence_length: Annotated[
        int | None, _training(min=1, help="The most tokens of a row.")
    ] = None,
    warmup: Annotated[
        float | None, _training(help="Share of the steps in which the rate rises.")
    ] = None,
    early_stopping: Annotated[
        int | None,
        _training(min=1, help="Stop after so many epochs that are no better; keep the best one."),
    ] = None,
    balanced: Annotated[
        bool, _training("--balanced", help="Let rare classes count as much as others.")
    ] = False,
    method: Annotated[
        Method | None,
        _training(
            metavar="METHOD",
            help="full, lora (adapters), frozen (the head alone) or setfit (for few labels).",
        ),
    ] = None,
    lora_rank: Annotated[
        int | None, _training(min=1, help="Train adapters of this rank, at higher rates.")
    ] = None,
    pairs: Annotated[
        str | None,
        _training(help="Of setfit: how many for each text, 20; or oversampling, unique, ..."),
    ] = None,
    dev_share: Annotated[
        float, _training(help="Of the training examples, where there is no dev.")
    ] = 0.1,
    limit: Annotated[
        int | None, _training(min=1, help="The most examples of each file, to try it out.")
    ] = None,
    model: Annotated[
        list[str] | None,
        _training("--set", help="A further argument of from_preset, such as doc_stride=64."),
    ] = None,
    part: Annotated[
        str | None,
        _grid(
            metavar="I/N",
            help="Only these runs, as 3/16; without it, then, what they made is used.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Remove the runs that are in OUTPUT.")
    ] = False,
    backend: BackendOption = None,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
):
    """Fine-tune a preset on a task, search its settings, and keep the best on dev.

    A task of the papers runs with all settings of its paper, your own files
    with one, unless you give lists. Stop it when you like: the same command
    goes on.

    OUTPUT gets the model (a preset with its card), results.json and .csv,
    predictions in the form that is handed in, and pictures.

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
    stopped = f"Stopped. What is done is kept in '{output}': the same command goes on from there."
    with command(backend, stopped):
        from kerasbert import presets
        from kerasbert.training.finetune import finetune
        from kerasbert.training.report import class_tables, grid_table, score_table

        presets.check(preset)  # Before files are read.
        lists = {
            "batch_sizes": numbers("--batch-sizes", batch_sizes, int),
            "learning_rates": numbers("--learning-rates", learning_rates, float),
            "epochs": numbers("--epochs", epochs, int),
            "seeds": numbers("--seeds", seeds, int),
        }
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
        found = _task(task, data, {"train": train, "dev": dev, "test": test}, str(head), own)
        results = finetune(
            found,
            preset,
            output,
            data=data,
            **lists,
            sequence_length=sequence_length,
            warmup=warmup,
            early_stopping=early_stopping,
            class_weights="balanced" if balanced else None,
            method=None if method is None else str(method),
            lora_rank=lora_rank,
            pairs=int(pairs) if pairs is not None and pairs.isdecimal() else pairs,
            precision=None if precision is None else str(precision),
            model=settings("--set", model),
            dev_share=dev_share,
            limit=limit,
            record_rate=record_rate,
            part=part,
            overwrite=overwrite,
        )
    if as_json:
        print(to_json(results, ensure_ascii=False, indent=1))
        return
    if part is not None:
        print(
            f"Part {part}: {len(results['runs'])} runs. The same without --part puts all together."
        )
        return
    if "grid" not in results:
        print(
            f"Runs of this process: {len(results['runs'])}. The last of the processes to end puts "
            f"all together in '{output}'."
        )
        return
    grid = [grid_table(results)] if len(results["runs"]) > 1 else []
    show(*grid, score_table(results), *class_tables(results))
    print(f"The model, its scores and its answers are in '{output}'. To go on:")
    print(f"  kerasbert predict {results['model']} FILE")


@app.command()
def evaluate(
    model: ModelArgument,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA", help="A file with labels, or the folder of a task's official files."
        ),
    ] = None,
    task: TaskOption = None,
    split: Annotated[str, typer.Option(help="Which split of a folder.")] = "dev",
    text: Annotated[str | None, typer.Option(help="Column of the text, if another one.")] = None,
    text_b: Annotated[str | None, typer.Option(help="Column of the second text, if so.")] = None,
    label: Annotated[
        str | None, typer.Option(help="Column of the labels; or a,b,c, of 0 and 1 for each class.")
    ] = None,
    encoding: EncodingOption = None,
    batch_size: BatchOption = 32,
    limit: LimitOption = None,
    backend: BackendOption = None,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
):
    """Score a model on examples with labels.

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
            help="A table, a .txt of a text a line, or the folder of a task's official files; "
            "with --rows or --runner a folder or a quoted pattern of tables.",
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="A folder for the file to hand in; by default it is shown.")
    ] = None,
    task: TaskOption = None,
    split: Annotated[str, typer.Option(help="Which split of a folder.")] = "test",
    text: Annotated[str | None, typer.Option(help="Column of the text, if another one.")] = None,
    text_b: Annotated[str | None, typer.Option(help="Column of the second text, if so.")] = None,
    encoding: EncodingOption = None,
    batch_size: BatchOption = 32,
    limit: LimitOption = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1, help="Write shards of so many examples; with --runner by default 10000."
        ),
    ] = None,
    runner: RunnerOption = None,
    beam: BeamOption = None,
    backend: BackendOption = None,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
):
    """Write what a model says of examples: names, answers, and their probabilities.

    \b
    Examples:
      kerasbert predict out/model new.csv
      kerasbert predict out/model messages.txt > answers.tsv
      kerasbert predict out/model glue_data --output handed_in
      kerasbert predict out/model glue_data --task mnli_mismatched --output handed_in
      kerasbert predict out/model 'texts/*.jsonl' --output answers --runner DirectRunner
    """
    if rows is not None or runner is not None or beam:
        _predict_corpus(
            model,
            data,
            output,
            limit,
            {
                "task": task,
                "columns": (text, text_b),
                "encoding": encoding,
                "precision": None if precision is None else str(precision),
                "rows": rows or 10_000,
                "batch_size": batch_size,
            },
            (runner, beam),
            backend,
            as_json,
        )
        return
    with command(backend):
        from kerasbert.training.evaluation import predict

        results = predict(
            model,
            data,
            output,
            task=task,
            split=split,
            columns=text_columns(text, text_b),
            encoding=encoding,
            batch_size=batch_size,
            precision=None if precision is None else str(precision),
            limit=limit,
        )
    if as_json:
        print(to_json(results, ensure_ascii=False, indent=1))
    elif output is not None:
        for path in results["files"]:
            print(path)
    else:
        ids, rows = results["ids"], results["predictions"]
        # Sentences of a document have no names of their own.
        names = ids if len(ids) == len(rows) else range(len(rows))
        probabilities = results["probabilities"] or [None] * len(rows)
        for name, row, probable in zip(names, rows, probabilities):
            cells = [name, row if isinstance(row, str) else to_json(row, ensure_ascii=False)]
            if probable is not None:
                cells.append(f"{_largest(probable):.4f}")
            print(*cells, sep="\t")
    if limit is not None:
        typer.echo(_count(len(results["ids"]), limit), err=True)


def _predict_corpus(model, data, output, limit, settings, runner, backend, as_json):
    """`predict` of many files, into shards."""
    with command(backend, "Stopped; the same command goes on with what is done."):
        from kerasbert.data.beam import beam_options
        from kerasbert.training.predict_corpus import predict_corpus

        options = beam_options(*runner)
        if data is None or output is None:
            raise ValueError("Shards need DATA, files or a quoted pattern, and --output, a folder.")
        if limit is not None:
            raise ValueError("--limit is for one file without --rows and --runner.")
        settings["columns"] = text_columns(*settings["columns"])
        count = predict_corpus(model, data, output, options=options, **settings)
    print(to_json({"count": count}) if as_json else f"{count:,} predictions -> {output}")


def _largest(probabilities):
    """The probability of the answer: the number itself, or the largest one."""
    if isinstance(probabilities, dict):
        probabilities = probabilities.values()
    return probabilities if isinstance(probabilities, float) else max(probabilities)


def _count(examples, limit):
    """How many examples there were; with a limit that was reached, which.

    >>> _count(7, None), _count(5, 5)
    ('7 examples.', 'The first 5 examples alone (--limit).')
    """
    is_cut = limit is not None and examples >= limit
    return (
        f"The first {examples:,} examples alone (--limit)." if is_cut else f"{examples:,} examples."
    )


def _task(task, data, files, head, own):
    """The task of the options: by name, or of files."""
    from kerasbert.tasks import file_task, get_task

    has_files = any(path is not None for path in files.values())
    if task is None and not has_files:
        raise ValueError(
            "Which task? Give --task with a name (`kerasbert tasks` lists them), or --train with "
            "a file of your own."
        )
    if task is None:
        if data is not None:
            raise ValueError("--data is the folder of a --task; your own files go by --train.")
        own = {name: value for name, value in own.items() if value}
        first = next(path for path in files.values() if path is not None)
        return file_task(**files, head=head, name=_name(first), **own)
    found = get_task(task)
    encoding = own.pop("encoding") if has_files else None
    for name, value in own.items():
        if value:
            option = {"columns": "text", "choice_start": "choice-start"}.get(name, name)
            raise ValueError(f"--{option} is for your own files; the task '{task}' knows its own.")
    return found.with_files(encoding, **files) if has_files else found


def _name(path):
    """What a task of a file is called: as the file, or its folder where that says nothing.

    >>> _name("data/films.csv"), _name("films/train.csv"), _name("train.csv")
    ('films', 'films', 'train')
    """
    name = os.path.splitext(os.path.basename(path))[0]
    folder = os.path.basename(os.path.dirname(path))
    return folder if folder.strip(".") and name in ("train", "dev", "test") else name
