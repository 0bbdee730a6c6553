"""Commands for pre-training an encoder: `vocab`, `deduplicate`, `examples` and `pretrain`."""

import functools
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
    PrecisionOption,
    RunnerOption,
    app,
    command,
    settings,
)

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
        str | None, typer.Option(help="JSON key or Parquet column of the text.")
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
            text_key=text_key,
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
        from kerasbert.data.corpus import READING
        from kerasbert.training.pretrain import tokenizer_of
        from kerasbert.training.recording import Pulse

        further, reading = settings("--set", more), _reading(reading, encoding)
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


_encoder = functools.partial(typer.Option, rich_help_panel="Encoder")
_examples = functools.partial(typer.Option, rich_help_panel="Examples")
_training = functools.partial(typer.Option, rich_help_panel="Training")
_records = functools.partial(typer.Option, rich_help_panel="Logs and checkpoints")


@app.command()
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
    preset: Annotated[
        str | None, _encoder(help="Preset, or output of another pretrain, to continue with.")
    ] = None,
    layers: Annotated[int | None, _encoder(help="Layers of a new encoder; defaults to 12.")] = None,
    hidden: Annotated[int | None, _encoder(help="Width of a new encoder; defaults to 768.")] = None,
    heads: Annotated[
        int | None,
        _encoder(help="Attention heads of a new encoder; by default each is 64 wide."),
    ] = None,
    family: Annotated[
        str | None,
        _encoder(help="Family of a new encoder: bert, roberta, ...; defaults to bert."),
    ] = None,
    encoder: Annotated[
        list[str] | None, _encoder(help="Further encoder setting, such as dropout=0.0.")
    ] = None,
    generator: Annotated[
        list[str] | None,
        _encoder(help="Generator setting for replaced_tokens, such as hidden_dim=64."),
    ] = None,
    teacher: Annotated[
        str | None,
        _encoder(help="Embedder to distill from; needs the same vocabulary and width."),
    ] = None,
    teacher_weight: Annotated[
        float | None, _encoder(help="Weight of the distillation loss; defaults to 10.")
    ] = None,
    vocabulary: Annotated[
        str | None,
        _encoder(
            help="Output of vocab, a vocab.txt or a preset; defaults to the preset's, or to one "
            "trained on CORPUS."
        ),
    ] = None,
    vocabulary_size: Annotated[int, _encoder(help="Size of a trained vocabulary.")] = 30522,
    cased: Annotated[
        bool, _encoder("--cased", help="Keep capitals and accents in a trained vocabulary.")
    ] = False,
    objective: Annotated[
        str, _examples(help="next_sentence, sentence_order, full_sentences or replaced_tokens.")
    ] = "next_sentence",
    cut_sentences: Annotated[
        bool, _examples("--cut-sentences", help="Fill rows of full sentences to the last token.")
    ] = False,
    masking: Annotated[
        str, _examples(help="dynamic masks again in every epoch; static masks once.")
    ] = "dynamic",
    mask: Annotated[
        list[str] | None,
        _examples(
            help="Masking setting, such as unit=word or mask_selection_rate=0.3; [0.3,0.15] is a "
            "linear change."
        ),
    ] = None,
    reading: Annotated[
        list[str] | None,
        _examples(help="How to read the text, such as sentences=lines or text_key=body."),
    ] = None,
    encoding: Annotated[str | None, _examples(help=ENCODING)] = None,
    copies: Annotated[int, _examples(help="Passes over the text to make examples.")] = 1,
    held_out: Annotated[float, _examples(help="Share of examples held out for evaluation.")] = 0.01,
    workers: Annotated[int | None, _examples(help="Processes that make examples.")] = None,
    steps: Annotated[
        int, _training(help="Steps: nine tenths at 128 tokens, the rest at 512.")
    ] = 1_000_000,
    batch_size: Annotated[int, _training(help="Examples per step.")] = 256,
    phase: Annotated[
        list[str] | None,
        _training(
            metavar="LENGTH:STEPS:BATCH",
            help="Phase instead of --steps and --batch-size, such as 128:9000:256; repeatable.",
        ),
    ] = None,
    accumulate: Annotated[
        int, _training(help="Number of parts to split each batch into, to save memory.")
    ] = 1,
    optimizer: Annotated[
        str | None,
        _training(
            help="adamw, lamb for large batches, or muon for the layers' matrices; defaults to "
            "muon for a new encoder, to adamw for a preset and for replaced_tokens."
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        _training(help="Peak; defaults to 1e-4 for adamw, 1e-3 for lamb, 3e-3 for muon."),
    ] = None,
    schedule: Annotated[
        str, _training(help="After warmup: linear decay to 0, or wsd, constant before a decay.")
    ] = "linear",
    warmup_steps: Annotated[
        int | None,
        _training(help="Defaults to 1% of all steps, at least 1,000 but at most 20%."),
    ] = None,
    decay_share: Annotated[
        float | None, _training(help="Share of steps in which wsd decays; defaults to 0.2.")
    ] = None,
    weight_decay: Annotated[float, _training(help="Not applied to biases and norms.")] = 0.01,
    ema_momentum: Annotated[
        float | None,
        _training(help="Momentum of a moving average of the weights to save, such as 0.999."),
    ] = None,
    optimizer_state: Annotated[
        str, _training(help="new, or kept: continue that of the pretrain output in --preset.")
    ] = "new",
    finetuning_learning_rate: Annotated[
        float | None, _training(help="Learning rate for fine-tuning to record in the preset.")
    ] = None,
    seed: Annotated[int, _training(help="Random seed of weights, examples and their order.")] = 0,
    xla: Annotated[
        bool | None, _training("--xla/--no-xla", help="XLA compilation; Keras decides by default.")
    ] = None,
    precision: PrecisionOption = None,
    backend: BackendOption = None,
    devices: Annotated[
        int | None,
        _training(help="Devices of this machine that share each batch (jax, tensorflow)."),
    ] = None,
    mesh: Annotated[
        str | None,
        _training(
            metavar="BATCHxMODEL",
            help="On jax, such as 2x4: batches are split over 2 devices, each layer over 4.",
        ),
    ] = None,
    log_every: Annotated[
        int | None,
        _records(help="Steps per log line; defaults to 1/200 of all, from 10 to 100."),
    ] = None,
    evaluate_every: Annotated[
        int | None, _records(help="Steps between evaluations; defaults to 1/20 of all.")
    ] = None,
    checkpoint_every: Annotated[
        int | None,
        _records(help="Steps between checkpoints; defaults to --evaluate-every, at most 1,000."),
    ] = None,
    tensorboard: Annotated[
        bool, _records("--tensorboard", help="Write TensorBoard logs to OUTPUT/tensorboard.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start over and remove previous results in OUTPUT.")
    ] = False,
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

        size = {"num_layers": layers, "hidden_dim": hidden, "num_heads": heads, "family": family}
        done = pretrain(
            corpus[0] if len(corpus) == 1 else corpus,
            output,
            preset=preset,
            **{name: value for name, value in size.items() if value is not None},
            encoder=settings("--encoder", encoder),
            generator=settings("--generator", generator),
            teacher=teacher,
            teacher_weight=teacher_weight,
            vocabulary=vocabulary,
            vocabulary_size=vocabulary_size,
            lowercase=not cased,
            reading=_reading(reading, encoding),
            objective=objective,
            cut_sentences=cut_sentences,
            steps=steps,
            batch_size=batch_size,
            phases=phase and [_phase(text) for text in phase],
            optimizer=optimizer,
            learning_rate=learning_rate,
            schedule=schedule,
            warmup_steps=warmup_steps,
            decay_share=decay_share,
            weight_decay=weight_decay,
            ema_momentum=ema_momentum,
            optimizer_state=optimizer_state,
            finetuning_learning_rate=finetuning_learning_rate,
            accumulate=accumulate,
            precision=precision or "float32",
            masking=masking,
            masker=settings("--mask", mask),
            copies=copies,
            held_out=held_out,
            seed=seed,
            log_every=log_every,
            evaluate_every=evaluate_every,
            checkpoint_every=checkpoint_every,
            resume=not restart,
            jit_compile="auto" if xla is None else xla,
            devices=devices,
            mesh=mesh,
            tensorboard=tensorboard,
            workers=workers,
        )
        if not join().is_first:
            return  # Only the first process prints the results.
    for name, score in done["scores"].items():
        print(f"held out, {name}: {score:.4f}")
    print(f"{done['steps']:,} steps -> {done['preset']}")


def _reading(texts, encoding):
    """Merge `--reading` and `--encoding` into settings for reading text."""
    found = settings("--reading", texts)
    return found if encoding is None else {**found, "encoding": encoding}


def _phase(text):
    """Parse `length:steps:batch_size` into three ints."""
    parts = text.split(":")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise ValueError(f"--phase {text!r} is not length:steps:batch_size, such as 128:9000:256.")
    return tuple(map(int, parts))
