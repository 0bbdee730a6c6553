"""Training on the devices of several processes with `keras.distribution` on JAX.

See `kerasbert.backend` for the arguments.
"""

import contextlib
import os

import jax
import keras
import numpy as np
from keras import ops

from kerasbert import backend
from kerasbert.base.keywords import config_of

# Seconds without a heartbeat after which a process counts as dead.
HEARTBEAT = 30
# Environment variables of SLURM and Open MPI: the number of processes, and this process' index.
_COUNTED = {
    "SLURM_STEP_NUM_TASKS": "SLURM_PROCID",
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK",
}
_KERAS = ("JOB_ADDRESSES", "NUM_PROCESSES", "PROCESS_ID")


def launched():
    """Return `(index, count)` from the environment variables that `join_processes` reads."""
    if jax.distributed.is_initialized():
        return jax.process_index(), jax.process_count()
    given = _launched()
    if given is None:
        return 0, 1
    if given:
        return given["process_id"], given["num_processes"]
    for count, index in _COUNTED.items():
        if int(os.environ.get(count) or 1) > 1:
            return int(os.environ[index]), int(os.environ[count])
    hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    return int(os.environ.get("TPU_WORKER_ID") or 0), len(hosts)


def join_processes():
    """Connect to a launcher's processes; see `join`."""
    if not jax.distributed.is_initialized() and (given := _launched()) is not None:
        try:
            jax.distributed.initialize(**given, heartbeat_timeout_seconds=HEARTBEAT)
        except RuntimeError as error:
            if "before any JAX" not in str(error):
                raise
            raise RuntimeError(
                "JAX has already computed something, but processes must connect before that; call "
                "kerasbert.distribution.join() first in the script."
            ) from None
    return jax.process_index(), jax.process_count()


def _launched():
    """Return the arguments of `jax.distributed.initialize`; `None` for a single process."""
    found = [os.environ.get(f"KERAS_DISTRIBUTION_{name}") for name in _KERAS]
    if found[0]:
        address = found[0].split(",")[0]
        count = found[1] or len(found[0].split(","))
        return _meeting(address, count, found[2])
    if address := os.environ.get("JAX_COORDINATOR_ADDRESS"):
        found = [os.environ.get(f"JAX_{name}") for name in _KERAS[1:]]
        return {} if None in found else _meeting(address, *found)
    # SLURM sets its variable only in steps (`srun`), not in a job's script.
    several = any(int(os.environ.get(name) or 1) > 1 for name in _COUNTED)
    return {} if several or "," in os.environ.get("TPU_WORKER_HOSTNAMES", "") else None


def _meeting(address, count, index):
    count, index = int(count), int(index or 0)
    if count < 2:
        return None
    return {"coordinator_address": address, "num_processes": count, "process_id": index}


@contextlib.contextmanager
def on_devices(devices, mesh, layout_map):
    """Use the current `keras.distribution`, or set a new one for `devices` or `mesh`."""
    before = keras.distribution.distribution()
    if before is not None and (devices, mesh) != (None, None):
        raise ValueError(
            "keras.distribution.set_distribution() has already chosen the devices; omit devices "
            "and mesh."
        )
    if before is not None and jax.process_count() > 1 and before.auto_shard_dataset:
        raise ValueError(
            "The current keras.distribution would split the rows of each process again; create it "
            "with auto_shard_dataset=False."
        )
    if before is not None or (devices is None and mesh is None and jax.process_count() == 1):
        yield ((0, 1), 1) if before is None else _shard(before)
        return
    named = keras.distribution.list_devices()
    count = len(named) if devices is None else devices
    if mesh is not None:
        count = mesh[0] * mesh[1]
    if count > len(named) or (jax.process_count() > 1 and count < len(named)):
        given = f"devices={devices}" if mesh is None else f"mesh={mesh[0]}x{mesh[1]}"
        raise ValueError(
            f"{given} needs {count} devices, but the {jax.process_count()} processes have "
            f"{len(named)}: {', '.join(named[:8])}."
        )
    named = named[:count]
    if mesh is None:
        chosen = keras.distribution.DataParallel(devices=named, auto_shard_dataset=False)
    else:
        mesh = keras.distribution.DeviceMesh(mesh, ["batch", "model"], named)
        chosen = keras.distribution.ModelParallel(
            layout_map=layout_map(mesh), batch_dim_name="batch", auto_shard_dataset=False
        )
    keras.distribution.set_distribution(chosen)
    try:
        yield _shard(chosen)
    finally:
        keras.distribution.set_distribution(before)


def _shard(distribution):
    """Return `((index, count), replicas)` of a distribution, which `on_devices` yields."""
    mesh = distribution.device_mesh
    axis = mesh.axis_names.index(distribution.batch_dim_name)
    here = {f"{device.platform}:{device.id}" for device in jax.local_devices()}
    places = {place[axis] for place, name in np.ndenumerate(mesh.devices) if str(name) in here}
    replicas, width = mesh.devices.shape[axis], len(places)
    first = min(places)
    if sorted(places) != list(range(first, first + width)) or first % width or replicas % width:
        raise ValueError(
            f"The devices of this process are rows {sorted(places)} of the mesh {mesh.shape}; "
            "order the devices by their processes."
        )
    return (first // width, replicas // width), replicas


def data_parallel(model, **kwargs):
    """Raise: on JAX, Keras itself trains on several devices."""
    raise ValueError(
        "data_parallel() is not needed on JAX; call "
        "keras.distribution.set_distribution(keras.distribution.DataParallel()) instead."
    )


def share_steps(model, processes):
    """Return True: nothing is needed, because Keras itself runs steps jointly."""
    return True


def one_after_another(step):
    """Wait for each step of `evaluate` if several processes have several CPU devices each.

    Collective operations of many steps may deadlock. `fit` reads each step's results anyway.
    """
    if jax.process_count() == 1 or jax.local_device_count() == 1 or jax.default_backend() != "cpu":
        return None
    return lambda *inputs: jax.block_until_ready(step(*inputs))


def of_one_process(model, processes):
    """Return a copy of the model with all weights on this process."""
    if processes == 1:
        return None
    values = [backend.whole(variable) for variable in model.weights]
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        own = type(model).from_config(config_of(model))
        own.preprocessor = model.preprocessor  # The config lacks the vocabulary.
        own.set_weights(values)
    finally:
        keras.distribution.set_distribution(before)
    return own


def predicts_while_sharing():
    """Return False: each computation runs on the devices of all processes."""
    return False


def is_lost_process(error):
    """Recognize errors of JAX's collective operations and coordination service."""
    said = ("Gloo", "gloo", "UNAVAILABLE", "NCCL", "heartbeat", "peer", "coordination")
    return isinstance(error, (jax.errors.JaxRuntimeError, ValueError)) and any(
        part in str(error) for part in said
    )


def sum_over_processes(values):
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return None
    # JAX would round float64 to float32.
    found = multihost_utils.process_allgather(np.asarray(values, "float64").view("uint32"))
    return np.ascontiguousarray(found).view("float64").sum(axis=0).tolist()


def whole(variable):
    """Gather a variable that is sharded over processes into one array."""
    from jax.experimental import multihost_utils

    value = ops.convert_to_tensor(variable)
    if not isinstance(value, jax.Array) or value.is_fully_addressable:
        return None
    if value.is_fully_replicated:
        return np.asarray(value.addressable_data(0))
    return multihost_utils.process_allgather(value, tiled=True)
