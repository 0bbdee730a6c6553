"""The `advise` command."""

import functools
from typing import Annotated

import typer

from kerasbert.base.strict_json import to_json
from kerasbert.cli.app import (
    ENCODING,
    BackendOption,
    JsonOption,
    PrecisionOption,
    app,
    command,
    numbers,
    show,
    text_columns,
)

_own = functools.partial(typer.Option, rich_help_panel="Your file")
_trial = functools.partial(typer.Option, rich_help_panel="Comparison")
_training = functools.partial(typer.Option, rich_help_panel="Fine-tuning")


@app.command()
def advise(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Table: .csv .tsv .jsonl .json .parquet .xlsx.")
    ],
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="Output folder.")] = "advice",
    preset: Annotated[
        str | None,
        typer.Option(help="Encoder for the texts' language; without one, only TF-IDF runs."),
    ] = None,
    text: Annotated[str | None, _own(help="Column of the text.")] = None,
    text_b: Annotated[str | None, _own(help="Column of the second text, for text pairs.")] = None,
    label: Annotated[
        str | None, _own(help="Column of the labels; rows with an empty label are unlabeled.")
    ] = None,
    encoding: Annotated[str | None, _own(help=ENCODING)] = None,
    limit: Annotated[
        int | None, _own(min=1, help="Maximum number of rows, for a quick test.")
    ] = None,
    arms: Annotated[
        str | None, _trial(help="Subset of tfidf,frozen,setfit,lora,full; defaults to all.")
    ] = None,
    folds: Annotated[int, _trial(min=2, help="Number of cross-validation folds.")] = 5,
    seeds: Annotated[str, _trial(help="Seeds, such as 0,1,2; each draws its own folds.")] = "0",
    shares: Annotated[
        str, _trial(help="Shares of the labels, for the learning curve.")
    ] = "0.25,0.5,1",
    metric: Annotated[str, _trial(help="Metric to compare by: macro_f1 or accuracy.")] = "macro_f1",
    label_next: Annotated[int, _trial(min=1, help="Number of rows to suggest for labeling.")] = 50,
    batch_size: Annotated[int, _training(min=1, help="Examples per step.")] = 32,
    learning_rate: Annotated[
        float | None,
        _training(help="Defaults to the preset's recorded rate, or to one for its size."),
    ] = None,
    epochs: Annotated[
        int | None, _training(min=1, help="Defaults to 3, or up to 20 for few rows.")
    ] = None,
    lora_rank: Annotated[int, _training(min=1, help="Rank of the adapters.")] = 8,
    sequence_length: Annotated[int, _training(min=1, help="Maximum tokens per row.")] = 128,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Remove existing runs from OUTPUT.")
    ] = False,
    backend: BackendOption = None,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
):
    """Find the simplest text classifier that is good enough, and what to label or check next.

    TF-IDF, a frozen encoder, SetFit, adapters and full fine-tuning train on
    the same rows and are scored on the same held-out folds. An interrupted
    command resumes when run again.

    OUTPUT gets advice.md and .json, label_next.csv, check_labels.csv and
    plots.

    \b
    Examples:
      kerasbert advise reviews.csv
      kerasbert advise reviews.csv out --preset bert_small_en_uncased --folds 3
      kerasbert advise reviews.csv out --preset klue_bert_base_ko \\
          --text 본문 --label 분류 --encoding cp949 --arms tfidf,frozen
    """
    stopped = f"Stopped. Finished runs are kept in '{output}'; run the same command to resume."
    with command(backend, stopped):
        from kerasbert.training.advise import advise
        from kerasbert.training.report import advice_table

        results = advise(
            data,
            preset,
            output,
            columns=text_columns(text, text_b),
            label=label,
            encoding=encoding,
            limit=limit,
            arms=None if arms is None else arms.split(","),
            folds=folds,
            seeds=numbers("--seeds", seeds, int),
            shares=numbers("--shares", shares, float),
            metric=metric,
            label_next=label_next,
            batch_size=batch_size,
            learning_rate=learning_rate,
            epochs=epochs,
            lora_rank=lora_rank,
            sequence_length=sequence_length,
            overwrite=overwrite,
            precision=None if precision is None else str(precision),
        )
    if as_json:
        print(to_json(results, ensure_ascii=False, indent=1))
        return
    for sentence in results["advice"]:
        print(sentence)
    show(advice_table(results))
    print(f"Results are in '{output}'; read advice.md first.")
