"""Tokenizers of any `tokenizer.json`, compared with the library `tokenizers` and transformers."""

import json
import random
import sys

import numpy as np
import pytest
import tokenizers
from tokenizers import Regex, Tokenizer, decoders, models, processors, trainers
from tokenizers import normalizers as n
from tokenizers import pre_tokenizers as p

from kerasbert.checkpoints.huggingface import _num_segments
from kerasbert.preprocessors import BertMaskedLMPreprocessor
from kerasbert.text.choose import tokenizer_from_files
from kerasbert.text.fast import FastTokenizer
from kerasbert.text.preprocessor import BertPreprocessor
from kerasbert.text.transformers_files import transformers_files
from tests.peers import transformers
from tests.text.conftest import HARD, SENTENCES

pytestmark = pytest.mark.backends("tensorflow")  # No backend changes the results.

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT = p.BertPreTokenizer()
# For each row: model, normalizer, pre-tokenizer, and other settings of the file.
ROWS = {
    "quick_tour": ("BPE", None, p.Whitespace(), {}),
    "course": ("WordPiece", [n.NFD(), n.Lowercase(), n.StripAccents()], BERT, {}),
    "course_split": ("WordPiece", [n.BertNormalizer()], [p.Whitespace(), p.Punctuation()], {}),
    "camel_case": (
        "BPE",
        None,
        [p.Split(Regex("(?<=[a-z])(?=[A-Z])"), "isolated"), p.Whitespace()],
        {},
    ),
    "nfkc": ("WordPiece", [n.NFKC()], BERT, {}),
    "nfkd_strip": ("Unigram", [n.NFKD(), n.StripAccents()], p.Metaspace(), {}),
    "digits_apart": ("BPE", [n.NFC()], [p.Digits(True), p.ByteLevel(add_prefix_space=False)], {}),
    "digits_together": ("BPE", None, [p.Digits(False), p.Whitespace()], {}),
    "delimiter": ("WordLevel", None, p.CharDelimiterSplit("-"), {}),
    "word_level": ("WordLevel", [n.Lowercase()], p.Whitespace(), {}),
    "word_level_split": ("WordLevel", None, p.WhitespaceSplit(), {}),
    "unicode_scripts": ("Unigram", None, [p.UnicodeScripts(), p.Metaspace()], {}),
    "punctuation": ("WordPiece", None, p.Punctuation("contiguous"), {}),
    "punctuation_removed": ("WordPiece", None, [p.WhitespaceSplit(), p.Punctuation("removed")], {}),
    "replaced": ("WordPiece", [n.Replace("o", "0"), n.Replace(Regex("[aeiou]"), "_")], BERT, {}),
    "stripped": ("WordPiece", [n.Strip()], BERT, {}),
    "prepended": ("BPE", [n.Prepend("▁"), n.Replace(" ", "▁")], None, {}),
    "nmt": ("Unigram", [n.Nmt(), n.NFKC()], p.Metaspace("_"), {}),
    "byte_level_normalizer": ("BPE", [n.ByteLevel()], None, {}),
    "no_steps": ("BPE", None, None, {}),
    "metaspace_first": ("BPE", None, p.Metaspace(prepend_scheme="first"), {}),
    "metaspace_never": ("BPE", None, p.Metaspace(prepend_scheme="never"), {}),
    "byte_fallback": ("BPE", None, p.Metaspace(), {"byte_fallback": True, "fuse_unk": True}),
    "fused_unknown": ("BPE", None, p.Whitespace(), {"fuse_unk": True}),
    "ignored_merges": ("BPE", None, p.Whitespace(), {"ignore_merges": True}),
    "end_of_word": ("BPE", None, p.Whitespace(), {"end_of_word_suffix": "</w>"}),
    "subword_prefix": ("BPE", None, p.Whitespace(), {"continuing_subword_prefix": "##"}),
    "short_words": ("WordPiece", None, p.Whitespace(), {"max_input_chars_per_word": 5}),
    "dollar_prefix": ("WordPiece", None, p.Whitespace(), {"continuing_subword_prefix": "$"}),
    "regex_like_gpt": (
        "BPE",
        None,
        [
            p.Split(Regex(r"\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+"), "isolated"),
            p.ByteLevel(add_prefix_space=False, use_regex=False),
        ],
        {},
    ),
    "merged_with_next": ("WordPiece", None, p.Split(" ", "merged_with_next"), {}),
    "merged_with_previous": ("WordPiece", None, p.Split(" ", "merged_with_previous"), {}),
    "fixed_length": ("BPE", None, p.FixedLength(4), {}),
}
# Files that differ in the special tokens around a row, and in added tokens.
PROCESSORS = {
    "bert": processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)),
    "roberta": processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2)),
    "template": processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    ),
    "template_begins": processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] [CLS]:1 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    ),
    "template_end": processors.TemplateProcessing(
        single="$A [SEP]", pair="$A [SEP] $B:1 [SEP]:1", special_tokens=[("[SEP]", 3)]
    ),
    "template_start": processors.TemplateProcessing(
        single="[CLS] $A", pair="[CLS] $A [SEP] $B", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    ),
    "template_many": processors.TemplateProcessing(
        single="[CLS] [MASK] $A [SEP] [SEP]",
        pair="[CLS] [MASK] $A [SEP] $B:1 [SEP]:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3), ("[MASK]", 4)],
    ),
    "template_texts": processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[]),
    "byte_level": processors.ByteLevel(),
    "sequence": processors.Sequence(
        [processors.ByteLevel(), processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))]
    ),
    "none": None,
}
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


def library(row, processor="template", added=()):
    """Train a tokenizer on the sentences with the library."""
    kind, normalizer, splits, settings = row
    settings = dict(settings)
    arguments = {} if kind == "Unigram" else {"unk_token": "[UNK]"}
    names = ("byte_fallback", "fuse_unk", "ignore_merges", "max_input_chars_per_word")
    arguments |= {name: x for name, x in settings.items() if name in names}
    tokenizer = Tokenizer(getattr(models, kind)(**arguments))
    if normalizer:
        tokenizer.normalizer = n.Sequence(normalizer) if len(normalizer) > 1 else normalizer[0]
    if splits is not None:
        tokenizer.pre_tokenizer = p.Sequence(splits) if isinstance(splits, list) else splits
    more = {"unk_token": "[UNK]"} if kind == "Unigram" else {}
    if kind in ("BPE", "WordPiece"):
        names = ("end_of_word_suffix", "continuing_subword_prefix")
        more = {name: x for name, x in settings.items() if name in names}
    special = list(SPECIAL)
    if settings.get("byte_fallback"):
        special += [f"<0x{byte:02X}>" for byte in range(256)]
    if kind != "WordLevel":
        more["vocab_size"] = 700
    trainer = getattr(trainers, f"{kind.replace('BPE', 'Bpe')}Trainer")(
        special_tokens=special, show_progress=False, **more
    )
    tokenizer.train_from_iterator(SENTENCES * 2, trainer)
    if PROCESSORS[processor] is not None:
        tokenizer.post_processor = PROCESSORS[processor]
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_tokens(list(added))
    return tokenizer


def write(tokenizer, directory):
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 16}
    config |= {
        f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "config.json").write_text(json.dumps({"model_type": "bert", "hidden_size": 4}))
    return directory


def fuzzed(count, seed=0):
    """Return texts of sentence parts, rare characters, and token strings."""
    draw = random.Random(seed)
    parts = [*"".join(SENTENCES), *SENTENCES[0].split(), *HARD, "[new]", "newer", " ", "  ", "\n"]

    def part():
        if draw.random() < 0.2:
            point = draw.choice([draw.randrange(0x3000), draw.randrange(sys.maxunicode + 1)])
            return chr(point) if not 0xD800 <= point < 0xE000 else "x"
        return draw.choice(parts)

    return ["".join(part() for _ in range(draw.randrange(14))) for _ in range(count)]


def check(ours, theirs, texts):
    """Compare ids and offsets of a tokenizer and of the library."""
    theirs.encode_special_tokens = not ours.special_tokens_in_strings
    expected = theirs.encode_batch(texts, add_special_tokens=False)
    ids, starts, ends = ours.tokenize_with_offsets(texts)
    special = set(range(5)) if not ours.special_tokens_in_strings else set()
    for text, one, row, *places in zip(texts, expected, ids, starts, ends, strict=True):
        # A text never produces the id of a control token.
        wanted = [1 if id in special else id for id in one.ids]
        assert (text, row) == (text, wanted)
        assert (text, list(zip(*places))) == (text, one.offsets)
    assert ours.tokenize(texts) == ids


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_as_the_library(name, tmp_path):
    theirs = library(ROWS[name])
    write(theirs, tmp_path)
    ours = tokenizer_from_files(tmp_path, "bert")
    texts = SENTENCES + HARD + fuzzed(150)
    check(ours, theirs, texts)
    check(ours.with_special_tokens(), theirs, texts)
    if not isinstance(ours, FastTokenizer):
        return
    # Written unchanged, and read from a preset.
    files = transformers_files(ours, "bert", 16, has_segments=True)
    kept = json.loads((tmp_path / "tokenizer.json").read_text())
    kept |= {"truncation": None, "padding": None}
    for token in kept["added_tokens"]:  # transformers matches no other tokens in texts.
        token["special"] = token["content"] in SPECIAL
    assert json.loads(files["tokenizer.json"]) == kept
    ours.save_to_preset(str(tmp_path / "preset"))
    again = FastTokenizer.from_preset(str(tmp_path / "preset"))
    assert again.tokenize(texts) == ours.tokenize(texts) and again.get_config() | {
        "name": 0
    } == ours.get_config() | {"name": 0}


@pytest.mark.parametrize("flags", range(16))
def test_added_tokens(flags, tmp_path):
    settings = {name: bool(flags >> place & 1) for place, name in enumerate(FLAGS)}
    added = [
        tokenizers.AddedToken("[new]", **settings),
        tokenizers.AddedToken("newer", special=bool(flags & 1), **settings),
    ]
    theirs = library(ROWS["course"], added=added)
    write(theirs, tmp_path)
    ours = tokenizer_from_files(tmp_path, "bert")
    assert isinstance(ours, FastTokenizer) and ours.control == SPECIAL
    # A special token without a role is matched, as in transformers.
    check(ours.with_special_tokens(), theirs, SENTENCES + HARD + fuzzed(300, flags))


@pytest.mark.peers
@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("name", ["quick_tour", "course", "nmt", "word_level"])
def test_rows_as_in_transformers(name, processor, tmp_path):
    write(library(ROWS[name], processor), tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = tokenizer_from_files(tmp_path, "bert", special_tokens_in_strings=True)
    segments = _num_segments(tmp_path, {"num_segments": 2})
    preprocessor = BertPreprocessor(ours, sequence_length=16, num_segments=segments)
    texts = [text for text in SENTENCES + HARD + fuzzed(200) if text]
    files = transformers_files(ours, "bert", 16, segments > 1, padded_to=16)
    shipped = Tokenizer.from_str(files["tokenizer.json"].decode())
    for columns in ((texts,), (texts, texts[::-1])):
        expected = theirs(
            *columns,
            truncation=True,
            padding="max_length",
            return_tensors="np",
            return_token_type_ids=True,
        )
        pairs = [*zip(*columns)] if len(columns) > 1 else texts
        rows = shipped.encode_batch(pairs)
        assert [row.ids for row in rows] == expected["input_ids"].tolist()
        assert [row.type_ids for row in rows] == expected["token_type_ids"].tolist()
        found = preprocessor(columns if len(columns) > 1 else texts)
        names = {"token_ids": "input_ids", "padding_mask": "attention_mask"}
        for name, theirs_name in {**names, "segment_ids": "token_type_ids"}.items():
            rows = np.asarray(found[name])
            width = rows.shape[1]  # The bucket of the longest row.
            np.testing.assert_array_equal(rows, expected[theirs_name][:, :width])
            assert not expected["attention_mask"][:, width:].any()


def test_segments_of_a_damaged_template(tmp_path):
    """The tokenizer's own reader says what is wrong; a model without one still loads."""
    for part in (
        5,
        {"pair": 5, "processors": 3},
        {"processors": [7, {"type": "RobertaProcessing"}]},
    ):
        (tmp_path / "tokenizer.json").write_text(json.dumps({"post_processor": part}))
        found = _num_segments(tmp_path, {"num_segments": 2})
        assert found == (1 if "Roberta" in str(part) else 2)


@pytest.mark.slow
def test_in_a_dataset(tmp_path):
    import tensorflow as tf

    write(library(ROWS["course"]), tmp_path)
    ours = tokenizer_from_files(tmp_path, "bert")
    preprocessor = BertPreprocessor(ours, sequence_length=16)
    dataset = tf.data.Dataset.from_tensor_slices(SENTENCES).batch(3).map(preprocessor)
    found = [row for batch in dataset for row in batch["token_ids"].numpy().tolist()]
    expected = np.asarray(preprocessor(SENTENCES)["token_ids"]).tolist()
    assert [[x for x in row if x] for row in found] == [[x for x in row if x] for row in expected]
    assert ours.detokenize([[5, 6], []]) == [
        text.decode() for text in ours.detokenize(tf.ragged.constant([[5, 6], []])).numpy()
    ]


def test_no_text_makes_a_control_token(tmp_path):
    write(library(ROWS["word_level_split"]), tmp_path)
    ours = tokenizer_from_files(tmp_path, "bert")
    with pytest.warns(UserWarning, match=r"'\[SEP\]', a control token"):
        assert ours.tokenize("zz [SEP] [MASK]") == [1, 1, 1]
    assert ours.with_special_tokens().tokenize("zz [SEP] [MASK]") == [1, 3, 4]


def changed(tmp_path, row, change, config=()):
    """Write a tokenizer with a changed file and configuration, and read it."""
    write(library(ROWS[row]), tmp_path)
    for name, update in (("tokenizer.json", change), ("tokenizer_config.json", config)):
        path = tmp_path / name
        content = json.loads(path.read_text())
        content = update(content) if callable(update) else content | dict(update)
        path.write_text(json.dumps({key: x for key, x in content.items() if x != "absent"}))
    return tokenizer_from_files(tmp_path, "bert")


def without(token):
    """Return a change that removes a special token from a word-level file."""

    def change(content):
        ids = content["model"]["vocab"]
        del ids[token]
        content["model"]["vocab"] = {one: id for id, one in enumerate(ids)}
        ids = content["model"]["vocab"]
        added = [one for one in content["added_tokens"] if one["content"] != token]
        content["added_tokens"] = [one | {"id": ids[one["content"]]} for one in added]
        for one in content["post_processor"]["special_tokens"].values():
            one["ids"] = [ids[one["id"]]]
        return content

    return change


def test_missing_tokens(tmp_path):
    ours = changed(tmp_path, "word_level_split", without("[MASK]"), {"mask_token": "absent"})
    assert ours.missing == ["mask"] and ours.tokenize("the") == [ours.token_to_id("the")]
    with pytest.raises(ValueError, match="no mask token, which masked language models need"):
        BertMaskedLMPreprocessor(ours)
    ours = changed(tmp_path, "word_level_split", without("[UNK]"), {"unk_token": "absent"})
    the = ours.token_to_id("the")
    assert ours.tokenize(["the [SEP] the [CLS]", "", "[SEP]"]) == [[the, the], [], []]
    with pytest.raises(ValueError, match=r"cannot split a text \(WordLevel error: Missing"):
        ours.tokenize("zzz")
    with pytest.raises(ValueError, match=r"lacks '<pad2>' \(pad_token\)"):
        changed(tmp_path, "word_level_split", {}, {"pad_token": "<pad2>"})


def test_special_tokens_that_only_the_configuration_names(tmp_path):
    more = {"additional_special_tokens": ["<y>"]}
    ours = changed(tmp_path, "camel_case", {}, more)
    size = ours.vocabulary_size()
    assert ours.tokenize("the <y>")[-1] == size - 1 and ours.id_to_token(size - 1) == "<y>"
    files = transformers_files(ours, "bert", 16, has_segments=True)
    (tmp_path / "again").mkdir()
    for name, data in files.items():
        (tmp_path / "again" / name).write_bytes(data)
    again = tokenizer_from_files(tmp_path / "again", "bert")
    texts = ["the <y> [SEP]", "x<y>", *fuzzed(20)]
    assert again.tokenize(texts) == ours.tokenize(texts)
    # The file for the library does not match control tokens either.
    files = transformers_files(ours, "bert", 16, has_segments=True, padded_to="batch")
    shipped = Tokenizer.from_str(files["tokenizer.json"].decode())
    shipped.no_truncation()
    shipped.no_padding()
    texts = ["a <y> b", "the fox"]
    found = [row.ids for row in shipped.encode_batch(texts, add_special_tokens=False)]
    assert found == ours.tokenize(texts)
    assert 3 not in shipped.encode("the [SEP] fox", add_special_tokens=False).ids


def test_bad_arguments(tmp_path):
    write(library(ROWS["camel_case"]), tmp_path)
    with pytest.raises(ValueError, match="^FastTokenizer has no argument 'special_token_in"):
        tokenizer_from_files(tmp_path, "bert", special_token_in_strings=True)
    for arguments, message in (
        ({"content": [1]}, "content"),
        ({"control": "abc"}, "control"),
        ({"control": None}, "control"),
    ):
        with pytest.raises(ValueError, match=message):
            FastTokenizer(**arguments)
    ours = tokenizer_from_files(tmp_path, "bert")
    with pytest.raises(ValueError, match="99999"):
        ours.detokenize([99999])


def test_bad_files(tmp_path):
    write(library(ROWS["course"]), tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"normalizer": {"type": "Nothing"}}))
    with pytest.raises(ValueError, match="`tokenizers` cannot read this tokenizer.json"):
        tokenizer_from_files(tmp_path, "bert")
    added = [{**content["added_tokens"][0], "id": 9000, "content": "far"}]
    path.write_text(json.dumps(content | {"added_tokens": content["added_tokens"] + added}))
    with pytest.raises(ValueError, match="'far' in .* has the id 9000"):
        tokenizer_from_files(tmp_path, "bert")
    path.write_text(json.dumps(content | {"model": content["model"] | {"type": "Unknown"}}))
    with pytest.raises(ValueError, match="cannot read this tokenizer.json"):
        tokenizer_from_files(tmp_path, "bert")
    frame = content["post_processor"]
    for row in (
        {"pair": frame["pair"][::-1]},
        {"pair": frame["pair"][:-1]},
        {"single": [frame["single"][0]] * 2},
        {"single": frame["single"] * 2},
    ):
        path.write_text(json.dumps(content | {"post_processor": frame | row}))
        with pytest.raises(
            ValueError, match="frames a text as '.*' and a pair as '.*', which Fast"
        ):
            tokenizer_from_files(tmp_path, "bert")
    library_bpe = json.loads(library(ROWS["quick_tour"]).to_str())
    model = library_bpe["model"] | {"continuing_subword_prefix": "##"}
    path.write_text(json.dumps(library_bpe | {"model": model}))
    with pytest.raises(ValueError, match="whose second part does not begin with"):
        tokenizer_from_files(tmp_path, "bert")
    path.write_text(json.dumps(library_bpe | {"model": library_bpe["model"] | {"dropout": 0.1}}))
    with pytest.raises(ValueError, match="dropout=0.1, which gives a text different tokens"):
        tokenizer_from_files(tmp_path, "bert")


@pytest.mark.peers
def test_a_model_with_one(tmp_path):
    """Loading, logits, `fit`, and each export."""
    import tensorflow as tf
    import torch

    import kerasbert
    from kerasbert.models import BertTextClassifier

    place = tmp_path / "theirs"
    place.mkdir()
    tokenizer = write(library(ROWS["camel_case"]), place)
    theirs = transformers.AutoTokenizer.from_pretrained(place)
    config = transformers.BertConfig(
        vocab_size=len(theirs),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=2,
    )
    torch.manual_seed(0)
    transformers.BertForSequenceClassification(config).eval().save_pretrained(place)
    model = BertTextClassifier.from_preset(place)
    assert isinstance(model.preprocessor.tokenizer, FastTokenizer)
    texts = [text for text in SENTENCES + fuzzed(20) if text]
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(place)
    with torch.no_grad():
        rows = theirs(texts, truncation=True, padding=True, return_tensors="pt")
        expected = peer(**rows).logits.numpy()
    found = model.predict(texts, verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    served = tf.saved_model.load(kerasbert.export_serving(model, tmp_path / "served"))
    answer = served.signatures["serving_default"](text=tf.constant(texts))
    odds = np.exp(found) / np.exp(found).sum(1, keepdims=True)
    np.testing.assert_allclose(answer["probabilities"], odds, atol=1e-5)
    kerasbert.convert(model, tmp_path / "again", format="huggingface")
    again = json.loads((tmp_path / "again" / "tokenizer.json").read_text())
    assert again == json.loads((place / "tokenizer.json").read_text())
    assert tokenizer is place
    model.fit(texts, np.arange(len(texts)) % 2, epochs=2, batch_size=4, verbose=0)
    model.save_to_preset(str(tmp_path / "preset"))
    loaded = BertTextClassifier.from_preset(str(tmp_path / "preset"))
    np.testing.assert_allclose(
        loaded.predict(texts, verbose=0), model.predict(texts, verbose=0), atol=1e-6
    )
    kerasbert.export_serving(model, tmp_path / "tokens", tokens_only=True)
    kerasbert.export_onnx(model, tmp_path / "onnx")
    shipped = Tokenizer.from_file(str(tmp_path / "onnx" / "tokenizer.json"))
    row = np.asarray(model.preprocessor([texts[0]])["token_ids"])[0]
    assert shipped.encode(texts[0]).ids == [id for id in row.tolist() if id]


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["none", "template_end", "template_many"])
def test_heads_find_their_tokens_in_any_frame(processor, tmp_path):
    from kerasbert import models, preprocessors
    from kerasbert.visualize.tokens import read_text

    rust = library(ROWS["quick_tour"], processor)
    write(rust, tmp_path)
    tokenizer = tokenizer_from_files(tmp_path, "bert", special_tokens_in_strings=True)
    encoder = models.BertBackbone(
        vocabulary_size=tokenizer.vocabulary_size(),
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=8,
        max_sequence_length=16,
    )
    texts = ["the quick fox", "we [MASK] the film", ""]
    rows = rust.encode_batch(texts)
    spans = [[i for i, x in enumerate(row.special_tokens_mask) if not x] for row in rows]

    def outputs(model, row, **more):
        ids = np.array([row.ids or [0]], "int32")
        mask = np.full(ids.shape, bool(row.ids))
        names = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": mask}
        return np.asarray(model({name: x for name, x in names.items()} | more))[0]

    labels = ["O", "B-X", "I-X"]
    tags = preprocessors.BertTokenClassifierPreprocessor(
        tokenizer, labels=labels, label_pieces="all", sequence_length=16
    )
    tagger = models.BertTokenClassifier(encoder, num_classes=3, preprocessor=tags)
    for row, places, found in zip(rows, spans, tagger.predict(texts, verbose=0), strict=True):
        expected = outputs(tagger, row)[places]
        np.testing.assert_allclose(found, expected, atol=1e-5)
    x, y, weights = tags([texts[0].split()], [["B-X", "O", "I-X"]])
    assert np.flatnonzero(np.asarray(weights)[0]).tolist() == spans[0]
    filler = models.BertMaskedLM(
        encoder,
        preprocessor=preprocessors.BertMaskedLMPreprocessor(tokenizer, sequence_length=16),
    )
    [place] = [i for i in spans[1] if rows[1].ids[i] == 4]
    logits = outputs(filler, rows[1], mask_positions=np.array([[place]], "int32"))[0]
    best = filler.fill_mask(texts[1], top_k=1)[0]
    assert best["token_id"] == logits.argmax()
    # Reading a text for plots gives the row of the library.
    assert read_text(filler, texts[0], "plots").ids.tolist() == rows[0].ids
