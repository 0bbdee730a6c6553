"""Training in several processes with PyTorch's process groups.

See `kerasbert.backend` for the arguments.
"""

import atexit
import contextlib
import datetime
import os

import torch
from torch import distributed

from kerasbert.backend import check_no_mesh
from kerasbert.base import keras_internals


def launched():
    """Read torchrun's environment variables, and select this process' GPU."""
    count = int(os.environ.get("WORLD_SIZE") or 1)
    if count > 1 and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK") or 0))
    return int(os.environ.get("RANK") or 0), count


def join_processes():
    """Connect to the processes that torchrun started."""
    if not _are_several():
        if launched()[1] < 2 or not distributed.is_available():
            return 0, 1
        kinds = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        # The first process may write examples for hours.
        distributed.init_process_group(kinds, timeout=datetime.timedelta(hours=12))
        # The group's threads may fail during shutdown.
        atexit.register(_leave_processes)
    return distributed.get_rank(), distributed.get_world_size()


def _leave_processes():
    if _are_several():
        distributed.destroy_process_group()


def _are_several():
    return distributed.is_available() and distributed.is_initialized()


def on_devices(devices, mesh, layout_map):
    """Check that each process has one device."""
    check_no_mesh(mesh)
    if devices not in (None, 1):
        raise ValueError(
            f"devices={devices} is not supported on PyTorch, where each device has its own "
            f"process; start this with `torchrun --nproc-per-node {devices}`, without devices."
        )
    if not _are_several():
        return contextlib.nullcontext(((0, 1), 1))
    count = distributed.get_world_size()
    return contextlib.nullcontext(((distributed.get_rank(), count), count))


def data_parallel(model, **kwargs):
    """Average gradients of all processes in `fit` with `DistributedDataParallel`."""
    if not torch.distributed.is_initialized():
        raise ValueError(
            "data_parallel() found no process group; start the script with torchrun, and call "
            "torch.distributed.init_process_group() first."
        )
    # KerasHub's models register weights with PyTorch only in the first step.
    keras_internals.track_variables(model)
    # Unused weights, such as the pooler's, would cause an error.
    kwargs = {"find_unused_parameters": True, **kwargs}
    forward = torch.nn.parallel.DistributedDataParallel(model, **kwargs)

    class Through:
        """The model, called through `DistributedDataParallel`."""

        def __call__(self, *args, **kwargs):
            return forward(*args, **kwargs)

        def __getattr__(self, name):
            return getattr(model, name)

    step = type(model).train_step
    model.train_step = lambda data: step(Through(), data)
    return model


def rows_of_process(shard, training):
    """Return the whole batch for `evaluate`: its results are not averaged over processes."""
    return shard if training else (0, 1)


def sum_over_processes(values):
    """Sum on the CPU with gloo."""
    if not _are_several():
        return None
    total = torch.tensor(values, dtype=torch.float64)
    distributed.all_reduce(total)
    return total.tolist()


def is_lost_process(error):
    """Recognize errors of gloo and NCCL, which have no class of their own."""
    said = ("Connection closed by peer", "Connection reset", "Broken pipe", "gloo", "NCCL")
    return isinstance(error, RuntimeError) and any(part in str(error) for part in said)


def of_all_replicas(x):
    """Gather rows from all processes, which may have different numbers of them.

    Other axes are zero-padded to the largest size.
    """
    if not _are_several():
        return None
    rank, count = distributed.get_rank(), distributed.get_world_size()
    sizes = torch.zeros(count, x.ndim, dtype=torch.int64, device=x.device)
    sizes[rank] = torch.tensor(x.shape)
    distributed.all_reduce(sizes)
    missing = (sizes.amax(dim=0) - sizes[rank]).tolist()
    padding = [size for missed in reversed(missing) for size in (0, missed)]
    parts = _Gathered.apply(torch.nn.functional.pad(x, padding))
    parts = [part[:rows] for part, rows in zip(parts, sizes[:, 0].tolist())]
    return torch.cat([*parts[rank:], *parts[:rank]])


class _Gathered(torch.autograd.Function):
    """Gathers tensors of equal shape from all processes; gradients are summed."""

    @staticmethod
    def forward(context, x):
        parts = [torch.empty_like(x) for _ in range(distributed.get_world_size())]
        distributed.all_gather(parts, x.contiguous())
        return tuple(parts)

    @staticmethod
    def backward(context, *gradients):
        total = torch.stack(gradients)
        distributed.all_reduce(total)
        return total[distributed.get_rank()]


def mean_of_replicas(x):
    """Average over all processes, without gradients to others."""
    if not _are_several():
        return None
    total = x.detach().clone()
    distributed.all_reduce(total)
    return total / distributed.get_world_size()
