"""Tables in memory in place of files."""

import os

import pandas
import pytest

from kerasbert.search.metadata import check_metadata, merged
from kerasbert.search.values import strings
from kerasbert.tasks import file_task, get_task
from kerasbert.text.texts import text_columns
from kerasbert.training.advise_settings import AdviseSettings
from kerasbert.training.evaluation import evaluate, predict
from kerasbert.training.labeled import read_labeled
from tests.contracts import bert_tokenizer, tiny_backbone


def polars_frame(columns):
    return pytest.importorskip("polars", reason="polars is not installed").DataFrame(columns)


def arrow_table(columns):
    import pyarrow

    return pyarrow.table(columns)


def dataset(columns):
    """Return a dataset whose labels are numbers with names, as on the hub."""
    import datasets

    found = datasets.Dataset.from_dict(columns)
    if "label" in columns and not isinstance(columns["label"][0], (int, float)):
        found = found.class_encode_column("label")
    return found


FRAMES = [
    pandas.DataFrame,
    dict,
    *(pytest.param(x, marks=pytest.mark.peers) for x in (polars_frame, arrow_table, dataset)),
]
every_frame = pytest.mark.parametrize("frame", FRAMES)
ROWS = {"text": ["win a prize", "see you", "free prize"], "label": ["spam", "ham", "spam"]}


@every_frame
def test_a_table_reads_as_a_file(frame, tmp_path):
    pandas.DataFrame(ROWS).to_csv(tmp_path / "a.csv", index=False)
    task, same = (
        file_task(frame(ROWS), test=frame({"text": ["a"]})),
        file_task(str(tmp_path / "a.csv")),
    )
    assert task.labels == same.labels == ("ham", "spam")
    assert task.read("train") == same.read("train")
    assert task.read("test").y is None
    assert task.as_dict() == same.as_dict()  # The table itself is not stored.


@every_frame
def test_lists_and_dicts_in_cells(frame):
    words = {"tokens": [["Ann", "sleeps"], ["Rome"]], "tags": [["B-PER", "O"], ["B-LOC"]]}
    task = file_task(frame(words), head="token_classifier")
    assert task.labels == ("LOC", "PER") and task.read("train").x == words["tokens"]
    asked = {
        "question": ["who?"],
        "context": ["it is Ann"],
        "answers": [{"text": ["Ann"], "answer_start": [6]}],
    }
    assert file_task(frame(asked), head="question_answering").read("train").y == [(6, 9)]
    several = {"text": ["a", "b"], "new": [1, 0], "old": [1, 1]}
    found = file_task(frame(several), label=["new", "old"]).read("train")
    assert found.y == [["new", "old"], ["old"]]


@every_frame
def test_errors_name_the_split_and_the_columns(frame):
    with pytest.raises(ValueError, match="'train' .* has no column 'review'.*'text', 'label'"):
        file_task(frame(ROWS), columns="review").read("train")
    with pytest.raises(ValueError, match="row 2: the label 'eggs' is unknown"):
        wrong = {**ROWS, "label": ["spam", "eggs", "spam"]}
        file_task(frame(ROWS), frame(wrong)).read("dev")
    with pytest.raises(ValueError, match="text as x and the column 'label' as y"):
        text_columns(pandas.DataFrame(ROWS))


def test_what_is_no_table():
    with pytest.raises(ValueError, match=r"'train' \(list\) is not a table; pass the path"):
        file_task(["a"])
    with pytest.raises(ValueError, match="differ in length"):
        file_task({"text": ["a"], "label": ["b", "c"]})
    with pytest.raises(ValueError, match="has no rows"):
        file_task(pandas.DataFrame({"text": [], "label": []}))
    with pytest.raises(ValueError, match="official files"):
        get_task("copa").with_files(train=pandas.DataFrame(ROWS))
    with pytest.raises(ValueError, match="There is no file"):
        file_task(os.fsencode("missing.csv"))


@pytest.mark.peers
def test_one_split_of_several():
    import datasets

    both = datasets.DatasetDict({"train": dataset(ROWS)})
    with pytest.raises(ValueError, match=r"several splits \('train'\); pass one"):
        file_task(both)


def test_missing_values_are_empty():
    frame = pandas.DataFrame({"text": ["a", None], "label": [1.0, 2.0], "id": [7, 8]})
    found = file_task(frame).read("train")
    assert (found.x, found.y, found.ids) == (["a", ""], ["1", "2"], [7, 8])


@pytest.mark.slow
def test_evaluate_predict_and_advise():
    from kerasbert.models import BertTextClassifier

    tokenizer = bert_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "free", "prize"])
    model = BertTextClassifier(
        tiny_backbone(vocabulary_size=7),
        labels=["ham", "spam"],
        preprocessor=BertTextClassifier.preprocessor_cls(tokenizer, sequence_length=8),
    )
    frame = pandas.DataFrame(ROWS)
    found = evaluate(model, frame)
    assert found["split"] == "data" and found["examples"] == 3
    assert predict(model, frame[["text"]])["predictions"] == [
        one["label"] for one in model.classify(ROWS["text"])
    ]
    frame = pandas.concat([frame, frame, pandas.DataFrame({"text": ["who?"], "label": [None]})])
    frame["text"] = [f"{text} {n}" for n, text in enumerate(frame["text"])]
    labeled = read_labeled(frame, AdviseSettings(frame, None, "out", folds=2))
    assert len(labeled) == 6 and labeled.pool.x == (["who? 6"],)


@every_frame
def test_columns_of_an_index(frame):
    table = frame({"text": ["a", "b"], "year": [1, 2]})
    assert strings(table["text"], "texts") == ["a", "b"]
    if frame is dict:  # It may be the metadata of one text.
        return
    assert check_metadata(table, 2) == [{"text": "a", "year": 1}, {"text": "b", "year": 2}]
    assert merged([{"year": 3}, {}], table)[0]["year"] == 1
    with pytest.raises(ValueError, match="got a table with the columns 'text', 'year'; pass one"):
        strings(table, "texts")
