"""Commands for pre-training an encoder: `vocab`, `deduplicate`, `examples` and `pretrain`."""

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from kerasbert.base.strict_json import to_json
from kerasbert.cli.app import (
    ENCODING,
    BackendOption,
    BeamOption,
    EncodingOption,
    JsonOption,
    RunnerOption,
    app,
    command,
    settings,
)
from kerasbert.cli.options import takes_options
from kerasbert.training.pretrain_settings import PretrainSettings

TextOrJsonLines = Annotated[
    list[str],
    typer.Argument(metavar="CORPUS", help="Text or JSON lines: files, folders, quoted patterns."),
]
TextErrors = Annotated[
    str, typer.Option(help="Undecodable bytes: strict (an error), replace or ignore.")
]


@app.command()
def vocab(
    corpus: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS",
            help="Text, JSON lines or Parquet: files, folders, quoted patterns, URLs.",
        ),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", help="Folder or URL to write vocab.txt to.")
    ],
    size: Annotated[
        int, typer.Option(help="Number of tokens, including special and unused ones.")
    ] = 30522,
    kind: Annotated[
        str, typer.Option(help="wordpiece, or unigram for a SentencePiece model, spiece.model.")
    ] = "wordpiece",
    cased: Annotated[bool, typer.Option("--cased", help="Keep capitals and accents.")] = False,
    keep_accents: Annotated[
        bool,
        typer.Option("--keep-accents", help="Lowercase but keep accents, for Korean and Japanese."),
    ] = False,
    unused: Annotated[int, typer.Option(help="Unused entries for words to add later.")] = 99,
    max_characters: Annotated[
        int | None, typer.Option(help="Maximum number of characters in the vocabulary.")
    ] = None,
    min_frequency: Annotated[int, typer.Option(help="Minimum frequency of a piece.")] = 2,
    text_key: Annotated[
        list[str] | None,
        typer.Option(help="JSON key or column of the text; repeatable, for parallel text."),
    ] = None,
    encoding: EncodingOption = None,
    errors: TextErrors = "strict",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing vocabulary.")
    ] = False,
    workers: Annotated[int | None, typer.Option(help="Processes that count words.")] = None,
    runner: RunnerOption = None,
    beam: BeamOption = None,
):
    """Train a vocabulary from text.

    \b
    Examples:
      kerasbert vocab books/ --output vocab
      kerasbert vocab 'news/**/*.jsonl.gz' --output vocab_ko --cased --size 32000
      kerasbert vocab 's3://bucket/news/*.parquet' --output s3://bucket/vocab --text-key body
    """
    console = Console(stderr=True)
    shown = Progress(console=console, transient=True, disable=not console.is_terminal)
    with command(), shown as bar:
        from kerasbert.data.beam import beam_options
        from kerasbert.data.vocabulary import vocab
        from kerasbert.training.recording import Pulse

        task = bar.add_task("", total=1)
        pulse = Pulse(lambda text: typer.echo(text, err=True))

        def progress(what, share):
            bar.update(task, description=what, completed=share)
            if bar.disable:
                pulse.tick(lambda: f"{what}, {share:.0%}")

        done = vocab(
            corpus,
            output,
            size=size,
            kind=kind,
            lowercase=not cased,
            strip_accents=not (cased or keep_accents),
            unused=unused,
            max_characters=max_characters,
            min_frequency=min_frequency,
            text_key=text_key or None,
            encoding=encoding or "utf-8",
            errors=errors,
            overwrite=overwrite,
            workers=workers,
            options=beam_options(runner, beam),
            progress=progress,
        )
    print(
        f"{done['size']:,} tokens ({done['characters']:,} characters) from {done['words']:,} words "
        f"({done['kinds']:,} distinct); {done['unknown']:.2%} of the words have characters outside "
        f"the vocabulary -> {done['file']}"
    )


@app.command()
def deduplicate(
    corpus: TextOrJsonLines,
    output: Annotated[
        str, typer.Option("--output", "-o", help="New or empty folder for the cleaned files.")
    ],
    threshold: Annotated[
        float, typer.Option(help="Similarity of near duplicates; 1 removes only copies.")
    ] = 0.8,
    document_end: Annotated[
        str | None, typer.Option(help="What ends a document of text: empty_line, line or file.")
    ] = None,
    text_key: Annotated[str | None, typer.Option(help="JSON key of the text.")] = None,
    encoding: EncodingOption = None,
    errors: TextErrors = "strict",
    runner: RunnerOption = None,
    beam: BeamOption = None,
    as_json: JsonOption = False,
):
    """Write a corpus without its near duplicates, keeping the first of each.

    \b
    Examples:
      kerasbert deduplicate books/ -o clean
      kerasbert deduplicate 'news/*.jsonl.gz' -o clean --threshold 0.7
      kerasbert deduplicate 'gs://b/text/*.jsonl' -o gs://b/clean \\
          --runner DataflowRunner --beam project=p --beam temp_location=gs://b/tmp
    """
    with command():
        from kerasbert.data.beam import beam_options
        from kerasbert.data.deduplicate import deduplicate

        found = deduplicate(
            corpus,
            output,
            threshold=threshold,
            document_end=document_end,
            text_key=text_key,
            encoding=encoding or "utf-8",
            errors=errors,
            options=beam_options(runner, beam),
        )
    if as_json:
        print(to_json(found, ensure_ascii=False, indent=1))
        return
    gone = found["documents"] - found["kept"]
    share = 1 - found["kept_characters"] / found["characters"]
    print(
        f"Removed {gone:,} of {found['documents']:,} documents ({share:.1%} of the characters), "
        f"kept {found['kept']:,} -> {output}"
    )
    for pair in found["pairs"][:5]:
        print(f"  {pair['document']} resembles {pair['like']} ({pair['similarity']:.2f})")


@app.command()
def examples(
    corpus: TextOrJsonLines,
    output: Annotated[
        str, typer.Option("--output", "-o", help="Folder for the examples, and nothing else.")
    ],
    vocabulary: Annotated[str, typer.Option(help="Output of vocab, a vocab.txt or a preset.")],
    sequence_length: Annotated[int, typer.Option(min=1, help="Tokens per row.")] = 128,
    objective: Annotated[
        str, typer.Option(help="next_sentence, sentence_order or full_sentences.")
    ] = "next_sentence",
    copies: Annotated[int, typer.Option(min=1, help="Passes over the text.")] = 1,
    cut_sentences: Annotated[
        bool, typer.Option("--cut-sentences", help="Fill rows of full sentences to the last token.")
    ] = False,
    cased: Annotated[
        bool, typer.Option("--cased", help="Keep capitals and accents, for a plain vocab.txt.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    more: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Further setting, such as mask_unit=word or block_bytes=1000000."
        ),
    ] = None,
    reading: Annotated[
        list[str] | None,
        typer.Option(help="How to read the text, such as sentences=lines or text_key=body."),
    ] = None,
    encoding: EncodingOption = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes, without Beam.")
    ] = None,
    runner: RunnerOption = None,
    beam: BeamOption = None,
):
    """Write pre-training examples for `pretrain`, on all cores or with Apache Beam.

    \b
    Examples:
      kerasbert examples books/ -o examples/128 --vocabulary vocab
      kerasbert examples 'gs://b/text/*.txt.gz' -o gs://b/examples/128 --vocabulary vocab \\
          --runner FlinkRunner --beam flink_master=node0:8081
    """
    with command(stopped="Stopped; without Beam, run the same command again to resume."):
        from kerasbert.base.keywords import check_keyword
        from kerasbert.data import beam as pipeline
        from kerasbert.data import write_examples
        from kerasbert.data.block_examples import BlockExamples
        from kerasbert.data.corpus_files import READING
        from kerasbert.training.pretraining_model import tokenizer_of
        from kerasbert.training.recording import Pulse

        further, reading = settings("--set", more), settings("--reading", reading)
        if encoding is not None:
            reading["encoding"] = encoding
        for name in further:
            known = {*BlockExamples.__init__.__kwdefaults__, "block_bytes"}
            check_keyword("--set", name, known)
        for name in reading:
            check_keyword("--reading", name, set(READING))
        options = pipeline.beam_options(runner, beam)
        made = {
            "sequence_length": sequence_length,
            "objective": objective,
            "copies": copies,
            "cut_sentences": cut_sentences,
            "seed": seed,
            **further,
            **reading,
        }
        tokenizer = tokenizer_of(vocabulary, not cased)
        if options is None:
            pulse = Pulse(lambda text: typer.echo(text, err=True))
            manifest = write_examples(
                corpus,
                output,
                tokenizer,
                workers=workers,
                progress=lambda share, count: pulse.tick(
                    lambda: f"{share:.0%} of the text, {count:,} examples"
                ),
                **made,
            )
        else:
            if workers is not None:
                raise ValueError(
                    "--workers cannot be used with --runner, which has its own; omit it."
                )
            manifest = pipeline.write_examples(corpus, output, tokenizer, options=options, **made)
    counts = manifest["counts"]
    print(
        f"{counts['examples']:,} examples with {counts['tokens']:,} tokens, from "
        f"{counts['documents']:,} documents -> {output}"
    )


def _phase(text):
    """Parse `length:steps:batch_size` into three ints."""
    parts = text.split(":")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise ValueError(f"--phase {text!r} is not length:steps:batch_size, such as 128:9000:256.")
    return tuple(map(int, parts))


@app.command()
@takes_options(PretrainSettings, phases=_phase)
def pretrain(
    corpus: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS",
            help="Text, JSON lines or Parquet: files, folders, quoted patterns, URLs. Or examples.",
        ),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", help="Folder or URL for the preset and other output.")
    ],
    encoding: Annotated[str | None, typer.Option(help=ENCODING, rich_help_panel="Examples")] = None,
    backend: BackendOption = None,
    *,
    read_options,
):
    """Pre-train an encoder from text to a preset. The same command resumes an interrupted run.

    \b
    Examples:
      kerasbert pretrain books/ -o mini --layers 4 --hidden 256 --steps 20000 --batch-size 64
      kerasbert pretrain news.txt -o base --preset bert_base_en_uncased \\
          --phase 128:9000:64 --phase 512:1000:16 --learning-rate 2e-5 \\
          --precision mixed_bfloat16 --backend jax
      torchrun --nproc-per-node 8 -m kerasbert pretrain books/ -o mini --backend torch
    """
    with command(backend, "Stopped; run the same command again to resume."):
        from kerasbert.distribution import join
        from kerasbert.training.pretrain import pretrain

        given = read_options()
        if encoding is not None:
            given["reading"] = {**given.get("reading", {}), "encoding": encoding}
        done = pretrain(corpus[0] if len(corpus) == 1 else corpus, output, **given)
        if not join().is_first:
            return  # Only the first process prints the results.
    for name, score in done["scores"].items():
        print(f"held out, {name}: {score:.4f}")
    print(f"{done['steps']:,} steps -> {done['preset']}")
