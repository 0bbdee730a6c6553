"""Commands on checkpoints: `presets`, `convert`, `export` and `bench`."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kerasbert._json import to_json
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
        str, typer.Argument(metavar="MATCH", help="Only those with these words: ko, 'ja embed'.")
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
        from kerasbert.loading.names import builtin_presets
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
        str, typer.Option(help="saved_model, onnx, litert, openvino or web.")
    ] = "saved_model",
    layout: Annotated[
        str | None,
        typer.Option(
            help="Of onnx: kerasbert, or transformers, a folder for optimum, "
            "sentence-transformers, fastembed and transformers.js."
        ),
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Weights of int8 (openvino: with --texts).")
    ] = False,
    texts: Annotated[
        str | None,
        typer.Option(
            help="A file of some hundred inputs, as for --warmup: openvino takes the ranges of its "
            "int8 from them."
        ),
    ] = None,
    encoding: EncodingOption = None,
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
      kerasbert export out/model site --format web
    """
    is_graph = format != "saved_model"
    with command(backend):
        from kerasbert.converter import load_source
        from kerasbert.export import export_serving
        from kerasbert.models import BertPreprocessor
        from kerasbert.models.task import BertTask
        from kerasbert.tasks.readers import read_inputs

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
                raise ValueError(f"--texts is for --format openvino; leave it out for {format}.")
            if texts is not None:
                arguments["texts"] = read_inputs(texts, encoding=encoding)
        elif int8 or any(x is not None for x in (sequence_length, layout, texts)):
            raise ValueError(
                "--int8, --texts, --sequence-length and --layout are for the other formats."
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
            # A page takes the model's own.
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
        str, typer.Argument(metavar="PRESET", help="A model with a head: a directory or a handle.")
    ],
    texts: Annotated[
        str,
        typer.Argument(
            metavar="TEXTS",
            help="A file of texts, one a line, or a table; in a .jsonl lists such as a question "
            "and its context, too.",
        ),
    ],
    task: Annotated[
        str | None,
        typer.Option(help="What to read PRESET as, such as text_embedder for one without a head."),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Column of the text in a table.")] = None,
    text_b: Annotated[str | None, typer.Option(help="Column of the second text, if so.")] = None,
    encoding: EncodingOption = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts in a request of several.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="How often each format runs.")] = 3,
    seconds: Annotated[
        float, typer.Option(help="Of single texts in a round of a format, and of batches.")
    ] = 2.0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Cores for each; by default all.")
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(help="Only some, such as keras,saved_model/int8,onnx,openvino,litert."),
    ] = None,
    as_json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write what was measured there.")
    ] = None,
    backend: BackendOption = None,
):
    """Measure a model in every format that this machine can run, on your texts.

    \b
    Examples:
      kerasbert bench out/model texts.txt
      kerasbert bench out/model texts.txt --formats onnx,saved_model --json bench.json
      kerasbert bench reader questions.jsonl --batch-size 8 --threads 2
    """
    with command(backend, stopped="Stopped; nothing was measured."):
        from kerasbert.files import write_json
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
    """The function that writes a model from token ids on, and its settings."""
    from kerasbert.export import export_litert, export_onnx, export_openvino, export_web

    calls = {
        "onnx": export_onnx,
        "litert": export_litert,
        "openvino": export_openvino,
        "web": export_web,
    }
    if format not in calls:
        raise ValueError(f"--format '{format}' is unknown; use saved_model, {', '.join(calls)}.")
    for name, value in of_saved_model.items():
        if value is not None:
            raise ValueError(f"{name} is for --format saved_model; leave it out for {format}.")
    arguments = {} if format == "web" else {"precision": "int8" if int8 else "float32"}
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
    """Whether a preset has all words; short ones are no parts of words of the description."""
    text = " ".join((preset["name"], preset["family"], preset["description"])).lower()
    named = f"{preset['name']} {preset['family']}".lower()
    return all(
        word in preset["languages"] or word in (text if len(word) > 2 else named)
        for word in match.lower().split()
    )
