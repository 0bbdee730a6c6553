"""Families that are close relatives of others, compared with transformers in both directions."""

import json

import numpy as np
import pytest

from kerasbert.families import TABLES
from kerasbert.kinds import tables_of
from kerasbert.models import BertBackbone, BertCausalLM, BertMaskedLM
from tests.contracts import BACKENDS, RELATIVES, arrays
from tests.test_converter import HEADS, load, run, write

# Settings that differ from the defaults of both packages.
ODD = {
    "camembert": {"pad_token_id": 0, "max_position_embeddings": 33, "type_vocab_size": 3},
    "data2vec_text": {"layer_norm_eps": 1e-3, "hidden_act": "relu", "num_attention_heads": 9},
    "bert_generation": {"layer_norm_eps": 1e-3, "hidden_act": "relu", "num_attention_heads": 9},
    "ernie": {"use_task_id": True, "task_type_vocab_size": 4, "hidden_act": "relu"},
    "megatron_bert": {"layer_norm_eps": 1e-3, "hidden_act": "gelu_new", "type_vocab_size": 4},
    "xlm_roberta_xl": {"pad_token_id": 0, "hidden_act": "silu", "type_vocab_size": 3},
    "roberta_prelayernorm": {"layer_norm_eps": 1e-3, "hidden_act": "relu", "type_vocab_size": 2},
    "roformer": {"layer_norm_eps": 1e-3, "hidden_act": "relu", "rotary_value": True},
    "eurobert": {"rms_norm_eps": 1e-3, "hidden_act": "gelu", "attention_bias": True},
    "longformer": {"pad_token_id": 0, "max_position_embeddings": 33, "attention_window": [4, 8]},
    "xlm": {"gelu_activation": False, "layer_norm_eps": 1e-3, "n_heads": 9},
    "flaubert": {"sinusoidal_embeddings": True, "n_langs": 1, "layer_norm_eps": 1e-3},
    "deberta": {"legacy": False, "hidden_act": "relu", "num_attention_heads": 9},
    "rembert": {"layer_norm_eps": 1e-3, "hidden_act": "relu", "type_vocab_size": 3},
    "luke": {"layer_norm_eps": 1e-3, "pad_token_id": 0, "num_attention_heads": 9},
    "big_bird": {"layer_norm_eps": 1e-3, "hidden_act": "relu", "type_vocab_size": 3},
}
# Further settings.
MORE = [
    (
        *("roformer", "encoder"),
        {"embedding_size": 36, "num_attention_heads": 9, "type_vocab_size": 3},
    ),
    (
        *("eurobert", "encoder"),
        {"num_key_value_heads": 6, "rope_parameters": {"rope_type": "linear", "factor": 1.5}},
    ),
    ("xlm", "encoder", {"use_lang_emb": False, "n_langs": 1, "causal": True}),
    ("xlm", "masked", {"tie_word_embeddings": False}),
    ("flaubert", "encoder", {"pre_norm": True}),
    ("flaubert", "classes", {"pre_norm": True, "summary_first_dropout": 0.3}),
    ("deberta", "encoder", {"max_relative_positions": 5, "pos_att_type": "p2c|c2p"}),
    ("eurobert", "classes", {"classifier_pooling": "bos", "rope_theta": 50.0}),
    ("eurobert", "number", {"classifier_pooling": "mean", "num_key_value_heads": 1}),
    ("eurobert", "masked", {"tie_word_embeddings": True, "mlp_bias": True}),
    ("eurobert", "masked", {"tie_word_embeddings": True}),
]
OUTPUTS = {
    "sequence_output": "last_hidden_state",
    "pooled_output": "pooler_output",
    "mlm_logits": "prediction_logits",
    "nsp_logits": "seq_relationship_logits",
}
HEADS = HEADS | {"following": ("LMHeadModel", {"is_decoder": True}, BertCausalLM)}


def rows():
    """Return every head of each family; each backend computes one and the encoders."""
    every = ("encoder", "masked", "following")
    return [
        pytest.param(
            *(family, head, ODD[family]),
            marks=pytest.mark.backends(*(BACKENDS if head in every else ["torch"])),
            id=f"{family}-{head}",
        )
        for family in RELATIVES
        for head, (_, _, cls) in HEADS.items()
        if TABLES[family].has_class(tables_of(cls))
        # transformers needs separators there; see test_longformer.py.
        and not (family == "longformer" and head in ("spans", "choice"))
    ] + [
        pytest.param(
            *(family, head, more),
            marks=pytest.mark.backends(*(BACKENDS if head == "encoder" else ["torch"])),
        )
        for family, head, more in MORE
    ]


@pytest.mark.peers
@pytest.mark.parametrize("family, head, more", rows())
def test_equals_transformers_both_ways(reference, tmp_path, family, head, more):
    name, its, cls = HEADS[head]
    theirs = reference(family, name, **its, **more)
    settings = {} if cls is BertBackbone else {"preprocessor": None}
    model = cls.from_preset(theirs.directory, **settings)
    assert getattr(model, "backbone", model).family == family
    said = write(theirs.directory, tmp_path / "out")
    assert said["written"] == type(theirs.model).__name__
    assert set(said["files"]) == {"config.json", "model.safetensors"}
    again = load(tmp_path / "out", said["written"])
    for length in (1, 13):
        inputs = theirs.inputs(length)
        expected, back = run(theirs.model, inputs), run(again, inputs)
        given = {key: value for key, value in inputs.items() if key in model.input}
        real = inputs["padding_mask"] == 1
        if head == "choice":
            given = {key: value[None] for key, value in given.items()}
        found = arrays(model(given))
        for key, value in (found if isinstance(found, dict) else {"logits": found}).items():
            wanted, same = (x[OUTPUTS.get(key, key)].numpy() for x in (expected, back))
            assert np.abs(wanted).max() > 0.1  # Outputs must differ enough to reveal errors.
            gaps = np.abs(np.stack([value.reshape(wanted.shape), same]) - wanted)
            gaps = gaps[:, real] if wanted.shape[:2] == real.shape else gaps
            print(f"{family} {head} {key}: {gaps.max():.1e}")
            assert gaps.max() <= 1e-5
    stored = json.loads((tmp_path / "out" / "config.json").read_text())
    assert stored["model_type"] == theirs.model.config.model_type


IDS = {"preprocessor": None}


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "family, settings, arguments, message",
    [
        ("ernie", {"use_task_id": True}, IDS, "have no 'embeddings.task_type_embeddings.weight'"),
        ("bert_generation", {"tie_word_embeddings": False}, IDS, "tie_word_embeddings=False, whi"),
        ("bert_generation", {"add_cross_attention": True}, IDS, "add_cross_attention=True, which"),
        ("bert_generation", {"is_decoder": False}, IDS, "The encoder is bidirectional"),
        ("rembert", {"tie_word_embeddings": True}, IDS, "tie_word_embeddings=True, which"),
        ("luke", {"architectures": ["LukeForEntityClassification"]}, IDS, "only the words of LUKE"),
        ("big_bird", {"attention_type": "block_sparse"}, IDS, "rows of up to 704 tokens"),
        ("big_bird", {"use_bias": False}, IDS, "only use_bias=True can"),
    ],
)
def test_what_is_refused(reference, tmp_path, family, settings, arguments, message):
    if family == "bert_generation":
        cls, theirs = BertCausalLM, reference(family, "LMHeadModel", is_decoder=True)
    else:
        cls, theirs = BertMaskedLM, reference(family, "ForMaskedLM")
    with pytest.raises(ValueError, match=message):
        cls.from_preset(theirs.copy(tmp_path, **settings), **arguments)


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_words_of_luke(reference, tmp_path):
    """Entities are not read, so LukeForMaskedLM, which predicts them too, is not written."""
    theirs = reference("luke", "ForMaskedLM", tie_word_embeddings=False)
    model = BertMaskedLM.from_preset(theirs.directory, preprocessor=None)
    inputs = theirs.inputs(13)
    real = inputs["padding_mask"] == 1
    expected = run(theirs.model, inputs).logits.numpy()
    gaps = np.abs(arrays(model(inputs)) - expected)[real]
    print(f"luke masked: {gaps.max():.1e}")
    assert np.abs(expected).max() > 0.1 and gaps.max() <= 1e-5
    with pytest.raises(ValueError, match="no class for the head 'masked_lm' alone on luke"):
        write(model, tmp_path / "out")
    with pytest.raises(ValueError, match="entity_ids"):
        model({**inputs, "entity_ids": np.ones((3, 2), "int32")})
