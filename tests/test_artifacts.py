"""Files of version 0.1.0 still load with bit-identical weights and the same results."""

import json
import pathlib
import tarfile

import keras
import numpy as np
import pytest

from kerasbert import models
from kerasbert.data import read_examples
from tests.golden import artifacts

ARCHIVE = pathlib.Path(__file__).parent / "golden" / "artifacts.tar.xz"


def _expected():
    with tarfile.open(ARCHIVE) as archive:
        return json.load(archive.extractfile("expected.json"))["expected"]


EXPECTED = _expected()
# One file of each kind; the slow tests read all others.
FAST = ("presets/TextClassifier", "presets/several_tasks", "keras/TextClassifier.keras")
FAST += ("converted/huggingface/TextClassifier", "converted/google/TextClassifier", "presets/int8")
# Reading costs the same on each backend, and tracing tokenizers is slow.
ELSEWHERE = pytest.mark.backends("tensorflow")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    target = tmp_path_factory.mktemp("artifacts")
    with tarfile.open(ARCHIVE) as archive:
        # Set as an attribute, because Python 3.11 has the argument only since 3.11.4.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(target)
    return target


def rows(*kinds):
    for name in EXPECTED:
        if name.split("/")[0] in kinds:
            marks = () if name in FAST else (pytest.mark.slow, ELSEWHERE)
            yield pytest.param(name, marks=marks, id=name)


def close(found, expected, atol):
    """Compare nestings of strings and numbers."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            close(found[key], expected[key], atol)
    elif isinstance(expected, float) or (isinstance(expected, list) and _is_numeric(expected)):
        np.testing.assert_allclose(found, expected, atol=atol, rtol=atol)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            close(one, other, atol)
    else:
        assert found == expected


def _is_numeric(value):
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _by_path(digests):
    """With several tasks, their heads have the same paths, and another order on PyTorch."""
    return sorted([path.split(" ")[0], *digest] for path, digest in digests.items())


def check(model, name):
    expected = EXPECTED[name]
    assert type(model).__name__ == expected["class"]
    if name != "keras/lora.keras":  # Keras merges adapters into their kernels there.
        assert _by_path(artifacts.digests(model)) == _by_path(expected["weights"])
    # Written on TensorFlow; other backends sum products in another order.
    atol = 1e-6 if keras.backend.backend() == "tensorflow" else 1e-5
    if "bfloat16" in name:
        atol = 1e-2
    close(artifacts.outputs(model), expected["outputs"], atol)
    model.run_eagerly = True  # Compilation takes longer.
    close(artifacts.answers(model), expected["answers"], 1e-5 if atol < 1e-5 else atol)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(rows("presets", "converted")))
def test_presets_and_checkpoints(folder, name):
    cls = getattr(models, EXPECTED[name]["class"])
    check(artifacts.load(cls, str(folder / name)), name)


@pytest.mark.parametrize("name", list(rows("keras")))
def test_keras_files(folder, name):
    check(keras.saving.load_model(folder / name), name)


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("name", [name for name in EXPECTED if name.startswith("served/")])
def test_saved_models(folder, name):
    import tensorflow as tf
    import tensorflow_text  # noqa: F401, which registers the operations on strings

    served = tf.saved_model.load(str(folder / name / "1"))
    weights = EXPECTED[name]["outputs"]
    preset = folder / "presets" / name.split("/")[1]
    model = artifacts.load(getattr(models, EXPECTED[name]["class"]), str(preset))
    tokens = served.signatures["tokens"]
    given = tokens.structured_input_signature[1]
    features = artifacts.features(model)
    found = tokens(**{key: tf.constant(features[key]) for key in given if key in features})
    found = {key: value.numpy().tolist() for key, value in found.items()}
    wanted = weights if isinstance(weights, dict) else {next(iter(found)): weights}
    for key, value in wanted.items():
        close(found[key], value, 1e-5)


@pytest.mark.peers
@pytest.mark.backends("tensorflow")
def test_onnx(folder):
    import onnxruntime

    name = "onnx/TextClassifier"
    session = onnxruntime.InferenceSession(next((folder / name).rglob("*.onnx")))
    model = artifacts.load(models.BertTextClassifier, str(folder / "presets" / "TextClassifier"))
    features = artifacts.features(model)
    wanted = {one.name: one.type for one in session.get_inputs()}
    kinds = {"tensor(int32)": "int32", "tensor(int64)": "int64"}
    given = {key: features[key].astype(kinds[kind]) for key, kind in wanted.items()}
    close(session.run(None, given)[0].tolist(), EXPECTED[name]["outputs"], 1e-5)


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_examples(folder):
    """Each example is the same; only their order in an epoch has changed since."""
    dataset = read_examples(str(folder / "examples"), 4, masking="static", repeat=False)
    found = [row for batch in dataset.as_numpy_iterator() for row in _rows_of(batch)]
    assert all(row in found for row in _rows_of(EXPECTED["examples"]["batch"]))


def _rows_of(batch):
    columns = [np.asarray(part[name]).tolist() for part in batch for name in sorted(part)]
    return [*zip(*columns, strict=True)]
