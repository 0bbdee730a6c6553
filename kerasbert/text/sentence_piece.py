"""SentencePiece tokenizers (Kudo and Richardson 2018) of XLM-R, ALBERT, DeBERTa, XLNet, as graphs.

KerasHub's `SentencePieceTokenizer` runs the same op, but has no offsets, no special tokens in
strings, no lowercasing for ALBERT and no ids of `tokenizer.json`.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import pathlib
from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.backend.tensorflow import rows_of, tf, tf_text
from kerasbert.base import keras_internals
from kerasbert.base.keywords import config_of
from kerasbert.text.added_tokens import SPACE, AddedTokensTokenizer
from kerasbert.text.alignment import FILLER, NUL
from kerasbert.text.subword import once
from kerasbert.text.tokenizer_files import (
    ANY,
    MODEL_FILES,
    ROLES,
    TokenizerFiles,
    UnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath

# Shapes: S segments of all texts (added tokens and the text between them).

VOCABULARY_FILE = "vocabulary.spm"
WORD_BEGIN = "\u2581"
# The normalization of ALBERT and XLNet, in this order.
_CLEANING = ("NFKD", "StripAccents", "Lowercase")
WHITE_SPACE = r"[\t\n\f\r \x{85}\p{Z}]"


def model_protos():
    """Return the protocol buffers of SentencePiece models."""
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError as error:
        raise ImportError(
            "SentencePiece models need two packages: run `pip install sentencepiece protobuf`."
        ) from error
    except Exception as error:
        # sentencepiece 0.2.3 is built with protobuf 7 but does not require it in pip, and other
        # packages keep an older one.
        raise ImportError(
            f"The installed sentencepiece is incompatible with the installed protobuf ({error}): "
            "run `pip install --upgrade protobuf`, or, if another package needs the older "
            "protobuf, `pip install 'sentencepiece<0.2.3'`."
        ) from error
    return sentencepiece_model_pb2


def read_proto(data):
    """Parse the bytes of a SentencePiece model."""
    proto = model_protos().ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as error:
        raise ValueError(
            f"These {len(data)} bytes are not a SentencePiece model ({error})."
        ) from None
    if not proto.pieces:
        raise ValueError(f"The SentencePiece model ({len(data)} bytes) has no pieces.")
    return proto


def check_proto(proto):
    """Raise for a model that would make SentencePiece abort, or read outside its memory.

    Raises:
        ValueError: for a piece without text or finite score, for more or fewer than one unknown
            piece, and for a damaged character map.
    """
    unknown = [piece.piece for piece in proto.pieces if piece.type == piece.UNKNOWN]
    if len(unknown) != 1:
        raise ValueError(
            f"The SentencePiece model has {len(unknown)} unknown pieces, expected one; download "
            "it again."
        )
    for id, piece in enumerate(proto.pieces):
        if not piece.piece or not math.isfinite(piece.score):
            raise ValueError(
                f"Piece {id} of the SentencePiece model, {piece.piece!r}, has the score "
                f"{piece.score}, expected a text with a finite score; download it again."
            )
    charsmap = proto.normalizer_spec.precompiled_charsmap
    if charsmap and not _is_charsmap(charsmap):
        raise ValueError(
            f"The SentencePiece model has a damaged character map (precompiled_charsmap) of "
            f"{len(charsmap)} bytes; download it again."
        )


def _is_charsmap(data):
    """Return whether all indexes in a character map stay inside it.

    A map consists of the size of a double array (four bytes), that array, built by Darts, and the
    strings that it refers to, each ending with a zero byte.
    """
    size = int.from_bytes(data[:4], "little")
    units, strings = data[4 : 4 + size], data[4 + size :]
    if len(data) < 4 or len(units) != size or not size or size % 1024 or data[-1:] != b"\0":
        return False
    units = np.frombuffer(units, "<u4").astype("int64")
    is_node = units >> 31 == 0
    next_unit = np.arange(len(units)) ^ (units >> 10) << ((units & 1 << 9) >> 6)
    if not (next_unit[is_node] | 255 < len(units)).all():
        return False
    has_value = is_node & (units >> 8 & 1 > 0)
    return bool((units[next_unit[has_value]] & 0x7FFFFFFF < len(strings)).all())


def build_proto(files):
    """Convert the unigram model of a `tokenizer.json` to a SentencePiece model.

    Args:
        files: `TokenizerFiles`.
    """
    protos = model_protos()
    kinds = protos.ModelProto.SentencePiece
    proto = protos.ModelProto()
    proto.trainer_spec.model_type = protos.TrainerSpec.UNIGRAM
    for step in files.normalizers():
        if step.get("type") == "Precompiled":
            try:
                charsmap = step.get("precompiled_charsmap") or ""
                charsmap = base64.b64decode(charsmap, validate=True)
            except ValueError as error:
                raise ValueError(
                    f"'{files.path('tokenizer.json')}' has a precompiled_charsmap that is not "
                    f"base64 ({error}); download it again."
                ) from None
            proto.normalizer_spec.precompiled_charsmap = charsmap
    for step in files.pre_tokenizers():
        if step.get("type") == "Metaspace":
            old = "always" if step.get("add_prefix_space", True) else "never"
            proto.normalizer_spec.add_dummy_prefix = step.get("prepend_scheme", old) != "never"
    unknown = files.model.get("unk_id")
    if unknown is None:
        raise UnsupportedError(
            f"'{files.path('tokenizer.json')}' has no unk_id, but a SentencePiece model needs a "
            "piece for unknown characters; load the model with preprocessor=None and pass token "
            "ids."
        )
    for id, (piece, score) in enumerate(files.model["vocab"]):
        kind = kinds.UNKNOWN if id == unknown else kinds.NORMAL
        proto.pieces.add(piece=piece, score=score, type=kind)
    return proto


def fairseq_order(proto, unk, cls, sep, pad, mask):
    """Put the pieces of an original XLM-R model in fairseq's order; return others unchanged."""
    pieces = list(proto.pieces)
    if [piece.piece for piece in pieces[:3]] != [unk, cls, sep]:
        return proto
    kinds = proto.SentencePiece
    new = [kinds(piece=name, score=0.0, type=kinds.CONTROL) for name in (pad, mask)]
    rest = [piece for piece in pieces[3:] if piece.piece not in (pad, mask)]
    del proto.pieces[:]
    proto.pieces.extend([pieces[1], new[0], pieces[2], pieces[0], *rest, new[1]])
    spec = proto.trainer_spec
    spec.bos_id, spec.pad_id, spec.eos_id, spec.unk_id = 0, 1, 2, 3
    return proto


def original_order(tokenizer):
    """Return an `XLMRobertaTokenizer`'s model in the order of the original file.

    Return `None` if `fairseq_order` would not restore the tokenizer's own model.
    """
    proto = read_proto(tokenizer.proto)
    pieces = list(proto.pieces)
    special = [getattr(tokenizer, f"{role}_token") for role in ("cls", "pad", "sep", "unk")]
    if [p.piece for p in pieces[:4]] != special or pieces[-1].piece != tokenizer.mask_token:
        return None
    cls, _, sep, unk = pieces[:4]
    del proto.pieces[:]
    proto.pieces.extend([unk, cls, sep, *pieces[4:-1]])
    spec = proto.trainer_spec
    spec.unk_id, spec.bos_id, spec.eos_id, spec.pad_id = 0, 1, 2, -1
    data = proto.SerializeToString(deterministic=True)
    again = type(tokenizer)(**config_of(tokenizer) | {"proto": data})
    return data if again.proto == tokenizer.proto else None


def replace_step(old, new):
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def found_in_text(piece):
    """Return whether text can become the piece; control pieces cannot."""
    return piece.type in (piece.NORMAL, piece.USER_DEFINED)


def scored_pieces(proto):
    """Return pieces with scores, the lowest for pieces that text must not become.

    The format has no piece types, and `transformers` would match "<s>" like any piece, so every
    other segmentation must score higher.
    """
    lowest = min((piece.score for piece in proto.pieces if found_in_text(piece)), default=0.0)
    return [
        [piece.piece, piece.score if found_in_text(piece) else len(piece.piece) * lowest - 1]
        for piece in proto.pieces
    ]


def _hidden(proto):
    """Return steps that keep control pieces that have no other segmentation from being matched.

    The steps insert a filler after an unknown character, with which it forms one unknown piece.
    """
    found = (piece.piece for piece in proto.pieces if found_in_text(piece))
    single = {piece for piece in found if len(piece) == 1}
    steps = []
    for piece in proto.pieces:
        unknown = next((char for char in piece.piece if char not in single), None)
        if not found_in_text(piece) and unknown is not None:
            hidden = piece.piece.replace(unknown, unknown + FILLER, 1)
            steps.append(replace_step(piece.piece, hidden))
    return steps


class SentencePieceTokenizer(AddedTokensTokenizer):
    """Base class of `XLMRobertaTokenizer`, `AlbertTokenizer` and others.

    Args:
        proto: bytes of a SentencePiece model, or its path.
        **kwargs: see `AddedTokensTokenizer`.
    """

    # The models drop control characters, and may begin each word with a separate "▁" piece.
    _around = SPACE + r"\p{Cc}\p{Cf}"
    _begins_next = True

    def __init__(self, proto: bytes | AnyPath, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.file_assets = [VOCABULARY_FILE]
        self.set_proto(proto)

    @classmethod
    def from_files(cls, directory: AnyPath, **overrides: Any) -> Self:
        """Read the tokenizer of a Hugging Face directory, with its settings.

        Args:
            directory: string. Has a SentencePiece model, or a `tokenizer.json`.
            **overrides: arguments of the constructor that replace the directory's.
        """
        files = TokenizerFiles(directory)
        proto = cls._read(files)
        if files.model:
            cls._check_steps(files)
        settings = cls._settings(files, proto)
        arguments = files.special_tokens(cls, [piece.piece for piece in proto.pieces])
        if files.model.get("type") == "Unigram":
            names = [name for name, _ in files.model["vocab"]]
            unknown = arguments["unk_token"]
            unknown = [None, names.index(unknown)] if unknown in names else ANY
            files.follow_model(cls, {"unk_id": unknown})
        # Put the pieces in the order of their ids first, then append the added tokens.
        proto = cls._in_order_of_ids(proto, arguments)
        kinds = proto.SentencePiece
        tokens = [piece.piece for piece in proto.pieces]
        every = files.with_added_tokens(tokens)
        for token in every[len(tokens) :]:
            proto.pieces.add(piece=token, score=0.0, type=kinds.CONTROL)
        user_defined = {p.piece for p in proto.pieces if p.type == kinds.USER_DEFINED}
        arguments["added_tokens"] = [
            token
            for token in files.found_tokens(every)
            if token["content"] not in user_defined
            or token.keys() & {"single_word", "lstrip", "rstrip"}
        ]
        control = {t["content"] for t in arguments["added_tokens"] if t.get("control")}
        for piece in proto.pieces:
            if piece.piece in control and piece.type != kinds.UNKNOWN:
                piece.type = kinds.CONTROL
        arguments["proto"] = proto.SerializeToString()
        return files.checked(cls(**arguments | files.settings() | settings | overrides))

    # Whether quotes, accents and capitals are normalized before the model sees the text.
    _cleans = False

    @classmethod
    def _check_steps(cls, files):
        """Raise if a `tokenizer.json` normalizes or splits texts differently from the class.

        White space ends words here, so steps that join several spaces have no effect.
        """
        joins = [
            {"pattern": ({"Regex": regex},), "content": (" ", WORD_BEGIN)}
            for regex in (" {2,}", r"\s{2,}|[\n\r\t]")
        ]
        hides = [
            {"pattern": ({"String": content.replace(FILLER, "")},), "content": (content,)}
            for content in (str(step.get("content")) for step in files.normalizers())
            if FILLER in content
        ]
        quotes = [{"pattern": ({"String": old},), "content": ('"',)} for old in ("``", "''")]
        known = {
            "Precompiled": [{"precompiled_charsmap": ANY}],
            "Strip": [{"strip_left": ANY, "strip_right": ANY}],
            "Replace": [*joins, *hides, *(quotes if cls._cleans else ())],
        }
        if any(step["type"] == "Precompiled" for step in files.normalizers()):
            known["NFC"] = [{}]  # The character map composes characters as well.
        if cls._cleans:
            known |= {"NFKD": [{}], "StripAccents": [{}], "Lowercase": [{}]}
        steps = files.follow("normalizer", cls, known)
        if cls._cleans:
            kinds = [step["type"] for step in steps if step["type"] in (*_CLEANING, "Precompiled")]
            order = [kind for kind in (*_CLEANING, "Precompiled") if kind in kinds]
            olds = {str(step.get("pattern")) for step in steps}
            if (
                kinds != order
                or ("NFKD" in kinds) != ("StripAccents" in kinds)
                or not {str(form["pattern"][0]) for form in quotes} <= olds
            ):
                raise UnsupportedError(
                    f"The tokenizer.json in '{files.directory}' normalizes text with "
                    f"{[step['type'] for step in steps]}, but {cls.__name__} replaces `` and '', "
                    "then drops accents (NFKD, StripAccents), lowercases and maps characters, in "
                    "this order; load the model with preprocessor=None and pass token ids."
                )
        space = {"replacement": (WORD_BEGIN,), "str_rep": (WORD_BEGIN,), "split": (True,)}
        space |= {"prepend_scheme": ("always", "never"), "add_prefix_space": ANY}
        known = {"WhitespaceSplit": [{}], "Metaspace": [space]}
        orders = [["WhitespaceSplit", "Metaspace"]]
        if any(step.get("pattern") == form["pattern"][0] for step in steps for form in joins):
            orders.append(["Metaspace"])
        files.follow("pre_tokenizer", cls, known, orders)

    @classmethod
    def _read(cls, files):
        """Return the model of the files."""
        files.require("Unigram", cls)
        path = files.path(*MODEL_FILES["Unigram"])
        return build_proto(files) if path is None else read_proto(pathlib.Path(path).read_bytes())

    @classmethod
    def _settings(cls, files, proto):
        """Return further arguments, from the files and their model."""
        return {}

    @classmethod
    def _in_order_of_ids(cls, proto, special_tokens):
        """Return the model with its pieces in the order of the ids."""
        return proto

    def set_proto(self, proto: Any) -> None:
        """Set the model: bytes, or the path of a `.model` or `.spm` file."""
        if isinstance(proto, (str, os.PathLike)):
            proto = pathlib.Path(proto).read_bytes()
        if proto is None:
            self.proto = None
            self._set_tokens(None)
            return
        special = {f"{role}_token": token for role, token in self._special_tokens().items()}
        proto = self._in_order_of_ids(read_proto(proto), special)
        check_proto(proto)
        kinds = proto.SentencePiece
        names = set(special.values())
        for piece in proto.pieces:
            # Special tokens are matched before the model sees the text, or not at all.
            if piece.piece in names and piece.type != kinds.UNKNOWN:
                piece.type = kinds.CONTROL
        self.proto = proto.SerializeToString(deterministic=True)
        self._set_tokens([piece.piece for piece in proto.pieces])

    def save_assets(self, dir_path: AnyPath) -> None:
        self._check_vocabulary()
        pathlib.Path(dir_path, VOCABULARY_FILE).write_bytes(self.proto)

    def load_assets(self, dir_path: AnyPath) -> None:
        self.set_proto(os.path.join(dir_path, VOCABULARY_FILE))

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"proto": None}  # Saved as an asset.

    def _without_extra(self):
        """Return the SentencePiece model without added tokens at its end."""
        proto = read_proto(self.proto)
        extra = {piece.piece for piece in proto.pieces if piece.type == piece.CONTROL}
        del proto.pieces[self._size_without(extra) :]
        return proto

    def described(self) -> dict[str, Any]:
        proto = self._without_extra()
        kinds = proto.SentencePiece
        if proto.trainer_spec.model_type != proto.trainer_spec.UNIGRAM:
            raise ValueError(
                "The tokenizer's SentencePiece model is not a unigram model, and transformers "
                "supports no others; convert with tokenizer=False."
            )
        steps, settings, files = self._own_description()
        charsmap = proto.normalizer_spec.precompiled_charsmap
        if charsmap:
            if proto.normalizer_spec.name != "user_defined":
                # `transformers` applies the map to each character alone, so it composes none.
                steps.append({"type": "NFC"})
            charsmap = base64.b64encode(charsmap).decode()
            steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
        steps += _hidden(proto)
        scheme = "always" if proto.normalizer_spec.add_dummy_prefix else "never"
        space = {
            "type": "Metaspace",
            "replacement": WORD_BEGIN,
            "prepend_scheme": scheme,
            "split": True,
        }
        unknown = [id for id, piece in enumerate(proto.pieces) if piece.type == kinds.UNKNOWN]
        return {
            "settings": settings,
            "files": files,
            "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [{"type": "WhitespaceSplit"}, space],
            },
            "decoder": space,
            "model": {
                "type": "Unigram",
                "unk_id": unknown[0] if unknown else None,
                "byte_fallback": False,
                "vocab": scored_pieces(proto),
            },
        }

    def _own_description(self):
        """Return this class' normalizers, settings and file of the model; see `described`."""
        original = original_order(self)
        return [], {}, {} if original is None else {"sentencepiece.bpe.model": original}

    def _as_text(self, token):
        return token.replace(WORD_BEGIN, " ")

    @once
    def _pieces_of_text(self):
        proto = read_proto(self.proto)
        return {p.piece for p in proto.pieces if p.type not in (p.CONTROL, p.UNUSED)}

    def _is_piece(self, token):
        return token in self._pieces_of_text()

    def _normalize(self, text):
        # Like `transformers`, end words at any white space, whatever the model's rules, except for
        # U+000B, which the rules of XLM-R and ALBERT delete.
        text = tf.strings.regex_replace(text, r"\x{0}", NUL)
        if self._composes():
            text = tf_text.normalize_utf8(text, "NFKC")
        return tf.strings.regex_replace(text, WHITE_SPACE, " ")

    @once
    def _composes(self):
        """Return whether to apply NFKC, for added tokens that are matched after normalization."""
        normalized = any(token["normalized"] for token in self._added_tokens())
        return normalized and bool(read_proto(self.proto).normalizer_spec.precompiled_charsmap)

    @once
    def _model(self):
        """Return the model with scores whose sums are exact.

        Different segmentations often have equal scores ("0" "00" or "00" "0"), and the choice must
        not depend on float32 rounding: scores in steps of 2**-14 add up exactly in any order, up to
        1024.
        """
        proto = self._to_run(read_proto(self.proto))
        for piece in proto.pieces:
            piece.score = round(piece.score * 2**14) / 2**14
        return proto.SerializeToString(deterministic=True)

    def _to_run(self, proto):
        """Return the model as the op needs it."""
        return proto

    def _split(self, segments, known):
        segments = tf.where(known < 0, segments, "")
        split = keras_internals.regex_split_with_offsets
        words, begins, _ = split(segments, " ", "")  # (S, W)
        unique, index = tf.unique(words.flat_values)
        ids, starts, ends = (tf.gather(x, index) for x in self._split_words(unique))  # (W, P)
        first = tf.cast(tf.gather(begins.flat_values, rows_of(ids)), "int32")
        starts, ends = (x.with_flat_values(x.flat_values + first) for x in (starts, ends))
        return tuple(words.with_flat_values(x).merge_dims(1, 2) for x in (ids, starts, ends))

    def _split_words(self, words):
        """Split words (U,) into ragged (U, pieces): ids, and their starts and ends in bytes."""
        ops = keras_internals.sentencepiece_ops()
        # The model is part of a graph op, because a SavedModel could lose track of an object. Its
        # unique name keeps it from being confused with another model.
        name = f"kerasbert_{hashlib.sha256(self._model()).hexdigest()}"
        model = ops.sentencepiece_op(model=self._model(), shared_name=name)
        ids, splits, starts, ends = ops.sentencepiece_tokenize_with_offsets_op(
            model,
            words,
            0,  # nbest_size
            1.0,  # alpha
            False,  # add_bos
            False,  # add_eos
            False,  # reverse
            Tsplits=tf.int64,
            out_type=tf.int32,
        )
        return tuple(
            tf.RaggedTensor.from_row_splits(tf.cast(x, "int32"), splits, validate=False)
            for x in (ids, starts, ends)
        )

    def _decode(self, rows):
        texts = ("".join(self.vocabulary[id] for id in row) for row in rows)
        return [text.removeprefix(WORD_BEGIN).replace(WORD_BEGIN, " ") for text in texts]

    def _detokenize(self, ids):
        text = tf.strings.reduce_join(tf.gather(tf.constant(self.vocabulary), ids), -1)
        text = tf.strings.regex_replace(text, f"^{WORD_BEGIN}", "")
        return tf.strings.regex_replace(text, WORD_BEGIN, " ")


@keras.saving.register_keras_serializable(package="kerasbert")
class XLMRobertaTokenizer(SentencePieceTokenizer):
    """XLM-R's tokenizer: ids as in fairseq, `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, `<mask>` last.

    Args:
        proto: bytes of a SentencePiece model, or its path. Pieces of the original file
            (`<unk>`, `<s>`, `</s>`, then the rest) are reordered as in fairseq.
        added_tokens, special_tokens_in_strings, unk_token, ...: see `AddedTokensTokenizer`.
        **kwargs: `name`, and so on.
    """

    num_separators = 2

    def __init__(
        self,
        proto: bytes | AnyPath | None = None,
        added_tokens: Sequence[Any] = (),
        special_tokens_in_strings: bool = False,
        unk_token: str = "<unk>",
        cls_token: str = "<s>",
        sep_token: str = "</s>",
        pad_token: str = "<pad>",
        mask_token: str = "<mask>",
        **kwargs: Any,
    ) -> None:
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

    @classmethod
    def _in_order_of_ids(cls, proto, special_tokens):
        return fairseq_order(proto, *(special_tokens[f"{role}_token"] for role in ROLES))


@keras.saving.register_keras_serializable(package="kerasbert")
class AlbertTokenizer(SentencePieceTokenizer):
    """ALBERT's tokenizer: normalizes text, then runs the SentencePiece model.

    Args:
        proto: bytes of a SentencePiece model, or its path.
        lowercase: bool. Whether to lowercase texts.
        keep_accents: bool. `False` drops accents (after NFKD).
        added_tokens, special_tokens_in_strings, unk_token, ...: see `AddedTokensTokenizer`.
        **kwargs: `name`, and so on.
    """

    _cleans = True

    def __init__(
        self,
        proto: bytes | AnyPath | None = None,
        lowercase: bool = True,
        keep_accents: bool = False,
        added_tokens: Sequence[Any] = (),
        special_tokens_in_strings: bool = False,
        unk_token: str = "<unk>",
        cls_token: str = "[CLS]",
        sep_token: str = "[SEP]",
        pad_token: str = "<pad>",
        mask_token: str = "[MASK]",
        **kwargs: Any,
    ) -> None:
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
        self.lowercase = lowercase
        self.keep_accents = keep_accents

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "lowercase": self.lowercase,
            "keep_accents": self.keep_accents,
        }

    @classmethod
    def _settings(cls, files, proto):
        steps = [step.get("type") for step in files.normalizers()]
        unknown = not steps
        lowercase = files.config.get("do_lower_case", unknown or "Lowercase" in steps)
        keep_accents = files.config.get("keep_accents", not (unknown or "StripAccents" in steps))
        return {"lowercase": lowercase, "keep_accents": keep_accents}

    def _own_description(self):
        steps = [replace_step(quotes, '"') for quotes in ("``", "''")]
        if not self.keep_accents:
            steps += [{"type": "NFKD"}, {"type": "StripAccents"}]
        if self.lowercase:
            steps.append({"type": "Lowercase"})
        settings = {"do_lower_case": self.lowercase, "keep_accents": self.keep_accents}
        return steps, settings, {"spiece.model": self.proto}

    def _segments(self, text):
        # The filler keeps the number of characters, for the offsets.
        text = tf.strings.regex_replace(text, FILLER, "\ufffd")
        return super()._segments(tf.strings.regex_replace(text, "``|''", f'"{FILLER}'))

    def _normalize(self, text):
        text = super()._normalize(tf.strings.regex_replace(text, FILLER, ""))
        if not self.keep_accents:
            text = tf_text.normalize_utf8(text, "NFKD")
            text = tf.strings.regex_replace(text, r"\p{M}+", "")
        if self.lowercase:
            # Per letter, as `transformers` does: no final sigma, no Turkish i.
            text = tf.strings.regex_replace(text, "\u03a3", "\u03c3")
            text = tf.strings.regex_replace(text, "\u0130", "i\u0307")
            text = tf.strings.lower(tf.strings.lower(text), encoding="utf-8")
        return text


@keras.saving.register_keras_serializable(package="kerasbert")
class DebertaV3Tokenizer(SentencePieceTokenizer):
    """DeBERTa-v3's tokenizer: the SentencePiece model, with `[MASK]` added last if it has none.

    Args:
        proto: bytes of a SentencePiece model, or its path.
        added_tokens, special_tokens_in_strings, unk_token, ...: see `AddedTokensTokenizer`.
        **kwargs: `name`, and so on.
    """

    def __init__(
        self,
        proto: bytes | AnyPath | None = None,
        added_tokens: Sequence[Any] = (),
        special_tokens_in_strings: bool = False,
        unk_token: str = "[UNK]",
        cls_token: str = "[CLS]",
        sep_token: str = "[SEP]",
        pad_token: str = "[PAD]",
        mask_token: str = "[MASK]",
        **kwargs: Any,
    ) -> None:
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

    def _own_description(self):
        return [], {}, {"spm.model": self.proto}

    @classmethod
    def _settings(cls, files, proto):
        for name in ("do_lower_case", "split_by_punct"):
            if files.config.get(name):
                raise ValueError(
                    f"'{files.path('tokenizer_config.json')}' has {name}=true, which "
                    "DebertaV3Tokenizer does not support; load the model with preprocessor=None "
                    "and pass token ids."
                )
        return {}

    @classmethod
    def _in_order_of_ids(cls, proto, special_tokens):
        mask = special_tokens["mask_token"]
        if mask not in {piece.piece for piece in proto.pieces}:
            proto.pieces.add(piece=mask, score=0.0, type=proto.SentencePiece.CONTROL)
        return proto


@keras.saving.register_keras_serializable(package="kerasbert")
class XLNetTokenizer(AlbertTokenizer):
    """XLNet's tokenizer: ALBERT's with `<sep>`, `<cls>` and case preserved.

    Rows end with both tokens and are padded on the left; see `XLNetTextClassifierPreprocessor`.

    Args:
        proto: bytes of a SentencePiece model, or its path.
        lowercase, keep_accents: see `AlbertTokenizer`.
        added_tokens, special_tokens_in_strings, unk_token, ...: see `AddedTokensTokenizer`.
        **kwargs: `name`, and so on.
    """

    marks_last = True

    def __init__(
        self,
        proto: bytes | AnyPath | None = None,
        lowercase: bool = False,
        keep_accents: bool = False,
        added_tokens: Sequence[Any] = (),
        special_tokens_in_strings: bool = False,
        unk_token: str = "<unk>",
        cls_token: str = "<cls>",
        sep_token: str = "<sep>",
        pad_token: str = "<pad>",
        mask_token: str = "<mask>",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            proto,
            lowercase,
            keep_accents,
            added_tokens=added_tokens,
            special_tokens_in_strings=special_tokens_in_strings,
            unk_token=unk_token,
            cls_token=cls_token,
            sep_token=sep_token,
            pad_token=pad_token,
            mask_token=mask_token,
            **kwargs,
        )

    @classmethod
    def _settings(cls, files, proto):
        steps = [step.get("type") for step in files.normalizers()]
        lowercase = files.config.get("do_lower_case", "Lowercase" in steps)
        accents = files.config.get("keep_accents", bool(steps) and "StripAccents" not in steps)
        return {"lowercase": lowercase, "keep_accents": accents}
