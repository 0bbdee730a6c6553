"""Korean tasks: NSMC, KLUE (Park et al. 2021, arXiv 2105.09680) and KorQuAD 1.0.

KLUE scores are listed only where all versions of its paper agree.
"""

from kerasbert.heads.base.data_task import Task
from kerasbert.heads.base.task_fields import Published, Settings, Source
from kerasbert.tasks.squad import WINDOWS

_KLUE = "arXiv 2105.09680"
_KLUE_PAGE = "https://github.com/KLUE-benchmark/KLUE/tree/main/klue_benchmark"


def _klue(name, file, ending=".json", **settings):
    files = {split: f"{file}-v1.1/{file}-v1.1_{split}{ending}" for split in ("train", "dev")}
    settings = {"files": files, "id": "guid", **settings}
    return Source(_KLUE_PAGE, "CC BY-SA 4.0", dataset=("klue/klue", name), **settings)


NSMC = Task(
    name="nsmc",
    title="NSMC",
    head="text_classifier",
    columns=("document",),
    labels=("negative", "positive"),
    metrics=("accuracy",),
    source=Source(
        page="https://github.com/e9t/nsmc",
        license="CC0 1.0",
        files={"train": "ratings_train.txt", "test": "ratings_test.txt"},
        values=("0", "1"),
        id="id",
        dataset=("e9t/nsmc", {"revision": "refs/convert/parquet"}),
    ),
)
YNAT = Task(
    name="klue_ynat",
    title="KLUE topics (YNAT)",
    head="text_classifier",
    columns=("title",),
    labels=("IT과학", "경제", "사회", "생활문화", "세계", "스포츠", "정치"),
    metrics=("macro_f1",),
    source=_klue("ynat", "ynat"),
)
STS = Task(
    name="klue_sts",
    title="KLUE similarity",
    head="text_regressor",
    columns=("sentence1", "sentence2"),
    label="labels.real-label",
    range=(0.0, 5.0),
    metrics=("pearson", "f1_from_3"),
    published=(
        Published("KLUE-BERT-base", "test", "pearson", 0.9085, _KLUE),
        Published("KLUE-BERT-base", "test", "f1_from_3", 0.8284, _KLUE),
    ),
    source=_klue("sts", "klue-sts"),
)
NLI = Task(
    name="klue_nli",
    title="KLUE inference",
    head="text_classifier",
    columns=("premise", "hypothesis"),
    labels=("entailment", "neutral", "contradiction"),
    metrics=("accuracy",),
    published=(Published("KLUE-BERT-base", "test", "accuracy", 0.8163, _KLUE),),
    source=_klue("nli", "klue-nli", columns={"label": "gold_label"}),
)
NER = Task(
    name="klue_ner",
    title="KLUE NER",
    head="token_classifier",
    columns=("tokens",),
    label="ner_tags",
    labels=("PS", "LC", "OG", "DT", "TI", "QT"),
    scheme="BIO",
    units="characters",
    metrics=("klue_entities",),
    model={"label_pieces": "all"},
    source=_klue("ner", "klue-ner", ".tsv", columns={"tokens": 0, "ner_tags": 1}, comment="## "),
)
KORQUAD = Task(
    name="korquad",
    title="KorQuAD 1.0",
    head="question_answering",
    columns=("question", "context"),
    label="answers",
    metrics=("korquad",),
    settings=Settings((32,), (5e-5,), (3,), sequence_length=384),
    model=WINDOWS,
    source=Source(
        page="https://korquad.github.io/category/1.0_KOR.html",
        license="CC BY-ND 2.0 KR",
        files={"train": "KorQuAD_v1.0_train.json", "dev": "KorQuAD_v1.0_dev.json"},
        id="id",
        dataset=("KorQuAD/squad_kor_v1",),
    ),
    submission="predictions.json",
)
TASKS = (NSMC, YNAT, STS, NLI, NER, KORQUAD)
