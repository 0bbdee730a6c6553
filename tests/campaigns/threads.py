"""Inference in threads while others load, train and save: no errors, and the same answers.

    python -m tests.campaigns.threads --calls 10000 --loads 50 --seed 1

Three threads call a classifier and a tagger. Meanwhile one thread loads models of several kinds and
formats, one at a time, and another fine-tunes first a separate model, then the classifier that is
being called.
"""

import argparse
import collections
import itertools
import os
import random
import sys
import tempfile
import threading
import time

import keras
import keras_hub

from kerasbert import models
from tests.campaigns import calls as methods

TEXTS = ["a good film", "a bad film", "ann went home by train"] * 10
ASKED = ("classify", "tag")


def sources(folder):
    """Return functions that load a model in different ways, by name."""
    classifier = methods.METHODS["classify"][0]()
    classifier.save_to_preset(os.path.join(folder, "classifier"))
    classifier.save(os.path.join(folder, "model.keras"))
    embedder = methods.METHODS["embed"][0]()
    embedder.save_to_preset(os.path.join(folder, "embedder"))
    theirs = keras_hub.models.BertBackbone(
        vocabulary_size=20, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=8
    )
    keras_hub.models.BertTextClassifier(theirs, num_classes=2).save_to_preset(
        os.path.join(folder, "keras_hub")
    )

    def preset(cls, name, **kwargs):
        return lambda: cls.from_preset(os.path.join(folder, name), **kwargs)

    return {
        "a preset": preset(models.BertTextClassifier, "classifier"),
        "an encoder": preset(models.BertBackbone, "classifier"),
        "a new head": preset(models.BertTextRegressor, "classifier", new_head=True),
        "an embedder": preset(models.BertTextEmbedder, "embedder"),
        "a .keras file": lambda: keras.saving.load_model(os.path.join(folder, "model.keras")),
        "KerasHub's own model": preset(
            keras_hub.models.BertTextClassifier, "keras_hub", preprocessor=None
        ),
    }


def run(calls, loads, seed, say=print):
    """Make at least this number of calls and loads; return the failures with their counts."""
    failures = collections.Counter()
    done = threading.Event()
    answered = []
    asked_models = {name: methods.METHODS[name][0]() for name in ASKED}
    still = methods.METHODS["tag"][1]  # No thread changes the weights of this model.

    def attempt(what, function, *arguments):
        try:
            return function(*arguments)
        except Exception as error:
            failures[f"{what}: {type(error).__name__}: {error}"[:300]] += 1

    def ask(number):
        for i in itertools.count():
            if done.is_set():
                return
            name = ASKED[(number + i) % 2]
            draw = random.Random(f"{seed} {number} {i}")
            attempt(name, methods.METHODS[name][1], asked_models[name], draw)
            answered.append(name)

    with tempfile.TemporaryDirectory() as folder:
        made = sources(folder)
        before = still(asked_models["tag"], random.Random(seed))
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]

        def train():
            for model in (made["a preset"](), asked_models["classify"]):
                attempt("fit", model.fit, TEXTS, [0, 1, 0] * 10)

        threads.append(threading.Thread(target=train))
        began = time.monotonic()
        for thread in threads:
            thread.start()
        try:
            for number, name in zip(range(loads), itertools.cycle(made)):
                attempt(f"loading {name}", made[name])
                if number % 10 == 0:
                    attempt("saving", asked_models["tag"].save_to_preset, f"{folder}/saved")
            threads[-1].join()
            while len(answered) < calls:
                time.sleep(0.05)
        finally:
            done.set()
            for thread in threads:
                thread.join()
        seconds = time.monotonic() - began
        after = still(asked_models["tag"], random.Random(seed))
    if before != after:
        failures["the tagger's answers changed"] += 1
    say(f"{keras.backend.backend()}: {len(answered)} calls beside {loads} loads in {seconds:.0f} s")
    return [f"{count} x {what}" for what, count in failures.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--loads", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    failures = run(arguments.calls, arguments.loads, arguments.seed)
    for failure in failures:
        print(failure)
    print(f"{len(failures)} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
