"""`EpochScores`: the callback of a `finetune` run, which scores each epoch and stops the run."""

import contextlib
import math
import os
import sys
import time

import keras

from kerasbert.base.files import names_in, remove
from kerasbert.base.finite import NonFiniteError
from kerasbert.training import report
from kerasbert.training.evaluation import answer_all
from kerasbert.training.recording import Pulse
from kerasbert.training.resuming import EpochCheckpoints, find_checkpoint

_POINTS = 20  # Points of the loss curve per epoch.


class EpochScores(EpochCheckpoints):
    """Callback that scores each epoch, saves checkpoints, and stops the run.

    Args:
        search: a `GridSearch`.
        method: a method of `kerasbert.training.methods`, with the model to score.
        folder: the run's folder.
        point: dict. The run's grid point.
        steps: number of batches per epoch.
    """

    def __init__(self, search, method, folder, point, steps):
        super().__init__(folder)
        self.search, self.method, self.point = search, method, point
        self.patience = search.shared["early_stopping"]
        self.every = max(steps // _POINTS, 1)
        self.history = []
        self.best = []  # Weights of the best epoch, with early stopping.
        # In a file or pipe, Keras' progress bar would print a line per batch.
        self.in_line = sys.stdout.isatty() or "ipykernel" in sys.modules
        self.steps = steps

    def kept(self):
        """Return the epoch to keep: the last, or with early stopping the best."""
        return max(self.history, key=self.search.rank) if self.patience else self.history[-1]

    def is_over(self):
        """Return whether the run has diverged, or has not improved for `early_stopping` epochs."""
        if not self.history:
            return False
        diverged = not self.history[-1]["scores"]
        waited = len(self.history) - self.kept()["epoch"]
        return diverged or waited >= (self.patience or math.inf)

    def at_once(self, method):
        """Fit the head by logistic regression, and record this as one epoch."""
        self.set_model(method.model)
        self.on_epoch_begin(0)
        self.on_epoch_end(0, {"loss": method.fit_head()})

    @contextlib.contextmanager
    def until_it_diverges(self):
        """Context manager that records a `NonFiniteError` for the current epoch."""
        try:
            yield
        except NonFiniteError as error:
            row = {"epoch": self._epoch, "loss": None, "scores": {}, "diverged": str(error)}
            row["seconds"] = round(time.monotonic() - self._start, 2)
            self.history.append({**row, "losses": self._losses})
            self.search.say(str(error))

    def on_epoch_begin(self, epoch, logs=None):
        self._start, self._losses, self._sum = time.monotonic(), [], (0, 0.0)
        self._pulse, self._epoch = Pulse(self.search.say), epoch + 1

    def on_train_batch_end(self, batch, logs=None):
        self.search.check_interrupt()
        # The mean of the epoch so far, read only at some batches, because reading waits for the
        # device.
        count = batch + 1
        if count % self.every == 0:
            total = float(logs["loss"]) * count
            before, seen = self._sum
            self._losses.append([count, _finite((total - seen) / (count - before))])
            self._sum = count, total
        if not self.in_line:
            self._pulse.tick(lambda: self._far(count, float(logs["loss"])))

    def _far(self, count, loss):
        """Return a progress line."""
        left = (time.monotonic() - self._start) / count * (self.steps - count)
        return (
            f"epoch {self._epoch} of {self.point['epochs']}, batch {count:,} of {self.steps:,}: "
            f"loss {loss:.4f}, {report.duration(left)} left in this epoch"
        )

    def on_epoch_end(self, epoch, logs=None):
        row = {"epoch": epoch + 1, "loss": _finite(logs["loss"]), "scores": {}}
        if row["loss"] is not None:  # `None` for a head that could not be fitted.
            task, dev, size = self.search.task, self.search.dev, self.point["batch_size"]
            verbose = self.search.verbose and not self.in_line
            found, _ = answer_all(task, self.method.ready(), dev, size, verbose)
            scores = {name: float(value) for name, value in task.score(dev, found).items()}
            # For other callbacks.
            logs.update((f"val_{name}", value) for name, value in scores.items())
            scores = {name: _finite(value) for name, value in scores.items()}
            row["scores"] = scores if None not in scores.values() else {}
        row["seconds"] = round(time.monotonic() - self._start, 2)
        row["losses"] = self._losses
        self.history.append(row)
        is_last = epoch + 1 == self.point["epochs"]
        if self.patience and self.kept() is row:
            self.best = [keras.ops.convert_to_numpy(w.value) for w in self.model.weights]
        if self.is_over():
            self.model.stop_training = True
            return
        if not is_last:
            self.keep(epoch + 1, self.best, history=self.history)
        super().on_epoch_end(epoch, logs)

    # === The state of an unfinished run ===

    def start(self, model):
        """Load the run's checkpoint, if any; return the number of complete epochs."""
        epoch, facts, self.best = self.resume(model)
        self.history = facts.get("history", [])
        return epoch

    def forget(self):
        """Remove the checkpoint, but not the saved model."""
        path = find_checkpoint(self.folder)
        if path is not None:
            os.remove(path)
        if os.path.isdir(self.folder) and not names_in(self.folder):
            remove(self.folder)


def _finite(value):
    """Return a number as a float, or `None` for NaN and infinity, which JSON lacks."""
    value = math.nan if value is None else float(value)
    return value if math.isfinite(value) else None
