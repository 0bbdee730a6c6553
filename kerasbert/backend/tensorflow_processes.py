"""Training on several devices and workers with TensorFlow's strategies.

See `kerasbert.backend` for the arguments.
"""

import contextlib
import functools
import json
import os

from kerasbert.backend import check_no_mesh
from kerasbert.backend.tensorflow import tf

# === Workers ===


def launched():
    """Return this worker's index and the number of workers in TF_CONFIG; the chief has index 0."""
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    cluster, task = config.get("cluster", {}), config.get("task", {})
    count = sum(len(cluster.get(kind, ())) for kind in ("chief", "worker"))
    if count < 2:
        return 0, 1
    before = len(cluster.get("chief", ())) if task.get("type") == "worker" else 0
    return before + int(task["index"]), count


def join_processes():
    """Connect to the workers of TF_CONFIG."""
    workers = launched()
    if workers[1] > 1:
        _multi_worker_strategy()
    return workers


@functools.cache
def _multi_worker_strategy():
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except RuntimeError as error:
        if "program startup" not in str(error):
            raise
        raise RuntimeError(
            "TensorFlow has already computed something, but workers must connect before that; call "
            "kerasbert.distribution.join() first in the script."
        ) from None


@contextlib.contextmanager
def on_devices(devices, mesh, layout_map):
    """Enter the scope of the active strategy, or of a new one."""
    check_no_mesh(mesh)
    shard = launched()
    if shard[1] > 1:
        strategy = _multi_worker_strategy()
    elif devices not in (None, 1):
        names = [device.name for device in tf.config.list_logical_devices("GPU")]
        names = names or [device.name for device in tf.config.list_logical_devices("CPU")]
        if devices > len(names):
            raise ValueError(
                f"devices={devices} exceeds the number of available devices, {len(names)}: "
                f"{', '.join(names)}."
            )
        strategy = tf.distribute.MirroredStrategy(names[:devices])
    else:
        strategy = tf.distribute.get_strategy()
    is_entered = strategy is tf.distribute.get_strategy()
    with contextlib.nullcontext() if is_entered else strategy.scope():
        yield shard, strategy.num_replicas_in_sync


def data_parallel(model):
    """Make `fit` and `evaluate` work for a model created under `MultiWorkerMirroredStrategy`.

    Keras 3.15 cannot average scalars over workers, so they get an axis.
    """
    strategy = model.distribute_strategy
    resolver = getattr(strategy, "cluster_resolver", None)
    tasks = resolver.cluster_spec().as_dict() if resolver else {}
    workers = [*tasks.get("chief", ()), *tasks.get("worker", ())]
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) or len(workers) < 2:
        raise ValueError(
            "data_parallel() found no other workers; create the model in the scope of a "
            "tf.distribute.MultiWorkerMirroredStrategy whose TF_CONFIG names them. The devices of "
            "one machine do not need data_parallel()."
        )

    def in_lists(step):
        return lambda data: tf.nest.map_structure(lambda x: x[None], step(data))

    model.train_step = in_lists(model.train_step)
    model.test_step = in_lists(model.test_step)
    return model


def rows_of_process(shard, training):
    """Return `shard`; for workers with several devices, the whole batch, which the strategy
    splits."""
    devices = tf.distribute.get_strategy().num_replicas_in_sync
    return shard if devices == shard[1] else (0, 1)


def of_this_process(batches):
    """Make the strategy split batches only over this worker's devices."""
    _, count = launched()
    if count == 1 or batches is None:
        return batches
    strategy = tf.distribute.get_strategy()
    devices = strategy.num_replicas_in_sync // count
    if devices > 1:
        rows = int(next(iter(batches))[0]["token_ids"].shape[0])
        batches = batches.rebatch(rows // devices)
    return strategy.distribute_datasets_from_function(lambda context: batches)


# === Sums and means ===


def sum_over_processes(values):
    _, count = launched()
    if count == 1:
        return None
    strategy = _multi_worker_strategy()
    found = _total()(tf.constant(values, "float64"))
    devices = strategy.num_replicas_in_sync // count
    return (strategy.experimental_local_results(found)[0].numpy() / devices).tolist()


@functools.cache
def _total():
    """Build a graph that sums over the workers, without warnings."""
    strategy = _multi_worker_strategy()

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], "float64")])
    def total(x):
        of_one = tf.distribute.get_replica_context
        # The sum runs on its tensor's device; arguments have none.
        return strategy.run(lambda x: of_one().all_reduce("SUM", tf.identity(x)), args=(x,))

    return total


def is_lost_process(error):
    """Recognize errors of collective operations."""
    kinds = tf.errors.UnavailableError, tf.errors.InternalError, tf.errors.AbortedError
    return isinstance(error, kinds)


def sum_over_replicas(gradients):
    """Sum over the replicas of a strategy."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return gradients
    sums = iter(context.all_reduce("SUM", [g for g in gradients if g is not None]))
    return [g if g is None else next(sums) for g in gradients]


def of_all_replicas(x):
    """Gather rows from the replicas of a strategy; replicas may have different numbers of rows."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return None
    own = context.replica_id_in_sync_group
    replicas = context.all_gather(tf.fill([tf.shape(x)[0]], own), axis=0)
    before = tf.math.count_nonzero(replicas < own, dtype=tf.int32)
    every = tf.roll(context.all_gather(x, axis=0), -before, axis=0)
    return tf.ensure_shape(every, [None, *x.shape[1:]])


def mean_of_replicas(x):
    """Average over the replicas of a strategy."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return None
    return context.all_reduce("MEAN", x)
