"""The command `kerasbert`.

Each command has the Python call of the same name behind it.
"""

import contextlib
import json
import os
import sys
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
            encoder=_settings(encoder, "--encoder"),
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


@app.command()
def pretrain(
    corpus: Annotated[
        list[str],
        typer.Argument(help="Text or JSON lines: files, folders, quoted patterns. Or examples."),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", help="The folder for the preset and all before it.")
    ],
    preset: Annotated[
        str | None, typer.Option(help="An encoder to go on with: a preset, or an earlier output.")
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Of a new encoder, by default 12.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Its width, by default 768.")] = None,
    heads: Annotated[int | None, typer.Option(help="By default 64 wide.")] = None,
    family: Annotated[str | None, typer.Option(help="bert, roberta, ...")] = None,
    encoder: Annotated[
        list[str] | None, typer.Option(help="Another setting of it, as dropout=0.0.")
    ] = None,
    vocabulary: Annotated[
        str | None, typer.Option(help="A vocab.txt or a preset; else one is trained.")
    ] = None,
    vocabulary_size: Annotated[int, typer.Option(help="Of one that is trained.")] = 30522,
    cased: Annotated[bool, typer.Option("--cased", help="Keep capitals and accents.")] = False,
    objective: Annotated[
        str, typer.Option(help="next_sentence, sentence_order or full_sentences.")
    ] = "next_sentence",
    steps: Annotated[int, typer.Option(help="Updates: 9 of 10 at length 128.")] = 1_000_000,
    batch_size: Annotated[int, typer.Option(help="Examples of an update.")] = 256,
    phase: Annotated[
        list[str] | None,
        typer.Option(help="length:steps:batch_size, once for each, instead of those two."),
    ] = None,
    accumulate: Annotated[int, typer.Option(help="Parts of a batch, to need less memory.")] = 1,
    optimizer: Annotated[str, typer.Option(help="adamw or lamb.")] = "adamw",
    learning_rate: Annotated[float | None, typer.Option(help="1e-4, and 1e-3 for lamb.")] = None,
    warmup_steps: Annotated[int | None, typer.Option(help="A hundredth of all.")] = None,
    optimizer_state: Annotated[
        str, typer.Option(help="new, or kept from the earlier output that --preset names.")
    ] = "new",
    precision: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    backend: Annotated[
        str | None, typer.Option(help="tensorflow, jax or torch; else KERAS_BACKEND.")
    ] = None,
    xla: Annotated[
        bool | None, typer.Option("--xla/--no-xla", help="Compile; else as Keras chooses.")
    ] = None,
    masking: Annotated[str, typer.Option(help="dynamic or static.")] = "dynamic",
    mask: Annotated[
        list[str] | None,
        typer.Option(help="A setting of it, as mask_selection_rate=0.3 or unit=word."),
    ] = None,
    reading: Annotated[
        list[str] | None,
        typer.Option(help="How text is read, as sentences=lines or text_key=body."),
    ] = None,
    copies: Annotated[int, typer.Option(help="Passes over the text to make examples.")] = 1,
    held_out: Annotated[float, typer.Option(help="Share of the examples.")] = 0.01,
    seed: int = 0,
    log_every: Annotated[int | None, typer.Option(help="Steps; a 200th, at most 100.")] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="Steps; a 20th of all.")] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Steps; a 20th, at most 1000.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Do not resume; the training of before goes.")
    ] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write for it.")] = False,
    workers: Annotated[int | None, typer.Option(help="Processes that make examples.")] = None,
):
    """Pre-train an encoder, from text to a preset. The same command resumes what was interrupted.

    Examples: `kerasbert pretrain books/ -o mini --layers 4 --hidden 256 --steps 20000
    --batch-size 64`, `kerasbert pretrain news.txt -o base --preset bert_base_en_uncased --phase
    128:9000:64 --phase 512:1000:16 --learning-rate 2e-5 --precision bfloat16 --backend jax`.
    """
    _use_backend(backend)
    from kerasbert.tasks.pretrain import pretrain

    with _clear_errors():
        done = pretrain(
            corpus[0] if len(corpus) == 1 else corpus,
            output,
            preset=preset,
            num_layers=layers,
            hidden_dim=hidden,
            num_heads=heads,
            family=family,
            encoder=_settings(encoder, "--encoder"),
            vocabulary=vocabulary,
            vocabulary_size=vocabulary_size,
            lowercase=not cased,
            reading=_settings(reading, "--reading"),
            objective=objective,
            steps=steps,
            batch_size=batch_size,
            phases=phase and [_phase(text) for text in phase],
            optimizer=optimizer,
            learning_rate=learning_rate,
            warmup_steps=warmup_steps,
            optimizer_state=optimizer_state,
            accumulate=accumulate,
            precision=precision,
            masking=masking,
            masker=_settings(mask, "--mask"),
            copies=copies,
            held_out=held_out,
            seed=seed,
            log_every=log_every,
            evaluate_every=evaluate_every,
            checkpoint_every=checkpoint_every,
            resume=not restart,
            jit_compile="auto" if xla is None else xla,
            tensorboard=tensorboard,
            workers=workers,
        )
    for name, score in done["scores"].items():
        print(f"{name}: {score:.4f}")
    print(f"{done['steps']:,} steps -> {done['preset']}")


def _use_backend(name):
    """Begin anew with this backend: Keras has taken another one by the time it is known."""
    import keras

    known = ("tensorflow", "jax", "torch")
    if name is not None and name not in known:
        typer.echo(f"--backend {name!r} is none of {', '.join(known)}.", err=True)
        raise typer.Exit(2)
    if name not in (None, keras.backend.backend()):
        command = [sys.executable, "-m", "kerasbert.cli", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "KERAS_BACKEND": name})
    if keras.backend.backend() == "jax" and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        import jax

        # A resumed training does not wait for the compiler again.
        folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        jax.config.update("jax_compilation_cache_dir", os.path.join(folder, "kerasbert", "jax"))


def _phase(text):
    """`length:steps:batch_size` as three ints."""
    parts = text.split(":")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise ValueError(f"--phase {text!r} is not length:steps:batch_size, such as 128:9000:256.")
    return tuple(map(int, parts))


def _settings(texts, option):
    """A dict of settings that were given as `name=value`."""
    return dict(_setting(text, option) for text in texts or [])


def _setting(text, option):
    """`name=value`, the value as JSON where it is JSON."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{option} {text!r} is not name=value, such as pooler=false.")
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
        except KeyboardInterrupt as error:
            typer.echo(str(error) or "Stopped.", err=True)
            raise typer.Exit(130) from error


def _matches(preset, match):
    match = match.lower()
    return (
        match in preset["name"].lower() or match in preset["family"] or match in preset["languages"]
    )


def main():
    """Run the command line."""
    app(prog_name="kerasbert")


if __name__ == "__main__":
    main()
