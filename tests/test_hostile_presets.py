"""Presets whose files name paths outside of them: nothing there is opened."""

import builtins
import json
import os
import shutil
import zipfile

import keras
import numpy as np
import pytest

from kerasbert import data
from kerasbert.models import (
    BertBackbone,
    BertMultiTask,
    BertTextClassifier,
    BertTextClassifierPreprocessor,
)
from kerasbert.tokenizers import BertTokenizer
from tests.contracts import tiny_backbone


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A file next to the preset; the test fails if it is opened."""
    path = tmp_path / "outside" / "secret.txt"
    path.parent.mkdir()
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    real = builtins.open

    def watched(file, *args, **kwargs):
        assert not isinstance(file, (str, os.PathLike)) or os.path.realpath(file) != str(path)
        return real(file, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", watched)
    return str(path)


@pytest.fixture
def preset(tiny_preset, tmp_path):
    return shutil.copytree(tiny_preset, tmp_path / "preset")


def edit(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def opener(path):
    """A KerasHub tokenizer that reads a file in its constructor."""
    return {
        "module": "keras_hub.tokenizers",
        "class_name": "BytePairTokenizer",
        "registered_name": "keras_hub>BytePairTokenizer",
        "config": {"vocabulary": path, "merges": path},
    }


def test_the_class_of_a_tokenizer(preset, outside):
    (preset / "tokenizer.json").write_text(json.dumps(opener(outside)))
    os.remove(preset / "preprocessor.json")
    with pytest.raises(ValueError, match="names the class 'keras_hub>BytePairTokenizer', which is"):
        BertTokenizer.from_preset(str(preset))
    with pytest.raises(ValueError, match="has the file vocabulary='.*secret.txt'"):
        BertTextClassifierPreprocessor.from_preset(str(preset))
    lookup = {"module": "keras.layers", "class_name": "StringLookup", "registered_name": None}
    (preset / "tokenizer.json").write_text(
        json.dumps({**lookup, "config": {"vocabulary": outside}})
    )
    for cls in (BertTokenizer, BertTextClassifierPreprocessor, BertTextClassifier):
        with pytest.raises(ValueError, match="has the file|names the class None"):
            cls.from_preset(str(preset))


@pytest.mark.parametrize("file", ["config", "task", "preprocessor"])
def test_classes_inside_of_settings(preset, outside, file):
    part = {"config": "activation", "task": "dtype", "preprocessor": "tokenizer"}[file]
    edit(preset / f"{file}.json", lambda saved: saved["config"].update({part: opener(outside)}))
    with pytest.raises(ValueError, match="has the file vocabulary=|must be a string"):
        BertTextClassifier.from_preset(str(preset))


def test_keras_files(tiny_preset, tmp_path, outside):
    task = BertTextClassifier.from_preset(tiny_preset)
    for model in (task, BertMultiTask({"one": task}), task.backbone):
        model.save(tmp_path / "good.keras")
        bad = tmp_path / "bad.keras"
        with zipfile.ZipFile(tmp_path / "good.keras") as whole, zipfile.ZipFile(bad, "w") as new:
            for name in whole.namelist():
                content = whole.read(name)
                if name == "config.json":
                    saved = json.loads(content)
                    saved["config"]["preprocessor"] = opener(outside)
                    content = json.dumps(saved)
                new.writestr(name, content)
        with pytest.raises(ValueError, match="has the file vocabulary='.*secret.txt'"):
            keras.models.load_model(bad)


def test_keras_hubs_own_presets(preset, outside):
    # KerasHub's class loads the weights of these presets, and with them all classes that their
    # files name.
    edit(
        preset / "config.json", lambda saved: saved.update(registered_name="keras_hub>BertBackbone")
    )
    edit(preset / "config.json", lambda saved: saved["config"].update(dtype=opener(outside)))
    with pytest.raises(ValueError, match="has the file vocabulary='.*secret.txt'"):
        BertBackbone.from_preset(str(preset))


@pytest.mark.parametrize("folder", ["{outside}", "link.json"])
def test_the_folder_of_a_vocabulary(preset, outside, tmp_path, folder):
    os.rename(outside, tmp_path / "outside" / "vocabulary.txt")
    os.symlink(tmp_path / "outside", preset / "assets" / "link")
    folder = folder.format(outside=tmp_path / "outside")
    edit(preset / "tokenizer.json", lambda saved: saved["config"].update(config_file=folder))
    with pytest.raises(ValueError, match="which leaves its directory"):
        BertTokenizer.from_preset(str(preset))


def test_shards_that_are_links(preset, tmp_path):
    backbone = tiny_backbone()
    backbone.save_to_preset(str(tmp_path / "sharded"), max_shard_size=1e-5)
    (shard, *_) = sorted((tmp_path / "sharded").glob("model_*.h5"))
    os.rename(shard, tmp_path / shard.name)
    os.symlink(tmp_path / shard.name, shard)
    with pytest.raises(ValueError, match="which leaves its directory"):
        BertBackbone.from_preset(str(tmp_path / "sharded"))
    # The cache of the Hugging Face hub consists of links.
    repository = tmp_path / "models--a--b"
    (repository / "snapshots").mkdir(parents=True)
    (repository / "blobs").mkdir()
    os.remove(shard)
    os.rename(tmp_path / shard.name, repository / "blobs" / "0")
    os.symlink("../../blobs/0", shard)
    os.rename(tmp_path / "sharded", repository / "snapshots" / "abc")
    again = BertBackbone.from_preset(str(repository / "snapshots" / "abc"))
    for one, other in zip(again.weights, backbone.weights, strict=True):
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (one, other)))


@pytest.mark.parametrize("name", ["../records", "/etc/passwd"])
def test_shards_of_records(tmp_path, name):
    (tmp_path / "records").write_bytes(b"")
    folder = tmp_path / "folder"
    folder.mkdir()
    counts = ("documents", "sentences", "tokens", "examples", "not_next", "masked")
    counts = dict.fromkeys(counts, 1)
    described = {"vocabulary_size": 9, "vocabulary_sha256": "", "mask_token_id": 4}
    manifest = {
        "format": 1,
        "complete": True,
        "settings": {"sequence_length": 8, "mask_selection_length": 2, "objective": "x"},
        "tokenizer": {**described, "special_token_ids": []},
        "counts": counts,
        "shards": [{"name": name, "bytes": 0, "text_sha256": "", **counts}],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="leaves its directory"):
        data.read_examples(str(folder), 2)
