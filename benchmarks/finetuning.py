"""One epoch of fine-tuning on real texts: examples per second and accuracy.

The texts are film reviews (fresh or rotten), or longer paragraphs of the Brown corpus (informative
or fiction).

    python benchmarks/finetuning.py                 # 2 threads; 4,000 examples, 1,000 held out
    python benchmarks/finetuning.py --only kerasbert,transformers --train 1000
    python benchmarks/finetuning.py --texts paragraphs --train 640 --test 64
    python benchmarks/finetuning.py --rounds 0 --seeds 3 --epochs 2     # accuracies alone

All contestants start from raw strings and train real MiniLM-L6 weights with a new head of two
classes: AdamW, batches of 32, dropout 0.1, the same split of the texts. The schedule is the
paper's: over the epochs before the accuracy is measured, the learning rate rises to 5e-5 in the
first tenth of the steps, then falls linearly to 0. After these epochs, the accuracy on held-out
texts is measured, once per seed; the very first epoch includes tracing and compiling. Later epochs,
in rounds, measure the examples per second.

- transformers: a plain PyTorch loop, batches of similar length (as `Trainer(group_by_length)`)
  padded to their longest; bfloat16 by `torch.autocast`.
- KerasHub: `BertTextClassifier.fit`, padded to 256 tokens as in its preset, and to 64 tokens, just
  enough for these texts. With 256 tokens, it trains on some of the examples only, which is enough
  because every example takes the same time; its accuracy is not measured.
"""

import json
import random
from statistics import mean, pstdev
from time import perf_counter
from typing import Annotated

import numpy as np
import real_data
import typer
from contest import (
    LIMITS,
    TEXTS,
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
    serve,
    table,
)
from embedding import SEQUENCE_LENGTH, _torch_threads, token_lengths

SPECS = [
    "transformers/torch/float32",
    "transformers/torch/bfloat16",
    "kerasbert/torch/float32",
    "kerasbert/jax/float32",
    "kerasbert/tensorflow/float32",
    "kerasbert/tensorflow/float32/xla",
    "kerasbert/tensorflow/bfloat16",
    "kerasbert/jax/bfloat16",
    "kerasbert/torch/bfloat16",
    "keras_hub/tensorflow/float32/256",
    "keras_hub/jax/float32/256",
    "keras_hub/tensorflow/float32/64",
    "keras_hub/jax/float32/64",
    *LIMITS,
]
BATCH_SIZE, LEARNING_RATE = 32, 5e-5


def prepare(spec, settings):
    """Load, train the first epochs and score; return values to report and a function that trains
    one more epoch.
    """
    library, backend, dtype, *options = spec.split("/")
    if library == "limit":
        return matmul_limit(spec, settings)
    pairs = TEXTS[settings["texts"]](settings["train"] + settings["test"])
    train, test = pairs[: settings["train"]], pairs[settings["train"] :]
    partial = library == "keras_hub" and options == [str(SEQUENCE_LENGTH)]
    if partial:
        train = train[: settings["padded_train"]]
    load = {"transformers": load_transformers, "kerasbert": load_kerasbert}.get(library)
    texts, labels = [text for text, _ in train], np.array([label for _, label in train])

    ready = {"accuracy": []}
    for seed in range(settings["seeds"]):
        start = perf_counter()
        steps = settings["epochs"] * -(-len(texts) // BATCH_SIZE)
        epoch, predict = (load or load_keras_hub)(dtype, options, settings["threads"], seed, steps)
        ready.setdefault("load_s", perf_counter() - start)
        for _ in range(settings["epochs"]):
            start = perf_counter()
            epoch(texts, labels)
            ready.setdefault("first_epoch_s", perf_counter() - start)
        if not partial:
            right = predict([text for text, _ in test]) == np.array([label for _, label in test])
            ready["accuracy"].append(float(right.mean()))

    def run():
        start = perf_counter()
        epoch(texts, labels)
        return {"seconds": perf_counter() - start, "examples": len(texts)}

    return ready, run


def load_transformers(dtype, options, threads, seed, steps):
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        get_linear_schedule_with_warmup,
    )

    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    folder = real_data.minilm_dir()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=2, attn_implementation="sdpa"
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16")
    shuffle = random.Random(seed).shuffle

    def batch(encoded, rows):
        part = {key: [values[i] for i in rows] for key, values in encoded.items()}
        return tokenizer.pad(part, return_tensors="pt")

    def encode(texts):
        return tokenizer(texts, truncation=True, max_length=SEQUENCE_LENGTH)

    def epoch(texts, labels):
        encoded, labels = encode(texts), torch.from_numpy(labels)
        # As in transformers' LengthGroupedSampler: sorted within shuffled groups of 50 batches.
        order, group = list(range(len(texts))), 50 * BATCH_SIZE
        shuffle(order)
        order = [
            row
            for start in range(0, len(order), group)
            for row in sorted(
                order[start : start + group], key=lambda i: -len(encoded["input_ids"][i])
            )
        ]
        model.train()
        for start in range(0, len(order), BATCH_SIZE):
            rows = order[start : start + BATCH_SIZE]
            with autocast:
                loss = model(**batch(encoded, rows), labels=labels[rows]).loss
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()

    @torch.inference_mode()
    def predict(texts):
        model.eval()
        encoded = encode(texts)
        parts = [range(i, min(i + 100, len(texts))) for i in range(0, len(texts), 100)]
        logits = [model(**batch(encoded, rows)).logits for rows in parts]
        return torch.cat(logits).argmax(-1).numpy()

    return epoch, predict


def load_kerasbert(dtype, options, threads, seed, steps):
    import keras

    _torch_threads(threads)
    import kerasbert

    keras.utils.set_random_seed(seed)
    return _keras_task(
        keras,
        kerasbert.models.BertTextClassifier.from_preset(
            real_data.minilm_dir(), num_classes=2, dtype=_policy(dtype)
        ),
        # Keras' own AdamW makes several passes over the weights, this optimizer a single pass.
        lambda rate: kerasbert.optimizers.AdamW(rate, global_clipnorm=None),
        "xla" in options or keras.backend.backend() == "jax",
        steps,
    )


def load_keras_hub(dtype, options, threads, seed, steps):
    import keras
    import keras_hub

    _torch_threads(threads)
    folder = real_data.minilm_dir()
    keras.utils.set_random_seed(seed)
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor.from_preset(
        folder, sequence_length=int(options[0])
    )
    classifier = keras_hub.models.BertTextClassifier.from_preset(
        folder, num_classes=2, preprocessor=preprocessor, dtype=_policy(dtype)
    )
    return _keras_task(keras, classifier, keras.optimizers.AdamW, "auto", steps)


def _keras_task(keras, classifier, optimizer, jit_compile, steps):
    from kerasbert.optimizers import LinearDecay

    classifier.compile(
        optimizer=optimizer(LinearDecay(LEARNING_RATE, steps, steps // 10)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile,
    )

    def epoch(texts, labels):
        classifier.fit(texts, labels, batch_size=BATCH_SIZE, epochs=1, verbose=0)

    def predict(texts):
        return np.asarray(classifier.predict(texts, verbose=0)).argmax(-1)

    return epoch, predict


def _policy(dtype):
    """Return a policy with float32 weights, as with autocast."""
    return "mixed_bfloat16" if dtype == "bfloat16" else dtype


def report(children, lengths, test, threads):
    console.print(machine(threads), soft_wrap=True)
    report_accuracy(children, len(lengths), test)
    runners = [child for child in ran(children) if not child.spec.startswith("limit/")]
    if not runners:
        return
    peaks = {dtype: best_limit(children, dtype) for dtype in ("float32", "bfloat16")}
    # The backward pass computes two products for each forward one.
    per_example = 3 * flops(lengths) / len(lengths)
    console.print(
        f"{len(lengths):,} examples, {per_example / 1e9:.2f} GFLOP each, {test:,} held out. "
        + limits_line(children, per_example, "examples")
        + f" Others took at most {disturbed(children):.0%} of the machine during a run.",
        soft_wrap=True,
    )
    rate = {c.spec: c.rounds[0]["examples"] / c.median() for c in runners}
    rows = []
    for child in sorted(runners, key=lambda c: -rate[c.spec]):
        dtype = child.spec.split("/")[2]
        base = rate.get(f"transformers/torch/{dtype}")
        rows.append(
            (
                child.spec,
                f"{rate[child.spec]:.1f}",
                f"{rate[child.spec] / base:.2f}" if base else "-",
                f"{rate[child.spec] * per_example / peaks[dtype] / 1e9:.0%}",
                child.rounds[0]["examples"],
                f"{child.ready['first_epoch_s'] - child.median():.1f}",
            )
        )
    columns = ("contestant", "examples/s", "x transformers", "of matmul limit", "examples")
    table("Fine-tuning", (*columns, "compile and trace, s"), rows)
    for dtype in peaks:
        mine = {s: r for s, r in rate.items() if s.startswith("kerasbert/") and f"/{dtype}" in s}
        base = rate.get(f"transformers/torch/{dtype}")
        hub = max((r for s, r in rate.items() if s.startswith("keras_hub/")), default=0)
        if mine and base:
            best = max(mine, key=mine.get)
            said = f"best {dtype}: {best}, {mine[best] / base:.2f} x transformers {dtype}"
            console.print(said + (f", {mine[best] / hub:.1f} x the best KerasHub" if hub else ""))


def report_accuracy(children, train, test):
    rows = []
    for child in children:
        found = child.ready.get("accuracy")
        if found:
            each = " ".join(f"{value:.3f}" for value in found)
            rows.append((child.spec, f"{mean(found):.3f}", f"{pstdev(found):.3f}", each))
    title = f"Accuracy on {test:,} held-out texts after {train:,} others"
    table(title, ("contestant", "mean", "standard deviation", "each seed"), rows)


def main(
    train: int = 4000,
    test: int = 1000,
    padded_train: Annotated[
        int, typer.Option(help="training examples for KerasHub padded to 256")
    ] = 320,
    texts: Annotated[str, typer.Option(help="reviews or paragraphs")] = "reviews",
    rounds: int = 1,
    seeds: int = 1,
    epochs: Annotated[int, typer.Option(help="epochs before the accuracy is measured")] = 1,
    threads: int = 2,
    wait: Annotated[int, typer.Option(help="maximum seconds to wait for a quiet machine")] = 60,
    only: Annotated[str, typer.Option(help="comma-separated prefixes of contestants")] = "",
    contestant: Annotated[str, typer.Option(hidden=True)] = "",
    settings: Annotated[str, typer.Option(hidden=True)] = "",
):
    """Train every contestant on the same texts; print examples per second and accuracy."""
    if contestant:
        serve(prepare, contestant, json.loads(settings))
        return
    specs = chosen(SPECS, only)
    asked = {"train": train, "test": test, "padded_train": padded_train, "threads": threads}
    asked.update(seeds=seeds, epochs=epochs, texts=texts)
    children = race(__file__, specs, rounds, threads, asked, wait)
    failed(children)
    lengths = token_lengths([text for text, _ in TEXTS[texts](train + test)[:train]])
    report(children, lengths, test, threads)


if __name__ == "__main__":
    typer.run(main)
