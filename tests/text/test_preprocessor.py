import functools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasbert.preprocessors import BertPreprocessor
from kerasbert.tokenizers import BertTokenizer
from tests.text.test_packing import (
    CLS,
    LETTERS,
    SEP,
    SPECIAL,
    VOCABULARY,
    TwoSeparators,
    arrays,
    make,
    reference,
)

# === Inputs ===

A, B = ["a b c", "d", ""], ["e f", "", "g. h?"]


def expected(*columns, **kwargs):
    rows = [
        [[VOCABULARY.index(t) for t in text if t != " "] for text in row] for row in zip(*columns)
    ]
    return reference(rows, kwargs.get("sequence_length", 512), "longest_first", 1)[0]


def test_one_text_is_unbatched():
    preprocessor = make()
    for text in ("a b", b"a b", np.array("a b"), tf.constant("a b"), np.str_("a b")):
        features = arrays(preprocessor(text))
        assert features["token_ids"].shape == (8,)
        assert features["token_ids"].tolist() == expected(["a b"])[0]
    features = arrays(preprocessor(("a", "b c")))
    assert features["token_ids"].tolist() == expected(["a"], ["b c"])[0]
    features, y, weight = arrays(preprocessor("a", 1, 0.5))
    assert (y.shape, weight.shape, weight.dtype) == ((), (), "float32")


@pytest.mark.parametrize(
    "kind",
    [
        list,
        np.array,
        lambda x: np.array(x, object),
        lambda x: np.array([t.encode() for t in x]),
        lambda x: [t.encode() for t in x],
        tf.constant,
        lambda x: (list(x),),
        lambda x: {"text": x},
    ],
)
def test_columns(kind):
    assert arrays(make()(kind(A)))["token_ids"].tolist() == expected(A)


@pytest.mark.parametrize(
    "pair",
    [
        (A, B),
        (np.array(A), tf.constant(B)),
        list(zip(A, B)),
        [list(row) for row in zip(A, B)],
        np.array(list(zip(A, B))),
        {"text": A, "text_b": B},
    ],
)
def test_pairs(pair):
    assert arrays(make()(pair))["token_ids"].tolist() == expected(A, B)


def test_pandas():
    import pandas

    table = pandas.DataFrame({"a": A, "b": B, "n": [1, 2, 3]}, index=[7, 8, 9])
    preprocessor = make()
    for column in (table["a"], table[["a"]], table["a"].astype("string"), table.a.astype(object)):
        assert arrays(preprocessor(column))["token_ids"].tolist() == expected(A)
    for pair in (table[["a", "b"]], (table["a"], table["b"])):
        features, y = arrays(preprocessor(pair, table["n"]))
        assert features["token_ids"].tolist() == expected(A, B)
        assert y.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match=r"3 columns \(a, b, n\); select"):
        preprocessor(table)
    for missing in (None, np.nan, pandas.NA):
        column = pandas.Series(["a", missing, "b"])
        with pytest.raises(ValueError, match=r"position 1 is (missing \(NaN\)|None)"):
            preprocessor(column)
    with pytest.raises(ValueError, match="position 0 is 1"):
        preprocessor(table["n"])


def test_labels_and_weights_pass_through():
    features, y, weight = arrays(make()(A, [1.5, 2.0, 3.0], np.array([1, 2, 3])))
    assert y.tolist() == [1.5, 2.0, 3.0] and y.dtype == "float32"
    assert weight.tolist() == [1, 2, 3] and weight.dtype == "float32"
    assert arrays(make()(A, [1, 2, 3]))[1].dtype == "int32"


@pytest.mark.parametrize(
    "x, message",
    [
        ([], "empty; pass at least one"),
        (np.array([], str), "empty"),
        (["a", None], "position 1 is None; drop"),
        (["a", "b", 5], r"position 2 is 5 \(int\), not text"),
        ([1.0], r"position 0 is 1.0 \(float\), not text"),
        (np.array([1, 2]), r"position 0 is 1 \(int\), not text"),
        (["a", float("nan")], r"position 1 is missing \(NaN\)"),
        (["a", b"\xff\xfe"], "bytes at position 1 are not UTF-8.*decode them"),
        (tf.constant([b"a", b"\xff"]), "bytes at position 1 are not UTF-8"),
        (["a", "\ud83d"], "position 1 has half of a surrogate pair"),
        ((["a", "b"], ["c"]), "pair have 2 and 1 texts"),
        ((["a", "b"], ["c", None]), "position 1 of the second column is None"),
        ((["a", b"\xff"], ["c", "d"]), "position 1 of the first column are not UTF-8"),
        (("a", ["b"]), "one text and one list"),
        ((["a"], [0]), r"position 0 of the second column is 0 \(int\), not text"),
        ((["a"], ["b"], ["c"]), "tuple of 3 .* labels and weights as `y`"),
        ([("a", "b"), ("c",)], "position 1 is .* in a list of pairs"),
        ([["a", "b", "c"]], "position 0 is .* in a list of pairs"),
        ({"txt": ["a"]}, r"columns \['txt'\]; name them 'text'"),
        ({"text": ["a"], "other": ["b"]}, "'other'.*name them"),
        (5, r"5 \(int\) is not text"),
        (None, "None .* is not text"),
    ],
)
def test_bad_texts(x, message):
    preprocessor = make()
    for use in (preprocessor, preprocessor.tokenize, preprocessor.batches):
        with pytest.raises(ValueError, match=message) as error:
            use(x)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "y, weight, message",
    [
        ([1], None, "2 texts but 1 labels"),
        (1, None, "labels are 1, for 2 texts"),
        ([1, 2], [1.0], "2 texts but 1 sample weights"),
        ([1, 2], ["x", "y"], "weights are not numbers"),
        ([1, 2], [1.0, np.nan], "weight at position 1 is nan"),
    ],
)
def test_bad_targets(y, weight, message):
    preprocessor = make()
    for use in (preprocessor, preprocessor.batches):
        with pytest.raises(ValueError, match=message):
            use(["a", "b"], y, weight)


@pytest.mark.parametrize(
    "settings, message",
    [
        (dict(sequence_length=2), "sequence_length=2 must be .* at least 3"),
        (dict(sequence_length=3, separators=2), "at least 4"),
        (dict(sequence_length=12.5), "sequence_length=12.5"),
        (dict(sequence_length=True), "sequence_length=True"),
        (dict(sequence_length="128"), "sequence_length='128'"),
        (dict(truncate="left"), "truncate='left' is unknown.*longest_first"),
        (dict(num_segments=-1), "num_segments=-1"),
        (dict(num_segments=1.5), "num_segments=1.5"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        make(**settings)


def test_bad_tokenizer():
    with pytest.raises(ValueError, match="tokenizer=None is not a tokenizer of"):
        BertPreprocessor(None)


def test_one_text_where_many_are_needed():
    with pytest.raises(ValueError, match="where a list is needed"):
        make().batches("a b")


# === Eager, tf.data, tf.function, SavedModel ===


@pytest.mark.slow
def test_ways_to_call_agree(tmp_path):
    preprocessor = make(sequence_length=24)
    random = np.random.default_rng(0)
    a, b = (
        [" ".join(random.choice(list(LETTERS), random.integers(0, 20))) for _ in range(50)]
        for _ in range(2)
    )
    y = np.arange(50)
    eager, labels = arrays(preprocessor((a, b), y))

    # As in KerasHub: elements ((a, b), y).
    dataset = tf.data.Dataset.from_tensor_slices(((a, b), y)).batch(50).map(preprocessor)
    assert {spec.shape.as_list() == [None, None] for spec in dataset.element_spec[0].values()}
    mapped, mapped_labels = next(dataset.as_numpy_iterator())
    assert mapped_labels.tolist() == labels.tolist()

    # Elements that are only a pair.
    alone = tf.data.Dataset.from_tensors(((a, b),)).map(preprocessor)

    spec = tf.TensorSpec([None], tf.string)
    function = tf.function(lambda a, b: preprocessor((a, b)), input_signature=[spec, spec])
    module = tf.Module()
    module.function = function
    tf.saved_model.save(module, str(tmp_path / "saved"))
    loaded = tf.saved_model.load(str(tmp_path / "saved")).function
    others = [
        mapped,
        next(alone.as_numpy_iterator()),
        function(a, b),
        loaded(a, b),
    ]
    for other in others:
        assert set(other) == set(eager)
        for key, value in eager.items():
            assert np.array_equal(np.asarray(other[key]), value)
    none = function([], [])
    assert none["token_ids"].shape == (0, 8)


def test_graph_has_core_ops_only():
    preprocessor = make()
    segments = [tf.RaggedTensorSpec((None, None), tf.int32)] * 2
    graph = tf.function(lambda a, b: preprocessor.pack((a, b)), input_signature=segments)
    graph = graph.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    ops = {node.op for node in nodes}
    # All of these are in TensorFlow 2.12, and none is from TF.Text.
    known = (
        "AddV2 Cast ConcatV2 Const Equal GatherV2 GreaterEqual Identity Less LessEqual LogicalAnd "
        "Max Maximum Minimum NoOp Pack Placeholder Range Reshape SelectV2 Size StridedSlice Sub "
        "Sum"
    )
    assert ops <= set(known.split())


def test_unbatched_dataset_can_be_batched_later():
    preprocessor = make(sequence_length=40)
    dataset = tf.data.Dataset.from_tensor_slices((A, [0, 1, 2])).map(preprocessor).batch(3)
    features, y = next(dataset.as_numpy_iterator())
    assert features["token_ids"].shape == (3, 40)
    assert features["token_ids"][:, :8].tolist() == expected(A)
    assert y.tolist() == [0, 1, 2]


def test_bad_datasets():
    preprocessor = make()
    for element, message in (
        ([[1, 2]], r"yields int32 of shape \(2,\) as text"),
        ([[["a"], ["b"]]], r"yields string of shape \(2, 1\) as text"),
        ({"txt": ["a"]}, "name them 'text'"),
        (((["a"], ["b"], ["c"]),), "yields 3 columns"),
    ):
        with pytest.raises(ValueError, match=message):
            tf.data.Dataset.from_tensor_slices(element).map(preprocessor)


def test_tokenize_keeps_everything_and_order():
    preprocessor = make(sequence_length=8)
    random = np.random.default_rng(0)
    texts = ["".join(random.choice(list("abc "), random.integers(0, 30))) for _ in range(3000)]
    (segments,) = preprocessor.tokenize(texts)
    assert segments.dtype == tf.int32
    rows = preprocessor.tokenizer(texts)
    assert segments.to_list() == rows
    assert len(preprocessor.tokenize((texts[:5], texts[5:10]))) == 2


def test_settings_may_change_after_a_call():
    preprocessor = BertPreprocessor(BertTokenizer(VOCABULARY, lowercase=True))
    assert arrays(preprocessor(["a b c d e f"]))["token_ids"].shape == (1, 8)
    preprocessor.sequence_length = 4
    assert arrays(preprocessor(["a b c d e f"]))["token_ids"].tolist() == [[CLS, 5, 6, SEP]]
    preprocessor.tokenizer.set_vocabulary([*SPECIAL, "x", "b", "a"])
    assert arrays(preprocessor(["a b"]))["token_ids"].tolist() == [[CLS, 7, 6, SEP]]
    with pytest.raises(ValueError, match="sequence_length=1"):
        preprocessor.sequence_length = 1


# === Batches ===


@functools.cache
def corpus(count=500):
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(2.5, 0.7, count).astype(int), 1, 90)
    return [" ".join(random.choice(list(LETTERS), n)) for n in lengths]


def content(features, row):
    return features["token_ids"][row][features["padding_mask"][row]].tolist()


@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_hold_every_example_once_an_epoch(shuffle):
    preprocessor = make(sequence_length=64)
    texts = corpus()
    y, weight = np.arange(500), np.arange(500) / 10
    dataset = preprocessor.batches(texts, y, weight, batch_size=32, shuffle=shuffle, seed=1)
    assert len(dataset) == 16
    features_spec, y_spec, weight_spec = dataset.element_spec
    assert all(spec.shape.as_list() == [None, None] for spec in features_spec.values())
    assert y_spec.shape.as_list() == weight_spec.shape.as_list() == [None]
    rows = [content(arrays(preprocessor([text])), 0) for text in texts[:40]]
    orders = []
    for _ in range(2):
        order = []
        for features, labels, weights in dataset.as_numpy_iterator():
            longest = features["padding_mask"].sum(1).max()
            assert features["token_ids"].shape == (len(labels), preprocessor.bucket(int(longest)))
            assert np.allclose(weights, labels / 10)
            for row, label in enumerate(labels):
                assert label >= 40 or content(features, row) == rows[label]
            order += labels.tolist()
        assert sorted(order) == list(range(500))
        orders.append(order)
    assert (orders[0] != orders[1]) == shuffle
    assert (orders[0] == list(range(500))) != shuffle


def test_batches_of_few_shapes():
    preprocessor = make(sequence_length=61)
    texts = corpus()

    def shapes(**kwargs):
        dataset = preprocessor.batches(texts, np.arange(500), batch_size=50, seed=0, **kwargs)
        passes = [list(dataset.as_numpy_iterator()) for _ in range(2)]
        for one in passes:
            assert sorted(np.concatenate([labels for _, labels in one])) == list(range(500))
        return [{features["token_ids"].shape for features, _ in one} for one in passes]

    (many, _), (few, again), (one, _) = (shapes(shape_cost=cost) for cost in (0, 1000, 10**6))
    assert len(many) > len(few) > len(one)
    assert one == {(50, 61)}
    assert few == again


def test_batches_pad_little():
    preprocessor = make(sequence_length=128)
    shares = [
        np.mean(np.concatenate([~f["padding_mask"].ravel() for f in dataset.as_numpy_iterator()]))
        for dataset in (
            preprocessor.batches(corpus(2000), shuffle=False),
            preprocessor.batches(corpus(2000), seed=0),
            preprocessor.sorted_batches(corpus(2000))[0],
        )
    ]
    mixed, similar, ordered = shares
    assert mixed > 0.6 and similar < 0.4 and ordered < 0.4


def test_seed():
    preprocessor = make()

    def order(seed=None):
        dataset = preprocessor.batches(corpus(100), np.arange(100), seed=seed)
        return np.concatenate([y for _, y in dataset.as_numpy_iterator()]).tolist()

    assert order(3) == order(3) != order(4)
    keras.utils.set_random_seed(5)
    first, second = order(), order()
    keras.utils.set_random_seed(5)
    assert order() == first != second


def test_sorted_batches_restore_the_order():
    from kerasbert.data import restore_order

    preprocessor = make(sequence_length=32)
    texts = corpus(203)
    dataset, order = preprocessor.sorted_batches((texts, texts[::-1]), batch_size=16)
    lengths, sums = [], []
    for features in dataset.as_numpy_iterator():
        lengths += features["padding_mask"].sum(1).tolist()
        sums += np.where(features["padding_mask"], features["token_ids"], 0).sum(1).tolist()
    assert lengths == sorted(lengths, reverse=True)
    features = arrays(preprocessor((texts, texts[::-1])))
    whole = np.where(features["padding_mask"], features["token_ids"], 0).sum(1)
    assert restore_order(np.array(sums), order).tolist() == whole.tolist()

    dataset, order = preprocessor.sorted_batches(texts, 16, np.arange(203))
    assert np.concatenate([y for _, y in dataset]).tolist() == order.tolist()


@pytest.mark.slow
def test_fit_traces_once():
    """For any shapes, TensorFlow traces the step once; other backends just train."""
    traces = []

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding = keras.layers.Embedding(len(VOCABULARY), 4)
            self.dense = keras.layers.Dense(2)

        def call(self, inputs):
            traces.append(inputs["token_ids"].shape)
            mask = keras.ops.cast(inputs["padding_mask"], "float32")[..., None]
            return self.dense(keras.ops.sum(self.embedding(inputs["token_ids"]) * mask, axis=1))

    preprocessor = make(sequence_length=24)
    y = np.arange(100) % 2
    dataset = preprocessor.batches(corpus(100), y, batch_size=16, seed=0)
    assert len({x["token_ids"].shape[1] for x, _ in dataset}) > 1
    model = Model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=False)
    model.fit(dataset, epochs=1, shuffle=False, verbose=0)
    before = len(traces)
    history = model.fit(dataset, epochs=2, initial_epoch=1, shuffle=False, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    if keras.backend.backend() == "tensorflow":
        assert len(traces) == before
        model.compile("sgd", loss, jit_compile=True)
        model.fit(dataset, epochs=1, shuffle=False, verbose=0)
    outputs, order = preprocessor.sorted_batches(corpus(100))
    assert model.predict(outputs, verbose=0).shape == (100, 2)


# === Saving ===


def test_config_round_trip():
    preprocessor = make(sequence_length=77, truncate="waterfall", num_segments=1)
    config = preprocessor.get_config()
    assert (config["sequence_length"], config["truncate"], config["num_segments"]) == (
        77,
        "waterfall",
        1,
    )
    again = BertPreprocessor.from_config(config)
    assert again.get_config() == preprocessor.get_config()
    json.dumps(keras.saving.serialize_keras_object(preprocessor))


def test_preset_round_trip(tmp_path):
    preprocessor = make(2, sequence_length=20, truncate="only_first", num_segments=1)
    directory = tmp_path / "preset"
    preprocessor.save_to_preset(str(directory))
    assert (directory / "preprocessor.json").exists()
    assert (directory / "tokenizer.json").exists()
    assert (directory / "assets/tokenizer/vocabulary.txt").read_text().split() == VOCABULARY
    again = BertPreprocessor.from_own_preset(str(directory))
    assert again.get_config() == preprocessor.get_config()
    assert type(again.tokenizer) is TwoSeparators
    pair = (corpus(20), corpus(40)[20:])
    before, after = arrays(preprocessor(pair)), arrays(again(pair))
    assert all(np.array_equal(before[key], after[key]) for key in before)
    assert BertPreprocessor.from_own_preset(str(directory), sequence_length=9).sequence_length == 9
    own = BertPreprocessor.from_own_preset(str(directory), tokenizer=preprocessor.tokenizer)
    assert own.tokenizer is preprocessor.tokenizer


def test_preset_of_another_task(tmp_path):
    from kerasbert.preprocessors import BertTextClassifierPreprocessor

    directory = str(tmp_path / "preset")
    make(sequence_length=20, num_segments=0).save_to_preset(directory)
    other = BertTextClassifierPreprocessor.from_own_preset(directory, labels=["x", "y"])
    assert (other.sequence_length, other.num_segments, other.labels) == (20, 0, ["x", "y"])
    assert other.tokenizer.vocabulary_size() == len(VOCABULARY)


def test_preset_with_a_tokenizer_alone(tmp_path):
    tokenizer = BertTokenizer(VOCABULARY, lowercase=True)
    tokenizer.save_to_preset(str(tmp_path / "preset"))
    (tmp_path / "preset/config.json").write_text('{"config": {"num_segments": 0}}')
    preprocessor = BertPreprocessor.from_own_preset(str(tmp_path / "preset"))
    assert preprocessor.num_segments == 0
    assert "segment_ids" not in preprocessor(["a"])
    with pytest.raises(ValueError, match="neither preprocessor.json nor tokenizer.json"):
        BertPreprocessor.from_own_preset(str(tmp_path))
