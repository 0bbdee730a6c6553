"""Vocabularies: `vocab.txt`, `merges.txt`, and lists of tokens by id."""

import re

from kerasbert.base.errors import is_whole

# For ids without a token, at most as many as tokens, plus `SPARE`.
_NONE = "[no token {}]"
SPARE = 10_000


def read_vocabulary(path):
    """Read a `vocab.txt`, which has one token per line.

    Only line ends are removed, because a token may be a Unicode space.
    """
    lines = _lines_of(path)
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise ValueError(f"The vocabulary file '{path}' is empty; download it again.")
    return lines


def read_merges(path):
    """Read a `merges.txt`, which has one pair per line, the most frequent first."""
    return [line for line in _lines_of(path) if line and not line.startswith("#version")]


def _lines_of(path):
    """Return the lines of a file without Unix or Windows line ends."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"'{path}' is not UTF-8 (byte {error.start}); download it again."
        ) from None
    return [line[:-1] if line.endswith("\r") else line for line in lines]


def as_lines(tokens):
    """Return the content of a `vocab.txt` or a `merges.txt` with these tokens or merges."""
    return "".join(f"{token}\n" for token in tokens).encode()


def tokens_by_id(vocabulary):
    """Convert a dict of token to id to a list by id.

    Raises:
        ValueError: if an id is not a whole number from 0, occurs twice, or is so large that most
            ids would have no token.
    """
    return place_tokens([], vocabulary.items())


def place_tokens(tokens, more):
    """Insert pairs of token and id into a list of tokens by id.

    Tokens of the list keep their places.
    """
    tokens = list(tokens)
    known = set(tokens)
    more = [(token, id) for token, id in more if token not in known]
    limit = 2 * (len(tokens) + len(more)) + SPARE
    for token, id in more:
        if not is_whole(id) or not 0 <= id < limit:
            raise ValueError(
                f"The token {token!r} has the id {id!r}, expected one from 0 to {limit - 1} for "
                f"{len(tokens) + len(more)} tokens; download the file again."
            )
        tokens.extend(_NONE.format(i) for i in range(len(tokens), id + 1))
        if tokens[id] != _NONE.format(id):
            raise ValueError(
                f"The tokens {tokens[id]!r} and {token!r} share the id {id}, but each needs its "
                "own; download the file again."
            )
        tokens[id] = token
    return tokens


def token_ids(tokens):
    """Return a dict of token to id for a list of tokens.

    Raises:
        ValueError: if a token is not valid UTF-8, or occurs twice.

    >>> token_ids(["a", "b"])
    {'a': 0, 'b': 1}
    """
    try:
        "".join(tokens).encode()
    except (TypeError, UnicodeEncodeError):
        for id, token in enumerate(tokens):
            if not isinstance(token, str) or re.search("[\ud800-\udfff]", token):
                raise ValueError(
                    f"Token {id} of the vocabulary, {token!r}, must be a string without lone "
                    "surrogates."
                ) from None
        raise
    ids = {token: id for id, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        first = {}
        for id, token in enumerate(tokens):
            if first.setdefault(token, id) != id:
                raise ValueError(
                    f"The vocabulary has {token!r} twice, as ids {first[token]} and {id}; each "
                    "token must occur once."
                )
    return ids
