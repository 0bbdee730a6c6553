"""Small tokenizers of every class, trained here, and their counterparts in `transformers`."""

import functools
import io
import json

import pytest

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "It's a film that we'll remember; they've said so, haven't they?",
    "Größe, café, naïve, Ångström and señor are words with accents.",
    "빠른 갈색 여우가 게으른 개를 뛰어넘습니다. 표를 삽입하려면 클릭하십시오.",
    "データベースのがぎぐげごパピプペポ、文書を開きます。",
    "北京是中华人民共和国的首都。他们在图书馆学习中文。",
    "Numbers 1234, 5.67 and 10,000 — with dashes and “quotes”.",
]
# Characters that tokenizers treat differently.
HARD = [
    "",
    " ",
    "   \t\n",
    "a",
    " leading and trailing  ",
    "It's I'd've we'll they're 'sa x'sa  's ''s 'S don't' ' '' 'l 'r x 've",
    "a  b   c\n\nd \t e\r\nf",
    "12 34abc, ...!! 9,9 10,000 ½ ① ²",
    "nbsp\u00a0en\u2002ideographic\u3000line\u2028par\u2029zero\u200bwidth\ufeffbom\u00adsoft",
    "café cafe\u0301 Å \u212b ﬁ İI ı ΑΣ ΣΑΣ ß ẞ",
    "\u0301accent first",
    "日本語テスト がぎ か\u3099 ﾊﾟ 한국어 \u1112\u1161\u11ab 中文测试 ㍿ 豈",
    "👩‍👩‍👧 🇰🇷 ❤️ 👍🏽 text",
    "x\x00y\x01z\x1c\x1d\x85\x0b\x0c\x7f\u200e\u202e",
    "``quoted'' ``` ''' \"x\"",
    "well-known (thing) £5 – €10 @user #tag http://x.org/?a=b&c=d_e",
    "<mask> x<mask> <s></s> [MASK] [CLS]x[SEP] <unk> ## ##a",
    "a" * 150 + " " + "b" * 250 + " " + "é" * 199,
    "-" * 70 + "=" * 33 + "aaaa" * 10,
    "ﬀ ſ K µ ǅ ŉ \ufffd \ue000 \U0010fffd",
]


@pytest.fixture(scope="session")
def hard():
    return HARD


@pytest.fixture(scope="session")
def sentences():
    return SENTENCES


# Cached functions, because pytest recreates a fixture for each folder that imports it.


@pytest.fixture(scope="session")
@functools.cache
def word_pieces():
    """A WordPiece vocabulary over all the sentences, cased and uncased, including dakuten."""
    from tokenizers import BertWordPieceTokenizer

    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    for settings in (
        {"lowercase": True},
        {"lowercase": False, "strip_accents": False},
        {"lowercase": False, "strip_accents": False, "handle_chinese_chars": False},
    ):
        trainer = BertWordPieceTokenizer(**settings)
        trainer.train_from_iterator(SENTENCES * 3, vocab_size=600, show_progress=False)
        tokens += [token for token in trainer.get_vocab() if token not in tokens]
    return list(dict.fromkeys(tokens))


@pytest.fixture(scope="session")
@functools.cache
def byte_pairs():
    """`(vocabulary, merges)` of a byte-level model, with RoBERTa's special tokens."""
    from tokenizers import ByteLevelBPETokenizer

    trainer = ByteLevelBPETokenizer()
    trainer.train_from_iterator(
        SENTENCES * 3 + HARD * 2,
        vocab_size=700,
        show_progress=False,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    )
    model = json.loads(trainer.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


@pytest.fixture(scope="session")
@functools.cache
def gpt_pairs():
    """`(vocabulary, merges)` of pairs of characters, with GPT's end of words."""
    import tokenizers

    rust = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    rust.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    rust.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<unk>"],
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    rust.train_from_iterator(SENTENCES * 3, trainer)
    model = json.loads(rust.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def _sentence_piece(sentences=SENTENCES, **settings):
    import sentencepiece

    data = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences * 3),
        model_writer=data,
        hard_vocab_limit=False,
        minloglevel=2,
        **settings,
    )
    return data.getvalue()


@pytest.fixture(scope="session")
@functools.cache
def xlmr_model():
    """A SentencePiece model like XLM-R's: `<unk>`, `<s>`, `</s>` first."""
    return _sentence_piece(vocab_size=300, unk_id=0, bos_id=1, eos_id=2, pad_id=-1)


@pytest.fixture(scope="session")
@functools.cache
def albert_model():
    """A SentencePiece model like ALBERT's."""
    return _sentence_piece(
        vocab_size=300,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols="[CLS],[SEP],[MASK]",
    )


@pytest.fixture(scope="session")
@functools.cache
def rembert_model():
    """A SentencePiece model like RemBERT's."""
    control = "[CLS],[SEP],[MASK]"
    return _sentence_piece(
        vocab_size=300, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, control_symbols=control
    )


@pytest.fixture(scope="session")
@functools.cache
def bert_generation_model():
    """A SentencePiece model like BERT-Generation's."""
    return _sentence_piece(
        vocab_size=300, pad_id=0, eos_id=1, bos_id=2, unk_id=3, control_symbols="<::::>"
    )


@pytest.fixture(scope="session")
@functools.cache
def deberta_model():
    """A SentencePiece model like DeBERTa-v3's: `[PAD]`, `[CLS]`, `[SEP]`, `[UNK]`, and no mask."""
    names = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]"}
    ids = {f"{role}_id": id for id, role in enumerate(names)}
    pieces = {f"{role}_piece": name for role, name in names.items()}
    return _sentence_piece(vocab_size=300, **ids, **pieces)


@pytest.fixture(scope="session")
@functools.cache
def byte_fallback_models():
    """SentencePiece models like ModernBERT-ja's and mmBERT's, by type: rare characters are
    bytes.
    """
    settings = {
        "vocab_size": 700,
        "byte_fallback": True,
        "character_coverage": 0.98,
        # Required for special tokens in the text.
        "required_chars": "<>/[]",
        "normalization_rule_name": "identity",
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
        "allow_whitespace_only_pieces": True,
        "unk_id": 0,
        "bos_id": 1,
        "eos_id": 2,
        "pad_id": 3,
        "control_symbols": "<sep>,<mask>,<cls>",
    }
    sentences = [*SENTENCES, "a  b   c    d", "a mask, a pad, a sep; cls and unk"]
    return {
        kind: _sentence_piece(sentences, model_type=kind, **settings) for kind in ("unigram", "bpe")
    }


_made = {}  # Arguments of `make`, by name.


@pytest.fixture(scope="session")
def make(
    word_pieces,
    byte_pairs,
    gpt_pairs,
    xlmr_model,
    albert_model,
    deberta_model,
    byte_fallback_models,
):
    """`make(name, **settings)` builds a small tokenizer of each class.

    Without settings, all tests share one, as tracing its graph takes up to 5 seconds: change it in
    none of them.
    """
    from kerasbert import tokenizers

    vocabulary, merges = byte_pairs
    names = {"<s>": "[CLS]", "</s>": "[SEP]", "<pad>": "[PAD]", "<unk>": "[UNK]"}
    names["<mask>"] = "[MASK]"
    modern = {names.get(token, token): id for token, id in vocabulary.items()}
    modern |= {" " * n: len(vocabulary) + 4 - n for n in (2, 3, 4)}
    roles = {ours: theirs for theirs, ours in names.items() if ours != "[UNK]"}
    second = {"<|endoftext|>" if token == "<s>" else token: id for token, id in vocabulary.items()}
    runs = [{"content": " " * n, "normalized": True} for n in (2, 3, 4)]
    builders = {
        "BertTokenizer": {"vocabulary": word_pieces, "lowercase": True},
        "MPNetTokenizer": {"vocabulary": [roles.get(token, token) for token in word_pieces]},
        "RobertaTokenizer": {"vocabulary": vocabulary, "merges": merges},
        "ModernBertTokenizer": {"vocabulary": modern, "merges": merges, "added_tokens": runs},
        "GPT2Tokenizer": {"vocabulary": second, "merges": merges},
        "GPTTokenizer": dict(zip(("vocabulary", "merges"), gpt_pairs)),
        "XLMRobertaTokenizer": {"proto": xlmr_model},
        "CamembertTokenizer": {"proto": xlmr_model},
        "AlbertTokenizer": {"proto": albert_model},
        "RemBertTokenizer": {"proto": albert_model},
        "DebertaV3Tokenizer": {"proto": deberta_model},
        "ByteFallbackTokenizer": {"proto": byte_fallback_models["unigram"]},
    }

    def make(name, /, **settings):
        if name in _made and not settings:
            return _made[name]
        tokenizer = getattr(tokenizers, name)(**builders[name] | settings)
        return tokenizer if settings else _made.setdefault(name, tokenizer)

    return make


CLASSES = (
    "BertTokenizer",
    "MPNetTokenizer",
    "RobertaTokenizer",
    "ModernBertTokenizer",
    "XLMRobertaTokenizer",
    "CamembertTokenizer",
    "AlbertTokenizer",
    "RemBertTokenizer",
    "DebertaV3Tokenizer",
    "ByteFallbackTokenizer",
    "GPT2Tokenizer",
    "GPTTokenizer",
)


# These are BERT's, RoBERTa's, XLM-R's and ALBERT's classes with other tables or defaults; RoBERTa's
# is the slowest to trace.
SLOW = (
    *("MPNetTokenizer", "ModernBertTokenizer", "GPT2Tokenizer", "CamembertTokenizer"),
    "RemBertTokenizer",
)


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in CLASSES],
    scope="session",
)
def tokenizer(request, make):
    """Each class in turn."""
    return make(request.param)
