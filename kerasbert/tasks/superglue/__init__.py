"""The ten SuperGLUE tasks (Wang et al. 2019, arXiv 1905.00537).

SuperGLUE does not define a model's inputs; `data.py` makes these.
"""

from dataclasses import replace

from kerasbert.heads.base.data_task import Task
from kerasbert.heads.base.task_fields import Published, Settings, Source

_PAGE = "https://super.gluebenchmark.com/tasks"
_WHERE = "arXiv 1905.00537, table 3"


def _published(**scores):
    return tuple(
        Published("BERT-Large", "test", name, value, _WHERE) for name, value in scores.items()
    )


def _settings(length):
    # The learning rate and the number of epochs of the paper's BERT.
    return Settings((16,), (1e-5,), (10,), sequence_length=length)


def _source(folder, license="", values=()):
    names = {"train": "train", "dev": "val", "test": "test"}
    files = {split: f"{folder}/{name}.jsonl" for split, name in names.items()}
    return Source(page=_PAGE, license=license, files=files, values=values, id="idx")


_BOOLEANS = ("False", "True")  # As Python writes JSON's false and true.

BOOLQ = Task(
    name="boolq",
    title="BoolQ",
    head="text_classifier",
    columns=("question", "passage"),
    labels=("false", "true"),
    metrics=("accuracy",),
    settings=_settings(256),
    published=_published(accuracy=0.774),
    source=_source("BoolQ", "CC BY-SA 3.0", _BOOLEANS),
    submission="BoolQ.jsonl",
    form="superglue",
)
CB = Task(
    name="cb",
    title="CommitmentBank",
    head="text_classifier",
    columns=("premise", "hypothesis"),
    labels=("contradiction", "entailment", "neutral"),
    metrics=("accuracy", "macro_f1"),
    settings=_settings(256),
    published=_published(accuracy=0.836, macro_f1=0.757),
    source=_source("CB"),
    submission="CB.jsonl",
    form="superglue",
)
COPA = Task(
    name="copa",
    title="COPA",
    head="multiple_choice",
    columns=("premise",),
    choices=("choice1", "choice2"),
    choice_start="question",
    metrics=("accuracy",),
    settings=_settings(128),
    published=_published(accuracy=0.706),
    source=_source("COPA", "BSD 2-Clause"),
    submission="COPA.jsonl",
    form="superglue_copa",
)
MULTIRC = Task(
    name="multirc",
    title="MultiRC",
    head="text_classifier",
    columns=("question", "passage"),
    labels=("wrong", "right"),
    metrics=("multirc",),
    settings=_settings(512),
    published=_published(f1a=0.700, exact_match=0.241),
    source=_source("MultiRC", values=("0", "1")),
    submission="MultiRC.jsonl",
    form="superglue_multirc",
)
RECORD = Task(
    name="record",
    title="ReCoRD",
    head="multiple_choice",
    columns=("passage",),
    choices=("entities",),
    metrics=("squad",),
    settings=_settings(512),
    published=_published(f1=0.720, exact_match=0.713),
    source=_source("ReCoRD"),
    submission="ReCoRD.jsonl",
    form="superglue_record",
)
RTE = Task(
    name="superglue_rte",
    title="RTE of SuperGLUE",
    head="text_classifier",
    columns=("premise", "hypothesis"),
    labels=("entailment", "not_entailment"),
    metrics=("accuracy",),
    settings=_settings(256),
    published=_published(accuracy=0.717),
    source=_source("RTE"),
    submission="RTE.jsonl",
    form="superglue",
)
WIC = Task(
    name="wic",
    title="WiC",
    head="text_classifier",
    columns=("sentence1", "sentence2"),
    labels=("false", "true"),
    metrics=("accuracy",),
    settings=_settings(128),
    published=_published(accuracy=0.696),
    source=_source("WiC", "CC BY-NC 4.0", _BOOLEANS),
    submission="WiC.jsonl",
    form="superglue_wic",
)
WSC = Task(
    name="wsc",
    title="WSC",
    head="text_classifier",
    columns=("text", "span"),
    labels=_BOOLEANS,
    metrics=("accuracy",),
    settings=_settings(128),
    published=_published(accuracy=0.644),
    source=_source("WSC", "CC BY 4.0"),
    submission="WSC.jsonl",
    form="superglue_wsc",
)
AXB = replace(
    RTE,
    name="axb",
    title="AX-b, SuperGLUE's broad-coverage diagnostics",
    columns=("sentence1", "sentence2"),
    metrics=("matthews",),
    published=_published(matthews=0.230),
    source=replace(RTE.source, files={"test": "AX-b/AX-b.jsonl"}),
    submission="AX-b.jsonl",
    trained_on=RTE,
)
AXG = replace(
    RTE,
    name="axg",
    title="AX-g, SuperGLUE's Winogender diagnostics",
    metrics=("accuracy", "gender_parity"),
    published=_published(accuracy=0.517, gender_parity=0.978),
    source=replace(RTE.source, files={"test": "AX-g/AX-g.jsonl"}),
    submission="AX-g.jsonl",
    trained_on=RTE,
)
TASKS = (BOOLQ, CB, COPA, MULTIRC, RECORD, RTE, WIC, WSC, AXB, AXG)
