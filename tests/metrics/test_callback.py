"""Scores in the logs of `fit`, which other callbacks use."""

import keras
import numpy as np
import pytest

from kerasbert import metrics

# No backend is involved, and scikit-learn is slow.
pytestmark = pytest.mark.backends("tensorflow")
CASES = 1000


@pytest.mark.slow
def test_others_watch_the_scores_in_fit(tmp_path):
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(32, 2)).astype("float32")
    y = (x[:, 0] > 0).astype("int32")

    def model():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.1), loss, jit_compile=False)
        return model

    def score(model):
        return {"matthews": metrics.matthews(y, model.predict(x, verbose=0).argmax(-1))}

    plain, watched = model(), model()
    settings = {"epochs": 8, "batch_size": 4, "shuffle": False, "verbose": 0}
    plain.fit(x, y, **settings)
    best = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "best.keras"), monitor="val_matthews", mode="max", save_best_only=True
    )
    callbacks = [metrics.ScoreCallback(score), best]
    history = watched.fit(x, y, callbacks=callbacks, **settings).history
    assert len(history["val_matthews"]) == 8
    assert history["val_matthews"][-1] == score(watched)["matthews"] > 0.5
    # Scoring does not change the training.
    for ours, theirs in zip(watched.get_weights(), plain.get_weights()):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    saved = keras.models.load_model(tmp_path / "best.keras")
    assert score(saved)["matthews"] == max(history["val_matthews"])

    stop = keras.callbacks.EarlyStopping("val_fixed", patience=2, mode="max")
    callbacks = [metrics.ScoreCallback(lambda model: {"fixed": 0.5}), stop]
    assert len(model().fit(x, y, epochs=9, callbacks=callbacks, verbose=0).epoch) == 3
