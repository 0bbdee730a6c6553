"""Guarantees of every layer, model and preprocessor. For a new class, add a row to the test that
calls the check.

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

# Every setting of a family is covered, at a small size.
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
    "roberta_prelayernorm": {},
    "xlm_roberta": {"activation": "gelu"},
    "distilbert": {},
    "electra": {"embedding_dim": 8},
    "albert": {"embedding_dim": 8, "num_layers": 4, "num_groups": 2},
    "longformer": {"local_window": 4, "global_tokens": "first"},
    "deberta": {},
    "deberta_v3": {"bucket_size": 4},
    "modernbert": {"num_layers": 4, "local_window": 4},
    "modernbert_decoder": {"num_layers": 4, "local_window": 4},
    "mpnet": {},
    "nomic_bert": {},
    "gte": {},
    "jina_bert": {},
    "eurobert": {"num_key_value_heads": 1},
    "gpt2": {},
    "gpt": {},
}
# Families that differ from others in names, or in settings that others have too;
# `tests/families/test_relatives.py` compares them with transformers.
RELATIVES = (
    *("camembert", "data2vec_text", "ernie", "bert_generation", "roformer"),
    *("megatron_bert", "xlm_roberta_xl", "roberta_prelayernorm", "eurobert", "deberta"),
    *("rembert", "luke", "big_bird", "longformer"),
    *("xlm", "flaubert"),
)
# Families whose checkpoints have BERT's heads. GTE is NomicBERT with different names, biases and
# activation, so it has no row in tests that do not depend on these. Jina-BERT is not in
# transformers; `tests/families/test_jina_bert.py` has a reference for it.
ENCODERS = [
    name
    for name, row in FAMILIES.items()
    if not row.encoder.get("is_causal") and name not in ("gte", "jina_bert", *RELATIVES)
]


def their_inputs(model, inputs):
    """Return our inputs as arguments of a model of transformers."""
    import torch

    names = {
        "token_ids": "input_ids",
        "padding_mask": "attention_mask",
        "segment_ids": "token_type_ids",
    }
    if hasattr(model.config, "n_langs"):
        names["segment_ids"] = "langs"
    found = {names[name]: torch.tensor(value).long() for name, value in inputs.items()}
    if "langs" in found:  # Positions restart where the language changes.
        rows = [[x != row[0] for x in row] for row in inputs["segment_ids"].tolist()]
        starts = [row.index(True) if True in row else 0 for row in rows]
        places = [[i - (i >= start) * start for i in range(len(rows[0]))] for start in starts]
        found["position_ids"] = torch.tensor(places)
    if getattr(model.config, "pre_norm", False):
        # In transformers 5.24, FlauBERT's pre-norm encoders fail with their own cache.
        found["cache"] = _NoCache()
    return found


class _NoCache:
    def __getitem__(self, layer):
        return None

    def get_seq_length(self):
        return 0


def with_head(kind):
    """Return those of `ENCODERS` whose checkpoints have this kind of head."""
    return [name for name in ENCODERS if kind in TABLES[name].heads]


MASKED_LMS = with_head("masked_lm")


def tiny_backbone(family="bert", **settings):
    """Return an encoder of a family in which every weight affects the outputs; equal settings give
    equal encoders.
    """
    keras.utils.set_random_seed(1)
    return perturb(
        BertBackbone.from_family(family, **{**SETTINGS, **FAMILY_SETTINGS[family], **settings})
    )


def tiny_classifier(family="bert", **settings):
    """Return a classifier of three classes on `tiny_backbone`, without a preprocessor."""
    backbone = tiny_backbone(family, **settings)
    return perturb(BertTextClassifier(backbone, num_classes=3))


def bert_tokenizer(tokens):
    """Return an uncased tokenizer, shared by tests with these tokens: its graph takes a second."""
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
    """Return random features (B, T) for a model, padded after `lengths`, with other ids at padding.

    A multiple-choice model gets (B, 2, T) with shorter second choices, and a multi-task model a
    dict of features by task.
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
    if "word_starts" in model.input:  # One word has one piece, one has two; padding follows.
        features["word_starts"] = np.tile([1, 2, 0], (shape[0], 1))
        features["word_counts"] = np.tile([1, 2, 0], (shape[0], 1))
    return {name: value.astype("int32") for name, value in features.items()}


def array(value):
    """Return a tensor of any backend as a float32 or integer array."""
    value = ops.convert_to_tensor(value)
    if keras.backend.is_float_dtype(value.dtype):
        value = ops.cast(value, "float32")
    return ops.convert_to_numpy(value)


def arrays(outputs):
    """Convert all tensors of a nesting by `array`."""
    return keras.tree.map_structure(array, outputs)


def assert_close(actual, expected, atol=1e-5):
    """Compare nestings of tensors; `atol=0` means exactly equal."""
    actual, expected = arrays(actual), arrays(expected)
    keras.tree.assert_same_structure(actual, expected)
    keras.tree.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, atol=atol, rtol=0), actual, expected
    )


def feed_forward_tokens(monkeypatch):
    """Return a list that collects the tokens per row in each layer's feed-forward from now on."""
    tokens, whole = [], TransformerBlock._feed_forward

    def feed_forward(block, x, training):
        tokens.append(int(x.shape[1]))
        return whole(block, x, training)

    monkeypatch.setattr(TransformerBlock, "_feed_forward", feed_forward)
    return tokens


def outputs(model, features):
    """Return a call's outputs as `predict` returns them; for a distiller, these are its
    student's.
    """
    return getattr(model, "student", model)(features)


def floats(outputs):
    """Return the outputs that are numbers, not token ids: a list."""
    kind = keras.backend.standardize_dtype
    flat = keras.tree.flatten(outputs)
    return [x for x in flat if keras.backend.is_float_dtype(kind(x.dtype))]


def each_task(function, features):
    """Apply a function to the features of a single task, or to those of each task."""
    if "token_ids" in features:
        return function(features)
    return {name: function(part) for name, part in features.items()}


def gradients(model, features):
    """Return the loss and the gradients by path, computed in the same way on every backend.

    A step of SGD with a learning rate of 1 moves each weight by its gradient.
    """
    targets = random_targets(model, features)
    compile_for(model, targets, keras.optimizers.SGD(1.0))
    before = arrays([weight.value for weight in model.trainable_weights])
    loss = float(np.ravel(model.train_on_batch(features, targets))[0])
    moved = zip(model.trainable_weights, before, strict=True)
    # The index makes the keys unique: the heads of several tasks have equal weight paths.
    return loss, {f"{i} {w.path}": was - array(w) for i, (w, was) in enumerate(moved)}


def random_targets(model, features):
    """Return random targets for every output; a masked output is its own target, with nothing to
    learn.

    For a model that makes its labels itself, random tokens replace the masked tokens.
    """
    random = np.random.default_rng(4)
    if makes_labels(model):
        return random.integers(1, SETTINGS["vocabulary_size"], features["mask_positions"].shape)

    def target(output):
        values = random.normal(size=output.shape).astype("float32")
        return np.where(is_masked(output), output, values)

    return keras.tree.map_structure(target, arrays(outputs(model, features)))


def makes_labels(model):
    """Return whether the labels depend on the model's own samples."""
    return hasattr(model, "replacement")


def is_masked(output):
    """Return which values of an output mean "impossible"."""
    return output <= -1e9


def scale_of(outputs):
    """Return the largest absolute value that is not masked."""
    outputs = keras.tree.flatten(arrays(outputs))
    return max(np.abs(value[~is_masked(value)]).max() for value in outputs)


def compile_for(model, targets, optimizer):
    """Compile with squared errors for every output, run eagerly to save compilation time."""
    if makes_labels(model):
        model.compile(optimizer, run_eagerly=True)
        return
    for name, task in getattr(model, "tasks", {}).items():
        compile_for(task, targets[name], None)
    losses = None if hasattr(model, "tasks") else keras.tree.map_structure(lambda _: "mse", targets)
    model.compile(optimizer, loss=losses, metrics=None, run_eagerly=True)


# === Layers ===


def check_layer(layer, inputs, mask=None, mask_name="attention_mask", weights=()):
    """Check the guarantees of every layer.

    Args:
        layer: a layer that is not built.
        inputs: array (B, T, D) or (B, T).
        mask: array (B, T), 1 at tokens, of a layer that takes one under `mask_name`.
        weights: the names of its weights, on which checkpoints depend.
    """
    arguments = {} if mask is None else {mask_name: _broadcast(mask, mask_name)}
    outputs = layer(inputs, **arguments)
    assert [weight.path.split("/", 1)[1] for weight in layer.weights] == list(weights)
    random = np.random.default_rng(0)
    for weight in layer.weights:
        weight.assign(array(weight) + random.normal(0, 0.1, weight.shape))
    outputs = layer(inputs, **arguments)
    _check_spec(layer, inputs, arguments, outputs)

    # The config through JSON gives an equal layer.
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

    # Inference does not depend on random numbers.
    assert_close(layer(inputs, **arguments), outputs, atol=0)
    if layer.weights and keras.backend.is_float_dtype(inputs.dtype.name):
        _, found = gradients(model, [inputs, *arguments.values()])
        assert len(found) == len(layer.weights)
        for path, gradient in found.items():
            assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0, path
        clone_of_weights(clone, layer)

    # Half precision: variables stay float32.
    if keras.backend.is_float_dtype(inputs.dtype.name):
        half = type(layer).from_config({**config, "dtype": "mixed_bfloat16"})
        result = half(inputs, **arguments)
        assert all(weight.dtype == "float32" for weight in half.weights)
        if keras.backend.is_float_dtype(keras.backend.standardize_dtype(result.dtype)):
            assert keras.backend.standardize_dtype(result.dtype) == "bfloat16"
        half.set_weights(clone.get_weights())
        assert_close(half(inputs, **arguments), clone(inputs, **arguments), atol=0.1)

    # Values at padding reach no token.
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
    """Check that `compute_output_spec` with unknown sizes matches the outputs."""

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
    """Check that batch and length are dynamic, and that eager calls, `predict` and XLA agree."""
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
    """Check that more padding, with any ids, does not change the outputs at the tokens."""
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
        """Return the outputs at the tokens, if the output has a token axis."""
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
    """Check that segments and mask are optional, and that segments are ignored in families without
    them.
    """
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
    """Check that outputs in `mixed_bfloat16` are close, and that weights and inputs of losses stay
    float32.
    """
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
    """Check that every trainable weight has a gradient, and the same one in `RematScope`, also with
    dropout.
    """
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
    """Check LoRA: in the encoder only adapters train, the loss falls, and adapters can be saved and
    loaded alone.
    """
    model = make()
    features = batch(model)
    encoder(model).enable_lora(2)
    trained = encoder(model).trainable_weights
    # Projections with fewer heads of keys and values are two layers.
    each = 1 if getattr(encoder(model), "num_key_value_heads", None) is None else 2
    assert len(trained) == 2 * each * len(set(map(id, encoder(model).transformer_layers)))
    names = ("/qkv/lora_kernel_", "/query/lora_kernel_", "/kv/lora_kernel_")
    assert all(any(name in weight.path for name in names) for weight in trained)
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
    """Check that an int8 model is smaller, has close outputs and can be saved, with either float
    policy.
    """
    model = make(dtype="mixed_bfloat16")
    features = batch(model)
    expected = floats(outputs(model, features))
    model.quantize("int8")
    assert {"int8", "float32"} == {weight.dtype for weight in model.weights}
    assert_close(floats(outputs(model, features)), expected, atol=0.1 * scale_of(expected))
    loaded = check_roundtrip(model, features, folder)
    # A loaded model can be saved again.
    path = os.path.join(folder, "again")
    loaded.save_to_preset(path)
    again = type(loaded).from_preset(path)
    assert_close(again(features), outputs(model, features), atol=0)


def check_saving(make, folder):
    """Check that settings, `.keras` files and presets restore the same model."""
    model = make()
    check_roundtrip(model, batch(model), folder)


def check_preset(make, folder):
    """Check that a preset restores the same model; no other part of saving depends on family and
    head.
    """
    model = make()
    check_preset_roundtrip(model, batch(model), folder)


def encoder(model):
    return getattr(model, "backbone", model)


# The checks whose failures are most informative come first. Each check takes `make(**settings)` and
# a folder.
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


# These checks run on each backend, because each computes them in a different way. The other checks
# test logic that is the same on all backends, so they run on one: TensorFlow in README's set,
# otherwise PyTorch, which compiles nothing.
COMPUTED = (check_graph, check_padding, check_bfloat16, check_gradients)
SLOW = (check_graph, check_gradients)


def model_contract(*families, slow=SLOW, without=()):
    """Parametrize a test by `family` and `check`.

    `families` have a row of each check, of which `slow` are slow on TensorFlow. Any other family
    has only a row of `check_preset`, because a head changes nothing in an encoder, but a preset
    names both. The tests of the encoder check settings and `.keras` files of every family. Families
    `without` the model have no row.
    """
    rows = []
    for family in [name for name in FAMILY_SETTINGS if name not in without]:
        for check in MODEL_CHECKS if family in families else (check_preset,):
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
    """Check that `get_config`, a `.keras` file and a preset restore an exactly equal model.

    Returns the preset's model; for a distiller, this is its student.
    """
    expected = model(features)
    config = model.get_config()
    # Exactly what the file contains.
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
    return check_preset_roundtrip(model, features, folder)


def check_preset_roundtrip(model, features, folder):
    """Check that a preset restores an equal model, or the student of a distiller; return that
    model.
    """
    path = os.path.join(folder, "preset")
    model.save_to_preset(path)
    model = getattr(model, "student", model)
    config, expected = model.get_config(), model(features)
    quantized = any(weight.dtype == "int8" for weight in model.weights)
    # As in KerasHub, the reader chooses the float type, except for quantized weights.
    kwargs = {} if quantized else {"dtype": model.dtype_policy}
    loaded = type(model).from_preset(path, **kwargs)
    assert type(loaded) is type(model)
    assert _plain(loaded.get_config()) == _plain(config)
    assert [w.path for w in loaded.weights] == [w.path for w in model.weights]
    assert_close(loaded(features), expected, atol=0)
    return loaded


def _plain(config):
    """Return a config as JSON without names, which the loader may choose freely."""

    def strip(value):
        if isinstance(value, dict):
            return {k: strip(v) for k, v in value.items() if k not in ("name", "build_config")}
        return [strip(v) for v in value] if isinstance(value, (list, tuple)) else value

    return strip(json.loads(json.dumps(keras.saving.serialize_keras_object(config))))


# === Preprocessors ===


def check_preprocessor(preprocessor, texts, labels, folder):
    """Check the guarantees of every preprocessor.

    Args:
        preprocessor: with a tokenizer.
        texts: list of strings (N,) of different lengths, or a tuple of two.
        labels: their labels.
        folder: a folder for files.
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

    # Batches hold every text once, and the original order can be restored.
    batches = preprocessor.batches(texts, labels, batch_size=2).as_numpy_iterator()
    batches = [features for features, *_ in batches]
    tokens = sorted(tuple(row[mask]) for b in batches for row, mask in _rows(b))
    assert tokens == sorted(tuple(row[mask]) for row, mask in _rows(features))
    dataset, order = preprocessor.sorted_batches(texts, batch_size=2)
    back = [tuple(row[mask]) for b in dataset.as_numpy_iterator() for row, mask in _rows(b)]
    back = [back[i] for i in np.argsort(order)]
    assert back == [tuple(row[mask]) for row, mask in _rows(features)]

    # A preset and the config give an equal preprocessor.
    path = os.path.join(folder, "preprocessor")
    preprocessor.save_to_preset(path)
    loaded = type(preprocessor).from_own_preset(path)
    assert _plain(loaded.get_config()) == _plain(preprocessor.get_config())
    assert_close(loaded(texts, labels), (features, *targets), atol=0)


def _rows(features):
    return zip(features["token_ids"], features["padding_mask"], strict=True)
