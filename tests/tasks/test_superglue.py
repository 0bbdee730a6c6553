"""SuperGLUE: official rows to texts, scores against a second implementation, and submissions."""

import collections
import json
import re
import string
import zipfile

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from kerasbert import metrics
from kerasbert.tasks import Task, get_task, zip_submission
from kerasbert.tasks.superglue import TASKS
from tests.tasks.test_tasks import tiny_model

# The code is the same on each backend, and PyTorch compiles nothing.
pytestmark = pytest.mark.backends("torch")

PASSAGE = "Ann is old. Lee is in Rome.\n@highlight\nThe city is good"
ROWS = {
    "boolq": [
        {"question": "is it good", "passage": "It was good.", "idx": 0, "label": True},
        {"question": "is it bad", "passage": "It was good.", "idx": 1, "label": False},
    ],
    "cb": [
        {"premise": "It was.", "hypothesis": "it is", "label": "neutral", "idx": 0},
        {"premise": "A.", "hypothesis": "b", "label": "contradiction", "idx": 1},
        {"premise": "A.", "hypothesis": "a", "label": "entailment", "idx": 2},
    ],
    "copa": [
        {
            "premise": "The film was good.",
            "choice1": "It was old.",
            "choice2": "I was in it.",
            "question": "cause",
            "label": 1,
            "idx": 0,
        },
        {
            "premise": "Ann is old.",
            "choice1": "Ann is in Rome.",
            "choice2": "It was bad.",
            "question": "effect",
            "label": 0,
            "idx": 1,
        },
    ],
    "multirc": [
        {
            "idx": 4,
            "version": 1.1,
            "passage": {
                "text": "<b>Sent 1: </b>Ann is old.<br><b>Sent 2: </b>Lee is in Rome.<br>",
                "questions": [
                    {
                        "question": "Who is old?",
                        "idx": 9,
                        "answers": [
                            {"text": "Ann", "idx": 30, "label": 1},
                            {"text": "Lee", "idx": 31, "label": 0},
                        ],
                    },
                    {
                        "question": "Where is Lee?",
                        "idx": 10,
                        "answers": [{"text": "in Rome", "idx": 32, "label": 1}],
                    },
                ],
            },
        }
    ],
    "record": [
        {
            "source": "Daily mail",
            "passage": {
                "text": PASSAGE,
                "entities": [
                    {"start": 0, "end": 2},
                    {"start": 12, "end": 14},
                    {"start": 22, "end": 25},
                    {"start": 0, "end": 2},
                ],
            },
            "qas": [
                {
                    "query": "The city of @placeholder is old",
                    "answers": [{"start": 22, "end": 25, "text": "Rome"}],
                    "idx": 7,
                },
                {
                    "query": "@placeholder is who",
                    "answers": [
                        {"start": 12, "end": 14, "text": "Lee"},
                        {"start": 0, "end": 2, "text": "Ann"},
                    ],
                    "idx": 8,
                },
            ],
            "idx": 3,
        }
    ],
    "superglue_rte": [
        {"premise": "A.", "hypothesis": "b", "label": "not_entailment", "idx": 0},
        {"premise": "A.", "hypothesis": "a", "label": "entailment", "idx": 1},
    ],
    "wic": [
        {
            "word": "place",
            "sentence1": "Do you want to come over to my place later?",
            "sentence2": "A political system with no place for the less prominent groups.",
            "idx": 0,
            "label": False,
            "start1": 31,
            "start2": 27,
            "end1": 36,
            "end2": 32,
            "version": 1.1,
        }
    ],
    "wsc": [
        {
            "text": "Mark told Pete many lies about himself. He should have been more truthful.",
            "target": {
                "span2_index": 7,
                "span1_index": 0,
                "span1_text": "Mark",
                "span2_text": "He",
            },
            "idx": 0,
            "label": True,
        },
        {
            "text": "Ann gave Lee it.",
            "target": {
                "span2_index": 3,
                "span1_index": 0,
                "span1_text": "Ann",
                "span2_text": "it",
            },
            "idx": 1,
            "label": False,
        },
    ],
    "axb": [
        {
            "sentence1": "The cat sat.",
            "sentence2": "The cat did not sit.",
            "idx": i,
            "label": label,
            "logic": "Negation",
        }
        for i, label in enumerate(["not_entailment", "entailment", "entailment"])
    ],
    "axg": [
        {
            "hypothesis": f"The {who} was old.",
            "idx": i,
            "label": "entailment",
            "premise": f"The {who} said {word} was old.",
            "pair_id": 551 + i // 2,
        }
        for i, (who, word) in enumerate(
            [("nurse", "he"), ("nurse", "she"), ("cook", "he"), ("cook", "she")]
        )
    ],
}
FILES = {
    **{name: "{}/val.jsonl" for name in ROWS},
    "axb": "AX-b/AX-b.jsonl",
    "axg": "AX-g/AX-g.jsonl",
}
FOLDERS = {"boolq": "BoolQ", "cb": "CB", "copa": "COPA", "multirc": "MultiRC", "record": "ReCoRD"}
FOLDERS |= {"superglue_rte": "RTE", "wic": "WiC", "wsc": "WSC", "axb": "AX-b", "axg": "AX-g"}


def split_of(name):
    return "test" if name in ("axb", "axg") else "dev"


def put(folder, name, rows, file=None, **style):
    """Write rows of a task into its official place; the folder."""
    path = folder / (file or FILES[name]).format(FOLDERS[name])
    path.parent.mkdir(exist_ok=True, parents=True)
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    end = style.get("end", "\n")
    text = style.get("start", "") + end.join(lines) + end
    path.write_bytes(text.encode())
    return folder


def read(folder, name, rows=None, **style):
    put(folder, name, ROWS[name] if rows is None else rows, **style)
    return get_task(name).read(split_of(name), folder)


# === Rows ===


def test_the_texts_of_each_task(tmp_path):
    data = read(tmp_path, "boolq")
    assert data.x == (["is it good", "is it bad"], ["It was good."] * 2)
    assert (data.y, data.gold, data.ids) == (["true", "false"], ["true", "false"], [0, 1])
    data = read(tmp_path, "cb")
    assert data.x[1] == ["it is", "b", "a"] and data.y == ["neutral", "contradiction", "entailment"]
    data = read(tmp_path, "copa")
    assert data.x[0] == ["The film was good.", "Ann is old."] and data.y == [1, 0]
    assert data.x[1] == [
        ["What was the cause of this? It was old.", "What was the cause of this? I was in it."],
        ["What happened as a result? Ann is in Rome.", "What happened as a result? It was bad."],
    ]
    data = read(tmp_path, "multirc")
    assert data.x == (
        ["Who is old? Ann", "Who is old? Lee", "Where is Lee? in Rome"],
        ["Ann is old. Lee is in Rome. "] * 3,
    )
    assert data.y == ["right", "wrong", "right"] and data.ids == ["4-9-30", "4-9-31", "4-10-32"]
    data = read(tmp_path, "record")
    text = "Ann is old. Lee is in Rome. The city is good"
    assert data.x == (
        [f"The city of @placeholder is old {text}", f"@placeholder is who {text}"],
        [["Ann", "Lee", "Rome"]] * 2,
    )
    assert (data.y, data.gold, data.ids) == ([2, 0], [["Rome"], ["Lee", "Ann"]], [7, 8])
    data = read(tmp_path, "wic")
    assert data.x[0] == ["Do you want to come over to my *place* later?"] and data.y == ["false"]
    assert data.x[1] == ["A political system with no *place* for the less prominent groups."]
    data = read(tmp_path, "wsc")
    assert data.x[0][0].endswith("about himself. *He* should have been more truthful.")
    assert data.x[0][1] == "Ann gave Lee *it*." and data.x[1] == ["Mark", "Ann"]
    assert data.y == ["True", "False"]
    assert read(tmp_path, "axb").x[1] == ["The cat did not sit."] * 3
    assert read(tmp_path, "axg").x[0][1] == "The nurse said she was old."
    assert read(tmp_path, "superglue_rte").y == ["not_entailment", "entailment"]


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(
    "style",
    [{"end": "\r\n"}, {"start": "\ufeff"}, {"end": "\n\n"}, {"start": "\n\n"}],
    ids=["windows", "bom", "empty lines", "empty start"],
)
def test_other_line_ends(tmp_path, name, style):
    assert read(tmp_path / "a", name, **style) == read(tmp_path / "b", name)


def unlabeled(row):
    """Remove the labels of a row, as in a test file."""
    if isinstance(row, list):
        return [unlabeled(one) for one in row]
    if not isinstance(row, dict):
        return row
    keep = {"label"} if "passage" not in row and "qas" not in row else {"label"}
    names = [name for name in row if name not in keep]
    if "query" in row:
        names.remove("answers")
    return {name: unlabeled(row[name]) for name in names}


@pytest.mark.parametrize("name", ROWS)
def test_test_files_have_no_labels(tmp_path, name):
    rows = unlabeled(ROWS[name])
    file = FILES[name] if split_of(name) == "test" else "{}/test.jsonl"
    put(tmp_path, name, rows, file)
    data = get_task(name).read("test", tmp_path)
    assert data.y is None and data.gold is None
    assert data.ids == read(tmp_path, name).ids
    with pytest.raises(ValueError, match="have no labels to score"):
        get_task(name).score(data, ["true"] * len(data))
    if split_of(name) == "dev":
        put(tmp_path, name, rows)
        with pytest.raises(ValueError, match="has no column 'label'"):
            get_task(name).read("dev", tmp_path)


def changed(name, change):
    """Return the rows of a task with one change in a copy of the last row."""
    rows = json.loads(json.dumps(ROWS[name]))
    change(rows[-1])
    return rows


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("boolq", lambda x: x.pop("passage"), "val.jsonl', row 2 has no field 'passage'"),
        ("boolq", lambda x: x.update(passage=3), "row 2: the field 'passage' must be a string"),
        ("boolq", lambda x: x.update(passage=["a" * 500]), r"a string, got \['a{98}\.$"),
        ("boolq", lambda x: x.update(label="maybe"), "row 2: the label 'maybe' is unknown; known"),
        ("boolq", lambda x: x.pop("label"), "row 2: the label '' is unknown"),
        ("boolq", lambda x: x.pop("idx"), "row 2 has no field 'idx'"),
        ("boolq", lambda x: x.update(idx=0), "row 2: the idx 0 occurs twice"),
        ("boolq", lambda x: x.update(idx="1"), "'idx' must be a whole number from 0, got '1'"),
        ("boolq", lambda x: x.update(idx=-1), "'idx' must be a whole number from 0, got -1"),
        ("boolq", lambda x: x.update(idx=True), "'idx' must be a whole number from 0, got True"),
        ("cb", lambda x: x.update(label="Entailment"), "'Entailment' is unknown.*'entailment'"),
        ("copa", lambda x: x.update(label=2), "label 2 is not the index of one of its 2 choices"),
        ("copa", lambda x: x.update(question="why"), "the question 'why' is unknown; known are"),
        ("copa", lambda x: x.pop("choice2"), "row 2 has no field 'choice2'"),
        ("multirc", lambda x: x.update(passage="a"), "'passage' must be an object, got 'a'"),
        (
            "multirc",
            lambda x: x["passage"]["questions"][0]["answers"][1].pop("text"),
            r"row 1, passage, questions\[0\], answers\[1\] has no field 'text'",
        ),
        (
            "multirc",
            lambda x: x["passage"]["questions"][0]["answers"][1].update(idx=30),
            "idx '4-9-30' occurs twice",
        ),
        (
            "multirc",
            lambda x: x["passage"]["questions"][0]["answers"][1].update(label=2),
            "the label '2' is unknown",
        ),
        (
            "multirc",
            lambda x: x["passage"].update(questions=[1]),
            "'questions' must be a list of objects",
        ),
        (
            "record",
            lambda x: x["passage"]["entities"][1].update(end=900),
            r"entities\[1\]: start=12 and end=901 are not a span of its text, which has 55",
        ),
        ("record", lambda x: x["passage"].update(entities=[]), "row 1 has no entities"),
        ("record", lambda x: x["qas"][1].update(answers=[]), "row 1 has no answers"),
        ("record", lambda x: x["qas"][1].update(idx=7), "the idx 7 occurs twice"),
        ("wic", lambda x: x.update(end1=31), "start1=31 and end1=31 are not a span"),
        ("wic", lambda x: x.pop("start2"), "row 1 has no field 'start2'"),
        ("wsc", lambda x: x.pop("target"), "row 2 has no field 'target'"),
        (
            "wsc",
            lambda x: x["target"].update(span2_index=4),
            "row 2, target: span2_index=4 is not the index of 'it'; the text has 4 words",
        ),
        ("axg", lambda x: x.update(label="neutral"), "the label 'neutral' is unknown"),
    ],
)
def test_broken_rows(tmp_path, name, change, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path, name, changed(name, change))


def test_broken_files(tmp_path):
    for rows, message in (
        ([ROWS["cb"][0], '{"idx": 1,'], "line 2 is not valid JSON"),
        (["[1, 2]", "[3]"], r"row 1: \[1, 2\] is not a JSON object"),
        (["", ""], "is empty"),
    ):
        with pytest.raises(ValueError, match=message):
            read(tmp_path, "cb", rows)
    with pytest.raises(ValueError, match="no COPA/val.jsonl of the task 'copa'; get it from https"):
        get_task("copa").read("dev", tmp_path)
    path = tmp_path / "cb.csv"
    path.write_text("premise,hypothesis\na,b\n")
    with pytest.raises(ValueError, match="not a .jsonl file; get .*CommitmentBank"):
        get_task("cb").with_files(dev=str(path)).read("dev")
    record = get_task("cb").as_dict()
    with pytest.raises(ValueError, match="form in 'here'='nonsense'|form in 'here'"):
        Task.from_dict({**record, "form": "nonsense"}, "here")
    assert "form" not in get_task("rte").as_dict()


def test_answers_that_are_no_entities(tmp_path):
    rows = changed("record", lambda x: x["qas"][1].update(answers=[{"text": "nobody"}]))
    put(tmp_path, "record", rows, "{}/train.jsonl")
    with pytest.warns(UserWarning, match="1 of the 2 answers .* idx 8; they are left out"):
        assert get_task("record").read("train", tmp_path).ids == [7]
    with pytest.warns(UserWarning, match="1 of the 2 answers .* idx 8; they are scored anyway"):
        data = read(tmp_path, "record", rows)
    assert get_task("record").score(data, [2, 0]) == {"exact_match": 0.5, "f1": 0.5}


# === Scores, by the definitions of the paper ===


def reference(name, rows, predictions):
    """Score the labels of a submission, computed from the official rows without our code."""
    if name == "multirc":
        found = {row["idx"]: row["passage"]["questions"] for row in predictions}
        labels, guesses, whole = [], [], []
        for row in rows:
            for question in row["passage"]["questions"]:
                (said,) = [q for q in found[row["idx"]] if q["idx"] == question["idx"]]
                said = {answer["idx"]: answer["label"] for answer in said["answers"]}
                gold = {answer["idx"]: answer["label"] for answer in question["answers"]}
                whole.append(said == gold)
                labels += [gold[idx] for idx in gold]
                guesses += [said[idx] for idx in gold]
        return {"f1a": f1_score(labels, guesses), "exact_match": np.mean(whole)}
    said = {row["idx"]: row["label"] for row in predictions}
    if name == "record":
        golds = {qa["idx"]: [a["text"] for a in qa["answers"]] for row in rows for qa in row["qas"]}
        exact, overlap = [], []
        for idx, answers in golds.items():
            exact.append(max(normalized(said[idx]) == normalized(a) for a in answers))
            overlap.append(max(token_f1(said[idx], answer) for answer in answers))
        return {"exact_match": np.mean(exact), "f1": np.mean(overlap)}
    gold = [str(row["label"]).lower() for row in rows]
    guesses = [str(said[row["idx"]]).lower() for row in rows]
    if name == "axb":
        return {"matthews": matthews_corrcoef(gold, guesses)}
    scores = {"accuracy": accuracy_score(gold, guesses)}
    if name == "cb":
        scores["macro_f1"] = f1_score(gold, guesses, average="macro")
    if name == "axg":
        by_pair = collections.defaultdict(list)
        for row, guess in zip(rows, guesses):
            by_pair[row["pair_id"]].append(guess)
        scores["gender_parity"] = np.mean([a == b for a, b in by_pair.values()])
    return scores


def normalized(text):
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def token_f1(prediction, answer):
    a, b = normalized(prediction).split(), normalized(answer).split()
    same = sum((collections.Counter(a) & collections.Counter(b)).values())
    if not same:
        return 0.0
    precision, recall = same / len(a), same / len(b)
    return 2 * precision * recall / (precision + recall)


def many(name, rng):
    """Return random labeled rows of a task."""
    rows = []
    for i in range(60):
        row = json.loads(json.dumps(ROWS[name][i % len(ROWS[name])]))
        if name == "multirc":
            row["idx"] = i
            for question in row["passage"]["questions"]:
                for answer in question["answers"]:
                    answer["label"] = int(rng.integers(2))
        elif name == "record":
            text = "The Ann-Lee, of Rome and the city of Ann Lee"
            ends = [(4, 10), (16, 19), (25, 32), (37, 43), (25, 43)]
            entities = [{"start": a, "end": b} for a, b in ends]
            row["passage"] = {"text": text, "entities": entities}
            for place, qa in enumerate(row["qas"]):
                chosen = rng.choice(len(ends), rng.integers(1, 3), replace=False)
                qa["idx"] = 2 * i + place
                qa["answers"] = [{"text": text[slice(*ends[j])] + text[ends[j][1]]} for j in chosen]
        else:
            row["idx"] = i
            labels = list(get_task(name).labels)
            if isinstance(row["label"], bool):
                row["label"] = bool(rng.integers(2))
            elif isinstance(row["label"], int):
                row["label"] = int(rng.integers(2))
            else:
                row["label"] = str(rng.choice(labels))
            if name == "axg":
                row["pair_id"] = 300 + i // 2
        rows.append(row)
    return rows


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ROWS)
def test_scores_and_files(tmp_path, name, seed):
    rng = np.random.default_rng(seed)
    rows, task = many(name, rng), get_task(name)
    data = read(tmp_path, name, rows)
    if task.head == "multiple_choice":
        predictions = [int(rng.integers(len(choices))) for choices in data.x[1]]
    else:
        predictions = [str(one) for one in rng.choice(task.labels, len(data))]
    (path,) = task.write(tmp_path / "out", data, predictions)
    with open(path, encoding="utf-8") as file:
        written = [json.loads(line) for line in file]
    assert path.endswith(f"{FOLDERS[name]}.jsonl")
    scores = task.score(data, predictions)
    assert scores == pytest.approx(reference(name, rows, written))
    assert task.main_metric in scores
    assert set(scores) == {published.metric for published in task.published}


def test_forms_of_submissions(tmp_path):
    """Each file has the fields and types of the official format."""
    wanted = {
        "boolq": ({"idx": 0, "label": "true"}, ["true", "false"]),
        "cb": ({"idx": 0, "label": "neutral"}, ["neutral"] * 3),
        "copa": ({"idx": 0, "label": 1}, [1, 0]),
        "multirc": (
            {
                "idx": 4,
                "passage": {
                    "questions": [
                        {
                            "idx": 9,
                            "answers": [{"idx": 30, "label": 1}, {"idx": 31, "label": 0}],
                        },
                        {"idx": 10, "answers": [{"idx": 32, "label": 0}]},
                    ]
                },
            },
            ["right", "wrong", "wrong"],
        ),
        "record": ({"idx": 7, "label": "Rome"}, [2, 1]),
        "superglue_rte": ({"idx": 0, "label": "entailment"}, ["entailment"] * 2),
        "wic": ({"idx": 0, "label": "false"}, ["false"]),
        "wsc": ({"idx": 0, "label": "True"}, ["True", "False"]),
        "axb": ({"idx": 0, "label": "not_entailment"}, ["not_entailment"] * 3),
        "axg": ({"idx": 0, "label": "entailment"}, ["entailment"] * 4),
    }
    assert [task.name for task in TASKS] == list(wanted)
    for name, (first, predictions) in wanted.items():
        task, data = get_task(name), read(tmp_path / "data", name)
        (path,) = task.write(tmp_path / "out", data, predictions)
        line = open(path, encoding="utf-8").readline()
        assert json.loads(line) == first
    (tmp_path / "out" / "other.txt").write_text("x")
    path = zip_submission(tmp_path / "out", tmp_path / "all.zip")
    names = "BoolQ CB COPA MultiRC ReCoRD RTE WiC WSC AX-b AX-g".split()
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == [f"{name}.jsonl" for name in names]
        assert archive.read("COPA.jsonl") == b'{"idx": 0, "label": 1}\n{"idx": 1, "label": 0}\n'


def test_zip_of_incomplete_predictions(tmp_path):
    with pytest.raises(ValueError, match="lacks BoolQ.jsonl, .*predict the test split of boolq, c"):
        zip_submission(tmp_path, tmp_path / "all.zip")
    with pytest.raises(ValueError, match="benchmark='klue'"):
        zip_submission(tmp_path, tmp_path / "all.zip", "klue")
    for task in TASKS:
        (tmp_path / task.submission).write_text('{"idx": 0, "label": "true"}\n')
    assert zip_submission(tmp_path, tmp_path / "all.zip")
    for text, message in (
        ("", "WSC.jsonl' is empty"),
        ('{"label": "True"}\n', "WSC.jsonl', line 1 has no idx"),
        ('{"idx": 0}\n{"idx": 0}\n', "WSC.jsonl' has the idx 0 twice"),
        ('{"idx": 0}\n{"idx"', "WSC.jsonl', line 2 is not valid JSON"),
    ):
        (tmp_path / "WSC.jsonl").write_text(text)
        with pytest.raises(ValueError, match=message):
            zip_submission(tmp_path, tmp_path / "other.zip")
    assert not (tmp_path / "other.zip").exists()
    glue = tmp_path / "glue"
    glue.mkdir()
    files = "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm QNLI RTE WNLI AX".split()
    for name in files:
        (glue / f"{name}.tsv").write_text("index\tprediction\n0\t1\n1\t1\n")
    with zipfile.ZipFile(zip_submission(glue, tmp_path / "glue.zip", "glue")) as archive:
        assert archive.namelist() == [f"{name}.tsv" for name in files]
    (glue / "AX.tsv").write_text("index\tprediction\n")
    with pytest.raises(ValueError, match="AX.tsv' has no predictions"):
        zip_submission(glue, tmp_path / "glue.zip", "glue")


def test_the_papers_mean():
    """The mean of the paper's table: tasks with two scores count with their mean."""
    scores = [
        np.mean([published.value for published in task.published])
        for task in TASKS
        if task.trained_on is None
    ]
    assert len(scores) == 8 and np.mean(scores) == pytest.approx(0.690, abs=6e-4)


# === Models ===


@pytest.mark.parametrize("name", ["boolq", "copa", "multirc", "record", "wsc"])
def test_heads(tmp_path, name):
    """The existing heads train on the rows and predict them."""
    task = get_task(name)
    data = read(tmp_path, name)
    model = tiny_model(task)
    model.fit(data.x, data.y, verbose=0)
    predictions, probabilities = task.answers(model, data)
    assert len(predictions) == len(data) == len(probabilities)
    assert all(0 <= score <= 1 for score in task.score(data, predictions).values())


def test_metrics_with_bad_input():
    with pytest.raises(ValueError, match="1 labels in y but 2 predictions"):
        metrics.multirc([("a", 1)], [1, 0])
    with pytest.raises(ValueError, match="y is empty"):
        metrics.gender_parity([], [])
    assert metrics.gender_parity([0, 1], ["a", "b"]) == 0.0
    task = get_task("multirc")
    with pytest.raises(ValueError, match="The prediction 'yes' is unknown"):
        task.score(type("Data", (), {"gold": ["right"], "ids": ["0-0-0"]})(), ["yes"])
