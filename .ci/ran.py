"""A plugin of pytest for `.ci/run`.

It writes down the tests that there are and those that are run, a line each, in `$RAN`. `$SHARE`,
such as `0/3`, leaves out two thirds of what every backend runs. After `$ENDS`, in seconds since
1970, nothing starts any more: the names of what is left go to `late`.
"""

import os
import time
import zlib

import pytest


def _append(name, ids):
    with open(os.path.join(os.environ["RAN"], name), "a") as file:
        file.writelines(f"{id}\n" for id in ids)


def _left_to_others(item):
    """Whether it is of another share: only what every backend runs is shared out."""
    own, of = map(int, os.environ["SHARE"].split("/"))
    if item.get_closest_marker("backends") or item.get_closest_marker("slow"):
        return False
    return zlib.crc32(item.nodeid.encode()) % of != own


# Around conftest's, which marks as slow what is slow on TensorFlow: other backends run that too.
@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
    _append("all", [item.nodeid for item in items])
    if "SHARE" in os.environ:
        others = [item for item in items if _left_to_others(item)]
        config.hook.pytest_deselected(items=others)
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if time.time() > float(os.environ.get("ENDS", "inf")):
        _append("late", [item.nodeid])
        pytest.skip("no time is left")


def pytest_runtest_logreport(report):
    if report.when == "setup":
        _append("run", [report.nodeid])
