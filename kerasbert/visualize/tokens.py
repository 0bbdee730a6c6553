"""A text as an encoder reads it: tokens, positions, and words.

T tokens, W words.
"""

import dataclasses

import numpy as np

from kerasbert.base.parts import encoder_of
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.text.languages import row_segments
from kerasbert.text.masking import word_starts
from kerasbert.text.packing import TRUNCATE, Frame, kept_lengths


@dataclasses.dataclass
class ReadText:
    """A text or a pair of texts as tokens and inputs.

    Attributes:
        texts: tuple of one or two strings.
        features: dict of int arrays (1, T or more). The encoder's inputs. Only they are padded.
        tokens: list of T strings. Tokens are named by their characters, with "##" if they continue
            a word.
        spans: int array (T, 3). Each token's text (0 or 1), start and end, in characters; all -1
            for special tokens around texts, such as `[CLS]`.
        begins: bool array (T,). Whether a token begins a word.
        ids: int array (T,). The token ids.
    """

    texts: tuple
    features: dict
    tokens: list
    spans: np.ndarray
    begins: np.ndarray
    ids: np.ndarray

    def framing(self):
        """Return whether each token is a special token around the texts: bool (T,)."""
        return self.spans[:, 0] < 0

    def words(self, of_tokens):
        """Sum the values of each word's tokens.

        Args:
            of_tokens: floats (T,). A value per token.

        Returns:
            `(spans, sums)`: int (W, 3), like `ReadText.spans` but for words, and floats (W,).
        """
        spans, sums = [], []
        for (text, start, end), begins, value in zip(self.spans, self.begins, of_tokens):
            if text < 0:
                continue
            if begins or not spans or spans[-1][0] != text:
                spans.append([text, start, end])
                sums.append(float(value))
            else:
                spans[-1][2] = max(end, spans[-1][2])
                sums[-1] += float(value)
        return np.array(spans, "int32").reshape(-1, 3), np.array(sums, "float64")


def is_readable(model):
    """Return whether a model has one encoder with BERT's inputs and attention.

    Not ensembles, XLNet, and windows.
    """
    encoder = encoder_of(model)
    is_bert = isinstance(encoder, BertBackbone) and not hasattr(model, "members")
    is_bert = is_bert and not _has_windows(model)
    return is_bert and BertBackbone not in getattr(encoder, "replaced_bases", ())


def _has_windows(model):
    long = getattr(model, "long", None)
    return long is not None and long.has_windows


def read_text(model, text, caller):
    """Convert a text or a pair of texts to tokens and inputs, by a task's preprocessor.

    Texts are truncated to the preprocessor's length. A mask token in a text counts as one token.

    Args:
        model: a task of `kerasbert.models` with a preprocessor.
        text: string, or a pair of strings.
        caller: name of the calling function, for error messages.

    Returns:
        A `ReadText`.
    """
    if hasattr(model, "members"):
        raise ValueError(
            f"{caller} explains a single model; pass a member of the ensemble, such as "
            "ensemble.members[0]."
        )
    if _has_windows(model):
        raise ValueError(
            f"{caller} explains one row, but this {type(model).__name__} has long='windows'; load "
            "it with long='truncate'."
        )
    preprocessor = getattr(model, "preprocessor", None)
    if preprocessor is None or not is_readable(model):
        raise ValueError(
            f"{caller} needs a task model with a preprocessor, which this {type(model).__name__} "
            "does not have; load one with from_preset, such as BertTextEmbedder."
            if preprocessor is None
            else f"{caller} needs a task on a BertBackbone, and the encoder of this "
            f"{type(model).__name__} is a {type(encoder_of(model)).__name__}."
        )
    try:
        texts = (text,) if isinstance(text, str) else tuple(text)
    except TypeError:
        texts = ()
    if len(texts) not in (1, 2) or not all(isinstance(one, str) for one in texts):
        raise ValueError(f"text={text!r} must be a string or a pair of strings.")
    tokenizer = preprocessor.tokenizer.with_special_tokens()
    edges = tokenizer.word_edges()
    special = set(tokenizer.special_token_ids)
    found = [tokenizer.tokenize_with_offsets(one) for one in texts]
    room = preprocessor.sequence_length - preprocessor.tokenizer.frame.count(len(texts))
    counts = [len(ids) for ids, _, _ in found]
    kept = kept_lengths(counts, room, TRUNCATE[preprocessor.truncate])
    rows = []  # For each token: id, name, index of its text, start, end, whether it begins a word.

    def add(ids):
        rows.extend((id, tokenizer.id_to_token(id), -1, -1, -1, True) for id in ids)

    frame = tokenizer.frame
    # Left-to-right language models have no special tokens, or a start token.
    if hasattr(preprocessor, "add_start_token"):
        frame = Frame((tokenizer.start_token_id,) if preprocessor.add_start_token else ())
    add(frame.before)
    for number, (ids, starts, ends) in enumerate(found):
        if number:
            add(frame.between)
            second = len(rows)
            add(frame.begin)
        begins = word_starts(np.array(ids, "int32"), edges) if len(ids) else ()
        for place, row in enumerate(zip(ids, starts, ends, begins)):
            id, start, end, is_first = row
            name = ("" if edges[id, 0] or not place else "##") + texts[number][start:end]
            name = tokenizer.id_to_token(id) if id in special else name
            if place < kept[number]:
                rows.append((id, name, number, start, end, is_first or id in special))
    add(frame.after)
    ids, names, *spans, begins = zip(*rows) if rows else ((),) * 6
    ids, length = np.array(ids, "int32"), preprocessor.bucket(max(len(ids), 1))
    features = {"token_ids": np.full((1, length), tokenizer.pad_token_id, "int32")}
    features["token_ids"][0, : len(ids)] = ids
    features["padding_mask"] = (np.arange(length) < len(ids))[None].astype("int32")
    if preprocessor.num_segments:
        segments = row_segments(tokenizer, preprocessor.num_segments)
        features["segment_ids"] = np.full((1, length), segments[0], "int32")
        if len(texts) == 2:
            features["segment_ids"][0, second : len(ids)] = segments[1]
    spans = np.array(spans, "int32").reshape(3, -1).T
    return ReadText(texts, features, list(names), spans, np.array(begins, bool), ids)
