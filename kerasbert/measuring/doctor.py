"""`doctor`: checks what is installed and whether it works; prints one page for a bug report."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import locale
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from typing import Any

from kerasbert.base.errors import first_line, is_installed
from kerasbert.base.system import child_environment

PACKAGES = (
    "kerasbert keras keras-hub keras-nlp numpy tokenizers sentencepiece safetensors h5py "
    "tensorflow tensorflow-text jax jaxlib torch onnx onnxruntime tf2onnx ai-edge-litert openvino "
    "faiss-cpu usearch pandas pyarrow"
).split()
# Presets in the package for English, Korean and Japanese; they need no network.
PRESETS = {"English": "bert_tiny_demo_en_uncased", "Korean, Japanese": "bert_mini_demo_ko_ja"}
TEXTS = {
    "English": ["a good film", "a bad film"],
    "Korean, Japanese": ["좋은 영화였다", "나쁜 영화였다", "良い映画でした", "悪い映画でした"],
}
FOLDER = "model é 한국어 日本語"
_CHILD = """
import sys
from kerasbert.models import BertBackbone
from kerasbert.tokenizers import BertTokenizer
print(BertTokenizer.from_preset(sys.argv[1])(sys.argv[2]))
"""


class Skipped(Exception):
    """A check that cannot run here."""


def facts() -> dict[str, str]:
    """Return a dict with the versions of the system, of Python and of the packages."""
    found = {
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "encoding": f"{locale.getpreferredencoding(False)}, output {sys.stdout.encoding}",
    }
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def doctor(export: bool = True) -> Iterator[dict[str, Any]]:
    """Check what works on this machine, in about a minute and without network.

    Args:
        export: whether to check exports too, which take longest.

    Yields:
        For each check a dict with `check`, `result` ("pass", "fail" or "skip"), `note` and
        `seconds`.
    """
    made = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        folder = os.path.join(work, FOLDER)
        for name, check in {**_CHECKS, **(_EXPORTS if export else {})}.items():
            start, caught = time.perf_counter(), io.StringIO()
            try:
                with warnings.catch_warnings(), contextlib.redirect_stdout(caught):
                    warnings.simplefilter("ignore")
                    result, note = "pass", check(made, folder) or ""
            except Skipped as reason:
                result, note = "skip", str(reason)
            except Exception as error:
                result, note = "fail", f"{type(error).__name__}: {first_line(error)}"
            seconds = round(time.perf_counter() - start, 1)
            yield {"check": name, "result": result, "note": note, "seconds": seconds}


def _need(made, *names):
    for name in names:
        if name not in made:
            raise Skipped("an earlier check failed")


def _backend(made, folder):
    import keras

    from kerasbert import backend

    total = float(keras.ops.sum(keras.ops.ones((4, 4)) @ keras.ops.ones((4, 4))))
    if total != 64:
        raise ValueError(f"a product of ones adds up to {total}, expected 64")
    made["backend"] = backend.name()
    return made["backend"]


def _tokenizer(made, folder):
    from kerasbert.tokenizers import BertTokenizer

    for language, preset in PRESETS.items():
        tokenizer = BertTokenizer.from_preset(preset)
        for text in TEXTS[language]:
            ids = [int(number) for number in tokenizer(text)]
            if not ids or tokenizer.token_to_id("[UNK]") in ids:
                raise ValueError(f"{text!r} has unknown tokens: {ids}")


def _fit(made, folder):
    from kerasbert.models import BertTextClassifier

    model = BertTextClassifier.from_preset(PRESETS["English"], labels=["좋음", "bad é"])
    texts = TEXTS["English"]
    model.fit(texts, ["좋음", "bad é"], epochs=1, verbose=0)
    made.update(model=model, texts=texts, answers=model.classify(texts))


def _save(made, folder):
    from kerasbert.models import BertTextClassifier

    _need(made, "model")
    for _ in range(2):  # The second call checks that an existing folder can be replaced.
        made["model"].save_to_preset(folder)
    again = BertTextClassifier.from_preset(folder)
    made["saved"] = folder
    _compare(again.classify(made["texts"]), made["answers"])


def _compare(found, expected):
    for one, other in zip(found, expected, strict=True):
        if one["label"] != other["label"] or abs(one["score"] - other["score"]) > 1e-4:
            raise ValueError(f"{one} differs from {other}")


def _convert(made, folder):
    import kerasbert

    _need(made, "saved")
    target = folder + " converted"
    kerasbert.convert(made["saved"], target, format="huggingface")
    again = kerasbert.models.BertTextClassifier.from_preset(target)
    _compare(again.classify(made["texts"]), made["answers"])


def _search(made, folder):
    import kerasbert

    preset, texts = PRESETS["Korean, Japanese"], TEXTS["Korean, Japanese"]
    index = kerasbert.SearchIndex(kerasbert.models.BertTextEmbedder.from_preset(preset), texts)
    index.save(folder + " index")
    index = kerasbert.SearchIndex.load(folder + " index", mmap=False)
    found = index.search(texts[2], top_k=1)[0]["text"]
    if found != texts[2]:
        raise ValueError(f"{texts[2]!r} found {found!r}")


def _child(made, folder):
    done = subprocess.run(
        [sys.executable, "-P", "-c", _CHILD, PRESETS["English"], "naïve 映画"],
        env=child_environment(made.get("backend", "tensorflow")),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=300,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it printed nothing"]
        raise RuntimeError(f"exit code {done.returncode}: {said[-1]}")


def _onnx(made, folder):
    import kerasbert

    _need(made, "model")
    _need_packages("tensorflow", "tensorflow_text", "onnx", "onnxruntime", "tf2onnx")
    kerasbert.export_onnx(made["model"], folder + " onnx")


def _saved_model(made, folder):
    import kerasbert

    _need(made, "model")
    _need_packages("tensorflow", "tensorflow_text")
    kerasbert.export_serving(made["model"], folder + " served")


def _need_packages(*packages):
    lacking = [name for name in packages if not is_installed(name)]
    if lacking:
        raise Skipped(f"not installed: {', '.join(name.replace('_', '-') for name in lacking)}")


_CHECKS = {
    "Keras and its backend": _backend,
    "tokenizers: English, Korean, Japanese": _tokenizer,
    "fit and classify on texts": _fit,
    "save to a folder named in three scripts, and load": _save,
    "convert to transformers' format, and load": _convert,
    "search index: save, load, search": _search,
    "a process of its own": _child,
}
_EXPORTS = {
    "export as ONNX": _onnx,
    "export as SavedModel": _saved_model,
}
