"""ELMo compared with bilm-tf's outputs from AllenNLP's own tests; files, states, presets."""

import json
import os
import shutil
import zipfile

import h5py
import keras
import numpy as np
import pytest
import real_data

import kerasbert
from kerasbert.layers.elmo import CharacterEncoder, ProjectedLSTMCell, ProjectedLSTMs
from kerasbert.lineage import ElmoBackbone, ElmoEmbedder
from kerasbert.lineage.elmo.characters import character_ids
from tests.contracts import array, assert_close, perturb, tiny_backbone

SENTENCES = [["A", "dog", "barks", "."], ["Größe", "日本語"], ["x" * 80]]


def make(**settings):
    keras.utils.set_random_seed(1)
    sizes = {"num_layers": 2, "units": 8, "projection_dim": 4, "character_dim": 3}
    return perturb(ElmoBackbone(**{**sizes, "filters": [(1, 4), (2, 6)], **settings}))


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """The folder of a model and of bilm-tf's outputs for ten batches of three sentences."""
    folder = tmp_path_factory.mktemp("elmo")
    with zipfile.ZipFile(real_data.or_skip(lambda: real_data.archive(real_data.ALLENNLP))) as wheel:
        for name in wheel.namelist():
            if name.startswith("allennlp/tests/fixtures/elmo/") and "config" not in name:
                with wheel.open(name) as source:
                    with open(folder / os.path.basename(name), "wb") as copy:
                        shutil.copyfileobj(source, copy)
    return folder


@pytest.mark.backends("tensorflow")
@pytest.mark.peers
def test_equals_bilm_tf(golden):
    """All ten batches, each with the state of the previous one."""
    backbone = ElmoBackbone.from_files(golden / "options.json", golden / "lm_weights.hdf5")
    batches = zip(*json.loads((golden / "sentences.json").read_text()))
    sentences = [sentence for batch in batches for sentence in batch]
    files = [h5py.File(golden / f"lm_embeddings_{k}.hdf5") for k in range(3)]
    wanted = [np.concatenate(file[str(i)][()], axis=-1) for i in range(10) for file in files]
    found = ElmoEmbedder(backbone, layers="last").embed(sentences, stateful=True, batch_size=3)
    assert len(found) == len(wanted) == 30
    for ours, theirs in zip(found, wanted):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)
    alone = ElmoEmbedder(backbone, layers="last").embed(sentences, batch_size=3)
    # The first batch has no previous state, the others do.
    np.testing.assert_allclose(alone[0], wanted[0], atol=2e-6)
    assert max(np.abs(ours - theirs).max() for ours, theirs in zip(alone[3:], wanted[3:])) > 1e-3


@pytest.mark.peers
def test_writes_what_bilm_tf_wrote(golden, tmp_path):
    backbone = ElmoBackbone.from_files(golden / "options.json", golden / "lm_weights.hdf5")
    backbone.to_files(tmp_path / "options.json", tmp_path / "weights.hdf5")
    ours, theirs = (
        json.loads((folder / "options.json").read_text()) for folder in (tmp_path, golden)
    )
    assert ours == theirs
    with (
        h5py.File(tmp_path / "weights.hdf5") as ours,
        h5py.File(golden / "lm_weights.hdf5") as file,
    ):
        names = []
        file.visititems(lambda name, x: names.append(name) if isinstance(x, h5py.Dataset) else None)
        assert len(names) == 33
        for name in names:
            np.testing.assert_array_equal(ours[name][()], file[name][()])


@pytest.mark.peers
def test_words_equal_bilm_tf(golden):
    backbone = ElmoBackbone.from_files(golden / "options.json", golden / "lm_weights.hdf5")
    words = (golden / "vocab_test.txt").read_text().strip().split("\n")
    vectors = ElmoEmbedder(backbone, layers="tokens").embed([[word] for word in words])
    with h5py.File(golden / "elmo_token_embeddings.hdf5") as file:
        wanted = file["embedding"][()]
    assert len(words) == len(wanted) == 458
    # bilm-tf reads these tokens as sentence boundaries, we read them as words.
    ends = ("<S>", "</S>")
    for word, vector, theirs in zip(words, vectors, wanted):
        if word not in ends:
            np.testing.assert_allclose(vector[0, :16], theirs, atol=2e-6, err_msg=word)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", "torch")
def test_padding_and_lengths():
    """A sentence has the same embeddings alone and in a batch with longer sentences; the layers are
    in order.
    """
    backbone = make()
    embedder = ElmoEmbedder(backbone, layers="all")
    together = embedder.embed(SENTENCES)
    for sentence, vectors in zip(SENTENCES, together):
        assert vectors.shape == (len(sentence), 3, 8)
        assert_close(embedder.embed([sentence])[0], vectors, atol=1e-6)
        np.testing.assert_array_equal(vectors[:, 0, :4], vectors[:, 0, 4:])
    last = ElmoEmbedder(backbone, layers="last").embed(SENTENCES)
    mixed = ElmoEmbedder(backbone).embed(SENTENCES)
    for whole, one, mix in zip(together, last, mixed):
        assert_close(one, whole[:, -1], atol=1e-6)
        assert_close(mix, whole.mean(axis=1), atol=1e-6)
    assert_close(embedder.embed("A dog barks ."), together[0], atol=1e-6)
    assert embedder.embed([[]])[0].shape == (0, 3, 8)


def test_states():
    """A stateful batch starts with the state of the previous one; each call starts without one."""
    backbone = make()
    embedder = ElmoEmbedder(backbone, layers="last")
    embedder.run_eagerly = True
    halves = embedder.embed([["a", "b"], ["a", "b"]], stateful=True, batch_size=1)
    assert np.abs(halves[0] - halves[1]).max() > 1e-3
    again = embedder.embed([["a", "b"]], stateful=True)
    assert_close(again[0], halves[0], atol=0)
    assert_close(again[0], embedder.embed([["a", "b"]])[0], atol=1e-6)


@pytest.mark.backends("tensorflow", "jax", "torch")
def test_numbers_of_the_cell():
    """The numbers of the cell are compared with the formulas."""
    random = np.random.default_rng(0)
    cell = ProjectedLSTMCell(3, 2, cell_clip=0.5, projection_clip=0.3)
    cell.build((None, 4))
    for weight in cell.weights:
        weight.assign(random.normal(size=weight.shape))
    kernel, bias, projection = (array(weight) for weight in cell.weights)
    x, h, c = random.normal(size=(1, 4)), random.normal(size=(1, 2)), random.normal(size=(1, 3))
    i, j, f, o = np.split(np.concatenate([x, h], 1) @ kernel + bias, 4, axis=1)

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    memory = np.clip(sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j), -0.5, 0.5)
    output = np.clip((sigmoid(o) * np.tanh(memory)) @ projection, -0.3, 0.3)
    found, states = cell(*(keras.tree.map_structure(np.float32, part) for part in (x, [h, c])))
    assert_close(found, output.astype("float32"), atol=1e-6)
    assert_close(states, [output.astype("float32"), memory.astype("float32")], atol=1e-6)


def test_characters():
    ids, mask = character_ids([["é", "x" * 60]], 50)
    assert ids.shape == (1, 4, 50) and mask.tolist() == [[1, 1, 1, 1]]
    assert ids[0, 1, :5].tolist() == [259, 0xC3 + 1, 0xA9 + 1, 260, 261]
    assert ids[0, 2, 49] == 260 and (ids[0, 2, 1:49] == ord("x") + 1).all()


def test_saving(tmp_path):
    backbone = make()
    embedder = ElmoEmbedder(backbone)
    embedder.mix.gamma.assign(2.0)
    embedder.run_eagerly = True
    wanted = embedder.embed(SENTENCES)
    embedder.save(tmp_path / "elmo.keras")
    embedder.save_to_preset(str(tmp_path / "embedder"))
    for loaded in (
        keras.models.load_model(tmp_path / "elmo.keras"),
        ElmoEmbedder.from_preset(str(tmp_path / "embedder")),
    ):
        loaded.run_eagerly = True
        assert_close(loaded.embed(SENTENCES), wanted, atol=1e-6)
    backbone.save_to_preset(str(tmp_path / "preset"))
    again = ElmoBackbone.from_preset(str(tmp_path / "preset"))
    ids, mask = character_ids(SENTENCES)
    features = {"character_ids": ids, "padding_mask": mask}
    assert_close(again(features), backbone(features), atol=0)
    for layer in (
        CharacterEncoder(4, [(1, 2)]),
        ProjectedLSTMCell(3, 2, 1.0),
        ProjectedLSTMs(2, 3, 2, go_backwards=True),
    ):
        assert type(layer).from_config(layer.get_config()).get_config() == layer.get_config()


@pytest.mark.backends("torch")
def test_learns():
    """Gradients reach the characters, and `fit` runs on arrays."""
    keras.utils.set_random_seed(0)
    embedder = ElmoEmbedder(make())
    ids, mask = character_ids(SENTENCES)
    features = {"character_ids": ids, "padding_mask": mask}
    embedder.compile(keras.optimizers.Adam(0.01), "mse")
    before = array(embedder.backbone.token_encoder.embeddings)
    y = np.ones((*mask.shape, 8), "float32")
    losses = embedder.fit(features, y, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert np.abs(array(embedder.backbone.token_encoder.embeddings) - before).max() > 0


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", "torch")
def test_half_precision():
    whole, half = make(), make(dtype="mixed_bfloat16")
    found = ElmoEmbedder(half).embed(SENTENCES)
    for ours, wanted in zip(found, ElmoEmbedder(whole).embed(SENTENCES)):
        assert ours.dtype == "float32"
        assert_close(ours, wanted, atol=0.05)


@pytest.mark.slow
def test_wrong_use(tmp_path):
    embedder = ElmoEmbedder(make())
    for wrong in (3, None, b"a", {"a": 1}):
        with pytest.raises(ValueError, match="expects sentences as strings or lists"):
            embedder.embed(wrong)
    with pytest.raises(ValueError, match="position 1 is 3"):
        embedder.embed(["a", 3])
    with pytest.raises(ValueError, match="no sentences"):
        embedder.embed([])
    with pytest.raises(ValueError, match="layers='first' is unknown; use one of scalar_mix"):
        ElmoEmbedder(make(), layers="first")
    with pytest.raises(ValueError, match="no argument 'unit'; did you mean units"):
        make(unit=3)
    for name, wrong in (
        ("filters", "ab"),
        ("filters", []),
        ("filters", [(1,)]),
        ("filters", [3]),
        ("filters", [(-1, 4)]),
        ("filters", [(60, 4)]),
        ("cell_clip", "3"),
        ("projection_clip", -3),
        ("num_highways", 1.5),
        ("skip_connections", "no"),
    ):
        with pytest.raises(ValueError, match=f"{name}=.* (has to|must) be"):
            make(**{name: wrong})
    for call in (embedder.quantize, embedder.backbone.quantize):
        with pytest.raises(ValueError, match="ELMo's convolutions and LSTMs"):
            call("int8")
    with pytest.raises(ValueError, match="attention projections, and ELMo has none"):
        embedder.backbone.enable_lora(2)
    with pytest.raises(ValueError, match="a BertBackbone, but ElmoEmbedder needs"):
        ElmoEmbedder(tiny_backbone())
    embedder.save_to_preset(tmp_path / "preset")
    for source in (embedder, str(tmp_path / "preset")):
        with pytest.raises(ValueError, match="ElmoEmbedder"):
            kerasbert.convert(source, tmp_path / "theirs")
    ids, mask = character_ids([["a"]] * 3)
    _, states = embedder.backbone.read_on({"character_ids": ids[:2], "padding_mask": mask[:2]})
    with pytest.raises(ValueError, match="states are of 2 texts.* have 3"):
        embedder.backbone.read_on({"character_ids": ids, "padding_mask": mask}, states)
    embedder.backbone.to_files(tmp_path / "options.json", tmp_path / "w.hdf5")
    with pytest.raises(FileNotFoundError, match="none.hdf5' is missing; download it again"):
        ElmoBackbone.from_files(tmp_path / "options.json", tmp_path / "none.hdf5")
    (tmp_path / "options.json").write_text('{"lstm": {}}')
    with pytest.raises(ValueError, match="lacks 'n_layers' in 'lstm'"):
        ElmoBackbone.from_files(tmp_path / "options.json", tmp_path / "none.hdf5")


def test_files_that_do_not_fit(tmp_path):
    options = {
        "lstm": {"n_layers": 1, "dim": 3, "projection_dim": 2, "use_skip_connections": True},
        "char_cnn": {
            "filters": [[1, 2]],
            "embedding": {"dim": 2},
            "activation": "tanh",
            "max_characters_per_token": 50,
        },
    }
    (tmp_path / "options.json").write_text(json.dumps(options))
    shapes = {"char_embed": (261, 2), "CNN/W_cnn_0": (1, 1, 2, 2), "CNN/b_cnn_0": (2,)}
    shapes |= {"CNN_proj/W_proj": (2, 2), "CNN_proj/b_proj": (2,)}
    for i in range(2):
        prefix = f"RNN_{i}/RNN/MultiRNNCell/Cell0/LSTMCell/"
        shapes |= {f"{prefix}W_0": (4, 12), f"{prefix}B": (12,), f"{prefix}W_P_0": (3, 2)}

    def read(**changed):
        path = tmp_path / "weights.hdf5"
        with h5py.File(path, "w") as file:
            for name, shape in {**shapes, **changed}.items():
                if shape is not None:
                    file[name] = np.ones(shape, "float32")
        return ElmoBackbone.from_files(tmp_path / "options.json", path)

    assert read().count_params() == 522 + 2 + 4 + 4 + 2 + 2 * (48 + 12 + 6) + 2
    with pytest.raises(ValueError, match=r"'char_embed' in .* has the shape \(262, 3\), but"):
        read(char_embed=(261, 3))
    (tmp_path / "text").write_text("no HDF5")
    with pytest.raises(ValueError, match="text' is truncated or not an HDF5 file"):
        ElmoBackbone.from_files(tmp_path / "options.json", tmp_path / "text")
    for wrong, message in (
        ({"dim": 0}, "dim=0 in .* must be a whole number of at least 1"),
        ({"cell_clip": "3"}, "cell_clip='3' in .* must be a number above 0"),
    ):
        changed = {**options, "lstm": {**options["lstm"], **wrong}}
        (tmp_path / "changed.json").write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=message):
            ElmoBackbone.from_files(tmp_path / "changed.json", tmp_path / "weights.hdf5")
    changed = {**options, "char_cnn": {**options["char_cnn"], "filters": [3]}}
    (tmp_path / "changed.json").write_text(json.dumps(changed))
    with pytest.raises(ValueError, match=r"filters=\[3\] in .* must be a list of .*\[width, count"):
        ElmoBackbone.from_files(tmp_path / "changed.json", tmp_path / "weights.hdf5")
    with pytest.raises(ValueError, match="lacks 'CNN_proj/b_proj'"):
        read(**{"CNN_proj/b_proj": None})
    with pytest.raises(ValueError, match="has CNN_high_0/W_carry, for which the options"):
        read(**{"CNN_high_0/W_carry": (2, 2)})
