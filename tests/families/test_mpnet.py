"""MPNet's tokenizer and preprocessors, compared with transformers; other tests cover its models."""

import numpy as np
import pytest

from kerasbert.models import BertMaskedLM, BertMaskedLMPreprocessor
from kerasbert.preprocessors import BertPreprocessor
from kerasbert.tokenizers import MPNetTokenizer, tokenizer_from_files
from tests.contracts import tiny_backbone
from tests.peers import transformers

TOKENS = "<s> <pad> </s> <unk> [PAD] [UNK] good ##ness film caf ##e ! , . it is <mask>".split()
TEXTS = ["Good film, GOODNESS!", "It is  café <s>.", "unseen 한국 word", ""]


@pytest.mark.peers
@pytest.mark.parametrize("whole", [False, True])
def test_equals_transformers(tmp_path, whole):
    """From a `vocab.txt` alone, or from all files that transformers writes."""
    (tmp_path / "vocab.txt").write_text("\n".join(TOKENS) + "\n")
    (tmp_path / "config.json").write_text('{"model_type": "mpnet"}')
    vocabulary = {token: id for id, token in enumerate(TOKENS)}
    theirs = transformers.MPNetTokenizer(vocabulary)
    if whole:
        theirs.save_pretrained(tmp_path)
    else:
        (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "MPNetTokenizer"}')
    ours = tokenizer_from_files(str(tmp_path), "mpnet", special_tokens_in_strings=True)
    assert type(ours) is MPNetTokenizer and ours.lowercase and ours.num_separators == 2
    assert [ours.cls_token, ours.sep_token, ours.pad_token, ours.mask_token, ours.unk_token] == [
        *("<s>", "</s>", "<pad>", "<mask>", "[UNK]")
    ]
    texts = [*TEXTS, "a good <mask> ."]
    assert ours(texts) == theirs(texts, add_special_tokens=False)["input_ids"]
    packed = BertPreprocessor(ours, sequence_length=32)((TEXTS[:2], TEXTS[2:]))
    expected = theirs(TEXTS[:2], TEXTS[2:], padding=True)
    length = len(expected["input_ids"][0])
    assert np.asarray(packed["token_ids"])[:, :length].tolist() == expected["input_ids"]
    assert np.asarray(packed["padding_mask"]).sum(-1).tolist() == [
        sum(row) for row in expected["attention_mask"]
    ]


@pytest.mark.slow
def test_fill_mask():
    tokenizer = MPNetTokenizer(TOKENS)
    preprocessor = BertMaskedLMPreprocessor(tokenizer, sequence_length=12)
    backbone = tiny_backbone("mpnet", vocabulary_size=len(TOKENS))
    found = BertMaskedLM(backbone, preprocessor=preprocessor).fill_mask("it is <mask> .", top_k=3)
    assert len(found) == 3
