"""ColBERT checkpoints of PyLate and of Stanford, compared with sentence-transformers' own reader.

Both are written by hand, as PyLate 1.6 and colbert-ai 0.2 write them.
"""

import json
import shutil
import string

import numpy as np
import pytest

import kerasbert
from kerasbert.models import BertBackbone, BertTextEmbedder, BertTextEmbedderPreprocessor
from tests.peers import safetensors_torch, sentence_transformers, torch, transformers

pytestmark = [pytest.mark.peers]

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] [unused0] [unused1] good bad film a the was fun it".split()
# The checkpoints add two tokens.
WORDS += [*string.punctuation, *(f"w{i}" for i in range(97 - len(WORDS) - 32))]
QUERIES = ["good film?", "the film was " * 9, "bad", ""]
TEXTS = ["the good film, was fun!", "it was w1", "a, film. a (bad) film " * 5, ""]
METADATA = {"query_maxlen": 10, "doc_maxlen": 20, "dim": 6, "attend_to_mask_tokens": False}
SETTINGS = {
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": 10,
    "document_length": 18,
    "attend_to_expansion_tokens": False,
    "skiplist_words": [",", "."],
    "do_query_expansion": True,
}


def write(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def make_stanford(theirs, target, **metadata):
    shutil.copytree(theirs.directory, target)
    (target / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    transformers.BertTokenizer(str(target / "vocab.txt")).save_pretrained(target)
    generator = torch.Generator().manual_seed(0)
    weights = {f"bert.{name}": x.contiguous() for name, x in theirs.model.state_dict().items()}
    weights["linear.weight"] = torch.randn(6, 36, generator=generator)
    safetensors_torch.save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    write(target / "config.json", {**config, "architectures": ["HF_ColBERT"]})
    tokens = {"query_token_id": "[unused0]", "doc_token_id": "[unused1]"}
    write(target / "artifact.metadata", {**tokens, **METADATA, **metadata})
    return str(target)


def make_pylate(theirs, target, dense=None, kinds=("Transformer", "Dense"), **settings):
    shutil.copytree(theirs.directory, target)
    (target / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    tokenizer = transformers.BertTokenizer(str(target / "vocab.txt"))
    tokenizer.add_tokens(["[Q] ", "[D] "])
    tokenizer.save_pretrained(target)
    types = {"Transformer": "sentence_transformers.models.Transformer"}
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": types.get(kind, f"pylate.models.{kind}.{kind}"),
        }
        for i, kind in enumerate(kinds)
    ]
    (target / "modules.json").write_text(json.dumps(modules))
    settings = {"model_type": "ColBERT", "prompts": {}, **SETTINGS, **settings}
    write(target / "config_sentence_transformers.json", settings)
    config = {
        "in_features": 36,
        "out_features": 6,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
        "use_residual": False,
    }
    write(target / "1_Dense" / "config.json", {**config, **(dense or {})})
    generator = torch.Generator().manual_seed(0)
    weights = {"linear.weight": torch.randn(6, 36, generator=generator)}
    safetensors_torch.save_file(weights, target / "1_Dense" / "model.safetensors")
    return str(target)


def compare(ours, directory):
    """Return the largest difference of the vectors by role, and check their number."""
    theirs = sentence_transformers.MultiVectorEncoder(directory, device="cpu")
    worst = 0.0
    for encode, texts, role in (
        (theirs.encode_query, QUERIES, "query"),
        (theirs.encode_document, TEXTS, "text"),
    ):
        expected, found = encode(texts), ours.embed(texts, role=role)
        assert [len(row) for row in expected] == [len(row) for row in found]
        for row, own in zip(expected, found, strict=True):
            worst = max(worst, np.abs(np.asarray(row) - own).max())
    return worst


@pytest.mark.parametrize("make", [make_stanford, make_pylate])
def test_vectors(reference, tmp_path, make):
    directory = make(reference("bert"), tmp_path / "there")
    embedder = BertTextEmbedder.from_preset(directory)
    assert compare(embedder, directory) <= 1e-5
    assert (embedder.pooling, embedder.projection_dim, embedder.normalize) == ("tokens", 6, True)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("make", [make_stanford, make_pylate])
def test_written_for_pylate(reference, tmp_path, make):
    theirs = reference("bert")
    directory = make(theirs, tmp_path / "there")
    embedder = BertTextEmbedder.from_preset(directory)
    with pytest.warns(UserWarning, match="has a pooler, but this encoder has none"):
        said = kerasbert.convert(embedder, tmp_path / "again")
    assert {"1_Dense/model.safetensors", "config_sentence_transformers.json"} <= set(said["files"])
    again = BertTextEmbedder.from_preset(tmp_path / "again")
    assert compare(again, str(tmp_path / "again")) <= 1e-5
    names = embedder.preprocessor.settings
    assert all(getattr(again.preprocessor, x) == getattr(embedder.preprocessor, x) for x in names)
    np.testing.assert_allclose(
        again.embed(TEXTS, role="text")[0], embedder.embed(TEXTS, role="text")[0], atol=1e-6
    )
    # The other classes load the encoder.
    assert theirs.compare(BertBackbone.from_preset(directory), lengths=(5,)) <= 1e-5


@pytest.mark.backends("torch")
def test_settings(reference, tmp_path):
    theirs = reference("bert")
    directory = make_pylate(
        theirs,
        tmp_path / "a",
        query_prefix="",
        document_length=32,
        do_query_expansion=False,
        skiplist_words=[],
    )
    embedder = BertTextEmbedder.from_preset(directory)
    read = embedder.preprocessor
    assert (read.query_token, read.sequence_length, read.expand_queries) == ("", 32, False)
    assert compare(embedder, directory) <= 1e-5
    # The maximum is the encoder's 32 positions.
    directory = make_pylate(theirs, tmp_path / "long", document_length=999)
    assert BertTextEmbedderPreprocessor.from_preset(directory).sequence_length == 32
    directory = make_pylate(theirs, tmp_path / "b", attend_to_expansion_tokens=True)
    assert compare(BertTextEmbedder.from_preset(directory), directory) <= 1e-5
    assert BertTextEmbedder.from_preset(directory, query_length=7).preprocessor.query_length == 7
    directory = make_stanford(theirs, tmp_path / "c", mask_punctuation=False)
    assert BertTextEmbedder.from_preset(directory).preprocessor.skiplist_words == []


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dense": {"use_residual": True}}, "use_residual=true, which kerasbert does not support"),
        ({"dense": {"activation_function": "x.Tanh"}}, "activation_function='x.Tanh'; expected"),
        ({"dense": {"out_features": 7}}, "do not fit its configuration"),
        (
            {"kinds": ("Transformer", "Dense", "Dense")},
            "computes embeddings with Transformer, Dense, D",
        ),
        ({"query_length": "x"}, "query_length='x' in .* must be a whole number"),
        ({"query_prefix": "[X]"}, "query_token='.X.' is not in the vocabulary"),
    ],
)
def test_what_is_refused(reference, tmp_path, settings, message):
    directory = make_pylate(reference("bert"), tmp_path / "there", **settings)
    with pytest.raises(ValueError, match=message):
        BertTextEmbedder.from_preset(directory)
