"""One-time warnings of preprocessors: unknown words, normal forms, and truncation."""

import unicodedata
import warnings

import numpy as np
import pytest
import tensorflow as tf

from kerasbert.models import (
    BertCausalLMPreprocessor,
    BertMultipleChoicePreprocessor,
    BertTextClassifier,
    BertTextEmbedder,
    BertTokenClassifierPreprocessor,
)
from kerasbert.models import BertQuestionAnsweringPreprocessor as AnswersPreprocessor
from kerasbert.models import BertTextClassifierPreprocessor as Preprocessor
from kerasbert.models import BertTextEmbedderPreprocessor as EmbedderPreprocessor
from kerasbert.text.text_warnings import unreported
from kerasbert.tokenizers import BertTokenizer

pytestmark = pytest.mark.backends("tensorflow")  # No backend changes the results.

slices = tf.data.Dataset.from_tensor_slices
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = "파일을 저장하지 못했습니다 ファイル ABC the film was good a".split()
TEXTS = ["파일을 저장하지 못했습니다", "the film was good", "저장하지 파일을", "파일을 a film"]


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer([*SPECIAL, *WORDS])


def said(call, *arguments):
    """Return the warnings of a call, as strings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call(*arguments)
    return [str(one.message) for one in found]


def apart(texts):
    return [unicodedata.normalize("NFD", text) for text in texts]


# Ways to pass texts: the class of a preprocessor, and a function that passes texts to it.
WAYS = {
    "batches": (Preprocessor, lambda made, texts: made.batches(texts)),
    "sorted": (Preprocessor, lambda made, texts: made.sorted_batches(texts)),
    "at once": (Preprocessor, lambda made, texts: made.sorted_batches(texts, few=99)),
    "call": (Preprocessor, lambda made, texts: made(texts)),
    "pairs": (Preprocessor, lambda made, texts: made.sorted_batches((texts, TEXTS), few=99)),
    "words": (
        BertTokenClassifierPreprocessor,
        lambda made, texts: made.sorted_batches([text.split() for text in texts]),
    ),
    "tags": (BertTokenClassifierPreprocessor, lambda made, texts: made.read(texts)),
    "questions": (
        AnswersPreprocessor,
        lambda made, texts: made.sorted_batches((["the film"] * 4, texts)),
    ),
    "choices": (
        BertMultipleChoicePreprocessor,
        lambda made, texts: made((["the film"] * 2, [texts[:2], texts[2:]])),
    ),
    "dataset": (
        Preprocessor,
        lambda made, texts: list(
            made.map_dataset(tf.data.Dataset.from_tensor_slices(texts).batch(4))
        ),
    ),
    "labeled": (
        Preprocessor,
        lambda made, texts: list(
            made.map_dataset(
                tf.data.Dataset.from_tensors(({"text": texts, "text_b": TEXTS}, [1] * 4))
            )
        ),
    ),
    "writing": (BertCausalLMPreprocessor, lambda made, texts: made.batches(texts)),
    "columns": (
        EmbedderPreprocessor,
        lambda made, texts: made.column_batches((TEXTS, texts), np.ones(4)),
    ),
}


# Tokenization with offsets traces its own graphs.
SLOW = ("words", "questions", "choices", "writing")


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.slow if way in SLOW else ()) for way in WAYS]
)
def test_texts_not_in_nfc_are_told_once(tokenizer, way):
    cls, enter = WAYS[way]
    made = cls(tokenizer)
    assert said(enter, made, TEXTS) == []
    (message,) = said(enter, made, apart(TEXTS))
    assert "not in Unicode's composed form NFC" in message and "normalize='NFC'" in message
    assert said(enter, made, apart(TEXTS)) == []
    # The remedy that the warning names.
    made = cls(tokenizer, normalize="NFC")
    assert made.normalize == made.tokenizer.normalize == "NFC" and tokenizer.normalize is None
    assert said(enter, made, apart(TEXTS)) == []


@pytest.mark.parametrize(
    ("texts", "count", "example", "out"),
    [
        (["ﾌｧｲﾙ", "ﾌｧｲﾙ a", "ＡＢＣ", "ﾌｧｲﾙ"], "4 (80%)", "'ﾌｧｲﾙ'", "normalize = 'NFKC'"),
        (
            ["파일을ㅋㅋㅋ", "저장하지ㅠㅠ", "good👍", "a film"],
            "3 (60%)",
            "'파일을ㅋㅋㅋ'",
            "kerasbert vocab",
        ),
        ([b"der Film", "war gut", "und lang", "film"], "6 (86%)", "'der'", "kerasbert presets"),
    ],
)
def test_unknown_words_are_told_once(tokenizer, texts, count, example, out):
    made = Preprocessor(tokenizer)
    (message,) = said(lambda: made.sorted_batches(texts, few=99))
    assert all(part in message for part in (count, example, out))
    assert said(lambda: made.sorted_batches(texts)) == []


def test_what_is_not_worth_a_word(tokenizer):
    # One or two names per text, accents that the tokenizer drops anyway, and one rare text among
    # many.
    assert said(lambda: Preprocessor(tokenizer)(["Zoe was good", "the Film was good"])) == []
    plain = BertTokenizer([*SPECIAL, "cafe"], lowercase=True)
    assert said(lambda: Preprocessor(plain)(apart(["café", "café café"]))) == []
    rare = [*TEXTS * 30, *apart(TEXTS[:1])]
    assert said(lambda: Preprocessor(tokenizer).batches(rare)) == []


def test_cut_texts_are_told_once(tokenizer):
    long = ["a film", "the film was good " * 9, b"a " * 99, "a"]
    for way in ("batches", "sorted", "at once", "call", "dataset", "columns"):
        cls, enter = WAYS[way]
        made = cls(tokenizer, sequence_length=16)
        fits = ["the film was good a film the film was good a film a film", *["a"] * 3]
        assert said(enter, made, fits) == []
        (message,) = said(enter, made, long)
        assert "2 of 4 texts (50%)" in message and "sequence_length=16" in message
        assert "position 1, 'the film was good" in message
        assert said(enter, made, long) == []
    # Each of these is too long together with the first.
    made = Preprocessor(tokenizer, sequence_length=16)
    (message,) = said(lambda: made((["a film " * 5] * 4, ["a", "a " * 4, "a " * 5, "a"])))
    assert "2 of 4 texts" in message
    made = BertMultipleChoicePreprocessor(tokenizer, sequence_length=16)
    (message,) = said(lambda: made((["a", "a"], [["a film"], ["a", "a film " * 9]])))
    assert "1 of 2 texts" in message and "position 1, its choices" in message


@pytest.mark.slow
def test_what_is_read_in_windows_is_not_cut(tokenizer):
    text = "the film was good " * 40
    for cls, x in (
        (BertTokenClassifierPreprocessor, [text] * 2),
        (AnswersPreprocessor, (["the film"] * 2, [text] * 2)),
        (BertCausalLMPreprocessor, [text] * 2),
    ):
        settings = {"max_query_length": 4} if cls is AnswersPreprocessor else {}
        made = cls(tokenizer, sequence_length=16, **settings)
        assert said(made.batches, x) == []


def test_models_and_indexes_tell(tokenizer):
    from kerasbert import SearchIndex
    from kerasbert.models import BertBackbone

    encoder = BertBackbone(tokenizer.vocabulary_size(), 1, 1, 8, 8, max_sequence_length=16)
    model = BertTextClassifier(encoder, 2, preprocessor=Preprocessor(tokenizer, sequence_length=16))
    messages = said(lambda: model.predict(apart(TEXTS), verbose=0))
    assert len(messages) == 1 and "NFC" in messages[0]
    model.preprocessor.normalize = "NFC"
    found = model.predict(apart(TEXTS), verbose=0)
    np.testing.assert_array_equal(found, model.predict(TEXTS, verbose=0))
    embedder = BertTextEmbedder(
        encoder, preprocessor=EmbedderPreprocessor(tokenizer, sequence_length=16)
    )
    texts = [*TEXTS, "the film was good " * 9]
    (message,) = said(lambda: SearchIndex(embedder, texts))
    assert "1 of 5 texts (20%)" in message and "position 4" in message
    with pytest.raises(ValueError, match="preprocessor.normalize = 'NFC'"):
        BertTextEmbedder(encoder, normalize="NFC")
    with pytest.raises(ValueError, match="normalize"):
        Preprocessor(tokenizer, normalize="NFX")


def test_a_form_of_texts_is_the_preprocessors():
    for cls, own in ((BertTextClassifier, {"labels": ["a", "b"]}), (BertTextEmbedder, {})):
        model = cls.from_preset(
            "bert_tiny_demo_en_uncased", load_weights=False, normalize="NFC", **own
        )
        assert model.preprocessor.normalize == "NFC"
        assert getattr(model, "normalize", False) is False


def test_texts_that_are_not_the_users(tokenizer):
    """Texts of an export's checks, which run before the user's texts, cause no warning."""
    preprocessor = Preprocessor(tokenizer, sequence_length=8)
    strange = ["none of these words is known", "[SEP] " * 20]
    with unreported():
        assert said(preprocessor, strange) == []
    assert len(said(preprocessor, strange)) == 3
