"""Tokenizers of XLM and FlauBERT: words by Moses' rules, then byte pairs of characters.

Moses' rules are those of the package `sacremoses`, which runs in Python.
"""

from __future__ import annotations

import itertools
import os
import re
import unicodedata
from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.base.errors import need_packages
from kerasbert.text.byte_pair_families import GPTTokenizer
from kerasbert.text.engine import FastEngine
from kerasbert.text.languages import language_names
from kerasbert.text.subword import once
from kerasbert.text.tokenizer_files import TokenizerFiles
from kerasbert.text.tokenizer_inputs import called_from_graphs
from kerasbert.text.vocabulary_files import read_merges

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath

# Shapes: N texts, P pieces of a text.

# Punctuation that Moses' replace-unicode-punctuation.perl replaces; the white space after a full
# stop, too.
_STOPS = re.compile(r"[。．]\s*")
_PUNCTUATION = str.maketrans(
    dict(zip("，、∶：？！；～’━〈〉【】％）（", ",,::?!;~'-<>[]%)("))
    | dict.fromkeys("”“《》」「", '"')
    | dict(zip("０１２３４５６７８９", "0123456789"))
    | {"…": "..."}
)
# Romanian letters with diacritics, which XLM removes (Sennrich's scripts for WMT16).
_ROMANIAN = str.maketrans("ŞşŢţȘșȚțĂăÂâÎî", "SsTtSsTtAaAaIi")
# Quotation marks that Moses replaces by one of two.
_QUOTES = dict.fromkeys("„“”«»", '"') | dict.fromkeys("‘‚’´`", "'")
# Languages that need another segmenter than Moses: KyTea, jieba or PyThaiNLP in transformers.
_OTHERS = ("ja", "th", "zh")
# Number of characters to look ahead for the next character of a word, to find its offsets.
_AHEAD = 16


@keras.saving.register_keras_serializable(package="kerasbert")
class XLMTokenizer(GPTTokenizer):
    """XLM's tokenizer, with the ids of `transformers`: Moses' words, lowercase, byte pairs.

    It needs the package `sacremoses`, and runs in Python, also within `tf.data`. Exports cannot
    include it; use `export_serving(tokens_only=True)`. Offsets are those of the original characters
    where Moses' rules keep or replace single characters, and approximate where they replace
    several.

    Args:
        vocabulary, merges: see `BytePairTokenizer`. Merges may make tokens that are not in the
            vocabulary; these become the unknown token.
        lowercase: whether to lowercase words and remove accents (not in XLM-17 and XLM-100).
        languages, language: see `kerasbert.text.languages`. Words are split by the rules of
            `language`, or the English rules without one and for pairs in two languages. Chinese,
            Japanese and Thai need other segmenters, and are refused.
        unk_token, cls_token, sep_token, pad_token, mask_token: strings. Special tokens.

    Raises:
        ImportError: when tokenizing without `sacremoses`.
        ValueError: when tokenizing in a refused language.

    Example:

    >>> tokens = ["<s>", "</s>", "<pad>", "<unk>", "<special1>", "l", "o", "o</w>", "lo</w>"]
    >>> tokenizer = XLMTokenizer({token: i for i, token in enumerate(tokens)}, ["l o</w>"])
    >>> tokenizer("Lo, lolo")  # doctest: +SKIP
    [8, 3, 5, 6, 8]

    Source: Lample and Conneau 2019, arXiv 1901.07291; `transformers` 5.24.
    """

    marks_ends = True
    # Language of Moses' rules; "" for the tokenizer's.
    _moses_language = ""

    def __init__(
        self,
        vocabulary: Any = None,
        merges: Any = None,
        lowercase: bool = True,
        added_tokens: Sequence[Any] = (),
        special_tokens_in_strings: bool = False,
        unk_token: str = "<unk>",
        cls_token: str = "<s>",
        sep_token: str = "</s>",
        pad_token: str = "<pad>",
        mask_token: str = "<special1>",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            vocabulary,
            merges,
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

    @property
    def begins_second(self) -> bool:
        """Whether the second text begins with a start token, as translations do."""
        return len(set(language_names(self.language))) == 2

    @property
    def num_separators(self) -> int:
        """Number of tokens between the two texts of a pair."""
        return 1 + self.begins_second

    @classmethod
    def from_files(cls, directory: AnyPath, **overrides: Any) -> Self:
        """Read `vocab.json` and `merges.txt` of a directory, with their settings."""
        files = TokenizerFiles(directory)
        flag = {"XLMTokenizer": "do_lowercase_and_remove_accent"}.get(cls.__name__, "do_lowercase")
        found = {} if files.config.get(flag) is None else {"lowercase": files.config[flag]}
        # Rows begin with the bos_token; the cls_token of these files is in no row.
        found["cls_token"] = files.special_token("bos_token") or "<s>"
        return super().from_files(directory, **{**found, **overrides})

    @classmethod
    def _words_of(cls, files):
        return {}

    def set_vocabulary_and_merges(self, vocabulary: Any, merges: Any) -> None:
        if isinstance(merges, (str, os.PathLike)):
            merges = read_merges(merges)
        # In published files, a line also has the pair's frequency.
        merges = merges and [
            " ".join(pair.split()[:2]) if isinstance(pair, str) else pair for pair in merges
        ]
        super().set_vocabulary_and_merges(vocabulary, merges)

    def _check_merge(self, pair):
        """Accept merges of tokens that are not in the vocabulary."""

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "lowercase": self.lowercase}

    # === From text to words ===

    @once
    def _moses(self):
        """Return Moses' functions that normalize the punctuation of a text and split it."""
        need_packages(type(self).__name__, "xlm", "sacremoses")
        import sacremoses

        names = [self._moses_language] if self._moses_language else language_names(self.language)
        names = dict.fromkeys(names or ["en"])
        if refused := [name for name in names if name in _OTHERS]:
            raise ValueError(
                f"{type(self).__name__} splits texts by Moses' rules, which do not split words in "
                f"the language {refused[0]!r}; use another tokenizer, or pass token ids."
            )
        # Texts of a pair in two languages are both split by the English rules.
        name = next(iter(names)) if len(names) == 1 else "en"
        normalizer = sacremoses.MosesPunctNormalizer(lang=name)
        tokenizer = sacremoses.MosesTokenizer(lang=name)
        return name, normalizer.normalize, tokenizer.tokenize

    def _prepared(self, text):
        return text

    def _finished(self, words):
        """Lowercase words and remove their accents."""
        if not self.lowercase:
            return words
        text = unicodedata.normalize("NFD", " ".join(words).lower())
        text = "".join(char for char in text if unicodedata.category(char) != "Mn")
        return text.lower().split(" ")

    def _words_in(self, text):
        """Split a text without control tokens into words."""
        name, normalize, split = self._moses()
        text = self._prepared(text)
        text = normalize(_STOPS.sub(". ", text).translate(_PUNCTUATION))
        text = "".join(char for char in text if unicodedata.category(char)[0] != "C")
        text = text.translate(_ROMANIAN) if name == "ro" else text
        words = self._finished(split(text, return_str=False, escape=False))
        return [word for word in words if word]

    @once
    def _control(self):
        """Return a pattern of the tokens that are matched in texts, or `None` if there are none."""
        names = sorted((token["content"] for token in self._added_tokens()), key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, names))})") if names else None

    def _all_words(self, text):
        """Split a text into words and control tokens."""
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        text = text if self.normalize is None else unicodedata.normalize(self.normalize, text)
        control = self._control()
        parts = [text] if control is None else control.split(text)
        found = ([part] if i % 2 else self._words_in(part) for i, part in enumerate(parts))
        return [*itertools.chain(*found)]

    # === From words to pieces ===

    @once
    def _engine(self):
        """Return the library's engine, whose vocabulary also has the parts of all merges."""
        tokens = dict(self._token_ids)
        for pair in self.merges:
            parts = pair.split(" ")
            for token in (*parts, "".join(parts)):
                tokens.setdefault(token, len(tokens))
        model = {**super().described()["model"], "vocab": tokens}
        added = [{**token, "special": True} for token in self._added_tokens()]
        names = ("id", "content", "single_word", "lstrip", "rstrip", "normalized", "special")
        added = sorted(({name: x[name] for name in names} for x in added), key=lambda x: x["id"])
        parts = {"model": model, "pre_tokenizer": {"type": "WhitespaceSplit"}}
        return FastEngine({**parts, "normalizer": None, "added_tokens": added})

    def _encode(self, name, texts):
        words = [self._all_words(text) for text in texts]
        joined = [" ".join(row) for row in words]
        offsets = name != "_tokenize"
        ids, *places = self._engine().encode(joined, offsets)
        known = np.where(ids.values < len(self.vocabulary), ids.values, self.unk_token_id)
        ids = ids.with_values(known.astype("int32"))
        if not offsets:
            return (ids,)
        rows = zip(texts, joined, *(one.to_list() for one in places))
        found = [_in_original(*row) for row in rows]
        starts, ends = ([place for row in found for place in row[i]] for i in (0, 1))
        return ids, *(ids.with_values(np.array(x, "int32")) for x in (starts, ends))

    def graph(self, name: str) -> Any:
        """Return the method `name` as a function of tensors, which calls Python."""
        self._check_vocabulary()
        return super().graph(name) if name == "_detokenize" else called_from_graphs(self, name)

    def check_graph(self) -> None:
        raise ValueError(
            f"A {type(self).__name__} cannot run in a TensorFlow graph, because Moses' rules run "
            "in Python; export it with tokens_only=True."
        )

    # === Files ===

    def described(self) -> dict[str, Any]:
        raise ValueError(
            f"A {type(self).__name__} has no tokenizer.json, because Moses' rules run in Python; "
            "export the model with tokens_only=True, or convert it with format='huggingface'."
        )

    def files(self) -> dict[str, bytes]:
        """Return the files that `from_files` reads, as a dict of name to bytes."""
        self._check_vocabulary()
        files = self.model_files()
        # transformers reads the first line as a merge.
        return {**files, "merges.txt": files["merges.txt"].partition(b"\n")[2]}

    def config_settings(self) -> dict[str, Any]:
        return {"do_lowercase_and_remove_accent": self.lowercase}


@keras.saving.register_keras_serializable(package="kerasbert")
class FlaubertTokenizer(XLMTokenizer):
    """FlauBERT's tokenizer: XLM's with French rules, NFC and accents.

    Args: see `XLMTokenizer`.
    """

    _moses_language = "fr"

    def __init__(
        self,
        vocabulary: Any = None,
        merges: Any = None,
        lowercase: bool = False,
        added_tokens: Sequence[Any] = (),
        special_tokens_in_strings: bool = False,
        unk_token: str = "<unk>",
        cls_token: str = "<s>",
        sep_token: str = "</s>",
        pad_token: str = "<pad>",
        mask_token: str = "<special1>",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            vocabulary,
            merges,
            lowercase,
            added_tokens,
            special_tokens_in_strings,
            unk_token,
            cls_token,
            sep_token,
            pad_token,
            mask_token,
            **kwargs,
        )

    def _prepared(self, text):
        text = unicodedata.normalize("NFC", text.replace("``", '"').replace("''", '"'))
        return text.lower() if self.lowercase else text

    def _finished(self, words):
        return words

    def config_settings(self) -> dict[str, Any]:
        return {"do_lowercase": self.lowercase}


def _plain(char):
    """Return a character as it is compared between a text and its words."""
    text = unicodedata.normalize("NFD", char.translate(_PUNCTUATION).lower())
    return [_QUOTES.get(x, x) for x in text if unicodedata.category(x)[0] not in "MCZ"]


def _in_original(text, joined, starts, ends):
    """Convert offsets in the joined words of a text to those in the text.

    Args:
        text: string or bytes. The text.
        joined: its words, separated by spaces.
        starts, ends: lists of P ints.

    Returns:
        Two lists of P ints.

    >>> _in_original("L'Été…", "l' ete ...", [0, 3, 7], [2, 6, 10])
    ([0, 2, 5], [2, 5, 6])
    """
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    source = [(x, place) for place, char in enumerate(text) for x in _plain(char)]
    at, places = 0, []
    for char in joined:
        for x in _plain(char):
            near = source[at : at + _AHEAD]
            step = next((i for i, (other, _) in enumerate(near) if other == x), None)
            if step is not None:
                at += step + 1
        places.append(source[at - 1][1] if at else 0)
    # A piece begins at its first character and ends after its last.
    return [places[i] for i in starts], [places[i - 1] + 1 for i in ends]
