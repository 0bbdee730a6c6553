"""Multi-task learning with a shared encoder.

N examples, B batch.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

import kerasbert.distribution as distribution
from kerasbert.backend import compiles_shapes
from kerasbert.base import keras_internals
from kerasbert.base.errors import check_choice
from kerasbert.base.finite import with_finite_check
from kerasbert.base.from_preset import check_content
from kerasbert.base.keywords import arguments, config_of
from kerasbert.base.parts import same_tokens
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.base.inputs import is_raw, preprocessed
from kerasbert.heads.base.regularizing import prepare_parts
from kerasbert.heads.base.sampling import SAMPLING, array_batches, plan_steps
from kerasbert.heads.base.steps import metrics_kept
from kerasbert.heads.base.task import BertTask
from kerasbert.text.preprocessor import BertPreprocessor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Self

    from kerasbert.base.aliases import Tensor


@keras.saving.register_keras_serializable(package="kerasbert")
class BertMultiTask(BertTask):
    """Multi-task model: one encoder with a head for each of several tasks (MT-DNN).

    The tasks share an encoder. Each step of `fit` uses a batch and the loss of one task; other
    heads get zero gradients from the shared optimizer. Use a trained task as any model:
    `model.tasks["topic"].classify(texts)`. `fit` has its own loop, because Keras' loop on
    TensorFlow needs batches of one structure.

    `from_preset(..., sequence_length=128)` sets the length of all tasks.

    Args:
        tasks: dict of name to task model. Their preprocessors must have equal tokenizers.

    Example:

    >>> from kerasbert.models import BertTextClassifier, BertTextRegressor
    >>> backbone = BertBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> model = BertMultiTask(
    ...     {"topic": BertTextClassifier(backbone, 3), "grade": BertTextRegressor(backbone)}
    ... )
    >>> x = {"token_ids": np.ones((4, 5), "int32")}
    >>> history = model.fit(
    ...     {"topic": (x, np.array([0, 1, 2, 0])), "grade": (x, np.ones(4))},
    ...     sampling="uniform", steps_per_epoch=4, batch_size=2, verbose=0,
    ... )
    >>> sorted(history.history)
    ['grade_loss', 'grade_mae', 'loss', 'topic_accuracy', 'topic_loss']
    >>> model.predict({"topic": x}, verbose=0)["topic"].shape
    (4, 3)

    Source: Liu et al. 2019, arXiv 1901.11504.
    """

    backbone_cls = BertBackbone
    preprocessor_cls = BertPreprocessor
    kind = "multi_task"

    def __init__(self, tasks: Mapping[str, Any], **kwargs: Any) -> None:
        # Only for saving the tokenizer; each task has its own.
        self.backbone, self.preprocessor = _checked(tasks)
        self.tasks = dict(tasks)
        inputs = {
            name: {
                key: keras.Input(x.shape[1:], dtype=x.dtype, name=f"{name}_{key}")
                for key, x in task.input.items()
            }
            for name, task in tasks.items()
        }
        outputs = {name: task(inputs[name]) for name, task in tasks.items()}
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Map a dict of inputs of some or all tasks to a dict of outputs."""
        return {name: self.tasks[name](x, training=training) for name, x in inputs.items()}

    def compile(
        self, optimizer: Any = "auto", loss: Any = "auto", *, metrics: Any = "auto", **kwargs: Any
    ) -> None:
        """Configure training; see `BertTask.compile`. Each task keeps its loss and metrics."""
        given = {"loss": loss, "metrics": metrics, **kwargs}
        for name in ("loss", "metrics", "weighted_metrics", "loss_weights"):
            if given.get(name) not in (None, "auto"):
                first = next(iter(self.tasks))
                raise ValueError(
                    f"compile({name}=...) has no effect, because each task trains with its own; "
                    f"compile the task, for example model.tasks[{first!r}].compile({name}=...)."
                )
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)

    def default_loss(self) -> Any:
        """Return `None`: each task keeps the loss that it was compiled with."""

    def default_metrics(self) -> Any:
        """Return `None`: each task keeps the metrics that it was compiled with."""

    # === Hooks of Keras' training step; `x`, `y` and the like are dicts of one task ===

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Tensor = None,
        sample_weight: Any = None,
        training: bool | None = True,
    ) -> Tensor:
        loss = 0.0
        for name, outputs in y_pred.items():
            task = self.tasks[name]
            one = task.compute_loss(
                x=x[name],
                y=y[name],
                y_pred=outputs,
                sample_weight=sample_weight and sample_weight.get(name),
                training=training,
            )
            size = ops.shape(keras.tree.flatten(outputs)[0])[0]
            keras_internals.loss_tracker(task).update_state(one, sample_weight=size)
            loss = loss + one
        # Zero times the other weights gives each weight a gradient, which JAX needs.
        others = sum(ops.sum(weight) for weight in self._not_in(y_pred))
        return loss + 0.0 * ops.cast(others, loss.dtype)

    def _not_in(self, names):
        """Return the trainable weights that the tasks `names` do not use."""
        tasks = map(self.tasks.get, names)
        used = {id(weight) for task in tasks for weight in task.trainable_weights}
        return [weight for weight in self.trainable_weights if id(weight) not in used]

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Tensor, sample_weight: Any = None
    ) -> dict[str, Any]:
        results = {"loss": keras_internals.loss_tracker(self).result()}
        for name, outputs in y_pred.items():
            weights = sample_weight and sample_weight.get(name)
            found = self.tasks[name].compute_metrics(x[name], y[name], outputs, weights)
            results.update(_prefixed(name, found))
        return results

    @property
    def uses_pooler(self) -> bool:
        return any(task.uses_pooler for task in self.tasks.values())

    @property
    def metrics(self) -> list[Any]:
        """The metrics of all tasks; Keras leaves out those of inner models."""
        tasks = getattr(self, "tasks", {}).values()
        return [*super().metrics, *(metric for task in tasks for metric in task.metrics)]

    # === Training ===

    def fit(
        self,
        data: Mapping[str, Any],
        sampling: str = "size",
        batch_size: Any = 32,
        epochs: int = 1,
        steps_per_epoch: int | None = None,
        validation_data: Any = None,
        callbacks: Sequence[Any] | None = None,
        verbose: Any = "auto",
        seed: int | None = None,
        initial_epoch: int = 0,
    ) -> keras.callbacks.History:
        """Train on all tasks, with a batch of one task per step.

        Args:
            data: dict of task name to `(x, y)` or `(x, y, sample_weight)`, as for the task's `fit`,
                or to a `tf.data.Dataset` of batches. A finished task starts over in a new order.
            sampling: string. How steps are divided among tasks. "size": by numbers of batches, so
                that an epoch has every example once; "sqrt": by their square roots, which favors
                small tasks; "uniform": equally.
            batch_size: int, or a dict of name to int.
            epochs: int.
            steps_per_epoch: int. Defaults to the total number of batches of all tasks.
            validation_data: like `data`, for `evaluate` after each epoch.
            callbacks: list of `keras.callbacks.Callback`.
            verbose: as in `keras.Model.fit`.
            seed: seed of the order of tasks and examples; `None` draws one with Python's generator
                (see `keras.utils.set_random_seed`).
            initial_epoch: int.

        Returns:
            A `keras.callbacks.History` with the mean `loss` of all steps, and `name_loss`,
            `name_accuracy`, ... of each trained task.
        """
        if distribution.sharing is not None:
            raise ValueError("A BertMultiTask trains in one process; see distribution.together().")
        check_choice("sampling", sampling, SAMPLING)
        self._check_names(data)
        prepare_parts(self, self.tasks)
        seed = random.randrange(2**31) if seed is None else seed
        sizes, sources = [], []
        for name, task in self.tasks.items():
            if name not in data:
                raise ValueError(f"data lacks the task '{name}'; pass data for every task.")
            size, batches = self._batches(name, data[name], _rows(batch_size, name, 32), seed)
            first = next(batches)
            with _without_optimizer(task):
                keras_internals.build_on(task, first)
            sizes.append(size)
            sources.append(itertools.chain([first], batches))
        steps = steps_per_epoch or sum(sizes)
        names = list(self.tasks)

        callbacks = keras.callbacks.CallbackList(
            with_finite_check(callbacks),
            add_history=True,
            add_progbar=verbose != 0,
            verbose=1 if verbose == "auto" else verbose,
            epochs=epochs,
            steps=steps,
            model=self,
        )
        self.stop_training = False
        callbacks.on_train_begin()
        logs = {}
        for epoch in range(initial_epoch, epochs):
            self.reset_metrics()
            callbacks.on_epoch_begin(epoch)
            plan = plan_steps(sizes, sampling, steps, seed, epoch)
            for step, i in enumerate(plan):
                callbacks.on_train_batch_begin(step)
                logs = self._train_on(names[i], next(sources[i]))
                callbacks.on_train_batch_end(step, logs)
                if self.stop_training:
                    break
            logs = {"loss": float(keras_internals.loss_tracker(self).result())}
            for i in sorted(set(plan[: step + 1])):
                results = self.tasks[names[i]].get_metrics_result()
                logs.update(_prefixed(names[i], keras.tree.map_structure(float, results)))
            if validation_data is not None:
                results = self.evaluate(validation_data, batch_size=batch_size)
                logs.update({f"val_{key}": value for key, value in results.items()})
            callbacks.on_epoch_end(epoch, logs)
            if self.stop_training:
                break
        callbacks.on_train_end(logs)
        return self.history

    def _train_on(self, name, batch):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        weights = None if sample_weight is None else {name: sample_weight}
        with metrics_kept(self):
            return keras.Model.train_on_batch(self, {name: x}, {name: y}, weights, return_dict=True)

    def _batches(self, name, data, batch_size, seed):
        """Return `(number of batches, endless iterator over them)`."""
        task = self.tasks[name]
        if not hasattr(data, "element_spec"):
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
            if y is None:
                raise ValueError(f"The data of the task '{name}' has no labels; pass (x, y).")
            if not is_raw(task, x):
                task.check_arrays(x, y)
                arrays = tuple(_as_arrays(part) for part in (x, y, sample_weight))
                sizes = {len(leaf) for leaf in keras.tree.flatten(arrays) if leaf is not None}
                if len(sizes) > 1:
                    raise ValueError(
                        f"The arrays of the task '{name}' have {sorted(sizes)} rows; they must "
                        "have the same number."
                    )
                (size,) = sizes
                return -(-size // batch_size), array_batches(arrays, batch_size, seed)
            data = task.preprocessor.batches(
                x,
                y,
                sample_weight,
                batch_size,
                seed=seed,
                buckets=compiles_shapes(self.jit_compile),
            )
        else:
            data = preprocessed(task, data)
        size = int(data.cardinality())
        if size < 0:
            raise ValueError(
                "Sampling needs the number of batches, but a dataset does not know its own; set it "
                "with `dataset.apply(tf.data.experimental.assert_cardinality(n))`."
            )

        def endless():
            while True:
                yield from data.as_numpy_iterator()

        return size, endless()

    def evaluate(
        self, data: Mapping[str, Any], batch_size: Any = None, verbose: Any = 0
    ) -> dict[str, Any]:
        """Compute loss and metrics of some or all tasks.

        Args:
            data: dict of name to `(x, y)`, `(x, y, sample_weight)` or a `tf.data.Dataset`.
            batch_size: int, or a dict of name to int.
            verbose: as in `keras.Model.evaluate`.

        Returns:
            A dict of `name_loss`, `name_accuracy` and so on, and `loss`, the mean of the tasks'
            losses.
        """
        self._check_names(data)
        results, losses = {}, []
        for name, part in data.items():
            x, y, sample_weight = (
                (part, None, None)
                if hasattr(part, "element_spec")
                else keras.utils.unpack_x_y_sample_weight(part)
            )
            with _without_optimizer(self.tasks[name]):
                found = self.tasks[name].evaluate(
                    x, y, _rows(batch_size, name), sample_weight, verbose=verbose, return_dict=True
                )
            losses.append(found["loss"])
            results.update(_prefixed(name, found))
        return {"loss": float(np.mean(losses)), **results}

    def predict(
        self, data: Mapping[str, Any], batch_size: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the outputs of some or all tasks.

        Args:
            data: dict of name to inputs for that task's `predict`.
            batch_size: int, or a dict of name to int.
            **kwargs: as in `keras.Model.predict`.

        Returns:
            A dict of name to outputs.
        """
        self._check_names(data)
        return {
            name: self.tasks[name].predict(x, batch_size=_rows(batch_size, name), **kwargs)
            for name, x in data.items()
        }

    def _check_names(self, data):
        if not isinstance(data, dict):
            raise ValueError(
                f"data must be a dict with the names of the tasks, {', '.join(self.tasks)}; got a "
                f"{type(data).__name__}."
            )
        for name in data:
            if name not in self.tasks:
                raise ValueError(
                    f"There is no task '{name}'; the tasks are {', '.join(self.tasks)}."
                )

    def quantize(self, mode: str | None = None, **kwargs: Any) -> None:
        """Quantize the encoder, for example to "int8", but not the heads."""
        super().quantize(mode, **kwargs)
        for task in self.tasks.values():
            task.train_function = task.test_function = task.predict_function = None

    # === Saving: one encoder and tokenizer, and the other settings of each task ===

    def get_config(self) -> dict[str, Any]:
        tasks = {}
        for name, task in self.tasks.items():
            config = {**config_of(task), "backbone": None, "preprocessor": None}
            preprocessor = task.preprocessor
            if preprocessor is not None:
                preprocessor = {
                    "registered_name": keras.saving.get_registered_name(type(preprocessor)),
                    "config": {**config_of(preprocessor), "tokenizer": None},
                }
            tasks[name] = {
                "registered_name": keras.saving.get_registered_name(type(task)),
                "config": config,
                "preprocessor": preprocessor,
            }
        return {**super().get_config(), "tasks": tasks}

    @classmethod
    def with_preprocessor_settings(cls, config: dict[str, Any], settings: Any) -> Any:
        """Update the tasks' preprocessors in a config with the settings they have."""
        tasks = {}
        for name, saved in config.get("tasks", {}).items():
            preprocessor = saved["preprocessor"]
            if preprocessor is not None:
                its_class = keras.saving.get_registered_object(preprocessor["registered_name"])
                its = arguments(its_class) & settings.keys()
                more = {key: settings[key] for key in its}
                preprocessor = {**preprocessor, "config": {**preprocessor["config"], **more}}
            tasks[name] = {**saved, "preprocessor": preprocessor}
        return {**config, "tasks": tasks}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        check_content(config)
        config = dict(config)
        shared = [config.pop(part, None) for part in ("backbone", "preprocessor")]
        backbone, shared = (
            keras.layers.deserialize(part) if isinstance(part, dict) else part for part in shared
        )
        tasks = {}
        for name, saved in config.pop("tasks").items():
            preprocessor = saved["preprocessor"]
            if preprocessor is not None:
                preprocessor = keras.saving.get_registered_object(
                    preprocessor["registered_name"]
                ).from_config({**preprocessor["config"], "tokenizer": shared.tokenizer})
            task_cls = keras.saving.get_registered_object(saved["registered_name"])
            tasks[name] = task_cls.from_config(
                {**saved["config"], "backbone": backbone, "preprocessor": preprocessor}
            )
        return cls(tasks, **config)


def _checked(tasks):
    """Check tasks; return their encoder and any preprocessor with their tokenizer."""
    if not isinstance(tasks, dict) or not tasks:
        raise ValueError(f"tasks must be a dict of name to task model, got {tasks!r}.")
    for name, task in tasks.items():
        if not isinstance(name, str) or not name or not isinstance(task, BertTask):
            raise ValueError(
                f"The task {name!r} is {task!r}; pass a name and a task model, for example "
                "BertTextClassifier(backbone, num_classes=2)."
            )
        if isinstance(task, BertMultiTask):
            raise ValueError(f"The task '{name}' is a BertMultiTask; pass its `tasks` one by one.")
    first, *others = tasks
    for name in others:
        if tasks[name].backbone is not tasks[first].backbone:
            raise ValueError(
                f"The tasks '{first}' and '{name}' have different encoders; build both on one, "
                "with `backbone=` in the constructor or in `from_preset`."
            )
        if tasks[name] in [tasks[other] for other in tasks if other != name]:
            raise ValueError(f"The task '{name}' occurs twice; pass a separate model per name.")
    raw = {name: task for name, task in tasks.items() if task.preprocessor is not None}
    if not raw:
        return tasks[first].backbone, None
    first = next(iter(raw))
    tokenizer = raw[first].preprocessor.tokenizer
    for name, task in raw.items():
        if not same_tokens(task.preprocessor.tokenizer, tokenizer):
            raise ValueError(
                f"The tasks '{first}' and '{name}' have different tokenizers, but one encoder; "
                "load both from the same preset."
            )
    longest = max(task.preprocessor.sequence_length for task in raw.values())
    num_segments = raw[first].preprocessor.num_segments
    return tasks[first].backbone, BertPreprocessor(
        tokenizer, sequence_length=longest, num_segments=num_segments
    )


def _rows(batch_size, name, default=None):
    """Return a task's batch size from a dict or a number."""
    return batch_size.get(name, default) if isinstance(batch_size, dict) else batch_size


def _prefixed(name, results):
    return {f"{name}_{key}": value for key, value in results.items()}


def _as_arrays(value):
    """Convert arrays, tensors, lists, or dicts of them to NumPy."""
    if isinstance(value, dict):
        return {name: _as_arrays(part) for name, part in value.items()}
    if value is None:
        return None
    return ops.convert_to_numpy(value) if ops.is_tensor(value) else np.asarray(value)


@contextlib.contextmanager
def _without_optimizer(task):
    """Remove a task's optimizer in a context, without its large state."""
    optimizer, task.optimizer = task.optimizer, None
    try:
        yield
    finally:
        task.optimizer = optimizer
