"""The playground as a static folder: its page with precomputed answers."""

import os
import shutil

from kerasbert.base.files import new_folder, output_folder
from kerasbert.base.strict_json import to_json
from kerasbert.play import answers
from kerasbert.play.errors import refusal
from kerasbert.play.samples import EXAMPLES

_PAGE = os.path.join(os.path.dirname(__file__), "page")


def share_folder(loaded, target, texts=None, note=print):
    """Write a page that needs no server and no model, for a static host or the local disk.

    Args:
        loaded: a `Loaded` that has loaded its presets.
        target: string. Output folder; files of the same name are replaced, others are kept.
        texts: list of strings. They replace the single texts of the examples.
        note: function of a line that describes the progress.

    Raises:
        ValueError: if no preset could be loaded.
    """
    states = loaded.states()
    ready = [place for place, state in enumerate(states) if state["state"] == "ready"]
    if not ready:
        raise ValueError(f"No model could be loaded: {states[0].get('error', 'no preset given')}")
    examples, saved = _examples(texts), {}
    for place in ready:
        note(f"{states[place]['name']}: saving answers")
        for name, ask in _requests(place, states[place], examples):
            saved[_key(name, ask)] = loaded.use(place, lambda m, n=name, a=ask: _answer(m, n, a))
    content = {
        "models": states,
        "examples": examples,
        "most": {"bytes": 0},
        "answers": saved,
    }
    text = to_json(content, ensure_ascii=False, separators=(",", ":"))
    with new_folder(output_folder(target, "target"), keep=True, by="play") as folder:
        shutil.copytree(_PAGE, folder, dirs_exist_ok=True)
        with open(os.path.join(folder, "answers.js"), "w", encoding="utf-8") as file:
            file.write(f"window.SHARED = {text};\n")
        path = os.path.join(folder, "index.html")
        with open(path, encoding="utf-8") as file:
            page = file.read()
        script = '<script src="play.js" defer></script>'
        assert script in page
        with open(path, "w", encoding="utf-8") as file:
            file.write(page.replace(script, f'<script src="answers.js" defer></script>\n{script}'))


def _examples(texts):
    if not texts:
        return EXAMPLES
    own = [{"language": "", "text": text} for text in texts]
    single = ("fill", "classify", "tag", "write", "attention", "tokens")
    return {**EXAMPLES, **dict.fromkeys(single, own)}


def _requests(place, state, examples):
    """Yield the requests that the page can make for a model: pairs of a panel and a dict."""
    for panel in state["panels"]:
        name = "answer" if panel == "classify" and state["pair"] else panel
        for example in examples[name]:
            if not _reads(state["languages"], example["language"]):
                continue
            ask = {"model": place}
            for field in ("text", "text_b", "texts"):
                if field in example:
                    ask[field] = example[field]
            if "text" in ask:
                ask["text"] = ask["text"].replace("{mask}", state["mask"])
            layers = range(state["layers"]) if panel == "attention" else [None]
            for layer in layers:
                yield panel, ask if layer is None else {**ask, "layer": layer}


def _reads(languages, language):
    """Return whether a model reads a language, like `reads` in play.js; if unknown, yes."""
    return not languages or not language or language in languages or "mul" in languages


def _answer(model, panel, ask):
    try:
        if panel == "search":
            index = answers.make_index(model, ask["texts"], lambda count: None)
            return answers.search(model, index, ask)
        return answers.answer(model, panel, ask)
    except ValueError as error:
        return {"refused": refusal(error)}


def _key(panel, ask):
    """Return the key of a request, like `keyOf` in play.js."""
    found = [panel, *([name, ask[name]] for name in sorted(ask))]
    return to_json(found, ensure_ascii=False, separators=(",", ":"))
