"""Outputs of models that attributions explain: a class, a number, a token, an answer."""

import dataclasses

import numpy as np
from keras import ops

from kerasbert.base.errors import check_choice, is_whole
from kerasbert.heads.base.spans import MASKED
from kerasbert.kinds import kind_of, kinds_with
from kerasbert.text.class_numbers import class_numbers
from kerasbert.text.names import known_name


@dataclasses.dataclass
class Output:
    """An output of a model.

    Attributes:
        name: string.
        read: function that maps the model's outputs for R rows to floats (R,).
        arrays: dict of int arrays (1, ...). The model's inputs.
        place: position of the token where the output is read.
    """

    name: str
    read: object
    arrays: dict
    place: int = 0

    def features(self, rows):
        """Return the model's inputs for rows that differ only in their vectors."""
        return {name: np.repeat(x, rows, axis=0) for name, x in self.arrays.items()}


def output_of(model, read, target, at):
    """Return the `Output` that `target` and `at` of `attributions` select."""
    kind = kind_of(model)
    if kind is None or not kind.explains:
        raise ValueError(
            f"attributions() does not support a {type(model).__name__}; it supports "
            f"{', '.join(row.name for row in kinds_with('explains'))}, and "
            "method='attention_rollout' any task."
        )
    if kind.takes_pairs and len(read.texts) != 2:
        raise ValueError(f"A {type(model).__name__} takes a pair of texts, got one.")
    return _OUTPUTS[kind.explains](model, read, target, at)


def _chosen(target, names, values):
    """Return the index of the target class, or of the largest of (C,) values."""
    if target is None:
        return int(np.argmax(values))
    if isinstance(target, str):
        found = known_name(target, names)
        check_choice("target", target if found is None else found, names)
        return names.index(found)
    if is_whole(target) and (numbers := class_numbers(names)):
        return numbers.number(target, f"target={target}")
    if not is_whole(target) or not 0 <= target < len(names):
        raise ValueError(f"target={target!r} is not a class; the classes are {', '.join(names)}.")
    return int(target)


def _no_place(at):
    if at is not None:
        raise ValueError(f"at={at!r}: this model has one output for the whole text; omit at.")


def _class(model, read, target, at):
    _no_place(at)
    values = floats(model(read.features, training=False))[0]
    names = list(getattr(model, "label_names", ()) or ("follows", "does not follow"))
    number = _chosen(target, names, values)
    return Output(names[number], lambda outputs: outputs[:, number], read.features)


def _number(model, read, target, at):
    _no_place(at)
    if target is not None:
        raise ValueError(f"target={target!r}: this model has one output; omit target.")
    return Output("score", lambda outputs: outputs, read.features)


def _token_class(model, read, target, at):
    inside = np.flatnonzero(~read.framing())
    if at is None:
        there = inside[:1]
    else:
        if not is_whole(at):
            raise ValueError(f"at={at!r} must be a character position in the text.")
        _, starts, ends = read.spans[inside].T
        there = inside[(starts <= at) & (at < ends)][:1]
    if not len(there):
        raise ValueError(f"at={at}: no token to explain there in {read.texts[0][:40]!r}.")
    place = int(there[0])
    names = list(model.label_names)
    number = _chosen(target, names, floats(model(read.features, training=False))[0, place])
    name = f"{names[number]} at {read.tokens[place]!r}"
    return Output(name, lambda outputs: outputs[:, place, number], read.features, place)


def _hidden_word(model, read, target, at):
    tokenizer = model.preprocessor.tokenizer
    masks = np.flatnonzero(read.ids == tokenizer.mask_token_id)
    number = 0 if at is None else at
    if not is_whole(number) or not 0 <= number < len(masks):
        raise ValueError(
            f"at={number!r}: the text has {len(masks)} mask tokens, numbered from 0; put "
            f"{tokenizer.mask_token} where a word is to be explained."
        )
    place = int(masks[number])
    arrays = {**read.features, "mask_positions": np.array([[place]], "int32")}

    def logits(outputs):
        return (outputs["mlm_logits"] if isinstance(outputs, dict) else outputs)[:, 0]

    if target is None:
        found = floats(logits(model(arrays, training=False)))[0]
        token = int(np.argmax(found[: tokenizer.vocabulary_size()]))
    else:
        token = _token(tokenizer, target)
    name = tokenizer.id_to_token(token)
    return Output(name, lambda outputs: logits(outputs)[:, token], arrays, place)


def _token(tokenizer, target):
    """Return the id of a token, given as id, name or text."""
    if is_whole(target):
        tokenizer.id_to_token(int(target))  # Raises ValueError for an unknown id.
        return int(target)
    if not isinstance(target, str):
        raise ValueError(f"target={target!r} must be a token or a token id.")
    if target in tokenizer.get_vocabulary():
        return tokenizer.token_to_id(target)
    ids = tokenizer.tokenize(target)
    if len(ids) != 1:
        raise ValueError(
            f"target={target!r} is {len(ids)} tokens, but a mask stands for one; name one token."
        )
    return int(ids[0])


def _answer(model, read, target, at):
    if target is not None:
        raise ValueError(f"target={target!r}: choose the answer with at=(start, end) instead.")
    inside = np.flatnonzero(read.spans[:, 0] == 1)
    starts, ends = read.spans[inside, 1], read.spans[inside, 2]
    if at is None:
        outputs = model(read.features, training=False)
        first, last = (floats(outputs[name])[0, inside] for name in ("start_logits", "end_logits"))
        sums = np.where(np.tri(len(inside), dtype=bool).T, first[:, None] + last, MASKED)
        first, last = np.unravel_index(sums.argmax(), sums.shape) if len(inside) else (0, 0)
    else:
        try:
            start, end = map(int, at)
        except (TypeError, ValueError):
            raise ValueError(
                f"at={at!r} must be a pair (start, end) of character positions in the context."
            ) from None
        there = np.flatnonzero((ends > start) & (starts < end))
        first, last = (there[0], there[-1]) if len(there) else (0, -1)
    if last < first or not len(inside):
        raise ValueError(f"The context has no tokens at={at!r}, or they were truncated.")
    name = read.texts[1][starts[first] : ends[last]]
    first, last = int(inside[first]), int(inside[last])

    def both(outputs):
        return outputs["start_logits"][:, first] + outputs["end_logits"][:, last]

    return Output(name, both, read.features, first)


# By `Kind.explains`.
_OUTPUTS = {
    "class": _class,
    "number": _number,
    "token_class": _token_class,
    "masked_token": _hidden_word,
    "answer": _answer,
}
# Outputs that belong to a token.
AT_TOKENS = ("token_class", "masked_token", "answer")


def floats(x):
    """Return a tensor as a float32 array."""
    return ops.convert_to_numpy(ops.cast(x, "float32"))
