"""Directories of sentence-transformers, made by hand and compared with pooling in torch.

B batch, T tokens, D width.
"""

import json
import os
import shutil

import keras
import numpy as np
import pytest

import kerasbert
from kerasbert.models import (
    BertBackbone,
    BertMaskedLM,
    BertSparseEmbedder,
    BertTextClassifier,
    BertTextEmbedder,
    BertTextEmbedderPreprocessor,
)
from kerasbert.tokenizers import BertTokenizer
from tests.contracts import ENCODERS, assert_close, perturb
from tests.peers import sentence_transformers, torch

# Reading files does not depend on the backend, and PyTorch compiles nothing.
pytestmark = [pytest.mark.backends("torch"), pytest.mark.peers]


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Good", "good", "été", "ete", "film"]
WORDS += [f"w{i}" for i in range(99 - len(WORDS))]
FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


def write(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file)


def make(
    theirs,
    target,
    modes=("mean",),
    new=False,
    normalize=False,
    folder="",
    kinds=None,
    settings=None,
    **tokenizer,
):
    """Make a directory as sentence-transformers writes it; `new` is the layout of version 6."""
    target = str(target)
    inner = os.path.join(target, folder)
    shutil.copytree(theirs.directory, inner, dirs_exist_ok=True)
    with open(os.path.join(inner, "vocab.txt"), "w", encoding="utf-8") as file:
        file.writelines(f"{word}\n" for word in WORDS)
    write(
        os.path.join(inner, "tokenizer_config.json"),
        {"tokenizer_class": "BertTokenizer", "do_lower_case": False, **tokenizer},
    )
    kinds = kinds or ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    package = f"sentence_transformers.{'sentence_transformer.modules' if new else 'models'}"
    paths = [folder if i == 0 else f"{i}_{kind}" for i, kind in enumerate(kinds)]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{package}.{kind}"}
        for i, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    write(os.path.join(target, "modules.json"), modules)
    config = {"word_embedding_dimension": 36}
    if new:
        config["pooling_mode"] = modes[0] if len(modes) == 1 else list(modes)
    elif modes is not None:
        config.update({flag: mode in modes for mode, flag in FLAGS.items()})
    write(os.path.join(target, "1_Pooling", "config.json"), config)
    if settings is not None:
        write(os.path.join(inner, "sentence_bert_config.json"), settings)
    return target


def torch_vectors(theirs, inputs, modes, normalize):
    """Return the concatenated poolings of transformers' own outputs."""
    states = torch.tensor(theirs(inputs)["sequence_output"])  # (B, T, D)
    mask = torch.tensor(inputs["padding_mask"])[:, :, None].float()
    pooled = {
        "cls": states[:, 0],
        "max": states.masked_fill(mask == 0, float("-inf")).max(dim=1).values,
        "mean": (states * mask).sum(1) / mask.sum(1),
    }
    vectors = torch.cat([pooled[mode] for mode in modes], dim=-1)
    vectors = torch.nn.functional.normalize(vectors, dim=-1) if normalize else vectors
    return vectors.numpy()


def gap(theirs, embedder, modes, normalize):
    worst = 0.0
    for length in (1, 13):
        inputs = theirs.inputs(length, seed=length)
        expected = torch_vectors(theirs, inputs, modes, normalize)
        found = keras.ops.convert_to_numpy(
            embedder({name: x for name, x in inputs.items() if name in embedder.input})
        )
        assert found.shape == expected.shape
        worst = max(worst, np.abs(found - expected).max())
    return worst


@pytest.mark.parametrize("family", ENCODERS)
def test_every_family(reference, tmp_path, family):
    theirs = reference(family)
    directory = make(theirs, tmp_path, normalize=True)
    embedder = BertTextEmbedder.from_preset(directory, preprocessor=None)
    assert (embedder.pooling, embedder.layers_used, embedder.normalize) == ("mean", "last", True)
    assert gap(theirs, embedder, ["mean"], True) <= 1e-5


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("modes", [["cls"], ["max"], ["cls", "mean"], ["cls", "max", "mean"]])
def test_poolings(reference, tmp_path, modes, new):
    theirs = reference("bert")
    embedder = BertTextEmbedder.from_preset(make(theirs, tmp_path, modes, new), preprocessor=None)
    assert not embedder.normalize
    assert gap(theirs, embedder, modes, False) <= 1e-5


@pytest.mark.parametrize("modes", [None, ()], ids=["absent", "all false"])
def test_no_flag_is_the_mean(reference, tmp_path, modes):
    directory = make(reference("bert"), tmp_path, modes=modes)
    assert BertTextEmbedder.from_preset(directory, preprocessor=None).pooling == "mean"


def test_weights_in_a_folder(reference, tmp_path):
    theirs = reference("distilbert")
    directory = make(theirs, tmp_path, normalize=True, folder="0_Transformer")
    embedder = BertTextEmbedder.from_preset(directory)
    assert gap(theirs, embedder, ["mean"], True) <= 1e-5
    assert embedder.preprocessor.tokenizer.get_vocabulary() == WORDS
    # The other classes find these files too.
    assert theirs.compare(BertBackbone.from_preset(directory), lengths=(5,)) <= 1e-5


def test_what_the_caller_says_wins(reference, tmp_path):
    theirs = reference("bert")
    directory = make(theirs, tmp_path, ["cls"], normalize=True, settings={"max_seq_length": 12})
    embedder = BertTextEmbedder.from_preset(
        directory, pooling="max", normalize=False, sequence_length=9
    )
    assert embedder.preprocessor.sequence_length == 9
    assert gap(theirs, embedder, ["max"], False) <= 1e-5


def test_raw_texts(reference, tmp_path):
    theirs = reference("bert")
    embedder = BertTextEmbedder.from_preset(make(theirs, tmp_path, normalize=True))
    ids = np.array([[2, 6, 9, 3, 0], [2, 9, 9, 9, 3]], "int32")
    inputs = {"token_ids": ids, "padding_mask": (ids > 0).astype("int32"), "segment_ids": 0 * ids}
    expected = torch_vectors(theirs, inputs, ["mean"], True)
    assert np.abs(embedder.embed(["good film", "film film film"]) - expected).max() <= 1e-5


@pytest.mark.parametrize(
    ("settings", "tokenizer", "length"),
    [
        ({"max_seq_length": 12}, {"model_max_length": 20}, 12),
        ({"max_seq_length": None}, {"model_max_length": 20}, 20),
        ({"max_seq_length": 99}, {}, 32),  # The number of positions.
        (None, {"model_max_length": 10**30}, 32),
    ],
)
def test_length(reference, tmp_path, settings, tokenizer, length):
    directory = make(reference("bert"), tmp_path, settings=settings, **tokenizer)
    assert BertTextEmbedder.from_preset(directory).preprocessor.sequence_length == length
    preprocessor = BertTextEmbedderPreprocessor.from_preset(directory)
    assert preprocessor.sequence_length == length
    # The length limit of embedded texts does not apply to other tasks.
    classifier = BertTextClassifier.from_preset(directory, num_classes=2)
    assert classifier.preprocessor.sequence_length == 32


def test_lower_case(reference, tmp_path):
    """If lowercasing is configured outside the tokenizer, accents are kept."""
    theirs = reference("bert")
    cased = make(theirs, tmp_path / "cased", settings={"do_lower_case": False})
    assert BertTextEmbedder.from_preset(cased).preprocessor.tokenizer("Good Été") == [5, 1]
    directory = make(theirs, tmp_path / "lower", settings={"do_lower_case": True})
    assert BertTextEmbedder.from_preset(directory).preprocessor.tokenizer("Good Été") == [6, 7]
    assert BertTokenizer.from_preset(directory, lowercase=False)("Good") == [5]
    uncased = make(
        theirs, tmp_path / "uncased", settings={"do_lower_case": True}, do_lower_case=True
    )
    assert BertTextEmbedder.from_preset(uncased).preprocessor.tokenizer("Good Été") == [6, 8]


def test_own_preset(reference, tmp_path):
    theirs = reference("electra")
    directory = make(
        theirs, tmp_path / "a", ["cls", "mean"], normalize=True, settings={"max_seq_length": 12}
    )
    BertTextEmbedder.from_preset(directory).save_to_preset(tmp_path / "b")
    again = BertTextEmbedder.from_preset(tmp_path / "b")
    assert again.preprocessor.sequence_length == 12
    assert gap(theirs, again, ["cls", "mean"], True) <= 1e-5


# === Writing ===


@pytest.mark.parametrize(
    ("family", "modes"),
    [
        ("bert", "mean"),
        ("bert", ["mean", "cls"]),
        ("distilbert", ["cls", "mean"]),
        ("modernbert", "cls"),
    ],
    ids=str,
)
def test_written(reference, tmp_path, family, modes):
    """An embedder is written as by sentence-transformers, and read back with the same poolings."""
    theirs = reference(family)
    tokenizer = BertTokenizer(WORDS, lowercase=False)
    embedder = BertTextEmbedder.from_preset(
        theirs.directory,
        preprocessor=BertTextEmbedderPreprocessor(tokenizer, sequence_length=12),
        pooling=modes,
        normalize=family != "modernbert",
    )
    said = kerasbert.convert(embedder, tmp_path / "there")
    files = {"modules.json", "sentence_bert_config.json", "1_Pooling/config.json"}
    assert files <= set(said["files"])
    assert os.path.isdir(tmp_path / "there" / "2_Normalize") == embedder.normalize
    with open(tmp_path / "there" / "1_Pooling" / "config.json") as file:
        config = json.load(file)
    listed = [modes] if isinstance(modes, str) else modes
    flags = [mode for mode, flag in FLAGS.items() if config.get(flag)]
    assert config.get("pooling_mode", flags) == listed
    again = BertTextEmbedder.from_preset(tmp_path / "there")
    assert (again.pooling, again.normalize) == (modes, embedder.normalize)
    assert again.preprocessor.sequence_length == 12
    assert gap(theirs, again, listed, again.normalize) <= 1e-5
    # `convert` reads the written folder and writes the same model in each format that supports it.
    for format in ("huggingface", "kerasbert"):
        said = kerasbert.convert(tmp_path / "there", tmp_path / format, format=format)
        assert said["model"] == "BertTextEmbedder"
        again = BertTextEmbedder.from_preset(tmp_path / format)
        assert (again.pooling, again.normalize) == (modes, embedder.normalize)
        assert again.preprocessor.sequence_length == 12


@pytest.mark.parametrize(
    "settings", [{"pooling": "pooler"}, {"pooling": "tokens"}, {"layers": "sum_all"}], ids=str
)
def test_what_has_no_place(reference, tmp_path, settings):
    embedder = BertTextEmbedder.from_preset(
        reference("bert").directory, preprocessor=None, **settings
    )
    (name,) = settings
    with pytest.raises(ValueError, match=f"BertModel cannot hold {name}=.* use format='kerasbert'"):
        kerasbert.convert(embedder, tmp_path / "there")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("activation", ["tanh", None])
def test_dense(reference, tmp_path, activation):
    """LaBSE's and distiluse's: read, written, and read by sentence-transformers."""
    theirs = reference("bert")
    embedder = BertTextEmbedder(
        BertBackbone.from_preset(theirs.directory),
        BertTextEmbedderPreprocessor(BertTokenizer(WORDS), sequence_length=12),
        pooling="cls",
        normalize=activation is not None,
        projection_dim=7,
        projection_bias=True,
        projection_activation=activation,
    )
    perturb(embedder)
    kerasbert.convert(embedder, tmp_path / "there")
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "there"), device="cpu")
    texts = ["good film", "w1 w2 été", ""]
    expected = embedder.embed(texts)
    np.testing.assert_allclose(model.encode(texts), expected, atol=1e-5)
    again = BertTextEmbedder.from_preset(tmp_path / "there")
    np.testing.assert_allclose(again.embed(texts), expected, atol=1e-6)
    assert (again.projection_dim, again.projection_activation) == (7, activation)


def test_prompts(reference, tmp_path):
    from sentence_transformers import SentenceTransformer

    directory = make(reference("bert"), tmp_path / "theirs")
    path = os.path.join(directory, "config_sentence_transformers.json")
    prompts = {"query": "good ", "passage": "film w1 ", "clustering": "w2 ", "empty": ""}
    write(path, {"prompts": prompts, "default_prompt_name": None})
    model = BertTextEmbedder.from_preset(directory)
    theirs = SentenceTransformer(directory, device="cpu")
    names = {"query": "query", "text": "passage", "clustering": "clustering", None: None}
    texts = ["w3 w4 film", "w5"]

    def check(model):
        for role, name in names.items():
            expected = theirs.encode(texts, prompt_name=name)
            np.testing.assert_allclose(model.embed(texts, role=role), expected, atol=1e-5)

    check(model)
    kerasbert.convert(model, tmp_path / "ours", format="kerasbert")
    check(BertTextEmbedder.from_preset(tmp_path / "ours"))
    kerasbert.convert(model, tmp_path / "again")
    check(BertTextEmbedder.from_preset(tmp_path / "again"))
    again = SentenceTransformer(str(tmp_path / "again"), device="cpu")
    expected = theirs.encode(texts, prompt_name="passage")
    np.testing.assert_allclose(again.encode_document(texts), expected, atol=1e-5)
    # Every text gets a prompt if the directory says so, also in `predict`.
    write(path, {"prompts": prompts, "default_prompt_name": "passage"})
    model = BertTextEmbedder.from_preset(directory)
    assert model.preprocessor.role == "text"
    for found in (model.embed(texts), model.predict(texts, verbose=0)):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    # If the pooling excludes prompts (`include_prompt`), we do not use them, with a warning.
    pooling = os.path.join(directory, "1_Pooling", "config.json")
    with open(pooling) as file:
        write(pooling, {**json.load(file), "include_prompt": False})
    with pytest.warns(UserWarning, match="include_prompt=false.*without them") as caught:
        model = BertTextEmbedder.from_preset(directory)
    assert model.preprocessor.prompts == {} and caught[0].filename == __file__


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"modes": ["mean_sqrt_len_tokens"]}, "'mean_sqrt_len_tokens'; expected one of cls"),
        ({"modes": ["lasttoken"], "new": True}, "pooling 'lasttoken'"),
        (
            {"kinds": ["Transformer", "Pooling", "Normalize", "Dense"]},
            "Transformer, Pooling, Normalize, Dense; kerasbert supports",
        ),
        ({"kinds": ["Transformer"]}, "with Transformer; kerasbert supports"),
    ],
)
def test_what_is_refused(reference, tmp_path, settings, message):
    theirs = reference("bert")
    directory = make(theirs, tmp_path, **settings)
    with pytest.raises(ValueError, match=message):
        BertTextEmbedder.from_preset(directory, preprocessor=None)
    assert theirs.compare(BertBackbone.from_preset(directory), lengths=(5,)) <= 1e-5


def test_a_head_of_setfit_is_not_opened(reference, tmp_path):
    directory = make(reference("bert", "Model"), tmp_path / "made", normalize=True)
    with open(os.path.join(directory, "model_head.pkl"), "wb") as file:
        file.write(b"cos\nsystem\n(S'touch opened'\ntR.")
    with pytest.raises(ValueError, match="a pickle, which could run any code .* method='frozen'"):
        BertTextClassifier.from_preset(directory)
    assert BertTextEmbedder.from_preset(directory).normalize
    with pytest.warns(UserWarning, match="New, random weights"):
        BertTextClassifier.from_preset(directory, labels=["a", "b"])
    assert not os.path.exists("opened")


@pytest.mark.parametrize("kind", ["Transformer", "MLMTransformer"])
def test_sparse_encoders(reference, tmp_path, kind):
    """Sparse encoders in the layouts of version 6 and of earlier versions; other tasks read the
    settings that they support.
    """
    theirs = reference("bert", "ForMaskedLM")
    directory = make(theirs, tmp_path / "a", kinds=[kind, "SpladePooling"], settings={})
    pooling = os.path.join(directory, "1_SpladePooling", "config.json")
    write(pooling, {"pooling_strategy": "sum", "activation_function": "relu"})
    embedder = BertSparseEmbedder.from_preset(directory)
    assert (embedder.pooling, embedder.activation) == ("sum", "relu")
    inputs = {name: x for name, x in theirs.inputs(9).items() if name in embedder.input}
    mask = inputs["padding_mask"][:, :, None]
    logits = np.array(BertMaskedLM.from_preset(directory, preprocessor=None)(inputs).detach())
    found = np.array(embedder(inputs).detach())
    np.testing.assert_allclose(found, (np.log1p(logits.clip(0)) * mask).sum(1), atol=1e-5)
    said = kerasbert.convert(directory, tmp_path / "b")
    assert said["model"] == "BertSparseEmbedder" and said["written"] == "BertForMaskedLM"
    again = BertSparseEmbedder.from_preset(tmp_path / "b")
    assert (again.pooling, again.preprocessor.sequence_length) == ("sum", 32)
    with pytest.raises(ValueError, match="SpladePooling; .* Load it with BertSparseEmbedder"):
        BertTextEmbedder.from_preset(directory)
    write(pooling, {"pooling_strategy": "mean"})
    with pytest.raises(ValueError, match="has pooling_strategy='mean'; expected one of max, sum"):
        BertSparseEmbedder.from_preset(directory)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (["Router", "SpladePooling"], "begins with Router, which encodes queries and texts diff"),
        (["SparseStaticEmbedding"], "begins with SparseStaticEmbedding, which encodes quer"),
        (
            ["Transformer", "SpladePooling", "Normalize"],
            " Transformer, SpladePooling, Normalize",
        ),
    ],
)
def test_sparse_encoders_that_are_refused(reference, tmp_path, kinds, message):
    directory = make(reference("bert", "ForMaskedLM"), tmp_path, kinds=kinds)
    with pytest.raises(ValueError, match=message):
        BertSparseEmbedder.from_preset(directory, preprocessor=None)


def test_a_case_that_cannot_be_lowered(tmp_path, reference):
    directory = make(reference("bert"), tmp_path, settings={"do_lower_case": True})
    os.remove(os.path.join(directory, "vocab.txt"))
    os.remove(os.path.join(directory, "tokenizer_config.json"))
    words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "b"]
    write(os.path.join(directory, "vocab.json"), {word: i for i, word in enumerate(words)})
    with open(os.path.join(directory, "merges.txt"), "w") as file:
        file.write("#version: 0.2\n")
    with pytest.raises(ValueError, match="do_lower_case=true, .*RobertaTokenizer.* preprocessor"):
        BertTextEmbedder.from_preset(directory)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ([], "is not a list of modules"),
        ([{"idx": 0, "type": "a.Transformer"}], "is not a list of modules"),
        ({"idx": 0}, "holds a dict, but must hold a list"),
        ([{"idx": 0, "path": "../x", "type": "a.Transformer"}], "leaves its directory"),
        ([{"idx": 0, "path": "/x", "type": "a.Transformer"}], "leaves its directory"),
    ],
)
def test_broken_modules(reference, tmp_path, modules, message):
    directory = make(reference("bert"), tmp_path)
    write(os.path.join(directory, "modules.json"), modules)
    with pytest.raises(ValueError, match=message):
        BertTextEmbedder.from_preset(directory, preprocessor=None)


def test_pooling_that_is_missing(reference, tmp_path):
    directory = make(reference("bert"), tmp_path)
    shutil.rmtree(os.path.join(directory, "1_Pooling"))
    with pytest.raises(ValueError, match="1_Pooling/config.json' is missing; download the whole"):
        BertTextEmbedder.from_preset(directory, preprocessor=None)


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer_args": {"model_max_length": 8}},
        {"processing_kwargs": {"text": {"max_length": 8}}},
        {"config_args": {"num_hidden_layers": 1}},
    ],
)
def test_settings_of_the_encoder_that_are_not_followed(reference, tmp_path, settings):
    (name,) = settings
    directory = make(reference("bert"), tmp_path, settings=settings)
    with pytest.raises(ValueError, match=f"has {name}=.*which kerasbert does not support"):
        BertTextEmbedder.from_preset(directory)


@pytest.mark.parametrize("normalize", [False, True])
def test_truncate_dim(reference, tmp_path, normalize):
    directory = make(reference("bert"), tmp_path / "theirs", normalize=normalize)
    path = os.path.join(directory, "config_sentence_transformers.json")
    write(path, {"truncate_dim": 8})
    texts = ["the film", "a good day"]
    expected = sentence_transformers.SentenceTransformer(directory, device="cpu").encode(texts)
    embedder = BertTextEmbedder.from_preset(directory)
    assert expected.shape == (2, 8)
    assert_close(embedder.embed(texts), expected, atol=1e-5)
    for format in ("huggingface", "kerasbert"):
        kerasbert.convert(directory, tmp_path / format, format=format)
        assert_close(BertTextEmbedder.from_preset(tmp_path / format).embed(texts), expected, 1e-5)
    there = sentence_transformers.SentenceTransformer(str(tmp_path / "huggingface"), device="cpu")
    assert_close(there.encode(texts), expected, atol=1e-5)
    assert BertTextEmbedder.from_preset(directory, truncate_dim=4).embed(texts).shape == (2, 4)
    write(path, {"truncate_dim": 99})  # A larger dimension than the embedding's has no effect.
    assert BertTextEmbedder.from_preset(directory).embed(texts).shape == (2, 36)
    with pytest.raises(ValueError, match="truncate_dim=99 exceeds .* 36"):
        BertTextEmbedder.from_preset(directory, truncate_dim=99)
