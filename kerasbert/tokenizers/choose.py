"""Which tokenizer class a checkpoint needs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kerasbert.families import get_family
from kerasbert.tokenizers.byte_fallback import ByteFallbackTokenizer
from kerasbert.tokenizers.byte_pair import GPT2Tokenizer, ModernBertTokenizer, RobertaTokenizer
from kerasbert.tokenizers.files import TokenizerFiles
from kerasbert.tokenizers.gpt import GPTTokenizer
from kerasbert.tokenizers.marian import MarianTokenizer
from kerasbert.tokenizers.sentence_piece import (
    AlbertTokenizer,
    DebertaV3Tokenizer,
    XLMRobertaTokenizer,
    XLNetTokenizer,
)
from kerasbert.tokenizers.wordpiece import BertTokenizer

if TYPE_CHECKING:
    from typing import Any

    from kerasbert._typing import AnyPath
    from kerasbert.tokenizers.subword import SubwordTokenizer

# The classes that read each kind of model; the first one is for families of another kind.
KINDS = {
    "WordPiece": (BertTokenizer,),
    "BPE": (RobertaTokenizer, ModernBertTokenizer, GPT2Tokenizer, GPTTokenizer),
    "Unigram": (XLMRobertaTokenizer, AlbertTokenizer, DebertaV3Tokenizer, XLNetTokenizer),
    "ByteFallback": (ByteFallbackTokenizer,),
}
# `tokenizer_class` of Hugging Face, without "Tokenizer" and "Fast".
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
# Names that say nothing about the algorithm.
GENERIC = ("PreTrained", "TokenizersBackend", "")


def tokenizer_from_files(directory: AnyPath, family: str, **overrides: Any) -> SubwordTokenizer:
    """Read the tokenizer of a checkpoint directory, whatever its class.

    Args:
        directory: string. A Google or Hugging Face directory.
        family: string, a name of `kerasbert.families`, for what the files leave open.
        **overrides: arguments of the tokenizer to set otherwise.

    Returns:
        A tokenizer with the checkpoint's settings.

    Raises:
        ValueError: if there are no tokenizer files, or of a kind that is not known here.
    """
    if get_family(family).tokenizer == MarianTokenizer.__name__:
        # Two models, which no other class reads.
        return MarianTokenizer.from_files(directory, **overrides)
    files = TokenizerFiles(directory)
    name = files.config.get("tokenizer_class") or ""
    name = re.sub(r"Tokenizer(Fast)?$|Fast$", "", name)
    kind = files.model_type()
    if name not in CLASSES and name not in GENERIC and not files.model:
        raise ValueError(
            f"The checkpoint in '{directory}' has a {name}Tokenizer, which is not supported: "
            f"known are {', '.join(CLASSES)}, and any `tokenizer.json` of their kinds."
        )
    if kind is None:
        raise ValueError(
            f"'{directory}' has no tokenizer files: looked for vocab.txt, tokenizer.json, "
            "vocab.json, spiece.model, sentencepiece.bpe.model, spm.model and tokenizer.model; "
            "fetch them, or load the model with preprocessor=None and pass token ids."
        )
    if kind not in KINDS:
        raise ValueError(
            f"The tokenizer.json in '{directory}' has a {kind} model, which is not supported: "
            f"known are {', '.join(KINDS)}."
        )
    return tokenizer_class(kind, family, name).from_files(directory, **overrides)


def tokenizer_class(kind, family, name=""):
    """The class for a kind of model with a family, and perhaps a `tokenizer_class`.

    >>> tokenizer_class("WordPiece", "roberta").__name__
    'BertTokenizer'
    """
    # The files decide: some checkpoints of one family come with the tokenizer of another.
    known = {cls.__name__: cls for cls in KINDS[kind]}
    wanted = (getattr(CLASSES.get(name), "__name__", None), get_family(family).tokenizer)
    return next((known[one] for one in wanted if one in known), KINDS[kind][0])
