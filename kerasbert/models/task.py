"""What every task model shares: `fit`, `evaluate` and `predict` on raw strings, by length."""

import itertools
import warnings

import keras
import keras_hub
import numpy as np

from kerasbert import backend, private_names
from kerasbert._errors import check_whole
from kerasbert._process import check_process
from kerasbert.backend.tensorflow import tf_modules, traced_on_purpose
from kerasbert.data.batching import restore_order
from kerasbert.from_preset import FromPreset
from kerasbert.models.class_weights import class_numbers, class_weights, count_classes, weigh
from kerasbert.models.compiling import fitting_losses, fitting_metrics
from kerasbert.models.keras_export import KerasExport
from kerasbert.optimizers import FINETUNING_LEARNING_RATE, AdamW


class BertTask(FromPreset, KerasExport, keras_hub.models.Task):
    """Base of the task models.

    Raw texts are tokenized once, batched with others of similar length and padded to the longest
    of the batch; arrays of token ids go to Keras as they are, without TensorFlow.
    """

    # What stands in outputs a token where `predict` pads rows.
    output_padding = 0
    # Whether a checkpoint has to hold weights of the task's own.
    needs_head = True

    # Whether the outputs rest on the encoder's pooler.
    uses_pooler = False

    def untrained_weights(self):
        """Weights of this model that it never trains, whoever else may: an unused pooler's."""
        if self.uses_pooler or not self.backbone.pooler:
            return []
        return self.backbone.pooled_dense.weights

    # Weight decay would shrink them, and JAX has a gradient of zero for them.

    @property
    def trainable_variables(self):
        return _without(self.untrained_weights(), super().trainable_variables)

    @property
    def non_trainable_variables(self):
        return _without(self.trainable_variables, self.variables)

    @property
    def trainable_weights(self):
        return _without(self.untrained_weights(), super().trainable_weights)

    @property
    def non_trainable_weights(self):
        return _without(self.trainable_weights, self.weights)

    # Heads of other classes that a preset of this one holds too.
    lends = ()

    @classmethod
    def needs_pooler(cls, settings):
        """Whether the head of these settings needs an encoder with a pooler."""
        return settings.get("pooling", "pooler") == "pooler"

    @classmethod
    def output_weight(cls, settings):
        """The weight that a checkpoint has if it has the head of these settings."""
        return "logits/kernel"

    @classmethod
    def with_preprocessor_settings(cls, config, settings):
        """A saved config with these settings of the preprocessor, where it holds any itself."""
        return config

    def fill_in(self, inputs):
        """Add the inputs that may be left out."""
        return self.backbone.fill_in(inputs)

    def __call__(self, inputs, *args, **kwargs):
        if isinstance(inputs, dict) and "token_ids" in inputs:
            inputs = self.fill_in(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs, training=None, mask=None, **kwargs):
        # `fit` and `predict` on JAX come in here.
        inputs = self.fill_in(inputs)
        return super().call(inputs, training=training, mask=None, **kwargs)

    def quantize(self, mode=None, **kwargs):
        """Quantize the encoder, for example to "int8"; the small head stays as it is."""
        self.backbone.quantize(mode, **kwargs)
        self.train_function = self.test_function = self.predict_function = None

    def with_layers(self, layers):
        """A new model with some of the encoder's layers, and copies of all weights but the others.

        It trains, also where this one is frozen, as a teacher is.

        Args:
            layers: list of ints. See `BertBackbone.with_layers`.
        """
        settings = {**self.get_config(), "preprocessor": self.preprocessor}
        settings.pop("name")
        model = self.from_config({**settings, "backbone": self.backbone.with_layers(layers)})
        for weight, copy in zip(head_weights(self), head_weights(model), strict=True):
            copy.assign(keras.ops.convert_to_numpy(weight))
        return model

    # A preset is for use and for new training: the optimizer's state stays with `.keras` files.

    def save_task_weights(self, filepath):
        """Save the weights of the head."""
        skipped = [*private_names.flatten_layers(self.backbone), self.optimizer]
        keras.saving.save_weights(self, filepath, objects_to_skip=skipped)

    def load_task_weights(self, filepath):
        """Load the weights of the head."""
        skipped = [*private_names.flatten_layers(self.backbone), self.optimizer]
        keras.saving.load_weights(self, filepath, objects_to_skip=skipped)

    def check_arrays(self, x, y=None):
        """Refuse ready arrays that a compiled step would take as they are; a task refines it."""

    def default_loss(self):
        """What `compile(loss="auto")` takes."""
        raise NotImplementedError

    def default_metrics(self):
        """What `compile(metrics="auto")` takes; weighted as the loss is."""
        raise NotImplementedError

    def default_loss_weights(self):
        """What each output's default loss counts; `None` adds them up."""
        return None

    def compile(self, optimizer="auto", loss="auto", *, metrics="auto", **kwargs):
        """Configure training; "auto" takes what fine-tuning BERT takes. It is so from the start.

        Args:
            optimizer: "auto" is `kerasbert.optimizers.AdamW` with the encoder's
                `finetuning_learning_rate`, 3e-5 where it has none, decay 0.01 but on norms and
                biases, clipped at 1.
            loss: "auto" is `default_loss()`. A name such as "sparse_categorical_crossentropy"
                counts from what the task gives: logits, but for an `activation` of its own.
            metrics: "auto" is `default_metrics()`. Names as of losses.
            **kwargs: as in `keras.Model.compile`.

        Raises:
            ValueError: for a loss or metric object that takes the outputs for what they are not.
        """
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
            kwargs["weighted_metrics"] = fitting_metrics(self, kwargs["weighted_metrics"])
        # Keras keeps those of an earlier `compile` where there are none now.
        private_names.forget_metrics(self)
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)

    def gives_logits(self):
        """Whether the outputs are logits, and no probabilities."""
        return True

    def get_compile_config(self):
        config = super().get_compile_config()
        if config and isinstance(config.get("optimizer"), dict):
            # In there, as `keras.models.clone_model` hands all else to Keras' own `compile`.
            config["optimizer"]["built"] = self.optimizer is not None and self.optimizer.built
        return config

    def compile_from_config(self, config):
        # Keras leaves a model uncompiled after loading where `compile` is not its own.
        optimizer = config.get("optimizer")
        is_built = isinstance(optimizer, dict) and optimizer.get("built", False)
        config = keras.saving.deserialize_keras_object(config)
        # Where files of 0.1 have it.
        is_built = config.pop("optimizer_built", is_built)
        self.compile(**config)
        if is_built:
            self.optimizer.build(self.trainable_variables)

    def fit(
        self,
        x=None,
        y=None,
        batch_size=None,
        sample_weight=None,
        validation_data=None,
        validation_split=None,
        shuffle=True,
        class_weight=None,
        **kwargs,
    ):
        """Train, on raw texts or on ready arrays; see `keras.Model.fit`.

        Args:
            x: texts (list, numpy, pandas), a tuple of two of them for pairs, what the encoder
                takes, or a `tf.data.Dataset`, a generator or a `keras.utils.PyDataset` of batches
                of either.
            y: labels.
            batch_size: int, 32 by default.
            shuffle: bool. A new order of texts and batches every epoch.
            class_weight: dict of names or numbers of classes to weights, or "balanced", for which
                all classes count alike.
            **kwargs: as in `keras.Model.fit`.
        """
        _check_batch_size(batch_size)
        if validation_split and validation_data is None and self._is_raw(x):
            (x, y, sample_weight), validation_data = _split((x, y, sample_weight), validation_split)
        elif validation_split:
            kwargs["validation_split"] = validation_split
        if validation_data is not None:
            parts = validation_data if isinstance(validation_data, tuple) else (validation_data,)
            if self._is_raw(parts[0]):
                validation_data = self._sorted_batches(*parts, batch_size=batch_size)[0]
            elif not isinstance(validation_data, tuple):
                validation_data = self._read(validation_data, batch_size)
        return self._run(
            keras.Model.fit,
            x,
            y,
            sample_weight,
            batch_size,
            shuffle,
            validation_data=validation_data,
            class_weight=class_weight,
            **kwargs,
        )

    def evaluate(self, x=None, y=None, batch_size=None, sample_weight=None, **kwargs):
        """Loss and metrics, on raw texts or on ready arrays; see `keras.Model.evaluate`."""
        return self._run(keras.Model.evaluate, x, y, sample_weight, batch_size, False, **kwargs)

    def predict(self, x=None, batch_size=None, **kwargs):
        """Outputs in the order of `x`, on raw texts or on ready arrays.

        Raw texts run sorted by length, so that none is padded far.
        """
        check_process()
        _check_batch_size(batch_size)
        if not self._is_raw(x):
            x = self._read(x, batch_size)
            if _is_dataset(x):
                return self._predict_batches(x, **kwargs)
            self._check_ids(x)
            self.check_arrays(x)
            return self._call_keras(keras.Model.predict, x, batch_size=batch_size, **kwargs)
        dataset, order = self._sorted_batches(x, batch_size=batch_size)
        return restore_order(self._predict_batches(dataset, **kwargs), order)

    def _predict_batches(self, dataset, **kwargs):
        """As `keras.Model.predict`; outputs a token are padded to the longest row of all."""
        if not any(None in output.shape[1:] for output in keras.tree.flatten(self.output)):
            return self._call_keras(keras.Model.predict, dataset, **kwargs)
        parts = [outputs for _, outputs in self._batch_outputs(dataset, **kwargs)]
        return keras.tree.map_structure(
            lambda *outputs: _join_padded(outputs, self.output_padding), *parts
        )

    def _batch_outputs(self, dataset, verbose="auto", steps=None, callbacks=None):
        """`predict` on a dataset, one batch after the other: features and outputs.

        For outputs (B, T, ...), which cannot be joined where T differs from batch to batch.
        """
        known = int(dataset.cardinality())
        callbacks = keras.callbacks.CallbackList(
            callbacks,
            add_progbar=verbose != 0,
            verbose=verbose,
            epochs=1,
            steps=steps or (known if known > 0 else None),
            model=self,
        )
        callbacks.on_predict_begin()
        for step, batch in enumerate(itertools.islice(dataset.as_numpy_iterator(), steps)):
            callbacks.on_predict_batch_begin(step)
            features = keras.utils.unpack_x_y_sample_weight(batch)[0]
            outputs = self._call_keras(keras.Model.predict_on_batch, features)
            callbacks.on_predict_batch_end(step, {"outputs": outputs})
            yield features, outputs
        callbacks.on_predict_end()

    # Not KerasHub's: those preprocess ready arrays too, and take no dict of labels.

    def train_on_batch(self, x, y=None, sample_weight=None, **kwargs):
        """One step, on raw texts or on ready arrays; see `keras.Model.train_on_batch`."""
        batch = self._as_batch(x, y, sample_weight)
        return self._call_keras(keras.Model.train_on_batch, *batch, **kwargs)

    def test_on_batch(self, x, y=None, sample_weight=None, **kwargs):
        """Loss and metrics of a batch, raw or ready; see `keras.Model.test_on_batch`."""
        batch = self._as_batch(x, y, sample_weight)
        return self._call_keras(keras.Model.test_on_batch, *batch, **kwargs)

    def predict_on_batch(self, x):
        """Outputs of a batch, raw or ready; see `keras.Model.predict_on_batch`."""
        return self._call_keras(keras.Model.predict_on_batch, self._as_batch(x)[0])

    def _as_batch(self, x, y=None, sample_weight=None):
        if self._is_raw(x):
            data = self.preprocessor(x, y, sample_weight)
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        to_tensor = keras.ops.convert_to_tensor
        return [
            None if part is None else keras.tree.map_structure(to_tensor, part)
            for part in (x, y, sample_weight)
        ]

    def _run(self, method, x, y, sample_weight, batch_size, shuffle, class_weight=None, **kwargs):
        check_process()
        _check_batch_size(batch_size)
        is_fit = method is keras.Model.fit
        is_raw = self._is_raw(x)
        if is_raw:
            if is_fit:
                x = self.preprocessor.batches(
                    x, y, sample_weight, batch_size or 32, shuffle, buckets=self._compiles_shapes()
                )
            else:
                x, _ = self._sorted_batches(x, y, sample_weight, batch_size)
            self._check_labelled(y, is_raw)  # After the texts, which may be what is wrong.
        else:
            x = self._read(x, batch_size, anew=is_fit, shuffle=is_fit and shuffle)
        if is_fit:
            kwargs["shuffle"] = shuffle and not _is_dataset(x)  # A dataset shuffles itself.
        if not _is_dataset(x):
            if _is_in_memory(x):
                self._check_labelled(y, is_raw)
                self._check_ids(x)
            self.check_arrays(x, y)
            if class_weight is not None:
                sample_weight = self._weigh_arrays(class_weight, y, sample_weight)
            return self._call_keras(
                method, x, y, batch_size=batch_size, sample_weight=sample_weight, **kwargs
            )
        if not isinstance(x.element_spec, tuple) or len(x.element_spec) < 2:
            self._check_labelled(None, is_raw=not _is_ready(x))
        if class_weight is not None:
            x = self._weigh_dataset(class_weight, x, is_raw)
        return self._call_keras(method, x, **kwargs)

    def _call_keras(self, method, *args, **kwargs):
        """Run a method of Keras; an error of a generator comes as it is, not in TensorFlow's."""
        self._reading_error = None
        try:
            with traced_on_purpose():
                return method(self, *args, **kwargs)
        except Exception:
            if self._reading_error is not None:
                raise self._reading_error from None
            raise

    def _needs_labels(self, is_raw):
        """Whether training needs labels of the caller; a task that makes its own does not."""
        return True

    def _check_labelled(self, y, is_raw):
        steps = ("compute_loss", "train_step")
        is_own = any(getattr(type(self), n) is not getattr(keras.Model, n) for n in steps)
        if y is None and getattr(self, "loss", None) and self._needs_labels(is_raw) and not is_own:
            raise ValueError(
                f"{type(self).__name__} was given no labels to train on or to compare with; pass "
                "them as y, one for each text, or use predict()."
            )

    def _check_ids(self, x):
        """Refuse token ids that the encoder has no vectors of, where they are in NumPy or lists."""
        ids = x.get("token_ids") if isinstance(x, dict) else None
        if isinstance(ids, (list, tuple)):
            try:
                ids = np.asarray(ids)
            except ValueError:  # No rectangle: Keras or `check_arrays` says so.
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

    # === Weights by class ===

    def _class_weights(self, class_weight, count):
        names = getattr(self, "label_names", None)
        if names is None or getattr(self, "multi_label", False):
            raise ValueError(
                f"class_weight={class_weight!r} counts on one class for each label, which this "
                f"{type(self).__name__} has not; pass sample_weight."
            )
        return class_weights(class_weight, names, count)

    def _weigh_arrays(self, class_weight, y, sample_weight):
        rank = len(self.output.shape) - 1
        y = class_numbers(keras.ops.convert_to_numpy(y) if keras.ops.is_tensor(y) else y, rank)
        classes = self.output.shape[-1]
        weights = self._class_weights(
            class_weight, lambda: count_classes(y, sample_weight, classes)
        )
        weights = weights[np.clip(y, 0, classes - 1)]
        return weights if sample_weight is None else weights * np.asarray(sample_weight)

    def _weigh_dataset(self, class_weight, dataset, is_raw):
        rank = len(self.output.shape) - 1

        def count():
            if not is_raw:
                raise ValueError(
                    "class_weight='balanced' counts labels that are in memory; give texts or "
                    "arrays with y, or a dict of weights."
                )
            batches = (keras.utils.unpack_x_y_sample_weight(b) for b in dataset.as_numpy_iterator())
            classes = self.output.shape[-1]
            return sum(count_classes(class_numbers(y, rank), w, classes) for _, y, w in batches)

        weights = self._class_weights(class_weight, count)

        def weighted(x, y, sample_weight=None):
            return x, y, weigh(y, sample_weight, weights, rank)

        return dataset.map(weighted)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # TensorFlow's alone. In the scope of a strategy Keras 3.15 averages a batch over the
        # devices, for its shapes; masks are no numbers, and of workers it takes single tensors.
        if iterator is not None and private_names.in_strategy(self):
            parts = self.distribute_strategy.experimental_local_results
            for _, _, steps in iterator:
                data_batch = keras.tree.map_structure(lambda x: parts(x)[0], next(steps))
                break
        super()._maybe_symbolic_build(data_batch=data_batch)

    def _is_raw(self, x):
        """Whether `x` is texts in memory, for the preprocessor."""
        if x is None or _is_dataset(x):
            return False
        if self.preprocessor is None:
            if _holds_text(x):
                raise ValueError(
                    "This model has no preprocessor and takes arrays of token ids, not texts; "
                    "set `model.preprocessor`, or load the model with `from_preset`."
                )
            return False
        if isinstance(x, dict):
            return "token_ids" not in x
        return not isinstance(x, keras.utils.PyDataset) and not hasattr(x, "__next__")

    def _sorted_batches(self, x, y=None, sample_weight=None, batch_size=None):
        _check_batch_size(batch_size)
        return self.preprocessor.sorted_batches(
            x, batch_size or 32, y, sample_weight, buckets=self._compiles_shapes()
        )

    def _compiles_shapes(self):
        return backend.compiles_shapes(self.jit_compile)

    def _as_lists(self, texts, method):
        """`(texts, single)`: what a person's method takes, as a list or tuple of two lists.

        All of them read texts here, so that each takes the same kinds and refuses the same.
        """
        if self.preprocessor is None:
            raise ValueError(f"{method} takes texts, and this model has no preprocessor.")
        columns, batched = self.preprocessor.columns(texts)
        return (columns if len(columns) > 1 else columns[0]), not batched

    # === Batches that come one by one ===

    def _read(self, x, batch_size=None, anew=False, shuffle=False):
        """A `tf.data.Dataset` of features, of a dataset, generator or `PyDataset` of texts.

        What gives ready arrays stays as it is.
        """
        if _is_dataset(x):
            return self._preprocess_dataset(x, anew, batch_size)
        if hasattr(x, "__next__"):
            return self._read_generator(x, batch_size)
        if isinstance(x, keras.utils.PyDataset) and self._is_raw(_inputs_of(x[0])):
            return self._dataset_from(lambda: _passes(x, shuffle), x[0], x.num_batches)
        return x

    def _read_generator(self, batches, batch_size):
        first = next(batches, None)
        if first is None:
            raise ValueError("The generator gives no batch; make it anew for each use.")
        batches = itertools.chain([first], batches)
        if not self._is_raw(_inputs_of(first)):
            self._build_on(first)
            return (batch for batch in batches)  # Keras takes no other iterator.
        if _is_single(_inputs_of(first)):
            batches = _grouped(batches, batch_size or 32)
            first = next(batches)
            batches = itertools.chain([first], batches)
        return self._dataset_from(lambda: batches, first)

    def _dataset_from(self, batches, first, size=None):
        """A dataset of features of what `batches()` gives; `first` is such a batch."""
        tf, _ = tf_modules("Preprocessing")

        def preprocess(batch):
            try:
                parts = batch if isinstance(batch, tuple) else (batch,)
                return keras.tree.map_structure(
                    keras.ops.convert_to_numpy, self.preprocessor(*parts)
                )
            except Exception as error:
                self._reading_error = error
                raise

        def spec(array):
            return tf.TensorSpec([None] * array.ndim, array.dtype)

        first = preprocess(first)
        self._build_on(first)
        signature = keras.tree.map_structure(spec, first)
        dataset = tf.data.Dataset.from_generator(
            lambda: map(preprocess, batches()), output_signature=signature
        )
        if size is not None:
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(size))
        return dataset.prefetch(2)

    def _build_on(self, batch):
        """Build loss and metrics now: Keras would take a batch for it that no one trains on."""
        if isinstance(batch, tuple) and len(batch) > 1:
            private_names.build_on(self, batch)

    def _preprocess_dataset(self, dataset, anew=False, batch_size=None):
        """Map the preprocessor over a `tf.data.Dataset` of raw batches, or of texts to batch."""
        if self.preprocessor is None or _is_ready(dataset):
            return dataset
        parts = keras.tree.flatten(_inputs_of(dataset.element_spec))
        if all(part.shape.rank == 0 and part.dtype == "string" for part in parts):
            dataset = dataset.batch(batch_size or 32)
        return self.preprocessor.map_dataset(dataset, anew)


def encoder_of(model):
    """The encoder of a task, or the encoder itself."""
    return getattr(model, "backbone", model)


def head_weights(model):
    """The weights of a task that are not its encoder's."""
    inner = {id(weight) for weight in encoder_of(model).weights}
    return [weight for weight in model.weights if id(weight) not in inner]


def own_preprocessor(backbone, preprocessor, kind, **settings):
    """A task's own copy of the preprocessor that it is given, with what the two share.

    The tokenizer is not copied.

    Args:
        backbone: the `BertBackbone` that it has to fit.
        preprocessor: a preprocessor, or `None`.
        kind: the class that it has to be of.
        **settings: those of the task; a preprocessor that does not know one goes without.
    """
    if preprocessor is None:
        return None
    if not isinstance(preprocessor, kind):
        raise TypeError(
            f"preprocessor is a {type(preprocessor).__name__}, and has to be a {kind.__name__}; "
            f"make one by {kind.__name__}(tokenizer, sequence_length=...)."
        )
    # A `.keras` file gives the vocabulary after the model.
    is_empty = preprocessor.tokenizer.vocabulary is None
    tokens = backbone.vocabulary_size if is_empty else preprocessor.tokenizer.vocabulary_size()
    if tokens > backbone.vocabulary_size:
        raise ValueError(
            f"The tokenizer has {tokens} tokens, but the encoder's vocabulary_size is "
            f"{backbone.vocabulary_size}; load both from the same preset."
        )
    if tokens < 0.9 * backbone.vocabulary_size:
        warnings.warn(
            f"The tokenizer has only {tokens} tokens for the encoder's vocabulary_size of "
            f"{backbone.vocabulary_size}; is its vocabulary file whole?",
            stacklevel=3,
        )
    if preprocessor.sequence_length > backbone.max_sequence_length:
        raise ValueError(
            f"The preprocessor's sequence_length {preprocessor.sequence_length} exceeds the "
            f"encoder's {backbone.max_sequence_length} positions; set sequence_length="
            f"{backbone.max_sequence_length} or less."
        )
    config = {**preprocessor.get_config(), "tokenizer": preprocessor.tokenizer}
    settings["num_segments"] = min(backbone.num_segments, 2)
    config.update((name, value) for name, value in settings.items() if name in config)
    return type(preprocessor).from_config(config)


def _without(left_out, variables):
    left_out = set(map(id, left_out))
    return [variable for variable in variables if id(variable) not in left_out]


def _holds_text(x):
    while isinstance(x, (list, tuple)) and x:
        x = x[0]
    kind = getattr(getattr(x, "dtype", None), "kind", None)  # Of a NumPy or pandas column.
    return isinstance(x, (str, bytes)) or kind in ("O", "S", "U")


def _join_padded(parts, value):
    """Arrays (B, ...) of different sizes as one, each padded at its ends."""
    sizes = np.max([part.shape[1:] for part in parts], axis=0)

    def pad(part):
        missing = [(0, size - own) for size, own in zip(sizes, part.shape[1:], strict=True)]
        return np.pad(part, [(0, 0), *missing], constant_values=value)

    return np.concatenate([pad(part) for part in parts])


def _check_batch_size(batch_size):
    if batch_size is not None:
        check_whole("batch_size", batch_size)


def _is_in_memory(x):
    return isinstance(x, (dict, list, tuple, np.ndarray)) or keras.ops.is_tensor(x)


def _is_ready(dataset):
    """Whether a `tf.data.Dataset` has token ids already."""
    spec = _inputs_of(dataset.element_spec)
    return isinstance(spec, dict) and "token_ids" in spec


def _inputs_of(batch):
    return batch[0] if isinstance(batch, tuple) else batch


def _passes(dataset, shuffle):
    """One epoch of a `keras.utils.PyDataset`, as Keras goes through it."""
    dataset.on_epoch_begin()
    size = dataset.num_batches
    order = itertools.count() if size is None else range(size)
    for i in np.random.permutation(size) if shuffle and size is not None else order:
        yield dataset[int(i)]
    dataset.on_epoch_end()


def _is_single(x):
    """Whether `x` is one text or one pair of them."""
    if isinstance(x, dict):
        x = tuple(x.values())
    return isinstance(x, (str, bytes)) or isinstance(x, tuple) and _is_single(x[0])


def _grouped(rows, size):
    """Batches of single examples, each of `x`, `(x, y)` or `(x, y, sample_weight)`."""
    while group := [
        row if isinstance(row, tuple) else (row,) for row in itertools.islice(rows, size)
    ]:
        x, *targets = map(list, zip(*group, strict=True))
        if isinstance(x[0], dict):
            x = {name: [row[name] for row in x] for name in x[0]}
        yield (x, *targets)


def _is_dataset(x):
    return hasattr(x, "element_spec") and hasattr(x, "map")


def _split(arrays, share):
    """Cut off the last share of each, as `validation_split` does."""
    columns = arrays[0].values() if isinstance(arrays[0], dict) else arrays[0]
    size = len(next(iter(columns)) if isinstance(arrays[0], (dict, tuple)) else columns)
    cut = int(size * (1 - share))
    if not 0 < cut < size:
        raise ValueError(
            f"validation_split={share} of {size} texts leaves no text on one side; "
            "use another share or pass validation_data."
        )

    def part(array, start, stop):
        if isinstance(array, tuple):
            return tuple(part(one, start, stop) for one in array)
        if isinstance(array, dict):
            return {name: part(one, start, stop) for name, one in array.items()}
        return None if array is None else array[start:stop]

    return (
        tuple(part(array, 0, cut) for array in arrays),
        tuple(part(array, cut, size) for array in arrays),
    )
