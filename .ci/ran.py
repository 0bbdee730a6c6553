"""A plugin of pytest for `.ci/run`.

It lists all tests and those that ran, one per line, in the folder `$RAN`. After `$ENDS`, a Unix
time, no test starts; the tests that are skipped for this reason are listed in `late`.
"""

import os
import time

import pytest


def _append(name, ids):
    with open(os.path.join(os.environ["RAN"], name), "a") as file:
        file.writelines(f"{id}\n" for id in ids)


@pytest.hookimpl(wrapper=True)  # Before conftest deselects tests of other backends.
def pytest_collection_modifyitems(items):
    _append("all", [item.nodeid for item in items])
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if time.time() > float(os.environ.get("ENDS", "inf")):
        _append("late", [item.nodeid])
        pytest.skip("no time is left")


def pytest_runtest_logreport(report):
    if report.when == "setup":
        _append("run", [report.nodeid])
