"""The graph of a `FastTokenizer`, compared with the library `tokenizers`: ids and offsets."""

import itertools
import json
import random
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tokenizers
from tokenizers import Regex, Tokenizer, decoders, models
from tokenizers import normalizers as n
from tokenizers import pre_tokenizers as p

from kerasbert.text.choose import tokenizer_from_files
from kerasbert.text.fast import FastTokenizer
from kerasbert.text.fast_graph.tables import POINTS
from tests.text.conftest import HARD, SENTENCES
from tests.text.test_fast import FLAGS, ROWS, SPECIAL, fuzzed, library, write

pytestmark = pytest.mark.backends("tensorflow")  # No backend changes the results.

# Rows of `ROWS` that the quick tests run: together they have most steps.
QUICK = ("course", "metaspace_first")
# Regular expressions of published tokenizers, and others.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
REGEXES = (
    *(GPT2, LLAMA3, r"[^\W\d_]+|\d", r"(?<=[a-z])(?=[A-Z])", r"(?<![a-z])(?=\p{Lu})|(?<=\d)"),
    *(
        r"\w+(?=\s)",
        r"(?<=\s)[a-z]+",
        r"[가-힣]+|[ぁ-んァ-ヶ]|[一-鿿&&[^中]]",
        r".{2,3}?x|\.",
        r"\x{41}|[\[\]a]+",
    ),
    *(r"(ab|a)(c|)", r"(?i:tra|k)"),
)
REFUSED = {
    r"a++b": "of '[+]'",
    r"\bword": "of '.*bwo?'",
    r"(a)\1": "of '.*1'",
    r"a*": "empty text",
    r"a{,2}b": "of '[{],2'",
    r"a{2}?b": "of '[{]2}[?]'",
    r"(?i:ass)": "of 'ss' without case",
    r"x(?!yz)": "more than one character",
    r"(?>a|b)c": "of '[(][?]>'",
    r"^a": "of '[\\^]a'",
    "": "of a match of empty text",
    r"a{600}b{600}": "of more than 1000 repetitions",
    r"(?:a{30}){40}": "of an expression of this size",
}


def in_graph(tokenizer, texts, traces=True):
    """Return ids, starts and ends as lists, computed in a graph, or by its operations alone."""
    tokenizer.check_graph()
    run = tokenizer._tokenize_with_offsets  # Tracing takes seconds.
    if traces:
        run = tf.function(
            tokenizer.tokenize_with_offsets, [tf.TensorSpec([None], "string")], autograph=False
        )
    return [x.to_list() for x in run(tf.constant(texts))]


def compare(tokenizer, texts, traces=False):
    found = in_graph(tokenizer, texts, traces)
    expected = [x.to_list() for x in tokenizer._encode("_tokenize_with_offsets", texts)]
    for text, mine, theirs in zip(texts, zip(*found), zip(*expected), strict=True):
        assert (text, *mine) == (text, *theirs)


def of_bytes(normalizer=None, split=None):
    """Return a tokenizer whose ids show every character, and its offsets their origins."""
    names = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    ids = {name: id for id, name in enumerate(names)}
    made = Tokenizer(models.BPE(ids, [], unk_token="[UNK]", byte_fallback=True))
    return _of(made, normalizer, split)


def of_words(split, normalizer=None):
    """Return a tokenizer whose offsets show every word."""
    ids = {name: id for id, name in enumerate(SPECIAL)}
    return _of(Tokenizer(models.WordLevel(ids, "[UNK]")), normalizer, split)


def _of(made, normalizer, split):
    if normalizer is not None:
        made.normalizer = normalizer
    if split is not None:
        made.pre_tokenizer = split
    return FastTokenizer(json.loads(made.to_str()))


def every_character():
    """Return texts in which each character is beside letters, spaces and punctuation marks."""
    parts = [f"a{chr(i)}B {chr(i)}." for i in POINTS]
    return ["".join(parts[i : i + 100]) for i in range(0, len(parts), 100)]


def marked(count, seed=0):
    """Return texts of letters, marks in any order, and parts of Hangul syllables."""
    draw = random.Random(seed)
    marks = "\u0300\u0301\u0308\u0316\u0323\u0327\u0334\u0345\u0344\u0f71\u0f72\u093c\u3099\u05b0"
    letters = "aeüẹ각가\u1100\u1161\u11a8Åﬁか゛½\u1e9b\u0958 \u0b47\u0b56\u0b3e\U0001d15e"
    parts = [*marks, *letters]
    return ["".join(draw.choices(parts, k=draw.randrange(1, 12))) for _ in range(count)]


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x in QUICK else pytest.mark.slow) for x in ROWS]
)
def test_as_the_library(name, tmp_path):
    write(library(ROWS[name]), tmp_path)
    ours = tokenizer_from_files(tmp_path, "bert")
    if not isinstance(ours, FastTokenizer):
        return  # Another class has a graph.
    texts = SENTENCES + HARD + fuzzed(300, seed=len(name))
    compare(ours, texts, traces=True)
    compare(ours.with_special_tokens(), texts)


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["roberta", "byte_level", "sequence"])
@pytest.mark.parametrize("name", ["nmt", "no_steps", "word_level", "digits_apart"])
def test_offsets_without_white_space(name, processor, tmp_path):
    write(library(ROWS[name], processor), tmp_path)
    ours = tokenizer_from_files(tmp_path, "bert")
    compare(ours.with_special_tokens(), SENTENCES + HARD + fuzzed(300))


@pytest.mark.parametrize(
    "flags", [pytest.param(i, marks=() if i == 15 else pytest.mark.slow) for i in range(16)]
)
def test_added_tokens(flags, tmp_path):
    settings = {name: bool(flags >> place & 1) for place, name in enumerate(FLAGS)}
    added = [
        tokenizers.AddedToken("[new]", **settings),
        tokenizers.AddedToken("newer", special=bool(flags & 1), **settings),
        tokenizers.AddedToken("new", **settings | {"normalized": not flags & 8}),
    ]
    write(library(ROWS["course"], added=added), tmp_path)
    ours = tokenizer_from_files(tmp_path, "bert")
    draw = random.Random(flags)
    parts = ["newer", "[new]", "new", "New", " ", "\t", "a", "-", "語", "[MASK]", "é", "e\u0301"]
    texts = ["".join(draw.choices(parts, k=draw.randrange(1, 8))) for _ in range(400)]
    compare(ours.with_special_tokens(), texts)
    if flags < 15:
        compare(ours, texts)


NORMALIZERS = (
    *(n.NFC(), n.NFD(), n.NFKC(), n.NFKD(), n.Lowercase(), n.StripAccents(), n.Nmt(), n.Strip()),
    *(n.ByteLevel(), n.BertNormalizer(), n.BertNormalizer(False, False, True, False)),
    *(n.Replace(Regex(r"\s+|[aeiou]"), "<>"), n.Replace("a", ""), n.Prepend("xy")),
)


@pytest.mark.slow
@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=str)
def test_every_character_of_normalizers(normalizer):
    compare(of_bytes(normalizer), every_character() + marked(3000) + fuzzed(300) + HARD)


def test_normal_forms():
    ours = FastTokenizer(of_bytes(n.Prepend("_")).content, normalize="NFKC")
    compare(ours, marked(2000, 1) + HARD)


def test_the_graph_applies_a_normal_form_once(monkeypatch):
    monkeypatch.setattr("kerasbert.text.subword.run_in_form", lambda *args: 1 / 0)
    ours = FastTokenizer(of_bytes().content, normalize="NFC")
    compare(ours, ["e\u0301 \u1100\u1161", ""], traces=True)


def test_words_of_any_length_and_few_characters():
    ids = {token: id for id, token in enumerate([*SPECIAL, "a", "##a"])}
    made = Tokenizer(
        models.WordPiece(vocab=ids, unk_token="[UNK]", max_input_chars_per_word=10**12)
    )
    compare(_of(made, None, p.WhitespaceSplit()), ["aaa", "", "ab"])
    compare(of_words(p.FixedLength(2**63)), ["ab c", ""])
    pieces = [(token, 0.0) for token in SPECIAL] + [("a", -1.0), ("aa", -1.5), ("b" * 500, -2.0)]
    compare(
        _of(Tokenizer(models.Unigram(pieces, 1)), None, p.WhitespaceSplit()), ["aaa a", "", "b"]
    )


def test_control_tokens_without_an_unknown_token():
    tokens = [*"abc[]SEP", *(token for token in SPECIAL if token != "[UNK]")]
    ids = {token: id for id, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(ids, [], ignore_merges=True))
    made.pre_tokenizer = p.WhitespaceSplit()
    content = json.loads(made.to_str())
    ours = FastTokenizer(content, missing=["unk"], unk_token="[SEP]")
    compare(ours, ["ab [SEP] c", "[SEP]", "", "xyz", "axb [SEP]z", "é語a"])
    assert in_graph(ours, ["ab [SEP] c"])[0] == [[0, 1, 2]]


SPLITS = (
    *(p.BertPreTokenizer(), p.Whitespace(), p.WhitespaceSplit(), p.Digits(True)),
    *(p.Digits(False), p.Punctuation(), p.Punctuation("merged_with_previous"), p.UnicodeScripts()),
    *(p.ByteLevel(), p.ByteLevel(add_prefix_space=False), p.Metaspace(), p.FixedLength(3)),
    p.Sequence([p.Split(Regex(LLAMA3), "isolated"), p.Metaspace(prepend_scheme="first")]),
)


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_every_character_of_pre_tokenizers(split):
    compare(of_words(split), every_character() + fuzzed(300) + SENTENCES + HARD)


@pytest.mark.parametrize(
    "regex", [pytest.param(x, marks=() if x == LLAMA3 else pytest.mark.slow) for x in REGEXES]
)
def test_regular_expressions(regex):
    texts = fuzzed(500) + SENTENCES + HARD + ["abc aB ab acab CamelCaseX1 中国 STRASSE straße K"]
    compare(of_words(p.Split(Regex(regex), "isolated")), texts)


@pytest.mark.slow
@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize(
    "behavior",
    ["removed", "isolated", "contiguous", "merged_with_previous", "merged_with_next"],
)
def test_behaviors(behavior, invert):
    texts = ["".join(x) for x in itertools.product("ab ", repeat=6)]
    compare(of_words(p.Split(Regex("a|  "), behavior, invert)), texts)


@pytest.mark.parametrize("regex", REFUSED)
def test_refused(regex):
    ours = of_words(p.Split(Regex(regex), "isolated"))
    with pytest.raises(
        ValueError, match=f"tokenizer.json has the pre-tokenizer Split .*{REFUSED[regex]}"
    ):
        ours.check_graph()
    # A dataset calls the library.
    dataset = tf.data.Dataset.from_tensors(tf.constant(SENTENCES)).map(ours.tokenize)
    assert next(iter(dataset)).to_list() == ours.tokenize(SENTENCES)


def test_refused_steps():
    ours = of_bytes(n.Sequence([n.NFC(), n.Replace(Regex("^a"), "b")]))
    with pytest.raises(ValueError, match=r"has the normalizer Replace with .*'\^a'"):
        ours.check_graph()
    # Tables for so many characters would take gigabytes.
    ours = of_bytes(n.Replace("".join(map(chr, range(0x4E00, 0x9E00))), "b"))
    with pytest.raises(ValueError, match="Replace with strings .* of more than 1792"):
        ours.check_graph()
    with pytest.raises(ValueError, match="has the pre-tokenizer FixedLength with length 0"):
        of_words(p.FixedLength(0)).check_graph()
    content = of_bytes().content
    model = {**content["model"], "unk_token": "zz"}
    with pytest.raises(ValueError, match="has the model BPE without a token for unknown words"):
        FastTokenizer({**content, "model": model}).check_graph()


@pytest.mark.parametrize(
    "decoder",
    [None, decoders.WordPiece(), decoders.ByteLevel(), decoders.BPEDecoder("</w>")],
    ids=str,
)
def test_decoders(decoder, tmp_path):
    made = library(ROWS["end_of_word" if "BPED" in str(decoder) else "regex_like_gpt"])
    made.decoder = decoder
    ours = FastTokenizer(json.loads(made.to_str()) | ({} if decoder else {"decoder": None}))
    draw = random.Random(0)
    size = ours.vocabulary_size()
    rows = [[draw.randrange(size) for _ in range(draw.randrange(9))] for _ in range(200)]
    run = tf.function(ours.detokenize, autograph=False)
    found = [text.decode() for text in run(tf.ragged.constant(rows, "int32")).numpy()]
    assert found == ours.detokenize(rows)


def test_a_decoder_without_a_graph():
    ours = of_bytes()
    ours.set_content({**ours.content, "decoder": {"type": "ByteFallback"}})
    with pytest.raises(ValueError, match="decode tokens .* has the decoder ByteFallback"):
        tf.function(ours.detokenize, autograph=False)(tf.ragged.constant([[5]], "int32"))


SERVED = """
import sys, numpy as np, tensorflow as tf, tensorflow_text
served = tf.saved_model.load(sys.argv[1])
texts = open(sys.argv[2], encoding="utf-8", newline="").read().split(chr(0x1F))
ids, starts, ends = served.run(tf.constant(texts))
np.savez(sys.argv[3], *[x.flat_values.numpy() for x in (ids, starts, ends)], ids.row_lengths())
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["course", "nmt", "digits_apart", "camel_case"])
def test_in_another_process(name, tmp_path):
    write(library(ROWS[name]), tmp_path)
    ours = tokenizer_from_files(tmp_path, "bert")
    module = tf.Module()
    module.run = tf.function(
        ours.tokenize_with_offsets, [tf.TensorSpec([None], "string")], autograph=False
    )
    tf.saved_model.save(module, str(tmp_path / "served"))
    texts = [text.replace("\x1f", "") for text in SENTENCES + HARD + fuzzed(100)]
    (tmp_path / "texts").write_text("\x1f".join(texts), encoding="utf-8", newline="")
    paths = [str(tmp_path / x) for x in ("served", "texts", "found.npz")]
    subprocess.run([sys.executable, "-c", SERVED, *paths], check=True)
    found = np.load(paths[2])
    expected = ours._encode("_tokenize_with_offsets", texts)
    for one, array in zip(expected, found.values()):
        np.testing.assert_array_equal(array, one.values)
    np.testing.assert_array_equal(found["arr_3"], expected[0].row_lengths())
