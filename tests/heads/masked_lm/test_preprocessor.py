"""Masking by words in the preprocessors: marks of the vocabulary, and words separated by spaces."""

import numpy as np
import pytest
import tensorflow as tf

from kerasbert.models import BertMaskedLMPreprocessor, BertPretrainerPreprocessor
from tests.contracts import arrays, bert_tokenizer

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] play ##ing ##ed un ##able , a".split()
TOKENS += list("我们在图书馆学习")
TEXTS = ["playing , unplayed a a a", "unable unplaying played a , a", "a"]
# 我们 | 在 | 图书馆 | 学习, as a segmenter writes it.
CHINESE = "我们 在\u3000图书馆  学习"


def make(cls=BertMaskedLMPreprocessor, **settings):
    settings = {"mask_selection_rate": 0.3, "mask_token_rate": 1.0, **settings}
    tokenizer = bert_tokenizer([*TOKENS, "##play"])
    return cls(tokenizer, sequence_length=24, random_token_rate=0.0, **settings)


def hidden_words(features, words):
    """Yield for each row the number of fully masked words; `words` has the positions of their
    pieces.
    """
    masked = features["token_ids"] == TOKENS.index("[MASK]")
    for row, groups in zip(masked, words, strict=True):
        hidden = [row[list(group)] for group in groups]
        assert all(part.all() or not part.any() for part in hidden)
        assert row.sum() == sum(part.sum() for part in hidden)
        yield int(row.sum())


WORDS = [
    [(1, 2), (3,), (4, 5, 6), (7,), (8,), (9,)],
    [(1, 2), (3, 4, 5), (6, 7), (8,), (9,), (10,)],
    [(1,)],
]


@pytest.mark.parametrize("unit", ["word", "span", "ngram"])
def test_pieces_of_a_word_are_hidden_together(unit):
    preprocessor = make(mask_unit=unit)
    seen = set()
    for _ in range(12):
        features, y, weights = arrays(preprocessor(TEXTS))
        assert list(hidden_words(features, WORDS)) == [3, 4, 1]
        assert weights.sum(axis=1).tolist() == [3, 4, 1]
        seen.add(features["token_ids"].tobytes())
    assert len(seen) > 3


def test_words_given_by_spaces():
    preprocessor = make(mask_unit="word", word_boundaries="spaces", mask_selection_rate=0.34)
    plain = make()
    # The ids are the same as for the text without spaces.
    ids = preprocessor.tokenize([CHINESE, *TEXTS])
    for other in (plain.tokenize([CHINESE.replace(" ", ""), *TEXTS]),):
        assert ids[0].to_list() == other[0].to_list()
    groups = [(1, 2), (3,), (4, 5, 6), (7, 8)]
    seen = set()
    for _ in range(20):
        features, y, weights = arrays(preprocessor([CHINESE]))
        assert list(hidden_words(features, [groups])) == [3]
        assert features["token_ids"].max() < len(TOKENS) + 1 and y.max() < len(TOKENS) + 1
        seen.add(tuple(np.flatnonzero(features["token_ids"][0] == 4)))
    assert seen == {(4, 5, 6), (1, 2, 3), (3, 7, 8)}
    # By marks, each of these characters is a word.
    features, *_ = arrays(make(mask_unit="word", mask_selection_rate=0.1)([CHINESE]))
    assert (features["token_ids"] == 4).sum() == 1


def test_words_given_by_spaces_join_marks_too():
    """ "played," is one word."""
    preprocessor = make(mask_unit="word", word_boundaries="spaces", mask_selection_rate=0.4)
    features, *_ = arrays(preprocessor(["played, a a a"]))
    assert list(hidden_words(features, [[(1, 2, 3), (4,), (5,), (6,)]])) == [3]


@pytest.mark.slow
def test_words_in_batches_and_datasets():
    marks, spaces = (make(mask_unit="word", word_boundaries=one) for one in ("marks", "spaces"))
    dataset = tf.data.Dataset.from_tensor_slices(TEXTS).batch(3)
    for name, source in (
        ("batches", spaces.batches(TEXTS, batch_size=3, shuffle=False, seed=1)),
        ("map_dataset", spaces.map_dataset(dataset)),
        ("map", dataset.map(spaces)),
        ("map by marks", dataset.map(marks)),
    ):
        ((features, _, weights),) = source.as_numpy_iterator()
        assert list(hidden_words(features, WORDS)) == [3, 4, 1], name
        assert features["token_ids"].max() <= len(TOKENS), name


def test_passes_of_a_dataset_differ_only_with_dynamic_masking():
    preprocessor = make(mask_selection_rate=0.3)
    dataset = tf.data.Dataset.from_tensor_slices(TEXTS * 10).batch(30)

    def masks(mapped):
        return [next(mapped.as_numpy_iterator())[0]["token_ids"].tolist() for _ in range(2)]

    first, second = masks(preprocessor.map_dataset(dataset))
    assert first != second
    static = masks(preprocessor.map_dataset(dataset, dynamic=False))
    assert static[0] == static[1]
    with pytest.warns(DeprecationWarning, match="anew.*use dynamic"):
        assert masks(preprocessor.map_dataset(dataset, anew=False)) == static


def test_settings_are_saved(tmp_path):
    for cls in (BertMaskedLMPreprocessor, BertPretrainerPreprocessor):
        preprocessor = make(cls, mask_unit="span", word_boundaries="spaces")
        preprocessor.save_to_preset(str(tmp_path / cls.__name__))
        loaded = cls.from_preset(str(tmp_path / cls.__name__))
        assert (loaded.mask_unit, loaded.word_boundaries) == ("span", "spaces")
        assert loaded.get_config()["mask_unit"] == "span"


def test_pairs_are_masked_by_words():
    preprocessor = make(BertPretrainerPreprocessor, mask_unit="word")
    features, y, weights = preprocessor((TEXTS[:2], ["playing a a a a", "a"]), [0, 1])
    features = arrays(features)
    words = [
        [*WORDS[0], (11, 12), (13,), (14,), (15,), (16,)],
        [*WORDS[1], (12,)],
    ]
    assert list(hidden_words(features, words)) == [round(0.3 * 18), round(0.3 * 14)]


def test_settings_that_there_are_not():
    with pytest.raises(ValueError, match="mask_unit='words' must be one of"):
        make(mask_unit="words")
    with pytest.raises(
        ValueError, match="word_boundaries='white' is unknown; use one of marks, sp"
    ):
        make(word_boundaries="white")


def plainly(tokenizer, text, start, end, before, ids):
    """Return each token as text, and `text` with it in place of a mask, one after the other."""
    names = [tokenizer.detokenize([id]).strip() for id in ids]
    filled = [text[:start] + name for name in names]
    if before >= 0:
        left = tokenizer.detokenize([before])
        for i, id in enumerate(ids):
            both = tokenizer.detokenize([before, id])
            added = both.removeprefix(left)
            if left and both.startswith(left) and added and not added[0].isspace():
                filled[i] = text[:start].rstrip() + added
    return names, [head + text[end:] for head in filled]


def test_tokens_in_place_of_masks(tokenizer):
    """For every class: random tokens after random ones, half of them with a space between."""
    random = np.random.default_rng(0)
    preprocessor = BertMaskedLMPreprocessor(tokenizer)
    words = ["größe", "日本語", "🙂", "a,b", ""]
    texts = ["".join(random.choice([*words, " ", "\u3000"], 6)) for _ in range(50)]
    rows = random.integers(0, 50, 30).astype("int32")
    starts = np.array([random.integers(0, len(texts[row]) + 1) for row in rows], "int32")
    ends = np.array([random.integers(a, len(texts[row]) + 1) for a, row in zip(starts, rows)])
    size = tokenizer.vocabulary_size()
    before, tokens = random.integers(-1, size, 30), random.integers(0, size, (30, 4))
    in_graph = preprocessor.fill_in_graph(
        texts, rows, starts, *(x.astype("int32") for x in (ends, before, tokens))
    )
    masks = list(zip(rows.tolist(), starts.tolist(), ends.tolist(), before.tolist()))
    names, filled = preprocessor.fill_in(texts, masks, tokens.tolist())
    as_text = [[[x.decode() for x in row] for row in part.numpy()] for part in in_graph]
    assert [names, filled] == as_text
    for i, row in enumerate(rows):
        wanted = plainly(tokenizer, texts[row], starts[i], ends[i], before[i], tokens[i].tolist())
        assert (names[i], filled[i]) == wanted
