"""The notebooks run completely, here with few steps, and show their stored outputs."""

import itertools

import pytest

from tests.examples.notebooks import EXAMPLES, code_cells, kinds, parameters_of, read, run
from tests.examples.test_examples import treebank
from tests.peers import nbformat

# The stored outputs are those of TensorFlow.
pytestmark = pytest.mark.backends("tensorflow")

# Values for the cell of parameters.
SMALL = {
    "attention": {},
    "classify_spam": {"SAMPLES": 100, "EPOCHS": 1},
    "search_documents": {
        "PRESET": "bert_tiny_demo_en_uncased",
        "PASSAGES": 60,
        "HELD_OUT": 4,
        "EPOCHS": 1,
    },
}


def test_every_notebook_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == set(SMALL)


@pytest.mark.peers
@pytest.mark.parametrize("name", SMALL)
def test_notebook_as_it_is_stored(name):
    notebook = read(name)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    code = code_cells(notebook)
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert "`pip install " in notebook.cells[0].source
    parameters = parameters_of(notebook).source
    for known in ("PRESET", *SMALL[name]):
        assert f"\n{known} = " in f"\n{parameters}"
    outputs = [output for cell in code for output in cell.outputs]
    assert outputs
    said = "".join(output.get("text") or str(output.get("data")) for output in outputs)
    for word in ("WARNING", "Warning", "Error", "/tmp", "/home", "\x1b", "\r"):
        assert word not in said
    assert (EXAMPLES / f"{name}.ipynb").stat().st_size < 500_000  # A page displays all of them.


def _shown(notebook):
    """Return the kind of each cell's outputs; consecutive lines or figures of a kind count once."""
    return [[kind for kind, _ in itertools.groupby(kinds(cell))] for cell in code_cells(notebook)]


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_notebook(name, tmp_path):
    notebook = read(name)
    trees = tmp_path / "trees.conllu"
    trees.write_text(treebank(), encoding="utf-8")
    files = {"TRAIN": str(trees), "DEV": str(trees)}
    said = run(notebook, tmp_path, **files, **SMALL[name])
    assert "Traceback" not in said and "Glyph" not in said
    assert _shown(notebook) == _shown(read(name))
