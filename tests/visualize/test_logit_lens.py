"""The logit lens: the last layer's head applied to each layer."""

import sys

import keras
import numpy as np
import pytest

from kerasbert import models, visualize
from kerasbert.visualize.logit_lens import LogitLens
from tests.contracts import MASKED_LMS, bert_tokenizer, perturb, tiny_backbone

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] the film is good bad 東 京 play ##ed".split()
TOKENS += [f"w{i}" for i in range(14)]


def masked_lm(family="bert", cls=models.BertMaskedLM):
    preprocessor = cls.preprocessor_cls(bert_tokenizer(TOKENS), sequence_length=16)
    return perturb(cls(tiny_backbone(family), preprocessor))


@pytest.mark.backends("torch")  # Other backends would compile a function for each family.
@pytest.mark.parametrize("family", MASKED_LMS)
def test_the_last_layer_says_what_the_model_says(family):
    model = masked_lm(family)
    found = visualize.logit_lens(model, "the film is [MASK]", top_k=3, places="masks")
    best = model.fill_mask("the film is [MASK]", top_k=3)
    assert found.tokens == ["[MASK]"]
    assert found.scores.shape == (model.backbone.num_layers + 1, 1, 3)
    assert found.best[-1][0] == [one["token"] for one in best]
    np.testing.assert_allclose(found.scores[-1, 0], [one["score"] for one in best], atol=1e-5)
    # Layers in between are passed through the same norm and head, as in a shorter model.
    every = model.backbone.global_every if model.backbone.local_window else 1
    shorter = model.with_layers(range(every if every > 1 else 1))
    layer = shorter.backbone.num_layers
    best = shorter.fill_mask("the film is [MASK]", top_k=3)
    np.testing.assert_allclose(found.scores[layer, 0], [x["score"] for x in best], atol=1e-5)
    assert found.token_ids[layer, 0].tolist() == [x["token_id"] for x in best]
    assert np.abs(found.scores[-1] - found.scores[0]).max() > 1e-3


def test_all_tokens_and_pairs(monkeypatch):
    model = masked_lm(cls=models.BertPretrainer)
    found = visualize.logit_lens(model, ("東京", "is [MASK]"), top_k=99)
    assert found.tokens == ["[CLS]", "東", "京", "[SEP]", "is", "[MASK]", "[SEP]"]
    assert found.scores.shape == (3, 7, 28)  # As many as there are tokens.
    np.testing.assert_allclose(found.scores.sum(-1), 1, rtol=1e-6)
    monkeypatch.setattr(sys.modules["kerasbert.visualize.logit_lens"], "_AT_ONCE", 3)
    again = visualize.logit_lens(model, ("東京", "is [MASK]"), top_k=99)
    np.testing.assert_allclose(again.scores, found.scores, atol=1e-6)
    ids = found.token_ids[-1, 5]
    logits = model({"token_ids": [[2, 10, 11, 3, 7, 4, 3]], "segment_ids": [[0] * 4 + [1] * 3]})
    logits = keras.ops.convert_to_numpy(logits["mlm_logits"])[0, 5, :28]
    assert ids.tolist() == np.argsort(-logits, kind="stable").tolist()


@pytest.mark.backends("tensorflow")
def test_pictures_and_errors():
    lens = LogitLens(
        ["[MASK]", "<b>"], [[["<i>"], ["b"]]] * 2, np.zeros((2, 2, 1)), np.ones((2, 2, 1))
    )
    shown = lens._repr_html_()
    assert "<b>" not in shown and "<i>" not in shown and "&lt;i&gt;" in shown
    assert shown.index("layer 1") < shown.index("embeddings")
    figure = visualize.logit_lens_grid(lens)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        "embeddings",
        "layer 1",
    ]
    assert figure._repr_png_().startswith(b"\x89PNG")
    model = masked_lm()
    with pytest.raises(ValueError, match="has no .MASK.; use places=None"):
        visualize.logit_lens(model, "the film", places="masks")
    with pytest.raises(ValueError, match="places='all' is unknown"):
        visualize.logit_lens(model, "the film", places="all")
    with pytest.raises(ValueError, match="a BertTextEmbedder has none; load"):
        visualize.logit_lens(models.BertTextEmbedder(model.backbone), "the film")
    with pytest.raises(ValueError, match="task model with a preprocessor"):
        visualize.logit_lens(models.BertMaskedLM(model.backbone), "the film")
