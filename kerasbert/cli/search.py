"""The commands `embed` and `export-vectors`."""

import os
from enum import StrEnum
from typing import Annotated

import typer

from kerasbert.cli.app import BackendOption, BeamOption, EncodingOption, RunnerOption, app, command

Format = StrEnum("Format", {name: name for name in ("parquet", "npy")})
Dtype = StrEnum("Dtype", {name: name for name in ("float32", "float16")})
Database = StrEnum(
    "Database",
    {name: name for name in ("qdrant", "elasticsearch", "opensearch", "vespa", "pgvector")},
)
Similarity = StrEnum("Similarity", {name: name for name in ("cosine", "dot")})


@app.command()
def embed(
    corpus: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS",
            help="Tables, JSON lines, or text with one text per line: files, folders, patterns.",
        ),
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="Folder for the embeddings.")],
    preset: Annotated[str, typer.Option(help="Embedder: a preset name, a handle or a directory.")],
    text: Annotated[
        list[str] | None, typer.Option(help="Column of the text; several are joined.")
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", help="Column of the ids; defaults to id or _id.")
    ] = None,
    encoding: EncodingOption = None,
    format: Annotated[
        Format, typer.Option("--format", help="parquet, or npy with ids and texts in a .jsonl.")
    ] = Format.parquet,
    dtype: Annotated[Dtype, typer.Option(help="Data type of the embeddings.")] = Dtype.float32,
    dims: Annotated[
        int | None, typer.Option(min=1, help="Truncate embeddings to this many dimensions.")
    ] = None,
    similarity: Annotated[
        Similarity, typer.Option(help="cosine normalizes embeddings to unit length; dot does not.")
    ] = Similarity.cosine,
    prompt: Annotated[
        str, typer.Option(help="Prefix of each text; defaults to the preset's.")
    ] = "",
    rows: Annotated[int, typer.Option(min=1, help="Maximum rows per file.")] = 10_000,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts per batch.")] = 32,
    runner: RunnerOption = None,
    beam: BeamOption = None,
    backend: BackendOption = None,
):
    """Embed a corpus for any vector index. The same command resumes an interrupted run.

    \b
    Examples:
      kerasbert embed corpus/ -o vectors --preset my_embedder
      kerasbert embed corpus.jsonl -o vectors --preset my_embedder --text title --text text
      kerasbert embed gs://b/texts/*.parquet -o gs://b/vectors --preset hf://org/name \\
          --runner DataflowRunner --beam project=p --beam temp_location=gs://b/tmp
    """
    with command(backend, "Stopped; run the same command again to resume."):
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
    print(f"{count:,} embeddings -> {output}")


@app.command("export-vectors")
def export_vectors(
    source: Annotated[
        str,
        typer.Argument(metavar="FOLDER", help="Output folder of `embed`, or a saved SearchIndex."),
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="New folder for the files.")],
    format: Annotated[Database, typer.Option("--format", help="Database that loads the files.")],
    name: Annotated[str, typer.Option(help="Name of the collection, index or table.")] = "passages",
    rows: Annotated[int, typer.Option(min=1, help="Maximum rows per request.")] = 1_000,
    similarity: Annotated[
        Similarity, typer.Option(help="Similarity of the output of `embed`; an index has its own.")
    ] = Similarity.cosine,
    backend: BackendOption = None,
):
    """Write embeddings, texts and metadata as files that a vector database loads.

    \b
    Examples:
      kerasbert export-vectors vectors -o for_qdrant --format qdrant --name faq
      kerasbert export-vectors faq_index -o for_postgres --format pgvector
    """
    with command(backend):
        from kerasbert.search.embed_corpus import read_vectors
        from kerasbert.search.exports import export_records
        from kerasbert.search.index import SearchIndex
        from kerasbert.search.index_files import MANIFEST

        if os.path.exists(os.path.join(source, MANIFEST)):
            done = SearchIndex.load(source).export(str(format), output, name=name, rows=rows)
        else:
            settings = {"name": name, "rows": rows, "similarity": str(similarity)}
            done = export_records(read_vectors(source), str(format), output, **settings)
    print(f"{done['count']:,} embeddings -> {output}. To load them, {done['load']}.")
