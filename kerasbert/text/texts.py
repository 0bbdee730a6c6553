"""Texts and labels from any container; errors have the row's number."""

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base.errors import is_whole
from kerasbert.text import ops
from kerasbert.text.columns import columns_of, items, short


def text_columns(x):
    """Read one text, a column of texts, or a pair of either.

    Args:
        x: a string; a list, array, generator, pandas column or tensor of strings; for pairs a tuple
            of two of these, a list of pairs, a table of two columns, or a dict of `text`, `text_b`.

    Returns:
        `(columns, batched)`: one or two lists of strings, and false for a single text.

    Raises:
        ValueError: if an input is not text, with its position.

    >>> text_columns((["Who?", "Where?"], ["Me.", "Here."]))
    ((['Who?', 'Where?'], ['Me.', 'Here.']), True)
    """
    if isinstance(x, dict):
        x = dict_columns(x)
    elif (table := columns_of(x)) is not None:
        x = _from_table(table)
    elif not isinstance(x, tuple):
        x = _from_list(x)
    if len(x) not in (1, 2):
        raise ValueError(
            f"Got a tuple of {len(x)} as text; pass one column or a tuple of two for pairs, and "
            "labels and weights as `y` and `sample_weight`."
        )
    columns = [items(column) for column in x]
    batched = isinstance(columns[0], list)
    if len(columns) == 2 and batched != isinstance(columns[1], list):
        raise ValueError("Got a pair of one text and one list; pass two texts or two lists.")
    columns = [column if batched else [column] for column in columns]
    for column, place in zip(columns, ("the first column", "the second column")):
        if not column:
            raise ValueError("The list of texts is empty; pass at least one text.")
        _check(column, f" of {place}" if len(columns) == 2 else "")
    if len(columns) == 2 and len(columns[0]) != len(columns[1]):
        raise ValueError(
            f"The columns of a pair have {len(columns[0])} and {len(columns[1])} texts; "
            "pass the same number in each."
        )
    return tuple(columns), batched


def word_rows(x):
    """Read lists of words.

    Args:
        x: a list, array, column or ragged string tensor (N, None). `[]` counts as a list of texts.

    Returns:
        List of N lists of strings, or `None` for anything else, such as texts.

    Raises:
        ValueError: if a word is not text, with its position.

    >>> word_rows([["Who", "?"], ["Me"]]), word_rows(["Who?"])
    ([['Who', '?'], ['Me']], None)
    """
    table = None if isinstance(x, dict) else columns_of(x)
    if table is not None and len(table) == 1:
        x = next(iter(table.values()))
    elif isinstance(x, (str, bytes, dict, tuple)) or table is not None:
        return None
    rows = x.to_list() if hasattr(x, "row_splits") else items(x)
    rows = [row.tolist() if hasattr(row, "tolist") else row for row in rows]
    if not rows or not any(isinstance(row, (list, tuple)) for row in rows):
        return None
    for position, row in enumerate(rows):
        if not isinstance(row, (list, tuple)):
            raise ValueError(
                f"The item at position {position} is {short(row)} among lists of words; pass "
                "lists of words only, or texts only."
            )
        _check(row, f" of the words at position {position}")
    return [[w.decode() if isinstance(w, bytes) else w for w in row] for row in rows]


def choice_columns(x, names=("prompt", "prompts", "choices")):
    """Read one prompt with its choices, or columns of both.

    Args:
        x: a tuple of prompts (a column, as in `text_columns`) and choices (a list of nonempty lists
            of strings), a list of such pairs, or a dict or table of `prompt` and `choices`. Empty
            strings at the end of an array's row are padding.
        names: strings. Words for prompt, prompts and choices, in dicts and errors.

    Returns:
        `((prompts, choices), batched)`: list of strings, list of lists of strings, and false for a
        single prompt.

    Raises:
        ValueError: if a prompt has no choices, or if an input is not text.

    >>> choice_columns(("Who?", ["Me.", "You."]))
    ((['Who?'], [['Me.', 'You.']]), False)
    """
    one, ones, many = names
    if (table := columns_of(x)) is not None:
        if set(table) != {one, many}:
            raise ValueError(
                f"A dict of {many} has the columns {sorted(map(str, table))}; name them '{one}' "
                f"and '{many}'."
            )
        x = (table[one], table[many])
    elif isinstance(x, list) and all(isinstance(p, (list, tuple)) and len(p) == 2 for p in x):
        x = ([prompt for prompt, _ in x], [choices for _, choices in x])
    if not isinstance(x, tuple) or len(x) != 2:
        raise ValueError(f"{short(x)} has no {many}; pass a tuple of {ones} and lists of {many}.")
    prompts, choices = items(x[0]), x[1]
    batched = isinstance(prompts, list)
    choices = _choices(choices) if batched else [choices]
    prompts = prompts if batched else [prompts]
    if not prompts:
        raise ValueError(f"The list of {ones} is empty; pass at least one {one}.")
    _check(prompts, f" of the {ones}")
    if len(prompts) != len(choices):
        raise ValueError(
            f"There are {len(prompts)} {ones} but {len(choices)} lists of {many}; pass one list "
            f"for each {one}."
        )
    for position, row in enumerate(choices):
        if isinstance(row, (str, bytes)) or not hasattr(row, "__len__"):
            raise ValueError(
                f"The {many} at position {position} are {short(row)}; pass a list of strings."
            )
        row = choices[position] = row if type(row) is list else items(row)
        if not row:
            raise ValueError(
                f"The {one} at position {position} has no {many}; give it at least one."
            )
        _check(row, f" of the {many} of the {one} at position {position}")
    return (prompts, choices), batched


def holds_lists(x):
    """Return whether the second column has lists of texts, such as choices.

    >>> holds_lists((["Who?"], [["Me.", "You."]])), holds_lists((["Who?"], ["Me."]))
    (True, False)
    """
    if (table := columns_of(x)) is not None:
        x = tuple(table.values())
    elif not isinstance(x, tuple):
        # Of a list of pairs, only the first is examined.
        x = next(iter(x), None) if isinstance(x, list) else None
    if not isinstance(x, (tuple, list)) or len(x) != 2:
        return False
    first, second = x
    if isinstance(second, (str, bytes)):
        return False
    if hasattr(second, "row_splits") or len(getattr(second, "shape", ())) == 2:
        return True
    if isinstance(first, (str, bytes)):
        return True
    first_row = next(iter(second), None) if hasattr(second, "__len__") else None
    return isinstance(first_row, (list, tuple, np.ndarray))


def _choices(choices):
    """Return a list of each prompt's choices, without padding."""
    for method in ("to_list", "to_pylist"):  # Ragged tensors, columns of lists.
        if hasattr(choices, method):
            return getattr(choices, method)()
    if hasattr(choices, "iloc"):
        choices = choices.to_numpy()
    rows = items(choices)
    if len(getattr(choices, "shape", ())) != 2:
        return list(rows) if isinstance(rows, list) else [rows]
    return [_without_padding(row) for row in rows]


def _without_padding(row):
    while row and row[-1] in ("", b""):
        row = row[:-1]
    return row


def label_rows(y, count, name="labels"):
    """Convert labels or weights to a list (N) of Python values or nested lists.

    Args:
        y: any column that `text_columns` reads; a table or dict of one column of values, or of
            several, whose rows are the values; or a `tf.data.Dataset` of labels or batches.
        count: int. N.
        name: name of the values in errors.

    Raises:
        ValueError: if the number of values is not N.
    """
    y = read_once(y)
    if keras.ops.is_tensor(y):
        y = keras.ops.convert_to_numpy(y)
    elif hasattr(y, "numpy"):  # A TensorFlow tensor on another backend.
        y = y.numpy()
    try:
        rows = items(y)
    except ValueError:
        rows = None
    if not isinstance(rows, list):
        raise ValueError(f"The {name} are {y!r}, for {count} texts; pass a list of {count}.")
    if len(rows) != count:
        raise ValueError(f"There are {count} texts but {len(rows)} {name}; pass one for each text.")
    return list(rows)


def read_once(y):
    """Return labels in a table, iterator or dataset as a list, and other labels unchanged."""
    if (table := columns_of(y)) is not None:
        columns = [read_once(column) for column in table.values()]
        columns = [items(column) for column in columns]
        if len(set(map(len, columns))) != 1:
            sizes = ", ".join(f"{name!r} {len(c)}" for name, c in zip(table, columns))
            raise ValueError(
                f"The columns of the labels differ in length ({sizes}); pass equal lengths."
            )
        return columns[0] if len(columns) == 1 else [list(row) for row in zip(*columns)]
    if hasattr(y, "element_spec"):
        is_batched = getattr(y.element_spec, "shape", [0])[:1] == [None]
        rows = (y.unbatch() if is_batched else y).as_numpy_iterator()
        return [row.tolist() if hasattr(row, "tolist") else row for row in rows]
    return items(y) if hasattr(y, "__next__") or hasattr(y, "to_pylist") else y


def label_list(labels):
    """Return class names in the order of their indices.

    Args:
        labels: list of names; or a dict of index to name or of name to index, from 0 on.

    Raises:
        ValueError: if a container has no order, or if the indices are not 0, 1, 2, ...

    >>> label_list({1: "spam", 0: "ham"}), label_list({"ham": 0, "spam": 1})
    (['ham', 'spam'], ['ham', 'spam'])
    """
    if labels is None:
        return None
    if isinstance(labels, str):
        raise ValueError(f"labels={labels!r} is one string; pass a list of names.")
    if isinstance(labels, (set, frozenset)):
        raise ValueError(f"labels={labels!r} is a set, which has no order; pass a list of names.")
    if not hasattr(labels, "__iter__"):
        raise ValueError(f"labels={labels!r} is not a list; pass a list of names.")
    if not isinstance(labels, dict):
        labels = list(labels)
        if None in labels:
            raise ValueError(f"labels[{labels.index(None)}] is None; give every class a name.")
        return [str(label) for label in labels]
    by_number = {}
    for key, value in labels.items():
        # JSON makes number keys strings.
        is_number = isinstance(key, str) and key.isdecimal() and isinstance(value, str)
        number, name = (key, value) if is_number or not isinstance(key, str) else (value, key)
        if isinstance(name, str) and (is_whole(number) or is_number):
            by_number[int(number)] = name
    if sorted(by_number) != list(range(len(labels))):
        raise ValueError(
            f"labels={labels!r} must have the numbers 0 to {len(labels) - 1}, one for each name; "
            "pass a list of names, or a dict such as {0: 'ham', 1: 'spam'}."
        )
    return [by_number[number] for number in range(len(labels))]


def number_rows(y, count, fits, wanted):
    """Convert numbers, or lists of one number, to a list (N) of numbers.

    Args:
        fits: function of a number: is the label valid.
        wanted: string. What to pass, for errors.

    Raises:
        ValueError: if a label is anything else, with its position.

    >>> number_rows([1.5, [2]], 2, np.isfinite, "finite numbers")
    [1.5, 2]
    """
    rows = label_rows(y, count)
    for position, value in enumerate(rows):
        if isinstance(value, list) and len(value) == 1:
            value = rows[position] = value[0]
        if not isinstance(value, (int, float, np.number)) or not fits(value):
            raise ValueError(f"The label at position {position} is {value!r}; pass {wanted}.")
    return rows


def numbers_in_graph(y, dtype, each):
    """Convert a label tensor (B,) or (B, 1) inside `tf.data` to (B,).

    `each` is the noun for an example in errors, such as "text".
    """
    y = tf.cast(y, dtype)
    if y.shape.rank == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.shape.rank not in (None, 1):
        raise ValueError(
            f"The dataset yields labels of shape {y.shape}; yield one number for each {each}."
        )
    return y


def assert_all(good, values, message):
    """Assert inside `tf.data` that all values are good; the error has the others."""
    tf.debugging.Assert(tf.reduce_all(good), [message, tf.boolean_mask(values, ~good)])


def weights(sample_weight, count):
    """Convert sample weights to a float32 array (N, ...)."""
    rows = label_rows(sample_weight, count, "sample weights")
    try:
        rows = np.asarray(rows, "float32")
    except (TypeError, ValueError) as error:
        raise ValueError(f"The sample weights are not numbers: {error}; pass floats.") from error
    if not np.isfinite(rows).all():
        place = np.argwhere(~np.isfinite(rows))[0]
        raise ValueError(
            f"The sample weight at position {place[0]} is {rows[tuple(place)]}; it must be finite."
        )
    return rows


def dict_columns(x):
    """Return the dict's `text` and any `text_b` as a tuple."""
    if "text" not in x or set(x) - {"text", "text_b"}:
        raise ValueError(
            f"A dict of texts has the columns {sorted(map(str, x))}; name them 'text' and, "
            "for pairs, 'text_b'."
        )
    return (x["text"], x["text_b"]) if "text_b" in x else (x["text"],)


def graph_columns(x):
    """Return a list of the one or two string tensors of a `tf.data` element.

    Raises:
        ValueError: for another number of columns, or columns that are not strings.
    """
    x = dict_columns(x) if isinstance(x, dict) else x if isinstance(x, (tuple, list)) else (x,)
    columns = [ops.convert_to_tensor(column) for column in x]
    if len(columns) not in (1, 2):
        raise ValueError(f"The dataset yields {len(columns)} columns of text; yield one or two.")
    for column in columns:
        if column.dtype != tf.string or column.shape.rank not in (0, 1):
            raise ValueError(
                f"The dataset yields {column.dtype.name} of shape {column.shape} as text; "
                "yield strings, single or in batches of rank 1."
            )
    return columns


def _from_table(table):
    if len(table) not in (1, 2):
        raise ValueError(
            f"The table has {len(table)} columns ({', '.join(map(str, table))}); select the one or "
            "two that hold the text, for example `table[['premise', 'hypothesis']]`."
        )
    for name in table if len(table) == 2 else ():
        if str(name).lower() in ("label", "labels"):
            raise ValueError(
                f"The table has the columns {' and '.join(map(repr, table))}; pass the text as x "
                f"and the column {name!r} as y."
            )
    return tuple(table.values())


def _from_list(x):
    x = items(x)
    if not isinstance(x, list) or not x or not isinstance(x[0], (list, tuple)):
        return (x,)
    for position, item in enumerate(x):
        if not isinstance(item, (list, tuple)) or len(item) != 2:
            raise ValueError(
                f"The item at position {position} is {short(item)} in a list of pairs; pass two "
                "strings there too."
            )
    return [a for a, _ in x], [b for _, b in x]


def _check(column, place):
    for position, text in enumerate(column):
        if type(text) is str:
            continue
        if not isinstance(text, (str, bytes)):
            raise ValueError(_not_text(text, f"position {position}{place}"))
        if isinstance(text, bytes):
            try:
                text.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"The bytes at position {position}{place} are not UTF-8 ({error}); "
                    "decode them with the encoding they are in."
                ) from error
    try:
        "".join(text for text in column if isinstance(text, str)).encode("utf-8")
    except UnicodeEncodeError:
        position = next(
            i
            for i, text in enumerate(column)
            if isinstance(text, str) and any("\ud800" <= char <= "\udfff" for char in text)
        )
        raise ValueError(
            f"The text at position {position}{place} has half of a surrogate pair, which UTF-8 "
            "cannot encode; read it again with its encoding, or drop that character."
        ) from None


def _not_text(value, place):
    if value is None:
        return f"The text at {place} is None; drop the row or put an empty string there."
    is_number = isinstance(value, (float, np.floating))
    if type(value).__name__ == "NAType" or (is_number and value != value):
        return f"The text at {place} is missing (NaN); use `dropna()` or `fillna('')` on the table."
    return f"The text at {place} is {short(value)}, not text; pass a string there."
