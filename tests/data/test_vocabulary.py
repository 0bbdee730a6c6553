"""Vocabularies from text: order, cleaning, reproducibility, and results on real text."""

import os
import random
import subprocess
import sys
import unicodedata
import warnings

import pytest
import real_data

import kerasbert
from kerasbert.data import vocabulary
from kerasbert.data.vocabulary import split_words
from kerasbert.tokenizers import AlbertTokenizer, BertTokenizer, tokenizer_from_files
from tests.text import reference


def words(number=3000, seed=0):
    """Return words of few letters, many equally frequent: ties that a hash table would break."""
    rng = random.Random(seed)
    return ["".join(rng.choices("abcdefgh", k=rng.randint(1, 8))) for _ in range(number)]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(" ".join(words(20, seed)) for seed in range(200)))
    return path


def tokens(folder):
    return (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]


@pytest.mark.backends("tensorflow")
def test_the_order_is_berts(text, tmp_path):
    done = kerasbert.vocab(text, tmp_path / "v", size=400)
    found = tokens(tmp_path / "v")
    assert len(found) == len(set(found)) == done["size"] == 400
    assert found[:2] == ["[PAD]", "[unused0]"]
    assert found[99:104] == ["[unused98]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert found[104:112] == list("abcdefgh")
    assert found[112:120] == [f"##{c}" for c in "abcdefgh"]
    assert all(len(token.removeprefix("##")) > 1 for token in found[120:])
    assert done["words"] == 4000 and done["unknown"] == 0
    # As many unused entries as in the paper's uncased models; the others follow [MASK].
    kerasbert.vocab(text, tmp_path / "w", size=1500, unused=994)
    found = tokens(tmp_path / "w")
    assert found[98:106] == [
        *("[unused97]", "[unused98]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        *("[unused99]", "[unused100]"),
    ]
    assert found[998:1000] == ["[unused993]", "a"]
    kerasbert.vocab(text, tmp_path / "x", size=100, unused=0)
    assert tokens(tmp_path / "x")[:6] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]


@pytest.mark.backends("tensorflow")
def test_frequent_words_are_tokens(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("The lowest of the low. " * 50 + " ".join(words(300)))
    kerasbert.vocab(path, tmp_path, size=200, unused=0)
    found = tokens(tmp_path)
    assert {"the", "low", "lowest", "."} <= set(found) and "##." not in found
    assert "The" not in found
    kerasbert.vocab(path, tmp_path, size=200, unused=0, lowercase=False, overwrite=True)
    assert {"The", "the", "low"} <= set(tokens(tmp_path))


@pytest.mark.backends("tensorflow")
def test_the_same_every_time(text, tmp_path):
    found = set()
    for i in range(4):
        kerasbert.vocab(text, tmp_path / str(i), size=600)
        found.add((tmp_path / str(i) / "vocab.txt").read_bytes())
    assert len(found) == 1


@pytest.mark.slow
def test_the_same_on_any_number_of_cores(text, tmp_path):
    script = "import sys; from kerasbert import vocab; vocab(*sys.argv[1:], size=600)"
    found = set()
    for i, threads in enumerate(("1", "2", "7")):
        env = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": str(i)}
        folder = tmp_path / threads
        command = [sys.executable, "-c", script, str(text), str(folder)]
        subprocess.run(command, env=env, check=True)
        found.add((folder / "vocab.txt").read_bytes())
    assert len(found) == 1


@pytest.mark.backends("tensorflow")
def test_the_folder_is_a_tokenizers(text, tmp_path):
    kerasbert.vocab(text, tmp_path, size=300, strip_accents=False, split_on_cjk=False)
    tokenizer = BertTokenizer.from_files(tmp_path)
    assert tokenizer.lowercase is True and tokenizer.strip_accents is False
    assert tokenizer.split_on_cjk is False
    assert tokenizer.vocabulary_size() == 300
    assert sorted(os.listdir(tmp_path)) == ["text.txt", "tokenizer_config.json", "vocab.txt"]


# Words


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("split_on_cjk", [True, False])
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 11])
def test_words_are_those_of_the_tokenizer(lowercase, split_on_cjk, every):
    characters = reference.assigned_characters()[::every]
    texts = [f"a{c}b {c} {c}{c}" for c in characters]
    texts += ["ΑΣ ΣΑΣ, ΑΣ中", "İstanbul", "한국어 パソコン", "a\u2028b\x0bc\x85d\x1ce", "x" * 300]
    settings = {"lowercase": lowercase, "split_on_cjk": split_on_cjk}
    differ = [
        text
        for text in texts
        if split_words(text, **settings) != reference.split_words(text, **settings)
    ]
    assert differ == []


@pytest.mark.backends("tensorflow")
def test_counting_raw_words_first_loses_nothing(tmp_path):
    lines = [f"a{c}b {c},{c}\tx" for c in reference.assigned_characters()[::7] if c not in "\r\n"]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines), encoding="utf-8", newline="")
    for cjk in (True, False):
        counter = vocabulary._counter(cjk)
        counts = vocabulary._count(path, counter, lambda *_: None, {}, None)
        found, expected = {}, {}
        for raw, count in counts.items():
            for word in split_words(raw, split_on_cjk=cjk):
                found[word] = found.get(word, 0) + count
        for line in lines:
            for word in split_words(line, split_on_cjk=cjk):
                expected[word] = expected.get(word, 0) + 1
        assert found == expected


@pytest.mark.backends("tensorflow")
def test_few_kinds_of_words_in_memory(tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    frequent = sorted(set(words(50)))
    rare = iter(f"{word}{i}" for i, word in enumerate(words(20_000)))
    lines = (" ".join([*frequent, *(next(rare) for _ in range(100))]) for _ in range(200))
    path.write_text("\n".join(lines))
    monkeypatch.setattr(vocabulary, "MOST_KINDS", 2000)
    monkeypatch.setattr(vocabulary, "BLOCK", 2000)
    monkeypatch.setattr("kerasbert.data.text_files.CHUNK", 2000)
    done = kerasbert.vocab(path, tmp_path, size=1000)
    assert len(frequent) <= done["kinds"] < 2500
    assert set(frequent) <= set(tokens(tmp_path))


@pytest.mark.backends("tensorflow")
def test_a_share_of_many_words_is_shown(monkeypatch):
    monkeypatch.setattr(vocabulary, "MOST_WORDS_MERGED", 1000)
    counts = {"a": 5000, "b": 4999, "c": 1}
    shown = " ".join(vocabulary._repeated(counts)).split()
    assert len(shown) == 1000 and shown.count("a") == 500
    monkeypatch.setattr(vocabulary, "MOST_WORDS_MERGED", 10**6)
    shown = " ".join(vocabulary._repeated(counts)).split()
    assert {word: shown.count(word) for word in counts} == counts
    monkeypatch.setattr(vocabulary, "MOST_KINDS_MERGED", 2)
    assert set(" ".join(vocabulary._repeated(counts)).split()) == {"a", "b"}


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    "source, settings, most_unknown, most_pieces",
    [
        (real_data.korean_text, {"strip_accents": False}, 0.001, 0.65),
        (real_data.japanese_text, {"strip_accents": False}, 0.001, 0.65),
        (real_data.chinese_text, {}, 0.002, 1.0),
    ],
)
def test_korean_japanese_and_chinese(source, settings, most_unknown, most_pieces, tmp_path):
    lines = real_data.or_skip(source, required=False)
    held_out = lines[::20]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(x for i, x in enumerate(lines) if i % 20), encoding="utf-8")
    kerasbert.vocab(path, tmp_path, size=8000, **settings)
    known = tokens(tmp_path)
    pieces = sum(reference.tokenize(held_out, known, lowercase=True, **settings), [])
    assert pieces.count(known.index("[UNK]")) < most_unknown * len(pieces)
    characters = sum(len("".join(line.split())) for line in held_out)
    assert len(pieces) < most_pieces * characters


@pytest.mark.backends("tensorflow")
def test_accents_of_korean_and_japanese(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("한국어 문장과 パソコン\n" * 50, encoding="utf-8")
    with pytest.warns(UserWarning, match="decomposes Hangul .* strip_accents=False"):
        kerasbert.vocab(path, tmp_path, size=300)
    kerasbert.vocab(path, tmp_path, size=300, strip_accents=False, overwrite=True)
    assert {"한국어", "パソコン"} <= set(tokens(tmp_path))


@pytest.mark.backends("tensorflow")
def test_characters_that_are_left_out(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("aa ab ba " * 50 + "zz z 中中 " * 9 + "q")
    done = kerasbert.vocab(path, tmp_path, size=300, max_characters=2)
    assert done["characters"] == 2 and "z" not in tokens(tmp_path)
    assert done["unknown"] == pytest.approx(37 / 187)
    done = kerasbert.vocab(path, tmp_path, size=300, overwrite=True)
    found = tokens(tmp_path)
    assert "q" not in found and "中" in found and "##中" not in found
    kerasbert.vocab(path, tmp_path, size=300, split_on_cjk=False, overwrite=True)
    assert {"中", "##中", "中中"} <= set(tokens(tmp_path))


@pytest.mark.backends("tensorflow")
def test_characters_take_what_pieces_leave(tmp_path):
    path = tmp_path / "text.txt"
    characters = [chr(0x4E00 + i) for i in range(300)]
    path.write_text("".join(characters) * 3, encoding="utf-8")
    done = kerasbert.vocab(path, tmp_path, size=355, unused=0)
    assert tokens(tmp_path)[5:] == characters and done["unknown"] == 0
    done = kerasbert.vocab(path, tmp_path, size=255, unused=0, overwrite=True)
    assert tokens(tmp_path)[5:] == characters[:250]
    assert done["unknown"] == pytest.approx(1 / 6)


# Unigram models


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("lowercase", [True, False])
def test_unigram(tmp_path, lowercase):
    """ALBERT's order and files; the pieces of words match the tokenizer's."""
    path = tmp_path / "text.txt"
    path.write_text("The lowest of the low. Caf\u00e9 IS open, na\u00efve NEWS too.\n" * 20)
    settings = {"kind": "unigram", "size": 50, "lowercase": lowercase}
    with pytest.warns(UserWarning, match="fewer than size=50"):
        done = kerasbert.vocab(path, tmp_path / "v", **settings)
    with pytest.warns(UserWarning, match="fewer than size=50"):
        kerasbert.vocab(path, tmp_path / "w", **settings)
    assert sorted(os.listdir(tmp_path / "v")) == ["spiece.model", "tokenizer_config.json"]
    models = [(tmp_path / name / "spiece.model").read_bytes() for name in "vw"]
    assert models[0] == models[1]
    assert done["words"] == 220 and done["kinds"] == (10 if lowercase else 11)
    assert done["unknown"] == 0
    tokenizer = tokenizer_from_files(tmp_path / "v", "bert")
    assert type(tokenizer) is AlbertTokenizer and tokenizer.lowercase == lowercase
    assert tokenizer.keep_accents != lowercase
    found = tokenizer.get_vocabulary()
    assert len(found) == done["size"]
    assert found[:5] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    ids = tokenizer.tokenize("The low Caf\u00e9 open")
    assert tokenizer.unk_token_id not in ids
    text = tokenizer.detokenize(ids)
    assert text == ("the low cafe open" if lowercase else "The low Caf\u00e9 open")


# Bad input


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    "settings, message",
    [
        ({"size": 104}, "size=104 leaves no room for words after 5 special and 99 unused tokens"),
        ({"size": 0}, "size=0 must be a whole number of at least 1"),
        ({"size": 10.5}, "size=10.5 must be a whole number"),
        ({"unused": -1}, "unused=-1 must be a whole number of at least 0"),
        ({"min_frequency": 0}, "min_frequency=0 must be"),
        ({"max_characters": 0}, "max_characters=0 must be"),
        ({"kind": "bpe"}, "kind='bpe' is unknown; use one of wordpiece, unigram"),
        ({"kind": "unigram", "unused": 9}, "apply only to kind='wordpiece'; leave them out"),
        ({"kind": "unigram", "size": 8}, "SentencePiece cannot train a model of size=8"),
    ],
)
def test_settings_that_cannot_be(text, tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        kerasbert.vocab(text, tmp_path / "v", **settings)
    assert not (tmp_path / "v").exists()


@pytest.mark.backends("tensorflow")
def test_bad_corpora_write_nothing(text, tmp_path, monkeypatch):
    empty, broken = tmp_path / "empty.txt", tmp_path / "broken.txt"
    empty.write_text("\n\n")
    broken.write_bytes(b"fine\n\xff\n")
    target = tmp_path / "v"
    for corpus, message in (
        (empty, "has no text"),
        (broken, "is not UTF-8 in line 2"),
        (tmp_path / "none", "is not a file, nor a pattern"),
    ):
        with pytest.raises(ValueError, match=message):
            kerasbert.vocab(corpus, target)
    empty.write_text("\x01\x02\n")
    with pytest.raises(ValueError, match="has no words"):
        kerasbert.vocab(empty, target)
    assert not target.exists()
    with pytest.raises(ValueError, match="it is a file, not a folder"):
        kerasbert.vocab(text, empty)

    kerasbert.vocab(text, target, size=300)
    before = (target / "vocab.txt").read_bytes()
    with pytest.raises(ValueError, match=r"vocab\.txt' exists; .*overwrite=True"):
        kerasbert.vocab(text, target, size=400)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        kerasbert.vocab(text, target, size=400, overwrite=True)
    assert (target / "vocab.txt").read_bytes() == before
    assert sorted(os.listdir(target)) == ["tokenizer_config.json", "vocab.txt"]


@pytest.mark.backends("tensorflow")
def test_a_small_corpus_says_so(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("low lower lowest " * 5)
    with pytest.warns(UserWarning, match="for only 1.. tokens, fewer than size=500"):
        done = kerasbert.vocab(path, tmp_path, size=500)
    assert done["size"] == len(tokens(tmp_path)) < 140


# The command


def run(*arguments):
    from typer.testing import CliRunner

    from kerasbert.cli import app

    return CliRunner().invoke(app, ["vocab", *map(str, arguments)])


@pytest.mark.backends("tensorflow")
def test_the_command(text, tmp_path):
    done = run(text, "--output", tmp_path / "v", "--size", 300, "--cased", "--unused", 3)
    assert done.exit_code == 0, done.output
    assert "300 tokens (8 characters) from 4,000 words" in done.output
    kerasbert.vocab(text, tmp_path / "w", size=300, lowercase=False, unused=3)
    for name in ("vocab.txt", "tokenizer_config.json"):
        assert (tmp_path / "v" / name).read_bytes() == (tmp_path / "w" / name).read_bytes()


@pytest.mark.backends("tensorflow")
def test_the_command_on_bad_input(text, tmp_path):
    for arguments, message in (
        ((tmp_path / "none", "-o", tmp_path / "v"), "is not a file, nor a pattern"),
        ((text, "-o", tmp_path / "v", "--size", 3), "leaves no room"),
        ((text, "-o", text), "is a file"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2
        assert message in done.output and "Traceback" not in done.output
    assert "Examples" in run("--help").output


@pytest.mark.backends("tensorflow")
def test_the_command_for_unigram(text, tmp_path):
    done = run(text, "-o", tmp_path / "v", "--kind", "unigram", "--size", 60)
    assert done.exit_code == 0, done.output
    assert "60 tokens (8 characters) from 4,000 words" in done.output
    done = run(text, "-o", tmp_path / "v", "--overwrite")
    assert done.exit_code == 2 and "is a vocabulary of another kind" in done.output


def test_text_in_parts_is_told(tmp_path):
    text = "파일을 저장하지 못했습니다 café " * 20
    for form in ("NFC", "NFD"):
        corpus = tmp_path / f"{form}.txt"
        corpus.write_text(unicodedata.normalize(form, text), encoding="utf-8")
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            kerasbert.vocab(corpus, tmp_path / form, size=100, lowercase=False, unused=0)
        told = [str(one.message) for one in found if "NFC" in str(one.message)]
        assert len(told) == (form == "NFD")
    assert "80 of 80 words" in told[0] and "unicodedata.normalize('NFC', text)" in told[0]
