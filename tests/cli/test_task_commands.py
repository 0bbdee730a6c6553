"""`finetune`, `evaluate` and `predict`, from files to files, and errors for bad ones."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from kerasbert import export
from kerasbert.cli.app import numbers
from kerasbert.converter import convert
from kerasbert.models import BertTextEmbedder
from kerasbert.training import finetune as loop
from kerasbert.training.recording import Pulse
from tests.cli.test_commands import kerasbert

SMALL = ["--epochs", "1", "--learning-rates", "1e-2", "--batch-sizes", "8"]
SMALL += ["--sequence-length", "40"]


def table(path, header, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def squad(path, rows, version="1.1"):
    """Make SQuAD's JSON from `(id, question, context, answer)`; `None` for no answer."""
    paragraphs = []
    for name, question, context, answer in rows:
        answers = [{"text": answer, "answer_start": context.find(answer)}] if answer else []
        qas = [{"id": name, "question": question, "answers": answers}]
        paragraphs.append({"context": context, "qas": qas})
    content = {"version": version, "data": [{"title": "t", "paragraphs": paragraphs}]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.fixture
def films(tmp_path):
    """Files of texts and labels: `train.csv` and `dev.csv`."""
    rows = [["it was a good film", "yes"], ["a bad film", "no"], ["good", "yes"], ["bad", "no"]]
    table(tmp_path / "train.csv", ["text", "label"], rows * 4)
    table(tmp_path / "dev.csv", ["text", "label"], rows)
    return tmp_path


@pytest.mark.backends("torch")
def test_processes_of_a_launcher(films, tiny_preset, monkeypatch):
    files = ["--train", films / "train.csv", "--dev", films / "dev.csv"]
    said = []
    for index in (0, 1):
        monkeypatch.setattr(loop.backend, "launched", lambda index=index: (index, 2))
        done = kerasbert("finetune", tiny_preset, films / "out", *files, *SMALL, "--seeds", "0,1")
        assert done.exit_code == 0, done.output
        said.append(done.stdout)
    assert "Runs of this process: 1. The last process to finish combines" in said[0]
    assert "accuracy on dev" in said[1] and f"kerasbert predict {films}/out/model" in said[1]


@pytest.mark.backends("torch")
def test_from_files_to_answers(films, tiny_preset):
    out = films / "out"
    files = ["--train", films / "train.csv", "--dev", films / "dev.csv"]
    done = kerasbert("finetune", tiny_preset, out, *files, *SMALL, "--seeds", "0,1")
    assert done.exit_code == 0, done.output
    assert "Run 2 of 2: batch 8, rate 0.01, epochs 1, seed 1" in done.stderr
    assert "Run" not in done.stdout and "accuracy on dev" in done.stdout
    assert f"kerasbert predict {out}/model FILE" in done.stdout
    again = kerasbert("finetune", tiny_preset, out, *files, *SMALL, "--seeds", "0,1", "--json")
    assert "already done" in again.stderr
    results = json.loads(again.stdout)
    assert len(results["runs"]) == 2

    # The model stores its task; other files may have other column names.
    other = table(films / "new.csv", ["review", "fine"], [["good", "yes"], ["a bad one", "no"]])
    done = kerasbert(
        "evaluate", out / "model", other, "--text", "review", "--label", "fine", "--json"
    )
    assert done.exit_code == 0, done.output
    scored = json.loads(done.stdout)
    assert (scored["split"], scored["examples"], scored["metric"]) == ("new.csv", 2, "accuracy")
    done = kerasbert("predict", out / "model", other, "--text", "review")
    answers = [line.split("\t") for line in done.stdout.splitlines()]
    assert [name for name, _, _ in answers] == ["0", "1"]
    assert all(0.5 <= float(probability) <= 1 for _, _, probability in answers)
    right = [answer == gold for (_, answer, _), gold in zip(answers, ["yes", "no"])]
    assert scored["scores"]["accuracy"] == sum(right) / 2
    done = kerasbert("predict", out / "model", other, "--text", "review", "--output", films / "in")
    (path,) = done.stdout.split()
    with open(path, encoding="utf-8") as file:
        assert file.read() == "index\tprediction\n" + "".join(
            f"{name}\t{answer}\n" for name, answer, _ in answers
        )
    shown = kerasbert("evaluate", out / "model", films / "dev.csv").stdout
    assert "this model, dev.csv" in shown and "4 examples." in shown
    # Plain text, one text per line, or a table with one column: every line gets an answer, even
    # empty ones.
    (films / "my texts.txt").write_text("good\n\na bad one\n", encoding="utf-16")
    shown = kerasbert("predict", out / "model", films / "my texts.txt").stdout.splitlines()
    assert [line.split("\t")[0] for line in shown] == ["0", "1", "2"]
    assert [shown[0].split("\t")[1:], shown[2].split("\t")[1:]] == [row[1:] for row in answers]
    (films / "table.txt").write_text("id\ttext\nm1\tgood\nm2\tbad\n")
    shown = kerasbert("predict", out / "model", films / "table.txt", "--limit", "1", "--json")
    found = json.loads(shown.stdout)
    assert found["ids"] == ["m1"] and sum(found["probabilities"][0].values()) == pytest.approx(1)
    assert set(found["probabilities"][0]) == {"yes", "no"}
    assert "first 1 examples (--limit)" in shown.stderr
    # Another encoding.
    with open(films / "cp949.csv", "w", encoding="cp949") as file:
        file.write("text\n이 영화는 재미있다\n")
    done = kerasbert("predict", out / "model", films / "cp949.csv")
    assert done.exit_code == 2 and "it may be cp949, then pass --encoding cp949" in done.stderr
    done = kerasbert("predict", out / "model", films / "cp949.csv", "--encoding", "cp949")
    assert done.exit_code == 0 and len(done.stdout.splitlines()) == 1
    # The model is of the wrong kind, or the folder has no model.
    done = kerasbert("evaluate", out / "model", films, "--task", "squad")
    assert done.exit_code == 2
    assert "is a BertTextClassifier, but the task 'squad' needs a BertQuestion" in done.stderr
    done = kerasbert("evaluate", out / "model", films, "--task", "sst2")
    assert done.exit_code == 2
    assert "The model's classes are no, yes, but those of 'sst2' are neg" in done.stderr


def other_tasks(folder):
    """Return the options of `finetune` and the submission file for each kind of task."""
    words = [["Ann B-PER", "is O", "old O", ""], ["in O", "Rome B-LOC", ""]] * 6
    (folder / "words.conll").write_text("\n".join(line for row in words for line in row))
    pairs = [["who is old ?", "ann is old", 1.0], ["who is bad ?", "lee was good", 0.0]] * 6
    table(folder / "pairs.csv", ["question", "answer", "score"], pairs)
    questions = [(f"q{i}", "who is old ?", "in rome ann is old .", "ann") for i in range(12)]
    squad(folder / "questions.json", questions)
    squad(folder / "none.json", [(f"{i}", "who ?", "it was .", None) for i in range(3)], "2.0")
    choices = [["it was", "a film", "good", "bad", "old", "in", 0], ["who", "is", *"abcd", 3]] * 6
    names = ["sent1", "sent2", "ending0", "ending1", "ending2", "ending3", "label"]
    table(folder / "choices.csv", names, choices)
    rows = [
        ("a good film", ["good"]),
        ("bad", ["bad"]),
        ("it was", []),
        ("good bad", ["good", "bad"]),
    ]
    (folder / "several.jsonl").write_text(
        "".join(json.dumps({"text": text, "label": names}) + "\n" for text, names in rows * 4)
    )
    cells = [[text, "good" in names, "bad" in names] for text, names in rows * 4]
    table(folder / "several.csv", ["text", "good", "bad"], cells)
    cells = [(i, *row) for i in range(8) for row in (("ann", "B-PER"), ("runs", "O"))]
    table(folder / "words.csv", ["sentence", "word", "tag"], cells)
    row = json.dumps({"id": 1, "text": "ann was good", "label": [[0, 3, "PER"]]}) + "\n"
    (folder / "spans.jsonl").write_text(row * 8)
    return {
        "pairs": (
            ["--train", "pairs.csv", "--text", "question", "--text-b", "answer", "--label", "score"]
            + ["--head", "text_regressor"],
            "predictions.tsv",
        ),
        "queries": (
            ["--train", "pairs.csv", "--text", "question", "--text-b", "answer", "--label", "score"]
            + ["--head", "reranker"],
            "predictions.tsv",
        ),
        "words": (["--train", "words.conll", "--head", "token_classifier"], "predictions.tsv"),
        "questions": (
            ["--task", "squad", "--train", "questions.json", "--dev", "questions.json"]
            + ["--set", "max_query_length=8", "--set", "doc_stride=16"],
            "predictions.json",
        ),
        "choices": (
            ["--train", "choices.csv", "--head", "multiple_choice", "--text", "sent1"]
            + ["--choices", "ending0,ending1,ending2,ending3", "--choice-start", "sent2"],
            "predictions.tsv",
        ),
        "several": (["--train", "several.jsonl"], "predictions.tsv"),
        "columns": (["--train", "several.csv", "--label", "good,bad"], "predictions.tsv"),
        "word rows": (["--train", "words.csv", "--head", "token_classifier"], "predictions.tsv"),
        "spans": (["--train", "spans.jsonl", "--head", "token_classifier"], "predictions.tsv"),
    }


OTHERS = ["pairs", "queries", "words", "questions", "choices"]
OTHERS += ["several", "columns", "word rows", "spans"]


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", OTHERS)
def test_other_kinds_of_tasks(name, tiny_preset, tmp_path, monkeypatch):
    options, submission = other_tasks(tmp_path)[name]
    monkeypatch.chdir(tmp_path)
    done = kerasbert("finetune", tiny_preset, "out", *options, *SMALL, "--json")
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)
    assert os.listdir("out/predictions/dev") == [submission]
    assert results["metric"] in results["scores"] and "confusion.png" not in os.listdir("out")
    file = options[options.index("--train") + 1]
    # `predict` needs no labels: the model alone determines the columns.
    done = kerasbert("predict", "out/model", file, "--output", "handed_in")
    assert done.exit_code == 0, done.output
    assert os.listdir("handed_in") == [submission]
    done = kerasbert("evaluate", "out/model", file, "--json")
    assert set(json.loads(done.stdout)["scores"]) == set(results["scores"])


@pytest.mark.backends("torch")
def test_a_model_without_its_task(films, tiny_preset):
    """The classifier was not made by `finetune`, so its task is unknown."""
    done = kerasbert("evaluate", tiny_preset, films / "dev.csv", "--json")
    assert done.exit_code == 0, done.output
    assert set(json.loads(done.stdout)["scores"]) == {"accuracy", "macro_f1", "matthews"}


# === Bad input ===


def wrong_files(folder):
    """Cases by name: options of `finetune`, and its error."""
    table(folder / "unknown.csv", ["text", "label"], [["good", "yes"], ["bad", "maybe"]])
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("text,label\n")
    (folder / "glue").mkdir()
    train = ["--train", "train.csv"]
    return {
        "no task": ([], "pass --task with a name"),
        "missing column": ([*train, "--text", "txt"], "train.csv' has no column 'txt'"),
        "missing labels": ([*train, "--label", "y"], "has no column 'y' for the labels"),
        "unknown label": (
            [*train, "--dev", "unknown.csv"],
            "unknown.csv', line 3: the label 'maybe' is unknown; known are 'no', 'yes'",
        ),
        "empty file": ([*train, "--dev", "empty.csv"], "empty.csv' is empty"),
        "only a header": (["--train", "header.csv"], "header.csv' has a header but no rows"),
        "no file": (["--train", "tain.csv"], "There is no file 'tain.csv' for train"),
        "no such folder": (["--task", "rte", "--data", "gleu"], "'gleu' is not a folder"),
        "no files of the task": (
            ["--task", "rte", "--data", "glue"],
            "The folder 'glue' has no RTE/train.tsv of the task 'rte'; get it from https://",
        ),
        "unknown task": (["--task", "rtee"], "Unknown task 'rtee'; did you mean rte"),
        "own columns": (["--task", "rte", "--label", "y"], "--label is for your own files"),
        "folder of files": ([*train, "--data", "glue"], "pass your own files with --train"),
        "second text": ([*train, "--text-b", "b"], "--text-b needs --text"),
        "no numbers": (
            [*train, "--epochs", "2,x"],
            "--epochs must be comma-separated whole numbers, got '2,x'",
        ),
        "metric": ([*train, "--metrics", "acc"], "metrics='acc' is unknown; use one of accuracy"),
        "no choices": (
            [*train, "--head", "multiple_choice", "--text", "text"],
            "has no column 'choices'",
        ),
        "no numbers as labels": (
            [*train, "--head", "text_regressor"],
            "train.csv', line 2: the label 'yes' must be a finite number",
        ),
        "grades": (
            [*train, "--head", "reranker"],
            "the label 'yes' must be a number of at least 0",
        ),
        "rank of nothing": (
            [*train, "--method", "setfit", "--lora-rank", "4"],
            "lora_rank=4 needs method='lora'; leave it out for 'setfit'",
        ),
        "pairs of nothing": ([*train, "--pairs", "4"], "pairs=4 needs method='setfit'"),
        "no way to draw": (
            [*train, "--method", "setfit", "--pairs", "all"],
            "pairs='all' is unknown; use one of oversampling, undersampling, unique",
        ),
        "setting": ([*train, "--set", "dropout"], "--set 'dropout' is not name=value"),
        "length": ([*train, "--sequence-length", "99"], "exceeds the encoder's 48"),
    }


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "name",
    [
        "no task",
        "missing column",
        "missing labels",
        "unknown label",
        "empty file",
        "only a header",
        "no file",
        "no such folder",
        "no files of the task",
        "unknown task",
        "own columns",
        "folder of files",
        "second text",
        "no numbers",
        "metric",
        "no choices",
        "no numbers as labels",
        "grades",
        "rank of nothing",
        "pairs of nothing",
        "no way to draw",
        "setting",
        "length",
    ],
)
def test_bad_input(name, films, tiny_preset, monkeypatch):
    monkeypatch.chdir(films)
    options, message = wrong_files(films)[name]
    before = sorted(os.listdir())
    done = kerasbert("finetune", tiny_preset, "out", *options)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert message in done.stderr.splitlines()[-1]
    assert sorted(os.listdir()) == before


def test_a_folder_that_is_no_checkpoint(films):
    """The error comes before any data are read, which may take minutes."""
    (films / "empty").mkdir()
    for preset, message in (
        (films / "empty", "empty' is not a checkpoint that kerasbert knows"),
        (films / "train.csv", "train.csv' is a file; pass the preset directory"),
        ("bert_tiny_en_uncasd", "Unknown preset 'bert_tiny_en_uncasd'"),
    ):
        for task in (["--train", "not_there.csv"], ["--task", "rte", "--data", "nowhere"]):
            done = kerasbert("finetune", preset, films / "out", *task)
            assert done.exit_code == 2 and message in done.stderr


@pytest.mark.backends("torch")
def test_a_limit_and_the_test_scores_are_said(films, tiny_preset, monkeypatch):
    monkeypatch.setattr(Pulse, "EVERY", 0.0)
    splits = {name: films / f"{name}.csv" for name in ("train", "dev")}
    table(films / "test.csv", ["text", "label"], [["good film", "yes"], ["bad film", "no"]] * 4)
    files = [x for name, path in splits.items() for x in (f"--{name}", path)]
    files += ["--test", films / "test.csv"]
    out = films / "out"
    done = kerasbert("finetune", tiny_preset, out, *files, *SMALL, "--limit", "6", "--json")
    assert done.exit_code == 0, done.output
    said = "6 of the 16 training examples, 6 of the 8 test examples"
    assert said in done.stderr
    # Without a terminal, lines replace the progress bar.
    assert "epoch 1 of 1, batch 1 of 1: loss " in done.stderr
    results = json.loads(done.stdout)
    assert results["examples"] == {"train": 6, "dev": 4, "test": 6}
    card = (out / "model" / "README.md").read_text(encoding="utf-8")
    assert said in card and f"accuracy | {round(results['test_scores']['accuracy'], 4)} |" in card
    assert "4 dev examples:" in card and "6 test examples:" in card


@pytest.mark.backends("torch")
def test_bad_models_and_data(films, tiny_preset, tmp_path):
    done = kerasbert("evaluate", tiny_preset)
    assert done.exit_code == 2 and "has no data of its own; pass a file, or" in done.stderr
    done = kerasbert("predict", tiny_preset, "nowhere.csv")
    assert done.exit_code == 2 and "There is no file or folder 'nowhere.csv'" in done.stderr
    done = kerasbert("evaluate", tiny_preset, films / "dev.csv", "--text", "a", "--text-b", "b")
    assert done.exit_code == 2 and "reads 1 text columns (text), got 2" in done.stderr
    # An encoder has no head.
    encoder = tmp_path / "encoder"
    shutil.copytree(tiny_preset, encoder)
    os.remove(encoder / "task.json")
    done = kerasbert("predict", encoder, films / "dev.csv")
    assert done.exit_code == 2
    assert "is a BertBackbone, which has no head for a task; fine-tune it" in done.stderr
    for options, message in (
        (("--set", "top_k=3"), "top_k=3 is not a setting of this model"),
        (
            ("--signature", "classify"),
            "signatures='classify' is unknown; use one of",
        ),
        (("--labels", "a,b"), "this model has no classes"),
    ):
        done = kerasbert("export", encoder, tmp_path / "served", *options)
        assert done.exit_code == 2 and message in done.stderr
        assert not (tmp_path / "served").exists()


@pytest.mark.backends("torch")
def test_ctrl_c_says_how_to_go_on(films, tiny_preset, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "finetune", stop)
    done = kerasbert("finetune", tiny_preset, "out", "--train", films / "train.csv")
    assert done.exit_code == 130
    assert "kept in 'out'; run the same command" in done.stderr


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_real_signals(films, tiny_preset, monkeypatch):
    """A grid of three learning rates and two batch sizes is interrupted in its second run and
    killed in its fourth.
    """
    arguments = ["finetune", tiny_preset, "out", "--train", "train.csv", "--dev", "dev.csv"]
    arguments += ["--learning-rates", "1e-2,3e-3,1e-3", "--batch-sizes", "8,4"]
    arguments += ["--epochs", "1", "--sequence-length", "40"]
    command = [sys.executable, "-c", "from kerasbert.cli import main; main()", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.path.abspath(os.curdir)}

    def run(number, sent):
        said = []
        with subprocess.Popen(
            command,
            cwd=films,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            # Background jobs ignore SIGINT, and so would their children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process:
            for line in process.stderr:
                said.append(line.rstrip())
                if line.startswith(f"Run {number} of 6") and "already done" not in line:
                    process.send_signal(sent)
        return process.returncode, said

    def before(said):
        return [int(line.split()[1]) for line in said if line.endswith("already done.")]

    code, said = run(2, signal.SIGINT)
    assert code == 130 and before(said) == []
    assert "kept in 'out'; run the same command" in said[-1]
    code, said = run(4, signal.SIGKILL)
    assert code == -signal.SIGKILL and before(said) == [1]
    monkeypatch.chdir(films)
    done = kerasbert(*arguments)
    assert done.exit_code == 0 and before(done.stderr.splitlines()) == [1, 2, 3]
    assert len(os.listdir(films / "out" / "runs")) == 6


@pytest.mark.slow
def test_export(tiny_preset, tmp_path):
    (tmp_path / "warmup.jsonl").write_text('"a film"\n["good", "bad"]\n')
    done = kerasbert(
        *("export", tiny_preset, tmp_path / "served", "--json", "--labels", "nein,ja"),
        *("--warmup", tmp_path / "warmup.jsonl", "--signature", "serving_default"),
        *("--signature", "pair"),
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"directory": str(tmp_path / "served" / "1")}
    with open(tmp_path / "served" / "1" / "assets.extra" / "card.json") as file:
        card = json.load(file)
    assert list(card["signatures"]) == ["serving_default", "pair"]
    assert card["labels"] == ["nein", "ja"]
    done = kerasbert("export", tiny_preset, tmp_path / "served", "--tokens-only", "--version", "7")
    assert done.exit_code == 0 and done.stdout.strip() == str(tmp_path / "served" / "7")


@pytest.mark.backends("torch")
@pytest.mark.parametrize("format", ["saved_model", "litert"])
def test_export_of_what_a_folder_holds(tiny_preset, tmp_path, monkeypatch, format):
    """Every format exports the same class; for sentence-transformers folders, this is the
    embedder.
    """
    folder = tmp_path / "theirs"
    convert(BertTextEmbedder.from_preset(tiny_preset), folder)
    for name in ("export_serving", "export_litert"):
        monkeypatch.setattr(export, name, lambda model, *_, **__: type(model).__name__)
    done = kerasbert("export", folder, tmp_path / "served", "--format", format)
    assert done.exit_code == 0 and done.stdout.strip() == "BertTextEmbedder"


@pytest.mark.backends("torch")
def test_lists():
    assert numbers("--x", "1,2", int) == [1, 2]
    assert numbers("--x", "5e-5", float) == [5e-5]
