"""XLNet's tokenizer, rows and tasks: as in transformers where it has the same, on raw texts."""

import unicodedata

import keras
import numpy as np
import pytest

import kerasbert
from kerasbert.base.files import write_files
from kerasbert.converter import class_in
from kerasbert.lineage import (
    XLNetBackbone,
    XLNetMultipleChoice,
    XLNetPretrainer,
    XLNetQuestionAnswering,
    XLNetTextClassifier,
    XLNetTextRegressor,
    XLNetTokenClassifier,
)
from kerasbert.lineage.xlnet.preprocessor import (
    XLNetMultipleChoicePreprocessor,
    XLNetPretrainerPreprocessor,
    XLNetQuestionAnsweringPreprocessor,
    XLNetTextClassifierPreprocessor,
    XLNetTextRegressorPreprocessor,
    XLNetTokenClassifierPreprocessor,
)
from kerasbert.models import BertTextClassifier
from kerasbert.text.transformers_files import transformers_files
from kerasbert.tokenizers import XLNetTokenizer
from tests.contracts import array, assert_close, bert_tokenizer, perturb, tiny_backbone
from tests.export import tiny
from tests.lineage.xlnet.test_model import features, permutations, run, theirs
from tests.peers import torch, transformers
from tests.text.conftest import HARD, SENTENCES


def train(sentences, size):
    import io

    import sentencepiece

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences * 3),
        model_writer=out,
        vocab_size=size,
        hard_vocab_limit=False,
        character_coverage=1.0,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=5,
        pad_piece="<pad>",
        control_symbols=["<cls>", "<sep>", "<mask>", "<eod>"],
        user_defined_symbols=["<eop>"],
        minloglevel=2,
    )
    return out.getvalue()


@pytest.fixture(scope="session")
def model_file():
    return train(SENTENCES, 250)


@pytest.fixture(scope="module")
def tokenizer(model_file):
    return XLNetTokenizer(model_file)


@pytest.fixture(scope="module")
def backbone(tokenizer):
    keras.utils.set_random_seed(1)
    return perturb(
        XLNetBackbone(
            vocabulary_size=tokenizer.vocabulary_size(),
            num_layers=1,
            num_heads=2,
            hidden_dim=16,
            intermediate_dim=24,
            dropout=0.0,
        )
    )


@pytest.mark.peers
def test_tokens_equal_transformers(model_file, tokenizer, tmp_path):
    (tmp_path / "spiece.model").write_bytes(model_file)
    peer = transformers.XLNetTokenizer.from_pretrained(tmp_path)
    count = 0
    for text in [*SENTENCES, *HARD]:
        # transformers normalizes the parts of decomposed syllables and kana one by one, and treats
        # names of special tokens in any text as such.
        if "<mask>" in text or any("\uac00" <= c <= "\ud7a3" or c == "\u3099" for c in text):
            continue
        wanted = peer(text, add_special_tokens=False)["input_ids"]
        assert [int(id) for id in tokenizer(text)] == wanted, text
        count += 1
    assert count > 20
    again = XLNetTokenizer.from_files(tmp_path)
    assert again.get_config() == {**tokenizer.get_config(), "name": again.name}


KOREAN = [
    "빠른 갈색 여우가 게으른 개를 뛰어넘는다.",
    "서울은 대한민국의 수도이며,  한강이\u3000흐른다!",
    "그는 2026년에 ``책'' 세 권을 썼다.",
    "커피와 Café에서 naïve한 친구를 만났다. １２ ㈜한강",
]


@pytest.mark.peers
@pytest.mark.parametrize("keep_accents", [False, True])
def test_korean(tmp_path, keep_accents):
    """Ids as in XLNet's own code, and as in the files that are written.

    From version 5 on, transformers' class leaves syllables decomposed, and no piece matches these.
    """
    import sentencepiece

    data = train(KOREAN, 150)
    peer = sentencepiece.SentencePieceProcessor(model_proto=data)
    tokenizer = XLNetTokenizer(data, keep_accents=keep_accents)
    write_files(tmp_path, transformers_files(tokenizer, "xlnet", 512, True))
    written = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for text in [*KOREAN, unicodedata.normalize("NFD", KOREAN[0])]:
        plain = " ".join(text.split()).replace("``", '"').replace("''", '"')
        if not keep_accents:
            plain = unicodedata.normalize("NFKD", plain)
            plain = "".join(c for c in plain if not unicodedata.combining(c))
        assert tokenizer(text) == peer.encode(plain), text
        assert tokenizer(text) == written(text, add_special_tokens=False)["input_ids"], text
    assert tokenizer.unk_token_id not in tokenizer(KOREAN[0])
    assert (tokenizer("Café") == tokenizer("Cafe")) is not keep_accents


@pytest.mark.peers
def test_rows_equal_transformers(model_file, tokenizer, tmp_path):
    (tmp_path / "spiece.model").write_bytes(model_file)
    peer = transformers.XLNetTokenizer.from_pretrained(tmp_path)
    a, b = ["Größe", "the lazy fox"], ["naïve café", "x"]
    for x in ((a,), (a, b)):
        # The segment of padding is 3 in XLNet's own code and earlier versions, 0 in the newest
        # ones.
        wanted = peer(*x, padding=True, return_token_type_ids=True)
        pairs = zip(wanted["token_type_ids"], wanted["attention_mask"])
        wanted["token_type_ids"] = [np.where(mask, row, 3).tolist() for row, mask in pairs]
        found = XLNetTextClassifierPreprocessor(tokenizer)(x if len(x) > 1 else a)
        names = {
            "token_ids": "input_ids",
            "segment_ids": "token_type_ids",
            "padding_mask": "attention_mask",
        }
        for ours, name in names.items():
            wide = np.array(wanted[name])
            assert array(found[ours])[:, -wide.shape[1] :].astype(int).tolist() == wide.tolist()
        assert set(array(found["segment_ids"])[:, 0].tolist()) == {3}


def test_row_order(tokenizer):
    found = XLNetTextClassifierPreprocessor(tokenizer)((["a", "fox"], ["b c", "d"]))
    ids, segments = array(found["token_ids"]), array(found["segment_ids"])
    assert (ids[:, -1] == tokenizer.cls_token_id).all()
    assert (ids[:, -2] == tokenizer.sep_token_id).all()
    assert (segments[:, -1] == 2).all() and (ids[segments == 3] == tokenizer.pad_token_id).all()
    assert (array(found["padding_mask"]) == (segments < 3)).all()
    assert np.diff(segments[:, :-1].clip(None, 3), axis=1).max() == 1


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "name, cls, settings",
    [
        ("XLNetForSequenceClassification", XLNetTextClassifier, {"num_labels": 3}),
        ("XLNetForSequenceClassification", XLNetTextRegressor, {"num_labels": 1}),
        ("XLNetForTokenClassification", XLNetTokenClassifier, {"num_labels": 3}),
        ("XLNetForMultipleChoice", XLNetMultipleChoice, {}),
        ("XLNetForQuestionAnsweringSimple", XLNetQuestionAnswering, {}),
    ],
)
def test_heads_equal_transformers(tmp_path, name, cls, settings):
    peer = theirs(name, **settings)
    peer.save_pretrained(tmp_path / "theirs")
    model = cls.from_preset(tmp_path / "theirs", preprocessor=None)
    x = features()
    if cls is XLNetMultipleChoice:
        x = {key: np.stack([value, value[::-1]], axis=1) for key, value in x.items()}
    check_head(model, peer, x)
    assert class_in(tmp_path / "theirs") is cls
    kerasbert.convert(model, tmp_path / "ours", format="huggingface")
    check_head(model, getattr(transformers, name).from_pretrained(tmp_path / "ours").eval(), x)


def check_head(model, peer, x):
    outputs, wanted = model(x), run(peer, x)
    if isinstance(model, (XLNetQuestionAnswering, XLNetTokenClassifier)):
        # Ours begin with `<cls>`, and have the padding at the end.
        names = ("start_logits", "end_logits") if isinstance(outputs, dict) else ("logits",)
        outputs = outputs if isinstance(outputs, dict) else {"logits": outputs}
        for name in names:
            rows = zip(array(outputs[name]), wanted[name].numpy(), x["padding_mask"])
            for ours, row, mask in rows:
                row = row[mask == 1]
                assert_close(ours[: len(row)], np.concatenate([row[-1:], row[:-1]]), atol=3e-6)
                assert name == "logits" or (ours[len(row) :] < -1e8).all()
        return
    assert_close(outputs, wanted.logits.reshape(tuple(outputs.shape)), atol=3e-6)


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_pretraining_equals_transformers(tmp_path):
    peer = theirs("XLNetLMHeadModel")
    peer.save_pretrained(tmp_path / "theirs")
    model = XLNetPretrainer.from_preset(tmp_path / "theirs", preprocessor=None)
    hidden, mapping = permutations()
    x = features()
    places = mapping.argmax(axis=-1)
    labels = np.take_along_axis(x["token_ids"], places, axis=1)
    given = {"perm_mask": hidden, "target_mapping": mapping}
    wanted = run(peer, x, **given, labels=torch.tensor(labels).long())
    x = {**x, "hidden_mask": hidden.astype("int32"), "target_mapping": mapping}
    assert_close(model(x), wanted.logits, atol=3e-6)
    loss = model.evaluate(x, labels, verbose=0, return_dict=True)["loss"]
    assert abs(loss - float(wanted.loss)) < 1e-5
    written = kerasbert.convert(model, tmp_path / "ours", format="huggingface")
    assert written["written"] == "XLNetLMHeadModel"
    again = transformers.XLNetLMHeadModel.from_pretrained(tmp_path / "ours").eval()
    assert_close(run(again, features(), **given).logits, wanted.logits, atol=1e-6)


def test_drawn_orders(tokenizer):
    """One in six tokens is predicted; none of them sees itself or later ones."""
    preprocessor = XLNetPretrainerPreprocessor(tokenizer, sequence_length=64)
    x, y, weights = preprocessor([" ".join(SENTENCES[:3])] * 40)
    x = {name: array(value) for name, value in x.items()}
    mapping, hidden, weights = x["target_mapping"], x["hidden_mask"], array(weights)
    is_target = mapping.sum(axis=1) > 0
    tokens = x["padding_mask"].sum() - 2 * len(is_target)
    assert 0.12 < is_target.sum() / tokens < 0.2
    assert (mapping.sum(axis=2) == weights).all()
    special = [tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id]
    assert not np.isin(x["token_ids"][is_target], special).any()
    rows = np.einsum("bpt,bt->bp", mapping, x["token_ids"])
    assert (rows[weights > 0] == array(y)[weights > 0]).all()
    for row, targets in zip(hidden, is_target):
        places = np.flatnonzero(targets)
        # Tokens that are not predicted do not see predicted tokens; all tokens see them.
        assert not row[:, ~targets].any() and row[~targets][:, targets].all()
        assert row[places, places].all()
        among = row[np.ix_(places, places)]
        assert sorted(among.sum(axis=1).tolist()) == list(range(1, len(places) + 1))
    again = array(preprocessor([" ".join(SENTENCES[:3])] * 40)[0]["hidden_mask"])
    assert (again != hidden).any()


@pytest.mark.backends("torch")
def test_pretraining_learns(tokenizer, backbone):
    keras.utils.set_random_seed(1)
    encoder = XLNetBackbone.from_config(backbone.get_config())
    model = XLNetPretrainer(encoder, XLNetPretrainerPreprocessor(tokenizer, sequence_length=32))
    model.compile(optimizer=keras.optimizers.Adam(5e-3))
    history = model.fit(SENTENCES * 8, epochs=8, batch_size=8, verbose=0).history["loss"]
    assert history[-1] < history[0] - 0.5
    with pytest.raises(ValueError, match="makes its own labels"):
        model.fit(["a text"], [1])


@pytest.mark.backends("torch")
def test_classifier(tokenizer, backbone, tmp_path):
    """It trains on raw texts, and keeps what it learned in a preset, in `.keras` and in
    transformers.
    """
    keras.utils.set_random_seed(1)
    encoder = XLNetBackbone.from_config(backbone.get_config())
    preprocessor = XLNetTextClassifierPreprocessor(tokenizer, sequence_length=32)
    model = XLNetTextClassifier(encoder, labels=["animal", "other"], preprocessor=preprocessor)
    texts = ["the quick fox", "lazy dog", "1234 and 5.67", "文書を開きます"] * 4
    names = ["animal", "animal", "other", "other"] * 4
    model.compile(optimizer=keras.optimizers.Adam(1e-2))
    model.fit(texts, names, epochs=8, batch_size=4, verbose=0)
    found = model.classify(["lazy dog", "1234 and 5.67"])
    assert [one["label"] for one in found] == ["animal", "other"]
    wanted = model.predict(texts[:4], verbose=0)
    model.save_to_preset(tmp_path / "ours")
    kerasbert.convert(model, tmp_path / "theirs", format="huggingface")
    model.save(tmp_path / "model.keras")
    again = [XLNetTextClassifier.from_preset(tmp_path / name) for name in ("ours", "theirs")]
    for one in (*again, keras.models.load_model(tmp_path / "model.keras")):
        assert_close(one.predict(texts[:4], verbose=0), wanted, atol=1e-5)
    new = XLNetTextClassifier.from_preset(tmp_path / "theirs", num_classes=3)
    assert new.predict(["a"], verbose=0).shape == (1, 3)


@pytest.mark.slow
def test_served(tokenizer, backbone, tmp_path, monkeypatch):
    """A SavedModel takes raw strings; the export compares its answers with the model's."""
    preprocessor = XLNetTextClassifierPreprocessor(tokenizer, sequence_length=32)
    model = XLNetTextClassifier(backbone, labels=["no", "yes"], preprocessor=preprocessor)
    tiny.write_here(monkeypatch)
    kerasbert.export_serving(model, tmp_path / "served")
    assert list((tmp_path / "served").rglob("saved_model.pb"))


@pytest.mark.backends("torch")
def test_answers(tokenizer, backbone):
    """It trains on spans, and answers with characters of the context, or with no answer."""
    keras.utils.set_random_seed(1)
    encoder = XLNetBackbone.from_config(backbone.get_config())
    preprocessor = XLNetQuestionAnsweringPreprocessor(
        tokenizer, sequence_length=48, max_query_length=8, doc_stride=8
    )
    model = XLNetQuestionAnswering(encoder, preprocessor)
    questions = ["fox", "dog", "over"] * 4
    contexts = ["The quick brown fox jumps.", "the lazy dog is there", "brown fox"] * 4
    answers = [(16, 19), (9, 12), None] * 4
    model.compile(optimizer=keras.optimizers.Adam(1e-2))
    model.fit((questions, contexts), answers, epochs=45, batch_size=12, verbose=0)
    found = model.answer(questions[:3], contexts[:3], null_threshold=0.0)
    assert [one[0]["answer"] for one in found] == ["fox", "dog", ""]
    assert [one[0]["start"] for one in found] == [16, 9, None]


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_tags_choices_and_numbers(tokenizer, backbone, tmp_path):
    """The other heads train on raw texts, and presets keep what they learned."""
    keras.utils.set_random_seed(1)

    def trained(cls, preprocessor, x, y, epochs=50, **settings):
        encoder = XLNetBackbone.from_config(backbone.get_config())
        model = cls(encoder, preprocessor=preprocessor(tokenizer, sequence_length=32), **settings)
        model.compile(optimizer=keras.optimizers.Adam(1e-2))
        model.fit(x, y, epochs=epochs, batch_size=8, verbose=0)
        model.save_to_preset(tmp_path / cls.__name__)
        return model, cls.from_preset(tmp_path / cls.__name__)

    words = [["the", "quick", "fox"], ["lazy", "dog", "jumps", "over"]] * 4
    tags = [["O", "B-ADJ", "B-N"], ["B-ADJ", "B-N", "O", "O"]] * 4
    for model in trained(
        *(XLNetTokenClassifier, XLNetTokenClassifierPreprocessor, words, tags),
        labels=["O", "B-ADJ", "B-N"],
    ):
        assert model.predict_labels(words[:2]) == tags[:2]
        found = model.tag("the quick fox")
        assert [(one["label"], one["text"]) for one in found] == [("ADJ", "quick"), ("N", "fox")]
    prompts, choices = ["the fox", "the dog"] * 4, [["fox", "over"], ["dog", "fox"]] * 4
    for model in trained(
        *(XLNetMultipleChoice, XLNetMultipleChoicePreprocessor, (prompts, choices), [0, 1] * 4),
    ):
        assert [one["choice"] for one in model.choose(prompts[:2], choices[:2])] == ["fox"] * 2
        # A missing choice is padding.
        logits = model.predict((prompts[:2], [choices[0], ["dog"]]), verbose=0)
        assert logits[1, 1] < -1e8 < logits.min(axis=1)[0]
    texts, numbers = ["the quick fox", "lazy dog", "over the"] * 4, [1.0, -1.0, 0.0] * 4
    for model in trained(XLNetTextRegressor, XLNetTextRegressorPreprocessor, texts, numbers):
        assert_close(model.score(texts[:3]), np.array(numbers[:3]), atol=0.4)


def test_misuse(tokenizer, backbone):
    with pytest.raises(ValueError, match="needs a XLNetBackbone"):
        XLNetTextClassifier(tiny_backbone(), num_classes=2)
    with pytest.raises(ValueError, match="no argument 'dropouts'"):
        XLNetTextClassifier(backbone, num_classes=2, dropouts=0.1)
    model = XLNetTextClassifier(
        backbone, num_classes=2, preprocessor=XLNetTextClassifierPreprocessor(tokenizer)
    )
    model.run_eagerly = True
    with pytest.raises(ValueError, match="list of texts is empty"):
        model.classify([])
    assert model.classify("one text")["label"] in ("LABEL_0", "LABEL_1")
    assert model.classify([""])[0]["label"] in ("LABEL_0", "LABEL_1")
    # Arrays padded on the right give the same.
    x = features((4, 4, 4), 4)
    right = {name: np.pad(value, [(0, 0), (0, 3)]) for name, value in x.items()}
    assert_close(model(right), model(x), atol=1e-6)
    with pytest.raises(ValueError, match="max_span=0 must be"):
        XLNetPretrainerPreprocessor(tokenizer, max_span=0)


def others():
    """Return heads of `kerasbert.models` by preprocessor, with functions that build them."""
    for name in ("TextClassifier", "TokenClassifier"):
        yield name, {"num_classes": 2}
    for name in ("TextRegressor", "Reranker", "MultipleChoice", "MaskedLM", "SparseEmbedder"):
        yield name, {"new_head": True}
    for name in ("QuestionAnswering", "ReplacedTokenDetector", "StructuralProbe"):
        yield name, {"new_head": True}
    yield "TextEmbedder", {}


@pytest.fixture(scope="module")
def xlnet_preset(tmp_path_factory):
    """A preset whose tokenizer needs no sentencepiece."""
    tokenizer = bert_tokenizer("[PAD] [UNK] [CLS] [SEP] [MASK] who me ? !".split())
    encoder = XLNetBackbone(9, 1, 1, 4, 4)
    packer = XLNetTextClassifierPreprocessor(tokenizer, sequence_length=128)
    model = XLNetTextClassifier(encoder, num_classes=2, preprocessor=packer)
    folder = tmp_path_factory.mktemp("xlnet")
    model.save_to_preset(folder)
    return model, folder


@pytest.mark.parametrize(("name", "settings"), list(others()))
def test_no_preset_of_xlnet_is_packed_as_bert(xlnet_preset, name, settings):
    model, folder = xlnet_preset
    task, packer = (getattr(kerasbert.models, f"Bert{name}{end}") for end in ("", "Preprocessor"))
    needed = "is of the family 'xlnet', which needs `A <sep> B <sep> <cls>`, padded on the left"
    with pytest.raises(ValueError, match=needed):
        task.from_preset(folder, **settings)
    with pytest.raises(ValueError, match=needed):
        packer.from_preset(folder)
    bert = packer(model.preprocessor.tokenizer, sequence_length=128)
    settings = {name: value for name, value in settings.items() if name != "new_head"}
    with pytest.raises(ValueError, match=needed):
        task(model.backbone, preprocessor=bert, **settings)
    own = task(model.backbone, **settings)  # Rows that the caller packed.
    with pytest.raises(ValueError, match=needed):
        own.preprocessor = bert
    assert own.preprocessor is None


def test_families_and_preprocessors_of_other_forms(xlnet_preset, tmp_path):
    model, folder = xlnet_preset
    tokenizer = model.preprocessor.tokenizer
    last = XLNetTextClassifierPreprocessor(tokenizer, sequence_length=8)
    first = kerasbert.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=8)
    for family in ("bert", "gpt2", "modernbert_decoder"):
        encoder = tiny_backbone(family, vocabulary_size=9)
        with pytest.raises(ValueError, match=f"'{family}', which needs .* padded on the right"):
            BertTextClassifier(encoder, num_classes=2, preprocessor=last)
        BertTextClassifier(encoder, num_classes=2, preprocessor=first).save_to_preset(tmp_path)
        with pytest.raises(ValueError, match=f"'{family}', which needs .* padded on the right"):
            XLNetTextClassifierPreprocessor.from_preset(tmp_path)
    with pytest.raises(ValueError, match="'xlnet', which needs"):
        kerasbert.export_serving(model.backbone, str(tmp_path / "x"), preprocessor=first)
    with pytest.raises(ValueError, match="'transformer_xl', which needs consecutive parts"):
        last.check_family("transformer_xl")
    with pytest.raises(ValueError, match="'marian', which needs a source and a target"):
        first.check_family("marian")
    # The base classes choose XLNet's form of rows, too.
    task = BertTextClassifier(model.backbone, num_classes=2, preprocessor=model.preprocessor)
    assert type(task.preprocessor) is XLNetTextClassifierPreprocessor
    loaded = kerasbert.models.BertPreprocessor.from_preset(folder)
    assert type(loaded) is XLNetTextClassifierPreprocessor
