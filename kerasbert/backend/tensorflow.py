"""TensorFlow, imported late: encoders, `fit` on arrays and safetensors need none of it.

And what Keras does not pass on to it: faster forms of layers, losses and AdamW on a CPU, sums over
devices before clipping, and training on several workers.
"""

import contextlib
import logging
import math
import platform

import keras

from kerasbert import private_names
from kerasbert._process import check_process


def tf_modules(needed_by):
    """Return the modules `(tensorflow, tensorflow_text)`.

    Args:
        needed_by: string. What needs them, for the error.

    Raises:
        ImportError: when either is not installed.
        RuntimeError: in a process that cannot use them, see `check_process`.
    """
    check_process()
    try:
        import tensorflow
        import tensorflow_text
    except ImportError as error:
        raise ImportError(
            f"{needed_by} needs TensorFlow and TensorFlow Text on every Keras backend; "
            "run `pip install tensorflow tensorflow-text`, or pass arrays of token ids."
        ) from error
    return tensorflow, tensorflow_text


def _is_no_retracing(record):
    return "triggered tf.function retracing" not in record.getMessage()


@contextlib.contextmanager
def traced_on_purpose():
    """Leave out TensorFlow's warning of functions that are traced again and again.

    Batches have the length of their texts, rounded up: each such length is traced once, and five
    new ones in a row are no mistake.
    """
    logger = logging.getLogger("tensorflow")
    logger.addFilter(_is_no_retracing)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_retracing)


def rows_where(mask, *tensors):
    """The rows of each tensor where `mask` (N,) is true, as a list.

    `tf.boolean_mask` is slow to trace, and looks for the rows anew for each tensor.
    """
    import tensorflow as tf

    rows = tf.where(mask)[:, 0]
    return [tf.gather(tensor, rows) for tensor in tensors]


def sum_over_replicas(gradients):
    """The sums over the devices of a `tf.distribute` strategy; `None`s stay."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return gradients
    sums = iter(context.all_reduce("SUM", [g for g in gradients if g is not None]))
    return [g if g is None else next(sums) for g in gradients]


def is_plain_tensorflow():
    """Whether Keras is on TensorFlow, in no scope of a `tf.distribute` strategy."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return not tf.distribute.has_strategy()


def clip_by_global_norm(gradients, most):
    """The gradients, smaller where the norm of all is above `most`; `None`s stay.

    Keras' own writes the squares down before it adds them up.
    """
    import tensorflow as tf

    return tf.clip_by_global_norm(gradients, most)[0]


def shrink(variables, share):
    """Take a share of each off it: decay, with half the passes over the weights of Keras' own."""
    import tensorflow as tf

    for variable in variables:
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=tf.cast(share, variable.dtype), delta=variable
        )


def adam_step(variable, mean, square, gradient, beta_1, beta_2, rate, epsilon):
    """Adam's update of a variable, in one pass instead of twelve.

    Its correction is in `rate` and `epsilon`.
    """
    import tensorflow as tf

    dtype = variable.dtype
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=mean.handle,
        v=square.handle,
        beta1_power=tf.zeros([], dtype),
        beta2_power=tf.zeros([], dtype),
        lr=tf.cast(rate, dtype),
        beta1=tf.constant(beta_1, dtype),
        beta2=tf.constant(beta_2, dtype),
        epsilon=tf.cast(epsilon, dtype),
        grad=tf.cast(gradient, dtype),
    )


def train_on_workers(model):
    """Let a model made under `MultiWorkerMirroredStrategy` run `fit` and `evaluate`.

    Keras 3.15 averages the results of a step over the workers as if they were no scalars.
    """
    import tensorflow as tf

    strategy = model.distribute_strategy
    resolver = getattr(strategy, "cluster_resolver", None)
    tasks = resolver.cluster_spec().as_dict() if resolver else {}
    workers = [*tasks.get("chief", ()), *tasks.get("worker", ())]
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) or len(workers) < 2:
        raise ValueError(
            "There are no other workers to train with; make the model in the scope of a "
            "tf.distribute.MultiWorkerMirroredStrategy whose TF_CONFIG names them. On the devices "
            "of one machine Keras trains without data_parallel()."
        )

    def in_lists(step):
        return lambda data: tf.nest.map_structure(lambda x: x[None], step(data))

    model.train_step = in_lists(model.train_step)
    model.test_step = in_lists(model.test_step)


def matmul_transposed(x, y):
    """Product (..., N, V) of (..., N, E) with (..., V, E) transposed."""
    import tensorflow as tf

    return tf.matmul(x, y, transpose_b=True)


def has_onednn():
    """Whether TensorFlow runs oneDNN's operations here: in a graph for an x86 CPU, without XLA.

    XLA fuses formulas itself, and loses by a detour. Where TensorFlow hides what it compiles the
    answer is no.
    """
    if keras.backend.backend() != "tensorflow" or platform.machine() not in ("x86_64", "AMD64"):
        return False
    import tensorflow as tf

    if tf.executing_eagerly() or tf.config.list_physical_devices("GPU"):
        return False
    return not private_names.may_be_in_xla(tf.compat.v1.get_default_graph())


def layer_norm(inputs, gamma, beta, epsilon):
    """Layer normalization over the width of `inputs` (B, T, D), with statistics in float32.

    Written as batch normalization with the tokens for channels, which grappler turns into oneDNN's
    layer norm on a CPU: a third of the time of the formula in bfloat16, half in float32.
    """
    import tensorflow as tf

    shape = tf.shape(inputs)
    tokens = tf.reduce_prod(shape[:-1])
    none = tf.constant([], tf.float32)
    outputs, *_ = tf.raw_ops.FusedBatchNormV3(
        x=tf.reshape(inputs, tf.stack([1, tokens, shape[-1], 1])),
        scale=tf.ones([tokens]),
        offset=tf.zeros([tokens]),
        mean=none,
        variance=none,
        epsilon=epsilon,
        data_format="NCHW",
        is_training=True,
    )
    outputs = tf.reshape(outputs, shape) * tf.cast(gamma, inputs.dtype)
    return outputs if beta is None else outputs + tf.cast(beta, inputs.dtype)


def gelu(x, approximate):
    """GELU with a gradient in fewer passes over `x`: for training, which has no fused one on a CPU.

    The tanh form as `x * sigmoid(2 * u)`, the same function.
    """
    import tensorflow as tf

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


def dropout(inputs, rate, seed):
    """`inputs` with a share `rate` of zeros, and the rest larger by as much.

    From 16 random bits each, of which a generator's float takes 32 and more time to make: a third
    of it in float32, a tenth in bfloat16. The share is right to 2 ** -17.

    Args:
        inputs: tensor.
        rate: float.
        seed: a `keras.random.SeedGenerator`.
    """
    import tensorflow as tf

    seed = tf.math.floormod(seed.next(), tf.int32.max - 1)  # As Keras' own; they are int64.
    shape, count = tf.shape(inputs), tf.size(inputs)
    bits = tf.random.stateless_uniform([(count + 1) // 2], seed, None, None, tf.uint32)
    bits = tf.reshape(tf.bitcast(bits, tf.uint16), [-1])[:count]
    zeros = min(round(rate * 2**16), 2**16 - 1)
    keep = tf.reshape(bits >= tf.constant(zeros, tf.uint16), shape)
    scale = tf.constant(2**16 / (2**16 - zeros), inputs.dtype)
    return tf.where(keep, inputs * scale, tf.zeros([], inputs.dtype))


def cross_entropy(labels, logits):
    """Cross-entropy (N,) of labels (N,) and logits (N, V), with its gradient.

    By oneDNN's softmax: TensorFlow's own operation took 6 ns an element on a CPU, and took it
    again for a metric. Here the logits alone make all that is large, so that TensorFlow computes
    it once for loss and metrics.
    """
    import tensorflow as tf

    labels = tf.cast(labels, "int32")

    @tf.custom_gradient
    def compute(logits):
        probabilities = tf.nn.softmax(logits)  # (N, V)
        first = argmax(logits)
        # log(sum(exp(logits))), from the largest, where it is as exact as can be.
        total = _each(logits, first) - tf.math.log(_each(probabilities, first))

        def gradient(upstream):
            places = tf.stack([tf.range(tf.size(labels)), labels], axis=-1)
            scaled = probabilities * upstream[:, tf.newaxis]
            return tf.tensor_scatter_nd_sub(scaled, places, upstream)

        return total - _each(logits, labels), gradient

    return compute(logits)


def argmax(rows):
    """The column (N,) of the largest of each of the rows (N, V).

    Keras' own looks for negative zeros first, which takes five times as long.
    """
    import tensorflow as tf

    return tf.argmax(rows, axis=-1, output_type="int32")


def _each(rows, columns):
    """One column (N,) of each of the rows (N, V)."""
    import tensorflow as tf

    return tf.gather(rows, columns, batch_dims=1)
