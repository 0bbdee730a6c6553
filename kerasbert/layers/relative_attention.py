"""Relative attention of Transformer-XL and XLNet, with memory and two-stream attention.

B batch, T tokens, P predictions, M tokens of the memory, K = M + T keys, R distances, D width,
L layers, N heads, H head width.
"""

import keras
from keras import ops

from kerasbert.backend.attention import heads_attention, split_heads
from kerasbert.backend.layers import of_tokens
from kerasbert.base.keywords import ChecksKeywords
from kerasbert.layers.attention import projection
from kerasbert.layers.block import only_blocks_remat
from kerasbert.layers.token_layers import TokenDropout


@keras.saving.register_keras_serializable(package="kerasbert")
class RelativeContext(ChecksKeywords, keras.layers.Layer):
    """Layer that computes shared arguments of `RelativeAttention` layers.

    Args:
        is_causal: whether a token attends only to itself and earlier tokens.
        span: maximum number of tokens, itself included, that a token attends to; `None` for no
            limit.
        clamp_length: limit to which relative positions are clamped; `None` for no limit.
        dropout: dropout of the distance encodings.
        bias_shape: `(N, H)` if all layers share the query biases; `None` if each has its own.

    Example:

    >>> context = RelativeContext(is_causal=True)(np.ones((1, 3, 8), "float32"))
    >>> tuple(context["positions"].shape), tuple(context["attention_mask"].shape)
    ((4, 8), (1, 1, 3, 3))
    """

    def __init__(
        self,
        is_causal=False,
        span=None,
        clamp_length=None,
        dropout=0.0,
        bias_shape=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.is_causal = is_causal
        self.span = span
        self.clamp_length = clamp_length
        self.dropout = dropout
        self.bias_shape = bias_shape

    def build(self, inputs_shape):
        self.dropout_layer = TokenDropout(self.dropout, dtype=self.dtype_policy, name="dropout")
        only_blocks_remat([self, self.dropout_layer])
        if self.bias_shape is not None:
            self.content_bias, self.position_bias = _biases(self, self.bias_shape)

    def call(
        self,
        inputs,
        memory=None,
        padding_mask=None,
        segment_ids=None,
        hidden_mask=None,
        training=False,
    ):
        """Compute the arguments.

        Args:
            inputs: (B, T, D).
            memory: (B, L, M, D), the memory of each layer.
            padding_mask: (B, T), true or 1 at tokens.
            segment_ids: ints (B, T). Tokens of the memory have segment 0.
            hidden_mask: (B, T, T), true or 1 where a token must not attend to another one.
            training: bool.

        Returns:
            A dict of `positions` (R, D), the encodings of distances from K downward; and
            `attention_mask` and, without attention to itself, `query_mask`, bools broadcastable to
            (B, 1, T, K). With `segment_ids`, also `other_segment`, bool (B, 1, T, K), true for two
            different segments. With `bias_shape`, also `biases` (2, N, H).
        """
        batch, length, width = ops.shape(inputs)
        past = 0 if memory is None else ops.shape(memory)[2]
        keys = past + length
        far = keys - ops.arange(keys + (1 if self.is_causal else length), dtype="int32")  # (R,)
        if self.clamp_length is not None:
            far = ops.clip(far, -self.clamp_length, self.clamp_length)
        found = {"positions": self._encode(far, width, training)}
        distance = (
            past
            + ops.arange(length, dtype="int32")[:, None]
            - ops.arange(keys, dtype="int32")[None]
        )[None, None]  # (1, 1, T, K)
        seen = distance >= 0 if self.is_causal else ops.ones_like(distance, dtype="bool")
        if self.span is not None:
            seen = ops.logical_and(seen, distance < self.span)

        def with_past(mask):
            """Extend a mask (..., T) to (..., K): all tokens attend to all of the memory."""
            if memory is None:
                return mask
            shape = (*ops.shape(mask)[:-1], past)
            return ops.concatenate([ops.ones(shape, dtype="bool"), mask], axis=-1)

        if padding_mask is not None:
            is_token = with_past(ops.cast(padding_mask, "bool"))[:, None, None]
            seen = ops.logical_and(seen, is_token)
        if hidden_mask is not None:
            shown = ops.logical_not(ops.cast(hidden_mask, "bool"))
            seen = ops.logical_and(seen, with_past(shown)[:, None])
        # Keras expects the same outputs from every call.
        found["query_mask"] = seen
        # Even padding attends to itself, so that each row has a key.
        found["attention_mask"] = ops.logical_or(seen, distance == 0)
        if segment_ids is not None:
            ids = ops.cast(segment_ids, "int32")
            before = ops.zeros((batch, past), dtype="int32")
            own = ids if memory is None else ops.concatenate([before, ids], axis=-1)
            found["other_segment"] = ops.not_equal(ids[:, :, None], own[:, None])[:, None]
        if self.bias_shape is not None:
            both = [self.content_bias[None], self.position_bias[None]]
            found["biases"] = ops.concatenate(both, axis=0)
        return found

    def _encode(self, far, width, training):
        """Compute sinusoidal encodings (R, D) of distances (R,)."""
        steps = ops.cast(ops.arange(0, width, 2, dtype="int32"), "float32")
        angles = ops.cast(far, "float32")[:, None] / ops.power(10000.0, steps / width)[None]
        positions = ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)[:, :width]
        return self.dropout_layer(ops.cast(positions, self.compute_dtype), training=training)

    def compute_output_spec(
        self,
        inputs,
        memory=None,
        padding_mask=None,
        segment_ids=None,
        hidden_mask=None,
        training=False,
    ):
        batch, length, width = inputs.shape
        keys = length if memory is None else None

        def mask(rows):
            return keras.KerasTensor((rows, 1, length, keys), dtype="bool")

        found = {"positions": keras.KerasTensor((None, width), dtype=self.compute_dtype)}
        given = hidden_mask is not None or padding_mask is not None
        found["attention_mask"] = mask(batch if given else 1)
        found["query_mask"] = mask(batch if given else 1)
        if segment_ids is not None:
            found["other_segment"] = mask(batch)
        if self.bias_shape is not None:
            found["biases"] = keras.KerasTensor((2, *self.bias_shape), dtype=self.compute_dtype)
        return found

    def get_config(self):
        return {
            **super().get_config(),
            "is_causal": self.is_causal,
            "span": self.span,
            "clamp_length": self.clamp_length,
            "dropout": self.dropout,
            "bias_shape": self.bias_shape,
        }


def _biases(layer, shape):
    """Add the query biases (N, H) of content and position scores."""
    return [
        layer.add_weight(
            name=name, shape=tuple(shape), initializer=keras.initializers.TruncatedNormal(0.0, 0.02)
        )
        for name in ("content_bias", "position_bias")
    ]


@keras.saving.register_keras_serializable(package="kerasbert")
class RelativeAttention(ChecksKeywords, keras.layers.Layer):
    """Multi-head attention of Transformer-XL and XLNet, for `TransformerBlock(attention=...)`.

    Scores add a content term, a distance term and, with segments, a term for equal or different
    segments.

    Args:
        num_heads: int. Must divide the width of the input.
        dropout: dropout of the attention probabilities in training.
        has_segments: whether scores have a segment term.
        shares_biases: whether the query biases come from `RelativeContext`.
        kernel_initializer: an initializer.

    Example:

    >>> x = np.ones((1, 3, 8), "float32")
    >>> tuple(RelativeAttention(num_heads=2)(x, **RelativeContext()(x)).shape)
    (1, 3, 8)

    Source: Dai et al. 2019, arXiv 1901.02860, section 3.3; Yang et al. 2019, arXiv 1906.08237.
    """

    def __init__(
        self,
        num_heads,
        dropout=0.0,
        has_segments=False,
        shares_biases=False,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.dropout = dropout
        self.has_segments = has_segments
        self.shares_biases = shares_biases
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, inputs_shape):
        width = inputs_shape[-1]
        self.qkv = projection(self, inputs_shape, 3 * width, "qkv", use_bias=False)
        self.position_dense = projection(self, inputs_shape, width, "position", use_bias=False)
        self.output_dense = projection(self, inputs_shape, width, "output", use_bias=False)
        shape = (self.num_heads, width // self.num_heads)
        if not self.shares_biases:
            self.content_bias, self.position_bias = _biases(self, shape)
        if self.has_segments:
            self.segment_bias, self.segment_embedding = (
                self.add_weight(name=name, shape=size, initializer=self.kernel_initializer.clone())
                for name, size in (("segment_bias", shape), ("segment_embedding", (2, *shape)))
            )
        self.dropout_layer = TokenDropout(self.dropout, dtype=self.dtype_policy, name="dropout")

    def call(
        self,
        inputs,
        attention_mask=None,
        training=False,
        return_attention_scores=False,
        positions=None,
        memory=None,
        other_segment=None,
        biases=None,
        query_mask=None,
        target_mapping=None,
    ):
        """Apply relative attention; for other arguments, see `RelativeContext`.

        Args:
            inputs: (B, T, D), or with `target_mapping` (B, T + P, D): tokens, then the predictions'
                query stream, to which nothing attends.
            memory: (B, M, D), earlier inputs of this layer.
            target_mapping: (B, P, T), 1 at the position of each prediction.
            return_attention_scores: bool.

        Returns:
            The outputs, in the shape of the inputs. With `return_attention_scores`, also the
            attention probabilities of the tokens (B, N, T, K).
        """
        width = inputs.shape[-1]
        length = ops.shape(inputs)[1] if target_mapping is None else ops.shape(target_mapping)[2]
        past = 0 if memory is None else ops.shape(memory)[1]
        # Queries of the memory are dropped.
        x = inputs if memory is None else ops.concatenate([memory, inputs], axis=1)
        heads = (self.num_heads, width // self.num_heads)
        query, key, value = split_heads(self.qkv(x), self.num_heads, None)  # (B, S, N, H)
        keys = past + length
        query, targets = query[:, past:keys], query[:, keys:]
        key, value = key[:, :keys], value[:, :keys]
        distances = ops.reshape(self.position_dense(positions[None]), (-1, *heads))  # (R, N, H)
        distances = ops.transpose(distances, (1, 2, 0))[None]  # (1, N, H, R)
        content, position = (
            (self.content_bias, self.position_bias) if biases is None else (biases[0], biases[1])
        )
        rate = self.dropout if training else 0.0

        def attend(query, mask):
            return heads_attention(
                query + ops.cast(content, query.dtype),
                key,
                value,
                mask,
                rate,
                self.dropout_layer.seed_generator if rate else None,
                return_attention_scores,
                bias=self._bias(query, keys, distances, position, other_segment),
            )

        outputs, maps = attend(query, attention_mask)
        if target_mapping is not None:
            mapping = ops.cast(target_mapping, inputs.dtype)  # (B, P, T)
            # At the positions of their tokens, for the distances.
            placed = ops.einsum("bpt,bpnh->btnh", mapping, targets)
            found, _ = attend(placed, query_mask)
            found = ops.einsum("bpt,btnh->bpnh", mapping, found)
            outputs = ops.concatenate([outputs, found], axis=1)
        outputs = self.output_dense(of_tokens(outputs, width))
        return (outputs, maps) if return_attention_scores else outputs

    def _bias(self, query, keys, distances, position, other_segment):
        """Compute the terms (B, N, T, K) of distances and segments, scaled as the content term."""

        def biased(bias):
            both = query + ops.cast(bias, query.dtype)
            return ops.transpose(both, (0, 2, 1, 3))  # (B, N, T, H)

        scores = relative_shift(ops.matmul(biased(position), distances), keys)
        if self.has_segments and other_segment is not None:
            table = ops.transpose(self.segment_embedding, (1, 2, 0))[None]  # (1, N, H, 2)
            of_segment = ops.matmul(biased(self.segment_bias), ops.cast(table, query.dtype))
            same, other = ops.split(of_segment, 2, axis=-1)  # (B, N, T, 1) each
            scores = scores + ops.where(other_segment, other, same)
        return scores * ops.cast(query.shape[-1] ** -0.5, query.dtype)

    def compute_output_spec(self, inputs, **kwargs):
        return keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "dropout": self.dropout,
            "has_segments": self.has_segments,
            "shares_biases": self.shares_biases,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


def relative_shift(x, keys):
    """Convert scores by distance to scores by key: token i and key j are in column T - i + j.

    Reshaping to rows one column shorter shifts each row by one more.

    Args:
        x: (B, N, T, R).
        keys: int. K.

    >>> x = np.arange(8.0).reshape(1, 1, 2, 4)
    >>> np.asarray(relative_shift(x, 2))[0, 0].tolist()
    [[2.0, 3.0], [5.0, 6.0]]
    """
    batch, heads, length, count = ops.shape(x)
    x = ops.reshape(x, (batch, heads, count, length))[:, :, 1:]
    return ops.reshape(x, (batch, heads, length, count - 1))[:, :, :, :keys]
