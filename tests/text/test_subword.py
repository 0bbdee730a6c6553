"""Shared behavior of all tokenizers: inputs, errors, graphs, saving."""

import json
import os
import pickle
import subprocess
import sys
import textwrap
import unicodedata

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from kerasbert import tokenizers
from kerasbert.base.files import write_files
from kerasbert.data import word_spans, word_starts
from kerasbert.text.transformers_files import transformers_files
from tests.campaigns import batches


def lists(x):
    return x.to_list() if isinstance(x, tf.RaggedTensor) else x.numpy().tolist()


@pytest.mark.slow
def test_nesting(tokenizer):
    one, two = tokenizer(["the fox", "a dog."])
    assert isinstance(one[0], int)
    assert tokenizer("the fox") == one
    assert tokenizer(("the fox", "a dog.")) == [one, two]
    assert tokenizer([["the fox"], [], ["a dog.", "the fox"]]) == [[one], [], [two, one]]
    assert tokenizer(np.array(["the fox", "a dog."])) == [one, two]
    assert tokenizer(np.array([["the fox"], ["a dog."]], object)) == [[one], [two]]
    assert tokenizer(np.str_("the fox")) == one
    assert tokenizer(b"the fox") == one
    assert tokenizer([]) == []
    assert tokenizer("") == []
    assert tokenizer([""]) == [[]]
    assert tokenizer.tokenize_with_offsets([]) == ([], [], [])
    assert tokenizer.tokenize_with_offsets("") == ([], [], [])
    ids, starts, ends = tokenizer.tokenize_with_offsets([["the fox"], [], ["a dog."]])
    assert ids == [[one], [], [two]]
    assert [[len(s) for s in x] for x in starts] == [[len(e) for e in x] for x in ids]
    assert ends[0][0][-1] == len("the fox")


@pytest.mark.slow
def test_tensors(tokenizer):
    texts = ["the fox", "", "a dog."]
    want = tokenizer(texts)
    got = tokenizer(tf.constant(texts))
    assert isinstance(got, tf.RaggedTensor) and got.dtype == tf.int32
    assert got.to_list() == want
    scalar = tokenizer(tf.constant(texts[0]))
    assert scalar.dtype == tf.int32 and scalar.numpy().tolist() == want[0]
    deep = tokenizer(tf.ragged.constant([["the fox", ""], ["a dog."]]))
    assert deep.to_list() == [want[:2], want[2:]]
    square = tokenizer(tf.constant([["the fox"], ["a dog."]]))
    assert square.to_list() == [[want[0]], [want[2]]]
    offsets = tokenizer.tokenize_with_offsets(tf.constant(texts))
    assert all(x.dtype == tf.int32 for x in offsets)
    assert tuple(x.to_list() for x in offsets) == tokenizer.tokenize_with_offsets(texts)
    text = tokenizer.detokenize(got)
    assert [x.decode() for x in text.numpy()] == tokenizer.detokenize(want)
    assert tokenizer.detokenize(scalar).numpy().decode() == tokenizer.detokenize(want[0])
    dense = tf.constant(want[0])[tf.newaxis]
    assert tokenizer.detokenize(dense).numpy()[0].decode() == tokenizer.detokenize(want[0])
    backend = keras.ops.convert_to_tensor(want[0], "int32")
    if keras.backend.backend() != "tensorflow":
        assert tokenizer.detokenize(backend) == tokenizer.detokenize(want[0])


@pytest.mark.parametrize(
    "value, place",
    [
        (None, r"None \(NoneType\);"),
        (3, r"3 \(int\);"),
        (1.5, r"1.5 \(float\);"),
        (["a", None], "None .* at position 1"),
        (["a", "b", 7], "7 .* at position 2"),
        ([float("nan")], "nan .* at position 0"),
        (np.array([1, 2]), "1 .* at position 0"),
        ([["a"], [None]], "None .* at position 0"),
    ],
)
def test_what_is_no_text(make, value, place):
    tokenizer = make("BertTokenizer")
    for call in (tokenizer, tokenizer.tokenize, tokenizer.tokenize_with_offsets):
        with pytest.raises(TypeError, match=f"BertTokenizer expected text, got {place}"):
            call(value)


def test_what_is_no_text_either(make):
    tokenizer = make("BertTokenizer")
    with pytest.raises(TypeError, match="tensor of int32"):
        tokenizer(tf.constant([1]))
    with pytest.raises(TypeError, match="a list that mixes texts and lists"):
        tokenizer(["a", ["b"]])
    for value, place in ((b"\xff", "got bytes that"), (["a", b"b\xff"], "bytes at position 1")):
        with pytest.raises(ValueError, match=f"{place} .*not UTF-8.*decode them"):
            tokenizer(value)


@pytest.mark.slow
def test_bytes_that_are_not_utf8_in_the_graph(tokenizer):
    broken = [b"the \xfffox", b"\xc0\x80", b"\xed\xa0\x80the", b"a\xe2\x82", b"the\x00fox", b""]
    kept = tf.constant([x.decode("utf-8", "replace") for x in broken])
    assert lists(tokenizer(tf.constant(broken))) == lists(tokenizer(kept))
    ids, _, ends = tokenizer.tokenize_with_offsets(tf.constant(broken))
    assert ids.to_list() == tokenizer(kept).to_list()
    assert all(e <= len(x) for row, x in zip(ends.to_list(), broken, strict=True) for e in row)


def test_bytes_that_are_not_utf8_vanish_for_bert(make):
    tokenizer = make("BertTokenizer")
    got = tokenizer(tf.constant([b"the \xfffox\xc3", b"the fox"])).to_list()
    assert got[0] == got[1]


def test_long_texts(tokenizer):
    texts = ["x" * 10_000, "ab " * 3_400, "-" * 10_000, "é中" * 5_000, "the fox"]
    ids, starts, ends = tokenizer.tokenize_with_offsets(texts)
    assert ids == tokenizer(texts)
    assert [row[-1] for row in ends[::2]] == [10_000, 10_000, 7]
    assert ends[1][-1] in (10_199, 10_200)


def test_halves_of_surrogate_pairs(tokenizer):
    assert tokenizer("the \ud800fox") == tokenizer("the \ufffdfox")


def test_offsets_go_forward(tokenizer, hard, sentences):
    texts = hard + sentences
    columns = tokenizer.tokenize_with_offsets(texts)
    assert columns[0] == tokenizer(texts)
    for text, ids, starts, ends in zip(texts, *columns, strict=True):
        assert len(ids) == len(starts) == len(ends)
        assert starts == sorted(starts) and ends == sorted(ends)
        assert all(0 <= s < e <= len(text) for s, e in zip(starts, ends, strict=True))


def test_no_text_depends_on_its_batch(tokenizer):
    assert batches.differences(tokenizer, batches.texts(40, seed=2)) == []


@pytest.mark.slow
def test_a_text_that_loses_characters_moves_no_other(make):
    tokenizer = make("RobertaTokenizer", normalization="NFKC")
    # Two or three characters become one: half-width kana, and Hangul letters.
    texts = ["ｶﾞﾊﾟ", "Hello World", "ㄱㅏㄱ재", "ㅠㅠ", "Hello World"]
    assert batches.differences(tokenizer, texts) == []
    _, starts, ends = tokenizer.tokenize_with_offsets(texts)
    assert (starts[1][0], ends[1][-1]) == (starts[4][0], ends[4][-1]) == (0, 11)
    assert set(zip(starts[0], ends[0])) == {(0, 2), (2, 4)}
    # Characters that stay separate have their own offsets.
    assert {(0, 1), (1, 2)} == set(zip(starts[3], ends[3]))


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("BertTokenizer", "NFKC"),
        pytest.param("RobertaTokenizer", "NFC", marks=pytest.mark.slow),
        pytest.param("XLMRobertaTokenizer", "NFKC", marks=pytest.mark.slow),
        pytest.param("AlbertTokenizer", "NFC", marks=pytest.mark.slow),
        pytest.param("ByteFallbackTokenizer", "NFKC", marks=pytest.mark.slow),
        pytest.param("GPTTokenizer", "NFC", marks=pytest.mark.slow),
    ],
)
def test_normal_forms(make, name, form, tmp_path):
    import tokenizers as rust

    plain = make(name)
    tokenizer = plain.with_normal_form(form)
    assert plain.normalize is None and tokenizer.with_normal_form(form) is tokenizer
    texts = [*batches.texts(40, seed=3), "\u1112\u1161\u11abｶﾞ Ｌatin"]
    texts = [text for text in texts if "\uffff" not in text]
    assert tokenizer(texts) == plain([unicodedata.normalize(form, text) for text in texts])
    assert batches.differences(tokenizer, texts) == []
    # The tokens are the same in a graph, after a round trip through the config, and after one
    # through files of transformers.
    in_graph = tf.function(tokenizer.tokenize)(tf.constant(texts))
    assert in_graph.to_list() == tokenizer(texts)
    config = {**tokenizer.get_config(), "normalize": None}
    assert config == {**plain.get_config(), "normalize": None}
    family = {"BertTokenizer": "bert", "XLMRobertaTokenizer": "xlm_roberta", "GPTTokenizer": "gpt"}
    family = family.get(name) or {"R": "roberta", "A": "albert", "B": "modernbert"}[name[0]]
    write_files(tmp_path, transformers_files(tokenizer, family, 64, has_segments=True))
    again = tokenizers.tokenizer_from_files(str(tmp_path), family)
    assert again.normalize == form and again(texts) == tokenizer(texts)
    theirs = rust.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "\u1112\u1161\u11abｶﾞ Ｌatin cafe\u0301"
    assert theirs.encode(text, add_special_tokens=False).ids == tokenizer(text)


@pytest.mark.slow
@pytest.mark.backends("tensorflow")  # The same graph on every backend.
def test_tf_data_and_function(tokenizer, hard, sentences):
    texts = hard + sentences
    want = tokenizer(texts)
    batches = tf.data.Dataset.from_tensor_slices(texts).batch(5).map(tokenizer)
    assert [row for batch in batches for row in batch.to_list()] == want
    single = tf.data.Dataset.from_tensor_slices(texts).map(tokenizer)
    assert [row.numpy().tolist() for row in single] == want
    offsets = tf.data.Dataset.from_tensor_slices(texts).batch(50)
    offsets = offsets.map(tokenizer.tokenize_with_offsets).get_single_element()
    assert tuple(x.to_list() for x in offsets) == tokenizer.tokenize_with_offsets(texts)
    function = tf.function(tokenizer)
    assert function(tf.constant(texts)).to_list() == want
    text = tf.function(tokenizer.detokenize)(function(tf.constant(texts)))
    assert [x.decode() for x in text.numpy()] == tokenizer.detokenize(want)


@pytest.mark.slow
@pytest.mark.backends("tensorflow")  # The same graph on every backend.
def test_works_when_first_called_in_a_graph(make):
    for name in ("BertTokenizer", "RobertaTokenizer", "XLMRobertaTokenizer"):
        new = make(name, name="new")
        data = tf.data.Dataset.from_tensors(["the fox"]).map(new)
        assert data.get_single_element().to_list() == make(name)(["the fox"])


def test_vocabulary(tokenizer):
    vocabulary = tokenizer.get_vocabulary()
    assert len(vocabulary) == tokenizer.vocabulary_size()
    assert tokenizer.token_to_id(vocabulary[7]) == 7
    assert tokenizer.id_to_token(7) == vocabulary[7]
    for role in ("start", "end", "cls", "sep", "pad", "mask", "unk"):
        token = getattr(tokenizer, f"{role}_token")
        assert getattr(tokenizer, f"{role}_token_id") == vocabulary.index(token)


@pytest.mark.slow
def test_saving(tokenizer, tmp_path, hard):
    """Copy a tokenizer by configuration and assets, copy this copy by a preset, and copy that one
    by a pickle.

    Only the graph of the last copy is traced, because everything that any step loses is missing
    there.
    """
    config = tokenizer.get_config()
    json.dumps(config)
    assert not {"vocabulary", "merges", "proto"} & {k for k, v in config.items() if v is not None}
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(tokenizer))
    assert copy.get_config() == config
    copy = type(tokenizer).from_config(config)
    assert copy.get_config() == config
    with pytest.raises(ValueError, match="no vocabulary yet"):
        copy("the")
    tokenizer.save_assets(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(tokenizer.file_assets)
    copy.load_assets(tmp_path)
    assert copy.get_vocabulary() == tokenizer.get_vocabulary()

    preset = tmp_path / "preset"
    copy.save_to_preset(str(preset))
    saved = json.loads((preset / "tokenizer.json").read_text())
    assert saved["registered_name"] == f"kerasbert>{type(tokenizer).__name__}"
    copy = type(tokenizer).from_config(saved["config"])
    copy.load_assets(preset / "assets" / "tokenizer")
    copy = pickle.loads(pickle.dumps(copy))
    texts = [*hard, "the quick fox"]
    assert copy(texts) == tokenizer(texts)


def test_config_keeps_every_argument(make):
    special = {"special_tokens_in_strings": True, "name": "mine"}
    settings = {
        "BertTokenizer": {
            "lowercase": True,
            "strip_accents": False,
            "split_on_cjk": False,
            "split_on_punctuation": False,
            "split_characters": True,
            "extra_special_tokens": ["x"],
            "suffix_indicator": "@@",
        },
        "RobertaTokenizer": {"add_prefix_space": True, "normalization": "NFKC"},
        "ModernBertTokenizer": {"added_tokens": [{"content": "  ", "lstrip": True}]},
        "XLMRobertaTokenizer": {"mask_token": "<mask>"},
        "AlbertTokenizer": {"lowercase": False, "keep_accents": True},
    }
    for name, arguments in settings.items():
        config = make(name, **arguments, **special).get_config()
        assert {key: config[key] for key in (*arguments, *special)} == arguments | special


def test_a_config_opens_no_files(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    with pytest.raises(ValueError, match="must not open files"):
        tokenizers.BertTokenizer.from_config({"vocabulary": str(path)})


def served(tokenizer):
    """Return a function of the graph that returns dense parts of `tokenize_with_offsets`."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def serve(text):
        columns = tokenizer.tokenize_with_offsets(text)
        return [part for x in columns for part in (x.flat_values, x.row_splits)]

    return serve


@pytest.mark.slow
def test_saved_model_in_a_fresh_process(make, tmp_path, hard, sentences):
    texts = hard + sentences
    texts = [text for text in texts if "\ud800" not in text]
    module = tf.Module()
    want = {}
    for name in (
        *("BertTokenizer", "RobertaTokenizer", "ModernBertTokenizer"),
        *("XLMRobertaTokenizer", "AlbertTokenizer"),
    ):
        for asked in (False, True):
            tokenizer = make(name, special_tokens_in_strings=asked)
            key = f"{name}_{asked}"
            setattr(module, key, served(tokenizer))
            want[key] = tokenizer.tokenize_with_offsets(texts)
    tf.saved_model.save(module, str(tmp_path / "model"))
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    script = """
        import json, sys
        import tensorflow as tf
        import tensorflow_text
        module = tf.saved_model.load(sys.argv[1] + "/model")
        texts = tf.constant(json.load(open(sys.argv[1] + "/texts.json")))
        result = {}
        for name in json.loads(sys.argv[2]):
            values = getattr(module, name)(texts)
            pairs = zip(values[::2], values[1::2])
            result[name] = [tf.RaggedTensor.from_row_splits(*x).to_list() for x in pairs]
        print(json.dumps(result))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path), json.dumps(list(want))],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    got = json.loads(done.stdout.splitlines()[-1])
    assert got == {name: list(columns) for name, columns in want.items()}


# Ops of TensorFlow Text in a stock TensorFlow Serving 2.12, which pins TF.Text 2.12.1.
SERVED = {
    "FastWordpieceTokenizeWithOffsets",
    "NormalizeUTF8",
    "CaseFoldUTF8",
    "RegexSplitWithOffsets",
    "SentencepieceOp",
    "SentencepieceTokenizeWithOffsetsOp",
}


@pytest.mark.slow
def test_ops_are_those_of_a_stock_server(make):
    core = {"LookupTableFindV2", "HashTableV2", "PyFunc", "EagerPyFunc", "MutableHashTableV2"}
    for name in ("BertTokenizer", "ModernBertTokenizer", "AlbertTokenizer"):
        for settings in ({}, {"special_tokens_in_strings": True}):
            tokenizer = make(name, **settings)
            function = tf.function(tokenizer.tokenize_with_offsets)
            graph = function.get_concrete_function(tf.TensorSpec([None], tf.string)).graph
            nodes = [*graph.as_graph_def().node]
            nodes += [n for f in graph.as_graph_def().library.function for n in f.node_def]
            names = {node.op for node in nodes}
            assert not names & core
            text = {n for n in names if n in SERVED or "ext>" in n or "iece" in n or "UTF8" in n}
            assert text <= SERVED


def test_is_a_keras_hub_tokenizer(tokenizer):
    assert isinstance(tokenizer, keras_hub.tokenizers.Tokenizer)


def words_of(tokenizer, text):
    """Return spans of the words that a text's pieces form by `word_edges`, and the pieces'
    starts.
    """
    ids, starts, ends = tokenizer.tokenize_with_offsets(text)
    begins = np.flatnonzero(word_starts(np.array(ids), tokenizer.word_edges()))
    last = [*begins[1:] - 1, len(ids) - 1]
    words = [(starts[a], ends[b]) for a, b in zip(begins, last)]
    return words, starts, tokenizer.unk_token_id in ids


def test_words_are_those_of_bert(tokenizer, sentences):
    """A word begins where BERT's do, if a piece begins there at all, and nowhere else."""
    others = ['("Hello,") he said: well-known 3.14 café-bars\' $5', "one\ntwo  three -- four"]
    compared = 0
    for text in [*(sentences[i] for i in (0, 1, 2, 3, 6)), *others]:
        words, starts, has_unknown = words_of(tokenizer, text)
        if has_unknown:  # Here a token may contain more than one word.
            continue
        expected = {start for start, _ in word_spans(text)}
        # Without the space that byte-pair tokenizers prepend.
        found = {start + (text[start] in " \n") for start, _ in words}
        assert expected & {start + (text[start] in " \n") for start in starts} <= found
        assert {start for start in found if text[start : start + 1].strip()} <= expected
        compared += 1
    assert compared >= 5


def test_pieces_of_scripts_without_spaces_are_words(tokenizer, sentences):
    words, starts, _ = words_of(tokenizer, sentences[5])
    # A mark that is separated from its word counts as one more.
    assert len(words) - len(set(starts)) in (0, 1) and len(words) > 1


def test_word_edges_of_marks(make):
    tokenizer = make("BertTokenizer")
    edges = tokenizer.word_edges()
    inside = np.array([token.startswith("##") for token in tokenizer.vocabulary])
    np.testing.assert_array_equal(edges, np.stack([~inside, np.zeros_like(inside)], axis=1))
    for name, mark in (("RobertaTokenizer", "Ġ"), ("XLMRobertaTokenizer", "▁")):
        tokenizer = make(name)
        edges = dict(zip(tokenizer.vocabulary, tokenizer.word_edges().tolist(), strict=True))
        assert all(begins for token, (begins, _) in edges.items() if token.startswith(mark))
        assert edges[f"{mark}the"] == [True, False] and edges[mark] == [True, False]
        assert edges["s"] == [False, False] and edges[","] == [True, True]
