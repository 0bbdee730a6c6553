"""`export_web`: a page that runs a model in the browser, without a server or network access.

onnxruntime-web runs the graph of `export_onnx`. `@huggingface/tokenizers` (9 kB compressed), which
transformers.js uses too, reads `tokenizer.json`. The export copies both from npm into the page's
folder: with 14 MB they are too large for a Python package.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import tarfile
from typing import TYPE_CHECKING

from kerasbert.base import runtimes
from kerasbert.base.errors import check_choice, need_packages
from kerasbert.base.files import new_folder, write_json
from kerasbert.base.strict_json import to_json
from kerasbert.export.token_graphs import PRECISIONS, exported
from kerasbert.heads.base.served_models import served
from kerasbert.text.wordpiece import BertTokenizer

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import AnyPath

_HERE = os.path.dirname(__file__)
_PAGE = os.path.join(_HERE, "page")
# JavaScript code for figures, shared with the playground.
_PICTURES = os.path.join(os.path.dirname(_HERE), "play", "page")
# The npm packages of a page: folder name, package, SHA-512 of its archive, and files.
_LIBRARIES = {
    "onnxruntime-web": (
        "onnxruntime-web@1.30.0",
        "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ==",
        ("dist/ort.wasm.bundle.min.mjs", "dist/ort-wasm-simd-threaded.wasm", "package.json"),
    ),
    "tokenizers": (
        "@huggingface/tokenizers@0.2.0",
        "LidMHe1FpcSYH4vcSjXooda34pC0M8m1gmDOv7SQi6Iv+ib1zX7J3sHBCC9/3FPCkn2k1b55FneVqMRxrr99pg==",
        ("dist/tokenizers.min.mjs", "LICENSE", "package.json"),
    ),
}
# Texts that the page must tokenize in the same way as the model.
PROBES = [
    "Win a FREE prize now!",
    "Größe, naïve café № 1, don't: $5.00 (3%)",
    "서울은 대한민국의 수도이다. 각 \u1100\u1161\u11a8 ㄱㅏ재밌다ㅋㅋ ｶﾞ",
    "日本語のテキスト、東京タワーは𠮷野家ではない。",
    "Привет, мир ΟΔΟΣ",
    "I 👍🏽 it 👩‍👩‍👧 🙂, 한국🙂日本",
    "two  spaces\nand a line",
]
_SPANS = ("tag", "answer")  # Panels that need the offsets of each token.


def export_web(model: Any, directory: AnyPath, precision: str = "int8") -> str:
    """Write a web page that runs a model in the browser: `index.html` and its files.

    Serve it with any static file server, such as `python -m http.server -d DIRECTORY`. The page
    shows predicted words for masked language models and pretrainers, bars for classifiers of texts
    or text pairs, regressors and next-sentence predictors, entities for taggers, and answers for
    question answering models. Results match `fill_mask`, `classify`, `tag` and `answer`, except for
    rounding to int8. The page is in English, Korean and Japanese.

    Taggers and question answering models need WordPiece (`BertTokenizer`): the page's tokenizer
    returns no offsets, and the page can recompute only the offsets of WordPiece.

    Args:
        model: a task with a preprocessor.
        directory: a new or empty directory.
        precision: "int8", or "float32", whose download is four times as large.

    Returns:
        The path of `index.html`.

    Raises:
        TypeError: if `model` is not an encoder or task of kerasbert.
        ValueError: for a model that the page does not support, or a folder that is not empty.
        ImportError: if a package of the extra `onnx` is missing.
        RuntimeError: if npm is missing or does not return the two libraries, if the graph's outputs
            differ from the model's, or if the page tokenizes differently.
    """
    need_packages("export_web", "onnx", "onnx", "onnxruntime", "tf2onnx")
    check_choice("precision", precision, PRECISIONS)
    settings = settings_of(model)
    libraries = {name: _library(*row) for name, row in _LIBRARIES.items()}
    with exported(model, directory, "onnx", precision) as (target, folder, check):
        check(runtimes.onnx_runtime(os.path.join(folder, "model.onnx")))
        os.remove(os.path.join(folder, "answer.py"))
        shutil.copytree(_PAGE, folder, dirs_exist_ok=True)
        for name, library in libraries.items():
            shutil.copytree(library, os.path.join(folder, name))
        for name in ("pictures.js", "pictures.css"):
            shutil.copyfile(os.path.join(_PICTURES, name), os.path.join(folder, name))
        write_json(os.path.join(folder, "task.json"), settings)
        _check_pieces(model, folder, settings["panel"] in _SPANS)
    return os.path.join(target, "index.html")


def settings_of(model):
    """Return a model's settings for the page."""
    task = served(model, call="export_web")
    name, own = type(task.model).__name__, task.preprocessor
    if "" not in task.parts:
        raise ValueError("export_web supports one task; export each of model.tasks separately.")
    found = task.page() if own is not None else None
    if found is None:
        raise ValueError(
            f"export_web does not support a {name}{'' if own else ' without a preprocessor'}; it "
            "supports masked language models, classifiers, regressors, next-sentence predictors, "
            "taggers and question answering, with their preprocessors."
        )
    if task.long.mode != "truncate":
        raise ValueError(
            f"A page of export_web truncates long texts, but this {name} has long="
            f"{task.long.mode!r}; use export_serving, or load the model with long='truncate'."
        )
    if found["panel"] in _SPANS and not isinstance(own.tokenizer, BertTokenizer):
        raise ValueError(
            f"export_web can only locate tokens of WordPiece in a text, but this {name} has a "
            f"{type(own.tokenizer).__name__}; use `kerasbert play` for it."
        )
    inputs = list(task.model.input)
    return {"title": name, "inputs": inputs, "length": own.sequence_length, **found}


def _check_pieces(model, folder, has_spans):
    """Raise if the page tokenizes texts differently from the model."""
    tokenizer = model.preprocessor.tokenizer
    if hasattr(model, "fill_mask"):
        tokenizer = tokenizer.with_special_tokens()
    texts = [*PROBES, f"{PROBES[0]} {tokenizer.mask_token}, {tokenizer.mask_token}."]
    for token in tokenizer.added_tokens:
        name = token["content"]
        texts.append(f"{PROBES[0]} {name} x{name}y, {name.upper()} {name.lower()}.")
        texts.append(f"{name}{name}  {name}\t{name}語{name}한국_{name}-{name}\u0301 {name}")
    command = [_program("node"), os.path.join(_HERE, "cut_by_page.mjs"), folder]
    settings = {"capture_output": True, "encoding": "utf-8"}
    done = subprocess.run(command, input=to_json(texts), **settings)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "Error" in line] or [done.stderr]
        raise RuntimeError(f"The page cannot read the tokenizer: {said[0].strip()}")
    columns = tokenizer.tokenize_with_offsets(texts)
    columns = [[list(map(int, row)) for row in rows] for rows in columns]
    for text, cut, *wanted in zip(texts, json.loads(done.stdout), *columns, strict=True):
        if [cut["ids"], cut["starts"], cut["ends"]][: 3 if has_spans else 1] != (
            wanted if has_spans else wanted[:1]
        ):
            raise RuntimeError(
                f"The page's library tokenizes {text!r} differently from the "
                f"{type(tokenizer).__name__}; nothing was written. Use `kerasbert play` instead."
            )


# === npm ===


def _program(name):
    """Return the path of a Node.js program."""
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(
            f"export_web needs {name}, which is not installed; install Node.js with npm (Debian, "
            "Ubuntu: apt install npm)."
        )
    return found


def _library(package, digest, files):
    """Return a cached folder with files of an npm package, which npm fetches at the first call."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    folder = cache / "kerasbert" / "npm" / package.replace("/", "-")
    if folder.is_dir():
        return folder
    npm = _program("npm")
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with new_folder(str(folder), by="export_web") as new:
        command = [npm, "pack", package, "--ignore-scripts", "--silent"]
        done = subprocess.run(command, cwd=new, capture_output=True, encoding="utf-8")
        archives = [name for name in os.listdir(new) if name.endswith(".tgz")]
        if done.returncode or len(archives) != 1:
            said = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
            raise RuntimeError(f"npm could not fetch {package}: {said[0]}")
        archive = os.path.join(new, archives[0])
        with open(archive, "rb") as file:
            found = base64.b64encode(hashlib.file_digest(file, "sha512").digest()).decode()
        if found != digest:
            raise RuntimeError(
                f"npm returned {package} with the SHA-512 {found}, expected {digest}."
            )
        with tarfile.open(archive) as packed:
            for name in files:
                with packed.extractfile(f"package/{name}") as file:
                    with open(os.path.join(new, os.path.basename(name)), "wb") as written:
                        shutil.copyfileobj(file, written)
        os.remove(archive)
    return folder
