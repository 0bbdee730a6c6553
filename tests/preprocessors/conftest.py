"""The small tokenizers of every class, for what rests on their offsets."""

import keras

from tests.tokenizers.conftest import (  # noqa: F401
    albert_model,
    byte_pairs,
    make,
    tokenizer,
    word_pieces,
    xlmr_model,
)

# Windows and labels are TensorFlow's on every backend, and run on each with the models.
if keras.backend.backend() != "tensorflow":
    collect_ignore = ["test_questions.py", "test_windows.py"]
