"""The tagger's conditional random field: training, decoding, saving, conversion."""

import itertools
import warnings

import keras
import numpy as np
import pytest

from kerasbert import convert
from kerasbert.losses import ChainCrossEntropy
from kerasbert.models import (
    BertDistiller,
    BertMultiTask,
    BertTextClassifier,
    BertTokenClassifier,
)
from kerasbert.optimizers import AdamW
from kerasbert.text.tagging import TagSet
from tests.contracts import (
    MODEL_CHECKS,
    array,
    assert_close,
    batch,
    bert_tokenizer,
    check_gradients,
    check_lora,
    perturb,
    tiny_backbone,
)
from tests.heads.token_classifier.test_model import SENTENCES, TOKENS, raw_tagger, spans_of

WORDS = [["Anna", "lives", "in", "Rome", "."], ["New", "York"], ["Bob", "\u200b", "in", "x"]]
LABELS = [
    ["B-PER", "O", "O", "B-LOC", "O"],
    ["B-LOC", "I-LOC"],
    ["B-PER", None, "O", None],
]


def make(**settings):
    backbone = tiny_backbone(**settings)
    return perturb(BertTokenClassifier(backbone, num_classes=3, bilstm_units=2, crf=True))


def random_tagger(**settings):
    """Return a tagger whose class scores often disagree with its tag scheme."""
    tagger = raw_tagger(settings.pop("preprocessor", ()), crf=True, **settings)
    rng = np.random.default_rng(3)
    for weight in (tagger.output_dense.kernel, *tagger.crf_layer.weights):
        weight.assign(rng.normal(size=weight.shape))
    return tagger


# The other checks train with squared errors; tests below train with the loss of the CRF.
@pytest.mark.slow
@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "check", [check for check in MODEL_CHECKS if check not in (check_gradients, check_lora)]
)
def test_contract(check, tmp_path):
    check(make, tmp_path)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize("scheme", ["BIO", "BIOES"])
@pytest.mark.parametrize("label_pieces", ["first", "all"])
def test_tags_are_those_of_the_scheme(scheme, label_pieces):
    tagger = random_tagger(scheme=scheme, preprocessor={"label_pieces": label_pieces})
    tags = TagSet(tagger.label_names)
    allowed, edge = tags.allowed(), len(tags.names)
    rng = np.random.default_rng(0)
    words = [list(map(str, rng.choice(TOKENS[5:], rng.integers(1, 9)))) for _ in range(20)]
    broken = 0
    tagged = zip(
        tagger.predict_labels(words),
        tagger.predict_proba(words),
        tagger.predict(words, verbose=0),
        strict=True,
    )
    for row, odds, scores in tagged:
        path = [edge, *map(tags.names.index, row), edge]
        assert allowed[path[:-1], path[1:]].all()
        np.testing.assert_allclose(odds.sum(axis=-1), 1.0, atol=1e-6)
        best = scores.argmax(-1)
        broken += not allowed[best[:-1], best[1:]].all()
    assert broken  # The class scores alone break the scheme.


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", "torch")
def test_a_tagger_learns_and_its_metrics_are_those_of_the_best_path(tmp_path):
    tagger = raw_tagger({"sequence_length": 8}, crf=True, bilstm_units=4)
    tagger.compile(AdamW(0.02))
    texts = SENTENCES * 8
    y = [spans_of(text) for text in texts]
    history = tagger.fit(texts, y, epochs=12, batch_size=8, validation_split=0.2, verbose=0).history
    assert history["loss"][-1] < history["loss"][0] / 5 and history["val_accuracy"][-1] == 1.0
    results = tagger.tag(SENTENCES)
    for text, entities in zip(SENTENCES, results, strict=True):
        assert [(e["start"], e["end"], e["label"]) for e in entities] == spans_of(text)
        assert all(0.5 < e["score"] <= 1.0 for e in entities)
    assert np.abs(array(tagger.crf_layer.transitions)).max() > 0.05
    folder = str(tmp_path / "preset")
    tagger.save_to_preset(folder)
    again = BertTokenClassifier.from_preset(folder)
    assert again.crf and again.tag(SENTENCES) == results
    assert again.evaluate(SENTENCES, y[:5], verbose=0)[1] == 1.0
    tagger.save(tmp_path / "model.keras")
    whole = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(whole.loss, ChainCrossEntropy) and whole.loss.crf is whole.crf_layer
    found, expected = (model.evaluate(texts, y, verbose=0) for model in (whole, tagger))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", "torch")
def test_accuracy_of_wrong_tags():
    """`evaluate` compares the labels with the tags that `predict_labels` returns."""
    tagger = random_tagger()
    loss, accuracy = tagger.evaluate(WORDS, LABELS, verbose=0)
    pairs = [
        (label, tag)
        for row, tags in zip(LABELS, tagger.predict_labels(WORDS), strict=True)
        for label, tag in zip(row, tags, strict=True)
        if label is not None
    ]
    assert len(pairs) == 9 and np.isfinite(loss)
    assert accuracy == pytest.approx(np.mean([a == b for a, b in pairs]), abs=1e-6)
    assert tagger.evaluate(WORDS, [[None] * len(row) for row in WORDS], verbose=0)[0] == 0.0
    tagger.compile(metrics=["f1"])
    assert set(tagger.evaluate(WORDS, LABELS, verbose=0, return_dict=True)) == {"loss", "macro_f1"}


@pytest.mark.backends("tensorflow", "torch")
def test_loss_is_that_of_all_paths():
    tagger = random_tagger()
    scores = tagger.predict(WORDS, verbose=0)
    numbers = {name: number for number, name in enumerate(tagger.label_names)}
    pieces = tagger.preprocessor.read(WORDS)
    transitions, start, end = (
        array(weight)
        for weight in (
            tagger.crf_layer.transitions,
            tagger.crf_layer.start,
            tagger.crf_layer.end,
        )
    )
    total = 0.0
    for row, labels in enumerate(LABELS):
        units = slice(*pieces.unit_splits[row : row + 2])
        first = pieces.first[units] - pieces.splits[row]
        known = [i for i, label in enumerate(labels) if label is not None]
        emissions = scores[row][first[known]]
        path = [numbers[labels[i]] for i in known]
        paths = list(itertools.product(range(5), repeat=len(known)))

        def score(path, emissions=emissions):
            steps = sum(transitions[a, b] for a, b in zip(path, path[1:]))
            return emissions[range(len(path)), path].sum() + steps + start[path[0]] + end[path[-1]]

        total += np.log(sum(np.exp(score(one)) for one in paths)) - score(path)
    assert tagger.evaluate(WORDS, LABELS, verbose=0)[0] == pytest.approx(total / 9, abs=1e-4)


@pytest.mark.backends("torch")
def test_windows_are_one_chain():
    """A long text in windows gets the same tags as in a single row with the same scores."""
    tagger = random_tagger(preprocessor={"sequence_length": 8, "stride": 2})
    text = " ".join(SENTENCES)
    (logits,) = tagger.predict([text], verbose=0)
    pieces = tagger.preprocessor.read([text])
    labels, odds = tagger.chains(tagger.preprocessor).decode(
        logits, pieces.first, pieces.count, np.zeros(len(pieces.first), int)
    )
    assert_close(tagger.predict_proba([text])[0], odds, atol=1e-6)
    found = TagSet(tagger.label_names).entities(labels)
    assert [entity["label"] for entity in tagger.tag(text)] == [label for label, *_ in found]


@pytest.mark.slow
def test_it_trains_beside_other_heads_and_with_adapters():
    tokens = bert_tokenizer(TOKENS)
    tagger = raw_tagger(crf=True)
    tagger.backbone.enable_lora(2)
    topic = BertTextClassifier(
        tagger.backbone,
        2,
        preprocessor=BertTextClassifier.preprocessor_cls(tokens, sequence_length=16),
    )
    model = BertMultiTask({"tags": tagger, "topic": topic})
    data = {"tags": (WORDS, LABELS), "topic": (SENTENCES, [0, 1, 0, 1, 1])}
    before = array(tagger.crf_layer.transitions)
    history = model.fit(data, epochs=2, batch_size=2, verbose=0).history
    assert np.isfinite(history["tags_loss"]).all()
    assert np.abs(array(tagger.crf_layer.transitions) - before).max() > 0


@pytest.mark.backends("torch")
def test_a_student_learns_class_scores_and_transitions():
    teacher, student = raw_tagger(), raw_tagger(crf=True)
    before = array(student.crf_layer.transitions)
    distiller = BertDistiller(student, teacher)
    assert np.isfinite(distiller.fit(WORDS, LABELS, verbose=0).history["loss"]).all()
    assert np.abs(array(student.crf_layer.transitions) - before).max() > 0


@pytest.mark.backends("torch")
def test_int8():
    tagger = random_tagger()
    tagger.quantize("int8")
    tags = TagSet(tagger.label_names)
    (row,) = tagger.predict_labels([WORDS[0]])
    path = [tags.names.index(label) for label in row]
    assert tags.allowed()[path[:-1], path[1:]].all()


@pytest.mark.backends("tensorflow")
def test_settings_and_errors(tmp_path):
    backbone = tiny_backbone()
    with pytest.raises(ValueError, match="crf='yes' must be true or false"):
        BertTokenClassifier(backbone, 3, crf="yes")
    tagger = BertTokenClassifier(backbone, 3, crf=True)
    assert tagger.crf_layer.allowed is None  # Classes without names follow each other freely.
    with pytest.raises(ValueError, match="does not fit a tagger with crf=True"):
        tagger.compile(loss="sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match="does not fit a tagger with crf=False"):
        BertTokenClassifier(backbone, 3).compile(loss=ChainCrossEntropy())
    assert tagger.optimizer.learning_rate_multipliers == {"crf": 100.0}
    tagger.compile(loss=None)
    for format in ("huggingface", "google", "keras_hub"):
        with pytest.raises(ValueError, match=rf"'{format}' has no place for .*crf=True.*'kerasb"):
            convert(tagger, tmp_path / "there", format=format)
    assert not (tmp_path / "there").exists()
    convert(tagger, tmp_path / "there", format="kerasbert")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for given in ({}, {"crf": True}):
            again = BertTokenClassifier.from_preset(
                str(tmp_path / "there"), preprocessor=None, **given
            )
            assert again.crf and again.get_config()["crf"]
            assert_close(again(batch(again)), tagger(batch(again)), atol=0)
    with pytest.raises(ValueError, match="crf=False would leave out weights .* has crf=True"):
        BertTokenClassifier.from_preset(str(tmp_path / "there"), preprocessor=None, crf=False)
    # Without a CRF, the saved transitions would be left over.
    with pytest.warns(UserWarning, match="New, random weights"):
        other = BertTokenClassifier.from_preset(
            str(tmp_path / "there"), preprocessor=None, crf=False, num_classes=3
        )
    assert other.crf_layer is None
