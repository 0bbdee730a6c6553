"""The descriptions in `presets/`: well-formed, and consistent with published figures.

`parameters` counts the encoder in the file that the `hf://` handle loads, without heads, with the
pooler if that file has one (`settings` has `"pooler": false` otherwise: the `model.safetensors` of
`FacebookAI/roberta-base` has none, `FacebookAI/xlm-roberta-base`'s has one).

Three independent sources must agree on it: the architecture built from `settings`, a closed form,
and published figures (KerasHub's presets, papers, sizes of the released files).
"""

import inspect
import itertools
import json
import pathlib
import re
from concurrent.futures import ThreadPoolExecutor

import keras
import keras_hub
import pytest

from kerasbert import lineage
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.families import FAMILIES
from kerasbert.text.wordpiece import BertTokenizer
from tests.contracts import RELATIVES

pytestmark = pytest.mark.backends("tensorflow")

FOLDER = pathlib.Path(__file__).parents[2] / "presets"
FILES = sorted(FOLDER.glob("*.json"))
PRESETS = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in FILES}
KEYS = [
    "name",
    "family",
    "description",
    "languages",
    "handle",
    "kaggle_handle",
    "license",
    "paper",
    "parameters",
    "tokenizer",
    "settings",
    "sha256",
]
# Constructor arguments that a description may set.
TOKENIZERS = {
    "BertTokenizer": {"lowercase", "strip_accents", "split_on_cjk"},
    "RobertaTokenizer": set(),
    "ModernBertTokenizer": set(),
    "XLMRobertaTokenizer": set(),
    "AlbertTokenizer": set(),
    "DebertaV3Tokenizer": set(),
    "ByteFallbackTokenizer": set(),
    "GPT2Tokenizer": set(),
    "GPTTokenizer": set(),
    "XLNetTokenizer": set(),
}
# SPDX identifiers; null is a license that the authors did not state.
LICENSES = {"Apache-2.0", "MIT", "CC-BY-SA-4.0", None}
REQUIRED = ["vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim"]
EVERY = pytest.mark.parametrize("name", PRESETS)


def encoder_class(preset):
    classes = lineage.CLASSES.get(preset["family"])
    return classes[None] if classes else BertBackbone


def family_settings(preset):
    """Return the encoder settings of the preset's family."""
    return FAMILIES[preset["family"]].encoder if preset["family"] in FAMILIES else {}


@EVERY
def test_schema(name):
    preset = PRESETS[name]
    assert list(preset) == KEYS
    assert preset["name"] == name
    assert re.fullmatch(r"[a-z0-9_]+", name)
    assert preset["family"] in {*FAMILIES, *lineage.CLASSES}
    assert preset["description"].endswith(".")
    # ISO 639; "mul" is its code for many languages.
    assert preset["languages"]
    assert all(re.fullmatch(r"[a-z]{2}|mul", language) for language in preset["languages"])
    assert re.fullmatch(rf"hf://[\w.-]+/[\w.-]+|package://{name}", preset["handle"])
    kaggle = preset["kaggle_handle"]
    assert kaggle is None or re.fullmatch(rf"kaggle://keras/[\w-]+/keras/{name}/\d+", kaggle)
    assert preset["license"] in LICENSES
    # The papers on GPT and GPT-2 are not on arXiv.
    paper = r"https://(arxiv\.org/abs/\d{4}\.\d{5}|cdn\.openai\.com/[\w/-]+\.pdf)"
    assert re.fullmatch(paper, preset["paper"])
    assert type(preset["parameters"]) is int
    for file, digest in preset["sha256"].items():
        assert re.fullmatch(r"[\w.-]+", file)
        assert re.fullmatch(r"[0-9a-f]{64}", digest)


@EVERY
def test_tokenizer(name):
    tokenizer = PRESETS[name]["tokenizer"]
    if tokenizer is None:  # No tokenizer here reads the vocabulary of the checkpoint.
        assert "No tokenizer here reads its vocabulary" in PRESETS[name]["description"]
        return
    arguments = set(tokenizer) - {"class"}
    assert arguments <= TOKENIZERS[tokenizer["class"]]
    assert ("lowercase" in arguments) == (tokenizer["class"] == "BertTokenizer")
    assert all(type(tokenizer[argument]) is bool for argument in arguments)


# Families without a preset.
UNLISTED = {"nomic_bert", "gte", "mpnet", "jina_bert", *RELATIVES}


def test_tokenizer_arguments_exist():
    assert TOKENIZERS["BertTokenizer"] <= set(inspect.signature(BertTokenizer.__init__).parameters)
    # `ByteFallbackTokenizer` is not any family's default, as files of a checkpoint select it, and
    # `FAMILIES` does not have `lineage`.
    usual = {family.tokenizer for name, family in FAMILIES.items() if name not in UNLISTED}
    assert usual == set(TOKENIZERS) - {"ByteFallbackTokenizer", "XLNetTokenizer"}


@EVERY
def test_settings_are_what_differs_from_the_family(name):
    preset = PRESETS[name]
    signature = inspect.signature(encoder_class(preset).__init__).parameters
    given = {
        key: parameter.default
        for key, parameter in signature.items()
        if parameter.default is not inspect.Parameter.empty
    }
    given |= family_settings(preset)
    assert list(preset["settings"])[:5] == REQUIRED
    for key, value in preset["settings"].items():
        assert key in signature, key
        assert key in REQUIRED or value != given[key], f"{key} repeats the family's value"


def test_no_other_files_and_no_checkpoint_twice():
    handles = [preset["handle"] for preset in PRESETS.values()]
    assert len(set(handles)) == len(handles)
    kaggle = [preset["kaggle_handle"] for preset in PRESETS.values() if preset["kaggle_handle"]]
    assert len(set(kaggle)) == len(kaggle)


def test_the_published_checkpoints_are_there():
    for name in (
        "bert_tiny_en_uncased bert_mini_en_uncased bert_small_en_uncased bert_medium_en_uncased "
        "bert_base_en_uncased bert_base_en bert_large_en_uncased bert_large_en "
        "bert_large_wwm_en_uncased bert_large_wwm_en bert_base_multi bert_base_zh"
    ).split():
        assert name in PRESETS
    named = {preset["family"] for preset in PRESETS.values()}
    assert named - set(lineage.CLASSES) == set(FAMILIES) - UNLISTED
    for language in ("ko", "ja"):
        assert sum(language in preset["languages"] for preset in PRESETS.values()) >= 10


# --- parameters ---


def pooler(preset):
    """Return whether the encoder has a pooler."""
    family = family_settings(preset)
    return preset["settings"].get("pooler", family.get("pooler", True))


def pooler_parameters(preset):
    width = preset["settings"]["hidden_dim"]
    return width * width + width


def count_without_weights(preset):
    """Build the encoder from shapes only: in a stateless scope no variable gets a value."""

    def build():
        with keras.StatelessScope(initialize_variables=False):
            if preset["family"] in FAMILIES:
                backbone = BertBackbone.from_family(preset["family"], **preset["settings"])
            else:
                backbone = encoder_class(preset)(**preset["settings"])
            return backbone.count_params()

    # Keras keeps a list of variables without values per thread. This thread takes its own list with
    # it; otherwise the next scope would allocate all of them.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(build).result()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if number % 4 else ())
        for number, name in enumerate(PRESETS)
    ],
)
def test_built_architecture_has_the_count(name):
    assert count_without_weights(PRESETS[name]) == PRESETS[name]["parameters"]


def closed_form(preset):
    """Return the number of encoder parameters by a formula from the papers."""
    settings = preset["settings"]
    vocabulary, layers, _, width, feed_forward = (settings[key] for key in REQUIRED)
    if preset["family"] in ("modernbert", "modernbert_decoder"):
        # There are no biases. A layer has qkv and output, gate, value and output, and two norms;
        # layer 0 has one norm. There is one more norm after the embeddings and one at the end.
        layer = 4 * width * width + 3 * width * feed_forward + 2 * width
        return vocabulary * width + layers * layer - width + 2 * width
    if preset["family"] in ("gpt", "gpt2"):
        # Two tables, and layers with biases; GPT-2 also has a norm at the end.
        layer = 4 * (width * width + width) + 2 * width * feed_forward + feed_forward + 5 * width
        is_second = preset["family"] == "gpt2"
        rows = vocabulary + (1024 if is_second else 512)
        return rows * width + layers * layer + 2 * width * is_second
    if preset["family"] == "deberta_v3":
        # Tokens and twice 256 buckets of distances, each with a norm; layers with biases.
        layer = 4 * (width * width + width) + 2 * width * feed_forward + feed_forward + 5 * width
        return (vocabulary + 2 * 256 + 4) * width + layers * layer
    if preset["family"] in lineage.CLASSES:
        # Five matrices per attention, with the one for distances. Both have two biases on scores.
        biases = 2 * width + feed_forward + width + 4 * width
        layer = 5 * width * width + 2 * width * feed_forward + biases
        if preset["family"] == "xlnet":  # The mask's embedding, and a bias and two segments.
            return vocabulary * width + width + layers * (layer + 3 * width)
        # Rarer words have narrower embeddings, each with a projection.
        bounds = [0, *settings["cutoffs"], vocabulary]
        widths = [width // settings["division"] ** i for i in range(len(bounds) - 1)]
        rows = [(b - a) * d + d * width for a, b, d in zip(bounds, bounds[1:], widths)]
        return sum(rows) + layers * layer
    one_segment = preset["family"] in ("roberta", "xlm_roberta")
    rows = vocabulary
    rows += settings.get("max_sequence_length", 512)
    rows += settings.get("position_offset", 2 if one_segment else 0)
    rows += settings.get(
        "num_segments", 1 if one_segment else 0 if preset["family"] == "distilbert" else 2
    )
    embedding_width = settings.get("embedding_dim", 128 if preset["family"] == "albert" else None)
    total = (rows + 2) * (embedding_width or width)  # + 2: gain and bias of the norm
    if embedding_width:
        total += embedding_width * width + width
    layer = 4 * (width * width + width)  # query, key, value, output
    layer += 2 * width * feed_forward + feed_forward + width
    layer += 4 * width  # two norms
    total += layer * (1 if preset["family"] == "albert" else layers)
    return total + (pooler_parameters(preset) if pooler(preset) else 0)


@EVERY
def test_closed_form(name):
    assert closed_form(PRESETS[name]) == PRESETS[name]["parameters"]


def keras_hub_presets():
    found = {}
    for backbone in (
        "Bert",
        "Roberta",
        "XLMRoberta",
        "DistilBert",
        "Electra",
        "Albert",
        "GPT2",
        "DebertaV3",
    ):
        found |= getattr(keras_hub.models, f"{backbone}Backbone").presets
    return {name: found[name] for name in PRESETS if name in found}


@pytest.mark.parametrize("name, published", keras_hub_presets().items())
def test_keras_hub_publishes_the_same_count(name, published):
    preset = PRESETS[name]
    width = preset["settings"]["hidden_dim"]
    expected = preset["parameters"]
    if preset["family"] in ("roberta", "xlm_roberta"):
        # KerasHub drops the two rows before the first position, the segment row, and the pooler.
        expected -= 3 * width + (pooler_parameters(preset) if pooler(preset) else 0)
    if preset["family"] == "electra":
        # KerasHub adds a pooler, which no ELECTRA checkpoint has.
        expected += pooler_parameters(preset)
    assert published["metadata"]["params"] == expected
    assert published["kaggle_handle"] == preset["kaggle_handle"]


def test_every_kaggle_handle_is_one_of_keras_hub():
    named = {name for name, preset in PRESETS.items() if preset["kaggle_handle"]}
    assert named == set(keras_hub_presets())


def head_parameters(preset):
    """Return the parameters of the released file's head, without NSP's few thousand."""
    settings = preset["settings"]
    width = settings["hidden_dim"]
    if preset["family"] == "electra":  # dense, activation, dense to 1
        return width * width + width + width + 1
    if preset["family"] in ("gpt", "gpt2", "deberta_v3"):  # The projection is the token embedding.
        return 0
    if preset["family"] == "modernbert":  # dense and norm without bias, output bias
        return width * width + width + settings["vocabulary_size"]
    # dense, norm, output bias; the projection is the token embedding
    embedding = 128 if preset["family"] == "albert" else width
    return width * embedding + 3 * embedding + settings["vocabulary_size"]


def test_the_24_miniatures():
    found = set()
    for preset in PRESETS.values():
        match = re.fullmatch(r"hf://google/bert_uncased_L-(\d+)_H-(\d+)_A-(\d+)", preset["handle"])
        if match:
            layers, width, heads = map(int, match.groups())
            settings = preset["settings"]
            assert (settings["num_layers"], settings["hidden_dim"]) == (layers, width)
            assert settings["num_heads"] == heads == width // 64
            assert settings["intermediate_dim"] == 4 * width
            found.add((layers, width))
    assert found == set(itertools.product((2, 4, 6, 8, 10, 12), (128, 256, 512, 768)))


# Sizes of the released files (4 bytes per parameter, encoder and head), and totals from model
# cards. A Base pooler takes 2.4 MB, so the sizes show which files have one.
RELEASED = {
    "bert_mini_en_uncased": "11.3 M",
    "roberta_base_en": "499 MB",
    "distil_roberta_base_en": "331 MB",
    "xlm_roberta_base_multi": "1.12 GB",
    "xlm_roberta_large_multi": "2.24 GB",
    "bert_roberta_wwm_ext_base_zh": "412 MB",
    "bert_roberta_wwm_ext_large_zh": "1.31 GB",
    "klue_bert_base_ko": "445 MB",
    "klue_roberta_small_ko": "273 MB",
    "klue_roberta_base_ko": "443 MB",
    "klue_roberta_large_ko": "1.35 GB",
    "kykim_bert_base_ko": "476 MB",
    "kykim_albert_base_ko": "53.3 MB",
    "koelectra_base_v3_discriminator_ko": "452 MB",
    "kcbert_base_ko": "438 MB",
    "kcbert_large_ko": "335 M",
    "kr_bert_char16424_ko": "99.265 M",
    "waseda_roberta_base_ja": "443 MB",
    "waseda_roberta_large_ja": "1.35 GB",
    "rinna_roberta_base_ja": "443 MB",
    "modernbert_30m_ja": "36.9 M",
    "modernbert_70m_ja": "70.3 M",
    # Papers round their numbers; GPT-2's own blog post says 124M, 355M, 774M and 1.5B.
    "gpt2_medium_en": "355 M",
    "gpt2_large_en": "774 M",
}


@pytest.mark.parametrize("name, published", RELEASED.items())
def test_released_size(name, published):
    number, unit = published.split()
    scale = {"M": 1e6, "MB": 1e6 / 4, "GB": 1e9 / 4}[unit]
    total = PRESETS[name]["parameters"] + head_parameters(PRESETS[name])
    half_a_digit = 0.5 * 10 ** -len(number.partition(".")[2])
    header = 0.05e6 / 4  # size of the file's header, in parameters
    assert abs(total - float(number) * scale) <= half_a_digit * scale + header


# From ModernBERT's paper, Ettin's table and the READMEs of mmBERT and Ruri.
MILLIONS = {
    "modernbert_base_en": 149,
    "modernbert_large_en": 395,
    "ettin_17m_en": 17,
    "ettin_decoder_32m_en": 32,
    "ettin_68m_en": 68,
    "mmbert_small_multi": 140,
    "mmbert_base_multi": 307,
    "ruri_v3_30m_ja": 37,
    "ruri_v3_70m_ja": 70,
    "ruri_v3_130m_ja": 132,
    "ruri_v3_310m_ja": 315,
}


@pytest.mark.parametrize("name, millions", MILLIONS.items())
def test_published_millions(name, millions):
    assert round(PRESETS[name]["parameters"] / 1e6) == millions
