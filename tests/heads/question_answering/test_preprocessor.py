"""Questions with windows of their contexts, and answers from characters to tokens and back."""

import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasbert.preprocessors import BertPreprocessor, BertQuestionAnsweringPreprocessor
from tests.contracts import arrays, assert_close, bert_tokenizer, check_preprocessor
from tests.text.conftest import HARD, SENTENCES

WORDS = "who where was it in the a garden of kew she sat".split()
TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK]".split() + WORDS
PIECES = ["  ", " ", "\n", "👩‍👩‍👧", "🙂", "é", "e\u0301", "北京", "한국어", "が", "x", "?", "ﬁ"]


@functools.cache
def small(**settings):
    """Return each preprocessor once: tracing costs more than the tests do."""
    settings = {"sequence_length": 12, "max_query_length": 3, "doc_stride": 2, **settings}
    return BertQuestionAnsweringPreprocessor(bert_tokenizer(TOKENS), **settings)


def random_texts(count, seed=0):
    """Return texts with accents, CJK, emoji, control characters and runs of spaces."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        parts = [str(random.choice(SENTENCES)), *random.choice(PIECES, random.integers(1, 8))]
        parts += [str(random.choice(HARD))[:60] for _ in range(random.integers(0, 2))]
        random.shuffle(parts)
        yield "".join(parts)


def touching(span, starts, ends):
    """Return the tokens that a span of characters touches."""
    pairs = enumerate(zip(starts, ends, strict=True))
    return [i for i, (start, end) in pairs if start < span[1] and end > span[0]]


def smallest(span, context, starts, ends):
    """Return the smallest span of tokens that covers all covered characters of a span."""
    tokens = touching(span, starts, ends)
    texts = [
        context[starts[first] : ends[last]]
        for first in tokens
        for last in tokens
        if first <= last
        and starts[first] <= max(span[0], starts[tokens[0]])
        and ends[last] >= min(span[1], max(ends[token] for token in tokens))
    ]
    return min(texts, key=len, default=None)


def decode(preprocessor, x, y):
    """Return for each example the characters that each window's labels point at, without (0, 0)."""
    windows = preprocessor.windows(x)
    found = [[] for _ in windows.contexts]
    for row, example in enumerate(windows.examples):
        first, last = int(y["start_logits"][row]), int(y["end_logits"][row])
        if (first, last) == (0, 0):
            continue
        shift = windows.begins[row] - windows.positions[row]
        for token in (first + shift, last + shift):
            assert windows.begins[row] <= token < windows.begins[row] + windows.lengths[row]
        start = windows.starts[example][first + shift]
        end = windows.ends[example][last + shift]
        found[example].append(windows.contexts[example][start:end])
    return found


@pytest.mark.slow
def test_labeled_characters_come_back(tokenizer):
    """For every tokenizer, 100 texts each."""
    random = np.random.default_rng(1)
    contexts = list(random_texts(100))
    _, starts, ends = tokenizer.tokenize_with_offsets(contexts)
    spans, expected = [], []
    for position, context in enumerate(contexts):
        if position % 2:  # at token boundaries
            first, last = sorted(random.integers(0, len(starts[position]), 2))
            span = starts[position][first], ends[position][last]
            assert span[0] < span[1]
            text = context[span[0] : span[1]]
        # A random span of characters; the label is the smallest span of tokens that contains it.
        else:
            start = int(random.integers(0, len(context)))
            span = start, min(len(context), start + int(random.integers(1, 15)))
            text = smallest(span, context, starts[position], ends[position])
            # A span of spaces has no tokens, so it becomes "no answer".
            span = span if text else None
        spans.append(span)
        expected.append(text)
    preprocessor = BertQuestionAnsweringPreprocessor(tokenizer, sequence_length=4096)
    x = (["the film?"] * len(contexts), contexts)
    _, y = preprocessor(x, spans)
    found = decode(preprocessor, x, arrays(y))
    assert found == [[] if text is None else [text] for text in expected]
    assert sum(text is not None for text in expected) > 75

    # All windows that contain the whole answer point at the same characters.
    preprocessor = BertQuestionAnsweringPreprocessor(tokenizer, 60, 10, 7)
    _, y = preprocessor(x, spans)
    for texts, text in zip(decode(preprocessor, x, arrays(y)), expected, strict=True):
        assert set(texts) <= {text}


@pytest.mark.parametrize("name", ["BertTokenizer", "RobertaTokenizer"])
def test_rows(make, name):
    """Each row token by token, and which windows have the answer; one separator or two."""
    tokenizer = make(name)
    random = np.random.default_rng(2)
    words = " ".join(SENTENCES[:2]).split()
    contexts = [" ".join(random.choice(words, random.integers(1, 40))) for _ in range(30)]
    questions = [str(random.choice(SENTENCES)) for _ in contexts]
    special = 2 + tokenizer.num_separators
    preprocessor = BertQuestionAnsweringPreprocessor(tokenizer, 40, 9, 6)
    ids, starts, ends = tokenizer.tokenize_with_offsets(contexts)
    # Spans of a few tokens, so that some windows contain them and others do not.
    spans = []
    for row_starts, row_ends in zip(starts, ends, strict=True):
        first = random.integers(0, len(row_starts))
        last = min(first + random.integers(0, 4), len(row_starts) - 1)
        spans.append((row_starts[first], row_ends[last]))
    features, y = arrays(preprocessor((questions, contexts), spans))
    windows = preprocessor.windows((questions, contexts))
    row = answered = 0
    for example, question in enumerate(questions):
        asked = tokenizer(question)[:9]
        tokens = touching(spans[example], starts[example], ends[example])
        room, start = 40 - special - len(asked), 0
        while True:
            held = ids[example][start : start + room]
            begin = 1 + len(asked) + tokenizer.num_separators
            expected = [tokenizer.start_token_id, *asked]
            expected += [tokenizer.end_token_id] * tokenizer.num_separators
            expected += [*held, tokenizer.end_token_id]
            mask = features["padding_mask"][row]
            assert features["token_ids"][row][mask].tolist() == expected
            assert features["segment_ids"][row].sum() == len(held) + 1
            place = windows.examples[row], windows.begins[row], windows.lengths[row]
            assert (*place, windows.positions[row]) == (example, start, len(held), begin)
            first, last = tokens[0] - start + begin, tokens[-1] - start + begin
            if tokens[0] < start or tokens[-1] >= start + len(held):
                first = last = 0
            assert (y["start_logits"][row], y["end_logits"][row]) == (first, last)
            answered += first > 0
            row += 1
            if start + room >= len(ids[example]):
                break
            start += min(room, 6)
    assert row == len(windows.examples) == len(features["token_ids"])
    assert 15 < answered < row - 15


def test_contract(tmp_path):
    questions = ["who", "where was it", "who sat in the garden", "it"]
    contexts = [
        "she sat in a garden",
        "it was in the garden of kew where she sat " * 3,
        "kew",
        "the garden of kew was where it was",
    ]
    labels = np.array([(0, 3), (11, 21), (-1, -1), (18, 27)])
    check_preprocessor(small(), (questions, contexts), labels, tmp_path)


@pytest.mark.slow
def test_separators_and_segments_of_other_families(make):
    for name, separators in (("RobertaTokenizer", 2), ("ModernBertTokenizer", 1)):
        tokenizer = make(name)
        preprocessor = BertQuestionAnsweringPreprocessor(tokenizer, num_segments=0)
        features, y = arrays(preprocessor((["the fox"], ["the dog"]), [(4, 7)]))
        ids = features["token_ids"][0][features["padding_mask"][0]].tolist()
        assert ids.count(tokenizer.end_token_id) == separators + 1
        assert "segment_ids" not in features
        first = int(y["start_logits"][0])
        assert (
            ids[first : int(y["end_logits"][0]) + 1]
            == tokenizer("the dog")[-len(ids) + 1 + first :]
        )


def test_forms_of_questions_and_answers():
    import pandas as pd

    questions, contexts = ["who", "where"], ["she sat", "it was in the garden"]
    squad = [{"text": ["she", "sat"], "answer_start": [0, 4]}, {"text": [], "answer_start": []}]
    expected = arrays(small()((questions, contexts), [(0, 3), None]))
    table = pd.DataFrame({"context": contexts, "question": questions})
    for x, y in (
        (list(zip(questions, contexts, strict=True)), squad),
        ({"question": questions, "context": contexts}, [(0, 3), []]),
        (table, pd.Series(squad)),
        ((np.array(questions), table["context"]), np.array([[0, 3], [-1, -1]])),
        (([q.encode() for q in questions], contexts), [{"text": "she", "answer_start": 0}, None]),
    ):
        assert_close(small()(x, y), expected, atol=0)
    one, target = arrays(small()(("who", "she sat"), [(0, 3)]))
    assert one["token_ids"].shape[0] == 1 and target["start_logits"].tolist() == [3]
    assert_close(small()(("who", "she sat"), squad[0])[1], target, atol=0)


def test_weights_count_for_every_window():
    contexts = ["she sat", "it was in the garden " * 3]
    features, _, weight = arrays(small()((["who", "where"], contexts), [None, None], [0.5, 2.0]))
    rows = len(features["token_ids"])
    assert rows > 3 and weight.tolist() == [0.5] + [2.0] * (rows - 1)
    batches = small().batches((["who", "where"], contexts), [None, None], [0.5, 2.0], batch_size=2)
    found = np.concatenate([batch[2] for batch in batches.as_numpy_iterator()])
    assert sorted(found.tolist()) == sorted(weight.tolist())


def test_a_dict_in_a_dataset():
    x = {"question": ["who", "where"], "context": ["she sat", "in the garden of kew " * 3]}
    y = np.array([[0, 3], [-1, -1]])
    with pytest.raises(ValueError, match="batch it first"):
        tf.data.Dataset.from_tensor_slices((x, y)).map(small())
    # The same texts with valid and invalid answers: an error does not end the dataset.
    texts = {name: column * 4 for name, column in x.items()}
    answers = np.concatenate([y, [[3, 3], [-1, -1]], [[3, 4], [-1, -1]], y])
    dataset = tf.data.Dataset.from_tensor_slices((texts, answers)).batch(2).map(small())
    batches = dataset.as_numpy_iterator()
    expected = arrays(small()(x, y))
    assert_close(next(batches), expected, atol=0)
    for message in ("must start at 0", "a token"):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            next(batches)
    assert_close(next(batches), expected, atol=0)
    dataset = tf.data.Dataset.from_tensor_slices((x, np.array([1, 2]))).batch(2)
    with pytest.raises(ValueError, match=r"answers of shape \(None,\); yield \(B, 2\)"):
        dataset.map(small())


def test_settings_go_with_a_preset(tmp_path):
    small().save_to_preset(str(tmp_path / "own"))
    loaded = BertQuestionAnsweringPreprocessor.from_own_preset(str(tmp_path / "own"))
    assert (loaded.max_query_length, loaded.doc_stride, loaded.sequence_length) == (3, 2, 12)
    # A preset of another task provides the shared settings.
    tokenizer = bert_tokenizer(TOKENS)
    BertPreprocessor(tokenizer, sequence_length=100).save_to_preset(str(tmp_path / "other"))
    loaded = BertQuestionAnsweringPreprocessor.from_own_preset(str(tmp_path / "other"))
    assert (loaded.max_query_length, loaded.sequence_length) == (64, 100)
    assert "truncate" not in keras.saving.serialize_keras_object(loaded)["config"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_query_length": 9}, "9 leaves no room .* sequence_length=12; lower it, or .* 13 or"),
        ({"max_query_length": 0}, "max_query_length=0 must be a whole number of at least 1"),
        ({"doc_stride": 2.5}, "doc_stride=2.5 must be a whole number"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        small(**settings)


def test_a_length_set_later():
    preprocessor = small(max_query_length=7)
    preprocessor.sequence_length = 10
    with pytest.raises(ValueError, match="max_query_length=7 leaves no room"):
        preprocessor((["who"], ["she sat"]))


PAIR = (["who", "where"], ["she sat", "in Kew"])


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (PAIR, [(0, 3), (3, 7)], "position 1, characters 3 to 7, is not in its context of 6 char"),
        (PAIR, [(3, 3), None], "position 0, characters 3 to 3, is not in its context"),
        (PAIR, [(-2, 3), None], "position 0, characters -2 to 3"),
        (PAIR, [(3, 4), None], "position 0, characters 3 to 4 of its context, covers no token"),
        (PAIR, [(0, 3)], "2 texts but 1 answers"),
        (PAIR, [(0, 3), "Kew"], "position 1 is 'Kew'; pass its start and end"),
        (PAIR, [(0, 3), (0.5, 3)], r"position 1 is \(0.5, 3\)"),
        (PAIR, [None, {"text": "Kew"}], r"position 1 has the keys \['text'\]"),
        (
            PAIR,
            [None, {"text": ["Kew"], "answer_start": [2]}],
            "position 1, 'Kew', is not at character 2 .* has ' Ke' there; count characters",
        ),
        (
            PAIR,
            [None, {"text": ["Kew"], "answer_start": [3, 4]}],
            "position 1 has 1 texts but 2 starts",
        ),
        (PAIR, [None, {"text": [None], "answer_start": [3]}], "position 1 is None at 3"),
        ((["who", "where"], ["she sat"]), None, "have 2 and 1 texts"),
        ((["who", "where"], ["she sat", " \n"]), None, "context at position 1 has no tokens"),
        (([], []), None, "The list of texts is empty"),
        (["who", "where"], None, "questions without contexts"),
        ({"question": ["who"], "text": ["she"]}, None, r"\['question', 'text'\]; name them"),
    ],
)
def test_bad_input(x, y, message):
    preprocessor = small()
    for call in (preprocessor, preprocessor.batches):
        with pytest.raises(ValueError, match=message):
            call(x, y)


def lost_answers(preprocessor, context, spans):
    """Return the number of spans that no window contains."""
    y = preprocessor((["where"] * len(spans), [context] * len(spans)), spans)[1]
    examples = preprocessor.windows((["where"] * len(spans), [context] * len(spans))).examples
    starts = keras.ops.convert_to_numpy(y["start_logits"])
    return sum(not starts[examples == i].any() for i in range(len(spans)))


@pytest.mark.slow
@pytest.mark.parametrize("length", [24, 40, 96, 128, 384])
def test_default_windows_overlap_at_any_length(length):
    """With 128 tokens per row, windows used not to overlap, and answers across their ends were
    lost.
    """
    most = min(64, length // 2)
    preprocessor = BertQuestionAnsweringPreprocessor(
        bert_tokenizer(TOKENS), sequence_length=length, max_query_length=most
    )
    context = " ".join(["she sat at"] * 200)
    spans = [(start, start + 6) for start in range(0, 11 * 150, 11)]  # Each answer has two words.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".* in a sample of the texts")
        assert lost_answers(preprocessor, context, spans) == 0
    room = length - 3 - most
    assert 1 <= preprocessor.stride <= max(1, room // 2) and preprocessor.stride <= 128


def test_the_length_may_be_set_later():
    preprocessor = BertQuestionAnsweringPreprocessor(bert_tokenizer(TOKENS))
    assert preprocessor.stride == 128 and preprocessor.get_config()["doc_stride"] is None
    preprocessor.sequence_length = 128
    assert preprocessor.stride == 30
    again = BertQuestionAnsweringPreprocessor.from_config(
        {**preprocessor.get_config(), "tokenizer": preprocessor.tokenizer}
    )
    assert again.stride == 30


def test_presets_of_earlier_versions_follow_a_shorter_length(tmp_path):
    """Their files have the former default, 128."""
    tokenizer = bert_tokenizer(TOKENS)
    for saved, loaded in ((128, 30), (100, 100), (None, 30)):
        folder = str(tmp_path / str(saved))
        BertQuestionAnsweringPreprocessor(tokenizer, doc_stride=saved).save_to_preset(folder)
        from_own_preset = BertQuestionAnsweringPreprocessor.from_own_preset
        assert from_own_preset(folder, sequence_length=128).stride == loaded
        assert from_own_preset(folder, sequence_length=128, doc_stride=128).stride == 128
        assert from_own_preset(folder).stride == (saved or 128)


def test_answers_in_no_window_are_reported_once():
    preprocessor = BertQuestionAnsweringPreprocessor(
        bert_tokenizer(TOKENS), sequence_length=12, max_query_length=3, doc_stride=8
    )
    context = " ".join(["she sat at"] * 9)
    x = (["where"] * 3, [context] * 3)
    message = r"1 of 2 answers, the first at position 1, .* doc_stride=8 tokens; raise"
    with pytest.warns(UserWarning, match=message) as caught:
        preprocessor._examples(x, [(0, 3), (22, 32), None], None)
    assert sum("answers" in str(one.message) for one in caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        preprocessor._examples(x, [(0, 3), (22, 32), None], None)
