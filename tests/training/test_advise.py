"""`advise`: from a file to a folder, its results, and resuming."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import kerasbert
from kerasbert.training import arms
from kerasbert.training.advise_settings import AdviseSettings
from tests.cli.test_commands import kerasbert as run_command
from tests.contracts import array


def write(path, count=24, pool=6, seed=0, labels=("nein", "ja")):
    """Write a CSV of good or bad texts, the last ones without a label."""
    random = np.random.default_rng(seed)
    rows = []
    for i in range(count + pool):
        words = random.choice("it was a film the city ann".split(), 4)
        rows.append([f"{' '.join(words)} {('bad', 'good')[i % 2]} {i}", labels[i % 2]])
    for row in rows[count:]:
        row[1] = ""
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return str(path)


def table(path):
    with open(path, newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_tfidf_alone(tmp_path):
    """The texts are Korean, and the files are written for Excel; no backend is involved."""
    path, out = write(tmp_path / "a.csv", labels=("부정", "긍정")), tmp_path / "out"
    found = kerasbert.advise(
        path, None, str(out), folds=3, seeds=[0, 1], label_next=4, verbose=False
    )
    assert found["recommended"] == "tfidf" and list(found["arms"]) == ["tfidf"]
    assert found["arms"]["tfidf"]["accuracy"]["value"] > 0.9
    assert found["baseline"]["accuracy"]["value"] == 0.5
    assert [point["labels"] for point in found["learning_curve"]["tfidf"]] == [4, 8, 16]
    assert sorted(os.listdir(out)) == [
        *("advice.json", "advice.md", "calibration.png", "label_next.csv", "learning_curve.png"),
        *("runs", "settings.json"),
    ]
    assert json.loads((out / "advice.json").read_text("utf-8")) == found
    following = table(out / "label_next.csv")
    assert len(following) == 4 and set(following[0]["suggested"]) <= set("긍정부")
    assert 26 <= int(following[0]["line"]) <= 31
    text = (out / "advice.md").read_text("utf-8")
    assert "긍정" in text and "| TF-IDF |" in text and "None." in text

    # Without unlabeled rows, `advise` says so and removes the old list.
    other = write(tmp_path / "b.csv", pool=0, labels=("부정", "긍정"))
    again = kerasbert.advise(other, None, str(out), folds=3, verbose=False)
    assert not (out / "label_next.csv").exists() and again["label_next"] == []
    assert "All rows have labels" in again["advice"][-1]


@pytest.mark.backends("torch")
def test_all_ways_on_the_same_rows(tmp_path, tiny_preset, monkeypatch):
    given, fit = [], arms.Tfidf.fit

    def noted(self, x, y):
        given.append((x, y.tolist()))
        return fit(self, x, y)

    monkeypatch.setattr(arms.Tfidf, "fit", noted)
    settings = {"folds": 2, "shares": 1, "epochs": 1, "sequence_length": 16, "verbose": False}
    out = str(tmp_path / "out")
    path = write(tmp_path / "a.csv", 12, 3)
    found = kerasbert.advise(path, tiny_preset, out, **settings)
    assert list(found["arms"]) == list(arms.ARMS)
    for name, arm in found["arms"].items():
        assert min(arm["seconds"], arm["milliseconds"], arm["megabytes"]) > 0, name
        assert arm["behind"]["low"] <= arm["behind"]["value"] <= arm["behind"]["high"]
        assert 0 <= arm["calibration"]["error_after"] <= 1
    sizes = {name: arm["megabytes"] for name, arm in found["arms"].items()}
    assert sizes["full"] < sizes["lora"] < 1.3 * sizes["full"]
    # TF-IDF was trained for two folds and, because it is recommended, once more on all labels for
    # the unlabeled rows.
    assert [len(x) for x, _ in given] == [6, 6, 12]
    assert len(found["label_next"]) == 3

    # Finished runs are not repeated; other settings of a method do not match.
    for kind in set(arms.ARMS.values()):
        monkeypatch.setattr(kind, "fit", None)
    again = kerasbert.advise(str(tmp_path / "a.csv"), tiny_preset, out, **settings)
    assert again == found
    with pytest.raises(ValueError, match="have epochs=1, not 3; name another folder"):
        kerasbert.advise(str(tmp_path / "a.csv"), tiny_preset, out, **{**settings, "epochs": 3})
    write(tmp_path / "a.csv", 12, 3, seed=1)
    with pytest.raises(ValueError, match="have other labeled rows"):
        kerasbert.advise(str(tmp_path / "a.csv"), tiny_preset, out, **settings)


@pytest.mark.backends("torch")
def test_pairs(tmp_path, tiny_preset):
    rows = [[f"good {i}", ("good", "bad")[i % 2], ("same", "other")[i % 2]] for i in range(12)]
    with open(tmp_path / "a.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("a", "b", "label"), *rows])
    found = kerasbert.advise(
        str(tmp_path / "a.csv"),
        tiny_preset,
        str(tmp_path / "out"),
        columns=["a", "b"],
        arms=["tfidf", "frozen"],
        folds=2,
        sequence_length=16,
        verbose=False,
    )
    assert list(found["arms"]) == ["tfidf", "frozen"]
    with pytest.raises(ValueError, match="'setfit' does not support text pairs"):
        kerasbert.advise(
            str(tmp_path / "a.csv"),
            tiny_preset,
            str(tmp_path / "b"),
            columns=["a", "b"],
            arms=["setfit"],
            folds=2,
            sequence_length=16,
        )


@pytest.mark.backends("torch")
def test_a_training_goes_on_from_its_last_epoch(tmp_path, tiny_preset, monkeypatch):
    shared = arms.Arms(
        ("no", "yes"),
        AdviseSettings(
            "a.csv",
            tiny_preset,
            "out",
            epochs=2,
            sequence_length=16,
            batch_size=4,
            learning_rate=1e-3,
        ),
        str(tmp_path / "vectors"),
        [],
    )
    x, y = ["good", "bad", "a good film", "a bad film"] * 2, np.array([1, 0] * 4)
    whole = arms.Tuned(shared, 0, str(tmp_path / "whole"))
    whole.fit(x, y)

    keep, folder = arms._Keep.keep, str(tmp_path / "run")

    def stop(self, *args, **facts):
        keep(self, *args, **facts)
        raise KeyboardInterrupt

    monkeypatch.setattr(arms._Keep, "keep", stop)
    with pytest.raises(KeyboardInterrupt):
        arms.Tuned(shared, 0, folder).fit(x, y)
    monkeypatch.setattr(arms._Keep, "keep", keep)
    again = arms.Tuned(shared, 0, folder)
    again.fit(x, y)
    assert int(again.model.optimizer.iterations) == int(whole.model.optimizer.iterations) == 4
    for weight, expected in zip(again.model.weights, whole.model.weights, strict=True):
        np.testing.assert_array_equal(array(weight), array(expected))
    assert again.seconds_before > 0


@pytest.mark.backends("torch")
@pytest.mark.parametrize("arm", ["full", "setfit"])
def test_a_training_that_diverges(tmp_path, tiny_preset, monkeypatch, arm):
    monkeypatch.setattr(arms, "_PAIR_RATE", 1e38)
    with pytest.raises(ValueError, match=f"The run '{arm}-.*' diverged; pass a lower .*at step"):
        kerasbert.advise(
            write(tmp_path / "a.csv", 12),
            tiny_preset,
            str(tmp_path / "out"),
            arms=[arm],
            folds=2,
            shares=1,
            learning_rate=1e38,
            sequence_length=16,
            verbose=False,
        )
    assert not (tmp_path / "out" / "advice.json").exists()


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"arms": ["tf-idf"]}, "arms='tf-idf' is unknown; use one of tfidf, frozen"),
        ({"arms": ["frozen"]}, "'frozen' needs an encoder; pass a preset"),
        ({"preset": "bge_smal_en"}, "did you mean bge_small_en"),
        ({"folds": 1}, "folds=1 must be a whole number of at least 2"),
        ({"shares": [0.5, 2]}, "shares=2 must be at most 1"),
        ({"metric": "f1"}, "metric='f1' is unknown; use one of accuracy, macro_f1"),
        ({"folds": 20}, "too few labels for folds=20"),
    ],
)
def test_bad_settings_leave_nothing(given, said, tmp_path):
    given = {"preset": None, **given}
    path, out = write(tmp_path / "a.csv"), tmp_path / "out"
    with pytest.raises(ValueError, match=said):
        kerasbert.advise(path, given.pop("preset"), str(out), **given)
    assert not out.exists()


@pytest.mark.backends("torch")
def test_a_length_that_the_encoder_has_not(tmp_path, tiny_preset):
    """The error comes first and leaves the folder unchanged, although TF-IDF could have run."""
    with pytest.raises(ValueError, match="48"):
        kerasbert.advise(write(tmp_path / "a.csv"), tiny_preset, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.backends("tensorflow")
def test_a_folder_with_other_things(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="has other files; name another"):
        kerasbert.advise(write(tmp_path / "a.csv"), None, str(tmp_path / "out"), verbose=False)


@pytest.mark.backends("tensorflow")
def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    path, out = write(tmp_path / "a.csv"), tmp_path / "out"
    found = kerasbert.advise(path, None, str(out), folds=2, shares=1, verbose=False)
    assert "matplotlib" in found["notes"][-1] and not (out / "calibration.png").exists()


@pytest.mark.backends("tensorflow")
def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.csv")
    done = run_command("advise", "a.csv", "--folds", "2", "--shares", "1", "--seeds", "0,1")
    assert done.exit_code == 0, done.output
    assert "4 of 4: tfidf, 12 labels, seed 1, fold 2 of 2" in done.stderr
    assert "Only one method was tried, TF-IDF" in done.stdout
    assert "read advice.md first" in done.stdout
    done = run_command("advise", "a.csv", "--folds", "2", "--shares", "1", "--json")
    assert "already done" in done.stderr and json.loads(done.stdout)["recommended"] == "tfidf"
    done = run_command("advise", "a.csv", "--label", "klasse")
    assert done.exit_code == 2 and "no column 'klasse'" in done.stderr


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_killed_again_and_again(tmp_path, tiny_preset):
    """`advise` is killed after every second run; in the end, it has the same scores and rows as a
    single call.
    """
    path = write(tmp_path / "a.csv", 24)
    given = {"folds": 2, "shares": 1, "epochs": 1, "sequence_length": 16}
    given["arms"] = ["tfidf", "frozen", "full"]
    killed = tmp_path / "killed"
    code = f"import sys, kerasbert; kerasbert.advise(*sys.argv[1:], **{given})"
    command = [sys.executable, "-c", code, path, tiny_preset, str(killed)]

    def done():
        return len(list(killed.glob("runs/*.npz")))

    for _ in range(2):
        before, process = done(), subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while process.poll() is None and done() < before + 2:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    for folder in ("whole", "killed"):
        kerasbert.advise(path, tiny_preset, str(tmp_path / folder), verbose=False, **given)
    results = []
    for name in ("whole", "killed"):
        found = json.loads((tmp_path / name / "advice.json").read_text("utf-8"))
        scores = {k: (v["accuracy"], v["calibration"]) for k, v in found["arms"].items()}
        results.append((scores, found["label_next"], found["check_labels"]))
        assert not [x for x in os.listdir(tmp_path / name) if x.startswith(".")]
    assert results[0] == results[1]
