"""`BytePairTokenizer`, base class of byte-pair tokenizers (Radford et al. 2019).

Tokens are those of `transformers`. KerasHub's `BytePairTokenizer` splits text differently, as a
test shows.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base.files import read_json, write_files
from kerasbert.base.strict_json import to_json
from kerasbert.text.added_tokens import SPACE, AddedTokensTokenizer
from kerasbert.text.alignment import distinct, in_form, runs
from kerasbert.text.ops import rows_of, rows_where
from kerasbert.text.subword import once
from kerasbert.text.tokenizer_files import TokenizerFiles
from kerasbert.text.tokenizer_json import ANY, follow, follow_model
from kerasbert.text.tokenizer_rows import check_rows
from kerasbert.text.vocabulary_files import as_lines, read_merges, tokens_by_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath, Tensor

# Shapes: N texts, S segments of all texts, W words of all texts, U distinct words, P pieces of a
# text, C code points of all texts, B bytes of all words.

VOCABULARY_FILE = "vocabulary.json"
MERGES_FILE = "merges.txt"

# Options of the model, and their supported values.
OPTIONS = {
    "dropout": (None, 0.0, 0),
    "byte_fallback": (False,),
    "ignore_merges": (None, False),
}

# GPT-2's pattern: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
SPACES, LETTERS, NUMBERS, OTHERS = range(4)


def byte_characters():
    """Return the characters that stand for the 256 bytes in a vocabulary file."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [x for x in range(256) if x not in printable]
    table = {x: chr(x) for x in printable} | {x: chr(256 + i) for i, x in enumerate(others)}
    return [table[x] for x in range(256)]


class BytePairTokenizer(AddedTokensTokenizer):
    """Base class of `RobertaTokenizer`, `GPT2Tokenizer` and `ModernBertTokenizer`.

    Args:
        vocabulary: dict of token to id, or the path of a `vocab.json`.
        merges: list of `"a b"` or `("a", "b")`, the most frequent first, or the path of a
            `merges.txt`.
        add_prefix_space: whether to begin each text with a space, so that its first word is like
            the others.
        normalization: `None` or a Unicode normal form: "NFC", "NFD", "NFKC", "NFKD".
        **kwargs: see `AddedTokensTokenizer`.

    Raises:
        ValueError: if a special token or a part of a merge is not in the vocabulary.
    """

    def __init__(
        self,
        vocabulary: Mapping[str, Any],
        merges: Sequence[Any],
        add_prefix_space: bool,
        normalization: str | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.add_prefix_space = add_prefix_space
        self.normalization = normalization
        self.file_assets = [VOCABULARY_FILE, MERGES_FILE]
        self.set_vocabulary_and_merges(vocabulary, merges)

    @classmethod
    def from_files(cls, directory: AnyPath, **overrides: Any) -> Self:
        """Read the tokenizer of a Hugging Face directory, with its settings.

        Args:
            directory: string. Has a `tokenizer.json`, or `vocab.json` and `merges.txt`.
            **overrides: arguments of the constructor that replace the directory's.
        """
        files = TokenizerFiles(directory)
        files.require("BPE", cls)
        arguments = cls._words_of(files)
        if files.model:
            vocabulary, merges = files.model["vocab"], files.model["merges"]
        else:
            path = files.path("merges.txt")
            if path is None:
                raise ValueError(f"'{directory}' has a vocab.json but no merges.txt; add it.")
            vocabulary, merges = files.read_json("vocab.json"), read_merges(path)
        tokens = files.with_added_tokens(tokens_by_id(vocabulary))
        arguments |= files.special_tokens(cls, tokens) | files.settings()
        arguments["vocabulary"] = {token: id for id, token in enumerate(tokens)}
        arguments["merges"] = merges
        arguments["added_tokens"] = files.found_tokens(tokens)
        return check_rows(files, cls(**arguments | overrides))

    @classmethod
    def _words_of(cls, files):
        """Return the arguments for splitting into words."""
        # Only a `tokenizer.json` can ask for a normal form.
        arguments = {"normalization": None}
        if files.model:
            forms = ("NFC", "NFD", "NFKC", "NFKD")
            known = {form: [{}] for form in forms}
            steps = follow(files, "normalizer", cls, known, [[], *([form] for form in forms)])
            arguments["normalization"] = steps[0]["type"] if steps else None
            form = {"add_prefix_space": ANY, "trim_offsets": ANY, "use_regex": (True,)}
            known = {"ByteLevel": [form]}
            for step in follow(files, "pre_tokenizer", cls, known, [["ByteLevel"]]):
                arguments["add_prefix_space"] = step.get("add_prefix_space", False)
            # A vocabulary with all bytes has no unknown token.
            is_whole = set(byte_characters()) <= files.model["vocab"].keys()
            unknown = ANY if is_whole else (None,)
            more = dict.fromkeys(("continuing_subword_prefix", "end_of_word_suffix"), (None, ""))
            follow_model(files, cls, OPTIONS | {"unk_token": unknown, "fuse_unk": ANY} | more)
        if "add_prefix_space" in files.config:
            arguments["add_prefix_space"] = files.config["add_prefix_space"]
        return arguments

    def set_vocabulary_and_merges(self, vocabulary: Any, merges: Any) -> None:
        """Set the vocabulary and the merges."""
        if vocabulary is None or merges is None:
            self.merges = None
            self._set_tokens(None)
            return
        if isinstance(vocabulary, (str, os.PathLike)):
            vocabulary = read_json(vocabulary)
        if isinstance(merges, (str, os.PathLike)):
            merges = read_merges(merges)
        merges = [merge_text(pair) for pair in merges]
        if isinstance(vocabulary, dict):
            vocabulary = tokens_by_id(vocabulary)
        self.merges = tuple(merges)
        self._set_tokens(vocabulary)
        for pair in self.merges:
            self._check_merge(pair)

    def _check_merge(self, pair):
        parts = pair.split(" ")
        for token in (*parts, "".join(parts)):
            if token not in self._token_ids:
                raise ValueError(
                    f"The merge {pair!r} needs the token {token!r}, which the vocabulary of "
                    f"{len(self.vocabulary)} tokens lacks; use both of one checkpoint."
                )

    def save_assets(self, dir_path: AnyPath) -> None:
        self._check_vocabulary()
        vocabulary = to_json(self._token_ids, ensure_ascii=False).encode()
        write_files(dir_path, {VOCABULARY_FILE: vocabulary, MERGES_FILE: as_lines(self.merges)})

    def load_assets(self, dir_path: AnyPath) -> None:
        self.set_vocabulary_and_merges(
            os.path.join(dir_path, VOCABULARY_FILE), os.path.join(dir_path, MERGES_FILE)
        )

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "vocabulary": None,  # Saved as assets.
            "merges": None,
            "add_prefix_space": self.add_prefix_space,
            "normalization": self.normalization,
        }

    def model_files(self) -> dict[str, bytes]:
        vocabulary = to_json(self._token_ids, ensure_ascii=False, indent=1)
        merges = as_lines(["#version: 0.2", *self.merges])
        return {"vocab.json": (vocabulary + "\n").encode(), "merges.txt": merges}

    def config_settings(self) -> dict[str, Any]:
        return {"add_prefix_space": self.add_prefix_space}

    def described(self) -> dict[str, Any]:
        form = self.normalization
        return {
            "normalizer": None if form is None else {"type": form},
            "pre_tokenizer": self._byte_level(),
            "decoder": self._byte_level(),
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": "",
                "end_of_word_suffix": "",
                "fuse_unk": False,
                "byte_fallback": False,
                "vocab": dict(self._token_ids),
                "merges": list(self.merges),
            },
        }

    def _byte_level(self):
        return {
            "type": "ByteLevel",
            "add_prefix_space": self.add_prefix_space,
            "trim_offsets": True,
            "use_regex": True,
        }

    def trims_offsets(self) -> dict[str, Any] | None:
        return self._byte_level()

    def _other_in_library(self, offsets):
        # The library's normal forms may be of another Unicode version, and its offsets exclude all
        # white space.
        return None if offsets or self.normalization is not None else ()

    # Whether other libraries must add the start and the end token to each text.
    marks_ends = True

    # Tables are constants, because a SavedModel could lose track of a resource.

    @once
    def _tables(self):
        size = len(self.vocabulary)
        ids = [
            [self._token_ids[t] for t in (*p.split(" "), p.replace(" ", ""))] for p in self.merges
        ]
        return {
            "contents": np.array(self._contents(), object),
            "bytes": np.array([self._token_ids.get(c, -1) for c in byte_characters()], "int32"),
            **merge_tables(ids, size),
        }

    @once
    def _contents(self):
        """Return the bytes that each token stands for."""
        as_byte = {character: byte for byte, character in enumerate(byte_characters())}
        added = {token["content"] for token in self._added_tokens()}
        return [
            bytes(as_byte[c] for c in token)
            if token not in added and all(c in as_byte for c in token)
            else token.encode()
            for token in self.vocabulary
        ]

    @once
    def _whole_words(self):
        """Return sorted fingerprints and ids of tokens whose bytes are merged to the token."""
        with tf.init_scope(), tf.device("cpu"):
            words = tf.constant(self._tables()["contents"])
            ids, _ = self._merge(words)
            same = ids[:, :1].to_tensor(-1, shape=[None, 1])[:, 0] == tf.range(tf.size(words))
            same = np.flatnonzero(same.numpy() & (ids.row_lengths().numpy() == 1))
            prints = fingerprint(tf.gather(words, same)).numpy()
        order = np.argsort(prints)
        return prints[order], same[order].astype("int32")

    @once
    def _merged(self):
        return {pair.replace(" ", "") for pair in self.merges}

    def _is_piece(self, token):
        return token in self._merged()

    def _as_text(self, token):
        data = self._tables()["contents"][self._token_ids[token]]
        text = data.decode("utf-8", "replace")
        cut = text.startswith("\ufffd") and 0xE3 <= data[0] <= 0xE9
        return "\u4e00" + text if cut else text

    # From text to pieces

    def _normalize(self, text):
        if self.normalization is None:
            return text
        return in_form(text, self.normalization)

    def _words(self, text):
        """Split segments (S,) into words (W,), and return them and the segment of each word."""
        points = tf.strings.unicode_decode(text, "UTF-8")  # (S, None), C in total
        row = rows_of(points)
        points = points.flat_values
        characters, index = distinct(points)
        kind = tf.fill(tf.shape(characters), OTHERS)
        for name, pattern in ((NUMBERS, r"\p{N}"), (LETTERS, r"\p{L}"), (SPACES, f"[{SPACE}]")):
            kind = tf.where(tf.strings.regex_full_match(characters, pattern), name, kind)
        kind = tf.gather(kind, index)  # (C,)

        def earlier(x, steps=1):
            return tf.concat([tf.zeros_like(x[:steps]), x[:-steps]], 0)

        def later(x):
            return tf.concat([x[1:], tf.zeros_like(x[:1])], 0)

        change = row[1:] != row[:-1]
        begin = tf.concat([tf.ones_like(row[:1], "bool"), change], 0)
        last = tf.concat([change, tf.ones_like(row[:1], "bool")], 0)
        space = kind == SPACES
        after_space = earlier(space) & ~begin
        # The last character of a run of white space begins the next word if it is " ", else it is a
        # word.
        starts = space & (~after_space | ~(later(space) | last))
        starts |= ~space & after_space & (earlier(points) != ord(" "))
        starts |= begin | (~space & ~after_space & (kind != earlier(kind)))
        # A word ends after 's 't 'm 'd 're 've 'll, even if letters follow.
        following = tf.where(last, 0, later(points))
        second = tf.where(last, 0, later(following))

        def is_in(x, letters):
            return tf.reduce_any(x[:, tf.newaxis] == [ord(c) for c in letters], axis=1)

        quote = starts & (points == ord("'"))
        short = quote & is_in(following, "stmd")
        long = quote & is_in(following, "rv") & (second == ord("e"))
        long |= quote & (following == ord("l")) & (second == ord("l"))
        starts &= ~earlier(short | long)
        starts |= earlier(short, 2) | earlier(long, 3)

        words, firsts = runs(points, starts)
        return tf.strings.unicode_encode(words, "UTF-8"), tf.gather(row, firsts)

    def _of_words(self, words):
        """Tokenize words (W,): ids and first bytes of pieces, ragged (W, pieces)."""
        unique, index = tf.unique(words)
        ids, begins, row = self._lookup(unique)
        return tuple(tf.gather(x, tf.gather(row, index)) for x in (ids, begins))

    def _lookup(self, words):
        """Tokenize words (U,) like `_merge`: return its two tables and each word's row.

        Most words are a single token, found without merging.
        """
        prints, tokens = self._whole_words()
        if not len(prints):
            return *self._merge(words), tf.range(tf.size(words))
        wanted = fingerprint(words)
        at = tf.minimum(tf.searchsorted(tf.constant(prints), wanted), len(prints) - 1)
        token = tf.gather(tf.constant(tokens), at)
        whole = tf.gather(tf.constant(self._tables()["contents"]), token) == words
        ids, begins = self._merge(*rows_where(~whole, words))
        (token,) = rows_where(whole, token[:, tf.newaxis])
        count = tf.cast(ids.nrows(), "int32")
        after = count + tf.cumsum(tf.cast(whole, "int32"), exclusive=True)
        row = tf.where(whole, after, tf.cumsum(tf.cast(~whole, "int32"), exclusive=True))
        return tf.concat([ids, token], 0), tf.concat([begins, tf.zeros_like(token)], 0), row

    def _merge(self, words):
        """Merge the bytes of words (U,): results as of `_of_words`, ragged (U, pieces)."""
        return self.merged(words, *self._symbols(words), self._tables(), len(self.vocabulary))

    @staticmethod
    def merged(
        words: Tensor, ids: Tensor, place: Tensor, tables: dict[str, Any], size: int
    ) -> tuple[Any, Any]:
        """Merge the symbols of words (U,), except -1, by the tables of `merge_tables`.

        Returns:
            Ids and the first byte of each piece, ragged (U, pieces).
        """
        keys, ranks, merged = (tf.constant(tables[name]) for name in ("keys", "ranks", "merged"))
        none = tf.int32.max
        lengths = tf.strings.length(words)
        first_byte = tf.cumsum(lengths, exclusive=True)
        all_words = tf.repeat(tf.range(tf.size(words)), lengths)  # (B,)
        result = tf.fill(tf.shape(all_words), -1)  # Id of the piece that begins at each byte.
        word = tf.gather(all_words, place)
        ids, word, place = rows_where(ids >= 0, ids, word, place)

        def step(ids, word, place, result):
            pair = tf.cast(ids[:-1], "int64") * size + tf.cast(ids[1:], "int64")
            at = tf.searchsorted(keys, pair)
            found = (tf.gather(keys, at) == pair) & (word[:-1] == word[1:])
            rank = tf.where(found, tf.gather(ranks, at), none)
            rank = tf.concat([rank, tf.fill([tf.size(ids) - tf.size(rank)], none)], 0)
            best = tf.gather(tf.math.segment_min(rank, word), word)
            chosen = (rank == best) & (best < none)
            index = tf.range(tf.size(ids))
            if tables["in_order"]:
                # Of overlapping equal pairs, as in "aaaa", choose every second.
                run = tf.concat([chosen[:1], chosen[1:] & ~chosen[:-1]], 0)
                first = tf.concat([tf.where(run)[:, 0], [0]], 0)
                first = tf.gather(first, tf.maximum(tf.cumsum(tf.cast(run, "int32")) - 1, 0))
                chosen &= (index - tf.cast(first, "int32")) % 2 == 0
            else:
                first = tf.math.segment_min(tf.where(chosen, index, none), word)
                chosen &= index == tf.gather(first, word)
            at = tf.concat([at, tf.zeros([tf.size(ids) - tf.size(at)], at.dtype)], 0)
            ids = tf.where(chosen, tf.gather(merged, at), ids)
            gone = tf.concat([tf.zeros_like(chosen[:1]), chosen[:-1]], 0)
            done = (best == none) & ~gone
            result = tf.tensor_scatter_nd_update(
                result, *rows_where(done, place[:, tf.newaxis], ids)
            )
            return *rows_where((best < none) & ~gone, ids, word, place), result

        *_, result = tf.while_loop(
            lambda ids, *_: tf.size(ids) > 0,
            step,
            (ids, word, place, result),
            shape_invariants=(tf.TensorShape([None]),) * 4,
        )
        begins = tf.range(tf.size(result)) - tf.gather(first_byte, all_words)
        rows, *pieces = rows_where(result >= 0, all_words, result, begins)
        return tuple(
            tf.RaggedTensor.from_value_rowids(x, rows, tf.size(words), validate=False)
            for x in pieces
        )

    def _symbols(self, words):
        """Return the ids of the symbols to merge (-1 if unknown), and their positions in bytes."""
        data = tf.io.decode_raw(tf.strings.reduce_join(words), tf.uint8)
        ids = tf.gather(tf.constant(self._tables()["bytes"]), tf.cast(data, "int32"))
        return ids, tf.range(tf.size(ids))

    def _split(self, segments, known):
        prefixed = tf.zeros_like(known, "bool")
        if self.add_prefix_space:
            prefixed = (known < 0) & tf.strings.regex_full_match(segments, "(?s)[^ ].*")
            segments = tf.where(prefixed, " " + segments, segments)
        words, segment = self._words(tf.where(known < 0, segments, ""))  # (W,), (W,)
        ids, begins = self._of_words(words)  # (W, pieces)
        # Positions of the words in the segments, without added spaces.
        word = rows_of(ids)
        prefix = tf.cast(tf.gather(prefixed, segment), "int32")  # (W,)
        until = tf.cumsum(tf.strings.length(words))
        first = tf.concat([[0], until], 0)[:-1]
        starts = tf.gather(first, word) + begins.flat_values
        ends = tf.concat([starts[1:], until[-1:]], 0)
        ends = tf.minimum(ends, tf.gather(until, word))
        shift = tf.gather(tf.math.segment_min(first, segment), segment) + prefix
        shift = tf.gather(shift, word)
        starts = tf.maximum(starts - shift, 0)
        ends = tf.maximum(ends - shift, 0)
        rows = tf.gather(segment, word)
        return tuple(
            tf.RaggedTensor.from_value_rowids(
                x, rows, tf.size(segments, rows.dtype), validate=False
            )
            for x in (ids.flat_values, starts, ends)
        )

    def _decode(self, rows):
        contents = self._contents()
        texts = (b"".join(contents[id] for id in row) for row in rows)
        return [text.decode("utf-8", "replace") for text in texts]

    def _detokenize(self, ids):
        return tf.strings.reduce_join(tf.gather(tf.constant(self._tables()["contents"]), ids), -1)


def merge_text(pair):
    """Return a merge, a string or a pair, as `"a b"`."""
    if isinstance(pair, (list, tuple)) and all(isinstance(part, str) for part in pair):
        pair = " ".join(pair)
    if not isinstance(pair, str) or len(pair.split(" ")) != 2:
        raise ValueError(f"The merge {pair!r} must be two tokens separated by a space.")
    return pair


def merge_tables(ids, size):
    """Return the tables of merges for `BytePairTokenizer.merged`.

    Args:
        ids: ints (merges, 3). Ids of the two parts and of their merge, the most frequent first.
        size: number of tokens.
    """
    left, right, merged = np.array(ids, "int64").reshape(-1, 3).T
    keys, ranks = np.unique(left * size + right, return_index=True)
    # If each merge comes after those of its parts, all possible merges can be applied at once.
    made = np.full(size, -1)
    made[merged] = np.arange(len(merged))
    once = len(np.unique(merged)) == len(merged)
    in_order = once and bool((np.maximum(made[left], made[right]) < np.arange(len(left))).all())
    return {
        "keys": np.append(keys, np.iinfo("int64").max),
        "ranks": np.append(ranks, 0).astype("int32"),
        "merged": np.append(merged[ranks], 0).astype("int32"),
        "in_order": in_order,
    }


def fingerprint(words):
    """Hash strings (U,) to int64 (U,)."""
    return tf.bitcast(tf.fingerprint(words), tf.int64)
