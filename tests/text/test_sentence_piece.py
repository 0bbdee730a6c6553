"""SentencePiece tokenizers compared with those of `transformers` on the same files."""

import json
import re
import sys

import pytest

from kerasbert.base.files import write_files
from kerasbert.text.sentence_piece_models import model_protos
from kerasbert.text.transformers_files import transformers_files
from kerasbert.tokenizers import (
    AlbertTokenizer,
    BertGenerationTokenizer,
    CamembertTokenizer,
    DebertaV3Tokenizer,
    RemBertTokenizer,
    XLMRobertaTokenizer,
    tokenizer_from_files,
)
from tests.peers import transformers

pytestmark = pytest.mark.backends("tensorflow")  # No backend changes the results.

CLASSES = {
    "xlmr": XLMRobertaTokenizer,
    "camembert": CamembertTokenizer,
    "albert": AlbertTokenizer,
}


@pytest.fixture
def directory(tmp_path, xlmr_model, albert_model):
    for name in CLASSES:
        (tmp_path / name).mkdir()
    for name in ("xlmr", "camembert"):
        (tmp_path / name / "sentencepiece.bpe.model").write_bytes(xlmr_model)
    (tmp_path / "albert" / "spiece.model").write_bytes(albert_model)
    return tmp_path


def pair(directory, name, **settings):
    cls = CLASSES[name]
    theirs = getattr(transformers, cls.__name__).from_pretrained(directory / name, **settings)
    return theirs, cls.from_files(directory / name)


def encode(theirs, texts):
    return theirs.backend_tokenizer.encode_batch(texts, add_special_tokens=False)


def ordinary(texts, name):
    """Return texts that `transformers` treats as SentencePiece itself does.

    transformers always matches special tokens in texts. It also normalizes each cluster of
    characters alone, so it does not compose decomposed characters; SentencePiece does, and did when
    these checkpoints were trained. After ALBERT's NFKD, this affects all Korean text.
    """
    others = "[<\\[\u3099\u1112]|\uff8a\uff9f" + ("|[가-힣]" if name == "albert" else "")
    return [text for text in texts if not re.search(others, text)]


@pytest.mark.peers
@pytest.mark.parametrize("name", CLASSES)
def test_ids_are_as_in_transformers(directory, name, hard, sentences):
    theirs, ours = pair(directory, name)
    texts = ordinary(hard + sentences, name)
    want = [x.ids for x in encode(theirs, texts)]
    got = ours(texts)
    tokens = theirs.convert_ids_to_tokens
    different = [
        (text, tokens(a), tokens(b)) for text, a, b in zip(texts, got, want, strict=True) if a != b
    ]
    assert different == []
    assert ours.tokenize_with_offsets(texts)[0] == got
    for role in ("cls", "sep", "pad", "mask", "unk"):
        assert getattr(ours, f"{role}_token_id") == getattr(theirs, f"{role}_token_id")
    assert ours.get_vocabulary() == theirs.convert_ids_to_tokens(range(len(theirs)))


@pytest.mark.peers
@pytest.mark.parametrize("name", CLASSES)
def test_tokenizer_json_alone(directory, name, hard, sentences):
    theirs, ours = pair(directory, name)
    theirs.save_pretrained(directory / "new")
    assert not list((directory / "new").glob("*.model"))
    alone = type(ours).from_files(directory / "new")
    texts = ordinary(hard + sentences, name)
    assert alone(texts) == ours(texts) == [x.ids for x in encode(theirs, texts)]
    assert alone.get_vocabulary() == ours.get_vocabulary()
    asked = type(ours).from_files(directory / "new", special_tokens_in_strings=True)
    mask = theirs.mask_token
    special = [f"a {mask} b{mask}", f"{theirs.cls_token}x {theirs.sep_token} ."]
    assert [x.ids for x in encode(theirs, special)] == asked(special)


@pytest.mark.peers
@pytest.mark.parametrize("name", ["xlmr", "albert"])
def test_offsets_are_as_in_transformers(directory, name, sentences):
    theirs, ours = pair(directory, name)
    texts = [*ordinary(sentences, name), " two  spaces\tand\u3000more ", "x\u200by 12 34abc, ...!!"]
    want = [x.offsets for x in encode(theirs, texts)]
    _, starts, ends = ours.tokenize_with_offsets(texts)
    got = [list(zip(s, e, strict=True)) for s, e in zip(starts, ends, strict=True)]
    assert got == want


@pytest.mark.peers
def test_offsets_by_eye(directory):
    _, ours = pair(directory, "albert")
    text = "``Cafe\u0301'' \ufb01lm \u00bd ÀÉ"
    ids, starts, ends = ours.tokenize_with_offsets(text)
    tokens = [ours.id_to_token(id) for id in ids]
    spans = [text[s:e] for s, e in zip(starts, ends, strict=True)]
    assert "``" in spans and "''" in spans
    for token, span in zip(tokens, spans, strict=True):
        if token == "e":
            assert span in ("e\u0301", "É", "e")
    assert not any(span.startswith(" ") for span in spans)


def test_xlmr_order_of_ids(xlmr_model):
    proto = model_protos().ModelProto.FromString(xlmr_model)
    pieces = [piece.piece for piece in proto.pieces]
    tokenizer = XLMRobertaTokenizer(xlmr_model)
    order = ["<s>", "<pad>", "</s>", "<unk>", *pieces[3:], "<mask>"]
    assert tokenizer.get_vocabulary() == order
    assert tokenizer.mask_token_id == len(pieces) + 1
    # A model whose pieces are in this order is kept.
    assert XLMRobertaTokenizer(tokenizer.proto).get_vocabulary() == order


@pytest.mark.slow
def test_special_tokens_in_strings(make):
    for name, text in (
        ("XLMRobertaTokenizer", "a <mask>b</s>"),
        ("AlbertTokenizer", "a [MASK]b[SEP]"),
    ):
        plain, asked = make(name), make(name, special_tokens_in_strings=True)
        special = {asked.mask_token_id, asked.sep_token_id}
        assert not special & set(plain(text))
        ids, starts, ends = asked.tokenize_with_offsets(text)
        assert special < set(ids)
        at = ids.index(asked.mask_token_id)
        assert text[starts[at] : ends[at]] == asked.mask_token


@pytest.mark.peers
def test_albert_settings(albert_model, directory):
    vocabulary = AlbertTokenizer(albert_model).get_vocabulary()
    assert vocabulary[:5] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    text = "Größe CAFÉ naïve"
    for lowercase in (True, False):
        for keep in (True, False):
            settings = {"do_lower_case": lowercase, "keep_accents": keep}
            path = directory / "albert" / "tokenizer_config.json"
            path.write_text(json.dumps(settings))
            theirs, ours = pair(directory, "albert")
            assert (ours.lowercase, ours.keep_accents) == (lowercase, keep)
            assert ours(text) == encode(theirs, [text])[0].ids


@pytest.mark.peers
def test_rembert(tmp_path, rembert_model, hard, sentences):
    (tmp_path / "sentencepiece.model").write_bytes(rembert_model)
    theirs = transformers.RemBertTokenizer.from_pretrained(tmp_path)
    ours = tokenizer_from_files(tmp_path, "rembert")
    assert type(ours) is RemBertTokenizer and not ours.lowercase and ours.keep_accents
    # transformers also makes tokens of spaces that SentencePiece removes, such as those at the end.
    texts = [" ".join(text.split()) for text in ordinary(hard + sentences, "rembert")]
    texts = [text for text in texts if not {"\U0010fffd", "\x00"} & set(text)]
    texts += ["Größe CAFÉ naïve", "``a'' b"]
    found, wanted = ours(texts), [x.ids for x in encode(theirs, texts)]
    different = [x for x, a, b in zip(texts, found, wanted) if a != b]
    assert different == [] and len(set(map(tuple, found))) > 20
    assert ours.get_vocabulary() == theirs.convert_ids_to_tokens(range(len(theirs)))
    assert ours.model_files() == {"sentencepiece.model": rembert_model}


@pytest.mark.peers
def test_bert_generation(tmp_path, bert_generation_model, hard, sentences):
    (tmp_path / "spiece.model").write_bytes(bert_generation_model)
    theirs = transformers.BertGenerationTokenizer.from_pretrained(tmp_path)
    ours = tokenizer_from_files(tmp_path, "bert_generation")
    assert type(ours) is BertGenerationTokenizer and ours.end_token_id == theirs.eos_token_id == 1
    texts = [*ordinary(hard + sentences, "bert_generation"), "Größe CAFÉ naïve", "``a'' b", ""]
    # In kerasbert any white space ends a word, as in transformers' other tokenizers.
    texts = [text for text in texts if not {"\x00", "\x0b"} & set(text)]
    wanted = [theirs(text)["input_ids"] for text in texts]
    assert [x for x, a, b in zip(texts, ours(texts), wanted) if a != b] == []
    assert len(set(map(tuple, wanted))) > 20
    assert ours.get_vocabulary() == theirs.convert_ids_to_tokens(range(len(theirs)))
    assert ours.model_files() == {"spiece.model": bert_generation_model}
    write_files(tmp_path, transformers_files(ours, "bert_generation", 512, False))
    again = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert [again(text)["input_ids"] for text in texts[:9]] == wanted[:9]


@pytest.mark.peers
def test_added_tokens(directory, sentences):
    for name in ("xlmr", "albert"):
        theirs, _ = pair(directory, name)
        theirs.add_tokens(["fox jumps", "쿼카", "COVID"])
        theirs.add_tokens(["[E1]"], special_tokens=True)
        theirs.save_pretrained(directory / "more")
        ours = type(pair(directory, name)[1]).from_files(directory / "more")
        texts = [*ordinary(sentences, name), "쿼카 x쿼카", "the fox jumps.", "a COVIDx covid"]
        assert ours(texts) == [x.ids for x in encode(theirs, texts)]
        assert ours.vocabulary_size() == len(theirs)
        assert ours("a [E1]") == encode(theirs, ["a [E1]"])[0].ids


def test_detokenize(make):
    text = "The quick brown fox jumps over the lazy dog."
    tokenizer = make("XLMRobertaTokenizer")
    assert tokenizer.detokenize(tokenizer(text)) == text
    tokenizer = make("AlbertTokenizer")
    assert tokenizer.detokenize(tokenizer(text)) == text.lower()


def test_mistakes_are_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="not a SentencePiece model"):
        XLMRobertaTokenizer(b"\x0a\xff\xff")
    with pytest.raises(ValueError, match="no pieces"):
        AlbertTokenizer(b"")
    with pytest.raises(ValueError, match=r"needs 'spiece.model' or .* in"):
        AlbertTokenizer.from_files(tmp_path)


def test_protobuf_that_does_not_fit(monkeypatch):
    """sentencepiece 0.2.3 with protobuf 6, which pip installs together."""
    import sentencepiece

    class Unfit:
        def find_spec(self, name, path=None, target=None):
            if name.endswith("sentencepiece_model_pb2"):
                raise RuntimeError("gencode 7.36.1 runtime 6.33.6")

    model_protos()
    monkeypatch.delattr(sentencepiece, "sentencepiece_model_pb2")
    monkeypatch.delitem(sys.modules, "sentencepiece.sentencepiece_model_pb2")
    monkeypatch.setattr(sys, "meta_path", [Unfit(), *sys.meta_path])
    with pytest.raises(ImportError, match="runtime 6.33.6.*pip install 'sentencepiece<0.2.3'"):
        model_protos()


@pytest.mark.peers
def test_deberta_as_in_transformers(tmp_path, deberta_model, sentences):
    """From the only published file, which has no `[MASK]`."""
    (tmp_path / "spm.model").write_bytes(deberta_model)
    config = {"do_lower_case": False, "vocab_type": "spm"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = transformers.DebertaV2Tokenizer.from_pretrained(tmp_path)
    ours = tokenizer_from_files(tmp_path, "deberta_v3", special_tokens_in_strings=True)
    assert type(ours) is DebertaV3Tokenizer
    texts = [*sentences, "a [MASK] fox. [SEP] x[MASK]"]
    assert ours(texts) == [x.ids for x in encode(theirs, texts)]
    for role in ("cls", "sep", "pad", "mask", "unk"):
        assert getattr(ours, f"{role}_token_id") == getattr(theirs, f"{role}_token_id")
    assert ours.mask_token_id == len(ours.get_vocabulary()) - 1
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    with pytest.raises(ValueError, match="do_lower_case=true, which DebertaV3Tokenizer does"):
        DebertaV3Tokenizer.from_files(tmp_path)
