"""Shared code of the ONNX, LiteRT and OpenVINO exports: graphs from token ids to outputs.

B batch, C choices, P predictions, T tokens.

A child process with TensorFlow writes the graph (`kerasbert/export/write_graph.py`). The target
runtime must then reproduce the model's outputs.
"""

import contextlib
import os
import warnings

import keras
import numpy as np

from kerasbert import backend
from kerasbert.backend.tensorflow import need_tensorflow
from kerasbert.base.errors import check_choice
from kerasbert.base.files import names_in, output_folder, scratch, write_files, write_json
from kerasbert.base.moves import put
from kerasbert.base.parts import encoder_of, tells_segments
from kerasbert.base.strict_json import to_json
from kerasbert.checkpoints import to_huggingface
from kerasbert.export.child_process import run_child
from kerasbert.export.serving import (
    check_finite,
    computes_in_float32,
    perturbed,
    rounding,
)
from kerasbert.heads.base.program import write_program
from kerasbert.heads.base.served import named_inputs
from kerasbert.heads.base.served_models import load, quantization_modes, saved_class, served
from kerasbert.heads.base.spans import MASKED
from kerasbert.text.transformers_files import transformers_files

TOLERANCE = 1e-5
# The int8 tolerance is a share of the largest output or, for small outputs, a multiple of the
# change that rounding the weights alone causes. Rounding the inputs too caused errors of up to 6
# times that change; a wrong computation causes an error as large as the outputs.
INT8_TOLERANCE = 0.25
INT8_ROUNDING = 16
PRECISIONS = ("float32", "int8")
# Maximum number of tokens per row in the checks: the cost of attention is quadratic in it.
LONGEST = 1024
# Maximum number of logits of a masked language model in the checks of layout "transformers".
MOST_LOGITS = 2**25
# Dict of layouts to the folder of the graph.
LAYOUTS = {"kerasbert": "", "transformers": "onnx", "triton": "1"}
# Dict of our input names to those in transformers.
_THEIR_INPUTS = {
    "token_ids": "input_ids",
    "padding_mask": "attention_mask",
    "segment_ids": "token_type_ids",
}
_THEIR_OUTPUTS = {
    "sequence_output": "last_hidden_state",
    "pooled_output": "pooler_output",
    "mlm_logits": "prediction_logits",
    "nsp_logits": "seq_relationship_logits",
    "score": "logits",
}
INPUTS = ("token_ids", "segment_ids", "padding_mask", "vector_mask", "mask_positions")


@contextlib.contextmanager
def exported(
    model,
    directory,
    format,
    precision="float32",
    length=None,
    tokenizer=None,
    layout="kerasbert",
    runtime=None,
    probes=None,
):
    """Export a graph and tokenizer files to a new directory, which appears only on success.

    Args:
        model: an encoder or a task of kerasbert.
        directory: a new or empty directory.
        format: format that the child process writes: "onnx" or "litert".
        precision: one of `PRECISIONS`.
        length: int. T of the graph, or `None` for any length.
        tokenizer: a tokenizer of kerasbert; `None` means the model's, `False` writes none.
        layout: one of `LAYOUTS`; their values are the folder of the graph.
        runtime: name of the target runtime, if the caller converts the graph to another format; the
            graph is then float32.
        probes: list of dicts of arrays. Inputs for the comparison; `None` draws random ones.

    Yields:
        `(target, folder, check)`: the final directory; the temporary folder with `model.onnx` or
        `model.tflite`; and a function. `check(run)` raises a `RuntimeError` if `run(features)`, the
        file's outputs by name, differs from the model's outputs.
    """
    call = f"export_{format}"
    task = _check(model, call, precision)
    if tokenizer is None:
        tokenizer = getattr(getattr(model, "preprocessor", None), "tokenizer", None)
    _check_layout(task, layout, tokenizer)
    need_tensorflow(call)
    target = _new_directory(directory)
    with scratch(target, by=call) as work:
        _new_directory(target)  # Another process may have filled it while this one waited.
        preset, folder = os.path.join(work, "preset"), os.path.join(work, "files")
        os.mkdir(folder)
        model.save_to_preset(preset)
        drawn = _probes(model, length, layout)
        name = saved_class(model)
        in_float32 = task if computes_in_float32(model) else served(load(preset, name)[0])
        expected = _answers(in_float32, drawn, layout)
        axes = _output_axes(model, drawn[0], expected[0], layout)
        if probes is None:
            probes = drawn
        else:
            expected = _answers(in_float32, probes, layout)
        allowed = _allowed(in_float32, probes, expected, precision, layout)
        job = {
            "class": name,
            "format": format,
            "precision": "float32" if runtime else precision,
            "length": length,
            "layout": layout,
            "axes": axes,
            "runtime": runtime,
        }
        write_json(os.path.join(work, "job.json"), job)
        run_child("kerasbert.export.write_graph", work, f"No file for {call}")
        if LAYOUTS[layout]:
            place = os.path.join(folder, LAYOUTS[layout])
            os.mkdir(place)
            os.rename(os.path.join(folder, "model.onnx"), os.path.join(place, "model.onnx"))
        if layout == "transformers":
            _write_as_transformers(tokenizer, task, folder)
        elif tokenizer:
            _write_tokenizer(tokenizer, model, folder, length)
            if layout == "kerasbert":
                write_program(task, runtime or format, folder)
        yield target, folder, lambda run: _compare(run, probes, expected, precision, allowed)
        try:
            put(folder, target)
        except OSError as error:
            raise ValueError(f"Cannot move the files to '{target}': {error}.") from error


def run_task(task, features, layout="kerasbert"):
    """Compute a task's outputs for a dict of inputs; both have the names of the layout.

    In the layout "transformers", a masked language model predicts all tokens.
    """
    if layout != "transformers":
        return task.run(features)
    ops = keras.ops
    ids = {ours: features[name] for ours, name in _THEIR_INPUTS.items() if name in features}
    ids = {ours: ops.cast(x, "int32") for ours, x in ids.items()}
    ids.setdefault("segment_ids", ops.zeros_like(ids["token_ids"]))
    ids["mask_positions"] = ops.cumsum(ops.ones_like(ids["token_ids"]), axis=-1) - 1
    outputs = task.run_as_transformers(ids)
    return {_THEIR_OUTPUTS.get(name, name): x for name, x in outputs.items()}


def input_type(layout):
    """Return the dtype of a layout's inputs."""
    return "int64" if layout == "transformers" else "int32"


def axes(model, layout="kerasbert"):
    """Return the axis names of each input; each task of a multi-task model has its own axes."""
    if layout == "transformers":
        skipped = () if encoder_of(model).num_segments > 1 else ("segment_ids",)
        return {
            _THEIR_INPUTS[name]: names
            for name, names in axes(model).items()
            if name in _THEIR_INPUTS and name not in skipped
        }
    found = {}
    for name, x in named_inputs(model).items():
        task = name.removesuffix(next(end for end in INPUTS if name.endswith(end)))
        names = ("batch", "predictions") if name.endswith("mask_positions") else ("batch", "tokens")
        names = ("batch", _second_axis(model), "tokens") if len(x.shape) == 3 else names
        found[name] = [task + axis for axis in names]
    return found


def _second_axis(model):
    long = getattr(model, "long", None)
    return "windows" if long is not None and long.has_windows else "choices"


def _output_axes(model, features, outputs, layout):
    """Return the axis names of each output, found by the axis sizes; a fixed axis is `None`."""
    found = {}
    for output, value in outputs.items():
        sizes = {}
        for name, names in axes(model, layout).items():
            if output.startswith(names[0].removesuffix("batch").rstrip("_")):
                sizes |= dict(zip(features[name].shape, names))
        found[output] = [sizes.get(size) for size in value.shape]
    return found


def _check(model, call, precision):
    """Return the `Served` of a model that can be exported."""
    check_choice("precision", precision, PRECISIONS)
    task = served(model, call=call)
    modes = quantization_modes(model)
    if modes:
        raise ValueError(
            f"The model is quantized ({', '.join(sorted(modes))}), but {call} writes float "
            "weights; export it before `quantize`."
        )
    others = [name for name in named_inputs(model) if not name.endswith(INPUTS)]
    if others:
        raise ValueError(
            f"{call} only supports models of token ids, but a {type(model).__name__} also needs "
            f"{' and '.join(others)}; use export_serving."
        )
    return task


def _check_layout(task, layout, tokenizer):
    check_choice("layout", layout, LAYOUTS)
    if layout != "transformers":
        return
    if task.long.has_windows:
        raise ValueError(
            "layout='transformers' has no windows, but this model has long='windows'; use "
            "layout='kerasbert', whose graph takes token ids (texts, windows, tokens)."
        )
    task.check_transformers()
    if tokenizer is None:
        raise ValueError(
            "layout='transformers' needs a tokenizer, and this model has none; pass tokenizer=..., "
            "or False to write the graph only."
        )
    _config(tokenizer, task.model)


def _config(tokenizer, model):
    """Return the settings of transformers' `config.json`."""
    try:
        settings = encoder_of(model).get_config()
        return to_huggingface.config_of(model, settings, tokenizer or None)
    except ValueError as error:
        raise ValueError(
            "layout='transformers' cannot be used, because this model has no config.json in "
            f"transformers: {error} You can also use layout='kerasbert'."
        ) from error


def _new_directory(directory):
    directory = output_folder(directory, "directory")
    if names_in(directory):
        raise ValueError(f"'{directory}' is not empty; choose another directory.")
    return directory


def _probes(model, length, layout="kerasbert"):
    """Draw random batches of inputs.

    In the first batch all axes have different sizes; in the others B is 1.
    """
    most = encoder_of(model).max_sequence_length
    longest = min(most, LONGEST)
    if layout == "transformers" and "mask_positions" in named_inputs(model):
        longest = min(longest, max(7, MOST_LOGITS // encoder_of(model).vocabulary_size))
    lengths = [length] * 2 if length else [min(7, most), 1, longest]
    batches = [_batch(model, 3 if i == 0 else 1, length, i) for i, length in enumerate(lengths)]
    if layout == "transformers":
        names = {name: ours for ours, name in _THEIR_INPUTS.items()}
        return [
            {name: batch[names[name]].astype("int64") for name in axes(model, layout)}
            for batch in batches
        ]
    return batches


def _batch(model, size, length, seed):
    random = np.random.default_rng(seed)
    encoder = encoder_of(model)
    rows = 1 if length == 1 else 2
    sizes = {"batch": size, "choices": rows, "windows": rows, "tokens": length}
    sizes["predictions"] = min(5, length)
    features = {}
    for name, names in axes(model).items():
        shape = [sizes[next(end for end in sizes if axis.endswith(end))] for axis in names]
        if name.endswith(("padding_mask", "vector_mask")):
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


def _answers(task, probes, layout="kerasbert"):
    """Compute a dict of outputs for each probe."""
    found = []
    with backend.full_float32(), warnings.catch_warnings():
        # One probe has a single token, and Keras warns about a softmax over one element.
        warnings.filterwarnings("ignore", "You are using a softmax")
        for features in probes:
            tensors = {n: keras.ops.convert_to_tensor(x, "int32") for n, x in features.items()}
            outputs = run_task(task, tensors, layout).items()
            found.append({name: keras.ops.convert_to_numpy(x) for name, x in outputs})
            check_finite(found[-1])
    return found


def _allowed(task, probes, expected, precision, layout="kerasbert"):
    """Return the tolerance of each output, by name."""
    int8 = precision == "int8"
    with perturbed(task.model.weights, _int8_spacing if int8 else np.spacing):
        nudged = _answers(task, probes, layout)
    moved = max(map(rounding, expected, nudged))
    found = {}
    for name in expected[0]:
        sizes = (np.abs(x[name]).max(where=_is_real(x[name]), initial=0) for x in expected)
        scale = max(sizes)
        found[name] = max(moved, TOLERANCE * max(1, scale))
        if int8:
            moved = max(_off(x[name], y[name], int8) for x, y in zip(nudged, expected))
            found[name] = max(INT8_ROUNDING * moved, INT8_TOLERANCE * scale)
    return found


def _int8_spacing(values):
    """Return the root mean square error of rounding each column of `values` to int8."""
    if values.ndim < 2:
        return np.zeros_like(values)  # Only kernels are quantized.
    return np.abs(values).max(axis=-2, keepdims=True) / 127 / np.sqrt(12)


def _is_real(outputs):
    """Return where outputs are not masked: masked ones are so large that they hide other errors."""
    return outputs > MASKED / 10


def _off(found, wanted, int8):
    """Return the error of outputs: the largest difference, or for int8 the root mean square."""
    gap = (found - wanted)[_is_real(wanted)]
    return np.sqrt(np.mean(gap**2)) if int8 and gap.size else np.abs(gap).max(initial=0)


def _compare(run, probes, expected, precision, allowed):
    for features, outputs in zip(probes, expected, strict=True):
        found = run(features)
        for name, wanted in outputs.items():
            got, most = found[name], allowed[name]
            if got.shape != wanted.shape:
                raise RuntimeError(
                    f"{name} of the file has the shape {got.shape}, expected {wanted.shape}."
                )
            if not np.array_equal(_is_real(got), _is_real(wanted)):
                raise RuntimeError(f"{name} of the file is not masked where the model's is.")
            off = _off(got, wanted, precision == "int8")
            if not off <= most:
                raise RuntimeError(
                    f"{name} of the file differs from the model's by {off:.2g} (tolerance of "
                    f"{precision}: {most:.2g}); nothing was written."
                )


def _write_as_transformers(tokenizer, task, folder):
    """Write the files that transformers, sentence-transformers and others expect beside a graph."""
    model = task.model
    write_json(os.path.join(folder, "config.json"), _config(tokenizer, model))
    if tokenizer:
        encoder, preprocessor = encoder_of(model), getattr(model, "preprocessor", None)
        # The tokenizer truncates texts to the same length as the preprocessor.
        length = getattr(preprocessor, "sequence_length", encoder.max_sequence_length)
        has_segments = tells_segments(model)
        write_files(folder, transformers_files(tokenizer, encoder.family, length, has_segments))
    task.write_as_transformers(folder)


def _write_tokenizer(tokenizer, model, folder, length):
    """Write the tokenizer for `tokenizers` and `transformers`, and the labels.

    The tokenizer truncates texts as the model's preprocessor does. It pads to `length` if given,
    otherwise to the longest row.
    """
    encoder, preprocessor = encoder_of(model), getattr(model, "preprocessor", None)
    most = getattr(preprocessor, "sequence_length", encoder.max_sequence_length)
    files = transformers_files(
        tokenizer,
        encoder.family,
        min(most, length or most),
        tells_segments(model),
        finds_special=hasattr(model, "fill_mask"),
        padded_to=length or "batch",
    )
    config = {"model_type": encoder.family.replace("xlm_", "xlm-")}
    labels = getattr(model, "label_names", None)
    if labels is not None:
        config["id2label"] = {str(id): label for id, label in enumerate(labels)}
        config["label2id"] = {label: id for id, label in enumerate(labels)}
    files["config.json"] = (to_json(config, ensure_ascii=False, indent=2) + "\n").encode()
    write_files(folder, files)
