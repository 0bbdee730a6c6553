"""Columns: rows of a file and added rows behave like one array; broken files are detected."""

import numpy as np
import pytest

from kerasbert.search.columns import ArrayColumn, TextColumn, read_array


def test_arrays_grow_and_are_read_in_any_order(tmp_path):
    values = np.arange(60, dtype="float32").reshape(20, 3)
    column = ArrayColumn(values[:8])
    for row in values[8:]:
        column.append(row[None])
    assert len(column) == 20
    rows = np.array([[19, 0], [7, 8], [3, 3]])
    assert (column.take(rows) == values[rows]).all()
    assert (np.concatenate([block for _, block in column.blocks(5)]) == values).all()
    keep = np.arange(20) % 3 > 0
    path = str(tmp_path / "x.npy")
    column.write(path, keep)
    assert (read_array(path, (13, 3), "float32", mmap=True) == values[keep]).all()
    assert column.size(keep) >= (tmp_path / "x.npy").stat().st_size


def test_texts(tmp_path):
    texts = ["café", "", "한국", "b" * 50, "\ud800", ""]
    column = TextColumn()
    column.append(texts)
    path = str(tmp_path / "texts.bin")
    column.write(path, np.ones(6, bool))
    for mmap in (True, False):
        again = TextColumn.read(path, 6, mmap)
        again.append(["later"])
        assert again.take(range(7)) == [*texts, "later"]
    again.write(path + "2", np.array([0, 1, 1, 0, 0, 0, 1], bool))
    assert TextColumn.read(path + "2", 3).take(range(3)) == ["", "한국", "later"]
    TextColumn().write(path + "3", np.ones(0, bool))
    assert len(TextColumn.read(path + "3", 0)) == 0


def test_broken_files(tmp_path):
    path = tmp_path / "x.npy"
    with pytest.raises(ValueError, match="x.npy' is missing; copy the whole index again"):
        read_array(str(path), (4,), "int64")
    np.save(path, np.arange(4))
    with pytest.raises(ValueError, match=r"has int64 \(4,\), but the index expects float32"):
        read_array(str(path), (5,), "float32")
    for size in (path.stat().st_size - 1, 40, 0):
        with open(path, "rb+") as file:
            file.truncate(size)
        for mmap in (True, False):
            with pytest.raises(ValueError, match="x.npy' is damaged"):
                read_array(str(path), (4,), "int64", mmap)
    np.save(path, np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match="is damaged"):
        read_array(str(path), (1,), "object")
    texts = str(tmp_path / "texts.bin")
    column = TextColumn()
    column.append(["one", "two"])
    column.write(texts, np.ones(2, bool))
    ends = np.load(texts + ".ends.npy")
    np.save(texts + ".ends.npy", ends[::-1])
    with pytest.raises(ValueError, match="offsets that are not sorted; copy the whole index again"):
        TextColumn.read(texts, 2)
    np.save(texts + ".ends.npy", ends)
    with open(texts, "rb+") as file:
        file.truncate(5)
    with pytest.raises(ValueError, match="has 5 bytes, expected 6"):
        TextColumn.read(texts, 2)
