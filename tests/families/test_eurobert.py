"""EuroBERT's tokenizer, a byte-level `tokenizer.json`; other tests cover its models."""

import json

import numpy as np
import pytest

from kerasbert.models import BertMaskedLM, BertMaskedLMPreprocessor
from kerasbert.preprocessors import BertPreprocessor
from kerasbert.tokenizers import FastTokenizer, tokenizer_from_files
from tests.contracts import tiny_backbone
from tests.peers import transformers

TEXTS = ["Paris is the capital of France.", "L'été 2024, 한국어 and 日本語", "a\n\n  b<|mask|>", ""]
BEGIN, END, MASK = "<|begin_of_text|>", "<|end_of_text|>", "<|mask|>"
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
WORDS += r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@pytest.fixture
def directory(tmp_path):
    """Files as in the checkpoints, with a small vocabulary."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors, trainers

    rust = Tokenizer(models.BPE(ignore_merges=True))
    rust.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[BEGIN, END, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rust.train_from_iterator(TEXTS * 2, trainer)
    rust.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A {END}",
        pair=f"{BEGIN} $A {END} $B {END}",
        special_tokens=[(BEGIN, 0), (END, 1)],
    )
    rust.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": BEGIN, "eos_token": END, "pad_token": END, "mask_token": MASK}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 32}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "eurobert"}))
    return str(tmp_path)


@pytest.mark.peers
def test_tokenizer_equals_transformers(directory):
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(directory)
    ours = tokenizer_from_files(directory, "eurobert", special_tokens_in_strings=True)
    assert type(ours) is FastTokenizer
    assert ours(TEXTS) == theirs(TEXTS, add_special_tokens=False)["input_ids"]
    packed = BertPreprocessor(ours, sequence_length=64)((TEXTS[:2], TEXTS[1:3]))
    expected = theirs(TEXTS[:2], TEXTS[1:3], padding=True)["input_ids"]
    length = len(expected[0])
    assert np.asarray(packed["token_ids"])[:, :length].tolist() == expected


def test_fill_mask(directory):
    tokenizer = tokenizer_from_files(directory, "eurobert")
    preprocessor = BertMaskedLMPreprocessor(tokenizer, sequence_length=16)
    backbone = tiny_backbone("eurobert", vocabulary_size=tokenizer.vocabulary_size())
    model = BertMaskedLM(backbone, preprocessor=preprocessor)
    assert len(model.fill_mask("Paris is <|mask|>.", top_k=3)) == 3
