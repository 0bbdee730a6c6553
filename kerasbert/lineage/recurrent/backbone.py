"""Recurrent encoder-decoder with attention (2015), without a head.

B batch, S source tokens, T target tokens, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from kerasbert.base.errors import check_choice
from kerasbert.base.process import check_process
from kerasbert.families.settings import LINEAGE_SETTINGS, SETTINGS
from kerasbert.layers.recurrent import ATTENTIONS, CELLS, AttentionDecoder, RecurrentEncoder
from kerasbert.layers.token_layers import TokenDropout
from kerasbert.lineage.recurrent.preprocessor import RecurrentSeq2SeqLMPreprocessor
from kerasbert.lineage.seq2seq.backbone import INPUTS, Seq2SeqBackbone

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


@keras.saving.register_keras_serializable(package="kerasbert")
class RecurrentSeq2SeqBackbone(Seq2SeqBackbone):
    """LSTM or GRU encoder-decoder with attention, the predecessor of the transformer.

    Encoder and decoder share one embedding. The decoder starts from the encoder's final states.
    Inputs are those of `TransformerSeq2SeqBackbone`. Outputs are a dict of
    `encoder_sequence_output` (B, S, D), `decoder_sequence_output` (B, T, D) and `attention_weights`
    (B, T, S), float32; each row sums to 1 over the source's tokens.

    Bahdanau et al. use `cell="gru", attention="additive"`, with another initial state and output
    vector of the decoder; Luong et al. `bidirectional=False, num_layers=4`, input feeding and the
    other kinds of attention, of which local attention is not available.

    Args:
        vocabulary_size: int.
        num_layers: layers of the encoder, and of the decoder.
        hidden_dim: int. D, an even number with `bidirectional`.
        cell: "lstm" or "gru".
        attention: "additive" (Bahdanau), "dot", "general" or "concat" (Luong); see
            `kerasbert.layers.AttentionDecoder`.
        bidirectional: whether the encoder reads in both directions, with D / 2 units each.
        dropout: dropout on the embeddings, between the encoder's layers and on the outputs.
        dtype: string or policy.

    Example:

    >>> backbone = RecurrentSeq2SeqBackbone(vocabulary_size=100, num_layers=1, hidden_dim=8)
    >>> inputs = {"encoder_token_ids": [[5, 7, 9]], "decoder_token_ids": [[1, 4]]}
    >>> outputs = backbone(inputs)
    >>> {name: tuple(value.shape) for name, value in outputs.items()}["attention_weights"]
    (1, 2, 3)

    Source: Bahdanau et al. 2015, arXiv 1409.0473; Luong et al. 2015, arXiv 1508.04025.
    """

    setting_names = (
        *("vocabulary_size", "num_layers", "hidden_dim", "cell", "attention", "bidirectional"),
        "dropout",
    )
    max_sequence_length = 2**30

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        hidden_dim: int,
        cell: str = "lstm",
        attention: str = "additive",
        bidirectional: bool = True,
        dropout: float = 0.0,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        check_process()
        self._set_settings(locals(), SETTINGS | LINEAGE_SETTINGS)
        check_choice("cell", cell, CELLS)
        check_choice("attention", attention, ATTENTIONS)
        if bidirectional and hidden_dim % 2:
            raise ValueError(
                f"hidden_dim={hidden_dim} must be even, because each direction of the encoder has "
                "half of it; change it, or set bidirectional=False."
            )

        # === Layers ===
        self.token_embedding = keras.layers.ReversibleEmbedding(
            vocabulary_size, hidden_dim, dtype=dtype, name="token_embedding"
        )
        self.embeddings_dropout = TokenDropout(dropout, dtype=dtype, name="embeddings_dropout")
        self.encoder = RecurrentEncoder(
            num_layers, hidden_dim, cell, bidirectional, dropout, dtype=dtype, name="encoder"
        )
        self.decoder = AttentionDecoder(
            num_layers, hidden_dim, cell, attention, dtype=dtype, name="decoder"
        )
        self.output_dropout = TokenDropout(dropout, dtype=dtype, name="output_dropout")

        # === Functional model ===
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in INPUTS}
        mask = inputs["encoder_padding_mask"]
        memory, states = self.encoder(self.embed(inputs["encoder_token_ids"]), padding_mask=mask)
        outputs, weights = self.decoder(
            self.embed(inputs["decoder_token_ids"]), memory, mask, states
        )
        outputs = {
            "encoder_sequence_output": memory,
            "decoder_sequence_output": self.output_dropout(outputs),
            "attention_weights": weights,
        }
        super().__init__(inputs=inputs, outputs=outputs, dtype=dtype, **kwargs)

    def embed(self, token_ids: Any) -> Any:
        """Embed token ids (B, T): (B, T, D)."""
        return self.embeddings_dropout(self.token_embedding(token_ids))

    # Keras' quantize() would skip the cells; its enable_lora() would freeze the whole model.

    def quantize(self, mode: str | None = None, **kwargs: Any) -> None:
        raise ValueError("quantize() does not support LSTMs and GRUs; use the model unquantized.")

    def enable_lora(self, rank: int, target_layer_names: Sequence[str] | None = None) -> None:
        raise ValueError(
            "enable_lora() adapts the attention projections of transformers; train the whole model "
            "or set trainable=False."
        )


# KerasHub's loader finds preprocessors by backbone.
RecurrentSeq2SeqLMPreprocessor.backbone_cls = RecurrentSeq2SeqBackbone
