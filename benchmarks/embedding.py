"""Throughput of embedding real film reviews with the real MiniLM-L6 weights, ours and peers.

    python benchmarks/embedding.py                  # 2 threads, 3 rounds
    python benchmarks/embedding.py --only kerasbert --rounds 1

The time from raw strings to embeddings (mean pooling, L2 norm) includes tokenization. A contestant
warms up on the same texts with each of its batch sizes, keeps the fastest size, and then runs in
rounds; the tables have the median. kerasbert's float32 embeddings must differ from those of
transformers by at most 1e-4; "texts off" counts texts whose embeddings differ from those of
transformers by more than 0.01.

- transformers: all texts tokenized in one call, sorted by their number of tokens, each batch padded
  to its longest, `sdpa` attention, `torch.inference_mode`.
- KerasHub: `BertTextEmbedder.from_preset(folder)` with its defaults (256 tokens, batches of 32),
  and with 64 tokens, just enough for these texts, which is the best setting that a user can choose.
"""

import json
import os
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Annotated

import numpy as np
import real_data
import typer
from contest import (
    INNER,
    LAYERS,
    LIMITS,
    MATMULS,
    WIDTH,
    best_limit,
    chosen,
    console,
    disturbed,
    failed,
    flops,
    limits_line,
    machine,
    matmul_limit,
    race,
    ran,
    reviews,
    serve,
    table,
)

# library/backend/dtype[/option]; the first one gives the reference embeddings.
REFERENCE = "transformers/torch/float32"
SPECS = [
    REFERENCE,
    "transformers/torch/bfloat16",
    "kerasbert/torch/float32",
    "kerasbert/jax/float32",
    "kerasbert/tensorflow/float32",
    "kerasbert/tensorflow/float32/xla",
    "kerasbert/torch/bfloat16",
    "kerasbert/jax/bfloat16",
    "kerasbert/tensorflow/bfloat16",
    "kerasbert/tensorflow/bfloat16/xla",
    "keras_hub/tensorflow/float32/256",
    "keras_hub/jax/float32/256",
    "keras_hub/torch/float32/256",
    "keras_hub/tensorflow/float32/64",
    "keras_hub/jax/float32/64",
    "keras_hub/torch/float32/64",
    *LIMITS,
]
TOLERANCE = 1e-4
SEQUENCE_LENGTH = 256


def token_lengths(texts):
    """Return the number of tokens of each text, including its two special tokens; it is the same
    for all contestants.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(real_data.minilm_dir()) / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(SEQUENCE_LENGTH)
    return [len(encoded.ids) for encoded in tokenizer.encode_batch(texts)]


def prepare(spec, settings):
    """Load, warm up with every batch size, and return values to report and a timed run."""
    library, backend, dtype, *options = spec.split("/")
    if library == "limit":
        return matmul_limit(spec, settings)
    texts = [text for text, _ in reviews(settings["texts"])]
    if library == "keras_hub":
        # KerasHub takes the same time for every text, so some of the texts are enough to measure
        # its throughput.
        texts = texts[: settings["keras_hub_texts"]]
    start = perf_counter()
    load = {"transformers": load_transformers, "kerasbert": load_kerasbert}.get(library)
    embed, parts = (load or load_keras_hub)(dtype, options, settings["threads"])
    ready = {"load_s": perf_counter() - start}
    sizes = {"keras_hub": [32]}.get(library, settings["batch_sizes"])
    first, second = {}, {}
    for size in sizes:
        first[size] = _timed(lambda size=size: embed(texts, size))
        second[size] = (
            _timed(lambda size=size: embed(texts, size)) if len(sizes) > 1 else first[size]
        )
    size = min(second, key=second.get)
    # Tracing and compiling take the time by which the first pass exceeds a second one.
    ready |= {"batch_size": size, "warm_up_s": first[size], "parts": parts(texts, size)}
    np.save(Path(settings["folder"]) / f"{spec.replace('/', '_')}.npy", embed(texts, size))
    count = len(texts)
    return ready, lambda: {"seconds": _timed(lambda size=size: embed(texts, size)), "texts": count}


def load_transformers(dtype, options, threads):
    import torch
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(threads)
    folder = real_data.minilm_dir()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="sdpa", add_pooling_layer=False
    ).eval()

    def batches(texts, size):
        encoded = tokenizer(texts, truncation=True, max_length=SEQUENCE_LENGTH)
        order = sorted(range(len(texts)), key=lambda i: -len(encoded["input_ids"][i]))
        for start in range(0, len(texts), size):
            rows = order[start : start + size]
            part = {key: [values[i] for i in rows] for key, values in encoded.items()}
            yield rows, tokenizer.pad(part, return_tensors="pt")

    @torch.inference_mode()
    def forward(batch):
        outputs = model(**batch).last_hidden_state.float()  # (B, T, D)
        mask = batch["attention_mask"][:, :, None].float()
        return torch.nn.functional.normalize((outputs * mask).sum(1) / mask.sum(1), dim=-1)

    def embed(texts, size):
        vectors = np.empty((len(texts), model.config.hidden_size), "float32")
        for rows, batch in batches(texts, size):
            vectors[rows] = forward(batch).numpy()
        return vectors

    def parts(texts, size):
        tokenizing = _timed(lambda: list(batches(texts, size)))
        ready = [batch for _, batch in batches(texts, size)]
        model_s = min(_timed(lambda: [forward(batch) for batch in ready]) for _ in range(2))
        padded = sum(batch["input_ids"].numel() for batch in ready)
        return {"tokenizing_s": tokenizing, "model_s": model_s, "padded_tokens": padded}

    return embed, parts


def load_kerasbert(dtype, options, threads):
    import keras
    from keras import ops

    _torch_threads(threads)
    import kerasbert

    folder = real_data.minilm_dir()
    # "bfloat16" also has bfloat16 weights, as in transformers.
    backbone = kerasbert.models.BertBackbone.from_preset(folder, dtype=dtype)
    preprocessor = kerasbert.models.BertTextClassifierPreprocessor.from_preset(
        folder, sequence_length=SEQUENCE_LENGTH
    )
    outputs = ops.cast(backbone.output["sequence_output"], "float32")  # (B, T, D)
    mask = ops.cast(backbone.input["padding_mask"], "float32")[:, :, None]
    pooled = ops.sum(outputs * mask, axis=1) / ops.sum(mask, axis=1)
    model = keras.Model(backbone.input, ops.normalize(pooled, axis=-1))
    compiled = "xla" in options or keras.backend.backend() == "jax"
    model.compile(jit_compile=compiled)

    def embed(texts, size):
        dataset, order = preprocessor.sorted_batches(texts, size, buckets=compiled)
        vectors = np.empty((len(texts), backbone.hidden_dim), "float32")
        vectors[np.asarray(order)] = model.predict(dataset, verbose=0)
        return vectors

    def parts(texts, size):
        def batches():
            return list(
                preprocessor.sorted_batches(texts, size, buckets=compiled)[0].as_numpy_iterator()
            )

        tokenizing = _timed(batches)
        ready = batches()
        padded = sum(batch["token_ids"].size for batch in ready)
        # `predict_on_batch` compiles its own function, so the second time counts.
        spent = [_timed(lambda: [model.predict_on_batch(x) for x in ready]) for _ in range(2)]
        pieces = anatomy([batch["padding_mask"] for batch in ready], dtype, "xla" in options)
        return {
            "tokenizing_s": tokenizing,
            "model_s": min(spent),
            "padded_tokens": padded,
            **pieces,
        }

    return embed, parts


def anatomy(masks, dtype, xla):
    """Measure the parts of the encoder separately, on batches (B, T) of these masks, in seconds.

    The rest of the model's time is embedding, reshaping, pooling and Keras' overhead. XLA fuses
    operations of several parts, so with XLA the parts may add up to more than the whole.
    """
    import keras
    from keras import ops

    backend, heads = keras.backend.backend(), 12
    compiled = {"jax": _jax, "torch": _torch, "tensorflow": _tensorflow}[backend](xla)
    ones = ops.ones((WIDTH,), dtype)
    kernels = [ops.full(shape, 0.01, dtype) for shape in MATMULS]
    functions = {
        "matmuls_s": lambda x, inner, q, mask: [
            ops.matmul(inner if kernel.shape[0] == INNER else x, kernel) for kernel in kernels
        ],
        "attention_s": lambda x, inner, q, mask: ops.dot_product_attention(q, q, q, mask=mask),
        "gelu_s": lambda x, inner, q, mask: ops.gelu(inner, approximate=False),
        "norms_s": lambda x, inner, q, mask: [
            ops.layer_normalization(x + i, gamma=ones, beta=ones, epsilon=1e-12) for i in range(2)
        ],
    }
    generator, inputs = np.random.default_rng(0), []
    for mask in masks:
        shapes = (WIDTH,), (INNER,), (heads, WIDTH // heads)
        values = [
            ops.convert_to_tensor(generator.normal(size=(*mask.shape, *shape)), dtype)
            for shape in shapes
        ]
        inputs.append((*values, ops.convert_to_tensor(mask, "bool")[:, None, None, :]))
    seconds = {}
    for name, function in functions.items():
        once, spent = compiled(function), []
        for _ in range(3):  # the first one traces and compiles
            spent.append(_timed(lambda once=once: [once(*values) for values in inputs]))
        seconds[name] = LAYERS * min(spent)
    return seconds


def _jax(xla):
    import jax

    def compiled(function):
        fast = jax.jit(function)
        return lambda *values: jax.block_until_ready(fast(*values))

    return compiled


def _torch(xla):
    import torch

    return torch.inference_mode()


def _tensorflow(xla):
    import tensorflow as tf

    return lambda function: tf.function(function, jit_compile=xla)


def load_keras_hub(dtype, options, threads):
    import keras_hub

    _torch_threads(threads)
    folder = real_data.minilm_dir()
    length = int(options[0])
    preprocessor = keras_hub.models.BertTextEmbedderPreprocessor.from_preset(
        folder, sequence_length=length
    )
    embedder = keras_hub.models.BertTextEmbedder.from_preset(
        folder, preprocessor=preprocessor, dtype=dtype
    )

    def embed(texts, size):
        return np.asarray(embedder.predict(texts, batch_size=size, verbose=0))

    return embed, lambda texts, size: {"padded_tokens": len(texts) * length}


def _torch_threads(threads):
    if os.environ["KERAS_BACKEND"] == "torch":
        import torch

        torch.set_num_threads(threads)


def _timed(function):
    start = perf_counter()
    function()
    return perf_counter() - start


def check_vectors(children, folder):
    """Return by contestant the largest difference of each text's embedding from the reference:
    (N,).
    """
    path = Path(folder) / f"{REFERENCE.replace('/', '_')}.npy"
    if not path.exists():
        return {}
    expected = np.load(path)
    differences = {}
    for child in children:
        path = Path(folder) / f"{child.spec.replace('/', '_')}.npy"
        if path.exists():
            vectors = np.load(path)
            differences[child.spec] = np.abs(vectors - expected[: len(vectors)]).max(axis=1)
    for spec, difference in differences.items():
        if spec.startswith("kerasbert/") and "float32" in spec and difference.max() > TOLERANCE:
            raise SystemExit(
                f"{spec}: vectors differ by {difference.max():.1e}, more than {TOLERANCE}."
            )
    return differences


def report(children, lengths, differences, threads):
    runners = [child for child in ran(children) if not child.spec.startswith("limit/")]
    peaks = {d: best_limit(children, d) for d in ("float32", "bfloat16")}
    per_text = flops(lengths) / len(lengths)
    console.print(machine(threads), soft_wrap=True)
    console.print(
        f"{len(lengths):,} reviews, {sum(lengths):,} tokens, {per_text / 1e9:.3f} GFLOP a text. "
        + limits_line(children, per_text, "texts")
        + f" Others took at most {disturbed(children):.0%} of the machine during a run.",
        soft_wrap=True,
    )
    rate = {c.spec: c.rounds[0]["texts"] / c.median() for c in runners}
    base = {d: rate.get(f"transformers/torch/{d}") for d in peaks}
    rows = []
    for child in sorted(runners, key=lambda c: -rate[c.spec]):
        dtype = child.spec.split("/")[2]
        difference = differences.get(child.spec)
        spread = [child.rounds[0]["texts"] / done["seconds"] for done in child.rounds]
        rows.append(
            (
                child.spec,
                f"{rate[child.spec]:.0f}",
                f"{min(spread):.0f}-{max(spread):.0f}",
                f"{rate[child.spec] / base[dtype]:.2f}" if base[dtype] else "-",
                f"{rate[child.spec] * per_text / peaks[dtype] / 1e9:.0%}",
                child.ready["batch_size"],
                f"{child.ready['warm_up_s']:.1f}",
                "-" if difference is None else f"{np.median(difference):.0e}",
                "-" if difference is None else f"{(difference > 0.01).mean():.1%}",
            )
        )
    columns = ("contestant", "texts/s", "min-max", "x transformers", "of matmul limit")
    table("Embedding", (*columns, "batch", "first pass, s", "median difference", "texts off"), rows)
    rows = []
    pieces = ("tokenizing_s", "model_s", "matmuls_s", "attention_s", "gelu_s", "norms_s")
    for child in runners:
        part, count = child.ready["parts"], child.rounds[0]["texts"]
        padded = part["padded_tokens"] / sum(lengths[:count])
        rows.append(
            (
                child.spec,
                f"{child.median():.2f}",
                *(f"{part[piece]:.2f}" if piece in part else "-" for piece in pieces),
                f"{padded:.2f}",
            )
        )
    columns = ("contestant", "all", "tokenizing", "model on ready batches", "matmuls", "attention")
    title = "Where the time goes, seconds"
    table(title, (*columns, "GELU", "norms", "padded / real tokens"), rows)
    ours = {s: r for s, r in rate.items() if s.startswith("kerasbert/")}
    for dtype in peaks:
        mine = {s: r for s, r in ours.items() if s.split("/")[2] == dtype}
        hub = max(
            (r for s, r in rate.items() if s.startswith("keras_hub/") and "256" in s), default=0
        )
        if mine and base[dtype]:
            best = max(mine, key=mine.get)
            said = f"best {dtype}: {best}, {mine[best] / base[dtype]:.2f} x transformers {dtype}"
            console.print(
                said + (f", {mine[best] / hub:.1f} x KerasHub with its defaults" if hub else "")
            )


def main(
    texts: int = 1500,
    keras_hub_texts: Annotated[int, typer.Option(help="number of these texts for KerasHub")] = 320,
    rounds: int = 3,
    threads: int = 2,
    batch_sizes: str = "32,64,128",
    wait: Annotated[int, typer.Option(help="maximum seconds to wait for a quiet machine")] = 60,
    only: Annotated[str, typer.Option(help="comma-separated prefixes of contestants")] = "",
    contestant: Annotated[str, typer.Option(hidden=True)] = "",
    settings: Annotated[str, typer.Option(hidden=True)] = "",
):
    """Run every contestant on the same film reviews and print texts per second."""
    if contestant:
        serve(prepare, contestant, json.loads(settings))
        return
    specs = chosen(SPECS, only)
    lengths = token_lengths([text for text, _ in reviews(texts)])
    with tempfile.TemporaryDirectory() as folder:
        asked = {
            "texts": texts,
            "keras_hub_texts": keras_hub_texts,
            "threads": threads,
            "batch_sizes": [int(size) for size in batch_sizes.split(",")],
            "folder": folder,
        }
        children = race(__file__, specs, rounds, threads, asked, wait)
        differences = check_vectors(children, folder)
    failed(children)
    report(children, lengths, differences, threads)


if __name__ == "__main__":
    typer.run(main)
