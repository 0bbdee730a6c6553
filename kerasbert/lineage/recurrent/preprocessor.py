"""Preprocessing for recurrent sequence-to-sequence models."""

import keras

from kerasbert.lineage.seq2seq.preprocessor import TransformerSeq2SeqLMPreprocessor


@keras.saving.register_keras_serializable(package="kerasbert")
class RecurrentSeq2SeqLMPreprocessor(TransformerSeq2SeqLMPreprocessor):
    """Packs pairs of source and target; see `TransformerSeq2SeqLMPreprocessor`.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "me"]
    >>> preprocessor = RecurrentSeq2SeqLMPreprocessor(BertTokenizer(tokens), sequence_length=16)
    >>> x, y, weights = preprocessor((["who"], ["me"]))
    >>> sorted(x)[0], list(y.shape)
    ('decoder_padding_mask', [1, 8])
    """
