"""Processes that train together give the results of one, and none waits for a lost one."""

import os
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest

from kerasbert import backend, distribution
from kerasbert.base.files import read_json, read_log
from kerasbert.data import write_examples
from kerasbert.distribution import Processes, join, together
from kerasbert.models import BertBackbone, BertTextClassifier
from kerasbert.tokenizers import BertTokenizer
from kerasbert.training.pretrain_settings import PretrainSettings
from tests import several_processes

SCRIPT = Path(several_processes.__file__)
BACKEND = keras.backend.backend()


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """Examples made from sentences of different lengths, so that rows differ in length."""
    folder = tmp_path_factory.mktemp("examples")
    random, lines = np.random.default_rng(0), []
    for _ in range(60):
        for _ in range(8):
            first, count = random.integers(0, 5), random.integers(2, 9)
            lines.append(" ".join(f"word{first + i}" for i in range(count)))
        lines.append("")
    text = folder / "text.txt"
    text.write_text("\n".join(lines))
    tokenizer = BertTokenizer(several_processes.TOKENS)
    settings = {"sequence_length": 24, "sentences": "lines", "workers": 1}
    settings |= {"block_bytes": 2000, "blocks_per_shard": 1}
    write_examples(str(text), folder / "24", tokenizer, **settings)
    text.unlink()
    return str(folder)


def start(examples, output, *names, count=2, **more):
    """Run processes, the last of which gets signals: return `(return code, errors)` of each."""
    processes = [
        subprocess.Popen(
            [sys.executable, SCRIPT, examples, output, *names],
            env={
                **os.environ,
                "KERAS_BACKEND": BACKEND,
                "PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[1]), *filter(None, sys.path)]),
                "CUDA_VISIBLE_DEVICES": "",
                "JAX_PLATFORMS": "cpu",
                "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
                **environment,
                **more,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for environment in several_processes.environments(BACKEND, count)
    ]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, errors)]


@pytest.fixture(scope="module")
def one(examples, tmp_path_factory):
    """The log of one process."""
    output = tmp_path_factory.mktemp("one")
    several_processes.train(examples, output)
    return read_log(output / "log.jsonl")


@pytest.fixture(scope="module")
def two(examples, tmp_path_factory):
    """Two processes fit texts, then one gets a signal to stop, then one is killed: the output,
    codes and errors.
    """
    output = tmp_path_factory.mktemp("two") / "output"
    names = ["texts", "SIGTERM", "SIGKILL"]
    # On TensorFlow, processes can connect only once.
    runs = [[name] for name in names] if BACKEND == "tensorflow" else [names]
    ends = [start(examples, output, *run) for run in runs]
    errors = ["\n".join(texts) for texts in zip(*([text for _, text in end] for end in ends))]
    took = time.time() - float(errors[1].split("signal at ")[-1].split()[0])
    return output, [code for code, _ in ends[-1]], errors, took


@pytest.mark.slow_on_tensorflow
def test_stopped_and_killed_they_do_what_one_does(examples, one, two):
    output, codes, errors, took = two
    # One of two processes gets a signal to stop; both stop after the same step.
    for text in errors:
        assert "Stopped after step 20, which is saved" in text, text[-2000:]
    (line,) = [line for line in errors[0].splitlines() if line.startswith("Stopped")]
    assert line.endswith("the same call resumes. checkpoint-000000020.safetensors")
    # One of two processes is killed; the other soon reports it.
    assert codes[1] == -9 and codes[0] and "Process 0 of 2 lost" in errors[0], errors[0][-2000:]
    assert took < 200
    # A single process resumes the training.
    several_processes.train(examples, output)
    log = read_log(output / "log.jsonl")
    assert [row["step"] for row in log] == list(range(5, 45, 5))
    assert one[0]["loss"] - one[-1]["loss"] > 0.2
    for expected, row in zip(one, log, strict=True):
        names = [name for name in expected if name.endswith("loss")]
        assert len(names) in (3, 6)
        for name in names:
            assert row[name] == pytest.approx(expected[name], abs=2e-5), (row["step"], name)


@pytest.mark.backends("jax")
def test_layers_are_cut_over_the_devices_of_two_processes(examples, one, tmp_path):
    """If steps of `evaluate` did not wait for the previous step, processes could wait for each
    other forever.
    """
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    for code, errors in start(examples, tmp_path / "two", "", XLA_FLAGS=flags, MESH="2x2"):
        assert code == 0, errors[-2000:]
    log = read_log(tmp_path / "two" / "log.jsonl")
    for expected, row in zip(one, log, strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], abs=2e-5)
    assert log[-1]["held_out_loss"] == pytest.approx(expected["held_out_loss"], abs=2e-5)


@pytest.mark.slow_on_tensorflow
def test_texts_are_learned_as_by_one(two, tmp_path):
    """Batches have mixed lengths, the last one is padded; 20 and 50 rows are split evenly."""
    several_processes.fit_texts(str(tmp_path / "one.json"))
    expected, found = read_json(tmp_path / "one.json"), read_json(f"{two[0]}.json")
    assert np.ptp(expected["logits"]) > 0.5
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)


def test_processes_of_other_seeds_are_refused(monkeypatch):
    # Sums and sums of squares of the states 1 and 2, and of 2 and 2.
    sums = iter([[3.0, 5.0], [4.0, 8.0]])
    monkeypatch.setattr("kerasbert.backend.sum_over_processes", lambda values: next(sums))
    with pytest.raises(ValueError, match="call keras.utils.set_random_seed.. with the same"):
        distribution._check_alike(Processes(0, 2))
    distribution._check_alike(Processes(0, 2))


def test_what_processes_cannot_share(monkeypatch):
    group = distribution.Together(Processes(0, 2), (0, 2), 2)
    monkeypatch.setattr(distribution, "sharing", group)
    model = BertTextClassifier(BertBackbone(100, 1, 2, 16, 32), 2)
    arrays = {"token_ids": np.ones((2, 4), int)}
    with pytest.raises(
        ValueError, match="2 processes .* tf.data.Dataset, but got a dict; pass one"
    ):
        model.evaluate(arrays, np.zeros(2))
    if BACKEND == "jax":
        with pytest.raises(
            ValueError, match=r"predict\(\) inside together.*of_one_process\(model\)"
        ):
            model.predict(arrays)


@pytest.mark.backends("jax")
def test_a_distribution_that_would_cut_twice(monkeypatch):
    import jax

    chosen = keras.distribution.DataParallel(devices=keras.distribution.list_devices()[:1])
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    keras.distribution.set_distribution(chosen)
    try:
        with pytest.raises(ValueError, match="each process again; .* auto_shard_dataset=False"):
            backend.on_devices(None, None, None).__enter__()
    finally:
        keras.distribution.set_distribution(None)


def test_alone():
    processes = join()
    assert processes == Processes(0, 1) and processes.is_first
    assert processes.sum([1.0, 2.0]) == [1.0, 2.0] and not processes.any(None)
    assert processes.first(lambda: 3) == 3
    with together() as group:
        assert group.shard == (0, 1) and group.replicas == 1


MEETING = {"coordinator_address": "a:1", "num_processes": 2, "process_id": 1}


@pytest.mark.backends("jax")
@pytest.mark.parametrize(
    "given, expected",
    [
        ({}, None),
        (
            {"KERAS_DISTRIBUTION_JOB_ADDRESSES": "a:1,b:1", "KERAS_DISTRIBUTION_PROCESS_ID": 1},
            MEETING,
        ),
        (
            {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": 2, "JAX_PROCESS_ID": 1},
            MEETING,
        ),
        ({"JAX_COORDINATOR_ADDRESS": "a:1"}, {}),  # JAX finds the other settings itself.
        ({"SLURM_STEP_NUM_TASKS": 4}, {}),
        ({"SLURM_NTASKS": 4}, None),  # The batch shell of a job, which is not one of its processes.
        ({"OMPI_COMM_WORLD_SIZE": 2}, {}),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, {}),
        ({"TPU_WORKER_HOSTNAMES": "a"}, None),
    ],
)
def test_what_starts_several_processes_on_jax(given, expected, monkeypatch):
    from kerasbert.backend import jax_processes

    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    assert jax_processes._launched() == expected


def test_what_the_first_process_raises_stops_the_others(monkeypatch):
    """An error of another process, or of this one."""
    monkeypatch.setattr("kerasbert.backend.sum_over_processes", lambda values: [1.0])
    with pytest.raises(ConnectionError, match="first of the 2 processes .* see its output"):
        Processes(1, 2).first(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Processes(0, 2).first(lambda: 1 / 0)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"devices": 0}, "devices=0 must be a whole number of at least 1"),
        ({"devices": 2, "mesh": (1, 2)}, "devices=2 and mesh=.* both set the number"),
        ({"mesh": "2"}, r"mesh='2' must be two numbers, such as \(2, 4\) or '2x4'"),
        ({"mesh": (0, 2)}, r"mesh=\(0, 2\) must be two numbers"),
    ],
)
def test_bad_devices(settings, message):
    with pytest.raises(ValueError, match=message):
        PretrainSettings("a", "b", **settings)
    assert PretrainSettings("a", "b", mesh="2x4").mesh == (2, 4)


@pytest.mark.parametrize("given", [{"devices": 1000}, {"mesh": (2, 500)}])
def test_devices_that_there_are_not(given):
    with pytest.raises(ValueError, match="devices=1000|mesh="), together(**given):
        pass


def test_devices_that_do_not_divide_a_batch():
    settings = PretrainSettings("a", "b", phases=[(128, 10, 12)], accumulate=2)
    settings.check_replicas(3)
    with pytest.raises(ValueError, match="The 4 devices do not divide the 6 rows .* multiple of 8"):
        settings.check_replicas(4)
