"""Checks for NaN and infinity in losses, weights, labels and outputs."""

import functools
import math
import threading

import keras
import numpy as np

from kerasbert.base import keras_internals


class NonFiniteError(FloatingPointError, ValueError):
    """A loss, a weight or an output is NaN or infinite.

    Attributes:
        epoch, step: ints from 1, at which the training stopped; `None` if no training was running.
    """

    epoch = step = None


def non_finite_weights(weights):
    """Return the paths of the weights that hold NaN or infinity.

    Weights that are sharded over other processes are left out.
    """
    here = [one for one in weights if getattr(one.value, "is_fully_addressable", True)]
    return [one.path for one in here if not is_finite(keras.ops.convert_to_numpy(one.value))]


def check_weights(weights, what):
    """Raise a `NonFiniteError` if weights hold NaN or infinity.

    Args:
        weights: list of variables.
        what: string. Start of the error message, such as "The model cannot answer".
    """
    broken = non_finite_weights(weights)
    if broken:
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        raise NonFiniteError(
            f"{what}: NaN or infinity is in the weight '{broken[0]}'{more}, probably because the "
            "training diverged; load earlier weights and train with a lower learning rate."
        )


def check_outputs(model, outputs, may_be_nan=False):
    """Raise a `NonFiniteError` for NaN outputs or non-finite weights.

    Args:
        model: a `keras.Model`.
        outputs: any nesting of arrays.
        may_be_nan: whether NaN is accepted if all weights are finite.

    Returns:
        The outputs.
    """
    arrays = [np.asarray(one) for one in keras.tree.flatten(outputs)]
    arrays = [one for one in arrays if _is_float(one) and not np.isfinite(one).all()]
    if arrays:
        check_weights(model.weights, "The model cannot answer")
        # Masked positions may be infinite.
        if not may_be_nan and any(np.isnan(one).any() for one in arrays):
            raise NonFiniteError(
                f"The model answers with NaN, though its weights are finite: intermediate values "
                f"overflowed {model.compute_dtype}. If a training diverged, load earlier weights; "
                f"otherwise load the model with dtype='float32'.{_of_global_tokens(model)}"
            )
    return outputs


def _of_global_tokens(model):
    """Return a hint about NaN from a limit on global tokens."""
    encoder = getattr(model, "backbone", model)
    if getattr(encoder, "global_tokens", None) is None:
        return ""
    return (
        " Or a row has more global tokens than max_global_tokens="
        f"{encoder.max_global_tokens}; load the encoder with a higher number."
    )


def checks_outputs(function):
    """Decorate a function `(model, ...)` with `check_outputs`."""

    @functools.wraps(function)
    def call(model, *args, **kwargs):
        return check_outputs(model, function(model, *args, **kwargs))

    return call


def check_targets(y, sample_weight, losses=None):
    """Raise a `ValueError` for non-finite labels or sample weights in memory.

    Args:
        y, sample_weight: arrays or lists, or dicts of them.
        losses: the losses. Custom losses may expect NaN.
    """
    known = all(
        isinstance(loss, str) or type(loss).__module__.startswith(("keras.", "kerasbert."))
        for loss in keras.tree.flatten(losses)
        if loss is not None
    )
    for what, value in (("labels", y if known else None), ("sample weights", sample_weight)):
        for name, rows in value.items() if isinstance(value, dict) else [("", value)]:
            try:
                rows = np.asarray(rows)
            except (TypeError, ValueError, RuntimeError):
                continue  # Not ragged rows and tensors on a device.
            if _is_float(rows) and not np.isfinite(rows).all():
                place = np.argwhere(~np.isfinite(rows))[0]
                of = f" of '{name}'" if name else ""
                raise ValueError(
                    f"The {what}{of} hold {rows[tuple(place)]} at {place.tolist()}, which would "
                    "make the loss NaN; pass finite numbers, or remove the row."
                )


class StopAtNonFinite(keras.callbacks.Callback):
    """Callback that ends `fit` with a `NonFiniteError` at the first NaN or infinite loss.

    The mean loss of the epoch stays NaN once a loss is. With asynchronous steps, Keras calls it in
    other threads.

    Args:
        weights: whether to check the weights after each epoch too, since the last loss precedes the
            last update.
        place: function of epoch and step, from 1, that returns the place for errors.
    """

    async_safe = True

    def __init__(self, weights=True, place="step {1} of epoch {0}".format):
        super().__init__()
        self.weights, self.place = weights, place

    def on_train_begin(self, logs=None):
        self._thread, self._lock = threading.get_ident(), threading.Lock()
        # Keras can run several steps in one call.
        self._steps = getattr(keras_internals.model_of(self), "steps_per_execution", 1) or 1

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._finite, self._wrong, self._last = epoch, 0, None, 0

    def on_train_batch_begin(self, batch, logs=None):
        # Steps may finish in any order; wait for all before the failed one.
        if self._wrong is not None and self._finite >= self._wrong[0] // self._steps:
            self._stop(*self._wrong)

    def on_train_batch_end(self, batch, logs=None):
        loss = float((logs or {}).get("loss", 0.0))
        with self._lock:
            self._last = max(self._last, batch)
            if math.isfinite(loss):
                self._finite += 1
            elif self._wrong is None or batch < self._wrong[0]:
                self._wrong = batch, loss
        if threading.get_ident() == self._thread:
            self.on_train_batch_begin(batch)

    def on_epoch_end(self, epoch, logs=None):
        if self._wrong is not None:
            self._stop(*self._wrong)
        for name, said in (("loss", "loss"), ("val_loss", "validation loss")):
            value = float((logs or {}).get(name, 0.0))
            if not math.isfinite(value):
                self._stop(self._last, value, said)
        broken = non_finite_weights(self.model.weights) if self.weights else ()
        if broken:
            self._stop(self._last, math.nan, f"weight '{broken[0]}'")

    def _stop(self, batch, value, what="loss"):
        rate = getattr(getattr(self.model, "optimizer", None), "learning_rate", None)
        rate = (
            "" if rate is None else f" ({float(keras.ops.convert_to_numpy(rate)):g} at this step)"
        )
        held_out = "validation " if what.startswith("validation") else ""
        epoch, step = self._epoch + 1, batch + 1
        error = NonFiniteError(
            f"The {what} is {value:g} at {self.place(epoch, step)}: the training stops, and the "
            f"current weights are unusable. Likely causes: a learning rate that is too high{rate}; "
            f"float16 without the loss scaling of 'mixed_float16'; {held_out}labels or sample "
            f"weights that are not finite.{_of_global_tokens(self.model)}"
        )
        error.epoch, error.step = epoch, step
        raise error


def with_finite_check(callbacks):
    """Prepend `StopAtNonFinite` to the callbacks of `fit`, unless they have it or `TerminateOnNaN`.

    Args:
        callbacks: a callback, a nesting of them, a `keras.callbacks.CallbackList` or `None`.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    given = [] if callbacks is None else keras.tree.flatten(callbacks)
    if any(isinstance(one, (keras.callbacks.TerminateOnNaN, StopAtNonFinite)) for one in given):
        return given
    return [StopAtNonFinite(), *given]


def _is_float(array):
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def is_finite(array):
    """Return whether a NumPy array is free of NaN and infinity."""
    # A float64 sum of float32 cannot overflow, and is faster than `np.isfinite`.
    with np.errstate(invalid="ignore"):  # inf - inf
        return not _is_float(array) or bool(np.isfinite(np.sum(array, dtype="float64")))
