"""Nothing outside `kerasbert/backend/` asks which backend runs, or changes functions of others."""

import re
from pathlib import Path

import pytest

import kerasbert

ROOT = Path(kerasbert.__file__).parent
QUESTION = re.compile(
    r"\b(backend|config)\.backend\(\)"  # Keras' own
    r"|\bname\(\)\s*(==|!=|(not )?in\b)"  # `kerasbert.backend.name` is for records and messages.
    r"|\b(has_onednn|on_gpu|on_accelerator)\b"
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


def test_no_questions():
    sources = [path for path in ROOT.rglob("*.py") if path.parent != ROOT / "backend"]
    assert len(sources) > 50
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if QUESTION.search(line)
    ]
    assert not found
