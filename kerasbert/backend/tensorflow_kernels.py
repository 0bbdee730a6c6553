"""TensorFlow kernels: layers, losses and AdamW on a CPU, and steps as one operation.

See `kerasbert.backend` for the arguments.
"""

import contextlib
import functools
import math
import platform

import keras
from keras import ops

from kerasbert import backend
from kerasbert.backend import attention as plain
from kerasbert.backend import layers
from kerasbert.backend.graphs import Graphs, beside_prediction
from kerasbert.backend.tensorflow import Operation, tf
from kerasbert.backend.tensorflow_processes import (  # noqa: F401
    data_parallel,
    is_lost_process,
    join_processes,
    launched,
    mean_of_replicas,
    of_all_replicas,
    of_this_process,
    on_devices,
    rows_of_process,
    sum_over_processes,
    sum_over_replicas,
)
from kerasbert.base import keras_internals
from kerasbert.base.process import uninterrupted

KERAS_EXPORTS = ("tf_saved_model", "litert")
# For more rows than this, the time of Keras' Python code is negligible.
FEW = 8


# === Steps ===


def uninterrupted_step(step):
    """Delay signals while a step is traced and run.

    After an exception in a trace, one of TensorFlow's threads may crash.
    """

    @functools.wraps(step)
    def whole(*args):
        with uninterrupted():
            return step(*args)

    return whole


def value_and_gradient(function, x):
    x = tf.convert_to_tensor(x)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(x)
        values = function(x)
    return values.numpy(), tape.gradient(values, x).numpy()


def adversarial_step(model, arguments, perturbed, perturbations, keeps_clean):
    """Assign perturbed values for the second pass, then the weights' own.

    Recomputed layers would not see a stateless scope.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(arguments[0])
    trained = model.trainable_weights
    wanted = {id(weight): weight for weight in [*trained, *perturbed]}

    def run(weights):
        with tf.GradientTape() as tape:
            tape.watch(weights)  # TensorFlow does not watch frozen weights by itself.
            y_pred = model(x, training=True)
            loss = model.compute_loss(x, y, y_pred, sample_weight, training=True)
            scaled = model.optimizer.scale_loss(loss)
        found = tape.gradient(scaled, weights)
        dense = (None if one is None else tf.convert_to_tensor(one) for one in found)
        return loss, y_pred, list(dense)

    loss, y_pred, clean = run([weight.value for weight in wanted.values()])
    keras_internals.loss_tracker(model).update_state(
        loss, sample_weight=tf.shape(tf.nest.flatten(x)[0])[0]
    )
    clean = dict(zip(wanted, clean, strict=True))
    values = [tf.identity(weight.value) for weight in perturbed]
    added = perturbations(values, [clean[id(weight)] for weight in perturbed])
    try:
        for weight, value, one in zip(perturbed, values, added, strict=True):
            weight.assign(value + one)
        *_, gradients = run([weight.value for weight in trained])
    finally:
        for weight, value in zip(perturbed, values, strict=True):
            weight.assign(value)
    if keeps_clean:
        gradients = backend.sums([clean[id(weight)] for weight in trained], gradients)
    model.optimizer.apply_gradients(zip(gradients, trained, strict=True))
    return model.compute_metrics(x, y, y_pred, sample_weight)


def predict_batch(model, features):
    """Predict up to `FEW` rows as one operation, with one graph for all sizes.

    A graph per shape would be a tenth faster, but take 0.1 to 0.3 s.
    """
    if len(next(iter(features.values()))) > FEW or model.jit_compile or is_distributed(model):
        return None
    if not backend.runs_graphs(model):
        return None

    def make():
        specs = {name: tf.TensorSpec([None] * x.ndim, x.dtype) for name, x in features.items()}
        step = tf.function(lambda x: model.predict_step((x,)), autograph=False)
        try:
            with uninterrupted():
                return Operation(step.get_concrete_function(specs))
        except Exception:
            return None  # Custom layers may need known sizes.

    graphs = beside_prediction(model, lambda: Graphs(often=1))
    kinds = tuple((name, x.ndim, x.dtype.name) for name, x in features.items())
    graph = graphs.of(kinds, make)
    if graph is None:
        return None
    outputs = graph({name: tf.constant(x) for name, x in features.items()})
    return tf.nest.map_structure(lambda x: x.numpy(), outputs)


def is_distributed(model):
    """Return whether the model was created in the scope of a `tf.distribute` strategy."""
    return keras_internals.in_strategy(model)


def trains_in_graphs():
    return True


@contextlib.contextmanager
def full_float32():
    config = tf.config.experimental
    before = config.tensor_float_32_execution_enabled()
    config.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        config.enable_tensor_float_32_execution(before)


# === Attention ===


def attention(
    projected, num_heads, mask=None, turn=None, dropout=0.0, seed=None, maps=False, bias=None
):
    """Use `split_at_once`, and `attend_in_turns` for long texts.

    Long texts are possible with rotary positions or a bias, often of unknown length.
    """
    length = projected.shape[1]
    if turn is None:
        heads = plain.split_at_once(projected, num_heads)
        is_short = length is not None and length <= plain.LONG
        if bias is None or maps or dropout or is_short:
            return plain.attend(*heads, mask, dropout, seed, bias)
    if maps or dropout or length is not None:
        return None
    if turn is not None:
        heads = plain.split_heads(projected, num_heads, turn)
        heads = [tf.transpose(x, (0, 2, 1, 3)) for x in heads]
    sizes = heads[0].shape[1], heads[0].shape[3]
    is_long = tf.shape(projected)[1] > plain.LONG
    if keras_internals.may_be_in_xla(tf.compat.v1.get_default_graph()):
        # Not a branch, which XLA cannot differentiate; it removes a loop of one turn.
        turn = tf.where(is_long, plain.TURN, tf.shape(projected)[1])
        outputs = plain.attend_in_turns(*heads, mask, turn, bias)
    else:
        outputs = tf.cond(
            is_long,
            lambda: plain.attend_in_turns(*heads, mask, bias=bias),
            lambda: plain.attend(*heads, mask, 0.0, None, bias)[0],
        )
    return tf.ensure_shape(outputs, (None, None, *sizes)), None


def one_by_one(function, x):
    """Run one call at a time instead of ten, to save memory."""
    x = tf.nest.map_structure(tf.convert_to_tensor, x)
    first = tf.nest.map_structure(lambda x: x[0], x)
    spec = tf.TensorSpec.from_tensor(function(first))
    return tf.map_fn(function, x, fn_output_signature=spec, parallel_iterations=1)


def matmul_transposed(x, y):
    """Return `x @ yᵀ`, without transposes, also in the gradient."""
    return tf.matmul(x, y, transpose_b=True)


# === Layers ===


def has_onednn():
    """Return whether a graph that can use oneDNN operations is being traced.

    That is a graph for an x86 CPU which XLA does not compile: XLA fuses plain formulas itself and
    is slower with oneDNN operations. If TensorFlow cannot tell whether XLA compiles the graph, this
    returns False.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    if tf.executing_eagerly() or tf.config.list_physical_devices("GPU"):
        return False
    return not keras_internals.may_be_in_xla(tf.compat.v1.get_default_graph())


def norm(x, gamma, beta, epsilon, training=False):
    """At inference, compute layer normalization as a batch normalization with tokens as channels.

    Grappler replaces it by oneDNN's layer norm on a CPU, in a third of the time in bfloat16 and
    half in float32.
    """
    if training or not has_onednn():
        return None
    shape = tf.shape(x)
    tokens = tf.reduce_prod(shape[:-1])
    none = tf.constant([], tf.float32)
    outputs, *_ = tf.raw_ops.FusedBatchNormV3(
        x=tf.reshape(x, tf.stack([1, tokens, shape[-1], 1])),
        scale=tf.ones([tokens]),
        offset=tf.zeros([tokens]),
        mean=none,
        variance=none,
        epsilon=epsilon,
        data_format="NCHW",
        is_training=True,
    )
    outputs = tf.reshape(outputs, shape) * tf.cast(gamma, x.dtype)
    return outputs if beta is None else outputs + tf.cast(beta, x.dtype)


def dense(inputs, weights, bias=None, activation=None, training=False):
    """Use `gelu` in training; otherwise TensorFlow fuses the plain form."""
    approximate = activation is layers.gelu_approximate
    is_gelu = approximate or activation is keras.activations.gelu
    if not (training and is_gelu and has_onednn()):
        return None

    def function(rows):
        return gelu(layers.with_bias(ops.matmul(rows, weights), bias), approximate)

    return layers.by_rows(inputs, function)


def gelu(x, approximate):
    """Compute GELU with a gradient of fewer passes, for CPUs.

    The tanh form `x / 2 * (1 + tanh(u))` is computed as `x * sigmoid(2 * u)`, which is equal.
    """
    root = (2 / math.pi) ** 0.5

    @tf.custom_gradient
    def by_sigmoid(x):
        slope = tf.square(x) * (2 * root * 0.044715) + 2 * root  # u is x * slope / 2
        share = tf.sigmoid(x * slope)

        def gradient(upstream):
            inner = tf.raw_ops.SigmoidGrad(y=share, dy=upstream * x)
            return upstream * share + inner * (3 * slope - 4 * root)

        return x * share, gradient

    @tf.custom_gradient
    def by_erf(x):
        share = 0.5 * tf.math.erf(x * 0.5**0.5) + 0.5

        def gradient(upstream):
            density = tf.exp(tf.square(x) * -0.5) * (2 * math.pi) ** -0.5
            return upstream * (x * density + share)

        return x * share, gradient

    return by_sigmoid(x) if approximate else by_erf(x)


def dropout(x, rate, seed):
    """Draw 16 random bits per element, which rounds the rate by at most 2 ** -17.

    This takes a third of the time of 32-bit floats in float32, and a tenth in bfloat16.
    """
    if not has_onednn():
        return None
    seed = tf.math.floormod(seed.next(), tf.int32.max - 1)  # int64 to int32 range, as in Keras.
    shape, count = tf.shape(x), tf.size(x)
    bits = tf.random.stateless_uniform([(count + 1) // 2], seed, None, None, tf.uint32)
    bits = tf.reshape(tf.bitcast(bits, tf.uint16), [-1])[:count]
    zeros = min(round(rate * 2**16), 2**16 - 1)
    keep = tf.reshape(bits >= tf.constant(zeros, tf.uint16), shape)
    scale = tf.constant(2**16 / (2**16 - zeros), x.dtype)
    return tf.where(keep, x * scale, tf.zeros([], x.dtype))


# === Losses ===


def cross_entropy(labels, logits):
    """Use oneDNN's softmax in a graph on a CPU, and TensorFlow's cross-entropy elsewhere."""
    if not has_onednn():
        return ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    rows = ops.reshape(logits, (-1, logits.shape[-1]))
    losses = _cross_entropy(ops.reshape(labels, (-1,)), rows)
    return ops.reshape(losses, ops.shape(labels))


def _cross_entropy(labels, logits):
    """Compute cross-entropy (N,) of labels (N,) and logits (N, V), with oneDNN's softmax.

    TensorFlow's operation took 6 ns per element on a CPU, and again for a metric. Here, loss and
    metrics share all large tensors.
    """
    labels = tf.cast(labels, "int32")

    @tf.custom_gradient
    def compute(logits):
        probabilities = tf.nn.softmax(logits)  # (N, V)
        first = _argmax(logits)
        # log(sum(exp(logits))), taken at the largest logit for precision.
        total = _each(logits, first) - tf.math.log(_each(probabilities, first))

        def gradient(upstream):
            places = tf.stack([tf.range(tf.size(labels)), labels], axis=-1)
            scaled = probabilities * upstream[:, tf.newaxis]
            return tf.tensor_scatter_nd_sub(scaled, places, upstream)

        return total - _each(logits, labels), gradient

    return compute(logits)


def scan(step, carry, xs, reverse=False, like=None):
    """Run a loop with a maximum number of iterations, for XLA's gradient.

    Keras' `scan` also needs a static length.
    """
    count = xs[0].shape[0] or tf.shape(xs[0])[0]
    parts = [
        tf.TensorArray(x.dtype, count, element_shape=x.shape[1:]).unstack(x)
        for x in map(tf.convert_to_tensor, xs)
    ]
    carry = keras.tree.map_structure(tf.convert_to_tensor, carry)
    like = carry if like is None else like
    outputs = [
        tf.TensorArray(x.dtype, count, element_shape=x.shape)
        for x in map(tf.convert_to_tensor, keras.tree.flatten(like))
    ]

    def body(i, carry, outputs):
        at = count - 1 - i if reverse else i
        carry, output = step(carry, [part.read(at) for part in parts])
        pairs = zip(outputs, keras.tree.flatten(output))
        return i + 1, carry, [kept.write(at, x) for kept, x in pairs]

    start = tf.constant(0), carry, outputs
    going = tf.while_loop(lambda i, *_: i < count, body, start, maximum_iterations=count)
    return keras.tree.pack_sequence_as(like, [kept.stack() for kept in going[2]])


def first_choice(logits):
    """Use argmax in a graph on a CPU without XLA."""
    if not has_onednn():
        return None
    rows = ops.reshape(logits, (-1, logits.shape[-1]))
    return ops.reshape(_argmax(rows), ops.shape(logits)[:-1])


def _argmax(rows):
    """Return the argmax (N,) of rows (N, V).

    Keras' argmax is five times slower, for negative zeros.
    """
    return tf.argmax(rows, axis=-1, output_type="int32")


def _each(rows, columns):
    """Select one element of each row of `rows` (N, V), at the indices `columns` (N,)."""
    return tf.gather(rows, columns, batch_dims=1)


# === Optimizers ===


def clip_by_global_norm(gradients, most):
    """Use TensorFlow's function, which does not store the squares."""
    return tf.clip_by_global_norm(gradients, most)[0]


def decay(variables, share, rate):
    """Apply weight decay with half of Keras' passes over the weights."""
    if tf.distribute.has_strategy():
        return None  # A strategy's variables are of another class.
    share = share * rate()
    for variable in variables:
        value = variable.value
        tf.raw_ops.ResourceApplyGradientDescent(
            var=value.handle, alpha=tf.cast(share, value.dtype), delta=value
        )
    return True


def adam_step(variable, mean, square, gradient, beta_1, beta_2, rate, epsilon):
    """Apply Adam's update in one pass instead of twelve."""
    dtype = variable.dtype
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=mean.value.handle,
        v=square.value.handle,
        beta1_power=tf.zeros([], dtype),
        beta2_power=tf.zeros([], dtype),
        lr=tf.cast(rate, dtype),
        beta1=tf.constant(beta_1, dtype),
        beta2=tf.constant(beta_2, dtype),
        epsilon=tf.cast(epsilon, dtype),
        grad=tf.cast(gradient, dtype),
    )
    return True
