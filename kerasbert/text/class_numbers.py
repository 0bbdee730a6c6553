"""Mapping of numeric labels to classes whose names may be numbers.

Shapes: C classes, N labels.
"""

import functools
import re

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf

_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
_FLAGS = {"true": 1.0, "false": 0.0}
_CLOSE = 1e-6  # Makes 0.1 in float32 equal to the name "0.1".


class ClassNumbers:
    """Mapping from numeric labels to classes, by class name first, then by position.

    With `labels=[1, 2, 3]`, the label 1 means the class named "1". A number that may mean two
    classes, as with `labels=[1, 0]`, raises an error. If all names are numbers, any other number
    raises an error too, so that all batches agree. The names "True" and "False" count as 1 and 0.

    Args:
        names: list of C strings, at least one of them a number.

    >>> numbers = ClassNumbers(["1", "2", "3"])
    >>> numbers.number(3, "The label 3"), numbers.numbers([1, 2, 3, 1]).tolist()
    (2, [0, 1, 2, 0])
    """

    def __init__(self, names):
        self.names = names
        self._named = named = {}
        for number, name in enumerate(names):
            value = _value(name)
            # With both "007" and "7", the number 7 means "7".
            if value is not None and (value not in named or name == f"{value:g}"):
                named[value] = number
        positions = {float(number): number for number in range(len(names))}
        self.only_names = len(named) == len(names)
        self._ambiguous = {
            value: number
            for value, number in named.items()
            if positions.get(value, number) != number
            # Names other than the positions, such as 1 to 5, or -1 and 1, are names only.
            and (not self.only_names or named.keys() == positions.keys())
        }
        readable = named if self.only_names else {**positions, **named}
        self._readable = {v: n for v, n in readable.items() if v not in self._ambiguous}

    def number(self, value, what):
        """Return the index of the class that a number means.

        Args:
            value: int or float.
            what: its name in errors, such as "The label 3 at position 0".

        Raises:
            ValueError: if the number may mean two classes, or means none.
        """
        number = self._readable.get(_rounded(value))
        if number is None:
            raise ValueError(f"{what} {self._problem(value)}")
        return number

    def _problem(self, value):
        shown = ", ".join(map(repr, self.names[:12])) + (", ..." if len(self.names) > 12 else "")
        named = self._ambiguous.get(_rounded(value))
        if named is not None:
            return (
                f"may mean the class named {self.names[named]!r} or the class at position "
                f"{value:g}, which is named {self.names[int(value)]!r}; pass names as strings, for "
                f"example y=[{self.names[named]!r}, ...], or list `labels` in the order of their "
                "numbers."
            )
        if self.only_names:
            return (
                f"is none of the classes {shown}; these names are numbers, so numeric labels are "
                "read as names, not as positions."
            )
        last = len(self.names) - 1
        return (
            f"is none of the classes {shown} and outside 0 to {last}, their positions; correct it, "
            "or add it to `labels`."
        )

    def numbers(self, y):
        """Return the class indices, int32 (N,), of numeric labels (N,)."""
        values, places, inverse = np.unique(y, return_index=True, return_inverse=True)
        found = np.empty(len(values), "int32")
        for at in np.argsort(places):
            what = f"The label {values[at]:g} at position {places[at]}"
            found[at] = self.number(values[at], what)
        return found[inverse.reshape(-1)]

    def in_graph(self, y):
        """Return class indices of a label tensor (N,), with an assertion in the graph."""
        y = tf.cast(y, tf.float64)
        values, numbers = zip(*sorted(self._readable.items())) if self._readable else ((), ())
        values = tf.constant(values, tf.float64, shape=(1, len(values)))
        match = tf.abs(y[:, None] - values) < _CLOSE
        is_known = tf.reduce_any(match, axis=-1)
        some = next(iter(self._ambiguous or {0.5: 0}))
        message = f"A label {self._problem(some)} Invalid labels in the dataset:"
        with tf.control_dependencies(
            [tf.debugging.Assert(tf.reduce_all(is_known), [message, tf.boolean_mask(y, ~is_known)])]
        ):
            numbers = tf.constant([*numbers, 0], tf.int32)  # Never empty, by the extra 0.
            return tf.gather(numbers, tf.argmax(tf.pad(match, [[0, 0], [0, 1]]), axis=-1))

    def named(self, value):
        """Return the index of the class named by a number, or `None`."""
        return self._named.get(_rounded(value)) if isinstance(value, (int, float)) else None

    def of_flags(self):
        """Return the class indices of False and True, or `None` if these are not the names."""
        names = [name.lower() for name in self.names]
        return [names.index(n) for n in ("false", "true")] if set(names) == set(_FLAGS) else None


def check_positions(names, y):
    """Check labels of preprocessed arrays, where numbers are positions.

    Tensors are not checked, because preprocessors return positions as tensors.

    Raises:
        ValueError: if all labels are class names, any of them that of another position.
    """
    numbers = class_numbers(names)
    if numbers is None or keras.ops.is_tensor(y) or hasattr(y, "numpy"):
        return
    values = np.unique(np.asarray(y))
    if values.dtype.kind not in "iuf" or not len(values):
        return
    named = [numbers.named(value) for value in values.tolist()]
    if None not in named and named != values.tolist():
        value, number = next(pair for pair in zip(values.tolist(), named) if pair[0] != pair[1])
        raise ValueError(
            f"The label {value:g} is the name of the class at position {number}, but with ready "
            f"arrays numbers are positions in {', '.join(map(repr, names))}. Train on texts, whose "
            "labels are read as names, or pass the tensor y that the preprocessor returns."
        )


def class_numbers(names):
    """Return a `ClassNumbers`, or `None` if no name is a number."""
    return _class_numbers(tuple(names))


@functools.lru_cache(maxsize=64)
def _class_numbers(names):
    is_number = any(_value(name) is not None for name in names)
    return ClassNumbers(list(names)) if is_number else None


def _value(name):
    """Return the number that a name spells, or `None`."""
    name = name.strip()
    return _rounded(name) if _NUMBER.fullmatch(name) else _FLAGS.get(name.lower())


def _rounded(value):
    return round(float(value), 6)
