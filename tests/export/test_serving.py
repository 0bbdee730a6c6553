"""`export_serving`: the SavedModel gives the model's answers, wherever it runs."""

import errno
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasbert.export import child_process, export_serving, serving, write_saved_model
from kerasbert.export.server_configs import write_serving_configs
from kerasbert.families import get_family
from kerasbert.heads.base.served_models import served
from kerasbert.heads.text_classifier.served import ServedClassifier
from kerasbert.models import BertTextClassifier
from kerasbert.tokenizers import BertTokenizer
from tests.contracts import array, batch
from tests.export import tiny
from tests.export.conftest import ONE

LABELS = tiny.LABELS
ROOT = Path(serving.__file__).parents[2]

TEXTS = (
    """
Hello, world!|WIN a FREE prize now!!! Text 80082|Are we still on for lunch?|ok|A|.|...
Größe und Straße, naïve café|el niño y la niña|İstanbul'da ılık bir gün|œuvre, Ægir, ﬁn
Привет, как дела?|Быстрая коричневая лиса|Καλημέρα κόσμε|שלום עולם|مرحبا بالعالم
日本語のテキストです。|今日は good です|中文句子，没有空格|한국어 문장입니다|ภาษาไทย|नमस्ते दुनिया
👍|👩‍👩‍👧 family|🇩🇪🇯🇵|a🙂b|ｆｕｌｌ ｗｉｄｔｈ|№ ½ ²|x²+y²=z²|e\u0301 = é|\u212b Å|ǅ
[CLS] a [SEP] b [MASK]|[PAD][UNK]|##ab ##c|don't stop|http://example.org/a?b=c&d=%20|a_b-c/d\\e
£1000|$5.00|50% off|1,234.5|0000000000|<b>bold</b>|"quoted" 'text'|—–-|a\u00a0b\u3000c\u200bd\ufeff
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
ODD = [
    b"",
    b" \t\r\n ",
    b"a\0b\0",
    b"caf\xe9 latin",
    b"\xff\xfe\xfd",
    b"\xed\xa0\x80 half a pair",
    b"\xe6\x97 cut",
    b"\xc3",
    b"\xf4\x90\x80\x80",
    b"word " * 2000,
    b"x" * 10_000,
    "語".encode() * 3333,
]

# The only modules that a client's process may import.
CLIENT = """
import json, sys
import numpy as np
import tensorflow as tf
import tensorflow_text
path, source, target = sys.argv[1:]
columns = [[bytes.fromhex(x) for x in column] for column in json.load(open(source))]
signatures = tf.saved_model.load(path).signatures
one = signatures["serving_default"](text=tf.constant(columns[0]))
two = signatures["pair"](text=tf.constant(columns[0]), text_b=tf.constant(columns[1]))
ids = signatures["preprocess"](text=tf.constant(columns[0]))
logits = signatures["tokens"](**ids)["logits"]
# TensorFlow itself imports Keras.
assert not {"keras_hub", "kerasbert", "torch"} & set(sys.modules)
arrays = {f"one_{name}": value.numpy() for name, value in one.items()}
arrays |= {f"two_{name}": value.numpy() for name, value in two.items()}
for name in ("one_label", "two_label"):
    arrays[name] = np.array([label.decode() for label in arrays[name]])
np.savez(target, logits=logits.numpy(), token_ids=ids["token_ids"].numpy(), **arrays)
"""


def build(**settings):
    """Build a classifier; arguments that its class does not take are the encoder's."""
    names = ("labels", "pooling", "multi_label", "activation")
    own = {name: settings.pop(name) for name in names if name in settings}
    return tiny.task("TextClassifier", encoder_settings=settings, **own)


@pytest.fixture(scope="module")
def model():
    return build()


@pytest.fixture(scope="module")
def base(model, tmp_path_factory):
    """A folder of versions with one in it."""
    base = tmp_path_factory.mktemp("served") / "new" / "model"
    with pytest.MonkeyPatch.context() as patch:
        tiny.write_here(patch)
        warmup = ["short", ("one", "two"), "long " * 99]
        path = export_serving(model, base, version=3, warmup=warmup)
    assert path == str(base / "3")
    return base


@pytest.fixture(scope="module")
def exported(base):
    return str(base / "3")


def client(path, columns, folder):
    """Return what a process with only TensorFlow and TF.Text gets from the SavedModel: a dict."""
    source, target = folder / "texts.json", folder / "answers.npz"
    source.write_text(json.dumps([[text.hex() for text in column] for column in columns]))
    script = folder / "client.py"
    script.write_text(CLIENT)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "KERAS_BACKEND")}
    subprocess.run(
        [sys.executable, script, path, source, target], env=environment, cwd=folder, check=True
    )
    with np.load(target) as file:
        return dict(file)


@functools.lru_cache(maxsize=2)
def session_of(path):
    """Return a session of a SavedModel as in TensorFlow's C++ loader, and its signatures."""
    session = tf.compat.v1.Session(graph=tf.Graph())
    with session.graph.as_default():
        return session, tf.compat.v1.saved_model.load(session, ["serve"], path).signature_def


def session_run(path, name, **inputs):
    """Run a signature in such a session."""
    session, signatures = session_of(path)
    signature = signatures[name]
    feeds = {signature.inputs[key].name: value for key, value in inputs.items()}
    outputs = {key: tensor.name for key, tensor in signature.outputs.items()}
    return session.run(outputs, feeds)


def below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_a_process_without_keras_answers_as_the_model(model, exported, tmp_path):
    # The model itself does not accept invalid UTF-8, so it gets the same texts with replacement
    # characters.
    raw = [text.encode() for text in TEXTS] + ODD
    texts = [text.decode("utf-8", "replace") for text in raw]
    assert len(texts) > 50
    served = client(exported, [raw, raw[::-1]], tmp_path)
    for name, x in (("one", texts), ("two", (texts, texts[::-1]))):
        probabilities = model.predict_proba(x)
        np.testing.assert_allclose(served[f"{name}_probabilities"], probabilities, atol=1e-5)
        labels = [answer["label"] for answer in model.classify(x)]
        assert served[f"{name}_label"].tolist() == labels
        np.testing.assert_allclose(served[f"{name}_score"], probabilities.max(-1), atol=1e-5)
        assert len(set(labels)) > 1
    logits = model.predict(texts, verbose=0)
    np.testing.assert_allclose(served["logits"], logits, atol=1e-5, rtol=1e-5)
    ids = keras.ops.convert_to_numpy(model.preprocessor(texts)["token_ids"])
    np.testing.assert_array_equal(served["token_ids"], ids)


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_the_session_loader_runs_every_signature(model, exported):
    answers = session_run(exported, "serving_default", text=["Hello!", "日本語"])
    expected = model.predict_proba(["Hello!", "日本語"])
    np.testing.assert_allclose(answers["probabilities"], expected, atol=1e-5)
    assert answers["label"][0].decode() == model.classify("Hello!")["label"]
    pair = session_run(exported, "pair", text=["Hello!"], text_b=["日本語"])
    expected = model.predict_proba((["Hello!"], ["日本語"]))
    np.testing.assert_allclose(pair["probabilities"], expected, atol=1e-5)
    tokens = session_run(exported, "preprocess", text=["Hello!"])
    assert {name: array.dtype for name, array in tokens.items()} == dict.fromkeys(
        ("token_ids", "segment_ids", "padding_mask"), np.dtype("int32")
    )
    logits = session_run(exported, "tokens", **tokens)["logits"]
    np.testing.assert_allclose(logits, model.predict(["Hello!"], verbose=0), atol=1e-5)


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_no_text_and_one_text(exported):
    assert session_run(exported, "serving_default", text=[])["probabilities"].shape == (0, 3)
    assert session_run(exported, "serving_default", text=[""])["probabilities"].shape == (1, 3)


@pytest.mark.backends("tensorflow")
def test_each_weight_is_written_once(model, exported):
    size = sum(4 * int(np.prod(weight.shape)) for weight in model.weights)
    written = sum(path.stat().st_size for path in Path(exported, "variables").iterdir())
    assert size <= written < 1.2 * size
    weights = tf.train.list_variables(f"{exported}/variables/variables")
    shapes = [tuple(shape) for name, shape in weights if name.endswith("VARIABLE_VALUE")]
    assert sorted(shapes) == sorted(tuple(weight.shape) for weight in model.weights)


@pytest.mark.backends("tensorflow")
def test_label_names_lie_beside_the_graph(exported):
    labels = Path(exported, "assets.extra", "labels.json").read_text(encoding="utf-8")
    assert json.loads(labels) == LABELS


@pytest.mark.backends("tensorflow")
def test_warmup_requests(model, exported):
    path = f"{exported}/assets.extra/tf_serving_warmup_requests"
    records = [record.numpy() for record in tf.data.TFRecordDataset(path)]
    assert records == [
        write_saved_model.warmup_record(*served(model).warmup_inputs(item))
        for item in ("short", ("one", "two"), "long " * 99)
    ]


@pytest.mark.backends("tensorflow")
def test_warmup_record_is_a_prediction_log():
    # As tensorflow-serving-api 2.21 serializes them; the two entries of its map have no order.
    assert write_saved_model.warmup_record("serving_default", {"text": ["hé"]}) == (
        b"2,\n*\n\x11\x1a\x0fserving_default"
        b"\x12\x15\n\x04text\x12\r\x08\x07\x12\x04\x12\x02\x08\x01B\x03h\xc3\xa9"
    )
    assert write_saved_model.warmup_record("pair", {"text": ["a"], "text_b": ["b"]}) == (
        b"26\n4\n\x06\x1a\x04pair"
        b"\x12\x13\n\x04text\x12\x0b\x08\x07\x12\x04\x12\x02\x08\x01B\x01a"
        b"\x12\x15\n\x06text_b\x12\x0b\x08\x07\x12\x04\x12\x02\x08\x01B\x01b"
    )
    assert write_saved_model.warmup_record("serving_default", {"text": ["x" * 300]}) == (
        b"2\xd9\x02\n\xd6\x02\n\x11\x1a\x0fserving_default\x12\xc0\x02\n\x04text"
        b"\x12\xb7\x02\x08\x07\x12\x04\x12\x02\x08\x01B\xac\x02" + b"x" * 300
    )


@pytest.mark.backends("tensorflow")
def test_versions(base, tmp_path):
    assert serving._check_version(str(base), None) == 4
    assert serving._check_version(str(base), 2) == 2
    assert serving._check_version(str(base / "none"), None) == 1
    (tmp_path / ".hidden").mkdir()
    assert serving._check_version(str(tmp_path), None) == 1
    (tmp_path / "²").mkdir()
    with pytest.raises(ValueError, match="it contains '²', which is not a version of a model"):
        serving._check_version(str(tmp_path), None)


@pytest.mark.backends("tensorflow")
def test_files_for_the_server(base):
    """The files are next to the versions, and edited files are kept."""
    models = (base / "models.config").read_text()
    assert f'name: "model"\n    base_path: "{base}"' in models
    assert "max_batch_size { value: 32 }" in (base / "batching.config").read_text()
    assert 'storageUri: "pvc://models/model"' in (base / "kserve.yaml").read_text()
    (base / "models.config").write_text("# mine")
    write_serving_configs(str(base))
    assert (base / "models.config").read_text() == "# mine"
    (base / "models.config").write_text(models)


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"version": 3}, ValueError, r"Version 3 already exists in '.*'; pass version=4, or None"),
        ({"version": -1}, ValueError, r"version=-1 must be a whole number of at least 0"),
        ({"version": "1"}, ValueError, r"version='1' must be a whole number"),
        ({"version": True}, ValueError, r"version=True must be a whole number"),
        ({"labels": ["a", "b"]}, ValueError, r"must be 3 different names, one per class"),
        ({"labels": ["a", "b", "b"]}, ValueError, r"must be 3 different names, one per class"),
        ({"labels": "abc"}, ValueError, r"labels='abc' must be a list of strings"),
        ({"labels": [0, 1, 2]}, ValueError, r"labels=\[0, 1, 2\] must be a list of strings"),
        ({"warmup": "text"}, ValueError, r"warmup='text' is a single text; pass a list"),
        ({"warmup": ["a"] * 1001}, ValueError, r"warmup has 1,001 texts, .* at most 1,000"),
        ({"warmup": ["a", 1.0]}, ValueError, r"position 1 of warmup is 1.0"),
        ({"warmup": [("a", "b", "c")]}, ValueError, r"position 0 of warmup is \('a', 'b', 'c'\)"),
    ],
)
def test_bad_arguments_leave_nothing(model, base, arguments, error, message):
    before = below(base.parent)
    with pytest.raises(error, match=message):
        export_serving(model, base, **arguments)
    assert below(base.parent) == before


@pytest.mark.backends("tensorflow")
def test_bad_folders_leave_nothing(model, tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below" / "it"):
        with pytest.raises(ValueError, match=r"Cannot write to '.*': (it|'.*file') is a file"):
            export_serving(model, path)
    assert below(tmp_path) == ["file"]


@pytest.mark.backends("tensorflow")
def test_bad_models_leave_nothing(model, tmp_path):
    with pytest.raises(TypeError, match="supports BertTextClassifier, .*, got a Dense"):
        export_serving(keras.layers.Dense(1), tmp_path)
    with pytest.raises(TypeError, match="supports .*, got the class BertTextClassifier"):
        export_serving(BertTextClassifier, tmp_path)
    with pytest.raises(ValueError, match="no preprocessor, so .*; set `model.prepr"):
        export_serving(BertTextClassifier(model.backbone, num_classes=2), tmp_path)
    empty = type(model.preprocessor)(BertTokenizer(), sequence_length=64)
    with pytest.raises(ValueError, match="only for a BertBackbone; set `model.preprocessor`"):
        export_serving(model, tmp_path, preprocessor=empty)
    with pytest.raises(ValueError, match="has no vocabulary yet"):
        export_serving(model.backbone, tmp_path, preprocessor=empty)
    changed = build()
    changed.output_dense.bias.assign([0.0, np.nan, 0.0])
    with pytest.raises(ValueError, match="NaN or infinity is in the weight"):
        export_serving(changed, tmp_path)
    changed.output_dense.bias.assign([0.0, 0.0, 0.0])
    changed.quantize("int4")
    with pytest.raises(ValueError, match="quantized .int4., but export_serving writes float32 or"):
        export_serving(changed, tmp_path)
    quantized = build(dtype="mixed_bfloat16")
    quantized.quantize("int8")
    with pytest.raises(ValueError, match="load it with dtype='float32' before `quantize`"):
        export_serving(quantized, tmp_path)
    assert below(tmp_path) == []


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_a_failed_check_leaves_nothing(model, base, monkeypatch):
    """If answers differ from the reference, only the older version remains."""
    true = ServedClassifier.tokens_of
    monkeypatch.setattr(
        ServedClassifier,
        "tokens_of",
        lambda *arguments: {"logits": true(*arguments)["logits"] + [2e-4, 0, 0]},
    )
    before = below(base)
    with pytest.raises(
        RuntimeError, match=r"No SavedModel was written.* differ from the model's by"
    ):
        export_serving(model, base)
    assert below(base) == before


@pytest.mark.backends("tensorflow")
def test_a_child_that_is_killed_is_named(model, tmp_path, monkeypatch):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nkill -9 $$\n")
    script.chmod(0o755)
    monkeypatch.setattr(child_process.sys, "executable", str(script))
    with pytest.raises(RuntimeError, match="killed by signal 9; is there enough memory?"):
        export_serving(model, tmp_path / "base")
    assert below(tmp_path) == ["python"]


@pytest.mark.slow
def test_killed_while_it_exports(exported, tmp_path):
    """The folder of versions is unchanged, and the next export succeeds."""
    base = tmp_path / "base"
    shutil.copytree(exported, base / "1")
    script = (
        f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(ROOT)!r}]\n"
        "from tests.export.test_serving import build, export_serving\n"
        "export_serving(build(), sys.argv[1], signatures=['serving_default'])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, base], start_new_session=True, stderr=subprocess.PIPE
    )
    for _ in range(1200):
        if list(base.glob(".kerasbert-*/saved_model")) or process.poll() is not None:
            break
        time.sleep(0.1)
    assert process.poll() is None, process.stderr.read().decode()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()
    # A server reads only folders whose names are whole numbers.
    assert [path.name for path in base.iterdir() if path.name.isdecimal()] == ["1"]
    assert session_run(str(base / "1"), "serving_default", text=["a"])["label"].shape == (1,)
    assert list(base.glob(".kerasbert-*"))
    other = base / ".kerasbert-mine"  # Files that do not belong to an export stay.
    other.mkdir()
    assert export_serving(build(), base, **ONE) == str(base / "2")
    assert list(base.glob(".kerasbert-*")) == [other]


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("place", ["preset", "child"])
def test_a_full_disk_leaves_nothing(model, base, place, monkeypatch):
    def fill(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((np, "savez") if place == "preset" else (os, "rename")), fill)
    before = below(base)
    with pytest.raises(OSError, match=r"Cannot write the SavedModel to '.*4': No space left on"):
        export_serving(model, base)
    monkeypatch.undo()
    assert below(base) == before


@pytest.mark.slow
@pytest.mark.parametrize("size", [20_000, 300_000], ids=["the weights", "the graph"])
def test_files_that_may_not_grow(size, tmp_path):
    """As on a full disk, here or in the process that writes the SavedModel."""
    script = (
        f"import resource, sys; sys.path[:0] = [{str(ROOT)!r}]\n"
        "from tests.export import tiny\n"
        "from kerasbert.export import export_serving\n"
        "model = tiny.task('TextClassifier')\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"
        "try:\n"
        "    export_serving(model, sys.argv[1], signatures=['serving_default'])\n"
        "except (OSError, RuntimeError) as error:\n"
        "    print(f'{error}')\n"
    )
    command = [sys.executable, "-c", script, tmp_path / "new" / "model"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "SavedModel" in done.stdout and len(done.stdout.strip().splitlines()) == 1, done
    assert below(tmp_path) == []


@pytest.mark.backends("tensorflow", "torch")
def test_refused_graphs(tmp_path):
    """Ops that a stock server lacks are found in the file."""

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.float32, "x")])
    def python(x):
        y = tf.numpy_function(np.sort, [x], tf.float32)
        return {"y": tf.ensure_shape(y, (None,))}

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.float32, "x")])
    def compiled(x):
        return {"y": tf.function(tf.nn.relu, jit_compile=True)(x)}

    for function, message in (
        (python, "The graph uses the ops PyFunc, which stock servers lack"),
        (compiled, "jit_compile=True, which stock servers refuse"),
    ):
        path = str(tmp_path / function.__name__)
        tf.saved_model.save(tf.Module(), path, signatures=function)
        with pytest.raises(ValueError, match=message):
            write_saved_model.check_ops(path)


@pytest.mark.backends("tensorflow")
def test_answers_of_another_shape_or_value_are_refused():
    write_saved_model.compare("logits", np.ones((2, 3)), np.ones((2, 3)) + 5e-6)
    with pytest.raises(ValueError, match="The logits of the SavedModel differ .* by 0.0001"):
        write_saved_model.compare("logits", np.ones((2, 3)), np.ones((2, 3)) + 1e-4)
    write_saved_model.compare("score", np.ones(2), np.ones(2) + 1e-4, scale=20)
    with pytest.raises(ValueError, match=r"score have the shape \(2,\), the model's \(2, 1\)"):
        write_saved_model.compare("score", np.ones(2), np.ones((2, 1)))


@pytest.mark.backends("tensorflow")
def test_what_rounding_makes_of_a_model():
    """Outputs of large weights change more by rounding; the model's own weights stay unchanged."""
    found, settings = {}, {**get_family("modernbert").encoder, "num_layers": 4}
    for scale in (0.05, 0.6):
        net = tiny.task("TokenClassifier", scale=scale, encoder_settings=settings)
        features, before = batch(net, length=40, lengths=(40, 30)), net.get_weights()
        outputs = {"logits": array(net(features))}
        with serving.perturbed(net.weights):
            nudged = {"logits": array(net(features))}
        assert not np.array_equal(nudged["logits"], outputs["logits"])
        found[scale] = serving.rounding(outputs, nudged) / np.abs(outputs["logits"]).max()
        for was, value in zip(before, net.get_weights(), strict=True):
            np.testing.assert_array_equal(value, was)
        np.testing.assert_array_equal(array(net(features)), outputs["logits"])
    assert found[0.05] < write_saved_model.TOLERANCE < found[0.6] < 1e-2
    impossible = np.array([1.0, -1e9])
    assert serving.rounding({"x": impossible}, {"x": impossible - [0, 64]}) == 0


@pytest.mark.backends("tensorflow")
def test_weights_written_twice_are_refused(model, exported, tmp_path):
    write_saved_model.check_size(served(model), exported)
    shutil.copytree(f"{exported}/variables", tmp_path / "variables")
    data = tmp_path / "variables" / "variables.data-00000-of-00001"
    data.write_bytes(3 * data.read_bytes())
    with pytest.raises(ValueError, match=r"The weights have [\d,]+ bytes, but"):
        write_saved_model.check_size(served(model), tmp_path)
    data.unlink()
    with pytest.raises(ValueError, match=r"The weights have [\d,]+ bytes, but"):
        write_saved_model.check_size(served(model), tmp_path)


def check(model, path, atol=1e-5):
    texts = ["Hello!", "日本語", "b " * 40]
    answers = session_run(path, "serving_default", text=texts)
    np.testing.assert_allclose(answers["probabilities"], model.predict_proba(texts), atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"multi_label": True},
        {"activation": "softmax"},
        {"labels": None},
        {"pooling": "mean"},
        {"num_segments": 0, "pooler": False},
        {"num_segments": 1, "position_offset": 2, "dropout": 0.0},
        {"embedding_dim": 8, "num_groups": 1, "activation": None},
        {"position_bias": "buckets", "bucket_size": 4},
        {"position_embedding": "none", "position_bias": "alibi", "local_window": 4},
        {"local_window": [4, 8], "global_every": None, "global_tokens": "first"},
        {
            "position_embedding": "rotary",
            "local_window": 4,
            "global_every": 2,
            "norm_first": True,
            "gated_mlp": True,
            "use_bias": False,
        },
    ],
    ids=lambda settings: "-".join(settings),
)
def test_settings(settings, export):
    if "labels" in settings:
        full = build()
        model = BertTextClassifier(full.backbone, num_classes=4, preprocessor=full.preprocessor)
    else:
        model = build(**settings)
    path = export(model, **ONE)
    check(model, path)
    if "labels" in settings:
        answers = session_run(path, "serving_default", text=["a"])
        assert answers["label"][0].startswith(b"LABEL_")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16"])
def test_bfloat16_models_are_written_in_float32(dtype, export):
    model = build(dtype=dtype)
    path = export(model, **ONE)
    check(model, path, atol=0.05)
    loaded = tf.saved_model.load(path)
    assert {weight.dtype for weight in loaded.weights} == {tf.float32}


def with_lora(scale):
    """Return the model with trained adapters."""
    model = build()
    model.backbone.enable_lora(2)
    rng = np.random.default_rng(0)
    for layer in model._flatten_layers():
        if getattr(layer, "lora_enabled", False):
            layer.lora_kernel_b.assign(scale * rng.standard_normal(layer.lora_kernel_b.shape))
    return model


@pytest.mark.slow
def test_lora_of_an_int8_model_is_rounded_anew(export, tmp_path):
    model = with_lora(3.0)
    model.quantize("int8")
    model.save_to_preset(tmp_path / "preset")
    merged = type(model).from_preset(tmp_path / "preset")
    texts = ["Hello!", "a good film.", "Who is Ann Lee?"]
    expected = merged.predict_proba(texts)
    apart = np.abs(model.predict_proba(texts) - expected).max()
    assert apart > 0.02
    path = export(model, **ONE)
    found = session_run(path, "serving_default", text=texts)
    np.testing.assert_allclose(found["probabilities"], expected, atol=apart / 2)


@pytest.mark.slow
def test_lora_is_merged(export):
    model = with_lora(0.3)
    changed = model.predict_proba(["Hello!"]) - build().predict_proba(["Hello!"])
    assert np.abs(changed).max() > 1e-3
    path = export(model, **ONE)
    check(model, path)
    write_saved_model.check_size(served(build()), path)
