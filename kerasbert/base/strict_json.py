"""Standard JSON, without the `NaN` and `Infinity` of Python's `json`."""

import json


def to_json(value, **settings):
    """Serialize a value as JSON, with null for numbers that are not finite.

    Args:
        value: any value that `json.dumps` accepts.
        **settings: arguments of `json.dumps`.

    >>> to_json({"loss": float("nan"), "steps": [1, float("-inf")]})
    '{"loss": null, "steps": [1, null]}'
    """
    try:
        return json.dumps(value, allow_nan=False, **settings)
    except ValueError:
        # Also for numbers from `default`.
        value = json.loads(json.dumps(value, **settings), parse_constant=lambda name: None)
        return json.dumps(value, allow_nan=False, **settings)
