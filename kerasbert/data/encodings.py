"""Encodings of text files: byte-order marks, codecs, and guesses for error messages."""

import codecs

# UTF-32-LE first: its mark begins with UTF-16-LE's.
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


# Browsers decode these as their supersets, which files often use. The few different characters look
# alike.
_SUPERSETS = {
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "euc_jp": "euc_jis_2004",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "big5": "cp950",
    "iso8859-1": "cp1252",
}
_ALIASES = {
    "windows-31j": "cp932",
    "x-sjis": "cp932",
    "windows-949": "cp949",
    "x-windows-949": "cp949",
    "windows-936": "gb18030",
}


def codec_of(name):
    """Return the name of Python's codec for an encoding, or for the superset in `_SUPERSETS`.

    Raises:
        ValueError: if Python has no such text encoding.

    >>> codec_of("Shift_JIS"), codec_of("euc-kr"), codec_of("utf8")
    ('cp932', 'cp949', 'utf-8')
    """
    try:
        known = _ALIASES.get(str(name).lower().replace("_", "-"), name)
        found = codecs.lookup(known).name
        "".encode(found)  # Raises for codecs such as base64.
    except (LookupError, TypeError, ValueError):
        raise ValueError(
            f"encoding={name!r} is unknown; use 'utf-8', 'cp949', 'shift_jis' or 'gb18030', for "
            "example."
        ) from None
    return _SUPERSETS.get(found, found)


def split_mark(raw):
    """Split off a byte-order mark: `(encoding, rest)`; without a mark, `encoding` is `None`.

    >>> split_mark("\\ufeffa".encode("utf-16-le"))
    ('utf-16-le', b'a\\x00')
    """
    for mark, encoding in BYTE_ORDER_MARKS:
        if raw.startswith(mark):
            return encoding, raw[len(mark) :]
    return None, raw


def without_mark(encoding, raw):
    """Return the codec for text without a mark, with UTF-16's or -32's byte order.

    >>> without_mark("utf-16", "a\\n".encode("utf-16-be")), without_mark("cp949", b"a")
    ('utf-16-be', 'cp949')
    """
    if encoding not in ("utf-16", "utf-32"):
        return encoding
    if raw.isascii() and b"\0" not in raw:
        return "utf-8"
    # Zero bytes of ASCII characters show the byte order, little-endian by default.
    step = 2 if encoding == "utf-16" else 4
    is_big = raw[::step].count(0) > raw[step - 1 :: step].count(0)
    return f"{encoding}-{'be' if is_big else 'le'}"


def text_decoder(encoding, errors="strict"):
    """Return an incremental decoder."""
    return codecs.getincrementaldecoder(encoding)(errors)


def is_utf8(data):
    """Return whether data are certainly UTF-8: valid, with at least 8 non-ASCII characters.

    One or two characters of cp949 may be valid UTF-8.

    Args:
        data: bytes, which may end within a character.
    """
    try:
        text = text_decoder("utf-8").decode(data)
    except UnicodeDecodeError:
        return False
    return sum(not character.isascii() for character in text) >= 8


def likely_encoding(raw):
    """Guess the encoding of bytes that are not UTF-8, or return `None`.

    Only for errors: a wrong encoding silently gives wrong text.

    Args:
        raw: bytes. A few lines are enough.

    >>> likely_encoding("이 영화는 재미있다".encode("cp949"))
    'cp949'
    """
    raw = raw[: 1 << 16]
    if b"\x1b$" in raw:
        return "iso2022_jp"
    if b"\0" in raw:
        # In little-endian text, an ASCII character's zero byte is last.
        return "utf-16-le" if raw[1::2].count(0) > raw[::2].count(0) else "utf-16-be"
    plain = raw.decode("utf-8", "replace")
    foreign = sum(not character.isascii() for character in plain)
    if plain.count("\ufffd") < 0.1 * foreign:
        return None  # The text is damaged UTF-8.
    shares = {}
    for encoding, is_usual in (
        ("cp949", _is_usual_hangul),
        ("cp932", _is_kana),
        ("euc_jp", _is_kana),
    ):
        # It ignores an incomplete last character.
        text = text_decoder(encoding, "replace").decode(raw)
        foreign = [character for character in text if not character.isascii()]
        if foreign and text.count("\ufffd") <= 0.01 * len(foreign):
            shares[encoding] = sum(map(is_usual, foreign)) / len(foreign)
    best = max(shares, key=shares.get, default=None)
    # Japanese has as many Chinese characters as kana, Korean nearly none.
    if best and shares[best] >= (0.8 if best == "cp949" else 0.3):
        return best
    high = sum(byte >= 0x80 for byte in raw)
    return "cp1252" if high <= 0.2 * len(raw) else None


def _is_usual_hangul(character):
    """Return whether a character is among the 2,350 Hangul syllables of KS X 1001.

    Other text decoded as Korean has rarer syllables.
    """
    if not "\uac00" <= character <= "\ud7a3":
        return False
    try:
        return len(character.encode("euc_kr")) == 2  # Other syllables take eight bytes.
    except UnicodeEncodeError:
        return False


def _is_kana(character):
    """Return whether a character is full-width kana.

    Nearly any byte decodes to half-width kana in a Japanese encoding.
    """
    return "\u3000" <= character <= "\u30ff"
