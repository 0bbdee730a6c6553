"""XLNet: an encoder with relative positions and two-stream attention.

B batch, T tokens, P predictions, M memory tokens, L layers, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.base.errors import check_heads
from kerasbert.base.process import check_process
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.families.settings import LINEAGE_SETTINGS, SETTINGS
from kerasbert.layers.block import TransformerBlock
from kerasbert.layers.relative_attention import RelativeAttention, RelativeContext
from kerasbert.layers.token_layers import TokenDropout
from kerasbert.lineage.memory import check_memory, remember

if TYPE_CHECKING:
    from typing import Any, Self

    from kerasbert.base.aliases import Tensor

_NAMES = (
    *("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim", "dropout"),
    *("activation", "layer_norm_epsilon", "is_causal", "clamp_length", "memory_length"),
    *("initializer_range", "finetuning_learning_rate"),
)


class _MaskEmbedding(keras.layers.Layer):
    """Layer that appends the learned embedding of the query stream once for each prediction.

    Without `mapping`, it returns the tokens unchanged: Keras tracks only weights of layers in the
    graph.
    """

    def build(self, inputs_shape):
        self.embedding = self.add_weight(
            name="embedding",
            shape=(1, 1, inputs_shape[-1]),
            initializer=keras.initializers.TruncatedNormal(0.0, 0.02),
        )

    def call(self, inputs, mapping=None):
        if mapping is None:
            return inputs
        batch, count, _ = ops.shape(mapping)
        vectors = ops.broadcast_to(self.embedding, (batch, count, inputs.shape[-1]))
        return ops.concatenate([inputs, ops.cast(vectors, inputs.dtype)], axis=1)

    def compute_output_spec(self, inputs, mapping=None):
        batch, length, width = inputs.shape
        shape = (batch, length if mapping is None else None, width)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)


class _Predictions(keras.layers.Layer):
    """Layer that selects the predictions (B, P, D), which follow the tokens."""

    def call(self, inputs, mapping):
        return inputs[:, ops.shape(mapping)[2] :]

    def compute_output_spec(self, inputs, mapping):
        shape = (inputs.shape[0], mapping.shape[1], inputs.shape[-1])
        return keras.KerasTensor(shape, dtype=self.compute_dtype)


@keras.saving.register_keras_serializable(package="kerasbert")
class XLNetBackbone(BertBackbone):
    """XLNet's encoder: Transformer-XL's attention, in both directions.

    Inputs are a dict of `token_ids`, `segment_ids` and `padding_mask`, each (B, T). Attention only
    uses whether tokens share a segment. The output is a dict of `sequence_output` (B, T, D).
    `read_on` takes and returns a memory; `predict_targets` computes the query stream.

    Args:
        vocabulary_size: int.
        num_layers: int.
        num_heads: int. Must divide `hidden_dim`.
        hidden_dim: int.
        intermediate_dim: width of the feed-forward network.
        dropout: dropout on embeddings, position encodings, attention probabilities and sublayer
            outputs.
        activation: string. See `BertBackbone`.
        layer_norm_epsilon: float.
        is_causal: whether attention is left-to-right.
        clamp_length: limit to which relative positions are clamped; `None` for no limit.
        memory_length: maximum number of memory tokens that `read_on` returns; 0 keeps all.
        initializer_range: float.
        finetuning_learning_rate: float. See `BertBackbone`.
        dtype: string or policy.

    Example:

    >>> backbone = XLNetBackbone(
    ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> tuple(backbone({"token_ids": np.ones((3, 5), "int32")})["sequence_output"].shape)
    (3, 5, 16)

    Source: Yang et al. 2019, arXiv 1906.08237.
    """

    # Its settings are fixed for XLNet.
    replaced_bases = (BertBackbone,)
    setting_names = _NAMES
    family = "xlnet"
    num_segments = 4
    max_sequence_length = 2**30
    embedding_dim = pooled_dense = final_layer_norm = global_tokens = None
    pooler = norm_first = False
    use_bias = True
    global_every = num_inner_repetitions = 1
    position_offset = 0

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        dropout: float = 0.1,
        activation: str = "gelu",
        layer_norm_epsilon: float = 1e-12,
        is_causal: bool = False,
        clamp_length: int | None = None,
        memory_length: int = 0,
        initializer_range: float = 0.02,
        finetuning_learning_rate: float | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        check_process()
        self._set_settings(locals(), SETTINGS | LINEAGE_SETTINGS)
        check_heads(hidden_dim, num_heads)

        def initializer():
            return keras.initializers.TruncatedNormal(stddev=initializer_range)

        # === Layers ===
        self.token_embedding = keras.layers.ReversibleEmbedding(
            vocabulary_size,
            hidden_dim,
            embeddings_initializer=initializer(),
            dtype=dtype,
            name="token_embedding",
        )
        self.mask_embedding = _MaskEmbedding(dtype=dtype, name="mask_embedding")
        self.embeddings_dropout = TokenDropout(dropout, dtype=dtype, name="embeddings_dropout")
        self.context = RelativeContext(
            is_causal, None, clamp_length, dropout, dtype=dtype, name="context"
        )
        self.transformer_layers = [
            TransformerBlock(
                num_heads,
                intermediate_dim,
                activation=activation,
                dropout=dropout,
                layer_norm_epsilon=layer_norm_epsilon,
                kernel_initializer=initializer(),
                attention=RelativeAttention(
                    num_heads,
                    dropout,
                    has_segments=True,
                    kernel_initializer=initializer(),
                    dtype=dtype,
                    name="attention",
                ),
                dtype=dtype,
                name=f"transformer_layer_{i}",
            )
            for i in range(num_layers)
        ]
        self.output_dropout = TokenDropout(dropout, dtype=dtype, name="output_dropout")
        self.attention_dropout = dropout

        # === Functional model ===
        names = ("token_ids", "segment_ids", "padding_mask")
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
        hidden_states, _ = self._encode(inputs)
        self.hidden_states = tuple(hidden_states)
        outputs = self._named_outputs(hidden_states)
        # `BertBackbone.__init__` is skipped, because it would build BERT.
        super(BertBackbone, self).__init__(inputs=inputs, outputs=outputs, dtype=dtype, **kwargs)

    def _encode(self, inputs, attention_scores=False, positions=None):
        if attention_scores:
            raise ValueError("XLNetBackbone returns no attention maps; ask for hidden states only.")
        return self._layers_of(inputs, positions=positions), []

    def _layers_of(
        self, inputs, memory=None, hidden_mask=None, target_mapping=None, positions=None
    ):
        """Return the outputs of embeddings and layers; predictions follow the tokens."""
        x = self.embeddings_dropout(self.token_embedding(inputs["token_ids"]))
        context = self.context(
            x,
            memory=memory,
            padding_mask=inputs["padding_mask"],
            segment_ids=inputs["segment_ids"],
            hidden_mask=hidden_mask,
        )
        mask = context.pop("attention_mask")
        x = self.mask_embedding(x, mapping=target_mapping)
        if target_mapping is None:
            context.pop("query_mask", None)
        else:
            context["target_mapping"] = target_mapping
        hidden_states = [x]
        for i, block in enumerate(self.transformer_layers):
            if memory is not None:
                context["memory"] = memory[:, i]
            is_last = i == len(self.transformer_layers) - 1
            x = block(
                x,
                attention_mask=mask,
                attention_inputs=context,
                positions=positions if is_last else None,
            )
            hidden_states.append(x)
        hidden_states[-1] = self.output_dropout(x)
        return hidden_states

    def predict_targets(
        self, inputs: Tensor, hidden_mask: Tensor, target_mapping: Tensor
    ) -> Tensor:
        """Compute the outputs (B, P, D) of the query stream, from which tokens are predicted.

        Args:
            inputs: dict of the model's inputs.
            hidden_mask: (B, T, T), true or 1 where a token must not attend to another one.
            target_mapping: (B, P, T), 1 at the position of each prediction.
        """
        states = self._layers_of(inputs, hidden_mask=hidden_mask, target_mapping=target_mapping)
        return _Predictions(dtype=self.dtype_policy)(states[-1], mapping=target_mapping)

    def read_on(
        self, inputs: Tensor, memory: Tensor = None, hidden_mask: Tensor = None
    ) -> tuple[Any, Any]:
        """Compute the outputs, and the memory for the next segment of the texts.

        Args:
            inputs: dict of the model's inputs.
            memory: (B, L, M, D), returned for the previous segment; `None` for the first.
            hidden_mask: (B, T, T), true or 1 where a token must not attend to another one.

        Returns:
            `(outputs, memory)`.
        """
        inputs = self.fill_in(inputs)
        if memory is not None:
            memory = ops.convert_to_tensor(memory)
            check_memory(memory, inputs["token_ids"], self)
        states = self._layers_of(inputs, memory, hidden_mask)
        return self._named_outputs(states), remember(
            states[:-1], memory, self.memory_length or None
        )

    def with_layers(self, layers: Any) -> Self:
        raise ValueError(
            "with_layers() copies layers of a BertBackbone, and XLNetBackbone does not support it."
        )
