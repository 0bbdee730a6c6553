"""Choice of the tokenizer class for a checkpoint."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

from kerasbert.families import get_family
from kerasbert.text.byte_fallback import ByteFallbackTokenizer
from kerasbert.text.byte_pair_families import (
    GPT2Tokenizer,
    GPTTokenizer,
    ModernBertTokenizer,
    RobertaTokenizer,
)
from kerasbert.text.fast import FastTokenizer
from kerasbert.text.marian import MarianTokenizer
from kerasbert.text.moses import FlaubertTokenizer, XLMTokenizer
from kerasbert.text.sentence_piece_families import (
    AlbertTokenizer,
    BertGenerationTokenizer,
    CamembertTokenizer,
    DebertaV3Tokenizer,
    RemBertTokenizer,
    XLMRobertaTokenizer,
    XLNetTokenizer,
)
from kerasbert.text.tokenizer_files import TokenizerFiles
from kerasbert.text.tokenizer_json import UnsupportedError
from kerasbert.text.wordpiece import BertTokenizer, MPNetTokenizer

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import AnyPath
    from kerasbert.text.subword import SubwordTokenizer

# Tokenizer classes by kind of model; the first is used if the family's own is of another kind.
CLASSES_OF = {
    "WordPiece": (BertTokenizer, MPNetTokenizer),
    "BPE": (
        *(RobertaTokenizer, ModernBertTokenizer, GPT2Tokenizer, GPTTokenizer),
        *(XLMTokenizer, FlaubertTokenizer),
    ),
    "Unigram": (
        *(XLMRobertaTokenizer, CamembertTokenizer),
        *(AlbertTokenizer, DebertaV3Tokenizer, XLNetTokenizer, RemBertTokenizer),
        BertGenerationTokenizer,
    ),
    "ByteFallback": (ByteFallbackTokenizer,),
}
# Hugging Face's `tokenizer_class`, without "Tokenizer" and "Fast".
CLASSES = {
    "Bert": BertTokenizer,
    "BertGeneration": BertGenerationTokenizer,
    "BertJapanese": BertTokenizer,
    "DistilBert": BertTokenizer,
    "Electra": BertTokenizer,
    "MPNet": MPNetTokenizer,
    "Roberta": RobertaTokenizer,
    "Luke": RobertaTokenizer,
    "XLMRoberta": XLMRobertaTokenizer,
    "MLuke": XLMRobertaTokenizer,
    "Camembert": CamembertTokenizer,
    "Albert": AlbertTokenizer,
    "RemBert": RemBertTokenizer,
    "Deberta": ModernBertTokenizer,
    "DebertaV2": DebertaV3Tokenizer,
    "DebertaV3": DebertaV3Tokenizer,
    # A plain SentencePiece model, with other special tokens.
    "BigBird": DebertaV3Tokenizer,
    "XLNet": XLNetTokenizer,
    "ModernBert": ModernBertTokenizer,
    "GPT2": GPT2Tokenizer,
    "OpenAIGPT": GPTTokenizer,
    "XLM": XLMTokenizer,
    "Flaubert": FlaubertTokenizer,
    "Llama": ByteFallbackTokenizer,
    "Gemma": ByteFallbackTokenizer,
}
# Class names with an algorithm that no class here has.
UNSUPPORTED = {
    "RoFormer": "splits Chinese texts into words with the library jieba",
}
# Class names that do not determine the algorithm.
GENERIC = ("PreTrained", "TokenizersBackend", "")


def tokenizer_from_files(directory: AnyPath, family: str, **overrides: Any) -> SubwordTokenizer:
    """Read the tokenizer of a checkpoint directory, with the class that supports it.

    Args:
        directory: a directory in Google's or Hugging Face's format.
        family: a name of `kerasbert.families`, which determines what the files do not.
        **overrides: arguments of the tokenizer that replace the checkpoint's.

    Returns:
        A tokenizer with the checkpoint's settings; a `FastTokenizer` if the `tokenizer.json` has
        steps that no other class supports.

    Raises:
        ValueError: if tokenizer files are missing or of an unsupported kind.
    """
    usual = get_family(family).tokenizer
    if not usual:
        raise ValueError(
            f"kerasbert has no tokenizer for models of the family '{family}', such as the one in "
            f"'{directory}'; load the model with preprocessor=None and pass token ids."
        )
    if usual == MarianTokenizer.__name__:
        return MarianTokenizer.from_files(directory, **overrides)
    files = TokenizerFiles(directory)
    name = files.config.get("tokenizer_class") or ""
    name = re.sub(r"Tokenizer(Fast)?$|Fast$", "", name)
    kind = files.model_type()
    own = name or usual.removesuffix("Tokenizer")
    if own in UNSUPPORTED and kind is not None:
        raise ValueError(
            f"The checkpoint in '{directory}' has a {own}Tokenizer, which {UNSUPPORTED[own]} and "
            "which kerasbert does not support; load the model with preprocessor=None and pass "
            "token ids. If the model was trained with BERT's tokenizer, set tokenizer_class to "
            "'BertTokenizer' in tokenizer_config.json."
        )
    if name not in CLASSES and name not in GENERIC and not files.model:
        raise ValueError(
            f"The checkpoint in '{directory}' has a {name}Tokenizer, which is not supported; "
            f"use a checkpoint with one of {', '.join(CLASSES)}, or with a `tokenizer.json`."
        )
    if kind is None:
        raise ValueError(
            f"'{directory}' has no tokenizer files: none of vocab.txt, tokenizer.json, vocab.json, "
            "spiece.model, sentencepiece.bpe.model, sentencepiece.model, spm.model and "
            "tokenizer.model exists; download them, or load the model with preprocessor=None and "
            "pass token ids."
        )
    if kind not in CLASSES_OF:
        reason = f"The tokenizer.json in '{directory}' has a {kind} model, which has no graph"
        return FastTokenizer.from_files(directory, reason, **overrides)
    try:
        return tokenizer_class(kind, family, name).from_files(directory, **overrides)
    except UnsupportedError as error:
        unknown = overrides.keys() - inspect.signature(FastTokenizer).parameters.keys()
        if unknown:
            return FastTokenizer(**overrides)  # Its error names the argument.
        try:
            return FastTokenizer.from_files(directory, str(error), **overrides)
        except ValueError as other:
            raise ValueError(f"{error} {other}") from None


def tokenizer_class(kind, family, name=""):
    """Return the tokenizer class for a model type such as "BPE", a family and a class name.

    `name` is the optional `tokenizer_class` of transformers, without "Tokenizer".

    >>> tokenizer_class("WordPiece", "roberta").__name__
    'BertTokenizer'
    """
    # Some checkpoints have the tokenizer of another family.
    known = {cls.__name__: cls for cls in CLASSES_OF[kind]}
    wanted = (getattr(CLASSES.get(name), "__name__", None), get_family(family).tokenizer)
    return next((known[one] for one in wanted if one in known), CLASSES_OF[kind][0])
