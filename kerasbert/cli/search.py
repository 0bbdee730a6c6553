"""Commands on search: `embed`."""

from enum import StrEnum
from typing import Annotated

import typer

from kerasbert.cli.app import BackendOption, BeamOption, EncodingOption, RunnerOption, app, command

Format = StrEnum("Format", {name: name for name in ("parquet", "npy")})
Dtype = StrEnum("Dtype", {name: name for name in ("float32", "float16")})
Similarity = StrEnum("Similarity", {name: name for name in ("cosine", "dot")})


@app.command()
def embed(
    corpus: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS",
            help="Tables, JSON lines, or text with a text a line: files, folders, patterns.",
        ),
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="The folder for the vectors.")],
    preset: Annotated[
        str, typer.Option(help="The embedder: a preset's name, a handle or a directory.")
    ],
    text: Annotated[
        list[str] | None, typer.Option(help="The column of the text; several are joined.")
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", help="The column of the ids; by default id or _id.")
    ] = None,
    encoding: EncodingOption = None,
    format: Annotated[
        Format, typer.Option("--format", help="parquet, or npy with a .jsonl of ids and texts.")
    ] = Format.parquet,
    dtype: Annotated[Dtype, typer.Option(help="Of the numbers.")] = Dtype.float32,
    dims: Annotated[int | None, typer.Option(min=1, help="Keep the first numbers alone.")] = None,
    similarity: Annotated[
        Similarity, typer.Option(help="cosine: vectors of length 1; dot: as the model gives them.")
    ] = Similarity.cosine,
    prompt: Annotated[
        str, typer.Option(help="In front of each text; by default the preset's.")
    ] = "",
    rows: Annotated[int, typer.Option(min=1, help="The most rows of a file.")] = 10_000,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts at a time.")] = 32,
    runner: RunnerOption = None,
    beam: BeamOption = None,
    backend: BackendOption = None,
):
    """Write the vectors of a corpus, for any index. The same command goes on with what is done.

    \b
    Examples:
      kerasbert embed corpus/ -o vectors --preset my_embedder
      kerasbert embed corpus.jsonl -o vectors --preset my_embedder --text title --text text
      kerasbert embed gs://b/texts/*.parquet -o gs://b/vectors --preset hf://org/name \\
          --runner DataflowRunner --beam project=p --beam temp_location=gs://b/tmp
    """
    with command(backend, "Stopped; the same command goes on with what is done."):
        from kerasbert.data.beam import beam_options
        from kerasbert.search.embed_corpus import embed_corpus

        count = embed_corpus(
            corpus,
            output,
            preset,
            text=text or "text",
            id=id,
            encoding=encoding,
            format=str(format),
            dtype=str(dtype),
            dims=dims,
            similarity=str(similarity),
            prompt=prompt,
            rows=rows,
            batch_size=batch_size,
            options=beam_options(runner, beam),
        )
    print(f"{count:,} vectors -> {output}")
