"""The data that `advise` reads, omits and rejects; folds."""

import csv

import numpy as np
import pytest

from kerasbert.training.advise_settings import AdviseSettings
from kerasbert.training.labeled import read_labeled

pytestmark = pytest.mark.backends("tensorflow")  # No backend is involved.


def write(path, rows, header=("text", "label"), encoding="utf-8", delimiter=","):
    with open(path, "w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return str(path)


def read(path, **settings):
    return read_labeled(path, AdviseSettings(path, None, "out", **{"folds": 2, **settings}))


def rows(count=3, labels=("a", "b")):
    return [[f"{label} text {i}", label] for i in range(count) for label in labels]


def test_labels_and_the_pool(tmp_path):
    given = [*rows(), ["new", ""], ["NEW ", ""], ["a text 0", ""], [" ", "a"], ["", ""]]
    found = read(write(tmp_path / "a.csv", given))
    assert found.labels == ("a", "b") and found.y.tolist() == [0, 1] * 3
    assert found.rows.x == ([text for text, _ in given[:6]],)
    assert found.rows.places == [2, 3, 4, 5, 6, 7] and found.rows.unit == "line"
    assert found.pool.x == (["new"],) and found.pool.places == [8]
    assert any("1 row without text" in x and "first in line" in x for x in found.notes)
    assert any("2 unlabeled rows" in x for x in found.notes)


@pytest.mark.parametrize(
    ("encoding", "delimiter", "given"),
    [("utf-8-sig", ";", None), ("cp949", ",", "cp949"), ("utf-16", "\t", None)],
)
def test_what_excel_writes_in_korean(encoding, delimiter, given, tmp_path):
    table = [
        [f"{word} 영화 {i}", label]
        for i in range(2)
        for word, label in zip("좋나", ("긍정", "부정"))
    ]
    name = "a.tsv" if delimiter == "\t" else "a.csv"
    path = write(tmp_path / name, table, ("본문", "분류"), encoding, delimiter)
    found = read(path, columns=["본문"], label="분류", encoding=given)
    assert found.labels == ("긍정", "부정") and found.rows.x[0][0] == "좋 영화 0"


def test_pairs(tmp_path):
    table = [[f"q{i}", f"a{i}", "no" if i % 2 else "yes"] for i in range(6)]
    found = read(write(tmp_path / "a.csv", table, ("q", "a", "label")), columns=["q", "a"])
    assert found.rows.take([0, 1]) == (["q0", "q1"], ["a0", "a1"])


def test_equal_texts_stay_together(tmp_path):
    table = [*rows(8), *(["A  TEXT 1", "a"] for _ in range(3)), ["ａ text 1", "b"]]
    found = read(write(tmp_path / "a.csv", table), folds=4)
    folds = found.folds(4, seed=0)
    same = [i for i, key in enumerate(found.rows.keys()) if key == ("a text 1",)]
    assert len(same) == 5 and len(set(folds[same])) == 1
    for fold in range(4):  # Each fold has texts of both classes.
        assert set(found.y[folds == fold]) == {0, 1}
    assert any("4 rows repeat" in note for note in found.notes)
    assert any("1 text has more than one label" in note for note in found.notes)
    assert (folds != found.folds(4, seed=1)).any()


def test_shares_hold_each_other_and_each_class(tmp_path):
    table = [*rows(20, ("a",)), *rows(2, ("b",))]
    found = read(write(tmp_path / "a.csv", table))
    few, half, whole = (set(found.subset(np.arange(22), x, [0, 1]).tolist()) for x in (0.1, 0.5, 1))
    assert few < half < whole and len(whole) == 22
    assert set(found.y[list(few)]) == {0, 1} and len(few) == 3


def test_rare_classes(tmp_path):
    table = [*rows(5), ["one", "c"], ["d text", "d"], ["D text", "d"]]
    found = read(write(tmp_path / "a.csv", table), folds=5)
    assert found.labels == ("a", "b") and len(found) == 10
    assert (
        "2 classes with fewer different texts than the 5 folds ('c', 'd'; 3 rows)" in found.notes[0]
    )


def test_the_limit(tmp_path):
    table = [*rows(30), *([f"new {i}", ""] for i in range(9))]
    path = write(tmp_path / "a.csv", table)
    found, again = read(path, limit=8), read(path, limit=8)
    assert len(found) <= 8 and len(found.pool) == 8 and found.rows.x == again.rows.x


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ([["x", "a"]], "one labeled row; label at least two rows of each class"),
        ([["x", "a"], ["y", "a"]], "All 2 labels in .* are 'a'; label rows of another"),
        ([["x", ""], ["y", ""]], "has no labels"),
        ([["", "a"], ["", "b"]], "has no labeled texts; label some rows"),
        ([["x", "a"], ["y", "b"]], "too few labels for folds=2: .* 'a' 1, 'b' 1; label more"),
        ([["x", "a"], ["X", "b"], ["z", "b"]], "too few labels"),
        ([[f"x{i}", f"{i / 7:.2f}"] for i in range(9)], "scores rather than classes.*regressor"),
        ([[f"x{i}", str(i)] for i in range(30)], "30 different numbers"),
        ([[f"x{i}", f"y{i}"] for i in range(60)], "60 different labels for 60 rows.*--label"),
    ],
)
def test_bad_files(table, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        read(write(tmp_path / "a.csv", table))


def test_numbers_that_are_classes(tmp_path):
    found = read(write(tmp_path / "a.csv", rows(3, ("10", "2"))))
    assert found.labels == ("2", "10")


def test_missing_columns(tmp_path):
    path = write(tmp_path / "a.csv", rows())
    with pytest.raises(ValueError, match="no column 'klasse'.* its columns are 'text', 'label'"):
        read(path, label="klasse")
    with pytest.raises(ValueError, match="1 or 2 columns of text"):
        read(path, columns=["a", "b", "c"])
    with pytest.raises(ValueError, match="There is no file"):
        read(str(tmp_path / "no.csv"))


def test_lists_of_labels_are_for_finetune(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "label": ["x", "y"]}\n{"text": "b", "label": ["x"]}\n')
    with pytest.raises(ValueError, match="lists of labels.*one class per text.*kerasbert finetune"):
        read(str(path))
