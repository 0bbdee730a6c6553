"""Commands from text to an encoder: `vocab`, `deduplicate`, `examples` and `pretrain`."""

import functools
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from kerasbert._json import to_json
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
    str, typer.Option(help="strict, replace or ignore what is not in the encoding.")
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
        str, typer.Option("--output", "-o", help="The folder or URL that vocab.txt is written to.")
    ],
    size: Annotated[int, typer.Option(help="Tokens, with special and unused ones.")] = 30522,
    kind: Annotated[
        str, typer.Option(help="wordpiece, or unigram: SentencePiece's, into spiece.model.")
    ] = "wordpiece",
    cased: Annotated[bool, typer.Option("--cased", help="Keep capitals and accents.")] = False,
    keep_accents: Annotated[
        bool, typer.Option("--keep-accents", help="Also if not cased: for Korean and Japanese.")
    ] = False,
    unused: Annotated[int, typer.Option(help="Entries kept free for words of your own.")] = 99,
    max_characters: Annotated[
        int | None, typer.Option(help="The most characters that get entries.")
    ] = None,
    min_frequency: Annotated[int, typer.Option(help="How often a piece has to occur.")] = 2,
    text_key: Annotated[
        str | None, typer.Option(help="Where JSON or Parquet has the text.")
    ] = None,
    encoding: EncodingOption = None,
    errors: TextErrors = "strict",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a vocabulary.")] = False,
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
        from kerasbert.training.recording import Pulse
        from kerasbert.vocabulary import vocab

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
        f"of {done['kinds']:,} kinds; {done['unknown']:.2%} of the words have another character "
        f"-> {done['file']}"
    )


@app.command()
def deduplicate(
    corpus: TextOrJsonLines,
    output: Annotated[
        str, typer.Option("--output", "-o", help="An empty or new folder, for the same files.")
    ],
    threshold: Annotated[
        float, typer.Option(help="How alike documents are of which one stays: 1 for copies alone.")
    ] = 0.8,
    document_end: Annotated[
        str | None, typer.Option(help="Where a document of text ends: empty_line, line or file.")
    ] = None,
    text_key: Annotated[str | None, typer.Option(help="Where a JSON line has its text.")] = None,
    encoding: EncodingOption = None,
    errors: TextErrors = "strict",
    runner: RunnerOption = None,
    beam: BeamOption = None,
    as_json: JsonOption = False,
):
    """Write a corpus without the documents that are nearly as an earlier one.

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
        f"{gone:,} of {found['documents']:,} documents went, {share:.1%} of the characters; "
        f"{found['kept']:,} stay -> {output}"
    )
    for pair in found["pairs"][:5]:
        print(f"  {pair['document']} is like {pair['like']} ({pair['similarity']:.2f})")


@app.command()
def examples(
    corpus: TextOrJsonLines,
    output: Annotated[
        str, typer.Option("--output", "-o", help="The folder for the examples, and nothing else.")
    ],
    vocabulary: Annotated[str, typer.Option(help="Of vocab, a vocab.txt or a preset.")],
    sequence_length: Annotated[int, typer.Option(min=1, help="Tokens in a row.")] = 128,
    objective: Annotated[
        str, typer.Option(help="next_sentence, sentence_order or full_sentences.")
    ] = "next_sentence",
    copies: Annotated[int, typer.Option(min=1, help="Passes over the text.")] = 1,
    cut_sentences: Annotated[
        bool, typer.Option("--cut-sentences", help="Fill rows of one text to the last token.")
    ] = False,
    cased: Annotated[
        bool, typer.Option("--cased", help="Keep capitals and accents, by a plain vocab.txt.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    more: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A further setting, such as mask_unit=word or block_bytes=1000000."
        ),
    ] = None,
    reading: Annotated[
        list[str] | None,
        typer.Option(help="How text is read, such as sentences=lines or text_key=body."),
    ] = None,
    encoding: EncodingOption = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes, without Beam.")] = None,
    runner: RunnerOption = None,
    beam: BeamOption = None,
):
    """Write examples of text for `pretrain`, beforehand: on all cores, or by Apache Beam.

    \b
    Examples:
      kerasbert examples books/ -o examples/128 --vocabulary vocab
      kerasbert examples 'gs://b/text/*.txt.gz' -o gs://b/examples/128 --vocabulary vocab \\
          --runner FlinkRunner --beam flink_master=node0:8081
    """
    with command(stopped="Stopped; without Beam the same command goes on with what is done."):
        from kerasbert._keywords import check_keyword
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
                raise ValueError("--workers is for work without Beam, whose runner has its own.")
            manifest = pipeline.write_examples(corpus, output, tokenizer, options=options, **made)
    counts = manifest["counts"]
    print(
        f"{counts['examples']:,} examples with {counts['tokens']:,} tokens, from "
        f"{counts['documents']:,} documents -> {output}"
    )


_encoder = functools.partial(typer.Option, rich_help_panel="The encoder")
_examples = functools.partial(typer.Option, rich_help_panel="The examples")
_training = functools.partial(typer.Option, rich_help_panel="The training")
_records = functools.partial(typer.Option, rich_help_panel="What is kept of it")


@app.command()
def pretrain(
    corpus: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS",
            help="Text, JSON lines, Parquet: files, folders, quoted patterns, URLs. Or examples.",
        ),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", help="The folder or URL for the preset and all else.")
    ],
    preset: Annotated[
        str | None, _encoder(help="One to go on with: a preset, or the output of another pretrain.")
    ] = None,
    layers: Annotated[int | None, _encoder(help="Layers of a new one; by default 12.")] = None,
    hidden: Annotated[int | None, _encoder(help="Width of a new one; by default 768.")] = None,
    heads: Annotated[
        int | None, _encoder(help="Attention heads of a new one; by default 64 wide.")
    ] = None,
    family: Annotated[
        str | None, _encoder(help="Family of a new one: bert, roberta, ...; by default bert.")
    ] = None,
    encoder: Annotated[
        list[str] | None, _encoder(help="Another setting of it, such as dropout=0.0.")
    ] = None,
    generator: Annotated[
        list[str] | None,
        _encoder(help="For replaced_tokens, a setting of the generator, as hidden_dim=64."),
    ] = None,
    teacher: Annotated[
        str | None,
        _encoder(help="An embedder whose vectors it learns beside; of its vocabulary and width."),
    ] = None,
    teacher_weight: Annotated[
        float | None, _encoder(help="What that counts in the loss; by default 10.")
    ] = None,
    vocabulary: Annotated[
        str | None,
        _encoder(
            help="Of vocab, a vocab.txt or a preset; else the preset's, or trained on CORPUS."
        ),
    ] = None,
    vocabulary_size: Annotated[int, _encoder(help="Tokens of one that is trained.")] = 30522,
    cased: Annotated[
        bool, _encoder("--cased", help="Keep capitals and accents in one that is trained.")
    ] = False,
    objective: Annotated[
        str, _examples(help="next_sentence, sentence_order, full_sentences or replaced_tokens.")
    ] = "next_sentence",
    cut_sentences: Annotated[
        bool, _examples("--cut-sentences", help="Fill rows of one text to the last token.")
    ] = False,
    masking: Annotated[
        str, _examples(help="dynamic: other tokens are hidden in each epoch; or static.")
    ] = "dynamic",
    mask: Annotated[
        list[str] | None,
        _examples(
            help="A setting of it, such as unit=word or mask_selection_rate=0.3; [0.3,0.15] falls."
        ),
    ] = None,
    reading: Annotated[
        list[str] | None,
        _examples(help="How text is read, such as sentences=lines or text_key=body."),
    ] = None,
    encoding: Annotated[str | None, _examples(help=ENCODING)] = None,
    copies: Annotated[int, _examples(help="Passes over the text to make examples.")] = 1,
    held_out: Annotated[float, _examples(help="The share that is kept to evaluate on.")] = 0.01,
    workers: Annotated[int | None, _examples(help="Processes that make examples.")] = None,
    steps: Annotated[
        int, _training(help="Updates: nine of ten at 128 tokens, the last at 512.")
    ] = 1_000_000,
    batch_size: Annotated[int, _training(help="Examples of an update.")] = 256,
    phase: Annotated[
        list[str] | None,
        _training(
            metavar="LENGTH:STEPS:BATCH",
            help="In place of those two, once for each phase, such as 128:9000:256.",
        ),
    ] = None,
    accumulate: Annotated[int, _training(help="Parts of a batch, to need less memory.")] = 1,
    optimizer: Annotated[
        str | None,
        _training(
            help="adamw, lamb for large batches, or muon for the layers' matrices; by default muon "
            "for a new encoder, adamw for a preset's and for replaced tokens."
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        _training(help="The peak; by default 1e-4 for adamw, 1e-3 for lamb, 3e-3 for muon."),
    ] = None,
    schedule: Annotated[
        str, _training(help="After the warmup: linear, to 0; or wsd, which stays, then falls.")
    ] = "linear",
    warmup_steps: Annotated[
        int | None,
        _training(help="Updates until the peak; by default 1% of all, at least 1,000 or 20%."),
    ] = None,
    decay_share: Annotated[
        float | None, _training(help="For wsd: the share of the updates that fall; by default 0.2.")
    ] = None,
    weight_decay: Annotated[float, _training(help="Not of biases and norms.")] = 0.01,
    ema_momentum: Annotated[
        float | None, _training(help="Keep the average of the weights, as 0.999 of it at each.")
    ] = None,
    optimizer_state: Annotated[
        str, _training(help="new, or kept: that of the other pretrain that --preset names.")
    ] = "new",
    finetuning_learning_rate: Annotated[
        float | None, _training(help="What the preset records as good to fine-tune it with.")
    ] = None,
    seed: Annotated[int, _training(help="Of the weights, the examples and their order.")] = 0,
    xla: Annotated[
        bool | None, _training("--xla/--no-xla", help="Compile; else as Keras chooses.")
    ] = None,
    precision: PrecisionOption = None,
    backend: BackendOption = None,
    devices: Annotated[
        int | None,
        _training(help="Devices of this machine that share each batch: jax, tensorflow."),
    ] = None,
    mesh: Annotated[
        str | None,
        _training(
            metavar="BATCHxMODEL",
            help="On jax, such as 2x4: each layer is cut over 4 devices, the batches over 2.",
        ),
    ] = None,
    log_every: Annotated[
        int | None, _records(help="Updates to a line of the log; by default a 200th, 10 to 100.")
    ] = None,
    evaluate_every: Annotated[
        int | None, _records(help="Updates to an evaluation; by default a 20th of all.")
    ] = None,
    checkpoint_every: Annotated[
        int | None, _records(help="Updates to a checkpoint; by default a 20th, at most 1000.")
    ] = None,
    tensorboard: Annotated[
        bool, _records("--tensorboard", help="Write for TensorBoard, into OUTPUT/tensorboard.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Do not resume; what is in OUTPUT goes.")
    ] = False,
):
    """Pre-train an encoder, from text to a preset. The same command resumes what was interrupted.

    \b
    Examples:
      kerasbert pretrain books/ -o mini --layers 4 --hidden 256 --steps 20000 --batch-size 64
      kerasbert pretrain news.txt -o base --preset bert_base_en_uncased \\
          --phase 128:9000:64 --phase 512:1000:16 --learning-rate 2e-5 \\
          --precision mixed_bfloat16 --backend jax
      torchrun --nproc-per-node 8 -m kerasbert pretrain books/ -o mini --backend torch
    """
    with command(backend, "Stopped; the same command goes on with what is done."):
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
            return  # One of several says it.
    for name, score in done["scores"].items():
        print(f"held out, {name}: {score:.4f}")
    print(f"{done['steps']:,} steps -> {done['preset']}")


def _reading(texts, encoding):
    """How text is read, from `--reading` and `--encoding`."""
    found = settings("--reading", texts)
    return found if encoding is None else {**found, "encoding": encoding}


def _phase(text):
    """`length:steps:batch_size` as three ints."""
    parts = text.split(":")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise ValueError(f"--phase {text!r} is not length:steps:batch_size, such as 128:9000:256.")
    return tuple(map(int, parts))
