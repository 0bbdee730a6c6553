"""Training on several devices: what Keras leaves open for each backend.

V tokens of the vocabulary, E width of the embeddings, D width, I width of the feed-forward.

Losses are those of one device with the whole batch, but for what is a mean over tokens, as that of
hidden tokens: on TensorFlow and PyTorch each device takes its own mean, and the mean of these
differs a little where devices have different numbers of tokens. Dropout draws on each device.

**Several processes that a launcher started, on any backend**: `together`, below, is all that it
takes. What follows is for scripts that set up devices themselves.

**JAX.** `keras.distribution` does it all; set it before the model is made. The devices have to
divide the rows of each batch, the last one's too:

    keras.distribution.set_distribution(keras.distribution.DataParallel())

or, with each layer cut over 4 devices, and the batches over the rest:

    mesh = keras.distribution.DeviceMesh((2, 4), ["batch", "model"])
    layouts = kerasbert.distribution.layout_map(mesh)
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    )

**TensorFlow.** Make or load the model in the scope of a strategy. `MirroredStrategy` needs no
more; with `MultiWorkerMirroredStrategy`, where each worker runs the same script on all of the
data with the same `keras.utils.set_random_seed`, and takes its part, `data_parallel` mends what
Keras stops at:

    with strategy.scope():
        model = data_parallel(BertTextClassifier.from_preset(...))
    model.fit(texts, labels)

**PyTorch.** Keras does nothing itself. One process a device, as `torchrun` starts them, each with
its own part of the data; `batch_size` is of one process:

    torch.distributed.init_process_group()
    model = data_parallel(BertTextClassifier.from_preset(...))
    model.fit(texts[rank::processes], labels[rank::processes])
"""

import contextlib
import dataclasses
import random
import zlib

import keras

from kerasbert import backend

__all__ = [
    "Processes",
    "Together",
    "data_parallel",
    "join",
    "layout_map",
    "of_one_process",
    "together",
]


def join():
    """Meet the other processes that a launcher started, before anything is computed.

    `kerasbert.pretrain` does it itself; a script that computes something before calls this first.
    What starts the processes says how many there are:

    - JAX: `KERAS_DISTRIBUTION_JOB_ADDRESSES`, `_NUM_PROCESSES` and `_PROCESS_ID` of Keras, or
      `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`, SLURM's and Open MPI's
      own variables, or a pod of TPUs.
    - PyTorch: `torchrun`.
    - TensorFlow: `TF_CONFIG`.

    Returns:
        `Processes`: `index` and `count`, 0 and 1 where there are no others.

    Raises:
        RuntimeError: where something was computed already.

    Example:

    >>> join()
    Processes(index=0, count=1)
    """
    return Processes(*backend.join_processes())


@dataclasses.dataclass(frozen=True)
class Processes:
    """This process among those that train together, from 0. What it asks, all have to ask."""

    index: int
    count: int

    @property
    def is_first(self):
        """Whether this is the process that writes."""
        return self.index == 0

    def any(self, flag):
        """Whether a flag is set in any of them."""
        return self.mean([float(bool(flag))])[0] > 0

    def mean(self, values):
        """The means of floats over all of them."""
        return [total / self.count for total in self.sum(values)]

    def sum(self, values):
        """The sums of floats over all of them."""
        return backend.sum_over_processes(values) if self.count > 1 else values

    def first(self, function):
        """Call a function in the first one while the others wait; its result, elsewhere `None`."""
        error = result = None
        if self.is_first:
            try:
                result = function()
            except BaseException as caught:
                error = caught
        failed = self.any(error is not None)
        if error is not None:
            raise error
        if failed:
            raise ConnectionError(
                f"The first of the {self.count} processes stopped: what it printed says why."
            )
        return result


@dataclasses.dataclass(frozen=True)
class Together:
    """What processes and their devices share out: see `together`.

    Args:
        processes: `Processes`.
        shard: `(index, count)`. The part of each batch that this process reads.
        replicas: int. The devices that divide the rows of a batch.
    """

    processes: Processes
    shard: tuple
    replicas: int


# The `Together` in whose context this is, where its processes share the batches that `fit` and
# `evaluate` are given.
sharing = None


@contextlib.contextmanager
def together(devices=None, mesh=None, share_batches=True):
    """A context in which models train on several devices, of all processes that were started.

    `fit` and `evaluate` of task models are given the same texts in every process, after the same
    `keras.utils.set_random_seed`, and train as one process would: `batch_size` is of all together,
    and each process computes its rows of every batch.

        keras.utils.set_random_seed(0)
        with together():
            model = BertTextClassifier.from_preset(...)
            model.fit(texts, labels)
            model = of_one_process(model)
        if join().is_first:
            model.save_to_preset(...)

    A batch that the processes do not divide is filled with rows of weight 0, which metrics without
    weights count. What compares the rows of a batch with each other, as `BertTextEmbedder` does
    with pairs, compares on PyTorch those of its own process. On JAX `predict` comes after the
    context.

    Args:
        devices: int. How many devices of this process to use, where it is alone.
        mesh: `(batch, model)`, ints, on JAX: the devices that divide the rows of a batch, and those
            that divide each layer, see `layout_map`.
        share_batches: bool. `False` where each process gives `fit` its own rows of every batch, as
            `read_examples` reads them with the `shard` of what is yielded.

    Yields:
        `Together`.

    Raises:
        ValueError: for more devices than there are, and where processes that share batches would
            draw other weights and orders.
        ConnectionError: in a sentence, where another process ended.
    """
    global sharing
    processes, before = join(), sharing
    try:
        with backend.on_devices(devices, mesh, layout_map) as (shard, replicas):
            group = Together(processes, shard, replicas)
            sharing = None
            if share_batches and processes.count > 1:
                _check_alike(processes)
                sharing = group
            yield group
    except Exception as error:
        if processes.count == 1 or not backend.is_lost_process(error):
            raise
        raise ConnectionError(
            f"Process {processes.index} of {processes.count} lost another one, which ended or "
            "cannot be reached: start all of them again, and they go on from the last checkpoint."
        ) from error
    finally:
        sharing = before


def _check_alike(processes):
    """Raise, in all processes, unless Python's generator has the same state in all of them."""
    state = float(zlib.crc32(repr(random.getstate()).encode()) % 2**20)
    total, squares = processes.sum([state, state * state])
    if total * total != squares * processes.count:
        raise ValueError(
            f"The {processes.count} processes would draw different weights and orders of texts: "
            "call keras.utils.set_random_seed() with the same number in all of them first."
        )


def of_one_process(model):
    """A model that several processes trained, for use in this one alone: `predict`, saving.

    All of them have to call it where layers are cut over their devices.

    Args:
        model: a task model.

    Returns:
        The model; on JAX with several processes a new one with copies of its weights.
    """
    return backend.of_one_process(model, join().count)


def layout_map(device_mesh, axis="model"):
    """How the weights of this package's models lie on devices: a `keras.distribution.LayoutMap`.

    Each layer is cut as in Megatron-LM: the first projection of attention and of the feed-forward
    by its columns, the second by its rows, so that the devices meet twice a layer; tables of
    embeddings by their width. All else, biases after the sums, norms, positions and heads, is
    small and whole on each device. The optimizer's state lies as the weights do.

    Args:
        device_mesh: a `keras.distribution.DeviceMesh`.
        axis: string. The axis of the mesh over which layers are cut. Its size has to divide E, D
            and I, best `num_heads` too.

    Example:

    >>> mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], ["cpu:0", "cpu:1"])
    >>> layouts = layout_map(mesh)
    >>> layouts["transformer_layer_0/attention/qkv/kernel"].axes
    (None, 'model')

    Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3.
    """
    layouts = keras.distribution.LayoutMap(device_mesh)
    for path, axes in (
        ("token_embedding/embeddings", (None, axis)),  # (V, E)
        ("transformer_layer_[0-9]+/attention/qkv/kernel", (None, axis)),  # (D, 3D)
        ("transformer_layer_[0-9]+/attention/qkv/bias", (axis,)),
        ("transformer_layer_[0-9]+/attention/output/kernel", (axis, None)),  # (D, D)
        ("transformer_layer_[0-9]+/intermediate/kernel", (None, axis)),  # (D, I)
        ("transformer_layer_[0-9]+/intermediate/bias", (axis,)),
        ("transformer_layer_[0-9]+/output/kernel", (axis, None)),  # (I, D)
    ):
        layouts[f"(.*/)?{path}"] = axes
    return layouts


def data_parallel(model, **kwargs):
    """Let `model.fit` train with other processes: PyTorch's, or TensorFlow's workers.

    On PyTorch the gradients of all processes are averaged by `DistributedDataParallel`, and the
    weights start as those of the first. `fit` shows the losses of its own process.

    Args:
        model: a task model; on TensorFlow, one made in the scope of its strategy. It is changed.
        **kwargs: PyTorch: arguments of `DistributedDataParallel`.

    Returns:
        The model.

    Raises:
        ValueError: where there are no other processes to train with, or Keras does it alone.
    """
    return backend.data_parallel(model, **kwargs)
