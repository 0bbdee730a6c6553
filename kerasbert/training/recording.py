"""Training progress: the console line, the log and the curves."""

import contextlib
import math
import os
import signal
import sys
import time

import keras

from kerasbert.base import keras_internals
from kerasbert.base.files import new_file, read_log
from kerasbert.base.notebook import Bar, in_notebook
from kerasbert.base.process import handled_signals
from kerasbert.base.strict_json import to_json
from kerasbert.training.resuming import random_mark, remove_older
from kerasbert.visualize.figures import save
from kerasbert.visualize.training import training_curves

LOG = "log.jsonl"
CURVES = "curves.png"


# Steps after which the processes tell each other whether one must stop.
ASK_EVERY = 10


class Recorder(keras.callbacks.Callback):
    """Callback that writes the log and checkpoints, and stops on request.

    Keras' epochs are the intervals between lines of the log: metrics are read at their ends,
    because on JAX and PyTorch reading waits for the device.

    Args:
        folder: path. The folder of the log.
        step: number of steps done before; later lines of the log are removed.
        total: number of steps of the whole training.
        accumulate: number of batches per step.
        checkpoint_every: int. Steps between checkpoints, a multiple of an interval.
        save: function of the model and the step that writes a checkpoint.
        second: string. Short name of the second task, such as "nsp".
        line: a `Line`.
        processes: `kerasbert.distribution.Processes`. The first writes the log. A signal to any
            stops all, at the next multiple of ten steps.
    """

    def __init__(
        self, folder, step, total, accumulate, checkpoint_every, save, second, line, processes
    ):
        super().__init__()
        self.path, self.processes = os.path.join(folder, LOG), processes
        self.log = [row for row in read_log(self.path) if row["step"] <= step]
        if processes.is_first:
            with new_file(self.path) as file:
                file.writelines(f"{to_json(row)}\n".encode() for row in self.log)
        self.step, self.total = step, total
        self.accumulate, self.checkpoint_every = accumulate, checkpoint_every
        self.save, self.second, self.line = save, second, line
        self.stopped = None

    def start_phase(self, first, last, facts, tokens_per_step):
        """Set the phase that the next call of `fit` trains.

        Args:
            first, last: ints. The last step before the phase, and the last step of the phase.
            facts: dict of values that each line of the log has.
            tokens_per_step: mean number of tokens per step.
        """
        self.first, self.last = first, last
        self.facts, self.tokens_per_step = facts, tokens_per_step
        self._put_back = random_mark()
        self._clock = None

    def stop(self, number, frame=None):
        """Handle a signal: stop after this step, or at once at a second signal."""
        if self.stopped:
            raise KeyboardInterrupt
        self.stopped = signal.Signals(number).name
        self.line.say("stopping after this step, to save it; interrupt again to stop at once")

    # Keras calls the methods below. On JAX, reading `self.model` synchronizes the weights, unlike
    # `model_of`.

    def on_epoch_begin(self, epoch, logs=None):
        self._batches, self._before = 0, self.step
        self._pace = None
        if self._clock is not None:
            self._clock = time.perf_counter(), self.step

    def on_train_batch_begin(self, batch, logs=None):
        if self._put_back is not None:
            self._put_back()
            self._put_back = None

    def on_train_batch_end(self, batch, logs=None):
        self._batches += 1
        if self._batches % self.accumulate:
            return
        self.step += 1
        if self._clock is None:
            # The first step is not timed, because it may compile.
            self._clock = time.perf_counter(), self.step
        self.line.tick(self.step, self.total)
        if self.processes.count > 1:
            # All processes must stop after the same step, so a request waits until they ask each
            # other.
            if self.step % ASK_EVERY:
                return
            if self.processes.any(self.stopped):
                self.stopped = self.stopped or "another process"
        if self.stopped and not keras_internals.model_of(self).stop_training:
            self.save(self.model, self.step)
            keras_internals.model_of(self).stop_training = True

    def on_test_begin(self, logs=None):
        # Reading a variable waits for the device's steps. The time is taken before the evaluation.
        keras.ops.convert_to_numpy(self.model.optimizer.iterations)
        self._pace = self._seconds_and_steps()

    def after(self, batches):
        """Return the number of the step after `batches` batches of this interval."""
        return self._before - (-batches // self.accumulate)

    def on_epoch_end(self, epoch, logs=None):
        if self.processes.is_first:
            # Losses after the newest checkpoint are finite.
            remove_older(os.path.dirname(self.path))
        values = short_names(logs, self.second)
        values = mean_scores(values, self.processes)
        seconds, steps = self._pace or self._seconds_and_steps()
        pace = seconds / steps if steps else None
        row = {
            "step": self.step,
            **self.facts,
            **values,
            "learning_rate": float(self.model.optimizer.learning_rate),
            "tokens_per_second": round(self.tokens_per_step / pace, 1) if pace else None,
            "seconds": round((self.step - self._before) * pace, 3) if pace else None,
        }
        self.log.append(row)
        if self.processes.is_first:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(f"{to_json(row)}\n")
        self.line.interval(row, self.total, pace)
        is_due = (self.step - self.first) % self.checkpoint_every == 0 or self.step == self.last
        if is_due and not keras_internals.model_of(self).stop_training:
            self.save(self.model, self.step)

    def _seconds_and_steps(self):
        """Return seconds and steps of this interval."""
        start, first = self._clock
        return time.perf_counter() - start, self.step - first


def short_names(scores, second):
    """Rename losses and metrics to the log's names, and convert them to floats.

    >>> short_names({"val_mlm_logits_loss": 2, "nsp_logits_accuracy": 1}, "nsp")
    {'held_out_mlm_loss': 2.0, 'nsp_accuracy': 1.0}
    """

    def short(name):
        before = "held_out_" if name.startswith("val_") else ""
        name = name.removeprefix("val_")
        # With one output, Keras' names lack its name.
        if name in ("accuracy", "perplexity"):
            name = f"mlm_{name}"
        return before + name.replace("nsp_logits_", f"{second}_").replace("_logits_", "_")

    return {short(name): float(value) for name, value in scores.items()}


def mean_scores(scores, processes):
    """Return a dict of losses and metrics, averaged over processes that have different rows.

    Losses and perplexities are exact. Other scores are approximate, because the numbers of tokens
    of the processes differ slightly.
    """
    logarithms = [math.log(x) if "perplexity" in name else x for name, x in scores.items()]
    means = processes.mean(logarithms)
    return {name: math.exp(x) if "perplexity" in name else x for name, x in zip(scores, means)}


@contextlib.contextmanager
def lasting_interrupt():
    """Context manager of a function that raises `KeyboardInterrupt` after Ctrl-C.

    Python only prints exceptions in destructors and callbacks of weak references, and destroying a
    model takes time.
    """
    before = signal.getsignal(signal.SIGINT)
    came = []

    def handle(number, frame):
        came.append(number)
        before(number, frame)

    def check():
        if came:
            raise KeyboardInterrupt

    # A background job ignores SIGINT.
    with handled_signals(handle, [signal.SIGINT] if callable(before) else []):
        yield check


class Pulse:
    """Reports progress by lines, for files and pipes.

    Args:
        say: function that prints a text.
        every: minimum seconds between lines, and before the first.
    """

    EVERY = 30.0

    def __init__(self, say, every=None):
        self.say, self.every = say, self.EVERY if every is None else every
        self._last = time.monotonic()

    def tick(self, text):
        """Report `text()` if `every` seconds have passed since the last line."""
        if time.monotonic() - self._last >= self.every:
            self._last = time.monotonic()
            self.say(text())


class Line:
    """Progress display: a bar on a terminal or in a notebook, otherwise one line per interval.

    Args:
        verbose: whether to show anything.
    """

    def __init__(self, verbose=True):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.verbose = verbose
        # In a notebook, rich would print each line as HTML, and its bar would not update itself.
        notebook = {"force_terminal": False, "force_jupyter": False} if in_notebook() else {}
        self.console = Console(file=sys.stderr, highlight=False, **notebook)
        self.bar = None
        self.notebook_bar = Bar() if verbose and notebook else None
        if verbose and self.console.is_terminal:
            # The bar does not refresh in a thread, which would slow down the training.
            self.bar = Progress(
                TextColumn("{task.completed:,}/{task.total:,}"),
                BarColumn(),
                TextColumn("{task.description}"),
                console=self.console,
                auto_refresh=False,
                transient=True,
            )
            self.task = self.bar.add_task("compiling")
        self._shown, self._text = 0.0, ""
        self.pulse = Pulse(self.say)

    def __enter__(self):
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_):
        if self.bar:
            self.bar.stop()

    def say(self, text):
        """Print a separate line."""
        if self.verbose:
            self.console.print(text, soft_wrap=True, markup=False)

    def tick(self, step, total):
        """Show the current step: in a bar, at most once a second; otherwise as `Pulse` does."""
        if not self.bar and not self.notebook_bar:
            self.pulse.tick(lambda: f"{step:,}/{total:,}")
        elif time.monotonic() - self._shown > 1:
            self._shown = time.monotonic()
            self._update(step, total)

    def _update(self, step, total):
        """Show the step, and the metrics of the last interval, in the bar."""
        if self.notebook_bar:
            self.notebook_bar.show(step, total, self._text)
        else:
            text = {"description": self._text} if self._text else {}
            self.bar.update(self.task, completed=step, total=total, refresh=True, **text)

    def interval(self, row, total, seconds_per_step):
        """Show the metrics of an interval."""
        parts = [f"loss {row['loss']:.3f}"]
        if "mlm_accuracy" in row:
            parts.append(f"masked words {row['mlm_accuracy']:.1%}")
        if "detection_recall" in row:
            parts.append(f"replaced tokens found {row['detection_recall']:.1%}")
        parts.append(f"learning rate {row['learning_rate']:.2g}")
        if row["tokens_per_second"]:
            parts.append(f"{row['tokens_per_second']:,.0f} tokens/s")
        if seconds_per_step:
            parts.append(f"{_duration((total - row['step']) * seconds_per_step)} left")
        if "held_out_loss" in row:
            parts.append(f"held out {row['held_out_loss']:.3f}")
        text = ", ".join(parts)
        if self.bar or self.notebook_bar:
            self._text = text
            self._update(row["step"], total)
        else:
            self.pulse = Pulse(self.say)
            self.say(f"{row['step']:,}/{total:,}: {text}")


def _duration(seconds):
    """Format a duration as hours, minutes and seconds.

    >>> _duration(59.6), _duration(3725), _duration(100 * 3600)
    ('1:00', '1:02:05', '100:00:00')
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def draw_curves(log, path):
    """Draw the losses and accuracies of a log.

    Args:
        log: list of dicts, see `read_log`.
        path: the PNG to write.

    Returns:
        Whether a picture was written: not without matplotlib, or for an empty log.
    """
    if not log:
        return False
    try:
        figure = training_curves(log)
    except ImportError:
        return False
    save(figure, path)
    return True
