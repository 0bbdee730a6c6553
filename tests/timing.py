"""The time of the tests: `pytest -p tests.timing`, then `python -m tests.timing [file]`.

A pytest plugin that writes a JSON line per test to the file in `$TIMING` (`timing.jsonl`): its
seconds, and how many of them each cause took. Only time in the main thread is counted, and only for
the innermost cause; the computation of child processes is a separate column.
"""

import collections
import contextlib
import functools
import importlib
import json
import os
import resource
import sys
import threading
import time

import pytest

# Causes, with the functions ("module:name") that are timed; functions that do not exist are
# ignored.
CAUSES = {
    "children": [
        "subprocess:Popen.wait",
        "subprocess:Popen.communicate",
        "subprocess:run",
        "multiprocessing.process:BaseProcess.join",
        "multiprocessing.connection:Connection.recv",
    ],
    "waiting": ["time:sleep", "threading:Thread.join", "threading:Event.wait"],
    "tracing": [
        "tensorflow.python.eager.polymorphic_function.tracing_compilation:_create_concrete_function",
        "tensorflow.python.eager.polymorphic_function.tracing_compilation:_maybe_define_function",
        "jax._src.interpreters.partial_eval:trace_to_jaxpr",
        "jax._src.interpreters.partial_eval:trace_to_jaxpr_dynamic",
        "jax._src.interpreters.mlir:lower_jaxpr_to_module",
    ],
    "compiling": [
        "jax._src.compiler:compile_or_get_cached",
        "torch._dynamo.convert_frame:compile_frame",
    ],
    "exporting": [
        "tensorflow.python.saved_model.save:save_and_return_nodes",
        "tensorflow.python.saved_model.load:load",
        "torch.onnx:export",
        "tf2onnx.convert:_convert_common",
        "onnxruntime:InferenceSession.__init__",
    ],
    "fit": [
        "keras.src.backend.tensorflow.trainer:TensorFlowTrainer.fit",
        "keras.src.backend.jax.trainer:JAXTrainer.fit",
        "keras.src.backend.torch.trainer:TorchTrainer.fit",
    ],
    "predict": [
        "keras.src.backend.tensorflow.trainer:TensorFlowTrainer.predict",
        "keras.src.backend.jax.trainer:JAXTrainer.predict",
        "keras.src.backend.torch.trainer:TorchTrainer.predict",
    ],
}
# Causes that have started and not ended, the innermost last: [cause, seconds of others].
_open = []
_seconds = collections.Counter()


@contextlib.contextmanager
def cause(name):
    """Count the time in this context for the cause `name`, except for the time of causes
    inside it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    entry = [name, 0.0]
    _open.append(entry)
    started = time.perf_counter()
    try:
        yield
    finally:
        took = time.perf_counter() - started
        _open.pop()
        _seconds[name] += took - entry[1]
        if _open:
            _open[-1][1] += took


def _wrap(name, path):
    module, _, attribute = path.partition(":")
    if module not in sys.modules:
        return False
    owner = importlib.import_module(module)
    *classes, last = attribute.split(".")
    for part in classes:
        owner = getattr(owner, part, None)
    raw = vars(owner).get(last) if owner is not None else None
    if raw is None:
        return True
    function = raw.__func__ if isinstance(raw, classmethod) else raw

    @functools.wraps(function)
    def timed(*args, **kwargs):
        with cause(name):
            return function(*args, **kwargs)

    setattr(owner, last, classmethod(timed) if isinstance(raw, classmethod) else timed)
    return True


_left = [(name, path) for name, paths in CAUSES.items() for path in paths]


def _children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    _left[:] = [entry for entry in _left if not _wrap(*entry)]
    _seconds.clear()
    children, cpu, started = _children(), time.process_time(), time.perf_counter()
    try:
        return (yield)
    finally:
        row = {
            "test": item.nodeid,
            "seconds": time.perf_counter() - started,
            "cpu": time.process_time() - cpu,
            "children's cpu": _children() - children,
            "causes": dict(_seconds),
        }
        with open(os.environ.get("TIMING", "timing.jsonl"), "a") as file:
            file.write(json.dumps(row) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    with cause("fixtures"):
        return (yield)


def table(rows, key, top=60):
    """Return rows of text: `key` of a test, seconds, CPU, and the causes that take more than a
    tenth.
    """
    groups = collections.defaultdict(collections.Counter)
    for row in rows:
        group = groups[key(row["test"])]
        group.update({"tests": 1, "seconds": row["seconds"], "cpu": row["cpu"]})
        group["child"] += row["children's cpu"]
        group.update({f"- {name}": seconds for name, seconds in row["causes"].items()})
    yield f"{'seconds':>8} {'cpu':>7} {'child':>7} {'tests':>6}  what: causes"
    for name, group in sorted(groups.items(), key=lambda item: -item[1]["seconds"])[:top]:
        causes = [
            f"{cause[2:]} {seconds:.1f}"
            for cause, seconds in group.most_common()
            if cause.startswith("- ") and seconds > group["seconds"] / 20
        ]
        yield (
            f"{group['seconds']:8.1f} {group['cpu']:7.1f} {group['child']:7.1f} "
            f"{group['tests']:6d}  {name}: {', '.join(causes)}"
        )


def main(path="timing.jsonl"):
    with open(path) as file:
        rows = [json.loads(line) for line in file]
    for title, key in (
        ("all", lambda test: "all"),
        ("rooms", lambda test: "/".join(test.split("::")[0].split("/")[:2])),
        ("files", lambda test: test.split("::")[0]),
        ("tests", lambda test: test),
    ):
        print(f"\n{title}")
        print(*table(rows, key), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
