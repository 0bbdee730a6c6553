"""A text as an encoder reads it: its tokens, their positions in the text, and their words.

T tokens, W words.
"""

import dataclasses

import numpy as np

from kerasbert.base.parts import encoder_of
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.text.masking import word_starts
from kerasbert.text.ops import Ragged
from kerasbert.text.packing import BertPreprocessor


@dataclasses.dataclass
class ReadText:
    """One encoder input, without padding.

    Attributes:
        texts: tuple of one or two strings.
        features: dict of int arrays (1, T or more). The encoder's inputs, with padding.
        tokens: list of T strings. Tokens are named by their characters in the text, with "##"
            before those that continue a word.
        spans: int array (T, 3): each token's text, and its start and end in characters; -1 for
            special tokens around the texts, such as `[CLS]`.
        begins: bool array (T,). Whether a token begins a word.
        ids: int array (T,).
    """

    texts: tuple
    features: dict
    tokens: list
    spans: np.ndarray
    begins: np.ndarray
    ids: np.ndarray

    def framing(self):
        """Return which tokens are special tokens around the texts: bool (T,)."""
        return self.spans[:, 0] < 0

    def words(self, of_tokens):
        """Sum token values per word.

        Args:
            of_tokens: floats (T,).

        Returns:
            The words' spans, int (W, 3), and sums (W,).
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


def is_readable(encoder):
    """Return whether an encoder has BERT's input format and attention, unlike XLNet's."""
    return isinstance(encoder, BertBackbone) and BertBackbone not in getattr(
        encoder, "replaced_bases", ()
    )


def read_text(model, text, caller):
    """Read a text or a pair of texts as a task's preprocessor does.

    Texts are truncated to its length. A mask token in them counts as one token.

    Args:
        model: a task of `kerasbert.models` with a preprocessor.
        text: string, or a pair of strings.
        caller: string. Name of the calling function, for errors.

    Returns:
        A `ReadText`.
    """
    preprocessor = getattr(model, "preprocessor", None)
    if preprocessor is None or not is_readable(encoder_of(model)):
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
    counts = [Ragged.from_lists([ids]) for ids, _, _ in found]
    kept = [int(count[0]) for count in BertPreprocessor._kept(preprocessor, counts)]
    rows = []  # Per token: its id, name, text, start, end, and whether it begins a word.

    def frame(token):
        rows.append((tokenizer.token_to_id(token), token, -1, -1, -1, True))

    # A left-to-right language model has no special tokens, or only a start token.
    is_framed = not hasattr(preprocessor, "add_start_token")
    if is_framed or preprocessor.add_start_token:
        frame(tokenizer.start_token)
    for number, (ids, starts, ends) in enumerate(found):
        if number:
            second = len(rows) + tokenizer.num_separators
            while len(rows) < second - tokenizer.begins_second:
                frame(tokenizer.end_token)
            if tokenizer.begins_second:
                frame(tokenizer.start_token)
        begins = word_starts(np.array(ids, "int32"), edges) if len(ids) else ()
        for place, row in enumerate(zip(ids, starts, ends, begins)):
            id, start, end, is_first = row
            name = ("" if edges[id, 0] or not place else "##") + texts[number][start:end]
            name = tokenizer.id_to_token(id) if id in special else name
            if place < kept[number]:
                rows.append((id, name, number, start, end, is_first or id in special))
    if is_framed:
        frame(tokenizer.end_token)
    ids, names, *spans, begins = zip(*rows) if rows else ((),) * 6
    ids, length = np.array(ids, "int32"), preprocessor.bucket(max(len(ids), 1))
    features = {"token_ids": np.full((1, length), tokenizer.pad_token_id, "int32")}
    features["token_ids"][0, : len(ids)] = ids
    features["padding_mask"] = (np.arange(length) < len(ids))[None].astype("int32")
    if preprocessor.num_segments:
        features["segment_ids"] = np.zeros((1, length), "int32")
        if preprocessor.num_segments > 1 and len(texts) == 2:
            features["segment_ids"][0, second : len(ids)] = 1
    spans = np.array(spans, "int32").reshape(3, -1).T
    return ReadText(texts, features, list(names), spans, np.array(begins, bool), ids)
