"""Folders in which hidden folders were planted: whatever these hold, no file outside may change.

    python -m tests.campaigns.planted --cases 2000 --seed 1

Each case draws hidden folders with links, hard links, pipes, files and move plans, puts them into a
folder with a vocabulary, and reads and writes that folder. Files outside must stay unchanged. The
folder must hold the written files, and its other files must stay. Within `SECONDS`, each call must
succeed, or raise an OSError or a ValueError of one sentence.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
import warnings

from kerasbert.base import files
from kerasbert.tokenizers import BertTokenizer

SECONDS = 5
WORDS = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nword\n"
MINE = {"vocab.txt": WORDS, "tokenizer_config.json": "{}", "logs/log": "mine"}
HOME = {"ssh/id": "secret", "ssh/deep/key": "secret", "rc": "mine", "lock": "", "moving.json": "{}"}
ENTRIES = ("lock", "owner.json", "moving.json", "moving.json.new", "made", "new", "old", "probe")
NAMES = ["vocab.txt", "logs", "../home", "..", ".", "", "/etc/passwd", "new", "\0", 7, None, ["a"]]


def write(folder, contents):
    for name, text in contents.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)


def state(folder):
    """Return the files below a folder, except those in our hidden folders: a dict of path
    to text.
    """
    found = {}
    for path, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".kerasbert-")]
        for name in names:
            if not name.startswith(".kerasbert-"):
                with open(os.path.join(path, name)) as file:
                    found[os.path.relpath(os.path.join(path, name), folder)] = file.read()
    return found


def stamps(folder):
    """Return modification times and modes, which reveal writes, moves and changed permissions."""
    found = {}
    for path, _, names in os.walk(folder):
        for one in (path, *(os.path.join(path, name) for name in names)):
            found[one] = os.lstat(one).st_mtime_ns, os.lstat(one).st_mode
    return found


class Case:
    def __init__(self, draw, place):
        self.draw, self.said = draw, []
        self.home, self.folder = os.path.join(place, "home"), os.path.join(place, "folder")
        write(self.home, HOME)
        write(self.folder, MINE)

    def plant(self):
        draw = self.draw
        name = draw.choice([f"{draw.getrandbits(48):012x}", "in-use", "in-use-vocab", "in-use-."])
        place = draw.choice([self.folder, self.folder, os.path.join(self.folder, "logs")])
        work = os.path.join(place, f".kerasbert-{name}")
        if os.path.lexists(work):
            return
        if draw.random() < 0.15:
            os.symlink(draw.choice([self.home, os.path.join(self.home, "ssh")]), work)
            self.said.append(f"{name} is a link")
            return
        os.mkdir(work)
        traps = draw.choices(["link", "to a file", "hard", "pipe", "folder", "none"], k=2)
        traps = dict(zip(draw.sample(ENTRIES, 2), traps))
        if draw.random() < 0.4:
            traps = {"new": "link"} if draw.random() < 0.5 else {"owner.json": "to a file"}
        for entry in ENTRIES:
            self.entry(os.path.join(work, entry), traps.get(entry, "file"))
        self.said.append(f"{name}: {traps}")

    def entry(self, path, kind):
        draw, key = self.draw, os.path.join(self.home, "ssh", "id")
        if os.path.basename(path) in ("new", "old") and kind == "file":
            kind = "folder"
        if kind == "file":
            names = draw.choice([["vocab.txt"], [], [], draw.choices(NAMES, k=2)])
            plan = {"folder": draw.choice(["new", "new", "new", *NAMES]), "removed": names}
            plan |= {"keep": draw.choice([True, False, 1])}
            plan |= {"made": [draw.getrandbits(32) for _ in range(4)]}
            content = {"moving.json": json.dumps(draw.choice([plan, plan, plan, [], None]))}
            write(os.path.dirname(path), {os.path.basename(path): content.get("moving.json", "")})
        elif kind == "link":
            os.symlink(os.path.join(self.home, "ssh"), path)
        elif kind == "to a file":
            os.symlink(key, path)
        elif kind == "hard":
            os.link(key, path)
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            write(path, {"vocab.txt": "bad", "logs/log": "bad"})

    def calls(self):
        """Return a list of `(call, written)`: calls that read or write the folder, and the content
        that they write.
        """

        def tokenizer():
            assert BertTokenizer.from_files(self.folder).vocabulary_size() == 6

        def in_use():
            with files.in_use(self.folder, "vocab"):
                pass

        def new_folder():
            with files.new_folder(self.folder, keep=True, by=self.draw.choice([None, "me"])) as new:
                write(new, {"a/new": "new"})

        def new_files():
            with files.new_files(self.folder) as new:
                write(new, {"more": "new"})

        def text():
            files.write_text(os.path.join(self.folder, "logs", "text"), "text")

        def part():
            with files.new_folder(os.path.join(self.folder, "logs", "part")) as new:
                write(new, {"file": "new"})

        return [
            (tokenizer, {}),
            (lambda: files.settle(self.folder), {}),
            (lambda: files.sweep(self.folder), {}),
            (lambda: files.output_folder(os.path.join(self.folder, "logs"), "output"), {}),
            (in_use, {}),
            (new_folder, {"a/new": "new"}),
            (new_files, {"more": "new"}),
            (text, {"logs/text": "text"}),
            (part, {"logs/part/file": "new"}),
        ]

    def run(self):
        """Run the case; return a description of the failure, or `None`."""
        for _ in range(self.draw.randint(1, 4)):
            self.plant()
        expected, before = dict(MINE), (state(self.home), stamps(self.home))
        for call, written in self.draw.sample(self.calls(), 4):
            began = time.monotonic()
            self.said.append(getattr(call, "__name__", "call"))
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    call()
                expected |= written
            except (OSError, ValueError) as error:
                if "\n" in str(error):
                    return f"{self.said}: not one sentence: {error}"
            if time.monotonic() - began > SECONDS:
                return f"{self.said}: took {time.monotonic() - began:.0f} s"
            if (state(self.home), stamps(self.home)) != before:
                return f"{self.said}: changed what is outside"
            if state(self.folder) != expected:
                return f"{self.said}: the folder holds {state(self.folder)}"
        return None


def run(cases, seed):
    """Run all cases; return the failures."""
    draw, failures = random.Random(seed), []
    for number in range(cases):
        place = tempfile.mkdtemp(prefix="planted-")
        try:
            found = Case(draw, place).run()
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        finally:
            shutil.rmtree(place, ignore_errors=True)
        if found:
            failures.append(f"case {number}: {found}")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    print(f"cases {arguments.cases}, seed {arguments.seed}")
    failures = run(arguments.cases, arguments.seed)
    print(*failures, f"{len(failures)} failures", sep="\n")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
