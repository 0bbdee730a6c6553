"""The guide's application under gunicorn: requests at once, a restart, a stop; and `--preload`."""

import concurrent.futures
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import keras
import pytest

from tests.pages import ROOT, blocks

pytestmark = [pytest.mark.peers, pytest.mark.slow]


@pytest.fixture
def start(tmp_path):
    """A function that starts gunicorn on the guide's application; returns it and its address."""
    pages = blocks("docs/guides/export.md", "python")
    (app,) = (text for _, text in pages if "def app(environ" in text)
    (tmp_path / "app.py").write_text(app)
    started = []

    def run(*arguments):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        command = [sys.executable, "-m", "gunicorn", "-w", "2", "-b", address, *arguments]
        server = subprocess.Popen(
            [*command, "-t", "200", "app:app"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": keras.backend.backend()},
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(server)
        return server, f"http://{address}"

    yield run
    for server in started:
        server.kill()


def ask(address):
    with urllib.request.urlopen(address, b"win a prize", timeout=200) as answer:
        return answer.status, answer.read()


def test_requests_restart_and_stop(start):
    server, address = start()
    for _ in range(2):
        for _ in range(300):
            try:
                ask(address)
                break
            except OSError:
                assert server.poll() is None
                time.sleep(0.5)
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(ask, [address] * 20))
        assert all(status == 200 and body in (b'"ham"', b'"spam"') for status, body in answers), (
            answers[0]
        )
        server.send_signal(signal.SIGHUP)
    server.send_signal(signal.SIGTERM)
    begun = time.monotonic()
    assert server.wait(60) == 0
    assert time.monotonic() - begun < 10


def test_preload_stops_at_the_start(start):
    server, _ = start("--preload")
    _, said = server.communicate(timeout=300)
    assert server.returncode != 0
    assert "which had used kerasbert" in said and "Worker failed to boot" in said
