"""`export_web`: a model as a page that computes in the browser, without a server and a network.

The graph is that of `export_onnx`, which onnxruntime-web computes; `@huggingface/tokenizers` reads
the same `tokenizer.json`: the small library (9 kB packed) that transformers.js itself cuts texts
with, by the authors of the format. Both come from npm when a page is written, and lie in its folder
then: 14 MB, too much for a package of Python.
"""

import base64
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import tarfile

from kerasbert import runtimes
from kerasbert._errors import check_choice, need_packages
from kerasbert._json import to_json
from kerasbert.export.served import served
from kerasbert.export.token_graphs import PRECISIONS, exported
from kerasbert.files import new_folder, write_json
from kerasbert.tokenizers.wordpiece import BertTokenizer

_HERE = os.path.dirname(__file__)
_PAGE = os.path.join(_HERE, "page")
# The pictures of the playground, which know nothing of it.
_PICTURES = os.path.join(os.path.dirname(_HERE), "play", "page")
# What a page takes of npm: the folder it gets, the package, the SHA-512 of its archive, its files.
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
# Texts that the page has to cut as the model does.
PROBES = [
    "Win a FREE prize now!",
    "Größe, naïve café № 1, don't: $5.00 (3%)",
    "서울은 대한민국의 수도이다. 각",
    "日本語のテキスト、東京タワーは𠮷野家ではない。",
    "Привет, мир ΟΔΟΣ",
    "I 👍🏽 it 👩‍👩‍👧 🙂, 한국🙂日本",
    "two  spaces\nand a line",
]
_SPANS = ("tag", "answer")  # Panels that have to know which characters a token has.


def export_web(model, directory, precision="int8"):
    """Write a page that answers by a model in the browser: `index.html` and all that it needs.

    Any server of files will do, `python -m http.server -d DIRECTORY` as well as a host of static
    pages; nothing else is asked. Masked language models and pretrainers fill in words, classifiers
    (of texts and pairs, regressors, of next sentences) show bars, taggers entities, and readers
    answers, as `fill_mask`, `classify`, `tag` and `answer` do but for the rounding to int8. The
    page is in English, Korean and Japanese.

    Taggers and readers need WordPiece (`BertTokenizer`): the library that cuts texts does not say
    which characters a token has, and those of WordPiece are found again.

    Args:
        model: a task with a preprocessor.
        directory: string. A new directory, or an empty one.
        precision: "int8", or "float32", four times as large to fetch.

    Returns:
        The path of `index.html`.

    Raises:
        TypeError: if `model` is no encoder or task of ours.
        ValueError: for a model that the page has no form for, or a folder that is not empty.
        ImportError: if a package of the extra `onnx` is missing.
        RuntimeError: if npm is missing or does not give the two libraries, or if the graph answers
            differently from the model, or the page cuts texts otherwise.
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
    """What the page has to know of a model."""
    task = served(model, call="export_web")
    name, own = type(task.model).__name__, task.preprocessor
    if "" not in task.parts:
        raise ValueError("export_web writes a page of one task; export each of model.tasks.")
    found = task.page() if own is not None else None
    if found is None:
        raise ValueError(
            f"export_web has no page for a {name}{'' if own else ' without a preprocessor'}; it "
            "takes masked language models, classifiers, regressors, next-sentence predictors, "
            "taggers and question answering, with their preprocessors."
        )
    if found["panel"] in _SPANS and not isinstance(own.tokenizer, BertTokenizer):
        raise ValueError(
            f"The page shows characters of the text, and finds those of a token for WordPiece "
            f"alone; this {name} has a {type(own.tokenizer).__name__}. `kerasbert play` shows it."
        )
    inputs = list(task.model.input)
    return {"title": name, "inputs": inputs, "length": own.sequence_length, **found}


def _check_pieces(model, folder, has_spans):
    """Raise where the page cuts texts otherwise than the model does."""
    tokenizer = model.preprocessor.tokenizer
    if hasattr(model, "fill_mask"):
        tokenizer = tokenizer.with_special_tokens()
    texts = [*PROBES, f"{PROBES[0]} {tokenizer.mask_token}, {tokenizer.mask_token}."]
    for token in tokenizer.added_tokens:
        name = token["content"]
        texts.append(f"{PROBES[0]} {name} x{name}y, {name.upper()} {name.lower()}.")
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
                f"The page's library cuts {text!r} otherwise than the {type(tokenizer).__name__}; "
                "nothing was written. `kerasbert play` shows this model."
            )


# === npm ===


def _program(name):
    """The path of a program of Node.js."""
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(
            f"export_web needs {name}, which is not here; install Node.js with npm (Debian, "
            "Ubuntu: apt install npm)."
        )
    return found


def _library(package, digest, files):
    """The folder with some files of a package, fetched once by the npm client, by its settings."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    folder = cache / "kerasbert" / "npm" / package.replace("/", "-")
    if folder.is_dir():
        return folder
    npm = _program("npm")
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with new_folder(str(folder), by="export_web") as new:
        command = [npm, "pack", package, "--ignore-scripts", "--silent"]
        done = subprocess.run(command, cwd=new, capture_output=True, text=True)
        archives = [name for name in os.listdir(new) if name.endswith(".tgz")]
        if done.returncode or len(archives) != 1:
            said = (done.stderr or done.stdout).strip().splitlines() or ["it says nothing"]
            raise RuntimeError(f"npm did not give {package}: {said[0]}")
        archive = os.path.join(new, archives[0])
        with open(archive, "rb") as file:
            found = base64.b64encode(hashlib.file_digest(file, "sha512").digest()).decode()
        if found != digest:
            raise RuntimeError(
                f"npm gave another {package} than was tested: its SHA-512 is {found}, not {digest}."
            )
        with tarfile.open(archive) as packed:
            for name in files:
                with packed.extractfile(f"package/{name}") as file:
                    with open(os.path.join(new, os.path.basename(name)), "wb") as written:
                        shutil.copyfileobj(file, written)
        os.remove(archive)
    return folder
