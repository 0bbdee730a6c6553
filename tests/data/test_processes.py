"""Worker processes: the order of results, errors, and processes that end."""

import os
import time

import pytest

from kerasbert.data.processes import map_in_processes


def work(number, data):
    """Later tasks finish sooner; some fail."""
    if number == "error":
        raise ValueError(f"no {data}")
    if number == "end":
        os._exit(9)
    time.sleep(0.05 * (number % 3 == 0))
    return number, len(data), os.getpid()


@pytest.mark.slow
def test_results_come_in_order_and_tasks_are_taken_as_needed():
    taken = []

    def tasks():
        for number in range(40):
            taken.append(number)
            yield f"task {number}", (number, b"x" * 500_000)

    found = []
    for key, (number, size, process) in map_in_processes(work, tasks(), 2):
        # During this sleep, all running tasks finish.
        time.sleep(0.5 * (number in (3, 20)))
        assert key == f"task {number}" and size == 500_000
        assert len(taken) <= number + 8
        found.append((number, process))
    assert [number for number, _ in found] == list(range(40))
    assert len({process for _, process in found} | {os.getpid()}) == 3
    assert list(map_in_processes(work, [], 2)) == []


@pytest.mark.slow
def test_errors_and_processes_that_end():
    data = b"x" * 3_000_000
    with pytest.raises(ValueError, match="no luck"):
        list(map_in_processes(work, [(0, (1, data)), (1, ("error", "luck")), (2, (2, data))], 1))
    tasks = [(number, ("end" if number == 3 else number, data)) for number in range(8)]
    with pytest.raises(RuntimeError, match="worker process ended: it was killed"):
        list(map_in_processes(work, tasks, 2))


@pytest.mark.slow
def test_processes_say_nothing_of_the_machine(monkeypatch, capfd):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    assert len(list(map_in_processes(work, [(0, (1, b""))], 1))) == 1
    assert capfd.readouterr().err == ""
