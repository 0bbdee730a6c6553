"""SQuAD 1.1 (arXiv 1606.05250) and 2.0 (arXiv 1806.03822)."""

from kerasbert.heads.base.data_task import Task
from kerasbert.heads.base.task_fields import Published, Settings, Source

_PAGE = "https://rajpurkar.github.io/SQuAD-explorer/"
_TABLE_2 = "arXiv 1810.04805, table 2"
_TABLE_3 = "arXiv 1810.04805, table 3"
WINDOWS = {"max_query_length": 64}  # For 384 tokens, the default stride is 128, as in the paper.

SQUAD = Task(
    name="squad",
    title="SQuAD 1.1",
    head="question_answering",
    columns=("question", "context"),
    label="answers",
    metrics=("squad",),
    settings=Settings((32,), (5e-5,), (3,), sequence_length=384),
    model=WINDOWS,
    published=(
        Published("BERT-Base", "dev", "exact_match", 0.808, _TABLE_2),
        Published("BERT-Base", "dev", "f1", 0.885, _TABLE_2),
        Published("BERT-Large", "dev", "exact_match", 0.841, _TABLE_2),
        Published("BERT-Large", "dev", "f1", 0.909, _TABLE_2),
    ),
    source=Source(
        page=_PAGE,
        license="CC BY-SA 4.0",
        files={"train": "train-v1.1.json", "dev": "dev-v1.1.json"},
        id="id",
        dataset=("rajpurkar/squad",),
    ),
    submission="predictions.json",
)
SQUAD2 = Task(
    name="squad2",
    title="SQuAD 2.0",
    head="question_answering",
    columns=("question", "context"),
    label="answers",
    metrics=("squad2",),
    settings=Settings((48,), (5e-5,), (2,), sequence_length=384),  # Section 4.3.
    model=WINDOWS,
    published=(
        Published("BERT-Large", "dev", "best_exact_match", 0.787, _TABLE_3),
        Published("BERT-Large", "dev", "best_f1", 0.819, _TABLE_3),
    ),
    source=Source(
        page=_PAGE,
        license="CC BY-SA 4.0",
        files={"train": "train-v2.0.json", "dev": "dev-v2.0.json"},
        id="id",
        dataset=("rajpurkar/squad_v2",),
    ),
    submission="predictions.json",
)
TASKS = (SQUAD, SQUAD2)
