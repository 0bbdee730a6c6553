"""BERT's tokenizer (Devlin et al. 2019; `tokenization.py` of google-research/bert)."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import keras

from kerasbert.backend.tensorflow import tf, tf_text
from kerasbert.base import keras_internals
from kerasbert.base.errors import check_choice
from kerasbert.base.files import write_files
from kerasbert.base.process import check_process
from kerasbert.text.added_tokens import STAND_IN, AddedTokensTokenizer
from kerasbert.text.alignment import distinct
from kerasbert.text.bert_characters import (
    ACCENTS,
    CJK,
    OPAQUE,
    OTHER_IN_LIBRARY,
    PRIVATE_USE,
    PUNCTUATION,
    SPACE,
    YOUNG_CAPITALS,
    as_in_library,
    plain_text,
)
from kerasbert.text.ops import rows_of
from kerasbert.text.subword import once
from kerasbert.text.tokenizer_files import TokenizerFiles
from kerasbert.text.tokenizer_rows import check_rows
from kerasbert.text.vocabulary_files import as_lines, read_vocabulary
from kerasbert.text.wordpiece_files import wordpiece_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath

# Shapes: N texts, P pieces and W words of a text, C code points of all texts, U distinct ones.

VOCABULARY_FILE = "vocabulary.txt"
MAX_WORD_CHARACTERS = 200
CHARACTER_RULES = ("google", "tokenizers")


def _each(pattern):
    """Return a step of a `tokenizer.json` that makes each match of a pattern a word."""
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


@keras.saving.register_keras_serializable(package="kerasbert")
class BertTokenizer(AddedTokensTokenizer):
    """WordPiece of google-research/bert, for BERT, ELECTRA and DistilBERT.

    It removes control characters, splits texts at white space, punctuation and CJK characters, and
    words into the longest pieces of the vocabulary. Words that are too long, or that pieces cannot
    make up, become `[UNK]`.

    Args:
        vocabulary: list of tokens in the order of their ids, or the path of a `vocab.txt`.
        lowercase: whether to lowercase texts; `True` for "uncased" checkpoints.
        strip_accents: whether to remove accents (after NFD); `None` means as `lowercase`.
        split_on_cjk: whether each CJK character is a word.
        split_on_punctuation: whether each punctuation character is a word. `False` for segmented
            texts, as for Japanese checkpoints.
        split_characters: whether every character is a word (`subword_tokenizer_type` "character" of
            Japanese checkpoints).
        split_on: further characters that are words, as in the brackets of a regular expression,
            such as "ㄱ-ㆎ". ㅋㅋ and emoji directly after a word would make it unknown.
        suffix_indicator: prefix of pieces that do not begin a word.
        special_tokens_in_strings, unk_token, ...: see `AddedTokensTokenizer`.
        extra_special_tokens: list of further tokens that `special_tokens_in_strings` matches.
        added_tokens, **kwargs: see `AddedTokensTokenizer`.
        max_input_chars_per_word: maximum length of a word that is split: 200 in
            google-research/bert, 100 in most files of `transformers`.
        character_rules: "google" for google-research/bert, or "tokenizers" for the library, which
            deletes private-use characters and has no final sigma and an older Unicode. `from_files`
            follows the library where there is a `tokenizer.json`.

    Raises:
        ValueError: if a special token is not in the vocabulary, or a token occurs twice.

    >>> words = "[PAD] [UNK] [CLS] [SEP] [MASK] the qu ##ick fox ."
    >>> tokenizer = BertTokenizer(words.split(), lowercase=True)
    >>> tokenizer("The quick fox.")
    [5, 6, 7, 8, 9]
    >>> tokenizer.tokenize_with_offsets("The quíck fox.")
    ([5, 6, 7, 8, 9], [0, 4, 6, 10, 13], [3, 6, 9, 13, 14])
    >>> tokenizer.detokenize([5, 6, 7, 8])
    'the quick fox'
    """

    def __init__(
        self,
        vocabulary: Sequence[str] | None = None,
        lowercase: bool = False,
        strip_accents: bool | None = None,
        split_on_cjk: bool = True,
        split_on_punctuation: bool = True,
        split_characters: bool = False,
        suffix_indicator: str = "##",
        special_tokens_in_strings: bool = False,
        unk_token: str = "[UNK]",
        cls_token: str = "[CLS]",
        sep_token: str = "[SEP]",
        pad_token: str = "[PAD]",
        mask_token: str = "[MASK]",
        extra_special_tokens: Sequence[Any] = (),
        added_tokens: Sequence[Any] = (),
        max_input_chars_per_word: int = MAX_WORD_CHARACTERS,
        split_on: str = "",
        character_rules: str = "google",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            added_tokens,
            special_tokens_in_strings,
            unk_token,
            cls_token,
            sep_token,
            pad_token,
            mask_token,
            **kwargs,
        )
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self.split_on_cjk = split_on_cjk
        self.split_on_punctuation = split_on_punctuation
        self.split_characters = split_characters
        self.suffix_indicator = suffix_indicator
        self.extra_special_tokens = extra_special_tokens
        self.max_input_chars_per_word = max_input_chars_per_word
        self.split_on = split_on
        check_choice("character_rules", character_rules, CHARACTER_RULES)
        self.character_rules = character_rules
        self.file_assets = [VOCABULARY_FILE]
        self.set_vocabulary(vocabulary)

    @classmethod
    def from_files(cls, directory: AnyPath, **overrides: Any) -> Self:
        """Read the tokenizer of a Google or Hugging Face directory, with its settings.

        Args:
            directory: string. Has a `vocab.txt` or a `tokenizer.json`.
            **overrides: arguments of the constructor that replace the directory's.
        """
        files = TokenizerFiles(directory)
        return check_rows(files, cls(**wordpiece_arguments(files, cls) | overrides))

    def set_vocabulary(self, vocabulary: Any) -> None:
        """Set the vocabulary: a list of tokens, or the path of a `vocab.txt`."""
        if isinstance(vocabulary, (str, os.PathLike)):
            vocabulary = read_vocabulary(vocabulary)
        self._set_tokens(vocabulary)

    def save_assets(self, dir_path: AnyPath) -> None:
        self._check_vocabulary()
        write_files(dir_path, {VOCABULARY_FILE: as_lines(self.vocabulary)})

    def load_assets(self, dir_path: AnyPath) -> None:
        self.set_vocabulary(os.path.join(dir_path, VOCABULARY_FILE))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "vocabulary": None,  # Saved as an asset.
            "lowercase": self.lowercase,
            "strip_accents": self.strip_accents,
            "split_on_cjk": self.split_on_cjk,
            "split_on_punctuation": self.split_on_punctuation,
            "split_characters": self.split_characters,
            "suffix_indicator": self.suffix_indicator,
            "extra_special_tokens": list(self.extra_special_tokens),
            "max_input_chars_per_word": self.max_input_chars_per_word,
            **({"split_on": self.split_on} if self.split_on else {}),
            # Earlier versions have only Google's rules.
            **({} if self.character_rules == "google" else {"character_rules": "tokenizers"}),
        }

    def _file_tokens(self):
        """Return the tokens without the last added tokens, which files list elsewhere."""
        extra = {token["content"] for token in self.added_tokens if token.get("extra")}
        return self.vocabulary[: self._size_without(extra)]

    def model_files(self) -> dict[str, bytes]:
        return {"vocab.txt": as_lines(self._file_tokens())}

    def config_settings(self) -> dict[str, Any]:
        settings = {
            "do_lower_case": self.lowercase,
            "strip_accents": self.strip_accents,
            "tokenize_chinese_chars": self.split_on_cjk,
        }
        if self.max_input_chars_per_word != MAX_WORD_CHARACTERS:
            settings["max_input_chars_per_word"] = self.max_input_chars_per_word
        if self.split_characters:
            settings["subword_tokenizer_type"] = "character"
        if self.split_on:
            settings["split_on"] = self.split_on
        # Without this entry, readers of a `tokenizer.json` would follow the library.
        if self.character_rules == "google":
            settings["character_rules"] = "google"
        return settings

    def described(self) -> dict[str, Any]:
        words = {"type": "BertPreTokenizer" if self.split_on_punctuation else "WhitespaceSplit"}
        if self.split_characters:
            words = {"type": "Sequence", "pretokenizers": [words, _each(".")]}
        elif self.split_on:
            each = _each(f"[{self.split_on}]")
            words = {"type": "Sequence", "pretokenizers": [each, words]}
        return {
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": self.split_on_cjk,
                "strip_accents": self.strip_accents,
                "lowercase": self.lowercase,
            },
            "pre_tokenizer": words,
            "decoder": {"type": "WordPiece", "prefix": self.suffix_indicator, "cleanup": True},
            "model": {
                "type": "WordPiece",
                "unk_token": self.unk_token,
                "continuing_subword_prefix": self.suffix_indicator,
                "max_input_chars_per_word": self.max_input_chars_per_word,
                "vocab": {token: id for id, token in enumerate(self._file_tokens())},
            },
        }

    def _word_edges(self, token):
        return not token.startswith(self.suffix_indicator), False

    @property
    def _strips(self):
        return self.lowercase if self.strip_accents is None else self.strip_accents

    def _other_in_library(self, offsets):
        if self.character_rules == "tokenizers":
            return ()
        return (OTHER_IN_LIBRARY, ACCENTS) if offsets and self._strips else (OTHER_IN_LIBRARY,)

    def _as_text(self, token):
        return token.removeprefix(self.suffix_indicator)

    # Special tokens in a text

    @property
    def control_tokens(self) -> list[str]:
        return list(dict.fromkeys(super().control_tokens + list(self.extra_special_tokens)))

    def _strips_left(self, token):
        return False

    @property
    def _spaced(self):
        return CJK if self.split_on_cjk else ""

    # From text to pieces

    @once
    def _wordpiece(self):
        """Return TF.Text's WordPiece tokenizer for the vocabulary."""
        extra = {token["content"] for token in self.added_tokens if token.get("extra")}
        tokens = [
            f"\x01{id}" if token in extra else self._matchable(token, id)
            for id, token in enumerate(self.vocabulary)
        ]
        check_process("tensorflow")  # Not in `try`: not about the vocabulary.
        try:
            with tf.init_scope(), tf.device("cpu"):
                return tf_text.FastWordpieceTokenizer(
                    vocab=tokens,
                    suffix_indicator=self.suffix_indicator,
                    max_bytes_per_word=1 << 30,  # `_rewrite` applies a limit, in characters.
                    unknown_token=self.unk_token,
                    token_out_type=tf.int32,
                    no_pretokenization=not (self.split_on_cjk and self.split_on_punctuation),
                )
        except RuntimeError as error:
            raise ValueError(
                f"The vocabulary of {len(tokens)} tokens, such as {self.vocabulary[-1]!r}, has "
                f"none for words ({error}); check that its file is complete."
            ) from error

    def _matchable(self, token, id):
        """Return a token, or a name that is in no text if no word can become it."""
        if self.character_rules == "tokenizers":
            if re.search(f"[{PRIVATE_USE}]", token):
                return f"\x01{id}"
            token = token.translate(OPAQUE)
        word = token.removeprefix(self.suffix_indicator)
        if not word or re.search(r"[\x00-\x20\x7f-\x9f\ufffd\U0010ffff]|\s", token):
            return f"\x01{id}"
        if len(word.encode("utf-8", "replace")) > 256:
            if len(word) > self.max_input_chars_per_word:
                return f"\x01{id}"
            raise ValueError(
                f"Token {id} of the vocabulary, {token[:20]!r}..., has "
                f"{len(word.encode('utf-8'))} bytes; TF.Text supports at most 256."
            )
        return token

    def _normalize(self, text):
        """Clean and optionally lowercase texts (N,)."""
        if self.character_rules == "tokenizers":
            flags = self.lowercase, self._strips, self.split_on_punctuation
            text = as_in_library(text, *flags)
        text = plain_text(text, self.lowercase, self._strips)
        if self.split_characters:
            return tf.strings.regex_replace(text, f"[^{SPACE}]", r" \0 ")
        if self.split_on:
            text = tf.strings.regex_replace(text, f"[{self.split_on}]", r" \0 ")
        rare = tf.strings.regex_full_match(text, self._rare())
        return tf.cond(tf.reduce_any(rare), lambda: self._rewrite(text), lambda: text)

    def _single_words(self):
        """Return the characters that are words, for a regular expression."""
        # `STAND_IN`, which is in no text, keeps the class from being empty.
        cjk = CJK if self.split_on_cjk else STAND_IN
        return cjk + (PUNCTUATION if self.split_on_punctuation else "")

    def _rare(self):
        """Return a fast regular expression for all texts that may need `_rewrite`."""
        # Only some characters of PUNCTUATION and CJK, and a limited length, because RE2 allows
        # neither 201 repetitions of such large classes, nor many more of any.
        length = min(self.max_input_chars_per_word, MAX_WORD_CHARACTERS) + 1
        long_word = rf"[^{SPACE}!-/:-@\[-`{{-~、。一-鿿]{{{length}}}"
        capitals = "".join(rf"\x{{{a:X}}}-\x{{{b:X}}}" for a, b, _ in YOUNG_CAPITALS)
        found = f"(?:{long_word}|[{capitals}])" if self.lowercase else long_word
        return f"(?s).*{found}.*"

    def _rewrite(self, text):
        """Lowercase newer capitals, and make too long words unknown, of equal length."""
        points = tf.strings.unicode_decode(text, "UTF-8")  # (N, None)
        rows = rows_of(points)
        points = points.flat_values  # (C,)
        if self.lowercase:
            first, last, distance = map(tf.constant, zip(*YOUNG_CAPITALS))
            column = points[:, tf.newaxis]
            is_young = (column >= first) & (column <= last)  # (C, ranges)
            points += tf.reduce_sum(tf.where(is_young, distance, 0), axis=1)
        characters, index = distinct(points)  # (U,)
        between = tf.strings.regex_full_match(characters, f"[{SPACE}{self._single_words()}]")
        between = tf.gather(between, index)  # (C,)
        begins = tf.concat([[True], (rows[1:] != rows[:-1]) | between[:-1]], 0) & ~between
        word = tf.cumsum(tf.cast(between | begins, "int32"))  # (C,); 1, 2, ...
        size = tf.math.segment_sum(tf.cast(~between, "int32"), word)
        too_long = tf.gather(size, word) > self.max_input_chars_per_word
        # No token has these characters, so words with them are unknown.
        unknown = tf.constant([0, 0x02, 0x82, 0xFFFD, 0x10FFFF])
        unknown = tf.gather(unknown, tf.strings.length(characters))  # (U,), of equal byte lengths
        points = tf.where(begins & too_long, tf.gather(unknown, index), points)
        counts = tf.math.bincount(tf.cast(rows, "int32"), minlength=tf.size(text))
        points = tf.RaggedTensor.from_row_lengths(points, counts, validate=False)
        return tf.strings.unicode_encode(points, "UTF-8")

    def _split(self, segments, known):
        wordpiece = self._wordpiece()
        text = tf.where(known < 0, segments, "")
        if self.split_on_cjk and self.split_on_punctuation:
            pieces, starts, ends = wordpiece.tokenize_with_offsets(text)
        else:
            kept = self._single_words()
            words, begins, _ = keras_internals.regex_split_with_offsets(
                text, f"[{SPACE}{kept}]", f"[{kept}]"
            )
            ids, starts, ends = wordpiece.tokenize_with_offsets(words.flat_values)  # (S * W, P)
            begins = tf.gather(begins.flat_values, rows_of(ids))
            pieces = words.with_flat_values(ids.with_row_splits_dtype("int64")).merge_dims(1, 2)
            starts = pieces.with_values(starts.flat_values + tf.cast(begins, starts.dtype))
            ends = pieces.with_values(ends.flat_values + tf.cast(begins, ends.dtype))
        return pieces, tf.cast(starts, "int32"), tf.cast(ends, "int32")

    def _tighten(self, starts, ends, points):
        # Only for added tokens that include adjacent white space.
        strips, _ = self._white_space()
        return super()._tighten(starts, ends, points) if strips else (starts, ends)

    def _sizes(self, segments, known):
        # Characters are normalized one by one, so their bytes can be counted.
        points = tf.strings.unicode_decode(segments, "UTF-8")  # (S, None), C in total
        row = rows_of(points)
        characters, index = distinct(points.flat_values)  # (U,)
        sizes = tf.strings.length(self._normalize(characters))  # (U,)
        # A removed accent belongs to the letter before, except in the library.
        accent = tf.strings.regex_full_match(characters, r"\p{Mn}") & (sizes == 0)
        accent &= self.character_rules == "google"
        # An added token counts as one character, its first.
        is_known = tf.gather(known >= 0, row)
        is_later = tf.concat([tf.zeros_like(is_known[:1]), row[1:] == row[:-1]], 0)
        whole = tf.where(is_later, 0, len(STAND_IN.encode()))
        sizes = tf.where(is_known, whole, tf.gather(sizes, index))
        return sizes, tf.where(is_known, is_later, tf.gather(accent, index))

    def _decode(self, rows):
        texts = (" ".join(self.vocabulary[id] for id in row) for row in rows)
        return [text.replace(f" {self.suffix_indicator}", "") for text in texts]

    def _detokenize(self, ids):
        text = tf.gather(tf.constant(self.vocabulary), ids)
        text = tf.strings.reduce_join(text, axis=-1, separator=" ")
        return tf.strings.regex_replace(text, " " + re.escape(self.suffix_indicator), "")


@keras.saving.register_keras_serializable(package="kerasbert")
class MPNetTokenizer(BertTokenizer):
    """MPNet's tokenizer: BERT's WordPiece with RoBERTa's special tokens.

    Args: see `BertTokenizer`.

    >>> words = "<s> <pad> </s> [UNK] the qu ##ick fox . <mask>"
    >>> tokenizer = MPNetTokenizer(words.split())
    >>> tokenizer("The quick fox."), tokenizer.cls_token_id
    ([4, 5, 6, 7, 8], 0)
    """

    num_separators = 2

    def __init__(
        self,
        vocabulary: Sequence[str] | None = None,
        lowercase: bool = True,
        unk_token: str = "[UNK]",
        cls_token: str = "<s>",
        sep_token: str = "</s>",
        pad_token: str = "<pad>",
        mask_token: str = "<mask>",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            vocabulary,
            lowercase,
            unk_token=unk_token,
            cls_token=cls_token,
            sep_token=sep_token,
            pad_token=pad_token,
            mask_token=mask_token,
            **kwargs,
        )

    def _strips_left(self, token):
        return AddedTokensTokenizer._strips_left(self, token)
