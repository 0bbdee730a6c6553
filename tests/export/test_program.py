"""`answer.py` next to an exported graph: raw texts without Keras and TensorFlow."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
import types

import numpy as np
import pandas
import pytest

from kerasbert import models
from kerasbert.export import export_litert, export_onnx, export_openvino, token_graphs
from kerasbert.heads.base.program import write_program
from kerasbert.heads.base.served import LONG, PROSE, SHORT
from kerasbert.heads.base.served_models import served
from kerasbert.tokenizers import RobertaTokenizer
from tests.export import tiny

pytestmark = [pytest.mark.peers, pytest.mark.backends("tensorflow")]

TEXTS = [
    *SHORT,
    *LONG,
    PROSE,
    "ﬁ Ⅳ ½ e\u0301 e",
    "中 文字\u3000한국",
    "a" * 99 + " " + "b" * 101,
    "\t\r\n",
]
# A process that cannot import our packages loads each folder's program as a module.
ASK = """
import importlib.util, json, sys
found = []
for folder, texts in json.load(sys.stdin):
    spec = importlib.util.spec_from_file_location("answer", folder + "/answer.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = isinstance(texts[0], str) or isinstance(texts[0][1], str)
    ids = [row.ids for row in module.tokenizer.encode_batch(texts)] if rows else []
    answers = module.answer(texts)
    found.append([ids, answers])
loaded = {"tensorflow", "keras", "torch", "jax", "transformers", "kerasbert"} & set(sys.modules)
print(json.dumps([found, sorted(loaded)], default=lambda x: x.tolist()))
"""


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """Do the work of the child process in this one."""
    tiny.write_here(monkeypatch)


def ask(jobs):
    """Return token ids and answers of each `(folder, texts)`."""
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps([[str(folder), texts] for folder, texts in jobs]),
        capture_output=True,
        text=True,
        env={name: x for name, x in os.environ.items() if name != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stderr
    found, loaded = json.loads(done.stdout)
    assert loaded == []
    return found


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A function that imports a model's `answer.py`, with the model itself as the session."""

    def make(model):
        task = served(model)
        (tmp_path / task.title).mkdir()
        token_graphs._write_tokenizer(
            model.preprocessor.tokenizer, model, tmp_path / task.title, None
        )
        write_program(task, "onnx", tmp_path / task.title)

        class Session:
            def __init__(self, path):
                pass

            def get_outputs(self):
                names = task.run(task.random_features()[0])
                return [types.SimpleNamespace(name=name) for name in names]

            def run(self, names, features):
                return [np.asarray(x) for x in task.run(features).values()]

        monkeypatch.setattr("onnxruntime.InferenceSession", Session)
        spec = importlib.util.spec_from_file_location("answer", tmp_path / task.title / "answer.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.answer

    return make


NOTHING = [None, 3, 2.5, {}, {"a": 1}, {"a"}, [], (), np.array([]), np.array(3), [None], [3], [{}]]
NOTHING += [
    [["a"]],
    [["a", "b", "c"]],
    [b"caf\xe9"],
    b"\xff",
    ["\ud800"],
    [float("nan")],
    [("a", 3)],
]


@pytest.mark.parametrize("name", ["TextEmbedder", "TextRegressor", "MaskedLM", "TokenClassifier"])
def test_programs_take_texts_of_all_kinds(name, program):
    answer = program(tiny.task(name))
    for wrong in NOTHING:
        with pytest.raises(ValueError, match="pass|takes|UTF-8"):
            answer(wrong)
    texts = ["a [MASK] b", "größer"]
    expected = answer(texts)
    assert len(expected) == 2
    column = pandas.Series(texts, index=[7, 8])
    for same in (tuple(texts), np.array(texts), np.array(texts, object), column, iter(texts)):
        assert str(answer(same)) == str(expected)
    assert str(answer([text.encode() for text in texts])) == str(expected)
    # A single string is one text, not a list of letters, as in the inference methods.
    assert str(answer(texts[1])) == str(answer([texts[1]])[0]) == str(answer(texts[1].encode()))


@pytest.mark.parametrize(
    "name, example",
    [
        ("QuestionAnswering", ("ab", "b cd")),
        ("Reranker", ("ab", "b cd")),
        ("NextSentencePredictor", ("ab", "b cd")),
        ("MultipleChoice", ("ab", ["b", "cd"])),
    ],
)
def test_programs_of_pairs_take_no_single_texts(name, example, program):
    answer = program(tiny.task(name))
    several = (
        "ab",
        ["ab"],
        ["ab", "cd"],
        [("ab",)],
        [("a", "b", "c")],
        [("a", [])],
        [("a", ["b"], 1)],
    )
    for wrong in (*NOTHING, *several):
        with pytest.raises(ValueError, match="pass|takes|UTF-8"):
            answer(wrong)
    (expected,) = answer([example])
    for same in ([list(example)], iter([example]), [tuple(map(np.array, example))]):
        assert str(answer(same)) == str([expected])
    assert str(answer(example)) == str(expected)


@pytest.mark.parametrize("name", ["TextClassifier", "Reranker"])
@pytest.mark.filterwarnings("ignore:.*are truncated, first at")
def test_programs_keep_first_and_last_tokens(name, program):
    long = {"mode": "head_tail", "head_share": 0.3}
    model = tiny.task(name, scale=1.0, preprocessor={"sequence_length": 16, "long": long})
    texts = ["", "a", " ".join("abcdefghijklmno"), "e f g h i " * 7, "a b c d " * 99]
    if name == "Reranker":
        texts = list(zip(texts[::-1], texts)) + list(zip(texts, texts))
        logits = model.predict(tuple(map(list, zip(*texts))), verbose=0)
        expected = 1 / (1 + np.exp(-logits))
        found = program(model)(texts)
    else:
        expected = model.predict_proba(texts)
        found = [[dict(row)[x] for x in model.label_names] for row in program(model)(texts)]
    np.testing.assert_allclose(np.ravel(found), np.ravel(expected), atol=1e-5)


def without_padding(ids, pad_id=0):
    return [[x for x in row if x != pad_id] for row in np.asarray(ids).tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("export", [export_onnx, export_openvino, export_litert])
def test_programs_answer_as_the_models_do(export, tmp_path):
    names = ("TextClassifier", "TextEmbedder", "TokenClassifier", "TextRegressor")
    models = {name: tiny.task(name) for name in names}
    multi = tiny.task("TextClassifier", multi_label=True)
    crf = tiny.task("TokenClassifier", scheme="BIOES", crf=True)
    for name, model in {**models, "multi": multi, "crf": crf}.items():
        export(model, tmp_path / name)
    *found, (_, paths) = ask(
        [*((tmp_path / name, TEXTS) for name in (*names, "multi")), (tmp_path / "crf", short(crf))]
    )
    check_paths(crf, short(crf), paths)
    features = models["TextClassifier"].preprocessor(TEXTS)
    for ids, _ in found:
        assert without_padding(ids) == without_padding(features["token_ids"])
    classified, embedded, tagged, scored, several = (answers for _, answers in found)
    for model, answers in ((models["TextClassifier"], classified), (multi, several)):
        logits = model.predict(TEXTS, verbose=0)
        odds = 1 / (1 + np.exp(-logits)) if model.multi_label else np.exp(logits)
        odds /= 1 if model.multi_label else odds.sum(axis=-1, keepdims=True)
        for row, expected in zip(answers, odds, strict=True):
            assert [label for label, _ in row] == [tiny.LABELS[i] for i in np.argsort(-expected)]
            np.testing.assert_allclose([x for _, x in row], np.sort(expected)[::-1], atol=1e-5)
    np.testing.assert_allclose(embedded, models["TextEmbedder"].embed(TEXTS), atol=2e-5)
    np.testing.assert_allclose(scored, models["TextRegressor"].score(TEXTS), atol=2e-5)
    tagger = models["TokenClassifier"]
    rows = zip(np.asarray(tagger(features)), np.asarray(features["padding_mask"]))
    for row, (logits, mask) in zip(tagged, rows):
        best = logits[: mask.sum()].argmax(axis=-1)[1:-1]
        assert [label for *_, label in row] == [tagger.label_names[i] for i in best]


def short(tagger):
    """Return the texts that fit into one window; with "all", whose pieces are the model's units."""
    texts = [*TEXTS, *PROSE.split("東京."), "ab, c"]
    pieces = tagger.preprocessor.read(texts)
    is_short = np.diff(pieces.splits) <= 62
    if tagger.preprocessor.label_pieces == "all":
        is_short &= np.diff(pieces.splits) == np.diff(pieces.unit_splits)
    return [text for text, keep in zip(texts, is_short) if keep]


def check_paths(tagger, texts, found):
    """Compare labels of units with the best paths of a tagger with a CRF."""
    _, numbers, _ = tagger._decoded(texts, 32, "test")
    pieces = tagger.preprocessor.read(texts)
    assert sum(map(len, found)) == len(numbers) > 30
    for row, begin, end in zip(found, pieces.unit_splits[:-1], pieces.unit_splits[1:]):
        names = [tagger.label_names[number] for number in numbers[begin:end]]
        wanted = list(zip(pieces.starts[begin:end].tolist(), names))
        assert [(start, label) for start, _, label in row] == wanted


@pytest.mark.parametrize("label_pieces", ["first", "all"])
def test_program_of_a_crf(label_pieces, program):
    settings = {"scheme": "BIOES", "crf": True}
    tagger = tiny.task("TokenClassifier", preprocessor={"label_pieces": label_pieces}, **settings)
    check_paths(tagger, short(tagger), program(tagger)(short(tagger)))


@pytest.mark.slow
def test_pairs_and_other_tokenizers(tmp_path):
    pairs = [[a, b] for a, b in zip(SHORT, SHORT[::-1])]
    follows = tiny.task("NextSentencePredictor")
    export_onnx(follows, tmp_path / "follows")
    reranker = tiny.task("Reranker")
    export_onnx(reranker, tmp_path / "reranker")
    tokens = tiny.byte_pairs(RobertaTokenizer, "<s> <pad> </s> <unk> <mask>")
    settings = {"encoder_settings": {"family": "roberta", "num_segments": 1, "position_offset": 2}}
    roberta = tiny.task("TextClassifier", tokens, **settings)
    export_onnx(roberta, tmp_path / "roberta")
    for model, name in ((follows, "follows"), (reranker, "reranker"), (roberta, "roberta")):
        ((ids, answers),) = ask([(tmp_path / name, pairs)])
        features = model.preprocessor(tuple(zip(*pairs)))
        pad_id = model.preprocessor.tokenizer.pad_token_id
        assert without_padding(ids, pad_id) == without_padding(features["token_ids"], pad_id)
        if name == "follows":
            np.testing.assert_allclose(answers, follows.follows(*zip(*pairs)), atol=1e-5)
        if name == "reranker":
            np.testing.assert_allclose(answers, reranker.score(pairs), atol=1e-5)


@pytest.mark.slow
def test_program_of_replaced_tokens(tmp_path):
    detector = tiny.task("ReplacedTokenDetector")
    export_onnx(detector, tmp_path / "detector")
    ((_, answers),) = ask([(tmp_path / "detector", SHORT)])
    for row, logits in zip(answers, detector.predict(SHORT, verbose=0), strict=True):
        np.testing.assert_allclose([x for *_, x in row], 1 / (1 + np.exp(-logits)), atol=1e-5)


QUESTIONS = ["Who met Bob?", "", "日本語?", "Where is it, " * 9, "no?"]
CONTEXTS = ["Anna met Bob in Rome (Italy) in 1999.", PROSE, "東京ではない。", PROSE, "x"]
CHOICES = [["noon?", "a prize?"], ["one"], ["北京", "b", *SHORT[:2]]]


@pytest.mark.slow
@pytest.mark.parametrize("export", [export_onnx, export_litert])
def test_programs_of_the_other_kinds(export, tmp_path):
    reader, chooser, masked = map(tiny.task, ("QuestionAnswering", "MultipleChoice", "MaskedLM"))
    vectors, encoder = tiny.task("TextEmbedder", pooling="tokens"), tiny.shake(tiny.encoder())
    hidden = ["Lunch at [MASK]?", "[MASK]", "nothing", "a [MASK] of [MASK], naïve № [MASK]"]
    jobs = {
        "reader": (reader, list(zip(QUESTIONS, CONTEXTS))),
        "chooser": (chooser, list(zip(SHORT, CHOICES))),
        "masked": (masked, hidden),
        "vectors": (vectors, TEXTS),
    }
    for name, (model, _) in jobs.items():
        export(model, tmp_path / name)
    found = ask([(tmp_path / name, texts) for name, (_, texts) in jobs.items()])
    answers, chosen, filled, rows = (x for _, x in found)
    expected = reader.answer(QUESTIONS, CONTEXTS, top_k=2)
    for (text, start, end, score), (best, *others) in zip(answers, expected, strict=True):
        assert score == pytest.approx(best["score"], abs=1e-4)
        if not others or best["score"] - others[0]["score"] > 1e-4:
            assert (text, start, end) == (best["answer"], best["start"], best["end"])
    for scores, row in zip(chosen, chooser.choose(SHORT[: len(CHOICES)], CHOICES), strict=True):
        np.testing.assert_allclose(scores, row["scores"], atol=1e-5)
    assert [len(row) for row in filled] == [text.count("[MASK]") for text in hidden]
    for row, text in zip(filled, hidden, strict=True):
        expected = masked.fill_mask(text) if row else []
        for place, best in zip(row, [expected] if len(row) == 1 else expected, strict=True):
            assert [(token, id) for token, id, _ in place] == [
                (one["token"], one["token_id"]) for one in best
            ]
            odds = [one["score"] for one in best]
            np.testing.assert_allclose([x for *_, x in place], odds, atol=1e-5)
    for row, one in zip(rows, vectors.embed(TEXTS), strict=True):
        np.testing.assert_allclose(row, one, atol=1e-5 * np.abs(one).max())
    if export is export_onnx:
        preprocessor = vectors.preprocessor
        export(encoder, tmp_path / "encoder", tokenizer=preprocessor.tokenizer)
        ((_, rows),) = ask([(tmp_path / "encoder", TEXTS)])
        features = preprocessor(TEXTS)
        outputs = np.asarray(encoder(features)["sequence_output"])
        for row, one, mask in zip(rows, outputs, np.asarray(features["padding_mask"])):
            np.testing.assert_allclose(row, one[: mask.sum()], atol=2e-5)


def test_the_program_runs_by_itself_and_several_tasks_have_none(tmp_path):
    model = tiny.task("TextClassifier")
    export_onnx(model, tmp_path / "spam")
    done = subprocess.run(
        [sys.executable, tmp_path / "spam" / "answer.py", "win a prize", "größe"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    best = [row["label"] for row in model.classify(["win a prize", "größe"])]
    assert [ast.literal_eval(line)[0][0] for line in done.stdout.splitlines()] == best
    reader = tiny.task("QuestionAnswering")
    export_onnx(reader, tmp_path / "reader")
    done = subprocess.run(
        [sys.executable, tmp_path / "reader" / "answer.py", QUESTIONS[0], CONTEXTS[0]],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    best = reader.answer(QUESTIONS[0], CONTEXTS[0])[0]["answer"]
    assert ast.literal_eval(done.stdout)[0] == best
    bare = models.BertQuestionAnswering(reader.backbone)
    export_onnx(bare, tmp_path / "bare", tokenizer=reader.preprocessor.tokenizer)
    assert "answer.py" not in os.listdir(tmp_path / "bare")
    heads = {"ham": lambda encoder, _: models.BertTextClassifier(encoder, num_classes=2)}
    export_onnx(tiny.tasks(**heads), tmp_path / "tasks")
    assert "answer.py" not in os.listdir(tmp_path / "tasks")
