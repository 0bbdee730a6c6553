"""What notebooks show."""

import pytest

from kerasbert import SearchIndex
from kerasbert.base.notebook import MOST_CHARACTERS, MOST_ROWS, summary
from kerasbert.models import BertTextClassifier
from kerasbert.tasks import file_task
from kerasbert.training.results import Results
from tests.contracts import tiny_backbone
from tests.peers import nbformat

# Names and texts that come from files, and that would change the page if they were not escaped.
HOSTILE = "<script>alert('x')</script>\" onload=\"x \u202e & <b>"
SHOWN = (
    "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&quot; onload=&quot;x \u202e &amp; &lt;b&gt;"
)


class Letters:
    """An embedder whose name is hostile."""

    name = HOSTILE

    def embed(self, texts, batch_size=32):
        return [[text.count("i") + 1, text.count("o")] for text in texts]


def of_a_task(folder):
    (folder / "a.csv").write_text('text,label\nyes,"<script>"\nno,<b>\n', encoding="utf-8")
    return file_task(train=str(folder / "a.csv"), name=HOSTILE)


MADE = {
    "an index": lambda folder: SearchIndex(
        Letters(), [HOSTILE, "two"], metadata=[{HOSTILE: 1}] * 2
    ),
    "a task": of_a_task,
    "scores": lambda folder: Results(
        task=HOSTILE,
        examples={"train": 1, "dev": 2},
        scores={HOSTILE: 0.5},
        classes={HOSTILE: {"f1": 0.5, "precision": 1.0, "recall": 0.25, "gold": 3}},
    ),
    "predictions": lambda folder: Results(ids=[HOSTILE, 2], predictions=["ham", HOSTILE]),
}


@pytest.mark.parametrize("made", MADE)
def test_texts_from_files_are_escaped(made, tmp_path):
    shown = MADE[made](tmp_path)._repr_html_()
    assert "<script" not in shown and "<b>" not in shown and 'onload="' not in shown
    assert "&lt;script&gt;" in shown
    assert SHOWN in shown or made == "a task"  # Its name is in quotes.


def test_summaries_are_short():
    long = summary("a", {"b": "x" * 10_000, "c": list(range(1_000))}, [["n"], *[[1]] * 1_000])
    assert len(long) < 5_000
    assert f"<bdi>{'x' * (MOST_CHARACTERS - 3)}...</bdi>" in long
    assert "(1,000 in total)" in long and f"{1_000 - MOST_ROWS} more rows" in long


def test_a_model_shows_settings_parameters_and_uses():
    model = BertTextClassifier(tiny_backbone(), labels=["ham", HOSTILE], dropout=0.25)
    count = f"{model.count_params():,}"
    model.backbone.trainable = False
    frozen = f"{model.backbone.count_params():,}"
    shown = model._repr_html_()
    for text in (SHOWN, "dropout=0.25", f"{count}, of which {frozen} are frozen", "classify("):
        assert text in shown
    assert "<script" not in shown and "classify(" not in model.backbone._repr_html_()


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_bars_in_a_notebook_replace_themselves():
    """In a saved notebook, a bar has one output, and other lines are plain text."""
    from nbclient import NotebookClient

    code = """
from kerasbert.training import evaluation
from kerasbert.training.recording import Line
evaluation._CHUNK = 1
with Line() as line:
    line.say("making examples")
    for step in range(1, 4):
        line._shown = -9.0
        line.tick(step, 3)
    line.interval({"step": 3, "loss": 1.0, "learning_rate": 0.1, "tokens_per_second": 0}, 3, None)
for _ in evaluation._shown([slice(0, 1)] * 3):
    pass
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [x for x in notebook.cells[0].outputs if "absl" not in str(x.get("text"))]
    bars = [x["data"]["text/plain"] for x in outputs if x.output_type == "display_data"]
    assert bars == ["3/3 loss 1.000, learning rate 0.1", "3/3 predicted"]
    texts = "".join(x["text"] for x in outputs if x.output_type == "stream")
    assert "making examples\n" in texts and "\x1b" not in texts and "3/3" not in texts
