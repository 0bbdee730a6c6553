"""The `advise` command."""

import functools
from typing import Annotated

import typer

from kerasbert.base.strict_json import to_json
from kerasbert.cli.app import (
    ENCODING,
    BackendOption,
    JsonOption,
    app,
    command,
    show,
    text_columns,
)
from kerasbert.cli.options import takes_options
from kerasbert.training.advise_settings import AdviseSettings

_own = functools.partial(typer.Option, rich_help_panel="Your file")


@app.command()
@takes_options(AdviseSettings)
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
    backend: BackendOption = None,
    as_json: JsonOption = False,
    *,
    read_options,
):
    """Find the simplest text classifier that is good enough, and what to label or check next.

    TF-IDF, a frozen encoder, SetFit, adapters and full fine-tuning are scored
    on the same held-out folds. An interrupted command resumes when run again.

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
            **read_options(),
        )
    if as_json:
        print(to_json(results, ensure_ascii=False, indent=1))
        return
    for sentence in results["advice"]:
        print(sentence)
    show(advice_table(results))
    print(f"Results are in '{output}'; read advice.md first.")
