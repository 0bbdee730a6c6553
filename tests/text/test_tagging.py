"""Tags to entities as the CoNLL evaluation script reads them, and back; words of texts."""

import unicodedata

import numpy as np
import pytest

from kerasbert.text.tagging import SCHEMES, TagSet, tag_names, word_spans

TYPES = ["PER", "LOC"]


def conlleval(tags):
    """Return entities by the script's two rules: whether an entity ends before a word, and whether
    one begins at it.
    """
    found, start = [], None
    before, type_before = "O", ""
    for place, tag in enumerate([*tags, "O"]):
        letter, _, type = tag.partition("-")
        ends = before != "O" and (
            before in "ESLUW" or letter in "BSUWO" or (letter != "O" and type != type_before)
        )
        begins = letter != "O" and (letter in "BSUW" or before in "ESLUWO" or type != type_before)
        if ends:
            found.append((type_before, start, place))
        if begins:
            start = place
        before, type_before = letter, type
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
def test_random_tags_are_read_as_by_conlleval(scheme):
    names = tag_names(TYPES, scheme)
    tags = TagSet(names)
    random = np.random.default_rng(0)
    seen = set()
    for _ in range(1000):
        numbers = random.integers(0, len(names), random.integers(0, 12))
        found = tags.entities(numbers)
        assert found == conlleval([names[number] for number in numbers])
        seen.update(end - start for _, start, end in found)
    assert {1, 2, 3} <= seen


@pytest.mark.parametrize("scheme", SCHEMES)
def test_entities_come_back(scheme):
    tags = TagSet(tag_names(TYPES, scheme))
    random = np.random.default_rng(1)
    for _ in range(200):
        numbers, expected = [], []
        while len(numbers) < 10:
            gap, size = random.integers(scheme == "IO", 3), random.integers(1, 4)
            numbers += [tags.outside] * gap
            type = TYPES[random.integers(2)]
            expected.append((type, len(numbers), len(numbers) + size))
            numbers += [tags.number(type, i == 0, i == size - 1) for i in range(size)]
        assert tags.entities(numbers) == expected


def test_names():
    assert tag_names(["O", "PER"], "BIOES") == ["O", "B-PER", "I-PER", "E-PER", "S-PER"]
    assert tag_names(["PER"], "BILOU") == ["O", "B-PER", "I-PER", "L-PER", "U-PER"]
    assert tag_names(["PER"], "IO") == ["O", "I-PER"]
    assert tag_names(["NOUN", "VERB"]) == ["NOUN", "VERB"]
    given = ["O", "B-PER", "I-PER"]
    assert tag_names(given, "BIO") == tag_names(given) == given
    for other, usual in (("IOB2", "BIO"), ("IOB", "BIO"), ("IOBES", "BIOES"), ("BILUO", "BILOU")):
        assert tag_names(["PER"], other) == tag_names(["PER"], usual)
    assert tag_names(["PER"], "BMEWO") == ["O", "B-PER", "M-PER", "E-PER", "W-PER"]
    for unknown in ("IOB1", "IOE2", "iobes", "BIES"):
        known = "BIO, IOB, IOB2, BIOES, IOBES, BILOU, BILUO, BMES, BMEWO, IO"
        with pytest.raises(ValueError, match=f"scheme='{unknown}' is unknown; use one of {known}"):
            tag_names(["PER"], unknown)


def test_parts_of_speech_are_entities_of_one_word():
    tags = TagSet(["NOUN", "VERB", "O", "FW-NN"])
    assert tags.entities([0, 0, 2, 1, 3]) == [
        ("NOUN", 0, 1),
        ("NOUN", 1, 2),
        ("VERB", 3, 4),
        ("FW-NN", 4, 5),
    ]


def test_tags_without_a_type():
    tags = TagSet(["B", "I", "O"])
    assert tags.entities([0, 1, 2, 1, 0]) == [("", 0, 2), ("", 3, 4), ("", 4, 5)]


def test_tags_of_pieces():
    names = tag_names(["PER"], "BIOES")
    table = TagSet(names).of_pieces()

    def of(name, pieces):
        return [
            names[table[names.index(name), int(i == 0), int(i == pieces - 1)]]
            for i in range(pieces)
        ]

    assert of("S-PER", 3) == ["B-PER", "I-PER", "E-PER"]
    assert of("S-PER", 1) == ["S-PER"]
    assert of("B-PER", 2) == ["B-PER", "I-PER"]
    assert of("E-PER", 2) == ["I-PER", "E-PER"]
    assert of("O", 2) == ["O", "O"]
    assert TagSet(["NOUN"]).of_pieces().tolist() == [[[0, 0], [0, 0]]]


@pytest.mark.parametrize(
    "names, good, bad",
    [
        ("O B-X I-X B-Y I-Y", "X O BX IX IX BX BY O X", "X IX|O IX|BY IX|IY IX"),
        ("O B-X I-X E-X S-X", "X BX IX EX SX BX EX O X", "BX X|IX X|BX O|BX SX|X EX|EX IX|SX EX"),
        ("O B-X M-X E-X W-X", "X BX MX MX EX WX X", "MX O|X MX|MX WX"),
        ("O I-X I-Y", "X IX IY IX O IX X", ""),
        ("noun verb", "X noun verb verb X", ""),
        ("B M E S", "X B M E S S B E X", "B B|X E|M X"),
    ],
)
def test_allowed_transitions(names, good, bad):
    """`good` is a path and `bad` has pairs; "X" is the beginning or end of a text."""
    names = names.split()
    numbers = {name.replace("-", ""): number for number, name in enumerate(names)}
    numbers["X"] = len(names)
    allowed = TagSet(names).allowed()
    path = [numbers[name] for name in good.split()]
    assert allowed[path[:-1], path[1:]].all()
    for pair in filter(None, bad.split("|")):
        before, after = (numbers[name] for name in pair.split())
        assert not allowed[before, after], pair
    if not bad:
        assert allowed.all()


def test_words():
    def words(text):
        return [text[start:end] for start, end in word_spans(text)]

    assert words("") == words(" \t\u3000\u2028") == []
    assert words("don't  pay\t€10, “ok”…") == "don ' t pay €10 , “ ok ” …".split()
    assert words("e\u0301te\u0301 naïve") == ["e\u0301te\u0301", "naïve"]
    assert words("東京タワー 서울에서 हिन्दी") == ["東", "京", "タワー", "서울에서", "हिन्दी"]
    assert words("👩‍👩‍👧 🇰🇷x a\u200bb") == ["👩‍👩‍👧", "🇰🇷x", "a\u200bb"]
    assert words("\x01!!\ufe0f\u200b京\u200b \u200bx") == [
        "\x01!",
        "!\ufe0f\u200b",
        "京\u200b",
        "\u200bx",
    ]


USUAL = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
SPELLINGS = {
    "suffixes": ["O", "PER-B", "PER-I", "LOC-B", "LOC-I"],
    "suffixes and -": ["-", "PER-B", "PER-I", "LOC-B", "LOC-I"],
    "suffixes and _": ["O", "PER_B", "PER_I", "LOC_B", "LOC_I"],
    "lower case": ["o", "b-PER", "i-PER", "b-LOC", "i-LOC"],
    "underscores": ["O", "B_PER", "I_PER", "B_LOC", "I_LOC"],
    "colons": ["OUT", "B:PER", "I:PER", "B:LOC", "I:LOC"],
    "none": ["none", "B-PER", "I-PER", "B-LOC", "I-LOC"],
    "outside": ["Outside", "PER/B", "PER/I", "LOC/B", "LOC/I"],
}


@pytest.mark.parametrize("names", SPELLINGS.values(), ids=SPELLINGS)
def test_spellings(names):
    tags, usual = TagSet(names), TagSet(USUAL)
    assert tags.meanings == usual.meanings and tags.types == TYPES and tags.outside == 0
    assert tags.entities([1, 2, 0, 3, 4, 4, 1]) == usual.entities([1, 2, 0, 3, 4, 4, 1])
    assert tag_names(names, "BIO") == names
    # A tag set may have only some of the tags, as in a few texts.
    assert TagSet(names[:3]).entities([1, 2, 0, 1]) == [("PER", 0, 2), ("PER", 3, 4)]


@pytest.mark.parametrize("outside", ["Ｏ", "－", "—", "none"])
def test_outside_of_full_width(outside):
    names = [outside, "Ｂ－人名", "Ｉ－人名"]
    assert TagSet(names).outside == 0
    assert TagSet(names).entities([1, 2, 0, 2]) == [("人名", 0, 2), ("人名", 3, 4)]
    types = [unicodedata.normalize(form, "ガ") for form in ("NFC", "NFD")]
    mixed = TagSet(["O", f"B-{types[0]}", f"I-{types[1]}"])
    assert mixed.types == types[:1] and mixed.entities([1, 2, 2]) == [(types[0], 0, 3)]


@pytest.mark.parametrize("letters", ["BIES", "BILU", "BMES", "BMEW", "ＢＩＥＳ"])
@pytest.mark.parametrize(
    "form", ["{0}-{1}", "{1}-{0}", "{1}_{0}", "{0}_{1}", "{0}–{1}", "{0}－{1}"]
)
def test_schemes_of_four_letters(letters, form):
    first, middle, last, alone = (form.format(letter, "PER") for letter in letters)
    names = ["O", first, middle, last, alone]
    found = TagSet(names).entities([1, 2, 3, 4, 0, 1, 3, 1])
    assert found == [("PER", 0, 3), ("PER", 3, 4), ("PER", 5, 7), ("PER", 7, 8)]


def test_segmentation_without_types():
    assert TagSet(list("BMES")).entities([0, 1, 2, 3, 0, 2]) == [("", 0, 3), ("", 3, 4), ("", 4, 6)]


@pytest.mark.parametrize(
    "names",
    [
        ["NOUN", "VERB", "-", "O"],
        ["NN", "VB-S", "JJ_I", "."],
        ["PRP-B", "MD", "VB"],
        ["O", "B-PER", "I-PER", "DATE"],
        ["S-PRED", "ADV-S", "O"],
    ],
)
def test_other_labels_stay_what_they_are(names):
    """A label that only looks like a tag does not turn the others into tags."""
    meanings = dict(zip(names, TagSet(names).meanings))
    for name in {"NOUN", "-", "NN", "VB-S", "JJ_I", ".", "PRP-B", "MD", "DATE", "ADV-S"} & {*names}:
        assert meanings[name] == (name, True, True)


def test_types_that_are_letters():
    assert TagSet(["E-B", "E-I", "L-B", "L-I", "O"]).types == ["E", "L"]
    assert TagSet(["B-E", "I-E", "B-L", "O"]).types == ["E", "L"]
    assert TagSet(["B-I-X", "I-I-X", "O"]).types == ["I-X"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["O", "PER-B", "PER-I", "B-LOC"], "'PER-B' and 'B-LOC' do not match"),
        (["X", "PER-B", "PER-I"], "'PER-B' and 'X' do not match.* 'O' for words outside"),
        (["O", "B_PER", "I_PER", "DATE"], "'B_PER' and 'DATE' do not"),
    ],
)
def test_mixed_spellings_are_refused(names, message):
    with pytest.raises(ValueError, match=message):
        TagSet(names)
