"""Checkpoints written in every format: loaded by their packages, equal outputs, atomic writes."""

import json
import os
import warnings

import keras
import numpy as np
import pytest

import kerasbert
from kerasbert.checkpoints import to_huggingface
from kerasbert.converter import tasks
from kerasbert.models import (
    BertBackbone,
    BertMaskedLM,
    BertMaskedLMPreprocessor,
    BertMultipleChoice,
    BertNextSentencePredictor,
    BertPretrainer,
    BertQuestionAnswering,
    BertTextClassifier,
    BertTextClassifierPreprocessor,
    BertTextRegressor,
    BertTokenClassifier,
)
from kerasbert.tokenizers import BertTokenizer
from tests.contracts import (
    ENCODERS,
    MASKED_LMS,
    array,
    arrays,
    batch,
    perturb,
    their_inputs,
    tiny_backbone,
    tiny_classifier,
    with_head,
)

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cafe", "café", "un", "##able", "東", "."]
TOKENS += [f"[unused{i}]" for i in range(30 - len(TOKENS))]
LABELS = {0: "no", 1: "maybe", 2: "yes"}
# For each kind of model: the suffix of transformers' class, its settings, and our class.
HEADS = {
    "encoder": ("", {}, BertBackbone),
    "classes": ("ForSequenceClassification", {"id2label": LABELS}, BertTextClassifier),
    "number": ("ForSequenceClassification", {"num_labels": 1}, BertTextRegressor),
    "several": (
        "ForSequenceClassification",
        {"num_labels": 3, "problem_type": "multi_label_classification"},
        BertTextClassifier,
    ),
    "tags": ("ForTokenClassification", {"id2label": LABELS}, BertTokenClassifier),
    "spans": ("ForQuestionAnswering", {}, BertQuestionAnswering),
    "choice": ("ForMultipleChoice", {}, BertMultipleChoice),
    "masked": ("ForMaskedLM", {}, BertMaskedLM),
    "next": ("ForNextSentencePrediction", {}, BertNextSentencePredictor),
    "both": ("ForPreTraining", {}, BertPretrainer),
}
ROWS = [
    *((family, head, {}) for family in ENCODERS for head in list(HEADS)[:5]),
    *((family, "spans", {}) for family in with_head("question_answering")),
    *((family, "choice", {}) for family in with_head("multiple_choice")),
    *((family, "masked", {}) for family in [*MASKED_LMS, "gte"]),
    ("gte", "classes", {}),
    (
        "gte",
        "encoder",
        {"type_vocab_size": 0, "rope_parameters": {"rope_type": "linear", "factor": 1.3}},
    ),
    ("bert", "next", {}),
    ("bert", "both", {}),
    ("albert", "both", {}),
    # Together, these cover each setting of a configuration.
    ("bert", "classes", {"hidden_act": "relu", "layer_norm_eps": 1e-3, "type_vocab_size": 4}),
    ("bert", "encoder", {"hidden_act": "gelu_new", "type_vocab_size": 1, "num_attention_heads": 9}),
    ("bert", "classes", {"classifier_dropout": 0.3, "attention_probs_dropout_prob": 0.2}),
    ("roberta", "classes", {"pad_token_id": 0, "max_position_embeddings": 33}),
    ("distilbert", "classes", {"activation": "relu", "seq_classif_dropout": 0.4, "dropout": 0.3}),
    ("electra", "encoder", {"embedding_size": 36, "hidden_act": "relu", "type_vocab_size": 1}),
    ("albert", "classes", {"num_hidden_groups": 2, "num_hidden_layers": 4, "hidden_act": "gelu"}),
    ("albert", "classes", {"classifier_dropout_prob": 0.4, "initializer_range": 0.01}),
    ("deberta_v3", "classes", {"conv_kernel_size": 3, "conv_act": "gelu_new"}),
    ("deberta_v3", "spans", {"conv_kernel_size": 5, "num_hidden_layers": 1}),
    ("modernbert", "classes", {"classifier_pooling": "mean", "classifier_bias": True}),
    ("modernbert", "encoder", {"norm_bias": True, "mlp_bias": True}),
    ("modernbert", "classes", {"global_attn_every_n_layers": 2, "local_attention": 4}),
    ("modernbert", "classes", {"classifier_activation": "relu", "classifier_dropout": 0.4}),
]


@pytest.fixture(autouse=True)
def no_warnings():
    """An unexpected warning is an error, because each one means that something is lost."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        # Keras warns about rows with one token.
        warnings.filterwarnings("ignore", ".*softmax over axis")
        warnings.filterwarnings("ignore", module="torch|jax|transformers|tensorflow|keras_hub")
        yield


def write(source, target, **arguments):
    arguments.setdefault("tokenizer", False)
    return kerasbert.convert(source, str(target), **arguments)


def load(directory, name, **arguments):
    """Load transformers' model from a directory, and check that the directory has exactly the
    model's weights.
    """
    import transformers

    model, report = getattr(transformers, name).from_pretrained(
        directory, output_loading_info=True, **arguments
    )
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not report.get(problem), (problem, report[problem])
    return model.eval()


def run(model, inputs):
    import torch

    arguments = their_inputs(model, inputs)
    if type(model).__name__.endswith("ForMultipleChoice"):
        arguments = {name: rows[None] for name, rows in arguments.items()}
    with torch.no_grad():
        return model(**arguments)


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("family, head, settings", ROWS, ids=str)
def test_huggingface(reference, tmp_path, family, head, settings):
    name, its, cls = HEADS[head]
    theirs = reference(family, name, **its, **settings)
    said = write(theirs.directory, tmp_path / "out")
    assert said["model"] == cls.__name__
    assert said["written"] == type(theirs.model).__name__
    assert said["files"] == ["config.json", "model.safetensors"]
    again = load(tmp_path / "out", said["written"])
    for length in (1, 13):
        inputs = theirs.inputs(length)
        expected, found = run(theirs.model, inputs), run(again, inputs)
        assert expected.keys() == found.keys()
        for key in expected.keys():
            assert (expected[key] - found[key]).abs().max() <= 1e-5
    # The configuration is the same, except for fields that have no meaning here.
    before, after = theirs.model.config.to_dict(), again.config.to_dict()
    ids = {f"{role}_token_id" for role in ("pad", "bos", "eos", "cls", "sep")}
    ids -= {"pad_token_id"} if family in ("roberta", "xlm_roberta") else set()
    skipped = {"_name_or_path", "transformers_version", "architectures", "use_cache", *ids}
    if head == "number":
        skipped |= {"problem_type", "id2label", "label2id"}
    if family == "modernbert":
        # We have one dropout for embeddings and hidden states; the name is that of versions before
        # 5.
        skipped |= {"embedding_dropout"}
    differ = {
        key: (before[key], after.get(key))
        for key in before.keys() - skipped
        # We may write a value that they leave to a default.
        if before[key] is not None and before[key] != after.get(key)
    }
    assert differ == {}
    # The files contain the fields that transformers itself stores.
    stored = json.load(open(tmp_path / "out" / "config.json", encoding="utf-8"))
    if head in ("classes", "tags"):
        assert stored["id2label"] == {str(id): label for id, label in LABELS.items()}
        assert stored["label2id"] == {label: id for id, label in LABELS.items()}
    assert set(_names(tmp_path / "out")) == set(_names(theirs.directory))


def _names(directory):
    from safetensors import safe_open

    with safe_open(os.path.join(directory, "model.safetensors"), framework="numpy") as file:
        assert file.metadata()["format"] == "pt"
        return list(file.keys())


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_tags_of_a_scheme(tmp_path):
    tagger = perturb(BertTokenClassifier(tiny_backbone(pooler=False), labels=["A"], scheme="BIO"))
    said = write(tagger, tmp_path / "out")
    assert load(tmp_path / "out", said["written"]).config.id2label == {0: "O", 1: "B-A", 2: "I-A"}
    again = BertTokenClassifier.from_preset(str(tmp_path / "out"), preprocessor=None)
    assert again.label_names == tagger.label_names
    features = batch(tagger)
    assert np.abs(array(again(features)) - array(tagger(features))).max() <= 1e-5
    write(tagger, tmp_path / "ours", format="kerasbert")


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("head, name", [("", "AutoModel"), ("classes", None)])
def test_auto_classes(reference, tmp_path, head, name):
    theirs = reference("bert", HEADS[head][0], **HEADS[head][1]) if head else reference("bert")
    write(theirs.directory, tmp_path / "out")
    load(tmp_path / "out", name or "AutoModelForSequenceClassification")


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_shards(reference, tmp_path):
    theirs = reference("bert", *HEADS["classes"][:1], **HEADS["classes"][1])
    said = write(theirs.directory, tmp_path / "out", max_shard_size=2e-5)
    shards = [name for name in said["files"] if name.endswith(".safetensors")]
    assert len(shards) > 2 and "model.safetensors.index.json" in said["files"]
    again = load(tmp_path / "out", said["written"])
    inputs = theirs.inputs(9)
    assert (run(again, inputs).logits - run(theirs.model, inputs).logits).abs().max() <= 1e-6
    classifier = BertTextClassifier.from_preset(str(tmp_path / "out"), preprocessor=None)
    assert theirs.compare(classifier, lengths=(9,)) <= 1e-5


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("family", ("bert", "roberta", "albert"))
def test_an_encoder_without_a_pooler(tmp_path, family):
    encoder = tiny_backbone(family, pooler=False)
    with pytest.warns(UserWarning, match="a pooler, but this encoder has none: load it there with"):
        said = write(encoder, tmp_path / "out")
    load(tmp_path / "out", said["written"], add_pooling_layer=False)


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_a_pooler_that_transformers_does_not_have(tmp_path):
    encoder = tiny_backbone("electra", pooler=True)
    with pytest.raises(ValueError, match="ElectraModel of transformers has no pooler"):
        write(encoder, tmp_path / "out")
    said = write(encoder, tmp_path / "out", encoder={"pooler": False})
    load(tmp_path / "out", said["written"])
    # A classifier on the first token does not use it.
    classifier = perturb(BertTextClassifier(tiny_backbone("roberta", pooler=True), 3))
    with pytest.warns(UserWarning, match="has no pooler: pooled_dense is dropped; the outputs do"):
        said = write(classifier, tmp_path / "classifier")
    model = load(tmp_path / "classifier", said["written"])
    features = batch(classifier)
    features["token_ids"] = np.maximum(features["token_ids"], 2)  # Padding has the id 1 there.
    assert np.abs(run(model, features).logits.numpy() - array(classifier(features))).max() <= 1e-5


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_rows_that_keras_hub_leaves_out(tmp_path):
    """KerasHub's RoBERTa has no segments and counts from row 0; transformers' has both."""
    settings = {"num_segments": 0, "position_offset": 0, "pooler": False}
    classifier = perturb(BertTextClassifier(tiny_backbone("roberta", **settings), 3))
    said = write(classifier, tmp_path / "out")
    model = load(tmp_path / "out", said["written"])
    features = batch(classifier)
    features["token_ids"] = np.maximum(features["token_ids"], 2)  # Padding has the id 1 there.
    assert np.abs(run(model, features).logits.numpy() - array(classifier(features))).max() <= 1e-5
    assert model.config.type_vocab_size == 1 and model.config.max_position_embeddings == 18


# --- tokenizers and texts ---


@pytest.fixture
def classifier():
    """A text classifier."""
    preprocessor = BertTextClassifierPreprocessor(
        BertTokenizer(TOKENS, lowercase=True, strip_accents=False), sequence_length=12
    )
    backbone = tiny_backbone(activation="gelu")
    return perturb(BertTextClassifier(backbone, labels=["a", "b"], preprocessor=preprocessor))


TEXTS = ["Unable café.", "東", "cafe [MASK].", "un[SEP]cafe [CLS]."]


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_texts_in_transformers(classifier, tmp_path):
    import transformers

    warnings.filterwarnings("ignore", ".*contains '.MASK.', a control|.* in a sample of the texts")
    said = write(classifier, tmp_path / "out", tokenizer=None)
    assert said["tokenizer"] == "BertTokenizer" and "vocab.txt" in said["files"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = load(tmp_path / "out", "AutoModelForSequenceClassification")
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    found = model(**inputs).logits.detach().numpy()
    assert np.abs(found - classifier.predict(TEXTS, verbose=0)).max() <= 1e-5
    config = json.load(open(tmp_path / "out" / "tokenizer_config.json"))
    assert (config["do_lower_case"], config["strip_accents"]) == (True, False)
    assert config["model_max_length"] == 16
    config = json.load(open(tmp_path / "out" / "config.json"))
    ids = {key: config[f"{key}_token_id"] for key in ("pad", "bos", "eos", "mask")}
    assert ids == {"pad": 0, "bos": 2, "eos": 3, "mask": 4}
    again = BertTextClassifier.from_preset(str(tmp_path / "out"))
    assert again.labels == ["a", "b"]
    tokenizer = again.preprocessor.tokenizer
    assert (tokenizer.lowercase, tokenizer.strip_accents) == (True, False)


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("format", ["huggingface", "google"])
def test_special_tokens_in_texts(format, tmp_path):
    import transformers

    plain = BertTokenizer(TOKENS, lowercase=True)
    preprocessor = BertMaskedLMPreprocessor(plain, sequence_length=12)
    model = perturb(BertMaskedLM(tiny_backbone(pooler=True), preprocessor=preprocessor))

    # The encoder in Google's format has a pooler, which masked language models do not need.
    warnings.filterwarnings("ignore", ".*has no pooler: pooled_dense is dropped")
    warnings.filterwarnings("ignore", ".*contains '.MASK.', a control|.* in a sample of the texts")

    def read(model, name):
        write(model, tmp_path / name, format=format, tokenizer=plain)
        return transformers.BertTokenizer.from_pretrained(tmp_path / name)

    texts = TEXTS[2:]
    for tokenizer, ours in (
        (read(model.backbone, "encoder"), plain),
        # Mask tokens are found as in `fill_mask`.
        (read(model, "model"), plain.with_special_tokens()),
    ):
        assert tokenizer(texts, add_special_tokens=False)["input_ids"] == ours(texts)
    if format == "huggingface":
        pipe = transformers.pipeline("fill-mask", str(tmp_path / "model"), top_k=1)
        assert pipe("cafe [MASK].")[0]["token"] == model.fill_mask("cafe [MASK].")[0]["token_id"]
    again = BertMaskedLM.from_preset(str(tmp_path / "model")).preprocessor.tokenizer
    assert not again.special_tokens_in_strings


@pytest.mark.backends("torch")
def test_a_tokenizer_of_ones_own(tmp_path):
    tokenizer = BertTokenizer(TOKENS)
    said = write(tiny_backbone(), tmp_path / "out", tokenizer=tokenizer)
    assert said["tokenizer"] == "BertTokenizer"
    assert BertTokenizer.from_preset(str(tmp_path / "out")).get_vocabulary() == TOKENS


@pytest.mark.backends("torch")
def test_a_tokenizer_that_does_not_go_with_the_positions(tmp_path):
    with pytest.raises(ValueError, match="counts RoBERTa's positions from pad_token_id . 1: posit"):
        write(tiny_backbone("roberta"), tmp_path / "out", tokenizer=BertTokenizer(TOKENS))
    assert os.listdir(tmp_path) == []


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_without_tokenizer_files(reference, tmp_path):
    theirs = reference("bert")
    with pytest.warns(UserWarning, match="No tokenizer is written: .* has no tokenizer files"):
        said = kerasbert.convert(theirs.directory, tmp_path / "out")
    assert said["tokenizer"] is None


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_ids_of_special_tokens_without_tokenizer_files(tmp_path, family):
    """The ids of special tokens are those in the source's configuration, and no others."""
    write(tiny_backbone(family), tmp_path / "source")
    path = tmp_path / "source" / "config.json"
    config = json.loads(path.read_text())
    assert config.get("cls_token_id") is None  # Without a preprocessor, the ids are unknown.
    ids = {"cls_token_id": 7, "eos_token_id": [3, 4], "mask_token_id": None}
    if family != "roberta":  # Its positions start after the padding id.
        ids["pad_token_id"] = 5
    config = {key: x for key, x in config.items() if not key.endswith("_token_id")}
    path.write_text(json.dumps({**config, **ids}))
    write(tmp_path / "source", tmp_path / "out")
    found = json.loads((tmp_path / "out" / "config.json").read_text())
    if family == "roberta":
        ids["pad_token_id"] = 1
    assert {key: x for key, x in found.items() if key.endswith("_token_id")} == ids


@pytest.mark.backends("tensorflow")  # TensorFlow reads and writes the format.
def test_folders_whose_names_are_patterns(tmp_path):
    model = tiny_backbone("bert")
    for name in ("g[1]", "g*", "g?{a}"):
        folder = tmp_path / name / "out"
        write(model, folder, format="google")
        # Fine-tuning leaves such a file; its path may be from another machine.
        (folder / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/bert_model.ckpt"\n')
        again = BertBackbone.from_preset(str(folder))
        for one, other in zip(model.weights, again.weights, strict=True):
            np.testing.assert_array_equal(array(one), array(other), err_msg=name)


@pytest.mark.slow
def test_blocks_in_a_layer(tmp_path):
    """ALBERT's layers of several blocks, in groups that share them."""
    model = tiny_backbone(
        "albert",
        num_layers=4,
        num_groups=2,
        num_inner_repetitions=3,
        activation="gelu_approximate",
    )
    perturb(model)
    assert len({id(block) for block in model.transformer_layers}) == 6
    for format in ("huggingface", "keras_hub", "kerasbert"):
        write(model, tmp_path / format, format=format)
        again = BertBackbone.from_preset(str(tmp_path / format))
        assert again.num_inner_repetitions == 3, format
    inside = model.feature_model(output_attentions=True)
    features = batch(model)
    assert [len(inside(features)[x]) for x in ("hidden_states", "attentions")] == [5, 4]
    student = model.with_layers([0, 2])
    expected = [model.transformer_layers[i] for i in (0, 1, 2, 6, 7, 8)]
    for block, copy in zip(expected, student.transformer_layers, strict=True):
        for one, other in zip(block.weights, copy.weights, strict=True):
            np.testing.assert_array_equal(array(one), array(other))


# --- Google ---

GOOGLE_HEADS = {
    BertBackbone: {},
    BertTextClassifier: {"output_weights": (2, 16), "output_bias": (2,)},
    BertTextRegressor: {"output_weights": (1, 16), "output_bias": (1,)},
    BertQuestionAnswering: {
        "cls/squad/output_weights": (2, 16),
        "cls/squad/output_bias": (2,),
    },
    BertNextSentencePredictor: {
        "cls/seq_relationship/output_weights": (2, 16),
        "cls/seq_relationship/output_bias": (2,),
    },
}


def google_shapes():
    """Return the variables of google-research/bert's BertModel, as named in modeling.py."""
    shapes = {
        "embeddings/word_embeddings": (30, 16),
        "embeddings/position_embeddings": (16, 16),
        "embeddings/token_type_embeddings": (2, 16),
        "embeddings/LayerNorm/gamma": (16,),
        "embeddings/LayerNorm/beta": (16,),
        "pooler/dense/kernel": (16, 16),
        "pooler/dense/bias": (16,),
    }
    for i in range(2):
        layer = f"encoder/layer_{i}"
        for name, units, width in (
            ("attention/self/query", 16, 16),
            ("attention/self/key", 16, 16),
            ("attention/self/value", 16, 16),
            ("attention/output/dense", 16, 16),
            ("intermediate/dense", 16, 24),
            ("output/dense", 24, 16),
        ):
            shapes[f"{layer}/{name}/kernel"] = (units, width)
            shapes[f"{layer}/{name}/bias"] = (width,)
        for name in ("attention/output/LayerNorm", "output/LayerNorm"):
            shapes[f"{layer}/{name}/gamma"] = shapes[f"{layer}/{name}/beta"] = (16,)
    return {f"bert/{name}": shape for name, shape in shapes.items()}


def tiny(cls, family="bert", **settings):
    backbone = tiny_backbone(family, **settings)
    if cls is BertBackbone:
        return backbone
    return perturb(cls(backbone, **({"num_classes": 2} if cls is BertTextClassifier else {})))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("cls", GOOGLE_HEADS)
def test_google(tmp_path, cls):
    import tensorflow as tf

    model = tiny(cls)
    said = write(model, tmp_path / "out", format="google", tokenizer=BertTokenizer(TOKENS))
    assert {"bert_config.json", "vocab.txt", "bert_model.ckpt.index"} <= set(said["files"])
    reader = tf.train.load_checkpoint(str(tmp_path / "out" / "bert_model.ckpt"))
    found = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
    assert found == {**google_shapes(), **GOOGLE_HEADS[cls]}
    qkv = (
        array(model.get_layer("transformer_layer_1").attention.qkv.kernel)
        if not (hasattr(model, "backbone"))
        else array(model.backbone.get_layer("transformer_layer_1").attention.qkv.kernel)
    )
    for i, name in enumerate(("query", "key", "value")):
        kernel = reader.get_tensor(f"bert/encoder/layer_1/attention/self/{name}/kernel")
        np.testing.assert_array_equal(kernel, qkv[:, 16 * i : 16 * (i + 1)])
    config = json.load(open(tmp_path / "out" / "bert_config.json"))
    assert config == {
        "vocab_size": 30,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "hidden_size": 16,
        "intermediate_size": 24,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 16,
        "type_vocab_size": 2,
        "initializer_range": 0.02,
        "hidden_act": "gelu",
    }
    # TensorFlow 1 loads a checkpoint in this way, by name.
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        with tf.compat.v1.variable_scope("bert/pooler/dense"):
            kernel = tf.compat.v1.get_variable("kernel", (16, 16))
        path = str(tmp_path / "out" / "bert_model.ckpt")
        tf.compat.v1.train.init_from_checkpoint(
            path, {"bert/pooler/dense/kernel": "bert/pooler/dense/kernel"}
        )
        session.run(tf.compat.v1.global_variables_initializer())
        expected = reader.get_tensor("bert/pooler/dense/kernel")
        np.testing.assert_array_equal(session.run(kernel), expected)
    arguments = {} if cls is BertBackbone else {"preprocessor": None}
    again = cls.from_preset(str(tmp_path / "out"), **arguments)
    features = batch(model)
    assert [a.tolist() for a in keras.tree.flatten(arrays(again(features)))] == [
        a.tolist() for a in keras.tree.flatten(arrays(model(features)))
    ]


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_from_google_to_transformers_and_back(tmp_path):
    """A classifier from run_classifier.py; by default the source's own head is converted."""
    model = tiny(BertTextClassifier)
    tokenizer = BertTokenizer(TOKENS, lowercase=True)
    write(model, tmp_path / "google", format="google", tokenizer=tokenizer)
    said = write(str(tmp_path / "google"), tmp_path / "out", tokenizer=None)
    assert said["written"] == "BertForSequenceClassification"
    load(tmp_path / "out", said["written"])
    write(str(tmp_path / "out"), tmp_path / "again", format="google", tokenizer=None)
    one, two = (
        BertTextClassifier.from_preset(str(tmp_path / name)) for name in ("google", "again")
    )
    assert all(np.array_equal(array(a), array(b)) for a, b in zip(one.weights, two.weights))
    assert two.preprocessor.tokenizer.lowercase


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_other_forms_of_gelu(reference, tmp_path):
    theirs = reference("bert")
    for format in ("google", "keras_hub"):
        with pytest.raises(ValueError, match="'gelu'.*'gelu_approximate'"):
            write(theirs.directory, tmp_path / "out", format=format)
        assert os.listdir(tmp_path) == []
    approximate = {"activation": "gelu_approximate"}
    write(theirs.directory, tmp_path / "out", format="google", encoder=approximate)
    encoder = BertBackbone.from_preset(str(tmp_path / "out"))
    assert encoder.activation == "gelu_approximate" and theirs.compare(encoder) < 0.02


# --- KerasHub ---

KERAS_HUB = [
    ("bert", BertBackbone, "BertBackbone"),
    ("bert", BertTextClassifier, "BertTextClassifier"),
    ("roberta", BertBackbone, "RobertaBackbone"),
    ("roberta", BertTextClassifier, "RobertaTextClassifier"),
    ("xlm_roberta", BertTextClassifier, "XLMRobertaTextClassifier"),
    ("distilbert", BertBackbone, "DistilBertBackbone"),
    ("distilbert", BertTextClassifier, "DistilBertTextClassifier"),
    ("electra", BertBackbone, "ElectraBackbone"),
    ("albert", BertBackbone, "AlbertBackbone"),
    ("albert", BertTextClassifier, "AlbertTextClassifier"),
    ("deberta_v3", BertTextClassifier, "DebertaV3TextClassifier"),
]


@pytest.mark.backends("torch")
@pytest.mark.parametrize("family, cls, name", KERAS_HUB, ids=str)
def test_keras_hub(tmp_path, family, cls, name):
    import keras_hub

    settings = {"roberta": {"pooler": False}, "xlm_roberta": {"pooler": False}}
    settings["electra"] = {"pooler": True, "activation": "gelu_approximate"}
    exact = ("distilbert", "roberta", "xlm_roberta", "deberta_v3")
    activation = "gelu" if family in exact else "gelu_approximate"
    model = tiny(cls, family, **{"activation": activation, **settings.get(family, {})})
    said = write(model, tmp_path / "out", format="keras_hub")
    assert said["written"] == name
    arguments = {} if cls is BertBackbone else {"preprocessor": None}
    theirs = getattr(keras_hub.models, name).from_preset(str(tmp_path / "out"), **arguments)
    features = batch(model)
    if family in ("roberta", "xlm_roberta"):
        features["segment_ids"][:] = 0  # KerasHub has no such model.
    found = theirs({key: features[key] for key in theirs.input})
    expected = model(features)
    if cls is BertBackbone and not isinstance(found, dict):
        found = {"sequence_output": found}
    tokens = features["padding_mask"] > 0
    for one, other in zip(
        keras.tree.flatten(arrays(expected)), keras.tree.flatten(arrays(found)), strict=True
    ):
        gap = np.abs(one - other)
        assert gap[tokens].max() <= 1e-5 if gap.ndim == 3 else gap.max() <= 1e-5


@pytest.mark.backends("torch")
def test_texts_in_keras_hub(tmp_path):
    import keras_hub

    warnings.filterwarnings("ignore", ".*contains '.MASK.', a control|.* in a sample of the texts")
    preprocessor = BertTextClassifierPreprocessor(
        BertTokenizer(TOKENS, lowercase=True), sequence_length=12
    )
    model = perturb(BertTextClassifier(tiny_backbone(), num_classes=2, preprocessor=preprocessor))
    write(model, tmp_path / "out", format="keras_hub", tokenizer=None)
    theirs = keras_hub.models.BertTextClassifier.from_preset(str(tmp_path / "out"))
    assert theirs.preprocessor.sequence_length == 12
    found = theirs.predict(np.array(TEXTS), verbose=0)
    assert np.abs(found - model.predict(TEXTS, verbose=0)).max() <= 1e-5


@pytest.mark.backends("torch")
def test_a_number_and_names_in_keras_hub(tmp_path):
    with pytest.warns(UserWarning, match="KerasHub has no regressor: this is a BertTextClassifier"):
        write(tiny(BertTextRegressor), tmp_path / "number", format="keras_hub")
    model = perturb(BertTextClassifier(tiny_backbone(), labels=["ham", "spam"]))
    with pytest.warns(UserWarning, match=r"does not hold labels=\['ham', 'spam'\] \(there None\)"):
        write(model, tmp_path / "names", format="keras_hub")


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "family, cls, settings, message",
    [
        ("modernbert", BertBackbone, {}, "KerasHub has no modernbert; it has bert, roberta"),
        ("electra", BertTextClassifier, {"pooler": True}, "no task .*for the head 'text_classif"),
        ("bert", BertNextSentencePredictor, {}, "no task .*for the head 'next_sentence_predictor'"),
        ("bert", BertBackbone, {"is_causal": True}, r"cannot hold is_causal=True \(there False"),
        ("bert", BertBackbone, {"pooler": False}, "has a pooler, but this model has none"),
        ("roberta", BertBackbone, {"num_segments": 2}, r"num_segments=2 \(there 0\)"),
        ("bert", BertBackbone, {"layer_norm_epsilon": 1e-5}, "layer_norm_epsilon=1e-05"),
    ],
    ids=str,
)
def test_what_keras_hub_cannot_hold(tmp_path, family, cls, settings, message):
    activation = "gelu" if family == "roberta" else "gelu_approximate"
    settings = {"activation": activation, "pooler": family != "roberta", **settings}
    with pytest.raises(ValueError, match=message):
        write(tiny(cls, family, **settings), tmp_path / "out", format="keras_hub")
    assert os.listdir(tmp_path) == []


# --- kerasbert's own format ---


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_kerasbert(reference, classifier, tmp_path):
    theirs = reference("roberta", HEADS["classes"][0], **HEADS["classes"][1])
    said = write(theirs.directory, tmp_path / "ours", format="kerasbert")
    assert said["written"] == "BertTextClassifier" and "task.json" in said["files"]
    ours = BertTextClassifier.from_preset(str(tmp_path / "ours"))
    assert theirs.compare(ours, lengths=(13,)) <= 1e-5
    # If the source is a preset, it determines the task.
    classifier.save_to_preset(str(tmp_path / "preset"))
    said = write(str(tmp_path / "preset"), tmp_path / "copy", format="kerasbert", tokenizer=None)
    assert (said["model"], said["tokenizer"]) == ("BertTextClassifier", "BertTokenizer")
    said = write(str(tmp_path / "preset"), tmp_path / "encoder", format="kerasbert", task="encoder")
    assert said["model"] == "BertBackbone" and "task.json" not in said["files"]


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_int8_and_adapters(tmp_path):
    model = tiny_classifier()
    model.backbone.enable_lora(2)
    perturb(model)
    with pytest.raises(
        ValueError, match="lora_kernel_a belongs to an adapter; save the model with"
    ):
        write(model, tmp_path / "out")
    model.save_to_preset(str(tmp_path / "preset"))
    said = write(str(tmp_path / "preset"), tmp_path / "out")
    assert said["written"] == "BertForSequenceClassification"
    features = batch(model)
    again = BertTextClassifier.from_preset(str(tmp_path / "out"), preprocessor=None)
    assert np.abs(array(again(features)) - array(model(features))).max() <= 1e-5
    model = tiny_classifier()
    model.quantize("int8")
    with pytest.raises(ValueError, match="is quantized, which other formats do not support"):
        write(model, tmp_path / "int8")
    model.save_to_preset(str(tmp_path / "preset8"))
    with pytest.raises(ValueError, match="is quantized, which other formats do not support"):
        write(str(tmp_path / "preset8"), tmp_path / "int8")


# --- choice of the class ---


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_which_class_is_taken(reference, tmp_path):
    theirs = reference("bert", HEADS["classes"][0], **HEADS["classes"][1])
    for task, name in (
        ("encoder", "BertModel"),
        (BertTextClassifier, "BertForSequenceClassification"),
        ("text_classifier", "BertForSequenceClassification"),
    ):
        said = write(theirs.directory, tmp_path / str(task), task=task)
        assert said["written"] == name
    # Without a name, the weights decide.
    (tmp_path / "unnamed").mkdir()
    unnamed = theirs.copy(tmp_path / "unnamed", architectures=None)
    with pytest.raises(ValueError, match="does not say which head it has"):
        write(unnamed, tmp_path / "by_weights")
    message = "task='classifier' is unknown; use one of encoder, text_classifier"
    with pytest.raises(ValueError, match=message):
        write(theirs.directory, tmp_path / "none", task="classifier")
    assert {"encoder", "text_classifier", "text_regressor", "next_sentence_predictor"} <= set(
        tasks()
    )


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_heads_that_are_left_out_are_named(reference, tmp_path):
    theirs = reference("gpt2", "DoubleHeadsModel")
    with pytest.warns(
        UserWarning, match="read as a BertBackbone, .* leaves out .*multiple_choice_head"
    ):
        said = write(theirs.directory, tmp_path / "out")
    assert said["written"] == "GPT2Model"


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "family, head, name",
    [
        ("electra", "ForPreTraining", "ElectraForPreTraining"),
        ("gpt2", "LMHeadModel", "GPT2LMHeadModel"),
        ("gpt", "LMHeadModel", "OpenAIGPTLMHeadModel"),
        ("modernbert_decoder", "LMHeadModel", "ModernBertDecoderForCausalLM"),
    ],
)
def test_heads_are_kept(reference, tmp_path, family, head, name):
    theirs = reference(family, head)
    assert write(theirs.directory, tmp_path / "out")["written"] == name


# --- errors ---


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "family, cls, settings, message",
    [
        ("bert", BertBackbone, {"is_causal": True}, "BertModel cannot hold is_causal=True"),
        ("distilbert", BertBackbone, {"layer_norm_epsilon": 1e-5}, r"1e-05 \(there 1e-12\)"),
        (
            "bert",
            BertBackbone,
            {"activation": "elu"},
            "has no activation 'elu'; use one",
        ),
        ("albert", BertBackbone, {"embedding_dim": None}, r"embedding_dim=None \(there 16\)"),
        ("bert", BertBackbone, {"num_groups": 1}, r"num_groups=1 \(there 2\)"),
        ("bert", BertBackbone, {"position_offset": 1}, "cannot hold position_offset=1"),
        (
            "albert",
            BertNextSentencePredictor,
            {},
            "no class for the head 'next_sentence_predictor' ",
        ),
        (
            "roberta",
            BertNextSentencePredictor,
            {},
            "no class for the head 'next_sentence_predictor' alone on",
        ),
    ],
    ids=str,
)
def test_what_transformers_cannot_hold(tmp_path, family, cls, settings, message):
    with pytest.raises(ValueError, match=message):
        write(tiny(cls, family, pooler=family != "distilbert", **settings), tmp_path / "out")
    assert os.listdir(tmp_path) == []


@pytest.mark.backends("torch")
def test_heads_that_transformers_cannot_hold(tmp_path):
    backbone = tiny_backbone()
    for settings, message in (
        ({"pooling": "mean"}, r"cannot hold pooling='mean' \(there 'pooler'\)"),
        ({"activation": "softmax"}, "cannot hold activation="),
        ({"head_activation": "tanh"}, "has no name for head_dense/kernel, head_dense/bias"),
    ):
        model = BertTextClassifier(backbone, num_classes=2, **settings)
        with pytest.raises(ValueError, match=message):
            write(model, tmp_path / "out")
    model = BertTextClassifier(backbone, num_classes=2, dropout=0.5)
    write(model, tmp_path / "out")
    assert json.load(open(tmp_path / "out" / "config.json"))["classifier_dropout"] == 0.5


@pytest.mark.backends("torch")
def test_google_holds_bert_alone(tmp_path):
    with pytest.raises(ValueError, match="only holds BERT, not the family roberta"):
        write(tiny_backbone("roberta"), tmp_path / "out", format="google")
    with pytest.raises(ValueError, match=r"cannot hold layer_norm_epsilon=0.001 \(there 1e-12\)"):
        write(tiny_backbone(layer_norm_epsilon=1e-3), tmp_path / "out", format="google")


@pytest.mark.backends("torch")
def test_bad_arguments(tmp_path):
    encoder = tiny_backbone()
    with pytest.raises(ValueError, match="format='onnx' is unknown; use one of huggingface, goo"):
        write(encoder, tmp_path / "out", format="onnx")
    with pytest.raises(ValueError, match="source must be a preset name, a handle, a directory or"):
        write(keras.layers.Dense(2), tmp_path / "out")
    with pytest.raises(ValueError, match="task='encoder' is for a source that is a name"):
        write(encoder, tmp_path / "out", task="encoder")
    with pytest.raises(ValueError, match="needs weights that the source does not have: "):
        write(encoder, tmp_path / "out", encoder={"hidden_dim": 8, "num_heads": 1})
    with pytest.raises(ValueError, match="has no setting 'num_layer'; did you mean num_layers"):
        write(encoder, tmp_path / "out", encoder={"num_layer": 2})
    with pytest.raises(ValueError, match="Unknown preset 'bert_base_en_uncase'.*did you mean bert"):
        write("bert_base_en_uncase", tmp_path / "out")


@pytest.mark.backends("torch")
def test_nothing_half_written(tmp_path, monkeypatch):
    encoder = tiny_backbone()
    target = tmp_path / "out"

    def fail(*arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr(to_huggingface, "_save", fail)
    with pytest.raises(OSError, match="No space left"):
        write(encoder, target)
    assert os.listdir(tmp_path) == []
    monkeypatch.undo()
    (tmp_path / "out").mkdir()  # An empty directory may exist.
    write(encoder, target)
    before = {name: (target / name).read_bytes() for name in os.listdir(target)}
    with pytest.raises(ValueError, match="is not empty; choose another directory, or pass overw"):
        write(encoder, target)
    monkeypatch.setattr(to_huggingface, "_save", fail)
    with pytest.raises(OSError, match="No space left"):
        write(encoder, target, overwrite=True)
    monkeypatch.undo()
    assert {name: (target / name).read_bytes() for name in os.listdir(target)} == before
    (target / "other.txt").write_text("")
    write(encoder, target, overwrite=True)
    assert sorted(os.listdir(target)) == sorted(before)
    # A directory with other content is not replaced.
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("")
    with pytest.raises(ValueError, match="holds no checkpoint, so that overwrite=True does not"):
        write(encoder, tmp_path / "home", overwrite=True)
    with pytest.raises(ValueError, match="it is a file, not a folder"):
        write(encoder, tmp_path / "home" / "letter.txt")
    assert sorted(os.listdir(tmp_path)) == ["home", "out"]


@pytest.mark.backends("torch")
def test_what_is_read_back_is_compared(tmp_path, monkeypatch):
    """A fault in a table or a file system is detected before the directory is renamed into
    place.
    """
    save = to_huggingface._save

    def other(tensors, directory, size):
        name = next(iter(tensors))
        save({**tensors, name: tensors[name] + 1}, directory, size)

    monkeypatch.setattr(to_huggingface, "_save", other)
    with pytest.raises(
        ValueError, match="token_embedding/embeddings of .* differs from what was written"
    ):
        write(tiny_backbone(), tmp_path / "out")
    assert os.listdir(tmp_path) == []


# --- command ---


def command(*arguments):
    from typer.testing import CliRunner

    from kerasbert.cli import app

    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_command(reference, tmp_path):
    theirs = reference("bert", HEADS["classes"][0], **HEADS["classes"][1])
    out = tmp_path / "out"
    arguments = (theirs.directory, out, "--no-tokenizer")
    done = command(*arguments, "--task", "encoder")
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == f"BertBackbone -> BertModel in {out}"
    done = command(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "is not empty; choose another" in done.stderr
    done = command(*arguments, "--overwrite", "--max-shard-size", "0.00002")
    assert done.exit_code == 0 and "BertForSequenceClassification" in done.stdout
    assert "model.safetensors.index.json" in os.listdir(out)
    hub = (theirs.directory, tmp_path / "hub", "--no-tokenizer", "--format", "keras_hub")
    assert command(*hub).exit_code == 2
    settings = ("--encoder", "activation=gelu_approximate", "--encoder", "dropout=0.2")
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        done = command(*hub, *settings)
    assert done.exit_code == 0
    assert done.stderr.count("\n") == 1 and "labels=['no', 'maybe', 'yes'] (there" in done.stderr
    encoder = BertBackbone.from_preset(str(tmp_path / "hub"))
    assert (encoder.activation, encoder.dropout) == ("gelu_approximate", 0.2)
    done = command(*arguments, "--encoder", "dropout")
    assert done.exit_code == 2 and "'dropout' is not name=value" in done.stderr
