"""Weight files that declare far more data than they store are rejected without using memory."""

import json
import os
import shutil
import zipfile

import h5py
import numpy as np
import pytest
from safetensors.numpy import load_file

import kerasbert
from kerasbert.base.memory import memory_bytes, peak_bytes
from kerasbert.checkpoints.sizes import h5_datasets
from kerasbert.lineage import ElmoBackbone
from kerasbert.models import BertBackbone, BertTextClassifier, BertTokenClassifier
from tests.contracts import perturb, tiny_backbone, tiny_classifier

# Reading files does not depend on the backend.
pytestmark = pytest.mark.backends("torch")
MANY = 10**9


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("formats")
    model = tiny_classifier("bert", activation="gelu_approximate")
    perturb(model)
    for name in ("huggingface", "keras_hub", "kerasbert"):
        kerasbert.convert(model, root / name, format=name)
    return root


def refuses(directory, message, cls=BertTextClassifier, **arguments):
    before = peak_bytes()
    if cls is not BertBackbone:
        arguments.setdefault("preprocessor", None)
    with pytest.raises(ValueError, match=message) as error:
        cls.from_preset(str(directory), **arguments)
    assert "\n" not in str(error.value)
    assert peak_bytes() - before < 50 << 20, "it took memory"


# === HDF5 ===


def _first(file):
    found = []
    file.visititems(lambda name, x: found.append(name) if getattr(x, "ndim", 0) == 2 else None)
    return found[0]


def _other_file(file, name, value):
    path = file.filename + ".other"
    with h5py.File(path, "w") as other:
        other["x"] = value
    return path


def _virtual(file, name, value):
    layout = h5py.VirtualLayout((MANY,), "f4")
    layout[:3] = h5py.VirtualSource("x.h5", "y", (3,))
    file.create_virtual_dataset(name, layout)


def _packed(file, name, value):
    made = file.create_dataset(name, (1 << 26,), "f4", chunks=(1 << 22,), compression="gzip")
    made[: 1 << 24] = 0


def _external(file, name, value):
    path = file.filename + ".raw"
    value.tofile(path)
    file.create_dataset(name, value.shape, "f4", external=[(path, 0, value.nbytes)])


def _link(file, name, link):
    file[name] = link


H5 = {
    "never written": lambda f, n, x: f.create_dataset(n, (MANY,), "f4"),
    "no chunk": lambda f, n, x: f.create_dataset(n, (MANY,), "f4", chunks=(1 << 20,)),
    "fill": lambda f, n, x: f.create_dataset(n, (MANY,), "f4", chunks=(99,), fillvalue=1.0),
    "no packed chunk": lambda f, n, x: f.create_dataset(
        n, (MANY,), "f4", chunks=(1 << 20,), compression="gzip"
    ),
    "packed zeros": _packed,
    "external": _external,
    "virtual": _virtual,
    "soft link": lambda f, n, x: _link(f, n, h5py.SoftLink("/elsewhere")),
    "link to a file": lambda f, n, x: _link(f, n, h5py.ExternalLink(_other_file(f, n, x), "x")),
    "beside": lambda f, n, x: (_link(f, n, x), f.create_dataset("more", (MANY,), "f4")),
}


@pytest.mark.parametrize("kind", H5)
@pytest.mark.parametrize(
    ("format", "file"),
    [("kerasbert", "model"), ("kerasbert", "task"), ("keras_hub", "model"), ("keras_hub", "task")],
)
def test_h5(folders, tmp_path, kind, format, file):
    directory = shutil.copytree(folders / format, tmp_path / "preset")
    path = directory / f"{file}.weights.h5"
    with h5py.File(path, "r+") as opened:
        name = _first(opened)
        value = opened[name][()]
        del opened[name]
        H5[kind](opened, name, value)
    assert path.stat().st_size < 10 << 20
    message = (
        "in another file|a link to another place" if "l" in kind[-8:] and "link" in kind else ""
    )
    message = message or ("another file" if kind in ("external", "virtual") else "bytes of memory")
    refuses(directory, f"{path.name}' .*({message})")


def test_h5_that_is_packed_and_whole(folders, tmp_path):
    """Weights may be compressed, up to 16-fold."""
    directory = shutil.copytree(folders / "kerasbert", tmp_path / "preset")
    path = directory / "model.weights.h5"
    with h5py.File(path) as old, h5py.File(tmp_path / "new.h5", "w") as new:

        def copy(name, item):
            if isinstance(item, h5py.Dataset) and item.ndim:
                made = new.create_dataset(name, data=item[()], compression="gzip", shuffle=True)
                made.attrs.update(item.attrs)
            elif isinstance(item, h5py.Dataset):
                new[name] = item[()]
            else:
                new.require_group(name).attrs.update(item.attrs)

        old.visititems(copy)
        new.attrs.update(old.attrs)
    shutil.move(tmp_path / "new.h5", path)
    one, other = (BertBackbone.from_preset(str(x)) for x in (directory, folders / "kerasbert"))
    for a, b in zip(one.weights, other.weights, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert h5_datasets(str(path)).keys() == h5_datasets(f"{folders}/kerasbert/{path.name}").keys()
    with h5py.File(tmp_path / "small.h5", "w") as file:
        numbers = np.random.default_rng(0).integers(0, 64, 50_000).astype("int32")
        file.create_dataset("numbers", data=numbers, compression="gzip")
    assert (tmp_path / "small.h5").stat().st_size < numbers.nbytes / 2
    assert [*h5_datasets(str(tmp_path / "small.h5"))] == ["numbers"]


def test_shards_that_no_check_sees(tmp_path):
    tiny_backbone().save_to_preset(str(tmp_path / "preset"), max_shard_size=1e-5)
    index = tmp_path / "preset" / "model.weights.json"
    shard = sorted((tmp_path / "preset").glob("model_*.h5"))[0]
    shutil.copy(shard, tmp_path / "preset" / "other.h5")
    index.write_text(index.read_text().replace(shard.name, "other.h5"))
    refuses(tmp_path / "preset", "names 'other.h5', which is not a file of weights", BertBackbone)


# === PyTorch's files ===


def _bin(folders, tmp_path, change, **settings):
    import torch

    directory = shutil.copytree(folders / "huggingface", tmp_path / "bin")
    tensors = {
        name: torch.from_numpy(value)
        for name, value in load_file(directory / "model.safetensors").items()
    }
    os.remove(directory / "model.safetensors")
    change(torch, tensors)
    torch.save(tensors, directory / "pytorch_model.bin", **settings)
    return directory


TABLE = "bert.embeddings.word_embeddings.weight"
VIEWS = {
    "stride 0": lambda torch: torch.zeros(1).expand(MANY),
    "stride 0 in 2-D": lambda torch: torch.zeros(16).expand(MANY // 16, 16),
    "overlapping rows": lambda torch: torch.zeros(40_000).as_strided((20_000, 20_000), (1, 1)),
    "no storage": lambda torch: torch.empty(MANY, device="meta"),
}


@pytest.mark.parametrize("name", [TABLE, "more"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("is_zip", [True, False])
def test_views(folders, tmp_path, is_zip, view, name):
    directory = _bin(
        folders,
        tmp_path,
        lambda torch, tensors: tensors.update({name: VIEWS[view](torch)}),
        _use_new_zipfile_serialization=is_zip,
    )
    refuses(directory, rf"pytorch_model.bin' .*'{name}' declares [\d,]+ bytes but stores \d")


def test_tensors_that_share_their_bytes(folders, tmp_path):
    """Tied weights are accepted, but shared bytes count once."""

    def share(torch, tensors):
        tensors["cls.predictions.decoder.weight"] = tensors[TABLE]
        big = torch.zeros(1 << 18)
        tensors.update({f"more.{number}": big for number in range(1000)})

    directory = _bin(folders, tmp_path, share)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "vocab_size": 1 << 20}))
    refuses(directory, "asks for .* weights .*, but its files hold 2", BertBackbone)
    shutil.rmtree(directory)
    tied = _bin(
        folders,
        tmp_path,
        lambda torch, tensors: tensors.update({"cls.predictions.decoder.weight": tensors[TABLE]}),
    )
    BertBackbone.from_preset(str(tied))


def test_archives_that_unpack(folders, tmp_path):
    directory = _bin(folders, tmp_path, lambda torch, tensors: None)
    path = directory / "pytorch_model.bin"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content + bytes(1 << 26 if name.endswith("/data/0") else 0))
    refuses(directory, "pytorch_model.bin' .*its members declare 67,")


# === Configurations ===


@pytest.mark.skipif(memory_bytes() is None, reason="the system does not say")
@pytest.mark.parametrize("format", ["huggingface", "keras_hub", "kerasbert"])
def test_random_weights_that_no_machine_holds(folders, tmp_path, format):
    directory = shutil.copytree(folders / format, tmp_path / "preset")
    config = json.loads((directory / "config.json").read_text())
    inner = config.get("config", config)
    name = "hidden_size" if format == "huggingface" else "hidden_dim"
    inner[name] = 2 * 10**6
    (directory / "config.json").write_text(json.dumps(config))
    refuses(directory, "but this machine has .* of memory", BertBackbone, load_weights=False)
    inner[name], layers = 16, "num_hidden_layers" if format == "huggingface" else "num_layers"
    inner[layers] = 10**5
    (directory / "config.json").write_text(json.dumps(config))
    refuses(directory, "asks for 100,000 layers", BertBackbone, load_weights=False)


@pytest.mark.parametrize("name", ["intermediate_dim", "vocabulary_size", "num_layers"])
def test_keras_hub_builds_the_encoder_of_the_task(folders, tmp_path, name):
    directory = shutil.copytree(folders / "keras_hub", tmp_path / "preset")
    path = directory / "task.json"
    saved = json.loads(path.read_text())
    saved["config"]["backbone"]["config"][name] = 10**7
    path.write_text(json.dumps(saved))
    refuses(directory, f"task.json' has a backbone of {name}=10000000, but config.json")


def test_settings_of_a_keras_hub_head(folders, tmp_path):
    directory = shutil.copytree(folders / "keras_hub", tmp_path / "preset")
    path = directory / "task.json"
    saved = json.loads(path.read_text())
    saved["config"]["hidden_dim"] = 10**6
    path.write_text(json.dumps(saved))
    refuses(directory, "task.json' has hidden_dim=1000000, but the preset holds", num_classes=3)


def test_settings_of_a_head(tmp_path):
    task = BertTokenClassifier(tiny_backbone(), num_classes=3, bilstm_units=4)
    task.save_to_preset(str(tmp_path / "preset"))
    path = tmp_path / "preset" / "task.json"
    saved = json.loads(path.read_text())
    saved["config"]["bilstm_units"] = 10**6
    path.write_text(json.dumps(saved))
    refuses(tmp_path / "preset", "has bilstm_units=1000000, but", BertTokenClassifier)


def test_elmo(tmp_path):
    model = ElmoBackbone(
        num_layers=1,
        units=8,
        projection_dim=4,
        filters=[[1, 4], [2, 4]],
        character_dim=4,
        num_highways=1,
    )
    options, weights = str(tmp_path / "options.json"), str(tmp_path / "weights.h5")
    model.to_files(options, weights)
    ElmoBackbone.from_files(options, weights)
    value = json.loads((tmp_path / "options.json").read_text())
    before = peak_bytes()
    for part, name, wrong in (
        ("lstm", "dim", 10**7),
        ("lstm", "projection_dim", 10**7),
        ("char_cnn", "filters", [[1, 10**8]]),
    ):
        edited = {**value, part: {**value[part], name: wrong}}
        (tmp_path / "edited.json").write_text(json.dumps(edited))
        with pytest.raises(ValueError, match="The options need .* weights, but '.*' holds"):
            ElmoBackbone.from_files(str(tmp_path / "edited.json"), weights)
    with h5py.File(weights, "r+") as file:
        del file["CNN_proj/W_proj"]
        file.create_dataset("CNN_proj/W_proj", (MANY,), "f4")
    with pytest.raises(ValueError, match="'CNN_proj/W_proj' in .* asks for 4,000,000,000 bytes"):
        ElmoBackbone.from_files(options, weights)
    model.save_to_preset(str(tmp_path / "preset"))
    path = tmp_path / "preset" / "config.json"
    saved = json.loads(path.read_text())
    saved["config"]["units"] = 10**7
    path.write_text(json.dumps(saved))
    with pytest.raises(ValueError, match="units=10000000 in .* asks for more weights than"):
        ElmoBackbone.from_preset(str(tmp_path / "preset"))
    assert peak_bytes() - before < 50 << 20
