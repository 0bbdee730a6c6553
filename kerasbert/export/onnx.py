"""`export_onnx` and `export_openvino`: a model from token ids on, for their runtimes."""

import os

from kerasbert import runtimes
from kerasbert._errors import need_packages
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
    readers, masked language models, choices and several tasks have none. LoRA is merged in, and
    weights of another type are written in float32. A failure leaves nothing behind.

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


def export_openvino(model, directory, precision="float32", tokenizer=None):
    """Write `model.xml` and `model.bin` for OpenVINO; see `export_onnx`, which it goes by.

    Args:
        precision: "float32". What int8 becomes of here takes OpenVINO 1.3 to 1.6 times as long, and
            an older one was seen to compute it wrong: `export_onnx` writes it for ONNX Runtime,
            where it takes half the time.
    """
    if precision == "int8":
        raise ValueError(
            "OpenVINO runs what int8 becomes of here slower than float32; use precision='float32', "
            "or export_onnx(..., precision='int8') and ONNX Runtime."
        )
    need_packages("export_openvino", "openvino", "onnx", "openvino", "tf2onnx")
    import openvino

    arguments = directory, "onnx", precision, None, tokenizer
    with exported(model, *arguments, runtime="openvino") as (target, folder, check):
        path = os.path.join(folder, "model.xml")
        whole = os.path.join(folder, "model.onnx")
        # Its default would halve the precision of the weights.
        openvino.save_model(openvino.convert_model(whole), path, compress_to_fp16=False)
        os.remove(whole)
        check(runtimes.openvino(path))
    return os.path.join(target, "model.xml")
