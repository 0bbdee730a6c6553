"""Keras' training, evaluation and prediction steps for tasks."""

import contextlib
import dataclasses
import itertools

import keras
import numpy as np

import kerasbert.distribution as distribution
from kerasbert import backend
from kerasbert.backend.tensorflow import tf, traced_on_purpose
from kerasbert.base import keras_internals
from kerasbert.base.finite import check_outputs, check_targets
from kerasbert.base.process import uninterrupted
from kerasbert.heads.base.class_weights import weigh_arrays, weigh_dataset
from kerasbert.heads.base.inputs import (
    build_on,
    check_ids,
    check_labeled,
    is_dataset,
    is_ready,
    sorted_batches,
)
from kerasbert.heads.base.regularizing import Regularizer
from kerasbert.text.batch_plans import restore_order
from kerasbert.text.batches import ReadsAhead, Stream, rows_of_part


@dataclasses.dataclass
class Running:
    """What a task stores for its steps, untracked by Keras."""

    # `verbose` of the last `fit`.
    verbose: object = None
    # Number of epochs of all calls of `fit`.
    epochs: int = 0
    # This process's validation data in `fit`, which Keras passes to `evaluate`.
    held_out: object = None
    # Signature of the next batches, for `batch_to_build_on`.
    batch_spec: object = None
    # Error of a generator, or of the preprocessor on its batch.
    reading_error: object = None
    # Whether steps run jointly with other processes.
    shares_steps: bool = False
    # The adversarial training and R-Drop of the last `compile`.
    regularizer: Regularizer = Regularizer()
    # The `loss_weights` of the last `compile`.
    loss_weights: object = None
    # By "train", "test" and "predict": the kind of batches compiled for.
    kinds: dict = dataclasses.field(default_factory=dict)


# === Keras' methods ===


def call_keras(task, method, x, *args, **kwargs):
    """Run a Keras method; raise a generator's own error instead of TensorFlow's."""
    task._running.reading_error = None
    task._expect_batches(method.__name__, x)
    backend.keep_compiled()
    args = [arg.for_keras() if isinstance(arg, Stream) else arg for arg in (x, *args)]
    try:
        with traced_on_purpose():
            return method(task, *args, **kwargs)
    except Exception:
        if task._running.reading_error is not None:
            raise task._running.reading_error from None
        raise


def run(task, method, x, y, sample_weight, batch_size, is_raw, class_weight=None, **kwargs):
    """Call Keras' `fit` or `evaluate` on arrays or a dataset; `is_raw` if they were texts."""
    if not is_dataset(x):
        shared_out(task, x)
        check_targets(y, sample_weight, task.loss)
        y, sample_weight = task.complete_targets(y, sample_weight)
        if isinstance(x, (dict, list, tuple, np.ndarray)) or keras.ops.is_tensor(x):
            check_labeled(task, y, is_raw)
            check_ids(task, x)
        task.check_arrays(x, y)
        if class_weight is not None:
            sample_weight = weigh_arrays(task, class_weight, y, sample_weight)
        return call_keras(
            task, method, x, y, batch_size=batch_size, sample_weight=sample_weight, **kwargs
        )
    running, is_training = task._running, method is keras.Model.fit
    if not isinstance(x.element_spec, tuple) or len(x.element_spec) < 2:
        check_labeled(task, None, is_raw=not is_ready(x))
    if class_weight is not None:
        x = weigh_dataset(task, class_weight, x, is_raw)
    # Keras would read a batch to build the model, and begin the first epoch twice.
    if isinstance(x, ReadsAhead):
        build_on(task, x.example)
    elif is_raw and not backend.trains_in_graphs():
        build_on(task, keras.tree.map_structure(_zeros, x.element_spec))
    if is_training and not backend.is_distributed(task):
        running.batch_spec = x.element_spec
    if x is not running.held_out:
        x = shared_out(task, x, is_training)
    return call_keras(task, method, x, **kwargs)


def batch_to_build_on(task, iterator):
    """Return the batch on which Keras builds metrics and optimizer; `None` leaves it to Keras.

    In a strategy's scope, Keras 3.15 averages a batch over devices to find shapes, which fails for
    boolean masks and, with several workers, for several tensors.
    """
    spec, task._running.batch_spec = task._running.batch_spec, None
    has_shapes = all(isinstance(one, tf.TensorSpec) for one in keras.tree.flatten(spec))
    if keras_internals.in_strategy(task):
        if has_shapes:
            # Only shapes matter, and reading a batch would start an epoch.
            return keras.tree.map_structure(_zeros, spec)
        parts = task.distribute_strategy.experimental_local_results
        for _, _, steps in iterator:
            return keras.tree.map_structure(lambda x: parts(x)[0], next(steps))
    elif spec is not None and has_shapes and len(task.outputs) > 1:
        # Otherwise Keras creates metrics of several losses in the first trace, and TensorFlow
        # traces again.
        with uninterrupted():
            keras_internals.build_on(task, keras.tree.map_structure(_zeros, spec))
    return None


def build_optimizer(task):
    """Build a compiled model's optimizer before its first step.

    Otherwise the first trace creates its variables, and TensorFlow traces again, half the time of a
    short training.
    """
    optimizer = task.optimizer
    if optimizer is None or optimizer.built or backend.is_distributed(task):
        return
    if all(layer.built for layer in keras_internals.flatten_layers(task)):
        with uninterrupted(), keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(task.trainable_variables)


def _zeros(spec):
    """Return zeros that fit a `tf.TensorSpec`; unknown sizes are 2."""
    return np.zeros([size or 2 for size in spec.shape], spec.dtype.as_numpy_dtype)


# === Compiled steps ===


def discard_steps(task, kind, *steps):
    """Discard compiled steps that have run on another kind of batches.

    Otherwise TensorFlow retraces them with unknown ranks.

    Args:
        kind: hashable. Identifies the kind of the next batches.
        *steps: "train", "test" or "predict".
    """
    kinds = task._running.kinds
    for step in steps:
        if kind != kinds.setdefault(step, kind):
            setattr(task, f"{step}_function", None)
            kinds[step] = kind


def protected(task, step):
    """Protect a step from Ctrl-C; a step that runs eagerly may be in a debugger and is not."""
    return step if task.run_eagerly else backend.uninterrupted_step(step)


def say_compiling(task, shape):
    """Print why the next step takes long."""
    if task._running.verbose in ("auto", 1):
        # The progress bar overwrites it.
        print(f"\rcompiling {' x '.join(map(str, shape))} ...", end="", flush=True)


def shape_cost(task, epochs):
    """Return the padding tokens per epoch that take as long as compiling a shape."""
    # Epochs of earlier calls count too, because `fit` may be called once per epoch.
    task._running.epochs += epochs
    return backend.shape_cost(task.backbone.hidden_dim) / max(task._running.epochs, 1)


# === Processes that share batches ===


def share_steps(task):
    """Run this model's steps jointly with processes that share batches."""
    group = distribution.sharing
    if group is not None and not task._running.shares_steps:
        backend.share_steps(task, group.processes.count)
        task._running.shares_steps = True


def shared_out(task, data, training=False):
    """Return this process's part of the data."""
    group = distribution.sharing
    if group is None or data is None:
        return data
    if not is_dataset(data):
        raise ValueError(
            f"{group.processes.count} processes can share texts or a tf.data.Dataset, but got "
            f"a {type(data).__name__}; pass one of these."
        )
    part = backend.rows_of_process(group.shard, training)
    if part[1] == 1:
        return data
    own = rows_of_part(data, *part)
    task._running.batch_spec = own.element_spec
    return backend.of_this_process(own)


# === Batch by batch, for outputs that Keras cannot join ===


def predict_texts(task, x, batch_size, preprocessor=None, **kwargs):
    """Run `predict` on texts, or on their windows."""
    batches, order = sorted_batches(task, x, batch_size=batch_size, preprocessor=preprocessor)
    return restore_order(predict_batches(task, batches, **kwargs), order)


def predict_batches(task, batches, **kwargs):
    """Run `keras.Model.predict`; outputs per token are padded to the longest row."""
    is_open = task._has_open_outputs(batches)
    if is_dataset(batches) and not is_open and not backend.predicts_by_batch():
        return check_outputs(task, call_keras(task, keras.Model.predict, batches, **kwargs))
    parts = [outputs for _, outputs in batch_outputs(task, batches, **kwargs)]
    return keras.tree.map_structure(
        lambda *outputs: _join_padded(outputs, task.output_padding), *parts
    )


def batch_outputs(task, batches, **kwargs):
    """Yield features and outputs of each batch of a dataset or a list.

    Keras cannot join outputs (B, T, ...) of different T.
    """

    def step(batch):
        features = keras.utils.unpack_x_y_sample_weight(batch)[0]
        outputs = backend.predict_batch(task, features)
        return (features, outputs), {"outputs": outputs}

    return each_batch(task, "predict", step, batches, **kwargs)


def evaluate_batches(task, batches, return_dict=False, **kwargs):
    """Run `evaluate` on a list of batches."""

    def step(batch):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        logs = keras.Model.test_on_batch(task, x, y, sample_weight, return_dict=True)
        return logs, logs

    task.reset_metrics()
    with metrics_kept(task):
        *_, logs = each_batch(task, "test", step, batches, **kwargs)
    return logs if return_dict else keras_internals.in_order(task, logs)


def each_batch(task, kind, step, batches, verbose="auto", steps=None, callbacks=None):
    """Run a step on each batch, with callbacks and a progress bar.

    Args:
        kind: "predict" or "test", as in callbacks' methods.
        step: function of a batch that returns a result and the logs for callbacks.
        verbose, steps, callbacks: as in `keras.Model.predict`.

    Yields:
        The result of each batch.
    """
    task._expect_batches(kind, batches)
    if is_dataset(batches):
        known, batches = int(batches.cardinality()), batches.as_numpy_iterator()
    else:
        known = len(batches)
    tell = _teller(task, kind, callbacks, verbose, steps or (known if known > 0 else None))
    tell("begin")
    logs = None
    for number, batch in enumerate(itertools.islice(batches, steps)):
        tell("batch_begin", number)
        with traced_on_purpose():
            result, logs = step(batch)
        tell("batch_end", number, logs)
        yield result
    tell("end", *([logs] if kind == "test" else []))


def _teller(task, kind, callbacks, verbose, steps):
    """Return a function that reports progress to callbacks and the progress bar."""
    if not callbacks and verbose == 0:
        # A CallbackList's thread takes as long as predicting a short text.
        return lambda moment, *arguments: None
    listening = keras.callbacks.CallbackList(
        callbacks, add_progbar=verbose != 0, verbose=verbose, epochs=1, steps=steps, model=task
    )
    return lambda moment, *arguments: getattr(listening, f"on_{kind}_{moment}")(*arguments)


@contextlib.contextmanager
def metrics_kept(task):
    """Return a context in which metrics accumulate over single batches."""
    task.__dict__["reset_metrics"] = lambda: None
    try:
        yield
    finally:
        task.__dict__.pop("reset_metrics", None)


def _join_padded(parts, value):
    """Concatenate arrays (B, ...), padding each axis at its end."""
    if len(parts) == 1:
        return parts[0]
    sizes = np.max([part.shape[1:] for part in parts], axis=0)

    def pad(part):
        missing = [(0, size - own) for size, own in zip(sizes, part.shape[1:], strict=True)]
        return np.pad(part, [(0, 0), *missing], constant_values=value)

    return np.concatenate([pad(part) for part in parts])
