"""Reader of treebanks: Universal Dependencies in CoNLL-U."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kerasbert.data.text_files import read_text
from kerasbert.data.trees import DependencyTree

if TYPE_CHECKING:
    from kerasbert.base.aliases import AnyPath

COLUMNS = 10
ID, FORM, TAG, HEAD, RELATION = 0, 1, 3, 6, 7
NAME = "# sent_id ="
NO_WORD = re.compile("[0-9]+[-.][0-9]+")


def read_conllu(path: AnyPath, encoding: str | None = None) -> list[DependencyTree]:
    """Read the trees of a CoNLL-U file.

    Args:
        path: the file, optionally compressed (`.gz`).
        encoding: encoding of a file that is not UTF-8.

    Returns:
        List of `kerasbert.data.DependencyTree`. Multiword tokens (`1-2`) are read as their words;
        empty nodes (`1.1`), which are not in the text, are left out.

    Raises:
        ValueError: for an invalid line of a word, or for a sentence that is not a tree; the message
            has the line.

    Source: https://universaldependencies.org/format.html
    """
    trees, rows, name, start = [], [], "", 1
    for number, line in enumerate([*read_text(path, encoding).split("\n"), ""], start=1):
        if line.startswith("#"):
            name = line[len(NAME) :].strip() if line.startswith(NAME) else name
        elif line.strip():
            start = start if rows else number
            rows += _word(line.split("\t"), f"Line {number} of '{path}'")
        elif rows:
            trees.append(_tree(rows, name, f"The sentence on line {start} of '{path}'"))
            rows, name = [], ""
    if not trees:
        raise ValueError(f"'{path}' has no words.")
    return trees


def _word(cells, place):
    """Return `[cells]` for a word, `[]` for a multiword token or an empty node."""
    if len(cells) != COLUMNS:
        raise ValueError(
            f"{place} has {len(cells)} columns; CoNLL-U has {COLUMNS}, separated by tabs."
        )
    number = cells[ID]
    if NO_WORD.fullmatch(number):
        return []
    for what, value in (("number", number), ("head", cells[HEAD])):
        if not (value.isascii() and value.isdigit()):
            raise ValueError(f"{place} has {value!r} for the {what} of its word; give a number.")
    return [cells]


def _tree(rows, name, place):
    numbers = [int(cells[ID]) for cells in rows]
    wrong = [i for i, number in enumerate(numbers) if number != i + 1]
    if wrong:
        shown = numbers[max(wrong[0] - 2, 0) : wrong[0] + 1]
        raise ValueError(f"{place} numbers its words {shown}; they must be 1, 2, 3, ...")
    try:
        return DependencyTree(
            words=[cells[FORM] for cells in rows],
            heads=[int(cells[HEAD]) for cells in rows],
            tags=[cells[TAG] for cells in rows],
            relations=[cells[RELATION] for cells in rows],
            id=name,
        )
    except ValueError as error:
        raise ValueError(f"{place} is not a tree: {error}") from None
