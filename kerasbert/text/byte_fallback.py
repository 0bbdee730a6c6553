"""SentencePiece tokenizers with byte fallback, of ModernBERT-ja and mmBERT, as graphs.

Characters in no piece become byte tokens, so no text has unknown tokens. The models are unigram
models (whose files have the class name of Llama's tokenizer) or byte-pair models over characters
(Gemma's and Llama's). As in `transformers`, text is not normalized, and a piece may contain spaces.
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base.errors import check_choice
from kerasbert.text.added_tokens import SPACE
from kerasbert.text.alignment import runs, valid_utf8
from kerasbert.text.byte_pair import merge_text
from kerasbert.text.ops import rows_of
from kerasbert.text.sentence_piece import SentencePieceTokenizer
from kerasbert.text.sentence_piece_models import (
    WORD_BEGIN,
    build_proto,
    found_in_text,
    model_protos,
    read_proto,
    replace_step,
    scored_pieces,
)
from kerasbert.text.subword import once
from kerasbert.text.tokenizer_files import MODEL_FILES
from kerasbert.text.tokenizer_json import UnsupportedError
from kerasbert.text.tokenizer_rows import end_tokens
from kerasbert.text.vocabulary_files import tokens_by_id

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kerasbert.base.aliases import AnyPath

# Shapes: S segments of all texts, C code points of all segments, W parts no piece crosses.

BYTES = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
ASCII = {chr(byte): f"<0x{byte:02X}>" for byte in range(128)}
# An empty character map (see `check_proto`): 256 units and no strings.
NO_CHARSMAP = (1024).to_bytes(4, "little") + bytes(1024 + 1)
# In `tokenizers`, "first" and "always" are schemes of Metaspace, which adds no space before a
# space; "prepend" is the normalizer Prepend, which always adds one.
PREPEND_SCHEMES = ("never", "first", "always", "prepend")
# Replaces -1 for a segment at the beginning of its text.
_FIRST = -2


def splits_of(piece, known):
    """Return the pairs that merge to a piece, by falling length of the first part.

    >>> splits_of("abc", {"a", "ab", "c", "bc"})
    [('ab', 'c'), ('a', 'bc')]
    """
    both = ((piece[:i], piece[i:]) for i in range(len(piece) - 1, 0, -1))
    return [(a, b) for a, b in both if a in known and b in known]


def byte_pair_proto(files):
    """Convert the byte-pair model of a `tokenizer.json` to a SentencePiece model.

    SentencePiece merges the neighbors with the highest score of the merged piece. A list of merges
    is equivalent if it has all pairs that merge to a piece, piece by piece, as lists converted from
    SentencePiece models do.

    Args:
        files: `TokenizerFiles`.
    """
    path, model = files.path("tokenizer.json"), files.model
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"):
        if model.get(name):
            raise UnsupportedError(
                f"'{path}' has {name}={model[name]!r} with byte_fallback, which kerasbert does not "
                "support; load the model with preprocessor=None and pass token ids."
            )
    protos = model_protos()
    proto = protos.ModelProto()
    proto.trainer_spec.model_type = protos.TrainerSpec.BPE
    kinds = proto.SentencePiece
    tokens = tokens_by_id(model["vocab"])
    known = set(tokens)
    ranks = {tuple(merge_text(m).split(" ")): rank for rank, m in enumerate(model["merges"])}
    found = _isolated(files)
    last = -1
    order = {}
    for (a, b), rank in ranks.items():
        order.setdefault(a + b, []).append(rank)
    for piece, own in order.items():
        is_whole = piece in known and len(own) == len(splits_of(piece, known))
        # Isolated tokens are matched before merging.
        if piece not in found and not (is_whole and own[0] > last and own[-1] - own[0] < len(own)):
            raise UnsupportedError(
                f"'{path}' has byte_fallback and merges of {piece!r} that no SentencePiece model "
                "has; load the model with preprocessor=None and pass token ids."
            )
        last = last if piece in found else own[-1]
    places = {piece: place for place, piece in enumerate(order)}
    for piece in tokens:
        kind = kinds.NORMAL
        if piece in found:
            kind = kinds.USER_DEFINED
        elif piece == model.get("unk_token"):
            kind = kinds.UNKNOWN
        elif len(piece) > 1 and (piece not in places or not known.issuperset(piece)):
            kind = kinds.CONTROL  # Never made from text.
        proto.pieces.add(piece=piece, score=-float(places.get(piece, len(places))), type=kind)
    return proto


def _isolated(files):
    """Return the added tokens that a SentencePiece model itself matches before merging."""
    others = {"special", "lstrip", "rstrip", "single_word"}
    tokens = files.added_tokens().values()
    return {x["content"] for x in tokens if not others & x.keys() and " " not in x["content"]}


def prepend_scheme(files):
    """Return which of `PREPEND_SCHEMES` a `tokenizer.json` has.

    Raises:
        ValueError: if the file changes texts in any other way.
    """
    before = [dict(step) for step in files.normalizers()]
    words = [dict(step) for step in files.steps("pre_tokenizer")]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": WORD_BEGIN}
    prepend = {"type": "Prepend", "prepend": WORD_BEGIN}
    # All spaces have been replaced before, so a split at spaces has no effect.
    is_split = [step.get("type") for step in words] == ["Split"]
    if is_split and words[0].get("pattern") == {"String": " "}:
        words = []
    if not words and before == [replace]:
        return "never"
    if not words and before == [prepend, replace]:
        return "prepend"
    if not before and len(words) == 1 and words[0].get("type") == "Metaspace":
        step = words[0]
        old = "always" if step.get("add_prefix_space", True) else "never"
        scheme = step.get("prepend_scheme", old)
        if step.get("split") is False and step.get("replacement") == WORD_BEGIN:
            return scheme
    kinds = [step.get("type") for step in (*files.normalizers(), *files.steps("pre_tokenizer"))]
    raise UnsupportedError(
        f"The tokenizer.json in '{files.directory}' has byte_fallback and processes texts with "
        f"{kinds}, but a ByteFallbackTokenizer only replaces spaces with {WORD_BEGIN!r}, by "
        "Replace or by a Metaspace with split=false; load the model with preprocessor=None and "
        "pass token ids."
    )


def _merges(proto):
    """Return the merges of a byte-pair model, the best first; see `byte_pair_proto`."""
    pieces = [piece for piece in proto.pieces if found_in_text(piece)]
    known = {piece.piece for piece in pieces}
    # Runs of spaces are matched as a whole, so their merges come first.
    pieces.sort(
        key=lambda p: (p.type == p.NORMAL, -p.score if p.type == p.NORMAL else -len(p.piece))
    )
    return [f"{a} {b}" for piece in pieces for a, b in splits_of(piece.piece, known)]


@keras.saving.register_keras_serializable(package="kerasbert")
class ByteFallbackTokenizer(SentencePieceTokenizer):
    """SentencePiece tokenizer of ModernBERT-ja (unigram) and mmBERT (byte-pair).

    A character in no piece becomes its UTF-8 bytes, `<0x00>` to `<0xFF>`, each with the offsets of
    the whole character. As in `transformers`, the model's normalization is not applied.

    Args:
        proto: bytes of a SentencePiece model, or its path.
        prepend_scheme: string. When to put a space before a text, so that its first word is like
            the others: "never", "first" (at the beginning of the text), "always" (also after added
            tokens), or "prepend" (even if the text begins with a space).
        begins_second: whether a second text also begins with the start token: `<s> A </s> <s> B
            </s>`.
        added_tokens, special_tokens_in_strings, unk_token, ..., kwargs: see
            `AddedTokensTokenizer`.
    """

    _around = SPACE
    _begins_next = False

    def __init__(
        self,
        proto: bytes | AnyPath | None = None,
        prepend_scheme: str = "never",
        begins_second: bool = False,
        added_tokens: Sequence[Any] = (),
        special_tokens_in_strings: bool = False,
        unk_token: str = "<unk>",
        cls_token: str = "<s>",
        sep_token: str = "</s>",
        pad_token: str = "<pad>",
        mask_token: str = "<mask>",
        **kwargs: Any,
    ) -> None:
        check_choice("prepend_scheme", prepend_scheme, PREPEND_SCHEMES)
        super().__init__(
            proto,
            added_tokens=added_tokens,
            special_tokens_in_strings=special_tokens_in_strings,
            unk_token=unk_token,
            cls_token=cls_token,
            sep_token=sep_token,
            pad_token=pad_token,
            mask_token=mask_token,
            **kwargs,
        )
        self.prepend_scheme = prepend_scheme
        self.begins_second = begins_second

    @property
    def num_separators(self) -> int:
        return 1 + self.begins_second

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "prepend_scheme": self.prepend_scheme,
            "begins_second": self.begins_second,
        }

    def described(self) -> dict[str, Any]:
        proto = self._without_extra()
        spec = proto.trainer_spec
        if spec.model_type not in (spec.UNIGRAM, spec.BPE):
            raise ValueError(
                "The tokenizer's SentencePiece model is neither unigram nor byte-pair, and "
                "transformers supports no others; convert with tokenizer=False."
            )
        if spec.model_type == spec.UNIGRAM:
            unknown = next(id for id, p in enumerate(proto.pieces) if p.type == p.UNKNOWN)
            model = {"type": "Unigram", "unk_id": unknown, "vocab": scored_pieces(proto)}
        else:
            model = {
                "type": "BPE",
                "dropout": None,
                "unk_token": self.unk_token,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": True,
                "vocab": {piece.piece: id for id, piece in enumerate(proto.pieces)},
                "merges": _merges(proto),
            }
        scheme = self.prepend_scheme
        space = {"type": "Metaspace", "replacement": WORD_BEGIN, "prepend_scheme": scheme}
        before = None
        if scheme == "prepend":
            before = [{"type": "Prepend", "prepend": WORD_BEGIN}, replace_step(" ", WORD_BEGIN)]
            before = {"type": "Sequence", "normalizers": before}
        decoders = [replace_step(WORD_BEGIN, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
        if scheme != "never":
            decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        return {
            "normalizer": before,
            "pre_tokenizer": {**space, "split": False} if before is None else None,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {**model, "byte_fallback": True},
        }

    # Files

    @classmethod
    def _check_steps(cls, files):
        prepend_scheme(files)

    @classmethod
    def _read(cls, files):
        files.require("ByteFallback", cls)
        if not files.model:
            return read_proto(pathlib.Path(files.path(*MODEL_FILES["ByteFallback"])).read_bytes())
        is_unigram = isinstance(files.model["vocab"], list)
        return build_proto(files) if is_unigram else byte_pair_proto(files)

    @classmethod
    def _settings(cls, files, proto):
        if files.model:
            scheme = prepend_scheme(files)
        else:
            scheme = "prepend" if proto.normalizer_spec.add_dummy_prefix else "never"
        return {"prepend_scheme": scheme, **end_tokens(files)}

    @classmethod
    def _in_order_of_ids(cls, proto, special_tokens):
        is_unigram = proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM
        names = {piece.piece for piece in proto.pieces}
        # Gemma's files have the tab itself as a token; `_to_run` renames it.
        there = names if is_unigram else names | {ASCII[char] for char in names & set(ASCII)}
        for name in BYTES:
            if name not in there:
                raise ValueError(
                    f"The vocabulary of {len(names)} pieces lacks the byte {name!r}, but "
                    f"{cls.__name__} needs all 256; use a model with byte fallback."
                )
        special = set(special_tokens.values())
        for piece in proto.pieces:
            if piece.piece in BYTES:
                piece.type = piece.BYTE
            elif piece.piece in special and piece.type == piece.USER_DEFINED:
                piece.type = piece.CONTROL
        proto.trainer_spec.byte_fallback = True
        spec = proto.normalizer_spec
        spec.Clear()
        spec.add_dummy_prefix = spec.remove_extra_whitespaces = False
        spec.escape_whitespaces = True
        return proto

    def _to_run(self, proto):
        # Without a character map, SentencePiece logs this each time.
        proto.normalizer_spec.precompiled_charsmap = NO_CHARSMAP
        names = {piece.piece for piece in proto.pieces}
        for piece in proto.pieces:
            name = ASCII.get(piece.piece)
            if name is not None and name not in names:
                piece.piece, piece.type = name, piece.BYTE
        return proto

    # From text to pieces

    def _as_text(self, token):
        if token not in BYTES:
            return super()._as_text(token)
        data = BYTES[token]
        return "\u4e00" if 0xE3 <= data[0] <= 0xE9 else data.decode("utf-8", "replace")

    def _normalize(self, text):
        return text

    @once
    def _joined(self):
        """Return all neighboring pairs of characters in pieces, as sorted numbers."""
        proto = read_proto(self.proto)
        pieces = [p.piece for p in proto.pieces if p.type in (p.NORMAL, p.USER_DEFINED)]
        points = np.frombuffer("\uffff".join(pieces).encode("utf-32-le"), "<u4").astype("int64")
        return np.unique(points[:-1] << 21 | points[1:])

    def _segments(self, text):
        before, (segments, rows, known) = super()._segments(text)
        is_first = tf.concat([tf.ones_like(rows[:1], "bool"), rows[1:] != rows[:-1]], 0)
        return before, (segments, rows, tf.where(is_first & (known < 0), _FIRST, known))

    def _prefixes(self, segments, known):
        """Return a space or an empty string for each segment (S,) to begin with."""
        is_text = (known < 0) & (segments != "")
        if self.prepend_scheme == "never":
            is_text = tf.zeros_like(is_text)
        elif self.prepend_scheme != "prepend":
            is_text &= ~tf.strings.regex_full_match(segments, f"(?s)[ {WORD_BEGIN}].*")
        if self.prepend_scheme == "first":
            is_text &= known == _FIRST
        return tf.where(is_text, " ", "")

    def _split(self, segments, known):
        prefixes = self._prefixes(segments, known)
        text = tf.where(known < 0, prefixes + segments, "")
        points = tf.strings.unicode_decode(text, "UTF-8")  # (S, None), C in total
        row, points = rows_of(points), points.flat_values
        # Cut where no piece can cross: equal parts are tokenized once, and sums of scores stay
        # exact in float32.
        seen = tf.where(points == ord(" "), ord(WORD_BEGIN), points)
        pairs = tf.cast(seen[:-1], "int64") * 2**21 + tf.cast(seen[1:], "int64")
        joined = tf.constant(self._joined())
        at = tf.minimum(tf.searchsorted(joined, pairs), tf.size(joined) - 1)
        begins = (row[1:] != row[:-1]) | (tf.gather(joined, at) != pairs)
        begins = tf.concat([tf.ones_like(row[:1], "bool"), begins], 0)
        parts, first = runs(points, begins)
        unique, index = tf.unique(tf.strings.unicode_encode(parts, "UTF-8"))
        ids, starts, ends = (tf.gather(x, index) for x in self._split_words(unique))  # (W, P)
        part = rows_of(ids)
        sizes = tf.gather(tf.strings.length(unique), index)
        row = tf.gather(row, first)
        offset = tf.cumsum(sizes, exclusive=True) - tf.gather(
            tf.cumsum(tf.strings.length(text), exclusive=True), row
        )
        shift = tf.gather(offset - tf.gather(tf.strings.length(prefixes), row), part)
        # SentencePiece gives a character's offsets only to its last byte; `align` gives each byte
        # the whole character's.
        ends = tf.maximum(ends.flat_values, starts.flat_values + 1) + shift
        starts = tf.maximum(starts.flat_values + shift, 0)
        rows = tf.gather(row, part)
        count = tf.size(segments, tf.int64)
        return tuple(
            tf.RaggedTensor.from_value_rowids(x, rows, count, validate=False)
            for x in (ids.flat_values, starts, ends)
        )

    @once
    def _contents(self):
        """Return the bytes that each token stands for."""
        return [BYTES.get(t) or t.replace(WORD_BEGIN, " ").encode() for t in self.vocabulary]

    def _decode(self, rows):
        contents = self._contents()
        texts = (b"".join(contents[id] for id in row) for row in rows)
        if self.prepend_scheme != "never":
            texts = (text.removeprefix(b" ") for text in texts)
        return [text.decode("utf-8", "replace") for text in texts]

    def _detokenize(self, ids):
        text = tf.strings.reduce_join(tf.gather(tf.constant(self._contents()), ids), -1)
        if self.prepend_scheme != "never":
            text = tf.strings.regex_replace(text, "^ ", "")
        return valid_utf8(text)
