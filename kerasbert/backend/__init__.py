"""Kernels: functions in `keras.ops` that a backend may replace with faster ones.

Functions marked `@kernel` are the plain forms. If the current backend's module has a function of
the same name, that one is called first; if it returns `None`, the plain form is used. Callers never
check which backend runs. The plain form remains available, as in `norm.plain`.

B batch, T tokens, D width, N heads, H head width, U units, P predictions, V vocabulary size; in
local attention C blocks of W tokens, which attend to K tokens each.
"""

import collections
import contextlib
import functools
import importlib
import threading

import keras
from keras import ops

from kerasbert.base.finite import checks_outputs
from kerasbert.base.memory import keep_freed_memory
from kerasbert.base.process import set_backend

# Attention over more than `LONG` tokens is computed for `TURN` queries at a time.
LONG, TURN = 1024, 256
# Texts of up to this many windows use an ordinary mask, not blocks.
SHORT = 3

_preferred = {}  # Kernels that override the backend's, by name.


def name():
    """Return the name of Keras' backend, for messages only, not to branch on."""
    return keras.backend.backend()


def has(kernel_name):
    """Return whether the backend has its own form of a kernel."""
    return hasattr(_module, kernel_name)


def kernel(plain):
    """Mark a function as the plain form of a kernel (decorator)."""
    own_name = plain.__name__

    # `_preferred` is global, since a context variable would break the graphs of `torch.compile`.
    @functools.wraps(plain)
    def call(*args, **kwargs):
        own = _preferred.get(own_name) or getattr(_module, own_name, None)
        outputs = None if own is None else own(*args, **kwargs)
        return plain(*args, **kwargs) if outputs is None else outputs

    call.plain = plain
    return call


@contextlib.contextmanager
def using(kernels):
    """Override kernels by name within a context, in all threads, for graphs that allow few ops.

    >>> ones = {"norm": lambda x, *args, **kwargs: ops.ones_like(x)}
    >>> with using(ones):
    ...     [float(value) for value in norm(np.zeros(2, "float32"), None, None, 1e-6)]
    [1.0, 1.0]
    """
    global _preferred
    before, _preferred = _preferred, kernels
    try:
        yield
    finally:
        _preferred = before


# === Layers ===


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
    # The lower bound is inside the root, because the root's gradient at zero is infinite.
    return ops.multiply(x, ops.rsqrt(ops.maximum(squares, 1e-24)))


def by_rows(inputs, function):
    """Flatten `inputs` (..., D), apply `function`, (R, D) to (R, U), and return (..., U)."""
    shape = ops.shape(inputs)
    outputs = function(ops.reshape(inputs, (-1, inputs.shape[-1])))
    return ops.reshape(outputs, (*shape[:-1], outputs.shape[-1]))


def with_bias(x, bias):
    """Add a bias, which may be `None`."""
    return x if bias is None else ops.add(x, bias)


@kernel
def dense(inputs, weights, bias=None, activation=None, training=False):
    """Compute matmul, bias and activation, (..., D) to (..., U), on inputs flattened to a matrix.

    TensorFlow then fuses all three operations, PyTorch the first two.

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
    """Take the maximum of each feature over the tokens: (B, T, V) to (B, V).

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
    """Set a share `rate` of the elements of `x` to zero, and scale up the others.

    Args:
        x: tensor.
        rate: float.
        seed: a `keras.random.SeedGenerator`.
    """
    return keras.random.dropout(x, rate, seed=seed)


@kernel
def positions(table, offset, inputs):
    """Return the rows of `table` from `offset` on for the T tokens of `inputs` (B, T, D).

    Returns:
        (1, T, D) or (B, T, D).
    """
    rows = ops.convert_to_tensor(table)[offset : offset + ops.shape(inputs)[1]]
    return ops.expand_dims(rows, 0)


@kernel
def of_tokens(x, *sizes):
    """Reshape the features of tokens, (B, T, ...) to (B, T, *sizes).

    >>> tuple(of_tokens(np.ones((2, 3, 8)), 4, 2).shape)
    (2, 3, 4, 2)
    """
    return ops.reshape(x, (-1, ops.shape(x)[1], *sizes))


@kernel
def attention(projected, num_heads, mask=None, turn=None, dropout=0.0, seed=None, maps=False):
    """Compute self-attention from a fused projection.

    Args:
        projected: (B, T, 3 * D): queries, keys and values.
        num_heads: int.
        mask: bool, broadcastable to (B, N, T, T), true where attention is allowed.
        turn: function that rotates queries or keys (B, T, N, H) by position, or None.
        dropout: float. Dropout of the attention probabilities.
        seed: a `keras.random.SeedGenerator` for the dropout.
        maps: bool. Whether to return the attention probabilities.

    Returns:
        `(outputs, maps)`: (B, T, N, H), and the attention probabilities (B, N, T, T) or `None`.
    """
    query, key, value = split_heads(projected, num_heads, turn)
    return heads_attention(query, key, value, mask, dropout, seed, maps)


@kernel
def heads_attention(query, key, value, mask=None, dropout=0.0, seed=None, maps=False):
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
        return attend_in_turns(query, key, value, mask), None
    return attend(query, key, value, mask, dropout, seed)


def split_heads(projected, num_heads, turn):
    """Split a fused projection into queries, keys and values, (B, T, N, H) each."""
    # `split`, because gradients of slices would be zero-padded and summed.
    parts = ops.split(projected, 3, axis=-1)  # (B, T, D) each
    width = parts[0].shape[-1] // num_heads
    query, key, value = (of_tokens(part, num_heads, width) for part in parts)
    return (query, key, value) if turn is None else (turn(query), turn(key), value)


def attend(query, key, value, mask, rate, seed, more=None):
    """Compute unfused attention.

    Args:
        query: (B, N, S, H).
        key, value: (B, N, T, H).
        more: (B, N, S, T), a bias on the scores, or `None`.

    Returns:
        Outputs (B, S, N, H) and attention probabilities (B, N, S, T).
    """
    query = query * ops.cast(query.shape[-1] ** -0.5, query.dtype)
    scores = with_bias(matmul_transposed(query, key), more)
    scores = at_least_float32(scores)
    if mask is not None:
        scores = scores + ops.cast(ops.where(mask, 0.0, -1e9), scores.dtype)
    scores = ops.cast(ops.softmax(scores), query.dtype)
    if rate:
        scores = dropout(scores, rate, seed)
    outputs = ops.matmul(scores, value)  # (B, N, S, H)
    return ops.transpose(outputs, (0, 2, 1, 3)), scores


def attend_in_turns(query, key, value, mask, turn=TURN):
    """Compute `attend` for `turn` queries at a time, and recompute it in the backward pass.

    The attention probabilities of 8,192 tokens and 12 heads would take 3.2 GB per layer.
    """
    length, width = ops.shape(query)[2], query.shape[-1]
    turns = -(-length // turn)

    def in_turns(x):
        """Reshape (B, N, S, ...) to (turns, B, N, turn, ...)."""
        x = lengthen(x, 2, turns * turn - length)
        shape = ops.shape(x)
        x = ops.reshape(x, (*shape[:2], turns, turn, *shape[3:]))
        return ops.moveaxis(x, 2, 0)

    def attend_once(part, mask):
        # Captured, not passed, because TensorFlow would require the mask's gradient.
        once = keras.remat(lambda *heads: attend(*heads, mask, 0.0, None)[0])
        return once(part, key, value)

    parts = in_turns(query)
    if mask is not None and mask.shape[2] != 1:
        outputs = one_by_one(lambda both: attend_once(*both), (parts, in_turns(mask)))
    else:
        # Copied, since TensorFlow's loop would lose a mask created outside the graph.
        mask = None if mask is None else ops.copy(mask)
        outputs = one_by_one(lambda part: attend_once(part, mask), parts)
    # (turns, B, turn, N, H)
    outputs = ops.moveaxis(outputs, 0, 1)
    outputs = ops.reshape(outputs, (-1, turns * turn, query.shape[1], width))
    return outputs[:, :length]


@kernel
def one_by_one(function, x):
    """Apply `function` to each `x[i]` in sequence and stack the results.

    >>> [float(y) for y in one_by_one(lambda x: 2 * x, np.array([1.0, 3.0]))]
    [2.0, 6.0]
    """
    return ops.map(function, x)


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


# === Local attention ===


def token_mask(padding_mask, is_causal=False, window=None):
    """Compute the attention mask of `kerasbert.layers.AttentionMask`."""
    mask = ops.expand_dims(ops.cast(padding_mask, "bool"), (1, 2))
    if not is_causal and window is None:
        return mask
    position = ops.arange(ops.shape(padding_mask)[1], dtype="int32")
    return ops.logical_and(mask, is_seen(position, position, is_causal, window))


def is_seen(queries, keys, is_causal, window):
    """Return whether queries at positions (S,) may attend to keys at (T,): bool (S, T)."""
    distance = queries[:, None] - keys[None, :]
    seen = distance >= 0 if is_causal else distance == distance
    return seen if window is None else ops.logical_and(seen, ops.abs(distance) <= window // 2)


@kernel
def local_mask(padding_mask, is_causal, window):
    """Compute `token_mask` for `attention`, or for longer texts a block mask for `local_attention`.

    Each block of W tokens attends to itself and `window // 2` tokens per side. If the length is
    unknown until the graph runs, a short text is a single block.

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


def in_blocks(x, count, block, reach):
    """Split tokens (B, T, N, H) into blocks plus `reach` tokens per side: (B * C, K, N, H).

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


def local_attention(projected, num_heads, mask, turn=None, dropout=0.0, seed=None):
    """Compute local attention in memory linear in T, with blocks as rows of a batch.

    Args:
        mask: bool (B, C, 1, W, K), from `local_mask`.

    See `attention` for the other arguments and the return value.
    """
    length = ops.shape(projected)[1]
    _, count, _, block, seen = ops.shape(mask)
    query, key, value = split_heads(projected, num_heads, turn)
    sizes = query.shape[2:]
    query = in_blocks(query, count, block, 0)
    key, value = (in_blocks(x, count, block, (seen - block) // 2) for x in (key, value))
    mask = ops.reshape(mask, (-1, 1, block, seen))
    outputs, _ = heads_attention(query, key, value, mask, dropout, seed)
    return ops.reshape(outputs, (-1, count * block, *sizes))[:, :length], None


@kernel
def update_cache(cache, values, index):
    """Write keys and values (B, 2, S, N, H) of S tokens into a cache (B, 2, C, N, H) at `index`.

    The cache may be changed in place; use only the result.
    """
    return ops.slice_update(cache, (0, 0, index, 0, 0), values)


# === Losses ===


@kernel
def cross_entropy(labels, logits):
    """Compute the cross-entropy of each prediction, without Keras' one-hot labels.

    One-hot labels are as large as the logits: with 30,522 tokens on a CPU, they made loss and
    gradient take 2.8 times as long on JAX and 1.5 times on PyTorch.

    Args:
        labels: int32 ids (B, P).
        logits: floats (B, P, V).

    Returns:
        floats (B, P).
    """
    labelled = ops.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return logarithm_of_odds(logits) - labelled


def logarithm_of_odds(logits):
    """Compute log(sum(exp(logits))) over the last axis; PyTorch's own form has slow gradients."""
    highest = ops.stop_gradient(ops.max(logits, axis=-1))  # (B, P)
    return ops.log(ops.sum(ops.exp(logits - highest[..., None]), axis=-1)) + highest


@kernel
def first_choice(logits):
    """Compute the argmax of logits (B, P, V), the first of ties: int32 (B, P).

    XLA fuses this arithmetic with the loss at almost no cost, whereas argmax takes twice the time
    of loss and gradient. It is exact for up to 2 ** 24 tokens, float32's limit for exact integers.
    """
    below = ops.max(logits, axis=-1, keepdims=True) - logits  # 0 for the largest
    places = ops.arange(logits.shape[-1], dtype="float32")
    return ops.cast(ops.min(places + ops.minimum(below * 1e30, 1e9), axis=-1), "int32")


# === Optimizers ===


@kernel
def sum_over_replicas(gradients):
    """Sum gradients over the replicas of a step; `None` entries are kept."""
    return gradients


@kernel
def of_all_replicas(x):
    """Gather the rows (B, ...) of all replicas of a step, those of this replica first."""
    return x


@kernel
def mean_of_replicas(x):
    """Average a tensor over the replicas of a step."""
    return x


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
    """Apply weight decay: subtract each variable times `share` times the learning rate.

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
    """Update one variable in place by Adam; `rate` and `epsilon` include the bias correction.

    Returns:
        bool. Whether the backend applied it.
    """
    return False


@kernel
def adam_steps(variables, gradients, beta_1, beta_2, rate, epsilon, means, squares, highest=None):
    """Apply Adam's update of many tensors at once; Keras calls this on PyTorch only.

    Args:
        highest: tensors, the maxima of second moments for AMSGrad; `None` for plain Adam.

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


# === Steps and graphs ===


@kernel
def without_gradients():
    """Return a context that disables gradients on PyTorch; other backends need none."""
    return contextlib.nullcontext()


@kernel
def value_and_gradient(function, x):
    """Compute a function of rows and the gradient of its sum, as NumPy arrays.

    Args:
        function: function from a tensor (R, ...) to values (R,), one per row.
        x: float array (R, ...).

    Returns:
        `(values, gradient)`: (R,) and (R, ...).
    """
    raise ValueError(
        f"Keras has no gradients on {name()}; set KERAS_BACKEND to tensorflow, jax or torch."
    )


@checks_outputs
@kernel
def predict_batch(model, features):
    """Run a model on one batch and return NumPy arrays; thread-safe.

    Args:
        model: a `keras.Model`.
        features: dict of NumPy arrays.
    """
    return keras.Model.predict_on_batch(model, features)


@kernel
def run_in_loop(model, step, inputs):
    """Compute `step(inputs)`, where `step` is called repeatedly in a loop.

    Args:
        model: a `keras.Model` whose variables the function uses.
        step: function of a dict of tensors that depends only on these and the variables.
        inputs: dict of tensors.
    """
    return step(inputs)


@kernel
def predicts_by_batch():
    """Return whether `predict_batch` should also run the batches of a dataset, one by one."""
    return False


class Graphs:
    """Cache of a model's compiled step, one graph per recurring shape.

    Args:
        often: int. Calls with a shape before the first graph is made; a quarter for later graphs.
        most: int. Maximum number of graphs.
    """

    def __init__(self, often, most=64):
        self._often, self._most = often, most
        self._counts = collections.Counter()
        self._made, self._of_shapes = [], {}
        self._lock = threading.Lock()

    def of(self, shapes, make, fits=None):
        """Return the graph for these shapes, or `None` until they recur often enough.

        Args:
            shapes: hashable.
            make: function that returns a graph.
            fits: function that tells whether an existing graph is valid for these shapes. If given,
                calls with all shapes are counted together.
        """
        if shapes in self._of_shapes:
            return self._of_shapes[shapes]
        with self._lock:
            graph = next(filter(fits, self._made), None) if fits else None
            if graph is None and not self._is_often(None if fits else shapes):
                return None
            if graph is None:
                graph = make()
                self._made.append(graph)
            self._of_shapes[shapes] = graph
        return graph

    def _is_often(self, shapes):
        if len(self._made) >= self._most:
            return False
        self._counts[shapes] += 1
        often = max(1, self._often // 4) if self._made else self._often
        return self._counts[shapes] % often == 0


def shapes_of(features):
    """Return names, shapes and dtypes of a dict of arrays as a hashable tuple."""
    return tuple((name, x.shape, x.dtype.name) for name, x in features.items())


def beside_prediction(model, make):
    """Return the result of `make()` for a model, cached until the next `compile`."""
    # Stored in `__dict__`, since Keras would track an attribute.
    made_for, made = model.__dict__.get("_beside_prediction", (None, None))
    model.make_predict_function()
    if made_for is not model.predict_function:
        made = make()
        model.__dict__["_beside_prediction"] = model.predict_function, made
    return made


def runs_graphs(model):
    """Return whether a step of `model` may run in graphs other than Keras' own."""
    return not (model.run_eagerly or _preferred)


@kernel
def full_float32():
    """Return a context with full float32 matmuls, where GPUs might otherwise use TF32."""
    return contextlib.nullcontext()


@kernel
def random_states():
    """Return the states of random generators outside of models: arrays by name."""
    return {}


@kernel
def set_random_states(states):
    """Restore the states that `random_states` returned."""


@kernel
def prepare():
    """Apply settings that must precede any computation."""


@kernel
def keep_memory():
    """Make the process keep freed memory, before building a model; see `base/memory.py`."""
    keep_freed_memory()


@kernel
def keep_compiled():
    """Enable the compilation cache on disk, for later processes."""


@kernel
def check_compiling(jit_compile):
    """Raise if compilation is requested but impossible."""


@kernel
def compiles_shapes(jit_compile):
    """Return whether each new length needs a compilation."""
    return bool(jit_compile)


@kernel
def is_distributed(model):
    """Return whether Keras splits the batches of `model` over several devices."""
    return keras.distribution.distribution() is not None


@kernel
def compiling(model, say):
    """Return a context in which Keras builds a model's training function.

    Args:
        model: a compiled `keras.Model`.
        say: function of a shape, called before its compilation where the backend supports this.
    """
    return contextlib.nullcontext()


def shape_cost(width):
    """Estimate XLA's compilation time of an encoder's step, as a number of trained tokens.

    Both times grow with the number of layers, and the time per token with the square of the width.
    Measured on 2 cores with 6 layers of width 384; the cost is higher where tokens are cheaper, as
    on a GPU.
    """
    return 6e8 / width**2


@kernel
def data_parallel(model, **kwargs):
    """Make `model.fit` train jointly with other processes."""
    raise ValueError(
        f"Training in several processes is not supported on {name()}; set KERAS_BACKEND to "
        "tensorflow, jax or torch."
    )


# === Several processes ===


@kernel
def launched():
    """Return this process' index and the number of launched processes, without connecting."""
    return 0, 1


@kernel
def join_processes():
    """Connect the launched processes; return this one's index and their number."""
    return 0, 1


@kernel
def on_devices(devices, mesh, layout_map):
    """Return a context in which models are created on the devices of all processes.

    It yields `(shard, replicas)`: the shard `(index, count)` of each batch for this process, and
    the number of devices over which the rows of a batch are split.

    Args:
        devices: int. Number of devices of a single process; `None` means one. Several processes
            use all devices.
        mesh: `(batch, model)`, ints. Numbers of devices over which rows and layers are split.
        layout_map: function of a `keras.distribution.DeviceMesh`.
    """
    if devices not in (None, 1) or mesh is not None:
        raise ValueError(
            f"Several devices are not supported on {name()}; set KERAS_BACKEND to tensorflow, jax "
            "or torch."
        )
    return contextlib.nullcontext(((0, 1), 1))


def check_no_mesh(mesh):
    """Raise if layers are to be split over devices."""
    if mesh is not None:
        raise ValueError(
            f"mesh={mesh} splits layers over devices, which Keras supports on JAX only; set "
            "KERAS_BACKEND=jax."
        )


@kernel
def rows_of_process(shard, training):
    """Return the shard of each global batch that this process passes to Keras; see `on_devices`.

    Args:
        training: bool. True for `fit`, false for `evaluate`.
    """
    return shard


@kernel
def trains_in_graphs():
    """Return whether `fit` reads a `tf.data.Dataset` best, whose graph also makes the batches."""
    return False


@kernel
def predicts_while_sharing():
    """Return whether a process can predict alone while its devices train jointly with others."""
    return True


@kernel
def of_this_process(batches):
    """Adapt a `tf.data.Dataset` of this process' rows for joint training."""
    return batches


@kernel
def sum_over_processes(values):
    """Return the sums of floats (N,) over all processes, all of which must call this."""
    return values


@kernel
def whole(variable):
    """Return a variable as an array; if it is sharded over processes, all must call this."""
    return ops.convert_to_numpy(variable)


@kernel
def share_steps(model, processes):
    """Make a compiled model run its steps jointly with the other processes."""
    if processes > 1:
        data_parallel(model)


@kernel
def uninterrupted_step(step):
    """Wrap a step of a Keras loop that must not be interrupted."""
    return step


@kernel
def one_after_another(step):
    """Wrap a step of `evaluate` so that, where needed, it finishes before the next one begins."""
    return step


@kernel
def of_one_process(model, processes):
    """Return the model for this process alone, with all weights."""
    return model


@kernel
def is_lost_process(error):
    """Return whether an exception means that another process has died."""
    return False


def keras_exports():
    """Return the formats that `keras.Model.export` writes correctly."""
    return getattr(_module, "KERAS_EXPORTS", ())


# The current backend's module, which imports this one; `None` for backends without kernels.
_module = None
set_backend(name())
if name() in ("tensorflow", "jax", "torch"):
    _module = importlib.import_module(f"{__name__}.{name()}")
    prepare()


class _KerasLoops:
    """Empty mixin, for backends whose training loops keep the weights in the model."""


# Mixin that keeps the weights in a model during loops; precedes Keras' own bases.
KeepsWeights = getattr(_module, "KeepsWeights", _KerasLoops)
