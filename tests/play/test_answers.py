"""Each panel's answers, and its errors."""

import ast
import functools
import json
import pathlib
import re

import numpy as np
import pytest

from kerasbert.models import BertEnsemble
from kerasbert.play import answers
from kerasbert.play.samples import EXAMPLES
from tests.play import presets

PAGE = pathlib.Path(answers.__file__).parent / "page"
TEXT = "Ann lives in old Rome, where is the film?"


@functools.cache
def model(name):
    """A model for tests that do not change it; it runs eagerly, so no test waits for
    compilation.
    """
    found = presets.make(name)
    found.run_eagerly = True
    return found


def ask(name, panel, **request):
    found = answers.answer(model(name), panel, request)
    return json.loads(json.dumps(found, allow_nan=False))


@pytest.mark.backends("tensorflow")
def test_the_words_of_the_page_are_there_in_each_language():
    text = (PAGE / "strings.js").read_text(encoding="utf-8")
    strings = json.loads(text[text.index("{") : text.rindex("}") + 1])
    assert list(strings) == ["en", "ko", "ja"]
    holes = {key: sorted(re.findall(r"\{\w+\}", words)) for key, words in strings["en"].items()}
    for language, words in strings.items():
        assert {key: sorted(re.findall(r"\{\w+\}", one)) for key, one in words.items()} == holes
        assert all(words.values())
        if language != "en":
            assert not [key for key in words if words[key] == strings["en"][key]]
    code = (PAGE / "play.js").read_text(encoding="utf-8")
    named = set(re.findall(r'\bsay\("(\w+)"', code)) - {"about_", "error_"}
    assert named <= set(holes)
    for panel in answers.PANELS:
        assert panel in holes and f"about_{panel}" in holes and panel in EXAMPLES
        assert {one["language"] for one in EXAMPLES[panel]} == set(strings)
    for method in answers.METHODS:
        assert method in holes
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in PAGE.parent.glob("*.py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {"RequestError", "BusyError"}
    errors = {call.args[1].value for call in calls if getattr(call.func, "id", "") in names}
    assert {f"error_{key}" for key in errors} == {x for x in holes if x.startswith("error_")}


@pytest.mark.backends("tensorflow")
def test_the_page_has_no_html_of_texts_and_nothing_from_elsewhere():
    for path in PAGE.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "innerHTML" not in text and "insertAdjacent" not in text and "eval(" not in text
        assert "://" not in text and "//cdn" not in text


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", list(presets.PRESETS))
def test_each_kind_has_its_panels(name):
    told = answers.describe(model(name))
    assert told["panels"][-2:] == ["attention", "tokens"] and len(told["panels"]) >= 3
    assert told["layers"] == model(name).backbone.num_layers
    layer = ask(name, "attention", text=TEXT, layer=told["layers"] - 1)
    assert np.shape(layer["weights"]) == (2, len(layer["tokens"]), len(layer["tokens"]))
    tokens = ask(name, "tokens", text="Ann 東京 <zz")["tokens"]
    assert [one["unknown"] for one in tokens] == [False, False, False, False, True]


@pytest.mark.backends("torch")
def test_fill():
    found = ask("masked", "fill", text="the [MASK] is [MASK]", top_k=3)
    assert len(found["gaps"]) == 2 and len(found["gaps"][0]) == 5
    best = model("masked").fill_mask("the [MASK] is [MASK]", top_k=3)
    last = [layers[-1] for layers in found["gaps"]]
    assert [[x["token"] for x in one] for one in last] == [[x["token"] for x in y] for y in best]


@pytest.mark.parametrize(
    "name", [pytest.param(presets.IMAGE, marks=pytest.mark.backends("torch")), "deberta"]
)
def test_classify(name):
    found = ask(name, "classify", text=TEXT)
    expected = model(name).classify(TEXT)["probabilities"]
    assert {one["name"]: one["score"] for one in found["classes"]} == pytest.approx(
        expected, abs=1e-4
    )
    assert found["target"] == max(expected, key=expected.get)
    words = [TEXT[word["start"] : word["end"]] for word in found["words"]]
    assert words == ["Ann", "lives", "in", "old", "Rome", ",", "where", "is", "the", "film", "?"]
    total = sum(word["score"] for word in found["words"])
    assert total == pytest.approx(found["output"] - found["baseline_output"], abs=1e-2)
    other = ask(name, "classify", text=TEXT, target=found["classes"][1]["name"], text_b="bad")
    assert other["target"] == found["classes"][1]["name"]
    assert {word["of"] for word in other["words"]} == {0, 1}
    rollout = ask(name, "classify", text=TEXT, method="attention_rollout")
    assert rollout["error"] is None and min(word["score"] for word in rollout["words"]) > 0


@pytest.mark.backends("torch")
def test_an_ensemble_has_no_attributions():
    ensemble = BertEnsemble([model(presets.IMAGE), presets.make(presets.IMAGE)])
    assert answers.describe(ensemble)["panels"] == ["classify", "tokens"]
    found = answers.answer(ensemble, "classify", {"text": TEXT})
    expected = ensemble.classify(TEXT)["probabilities"]
    assert {one["name"] for one in found["classes"]} == set(expected) and "words" not in found


@pytest.mark.backends("torch")
def test_numbers_of_texts_and_pairs():
    assert ask("regressor", "classify", text=TEXT)["one"]
    found = ask("follows", "classify", text="the film", text_b="is good", target="follows")
    assert sum(one["score"] for one in found["classes"]) == pytest.approx(1, abs=1e-4)
    assert found["target"] == "follows"
    found = ask("reranker", "classify", text="the film", text_b="is good")
    assert found["classes"][0]["score"] == pytest.approx(
        model("reranker").score(("the film", "is good")), abs=1e-4
    )


@pytest.mark.backends("torch")
def test_the_other_panels():
    spans = ask("tagger", "tag", text=TEXT)["spans"]
    assert spans == [
        {**{key: one[key] for key in ("start", "end", "label")}, "score": round(one["score"], 4)}
        for one in model("tagger").tag(TEXT)
    ]
    assert len(ask("detector", "tag", text=TEXT)["spans"]) == 11
    found = ask("reader", "answer", text="where is ann", text_b=TEXT)["answers"]
    assert len(found) == 3 and TEXT[found[0]["start"] : found[0]["end"]] == found[0]["answer"]
    scores = ask("chooser", "choose", text="the film", texts=["is good", "lives", " "])["scores"]
    assert len(scores) == 2 and sum(scores) == pytest.approx(1, abs=1e-3)
    assert isinstance(ask("writer", "write", text="the film", count=3)["text"], str)
    for name in ("embedder", "sparse"):
        found = ask(name, "similar", texts=["the film", "the film", "ann lives in rome"])
        assert np.diag(found["similarities"]).tolist() == [1, 1, 1]
        assert found["similarities"][0][1] == 1 and np.shape(found["points"]) == (3, 2)
        assert found["points"][0] == pytest.approx(found["points"][1], abs=1e-2)


@pytest.mark.parametrize("name", ["embedder", "sparse", "reranker"])
def test_search(name):
    texts, done = ["ann lives in rome", "the film is bad", "old play"] * 20, []
    index = answers.make_index(model(name), texts, done.append)
    assert done[-1] == 60
    hits = answers.search(model(name), index, {"text": "the film is bad", "top_k": 4})["hits"]
    assert len(hits) == 4 and [hit["score"] for hit in hits] == sorted(
        (hit["score"] for hit in hits), reverse=True
    )
    if name != "reranker":
        assert hits[0]["text"] == "the film is bad"
        return
    with pytest.raises(ValueError, match="up to 100 texts, got 120"):
        answers.make_index(model(name), texts * 2, done.append)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "name, panel, request_, message",
    [
        ("masked", "fill", {}, "text must be a text, got None"),
        ("masked", "fill", {"text": " "}, "text is empty"),
        ("masked", "fill", {"text": "no mask"}, "no .MASK."),
        ("masked", "fill", {"text": "old " * 40 + "[MASK]"}, "no .MASK."),
        ("masked", "fill", {"text": "[MASK]" * 1000}, "text has 6,000 .* limit is 5,000"),
        ("masked", "fill", {"text": "\ud800 [MASK]"}, "text has an incomplete character"),
        ("masked", "fill", {"text": "[MASK]", "top_k": 10**9}, "top_k=1000000000 must be .* to 50"),
        ("masked", "fill", {"text": "[MASK]", "top_k": True}, "top_k=True must be"),
        ("masked", "classify", {"text": "a"}, "has no panel 'classify'"),
        ("masked", "../etc", {"text": "a"}, "panel='../etc' is unknown"),
        ("deberta", "classify", {"text": "a", "method": "magic"}, "method='magic' is unknown"),
        ("deberta", "classify", {"text": "a", "target": "maybe"}, "target='maybe' is unknown"),
        ("deberta", "classify", {"text": "a", "steps": 10**6}, "steps"),
        ("follows", "classify", {"text": "a"}, "enter the second one, too"),
        ("reader", "answer", {"text": "a"}, "text_b must be a text"),
        ("chooser", "choose", {"text": "a", "texts": ["b"]}, "one text"),
        ("embedder", "similar", {"texts": "a"}, "texts must be a list"),
        ("embedder", "similar", {"texts": ["a", 3]}, "a line must be a text, got 3"),
        ("embedder", "similar", {"texts": ["a"] * 101}, "101 lines; the limit is 100"),
        ("embedder", "similar", {"texts": [" ", ""]}, "texts has no text"),
        ("masked", "attention", {"text": "a", "layer": 9}, "layer=9 must be"),
        ("masked", "attention", {"text": "a " * 200}, "more than 128 tokens"),
    ],
)
def test_what_is_refused(name, panel, request_, message):
    with pytest.raises(ValueError, match=message) as error:
        answers.answer(model(name), panel, request_)
    assert "\n" not in str(error.value)
