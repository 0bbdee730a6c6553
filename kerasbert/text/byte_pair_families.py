"""Byte-pair tokenizers: RoBERTa, GPT-2 and ModernBERT merge bytes, and GPT merges characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base import keras_internals
from kerasbert.base.errors import need_fields
from kerasbert.text.alignment import distinct
from kerasbert.text.bert_characters import CJK, PUNCTUATION, SPACE, plain_text
from kerasbert.text.byte_pair import OPTIONS, BytePairTokenizer, fingerprint
from kerasbert.text.ops import rows_of
from kerasbert.text.subword import once
from kerasbert.text.tokenizer_json import follow, follow_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# Shapes: S segments and W words, U distinct words, C code points of distinct words.

END_OF_WORD = "</w>"


@keras.saving.register_keras_serializable(package="kerasbert")
class RobertaTokenizer(BytePairTokenizer):
    """RoBERTa's byte-level byte-pair tokenizer.

    Args: see `BytePairTokenizer`.

    >>> from kerasbert.text.byte_pair import byte_characters
    >>> letters = {c: i + 5 for i, c in enumerate(byte_characters())}
    >>> vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4, **letters}
    >>> vocabulary |= {"lo": 261, "Ġlo": 262}
    >>> tokenizer = RobertaTokenizer(vocabulary, ["l o", "Ġ lo"])
    >>> tokenizer.tokenize_with_offsets("lo lo")
    ([261, 262], [0, 3], [2, 5])
    >>> tokenizer.detokenize([261, 262])
    'lo lo'
    """

    num_separators = 2

    def __init__(
        self,
        vocabulary: Any = None,
        merges: Any = None,
        add_prefix_space: bool = False,
        normalization: str | None = None,
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
            vocabulary,
            merges,
            add_prefix_space,
            normalization,
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
class GPT2Tokenizer(BytePairTokenizer):
    """GPT-2's byte-level byte-pair tokenizer, with a single special token for all roles.

    Args: see `BytePairTokenizer`.

    >>> from kerasbert.text.byte_pair import byte_characters
    >>> letters = {c: i for i, c in enumerate(byte_characters())}
    >>> vocabulary = {**letters, "lo": 256, "Ġlo": 257, "<|endoftext|>": 258}
    >>> tokenizer = GPT2Tokenizer(vocabulary, ["l o", "Ġ lo"])
    >>> tokenizer("lo lo"), tokenizer.end_token_id
    ([256, 257], 258)
    """

    marks_ends = False

    def __init__(
        self,
        vocabulary: Any = None,
        merges: Any = None,
        add_prefix_space: bool = False,
        normalization: str | None = None,
        added_tokens: Sequence[Any] = (),
        special_tokens_in_strings: bool = False,
        unk_token: str = "<|endoftext|>",
        cls_token: str = "<|endoftext|>",
        sep_token: str = "<|endoftext|>",
        pad_token: str = "<|endoftext|>",
        mask_token: str = "<|endoftext|>",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            vocabulary,
            merges,
            add_prefix_space,
            normalization,
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
class ModernBertTokenizer(BytePairTokenizer):
    """ModernBERT's byte-level byte-pair tokenizer, with NFC and added tokens for runs of spaces.

    Args: see `BytePairTokenizer`.
    """

    def __init__(
        self,
        vocabulary: Any = None,
        merges: Any = None,
        add_prefix_space: bool = False,
        normalization: str | None = "NFC",
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
            vocabulary,
            merges,
            add_prefix_space,
            normalization,
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
class GPTTokenizer(BytePairTokenizer):
    """GPT's byte-pair tokenizer (Radford et al. 2018).

    It lowercases, splits words like BERT, and merges characters. Ids are those of `transformers`.

    The last piece of a word ends with `</w>`. Its only special token, for unknown characters, has
    all other roles too.

    Args: see `BytePairTokenizer`.

    >>> tokens = ["<unk>", "l", "o", "o</w>", "lo</w>"]
    >>> tokenizer = GPTTokenizer({token: i for i, token in enumerate(tokens)}, ["l o</w>"])
    >>> tokenizer("Lo lolo x"), tokenizer.detokenize([4, 1, 2, 4])
    ([4, 1, 2, 4, 0], 'lo lolo')
    """

    marks_ends = False
    _spaced = CJK

    def __init__(
        self,
        vocabulary: Any = None,
        merges: Any = None,
        added_tokens: Sequence[Any] = (),
        special_tokens_in_strings: bool = False,
        unk_token: str = "<unk>",
        cls_token: str = "<unk>",
        sep_token: str = "<unk>",
        pad_token: str = "<unk>",
        mask_token: str = "<unk>",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            vocabulary,
            merges,
            add_prefix_space=False,
            normalization=None,
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
    def _words_of(cls, files):
        if files.model:
            form = {"clean_text": (True,), "handle_chinese_chars": (True,), "lowercase": (True,)}
            known = {"BertNormalizer": [{**form, "strip_accents": (None, True)}]}
            follow(files, "normalizer", cls, known, [["BertNormalizer"]])
            known = {"BertPreTokenizer": [{}]}
            follow(files, "pre_tokenizer", cls, known, [["BertPreTokenizer"]])
            more = {"continuing_subword_prefix": (None, ""), "fuse_unk": (False,)}
            follow_model(files, cls, OPTIONS | more | {"end_of_word_suffix": (END_OF_WORD,)})
            need_fields(files.model, ["end_of_word_suffix"], files.path("tokenizer.json"))
        return {}

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        for name in ("add_prefix_space", "normalization"):
            config.pop(name)
        return config

    @once
    def _contents(self):
        return [token.removesuffix(END_OF_WORD).encode() for token in self.vocabulary]

    def _word_edges(self, token):
        return False, token.endswith(END_OF_WORD)

    @once
    def _characters(self):
        """Return fingerprints and ids of one-character tokens, inside a word and at its end."""
        tokens = [t for t in self.vocabulary if len(t.removesuffix(END_OF_WORD)) == 1]
        with tf.init_scope(), tf.device("cpu"):
            prints = fingerprint(tf.constant(tokens, tf.string)).numpy()
        order = np.argsort(prints)
        ids = np.array([self._token_ids[token] for token in tokens], "int32")
        return prints[order], ids[order]

    def _normalize(self, text):
        return plain_text(text, lowercase=True, strip_accents=True)

    def _symbols(self, words):
        points = tf.strings.unicode_decode(words, "UTF-8")  # (U, None), C in total
        characters, index = distinct(points.flat_values)
        sizes = tf.gather(tf.strings.length(characters), index)  # (C,), in bytes
        is_last = tf.range(tf.size(index, tf.int64)) + 1
        is_last = is_last == tf.gather(points.row_limits(), rows_of(points))
        symbols = tf.gather(characters, index)
        symbols = tf.where(is_last, symbols + END_OF_WORD, symbols)
        prints, ids = self._characters()
        unknown = self._token_ids[self.unk_token]
        found = tf.fill(tf.shape(index), unknown)
        if len(prints):
            wanted = fingerprint(symbols)
            at = tf.minimum(tf.searchsorted(tf.constant(prints), wanted), len(prints) - 1)
            is_same = tf.gather(tf.constant(prints), at) == wanted
            found = tf.where(is_same, tf.gather(tf.constant(ids), at), unknown)
        return found, tf.cumsum(sizes, exclusive=True)

    def _split(self, segments, known):
        kept = CJK + PUNCTUATION
        text = tf.where(known < 0, segments, "")
        words, begins, ends = keras_internals.regex_split_with_offsets(
            text, f"[{SPACE}{kept}]", f"[{kept}]"
        )  # (S, words)
        row = rows_of(words)
        ids, places = self._of_words(words.flat_values)  # (W, pieces)
        word = rows_of(ids)
        starts = tf.gather(tf.cast(begins.flat_values, "int32"), word) + places.flat_values
        # A piece ends where the next piece of its word begins, or with the word.
        limits = tf.gather(tf.cast(ends.flat_values, "int32"), word)
        is_last = tf.concat([word[1:] != word[:-1], tf.ones_like(word[:1], "bool")], 0)
        ends = tf.where(is_last, limits, tf.concat([starts[1:], starts[:1]], 0))
        rows = tf.gather(row, word)
        return tuple(
            tf.RaggedTensor.from_value_rowids(
                x, rows, tf.size(segments, rows.dtype), validate=False
            )
            for x in (ids.flat_values, starts, ends)
        )

    def _decode(self, rows):
        texts = ("".join(self.vocabulary[id] for id in row) for row in rows)
        return [text.replace(END_OF_WORD, " ").removesuffix(" ") for text in texts]

    def _detokenize(self, ids):
        text = tf.strings.reduce_join(tf.gather(tf.constant(self.vocabulary), ids), -1)
        text = tf.strings.regex_replace(text, END_OF_WORD, " ")
        return tf.strings.regex_replace(text, " $", "")

    def config_settings(self) -> dict[str, Any]:
        return {}

    def described(self) -> dict[str, Any]:
        described = super().described()
        model = {"unk_token": self.unk_token, "end_of_word_suffix": END_OF_WORD}
        return {
            **described,
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": None,
                "lowercase": True,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "decoder": {"type": "BPEDecoder", "suffix": END_OF_WORD},
            "model": {**described["model"], **model},
        }

    def _other_in_library(self, offsets):
        return None

    def trims_offsets(self) -> dict[str, Any] | None:
        return None
