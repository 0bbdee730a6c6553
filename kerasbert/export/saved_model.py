"""The TensorFlow process of `export_serving`: rebuild the model, trace it, save it, check it.

    python -m kerasbert.export.saved_model FOLDER

FOLDER holds what the other process left: `preset/`, `job.json` (labels, probes, warmup) and
`expected.npz`, the logits of the probes. The result is `FOLDER/saved_model/`.

N texts, T tokens, C classes.
"""

import json
import os
import sys

import keras
import numpy as np

from kerasbert._tensorflow import tf_modules
from kerasbert.export.by_length import by_length
from kerasbert.export.serving import load, logit_model
from kerasbert.export.serving_ops import TENSORFLOW_OPS, TENSORFLOW_TEXT_OPS

# What only a client can send: bytes that are no text.
BROKEN = [b"caf\xe9", b"\xff\xfe\x00\xd8", b"\xed\xa0\x80 \xf5\x80", b"\0\0", b"\xc3"]
TOLERANCE = 1e-5


def main(folder):
    with open(os.path.join(folder, "job.json"), encoding="utf-8") as file:
        job = json.load(file)
    with np.load(os.path.join(folder, "expected.npz")) as file:
        expected = [file[name] for name in file.files]
    model = load(os.path.join(folder, "preset"))
    path = os.path.join(folder, "saved_model")
    write(model, job["labels"], job["warmup"], path)
    check_ops(path)
    check_size(model, path)
    check_answers(model, job["labels"], path, job["probes"], expected, job["warmup"])


def write(model, labels, warmup, path):
    """Trace the signatures, and write the SavedModel with its warmup requests and labels."""
    tf, _ = tf_modules("export_serving")
    functions = signatures(model, labels)
    module = tf.Module()
    # The variables themselves: TensorFlow's C++ loader finds none behind Keras objects.
    variables = {id(v): v for function in functions.values() for v in function.variables}
    module.weights = list(variables.values())
    tf.saved_model.save(module, path, signatures=functions)
    extra = os.path.join(path, "assets.extra")
    os.mkdir(extra)
    with open(os.path.join(extra, "labels.json"), "w", encoding="utf-8") as file:
        json.dump(labels, file, ensure_ascii=False)
    if warmup:
        with tf.io.TFRecordWriter(os.path.join(extra, "tf_serving_warmup_requests")) as file:
            for texts in warmup:
                file.write(warmup_record(texts))


def signatures(model, labels):
    """The concrete function of each signature, by name."""
    tf, _ = tf_modules("export_serving")
    preprocessor = model.preprocessor
    head = logit_model(model)
    tokens_spec = {name: tf.TensorSpec((None, None), tf.int32, name) for name in model.input}
    text, text_b = (tf.TensorSpec((None,), tf.string, name) for name in ("text", "text_b"))

    @tf.function(input_signature=[tokens_spec], autograph=False)
    def logits_of(features):
        return by_length(lambda rows: head(rows, training=False))(features)  # (N, C)

    def pack(*columns):
        features = preprocessor.pack(preprocessor.tokenize(columns))
        return {name: tf.cast(features[name], tf.int32) for name in tokens_spec}  # (N, T)

    def answer(features):
        probabilities = to_probabilities(model, logits_of(features))  # (N, C)
        return {
            "probabilities": probabilities,
            "label": tf.gather(tf.constant(labels), tf.argmax(probabilities, axis=-1)),
            "score": tf.reduce_max(probabilities, axis=-1),
        }

    def classify(text):
        return answer(pack(text))

    def classify_pair(text, text_b):
        return answer(pack(text, text_b))

    def logits(**features):
        return {"logits": logits_of(features)}

    def preprocess(text):
        return pack(text)

    def traced(function, *arguments, **named):
        return tf.function(function, autograph=False).get_concrete_function(*arguments, **named)

    return {
        "serving_default": traced(classify, text),
        "pair": traced(classify_pair, text, text_b),
        "tokens": traced(logits, **tokens_spec),
        "preprocess": traced(preprocess, text),
    }


def to_probabilities(model, logits):
    """Logits (N, C) to probabilities (N, C), as the model's own activation and task have it."""
    if model.activation != keras.activations.linear:
        return model.activation(logits)
    return keras.ops.sigmoid(logits) if model.multi_label else keras.ops.softmax(logits)


def warmup_record(texts):
    """A serialized `tensorflow.serving.PredictionLog` that asks for one text or one pair.

    Written by hand, as the package with these messages is large: PredictionLog.predict_log = 6,
    PredictLog.request = 1, PredictRequest.model_spec = 1 and .inputs = 2 (a map: key 1, value 2),
    ModelSpec.signature_name = 3.
    """
    tf, _ = tf_modules("export_serving")
    request = _field(1, _field(3, b"serving_default" if len(texts) == 1 else b"pair"))
    for name, text in zip((b"text", b"text_b"), texts):
        tensor = tf.make_tensor_proto([text.encode()], tf.string).SerializeToString()
        request += _field(2, _field(1, name) + _field(2, tensor))
    return _field(6, _field(1, request))


def _field(number, data):
    """A field of protocol buffers that holds bytes: its key, its length in base 128, the bytes."""
    size, length = len(data), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


def check_ops(path):
    """Raise where the graph has what a stock TensorFlow Serving 2.12 does not run."""
    from tensorflow.core.protobuf import saved_model_pb2

    saved_model = saved_model_pb2.SavedModel()
    with open(os.path.join(path, "saved_model.pb"), "rb") as file:
        saved_model.ParseFromString(file.read())
    for meta_graph in saved_model.meta_graphs:
        functions = meta_graph.graph_def.library.function
        nodes = [node for function in functions for node in function.node_def]
        nodes += meta_graph.graph_def.node
        calls = {function.signature.name for function in functions}
        unknown = {node.op for node in nodes} - calls - TENSORFLOW_OPS - TENSORFLOW_TEXT_OPS
        if unknown:
            raise ValueError(
                f"The graph has {', '.join(sorted(unknown))}, which stock servers lack; "
                "use a layer, an activation or a tokenizer without."
            )
        if any(item.attr["_XlaMustCompile"].b for item in (*functions, *nodes)):
            raise ValueError("A part of the graph is jit_compile=True, which stock servers refuse.")


def check_size(model, path):
    """Raise where weights are missing or there twice."""
    folder = os.path.join(path, "variables")
    files = [os.path.join(folder, name) for name in os.listdir(folder)]
    written = sum(os.path.getsize(name) for name in files)
    weights = {id(weight): weight for weight in logit_model(model).weights}
    size = sum(4 * int(np.prod(weight.shape)) for weight in weights.values())
    if not size <= written <= 1.01 * size + 2**16:
        raise ValueError(f"The weights are {size:,} bytes, but those written {written:,}.")


def check_answers(model, labels, path, probes, expected, warmup):
    """Load as a server does, in a session, and compare each signature with the model's logits."""
    tf, _ = tf_modules("export_serving")
    expected = [
        (logits, keras.ops.convert_to_numpy(to_probabilities(model, logits))) for logits in expected
    ]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], path).signature_def

        def run(name, inputs):
            signature = loaded[name]
            feeds = {signature.inputs[key].name: value for key, value in inputs.items()}
            outputs = {key: tensor.name for key, tensor in signature.outputs.items()}
            return session.run(outputs, feeds)

        def ask(texts):
            columns = {
                name: np.array([t if isinstance(t, bytes) else t.encode() for t in column], object)
                for name, column in zip(("text", "text_b"), texts)
            }
            return columns, run("serving_default" if len(texts) == 1 else "pair", columns)

        for texts, (logits, probabilities) in zip(probes, expected, strict=True):
            columns, answers = ask(texts)
            compare("probabilities", answers["probabilities"], probabilities)
            compare("score", answers["score"], answers["probabilities"].max(axis=-1))
            names = [labels[best].encode() for best in answers["probabilities"].argmax(axis=-1)]
            if answers["label"].tolist() != names:
                raise ValueError("The labels of the SavedModel are not its most probable ones.")
            if len(texts) == 1:
                compare("logits", run("tokens", run("preprocess", columns))["logits"], logits)
        for texts in ([BROKEN], [[]], *([[text] for text in texts] for texts in warmup)):
            if not np.isfinite(ask(texts)[1]["probabilities"]).all():
                raise ValueError(f"The SavedModel's answer to {texts} is not finite.")


def compare(name, found, wanted):
    if found.shape != wanted.shape:
        raise ValueError(f"The SavedModel's {name} are {found.shape}, the model's {wanted.shape}.")
    off = np.abs(found - wanted).max()
    if not off <= TOLERANCE * max(1, np.abs(wanted).max()):
        raise ValueError(f"The {name} of the SavedModel differ from the model's by {off:.2g}.")


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except Exception as error:
        message = " ".join(str(error).split("\n\n")[0].split())
        sys.exit(message or type(error).__name__)
