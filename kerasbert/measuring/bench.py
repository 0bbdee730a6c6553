"""`bench`: comparison of a model's export formats.

Each format has a process; they run in rounds, one at a time, so that a slow phase affects all.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import numpy as np

from kerasbert import backend
from kerasbert.base.errors import check_value, check_whole, did_you_mean, need_packages
from kerasbert.base.files import write_json
from kerasbert.base.system import child_environment, cores
from kerasbert.converter import load_source
from kerasbert.export import export_litert, export_onnx, export_openvino, export_serving
from kerasbert.heads.base.file_readers import read_inputs
from kerasbert.heads.base.served import columns_of, packed
from kerasbert.heads.base.served_models import load, quantization_modes, saved_class, served
from kerasbert.heads.base.spans import MASKED
from kerasbert.heads.base.task import BertTask
from kerasbert.kinds import KINDS
from kerasbert.measuring.contestant import stripped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# By format: extra and packages.
NEEDS = {
    "keras": None,
    "saved_model": None,
    "onnx": ("onnx", "onnx", "onnxruntime", "tf2onnx"),
    "openvino": ("openvino", "nncf", "onnx", "openvino", "tf2onnx"),
    "litert": ("litert", "ai_edge_litert"),
}
FORMATS = (
    "keras/float32",
    "keras/bfloat16",
    "saved_model/float32",
    "saved_model/int8",
    "onnx/float32",
    "onnx/int8",
    "openvino/float32",
    "openvino/int8",
    "litert/float32",
    "litert/int8",
)
# Texts whose outputs are compared with the model's, and the batch size for it.
COMPARED = 256
PART = 32
# Texts to calibrate OpenVINO's int8.
CALIBRATED = 300
# Differences up to this share of the largest output count as exact.
EXACT = 1e-3
PERCENTILES = (50, 95, 99)


def bench(
    model: Any,
    texts: Any,
    *,
    task: Any = None,
    columns: Sequence[str] | None = None,
    encoding: str | None = None,
    batch_size: int = 32,
    rounds: int = 3,
    seconds: float = 2.0,
    threads: int | None = None,
    formats: Sequence[str] | None = None,
    verbose: bool = True,
) -> dict[str, Any]:
    """Benchmark a model on your texts in every format and precision that runs here.

    Requests are raw texts. Keras runs the model's inference method, such as `classify`, on the
    current backend; a SavedModel runs in a session, as in TensorFlow Serving; other formats run
    `tokenizers` and the format's runtime, up to the network's outputs.

    Args:
        model: string or model. A preset with a head: a directory, a handle or a name.
        texts: string or list. A file with one text per line, or a table; a `.jsonl` file may also
            hold lists, such as a question and its context. Or a list of these.
        task: string. Task as which the preset is loaded, such as "text_embedder" for a preset
            without a head.
        columns: list of strings. Text columns of a table; two for pairs.
        encoding: encoding of a file that is not UTF-8.
        batch_size: texts per request for throughput.
        rounds: int.
        seconds: time per format and round for single texts, and the same again for batches.
        threads: int. `None` uses all cores.
        formats: list of strings, such as "onnx" or "onnx/int8"; `None` runs all formats.
        verbose: whether to print progress.

    Returns:
        A dict: `model`, `texts` (their number), `batch_size`, `threads`, `machine`, `results`,
        `left_out` (a sentence for each format whose extra is missing) and `advice`. A result has
        `format`, `precision`, and either `error` or the following: `latency_ms` (`p50`, `p95` and
        `p99` of single texts), `texts_per_second` in batches, `memory_mb` (peak of the process),
        `size_mb` on disk, `difference` (the largest difference from the model's outputs), `share`
        (its ratio to the largest output) and `note`.

    Raises:
        ValueError: for a model, texts or settings that cannot be measured.
    """
    for name, value in (("batch_size", batch_size), ("rounds", rounds)):
        check_whole(name, value)
    check_value("seconds", seconds, "positive")
    if threads is not None:
        check_whole("threads", threads)
    threads = threads or cores()
    specs, left_out = _chosen(formats)
    found, tokenizer = load_source(model, task)
    served_task = _check_model(found, model)
    columns = columns or served_task.columns
    if isinstance(texts, (str, os.PathLike)):
        texts = read_inputs(os.fspath(texts), columns, encoding)
    signature, rows = columns_of(served_task, texts)
    say = print if verbose else lambda *_: None
    with tempfile.TemporaryDirectory(prefix="kerasbert-bench-") as folder:
        job = _write_job(folder, served_task, signature, rows)
        job |= {
            "texts": texts[:CALIBRATED],
            "batch_size": batch_size,
            "seconds": seconds,
            "threads": threads,
        }
        write_json(os.path.join(folder, "job.json"), job)
        results = _race(folder, found, specs, rounds, job, say)
    return {
        "model": type(found).__name__,
        "texts": len(texts),
        "batch_size": batch_size,
        "threads": threads,
        "machine": _machine(),
        "results": results,
        "left_out": left_out,
        "advice": advice(results, batch_size),
    }


def _chosen(formats):
    """Return the formats to run, and a sentence for each format whose packages are missing."""
    names = list(NEEDS)
    wanted = [formats] if isinstance(formats, str) else list(formats or names)
    for name in wanted:
        if name not in (*names, *FORMATS):
            raise ValueError(
                f"Unknown format '{name}' in formats"
                + did_you_mean(name, (*names, *FORMATS), f"; choose from {', '.join(FORMATS)}.")
            )
    chosen, left_out = [], []
    for name in names:
        specs = [x for x in FORMATS if x.startswith(f"{name}/") and {x, name} & set(wanted)]
        try:
            if specs and NEEDS[name]:
                need_packages(name, *NEEDS[name])
            chosen += specs
        except ImportError as error:
            left_out.append(str(error))
    if not chosen:
        raise ValueError(" ".join(left_out) or "formats=[] leaves nothing to measure.")
    return chosen, left_out


def _check_model(model, source):
    """Return the `Served` of a model that can be measured."""
    source = source if isinstance(source, (str, os.PathLike)) else "The model"
    if not isinstance(model, BertTask):
        raise ValueError(
            f"'{source}' holds a {type(model).__name__}, which has no head to answer texts; "
            "read it as another task, such as --task text_embedder (in Python task=), or train one "
            "with `kerasbert finetune`."
        )
    if not KINDS[model.kind].single:
        raise ValueError(
            f"'{source}' holds a {type(model).__name__} with several heads; save and measure each "
            "head separately."
        )
    if model.preprocessor is None:
        raise ValueError(f"'{source}' has no preprocessor and cannot read texts; add one.")
    if quantization_modes(model):
        raise ValueError(
            f"'{source}' is quantized, but other formats are exported from float weights; measure "
            "the original model."
        )
    return served(model, call="bench")


# === Input of the processes ===


def _write_job(folder, task, signature, rows):
    """Write the model, and its outputs for some texts; return the settings of the measurement."""
    model = task.model
    preset = os.path.join(folder, "keras")
    method = KINDS[model.kind].method
    # Called once, so that its errors are raised before any format is prepared.
    first = [column[0] for column in rows.values()]
    is_pair = len(first) > len(task.columns)
    try:
        getattr(model, method)(*([tuple(first)] if is_pair else first))
    except TypeError as error:
        raise ValueError(str(error)) from error
    model.save_to_preset(preset)
    parts, arrays, token_ids, largest = 0, {}, [], 0.0
    count = min(COMPARED, len(next(iter(rows.values()))))
    for start in range(0, count, PART):
        columns = {name: column[start : min(start + PART, count)] for name, column in rows.items()}
        features = packed(task, columns)
        with backend.full_float32():
            outputs = task.tokens_of("tokens", features)
        for name, x in features.items():
            arrays[f"{parts}/features/{name}"] = x
        for name, x in outputs.items():
            arrays[f"{parts}/outputs/{name}"] = np.asarray(x, "float32")
            largest = max(largest, np.abs(x[np.abs(x) < -MASKED / 10]).max(initial=0))
        token_ids += features["token_ids"].tolist()
        parts += 1
    np.savez(os.path.join(folder, "expected.npz"), **arrays)
    tokenizer = model.preprocessor.tokenizer
    pad_id = tokenizer.pad_token_id
    return {
        "class": saved_class(model),
        "preset": preset,
        "method": method,
        "pairs": is_pair,
        "signature": signature,
        "columns": rows,
        "inputs": list(features),
        "outputs": list(outputs),
        "batches": parts,
        "impossible": -MASKED / 10,
        "largest": float(largest),
        "token_ids": [stripped(row, pad_id) for row in token_ids],
        "pad_id": pad_id,
        "mask_token": tokenizer.mask_token,
        "length": max(x.shape[-1] for key, x in arrays.items() if key.endswith("/token_ids")),
    }


def _export(model, folder, spec, job):
    """Export a model to a format. For Keras nothing is exported, because it reads the preset."""
    format, precision = spec.split("/")
    target = os.path.join(folder, format, precision)
    windows = hasattr(model.preprocessor, "doc_stride")
    if format not in ("keras", "saved_model") and windows:
        raise ValueError(
            "this format needs a program that splits contexts into windows and extracts answers"
        )
    if format == "saved_model":
        if precision == "int8":
            model, _ = load(job["preset"], job["class"])
            model.quantize("int8")
        export_serving(model, target)
    elif format == "litert":
        export_litert(model, target, precision, job["length"])
    elif format == "openvino":
        texts = job["texts"] if precision == "int8" else None
        export_openvino(model, target, precision, texts=texts)
    elif format == "onnx":
        export_onnx(model, target, precision)


def _size(folder):
    return sum(
        os.path.getsize(os.path.join(place, name))
        for place, _, names in os.walk(folder)
        for name in names
    )


# === Measuring ===


def _race(folder, model, specs, rounds, job, say):
    """Measure all formats; return a list with one dict per format."""
    results, children = [], {}
    with contextlib.ExitStack() as stack:
        for spec in specs:
            format, precision = spec.split("/")
            result = {"format": format, "precision": precision}
            results.append(result)
            say(f"{spec}: preparing")
            try:
                _export(model, folder, spec, job)
                child = stack.enter_context(Child(folder, spec, job["threads"]))
                result |= child.answer()
                children[spec] = child, result, []
            except (ValueError, TypeError, RuntimeError, ImportError) as error:
                result["error"] = str(error)
        for number in range(rounds):
            for spec, (child, result, done) in children.items():
                say(f"round {number + 1} of {rounds}: {spec}")
                try:
                    done.append(child.run())
                except RuntimeError as error:
                    result["error"] = str(error)
        for spec, (_, result, done) in children.items():
            if "error" not in result:
                place = job["preset"] if spec.startswith("keras/") else os.path.join(folder, spec)
                result |= _summary(done, job) | {"size_mb": _size(place) / 1e6}
                result["share"] = result["difference"] / max(job["largest"], 1e-9)
    return results


def _summary(rounds, job):
    singles = np.concatenate([done["singles"] for done in rounds])
    batches = np.concatenate([done["batches"] for done in rounds])
    peaks = [done["memory"] for done in rounds if done["memory"]]
    percentiles = np.percentile(1e3 * singles, PERCENTILES).tolist()
    return {
        "latency_ms": {f"p{share}": x for share, x in zip(PERCENTILES, percentiles)},
        "texts_per_second": job["batch_size"] * len(batches) / float(batches.sum()),
        "memory_mb": max(peaks) / 1e6 if peaks else None,
    }


class Child:
    """The process of one format; a context manager that ends it."""

    def __init__(self, folder, spec, threads):
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self._process = subprocess.Popen(
            # With -P, a `keras.py` in the current folder is ignored.
            [sys.executable, "-P", "-m", "kerasbert.measuring.contestant", folder, spec],
            env=_environment(spec, threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):
                file.close()

    def run(self):
        """Run one more round and return its result."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return self.answer()

    def answer(self):
        """Read the next message of the process.

        Raises:
            RuntimeError: if the process has ended, with the last line of its error output.
        """
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        code = self._process.wait()
        self._errors.seek(0)
        said = [line for line in self._errors.read().splitlines() if line.strip()]
        if code < 0:
            raise RuntimeError(f"the process was killed by signal {-code}; it may lack memory")
        raise RuntimeError(said[-1] if said else f"the process ended with exit code {code}")


def _environment(spec, threads):
    name = backend.name() if spec.startswith("keras/") else "tensorflow"
    variables = {
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": str(threads),
        "RAYON_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "true",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        # No process may reserve all of the accelerator's memory, which all share.
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    return child_environment(name, **variables)


# === Results ===


def advice(results, batch_size):
    """Recommend exact and approximate formats, for single texts and batches, in one line.

    >>> row = {"format": "onnx", "precision": "int8", "share": 0.1, "texts_per_second": 100.0}
    >>> advice([{**row, "latency_ms": {"p50": 2.0}}], 32)
    'For single texts use onnx/int8 (2.0 ms); for batches of 32 onnx/int8 (100 texts/s).'
    """
    ran = [row for row in results if "error" not in row]
    if not ran:
        return "No format could be measured."
    exact = [row for row in ran if row["share"] <= EXACT]

    def best(rows):
        return (
            min(rows, key=lambda row: row["latency_ms"]["p50"]),
            max(rows, key=lambda row: row["texts_per_second"]),
        )

    def words(single, batch):
        return (
            f"For single texts use {_name(single)} ({single['latency_ms']['p50']:.1f} ms); for "
            f"batches of {batch_size} {_name(batch)} ({batch['texts_per_second']:.0f} texts/s)"
        )

    fastest = best(ran)
    if not exact or best(exact) == fastest:
        return f"{words(*fastest)}."
    single, batch = fastest
    rounded = [row for row in fastest if row not in exact]
    most = max(row["difference"] for row in rounded)
    return (
        f"{words(*best(exact))}. If evaluation shows that differences of {most:.2g} do no harm, "
        f"take {_name(single)} ({single['latency_ms']['p50']:.1f} ms) and {_name(batch)} "
        f"({batch['texts_per_second']:.0f} texts/s)."
    )


def _name(row):
    return f"{row['format']}/{row['precision']}"


def _machine():
    """Describe the processor, and its features on which the speed of int8 and bfloat16 depends."""
    model, flags = platform.processor() or platform.machine(), []
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        lines = dict(map(str.strip, line.split(":", 1)) for line in file if ":" in line)
        model = lines.get("model name", model)
        known = "avx2 avx512f avx512_vnni avx_vnni avx512_bf16 amx_int8 amx_bf16".split()
        flags = [name for name in known if name in lines.get("flags", "").split()]
    return f"{model}, {cores()} cores" + (f" ({' '.join(flags)})" if flags else "")
