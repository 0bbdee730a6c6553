"""`bench`: its measurements, its notes on formats that it skips, and an interrupted run."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import kerasbert
from kerasbert.base.files import read_json
from kerasbert.measuring import bench as room
from kerasbert.measuring import contestant
from kerasbert.measuring.bench import advice, bench
from kerasbert.models import BertMultiTask, BertTextClassifier
from tests.cli.test_commands import kerasbert as run
from tests.export import tiny

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("a good film\n\nwho is ann lee?\nbad bad " + "bad " * 60 + "\n \n")
    return path


# === Without child processes ===


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_mistakes_are_one_sentence(tiny_preset, texts, tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    encoder = tmp_path / "encoder"
    classifier = BertTextClassifier.from_preset(tiny_preset)
    classifier.backbone.save_to_preset(encoder)
    classifier.preprocessor.tokenizer.save_to_preset(encoder)
    numbers = tmp_path / "numbers.jsonl"
    numbers.write_text('"a film"\n7\n')
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text('"a film"\n["a film", "good"]\n')
    for arguments, message in (
        ((tiny_preset, tmp_path / "empty.txt"), "is empty."),
        ((tiny_preset, tmp_path / "none.txt"), "No such file"),
        ((tiny_preset, texts, "--formats", "onxx"), "Unknown format 'onxx' in formats"),
        ((tiny_preset, texts, "--seconds", "0"), "seconds=0.0 must be a number above 0"),
        ((encoder, texts), "has no head to answer texts; read it as another task, such as --task"),
        ((tiny_preset, numbers), "position 1 is 7; pass a string, or a tuple of two"),
        ((tiny_preset, mixed), "pass single texts or pairs, not both"),
        ((tiny_preset, texts, "--text-b", "b"), "--text-b needs --text"),
    ):
        done = run("bench", *arguments)
        assert (done.exit_code, done.stdout) == (2, ""), done.output
        assert message in done.stderr and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.backends("tensorflow")
def test_models_that_cannot_be_measured():
    classifier = tiny.task("TextClassifier")
    several = BertMultiTask({"a": classifier})
    bare = BertTextClassifier(classifier.backbone, 2)
    for model, message in ((several, "with several heads"), (bare, "has no preprocessor")):
        with pytest.raises(ValueError, match=message):
            bench(model, ["a"], verbose=False)
    classifier.quantize("int8")
    with pytest.raises(ValueError, match="is quantized.* measure the original model"):
        bench(classifier, ["a"], verbose=False)
    masked = tiny.task("MaskedLM")
    with pytest.raises(ValueError, match="mask"):
        bench(masked, ["nothing hidden"], verbose=False)


@pytest.mark.backends("tensorflow")
def test_missing_extras(monkeypatch):
    def need(what, extra, *packages):
        if extra != "litert":
            raise ImportError(f"{what} needs the extra {extra}")

    monkeypatch.setattr(room, "need_packages", need)
    chosen, left_out = room._chosen(["keras/bfloat16", "onnx", "openvino", "litert"])
    assert chosen == ["keras/bfloat16", "litert/float32", "litert/int8"]
    assert left_out == ["onnx needs the extra onnx", "openvino needs the extra openvino"]
    with pytest.raises(ValueError, match="onnx needs the extra onnx"):
        room._chosen(["onnx"])


def test_advice():
    def row(name, share, p50, rate):
        format, precision = name.split("/")
        return {
            "format": format,
            "precision": precision,
            "share": share,
            "difference": 3 * share,
            "latency_ms": {"p50": p50},
            "texts_per_second": rate,
        }

    exact = [row("onnx/float32", 0, 3, 100), row("saved_model/float32", 1e-6, 7, 500)]
    said = advice([*exact, {"error": "no"}], 8)
    assert said == (
        "For single texts use onnx/float32 (3.0 ms); for batches of 8 saved_model/float32 "
        "(500 texts/s)."
    )
    said = advice([*exact, row("onnx/int8", 0.1, 1, 200)], 8)
    assert "differences of 0.3" in said and said.endswith(
        "onnx/int8 (1.0 ms) and saved_model/float32 (500 texts/s)."
    )
    assert advice([{"error": "no"}], 8) == "No format could be measured."


def test_texts_come_again_and_again_in_one_order():
    columns = {"text": list("abc"), "text_b": list("ABC")}
    rows, again = contestant.Rows(columns), contestant.Rows(columns)
    seen = [rows.take(2) for _ in range(3)]
    assert all(one["text_b"] == [x.upper() for x in one["text"]] for one in seen)
    flat = [x for one in seen for x in one["text"]]
    assert sorted(flat[:3]) == list("abc") and flat[:3] == flat[3:]
    assert [again.take(1)["text"][0] for _ in range(3)] == flat[:3]
    assert len(contestant.Rows({"text": ["only"]}).take(32)["text"]) == 32


def test_differences_are_counted_where_answers_are(tmp_path):
    mask = np.array([[1, 1, 0]])
    wanted = np.array([[1.0, -1e9, 5.0]], "float32")
    np.savez(
        tmp_path / "expected.npz",
        **{"0/features/padding_mask": mask, "0/outputs/logits": wanted},
    )
    job = {"batches": 1, "inputs": ["padding_mask"], "outputs": ["logits"], "impossible": 1e8}

    def off(*values):
        found = np.array([values])
        return contestant._difference(lambda _: {"logits": found}, tmp_path, job)

    # The second number means "impossible", and the third is at padding.
    assert off(1.25, 0, 0) == 0.25
    assert off(1.25, 0, 0, 9) == 0.25  # LiteRT's padding does not count either.
    assert off(-2, 0, 0) == 3


def test_peak_of_the_memory():
    # In a separate process, because this one may have used more memory before.
    code = (
        "import numpy as np; from kerasbert.base.memory import peak_bytes; before = peak_bytes(); "
        "held = np.ones(30_000_000); print(peak_bytes() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0.8 * 8 * 30_000_000


# === The whole benchmark ===


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.backends("tensorflow")
def test_formats_in_processes_of_their_own(tiny_preset, texts, tmp_path):
    path = tmp_path / "bench.json"
    settings = ("--seconds", 0.1, "--rounds", 2, "--json", path)
    formats = ("--formats", "keras/float32,onnx/int8")
    done = run("bench", tiny_preset, texts, *settings, *formats)
    assert done.exit_code == 0, done.output
    keras, onnx = check(json.loads(path.read_text()), ["keras/float32", "onnx/int8"])
    assert keras["memory_mb"] > 10 and onnx["memory_mb"] > 10
    # The process imports neither Keras nor TensorFlow.
    assert onnx["memory_mb"] < 0.5 * keras["memory_mb"]
    assert "onnx/int8" in done.stdout and "For single texts use" in done.stdout


def check(found, formats):
    assert (found["model"], found["texts"], found["left_out"]) == ("BertTextClassifier", 3, [])
    assert [f"{row['format']}/{row['precision']}" for row in found["results"]] == formats
    for row in found["results"]:
        assert "error" not in row, row
        percentiles = row["latency_ms"]
        assert 0 < percentiles["p50"] <= percentiles["p95"] <= percentiles["p99"]
        assert row["texts_per_second"] > 0 and row["size_mb"] > 0.01
        assert row["difference"] < (1e-5 if row["precision"] == "float32" else 0.1), row
        assert row["note"] == ""
    return found["results"]


CASES = {
    "TokenClassifier": ["a good film", "größe 日本語 abc"],
    "TextEmbedder": [("a good", "film"), ("b", "c d e")],
    "MaskedLM": ["a [MASK] film", "[MASK] good [MASK]"],
    "NextSentencePredictor": [("a good", "film"), ("b", "c d e")],
    "MultipleChoice": [("a good", ["film", "b"]), ("b", ["c", "d e", "f"])],
    "QuestionAnswering": [("who?", "it was ann lee of rome. " * 20), ("who?", "lee")],
}


class Here:
    """A contestant that measures in this process, so that TensorFlow is imported only once."""

    def __init__(self, folder, spec, _):
        self._job = read_json(os.path.join(folder, "job.json"))
        format, precision = spec.split("/")
        path = os.path.join(folder, format, precision)
        self._run, compute, note = contestant.LOADERS[format](path, precision, self._job)
        difference = contestant._difference(compute, folder, self._job)
        self._found = {"difference": difference, "note": note}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def answer(self):
        return self._found

    def run(self):
        rows = contestant.Rows(self._job["columns"])
        singles, batches = (
            contestant._timed(self._run, rows, size, self._job["seconds"])
            for size in (1, self._job["batch_size"])
        )
        return {"singles": singles, "batches": batches, "memory": None}


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.backends("tensorflow")
def test_every_format(tiny_preset, texts, monkeypatch):
    monkeypatch.setattr(room, "Child", Here)
    tiny.write_here(monkeypatch)
    lines = [line for line in texts.read_text().splitlines() if line.strip()]
    found = bench(str(tiny_preset), lines, rounds=1, seconds=0.05, verbose=False)
    check(found, list(room.FORMATS))


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("name", CASES)
def test_every_kind(name, monkeypatch):
    monkeypatch.setattr(room, "Child", Here)
    tiny.write_here(monkeypatch)
    windows = name == "QuestionAnswering"
    formats = ["keras/float32", "onnx/float32"] + ["litert/float32"] * windows
    settings = {"rounds": 1, "seconds": 0.05, "batch_size": 3, "formats": formats}
    found = bench(tiny.task(name), CASES[name], verbose=False, **settings)
    for row in found["results"]:
        if windows and row["format"] in ("onnx", "litert"):
            assert "splits contexts into windows" in row["error"]
            continue
        assert "error" not in row, row
        assert row["share"] < 1e-5 and row["note"] == "", row


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_on_other_backends(tiny_preset):
    formats = ["keras", "saved_model/float32"]
    found = bench(tiny_preset, ["a good film"], rounds=1, seconds=0.05, formats=formats)
    assert [row["format"] for row in found["results"]] == ["keras", "keras", "saved_model"]
    for row in found["results"]:
        assert "error" not in row, row


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.backends("tensorflow")
def test_a_format_that_refuses_the_model():
    model = tiny.task("TextClassifier", bilstm_units=4)
    settings = {"rounds": 1, "seconds": 0.05, "formats": ["litert/float32", "onnx/float32"]}
    lite, onnx = sorted(bench(model, ["a b"], **settings)["results"], key=lambda x: x["format"])
    assert "LiteRT" in lite["error"] or "TensorFlow's process failed" in lite["error"]
    assert "error" not in onnx


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_stopped_it_leaves_nothing(tiny_preset, texts, tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    code = "from kerasbert.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "bench", tiny_preset, texts, "--formats", "keras/float32"],
        env={**os.environ, "PYTHONPATH": ROOT, "TMPDIR": str(folder)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell may have started the tests with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    for line in process.stderr:
        if "round 1" in line:
            break
    assert os.listdir(folder)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    said = process.stderr.read()
    assert process.wait(60) == 130
    assert "Stopped; nothing was measured." in said and "Traceback" not in said
    assert os.listdir(folder) == []


def test_public_name():
    assert kerasbert.bench is bench
