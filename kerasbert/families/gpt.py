"""GPT: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training".

GPT-2: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
"""

from kerasbert.families.keras_hub_names import KerasHubTable, encoder_names
from kerasbert.families.settings import LAST_TOKEN, Family
from kerasbert.families.transformers_names import Table, name_of

_GPT = {
    "num_segments": 0,
    "layer_norm_epsilon": 1e-5,
    "pooler": False,
    "embeddings_norm": False,
    "is_causal": True,
}


def _write_gpt2(settings):
    inner, width = settings["intermediate_dim"], settings["hidden_dim"]
    return {"embd_pdrop": settings["dropout"], "n_inner": None if inner == 4 * width else inner}


# OpenAIGPTModel's "gelu" is the tanh form.
_GPT_ACTIVATIONS = {"gelu": "gelu_approximate", "relu": "relu", "silu": "silu", "swish": "silu"}


def _read_gpt(config, path):
    name = config.get("afn", "gelu")
    if name not in _GPT_ACTIVATIONS:
        raise ValueError(
            f"'{path}' has afn={name!r}; transformers' OpenAIGPTModel supports only "
            f"{', '.join(_GPT_ACTIVATIONS)}."
        )
    return {
        "activation": _GPT_ACTIVATIONS[name],
        "intermediate_dim": 4 * config.get("n_embd", 768),
    }


def _write_gpt(settings):
    afn = name_of(settings["activation"], _GPT_ACTIVATIONS)
    return {"embd_pdrop": settings["dropout"], "afn": afn}


_GPT_CONFIG = {
    "vocabulary_size": ("vocab_size", 50257),
    "num_layers": ("n_layer", 12),
    "num_heads": ("n_head", 12),
    "hidden_dim": ("n_embd", 768),
    "dropout": ("resid_pdrop", 0.1),
    "attention_dropout": ("attn_pdrop", 0.1),
    "layer_norm_epsilon": ("layer_norm_epsilon", 1e-5),
    "initializer_range": ("initializer_range", 0.02),
}

_GPT_ALIASES = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
}


def _gpt(tokens, positions, **more):
    """Return the layers of both GPTs."""
    return {
        "token_embedding": tokens,
        "position_embedding": positions,
        "transformer_layer_{i}/attention/qkv": "h.{i}.attn.c_attn",
        "transformer_layer_{i}/attention/output": "h.{i}.attn.c_proj",
        "transformer_layer_{i}/attention_layer_norm": "h.{i}.ln_1",
        "transformer_layer_{i}/intermediate": "h.{i}.mlp.c_fc",
        "transformer_layer_{i}/output": "h.{i}.mlp.c_proj",
        "transformer_layer_{i}/output_layer_norm": "h.{i}.ln_2",
        **more,
    }


_GPT_HEADS = {
    "causal_lm": {"lm_head/decoder": "lm_head"},
    "text_classifier": {"logits": "score"},
}

_GPT_HEAD_CONFIG = {"causal_lm": {"tie_weights": ("tie_word_embeddings", True)}}

FAMILIES = {
    "gpt2": Family(
        encoder={**_GPT, "max_sequence_length": 1024, "norm_first": True},
        heads={"text_classifier": LAST_TOKEN},
        tokenizer="GPT2Tokenizer",
    ),
    "gpt": Family(
        encoder=_GPT,
        heads={"text_classifier": LAST_TOKEN},
        tokenizer="GPTTokenizer",
    ),
}

KERAS_HUB = {
    "gpt2": KerasHubTable(
        classes="GPT2",
        settings={"activation": "gelu_approximate", "pooler": False},
        encoder={
            **encoder_names(attention="self_attention/"),
            "final_layer_norm": "layer_norm",
        },
        heads={"causal_lm": ({}, {})},  # The output layer is the token embedding.
    ),
}

TABLES = {
    "gpt2": Table(
        classes="GPT2",
        prefix="transformer.",
        layout="conv1d",
        config={
            **_GPT_CONFIG,
            "max_sequence_length": ("n_positions", 1024),
            "activation": ("activation_function", "gelu_new"),
        },
        encoder=_gpt("wte", "wpe", final_layer_norm="ln_f"),  # GPT2Model
        heads={
            **_GPT_HEADS,
            "token_classifier": {"logits": "classifier"},
            "question_answering": {"logits": "qa_outputs"},
        },
        head_config={
            **_GPT_HEAD_CONFIG,
            "token_classifier": {"dropout": ("classifier_dropout", 0.1)},
        },
        aliases=_GPT_ALIASES,
        token_ids=("bos_token_id", "eos_token_id"),
        default_ids={"bos_token_id": 50256, "eos_token_id": 50256},
        read=lambda config, path: {
            "intermediate_dim": config.get("n_inner") or 4 * config.get("n_embd", 768)
        },
        write=_write_gpt2,
    ),
    "gpt": Table(
        classes="OpenAIGPT",
        model_type="openai-gpt",
        prefix="transformer.",
        layout="conv1d",
        config={
            **_GPT_CONFIG,
            "vocabulary_size": ("vocab_size", 40478),
            "max_sequence_length": ("n_positions", 512),
            "activation": ("afn", "gelu"),
        },
        encoder=_gpt("tokens_embed", "positions_embed"),  # OpenAIGPTModel
        heads=_GPT_HEADS,
        head_config=_GPT_HEAD_CONFIG,
        aliases=_GPT_ALIASES,
        read=_read_gpt,
        write=_write_gpt,
    ),
}
