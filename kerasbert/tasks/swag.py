"""SWAG (Zellers et al. 2018, arXiv 1808.05326): choose the ending of a scene."""

from kerasbert.heads.base.data_task import Task
from kerasbert.heads.base.task_fields import Published, Settings, Source

_TABLE = "arXiv 1810.04805, table 4"

SWAG = Task(
    name="swag",
    title="SWAG",
    head="multiple_choice",
    columns=("sent1",),
    choices=("ending0", "ending1", "ending2", "ending3"),
    choice_start="sent2",
    metrics=("accuracy",),
    settings=Settings((16,), (2e-5,), (3,)),
    published=(
        Published("BERT-Base", "dev", "accuracy", 0.816, _TABLE),
        Published("BERT-Large", "dev", "accuracy", 0.866, _TABLE),
    ),
    source=Source(
        page="https://github.com/rowanz/swagaf/tree/master/data",
        license="MIT",
        files={
            split: (f"{name}.csv", f"data/{name}.csv")
            for split, name in (("train", "train"), ("dev", "val"), ("test", "test"))
        },
        dataset=("allenai/swag", "regular"),
    ),
    submission="predictions.csv",
)
TASKS = (SWAG,)
