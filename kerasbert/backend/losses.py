"""Plain forms of kernels of losses and metrics.

B batch, P predictions, V vocabulary size.
"""

from keras import ops

from kerasbert.backend import kernel


@kernel
def cross_entropy(labels, logits):
    """Compute the cross-entropy of each prediction, without Keras' one-hot labels.

    One-hot labels are as large as the logits: with 30,522 tokens on a CPU, loss and gradient took
    2.8 times as long on JAX, and 1.5 times on PyTorch.

    Args:
        labels: int32 ids (B, P).
        logits: floats (B, P, V).

    Returns:
        floats (B, P).
    """
    labeled = ops.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return log_sum_exp(logits) - labeled


def log_sum_exp(logits):
    """Compute log(sum(exp(logits))) over the last axis; PyTorch's function has slow gradients."""
    highest = ops.stop_gradient(ops.max(logits, axis=-1))  # (B, P)
    return ops.log(ops.sum(ops.exp(logits - highest[..., None]), axis=-1)) + highest


@kernel
def first_choice(logits):
    """Compute the argmax of logits (B, P, V), with the lowest index for ties: int32 (B, P).

    XLA fuses this arithmetic with the loss at almost no cost; its argmax takes twice the time of
    loss and gradient. It is exact for vocabularies of up to 2 ** 24 tokens.
    """
    below = ops.max(logits, axis=-1, keepdims=True) - logits  # 0 for the largest
    places = ops.arange(logits.shape[-1], dtype="float32")
    return ops.cast(ops.min(places + ops.minimum(below * 1e30, 1e9), axis=-1), "int32")
