"""Fields of transformers' configurations with other values: the same outputs, or an error.

A field that changes transformers' outputs must change ours in the same way, also after writing.
"""

import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest

import kerasbert
from kerasbert.models import (
    BertBackbone,
    BertMaskedLM,
    BertMultipleChoice,
    BertNextSentencePredictor,
    BertPretrainer,
    BertQuestionAnswering,
    BertTextClassifier,
    BertTokenClassifier,
)
from tests.conftest import _CLASSES, TINY
from tests.contracts import ENCODERS
from tests.peers import torch, transformers

pytestmark = [
    pytest.mark.peers,
    pytest.mark.slow,
    pytest.mark.backends("torch"),  # PyTorch compiles nothing.
    # Both transformers and `convert` warn about the weights that they drop.
    pytest.mark.filterwarnings("ignore"),
]

# Suffix of the transformers class, our class, and its settings there.
HEADS = {
    "": (BertBackbone, {}),
    "ForSequenceClassification": (BertTextClassifier, {"num_labels": 3}),
    "ForTokenClassification": (BertTokenClassifier, {"num_labels": 3}),
    "ForQuestionAnswering": (BertQuestionAnswering, {}),
    "ForMultipleChoice": (BertMultipleChoice, {}),
    "ForMaskedLM": (BertMaskedLM, {}),
    "ForPreTraining": (BertPretrainer, {}),
    "ForNextSentencePrediction": (BertNextSentencePredictor, {}),
}
# Heads of each family; families that are not listed have all heads except the last two.
OF_FAMILY = {
    "bert": tuple(HEADS),
    "albert": tuple(HEADS)[:-1],
    "deberta_v3": tuple(HEADS)[:-3],
    # Longformer's other heads need separators; see tests/families/test_longformer.py.
    **dict.fromkeys(("nomic_bert", "gte", "longformer"), (*tuple(HEADS)[:3], "ForMaskedLM")),
}

# Fields that do not affect outputs, with the reason. The tests change all others.
IGNORED = {
    "transformers_version": "a record",
    "architectures": "a record; convert reads it to choose the head, see test_converter",
    "output_hidden_states": "what a call returns beside its outputs",
    "return_dict": "the type of what a call returns",
    "dtype": "what transformers computes in; ours is the argument dtype",
    "label2id": "the reverse of id2label",
    "use_cache": "of decoders, which are refused",
    "is_encoder_decoder": "of decoders, which are refused",
    "eos_token_id": "of generation, and of tokenizers",
    "bos_token_id": "of generation, and of tokenizers",
    "cls_token_id": "of tokenizers",
    "sep_token_id": "of tokenizers",
    "initializer_range": "of new weights",
    "initializer_cutoff_factor": "of new weights",
    "sinusoidal_pos_embds": "of new weights; the table is stored",
    "deterministic_flash_attn": "of a kernel for GPUs",
    "legacy": "of the masked-LM head",
    "sparse_prediction": "of the loss: logits where labels are given",
    "sparse_pred_ignore_index": "of the loss",
    "onnx_export": "how transformers computes the same outputs",
}
# Other values of each field; fields that are not listed get one by type.
VALUES = {
    "hidden_act": ["quick_gelu", "laplace"],  # test_huggingface tests other activations.
    "summary_type": ["last", "mean", "cls_index"],
    "summary_activation": ["relu", "tanh", "quick_gelu", "leaky_relu"],
    "classifier_pooling": ["mean"],
    "layer_types": [
        ["full_attention"] * 4,
        ["full_attention", "sliding_attention"] * 2,
        ["sliding_attention", "full_attention"] * 2,
    ],
    "rope_parameters": [
        {
            "full_attention": {"rope_type": "default", "rope_theta": 50.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
        },
        {
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
        },
    ],
    "pad_token_id": [5],
    "problem_type": ["multi_label_classification"],
    "id2label": [{"0": "a", "1": "b", "2": "c"}],
    "num_hidden_layers": [3],
    "num_attention_heads": [4],
    "num_hidden_groups": [2],
    "local_attention": [7],
    "attention_window": [[8, 4], 6, 5],
    "chunk_size_feed_forward": [1],
    "pos_att_type": [["p2c"]],
    "max_relative_positions": [20],
    "pooler_hidden_act": ["relu", "leaky_relu"],
}
# Fields that heads read; all others belong to the encoder, and the encoder's rows test them.
OF_HEADS = (
    "classifier",
    "summary",
    "pooler",
    "cls_dropout",
    "decoder",
    "tie_word",
    "hidden_act",
    "activation",
    "problem_type",
    "id2label",
    "num_labels",
    "norm_",
    "layer_norm",
    "pad_token_id",
    "hidden_size",
    "embedding_size",
)
# For families whose layers are all alike.
ROPES = [
    {"rope_type": "default", "rope_theta": 50.0},
    {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0},
    {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 50.0},
]
VALUES["hidden_activation"] = VALUES["activation"] = VALUES["hidden_act"]
VALUES["classifier_activation"] = VALUES["hidden_act"]
VALUES["n_heads"], VALUES["n_layers"] = VALUES["num_attention_heads"], VALUES["num_hidden_layers"]
# Fields that a file may have but a class does not declare.
MORE = {
    "position_embedding_type": ["relative_key"],
    "summary_first_dropout": [0.3],
    "summary_proj_to_labels": [True],
    "head_dim": [6],
    "position_buckets": [-1],
    "share_att_key": [False],
    "norm_rel_ebd": ["none"],
    "conv_kernel_size": [3],
    "cls_dropout": [0.3],
    "global_attn_every_n_layers": [2],
    "global_rope_theta": [50.0],
    "local_rope_theta": [20.0],
    "rope_scaling": [{"rope_type": "linear", "factor": 2.0}],
    "hidden_size": [18],
    "num_labels": [2],
}


def others(value):
    """Return other values of a field's type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [0.3 if value < 0.2 else value / 2]
    return [0.3]  # `None` for a dropout rate.


def fields(config, head):
    """Return pairs of a field's name and another value."""
    names = [field.name for field in dataclasses.fields(config)]
    for name in dict.fromkeys([*names, *MORE]):
        if name in IGNORED or head and not any(part in name for part in OF_HEADS):
            continue
        now = getattr(config, name, None)
        if name == "rope_parameters" and "layer_types" not in names:
            yield from ((name, value) for value in ROPES)
            continue
        for value in VALUES.get(name, MORE.get(name) if name not in names else None) or others(now):
            if value != now:
                yield name, value


def inputs(config):
    random = np.random.default_rng(0)
    token_ids = random.integers(6, 99, (3, 11))  # No padding token inside the text.
    mask = np.ones((3, 11), "int32")
    mask[1, 7:] = 0
    token_ids[mask == 0] = config.pad_token_id
    found = {"token_ids": token_ids.astype("int32"), "padding_mask": mask}
    if getattr(config, "type_vocab_size", 0):
        segments = random.integers(0, config.type_vocab_size, (3, 11))
        found["segment_ids"] = segments.astype("int32")
    return found


def their_outputs(model, features):
    names = {"token_ids": "input_ids", "padding_mask": "attention_mask"}
    arguments = {
        names.get(name, "token_type_ids"): torch.tensor(x).long() for name, x in features.items()
    }
    if type(model).__name__.endswith("ForMultipleChoice"):
        arguments = {name: x[None] for name, x in arguments.items()}
    with torch.no_grad():
        outputs = model(**arguments, return_dict=True)
    names = ("last_hidden_state", "logits", "start_logits", "end_logits", "prediction_logits")
    names += ("seq_relationship_logits", "sop_logits", "pooler_output")
    found = [outputs[name].numpy() for name in names if outputs.get(name) is not None]
    return [kept(x, features) for x in found]


def our_outputs(model, features):
    names = model.input
    features = {name: x for name, x in features.items() if name in names}
    if isinstance(model, BertMultipleChoice):
        features = {name: x[None] for name, x in features.items()}
    outputs = model(features)
    if isinstance(outputs, dict):
        order = ("sequence_output", "start_logits", "end_logits", "mlm_logits", "nsp_logits")
        outputs = [outputs[name] for name in (*order, "pooled_output") if name in outputs]
    else:
        outputs = [outputs]
    mask = {"padding_mask": np.reshape(features["padding_mask"], (3, 11))}
    return [kept(keras.ops.convert_to_numpy(x), mask) for x in outputs]


def kept(x, features):
    """Return outputs per token, without padding."""
    mask = features["padding_mask"]
    return x[mask == 1] if x.shape[:2] == mask.shape else x


def load(cls, directory):
    arguments = {} if cls is BertBackbone else {"preprocessor": None}
    return cls.from_preset(str(directory), **arguments)


def architecture(family, head):
    return getattr(transformers, _CLASSES[family] + (head or "Model"), None)


def gap(ours, theirs):
    assert [x.shape for x in ours] == [x.shape for x in theirs]
    return max(np.abs(one - other).max() for one, other in zip(ours, theirs, strict=True))


def cases():
    for family in [*ENCODERS, "gte", "longformer"]:
        for head in HEADS:
            if head in OF_FAMILY.get(family, tuple(HEADS)[:-2]):
                yield pytest.param(family, head, id=f"{family}-{head or 'Model'}")


@pytest.mark.parametrize("family, head", list(cases()))
def test_every_field(tmp_path, family, head):
    cls, its = HEADS[head]
    theirs = architecture(family, head)
    torch.manual_seed(0)
    # One layer is enough, because other rows test the layers.
    few = {key: 1 for key in TINY[family] if head and "layers" in key}
    config = theirs.config_class(**{**TINY[family], **its, **few})
    model = theirs(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.15 * torch.randn_like(weight))
    model.save_pretrained(tmp_path / "base")
    stored = json.loads((tmp_path / "base" / "config.json").read_text())
    base = their_outputs(model, inputs(config))
    equal, refused, broken = [], [], []
    for name, value in fields(config, head):
        directory = tmp_path / "other"
        shutil.copytree(tmp_path / "base", directory)
        (directory / "config.json").write_text(json.dumps({**stored, name: value}))
        if name == "tie_word_embeddings" and model.get_output_embeddings() is not None:
            untie(theirs, model, directory)
        what = f"{name}={value!r}"
        try:
            ours = load(cls, directory)
        except ValueError as error:
            assert "\n" not in str(error).strip()
            refused.append(what)
            shutil.rmtree(directory)
            continue
        try:
            other, report = theirs.from_pretrained(directory, output_loading_info=True)
        except Exception as error:  # Values that transformers itself rejects.
            broken.append(f"{what}: {type(error).__name__}")
            shutil.rmtree(directory)
            continue
        assert not report["missing_keys"] and not report["mismatched_keys"], what
        features = inputs(other.config)
        expected = their_outputs(other.eval(), features)
        assert gap(our_outputs(ours, features), expected) <= 1e-5, what
        equal.append(what)
        if gap(expected, base) > 1e-6:
            said = kerasbert.convert(
                directory, tmp_path / "out", task=cls, tokenizer=False, overwrite=True
            )
            again = theirs.from_pretrained(said["directory"]).eval()
            assert gap(their_outputs(again, features), expected) <= 1e-5, what
        shutil.rmtree(directory)
    print(f"\n{family} {head}: equal {equal}, refused {refused}, not theirs {broken}")
    assert len(equal) >= (3 if head else 5) and len(refused) >= (1 if head else 3)


def untie(theirs, model, directory):
    """Save a copy whose decoder has separate weights."""
    other = theirs(theirs.config_class.from_pretrained(directory))
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    other.save_pretrained(directory)


def test_every_ignored_field_is_a_field():
    known = set()
    for family in [*ENCODERS, "longformer"]:
        config = getattr(transformers, f"{_CLASSES[family]}Config")
        known |= {field.name for field in dataclasses.fields(config)}
    assert set(IGNORED) <= known
