"""The small tokenizers of every class, folders of examples, and a function that writes files."""

import pytest

from tests.data.example_folders import bert, corpus, small_chunks, written  # noqa: F401
from tests.text.conftest import (  # noqa: F401
    albert_model,
    byte_fallback_models,
    byte_pairs,
    deberta_model,
    gpt_pairs,
    make,
    sentences,
    word_pieces,
    xlmr_model,
)


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write
