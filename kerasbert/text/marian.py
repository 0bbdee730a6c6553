"""Marian's tokenizer: a SentencePiece model per language, and a shared vocabulary."""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base.files import read_json
from kerasbert.base.strict_json import to_json
from kerasbert.text.byte_pair import fingerprint
from kerasbert.text.ops import rows_of
from kerasbert.text.sentence_piece import SentencePieceTokenizer
from kerasbert.text.sentence_piece_families import XLMRobertaTokenizer
from kerasbert.text.sentence_piece_models import check_proto, mark_control, read_proto
from kerasbert.text.subword import once, variant
from kerasbert.text.tokenizer_files import TokenizerFiles
from kerasbert.text.vocabulary_files import tokens_by_id

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath

SOURCE_FILE, TARGET_FILE, IDS_FILE = FILES = ("source.spm", "target.spm", "vocab.json")


@keras.saving.register_keras_serializable(package="kerasbert")
class MarianTokenizer(SentencePieceTokenizer):
    """Tokenizer of Marian's translation models, for source texts; `for_targets` is that of targets.

    Pieces outside the vocabulary become the unknown token. Language codes in the vocabulary, such
    as `>>fra<<`, are single tokens. As in Marian, a target begins with the padding token.

    Args:
        source, target: bytes of the SentencePiece models, or their paths.
        tokens: list of strings. The vocabulary, in the order of the ids.
        special_tokens_in_strings, **kwargs: see `AddedTokensTokenizer`.
        unk_token, sep_token, pad_token: strings. Special tokens. Each text ends with `sep_token`.
    """

    def __init__(
        self,
        source: bytes | AnyPath | None = None,
        target: bytes | AnyPath | None = None,
        tokens: Sequence[str] | None = None,
        special_tokens_in_strings: bool = False,
        unk_token: str = "<unk>",
        sep_token: str = "</s>",
        pad_token: str = "<pad>",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            None,
            added_tokens=(),
            special_tokens_in_strings=special_tokens_in_strings,
            unk_token=unk_token,
            cls_token=pad_token,
            sep_token=sep_token,
            pad_token=pad_token,
            mask_token=unk_token,
            **kwargs,
        )
        self.file_assets = list(FILES)
        self.source = self.target = None
        given = [one is not None for one in (source, target, tokens)]
        if any(given) and not all(given):
            raise ValueError(
                "A MarianTokenizer needs its three parts together: pass source, target and tokens."
            )
        if all(given):
            self._set_parts(_bytes(source), _bytes(target), tokens)

    def _set_parts(self, source, target, tokens):
        self.source, self.target = source, target
        codes = [token for token in tokens if token.startswith(">>") and token.endswith("<<")]
        self.added_tokens = [{"content": code} for code in codes]
        self._set_tokens(tokens)
        self.proto = self._by_ids(source)

    def _by_ids(self, data):
        """Return a SentencePiece model with its pieces in the vocabulary's order, others last."""
        proto = read_proto(data)
        kinds = proto.SentencePiece
        own = {piece.piece: piece for piece in proto.pieces}
        ordered = [
            own.get(token) or kinds(piece=token, score=0.0, type=kinds.CONTROL)
            for token in self.vocabulary
        ]
        others = [piece for name, piece in own.items() if name not in self._token_ids]
        copies = [kinds.FromString(piece.SerializeToString()) for piece in ordered]
        copies += [kinds.FromString(p.SerializeToString()) for p in others if p.type != p.CONTROL]
        mark_control(copies, self.special_tokens)
        del proto.pieces[:]
        proto.pieces.extend(copies)
        check_proto(proto)
        return proto.SerializeToString(deterministic=True)

    def for_targets(self) -> Self:
        """Return the tokenizer for targets, which shares the vocabulary.

        Saving in Keras would traverse a property without end.
        """
        self._check_vocabulary()
        return variant(self, "targets", lambda: {"proto": self._by_ids(self.target)})

    @classmethod
    def from_files(cls, directory: AnyPath, **overrides: Any) -> Self:
        """Read `source.spm`, `target.spm` and `vocab.json` of a directory.

        Args:
            directory: string.
            **overrides: arguments of the constructor that replace the directory's.
        """
        files = TokenizerFiles(directory)
        missing = [name for name in FILES if files.path(name) is None]
        if missing:
            raise ValueError(
                f"{cls.__name__} needs {', '.join(missing)} in '{os.fspath(directory)}'."
            )
        if files.config.get("separate_vocabs"):
            raise ValueError(
                f"'{os.fspath(directory)}' has a vocabulary for each language (separate_vocabs), "
                "but this model has one table for both; use a checkpoint with a shared vocabulary."
            )
        tokens = tokens_by_id(read_json(files.path(IDS_FILE)))
        # Marian's special tokens are named like XLM-R's.
        named = files.special_tokens(XLMRobertaTokenizer, tokens)
        arguments = {name: named[name] for name in ("unk_token", "sep_token", "pad_token")}
        arguments |= {"source": files.path(SOURCE_FILE), "target": files.path(TARGET_FILE)}
        return cls(**{**arguments, "tokens": tokens, **files.settings(), **overrides})

    def files(self) -> dict[str, bytes]:
        """Return the files that `from_files` reads, as a dict of name to bytes."""
        self._check_vocabulary()
        ids = to_json(self._token_ids, ensure_ascii=False, indent=2)
        return dict(zip(FILES, (self.source, self.target, ids.encode())))

    def save_assets(self, dir_path: AnyPath) -> None:
        for name, data in self.files().items():
            pathlib.Path(dir_path, name).write_bytes(data)

    def load_assets(self, dir_path: AnyPath) -> None:
        source, target, ids = (pathlib.Path(dir_path, name) for name in FILES)
        self._set_parts(source.read_bytes(), target.read_bytes(), tokens_by_id(read_json(ids)))

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        for name in ("proto", "added_tokens", "cls_token", "mask_token"):
            config.pop(name)  # Follows from the others.
        return config

    def _split_words(self, words):
        ids, starts, ends = super()._split_words(words)
        flat, unknown = ids.flat_values, self.unk_token_id
        # Text unknown to this model may be a token of the other language.
        sizes = ends.flat_values - starts.flat_values
        text = tf.gather(words, rows_of(ids))
        text = tf.strings.substr(text, starts.flat_values, sizes)
        prints, names, others = self._others()
        if len(prints):
            at = tf.searchsorted(tf.constant(prints), fingerprint(text))
            at = tf.minimum(at, len(prints) - 1)
            is_other = (flat == unknown) & (tf.gather(tf.constant(names), at) == text)
            flat = tf.where(is_other, tf.gather(tf.constant(others), at), flat)
        known = tf.where(flat < len(self.vocabulary), flat, unknown)
        return ids.with_flat_values(known), starts, ends

    @once
    def _others(self):
        """Return sorted fingerprints, texts and ids of tokens not in the model.

        Constants, because a SavedModel could lose track of a table.
        """
        proto = read_proto(self.proto)
        pieces = proto.pieces[: len(self.vocabulary)]
        others = [id for id, piece in enumerate(pieces) if piece.type == piece.CONTROL]
        others = [id for id in others if pieces[id].piece not in self.special_tokens]
        names = np.array([pieces[id].piece.encode() for id in others], object)
        with tf.init_scope(), tf.device("cpu"):
            prints = fingerprint(tf.constant(names, "string")).numpy()
        order = np.argsort(prints)
        return prints[order], names[order], np.array(others, "int32")[order]


def _bytes(model):
    return model if isinstance(model, bytes) else pathlib.Path(model).read_bytes()
