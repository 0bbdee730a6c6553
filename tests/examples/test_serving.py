"""The folders of `examples/serving`: clients and servers give the model's answers."""

import asyncio
import concurrent.futures
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from tests.export import tiny

SERVING = Path(__file__).parents[2] / "examples" / "serving"
TEXTS = ["Hello, world!", "größer 日本語", "a film. " * 12, 'the "free" prize', "b"]
pytestmark = [pytest.mark.peers, pytest.mark.slow, pytest.mark.backends("tensorflow")]


def need(package, folder):
    """Skip the test if a package of an example's requirements is not installed."""
    file = f"examples/serving/{folder}/requirements.txt"
    return pytest.importorskip(package, reason=f"needs pip install -r {file}")


@pytest.fixture(scope="module")
def models():
    return {"spam": tiny.task("TextClassifier"), "tagger": tiny.task("TokenClassifier")}


@pytest.fixture(scope="module")
def exports(models, tmp_path_factory):
    """A folder of exports: `models/spam`, `models/tagger`, `onnx` and `repository/spam`."""
    from kerasbert.export import export_onnx, export_serving

    folder = tmp_path_factory.mktemp("exports")
    with pytest.MonkeyPatch.context() as patch:
        tiny.write_here(patch)
        for name, model in models.items():
            export_serving(model, folder / "models" / name, signatures=["serving_default"])
        export_onnx(models["spam"], folder / "onnx")
        export_onnx(models["spam"], folder / "repository" / "spam", layout="triton")
    return folder


def check_classes(model, answers):
    """Compare (label, probability) of `TEXTS` with the model's."""
    labels = [answer["label"] for answer in model.classify(TEXTS)]
    assert [label for label, _ in answers] == labels and len(set(labels)) > 1
    scores = model.predict_proba(TEXTS).max(-1)
    np.testing.assert_allclose([score for _, score in answers], scores, atol=1e-4)


# === Docker Compose ===


def test_compose_file(exports):
    yaml = pytest.importorskip("yaml")
    text = (SERVING / "tensorflow_serving" / "compose.yaml").read_text(encoding="utf-8")
    (service,) = yaml.safe_load(text)["services"].values()

    def read(text):
        """Put the defaults for variables."""
        return re.sub(r"\$\{\w+:-(\w+)\}", r"\1", text)

    (volume,) = service["volumes"]
    source, target, mode = read(volume).split(":")
    assert (source, target, mode) == ("./models/spam", "/models/spam", "ro")
    assert read(service["environment"]["MODEL_NAME"]) == "spam"
    (batching,) = (read(x) for x in service["command"] if "batching_parameters" in x)
    inside = batching.removeprefix("--batching_parameters_file=").removeprefix(f"{target}/")
    # The mounted folder has what the server reads.
    assert (exports / source / inside).is_file()
    assert (exports / source / "1" / "saved_model.pb").is_file()


def test_compose_file_follows_the_schema():
    yaml, jsonschema = pytest.importorskip("yaml"), pytest.importorskip("jsonschema")
    try:
        package = importlib.metadata.distribution("docker-compose")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs the schema: pip install --no-deps docker-compose==1.29.2")
    schema = json.loads(Path(package.locate_file("compose/config/compose_spec.json")).read_text())
    text = (SERVING / "tensorflow_serving" / "compose.yaml").read_text(encoding="utf-8")
    validator = jsonschema.Draft201909Validator(schema)
    validator.validate(yaml.safe_load(text))
    with pytest.raises(jsonschema.ValidationError, match="^'port' does not match any"):
        validator.validate(yaml.safe_load(text.replace("ports:", "port:")))


# === Clients of TensorFlow Serving ===


@pytest.fixture(scope="module")
def served(exports):
    """The addresses of a server's gRPC and REST APIs."""
    need("tensorflow_serving", "clients")
    from tests.examples.serving_stand_ins import tensorflow_serving

    paths = {name: str(exports / "models" / name / "1") for name in ("spam", "tagger")}
    with tensorflow_serving(paths) as addresses:
        yield dict(zip(("grpc", "rest"), addresses))


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The command of each client."""
    folder = tmp_path_factory.mktemp("clients")
    shutil.copytree(SERVING / "clients", folder, dirs_exist_ok=True)

    def command(api, language):
        if language == "python":
            return [sys.executable, folder / f"{api}_client.py"]
        if shutil.which("node") is None or shutil.which("npm") is None:
            pytest.skip("needs Node.js and npm")
        if api == "grpc" and not (folder / "node_modules").is_dir():
            install = ["npm", "install", "--no-audit", "--no-fund"]
            done = subprocess.run(install, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"needs packages from npm: {done.stderr[-300:]}")
        return ["node", folder / f"{api}_client.mjs"]

    return command


@pytest.mark.parametrize("language", ["python", "javascript"])
@pytest.mark.parametrize("api", ["rest", "grpc"])
def test_clients(api, language, models, served, programs):
    def ask(name, *texts):
        command = [*programs(api, language), served[api], name, *texts]
        return subprocess.run(command, capture_output=True, encoding="utf-8")

    def rows(name, *texts):
        done = ask(name, *texts)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    found = rows("spam", *TEXTS)
    check_classes(models["spam"], [(row["label"], row["score"]) for row in found])
    expected = models["spam"].predict_proba(TEXTS)
    np.testing.assert_allclose([row["probabilities"] for row in found], expected, atol=1e-5)
    # Rows of different numbers of entities.
    texts = [*TEXTS, ""]
    tagged = models["tagger"].tag(texts)
    for row, entities in zip(rows("tagger", *texts), tagged, strict=True):
        assert row["count"] == len(entities)
        for key in ("text", "label", "start", "end"):
            assert row[key][: row["count"]] == [entity[key] for entity in entities]
    assert {len(entities) for entities in tagged} > {0}
    done = ask("other", "a")
    assert done.returncode == 1 and "Servable not found" in done.stderr


# === FastAPI on ONNX Runtime ===


def post(address, texts):
    body = json.dumps({"texts": texts}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{address}/predict", body, headers)
    with urllib.request.urlopen(request, timeout=100) as response:
        return json.load(response)["answers"]


@pytest.fixture(scope="module")
def fastapi_server(exports, tmp_path_factory):
    need("fastapi", "fastapi_onnx")
    from tests.export.test_python_servers import free_address

    address, log = free_address(), tmp_path_factory.mktemp("fastapi") / "log"
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", address.split(":")[1]]
    with open(log, "w") as file:
        server = subprocess.Popen(
            command,
            cwd=SERVING / "fastapi_onnx",
            env={**os.environ, "MODEL": str(exports / "onnx"), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=file,
            stderr=file,
        )
    for _ in range(1000):
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"http://{address}/health") as response:
                assert json.load(response)["status"] == "ok"
            break
        except urllib.error.URLError:
            time.sleep(0.2)
    yield address
    server.terminate()
    # At its end, uvicorn sends the signal to itself again.
    assert server.wait(100) in (0, -signal.SIGTERM)


def test_fastapi_answers_single_and_concurrent_requests(models, fastapi_server):
    (single,) = zip(*(post(fastapi_server, [text]) for text in TEXTS))
    check_classes(models["spam"], [answer[0] for answer in single])
    check_classes(models["spam"], [answer[0] for answer in post(fastapi_server, TEXTS)])
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        texts = TEXTS * 16
        answers = list(pool.map(lambda text: post(fastapi_server, [text])[0], texts))
    for answer, expected in zip(answers, single * 16, strict=True):
        assert [label for label, _ in answer] == [label for label, _ in expected]
        np.testing.assert_allclose([x for _, x in answer], [x for _, x in expected], atol=1e-5)


@pytest.fixture
def app(exports, monkeypatch):
    """The module of the application."""
    need("fastapi", "fastapi_onnx")
    monkeypatch.setenv("MODEL", str(exports / "onnx"))
    path = SERVING / "fastapi_onnx" / "app.py"
    spec = importlib.util.spec_from_file_location("serving_app", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "serving_app", module)
    spec.loader.exec_module(module)
    return module


def test_fastapi_runs_waiting_texts_as_one_batch(app):
    answer, sizes = app.load(app.MODEL), []

    def recorded(texts):
        sizes.append(len(texts))
        if "fail" in texts:
            raise ValueError("no")
        return answer(texts)

    async def run():
        waiting, loop = asyncio.Queue(), asyncio.get_running_loop()
        texts = [*TEXTS * 8, *["fail"] * 20]
        futures = [loop.create_future() for _ in texts]
        for item in zip(texts, futures):
            waiting.put_nowait(item)
        futures[3].cancel()
        batches = loop.create_task(app.run_batches(recorded, waiting))
        found = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 100)
        assert not batches.done()
        batches.cancel()
        return found

    found = asyncio.run(run())
    assert sizes == [32, 28]
    assert isinstance(found[3], asyncio.CancelledError)
    for i in (0, 1, 2, *range(4, 32)):
        assert [label for label, _ in found[i]] == [x for x, _ in answer([TEXTS[i % 5]])[0]]
    assert all(isinstance(one, ValueError) for one in found[32:])


def test_fastapi_refuses_what_it_cannot_answer(app, monkeypatch):
    from starlette.testclient import TestClient

    def post(body):
        return client.post("/predict", content=body, headers={"Content-Type": "application/json"})

    with TestClient(app.app) as client:
        for body in (b'{"texts": []}', b'{"texts": "a"}', b"{}", b"x", b'{"texts": ["\\ud800"]}'):
            assert post(body).status_code in (400, 422), body
        assert post(json.dumps({"texts": ["x" * 10_001]}).encode()).status_code == 422
        assert post(b'{"texts": ["a", "b", "c"]}').status_code == 200
        monkeypatch.setattr(app, "MAX_WAITING", 2)
        answer = post(b'{"texts": ["a", "b", "c"]}')
        assert answer.status_code == 503 and answer.headers["Retry-After"] == "1"
        assert client.get("/health").status_code == 200
        client.portal.call(app.app.state.batches.cancel)
        assert client.get("/health").status_code == 503


# === Load test ===


def load(url, folder, *options):
    (folder / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    command = [sys.executable, SERVING / "load_test.py", url, folder / "texts.txt", *options]
    return subprocess.run(
        [*command, "--seconds", "2", "--clients", "3"], capture_output=True, text=True
    )


def check_load(done):
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["requests"] > 3 and found["errors"] == 0
    assert 0 < found["p50_ms"] <= found["p99_ms"] < 1000 * 60
    assert found["per_second"] == pytest.approx(found["requests"] / 2, abs=0.1)


def test_load_test(fastapi_server, served, tmp_path):
    check_load(load(f"http://{fastapi_server}/predict", tmp_path))
    url = f"http://{served['rest']}/v1/models/spam:predict"
    check_load(load(url, tmp_path, "--key", "instances"))
    done = load(url.replace("spam", "other"), tmp_path, "--key", "instances")
    assert done.returncode == 1 and "answered no request" in done.stderr


# === Triton ===


def test_triton_client(models, exports):
    need("tritonclient.grpc", "triton_kserve")
    from tests.examples.serving_stand_ins import triton

    folder = exports / "repository" / "spam"
    with triton(str(folder)) as address:
        script = SERVING / "triton_kserve" / "triton_client.py"
        done = subprocess.run(
            [sys.executable, script, address, folder, *TEXTS],
            capture_output=True,
            encoding="utf-8",
        )
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^ *(\S.*?)  ([01]\.\d{4})  ", done.stdout, re.MULTILINE)
    check_classes(models["spam"], [(label, float(score)) for label, score in rows])
