"""Run the notebooks of `examples/` and the lessons of `docs/lessons/`, and store their outputs:
`python -m tests.examples.notebooks`, or with names, `... attention 01_words_to_pieces`.

A notebook takes two minutes, a lesson up to two; the stored outputs are from TensorFlow. Lessons
are run in English; the Korean and Japanese ones have the same code, and get the same outputs. If
their cell of parameters differs, with texts and a preset of the language, they are run, too.
"""

import json
import os
import re
import sys
import tempfile
from pathlib import Path

from tests.peers import nbformat

EXAMPLES = Path(__file__).parents[2] / "examples"
LESSONS = EXAMPLES.parent / "docs" / "lessons"
TRANSLATIONS = {"ko": LESSONS.parent / "ko" / "lessons", "ja": LESSONS.parent / "ja" / "lessons"}
_CODES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def read(name, folder=EXAMPLES):
    return nbformat.read(folder / f"{name}.ipynb", as_version=4)


def write(notebook, name, folder):
    path = folder / f"{name}.ipynb"
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    print(f"{path.relative_to(EXAMPLES.parent)}: {path.stat().st_size / 1000:.0f} kB")


def names_in(folder):
    return sorted(path.stem for path in folder.glob("*.ipynb"))


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def parameters_of(notebook):
    """Return the cell of parameters."""
    (cell,) = [c for c in code_cells(notebook) if "parameters" in c.metadata.get("tags", ())]
    return cell


def is_localized(name, language):
    """Return whether a translation of a lesson has its own parameters, and so its own outputs.

    Tests ask this while they are collected, also where nbformat is not installed.
    """
    own, english = (
        _source_of_parameters(x / f"{name}.ipynb") for x in (TRANSLATIONS[language], LESSONS)
    )
    return own != english


def _source_of_parameters(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    (found,) = [x["source"] for x in cells if "parameters" in x["metadata"].get("tags", ())]
    return found


def run(notebook, directory, **told):
    """Run `notebook` in `directory` with the parameters `told`, and store the outputs that readers
    see.

    Returns: The stderr output, which is not stored.
    """
    from nbclient import NotebookClient

    parameters = parameters_of(notebook)
    stored = parameters.source
    parameters.source += "".join(f"\n{name} = {value!r}" for name, value in told.items())
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": directory}}
    )
    environment = {"PYTHONPATH": f"{EXAMPLES.parent}:{EXAMPLES}", "TF_CPP_MIN_LOG_LEVEL": "2"}
    # With several threads, scikit-learn's small products take minutes on busy cores.
    environment["OMP_NUM_THREADS"] = "1"
    client.execute(env={**os.environ, **environment})
    parameters.source = stored
    # Import the checkout, not the installed version.
    notebook.metadata.language_info = {"name": "python"}
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    for cell in code_cells(notebook):
        cell.metadata.pop("execution", None)  # Timestamps.
        cell.outputs = _kept(cell.outputs)
    return "".join(output.text for output in outputs if output.get("name") == "stderr")


def _kept(outputs):
    """Return figures, values and printed output, with consecutive prints as one text."""
    kept = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        if "text" in output:
            # If a line was overwritten, as by a progress bar, keep its last version.
            lines = _CODES.sub("", output.text).split("\n")
            output.text = "\n".join(line.split("\r")[-1] for line in lines)
            if kept and kept[-1].output_type == "stream":
                kept[-1].text += output.text
                continue
        kept.append(output)
    return kept


def kinds(cell):
    """Return the types of each output of a cell: `[["stream"], ["image/png", "text/plain"]]`."""
    return [sorted(output.get("data", {output.output_type: 0})) for output in cell.outputs]


def main(names):
    lessons = names_in(LESSONS)
    for name in names or names_in(EXAMPLES) + lessons:
        if name in lessons:
            _store_lesson(name)
            continue
        with tempfile.TemporaryDirectory() as directory:
            notebook = read(name)
            run(notebook, directory)
        write(notebook, name, EXAMPLES)


def _store_lesson(name):
    notebook = read(name, LESSONS)
    with tempfile.TemporaryDirectory() as directory:
        run(notebook, directory)
    write(notebook, name, LESSONS)
    for language, folder in TRANSLATIONS.items():
        translated = read(name, folder)
        if is_localized(name, language):
            run(translated, folder)
            write(translated, name, folder)
            continue
        for cell, done in zip(code_cells(translated), code_cells(notebook), strict=True):
            cell.execution_count, cell.outputs = done.execution_count, done.outputs
        write(translated, name, folder)


if __name__ == "__main__":
    main(sys.argv[1:])
