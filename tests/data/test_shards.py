"""Shards of embeddings and predictions: lost, damaged, outdated, or from a changed corpus."""

import functools
import json
import os
import random
import shutil

import numpy as np
import pytest

import kerasbert
from kerasbert.search import embed_corpus, read_vectors
from tests.export import tiny

# NumPy and JSON write these files on every backend.
pytestmark = pytest.mark.backends("torch")

TEXTS = ["the weather", "a good film", "서울의 날씨", "東京の天気", "news", "a bad film", "rain"]


@pytest.fixture(scope="module")
def models():
    return {
        "vectors": tiny.task("TextEmbedder", encoder_settings={"num_layers": 1}),
        "predictions": tiny.task("TextClassifier", labels=tiny.LABELS, num_classes=3),
    }


def write(models, what, corpus, out):
    if what == "predictions":
        return kerasbert.predict_corpus(models[what], corpus, out, rows=2)
    format = "npy" if what == "npy" else "parquet"
    return embed_corpus(corpus, out, models["vectors"], rows=2, format=format)


def read(what, out):
    """Return all rows of a folder in a form that can be compared."""
    if what == "predictions":
        return [(row["file"], row["id"], str(row)) for row in kerasbert.read_predictions(out)]
    parts = list(read_vectors(out))
    return [(id, text, x.tobytes()) for part in parts for id, text, x in zip(*part)]


FORMS = ("npy", "predictions", pytest.param("parquet", marks=pytest.mark.peers))


@pytest.fixture(scope="module")
def folders(models, tmp_path_factory):
    """A cached function that makes a corpus and an output folder for each kind."""

    @functools.cache
    def made(what):
        root = tmp_path_factory.mktemp(what)
        (root / "corpus").mkdir()
        for name, texts in (("a", TEXTS), ("b", TEXTS[::-1])):
            (root / "corpus" / f"{name}.txt").write_text("\n".join(texts), encoding="utf-8")
        assert write(models, what, root / "corpus", root / "out") == 14
        return root

    return made


@pytest.fixture
def copied(folders, tmp_path):
    return lambda what: shutil.copytree(folders(what), tmp_path / what)


def manifest_of(out):
    return next(out.glob("*s.json"))


def state(out):
    return {path.name: path.stat().st_ino for path in out.iterdir() if "-" in path.name}


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) * 3 // 4] ^= 4
    path.write_bytes(data)


DAMAGE = {
    "removed": lambda path: path.unlink(),
    "cut": lambda path: os.truncate(path, path.stat().st_size - 7),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\n"),
    "empty": lambda path: path.write_bytes(b""),
    "a bit": flip,
    "another shard's": lambda path: shutil.copy(
        path.with_name(path.name.replace("00001-00000", "00000-00000")), path
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("what", FORMS)
def test_what_is_damaged_is_made_again(models, copied, what, damage):
    root = copied(what)
    out, whole = root / "out", read(what, root / "out")
    for path in sorted(out.glob("*-00001-00000.*")):
        before = state(out)
        DAMAGE[damage](path)
        with pytest.raises(ValueError, match=f"{path.name}' .*run the same (emb|pre).*_corpus aga"):
            read(what, out)
        assert write(models, what, root / "corpus", out) == 14
        assert read(what, out) == whole
        changed = {name for name, number in state(out).items() if number != before.get(name)}
        assert changed and all("-00001-00000." in name for name in changed)
    # No hidden files are left.
    assert not [name for name in os.listdir(out) if name.startswith(".")]


@pytest.mark.parametrize("what", FORMS)
def test_no_damage_is_taken(copied, what):
    """Bytes are flipped, removed and inserted: reading fails, or returns what was written."""
    out = copied(what) / "out"
    whole, draw, refused = read(what, out), random.Random(0), 0
    paths = sorted(path for path in out.iterdir())
    for number in range(60):
        path = manifest_of(out) if number % 3 == 0 else draw.choice(paths)
        content = path.read_bytes()
        data, at = bytearray(content), draw.randrange(len(content))
        match draw.randrange(4):
            case 0:
                data[at] ^= 1 << draw.randrange(8)
            case 1:
                del data[at:]
            case 2:
                data[at:at] = draw.randbytes(3)
            case 3:
                del data[at : at + draw.randrange(1, 99)]
        path.write_bytes(data)
        try:
            assert read(what, out) == whole
        except ValueError as error:
            refused += 1
            assert "\n" not in str(error) and str(out) in str(error)
        path.write_bytes(content)
    assert refused > 40


@pytest.mark.parametrize("what", FORMS)
@pytest.mark.parametrize("is_complete", [True, False])
def test_a_corpus_that_was_edited_at_equal_size(models, copied, what, is_complete):
    root = copied(what)
    if not is_complete:  # The state after an interrupted run.
        stop_after(models, what, root, 3)
    path = root / "corpus" / "a.txt"
    before = path.stat()
    path.write_text(path.read_text().replace("weather", "WEATHER"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    kind = "vectors" if what in ("npy", "parquet") else what
    with pytest.raises(ValueError, match=f"out' has {kind} from another corpus; name another"):
        write(models, what, root / "corpus", root / "out")
    path.write_text(
        path.read_text().replace("WEATHER", "weather")
    )  # The file has another modification time.
    assert write(models, what, root / "corpus", root / "out") == 14


def stop_after(models, what, root, shards):
    """Make the folder again, in a run that stops after some shards."""
    shutil.rmtree(root / "out")
    model = models["predictions" if what == "predictions" else "vectors"]
    method = "embed" if what != "predictions" else "predict"
    done, real = [], getattr(type(model), method)

    def stopping(self, *args, **kwargs):
        if len(done) == shards:
            raise KeyboardInterrupt
        done.append(1)
        return real(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model), method, stopping)
        with pytest.raises(KeyboardInterrupt):
            write(models, what, root / "corpus", root / "out")


@pytest.mark.parametrize("what", FORMS)
def test_a_run_that_was_stopped_trusts_no_shard(models, copied, what):
    root = copied(what)
    out, whole = root / "out", read(what, root / "out")
    stop_after(models, what, root, 3)
    there = sorted(path for path in out.iterdir() if "-" in path.name and path.name[0] != ".")
    assert len({path.stem for path in there}) == 3
    flip(there[0])
    there[-1].unlink()
    with pytest.raises(ValueError, match="is incomplete"):
        read(what, out)
    before = state(out)
    assert write(models, what, root / "corpus", out) == 14 and read(what, out) == whole
    kept = [name for name in before if name[0] != "." and state(out)[name] == before[name]]
    assert {name.split(".")[0] for name in kept} == {there[len(there) // 2].stem}


def as_before(out):
    """Change a manifest to the form of versions without hashes."""
    path = manifest_of(out)
    value = json.loads(path.read_text())
    del value["hashed"]
    for shard in value["shards"]:
        del shard["files"], shard["source_sha256"]
    path.write_text(json.dumps(value))


@pytest.mark.parametrize("what", FORMS)
def test_folders_of_earlier_versions(models, copied, what):
    root = copied(what)
    out, whole = root / "out", read(what, root / "out")
    as_before(out)
    assert read(what, out) == whole
    before = state(out)
    assert write(models, what, root / "corpus", out) == 14 and state(out) == before
    assert all(shard["files"] for shard in json.loads(manifest_of(out).read_text())["shards"])
    # Damage that can be detected without hashes is reported and repaired.
    for damage in ("cut", "removed", "empty"):
        as_before(out)
        path = sorted(out.glob("*-00001-00000.*"))[-1]
        DAMAGE[damage](path)
        with pytest.raises(ValueError, match=f"{path.name}' "):
            read(what, out)
        assert write(models, what, root / "corpus", out) == 14 and read(what, out) == whole


@pytest.mark.parametrize("wrong", [np.nan, 2.0])
def test_vectors_of_earlier_versions_that_are_none(models, copied, wrong):
    root = copied("npy")
    out, whole = root / "out", read("npy", root / "out")
    as_before(out)
    path = out / "vectors-00000-00001.npy"
    vectors = np.load(path)
    vectors[1] *= wrong
    np.save(path, vectors)
    with pytest.raises(ValueError, match=r"00001.npy' is damaged, or not.*\(a vector "):
        read("npy", out)
    assert write(models, "npy", root / "corpus", out) == 14 and read("npy", out) == whole


@pytest.mark.parametrize("what", FORMS[:2])
def test_a_manifest_that_is_lost(models, copied, what):
    root = copied(what)
    out, whole = root / "out", read(what, root / "out")
    for text in (None, "[" * 99_999, '{"complete": true}'):
        if text is None:
            manifest_of(out).unlink()
        else:
            manifest_of(out).write_text(text)
        with pytest.raises(ValueError, match="s.json") as error:
            read(what, out)
        assert "\n" not in str(error.value)
        if text is None:
            (out / ("vectors.json" if what == "npy" else "predictions.json")).write_text("")
        assert write(models, what, root / "corpus", out) == 14 and read(what, out) == whole


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are pipes on POSIX alone")
@pytest.mark.parametrize("what", FORMS[:2])
def test_pipes(models, copied, what):
    root = copied(what)
    for path in sorted((root / "out").glob("*-00000-00001.*")):
        shutil.move(path, root / "kept")
        os.mkfifo(path)
        for call in (read, lambda *_: write(models, what, root / "corpus", root / "out")):
            with pytest.raises(ValueError, match=f"{path.name}' is a pipe"):
                call(what, root / "out")
        os.replace(root / "kept", path)
    os.mkfifo(root / "corpus" / "c.txt")
    with pytest.raises(ValueError, match="c.txt' is a pipe"):
        write(models, what, root / "corpus", root / "other")
