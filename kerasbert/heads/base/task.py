"""Base class of the task models: `fit`, `evaluate` and `predict` on raw texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

import kerasbert.distribution as distribution
from kerasbert import backend
from kerasbert.base import keras_internals
from kerasbert.base.errors import check_value
from kerasbert.base.finite import check_outputs, check_targets, with_finite_check
from kerasbert.base.memory import give_back
from kerasbert.base.process import check_process
from kerasbert.encoder.functional import has_ids
from kerasbert.heads.base import steps
from kerasbert.heads.base.compiling import KeepsCompile, fitting_losses, smoothed
from kerasbert.heads.base.head_metrics import (
    counts_tokens,
    fitting_metrics,
    joined,
    without_padding,
)
from kerasbert.heads.base.inputs import (
    as_batch,
    check_batch_size,
    check_ids,
    check_labeled,
    check_separate,
    is_dataset,
    is_raw,
    read,
    sorted_batches,
    split,
)
from kerasbert.heads.base.preset_task import PresetTask
from kerasbert.heads.base.regularizing import (
    Regularizer,
    check_devices,
    train_step,
    with_divergence,
)
from kerasbert.optimizers import FINETUNING_LEARNING_RATE, AdamW

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from kerasbert.base.aliases import Tensor


class BertTask(KeepsCompile, PresetTask):
    """Base class of the task models.

    Raw texts are tokenized once, batched by length and padded to the batch's longest. Arrays of
    token ids go to Keras unchanged.
    """

    # Padding value of outputs per token.
    output_padding = 0
    # Names of the inputs with token ids.
    id_inputs = ("token_ids",)
    # Whether a class with own steps needs labels.
    loss_needs_labels = False
    # Whether two passes predict the same labels.
    allows_r_drop = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._running = steps.Running()
        super().__init__(*args, **kwargs)

    # === Hooks ===

    def _needs_labels(self, is_raw):
        """Return whether the caller must pass labels; some tasks make their own."""
        return True

    def _check_labels(self, y):
        """Raise for labels that are out of range; `None` means no labels."""

    def _expect_batches(self, method, batches):
        """Prepare for batches of Keras' method `method`."""
        if method in ("fit", "train_on_batch"):
            self.forget_calibration()

    def forget_calibration(self) -> None:
        """Reset what was fitted to the outputs of the weights that training is about to change."""

    def _has_open_outputs(self, batches):
        """Return whether an output axis, such as tokens, may vary in size."""
        return any(None in output.shape[1:] for output in keras.tree.flatten(self.output))

    def check_arrays(self, x: Any, y: Any = None) -> None:
        """Raise for invalid arrays that compiled steps accept."""

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
        self,
        optimizer: Any = "auto",
        loss: Any = "auto",
        *,
        metrics: Any = "auto",
        label_smoothing: float = 0.0,
        adversarial: str | None = None,
        adversarial_strength: float | None = None,
        r_drop: float = 0.0,
        **kwargs: Any,
    ) -> None:
        """Configure training; "auto" means the defaults for fine-tuning, as in a new model.

        Args:
            optimizer: "auto" is `kerasbert.optimizers.AdamW` with the encoder's
                `finetuning_learning_rate` (3e-5 if it has none), weight decay 0.01 except on norms
                and biases, and gradients clipped at norm 1.
            loss: "auto" is `default_loss()`. Losses by name, such as
                "sparse_categorical_crossentropy", take logits, or probabilities if the task has an
                `activation`.
            metrics: "auto" is `default_metrics()`. Keras metrics (names, functions, objects) get
                labels and probabilities in their form; token metrics ignore padding. With more than
                two classes, "f1", "precision" and "recall" are averaged and named "macro_f1" and so
                on.
            label_smoothing: share of each label that is spread evenly over all classes, in the
                default loss.
            adversarial: "fgm" adds the gradients of a second pass with word embeddings perturbed
                along their gradient. "awp" takes only the gradients of a second pass with all
                trained matrices perturbed. Steps take about twice the time.
            adversarial_strength: float. For "fgm", the norm of the perturbation (default 1.0); for
                "awp", its ratio to each matrix's norm (default 0.001).
            r_drop: weight of the divergence between two passes with different dropout: half the
                symmetric Kullback-Leibler divergence of probabilities, or the squared difference of
                scores. Needs twice the time and memory.
            **kwargs: as in `keras.Model.compile`.

        Raises:
            ValueError: for a loss or metric object that does not fit the outputs, and for
                `jit_compile=True` on PyTorch without a C++ compiler or with `adversarial`.

        Sources: Miyato et al. 2017, arXiv 1605.07725 (FGM); Wu et al. 2020, arXiv 2004.05884 (AWP);
        Liang et al. 2021, arXiv 2106.14448 (R-Drop).
        """
        regularizer = Regularizer(adversarial, adversarial_strength, r_drop)
        regularizer.check(self)
        check_value("label_smoothing", label_smoothing, "share")
        backend.check_compiling(kwargs.get("jit_compile"), adversarial)
        if isinstance(optimizer, str) and optimizer == "auto":
            encoder = getattr(self, "backbone", None)
            rate = getattr(encoder, "finetuning_learning_rate", None)
            optimizer = AdamW(
                FINETUNING_LEARNING_RATE if rate is None else rate,
                learning_rate_multipliers=self.learning_rate_multipliers(),
            )
        if isinstance(loss, str) and loss == "auto":
            loss = self.default_loss()
            if label_smoothing:
                loss = smoothed(self, loss, label_smoothing)
            kwargs.setdefault("loss_weights", self.default_loss_weights())
        elif label_smoothing:
            raise ValueError(
                f"label_smoothing={label_smoothing} is for the default loss, but loss={loss!r}; "
                "pass it to your own loss, or omit one of the two."
            )
        if isinstance(metrics, str) and metrics == "auto":
            metrics = None
            kwargs.setdefault("weighted_metrics", self.default_metrics())
        loss, metrics = fitting_losses(self, loss), fitting_metrics(self, metrics)
        if "weighted_metrics" in kwargs:
            kwargs["weighted_metrics"] = fitting_metrics(self, kwargs["weighted_metrics"], True)
        if metrics and counts_tokens(self):
            # Only weighted metrics get sample weights, 0 at padding.
            weighted = kwargs.get("weighted_metrics")
            metrics, kwargs["weighted_metrics"] = None, joined(metrics, weighted)
        # Without new metrics, Keras would keep earlier ones.
        keras_internals.forget_metrics(self)
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)
        self._running.regularizer = regularizer
        self._running.loss_weights = kwargs.get("loss_weights")

    def get_compile_config(self) -> dict[str, Any]:
        config = super().get_compile_config()
        regularizer = self._running.regularizer.config()
        if regularizer and isinstance(config.get("optimizer"), dict):
            # Stored beside "built", for the same reason.
            config["optimizer"]["regularizer"] = regularizer
        return config

    def learning_rate_multipliers(self) -> dict[str, float] | None:
        """Return the learning rate multipliers of `compile(optimizer="auto")` and `finetune`."""
        return None

    def metric_forms(self) -> Any:
        """Return `(form, number of classes)` for metrics, or a dict for several outputs.

        `None` leaves metrics unchanged. See `kerasbert.heads.base.head_metrics`.
        """
        return None

    def gives_logits(self) -> bool:
        """Return whether the outputs are logits rather than probabilities."""
        return True

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Tensor = None,
        sample_weight: Any = None,
        training: bool | None = True,
    ) -> Tensor:
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return with_divergence(self, loss, y_pred, sample_weight)

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
            shuffle: whether to shuffle texts and batches in every epoch.
            class_weight: dict of class name or index to weight; or "balanced", the same total
                weight per class.
            **kwargs: as in `keras.Model.fit`.

        Raises:
            FloatingPointError: if the loss becomes NaN or infinite, with step and likely causes,
                unless `keras.callbacks.TerminateOnNaN` is a callback.
        """
        check_process()
        check_batch_size(batch_size)
        check_separate(x, y, sample_weight)
        kwargs["callbacks"] = with_finite_check(kwargs.get("callbacks"))
        running = self._running
        running.verbose = kwargs.get("verbose", "auto")
        are_texts = is_raw(self, x)
        if validation_split and validation_data is None and are_texts:
            (x, y, sample_weight), validation_data = split((x, y, sample_weight), validation_split)
        elif validation_split:
            kwargs["validation_split"] = validation_split
        if validation_data is not None:
            parts = validation_data if isinstance(validation_data, tuple) else (validation_data,)
            if is_raw(self, parts[0]):
                validation_data, _ = sorted_batches(self, *parts, batch_size=batch_size, few=0)
            elif not isinstance(validation_data, tuple):
                keep = {"keep": True, "steps": kwargs.get("validation_steps")}  # for each epoch
                validation_data = read(self, validation_data, batch_size, **keep)
            else:
                check_targets(*(*validation_data, None, None)[1:3], self.loss)
        if are_texts:
            x = self.preprocessor.batches(
                *(x, y, sample_weight, batch_size or 32, shuffle),
                buckets=backend.compiles_shapes(self.jit_compile),
                shape_cost=steps.shape_cost(self, kwargs.get("epochs", 1)),
                first_epoch=kwargs.get("initial_epoch", 0),
            )
            check_labeled(self, y, are_texts)  # After the checks of the texts.
        else:
            x = read(self, x, batch_size, dynamic=True, shuffle=shuffle)
        kwargs["shuffle"] = shuffle and not is_dataset(x)  # A dataset shuffles itself.
        steps.share_steps(self)
        # `evaluate` must not split it again.
        kwargs["validation_data"] = running.held_out = steps.shared_out(self, validation_data)
        try:
            return steps.run(
                *(self, keras.Model.fit, x, y, sample_weight, batch_size, are_texts),
                class_weight,
                **kwargs,
            )
        finally:
            running.held_out = running.batch_spec = None
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
        are_texts = is_raw(self, x)
        if are_texts:
            x, _ = sorted_batches(self, x, y, sample_weight, batch_size)
            check_labeled(self, y, are_texts)
        else:
            x = read(self, x, batch_size)
        if are_texts and not is_dataset(x):
            found = steps.evaluate_batches(self, x, **kwargs)
        else:
            found = steps.run(
                *(self, keras.Model.evaluate, x, y, sample_weight, batch_size, are_texts), **kwargs
            )
        return check_outputs(self, found, may_be_nan=True)

    def predict(self, x: Any = None, batch_size: int | None = None, **kwargs: Any) -> Any:
        """Return the outputs for raw texts, which are batched by length, or for arrays.

        Outputs have the order of `x`.
        """
        check_process()
        check_batch_size(batch_size)
        if distribution.sharing is not None and not backend.predicts_while_sharing():
            raise ValueError(
                "predict() inside together() would run in all processes at once; get the model "
                "with kerasbert.distribution.of_one_process(model) and predict after the context."
            )
        if is_raw(self, x):
            return steps.predict_texts(self, x, batch_size, **kwargs)
        x = read(self, x, batch_size)
        if is_dataset(x):
            return steps.predict_batches(self, x, **kwargs)
        check_ids(self, x)
        self.check_arrays(x)
        outputs = steps.call_keras(self, keras.Model.predict, x, batch_size=batch_size, **kwargs)
        return check_outputs(self, outputs)

    # KerasHub's would preprocess arrays too, and take no dict of labels.

    def train_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, **kwargs: Any
    ) -> Any:
        """Train one step on raw texts or arrays; see `keras.Model.train_on_batch`."""
        batch = as_batch(self, x, y, sample_weight)
        return steps.call_keras(self, keras.Model.train_on_batch, *batch, **kwargs)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, **kwargs: Any) -> Any:
        """Compute loss and metrics of one batch; see `keras.Model.test_on_batch`."""
        batch = as_batch(self, x, y, sample_weight)
        return steps.call_keras(self, keras.Model.test_on_batch, *batch, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        """Return the outputs of one batch; see `keras.Model.predict_on_batch`."""
        batch = as_batch(self, x)[0]
        outputs = steps.call_keras(self, keras.Model.predict_on_batch, batch)
        return check_outputs(self, outputs)

    # === Keras' steps ===

    @classmethod
    def replaces_steps(cls) -> bool:
        """Return whether a class has its own loss or training step."""
        names = ("compute_loss", "train_step")
        return any(getattr(cls, name) is not getattr(BertTask, name) for name in names)

    def train_step(self, *args: Any) -> Any:
        return train_step(self, *args)

    def make_train_function(self, force: bool = False) -> Callable[..., Any]:
        """Make the step of `fit`; see `keras.Model.make_train_function`."""
        if force or self.train_function is None:
            check_devices(self)
            steps.build_optimizer(self)
            with backend.compiling(self, lambda shape: steps.say_compiling(self, shape)):
                super().make_train_function(force)
            self.train_function = steps.protected(self, self.train_function)

    def make_test_function(self, force: bool = False) -> Callable[..., Any]:
        """Make the step of `evaluate`; see `keras.Model.make_test_function`."""
        if force or self.test_function is None:
            super().make_test_function(force)
            self.test_function = steps.protected(
                self, backend.one_after_another(self.test_function)
            )

    def make_predict_function(self, force: bool = False) -> Callable[..., Any]:
        """Make the step of `predict`; see `keras.Model.make_predict_function`."""
        if force or self.predict_function is None:
            super().make_predict_function(force)
            self.predict_function = steps.protected(self, self.predict_function)
        return self.predict_function

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        if iterator is not None:
            data_batch = steps.batch_to_build_on(self, iterator)
        super()._maybe_symbolic_build(data_batch=data_batch)
