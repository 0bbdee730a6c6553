"""Inputs of tokenizers: texts and token ids in nested lists, arrays or tensors."""

import re

from kerasbert.backend.tensorflow import tf


def flattened(inputs, name):
    """Convert a text or nested lists of texts to a flat list of strings.

    Args:
        inputs: a string, or a (nested) list or array of strings.
        name: string. The tokenizer's class, for errors.

    Returns:
        `(texts, nesting)`: list of strings, and the nested lists with 0 in place of each text.

    Raises:
        TypeError: if an input is not text, or if a list mixes texts and lists.

    >>> flattened([["a", "b"], []], "BertTokenizer")
    (['a', 'b'], [[0, 0], []])
    """
    texts = []
    return texts, _flatten(inputs, texts, name)


def nested(nesting, rows):
    """Arrange rows, an iterator, in nested lists like `nesting` of `flattened`."""
    return next(rows) if nesting == 0 else [nested(one, rows) for one in nesting]


def as_string_tensor(inputs, name):
    """Convert texts to a string tensor, ragged for nested lists."""
    texts, nesting = flattened(inputs, name)
    texts = nested(nesting, iter(texts))
    if isinstance(nesting, list) and any(isinstance(one, list) for one in nesting):
        return tf.ragged.constant(texts, tf.string)
    return tf.constant(texts, tf.string, shape=None if nesting == 0 else (len(texts),))


def _flatten(inputs, texts, name):
    if hasattr(inputs, "tolist"):  # Arrays and data frame columns.
        inputs = inputs.tolist()
    if not isinstance(inputs, (list, tuple)):
        texts.append(_text(inputs, name))
        return 0
    inputs = [x.tolist() if hasattr(x, "tolist") else x for x in inputs]
    are_lists = [isinstance(x, (list, tuple)) for x in inputs]
    if any(are_lists):
        if not all(are_lists):
            raise TypeError(
                f"{name} got a list that mixes texts and lists; pass one level of nesting."
            )
        return [_flatten(x, texts, name) for x in inputs]
    texts.extend(_text(x, name, f" at position {i}") for i, x in enumerate(inputs))
    return [0] * len(inputs)


def _text(text, name, where=""):
    """Return a string that UTF-8 can encode, from a string or bytes."""
    if isinstance(text, str):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:  # Lone surrogates.
            return re.sub("[\ud800-\udfff]", "\ufffd", text)
        return text
    if isinstance(text, bytes):
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name} got bytes{where} that are not UTF-8 (byte {text[error.start]:#04x} at "
                f"{error.start}); decode them first, for example with `data.decode('latin-1')`."
            ) from None
    raise TypeError(
        f"{name} expected text, got {text!r} ({type(text).__name__}){where}; remove it or convert "
        "it to a string."
    )


def check_ids(ids, size, place="position "):
    """Raise unless all (nested) ids are tokens of a vocabulary of this size."""
    if not isinstance(ids, (list, tuple)):
        raise TypeError(f"`detokenize` expected a list of token ids, got {ids!r}.")
    for i, id in enumerate(ids):
        if isinstance(id, (list, tuple)):
            check_ids(id, size, f"{place}{i}, ")
        elif not isinstance(id, int) or not 0 <= id < size:
            raise ValueError(
                f"`detokenize` got {id!r} at {place}{i}, expected a token id from 0 to {size - 1}."
            )


def called_from_graphs(tokenizer, name):
    """Return a tokenizer's `_encode` as a function of string tensors that calls Python."""
    count = 1 if name == "_tokenize" else 3

    def run(texts):
        found = tokenizer._encode(name, texts.tolist())
        return found[0].row_splits, *(x.values for x in found)

    def on_tensors(texts):
        if tf.executing_eagerly():
            found = run(texts.numpy())
        else:
            found = tf.numpy_function(run, [texts], [tf.int64, *[tf.int32] * count])
            for x in found:
                x.set_shape([None])
        splits, *values = found
        rows = [tf.RaggedTensor.from_row_splits(x, splits, validate=False) for x in values]
        return rows[0] if count == 1 else tuple(rows)

    return on_tensors
