"""`export_web` in a real browser with real input, from a plain file server.

Playwright drives Debian's Chromium, or another installed one.
"""

import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

from kerasbert import models
from kerasbert.base import runtimes
from kerasbert.base.files import write_files, write_json
from kerasbert.export import export_web, web
from kerasbert.text.transformers_files import transformers_files
from kerasbert.tokenizers import (
    AlbertTokenizer,
    RobertaTokenizer,
    XLMRobertaTokenizer,
    tokenizer_from_files,
)
from tests.campaigns.batches import PARTS
from tests.cli.test_commands import kerasbert
from tests.export import tiny
from tests.export.test_runtimes import ALBERT, XLM_ROBERTA
from tests.peers import Peer
from tests.play import presets
from tests.text import conftest as small
from tests.text.test_added_tokens import random_texts, saved_by_transformers
from tests.text.test_transformers_files import FAMILIES

pytestmark = [pytest.mark.peers, pytest.mark.slow, pytest.mark.backends("tensorflow")]
sentencepiece = Peer("sentencepiece")

PAGE = Path(web.__file__).parent / "page"

# Maximum change of a probability caused by int8 rounding, and by another runtime.
OF_INT8, OF_RUNTIMES = 0.03, 0.01
FAMILY = "👩‍👩‍👧"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Write a model's page: a function that returns its folder."""
    if shutil.which("npm") is None:
        pytest.skip("There is no npm here: apt install npm.")
    with pytest.MonkeyPatch.context() as patch:
        tiny.write_here(patch)

        def write(model, **settings):
            folder = tmp_path_factory.mktemp("site") / "page"
            assert export_web(model, folder, **settings) == str(folder / "index.html")
            return folder

        yield write


@contextlib.contextmanager
def served(folder):
    """The address of a folder, from Python's own file server."""
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, cwd=folder, text=True, **pipes)
    try:
        port = re.search(r"port (\d+)", server.stdout.readline())[1]
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.terminate()
        server.wait(30)


@contextlib.contextmanager
def tab(browser, folder, language="en-US", **settings):
    """A page that only requests files of its folder, without errors and without scripts from
    texts.
    """
    context = browser.new_context(locale=language, **settings)
    asked, broken = [], []
    context.on("request", lambda request: asked.append(request.url))
    page = context.new_page()
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.on(
        "console", lambda message: broken.append(message.text) if "Policy" in message.text else 0
    )
    with served(folder) as address:
        page.goto(address)
        yield page
        assert not broken and page.evaluate("window.boom") is None
        assert page.locator("img, main script").count() == 0
        names = {url.removeprefix(address) for url in asked if not url.startswith("data:")}
        assert [name for name in names if "//" in name] == []
        context.close()
    return names


def ask(page, **texts):
    page.wait_for_selector("button.go:not(:disabled)", timeout=60_000)
    for name, text in texts.items():
        page.fill(f"textarea[name={name}]", text)
    page.click("button.go")
    page.wait_for_selector("#took", timeout=60_000)


def bars(page, which=0):
    """Return the names of bars with their values, 0.123 for "12.3%"."""
    picture = page.locator("#result .bars").nth(which)
    values = picture.locator(".value").all_inner_texts()
    return dict(
        zip(picture.locator(".name").all_inner_texts(), [float(x[:-1]) / 100 for x in values])
    )


PAINTED = """new Promise((done) => new PerformanceObserver((list) => {
  const found = list.getEntries().find((one) => one.name === "first-contentful-paint");
  if (found) done(found.startTime);
}).observe({ type: "paint", buffered: true }))"""


def check(found, wanted, most):
    """Check the probabilities of names; a missing name must have hardly more than the lowest."""
    least = min(found.values())
    for name, score in wanted.items():
        assert abs(found.get(name, least) - score) < most, name


def test_fill(browser, site):
    model = models.BertMaskedLM.from_preset("bert_mini_demo_ko_ja")
    folder = site(model)
    began = time.monotonic()
    texts = [
        "서울은 대한민국의 [MASK]이다.",
        f"{FAMILY} 東京は日本の[MASK]です。🙂",
        "[MASK] 𠮷 [MASK]",
    ]
    with tab(browser, folder, "ko-KR") as page:
        assert page.inner_text("button.go") == "실행"
        ask(page, text=texts[0])
        answered, painted = time.monotonic() - began, page.evaluate(PAINTED) / 1000
        print(f"\nfirst paint {painted:.2f} s, first answer {answered:.2f} s")
        assert painted < 3 < answered + 3 < 23
        for text in [*texts, "한국 " * 200 + "[MASK] 日本" * 2]:
            ask(page, text=text)
            wanted = model.fill_mask(text, top_k=8)
            wanted = wanted if isinstance(wanted[0], list) else [wanted]
            assert page.locator("#result .bars").count() == len(wanted)
            for i, row in enumerate(wanted):
                check(bars(page, i), {one["token"]: one["score"] for one in row}, OF_INT8)
        page.select_option("#language", "ja")
        for text, said in (
            (" ", "文章が空です"),
            ("東京は🙂", "[MASK] がありません"),
            ("あ" * 20_001, "20001"),
        ):
            ask(page, text=text)
            assert said in page.inner_text("[role=alert]")
        page.select_option("#language", "en")
        assert "has 20001 characters" in page.inner_text("[role=alert]")
        page.fill("textarea[name=text]", "A day in ")
        page.click("#insert")
        page.keyboard.type(".")
        page.keyboard.press("Enter")
        page.wait_for_selector("#result .bars")
        assert page.input_value("textarea[name=text]") == "A day in [MASK]."


def test_classify(browser, site):
    labels = [presets.SCRIPT, presets.IMAGE, "größer & ✓"]
    model = tiny.task("TextClassifier", labels=labels)
    mobile = {"viewport": {"width": 360, "height": 640}, "color_scheme": "dark"}
    with tab(browser, site(model, precision="float32"), **mobile) as page:
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 19, 23)"
        for text in [
            "good " + presets.SCRIPT,
            f"한국 {FAMILY} 日本語",
            "naïve café ΟΔΟΣ",
            "x " * 300,
        ]:
            ask(page, text=text, text_b="")
            check(bars(page), model.classify(text)["probabilities"], 1e-3)
            ask(page, text=text, text_b=f"{presets.IMAGE} 🙂 日本 " * 9)
            pair = text, f"{presets.IMAGE} 🙂 日本 " * 9
            check(bars(page), model.classify(pair)["probabilities"], 1e-3)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


# JavaScript that returns the marks of a text: for each, the number of characters before it, its
# text and its label.
MARKS = """() => {
  const found = [];
  let at = 0;
  for (const part of document.querySelector("#result .marked").childNodes) {
    if (part.nodeName === "BDI") continue;
    if (part.nodeName === "MARK") found.push([at, part.textContent, part.title]);
    at += Array.from(part.textContent).length;
  }
  return found;
}"""


@pytest.mark.parametrize("crf", [False, True])
def test_tag(browser, site, crf):
    types = [presets.SCRIPT, "LOC"]
    folder = None
    for pieces in ("first", "all"):
        settings = {"preprocessor": {"label_pieces": pieces}}
        model = tiny.task("TokenClassifier", labels=types, scheme="BIO", crf=crf, **settings)
        # The probabilities are exactly equal, so each mark must be at the same place as in Python.
        if folder is None:
            folder = site(model, precision="float32")
        else:  # The same network is used, but the page reads its outputs in another way.
            write_json(folder / "task.json", web.settings_of(model))
        with tab(browser, folder) as page:
            for text in [
                f"{FAMILY} ann in <b>Rome</b> 🙂 日本語, 한국 𠮷野 cafe\u0301 x\u200d",
                f"abc 🙂 kläg-{FAMILY}日本 " * 20,  # The text needs several windows.
            ]:
                ask(page, text=text)
                found, wanted = page.evaluate(MARKS), model.tag(text)
                assert [row[:2] for row in found] == [[x["start"], x["text"]] for x in wanted]
                for (_, _, said), one in zip(found, wanted, strict=True):
                    label, score = said[:-1].rsplit(" ", 1)
                    assert label == one["label"]
                    assert float(score) / 100 == pytest.approx(one["score"], abs=1e-3)


def test_answer(browser, site):
    model = tiny.task("QuestionAnswering")
    with tab(browser, site(model, precision="float32")) as page:
        context = f"ann {FAMILY} lives 🙂 in 日本語 한국, not in rome {presets.IMAGE}. "
        for question in ("who lives in 日本?", "who lives there? " * 9):
            for text in [context, "".join(f"{i} {context}" for i in range(9))]:
                ask(page, text=question, text_b=text)
                wanted = model.answer(question, text, top_k=3)
                best = {one["answer"]: one["score"] for one in wanted}
                assert list(bars(page)) == list(best)
                assert bars(page) == pytest.approx(best, abs=1e-3)
                assert page.evaluate(MARKS)[0][:2] == [wanted[0]["start"], wanted[0]["answer"]]
        ask(page, text="who?", text_b="")
        assert "Text with the answer is empty" in page.inner_text("[role=alert]")


def test_what_is_missing(browser, site):
    model = tiny.task("NextSentencePredictor")
    folder = site(model)
    with tab(browser, folder) as page:
        ask(page, text="a 한국 🙂", text_b="")
        assert "Second text is empty" in page.inner_text("[role=alert]")
        ask(page, text="a 한국 🙂", text_b="日本語")
        row = {
            name: np.asarray(x) for name, x in model.preprocessor(("a 한국 🙂", "日本語")).items()
        }
        size = row["padding_mask"].sum()
        run = runtimes.onnx_runtime(str(folder / "model.onnx"))
        outputs = run({name: x[None, :size].astype("int32") for name, x in row.items()})
        score = float(1 / (1 + np.exp(-outputs["logits"] @ [1, -1]))[0])
        check(bars(page), {"follows": score, "does not follow": 1 - score}, OF_RUNTIMES)
    page = browser.new_page(locale="ja-JP")
    page.goto(f"file://{folder}/index.html")
    page.wait_for_selector("[role=alert]")
    assert "python -m http.server" in page.inner_text("[role=alert]")
    page.close()
    (folder / "model.onnx").unlink()
    with tab(browser, folder) as page:
        page.wait_for_selector("[role=alert]")
        assert "model.onnx could not be loaded" in page.inner_text("[role=alert]")
        assert page.is_disabled("button.go")


def test_pieces_are_checked(site, monkeypatch):
    """Byte-pair and SentencePiece tokens equal Python's; other tokens are rejected."""
    pairs = tiny.byte_pairs(RobertaTokenizer, "<s> <pad> </s> <unk> <mask>")
    model = tiny.task("TextClassifier", pairs)
    folder = site(model)
    for kind, settings in ((XLMRobertaTokenizer, XLM_ROBERTA), (AlbertTokenizer, ALBERT)):
        texts = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(web.PROBES * 20),
            model_writer=texts,
            vocab_size=200,
            hard_vocab_limit=False,
            minloglevel=2,
            **settings,
        )
        other = tiny.task("TextClassifier", kind(texts.getvalue()))
        tokens = other.preprocessor.tokenizer
        write_files(folder, transformers_files(tokens, other.backbone.family, 64, True))
        web._check_pieces(other, str(folder), False)
    write_files(folder, transformers_files(pairs, model.backbone.family, 64, True))
    web._check_pieces(model, str(folder), False)
    monkeypatch.setattr(web, "PROBES", ["lower"])
    content = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(content.replace('"e r"', '"r e"'))
    with pytest.raises(
        RuntimeError, match="tokenizes 'lower' differently from the RobertaTokenizer"
    ):
        web._check_pieces(model, str(folder), False)


@pytest.mark.parametrize(
    "name, settings",
    [
        ("BertTokenizer", {}),
        ("BertTokenizer", {"normalize": "NFKC", "split_on": "ㄱ-ㆎ", "lowercase": False}),
        *((name, {}) for name in ("RobertaTokenizer", "ModernBertTokenizer", "AlbertTokenizer")),
    ],
)
def test_added_tokens_and_normal_forms(name, settings, tmp_path, monkeypatch):
    """Tokens are found with their flags, and decomposed Korean is composed, as in Python."""
    if shutil.which("npm") is None:
        pytest.skip("There is no npm here: apt install npm.")
    make = small.make.__wrapped__(**{part: getattr(small, part).__wrapped__() for part in PARTS})
    tokenizer, family = make(name, **settings), FAMILIES[name]
    texts = [
        "재밌다ㅋㅋ \u1112\u1161\u11ab\u3131\u314f x",
        "ｶﾞﾊﾟ \uac00\u11a8",
        "e\u0323\u0301 \u0301a",
    ]
    if not settings:
        tokenizer = tokenizer_from_files(
            saved_by_transformers(tokenizer, family, tmp_path / "given"), family
        )
        # Only one library assigns two consecutive spaces to two tokens of ModernBERT.
        texts += [text for text in random_texts() if "  " not in text]
    folder = tmp_path / "page"
    shutil.copytree(PAGE, folder)
    shutil.copytree(web._library(*web._LIBRARIES["tokenizers"]), folder / "tokenizers")
    write_files(folder, transformers_files(tokenizer, family, 64, True))
    write_json(folder / "task.json", {"length": 64})
    model = types.SimpleNamespace(preprocessor=types.SimpleNamespace(tokenizer=tokenizer))
    monkeypatch.setattr(web, "PROBES", [*web.PROBES, *texts])
    web._check_pieces(model, str(folder), name == "BertTokenizer")


def test_same_words_in_each_language():
    text = (PAGE / "strings.js").read_text(encoding="utf-8")
    strings = json.loads(text.split("window.STRINGS = ")[1].rstrip().rstrip(";"))
    assert set(strings) == {"en", "ko", "ja"}
    fields = {
        lang: {k: set(re.findall(r"{\w+}", x)) for k, x in words.items()}
        for lang, words in strings.items()
    }
    assert fields["en"] == fields["ko"] == fields["ja"]
    pages = "".join(path.read_text() for path in PAGE.glob("*") if path.name != "strings.js")
    assert [key for key in strings["en"] if key not in pages] == [
        "about_fill",
        "about_classify",
        "about_tag",
        "about_answer",
    ]


def test_command(monkeypatch):
    """`--format web` passes the model and the folder, and no setting of other formats."""
    asked = []
    monkeypatch.setattr("kerasbert.export.export_web", lambda *x, **y: asked.append((x, y)) or "it")
    command = ["export", "bert_tiny_demo_en_uncased", "site", "--format", "web"]
    done = kerasbert(*command)
    assert (done.exit_code, done.stdout) == (0, "it\n")
    ((model, folder), settings) = asked[0]
    assert (type(model).__name__, folder, settings) == ("BertPretrainer", "site", {})
    for more in (["--sequence-length", "9"], ["--version", "2"], ["--layout", "transformers"]):
        done = kerasbert(*command, *more)
        assert done.exit_code and f"{more[0]} is for" in done.output


def test_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="does not support a BertTextEmbedder; it supports"):
        export_web(tiny.task("TextEmbedder"), tmp_path / "page")
    with pytest.raises(ValueError, match="not support a BertMaskedLM without a preprocessor"):
        export_web(models.BertMaskedLM(tiny.encoder()), tmp_path / "page")
    pairs = tiny.byte_pairs(RobertaTokenizer, "<s> <pad> </s> <unk> <mask>")
    with pytest.raises(ValueError, match="this BertTokenClassifier has a RobertaTokenizer"):
        export_web(tiny.task("TokenClassifier", pairs), tmp_path / "page")
    with pytest.raises(ValueError, match="precision='int4' is unknown"):
        export_web(tiny.task("MaskedLM"), tmp_path / "page", precision="int4")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="needs npm, which is not installed; install Node.js"):
        export_web(tiny.task("MaskedLM"), tmp_path / "page")
    npm = tmp_path / "npm"
    for script, said in (
        ("echo npm error network >&2; exit 1", "npm could not fetch onnxruntime-web@.*: npm error"),
        ("echo x > a.tgz", "npm returned onnxruntime-web@.* with the SHA-512 .*, expected"),
    ):
        npm.write_text(f"#!/bin/sh\n{script}\n")
        npm.chmod(0o755)
        with pytest.raises(RuntimeError, match=said):
            export_web(tiny.task("MaskedLM"), tmp_path / "page")
    assert not (tmp_path / "page").exists()
    assert list((tmp_path / "cache").rglob("*.*")) == []
