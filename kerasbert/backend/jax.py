"""What XLA does not find by itself on a GPU: attention, norms, cheaper dropout, layouts."""

import numpy as np


def on_gpu():
    """Whether JAX computes on a GPU."""
    import jax

    return jax.default_backend() == "gpu"


def keep_mask(key, rate, shape):
    """Bools, `True` with probability `1 - rate`, from the two 32-bit words of `key`.

    A hash of each element's number, which XLA computes wherever it needs the mask. JAX's own
    generator takes about ten times the operations: a tenth of a training step on a GPU.

    Source of the hash: Wellons 2018, github.com/skeeto/hash-prospector, "lowbias32".
    """
    import jax
    from jax import numpy as jnp

    number = jnp.zeros(shape, "uint32")
    for axis, size in enumerate(shape):
        number = number * np.uint32(size) + jax.lax.broadcasted_iota("uint32", shape, axis)

    def scatter(x):
        x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
        x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
        return x ^ (x >> 16)

    bits = scatter(scatter(number ^ key[0]) + key[1])
    return bits >= np.uint32(round(rate * 2**32))


def dropout(inputs, rate, seed):
    """`inputs` with a share `rate` of zeros, and the rest larger by as much.

    Args:
        inputs: tensor.
        rate: float.
        seed: a `keras.random.SeedGenerator`.
    """
    from jax import numpy as jnp

    keep = keep_mask(_random_bits(seed), rate, inputs.shape)
    return jnp.where(keep, inputs * np.asarray(1 / (1 - rate), inputs.dtype), 0)


def repeat(rows, count):
    """Rows (1, T, D) for each of `count` examples, (B, T, D).

    The gradient is a product with ones, not a sum over the examples: to sum fast, XLA would lay
    all that goes through the encoder out with the examples innermost, and transpose it for each
    of its products.
    """
    from jax import numpy as jnp

    ones = jnp.ones((count, 1), rows.dtype)
    return (ones @ rows.reshape(1, -1)).reshape(count, *rows.shape[1:])


def full_mask(mask, length):
    """A mask of attention with a row for each query: cuDNN takes none without."""
    from jax import numpy as jnp

    return jnp.broadcast_to(mask, (*mask.shape[:2], length, length))


def attention(query, key, value, mask, rate, seed):
    """Attention with dropout of its maps, which no kernel that JAX offers has.

    B batch, T tokens, N heads, H width of a head. Two passes over the maps forward and one
    backward, which takes the sum over a map's row from the outputs (FlashAttention, arXiv
    2205.14135, appendix B.4). XLA makes four of the gradient that JAX would derive, at half
    the speed of memory.

    Args:
        query: (B, T, N, H), as `key` and `value`.
        mask: bool, broadcastable to (B, N, T, T), or `None`.
        rate: float.
        seed: a `keras.random.SeedGenerator`.
    """
    import jax
    from jax import numpy as jnp

    dtype, scale = query.dtype, query.shape[-1] ** -0.5
    bias = None if mask is None else jnp.where(mask, np.float32(0), np.float32(-1e9))

    def widened(scores, bias):
        wide = scores.astype("float32")
        return wide if bias is None else wide + bias

    def dropped(maps, key):
        keep = keep_mask(key, rate, maps.shape)
        return jnp.where(keep, maps * np.float32(1 / (1 - rate)), 0)

    def forward(query, key, value, bias, bits):
        query = query * np.asarray(scale, dtype)
        scores = jnp.einsum("btnh,bsnh->bnts", query, key)
        wide = widened(scores, bias)
        # With barriers, as XLA's fusion of a whole softmax is the slower one.
        highest = jax.lax.optimization_barrier(jnp.max(wide, axis=-1, keepdims=True))
        total = jnp.sum(jnp.exp(wide - highest), axis=-1, keepdims=True)
        total = jax.lax.optimization_barrier(highest + jnp.log(total))  # (B, N, T, 1)
        maps = dropped(jnp.exp(wide - total), bits).astype(dtype)
        outputs = jnp.einsum("bnts,bsnh->btnh", maps, value)
        return outputs, (query, key, value, bias, bits, scores, total, maps, outputs)

    def backward(kept, gradient):
        query, key, value, bias, bits, scores, total, maps, outputs = kept
        # Drawn again, not kept: the barrier hides from XLA that it is the same.
        bits = jax.lax.optimization_barrier(bits)
        row = jnp.einsum("btnh,btnh->bnt", gradient, outputs, preferred_element_type="float32")[
            ..., None
        ]
        of_maps = jnp.einsum("btnh,bsnh->bnts", gradient, value).astype("float32")
        of_scores = jnp.exp(widened(scores, bias) - total) * (dropped(of_maps, bits) - row)
        of_scores = of_scores.astype(dtype)
        return (
            jnp.einsum("bnts,bsnh->btnh", of_scores, key) * np.asarray(scale, dtype),
            jnp.einsum("bnts,btnh->bsnh", of_scores, query),
            jnp.einsum("bnts,btnh->bsnh", maps, gradient),
            None,
            None,
        )

    function = jax.custom_vjp(lambda *args: forward(*args)[0])
    function.defvjp(forward, backward)
    return function(query, key, value, bias, _random_bits(seed))


def layer_norm(x, gamma, beta, epsilon):
    """Layer normalization of the last axis, with a gradient of two sums instead of three.

    XLA computes what follows from sums in every place that needs it, the sums too, unless a
    barrier holds them.
    """
    import jax
    from jax import numpy as jnp

    dtype = x.dtype

    def centred(x, mean, root):
        return (x.astype("float32") - mean) * root

    def forward(x, gamma, beta):
        wide = x.astype("float32")
        mean = jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(wide - mean), axis=-1, keepdims=True)
        root = jax.lax.rsqrt(variance + np.float32(epsilon))
        mean, root = jax.lax.optimization_barrier((mean, root))
        outputs = centred(x, mean, root) * gamma
        outputs = outputs if beta is None else outputs + beta
        return outputs.astype(dtype), (x, gamma, beta, mean, root)

    def backward(kept, gradient):
        x, gamma, beta, mean, root = kept
        wide = gradient.astype("float32")
        scaled, normal = wide * gamma, centred(x, mean, root)
        first = jnp.mean(scaled, axis=-1, keepdims=True)
        second = jnp.mean(scaled * normal, axis=-1, keepdims=True)
        of_x = root * (scaled - first - normal * second)
        of_x = jax.lax.optimization_barrier(of_x.astype(dtype))
        axes = tuple(range(x.ndim - 1))
        x, gradient = jax.lax.optimization_barrier((x, gradient))
        wide = gradient.astype("float32")
        of_gamma = jnp.sum(wide * centred(x, mean, root), axis=axes)
        of_beta = None if beta is None else jnp.sum(wide, axis=axes)
        return of_x, of_gamma, of_beta

    function = jax.custom_vjp(lambda *args: forward(*args)[0])
    function.defvjp(forward, backward)
    gamma = jnp.asarray(gamma, "float32")
    return function(x, gamma, None if beta is None else jnp.asarray(beta, "float32"))


def _random_bits(seed):
    """Two 32-bit words; those of a `SeedGenerator` itself are numbers in a row."""
    import jax

    return jax.random.bits(jax.random.wrap_key_data(seed.next(), impl="threefry2x32"), (2,))
