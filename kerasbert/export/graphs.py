"""What ONNX, LiteRT and OpenVINO share: a graph from token ids to a model's outputs, checked.

B batch, C choices, P predictions, T tokens.

Whatever the backend, a child process on TensorFlow writes the graph (`kerasbert/export/graph.py`),
as it does the SavedModel; the runtime that it is for then has to answer as the model does.
"""

import contextlib
import json
import os
import tempfile

import keras
import numpy as np

from kerasbert import models
from kerasbert._tensorflow import tf_modules
from kerasbert.export.serving import (
    check_finite,
    computes_in_float32,
    existing_folder,
    full_float32,
    load,
    neighbouring,
    quantization_modes,
    rounding,
    run_child,
)
from kerasbert.models.backbone import BertBackbone
from kerasbert.models.task import BertTask, encoder_of
from kerasbert.tokenizers.transformers_files import transformers_files

TOLERANCE = 1e-5
# What the outputs of int8 may be off, as a part of their size. What they are off where a runtime
# computes them wrong is of their size itself.
INT8_TOLERANCE = 0.25
PRECISIONS = ("float32", "int8")
# The most tokens of a row in the checks: attention takes their square.
LONGEST = 1024
INPUTS = ("token_ids", "segment_ids", "padding_mask", "mask_positions")


@contextlib.contextmanager
def exported(model, directory, format, precision="float32", length=None, tokenizer=None):
    """A new directory with a graph and its tokenizer's files, which appears when all is well.

    Args:
        model: an encoder or a task of ours.
        directory: string. It must not exist, or be empty.
        format: string. What the child writes: "onnx" or "litert".
        precision: string. One of `PRECISIONS`.
        length: int. The T of the graph, or `None` for any.
        tokenizer: a tokenizer of ours; `None` takes the model's, `False` none.

    Yields:
        `(target, folder, check)`: the directory that it will be; the folder so far, with
        `model.onnx` or `model.tflite` in it; a function that takes `run(features)`, which computes
        the outputs of the file by their names, and raises a `RuntimeError` where they are not the
        model's.
    """
    call = f"export_{format}"
    _check(model, call, precision)
    if tokenizer is None:
        tokenizer = getattr(getattr(model, "preprocessor", None), "tokenizer", None)
    tf_modules(call)
    target = _new_directory(directory)
    place = existing_folder(os.path.dirname(target))
    # Beside the final place, so that a rename puts all of it there at once.
    with tempfile.TemporaryDirectory(prefix=".kerasbert-", dir=place) as work:
        preset, folder = os.path.join(work, "preset"), os.path.join(work, "files")
        os.mkdir(folder)
        os.chmod(folder, 0o755)
        model.save_to_preset(preset)
        probes = _probes(model, length)
        name = keras.saving.get_registered_name(type(model))
        in_float32 = model if computes_in_float32(model) else load(preset, name)[0]
        expected = _answers(in_float32, probes)
        allowed = 0.0
        if precision == "float32":
            with neighbouring(in_float32.weights):
                allowed = max(map(rounding, expected, _answers(in_float32, probes)))
        job = {
            "class": name,
            "format": format,
            "precision": precision,
            "length": length,
            "axes": _output_axes(model, probes[0], expected[0]),
        }
        with open(os.path.join(work, "job.json"), "w", encoding="utf-8") as file:
            json.dump(job, file)
        run_child("kerasbert.export.graph", work, f"No file for {call}")
        if tokenizer:
            _write_tokenizer(tokenizer, model, folder)
        yield target, folder, lambda run: _compare(run, probes, expected, precision, allowed)
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.rename(folder, target)
        except OSError as error:
            raise ValueError(f"Cannot put the files at '{target}': {error}.") from error


def named_inputs(model):
    """The symbols of a model's inputs by name; those of several tasks begin with the task's."""
    return {x.name: x for x in keras.tree.flatten(model.input)}


def run_model(model, features):
    """The outputs by name of a model on a dict of its inputs by name.

    A classifier gives logits whatever its activation.

    Returns:
        A dict: `logits`, `score` of a regressor, `embedding` of an embedder; what has several
        outputs has their own names, and those of several tasks begin with the task's.
    """
    if isinstance(model, models.BertTextClassifier):
        call = keras.Model(model.input, model.output_activation.input)
    else:
        call = model
    values = [features[name] for name in named_inputs(model)]
    outputs = call(keras.tree.pack_sequence_as(model.input, values), training=False)
    alone = {models.BertTextRegressor: "score", models.BertTextEmbedder: "embedding"}
    return {
        "_".join(path) or alone.get(type(model), "logits"): x
        for path, x in keras.tree.flatten_with_path(outputs)
    }


def axes(model):
    """The names of the axes of each input, by the input's name; several tasks have their own."""
    found = {}
    for name, x in named_inputs(model).items():
        task = name.removesuffix(next(end for end in INPUTS if name.endswith(end)))
        names = ("batch", "predictions") if name.endswith("mask_positions") else ("batch", "tokens")
        names = ("batch", "choices", "tokens") if len(x.shape) == 3 else names
        found[name] = [task + axis for axis in names]
    return found


def _output_axes(model, features, outputs):
    """The names of the axes of each output, `None` for a fixed one, by the sizes in a batch."""
    found = {}
    for output, value in outputs.items():
        sizes = {}
        for name, names in axes(model).items():
            if output.startswith(names[0].removesuffix("batch").rstrip("_")):
                sizes |= dict(zip(features[name].shape, names))
        found[output] = [sizes.get(size) for size in value.shape]
    return found


def _check(model, call, precision):
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is unknown; use one of {', '.join(PRECISIONS)}.")
    name = type(model).__name__
    known = isinstance(model, (BertBackbone, BertTask))
    if not known or getattr(models, name, None) is not type(model):
        name = f"the class {model.__name__}" if isinstance(model, type) else f"a {name}"
        raise TypeError(f"{call} takes an encoder or a task of kerasbert.models, not {name}.")
    modes = quantization_modes(model)
    if modes:
        raise ValueError(
            f"The model is quantized ({', '.join(sorted(modes))}), and {call} writes float "
            "weights; export it before `quantize`."
        )


def _new_directory(directory):
    directory = os.path.abspath(os.path.expanduser(os.fspath(directory)))
    if os.path.isfile(directory):
        raise ValueError(f"Cannot export to '{directory}': it is a file, not a folder.")
    if os.path.isdir(directory) and os.listdir(directory):
        raise ValueError(f"'{directory}' is not empty; choose another directory.")
    return directory


def _probes(model, length):
    """Batches of random inputs by name: the first has axes of different sizes, then B = 1."""
    most = encoder_of(model).max_sequence_length
    lengths = [length] * 2 if length else [min(7, most), 1, min(most, LONGEST)]
    return [_batch(model, 3 if i == 0 else 1, length, i) for i, length in enumerate(lengths)]


def _batch(model, size, length, seed):
    random = np.random.default_rng(seed)
    encoder = encoder_of(model)
    sizes = {"batch": size, "choices": 1 if length == 1 else 2, "tokens": length}
    sizes["predictions"] = min(5, length)
    features = {}
    for name, names in axes(model).items():
        shape = [sizes[next(end for end in sizes if axis.endswith(end))] for axis in names]
        if name.endswith("padding_mask"):
            lengths = random.integers(1, length + 1, shape[:-1])
            lengths.flat[0] = length
            features[name] = np.arange(length) < lengths[..., None]
        elif name.endswith("token_ids"):
            features[name] = random.integers(0, encoder.vocabulary_size, shape)
        elif name.endswith("segment_ids"):
            features[name] = random.integers(0, encoder.num_segments, shape)
        else:
            features[name] = random.integers(0, length, shape)
    return {name: value.astype("int32") for name, value in features.items()}


def _answers(model, probes):
    """The outputs by name for each of the probes."""
    found = []
    with full_float32():
        for features in probes:
            tensors = {name: keras.ops.convert_to_tensor(x) for name, x in features.items()}
            outputs = run_model(model, tensors).items()
            found.append({name: keras.ops.convert_to_numpy(x) for name, x in outputs})
            check_finite(found[-1])
    return found


def _compare(run, probes, expected, precision, allowed):
    for features, outputs in zip(probes, expected, strict=True):
        found = run(features)
        for name, wanted in outputs.items():
            got = found[name]
            if got.shape != wanted.shape:
                raise RuntimeError(
                    f"The file's {name} are {got.shape}, the model's {wanted.shape}."
                )
            # What is impossible is -1e9, which would hide all else.
            is_real = wanted > -1e8
            if not np.array_equal(got > -1e8, is_real):
                raise RuntimeError(f"The file's {name} are masked elsewhere than the model's.")
            if not is_real.any():
                continue
            gap, scale = got[is_real] - wanted[is_real], np.abs(wanted[is_real]).max()
            off, most = np.abs(gap).max(), max(allowed, TOLERANCE * max(1, scale))
            if precision == "int8":
                off, most = np.sqrt(np.mean(gap**2)), INT8_TOLERANCE * scale
            if not off <= most:
                raise RuntimeError(
                    f"The {name} of the file differ from the model's by {off:.2g}, where {most:.2g}"
                    f" is allowed in {precision}; nothing was written."
                )


def _write_tokenizer(tokenizer, model, folder):
    """The tokenizer in the form that `tokenizers` and `transformers` read, and the labels."""
    encoder = encoder_of(model)
    files = transformers_files(
        tokenizer, encoder.family, encoder.max_sequence_length, encoder.num_segments > 1
    )
    config = {"model_type": encoder.family.replace("xlm_", "xlm-")}
    labels = getattr(model, "label_names", None)
    if labels is not None:
        config["id2label"] = {str(id): label for id, label in enumerate(labels)}
        config["label2id"] = {label: id for id, label in enumerate(labels)}
    files["config.json"] = (json.dumps(config, ensure_ascii=False, indent=2) + "\n").encode()
    for name, data in files.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)
