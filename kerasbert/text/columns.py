"""Columns and rows of tables in memory, whatever library they are from, as Python lists."""


def columns_of(x):
    """Return a dict or table as a dict of name to column, or `None` if `x` is anything else.

    Args:
        x: a dict, or a table of pandas, polars, pyarrow or `datasets`.

    Raises:
        ValueError: if two columns have the same name.

    >>> columns_of({"text": ["a"], "label": [1]}), columns_of(["a"])
    ({'text': ['a'], 'label': [1]}, None)
    """
    if isinstance(x, dict):
        return x
    if hasattr(x, "iloc") and hasattr(x, "columns"):
        names = list(x.columns)
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"The table has two columns named {twice!r}; rename or drop one.")
    elif hasattr(x, "get_columns"):  # polars
        names = list(x.columns)
    elif isinstance(getattr(x, "column_names", None), list):  # pyarrow, datasets
        names = x.column_names
    else:
        return None
    return {name: x[name] for name in names}


def rows_of(x):
    """Return the rows of a table as a list of dicts, or `None` if `x` is anything else.

    Missing values become `None`. A dict is not a table here, because it may be a single row.

    >>> import pandas
    >>> rows_of(pandas.DataFrame({"text": ["a"], "year": [2020]})), rows_of(["a"])
    ([{'text': 'a', 'year': 2020}], None)
    """
    table = None if isinstance(x, dict) else columns_of(x)
    if table is None:
        return None
    values = zip(*(map(plain, items(column)) for column in table.values()))
    return [dict(zip(table, row)) for row in values]


def items(column):
    """Return a list of the column's values, or a single text unchanged."""
    if isinstance(column, (str, bytes, list)):
        return column
    if hasattr(column, "__next__"):
        return list(column)
    if isinstance(column, (dict, set, frozenset)):
        has = "names, not rows" if isinstance(column, dict) else "no order"
        raise ValueError(
            f"Got {short(column)} as a column of texts, but it has {has}; pass a list of strings."
        )
    if hasattr(column, "numpy") and not hasattr(column, "tolist"):
        column = column.numpy()  # A TensorFlow tensor. A scalar string is converted to bytes.
    for method in ("tolist", "to_list", "to_pylist"):
        if hasattr(column, method):
            return getattr(column, method)()
    if isinstance(column, (str, bytes)):
        return column
    if hasattr(column, "__len__") and hasattr(column, "__getitem__"):
        return list(column)
    raise ValueError(
        f"{short(column)} is not text; pass a string, a list of strings, an array or a column."
    )


def plain(value):
    """Convert arrays at any depth to lists, and missing values to `None`."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    is_missing = value is None or type(value).__name__ in ("NAType", "NaTType") or value != value
    return None if is_missing else value


def short(value):
    text = repr(value)
    return f"{text if len(text) < 60 else text[:57] + '...'} ({type(value).__name__})"
