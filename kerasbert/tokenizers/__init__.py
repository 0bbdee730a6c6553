"""The tokenizers, which run in TensorFlow's graph."""

from kerasbert.tokenizers.byte_pair import ModernBertTokenizer, RobertaTokenizer
from kerasbert.tokenizers.choose import tokenizer_from_files
from kerasbert.tokenizers.sentence_piece import AlbertTokenizer, XLMRobertaTokenizer
from kerasbert.tokenizers.wordpiece import BertTokenizer

CLASSES = (
    AlbertTokenizer,
    BertTokenizer,
    ModernBertTokenizer,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

__all__ = [*(cls.__name__ for cls in CLASSES), "tokenizer_from_files"]
