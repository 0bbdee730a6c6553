"""Malformed requests to exported models: each is refused or answered, and the process survives.

    python -m tests.campaigns.requests --cases 2000 --seed 1 [--only TextClassifier]

`--cases` is the number of requests per format, shared by all heads and signatures. A separate
process loads the export and sends the requests. It loads SavedModels both as Python does and as a
server's C++ session does, which does not compare ranks. If the process dies, the request counts as
a failure, and another process continues with the next request. Invalid token ids must be refused;
texts of any bytes must be answered, with finite numbers and one row per text.
"""

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile

import numpy as np
import pytest

from tests.export import tiny

FORMATS = ("saved_model", "onnx")
CAUSAL = {"is_causal": True, "num_segments": 0}
# Time limit of a process, in seconds.
SECONDS = 900
TEXTS = [
    *(b"", b" ", b"\0", b"a\0b\0", b"\xff\xfe", b"caf\xe9", b"\xed\xa0\x80", b"\xf5\x80\xc3"),
    *("日本語中文 한국", "größer ✓", "[MASK]", "[MASK] a [MASK]", "[CLS] [SEP] [PAD]", "a" * 3000),
    *(
        "word " * 800,
        "\u200b\ufeff\u202e",
        "👩‍👩‍👧 🙂",
        "\r\n\t",
        "e" + "\u0301" * 500,
        "Who met Bob?",
    ),
]
TEXTS = [text if isinstance(text, bytes) else text.encode() for text in TEXTS]
ROLES = {
    "preprocessor": {
        "query_length": 12,
        "expand_queries": True,
        "skiplist_words": [",", "?"],
        "query_token": "[",
        "text_token": "]",
    },
    "pooling": "tokens",
    "projection_dim": 8,
    "normalize": True,
}


def _tasks():
    from kerasbert import models

    def topic(encoder, tokens):
        packer = models.BertTextClassifierPreprocessor(tokens, sequence_length=64)
        return models.BertTextClassifier(encoder, labels=tiny.LABELS, preprocessor=packer)

    def names(encoder, tokens):
        packer = models.BertTokenClassifierPreprocessor(tokens, sequence_length=64)
        labels = {"labels": ["PER", "LOC"], "scheme": "BIO"}
        return models.BertTokenClassifier(encoder, **labels, preprocessor=packer)

    return tiny.tasks(topic=topic, names=names)


def _index():
    from kerasbert import SearchIndex

    parts = {"reranker": tiny.task("Reranker"), "reader": tiny.task("QuestionAnswering")}
    texts = ["the weather in rome", "a good film", "서울의 날씨", "", "bob is old"]
    return SearchIndex(tiny.task("TextEmbedder"), texts, **parts)


def _elmo():
    from kerasbert.lineage import ElmoBackbone, ElmoEmbedder

    return ElmoEmbedder(ElmoBackbone(1, 8, 4, filters=[[1, 4], [2, 4]], character_dim=4))


# Functions that create a model, by head.
KINDS = {
    name: lambda name=name: tiny.task(name)
    for name in (
        *("TextClassifier", "TextEmbedder", "QuestionAnswering", "MaskedLM", "MultipleChoice"),
        *("TextRegressor", "TokenClassifier", "Pretrainer", "NextSentencePredictor", "Reranker"),
        *("SparseEmbedder", "ReplacedTokenDetector", "StructuralProbe"),
    )
}
KINDS |= {
    "CausalLM": lambda: tiny.task("CausalLM", encoder_settings=CAUSAL),
    "LateInteraction": lambda: tiny.task("TextEmbedder", **ROLES),
    "MultiTask": _tasks,
    "SearchIndex": _index,
    "ElmoEmbedder": _elmo,
}
# Heads without an ONNX graph.
NO_ONNX = ("StructuralProbe", "SearchIndex", "ElmoEmbedder")


def export(name, format, folder):
    """Export a model in this process; return the path and the limits of its ids."""
    from kerasbert.base.parts import encoder_of
    from kerasbert.export import export_onnx, export_serving

    model = KINDS[name]()
    encoder = encoder_of(getattr(model, "embedder", model))
    limits = {
        "token_ids": getattr(encoder, "vocabulary_size", 0),
        "segment_ids": max(getattr(encoder, "num_segments", 0), 1),
        "longest": getattr(encoder, "max_sequence_length", 10**6),
        "character_ids": getattr(encoder, "num_characters", 0),
    }
    with pytest.MonkeyPatch.context() as patch:
        tiny.write_here(patch)
        if format == "onnx":
            return export_onnx(model, os.path.join(folder, "onnx"), tokenizer=False), limits
        settings = {} if name == "ElmoEmbedder" else {"preprocessor": None}
        return export_serving(model, os.path.join(folder, "served"), **settings), limits


# === Requests ===


def _rows(draw, names, limits):
    """Return a valid request of token ids: a dict of arrays."""
    rows, length, choices = (draw.randint(1, most) for most in (4, 12, 3))
    words = draw.randint(1, 5)
    found = {}
    for name, shape in names.items():
        if name.endswith(("mask_positions", "word_starts", "word_counts")):
            size, most = (rows, words), length
        elif len(shape) == 3 and shape[-1]:
            size, most = (rows, length, shape[-1]), limits["character_ids"]
        elif len(shape) == 3:
            size, most = (rows, choices, length), 2
        else:
            size, most = (rows, length), 2
        most = limits["token_ids"] if name.endswith("token_ids") else most
        most = limits["segment_ids"] if name.endswith("segment_ids") else most
        values = [draw.randrange(most) for _ in range(int(np.prod(size)))]
        found[name] = np.array(values, "int32").reshape(size)
    return found


def _least(name, limits):
    """Return the smallest value that is too large for an input."""
    for end in ("token_ids", "segment_ids", "character_ids"):
        if name.endswith(end):
            return limits[end]
    return 2 if name.endswith("mask") else 13


def of_ids(draw, names, limits):
    """Return a request of token ids, `(inputs, wrong)`; `wrong` names its fault, or is `None`."""
    inputs = _rows(draw, names, limits)
    name = draw.choice(sorted(inputs))
    x = inputs[name]
    kinds = ("right", "rank", "range", "negative", "shape", "type", "long", "none", "zero")
    kind = draw.choice(kinds + ("rank", "range", "negative", "shape"))
    every = draw.random() < 0.5
    if kind == "rank":
        shape = draw.choice([(), (1,), (1,), (1,), (3,), (2, 3, 4), (1, 1, 1, 1), (2, 3)])
        shape = shape if len(shape) != x.ndim else (5,)
        for one in inputs if every else [name]:
            inputs[one] = np.zeros(shape if inputs[one].ndim == x.ndim else (5,), "int32")
    elif kind in ("range", "negative"):
        over = draw.choice([0, 1, 1000, 2**30])
        value = min(_least(name, limits) + over, 2**31 - 1)
        value = value if kind == "range" else draw.choice([-1, -2, -(2**31)])
        x.flat[draw.randrange(x.size)] = value
    elif kind == "shape":
        if len(inputs) == 1:
            return inputs, None
        axis = draw.choice([0, x.ndim - 1 if name.endswith("ids") else 0])
        more = draw.randint(1, 3)
        inputs[name] = np.repeat(x, more + 1, axis)
        alone = sum(n.endswith(("token_ids", "padding_mask")) for n in inputs) < 2
        if axis and alone and names[name][axis] is None:  # Any length is valid.
            return inputs, None
    elif kind == "type":
        inputs[name] = draw.choice(
            [x.astype("float32"), x.astype("int64"), x.astype(str).astype(object), x > 0]
        )
    elif kind == "long":
        if limits["longest"] > 10**5:
            return inputs, None
        length = limits["longest"] + draw.choice([1, 2, 100])
        for one, values in inputs.items():
            if not one.endswith(("mask_positions", "word_starts", "word_counts")):
                inputs[one] = np.zeros((*values.shape[:-1], length), "int32")
    elif kind in ("none", "zero"):
        for one, values in inputs.items():
            shape = list(values.shape)
            shape[0 if kind == "none" else 1 if len(names[one]) == 2 else -1] = 0
            inputs[one] = np.zeros(shape, "int32")
        return inputs, "maybe"
    return inputs, None if kind == "right" else kind


def _text(draw):
    text = draw.choice(TEXTS)
    if draw.random() < 0.3:
        text += bytes(draw.randrange(256) for _ in range(draw.randint(1, 40)))
    return text


def of_texts(draw, names, limits):
    """Return a request of strings, in the form of `of_ids`."""
    rows = draw.choice([0, 1, 1, 2, 3])
    inputs = {}
    for name, shape in names.items():
        size = (rows, draw.randint(1, 3)) if len(shape) == 2 else (rows,)
        if name == "top_k":
            values = [draw.choice([-5, 0, 1, 3, 2**31 - 1]) for _ in range(rows)]
            inputs[name] = np.array(values, "int32")
            continue
        make = _example if name == "inputs" else _text
        values = [make(draw) for _ in range(int(np.prod(size)))]
        inputs[name] = np.array([*values, b""], object)[:-1].reshape(size)
    name = draw.choice(sorted(inputs))
    kind = draw.choice(["right", "right", "rank", "shape", "type", "choices"])
    if kind == "rank":
        shape = draw.choice([(), (2, 2), (1, 1, 1)])
        shape = shape if len(shape) != inputs[name].ndim else (2,)
        inputs[name] = np.full(shape, 1 if name == "top_k" else b"a", inputs[name].dtype)
    elif kind == "shape" and len(inputs) > 1:
        inputs[name] = np.concatenate([inputs[name][:1]] * 2 + [inputs[name]])
        kind = kind if rows else "maybe"  # Empty arrays stay valid.
    elif kind == "type":
        inputs[name] = np.zeros(inputs[name].shape, draw.choice(["float32", "int64"]))
    elif kind == "choices" and "choices" in inputs:
        inputs["choices"] = np.full((rows, draw.randrange(3)), b"", object)
        kind = "maybe"
    else:
        kind = "maybe" if "inputs" in inputs else None
    return inputs, kind


def _example(draw):
    """Return a serialized `tf.train.Example`, possibly damaged."""
    import tensorflow as tf

    def feature(kind):
        if kind == "bytes":
            values = [_text(draw) for _ in range(draw.choice([1, 1, 1, 0, 2]))]
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))

    names = draw.choice([["text"], ["text", "text_b"], ["text_b"], [], ["other"]])
    kinds = {name: feature(draw.choice(["bytes"] * 5 + ["ints"])) for name in names}
    found = tf.train.Example(features=tf.train.Features(feature=kinds)).SerializeToString()
    return draw.choice([found, found, found[:-1], _text(draw)])


# === The process that sends requests ===


def saved_model(path):
    """Return shapes, string inputs, and functions that run a SavedModel as Python does and as a
    server does.
    """
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  Its operations.

    loaded = tf.saved_model.load(path)
    session = tf.compat.v1.Session(graph=tf.Graph())
    with session.graph.as_default():
        served = tf.compat.v1.saved_model.load(session, ["serve"], path).signature_def

    def in_python(name, inputs):
        tensors = {key: tf.constant(value) for key, value in inputs.items()}
        return {key: x.numpy() for key, x in loaded.signatures[name](**tensors).items()}

    def in_session(name, inputs):
        signature, graph = served[name], session.graph

        def output_of(info):
            return graph.get_tensor_by_name(info.name)._as_tf_output()

        feeds = {}
        for key, value in inputs.items():
            if signature.inputs[key].dtype != tf.as_dtype(value.dtype).as_datatype_enum:
                raise TypeError(f"{key} is {value.dtype}")  # A server checks the types first.
            feeds[output_of(signature.inputs[key])] = value
        outputs = {key: output_of(info) for key, info in signature.outputs.items()}
        # `run` would compare shapes first, which servers do not.
        values = session._call_tf_sessionrun(None, feeds, list(outputs.values()), [], None)
        return dict(zip(outputs, values))

    names = {
        name: {key: x.shape.as_list() for key, x in one.structured_input_signature[1].items()}
        for name, one in loaded.signatures.items()
    }
    strings = {
        name: any(x.dtype == tf.string for x in one.structured_input_signature[1].values())
        for name, one in loaded.signatures.items()
    }
    return names, strings, (in_python, in_session)


def onnx(path):
    """Return the same as `saved_model` for an ONNX graph, whose only signature is called
    "graph".
    """
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]

    def run(name, inputs):
        return dict(zip(outputs, session.run(outputs, inputs)))

    names = {
        x.name: [n if isinstance(n, int) else None for n in x.shape] for x in session.get_inputs()
    }
    return {"graph": names}, {"graph": False}, (run,)


def check(inputs, wrong, run, name):
    """Return a description of the fault in the answer to a request, or `None`."""
    try:
        found = run(name, inputs)
    except MemoryError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())
        return None if wrong else f"refused what is right: {type(error).__name__}: {said[-300:]}"
    if wrong and wrong != "maybe":
        return f"answered a request of a wrong {wrong}"
    rows = max(len(x) for x in inputs.values())
    for key, value in found.items():
        if len({x.split("_")[0] for x in inputs}) > 3 or len(value) != rows and wrong:
            continue  # With several tasks, each has its own rows.
        if len(value) != rows:
            return f"{key} has {len(value)} rows of {rows}"
        if value.dtype.kind == "f" and np.isnan(value).any():
            return f"{key} is not a number"
    return None


def ask(path, format, limits, seed, first, last):
    """Send a range of requests; print a line before each, and one for each failure."""
    names, strings, runs = {"saved_model": saved_model, "onnx": onnx}[format](path)
    for number in range(first, last):
        draw = random.Random(f"{seed} {number}")
        # Signatures of token ids are drawn more often, because more faults are possible.
        those = [name for name in sorted(names) if not strings[name] or draw.random() < 0.5]
        name, run = draw.choice(those or sorted(names)), draw.choice(runs)
        make = of_texts if strings[name] else of_ids
        inputs, wrong = make(draw, names[name], limits)
        case = f"{name} ({run.__name__}), wrong {wrong}: " + ", ".join(
            f"{key} {value.dtype}{list(value.shape)}" for key, value in inputs.items()
        )
        print(json.dumps(["case", number, case]), flush=True)
        failed = check(inputs, wrong, run, name)
        if failed:
            print(json.dumps(["failed", number, f"{case}: {failed}"]), flush=True)
    print(json.dumps(["end", last, ""]), flush=True)


# === The campaign ===


def run_kind(name, format, cases, seed, folder):
    """Send requests to one export; return the failures."""
    path, limits = export(name, format, folder)
    first, failures = 0, []
    while first < cases:
        work = json.dumps([path, format, limits, seed, first, cases])
        done = subprocess.run(
            [sys.executable, "-m", "tests.campaigns.requests", "--ask", work],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
        failures += [f"{name} {format}: {text}" for kind, _, text in lines if kind == "failed"]
        if lines and lines[-1][0] == "end":
            break
        if not lines:
            raise RuntimeError(f"{name} {format}: no request was made: {done.stderr[-1000:]}")
        failures.append(f"{name} {format}: exit {done.returncode} at {lines[-1][2]}")
        first = lines[-1][1] + 1
    return failures


def run(cases, seed, only=None, formats=FORMATS, say=print):
    """Test all heads in all formats; return the failures."""
    failures, counts = [], collections.Counter()
    for format in formats:
        kinds = [x for x in only or KINDS if format != "onnx" or x not in NO_ONNX]
        for name in kinds:
            each = -(-cases // len(kinds))
            with tempfile.TemporaryDirectory() as folder:
                found = run_kind(name, format, each, seed, folder)
            say(f"{format} {name}: {each} requests, {len(found)} failures")
            for failure in found:
                say(f"    {failure}")
            counts[format] += each
            failures += found
    say(", ".join(f"{count} requests to {format}" for format, count in counts.items()))
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=KINDS)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ask:
        ask(*json.loads(arguments.ask))
        return
    sys.stdout.reconfigure(line_buffering=True)
    failures = run(arguments.cases, arguments.seed, arguments.only, arguments.formats)
    print(f"{len(failures)} failures, seed {arguments.seed}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
