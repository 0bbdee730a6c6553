"""Keras' `model.export` writes files that run, or raises an error that names a call that does."""

import keras
import numpy as np
import pytest

from tests.contracts import array, tiny_backbone, tiny_classifier


def batch(model):
    features = {name: np.ones((3, 7), "int32") for name in model.input}
    features["padding_mask"][1, 4:] = 0
    return features


@pytest.mark.parametrize("make", [tiny_classifier, tiny_backbone])
def test_what_keras_writes_wrong_is_refused(make, tmp_path):
    backend, model = keras.config.backend(), make()
    wrong = {"onnx": "export_onnx", "openvino": "export_openvino"}
    if backend != "tensorflow":
        wrong |= {"tf_saved_model": "export_serving", "litert": "export_litert"}
    for format, ours in wrong.items():
        message = f"on {backend} cannot write a working file of this model; use kerasbert.{ours}."
        with pytest.raises(ValueError, match=message):
            model.export(tmp_path / "model", format=format)
    with pytest.raises(ValueError, match="Unrecognized format=tflite"):
        model.export(tmp_path / "model", format="tflite")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_a_saved_model_of_token_ids(tmp_path):
    import tensorflow as tf

    model = tiny_classifier("electra", num_layers=1)  # This model has never been called.
    model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")
    features = batch(model)
    np.testing.assert_allclose(loaded.serve(features), array(model(features)), atol=1e-6)


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_litert(tmp_path):
    import tensorflow as tf

    model = tiny_classifier("electra", num_layers=1)
    features = batch(model)
    model.export(tmp_path / "model.tflite", format="litert", verbose=False)
    interpreter = tf.lite.Interpreter(str(tmp_path / "model.tflite"))
    places = {x["name"]: x["index"] for x in interpreter.get_input_details()}
    places = {name: places[f"serving_default_{name}:0"] for name in features}
    for name, index in places.items():
        interpreter.resize_tensor_input(index, features[name].shape)
    interpreter.allocate_tensors()
    for name, index in places.items():
        interpreter.set_tensor(index, features[name])
    interpreter.invoke()
    found = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_allclose(found, array(model(features)), atol=1e-6)


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_torch(tmp_path):
    import torch

    model = tiny_classifier("electra")
    inputs = model.input.values()
    signature = [{x.name: keras.InputSpec("int32", (3, 7), name=x.name) for x in inputs}]
    path = tmp_path / "model.pt2"
    model.export(path, format="torch", input_signature=signature, verbose=False)
    program = torch.export.load(path).module()
    features = {name: torch.tensor(x) for name, x in batch(model).items()}
    found = keras.tree.flatten(program(features))[0].detach().cpu().numpy()
    np.testing.assert_allclose(found, array(model(batch(model))), atol=1e-6)
