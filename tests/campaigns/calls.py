"""Measure memory and time in thousands of calls of each inference method, and call a model from
threads.

    python -m tests.campaigns.calls --calls 2000 --seed 1 [--only classify embed]

Each method runs on texts of mixed lengths, one at a time and in lists. Its answers must not depend
on earlier calls, a later call may cost neither more memory nor more traced functions than an
earlier one of the same shapes, and threads that share the model must get the answers of a single
thread.
"""

import argparse
import gc
import random
import resource
import statistics
import sys
import threading
import time

import keras
import numpy as np

from kerasbert.tokenizers import BertTokenizer
from tests.export import tiny

# Number of passes over the same inputs.
PASSES = 4
# Allowed growth of the process per call in the last pass. Leaking an array per text, or a traced
# function, exceeds it.
BYTES_PER_CALL = 8 << 10
SLACK = 24 << 20
THREADS = 4
WORDS = "it was a good bad film the city ann bob went home by train day night".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ","]


def _task(name, **settings):
    return tiny.task(name, BertTokenizer([*SPECIAL, *WORDS], lowercase=True), **settings)


def _text(draw, most=50):
    return " ".join(draw.choices(WORDS, k=draw.randint(1, most))) + "."


def _texts(draw):
    """Return one text, or a few."""
    if draw.random() < 0.7:
        return _text(draw)
    return [_text(draw) for _ in range(draw.randint(1, 5))]


def _masked(draw):
    return f"{_text(draw, 20)} [MASK] {_text(draw, 20)}"


# For each method: the model, and a function that calls it on drawn texts.
METHODS = {
    "classify": (
        lambda: _task("TextClassifier", labels=["ham", "spam"]),
        lambda model, draw: model.classify(_texts(draw)),
    ),
    "score": (lambda: _task("TextRegressor"), lambda model, draw: model.score(_texts(draw))),
    "tag": (
        lambda: _task("TokenClassifier", labels=["PER", "LOC"], scheme="BIO"),
        lambda model, draw: model.tag(_texts(draw)),
    ),
    "fill_mask": (
        lambda: _task("MaskedLM"),
        lambda model, draw: model.fill_mask(_masked(draw), top_k=3),
    ),
    "answer": (
        lambda: _task("QuestionAnswering"),
        lambda model, draw: model.answer(_text(draw, 6), _text(draw)),
    ),
    "choose": (
        lambda: _task("MultipleChoice"),
        lambda model, draw: model.choose(_text(draw, 9), [_text(draw, 9) for _ in range(2)]),
    ),
    "follows": (
        lambda: _task("NextSentencePredictor"),
        lambda model, draw: model.follows(_text(draw, 15), _text(draw, 15)),
    ),
    "embed": (lambda: _task("TextEmbedder"), lambda model, draw: model.embed(_texts(draw))),
}


def _memory():
    """Return the memory of the process in bytes; its peak if the system reports nothing else."""
    gc.collect()
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _traced():
    """Return the number of functions that TensorFlow holds; 0 without it."""
    if keras.backend.backend() != "tensorflow":
        return 0
    from tensorflow.python.eager import context

    return len(context.context().list_function_names())


def _same(one, other):
    """Return whether two answers are equal, up to rounding that depends on the batch size."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, (float, np.ndarray, np.floating)):
        return np.shape(one) == np.shape(other) and np.allclose(one, other, atol=1e-5)
    return one == other


def run_method(name, calls, seed):
    """Run the calls of a method; return `(figures, failures)`."""
    make, call = METHODS[name]
    model, failures = make(), []
    # Each pass asks the same questions. TensorFlow traces a function for a shape that occurred
    # three times, so the first passes may trace but the last one may not.
    seeds = [f"{seed} {i}" for i in range(max(1, calls // PASSES))]
    passes, times, memory, traced = [], [], [], []
    for _ in range(PASSES):
        answers = []
        for one in seeds:
            draw = random.Random(one)
            began = time.process_time()
            answers.append(call(model, draw))
            times.append(time.process_time() - began)
        passes.append(answers)
        memory.append(_memory())
        traced.append(_traced())
    for number, answers in enumerate(passes[1:], 2):
        if not all(map(_same, passes[0], answers)):
            failures.append(f"{name}: pass {number} answers otherwise than the first")
    grown = memory[-1] - memory[-2]
    if grown > SLACK + BYTES_PER_CALL * len(seeds):
        failures.append(f"{name}: {grown:,} bytes more after {len(seeds)} calls asked before")
    more = traced[-1] - traced[-2]
    if more:
        failures.append(f"{name}: {more} functions traced for shapes seen before")
    failures += _threads(name, model, call, seeds, passes[0])
    parts = (times[: len(seeds)], times[-len(seeds) :])
    early, late = map(statistics.median, parts)
    figures = (
        f"{len(times)} calls, {1000 * early:.1f} ms of the processor a call at first and "
        f"{1000 * late:.1f} later, "
        f"{grown / len(seeds) / 1024:+.1f} KB a call"
    )
    return figures, failures


def _threads(name, model, call, seeds, expected):
    """Call the same model from several threads, each with the inputs in a different order."""
    failures = []

    def ask(number):
        order = list(range(len(seeds)))
        random.Random(number).shuffle(order)
        for i in order[: max(10, len(seeds) // THREADS)]:
            try:
                found = call(model, random.Random(seeds[i]))
            except Exception as error:
                failures.append(f"{name}: in a thread {type(error).__name__}: {error}")
                return
            if not _same(found, expected[i]):
                failures.append(f"{name}: a thread got {found!r}, alone {expected[i]!r}"[:400])
                return

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def run(calls, seed, only=None, say=print):
    """Test all methods; return the failures."""
    failures = []
    for name in only or METHODS:
        figures, failed = run_method(name, calls, seed)
        keras.utils.clear_session()
        say(f"{name}: {figures}, {len(failed)} failures")
        for failure in failed:
            say(f"    {failure}")
        failures += failed
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=METHODS)
    arguments = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)
    print(f"{arguments.calls} calls of each method, seed {arguments.seed}")
    failures = run(arguments.calls, arguments.seed, arguments.only)
    print(f"{len(failures)} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
