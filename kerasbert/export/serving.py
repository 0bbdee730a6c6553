"""`export_serving`: a SavedModel that takes raw strings, for a stock TensorFlow Serving.

On every backend, a child process with TensorFlow writes and checks the SavedModel
(`kerasbert/export/write_saved_model.py`): JAX would export ops that servers reject, and PyTorch
cannot export one. Each kind's `served.py` defines its signatures.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert import backend
from kerasbert.backend.tensorflow import need_tensorflow
from kerasbert.base import keras_internals
from kerasbert.base.errors import check_choice, check_whole
from kerasbert.base.files import names_in, output_folder, scratch, write_json
from kerasbert.base.moves import put
from kerasbert.export.child_process import run_child
from kerasbert.export.server_configs import SERVING_CONFIGS, write_serving_configs
from kerasbert.heads.base.served import MARGIN, requests_of
from kerasbert.heads.base.served_models import quantization_modes, saved_class, served
from kerasbert.heads.base.spans import MASKED
from kerasbert.heads.base.task import BertTask
from kerasbert.text.text_warnings import unreported

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kerasbert.base.aliases import AnyPath

MOST_WARMUP = 1000  # The limit of TensorFlow Serving.
# Factor of `rounding`. Outputs of two libraries differed by up to twice the change that rounding
# the weights causes.
ROUNDING = 4


def export_serving(
    model: Any,
    directory: AnyPath,
    version: int | None = None,
    labels: Sequence[str] | None = None,
    warmup: Sequence[Any] | None = None,
    signatures: Sequence[str] | None = None,
    tokens_only: bool = False,
    preprocessor: Any = None,
    **settings: Any,
) -> str:
    """Write a SavedModel that takes raw strings, and check it against the model.

    `serving_default` maps texts (N,) to the results of the model's inference method:

    - `BertTextClassifier`: `probabilities` (N, C), `label`, `score` (N,); `BertTextRegressor`:
      `score`; `BertTextEmbedder`: `embedding`; `BertBackbone`: `sequence_output` and, with a
      pooler, `pooled_output` and `default`. All also have `pair` for text pairs; the first two have
      `classify` and `regress` for `tf.train.Example` messages.
    - `BertNextSentencePredictor`: `text`, `text_b` -> `probability` that B follows.
    - `BertSparseEmbedder`: `token`, `token_id`, `weight` (N, K) of the tokens with the largest
      weights, `count` (N,) per text; also has `pair`.
    - `BertReranker`: `text`, a query, `text_b` -> `score` (N,).
    - `BertTokenClassifier`: `label`, `start`, `end`, `text`, `score` (N, E) of entities, `count`
      (N,) per text.
    - `BertCausalLM`: `token`, `token_id`, `start`, `end`, `score` (N, P) of all tokens but the
      first, `count` (N,) per text.
    - `BertReplacedTokenDetector`: `text`, `start`, `end`, `score` (N, P) of tokens, `count` (N,)
      per text.
    - `BertStructuralProbe`: `word`, `start`, `end` (N, W) of the words that fit into
      `sequence_length`, `count` (N,) per text; and `first`, `second` (N, W - 1), the positions of
      each edge's two words, or, for a depth probe, `depth` (N, W).
    - `ElmoEmbedder`: `word`, `start`, `end` (N, W) and `embedding` (N, W, D) of the words between
      white space, `count` (N,) per text.
    - `TransformerSeq2SeqLM`: `source`, `target` -> `score` (N,), as from its method `score`; text
      generation is not exported.
    - `BertQuestionAnswering`: `question`, `context` -> `answer`, `start`, `end` (-1 for none) and
      `score` (N,), or (N, K) if `top_k` exceeds 1, and `null_score` (N,).
    - `BertMultipleChoice`: `prompt` (N,), `choices` (N, C), padded with "" at the end -> `choice`,
      `index`, `score` (N,), `scores` (N, C).
    - `BertMaskedLM`, `BertPretrainer`: `token`, `token_id`, `score`, `text` (N, M, K) of each
      masked token, `count` (N,) per text; `BertPretrainer` also has `pair`.
    - `kerasbert.SearchIndex` with a `BertTextEmbedder`: `query` -> `id`, `text`, `score` (N, K) of
      the nearest texts, best first, `count` (N,) per query. With a `BertReranker`, `score` is its
      score, beside `vector_score`; with a `BertQuestionAnswering`, also `answer`, `start`, `end`
      (-1 for none), `answer_score` and `null_score` (N, K); with `keywords=True`, the search is
      hybrid, and `vector_score` and `keyword_score` are beside `score`. `search` also takes `top_k`
      (N,). An index with metadata returns it as JSON strings, `metadata` (N, K), and has the
      signature `search_where`, which also takes filters, as made by
      `kerasbert.search.where_inputs`: `where_clause`, `where_key`, `where_operator`, `where_type`
      and `where_value` (N, conditions). The search is exact, even if the index has an engine.
      `embedder`, `reranker` and `reader` are its models, with names as for a `BertMultiTask`.
    - `BertEnsemble`: the signatures of its members' class; members must have equal preprocessors.
    - `BertMultiTask`: the signatures of each task, `name`, `name_tokens` and so on;
      `serving_default` is the first task's.

    Items of a row after the first `count` are padding. `tokens` takes int32 token ids instead of
    strings (for an `ElmoEmbedder` character ids); `preprocess` returns these ids, for a
    `BertQuestionAnswering`, or with `long="windows"`, as windows (N, W, T). Each output has one row
    per input row, so servers may batch. `start` and `end` count characters of the original text.
    `assets.extra/card.json` has the shapes and an example request. Weights are float32 with LoRA
    merged, or int8 as quantized. A failure leaves no files behind.

    Args:
        model: an instance of one of these classes, on any backend.
        directory: the folder of all versions of this model, as TensorFlow Serving's
            `--model_base_path`; this version is written to `directory/<version>/`. Next to it,
            `models.config` and `batching.config` are written for the server's `--model_config_file`
            and `--batching_parameters_file`, and `kserve.yaml` for KServe.
        version: int. `None` takes the number after the last version, starting at 1.
        labels: list of C class names that replace the model's; for a `BertMultiTask`, a dict of
            such lists by task.
        warmup: list of at most 1,000 inputs of `serving_default` or `pair`, such as a text or a
            tuple, that a server runs before its first request.
        signatures: list of strings, the signatures to write; `None` writes all.
        tokens_only: bool. Write only `tokens`, without string ops, for servers or tokenizers that
            do not support these.
        preprocessor: for a `BertBackbone`, which has none of its own.
        **settings: for a `BertQuestionAnswering` `top_k=1`, `null_threshold=None`,
            `max_answer_length=30` and `n_best=20`; for a masked language model `top_k=5`; for a
            `BertSparseEmbedder` `top_k=256`; for an index `top_k=10`, `candidates=None` and
            `alpha=None`, as in its `search`, and those of its reader. `max_windows` limits the
            windows per text of models that split long texts (512; 128 for masked language models):
            a request with a longer text is an error.

    Returns:
        The path of the version's folder.

    Raises:
        TypeError: if `model` is not of one of these classes.
        ValueError: for a model that cannot be exported, or an invalid argument or folder.
        RuntimeError: if the SavedModel cannot be built, or if its answers differ from the model's
            by more than both 1e-5 of the largest logit and the tolerance of `rounding`.
        OSError: if a file cannot be written.

    Example:

    >>> from kerasbert.models import BertBackbone, BertTextClassifier
    >>> from kerasbert.models import BertTextClassifierPreprocessor, BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]
    >>> backbone = BertBackbone(
    ...     vocabulary_size=7, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4
    ... )
    >>> preprocessor = BertTextClassifierPreprocessor(BertTokenizer(tokens))
    >>> model = BertTextClassifier(backbone, preprocessor=preprocessor, labels=["no", "yes"])
    >>> import tempfile
    >>> path = export_serving(model, os.path.join(tempfile.mkdtemp(), "demo"))
    >>> sorted(os.listdir(path))
    ['assets', 'assets.extra', 'fingerprint.pb', 'saved_model.pb', 'variables']
    """
    need_tensorflow("export_serving")
    task = served(model, preprocessor)
    mode = _check_model(task, tokens_only)
    task.labels = _check_labels(task.own_labels, labels)
    for part in task.parts.values():
        part.check_labels()
    task.settings = _check_settings(task, settings)
    names = _check_signatures(task, signatures, tokens_only)
    warmup = _check_warmup(task, warmup, names)
    directory = output_folder(directory, "directory")
    version = _check_version(directory, version)
    target = os.path.join(directory, str(version))
    try:
        with scratch(target, by="export_serving") as folder:
            # Another process may have written this version meanwhile.
            _check_version(directory, version)
            _write_job(folder, task, mode, names, warmup, tokens_only, directory)
            run_child("kerasbert.export.write_saved_model", folder, "No SavedModel")
            put(os.path.join(folder, "saved_model"), target)
        write_serving_configs(directory)
    except BlockingIOError:
        raise
    except OSError as error:
        reason = f"Cannot write the SavedModel to '{target}': {error.strerror or error}"
        raise OSError(*filter(None, [error.errno]), reason) from error
    return target


def _check_model(task, tokens_only):
    """Check that a model can be exported; return its quantization mode (`None` for none)."""
    model = task.model
    if not all(one.built for one in task.models):
        raise ValueError("The model has no weights yet; call it once on inputs before the export.")
    is_task = isinstance(model, BertTask)
    if is_task and task.preprocessor is not model.preprocessor:
        raise ValueError(
            "preprocessor=... is only for a BertBackbone; set `model.preprocessor` of a task."
        )
    for part in [] if tokens_only else task.parts.values():
        if not part.needs_preprocessor:
            continue
        if part.preprocessor is None:
            name = f"{type(part.model).__name__}Preprocessor".replace("Backbone", "")
            where = "set `model.preprocessor` to" if is_task else "pass preprocessor="
            raise ValueError(
                "The model has no preprocessor, so it cannot take raw strings; "
                f"{where} a {name}, or tokens_only=True."
            )
        part.preprocessor.tokenizer.vocabulary_size()  # Raises if there is no vocabulary yet.
        part.preprocessor.tokenizer.check_graph()
    modes = set().union(*map(quantization_modes, task.models))
    if modes - {"int8"}:
        raise ValueError(
            f"The model is quantized ({', '.join(sorted(modes))}), but export_serving writes "
            "float32 or int8 weights; export it before `quantize`, or quantize it in int8."
        )
    if any(quantization_modes(one) and not computes_in_float32(one) for one in task.models):
        raise ValueError(
            "The model is quantized in int8 but computes the rest in a type other than float32, "
            "which is slow on servers; load it with dtype='float32' before `quantize`."
        )
    return "int8" if modes else None


def _has_lora(model):
    return any(
        getattr(layer, "lora_enabled", False) for layer in keras_internals.flatten_layers(model)
    )


def computes_in_float32(model):
    """Return whether float32 is the only floating-point type that a model's layers compute in."""
    return {layer.compute_dtype for layer in keras_internals.flatten_layers(model)} <= {
        "float32",
        "int32",
    }


def _check_labels(own, labels):
    """Return the labels to serve: the given ones, or the model's own."""
    if labels is None:
        return own
    if own is None:
        raise ValueError(f"labels={labels!r} was given, but this model has no classes.")
    if isinstance(own, dict):
        unknown = set(labels) - set(own) if isinstance(labels, dict) else {"?"}
        if unknown:
            raise ValueError(
                f"labels={labels!r} must be a dict with keys among the tasks {', '.join(own)}."
            )
        return {name: _check_labels(own[name], labels.get(name)) for name in own}
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"labels={labels!r} must be a list of strings, one per class.")
    labels = list(labels)
    if len(labels) != len(own) or len(set(labels)) != len(labels):
        raise ValueError(f"labels={labels} must be {len(own)} different names, one per class.")
    return labels


def _check_settings(task, settings):
    known = task.settings
    for name, value in settings.items():
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ValueError(f"{name}={value!r} is not a setting of this model; {takes}.")
        if name in ("null_threshold", "alpha"):
            if value is not None and not isinstance(value, (int, float, np.number)):
                raise ValueError(f"{name}={value!r} must be a number or None.")
        elif value is not None or known[name] is not None:
            check_whole(name, value)
    plain = {n: v.item() if isinstance(v, np.generic) else v for n, v in settings.items()}
    return {**known, **plain}


def _check_signatures(task, signatures, tokens_only):
    """Return the names of the signatures to write."""
    known = list(task.signatures(tokens_only))
    if signatures is None:
        return known
    names = [signatures] if isinstance(signatures, str) else list(signatures)
    for name in names:
        check_choice("signatures", name, known)
    if not names:
        raise ValueError("signatures=[] would write none; pass None to write all.")
    return names


def _check_warmup(task, warmup, names):
    """Convert warmup items to a list of `(signature, inputs)`."""
    if isinstance(warmup, str):
        raise ValueError(f"warmup={warmup!r} is a single text; pass a list of texts.")
    warmup = list(warmup or [])
    if len(warmup) > MOST_WARMUP:
        raise ValueError(
            f"warmup has {len(warmup):,} texts, but a server reads at most {MOST_WARMUP:,}; pass "
            "fewer, both short and long."
        )
    rows = requests_of(task, warmup, "item", " of warmup")
    for position, row in enumerate(rows):
        if row[0] not in names:
            raise ValueError(
                f"The item at position {position} of warmup is for '{row[0]}', which is not "
                f"among the signatures {', '.join(names)}."
            )
    return rows


def _check_version(directory, version):
    names = names_in(directory)
    others = [n for n in names if not (_is_version(n) or n.startswith(".") or n in SERVING_CONFIGS)]
    if others:
        raise ValueError(
            f"Cannot export to '{directory}': it contains '{others[0]}', which is not a version of "
            "a model; choose a new folder, or one of earlier exports."
        )
    versions = {int(name) for name in names if _is_version(name)}
    if version is None:
        return max(versions, default=0) + 1
    check_whole("version", version, 0)
    if version in versions:
        raise ValueError(
            f"Version {version} already exists in '{directory}'; pass version="
            f"{max(versions) + 1}, or None for the next one."
        )
    return version


def _is_version(name):
    return name.isascii() and name.isdecimal()


# === The child process ===


def _write_job(folder, task, mode, names, warmup, tokens_only, directory):
    """Write the weights, the export settings and the model's reference answers."""
    preset = os.path.join(folder, "preset")
    task.save(preset)
    name = saved_class(task.model)
    # Merging LoRA into an int8 kernel rounds it again, so the reference answers are computed with
    # the saved weights.
    if any(not computes_in_float32(one) or (mode and _has_lora(one)) for one in task.models):
        task = task.reload(preset, name, mode)
    batches, probes, arrays, strings, off = [], [], {}, [], 0.0

    def keep(columns):
        """Store each array of a dict in `arrays` (numbers) or `strings`; return their places."""
        found = {}
        for key, column in columns.items():
            array = np.asarray(column)
            if array.dtype.kind in "OSU":
                strings.append(column)
                found[key] = ["strings", len(strings) - 1]
            else:
                arrays[f"array{len(arrays)}"] = array
                found[key] = ["arrays", f"array{len(arrays) - 1}"]
        return found

    with backend.full_float32():
        # Not needed for quantized models: their tolerance is far larger than the effect of
        # rounding.
        nudged = None if mode else perturbed([w for one in task.models for w in one.weights])
        for signature, features in task.batches():
            outputs = task.tokens_of(signature, features)
            check_finite(outputs)
            if nudged:
                with nudged:
                    off = max(off, rounding(outputs, task.tokens_of(signature, features)))
            if signature in names:
                batches.append([signature, keep(features), keep(outputs)])
        for part in (task, *task.parts.values()):
            part.margin = max(MARGIN[mode], off)
        for signature, inputs in [] if tokens_only else task.probes():
            if signature in names:
                with unreported():
                    answers = task.expected(signature, inputs)
                check_finite(answers)
                probes.append([signature, inputs, keep(answers)])
    np.savez(os.path.join(folder, "expected.npz"), **arrays)
    job = {
        "class": name,
        "mode": mode,
        "labels": task.labels,
        "settings": task.settings,
        "signatures": names,
        "tokens_only": tokens_only,
        "name": os.path.basename(directory),
        "warmup": warmup,
        "rounding": off,
        "batches": batches,
        "probes": probes,
        "strings": strings,
    }
    write_json(os.path.join(folder, "job.json"), job)


def check_finite(outputs):
    """Raise unless all numbers in a dict of arrays are finite."""
    for value in outputs.values():
        array = np.asarray(value)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(
                "The model's outputs are not finite, so its training diverged; train it again with "
                "a lower learning rate."
            )


def perturbed(weights, spacing=np.spacing):
    """Return a context in which each float32 weight is randomly raised or lowered by `spacing`.

    Args:
        weights: list of a model's weights.
        spacing: function from a float32 array to one of the same shape; by default each number's
            distance to the next float.
    """
    random, moved = np.random.default_rng(0), []
    for weight in weights:
        value = keras.ops.convert_to_numpy(weight.value)
        if value.dtype == "float32":
            sign = random.choice(np.array([-1, 1], "float32"), value.shape)
            value = value + sign * spacing(value).astype("float32")
            moved.append((weight, keras.ops.convert_to_tensor(value)))
    return keras.StatelessScope(state_mapping=moved)


def rounding(outputs, nudged):
    """Return an absolute tolerance: `ROUNDING` times the change caused by rounding the weights.

    Libraries add in different orders, which has the same effect as rounding the weights
    differently: outputs change by more than the relative tolerance in models with large hidden
    values.

    Args:
        outputs: dict of arrays.
        nudged: dict of the same outputs, computed with `perturbed` weights.
    """
    moved = 0.0
    for key, values in outputs.items():
        possible = np.abs(values) < -MASKED / 10
        moved = max(moved, float(np.abs(values - nudged[key])[possible].max(initial=0)))
    return ROUNDING * moved
