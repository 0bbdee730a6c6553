"""What every task model shares: `fit`, `evaluate` and `predict` on raw strings, by length."""

import itertools
import warnings

import keras
import keras_hub
import numpy as np

from kerasbert.data.batching import restore_order
from kerasbert.from_preset import FromPreset
from kerasbert.optimizers import AdamW


class BertTask(FromPreset, keras_hub.models.Task):
    """Base of the task models.

    Raw texts are tokenized once, batched with others of similar length and padded to the longest
    of the batch; arrays of token ids go to Keras as they are, without TensorFlow.
    """

    # What stands in outputs a token where `predict` pads rows.
    output_padding = 0
    # Whether a checkpoint has to hold weights of the task's own.
    needs_head = True

    def _adopt_preprocessor(self, backbone, preprocessor, **settings):
        """Check that the preprocessor fits the encoder, and hand it what it shares with us."""
        if preprocessor is None:
            return
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
        preprocessor.num_segments = min(backbone.num_segments, 2)
        for name, value in settings.items():
            setattr(preprocessor, name, value)

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
        skipped = [*self.backbone._flatten_layers(), self.optimizer]
        keras.saving.save_weights(self, filepath, objects_to_skip=skipped)

    def load_task_weights(self, filepath):
        """Load the weights of the head."""
        skipped = [*self.backbone._flatten_layers(), self.optimizer]
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
            optimizer: "auto" is `kerasbert.optimizers.AdamW()`: at 5e-5, decay 0.01 but on norms
                and biases, clipped at 1.
            loss: "auto" is `default_loss()`.
            metrics: "auto" is `default_metrics()`.
            **kwargs: as in `keras.Model.compile`.
        """
        if isinstance(optimizer, str) and optimizer == "auto":
            optimizer = AdamW()
        if isinstance(loss, str) and loss == "auto":
            loss = self.default_loss()
            kwargs.setdefault("loss_weights", self.default_loss_weights())
        if isinstance(metrics, str) and metrics == "auto":
            metrics = None
            kwargs.setdefault("weighted_metrics", self.default_metrics())
        # Keras keeps those of an earlier `compile` where there are none now.
        self._compile_metrics = None
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)

    def get_compile_config(self):
        config = super().get_compile_config()
        if config:
            config["optimizer_built"] = self.optimizer is not None and self.optimizer.built
        return config

    def compile_from_config(self, config):
        # Keras leaves a model uncompiled after loading where `compile` is not its own.
        config = keras.saving.deserialize_keras_object(config)
        is_built = config.pop("optimizer_built", False)
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
        **kwargs,
    ):
        """Train, on raw texts or on ready arrays; see `keras.Model.fit`.

        Args:
            x: texts (list, numpy, pandas), a tuple of two of them for pairs, a `tf.data.Dataset`
                of batches, or what the encoder takes.
            y: labels.
            batch_size: int, 32 by default.
            shuffle: bool. A new order of texts and batches every epoch.
            **kwargs: as in `keras.Model.fit`.
        """
        if validation_split and validation_data is None and self._is_raw(x):
            (x, y, sample_weight), validation_data = _split((x, y, sample_weight), validation_split)
        elif validation_split:
            kwargs["validation_split"] = validation_split
        if validation_data is not None:
            parts = validation_data if isinstance(validation_data, tuple) else (validation_data,)
            if self._is_raw(parts[0]):
                validation_data = self._sorted_batches(*parts, batch_size=batch_size)[0]
            elif _is_dataset(validation_data):
                validation_data = self._preprocess_dataset(validation_data)
        return self._run(
            keras.Model.fit,
            x,
            y,
            sample_weight,
            batch_size,
            shuffle,
            validation_data=validation_data,
            **kwargs,
        )

    def evaluate(self, x=None, y=None, batch_size=None, sample_weight=None, **kwargs):
        """Loss and metrics, on raw texts or on ready arrays; see `keras.Model.evaluate`."""
        return self._run(keras.Model.evaluate, x, y, sample_weight, batch_size, False, **kwargs)

    def predict(self, x=None, batch_size=None, **kwargs):
        """Outputs in the order of `x`, on raw texts or on ready arrays.

        Raw texts run sorted by length, so that none is padded far.
        """
        if not self._is_raw(x):
            if _is_dataset(x):
                return self._predict_batches(self._preprocess_dataset(x), **kwargs)
            self.check_arrays(x)
            return keras.Model.predict(self, x, batch_size=batch_size, **kwargs)
        dataset, order = self._sorted_batches(x, batch_size=batch_size)
        return restore_order(self._predict_batches(dataset, **kwargs), order)

    def _predict_batches(self, dataset, **kwargs):
        """As `keras.Model.predict`; outputs a token are padded to the longest row of all."""
        if not any(None in output.shape[1:] for output in keras.tree.flatten(self.output)):
            return keras.Model.predict(self, dataset, **kwargs)
        parts = list(self._batch_outputs(dataset, **kwargs))
        return keras.tree.map_structure(
            lambda *outputs: _join_padded(outputs, self.output_padding), *parts
        )

    def _batch_outputs(self, dataset, verbose="auto", steps=None, callbacks=None):
        """`predict` on a dataset, one batch of outputs after the other.

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
            outputs = keras.Model.predict_on_batch(self, features)
            callbacks.on_predict_batch_end(step, {"outputs": outputs})
            yield outputs
        callbacks.on_predict_end()

    # Not KerasHub's: those preprocess ready arrays too, and take no dict of labels.

    def train_on_batch(self, x, y=None, sample_weight=None, **kwargs):
        """One step, on raw texts or on ready arrays; see `keras.Model.train_on_batch`."""
        return keras.Model.train_on_batch(self, *self._as_batch(x, y, sample_weight), **kwargs)

    def test_on_batch(self, x, y=None, sample_weight=None, **kwargs):
        """Loss and metrics of a batch, raw or ready; see `keras.Model.test_on_batch`."""
        return keras.Model.test_on_batch(self, *self._as_batch(x, y, sample_weight), **kwargs)

    def predict_on_batch(self, x):
        """Outputs of a batch, raw or ready; see `keras.Model.predict_on_batch`."""
        return keras.Model.predict_on_batch(self, self._as_batch(x)[0])

    def _as_batch(self, x, y=None, sample_weight=None):
        if self._is_raw(x):
            data = self.preprocessor(x, y, sample_weight)
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        to_tensor = keras.ops.convert_to_tensor
        return [
            None if part is None else keras.tree.map_structure(to_tensor, part)
            for part in (x, y, sample_weight)
        ]

    def _run(self, method, x, y, sample_weight, batch_size, shuffle, **kwargs):
        if self._is_raw(x):
            if method is keras.Model.fit:
                dataset = self.preprocessor.batches(
                    x, y, sample_weight, batch_size or 32, shuffle, buckets=self._compiles_shapes()
                )
                kwargs["shuffle"] = False  # The dataset shuffles itself.
            else:
                dataset, _ = self._sorted_batches(x, y, sample_weight, batch_size)
            return method(self, dataset, **kwargs)
        if method is keras.Model.fit:
            kwargs["shuffle"] = shuffle and not _is_dataset(x)
        if _is_dataset(x):
            x = self._preprocess_dataset(x, anew=method is keras.Model.fit)
            return method(self, x, **kwargs)
        self.check_arrays(x, y)
        return method(self, x, y, batch_size=batch_size, sample_weight=sample_weight, **kwargs)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # TensorFlow's alone. In the scope of a strategy Keras averages a batch over the devices,
        # for its shapes; with several workers that fails for all but a single tensor (Keras 3.15).
        if iterator is not None and self._distribute_strategy is not None:
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
        return self.preprocessor.sorted_batches(
            x, batch_size or 32, y, sample_weight, buckets=self._compiles_shapes()
        )

    def _compiles_shapes(self):
        """Whether each new length costs a compilation, so that there had better be few."""
        return keras.config.backend() == "jax" or bool(self.jit_compile)

    def _as_lists(self, texts, method):
        """`(texts, single)`: one text, or a tuple of two, as a list or tuple of lists."""
        if self.preprocessor is None:
            raise ValueError(f"{method} takes texts, and this model has no preprocessor.")
        parts = texts if isinstance(texts, tuple) else (texts,)
        single = all(isinstance(part, str) for part in parts)
        if single:
            parts = tuple([part] for part in parts)
        return (parts if len(parts) > 1 else parts[0]), single

    def _preprocess_dataset(self, dataset, anew=False):
        """Map the preprocessor over a `tf.data.Dataset` of raw batches."""
        spec = dataset.element_spec
        spec = spec[0] if isinstance(spec, tuple) else spec
        if self.preprocessor is None or (isinstance(spec, dict) and "token_ids" in spec):
            return dataset
        return self.preprocessor.map_dataset(dataset, anew)


def encoder_of(model):
    """The encoder of a task, or the encoder itself."""
    return getattr(model, "backbone", model)


def head_weights(model):
    """The weights of a task that are not its encoder's."""
    inner = {id(weight) for weight in encoder_of(model).weights}
    return [weight for weight in model.weights if id(weight) not in inner]


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
