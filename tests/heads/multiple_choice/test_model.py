"""Multiple choice: contract, missing choices, training on raw texts, `choose` and bad input."""

import functools

import keras
import numpy as np
import pytest

from kerasbert.models import BertMultipleChoice, BertMultipleChoicePreprocessor
from tests.contracts import (
    array,
    assert_close,
    batch,
    bert_tokenizer,
    check_preprocessor,
    model_contract,
    perturb,
    tiny_backbone,
)

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] good bad film a the was very dull fun it".split()
TOKENS += [f"word{i}" for i in range(30 - len(TOKENS))]
PROMPTS = ["good film", "a bad film", "it was"]
CHOICES = [["fun", "dull"], ["very very very fun it was", "very dull", "a"], ["dull"]]


def make(family="bert", **settings):
    return perturb(BertMultipleChoice(tiny_backbone(family, **settings)))


def make_preprocessor(**settings):
    return BertMultipleChoicePreprocessor(
        bert_tokenizer(TOKENS), **{"sequence_length": 16, **settings}
    )


def make_raw():
    keras.utils.set_random_seed(0)
    return BertMultipleChoice(tiny_backbone(dropout=0.0), preprocessor=make_preprocessor())


@pytest.mark.slow
@model_contract("bert")
def test_contract(family, check, tmp_path):
    check(functools.partial(make, family), tmp_path)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize(
    ("dtype", "pooling"), [(None, None), (None, "mean"), ("mixed_bfloat16", None)]
)
def test_missing_choices(dtype, pooling):
    """Missing choices are never chosen, whatever their ids, and do not affect other choices."""
    model = perturb(BertMultipleChoice(tiny_backbone(dtype=dtype), pooling=pooling))
    features = batch(model)
    more = {n: np.concatenate([v, v[:, :1]], axis=1) for n, v in features.items()}
    more["padding_mask"][:, 2] = 0
    more["token_ids"][:, 2] += 1
    expected, found = array(model(features)), array(model(more))
    assert found.dtype == "float32" and np.isfinite(found).all()
    assert_close(found[:, :2], expected, atol=0.02 if dtype else 1e-5)
    assert (found[:, 2] == -1e9).all()
    assert (keras.ops.convert_to_numpy(keras.ops.softmax(found))[:, 2] == 0).all()
    assert _cross_entropy(found, [0, 1, 1]) == _cross_entropy(found[:, :2], [0, 1, 1])
    model.compile(run_eagerly=True)
    model.train_on_batch(more, np.array([0, 1, 1]))
    assert all(np.isfinite(array(weight)).all() for weight in model.weights)


def _cross_entropy(logits, y):
    logits = keras.ops.convert_to_tensor(logits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return float(loss(np.array(y), logits))


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "torch")
def test_any_number_of_choices():
    model = make(num_layers=1)
    features = {name: np.repeat(x, 3, axis=1) for name, x in batch(model).items()}
    found = array(model(features))
    assert found.shape == (3, 6)
    np.testing.assert_allclose(found[:, 0], found[:, 1], atol=1e-6)
    model.compile(jit_compile=keras.backend.backend() != "torch")
    assert_close(model.predict(features, verbose=0), found)


@pytest.mark.backends("torch")
def test_learns_on_arrays():
    """The right choice has token 5, at any position, among two or three choices."""
    random = np.random.default_rng(0)
    ids = random.integers(6, 30, (64, 3, 5))
    mask = np.ones_like(ids)
    y = random.integers(0, 2, 64)
    ids[np.arange(64), y, 2] = 5
    mask[::2, 2] = 0
    ids[::2, 2, :] = 5  # Ids in padding must not matter.
    model = BertMultipleChoice(tiny_backbone(dropout=0.0))
    model.optimizer.learning_rate = 0.01
    x = {"token_ids": ids, "padding_mask": mask}
    history = model.fit(x, y, epochs=12, batch_size=16, verbose=0).history
    assert history["loss"][-1] < 0.1 and history["accuracy"][-1] == 1
    assert (model.predict(x, verbose=0).argmax(axis=-1) == y).all()


# === Raw texts ===


@pytest.mark.slow
def test_preprocessor_contract(tmp_path):
    import tensorflow as tf

    preprocessor = make_preprocessor()
    check_preprocessor(preprocessor, (PROMPTS, tf.ragged.constant(CHOICES)), [1, 2, 0], tmp_path)
    # Without segments, and choices that are not a ragged tensor.
    plain, x = make_preprocessor(num_segments=0), (PROMPTS, [["a", "it"]] * 3)
    expected = plain(x, [1, 0, 0])
    assert set(expected[0]) == {"token_ids", "padding_mask"}
    dataset = tf.data.Dataset.from_tensor_slices((x, [1, 0, 0])).batch(3).map(plain)
    assert_close(next(dataset.as_numpy_iterator()), expected, atol=0)


@pytest.mark.backends("tensorflow", "torch")
def test_packing():
    features, y = make_preprocessor(sequence_length=9)((PROMPTS, CHOICES), [1, 2, 0])
    assert array(y).tolist() == [1, 2, 0] and array(y).dtype == "int32"
    ids, mask = array(features["token_ids"]), array(features["padding_mask"])
    assert ids.shape == (3, 3, 9)
    assert ids[0, 0].tolist() == [2, 5, 7, 3, 13, 3, 0, 0, 0]
    # "longest_first" truncates the choice, not the prompt.
    assert ids[1, 0].tolist() == [2, 8, 6, 7, 3, 11, 11, 11, 3]
    assert array(features["segment_ids"])[1, 0].tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert not mask[0, 2].any() and not ids[0, 2].any() and not mask[2, 1:].any()
    assert mask.any(axis=-1).sum(axis=1).tolist() == [2, 3, 1]


@pytest.mark.backends("torch")
def test_every_kind_of_input():
    import pandas
    import tensorflow as tf

    preprocessor = make_preprocessor()
    expected = preprocessor((PROMPTS, CHOICES))
    dense = [row + [""] * (3 - len(row)) for row in CHOICES]
    table = pandas.DataFrame({"prompt": PROMPTS, "choices": CHOICES})
    for x in (
        list(zip(PROMPTS, CHOICES, strict=True)),
        {"prompt": PROMPTS, "choices": CHOICES},
        table,
        (table["prompt"], pandas.DataFrame(dense)),
        (np.array(PROMPTS), np.array(dense)),
        (tf.constant(PROMPTS), tf.constant(dense)),
        (tf.constant(PROMPTS), tf.ragged.constant(CHOICES)),
        {"prompt": PROMPTS, "choices": [np.array(row) for row in CHOICES]},
    ):
        assert_close(preprocessor(x), expected, atol=0)
    # An empty choice counts in a list, and before the end of a row.
    for empty in ([["", "a"]], np.array([["", "a"]]), [["a", ""]]):
        assert array(preprocessor((["it"], empty))["padding_mask"]).any(axis=-1).all()
    one = {name: array(x) for name, x in preprocessor((PROMPTS[0], CHOICES[0])).items()}
    assert one["token_ids"].shape == (2, 8)

    # Inside `tf.data`: ragged and padded choices, as tuples and by name, batched or not.
    ragged = tf.ragged.constant(CHOICES)
    for prompts, choices in ((PROMPTS, ragged), (PROMPTS, dense)):
        for x in ((prompts, choices), {"prompt": prompts, "choices": choices}):
            dataset = tf.data.Dataset.from_tensor_slices(x).batch(3)
            if isinstance(x, tuple):
                dataset = dataset.map(lambda *x: (x,))
            (found,) = dataset.map(lambda x: preprocessor(x)).as_numpy_iterator()
            assert_close(found, expected, atol=0)
    dataset = tf.data.Dataset.from_tensor_slices(({"prompt": PROMPTS, "choices": dense}, [1, 2, 0]))
    found, y = next(iter(dataset.map(preprocessor).as_numpy_iterator()))
    assert found["token_ids"].shape == (2, 16) and y == 1


def toy(count=32):
    """Return data where the right one of two or three choices "was fun"."""
    prompts, choices, y = [], [], []
    for i in range(count):
        prompts.append("a good film" if i % 2 else "a bad film")
        row = ["it was fun", "it was very dull"] + ["it was a film"] * (i % 3 == 0)
        choices.append(row[::-1] if i % 4 > 1 else row)
        y.append(choices[-1].index("it was fun"))
    return prompts, choices, y


@pytest.mark.backends("jax", "torch")
def test_learns_on_texts():
    import tensorflow as tf

    prompts, choices, y = toy()
    model = make_raw()
    model.optimizer.learning_rate = 0.01
    history = model.fit(
        {"prompt": prompts, "choices": choices}, y, batch_size=8, epochs=10, verbose=0,
        validation_split=0.25,
    ).history  # fmt: skip
    assert history["val_accuracy"][-1] == 1
    loss, accuracy = model.evaluate((prompts, choices), y, batch_size=8, verbose=0)
    assert accuracy == 1
    dataset = tf.data.Dataset.from_tensor_slices(((prompts, tf.ragged.constant(choices)), y))
    assert model.evaluate(dataset.batch(8), verbose=0)[0] == pytest.approx(loss, abs=1e-5)

    logits = model.predict((prompts, choices), verbose=0)
    assert logits.shape == (32, 3) and (logits.argmax(axis=-1) == y).all()
    assert _cross_entropy(logits, y) == pytest.approx(loss, abs=1e-5)
    assert [result["index"] for result in model.choose(prompts, choices)] == y
    one = model.choose(prompts[0], choices[0])
    assert one["choice"] == choices[0][y[0]] and one["index"] == y[0]
    assert one["score"] == max(one["scores"]) and sum(one["scores"]) == pytest.approx(1)
    assert len(one["scores"]) == 3
    assert model.choose("it", ["fun"])["scores"] == [1.0]


@pytest.mark.backends("torch")
def test_batches_of_differing_numbers_of_choices():
    """`fit`, `evaluate` and `predict` on a `tf.data.Dataset`: none pads to later batches."""
    import tensorflow as tf

    prompts = [*PROMPTS, "a film"]
    choices = [["fun", "dull"], ["it was very very fun", "dull"], ["dull", "a", "it", "fun"], ["a"]]
    y = [1, 0, 3, 0]

    def rows():
        yield from (((prompt, row), label) for prompt, row, label in zip(prompts, choices, y))

    def text(*shape):
        return tf.TensorSpec(shape, tf.string)

    # Two and four choices: in padded dense batches, ragged ones, and one prompt at a time.
    rows = tf.data.Dataset.from_generator(
        rows, output_signature=((text(), text(None)), tf.TensorSpec((), tf.int32))
    ).apply(tf.data.experimental.assert_cardinality(4))
    ragged = tf.data.Dataset.from_tensor_slices(((prompts, tf.ragged.constant(choices)), y))
    model = make_raw()
    expected = model.predict((prompts, choices), verbose=0)
    assert expected.shape == (4, 4) and (expected[0, 2:] == -1e9).all()
    loss, accuracy = model.evaluate((prompts, choices), y, batch_size=2, verbose=0)
    for dataset in (rows.padded_batch(2), ragged.batch(1), rows.batch(1).map(lambda x, y: (x,))):
        assert_close(model.predict(dataset, verbose=0), expected)
    found = model.evaluate(rows.padded_batch(2), verbose=0)
    np.testing.assert_allclose(found, [loss, accuracy], atol=1e-5)
    model.compile(jit_compile=keras.backend.backend() != "torch")
    model.optimizer.learning_rate = 0.01
    losses = model.fit(rows.padded_batch(2), epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


# === Bad input ===


def test_bad_texts():
    model = make_raw()
    choices = (["a"], [["c", "d"]])
    for x, y, message in (
        ((["a", "b"], [["c"], []]), None, "prompt at position 1 has no choices; give it at least"),
        ((["a"], np.array([["", ""]])), None, "prompt at position 0 has no choices"),
        ((["a", "b"], [["c"]]), None, "There are 2 prompts but 1 lists of choices"),
        ((["a"], ["c"]), None, r"choices at position 0 are 'c' \(str\); pass a list of strings"),
        ((["a"], [["c", None]]), None, "position 1 of the choices of the prompt at position 0"),
        (([3], [["c"]]), None, "text at position 0 of the prompts is 3"),
        (([], []), None, "list of prompts is empty"),
        (["a"], None, "has no choices; pass a tuple of prompts and lists"),
        ({"text": ["a"]}, None, r"has the columns \['text'\]; name them 'prompt' and 'choices'"),
        (choices, [2], "label 2 at position 0 is outside 0 to 1, the indices of its"),
        (choices, [-1], "label at position 0 is -1; pass the index of the correct"),
        (choices, [0.5], "label at position 0 is 0.5"),
        (choices, ["c"], "label at position 0 is 'c'"),
        (choices, [0, 1], "1 texts but 2 labels"),
    ):
        with pytest.raises(ValueError, match=message):
            model.evaluate(x, y, verbose=0)
        with pytest.raises(ValueError, match=message):
            model.preprocessor(x, y)
    with pytest.raises(ValueError, match="choices at position 0 are 'b'"):
        model.choose("a", "b")


def test_bad_datasets():
    import tensorflow as tf

    preprocessor = make_preprocessor()

    def run(*x):
        return list(tf.data.Dataset.from_tensor_slices(x).batch(2).map(preprocessor))

    with pytest.raises(tf.errors.InvalidArgumentError, match="A prompt has no choices"):
        run((["a", "b"], [["c"], [""]]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Labels must be indices of choices"):
        run((["a", "b"], [["c", "d"], ["c", ""]]), [1, 1])
    with pytest.raises(ValueError, match="must yield prompts and choices"):
        run({"prompt": ["a"], "text": ["b"]}, [0])
    with pytest.raises(ValueError, match="yields prompts of string .* and choices of string"):
        run((["a"], ["b"]), [0])
    with pytest.raises(ValueError, match="yields labels of shape"):
        run((["a"], [["b", "c"]]), [[0, 1]])


def test_bad_arrays():
    model = BertMultipleChoice(tiny_backbone())
    ids = np.ones((1, 2, 3), int)
    for x, y, message in (
        (
            {"token_ids": [[[1, 2], [1, 2]], [[1, 2]]]},
            None,
            "token_ids is ragged: .* pad them, with a padding_mask",
        ),
        ({"token_ids": np.ones((2, 3), int)}, None, r"shape \(2, 3\), .* \(examples, choices, tok"),
        ({"token_ids": np.ones((2, 0, 3), int)}, None, r"shape \(2, 0, 3\)"),
        (
            {"token_ids": ids, "padding_mask": np.ones((1, 2), int)},
            None,
            r"padding_mask has the shape \(1, 2\), but token_ids has \(1, 2, 3\)",
        ),
        (
            {"token_ids": ids, "padding_mask": 0 * ids},
            None,
            "example at position 0 has no choices: its padding_mask is all 0",
        ),
        ({"token_ids": np.ones((2, 2, 3), int)}, [1, 2], "label 2 at position 1 is not one of its"),
        (
            {"token_ids": ids, "padding_mask": np.array([[[1, 1, 1], [0] * 3]])},
            [1],
            r"label 1 at position 0 is not one of its choices, \[0\]",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit(x, y, verbose=0) if y else model.predict(x, verbose=0)
    with pytest.raises(ValueError, match=r"choose\(\) takes texts, but this model has no prep"):
        model.choose("a", ["b"])
