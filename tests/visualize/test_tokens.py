"""A text as an encoder reads it."""

import numpy as np
import pytest

from kerasbert import models
from kerasbert.lineage import XLNetBackbone
from kerasbert.visualize.tokens import read_text
from tests.contracts import bert_tokenizer, tiny_backbone

pytestmark = pytest.mark.backends("tensorflow")

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] cats play ##ed 東 , naive is".split()


def task(name, **settings):
    cls = getattr(models, f"Bert{name}")
    preprocessor = cls.preprocessor_cls(bert_tokenizer(TOKENS), sequence_length=16)
    return cls(tiny_backbone(vocabulary_size=12), preprocessor=preprocessor, **settings)


def test_rows_are_those_of_the_preprocessor():
    model = task("TextClassifier", num_classes=2)
    for texts in ("", "Cats played, 東", ("Cats", "played"), ("cats " * 9, "is " * 9)):
        read = read_text(model, texts, "test")
        expected = model.preprocessor(texts)
        for name, x in read.features.items():
            wanted = np.asarray(expected[name]).astype("int32")
            np.testing.assert_array_equal(x[0], wanted, err_msg=str(texts))
        count = len(read.tokens)
        assert len(read.spans) == len(read.begins) == len(read.ids) == count, texts
        assert read.ids.tolist() == np.asarray(expected["token_ids"])[:count].tolist(), texts
        for name, (text, start, end) in zip(read.tokens, read.spans):
            whole = name if text < 0 else read.texts[text][start:end]
            assert name.removeprefix("##") == whole, texts


def test_words_have_the_sums_of_their_tokens():
    read = read_text(task("TextEmbedder"), ("Naïve  cats", "played, 東"), "test")
    spans, sums = read.words(np.arange(len(read.tokens)))
    words = [read.texts[text][start:end] for text, start, end in spans]
    assert words == ["Naïve", "cats", "played", ",", "東"]
    assert sums.tolist() == [1, 2, 4 + 5, 6, 7]


def test_a_mask_is_a_word():
    read = read_text(task("MaskedLM"), "cats[MASK]play", "test")
    assert read.tokens[1:-1] == ["cats", "[MASK]", "play"]
    spans, _ = read.words(np.zeros(5))
    assert spans.tolist() == [[0, 0, 4], [0, 4, 10], [0, 10, 14]]


def test_language_models_have_no_frame():
    cls = models.BertCausalLM
    backbone = tiny_backbone(vocabulary_size=12, is_causal=True, pooler=False)
    preprocessor = cls.preprocessor_cls(
        bert_tokenizer(TOKENS), sequence_length=16, add_start_token=False
    )
    assert read_text(cls(backbone, preprocessor), "cats played", "test").tokens == [
        "cats",
        "play",
        "##ed",
    ]
    preprocessor.add_start_token = True
    read = read_text(cls(backbone, preprocessor), "cats", "test")
    assert read.tokens == ["[CLS]", "cats"] and read.features["padding_mask"].sum() == 2
    assert read_text(task("MultipleChoice"), "cats", "test").tokens == ["[CLS]", "cats", "[SEP]"]


def test_encoders_with_another_frame_are_refused():
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8}
    model = task("TextEmbedder")
    model.backbone = XLNetBackbone(vocabulary_size=12, **sizes)
    with pytest.raises(ValueError, match="task on a BertBackbone.*is a XLNetBackbone"):
        read_text(model, "cats", "test()")
