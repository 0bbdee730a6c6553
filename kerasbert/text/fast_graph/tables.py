"""Tables of how the library `tokenizers` treats each character.

The library, Python and TensorFlow have different versions of Unicode, so the tables of a graph are
computed with the library.
"""

from __future__ import annotations

import functools
import json
import unicodedata
from typing import NamedTuple

import numpy as np
from tokenizers import Regex, Tokenizer, normalizers

from kerasbert.backend.tensorflow import tf
from kerasbert.base.strict_json import to_json

# `POINTS` has all assigned code points, and the first of each range whose characters are alike:
# planes 4 to 13 and the rest of plane 14, which Unicode does not use, and the planes for private
# use.
RANGES = (0x40000, 0xE1000, 0xF0000, 0xFFFFE, 0x100000, 0x10FFFE)
POINTS = np.array(
    [*range(0xD800), *range(0xE000, 0x40000), 0x40000, *range(0xE0000, 0xE1000), *RANGES[1:]],
    "int32",
)
# A letter that no normalizer changes or produces.
SEPARATOR = "\u16a0"


def library_step(part, step):
    """Return the library's object for a step of a `tokenizer.json`.

    Args:
        part: "normalizer", "pre_tokenizer" or "decoder".
        step: dict.
    """
    model = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
    return getattr(Tokenizer.from_str(to_json({"model": model, part: step})), part)


class Changes(NamedTuple):
    """The characters that a normalizer changes or removes.

    Args:
        points: int32 (K,). The changed characters, sorted.
        splits: int64 (K + 1,). Row splits of `made`.
        made: int32 (M,). New characters.
        removed: `Classes`, 1 for characters that are removed, or `None` if there are none.
    """

    points: np.ndarray
    splits: np.ndarray
    made: np.ndarray
    removed: Classes | None

    def __call__(self, characters):
        """Replace characters, and keep their origins."""
        if self.removed:
            characters = characters.where(self.removed(characters.points) == 0)
        return self.expanded(characters)[0]

    def expanded(self, characters):
        """Return the new characters (D,), and their indices among those for the same one."""
        if not len(self.points):
            return characters, tf.zeros_like(characters.origins)
        at, is_changed = find(self.points, characters.points)
        begins, counts = (tf.constant(x) for x in (self.splits[:-1], np.diff(self.splits)))
        new, index, place = characters.repeated(tf.where(is_changed, tf.gather(counts, at), 1))
        is_changed = tf.gather(is_changed, index)
        source = tf.gather(tf.gather(begins, at), index) + place
        made = tf.gather(
            tf.constant(np.append(self.made, np.int32(0))), tf.where(is_changed, source, 0)
        )
        return new._replace(points=tf.where(is_changed, made, new.points)), place


def find(keys, values):
    """Search for values (C,) in non-empty sorted keys (K,), and return `(at, is_found)`."""
    at = tf.searchsorted(tf.constant(keys), values)
    at = tf.minimum(at, len(keys) - 1)
    return at, tf.gather(tf.constant(keys), at) == values


def _one_by_one(function, before=""):
    """Return the results of a function of strings for each of `POINTS`, with `before` prepended."""
    parts = function(SEPARATOR.join(before + chr(i) for i in POINTS)).split(SEPARATOR)
    at = int(np.searchsorted(POINTS, ord(SEPARATOR)))
    return [*parts[:at], before + SEPARATOR, *parts[at + 2 :]]


@functools.cache
def _changes(step):
    made = _one_by_one(library_step("normalizer", json.loads(step)).normalize_str)
    lengths = np.array([len(new) for new in made])
    pairs = [
        (i, new) for i, new in zip(POINTS.tolist(), made, strict=True) if new not in ("", chr(i))
    ]
    return Changes(
        np.array([point for point, _ in pairs], "int32"),
        np.cumsum([0, *(len(new) for _, new in pairs)], dtype="int64"),
        np.array([ord(char) for _, new in pairs for char in new], "int32"),
        None if lengths.all() else classes(lengths == 0),
    )


def changes_of_step(step):
    """Return the `Changes` of a normalizer that treats characters independently."""
    return _changes(to_json(step, sort_keys=True))


@functools.cache
def matched(regex):
    """Return which of `POINTS` a regular expression of one character matches, bool (points,)."""
    rest = normalizers.Replace(Regex(regex), "").normalize_str("".join(map(chr, POINTS)))
    rest = np.frombuffer(rest.encode("utf-32-le"), "<i4")
    return ~np.isin(POINTS, rest, assume_unique=True)


@functools.cache
def _kinds(step):
    """Return the kind of each of `POINTS` for a pre-tokenizer, int (points,):

    0 if the step removes it, 1 if it does not separate it from letters, else 2.
    """
    splitter = library_step("pre_tokenizer", json.loads(step))
    found = np.full(len(POINTS), 2)
    for begin in range(0, len(POINTS), 1 << 16):
        part = POINTS[begin : begin + (1 << 16)]
        text = "a" + "a".join(map(chr, part)) + "a"
        spans = np.array([span for _, span in splitter.pre_tokenize_str(text)])
        covered = np.zeros(len(text) + 1, int)
        np.add.at(covered, spans[:, 0], 1)
        np.add.at(covered, spans[:, 1], -1)
        is_covered = np.cumsum(covered)[1 : 2 * len(part) : 2] > 0
        starts = np.zeros(len(text) + 1, bool)
        starts[spans[:, 0]] = True
        joins = ~starts[1 : 2 * len(part) : 2] & ~starts[2 : 2 * len(part) + 1 : 2]
        found[begin : begin + len(part)] = np.where(is_covered, np.where(joins, 1, 2), 0)
    return found


def kinds_of_step(step):
    return _kinds(to_json(step, sort_keys=True))


class Classes(NamedTuple):
    """Class of each character.

    Args:
        begins: int32 (R,). The first character of each range of one class, sorted.
        numbers: int32 (R,). The class of each range.
    """

    begins: np.ndarray
    numbers: np.ndarray

    def __call__(self, points):
        """Return the class of each code point (C,), int32."""
        at = tf.searchsorted(tf.constant(self.begins), points, side="right") - 1
        return tf.gather(tf.constant(self.numbers), at)


def classes(numbers):
    """Convert the class of each of `POINTS`, int (points,), to `Classes`."""
    first = np.append(True, numbers[1:] != numbers[:-1])
    return Classes(POINTS[first], numbers[first].astype("int32"))


@functools.cache
def scripts():
    """Return each of `POINTS`' script number for UnicodeScripts.

    Characters of every script have 0.
    """
    split = library_step("pre_tokenizer", {"type": "UnicodeScripts"}).pre_tokenize_str
    # The library removes characters of every script at the start of a text.
    found, first = np.zeros(len(POINTS), int), {}
    text = "".join(map(chr, POINTS))
    spans = [span for _, span in split(text)]
    is_any = np.array([not split(char) for char in text])
    for begin, end in spans:
        sample = next(char for i, char in enumerate(text[begin:end], begin) if not is_any[i])
        number = next((n for n, other in first.items() if len(split(other + sample)) == 1), None)
        if number is None:
            number = len(first) + 1
            first[number] = sample
        found[begin:end] = number
    found[is_any] = 0
    return found


# === Normal forms ===


class Composition(NamedTuple):
    """Tables of a Unicode normal form.

    Args:
        decompose: `Changes`.
        classes: `Classes`. The rank of each combining class; 0 for starters.
        pairs: int64 (K,). Composed pairs, `first << 21 | second`, sorted.
        composed: int32 (K,). The character of each pair.
        seconds: `Classes`. Whether a character may be second.
    """

    decompose: Changes
    classes: Classes
    pairs: np.ndarray
    composed: np.ndarray
    seconds: Classes


@functools.cache
def _combining_ranks():
    """Return the rank of each of `POINTS`' combining class."""
    form = normalizers.NFD()
    highest = "\u0345"  # The mark with the highest combining class, 240.
    parts = _one_by_one(form.normalize_str, f"a{highest}")
    marks = [
        chr(i)
        for i, part in zip(POINTS.tolist(), parts, strict=True)
        if chr(i) == highest or part == f"a{chr(i)}{highest}"
    ]
    known = {unicodedata.combining(mark): mark for mark in marks}
    samples = [known[number] for number in sorted(known) if number]
    ranks = np.zeros(len(POINTS), int)
    for mark in marks:
        below = sum(form.normalize_str(f"a{mark}{one}") == f"a{one}{mark}" for one in samples)
        above = sum(form.normalize_str(f"a{one}{mark}") == f"a{mark}{one}" for one in samples)
        # A class without sample has a rank between its neighbors.
        ranks[np.searchsorted(POINTS, ord(mark))] = below + len(samples) - above
    return ranks


@functools.cache
def composition(form):
    """Return the `Composition` of "NFC", "NFD", "NFKC" or "NFKD"."""
    canonical, joins = normalizers.NFD(), normalizers.NFC()
    decompose = changes_of_step({"type": form.replace("C", "D")})
    pairs = {}
    if form.endswith("C"):
        single = changes_of_step({"type": "NFD"})
        for point in single.points.tolist():
            parts = canonical.normalize_str(chr(point))
            if len(parts) > 1 and joins.normalize_str(chr(point)) == chr(point):
                first = joins.normalize_str(parts[:-1])
                pairs[ord(first) << 21 | ord(parts[-1])] = point
    keys = np.array(sorted(pairs), "int64")
    return Composition(
        decompose,
        classes(_combining_ranks()),
        keys,
        np.array([pairs[key] for key in keys.tolist()], "int32"),
        classes(np.isin(POINTS, keys & 0x1FFFFF)),
    )
