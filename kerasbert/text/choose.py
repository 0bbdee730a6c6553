"""Choice of the tokenizer class for a checkpoint."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

from kerasbert.families import get_family
from kerasbert.text.byte_fallback import ByteFallbackTokenizer
from kerasbert.text.byte_pair import GPT2Tokenizer, ModernBertTokenizer, RobertaTokenizer
from kerasbert.text.fast import FastTokenizer
from kerasbert.text.gpt import GPTTokenizer
from kerasbert.text.marian import MarianTokenizer
from kerasbert.text.sentence_piece import (
    AlbertTokenizer,
    DebertaV3Tokenizer,
    XLMRobertaTokenizer,
    XLNetTokenizer,
)
from kerasbert.text.tokenizer_files import TokenizerFiles, UnsupportedError
from kerasbert.text.wordpiece import BertTokenizer

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import AnyPath
    from kerasbert.text.subword import SubwordTokenizer

# Classes for each kind of model; the first is the default for families of another kind.
CLASSES_OF = {
    "WordPiece": (BertTokenizer,),
    "BPE": (RobertaTokenizer, ModernBertTokenizer, GPT2Tokenizer, GPTTokenizer),
    "Unigram": (XLMRobertaTokenizer, AlbertTokenizer, DebertaV3Tokenizer, XLNetTokenizer),
    "ByteFallback": (ByteFallbackTokenizer,),
}
# Hugging Face's `tokenizer_class`, without "Tokenizer" and "Fast".
CLASSES = {
    "Bert": BertTokenizer,
    "BertJapanese": BertTokenizer,
    "DistilBert": BertTokenizer,
    "Electra": BertTokenizer,
    "Roberta": RobertaTokenizer,
    "XLMRoberta": XLMRobertaTokenizer,
    "Albert": AlbertTokenizer,
    "DebertaV2": DebertaV3Tokenizer,
    "DebertaV3": DebertaV3Tokenizer,
    "XLNet": XLNetTokenizer,
    "ModernBert": ModernBertTokenizer,
    "GPT2": GPT2Tokenizer,
    "OpenAIGPT": GPTTokenizer,
    "Llama": ByteFallbackTokenizer,
    "Gemma": ByteFallbackTokenizer,
}
# Class names that do not determine the algorithm.
GENERIC = ("PreTrained", "TokenizersBackend", "")


def tokenizer_from_files(directory: AnyPath, family: str, **overrides: Any) -> SubwordTokenizer:
    """Read the tokenizer of a checkpoint directory, of any class.

    Args:
        directory: string. A Google or Hugging Face directory.
        family: string. A name of `kerasbert.families`, for what the files do not specify.
        **overrides: arguments of the tokenizer that replace the checkpoint's.

    Returns:
        A tokenizer with the checkpoint's settings: a `FastTokenizer` of a `tokenizer.json` with
        steps that no other class has.

    Raises:
        ValueError: if there are no tokenizer files, or if their kind is not supported.
    """
    if get_family(family).tokenizer == MarianTokenizer.__name__:
        # Marian has two SentencePiece models, which no other class reads.
        return MarianTokenizer.from_files(directory, **overrides)
    files = TokenizerFiles(directory)
    name = files.config.get("tokenizer_class") or ""
    name = re.sub(r"Tokenizer(Fast)?$|Fast$", "", name)
    kind = files.model_type()
    if name not in CLASSES and name not in GENERIC and not files.model:
        raise ValueError(
            f"The checkpoint in '{directory}' has a {name}Tokenizer, which is not supported; "
            f"supported are {', '.join(CLASSES)}, and any `tokenizer.json` of their kinds."
        )
    if kind is None:
        raise ValueError(
            f"'{directory}' has no tokenizer files: none of vocab.txt, tokenizer.json, vocab.json, "
            "spiece.model, sentencepiece.bpe.model, spm.model and tokenizer.model exists; download "
            "them, or load the model with preprocessor=None and pass token ids."
        )
    if kind not in CLASSES_OF:
        reason = f"The tokenizer.json in '{directory}' has a {kind} model, which has no graph"
        return FastTokenizer.from_files(directory, reason, **overrides)
    try:
        return tokenizer_class(kind, family, name).from_files(directory, **overrides)
    except UnsupportedError as error:
        unknown = overrides.keys() - inspect.signature(FastTokenizer).parameters.keys()
        if unknown:
            return FastTokenizer(**overrides)  # Raises an error that names the argument.
        try:
            return FastTokenizer.from_files(directory, str(error), **overrides)
        except ValueError as other:
            raise ValueError(f"{error} {other}") from None


def tokenizer_class(kind, family, name=""):
    """Return the class for a kind of model, a family and an optional `tokenizer_class`.

    >>> tokenizer_class("WordPiece", "roberta").__name__
    'BertTokenizer'
    """
    # The kind decides first: some checkpoints have the tokenizer of another family.
    known = {cls.__name__: cls for cls in CLASSES_OF[kind]}
    wanted = (getattr(CLASSES.get(name), "__name__", None), get_family(family).tokenizer)
    return next((known[one] for one in wanted if one in known), CLASSES_OF[kind][0])
