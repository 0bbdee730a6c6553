"""The eleven GLUE tasks (Wang et al. 2019, arXiv 1804.07461)."""

from dataclasses import replace

from kerasbert.heads.base.data_task import Task
from kerasbert.heads.base.task_fields import Published, Source

_PAGE = "https://gluebenchmark.com/tasks"
_TEST = "arXiv 1810.04805, table 1"
_BASE = "arXiv 1810.04805, table 5"
_LARGE = "arXiv 1810.04805, table 6"


def _published(metric, base, large, dev_base=None, dev_large=None):
    """Return the test scores in BERT's paper, and the dev accuracies if the paper reports them."""
    found = [
        Published("BERT-Base", "test", metric, base, _TEST),
        Published("BERT-Large", "test", metric, large, _TEST),
    ]
    if dev_base is not None:
        found.append(Published("BERT-Base", "dev", "accuracy", dev_base, _BASE))
    if dev_large is not None:
        found.append(Published("BERT-Large", "dev", "accuracy", dev_large, _LARGE))
    return tuple(found)


def _files(folder, **others):
    return {split: f"{folder}/{split}.tsv" for split in ("train", "dev", "test")} | others


def _source(name, folder, license="", **settings):
    settings = {"files": _files(folder), "id": "index", **settings}
    return Source(page=_PAGE, license=license, dataset=("nyu-mll/glue", name), **settings)


_NUMBERS = ("0", "1")
_MNLI_COLUMNS = {"premise": "sentence1", "hypothesis": "sentence2", "label": "gold_label"}

COLA = Task(
    name="cola",
    title="CoLA",
    head="text_classifier",
    columns=("sentence",),
    labels=("unacceptable", "acceptable"),
    metrics=("matthews", "accuracy"),
    published=_published("matthews", 0.521, 0.605),
    source=_source("cola", "CoLA", header=("source", "label", "mark", "sentence"), values=_NUMBERS),
    submission="CoLA.tsv",
)
SST2 = Task(
    name="sst2",
    title="SST-2",
    head="text_classifier",
    columns=("sentence",),
    labels=("negative", "positive"),
    metrics=("accuracy",),
    published=_published("accuracy", 0.935, 0.949, 0.927, 0.937),
    source=_source("sst2", "SST-2", values=_NUMBERS),
    submission="SST-2.tsv",
)
MRPC = Task(
    name="mrpc",
    title="MRPC",
    head="text_classifier",
    columns=("sentence1", "sentence2"),
    labels=("not_equivalent", "equivalent"),
    metrics=("f1", "accuracy"),
    published=_published("f1", 0.889, 0.893, 0.867, 0.878),
    source=_source(
        "mrpc",
        "MRPC",
        columns={"sentence1": "#1 String", "sentence2": "#2 String", "label": "Quality"},
        values=_NUMBERS,
    ),
    submission="MRPC.tsv",
)
STSB = Task(
    name="stsb",
    title="STS-B",
    head="text_regressor",
    columns=("sentence1", "sentence2"),
    range=(0.0, 5.0),
    metrics=("spearman", "pearson"),
    published=_published("spearman", 0.858, 0.865),
    source=_source("stsb", "STS-B", columns={"label": "score"}),
    submission="STS-B.tsv",
)
QQP = Task(
    name="qqp",
    title="QQP",
    head="text_classifier",
    columns=("question1", "question2"),
    labels=("not_duplicate", "duplicate"),
    metrics=("f1", "accuracy"),
    published=_published("f1", 0.712, 0.721),
    source=_source(
        "qqp", "QQP", "Quora's terms", columns={"label": "is_duplicate"}, values=_NUMBERS, id="id"
    ),
    submission="QQP.tsv",
)
MNLI = Task(
    name="mnli",
    title="MNLI, matched",
    head="text_classifier",
    columns=("premise", "hypothesis"),
    labels=("entailment", "neutral", "contradiction"),
    metrics=("accuracy",),
    published=_published("accuracy", 0.846, 0.867, 0.844, 0.866),
    source=_source(
        "mnli",
        "MNLI",
        files=_files("MNLI", dev="MNLI/dev_matched.tsv", test="MNLI/test_matched.tsv"),
        columns=_MNLI_COLUMNS,
        splits={"dev": "validation_matched", "test": "test_matched"},
    ),
    submission="MNLI-m.tsv",
)
MNLI_MISMATCHED = replace(
    MNLI,
    name="mnli_mismatched",
    title="MNLI, mismatched",
    published=_published("accuracy", 0.834, 0.859),
    source=_source(
        "mnli",
        "MNLI",
        files={"dev": "MNLI/dev_mismatched.tsv", "test": "MNLI/test_mismatched.tsv"},
        columns=_MNLI_COLUMNS,
        splits={"dev": "validation_mismatched", "test": "test_mismatched"},
    ),
    submission="MNLI-mm.tsv",
    trained_on=MNLI,
)
QNLI = Task(
    name="qnli",
    title="QNLI",
    head="text_classifier",
    columns=("question", "sentence"),
    labels=("entailment", "not_entailment"),
    metrics=("accuracy",),
    published=_published("accuracy", 0.905, 0.927, 0.884),
    # This is version 2, of January 2019; the name of its folder may include the version.
    source=_source(
        "qnli",
        "QNLI",
        "CC BY-SA 4.0",
        files={
            split: (f"QNLIv2/{split}.tsv", f"QNLI/{split}.tsv")
            for split in ("train", "dev", "test")
        },
    ),
    submission="QNLI.tsv",
)
RTE = Task(
    name="rte",
    title="RTE",
    head="text_classifier",
    columns=("sentence1", "sentence2"),
    labels=("entailment", "not_entailment"),
    metrics=("accuracy",),
    published=_published("accuracy", 0.664, 0.701),
    source=_source("rte", "RTE"),
    submission="RTE.tsv",
)
WNLI = Task(
    name="wnli",
    title="WNLI",
    head="text_classifier",
    columns=("sentence1", "sentence2"),
    labels=("not_entailment", "entailment"),
    metrics=("accuracy",),
    # There are no published scores, because BERT's paper excludes WNLI.
    source=_source("wnli", "WNLI", values=_NUMBERS),
    submission="WNLI.tsv",
)
AX = replace(
    MNLI,
    name="ax",
    title="AX, GLUE's diagnostics",
    metrics=("matthews",),
    published=(),
    source=_source(
        "ax",
        "AX",
        files={"test": ("diagnostic/diagnostic.tsv", "AX/AX.tsv", "AX/test.tsv")},
        columns=_MNLI_COLUMNS,
    ),
    submission="AX.tsv",
    trained_on=MNLI,
)
TASKS = (COLA, SST2, MRPC, STSB, QQP, MNLI, MNLI_MISMATCHED, QNLI, RTE, WNLI, AX)
