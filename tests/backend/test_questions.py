"""No code outside `kerasbert/backend/` asks which backend runs, or replaces Keras' functions."""

import re
from pathlib import Path

import pytest

import kerasbert

ROOT = Path(kerasbert.__file__).parent
QUESTION = re.compile(
    r"\b(backend|config)\.backend\(\)"  # classes of Keras
    # `kerasbert.backend.name` may be used for records and messages.
    r"|\bname\(\)\s*(==|!=|(not )?in\b)"
    r"|\b(has_onednn|on_gpu)\b"
    r"|\b(backend|_backend) (==|!=) \"(tensorflow|jax|torch)\""
    r"|\bmock\b"
)


@pytest.mark.parametrize(
    "line",
    [
        'if keras.backend.backend() == "jax":',
        'if keras.config.backend() == "torch":',
        'if backend.name() != "torch":',
        'if backend.name() in ("jax", "torch"):',
        "with mock.patch.object(norm, 'layer_norm', other):",
    ],
)
def test_questions_are_found(line):
    assert QUESTION.search(line)


def lines(pattern, paths):
    """Return the lines of these files that contain a pattern."""
    paths = list(paths)
    assert len(paths) > 4
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_questions():
    room = ROOT / "backend"
    assert not lines(QUESTION, (path for path in ROOT.rglob("*.py") if path.parent != room))


def test_backends_are_imported_late():
    """Only files whose backend runs import it at once."""
    pattern = re.compile(r"^(import|from) (tensorflow|tensorflow_text|jax|torch|onnx|tf2onnx)\b")
    found = lines(pattern, ROOT.glob("backend/*.py"))
    assert [line for line in found if not re.match(r"backend/(jax|torch)_\w+\.py", line)] == []
