"""Errors of libraries on damaged files become one sentence that names the file."""

import gzip
import json
import lzma
import os
import pathlib
import re
import shutil
import struct
import tomllib
import zipfile
import zlib

import h5py
import numpy as np
import pytest

from kerasbert import SearchIndex
from kerasbert.base.errors import EXTRAS, first_line, how_to_install, need_packages, reading
from kerasbert.data import documents
from kerasbert.models import BertBackbone, BertTextClassifier
from kerasbert.search import read_beir, read_sts
from kerasbert.search.columns import TextColumn, read_array
from kerasbert.training.resuming import checkpoint_facts

# Reading files does not depend on the backend.
pytestmark = pytest.mark.backends("torch")


@pytest.mark.parametrize(
    "error",
    [
        zlib.error("Error -3 while decompressing"),
        lzma.LZMAError("Corrupt input data"),
        gzip.BadGzipFile("Not a gzipped file"),
        zipfile.BadZipFile("File is not a zip file"),
        struct.error("unpack requires 8 bytes"),
        EOFError(),
        KeyError("x"),
        IndexError("list index out of range"),
        RecursionError("maximum recursion depth exceeded"),
        OverflowError("int too large"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        OSError("Unable to open file\nmore of it"),
        json.JSONDecodeError("Expecting value", "", 0),
        ValueError("two\nlines"),
    ],
)
def test_any_error_names_the_file(error):
    with pytest.raises(ValueError, match=r"^'a.bin' is damaged, or not .*\(.+\); fetch it") as said:
        with reading("a.bin"):
            raise error
    assert "\n" not in str(said.value) and said.value.__cause__ is error


def test_sentences_and_errors_of_the_system_stay():
    for error in (
        ValueError("'a.bin' has no rows."),
        FileNotFoundError(2, "No such file", "a.bin"),
        ImportError("needs pyarrow"),
        MemoryError(),
        KeyboardInterrupt(),
    ):
        with pytest.raises(type(error)) as said, reading("a.bin"):
            raise error
        assert said.value is error


def test_what_keras_says_below(tiny_preset, tmp_path):
    """The first line of Keras' error, "... Example error message for object <...>:", hides the
    cause below it.
    """
    for file, cls in (("model", BertBackbone), ("task", BertTextClassifier)):
        directory = shutil.copytree(tiny_preset, tmp_path / file)
        with h5py.File(directory / f"{file}.weights.h5", "r+") as opened:
            found = []
            opened.visititems(
                lambda name, x, to=found: to.append(name) if hasattr(x, "ndim") else None
            )
            del opened[found[-1]]
        arguments = {} if cls is BertBackbone else {"preprocessor": None}
        with pytest.raises(ValueError) as error:
            cls.from_preset(str(directory), **arguments)
        said = str(error.value)
        assert "Example error message" not in said and "\n" not in said.strip()
        assert str(directory) in said
    assert first_line(ValueError("A list:\n\n  what is wrong\nmore")) == "what is wrong"
    assert first_line(KeyError("x")) == "KeyError: 'x'" and first_line(EOFError()) == "EOFError"


PACKED = {".gz": gzip.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("ending", PACKED)
def test_packed_corpora(tmp_path, ending):
    whole = PACKED[ending](b'{"text": "It rains."}\n' * 500)
    path = tmp_path / f"a.jsonl{ending}"
    for at in range(0, len(whole), 3):
        data = bytearray(whole)
        data[at] ^= 0xFF
        path.write_bytes(data)
        try:
            list(documents(path))
        except ValueError as error:
            assert str(path) in str(error) and "\n" not in str(error)


def test_arrays_that_ask_for_all_memory(tmp_path):
    path = str(tmp_path / "x.npy")
    np.save(path, np.zeros((3, 4), "float32"))
    whole = open(path, "rb").read()
    for shape in (b"(3000000000, 4)", b"(3, 4000000000)", b"(-3, 4)"):
        header = whole[:128].replace(b"(3, 4), }" + b" " * (len(shape) - 6), shape + b", }")
        with open(path, "wb") as file:
            file.write(header + whole[128:])
        for mmap in (True, False):
            with pytest.raises(ValueError, match="x.npy' (has|is damaged)"):
                read_array(path, (3, 4), "float32", mmap)
            with pytest.raises(ValueError, match="x.npy' (has|is damaged)"):
                read_array(path, tuple(json.loads(f"[{shape[1:-1].decode()}]")), "float32", mmap)


def test_texts_of_an_index(tmp_path):
    index = SearchIndex(None)
    index.add(["Größe", "b"], vectors=np.eye(2))
    index.save(tmp_path / "index")
    path = tmp_path / "index" / "texts.bin"
    path.write_bytes(path.read_bytes().replace("ö".encode(), b"\xff\xff"))
    with pytest.raises(ValueError, match="texts.bin' is damaged .its SHA-256 is not"):
        SearchIndex.load(tmp_path / "index", mmap=False)
    with pytest.raises(ValueError, match="row 0 is damaged; copy the whole index again"):
        SearchIndex.load(tmp_path / "index").search_vectors(np.eye(2)[0])
    assert TextColumn.read(str(path), 2)[1] == "b"


def test_lines_of_benchmarks(tmp_path):
    deep = "[" * 99_999
    (tmp_path / "a.jsonl").write_text(deep + "\n")
    (tmp_path / "a.csv").write_text('1,2,3,4,5,"' + "a" * 200_000 + '",b\n')
    for name in ("a.jsonl", "a.csv"):
        with pytest.raises(ValueError, match=f"{name}'"):
            read_sts(str(tmp_path / name))
    os.rename(tmp_path / "a.jsonl", tmp_path / "corpus.jsonl")
    with pytest.raises(ValueError, match="Line 1 of '.*corpus.jsonl'"):
        read_beir(str(tmp_path))


def test_facts_of_a_checkpoint(tmp_path):
    from safetensors.numpy import save_file

    path = str(tmp_path / "checkpoint-1.safetensors")
    save_file({"x": np.zeros(1)}, path, metadata={"kerasbert": "{"})
    with pytest.raises(ValueError, match="checkpoint-1.safetensors' is damaged.*remove it"):
        checkpoint_facts(path)


ROOT = pathlib.Path(__file__).parents[2]
FOR_DEVELOPERS = {"test", "peers", "docs", "style"}


def test_extras_are_those_of_the_project():
    with open(ROOT / "pyproject.toml", "rb") as file:
        listed = tomllib.load(file)["project"]["optional-dependencies"]
    packages = {
        extra: tuple(re.sub(">=.*", "", name) for name in names)
        for extra, names in listed.items()
        if extra not in FOR_DEVELOPERS
    }
    assert packages == EXTRAS


def test_a_missing_package_is_named_with_what_installs_it():
    message = (
        "'a.xlsx' needs the package no-such-package; run `pip install python-calamine`, or in a "
        'checkout of kerasbert `pip install -e ".[excel]"`.'
    )
    with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
        need_packages("'a.xlsx'", "excel", "json", "no_such_package")
    # A shell would treat "<" as a redirection.
    assert "'sentencepiece<0.2.3'" in how_to_install("beam")


def test_nothing_installs_the_package_by_a_name_that_is_not_ours():
    """The name is not registered on PyPI, so a stranger could register it and run code on our
    users' machines.
    """
    by_name = re.compile(r"""pip3? install[^\n`"]*["' ]kerasbert\b|kerasbert\[\w""")
    folders = [ROOT / name for name in ("kerasbert", "docs", "examples", "benchmarks")]
    paths = [path for folder in folders for path in folder.rglob("*")] + list(ROOT.glob("*.md"))
    endings = {".py", ".md", ".ipynb", ".html", ".js", ".txt"}
    texts = [path for path in paths if path.suffix in endings]
    assert len(texts) > 300
    wrong = [path for path in texts if by_name.search(path.read_text(encoding="utf-8"))]
    assert wrong == []
    assert by_name.search("pip install 'kerasbert[play]'") and by_name.search(
        "pip install kerasbert"
    )
