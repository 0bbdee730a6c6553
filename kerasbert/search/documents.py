"""Reading of documents, and their division into passages."""

import dataclasses
import os
import re
import warnings

from kerasbert.base.errors import reading
from kerasbert.base.paths import as_path, is_url
from kerasbert.base.storage import find
from kerasbert.data.corpus_files import Reading, files_of
from kerasbert.data.tables import find_name, records
from kerasbert.data.text_files import ending_of, text_chunks
from kerasbert.search.metadata import checked
from kerasbert.search.passages import DEFAULT_TOKENS
from kerasbert.search.values import is_id, listed, listed_rows

# Metadata of passages: document id, title, and place in the text.
DOCUMENT, TITLE, PLACE = "document", "title", ("start", "end")
_MARKDOWN = (".md", ".markdown")
_HEADING = re.compile(r"^ {0,3}# +(.*\S)", re.MULTILINE)
_IDS = ("id", "_id")


def read_documents(files, texts, text, encoding, free):
    """Read documents from files and from memory.

    Args:
        files, texts, text, encoding: as for `add_documents`.
        free: function that returns the next unused id.

    Returns:
        A list of `(id, text, metadata)`; the text may be blank.
    """
    if files is None and texts is None:
        raise ValueError("Pass files or texts.")
    found = [] if files is None else list(_in_files(files, text, encoding))
    rows = [] if texts is None else listed_rows(texts, "texts", " of documents")
    for place, one in enumerate(rows):
        where = f"texts[{place}]"
        if not isinstance(one, (str, dict)):
            raise ValueError(f"{where} must be a string or a dict, got {one!r:.50}.")
        row = {text: one} if isinstance(one, str) else one
        if not isinstance(row.get(text), str):
            raise ValueError(
                f"{where} has no string at the key {text!r}; its keys are "
                f"{', '.join(map(repr, row))}."
            )
        id = next((row[name] for name in _IDS if row.get(name) is not None), None)
        if id is not None and not is_id(id):
            raise ValueError(f"The id of {where} must be a string or a whole number, got {id!r}.")
        found.append(_document(row, text, free() if id is None else str(id), where))
    seen = set()
    for id, *_ in found:
        if id in seen:
            raise ValueError(f"The document {id!r:.90} is given twice; use distinct ids.")
        seen.add(id)
    empty = [id for id, content, _ in found if not content.strip()]
    if empty:
        warnings.warn(
            f"{len(empty)} of {len(found)} documents have no text, such as {empty[0]!r:.90}; they "
            "are left out.",
            stacklevel=4,
        )
    return found


def _in_files(files, text, encoding):
    left_out = set()
    for path, kind, _ in _found(files):
        name = path.replace(os.sep, "/")
        if kind != "file":
            yield from _rows(path, name, text, encoding, left_out)
            continue
        content = "".join(text_chunks(path, encoding, whole=True)).lstrip("\ufeff")
        heading = _HEADING.search(content) if ending_of(path) in _MARKDOWN else None
        title = heading[1] if heading else os.path.basename(path).split(".")[0]
        yield name, content, {TITLE: title}
    if left_out:
        warnings.warn(
            f"Some values of {', '.join(sorted(map(repr, left_out)))} cannot be metadata, such as "
            "objects and NaN; they are left out.",
            stacklevel=5,
        )


def _found(files):
    """Find files by `files_of`; errors also tell how to pass documents in memory."""
    hint = "documents in memory are passed as texts=[...]"
    is_path = isinstance(files, (str, os.PathLike))
    files = [files] if is_path else listed(files, "files", f" of paths; {hint}")
    for one in files:
        if not isinstance(one, (str, os.PathLike)):
            raise ValueError(f"files must be paths, got {one!r:.50}; {hint}.")
    for one in files:
        path = as_path(one)
        if not is_url(path) and not find(path)[1] and not os.path.isdir(path):
            raise ValueError(f"{path!r:.90} is not a file, nor a pattern that matches one; {hint}.")
    return files_of(files, Reading(document_end="file"))


def _rows(path, name, text, encoding, left_out):
    with reading(path):
        for number, row in records(path, wanted=[text], encoding=encoding):
            where = f"Row {number} of '{path}'"
            row = {text: row} if isinstance(row, str) else row
            if not isinstance(row, dict):
                raise ValueError(f"{where} must be an object or a string.")
            column = find_name(row, text)
            if column is None:
                raise ValueError(
                    f"{where} has no column {text!r}; its columns are "
                    f"{', '.join(map(repr, row))}. Name the column of the text with text=..."
                )
            own = next((row[x] for x in (find_name(row, x) for x in _IDS) if x), None)
            id = f"{name}:{number}" if own in (None, "") else str(own)
            yield _document(row, column, id, where, left_out)


def _document(row, text, id, where, left_out=None):
    """Return the `(id, text, metadata)` of a dict.

    Other values than metadata are an error, unless the set `left_out` collects their keys.
    """
    fields = {}
    for key, value in row.items():
        if key in (text, *_IDS):
            continue
        if key in (DOCUMENT, *PLACE):
            raise ValueError(
                f"{where} has the key {key!r}, in which an index stores the place of a passage; "
                "rename it."
            )
        value = value.isoformat() if hasattr(value, "isoformat") else value
        try:
            fields |= checked({key: value}, where)
        except ValueError:
            if left_out is None:
                raise
            left_out.add(key)
    content = row[text] if isinstance(row[text], str) else str(row[text] or "")
    # Lone surrogates, such as "\ud83d" in JSON, are not characters.
    return id, content.encode("utf-8", "replace").decode("utf-8"), fields


def passages_of(documents, splitter, embedder, prompt):
    """Split documents into passages.

    Args:
        documents: list of `(id, text, metadata)`.
        splitter: `PassageSplitter`.
        embedder, prompt: the index's `embedder` and `text_prompt`.

    Returns:
        `(texts, ids, metadata)`, three lists.
    """
    splitter, tokenizer = _fitted(splitter, embedder, prompt)
    texts, ids, metadata = [], [], []
    for id, content, fields in documents:
        for number, (start, end) in enumerate(splitter.split(content, tokenizer)):
            texts.append(content[start:end])
            ids.append(f"{id}#{number}")
            metadata.append({DOCUMENT: id, **fields, **dict(zip(PLACE, (start, end)))})
    return texts, ids, metadata


def _fitted(splitter, embedder, prompt):
    """Return a splitter that fits the embedder, and its tokenizer."""
    preprocessor = getattr(embedder, "preprocessor", None)
    if not hasattr(getattr(preprocessor, "tokenizer", None), "ragged"):
        return splitter, None
    read = preprocessor.for_role("text")
    prompt = read.prompt if prompt is None else prompt
    (tokens,) = read.tokenizer.ragged([prompt])
    room = read.room - int(tokens.row_lengths()[0]) - bool(read.text_token)
    if splitter.max_tokens is None:
        splitter = dataclasses.replace(splitter, max_tokens=min(DEFAULT_TOKENS, room))
    if splitter.max_tokens > room:
        raise ValueError(
            f"max_tokens={splitter.max_tokens} is more than the {room} tokens of a text that the "
            f"embedder reads (sequence_length={read.sequence_length}); use at most {room}."
        )
    return splitter, read.tokenizer
