"""Segment-level memory of Transformer-XL and XLNet, which is an explicit input and output.

B batch, T tokens, M memory tokens, L layers, D width.
"""

from keras import ops


def remember(states, memory, length):
    """Append each layer's inputs to the memory: (B, L, M, D), without gradients.

    Args:
        states: list of L tensors (B, T, D), the inputs of each layer.
        memory: (B, L, M, D), or `None`.
        length: maximum number of tokens to keep; `None` keeps all.
    """
    found = ops.stack(list(states), axis=1)
    if memory is not None:
        found = ops.concatenate([ops.cast(memory, found.dtype), found], axis=2)
    if length is not None:
        found = found[:, :, -length:] if length else found[:, :, :0]
    return ops.stop_gradient(found)


def check_memory(memory, token_ids, backbone):
    """Raise if a memory's shape does not match the backbone and the batch."""
    wanted = (token_ids.shape[0], backbone.num_layers, None, backbone.hidden_dim)
    shape = tuple(memory.shape)
    if len(shape) != 4 or any(
        w is not None and s is not None and w != s for s, w in zip(shape, wanted)
    ):
        batch, layers, _, width = wanted
        raise ValueError(
            f"memory has the shape {shape}, but {batch} texts need ({batch}, {layers}, tokens, "
            f"{width}); pass the memory returned for the previous segment of the same texts, or "
            "None for their first segment."
        )
