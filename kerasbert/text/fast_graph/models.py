"""Models of a `tokenizer.json` for TensorFlow graphs.

They are called with distinct words, strings (U,), and return ids, starts and ends (in bytes),
int32, ragged (U, pieces).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.text.byte_fallback import BYTES
from kerasbert.text.byte_pair import BytePairTokenizer, fingerprint, merge_tables
from kerasbert.text.fast_graph.characters import utf8_byte, utf8_sizes
from kerasbert.text.fast_graph.tables import find
from kerasbert.text.ops import rows_of, rows_where
from kerasbert.text.tokenizer_json import UnsupportedError

if TYPE_CHECKING:
    from typing import Any

# Shapes: U distinct words, C characters of all words, K pieces, L characters of the longest piece,
# A words that the loop has not finished.


class Vocabulary:
    """Lookup of token ids.

    Args:
        ids: dict of token to id.
    """

    def __init__(self, ids: dict[str, int]) -> None:
        tokens = list(ids)
        with tf.init_scope(), tf.device("cpu"):
            prints = fingerprint(tf.constant(tokens, "string", shape=(len(tokens),))).numpy()
        order = np.argsort(prints)
        self._prints = prints[order]
        self._tokens = np.array([token.encode() for token in tokens], object)[order]
        self._ids = np.array(list(ids.values()), "int32")[order]

    def find(self, words: Any) -> Any:
        """Return the ids of words (U,), -1 for those that are not tokens."""
        if not len(self._ids):
            return tf.fill(tf.shape(words), -1)
        at, is_found = find(self._prints, fingerprint(words))
        is_found &= tf.gather(tf.constant(self._tokens), at) == words
        return tf.where(is_found, tf.gather(tf.constant(self._ids), at), -1)


def _single(ids, words):
    """Return each word (U,) as one piece with the given id."""
    splits = tf.range(tf.size(ids, tf.int64) + 1)
    return tuple(
        tf.RaggedTensor.from_row_splits(x, splits, validate=False)
        for x in (ids, tf.zeros_like(ids), tf.strings.length(words))
    )


def _unknown_id(model):
    token = model.get("unk_token")
    if token not in model["vocab"]:
        raise UnsupportedError(f"the model {model['type']} without a token for unknown words")
    return model["vocab"][token]


class WordLevel:
    """Word-level model.

    Args:
        model: dict. The model of a `tokenizer.json`.
    """

    def __init__(self, model: dict[str, Any]) -> None:
        self._unknown = _unknown_id(model)
        self._vocabulary = Vocabulary(model["vocab"])

    def __call__(self, words):
        ids = self._vocabulary.find(words)
        return _single(tf.where(ids < 0, self._unknown, ids), words)


class PrefixTree:
    """Tree of the prefixes of all tokens. Node 0 is the empty prefix.

    Args:
        ids: dict of token to id.
    """

    def __init__(self, ids: dict[str, int]) -> None:
        nodes, tokens = {}, [-1]
        for text, id in ids.items():
            node = 0
            for char in text:
                key = node << 21 | ord(char)
                if key not in nodes:
                    nodes[key] = len(tokens)
                    tokens.append(-1)
                node = nodes[key]
            tokens[node] = id
        self._keys = np.array(sorted(nodes) or [-1], "int64")
        self._next = np.array([nodes.get(key, -1) for key in self._keys.tolist()], "int32")
        self._tokens = np.array([*tokens, -1], "int32")  # The last entry is for node -1.

    def node_of(self, prefix: str) -> int:
        """Return the node of a prefix, -1 if no token begins with it."""
        node = 0
        for char in prefix:
            at = int(np.searchsorted(self._keys, node << 21 | ord(char)))
            is_found = at < len(self._keys) and self._keys[at] == node << 21 | ord(char)
            node = int(self._next[at]) if is_found else -1
            if node < 0:
                return node
        return node

    def step(self, nodes: Any, points: Any) -> tuple[Any, Any]:
        """Return the nodes after one more character, int32 (C,), and the ids of their tokens (-1
        for none).
        """
        key = tf.bitwise.left_shift(tf.cast(nodes, "int64"), 21) | tf.cast(points, "int64")
        at, is_found = find(self._keys, key)
        nodes = tf.where(is_found & (nodes >= 0), tf.gather(tf.constant(self._next), at), -1)
        last = len(self._tokens) - 1
        return nodes, tf.gather(tf.constant(self._tokens), tf.where(nodes < 0, last, nodes))


def _ragged(points, ids, firsts, ends):
    """Return pieces with offsets in bytes.

    Args:
        points: ragged (U, None). Code points of words, C in total.
        ids: int32 (K,).
        firsts, ends: int (K,). First character of each piece and the one after it, counted over all
            words.
    """
    sizes = utf8_sizes(points.flat_values)
    until = tf.concat([[0], tf.cumsum(sizes)], 0)
    rows = tf.gather(rows_of(points), firsts)
    offset = tf.gather(until, tf.gather(points.row_starts(), rows))
    return tuple(
        tf.RaggedTensor.from_value_rowids(x, rows, points.nrows(), validate=False)
        for x in (ids, tf.gather(until, firsts) - offset, tf.gather(until, ends) - offset)
    )


class WordPiece:
    """WordPiece model: the longest token at each position of a word.

    TensorFlow Text does not support tokens with white space or of more than 256 bytes, nor
    arbitrary words.

    Args:
        model: dict. The model of a `tokenizer.json`.
    """

    def __init__(self, model: dict[str, Any]) -> None:
        self._unknown = _unknown_id(model)
        self._longest = min(model["max_input_chars_per_word"], np.iinfo("int32").max)
        self._tree = PrefixTree(model["vocab"])
        self._inner = self._tree.node_of(model["continuing_subword_prefix"])

    def __call__(self, words):
        ragged = tf.strings.unicode_decode(words, "UTF-8")  # (U, None), C in total
        lengths = tf.cast(ragged.row_lengths(), "int32")
        first = tf.cast(ragged.row_starts(), "int32")
        row, points = rows_of(ragged), ragged.flat_values
        is_short = lengths <= self._longest
        word, begin, limit = rows_where(
            is_short & (lengths > 0), tf.range(tf.size(words)), first, first + lengths
        )
        zeros = tf.zeros_like(word)

        def step(word, begin, place, limit, node, best, best_end, result, ends, failed):
            """Read a character of each word; `begin` is where the current piece begins."""
            point = tf.gather(points, tf.minimum(place, tf.size(points) - 1))
            node, token = self._tree.step(tf.where(place < limit, node, -1), point)
            goes_on = node >= 0
            place = tf.where(goes_on, place + 1, place)
            best_end = tf.where(token >= 0, place, best_end)
            best = tf.where(token >= 0, token, best)
            is_piece = ~goes_on & (best >= 0)
            index, new, end = rows_where(is_piece, begin[:, tf.newaxis], best, best_end)
            result = tf.tensor_scatter_nd_update(result, index, new)
            ends = tf.tensor_scatter_nd_update(ends, index, end)
            fails = ~goes_on & ~is_piece
            (index,) = rows_where(fails, word[:, tf.newaxis])
            new = tf.ones_like(index[:, 0], "bool")
            failed = tf.tensor_scatter_nd_update(failed, index, new)
            begin, place = (tf.where(is_piece, best_end, x) for x in (begin, place))
            node, best = tf.where(is_piece, self._inner, node), tf.where(is_piece, -1, best)
            active = ~fails & ~(is_piece & (begin >= limit))
            state = rows_where(active, word, begin, place, limit, node, best, best_end)
            return *state, result, ends, failed

        none = tf.fill(tf.shape(points), -1)
        state = (word, begin, begin, limit, zeros, zeros - 1, zeros, none, none, ~is_short)
        *_, result, ends, failed = tf.while_loop(
            lambda word, *_: tf.size(word) > 0,
            step,
            state,
            shape_invariants=(tf.TensorShape([None]),) * len(state),
        )
        place = tf.range(tf.size(points))
        is_bad = tf.gather(failed, row)
        is_first = place == tf.gather(first, row)
        result = tf.where(is_bad, tf.where(is_first, self._unknown, -1), result)
        ends = tf.where(is_bad, tf.gather(first + lengths, row), ends)
        place, ids, ends = rows_where(result >= 0, place, result, ends)
        return _ragged(ragged, ids, place, ends)


class BytePair:
    """Byte-pair model: merges pairs of characters, or of characters that stand for bytes.

    Args:
        model: dict. The model of a `tokenizer.json`.
    """

    def __init__(self, model: dict[str, Any]) -> None:
        if model.get("dropout"):
            raise UnsupportedError("the model BPE with dropout")
        ids, token = model["vocab"], model.get("unk_token")
        self._prefix = model.get("continuing_subword_prefix") or ""
        self._suffix = model.get("end_of_word_suffix") or ""
        self._unknown = -1 if token is None else _unknown_id(model)
        self._fuses = bool(model.get("fuse_unk"))
        self._bytes = None
        if model.get("byte_fallback"):
            if not BYTES.keys() <= ids.keys() or self._prefix or self._suffix:
                raise UnsupportedError(
                    "the model BPE with byte_fallback, but without a token for every byte, or with "
                    "a continuing_subword_prefix or end_of_word_suffix"
                )
            self._bytes = np.array([ids[name] for name in BYTES], "int32")
        self._vocabulary = Vocabulary(ids)
        self._words = self._vocabulary if model.get("ignore_merges") else None
        # Not by `merge_text`: parts of a merge in list form may have spaces.
        merges = model["merges"]
        pairs = [tuple(x.split(" ") if isinstance(x, str) else x) for x in merges]
        if len(set(pairs)) < len(pairs):
            raise UnsupportedError("the model BPE with the same merge twice")
        skip = len(self._prefix)
        merges = [(ids[a], ids[b], ids[a + b[skip:]]) for a, b in pairs]
        self._size = max(ids.values(), default=0) + 1
        self._tables = merge_tables(merges, self._size)

    def __call__(self, words):
        if self._words is None:
            return self._merged(words)
        whole = self._words.find(words)
        rest, index = rows_where(whole < 0, words, tf.range(tf.size(words)))
        single, ids, own = rows_where(whole >= 0, words, whole, tf.range(tf.size(words)))
        order = tf.math.invert_permutation(tf.concat([index, own], 0))
        merged = (x.with_row_splits_dtype("int64") for x in self._merged(rest))
        parts = zip(merged, _single(ids, single))
        return tuple(tf.gather(tf.concat(part, 0), order) for part in parts)

    def _symbols(self, words):
        """Return the ids of the symbols to merge, their first bytes, counted over all words, and
        the number of bytes that they cover in each word, (U,).
        """
        points = tf.strings.unicode_decode(words, "UTF-8")  # (U, None), C in total
        row, limits, points = rows_of(points), points.row_limits(), points.flat_values
        sizes = utf8_sizes(points)
        splits = tf.range(tf.size(points, tf.int64) + 1)
        single = tf.RaggedTensor.from_row_splits(points, splits, validate=False)
        symbols = tf.strings.unicode_encode(single, "UTF-8")
        begins = tf.concat([tf.ones_like(row[:1], "bool"), row[1:] != row[:-1]], 0)
        if self._prefix:
            symbols = tf.where(begins, symbols, self._prefix + symbols)
        if self._suffix:
            is_last = splits[1:] == tf.gather(limits, row)
            symbols = tf.where(is_last, symbols + self._suffix, symbols)
        ids = self._vocabulary.find(symbols)
        place = tf.cumsum(sizes, exclusive=True)
        covered = tf.strings.length(words)
        if self._bytes is not None:
            index = tf.range(tf.size(ids))
            index = tf.repeat(index, tf.where(ids < 0, sizes, 1))
            first = tf.concat([[True], index[1:] != index[:-1]], 0)[: tf.size(index)]
            start = tf.where(first)[:, 0]
            inner = tf.range(tf.size(index, tf.int64)) - tf.gather(start, index)
            byte = utf8_byte(tf.gather(points, index), inner)
            ids = tf.gather(ids, index)
            ids = tf.where(ids < 0, tf.gather(tf.constant(self._bytes), byte), ids)
            place = tf.gather(place, index) + tf.cast(inner, "int32")
        elif self._unknown < 0:
            # Offsets do not count unknown characters.
            sizes = tf.where(ids < 0, 0, sizes)
            count = tf.size(words)
            kept = tf.math.unsorted_segment_sum(sizes, row, count)
            shift = tf.cumsum(covered, exclusive=True) - tf.cumsum(kept, exclusive=True)
            place = tf.cumsum(sizes, exclusive=True) + tf.gather(shift, row)
            covered = kept
        else:
            if self._fuses:
                unknown = ids < 0
                earlier = tf.concat([[False], unknown[:-1]], 0)[: tf.size(ids)]
                ids, place, unknown = rows_where(
                    ~(unknown & earlier & ~begins), ids, place, unknown
                )
            ids = tf.where(ids < 0, self._unknown, ids)
        return ids, place, covered

    def _merged(self, words):
        ids, place, covered = self._symbols(words)
        (place,) = rows_where(ids >= 0, place)
        (ids,) = rows_where(ids >= 0, ids)
        ids, begins = BytePairTokenizer.merged(words, ids, place, self._tables, self._size)
        row = rows_of(ids)
        starts = begins.flat_values
        is_last = tf.concat([row[1:] != row[:-1], tf.ones_like(row[:1], "bool")], 0)
        later = tf.concat([starts[1:], starts[:1]], 0)
        ends = tf.where(is_last, tf.gather(covered, row), later)
        return ids, begins, ids.with_flat_values(ends)


class Unigram:
    """Unigram model: the most probable pieces of a word, by the Viterbi algorithm.

    SentencePiece's op adds scores in float32 and the library in float64, so they choose differently
    between equal scores, as of "0" "00" and "00" "0".

    Args:
        model: dict. The model of a `tokenizer.json`.
    """

    def __init__(self, model: dict[str, Any]) -> None:
        if model.get("byte_fallback"):
            raise UnsupportedError("the model Unigram with byte_fallback")
        self._unknown = model.get("unk_id")
        if self._unknown is None:
            raise UnsupportedError("the model Unigram without a piece for unknown characters")
        pieces = {piece: id for id, (piece, _) in enumerate(model["vocab"])}
        self._tree = PrefixTree(pieces)
        self._longest = max(map(len, pieces))
        scores = [score for _, score in model["vocab"]]
        # Last: an unknown character, and text that is not a piece.
        self._scores = np.array([*scores, min(scores) - 10, -np.inf], "float64")

    def __call__(self, words):
        ragged = tf.strings.unicode_decode(words, "UTF-8")  # (U, None), C in total
        points = ragged.flat_values
        lengths, first = (tf.cast(x(), "int32") for x in (ragged.row_lengths, ragged.row_starts))
        size = tf.size(points)
        longest = tf.minimum(tf.reduce_max(tf.concat([lengths, [1]], 0)), self._longest)
        limits = tf.gather(first + lengths, rows_of(ragged))
        ids = self._matches(points, limits, longest)  # (L, C)
        back = tf.range(longest, 0, -1)  # Lengths of pieces, the longest first: (L,).
        count = len(self._scores)

        def step(i, word, scores, steps, found):
            """Find the best piece that ends after `i` characters of each word."""
            end = tf.gather(first, word) + i  # (A,)
            place = end[:, tf.newaxis] - back  # (A, L)
            inside = back <= i
            place = tf.maximum(place, 0)
            id = tf.gather_nd(ids, tf.stack([tf.zeros_like(place) + back - 1, place], 2))
            is_single = tf.zeros_like(place) + back == 1
            id = tf.where(inside & (id >= 0), id, tf.where(is_single, count - 2, count - 1))
            # The score before the first character of a word is 0.
            earlier = tf.where(back < i, tf.gather(scores, tf.maximum(place - 1, 0)), 0.0)
            total = tf.gather(tf.constant(self._scores), id) + earlier
            best = tf.reduce_max(total, 1)
            # Of equal scores, the longest piece wins.
            which = tf.argmax(tf.cast(total == best[:, tf.newaxis], "int32"), 1, "int32")
            index = end[:, tf.newaxis] - 1
            scores = tf.tensor_scatter_nd_update(scores, index, best)
            steps = tf.tensor_scatter_nd_update(steps, index, tf.gather(back, which))
            id = tf.gather(id, which, axis=1, batch_dims=1)
            id = tf.where(id == count - 2, self._unknown, id)
            found = tf.tensor_scatter_nd_update(found, index, id)
            (word,) = rows_where(tf.gather(lengths, word) > i, word)
            return i + 1, word, scores, steps, found

        (word,) = rows_where(lengths > 0, tf.range(tf.size(words)))
        none = tf.zeros([size], tf.int32)
        state = (tf.constant(1), word, tf.zeros([size], tf.float64), none, none)
        *_, steps, found = tf.while_loop(
            lambda i, word, *_: tf.size(word) > 0,
            step,
            state,
            shape_invariants=(tf.TensorShape([]), *[tf.TensorShape([None])] * 4),
        )
        return self._of_paths(ragged, word, first, first + lengths, steps, found)

    def _matches(self, points, limits, longest):
        """Return the ids (L, C) of pieces of 1 to L characters at each place, -1 for none."""
        size = tf.size(points)

        def step(i, nodes, found):
            place = tf.range(size) + i
            point = tf.gather(points, tf.minimum(place, size - 1))
            nodes, ids = self._tree.step(tf.where(place < limits, nodes, -1), point)
            return i + 1, nodes, found.write(i, ids)

        found = tf.TensorArray(tf.int32, longest, element_shape=[None])
        state = (tf.constant(0), tf.zeros_like(points), found)
        return tf.while_loop(lambda i, *_: i < longest, step, state)[-1].stack()

    def _of_paths(self, ragged, word, first, end, steps, found):
        """Follow the best pieces backward through each word."""
        begin, end = (tf.gather(x, word) for x in (first, end))
        none = tf.zeros_like(steps)

        def step(begin, end, lengths):
            last = end - 1
            length = tf.gather(steps, last)
            lengths = tf.tensor_scatter_nd_update(lengths, (end - length)[:, tf.newaxis], length)
            end -= length
            return *rows_where(end > begin, begin, end), lengths

        *_, lengths = tf.while_loop(
            lambda begin, *_: tf.size(begin) > 0,
            step,
            (begin, end, none),
            shape_invariants=(tf.TensorShape([None]),) * 3,
        )
        place, length = rows_where(lengths > 0, tf.range(tf.size(lengths)), lengths)
        end = place + length
        ids = tf.gather(found, end - 1)
        row = tf.gather(rows_of(ragged), place)
        joins = (ids[1:] == self._unknown) & (ids[:-1] == self._unknown) & (row[1:] == row[:-1])
        edge = tf.zeros_like(ids[:1], "bool")
        ids, place = rows_where(~tf.concat([edge, joins], 0), ids, place)
        (end,) = rows_where(~tf.concat([joins, edge], 0), end)
        return _ragged(ragged, ids, place, end)


MODELS = {"BPE": BytePair, "Unigram": Unigram, "WordLevel": WordLevel, "WordPiece": WordPiece}


def model_of(content: dict[str, Any]) -> Any:
    """Return the model of a `tokenizer.json`.

    Raises:
        UnsupportedError: if a TensorFlow graph cannot run it.
    """
    kind = content["model"]["type"]
    if kind not in MODELS:
        raise UnsupportedError(f"the model {kind}")
    return MODELS[kind](content["model"])
