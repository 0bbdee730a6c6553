"""Patterns of a `tokenizer.json` (strings and Oniguruma's regular expressions) with RE2.

Each character is replaced by a symbol for the character sets that contain it, so RE2's version of
Unicode does not matter. RE2 has no lookarounds, so the symbol also tells whether the next and the
previous character are in the sets of lookarounds for one character.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base import keras_internals
from kerasbert.text.fast_graph.tables import POINTS, RANGES, classes, matched
from kerasbert.text.ops import rows_of
from kerasbert.text.tokenizer_json import UnsupportedError

if TYPE_CHECKING:
    from typing import Any

# Code point of the first symbol. All symbols have two bytes in UTF-8.
_FIRST, _LIMIT = 0x100, 0x800
# RE2 expands counted repetitions, and takes minutes for some with many more.
_MOST_REPEATS = 1000
_REPEAT = re.compile(r"([*+?]|\{\d+(?:,\d*)?\})(\??)")
_LOOKS = {"(?=": (1, True), "(?!": (1, False), "(?<=": (-1, True), "(?<!": (-1, False)}
_SET = re.compile(
    r"\\[pP]\{\^?[\w \-=:]+\}|\\x\{[0-9A-Fa-f]+\}|\\x[0-7][0-9A-Fa-f]|\\u[0-9A-Fa-f]{4}"
    r"|\\[sSdDwWhHnrtfva]|\\[^\w\s]|\\ |[^\\\[\](){}|*+?^$]|[{}\]]",
    re.DOTALL,
)


class Pattern:
    """Finds the matches of a pattern in segments.

    Args:
        pattern: dict, `{"String": ...}` or `{"Regex": ...}` as in a file, or `{"Strings": [...]}`,
            where the first match is preferred.

    Raises:
        UnsupportedError: if RE2 has no equivalent of the regular expression.
    """

    def __init__(self, pattern: dict[str, Any]) -> None:
        self._sets = {}  # Number of each set, by source.
        self._looks = []  # `(step, set)` of each condition; the step is -1 or 1.
        self._repeats = 0
        # Parts: sets with conditions `(look, is_in)`, or strings in RE2's syntax.
        self.source = pattern.get("Regex")
        if self.source is None:
            parts = []
            for string in pattern.get("Strings") or [pattern["String"]]:
                parts += ["|"] if parts else []
                parts += [self._set(("", char)) for char in string]
        else:
            parts = self._parsed(self.source)
        self._compile(parts)

    def _refuse(self, what):
        name = "strings" if self.source is None else f"the regular expression {self.source!r:.200}"
        raise UnsupportedError(f"{name} (RE2 has no equivalent of {what})")

    def _set(self, source, conditions=()):
        number = self._sets.setdefault(source, len(self._sets))
        if number >= _LIMIT - _FIRST:  # More would take gigabytes.
            self._refuse(f"more than {_LIMIT - _FIRST} different sets of characters")
        return number, tuple(conditions)

    # === From a regular expression to parts ===

    def _parsed(self, source):
        parts, ignores = [], [""]  # `ignores` has the flag "i" or "" of each open group.
        conditions = []  # conditions on the next character
        at = 0
        while at < len(source):
            look = next((x for x in ("(?<=", "(?<!", "(?=", "(?!") if source.startswith(x, at)), "")
            if look:
                step, is_in = _LOOKS[look]
                inner, at = self._one_set(source, at + len(look), ignores[-1])
                if source[at : at + 1] != ")":
                    self._refuse(f"{look}...) with more than one character")
                at += 1
                condition = (self._look(step, inner[0]), is_in)
                if step > 0:
                    self._end_with(parts, condition, look)
                else:
                    conditions.append(condition)
                continue
            if source[at] == "(":
                group = re.compile(r"\((?:\?(i?):|(?!\?))").match(source, at)
                if conditions or not group:
                    self._refuse(repr(source[at : at + 3]))
                ignores.append(ignores[-1] or group[1] or "")
                parts.append("(?:")
                at = group.end()
            elif source[at] in "|)":
                if conditions:
                    self._refuse("a lookaround before | or )")
                if source[at] == ")":
                    ignores.pop()
                parts.append(source[at])
                at += 1
            elif repeat := _REPEAT.match(source, at):
                is_first = not parts or parts[-1] in ("(?:", "|")
                if is_first or _is_repeat(parts[-1]) or not _is_known(repeat[0]):
                    self._refuse(repr(repeat[0]))
                self._repeats += max(_counts(repeat[0]), default=0)
                if self._repeats > _MOST_REPEATS:
                    self._refuse(f"more than {_MOST_REPEATS} repetitions")
                parts.append(repeat[0])
                at = repeat.end()
            else:
                one, at = self._one_set(source, at, ignores[-1])
                if not conditions:
                    parts.append(one)
                    continue
                # Only the first repeated character has the condition.
                parts.append(self._with(one, conditions))
                repeat, conditions = _REPEAT.match(source, at), []
                if repeat and repeat[0] == "+":
                    parts += [one, "*"]
                    at = repeat.end()
                elif repeat:
                    self._refuse(repr(repeat[0]))
        if conditions or len(ignores) != 1:
            self._refuse("its end")
        self._check_folding()
        return parts

    def _one_set(self, source, at, flag):
        """Return the set that begins at index `at`, and the index after it."""
        if source[at : at + 1] == "[":
            end, depth = at, 0
            while end < len(source):
                depth += (source[end] == "[") - (source[end] == "]")
                end += 2 if source[end] == "\\" else 1
                if not depth:
                    break
        else:
            found = _SET.match(source, at)
            if not found or re.compile(r"\{,\d+\}").match(source, at):
                self._refuse(repr(source[at : at + 3]))
            end = found.end()
        return self._set((flag, source[at:end], "regex")), end

    def _look(self, step, number):
        look = (step, number)
        if look not in self._looks:
            self._looks.append(look)
        return self._looks.index(look)

    def _with(self, one, conditions):
        return one[0], (*one[1], *conditions)

    def _end_with(self, parts, condition, look):
        """Add a condition to the last character that the parts match."""
        repeat = parts.pop() if parts and _is_repeat(parts[-1]) else ""
        if not parts or isinstance(parts[-1], str) or repeat not in ("", "+"):
            self._refuse(f"{look}...) at this position")
        one = parts.pop()
        parts += [one, "*"] if repeat else []
        parts.append(self._with(one, [condition]))

    def _check_folding(self):
        """Raise if case folding changes lengths, as with "ß" and "ss"."""
        folded = {chr(i).casefold() for i in POINTS}
        pairs = {text[:2] for text in folded if len(text) > 1}
        texts = [text for flag, text, *_ in self._sets if flag and len(text) == 1]
        for pair in itertools.chain(texts, map("".join, itertools.product(texts, repeat=2))):
            text = pair.casefold()
            if (len(text) > len(pair) or text in pairs) and pair in self.source:
                self._refuse(f"{pair!r} without case")

    # === From parts to RE2 ===

    def _members(self, source):
        flag, text, *is_regex = source
        if not is_regex or (not flag and len(text) == 1 and text != "."):
            return ord(text) == POINTS
        try:
            return matched(f"(?{flag}:{text})" if flag else text)
        except Exception as error:  # Not a subclass.
            self._refuse(f"{text!r}: {error}")

    def _check_points(self):
        """Raise if the pattern has a character that `POINTS` lacks."""
        for source in self._sets:
            named = re.findall(r"\\x\{([0-9A-Fa-f]+)\}", source[1])
            for point in [*map(ord, source[1]), *(int(x, 16) for x in named)]:
                if point >= RANGES[0] and not 0xE0000 <= point < RANGES[1]:
                    raise UnsupportedError(f"the rare character U+{point:X}")

    def _compile(self, parts):
        self._check_points()
        if not self._sets:
            self._refuse("a match of empty text")
        members = np.stack([self._members(source) for source in self._sets])  # (sets, characters)
        signature = np.zeros(members.shape[1], "int64")
        for begin in range(0, len(members), 32):
            # Renumber after every 32 sets: each set doubles the numbers.
            for one in members[begin : begin + 32]:
                signature = signature * 2 + one
            signature = np.unique(signature, return_inverse=True)[1]
        count = int(signature.max()) + 1
        sample = np.unique(signature, return_index=True)[1]
        members = members[:, sample]  # (sets, classes)
        self._classes, self._in_set = classes(signature), members
        if _FIRST + count * 2 ** len(self._looks) > _LIMIT:
            self._refuse(f"{len(self._sets)} different sets of characters")
        symbols = {
            part: self._symbols(*part, count) for part in set(parts) if not isinstance(part, str)
        }
        self.regex = "".join(symbols.get(part, part) for part in parts)
        self.is_single = len(parts) == 1 and not self._looks
        try:
            with tf.init_scope(), tf.device("cpu"):
                is_empty = bool(tf.strings.regex_full_match("", self.regex))
        except tf.errors.InvalidArgumentError:
            self._refuse("an expression of this size")
        if is_empty:
            self._refuse("a match of empty text")

    def _symbols(self, number, conditions, count):
        """Return RE2's class of the symbols of a set, given conditions."""
        looks = len(self._looks)
        found = [
            chr(_FIRST + (kind << looks) + bits)
            for kind, bits in itertools.product(range(count), range(1 << looks))
            if self._in_set[number][kind]
            and all(bits >> look & 1 == is_in for look, is_in in conditions)
        ]
        return f"[{''.join(found)}]" if found else "[^\0-\U0010ffff]"

    # === In a graph ===

    def find(self, characters: Any) -> tuple[Any, Any]:
        """Find the matches in each segment.

        Args:
            characters: `Characters` (C,).

        Returns:
            `(is_match, begins)`, bool (C,): whether a character is in a match, and whether it
            begins a match or the text after one.
        """
        kinds = self._classes(characters.points)
        if self.is_single:
            is_match = tf.gather(tf.constant(self._in_set[0]), kinds)
            return single_matches(characters, is_match)
        symbols = kinds
        for step, number in reversed(self._looks):
            is_in = tf.gather(tf.constant(self._in_set[number]), kinds)
            near = characters.after if step > 0 else characters.before
            symbols = symbols * 2 + tf.cast(near(is_in, False), "int32")
        texts = tf.strings.unicode_encode(characters.ragged(symbols + _FIRST), "UTF-8")
        pieces, begins, _ = keras_internals.regex_split_with_offsets(texts, self.regex, self.regex)
        first = tf.gather(characters.firsts(), rows_of(pieces))
        begins = first + tf.cast(begins.flat_values, "int64") // 2
        whole = tf.strings.regex_full_match(pieces.flat_values, self.regex)
        size = tf.shape(characters.points, tf.int64)
        starts = tf.scatter_nd(begins[:, tf.newaxis], tf.ones_like(begins), size)
        piece = tf.cumsum(starts) - 1
        return tf.gather(whole, piece), starts > 0


def single_matches(characters, is_match):
    """Return the results of `Pattern.find` if each character with `is_match` (C,) is a match."""
    begins = characters.begins() | is_match | characters.before(is_match, True)
    return is_match, begins


class Borders:
    """Finds the matches of lookarounds alone: `(?<=a)(?=A)`.

    Args:
        source: the regular expression.
    """

    def __init__(self, source: str) -> None:
        # Each alternative is a list of `(step, is_in, set)`.
        self._alternatives = []
        for alternative in re.split(r"\|(?=\(\?<?[=!])", source):
            looks, at = [], 0
            while at < len(alternative):
                look = re.compile(r"\(\?<?[=!]").match(alternative, at)
                if not look:
                    raise UnsupportedError(f"the regular expression {source!r}")
                one = Pattern({"Regex": _inner(alternative, look.end())})
                if not one.is_single:
                    raise UnsupportedError(
                        f"the regular expression {source!r}, which looks at more than one character"
                    )
                looks.append((*_LOOKS[look[0]], one))
                at = look.end() + len(one.source) + 1
            self._alternatives.append(looks)

    def find(self, characters: Any) -> Any:
        """Return whether there is a border before each character, bool (C,)."""
        found = tf.zeros_like(characters.points, "bool")
        for looks in self._alternatives:
            here = tf.ones_like(found)
            for step, is_in, one in looks:
                near, _ = one.find(characters)
                near = near if step > 0 else characters.before(near, False)
                here &= near == is_in
            found |= here
        return found & ~characters.begins()


def _inner(source, at):
    """Return a regular expression from `at` to the end of the current group."""
    end, in_set = at, 0
    while end < len(source) and (in_set or source[end] != ")"):
        in_set += (source[end] == "[") - (source[end] == "]")
        end += 2 if source[end] == "\\" else 1
    return source[at:end]


def _counts(repeat):
    return [int(x) for x in re.findall(r"\d+", repeat)]


def _is_known(repeat):
    """Return whether a repetition has the same meaning in Oniguruma and in RE2."""
    is_optional = re.fullmatch(r"\{\d+\}\?", repeat)  # Optional in Oniguruma, lazy in RE2.
    return _counts(repeat) == sorted(_counts(repeat)) and not is_optional


def _is_repeat(part):
    return isinstance(part, str) and bool(_REPEAT.fullmatch(part))
