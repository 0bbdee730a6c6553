"""The process in which `bench` measures one format.

    python -m kerasbert.measuring.contestant FOLDER FORMAT/PRECISION

It imports only what the format needs, because memory is measured. `FOLDER/job.json` has the
settings. A line of input starts a round, whose result is a line of JSON.

N texts, T tokens.
"""

import itertools
import os
import random
import sys
from time import perf_counter

import numpy as np

from kerasbert.base import runtimes
from kerasbert.base.errors import first_line
from kerasbert.base.files import read_json
from kerasbert.base.memory import peak_bytes
from kerasbert.base.strict_json import to_json
from kerasbert.base.system import hold_to_cores

WARM = 9


def main(folder, spec):
    job = read_json(os.path.join(folder, "job.json"))
    # Libraries print to stdout.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(**found):
        answers.write(to_json(found) + "\n")
        answers.flush()

    hold_to_cores(job["threads"])
    format, precision = spec.split("/")
    answer, compute, note = LOADERS[format](os.path.join(folder, *spec.split("/")), precision, job)
    difference = _difference(compute, folder, job)
    rows, size = Rows(job["columns"]), job["batch_size"]
    _warm(answer, rows, size)
    say(difference=difference, note=note)
    for _ in sys.stdin:
        singles = _timed(answer, rows, 1, job["seconds"])
        batches = _timed(answer, rows, size, job["seconds"])
        say(singles=singles, batches=batches, memory=peak_bytes())


class Rows:
    """The texts as an endless stream, in the same random order for all formats.

    Args:
        columns: dict of name to list of N inputs.
    """

    def __init__(self, columns):
        self._columns = columns
        self.count = len(next(iter(columns.values())))
        order = random.Random(0).sample(range(self.count), self.count)
        self._next = {}
        self._order = order

    def by_length(self):
        """Return the indices of the texts, short ones first."""
        return sorted(
            range(self.count),
            key=lambda i: sum(len(str(column[i])) for column in self._columns.values()),
        )

    def at(self, places):
        """Return the texts with these indices as a dict of columns."""
        places = list(places)
        return {name: [column[i] for i in places] for name, column in self._columns.items()}

    def take(self, size):
        """Return the next `size` texts; each size has its own position in the stream."""
        numbers = self._next.setdefault(size, itertools.cycle(self._order))
        return self.at(itertools.islice(numbers, size))


def _warm(answer, rows, size):
    """Answer texts of all lengths once: libraries compile each shape."""
    order = rows.by_length()
    places = {order[round(i)] for i in np.linspace(0, len(order) - 1, WARM)}
    for place in places:
        answer(rows.at([place]))
    for place in places:
        # Similar lengths, then any.
        at = order.index(place)
        answer(rows.at(itertools.islice(itertools.cycle(order[max(0, at + 1 - size) :]), size)))
        answer(rows.take(size))


def _timed(answer, rows, size, seconds):
    """Answer requests of `size` texts for some seconds; return the seconds per request."""
    spent, end = [], perf_counter() + seconds
    while not spent or perf_counter() < end:
        texts = rows.take(size)
        start = perf_counter()
        answer(texts)
        spent.append(perf_counter() - start)
    return spent


# === Difference from the model ===


def _difference(compute, folder, job):
    """Return the largest difference between unmasked outputs and the model's."""
    worst = 0.0
    with np.load(os.path.join(folder, "expected.npz")) as file:
        for i in range(job["batches"]):
            features = {name: file[f"{i}/features/{name}"] for name in job["inputs"]}
            found = compute(features)
            for name in job["outputs"]:
                wanted = file[f"{i}/outputs/{name}"]
                got = np.asarray(found[name], "float32")
                got = got[tuple(map(slice, wanted.shape))]  # LiteRT pads rows.
                there = np.abs(wanted) < job["impossible"]
                if wanted.shape[:2] == features["padding_mask"].shape:
                    mask = features["padding_mask"] > 0
                    there &= mask.reshape(*mask.shape, *[1] * (wanted.ndim - 2))
                worst = max(worst, float(np.abs(got - wanted)[there].max(initial=0)))
    return worst


# === The formats ===
#
# Each loader takes the format's folder, the precision and the job. It returns a function that
# answers texts (a dict of columns) as a user's program would, a function from features to the
# network's outputs, and a note for the report.


def _load_keras(_, precision, job):
    import keras

    from kerasbert.base.lazy import load_models
    from kerasbert.heads.base.served_models import served

    load_models()
    cls = keras.saving.get_registered_object(job["class"])
    dtype = {"float32": "float32", "bfloat16": "mixed_bfloat16"}[precision]
    model = cls.from_preset(job["preset"], dtype=dtype)
    method, size = getattr(model, job["method"]), job["batch_size"]

    def answer(columns):
        values = [column if len(column) > 1 else column[0] for column in columns.values()]
        values = [tuple(values)] if job["pairs"] else values
        return method(*values, batch_size=size)

    task = served(model)
    return answer, lambda features: task.tokens_of("tokens", features), ""


def _load_saved_model(folder, precision, job):
    (version,) = (name for name in os.listdir(folder) if name.isdecimal())
    run_of = runtimes.saved_model(os.path.join(folder, version), job["threads"])
    run = run_of(job["signature"])
    return lambda columns: run(_bytes(columns)), run_of("tokens"), ""


def _bytes(columns):
    """Encode texts as in a request to a server; lists of choices are padded with ""."""
    found = {}
    for name, values in columns.items():
        if not isinstance(values[0], str):
            counts = [len(choices) for choices in values]
            values = [_filled(choices, counts) for choices in values]
        rows = [x.encode() if isinstance(x, str) else [y.encode() for y in x] for x in values]
        found[name] = np.array(rows, object)
    return found


def _filled(choices, counts):
    return [*choices, *[""] * (max(counts) - len(choices))]


def _load_graph(load, file):
    def load_graph(folder, precision, job):
        run = load(os.path.join(folder, file), job["threads"])
        pack, note = _packer(folder, job)

        def compute(features):
            length = job["length"] if file.endswith(".tflite") else 0
            return run({name: _padded(x, length) for name, x in features.items()})

        return lambda columns: run(pack(columns)), compute, note

    return load_graph


def _padded(rows, length):
    """Pad rows (..., T) with zeros to a length."""
    missing = max(0, length - rows.shape[-1])
    return np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, missing)])


def _packer(folder, job):
    """Return a function from texts to a graph's inputs, and a note if tokens differ from the
    model's.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    mask_id = tokenizer.token_to_id(job["mask_token"])

    def pack(columns):
        rows = list(zip(*columns.values())) if len(columns) > 1 else columns["text"]
        choices = columns.get("choices", ())
        counts = [len(row) for row in choices]
        if counts:
            rows = [(prompt, choice) for prompt, row in rows for choice in _filled(row, counts)]
        encoded = tokenizer.encode_batch(rows)
        found = {
            "token_ids": np.array([row.ids for row in encoded], "int32"),
            "segment_ids": np.array([row.type_ids for row in encoded], "int32"),
            "padding_mask": np.array([row.attention_mask for row in encoded], "int32"),
        }
        if "mask_positions" in job["inputs"]:
            places = [np.flatnonzero(row == mask_id) for row in found["token_ids"]]
            most = max(1, *map(len, places))
            places = [np.pad(row, (0, most - len(row))) for row in places]
            found["mask_positions"] = np.array(places, "int32")
        found = {name: found[name] for name in job["inputs"]}
        if counts:
            missing = np.arange(max(counts)) >= np.array(counts)[:, None]  # (N, C)
            for name, x in found.items():
                found[name] = x.reshape(*missing.shape, x.shape[-1])
                found[name][missing] = job["pad_id"] if name == "token_ids" else 0
        return found

    ours = job["token_ids"]
    columns = {name: values[: len(ours)] for name, values in job["columns"].items()}
    rows = pack(columns)["token_ids"].tolist()
    others = sum(stripped(a, job["pad_id"]) != b for a, b in zip(rows, ours))
    return pack, f"{others} of {len(ours)} texts are tokenized differently" if others else ""


def stripped(row, pad_id):
    """Return ids without padding at their end; nested lists are flattened."""
    if row and isinstance(row[0], list):
        return [id for one in row for id in stripped(one, pad_id)]
    end = len(row)
    while end and row[end - 1] == pad_id:
        end -= 1
    return row[:end]


LOADERS = {
    "keras": _load_keras,
    "saved_model": _load_saved_model,
    "onnx": _load_graph(runtimes.onnx_runtime, "model.onnx"),
    "openvino": _load_graph(runtimes.openvino, "model.xml"),
    "litert": _load_graph(runtimes.litert, "model.tflite"),
}


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        sys.exit(first_line(error))
