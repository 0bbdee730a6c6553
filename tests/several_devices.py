"""Train a tiny model on several simulated devices; the child process of test_distribution.py.

    KERAS_BACKEND=jax python tests/several_devices.py data      # or single, model
    KERAS_BACKEND=tensorflow python tests/several_devices.py mirrored

Prints what is to be compared with one device, as a line of JSON.
"""

import json
import os
import sys

MODE = sys.argv[1]
if os.environ["KERAS_BACKEND"] == "jax":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import keras  # noqa: E402
import numpy as np  # noqa: E402

from kerasbert.distribution import layout_map  # noqa: E402
from kerasbert.models import BertPretrainer  # noqa: E402
from kerasbert.optimizers import AdamW  # noqa: E402
from tests.contracts import SETTINGS, perturb, tiny_backbone  # noqa: E402


def data(rows=32, length=12):
    random = np.random.default_rng(0)
    ids = random.integers(5, SETTINGS["vocabulary_size"], (rows, length))
    x = {
        "token_ids": ids,
        "segment_ids": random.integers(0, 2, (rows, length)),
        "padding_mask": np.arange(length) < random.integers(6, length + 1, (rows, 1)),
        "mask_positions": random.integers(0, 6, (rows, 3)),
    }
    x = {name: value.astype("int32") for name, value in x.items()}
    labels = np.take_along_axis(ids, x["mask_positions"], axis=1)
    return x, {"mlm_logits": labels, "nsp_logits": random.integers(0, 2, rows)}


def make():
    model = perturb(BertPretrainer(tiny_backbone(dropout=0.0, num_heads=4), dropout=0.0))
    # Low enough that each step is clipped.
    model.compile(AdamW(0.01, global_clipnorm=0.05))
    return model


def train(model, x, y, batch_size=8):
    settings = {"batch_size": batch_size, "verbose": 0}
    losses = model.fit(x, y, epochs=3, shuffle=False, **settings).history["loss"]
    return {"losses": losses, "evaluated": model.evaluate(x, y, return_dict=True, **settings)}


def show(**found):
    print(json.dumps(found, default=float))


def on_jax():
    devices = keras.distribution.list_devices()
    if MODE == "data":
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    if MODE == "model":
        mesh = keras.distribution.DeviceMesh((2, 2), ["batch", "model"], devices)
        parallel = keras.distribution.ModelParallel(
            layout_map=layout_map(mesh), batch_dim_name="batch"
        )
        keras.distribution.set_distribution(parallel)
    model = make()
    found = train(model, *data())
    variables = [*model.weights, *model.optimizer.variables]
    parts = {v.path: (v.shape, v.value.addressable_shards[0].data.shape) for v in variables}
    parts = {path: part for path, (shape, part) in parts.items() if shape != part}
    show(**found, devices=len(model.weights[0].value.sharding.device_set), parts=parts)


def on_tensorflow():
    import tensorflow as tf

    strategy = tf.distribute.get_strategy()
    if MODE == "mirrored":
        (cpu,) = tf.config.list_physical_devices("CPU")
        parts = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, parts)
        strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
    if MODE == "workers":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = make()
    show(**train(model, *data()), devices=strategy.num_replicas_in_sync)


if __name__ == "__main__":
    globals()[f"on_{keras.backend.backend()}"]()
