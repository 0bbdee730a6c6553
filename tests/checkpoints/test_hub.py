"""Downloads, from local stand-ins that implement the hubs' interfaces."""

import hashlib
import json

import pytest

from kerasbert import builtin_presets
from kerasbert.checkpoints import hub, names
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.text_classifier.model import BertTextClassifier
from kerasbert.heads.text_embedder.model import BertTextEmbedder
from kerasbert.text.tokenizer_files import MODEL_FILES
from kerasbert.tokenizers import BertTokenizer
from tests.stand_in import COMMIT, OTHER, files_of, hub_stand_in

# Downloads do not depend on the backend, and JAX would compile each model.
pytestmark = pytest.mark.backends("tensorflow", "torch")

server = pytest.fixture(hub_stand_in)


VOCABULARY = "\n".join(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(94))]
).encode()


@pytest.fixture
def bert(reference, server):
    """A repository "org/bert" on the stand-in, with many more files than are needed."""
    theirs = reference("bert", "ForSequenceClassification", num_labels=3)
    files = {
        **files_of(theirs.directory),
        "vocab.txt": VOCABULARY,
        "README.md": b"#",
        "tf_model.h5": b"other weights",
        "pytorch_model.bin": b"other weights",
        "onnx/config.json": b"{}",
        "onnx/model.onnx": b"other weights",
    }
    server.repositories["org/bert"] = {"main": (COMMIT, files), COMMIT: (COMMIT, files)}
    theirs.files = files
    return theirs


@pytest.mark.peers
def test_loads_from_hugging_face(server, bert):
    classifier = BertTextClassifier.from_preset("hf://org/bert", preprocessor=None)
    assert bert.compare(classifier, lengths=(13,)) <= 1e-5
    assert set(server.fetched) == {"config.json", "model.safetensors", "vocab.txt"}


@pytest.mark.peers
def test_no_weights_where_none_are_needed(server, bert):
    assert BertTokenizer.from_preset("hf://org/bert")("w3") == [8]
    BertBackbone.from_preset("hf://org/bert", load_weights=False)
    assert set(server.fetched) == {"config.json", "vocab.txt"}


@pytest.mark.peers
def test_fetches_once_and_then_works_offline(server, bert):
    BertBackbone.from_preset("hf://org/bert")
    fetched = list(server.fetched)
    BertBackbone.from_preset("hf://org/bert")
    assert server.fetched == fetched
    server.shutdown()
    server.server_close()
    BertBackbone.from_preset("hf://org/bert")


def test_vocabularies_of_every_kind_are_fetched():
    files = [name for names in MODEL_FILES.values() for name in names]
    assert hub._wanted(files, weights=False) == files


@pytest.mark.peers
def test_bin_where_there_is_no_safetensors(server, bert):
    del bert.files["model.safetensors"]
    assert "pytorch_model.bin" in hub._wanted(bert.files, weights=True)
    with pytest.raises(ValueError, match=r"pytorch_model.bin' \(13 bytes\) is truncated"):
        BertBackbone.from_preset("hf://org/bert")


@pytest.mark.peers
def test_shards(server, bert):
    whole = bert.files.pop("model.safetensors")
    bert.files["model-00001-of-00001.safetensors"] = whole
    weight_map = {"bert.pooler.dense.bias": "model-00001-of-00001.safetensors"}
    bert.files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    assert bert.compare(BertBackbone.from_preset("hf://org/bert"), lengths=(13,)) <= 1e-5
    assert "pytorch_model.bin" not in server.fetched


@pytest.mark.peers
@pytest.mark.parametrize("folder", ["", "0_Transformer/"])
def test_sentence_transformers(server, bert, folder):
    """The pooling config is downloaded too, and the encoder's folder in old directories."""
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate([(folder[:-1], "Transformer"), ("1_Pooling", "Pooling")])
    ]
    for name in list(bert.files):
        bert.files[folder + name] = bert.files.pop(name)
    bert.files["modules.json"] = json.dumps(modules).encode()
    bert.files["1_Pooling/config.json"] = b'{"pooling_mode_cls_token": true}'
    embedder = BertTextEmbedder.from_preset("hf://org/bert")
    assert embedder.pooling == "cls"
    assert bert.compare(embedder.backbone, lengths=(13,)) <= 1e-5
    needed = ("config.json", "model.safetensors", "vocab.txt")
    needed = {folder + name for name in needed}
    assert set(server.fetched) == {*needed, "modules.json", "1_Pooling/config.json"}


@pytest.mark.peers
def test_revision(server, bert):
    config = {**json.loads(bert.files["config.json"]), "hidden_dropout_prob": 0.5}
    files = {**bert.files, "config.json": json.dumps(config).encode()}
    server.repositories["org/bert"]["v2"] = server.repositories["org/bert"][OTHER] = (OTHER, files)
    assert BertBackbone.from_preset("hf://org/bert@v2").dropout == 0.5
    assert BertBackbone.from_preset("hf://org/bert").dropout == 0.1
    with pytest.raises(ValueError, match="'org/bert' has no revision 'v3'; use one of its"):
        BertBackbone.from_preset("hf://org/bert@v3")


def test_missing_repository(server):
    with pytest.raises(ValueError, match="hub has no 'org/none', or it is private and you are not"):
        BertBackbone.from_preset("hf://org/none")


@pytest.mark.parametrize("handle", ["hf://a/b/c", "hf://"])
def test_no_handle(server, handle):
    with pytest.raises(ValueError, match="is not a Hugging Face handle; use hf://org/name"):
        BertBackbone.from_preset(handle)


def test_unknown_scheme():
    with pytest.raises(ValueError, match="Unknown handle 's3://x'; use hf://org/name or kaggle"):
        BertBackbone.from_preset("s3://x")


def test_hub_out_of_reach(server):
    server.shutdown()
    server.server_close()
    with pytest.raises(ValueError, match="Cannot download 'hf://org/bert' .* not in the cache"):
        BertBackbone.from_preset("hf://org/bert")


@pytest.mark.peers
def test_built_in_name(server, bert, monkeypatch):
    """A name resolves to its handle, and its description takes precedence over the files."""
    described = {
        "name": "some_bert",
        "family": "bert",
        "handle": "hf://org/bert",
        "tokenizer": {"class": "BertTokenizer", "lowercase": True, "strip_accents": False},
        "settings": {"dropout": 0.25},
        "sha256": {},
    }
    monkeypatch.setattr(names, "builtin_presets", lambda: {"some_bert": described})
    encoder = BertBackbone.from_preset("some_bert")
    assert encoder.dropout == 0.25
    assert bert.compare(encoder, lengths=(13,)) > 0
    tokenizer = BertTokenizer.from_preset("some_bert")
    assert (tokenizer.lowercase, tokenizer.strip_accents) == (True, False)
    whole = hashlib.sha256(bert.files["model.safetensors"]).hexdigest()
    described["sha256"] = {"model.safetensors": whole}
    BertBackbone.from_preset("some_bert")
    described["sha256"] = {"model.safetensors": "0" * 64}
    with pytest.raises(ValueError, match="is not the file of 'some_bert': its sha256"):
        BertBackbone.from_preset("some_bert")


# --- Kaggle ---


@pytest.fixture
def kaggle(monkeypatch, tmp_path):
    """A KerasHub preset behind `kagglehub.model_download`.

    kagglehub 1.0 only knows its own endpoints and localhost at two fixed ports, so its function is
    replaced instead of its server.
    """
    import kagglehub
    import keras_hub

    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=9, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4
    )
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d"]
    backbone.save_to_preset(str(tmp_path))
    keras_hub.tokenizers.BertTokenizer(tokens, lowercase=True).save_to_preset(str(tmp_path))
    asked = []

    def model_download(handle, path=None):
        asked.append((handle, path))
        if not handle.startswith("keras/bert/keras/tiny"):
            raise RuntimeError("404 Client Error: Not Found\nmore lines")
        if path and not (tmp_path / path).exists():
            raise ValueError(f"{path} is not present in the model files.")
        return str(tmp_path / (path or ""))

    monkeypatch.setattr(kagglehub, "model_download", model_download)
    return asked


def test_loads_from_kaggle(kaggle):
    encoder = BertBackbone.from_preset("kaggle://keras/bert/keras/tiny/2")
    assert encoder.vocabulary_size == 9
    assert kaggle == [("keras/bert/keras/tiny/2", None)]


def test_no_weights_from_kaggle_where_none_are_needed(kaggle):
    assert BertTokenizer.from_preset("kaggle://keras/bert/keras/tiny")("B") == [6]
    assert all(path and "weights" not in path for _, path in kaggle)
    BertBackbone.from_preset("kaggle://keras/bert/keras/tiny", load_weights=False)


def test_missing_on_kaggle(kaggle):
    with pytest.raises(ValueError, match=r"from Kaggle \(404 Client Error: Not Found\); check the"):
        BertBackbone.from_preset("kaggle://keras/bert/keras/none")
    with pytest.raises(
        ValueError, match="is not a Kaggle handle; use kaggle://org/model/keras/name"
    ):
        BertBackbone.from_preset("kaggle://keras/bert")


def test_names_that_only_keras_hub_has(kaggle):
    name = "bert_tiny_en_uncased_sst2"
    assert name not in builtin_presets()
    with pytest.raises(
        ValueError, match="Cannot download 'kaggle://keras/bert/keras/bert_tiny_en_un"
    ):
        BertBackbone.from_preset(name)
    assert kaggle == [(f"keras/bert/keras/{name}/5", None)]
