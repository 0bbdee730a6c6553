"""Sliding-window attention with global tokens (Longformer).

B batch, T tokens, D width, G global tokens per row at most, N heads, H head width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert.backend.attention import heads_attention
from kerasbert.backend.layers import is_known, lengthen, of_tokens, tokens_at
from kerasbert.base.errors import check_whole
from kerasbert.base.keywords import ChecksKeywords
from kerasbert.families.settings import has_bias
from kerasbert.layers.attention import SelfAttention, projection

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor


def rule_mask(rule, token_ids, sep_token_id):
    """Return the `global_attention_mask` (B, K) of a rule; K may be smaller than T.

    Args:
        rule: "first", "before_separator" or "after_separator". "after_separator" begins two tokens
            after the first separator, which pairs may have twice.
        token_ids: ints (B, T).
        sep_token_id: int or None.

    >>> ids = np.array([[0, 7, 8, 2, 2, 9, 2, 1]])
    >>> rules = ("first", "before_separator", "after_separator")
    >>> [[int(x) for x in rule_mask(rule, ids, sep_token_id=2)[0]] for rule in rules]
    [[1], [1, 1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1]]

    Raises:
        ValueError: if the rule needs separators, and `sep_token_id` is `None`.
    """
    if rule == "first":
        return ops.ones_like(token_ids[:, :1])
    if sep_token_id is None:
        raise ValueError(
            f"global_tokens={rule!r} needs the id of the separator, but the encoder's sep_token_id "
            "is None; set sep_token_id to that of the tokenizer, or use global_tokens='first'."
        )
    is_separator = ops.cast(ops.equal(token_ids, sep_token_id), "int32")
    seen = ops.cumsum(is_separator, axis=1)
    if rule == "before_separator":
        has_one = ops.sum(is_separator, axis=1, keepdims=True) > 0
        return ops.cast(ops.logical_and(ops.equal(seen, 0), has_one), "int32")
    return ops.cast(ops.cumsum(ops.cast(seen > 0, "int32"), axis=1) > 2, "int32")


def check_global_mask(encoder, inputs):
    """Raise for a `global_attention_mask` (array or list) that an encoder cannot use."""
    mask = inputs.get("global_attention_mask")
    if mask is not None and encoder.global_tokens is None:
        raise ValueError(
            "The inputs have a global_attention_mask, but the encoder's global_tokens is None: its "
            f"family '{encoder.family}' has no global attention; leave it out."
        )
    if not isinstance(mask, (np.ndarray, list)):
        return
    mask = np.asarray(mask)
    odd = mask[(mask != 0) & (mask != 1)]
    if odd.size:
        raise ValueError(
            f"global_attention_mask has the value {odd[0]}; it must be 1 at global tokens and 0 at "
            "local ones, without padding, which padding_mask marks."
        )
    most = int(mask.sum(axis=-1).max(initial=0))
    if most > encoder.max_global_tokens:
        raise ValueError(
            f"global_attention_mask marks {most} tokens of a row, but the encoder's "
            f"max_global_tokens is {encoder.max_global_tokens}; load it with "
            f"max_global_tokens={most} or more, or mark fewer."
        )


@keras.saving.register_keras_serializable(package="kerasbert")
class GlobalTokens(ChecksKeywords, keras.layers.Layer):
    """Positions of the global tokens, for `GlobalAttention` and `AttentionMask`.

    Args:
        max_global_tokens: rows with more give NaN, because compiled code cannot raise an error.

    Example:

    >>> found = GlobalTokens()(np.array([[0, 1, 1]]), padding_mask=np.array([[1, 1, 0, 0]]))
    >>> ops.convert_to_numpy(found["global_ranks"]).tolist()
    [[-1, 0, -1, -1]]
    """

    def __init__(self, max_global_tokens: int = 256, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_whole("max_global_tokens", max_global_tokens)
        self.max_global_tokens = max_global_tokens
        self.built = True

    def call(self, inputs: Tensor, padding_mask: Tensor) -> dict[str, Tensor]:
        """Find the global tokens.

        Args:
            inputs: `global_attention_mask`, (B, K), 1 at global tokens. Tokens from K on, up to T,
                are local.
            padding_mask: (B, T).

        Returns:
            A dict of `global_positions`, ints (B, G), padded arbitrarily, `is_global`, bool (B, G),
            false at this padding, and `global_ranks`, ints (B, T), the number of global tokens
            before a global token, -1 at others.
        """
        count, length = ops.shape(inputs)[1], ops.shape(padding_mask)[1]
        if not is_known(count):
            most = ops.minimum(count, self.max_global_tokens)
        else:
            most = min(count, self.max_global_tokens)
        places = ops.cumsum(ops.ones_like(inputs, dtype="int32"), axis=1) - 1
        found = ops.logical_and(inputs > 0, ops.cast(padding_mask[:, :count], "bool"))
        ranks = ops.cumsum(ops.cast(found, "int32"), axis=1)
        if is_known(count) and count == 1:
            positions = places
        else:
            # Distinct keys give every sorting algorithm the same order.
            positions = ops.argsort(ops.where(found, places, places + count), axis=1)[:, :most]
        is_global = places[:, :most] < ranks[:, -1:]
        ranks = ops.where(found, ranks - 1, -1)
        return {
            "global_positions": ops.cast(positions, "int32"),
            "is_global": is_global,
            "global_ranks": lengthen(ranks + 1, 1, length - count) - 1,
        }

    def compute_output_spec(self, inputs: Tensor, padding_mask: Tensor) -> Any:
        batch, count = inputs.shape
        most = None if count is None else min(count, self.max_global_tokens)
        return {
            "global_positions": keras.KerasTensor((batch, most), dtype="int32"),
            "is_global": keras.KerasTensor((batch, most), dtype="bool"),
            "global_ranks": keras.KerasTensor(padding_mask.shape, dtype="int32"),
        }

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "max_global_tokens": self.max_global_tokens}


@keras.saving.register_keras_serializable(package="kerasbert")
class GlobalAttention(SelfAttention):
    """Self-attention in which global tokens attend to all tokens, for `TransformerBlock`.

    Other tokens attend to those that the mask allows, such as a local window and the global tokens.
    Global tokens have own projections of queries, and of the keys and values that they attend to.

    Args:
        num_heads: int. Must divide the width of the input.
        dropout: dropout of the attention probabilities in training.
        use_bias: bool.
        kernel_initializer: an initializer.

    Example:

    >>> layer = GlobalAttention(num_heads=2)
    >>> mask = np.ones((1, 3), "int32")
    >>> found = GlobalTokens()(mask[:, :1], padding_mask=mask)
    >>> tuple(layer(np.ones((1, 3, 8), "float32"), padding_mask=mask, **found).shape)
    (1, 3, 8)

    Source: Beltagy et al. 2020, arXiv 2004.05150, section 3.1.
    """

    def __init__(
        self,
        num_heads: int,
        dropout: float = 0.0,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, dropout, use_bias, None, kernel_initializer, **kwargs)

    def build(self, inputs_shape: Any) -> None:
        super().build(inputs_shape)
        width = inputs_shape[-1]
        self.query_global = projection(self, inputs_shape, width, "query_global", self.use_bias)
        self.kv_global = projection(self, inputs_shape, 2 * width, "kv_global", self.use_bias)

    def call(
        self,
        inputs: Tensor,
        attention_mask: Tensor = None,
        training: bool = False,
        return_attention_scores: bool = False,
        padding_mask: Tensor = None,
        global_positions: Tensor = None,
        is_global: Tensor = None,
        global_ranks: Tensor = None,
    ) -> Tensor:
        """Apply self-attention.

        Args:
            inputs: (B, T, D).
            attention_mask: a mask of `AttentionMask` with the same global tokens.
            training: bool.
            return_attention_scores: bool. Not available with a block mask.
            padding_mask: (B, T); where global tokens attend.
            global_positions, is_global, global_ranks: the outputs of `GlobalTokens`; `None` for no
                global tokens.

        Returns:
            (B, T, D). With `return_attention_scores`, also the attention probabilities
            (B, N, T, T).
        """
        has_global = global_positions is not None
        given = {}
        if has_global and attention_mask is not None and len(attention_mask.shape) == 5:
            given["positions"] = global_positions
        maps = return_attention_scores
        outputs, scores = self._attended(inputs, attention_mask, training, maps, **given)
        if has_global:
            query = self.query_global(tokens_at(inputs, global_positions))
            key, value = ops.split(self.kv_global(inputs), 2, axis=-1)
            width = inputs.shape[-1] // self.num_heads
            found, own = heads_attention(
                *(of_tokens(x, self.num_heads, width) for x in (query, key, value)),
                ops.cast(padding_mask, "bool")[:, None, None],
                maps=maps,
                **self._dropped(training),
            )
            outputs = _replaced(outputs, found, global_ranks)
            if maps:
                scores, own = (ops.transpose(x, (0, 2, 1, 3)) for x in (scores, own))
                scores = ops.transpose(_replaced(scores, own, global_ranks), (0, 2, 1, 3))
        outputs = self.output_dense(of_tokens(outputs, inputs.shape[-1]))
        return (outputs, scores) if return_attention_scores else outputs

    def compute_output_spec(
        self,
        inputs: Tensor,
        attention_mask: Tensor = None,
        training: bool | None = False,
        return_attention_scores: bool = False,
        **kwargs: Any,
    ) -> Any:
        return super().compute_output_spec(
            inputs, attention_mask, training, return_attention_scores
        )

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        for name in ("rotary_base", "rotary_factor", "rotary_value", "num_key_value_heads"):
            del config[name]
        return config


def _replaced(x, found, ranks):
    """Return `x` (B, T, N, F) with the rows of global tokens from `found` (B, G, N, F)."""
    count, ranks = ops.shape(found)[1], ranks[:, :, None, None]
    if is_known(count) and count == 1:
        rows = found  # Broadcasting replaces a gather.
    else:
        rows = tokens_at(found, ops.clip(ranks[:, :, 0, 0], 0, count - 1))
    x = ops.where(ranks >= 0, rows, x)
    if is_known(count) and count == x.shape[1]:
        return x  # There cannot be more global tokens.
    has_more = ops.max(ranks, axis=1, keepdims=True) >= count  # (B, 1, 1, 1)
    return x + ops.where(has_more, ops.cast(float("nan"), x.dtype), ops.cast(0, x.dtype))


def own_global_attention(encoder, initializer, dtype):
    """Return a layer's `GlobalAttention`.

    Raises:
        ValueError: if the encoder's settings conflict with it.
    """
    needed = {
        "position_embedding": ("learned", "none"),
        "position_bias": (None,),
        "is_causal": (False,),
        "num_key_value_heads": (None, encoder.num_heads),
    }
    for name, values in needed.items():
        if getattr(encoder, name) not in values:
            raise ValueError(
                f"global_tokens={encoder.global_tokens!r} needs {name}="
                f"{' or '.join(map(repr, values))}, got {getattr(encoder, name)!r}."
            )
    return GlobalAttention(
        encoder.num_heads,
        dropout=encoder.attention_dropout,
        use_bias=has_bias(encoder.use_bias, "attention"),
        kernel_initializer=initializer,
        dtype=dtype,
        name="attention",
    )
