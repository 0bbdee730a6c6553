"""Pre-tokenizers of a `tokenizer.json` for graphs: they map `Characters` to `Characters`.

They split segments, and may change their characters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerasbert.backend.tensorflow import tf
from kerasbert.text.fast_graph.normalizers import by_type, replaced, to_bytes
from kerasbert.text.fast_graph.patterns import Borders, Pattern, single_matches
from kerasbert.text.fast_graph.tables import classes, kinds_of_step, scripts
from kerasbert.text.ops import rows_of
from kerasbert.text.tokenizer_json import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

# ByteLevel's pattern.
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def split(characters, is_match, begins, behavior):
    """Split segments at matches.

    Args:
        characters: `Characters` (C,).
        is_match, begins: see `Pattern.find`.
        behavior: "Removed", "Isolated", "Contiguous", "MergedWithPrevious" or "MergedWithNext".
    """
    if behavior == "Removed":
        return characters.split_at(begins).where(~is_match)
    first = characters.begins()
    before = characters.before(is_match, False)
    if behavior == "Contiguous":
        begins = begins & (is_match != before)
    elif behavior == "MergedWithPrevious":
        begins = begins & ~(is_match & ~before)
    elif behavior == "MergedWithNext":
        begins = begins & ~(~is_match & before)
    return characters.split_at(begins | first)


def _split(step):
    pattern, behavior = step["pattern"], step["behavior"]
    if (
        "Regex" in pattern
        and pattern["Regex"].startswith(("(?=", "(?!", "(?<"))
        and (not step.get("invert"))
    ):
        try:
            borders = Borders(pattern["Regex"])
        except UnsupportedError:
            borders = None
        if borders:
            return lambda characters: characters.split_at(borders.find(characters))
    found = Pattern(pattern)

    def run(characters):
        is_match, begins = found.find(characters)
        return split(characters, is_match ^ bool(step.get("invert")), begins, behavior)

    return run


def _of_kinds(step, behavior=None):
    """Return a function that splits at the characters that a step separates.

    Args:
        step: dict. A pre-tokenizer.
        behavior: string. See `split`; `None` as in the step.
    """
    kinds = kinds_of_step(step)
    kind_of = classes(kinds)

    def run(characters):
        kind = kind_of(characters.points)
        if behavior:
            return split(characters, *single_matches(characters, kind != 1), behavior)
        is_alone = kind == 2
        begins = characters.begins() | (kind != characters.before(kind, -1)) | is_alone
        return characters.split_at(begins).where(kind != 0)

    return run


def _whitespace(step):
    # Each word and each run of other characters is a piece; white space is removed.
    kind_of = classes(kinds_of_step(step))

    def run(characters):
        kind = kind_of(characters.points)
        return characters.split_at(kind != characters.before(kind, -1)).where(kind != 0)

    return run


def _digits(step):
    behavior = "Isolated" if step.get("individual_digits") else "Contiguous"
    return _of_kinds({"type": "Digits", "individual_digits": True}, behavior)


def _delimiter(step):
    pattern = Pattern({"String": step["delimiter"]})
    return lambda characters: split(characters, *pattern.find(characters), "Removed")


def _byte_level(step):
    words = Pattern({"Regex": GPT2_WORDS}) if step.get("use_regex", True) else None

    def run(characters):
        if step.get("add_prefix_space"):
            first = characters.begins() & (characters.points != ord(" "))
            characters = characters.put_before(" ", first)
        if words:
            characters = split(characters, *words.find(characters), "Isolated")
        return to_bytes(characters)

    return run


def _metaspace(step):
    mark, scheme = step["replacement"], step["prepend_scheme"]
    spaces = replaced(Pattern({"String": " "}), mark)

    def run(characters, text_starts):
        characters = spaces(characters)
        if scheme != "never":
            first = characters.begins() & (characters.points != ord(mark))
            if scheme == "first":
                first &= tf.gather(text_starts, characters.origins)
            characters = characters.put_before(mark, first)
        if not step["split"]:
            return characters
        is_mark = single_matches(characters, characters.points == ord(mark))
        return split(characters, *is_mark, "MergedWithNext")

    return run


def _scripts(step):
    script_of = classes(scripts())

    def run(characters):
        script = script_of(characters.points)
        size = tf.size(script, tf.int64)
        # The last character before each that does not belong to every script.
        index = tf.range(size)
        own = tf.where(script > 0, index, -1)
        last = _running_max(own)
        earlier = tf.concat([tf.fill([1], tf.constant(-1, "int64")), last[:-1]], 0)[:size]
        segment = tf.cumsum(tf.cast(characters.begins(), "int64")) - 1
        first = tf.gather(characters.firsts(), segment)
        there = tf.gather(script, tf.maximum(earlier, 0))
        is_other = (earlier < first) | (there != script)
        # At the start of a segment, characters of every script are removed.
        return characters.split_at((script > 0) & is_other).where(last >= first)

    return run


def _running_max(values):
    """Return the running maximum of values, each its own index or -1."""
    place = tf.where(values >= 0)[:, 0]
    place = tf.concat([[-1], place], 0)
    count = tf.cumsum(tf.cast(values >= 0, "int64"))
    return tf.gather(place, count)


def _fixed_length(step):
    length = min(step["length"], 2**63 - 1)
    if not length:
        raise UnsupportedError("length 0")

    def run(characters):
        ragged = characters.ragged(characters.points)
        first = tf.gather(ragged.row_starts(), rows_of(ragged))
        place = tf.range(tf.size(first, tf.int64)) - first
        return characters.split_at(place % length == 0)

    return run


# By type: a function that makes a step for graphs.
PRE_TOKENIZERS = {
    "BertPreTokenizer": _of_kinds,
    "ByteLevel": _byte_level,
    "CharDelimiterSplit": _delimiter,
    "Digits": _digits,
    "FixedLength": _fixed_length,
    "Metaspace": _metaspace,
    "Punctuation": lambda step: _of_kinds(
        {"type": "Punctuation", "behavior": "Isolated"}, step["behavior"]
    ),
    "Split": _split,
    "UnicodeScripts": _scripts,
    "Whitespace": _whitespace,
    "WhitespaceSplit": _whitespace,
}


def pre_tokenizer(step: dict) -> Callable:
    """Return a pre-tokenizer as a function.

    It takes `Characters`, and bools that mark the first original character of each text.

    Raises:
        UnsupportedError: if a TensorFlow graph cannot run it.
    """
    run = by_type(PRE_TOKENIZERS, "pre-tokenizer", step)
    return run if step["type"] == "Metaspace" else lambda characters, _: run(characters)
