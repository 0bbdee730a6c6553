"""CoNLL-2003, named entity recognition in English (Tjong Kim Sang and De Meulder 2003)."""

from kerasbert.heads.base.data_task import Task
from kerasbert.heads.base.task_fields import Published, Settings, Source

_TABLE = "arXiv 1810.04805, table 7"

CONLL2003 = Task(
    name="conll2003",
    title="CoNLL-2003 NER",
    head="token_classifier",
    columns=("tokens",),
    label="ner_tags",
    labels=("PER", "ORG", "LOC", "MISC"),
    scheme="BIO",
    context="document",
    metrics=("entities",),
    settings=Settings(sequence_length=512),
    published=(
        Published("BERT-Base", "dev", "f1", 0.964, _TABLE),
        Published("BERT-Base", "test", "f1", 0.924, _TABLE),
        Published("BERT-Large", "dev", "f1", 0.966, _TABLE),
        Published("BERT-Large", "test", "f1", 0.928, _TABLE),
    ),
    source=Source(
        page="https://www.clips.uantwerpen.be/conll2003/ner/",
        license="Reuters Corpus, for research by agreement",
        files={
            "train": ("eng.train", "train.txt"),
            "dev": ("eng.testa", "valid.txt", "dev.txt"),
            "test": ("eng.testb", "test.txt"),
        },
        columns={"tokens": 0, "ner_tags": 3},
        # The data set lacks the boundaries of documents, which only the official files have.
        dataset=("eriktks/conll2003", {"revision": "refs/convert/parquet"}),
    ),
    submission="conlleval.txt",
)
TASKS = (CONLL2003,)
