from tests.tokenizers.conftest import (  # noqa: F401
    albert_model,
    byte_pairs,
    make,
    word_pieces,
    xlmr_model,
)
