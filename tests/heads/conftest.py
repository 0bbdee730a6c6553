"""The small tokenizers of every class, for tests that depend on their offsets."""

from tests.text.conftest import (  # noqa: F401
    albert_model,
    byte_fallback_models,
    byte_pairs,
    deberta_model,
    gpt_pairs,
    make,
    tokenizer,
    word_pieces,
    xlmr_model,
)
