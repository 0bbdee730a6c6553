"""The command `advise`."""

import functools
from typing import Annotated

import typer

from kerasbert._json import to_json
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
_trial = functools.partial(typer.Option, rich_help_panel="What is tried")
_training = functools.partial(typer.Option, rich_help_panel="The fine-tuning")


@app.command()
def advise(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A table: .csv .tsv .jsonl .json .parquet .xlsx.")
    ],
    output: Annotated[
        str, typer.Argument(metavar="OUTPUT", help="The folder for all that comes out.")
    ] = "advice",
    preset: Annotated[
        str | None,
        typer.Option(help="An encoder of the texts' language; without one, TF-IDF alone."),
    ] = None,
    text: Annotated[str | None, _own(help="Column of the text.")] = None,
    text_b: Annotated[str | None, _own(help="Column of the second text of pairs.")] = None,
    label: Annotated[
        str | None, _own(help="Column of the labels; rows without one are to be labelled.")
    ] = None,
    encoding: Annotated[str | None, _own(help=ENCODING)] = None,
    limit: Annotated[int | None, _own(min=1, help="The most rows, to try it out.")] = None,
    arms: Annotated[
        str | None, _trial(help="Some of tfidf,frozen,setfit,lora,full; by default all.")
    ] = None,
    folds: Annotated[int, _trial(min=2, help="Parts, each of which is held out once.")] = 5,
    seeds: Annotated[str, _trial(help="Numbers: 0,1,2; each draws other folds.")] = "0",
    shares: Annotated[str, _trial(help="Of the labels, for the learning curve.")] = "0.25,0.5,1",
    metric: Annotated[str, _trial(help="What is compared: macro_f1 or accuracy.")] = "macro_f1",
    label_next: Annotated[int, _trial(min=1, help="How many rows to name.")] = 50,
    batch_size: Annotated[int, _training(min=1, help="Examples of a step.")] = 32,
    learning_rate: Annotated[
        float | None, _training(help="By default what the preset records, or by its size.")
    ] = None,
    epochs: Annotated[
        int | None, _training(min=1, help="By default 3, on few rows up to 20.")
    ] = None,
    lora_rank: Annotated[int, _training(min=1, help="Of the adapters.")] = 8,
    sequence_length: Annotated[int, _training(min=1, help="The most tokens of a row.")] = 128,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Remove the runs that are in OUTPUT.")
    ] = False,
    backend: BackendOption = None,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
):
    """Say which way to classify texts is enough, and what to label or check next.

    TF-IDF, a frozen encoder, SetFit, adapters and full fine-tuning learn the
    same rows and are scored on the same held-out folds. Stop it when you
    like: the same command goes on.

    OUTPUT gets advice.md and .json, label_next.csv, check_labels.csv and
    pictures.

    \b
    Examples:
      kerasbert advise reviews.csv
      kerasbert advise reviews.csv out --preset bert_small_en_uncased --folds 3
      kerasbert advise reviews.csv out --preset klue_bert_base_ko \\
          --text 본문 --label 분류 --encoding cp949 --arms tfidf,frozen
    """
    stopped = f"Stopped. What is done is kept in '{output}': the same command goes on from there."
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
    print(f"All of it is in '{output}': read advice.md first.")
