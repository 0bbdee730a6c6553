"""Unknown keywords raise an error with the closest name; Keras' own still work."""

import functools

import keras
import pytest

import kerasbert
from kerasbert import layers, models, optimizers
from kerasbert.layers.adaptive import AdaptiveEmbedding
from kerasbert.layers.relative_attention import RelativeAttention, RelativeContext
from kerasbert.layers.token_layers import TokenDropout, TokenNorm
from kerasbert.lineage.xlnet.preprocessor import XLNetTextClassifierPreprocessor
from tests.contracts import SETTINGS, bert_tokenizer, tiny_backbone

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] good bad".split()
TOKENS += [f"word{i}" for i in range(SETTINGS["vocabulary_size"] - len(TOKENS))]

TASKS = {
    models.BertMaskedLM: {},
    models.BertMultipleChoice: {},
    models.BertNextSentencePredictor: {},
    models.BertPretrainer: {},
    models.BertQuestionAnswering: {},
    models.BertReplacedTokenDetector: {},
    models.BertReranker: {},
    models.BertSparseEmbedder: {},
    models.BertStructuralProbe: {},
    models.BertTextClassifier: {"num_classes": 2},
    models.BertTextEmbedder: {},
    models.BertTextRegressor: {},
    models.BertTokenClassifier: {"num_classes": 2},
    models.ElectraPretrainer: {},
}
LAYERS = {
    AdaptiveEmbedding: {"vocabulary_size": 4, "hidden_dim": 4},
    RelativeAttention: {"num_heads": 2},
    RelativeContext: {},
    layers.AlibiBias: {"num_heads": 2},
    layers.AttentionMask: {},
    layers.BiLSTM: {"units": 2},
    layers.CrossAttention: {"num_heads": 2},
    layers.DisentangledAttention: {"num_heads": 2},
    layers.DistanceEmbedding: {"max_distance": 4},
    layers.MaskedLMHead: {"token_embedding": keras.layers.ReversibleEmbedding(4, 2)},
    layers.Pooling: {},
    layers.PositionEmbedding: {"sequence_length": 4},
    layers.RelativePositionBias: {"num_heads": 2},
    layers.SelfAttention: {"num_heads": 2},
    layers.SinusoidalPositions: {"sequence_length": 4},
    layers.StructuralProbe: {},
    layers.TokenConvolution: {"kernel_size": 3},
    layers.TokenDense: {"units": 2},
    TokenDropout: {"rate": 0.1},
    TokenNorm: {},
    layers.TokenRMSNorm: {},
    layers.TokenReplacement: {},
    layers.TransformerBlock: {"num_heads": 2, "intermediate_dim": 4},
    layers.TransformerDecoderBlock: {"num_heads": 2, "intermediate_dim": 4},
    layers.WordMean: {},
    layers.WordWeights: {"token_embedding": keras.layers.ReversibleEmbedding(4, 2)},
}


@functools.cache
def backbone():
    return tiny_backbone()


def tasks():
    one = models.BertTextRegressor(backbone(), compile=False)
    yield from ((cls, {"backbone": backbone(), **settings}) for cls, settings in TASKS.items())
    yield models.BertMultiTask, {"tasks": {"one": one}}
    yield models.BertCausalLM, {"backbone": tiny_backbone("gpt2")}
    yield (
        models.BertDistiller,
        {"student": one, "teacher": models.BertTextRegressor(tiny_backbone())},
    )


def others():
    yield models.BertBackbone, SETTINGS
    for name in dir(models):
        if name.endswith("Preprocessor"):
            yield getattr(models, name), {"tokenizer": bert_tokenizer(TOKENS)}
    yield models.BertTokenizer, {"vocabulary": TOKENS}
    yield from LAYERS.items()
    yield from ((cls, {}) for cls in (optimizers.AdamW, optimizers.Lamb, optimizers.Muon))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tasks", "others"])
def test_unknown_keywords(kind):
    for cls, settings in {"tasks": tasks, "others": others}[kind]():
        for wrong, message in (("namex", "did you mean name"), ("xyzzy_42", "it takes .*name")):
            with pytest.raises(
                ValueError, match=f"{cls.__name__} has no argument '{wrong}'.*{message}"
            ):
                cls(**settings, **{wrong: "x"})
        assert cls(**settings, name="given").name == "given"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: models.BertTextEmbedder(backbone(), poling_mode="cls"),
            "BertTextEmbedder has no argument 'poling_mode'; did you mean pooling_mode?",
        ),
        (
            lambda: models.BertTextClassifier(backbone(), num_clases=2, num_classes=2),
            "did you mean num_classes?",
        ),
        (
            lambda: models.BertTextClassifier(backbone(), 2, sequence_length=128),
            "'sequence_length', which is its preprocessor's; pass it to BertTextClassifierPreproc",
        ),
        (
            lambda: models.BertTextRegressor(backbone(), dtype="bfloat16"),
            "'dtype', which is its backbone's; pass it to BertBackbone",
        ),
        (
            lambda: models.BertTextClassifier(backbone(), 2, normalize="NFC"),
            "pass it to the preprocessor: preprocessor.normalize = 'NFC'",
        ),
        (lambda: models.BertTextClassifier(backbone(), 2, normalize=3), "true or false"),
        (
            lambda: models.BertTokenClassifier(backbone(), 2, special_tokens_in_strings=True),
            "'special_tokens_in_strings', which is its tokenizer's; pass it to BertTokenizer.",
        ),
        (
            lambda: models.BertRerankerPreprocessor(bert_tokenizer(TOKENS), lowercase=True),
            "'lowercase', which is its tokenizer's; pass it to BertTokenizer.",
        ),
        (
            lambda: models.BertTextRegressor(backbone(), new_head=True),
            "'new_head', which is one of from_preset: BertTextRegressor.from_preset(preset, ...)",
        ),
        (lambda: models.BertQuestionAnswering(backbone(), pooling="mean"), "argument 'pooling'"),
        (lambda: models.BertBackbone(**SETTINGS, num_layer=3), "did you mean num_layers?"),
        (lambda: optimizers.AdamW(beta1=0.9), "did you mean beta_1?"),
        (lambda: layers.TokenDense(2, activaton="relu"), "did you mean activation?"),
    ],
)
def test_what_may_have_been_meant(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert message in str(error.value)


def test_what_keras_takes():
    task = models.BertTextClassifier(backbone(), 2, trainable=False, compile=False)
    assert not task.trainable and not task.compiled
    backbone().trainable = True
    assert models.BertBackbone(**SETTINGS, dtype="bfloat16").compute_dtype == "bfloat16"
    assert layers.TokenDense(2, use_bias=False, dtype="float16", trainable=False).use_bias is False
    optimizer = optimizers.AdamW(1e-3, gradient_accumulation_steps=2, use_ema=True)
    assert optimizer.gradient_accumulation_steps == 2
    dense = keras.layers.deserialize(keras.layers.serialize(layers.TokenDense(2, name="x")))
    assert dense.name == "x"


def test_a_subclass_takes_its_own():
    class Mine(models.BertTextClassifier):
        def __init__(self, *args, **kwargs):
            self.extra = kwargs.pop("extra", None)
            super().__init__(*args, **kwargs)

    assert Mine(backbone(), 2, extra=3).extra == 3
    with pytest.raises(ValueError, match="Mine has no argument 'extr'"):
        Mine(backbone(), 2, extr=3)


def test_every_module_is_there_after_the_import():
    for name in kerasbert.__all__:
        assert getattr(kerasbert, name) is not None
    assert kerasbert.distribution.layout_map and kerasbert.losses.TokenCrossEntropy
    assert {"data", "presets", "preprocessors"} <= set(kerasbert.__all__)


def test_names_of_presets():
    """KerasHub users list them on any class."""
    lineage = kerasbert.lineage
    others = {*lineage.XLNetBackbone.presets, *lineage.TransformerXLLM.presets}
    assert set(models.BertBackbone.presets) == set(kerasbert.builtin_presets()) - others
    assert "xlnet_base_en_cased" in lineage.XLNetTextClassifier.presets and len(others) == 3
    assert "xlnet_base_en_cased" in XLNetTextClassifierPreprocessor.presets
    assert lineage.ElmoBackbone.presets == lineage.RecurrentSeq2SeqLM.presets == {}
    assert "bert_base_en_uncased" in models.BertTextClassifier.presets
    assert "bert_base_en" in models.BertTextClassifierPreprocessor.presets
    assert "roberta_base_en" in models.RobertaTokenizer.presets
    assert "roberta_base_en" not in models.BertTokenizer.presets
