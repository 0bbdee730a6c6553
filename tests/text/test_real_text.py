"""Real text: 13,905 film reviews, Korean, Japanese and Chinese."""

import io
import json

import pytest
import real_data

from kerasbert.tokenizers import BertTokenizer, RobertaTokenizer, XLMRobertaTokenizer
from tests.text import reference

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def minilm():
    return real_data.or_skip(real_data.minilm_dir)


@pytest.fixture(scope="module")
def reviews():
    return [text for _, text in real_data.or_skip(real_data.film_reviews)]


@pytest.fixture(params=["korean", "japanese", "chinese"])
def lines(request):
    # Debian keeps no old versions of its packages.
    required = request.param == "chinese"
    lines = real_data.or_skip(getattr(real_data, f"{request.param}_text"), required=required)
    return lines[:20_000]


def differences(tokenizer, texts, ids, **settings):
    """Return the texts whose ids are not those of the reference."""
    wanted = reference.tokenize(texts, tokenizer.get_vocabulary(), **settings)
    return [text for text, row, want in zip(texts, ids, wanted, strict=True) if row != want]


def test_reviews(minilm, reviews):
    tokenizer = BertTokenizer.from_files(minilm)
    assert tokenizer.vocabulary_size() == 30522 and tokenizer.lowercase
    assert len(reviews) == 13_905
    ids, starts, ends = tokenizer.tokenize_with_offsets(reviews)
    assert tokenizer(reviews) == ids and differences(tokenizer, reviews, ids) == []
    vocabulary = tokenizer.get_vocabulary()
    seen = {}
    for text, *columns in zip(reviews, ids, starts, ends, strict=True):
        for id, start, end in zip(*columns, strict=True):
            seen[text[start:end], id] = None
    assert len(seen) > 20_000
    for span, id in seen:
        token = vocabulary[id]
        if token != "[UNK]":
            assert "".join(reference.split_words(span)) == token.removeprefix("##")
    cased = BertTokenizer.from_files(minilm, lowercase=False)
    assert differences(cased, reviews, cased(reviews), lowercase=False) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"lowercase": True},
        {"lowercase": True, "strip_accents": False},
        {"lowercase": False},
        {"lowercase": False, "split_on_cjk": False},
    ],
    ids=str,
)
def test_korean_japanese_chinese(lines, settings):
    import tokenizers

    trainer = tokenizers.BertWordPieceTokenizer(
        lowercase=settings["lowercase"],
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("split_on_cjk", True),
    )
    trainer.train_from_iterator(lines[:5000], vocab_size=8000, show_progress=False)
    vocabulary = trainer.get_vocab()
    tokenizer = BertTokenizer(sorted(vocabulary, key=vocabulary.get), **settings)
    ids, starts, ends = tokenizer.tokenize_with_offsets(lines)
    assert ids == tokenizer(lines) and differences(tokenizer, lines, ids, **settings) == []
    unknown = sum(row.count(tokenizer.unk_token_id) for row in ids)
    assert unknown < 0.15 * sum(map(len, ids))
    encoded = trainer.encode_batch(lines, add_special_tokens=False)
    spans = [list(zip(s, e, strict=True)) for s, e in zip(starts, ends, strict=True)]
    different = [
        text
        for text, row, span, x in zip(lines, ids, spans, encoded, strict=True)
        # The library has a lower limit on word length, and excludes a final accent that is dropped.
        if row == x.ids and span != x.offsets and not any("\u0300" <= c < "\u0370" for c in text)
    ]
    assert different == []


def test_byte_pairs(reviews, lines):
    import tokenizers

    texts = reviews[:5000] + lines[:3000]
    trainer = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer.train_from_iterator(texts, vocab_size=8000, show_progress=False, special_tokens=special)
    merges = json.loads(trainer.to_str())["model"]["merges"]
    tokenizer = RobertaTokenizer(trainer.get_vocab(), merges)
    want = [x.ids for x in trainer.encode_batch(texts, add_special_tokens=False)]
    assert tokenizer(texts) == want
    assert tokenizer.detokenize(want) == texts


@pytest.mark.peers
def test_sentence_pieces(reviews, lines, tmp_path):
    import sentencepiece
    import transformers

    texts = reviews + lines[:5000]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=6000, minloglevel=2
    )
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model.getvalue())
    tokenizer = XLMRobertaTokenizer.from_files(tmp_path)
    theirs = transformers.XLMRobertaTokenizer.from_pretrained(tmp_path).backend_tokenizer
    want = [x.ids for x in theirs.encode_batch(texts, add_special_tokens=False)]
    got = tokenizer(texts)
    different = sum(a != b for a, b in zip(got, want, strict=True))
    assert different == 0, f"{different} of {len(texts)}"
