"""The quirks of each official file, in small files of its format."""

import csv
import json
import sys
import types
import warnings

import numpy as np
import pytest

from kerasbert.heads.base.file_readers import read_columns, read_squad, read_table
from kerasbert.heads.question_answering.data import aligned
from kerasbert.tasks import file_task, get_task

# No backend is involved.
pytestmark = pytest.mark.backends("tensorflow")

BOM = "\ufeff".encode()


def put(folder, path, text, encoding="utf-8"):
    """Write a file of the official folder; `text` may be its lines, or JSON."""
    path = folder / path
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(text, dict):
        text = json.dumps(text, ensure_ascii=False)
    if isinstance(text, list):
        text = "".join(line + "\n" for line in text)
    path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
    return str(folder)


@pytest.fixture(autouse=True)
def _no_surprise():
    """An unexpected warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


# === GLUE ===


def test_cola_has_no_header_but_in_test(tmp_path):
    # Quotes are plain characters, even a single one at the beginning.
    put(tmp_path, "CoLA/train.tsv", ["gj04\t1\t\tThey drank it.", 'bc01\t0\t*\t"Who ran?'])
    put(tmp_path, "CoLA/test.tsv", ["index\tsentence", "0\tSentence.", "1\tLabel."])
    task = get_task("cola")
    train = task.read("train", tmp_path)
    assert train.x == ["They drank it.", '"Who ran?']
    assert train.y == ["acceptable", "unacceptable"] == train.gold
    test = task.read("test", tmp_path)
    assert (test.x, test.y, test.gold, test.ids) == (
        ["Sentence.", "Label."],
        None,
        None,
        ["0", "1"],
    )


def test_sst2_and_mrpc_have_a_header(tmp_path):
    lines = ["sentence\tlabel", 'a "fine film \t1', "it 's bad\u2028really \t0"]
    put(tmp_path, "SST-2/dev.tsv", lines)
    dev = get_task("sst2").read("dev", tmp_path)
    assert dev.x == ['a "fine film ', "it 's bad\u2028really "]
    assert dev.y == ["positive", "negative"]
    # MRPC's files have a byte-order mark and Windows line ends.
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    row = '1\t702876\t702977\t"Amrozi said\tReferring to "the witness"\r\n'
    put(tmp_path, "MRPC/train.tsv", BOM + (header + row).encode())
    train = get_task("mrpc").read("train", tmp_path)
    assert train.x == (['"Amrozi said'], ['Referring to "the witness"'])
    assert train.y == ["equivalent"]


def test_files_may_lie_in_the_folder_itself(tmp_path):
    put(tmp_path, "dev.tsv", ["index\tsentence1\tsentence2\tlabel", "0\tA.\tB.\tnot_entailment"])
    assert get_task("rte").read("dev", tmp_path).y == ["not_entailment"]


def test_qqp_has_broken_rows(tmp_path):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    rows = ["1\t1\t2\tWho?\tMe?\t0", "2\t3\t4\tA line", " that goes on?\tB?\t1", "3\t5\t6\tC\tD\t1"]
    rows += [f"{i}\t7\t8\tE\tF\t0" for i in range(4, 8)]
    put(tmp_path, "QQP/train.tsv", [header, *rows])
    with pytest.warns(UserWarning, match="2 of the 8 rows .* are broken .* first one is line 3"):
        train = get_task("qqp").read("train", tmp_path)
    assert train.x[0][:2] == ["Who?", "C"] and train.y[:2] == ["not_duplicate", "duplicate"]
    # Each row of the test set needs an answer.
    rows = ["0\tWho?\tMe?", "1\tOnly one", "2\tA?\tB?"]
    put(tmp_path, "QQP/test.tsv", ["id\tquestion1\tquestion2", *rows])
    test = get_task("qqp").read("test", tmp_path)
    assert test.ids == ["0", "1", "2"] and test.x[1] == ["Me?", "", "B?"]


def test_stsb_scores(tmp_path):
    header = (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
    )
    row = "0\tmain-captions\tMSRvid\t2012test\t0001\tnone\tnone\tA plane.\tAn air plane.\t5.000"
    put(tmp_path, "STS-B/train.tsv", [header, row])
    train = get_task("stsb").read("train", tmp_path)
    assert train.x == (["A plane."], ["An air plane."]) and train.y == [5.0]
    put(tmp_path, "STS-B/dev.tsv", [header, row.replace("5.000", "five")])
    with pytest.raises(ValueError, match="line 2: the label 'five' must be a finite number"):
        get_task("stsb").read("dev", tmp_path)


def test_mnli_matched_mismatched_and_diagnostics(tmp_path):
    trees = "sentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
    start = f"index\tpromptID\tpairID\tgenre\t{trees}\tsentence1\tsentence2"
    row = "0\t1\t1e\tfiction\t( a )\t( b )\t(ROOT a)\t(ROOT b)\tA.\tB.\t{}\tneutral\tneutral"
    for name, label in (("dev_matched", "neutral"), ("dev_mismatched", "entailment")):
        header = f"{start}\tlabel1\tlabel2\tgold_label"
        put(tmp_path, f"MNLI/{name}.tsv", [header, row.format("neutral")[:-7] + label])
    put(tmp_path, "MNLI/train.tsv", [f"{start}\tlabel1\tgold_label", row.format("x")[:-8]])
    put(tmp_path, "MNLI/test_mismatched.tsv", [start, row.split("\t{}")[0]])
    put(tmp_path, "diagnostic/diagnostic.tsv", ["index\tsentence1\tsentence2", "0\tC.\tD."])
    matched, mismatched, ax = map(get_task, ("mnli", "mnli_mismatched", "ax"))
    assert matched.read("dev", tmp_path).y == ["neutral"]
    assert mismatched.read("dev", tmp_path).y == ["entailment"]
    # A model for these sets is trained on MNLI.
    for task in (mismatched, ax):
        assert task.read("train", tmp_path).x == (["A."], ["B."])
        assert task.splits == ("train", "dev", "test")
    assert ax.read("test", tmp_path).x == (["C."], ["D."])
    assert mismatched.read("test", tmp_path).y is None


def test_qnli_of_version_2(tmp_path):
    header = "index\tquestion\tsentence\tlabel"
    put(tmp_path, "QNLI/dev.tsv", [header, "0\tOld?\tYes.\tentailment"])
    put(tmp_path, "QNLIv2/dev.tsv", [header, "0\tNew?\tYes.\tentailment"])
    assert get_task("qnli").read("dev", tmp_path).x == (["New?"], ["Yes."])


# === SQuAD ===


def article(*questions, context="Rome is old.", **more):
    qas = [
        {"id": f"q{i}", "question": "What?", "answers": answers, **more}
        for i, answers in enumerate(questions)
    ]
    return {
        "version": "1.1",
        "data": [{"title": "t", "paragraphs": [{"context": context, "qas": qas}]}],
    }


def answer(text, start):
    return {"text": text, "answer_start": start}


def test_squad_answers_that_do_not_align(tmp_path):
    whole = article(
        [answer("Rome", 0)],
        [answer("old", 3)],  # The offset is wrong by some characters.
        [answer(" is  old", 4)],  # It differs in white space.
        [answer("Paris", 0), answer("old", 8)],  # The second occurrence fits.
        [answer("Paris", 0)],  # No occurrence fits.
    )
    for split in ("train", "dev"):
        put(tmp_path, f"{split}-v1.1.json", whole)
    task = get_task("squad")
    with pytest.warns(UserWarning, match="1 of the 5 answers .* 'q4'; they are left out"):
        train = task.read("train", tmp_path)
    assert train.y == [(0, 4), (8, 11), (5, 11), (8, 11)] and len(train) == 4
    with pytest.warns(UserWarning, match="they are scored anyway"):
        dev = task.read("dev", tmp_path)
    assert dev.gold == [["Rome"], ["old"], [" is  old"], ["Paris", "old"], ["Paris"]]
    assert dev.ids == ["q0", "q1", "q2", "q3", "q4"] and dev.y[4] is None
    assert dev.x == (["What?"] * 5, ["Rome is old."] * 5)


def test_the_nearest_place_of_an_answer():
    context = "a cat, a cat, a cat"
    assert aligned(["cat"], [10], context) == (9, 12)
    assert aligned(["cat"], [99], context) == (16, 19)
    assert aligned(["c.t"], [2], context) is None
    assert aligned([""], [0], context) is None and aligned([], [], context) is None


def test_squad2_questions_without_an_answer(tmp_path):
    content = article([answer("Rome", 0)], is_impossible=False)
    empty = article([answer("Rome", 0)], is_impossible=True, plausible_answers=[answer("old", 8)])
    content["data"] += empty["data"]
    put(tmp_path, "dev-v2.0.json", BOM + json.dumps(content).encode())
    dev = get_task("squad2").read("dev", tmp_path)
    assert dev.y == [(0, 4), None] and dev.gold == [["Rome"], []]


def test_a_squad_file_without_answers(tmp_path):
    content = article([])
    del content["data"][0]["paragraphs"][0]["qas"][0]["answers"]
    put(tmp_path, "test.json", content)
    test = file_task(test=str(tmp_path / "test.json"), head="question_answering").read("test")
    assert test.y is None and test.gold is None and len(test) == 1


@pytest.mark.parametrize("content", ["[1]", '{"data": [{"paragraphs": [{"qas": [{}]}]}]}', "{"])
def test_what_is_not_squad(tmp_path, content):
    put(tmp_path, "dev-v1.1.json", content)
    with pytest.raises(ValueError, match="dev-v1.1.json' is not in SQuAD's format"):
        get_task("squad").read("dev", tmp_path)


# === SWAG and JCommonsenseQA ===


def test_swag(tmp_path):
    header = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,"
    endings = "ending0,ending1,ending2,ending3"
    row = '0,a-1,1,"She sits. He","She sits.",He,gold,"runs, fast",sits,"says ""no""",is'
    put(tmp_path, "data/val.csv", [f"{header}{endings},label", f"{row},2"])
    put(tmp_path, "data/test.csv", [header + endings, row])
    dev = get_task("swag").read("dev", tmp_path)
    assert dev.x == (["She sits."], [["He runs, fast", "He sits", 'He says "no"', "He is"]])
    assert dev.y == [2]
    assert get_task("swag").read("test", tmp_path).y is None
    put(tmp_path, "data/val.csv", [f"{header}{endings},label", f"{row},4"])
    with pytest.raises(
        ValueError, match="line 2: the label 4 is not the index of one of its 4 choices"
    ):
        get_task("swag").read("dev", tmp_path)


# === CoNLL-2003 ===

CONLL = [
    "-DOCSTART- -X- O O",
    "",
    "U.N. NNP I-NP I-ORG",
    "official NN I-NP O",
    "Ekeus NNP I-NP I-PER",
    "",
    "Baghdad NNP I-NP I-LOC",
    "Iraq NNP B-NP B-LOC",
    "",
    "-DOCSTART- -X- O O",
    "",
    "# NN I-NP O",
]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_conll_documents_in_iob1(tmp_path, newline):
    put(tmp_path, "eng.testa", newline.join(CONLL).encode())
    dev = get_task("conll2003").read("dev", tmp_path)
    assert dev.x == [["U.N.", "official", "Ekeus", "Baghdad", "Iraq"], ["#"]]
    assert dev.y == [["B-ORG", "O", "B-PER", "B-LOC", "B-LOC"], ["O"]]
    # Scores and the official columns are per sentence.
    assert dev.gold == [["B-ORG", "O", "B-PER"], ["B-LOC", "B-LOC"], ["O"]]
    assert dev.sentences[0][1] == [["Baghdad", "NNP", "I-NP"], ["Iraq", "NNP", "B-NP"]]
    assert dev.take([1]).gold == [["O"]]
    first = dev.take(slice(1))
    assert len(first) == 1 and first.gold == dev.gold[:2] and first.x == dev.x[:1]


def test_conll_errors(tmp_path):
    put(tmp_path, "eng.testa", ["Rome NNP I-NP I-CITY"])
    with pytest.raises(ValueError, match="line 1: the tag 'B-CITY' is unknown; known are 'O', 'B-"):
        get_task("conll2003").read("dev", tmp_path)
    put(tmp_path, "eng.testa", ["Rome NNP I-NP O", "is VBZ"])
    with pytest.raises(
        ValueError, match="line 2, has 2 columns, where a word .* needs 4: 'is VBZ'"
    ):
        get_task("conll2003").read("dev", tmp_path)


def test_documents_without_words_are_none(tmp_path):
    put(tmp_path, "a.txt", ["-DOCSTART- O", "", "-DOCSTART- O", "", "a O", "-DOCSTART- O", "b O"])
    documents = read_columns(tmp_path / "a.txt").documents
    assert [[len(sentence) for sentence in document] for document in documents] == [[1], [1]]


# === Korean and Japanese ===


def test_nsmc(tmp_path):
    lines = ["id\tdocument\tlabel", '1\t"최고\t1', "2\t\t0"]
    put(tmp_path, "ratings_train.txt", lines)
    train = get_task("nsmc").read("train", tmp_path)
    assert (
        train.x == ['"최고', ""] and train.y == ["positive", "negative"] and train.ids == ["1", "2"]
    )


def test_klue(tmp_path):
    folder = tmp_path / "klue_benchmark"
    rows = [{"guid": "a", "title": "제목", "predefined_news_category": "정치", "label": "세계"}]
    put(folder, "ynat-v1.1/ynat-v1.1_dev.json", json.dumps(rows))
    assert get_task("klue_ynat").read("dev", folder).y == ["세계"]
    labels = {"label": 3.7, "real-label": 3.714285714285714, "binary-label": 1}
    rows = [{"guid": "a", "sentence1": "가", "sentence2": "나", "labels": labels}]
    put(folder, "klue-sts-v1.1/klue-sts-v1.1_dev.json", json.dumps(rows))
    assert get_task("klue_sts").read("dev", folder).y == [3.714285714285714]
    rows = [{"guid": "a", "premise": "가", "hypothesis": "나", "gold_label": "neutral"}]
    put(folder, "klue-nli-v1.1/klue-nli-v1.1_dev.json", json.dumps(rows))
    dev = get_task("klue_nli").read("dev", folder)
    assert (dev.x, dev.y, dev.ids) == ((["가"], ["나"]), ["neutral"], ["a"])


def test_klue_entities_of_characters(tmp_path):
    lines = ["## 컬럼명 : CHAR\tNE_TAG", "## klue-ner-v1_dev_00000\t<5월 6일:DT> #<박:PS>"]
    chars = "5월 6일 #박"
    tags = ["B-DT", "I-DT", "I-DT", "I-DT", "I-DT", "O", "O", "B-PS"]
    lines += [f"{char}\t{tag}" for char, tag in zip(chars, tags)]
    lines += ["\t", "## klue-ner-v1_dev_00001\t나", "나\tO"]
    put(tmp_path, "klue-ner-v1.1/klue-ner-v1.1_dev.tsv", lines)
    task = get_task("klue_ner")
    dev = task.read("dev", tmp_path)
    assert dev.x == [chars, "나"] and dev.y == [[(0, 5, "DT"), (7, 8, "PS")], []]
    assert task.score(dev, dev.gold) == {"entity_f1": 1.0, "char_f1": 1.0}
    assert task.score(dev, [[(0, 5, "DT")], []])["entity_f1"] == 0.5


def test_korquad_and_jglue(tmp_path):
    put(tmp_path, "KorQuAD_v1.0_dev.json", article([answer("로마", 0)], context="로마는 오래됐다."))
    dev = get_task("korquad").read("dev", tmp_path)
    assert dev.y == [(0, 2)] and dev.gold == [["로마"]]
    for version, label in (("v1.1", "neutral"), ("v1.3", "entailment")):
        row = {"sentence_pair_id": "1", "sentence1": "あ", "sentence2": "い", "label": label}
        put(tmp_path, f"datasets/jnli-{version}/valid-{version}.json", row)  # One object per line.
    assert get_task("jnli").read("dev", tmp_path).y == ["entailment"]
    rows = [
        {"sentence_pair_id": str(i), "sentence1": "あ", "sentence2": "い", "label": 4.4}
        for i in (1, 2)
    ]
    put(tmp_path, "jsts-v1.1/train-v1.1.json", [json.dumps(row) for row in rows])
    assert get_task("jsts").read("train", tmp_path).y == [4.4, 4.4]
    row = {"q_id": 3, "question": "何？", **{f"choice{i}": str(i) for i in range(5)}, "label": 4}
    put(tmp_path, "jcommonsenseqa-v1.1/valid-v1.1.json", row)
    dev = get_task("jcommonsenseqa").read("dev", tmp_path)
    assert dev.x == (["何？"], [["0", "1", "2", "3", "4"]]) and dev.y == [4] and dev.ids == [3]


# === Your own files ===


def test_own_tables(tmp_path):
    csv = 'a,b,grade\r\n"x, ""y""\nz",w,1\r\nv,,0\r\n'
    put(tmp_path, "train.csv", BOM + csv.encode())
    put(tmp_path, "train.tsv", ["a\tb\tgrade", '"x\tw\t1', "v\t\t0"])
    put(tmp_path, "train.jsonl", ['{"a": "x", "b": "w", "grade": 1}', "", '{"a": "v", "grade": 0}'])
    put(tmp_path, "semicolons.csv", ["a;b;grade", "x;w;1", "v;;0"])
    first = {"train.csv": 'x, "y"\nz', "train.tsv": '"x', "train.jsonl": "x", "semicolons.csv": "x"}
    for name, text in first.items():
        task = file_task(str(tmp_path / name), columns=["a", "b"], label="grade")
        assert task.labels == ("0", "1")
        train = task.read("train")
        assert train.x == ([text, "v"], ["w", ""]) and train.y == ["1", "0"], name
        task = file_task(str(tmp_path / name), columns="a", label="grade")
        assert task.read("train").x == [text, "v"]


@pytest.mark.peers
def test_own_parquet(tmp_path):
    import pandas

    rows = [
        {"prompt": "p", "choices": np.array(["a", "b"]), "label": 1.0},
        {"prompt": None, "choices": np.array(["c"]), "label": 0.0},
    ]
    pandas.DataFrame(rows).to_parquet(tmp_path / "train.parquet")
    train = file_task(str(tmp_path / "train.parquet"), head="multiple_choice").read("train")
    assert train.x == (["p", ""], [["a", "b"], ["c"]]) and train.y == [1, 0]
    answers = {"text": np.array(["Rome"]), "answer_start": np.array([0])}
    rows = [{"question": "q", "context": "Rome is", "answers": answers}]
    pandas.DataFrame(rows).to_parquet(tmp_path / "qa.parquet")
    train = file_task(str(tmp_path / "qa.parquet"), head="question_answering").read("train")
    assert train.y == [(0, 4)]
    put(tmp_path, "bad.parquet", "text")
    with pytest.raises(ValueError, match="bad.parquet' is not a Parquet file"):
        read_table(str(tmp_path / "bad.parquet"))


def test_own_questions_in_a_table(tmp_path):
    put(tmp_path, "train.csv", ["q,context,answer", "Which?,In old Rome,Rome", "Who?,In old Rome,"])
    columns = ["q", "context"]
    task = file_task(
        str(tmp_path / "train.csv"), head="question_answering", columns=columns, label="answer"
    )
    train = task.read("train")
    assert train.y == [(7, 11), None] and train.gold == [["Rome"], []]


def test_own_queries(tmp_path):
    rows = ["query,text,label", "who?,me,2", "who?,noon,0", "언제?,정오,1", "언제?,,0"]
    train = put(tmp_path, "train.csv", "\n".join(rows)) + "/train.csv"
    dev = put(tmp_path, "dev.tsv", "query\ttext\tlabel\nwho?\tyou\t3\nwho?\tit\t0.5\n") + "/dev.tsv"
    test = put(tmp_path, "test.jsonl", '{"query": "who?", "text": "you"}\n') + "/test.jsonl"
    task = file_task(train=train, dev=dev, test=test, head="reranker")
    assert task.metrics == ("ndcg@10", "mrr@10") and task.range == (0.0, 2.0)
    data = task.read("train")
    assert data.x == (["who?", "who?", "언제?", "언제?"], ["me", "noon", "정오", ""])
    # Labels are shares of the highest grade, but scores use the grades.
    assert data.y == [1.0, 0.0, 0.5, 0.0]
    assert data.gold == [("who?", 2.0), ("who?", 0.0), ("언제?", 1.0), ("언제?", 0.0)]
    assert task.read("dev").y == [1.0, 0.25] and task.read("test").y is None
    assert task.score(data, [0.9, 0.1, 0.2, 0.1]) == {"ndcg@10": 1.0, "mrr@10": 1.0}
    assert task.score(data, [0.1, 0.9, 0.2, 0.1])["mrr@10"] == 0.75
    # Texts of one query stay together.
    rest, part = task.cut(data, 0.25)
    assert {*rest.x[0]} | {*part.x[0]} == {"who?", "언제?"} and len(rest) == len(part) == 2
    with pytest.raises(ValueError, match="has one query; .* Pass a dev file"):
        task.cut(task.read("dev"), 0.5)
    (path,) = task.write(tmp_path / "out", data, [0.9, 0.1, 0.25, 0])
    with open(path, encoding="utf-8") as file:
        assert file.read().splitlines()[:2] == ["index\tprediction", "0\t0.900000"]
    # Without a training file, the range of the grades is unknown.
    assert file_task(test=test, head="reranker").range == (0.0, 1.0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["who?,me,yes"], "line 2: the label 'yes' must be a number of at least 0"),
        (["who?,me,1", "who?,it,-1"], "line 3: the label '-1' must be a number of at least 0"),
        (["who?,me,0"], "The column 'label' of .* has no label above 0; label relevant"),
    ],
)
def test_queries_that_are_wrong(tmp_path, rows, message):
    path = put(tmp_path, "train.csv", "\n".join(["query,text,label", *rows])) + "/train.csv"
    with pytest.raises(ValueError, match=message):
        file_task(train=path, head="reranker")


def test_own_tags(tmp_path):
    iob1 = ["Ann I-PER", "Lee B-PER", "in O", "", "Rome I-LOC"]
    put(tmp_path, "train.conll", iob1)
    task = file_task(str(tmp_path / "train.conll"), head="token_classifier")
    assert (task.labels, task.scheme) == (("LOC", "PER"), "BIO")
    assert task.read("train").y == [["B-PER", "B-PER", "O"], ["B-LOC"]]
    put(tmp_path, "train.bioes", ["Ann\tx\tB-PER", "Lee\tx\tE-PER", "a b\tx\tS-PER", "in\tx\tO"])
    task = file_task(str(tmp_path / "train.bioes"), head="token_classifier")
    assert (task.labels, task.scheme) == (("PER",), "BIOES")
    train = task.read("train")
    assert train.y == [["B-PER", "E-PER", "S-PER", "O"]] and train.x[0][2] == "a b"
    # Part-of-speech tags, in the second of three columns.
    put(tmp_path, "train.pos", ["Ann np x", "runs vb x"])
    task = file_task(str(tmp_path / "train.pos"), head="token_classifier", columns=[0], label=1)
    assert (task.labels, task.scheme, task.metrics[0]) == (("np", "vb"), None, "accuracy")
    train = task.read("train")
    assert train.y == [["np", "vb"]] and train.sentences == [[[["Ann", "x"], ["runs", "x"]]]]
    assert task.score(train, [["np", "np"]])["accuracy"] == 0.5
    row = {"tokens": ["Ann", "runs"], "tags": ["np", "vb"]}
    put(tmp_path, "train.jsonl", row)
    task = file_task(str(tmp_path / "train.jsonl"), head="token_classifier")
    assert task.read("train").y == [["np", "vb"]]
    put(tmp_path, "test.pos", ["Ann", "runs"])
    task = file_task(
        str(tmp_path / "train.pos"), test=str(tmp_path / "test.pos"), head="token_classifier"
    )
    assert task.read("test").y is None and task.read("test").x == [["Ann", "runs"]]


# === By name through `datasets` ===


class FakeDataset:
    """The parts of `datasets.Dataset` that the reader uses."""

    def __init__(self, columns, names=(), inner=False):
        self.columns = columns
        self.column_names = list(columns)
        feature = types.SimpleNamespace(names=list(names))
        if inner:
            feature = types.SimpleNamespace(feature=feature)
        self.features = dict.fromkeys(columns, types.SimpleNamespace())
        self.features[self.column_names[-1]] = feature if names else types.SimpleNamespace()

    def __getitem__(self, name):
        return self.columns[name]

    def __len__(self):
        return len(self.columns[self.column_names[0]])


def test_datasets_by_name(monkeypatch):
    asked = []

    def load_dataset(*arguments, **named):
        asked.append((arguments, named))
        if arguments[0] == "eriktks/conll2003":
            columns = {"tokens": [["Ann", "runs"]], "ner_tags": [[1, 0]]}
            return FakeDataset(columns, ("O", "B-PER"), inner=True)
        if arguments[0] == "rajpurkar/squad_v2":
            answers = [{"text": ["a"], "answer_start": [0]}, {"text": [], "answer_start": []}]
            columns = {"id": ["i", "j"], "question": ["q"] * 2, "context": ["a b"] * 2}
            return FakeDataset({**columns, "answers": answers})
        names = ("entailment", "neutral", "contradiction")
        labels = [-1, -1] if named["split"].startswith("test") else [2, 0]
        return FakeDataset(
            {"premise": ["a", "b"], "hypothesis": ["c", "d"], "label": labels}, names
        )

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    dev = get_task("mnli_mismatched").read("dev")
    assert asked == [(("nyu-mll/glue", "mnli"), {"split": "validation_mismatched"})]
    assert dev.x == (["a", "b"], ["c", "d"]) and dev.y == ["contradiction", "entailment"]
    assert get_task("mnli").read("test").y is None
    assert get_task("squad2").read("dev").y == [(0, 1), None]
    assert get_task("conll2003").read("train").y == [["B-PER", "O"]]
    assert asked[-1][1] == {"split": "train", "revision": "refs/convert/parquet"}

    def fails(*arguments, **named):
        raise ConnectionError("no route\nto host")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=fails))
    message = (
        r"cannot get 'nyu-mll/glue' \(no route\); get the files from https://gluebenchmark.com/"
    )
    with pytest.raises(ValueError, match=message):
        get_task("rte").read("dev")
    monkeypatch.setitem(sys.modules, "datasets", None)  # The package is not installed.
    with pytest.raises(ValueError, match="https://github.com/KLUE.* or run `pip install datasets"):
        get_task("klue_nli").read("dev")
    with pytest.raises(
        ValueError, match="come from a folder with jnli-v1.3/train-v1.3.json; get it"
    ):
        get_task("jnli").read("train")


# === Bad input raises a clear sentence ===


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "dev.tsv' is empty"),
        ("sentence1\tsentence2\tlabel\n", "dev.tsv' has a header but no rows"),
        (
            "sentence1\tlabel\na\tentailment\n",
            "dev.tsv' has no column 'sentence2' of the task 'rte'",
        ),
        ("sentence1\tsentence2\na\tb\n", "has no column 'label' for the labels of 'rte'; its col"),
        (
            "sentence1\tsentence2\tlabel\na\tb\tentailed\n",
            "dev.tsv', line 2: the label 'entailed' is unknown; .*did you mean 'entailment'",
        ),
        ("sentence1\tsentence2\tlabel\na\tb\t\n", "line 2: the label '' is unknown"),
        (
            "a\tb\tc\nonly\ntwo\n",
            "2 of its 2 rows do not have the 3 values of its header",
        ),
        (b"sentence1\tsentence2\tlabel\n\xff\xfe\tb\tc\n", r"is not UTF-8 text \(byte 26\)"),
    ],
)
def test_bad_tables(tmp_path, text, message):
    put(tmp_path, "RTE/dev.tsv", text)
    with pytest.raises(ValueError, match=message):
        get_task("rte").read("dev", tmp_path)


def test_bad_places(tmp_path):
    with pytest.raises(
        ValueError, match="has no CoLA/dev.tsv of the task 'cola'; get it from https"
    ):
        get_task("cola").read("dev", tmp_path)
    with pytest.raises(ValueError, match="nowhere' is not a folder; .* with the files of 'cola'"):
        get_task("cola").read("dev", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="'nsmc' has no split 'dev'; it has train, test"):
        get_task("nsmc").read("dev", tmp_path)
    with pytest.raises(ValueError, match="Unknown task 'colla'; did you mean cola"):
        get_task("colla")


@pytest.mark.parametrize(
    "name, content, settings, message",
    [
        ("a.csv", 'text,label\n"x" y,1\n', {}, "is not a valid ','-separated table at line 2"),
        ("a.csv", "text,label\nx,1\n", {"columns": ["txt"]}, "no column 'txt'.*'text', 'label'"),
        ("a.csv", "text,label\nx,\n", {}, "column 'label' of .* has no labels"),
        (
            "a.csv",
            "text,label\nx,1\n",
            {"head": "classifier"},
            "'classifier' is unknown; use one of",
        ),
        (
            "a.csv",
            "text,label\nx,1\n",
            {"columns": ["a", "b", "c"]},
            "reads 1 or 2 columns of text",
        ),
        ("a.docx", "x", {}, "ends in '.docx'; kerasbert reads .csv"),
        ("a.jsonl", '{"text": "x"}\n{', {}, "a.jsonl', line 2 is not valid JSON"),
        ("a.json", "[1, 2]", {}, "must contain objects"),
        ("a.jsonl", '{"text": ["x"], "label": 1}', {}, r"row 1: \['x'\] is not a text"),
        ("a.txt", "one two\n", {"head": "token_classifier", "label": 3}, "has words but no tags"),
        (
            "a.csv",
            "word,tag\none,O\ntwo,O\n",
            {"head": "token_classifier"},
            "nothing says where a sentence ends: add a column 'sentence'",
        ),
        (
            "a.jsonl",
            '{"prompt": "x", "choices": "a b", "label": 0}',
            {"head": "multiple_choice"},
            "row 1: the choices are 'a b'; give a list",
        ),
        (
            "a.jsonl",
            '{"prompt": "x", "choices": ["a"], "label": "A"}',
            {"head": "multiple_choice"},
            "row 1: the label 'A' is not the index of a choice",
        ),
        (
            "a.jsonl",
            '{"question": "x", "context": "a", "answers": 3}',
            {"head": "question_answering"},
            "row 1: the answers are 3; give a string",
        ),
    ],
)
def test_bad_files_of_your_own(tmp_path, name, content, settings, message):
    put(tmp_path, name, content)
    with pytest.raises(ValueError, match=message):
        file_task(str(tmp_path / name), **settings).read("train")


def test_files_of_your_own_that_are_missing(tmp_path):
    with pytest.raises(ValueError, match="There is no file '.*x.csv' for dev"):
        file_task(dev=str(tmp_path / "x.csv"))
    with pytest.raises(ValueError, match="needs a file: pass train, dev or test"):
        file_task()


def test_a_label_of_dev_that_train_has_not(tmp_path):
    put(tmp_path, "train.csv", ["text,label", "x,ham", "y,spam"])
    put(tmp_path, "dev.csv", ["text,label", "x,ham", "y,spma"])
    task = file_task(str(tmp_path / "train.csv"), str(tmp_path / "dev.csv"))
    with pytest.raises(ValueError, match="dev.csv', line 3: the label 'spma' .* mean 'spam'"):
        task.read("dev")


# === Encodings, duplicate column names, ids ===

KOREAN = [("이 영화는 정말 재미있었다.", "긍정"), ("배우의 연기가, 아쉽다.", "부정")]
JAPANESE = [("この映画はとても面白かった。", "良い"), ("話が長くて、つまらない。", "悪い")]


def of_excel(path, rows, encoding, delimiter=","):
    with open(path, "w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=delimiter).writerows([("text", "label"), *rows])
    return str(path)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-8"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_mark_says_the_encoding(tmp_path, encoding, delimiter):
    path = of_excel(tmp_path / "a b.csv", KOREAN, encoding, delimiter)
    for given in (None, "cp949"):  # The `encoding` of other files does not affect this one.
        train = file_task(path, encoding=given).read("train")
        assert list(zip(train.x, train.y)) == KOREAN


@pytest.mark.parametrize(
    "rows, encoding, likely",
    [
        (KOREAN, "cp949", "cp949"),
        (KOREAN[:1], "euc_kr", "cp949"),
        (KOREAN, "utf-16-le", "utf-16-le"),
        (JAPANESE, "shift_jis", "cp932"),
        (JAPANESE[:1], "cp932", "cp932"),
        (JAPANESE, "euc_jp", "euc_jp"),
        (JAPANESE, "iso2022_jp", "iso2022_jp"),
        (JAPANESE, "utf-16-be", "utf-16-be"),
        ([("Le café était très bon, à mon goût", "oui")], "cp1252", "cp1252"),
    ],
)
def test_another_encoding_is_named_and_then_read(tmp_path, rows, encoding, likely):
    path = of_excel(tmp_path / "a.csv", rows, encoding)
    with pytest.raises(ValueError, match=f"not UTF-8 text .*--encoding {likely}. Otherwise name"):
        file_task(path)
    for given in (encoding, likely):
        train = file_task(path, encoding=given).read("train")
        assert list(zip(train.x, train.y)) == rows


def test_a_wrong_encoding_is_no_text(tmp_path):
    path = of_excel(tmp_path / "a.csv", JAPANESE, "shift_jis")
    with pytest.raises(ValueError, match="is not EUC_JP text .byte .*it may be cp932, then pass"):
        file_task(path, encoding="euc_jp")
    with pytest.raises(ValueError, match="encoding='sjis-x' is unknown"):
        file_task(path, encoding="sjis-x")
    # UTF-8 with one invalid byte is not mistaken for another encoding.
    (tmp_path / "b.csv").write_bytes("text,label\n가나다라마바사,1\n".encode() + b"\xff,0\n")
    with pytest.raises(ValueError, match=r"is not UTF-8 text \(byte 35\); name its encoding"):
        file_task(str(tmp_path / "b.csv"))


def test_a_name_may_hold_the_other_mark(tmp_path):
    path = put(tmp_path, "a.csv", ["text, kurz;label", "x, y;1"]) + "/a.csv"
    assert file_task(path, columns=["text, kurz"]).read("train").x == ["x, y"]


def test_two_columns_of_one_name(tmp_path):
    path = put(tmp_path, "a.csv", ["text,text,note,note,label", "first,second,a,b,1"]) + "/a.csv"
    with pytest.raises(ValueError, match="has more than one column 'text'.*; rename all but one"):
        file_task(path).read("train")
    # Columns that are not used may have the same name.
    assert file_task(path, columns=["label"]).read("train").x == ["1"]
    path = put(tmp_path, "b.csv", ["text,label,label", "a,1,0"]) + "/b.csv"
    with pytest.raises(ValueError, match="has more than one column 'label' for the labels"):
        file_task(path)


def test_ids_of_your_own_files(tmp_path):
    put(tmp_path, "own.json", article([answer("Rome", 0)], [answer("old", 8)]))
    task = file_task(str(tmp_path / "own.json"), head="question_answering")
    assert task.read("train").ids == ["q0", "q1"]
    predictions = [{"answer": name, "null_score": 0.0} for name in ("x", "y")]
    (path,) = task.write(str(tmp_path), task.read("train"), predictions)
    with open(path, encoding="utf-8") as file:
        assert json.load(file) == {"q0": "x", "q1": "y"}
    # With equal ids, two examples would share an answer.
    put(tmp_path, "twice.json", article([answer("Rome", 0)], [answer("old", 8)], id="q"))
    with pytest.warns(UserWarning, match="'id' has empty or duplicate ids, get the ids 0, 1"):
        task = file_task(str(tmp_path / "twice.json"), head="question_answering")
        assert task.read("train").ids == [0, 1]
    # In a table, the column "id" is used if possible, and another one if it is named.
    table = ["id,text,label,group", "m1,a,1,x", "m2,b,0,x"]
    path = put(tmp_path, "a.csv", table) + "/a.csv"
    assert file_task(path).read("train").ids == ["m1", "m2"]
    assert file_task(path, id="group").read("train").ids == ["x", "x"]
    with pytest.warns(UserWarning, match="which has no column 'name', get the ids 0, 1, 2"):
        assert file_task(path, id="name").read("train").ids == [0, 1]
    path = put(tmp_path, "b.csv", ["id,text,label", "m1,a,1", "m1,b,0"]) + "/b.csv"
    assert file_task(path).read("train").ids == [0, 1]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "squad.json"])
def test_json_that_is_nested_deeply(tmp_path, name):
    path = tmp_path / name
    path.write_text('{"data": ' + "[" * 99_999 + "]" * 99_999 + "}\n")
    with pytest.raises(ValueError, match="nested (deeper|too deeply)|Recursion|not valid JSON"):
        (read_squad if name == "squad.json" else read_table)(str(path))


# === Several classes per text ===


def lines(*rows):
    return [json.dumps(row, ensure_ascii=False) for row in rows]


SEVERAL = [{"text": "a", "label": ["x", "y"]}, {"text": "b", "label": []}]
SEVERAL += [{"text": "c", "label": ["y"]}]


@pytest.mark.parametrize(
    ("name", "content", "label"),
    [
        ("a.jsonl", lines(*SEVERAL), None),
        ("a.json", json.dumps(SEVERAL), None),
        ("a.csv", ["text,label", "a,\"['x', 'y']\"", "b,[]", "c,\"['y']\""], None),
        ("a.csv", ["text,label", 'a,"[""x"", ""y""]"', "b,[]", 'c,"[""y""]"'], None),
        ("a.csv", ["text,x,y", "a,1,1", "b,0,0", "c,0,1"], ["x", "y"]),
        ("a.csv", ["text,X,y", "a,TRUE,1.0", "b,FALSE,0", "c,false,true"], ["x", "y"]),
        ("a.jsonl", lines(*({"text": t, "l": {"x": t == "a", "y": t != "b"}} for t in "abc")), ""),
        ("a.json", json.dumps([{**x, "label": {"choices": x["label"]}} for x in SEVERAL]), None),
        (
            "a.csv",
            ["text,label", 'a,"{""choices"": [""x"", ""y""]}"', 'b,"{""choices"": []}"', "c,y"],
            None,
        ),
    ],
)
def test_several_classes_per_text(tmp_path, name, content, label):
    path = put(tmp_path, name, content) + f"/{name}"
    label = ["l.x", "l.y"] if label == "" else label
    task = file_task(path, test=path, label=label)
    train, (one, other) = task.read("train"), task.labels
    assert task.model == {"multi_label": True} and not task.has_one_class
    assert train.x == ["a", "b", "c"] and train.y == [[one, other], [], [other]]
    assert task.model_settings()["multi_label"] and task.main_metric == "macro_f1"
    assert task.score(train, train.y) == {"macro_f1": 1.0, "accuracy": 1.0}
    assert task.score(train, [[one], [], [other]])["accuracy"] == pytest.approx(2 / 3)
    (file,) = task.write(tmp_path / "out", train, train.y)
    with open(file, encoding="utf-8") as opened:
        assert opened.read().splitlines()[1:3] == [f'0\t["{one}", "{other}"]', "1\t[]"]
    assert type(task).from_dict(json.loads(json.dumps(task.as_dict()))).label == task.label


@pytest.mark.parametrize(
    ("name", "content", "settings", "message"),
    [
        ("a.csv", ["text,x,y", "a,1,2"], {"label": ["x", "y"]}, "'2' in the column 'y' must be 0"),
        ("a.csv", ["text,x", "a,1"], {"label": ["x", "z"]}, "has no column 'z' for the labels"),
        ("a.csv", ["text,x", "a,"], {"label": ["x"]}, "line 2: the label '' in the column 'x'"),
        ("a.csv", ["text,x", "a,1"], {"label": ["x"], "labels": ["q"]}, "omit `labels`"),
        ("a.jsonl", lines({"text": "a", "label": {"x": 1}}), {}, "row 1: the label .* not a class"),
        ("a.jsonl", lines({"text": "a", "label": [["x"]]}), {}, "row 1: the label .* not a class"),
        ("a.jsonl", lines(*SEVERAL), {"metrics": ["f1"]}, "'f1' is for one class per text"),
        ("a.jsonl", lines(*SEVERAL, {"text": "d", "label": None}), {}, "row 4: the label is miss"),
        ("a.jsonl", lines(*SEVERAL), {"labels": ["x"]}, "row 1: the label 'y' is unknown"),
        ("a.csv", ["text,x", "a,1"], {"label": ["x"], "head": "text_regressor"}, "one column of l"),
    ],
)
def test_bad_labels_of_several(tmp_path, name, content, settings, message):
    path = put(tmp_path, name, content) + f"/{name}"
    with pytest.raises(ValueError, match=message):
        file_task(path, **settings).read("train")


def test_one_class_in_a_list(tmp_path):
    rows = [{"text": "a", "label": ["pos"]}, {"text": "b", "label": ["neg"]}]
    path = put(tmp_path, "train.jsonl", lines(*rows)) + "/train.jsonl"
    dev = put(tmp_path, "dev.jsonl", lines(rows[0], {"text": "c", "label": ["pos", "neg"]}))
    task = file_task(path, f"{dev}/dev.jsonl")
    assert task.read("train").y == ["pos", "neg"] and task.has_one_class
    with pytest.raises(ValueError, match="dev.jsonl', row 2: the label is .* have one class each"):
        task.read("dev")


@pytest.mark.parametrize(
    "labels", [("Spam", "spam"), ("ポジ", "ﾎﾟｼﾞ"), ("Ａ", "A"), ("1.0", "1"), ("a  b", "a b")]
)
def test_classes_that_look_the_same_are_said(tmp_path, labels):
    rows = ["text,label", *(f"a,{label}" for label in (*labels, "x"))]
    path = put(tmp_path, "a.csv", rows) + "/a.csv"
    with pytest.warns(
        UserWarning, match="2 of the 3 classes of .* differ from another one only in"
    ):
        assert set(file_task(path).labels) == {*labels, "x"}


@pytest.mark.parametrize("mark", ["\u200b", "\ufeff", "\u3000", "\xa0\u2060 "])
def test_invisible_characters_around_names_do_not_count(tmp_path, mark):
    rows = [f"text,{mark}label", "a,긍정", f"b,긍정{mark}", f"c,{mark}부정"]
    task = file_task(put(tmp_path, "a.csv", rows) + "/a.csv")
    assert task.labels == ("긍정", "부정") and task.read("train").y == ["긍정", "긍정", "부정"]


@pytest.mark.parametrize("indent", [None, 1])
def test_json_as_pandas_writes_it(tmp_path, indent):
    columns = {"text": {"0": "a", "7": "b"}, "label": {"0": "x", "7": "y"}}
    rows = {"0": {"text": "a", "label": "x"}, "7": {"text": "b", "label": "y"}}
    for content in (columns, rows):
        path = put(tmp_path, "a.json", json.dumps(content, indent=indent)) + "/a.json"
        train = file_task(path).read("train")
        assert (train.x, train.y) == (["a", "b"], ["x", "y"])


def test_joined_classes_are_said(tmp_path):
    for mark in "|;,#/、，・":
        rows = [("text", "label"), ("a", f"x{mark}y"), ("b", "x"), ("c", "y")]
        with open(tmp_path / "a.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
        with pytest.warns(
            UserWarning, match="1 of the 3 classes of .* join other classes, such as 'x"
        ):
            task = file_task(str(tmp_path / "a.csv"))
        assert len(task.labels) == 3
    put(tmp_path, "c.csv", ["text,label", "a,x#y", "b,y#z", "c,x#z"])
    with pytest.warns(UserWarning, match="3 of the 3 classes"):
        file_task(str(tmp_path / "c.csv"))
    put(tmp_path, "b.csv", ["text,label", 'a,"Paris, Texas"', "b,Paris"])
    file_task(str(tmp_path / "b.csv"))  # This causes no warning.


# === Words and spans in common formats ===


def tagged(folder, name, content, encoding="utf-8", **settings):
    path = put(folder, name, content, encoding) + f"/{name}"
    task = file_task(path, head="token_classifier", **settings)
    return task, task.read("train")


WORDS = ([["Ann", "runs"], ["Rome"]], [["B-PER", "O"], ["B-LOC"]])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", ["sentence,word,tag", "1,Ann,B-PER", "1,runs,O", "2,Rome,B-LOC"]),
        (
            "a.csv",
            ["Sentence #,Word,POS,Tag", "S: 1,Ann,N,B-PER", ",runs,V,O", "S: 2,Rome,N,B-LOC"],
        ),
        ("a.csv", ["token;label", "Ann;B-PER", "runs;O", "", "Rome;B-LOC"]),
        ("a.csv", ["token,label", "Ann,B-PER", "runs,O", ",", "Rome,B-LOC"]),
        ("a.tsv", ["word\ttag", "Ann\tB-PER", "runs\tO", "", "Rome\tB-LOC"]),
        ("a.tsv", ["문장\tword\ttag", "1\tAnn\tB-PER", "1\truns\tO", "2\tRome\tB-LOC"]),
        ("a.csv", ["sentence,tags", "Ann runs,B-PER O", "Rome,B-LOC"]),
        (
            "a.csv",
            ["tokens,ner_tags", "\"['Ann', 'runs']\",\"['B-PER', 'O']\"", "['Rome'],['B-LOC']"],
        ),
        ("a.jsonl", lines(*({"words": w, "labels": t} for w, t in zip(*WORDS)))),
        ("a.jsonl", lines(*({"text": " ".join(w), "tags": t} for w, t in zip(*WORDS)))),
        ("a.conll", ["# sent_id = 1", "Ann B-PER", "runs O", "", "# newdoc", "Rome B-LOC"]),
        ("a.conll", ["#id=1", "Ann\tB-PER\t", "runs\tO", "", "# newdoc", "Rome\tB-LOC"]),
        ("a.conll", b"Ann B-PER\rruns O\r\rRome B-LOC\r"),
        (
            "a.tsv",
            ["## klue-1\tAnn runs", "Ann\tB-PER", "runs\tO", "", "## klue-2\tR", "Rome\tB-LOC"],
        ),
    ],
)
def test_words_of_tables(tmp_path, name, content):
    task, train = tagged(tmp_path, name, content)
    assert (train.x, train.y) == WORDS and (task.labels, task.scheme) == (("LOC", "PER"), "BIO")


def test_numbers_as_tags(tmp_path):
    rows = [{"tokens": ["a", "b"], "tags": [0, 11]}, {"tokens": ["c", 5], "tags": [2, 0.0]}]
    task, train = tagged(tmp_path, "a.jsonl", lines(*rows))
    assert task.labels == ("0", "2", "11") and train.y == [["0", "11"], ["2", "0"]]
    assert train.x[1] == ["c", "5"]
    task, train = tagged(tmp_path, "a.jsonl", lines(*rows), labels=[0, 1, 2, 11])
    assert train.y[0] == ["0", "11"]


def test_words_with_spaces(tmp_path):
    rows = ["Rome B-LOC", "is O", "New York B-LOC"]
    with pytest.raises(ValueError, match="line 3, has 3 columns, where most lines have 2: 'New Yo"):
        tagged(tmp_path, "a.conll", rows)
    _, train = tagged(tmp_path, "a.conll", [row.replace(" B", "\tB") for row in rows[::2]])
    assert train.x == [["Rome", "New York"]]
    # The same error occurs if the columns are given by number.
    with pytest.raises(ValueError, match="line 2, has 4 columns, where most lines have 3"):
        rows = ["Rome NNP B-LOC", "New York NNP B-LOC", "is VBZ O"]
        tagged(tmp_path, "a.conll", rows, columns=[0], label=2)


def test_hash_signs_are_words(tmp_path):
    _, train = tagged(tmp_path, "a.conll", ["# # O", "1 CD O", "", "#tag # B-X"], label=1)
    assert train.x == [["#", "1"], ["#tag"]] and train.y == [["#", "CD"], ["#"]]


def test_conllu(tmp_path):
    word = "{}\t{}\tx\t{}\t_\t_\t0\troot\t_\tSpaceAfter=No"
    rows = ["# text = vámonos ya", word.format("1-2", "vámonos", "_")]
    rows += [word.format(1, "vamos", "VERB"), word.format(2, "nos", "PRON"), ""]
    rows += ["# newpar", word.format(1, "ya", "ADV"), word.format("1.1", "x", "X")]
    task, train = tagged(tmp_path, "a.conllu", rows)
    assert train.x == [["vamos", "nos"], ["ya"]] and train.y == [["VERB", "PRON"], ["ADV"]]
    assert tagged(tmp_path, "a.conllu", rows, columns=[2], label=0)[1].x == [["x", "x"], ["x"]]


STUDIO = {"from_name": "label", "to_name": "text", "type": "labels"}
SPAN = {"start": 0, "end": 3, "text": "Ann", "labels": ["PER"]}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", lines({"id": 7, "text": "Ann in Rome", "label": [[0, 3, "PER"]]})),
        ("a.jsonl", lines({"id": 7, "text": "Ann in Rome", "labels": [[0, 3, "PER"]], "meta": {}})),
        (
            "a.jsonl",
            lines(
                {
                    "id": 7,
                    "text": "Ann in Rome",
                    "relations": [],
                    "entities": [{"id": 1, "label": "PER", "start_offset": 0, "end_offset": 3}],
                }
            ),
        ),
        ("a.json", json.dumps([{"id": 7, "text": "Ann in Rome", "label": [SPAN], "annotator": 1}])),
        (
            "a.json",
            json.dumps(
                [
                    {
                        "id": 7,
                        "data": {"text": "Ann in Rome"},
                        "annotations": [
                            {"was_cancelled": True, "result": []},
                            {"result": [{**STUDIO, "value": SPAN}]},
                        ],
                    }
                ]
            ),
        ),
        (
            "a.csv",
            [
                "id,text,label",
                '7,Ann in Rome,"[{""start"": 0, ""end"": 3, ""labels"": [""PER""]}]"',
            ],
        ),
    ],
)
def test_spans_of_annotation_tools(tmp_path, name, content):
    task, train = tagged(tmp_path, name, content)
    assert (task.units, task.scheme, task.labels) == ("characters", "BIO", ("PER",))
    assert train.x == ["Ann in Rome"] and train.y == [[(0, 3, "PER")]]
    assert task.score(train, train.y) == {"entity_f1": 1.0, "char_f1": 1.0}
    # The same task also reads texts without labels.
    put(tmp_path, "new.txt", ["Ben in Oslo", "Ann"])
    again = task.with_files(test=str(tmp_path / "new.txt")).read("test")
    assert again.x == ["Ben in Oslo", "Ann"] and again.y is None


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ([[0, 99, "PER"]], "row 2: the span .* is not within the 3 characters"),
        ([[2, 2, "PER"]], "row 2: the span .* is not within"),
        (["PER"], "row 2: the spans are .* give a list of .start, end, type."),
        ([[0, 3, "LOC"]], "row 2: the type 'LOC' is unknown"),
    ],
)
def test_bad_spans(tmp_path, label, message):
    rows = [{"text": "Ann", "label": [[0, 3, "PER"]]}, {"text": "Ben", "label": label}]
    with pytest.raises(ValueError, match=message):
        tagged(tmp_path, "a.jsonl", lines(*rows), labels=["PER"])


def test_choices_of_label_studio(tmp_path):
    def task_of(number, text, *choices):
        result = [{"from_name": "mood", "type": "choices", "value": {"choices": list(choices)}}]
        return {"id": number, "data": {"text": text}, "annotations": [{"result": result}]}

    rows = [task_of(7, "a", "pos"), task_of(8, "b", "neg")]
    put(tmp_path, "a.json", json.dumps(rows))
    train = file_task(str(tmp_path / "a.json")).read("train")
    assert (train.x, train.y, train.ids) == (["a", "b"], ["pos", "neg"], [7, 8])
    rows[0]["annotations"] *= 2
    put(tmp_path, "a.json", json.dumps([*rows, task_of(9, "c", "pos", "neg")]))
    with pytest.warns(UserWarning, match="1 of the 3 tasks of .* have several annotations"):
        train = file_task(str(tmp_path / "a.json"), label="mood").read("train")
    assert train.y == [["pos"], ["neg"], ["neg", "pos"]]


def test_ids_of_klue(tmp_path):
    rows = [{"guid": f"g{i}", "title": "x", "label": i} for i in range(2)]
    path = put(tmp_path, "a.json", json.dumps(rows)) + "/a.json"
    assert file_task(path, columns="title").read("train").ids == ["g0", "g1"]
    content = article([answer("Rome", 0)])
    qa = content["data"][0]["paragraphs"][0]["qas"][0]
    qa["guid"] = f"klue-{qa.pop('id')}"
    path = put(tmp_path, "squad.json", content) + "/squad.json"
    assert file_task(path, head="question_answering").read("train").ids == [qa["guid"]]
    rows = [{"guid": "g", "question": "q", "context": "In Rome"}]
    rows[0]["answers"] = [{"text": "Rome", "answer_start": 3}]
    path = put(tmp_path, "list.json", json.dumps(rows)) + "/list.json"
    train = file_task(path, head="question_answering").read("train")
    assert train.ids == ["g"] and train.y == [(3, 7)]


def test_missing_values_are_empty(tmp_path):
    put(tmp_path, "a.jsonl", '{"text": NaN, "label": 1.0}\n{"text": null, "label": true}\n')
    train = file_task(str(tmp_path / "a.jsonl")).read("train")
    assert train.x == ["", ""] and train.y == ["1", "True"]
    put(tmp_path, "b.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": NaN}\n')
    with pytest.raises(ValueError, match="row 2: the label '' is unknown; known are '1'"):
        file_task(str(tmp_path / "b.jsonl")).read("train")


def test_choices_in_a_cell(tmp_path):
    put(tmp_path, "a.csv", ["prompt,choices,label", "p,\"['a', 'b']\",1"])
    train = file_task(str(tmp_path / "a.csv"), head="multiple_choice").read("train")
    assert train.x == (["p"], [["a", "b"]]) and train.y == [1]
