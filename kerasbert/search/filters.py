"""Conditions on metadata, in the form of Chroma's `where`."""

from __future__ import annotations

import itertools
import json
import operator
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.base.errors import did_you_mean
from kerasbert.base.strict_json import to_json
from kerasbert.search.metadata import check_key, check_value
from kerasbert.search.values import is_number, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

ORDERS = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_OPERATORS = ("$eq", "$ne", *ORDERS, "$in", "$nin", "$contains")
# Types of values in an exported index, and operators of single values.
TYPES = ("string", "number", "bool")
OPERATORS = ("$eq", "$ne", *ORDERS, "$contains")
_MOST_CLAUSES = 256
_JOINS = ("$and", "$or")
_DEEPEST = 50  # Maximum depth of nested conditions.


def check_where(where):
    """Return a checked condition on metadata; `{}` becomes `None`.

    A condition is a dict. `{"lang": "ko", "year": {"$gte": 2020, "$lt": 2025}}` requires all its
    parts; `{"$or": [condition, ...]}` requires one of a list, and `{"$and": [...]}` all of them.
    The operators take these values:

    - `$eq`, `$ne`: a string, number or bool. `$eq` is the default.
    - `$gt`, `$gte`, `$lt`, `$lte`: a number, or a string. Strings are compared by characters, as
    fits dates in ISO form.
    - `$in`, `$nin`: a list of values, one or none of which the metadata must equal.
    - `$contains`: a value that must be in the metadata's list.

    Values of different types differ: 1 is 1.0, but neither "1" nor True. Texts without the key
    satisfy only `$ne` and `$nin`.

    Raises:
        ValueError: if an operator is unknown, or has a value of the wrong type.

    >>> check_where({"year": {"$gte": 2020}})
    {'$and': [('year', '$gte', 2020)]}
    """
    is_none = where is None or isinstance(where, dict) and not where
    return None if is_none else _parsed(where, 0)


def _parsed(where, depth):
    if depth > _DEEPEST:
        raise ValueError(f"where is nested more than {_DEEPEST} levels deep; simplify it.")
    if not isinstance(where, dict) or not where:
        raise ValueError(
            f"where must be a dict of conditions, such as {{'year': {{'$gte': 2020}}}}, got "
            f"{where!r:.50}."
        )
    parts = []
    for key, value in where.items():
        if key in _JOINS:
            if not isinstance(value, (list, tuple)) or not value:
                raise ValueError(f"{key} in where must be a list of conditions, got {value!r:.50}.")
            parts.append({key: [_parsed(one, depth + 1) for one in value]})
            continue
        if isinstance(key, str) and key.startswith("$"):
            known = ", ".join(_JOINS)
            raise ValueError(
                f"where has {key!r:.50} in the place of a key"
                + did_you_mean(key, _JOINS, f"; use {known} or a key of the metadata.")
            )
        check_key(key, "where")
        conditions = value if isinstance(value, dict) else {"$eq": value}
        if not conditions:
            raise ValueError(f"where[{key!r}] is empty; use one of {', '.join(_OPERATORS)}.")
        parts += [(key, *_condition(key, *pair)) for pair in conditions.items()]
    return {"$and": parts}


def _condition(key, name, value):
    if name not in _OPERATORS:
        known = f"; use one of {', '.join(_OPERATORS)}."
        raise ValueError(
            f"where[{key!r}] has the unknown operator {name!r:.50}"
            + did_you_mean(name, _OPERATORS, known)
        )
    where = f"where[{key!r}][{name!r}]"
    if name in ("$in", "$nin"):
        return name, [check_value(one, where) for one in listed(value, where, " of values")]
    value = check_value(value, where)
    if name in ORDERS and isinstance(value, bool):
        raise ValueError(f"{where} must be a number or a string, got {value!r}.")
    return name, value


def where_inputs(wheres: Iterable[Mapping[str, Any] | None]) -> dict[str, list[Any]]:
    """Convert filters to inputs of an exported index's signature `search_where`.

    Each filter becomes a row of conditions. Of those with the same `where_clause`, at least one
    must be true. `where_operator` is one of `OPERATORS`, or "" for no condition.

    Args:
        wheres: list of Q filters, as for `search`, or `None` for no filter.

    Returns:
        A dict of lists (Q, C) of ints (`where_clause`) and strings (`where_key`, `where_operator`,
        `where_type`, `where_value`).

    Raises:
        ValueError: if a filter is invalid, or needs more than 256 clauses.

    >>> where_inputs([{"year": {"$gte": 2020}, "lang": {"$in": ["ko", "ja"]}}])["where_clause"]
    [[0, 1, 1]]
    """
    rows = []
    for where in wheres:
        where = check_where(where)
        clauses = [] if where is None else _clauses(where)
        rows.append([(i, *one) for i, clause in enumerate(clauses) for one in clause])
    most = max(1, *map(len, rows)) if rows else 1
    rows = [row + [(0, "", "", "string", "")] * (most - len(row)) for row in rows]
    names = ("clause", "key", "operator", "type", "value")
    return {
        f"where_{name}": [[one[place] for one in row] for row in rows]
        for place, name in enumerate(names)
    }


def wheres_of(inputs):
    """Convert the result of `where_inputs` to equivalent filters."""
    wheres = []
    for row in zip(*inputs.values()):
        clauses = {}
        for clause, key, name, kind, value in zip(*row):
            if name:
                value = value if kind == "string" else json.loads(value)
                # Metadata have no empty key, so this is never true.
                one = {key: {name: value}} if key else {" ": {"$in": []}}
                clauses.setdefault(clause, []).append(one)
        wheres.append({"$and": [{"$or": some} for some in clauses.values()]} if clauses else None)
    return wheres


def _clauses(where):
    """Return a checked filter as clauses, in conjunctive normal form."""
    if isinstance(where, tuple):
        key, name, value = where
        if name == "$in":
            return [[_atom(key, "$eq", one) for one in value] or [_atom("", "$eq", "")]]
        if name == "$nin":
            return [[_atom(key, "$ne", one)] for one in value]
        return [[_atom(key, name, value)]]
    ((join, parts),) = where.items()
    parts = [_clauses(part) for part in parts]
    if join == "$and":
        found = list(itertools.chain.from_iterable(parts))
    else:
        found = itertools.islice(itertools.product(*parts), _MOST_CLAUSES + 1)
        found = [list(itertools.chain.from_iterable(some)) for some in found]
    if len(found) > _MOST_CLAUSES:
        raise ValueError(
            f"where needs more than {_MOST_CLAUSES} clauses in an exported index; simplify its $or."
        )
    return found


def _atom(key, name, value):
    kind = _type(value)
    kind = "string" if kind == "str" else kind
    return key, name, kind, value if isinstance(value, str) else to_json(value)


def matches(where, metadata, count):
    """Return which of the first `count` rows satisfy a condition: bool (count,).

    Args:
        where: as returned by `check_where`.
        metadata: `MetadataColumn`.
        count: int.
    """
    if isinstance(where, tuple):
        key, name, value = where
        codes, values = metadata.codes(key, count)
        is_missing_true = name in ("$ne", "$nin")
        table = np.array([_holds(name, value, one) for one in values] + [is_missing_true], bool)
        return table[codes]  # Missing keys select the last entry by -1.
    ((join, parts),) = where.items()
    found = [matches(part, metadata, count) for part in parts]
    return (np.logical_and if join == "$and" else np.logical_or).reduce(found)


def _holds(name, value, found):
    match name:
        case "$eq" | "$in":
            return any(_is_equal(one, found) for one in (value if name == "$in" else [value]))
        case "$ne" | "$nin":
            return not _holds("$eq" if name == "$ne" else "$in", value, found)
        case "$contains":
            return isinstance(found, list) and any(_is_equal(value, one) for one in found)
    return _type(value) == _type(found) and ORDERS[name](found, value)


def _is_equal(one, other):
    return _type(one) == _type(other) and one == other


def _type(value):
    return "number" if is_number(value) else type(value).__name__
