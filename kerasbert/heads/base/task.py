"""Base class of the task models: `fit`, `evaluate` and `predict` on raw texts."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

import keras
import numpy as np

import kerasbert.distribution as distribution
from kerasbert import backend
from kerasbert.backend.tensorflow import tf, traced_on_purpose
from kerasbert.base import keras_internals
from kerasbert.base.finite import check_outputs, check_targets, with_finite_check
from kerasbert.base.from_preset import FromPreset
from kerasbert.base.keywords import config_of
from kerasbert.base.memory import give_back
from kerasbert.base.parts import head_weights
from kerasbert.base.process import check_process, uninterrupted
from kerasbert.encoder import functional
from kerasbert.encoder.building import check_arguments, own_task, task_of
from kerasbert.encoder.keras_export import KerasExport
from kerasbert.heads.base.class_weights import weigh_arrays, weigh_dataset
from kerasbert.heads.base.compiling import KeepsCompile, fitting_losses
from kerasbert.heads.base.head_metrics import (
    counts_tokens,
    fitting_metrics,
    joined,
    without_padding,
)
from kerasbert.heads.base.inputs import (
    ReadsTexts,
    check_batch_size,
    check_separate,
    has_ids,
    is_dataset,
    is_in_memory,
    is_ready,
    split,
)
from kerasbert.layers.block import only_blocks_remat
from kerasbert.optimizers import FINETUNING_LEARNING_RATE, AdamW
from kerasbert.text.batching import Batches, restore_order, rows_of_part

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath, Found, Tensor


class BertTask(FromPreset, ReadsTexts, KeepsCompile, KerasExport, functional.Task):
    """Base class of the task models.

    Raw texts are tokenized once, batched by length and padded to the longest of their batch.
    Arrays of token ids go to Keras unchanged, without TensorFlow.
    """

    # Name of the row in `kerasbert.kinds`.
    kind = None
    # Padding value of outputs per token.
    output_padding = 0
    # Whether a checkpoint must contain the head.
    needs_head = True

    # Whether the outputs depend on the encoder's pooler.
    uses_pooler = False
    _keeps_metrics = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        only_blocks_remat([self, *self.operations])

    def _set_preprocessor(self, value):
        check = getattr(value, "check_family", None)
        if check is not None:
            check(getattr(self.backbone, "family", None))
        functional.Task.preprocessor.fset(self, value)

    preprocessor = functional.Task.preprocessor.setter(_set_preprocessor)

    def _check_encoder(self, backbone, has_all=False):
        """Raise for another class of encoder or, with `has_all`, a subclass with its own layers."""
        is_other = self.backbone_cls in getattr(backbone, "replaced_bases", ())
        if not isinstance(backbone, self.backbone_cls) or (has_all and is_other):
            raise ValueError(
                f"backbone is a {type(backbone).__name__}, but {type(self).__name__} needs a "
                f"{self.backbone_cls.__name__}."
            )

    def _set_given(self, given, defaults):
        """Set the given settings as attributes; `None` takes the default."""
        for name, value in given.items():
            setattr(self, name, defaults[name] if value is None else value)

    def untrained_weights(self) -> list[Any]:
        """Return the weights of an unused pooler, which this model never trains."""
        if self.uses_pooler or not self.backbone.pooler:
            return []
        return self.backbone.pooled_dense.weights

    # JAX gives unused weights a gradient of zero, so weight decay would shrink them.

    @property
    def trainable_variables(self) -> list[Any]:
        return _without(self.untrained_weights(), super().trainable_variables)

    @property
    def non_trainable_variables(self) -> list[Any]:
        return _without(self.trainable_variables, self.variables)

    @property
    def trainable_weights(self) -> list[Any]:
        return _without(self.untrained_weights(), super().trainable_weights)

    @property
    def non_trainable_weights(self) -> list[Any]:
        return _without(self.trainable_weights, self.weights)

    @classmethod
    def check_arguments(cls, kwargs: Any) -> None:
        check_arguments(cls, kwargs)

    @classmethod
    def needs_files(cls, kwargs: Any) -> bool:
        return "preprocessor" not in kwargs

    @classmethod
    def from_source(cls, source: Found, load_weights: bool = True, **kwargs: Any) -> Self:
        return (own_task if source.is_own else task_of)(cls, source, load_weights, **kwargs)

    @classmethod
    def needs_pooler(cls, settings: Any) -> bool:
        """Return whether a head with these settings needs an encoder with a pooler."""
        return settings.get("pooling", "pooler") == "pooler"

    @classmethod
    def output_weight(cls, settings: Any) -> str:
        """Return the name of a weight that every checkpoint of such a head has, or `None`."""
        return "logits/kernel"

    @classmethod
    def with_preprocessor_settings(cls, config: dict[str, Any], settings: Any) -> Any:
        """Return a saved config updated with preprocessor settings, if it stores any."""
        return config

    def fill_in(self, inputs: Tensor) -> dict[str, Any]:
        """Add the optional inputs that are missing."""
        return self.backbone.fill_in(inputs)

    def __call__(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
        check_process()  # Must precede the first tensor, for which JAX may compile.
        if has_ids(inputs):
            if hasattr(self.backbone, "check_padding"):
                self.backbone.check_padding(inputs)
            inputs = self.fill_in(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def call(
        self, inputs: Tensor, training: bool | None = None, mask: Tensor = None, **kwargs: Any
    ) -> Tensor:
        # On JAX, `fit` and `predict` skip `__call__`.
        inputs = self.fill_in(inputs)
        return super().call(inputs, training=training, mask=None, **kwargs)

    def quantize(self, mode: str | None = None, **kwargs: Any) -> None:
        """Quantize the encoder, for example to "int8", but not the small head."""
        self.backbone.quantize(mode, **kwargs)
        self.train_function = self.test_function = self.predict_function = None

    def with_layers(self, layers: Sequence[int]) -> Self:
        """Return a copy of this model with only some of the encoder's layers.

        The copy is trainable even if this model is frozen, as a teacher is.

        Args:
            layers: list of ints. See `BertBackbone.with_layers`.
        """
        settings = {**config_of(self), "preprocessor": self.preprocessor}
        settings.pop("name")
        model = self.from_config({**settings, "backbone": self.backbone.with_layers(layers)})
        for weight, copy in zip(head_weights(self), head_weights(model), strict=True):
            copy.assign(keras.ops.convert_to_numpy(weight))
        return model

    # Presets leave out the optimizer's state; `.keras` files store it.

    def save_task_weights(self, filepath: AnyPath) -> None:
        """Save the weights of the head."""
        keras.saving.save_weights(self, filepath, objects_to_skip=self._all_but_head())

    def load_task_weights(self, filepath: AnyPath) -> None:
        """Load the weights of the head."""
        keras.saving.load_weights(self, filepath, objects_to_skip=self._all_but_head())

    def _all_but_head(self):
        # Uncompiled models have no optimizer.
        return [*keras_internals.flatten_layers(self.backbone), getattr(self, "optimizer", None)]

    # === Hooks for preprocessed arrays ===

    def check_arrays(self, x: Any, y: Any = None) -> None:
        """Raise for invalid arrays that a compiled step would silently accept."""

    def complete_targets(self, y: Any, sample_weight: Any) -> Any:
        """Return labels and sample weights with optional parts filled in."""
        return y, sample_weight

    def default_loss(self) -> Any:
        """Return the loss of `compile(loss="auto")`."""
        raise NotImplementedError

    def default_metrics(self) -> Any:
        """Return the metrics of `compile(metrics="auto")`, weighted like the loss."""
        raise NotImplementedError

    def default_loss_weights(self) -> Any:
        """Return the weight of each output's default loss; `None` adds the losses up."""
        return None

    def compile(
        self, optimizer: Any = "auto", loss: Any = "auto", *, metrics: Any = "auto", **kwargs: Any
    ) -> None:
        """Configure training; "auto", as in a new model, takes the defaults for fine-tuning.

        Args:
            optimizer: "auto" is `kerasbert.optimizers.AdamW` with the encoder's
                `finetuning_learning_rate` (3e-5 if it has none), weight decay 0.01 except on norms
                and biases, and gradients clipped at norm 1.
            loss: "auto" is `default_loss()`. A name such as "sparse_categorical_crossentropy"
                is computed from logits, or from probabilities if the task has an `activation`.
            metrics: "auto" is `default_metrics()`. Keras metrics (names, functions, objects) get
                labels and probabilities in the form they compare; token metrics ignore padding.
                With more than two classes, "f1", "precision" and "recall" are averaged over the
                classes and named "macro_f1" and so on.
            **kwargs: as in `keras.Model.compile`.

        Raises:
            ValueError: for a loss or metric object that does not fit the outputs, and for
                `jit_compile=True` on PyTorch without a C++ compiler.
        """
        backend.check_compiling(kwargs.get("jit_compile"))
        if isinstance(optimizer, str) and optimizer == "auto":
            encoder = getattr(self, "backbone", None)
            rate = getattr(encoder, "finetuning_learning_rate", None)
            optimizer = AdamW(FINETUNING_LEARNING_RATE if rate is None else rate)
        if isinstance(loss, str) and loss == "auto":
            loss = self.default_loss()
            kwargs.setdefault("loss_weights", self.default_loss_weights())
        if isinstance(metrics, str) and metrics == "auto":
            metrics = None
            kwargs.setdefault("weighted_metrics", self.default_metrics())
        loss, metrics = fitting_losses(self, loss), fitting_metrics(self, metrics)
        if "weighted_metrics" in kwargs:
            kwargs["weighted_metrics"] = fitting_metrics(self, kwargs["weighted_metrics"], True)
        if metrics and counts_tokens(self):
            # Keras passes sample weights, which exclude padding, only to weighted metrics.
            weighted = kwargs.get("weighted_metrics")
            metrics, kwargs["weighted_metrics"] = None, joined(metrics, weighted)
        # Without new metrics, Keras would keep those of an earlier `compile`.
        keras_internals.forget_metrics(self)
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)

    def metric_forms(self) -> Any:
        """Return `(form, number of classes)` for metrics, a dict of these by output, or `None`.

        The forms are constants of `kerasbert.heads.base.head_metrics`.
        """
        return None

    def gives_logits(self) -> bool:
        """Return whether the outputs are logits rather than probabilities."""
        return True

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Tensor, sample_weight: Any = None
    ) -> dict[str, Any]:
        if counts_tokens(self) and has_ids(x):
            sample_weight = without_padding(self.fill_in(x), y_pred, sample_weight)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        sample_weight: Any = None,
        validation_data: Any = None,
        validation_split: float | None = None,
        shuffle: bool = True,
        class_weight: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Train on raw texts or preprocessed arrays; see `keras.Model.fit`.

        Args:
            x: texts (list, numpy, pandas), a tuple of two of these for pairs, the encoder's
                inputs, or a `tf.data.Dataset`, generator or `keras.utils.PyDataset` of batches.
            y: labels: a list, an array, a column or table of pandas, polars or pyarrow, a dict of
                columns, an iterator or a `tf.data.Dataset`.
            batch_size: int, 32 by default.
            shuffle: bool. Shuffle texts and batches every epoch.
            class_weight: dict of class name or number to weight, or "balanced", for the same total
                weight of every class.
            **kwargs: as in `keras.Model.fit`.

        Raises:
            FloatingPointError: if the loss becomes NaN or infinite, with the step and likely
                causes, unless `keras.callbacks.TerminateOnNaN` is among the callbacks.
        """
        check_process()
        check_batch_size(batch_size)
        check_separate(x, y, sample_weight)
        kwargs["callbacks"] = with_finite_check(kwargs.get("callbacks"))
        self.__dict__["_verbose"] = kwargs.get("verbose", "auto")
        is_raw = self._is_raw(x)
        if validation_split and validation_data is None and is_raw:
            (x, y, sample_weight), validation_data = split((x, y, sample_weight), validation_split)
        elif validation_split:
            kwargs["validation_split"] = validation_split
        if validation_data is not None:
            parts = validation_data if isinstance(validation_data, tuple) else (validation_data,)
            if self._is_raw(parts[0]):
                validation_data = self._sorted_batches(*parts, batch_size=batch_size, few=0)[0]
            elif not isinstance(validation_data, tuple):
                validation_data = self._read(validation_data, batch_size)
            else:
                check_targets(*(*validation_data, None, None)[1:3], self.loss)
        if is_raw:
            shape_cost = self._shape_cost(kwargs.get("epochs", 1))
            x = self.preprocessor.batches(
                *(x, y, sample_weight, batch_size or 32, shuffle),
                buckets=self._compiles_shapes(),
                shape_cost=shape_cost,
                first_epoch=kwargs.get("initial_epoch", 0),
            )
            self._check_labelled(y, is_raw)  # Errors about texts come first.
        else:
            x = self._read(x, batch_size, anew=True, shuffle=shuffle)
        kwargs["shuffle"] = shuffle and not is_dataset(x)  # A dataset shuffles itself.
        self._share_steps()
        # Keras passes it to `evaluate`, which must not share it out again.
        kwargs["validation_data"] = self.__dict__["_held_out"] = self._shared_out(validation_data)
        try:
            return self._run(
                keras.Model.fit, x, y, sample_weight, batch_size, is_raw, class_weight, **kwargs
            )
        finally:
            self.__dict__.pop("_held_out", None)  # It may be large.
            self.__dict__.pop("_batch_spec", None)
            give_back()

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        sample_weight: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Compute loss and metrics on data as in `fit`; see `keras.Model.evaluate`."""
        check_process()
        check_batch_size(batch_size)
        check_separate(x, y, sample_weight)
        is_raw = self._is_raw(x)
        if is_raw:
            x, _ = self._sorted_batches(x, y, sample_weight, batch_size)
            self._check_labelled(y, is_raw)
            if not is_dataset(x):
                return check_outputs(self, self._evaluate_batches(x, **kwargs), may_be_nan=True)
        else:
            x = self._read(x, batch_size)
        found = self._run(keras.Model.evaluate, x, y, sample_weight, batch_size, is_raw, **kwargs)
        return check_outputs(self, found, may_be_nan=True)

    def predict(self, x: Any = None, batch_size: int | None = None, **kwargs: Any) -> Any:
        """Return outputs for raw texts (batched by length) or arrays, in the order of `x`."""
        check_process()
        check_batch_size(batch_size)
        if distribution.sharing is not None and not backend.predicts_while_sharing():
            raise ValueError(
                "predict() inside together() would run in all processes at once; get the model "
                "with kerasbert.distribution.of_one_process(model) and predict after the context."
            )
        if not self._is_raw(x):
            x = self._read(x, batch_size)
            if is_dataset(x):
                return self._predict_batches(x, **kwargs)
            self._check_ids(x)
            self.check_arrays(x)
            outputs = self._call_keras(keras.Model.predict, x, batch_size=batch_size, **kwargs)
            return check_outputs(self, outputs)
        return self._predict_texts(x, batch_size, **kwargs)

    def _predict_texts(self, x, batch_size, preprocessor=None, **kwargs):
        """Run `predict` on texts, or on the preprocessor's windows of them."""
        batches, order = self._sorted_batches(x, batch_size=batch_size, preprocessor=preprocessor)
        return restore_order(self._predict_batches(batches, **kwargs), order)

    def _predict_batches(self, batches, **kwargs):
        """Run `keras.Model.predict`, padding outputs per token to the longest row."""
        is_open = self._has_open_outputs(batches)
        if is_dataset(batches) and not is_open and not backend.predicts_by_batch():
            return check_outputs(self, self._call_keras(keras.Model.predict, batches, **kwargs))
        parts = [outputs for _, outputs in self._batch_outputs(batches, **kwargs)]
        return keras.tree.map_structure(
            lambda *outputs: _join_padded(outputs, self.output_padding), *parts
        )

    def _has_open_outputs(self, batches):
        """Return whether an output axis, such as tokens, may differ between batches."""
        return any(None in output.shape[1:] for output in keras.tree.flatten(self.output))

    def _batch_outputs(self, batches, **kwargs):
        """Yield features and outputs of each batch of a dataset or a list.

        Needed for outputs (B, T, ...), which Keras cannot join if T differs between batches.
        """

        def step(batch):
            features = keras.utils.unpack_x_y_sample_weight(batch)[0]
            outputs = backend.predict_batch(self, features)
            return (features, outputs), {"outputs": outputs}

        return self._each_batch("predict", step, batches, **kwargs)

    def _evaluate_batches(self, batches, return_dict=False, **kwargs):
        """Run `evaluate` on a list of batches."""

        def step(batch):
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
            logs = keras.Model.test_on_batch(self, x, y, sample_weight, return_dict=True)
            return logs, logs

        self.reset_metrics()
        with self._metrics_kept():
            *_, logs = self._each_batch("test", step, batches, **kwargs)
        return logs if return_dict else keras_internals.in_order(self, logs)

    def _each_batch(self, kind, step, batches, verbose="auto", steps=None, callbacks=None):
        """Run a step on each batch, with callbacks and a progress bar.

        Args:
            kind: string. "predict" or "test", as in the names of callback methods.
            step: function of a batch that returns a result and the logs for callbacks.
            verbose, steps, callbacks: as in `keras.Model.predict`.

        Yields:
            The result of each batch.
        """
        if is_dataset(batches):
            known, batches = int(batches.cardinality()), batches.as_numpy_iterator()
        else:
            known = len(batches)
        tell = self._teller(kind, callbacks, verbose, steps or (known if known > 0 else None))
        tell("begin")
        logs = None
        for number, batch in enumerate(itertools.islice(batches, steps)):
            tell("batch_begin", number)
            with traced_on_purpose():
                result, logs = step(batch)
            tell("batch_end", number, logs)
            yield result
        tell("end", *([logs] if kind == "test" else []))

    def _teller(self, kind, callbacks, verbose, steps):
        """Return a function that reports progress to callbacks and the progress bar."""
        if not callbacks and verbose == 0:
            # A CallbackList starts a thread, which takes as long as predicting a short text.
            return lambda moment, *arguments: None
        listening = keras.callbacks.CallbackList(
            callbacks,
            add_progbar=verbose != 0,
            verbose=verbose,
            epochs=1,
            steps=steps,
            model=self,
        )
        return lambda moment, *arguments: getattr(listening, f"on_{kind}_{moment}")(*arguments)

    @contextlib.contextmanager
    def _metrics_kept(self):
        """Return a context in which `test_on_batch` accumulates metrics over batches."""
        self._keeps_metrics = True
        try:
            yield
        finally:
            self._keeps_metrics = False

    def reset_metrics(self) -> None:
        if not self._keeps_metrics:
            super().reset_metrics()

    # KerasHub's versions would preprocess arrays too, and take no dict of labels.

    def train_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, **kwargs: Any
    ) -> Any:
        """Train one step on raw texts or arrays; see `keras.Model.train_on_batch`."""
        batch = self._as_batch(x, y, sample_weight)
        return self._call_keras(keras.Model.train_on_batch, *batch, **kwargs)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, **kwargs: Any) -> Any:
        """Compute loss and metrics of one batch; see `keras.Model.test_on_batch`."""
        batch = self._as_batch(x, y, sample_weight)
        return self._call_keras(keras.Model.test_on_batch, *batch, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        """Return the outputs of one batch; see `keras.Model.predict_on_batch`."""
        batch = self._as_batch(x)[0]
        return check_outputs(self, self._call_keras(keras.Model.predict_on_batch, batch))

    def _as_batch(self, x, y=None, sample_weight=None):
        if self._is_raw(x):
            data = self.preprocessor(x, y, sample_weight)
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        to_tensor = keras.ops.convert_to_tensor
        return [
            None if part is None else keras.tree.map_structure(to_tensor, part)
            for part in (x, y, sample_weight)
        ]

    def _run(self, method, x, y, sample_weight, batch_size, is_raw, class_weight=None, **kwargs):
        """Call a Keras method on arrays or a dataset; `is_raw` if it was made from texts."""
        if not is_dataset(x):
            self._shared_out(x)
            check_targets(y, sample_weight, self.loss)
            y, sample_weight = self.complete_targets(y, sample_weight)
            if is_in_memory(x):
                self._check_labelled(y, is_raw)
                self._check_ids(x)
            self.check_arrays(x, y)
            if class_weight is not None:
                sample_weight = weigh_arrays(self, class_weight, y, sample_weight)
            return self._call_keras(
                method, x, y, batch_size=batch_size, sample_weight=sample_weight, **kwargs
            )
        if not isinstance(x.element_spec, tuple) or len(x.element_spec) < 2:
            self._check_labelled(None, is_raw=not is_ready(x))
        if class_weight is not None:
            x = weigh_dataset(self, class_weight, x, is_raw)
        # Keras would read a batch to build on, and so begin the first epoch twice.
        if isinstance(x, Batches):
            self._build_on(x.example)
        elif is_raw and not backend.trains_in_graphs():
            self._build_on(keras.tree.map_structure(_zeros, x.element_spec))
        if method is keras.Model.fit and not backend.is_distributed(self):
            self.__dict__["_batch_spec"] = x.element_spec  # Avoids Keras' attribute tracking.
        if x is not self.__dict__.get("_held_out"):
            x = self._shared_out(x, method is keras.Model.fit)
        return self._call_keras(method, x, **kwargs)

    def _share_steps(self):
        """Take steps jointly with the other processes that share batches, if any."""
        group = distribution.sharing
        if group is not None and not self.__dict__.get("_shares_steps"):
            backend.share_steps(self, group.processes.count)
            self.__dict__["_shares_steps"] = True  # Avoids Keras' attribute tracking.

    def _shared_out(self, data, training=False):
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
        self.__dict__["_batch_spec"] = own.element_spec  # Avoids Keras' attribute tracking.
        return backend.of_this_process(own)

    def _call_keras(self, method, *args, **kwargs):
        """Run a Keras method; raise a generator's own error instead of TensorFlow's."""
        self._reading_error = None
        backend.keep_compiled()
        try:
            with traced_on_purpose():
                return method(self, *args, **kwargs)
        except Exception:
            if self._reading_error is not None:
                raise self._reading_error from None
            raise

    def make_train_function(self, force: bool = False) -> Callable[..., Any]:
        """Make the step of `fit`; see `keras.Model.make_train_function`."""
        if force or self.train_function is None:
            if not backend.is_distributed(self):
                with uninterrupted():
                    _build_optimizer(self)
            with backend.compiling(self, self._say_compiling):
                super().make_train_function(force)
            self.train_function = self._whole(self.train_function)

    def make_test_function(self, force: bool = False) -> Callable[..., Any]:
        """Make the step of `evaluate`; see `keras.Model.make_test_function`."""
        if force or self.test_function is None:
            super().make_test_function(force)
            self.test_function = self._whole(backend.one_after_another(self.test_function))

    def make_predict_function(self, force: bool = False) -> Callable[..., Any]:
        """Make the step of `predict`; see `keras.Model.make_predict_function`."""
        if force or self.predict_function is None:
            super().make_predict_function(force)
            self.predict_function = self._whole(self.predict_function)
        return self.predict_function

    def _whole(self, step):
        """Protect a step from Ctrl-C, unless it runs eagerly, perhaps in a debugger."""
        return step if self.run_eagerly else backend.uninterrupted_step(step)

    def _expect(self, kind, *steps):
        """Discard compiled steps that have run on another kind of batches.

        TensorFlow would otherwise retrace them with tensors of unknown rank.

        Args:
            kind: hashable. Identifies the kind of the next batches.
            *steps: "train", "test" or "predict".
        """
        kinds = self.__dict__.setdefault("_step_kinds", {})  # Avoids Keras' attribute tracking.
        for step in steps:
            if kind != kinds.setdefault(step, kind):
                setattr(self, f"{step}_function", None)
                kinds[step] = kind

    def _say_compiling(self, shape):
        """Show on the progress bar's line why the next step takes long."""
        if self.__dict__.get("_verbose") in ("auto", 1):
            # The bar overwrites its line at each step.
            print(f"\rcompiling {' x '.join(map(str, shape))} ...", end="", flush=True)

    def _shape_cost(self, epochs):
        """Return how many padding tokens per epoch cost as much as compiling a shape."""
        # Earlier epochs count too, as `fit` may be called once per epoch.
        before = self.__dict__.get("_epochs", 0)
        self.__dict__["_epochs"] = before + epochs  # Avoids Keras' attribute tracking.
        return backend.shape_cost(self.backbone.hidden_dim) / max(before + epochs, 1)

    def _needs_labels(self, is_raw):
        """Return whether the caller must pass labels; some tasks make their own."""
        return True

    def _may_go_without_labels(self):
        """Return whether a subclass replaces Keras' steps and so may need no labels."""
        steps = ("compute_loss", "train_step")
        return any(getattr(type(self), n) is not getattr(keras.Model, n) for n in steps)

    def _check_labelled(self, y, is_raw):
        needs = self._needs_labels(is_raw) and not self._may_go_without_labels()
        if y is None and getattr(self, "loss", None) and needs:
            raise ValueError(
                f"{type(self).__name__} got no labels for training or evaluation; pass them as y, "
                "one per text, or use predict()."
            )

    def _check_ids(self, x):
        """Raise for token ids (NumPy arrays or lists) outside the encoder's vocabulary."""
        if isinstance(x, dict) and hasattr(self.backbone, "check_padding"):
            self.backbone.check_padding(x)
        ids = x.get("token_ids") if isinstance(x, dict) else None
        if isinstance(ids, (list, tuple)):
            try:
                ids = np.asarray(ids)
            except ValueError:  # Ragged; Keras or `check_arrays` raises for that.
                return
        if not isinstance(ids, np.ndarray) or ids.dtype.kind not in "iuf" or not ids.size:
            return
        count = self.backbone.vocabulary_size
        if ids.min() < 0 or ids.max() >= count:
            place = np.argwhere((ids < 0) | (ids >= count))[0]
            raise ValueError(
                f"token_ids has {ids[tuple(place)]} at {place.tolist()}, but the encoder's "
                f"vocabulary_size is {count}: ids are 0 to {count - 1}; tokenize with the "
                "tokenizer of this model's preset."
            )

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # TensorFlow only. In a strategy's scope, Keras 3.15 finds shapes by averaging a batch over
        # devices, which fails for boolean masks and, with several workers, for all but single
        # tensors.
        spec = self.__dict__.pop("_batch_spec", None) if iterator is not None else None
        has_shapes = all(isinstance(one, tf.TensorSpec) for one in keras.tree.flatten(spec))
        if iterator is not None and keras_internals.in_strategy(self):
            if has_shapes:
                # Only shapes matter, and reading a batch would start an epoch.
                data_batch = keras.tree.map_structure(_zeros, spec)
            else:
                parts = self.distribute_strategy.experimental_local_results
                for _, _, steps in iterator:
                    data_batch = keras.tree.map_structure(lambda x: parts(x)[0], next(steps))
                    break
        elif spec is not None and has_shapes and len(self.outputs) > 1:
            # Keras would create the mean metrics of several losses in the first trace, so that
            # TensorFlow would trace the step again.
            with uninterrupted():
                keras_internals.build_on(self, keras.tree.map_structure(_zeros, spec))
        super()._maybe_symbolic_build(data_batch=data_batch)


def _build_optimizer(model):
    """Build a compiled model's optimizer before its first step.

    Otherwise the first trace creates its variables, and TensorFlow traces the step again, which
    takes half the time of a short training.
    """
    optimizer = model.optimizer
    if optimizer is None or optimizer.built:
        return
    if all(layer.built for layer in keras_internals.flatten_layers(model)):
        with keras.name_scope(optimizer.name, caller=optimizer):  # As in a step.
            optimizer.build(model.trainable_variables)


def _zeros(spec):
    """Return an array that fits a `tf.TensorSpec`, with 2 for each unknown size."""
    return np.zeros([size or 2 for size in spec.shape], spec.dtype.as_numpy_dtype)


def _without(left_out, variables):
    left_out = set(map(id, left_out))
    return [variable for variable in variables if id(variable) not in left_out]


def _join_padded(parts, value):
    """Concatenate arrays (B, ...) of different sizes, padding each axis at its end."""
    if len(parts) == 1:
        return parts[0]
    sizes = np.max([part.shape[1:] for part in parts], axis=0)

    def pad(part):
        missing = [(0, size - own) for size, own in zip(sizes, part.shape[1:], strict=True)]
        return np.pad(part, [(0, 0), *missing], constant_values=value)

    return np.concatenate([pad(part) for part in parts])
