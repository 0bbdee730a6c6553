"""Models that share an encoder or a preprocessor do not affect each other."""

import functools

import keras
import numpy as np
import pytest

from kerasbert.models import (
    BertDistiller,
    BertMaskedLM,
    BertMultipleChoice,
    BertNextSentencePredictor,
    BertPretrainer,
    BertPretrainerPreprocessor,
    BertQuestionAnswering,
    BertTextClassifier,
    BertTextClassifierPreprocessor,
    BertTextEmbedder,
    BertTextRegressor,
    BertTokenClassifier,
    BertTokenClassifierPreprocessor,
)
from tests.contracts import SETTINGS, array, batch, bert_tokenizer, random_targets, tiny_backbone

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] good bad film".split()
TOKENS += [f"word{i}" for i in range(SETTINGS["vocabulary_size"] - len(TOKENS))]

# Tasks that do not use the pooler, and one that does.
WITHOUT = {
    "tagger": lambda backbone: BertTokenClassifier(backbone, 3),
    "masked_lm": BertMaskedLM,
    "pretrainer": lambda backbone: BertPretrainer(backbone, next_sentence=False),
    "reader": BertQuestionAnswering,
    "mean": lambda backbone: BertTextClassifier(backbone, 3, pooling="mean"),
    "bilstm": lambda backbone: BertTextClassifier(backbone, 3, bilstm_units=2),
}
WITH = {
    "classifier": lambda backbone: BertTextClassifier(backbone, 3),
    "regressor": BertTextRegressor,
    "choice": BertMultipleChoice,
    "pairs": BertNextSentencePredictor,
    "pretrainer": BertPretrainer,
}


# Encoders for tests that do not train them.
encoder = functools.cache(tiny_backbone)


def make_backbone():
    return tiny_backbone(dropout=0.0, num_layers=1)


def train(model):
    """Return paths of the weights that a training step changes; weight decay would change other
    weights, too.
    """
    features = batch(model)
    targets = random_targets(model, features)
    loss = keras.tree.map_structure(lambda _: keras.losses.MeanSquaredError(), targets)
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    model.compile(optimizer, loss, metrics=None, run_eagerly=True)
    before = [array(weight) for weight in model.weights]
    model.train_on_batch(features, targets)
    return {w.path for w, old in zip(model.weights, before) if (array(w) != old).any()}


def paths(weights):
    return {weight.path for weight in weights}


@pytest.mark.backends("torch")
def test_a_task_without_the_pooler_leaves_it_to_others():
    backbone = make_backbone()
    flags = [weight.trainable for weight in backbone.weights]
    pooler = paths(backbone.pooled_dense.weights)
    models = {name: make(backbone) for name, make in WITHOUT.items()}
    for name, model in models.items():
        # All weights that the optimizer, `summary` and `count_params` see.
        for trained, others, whole in (
            (model.trainable_variables, model.non_trainable_variables, model.variables),
            (model.trainable_weights, model.non_trainable_weights, model.weights),
        ):
            assert not pooler & paths(trained) and pooler <= paths(others), name
            assert sorted(map(id, [*trained, *others])) == sorted(map(id, whole)), name
        assert not pooler & train(model), name
        assert [weight.trainable for weight in backbone.weights] == flags, name
    # A model that trains the pooler is built on the same encoder after these models were trained.
    other = BertTextClassifier(backbone, 3)
    assert pooler <= paths(other.trainable_variables) and pooler <= train(other)
    for name, model in models.items():
        assert not pooler & paths(model.trainable_variables), name


@pytest.mark.backends("torch")
def test_a_task_with_the_pooler_trains_it():
    backbone = make_backbone()
    for name, make in WITH.items():
        model = make(backbone)
        BertTokenClassifier(backbone, 3)
        assert paths(model.trainable_variables) == paths(model.weights), name
        assert paths(backbone.pooled_dense.weights) <= train(model), name


@pytest.mark.backends("torch")
def test_what_the_user_froze_stays_frozen():
    backbone = make_backbone()
    backbone.pooled_dense.trainable = False
    for make in (BertTextRegressor, BertMaskedLM):
        assert not any("pooled_dense" in path for path in train(make(backbone)))
    assert not backbone.pooled_dense.trainable
    backbone.pooled_dense.trainable = True
    backbone.trainable = False
    for make in (BertTextRegressor, WITHOUT["tagger"]):
        assert train(make(backbone)) == {"logits/kernel", "logits/bias"}
    backbone.trainable = True
    assert "pooled_dense/kernel" in train(BertTextRegressor(backbone))


@pytest.mark.backends("torch")
def test_adapters_on_a_shared_encoder():
    backbone = make_backbone()
    tagger, classifier = WITHOUT["tagger"](backbone), BertTextClassifier(backbone, 3)
    backbone.enable_lora(2)
    for model in (tagger, classifier):
        moved = train(model)
        assert all("lora" in path or path.startswith("logits/") for path in moved)
        assert any("lora" in path for path in moved)


def test_training_goes_on_after_a_keras_file(tmp_path):
    """The optimizer of a file has the trainable weights, in their order."""
    model = WITHOUT["tagger"](make_backbone())
    train(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert [v.path for v in loaded.trainable_variables] == [
        v.path for v in model.trainable_variables
    ]
    states = zip(loaded.optimizer.variables, model.optimizer.variables, strict=True)
    assert all(np.array_equal(array(a), array(b)) for a, b in states)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "make", [BertMultipleChoice, BertPretrainer, BertTextEmbedder, WITHOUT["tagger"]]
)
def test_a_distiller_leaves_its_teacher_as_it_was(make):
    teacher, student = make(tiny_backbone(dropout=0.0)), make(make_backbone())
    trained, before = paths(teacher.trainable_variables), teacher.get_weights()
    distiller = BertDistiller(student, teacher, label_weight=0.0, hidden_weight=1.0)
    assert paths(teacher.trainable_variables) == trained
    mine = list(map(id, distiller.trainable_variables))
    assert sorted(mine) == sorted(map(id, student.trainable_variables))
    distiller.compile(keras.optimizers.AdamW(0.1, weight_decay=0.5), run_eagerly=True)
    distiller.train_on_batch(batch(student))
    for old, new in zip(before, teacher.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert train(teacher)


# === Preprocessors ===


def test_two_tasks_on_one_preprocessor():
    tokenizer = bert_tokenizer(TOKENS)
    given = BertTextClassifierPreprocessor(tokenizer, labels=["x", "y"], sequence_length=16)
    before, backbone = given.get_config(), encoder(num_segments=1)
    one = BertTextClassifier(backbone, labels=["bad", "good"], preprocessor=given)
    two = BertTextClassifier(backbone, 3, preprocessor=given, multi_label=True)
    assert given.get_config() == before and given.labels == ["x", "y"] and given.num_segments == 2
    assert one.preprocessor.labels == ["bad", "good"] and two.preprocessor.num_classes == 3
    assert one.preprocessor.tokenizer is given.tokenizer is two.preprocessor.tokenizer
    assert one.preprocessor.sequence_length == two.preprocessor.sequence_length == 16
    assert array(given(["good"], ["y"])[1]).tolist() == [1]
    assert array(one.preprocessor(["good"], ["good"])[1]).tolist() == [1]
    assert array(two.preprocessor(["good"], [[1, 0, 1]])[1]).tolist() == [[1, 0, 1]]
    two.preprocessor.sequence_length = 8
    assert given.sequence_length == one.preprocessor.sequence_length == 16


@pytest.mark.parametrize(
    ("make", "preprocessor"),
    [
        (lambda *x: BertPretrainer(*x, next_sentence=False), BertPretrainerPreprocessor),
        (lambda b, p: BertTokenClassifier(b, 3, p), BertTokenClassifierPreprocessor),
        (lambda b, p: BertTextClassifier(b, 3, p), BertTextClassifierPreprocessor),
    ],
)
def test_a_given_preprocessor_stays_as_it_is(make, preprocessor):
    given = preprocessor(bert_tokenizer(TOKENS), sequence_length=16)
    before = given.get_config()
    model = make(encoder(), given)
    assert given.get_config() == before
    assert type(model.preprocessor) is preprocessor and model.preprocessor.get_config() != before


@pytest.mark.parametrize("make", [BertTokenClassifier, BertTextClassifier])
def test_a_preprocessor_of_another_kind(make):
    tokenizer = bert_tokenizer(TOKENS)
    kind = make.preprocessor_cls.__name__
    for wrong in (tokenizer, BertPretrainerPreprocessor(tokenizer, sequence_length=8)):
        message = f"preprocessor must be a {kind}, got a {type(wrong).__name__}; .* {kind}\\("
        with pytest.raises(TypeError, match=message):
            make(encoder(), 3, preprocessor=wrong)
