"""ELMo's inputs (character ids of words) and labels (neighbors of words).

N sentences, W words per sentence, B batch, T tokens (words plus sentence start and end), C
characters per token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kerasbert.backend.tensorflow import tf

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# Character ids besides those of UTF-8 bytes, which are the byte + 1; 0 marks positions without a
# token.
SENTENCE_BEGIN, SENTENCE_END, WORD_BEGIN, WORD_END, PADDING = range(257, 262)
# First entries of the pre-training vocabulary, as in bilm-tf.
SPECIAL = ("<S>", "</S>", "<UNK>")
BEGIN_ID, END_ID, UNKNOWN_ID = range(3)


def sentence_words(sentences, method):
    """Split sentences into words at white space; lists of words stay as they are.

    Args:
        sentences: a string, or a list of strings or lists of words.
        method: string. The calling method, for errors.

    Returns:
        `(sentences, single)`: lists of words, and whether the input was one string.

    >>> sentence_words(["A dog", ["barks", "."]], "embed()")
    ([['A', 'dog'], ['barks', '.']], False)
    """
    if isinstance(sentences, str):
        return [sentences.split()], True
    if isinstance(sentences, (dict, bytes)) or not hasattr(sentences, "__iter__"):
        raise ValueError(
            f"{method} expects sentences as strings or lists of words, got {sentences!r} "
            f"({type(sentences).__name__})."
        )
    found = []
    for position, sentence in enumerate(sentences):
        words = sentence.split() if isinstance(sentence, str) else sentence
        if not hasattr(words, "__iter__") or not all(isinstance(word, str) for word in words):
            raise ValueError(
                f"The sentence at position {position} is {sentence!r}; pass a string or a list of "
                "words."
            )
        found.append(list(words))
    if not found:
        raise ValueError("There are no sentences; pass at least one.")
    return found, False


def character_ids(
    sentences: Sequence[Any], characters_per_token: int = 50, length: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Convert sentences to character ids, with sentence boundaries.

    Characters are UTF-8 bytes; excess ones are dropped.

    Args:
        sentences: list of N lists of words.
        characters_per_token: int. C.
        length: int. T; at least that of the longest sentence, the default.

    Returns:
        `(ids, mask)`, int32 (N, T, C) and (N, T).

    >>> ids, mask = character_ids([["a"], ["b", "c"]], 4)
    >>> ids[0].tolist()
    [[259, 257, 260, 261], [259, 98, 260, 261], [259, 258, 260, 261], [0, 0, 0, 0]]
    >>> mask.sum(axis=1).tolist()
    [3, 4]
    """
    most = characters_per_token - 2
    rows = []
    for sentence in sentences:
        words = [[byte + 1 for byte in word.encode("utf-8", "replace")[:most]] for word in sentence]
        rows.append([[SENTENCE_BEGIN], *words, [SENTENCE_END]])
    shape = (len(rows), max(map(len, rows), default=0) if length is None else length)
    ids, mask = np.zeros((*shape, characters_per_token), "int32"), np.zeros(shape, "int32")
    for i, row in enumerate(rows):
        mask[i, : len(row)] = 1
        ids[i, : len(row)] = PADDING
        for j, characters in enumerate(row):
            ids[i, j, : len(characters) + 2] = [WORD_BEGIN, *characters, WORD_END]
    return ids, mask


def character_ids_in_graph(words, characters_per_token):
    """Run `character_ids` in a TensorFlow graph.

    Args:
        words: `tf.RaggedTensor` of strings (N, None).
        characters_per_token: int. C.

    Returns:
        A dict of `character_ids` int32 (N, T, C) and `padding_mask` int32 (N, T).
    """
    flat, most = words.flat_values, characters_per_token - 2
    # A row of bytes per word.
    cut = tf.strings.substr(flat, 0, most)
    lengths = tf.strings.length(cut)[:, tf.newaxis]
    filled = tf.strings.join([cut, tf.constant("\0" * most)])
    filled = tf.strings.substr(filled, 0, most)
    ids = tf.cast(tf.reshape(tf.io.decode_raw(filled, "uint8"), (-1, most)), "int32") + 1
    place = tf.range(most)[tf.newaxis]
    ids = tf.where(place < lengths, ids, PADDING)
    ids = tf.pad(ids, [[0, 0], [1, 1]], constant_values=PADDING)
    place = tf.range(characters_per_token)[tf.newaxis]
    ids = tf.where(place == 0, WORD_BEGIN, tf.where(place == lengths + 1, WORD_END, ids))
    # Sentence boundaries have one character.
    rows = tf.cast(words.nrows(), "int32")

    def end(character):
        token = [WORD_BEGIN, character, WORD_END, *[PADDING] * (characters_per_token - 3)]
        return tf.RaggedTensor.from_tensor(
            tf.tile(tf.constant([[token]]), (rows, 1, 1)), ragged_rank=1
        )

    tokens = tf.concat([end(SENTENCE_BEGIN), words.with_flat_values(ids), end(SENTENCE_END)], 1)
    length = tf.cast(tf.reduce_max(tf.concat([tokens.row_lengths(), [1]], 0)), "int32")
    shape = tf.stack([-1, length, characters_per_token])
    ids = tf.ensure_shape(tokens.to_tensor(0, shape=shape), (None, None, characters_per_token))
    return {"character_ids": ids, "padding_mask": tf.cast(ids[:, :, 0] > 0, "int32")}


def neighbors(word_ids, length):
    """Return pre-training labels: the next and the previous token of each token.

    Args:
        word_ids: N lists of ints, without sentence boundaries.
        length: int. T.

    Returns:
        `(y, sample_weight)`, dicts of `forward_logits` and `backward_logits` (N, T). Weights are 0
        beyond a sentence.

    >>> y, weights = neighbors([[5, 6]], 5)
    >>> y["forward_logits"].tolist(), weights["backward_logits"].tolist()
    ([[5, 6, 1, 0, 0]], [[0.0, 1.0, 1.0, 1.0, 0.0]])
    """
    ids = np.zeros((len(word_ids), length), "int32")
    weights = np.zeros(ids.shape, "float32")
    for i, words in enumerate(word_ids):
        ids[i, : len(words) + 2] = [BEGIN_ID, *words, END_ID]
        weights[i, : len(words) + 2] = 1

    def beside(x):
        after, before = np.pad(x[:, 1:], [[0, 0], [0, 1]]), np.pad(x[:, :-1], [[0, 0], [1, 0]])
        return {"forward_logits": after, "backward_logits": before}

    return beside(ids), {name: x * weights for name, x in beside(weights).items()}
