"""Character classes and cleaning of texts for BERT's tokenizer, in TensorFlow graphs.

Shapes: N texts.
"""

import re

from kerasbert.backend.tensorflow import tf, tf_text

# Deleted, as in Google's code: U+FFFD and the categories Cc and Cf, except tab, newline and
# carriage return.
DELETED = r"[\x{0}-\x{8}\x{B}\x{C}\x{E}-\x{1F}\x{7F}-\x{9F}\x{FFFD}\p{Cf}]+"
SPACE = r"\t\n\r \x{85}\p{Z}"
PUNCTUATION = r"!-/:-@\[-`{-~\p{P}"
CJK = (
    r"\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{2A6DF}"
    r"\x{2A700}-\x{2CEAF}\x{2F800}-\x{2FA1F}"
)
# Capitals newer than TensorFlow's Unicode 13: first, last, distance to the lowercase letter.
YOUNG_CAPITALS = (
    (0x2C2F, 0x2C2F, 0x30),
    (0xA7C0, 0xA7C0, 1),
    (0xA7D0, 0xA7D0, 1),
    (0xA7D6, 0xA7D6, 1),
    (0xA7D8, 0xA7D8, 1),
    (0x10570, 0x10595, 0x27),
)
# Characters newer than the Unicode version of the library `tokenizers` (0.23) or of TensorFlow
# (13), which treat them differently. A test covers all others.
NEWER = (
    "\u061d\u07fd\u0890\u0891\u0898-\u089f\u08ca-\u08e2\u09fd\u09fe\u0a76\u0afa-\u0aff\u0b55"
    "\u0c04\u0c3c\u0c77\u0c84\u0d00\u0d3b\u0d3c\u0d81\u0eba\u0ece\u180f\u1885\u1886"
    "\u1abf-\u1ace\u1b7d\u1b7e\u1c89\u1df6-\u1dfb\u2e43-\u2e4f\u2e52-\u2e5d\ua7cb\ua7cc\ua7ce"
    "\ua7d2\ua7d4\ua7da\ua7dc\ua82c\ua8c5\ua8ff\ua9bd\U0001057b\U0001058b\U00010593\U000105c9"
    "\U000105e4\U00010d24-\U00010d27\U00010d50-\U00010d65\U00010eab-\U00010ead"
    "\U00010efd-\U00010eff\U00010f46-\U00010f50\U00010f55-\U00010f59\U00010f82-\U00010f89"
    "\U00011070\U00011073\U00011074\U000110c2\U000110cd\U000111cf\U0001123e\U00011241"
    "\U0001133b\U00011383\U00011385\U0001138e\U00011391\U000113c5\U000113c7\U000113c8"
    "\U00011438-\U0001143f\U00011442-\U00011444\U00011446\U0001144b-\U0001144f"
    "\U0001145a\U0001145b\U0001145d\U0001145e\U00011660-\U0001166c\U000116b9"
    "\U0001182f-\U00011837\U00011839-\U0001183b\U00011938\U0001193b\U0001193c\U0001193e"
    "\U00011943-\U00011946\U000119d4-\U000119d7\U000119da\U000119db\U000119e0\U000119e2"
    "\U00011a01-\U00011a0a\U00011a33-\U00011a38\U00011a3b-\U00011a47\U00011a51-\U00011a56"
    "\U00011a59-\U00011a5b\U00011a8a-\U00011a96\U00011a98-\U00011a9c\U00011a9e-\U00011aa2"
    "\U00011b00-\U00011b09\U00011c30-\U00011c36\U00011c38-\U00011c3d\U00011c3f"
    "\U00011c41-\U00011c45\U00011c70\U00011c71\U00011c92-\U00011ca7\U00011caa-\U00011cb0"
    "\U00011cb2\U00011cb3\U00011cb5\U00011cb6\U00011d31-\U00011d36\U00011d3a"
    "\U00011d3c\U00011d3d\U00011d3f-\U00011d45\U00011d47\U00011d90\U00011d91\U00011d95"
    "\U00011d97\U00011ef3\U00011ef4\U00011ef7\U00011ef8\U00011f00\U00011f01"
    "\U00011f36-\U00011f3a\U00011f40\U00011f42-\U00011f4f\U00011fff\U00012ff1\U00012ff2"
    "\U00013430-\U00013440\U00013447-\U00013455\U00016121-\U00016128\U00016d68-\U00016d6a"
    "\U00016e97-\U00016e9a\U00016ea0-\U00016eb8\U00016f4f\U00016fe2\U00016fe4"
    "\U0001cf00-\U0001cf2d\U0001cf30-\U0001cf46\U0001e000-\U0001e006\U0001e008-\U0001e018"
    "\U0001e01b-\U0001e021\U0001e023\U0001e024\U0001e026-\U0001e02a\U0001e08f"
    "\U0001e130-\U0001e136\U0001e2ae\U0001e2ec-\U0001e2ef\U0001e4ec-\U0001e4ef"
    "\U0001e944-\U0001e94a\U0001e95e\U0001e95f\U0002b820-\U0002b91f"
)
# Those that the library lowercases: first, last, distance to the lowercase letter.
CAPITALS_IN_LIBRARY = (
    *((0x1C89, 0x1C89, 1), (0xA7CB, 0xA7CB, -0xA567), (0xA7CC, 0xA7CC, 1), (0xA7CE, 0xA7CE, 1)),
    *((0xA7D2, 0xA7D2, 1), (0xA7D4, 0xA7D4, 1), (0xA7DA, 0xA7DA, 1), (0xA7DC, 0xA7DC, -0xA641)),
    *((0x10D50, 0x10D65, 0x20), (0x16EA0, 0x16EB8, 0x1B)),
)
# Punctuation and a vowel sign that are punctuation and an accent in the library alone.
PUNCTUATION_IN_LIBRARY, ACCENT_IN_LIBRARY = "\u166d\U000111c9", "\u1734"
# Deleted by the library.
PRIVATE_USE = "\ue000-\uf8ff\U000f0000-\U0010ffff"
# The library has no final sigma, and our graph uses U+FFFE as a marker.
OTHER_IN_LIBRARY = re.compile(
    f"[{NEWER}{PUNCTUATION_IN_LIBRARY}{ACCENT_IN_LIBRARY}\u03a3\ufffe{PRIVATE_USE}]"
)


def _points_of(ranges):
    """Return the code points of a character class."""
    found = re.findall("(.)(?:-(.))?", ranges, re.DOTALL)
    return sorted(i for a, b in found for i in range(ord(a), ord(b or a) + 1))


# Replaced by private-use letters, which texts no longer have, to follow the library: U+111C9 is an
# accent to TensorFlow.
REPLACED = NEWER + "\U000111c9"
OPAQUE = {point: 0xF0000 + i for i, point in enumerate(_points_of(REPLACED))}
# Blocks with accents. A letter's offsets include removed accents with Google's rules, but not in
# the library.
ACCENTS = re.compile(
    "[\u0300-\u036f\u0483-\u0489\u0590-\u109f\u135d-\u135f\u1712-\u18af\u1920-\u1cff\u1dc0-\u1dff"
    "\u20d0-\u20f0\u2cef-\u2cf1\u2d7f\u2de0-\u2dff\u302a-\u302d\u3099\u309a\ua66f-\ua67d\ua69e-\ua6f1"
    "\ua802-\uaaff\uabe5-\uabed\ufb1e\ufe00-\ufe2f\U000101fd-\U0001efff\U000e0100-\U000e01ef]"
)


def plain_text(text, lowercase, strip_accents):
    """Remove control characters from texts (N,), and optionally lowercase and remove accents."""
    clean = tf.strings.regex_full_match(text, DELETED.replace("[", "[^").replace("]+", "]*"))
    text = tf.cond(
        tf.reduce_all(clean),
        lambda: text,
        lambda: tf.strings.regex_replace(text, DELETED, ""),
    )
    if lowercase:
        # ASCII first: with LANG=tr_TR the UTF-8 op converts I to a dotless i.
        text = tf.strings.regex_replace(text, "\u0130", "i\u0307")
        text = tf.strings.lower(tf.strings.lower(text), encoding="utf-8")
    if strip_accents:
        text = tf_text.normalize_utf8(text, "NFD")
        text = tf.strings.regex_replace(text, r"\p{Mn}+", "")
    return text


def as_in_library(text, lowercase, strip_accents, split_on_punctuation):
    """Replace the characters of texts (N,) that the library `tokenizers` treats differently."""
    text = tf.strings.regex_replace(text, r"\p{Co}+", "")
    if lowercase:
        text = tf.strings.regex_replace(text, "Σ", "σ")
    if split_on_punctuation:
        text = tf.strings.regex_replace(text, f"[{PUNCTUATION_IN_LIBRARY}]", r" \0 ")
    if strip_accents:
        text = tf.strings.regex_replace(text, ACCENT_IN_LIBRARY, "")
    stand_ins = dict(OPAQUE)
    if lowercase:
        for first, last, distance in CAPITALS_IN_LIBRARY:
            stand_ins |= {i: i + distance for i in range(first, last + 1)}
    known, instead = map(tf.constant, (list(stand_ins), list(stand_ins.values())))

    def replaced():
        points = tf.strings.unicode_decode(text, "UTF-8")
        places = tf.searchsorted(known, points.flat_values)
        places = tf.minimum(places, len(stand_ins) - 1)
        is_known = tf.gather(known, places) == points.flat_values
        values = tf.where(is_known, tf.gather(instead, places), points.flat_values)
        return tf.strings.unicode_encode(points.with_flat_values(values), "UTF-8")

    newer = tf.strings.regex_full_match(text, f"(?s).*[{REPLACED}].*")
    return tf.cond(tf.reduce_any(newer), replaced, lambda: text)
