"""Special and added tokens in raw texts: matched or not, and the same in every form."""

import json
import random
import shutil
import warnings

import keras_hub
import pytest
import tensorflow as tf

import kerasbert
from kerasbert.tokenizers import BertTokenizer, RobertaTokenizer, tokenizer_from_files
from tests.contracts import tiny_backbone
from tests.text.conftest import CLASSES
from tests.text.test_transformers_files import FAMILIES, write

pytestmark = pytest.mark.backends("tensorflow")  # No backend changes the results.

GELU = {"activation": "gelu", "pooler": False}
ROWS = [
    ("BertTokenizer", "bert", {}),
    ("RobertaTokenizer", "roberta", GELU),
    ("XLMRobertaTokenizer", "xlm_roberta", GELU),
    ("AlbertTokenizer", "albert", {"activation": "gelu_approximate"}),
]


def texts(tokenizer):
    cls, sep, mask = tokenizer.cls_token, tokenizer.sep_token, tokenizer.mask_token
    return [f"the{mask}fox", f"{cls}the{sep}fox{mask}.", f"{mask}{sep}"]


@pytest.mark.peers
@pytest.mark.parametrize("name, family, settings", ROWS)
def test_keras_hub(name, family, settings, make, tmp_path):
    def convert(finds, folder):
        # KerasHub's ALBERT does not normalize texts.
        plain = {"lowercase": False, "keep_accents": True} if family == "albert" else {}
        ours = make(name, special_tokens_in_strings=finds, **plain)
        model = tiny_backbone(family, vocabulary_size=ours.vocabulary_size(), **settings)
        out = str(tmp_path / folder)
        kerasbert.convert(model, out, format="keras_hub", tokenizer=ours)
        theirs = getattr(keras_hub.tokenizers, name).from_preset(out)
        found = [[int(id) for id in ids] for ids in theirs(texts(ours))]
        assert found == ours(texts(ours))
        # In a `tf.data` pipeline, KerasHub's tokenizers run other code.
        dataset = tf.data.Dataset.from_tensor_slices(texts(ours)).map(theirs)
        assert [ids.numpy().tolist() for ids in dataset] == found
        again = type(ours).from_preset(out, **plain)
        assert again.special_tokens_in_strings == finds
        assert again(texts(ours)) == found

    convert(False, "plain")
    if name in ("BertTokenizer", "RobertaTokenizer"):
        convert(True, "finds")
    else:
        with pytest.raises(ValueError, match="does not find special tokens in texts"):
            convert(True, "finds")


# Content and flags.
ADDED = [
    ("[E1]", {"special": True}),
    ("[E2]", {"special": True, "lstrip": True, "rstrip": True}),
    ("covid", {"single_word": True, "normalized": True}),
    ("caf\u00e9", {"normalized": True}),
    ("<new>", {"lstrip": True, "normalized": False}),
    ("NaCl", {"single_word": True, "normalized": False}),
    ("\u00dcber Gut", {"normalized": True, "rstrip": True}),
    ("\u8a9e\u30c8", {"normalized": True}),
    ("_x", {"single_word": True, "lstrip": True}),
    ("<sub>", {"special": True, "single_word": True}),
]
PARTS = [content for content, _ in ADDED]
PARTS += [
    "COVID",
    "CAFE",
    "cafe\u0301",
    "nacl",
    "\u00fcber gut",
    "\u8a9e",
    "\u30c6\u30b9",
    "\ube60\ub978",
]
PARTS += [" ", " ", "\t", "\u3000", "a", "the", "fox", ".", "-", "_", "1", "\u0301"]


def random_texts(count=300):
    rng = random.Random(0)
    return ["".join(rng.choices(PARTS, k=rng.randint(1, 8))) for _ in range(count)]


def saved_by_transformers(base, family, folder):
    """Make a folder of `save_pretrained` with `ADDED` and the tokens of one of our tokenizers."""
    import transformers

    folder.mkdir()
    write(folder, base, family)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["split_special_tokens"]
    path.write_text(json.dumps(config))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    theirs.add_tokens([transformers.AddedToken(content, **flags) for content, flags in ADDED])
    theirs.save_pretrained(folder / "saved")
    shutil.copy(folder / "config.json", folder / "saved")
    return folder / "saved"


@pytest.mark.peers
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "BertTokenizer" else pytest.mark.slow)
        for name in CLASSES
    ],
)
def test_added_tokens_of_a_checkpoint(name, make, tmp_path):
    import tokenizers
    import transformers

    family, texts = FAMILIES[name], random_texts()
    if name == "ModernBertTokenizer":
        # The library returns white space twice if one token includes it and another token is it.
        texts = [text for text in texts if "  " not in text]

    def of(folder):
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        return theirs(texts, add_special_tokens=False)["input_ids"]

    folder = saved_by_transformers(make(name), family, tmp_path / "given")
    ours = tokenizer_from_files(folder, family)
    wanted = ours(texts)
    assert of(folder) == wanted
    every = {id for ids in wanted for id in ids}
    assert every >= {ours.token_to_id(content) for content in PARTS[: len(ADDED)]}
    ids, starts, ends = ours.tokenize_with_offsets("the [E1] a")
    place = ids.index(ours.token_to_id("[E1]"))
    assert (starts[place], ends[place]) == (4, 8)
    # The written files give the same tokens.
    again = tmp_path / "again"
    again.mkdir()
    write(again, ours, family)
    assert of(again) == wanted
    rust = tokenizers.Tokenizer.from_file(str(again / "tokenizer.json"))
    assert [x.ids for x in rust.encode_batch(texts, add_special_tokens=False)] == wanted
    assert tokenizer_from_files(again, family)(texts) == wanted
    ours.save_to_preset(str(tmp_path / "preset"))
    assert type(ours).from_preset(str(tmp_path / "preset"))(texts) == wanted


TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] [ ] the fox e ##1 unused ##2 sep".split()
MARKERS = ["[unused2]", "<S>", "<|end|>", "[E1]"]


def with_added(**settings):
    tokens = TOKENS + MARKERS
    return BertTokenizer(tokens, lowercase=True, added_tokens=[{"content": "[E1]"}], **settings)


def test_control_tokens_are_text_and_reported_once():
    tokenizer = with_added()
    text = "the [SEP][E1] fox"
    with pytest.warns(UserWarning, match=r"'the \[SEP\]\[E1\] fox' contains '\[SEP\]'.*_in_str"):
        found = tokenizer(["the fox", text, "[CLS]"])[1]
    assert [tokenizer.id_to_token(id) for id in found] == ["the", "[", "sep", "]", "[E1]", "fox"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tokenizer(text) == found
        assert with_added(special_tokens_in_strings=True)(text) != found
        with_added()("the [E1] fox [ sep ]")
    with pytest.warns(UserWarning, match="contains '<s>'"):
        make = {c: i for i, c in enumerate("<s>/")}
        names = dict.fromkeys(("unk", "cls", "sep", "pad", "mask"), "<s>")
        make["<s>"] = 4
        names = {f"{role}_token": token for role, token in names.items()}
        RobertaTokenizer(make, [], **names)("a<s>")


@pytest.fixture(scope="module")
def three():
    """Return one that matches all tokens in texts, one that does not, and the latter made to match
    them.
    """
    plain = with_added()
    return with_added(special_tokens_in_strings=True), plain, plain.with_special_tokens()


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("[unused2]", ["[unused2]"]),
        ("the[unused2]fox <S>", ["the", "[unused2]", "fox", "<S>"]),
        ("<|end|>[E1] [SEP]", ["<|end|>", "[E1]", "[SEP]"]),
        ("[UNUSED2] [sep]", ["[", "unused", "##2", "]", "[", "sep", "]"]),
    ],
)
def test_markers_of_the_vocabulary(text, wanted, three):
    asked, plain, special = three
    assert [asked.id_to_token(id) for id in asked(text)] == wanted
    found = [plain.id_to_token(id) for id in plain(text.replace("[SEP]", ""))]
    assert not {"[unused2]", "<S>", "<|end|>"} & set(found)
    # `fill_mask` finds the mask token, but other markers stay text.
    assert "[unused2]" not in [plain.id_to_token(id) for id in special(text)]


def test_markers_that_are_added_tokens_and_pieces(make):
    tokens = TOKENS + MARKERS
    listed = BertTokenizer(tokens, lowercase=True, added_tokens=[{"content": "[unused2]"}])
    assert listed("the[unused2]")[1] == tokens.index("[unused2]")
    # Tokens that ordinary text can produce are not markers, and neither are bytes.
    tokenizer = make("ByteFallbackTokenizer", special_tokens_in_strings=True)
    assert tokenizer.markers() == ["<sep>", "<cls>"]


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("the  fox", ["the", "fox"]),
        ("[  the", ["[", "the"]),
        ("[  ]  ", ["[", "  ", "]", "  "]),
        # The three spaces are another token, although they contain the token of two spaces.
        ("the   fox", ["the", "   ", "fox"]),
    ],
)
def test_white_space_as_a_single_word(text, wanted):
    added = [{"content": "  ", "single_word": True}, {"content": "   "}]
    tokenizer = BertTokenizer([*TOKENS, "  ", "   "], lowercase=True, added_tokens=added)
    assert [tokenizer.id_to_token(id) for id in tokenizer(text)] == wanted


@pytest.mark.parametrize(
    "kind, wins", [("PreTrainedTokenizerFast", True), ("BertTokenizer", False)]
)
def test_the_generic_class_takes_the_tokenizer_json_as_it_is(kind, wins, tmp_path):
    write(tmp_path, BertTokenizer(TOKENS, lowercase=True), "bert")
    path = tmp_path / "tokenizer_config.json"
    said = {"do_lower_case": False, "strip_accents": False, "tokenize_chinese_chars": False}
    path.write_text(json.dumps({**json.loads(path.read_text()), **said, "tokenizer_class": kind}))
    found = BertTokenizer.from_files(tmp_path)
    assert (found.lowercase, found.split_on_cjk, found.strip_accents is False) == (
        wins,
        wins,
        not wins,
    )


@pytest.mark.slow
def test_arguments_of_from_preset(tmp_path):
    from kerasbert.models import BertTextClassifier, BertTextClassifierPreprocessor

    encoder = tiny_backbone("bert", vocabulary_size=len(TOKENS + MARKERS))
    preprocessor = BertTextClassifierPreprocessor(with_added(), sequence_length=16)
    folder = str(tmp_path / "preset")
    BertTextClassifier(encoder, num_classes=2, preprocessor=preprocessor).save_to_preset(folder)
    kerasbert.convert(folder, str(tmp_path / "theirs"))
    every = (BertTextClassifier, BertTextClassifierPreprocessor, BertTokenizer)
    seen = []  # Equal configs find the same tokens, so each config is traced once.
    for source, classes in ((folder, every), (str(tmp_path / "theirs"), every[:1])):
        for cls in classes:
            plain, asked = cls.from_preset(source), None
            asked = cls.from_preset(source, special_tokens_in_strings=True)
            for one, wanted in ((plain, False), (asked, True)):
                tokenizer = getattr(getattr(one, "preprocessor", one), "tokenizer", one)
                assert tokenizer.special_tokens_in_strings is wanted
                config = {**tokenizer.get_config(), "name": None}
                if config in seen:
                    continue
                seen.append(config)
                assert (tokenizer.token_to_id("[SEP]") in tokenizer("the [SEP]")) is wanted
                assert tokenizer.token_to_id("[E1]") in tokenizer("the [E1]")
    with pytest.raises(ValueError, match="special_tokens_in_strings was passed together"):
        BertTextClassifierPreprocessor.from_preset(
            folder, tokenizer=with_added(), special_tokens_in_strings=True
        )


def test_keras_hub_has_no_place_for_added_tokens(tmp_path):
    model = tiny_backbone("bert", vocabulary_size=len(TOKENS + MARKERS))
    with pytest.raises(ValueError, match=r"does not look for added tokens.*'\[E1\]'"):
        kerasbert.convert(model, str(tmp_path / "out"), format="keras_hub", tokenizer=with_added())


def test_names_without_an_id(tmp_path):
    """Special tokens whose id no file states; each file names its tokens in a different way."""
    (tmp_path / "vocab.txt").write_text("\n".join(TOKENS + ["[e3]"]))
    names = {"additional_special_tokens": ["[E1]", {"content": "[E2]", "lstrip": True}]}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(names))
    names = {"extra_special_tokens": {"image_token": "[e3]"}, "do_lower_case": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[E1]": len(TOKENS) + 1}))
    tokenizer = BertTokenizer.from_files(tmp_path)
    found = [tokenizer.id_to_token(id) for id in tokenizer("the[E1] [E2][e3] [e1]")]
    assert found == ["the", "[E1]", "[E2]", "[e3]", "[", "e", "##1", "]"]
    assert tokenizer.token_to_id("[E2]") == len(TOKENS) + 2
    # Where transformers does not match special tokens, we do not either; and roles stay text.
    names |= {"split_special_tokens": True, "bos_token": "[E1]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    assert "[E2]" not in BertTokenizer.from_files(tmp_path).detokenize(tokenizer("x"))
    tokenizer = BertTokenizer.from_files(tmp_path)
    assert {"[E1]", "[E2]", "[e3]"} <= set(tokenizer.control_tokens)
    assert tokenizer.token_to_id("[E2]") not in tokenizer("the[E2]")


@pytest.mark.slow
def test_added_tokens_in_a_saved_model(tmp_path):
    from kerasbert.export.serving_ops import TENSORFLOW_OPS, TENSORFLOW_TEXT_OPS

    flags = {"single_word": True, "normalized": True, "lstrip": True}
    added = [{"content": "[E1]", "rstrip": True}, {"content": "e1", **flags}]
    tokenizer = BertTokenizer([*TOKENS, *MARKERS, "e1"], lowercase=True, added_tokens=added)
    texts = ["the [E1] fox", "E1 e1e the", ""]
    module = tf.Module()
    module.run = tf.function(
        lambda texts: tokenizer.tokenize(texts).to_tensor(-1),
        input_signature=[tf.TensorSpec([None], "string")],
    )
    graph = module.run.get_concrete_function().graph
    ops = {op.type for op in graph.get_operations()}
    for function in graph.as_graph_def().library.function:
        ops |= {node.op for node in function.node_def}
    assert ops <= TENSORFLOW_OPS | TENSORFLOW_TEXT_OPS
    tf.saved_model.save(module, str(tmp_path))
    found = tf.saved_model.load(str(tmp_path)).run(tf.constant(texts)).numpy().tolist()
    assert [[id for id in row if id >= 0] for row in found] == tokenizer(texts)
    assert tokenizer.token_to_id("e1") in tokenizer("E1 the")
    assert tokenizer.token_to_id("e1") not in tokenizer("e1e")
