"""Filters of a served index: conditions on metadata in graphs.

Distinct values are sorted, so that a condition selects one range of values, and one slice of an
array of rows.

N rows, Q queries, C conditions per query, V distinct values, S distinct strings.
"""

import json

import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.heads.base.requests import asserted
from kerasbert.heads.base.served import spec
from kerasbert.search.filters import OPERATORS, ORDERS, TYPES
from kerasbert.search.values import is_number

# Inputs of a request, each (Q, C).
INPUTS = {
    "where_clause": spec("where_clause", 2, "int32"),
    **{
        name: spec(name, 2) for name in ("where_key", "where_operator", "where_type", "where_value")
    },
}
_NUMBER = r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?"
_WHOLE = r"[-+]?\d+"
_LIST = len(TYPES)  # Added to the type of a value that is in a list.


def value_arrays(metadata):
    """Return the arrays for filters as a dict.

    Args:
        metadata: list of N JSON objects.

    Returns:
        `where_keys` and `where_strings` (sorted byte strings), `where_numbers` (sorted float64) and
        `where_rests` (int64, what rounding to float64 removed from each number), `where_codes`
        int64 (V,), which combine key, type and rank of each value, `where_starts` int64 (V + 1,)
        and `where_rows` int32: the rows of value v are
        `where_rows[where_starts[v]:where_starts[v + 1]]`.
    """
    found = {}
    for row, text in enumerate(metadata):
        for key, value in json.loads(text).items():
            is_list = isinstance(value, list)
            for one in value if is_list else [value]:
                kind = _type(one) + _LIST * is_list
                one = one.encode("utf-8", "replace") if isinstance(one, str) else one
                found.setdefault((key.encode("utf-8", "replace"), kind, one), set()).add(row)
    keys = sorted({key for key, *_ in found})
    strings = sorted({one for *_, one in found if isinstance(one, bytes)})
    numbers = sorted({one for *_, one in found if is_number(one)}) or [0]
    places = [{one: i for i, one in enumerate(x)} for x in (keys, strings, numbers)]
    ranks = {0: places[1].__getitem__, 1: places[2].__getitem__, 2: int}
    rows_of = {1 << 62: set()}  # Beyond all codes, so that the arrays are not empty.
    for (key, kind, one), rows in found.items():
        code = _code(places[0][key], kind, ranks[kind % _LIST](one))
        rows_of.setdefault(code, set()).update(rows)
    codes = sorted(rows_of)
    rows = [sorted(rows_of[code]) for code in codes]
    return {
        "where_keys": keys,
        "where_strings": strings,
        "where_numbers": np.array(numbers, "float64"),
        "where_rests": np.array([int(one - int(float(one))) for one in numbers], "int64"),
        "where_codes": np.array(codes, "int64"),
        "where_starts": np.cumsum([0, *map(len, rows)], dtype="int64"),
        "where_rows": np.array([row for some in rows for row in some], "int32"),
    }


def _type(value):
    return 0 if isinstance(value, str) else 2 if isinstance(value, bool) else 1


def _code(key, kind, rank):
    """Combine the numbers of key and type with a rank; also for tensors."""
    return (key * (2 * _LIST) + kind) * (1 << 40) + rank


class ServedFilters:
    """Finds the rows that satisfy conditions.

    Args:
        read: function of a name that returns an array of `value_arrays` as a tensor.
        sizes: dict of name to the length of these arrays.
        rows: int. N.
    """

    def __init__(self, read, sizes, rows):
        self._read, self._sizes, self._rows = read, sizes, rows

    def allowed(self, where_clause, where_key, where_operator, where_type, where_value):
        """Return the rows that satisfy the conditions of each query: bool (Q, N)."""
        columns = where_clause, where_key, where_operator, where_type, where_value
        with tf.control_dependencies(asserted(_conditions(*columns))):
            columns = [tf.identity(x) for x in columns]
        # One query at a time, for large masks (C, N).
        return tf.map_fn(
            lambda row: self._of_query(*row),
            tuple(columns),
            fn_output_signature=tf.TensorSpec((self._rows,), tf.bool),
            parallel_iterations=1,
        )

    def _of_query(self, clause, key, operator, kind, value):
        is_used, count = operator != "", tf.size(clause)
        low, high = self._ranges(key, operator, kind, value)
        high = tf.where(is_used, tf.maximum(low, high), low)
        starts = self._read("where_starts")
        rows = tf.ragged.range(tf.gather(starts, low), tf.gather(starts, high))
        size = tf.constant(self._rows, tf.int64)
        places = tf.cast(tf.gather(self._read("where_rows"), rows.values), tf.int64)
        places += rows.value_rowids() * size
        shape = [tf.cast(count, tf.int64) * size]
        masks = tf.scatter_nd(places[:, None], tf.ones_like(places, tf.int32), shape) > 0
        masks = tf.reshape(masks, [count, self._rows])
        masks ^= (operator == "$ne")[:, None]
        # Conditions of a clause are alternatives.
        either = tf.math.unsorted_segment_max(
            tf.cast(masks & is_used[:, None], tf.int32), clause, count
        )
        is_clause = tf.math.unsorted_segment_max(tf.cast(is_used, tf.int32), clause, count) > 0
        return tf.reduce_all((either > 0) | ~is_clause[:, None], axis=0)

    def _ranges(self, key, operator, kind, value):
        """Return each condition's range of values: `(first, after last)`, (C,)."""
        types = [kind == name for name in TYPES]
        ranks = [
            self._string_ranks(value),
            self._number_ranks(tf.where(types[1], value, "0")),
            [tf.cast(value == "true", tf.int64) + i for i in (0, 1)],
        ]
        left, right = (sum(tf.where(one, x[i], 0) for one, x in zip(types, ranks)) for i in (0, 1))
        low = tf.where(operator == "$gt", right, left)
        low = tf.where((operator == "$lt") | (operator == "$lte"), tf.zeros_like(low), low)
        high = tf.where(operator == "$lt", left, right)
        most = tf.constant((1 << 40) - 1, tf.int64)
        high = tf.where((operator == "$gt") | (operator == "$gte"), most, high)
        kinds = tf.cast(tf.argmax(tf.stack(types), axis=0), tf.int64)
        kinds += _LIST * tf.cast(operator == "$contains", tf.int64)
        same = key[:, None] == self._read("where_keys")  # (C, keys)
        place = tf.reduce_sum(
            tf.cast(same, tf.int64) * tf.range(tf.shape(same)[1], dtype=tf.int64), 1
        )
        is_known = tf.reduce_any(same, axis=1)
        codes = self._read("where_codes")
        low, high = (tf.searchsorted(codes, _code(place, kinds, x)) for x in (low, high))
        return tf.where(is_known, low, 0), tf.where(is_known, high, 0)

    def _number_ranks(self, value):
        numbers, rests = self._read("where_numbers"), self._read("where_rests")
        number, rest = _number_and_rest(value)

        def compared(place):
            one, others = tf.gather(numbers, place), tf.gather(rests, place)
            is_same = one == number
            return (one < number) | is_same & (others < rest), is_same & (others == rest)

        return _ranks(compared, self._sizes["where_numbers"], value)

    def _string_ranks(self, value):
        strings = self._read("where_strings")

        def compared(place):
            one = tf.gather(strings, place)
            return _is_less(one, value), one == value

        return _ranks(compared, self._sizes["where_strings"], value)


def _ranks(compared, size, value):
    """Return how many of `size` sorted entries are below each value (C,), and how many up to it.

    `compared(places)` returns whether the entries at places (C,) are below the values, and whether
    they are equal.
    """
    low = tf.zeros_like(value, tf.int64)
    if not size:
        return [low, low]
    high = tf.fill(tf.shape(value), tf.constant(size, tf.int64))
    for _ in range(size.bit_length()):
        middle = (low + high) // 2
        is_open = low < high
        is_less, _ = compared(tf.minimum(middle, size - 1))
        low = tf.where(is_open & is_less, middle + 1, low)
        high = tf.where(is_open & ~is_less, middle, high)
    _, is_equal = compared(tf.minimum(low, size - 1))
    return [low, low + tf.cast(is_equal & (low < size), tf.int64)]


def _number_and_rest(value):
    """Return numbers (C,) rounded to float64, and what rounding removed from whole ones: int64."""
    number = tf.strings.to_number(value, tf.float64)
    is_whole = tf.strings.regex_full_match(value, _WHOLE)
    whole = tf.strings.to_number(tf.where(is_whole, value, "0"), tf.int64)
    # Numbers next to 2**63 are rounded to it, but int64 ends before it.
    is_most = number >= 2.0**63
    rounded = tf.cast(tf.where(is_whole & ~is_most, number, 0), tf.int64)
    rest = tf.where(is_most, whole - tf.int64.max - 1, whole - rounded)
    return number, tf.where(is_whole, rest, 0)


def _is_less(left, right):
    """Compare strings (C,) by code points, as Python does."""
    left, right = (tf.strings.unicode_decode(x, "UTF-8") for x in (left, right))
    lengths = tf.concat([left.row_lengths(), right.row_lengths(), [0]], 0)
    shape = tf.stack([left.nrows(), tf.reduce_max(lengths) + 1])
    left, right = (x.to_tensor(-1, shape=shape) for x in (left, right))
    first = tf.argmax(tf.cast(left != right, tf.int32), axis=1)
    left, right = (tf.gather(x, first, batch_dims=1) for x in (left, right))
    return left < right


def _is_long(value):
    """Return which strings are whole numbers that do not fit into 64 bits."""
    digits = tf.strings.regex_replace(value, "^[-+]?0*", "")
    limit = tf.where(tf.strings.substr(value, 0, 1) == "-", str(2**63), str(2**63 - 1))
    count = tf.strings.length(digits)
    is_over = tf.reshape(
        _is_less(tf.reshape(limit, [-1]), tf.reshape(digits, [-1])), tf.shape(value)
    )
    is_whole = tf.strings.regex_full_match(value, _WHOLE)
    return is_whole & ((count > 19) | (count == 19) & is_over)


def _conditions(clause, key, operator, kind, value):
    """Return the conditions that a request must meet, for `asserted`."""

    def every(met):
        return tf.reduce_all(met | (operator == ""))

    def is_any(x, names):
        return tf.reduce_any([x == name for name in names], axis=0)

    is_number = tf.strings.regex_full_match(value, _NUMBER) | (kind != "number")
    is_long = _is_long(value) & (kind == "number")
    is_bool = is_any(value, ("true", "false")) | (kind != "bool")
    count = tf.shape(clause)[1]
    return [
        (
            f"where_operator must be one of {', '.join(OPERATORS)}, or '' for no condition; got",
            every(is_any(operator, OPERATORS)),
            [operator],
        ),
        (f"where_type must be one of {', '.join(TYPES)}; got", every(is_any(kind, TYPES)), [kind]),
        (
            "where_value must be a number for the type number, and true or false for bool; got",
            every(is_number & is_bool),
            [value],
        ),
        ("Whole numbers in where_value must fit into 64 bits; got", every(~is_long), [value]),
        (
            f"{', '.join(ORDERS)} do not compare bools; got the types",
            every(~(is_any(operator, ORDERS) & (kind == "bool"))),
            [kind],
        ),
        (
            "where_clause must be from 0 to the number of conditions - 1; got",
            tf.reduce_all((clause >= 0) & (clause < count)),
            [clause],
        ),
    ]
