"""SentencePiece models with byte fallback, compared with `tokenizers` and SentencePiece."""

import json
import re

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from kerasbert import export_serving
from kerasbert.models import BertMaskedLM, BertTextClassifierPreprocessor, BertTextEmbedder
from kerasbert.text.byte_fallback import BYTES, PREPEND_SCHEMES, splits_of
from kerasbert.text.sentence_piece_models import read_proto
from kerasbert.tokenizers import ByteFallbackTokenizer, FastTokenizer, tokenizer_from_files
from tests.export import tiny
from tests.peers import torch, transformers

pytestmark = pytest.mark.backends("tensorflow")  # No backend changes the results.

SPECIAL = ["<unk>", "<s>", "</s>", "<pad>", "<sep>", "<mask>", "<cls>"]
TEXTS = [
    "お早うございます、今日の天気は晴れです！ 𠮷野家で𩸽を食べた。",
    "สวัสดีครับ السلام عليكم 𓀀𓀁 𐍈",
    "👨‍👩‍👧‍👦 family 🏳️‍🌈 ❤️",
    "  double  spaces   three    four ",
    "\t\ttabs\n\n\nnewlines\r\n \n",
    "ガ か\u3099 ｶﾞ é e\u0301 ﬁ ① Å",
    "\x00\x01\x1f\x7f\x80\ufeff\u200b\ufffe\uffff",
    "▁ x▁y",
    "words in a row " * 700,
    "あいうえお𠮷。" * 1500,
]


def rust_tokenizer(data, scheme="never", pair="<s>:0 $A:0 </s>:0 <s>:1 $B:1 </s>:1"):
    """Return the `tokenizers` form of a SentencePiece model, as converted by transformers."""
    proto = read_proto(data)
    scores = {piece.piece: piece.score for piece in proto.pieces}
    if proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM:
        model = models.Unigram(list(scores.items()), 0, byte_fallback=True)
    else:
        ids = {piece: id for id, piece in enumerate(scores)}
        merged = [p.piece for p in proto.pieces if p.type == p.NORMAL]
        merged.sort(key=lambda piece: -scores[piece])
        merges = [pair for piece in merged for pair in splits_of(piece, ids)]
        options = {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
        model = models.BPE(ids, merges, **options)
    rust = tokenizers.Tokenizer(model)
    if scheme == "prepend":
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        rust.normalizer = normalizers.Sequence(steps)
    else:
        rust.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    steps += [decoders.Strip(" ", 1, 0)] if scheme != "never" else []
    rust.decoder = decoders.Sequence(steps)
    rust.post_processor = processors.TemplateProcessing(
        single="<s>:0 $A:0 </s>:0", pair=pair, special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return rust


def write(directory, rust, config=(), change=lambda content: None):
    """Write a checkpoint folder with the tokenizer and its special tokens."""
    content = json.loads(rust.to_str())
    names = ("single_word", "lstrip", "rstrip", "normalized")
    flags = dict.fromkeys(names, False) | {"special": True}
    content["added_tokens"] = [{"id": i, "content": t, **flags} for i, t in enumerate(SPECIAL)]
    change(content)
    directory.mkdir(exist_ok=True)
    text = json.dumps(content, ensure_ascii=False)
    (directory / "tokenizer.json").write_text(text, encoding="utf-8")
    # As in ModernBERT-ja's files: rows do not contain its cls_token and sep_token.
    named = {f"{token[1:-1]}_token": token for token in SPECIAL if len(token) > 4}
    named |= {"cls_token": "<cls>", "bos_token": "<s>", "eos_token": "</s>"}
    config = {"tokenizer_class": "LlamaTokenizer", **named, **dict(config)}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def plain(texts):
    """Return the texts that contain neither special tokens nor names of bytes."""
    return [text for text in texts if not re.search("</?[a-z]|<0x", text)]


# The scheme changes the text before the model reads it, and the kind of model determines how it is
# split, so not all combinations are needed.
@pytest.mark.slow
@pytest.mark.parametrize("kind, scheme", list(zip(("unigram", "bpe") * 2, PREPEND_SCHEMES)))
def test_as_in_tokenizers(tmp_path, byte_fallback_models, kind, scheme, hard, sentences):
    rust = rust_tokenizer(byte_fallback_models[kind], scheme)
    ours = tokenizer_from_files(write(tmp_path / "new", rust), "modernbert")
    assert type(ours) is ByteFallbackTokenizer
    assert ours.prepend_scheme == scheme
    texts = plain(sentences + hard + TEXTS)
    if kind == "unigram":
        # If segmentations have equal scores, 64-bit sums round to either one.
        texts = [text for text in texts if not re.search("(.)\\1{60}", text)]
    want = rust.encode_batch(texts, add_special_tokens=False)
    ids, starts, ends = ours.tokenize_with_offsets(texts)
    assert ids == ours(texts)
    vocabulary = ours.get_vocabulary()
    for text, own, begin, end, theirs in zip(texts, ids, starts, ends, want, strict=True):
        assert [vocabulary[id] for id in own] == theirs.tokens, text[:50]
        for token, span, (first, last) in zip(
            theirs.tokens, zip(begin, end, strict=True), theirs.offsets, strict=True
        ):
            # The library gives a byte the offsets of the byte, or of the whole run of bytes.
            if token in BYTES:
                assert first <= span[0] and span[1] == span[0] + 1
            elif text[first:last].strip():
                around = text[first:last]
                first += len(around) - len(around.lstrip())
                assert span == (first, first + len(around.strip())), (text[:50], token)
    assert ours.detokenize(ids) == [rust.decode(x.ids, skip_special_tokens=False) for x in want]
    assert ours.get_vocabulary() == [rust.id_to_token(i) for i in range(rust.get_vocab_size())]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_as_in_sentencepiece(tmp_path, byte_fallback_models, kind, hard, sentences):
    import sentencepiece

    (tmp_path / "tokenizer.model").write_bytes(byte_fallback_models[kind])
    ours = tokenizer_from_files(tmp_path, "modernbert")
    theirs = sentencepiece.SentencePieceProcessor(model_proto=byte_fallback_models[kind])
    texts = sentences + hard + TEXTS
    assert ours(texts) == theirs.encode(texts)
    assert ours.detokenize(ours(texts)) == [theirs.decode(ids) for ids in theirs.encode(texts)]


def test_bytes_of_a_character_share_its_offsets(make):
    tokenizer = make("ByteFallbackTokenizer")
    ids, starts, ends = tokenizer.tokenize_with_offsets("a 𠮷\x00é👍")
    tokens = [tokenizer.id_to_token(id) for id in ids]
    assert "<0xF0>" in tokens and "<0x00>" in tokens
    spans = list(zip(starts, ends, strict=True))
    begin = tokens.index("<0xF0>")
    assert spans[begin : begin + 4] == [(2, 3)] * 4
    assert tokens[begin + 4] == "<0x00>" and spans[begin + 4] == (3, 4)
    assert spans[-4:] == [(5, 6)] * 4
    assert tokenizer.detokenize(ids) == "a 𠮷\x00é👍"
    assert tokenizer.detokenize(ids[:-1]).startswith("a 𠮷\x00é")
    edges = dict(zip(tokenizer.get_vocabulary(), tokenizer.word_edges().tolist()))
    assert edges["<0x0A>"] == edges["<0xE3>"] == [True, True]
    assert edges["<0x81>"] == [False, False]


@pytest.mark.parametrize(
    "pair, flags",
    [
        ("<s>:0 $A:0 </s>:0 <s>:1 $B:1 </s>:1", {"add_bos_token": True, "add_eos_token": True}),
        ("<s>:0 $A:0 </s>:0 <s>:1 $B:1 </s>:1", {}),
        ("<s>:0 $A:0 </s>:0 $B:0 </s>:0", {}),
    ],
)
def test_rows_have_the_tokens_of_the_files(tmp_path, byte_fallback_models, pair, flags):
    rust = rust_tokenizer(byte_fallback_models["unigram"], pair=pair)
    ours = tokenizer_from_files(write(tmp_path / "new", rust, flags), "modernbert")
    assert (ours.cls_token, ours.sep_token, ours.mask_token) == ("<s>", "</s>", "<mask>")
    assert ours.begins_second == ("<s>:1" in pair)
    preprocessor = BertTextClassifierPreprocessor(ours, sequence_length=64)
    row = np.array(preprocessor((["fox jumps"], ["lazy dog"]))["token_ids"])[0]
    want = rust.encode("fox jumps", "lazy dog").ids
    assert row[: len(want)].tolist() == want
    assert set(row[len(want) :]) <= {ours.pad_token_id}
    preprocessor.sequence_length = 16
    long = np.array(preprocessor((["fox " * 9], ["dog " * 9]))["token_ids"])[0]
    assert len(long) == 16 and long[-1] == ours.sep_token_id
    assert list(long).count(ours.cls_token_id) == 1 + ours.begins_second


def test_files_as_gemmas(tmp_path, byte_fallback_models):
    """A tab in place of its byte, white space runs and tags matched first, a plain mask."""
    proto = read_proto(byte_fallback_models["bpe"])
    found = ["\n\n", "\n\n\n", "<table>"]
    for piece in proto.pieces:
        if piece.piece == "<0x09>":
            piece.piece = "\t"
    for token in found:
        proto.pieces.add(piece=token, score=0.0, type=proto.SentencePiece.USER_DEFINED)
    rust = rust_tokenizer(proto.SerializeToString())

    def change(content):
        for token in content["added_tokens"]:
            token["special"] = token["content"] != "<mask>"
        size = len(proto.pieces) - len(found)
        flags = {key: False for key in content["added_tokens"][0] if key not in ("id", "content")}
        content["added_tokens"] += [
            {"id": size + i, "content": token, **flags} for i, token in enumerate(found)
        ]
        content["pre_tokenizer"] = {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        }
        replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        content["normalizer"] = replace

    directory = write(tmp_path / "new", rust, {"tokenizer_class": "GemmaTokenizer"}, change)
    ours = tokenizer_from_files(directory, "modernbert")
    theirs = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    texts = ["a\tb\t\tc", "x\n\n\n\n\ny\n", "a  <table>b", "the fox<table><table>"]
    assert ours(texts) == [x.ids for x in theirs.encode_batch(texts, add_special_tokens=False)]
    assert ours.get_vocabulary()[-3:] == found
    assert ours.mask_token_id not in ours("<mask>")
    asked = tokenizer_from_files(directory, "modernbert", special_tokens_in_strings=True)
    # The files say that the mask includes no space.
    text = "the <mask> fox"
    assert asked(text) == theirs.encode(text, add_special_tokens=False).ids
    assert asked.detokenize(asked(texts)) == texts


def check_unlike(directory, message):
    """Check that the class rejects the file, and that the library runs it if it can."""
    with pytest.raises(ValueError, match=message):
        ByteFallbackTokenizer.from_files(directory)
    try:
        ours = tokenizer_from_files(directory, "modernbert")
    except ValueError as error:
        assert re.search(message, str(error))
        return
    assert type(ours) is FastTokenizer and re.search(message, ours.reason)
    theirs = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    texts = ["the fox", "x\n\ny\t", "größe 日本"]
    assert ours(texts) == [x.ids for x in theirs.encode_batch(texts, add_special_tokens=False)]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"ignore_merges": True}, "ignore_merges=True with byte_fallback"),
        ({"end_of_word_suffix": "</w>"}, "end_of_word_suffix='</w>' with"),
    ],
)
def test_models_that_are_refused(tmp_path, byte_fallback_models, change, message):
    rust = rust_tokenizer(byte_fallback_models["bpe"])
    directory = write(tmp_path / "new", rust, (), lambda content: content["model"].update(change))
    check_unlike(directory, message)


def test_merges_that_are_refused(tmp_path, byte_fallback_models):
    """SentencePiece would merge pairs that these do not."""
    rust = rust_tokenizer(byte_fallback_models["bpe"])

    def drop(content):
        merges = content["model"]["merges"]
        names = ["".join(pair) for pair in merges]
        del merges[next(i for i, name in enumerate(names) if names.count(name) > 1)]

    message = "merges of .* that no SentencePiece model has"
    check_unlike(write(tmp_path / "new", rust, (), drop), message)

    def turn(content):
        content["model"]["merges"].reverse()
        del content["model"]["merges"][3:]

    check_unlike(write(tmp_path / "new", rust, (), turn), message)


@pytest.mark.parametrize(
    "step",
    [
        {"normalizer": {"type": "NFKC"}},
        {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "_"}},
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "split": True}},
        {"pre_tokenizer": {"type": "ByteLevel"}},
        {"pre_tokenizer": None},
    ],
    ids=str,
)
def test_steps_that_are_refused(tmp_path, byte_fallback_models, step):
    rust = rust_tokenizer(byte_fallback_models["unigram"])
    directory = write(tmp_path / "new", rust, (), lambda content: content.update(step))
    check_unlike(directory, "has byte_fallback and processes texts with")


def test_mistakes_are_one_sentence(byte_fallback_models, xlmr_model):
    with pytest.raises(ValueError, match="lacks the byte '<0x00>', but ByteFallbackTokenizer"):
        ByteFallbackTokenizer(xlmr_model, mask_token="<unk>", pad_token="<unk>")
    with pytest.raises(ValueError, match="prepend_scheme='last'"):
        ByteFallbackTokenizer(byte_fallback_models["bpe"], prepend_scheme="last")


def test_many_short_texts_beside_a_long_one(make):
    """The memory depends on the total length, not on the number of texts times the longest."""
    tokenizer = make("ByteFallbackTokenizer")
    texts = ["fox"] * 20_000 + ["the quick brown fox " * 20_000]
    ids = tokenizer(texts)
    assert ids[0] == ids[-2] and len(ids[-1]) > 20_000


@pytest.fixture(scope="module")
def checkpoints(byte_fallback_models, tmp_path_factory):
    """Small models in the form of ModernBERT-ja's and mmBERT's folders, with their ids."""
    folders = {}
    ids = {"pad_token_id": 3, "bos_token_id": 1, "eos_token_id": 2}
    for kind, special in (
        ("unigram", {"cls_token_id": 6, "sep_token_id": 4}),
        ("bpe", {"cls_token_id": 2, "sep_token_id": 2}),
    ):
        rust = rust_tokenizer(byte_fallback_models[kind])
        torch.manual_seed(1)
        config = transformers.ModernBertConfig(
            vocab_size=rust.get_vocab_size(),
            hidden_size=16,
            num_hidden_layers=3,
            num_attention_heads=2,
            intermediate_size=24,
            local_attention=8,
            initializer_range=0.5,
            **{**ids, **special},
        )
        folder = tmp_path_factory.mktemp(kind)
        transformers.ModernBertForMaskedLM(config).save_pretrained(folder)
        folders[kind] = write(folder, rust, {"add_bos_token": True, "add_eos_token": True})
    return folders


@pytest.mark.peers
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_raw_texts_to_the_answers_of_transformers(checkpoints, kind):
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(checkpoints[kind]).eval()
    encode = transformers.AutoTokenizer.from_pretrained(checkpoints[kind])
    ours = BertMaskedLM.from_preset(str(checkpoints[kind]))
    text = "北京は<mask> 𠮷 fox."
    rows = encode(text, return_tensors="pt")
    assert rows["input_ids"][0, 0] == 1 and rows["input_ids"][0, -1] == 2
    with torch.no_grad():
        logits = theirs(**rows).logits[0]
    wanted = logits[rows["input_ids"][0] == encode.mask_token_id][0].softmax(-1).topk(3)
    found = ours.fill_mask(text, top_k=3)
    assert [answer["token_id"] for answer in found] == wanted.indices.tolist()
    np.testing.assert_allclose([x["score"] for x in found], wanted.values.numpy(), atol=1e-5)
    assert all(answer["text"].startswith("北京は") for answer in found)
    assert all(answer["text"].endswith(" 𠮷 fox.") for answer in found)
    embedder = BertTextEmbedder.from_preset(str(checkpoints[kind]))
    row = encode("the fox 𩸽", return_tensors="pt")
    with torch.no_grad():
        states = theirs.model(**row).last_hidden_state[0]
    vector = np.asarray(embedder.embed(["the fox 𩸽"]))[0]
    gaps = [np.abs(vector - x.numpy()).max() for x in (states.mean(0), states[0])]
    assert min(gaps) < 1e-5


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_served(checkpoints, kind, tmp_path, monkeypatch):
    """The export must give the model's answers to raw texts."""
    tiny.write_here(monkeypatch)
    model = BertMaskedLM.from_preset(str(checkpoints[kind]))
    export_serving(model, str(tmp_path / "served"), signatures=["serving_default"])
