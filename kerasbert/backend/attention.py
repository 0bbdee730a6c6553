"""Plain forms of the attention kernels, and their masks.

B batch, T tokens, S queries, D width, N heads, H head width; in local attention C blocks of W
tokens, which attend to K tokens each.
"""

import keras
from keras import ops

from kerasbert.backend import kernel
from kerasbert.backend.layers import (
    at_least_float32,
    dropout,
    is_known,
    lengthen,
    matmul_transposed,
    of_tokens,
    one_by_one,
    tokens_at,
)

# More than `LONG` tokens are computed for `TURN` queries at a time.
LONG, TURN = 1024, 256
# Up to this many windows, an ordinary mask is used.
SHORT = 3


# === All tokens ===


@kernel
def attention(
    projected, num_heads, mask=None, turn=None, dropout=0.0, seed=None, maps=False, bias=None
):
    """Compute self-attention from a fused projection.

    Args:
        projected: (B, T, 3 * D): queries, keys and values.
        num_heads: int.
        mask: bool, broadcastable to (B, N, T, T), true where attention is allowed.
        turn: function that rotates queries or keys (B, T, N, H) by position, or None.
        dropout: dropout of the attention probabilities.
        seed: a `keras.random.SeedGenerator` for the dropout.
        maps: whether to return the attention probabilities.
        bias: floats, broadcastable to (B, N, T, T), added to the scaled scores, or None.

    Returns:
        `(outputs, maps)`: (B, T, N, H), and the attention probabilities (B, N, T, T) or `None`.
    """
    query, key, value = split_heads(projected, num_heads, turn)
    return heads_attention(query, key, value, mask, dropout, seed, maps, bias)


@kernel
def heads_attention(query, key, value, mask=None, dropout=0.0, seed=None, maps=False, bias=None):
    """Compute attention of S queries to T keys; see `attention` for the other arguments.

    Args:
        query: (B, S, N, H).
        key, value: (B, T, N, H).

    Returns:
        `(outputs, maps)`: (B, S, N, H), and the attention probabilities (B, N, S, T) or `None`.
    """
    length = query.shape[1]
    query, key, value = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
    if not maps and not dropout and length is not None and length > LONG:
        return attend_in_turns(query, key, value, mask, bias=bias), None
    return attend(query, key, value, mask, dropout, seed, bias)


def split_heads(projected, num_heads, turn):
    """Split a fused projection into queries, keys and values, (B, T, N, H) each."""
    # Gradients of slices would be zero-padded and summed.
    parts = ops.split(projected, 3, axis=-1)  # (B, T, D) each
    width = parts[0].shape[-1] // num_heads
    query, key, value = (of_tokens(part, num_heads, width) for part in parts)
    return (query, key, value) if turn is None else (turn(query), turn(key), value)


def split_at_once(projected, num_heads):
    """Split a fused projection into queries, keys and values, (B, N, T, H) each.

    One transpose of all three saves a fifth of a batch's time.
    """
    width = projected.shape[-1] // (3 * num_heads)
    parts = of_tokens(projected, 3, num_heads, width)
    return ops.unstack(ops.transpose(parts, (2, 0, 3, 1, 4)), 3)


def attend(query, key, value, mask, rate, seed, bias=None):
    """Compute unfused attention.

    Args:
        query: (B, N, S, H).
        key, value: (B, N, T, H).
        bias: floats, broadcastable to (B, N, S, T), added to the scaled scores, or `None`.

    Returns:
        Outputs (B, S, N, H) and attention probabilities (B, N, S, T).
    """
    query = query * ops.cast(query.shape[-1] ** -0.5, query.dtype)
    scores = at_least_float32(matmul_transposed(query, key))
    if bias is not None:
        scores = scores + ops.cast(bias, scores.dtype)
        if mask is not None:
            # Replaced, so that a fully masked row is uniform even with a large bias.
            scores = ops.where(mask, scores, ops.cast(-1e9, scores.dtype))
    elif mask is not None:
        scores = scores + ops.cast(ops.where(mask, 0.0, -1e9), scores.dtype)
    scores = ops.cast(ops.softmax(scores), query.dtype)
    if rate:
        scores = dropout(scores, rate, seed)
    outputs = ops.matmul(scores, value)  # (B, N, S, H)
    return ops.transpose(outputs, (0, 2, 1, 3)), scores


def attend_in_turns(query, key, value, mask, turn=TURN, bias=None):
    """Compute `attend` for `turn` queries at a time, with gradient checkpointing.

    Attention probabilities of 8,192 tokens and 12 heads would take 3.2 GB per text and layer.
    """
    length, width = ops.shape(query)[2], query.shape[-1]
    turns = -(-length // turn)

    def in_turns(x):
        """Reshape (B, N, S, ...) to (turns, B, N, turn, ...)."""
        x = lengthen(x, 2, turns * turn - length)
        shape = ops.shape(x)
        x = ops.reshape(x, (*shape[:2], turns, turn, *shape[3:]))
        return ops.moveaxis(x, 2, 0)

    # A mask or bias with a row per query is split too.
    each, same = {"query": in_turns(query)}, {}
    for name, x in (("mask", mask), ("bias", bias)):
        if x is not None and x.shape[2] != 1:
            each[name] = in_turns(x)
        elif x is not None:
            # TensorFlow's loop loses a tensor created outside the graph.
            same[name] = ops.copy(x)

    def attend_once(own):
        own = same | own
        mask, bias = own.get("mask"), [own["bias"]] if "bias" in own else []
        # As an argument, the mask would need a gradient on TensorFlow.
        once = keras.remat(lambda *heads: attend(*heads[:3], mask, 0.0, None, *heads[3:])[0])
        return once(own["query"], key, value, *bias)

    outputs = one_by_one(attend_once, each)
    # (turns, B, turn, N, H)
    outputs = ops.moveaxis(outputs, 0, 1)
    outputs = ops.reshape(outputs, (-1, turns * turn, query.shape[1], width))
    return outputs[:, :length]


@kernel
def update_cache(cache, values, index):
    """Write keys and values (B, 2, S, N, H) of S tokens into a cache (B, 2, C, N, H) at `index`.

    The cache may be changed in place; use only the result.
    """
    return ops.slice_update(cache, (0, 0, index, 0, 0), values)


# === Masks ===


def token_mask(padding_mask, is_causal=False, window=None):
    """Compute the attention mask of `kerasbert.layers.AttentionMask`."""
    mask = ops.expand_dims(ops.cast(padding_mask, "bool"), (1, 2))
    if not is_causal and window is None:
        return mask
    position = ops.arange(ops.shape(padding_mask)[1], dtype="int32")
    return ops.logical_and(mask, is_seen(position, position, is_causal, window))


def is_seen(queries, keys, is_causal, window):
    """Return whether queries at positions (S,) may attend to keys at positions (T,): (S, T)."""
    distance = queries[:, None] - keys[None, :]
    seen = distance >= 0 if is_causal else distance == distance
    return seen if window is None else ops.logical_and(seen, ops.abs(distance) <= window // 2)


@kernel
def local_mask(padding_mask, is_causal, window):
    """Compute `token_mask`, or for longer texts a block mask for `local_attention`.

    Each block of W tokens attends to itself and to `window // 2` tokens on each side. A length
    unknown before the graph runs always gives a block mask.

    Args:
        padding_mask: (B, T).
        is_causal: bool.
        window: int.

    Returns:
        bool (B, 1, T, T) or (B, C, 1, W, K).
    """
    length, block, reach = ops.shape(padding_mask)[1], window, window // 2
    if not is_known(length):
        is_short = length <= SHORT * window
        block, reach = ops.where(is_short, length, block), ops.where(is_short, 0, reach)
    elif length <= SHORT * window:
        return token_mask(padding_mask, is_causal, window)
    count = -(-length // block)
    mask = ops.expand_dims(ops.cast(padding_mask, "bool"), (2, 3))  # (B, T, 1, 1)
    mask = in_blocks(mask, count, block, reach)  # (B * C, K, 1, 1)
    seen = is_seen(ops.arange(block), ops.arange(block + 2 * reach) - reach, is_causal, window)
    mask = ops.logical_and(ops.transpose(mask, (0, 2, 3, 1)), seen)  # (B * C, 1, W, K)
    return ops.reshape(mask, (-1, count, 1, block, block + 2 * reach))


# === Blocks of tokens ===


def in_blocks(x, count, block, reach):
    """Split tokens (B, T, N, H) into blocks with `reach` more tokens per side: (B * C, K, N, H).

    >>> x = ops.reshape(ops.arange(1, 6), (1, 5, 1, 1))
    >>> ops.convert_to_numpy(in_blocks(x, 3, 2, 1))[..., 0, 0].tolist()
    [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 0, 0]]
    """
    batch, length = ops.shape(x)[:2]
    sizes = x.shape[2:]
    x = lengthen(x, 1, count * block - length)
    x = ops.reshape(x, (-1, count, block, *sizes))
    if not (isinstance(reach, int) and reach == 0):
        none = ops.zeros((batch, 1, reach, *sizes), x.dtype)
        before = ops.concatenate([none, x[:, :-1, block - reach :]], axis=1)
        after = ops.concatenate([x[:, 1:, :reach], none], axis=1)
        x = ops.concatenate([before, x, after], axis=2)
    return ops.reshape(x, (-1, block + 2 * reach, *sizes))


def with_global_keys(mask, is_global, ranks):
    """Add global tokens to a mask of `local_mask`.

    Args:
        mask: bool (B, 1, T, T), or (B, C, 1, W, K).
        is_global: bool (B, G).
        ranks: ints (B, T), -1 at tokens that are not global.

    Returns:
        bool (B, 1, T, T); or (B, C, 1, W, K + G) for `local_attention`, with global tokens only as
        the last G keys of each block.
    """
    is_key = ranks >= 0
    if len(mask.shape) == 4:
        return ops.logical_or(mask, is_key[:, None, None])
    _, count, _, block, seen = ops.shape(mask)
    is_key = in_blocks(is_key[:, :, None, None], count, block, (seen - block) // 2)
    is_key = ops.reshape(is_key, (-1, count, 1, 1, seen))
    last = aligned(is_global)[:, None, None, None]
    last = ops.broadcast_to(last, (*ops.shape(mask)[:4], ops.shape(last)[-1]))
    return ops.concatenate([ops.logical_and(mask, ops.logical_not(is_key)), last], axis=-1)


def aligned(x):
    """Pad global tokens (B, G) to a multiple of 8, as GPUs' fused kernels require."""
    count = ops.shape(x)[1]
    return lengthen(x, 1, -count % 8) if is_known(count) else x


def local_attention(
    projected, num_heads, mask, turn=None, dropout=0.0, seed=None, bias=None, positions=None
):
    """Compute local attention by blocks, with memory linear in T.

    Args:
        mask: bool (B, C, 1, W, K), from `local_mask`, or (B, C, 1, W, K + G), from
            `with_global_keys`.
        bias: floats, broadcastable to (B, C, N, W, K), or None. Not available with `positions`.
        positions: ints (B, G), the positions of the last G keys of each block, or None.

    See `attention` for the other arguments and the return value.
    """
    length = ops.shape(projected)[1]
    _, count, _, block, seen = ops.shape(mask)
    query, key, value = split_heads(projected, num_heads, turn)
    sizes = query.shape[2:]
    query = in_blocks(query, count, block, 0)
    if positions is None:
        key, value = (in_blocks(x, count, block, (seen - block) // 2) for x in (key, value))
    else:
        positions = aligned(positions)
        few = ops.shape(positions)[1]

        def with_global(x):
            last = tokens_at(x, positions)[:, None]  # (B, 1, G, N, H)
            last = ops.broadcast_to(last, (ops.shape(x)[0], count, few, *sizes))
            x = in_blocks(x, count, block, (seen - few - block) // 2)
            return ops.concatenate([x, ops.reshape(last, (-1, few, *sizes))], axis=1)

        key, value = with_global(key), with_global(value)
    mask = ops.reshape(mask, (-1, 1, block, seen))
    if bias is not None and tuple(bias.shape[:2]) == (1, 1):
        bias = bias[0]  # Equal for all blocks.
    elif bias is not None:
        sizes_of_bias = ops.shape(bias)[2:]
        bias = ops.broadcast_to(bias, (ops.shape(projected)[0], count, *sizes_of_bias))
        bias = ops.reshape(bias, (-1, *sizes_of_bias))
    outputs, _ = heads_attention(query, key, value, mask, dropout, seed, bias=bias)
    return ops.reshape(outputs, (-1, count * block, *sizes))[:, :length], None
