"""Train a spam filter on several devices, with the distribution API of each backend.

    python examples/several_devices.py                                # TensorFlow: MirroredStrategy
    KERAS_BACKEND=jax python examples/several_devices.py              # DataParallel
    KERAS_BACKEND=jax python examples/several_devices.py --model 2    # ModelParallel
    KERAS_BACKEND=torch torchrun --nproc-per-node 2 examples/several_devices.py    # DDP

It uses all GPUs or TPUs. Without any, it simulates two devices (four with --model 2) on the CPU,
which trains no faster: about a minute on 2 cores. Expected on the 896 held-out messages, with two
devices and seed 0: an accuracy of 0.98 or more, as with one device.
"""

import os
from typing import Annotated

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Only for JAX's CPU devices, which are used without a GPU or TPU.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import kerasbert.models  # noqa: F401  Before Keras, as it sets how PyTorch's threads wait.

# isort: split
import keras
import typer
from classify_sms import HERE, read, small_classifier

from kerasbert.distribution import data_parallel, layout_map

BACKEND = keras.backend.backend()
BATCH = 32  # Global batch size, over all devices.


def on_jax(make, parts):
    """Use `DataParallel`, or `ModelParallel` with each layer split into `parts` parts."""
    devices = keras.distribution.list_devices()
    if devices[0].startswith("cpu"):
        devices = devices[: 2 * parts]
    if parts == 1:
        distribution = keras.distribution.DataParallel(devices=devices)
    else:
        shape = (len(devices) // parts, parts)
        mesh = keras.distribution.DeviceMesh(shape, ["batch", "model"], devices)
        distribution = keras.distribution.ModelParallel(
            layout_map=layout_map(mesh), batch_dim_name="batch"
        )
    keras.distribution.set_distribution(distribution)
    return make(), len(devices), 0, 1


def on_tensorflow(make, parts):
    """Use `MirroredStrategy`, or `MultiWorkerMirroredStrategy` if TF_CONFIG is set."""
    import tensorflow as tf

    workers = "TF_CONFIG" in os.environ
    if not workers and not tf.config.list_physical_devices("GPU"):
        (cpu,) = tf.config.list_physical_devices("CPU")
        simulated = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, simulated)
    if workers:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
        names = [device.name for device in tf.config.list_logical_devices(kind)]
        strategy = tf.distribute.MirroredStrategy(names)
    with strategy.scope():
        model = make()
    return data_parallel(model) if workers else model, strategy.num_replicas_in_sync, 0, 1


def on_torch(make, parts):
    """Use one process per device, each with its share of the messages."""
    import torch

    if "RANK" not in os.environ:
        raise typer.BadParameter("Start it with torchrun on PyTorch; see the top of the script.")
    torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, processes = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return data_parallel(make()), processes, rank, processes


def main(
    model: Annotated[int, typer.Option(help="JAX: devices to split each layer over")] = 1,
    epochs: int = 3,
    rows: Annotated[int, typer.Option(help="number of training messages")] = 3584,
    seed: int = 0,
):
    """Train a message classifier on all devices and score it."""
    if model > 1 and BACKEND != "jax":
        raise typer.BadParameter("Only on JAX can Keras cut a layer; leave --model out.")
    keras.utils.set_random_seed(seed)  # All workers need the same order of messages.
    texts, labels = read(HERE / "data/sms_spam.csv")
    # JAX splits batches into equal parts, so only whole batches are kept.
    held_out = slice(rows, rows + (len(texts) - rows) // BATCH * BATCH)
    names = sorted(set(labels))

    def make():
        classifier = small_classifier(texts[:rows], names)
        classifier.compile(keras.optimizers.AdamW(5e-4, weight_decay=0.01, global_clipnorm=1.0))
        return classifier

    make_on = {"jax": on_jax, "tensorflow": on_tensorflow, "torch": on_torch}[BACKEND]
    classifier, devices, rank, processes = make_on(make, model)
    part = slice(rank, rows, processes)
    classifier.fit(
        texts[part],
        labels[part],
        batch_size=BATCH // processes,
        epochs=epochs,
        verbose=2 if rank == 0 else 0,
    )
    scores = classifier.evaluate(
        texts[held_out], labels[held_out], batch_size=BATCH, verbose=0, return_dict=True
    )
    if rank == 0:
        print(f"{devices} devices, accuracy {scores['accuracy']:.3f}, loss {scores['loss']:.4f}")
    if processes > 1:
        import torch

        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    typer.run(main)
