"""Presets are loaded while the page is already up."""

import threading
import time

import pytest

from kerasbert import builtin_presets
from kerasbert.play.loaded import DEFAULTS, MOST_WAITING, Loaded
from tests.play import presets

pytestmark = pytest.mark.backends("tensorflow")


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_the_shipped_presets_answer_the_examples_of_their_languages():
    from kerasbert.play import answers
    from kerasbert.play.samples import EXAMPLES

    loaded = Loaded(DEFAULTS)
    loaded.load()
    words = {"en": "letter save", "ko": "단추를 암호를", "ja": "明 刷"}
    expected = {language: iter(some.split()) for language, some in words.items()}
    for example in EXAMPLES["fill"]:
        languages = [state["languages"] for state in loaded.states()]
        place = next(i for i, some in enumerate(languages) if example["language"] in some)
        ask = {"text": example["text"].replace("{mask}", "[MASK]")}
        ((*_, last),) = loaded.use(place, lambda m, a=ask: answers.answer(m, "fill", a))["gaps"]
        assert last[0]["token"] == next(expected[example["language"]]) and last[0]["score"] > 0.3
    english = [one for one in EXAMPLES["search"] if one["language"] == "en"]
    for example in english:
        hits = loaded.use(
            1,
            lambda m, e=example: answers.search(
                m, answers.make_index(m, e["texts"], lambda count: None), e
            ),
        )["hits"]
        assert {hit["text"] for hit in hits[:2]} == set(example["texts"][:2])


def test_presets_come_one_after_the_other(tmp_path):
    (path,) = presets.save(tmp_path, ["deberta"])
    started = []
    loaded = Loaded([path, "no_such_preset", path], lambda: started.append(1))
    assert [state["state"] for state in loaded.states()] == ["waiting", "waiting"]
    with pytest.raises(ValueError, match="deberta' is not loaded: waiting"):
        loaded.use(0, lambda model: model)
    loaded.load()
    good, bad = loaded.states()
    assert good["state"] == "ready" and good["panels"][0] == "classify" and good["seconds"] >= 0
    assert bad["state"] == "failed" and "Unknown preset 'no_such_preset'" in bad["error"]
    assert good["name"] == f"{tmp_path.name}/deberta"
    assert loaded.use(0, lambda model: model.label_names) == ["no", "yes"] and started == [1]
    with pytest.raises(ValueError, match="not loaded: .*no_such_preset"):
        loaded.use(1, lambda model: model)
    for place in (2, -1, True, "0", None):
        with pytest.raises(ValueError, match="There is no model"):
            loaded.use(place, lambda model: model)


@pytest.mark.peers
def test_a_busy_model_refuses_and_the_page_comes_at_once(monkeypatch):
    """The maximum number of requests is served; one more is told to retry."""
    from starlette.testclient import TestClient

    from kerasbert.play import server

    loaded, free, running = Loaded(["one", "two"]), threading.Event(), []
    loaded._models = ["a model", "another"]

    def answer(loaded, path, ask):
        def wait(model):
            running.append(model)
            free.wait(60)
            return {"model": model}

        return loaded.use(ask["model"], wait)

    monkeypatch.setattr(server, "_panel", answer)
    with TestClient(server.application(loaded), base_url="http://localhost") as client:
        found = []

        def ask(model=0):
            found.append(client.post("/api/fill", json={"model": model}))

        threads = [threading.Thread(target=ask) for _ in range(60)]
        for thread in threads:
            thread.start()
        while len(found) < 60 - MOST_WAITING:
            time.sleep(0.01)
        assert {one.status_code for one in found} == {503}
        assert "'one' is busy" in found[0].json()["error"]
        assert int(found[0].headers["retry-after"]) > 0
        began = time.monotonic()
        for path in ("/", "/play.js", "/api/models"):
            assert client.get(path).status_code == 200
        assert time.monotonic() - began < 5
        # Another model has its own queue.
        threads.append(threading.Thread(target=ask, args=(1,)))
        threads[-1].start()
        while "another" not in running:
            time.sleep(0.01)
        free.set()
        for thread in threads:
            thread.join(60)
        assert sum(one.status_code == 200 for one in found) == MOST_WAITING + 1
        ask()
        assert found[-1].json() == {"model": "a model"}


def test_keras_that_does_not_start():
    def start():
        raise ValueError("The backend flux is not installed.")

    loaded = Loaded(["one", "two"], start)
    loaded.load()
    assert [state["error"] for state in loaded.states()] == [
        "The backend flux is not installed."
    ] * 2


def test_an_encoder_by_itself_and_the_defaults(tmp_path):
    backbone = presets.make("masked")
    backbone.backbone.save_to_preset(str(tmp_path))
    backbone.preprocessor.tokenizer.save_to_preset(str(tmp_path))
    loaded = Loaded([str(tmp_path)])
    loaded.load()
    assert loaded.states()[0].get("error") is None
    assert loaded.states()[0]["panels"] == ["similar", "search", "attention", "tokens"]
    assert set(DEFAULTS) <= set(builtin_presets())
