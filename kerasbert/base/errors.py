"""Error messages for invalid settings, unknown names and missing packages.

Also shortens the errors of other libraries.
"""

import contextlib
import difflib
import errno
import importlib.util
import math
import numbers
import reprlib

# Compute precisions of models, as Keras' dtype policies.
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
# What `LongTexts` may do with long texts.
LONG_MODES = ("truncate", "head_tail", "windows")
# Methods of adversarial training, with their default strengths.
ADVERSARIES = {"fgm": 1.0, "awp": 0.001}


def first_line(error):
    """Return the first informative line of an error, or its class.

    >>> first_line(ValueError("3 objects could not be loaded. Example error:\\n\\nNo 'x' here"))
    "No 'x' here"
    """
    if isinstance(error, MemoryError):
        return "it needs more memory than is available"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Keras' messages start with headings that end with a colon.
    while len(lines) > 1 and lines[0].endswith(":"):
        del lines[0]
    if isinstance(error, LookupError) and lines:  # The message is only the key.
        return f"{type(error).__name__}: {lines[0]}"
    return lines[0] if lines else type(error).__name__


@contextlib.contextmanager
def reading(path, then="fetch it again", what="damaged, or not what its name says"):
    """Replace errors while reading a file by one sentence that names it.

    Such sentences, system errors and memory errors pass unchanged.

    Args:
        path: string.
        then: string. What to do; it ends the message.
        what: string. What is wrong with the file.

    Raises:
        ValueError: with a one-sentence message.
    """
    try:
        yield
    except Exception as error:
        said = str(error).strip()
        is_system = isinstance(error, OSError) and error.errno is not None
        is_sentence = type(error) is ValueError and str(path) in said and "\n" not in said
        if is_system or is_sentence or isinstance(error, (ImportError, MemoryError, ReadError)):
            raise
        raise ReadError(f"'{path}' is {what} ({first_line(error)}); {then}.") from error


class ReadError(ValueError):
    """A file cannot be read; the message is one sentence."""


# System errors that do not depend on the file's content.
_OF_THE_SYSTEM = {
    getattr(errno, name, None)
    for name in "EACCES EPERM EMFILE ENFILE ENOMEM ENOSPC EIO EAGAIN EINTR ESTALE ETIMEDOUT".split()
}


def blames_file(error):
    """Return whether a damaged file may have caused an error, not the machine, installation or
    process.

    >>> blames_file(OSError("truncated file")), blames_file(MemoryError())
    (True, False)
    """
    if isinstance(error, OSError):
        return error.errno not in _OF_THE_SYSTEM
    others = (MemoryError, ImportError, RecursionError, NotImplementedError)
    is_memory = isinstance(error, RuntimeError) and "memory" in str(error)
    return not isinstance(error, others) and not is_memory


def did_you_mean(value, known, otherwise=".", count=1, cutoff=0.6, show=str):
    """End a sentence about an unknown name with the closest known ones or `otherwise`.

    >>> "No setting 'num_layer'" + did_you_mean("num_layer", ["num_heads", "num_layers"])
    "No setting 'num_layer'; did you mean num_layers?"
    >>> "No setting 'x'" + did_you_mean("x", ["num_heads"], "; there is num_heads.")
    "No setting 'x'; there is num_heads."
    """
    near = difflib.get_close_matches(str(value), known, count, cutoff)
    return f"; did you mean {', '.join(map(show, near))}?" if near else otherwise


def is_whole(value):
    """Return whether a value is a Python or NumPy integer, but not a bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_whole(name, value, least=1):
    """Raise a `ValueError` unless a setting is a whole number of at least `least`."""
    if not is_whole(value) or value < least:
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}.")


def check_choice(name, value, choices):
    """Raise a `ValueError` unless a setting is one of the strings `choices`."""
    if value not in tuple(choices):
        raise ValueError(f"{name}={value!r} is unknown; use one of {', '.join(choices)}.")


# By kind of setting: a test and a description. "?" also allows `None`.
_MOST = (2 - 2.0**-23) * 2.0**127  # the largest float32
_KINDS = {
    "count": (lambda x: is_whole(x) and x >= 1, "a whole number of at least 1"),
    "whole": (lambda x: is_whole(x) and x >= 0, "a whole number of at least 0"),
    "number": (lambda x: _is_number(x) and 0 <= x <= _MOST, "a number of at least 0"),
    "positive": (lambda x: _is_number(x) and 0 < x <= _MOST, "a number above 0"),
    "epsilon": (lambda x: _is_number(x) and 0 < x <= 0.1, "a number above 0 and at most 0.1"),
    "spread": (lambda x: _is_number(x) and 0 <= x <= 1, "a number from 0 to 1"),
    "base": (lambda x: _is_number(x) and 1 <= x <= 1e12, "a number from 1 to 1e12"),
    "factor": (lambda x: _is_number(x) and 1e-6 <= x <= 1e6, "a number from 1e-6 to 1e6"),
    "rate": (lambda x: _is_number(x) and 0 < x <= 1, "a number above 0 and at most 1"),
    # transformers writes 10**30 for "no limit".
    "length": (lambda x: _is_number(x) and 1 <= x == x // 1, "a whole number of at least 1"),
    "share": (lambda x: _is_number(x) and 0 <= x < 1, "a number of at least 0 and below 1"),
    "flag": (lambda x: type(x).__name__ in ("bool", "bool_"), "true or false"),
    "name": (lambda x: isinstance(x, str), "a string"),
    "names": (
        lambda x: isinstance(x, list) and all(isinstance(one, str) for one in x),
        "a list of strings",
    ),
    "parts": (
        lambda x: _KINDS["flag"][0](x) or _KINDS["names"][0](x),
        "true, false or a list of strings",
    ),
    "counts": (
        lambda x: isinstance(x, (list, tuple)) and all(map(_KINDS["count"][0], x)),
        "a list of whole numbers of at least 1",
    ),
    "count(s)": (
        lambda x: _KINDS["count"][0](x) or _KINDS["counts"][0](x),
        "a whole number of at least 1, or a list of them",
    ),
    "flags": (
        lambda x: isinstance(x, (list, tuple)) and all(map(_KINDS["flag"][0], x)),
        "a list of true and false values",
    ),
    "texts": (
        lambda x: isinstance(x, dict) and all(isinstance(one, str) for one in x.values()),
        "an object whose values are strings",
    ),
    "ids": (
        lambda x: all(map(_KINDS["whole"][0], x if isinstance(x, list) else [x])),
        "a whole number of at least 0, or a list of them",
    ),
    "object": (lambda x: isinstance(x, dict), "an object"),
    "list": (lambda x: isinstance(x, list), "a list"),
    "token": (
        lambda x: isinstance(x.get("content") if isinstance(x, dict) else x, str),
        "a string, or an object with the string 'content'",
    ),
}


def _is_number(value):
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_whole(value) or is_real and math.isfinite(value)


def check_value(name, value, kind, where=""):
    """Raise a `ValueError` unless the value of a setting is of the given kind.

    Args:
        name: string.
        value: any.
        kind: a key of `_KINDS`; a final "?" also allows `None`.
        where: the file, for the message.
    """
    if value is None and kind.endswith("?"):
        return
    fits, words = _KINDS[kind.removesuffix("?")]
    if not fits(value):
        where = f" in '{where}'" if where else ""
        raise ValueError(f"{name}={reprlib.repr(value)}{where} must be {words}.")


def check_heads(width, count, name="num_heads", width_name="hidden_dim", where=""):
    """Raise a `ValueError` unless the number of heads divides the width.

    Args:
        width: int.
        count: int.
        name: name of the number of heads.
        width_name: name of the width.
        where: the file, for the message.
    """
    if width % count:
        where = f" in '{where}'" if where else ""
        raise ValueError(
            f"{width_name}={width}{where} is not a multiple of {name}={count}; "
            "all heads must have the same whole width."
        )


def need_fields(config, names, where):
    """Raise a `ValueError` if a dict read from the file `where` lacks required fields."""
    missing = [name for name in names if name not in config]
    if missing:
        raise ValueError(
            f"'{where}' lacks {', '.join(missing)}, which the model needs; add the values it was "
            "trained with, or download the file again."
        )


def check_fields(config, kinds, where):
    """Run `check_value` on the present fields of a dict read from a file.

    Args:
        config: dict.
        kinds: dict of field name to kind.
        where: the file, for the message.
    """
    for name, kind in kinds.items():
        if name in config:
            check_value(name, config[name], kind, where)


# Packages of each extra in pyproject.toml, with version limits. "kerasbert" is not on PyPI, so
# messages must not suggest it.
EXTRAS = {
    "beam": ("apache-beam", "sentencepiece<0.2.3"),
    "data": ("datasets", "pandas", "pyarrow"),
    "deduplicate": ("datasketch",),
    "excel": ("python-calamine",),
    "faiss": ("faiss-cpu",),
    "gcs": ("gcsfs",),
    "jax": ("jax",),
    "litert": ("ai-edge-litert",),
    "mlflow": ("mlflow-skinny", "alembic", "sqlalchemy"),
    "onnx": ("onnx", "onnxruntime", "tf2onnx"),
    "openvino": ("nncf", "onnx", "openvino", "tf2onnx"),
    "play": ("starlette", "uvicorn"),
    "plot": ("matplotlib",),
    "rank": ("keras-rs",),
    "s3": ("s3fs",),
    "tensorboard": ("tensorboard",),
    "torch": ("torch",),
    "usearch": ("usearch",),
    "wandb": ("wandb",),
    "xlm": ("sacremoses",),
    "zst": ("backports.zstd",),
}


def how_to_install(extra):
    """End a sentence with the commands that install an extra's packages.

    >>> how_to_install("play")
    '`pip install starlette uvicorn`, or in a checkout of kerasbert `pip install -e ".[play]"`'
    """
    names = " ".join(f"'{name}'" if "<" in name else name for name in EXTRAS[extra])
    return f'`pip install {names}`, or in a checkout of kerasbert `pip install -e ".[{extra}]"`'


def is_installed(package):
    """Return whether a package of this import name is installed, without importing it."""
    spec = importlib.util.find_spec(package)
    # An uninstalled package may leave an empty folder.
    return spec is not None and spec.origin is not None


def need_packages(what, extra, *packages):
    """Raise an `ImportError` unless packages of an extra are installed.

    Args:
        what: string. The feature that needs them.
        extra: string.
        *packages: strings. Their import names.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            name = package.replace("_", "-")
            raise ImportError(f"{what} needs the package {name}; run {how_to_install(extra)}.")
