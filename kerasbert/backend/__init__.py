"""What a backend does better than `keras.ops`: a table of kernels.

A kernel is a function here, written in its plain form. Where the file of the running backend has a
function of the same name, that one is asked first; it returns `None` where the plain form is
faster. Layers, losses and optimizers call the kernels, and never ask which backend runs.

The plain form of a kernel stays at hand: `norm.plain` is that of `norm`.

B batch, T tokens, D width, N heads, H width of a head, U units, P predictions, V tokens of the
vocabulary; in local attention C blocks of W tokens, each of which sees K.
"""

import collections
import contextlib
import functools
import importlib
import threading

import keras
from keras import ops

from kerasbert._finite import checks_outputs
from kerasbert._process import set_backend

# Where each token sees all of more than `LONG`, `TURN` queries are attended for at a time.
LONG, TURN = 1024, 256
# A text of so many windows is short: its tokens see each other through one mask.
SHORT = 3

_preferred = {}  # kernels that come before the backend's, by name


def name():
    """The backend that Keras runs on: for records and messages, not for branches."""
    return keras.backend.backend()


def has(kernel_name):
    """Whether the backend has a form of its own of a kernel."""
    return hasattr(_module, kernel_name)


def kernel(plain):
    """Make a function the plain form of a kernel."""
    own_name = plain.__name__

    # Of what `torch.compile` sees through: a context variable would cut its graph at each kernel.
    @functools.wraps(plain)
    def call(*args, **kwargs):
        own = _preferred.get(own_name) or getattr(_module, own_name, None)
        outputs = None if own is None else own(*args, **kwargs)
        return plain(*args, **kwargs) if outputs is None else outputs

    call.plain = plain
    return call


@contextlib.contextmanager
def using(kernels):
    """A context in which these functions, by kernels' names, come before the backend's.

    For graphs that hold less, or other operations, than the backend does; in all threads.

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
    """The tanh form of GELU, for which Keras has no name."""
    return ops.gelu(x, approximate=True)


def at_least_float32(x):
    """The same in float32, or in its own type where that is wider.

    >>> keras.backend.standardize_dtype(at_least_float32(np.ones(2, "float16")).dtype)
    'float32'
    """
    is_wide = keras.backend.standardize_dtype(x.dtype) == "float64"
    return ops.cast(x, "float64" if is_wide else "float32")


def unit_length(x):
    """Divide vectors (..., D) by their Euclidean length. Zeros stay zeros, with a finite gradient.

    >>> vectors = unit_length(ops.array([[3.0, 4.0], [0.0, 0.0]]))
    >>> [[round(float(value), 4) for value in vector] for vector in vectors]
    [[0.6, 0.8], [0.0, 0.0]]
    """
    squares = ops.sum(ops.square(x), axis=-1, keepdims=True)
    # The limit stands inside the root, whose slope at zero is infinite.
    return ops.multiply(x, ops.rsqrt(ops.maximum(squares, 1e-24)))


def by_rows(inputs, function):
    """Apply a function of rows (R, D) to `inputs` (..., D): (..., U)."""
    shape = ops.shape(inputs)
    outputs = function(ops.reshape(inputs, (-1, inputs.shape[-1])))
    return ops.reshape(outputs, (*shape[:-1], outputs.shape[-1]))


def with_bias(x, bias):
    """`x` plus a bias, which may be `None`."""
    return x if bias is None else ops.add(x, bias)


@kernel
def dense(inputs, weights, bias=None, activation=None, training=False):
    """A product with bias and activation: (..., D) to (..., U), as the rows of one matrix.

    In that form TensorFlow fuses the three, and PyTorch the first two.

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
    """Product (..., N, V) of (..., N, E) with (..., V, E) transposed.

    >>> float(matmul_transposed(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]]))[0, 0])
    11.0
    """
    return ops.matmul(x, ops.swapaxes(y, -1, -2))


@kernel
def highest_of_tokens(x):
    """The largest of each feature over the tokens: (B, T, V) -> (B, V).

    >>> highest_of_tokens(ops.convert_to_tensor([[[1, 5], [4, 2]]])).shape[-1]
    2
    """
    return ops.max(x, axis=1)


@kernel
def norm(x, gamma, beta, epsilon, training=False):
    """Layer normalization over the last axis, with statistics in float32.

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
    """`x` with a share `rate` of zeros, and the rest larger by as much.

    Args:
        x: tensor.
        rate: float.
        seed: a `keras.random.SeedGenerator`.
    """
    return keras.random.dropout(x, rate, seed=seed)


@kernel
def positions(table, offset, inputs):
    """The rows of `table` for the T tokens of `inputs` (B, T, D), counted from `offset`.

    Returns:
        (1, T, D) or (B, T, D).
    """
    rows = ops.convert_to_tensor(table)[offset : offset + ops.shape(inputs)[1]]
    return ops.expand_dims(rows, 0)


@kernel
def of_tokens(x, *sizes):
    """What each token has, (B, T, ...), in other axes: (B, T, *sizes).

    >>> tuple(of_tokens(np.ones((2, 3, 8)), 4, 2).shape)
    (2, 3, 4, 2)
    """
    return ops.reshape(x, (-1, ops.shape(x)[1], *sizes))


@kernel
def attention(projected, num_heads, mask=None, turn=None, dropout=0.0, seed=None, maps=False):
    """Attention of what one fused projection gives.

    Args:
        projected: (B, T, 3 * D): queries, keys and values.
        num_heads: int.
        mask: bool, broadcastable to (B, N, T, T): true where a token may look.
        turn: function of queries and of keys (B, T, N, H), for rotary positions, or None.
        dropout: float. Dropout of the maps.
        seed: a `keras.random.SeedGenerator` for it.
        maps: bool. Whether the maps are wanted.

    Returns:
        `(outputs, maps)`: (B, T, N, H), and (B, N, T, T) or, where not wanted, `None`.
    """
    query, key, value = split_heads(projected, num_heads, turn)
    return heads_attention(query, key, value, mask, dropout, seed, maps)


@kernel
def heads_attention(query, key, value, mask=None, dropout=0.0, seed=None, maps=False):
    """Attention of S queries to T keys; see `attention` for the other arguments.

    Args:
        query: (B, S, N, H).
        key: (B, T, N, H), as `value`.

    Returns:
        `(outputs, maps)`: (B, S, N, H), and (B, N, S, T) or, where not wanted, `None`.
    """
    length = query.shape[1]
    query, key, value = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
    if not maps and not dropout and length is not None and length > LONG:
        return attend_in_turns(query, key, value, mask), None
    return attend(query, key, value, mask, dropout, seed)


def split_heads(projected, num_heads, turn):
    """Queries, keys and values, (B, T, N, H) each; see `attention`."""
    # By a split: the gradients of three slices would be padded with zeros, and added up.
    parts = ops.split(projected, 3, axis=-1)  # (B, T, D) each
    width = parts[0].shape[-1] // num_heads
    query, key, value = (of_tokens(part, num_heads, width) for part in parts)
    return (query, key, value) if turn is None else (turn(query), turn(key), value)


def attend(query, key, value, mask, rate, seed, more=None):
    """Attention written out: for its maps, for dropout, and where nothing fused is faster.

    Args:
        query: (B, N, S, H).
        key: (B, N, T, H), as `value`.
        more: (B, N, S, T). What is added to the scores, or `None`.

    Returns:
        Outputs (B, S, N, H), and the maps (B, N, S, T).
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
    """`attend` for `turn` queries at a time, and anew for the gradient: no maps are kept.

    Those of 8,192 tokens and 12 heads are 3.2 GB a layer.
    """
    length, width = ops.shape(query)[2], query.shape[-1]
    turns = -(-length // turn)

    def in_turns(x):
        """(B, N, S, ...) as (turns, B, N, turn, ...)."""
        x = lengthen(x, 2, turns * turn - length)
        shape = ops.shape(x)
        x = ops.reshape(x, (*shape[:2], turns, turn, *shape[3:]))
        return ops.moveaxis(x, 2, 0)

    def attend_once(part, mask):
        # Not with the mask as an argument: TensorFlow would ask for its gradient.
        once = keras.remat(lambda *heads: attend(*heads, mask, 0.0, None)[0])
        return once(part, key, value)

    parts = in_turns(query)
    if mask is not None and mask.shape[2] != 1:
        outputs = one_by_one(lambda both: attend_once(*both), (parts, in_turns(mask)))
    else:
        # A copy, as TensorFlow's loop would lose a mask that is no part of the graph.
        mask = None if mask is None else ops.copy(mask)
        outputs = one_by_one(lambda part: attend_once(part, mask), parts)
    # (turns, B, turn, N, H)
    outputs = ops.moveaxis(outputs, 0, 1)
    outputs = ops.reshape(outputs, (-1, turns * turn, query.shape[1], width))
    return outputs[:, :length]


@kernel
def one_by_one(function, x):
    """What `function` gives for each `x[i]`, one after the other, in one tensor.

    >>> [float(y) for y in one_by_one(lambda x: 2 * x, np.array([1.0, 3.0]))]
    [2.0, 6.0]
    """
    return ops.map(function, x)


@kernel
def is_known(size):
    """Whether Python may ask for what a size of a tensor is, while a graph is made."""
    return isinstance(size, int)


def lengthen(x, axis, count):
    """`x` with `count` zeros more at the end of an axis.

    >>> lengthen(ops.ones((1, 2)), 1, 3).shape[1]
    5
    """
    if isinstance(count, int) and count == 0:
        return x
    shape = list(ops.shape(x))
    shape[axis] = count
    return ops.concatenate([x, ops.zeros(shape, x.dtype)], axis=axis)


# === Attention to near tokens ===


def token_mask(padding_mask, is_causal=False, window=None):
    """Which tokens a token may look at: see `kerasbert.layers.AttentionMask`."""
    mask = ops.expand_dims(ops.cast(padding_mask, "bool"), (1, 2))
    if not is_causal and window is None:
        return mask
    position = ops.arange(ops.shape(padding_mask)[1], dtype="int32")
    return ops.logical_and(mask, is_seen(position, position, is_causal, window))


def is_seen(queries, keys, is_causal, window):
    """Whether tokens at positions (S,) may look at those at (T,): bool (S, T)."""
    distance = queries[:, None] - keys[None, :]
    seen = distance >= 0 if is_causal else distance == distance
    return seen if window is None else ops.logical_and(seen, ops.abs(distance) <= window // 2)


@kernel
def local_mask(padding_mask, is_causal, window):
    """`token_mask` for `attention`, or of a longer text by blocks, for `local_attention`.

    Each block of W tokens sees itself and `window // 2` tokens on each side. Where the length is
    not known before the graph runs, a short text is one block, which has no sides.

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
    mask = ops.expand_dims(ops.cast(padding_mask, "bool"), (2, 3))  # As tokens have heads.
    mask = in_blocks(mask, count, block, reach)  # (B * C, K, 1, 1)
    seen = is_seen(ops.arange(block), ops.arange(block + 2 * reach) - reach, is_causal, window)
    mask = ops.logical_and(ops.transpose(mask, (0, 2, 3, 1)), seen)  # (B * C, 1, W, K)
    return ops.reshape(mask, (-1, count, 1, block, block + 2 * reach))


def in_blocks(x, count, block, reach):
    """Tokens (B, T, N, H) in `count` blocks, with `reach` more on each side: (B * C, K, N, H).

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
    """Attention to near tokens, with memory linear in T. Blocks are rows of a batch to it.

    Args:
        mask: bool (B, C, 1, W, K), of `local_mask`.

    See `attention` for the others, and for what it returns.
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
    """Keys and values (B, 2, C, N, H) with those of S tokens, (B, 2, S, N, H), from `index` on.

    What was there may be lost: only the result counts.
    """
    return ops.slice_update(cache, (0, 0, index, 0, 0), values)


# === Losses ===


@kernel
def cross_entropy(labels, logits):
    """Cross-entropy of each prediction, without the one-hot labels of Keras' own.

    Those are as large as the logits: on the CPU they made loss and gradient for 30,522 tokens take
    2.8 times as long on JAX and 1.5 times on PyTorch.

    Args:
        labels: int32 ids (B, P).
        logits: floats (B, P, V).

    Returns:
        floats (B, P).
    """
    labelled = ops.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return logarithm_of_odds(logits) - labelled


def logarithm_of_odds(logits):
    """log(sum(exp(logits))) over the last axis. Gradients of PyTorch's `logsumexp` take longer."""
    highest = ops.stop_gradient(ops.max(logits, axis=-1))  # (B, P)
    return ops.log(ops.sum(ops.exp(logits - highest[..., None]), axis=-1)) + highest


@kernel
def first_choice(logits):
    """The place of the largest of logits (B, P, V), of equal ones the first: int32 (B, P).

    By arithmetic alone, which XLA merges with that of the loss: there argmax takes twice the time
    of loss and gradient, and this next to none. Floats count exactly to 2 ** 24.
    """
    below = ops.max(logits, axis=-1, keepdims=True) - logits  # 0 for the largest
    places = ops.arange(logits.shape[-1], dtype="float32")
    return ops.cast(ops.min(places + ops.minimum(below * 1e30, 1e9), axis=-1), "int32")


# === Optimizers ===


@kernel
def sum_over_replicas(gradients):
    """The sums over the devices of a step that several take together; `None`s stay."""
    return gradients


@kernel
def of_all_replicas(x):
    """Rows (B, ...) of all devices of a step that several take together: own ones first."""
    return x


@kernel
def mean_of_replicas(x):
    """The mean of a tensor over the devices of a step that several take together."""
    return x


@kernel
def clip_by_global_norm(gradients, most):
    """The gradients, smaller where the norm of all is above `most`; `None`s stay."""
    squares = [ops.sum(ops.square(g)) for g in gradients if g is not None]
    length = ops.sqrt(ops.sum(ops.stack(squares)))
    scale = most * ops.minimum(1.0 / length, 1.0 / most)
    scale = scale + (length - length)  # NaN where the norm is infinite.
    return [g if g is None else g * scale for g in gradients]


@kernel
def decay(variables, share, rate):
    """Take `share` times the learning rate of each variable off it.

    Args:
        variables: list of Keras variables.
        share: float.
        rate: function that returns the learning rate.

    Returns:
        Whether it is done; if not, the optimizer does it as Keras does.
    """
    return False


@kernel
def adam_step(variable, mean, square, gradient, beta_1, beta_2, rate, epsilon):
    """Adam's update of one variable, in place; its correction is in `rate` and `epsilon`.

    Returns:
        Whether it is done; if not, the optimizer does it in `keras.ops`.
    """
    return False


@kernel
def adam_steps(variables, gradients, beta_1, beta_2, rate, epsilon, means, squares, highest=None):
    """Adam's update of many tensors at once, which Keras asks for on PyTorch alone.

    Args:
        highest: tensors. The highest of the squares so far, for AMSGrad; `None` for plain Adam.

    Returns:
        Whether it is done.
    """
    return False


@kernel
def train_only(optimizer, weights, places):
    """Let an optimizer that is built update these of its weights alone.

    Args:
        optimizer: a Keras optimizer.
        weights: list of variables.
        places: dict of `id(weight)` to the weight's place in the optimizer's lists.
    """


# === What runs around a step ===


@kernel
def without_gradients():
    """A context in which PyTorch keeps nothing for gradients; the other backends see it."""
    return contextlib.nullcontext()


@kernel
def value_and_gradient(function, x):
    """What a function gives of some rows, and the gradient of its sum there, as NumPy arrays.

    Args:
        function: a function of a tensor (R, ...) that returns values (R,), each of its row.
        x: float array (R, ...).

    Returns:
        `(values, gradient)`: (R,) and (R, ...).
    """
    raise ValueError(
        f"There are no gradients on {name()}; set KERAS_BACKEND to tensorflow, jax or torch."
    )


@checks_outputs
@kernel
def predict_batch(model, features):
    """The outputs of a model for one batch, as NumPy arrays; several threads may ask at once.

    Args:
        model: a `keras.Model`.
        features: dict of NumPy arrays.
    """
    return keras.Model.predict_on_batch(model, features)


@kernel
def run_in_loop(model, step, inputs):
    """What `step(inputs)` gives, of a function of a model that a loop calls over and over.

    Args:
        model: a `keras.Model`, whose variables the function rests on.
        step: function of a dict of tensors; what it gives depends on them and the variables alone.
        inputs: dict of tensors.
    """
    return step(inputs)


@kernel
def predicts_by_batch():
    """Whether `predict_batch` is to run the batches of a dataset too, one after the other."""
    return False


class Graphs:
    """The graphs of a model's step, made for the shapes that come again and again.

    Args:
        often: int. A graph is made with the call of that number that has none, and later ones
            with a quarter of that.
        most: int. How many are made.
    """

    def __init__(self, often, most=64):
        self._often, self._most = often, most
        self._counts = collections.Counter()
        self._made, self._of_shapes = [], {}
        self._lock = threading.Lock()

    def of(self, shapes, make, fits=None):
        """The graph for these shapes, or `None`.

        Args:
            shapes: hashable.
            make: function that returns a graph.
            fits: function of a graph that was made for other shapes, whether it will do. Calls
                of all shapes count together then.
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
    """Names, shapes and types of a dict of arrays, hashable."""
    return tuple((name, x.shape, x.dtype.name) for name, x in features.items())


def beside_prediction(model, make):
    """What `make()` returned for a model as it predicts now; made anew after a new `compile`."""
    # Past Keras, which would track it.
    made_for, made = model.__dict__.get("_beside_prediction", (None, None))
    model.make_predict_function()
    if made_for is not model.predict_function:
        made = make()
        model.__dict__["_beside_prediction"] = model.predict_function, made
    return made


def runs_graphs(model):
    """Whether a step of `model` may run as something else than Keras runs it by."""
    return not (model.run_eagerly or _preferred)


@kernel
def full_float32():
    """A context in which products of float32 are exact: GPUs may round their factors (TF32)."""
    return contextlib.nullcontext()


@kernel
def random_states():
    """The states of random generators that no variable of a model holds: arrays by name."""
    return {}


@kernel
def set_random_states(states):
    """Put back what `random_states` returned."""


@kernel
def prepare():
    """Set what has to be set before the backend computes anything."""


@kernel
def keep_compiled():
    """Have what is compiled from here on kept on disk, for other processes."""


@kernel
def check_compiling(jit_compile):
    """Raise where a model is to be compiled and cannot be."""


@kernel
def compiles_shapes(jit_compile):
    """Whether each new length costs a compilation, so that there had better be few."""
    return bool(jit_compile)


@kernel
def is_distributed(model):
    """Whether Keras shares out the batches of `model` to several devices."""
    return keras.distribution.distribution() is not None


@kernel
def compiling(model, say):
    """A context in which Keras makes the function that trains a model.

    Args:
        model: a compiled `keras.Model`.
        say: function of a shape, called before that is compiled where the backend can tell.
    """
    return contextlib.nullcontext()


def shape_cost(width):
    """How many tokens an encoder of this width trains on while XLA compiles its step.

    Both times grow with its layers, and that of a token with the square of the width. Measured on
    2 cores with 6 layers of 384; where a token takes less, as on a GPU, the cost is higher.
    """
    return 6e8 / width**2


@kernel
def data_parallel(model, **kwargs):
    """Let `model.fit` train with other processes."""
    raise ValueError(f"Training with other processes is not possible on {name()}.")


# === Processes that a launcher started ===


@kernel
def launched():
    """`(index, count)` of the processes that a launcher started, which need not meet."""
    return 0, 1


@kernel
def join_processes():
    """Meet the other processes that a launcher started: `(index, count)`."""
    return 0, 1


@kernel
def on_devices(devices, mesh, layout_map):
    """A context in which models are made for several devices, of all processes.

    It yields `(shard, replicas)`: the part of each batch that this process reads, `(index, count)`,
    and the number of devices that divide the rows of a batch.

    Args:
        devices: int. How many of this process are used, where it is alone; `None` is one, but all
            those of several processes.
        mesh: `(batch, model)`, ints: devices that divide the rows, and those that divide layers.
        layout_map: function of a `keras.distribution.DeviceMesh`.
    """
    if devices not in (None, 1) or mesh is not None:
        raise ValueError(f"Several devices are not possible on {name()}.")
    return contextlib.nullcontext(((0, 1), 1))


def check_no_mesh(mesh):
    """Raise where layers are to be cut over devices."""
    if mesh is not None:
        raise ValueError(
            f"mesh={mesh} cuts layers over devices, which Keras does on JAX alone; run this with "
            "KERAS_BACKEND=jax."
        )


@kernel
def rows_of_process(shard, training):
    """Which part of a whole batch this process gives to Keras, `(index, count)`; see `on_devices`.

    Args:
        training: bool. Whether it is a step of `fit`, or else of `evaluate`.
    """
    return shard


@kernel
def predicts_while_sharing():
    """Whether a process can predict by itself while its devices train with those of others."""
    return True


@kernel
def of_this_process(batches):
    """A `tf.data.Dataset` of a process' rows, as Keras takes it where several processes train."""
    return batches


@kernel
def sum_over_processes(values):
    """The sums of floats (N,) over all processes, which have to ask all at once."""
    return values


@kernel
def whole(variable):
    """The value of a variable as an array; all processes have to ask where it is cut over them."""
    return ops.convert_to_numpy(variable)


@kernel
def share_steps(model, processes):
    """Let a model that is compiled take its steps together with those of the other processes."""
    if processes > 1:
        data_parallel(model)


@kernel
def one_after_another(step):
    """A step of `evaluate` as it is called, which may have to end before the next one begins."""
    return step


@kernel
def of_one_process(model, processes):
    """The model for this process alone, with the weights of all."""
    return model


@kernel
def is_lost_process(error):
    """Whether an exception says that another process is there no more."""
    return False


def keras_exports():
    """The formats that `keras.Model.export` writes right of this package's models."""
    return getattr(_module, "KERAS_EXPORTS", ())


# The file of the running backend; it imports this one. Other backends have no kernels.
_module = None
set_backend(name())
if name() in ("tensorflow", "jax", "torch"):
    _module = importlib.import_module(f"{__name__}.{name()}")
    prepare()


class _KerasLoops:
    """Empty mixin for backends whose loops keep the weights in the model."""


# Mixin of models, before Keras' own bases: a model has its weights however a loop ends.
KeepsWeights = getattr(_module, "KeepsWeights", _KerasLoops)
