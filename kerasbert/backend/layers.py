"""Plain forms of layers' kernels, and shared operations.

B batch, T tokens, D width, U units, V vocabulary size.
"""

import keras
from keras import ops

from kerasbert.backend import kernel

# === Operations ===


@keras.saving.register_keras_serializable(package="kerasbert", name="_gelu_approximate")
def gelu_approximate(x):
    """Compute the tanh form of GELU."""
    return ops.gelu(x, approximate=True)


def at_least_float32(x):
    """Cast to float32, unless the dtype is wider.

    >>> keras.backend.standardize_dtype(at_least_float32(np.ones(2, "float16")).dtype)
    'float32'
    """
    is_wide = keras.backend.standardize_dtype(x.dtype) == "float64"
    return ops.cast(x, "float64" if is_wide else "float32")


def unit_length(x):
    """Normalize vectors (..., D) to unit length; zeros stay zeros, with a finite gradient.

    >>> vectors = unit_length(ops.array([[3.0, 4.0], [0.0, 0.0]]))
    >>> [[round(float(value), 4) for value in vector] for vector in vectors]
    [[0.6, 0.8], [0.0, 0.0]]
    """
    squares = ops.sum(ops.square(x), axis=-1, keepdims=True)
    # The bound comes before the root, whose gradient at zero is infinite.
    return ops.multiply(x, ops.rsqrt(ops.maximum(squares, 1e-24)))


def by_rows(inputs, function):
    """Flatten `inputs` (..., D) to (R, D), apply `function`, and reshape its (R, U) to (..., U)."""
    shape = ops.shape(inputs)
    outputs = function(ops.reshape(inputs, (-1, inputs.shape[-1])))
    return ops.reshape(outputs, (*shape[:-1], outputs.shape[-1]))


def with_bias(x, bias):
    """Add a bias, which may be `None`."""
    return x if bias is None else ops.add(x, bias)


@kernel
def is_known(size):
    """Return whether a tensor's size is known to Python while a graph is traced."""
    return isinstance(size, int)


def lengthen(x, axis, count):
    """Append `count` zeros at the end of an axis of `x`.

    >>> lengthen(ops.ones((1, 2)), 1, 3).shape[1]
    5
    """
    if isinstance(count, int) and count == 0:
        return x
    shape = list(ops.shape(x))
    shape[axis] = count
    return ops.concatenate([x, ops.zeros(shape, x.dtype)], axis=axis)


def tokens_at(x, positions):
    """Gather the tokens (B, P, ...) of `x` (B, T, ...) at int positions (B, P), all below T."""
    batch, length = ops.shape(x)[:2]
    rows = ops.reshape(x, (-1, *x.shape[2:]))  # (B * T, ...)
    first = length * ops.expand_dims(ops.arange(batch, dtype="int32"), -1)  # (B, 1)
    return ops.take(rows, ops.cast(positions, "int32") + first, axis=0)


@kernel
def one_by_one(function, x):
    """Apply `function` to each `x[i]` in sequence and stack the results.

    >>> [float(y) for y in one_by_one(lambda x: 2 * x, np.array([1.0, 3.0]))]
    [2.0, 6.0]
    """
    return ops.map(function, x)


# === Layers ===


@kernel
def dense(inputs, weights, bias=None, activation=None, training=False):
    """Apply a dense layer, (..., D) to (..., U): matmul, bias and activation.

    As a matrix, TensorFlow fuses all three operations, and PyTorch the first two.

    Args:
        inputs: (..., D).
        weights: (D, U).
        bias: (U,) or None.
        activation: function or None.
        training: bool.
    """

    def function(rows):
        outputs = with_bias(ops.matmul(rows, weights), bias)
        return outputs if activation is None else activation(outputs)

    return by_rows(inputs, function)


@kernel
def matmul_transposed(x, y):
    """Multiply (..., N, E) by the transpose of (..., V, E): (..., N, V).

    >>> float(matmul_transposed(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]]))[0, 0])
    11.0
    """
    return ops.matmul(x, ops.swapaxes(y, -1, -2))


@kernel
def highest_of_tokens(x):
    """Compute the maximum of each feature over the tokens: (B, T, V) to (B, V).

    >>> highest_of_tokens(ops.convert_to_tensor([[[1, 5], [4, 2]]])).shape[-1]
    2
    """
    return ops.max(x, axis=1)


@kernel
def norm(x, gamma, beta, epsilon, training=False):
    """Apply layer normalization over the last axis, with float32 statistics.

    Args:
        x: (..., D).
        gamma: (D,).
        beta: (D,) or None.
        epsilon: float.
        training: bool.
    """
    return ops.layer_normalization(x, gamma, beta, -1, epsilon)


@kernel
def dropout(x, rate, seed):
    """Set elements of `x` to zero with probability `rate`, and scale up the others.

    Args:
        x: tensor.
        rate: float.
        seed: a `keras.random.SeedGenerator`.
    """
    return keras.random.dropout(x, rate, seed=seed)


@kernel
def positions(table, offset, inputs):
    """Return T rows of `table`, starting at `offset`, for the T tokens of `inputs` (B, T, D).

    Returns:
        (1, T, D) or (B, T, D).
    """
    rows = ops.convert_to_tensor(table)[offset : offset + ops.shape(inputs)[1]]
    return ops.expand_dims(rows, 0)


@kernel
def of_tokens(x, *sizes):
    """Reshape the features of each token: (B, T, ...) to (B, T, *sizes).

    >>> tuple(of_tokens(np.ones((2, 3, 8)), 4, 2).shape)
    (2, 3, 4, 2)
    """
    return ops.reshape(x, (-1, ops.shape(x)[1], *sizes))
