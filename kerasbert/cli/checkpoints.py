"""Commands on checkpoints: `presets`, `convert` and `export`."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kerasbert.cli.app import BackendOption, JsonOption, app, command, settings, show


@app.command()
def presets(
    match: Annotated[
        str, typer.Argument(metavar="MATCH", help="Only names, languages or families with this.")
    ] = "",
    as_json: JsonOption = False,
):
    """List the built-in presets.

    \b
    Examples:
      kerasbert presets
      kerasbert presets ko
      kerasbert presets --json
    """
    with command():
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
    show(table)


@app.command()
def convert(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A preset's name, a handle or a directory.")
    ],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The directory to write.")],
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

    \b
    Examples:
      kerasbert convert bert_base_en_uncased out
      kerasbert convert my_preset out --format google --encoder activation=gelu_approximate
    """
    with command():
        from kerasbert.converter import convert

        done = convert(
            source,
            target,
            format,
            task=task,
            tokenizer=False if no_tokenizer else None,
            encoder=settings("--encoder", encoder),
            overwrite=overwrite,
            max_shard_size=max_shard_size,
        )
    tokenizer = f" with its {done['tokenizer']}" if done["tokenizer"] else ""
    print(f"{done['model']}{tokenizer} -> {done['written']} in {done['directory']}")


@app.command()
def export(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A preset: a directory, a handle or a name.")
    ],
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIRECTORY",
            help="The folder of all versions of the model; a new one for the other formats.",
        ),
    ],
    format: Annotated[
        str, typer.Option(help="saved_model, onnx, litert or openvino.")
    ] = "saved_model",
    layout: Annotated[
        str | None,
        typer.Option(
            help="Of onnx: kerasbert, or transformers, a folder for optimum, "
            "sentence-transformers, fastembed and transformers.js."
        ),
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Weights of int8 (onnx and litert).")
    ] = False,
    sequence_length: Annotated[
        int | None, typer.Option(help="The tokens of each row, for litert.")
    ] = None,
    version: Annotated[
        int | None, typer.Option(help="The version's number; by default the next one.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="Other names of the classes, with commas between.")
    ] = None,
    warmup: Annotated[
        str | None,
        typer.Option(
            help="A file of inputs that a server runs before it answers: texts, one a line, or "
            "in a .jsonl texts and lists such as a question and its context."
        ),
    ] = None,
    signature: Annotated[
        list[str] | None, typer.Option(help="A signature to write; by default all.")
    ] = None,
    tokens_only: Annotated[
        bool, typer.Option("--tokens-only", help="Take token ids alone, no strings.")
    ] = False,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the task, such as top_k=3.")
    ] = None,
    backend: BackendOption = None,
    as_json: JsonOption = False,
):
    """Write a SavedModel that takes raw strings, for TensorFlow Serving.

    Or a graph of any task or encoder that takes token ids, with the files of its tokenizer.

    \b
    Examples:
      kerasbert export out/model served/spam
      kerasbert export out/model served/spam --version 3 --warmup texts.txt
      kerasbert export reader served/reader --set top_k=3 --signature serving_default
      kerasbert export out/model spam_onnx --format onnx --int8
      kerasbert export out/model for_javascript --format onnx --layout transformers
    """
    is_graph = format != "saved_model"
    with command(backend):
        from kerasbert.converter import load_source
        from kerasbert.export import export_serving
        from kerasbert.models import BertPreprocessor
        from kerasbert.models.task import BertTask

        of_saved_model = {
            "--version": version,
            "--labels": labels,
            "--warmup": warmup,
            "--signature": signature or None,
            "--tokens-only": tokens_only or None,
            "--set": setting or None,
        }
        if is_graph:
            call, arguments = _graph_call(format, of_saved_model, int8, sequence_length, layout)
        elif int8 or sequence_length is not None or layout is not None:
            raise ValueError("--int8, --sequence-length and --layout are for the other formats.")
        else:
            call = export_serving
            arguments = {
                "version": version,
                "labels": None if labels is None else labels.split(","),
                "warmup": None if warmup is None else _warmup(warmup),
                "signatures": signature or None,
                "tokens_only": tokens_only,
                **settings("--set", setting),
            }
        loaded, tokenizer = load_source(model, tokenizer=False if tokens_only else None)
        if is_graph:
            arguments["tokenizer"] = tokenizer or False
        elif tokenizer and not isinstance(loaded, BertTask):
            arguments["preprocessor"] = BertPreprocessor.from_preset(model)
        try:
            path = call(loaded, directory, **arguments)
        except (TypeError, RuntimeError) as error:
            raise ValueError(str(error)) from error
    print(json.dumps({"path" if is_graph else "directory": path}) if as_json else path)


def _warmup(path):
    """Inputs of a file: its lines, or what is in the lines of JSON."""
    from kerasbert.tasks.readers import json_lines, read_text

    text = read_text(path)
    if path.endswith(".jsonl"):
        return list(json_lines(text, f"'{path}'"))
    return [line for line in text.splitlines() if line.strip()]


def _graph_call(format, of_saved_model, int8, sequence_length, layout):
    """The function that writes a model from token ids on, and its settings."""
    from kerasbert.export import export_litert, export_onnx, export_openvino

    calls = {"onnx": export_onnx, "litert": export_litert, "openvino": export_openvino}
    if format not in calls:
        raise ValueError(f"--format '{format}' is unknown; use saved_model, {', '.join(calls)}.")
    for name, value in of_saved_model.items():
        if value is not None:
            raise ValueError(f"{name} is for --format saved_model; leave it out for {format}.")
    arguments = {"precision": "int8" if int8 else "float32"}
    if format == "litert":
        arguments["sequence_length"] = sequence_length
    elif sequence_length is not None:
        raise ValueError(f"--sequence-length is for --format litert; {format} takes any length.")
    if format == "onnx":
        arguments["layout"] = layout or "kerasbert"
    elif layout is not None:
        raise ValueError(f"--layout is for --format onnx; leave it out for {format}.")
    return calls[format], arguments


def _matches(preset, match):
    match = match.lower()
    return (
        match in preset["name"].lower() or match in preset["family"] or match in preset["languages"]
    )
