"""A model is trained on records, on each backend."""

import random

import keras
import numpy as np
import pytest

from kerasbert.data import read_examples, write_examples
from kerasbert.models import BertPretrainer
from kerasbert.tokenizers import BertTokenizer
from tests.contracts import tiny_backbone

WORDS = [f"{a}{b}" for a in "bcdfghklmn" for b in "aeiou"]


@pytest.mark.backends("torch")
def test_fit_and_evaluate(tmp_path):
    tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
    rng = random.Random(0)
    # Words come in the order of the vocabulary.
    starts = [rng.randrange(len(WORDS)) for _ in range(600)]
    lines = [" ".join((WORDS * 2)[start : start + 6]) for start in starts]
    lines = [line + "\n" * (1 + (i % 6 == 0)) for i, line in enumerate(lines)]
    (tmp_path / "text.txt").write_text("".join(lines))
    output = tmp_path / "examples"
    write_examples(tmp_path / "text.txt", output, tokenizer, sequence_length=24)
    backbone = tiny_backbone(vocabulary_size=tokenizer.vocabulary_size(), max_sequence_length=24)
    model = BertPretrainer(backbone)
    model.compile(optimizer=keras.optimizers.Adam(5e-3))
    batches = read_examples(output, 64, tokenizer=tokenizer)
    losses = model.fit(batches, steps_per_epoch=8, epochs=3, verbose=0).history["loss"]
    assert len(losses) == 3 and losses[-1] < losses[0]
    results = model.evaluate(read_examples(output, 64, repeat=False), verbose=0)
    assert np.isfinite(results).all()
