"""`export_onnx` and `export_openvino`: graphs from token ids to a model's outputs."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from kerasbert.base import runtimes
from kerasbert.base.errors import need_packages
from kerasbert.export.server_configs import write_triton_configs
from kerasbert.export.token_graphs import LAYOUTS, exported
from kerasbert.heads.base.served import columns_of, packed
from kerasbert.heads.base.served_models import served

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kerasbert.base.aliases import AnyPath
    from kerasbert.text.subword import SubwordTokenizer


def export_onnx(
    model: Any,
    directory: AnyPath,
    precision: str = "float32",
    tokenizer: SubwordTokenizer | None = None,
    layout: str = "kerasbert",
) -> str:
    """Write `model.onnx` with the tokenizer's files, and check it with ONNX Runtime.

    The inputs are the model's, int32, of any batch size and length: `token_ids`, `segment_ids` if
    the family has segments, `padding_mask`, and `mask_positions` of a masked language model. The
    outputs have the model's names: `logits`, `start_logits` and `end_logits`, `sequence_output` and
    `pooled_output`, `mlm_logits` and `nsp_logits`, `score` of a regressor, `embedding` of an
    embedder. A classifier returns logits whatever its activation. For a `BertMultiTask`, the task's
    name is a prefix, as in `topic_token_ids`.

    `tokenizers` and `transformers` read `tokenizer.json` in any programming language; `config.json`
    names the classes. `answer.py` answers raw texts without Keras and TensorFlow: `from
    folder.answer import answer`; a `BertMultiTask` gets none. LoRA is merged, and weights of other
    types are written in float32. A failure leaves no files.

    Args:
        model: a `BertBackbone` or any task, on any backend.
        directory: a new or empty directory.
        precision: "float32": outputs must match the model's within 1e-5 or rounding error; or
            "int8", a quarter of the size: kernels have 8 bits and a scale per column, and their
            inputs are quantized at run time.
        tokenizer: a tokenizer, for an encoder; `None` takes the model's, `False` writes none.
        layout: "kerasbert", "transformers" or "triton". "transformers" writes a folder that
            optimum, sentence-transformers (`backend="onnx"`), fastembed and transformers.js load
            directly. The graph is `onnx/model.onnx` in either precision. Its int64 inputs are
            `input_ids`, `attention_mask` and, if the tokenizer returns them, `token_type_ids`; its
            outputs are those of the transformers class in `config.json`: `last_hidden_state`,
            `pooler_output`, `logits` (B, 1) of a regressor, `logits` (B, T, V) of a masked language
            model. An embedder has `last_hidden_state`, and files of sentence-transformers define
            the pooling. Texts are truncated as by the preprocessor. For text pairs,
            transformers.js' tokenizer needs `return_token_type_ids: true`. "triton" writes a model
            of the repository of Triton Inference Server: `1/model.onnx`, `config.pbtxt` with
            dynamic batching, the tokenizer's files for clients, and `kserve.yaml` for KServe.

    Returns:
        The path of `model.onnx`.

    Raises:
        TypeError: if `model` is not an encoder or task of kerasbert.
        ValueError: for a model that cannot be exported or has no class in transformers, or an
            unusable folder.
        ImportError: if a package of the extra `onnx` is missing.
        RuntimeError: if the file cannot be built, or its outputs differ from the model's.

    Example:

    >>> import tempfile
    >>> from kerasbert.models import BertBackbone, BertTextClassifier
    >>> backbone = BertBackbone(
    ...     vocabulary_size=7, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4
    ... )
    >>> directory = os.path.join(tempfile.mkdtemp(), "demo")
    >>> os.path.basename(export_onnx(BertTextClassifier(backbone, num_classes=2), directory))
    'model.onnx'
    """
    need_packages("export_onnx", "onnx", "onnx", "onnxruntime", "tf2onnx")
    arguments = directory, "onnx", precision, None, tokenizer, layout
    with exported(model, *arguments) as (target, folder, check):
        path = os.path.join(folder, LAYOUTS[layout], "model.onnx")
        check(runtimes.onnx_runtime(path))
        if layout == "triton":
            write_triton_configs(folder, path, os.path.basename(target))
    return os.path.join(target, LAYOUTS[layout], "model.onnx")


def export_openvino(
    model: Any,
    directory: AnyPath,
    precision: str = "float32",
    tokenizer: SubwordTokenizer | None = None,
    texts: Sequence[Any] | None = None,
) -> str:
    """Convert the graph of `export_onnx` to OpenVINO: `model.xml` and `model.bin`.

    Arguments that are not listed are those of `export_onnx`.

    Args:
        precision: "float32" or "int8". With "int8", NNCF quantizes kernels and activations; it
            calibrates the ranges of activations on `texts`.
        texts: list of a few hundred typical inputs, for int8. The file's outputs are compared with
            the model's on the first `CHECKED` of them.

    Raises:
        ValueError: for int8 without texts, or texts without int8.
    """
    int8 = precision == "int8"
    packages = ("nncf",) if int8 else ()
    need_packages("export_openvino", "openvino", "onnx", "openvino", "tf2onnx", *packages)
    import openvino

    batches = _batches(model, texts) if int8 else None
    if texts is not None and not int8:
        raise ValueError(f"texts are only for precision='int8'; omit them for {precision!r}.")
    arguments = directory, "onnx", precision, None, tokenizer
    probes = batches and batches[:CHECKED]
    with exported(model, *arguments, runtime="openvino", probes=probes) as (target, folder, check):
        path = os.path.join(folder, "model.xml")
        whole = os.path.join(folder, "model.onnx")
        graph = openvino.convert_model(whole)
        # The default, compress_to_fp16=True, would halve the precision of the weights.
        openvino.save_model(
            _rounded(graph, batches) if int8 else graph, path, compress_to_fp16=False
        )
        os.remove(whole)
        check(runtimes.openvino(path))
    return os.path.join(target, "model.xml")


# Number of texts on which an int8 model is compared with the original.
CHECKED = 16


def _batches(model, texts):
    """Return the network's inputs for each text, as batches of one."""
    task = served(model, call="export_openvino")
    if "" not in task.parts:
        raise ValueError(
            "export_openvino quantizes one task at a time; export each of model.tasks separately."
        )
    if isinstance(texts, str):
        raise ValueError(f"texts={texts!r} must be a list; put the text in a list.")
    texts = list(() if texts is None else texts)
    if task.preprocessor is None or not texts:
        raise ValueError(
            "OpenVINO's int8 needs texts for calibration; pass texts=[...], a few hundred typical "
            "inputs, with a model that has a preprocessor."
        )
    _, columns = columns_of(task, texts)
    count = len(next(iter(columns.values())))
    return [packed(task, {n: x[i : i + 1] for n, x in columns.items()}) for i in range(count)]


def _nncf():
    """Import NNCF with the environment variable of its own tests.

    Nothing else disables its telemetry.
    """
    before = os.environ.get("NNCF_CI")
    os.environ["NNCF_CI"] = before or "1"
    try:
        import nncf
    finally:
        os.environ.pop("NNCF_CI")
        if before is not None:
            os.environ["NNCF_CI"] = before
    return nncf


def _rounded(graph, batches):
    """Quantize the matmuls of OpenVINO's graph to int8."""
    nncf = _nncf()
    nncf.set_log_level(logging.ERROR)
    return nncf.quantize(
        graph,
        nncf.Dataset(batches),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(batches),
        # Weights use 7 bits, because sums of 8-bit products saturate on x86 CPUs without VNNI.
        advanced_parameters=nncf.AdvancedQuantizationParameters(
            overflow_fix=nncf.OverflowFix.ENABLE
        ),
    )
