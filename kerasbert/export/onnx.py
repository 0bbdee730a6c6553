"""`export_onnx` and `export_openvino`: a model from token ids on, for their runtimes."""

import logging
import os

from kerasbert import runtimes
from kerasbert._errors import need_packages
from kerasbert.export.served import served
from kerasbert.export.token_graphs import exported


def export_onnx(model, directory, precision="float32", tokenizer=None, layout="kerasbert"):
    """Write `model.onnx`, with the tokenizer's files beside it, and check it with ONNX Runtime.

    The inputs are the model's, int32 and of any batch size and length: `token_ids`, `segment_ids`
    where the family has segments, `padding_mask`, `mask_positions` of a masked language model. The
    outputs have the model's names: `logits`, `start_logits` and `end_logits`, `sequence_output`
    and `pooled_output`, `mlm_logits` and `nsp_logits`, `score` of a regressor, `embedding` of an
    embedder. A classifier gives logits whatever its activation. The names of a `BertMultiTask`
    begin with the task's, as `topic_token_ids`.

    `tokenizer.json` and the files around it are those that `tokenizers` and `transformers` read,
    in any language that has them; `config.json` names the classes. `answer.py` is a program of few
    lines that takes raw texts, without Keras and TensorFlow: `from folder.answer import answer`;
    several tasks in one have none. LoRA is merged in, and weights of another type are written in
    float32. A failure leaves nothing behind.

    Args:
        model: a `BertBackbone` or any task, on any backend.
        directory: string. A new directory, or an empty one.
        precision: "float32", which has to answer as the model does within 1e-5 or rounding, or
            "int8", a quarter of the size: weights of the products are int8, with a scale for each
            column, and their inputs become int8 as they come.
        tokenizer: a tokenizer, for an encoder; `None` takes the model's, `False` writes none.
        layout: "kerasbert", or "transformers": a folder that optimum, sentence-transformers
            (`backend="onnx"`), fastembed and transformers.js load as it is. The graph is
            `onnx/model.onnx` in each precision, its inputs `input_ids`, `attention_mask` and, where
            the tokenizer gives them, `token_type_ids` are int64, and its outputs those of the class
            of transformers in `config.json`: `last_hidden_state`, `pooler_output`, `logits` (B, 1)
            of a regressor, `logits` (B, T, V) of a masked language model. An embedder gives
            `last_hidden_state` with sentence-transformers' pooling beside it. Texts are cut where
            the preprocessor cuts them. For pairs of texts, transformers.js' tokenizer wants to hear
            `return_token_type_ids: true`.

    Returns:
        The path of `model.onnx`.

    Raises:
        TypeError: if `model` is no encoder or task of ours.
        ValueError: for a model or a folder that cannot be exported, or a model that transformers
            has no class for.
        ImportError: if a package of the extra `onnx` is missing.
        RuntimeError: if the file cannot be built, or answers differently from the model.

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
    name = os.path.join("onnx" if layout == "transformers" else "", "model.onnx")
    with exported(model, *arguments) as (target, folder, check):
        check(runtimes.onnx_runtime(os.path.join(folder, name)))
    return os.path.join(target, name)


def export_openvino(model, directory, precision="float32", tokenizer=None, texts=None):
    """Write `model.xml` and `model.bin` for OpenVINO; see `export_onnx`, which it goes by.

    Args:
        precision: "float32", or "int8": weights and activations of the products are int8, by
            NNCF, which reads the ranges of the activations off `texts`.
        texts: list of what the model takes, for int8: some hundred of those that it will be
            asked. On `CHECKED` of them the file is compared with the model.

    Raises:
        ValueError: for int8 without texts, or texts without int8.
    """
    int8 = precision == "int8"
    packages = ("nncf",) if int8 else ()
    need_packages("export_openvino", "openvino", "onnx", "openvino", "tf2onnx", *packages)
    import openvino

    batches = _batches(model, texts) if int8 else None
    if texts is not None and not int8:
        raise ValueError(f"texts=... are for precision='int8'; leave them out for {precision}.")
    arguments = directory, "onnx", precision, None, tokenizer
    probes = batches and batches[:CHECKED]
    with exported(model, *arguments, runtime="openvino", probes=probes) as (target, folder, check):
        path = os.path.join(folder, "model.xml")
        whole = os.path.join(folder, "model.onnx")
        graph = openvino.convert_model(whole)
        # Its default would halve the precision of the weights.
        openvino.save_model(
            _rounded(graph, batches) if int8 else graph, path, compress_to_fp16=False
        )
        os.remove(whole)
        check(runtimes.openvino(path))
    return os.path.join(target, "model.xml")


# So many texts are compared after rounding.
CHECKED = 16


def _batches(model, texts):
    """The inputs of the network for each text by itself."""
    task = served(model, call="export_openvino")
    if "" not in task.parts:
        raise ValueError(
            "export_openvino rounds one task at a time to int8; export each of model.tasks."
        )
    if isinstance(texts, str):
        raise ValueError(f"texts={texts!r} is one text; put it in a list.")
    texts = list(() if texts is None else texts)
    if task.preprocessor is None or not texts:
        raise ValueError(
            "OpenVINO's int8 takes the ranges of activations from texts; pass texts=[...], some "
            "hundred of those that the model will be asked, to a model with a preprocessor."
        )
    _, columns = task.columns_of(texts)
    count = len(next(iter(columns.values())))
    return [task.packed({n: x[i : i + 1] for n, x in columns.items()}) for i in range(count)]


def _nncf():
    """NNCF, which tells its makers of each call, unless it is imported where it is tested."""
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
    """OpenVINO's graph with products of int8."""
    nncf = _nncf()
    nncf.set_log_level(logging.ERROR)
    return nncf.quantize(
        graph,
        nncf.Dataset(batches),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(batches),
    )
