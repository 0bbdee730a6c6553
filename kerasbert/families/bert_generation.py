"""BERT for generation, an encoder or a decoder without segments and pooler.

Source: Rothe et al. 2020, arXiv 1907.12461.
"""

from kerasbert.families.settings import Family
from kerasbert.families.transformers_names import CONFIG, ENCODER, Table

FAMILIES = {
    "bert_generation": Family(
        encoder={"num_segments": 0, "pooler": False},
        heads={"causal_lm": {"output_bias": True}},
        tokenizer="BertGenerationTokenizer",
    ),
}

TABLES = {
    "bert_generation": Table(
        classes="BertGeneration",
        prefix="bert.",
        config={
            **{ours: names for ours, names in CONFIG.items() if ours != "num_segments"},
            "vocabulary_size": ("vocab_size", 50358),
            "num_layers": ("num_hidden_layers", 24),
            "num_heads": ("num_attention_heads", 16),
            "hidden_dim": ("hidden_size", 1024),
            "intermediate_dim": ("intermediate_size", 4096),
        },
        encoder={  # BertGenerationEncoder
            ours: theirs
            for ours, theirs in ENCODER.items()
            if ours not in ("segment_embedding", "embeddings_projection", "pooled_dense")
        },
        heads={"causal_lm": {"lm_head": "lm_head"}},
        head_config={},
        endings={None: "Encoder", "causal_lm": "Decoder"},
        ignored=("is_decoder",),
        token_ids=("bos_token_id", "eos_token_id"),
        default_ids={"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1},
        refused={"causal_lm": {"tie_word_embeddings": True}},
        tied=lambda encoder, config: {
            "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        read=lambda config, path: {"is_causal": config.get("is_decoder", False)},
        write=lambda settings: {"is_decoder": settings["is_causal"]},
    ),
}
