"""Storage: in memory, in a store with slow writes, and on a local server with the S3 protocol."""

import gzip
import json
import logging
import os
import signal
import subprocess
import sys
import time
import uuid

import fsspec
import keras
import numpy as np
import pytest

import kerasbert
from kerasbert.base import storage
from kerasbert.base.files import output_folder
from kerasbert.data import documents, read_examples, write_examples
from kerasbert.data.manifest import read_manifest
from kerasbert.tokenizers import BertTokenizer
from kerasbert.training.recording import read_log
from tests.contracts import array
from tests.data.example_folders import PIECES, SPECIAL, WORDS, T, files, text_of
from tests.unreliable_store import Unreliable


@pytest.fixture
def memory():
    """A URL in memory, different for each test."""
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def s3():
    """The URL of a bucket on a local server with the S3 protocol."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # The server logs a line per request.
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        host, port = server.get_host_and_port()
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        fsspec.filesystem("s3").mkdir("bucket")
        yield "s3://bucket"
        fsspec.get_filesystem_class("s3").clear_instance_cache()
    server.stop()


@pytest.fixture(scope="module")
def bert():
    return BertTokenizer(SPECIAL + WORDS + PIECES)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(4):
        (folder / f"part-{number}.txt").write_text(text_of(60, seed=number))
    return str(folder)


SMALL = {"sequence_length": T, "block_bytes": 3000, "blocks_per_shard": 2, "workers": 1}
SMALL |= {"document_end": "empty_line"}


def upload(folder, url):
    for name, data in files(folder).items():
        with storage.new_file(storage.join(url, name)) as file:
            file.write(data)
    return url


def contents(url):
    return {
        path.removeprefix(url + "/"): storage.open_file(path).read()
        for path in storage.find(url)[1]
    }


# === Files ===


def test_files_of_a_url(memory):
    folder = memory + "/a"
    for name in ("b.txt", "c/d.txt", ".hidden", ".e/f.txt", "c/.g"):
        storage.write_text(storage.join(folder, name), "x" * len(name))
    both = {f"{folder}/b.txt": 5, f"{folder}/c/d.txt": 7}
    assert storage.find(folder) == storage.find(folder + "/") == ("folder", both)
    assert storage.find(folder + "/b.txt") == ("file", {f"{folder}/b.txt": 5})
    assert storage.find(folder + "/*/*.txt")[1].keys() == {f"{folder}/c/d.txt"}
    assert storage.find(folder + "/**")[1] == both
    assert storage.find(memory + "/none")[1] == {}
    assert storage.folders_in(folder) == [f"{folder}/.e", f"{folder}/c"]
    assert storage.exists(folder) and not storage.exists(folder + "/z")
    storage.remove(folder + "/b.txt")
    storage.remove(folder + "/b.txt")
    assert not storage.exists(folder + "/b.txt")


def test_links_are_followed_once(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c.txt").write_text("word")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "link").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "b" / "back").symlink_to(tmp_path / "corpus")
    there = f"{tmp_path}/corpus/link/b/c.txt"
    assert storage.find(f"{tmp_path}/corpus") == ("folder", {there: 4})


def test_what_fails_while_it_is_written_is_not_there(memory):
    with pytest.raises(RuntimeError), storage.new_file(memory + "/a.txt") as file:
        file.write(b"x")
        raise RuntimeError
    assert not storage.exists(memory)


def test_bad_urls(bert, tmp_path, monkeypatch):
    for url, message in (
        ("s4://b/x", "'s4://b/x/.*' has the unknown protocol 's4'; use s3, gs"),
        ("memory://", "output='memory://' names no folder; add"),
        ("zip://a.txt::memory://b.zip", "'zip://.*' is read-only; choose another place"),
    ):
        with pytest.raises(ValueError, match=message):
            write_examples("any.txt", url, bert)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ImportError, match=r"'gs://b/x' needs .* 'gs': run `pip install gcs"):
        list(documents("gs://b/x"))
    with pytest.raises(ValueError, match=r"'memory://none/a\.txt' is not a file, nor"):
        list(documents("memory://none/a.txt"))
    with pytest.raises(ValueError, match="is not a URL: `Path` removes a slash"):
        list(documents(type(tmp_path)("s3://b/x")))
    with pytest.raises(ValueError, match="output='s3://b/x' is a URL, but only a local folder"):
        output_folder("s3://b/x", "output")
    monkeypatch.chdir(tmp_path)
    assert output_folder(f"file://{tmp_path}/a", "output") == f"{tmp_path}/a"
    assert os.listdir(tmp_path) == []


def test_a_store_that_does_not_replace_files(tmp_path):
    url = f"unreliable://{tmp_path}/a/b.txt"
    for text in ("one", "two"):
        storage.write_text(url, text)
        assert (tmp_path / "a" / "b.txt").read_text() == text
    assert os.listdir(tmp_path / "a") == ["b.txt"]


def test_a_store_that_is_away_is_not_empty(tmp_path, corpus, bert, monkeypatch):
    """If an unavailable store looked empty, a run would start over and overwrite the existing
    files.
    """
    url = f"unreliable://{tmp_path}"
    write_examples(corpus, url, bert, **SMALL)
    monkeypatch.setattr(Unreliable, "away", True)
    for act in (lambda: read_manifest(url), lambda: write_examples(corpus, url, bert, **SMALL)):
        with pytest.raises(
            OSError, match="cannot be (read|written): the network is down; check that"
        ):
            act()


def start(script, *arguments):
    """Run a test in a separate process with the same stores."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))}
    return subprocess.Popen([sys.executable, "-c", script, *arguments], env=env)


KILLED = """
import sys
from kerasbert.base import storage
from tests.unreliable_store import Unreliable
Unreliable.slow = 0.2
storage.write_text(sys.argv[1], "x" * (1 << 22))
"""


@pytest.mark.slow
def test_killed_while_a_file_goes_to_a_store_that_shows_parts(tmp_path):
    url = f"unreliable://{tmp_path}/a/b.txt"
    child = start(KILLED, url)
    while not list(tmp_path.glob("a/*")):
        assert child.poll() is None
        time.sleep(0.05)
    child.kill()
    child.wait()
    (left,) = os.listdir(tmp_path / "a")
    assert left.startswith(".b.txt.") and left.endswith(".partial")
    assert 0 < (tmp_path / "a" / left).stat().st_size < 1 << 22
    assert storage.find(f"unreliable://{tmp_path}/a")[1] == {}
    storage.write_text(url, "whole")
    assert storage.open_file(url).read() == b"whole"


# === Corpora and records ===


def batches(source, bert, **settings):
    settings = {"tokenizer": bert, "seed": 1, **settings}
    return [
        [*x.values(), *y.values(), *w.values()]
        for x, y, w in read_examples(source, 16, **settings).take(5).as_numpy_iterator()
    ]


def equal(found, expected):
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b)


def check_records(url, corpus, bert, tmp_path):
    """Check that a corpus and its records at a URL equal the local ones."""
    there = upload(corpus, url + "/corpus")
    assert list(documents(there)) == list(documents(corpus))
    assert list(documents(there + "/*-2.txt")) == list(documents(corpus + "/*-2.txt"))
    packed = there + "/packed.txt.gz"
    with storage.new_file(packed) as file:
        file.write(gzip.compress(b"It rains.\nIt pours.\n"))
    assert list(documents(packed)) == [["It rains.", "It pours."]]
    storage.remove(packed)
    kerasbert.vocab(there, url + "/vocab", size=90, unused=0, min_frequency=1)
    kerasbert.vocab(corpus, str(tmp_path / "vocab"), size=90, unused=0, min_frequency=1)
    assert contents(url + "/vocab") == files(tmp_path / "vocab")
    with pytest.raises(ValueError, match=r"vocab\.txt' exists; choose another folder"):
        kerasbert.vocab(there, url + "/vocab", size=90, unused=0)
    manifest = write_examples(there, url + "/records", bert, **SMALL)
    write_examples(corpus, tmp_path / "records", bert, **SMALL)
    assert contents(url + "/records") == files(tmp_path / "records")
    assert len(manifest["shards"]) > 3
    expected = batches(str(tmp_path / "records"), bert)
    equal(batches(url + "/records", bert), expected)
    with pytest.raises(ValueError, match="has records made with other settings: seed was 0"):
        write_examples(there, url + "/records", bert, seed=1, **SMALL)
    return manifest, expected


@pytest.mark.backends("tensorflow")
def test_records_in_memory(memory, corpus, bert, tmp_path):
    check_records(memory, corpus, bert, tmp_path)


@pytest.mark.peers
@pytest.mark.backends("tensorflow")
def test_records_in_s3(s3, corpus, bert, tmp_path):
    url = s3 + "/a"
    manifest, expected = check_records(url, corpus, bert, tmp_path)
    equal(batches(url + "/records/*.gz", bert), expected)
    for shard in ((0, 2), (1, 2)):
        equal(
            batches(url + "/records", bert, shard=shard, repeat=False),
            batches(str(tmp_path / "records"), bert, shard=shard, repeat=False),
        )
    name = manifest["shards"][2]["name"]
    data = storage.open_file(f"{url}/records/{name}").read()
    with storage.new_file(f"{url}/records/{name}") as file:
        file.write(data[:-1])
    with pytest.raises(ValueError, match=f"The shard '{url}/records/{name}' has .* truncated"):
        batches(url + "/records", bert)
    with storage.new_file(f"{url}/records/{name}") as file:
        file.write(data[:-1] + b"x")
    with pytest.raises(Exception, match=f"The shard '{url}/records/{name}' differs"):
        batches(url + "/records", bert)
    storage.remove(f"{url}/records/{name}")
    with pytest.raises(ValueError, match=f"The shard '{url}/records/{name}' is missing"):
        batches(url + "/records", bert)


@pytest.mark.peers
@pytest.mark.backends("tensorflow")
def test_bad_buckets(s3, corpus, bert, tmp_path):
    for act in (
        lambda: list(documents("s3://nowhere/a")),
        lambda: write_examples(corpus, "s3://nowhere/a", bert, **SMALL),
        lambda: kerasbert.pretrain(corpus, "s3://nowhere/a", steps=10),
    ):
        with pytest.raises(OSError, match="'s3://nowhere/a.*bucket does not exist; check that"):
            act()


WRITER = """
import sys
from kerasbert.data import write_examples
from tests.base.test_storage import SMALL, BertTokenizer, SPECIAL, WORDS, PIECES
write_examples(sys.argv[1], sys.argv[2], BertTokenizer(SPECIAL + WORDS + PIECES), **SMALL)
"""


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.backends("tensorflow")
def test_writing_records_to_s3_is_killed(s3, corpus, bert, tmp_path):
    write_examples(corpus, tmp_path, bert, **SMALL)
    expected, url = files(tmp_path), s3 + "/killed"
    for shards in (1, 3):
        child = start(WRITER, corpus, url)
        while len(storage.find(url)[1]) < shards + 1:
            assert child.poll() is None
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait()
        found = contents(url)
        assert not json.loads(found.pop("manifest.json"))["complete"]
        for name, data in found.items():
            assert data == expected[name]
    with pytest.raises(ValueError, match="are incomplete: writing was interrupted after"):
        read_examples(url, 16, tokenizer=bert)
    write_examples(corpus, url, bert, **SMALL)
    assert contents(url) == expected


# === Trainings ===

RUN = {
    "num_layers": 1,
    "hidden_dim": 16,
    "num_heads": 2,
    "phases": [[T, 12, 8]],
    "learning_rate": 3e-3,
    "warmup_steps": 2,
    "log_every": 2,
    "checkpoint_every": 4,
    "vocabulary_size": 120,
    "verbose": False,
    "workers": 1,
    "jit_compile": keras.backend.backend() == "jax",
}


def log_of(output, tmp_path):
    path = storage.join(output, "log.jsonl")
    if storage.is_url(path):
        storage.get(path, copy := str(tmp_path / uuid.uuid4().hex))
        path = copy
    rows = read_log(path)
    return [{k: v for k, v in x.items() if k not in ("seconds", "tokens_per_second")} for x in rows]


class Stop(keras.callbacks.Callback):
    def __init__(self, left):
        super().__init__()
        self.left = left

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("broken")


@pytest.mark.backends("torch")
def test_a_training_at_a_url(memory, corpus, tmp_path):
    here = kerasbert.pretrain(corpus, str(tmp_path / "here"), **RUN)
    url, there = memory + "/there", upload(corpus, memory + "/corpus")
    with pytest.raises(RuntimeError, match="broken"):
        kerasbert.pretrain(there, url, **RUN, callbacks=[Stop(6)])
    left = storage.find(url)[1]
    assert f"{url}/checkpoint-000000004.safetensors" in left and f"{url}/running.json" not in left
    done = kerasbert.pretrain(there, url, **RUN)
    assert done["preset"] == f"{url}/preset" and done["steps"] == 12
    expected = {weight.path: array(weight) for weight in here["model"].weights}
    for weight in done["model"].weights:
        np.testing.assert_array_equal(array(weight), expected[weight.path])
    assert log_of(url, tmp_path) == log_of(str(tmp_path / "here"), tmp_path)
    found, ours = (storage.find(place)[1] for place in (url, f"{tmp_path}/here"))
    names = {name.removeprefix(f"{tmp_path}/here/") for name in ours}
    assert {name.removeprefix(url + "/") for name in found} == names
    assert [x for x in found if "checkpoint" in x] == [f"{url}/checkpoint-000000012.safetensors"]
    storage.get_folder(url + "/preset", str(tmp_path / "preset"))
    again = kerasbert.models.BertMaskedLM.from_preset(str(tmp_path / "preset"))
    assert again.preprocessor.tokenizer.vocabulary_size() == 120
    # Training can continue from the preset at the URL, with the state of the optimizer.
    more = {x: y for x, y in RUN.items() if x not in ("num_layers", "hidden_dim", "num_heads")}
    more |= {"preset": url, "optimizer_state": "kept", "phases": [[T, 2, 8]]}
    done = kerasbert.pretrain(url + "/examples", memory + "/more", **more)
    assert done["steps"] == 2


@pytest.mark.backends("torch")
def test_the_run_that_began_last_goes_on(memory, corpus):
    class Begin(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1 and not began:
                began.append(storage.read_json(memory + "/running.json"))
                storage.write_text(memory + "/running.json", json.dumps({**began[0], "id": "x"}))

    began = []
    with pytest.raises(BlockingIOError, match=r"written by `pretrain` .* this run stops"):
        kerasbert.pretrain(corpus, memory, **RUN, callbacks=[Begin()])
    assert not [x for x in storage.find(memory)[1] if "checkpoint" in x]
    assert storage.read_json(memory + "/running.json")["id"] == "x"
    with pytest.warns(UserWarning, match="did not record its end: if it still runs, it will stop"):
        kerasbert.pretrain(corpus, memory, **RUN)
    assert not storage.exists(memory + "/running.json")


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.backends("torch")
def test_several_processes_train_in_s3(s3, tmp_path):
    from tests import several_processes as several
    from tests.test_several_processes import start as start_several

    folder = tmp_path / "examples"
    words = [f"word{i}" for i in range(90)]
    lines = [" ".join(words[(i * j) % 80 :][: 3 + i % 5]) for i in range(90) for j in range(1, 5)]
    text = "".join(line + "\n" * (1 + (i % 7 == 6)) for i, line in enumerate(lines))
    (tmp_path / "text.txt").write_text(text)
    settings = {"sequence_length": 24, "sentences": "lines", "workers": 1}
    settings |= {"block_bytes": 1000, "blocks_per_shard": 1}
    examples, output = s3 + "/several/24", s3 + "/trained"
    write_examples(tmp_path / "text.txt", examples, BertTokenizer(several.TOKENS), **settings)
    write_examples(tmp_path / "text.txt", folder / "24", BertTokenizer(several.TOKENS), **settings)
    for code, errors in start_several(s3 + "/several", output, "SIGTERM"):
        assert code and "Stopped after step 20, which is saved" in errors, errors[-2000:]
    several.train(s3 + "/several", output)
    several.train(str(folder), tmp_path / "one")
    losses = [
        [row["loss"] for row in log_of(place, tmp_path)]
        for place in (output, str(tmp_path / "one"))
    ]
    np.testing.assert_allclose(*losses, atol=2e-5)


@pytest.mark.slow
@pytest.mark.peers
def test_a_training_in_s3_is_killed(s3, corpus, tmp_path):
    from tests.training.test_pretrain import CHILD

    def run(output, left):
        command = [sys.executable, "-c", CHILD]
        command += [json.dumps({**RUN, "corpus": corpus, "output": output}), str(left)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
        assert done.returncode == (-signal.SIGKILL if left else 0), done.stderr
        return done.stderr

    url = f"{s3}/{keras.backend.backend()}"
    run(url, 7)
    assert f"{url}/checkpoint-000000004.safetensors" in storage.find(url)[1]
    run(url, 3)
    assert "did not record its end" in run(url, 0)
    run(str(tmp_path / "here"), 0)
    assert log_of(url, tmp_path) == log_of(str(tmp_path / "here"), tmp_path)
    name = "checkpoint-000000012.safetensors"
    assert contents(url)[name] == (tmp_path / "here" / name).read_bytes()
