"""Readers for spans and choices exported from annotation tools (Label Studio, doccano)."""

import ast
import json
import warnings

from kerasbert.base.errors import is_whole

_STARTS = ("start", "start_offset", "begin")
_ENDS = ("end", "end_offset")
_TYPES = ("label", "labels", "type", "tag", "entity_group", "entity")


def flat_annotations(rows, source):
    """Flatten a Label Studio export: one row per task, with its data and columns of labels.

    A label column is named by its tag in the labeling interface; an only one is also copied to
    "label". Other rows are returned unchanged.

    Args:
        rows: list of dicts.
        source: file name, for warnings.
    """
    key = next((x for x in ("annotations", "completions") if x in rows[0]), None)
    if key is None or not all(isinstance(row.get("data"), dict) and key in row for row in rows):
        return rows
    found, several = [], 0
    for row in rows:
        given = [x for x in row[key] or () if not x.get("was_cancelled")]
        several += len(given) > 1
        own = {} if row.get("id") is None else {"id": row["id"]}
        labels = _labels_by_tag(given[0].get("result") or ()) if given else {}
        found.append(({**own, **row["data"]}, labels, bool(given)))
    if several:
        warnings.warn(
            f"{several} of the {len(rows)} tasks of {source} have several annotations; only the "
            "first one of each is used.",
            stacklevel=2,
        )
    tags = list(dict.fromkeys(tag for _, labels, _ in found for tag in labels))
    result = []
    for data, labels, is_labeled in found:
        # An annotated task without spans or choices gets an empty list, one that was not annotated
        # `None`.
        own = {tag: labels.get(tag, [] if is_labeled else None) for tag in tags}
        if len(tags) == 1:
            own["label"] = own[tags[0]]
        result.append({**data, **own})
    return result


def _labels_by_tag(results):
    """Return an annotation's labels as a dict of tag to list of labels."""
    found = {}
    for result in results:
        value, tag = result.get("value") or {}, result.get("from_name", "label")
        if "start" in value and isinstance(value.get("labels"), list):
            for label in value["labels"]:
                found.setdefault(tag, []).append([value["start"], value["end"], label])
        elif "choices" in value:
            found.setdefault(tag, []).extend(value["choices"])
        elif number := [value[x] for x in ("rating", "number") if x in value]:
            found[tag] = number[0]
    return found


def as_lists(values):
    """Parse the cells of a column that contain lists as text.

    Returns:
        List of the same length; unchanged if any non-empty text is not a list.

    >>> as_lists(["['a', 'b']", "[]", ""])
    [['a', 'b'], [], '']
    """
    # Label Studio writes several choices as JSON, but a single one as plain text.
    values = [_loads(x) if isinstance(x, str) and x.startswith('{"choices"') else x for x in values]
    values = [x["choices"] if isinstance(x, dict) and set(x) == {"choices"} else x for x in values]
    texts = [x for x in values if isinstance(x, str) and x.strip()]
    if not texts or not all(x.strip().startswith("[") for x in texts):
        return values
    parsed = [_list_in(x) if isinstance(x, str) and x.strip() else x for x in values]
    return values if any(x is _NO_LIST for x in parsed) else parsed


_NO_LIST = object()


def _list_in(text):
    found = _loads(text.strip())
    return found if isinstance(found, list) else _NO_LIST


def _loads(text):
    """Parse JSON or a Python literal (by pandas); return other text unchanged."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text


def spans_in(value):
    """Convert an annotation to sorted spans `(start, end, type)`; `None` for others.

    >>> spans_in([[0, 3, "PER"], {"start": 7, "end": 11, "labels": ["LOC"]}])
    [(0, 3, 'PER'), (7, 11, 'LOC')]
    """
    if not isinstance(value, list):
        return None
    found = []
    for span in value:
        if isinstance(span, dict):
            start, end, label = (
                next((span[x] for x in names if x in span), None)
                for names in (_STARTS, _ENDS, _TYPES)
            )
            labels = label if isinstance(label, list) else [label]
        elif isinstance(span, (list, tuple)) and len(span) == 3:
            start, end, label = span
            labels = [label]
        else:
            return None
        if not (is_whole(start) and is_whole(end) and all(isinstance(x, str) for x in labels)):
            return None
        found += [(start, end, label) for label in labels]
    return sorted(found)
