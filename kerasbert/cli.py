"""The command `kerasbert`.

Each command has the Python call of the same name behind it.
"""

import contextlib
import json
import warnings
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(
    help="BERT in Keras 3: presets of the whole family, by name.",
    no_args_is_help=True,
    add_completion=True,
)


@app.command()
def presets(
    match: Annotated[str, typer.Argument(help="Only names, languages or families with this.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
):
    """List the built-in presets.

    Examples: `kerasbert presets`, `kerasbert presets ko`, `kerasbert presets --json`.
    """
    from kerasbert.presets import builtin_presets

    found = [preset for preset in builtin_presets().values() if _matches(preset, match)]
    if as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    if not found:
        Console(stderr=True).print(
            f"No preset has '{match}' in its name, family or languages; "
            "`kerasbert presets` lists them all.",
            highlight=False,
        )
        raise typer.Exit(2)
    table = Table("preset", "family", "languages", "parameters", "licence", "handle")
    for preset in found:
        table.add_row(
            preset["name"],
            preset["family"],
            " ".join(preset["languages"]),
            f"{preset['parameters']:,}",
            preset["license"] or "see its page",
            preset["handle"],
        )
    # A pipe has no width to fit: every row stays whole.
    console = Console()
    Console(width=console.width if console.is_terminal else 200).print(table)


@app.command()
def convert(
    source: Annotated[str, typer.Argument(help="A preset's name, a handle or a directory.")],
    target: Annotated[str, typer.Argument(help="The directory to write.")],
    format: Annotated[
        str, typer.Option(help="huggingface, google, keras_hub or kerasbert.")
    ] = "huggingface",
    task: Annotated[
        str | None,
        typer.Option(help="encoder, text_classifier, ...; by default what the source holds."),
    ] = None,
    encoder: Annotated[
        list[str] | None,
        typer.Option(help="A setting of the encoder to set otherwise, as name=value."),
    ] = None,
    no_tokenizer: Annotated[bool, typer.Option("--no-tokenizer", help="Write none.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a checkpoint.")] = False,
    max_shard_size: Annotated[
        float | None, typer.Option(help="The most GB in a file of weights.")
    ] = None,
):
    """Write a checkpoint in the format of another package.

    Examples: `kerasbert convert bert_base_en_uncased out`, `kerasbert convert my_preset out
    --format google --encoder activation=gelu_approximate`.
    """
    from kerasbert.converter import convert

    with _clear_errors():
        done = convert(
            source,
            target,
            format,
            task=task,
            tokenizer=False if no_tokenizer else None,
            encoder=dict(map(_setting, encoder or [])),
            overwrite=overwrite,
            max_shard_size=max_shard_size,
        )
    tokenizer = f" with its {done['tokenizer']}" if done["tokenizer"] else ""
    print(f"{done['model']}{tokenizer} -> {done['written']} in {done['directory']}")


@app.command()
def vocab(
    corpus: Annotated[
        list[str], typer.Argument(help="Text or JSON lines: files, folders, quoted patterns.")
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", help="The folder that vocab.txt is written to.")
    ],
    size: Annotated[int, typer.Option(help="Tokens, with special and unused ones.")] = 30522,
    cased: Annotated[bool, typer.Option("--cased", help="Keep capitals and accents.")] = False,
    keep_accents: Annotated[
        bool, typer.Option("--keep-accents", help="Also if not cased: for Korean and Japanese.")
    ] = False,
    unused: Annotated[int, typer.Option(help="Entries kept free for words of your own.")] = 99,
    max_characters: Annotated[
        int | None, typer.Option(help="The most characters that get entries.")
    ] = None,
    min_frequency: Annotated[int, typer.Option(help="How often a piece has to occur.")] = 2,
    text_key: Annotated[str | None, typer.Option(help="Where a JSON line has its text.")] = None,
    encoding: Annotated[str, typer.Option(help="Of the files: utf-8, cp949, ...")] = "utf-8",
    errors: Annotated[
        str, typer.Option(help="strict, replace or ignore what is not in the encoding.")
    ] = "strict",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a vocabulary.")] = False,
):
    """Train a WordPiece vocabulary from text.

    Examples: `kerasbert vocab books/ --output vocab`, `kerasbert vocab 'news/**/*.jsonl.gz'
    --output vocab_ko --cased --size 32000`.
    """
    from rich.progress import Progress

    from kerasbert.vocabulary import vocab

    console = Console(stderr=True)
    with _clear_errors(), Progress(console=console, transient=True) as bar:
        task = bar.add_task("", total=1)
        done = vocab(
            corpus,
            output,
            size=size,
            lowercase=not cased,
            strip_accents=not (cased or keep_accents),
            unused=unused,
            max_characters=max_characters,
            min_frequency=min_frequency,
            text_key=text_key,
            encoding=encoding,
            errors=errors,
            overwrite=overwrite,
            progress=lambda what, share: bar.update(task, description=what, completed=share),
        )
    print(
        f"{done['size']:,} tokens ({done['characters']:,} characters) from {done['words']:,} words "
        f"of {done['kinds']:,} kinds; {done['unknown']:.2%} of the words have another character "
        f"-> {done['file']}"
    )


def _setting(text):
    """`name=value`, the value as JSON where it is JSON."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--encoder {text!r} is not name=value, such as pooler=false.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


@contextlib.contextmanager
def _clear_errors():
    """One sentence for a mistake or a warning, and an exit status that says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.showwarning = lambda message, *_, **__: typer.echo(f"{message}", err=True)
        try:
            yield
        except (ValueError, ImportError, OSError) as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(2) from error


def _matches(preset, match):
    match = match.lower()
    return (
        match in preset["name"].lower() or match in preset["family"] or match in preset["languages"]
    )


def main():
    """Run the command line."""
    app()
