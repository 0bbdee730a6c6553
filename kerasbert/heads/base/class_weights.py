"""Class weights for `fit(class_weight=...)`: by class index, by class name or "balanced".

C classes.
"""

import numbers

import keras
import numpy as np

from kerasbert.base.errors import did_you_mean, is_whole
from kerasbert.text import ops
from kerasbert.text.class_numbers import class_numbers as numbers_of
from kerasbert.text.names import known_name


def class_weights(given, names, count):
    """Return the weight of each class.

    Args:
        given: dict of class name or index to weight; missing classes have weight 1. Or "balanced",
            the same total weight per class: a class weighs the number of examples / (C * the number
            of its examples). As in labels, numeric class names take precedence over indices.
        names: list of C strings.
        count: function that returns the number of labels of each class, (C,).

    Returns:
        float32 (C,).

    >>> class_weights({"spam": 3.0}, ["ham", "spam"], None).tolist()
    [1.0, 3.0]
    >>> class_weights("balanced", ["ham", "spam"], lambda: [1, 1]).tolist()
    [1.0, 1.0]
    """
    if isinstance(given, str) and given == "balanced":
        counts = np.asarray(count(), "float64")
        return np.where(counts > 0, counts.sum() / len(names) / np.maximum(counts, 1), 1).astype(
            "float32"
        )
    if not isinstance(given, dict):
        raise ValueError(
            f"class_weight={given!r} must be a dict of class to weight, such as "
            f"{{{names[-1]!r}: 3.0}}, or 'balanced'."
        )
    weights = np.ones(len(names), "float32")
    by_name = numbers_of(names)
    for given_key, value in given.items():
        known = known_name(given_key, names)
        key = given_key if known is None else known
        is_number = is_whole(key) and (by_name is not None or 0 <= key < len(names))
        if key not in names and not is_number:
            raise ValueError(
                f"class_weight has the class {key!r}, but the classes are {', '.join(names)}"
                + did_you_mean(key, names, ", or their numbers from 0.", show=repr)
            )
        is_weight = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not is_weight or not 0 <= value < np.inf:
            raise ValueError(
                f"class_weight[{key!r}] must be a finite number of 0 or more, got {value!r}."
            )
        if key in names:
            number = names.index(key)
        else:
            what = f"The class {key} of class_weight"
            number = int(key) if by_name is None else by_name.number(key, what)
        weights[number] = value
    return weights


def count_classes(y, sample_weight, classes):
    """Count the labels of each class that have a weight above 0: (C,)."""
    counted = np.ones(y.shape) if sample_weight is None else np.asarray(sample_weight) > 0
    counted = counted.reshape(counted.shape + (1,) * (y.ndim - counted.ndim))
    return np.bincount(y.ravel(), np.broadcast_to(counted, y.shape).ravel(), classes)[:classes]


def class_numbers(y, rank):
    """Convert labels to class indices with `rank` axes.

    Labels are class indices, also with a last axis of 1, or one-hot rows (..., C).
    """
    y = np.asarray(y)
    if y.ndim > rank:
        y = y[..., 0] if y.shape[-1] == 1 else y.argmax(axis=-1)
    return y.astype(int)


def weigh(y, sample_weight, weights, rank):
    """Multiply sample weights by class weights, in NumPy or in a `tf.data` graph."""
    if len(y.shape) > rank:
        y = y[..., 0] if y.shape[-1] == 1 else ops.argmax(y, axis=-1)
    by_class = ops.gather(weights, ops.cast(y, "int32"))
    return by_class if sample_weight is None else by_class * ops.cast(sample_weight, "float32")


def weigh_arrays(task, class_weight, y, sample_weight):
    """Multiply sample weights by class weights, for labels in memory."""
    rank, classes = len(task.output.shape) - 1, task.output.shape[-1]
    y = class_numbers(keras.ops.convert_to_numpy(y) if keras.ops.is_tensor(y) else y, rank)
    weights = _of_task(task, class_weight, lambda: count_classes(y, sample_weight, classes))
    weights = weights[np.clip(y, 0, classes - 1)]
    return weights if sample_weight is None else weights * np.asarray(sample_weight)


def weigh_dataset(task, class_weight, dataset, is_raw):
    """Multiply the sample weights of a `tf.data.Dataset` of batches by class weights.

    Args:
        task: a task model.
        class_weight: see `class_weights`.
        dataset: yields `(x, y)` or `(x, y, sample_weight)`.
        is_raw: whether the dataset was made from texts in memory.
    """
    rank, classes = len(task.output.shape) - 1, task.output.shape[-1]

    def count():
        if not is_raw:
            raise ValueError(
                "class_weight='balanced' needs labels in memory to count; pass texts or arrays "
                "with y, or a dict of weights."
            )
        batches = (keras.utils.unpack_x_y_sample_weight(b) for b in dataset.as_numpy_iterator())
        return sum(count_classes(class_numbers(y, rank), w, classes) for _, y, w in batches)

    weights = _of_task(task, class_weight, count)

    def weighted(x, y, sample_weight=None):
        return x, y, weigh(y, sample_weight, weights, rank)

    return dataset.map(weighted)


def _of_task(task, class_weight, count):
    names = getattr(task, "label_names", None)
    if names is None or getattr(task, "multi_label", False):
        raise ValueError(
            f"class_weight={class_weight!r} needs one class per label, which this "
            f"{type(task).__name__} does not have; pass sample_weight."
        )
    return class_weights(class_weight, names, count)
