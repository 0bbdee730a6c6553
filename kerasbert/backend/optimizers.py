"""Plain forms of the kernels that update weights."""

from keras import ops

from kerasbert.backend import kernel


@kernel
def clip_by_global_norm(gradients, most):
    """Scale gradients down if their global norm exceeds `most`; `None` entries are kept."""
    squares = [ops.sum(ops.square(g)) for g in gradients if g is not None]
    length = ops.sqrt(ops.sum(ops.stack(squares)))
    scale = most * ops.minimum(1.0 / length, 1.0 / most)
    scale = scale + (length - length)  # NaN if the norm is infinite.
    return [g if g is None else g * scale for g in gradients]


@kernel
def decay(variables, share, rate):
    """Apply weight decay: subtract `share` times the learning rate times each variable.

    Args:
        variables: list of Keras variables.
        share: float.
        rate: function that returns the learning rate.

    Returns:
        bool. Whether the backend applied it.
    """
    return False


@kernel
def adam_step(variable, mean, square, gradient, beta_1, beta_2, rate, epsilon):
    """Update one variable in place by Adam, with bias correction in `rate` and `epsilon`.

    Returns:
        bool. Whether the backend applied it.
    """
    return False


@kernel
def adam_steps(variables, gradients, beta_1, beta_2, rate, epsilon, means, squares, highest=None):
    """Apply Adam's update of many tensors at once, on PyTorch.

    Args:
        highest: maxima of the second moments, for AMSGrad, or `None`.

    Returns:
        bool. Whether the backend applied it.
    """
    return False


@kernel
def train_only(optimizer, weights, places):
    """Restrict a built optimizer to some of its weights.

    Args:
        optimizer: a Keras optimizer.
        weights: list of variables.
        places: dict of `id(weight)` to the weight's index in the optimizer's lists.
    """
