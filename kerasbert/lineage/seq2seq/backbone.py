"""Encoder and decoder of the original transformer (2017), without a head.

B batch, S source tokens, T target tokens, D width, N heads, H head width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.backend.attention import is_seen
from kerasbert.base.errors import check_heads
from kerasbert.base.process import check_process
from kerasbert.encoder.preset_backbone import PresetBackbone
from kerasbert.families.settings import LINEAGE_SETTINGS, SETTINGS
from kerasbert.layers.attention import AttentionMask
from kerasbert.layers.block import TransformerBlock, layer_norm
from kerasbert.layers.decoder_block import TransformerDecoderBlock
from kerasbert.layers.embeddings import SinusoidalPositions
from kerasbert.layers.token_layers import TokenDropout
from kerasbert.lineage.seq2seq.preprocessor import TransformerSeq2SeqLMPreprocessor
from kerasbert.text.marian import MarianTokenizer

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import ArrayLike

    from kerasbert.base.aliases import Tensor

INPUTS = (
    "encoder_token_ids",
    "encoder_padding_mask",
    "decoder_token_ids",
    "decoder_padding_mask",
)


class Seq2SeqBackbone(PresetBackbone):
    """Base class of encoder-decoders; its inputs are `INPUTS`."""

    pooler = False
    num_segments = 0

    def fill_in(self, inputs: Tensor) -> dict[str, Any]:
        """Add missing padding masks, without padding."""
        inputs = {
            name: x if isinstance(x, keras.KerasTensor) else ops.convert_to_tensor(x)
            for name, x in inputs.items()
        }
        for name in ("encoder", "decoder"):
            ids = inputs.get(f"{name}_token_ids")
            if ids is not None and f"{name}_padding_mask" not in inputs:
                inputs[f"{name}_padding_mask"] = ops.ones_like(ids, dtype="int32")
        return inputs


@keras.saving.register_keras_serializable(package="kerasbert")
class TransformerSeq2SeqBackbone(Seq2SeqBackbone):
    """The original transformer: an encoder, and a decoder with cross-attention to its outputs.

    Encoder, decoder and logits share one token embedding; positions are sinusoidal. Inputs are a
    dict of `encoder_token_ids` and `encoder_padding_mask` (B, S), `decoder_token_ids` and
    `decoder_padding_mask` (B, T); masks are optional in calls on arrays. Outputs are a dict of
    `encoder_sequence_output` (B, S, D) and `decoder_sequence_output` (B, T, D).

    Args:
        vocabulary_size: int.
        num_layers: encoder layers.
        num_heads: int. Must divide `hidden_dim`.
        hidden_dim: int. D, an even number.
        intermediate_dim: width of the feed-forward network.
        num_decoder_layers, num_decoder_heads, decoder_intermediate_dim: ints. The same settings for
            the decoder; `None` means the encoder's.
        dropout: dropout on the embeddings and on each sublayer's output.
        attention_dropout: dropout on the attention probabilities.
        max_sequence_length: number of positions.
        activation: activation of the feed-forward network; Marian uses "silu".
        layer_norm_epsilon: float.
        norm_first: whether norms come before sublayers instead of after, with a final norm in
            encoder and decoder.
        scale_embeddings: whether token embeddings are multiplied by the square root of
            `hidden_dim`.
        dtype: string or policy.

    Example:

    >>> backbone = TransformerSeq2SeqBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> inputs = {"encoder_token_ids": [[5, 7, 9]], "decoder_token_ids": [[1, 4]]}
    >>> outputs = backbone(inputs)
    >>> [tuple(outputs[f"{name}_sequence_output"].shape) for name in ("encoder", "decoder")]
    [(1, 3, 8), (1, 2, 8)]

    Source: Vaswani et al. 2017, arXiv 1706.03762.
    """

    family = "marian"
    setting_names = (
        *("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim"),
        *("num_decoder_layers", "num_decoder_heads", "decoder_intermediate_dim", "dropout"),
        *("attention_dropout", "max_sequence_length", "activation", "layer_norm_epsilon"),
        *("norm_first", "scale_embeddings"),
    )

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        num_decoder_layers: int | None = None,
        num_decoder_heads: int | None = None,
        decoder_intermediate_dim: int | None = None,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        max_sequence_length: int = 512,
        activation: str = "relu",
        layer_norm_epsilon: float = 1e-5,
        norm_first: bool = False,
        scale_embeddings: bool = True,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        check_process()
        num_decoder_layers = num_layers if num_decoder_layers is None else num_decoder_layers
        num_decoder_heads = num_heads if num_decoder_heads is None else num_decoder_heads
        if decoder_intermediate_dim is None:
            decoder_intermediate_dim = intermediate_dim
        self._set_settings(locals(), SETTINGS | LINEAGE_SETTINGS)
        check_heads(hidden_dim, num_heads)
        check_heads(hidden_dim, num_decoder_heads, "num_decoder_heads")

        # === Layers ===
        self.token_embedding = keras.layers.ReversibleEmbedding(
            vocabulary_size,
            hidden_dim,
            embeddings_initializer=keras.initializers.RandomNormal(
                stddev=hidden_dim**-0.5 if scale_embeddings else 0.02
            ),
            dtype=dtype,
            name="token_embedding",
        )
        self.positions = SinusoidalPositions(max_sequence_length, dtype=dtype, name="positions")
        self.embeddings_dropout = TokenDropout(dropout, dtype=dtype, name="embeddings_dropout")
        self.padding_mask = AttentionMask(name="padding_mask")
        self.causal_mask = AttentionMask(is_causal=True, name="causal_mask")
        shared = {
            "activation": activation,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "layer_norm_epsilon": layer_norm_epsilon,
            "norm_first": norm_first,
            "dtype": dtype,
        }
        self.encoder_layers = [
            TransformerBlock(num_heads, intermediate_dim, name=f"encoder_layer_{i}", **shared)
            for i in range(num_layers)
        ]
        self.decoder_layers = [
            TransformerDecoderBlock(
                num_decoder_heads, decoder_intermediate_dim, name=f"decoder_layer_{i}", **shared
            )
            for i in range(num_decoder_layers)
        ]
        self.encoder_norm = self.decoder_norm = None
        if norm_first:
            self.encoder_norm, self.decoder_norm = (
                layer_norm(layer_norm_epsilon, True, dtype, name)
                for name in ("encoder_norm", "decoder_norm")
            )

        # === Functional model ===
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in INPUTS}
        memory = self.encode(inputs["encoder_token_ids"], inputs["encoder_padding_mask"])
        outputs = {
            "encoder_sequence_output": memory,
            "decoder_sequence_output": self._decode(inputs, memory),
        }
        super().__init__(inputs=inputs, outputs=outputs, dtype=dtype, **kwargs)

    # === From inputs to outputs ===

    def _embed(self, token_ids, start_index=None):
        x = self.token_embedding(token_ids)  # (B, T, D)
        if self.scale_embeddings:
            x = ops.multiply(x, self.hidden_dim**0.5)
        return self.embeddings_dropout(ops.add(x, self.positions(x, start_index=start_index)))

    def encode(self, token_ids: Tensor, padding_mask: Tensor) -> Tensor:
        """Encode token ids (B, S) with a padding mask (B, S) to outputs (B, S, D)."""
        x, mask = self._embed(token_ids), self.padding_mask(padding_mask)
        for block in self.encoder_layers:
            x = block(x, attention_mask=mask)
        return x if self.encoder_norm is None else self.encoder_norm(x)

    def _decode(self, inputs, memory):
        x = self._embed(inputs["decoder_token_ids"])
        mask = self.causal_mask(inputs["decoder_padding_mask"])
        memory_mask = self.padding_mask(inputs["encoder_padding_mask"])
        for block in self.decoder_layers:
            x = block(x, memory, memory_mask=memory_mask, attention_mask=mask)
        return x if self.decoder_norm is None else self.decoder_norm(x)

    def keys_values(self, memory: Tensor) -> Tensor:
        """Compute the keys and values of cross-attention: a tuple of (B, 2, S, N, H) per layer."""
        return tuple(block.cross_attention.keys_values(memory) for block in self.decoder_layers)

    def decode_with_cache(
        self,
        token_ids: ArrayLike,
        memory_mask: Tensor,
        keys_values: Tensor,
        cache: Tensor,
        cache_update_index: int,
    ) -> tuple[Any, Any]:
        """Decode the next C tokens of cached texts.

        Args:
            token_ids: ints (B * K, C). K consecutive rows share one source.
            memory_mask: (B, S). Padding mask of the sources.
            keys_values: the result of `keys_values`.
            cache: tuple of a tensor (B * K, 2, T, N, H) per layer.
            cache_update_index: position of the first of the C tokens.

        Returns:
            `(outputs, cache)`, with outputs (B * K, C, D).
        """
        x = self._embed(token_ids, cache_update_index)
        queries = cache_update_index + ops.arange(ops.shape(token_ids)[1], dtype="int32")
        keys = ops.arange(ops.shape(cache[0])[2], dtype="int32")
        mask = is_seen(queries, keys, True, None)
        memory_mask = self.padding_mask(memory_mask)
        filled = []
        for block, own, pair in zip(self.decoder_layers, cache, keys_values):
            x, own = block(
                x,
                memory_mask=memory_mask,
                attention_mask=mask,  # (C, T)
                keys_values=pair,
                cache=own,
                cache_update_index=cache_update_index,
            )
            filled.append(own)
        return x if self.decoder_norm is None else self.decoder_norm(x), tuple(filled)


# KerasHub's loader finds a preset's tokenizer and preprocessor by its backbone.
for _cls in (TransformerSeq2SeqLMPreprocessor, MarianTokenizer):
    _cls.backbone_cls = TransformerSeq2SeqBackbone
