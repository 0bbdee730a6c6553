"""Sentences of prose: joined lines, split paragraphs."""

import itertools
import re

# Characters per call of sentencex, whose time is quadratic for Chinese and Japanese.
PART = 1000
EAST_ASIAN_END = re.compile("[。！？][”’」』）]*")
NUMBER_BEGINS = re.compile(r"\d[.．]$")
SURROGATES = re.compile("[\ud800-\udfff]")
SPACES = re.compile(r"\s*")
WRAP = re.compile(r"(?<=\S)[^\S\n]*\n[^\S\n]*(?=\S)")
# White space at which sentencex panics after an initial, as in "B .".
WIDE_SPACE = re.compile(r"[^\S\x00-\x7f](?=\.)")
CLOSING = "」』”）】》〉"
ENDS = ".!?。！？…"
OPENING = "\"'“‘「『（(["


def split_prose(lines, language, wrapped):
    """Split lines of prose into sentences; `wrapped=None` detects wrapped lines."""
    lines = [line.strip() for line in lines]
    wrapped = are_wrapped(lines) if wrapped is None else wrapped
    paragraphs = _paragraphs(lines) if wrapped else filter(None, lines)
    return [found for paragraph in paragraphs for found in split_paragraph(paragraph, language)]


def sentence_spans(text, language):
    """Return the sentences of a text as `(start, end)` in characters, without outer white space.

    Line ends may be those of any system. A line is a paragraph unless lines are wrapped.

    >>> sentence_spans("It rains. It pours.\\r\\nThe sun shines.", "en")
    [(0, 9), (10, 19), (21, 36)]
    """
    # Positions stay; sentencex rejects lone surrogates.
    plain = SURROGATES.sub("\ufffd", text.replace("\r\n", " \n").replace("\r", "\n"))
    if are_wrapped([line.strip() for line in plain.split("\n")]):
        plain = WRAP.sub(lambda match: " " * len(match[0]), plain)
    found = []
    for line in re.finditer(r"\S[^\n]*", plain):
        paragraph, place = line[0].rstrip(), 0
        for sentence in split_paragraph(paragraph, language):
            place = SPACES.match(paragraph, place).end()
            if not paragraph.startswith(sentence, place):
                sentence = paragraph[place:]  # sentencex changed a character.
            found.append((line.start() + place, line.start() + place + len(sentence)))
            place += len(sentence)
            if place == len(paragraph):
                break
    return found


def split_paragraph(paragraph, language):
    """Split a paragraph into sentences with Wikimedia's sentencex.

    It needs no model, and was the fastest library for all four languages (10 to 28 MB per second),
    on the Brown corpus, Korean and Japanese manuals, and Chinese news.
    """
    from sentencex import segment

    plain = WIDE_SPACE.sub(" ", paragraph)
    parts = (_mended(segment(language, part)) for part in _parts(plain))
    sentences = list(itertools.chain.from_iterable(parts))
    return sentences if plain == paragraph else _of_original(sentences, plain, paragraph)


def _of_original(sentences, plain, paragraph):
    """Return sentences of `plain` as in a paragraph of the same length."""
    found, place = [], 0
    for sentence in sentences:
        place = max(plain.find(sentence, place), place)
        found.append(paragraph[place : place + len(sentence)])
        place += len(sentence)
    return found


def _parts(paragraph):
    start = 0
    while len(paragraph) - start > PART:
        end = EAST_ASIAN_END.search(paragraph, start + PART)
        if end is None:
            break
        yield paragraph[start : end.end()]
        start = end.end()
    yield paragraph[start:]


def _mended(sentences):
    """Undo splits within numbers, before closing or after opening marks."""
    found = []
    carried = ""
    for sentence in sentences:
        sentence, carried = carried + sentence, ""
        plain = sentence.rstrip()
        if plain[-1:] in OPENING and plain[-2:-1].isspace():
            sentence, carried = plain[:-1], sentence[len(plain) - 1 :]
        if found:
            rest = sentence.lstrip(CLOSING)
            found[-1] += sentence[: len(sentence) - len(rest)]
            sentence = rest
            if sentence[:1].isdecimal() and NUMBER_BEGINS.search(found[-1]):
                sentence = found.pop() + sentence
        found.append(sentence)
    return [sentence for sentence in map(str.strip, [*found, carried]) if sentence]


def are_wrapped(lines):
    """Return whether lines are wrapped at some width.

    Then all but a paragraph's last line have similar lengths.
    """
    inner = [a for a, b in itertools.pairwise(lines) if a and b]
    if len(inner) < 2:
        return False
    lengths = sorted(map(len, inner))
    width = lengths[int(0.95 * len(inner))]
    long = sum(length >= 0.75 * width for length in lengths)
    ended = sum(line[-1] in ENDS for line in inner)
    return 30 <= width <= 120 and long >= 0.7 * len(inner) and ended <= 0.5 * len(inner)


def _paragraphs(lines):
    """Join the lines between empty lines into paragraphs."""
    for filled, group in itertools.groupby(lines, bool):
        if filled:
            text = ""
            for line in group:
                joined = text and not (_is_east_asian(text[-1]) and _is_east_asian(line[0]))
                text += f" {line}" if joined else line
            yield text


def _is_east_asian(character):
    """Return whether a character is of a script without spaces: Chinese, kana or their punctuation.

    Hangul is not, because Korean has spaces.
    """
    return "\u2e80" <= character <= "\u9fff" or "\uff00" <= character <= "\uffef"
