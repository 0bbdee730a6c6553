"""What models remember of the text before: tensors that are given and taken, nothing hidden.

B batch, T tokens, M tokens of the memory, L layers, D width.
"""

from keras import ops


def remember(states, memory, length):
    """The last tokens of a memory and of what each layer got: (B, L, M, D), without gradients.

    Args:
        states: list of L tensors (B, T, D).
        memory: (B, L, M, D), or `None`.
        length: int. The most tokens; `None` keeps all.
    """
    found = ops.stack(list(states), axis=1)
    if memory is not None:
        found = ops.concatenate([ops.cast(memory, found.dtype), found], axis=2)
    if length is not None:
        found = found[:, :, -length:] if length else found[:, :, :0]
    return ops.stop_gradient(found)


def check_memory(memory, token_ids, backbone):
    """Raise for a memory of another model, or of another number of texts."""
    wanted = (token_ids.shape[0], backbone.num_layers, None, backbone.hidden_dim)
    shape = tuple(memory.shape)
    if len(shape) != 4 or any(
        w is not None and s is not None and w != s for s, w in zip(shape, wanted)
    ):
        batch, layers, _, width = wanted
        raise ValueError(
            f"memory has the shape {shape}, and {batch} texts need ({batch}, {layers}, tokens, "
            f"{width}); pass what the same texts gave before, or None at their beginning."
        )
