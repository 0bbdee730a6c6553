"""Kill each command that writes at random moments, and check the result.

    python -m tests.campaigns.kills --kills 20 --seed 1 [--only vocab convert_huggingface]

After each kill, no partial output may have a final name: the output is complete, either old or new,
and loads. Then the same command runs again, must succeed, and must leave nothing behind. A resumed
training must end with exactly the weights of an uninterrupted one. Half of the kills come at a
random time, half between two file system operations.

Each run is a separate process, forked from one that has imported everything and used nothing yet.
"""

import argparse
import collections
import contextlib
import glob
import gzip
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback

STEPS = ("rename", "replace", "mkdir", "unlink", "rmdir", "link")
WORDS = "it was a film the city ann and bob went home by train good bad day night".split()
TINY = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 16}


# === Commands: their inputs, their action, and the expected result ===


class Command:
    """A command that makes `output` in an empty folder, from source files that are made
    only once.
    """

    has_old = True  # Whether the command replaces an existing output.

    def __init__(self, sources):
        self.sources = sources

    def old(self, output):
        """Make the output that the command replaces."""

    def run(self, output):
        raise NotImplementedError

    def state(self, output):
        """Return the state of the output: "none", "old", "new", "begun", or "inside" a training.

        If the output is partial, raise an error.
        """
        raise NotImplementedError

    def bits(self, output):
        """Return, as values for JSON, the results that must be the same as those of an
        uninterrupted command.
        """


class Vocab(Command):
    def old(self, output):
        import kerasbert

        kerasbert.vocab(self.sources + "/text.txt", output, size=90, unused=0, lowercase=False)
        with open(output + "/mine.txt", "w") as file:
            file.write("mine")

    def run(self, output):
        import kerasbert

        kerasbert.vocab(self.sources + "/text.txt", output, size=120, unused=2, overwrite=True)

    def state(self, output):
        from kerasbert.tokenizers import BertTokenizer

        tokenizer = BertTokenizer.from_files(output)
        assert read(output + "/mine.txt") == b"mine"
        found = (tokenizer.lowercase, "[unused0]" in tokenizer.get_vocabulary())
        return {(False, False): "old", (True, True): "new"}[found]


class SavePreset(Command):
    def old(self, output):
        model(1).save_to_preset(output)
        with open(output + "/mine.txt", "w") as file:
            file.write("mine")

    def run(self, output):
        model(2).save_to_preset(output)

    def state(self, output):
        assert read(output + "/mine.txt") == b"mine"
        return mark(output)


class Convert(Command):
    format = "huggingface"

    def old(self, output):
        import kerasbert

        kerasbert.convert(self.sources + "/preset1", output, format=self.format)

    def run(self, output):
        import kerasbert

        kerasbert.convert(self.sources + "/preset2", output, format=self.format, overwrite=True)

    def state(self, output):
        return mark(output)


class ConvertToGoogle(Convert):
    format = "google"

    def old(self, output):
        import kerasbert

        encoder = self.sources + "/preset1"
        kerasbert.convert(encoder, output, format=self.format, task="encoder")

    def run(self, output):
        import kerasbert

        kerasbert.convert(
            self.sources + "/preset2", output, format="google", task="encoder", overwrite=True
        )

    def state(self, output):
        return mark(output, "BertBackbone")


class ConvertToKerasHub(Convert):
    format = "keras_hub"


class ConvertToOurs(Convert):
    format = "kerasbert"


class WriteExamples(Command):
    has_old = False

    def run(self, output):
        from kerasbert.data import write_examples

        write_examples(
            self.sources + "/text.txt",
            output,
            tokenizer(),
            sequence_length=16,
            block_bytes=2000,
            blocks_per_shard=1,
            workers=1,
        )

    def state(self, output):
        from kerasbert.data.manifest import check_shards, read_manifest

        for name in shown(output):
            if name.endswith(".gz"):
                gzip.decompress(read(os.path.join(output, name)))
        manifest = read_manifest(output)
        if manifest is None:
            return "begun"
        check_shards(output, manifest["shards"])
        return "new" if manifest["complete"] else "begun"


class Deduplicate(Command):
    has_old = False

    def run(self, output):
        from kerasbert.data import deduplicate

        deduplicate(self.sources + "/texts", output)

    def state(self, output):
        """Return "new" for all three files and "none" for no file; the next command would read a
        part of them as a corpus.
        """
        from kerasbert.data import documents

        if not shown(output):
            return "none"
        assert sorted(shown(output)) == ["a.txt", "b.txt", "c.txt"]
        assert json.loads(read(output + "/.duplicates.json"))["complete"]
        assert len(list(documents(output))) == 3
        return "new"


class Pretrain(Command):
    has_old = False

    def run(self, output):
        import kerasbert

        kerasbert.pretrain(
            self.sources + "/text.txt",
            output,
            vocabulary_size=150,
            phases=[(16, 8, 4)],
            log_every=2,
            checkpoint_every=2,
            held_out=0,
            workers=1,
            verbose=False,
            **TINY,
        )

    def state(self, output):
        from kerasbert.models import BertPretrainer
        from kerasbert.training.resuming import checkpoint_facts, find_checkpoint

        every_json(output)
        newest = find_checkpoint(output)
        if newest:
            checkpoint_facts(newest)
        if not os.path.exists(output + "/preset"):
            return "begun"
        BertPretrainer.from_preset(output + "/preset")
        read(output + "/preset/README.md")
        return "new"

    def bits(self, output):
        from kerasbert.models import BertPretrainer

        return digest_of(BertPretrainer.from_preset(output + "/preset").weights)


class Finetune(Command):
    has_old = False

    def run(self, output):
        import kerasbert
        from kerasbert.tasks import Settings, file_task

        task = file_task(
            train=self.sources + "/train.csv",
            dev=self.sources + "/dev.csv",
            settings=Settings((8,), (1e-2, 1e-3), (4,), sequence_length=16),
        )
        kerasbert.finetune(task, self.sources + "/preset1", output, verbose=False)

    def state(self, output):
        from kerasbert.models import BertTextClassifier

        every_json(output)
        if os.path.exists(output + "/model"):
            BertTextClassifier.from_preset(output + "/model")
        if os.path.exists(output + "/results.json"):
            return "new"
        return inside_or_begun(output)

    def bits(self, output):
        from kerasbert.models import BertTextClassifier

        found = json.loads(read(output + "/results.json"))
        kept = ("epoch", "loss", "losses", "scores")
        runs = [[{x: row[x] for x in kept} for row in run["history"]] for run in found["runs"]]
        model = BertTextClassifier.from_preset(output + "/model")
        return [digest_of(model.weights), found["scores"], runs]


class Advise(Command):
    has_old = False

    def run(self, output):
        import kerasbert

        kerasbert.advise(
            self.sources + "/train.csv",
            self.sources + "/preset1",
            output,
            arms=["frozen", "setfit", "lora", "full"],
            folds=2,
            shares=1,
            epochs=4,
            sequence_length=16,
            verbose=False,
        )

    def state(self, output):
        every_json(output)
        if os.path.exists(output + "/advice.json"):
            return "new"
        return inside_or_begun(output)

    def bits(self, output):
        import numpy as np

        found = json.loads(read(output + "/advice.json"))
        scores = {x: [arm["accuracy"], arm["calibration"]] for x, arm in found["arms"].items()}
        rows = {}
        for name in sorted(os.listdir(output + "/runs")):
            rows[name] = digest_of([np.load(f"{output}/runs/{name}")["rows"]])
        return [scores, rows, found["check_labels"]]


class Export(Command):
    has_old = False
    call, files = "export_onnx", ("model.onnx", "tokenizer.json", "config.json")
    settings = {}

    def run(self, output):
        import kerasbert.export

        was_whole = bool(shown(output))
        try:
            getattr(kerasbert.export, self.call)(model(2), output, **self.settings)
        except ValueError:
            if not was_whole:
                raise  # Only a complete output may be refused.

    def state(self, output):
        if not os.path.exists(output):
            return "none"
        for name in self.files:
            assert os.path.getsize(os.path.join(output, name)), name
        return "new"


class ExportOpenvino(Export):
    call, files = "export_openvino", ("model.xml", "model.bin", "tokenizer.json")


class ExportLitert(Export):
    call, files = "export_litert", ("model.tflite", "tokenizer.json")


class ExportServing(Export):
    call = "export_serving"
    files = ("1/saved_model.pb", "1/variables/variables.index", "1/assets.extra/card.json")
    settings = {"version": 1}  # A fixed version; the default is the next free number.


COMMANDS = {
    "vocab": Vocab,
    "save_to_preset": SavePreset,
    "convert_huggingface": Convert,
    "convert_google": ConvertToGoogle,
    "convert_keras_hub": ConvertToKerasHub,
    "convert_kerasbert": ConvertToOurs,
    "write_examples": WriteExamples,
    "deduplicate": Deduplicate,
    "pretrain": Pretrain,
    "finetune": Finetune,
    "advise": Advise,
    "export_serving": ExportServing,
    "export_litert": ExportLitert,
    "export_onnx": Export,
    "export_openvino": ExportOpenvino,
}


def read(path):
    with open(path, "rb") as file:
        return file.read()


def shown(folder):
    return [n for n in os.listdir(folder) if n[0] != "."] if os.path.isdir(folder) else []


def digest_of(arrays):
    import keras

    found = hashlib.sha256()
    for array in arrays:
        found.update(keras.ops.convert_to_numpy(array).tobytes())
    return found.hexdigest()


def inside_or_begun(output):
    """Return whether one of the trainings was interrupted, or none has begun."""
    found = glob.glob(output + "/runs/*/checkpoint-*.safetensors")
    return "inside" if found else "begun"


def every_json(folder):
    for path, _, names in os.walk(folder):
        for name in names if ".kerasbert-" not in path else ():
            if name.endswith(".json"):
                json.loads(read(os.path.join(path, name)))


def tokenizer():
    from kerasbert.tokenizers import BertTokenizer

    return BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "."])


def model(number):
    """Make a classifier whose weights are within 20 % of `number / 100`.

    If all weights were equal, the norms would divide rounding errors by a deviation of 0.
    """
    import numpy as np

    from kerasbert.models import (
        BertBackbone,
        BertTextClassifier,
        BertTextClassifierPreprocessor,
    )

    encoder = BertBackbone(
        vocabulary_size=tokenizer().vocabulary_size(), max_sequence_length=32, **TINY
    )
    preprocessor = BertTextClassifierPreprocessor(tokenizer(), sequence_length=16)
    made = BertTextClassifier(encoder, preprocessor=preprocessor, labels=["no", "yes"])
    rng = np.random.default_rng(0)
    for weight in made.weights:
        weight.assign(number / 100 * rng.uniform(0.8, 1.2, weight.shape))
    return made


def mark(folder, cls="BertTextClassifier"):
    """Return whether all weights of a checkpoint are those of `model(1)`, or all are those of
    `model(2)`.
    """
    import numpy as np

    from kerasbert import models

    loaded = getattr(models, cls).from_preset(folder)
    marks = {round(float(x) * 100) for w in loaded.weights for x in np.ravel(w.value)}
    return {(1,): "old", (2,): "new"}[tuple(marks)]


def make_sources(folder):
    rng = random.Random(0)
    lines = []
    for _ in range(40):
        for _ in range(6):
            lines.append(" ".join(rng.choices(WORDS, k=8)) + ".")
        lines.append("")
    with open(folder + "/text.txt", "w") as file:
        file.write("\n".join(lines))
    os.mkdir(folder + "/texts")
    for number, name in enumerate("abcd"):
        # The fourth file has the content of the first.
        with open(f"{folder}/texts/{name}.txt", "w") as file:
            file.write("\n".join(lines[number % 3 * 50 :][:50]))
    for name, count in (("train", 32), ("dev", 8)):
        with open(f"{folder}/{name}.csv", "w") as file:
            file.write("text,label\n")
            for _ in range(count):
                label = rng.choice(["no", "yes"])
                file.write(f"{' '.join(rng.choices(WORDS, k=5))} {label},{label}\n")
    for number in (1, 2):
        model(number).save_to_preset(f"{folder}/preset{number}")


# === Processes ===


def forked(log, action, *arguments):
    """Start `action` in a forked process with its own group; return its process id."""
    child = os.fork()
    if child:
        return child
    try:
        os.setpgid(0, 0)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        action(*arguments)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def done(log, action, *arguments):
    """Run `action` in a forked process, and return its result by JSON."""

    def write():
        result = action(*arguments)
        with open(log + ".result", "w") as file:
            json.dump(result, file)

    code = os.waitstatus_to_exitcode(os.waitpid(forked(log, write), 0)[1])
    if code:
        raise AssertionError(f"exit status {code}: {read(log).decode(errors='replace')[-3000:]}")
    return json.loads(read(log + ".result"))


def counted(command, output, limit=None):
    """Run a command that is killed before a step; return the number of steps."""
    from kerasbert.base import system

    count = 0

    def step(call):
        def run(*args, **named):
            nonlocal count
            if count == limit:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            return call(*args, **named)

        return run

    for name in STEPS:
        setattr(os, name, step(getattr(os, name)))
    system.exchange = step(system.exchange)
    command.run(output)
    return count


def hidden_below(folder):
    return [
        os.path.join(path, name)
        for path, folders, names in os.walk(folder)
        for name in (*folders, *names)
        if name.startswith(".kerasbert")
    ]


class Campaign:
    def __init__(self, sources, place, seed):
        self.sources, self.place = sources, place
        self.random = random.Random(seed)
        self.log = os.path.join(place, "log")
        self.states = collections.Counter()

    def one(self, name, kills):
        """Kill a command several times; each time, it starts from the beginning."""
        command = COMMANDS[name](self.sources)
        old = os.path.join(self.place, "old")
        if command.has_old:
            done(self.log, command.old, old)

        def fresh():
            shutil.rmtree(os.path.join(self.place, "there"), ignore_errors=True)
            output = os.path.join(self.place, "there", "output")
            os.mkdir(os.path.dirname(output))
            if command.has_old:
                shutil.copytree(old, output)
            return output

        output = fresh()
        start = time.monotonic()
        steps = done(self.log, counted, command, output)
        seconds = time.monotonic() - start
        assert done(self.log, command.state, output) == "new"
        bits = done(self.log, command.bits, output)
        for number in range(kills):
            output = fresh()
            if number % 2:
                moment = self.random.randrange(steps)
                said = f"{name}, killed before step {moment} of {steps}"
                child = forked(self.log, counted, command, output, moment)
            else:
                moment = self.random.uniform(0, seconds)
                said = f"{name}, killed after {moment:.2f} s"
                child = forked(self.log, command.run, output)
                time.sleep(moment)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            try:
                self.states[name, self.after(command, output, bits)] += 1
            except BaseException as error:
                raise AssertionError(f"{said}: {error}") from error
        shutil.rmtree(old, ignore_errors=True)
        return seconds, steps

    def after(self, command, output, bits):
        """Return the state after a kill; the same command must then finish with the same result."""
        state = "none"
        if os.path.exists(output):
            state = done(self.log, command.state, output)
        assert state in (
            ("old", "new") if command.has_old else ("none", "begun", "inside", "new")
        ), state
        done(self.log, command.run, output)
        assert done(self.log, command.state, output) == "new"
        assert done(self.log, command.bits, output) == bits
        assert not hidden_below(os.path.dirname(output)), hidden_below(os.path.dirname(output))
        assert os.listdir(os.path.dirname(output)) == ["output"]
        return state


@contextlib.contextmanager
def campaign(seed):
    """Make a `Campaign` and its sources."""
    # These imports load all that commands need before any fork; the names are not used here.
    from kerasbert.base import host  # noqa: F401

    # isort: split
    import tensorflow_text  # noqa: F401

    import kerasbert.export
    import kerasbert.tasks  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        sources, place = os.path.join(folder, "sources"), os.path.join(folder, "place")
        os.mkdir(sources)
        os.mkdir(place)
        done(os.path.join(place, "log"), make_sources, sources)
        yield Campaign(sources, place, seed)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=10, help="of each command")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    parser.add_argument("--only", nargs="*", default=list(COMMANDS), choices=list(COMMANDS))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {arguments.kills} kills of each command", flush=True)
    failed = 0
    with campaign(arguments.seed) as runs:
        for name in arguments.only:
            # One generator per command, so that a single command draws the same numbers.
            digest = hashlib.sha256(f"{arguments.seed} {name}".encode()).digest()
            runs.random = random.Random(digest)
            try:
                seconds, steps = runs.one(name, arguments.kills)
            except AssertionError as error:
                failed += 1
                print(f"{name}: FAILED: {error}", flush=True)
                continue
            found = {state: n for (one, state), n in sorted(runs.states.items()) if one == name}
            print(f"{name}: {seconds:.1f} s, {steps} steps; found {found}", flush=True)
    print(f"{sum(runs.states.values())} kills, {failed} failures, seed {arguments.seed}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
