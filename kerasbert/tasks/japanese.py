"""JGLUE (Kurihara et al. 2022, LREC): Japanese tasks with its paper's settings and dev scores."""

from kerasbert.heads.base.data_task import Task
from kerasbert.heads.base.task_fields import Published, Settings, Source
from kerasbert.tasks.squad import WINDOWS

_PAGE = "https://github.com/yahoojapan/JGLUE"
_WHERE = "JGLUE's README (Kurihara et al. 2022)"
_MODEL = "Tohoku BERT-base v2"


def _published(**scores):
    return tuple(Published(_MODEL, "dev", name, value, _WHERE) for name, value in scores.items())


def _settings(length, batch_size=32):
    return Settings((batch_size,), epochs=(3, 4), sequence_length=length)


def _source(name, id, versions=("v1.3", "v1.2", "v1.1", "v1.0"), license="CC BY-SA 4.0"):
    """Make a `Source` that reads the newest version in the folder."""

    def files(split):
        named = [f"{name}-{version}/{split}-{version}.json" for version in versions]
        return tuple(f"{start}{path}" for path in named for start in ("", "datasets/"))

    files = {"train": files("train"), "dev": files("valid"), "test": files("test")}
    return Source(_PAGE, license, files, id=id)


MARC_JA = Task(
    name="marc_ja",
    title="MARC-ja",
    head="text_classifier",
    columns=("sentence",),
    labels=("positive", "negative"),
    metrics=("accuracy",),
    settings=_settings(512),
    published=_published(accuracy=0.958),
    source=_source("marc_ja", "review_id", license="no longer distributed; Amazon's terms"),
)
JSTS = Task(
    name="jsts",
    title="JSTS",
    head="text_regressor",
    columns=("sentence1", "sentence2"),
    range=(0.0, 5.0),
    metrics=("pearson", "spearman"),
    settings=_settings(128),
    published=_published(pearson=0.909, spearman=0.868),
    source=_source("jsts", "sentence_pair_id"),
)
JNLI = Task(
    name="jnli",
    title="JNLI",
    head="text_classifier",
    columns=("sentence1", "sentence2"),
    labels=("entailment", "contradiction", "neutral"),
    metrics=("accuracy",),
    settings=_settings(128),
    published=_published(accuracy=0.899),
    source=_source("jnli", "sentence_pair_id"),
)
JSQUAD = Task(
    name="jsquad",
    title="JSQuAD",
    head="question_answering",
    columns=("question", "context"),
    label="answers",
    metrics=("jsquad",),
    settings=_settings(384),
    model=WINDOWS,
    published=_published(exact_match=0.871, f1=0.941),
    source=_source("jsquad", "id"),
    submission="predictions.json",
)
JCOMMONSENSEQA = Task(
    name="jcommonsenseqa",
    title="JCommonsenseQA",
    head="multiple_choice",
    columns=("question",),
    choices=tuple(f"choice{i}" for i in range(5)),
    metrics=("accuracy",),
    settings=_settings(64, batch_size=64),
    published=_published(accuracy=0.808),
    source=_source("jcommonsenseqa", "q_id"),
    submission="predictions.csv",
)
TASKS = (MARC_JA, JSTS, JNLI, JSQUAD, JCOMMONSENSEQA)
