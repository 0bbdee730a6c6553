"""Check that modified `tokenizer.json` files match the `tokenizers` library or are rejected.

    python -m tests.campaigns.tokenizer_files --changes 300 --seed 1 [--only RobertaTokenizer]

Each file changes the value of a setting, or adds, removes or reorders steps of the normalizer or
the pre-tokenizer. Files that the library itself rejects are skipped.
"""

import argparse
import copy
import json
import os
import random
import sys
import tempfile
import warnings

import tokenizers

from kerasbert.text.choose import tokenizer_from_files
from kerasbert.text.transformers_files import transformers_files
from tests.campaigns.batches import PARTS, texts
from tests.text import conftest as small
from tests.text.test_transformers_files import FAMILIES

_STEPS = {
    "normalizer": [
        *({"type": form} for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents")),
        *({"type": kind} for kind in ("Nmt", "ByteLevel")),
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Replace", "pattern": {"String": "a"}, "content": "b"},
        {"type": "Prepend", "prepend": "▁"},
    ],
    "pre_tokenizer": [
        *({"type": kind} for kind in ("Whitespace", "WhitespaceSplit", "UnicodeScripts")),
        {"type": "Digits", "individual_digits": True},
        {"type": "Punctuation", "behavior": "Isolated"},
        {"type": "Split", "pattern": {"Regex": "[ae]"}, "behavior": "Isolated", "invert": False},
        {"type": "Split", "pattern": {"String": "e"}, "behavior": "Removed", "invert": False},
        {"type": "CharDelimiterSplit", "delimiter": "-"},
    ],
}
_INNER = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}
# Parts that are not settings: the vocabulary.
_LARGE = {"vocab", "merges"}


def _places(value, path=()):
    """Yield the paths of all settings in a file."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:6])
    for key, one in items:
        if key not in _LARGE:
            yield (*path, key)
            if isinstance(one, (dict, list)):
                yield from _places(one, (*path, key))


def _other(draw, value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice([0, 1, value + 1, 7])
    if isinstance(value, str):
        others = ["", "x", "always", "never", "first", "Removed", "MergedWithNext", "##", "</w>"]
        return draw.choice(others)
    return draw.choice([None, True, 0.5, "x", [], {}])


def changed(draw, whole):
    """Return a modified copy of a `tokenizer.json`, and a description of the change."""
    whole = copy.deepcopy(whole)
    part = draw.choice(list(_STEPS))
    if draw.random() < 0.4:
        old = whole.get(part)
        steps = old.get(_INNER[part], [old]) if isinstance(old, dict) else []
        steps = list(steps)
        if steps and draw.random() < 0.3:
            steps.pop(draw.randrange(len(steps)))
        if draw.random() < 0.8:
            steps.insert(draw.randint(0, len(steps)), draw.choice(_STEPS[part]))
        draw.shuffle(steps) if draw.random() < 0.2 else None
        whole[part] = {"type": "Sequence", _INNER[part]: steps} if steps else None
        return whole, f"{part} {[step.get('type') for step in steps]}"
    *path, key = draw.choice(list(_places(whole)))
    inside = whole
    for name in path:
        inside = inside[name]
    inside[key] = _other(draw, inside[key])
    return whole, f"{[*path, key]} = {str(inside[key])[:60]!r}"


def _encoded(whole, rows):
    """Tokenize texts with the library; return a list of lists of ids."""
    theirs = tokenizers.Tokenizer.from_str(json.dumps(whole))
    theirs.no_truncation()
    theirs.no_padding()
    return [row.ids for row in theirs.encode_batch(rows, add_special_tokens=False)]


def failures_of(cls, tokenizer, count, seed, say):
    """Test random changes to the file of a tokenizer; return a sentence for each failure."""
    family = FAMILIES[cls]
    files = transformers_files(tokenizer, family, 64, True)
    whole, config = (json.loads(files[x]) for x in ("tokenizer.json", "tokenizer_config.json"))
    rows = [row for row in texts(60, seed) if not any(mark in row for mark in "[<\0\ufffe\uffff")]
    # Skip texts that already differ with the original file, such as control characters.
    same = zip(rows, tokenizer.tokenize(rows), _encoded(whole, rows))
    rows = [row for row, one, other in same if list(one) == list(other)]
    found, followed, refused = [], 0, 0
    for number in range(count):
        new, what = changed(random.Random(f"{seed} {cls} {number}"), whole)
        try:
            wanted = _encoded(new, rows)
        except BaseException:  # The library panics on some files.
            continue
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # In transformers, other settings of a class have precedence over the file.
            settings = {k: v for k, v in config.items() if k.endswith("_token")}
            with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
                json.dump(settings, file)
            with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
                json.dump(new, file)
            try:
                ours = tokenizer_from_files(folder, family).tokenize(rows)
            except ValueError:
                refused += 1
                continue
        followed += 1
        wrong = [row for row, one, other in zip(rows, ours, wanted) if list(one) != list(other)]
        if wrong:
            found.append(f"{cls}: {what}: {len(wrong)} of {len(rows)} texts, as {wrong[0]!r}")
    say(f"{cls}: {followed} followed, {refused} refused, {len(found)} misread")
    for one in found[:8]:
        say(f"    {one}")
    return found


def run(count, seed, only=None, say=print):
    """Test all classes and return the failures."""
    make = small.make.__wrapped__(**{part: getattr(small, part).__wrapped__() for part in PARTS})
    found = []
    for cls in only or FAMILIES:
        found += failures_of(cls, make(cls), count, seed, say)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--changes", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=FAMILIES)
    arguments = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)
    sys.exit(bool(run(arguments.changes, arguments.seed, arguments.only)))


if __name__ == "__main__":
    main()
