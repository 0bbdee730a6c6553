"""How the process asks for memory: what a user has set stays."""

import ctypes
import platform
import types

from kerasbert._memory import keep_freed_memory


def test_a_setting_of_the_user_stays(monkeypatch):
    calls = []
    libc = types.SimpleNamespace(mallopt=lambda option, value: calls.append(option))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: libc)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MALLOC_TOP_PAD_", "0")
    keep_freed_memory()
    assert calls == [-1, -3]  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, not M_TOP_PAD.


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: 1 / 0)
    keep_freed_memory()
