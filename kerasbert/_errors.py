"""Errors of other libraries, in short."""


def first_line(error):
    """The first line of what an error says, or its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
