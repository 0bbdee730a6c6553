"""ELMo's pre-training: labels, losses, learning, files, and serving of its embeddings."""

import h5py
import keras
import numpy as np
import pytest

from kerasbert import export_serving
from kerasbert.lineage import (
    ElmoBackbone,
    ElmoEmbedder,
    ElmoPretrainer,
    character_ids,
    word_vocabulary,
)
from tests.contracts import array, assert_close, perturb
from tests.export import tiny

SENTENCES = ["A dog barks .", "", "Größe 日本語", ["A", "cat", "x" * 80], "a A dog A cat A"] * 2


def make(vocabulary=None, **settings):
    keras.utils.set_random_seed(1)
    sizes = {"num_layers": 2, "units": 8, "projection_dim": 4, "character_dim": 3}
    backbone = ElmoBackbone(**{**sizes, "filters": [(1, 4), (2, 6)], **settings})
    return perturb(ElmoPretrainer(backbone, vocabulary or word_vocabulary(SENTENCES)))


def words_of(sentence):
    return sentence.split() if isinstance(sentence, str) else sentence


def losses_by_hand(model, sentences):
    """Return the negative log-probabilities of the next and of the previous tokens."""
    numbers = {word: i for i, word in enumerate(model.vocabulary)}
    found = [], []
    for sentence in sentences:
        words = words_of(sentence)
        ids, mask = character_ids([words], model.backbone.characters_per_token)
        outputs = model({"character_ids": ids, "padding_mask": mask})
        labels = [0, *(numbers.get(word, 2) for word in words), 1]
        for name, losses, shift in zip(("forward_logits", "backward_logits"), found, (1, -1)):
            logits = array(outputs[name])[0].astype("float64")
            logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            for place in range(len(labels)):
                if 0 <= place + shift < len(labels):
                    losses.append(-logs[place, labels[place + shift]])
    return found


@pytest.mark.backends("torch")
def test_perplexity_and_loss():
    model = make(word_vocabulary(SENTENCES, 6))
    forward, backward = (np.mean(losses) for losses in losses_by_hand(model, SENTENCES))
    wanted = {"forward": forward, "backward": backward, "mean": (forward + backward) / 2}
    for size in (3, 32):
        found = model.perplexity(SENTENCES, batch_size=size)
        assert found == pytest.approx({k: np.exp(v) for k, v in wanted.items()}, rel=1e-5)
    logs = model.evaluate(SENTENCES, batch_size=4, verbose=0, return_dict=True)
    assert logs["forward_logits_perplexity"] == pytest.approx(np.exp(forward), rel=1e-5)
    logs = model.evaluate(SENTENCES, batch_size=32, verbose=0, return_dict=True)
    assert logs["loss"] == pytest.approx(wanted["mean"], rel=1e-5)


@pytest.mark.backends("torch")
def test_learns(tmp_path):
    """Both directions, and the characters below; a saved model continues as before."""
    model = make(dropout=0.1)
    model.compile(keras.optimizers.Adam(0.02))
    before = model.perplexity(SENTENCES)
    characters = array(model.backbone.token_encoder.embeddings)
    history = model.fit(
        SENTENCES, batch_size=5, epochs=8, validation_data=SENTENCES[:3], verbose=0
    ).history
    after = model.perplexity(SENTENCES)
    assert all(after[name] < 0.8 * before[name] for name in ("forward", "backward"))
    assert "val_loss" in history
    assert np.abs(array(model.backbone.token_encoder.embeddings) - characters).max() > 1e-3
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.perplexity(SENTENCES) == pytest.approx(after, rel=1e-6)
    assert loaded.optimizer.iterations == model.optimizer.iterations
    model.save_to_preset(str(tmp_path / "preset"))
    again = ElmoPretrainer.from_preset(str(tmp_path / "preset"))
    assert again.perplexity(SENTENCES) == pytest.approx(model.perplexity(SENTENCES), rel=1e-6)
    embedder = ElmoEmbedder(model.backbone)
    assert embedder.embed("A dog").shape == (2, 8)


def test_half_precision():
    whole, half = make(), make(dtype="mixed_bfloat16")
    whole.run_eagerly = half.run_eagerly = True
    wanted = whole.perplexity(SENTENCES)
    assert half.perplexity(SENTENCES) == pytest.approx(wanted, rel=0.1)
    assert half.output["forward_logits"].dtype == "float32"


def test_files(tmp_path):
    """Files as bilm-tf's trainer writes them, including the softmax, whose matrix has a row per
    word.
    """
    model = make()
    paths = [tmp_path / name for name in ("options.json", "weights.hdf5", "vocabulary.txt")]
    model.to_files(*paths)
    again = ElmoPretrainer.from_files(*paths)
    model.run_eagerly = again.run_eagerly = True
    assert again.vocabulary == model.vocabulary
    assert again.perplexity(SENTENCES) == pytest.approx(model.perplexity(SENTENCES), rel=1e-6)
    with h5py.File(paths[1]) as file:
        assert file["softmax/W"].shape == (len(model.vocabulary), 4)
        assert file["char_embed"].shape == (261, 3)
    # Without the pre-training head, the softmax is left out.
    embedder = ElmoEmbedder(ElmoBackbone.from_files(*paths[:2]), layers="last")
    theirs = ElmoEmbedder(model.backbone, layers="last")
    embedder.run_eagerly = theirs.run_eagerly = True
    assert_close(embedder.embed(SENTENCES), theirs.embed(SENTENCES), atol=1e-6)
    paths[2].write_text("<S>\n</S>\n<UNK>\na\n")
    with pytest.raises(ValueError, match=r"'softmax/W' in .* \(4, 12\), but .* \(4, 4\)"):
        ElmoPretrainer.from_files(*paths)


def test_dropout():
    """Dropout is applied only in training, to the inputs of each layer and to the outputs."""
    model = make(dropout=0.5)
    ids, mask = character_ids([["a", "dog"]])
    features = {"character_ids": ids, "padding_mask": mask}
    assert_close(model(features), model(features), atol=0)
    one, other = (
        array(model.backbone(features, training=True)["sequence_output"]) for _ in range(2)
    )
    assert np.abs(one - other).max() > 1e-3
    plain = make()
    assert_close(plain.backbone(features, training=True), plain.backbone(features), atol=1e-6)


def test_vocabulary():
    assert word_vocabulary(["b a", "a <UNK>"]) == ["<S>", "</S>", "<UNK>", "a", "b"]
    assert word_vocabulary(["b a", "a"], 4) == ["<S>", "</S>", "<UNK>", "a"]


def test_wrong_use():
    model = make()
    model.run_eagerly = True
    with pytest.raises(ValueError, match="with .'a'. and must start with .'<S>', '</S>'"):
        make(["a"])
    with pytest.raises(ValueError, match="'a' more than once"):
        make(["<S>", "</S>", "<UNK>", "a", "a"])
    with pytest.raises(ValueError, match="vocabulary_size=2 "):
        word_vocabulary(["a"], 2)
    with pytest.raises(ValueError, match="sentences must be a list, got one string"):
        model.fit("A dog")
    with pytest.raises(ValueError, match="position 1 is 3"):
        model.perplexity(["a", 3])
    with pytest.raises(ValueError, match="batch_size=0 "):
        model.fit(["a"], batch_size=0)
    with pytest.raises(ValueError, match="no argument 'vocab'; "):
        ElmoPretrainer(model.backbone, model.vocabulary, vocab=[])
    assert model.perplexity(["a"]).keys() == {"forward", "backward", "mean"}


@pytest.mark.slow
@pytest.mark.parametrize("layers", ["scalar_mix", "all"])
def test_served(tmp_path, layers, monkeypatch):
    """The export answers like `embed`, which `export_serving` checks; also for single texts."""
    import tensorflow as tf

    tiny.write_here(monkeypatch)
    embedder = ElmoEmbedder(make(dtype="mixed_bfloat16").backbone, layers=layers)
    path = export_serving(embedder, str(tmp_path / "elmo"), warmup=["A dog"])
    answer = tf.saved_model.load(path).signatures["serving_default"]
    found = {k: x.numpy() for k, x in answer(text=tf.constant([" A  dog", ""])).items()}
    assert found["word"].tolist() == [[b"A", b"dog"], [b"", b""]]
    assert found["start"].tolist() == [[1, 4], [-1, -1]]
    assert found["count"].tolist() == [2, 0]
    whole = ElmoEmbedder(make().backbone, layers=layers)
    assert_close(found["embedding"][0], whole.embed("A dog"), atol=1e-5)
    assert not found["embedding"][1].any()
