"""Pre-training: tokens per second of masked words and next sentence prediction.

    python benchmarks/pretraining.py                     # mini, 4 layers of width 256; 2 threads
    python benchmarks/pretraining.py --size base --batch-size 8 --steps 4
    python benchmarks/pretraining.py --only kerasbert/jax,transformers --rounds 1
    python benchmarks/pretraining.py --gpu --size base --batch-size 256 --steps 40
    python benchmarks/pretraining.py --gpu --size base --batch-size 64 --steps 40 --length 512

Every contestant trains a new encoder on the same rows, 20 of 128 tokens masked, with dropout 0.1,
AdamW, gradients clipped at 1 and weights in float32; bfloat16 means autocast or Keras' mixed
policy. The first steps, which include tracing and compiling, are not counted; the later ones run in
rounds.

- kerasbert: `BertPretrainer.fit` as `kerasbert.pretrain` compiles it, with accuracies and
  perplexity. `no_attention_dropout` has no dropout of the attention probabilities, so that JAX can
  use a fused kernel.
- transformers: `BertForPreTraining` in a plain PyTorch loop. It computes the logits of all tokens.
  `compile` uses `torch.compile`.
- KerasHub: `BertMaskedLM.fit` on masked words alone, because it has no next sentence prediction,
  with KerasHub's default loss, metrics and compilation.
"""

import functools
import json
from time import perf_counter
from typing import Annotated

import numpy as np
import typer
from contest import (
    LIMITS,
    best_limit,
    chosen,
    console,
    disturbed,
    failed,
    limits_line,
    machine,
    matmul_limit,
    race,
    ran,
    serve,
    table,
)
from embedding import _torch_threads
from finetuning import _policy

SPECS = [
    *(f"transformers/torch/{dtype}" for dtype in ("float32", "bfloat16")),
    *(
        f"kerasbert/{way}"
        for dtype in ("float32", "bfloat16")
        for way in (
            f"tensorflow/{dtype}",
            f"tensorflow/{dtype}/xla",
            f"jax/{dtype}",
            f"torch/{dtype}",
        )
    ),
    *(
        f"keras_hub/{backend}/{dtype}"
        for dtype in ("float32", "bfloat16")
        for backend in ("tensorflow", "jax")
    ),
    *LIMITS,
]
# Contestants on a GPU; TensorFlow is left out because its GPU builds do not support every GPU.
GPU_SPECS = [
    *("transformers/torch/bfloat16", "transformers/torch/bfloat16/compile"),
    *("kerasbert/jax/bfloat16", "kerasbert/jax/bfloat16/no_attention_dropout"),
    *("kerasbert/torch/bfloat16", "keras_hub/jax/bfloat16", "limit/torch/bfloat16"),
]
# Dense bfloat16 GFLOP/s of the data sheet, by a part of the device's name.
DATA_SHEET = {"H100 80GB HBM3": 989_000, "H200": 989_000, "A100": 312_000}
# Layers, width, heads.
SIZES = {"tiny": (2, 128, 2), "mini": (4, 256, 4), "small": (4, 512, 8), "base": (12, 768, 12)}
VOCABULARY, LEARNING_RATE = 30522, 1e-4


def matmuls(width):
    """Return the shapes of a layer's products."""
    return [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]


def predictions(length):
    """Return the number of masked tokens per row."""
    return 20 * length // 128


def training_flops(size, length, library="transformers"):
    """Return the floating-point operations per example: forward, and twice that backward.

    kerasbert's last feed-forward network only processes the masked tokens and the first one.
    """
    layers, width, _ = SIZES[size]
    weights = sum(rows * columns for rows, columns in matmuls(width))
    encoder = layers * (2 * weights * length + 4 * length**2 * width)
    if library == "kerasbert":
        encoder -= 2 * 8 * width**2 * (length - predictions(length) - 1)
    heads = predictions(length) * 2 * (width**2 + width * VOCABULARY) + 2 * width**2
    return 3 * (encoder + heads)


def rows(count, length):
    """Return random rows, the same for all contestants: tokens, masked positions, their tokens,
    labels.
    """
    random = np.random.default_rng(0)
    tokens = random.integers(1000, VOCABULARY, (count, length)).astype("int32")
    places = np.tile(np.arange(1, length - 1), (count, 1))
    places = np.sort(random.permuted(places, axis=1)[:, : predictions(length)]).astype("int32")
    masked = np.take_along_axis(tokens, places, axis=1)
    np.put_along_axis(tokens, places, 103, axis=1)
    segments = np.tile((np.arange(length) >= length // 2).astype("int32"), (count, 1))
    return tokens, segments, places, masked, random.integers(0, 2, count).astype("int32")


def prepare(spec, settings):
    """Build and warm up; return values to report and a round of steps."""
    library, _, dtype, *options = spec.split("/")
    if library == "limit":
        return matmul_limit(spec, settings)
    batch_size, steps = settings["batch_size"], settings["steps"]
    make = {
        "transformers": load_transformers,
        "kerasbert": load_kerasbert,
        "keras_hub": load_keras_hub,
    }[library]
    start = perf_counter()
    length = settings["length"]
    train = make(settings["size"], dtype, options, settings, batch_size)
    train(rows(2 * batch_size, length))
    ready = {"first_steps_s": perf_counter() - start}
    data = rows(steps * batch_size, length)

    def run():
        start = perf_counter()
        loss = train(data)
        return {"seconds": perf_counter() - start, "examples": len(data[0]), "loss": loss}

    return ready, run


def load_transformers(size, dtype, options, settings, batch_size):
    import torch
    from transformers import BertConfig, BertForPreTraining

    torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    layers, width, heads = SIZES[size]
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        attn_implementation="sdpa",
    )
    device = "cuda" if settings["gpu"] else "cpu"
    model = BertForPreTraining(config).to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=settings["gpu"] or None
    )
    autocast = torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16")
    called = torch.compile(model) if "compile" in options else model

    def train(data):
        tokens, segments, places, masked, follows = data
        labels = np.full(tokens.shape, -100)
        np.put_along_axis(labels, places, masked, axis=1)
        arrays = [torch.from_numpy(x).long() for x in (tokens, segments, labels, follows)]
        for start in range(0, len(tokens), batch_size):
            batch = [x[start : start + batch_size] for x in arrays]
            ids, kinds, words, pairs = (x.to(device, non_blocking=True) for x in batch)
            with autocast:
                loss = called(
                    input_ids=ids,
                    token_type_ids=kinds,
                    attention_mask=torch.ones_like(ids),
                    labels=words,
                    next_sentence_label=pairs,
                ).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return float(loss)

    return train


def load_kerasbert(size, dtype, options, settings, batch_size):
    import keras

    _torch_threads(settings["threads"])
    from kerasbert.models import BertBackbone, BertPretrainer
    from kerasbert.optimizers import AdamW, LinearDecay

    keras.utils.set_random_seed(0)
    layers, width, heads = SIZES[size]
    model = BertPretrainer(
        BertBackbone(
            vocabulary_size=VOCABULARY,
            num_layers=layers,
            num_heads=heads,
            hidden_dim=width,
            intermediate_dim=4 * width,
            attention_dropout=0.0 if "no_attention_dropout" in options else None,
            dtype=_policy(dtype),
        )
    )
    model.compile(
        AdamW(LinearDecay(LEARNING_RATE, 100_000, 1000), bias_correction=False),
        jit_compile="xla" in options or keras.backend.backend() == "jax",
    )

    def train(data):
        return _fit(model.fit, *_features(data), batch_size)

    return train


def load_keras_hub(size, dtype, options, settings, batch_size):
    import keras
    import keras_hub

    _torch_threads(settings["threads"])
    keras.utils.set_random_seed(0)
    layers, width, heads = SIZES[size]
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=VOCABULARY,
        num_layers=layers,
        num_heads=heads,
        hidden_dim=width,
        intermediate_dim=4 * width,
        dtype=_policy(dtype),
    )
    model = keras_hub.models.BertMaskedLM(backbone=backbone, preprocessor=None)
    model.compile(
        optimizer=keras.optimizers.AdamW(LEARNING_RATE, weight_decay=0.01, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[keras.metrics.SparseCategoricalAccuracy()],
        jit_compile="auto",
    )

    def train(data):
        x, y, weights = _features(data)
        # This calls `keras.Model.fit`, because KerasHub's own `fit` first wraps arrays in a
        # dataset.
        fit = functools.partial(keras.Model.fit, model)
        return _fit(fit, x, y["mlm_logits"], weights["mlm_logits"], batch_size)

    return train


def _features(data):
    tokens, segments, places, masked, follows = data
    x = {
        "token_ids": tokens,
        "segment_ids": segments,
        "padding_mask": np.ones_like(tokens),
        "mask_positions": places,
    }
    y = {"mlm_logits": masked, "nsp_logits": follows}
    return x, y, {name: np.ones(rows.shape, "float32") for name, rows in y.items()}


def _fit(fit, x, y, weights, batch_size):
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # With arrays, an epoch waits at its end, for up to its own duration, until the autotuner of
        # `tf.data` stops.
        options = tf.data.Options()
        options.autotune.enabled = False
        data = tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(batch_size).prefetch(2)
        history = fit(data.with_options(options), verbose=0)
    else:
        history = fit(x, y, sample_weight=weights, batch_size=batch_size, shuffle=False, verbose=0)
    return history.history["loss"][-1]


def report(children, asked):
    size, length, gpu = asked["size"], asked["length"], asked["gpu"]
    console.print(machine(asked["threads"], gpu), soft_wrap=True)
    runners = [child for child in ran(children) if not child.spec.startswith("limit/")]
    if not runners:
        return
    layers, width, _ = SIZES[size]
    per_token = training_flops(size, length) / length
    console.print(
        f"{size}: {layers} layers of width {width}, batches of {asked['batch_size']} rows of "
        f"{length} tokens, {per_token / 1e6:.0f} MFLOP a token. "
        + limits_line(children, per_token, "tokens")
        + f" Others took at most {disturbed(children):.0%} of the machine during a run.",
        soft_wrap=True,
    )
    rate = {c.spec: c.rounds[0]["examples"] * length / c.median() for c in runners}
    peaks = {dtype: best_limit(children, dtype) for dtype in {s.split("/")[2] for s in rate}}
    sheet = next((peak for name, peak in DATA_SHEET.items() if name in _gpu_name(gpu)), None)
    lines = []
    for child in sorted(runners, key=lambda c: -rate[c.spec]):
        library, _, dtype, *_ = child.spec.split("/")
        done = rate[child.spec] * training_flops(size, length, library) / length
        lines.append(
            (
                child.spec,
                f"{rate[child.spec]:,.0f}",
                *(f"{done / peak / 1e9:.1%}" for peak in filter(None, (peaks[dtype], sheet))),
                f"{child.rounds[-1]['loss']:.2f}",
                f"{child.ready['first_steps_s']:.0f}",
            )
        )
    used = ["of matmul limit", *(["of data sheet"] if sheet else [])]
    columns = ("contestant", "tokens/s", *used, "last loss", "first steps, s")
    table(f"Pre-training, {size}, length {length}", columns, lines)
    for dtype in peaks:
        of = {s: r for s, r in rate.items() if s.split("/")[2] == dtype}
        mine = {s: r for s, r in of.items() if s.startswith("kerasbert/")}
        others = {s: r for s, r in of.items() if s not in mine}
        # The peers have attention dropout, so they are compared only with contestants that have it.
        mine = {s: r for s, r in mine.items() if not s.endswith("/no_attention_dropout")}
        if mine and others:
            best, peer = max(mine, key=mine.get), max(others, key=others.get)
            console.print(f"best {dtype}: {best}, {mine[best] / others[peer]:.2f} x {peer}")


def _gpu_name(gpu):
    if not gpu:
        return ""
    import torch

    return torch.cuda.get_device_name()


def main(
    size: Annotated[str, typer.Option(help=f"one of {', '.join(SIZES)}")] = "mini",
    batch_size: int = 32,
    length: Annotated[int, typer.Option(help="tokens per row")] = 128,
    gpu: Annotated[bool, typer.Option("--gpu", help="run on a CUDA GPU")] = False,
    steps: Annotated[int, typer.Option(help="steps per round")] = 4,
    rounds: int = 3,
    threads: int = 2,
    wait: Annotated[int, typer.Option(help="maximum seconds to wait for a quiet machine")] = 60,
    only: Annotated[str, typer.Option(help="comma-separated prefixes of contestants")] = "",
    contestant: Annotated[str, typer.Option(hidden=True)] = "",
    settings: Annotated[str, typer.Option(hidden=True)] = "",
):
    """Train every contestant on the same rows; print tokens per second."""
    if contestant:
        serve(prepare, contestant, json.loads(settings))
        return
    asked = {"size": size, "batch_size": batch_size, "steps": steps, "threads": threads}
    asked |= {"length": length, "gpu": gpu}
    asked |= {"matmuls": matmuls(SIZES[size][1]), "tokens": batch_size * length}
    specs = chosen(GPU_SPECS if gpu else SPECS, only)
    children = race(__file__, specs, rounds, threads, asked, wait)
    failed(children)
    report(children, asked)


if __name__ == "__main__":
    typer.run(main)
