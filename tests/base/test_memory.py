"""Memory allocation and garbage collection of the process: settings of the user are kept."""

import ctypes
import platform
import subprocess
import sys
import types

import pytest

from kerasbert.base.memory import give_back, keep_freed_memory


def test_a_setting_of_the_user_stays(monkeypatch):
    calls = []
    libc = types.SimpleNamespace(mallopt=lambda option, value: calls.append(option))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: libc)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MALLOC_TOP_PAD_", "0")
    keep_freed_memory()
    # Values of M_TRIM_THRESHOLD and M_MMAP_MAX; M_TOP_PAD is not set.
    assert calls == [-1, -4]
    monkeypatch.setenv("MALLOC_MMAP_MAX_", "9")
    keep_freed_memory()
    assert calls == [-1, -4, -1]


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: 1 / 0)
    keep_freed_memory()
    give_back()


KEPT = """
import resource
import numpy as np
from kerasbert.base import memory as _memory

def faults(size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(size, "uint8")
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

size = 1 << 28
first, again = faults(size), faults(size)
_memory.keep_freed_memory()
faults(size)
kept = faults(size)
_memory.give_back()
print(first, again, kept, faults(size))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_large_blocks_are_kept_until_given_back():
    command = [sys.executable, "-c", KEPT]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    first, again, kept, after = map(int, printed.split())
    # Blocks that were returned to the system cost page faults again, for any block size.
    assert min(first, again, after) > 100 > kept


@pytest.mark.parametrize("frozen", [False, True])
def test_garbage_is_collected_once(frozen):
    code = """
import gc, weakref
from kerasbert.base.memory import collect_once

class Cycle:
    def __init__(self):
        self.itself = self

gc.disable()
gc.unfreeze()
if FROZEN:
    gc.freeze()
before = weakref.ref(Cycle())
with collect_once():
    gc.collect()
    assert before() is not None
    inside = weakref.ref(Cycle())
assert inside() is None
assert (before() is None) != FROZEN
assert (gc.get_freeze_count() > 1000) == FROZEN
"""
    subprocess.run([sys.executable, "-c", code.replace("FROZEN", str(frozen))], check=True)
