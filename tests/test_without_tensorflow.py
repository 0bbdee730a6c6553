"""On JAX and torch, encoders, `fit` on arrays and checkpoints do without TensorFlow.

A real environment without it is a job of the CI; here nothing finds it.
"""

import os
import subprocess
import sys
import textwrap

import keras
import pytest

SCRIPT = """
    import sys
    from importlib.machinery import PathFinder

    class WithoutTensorFlow(PathFinder):
        # Finds what is installed, but for TensorFlow.
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            if name.split(".")[0] not in ("tensorflow", "tensorflow_text"):
                return super().find_spec(name, path, target)

    sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutTensorFlow

    import json
    import os

    import keras
    import numpy as np
    from safetensors.numpy import save_file

    import kerasbert
    from kerasbert.models import BertBackbone, BertTextClassifier, BertTextClassifierPreprocessor
    from kerasbert.tokenizers import BertTokenizer

    folder = sys.argv[1]
    V, D, I = 12, 8, 16
    random = np.random.default_rng(0)

    def weight(*shape):
        return random.normal(0, 0.1, shape).astype("float32")

    # A Hugging Face directory, by hand.
    layer = "encoder.layer.0."
    shapes = {
        "embeddings.word_embeddings.weight": (V, D),
        "embeddings.position_embeddings.weight": (16, D),
        "embeddings.token_type_embeddings.weight": (2, D),
        "embeddings.LayerNorm": (D,),
        **{f"{layer}attention.self.{name}": (D, D) for name in ("query", "key", "value")},
        f"{layer}attention.output.dense": (D, D),
        f"{layer}attention.output.LayerNorm": (D,),
        f"{layer}intermediate.dense": (I, D),
        f"{layer}output.dense": (D, I),
        f"{layer}output.LayerNorm": (D,),
        "pooler.dense": (D, D),
    }
    tensors = {}
    for name, shape in shapes.items():
        if name.endswith(".weight"):
            tensors[name] = weight(*shape)
        else:
            tensors[f"{name}.weight"] = weight(*shape)
            tensors[f"{name}.bias"] = weight(shape[0])
    checkpoint = os.path.join(folder, "checkpoint")
    os.mkdir(checkpoint)
    save_file(tensors, os.path.join(checkpoint, "model.safetensors"))
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": V,
        "hidden_size": D,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": I,
        "max_position_embeddings": 16,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
    }
    with open(os.path.join(checkpoint, "config.json"), "w") as file:
        json.dump(config, file)
    tokens = "[PAD] [UNK] [CLS] [SEP] [MASK] good bad film a the it was".split()
    with open(os.path.join(checkpoint, "vocab.txt"), "w") as file:
        file.writelines(f"{token}\\n" for token in tokens)

    backbone = BertBackbone.from_preset(checkpoint)
    found = keras.ops.convert_to_numpy(backbone.token_embedding.embeddings)
    assert (found == tensors["embeddings.word_embeddings.weight"]).all()

    features = {
        "token_ids": random.integers(1, V, (4, 6)),
        "segment_ids": np.zeros((4, 6), "int32"),
        "padding_mask": np.ones((4, 6), "int32"),
    }
    y = np.array([0, 1, 0, 1])
    for classifier in (
        BertTextClassifier(backbone, num_classes=2),
        BertTextClassifier.from_preset(checkpoint, labels=["bad", "good"]),
    ):
        classifier.compile("adam", loss="auto", run_eagerly=True)
        history = classifier.fit(
            features, y, epochs=2, batch_size=2, validation_data=(features, y), verbose=0
        ).history
        assert np.isfinite(history["loss"] + history["val_loss"]).all()
        classifier.evaluate(features, y, verbose=0)
        expected = classifier.predict(features, verbose=0)

    preset = os.path.join(folder, "preset")
    classifier.save_to_preset(preset)
    loaded = BertTextClassifier.from_preset(preset)
    assert loaded.labels == ["bad", "good"]
    np.testing.assert_allclose(loaded.predict(features, verbose=0), expected, atol=1e-6)

    # What does need it says so.
    tokenizer = BertTokenizer.from_preset(checkpoint)
    texts = ["good film", "bad"]
    for call in (
        lambda: tokenizer("good film"),
        lambda: BertTextClassifierPreprocessor(tokenizer)(texts),
        lambda: loaded.predict(texts),
        lambda: loaded.fit(texts, ["good", "bad"]),
        lambda: loaded.classify("good film"),
    ):
        try:
            call()
        except ImportError as error:
            assert "needs TensorFlow and TensorFlow Text on every Keras backend" in str(error)
            assert "pip install tensorflow tensorflow-text" in str(error)
        else:
            raise AssertionError("no ImportError")
    assert not any(name.split(".")[0] == "tensorflow" for name in sys.modules)
    print("passed")
"""


@pytest.mark.skipif(
    keras.backend.backend() == "tensorflow", reason="the backend of this run is TensorFlow itself"
)
def test_without_tensorflow(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.endswith("passed\n")
