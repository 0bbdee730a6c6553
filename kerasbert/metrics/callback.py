"""`ScoreCallback`: scores in the logs of `fit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class ScoreCallback(keras.callbacks.Callback):
    """Scores the model at the end of each epoch of `fit`.

    Scores appear in logs, progress bar and history; later callbacks, such as `EarlyStopping`, can
    monitor them with `mode="max"`.

    Args:
        score: function of a model that returns a dict of numbers, such as
            `lambda model: {"f1": f1(y, model.predict_proba(x).argmax(-1))}`.
            `kerasbert.tasks.Task.score_callback` makes the whole callback.
        prefix: prefix of the names in the logs.

    Example:

    >>> from kerasbert.metrics import pearson
    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> x = np.arange(8.0)[:, None]
    >>> watch = ScoreCallback(lambda model: {"r": pearson(x, model.predict(x, verbose=0))})
    >>> history = model.fit(x, x, callbacks=[watch], verbose=0)
    >>> sorted(history.history)
    ['loss', 'val_r']
    """

    def __init__(self, score: Callable[..., Any], prefix: str = "val_") -> None:
        super().__init__()
        self.score = score
        self.prefix = prefix

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        scores = self.score(self.model)
        if logs is not None:
            logs.update((self.prefix + name, float(value)) for name, value in scores.items())
