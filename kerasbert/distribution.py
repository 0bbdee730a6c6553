"""Training on several devices and in several processes.

V vocabulary size, E embedding width, D width, I width of the feed-forward.

Losses equal those of one device with the whole batch, including weighted means over masked tokens
and in-batch negatives of `MultipleNegativesRanking`. On TensorFlow and PyTorch, other losses that
compare rows (`CoSENT`, `BatchHardTriplet`) or average over tokens (distillation) do so per replica.
Each replica draws its own dropout.

**Several processes started by a launcher, on any backend**: use `together`. For scripts that set up
devices themselves:

**JAX.** Set `keras.distribution` before the model is created. The rows of each batch, even the
last, must be a multiple of the devices:

    keras.distribution.set_distribution(keras.distribution.DataParallel())

or, to split each layer over 4 devices and each batch over 2 groups of 4:

    mesh = keras.distribution.DeviceMesh((2, 4), ["batch", "model"])
    layouts = kerasbert.distribution.layout_map(mesh)
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    )

**TensorFlow.** Create or load the model in the scope of a strategy. `MirroredStrategy` needs
nothing more. With `MultiWorkerMirroredStrategy` all workers run the same script on all data with
the same `keras.utils.set_random_seed`, and each takes its shard; `data_parallel` works around
Keras' limits:

    with strategy.scope():
        model = data_parallel(BertTextClassifier.from_preset(...))
    model.fit(texts, labels)

**PyTorch.** Start one process per device with `torchrun`, each with its shard of the data;
`batch_size` is per process:

    torch.distributed.init_process_group()
    model = data_parallel(BertTextClassifier.from_preset(...))
    model.fit(texts[rank::processes], labels[rank::processes])
"""

from __future__ import annotations

from kerasbert.base import host  # noqa: F401

# isort: split
import contextlib
import dataclasses
import random
import zlib
from typing import TYPE_CHECKING

import keras

from kerasbert import backend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

__all__ = [
    "Processes",
    "Together",
    "data_parallel",
    "join",
    "layout_map",
    "of_one_process",
    "together",
]


def join() -> Processes:
    """Connect to a launcher's other processes, before anything is computed.

    `kerasbert.pretrain` calls it; scripts that compute before must call it first. The launcher sets
    the number of processes:

    - JAX: `KERAS_DISTRIBUTION_JOB_ADDRESSES`, `_NUM_PROCESSES` and `_PROCESS_ID` of Keras, or
      `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`, the variables of SLURM
      or Open MPI, or a TPU pod.
    - PyTorch: `torchrun`.
    - TensorFlow: `TF_CONFIG`.

    Returns:
        `Processes` with `index` and `count`, which are 0 and 1 for a single process.

    Raises:
        RuntimeError: if something was computed already.

    Example:

    >>> join()
    Processes(index=0, count=1)
    """
    return Processes(*backend.join_processes())


@dataclasses.dataclass(frozen=True)
class Processes:
    """The place `index`, from 0, of this process among `count` processes.

    All processes must call its methods.
    """

    index: int
    count: int

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.index == 0

    def any(self, flag: bool) -> bool:
        """Return whether a flag is set in any process."""
        return self.mean([float(bool(flag))])[0] > 0

    def mean(self, values: Any) -> Any:
        """Return the means of floats over all processes."""
        return [total / self.count for total in self.sum(values)]

    def sum(self, values: Any) -> Any:
        """Return the sums of floats over all processes."""
        return backend.sum_over_processes(values) if self.count > 1 else values

    def first(self, function: Callable[..., Any]) -> Any:
        """Call a function in the first process; the others wait and return `None`."""
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
                f"The first of the {self.count} processes failed; see its output for the reason."
            )
        return result


@dataclasses.dataclass(frozen=True)
class Together:
    """Distribution of batches over processes and devices; see `together`.

    Args:
        processes: `Processes`.
        shard: `(index, count)`. The shard of each batch that this process reads.
        replicas: number of devices over which the rows of a batch are split.
    """

    processes: Processes
    shard: tuple
    replicas: int


# The active `Together` if its processes share the batches given to `fit` and `evaluate`.
sharing = None


@contextlib.contextmanager
def together(
    devices: int | None = None, mesh: tuple[int, int] | None = None, share_batches: bool = True
) -> Iterator[Together]:
    """Return a context in which models train on the devices of all processes.

    Call `fit` and `evaluate` with the same texts in every process, after the same
    `keras.utils.set_random_seed`. `batch_size` is global, and each process computes its rows of
    every batch.

        keras.utils.set_random_seed(0)
        with together():
            model = BertTextClassifier.from_preset(...)
            model.fit(texts, labels)
            model = of_one_process(model)
        if join().is_first:
            model.save_to_preset(...)

    Uneven batches are padded with rows of weight 0, which unweighted metrics count. On JAX, call
    `predict` after the context.

    Args:
        devices: number of devices to use, for a single process.
        mesh: `(batch, model)`, ints, JAX only: numbers of devices over which to split the rows of a
            batch, and each layer, see `layout_map`.
        share_batches: bool. `False` if each process passes its own rows to `fit`, such as those of
            `read_examples` with the yielded `shard`.

    Yields:
        `Together`.

    Raises:
        ValueError: for too few devices, or different random seeds of processes that share batches.
        ConnectionError: if another process ended.
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
            f"Process {processes.index} of {processes.count} lost the connection to another one, "
            "which ended or cannot be reached; restart all processes to resume from the last "
            "checkpoint."
        ) from error
    finally:
        sharing = before


def _check_alike(processes):
    """Raise in all processes if Python's random generators differ."""
    state = float(zlib.crc32(repr(random.getstate()).encode()) % 2**20)
    total, squares = processes.sum([state, state * state])
    if total * total != squares * processes.count:
        raise ValueError(
            f"The {processes.count} processes would draw different weights and orders of texts; "
            "call keras.utils.set_random_seed() with the same seed in all of them first."
        )


def of_one_process(model: Any) -> Any:
    """Return a model for this process alone (`predict`, saving), after joint training.

    If processes share layers, all must call this.

    Args:
        model: a task model.

    Returns:
        The model; on JAX with several processes, a new model with copies of the weights.
    """
    return backend.of_one_process(model, join().count)


def layout_map(device_mesh: Any, axis: str = "model") -> Any:
    """Return a `keras.distribution.LayoutMap` for tensor parallelism of this package's models.

    As in Megatron-LM, the first projection of attention and feed-forward is split by columns and
    the second by rows: devices communicate twice per layer. Token embeddings are split by width;
    all else is small and replicated. The optimizer's state is sharded like the weights.

    Args:
        device_mesh: a `keras.distribution.DeviceMesh`.
        axis: mesh axis over which to split layers. E, D and I must be multiples of its size;
            `num_heads` should be one, too.

    Example:

    >>> mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], ["cpu:0", "cpu:1"])
    >>> layouts = layout_map(mesh)
    >>> layouts["transformer_layer_0/attention/qkv/kernel"].axes
    (None, 'model')

    Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3.
    """
    layouts = keras.distribution.LayoutMap(device_mesh)
    layer, attention = "transformer_layer_[0-9]+", "transformer_layer_[0-9]+/(cross_)?attention"
    for path, axes in (
        ("token_embedding/embeddings", (None, axis)),  # (V, E)
        (f"{attention}/(qkv|query|kv)(_global)?/kernel", (None, axis)),  # (D, 3D)
        (f"{attention}/(qkv|query|kv|value)(_global)?/bias", (axis,)),
        (f"{attention}/output/kernel", (axis, None)),  # (D, D)
        (f"{layer}/intermediate/kernel", (None, axis)),  # (D, I)
        (f"{layer}/intermediate/bias", (axis,)),
        (f"{layer}/output/kernel", (axis, None)),  # (I, D)
    ):
        layouts[f"(.*/)?{path}"] = axes
    return layouts


def data_parallel(model: Any, **kwargs: Any) -> Any:
    """Make `model.fit` train jointly with other PyTorch processes or TensorFlow workers.

    On PyTorch `DistributedDataParallel` averages gradients, and all processes start with the first
    one's weights. `fit` shows its own process' losses.

    Args:
        model: a task model, on TensorFlow created in the scope of its strategy; changed in place.
        **kwargs: arguments of `DistributedDataParallel`, on PyTorch.

    Returns:
        The model.

    Raises:
        ValueError: without other processes, or if the backend does not need or support this.
    """
    return backend.data_parallel(model, **kwargs)
