"""The small tokenizers of every class."""

import keras

from tests.tokenizers.conftest import (  # noqa: F401
    albert_model,
    byte_pairs,
    make,
    sentences,
    word_pieces,
    xlmr_model,
)

# Records are TensorFlow's on every backend, and training on them is tried on each.
if keras.backend.backend() != "tensorflow":
    collect_ignore = ["test_beam.py", "test_examples.py", "test_records.py"]
