"""Adapters of labels and head outputs to Keras metrics.

Shapes: B batch, T tokens, C classes, N rows (texts, or all tokens of a batch).
"""

import inspect

import keras
from keras import ops

from kerasbert.base import keras_internals
from kerasbert.losses.logits import (
    BinaryTokenAccuracy,
    ClassAccuracy,
    ClassScore,
    PairAccuracy,
)

# Forms of outputs and labels: logits (B, C) for one class, several classes, or positions or
# choices, whose number varies; numbers (B,) or vectors (B, D); logits of tokens (B, T, C) or (B,
# T), or of pairs.
CLASSES, SEVERAL, PLACES = "classes", "several", "places"
NUMBERS, VECTORS = "numbers", "vectors"
TOKEN_CLASSES, TOKEN_FLAGS, PAIRS = "token_classes", "token_flags", "pairs"

# Keras metrics by what they compare.
_KINDS = {
    "ids": "Accuracy IoU MeanIoU",
    "sparse": (
        "SparseCategoricalAccuracy SparseTopKCategoricalAccuracy SparseCategoricalCrossentropy"
    ),
    "rows": (
        "CategoricalAccuracy TopKCategoricalAccuracy CategoricalCrossentropy KLDivergence OneHotIoU"
        " OneHotMeanIoU F1Score FBetaScore CategoricalFocalCrossentropy"
    ),
    "scores": "CategoricalHinge",
    "binary": (
        "BinaryAccuracy BinaryCrossentropy BinaryFocalCrossentropy BinaryIoU AUC Precision Recall"
        " TruePositives TrueNegatives FalsePositives FalseNegatives PrecisionAtRecall"
        " RecallAtPrecision SensitivityAtSpecificity SpecificityAtSensitivity"
    ),
    "margins": "Hinge SquaredHinge",
    "errors": "MeanSquaredError RootMeanSquaredError MeanAbsoluteError",
    "numbers": (
        "MeanAbsolutePercentageError MeanSquaredLogarithmicError LogCoshError LogCosh Poisson Huber"
        " R2Score"
    ),
    "correlations": "PearsonCorrelation ConcordanceCorrelation CosineSimilarity",
    "values": "Mean Sum",
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}
_TITLES = {name.lower(): name for name in _KIND_OF}
# Metrics with one entry per class.
_SIZED = ("IoU", "MeanIoU", "OneHotIoU", "OneHotMeanIoU", "F1Score", "FBetaScore", "R2Score")
# Inputs that select the tokens to predict, one row of outputs each.
_CHOOSE = ("mask_positions", "target_mapping")
_AVERAGED = {"f1": "f1", "f1_score": "f1", "precision": "precision", "recall": "recall"}


def fitting_metrics(task, metrics, weighted=False):
    """Wrap metrics for `compile` to fit a task's outputs.

    Args:
        task: a task model.
        metrics: names, functions, classes and objects, in any nesting that `compile` accepts.
        weighted: whether the metrics are weighted; otherwise sample weights only select rows or
            tokens.

    Raises:
        UnfitMetric: for a metric that does not fit the outputs, with an alternative.
    """
    forms = task.metric_forms()
    if isinstance(forms, dict):
        if isinstance(metrics, (list, tuple)) and len(metrics) == len(forms):
            metrics = dict(zip(sorted(forms), metrics))  # Keras sorts the outputs by name.
        if isinstance(metrics, dict):
            return {
                name: _each(task, part, forms.get(name), weighted) for name, part in metrics.items()
            }
        forms = None
    return _each(task, metrics, forms, weighted)


def counts_tokens(task):
    """Return whether metrics need sample weights to ignore padding."""
    forms = task.metric_forms()
    forms = forms.values() if isinstance(forms, dict) else [forms]
    return any(form and form[0] in (TOKEN_CLASSES, TOKEN_FLAGS, PAIRS) for form in forms)


def without_padding(features, outputs, weights):
    """Return token weights (B, T) that are 0 at padding, even if the caller passed no weights."""
    mask = features.get("padding_mask")
    if any(name in features for name in _CHOOSE):
        return weights
    if mask is None or isinstance(outputs, dict) or len(outputs.shape) < 2:
        return weights
    if len(mask.shape) != 2 or mask.shape[1] != outputs.shape[1]:
        return weights  # One row per selected token.
    mask = ops.cast(mask, "float32")
    return mask if weights is None else _spread(ops.cast(weights, "float32"), mask) * mask


def joined(metrics, more):
    """Merge two nestings of metrics, output by output."""
    if not metrics or not more:
        return metrics or more
    if isinstance(metrics, dict) and isinstance(more, dict):
        names = dict.fromkeys([*metrics, *more])
        return {name: joined(metrics.get(name), more.get(name)) for name in names}
    first, second = (list(x) if isinstance(x, (list, tuple)) else [x] for x in (metrics, more))
    return first + second


def _each(task, metrics, form, weighted):
    if isinstance(metrics, dict):
        return {name: _each(task, part, form, weighted) for name, part in metrics.items()}
    if isinstance(metrics, (list, tuple)):
        return type(metrics)(_each(task, part, form, weighted) for part in metrics)
    return None if metrics is None else _fitting(task, metrics, form, weighted)


def _fitting(task, given, form, weighted):
    if isinstance(given, HeadMetric):
        return given
    what, classes = form or (None, None)
    if isinstance(given, str) and form is not None:
        metric = _by_name(given, what, classes, task)
    else:
        metric = _as_object(given)
    if metric is None:
        return given
    kind = _kind(metric)
    if kind is None and what not in (TOKEN_CLASSES, TOKEN_FLAGS, PAIRS):
        return metric if isinstance(given, str) else given  # A metric that is not of Keras.
    if kind is not None:
        _check(task, metric, kind, what, classes)
    gives_logits = task.gives_logits()
    return HeadMetric(metric, what, classes, gives_logits, weighted)


def _by_name(name, what, classes, task):
    """Return the metric of a name for outputs of the form `what`."""
    key = name.replace("_", "").lower()
    if key in ("accuracy", "acc"):
        if what in (NUMBERS, VECTORS):
            _refuse(task, name, f"compares classes, but the outputs are {what}", "'mae' or 'mse'")
        return {
            SEVERAL: lambda: keras.metrics.BinaryAccuracy(name=name),
            TOKEN_FLAGS: lambda: BinaryTokenAccuracy(name=name),
            PAIRS: lambda: PairAccuracy(name=name),
        }.get(what, lambda: ClassAccuracy(name=name))()
    if key in ("crossentropy", "ce"):
        is_binary = what in (SEVERAL, TOKEN_FLAGS, PAIRS)
        kind = "BinaryCrossentropy" if is_binary else "CategoricalCrossentropy"
        return getattr(keras.metrics, kind)(name=name)
    score = _AVERAGED.get(name if key != "f1score" else "f1_score")
    if score and what in (CLASSES, TOKEN_CLASSES) and classes and classes > 2:
        return ClassScore(score, classes, name=f"macro_{score}")
    if score == "f1" and what in (CLASSES, TOKEN_CLASSES):
        return ClassScore("f1", classes, positive=1, name=name)
    if score == "f1" and what == SEVERAL:
        name = "macro_f1"
    if score == "f1":
        return keras.metrics.F1Score(average="macro", threshold=0.5, name=name)
    metric = _as_object(name)
    if metric is not None and not name[:1].isupper():
        metric.name = name  # Keras also logs a metric under the name passed.
    return metric


def _as_object(given):
    """Return a metric object, or `None` for an error of Keras."""
    if isinstance(given, str):
        try:
            given = getattr(keras.metrics, given, None) or keras.metrics.get(given)
        except ValueError:
            return None
    if inspect.isclass(given):
        given = given()
    if isinstance(given, keras.metrics.Metric):
        return given
    if not callable(given):
        return None
    name = getattr(given, "__name__", type(given).__name__)
    cls = getattr(keras.metrics, _title_of(given) or "", None)
    return cls(name=name) if cls else keras.metrics.MeanMetricWrapper(given, name=name)


def _title_of(function):
    """Return the name in `_KINDS` of a metric function of Keras, or `None`."""
    name = getattr(function, "__name__", "")
    is_theirs = getattr(keras.metrics, name, None) is function
    return _TITLES.get(name.replace("_", "")) if is_theirs else None


def _title(metric):
    """Return the name of a metric, or that in `_KINDS` of its function."""
    if type(metric) is keras.metrics.MeanMetricWrapper:
        return _title_of(keras_internals.function_of(metric))
    return type(metric).__name__


def _kind(metric):
    """Return the key of a Keras metric in `_KINDS`, or `None`."""
    is_theirs = type(metric).__module__.startswith("keras.")
    return _KIND_OF.get(_title(metric)) if is_theirs else None


def _config(metric):
    try:
        return metric.get_config()
    except NotImplementedError:  # A custom metric.
        return {}


class UnfitMetric(ValueError):
    """A metric does not fit the outputs of a task."""


def _refuse(task, name, why, instead):
    raise UnfitMetric(
        f"The metric {name} of this {type(task).__name__} {why}; pass {instead} instead."
    )


def _check(task, metric, kind, what, classes):
    """Raise if a Keras metric does not fit outputs of the form `what`."""
    name, config = _title(metric), _config(metric)
    if kind == "values":
        _refuse(
            task, name, "takes values instead of labels and outputs", "a metric that compares both"
        )
    if what is None:
        _refuse(
            task,
            name,
            "would be computed on several outputs at once",
            "metrics='auto', a custom metric, or a dict of metrics by output",
        )
    if what in (NUMBERS, VECTORS):
        if kind == "correlations" and what == NUMBERS:
            scores = "kerasbert.metrics.ScoreCallback with kerasbert.metrics.pearson"
            _refuse(task, name, "needs all numbers at once, but Keras computes by batch", scores)
        if kind not in ("errors", "numbers", "correlations"):
            _refuse(task, name, f"compares classes, but the outputs are {what}", "'mae' or 'mse'")
        return
    if kind in ("numbers", "correlations"):
        _refuse(task, name, "compares numbers, but the outputs are classes", "'accuracy'")
    if kind in ("margins", "scores") and not task.gives_logits():
        _refuse(task, name, "takes logits, but the outputs are probabilities", "'accuracy'")
    is_given = config.get("from_logits") and not task.gives_logits()
    if is_given:
        raise UnfitMetric(
            f"{name}(from_logits=True) takes logits, but this {type(task).__name__} was built with "
            "an activation and outputs probabilities; pass from_logits=False, or the metric's name."
        )
    thresholds = config.get("thresholds", config.get("threshold"))
    if kind in ("binary", "rows") and thresholds is not None and name != "AUC":
        for one in keras.tree.flatten(thresholds):
            if not 0 <= one <= 1:
                _refuse(
                    task, name, f"gets probabilities, but has the threshold {one:g}", "0.5 there"
                )
    size = config.get("num_classes")
    if what in (SEVERAL, TOKEN_FLAGS, PAIRS):
        if kind == "sparse" or (kind == "rows" and name not in ("F1Score", "FBetaScore")):
            _refuse(task, name, "needs one class for each label", "'binary_accuracy' or 'auc'")
        if kind == "scores":
            _refuse(task, name, "needs one class for each label", "'hinge'")
        if kind == "rows" and config.get("threshold") is None:
            _refuse(task, name, "without a threshold takes one class per text", "threshold=0.5")
        if kind == "ids" and size not in (None, 2):
            _refuse(
                task, name, f"has num_classes={size}, but the labels are 0 or 1", "num_classes=2"
            )
        return
    if classes is None and name in _SIZED:
        _refuse(
            task,
            name,
            "needs a fixed number of classes, but the outputs are positions or choices",
            "'accuracy'",
        )
    if size is not None and kind in ("ids", "rows") and size != classes:
        _refuse(
            task, name, f"has num_classes={size} for {classes} classes", f"num_classes={classes}"
        )
    if kind == "errors" and classes is None:
        _refuse(
            task, name, "compares numbers, but the outputs are positions or choices", "'accuracy'"
        )
    if kind not in ("binary", "margins") or classes == 2 or name == "BinaryIoU" and classes == 2:
        return
    if name in ("AUC", "BinaryCrossentropy") and classes is not None:
        return
    is_chosen = config.get("class_id") is not None or config.get("top_k") is not None
    if classes is not None and is_chosen:
        return
    ways = {
        "Precision": "class_id=..., or the name 'precision' for the mean over the classes",
        "Recall": "class_id=..., or the name 'recall' for the mean over the classes",
    }
    many = "positions or choices" if classes is None else f"{classes} classes"
    instead = ways.get(name, "'accuracy' or keras.metrics.F1Score(average='macro')")
    instead = "'accuracy'" if classes is None else instead
    _refuse(task, name, f"is for two classes, but the outputs are {many}", instead)


@keras.saving.register_keras_serializable(package="kerasbert")
class HeadMetric(keras.metrics.Metric):
    """Wrapper that converts labels and outputs for a metric.

    Args:
        metric: a `keras.metrics.Metric`; its state is the wrapper's state.
        form: string. Form of the outputs: `CLASSES`, `SEVERAL`, ...
        classes: int. C, or `None` if it varies by batch.
        from_logits: whether the outputs are logits.
        weighted: bool. See `fitting_metrics`.
    """

    def __init__(self, metric, form, classes, from_logits, weighted=False, name=None, dtype=None):
        super().__init__(name=name or metric.name, dtype=dtype)
        self.metric = metric
        self.form, self.classes = form, classes
        self.from_logits, self.weighted = from_logits, weighted
        self._direction = getattr(metric, "_direction", None)
        config = _config(metric)
        self._kind = _kind(metric)
        self._takes_logits = bool(config.get("from_logits"))
        thresholds = keras.tree.flatten(config.get("thresholds", config.get("threshold")))
        # Earlier versions wrote a threshold of 0, compared with logits.
        self._takes_logits |= bool(
            from_logits
            and type(metric).__name__ != "AUC"
            and thresholds
            and all(one == 0 for one in thresholds if one is not None)
            and thresholds[0] is not None
        )
        self._by_class = bool(
            config.get("class_id") is not None
            or config.get("top_k") is not None
            or config.get("multi_label")
        )
        self._takes_weights = "sample_weight" in inspect.signature(metric.update_state).parameters

    def update_state(self, y_true, y_pred, sample_weight=None):
        y, outputs = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        weights = None if sample_weight is None else ops.cast(sample_weight, "float32")
        if weights is not None and not self.weighted:
            weights = ops.cast(weights > 0, "float32")
        if self.form in (TOKEN_CLASSES, TOKEN_FLAGS, PAIRS) and self._is_known():
            y, outputs, weights = self._rows(y, outputs, weights)
        if self._kind is not None:
            y, outputs, weights = self._read(y, outputs, weights)
        if weights is not None and not self.weighted and _title(self.metric) in _SIZED[:4]:
            weights = ops.cast(weights, "int32")  # Confusion matrices need integer weights.
        if weights is None or not self._takes_weights:
            return self.metric.update_state(y, outputs)
        return self.metric.update_state(y, outputs, sample_weight=weights)

    def _is_known(self):
        return self._kind is not None or isinstance(self.metric, (ClassAccuracy, ClassScore))

    def _rows(self, y, outputs, weights):
        """Flatten the axes of tokens or texts: outputs to (N, C) or (N, 1), the rest to (N,)."""
        is_flag = self.form != TOKEN_CLASSES
        shape = ops.shape(outputs) if is_flag else ops.shape(outputs)[:-1]
        if self.form == PAIRS:
            y = ops.cast(y, "float32")
            known = ops.cast(y >= 0, "float32")  # Padding and unjudged texts are below 0.
            weights = known if weights is None else _spread(weights, known) * known
            y = ops.maximum(y, 0.0)
        if weights is not None:
            weights = ops.reshape(_spread(weights, ops.ones(shape)), (-1,))
        if is_flag:
            return ops.reshape(y, (-1, 1)), ops.reshape(outputs, (-1, 1)), weights
        has_rows = len(y.shape) == len(outputs.shape) and y.shape[-1] != 1
        y = ops.reshape(y, (-1, outputs.shape[-1]) if has_rows else (-1,))
        return y, ops.reshape(outputs, (-1, outputs.shape[-1])), weights

    def _read(self, y, outputs, weights):
        kind = self._kind
        if self.form == VECTORS:
            if len(y.shape) != len(outputs.shape):
                raise ValueError(
                    f"The metric {_title(self.metric)} compares the embeddings {outputs.shape} with"
                    f" labels of that shape, not of shape {y.shape}; pass metrics='auto' instead."
                )
            return ops.cast(y, outputs.dtype), outputs, weights
        if self.form == NUMBERS:
            shape = (-1, 1)
            return (
                ops.reshape(ops.cast(y, outputs.dtype), shape),
                ops.reshape(outputs, shape),
                weights,
            )
        if self.form in (SEVERAL, TOKEN_FLAGS, PAIRS):
            y = ops.cast(y, "float32")
            if kind == "ids":
                outputs = ops.cast(outputs > (0.0 if self.from_logits else 0.5), "int32")
            elif self.from_logits and not self._takes_logits and kind != "margins":
                outputs = ops.sigmoid(outputs)
            if kind in ("ids", "margins") or (kind == "binary" and not self._by_class):
                return self._flat(y, outputs, weights)
            return y, outputs, weights
        is_score = self._takes_logits or kind in ("margins", "scores")
        scores = outputs if is_score or not self.from_logits else ops.softmax(outputs, axis=-1)
        count = ops.shape(outputs)[-1]
        has_rows = len(y.shape) == len(outputs.shape) and y.shape[-1] != 1
        numbers = ops.argmax(y, axis=-1) if has_rows else ops.reshape(y, ops.shape(outputs)[:-1])
        numbers = ops.cast(numbers, "int32")
        if kind == "sparse":
            return numbers, scores, weights
        config = _config(self.metric)
        if kind == "ids" and config.get("sparse_y_pred", True):
            return numbers, ops.cast(ops.argmax(outputs, axis=-1), "int32"), weights
        rows = ops.cast(y, "float32") if has_rows else ops.one_hot(numbers, count)
        if kind in ("binary", "margins") and self.classes == 2 and not self._by_class:
            score = scores[:, 1] - scores[:, 0] if is_score else scores[:, 1]
            return self._flat(numbers, score, weights)
        if kind == "binary" and not self._by_class:
            return self._flat(rows, scores, weights)
        return rows, scores, weights

    def _flat(self, y, outputs, weights):
        if weights is not None:
            weights = ops.reshape(_spread(weights, ops.ones(ops.shape(outputs))), (-1,))
        return ops.reshape(y, (-1, 1)), ops.reshape(outputs, (-1, 1)), weights

    def result(self):
        return self.metric.result()

    def reset_state(self):
        self.metric.reset_state()

    def get_config(self):
        return {
            "name": self.name,
            "dtype": self.dtype,
            "metric": keras.saving.serialize_keras_object(self.metric),
            "form": self.form,
            "classes": self.classes,
            "from_logits": self.from_logits,
            "weighted": self.weighted,
        }

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config.pop("metric")), **config)


def _spread(weights, like):
    """Broadcast weights (B,) or (B, T) to the shape of `like`."""
    missing = len(like.shape) - len(weights.shape)
    if missing > 0:
        weights = ops.reshape(weights, (*ops.shape(weights), *[1] * missing))
    return ops.broadcast_to(weights, ops.shape(like))
