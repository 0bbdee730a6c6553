"""RoBERTa's and ModernBERT's tokenizers compared with the `tokenizers` library."""

import json
import random

import pytest
import tokenizers

from kerasbert.text.byte_pair import byte_characters
from kerasbert.tokenizers import ModernBertTokenizer, RobertaTokenizer, tokenizer_from_files

pytestmark = pytest.mark.backends("tensorflow")  # No backend changes the results.

BYTES = {character: id for id, character in enumerate(byte_characters())}
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def rust_byte_pairs(vocabulary, merges, normalizer=None, add_prefix_space=False):
    rust = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    rust.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    rust.decoder = tokenizers.decoders.ByteLevel()
    if normalizer:
        rust.normalizer = normalizer
    return rust


def encode(rust, texts):
    return [x.ids for x in rust.encode_batch(texts, add_special_tokens=False)]


@pytest.fixture(scope="module")
def modern(byte_pairs, tmp_path_factory):
    """`(rust, directory)`: a tokenizer.json like ModernBERT's, with its kinds of added tokens."""
    vocabulary, merges = byte_pairs
    plain = {token: id for token, id in vocabulary.items() if token not in ROBERTA}
    plain = {token: id for id, token in enumerate(plain)}
    rust = rust_byte_pairs(plain, merges, tokenizers.normalizers.NFC())
    added = tokenizers.AddedToken
    rust.add_tokens(
        [added("|||IP_ADDRESS|||", normalized=True), added("Å", normalized=True)]
        + [added(" " * n, normalized=True) for n in range(24, 1, -1)]
        + [added(f"[unused{i}]", normalized=True) for i in range(3)]
        + [added("raw", normalized=False), added("left", lstrip=True), added("right", rstrip=True)]
    )
    rust.add_special_tokens(
        ["<|padding|>", "<|endoftext|>", "[UNK]", "[CLS]", "[SEP]", "[PAD]"]
        + [added("[MASK]", lstrip=True, special=True, normalized=False)]
    )
    ends = [(token, rust.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    rust.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    directory = tmp_path_factory.mktemp("modern")
    rust.save(str(directory / "tokenizer.json"))
    return rust, str(directory)


ADDED = [
    "hello  world",
    "a   b\n\n  c  ",
    " " * 30 + "x",
    "x |||IP_ADDRESS||| y[unused1]z [unused9]",
    "A\u030a x cafe\u0301 \u212b \u1100\u1161\u11a8",
    "raw  left right x leftright \u3000left\u2028right\u3000",
    "withoutraw\0left \0 right\0 x\0\0  [unused0]",
]


@pytest.mark.peers
def test_roberta_is_as_in_transformers(byte_pairs, hard, sentences, tmp_path):
    import transformers

    vocabulary, merges = byte_pairs
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    lines = ["#version: 0.2"] + [" ".join(pair) for pair in merges]
    (tmp_path / "merges.txt").write_text("\n".join(lines) + "\n")
    for prefix in (False, True):
        config = {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": prefix}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        theirs = transformers.RobertaTokenizer.from_pretrained(tmp_path).backend_tokenizer
        texts = [text for text in hard + sentences if "<" not in text] + ADDED
        tokenizer = RobertaTokenizer.from_files(tmp_path)
        assert tokenizer.add_prefix_space == prefix
        assert tokenizer(texts) == encode(theirs, texts)
        assert tokenizer.tokenize_with_offsets(texts)[0] == tokenizer(texts)
        asked = RobertaTokenizer.from_files(tmp_path, special_tokens_in_strings=True)
        special = ["<s>hello</s>", "x<pad>  <unk> y"]
        assert asked(special) == encode(theirs, special)
    assert tokenizer.num_separators == 2


@pytest.mark.peers
def test_deberta_is_as_in_transformers(byte_pairs, hard, sentences, tmp_path):
    """From files without a `tokenizer.json`, as those of the first DeBERTa."""
    import transformers

    roles = {"<s>": "[CLS]", "</s>": "[SEP]", "<pad>": "[PAD]", "<unk>": "[UNK]"}
    roles["<mask>"] = "[MASK]"
    vocabulary, merges = byte_pairs
    vocabulary = {roles.get(token, token): id for token, id in vocabulary.items()}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    lines = ["#version: 0.2"] + [" ".join(pair) for pair in merges]
    (tmp_path / "merges.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    theirs = transformers.DebertaTokenizer.from_pretrained(tmp_path).backend_tokenizer
    ours = tokenizer_from_files(tmp_path, "deberta")
    assert type(ours) is ModernBertTokenizer and ours.normalization is None
    assert ours.num_separators == 1
    texts = [text for text in hard + sentences if "[" not in text] + ADDED
    assert ours(texts) == encode(theirs, texts)


def test_mask_takes_the_space_before_it(make):
    tokenizer = make("RobertaTokenizer", special_tokens_in_strings=True)
    ids, starts, ends = tokenizer.tokenize_with_offsets("a  <mask>, b<mask>")
    tokens = [tokenizer.id_to_token(id) for id in ids]
    assert tokens[:2] == ["a", "<mask>"] and tokens[-1] == "<mask>"
    assert [(starts[i], ends[i]) for i in (0, 1, -1)] == [(0, 1), (3, 9), (12, 18)]
    assert make("RobertaTokenizer")("<mask>") != [tokenizer.mask_token_id]


@pytest.mark.slow
def test_modernbert_is_as_its_tokenizer_json(modern, hard, sentences):
    rust, directory = modern
    asked = ModernBertTokenizer.from_files(directory, special_tokens_in_strings=True)
    assert asked.vocabulary_size() == rust.get_vocab_size()
    texts = [*hard, *sentences, *ADDED, " [MASK]  x", "[CLS][SEP]  [MASK] [PAD]", "<|padding|> x"]
    assert asked(texts) == encode(rust, texts)
    plain = ModernBertTokenizer.from_files(directory)
    special = [text for text in texts if "[MASK]" in text or "<|" in text]
    texts = [text for text in texts if text not in special]
    assert plain(texts) == encode(rust, texts)
    # Special tokens are text: the letters of their names.
    for text in special:
        assert not set(plain(text)) & set(asked.special_token_ids)
        assert plain.detokenize(plain(text)) == text
    assert (plain.num_separators, plain.normalization) == (1, "NFC")


@pytest.mark.slow
def test_offsets_of_modernbert(modern):
    _, directory = modern
    tokenizer = ModernBertTokenizer.from_files(directory, special_tokens_in_strings=True)
    text = "cafe\u0301   x |||IP_ADDRESS|||  [MASK] A\u030a\u1100\u1161\u11a8!"
    ids, starts, ends = tokenizer.tokenize_with_offsets(text)
    spans = {tokenizer.id_to_token(id): text[s:e] for id, s, e in zip(ids, starts, ends)}
    assert spans["   "] == "   "
    assert spans["|||IP_ADDRESS|||"] == "|||IP_ADDRESS|||"
    assert spans["[MASK]"] == "[MASK]"
    assert spans["Å"] == "A\u030a"
    assert text[starts[0] : ends[0]].startswith("c")
    assert "e\u0301" in {text[s:e][-2:] for s, e in zip(starts, ends)}
    # All bytes of a syllable have its offsets.
    assert {"\u1100\u1161\u11a8", "!"} <= {text[s:e] for s, e in zip(starts, ends)}


@pytest.mark.slow
def test_offsets_leave_out_the_space_before_a_word():
    vocabulary = BYTES | {token: 256 + i for i, token in enumerate([*ROBERTA, "lo", "Ġlo", "ĠĠ"])}
    merges = ["l o", "Ġ lo", "Ġ Ġ"]
    for prefix in (False, True):
        tokenizer = RobertaTokenizer(vocabulary, merges, add_prefix_space=prefix)
        text = "lo lo   lo\nlo 中\tx "
        ids, starts, ends = tokenizer.tokenize_with_offsets(text)
        tokens = [tokenizer.id_to_token(id) for id in ids]
        spans = [text[s:e] for s, e in zip(starts, ends, strict=True)]
        assert tokens[:6] == ["Ġlo" if prefix else "lo", "Ġlo", "ĠĠ", "Ġlo", "Ċ", "lo"]
        assert spans == [*("lo", "lo", "  ", "lo", "\n", "lo", " ", "中", "中", "中"), *"\tx "]


@pytest.mark.slow
def test_agrees_on_every_character():
    """Rust and TensorFlow agree on letters, numbers, spaces and other characters."""
    from tests.text import reference

    merges = [("Ġ", byte) for byte in BYTES if byte != "Ġ"] + [("Ġ", "Ġ")]
    merges += [("a", byte) for byte in BYTES] + [("1", byte) for byte in BYTES]
    merges += [("!", byte) for byte in BYTES]
    merges = list(dict.fromkeys(merges))
    tokens = [*BYTES, *dict.fromkeys("".join(pair) for pair in merges), *ROBERTA]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    # A character joins the previous one only if both are of one kind.
    characters = reference.assigned_characters()
    texts = [f"a{c} 1{c} !{c}  {c}'s{c}" for c in characters]
    want = encode(rust_byte_pairs(vocabulary, merges), texts)
    got = RobertaTokenizer(vocabulary, merges)(texts)
    assert [c for c, x, y in zip(characters, got, want, strict=True) if x != y] == []


@pytest.mark.slow
@pytest.mark.parametrize("trained", [True, False])
def test_random_merges(trained):
    rng = random.Random(0)
    letters = list("abc")
    tokens = list(letters)
    merges = []
    while len(merges) < 40:
        pair = (rng.choice(tokens), rng.choice(tokens))
        if trained and "".join(pair) in tokens or pair in merges:
            continue
        merges.append(pair)
        tokens = list(dict.fromkeys([*tokens, "".join(pair)]))
    if not trained:
        rng.shuffle(merges)
    vocabulary = BYTES | {
        token: 256 + i for i, token in enumerate([t for t in tokens if t not in BYTES] + ROBERTA)
    }
    tokenizer = RobertaTokenizer(vocabulary, merges)
    texts = ["".join(rng.choices(letters, k=rng.randint(1, 40))) for _ in range(2000)]
    assert tokenizer(texts) == encode(rust_byte_pairs(vocabulary, merges), texts)
    assert tokenizer._tables()["in_order"] == trained


def test_random_texts(make, byte_pairs):
    rng = random.Random(0)
    alphabet = "  \n\t\u00a0\u3000''stmdrevl1٣.,#aé\u0301中が\u200b\0\U0001f600\u00ad½"
    texts = ["".join(rng.choices(alphabet, k=rng.randint(0, 40))) for _ in range(3000)]
    assert make("RobertaTokenizer")(texts) == encode(rust_byte_pairs(*byte_pairs), texts)


@pytest.mark.slow
def test_detokenize_gives_the_text_back(make, hard, sentences):
    for name in ("RobertaTokenizer", "ModernBertTokenizer"):
        tokenizer = make(name, **({"normalization": None} if name[0] == "M" else {}))
        texts = hard + sentences
        assert tokenizer.detokenize(tokenizer(texts)) == texts


def test_mistakes_are_one_sentence(byte_pairs, tmp_path):
    vocabulary, merges = byte_pairs
    with pytest.raises(ValueError, match=r"The merge 'qq zz' needs the token 'qq'"):
        RobertaTokenizer(vocabulary, ["qq zz"])
    with pytest.raises(ValueError, match="must be two tokens"):
        RobertaTokenizer(vocabulary, ["a b c"])
    with pytest.raises(ValueError, match=r"lacks '\[UNK\]' \(unk_token\)"):
        ModernBertTokenizer(vocabulary, merges)
    for token, message in (
        ({"content": "a", "single": True}, "'a' has no argument 'single'; did you mean single_w"),
        ({"content": "a", "lstrip": 1}, "lstrip of the added token 'a'=1 must be true or false"),
        ({"lstrip": True}, "the content of an added token=None must be a string"),
        ("a", "an added token='a' must be an object"),
    ):
        with pytest.raises(ValueError, match=message):
            RobertaTokenizer(vocabulary, merges, added_tokens=[token])
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(ValueError, match=r"no merges\.txt"):
        RobertaTokenizer.from_files(tmp_path)
    rust = rust_byte_pairs(vocabulary, merges, tokenizers.normalizers.Lowercase())
    rust.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"normalizes text with \['Lowercase'\]"):
        RobertaTokenizer.from_files(tmp_path)
    rust = rust_byte_pairs(vocabulary, merges)
    rust.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    rust.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"splits words with \['Whitespace'\]"):
        RobertaTokenizer.from_files(tmp_path)


@pytest.mark.slow
def test_why_it_is_not_keras_hubs(byte_pairs):
    """KerasHub's tokenizer splits these differently; if it agrees one day, use it."""
    import keras_hub

    vocabulary, merges = byte_pairs
    theirs = keras_hub.tokenizers.BytePairTokenizer(
        vocabulary, [" ".join(pair) for pair in merges], _allow_python_workflow=False
    )
    rust = rust_byte_pairs(vocabulary, merges)
    texts = ["They'd  said\n\nso", "a   b", "trail  ", "x\u00a0y", "it'sa"]
    got = [list(map(int, theirs(text))) for text in texts]
    assert got != encode(rust, texts)
    assert RobertaTokenizer(vocabulary, merges)(texts) == encode(rust, texts)
