"""The notebooks run from their first cell to their last, here with few steps."""

import os
from pathlib import Path

import pytest

from tests.peers import nbformat

# As they are stored, for TensorFlow.
pytestmark = pytest.mark.backends("tensorflow")


EXAMPLES = Path(__file__).parents[2] / "examples"
# What the cell of parameters is told, and how many pictures and marked texts there are.
SMALL = {
    "attention": {},
    "classify_spam": {"SAMPLES": 100, "EPOCHS": 1},
    "export_and_call": {"SAMPLES": 32},
    "features_by_layer": {"SAMPLES": 40},
    "fill_masks": {},
    "pretrain": {"STEPS": 4, "TOPICS": 6},
    "tag_and_answer": {"SAMPLES": 32, "EPOCHS": 1},
}
SHOWN = {
    "attention": (4, 0),
    "classify_spam": (2, 0),
    "export_and_call": (0, 0),
    "features_by_layer": (3, 0),
    "fill_masks": (2, 0),
    "pretrain": (3, 0),
    "tag_and_answer": (0, 4),
}


def read(name):
    return nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)


def test_every_notebook_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == set(SMALL) == set(SHOWN)


@pytest.mark.peers
@pytest.mark.parametrize("name", SMALL)
def test_notebook_as_it_is_stored(name):
    notebook = read(name)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    assert 'find_spec("kerasbert") is None' in code[0].source
    (parameters,) = [cell for cell in code if "parameters" in cell.metadata.get("tags", ())]
    for known in ("PRESET", *SMALL[name]):
        assert f"\n{known} = " in f"\n{parameters.source}"


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_notebook(name, tmp_path):
    from nbclient import NotebookClient

    notebook = read(name)
    (place,) = [
        i for i, x in enumerate(notebook.cells) if "parameters" in x.metadata.get("tags", ())
    ]
    told = {"DATA": str(EXAMPLES / "data" / "sms_spam.csv"), **SMALL[name]}
    lines = [f"{key} = {value!r}" for key, value in told.items()]
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell("\n".join(lines)))
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute(env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent)})
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    data = [output.data for output in outputs if "data" in output]
    pictures = sum("image/png" in shown for shown in data)
    marked = sum("<div" in shown.get("text/html", "") for shown in data)
    assert (pictures, marked) == SHOWN[name]
    said = "".join(output.text for output in outputs if output.get("name") == "stderr")
    assert "Traceback" not in said and "Glyph" not in said
    if name == "export_and_call":
        printed = "".join(output.get("text", "") for output in outputs)
        assert all(f"{word} " in printed for word in ("WINNER!!", "See"))
        assert (tmp_path / "served" / "spam" / "1" / "saved_model.pb").is_file()
