"""Graphs of a model's steps, and steps that are compiled."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

from kerasbert import backend
from kerasbert.backend import graphs
from kerasbert.models import BertBackbone, BertPretrainer, BertTextClassifier
from tests.backend.test_kernels import OWN, normal
from tests.contracts import tiny_backbone

# === Whole models ===


def test_gradients():
    x = normal(3, 4)
    values, gradient = backend.value_and_gradient(lambda x: ops.sum(x**3, axis=-1), x)
    np.testing.assert_allclose(values, (x**3).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(gradient, 3 * x**2, rtol=1e-5)
    with pytest.raises(ValueError, match="no gradients on .*; set KERAS_BACKEND"):
        backend.value_and_gradient.plain(lambda x: x, x)


def trained(dropout, remat=False):
    """Return the logits of a tiny model before training, and its losses in two epochs."""
    keras.utils.set_random_seed(0)
    with keras.RematScope("full" if remat else None):
        model = BertPretrainer(tiny_backbone(dropout=dropout))
    model.compile(keras.optimizers.SGD(0.1), jit_compile=True)
    random = np.random.default_rng(0)
    x = {
        "token_ids": random.integers(5, 20, (8, 12)).astype("int32"),
        "segment_ids": random.integers(0, 2, (8, 12)).astype("int32"),
        "padding_mask": (np.arange(12) < random.integers(5, 13, (8, 1))).astype("int32"),
        "mask_positions": random.integers(0, 5, (8, 3)).astype("int32"),
    }
    y = {"mlm_logits": random.integers(5, 20, (8, 3)), "nsp_logits": random.integers(0, 2, 8)}
    logits = model.predict(x, verbose=0)["mlm_logits"]
    losses = model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0).history["loss"]
    return logits, losses


@pytest.mark.backends("jax")
def test_a_model_trains_as_on_a_cpu(as_on_gpu, monkeypatch):
    logits, losses = trained(0.0)
    dropped = trained(0.1)[1]
    assert trained(0.1, remat=True)[1] == pytest.approx(dropped)
    monkeypatch.undo()
    expected, expected_losses = trained(0.0)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)
    assert losses == pytest.approx(expected_losses, abs=1e-5)
    assert dropped != pytest.approx(losses, abs=1e-4) and dropped == pytest.approx(losses, abs=0.5)


@pytest.mark.backends("torch")
def test_loaded_weights_lie_in_rows():
    """Weights are contiguous, as their gradients are, so the optimizer reads memory in order."""
    model = BertTextClassifier.from_preset("bert_tiny_demo_en_uncased", num_classes=2)
    assert all(variable.value.is_contiguous() for variable in model.variables)


@pytest.mark.backends("tensorflow")
def test_a_few_rows_have_one_graph():
    """One graph serves all sizes; more rows, and steps that need known sizes, run as in Keras."""
    encoder = BertBackbone(
        vocabulary_size=20, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    )
    model = BertTextClassifier(encoder, num_classes=2)
    sized = BertTextClassifier(encoder, num_classes=2)
    sized.predict_step = lambda data: [len(range(data[0]["token_ids"].shape[1]))]
    for rows, length in ((1, 3), (8, 40), (9, 5), (1, 1)):
        features = {
            "token_ids": np.ones((rows, length), "int32"),
            "padding_mask": np.ones((rows, length), "bool"),
            "segment_ids": np.zeros((rows, length), "int32"),
        }
        found = OWN.predict_batch(model, features)
        assert (found is None) == (rows > OWN.FEW)
        if found is not None:
            expected = backend.predict_batch.plain(model, features)
            np.testing.assert_allclose(found, expected, atol=1e-6)
        assert OWN.predict_batch(sized, features) is None
    assert len(graphs.beside_prediction(model, None)._made) == 1


@pytest.mark.backends("torch")
def test_one_graph_for_all_sizes():
    """The graph serves all numbers of rows and tokens, even if one equals another dimension."""
    encoder = BertBackbone(
        vocabulary_size=20, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    )
    model = BertTextClassifier(encoder, num_classes=2)
    random = np.random.default_rng(0)
    counts = []
    for rows, length in ((1, 512), (1, 3), (8, 8), (2, 16), (5, 512), (1, 8)):
        features = {
            "token_ids": random.integers(1, 20, (rows, length)).astype("int32"),
            "padding_mask": np.ones((rows, length), "bool"),
            "segment_ids": np.zeros((rows, length), "int32"),
        }
        expected = backend.predict_batch.plain(model, features)
        for _ in range(OWN.OFTEN):
            found = backend.predict_batch(model, features)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        counts.append(len(graphs.beside_prediction(model, None)._made))
    # Calls with a single row and with several rows have separate graphs; each handles few and many
    # tokens.
    assert counts == [1, 2, 3, 3, 4, 4]
    encoder.token_embedding.embeddings.assign(np.zeros((20, 8)))
    changed = backend.predict_batch(model, features)
    assert not np.allclose(changed, expected)
    np.testing.assert_allclose(changed, backend.predict_batch.plain(model, features), atol=1e-6)


# === Compiling ===


TRAIN = """
import jax, numpy as np
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
from tests.contracts import batch, tiny_classifier
model = tiny_classifier()
model.fit(batch(model), np.zeros(3, "int32"), verbose=0)
print(sum(name.endswith("/cache_hits") for name in hits))
"""


@pytest.mark.backends("jax")
def test_other_processes_find_what_was_compiled(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name[:4] != "JAX_"}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}

    def run():
        done = subprocess.run(
            [sys.executable, "-c", TRAIN], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return [int(number) for number in done.stdout.split()]

    folder = tmp_path / "kerasbert" / "jax" / OWN._processor()
    assert run()[0] == 0
    assert list(folder.glob("jit_train_step-*")) and folder.stat().st_mode & 0o777 == 0o700
    assert run()[0] > 0


@pytest.mark.backends("jax")
@pytest.mark.parametrize("enabled, given", [(False, None), (True, "own"), (True, None)])
def test_who_set_the_cache_of_jax_keeps_it(tmp_path, monkeypatch, enabled, given):
    import jax

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = {"jax_enable_compilation_cache": enabled, "jax_compilation_cache_dir": given}
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        OWN.keep_compiled.__wrapped__()
        folder = tmp_path / "kerasbert" / "jax" / OWN._processor()
        is_ours = enabled and given is None
        assert folder.exists() == is_ours
        assert jax.config.jax_compilation_cache_dir == (str(folder) if is_ours else given)
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


@pytest.mark.backends("jax")
def test_what_was_not_read_for_longest_goes(tmp_path):
    for age, name in enumerate(("new", "older", "oldest")):
        (tmp_path / name).write_bytes(b"0" * 10)
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    OWN._leave(25, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"new", "older"}
    OWN._leave(0, tmp_path)
    assert not list(tmp_path.iterdir())
