"""A process that is forked from one that used a model says so; it used to wait for ever."""

import os
import time

import numpy as np
import pytest

from kerasbert.models import BertTextClassifier, BertTextClassifierPreprocessor
from tests.contracts import bert_tokenizer, tiny_backbone

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
]


def forked(action):
    """What an action raises in a forked process, `None` where it goes on for ever."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            action()
            said = "nothing"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    for _ in range(600):
        if os.waitpid(child, os.WNOHANG)[0]:
            return os.read(reader, 10_000).decode()
        time.sleep(0.1)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return None


def test_each_way_into_a_model():
    tokenizer = bert_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
    preprocessor = BertTextClassifierPreprocessor(tokenizer, sequence_length=8)
    model = BertTextClassifier(
        tiny_backbone(vocabulary_size=7), preprocessor=preprocessor, num_classes=2
    )
    model.classify("a b")
    arrays = {
        name: np.ones((2, 8), "int32") for name in ("token_ids", "segment_ids", "padding_mask")
    }
    for action in (
        lambda: tokenizer("a b"),
        lambda: preprocessor(["a b"]),
        lambda: model.classify("a b"),
        lambda: model.backbone(arrays),
        lambda: model(arrays),
        lambda: model.predict(arrays, verbose=0),
        lambda: model.fit(arrays, np.zeros(2), verbose=0),
        lambda: model.evaluate(arrays, np.zeros(2), verbose=0),
        lambda: tiny_backbone(),
    ):
        said = forked(action)
        assert said is not None, "it waits for ever"
        assert said.startswith("RuntimeError: ")
        assert f"This process was forked from process {os.getpid()}, which had used" in said
        assert "get_context('spawn')" in said
