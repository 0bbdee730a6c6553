"""GPT's tokenizer compared with that of `transformers`."""

import json

import pytest

from kerasbert.tokenizers import GPTTokenizer, tokenizer_from_files
from tests.peers import transformers

pytestmark = pytest.mark.backends("tensorflow")  # No backend changes the results.

# Characters that are treated differently on purpose: only one of the two tokenizers deletes
# private-use characters.
OTHERS = ("\ue000", "<")


@pytest.fixture(scope="module")
def directory(gpt_pairs, tmp_path_factory):
    """A folder with files as in GPT's release."""
    vocabulary, merges = gpt_pairs
    folder = tmp_path_factory.mktemp("gpt")
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")
    (folder / "config.json").write_text(json.dumps({"model_type": "openai-gpt"}))
    return folder


@pytest.mark.peers
def test_is_as_in_transformers(directory, hard, sentences):
    theirs = transformers.OpenAIGPTTokenizer.from_pretrained(directory).backend_tokenizer
    ours = tokenizer_from_files(directory, "gpt")
    assert type(ours) is GPTTokenizer
    texts = [text for text in sentences + hard if not any(one in text for one in OTHERS)]
    assert len(texts) >= 24
    encoded = theirs.encode_batch(texts, add_special_tokens=False)
    ids, starts, ends = ours.tokenize_with_offsets(texts)
    for text, wanted, row, begins, stops in zip(texts, encoded, ids, starts, ends):
        assert row == wanted.ids, text
        assert ours(text) == row
        if text.isascii():
            assert list(zip(begins, stops)) == wanted.offsets, text
    for text in sentences:
        assert ours.detokenize(ours(text)) == theirs.decode(ours(text), skip_special_tokens=False)


def test_words_and_pieces(make):
    tokenizer = make("GPTTokenizer")
    ids, starts, ends = tokenizer.tokenize_with_offsets("The Café, the fox")
    text = "The Café, the fox"
    assert "".join(text[a:b] for a, b in zip(starts, ends)) == "TheCafé,thefox"
    assert tokenizer.detokenize(ids) == "the cafe , the fox"
    assert tokenizer("") == [] and tokenizer(" \0\n") == []
    # Each unknown character is one token.
    assert tokenizer("ⴰⴱ x")[:2] == [tokenizer.unk_token_id] * 2
    edges = tokenizer.word_edges()
    assert edges[tokenizer.token_to_id("the</w>")].tolist() == [False, True]


def test_files_of_another_kind(make, tmp_path):
    from kerasbert.text.transformers_files import transformers_files

    for name, data in transformers_files(make("GPT2Tokenizer"), "gpt2", 64, False).items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=r"GPTTokenizer supports \['BertNormalizer'"):
        GPTTokenizer.from_files(tmp_path)
    for name, data in transformers_files(make("GPTTokenizer"), "gpt", 64, False).items():
        (tmp_path / name).write_bytes(data)
    read = GPTTokenizer.from_files(tmp_path)
    assert read("the fox") == make("GPTTokenizer")("the fox")
    (tmp_path / "tokenizer.json").unlink()
    again = GPTTokenizer.from_files(tmp_path)
    for name in ("vocabulary", "merges", "special_tokens"):
        assert getattr(again, name) == getattr(read, name), name
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(ValueError, match="no merges.txt"):
        GPTTokenizer.from_files(tmp_path)
