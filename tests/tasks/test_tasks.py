"""Data tasks: each head from raw examples to scores and the submission file."""

import dataclasses
import json
import math
import unicodedata

import keras
import numpy as np
import pytest

from kerasbert import metrics, models
from kerasbert.models import BertBackbone
from kerasbert.tasks import Examples, Settings, Source, Task, builtin_tasks, file_task, get_task
from kerasbert.tasks.own import model_task
from tests.contracts import bert_tokenizer

WORDS = "good bad film a the it was is who rome ann lee old in city ? . i".split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
VOCABULARY += [letter for letter in "bcdefghjk"] + [f"##{letter}" for letter in "abcdefgh"]


def tiny_model(task, **settings):
    """Return a task's model, as `from_preset` would make it, with random weights."""
    keras.utils.set_random_seed(0)
    cls = task.model_class
    backbone = BertBackbone(
        vocabulary_size=len(VOCABULARY),
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        max_sequence_length=64,
        dropout=0.0,
    )
    given = {**task.model_settings(), "sequence_length": 48, **settings}
    given.pop("new_head", None)
    names = ("labels", "scheme", "multi_label")
    own = {name: given.pop(name) for name in names if name in given}
    if "max_query_length" in given:
        given.update(max_query_length=8, doc_stride=16)
    preprocessor = cls.preprocessor_cls(bert_tokenizer(VOCABULARY), **given)
    return cls(backbone, preprocessor=preprocessor, **own)


def said(task, data):
    """Return a model, its predictions for the examples, and its scores."""
    model = tiny_model(task)
    predictions = task.predict(model, data)
    return model, predictions, task.score(data, predictions)


def only_file(paths):
    (path,) = paths
    with open(path, encoding="utf-8", newline="") as file:
        return path, file.read()


# === The examples ===


@pytest.mark.parametrize("name", builtin_tasks())
def test_rows(name):
    task = get_task(name)
    assert task.name == name and task.splits[0] == "train"
    assert issubclass(task.model_class, keras.Model)
    assert set(task.metrics) <= set(metrics.METRICS)
    assert task.source.page.startswith("https://")
    assert set(task.source.columns) <= {*task.columns, task.label}
    assert len(task.source.values) in (0, len(task.labels))
    for published in task.published:
        assert 0 < published.value < 1 and published.where
        assert published.split in ("dev", "test")
    task.model_class.check_arguments(task.model_settings())


@pytest.mark.parametrize("name", builtin_tasks())
def test_a_task_goes_through_json(name):
    task = get_task(name)
    assert Task.from_dict(json.loads(json.dumps(task.as_dict()))) == task


@pytest.mark.backends("torch")
def test_own_files_in_place_of_the_official_ones(tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_text("index\tsentence1\tsentence2\tlabel\n7\tA.\tB.\tentailment\n")
    task = get_task("rte").with_files(dev=str(path), test=None)
    assert task.splits == ("dev",) and task.has_own_files and not get_task("rte").has_own_files
    assert (task.published, task.source.page, task.title) == ((), "", "files in the form of RTE")
    data = task.read("dev")
    assert (data.x, data.y, data.ids) == ((["A."], ["B."]), ["entailment"], ["7"])
    # The source of its files stays here.
    assert str(tmp_path) not in json.dumps(task.as_dict())
    with pytest.raises(ValueError, match="There is no file '.*none.tsv' for train"):
        task.with_files(train=str(tmp_path / "none.tsv"))


def test_the_papers_tasks_are_all_there():
    glue = "cola sst2 mrpc stsb qqp mnli mnli_mismatched qnli rte wnli ax"
    superglue = "boolq cb copa multirc record superglue_rte wic wsc axb axg"
    others = "squad squad2 swag conll2003 nsmc klue_ynat klue_sts klue_nli klue_ner korquad"
    japanese = "marc_ja jsts jnli jsquad jcommonsenseqa"
    assert list(builtin_tasks()) == f"{glue} {superglue} {others} {japanese}".split()
    # The mean of the paper's table 1, where MNLI counts twice and WNLI does not count.
    for model, mean in (("BERT-Base", 0.796), ("BERT-Large", 0.821)):
        scores = [
            published.value
            for name in glue.split()
            for published in get_task(name).published
            if published.model == model and published.split == "test"
        ]
        assert len(scores) == 9 and np.mean(scores) == pytest.approx(mean, abs=6e-4)


def test_settings():
    grid = get_task("squad2").settings.grid()
    assert grid == [{"batch_size": 48, "learning_rate": 5e-5, "epochs": 2}]
    assert len(Settings(batch_sizes=(16,), epochs=(1, 2)).grid()) == 6
    arguments = get_task("klue_ner").model_settings()
    assert arguments == {
        "labels": ["PS", "LC", "OG", "DT", "TI", "QT"],
        "scheme": "BIO",
        "label_pieces": "all",
        "sequence_length": 128,
    }
    assert get_task("stsb").model_settings() == {"new_head": True, "sequence_length": 128}


# === The heads ===


@pytest.mark.backends("tensorflow")
def test_classes_to_the_file_of_glue(tmp_path):
    task = get_task("mrpc")
    first = ["it was good", "it was bad", "the film is good", "who is old in the city ?"] * 4
    second = ["a good film", "a good film", "is it good", "ann"] * 4
    y = ["equivalent", "not_equivalent"] * 8
    data = Examples((first, second), y, [str(i) for i in range(100, 116)], gold=y)
    model, predictions, scores = said(task, data)
    assert predictions == [row["label"] for row in model.classify(data.x)]
    assert set(scores) == {"f1", "accuracy"}
    number = [task.labels.index(name) for name in predictions]
    assert scores["f1"] == metrics.f1([1, 0] * 8, number)
    path, text = only_file(task.write(tmp_path / "new", data, predictions))
    assert path.endswith("MRPC.tsv")
    assert text == "index\tprediction\n" + "".join(
        f"{100 + i}\t{value}\n" for i, value in enumerate(number)
    )
    # Names, if the official file has names.
    text = only_file(get_task("rte").write(tmp_path, data.take(slice(2)), ["entailment"] * 2))[1]
    assert text == "index\tprediction\n100\tentailment\n101\tentailment\n"
    # For a model without class names, the numbers are written.
    unnamed = models.BertTextClassifier(model.backbone, 2, preprocessor=model.preprocessor)
    assert set(task.predict(unnamed, data)) <= set(task.labels)


@pytest.mark.backends("tensorflow")
def test_numbers_to_the_file_of_glue(tmp_path):
    task = get_task("stsb")
    words, y = ["good", "bad", "old", "in rome"], [4.0, 1.0, 0.0, 5.0]
    data = Examples((words, ["good"] * 4), y, list(range(4)), gold=y)
    model, predictions, scores = said(task, data)
    assert predictions == pytest.approx(model.score(data.x).tolist())
    assert scores["spearman"] == pytest.approx(metrics.spearman(y, predictions))
    text = only_file(task.write(tmp_path, data.take([3, 1, 2]), [-0.5, 3.14159265, 7]))[1]
    assert text == "index\tprediction\n3\t0.000000\n1\t3.141593\n2\t5.000000\n"


@pytest.mark.backends("tensorflow")
def test_choices_to_the_file_of_swag(tmp_path):
    task = get_task("swag")
    x = (["who"] * 8, [["ann", "rome", "the", "city"], ["old", "ann"]] * 4)
    data = Examples(x, [0, 1] * 4, list(range(8)), gold=[0, 1] * 4)
    model, predictions, scores = said(task, data)
    assert predictions == [row["index"] for row in model.choose(*data.x)]
    assert scores == {"accuracy": np.mean(np.array(predictions) == [0, 1] * 4)}
    text = only_file(task.write(tmp_path, data.take(slice(2)), predictions[:2]))[1]
    assert text == f",pred\n0,{predictions[0]}\n1,{predictions[1]}\n"


@pytest.mark.backends("tensorflow")
def test_answers_to_the_files_of_squad(tmp_path):
    task = get_task("squad2")
    contexts = ["ann is in rome", "lee is in the city"] * 6
    y = [(0, 3), (0, 3)] + [(10, 14), (10, 18)] + [None, None]
    questions = ["who ?", "who ?", "in ?", "in ?", "was it good ?", "was it good ?"] * 2
    gold = [["ann"], ["lee"], ["rome"], ["the city", "city"], [], []] * 2
    data = Examples((questions, contexts), y * 2, [f"q{i}" for i in range(12)], gold=gold)
    model, predictions, scores = said(task, data)
    assert task.main_metric == "best_f1" and scores["best_f1"] >= max(scores["f1"], 1 / 3)
    assert predictions[1]["answer"] == model.answer("who ?", contexts[1])[0]["answer"] != ""
    answers = [row["answer"] for row in predictions]
    nulls = [row["null_score"] for row in predictions]
    assert scores == metrics.squad2(gold, answers, nulls)
    paths = task.write(tmp_path, data, predictions, threshold=0.0)
    contents = [json.load(open(path, encoding="utf-8")) for path in paths]
    assert [path.rsplit("/", 1)[1] for path in paths] == ["predictions.json", "na_prob.json"]
    assert contents[0] == {
        f"q{i}": "" if null > 0 else answer for i, (answer, null) in enumerate(zip(answers, nulls))
    }
    assert contents[1] == pytest.approx(
        {f"q{i}": 1 / (1 + math.exp(-null)) for i, null in enumerate(nulls)}
    )
    # SQuAD 1.1 has no null scores, and far-off scores do not overflow.
    squad = get_task("squad")
    row = {"answer": '로마 "', "null_score": -5000.0}
    path, text = only_file(squad.write(tmp_path, data.take([0]), [row]))
    assert json.loads(text) == {"q0": '로마 "'} and "로마" in text
    far = task.write(tmp_path, data.take([0, 1]), [row, {**row, "null_score": 5000.0}])[1]
    assert json.load(open(far)) == {"q0": 0.0, "q1": 1.0}


def tagged_documents():
    """Return documents of two sentences and of one, in turn."""
    sentences = [["Ann", "is", "in", "Rome"], ["Lee", "was"], ["the", "city"]]
    tags = [["B-PER", "O", "O", "B-LOC"], ["B-PER", "O"], ["O", "O"]]
    others = [[[word, "NN", "I-NP"] for word in row] for row in sentences]
    return Examples(
        x=[sum(sentences[:2], []), sentences[2]] * 4,
        y=[sum(tags[:2], []), tags[2]] * 4,
        ids=list(range(8)),
        gold=tags * 4,
        sentences=[others[:2], others[2:]] * 4,
    )


@pytest.mark.backends("tensorflow")
def test_tags_to_the_columns_of_conlleval(tmp_path):
    task, documents = get_task("conll2003"), tagged_documents()
    model, predictions, scores = said(task, documents)
    assert [len(row) for row in predictions] == [4, 2, 2] * 4
    (row,) = model.predict_labels(documents.x[:1])
    assert [*predictions[0], *predictions[1]] == row
    assert set(scores) == {"f1", "precision", "recall", "accuracy"}
    first = documents.take(slice(2))
    guess = [["B-PER", "I-PER", "O", "O"], ["O", "O"], ["O", "B-LOC"]]
    text = only_file(task.write(tmp_path, first, guess))[1]
    assert text.split("\n\n")[0].split("\n")[:2] == [
        "Ann NN I-NP B-PER B-PER",
        "is NN I-NP O I-PER",
    ]
    assert len(text.split("\n\n")) == 4 and text.endswith("city NN I-NP O B-LOC\n\n")
    # The official script's readers get the same scores.
    blocks = [
        [line.split(" ") for line in block.split("\n")] for block in text.strip().split("\n\n")
    ]
    columns = ([[cells[i] for cells in block] for block in blocks] for i in (-2, -1))
    assert metrics.entities(*columns) == task.score(first, guess)
    # Without labels, the word and its tag; a column never splits.
    unlabeled = Examples([["a b", "c"]], None, [0], sentences=[[[["a b"], ["c"]]]])
    assert only_file(task.write(tmp_path, unlabeled, [["O", "O"]]))[1] == "a_b O\nc O\n\n"


@pytest.mark.backends("tensorflow")
def test_spans_to_tags_of_characters(tmp_path):
    task = get_task("klue_ner")
    texts = ["ann is in rome", "lee was in the city"] * 4
    y = [[(0, 3, "PS"), (10, 14, "LC")], [(0, 3, "PS"), (11, 19, "LC")]] * 4
    data = Examples(texts, y, list(range(8)), gold=y)
    model, predictions, scores = said(task, data)
    assert set(scores) == {"entity_f1", "char_f1"}
    found = [(row["start"], row["end"], row["label"]) for row in model.tag(texts[0])]
    assert predictions[0] == found
    assert task.score(data, y)["entity_f1"] == 1.0
    text = only_file(task.write(tmp_path, data.take([1]), [y[1]]))[1]
    lines = text.split("\n")
    assert lines[:5] == ["l\tB-PS", "e\tI-PS", "e\tI-PS", " \tO", "w\tO"]
    assert lines[11:15] == ["t\tB-LC", "h\tI-LC", "e\tI-LC", " \tI-LC"] and text.endswith("\n\n")


@pytest.mark.backends("torch")
def test_regression_by_its_error():
    task = Task("r", "R", "text_regressor", ("text",), ("mean_absolute_error", "pearson"))
    assert (task.main_metric, task.mode) == ("mean_absolute_error", "min")
    data = Examples(["good", "bad"], [1.0, 2.0], [0, 1], gold=[1.0, 2.0])
    assert task.score(data, [1.5, 2.5])["mean_absolute_error"] == 0.5


def check_scores_in_fit(task, data):
    """Check that the logs of `fit` have the scores after each epoch."""
    model = tiny_model(task)
    model.optimizer.learning_rate = 3e-3
    watch = task.score_callback(data)
    history = model.fit(data.x, data.y, batch_size=8, callbacks=[watch], verbose=0).history
    scores = task.score(data, task.predict(model, data))
    assert {name: history[f"val_{name}"] for name in scores} == {
        name: [pytest.approx(value, abs=1e-6)] for name, value in scores.items()
    }


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_scores_in_fit():
    y = ["acceptable", "unacceptable"] * 8
    texts = ["it was good", "it was bad"] * 8
    check_scores_in_fit(get_task("cola"), Examples(texts, y, list(range(16)), gold=y))


@pytest.mark.slow
def test_scores_of_taggers_in_fit():
    check_scores_in_fit(get_task("conll2003"), tagged_documents())


# === Bad input ===


@pytest.mark.backends("torch")
def test_models_of_the_wrong_kind(tmp_path):
    rte, sts = get_task("rte"), get_task("stsb")
    data = Examples((["a"], ["b"]), None, [0])
    with pytest.raises(
        ValueError, match="'rte' needs a BertTextClassifier, not a BertTextRegressor"
    ):
        rte.predict(tiny_model(sts), data)
    with pytest.raises(
        ValueError, match="classes are entailment, not_entailment, but those of 'mrpc"
    ):
        get_task("mrpc").predict(tiny_model(rte), data)
    own = dataclasses.replace(get_task("conll2003"), name="own", labels=("PER",))
    with pytest.raises(
        ValueError, match="tags are O, B-PER, I-PER, but those of 'conll2003' are O, B-"
    ):
        get_task("conll2003").predict(tiny_model(own), data)
    with pytest.raises(ValueError, match="of 'rte' have no labels to score predictions with"):
        rte.score(data, ["entailment"])
    with pytest.raises(ValueError, match="There are 0 predictions for 1 examples of 'rte'"):
        rte.write(tmp_path / "out", data, [])
    assert not (tmp_path / "out").exists()
    labeled = Examples((["a"], ["b"]), ["entailment"], [0], gold=["entailment"])
    with pytest.raises(ValueError, match="The prediction 'yes' is unknown; known are 'entailment'"):
        rte.score(labeled, ["yes"])


@pytest.mark.backends("torch")
def test_nothing_half_written(tmp_path, monkeypatch):
    task = get_task("rte")
    data = Examples((["a"], ["b"]), None, [0])
    task.write(tmp_path, data, ["entailment"])
    before = (tmp_path / "RTE.tsv").read_text()

    def fails(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(OSError):
        task.write(tmp_path, data, ["not_entailment"])
    assert [file.name for file in tmp_path.iterdir()] == ["RTE.tsv"]
    assert (tmp_path / "RTE.tsv").read_text() == before


def test_a_source_is_data():
    task = Task("t", "T", "text_classifier", ("text",), ("accuracy",), source=Source(files={}))
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.name = "u"
    with pytest.raises(ValueError, match="'t' has no split 'train'"):
        task.read("train")


@pytest.mark.parametrize("head", ["text_classifier", "token_classifier"])
def test_f1_of_many_classes_names_its_average(tmp_path, head):
    rows = {
        "text_classifier": "text,label\na,{}\nb,{}\nc,{}\n",
        "token_classifier": "a {}\nb {}\n\nc {}\n",
    }
    path = tmp_path / ("own.csv" if head == "text_classifier" else "own.conll")
    path.write_text(rows[head].format("x", "y", "z"))
    task = file_task(path, head=head, metrics=["f1", "accuracy", "macro_f1", "recall"])
    assert task.metrics == ("macro_f1", "accuracy", "macro_recall")
    assert task.main_metric == "macro_f1"
    data = task.read("train")
    said = ["x", "x", "x"] if head == "text_classifier" else [["x", "x"], ["x"]]
    scores = task.score(data, said)
    assert scores["macro_f1"] == pytest.approx(1 / 6)
    assert scores["macro_recall"] == scores["accuracy"] == pytest.approx(1 / 3)
    by_class = task.scores_by_class(data, said)
    assert by_class["x"] == {"f1": 0.5, "precision": pytest.approx(1 / 3), "recall": 1.0} | {
        "gold": 1,
        "predicted": 3,
    }
    assert [row["f1"] for row in by_class.values()] == [0.5, 0.0, 0.0]
    again = Task.from_dict(json.loads(json.dumps(dataclasses.replace(task).as_dict())))
    assert again.metrics == task.metrics


def test_f1_of_two_classes_is_that_of_the_second(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("text,label\na,no\nb,yes\nc,yes\n")
    task = file_task(path, metrics=["f1", "precision"])
    data = task.read("train")
    said = ["no", "no", "yes"]
    assert task.score(data, said) == {"f1": pytest.approx(2 / 3), "precision": 1.0}
    assert task.scores_by_class(data, said) == {}


def test_scores_of_types_of_entities(tmp_path):
    path = tmp_path / "own.conll"
    path.write_text("a B-PER\nb B-LOC\nc O\n")
    task = file_task(path, head="token_classifier")
    by_type = task.scores_by_class(task.read("train"), [["B-PER", "O", "B-LOC"]])
    assert by_type["PER"]["f1"] == 1.0 and by_type["LOC"]["f1"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "types", "scheme", "tags"),
    [
        ("ann PER-B\nlee PER-I\nis -\n\nrome LOC-B\n", ("LOC", "PER"), "BIO", "B-PER I-PER O"),
        ("ann b_PER\nlee i_PER\nis o\n", ("PER",), "BIO", "B-PER I-PER O"),
        (
            "ann PER_B\nlee PER_E\nis O\nold PER_M\nrome PER_S\n",
            ("PER",),
            "BIOES",
            "B-PER E-PER O I-PER S-PER",
        ),
        ("ann Ｂ－PER\nlee Ｉ－PER\nis Ｏ\n", ("PER",), "BIO", "B-PER I-PER O"),
        ("ann B–PER\nlee I–PER\nis –\n", ("PER",), "BIO", "B-PER I-PER O"),
        ("ann U-PER\nis none\nrome B-PER\ni L-PER\n", ("PER",), "BILOU", "U-PER O B-PER L-PER"),
    ],
)
def test_files_of_other_spellings_of_tags(tmp_path, text, types, scheme, tags):
    path = tmp_path / "own.conll"
    path.write_text(text)
    task = file_task(path, path, path, head="token_classifier")
    assert (task.labels, task.scheme, task.metrics) == (types, scheme, ("entities",))
    for split in ("train", "test"):
        data = task.read(split)
        assert data.gold[0] == tags.split()
    model = tiny_model(task)
    assert {label for row in model.predict_labels(data.x) for label in row} <= {*model.label_names}


def forms(text):
    return [unicodedata.normalize(form, text) for form in ("NFC", "NFD")]


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "name, content, head, fields",
    [
        ("t.conll", "ann B-인물\nlee I-인물\nin O\n", "token_classifier", {}),
        (
            "t.conll",
            "ann B-人物(ガ)\nlee I-人物(ガ)\nin O\n",
            "token_classifier",
            {"scheme": "BIO"},
        ),
        ("t.conll", "ann 고유명사\nin 조사\n", "token_classifier", {}),
        (
            "t.jsonl",
            '{"tokens": ["ann", "in"], "tags": ["B-인물", "O"]}\n'
            '{"tokens": ["lee", "in"], "tags": ["I-인물", "O"]}\n',
            "token_classifier",
            {},
        ),
        (
            "t.jsonl",
            '{"text": "ann in", "label": [[0, 3, "인물"]]}\n{"text": "a", "label": []}\n',
            "token_classifier",
            {"units": "characters"},
        ),
        ("t.csv", "text,label\ngood,긍정\nbad,부정\n", "text_classifier", {}),
        (
            "t.jsonl",
            '{"text": "good", "label": ["긍정", "ガ"]}\n{"text": "a", "label": []}\n',
            "text_classifier",
            {},
        ),
    ],
)
def test_names_are_compared_in_nfc(tmp_path, name, content, head, fields):
    """Files written on a Mac have names in another form, or in both."""
    for folder, text in zip(("nfc", "nfd", "both"), (*forms(content), None)):
        (tmp_path / folder).mkdir()
        if text is None:
            lines = zip(*(one.splitlines(keepends=True) for one in forms(content)))
            text = "".join(pair[number % 2] for number, pair in enumerate(lines))
        (tmp_path / folder / name).write_text(text, encoding="utf-8")
    files = [str(tmp_path / folder / name) for folder in ("nfc", "nfd", "both")]
    columns = {"columns": "text"} if "text" in content else {}
    tasks = [file_task(file, head=head, **columns) for file in files]
    assert len({task.labels for task in tasks}) == 1
    assert all(getattr(tasks[0], key) == value for key, value in fields.items())
    gold = [task.read("train").y for task in tasks]
    assert gold[0] == gold[1] == gold[2]
    for form in ("NFC", "NFD"):
        labels = [unicodedata.normalize(form, label) for label in tasks[0].labels]
        model = tiny_model(tasks[0], labels=labels)
        task, data = tasks[0], tasks[0].read("train")
        task.check_model(model)
        assert task.score(data, data.gold)[task.main_metric] == 1.0
        task.score(data, task.predict(model, data))  # Accepts the model's predictions.
        model.preprocessor(data.x, data.y)
        if fields.get("units") == "characters":
            continue
        own = dataclasses.replace(model_task(model), columns=task.columns)
        read = [own.with_files(None, dev=file).read("dev") for file in files]
        assert read[0].gold == read[1].gold == read[2].gold
        own.score(read[0], own.predict(model, read[0]))


@pytest.mark.backends("torch")
def test_columns_of_classes_are_compared_in_nfc(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(forms("text,긍정,ガ\ngood,1,0\nbad,0,1\n")[1], encoding="utf-8")
    both = [forms(label) for label in ("긍정", "ガ")]
    labels = [both[0][0], both[1][1]]
    task = file_task(str(path), label=labels, labels=labels[::-1])
    data = task.read("train")
    assert data.y == [[forms("긍정")[0]], [forms("ガ")[0]]]
    model = tiny_model(task, labels=[both[0][1], both[1][0]])
    assert set(task.score(data, task.predict(model, data))) == {"macro_f1", "accuracy"}
    frame = {both[1][1]: [0, 1], both[0][0]: [1, 0]}
    assert model.preprocessor(["good", "bad"], frame)[1].cpu().numpy().tolist() == [[1, 0], [0, 1]]
