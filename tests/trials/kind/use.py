"""Typical uses of a model with the toy kind of head; see `test_trials.py`.

python use.py FOLDER
"""

import json
import os
import sys
import warnings

import numpy as np

import kerasbert
from kerasbert.play.answers import answer, describe
from kerasbert.upload import write_card

PRESET = "bert_tiny_demo_en_uncased"
WORDS = "one two three four five six".split()


def examples(size, seed):
    """Return texts with some of six words, and their number of these."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 7, size)
    return [" ".join(rng.permutation(WORDS)[:n]) for n in counts], counts


def main(folder):
    os.makedirs(folder)
    warnings.simplefilter("ignore")  # Of new weights.
    texts, counts = examples(96, 0)
    cls = kerasbert.models.BertTextCounter
    model = cls.from_preset(PRESET, new_head=True, dropout=0.0)
    model.optimizer.learning_rate = 1e-3
    model.fit(texts, counts, batch_size=16, epochs=6, verbose=0)
    found = model.count(texts)
    assert np.abs(found - counts).mean() < 0.8 * np.abs(counts - counts.mean()).mean()
    assert isinstance(model.count("one two"), float)
    print("fit, count: the mean error is", np.abs(found - counts).mean())

    shares = kerasbert.visualize.attributions(model, "one two", steps=8)
    assert len(shares.scores) == 2 and np.isfinite(shares.scores).all()
    assert "classify" in describe(model)["panels"]
    shown = answer(model, "classify", {"text": "one two", "steps": 8})
    assert shown["one"] and abs(shown["classes"][0]["score"] - model.count("one two")) < 1e-4
    print("attributions and the playground:", shown["classes"])

    saved = os.path.join(folder, "saved")
    model.save_to_preset(saved)
    np.testing.assert_allclose(cls.from_preset(saved).count(texts), found, rtol=1e-5)
    for format in ("kerasbert", "huggingface"):
        target = os.path.join(folder, format)
        done = kerasbert.convert(model, target, format)
        again = cls.from_preset(target)
        np.testing.assert_allclose(again.count(texts), found, rtol=1e-4)
        print("convert:", done["model"], "->", done["written"])
    write_card(saved, "hf://somebody/counter", {})
    with open(os.path.join(saved, "README.md"), encoding="utf-8") as file:
        assert 'model.count(["A text.", "Another one."])' in file.read()

    # The export compared its answers with the model's before it was renamed into place.
    served = kerasbert.export_serving(model, os.path.join(folder, "served"))
    with open(os.path.join(served, "assets.extra", "card.json"), encoding="utf-8") as file:
        card = json.load(file)
    assert list(card["signatures"]["serving_default"]["outputs"]) == ["count"], card
    print("export_serving:", sorted(card["signatures"]))

    for name, rows in (("train", examples(64, 1)), ("dev", examples(24, 2))):
        with open(os.path.join(folder, f"{name}.csv"), "w", encoding="utf-8") as file:
            file.write("text,label\n")
            file.writelines(f"{text},{count}\n" for text, count in zip(*rows))
    files = {name: os.path.join(folder, f"{name}.csv") for name in ("train", "dev")}
    task = kerasbert.tasks.file_task(**files, head="text_counter")
    results = kerasbert.finetune(
        task, PRESET, os.path.join(folder, "runs"), learning_rates=1e-3, epochs=2, verbose=False
    )
    print("finetune:", results["metric"], results["scores"])
    again = kerasbert.evaluate(results["model"], files["dev"], verbose=False)
    assert again["scores"] == results["scores"], (again["scores"], results["scores"])
    rows = kerasbert.predict(results["model"], files["dev"], verbose=False)["predictions"]
    assert len(rows) == 24


if __name__ == "__main__":
    main(sys.argv[1])
