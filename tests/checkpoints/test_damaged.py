"""Damaged, hostile or unusable checkpoints raise one-sentence errors before anything is built."""

import json
import os
import re
import shutil
import time

import h5py
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import kerasbert
from kerasbert.models import BertBackbone, BertMultipleChoice, BertTextClassifier
from tests.contracts import perturb, tiny_backbone, tiny_classifier

FORMATS = ("huggingface", "google", "keras_hub", "kerasbert")
CONFIGS = {"google": "bert_config.json"}
WRONG = ("x", [1], None, 1.5, True, {"a": 1}, -1, float("nan"), 10**400)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A tiny classifier in every format: a dict of format to folder."""
    root = tmp_path_factory.mktemp("formats")
    model = tiny_classifier("bert", activation="gelu_approximate")
    perturb(model)
    for name in FORMATS:
        kerasbert.convert(model, root / name, format=name)
    kerasbert.convert(tiny_backbone("electra"), root / "electra", format="huggingface")
    return {name: root / name for name in (*FORMATS, "electra")}


def copy(folders, name, tmp_path):
    return shutil.copytree(folders[name], tmp_path / name)


def load(directory, cls=BertTextClassifier):
    return cls.from_preset(str(directory), preprocessor=None)


def change(path, settings, *keys):
    content = json.loads(path.read_text())
    inner = content
    for key in keys:
        inner = inner[key]
    inner.update(settings)
    path.write_text(json.dumps(content))


def refuses(directory, cls=BertTextClassifier, **arguments):
    """Return the error of loading."""
    if cls is not BertBackbone:
        arguments.setdefault("preprocessor", None)
    with pytest.raises(ValueError) as error:
        cls.from_preset(str(directory), **arguments)
    said = str(error.value)
    assert "\n" not in said.strip() and len(said) < 1000, said
    return said


# --- tensors that are not weights ---


def with_tensor(folders, tmp_path, name, array):
    """Make a Hugging Face folder with another bias of the head."""
    directory = copy(folders, "huggingface", tmp_path)
    tensors = load_file(directory / "model.safetensors")
    tensors[name] = array(tensors[name])
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


BAD = {
    "nan": lambda x: np.where(np.arange(x.size).reshape(x.shape) == 1, np.nan, x).astype("float32"),
    "infinite": lambda x: np.full_like(x, -np.inf),
    "beyond float32": lambda x: np.full(x.shape, 1e300),
    "int32": lambda x: x.astype("int32"),
    "bool": lambda x: x > 0,
    "complex64": lambda x: x.astype("complex64"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classifier.bias", "bert.encoder.layer.0.output.dense.weight"])
@pytest.mark.parametrize("kind", BAD)
@pytest.mark.filterwarnings("ignore:overflow")
def test_tensors_of_safetensors(folders, tmp_path, kind, name):
    directory = with_tensor(folders, tmp_path, name, BAD[kind])
    holds = kind if kind[-1].isdigit() and " " not in kind or kind == "bool" else "nan|-inf|inf"
    short = name.removeprefix("bert.")
    assert re.search(rf"tensor '{short}' of '.*' holds ({holds})", refuses(directory))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nan", "int32", "complex64"])
@pytest.mark.backends("tensorflow")  # TensorFlow writes the files.
def test_tensors_of_google(folders, tmp_path, kind):
    import tensorflow as tf

    directory = copy(folders, "google", tmp_path)
    prefix = str(directory / "bert_model.ckpt")
    reader = tf.compat.v1.train.NewCheckpointReader(prefix)
    tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    name = "bert/encoder/layer_0/output/dense/bias"
    tensors[name] = BAD[kind](tensors[name])
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.constant(value) for value in tensors.values()],
    )
    assert f"tensor '{name}' of '{directory}' holds {kind}" in refuses(directory)


@pytest.mark.backends("tensorflow")
def test_an_index_of_google_that_asks_for_more(folders, tmp_path):
    import tensorflow as tf

    directory = copy(folders, "google", tmp_path)
    data = next(directory.glob("*.data-*"))
    size, prefix = data.stat().st_size, str(directory / "bert_model.ckpt")
    reader = tf.compat.v1.train.NewCheckpointReader(prefix)
    tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    tensors["bert/embeddings/word_embeddings"] = np.zeros((1 << 20, 16), "float32")
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.constant(value) for value in tensors.values()],
    )
    os.truncate(data, size)
    said = refuses(directory)
    assert re.search(rf"bert_model.ckpt' asks for 67,[0-9,]+ bytes .* stores {size:,}", said)


@pytest.mark.parametrize("kind", ["nan", "int32", "bool", "complex64"])
@pytest.mark.parametrize("file", ["model.weights.h5", "task.weights.h5"])
@pytest.mark.parametrize("format", ["keras_hub", "kerasbert"])
def test_tensors_of_h5(folders, tmp_path, format, file, kind):
    directory = copy(folders, format, tmp_path)
    with h5py.File(directory / file, "r+") as opened:
        names = []
        opened.visititems(lambda name, x: names.append((isinstance(x, h5py.Dataset), name)))
        name = max(one for one in names if "layers/" in one[1])[1]
        value = BAD[kind](opened[name][()])
        del opened[name]
        opened[name] = value
    assert f"holds {kind}" in refuses(directory)


def test_an_epsilon_that_is_none(folders, tmp_path):
    directory = copy(folders, "huggingface", tmp_path)
    for value in (-1, 0):
        change(directory / "config.json", {"layer_norm_eps": value})
        said = refuses(directory)
        assert said == (
            f"layer_norm_eps={value} in '{directory}/config.json' must be a number above 0 "
            "and at most 0.1."
        )


# --- configurations ---


# With KerasHub's format the test is slow, because KerasHub builds the model each time.
@pytest.mark.parametrize(
    "format",
    ["huggingface", "google", *(pytest.param(x, marks=pytest.mark.slow) for x in FORMATS[2:])],
)
def test_wrong_types(folders, tmp_path, format):
    """Every field of a configuration gets a value of every wrong type: it must load or raise an
    error of one sentence.
    """
    directory = copy(folders, format, tmp_path)
    files = [(CONFIGS.get(format, "config.json"), ())]
    if format in ("keras_hub", "kerasbert"):
        files = [("config.json", ()), ("config.json", ("config",)), ("task.json", ("config",))]
    loaded = []
    for file, keys in files:
        path = directory / file
        before = path.read_text()
        content = json.loads(before)
        for key in keys:
            content = content[key]
        for name, value in content.items():
            for wrong in WRONG:
                if type(wrong) is type(value) or name in ("name", "trainable"):
                    continue
                change(path, {name: wrong}, *keys)
                try:
                    load(directory)
                    loaded.append((name, repr(wrong)[:9]))
                except ValueError as error:
                    assert "\n" not in str(error).strip(), (name, wrong, error)
                path.write_text(before)
    # A size of the wrong type is always an error.
    sizes = re.compile("(vocab|hidden|num_|intermediate|max_|type_|layer_norm).*")
    loaded = [one for one in loaded if sizes.match(one[0]) and one != ("num_groups", "None")]
    assert not loaded


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("format", "file"),
    [
        *((name, CONFIGS.get(name, "config.json")) for name in FORMATS),
        ("kerasbert", "task.json"),
        ("keras_hub", "task.json"),
    ],
)
def test_deeply_nested(folders, tmp_path, format, file):
    directory = copy(folders, format, tmp_path)
    (directory / file).write_text('{"model_type": ' + DEEP + "}")
    said = refuses(directory)
    assert f"{directory}/{file}' is nested too deeply to be read" in said
    # An integer that is too long.
    (directory / file).write_text('{"model_type": 1' + "0" * 5000 + "}")
    assert "is not valid JSON" in refuses(directory)
    (directory / file).write_text(DEEP[:1] + "]")
    assert "holds a list, but must hold an object" in refuses(directory)


HUGE = 10**9
SIZES = {
    "huggingface": (
        *("vocab_size", "num_hidden_layers", "hidden_size", "intermediate_size"),
        *("max_position_embeddings", "type_vocab_size"),
    ),
    "google": (
        *("vocab_size", "num_hidden_layers", "hidden_size", "intermediate_size"),
        *("max_position_embeddings", "type_vocab_size"),
    ),
    "keras_hub": ("vocabulary_size", "num_layers", "hidden_dim", "intermediate_dim"),
    "kerasbert": ("vocabulary_size", "num_layers", "hidden_dim", "intermediate_dim"),
}


@pytest.mark.parametrize("format", FORMATS)
def test_sizes_that_no_tensor_backs(folders, tmp_path, format):
    directory = copy(folders, format, tmp_path)
    path = directory / CONFIGS.get(format, "config.json")
    keys = () if format in ("huggingface", "google") else ("config",)
    before = path.read_text()
    for name in SIZES[format]:
        start = time.perf_counter()
        change(path, {name: HUGE}, *keys)
        for cls in (BertTextClassifier, BertBackbone):
            said = refuses(directory, cls)
            assert "asks for" in said and f"of '{directory}'" in said
        assert time.perf_counter() - start < 20  # In seconds, on a busy machine.
        path.write_text(before)


def test_layers_that_share_weights(tmp_path):
    """No tensor reveals the number of layers."""
    kerasbert.convert(tiny_backbone("albert"), tmp_path / "out")
    change(tmp_path / "out" / "config.json", {"num_hidden_layers": HUGE})
    assert "asks for 1,000,000,000 layers" in refuses(tmp_path / "out", BertBackbone)


@pytest.mark.parametrize("format", ["huggingface", "keras_hub", "kerasbert"])
def test_classes_that_no_tensor_backs(folders, tmp_path, format):
    directory = copy(folders, format, tmp_path)
    if format == "huggingface":
        change(directory / "config.json", {"num_labels": HUGE, "id2label": None})
    else:
        change(directory / "task.json", {"num_classes": HUGE, "labels": None}, "config")
    refuses(directory)


def test_a_summary_that_we_do_not_have(folders, tmp_path):
    directory = copy(folders, "electra", tmp_path)
    change(directory / "config.json", {"summary_type": "mean"})
    BertBackbone.from_preset(str(directory))  # Other classes ignore the head's settings.
    said = refuses(directory, BertMultipleChoice)
    assert "summary_type='mean', which kerasbert does not support; only summary_type='fi" in said
    with pytest.warns(UserWarning, match="New, random weights"):
        BertMultipleChoice.from_preset(str(directory), preprocessor=None, new_head=True)


# --- files ---


@pytest.mark.slow
@pytest.mark.parametrize("format", ["keras_hub", "kerasbert"])
@pytest.mark.parametrize("file", ["model.weights.h5", "task.weights.h5"])
def test_damaged_h5(folders, tmp_path, format, file):
    """A file that is truncated, empty or not HDF5, or has flipped bytes in its first blocks, which
    hold its tables.
    """
    directory = copy(folders, format, tmp_path)
    path = directory / file
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"no HDF5" * 99):
        path.write_bytes(damaged)
        assert re.search(
            "truncated or damaged|incomplete|cannot read the weights", refuses(directory)
        )
    random = np.random.default_rng(0)
    for _ in range(15):
        turned = np.frombuffer(content, "uint8").copy()
        turned[random.integers(0, 4096, 20)] = random.integers(0, 256, 20)
        path.write_bytes(turned.tobytes())
        try:
            load(directory)  # The file may load, because the flipped bytes may be in free space.
        except ValueError as error:
            assert "\n" not in str(error).strip()


FILES = {
    "huggingface": ("config.json", "model.safetensors"),
    "google": ("bert_config.json", "bert_model.ckpt.index"),
    "keras_hub": ("config.json", "model.weights.h5"),
    "kerasbert": ("config.json", "task.json", "model.weights.h5"),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are pipes on POSIX alone")
@pytest.mark.parametrize("format", FORMATS)
def test_pipes_and_devices(folders, tmp_path, format):
    for file in FILES[format]:
        for kind in ("pipe", "device"):
            directory = tmp_path / f"{file}-{kind}"
            shutil.copytree(folders[format], directory)
            os.remove(directory / file)
            if kind == "pipe":
                os.mkfifo(directory / file)
            else:
                os.symlink("/dev/zero", directory / file)
            assert f"'{directory / file}' is a {kind}" in refuses(directory)
