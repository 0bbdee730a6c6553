"""Tokenizers with a SentencePiece model: XLM-R, CamemBERT, ALBERT, RemBERT, DeBERTa-v3, XLNet and
BERT-Generation.

CamemBERT's tokenizer differs from XLM-R's in its ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from kerasbert.backend.tensorflow import tf, tf_text
from kerasbert.base.keywords import config_of
from kerasbert.text.alignment import FILLER
from kerasbert.text.sentence_piece import SentencePieceTokenizer
from kerasbert.text.sentence_piece_models import read_proto, replace_step
from kerasbert.text.tokenizer_files import ROLES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kerasbert.base.aliases import AnyPath

# Suffix of CamemBERT's duplicate special tokens.
_NOT_USED = "NOTUSED"


def _set_pieces(proto, pieces, **ids):
    """Replace a model's pieces, and set ids such as `unk_id`."""
    del proto.pieces[:]
    proto.pieces.extend(pieces)
    for name, id in ids.items():
        setattr(proto.trainer_spec, name, id)


def _control(proto, names):
    """Return control pieces with these names."""
    kinds = proto.SentencePiece
    return [kinds(piece=name, score=0.0, type=kinds.CONTROL) for name in names]


def original_order(tokenizer):
    """Return an `XLMRobertaTokenizer`'s model in the original order.

    `None` if reading it would not restore the tokenizer's model.
    """
    proto = read_proto(tokenizer.proto)
    pieces = list(proto.pieces)
    roles = ("cls", "pad", "sep", "unk", "mask")
    cls, pad, sep, unk, mask = (getattr(tokenizer, f"{role}_token") for role in roles)
    own = [piece for piece in pieces if piece.piece in (unk, cls, sep)]
    extra = {unk, cls, sep, pad, mask, *(f"{token}{_NOT_USED}" for token in (unk, cls, sep))}
    first = {piece.piece: piece for piece in own}
    if len(own) != 3 or len(first) != 3:
        return None
    pieces = [first[unk], first[cls], first[sep], *(p for p in pieces if p.piece not in extra)]
    _set_pieces(proto, pieces, unk_id=0, bos_id=1, eos_id=2, pad_id=-1)
    data = proto.SerializeToString(deterministic=True)
    again = type(tokenizer)(**config_of(tokenizer) | {"proto": data})
    return data if again.proto == tokenizer.proto else None


@keras.saving.register_keras_serializable(package="kerasbert")
class XLMRobertaTokenizer(SentencePieceTokenizer):
    """XLM-R's tokenizer, with fairseq's ids.

    They are `<s>` 0, `<pad>` 1, `</s>` 2 and `<unk>` 3; `<mask>` is the last id.

    Args:
        proto: bytes of a SentencePiece model, or its path. The original pieces (`<unk>`, `<s>`,
            `</s>`, then the rest) are reordered as in fairseq.
        added_tokens, special_tokens_in_strings, unk_token, ..., kwargs: see
            `AddedTokensTokenizer`.
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
        special = [special_tokens[f"{role}_token"] for role in ROLES]
        if [piece.piece for piece in proto.pieces[:3]] == special[:3]:
            cls._reorder(proto, *special)
        return proto

    @staticmethod
    def _reorder(proto, unk, cls, sep, pad, mask):
        """Put an original model's pieces into fairseq's order."""
        pieces = list(proto.pieces)
        pad_piece, mask_piece = _control(proto, (pad, mask))
        rest = [piece for piece in pieces[3:] if piece.piece not in (pad, mask)]
        pieces = [pieces[1], pad_piece, pieces[2], pieces[0], *rest, mask_piece]
        _set_pieces(proto, pieces, bos_id=0, pad_id=1, eos_id=2, unk_id=3)

    def model_files(self) -> dict[str, bytes]:
        original = original_order(self)
        return {} if original is None else {"sentencepiece.bpe.model": original}


@keras.saving.register_keras_serializable(package="kerasbert")
class CamembertTokenizer(XLMRobertaTokenizer):
    """CamemBERT's tokenizer: XLM-R's with `<pad>` 1, `<unk>` 3, `<s>` 5, `</s>` 6.

    Args: see `XLMRobertaTokenizer`.
    """

    @staticmethod
    def _reorder(proto, unk, cls, sep, pad, mask):
        """Put the pieces of CamemBERT's original model in the order of its ids.

        fairseq put its own four special tokens before all pieces of the file.
        """
        pieces = list(proto.pieces)
        first = [f"{cls}{_NOT_USED}", pad, f"{sep}{_NOT_USED}", f"{unk}{_NOT_USED}", mask]
        first = _control(proto, first)
        pieces = [*first[:3], pieces[0], first[3], *pieces[1:], first[4]]
        _set_pieces(proto, pieces, pad_id=1, unk_id=3, bos_id=5, eos_id=6)


@keras.saving.register_keras_serializable(package="kerasbert")
class AlbertTokenizer(SentencePieceTokenizer):
    """ALBERT's tokenizer: normalization and a SentencePiece model.

    Args:
        proto: bytes of a SentencePiece model, or its path.
        lowercase: whether to lowercase texts.
        keep_accents: bool. `False` removes accents (after NFKD).
        added_tokens, special_tokens_in_strings, unk_token, ..., kwargs: see
            `AddedTokensTokenizer`.
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
        found = {}  # For the rest, the constructor's defaults apply.
        if steps:
            found = {"lowercase": "Lowercase" in steps, "keep_accents": "StripAccents" not in steps}
        for name, key in (("lowercase", "do_lower_case"), ("keep_accents", "keep_accents")):
            if key in files.config:
                found[name] = files.config[key]
        return found

    def model_files(self) -> dict[str, bytes]:
        return {"spiece.model": self.proto}

    def config_settings(self) -> dict[str, Any]:
        return {"do_lower_case": self.lowercase, "keep_accents": self.keep_accents}

    def _first_steps(self):
        steps = [replace_step(quotes, '"') for quotes in ("``", "''")]
        if not self.keep_accents:
            steps += [{"type": "NFKD"}, {"type": "StripAccents"}]
        if self.lowercase:
            steps.append({"type": "Lowercase"})
        return steps

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
            # As in `transformers`, a final sigma and the Turkish i have no special rules.
            text = tf.strings.regex_replace(text, "\u03a3", "\u03c3")
            text = tf.strings.regex_replace(text, "\u0130", "i\u0307")
            text = tf.strings.lower(tf.strings.lower(text), encoding="utf-8")
        return text


@keras.saving.register_keras_serializable(package="kerasbert")
class RemBertTokenizer(AlbertTokenizer):
    """RemBERT's tokenizer: ALBERT's with upper case and accents.

    Args:
        proto: bytes of a SentencePiece model, or its path.
        lowercase, keep_accents: see `AlbertTokenizer`.
        added_tokens, special_tokens_in_strings, unk_token, ..., kwargs: see
            `AddedTokensTokenizer`.
    """

    def __init__(
        self,
        proto: bytes | AnyPath | None = None,
        lowercase: bool = False,
        keep_accents: bool = True,
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

    def model_files(self) -> dict[str, bytes]:
        return {"sentencepiece.model": self.proto}


@keras.saving.register_keras_serializable(package="kerasbert")
class DebertaV3Tokenizer(SentencePieceTokenizer):
    """DeBERTa-v3's tokenizer: a SentencePiece model. If it has no `[MASK]`, this is the last id.

    Args:
        proto: bytes of a SentencePiece model, or its path.
        added_tokens, special_tokens_in_strings, unk_token, ..., kwargs: see
            `AddedTokensTokenizer`.
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

    def model_files(self) -> dict[str, bytes]:
        return {"spm.model": self.proto}

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
    """XLNet's tokenizer: ALBERT's with `<sep>` and `<cls>`, and without lowercasing.

    Rows end with these two and are padded on the left; see `XLNetTextClassifierPreprocessor`.

    Args:
        proto: bytes of a SentencePiece model, or its path.
        lowercase, keep_accents: see `AlbertTokenizer`.
        added_tokens, special_tokens_in_strings, unk_token, ..., kwargs: see
            `AddedTokensTokenizer`.
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


@keras.saving.register_keras_serializable(package="kerasbert")
class BertGenerationTokenizer(SentencePieceTokenizer):
    """BERT-Generation's tokenizer: a SentencePiece model, and rows without special tokens.

    `</s>` ends generated texts, as the tokenizer's `sep_token`. Without a mask token, the unknown
    token has its role.

    Args:
        proto: bytes of a SentencePiece model, or its path.
        added_tokens, special_tokens_in_strings, unk_token, ...: see `AddedTokensTokenizer`.
        **kwargs: `name`, and so on.
    """

    marks_ends = False

    def __init__(
        self,
        proto: bytes | AnyPath | None = None,
        added_tokens: Sequence[Any] = (),
        special_tokens_in_strings: bool = False,
        unk_token: str = "<unk>",
        cls_token: str = "<s>",
        sep_token: str = "</s>",
        pad_token: str = "<pad>",
        mask_token: str = "<unk>",
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

    def model_files(self) -> dict[str, bytes]:
        return {"spiece.model": self.proto}
