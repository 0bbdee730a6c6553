"""The playground in a real browser, and the requests that its server rejects.

Playwright drives Debian's Chromium, or another installed one.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from kerasbert.play.samples import EXAMPLES
from tests.play import presets

pytestmark = [pytest.mark.peers, pytest.mark.backends("tensorflow")]

NAMES = ["masked", presets.IMAGE, "tagger", "reader", "embedder", "reranker", "writer", "chooser"]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of a playground that is still loading its presets; the last one is invalid."""
    folder = tmp_path_factory.mktemp("presets")
    presets.save(folder, NAMES)
    command = [sys.executable, "-m", "kerasbert", "play", *NAMES, "no_such_preset", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "HF_HUB_OFFLINE": "1"}
    with open(folder / "log", "w+") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stderr=log, text=True)
        for _ in range(300):
            found = re.search(r"http://127\.0\.0\.1:\d+/", (folder / "log").read_text())
            if found or server.poll() is not None:
                break
            time.sleep(0.1)
        assert found, (folder / "log").read_text()
        yield found[0]
        server.send_signal(signal.SIGINT)
        server.wait(30)
        assert "Traceback" not in (folder / "log").read_text()


@contextlib.contextmanager
def tab(browser, address, language="en-US", **settings):
    """A separate page that contacts no other host, has no errors and runs no script from a text."""
    context = browser.new_context(locale=language, **settings)
    page = context.new_page()
    asked, broken = [], []

    def note(text):
        if "Content Security Policy" in text:
            broken.append(text)

    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.on("console", lambda message: note(message.text))
    page.goto(address)
    yield page
    assert not broken and page.evaluate("window.boom") is None
    assert page.locator("img, main script").count() == 0
    assert [url for url in asked if not url.startswith((address, "data:"))] == []
    context.close()


def _spoken(route, place, languages):
    """Answer with all models in English, but one."""
    found = route.fetch().json()
    for model in found["models"]:
        model["languages"] = ["en"]
    found["models"][place]["languages"] = languages
    route.fulfill(json=found)


def choose(page, model, panel):
    page.locator("#models button", has_text=model).first.click(timeout=60_000)
    page.click(f"[data-panel={panel}]")


def fill(page, **texts):
    for name, text in texts.items():
        page.fill(f"textarea[name={name}]", text)
    page.click("button.go")


def test_it_says_what_it_loads_and_how_far_it_is(address, browser):
    began = time.monotonic()
    with tab(browser, address) as page:
        page.wait_for_selector("#models button")
        painted = time.monotonic() - began
        text = page.inner_text("#loading")
        assert re.search(r"\d of 9 models are loaded", text)
        page.wait_for_selector("#models .ready", timeout=90_000)
        choose(page, "masked", "fill")
        fill(page, text="the [MASK] is old")
        page.wait_for_selector("#result .bars", timeout=60_000)
        answered = time.monotonic() - began
        page.wait_for_selector("#models .failed", timeout=60_000)
        assert "8 of 9" in page.inner_text("#loading")
        assert "Unknown preset 'no_such_preset'" in page.inner_text("#models .failed")
    print(f"\nfirst paint {painted:.2f} s, first answer {answered:.2f} s")
    assert painted < 5


def test_it_opens_with_the_language_of_the_browser(address, browser):
    with tab(browser, address, "ko-KR") as page:
        page.route("**/api/models", lambda route: _spoken(route, 4, ["ko", "ja"]))
        page.reload()
        page.wait_for_selector("textarea", timeout=90_000)
        assert "embedder" in page.inner_text("#models [aria-checked=true]")
        assert page.input_value("textarea").startswith(EXAMPLES["similar"][1]["texts"][0])
        page.select_option("#language", "ja")
        assert page.input_value("textarea").startswith(EXAMPLES["similar"][2]["texts"][0])


def test_keys_move_the_focus_and_it_stays(address, browser):
    focus = "document.activeElement.dataset.key"
    with tab(browser, address) as page:
        choose(page, "masked", "attention")
        page.focus("#panels [aria-selected=true]")
        page.keyboard.press("ArrowLeft")
        assert page.evaluate(focus) == "fill"
        page.fill("textarea[name=text]", "the [MASK] is old")
        page.focus("button.go")
        page.keyboard.press("Enter")
        page.wait_for_selector("#result .bars")
        assert page.evaluate("document.activeElement.className") == "go"
        values = page.locator("#result .value").all_inner_texts()
        widths = page.locator("#result .fill").evaluate_all("all => all.map(x => x.style.width)")
        assert [float(x[:-1]) for x in widths] == pytest.approx(
            [float(x[:-1]) for x in values], abs=0.6
        )
        page.focus("#result .table button >> nth=2")
        page.keyboard.press("Enter")
        assert page.evaluate(focus) == "row 2" and page.input_value("#layer") == "2"


def test_type_and_slide(address, browser):
    with tab(browser, address) as page:
        choose(page, "masked", "fill")
        fill(page, text="the <b>[MASK]</b> is old [MASK]")
        page.wait_for_selector("#result .bars >> nth=1")
        assert page.locator("#result .bars .name").count() == 16
        assert page.inner_text("#layer-name") == "Layer 4 of 4"
        last = page.inner_text("#result .bars >> nth=0")
        page.fill("#layer", "0")
        assert page.inner_text("#layer-name") == "Before the first layer"
        assert page.inner_text("#result .bars >> nth=0") != last
        page.click("#result .table tr >> nth=1")
        assert page.inner_text("#result .bars >> nth=0") == last
        page.fill("textarea[name=text]", "no mask")
        page.keyboard.press("Enter")
        page.wait_for_selector("[role=alert]")
        assert "has no [MASK]" in page.inner_text("[role=alert]")


def test_classes_and_words(address, browser):
    with tab(browser, address) as page:
        choose(page, presets.IMAGE, "classify")
        assert presets.IMAGE in page.inner_text("#models")
        fill(page, text="good " + presets.SCRIPT + " 서울 film")
        page.wait_for_selector("#result .marked mark")
        names = page.locator("#result .bars").first.locator("button.name")
        assert names.all_inner_texts() == [presets.SCRIPT, "good & bad"]
        assert presets.SCRIPT in page.inner_text("#result .marked")
        # The mark must not be shifted by characters of two UTF-16 units.
        assert page.locator("#result mark", has_text="서울").count() == 1
        assert re.search(r"Error \de-\d", page.inner_text("#sum"))
        pressed = [name.get_attribute("aria-pressed") for name in names.all()]
        other = names.nth(pressed.index("false"))
        other.click()
        page.locator("#result h2", has_text=other.inner_text()).wait_for()
        page.select_option("select[name=method]", "attention_rollout")
        page.click("button.go")
        page.wait_for_selector("#sum", state="detached")


def test_attention_on_hover(address, browser):
    with tab(browser, address) as page:
        choose(page, "masked", "attention")
        fill(page, text="the film is old")
        page.wait_for_selector("svg.attention")
        shown = "svg .line:not([stroke-opacity='0'])"
        everything = page.locator(shown).count()
        page.hover("svg .token[data-side='0'][data-place='2']")
        assert 0 < page.locator(shown).count() < everything
        assert set(page.eval_on_selector_all(shown, "lines => lines.map(x => x.dataset.from)")) == {
            "2"
        }
        assert "%" in page.locator("svg .token[data-side='1'] title").nth(0).text_content()
        page.hover("h1")
        assert page.locator(shown).count() == everything
        page.locator("#heads button").nth(2).click()
        assert page.locator("#heads button[aria-pressed=true]").inner_text() == "2"


def test_the_other_panels(address, browser):
    with tab(browser, address) as page:
        choose(page, "tagger", "tag")
        fill(page, text="Ann lives in <i>Rome</i>, 東京 서울")
        page.wait_for_selector("#result .marked, #result .note")
        choose(page, "reader", "answer")
        fill(page, text="where is ann?", text_b="ann lives in rome. " * 3)
        page.wait_for_selector("#result .marked mark")
        assert page.locator("#result .bars .name").count() == 3
        choose(page, "chooser", "choose")
        fill(page, text="the film", texts="is good\nis <b>bad</b>")
        page.wait_for_selector("#result .bars")
        assert "is <b>bad</b>" in page.inner_text("#result .bars")
        choose(page, "writer", "write")
        fill(page, text="the film")
        page.wait_for_selector("#result mark", state="attached")  # The answer may be empty.
        choose(page, "embedder", "similar")
        fill(page, texts="the film\nan old <b>play</b>\nann lives in rome")
        page.wait_for_selector("svg.map")
        page.hover("svg .point >> nth=0")
        name = page.locator("svg .name").nth(1).text_content()
        assert re.fullmatch(r"an old <b>play</b> -?[01]\.\d\d", name)
        choose(page, "reader", "tokens")
        fill(page, text="Ann played 東京")
        page.wait_for_selector(".pieces")
        assert page.locator(".pieces").count() == 8  # Every loaded model shows its tokens.
        assert page.locator(".pieces").first.locator("span").all_inner_texts() == (
            ["Ann", "play", "ed", "東", "京"]
        )


def test_upload_and_search(address, browser, tmp_path):
    texts = [f"ann lives in w{i % 4}" for i in range(60)] + ["서울은 <script>good</script>"]
    with tab(browser, address, "ko-KR") as page:
        choose(page, "embedder", "search")
        path = tmp_path / "list.txt"
        # Korean Windows writes text in this encoding.
        path.write_bytes("\n".join(texts).encode("cp949"))
        page.set_input_files("input[type=file]", path)
        page.wait_for_selector("#result .note", timeout=60_000)
        assert "61" in page.inner_text("#result .note")
        fill(page, text=texts[-1])
        page.wait_for_selector("ol.hits li")
        assert texts[-1] in page.inner_text("ol.hits li >> nth=0")
        (tmp_path / "picture.txt").write_bytes(b"\x89PNG\0\xff\xfe")
        page.set_input_files("input[type=file]", tmp_path / "picture.txt")
        page.wait_for_selector("[role=alert]")
        assert "UTF-8" in page.inner_text("[role=alert]")
        (tmp_path / "long.txt").write_text("word\n" * 2001)
        page.set_input_files("input[type=file]", tmp_path / "long.txt")
        page.locator("[role=alert]", has_text="2,001").wait_for()


def test_languages_phones_and_two_tabs_at_once(address, browser):
    phone = {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark", "has_touch": True}
    with tab(browser, address, "ja-JP", **phone) as one, tab(browser, address, "ko-KR") as two:
        choose(one, presets.IMAGE, "classify")
        choose(two, presets.IMAGE, "classify")
        assert one.inner_text("[data-panel=classify]") == "分類"
        assert two.inner_text("[data-panel=classify]") == "분류"
        assert one.get_attribute("html", "lang") == "ja"
        # Both at once: neither gets the other's answers.
        one.fill("textarea[name=text]", "good film")
        two.fill("textarea[name=text]", "bad old play in rome")
        one.click("button.go")
        two.click("button.go")
        one.wait_for_selector("#result mark")
        two.wait_for_selector("#result mark")
        assert one.locator("#result mark").all_inner_texts() == ["good", "film"]
        assert two.locator("#result mark").count() == 5
        assert one.evaluate("document.documentElement.scrollWidth") <= 360
        two.select_option("#language", "en")
        assert two.inner_text("[data-panel=classify]") == "Classify"
        assert two.input_value("textarea[name=text]") == "bad old play in rome"


def post(address, path, body, **headers):
    """Return status and content of a request that browsers do not make."""
    host = address.removeprefix("http://").rstrip("/")
    connection = http.client.HTTPConnection(host, timeout=60)
    headers = {"Host": host, "Content-Type": "application/json"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    return response.status, response.read().decode()


def test_what_the_server_refuses(address):
    ask = json.dumps({"model": 99, "text": "a"})
    for status, words, (path, body, headers) in (
        (400, "Invalid host", ("/api/fill", ask, {"Host": "evil.example"})),
        (403, "another site", ("/api/fill", ask, {"Origin": "http://evil.example"})),
        (403, "another site", ("/api/fill", ask, {"Origin": "null"})),
        (415, "must be JSON", ("/api/fill", ask, {"Content_Type": "text/plain"})),
        (400, "a JSON object", ("/api/fill", "[" * 100_000, {})),
        (400, "a JSON object", ("/api/fill", b"\xff\xfe", {})),
        (400, "There is no model 99", ("/api/fill", ask, {})),
        (400, "There is no model", ("/api/fill", "{}", {})),
        (400, "index must be a name", ("/api/index", '{"index": 7}', {})),
        (400, "build it again", ("/api/search", '{"index": "x"}', {})),
        (400, "build it again", ("/api/search", '{"index": []}', {})),
    ):
        found = post(address, path, body, **headers)
        assert found[0] == status and words in found[1], found
    status, _ = post(address, "/api/fill", json.dumps({"text": "a" * 2_100_000}))
    assert status == 413
    assert post(address, "/api/nonsense", ask)[0] == 400
    assert post(address, "/", ask)[0] == 405


def test_it_listens_to_this_machine_alone(address):
    port = int(address.rsplit(":", 1)[1].rstrip("/"))
    with open("/proc/net/tcp") as table:
        rows = [line.split()[1:4] for line in table][1:]
    places = [local.split(":") for local, _, state in rows if state == "0A"]
    listening = [host for host, its in places if int(its, 16) == port]
    assert listening == ["0100007F"]
    command = [sys.executable, "-m", "kerasbert", "play", "--port", str(port)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=os.getcwd())
    assert done.returncode == 2 and f"Port {port} is in use" in done.stderr


def test_shared_folder(browser, tmp_path):
    """The folder is a static page, which needs no server and no network."""
    presets.save(tmp_path, [presets.IMAGE, "embedder"])
    command = [sys.executable, "-m", "kerasbert", "play", presets.IMAGE, "embedder"]
    command += ["--share-folder", "site", "--text", "good film & " + presets.SCRIPT]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "A page -> site" in done.stdout
    context = browser.new_context()
    page = context.new_page()
    broken = []
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.goto(f"file://{tmp_path}/site/index.html")
    page.wait_for_selector("#result .marked mark")
    assert "film" in page.inner_text("#result .marked")
    for panel in ("attention", "tokens"):
        page.click(f"[data-panel={panel}]")
        page.wait_for_selector("#result svg, #result .pieces")
    page.locator("#models button").nth(1).click()
    for panel, shown in (("similar", "svg.map"), ("search", "ol.hits li")):
        page.click(f"[data-panel={panel}]")
        page.wait_for_selector(shown)
    assert not broken and page.evaluate("window.boom") is None
    context.close()
