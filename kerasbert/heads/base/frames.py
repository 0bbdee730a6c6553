"""Tables in memory: data frames, PyArrow tables and data of the `datasets` library."""

import os

from kerasbert.base.errors import first_line, how_to_install
from kerasbert.heads.base.file_readers import Table, table_of_rows
from kerasbert.text.columns import columns_of, items, plain


def table_of(frame, name):
    """Convert a table in memory to a `Table`.

    Args:
        frame: a data frame of pandas or polars, a PyArrow table, a `datasets.Dataset`, or a dict of
            name to a list of values.
        name: its name in error messages.

    Raises:
        ValueError: if it is anything else, has no rows, or has columns of different lengths.

    >>> table_of({"text": ["a", "b"], "label": [1.0, float("nan")]}, "train").columns
    {'text': ['a', 'b'], 'label': [1.0, None]}
    """
    source = f"{name!r} ({type(frame).__name__})"
    found = columns_of(frame)
    if found is None:
        raise ValueError(
            f"{source} is not a table; pass the path of a file, a data frame of pandas or polars, "
            "a PyArrow table, a datasets.Dataset or a dict of columns."
        )
    if any(hasattr(column, "column_names") for column in found.values()):
        splits = ", ".join(map(repr, found))
        raise ValueError(f"{source} has several splits ({splits}); pass one of them.")
    if hasattr(frame, "features"):  # `datasets`
        table = table_of_dataset(frame, source)
    else:
        columns = {str(name): list(map(plain, items(x))) for name, x in found.items()}
        sizes = {name: len(values) for name, values in columns.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"The columns of {source} differ in length: {sizes}.")
        for name, values in list(columns.items()):
            if any(isinstance(value, dict) for value in values):
                columns |= table_of_rows([{name: value} for value in values], source).columns
        table = Table(columns, source, list(range(1, max(sizes.values(), default=0) + 1)), "row")
    if not len(table):
        raise ValueError(f"{source} has no rows.")
    return table


def is_path(data):
    """Return whether data are given as a path, and not as a table in memory."""
    return isinstance(data, (str, bytes, os.PathLike))


def from_datasets(dataset, split, name, page):
    """Read a split with the `datasets` library into a `Table`.

    Args:
        dataset: tuple of arguments of `datasets.load_dataset`; a dict at the end holds keyword
            arguments.
        split: name of the split in the library.
        name: string. The task, for error messages.
        page: string. Page from which else to get the files, for error messages.

    Raises:
        ValueError: if the library is missing or cannot load the data; the message names the page.
    """
    way_out = f"get the files from {page} and pass their folder"
    try:
        import datasets
    except ImportError:
        raise ValueError(
            f"The data of '{name}' are missing: {way_out}, or run {how_to_install('data')}."
        ) from None
    named = dataset[-1] if isinstance(dataset[-1], dict) else {}
    try:
        loaded = datasets.load_dataset(*dataset[: len(dataset) - bool(named)], split=split, **named)
    except Exception as error:  # The library raises many types.
        raise ValueError(
            f"The datasets library cannot get '{dataset[0]}' ({first_line(error)}); {way_out}."
        ) from error
    return table_of_dataset(loaded, f"the {split} split of {dataset[0]}")


def table_of_dataset(loaded, source):
    """Convert a `datasets.Dataset` to a `Table`, with class names instead of numbers."""
    columns = {}
    for name in loaded.column_names:
        values, feature = [plain(value) for value in loaded[name]], loaded.features[name]
        names = getattr(feature, "names", None) or getattr(
            getattr(feature, "feature", None), "names", None
        )
        columns[name] = [_named(value, names) for value in values] if names else values
        for key in dict.fromkeys(key for v in values if isinstance(v, dict) for key in v):
            columns[f"{name}.{key}"] = [None if v is None else v.get(key) for v in values]
    return Table(columns, source, list(range(1, len(loaded) + 1)), "row")


def _named(value, names):
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None
