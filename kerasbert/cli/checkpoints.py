"""Commands for checkpoints: `presets`, `convert`, `export` and `bench`."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kerasbert.base.strict_json import to_json
from kerasbert.cli.app import (
    BackendOption,
    EncodingOption,
    JsonOption,
    app,
    command,
    settings,
    show,
    text_columns,
)


@app.command()
def presets(
    match: Annotated[
        str, typer.Argument(metavar="MATCH", help="Words to match, such as ko or 'ja embed'.")
    ] = "",
    as_json: JsonOption = False,
):
    """List the built-in presets.

    \b
    Examples:
      kerasbert presets
      kerasbert presets ko
      kerasbert presets "en embed"
      kerasbert presets --json
    """
    with command():
        from kerasbert.checkpoints.names import builtin_presets
    found = [preset for preset in builtin_presets().values() if _matches(preset, match)]
    if as_json:
        print(to_json(found, indent=2, ensure_ascii=False))
        return
    if not found:
        Console(stderr=True).print(
            f"No preset has '{match}' in its name, family, languages or description; "
            "`kerasbert presets` lists them all.",
            highlight=False,
        )
        raise typer.Exit(2)
    table = Table("preset", "languages", "parameters", "family", "license", "handle")
    for preset in found:
        table.add_row(
            preset["name"],
            " ".join(preset["languages"]),
            f"{preset['parameters']:,}",
            preset["family"],
            preset["license"] or "see its page",
            preset["handle"],
        )
    show(table)


@app.command()
def convert(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Preset name, handle or directory.")
    ],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Output directory.")],
    format: Annotated[
        str, typer.Option(help="huggingface, google, keras_hub or kerasbert.")
    ] = "huggingface",
    task: Annotated[
        str | None,
        typer.Option(help="encoder, text_classifier, ...; defaults to what the source contains."),
    ] = None,
    encoder: Annotated[
        list[str] | None,
        typer.Option(help="Encoder setting to override, as name=value."),
    ] = None,
    no_tokenizer: Annotated[
        bool, typer.Option("--no-tokenizer", help="Write no tokenizer.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing checkpoint.")
    ] = False,
    max_shard_size: Annotated[
        float | None, typer.Option(help="Maximum size of a weights file in GB.")
    ] = None,
):
    """Convert a checkpoint to the format of another package.

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
        str, typer.Argument(metavar="MODEL", help="Preset directory, handle or name.")
    ],
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIRECTORY",
            help="For saved_model, the parent folder of all versions; otherwise a new folder.",
        ),
    ],
    format: Annotated[
        str, typer.Option(help="saved_model, onnx, litert, openvino or web.")
    ] = "saved_model",
    layout: Annotated[
        str | None,
        typer.Option(
            help="For onnx: kerasbert; transformers for a folder that optimum, "
            "sentence-transformers, fastembed and transformers.js can load; or triton for "
            "a model of Triton Inference Server."
        ),
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Quantize weights to int8 (openvino: with --texts).")
    ] = False,
    texts: Annotated[
        str | None,
        typer.Option(
            help="File with a few hundred inputs, as for --warmup, to calibrate openvino's int8."
        ),
    ] = None,
    encoding: EncodingOption = None,
    sequence_length: Annotated[
        int | None, typer.Option(help="Fixed number of tokens per row, for litert.")
    ] = None,
    version: Annotated[
        int | None, typer.Option(help="Version number; defaults to the next one.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="Comma-separated class names that replace the model's.")
    ] = None,
    warmup: Annotated[
        str | None,
        typer.Option(
            help="File of inputs that a server runs before it accepts requests: one text per line, "
            "or a .jsonl of texts and lists, such as a question and its context."
        ),
    ] = None,
    signature: Annotated[
        list[str] | None, typer.Option(help="Signature to write; defaults to all.")
    ] = None,
    tokens_only: Annotated[
        bool, typer.Option("--tokens-only", help="Take only token ids, no strings.")
    ] = False,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="Task setting, such as top_k=3.")
    ] = None,
    backend: BackendOption = None,
    as_json: JsonOption = False,
):
    """Export a model as a SavedModel that takes raw strings, for TensorFlow Serving.

    Other formats export any task or encoder as a graph that takes token ids, with its tokenizer
    files.

    \b
    Examples:
      kerasbert export out/model served/spam
      kerasbert export out/model served/spam --version 3 --warmup texts.txt
      kerasbert export reader served/reader --set top_k=3 --signature serving_default
      kerasbert export out/model spam_onnx --format onnx --int8
      kerasbert export out/model for_javascript --format onnx --layout transformers
      kerasbert export out/model repository/spam --format onnx --layout triton
      kerasbert export out/model site --format web
    """
    is_graph = format != "saved_model"
    with command(backend):
        from kerasbert.converter import load_source
        from kerasbert.export import export_serving
        from kerasbert.heads.base.file_readers import read_inputs
        from kerasbert.heads.base.task import BertTask
        from kerasbert.models import BertPreprocessor

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
            if texts is not None and format != "openvino":
                raise ValueError(f"--texts is for --format openvino; omit it for {format}.")
            if texts is not None:
                arguments["texts"] = read_inputs(texts, encoding=encoding)
        elif int8 or any(x is not None for x in (sequence_length, layout, texts)):
            raise ValueError(
                "--int8, --texts, --sequence-length and --layout are not for --format saved_model; "
                "omit them or choose another --format."
            )
        else:
            call = export_serving
            arguments = {
                "version": version,
                "labels": None if labels is None else labels.split(","),
                "warmup": None if warmup is None else read_inputs(warmup, encoding=encoding),
                "signatures": signature or None,
                "tokens_only": tokens_only,
                **settings("--set", setting),
            }
        loaded, tokenizer = load_source(model, tokenizer=False if tokens_only else None)
        if is_graph:
            # A web page always includes the model's own tokenizer.
            arguments |= {} if format == "web" else {"tokenizer": tokenizer or False}
        elif tokenizer and not isinstance(loaded, BertTask):
            arguments["preprocessor"] = BertPreprocessor.from_preset(model)
        try:
            path = call(loaded, directory, **arguments)
        except (TypeError, RuntimeError) as error:
            raise ValueError(str(error)) from error
    print(to_json({"path" if is_graph else "directory": path}) if as_json else path)


@app.command()
def bench(
    preset: Annotated[
        str, typer.Argument(metavar="PRESET", help="Model with a head: a directory or a handle.")
    ],
    texts: Annotated[
        str,
        typer.Argument(
            metavar="TEXTS",
            help="Text file with one text per line, or a table; a .jsonl may also hold lists, such "
            "as a question and its context.",
        ),
    ],
    task: Annotated[
        str | None,
        typer.Option(help="Task class to load PRESET as, such as text_embedder if it has no head."),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Column of the text, for a table.")] = None,
    text_b: Annotated[
        str | None, typer.Option(help="Column of the second text, for text pairs.")
    ] = None,
    encoding: EncodingOption = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts per batched request.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds per format.")] = 3,
    seconds: Annotated[
        float, typer.Option(help="Seconds per round and format, each for single texts and batches.")
    ] = 2.0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads per format; defaults to all.")
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(help="Formats to run, such as keras,saved_model/int8,onnx,openvino,litert."),
    ] = None,
    as_json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the results to this file.")
    ] = None,
    backend: BackendOption = None,
):
    """Measure a model on your texts in every format that this machine can run.

    \b
    Examples:
      kerasbert bench out/model texts.txt
      kerasbert bench out/model texts.txt --formats onnx,saved_model --json bench.json
      kerasbert bench reader questions.jsonl --batch-size 8 --threads 2
    """
    with command(backend, stopped="Stopped; nothing was measured."):
        from kerasbert.base.files import write_json
        from kerasbert.measuring.bench import bench

        found = bench(
            preset,
            texts,
            task=task,
            columns=text_columns(text, text_b),
            encoding=encoding,
            batch_size=batch_size,
            rounds=rounds,
            seconds=seconds,
            threads=threads,
            formats=None if formats is None else formats.split(","),
        )
        if as_json is not None:
            write_json(as_json, found)
    _show_bench(found)


def _show_bench(found):
    names = "format p50 p95 p99 texts/s memory disk difference".split()
    units = ("", "ms", "ms", "ms", f"batches of {found['batch_size']}", "MB, peak", "MB", "largest")
    table = Table(
        title=f"{found['model']}, {found['texts']:,} texts, {found['threads']} threads",
        caption=found["machine"],
    )
    for i, (name, unit) in enumerate(zip(names, units)):
        table.add_column(f"{name}\n{unit}", justify="right" if i else "left")
    ran = [row for row in found["results"] if "error" not in row]
    for row in sorted(ran, key=lambda row: row["latency_ms"]["p50"]):
        table.add_row(
            f"{row['format']}/{row['precision']}",
            *(f"{x:.1f}" for x in row["latency_ms"].values()),
            f"{row['texts_per_second']:,.0f}",
            "-" if row["memory_mb"] is None else f"{row['memory_mb']:,.0f}",
            f"{row['size_mb']:,.1f}",
            f"{row['difference']:.1g}",
        )
    show(table)
    for row in found["results"]:
        said = f"not measured: {row['error']}" if "error" in row else row["note"]
        if said:
            print(f"{row['format']}/{row['precision']}: {said}")
    for sentence in found["left_out"]:
        print(f"Left out: {sentence}")
    print(found["advice"])


def _graph_call(format, of_saved_model, int8, sequence_length, layout):
    """Return the export function for a graph that takes token ids, and its arguments."""
    from kerasbert.export import export_litert, export_onnx, export_openvino, export_web

    calls = {
        "onnx": export_onnx,
        "litert": export_litert,
        "openvino": export_openvino,
        "web": export_web,
    }
    if format not in calls:
        raise ValueError(
            f"--format '{format}' is unknown; use one of saved_model, {', '.join(calls)}."
        )
    for name, value in of_saved_model.items():
        if value is not None:
            raise ValueError(f"{name} is for --format saved_model; omit it for {format}.")
    arguments = {} if format == "web" else {"precision": "int8" if int8 else "float32"}
    if format == "litert":
        arguments["sequence_length"] = sequence_length
    elif sequence_length is not None:
        raise ValueError(f"--sequence-length is for --format litert; {format} takes any length.")
    if format == "onnx":
        arguments["layout"] = layout or "kerasbert"
    elif layout is not None:
        raise ValueError(f"--layout is for --format onnx; omit it for {format}.")
    return calls[format], arguments


def _matches(preset, match):
    """Return whether a preset matches all words of `match`.

    Words of up to 2 letters, such as language codes, are not searched in the description.
    """
    text = " ".join((preset["name"], preset["family"], preset["description"])).lower()
    named = f"{preset['name']} {preset['family']}".lower()
    return all(
        word in preset["languages"] or word in (text if len(word) > 2 else named)
        for word in match.lower().split()
    )
