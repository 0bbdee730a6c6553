"""Encodings of text files: what their first bytes say, and what those that are not UTF-8 may be."""

import codecs

# Marks at the start of a file, the longer of two that begin alike first.
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


# What files are really written in that are said to be in one of these: as browsers do, the superset
# is read, which differs in a few characters that nearly no font tells apart.
_SUPERSETS = {
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "euc_jp": "euc_jis_2004",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "big5": "cp950",
    "iso8859-1": "cp1252",
}
# Names of theirs that Python does not know.
_ALIASES = {
    "windows-31j": "cp932",
    "x-sjis": "cp932",
    "windows-949": "cp949",
    "x-windows-949": "cp949",
    "windows-936": "gb18030",
}


def codec_of(name):
    """The name of the codec to read an encoding with, the superset where there is one.

    Raises:
        ValueError: for an encoding of text that Python does not know.

    >>> codec_of("Shift_JIS"), codec_of("euc-kr"), codec_of("utf8")
    ('cp932', 'cp949', 'utf-8')
    """
    try:
        known = _ALIASES.get(str(name).lower().replace("_", "-"), name)
        found = codecs.lookup(known).name
        "".encode(found)  # Raises for base64 and its like, which are codecs of bytes.
    except (LookupError, TypeError, ValueError):
        raise ValueError(
            f"encoding={name!r} is not known; 'utf-8', 'cp949', 'shift_jis' and 'gb18030' are."
        ) from None
    return _SUPERSETS.get(found, found)


def split_mark(raw):
    """`(encoding, the bytes after its mark)`; `None` and all of them without a mark.

    >>> split_mark("\\ufeffa".encode("utf-16-le"))
    ('utf-16-le', b'a\\x00')
    """
    for mark, encoding in BYTE_ORDER_MARKS:
        if raw.startswith(mark):
            return encoding, raw[len(mark) :]
    return None, raw


def without_mark(encoding, raw):
    """The codec of text without a byte-order mark, which "utf-16" and "utf-32" only say with one.

    >>> without_mark("utf-16", "a\\n".encode("utf-16-be")), without_mark("cp949", b"a")
    ('utf-16-be', 'cp949')
    """
    if encoding not in ("utf-16", "utf-32"):
        return encoding
    if raw.isascii() and b"\0" not in raw:
        return "utf-8"
    # Windows writes little-endian; zeros of ASCII characters, such as line ends, tell.
    step = 2 if encoding == "utf-16" else 4
    is_big = raw[::step].count(0) > raw[step - 1 :: step].count(0)
    return f"{encoding}-{'be' if is_big else 'le'}"


def text_decoder(encoding, errors="strict"):
    """A decoder that takes the bytes of a text part by part."""
    return codecs.getincrementaldecoder(encoding)(errors)


def is_utf8(data):
    """Whether this is UTF-8 and nothing else; a character or two of cp949 may look like it.

    Args:
        data: bytes, which may end within a character.
    """
    try:
        text = text_decoder("utf-8").decode(data)
    except UnicodeDecodeError:
        return False
    return sum(not character.isascii() for character in text) >= 8


def likely_encoding(raw):
    """What bytes that are no UTF-8 text may be, to name it in an error; `None` where nothing fits.

    A guess: it is never read with, as a wrong one gives wrong text without a word.

    Args:
        raw: bytes. Some lines are enough.

    >>> likely_encoding("이 영화는 재미있다".encode("cp949"))
    'cp949'
    """
    raw = raw[: 1 << 16]
    if b"\x1b$" in raw:
        return "iso2022_jp"
    if b"\0" in raw:
        # An ASCII character, as the ends of lines are, has its zero behind or before it.
        return "utf-16-le" if raw[1::2].count(0) > raw[::2].count(0) else "utf-16-be"
    plain = raw.decode("utf-8", "replace")
    foreign = sum(not character.isascii() for character in plain)
    if plain.count("\ufffd") < 0.1 * foreign:
        return None  # UTF-8 with some damage.
    shares = {}
    for encoding, is_usual in (
        ("cp949", _is_usual_hangul),
        ("cp932", _is_kana),
        ("euc_jp", _is_kana),
    ):
        # The last character may be cut.
        text = codecs.getincrementaldecoder(encoding)("replace").decode(raw)
        foreign = [character for character in text if not character.isascii()]
        if foreign and text.count("\ufffd") <= 0.01 * len(foreign):
            shares[encoding] = sum(map(is_usual, foreign)) / len(foreign)
    best = max(shares, key=shares.get, default=None)
    # Japanese has as many Chinese characters as kana, Korean next to none.
    if best and shares[best] >= (0.8 if best == "cp949" else 0.3):
        return best
    high = sum(byte >= 0x80 for byte in raw)
    return "cp1252" if high <= 0.2 * len(raw) else None


def _is_usual_hangul(character):
    """Of the 2,350 syllables of KS X 1001; cp949 makes the rest of other encodings' bytes, too."""
    if not "\uac00" <= character <= "\ud7a3":
        return False
    try:
        return len(character.encode("euc_kr")) == 2  # The rest it spells in eight.
    except UnicodeEncodeError:
        return False


def _is_kana(character):
    """Of full width: nearly any byte alone is a kana of half width."""
    return "\u3000" <= character <= "\u30ff"
