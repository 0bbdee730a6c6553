"""JSON as its standard has it: without NaN and infinity, which Python would write."""

import json


def to_json(value, **settings):
    """A value as JSON; numbers that are not finite are null.

    Args:
        value: any that `json.dumps` takes.
        **settings: of `json.dumps`.

    >>> to_json({"loss": float("nan"), "steps": [1, float("-inf")]})
    '{"loss": null, "steps": [1, null]}'
    """
    try:
        return json.dumps(value, allow_nan=False, **settings)
    except ValueError:
        # Through Python's own JSON: `default` may have made such numbers, too.
        value = json.loads(json.dumps(value, **settings), parse_constant=lambda name: None)
        return json.dumps(value, allow_nan=False, **settings)
