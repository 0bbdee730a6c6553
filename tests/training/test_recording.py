"""Signals during training."""

import os
import signal

import pytest

from kerasbert.training.recording import Pulse, lasting_interrupt


@pytest.fixture(autouse=True)
def as_in_a_terminal():
    """A job in the background ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Interrupted:
    """Gets Ctrl-C while it is being freed."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_forgets():
    with lasting_interrupt() as check:
        check()
        made = Interrupted()
        del made  # Printed, and ignored.
        with pytest.raises(KeyboardInterrupt):
            check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt), lasting_interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass


def test_an_ignored_interrupt_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with lasting_interrupt() as check:
        os.kill(os.getpid(), signal.SIGINT)
        check()


def test_a_pulse_comes_now_and_then(monkeypatch):
    now, said = [0.0], []
    monkeypatch.setattr("kerasbert.training.recording.time.monotonic", lambda: now[0])
    pulse = Pulse(said.append)
    for second in range(100):
        now[0] = float(second)
        pulse.tick(lambda second=second: f"{second} s")
    assert said == ["30 s", "60 s", "90 s"]
