"""What every layer, model and preprocessor promises: a new one is one more row of a test.

B batch, T tokens, D width.
"""

import functools
import json
import os

import keras
import numpy as np
import pytest
from keras import ops

from kerasbert.families import FAMILIES, TABLES
from kerasbert.layers import TransformerBlock
from kerasbert.models import BertBackbone, BertTextClassifier
from kerasbert.tokenizers import BertTokenizer

BACKENDS = ("tensorflow", "jax", "torch")

# Every axis of a family is there, at a size that costs nothing.
SETTINGS = {
    "vocabulary_size": 30,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 24,
    "max_sequence_length": 16,
}
FAMILY_SETTINGS = {
    "bert": {},
    "roberta": {},
    "xlm_roberta": {"activation": "gelu"},
    "distilbert": {},
    "electra": {"embedding_dim": 8},
    "albert": {"embedding_dim": 8, "num_layers": 4, "num_groups": 2},
    "deberta_v3": {"bucket_size": 4},
    "modernbert": {"num_layers": 4, "local_window": 4},
    "modernbert_decoder": {"num_layers": 4, "local_window": 4},
    "nomic_bert": {},
    "gte": {},
    "gpt2": {},
    "gpt": {},
}
# Those whose checkpoints have BERT's heads. GTE is NomicBERT with other names, biases and another
# activation, and has no row of its own where none of these matters.
ENCODERS = [
    name for name, row in FAMILIES.items() if not row.encoder.get("is_causal") and name != "gte"
]


def with_head(kind):
    """Of `ENCODERS`, those whose checkpoints have this kind of head."""
    return [name for name in ENCODERS if kind in TABLES[name].heads]


MASKED_LMS = with_head("masked_lm")


def tiny_backbone(family="bert", **settings):
    """An encoder of a family in which every weight matters; equal for equal settings."""
    keras.utils.set_random_seed(1)
    return perturb(
        BertBackbone.from_family(family, **{**SETTINGS, **FAMILY_SETTINGS[family], **settings})
    )


def tiny_classifier(family="bert", **settings):
    """A classifier of three classes on `tiny_backbone`, without a preprocessor."""
    backbone = tiny_backbone(family, **settings)
    return perturb(BertTextClassifier(backbone, num_classes=3))


def bert_tokenizer(tokens):
    """An uncased tokenizer, one for all that ask for these tokens: its graph takes a second."""
    return _bert_tokenizer(tuple(tokens))


@functools.cache
def _bert_tokenizer(tokens):
    return BertTokenizer(list(tokens), lowercase=True)


def perturb(model):
    """Move the weights off their initial values: a gain of 1 or a bias of 0 tests nothing."""
    random = np.random.default_rng(2)
    for weight in model.weights:
        weight.assign(array(weight) + random.normal(0, 0.1, weight.shape))
    return model


def batch(model, lengths=(7, 4, 5), length=7, seed=3):
    """Random features (B, T) for a model, padded after `lengths`; other ids stand in padding.

    A model of choices gets (B, 2, T), of which the second choices are shorter, and one of several
    tasks a dict of features by task.
    """
    if hasattr(model, "tasks"):
        return {name: batch(task, lengths, length, seed) for name, task in model.tasks.items()}
    random = np.random.default_rng(seed)
    lengths = np.array(lengths)
    if len(model.input["token_ids"].shape) == 3:
        lengths = np.stack([lengths, lengths - 1], axis=1)
    shape = (*lengths.shape, length)
    features = {
        "token_ids": random.integers(1, SETTINGS["vocabulary_size"], shape),
        "padding_mask": np.arange(length) < lengths[..., None],
    }
    segments = model.input["segment_ids"] if "segment_ids" in model.input else None
    if segments is not None:
        most = getattr(model, "backbone", model).num_segments
        features["segment_ids"] = random.integers(0, most, shape)
    if "mask_positions" in model.input:
        features["mask_positions"] = random.integers(0, np.array(lengths)[:, None], (shape[0], 3))
    if "word_starts" in model.input:  # A word of one piece and one of two, then padding.
        features["word_starts"] = np.tile([1, 2, 0], (shape[0], 1))
        features["word_counts"] = np.tile([1, 2, 0], (shape[0], 1))
    return {name: value.astype("int32") for name, value in features.items()}


def array(value):
    """A float32 or integer array of a tensor of any backend."""
    value = ops.convert_to_tensor(value)
    if keras.backend.is_float_dtype(value.dtype):
        value = ops.cast(value, "float32")
    return ops.convert_to_numpy(value)


def arrays(outputs):
    """The same for any nesting of them."""
    return keras.tree.map_structure(array, outputs)


def assert_close(actual, expected, atol=1e-5):
    """Compare nestings of tensors; `atol=0` means exactly equal."""
    actual, expected = arrays(actual), arrays(expected)
    keras.tree.assert_same_structure(actual, expected)
    keras.tree.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, atol=atol, rtol=0), actual, expected
    )


def feed_forward_tokens(monkeypatch):
    """A list that gets the tokens of a row in each layer's feed-forward from now on."""
    tokens, whole = [], TransformerBlock._feed_forward

    def feed_forward(block, x, training):
        tokens.append(int(x.shape[1]))
        return whole(block, x, training)

    monkeypatch.setattr(TransformerBlock, "_feed_forward", feed_forward)
    return tokens


def outputs(model, features):
    """What `predict` gives, of a call: a distiller's outputs are its student's."""
    return getattr(model, "student", model)(features)


def floats(outputs):
    """The outputs that are numbers, and no ids of tokens: a list."""
    kind = keras.backend.standardize_dtype
    flat = keras.tree.flatten(outputs)
    return [x for x in flat if keras.backend.is_float_dtype(kind(x.dtype))]


def each_task(function, features):
    """A function of features, of one task or of each of several."""
    if "token_ids" in features:
        return function(features)
    return {name: function(part) for name, part in features.items()}


def gradients(model, features):
    """The loss and the gradients by path, alike on every backend.

    A step of plain descent at a rate of 1 moves each weight by its gradient.
    """
    targets = random_targets(model, features)
    compile_for(model, targets, keras.optimizers.SGD(1.0))
    before = arrays([weight.value for weight in model.trainable_weights])
    loss = float(np.ravel(model.train_on_batch(features, targets))[0])
    moved = zip(model.trainable_weights, before, strict=True)
    # Heads of several tasks have the same paths.
    return loss, {f"{i} {w.path}": was - array(w) for i, (w, was) in enumerate(moved)}


def random_targets(model, features):
    """Random targets for every output; where one is masked, itself: nothing is to be learnt.

    Of a model that makes labels itself, random tokens in place of what is hidden.
    """
    random = np.random.default_rng(4)
    if makes_labels(model):
        return random.integers(1, SETTINGS["vocabulary_size"], features["mask_positions"].shape)

    def target(output):
        values = random.normal(size=output.shape).astype("float32")
        return np.where(is_masked(output), output, values)

    return keras.tree.map_structure(target, arrays(outputs(model, features)))


def makes_labels(model):
    """Whether what is to be learnt rests on what the model itself has drawn."""
    return hasattr(model, "replacement")


def is_masked(output):
    """Which values of an output stand for "impossible"."""
    return output <= -1e9


def scale_of(outputs):
    """The largest absolute value that is not masked."""
    outputs = keras.tree.flatten(arrays(outputs))
    return max(np.abs(value[~is_masked(value)]).max() for value in outputs)


def compile_for(model, targets, optimizer):
    """Squared errors for every output, run eagerly: no test waits for a compiler."""
    if makes_labels(model):
        model.compile(optimizer, run_eagerly=True)
        return
    for name, task in getattr(model, "tasks", {}).items():
        compile_for(task, targets[name], None)
    losses = None if hasattr(model, "tasks") else keras.tree.map_structure(lambda _: "mse", targets)
    model.compile(optimizer, loss=losses, metrics=None, run_eagerly=True)


# === Layers ===


def check_layer(layer, inputs, mask=None, mask_name="attention_mask", weights=()):
    """Check what every layer promises.

    Args:
        layer: a layer that is not built.
        inputs: array (B, T, D) or (B, T).
        mask: array (B, T), 1 at tokens, of a layer that takes one under `mask_name`.
        weights: the names of its weights, which checkpoints rest on.
    """
    arguments = {} if mask is None else {mask_name: _broadcast(mask, mask_name)}
    outputs = layer(inputs, **arguments)
    assert [weight.path.split("/", 1)[1] for weight in layer.weights] == list(weights)
    random = np.random.default_rng(0)
    for weight in layer.weights:
        weight.assign(array(weight) + random.normal(0, 0.1, weight.shape))
    outputs = layer(inputs, **arguments)
    _check_spec(layer, inputs, arguments, outputs)

    # Settings: through JSON into an equal layer.
    config = layer.get_config()
    clone = type(layer).from_config(json.loads(json.dumps(config)))
    assert clone.get_config() == config
    clone(inputs, **arguments)
    clone.set_weights(layer.get_weights())
    assert_close(clone(inputs, **arguments), outputs, atol=0)

    # Any batch and length in one functional model.
    symbols = [keras.Input((None, *inputs.shape[2:]), dtype=inputs.dtype)]
    symbolic = {}
    for name, value in arguments.items():
        shape = (None if size > 1 else 1 for size in value.shape[1:])
        symbolic[name] = keras.Input(tuple(shape), dtype=value.dtype)
    model = keras.Model([*symbols, *symbolic.values()], layer(symbols[0], **symbolic))
    for few in (inputs, inputs[:1, :2]):
        cut = {name: _broadcast(mask[: len(few), : few.shape[1]], name) for name in arguments}
        assert_close(model([few, *cut.values()]), layer(few, **cut))

    # What is not asked for training does not depend on chance.
    assert_close(layer(inputs, **arguments), outputs, atol=0)
    if layer.weights and keras.backend.is_float_dtype(inputs.dtype.name):
        _, found = gradients(model, [inputs, *arguments.values()])
        assert len(found) == len(layer.weights)
        for path, gradient in found.items():
            assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0, path
        clone_of_weights(clone, layer)

    # Half precision: variables stay whole.
    if keras.backend.is_float_dtype(inputs.dtype.name):
        half = type(layer).from_config({**config, "dtype": "mixed_bfloat16"})
        result = half(inputs, **arguments)
        assert all(weight.dtype == "float32" for weight in half.weights)
        if keras.backend.is_float_dtype(keras.backend.standardize_dtype(result.dtype)):
            assert keras.backend.standardize_dtype(result.dtype) == "bfloat16"
        half.set_weights(clone.get_weights())
        assert_close(half(inputs, **arguments), clone(inputs, **arguments), atol=0.1)

    # What stands in padding reaches no token.
    if mask is not None:
        other = np.where(mask[:, :, None] > 0, inputs, inputs + 1).astype(inputs.dtype)
        expected, found = array(clone(inputs, **arguments)), array(clone(other, **arguments))
        if expected.ndim == 3:
            expected, found = expected[mask > 0], found[mask > 0]
        assert_close(found, expected)


def clone_of_weights(clone, layer):
    clone.set_weights(layer.get_weights())


def _broadcast(mask, name):
    return mask[:, None, None, :].astype(bool) if name == "attention_mask" else mask


def _check_spec(layer, inputs, arguments, outputs):
    """`compute_output_spec` with unknown sizes says what comes out."""

    def symbol(value):
        return keras.KerasTensor(
            (None, None, *value.shape[2:]), dtype=keras.backend.standardize_dtype(value.dtype)
        )

    symbols = {name: symbol(value) for name, value in arguments.items()}
    spec = layer.compute_output_spec(symbol(inputs), **symbols)
    assert spec.dtype == keras.backend.standardize_dtype(outputs.dtype)
    assert len(spec.shape) == len(outputs.shape)
    for said, is_so in zip(spec.shape, outputs.shape, strict=True):
        assert said in (None, is_so)


# === Models ===


def check_graph(make, folder):
    """Batch and length are free; eager calls, `predict` and XLA agree."""
    model = make()
    features = batch(model)
    expected = outputs(model, features)
    shapes = keras.tree.map_structure(lambda tensor: tensor.shape[0], model.output)
    assert set(keras.tree.flatten(shapes)) == {None}
    compiled = keras.backend.backend() != "torch"
    for jit_compile in (False, True) if compiled else (False,):
        for part in (model, *getattr(model, "tasks", {}).values()):
            part.compile(jit_compile=jit_compile)
        assert_close(model.predict(features, verbose=0), expected)
    other = batch(model, (2, 3), 3)
    assert_close(model.predict(other, verbose=0), outputs(model, other))


def check_padding(make, folder):
    """More padding, whatever ids stand in it, changes nothing at the tokens."""
    model = make()
    features = batch(model)

    def pad(features):
        more = [(0, 0)] * (features["token_ids"].ndim - 1) + [(0, 4)]
        longer = {
            name: np.pad(value, more) if value.shape == features["token_ids"].shape else value
            for name, value in features.items()
        }
        hidden = longer["padding_mask"] == 0
        longer["token_ids"] = np.where(hidden, longer["token_ids"] + 1, longer["token_ids"])
        return longer

    masks = [value > 0 for value in keras.tree.flatten(each_task(padding_mask, features))]

    def at_tokens(output, like):
        """Of an output a token, the tokens' part."""
        for mask in masks:
            if like.shape[:2] == mask.shape:
                return output[:, : mask.shape[1]][mask]
        return output

    expected = arrays(outputs(model, features))
    found = arrays(outputs(model, each_task(pad, features)))
    found = keras.tree.map_structure(at_tokens, found, expected)
    assert_close(found, keras.tree.map_structure(at_tokens, expected, expected))


def padding_mask(features):
    return features["padding_mask"]


def check_defaults(make, folder):
    """Segments and mask may be left out; segments that a family lacks are not looked at."""
    model = make()
    features = batch(model)

    def words(features):
        return {name: value for name, value in features.items() if name.startswith("word_")}

    def with_segments(value):
        return lambda features: {
            **words(features),
            "token_ids": features["token_ids"],
            "segment_ids": np.full_like(features["token_ids"], value),
            "padding_mask": np.ones_like(features["token_ids"]),
        }

    def only_ids(features):
        return {**words(features), "token_ids": features["token_ids"]}

    expected = outputs(model, each_task(with_segments(0), features))
    assert_close(outputs(model, each_task(only_ids, features)), expected, atol=0)
    if "segment_ids" not in encoder(model).input:
        features = each_task(with_segments(1), features)
        assert_close(outputs(model, features), expected, atol=0)
        assert_close(model.predict(features, verbose=0), expected)


def check_bfloat16(make, folder):
    """`mixed_bfloat16` is close; weights and what losses see stay in float32."""
    model, half = make(), make(dtype="mixed_bfloat16")
    features = batch(model)
    assert all(weight.dtype == "float32" for weight in half.weights)
    assert half.compute_dtype == "bfloat16"
    found, expected = floats(outputs(half, features)), floats(outputs(model, features))
    assert_close(found, expected, atol=0.04 * scale_of(expected))
    wanted = "bfloat16" if half is encoder(half) else "float32"
    for output in found:
        assert keras.backend.standardize_dtype(output.dtype) == wanted


def check_gradients(make, folder):
    """Every weight that trains has a gradient, and `RematScope` gives the same, dropout too."""
    model = make()
    features = batch(model)
    loss, expected = gradients(model, features)
    for path, gradient in expected.items():
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0, path
    with keras.RematScope("full"):
        model = make()
    assert all(layer._remat_mode for layer in encoder(model).transformer_layers)
    found_loss, found = gradients(model, features)
    assert np.isclose(found_loss, loss, atol=1e-6)
    assert_close(found, expected, atol=2e-6)


def check_lora(make, folder):
    """Only adapters train in the encoder, the loss falls, and they save and load alone."""
    model = make()
    features = batch(model)
    encoder(model).enable_lora(2)
    trained = encoder(model).trainable_weights
    assert len(trained) == 2 * len(set(map(id, encoder(model).transformer_layers)))
    assert all("/qkv/lora_kernel_" in weight.path for weight in trained)
    frozen = {w.path: array(w) for w in encoder(model).non_trainable_weights}
    targets = random_targets(model, features)
    compile_for(model, targets, keras.optimizers.Adam(0.03))
    before = _error(model, features, targets)
    for _ in range(4):
        model.train_on_batch(features, targets)
    assert _error(model, features, targets) < before
    assert_close({w.path: w for w in encoder(model).non_trainable_weights}, frozen, atol=0)
    path = os.path.join(folder, "adapters.lora.h5")
    encoder(model).save_lora_weights(path)
    fresh = encoder(make())
    fresh.load_lora_weights(path)
    features = batch(fresh)
    assert_close(fresh(features), encoder(model)(features), atol=0)


def _error(model, features, targets):
    if makes_labels(model):
        return model.evaluate(features, targets, verbose=0, return_dict=True)["loss"]
    pairs = zip(
        keras.tree.flatten(arrays(outputs(model, features))),
        keras.tree.flatten(targets),
        strict=True,
    )
    return sum(float(np.mean((output - target) ** 2)) for output, target in pairs)


def check_int8(make, folder):
    """`quantize("int8")` is close, smaller, and survives saving, on either float policy."""
    model = make(dtype="mixed_bfloat16")
    features = batch(model)
    expected = floats(outputs(model, features))
    model.quantize("int8")
    assert {"int8", "float32"} == {weight.dtype for weight in model.weights}
    assert_close(floats(outputs(model, features)), expected, atol=0.1 * scale_of(expected))
    loaded = check_roundtrip(model, features, folder)
    # What was loaded saves as well.
    path = os.path.join(folder, "again")
    loaded.save_to_preset(path)
    again = type(loaded).from_preset(path)
    assert_close(again(features), outputs(model, features), atol=0)


def check_saving(make, folder):
    """Settings, `.keras` files and presets give back the same model."""
    model = make()
    check_roundtrip(model, batch(model), folder)


def encoder(model):
    return getattr(model, "backbone", model)


# In the order in which a failure tells most; each takes `make(**settings)` and a folder.
MODEL_CHECKS = (
    check_graph,
    check_padding,
    check_defaults,
    check_bfloat16,
    check_gradients,
    check_lora,
    check_int8,
    check_saving,
)


# Each backend computes these in its own way. The other checks are logic, which one backend runs:
# TensorFlow in README's set, else PyTorch, where nothing is compiled.
COMPUTED = (check_graph, check_padding, check_bfloat16, check_gradients)
SLOW = (check_graph, check_gradients)


def model_contract(*families, slow=SLOW, without=()):
    """Parametrize a test by `family` and `check`.

    `families` have a row of each check, of which `slow` are slow on TensorFlow. Any other family
    has only that of saving: a head changes nothing in an encoder, but its files name both.
    Families `without` the model have no row.
    """
    rows = []
    for family in [name for name in FAMILY_SETTINGS if name not in without]:
        for check in MODEL_CHECKS if family in families else (check_saving,):
            if family in families and check in COMPUTED:
                where = BACKENDS
            elif family in families and check in (check_defaults, check_saving):
                where = ("tensorflow",)
            else:
                where = ("torch",)
            marks = [pytest.mark.backends(*where)] + [pytest.mark.slow] * (check in slow)
            name = f"{family}-{check.__name__.removeprefix('check_')}"
            rows.append(pytest.param(family, check, id=name, marks=marks))
    return pytest.mark.parametrize(("family", "check"), rows)


def check_roundtrip(model, features, folder):
    """`get_config`, a `.keras` file and a preset give back an exactly equal model.

    Returns what the preset holds; a distiller's holds its student.
    """
    expected = model(features)
    config = model.get_config()
    # Exactly what a file holds.
    stored = keras.saving.serialize_keras_object(model)["config"]
    clone = type(model).from_config(json.loads(json.dumps(stored)))
    assert _plain(clone.get_config()) == _plain(config)
    assert [w.path for w in clone.weights] == [w.path for w in model.weights]
    clone.set_weights(model.get_weights())
    assert_close(clone(features), expected, atol=0)

    path = os.path.join(folder, "model.keras")
    model.save(path)
    loaded = keras.saving.load_model(path)
    assert type(loaded) is type(model)
    assert _plain(loaded.get_config()) == _plain(config)
    assert_close(loaded(features), expected, atol=0)

    path = os.path.join(folder, "preset")
    model.save_to_preset(path)
    model = getattr(model, "student", model)
    config, expected = model.get_config(), model(features)
    quantized = any(weight.dtype == "int8" for weight in model.weights)
    # As in KerasHub the reader chooses the float type, but for quantized weights.
    kwargs = {} if quantized else {"dtype": model.dtype_policy}
    loaded = type(model).from_preset(path, **kwargs)
    assert type(loaded) is type(model)
    assert _plain(loaded.get_config()) == _plain(config)
    assert [w.path for w in loaded.weights] == [w.path for w in model.weights]
    assert_close(loaded(features), expected, atol=0)
    return loaded


def _plain(config):
    """A config as JSON, without names, which the loader may choose anew."""

    def strip(value):
        if isinstance(value, dict):
            return {k: strip(v) for k, v in value.items() if k not in ("name", "build_config")}
        return [strip(v) for v in value] if isinstance(value, (list, tuple)) else value

    return strip(json.loads(json.dumps(keras.saving.serialize_keras_object(config))))


# === Preprocessors ===


def check_preprocessor(preprocessor, texts, labels, folder):
    """Check what every preprocessor promises.

    Args:
        preprocessor: with a tokenizer.
        texts: list of strings (N,) of different lengths, or a tuple of two.
        labels: their labels.
        folder: where files may go.
    """
    import tensorflow as tf

    features, *targets = preprocessor(texts, labels)
    features, targets = arrays(features), arrays(targets)
    length = features["token_ids"].shape[-1]
    assert features["token_ids"].dtype == "int32" and features["padding_mask"].dtype == "bool"
    used = features["padding_mask"].reshape(-1, length).any(axis=0)
    assert used.sum() <= length <= preprocessor.sequence_length
    assert ("segment_ids" in features) == (preprocessor.num_segments > 0)

    # The same inside `tf.data`.
    size = len(features["token_ids"])
    dataset = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(size).map(preprocessor)
    mapped = next(iter(dataset.as_numpy_iterator()))
    assert_close(mapped, (features, *targets), atol=0)

    # Batches hold every text once, and what was sorted can be put back.
    batches = preprocessor.batches(texts, labels, batch_size=2).as_numpy_iterator()
    batches = [features for features, *_ in batches]
    tokens = sorted(tuple(row[mask]) for b in batches for row, mask in _rows(b))
    assert tokens == sorted(tuple(row[mask]) for row, mask in _rows(features))
    dataset, order = preprocessor.sorted_batches(texts, batch_size=2)
    back = [tuple(row[mask]) for b in dataset.as_numpy_iterator() for row, mask in _rows(b)]
    back = [back[i] for i in np.argsort(order)]
    assert back == [tuple(row[mask]) for row, mask in _rows(features)]

    # A preset and the settings give back the same.
    path = os.path.join(folder, "preprocessor")
    preprocessor.save_to_preset(path)
    loaded = type(preprocessor).from_own_preset(path)
    assert _plain(loaded.get_config()) == _plain(preprocessor.get_config())
    assert_close(loaded(texts, labels), (features, *targets), atol=0)


def _rows(features):
    return zip(features["token_ids"], features["padding_mask"], strict=True)
