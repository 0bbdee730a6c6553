"""The page decodes logits in JavaScript as the models do in Python.

Node.js runs the page's `answers.mjs` without its libraries: a stand-in tokenizer splits words into
characters, and the logits are computed from ids and positions, with many equal values.
"""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from kerasbert.export import web
from kerasbert.heads.base import steps
from kerasbert.heads.token_classifier import model as tagger
from kerasbert.text.transformers_files import transformers_files
from tests.export import tiny

pytestmark = [
    pytest.mark.backends("tensorflow"),
    pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js: apt install nodejs"),
]

# Characters that the tokenizer's normalization leaves unchanged; emoji are unknown tokens.
CHARACTERS = list("abc01.,!-日本🙂    ")
LABELS = ["PER", "LOC"]
NODE = """
import { readFileSync } from "node:fs";
const { makeAnswerer } = await import(process.argv[1]);
const { task, content, asked, classes } = JSON.parse(readFileSync(0, "utf8"));
const vocab = content.model.vocab;
const inPieces = (word) => {
  const made = Array.from(word, (point, i) => (i ? "##" : "") + point);
  return made.every((one) => one in vocab) ? made : ["[UNK]"];
};
const tokenizer = {
  model: Object.assign((words) => words.flatMap(inPieces), { tokens_to_ids: new Map() }),
  pre_tokenizer: (text) => text.match(/[.,!-]|[^\\s.,!-]+/gu) ?? [],
  token_to_id: (token) => vocab[token],
};
const value = (id, at, c) => ((id * 7 + at * 13 + at * id * 5 + c * 29) % 17) / 4;
const run = ({ token_ids: ids }) => Object.fromEntries(
  Object.entries(classes).map(([name, columns]) => {
    const data = ids.flatMap((id, at) => columns.map((c) => value(id, at, c)));
    return [name, { data, dims: [1, ids.length, columns.length] }];
  }),
);
Array.prototype.subarray = Array.prototype.slice;
const { answer } = makeAnswerer(task, tokenizer, content, run);
const found = [];
for (const ask of asked) found.push(await answer(ask));
process.stdout.write(JSON.stringify(found));
"""


def logits_of(features, columns):
    """Return the logits that the page's stand-in for the network computes: (B, T, C)."""
    ids = np.asarray(features["token_ids"], "int64")[..., None]
    at = np.arange(ids.shape[1])[:, None]
    return ((ids * 7 + at * 13 + at * ids * 5 + np.array(columns) * 29) % 17 / 4).astype("float32")


def of_page(model, asked, classes):
    """Return the page's answers to requests."""
    files = transformers_files(model.preprocessor.tokenizer, "bert", 64, True)
    content = json.loads(files["tokenizer.json"])
    given = {"task": web.settings_of(model), "content": content, "asked": asked, "classes": classes}
    script = Path(web.__file__).parent / "page" / "answers.mjs"
    command = ["node", "--input-type=module", "-e", NODE, script.as_uri()]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def random_texts(count, most, seed=0):
    rng = np.random.default_rng(seed)
    texts = ("".join(rng.choice(CHARACTERS, rng.integers(1, most))) for _ in range(count))
    return [f"a{text}" for text in texts]


@pytest.mark.parametrize("label_pieces", ["first", "all"])
@pytest.mark.parametrize("crf", [False, True])
def test_entities(label_pieces, crf, monkeypatch):
    preprocessor = {"label_pieces": label_pieces}
    model = tiny.task(
        "TokenClassifier", labels=LABELS, scheme="BIO", crf=crf, preprocessor=preprocessor
    )
    classes = {"logits": [0, 1, 2, 3, 4]}
    monkeypatch.setattr(
        tagger,
        "batch_outputs",
        lambda task, batches, **_: ((x, logits_of(x, classes["logits"])) for x in batches),
    )
    texts = random_texts(40, 150)
    found = of_page(model, [{"text": text} for text in texts], classes)
    for text, wanted, one in zip(texts, model.tag(texts), found, strict=True):
        spans = [(x["label"], x["start"], x["end"]) for x in one["spans"]]
        assert spans == [(x["label"], x["start"], x["end"]) for x in wanted], text
        scores = [x["score"] for x in one["spans"]]
        np.testing.assert_allclose(scores, [x["score"] for x in wanted], rtol=1e-5)


def test_answers(monkeypatch):
    model = tiny.task("QuestionAnswering")
    classes = {"start_logits": [0], "end_logits": [1]}

    def predict(task, batches, **_):
        most = max(x["token_ids"].shape[1] for x in batches)
        found = {name: [] for name in classes}
        for x in batches:
            for name, columns in classes.items():
                logits = logits_of(x, columns)[..., 0]
                logits[np.asarray(x["padding_mask"]) == 0] = -1e9
                room = ((0, 0), (0, most - logits.shape[1]))
                found[name].append(np.pad(logits, room, constant_values=-1e9))
        return {name: np.concatenate(rows) for name, rows in found.items()}

    monkeypatch.setattr(steps, "predict_batches", predict)
    questions, contexts = random_texts(40, 20, 1), random_texts(40, 150, 2)
    asked = [{"text": a, "text_b": b} for a, b in zip(questions, contexts)]
    for threshold in (None, 0.5, np.inf):
        model.null_threshold = threshold
        found, empty = of_page(model, asked, classes), []
        for wanted, one in zip(model.answer(questions, contexts, top_k=3), found, strict=True):
            spans = [(x["answer"], x["start"], x["end"]) for x in one["answers"]]
            assert spans == [(x["answer"], x["start"], x["end"]) for x in wanted]
            scores = [x["score"] for x in one["answers"]]
            np.testing.assert_allclose(scores, [x["score"] for x in wanted], rtol=1e-5)
            empty.append([x["answer"] == "" for x in wanted])
        # "No answer" is in different places.
        places = {tuple(row).index(True) for row in empty if any(row)}
        assert len(places) > 1 if threshold == 0.5 else not places
