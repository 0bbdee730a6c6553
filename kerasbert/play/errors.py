"""Errors of the playground that its page explains in the reader's language."""

from kerasbert.base.errors import first_line


class RequestError(ValueError):
    """An invalid request.

    Args:
        message: string. What is wrong, for programs that send requests.
        key: string. The page's text for it, `error_<key>` in `page/strings.js`.
        values: the values of that text, by name. `field` is the name of a request's field.
    """

    def __init__(self, message, key, **values):
        super().__init__(message)
        self.key, self.values = key, values


class BusyError(RequestError):
    """A model has the maximum number of waiting requests."""


def refusal(error):
    """Return an error, or a sentence, as data for the page."""
    found = {"error": first_line(error)}
    if isinstance(error, RequestError):
        found |= {"key": error.key, "values": error.values}
    return found
