"""Transformer-XL compared with transformers 4.30; streams, training, files, misuse."""

import json
import math

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import kerasbert
from kerasbert.layers.adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from kerasbert.lineage import TransformerXLBackbone, TransformerXLLM
from kerasbert.lineage.transformer_xl.stream import StreamTrainer, in_segments
from tests.contracts import array, assert_close, gradients, perturb
from tests.golden import transformer_xl as golden

SIZES = {
    "vocabulary_size": 12,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 24,
}


def make(**settings):
    keras.utils.set_random_seed(1)
    return perturb(TransformerXLBackbone(**{**SIZES, **settings}))


@pytest.fixture(scope="module")
def recorded():
    with np.load(golden.FILE) as file:
        return {name: file[name] for name in file.files}


def write(recorded, case, folder):
    """Write the directory of a recorded model."""
    (folder / "config.json").write_text(str(recorded[f"{case}/config"]))
    start = f"{case}/weights/"
    weights = {
        name.removeprefix(start): value.astype("float32")
        for name, value in recorded.items()
        if name.startswith(start)
    }
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize("case", golden.CASES)
def test_equals_transformers(recorded, case, tmp_path):
    """Three segments of two texts, each with the memory of the earlier segments; in transformers,
    the memory begins with zeros.
    """
    model = TransformerXLLM.from_preset(write(recorded, case, tmp_path))
    memory = np.zeros((2, 2, model.backbone.memory_length, 16), "float32")
    for part in range(3):
        wanted = {
            name: recorded[f"{case}/{part}/{name}"]
            for name in ("token_ids", "scores", "sequence_output", "memory")
        }
        x = {"token_ids": wanted["token_ids"]}
        outputs = model.backbone({**x, "memory": memory})
        scores, memory = model.read_on(x, memory)
        assert_close(outputs["sequence_output"], wanted["sequence_output"], atol=3e-6)
        assert_close(outputs["memory"], wanted["memory"], atol=3e-6)
        assert_close(memory, wanted["memory"], atol=3e-6)
        assert_close(scores, wanted["scores"], atol=3e-6)


@pytest.mark.slow
def test_files(recorded, tmp_path):
    """A model with its head is written in transformers' format, in ours, and as a `.keras` file."""
    folder = write(recorded, "same_length", tmp_path)
    model = TransformerXLLM.from_preset(folder)
    x = {"token_ids": np.array([[3, 9, 11, 20, 39]], "int32")}
    wanted = model.backbone(x)["sequence_output"]
    kerasbert.convert(folder, tmp_path / "ours", format="kerasbert", tokenizer=False)
    kerasbert.convert(tmp_path / "ours", tmp_path / "theirs", tokenizer=False)
    for name in ("theirs", "ours"):
        again = TransformerXLBackbone.from_preset(tmp_path / name)
        assert_close(again(x)["sequence_output"], wanted, atol=0)
        assert {**again.get_config(), "name": ""} == {**model.backbone.get_config(), "name": ""}
        again = TransformerXLLM.from_preset(tmp_path / name)
        assert_close(again(x), model(x), atol=0)
        assert again.tied_projections == model.tied_projections
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    given = json.loads(str(recorded["same_length/config"]))
    for key in config.keys() & given.keys() - {"dtype"}:
        assert config[key] == given[key], key
    # transformers' file has tied weights under two names.
    weights = load_file(tmp_path / "theirs" / "model.safetensors")
    for name, value in weights.items():
        assert_close(value, recorded[f"same_length/weights/{name}"], atol=0)
    kerasbert.convert(model.backbone, tmp_path / "alone")
    with pytest.raises(ValueError, match="has no head for a TransformerXLLM"):
        TransformerXLLM.from_preset(tmp_path / "alone")
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_close(again(x), model(x), atol=1e-6)


@pytest.mark.slow
def test_presets_and_characters(tmp_path):
    """The characters of a character model are kept; other formats warn that they are lost."""
    model = TransformerXLLM(make(cutoffs=[4, 8], division=2), "abcdefghijkl", [True] * 3)
    model.backbone.save_to_preset(tmp_path / "encoder")
    found = kerasbert.convert(tmp_path / "encoder", tmp_path / "their_encoder")
    assert (found["model"], found["written"]) == ("TransformerXLBackbone", "TransfoXLModel")
    model.save_to_preset(tmp_path / "ours")
    again = TransformerXLLM.from_preset(tmp_path / "ours")
    assert again.characters == model.characters
    assert again.evaluate_stream("abcabc") == model.evaluate_stream("abcabc")
    with pytest.warns(UserWarning, match="does not hold characters"):
        kerasbert.convert(model, tmp_path / "theirs")
    again = TransformerXLLM.from_preset(tmp_path / "theirs", characters=model.characters)
    assert again.evaluate_stream("abcabc") == model.evaluate_stream("abcabc")
    bits = model.evaluate_stream("abcabc")
    model.quantize("int8")
    small = model.evaluate_stream("abcabc")
    assert 0 < abs(small - bits) < 0.01
    model.save_to_preset(tmp_path / "int8")
    again = TransformerXLLM.from_preset(tmp_path / "int8")
    assert abs(again.evaluate_stream("abcabc") - small) < 1e-6
    with pytest.raises(ValueError, match="only holds BERT"):
        kerasbert.convert(model, tmp_path / "google", format="google")
    with pytest.raises(TypeError, match="got a TransformerXLLM"):
        kerasbert.export_serving(model, tmp_path / "served")


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"shares_biases": False}, {"cutoffs": [4, 8], "division": 2}])
def test_stream_equals_one_long_computation(settings):
    """With a full memory, segments of any size give the results of the whole text."""
    model = TransformerXLLM(make(memory_length=99, **settings), characters="abcdefghijkl")
    text = "abacadabacabadabacadlkjihgfe"
    ids = model.ids_of(text)
    scores = array(model({"token_ids": ids[None, :-1]}))[0]
    whole = -scores[np.arange(len(ids) - 1), ids[1:]].mean() / math.log(2)
    for segment in (9, 100):
        assert abs(model.evaluate_stream(text, segment) - whole) < 1e-5
    assert abs(model.evaluate_stream(ids, 9, memory=99) - whole) < 1e-5
    # Without memory, the result differs.
    assert abs(model.evaluate_stream(text, 9, memory=0) - whole) > 1e-4
    # The memory does not outlive a call.
    assert model.evaluate_stream(text, 9) == model.evaluate_stream(text, 9)


def test_same_length_sees_as_many_as_it_remembers():
    """A layer's last output depends only on the last `memory_length` tokens."""
    backbone = make(num_layers=1, same_length=True, memory_length=3)
    ids = np.array([[1, 2, 3, 4, 5, 6]], "int32")
    other = np.array([[9, 9, 9, 4, 5, 6]], "int32")
    one, two = (array(backbone({"token_ids": x})["sequence_output"])[0] for x in (ids, other))
    assert_close(one[-1], two[-1], atol=1e-6)
    assert np.abs(one[-2] - two[-2]).max() > 1e-4


@pytest.mark.backends("torch")
def test_learns(tmp_path):
    """A repetitive text takes fewer bits after a short training."""
    keras.utils.set_random_seed(2)
    backbone = TransformerXLBackbone(**SIZES, memory_length=8, dropout=0.0)
    model = TransformerXLLM(backbone, characters="abc ")
    text = "abc cab " * 20
    ids = model.ids_of(text)
    before = model.evaluate_stream(text, 16)
    rows = np.stack([ids[i : i + 17] for i in range(0, 128, 8)])
    model.compile(optimizer=keras.optimizers.Adam(1e-2))
    history = model.fit({"token_ids": rows[:, :-1]}, rows[:, 1:], epochs=8, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
    after = model.evaluate_stream(text, 16)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.optimizer.iterations == 8 * 1 and again.optimizer.built
    assert abs(again.evaluate_stream(text, 16) - after) < 1e-5
    assert after < before - 1 and before > 3


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", "torch")
def test_training_with_memory():
    """`fit_stream` learns, and its steps have the memory of the segments before them."""
    keras.utils.set_random_seed(2)
    backbone = TransformerXLBackbone(**SIZES, memory_length=8, dropout=0.0)
    model = TransformerXLLM(backbone, characters="abcdefghijkl")
    ids = np.tile([1, 5, 2, 9, 7], 26)[:129]
    model.compile(optimizer=keras.optimizers.Adam(1e-2))
    history = model.fit_stream(ids, segment=4, batch_size=4, epochs=4, verbose=0).history
    assert history["loss"][-1] < history["loss"][0] - 0.5
    assert model.optimizer.iterations == 4 * 128 // 16
    # One step equals a step by hand, with the memory of the segment before it.
    trainer = StreamTrainer(model, 2, 8)
    x, y = in_segments(ids[:17], 2, 4)
    trainer.compile(loss=model.loss)
    array(trainer(x[:2]))
    memory = np.zeros((2, 2, 8, 16), "float32")
    _, memory = model.read_on({"token_ids": x[:2]}, memory)
    assert_close(trainer.memory.value, memory, atol=1e-6)
    assert_close(trainer(x[2:]), model.read_on({"token_ids": x[2:]}, memory)[0], atol=1e-5)


@pytest.mark.backends("torch")
def test_generation_equals_one_long_computation():
    """Greedy, with a memory that holds all tokens: as without a memory."""
    model = TransformerXLLM(make(memory_length=20), characters="abcdefghijkl")
    ids = [3, 1, 4, 1, 5]
    found = model.generate(np.array(ids), length=4, sampler="greedy", segment=2)
    whole = np.array([[*ids, *found]])
    best = array(model({"token_ids": whole}))[0].argmax(axis=-1)
    assert found.tolist() == best[4:-1].tolist()
    text = model.generate("dbebf", length=4, sampler="greedy")
    assert text == "".join(model.characters[id] for id in found)
    keras.utils.set_random_seed(1)
    assert set(model.generate("a", length=5)) <= set(model.characters)


def test_biases_of_all_layers_train_in_a_remat_scope():
    """The blocks get the biases as inputs; TensorFlow used to lose their gradients."""
    x = {"token_ids": np.array([[1, 2, 3, 4, 5], [2, 3, 1, 5, 4]], "int32")}
    _, expected = gradients(make(dropout=0.0), x)
    with keras.RematScope("full"):
        model = make(dropout=0.0)
    _, found = gradients(model, x)
    assert any(path.endswith("content_bias") for path in found)
    assert_close(found, expected, atol=1e-5)


def test_layers(tmp_path):
    embedding = AdaptiveEmbedding(10, 8, 4, [3, 6], 2)
    softmax = AdaptiveSoftmax(embedding, [False, True, True])
    x = embedding(np.array([[0, 4, 9]]))
    total = np.exp(array(softmax(x))).sum(axis=-1)
    assert_close(total, np.ones((1, 3)), atol=1e-6)
    again = AdaptiveSoftmax.from_config(softmax.get_config())
    assert again.get_config() == softmax.get_config()
    for tied in ("x", [1], [True, True]):
        with pytest.raises(ValueError, match="tied_projections=.* for each of 1 clusters"):
            TransformerXLLM(make(), tied_projections=tied)
    for cutoffs in (5, "a"):
        with pytest.raises(ValueError, match="cutoffs=.* must be a list"):
            make(cutoffs=cutoffs)
    with pytest.raises(ValueError, match=r"cutoffs.*2\.5"):
        make(cutoffs=[2.5])
    with pytest.raises(ValueError, match=r"cutoffs=\[6, 3\] .* increasing .*=10"):
        AdaptiveEmbedding(10, 8, cutoffs=[6, 3])
    with pytest.raises(ValueError, match=r"embedding_dim=2 .* division=4 .*; use fewer cutoffs"):
        AdaptiveEmbedding(10, 8, 2, [3, 6], 4)
    with pytest.raises(ValueError, match="for each of 3 clusters"):
        AdaptiveSoftmax(embedding, [True])


def test_misuse():
    backbone = make()
    model = TransformerXLLM(backbone, characters="abcdef")
    memory = backbone({"token_ids": np.ones((2, 3), "int32")})["memory"]
    with pytest.raises(ValueError, match=r"3 texts need \(3, 2, tokens, 16\)"):
        model.read_on({"token_ids": np.ones((3, 3), "int32")}, memory)
    for text in ("", "a"):
        with pytest.raises(ValueError, match=f"text has {len(text)} tokens"):
            model.evaluate_stream(text)
    with pytest.raises(ValueError, match="Character 2 of the text, 'z'"):
        model.evaluate_stream("abz")
    with pytest.raises(ValueError, match=r"text must be a string or an array of ids.*\(1, 2\)"):
        model.evaluate_stream([["a", "b"]])
    with pytest.raises(ValueError, match="from 0 to 12.* are 0 to 11"):
        model.evaluate_stream([0, 12])
    with pytest.raises(ValueError, match="segment=0 must be"):
        model.evaluate_stream("abc", segment=0)
    with pytest.raises(ValueError, match="text has 9 tokens.*needs 17; reduce"):
        model.fit_stream(np.zeros(9, "int32"), segment=8, batch_size=2)
    model.compile(adversarial="awp")
    with pytest.raises(ValueError, match=r"adversarial='awp', which has no effect in fit_stream"):
        model.fit_stream(np.zeros(99, "int32"), segment=8, batch_size=2)
    with pytest.raises(ValueError, match="does not support a beam search"):
        model.generate("ab", sampler="beam")
    with pytest.raises(ValueError, match="text has no tokens"):
        model.generate("")
    with pytest.raises(ValueError, match="no `characters`.*characters=..."):
        TransformerXLLM(backbone).evaluate_stream("abc")
    with pytest.raises(ValueError, match="no argument 'clamp_len'"):
        make(clamp_len=3)
    with pytest.raises(ValueError, match="same_length=True.*memory_length=0 tokens; set"):
        make(same_length=True, memory_length=0)
    # A segment may be longer than the memory and than the distances that the model distinguishes.
    model = TransformerXLLM(make(clamp_length=2, memory_length=3))
    assert 0 < model.evaluate_stream(np.arange(12), segment=12) < 20
