"""XLM's and FlauBERT's tokenizers: ids equal to those of transformers, offsets, files, presets."""

import json
import re

import numpy as np
import pytest

from kerasbert.models import BertMaskedLMPreprocessor
from kerasbert.tokenizers import FlaubertTokenizer, XLMTokenizer, tokenizer_from_files
from tests.peers import transformers

pytestmark = [pytest.mark.peers, pytest.mark.backends("torch")]

SPECIAL = ["<s>", "</s>", "<pad>", "<unk>", *(f"<special{i}>" for i in range(10))]
TEXTS = [
    "Don't panic: it's 3.5% of U.S. trade!",
    "L'Été, c'est «fini» … n'est-ce pas ?",
    "naïve café—déjà vu – “quoted” ‘text’ 12,5 €",
    "한국어 문장입니다。 다음, 문장 日本語、です。",
    "Mr. Smith e.g. a\u200b b\u00a0c\td\ne",
    'http://example.com/a?b=c&d=e <b>x</b> | [1] & "hi"',
    "Où est ``ici'' ''là'' Ş ＡＢＣ １２３ （test） ： ！",
    "",
    "   ",
]
CLASSES = {
    "xlm": (XLMTokenizer, "do_lowercase_and_remove_accent"),
    "flaubert": (FlaubertTokenizer, "do_lowercase"),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Files as in the checkpoints; some merges make tokens that the vocabulary lacks."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    folder = tmp_path_factory.mktemp("moses")
    rust = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<unk>"))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, end_of_word_suffix="</w>", show_progress=False
    )
    rust.train_from_iterator([x for text in TEXTS for x in (text, text.lower())], trainer)
    model = json.loads(rust.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    kept = [token for i, token in enumerate(tokens) if token in SPECIAL or i % 9]
    (folder / "vocab.json").write_text(json.dumps({x: i for i, x in enumerate(kept)}))
    merges = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
    lines = [f"{a} {b} {1000 - i}\n" for i, (a, b) in enumerate(merges)]
    (folder / "merges.txt").write_text("".join(lines))
    return folder


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("family", CLASSES)
def test_ids_equal_transformers(directory, family, lowercase):
    cls, flag = CLASSES[family]
    names = {"en": 1, "fr": 0}
    settings = {flag: lowercase, "lang2id": names, "id2lang": {0: "fr", 1: "en"}}
    config = {"tokenizer_class": cls.__name__, "model_max_length": 32, **settings}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = getattr(transformers, cls.__name__).from_pretrained(directory)
    ours = tokenizer_from_files(directory, family)
    assert type(ours) is cls and ours.lowercase == lowercase and ours.languages == ["fr", "en"]
    for text in TEXTS:
        assert ours(text) == theirs(text, add_special_tokens=False)["input_ids"]
    assert len({id for text in TEXTS for id in ours(text)}) > 50
    assert ours.detokenize(ours(TEXTS[0])) == theirs.decode(theirs(TEXTS[0])["input_ids"][1:-1])
    row = BertMaskedLMPreprocessor(ours, mask_selection_rate=0)(("a b", "c"))
    row = np.asarray(row[0]["token_ids"])
    expected = theirs("a b", "c")["input_ids"]
    assert row[: len(expected)].tolist() == expected
    found = ours.with_special_tokens()("a <special1> b")
    assert found == theirs("a <special1> b", add_special_tokens=False)["input_ids"]


def test_other_languages(directory):
    ours = XLMTokenizer(directory / "vocab.json", directory / "merges.txt", language="fr")
    theirs = transformers.XLMTokenizer(directory / "vocab.json", directory / "merges.txt")
    for text in TEXTS:
        # In this version, `tokenize` does not pass the language on.
        tokens = theirs._tokenize(text, lang="fr")
        assert ours(text) == theirs.convert_tokens_to_ids(tokens)
    refused = XLMTokenizer(directory / "vocab.json", directory / "merges.txt", language="ja")
    with pytest.raises(ValueError, match="do not split words in the language 'ja'"):
        refused("a")


def test_offsets_and_datasets(directory):
    import tensorflow as tf

    ours = XLMTokenizer(directory / "vocab.json", directory / "merges.txt")
    text = TEXTS[1]
    ids, starts, ends = ours.tokenize_with_offsets(text)
    words = [text[a:b] for a, b in zip(starts, ends)]
    # The pieces of "..." all have the offsets of the ellipsis.
    assert re.sub("…+", "…", "".join(words)) == text.replace(" ", "")
    rows = next(iter(tf.data.Dataset.from_tensor_slices(TEXTS).batch(9).map(ours.tokenize)))
    assert rows.to_list() == [ours(text) for text in TEXTS]
    with pytest.raises(ValueError, match="cannot run in a TensorFlow graph, because Moses' rules"):
        ours.check_graph()


def test_files_and_presets(directory, tmp_path):
    names = ["de", "en", "fr"]
    ours = XLMTokenizer(
        directory / "vocab.json",
        directory / "merges.txt",
        lowercase=False,
        languages=names,
        language=("fr", "de"),
    )
    preprocessor = BertMaskedLMPreprocessor(ours, mask_selection_rate=0)
    preprocessor.save_to_preset(tmp_path)
    again = BertMaskedLMPreprocessor.from_preset(tmp_path)
    features = again((TEXTS[:2], TEXTS[1:3]))[0]
    # A translation begins with a start token, as in XLM's code.
    row = np.asarray(features["token_ids"])[0].tolist()
    a, b = ours(TEXTS[0]), ours(TEXTS[1])
    assert row[: len(a) + len(b) + 4] == [0, *a, 1, 0, *b, 1]
    segments = np.asarray(features["segment_ids"])[0].tolist()
    assert segments[: len(a) + len(b) + 4] == [2] * (len(a) + 2) + [0] * (len(b) + 2)
