"""`export_serving`: a SavedModel that takes raw strings, for a stock TensorFlow Serving.

N texts, C classes.

Whatever the backend, a child process on TensorFlow builds, writes and checks the SavedModel
(`kerasbert/export/saved_model.py`): exports from JAX hold ops that servers refuse, Torch has none.
"""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile

import keras
import numpy as np

from kerasbert._tensorflow import tf_modules
from kerasbert.models.text_classifier import BertTextClassifier

# Batches of texts, and of pairs, on which the SavedModel has to answer as the model does.
SHORT = [
    "Win a FREE prize now!",
    "",
    "?",
    "Größe, naïve café № 1",
    "日本語のテキスト",
    "Привет, мир",
    "مرحبا بالعالم",
    "👩‍👩‍👧 🙂",
    "a\tb\nc\0d\u200be\ufffd",
]
LONG = ["word " * 2000, "x" * 10_000]
PROBES = [[SHORT], [LONG], [SHORT, SHORT[::-1]], [LONG, LONG[::-1]]]
MOST_WARMUP = 1000  # what TensorFlow Serving reads


def export_serving(model, directory, version=None, labels=None, warmup=None):
    """Write a SavedModel of a classifier that takes raw strings, and check it.

    Its signatures, with N texts, T tokens and C classes:

    - `serving_default`: `text` (N,) -> `probabilities` (N, C), `label` (N,), `score` (N,),
    - `pair`: `text`, `text_b` (N,) -> the same,
    - `tokens`: int32 `token_ids`, `segment_ids`, `padding_mask` (N, T) -> `logits` (N, C),
    - `preprocess`: `text` (N,) -> the inputs of `tokens`.

    `label` is the most probable class and `score` its probability, with `multi_label` too. The
    names of the C columns are in `assets.extra/labels.json`. The weights are float32, with LoRA
    merged in. A failure leaves nothing behind.

    Args:
        model: a `BertTextClassifier` with a preprocessor, on any backend.
        directory: string. The folder of all versions of this model, as TensorFlow Serving's
            `--model_base_path`; this version becomes `directory/<version>/`.
        version: int. `None` takes the one after the last version there, from 1.
        labels: list of C strings. Names of the classes; `None` takes the model's.
        warmup: list of texts, or of pairs of texts, that a server runs before its first request;
            at most 1,000.

    Returns:
        The path of the version's folder.

    Raises:
        TypeError: if `model` is no `BertTextClassifier`.
        ValueError: for a model, a version, labels or a folder that cannot be exported.
        RuntimeError: if the SavedModel cannot be built, or answers differently from the model.

    Example:

    >>> from kerasbert.models import BertBackbone, BertTextClassifierPreprocessor, BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]
    >>> backbone = BertBackbone(
    ...     vocabulary_size=7, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4
    ... )
    >>> preprocessor = BertTextClassifierPreprocessor(BertTokenizer(tokens))
    >>> model = BertTextClassifier(backbone, preprocessor=preprocessor, labels=["no", "yes"])
    >>> path = export_serving(model, os.path.join(tempfile.mkdtemp(), "demo"))
    >>> sorted(os.listdir(path))
    ['assets', 'assets.extra', 'fingerprint.pb', 'saved_model.pb', 'variables']
    """
    _check_model(model)
    labels = _check_labels(model, labels)
    warmup = _check_warmup(warmup)
    directory = os.path.abspath(os.path.expanduser(directory))
    place = existing_folder(directory)
    version = _check_version(directory, version)
    tf_modules("export_serving")

    # Beside the final place, so that a rename puts all of it there at once.
    with tempfile.TemporaryDirectory(prefix=".kerasbert-", dir=place) as folder:
        preset = os.path.join(folder, "preset")
        model.save_to_preset(preset)
        expected = _logits(_in_float32(model, preset))
        np.savez(os.path.join(folder, "expected.npz"), *expected)
        with open(os.path.join(folder, "job.json"), "w", encoding="utf-8") as file:
            json.dump({"labels": labels, "probes": PROBES, "warmup": warmup}, file)
        run_child("kerasbert.export.saved_model", folder, "No SavedModel")
        target = os.path.join(directory, str(version))
        os.makedirs(directory, exist_ok=True)
        try:
            os.rename(os.path.join(folder, "saved_model"), target)
        except OSError as error:
            raise ValueError(f"Cannot put the SavedModel at '{target}': {error}.") from error
    return target


def _check_model(model):
    if not isinstance(model, BertTextClassifier):
        name = model.__name__ if isinstance(model, type) else type(model).__name__
        kind = "the class" if isinstance(model, type) else "a"
        raise TypeError(f"export_serving takes a BertTextClassifier, not {kind} {name}.")
    if model.preprocessor is None:
        raise ValueError(
            "The model has preprocessor=None, so it cannot take raw strings; "
            "give it the BertTextClassifierPreprocessor that it was trained with."
        )
    refuse_quantized(model, "export_serving")


def refuse_quantized(model, call):
    """Raise for a model whose weights are no floats, which `call` cannot write."""
    policies = [layer.dtype_policy for layer in model._flatten_layers()]
    modes = {getattr(policy, "quantization_mode", None) for policy in policies} - {None}
    if modes:
        raise ValueError(
            f"The model is quantized ({', '.join(sorted(modes))}), and {call} writes float "
            "weights; export it before `quantize`."
        )


def _check_labels(model, labels):
    if labels is None:
        return list(model.label_names)
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"labels={labels!r} has to be a list of strings, one a class.")
    labels = list(labels)
    if len(labels) != model.num_classes or len(set(labels)) != len(labels):
        raise ValueError(
            f"labels={labels} has to name the model's {model.num_classes} classes, each once."
        )
    return labels


def _check_warmup(warmup):
    """To a list of lists of one or two texts."""
    if isinstance(warmup, str):
        raise ValueError(f"warmup={warmup!r} is one text; put it in a list.")
    warmup = list(warmup or [])
    if len(warmup) > MOST_WARMUP:
        raise ValueError(
            f"warmup has {len(warmup):,} texts, and a server reads at most {MOST_WARMUP:,}; "
            "pass fewer, some short and some long."
        )
    rows = [[item] if isinstance(item, str) else item for item in warmup]
    for position, row in enumerate(rows):
        good = isinstance(row, (list, tuple)) and len(row) in (1, 2)
        if not good or not all(isinstance(text, str) for text in row):
            raise ValueError(
                f"The item at position {position} of warmup is {row!r}; "
                "pass a string, or a tuple of two."
            )
    return rows


def existing_folder(directory):
    """`directory`, or the nearest folder above that exists."""
    place = directory
    while not os.path.exists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        raise ValueError(f"Cannot export to '{directory}': '{place}' is a file, not a folder.")
    return place


def _check_version(directory, version):
    names = os.listdir(directory) if os.path.isdir(directory) else []
    versions = {int(name) for name in names if name.isascii() and name.isdecimal()}
    if version is None:
        return max(versions, default=0) + 1
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise ValueError(f"version={version!r} has to be a whole number of 0 or more.")
    if version in versions:
        raise ValueError(
            f"Version {version} is already in '{directory}'; pass version="
            f"{max(versions) + 1}, or None for the next one."
        )
    return version


def _in_float32(model, preset):
    """The model, or the same weights in float32 where it computes in another type."""
    if {layer.compute_dtype for layer in model._flatten_layers()} <= {"float32", "int32"}:
        return model
    return load(preset)


def load(preset):
    """The classifier of a preset, in float32."""
    preprocessor = BertTextClassifier.preprocessor_cls.from_own_preset(preset)
    return BertTextClassifier.from_own_preset(preset, preprocessor=preprocessor, dtype="float32")


def logit_model(model):
    """The model up to its logits (N, C), without an activation that it may end with."""
    return keras.Model(model.input, model.output_activation.input)


def _logits(model):
    """Logits of each batch of `PROBES`: a list of (N, C)."""
    head = logit_model(model)
    with full_float32():
        logits = [
            keras.ops.convert_to_numpy(head(model.preprocessor(tuple(batch)), training=False))
            for batch in PROBES
        ]
    if not all(np.isfinite(batch).all() for batch in logits):
        raise ValueError(
            "The model answers with numbers that are not finite, so its training diverged; "
            "train it again with a lower learning rate."
        )
    return logits


@contextlib.contextmanager
def full_float32():
    """GPUs may round the factors of float32 products (TF32), farther than the check allows."""
    if keras.backend.backend() == "jax":
        with importlib.import_module("jax").default_matmul_precision("highest"):
            yield
        return
    if keras.backend.backend() == "torch":
        torch = importlib.import_module("torch")
        get, put = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
        off = "highest"
    else:
        config = tf_modules("export_serving")[0].config.experimental
        get, put = config.tensor_float_32_execution_enabled, config.enable_tensor_float_32_execution
        off = False
    before = get()
    put(off)
    try:
        yield
    finally:
        put(before)


def run_child(module, folder, nothing):
    """Run `python -m module folder` on TensorFlow, in a process of its own.

    Args:
        nothing: string. What there is not, if it fails.

    Raises:
        RuntimeError: with what went wrong there, in one sentence.
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = {
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "CUDA_VISIBLE_DEVICES": "-1",  # The parent may hold all of its memory.
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
    }
    done = subprocess.run(
        [sys.executable, "-m", module, folder],
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode == 0:
        return
    reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    if done.returncode < 0:
        reason = f"it was killed by signal {-done.returncode}; is there enough memory?"
    raise RuntimeError(f"{nothing} was written, TensorFlow's process failed: {reason}")
