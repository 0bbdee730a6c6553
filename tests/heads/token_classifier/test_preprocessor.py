"""Labels of words and spans on pieces, and back, with every tokenizer."""

import functools
import json
import unicodedata

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasbert.preprocessors import BertTokenClassifierPreprocessor
from kerasbert.text.tagging import TagSet
from kerasbert.tokenizers import BertTokenizer
from tests.contracts import arrays, bert_tokenizer, check_preprocessor

# Alignment uses TensorFlow and NumPy on every backend.
TOKENIZERS = (
    "BertTokenizer",
    "RobertaTokenizer",
    "ModernBertTokenizer",
    "XLMRobertaTokenizer",
    "AlbertTokenizer",
)
TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] ann ##a bob rome in lives and . , new york 서울 ##에서"
LETTERS = "abcdefgh ÀéñößÅøžı अनभव абв αβγ กขค עברית عربي".split()
VISIBLE = [
    *"the fox quick Größe café naïve Ångström señor won't U.S. 1,234 x".split(),
    *(unicodedata.normalize("NFD", word) for word in ("éte", "Ångström", "naïve", "한국", "がぎ")),
    *"日本語テスト 北京是首都 한국어를 タワー 豈 \U00020000".split(),
    *"👩‍👩‍👧 🇰🇷 🇰🇷🇯🇵 ❤️ 👍🏽 1️⃣ 👩‍🚀!".split(),
    *"“quoted” (x) ... a-b € №5 ½ ﬁ ㍿".split(),
]
HIDDEN = ["\u200b", "\u00ad", "\x01", "\u200e", "\x7f", "\ufeff"]
SPACES = [" ", " ", "  ", "   ", "\t", "\n", "\u00a0", "\u3000", " \u200b ", "\r\n"]


@functools.cache
def preprocess(tokenizer=None, **settings):
    """Return each preprocessor once: tracing costs more than the tests do."""
    settings = {"labels": ["PER", "LOC"], "scheme": "BIO", **settings}
    return BertTokenClassifierPreprocessor(tokenizer or bert_tokenizer(TOKENS.split()), **settings)


def random_word(random):
    if random.random() < 0.6:
        word = random.choice(VISIBLE)
    else:
        word = "".join(random.choice(list(random.choice(LETTERS)), random.integers(1, 8)))
    if random.random() < 0.1:
        at = random.integers(0, len(word) + 1)
        word = word[:at] + random.choice(HIDDEN) + word[at:]
    return str(word)


def random_text(random):
    """Return a text, and spans that begin and end where its words do."""
    text, spans = str(random.choice(["", " ", "\n"])), []
    start = None
    for _ in range(random.integers(1, 12)):
        if start is None and random.random() < 0.3:
            start = len(text)
        text += random_word(random)
        if start is not None and random.random() < 0.6:
            spans.append((start, len(text), str(random.choice(["PER", "LOC"]))))
            start = None
        text += str(random.choice(SPACES))
    return text, spans


def certain(preprocessor, pieces, y):
    """Return probabilities of the units if the pieces' labels were predicted."""
    numbers, given = preprocessor._targets_of_pieces(pieces, y, None)
    logits = np.eye(len(preprocessor.names))[numbers]
    # Logits of pieces without a label are uniform, because nothing may depend on them.
    logits[given == 0] = 1 / logits.shape[1]
    return preprocessor.of_units(pieces, logits)


def entities(preprocessor, pieces, y):
    """Return the spans of each text for certain predictions."""
    best = certain(preprocessor, pieces, y).argmax(-1)
    found = []
    for begin, end in zip(pieces.unit_splits[:-1], pieces.unit_splits[1:]):
        there = begin + np.flatnonzero(pieces.count[begin:end])
        found.append(
            [
                (int(pieces.starts[there[a]]), int(pieces.ends[there[b - 1]]), label)
                for label, a, b in TagSet(preprocessor.names).entities(best[there])
            ]
        )
    return found


@pytest.fixture(scope="module")
def random_texts():
    """Return texts and their spans, two lists."""
    random = np.random.default_rng(0)
    texts, spans = zip(*(random_text(random) for _ in range(600)), strict=True)
    assert sum(map(len, spans)) > 600
    return list(texts), list(spans)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
def test_spans_of_random_texts_come_back(make, name, random_texts):
    texts, spans = random_texts
    tokenizer = make(name)
    pieces = preprocess(tokenizer).read(texts)  # The pieces are the same for any scheme.
    for scheme in ("BIO", "BIOES"):
        found = entities(preprocess(tokenizer, scheme=scheme), pieces, spans)
        wrong = [row for row in zip(texts, spans, found, strict=True) if row[1] != row[2]]
        assert wrong == [], scheme


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
def test_labels_of_random_words_come_back(make, name):
    random = np.random.default_rng(1)
    first, every = (
        preprocess(make(name), scheme="BIOES", label_pieces=some) for some in ("first", "all")
    )
    words = [[random_word(random) for _ in range(random.integers(1, 10))] for _ in range(300)]
    for row in words[::3]:  # No piece of these is left, but they still count.
        row.insert(random.integers(0, len(row) + 1), str(random.choice(["", "\x01", " ", "\n"])))
    y = [[str(random.choice(first.names)) for _ in row] for row in words]
    pieces = first.read(words)  # Both preprocessors read the same pieces.
    assert len(pieces.count) == sum(map(len, words))
    there = pieces.count > 0
    labels = np.array([label for row in y for label in row])
    for preprocessor in (first, every):
        best = certain(preprocessor, pieces, y).argmax(-1)
        right = np.array(preprocessor.names)[best[there]] == labels[there]
        assert right.all(), preprocessor.label_pieces
    gone = [w for row in words for w in row if not w.strip() or w == "\x01"]
    # Byte-pair tokenizers delete nothing.
    if name not in ("RobertaTokenizer", "ModernBertTokenizer"):
        assert (~there).sum() == len(gone) > 50


# ModernBERT's is RoBERTa's except for the space, without which transformers truncates words by
# default.
@pytest.mark.peers
@pytest.mark.parametrize("name", [name for name in TOKENIZERS if name != "ModernBertTokenizer"])
def test_words_are_cut_as_in_transformers(
    make, name, byte_pairs, word_pieces, xlmr_model, albert_model, tmp_path
):
    import transformers

    settings = {}
    if name == "BertTokenizer":
        (tmp_path / "vocab.txt").write_text("\n".join(word_pieces), encoding="utf-8")
        theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    elif name == "RobertaTokenizer":
        vocabulary, merges = byte_pairs
        (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
        lines = ["#version: 0.2"] + [" ".join(pair) for pair in merges]
        (tmp_path / "merges.txt").write_text("\n".join(lines) + "\n")
        settings = {"add_prefix_space": True}
        theirs = transformers.RobertaTokenizer.from_pretrained(tmp_path, **settings)
    else:
        (tmp_path / "sentencepiece.bpe.model").write_bytes(xlmr_model)
        (tmp_path / "spiece.model").write_bytes(albert_model)
        theirs = getattr(transformers, name).from_pretrained(tmp_path)
    random = np.random.default_rng(2)
    # Text that transformers normalizes differently from SentencePiece is tested with the
    # tokenizers.
    usual = [w for w in VISIBLE if w.isascii() or w in ("Größe", "café", "€", "北京是首都")]
    usual += ["it's", "'s", "''", "rock'n'roll", "hello", "x\x01y", "\x01", "a\u00a0b"]
    words = [[str(w) for w in random.choice(usual, random.integers(1, 9))] for _ in range(300)]
    expected = theirs(words, is_split_into_words=True, add_special_tokens=False)
    pieces = preprocess(make(name, **settings)).read(words)
    for row, (ids, first, count) in enumerate(
        zip(
            np.split(pieces.ids, pieces.splits[1:-1]),
            np.split(pieces.first, pieces.unit_splits[1:-1]),
            np.split(pieces.count, pieces.unit_splits[1:-1]),
            strict=True,
        )
    ):
        assert ids.tolist() == expected["input_ids"][row], words[row]
        of_words = expected.word_ids(row)
        assert count.tolist() == [of_words.count(i) for i in range(len(words[row]))], words[row]
        for i, begin in enumerate(first - pieces.splits[row]):
            assert not count[i] or begin == of_words.index(i), words[row]


def labels_of(preprocessor, x, y):
    _, labels, given = arrays(preprocessor(x, y))
    return labels.tolist(), given.tolist()


def test_first_pieces_and_all():
    x, y = [["Anna", "\u200b", "lives"], ["Bob"]], [["B-PER", "O", None], ["B-PER"]]
    labels, given = labels_of(preprocess(), x, y)
    assert labels == [[0, 1, 0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0]]
    assert given == [[0, 1, 0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0]]
    labels, given = labels_of(preprocess(label_pieces="all"), x, y)
    assert labels[0] == [0, 1, 2, 0, 0, 0, 0, 0] and given[0] == [0, 1, 1, 0, 0, 0, 0, 0]
    assert labels_of(preprocess(), x, [[1, 0, -100], [1]]) == labels_of(preprocess(), x, y)
    numbered = preprocess(labels=None, scheme=None, num_classes=3)
    assert labels_of(numbered, x, [[2, 0, -100], [1]])[0][0][:3] == [0, 2, 0]


def test_spans_inside_of_words():
    text = "서울에서 bob"
    tokenizer = BertTokenizer(TOKENS.split())  # This tokenizer does not decompose Hangul.
    first, every = preprocess(tokenizer), preprocess(tokenizer, label_pieces="all")
    span = [(0, 2, "LOC")]
    # If words are labeled, a span includes each word that it touches.
    assert entities(first, first.read([text]), [span]) == [[(0, 4, "LOC")]]
    assert entities(every, every.read([text]), [span]) == [[(0, 2, "LOC")]]
    # If two spans touch a word, it belongs to the first.
    two = [(0, 2, "LOC"), (3, 8, "PER")]
    assert entities(first, first.read([text]), [two]) == [[(0, 4, "LOC"), (5, 8, "PER")]]
    with pytest.warns(UserWarning, match=r"1 spans have no word .* \(3, 4, 'PER'\) at position 0"):
        first([text], [[(0, 2, "LOC"), (3, 4, "PER")]])


def test_a_piece_of_two_words_makes_them_one():
    tokenizer = BertTokenizer(
        "[PAD] [UNK] [CLS] [SEP] [MASK] ab ##c 北京".split(), split_on_cjk=False
    )
    preprocessor = preprocess(tokenizer)
    pieces = preprocessor.read(["abc 北京 a\x1cb"])
    assert pieces.starts.tolist() == [0, 4, 7] and pieces.ends.tolist() == [3, 6, 10]
    assert entities(preprocessor, pieces, [[(4, 6, "LOC")]]) == [[(4, 6, "LOC")]]


@pytest.mark.parametrize("label_pieces", ["first", "all"])
def test_chunks_of_texts_are_as_one(label_pieces, monkeypatch):
    random = np.random.default_rng(0)
    texts = [random_text(random)[0] for _ in range(9)] + ["", "a \u200b b"]
    words = [text.split() for text in texts]
    preprocessor = preprocess(label_pieces=label_pieces)
    whole = [preprocessor.read(x) for x in (texts, words)]
    monkeypatch.setattr("kerasbert.text.examples_in_memory.CHUNK", 2)
    for one, x in zip(whole, (texts, words)):
        parts = preprocessor.read(x)
        for name in ("ids", "splits", "starts", "ends", "unit_splits", "count", "unit"):
            np.testing.assert_array_equal(getattr(parts, name), getattr(one, name), name)
        there = one.count > 0
        np.testing.assert_array_equal(parts.first[there], one.first[there])


def test_spans_as_dicts_and_parts_of_speech():
    spans = [(0, 4, "PER"), (14, 18, "LOC")]
    text = "Anna lives in Rome"
    dicts = [{"start": s, "end": e, "label": label, "score": 1.0} for s, e, label in spans]
    found = labels_of(preprocess(), [text], [spans[::-1]])
    assert found == labels_of(preprocess(), [text], [dicts])
    assert labels_of(
        preprocess(labels=("O", "B-PER", "I-PER", "B-LOC"), scheme=None), [text], [spans]
    )
    speech = preprocess(labels=("NOUN", "VERB", "ADP"), scheme=None)
    tagged = [(0, 4, "NOUN"), (5, 10, "VERB"), (11, 13, "ADP"), (14, 18, "NOUN")]
    pieces = speech.read([text])
    assert entities(speech, pieces, [tagged]) == [tagged]
    with pytest.raises(
        ValueError, match="'in' of the text at position 0 is in no span, and .* 'O'"
    ):
        speech([text], [tagged[:2] + tagged[3:]])


@pytest.mark.slow
def test_contract(tmp_path):
    words = [
        ["Anna", "lives", "in", "Rome", "."],
        ["Bob"],
        ["\u200b", "New", "\x1d", "York"],
        ["x"],
    ]
    names = [["B-PER", "O", "O", "B-LOC", "O"], ["B-PER"], ["O", "B-LOC", "O", "I-LOC"], ["O"]]
    numbers = [[1, 0, 0, 3, 0], [1], [0, 3, 0, 4], [-100]]
    x = tf.ragged.constant(words)
    preprocessor = preprocess(sequence_length=8, label_pieces="all")
    check_preprocessor(preprocessor, x, tf.ragged.constant(names), tmp_path)
    # Labels may be numbers; here only first pieces are labeled, with sample weights.
    preprocessor = preprocess(sequence_length=8)
    weights = [1.0, 2.0, 3.0, 4.0]
    lists = preprocessor(words, numbers, sample_weight=weights)
    dataset = tf.data.Dataset.from_tensors((x, tf.ragged.constant(numbers), tf.constant(weights)))
    for mapped in dataset.map(preprocessor).as_numpy_iterator():
        keras.tree.map_structure(np.testing.assert_array_equal, mapped, arrays(lists))


def test_texts_in_tf_data():
    preprocessor = preprocess()
    texts = ["Anna lives in Rome", "Bob"]
    expected = arrays(preprocessor(texts))
    for x in (tf.constant(texts), {"text": tf.constant(texts)}):
        dataset = tf.data.Dataset.from_tensors(x).map(preprocessor)
        for mapped in dataset.as_numpy_iterator():
            keras.tree.map_structure(np.testing.assert_array_equal, mapped, expected)
    assert arrays(preprocessor("Bob"))["token_ids"].tolist() == [2, 7, 3, 0, 0, 0, 0, 0]


def test_windows_count_each_piece_once():
    preprocessor = preprocess(sequence_length=7, stride=2)
    texts = ["Anna lives in New York, Bob in Rome.", "Bob", "Anna and Bob in Rome"]
    y = [[(0, 4, "PER"), (14, 22, "LOC"), (24, 27, "PER"), (31, 35, "LOC")], [(0, 3, "PER")], []]
    pieces = preprocessor.read(texts)
    expected, counts = preprocessor._targets_of_pieces(pieces, y, None)
    rows, labels, given = [], [], []
    for features, target, weight in preprocessor.batches(texts, y, batch_size=2, shuffle=False):
        features = arrays(features)
        assert features["token_ids"].shape[1] <= 7
        rows += [
            list(ids[mask]) for ids, mask in zip(features["token_ids"], features["padding_mask"])
        ]
        labels += list(np.asarray(target))
        given += list(np.asarray(weight))
    of_text, starts, ends = preprocessor.windows(pieces)
    assert len(rows) == len(of_text) > 3
    total, found = np.zeros(len(pieces.ids)), np.zeros(len(pieces.ids), int)
    for row, label, weight, text, start, end in zip(rows, labels, given, of_text, starts, ends):
        place = pieces.splits[text] + np.arange(start, end)
        assert row == [2, *pieces.ids[place], 3]
        size = end - start
        total[place] += weight[1 : 1 + size]
        found[place] += (label * weight.astype(int))[1 : 1 + size]
        assert weight[0] == 0 and not weight[1 + size :].any()
    np.testing.assert_array_equal(total, counts)
    np.testing.assert_array_equal(found, expected * counts)


X, W = ["Anna lives in Rome"], [["Anna", "lives"]]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (W, [["O"]], "At position 0 there are 2 words but 1 labels; pass one label for each word"),
        (W, [["O", "B-PRE"]], "The label 'B-PRE' at position 0, word 1 is unknown.*mean 'B-PER'"),
        (W, [[0, 5]], "The label 5 at position 0, word 1 is outside 0 to 4"),
        (W, [[0, -1]], "The label -1 at position 0, word 1 is outside 0 to 4"),
        (W, [[0, 1.5]], "The label at position 0, word 1 is 1.5; pass a name, a class index"),
        (W, ["O"], "The labels at position 0 are 'O'; pass a list with one label per word"),
        (W, [["O", "O"], ["O"]], "There are 1 texts but 2 labels"),
        ([["a"], []], [["O"], []], "The list of words at position 1 is empty.*; drop it"),
        (["Bob", ""], [[], []], "The text at position 1 is empty, so it has nothing to label"),
        (X, [[(3, 19, "PER")]], "'PER'.* at position 0 is not within its text of 18 characters"),
        (X, [[(-1, 3, "PER")]], "at position 0 is not within its text"),
        (X, [[(3, 3, "PER")]], "at position 0 is not within its text"),
        (X, [[(0, 2.5, "PER")]], "at position 0 is not within its text"),
        (X, [[(0, 5, "PER"), (3, 8, "LOC")]], r"\(0, 5, 'PER'\) and \(3, 8, 'LOC'\).* overlap"),
        (X, [[(0, 4, "ORG")]], "has the label 'ORG'; known are 'PER', 'LOC'"),
        (X, [["O"]], "position 0 have 'O', which is not a span .*; for labels per word"),
        (X, ["PER"], r"The labels at position 0 are 'PER'; pass a list of spans"),
        ([["a"], "b"], None, "item at position 1 is 'b' .* among lists of words"),
        ([["a", 3]], None, "text at position 1 of the words at position 0 is 3 .*, not text"),
        ([], None, "The list of texts is empty; pass at least one text"),
        ((["a"], ["b"]), None, "pairs of texts; pass one list"),
    ],
)
def test_bad_input(x, y, message):
    preprocessor = preprocess()
    with pytest.raises(ValueError, match=message):
        preprocessor(x, y)
    with pytest.raises(ValueError, match=message):
        preprocessor.batches(x, y)


def test_more_bad_input():
    with pytest.raises(ValueError, match="label_pieces='last' is unknown; use one of first, all"):
        preprocess(label_pieces="last")
    with pytest.raises(ValueError, match="stride=7 does not fit windows of 6 tokens"):
        preprocess(sequence_length=8, stride=7)
    with pytest.raises(ValueError, match=r"has no class names .* pass labels=\[...\], and scheme="):
        preprocess(labels=None, scheme=None)(X, [[(0, 4, "PER")]])
    with pytest.raises(ValueError, match="one text where a list is needed"):
        preprocess().batches("Bob")
    with pytest.raises(ValueError, match=r"sample weights have shape \(1, 2\); pass one for"):
        preprocess()(W, [["O", "O"]], [[1.0, 1.0]])
    dataset = tf.data.Dataset.from_tensors((tf.constant(X), tf.constant([0])))
    with pytest.raises(ValueError, match="yields labels for texts, whose spans `tf.data` cannot"):
        dataset.map(preprocess())
    uneven = tf.ragged.constant(W), tf.ragged.constant([[0]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="one label for each word"):
        next(iter(tf.data.Dataset.from_tensors(uneven).map(preprocess())))
