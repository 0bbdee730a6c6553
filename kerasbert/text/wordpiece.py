"""BERT's tokenizer (Devlin et al. 2019; `tokenization.py` of google-research/bert) as a graph."""

from __future__ import annotations

import os
import re
import warnings
from typing import TYPE_CHECKING

import keras

from kerasbert.backend.tensorflow import rows_of, tf, tf_text
from kerasbert.base import keras_internals
from kerasbert.base.files import write_files
from kerasbert.base.process import check_process
from kerasbert.text.added_tokens import STAND_IN, AddedTokensTokenizer
from kerasbert.text.alignment import distinct
from kerasbert.text.subword import once
from kerasbert.text.tokenizer_files import (
    ANY,
    GENERIC,
    ROLES,
    TokenizerFiles,
    as_lines,
    read_vocabulary,
    tokens_by_id,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath

# Shapes: N texts, P pieces and W words of a text, C code points of all texts, U different ones.

VOCABULARY_FILE = "vocabulary.txt"
MAX_WORD_CHARACTERS = 200

# Deleted as in the reference: U+FFFD and the categories Cc and Cf, but not tab, newline and return.
DELETED = r"[\x{0}-\x{8}\x{B}\x{C}\x{E}-\x{1F}\x{7F}-\x{9F}\x{FFFD}\p{Cf}]+"
SPACE = r"\t\n\r \x{85}\p{Z}"
PUNCTUATION = r"!-/:-@\[-`{-~\p{P}"
CJK = (
    r"\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{2A6DF}"
    r"\x{2A700}-\x{2CEAF}\x{2F800}-\x{2FA1F}"
)
# Capitals newer than TensorFlow's Unicode 13: first, last, distance to the lowercase letter.
YOUNG_CAPITALS = (
    (0x2C2F, 0x2C2F, 0x30),
    (0xA7C0, 0xA7C0, 1),
    (0xA7D0, 0xA7D0, 1),
    (0xA7D6, 0xA7D6, 1),
    (0xA7D8, 0xA7D8, 1),
    (0x10570, 0x10595, 0x27),
)


# Characters of which the library `tokenizers` (0.23) takes another view than Google's code in
# TensorFlow's Unicode 13: newer ones, private use, and the final sigma. A test tries all others.
OTHER_IN_LIBRARY = re.compile(
    "["
    "\u061d\u07fd\u0890\u0891\u0898-\u089f\u08ca-\u08e2\u09fd\u09fe\u0a76\u0afa-\u0aff"
    "\u0b55\u0c04\u0c3c\u0c77\u0c84\u0d00\u0d3b\u0d3c\u0d81\u0eba\u0ece\u166d\u1734\u180f"
    "\u1885\u1886\u1abf-\u1ace\u1b4e\u1b4f\u1b7d-\u1b7f\u1df6-\u1dfb\u2e43-\u2e4f"
    "\u2e52-\u2e5d\ua7cb\ua7d2\ua7d4\ua7dc\ua82c\ua8c5\ua8ff\ua9bd"
    "\u03a3\ue000-\uf8ff\ufffe\U00010d00-\U0001efff\U0002b820-\U0002b91f\U000f0000-\U0010ffff"
    "]"
)
# Blocks with accents: where dropped, they belong to the letter before them, in the library to none.
ACCENTS = re.compile(
    "[\u0300-\u036f\u0483-\u0489\u0590-\u109f\u135d-\u135f\u1712-\u18af\u1920-\u1cff\u1dc0-\u1dff"
    "\u20d0-\u20f0\u2cef-\u2cf1\u2d7f\u2de0-\u2dff\u302a-\u302d\u3099\u309a\ua66f-\ua67d\ua69e-\ua6f1"
    "\ua802-\uaaff\uabe5-\uabed\ufb1e\ufe00-\ufe2f\U000101fd-\U00010aff\U000e0100-\U000e01ef]"
)


def plain_text(text, lowercase, strip_accents):
    """Remove control characters from texts (N,); optionally lowercase them and drop accents."""
    clean = tf.strings.regex_full_match(text, DELETED.replace("[", "[^").replace("]+", "]*"))
    text = tf.cond(
        tf.reduce_all(clean),
        lambda: text,
        lambda: tf.strings.regex_replace(text, DELETED, ""),
    )
    if lowercase:
        # ASCII first, because with LANG=tr_TR the UTF-8 op maps I to a dotless i.
        text = tf.strings.regex_replace(text, "\u0130", "i\u0307")
        text = tf.strings.lower(tf.strings.lower(text), encoding="utf-8")
    if strip_accents:
        text = tf_text.normalize_utf8(text, "NFD")
        text = tf.strings.regex_replace(text, r"\p{Mn}+", "")
    return text


def _split_on(files):
    """Return the characters that a `tokenizer.json` first splits off as words; "" for none."""
    first = next(iter(files.pre_tokenizers()), {})
    pattern = first.get("pattern") if first.get("type") == "Split" else None
    pattern = pattern.get("Regex", "") if isinstance(pattern, dict) else ""
    is_class = isinstance(pattern, str) and re.fullmatch(r"\[[^^\[\]][^\[\]]*\]", pattern)
    return pattern[1:-1] if is_class and first.get("behavior") == "Isolated" else ""


def _each(pattern):
    """Return a step that makes each match a word."""
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


@keras.saving.register_keras_serializable(package="kerasbert")
class BertTokenizer(AddedTokensTokenizer):
    """WordPiece exactly as in google-research/bert, for BERT, ELECTRA and DistilBERT.

    Removes control characters, splits at white space, punctuation and CJK characters, and splits
    words into the longest pieces in the vocabulary. Words of more than `max_input_chars_per_word`
    characters, and words with a character that no piece has, become `[UNK]`.

    Args:
        vocabulary: list of tokens in the order of their ids, or the path of a `vocab.txt`.
        lowercase: bool. `True` for "uncased" checkpoints.
        strip_accents: bool. Drop accents (after NFD); `None` follows `lowercase`.
        split_on_cjk: bool. Make each CJK character a word.
        split_on_punctuation: bool. Make each punctuation character a word; `False` for texts
            that are already segmented into words, as for Japanese checkpoints.
        split_characters: bool. Make every character a word (`subword_tokenizer_type` "character"
            of Japanese checkpoints).
        split_on: string. Further characters that become words, as in the brackets of a regular
            expression, such as "ㄱ-ㆎ". For characters such as ㅋㅋ and emoji that people attach to
            words, which are otherwise unknown.
        suffix_indicator: string. Prefix of pieces inside a word.
        special_tokens_in_strings, unk_token, ...: see `AddedTokensTokenizer`.
        extra_special_tokens: list of further tokens that `special_tokens_in_strings` matches.
        added_tokens: see `AddedTokensTokenizer`.
        max_input_chars_per_word: int. Maximum length of a word that is split into pieces: 200 in
            google-research/bert, 100 in most files of `transformers`.
        **kwargs: `name`, and so on.

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
        files.require("WordPiece", cls)
        path = files.path("vocab.txt")
        tokens = read_vocabulary(path) if path else tokens_by_id(files.model["vocab"])
        rules, splits = cls._words_of(files) if files.model else ({}, ())
        config = files.config
        # If no file specifies the case, a vocabulary with capitals belongs to a cased checkpoint.
        cased = any(token[:1] != "[" and token != token.lower() for token in tokens)
        # The generic class of transformers uses a tokenizer.json as it is.
        said = {} if rules and config.get("tokenizer_class") in GENERIC else config
        arguments = {
            "lowercase": said.get("do_lower_case", rules.get("lowercase", not cased)),
            "strip_accents": said.get("strip_accents", rules.get("strip_accents")),
            "split_on_cjk": said.get(
                "tokenize_chinese_chars", rules.get("handle_chinese_chars", True)
            ),
            "split_on_punctuation": "WhitespaceSplit" not in splits,
            "split_characters": config.get("subword_tokenizer_type") == "character"
            or splits[1:] == ["Split"],
            "split_on": config.get("split_on") or _split_on(files),
            "suffix_indicator": files.model.get("continuing_subword_prefix") or "##",
            **files.special_tokens(cls, tokens),
            **files.settings(),
        }
        words = config.get("word_tokenizer_type") or "basic"
        if words != "basic":
            warnings.warn(
                f"The checkpoint in '{directory}' segments words with {words}, which cannot run in "
                "a TensorFlow graph; segment texts yourself, with a space between words.",
                stacklevel=2,
            )
            # Such words are not split further, and kana keep their diacritics.
            arguments["lowercase"] = config.get("do_lower_case", False)
            arguments |= {"split_on_cjk": False, "split_on_punctuation": False}
            arguments["strip_accents"] = False
        own, tokens = set(tokens), files.with_added_tokens(tokens)
        special = {arguments[f"{role}_token"] for role in ROLES}
        arguments |= {
            "vocabulary": tokens,
            "added_tokens": [
                token if token["content"] in own else {**token, "extra": True}
                for token in files.found_tokens(tokens)
                if token["content"] not in special
                or token.keys() - {"content", "special", "control"}
            ],
            "max_input_chars_per_word": files.longest_word(),
        }
        return files.checked(cls(**arguments | overrides))

    @classmethod
    def _words_of(cls, files):
        """Return the normalizer's fields and the pre-tokenizers' types of a `tokenizer.json`."""
        form = {"clean_text": (True,), "handle_chinese_chars": ANY, "strip_accents": ANY}
        known = {"BertNormalizer": [{**form, "lowercase": ANY}]}
        rules = files.follow("normalizer", cls, known, [["BertNormalizer"]])
        on = _split_on(files)
        patterns = [{"Regex": "."}, *([{"Regex": f"[{on}]"}] if on else [])]
        each = {"pattern": patterns, "behavior": ("Isolated",), "invert": (False,)}
        known = {"BertPreTokenizer": [{}], "WhitespaceSplit": [{}], "Split": [each]}
        plain = [["BertPreTokenizer"], ["WhitespaceSplit"]]
        words = [*plain, *([*one, "Split"] for one in plain)]
        words += [["Split", *one] for one in plain if on]
        splits = [step["type"] for step in files.follow("pre_tokenizer", cls, known, words)]
        prefix = files.model.get("continuing_subword_prefix", "##")
        files.follow_model(cls, {"continuing_subword_prefix": [prefix] if prefix else []})
        return rules[0] if rules else {}, splits

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
        }

    def described(self) -> dict[str, Any]:
        extra = {token["content"] for token in self.added_tokens if token.get("extra")}
        vocabulary = self.vocabulary[: self._size_without(extra)]
        words = {"type": "BertPreTokenizer" if self.split_on_punctuation else "WhitespaceSplit"}
        if self.split_characters:
            words = {"type": "Sequence", "pretokenizers": [words, _each(".")]}
        elif self.split_on:
            each = _each(f"[{self.split_on}]")
            words = {"type": "Sequence", "pretokenizers": [each, words]}
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
        return {
            "settings": settings,
            "files": {"vocab.txt": as_lines(vocabulary)},
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
                "vocab": {token: id for id, token in enumerate(vocabulary)},
            },
        }

    def _word_edges(self, token):
        return not token.startswith(self.suffix_indicator), False

    def _other_in_library(self, offsets):
        strips = self.lowercase if self.strip_accents is None else self.strip_accents
        return (OTHER_IN_LIBRARY, ACCENTS) if offsets and strips else (OTHER_IN_LIBRARY,)

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
        check_process("tensorflow")  # Outside `try`, as its error is not about the vocabulary.
        try:
            with tf.init_scope(), tf.device("cpu"):
                return tf_text.FastWordpieceTokenizer(
                    vocab=tokens,
                    suffix_indicator=self.suffix_indicator,
                    max_bytes_per_word=1 << 30,  # `_rewrite` applies the limit in characters.
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
        """Return the token; if no word can become it, a name that no text matches."""
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
        """Apply steps 1 to 3 of the reference; (N,) -> (N,)."""
        strip = self.lowercase if self.strip_accents is None else self.strip_accents
        text = plain_text(text, self.lowercase, strip)
        if self.split_characters:
            return tf.strings.regex_replace(text, f"[^{SPACE}]", r" \0 ")
        if self.split_on:
            text = tf.strings.regex_replace(text, f"[{self.split_on}]", r" \0 ")
        rare = tf.strings.regex_full_match(text, self._rare())
        return tf.cond(tf.reduce_any(rare), lambda: self._rewrite(text), lambda: text)

    def _single_words(self):
        """Return the characters that are single words, for a regular expression."""
        # The stand-in, which no text has, keeps the character class nonempty.
        cjk = CJK if self.split_on_cjk else STAND_IN
        return cjk + (PUNCTUATION if self.split_on_punctuation else "")

    def _rare(self):
        """Return a fast regular expression for texts that may need `_rewrite`."""
        # RE2 allows neither 201 repetitions of PUNCTUATION and CJK, nor many more of any class.
        length = min(self.max_input_chars_per_word, MAX_WORD_CHARACTERS) + 1
        long_word = rf"[^{SPACE}!-/:-@\[-`{{-~、。一-鿿]{{{length}}}"
        capitals = "".join(rf"\x{{{a:X}}}-\x{{{b:X}}}" for a, b, _ in YOUNG_CAPITALS)
        found = f"(?:{long_word}|[{capitals}])" if self.lowercase else long_word
        return f"(?s).*{found}.*"

    def _rewrite(self, text):
        """Lowercase newer capitals, and replace too long words by unknown ones of equal length."""
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
        # A word begins at the start of a text and after white space, punctuation and CJK.
        begins = tf.concat([[True], (rows[1:] != rows[:-1]) | between[:-1]], 0) & ~between
        word = tf.cumsum(tf.cast(between | begins, "int32"))  # (C,); 1, 2, ...
        size = tf.math.segment_sum(tf.cast(~between, "int32"), word)
        too_long = tf.gather(size, word) > self.max_input_chars_per_word
        # No token has these characters, so TF.Text makes the whole word unknown.
        unknown = tf.constant([0, 0x02, 0x82, 0xFFFD, 0x10FFFF])
        unknown = tf.gather(unknown, tf.strings.length(characters))  # (U,), with as many bytes
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
        # Pieces have no white space, except added tokens that include the space beside them.
        strips = any(token["lstrip"] or token["rstrip"] for token in self._added_tokens())
        return super()._tighten(starts, ends, points) if strips else (starts, ends)

    def _sizes(self, segments, known):
        # Characters are normalized one by one, so count the normalized bytes of each.
        points = tf.strings.unicode_decode(segments, "UTF-8")  # (S, None), C in total
        row = rows_of(points)
        characters, index = distinct(points.flat_values)  # (U,)
        sizes = tf.strings.length(self._normalize(characters))  # (U,)
        # Dropped accents belong to the preceding letter.
        accent = tf.strings.regex_full_match(characters, r"\p{Mn}") & (sizes == 0)
        # An added token counts as one character, at the position of its first character.
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
