"""The guide's programs under gunicorn, uvicorn and Celery; and a model loaded before the fork."""

import concurrent.futures
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request

import keras
import pytest

from tests.pages import ROOT, blocks, commands

pytestmark = [
    pytest.mark.peers,
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
]
PAGE = "docs/guides/export.md"
TEXT = "win a prize"


def block(words):
    """Return the only program of the guide that contains these words."""
    (text,) = (text for _, text in blocks(PAGE, "python", "py") if words in text)
    return text


def command(program):
    """Return the guide's command that starts a server, as a module of this Python."""
    lines = [line for _, text in blocks(PAGE, "sh") for line in commands(text)]
    (line,) = (line for line in lines if line.startswith(f"{program} "))
    return ["-m", *shlex.split(line)]


@pytest.fixture
def start(tmp_path):
    """A function that starts a server in `tmp_path`, with its output in the file "log"."""
    started = []

    def run(*arguments):
        with open(tmp_path / "log", "w") as log:
            server = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=tmp_path,
                env={
                    **os.environ,
                    "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
                    "KERAS_BACKEND": keras.backend.backend(),
                },
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        started.append(server)
        return server

    yield run
    for server in started:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def wait_for(is_true, server, log):
    """Wait until a condition holds; return how long that took."""
    begun = time.monotonic()
    while not is_true():
        said = log.read_text()
        assert server.poll() is None, f"the server ended:\n{said[-5000:]}"
        assert time.monotonic() - begun < 400, f"it hangs:\n{said[-5000:]}"
        time.sleep(0.2)
    return time.monotonic() - begun


def stop(server, loading):
    """Return the seconds until a server stopped at SIGTERM; `loading` is how long its workers
    loaded.

    A busy machine takes longer for both, so the ten seconds are for an idle machine.
    """
    begun = time.monotonic()
    server.send_signal(signal.SIGTERM)
    assert server.wait(400) == 0
    took = time.monotonic() - begun
    assert took < max(10, loading / 2)


def ask(address):
    with urllib.request.urlopen(f"http://{address}", TEXT.encode(), timeout=200) as answer:
        return answer.status, answer.read().decode()


def ask_at_once(address, count=20):
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(ask, [address] * count))
    assert set(answers) <= {(200, '"ham"'), (200, '"spam"')}


def test_gunicorn_answers_restarts_and_stops(start, tmp_path):
    (tmp_path / "app.py").write_text(block("def app(environ"))
    # gunicorn reads this file by default.
    (tmp_path / "gunicorn.conf.py").write_text(
        textwrap.dedent("""
            def post_worker_init(worker):
                worker.log.info("has loaded")
        """)
    )
    address, log = free_address(), tmp_path / "log"
    line = [address if ":8000" in word else word for word in command("gunicorn")]
    server = start(*line, "--timeout", "300")

    def has_loaded(count):
        return lambda: log.read_text().count("has loaded") == count

    wait_for(has_loaded(2), server, log)
    ask_at_once(address)
    server.send_signal(signal.SIGHUP)
    loading = wait_for(has_loaded(4), server, log)
    ask_at_once(address)
    stop(server, loading)


def test_gunicorn_with_preload_stops_at_its_start(start, tmp_path):
    (tmp_path / "app.py").write_text(block("def app(environ"))
    line = [free_address() if ":8000" in word else word for word in command("gunicorn")]
    server = start(*line, "--preload")
    assert server.wait(400) != 0
    said = (tmp_path / "log").read_text()
    assert f"This process was forked from process {server.pid}, which had used" in said
    assert "gunicorn: without --preload" in said and "Worker failed to boot" in said


def test_uvicorn_answers_and_stops(start, tmp_path):
    (tmp_path / "app.py").write_text(block("def app(environ"))
    address, log = free_address(), tmp_path / "log"
    server = start(
        *("-m", "uvicorn", "--workers", "2", "--interface", "wsgi"),
        *("--port", address.split(":")[1], "app:app"),
    )
    started = "Application startup complete"
    loading = wait_for(lambda: log.read_text().count(started) >= 2, server, log)
    ask_at_once(address)
    stop(server, loading)


# The guide's broker is Redis; this one needs no server.
BROKER = """
import pathlib
folder = pathlib.Path(__file__).parent / "queue"
folder.mkdir(exist_ok=True)
app.conf.update(
    broker_url="filesystem://",
    broker_transport_options={"data_folder_in": str(folder), "data_folder_out": str(folder)},
    result_backend=f"file://{folder}",
)
"""
TASKS = "import tasks; print(*[tasks.classify.delay({text!r}).get(200) for _ in range(4)])"


def test_celery_answers_and_stops(start, tmp_path):
    (tmp_path / "tasks.py").write_text(block("worker_process_init.connect") + BROKER)
    log = tmp_path / "log"
    server = start(*command("celery"), "-l", "info")
    loading = wait_for(lambda: " ready." in log.read_text(), server, log)
    ran = subprocess.run(
        [sys.executable, "-c", TASKS.format(text=TEXT)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": keras.backend.backend()},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr + log.read_text()
    answers = ran.stdout.split()
    assert len(answers) == 4 and set(answers) <= {"ham", "spam"}
    stop(server, loading)


def test_celery_with_a_model_of_its_module_stops_at_its_start(start, tmp_path):
    program = block("worker_process_init.connect")
    (load,) = re.findall(r"classifier = (kerasbert\..*?\n    \))", program, re.DOTALL)
    (tmp_path / "tasks.py").write_text(
        program.replace("classifier = None", f"classifier = {textwrap.dedent(load)}") + BROKER
    )
    server = start(*command("celery"), "-l", "info")
    server.wait(400)
    said = (tmp_path / "log").read_text()
    assert f"This process was forked from process {server.pid}, which had used" in said
    assert "Celery: in worker_process_init" in said and "Warm shutdown" in said
