"""Tokenization throughput on real film reviews: ours in `tf.data`, `tokenizers` (Rust) and
KerasHub.

    python benchmarks/tokenizer.py                  # 2 threads, 3 rounds, about a minute
    python benchmarks/tokenizer.py --only kerasbert --repeat 1

The contestants tokenize all 13,905 texts `--repeat` times. WordPiece uses MiniLM's vocabulary; the
byte-pair and SentencePiece models are trained on the reviews first (8,000 tokens). kerasbert and
KerasHub map batches of 1,024 in `tf.data`. The Rust library gets all texts in one `encode_batch`
call, its fastest form, which always computes offsets, too. The target is 2 million tokens per
second on 2 cores for WordPiece. kerasbert's ids must equal those of the Rust library on all texts,
or the script stops. WordPiece is an exception, because the published algorithm differs from Rust's:
texts whose ids differ are only counted.
"""

import io
import json
import os
import tempfile
from time import perf_counter
from typing import Annotated

import real_data
import typer
from contest import chosen, console, disturbed, failed, machine, race, ran, serve, table

# library/backend/kind
SPECS = [
    "tokenizers/rust/wordpiece",
    "kerasbert/tensorflow/wordpiece",
    "kerasbert/tensorflow/wordpiece-offsets",
    "keras_hub/tensorflow/wordpiece",
    "tokenizers/rust/byte-pair",
    "kerasbert/tensorflow/byte-pair",
    "kerasbert/tensorflow/byte-pair-offsets",
    "keras_hub/tensorflow/byte-pair",
    "tokenizers/rust/sentence-piece",
    "kerasbert/tensorflow/sentence-piece",
    "kerasbert/tensorflow/sentence-piece-offsets",
    "keras_hub/tensorflow/sentence-piece",
]
BATCH = 1024


def texts():
    return [text for _, text in real_data.film_reviews()]


def train(folder, size=8000):
    """Write a byte-pair and a SentencePiece model of the reviews into the folder."""
    import sentencepiece
    import tokenizers

    byte_pair = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    byte_pair.train_from_iterator(
        texts(), vocab_size=size, special_tokens=special, show_progress=False
    )
    byte_pair.save_model(folder)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts()), model_writer=model, vocab_size=size, minloglevel=2
    )
    with open(os.path.join(folder, "sentencepiece.bpe.model"), "wb") as file:
        file.write(model.getvalue())


def rust(kind, folder):
    """Return a function from texts to lists of ids."""
    if kind == "wordpiece":
        import tokenizers

        vocabulary = os.path.join(real_data.minilm_dir(), "vocab.txt")
        backend = tokenizers.BertWordPieceTokenizer(vocabulary, lowercase=True)
    else:
        import transformers

        name = "RobertaTokenizer" if kind == "byte-pair" else "XLMRobertaTokenizer"
        backend = getattr(transformers, name).from_pretrained(folder).backend_tokenizer
    return lambda x: [row.ids for row in backend.encode_batch(x, add_special_tokens=False)]


def ours(kind, folder):
    from kerasbert import tokenizers

    if kind == "wordpiece":
        return tokenizers.BertTokenizer.from_files(real_data.minilm_dir())
    name = "RobertaTokenizer" if kind == "byte-pair" else "XLMRobertaTokenizer"
    return getattr(tokenizers, name).from_files(folder)


def keras_hub(kind, folder):
    import keras_hub

    settings = {"_allow_python_workflow": False}
    if kind == "wordpiece":
        vocabulary = os.path.join(real_data.minilm_dir(), "vocab.txt")
        return keras_hub.tokenizers.WordPieceTokenizer(
            vocabulary, lowercase=True, strip_accents=True, **settings
        )
    if kind == "byte-pair":
        paths = (os.path.join(folder, name) for name in ("vocab.json", "merges.txt"))
        return keras_hub.tokenizers.BytePairTokenizer(*paths, **settings)
    path = os.path.join(folder, "sentencepiece.bpe.model")
    return keras_hub.tokenizers.SentencePieceTokenizer(path, **settings)


def contestant(spec, settings):
    """Prepare a contestant for `serve`; one run processes all texts."""
    library, _, kind = spec.split("/")
    offsets = kind.endswith("-offsets")
    kind = kind.removesuffix("-offsets")
    ready = {}
    data = texts() * settings["repeat"]
    if library == "tokenizers":
        encode = rust(kind, settings["folder"])
        count = sum(map(len, encode(data[: len(data) // settings["repeat"]])))

        def once():
            encode(data)

    else:
        import tensorflow as tf

        make = ours if library == "kerasbert" else keras_hub
        tokenizer = make(kind, settings["folder"])
        call = tokenizer.tokenize_with_offsets if offsets else tokenizer
        batches = tf.data.Dataset.from_tensor_slices(data).batch(BATCH)
        batches = batches.map(call, num_parallel_calls=settings["threads"]).prefetch(2)

        def rows():
            for batch in batches:
                yield batch[0] if offsets else batch

        count = sum(int(batch.flat_values.shape[0]) for batch in rows()) // settings["repeat"]
        if library == "kerasbert" and not offsets:
            mine = [row for batch in rows() for row in batch.to_list()]
            mine = mine[: len(data) // settings["repeat"]]
            theirs = rust(kind, settings["folder"])(texts())
            different = sum(a != b for a, b in zip(mine, theirs, strict=True))
            if different and kind != "wordpiece":
                raise RuntimeError(f"{different} texts have other ids than Rust's")
            ready = {"texts other than Rust's": different}

        def once():
            for _ in rows():
                pass

    def run():
        start = perf_counter()
        once()
        return {"seconds": perf_counter() - start}

    run()
    return {"tokens": count, **ready}, run


def main(
    rounds: int = 3,
    threads: int = 2,
    repeat: Annotated[int, typer.Option(help="passes over the reviews per run")] = 3,
    wait: Annotated[int, typer.Option(help="maximum seconds to wait for a quiet machine")] = 60,
    only: Annotated[str, typer.Option(help="comma-separated prefixes of contestants")] = "",
    contestant_: Annotated[str, typer.Option("--contestant", hidden=True)] = "",
    settings: Annotated[str, typer.Option(hidden=True)] = "{}",
):
    """Race the tokenizers and print their tokens per second."""
    if contestant_:
        serve(contestant, contestant_, json.loads(settings))
        return
    specs = chosen(SPECS, only)
    with tempfile.TemporaryDirectory() as folder:
        train(folder)
        shared = {"folder": folder, "repeat": repeat, "threads": threads}
        children = race(__file__, specs, rounds, threads, shared, wait)
    console.print(machine(threads), soft_wrap=True)
    failed(children)
    rows = []
    for child in ran(children):
        rates = [child.ready["tokens"] * repeat / done["seconds"] for done in child.rounds]
        rate = child.ready["tokens"] * repeat / child.median()
        spread = f"{min(rates) / 1e6:.2f}-{max(rates) / 1e6:.2f}"
        rows.append((child.spec, f"{child.ready['tokens']:,}", f"{rate / 1e6:.2f}", spread))
    if rows:
        console.print(f"Others took at most {disturbed(children):.0%} of the machine.")
        table("Tokenizing", ("contestant", "tokens", "million tokens/s", "min-max"), rows)


if __name__ == "__main__":
    typer.run(main)
