"""`SentencePieceTokenizer`, base class of tokenizers with a SentencePiece model.

KerasHub's `SentencePieceTokenizer` uses the same op, but lacks offsets, special tokens in strings,
lowercasing for ALBERT, and ids of a `tokenizer.json`.
"""

from __future__ import annotations

import base64
import hashlib
import os
import pathlib
from typing import TYPE_CHECKING

from kerasbert.backend.tensorflow import tf, tf_text
from kerasbert.base import keras_internals
from kerasbert.text.added_tokens import SPACE, AddedTokensTokenizer
from kerasbert.text.alignment import FILLER, NUL
from kerasbert.text.ops import rows_of
from kerasbert.text.sentence_piece_models import (
    WORD_BEGIN,
    build_proto,
    check_proto,
    hidden_pieces,
    mark_control,
    read_proto,
    scored_pieces,
)
from kerasbert.text.subword import once
from kerasbert.text.tokenizer_files import MODEL_FILES, TokenizerFiles
from kerasbert.text.tokenizer_json import ANY, UnsupportedError, follow, follow_model
from kerasbert.text.tokenizer_rows import check_rows

if TYPE_CHECKING:
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath

# Shapes: S segments of all texts.

VOCABULARY_FILE = "vocabulary.spm"
# The normalization of ALBERT and XLNet.
_CLEANING = ("NFKD", "StripAccents", "Lowercase")
WHITE_SPACE = r"[\t\n\f\r \x{85}\p{Z}]"


class SentencePieceTokenizer(AddedTokensTokenizer):
    """Base class of `XLMRobertaTokenizer`, `AlbertTokenizer` and others.

    Args:
        proto: bytes of a SentencePiece model, or its path.
        **kwargs: see `AddedTokensTokenizer`.
    """

    # Models remove control characters, and may have a piece "▁" before words.
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
            follow_model(files, cls, {"unk_id": unknown})
        # Pieces in the order of their ids, then the added tokens.
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
        mark_control(proto.pieces, control)
        arguments["proto"] = proto.SerializeToString()
        return check_rows(files, cls(**arguments | files.settings() | settings | overrides))

    # Whether quotes, accents and capitals are normalized first.
    _cleans = False

    @classmethod
    def _check_steps(cls, files):
        """Raise if a `tokenizer.json` normalizes or splits texts differently from the class.

        White space ends words, so steps that join spaces have no effect.
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
            known["NFC"] = [{}]  # The character map also composes characters.
        if cls._cleans:
            known |= {"NFKD": [{}], "StripAccents": [{}], "Lowercase": [{}]}
        steps = follow(files, "normalizer", cls, known)
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
        follow(files, "pre_tokenizer", cls, known, orders)

    @classmethod
    def _read(cls, files):
        """Return the SentencePiece model of tokenizer files."""
        files.require("Unigram", cls)
        path = files.path(*MODEL_FILES["Unigram"])
        return build_proto(files) if path is None else read_proto(pathlib.Path(path).read_bytes())

    @classmethod
    def _settings(cls, files, proto):
        """Return further arguments of the constructor."""
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
        mark_control(proto.pieces, special.values())
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
        """Return the SentencePiece model without its last added tokens."""
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
        steps = self._first_steps()
        charsmap = proto.normalizer_spec.precompiled_charsmap
        if charsmap:
            if proto.normalizer_spec.name != "user_defined":
                # `transformers` applies the map to single characters, so it composes none.
                steps.append({"type": "NFC"})
            charsmap = base64.b64encode(charsmap).decode()
            steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
        steps += hidden_pieces(proto)
        scheme = "always" if proto.normalizer_spec.add_dummy_prefix else "never"
        space = {
            "type": "Metaspace",
            "replacement": WORD_BEGIN,
            "prepend_scheme": scheme,
            "split": True,
        }
        unknown = [id for id, piece in enumerate(proto.pieces) if piece.type == kinds.UNKNOWN]
        return {
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

    def _first_steps(self):
        """Return the class's normalizers, before those of the model."""
        return []

    def _as_text(self, token):
        return token.replace(WORD_BEGIN, " ")

    @once
    def _pieces_of_text(self):
        proto = read_proto(self.proto)
        return {p.piece for p in proto.pieces if p.type not in (p.CONTROL, p.UNUSED)}

    def _is_piece(self, token):
        return token in self._pieces_of_text()

    def _normalize(self, text):
        # As in `transformers`, any white space ends a word, except U+000B, which XLM-R's and
        # ALBERT's rules delete.
        text = tf.strings.regex_replace(text, r"\x{0}", NUL)
        if self._composes():
            text = tf_text.normalize_utf8(text, "NFKC")
        return tf.strings.regex_replace(text, WHITE_SPACE, " ")

    @once
    def _composes(self):
        """Return whether added tokens with `normalized` need NFKC."""
        normalized = any(token["normalized"] for token in self._added_tokens())
        return normalized and bool(read_proto(self.proto).normalizer_spec.precompiled_charsmap)

    @once
    def _model(self):
        """Return the model with scores whose sums are exact.

        The choice between segmentations of equal score ("0" "00" or "00" "0") must not depend on
        rounding in float32. Multiples of 2**-14 have exact sums up to 1024.
        """
        proto = self._to_run(read_proto(self.proto))
        for piece in proto.pieces:
            piece.score = round(piece.score * 2**14) / 2**14
        return proto.SerializeToString(deterministic=True)

    def _to_run(self, proto):
        """Return the model in the op's form."""
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
        """Split words (U,): ids, starts and ends in bytes, each ragged (U, pieces)."""
        ops = keras_internals.sentencepiece_ops()
        # The model is part of an op, because a SavedModel could lose track of an object. The unique
        # name keeps models apart.
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
