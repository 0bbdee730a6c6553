"""Presets: built-in names, saved presets, arguments, and errors."""

import functools
import json
import os
import warnings

import keras
import numpy as np
import pytest

from kerasbert import builtin_presets, convert
from kerasbert.checkpoints import hub, names
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.next_sentence_predictor.model import BertNextSentencePredictor
from kerasbert.heads.text_classifier.model import BertTextClassifier
from kerasbert.heads.text_classifier.preprocessor import BertTextClassifierPreprocessor
from kerasbert.heads.text_embedder.model import BertTextEmbedder
from kerasbert.heads.token_classifier.model import BertTokenClassifier
from kerasbert.tokenizers import BertTokenizer
from tests.contracts import bert_tokenizer

SIZES = {
    "vocabulary_size": 9,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 12,
    "max_sequence_length": 16,
}
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "."]


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def classifier(**settings):
    preprocessor = BertTextClassifierPreprocessor(bert_tokenizer(TOKENS), sequence_length=12)
    backbone = BertBackbone(**SIZES)
    settings = {"labels": ["no", "yes"], "preprocessor": preprocessor, **settings}
    return BertTextClassifier(backbone, **settings)


@functools.cache
def bare():
    """A classifier without a preprocessor, for tests that do not change it."""
    return classifier(preprocessor=None)


def assert_same_weights(ours, theirs):
    assert [weight.path for weight in ours.weights] == [weight.path for weight in theirs.weights]
    for a, b in zip(ours.weights, theirs.weights, strict=True):
        np.testing.assert_array_equal(numpy(a), numpy(b))


# --- presets of kerasbert ---


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("shard", [None, 2e-6])
def test_backbone_goes_there_and_back(tmp_path, shard):
    backbone = BertBackbone.from_family("modernbert", **SIZES)
    directory = str(tmp_path / "preset")
    backbone.save_to_preset(directory, max_shard_size=shard)
    assert os.path.exists(os.path.join(directory, "model.weights.json")) == (shard is not None)
    again = BertBackbone.from_preset(directory)
    assert again.get_config() == {**backbone.get_config(), "name": again.name}
    assert_same_weights(again, backbone)
    other = BertBackbone.from_preset(directory, load_weights=False, dropout=0.3)
    assert other.dropout == 0.3
    gap = numpy(other.token_embedding.embeddings) - numpy(backbone.token_embedding.embeddings)
    assert np.abs(gap).max() > 0


@pytest.mark.backends("tensorflow", "torch")
def test_task_goes_there_and_back(tmp_path):
    task = classifier(dropout=0.25)
    directory = str(tmp_path / "preset")
    task.save_to_preset(directory)
    again = BertTextClassifier.from_preset(directory)
    assert_same_weights(again, task)
    assert (again.labels, again.dropout) == (["no", "yes"], 0.25)
    assert again.preprocessor.sequence_length == 12
    texts = ["Good film.", "bad"]
    task.run_eagerly = again.run_eagerly = True
    np.testing.assert_array_equal(again.predict(texts, verbose=0), task.predict(texts, verbose=0))
    assert_same_weights(BertBackbone.from_preset(directory), task.backbone)
    assert BertTokenizer.from_preset(directory).get_vocabulary() == TOKENS
    short = BertTextClassifier.from_preset(directory, sequence_length=8, truncate="only_second")
    assert short.preprocessor.sequence_length == 8
    assert short.preprocessor.truncate == "only_second"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="New, random")
        BertTextClassifier.from_preset(directory, load_weights=False)


@pytest.mark.backends("torch")
def test_trained_task_leaves_its_optimizer_behind(tmp_path):
    task = classifier()
    task.fit(["good film", "bad film"], ["yes", "no"], verbose=0)
    before, after = str(tmp_path / "new"), str(tmp_path / "trained")
    classifier().save_to_preset(before)
    task.save_to_preset(after)
    sizes = [os.path.getsize(os.path.join(path, "task.weights.h5")) for path in (before, after)]
    assert sizes[0] == sizes[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert_same_weights(BertTextClassifier.from_preset(after), task)


@pytest.mark.backends("tensorflow", "torch")
def test_tokenizer_and_preprocessor_saved_alone(tmp_path):
    preprocessor = classifier().preprocessor
    preprocessor.save_to_preset(str(tmp_path / "both"))
    preprocessor.tokenizer.save_to_preset(str(tmp_path / "one"))
    again = BertTextClassifierPreprocessor.from_preset(str(tmp_path / "both"))
    assert again.get_config() == {**preprocessor.get_config(), "name": again.name}
    for name in ("one", "both"):
        assert BertTokenizer.from_preset(str(tmp_path / name)).get_vocabulary() == TOKENS
    again = BertTextClassifierPreprocessor.from_preset(str(tmp_path / "one"), sequence_length=7)
    assert again.sequence_length == 7
    with pytest.raises(ValueError, match="config.json"):
        BertBackbone.from_preset(str(tmp_path / "both"))


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("whole", [True, False])
def test_new_head_on_a_preset_of_ours(tmp_path, whole):
    task = classifier(preprocessor=None, multi_label=True)
    (task if whole else task.backbone).save_to_preset(str(tmp_path))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again = BertTextClassifier.from_preset(str(tmp_path), num_classes=3, preprocessor=None)
    messages = [str(w.message) for w in caught if "New, random weights" in str(w.message)]
    assert messages == ["New, random weights that need training: logits/bias, logits/kernel."]
    assert caught[-1].filename == __file__
    assert (again.num_classes, again.labels, again.multi_label) == (3, None, False)
    assert_same_weights(again.backbone, task.backbone)


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("cls", [BertTokenClassifier, BertNextSentencePredictor])
def test_another_task_brings_no_preprocessor_of_its_own(tmp_path, cls):
    preprocessor = cls.preprocessor_cls(bert_tokenizer(TOKENS), sequence_length=12)
    settings = {"labels": ["O", "B-A"]} if cls is BertTokenClassifier else {}
    cls(BertBackbone(**SIZES), preprocessor=preprocessor, **settings).save_to_preset(str(tmp_path))
    with pytest.warns(UserWarning, match="New, random weights"):
        task = BertTextClassifier.from_preset(str(tmp_path), labels=["no", "yes"])
    assert type(task.preprocessor) is BertTextClassifierPreprocessor
    assert task.preprocessor.sequence_length == 12
    task.run_eagerly = True
    assert task.predict(["good film", "bad"], verbose=0).shape == (2, 2)


@pytest.mark.backends("tensorflow", "torch")
def test_no_head_in_a_preset_of_ours(tmp_path):
    bare().backbone.save_to_preset(str(tmp_path))
    with pytest.raises(ValueError, match="has no head for a .*; pass num_classes=2"):
        BertTextClassifier.from_preset(str(tmp_path), preprocessor=None)


@pytest.mark.slow
def test_quantized_preset_of_ours(tmp_path):
    backbone = BertBackbone(**SIZES)
    backbone.quantize("int8")
    backbone.save_to_preset(str(tmp_path))
    inputs = {"token_ids": np.arange(9)[None]}
    again = BertBackbone.from_preset(str(tmp_path))
    np.testing.assert_allclose(
        numpy(again(inputs)["sequence_output"]),
        numpy(backbone(inputs)["sequence_output"]),
        atol=1e-6,
    )


@pytest.mark.backends("torch")
def test_trains_after_loading(tmp_path):
    """Weights that were never initialized at random are ordinary variables."""
    task = classifier(preprocessor=None)
    task.save_to_preset(str(tmp_path))
    again = BertTextClassifier.from_preset(str(tmp_path), preprocessor=None)
    inputs = {name: np.ones((4, 5), "int32") for name in again.input}
    before = numpy(again.backbone.token_embedding.embeddings)
    again.fit(inputs, np.array([0, 1, 0, 1]), epochs=1, verbose=0)
    assert np.abs(numpy(again.backbone.token_embedding.embeddings) - before).max() > 0
    if keras.backend.backend() == "torch":
        assert len(list(again.parameters())) >= len(again.trainable_weights)


@pytest.mark.backends("tensorflow", "torch")
def test_loading_draws_no_random_values(tmp_path, monkeypatch):
    backbone = bare().backbone
    backbone.save_to_preset(str(tmp_path))

    def drawn(*arguments, **settings):
        raise AssertionError("drawn at random")

    monkeypatch.setattr(keras.random, "truncated_normal", drawn)
    monkeypatch.setattr(keras.src.backend.random, "truncated_normal", drawn)
    assert_same_weights(BertBackbone.from_preset(str(tmp_path)), backbone)


class _Full(OSError):
    pass


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("existing", [False, True])
def test_a_save_that_fails_leaves_nothing(tmp_path, monkeypatch, existing):
    directory = tmp_path / "preset"
    if existing:
        bare().save_to_preset(str(directory))
    before = {path.name: path.read_bytes() for path in directory.glob("*")}

    def full(*arguments, **settings):
        raise _Full("No space left on device")

    monkeypatch.setattr(BertBackbone, "save_weights", full)
    with pytest.raises(_Full):
        classifier(preprocessor=None).save_to_preset(str(directory))
    assert {path.name: path.read_bytes() for path in directory.glob("*")} == before
    assert [path.name for path in tmp_path.iterdir()] == (["preset"] if existing else [])


@pytest.mark.backends("torch")
def test_a_name_of_a_folder_that_is_empty(tmp_path, monkeypatch):
    """An empty name used to mean the current folder."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="preset_dir='' names no folder"):
        bare().save_to_preset("")
    with pytest.raises(ValueError, match="target='' names no folder"):
        convert(bare(), "")
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o077, 0o002])
def test_modes_of_a_preset_follow_the_umask(umask, tmp_path):
    before = os.umask(umask)
    try:
        bare().save_to_preset(str(tmp_path / "preset"))
        convert(str(tmp_path / "preset"), tmp_path / "google", format="google", task="encoder")
        convert(str(tmp_path / "preset"), tmp_path / "huggingface")
    finally:
        os.umask(before)
    for name in ("preset", "google", "huggingface"):
        assert os.stat(tmp_path / name).st_mode & 0o777 == 0o777 & ~umask
        for path in (tmp_path / name).iterdir():
            assert path.stat().st_mode & 0o777 == 0o666 & ~umask, path


@pytest.mark.parametrize("keras_hub", [False, True])
def test_a_full_disk_does_not_end_the_process(keras_hub, tmp_path):
    """h5py used to end the process if the weight file could not grow."""
    resource = pytest.importorskip("resource")  # Not on Windows.
    task = bare()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"no room for [\d,]+ bytes of weights; free some space"):
            if keras_hub:
                convert(task.backbone, tmp_path / "preset", format="keras_hub")
            else:
                task.save_to_preset(tmp_path / "preset")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.backends("tensorflow", "torch")
def test_saving_over_a_file(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="it is a file, not a folder"):
        bare().backbone.save_to_preset(str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize(
    "file", ["model.weights.h5", "task.weights.h5", "task.json", "config.json"]
)
def test_cut_off_and_missing(tmp_path, file):
    bare().save_to_preset(str(tmp_path))
    path = tmp_path / file
    content = path.read_bytes()
    message = "is not valid JSON" if file.endswith("json") else "The preset in .*; save or"
    for damaged in (b"", content[: len(content) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=message):
            BertTextClassifier.from_preset(str(tmp_path), preprocessor=None)
    if file.endswith("h5"):
        path.unlink()
        with pytest.raises(ValueError, match="The preset in .*; save or"):
            BertTextClassifier.from_preset(str(tmp_path), preprocessor=None)


# --- built-in names ---


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "torch")
def test_architecture_of_a_built_in_name_needs_no_download(monkeypatch):
    def fetch(*arguments):
        raise AssertionError("fetched")

    monkeypatch.setattr(hub, "fetch", fetch)
    for name in ("electra_small_generator_uncased_en", "bert_tiny_en_uncased"):
        backbone = BertBackbone.from_preset(name, load_weights=False)
        assert backbone.count_params() == builtin_presets()[name]["parameters"], name
    task = BertTextClassifier.from_preset(
        name, load_weights=False, num_classes=2, preprocessor=None, attention_dropout=0.3
    )
    assert task.backbone.attention_dropout == 0.3


def stand_in(monkeypatch, directory, **described):
    described = {
        "name": "some",
        "family": "bert",
        "handle": "hf://org/some",
        "tokenizer": {"class": "BertTokenizer", "lowercase": True},
        "settings": {},
        "sha256": {},
        **described,
    }
    monkeypatch.setattr(names, "builtin_presets", lambda: {"some": described})
    monkeypatch.setattr(hub, "fetch", lambda handle, weights=True: str(directory))


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_settings_of_the_description_win(reference, tmp_path, monkeypatch):
    """In rinna's RoBERTa, positions count from 0, whatever its pad_token_id is."""
    theirs = reference("roberta")
    settings = {"position_offset": 0, "max_sequence_length": 34, "pooler": False}
    stand_in(monkeypatch, theirs.directory, family="roberta", settings=settings)
    backbone = BertBackbone.from_preset("some")
    assert (backbone.position_offset, backbone.max_sequence_length) == (0, 34)
    assert backbone.pooler is False
    table = numpy(backbone.position_embedding_layer.position_embeddings)
    expected = theirs.tensors()["embeddings.position_embeddings.weight"].numpy()
    np.testing.assert_array_equal(table, expected)


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_no_tokenizer_for_a_built_in_name(reference, monkeypatch):
    theirs = reference("bert", "ForSequenceClassification", num_labels=3)
    stand_in(monkeypatch, theirs.directory, tokenizer=None)
    message = "no tokenizer for the vocabulary of 'some'; load it with preprocessor=None"
    for cls in (BertTokenizer, BertTextClassifier, BertTextClassifierPreprocessor):
        with pytest.raises(ValueError, match=message):
            cls.from_preset("some")
    BertTextClassifier.from_preset("some", preprocessor=None)


@pytest.mark.backends("tensorflow", "torch")
def test_every_description_names_what_exists():
    import inspect

    from kerasbert import lineage, tokenizers

    for preset in builtin_presets().values():
        encoder = lineage.CLASSES.get(preset["family"], {None: BertBackbone})[None]
        assert set(preset["settings"]) <= set(inspect.signature(encoder.__init__).parameters)
        if preset["tokenizer"]:
            assert hasattr(tokenizers, preset["tokenizer"]["class"])


# --- names and arguments ---


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize(
    "name, near",
    [
        ("bert_base_en_uncase", "did you mean bert_base_en_uncased"),
        ("bert-base-uncased", "did you mean bert_base"),
        ("bge_smal_en", "did you mean bge_small_en"),
        ("###", "`kerasbert presets` lists the names"),
    ],
)
def test_unknown_name(name, near):
    with pytest.raises(ValueError, match=f"Unknown preset '{name}': it is not a built-in.*{near}"):
        BertBackbone.from_preset(name)


@pytest.mark.backends("tensorflow", "torch")
def test_file_and_empty_directory_and_no_string(tmp_path):
    with pytest.raises(ValueError, match="is not a checkpoint that kerasbert knows"):
        BertBackbone.from_preset(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="is not a checkpoint that kerasbert knows"):
        BertBackbone.from_preset(str(tmp_path))
    with pytest.raises(ValueError, match=r"is a file; pass the preset directory"):
        BertBackbone.from_preset(str(tmp_path / "config.json"))
    with pytest.raises(ValueError, match="must be a name, a handle or a directory, got 3"):
        BertBackbone.from_preset(3)


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_arguments_of_a_task(tmp_path, reference):
    ours = tmp_path / "ours"
    bare().save_to_preset(str(ours))
    foreign = reference("bert", "ForSequenceClassification", num_labels=3).directory
    for directory in (str(ours), foreign):
        task = BertTextClassifier.from_preset(
            directory, preprocessor=None, dropout=0.2, attention_dropout=0.3, dtype="mixed_bfloat16"
        )
        assert (task.dropout, task.backbone.dropout) == (0.2, 0.1)
        assert task.backbone.attention_dropout == 0.3
        assert task.backbone.dtype_policy.name == "mixed_bfloat16"
        assert BertBackbone.from_preset(directory, dropout=0.2).dropout == 0.2
        with pytest.raises(ValueError, match="BertTextClassifier has no argument 'num_clases'; "):
            BertTextClassifier.from_preset(directory, preprocessor=None, num_clases=2)
        with pytest.raises(ValueError, match=r"BertBackbone has no argument 'x'; it takes activa"):
            BertBackbone.from_preset(directory, x=2)
        with pytest.raises(ValueError, match="Set attention_dropout on the backbone that you pass"):
            BertTextClassifier.from_preset(
                directory, backbone=task.backbone, preprocessor=None, attention_dropout=0.3
            )
        with pytest.raises(ValueError, match="Set sequence_length on the preprocessor that you"):
            BertTextClassifier.from_preset(directory, preprocessor=None, sequence_length=8)


# --- texts ---


def hugging_face(reference, target, tokens, family="bert"):
    theirs = reference(family, "ForSequenceClassification", num_labels=3)
    directory = theirs.copy(target)
    with open(os.path.join(directory, "vocab.txt"), "w", encoding="utf-8") as file:
        file.writelines(f"{token}\n" for token in tokens)
    with open(os.path.join(directory, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"do_lower_case": True, "tokenizer_class": "BertTokenizer"}, file)
    return theirs, directory


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_classifies_texts(reference, tmp_path):
    tokens = TOKENS + [f"[unused{i}]" for i in range(90)]
    theirs, directory = hugging_face(reference, tmp_path, tokens)
    task = BertTextClassifier.from_preset(directory)
    assert task.preprocessor.sequence_length == 32
    token_ids = np.array([[2, 5, 7, 8, 3]])
    inputs = {"token_ids": token_ids, "padding_mask": np.ones_like(token_ids)}
    expected = theirs({**inputs, "segment_ids": 0 * token_ids})["logits"]
    np.testing.assert_allclose(task.predict(["Good film."], verbose=0), expected, atol=1e-5)
    preprocessor = BertTextClassifierPreprocessor.from_preset(directory, sequence_length=8)
    assert preprocessor.sequence_length == 8


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_tokenizer_json_alone(reference, tmp_path):
    """transformers 5 saves a tokenizer.json without a vocab.txt."""
    import transformers

    theirs = reference("bert", "ForSequenceClassification", num_labels=3)
    directory = theirs.copy(tmp_path)
    tokens = TOKENS + [f"[unused{i}]" for i in range(90)]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    transformers.BertTokenizer(vocab=vocabulary).save_pretrained(directory)
    assert not os.path.exists(os.path.join(directory, "vocab.txt"))
    task = BertTextClassifier.from_preset(directory)
    assert task.preprocessor.tokenizer("Good film.") == [5, 7, 8]


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_vocabulary_of_the_wrong_size(reference, tmp_path):
    tokens = TOKENS + [f"[unused{i}]" for i in range(100)]
    _, directory = hugging_face(reference, tmp_path, tokens)
    message = "The tokenizer has 109 tokens, but the encoder's vocabulary_size is 99"
    with pytest.raises(ValueError, match=message):
        BertTextClassifier.from_preset(directory)
    with open(os.path.join(directory, "vocab.txt"), "w", encoding="utf-8") as file:
        file.writelines(f"{token}\n" for token in TOKENS)
    with pytest.warns(UserWarning, match="has only 9 tokens for the encoder's vocabulary_size of"):
        BertTextClassifier.from_preset(directory)


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_no_tokenizer_files(reference):
    theirs = reference("bert", "ForSequenceClassification", num_labels=3)
    with pytest.raises(ValueError, match="has no tokenizer files"):
        BertTextClassifier.from_preset(theirs.directory)


# --- real weights ---


@pytest.mark.slow
def test_three_cosines_of_minilm():
    """The three cosines, with mean pooling and normalization, are published with the model."""
    import real_data

    directory = real_data.or_skip(real_data.minilm_dir)
    embedder = BertTextEmbedder.from_preset(directory)
    assert (embedder.pooling, embedder.normalize) == ("mean", True)
    assert embedder.preprocessor.sequence_length == 256
    texts = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    vectors = embedder.embed(texts)
    cosines = vectors @ vectors.T
    found = cosines[0, 1], cosines[0, 2], cosines[1, 2]
    np.testing.assert_allclose(found, (0.6660, 0.1046, 0.1411), atol=1e-4)
