"""Weights by class, as `fit(class_weight=...)` takes them: by number, by name or "balanced".

C classes.
"""

import difflib
import numbers

import numpy as np

from kerasbert.backend.tensorflow import tf_modules


def class_weights(given, names, count):
    """The weight of each class.

    Args:
        given: dict of class names or numbers to weights, 1 where one is missing; or "balanced",
            which makes all classes count alike: examples / (C * examples of the class).
        names: list of C strings.
        count: function that returns how many labels there are of each class, (C,).

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
            f"class_weight={given!r} has to be a dict of classes to weights, such as "
            f"{{{names[-1]!r}: 3.0}}, or 'balanced'."
        )
    weights = np.ones(len(names), "float32")
    for key, value in given.items():
        is_number = isinstance(key, numbers.Integral) and not isinstance(key, bool)
        if key not in names and not (is_number and 0 <= key < len(names)):
            near = difflib.get_close_matches(str(key), names, 1)
            raise ValueError(
                f"class_weight has the class {key!r}, but the classes are {', '.join(names)}"
                + (f"; did you mean {near[0]!r}?" if near else ", or their numbers from 0.")
            )
        is_weight = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not is_weight or not 0 <= value < np.inf:
            raise ValueError(
                f"class_weight[{key!r}] is {value!r}; pass a finite number of 0 or more."
            )
        weights[names.index(key) if key in names else int(key)] = value
    return weights


def count_classes(y, sample_weight, classes):
    """How many labels (...), of weight above 0, there are of each class: (C,)."""
    counted = np.ones(y.shape) if sample_weight is None else np.asarray(sample_weight) > 0
    counted = counted.reshape(counted.shape + (1,) * (y.ndim - counted.ndim))
    return np.bincount(y.ravel(), np.broadcast_to(counted, y.shape).ravel(), classes)[:classes]


def class_numbers(y, rank):
    """Labels of `rank` axes, of (..., 1), or of rows (..., C): ints of `rank` axes."""
    y = np.asarray(y)
    if y.ndim > rank:
        y = y[..., 0] if y.shape[-1] == 1 else y.argmax(axis=-1)
    return y.astype(int)


def weigh(y, sample_weight, weights, rank):
    """The sample weights of labels in a `tf.data` graph, by class."""
    tf, _ = tf_modules("class_weight")
    if y.shape.rank > rank:
        y = y[..., 0] if y.shape[-1] == 1 else tf.argmax(y, axis=-1)
    by_class = tf.gather(tf.constant(weights), tf.cast(y, "int32"))
    return by_class if sample_weight is None else by_class * tf.cast(sample_weight, "float32")
