"""The lessons of the site: the same in three languages, and consistent with stored outputs.

A translation may have its own parameters: texts and a preset of its language.
"""

import re

import pytest

from tests.examples.notebooks import (
    EXAMPLES,
    LESSONS,
    TRANSLATIONS,
    code_cells,
    is_localized,
    kinds,
    names_in,
    parameters_of,
    read,
    run,
)
from tests.peers import nbformat

# As stored, for TensorFlow.
pytestmark = [pytest.mark.peers, pytest.mark.backends("tensorflow")]

NAMES = names_in(LESSONS)
FOLDERS = {"en": LESSONS, **TRANSLATIONS}
LOCALIZED = [
    (name, language) for name in NAMES for language in TRANSLATIONS if is_localized(name, language)
]
RUNS = [*((name, "en") for name in NAMES), *LOCALIZED]
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def text_of(output):
    """Return the words of an output, with normalized spaces."""
    text = output.get("text") or output["data"].get("text/plain", "")
    return re.sub(r"\s+", " ", text)


def stray(stored, found):
    """Return where two texts differ in words, or in a number by more than 2%; or `None`."""
    if _NUMBER.split(stored) != _NUMBER.split(found):
        return stored, found
    for one, other in zip(_NUMBER.findall(stored), _NUMBER.findall(found), strict=True):
        if float(other) != pytest.approx(float(one), rel=0.02, abs=0.011):
            return one, other


def test_stray_numbers_are_found():
    assert stray("mean 0.50, 7 words", "mean 0.505, 7 words") is None
    assert stray("mean 0.50, 7 words", "mean 0.60, 7 words") == ("0.50", "0.60")
    assert stray("7 words", "8 words") == ("7", "8")
    assert stray("the cat", "the dog")


@pytest.mark.parametrize("name, language", RUNS)
def test_lesson_is_stored_whole(name, language):
    folder = FOLDERS[language]
    notebook = read(name, folder)
    nbformat.validate(notebook)
    code = code_cells(notebook)
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    outputs = [output for cell in code for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    for output in outputs:
        for word in ("WARNING", "Warning", "Traceback", "/tmp", "/home", "\x1b", "\r"):
            assert word not in text_of(output)
    assert (folder / f"{name}.ipynb").stat().st_size < 500_000  # A page displays all of them.
    words = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert 'pip install ".[plot]"' in words and words.count("<details>") >= 2
    parameters = parameters_of(notebook).source
    assert 'PRESET = "' in parameters and "# Published: " in parameters


@pytest.mark.parametrize("language", TRANSLATIONS)
def test_lessons_are_the_same_in(language):
    assert names_in(TRANSLATIONS[language]) == NAMES
    for name in NAMES:
        cells, translated = (
            read(name, folder).cells for folder in (LESSONS, TRANSLATIONS[language])
        )
        assert [cell.id for cell in cells] == [cell.id for cell in translated]
        localized = (name, language) in LOCALIZED
        for cell, other in zip(cells, translated, strict=True):
            if cell.cell_type == "code":
                described, described_there = (
                    one.metadata.pop("mystnb", None) for one in (cell, other)
                )
                assert described is None or described != described_there  # Text of pictures.
                if localized:
                    assert other.source == cell.source or "parameters" in cell.metadata["tags"]
                    assert kinds(other) == kinds(cell)
                else:
                    assert other == cell
                continue
            assert other.cell_type == "markdown" and other.source != cell.source
            marks = r"</?details>|^#+ |`{3}\w*"
            assert re.findall(marks, other.source, re.M) == re.findall(marks, cell.source, re.M)


def test_three_lessons_have_korean_and_japanese_texts():
    assert {name[:2] for name, _ in LOCALIZED} >= {"01", "02", "03"}
    for name, language in LOCALIZED:
        assert re.search("[가-힣ぁ-ん]", parameters_of(read(name, FOLDERS[language])).source)


@pytest.mark.parametrize("folder", [EXAMPLES, LESSONS, *TRANSLATIONS.values()])
def test_pictures_are_described(folder):
    for name in names_in(folder):
        for cell in code_cells(read(name, folder)):
            has_picture = any("image/png" in output.get("data", {}) for output in cell.outputs)
            described = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
            assert has_picture == (len(described) > 20), f"{folder.name}/{name}, {cell.id}"


@pytest.mark.slow
@pytest.mark.parametrize("name, language", RUNS)
def test_lesson_shows_what_it_is_stored_with(name, language, tmp_path):
    """In any folder, the lesson gives its stored outputs, and the code of its answers runs."""
    folder = FOLDERS[language]
    notebook = read(name, folder)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    answers = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    notebook.cells += [nbformat.v4.new_code_cell(answer) for answer in answers]
    said = run(notebook, tmp_path)
    assert "Traceback" not in said and "Glyph" not in said
    stored = code_cells(read(name, folder))
    for cell, before in zip(code_cells(notebook)[: len(stored)], stored, strict=True):
        assert kinds(cell) == kinds(before)
        for output, old in zip(cell.outputs, before.outputs, strict=True):
            assert stray(text_of(old), text_of(output)) is None
