"""Serving requests: latency and throughput from raw strings, ours and peers.

    python benchmarks/serving.py                    # 2 threads, 3 rounds
    python benchmarks/serving.py --only kerasbert/tensorflow,transformers/onnx --rounds 1
    python benchmarks/serving.py --clients 2        # two clients at once, one thread each

The model is MiniLM-L6 with a head of two classes; all contestants have the same weights, texts and
number of threads. Requests of one text and of 32 texts are drawn from the film reviews and plots,
so that lengths are mixed (3 to 256 tokens; a twelfth of the texts are far longer than the others).
They are sent one after the other, or by several clients at once, which share the threads. The
contestants take turns in each round, and the requests of all rounds are counted. In float32, all
contestants must return the probabilities of transformers within 1e-4.

- kerasbert/tensorflow: the SavedModel of `export_serving` in a session, as TensorFlow Serving runs
  it; bfloat16 is the automatic rewrite of the session (`auto_mixed_precision_onednn_bfloat16`),
  which can be set in a server's `--platform_config_file`. `caller` uses the environment variable
  and the option that notes/serving.md names for a server of single texts.
- kerasbert/onnx: `export_onnx`, its `tokenizer.json` in `tokenizers` (Rust), ONNX Runtime.
- transformers/onnx: the same, with the graph that `torch.onnx.export` makes from transformers'
  model.
- transformers/torch: tokenizer and model, `sdpa` attention, `torch.inference_mode`.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Annotated

import numpy as np
import real_data
import typer
from contest import (
    chosen,
    console,
    disturbed,
    environment,
    failed,
    machine,
    race,
    ran,
    serve,
    table,
)

REFERENCE = "transformers/torch/float32"
PEER = "transformers/onnx/float32"
SPECS = [
    REFERENCE,
    PEER,
    "kerasbert/tensorflow/float32",
    "kerasbert/tensorflow/float32/caller",
    "kerasbert/onnx/float32",
    "transformers/torch/bfloat16",
    "kerasbert/tensorflow/bfloat16",
    "transformers/onnx/int8",
    "kerasbert/onnx/int8",
]
TOLERANCE = 1e-4
SEQUENCE_LENGTH = 256
SIZES = (1, 32)


def texts(count):
    """Return `count` of the reviews and plots, in a random order."""
    return random.Random(0).sample([text for _, text in real_data.film_reviews()], count)


def requests(settings):
    """Return lists of texts by request size; requests of any size begin with the same texts."""
    numbers = dict(zip(SIZES, (settings["singles"], settings["batches"])))
    drawn = texts(max(size * count for size, count in numbers.items()))
    return {
        size: [drawn[i * size : (i + 1) * size] for i in range(count)]
        for size, count in numbers.items()
    }


def prepare(spec, settings):
    library, runtime, dtype, *ways = spec.split("/")
    if library == "export":
        {"tensorflow": export_ours, "torch": export_theirs}[runtime](Path(settings["folder"]))
        return {}, dict
    load = {"tensorflow": load_saved_model, "onnx": load_onnx, "torch": load_torch}[runtime]
    start, clients = perf_counter(), settings["clients"]
    threads = max(1, settings["threads"] // clients)
    answer = load(Path(settings["folder"]), library, dtype, threads, clients, *ways)
    ready = {"load_s": perf_counter() - start}
    batches = requests(settings)
    found = np.concatenate([answer(batch) for batch in batches[32]])
    np.save(Path(settings["folder"]) / f"{spec.replace('/', '_')}.npy", found)
    for batch in batches[1]:
        answer(batch)

    def run():
        spent, took = {}, {}
        with ThreadPoolExecutor(clients) as pool:
            for size, several in batches.items():
                start = perf_counter()
                spent[str(size)] = list(pool.map(lambda batch: _timed(answer, batch), several))
                took[str(size)] = perf_counter() - start
        return {"seconds": sum(took.values()), "spent": spent, "took": took}

    return ready, run


def _timed(answer, batch):
    start = perf_counter()
    answer(batch)
    return perf_counter() - start


# === The model for all contestants ===


def classifier():
    """Return MiniLM with a random head on its real weights."""
    import keras

    import kerasbert

    keras.utils.set_random_seed(0)
    folder = real_data.minilm_dir()
    return kerasbert.models.BertTextClassifier.from_preset(
        folder, num_classes=2, sequence_length=SEQUENCE_LENGTH, dropout=0.0
    )


def export_ours(folder):
    import kerasbert

    model = classifier()
    kerasbert.export_serving(model, folder / "saved_model", version=1)
    for precision in ("float32", "int8"):
        kerasbert.export_onnx(model, folder / f"kerasbert_{precision}", precision)
    kerasbert.convert(model, folder / "transformers")


def export_theirs(folder):
    import shutil

    import onnx
    import torch
    from onnxruntime.quantization import quantize_dynamic
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder / "transformers").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "transformers")
    inputs = dict(tokenizer(["one text", "another, longer one"], padding=True, return_tensors="pt"))
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens")}
    paths = {dtype: folder / f"transformers_{dtype}" for dtype in ("float32", "int8")}
    for path in paths.values():
        path.mkdir()
        shutil.copy(folder / "transformers" / "tokenizer.json", path)
    whole, small = (path / "model.onnx" for path in paths.values())
    with torch.no_grad():
        torch.onnx.export(
            model,
            kwargs=inputs,
            f=whole,
            dynamo=True,
            dynamic_shapes=dict.fromkeys(inputs, axes),
            output_names=["logits"],
            external_data=False,
        )
    graph = onnx.load(whole)
    # Remove the exporter's shape annotations, because quantization fails with them.
    del graph.graph.value_info[:]
    quantize_dynamic(graph, small, per_channel=True)


# === Contestants: texts to probabilities (N, 2) ===


def load_saved_model(folder, library, dtype, threads, clients=1, way=None):
    if way:
        # oneDNN reads this variable at its first operation.
        os.environ["TF_ONEDNN_THREADPOOL_USE_CALLER_THREAD"] = "1"
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  Its ops are in the graph.

    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=threads,
        inter_op_parallelism_threads=clients if way else max(threads, clients),
    )
    if dtype == "bfloat16":
        config.graph_options.rewrite_options.auto_mixed_precision_onednn_bfloat16 = 1
    session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
    with session.graph.as_default():
        path = str(folder / "saved_model" / "1")
        signature = tf.compat.v1.saved_model.load(session, ["serve"], path).signature_def[
            "serving_default"
        ]
        call = session.make_callable(
            signature.outputs["probabilities"].name, [signature.inputs["text"].name]
        )
    return lambda batch: call(np.array([text.encode() for text in batch], object))


def load_onnx(folder, library, dtype, threads, clients=1):
    import onnxruntime
    from tokenizers import Tokenizer

    folder = folder / f"{library}_{dtype}"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(SEQUENCE_LENGTH)
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id("[PAD]"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    ids, segments, mask, kind = "token_ids", "segment_ids", "padding_mask", "int32"
    if library == "transformers":
        ids, segments, mask, kind = "input_ids", "token_type_ids", "attention_mask", "int64"

    def answer(batch):
        encoded = tokenizer.encode_batch(batch)
        features = {
            ids: np.array([row.ids for row in encoded], kind),
            segments: np.array([row.type_ids for row in encoded], kind),
            mask: np.array([row.attention_mask for row in encoded], kind),
        }
        logits = session.run(["logits"], features)[0]
        odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return odds / odds.sum(axis=-1, keepdims=True)

    return answer


def load_torch(folder, library, dtype, threads, clients=1):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.set_num_threads(threads)
    tokenizer = AutoTokenizer.from_pretrained(folder / "transformers")
    model = AutoModelForSequenceClassification.from_pretrained(
        folder / "transformers", dtype=getattr(torch, dtype), attn_implementation="sdpa"
    ).eval()

    @torch.inference_mode()
    def answer(batch):
        inputs = tokenizer(
            batch,
            padding=True,
            truncation=True,
            max_length=SEQUENCE_LENGTH,
            return_tensors="pt",
        )
        return model(**inputs).logits.float().softmax(dim=-1).numpy()

    return answer


# === Results ===


def differences(children, folder):
    """Return by contestant the largest difference of a probability from the reference."""
    if REFERENCE not in [child.spec for child in ran(children)]:
        return {}
    expected, found = np.load(Path(folder) / f"{REFERENCE.replace('/', '_')}.npy"), {}
    for child in ran(children):
        answers = np.load(Path(folder) / f"{child.spec.replace('/', '_')}.npy")
        found[child.spec] = np.abs(answers - expected).max()
        if child.spec.endswith("float32") and found[child.spec] > TOLERANCE:
            raise SystemExit(
                f"{child.spec}: probabilities differ by {found[child.spec]:.1e}, more than "
                f"{TOLERANCE}."
            )
    return found


def report(children, off, threads, clients):
    console.print(machine(threads), soft_wrap=True)
    console.print(f"Others took at most {disturbed(children):.0%} of the machine during a run.")
    for size in SIZES:
        spent = {
            child.spec: 1e3 * np.concatenate([done["spent"][str(size)] for done in child.rounds])
            for child in ran(children)
        }
        rate = {
            child.spec: size
            * len(spent[child.spec])
            / sum(done["took"][str(size)] for done in child.rounds)
            for child in ran(children)
        }
        rows = []
        for spec in sorted(rate, key=rate.get, reverse=True):
            dtype = spec.split("/")[2]
            bases = [rate.get(f"transformers/{runtime}/{dtype}") for runtime in ("onnx", "torch")]
            rows.append(
                (
                    spec,
                    *(f"{x:.1f}" for x in np.percentile(spent[spec], (50, 95, 99))),
                    f"{rate[spec]:.0f}",
                    *(f"{rate[spec] / base:.2f}" if base else "-" for base in bases),
                    f"{off[spec]:.0e}" if spec in off else "-",
                )
            )
        title = f"Requests of {size} text{'s' if size > 1 else ''}, {clients} at a time"
        columns = ("contestant", "p50, ms", "p95", "p99", "texts/s")
        others = ("x transformers on ONNX Runtime", "on torch, same precision")
        table(title, (*columns, *others, "largest difference"), rows)


def main(
    singles: Annotated[int, typer.Option(help="requests of one text per round")] = 300,
    batches: Annotated[int, typer.Option(help="requests of 32 texts per round")] = 20,
    rounds: int = 3,
    threads: int = 2,
    clients: Annotated[
        int, typer.Option(help="simultaneous requests, which share the threads")
    ] = 1,
    wait: Annotated[int, typer.Option(help="maximum seconds to wait for a quiet machine")] = 60,
    only: Annotated[str, typer.Option(help="comma-separated prefixes of contestants")] = "",
    folder: Annotated[
        str, typer.Option(help="folder that keeps the exported models for the next run")
    ] = "",
    contestant: Annotated[str, typer.Option(hidden=True)] = "",
    settings: Annotated[str, typer.Option(hidden=True)] = "",
):
    """Run every contestant on the same requests and print their latencies."""
    if contestant:
        serve(prepare, contestant, json.loads(settings))
        return
    specs = chosen(SPECS, only)
    with tempfile.TemporaryDirectory() as temporary:
        folder = os.path.abspath(folder or temporary)
        asked = {"singles": singles, "batches": batches, "threads": threads, "clients": clients}
        asked["folder"] = folder
        for spec, made in (("export/tensorflow/-", "transformers"), ("export/torch/-", PEER)):
            if not os.path.exists(os.path.join(folder, made.replace("/onnx/", "_"))):
                export(spec, asked)
        children = race(__file__, specs, rounds, threads, asked, wait)
        off = differences(children, folder)
    failed(children)
    report(children, off, threads, clients)


def export(spec, settings):
    """Write the models of one library, in a separate process."""
    os.makedirs(settings["folder"], exist_ok=True)
    subprocess.run(
        [sys.executable, __file__, "--contestant", spec, "--settings", json.dumps(settings)],
        env=environment(spec, settings["threads"]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )


if __name__ == "__main__":
    typer.run(main)
