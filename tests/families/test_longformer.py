"""Longformer's global tokens and windows, compared with transformers; `test_relatives.py` compares
the heads that have no rule for pairs of texts.
"""

import json

import keras
import numpy as np
import pytest

from kerasbert.models import (
    BertBackbone,
    BertMultipleChoice,
    BertQuestionAnswering,
    BertTextClassifier,
)
from tests.contracts import BACKENDS, array, arrays, assert_close, batch, tiny_backbone
from tests.test_converter import load, run, write

ODD = {
    "attention_window": [4, 8, 4],
    "num_hidden_layers": 3,
    "hidden_act": "relu",
    "layer_norm_eps": 1e-3,
    "pad_token_id": 0,
    "sep_token_id": 5,
    "type_vocab_size": 3,
}


def inputs(theirs, length):
    """Return inputs with three separators per row, as transformers requires for pairs of texts."""
    x = theirs.inputs(length)
    ids, separator = x["token_ids"], theirs.model.config.sep_token_id
    ids[ids == separator] = 9
    for i, first in enumerate((2, 3, 1)):
        ids[i, [first, first + 1, x["padding_mask"][i].sum() - 1]] = separator
    return x


@pytest.mark.peers
@pytest.mark.backends(*BACKENDS)
def test_global_attention_mask(reference):
    """Rows with other numbers of global tokens, at padding too; hidden states of all layers."""
    import torch

    theirs = reference("longformer", **ODD)
    model = BertBackbone.from_preset(theirs.directory)
    assert model.local_window == [4, 8, 4] and model.sep_token_id == 5
    features = model.feature_model()
    for length in (13, 31):  # Shorter and longer than three windows of 8 tokens.
        x = theirs.inputs(length)
        mask = np.zeros_like(x["token_ids"])
        mask[0, [0, 3, 7]] = mask[1, -1] = mask[2, 5] = 1
        with torch.no_grad():
            expected = theirs._run(theirs.model, {**x}, global_attention_mask=torch.tensor(mask))
        found = arrays(features({**x, "global_attention_mask": mask}))
        real = x["padding_mask"] == 1
        for ours, its in zip(found["hidden_states"], expected.hidden_states, strict=True):
            assert np.abs(ours - its.numpy())[real].max() <= 1e-5
        assert np.abs(found["pooled_output"] - expected.pooler_output.numpy()).max() <= 1e-5
        # The same outputs without the functional model, and a difference to local attention.
        again = array(model({**x, "global_attention_mask": mask})["sequence_output"])
        assert np.abs(again - found["sequence_output"])[real].max() <= 1e-5
        assert np.abs(array(model(x)["sequence_output"]) - again)[real].max() > 0.1


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("head", ["QuestionAnswering", "MultipleChoice"])
@pytest.mark.parametrize("odd", [{}, ODD])
def test_pairs_of_texts(reference, tmp_path, head, odd):
    classes = {"QuestionAnswering": BertQuestionAnswering, "MultipleChoice": BertMultipleChoice}
    theirs = reference("longformer", f"For{head}", **odd)
    model = classes[head].from_preset(theirs.directory, preprocessor=None)
    write(theirs.directory, tmp_path / "out")
    again = load(tmp_path / "out", f"LongformerFor{head}")
    for length in (13, 31):
        x = inputs(theirs, length)
        expected, back = run(theirs.model, x), run(again, x)
        if head == "MultipleChoice":
            found = {"logits": model({name: value[None] for name, value in x.items()})}
        else:
            found = model(x)
        for name, value in arrays(found).items():
            wanted, same = (each[name].numpy() for each in (expected, back))
            gaps = np.abs(np.stack([value, same]) - wanted)
            gaps = gaps[:, x["padding_mask"] == 1] if value.shape == x["token_ids"].shape else gaps
            assert gaps.max() <= 1e-5 and np.abs(wanted).max() > 0.1


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_gradients(reference):
    import torch

    theirs = reference("longformer", "ForSequenceClassification", num_labels=3, **ODD)
    model = BertTextClassifier.from_preset(theirs.directory, preprocessor=None)
    x, labels = theirs.inputs(31), torch.tensor([0, 2, 1])
    theirs.model.zero_grad()
    with torch.enable_grad():
        loss = theirs._run(theirs.model, x, labels=labels).loss
        own = torch.nn.functional.cross_entropy(model(x), labels)
    assert abs(own.item() - loss.item()) <= 1e-5
    loss.backward()
    own.backward()
    its = theirs.model.longformer.encoder.layer[1].attention.self
    layer = model.backbone.transformer_layers[1].attention
    for ours, parts in (
        (layer.qkv, (its.query, its.key, its.value)),
        (layer.query_global, (its.query_global,)),
        (layer.kv_global, (its.key_global, its.value_global)),
    ):
        wanted = torch.cat([part.weight.grad for part in parts]).T
        assert (ours.kernel.value.grad - wanted).abs().max() <= 1e-5 and wanted.abs().max() > 1e-4


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "settings, message",
    [
        ({"attention_window": [4]}, "1 values in attention_window with num_hidden_layers=2"),
        ({"attention_window": [4, 5]}, r"attention_window=\[4, 5\], which must be even"),
        ({"attention_window": 0}, "attention_window=0 .* at least 1, or a list"),
        ({"attention_window": "512"}, "attention_window='512' .* at least 1, or a list"),
        ({"model_type": "led"}, "model_type 'led', which kerasbert does not support"),
        ({"sep_token_id": 9000}, "sep_token_id=9000 with vocab_size="),
    ],
)
def test_what_is_refused(reference, tmp_path, settings, message):
    theirs = reference("longformer")
    with pytest.raises(ValueError, match=message):
        BertBackbone.from_preset(theirs.copy(tmp_path, **settings))


def test_rules_and_given_masks(tmp_path):
    """Heads apply their rule; `global_tokens` replaces it, and is saved."""
    settings = {"local_window": [4, 8]}
    by_task = tiny_backbone("longformer", global_tokens="by_task", **settings)
    x = batch(by_task, (7, 4, 5))
    classifier = BertTextClassifier(by_task, num_classes=2)
    outputs = {}
    for rule in ("first", "none", "given"):
        backbone = tiny_backbone("longformer", global_tokens=rule, **settings)
        model = BertTextClassifier(backbone, num_classes=2)
        model.set_weights(classifier.get_weights())
        outputs[rule] = array(model(x))
        given = {**x, "global_attention_mask": (np.arange(7) == 0) * np.ones((3, 1), "int32")}
        if rule == "given":
            outputs["mask"] = array(model(given))
            model.save(tmp_path / "model.keras")
            again = keras.models.load_model(tmp_path / "model.keras")
            assert_close(again(given), outputs["mask"], atol=0)
            assert_close(model.predict(given, verbose=0), outputs["mask"])
        else:
            with pytest.raises(ValueError, match="has no such input; leave it out, or load"):
                model(given)
    assert_close(array(classifier(x)), outputs["first"], atol=0)
    assert_close(outputs["mask"], outputs["first"])
    assert_close(outputs["given"], outputs["none"])
    assert np.abs(outputs["first"] - outputs["none"]).max() > 1e-3
    config = json.loads(json.dumps(by_task.get_config()))
    assert config["global_tokens"] == "by_task" and config["local_window"] == [4, 8]
    assert by_task.with_layers([1]).local_window == [8]


@pytest.mark.parametrize(
    "family, settings, mask, message",
    [
        ("longformer", {"global_tokens": "cls"}, None, "global_tokens='cls' is unknown"),
        ("longformer", {"local_window": [4]}, None, r"local_window=\[4\] has 1 windows for num_l"),
        ("longformer", {"is_causal": True}, None, "needs is_causal=False, got True"),
        ("longformer", {"position_bias": "alibi"}, None, "needs position_bias=None, got 'alibi'"),
        ("longformer", {}, 2, "global_attention_mask has the value 2; it must be 1 at global"),
        ("longformer", {"max_global_tokens": 3}, 1, "marks 7 tokens of a row, but .* is 3; load"),
        ("roberta", {}, 1, "its family 'roberta' has no global attention"),
        (
            "longformer",
            {"sep_token_id": None, "global_tokens": "before_separator"},
            None,
            "global_tokens='before_separator' needs the id of the separator",
        ),
    ],
)
def test_errors(family, settings, mask, message):
    with pytest.raises(ValueError, match=message):
        backbone = tiny_backbone(family, **settings)
        x = batch(backbone)
        backbone({**x, "global_attention_mask": np.full((3, 7), mask)})


@pytest.mark.backends("torch")
def test_too_many_global_tokens_of_a_rule():
    """Compiled code cannot raise, so the error about NaN names the setting."""
    settings = {"global_tokens": "after_separator", "sep_token_id": 5, "max_global_tokens": 2}
    model = BertTextClassifier(tiny_backbone("longformer", **settings), num_classes=2)
    features = {"token_ids": np.array([[1, 5, 5, 6, 7, 8]])}
    for call in (model.predict, lambda x, verbose: model.fit(x, np.ones(1), verbose=verbose)):
        with pytest.raises(ArithmeticError, match="more global tokens than max_global_tokens=2"):
            call(features, verbose=0)


@pytest.mark.backends("torch")
def test_memory_is_linear():
    """No tensor of 4,096 tokens is as large as the attention map of all pairs."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    backbone = tiny_backbone(
        "longformer", max_sequence_length=4096, local_window=[64, 128], global_tokens="first"
    )

    class Largest(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            outputs = function(*args, **(kwargs or {}))
            for x in torch.utils._pytree.tree_leaves(outputs):
                if isinstance(x, torch.Tensor):
                    self.most = max(self.most, x.numel())
            return outputs

    with torch.no_grad(), Largest() as largest:
        backbone({"token_ids": np.ones((1, 4096), "int32")})
    assert largest.most <= 4096 * 2 * (2 * 128 + 8)
