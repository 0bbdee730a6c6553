"""Several devices give the results of one: simulated in child processes, in each backend's own way.

TPUs cannot be simulated: `TPUStrategy` runs nowhere here.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from kerasbert.distribution import data_parallel, layout_map
from kerasbert.models import BertPretrainer
from tests import several_devices
from tests.contracts import FAMILY_SETTINGS, tiny_backbone

SCRIPT = Path(__file__).parent / "several_devices.py"
BACKEND = keras.backend.backend()


def start(mode, folder, *launcher, **variables):
    environment = {
        **os.environ,
        "KERAS_BACKEND": BACKEND,
        "PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[1]), *filter(None, sys.path)]),
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        **variables,
    }
    return subprocess.Popen(
        [sys.executable, *launcher, SCRIPT, mode, folder],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def results(folder, *processes):
    """Return the output of each process, or of those that a launcher started."""
    for process in processes:
        _, errors = process.communicate(timeout=500)
        assert process.returncode == 0, errors[-3000:]
    return [json.loads(path.read_text()) for path in folder.glob("*.json")]


def free_port():
    with socket.socket() as server:
        server.bind(("localhost", 0))
        return server.getsockname()[1]


@pytest.fixture(scope="module")
def one():
    """Return the output of a single device."""
    found = several_devices.run("one")
    assert found.pop("devices") == 1 and not found.pop("cut", None) and not found.pop("rank", 0)
    losses = found["losses"] + found["losses of texts"]
    assert losses[0] - losses[2] > 0.5 and losses[3] - losses[5] > 0.005
    rest = found["losses at rest"] - np.array(found["texts evaluated"]["loss"])
    assert np.abs(rest).max() < 1e-5
    return found


def assert_same(found, expected):
    for name, values in expected.items():
        if isinstance(values, dict):
            assert_same(found[name], values)
        else:
            np.testing.assert_allclose(found[name], values, atol=1e-5, err_msg=name)


@pytest.mark.backends("jax")
@pytest.mark.slow
def test_data_parallel_on_jax(one, tmp_path):
    (found,) = results(tmp_path, start("data", tmp_path))
    assert found["devices"] == 4 and not found["cut"]
    assert_same(found, one)


@pytest.mark.backends("jax")
@pytest.mark.slow
def test_model_parallel_on_jax(one, tmp_path):
    (found,) = results(tmp_path, start("model", tmp_path))
    assert found["devices"] == 4
    assert_same(found, one)
    cut = found["cut"]
    assert cut["transformer_layer_0/attention/qkv/kernel"] == [16, 24]
    assert cut["transformer_layer_1/output/kernel"] == [12, 16]
    # The optimizer state, which takes most of the memory, is sharded, too.
    state = [path for path in cut if path.endswith("velocity")]
    assert len(state) == len(cut) / 3 == 13


@pytest.mark.backends("tensorflow")
@pytest.mark.slow
def test_mirrored_strategy(one, tmp_path):
    (found,) = results(tmp_path, start("mirrored", tmp_path))
    assert found["devices"] == 2
    assert_same(found, one)


@pytest.mark.backends("tensorflow")
@pytest.mark.slow
def test_multi_worker_mirrored_strategy(one, tmp_path):
    workers = [f"localhost:{free_port()}" for _ in range(2)]
    started = []
    for index in range(2):
        task = {"type": "worker", "index": index}
        config = json.dumps({"cluster": {"worker": workers}, "task": task})
        started.append(start("workers", tmp_path, TF_CONFIG=config))
    both = results(tmp_path, *started)
    assert len(both) == 2
    for found in both:
        assert found["devices"] == 2
        assert_same(found, one)


@pytest.mark.backends("torch")
def test_processes_on_torch(one, tmp_path):
    port = str(free_port())
    launcher = "-m torch.distributed.run --nproc-per-node 2 --master-addr localhost".split()
    launched = start("processes", tmp_path, *launcher, "--master-port", port)
    found = results(tmp_path, launched)
    first, second = sorted(found, key=lambda part: part.pop("rank"))
    assert first.pop("devices") == second.pop("devices") == 2
    assert abs(first["losses"][0] - second["losses"][0]) > 1e-3  # Each process wrote its part.
    # Rows 0-3 of each batch, then 4-7.
    both = zip(*(np.reshape(part.pop("predicted"), (4, 4, 3)) for part in (first, second)))
    predicted = np.concatenate([half for pair in both for half in pair])
    np.testing.assert_allclose(predicted, one["predicted"], atol=1e-5)
    mean = {
        name: {key: np.mean([values[key], second[name][key]], axis=0) for key in values}
        if isinstance(values, dict)
        else np.mean([values, second[name]], axis=0)
        for name, values in first.items()
    }
    assert_same(mean, {name: one[name] for name in mean})


@pytest.mark.backends("torch")
@pytest.mark.parametrize("family", FAMILY_SETTINGS)
def test_what_the_layout_map_cuts(family):
    """All weights are sharded except for position and segment tables, norms, biases and the layers
    above the encoder.
    """
    mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], ["cpu:0", "cpu:1"])
    layouts = layout_map(mesh)
    model = BertPretrainer(tiny_backbone(family, pooler=True))
    whole = set()
    for weight in model.weights:
        layout = layouts[weight.path]
        if layout is None:
            whole.add(weight.path.replace("0", "1"))
            continue
        assert len(layout.axes) == len(weight.shape)
        (axis,) = [i for i, name in enumerate(layout.axes) if name == "model"]
        assert weight.shape[axis] % 2 == 0
    parts = (
        "norm",
        "position_",
        "distance_",
        "segment_",
        "output/bias",
        "pooled",
        "logits",
        "mlm_head",
    )
    assert all(any(p in path for p in (*parts, "embeddings_projection")) for path in whole)
    # A model inside another one has longer paths.
    assert layouts["student/transformer_layer_11/output/kernel"].axes == ("model", None)
    assert layouts["decoder/transformer_layer_0/cross_attention/kv/kernel"].axes == (None, "model")
    assert layouts["student/transformer_layer_11/attention/output/bias"] is None


def test_there_is_nobody_to_train_with():
    message = {
        "jax": "data_parallel\\(\\) .* JAX; call keras.distribution.set_distribution",
        "tensorflow": "no other workers; .*MultiWorkerMirroredStrategy whose TF_CONFIG",
        "torch": "no process group; start the script with torchrun",
    }[BACKEND]
    with pytest.raises(ValueError, match=message):
        data_parallel(BertPretrainer(tiny_backbone()))
