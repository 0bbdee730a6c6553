"""The TensorFlow process of `export_serving`: rebuild, trace, save and check the model.

    python -m kerasbert.export.write_saved_model FOLDER

FOLDER holds `preset/`, `job.json` (settings, and inputs for the checks) and `expected.npz` (the
model's own answers). The result is `FOLDER/saved_model/`.
"""

import gc
import os
import sys
import urllib.parse

import numpy as np

from kerasbert import backend
from kerasbert.backend.onnx import KERNELS
from kerasbert.backend.tensorflow import tf
from kerasbert.base import keras_internals
from kerasbert.base.files import read_json, write_files, write_json
from kerasbert.base.strict_json import to_json
from kerasbert.export.child_process import end_with_parent
from kerasbert.export.serving_ops import TENSORFLOW_OPS, TENSORFLOW_TEXT_OPS
from kerasbert.heads.base.served_models import load, served
from kerasbert.heads.base.spans import MASKED

# Invalid UTF-8, which clients can send but Python strings cannot hold.
BROKEN = [b"caf\xe9", b"\xff\xfe\x00\xd8", b"\xed\xa0\x80 \xf5\x80", b"\0\0", b"\xc3"]
TOLERANCE = 1e-5
# Tolerance for quantized models, where backends may round differently by one of 127 steps.
LOOSE = 0.05


def main(folder):
    job = read_json(os.path.join(folder, "job.json"))
    with np.load(os.path.join(folder, "expected.npz")) as file:
        stores = {"arrays": dict(file), "strings": job["strings"]}

    def arrays(found):
        # Strings are in object arrays, because NumPy's string arrays drop trailing NULs.
        types = {"arrays": None, "strings": object}
        return {
            key: np.asarray(stores[kind][place], types[kind])
            for key, (kind, place) in found.items()
        }

    model, preprocessor = load(os.path.join(folder, "preset"), job["class"], job["mode"])
    task = served(model, preprocessor, job["labels"], job["settings"])
    path = os.path.join(folder, "saved_model")
    write(task, job, path)
    check_ops(path)
    check_size(task, path)
    batches = [(name, arrays(x), arrays(y)) for name, x, y in job["batches"]]
    probes = [(name, inputs, arrays(y)) for name, inputs, y in job["probes"]]
    del task, model, preprocessor  # Frees gigabytes; the session loads its own weights.
    gc.collect()
    tolerance = LOOSE if job["mode"] else TOLERANCE
    check_answers(path, batches, probes, job["warmup"], tolerance, job["rounding"])


def write(task, job, path):
    """Trace the signatures and write the SavedModel with its card, labels and warmup requests."""
    known = task.signatures(job["tokens_only"])
    known = {name: known[name] for name in job["signatures"]}
    # This kernel does not use `attend_in_turns`, which adds ops that stock servers lack for its
    # backward pass.
    with backend.using({"attention": KERNELS["attention"]}):
        functions = {
            name: tf.function(signature.checked, autograph=False).get_concrete_function(
                **signature.inputs
            )
            for name, signature in known.items()
        }
    module = tf.Module()
    # The variables are listed here, because TensorFlow's C++ loader does not find variables inside
    # Keras objects.
    variables = {id(v): v for function in functions.values() for v in function.variables}
    module.weights = list(variables.values())
    tf.saved_model.save(module, path, signatures=functions)
    _set_methods(path, {name: signature.method for name, signature in known.items()})
    extra = os.path.join(path, "assets.extra")
    os.mkdir(extra)
    write_json(os.path.join(extra, "card.json"), card(task, job, known, functions, ops_in(path)))
    if job["labels"]:
        write_json(os.path.join(extra, "labels.json"), job["labels"])
    if job["warmup"]:
        with tf.io.TFRecordWriter(os.path.join(extra, "tf_serving_warmup_requests")) as file:
            for name, inputs in job["warmup"]:
                file.write(warmup_record(name, inputs))


def _set_methods(path, methods):
    """Mark the signatures for Classify and Regress; TensorFlow marks all signatures as Predict."""
    saved_model = _read(path)
    for name, method in methods.items():
        saved_model.meta_graphs[0].signature_def[name].method_name = method
    write_files(path, {"saved_model.pb": saved_model.SerializeToString(deterministic=True)})


def _read(path):
    from tensorflow.core.protobuf import saved_model_pb2

    saved_model = saved_model_pb2.SavedModel()
    with open(os.path.join(path, "saved_model.pb"), "rb") as file:
        saved_model.ParseFromString(file.read())
    return saved_model


def card(task, job, signatures, functions, ops):
    """Describe the SavedModel, as a dict for `card.json`."""

    def describe(specs):
        return {
            name: {"dtype": spec.dtype.name, "shape": spec.shape.as_list()}
            for name, spec in sorted(specs.items())
        }

    found = {
        "name": job["name"],
        "model": task.title,
        "parameters": sum(int(np.prod(weight.shape)) for weight in weights_of(task)),
        "weights": job["mode"] or "float32",
        # `kerasbert` is not imported, because a module may import only from lower levels.
        "kerasbert": sys.modules["kerasbert"].__version__,
        "labels": job["labels"],
        "settings": task.model_settings(),
        "signatures": {
            name: {
                "method": signature.method.split("/")[-1],
                "inputs": describe(signature.inputs),
                "outputs": describe(functions[name].structured_outputs),
            }
            for name, signature in signatures.items()
        },
    }
    if ops & TENSORFLOW_TEXT_OPS:
        # Servers include these ops; Python needs the package.
        found["python"] = "import tensorflow_text before tf.saved_model.load"
    if "serving_default" in signatures:
        found["request"] = {"instances": [task.example()]}
        text = to_json(found["request"], ensure_ascii=False).replace("'", "'\\''")
        name = urllib.parse.quote(job["name"])
        url = f"http://localhost:8501/v1/models/{name}:predict"
        found["curl"] = f"curl -X POST '{url}' -d '{text}'"
    return found


def warmup_record(name, inputs):
    """Return a serialized `tensorflow.serving.PredictionLog` with a request for a signature.

    It is encoded without the package that defines these messages, which is large. Field numbers:
    PredictionLog.predict_log = 6, PredictLog.request = 1, PredictRequest.model_spec = 1 and
    .inputs = 2 (a map: key 1, value 2), ModelSpec.signature_name = 3.
    """
    request = _field(1, _field(3, name.encode()))
    for key, value in inputs.items():
        tensor = tf.make_tensor_proto(_encoded(value), tf.string).SerializeToString()
        request += _field(2, _field(1, key.encode()) + _field(2, tensor))
    return _field(6, _field(1, request))


def _encoded(texts):
    """Encode lists of strings as arrays of bytes."""
    if isinstance(texts, (list, tuple)):
        return np.array([_encoded(text) for text in texts], object)
    return texts if isinstance(texts, bytes) else texts.encode("utf-8", "replace")


def _field(number, data):
    """Encode a bytes field of a protocol buffer: its key, its length as a varint, and the bytes."""
    size, length = len(data), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


def ops_in(path):
    """Return the set of ops in a SavedModel's graph."""
    return {node.op for meta_graph in _read(path).meta_graphs for node in _nodes(meta_graph)}


def _nodes(meta_graph):
    """Return the nodes of a graph and of its functions."""
    functions = meta_graph.graph_def.library.function
    nodes = [node for function in functions for node in function.node_def]
    return [*nodes, *meta_graph.graph_def.node]


def check_ops(path):
    """Raise if the graph has ops that a stock TensorFlow Serving 2.12 cannot run."""
    for meta_graph in _read(path).meta_graphs:
        functions, nodes = meta_graph.graph_def.library.function, _nodes(meta_graph)
        calls = {function.signature.name for function in functions}
        unknown = {node.op for node in nodes} - calls - TENSORFLOW_OPS - TENSORFLOW_TEXT_OPS
        if unknown:
            raise ValueError(
                f"The graph uses the ops {', '.join(sorted(unknown))}, which stock servers lack; "
                "replace the layer or activation, or pass tokens_only=True if the tokenizer uses "
                "them."
            )
        if any(item.attr[keras_internals.XLA_MUST_COMPILE].b for item in (*functions, *nodes)):
            raise ValueError(
                "Part of the graph has jit_compile=True, which stock servers refuse; remove it "
                "from your layers."
            )


def weights_of(task):
    """Return the weights that answers depend on, each once."""
    weights = (weight for part in task.parts.values() for weight in part.net.weights)
    return list({id(weight): weight for weight in weights}.values())


def check_size(task, path):
    """Raise if weights are missing or duplicated."""
    written = sum(file.stat().st_size for file in os.scandir(os.path.join(path, "variables")))
    size = sum(weight.numpy().nbytes for weight in weights_of(task)) + task.more_bytes()
    if not size <= written <= 1.01 * size + 2**16:
        raise ValueError(f"The weights have {size:,} bytes, but {written:,} were written.")


def check_answers(path, batches, probes, warmup, tolerance=TOLERANCE, rounding=0):
    """Load the SavedModel as a server does, and compare each signature's answers with the model's.

    Args:
        path: the SavedModel.
        batches: list of `(signature, features, outputs)`; the last two are dicts of arrays.
        probes: list of `(signature, inputs, answers)` for texts; see `Served.expected`.
        warmup: list of `(signature, inputs)`.
        tolerance: tolerance relative to the largest output.
        rounding: absolute tolerance.
    """
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], path).signature_def

        def run(name, inputs):
            signature = loaded[name]
            feeds = {signature.inputs[key].name: value for key, value in inputs.items()}
            outputs = {key: tensor.name for key, tensor in signature.outputs.items()}
            found = session.run(outputs, feeds)
            check_rows(name, inputs, found)
            return found

        least = max(1, rounding / tolerance)
        for name, features, outputs in batches:
            found = run(name, features)
            for key, wanted in outputs.items():
                compare(key, found[key], wanted, tolerance, least)
        # The tolerance of scores is that of the logits from which they are computed.
        scale = max([least, *(_largest(y) for _, _, x in batches for y in x.values())])
        for name, inputs, answers in probes:
            texts = {key: _column(key, value) for key, value in inputs.items()}
            compare_answers(name, run(name, texts), dict(answers), tolerance, scale)
            if "inputs" not in inputs:
                for few in (_broken(texts), {key: value[:0] for key, value in texts.items()}):
                    _check_finite(name, few, run(name, few))
        for name, inputs in warmup:
            inputs = {key: _encoded(value) for key, value in inputs.items()}
            _check_finite(name, inputs, run(name, inputs))


def check_rows(name, inputs, outputs):
    """Raise unless outputs have one row per input row: servers split batches of requests by row."""
    rows = len(next(iter(inputs.values())))
    for key, value in outputs.items():
        if value.shape[:1] != (rows,):
            raise ValueError(
                f"The {key} of '{name}' have the shape {value.shape} for {rows} rows of inputs."
            )


def _column(key, values):
    """Return an input as a client sends it; items of `inputs` become `tf.train.Example`s."""
    first = values[0][0] if isinstance(values[0], list) else values[0]
    if isinstance(first, int):
        return np.array(values, "int32")
    if key != "inputs":
        return _encoded(values)
    rows = []
    for row in values:
        features = {
            name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
            for name, text in zip(("text", "text_b"), row)
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        rows.append(example.SerializeToString())
    return np.array(rows, object)


def _broken(texts):
    """Return texts of the same shapes that are not valid UTF-8."""
    return {
        key: np.resize(
            # Conditions of a search have only a few valid values.
            np.array(BROKEN, object)
            if column.dtype == object and not key.startswith("where_")
            else column,
            (len(BROKEN), *column.shape[1:]),
        )
        for key, column in texts.items()
    }


def _check_finite(name, inputs, outputs):
    for key, value in outputs.items():
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise ValueError(f"The {key} of '{name}' for {inputs} are not finite.")


def compare_answers(name, found, wanted, tolerance=TOLERANCE, scale=1):
    """Raise if answers differ from the model's in rows where the best answer leads clearly."""
    clear = wanted.pop("clear", None)  # One bool per row, or per answer in a row.
    if set(found) != set(wanted):
        raise ValueError(
            f"'{name}' returns {sorted(found)}, but the model returns {sorted(wanted)}."
        )
    for key, answers in wanted.items():
        if (
            clear is None
            or answers.dtype.kind == "f"
            and key in ("probabilities", "scores", "weight")
        ):
            compare(key, found[key], answers, tolerance, scale)
            continue
        if clear.ndim == 2 and answers.ndim == 2:
            if np.shape(found[key]) != answers.shape:
                compare(key, found[key], answers, tolerance, scale)  # Raises the error.
            compare(key, np.asarray(found[key])[clear], answers[clear], tolerance, scale)
            continue
        for row in np.flatnonzero(clear if clear.ndim == 1 else np.ones(len(clear), bool)):
            ours, theirs = found[key][row], answers[row]
            if np.ndim(theirs):  # Other rows may have more columns.
                size = min(len(ours), len(theirs))
                ours, theirs = ours[:size], theirs[:size]
            compare(key, ours, theirs, tolerance, scale)


def compare(name, found, wanted, tolerance=TOLERANCE, scale=1):
    """Raise if an output differs from the model's by more than `tolerance`.

    The tolerance is relative to the largest number or to `scale`, whichever is larger.
    """
    if isinstance(wanted, str) or wanted.dtype.kind in "OSU":
        shape = np.shape(wanted)
        wanted = np.asarray(_encoded(np.asarray(wanted, object).tolist()), object).reshape(shape)
    found = np.asarray(found, object if wanted.dtype == object else None)
    if found.shape != wanted.shape:
        raise ValueError(
            f"The SavedModel's {name} have the shape {found.shape}, the model's {wanted.shape}."
        )
    if wanted.dtype.kind != "f":
        if not (found == wanted).all():
            raise ValueError(
                f"The SavedModel's {name} are {found.tolist()}, the model's {wanted.tolist()}."
            )
        return
    off = np.abs(np.where(_masked(wanted), found != wanted, found - wanted)).max(initial=0)
    if not off <= tolerance * max(scale, _largest(wanted)):
        raise ValueError(f"The {name} of the SavedModel differ from the model's by {off:.2g}.")


def _masked(values):
    """Return where answers are masked as impossible."""
    return np.abs(values) >= -MASKED


def _largest(values):
    """Return the largest unmasked number, at least 1."""
    return np.abs(values[~_masked(values)]).max(initial=1) if values.dtype.kind == "f" else 1


if __name__ == "__main__":
    end_with_parent()
    try:
        main(sys.argv[1])
    except Exception as error:
        message = " ".join(str(error).split("\n\n")[0].split())
        sys.exit(message or type(error).__name__)
