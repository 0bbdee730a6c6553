"""A plugin of pytest: the tests that there are and those that are run, a line each, in `$RAN`."""

import os

import pytest


def _append(name, ids):
    with open(os.path.join(os.environ["RAN"], name), "a") as file:
        file.writelines(f"{id}\n" for id in ids)


# Around the hooks that leave tests out.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items):
    _append("all", [item.nodeid for item in items])
    return (yield)


def pytest_runtest_logreport(report):
    if report.when == "setup":
        _append("run", [report.nodeid])
