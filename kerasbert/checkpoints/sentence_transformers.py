"""Reader and writer of sentence-transformers directories.

They hold an encoder with pooling modules, a cross-encoder (a classifier with one label), a sparse
encoder (a masked language model with SPLADE pooling), or a ColBERT model of PyLate or Stanford.

Source: `sentence-transformers` 6.2 and the files of its earlier versions.
"""

import collections
import dataclasses
import functools
import os

import numpy as np
from keras import ops

from kerasbert.base.errors import check_fields
from kerasbert.base.files import json_in, read_json, write_json
from kerasbert.checkpoints import colbert, huggingface
from kerasbert.checkpoints.checkpoint import TensorFiles
from kerasbert.checkpoints.cross_encoders import (
    RERANKER,
    is_cross_encoder,
    read_reranker,
    why_no_reranker,
)
from kerasbert.checkpoints.sentence_modules import (
    CONFIG,
    TRANSFORMER_SETTINGS,
    class_name,
    folder_of,
    has_modules,
    modules_of,
    prompts_config,
    read_config,
    read_prompts,
    write_module_files,
)
from kerasbert.checkpoints.writing import named_tensors
from kerasbert.kinds import kind_of, kinds_with

# One flag per pooling, in the order of concatenation. Later versions write names instead.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_POOLINGS = ("cls", "max", "mean")
_POOLING_FIELDS = {
    **dict.fromkeys(_FLAGS, "flag"),
    "include_prompt": "flag",
    "word_embedding_dimension": "count",
    "embedding_dimension": "count",
}
_DENSE_FIELDS = {
    "in_features": "count",
    "out_features": "count",
    "bias": "flag",
    "use_residual": "flag",
    "activation_function": "name?",
}
# Keras' names of the activations of a dense layer.
_DENSE_ACTIVATIONS = {
    "tanh": "torch.nn.modules.activation.Tanh",
    "relu": "torch.nn.modules.activation.ReLU",
    "gelu": "torch.nn.modules.activation.GELU",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    None: "torch.nn.modules.linear.Identity",
}
# Before 5.4, masked language models had an own class.
_ENCODERS = ("Transformer", "MLMTransformer")
_SPLADE = "SpladePooling"
# sentence-transformers' class names, as in `kinds`.
EMBEDDER, SPARSE_EMBEDDER = "SentenceTransformer", "SparseEncoder"
# First modules that encode queries differently, or texts by a table alone.
_SEVERAL = ("Router", "SparseStaticEmbedding")
# By our setting of a sparse embedder: name in the files, and allowed values, default first.
_SPLADE_SETTINGS = {
    "pooling": ("pooling_strategy", ("max", "sum")),
    "activation": ("activation_function", ("relu", "log1p_relu")),
}
# setfit stores a scikit-learn head as a pickle.
_SETFIT_HEAD = "model_head.pkl"
_SETFIT_REFUSAL = (
    "'{}' keeps the head of setfit in model_head.pkl, a pickle, which could run any code and is "
    "never opened; load the encoder with BertTextEmbedder, or train a new head with "
    "kerasbert.finetune(..., method='frozen') on the labeled texts."
)
# Unsupported settings that change the encoder's inputs.
_REFUSED = (
    *("processing_kwargs", "processor_kwargs", "tokenizer_args", "config_kwargs", "config_args"),
    *("query_length", "document_length", "query_expansion"),
)


def is_mine(directory):
    """Return whether a directory has one of these formats, even unsupported."""
    if not has_modules(directory):
        return is_cross_encoder(directory) or colbert.is_stanfords(directory)
    return class_name(modules_of(directory)[0]) in (*_ENCODERS, *_SEVERAL)


def is_sparse(directory):
    """Return whether a directory holds a sparse encoder."""
    return has_modules(directory) and _SPLADE in map(class_name, modules_of(directory))


def read_checkpoint(directory):
    """Describe a sentence-transformers directory: the encoder and the settings of the modules.

    Returns:
        A `Checkpoint`.

    Raises:
        ValueError: as for a Hugging Face directory, or for a broken list of modules, or one without
            a shared encoder.
    """
    alone = [{"path": "", "type": "Transformer"}]
    modules = modules_of(directory) if has_modules(directory) else alone
    if class_name(modules[0]) in _SEVERAL:
        raise ValueError(
            f"'{directory}' begins with {class_name(modules[0])}, which encodes queries and texts "
            "differently, but kerasbert has one encoder for both; load one of its encoders by its "
            "folder."
        )
    folder = folder_of(directory, modules[0])
    checkpoint = huggingface.read_checkpoint(folder)
    found = ((json_in(folder, name), name) for name in TRANSFORMER_SETTINGS)
    settings, name = next(filter(lambda pair: pair[0], found), ({}, ""))
    kinds = {"max_seq_length": "count?", "do_lower_case": "flag?"}
    check_fields(settings, kinds, os.path.join(folder, name))
    for field in _REFUSED:
        if settings.get(field):
            raise ValueError(
                f"'{os.path.join(folder, name)}' has {field}={settings[field]!r}, which changes "
                "how texts are tokenized and which kerasbert does not support; move it to "
                "tokenizer_config.json or config.json if these have such a key."
            )
    make = checkpoint.tokenizer
    lengths = (settings.get("max_seq_length"), huggingface.tokenizer_length(folder))
    length = next((length for length in lengths if length is not None), float("inf"))
    length = int(min(length, checkpoint.encoder["max_sequence_length"]))
    if settings.get("do_lower_case"):
        make = functools.partial(_lowercase, make, directory)
    of_class = {row.sentence_transformers: row.name for row in kinds_with("sentence_transformers")}
    kind, read, refused = of_class[EMBEDDER], _embedder, checkpoint.refused
    reading, more = {"sequence_length": length}, {}
    dense = _dense_folder(directory, modules)
    if is_cross_encoder(directory):
        kind, read = of_class[RERANKER], read_reranker
        refusal = why_no_reranker(directory, modules)
        refused = {kind: refusal, **refused} if refusal else refused
    elif is_sparse(directory):
        kind, read = of_class[SPARSE_EMBEDDER], _sparse_embedder
        checkpoint.head[of_class[EMBEDDER]] = functools.partial(_embedder, directory, modules)
    elif dense is not None:
        tensors = checkpoint.tensors
        if dense != folder:
            tensors = _Joined(tensors, TensorFiles(dense))
        more = {
            "tensors": tensors,
            "head_maps": {**checkpoint.head_maps, kind: colbert.PROJECTION},
            "is_head": lambda name: name.startswith("linear.") or checkpoint.is_head(name),
        }
        if not any(class_name(module) == "Pooling" for module in modules):
            longest = checkpoint.encoder["max_sequence_length"]
            reading = colbert.read_settings(directory, longest)
    if os.path.exists(os.path.join(directory, _SETFIT_HEAD)):
        refused = {**refused, "text_classifier": _SETFIT_REFUSAL.format(directory)}
    head = functools.partial(read, directory, modules)
    if any(class_name(module) in ("Pooling", _SPLADE) for module in modules):
        reading = {**reading, **read_prompts(directory, modules)}
    return dataclasses.replace(
        checkpoint,
        source=directory,
        head={**checkpoint.head, kind: head},
        preprocessor={kind: reading},
        # An embedder's maximum length does not limit a new head.
        longest=None if kind == of_class[EMBEDDER] else checkpoint.longest,
        tokenizer=make,
        refused=refused,
        **more,
    )


class _Joined(collections.ChainMap):
    """Tensors of an encoder and of a dense layer in another folder."""

    def shape(self, name):
        return next(part.shape(name) for part in self.maps if name in part)

    def size(self):
        return sum(part.size() for part in self.maps)


def _dense_folder(directory, modules):
    """Return the folder of a supported dense layer, or `None`."""
    if not has_modules(directory):
        return directory if colbert.is_stanfords(directory) else None
    kinds = [class_name(module) for module in modules]
    if "Dense" not in kinds or not _is_ours(kinds):
        return None
    return folder_of(directory, modules[kinds.index("Dense")])


def _is_ours(kinds):
    """Return whether `BertTextEmbedder` supports modules of these kinds in this order."""
    in_order = [kind for kind in ("Transformer", "Pooling", "Dense", "Normalize") if kind in kinds]
    return kinds == ["Transformer", "Dense"] or kinds == in_order and kinds[1:2] == ["Pooling"]


def class_of(model):
    """Return the name of a model's class in sentence-transformers; "" for none."""
    kind = kind_of(model)
    return "" if kind is None else kind.sentence_transformers


def write(model, directory):
    """Write the files that sentence-transformers needs beside those of transformers."""
    writers = {EMBEDDER: write_modules, SPARSE_EMBEDDER: write_sparse_modules}
    if writer := writers.get(class_of(model)):
        writer(model, directory)


# === Sparse encoders ===


def _sparse_embedder(directory, modules):
    """Return the arguments of `BertSparseEmbedder`."""
    kinds = [class_name(module) for module in modules]
    if len(kinds) != 2 or kinds[0] not in _ENCODERS or kinds[1] != _SPLADE:
        raise ValueError(
            f"'{directory}' computes sparse embeddings with {', '.join(kinds)}; kerasbert supports "
            f"only Transformer and {_SPLADE}. Load its encoder with BertMaskedLM and compute them "
            "yourself."
        )
    path = os.path.join(folder_of(directory, modules[1]), "config.json")
    config = read_json(path)
    found = {}
    for ours, (theirs, choices) in _SPLADE_SETTINGS.items():
        found[ours] = config.get(theirs, choices[0])
        if found[ours] not in choices:
            raise ValueError(
                f"'{path}' has {theirs}={found[ours]!r}; expected one of {', '.join(choices)}."
            )
    return found


def write_sparse_modules(embedder, directory):
    """Write a sparse embedder's modules beside the model that `to_huggingface` writes."""
    config = {theirs: getattr(embedder, x) for x, (theirs, _) in _SPLADE_SETTINGS.items()}
    kinds = {"MLMTransformer": None, _SPLADE: config}
    write_module_files(embedder, directory, kinds, "sentence_transformers.sparse_encoder.models")
    config = {"model_type": SPARSE_EMBEDDER, **prompts_config(embedder.preprocessor)}
    write_json(os.path.join(directory, CONFIG), config)


# === Embedders ===


def has_place_for(embedder):
    """Return whether this format can describe an embedder."""
    if embedder.layers_used != "last" or embedder.projection_activation not in _DENSE_ACTIVATIONS:
        return False
    if embedder.has_late_interaction:
        # PyLate always normalizes, and has no `truncate_dim`.
        is_whole = embedder.normalize and embedder.truncate_dim is None
        return is_whole and embedder.preprocessor is not None
    return set(_modes(embedder)) <= set(_POOLINGS)


def _modes(embedder):
    return [embedder.pooling] if isinstance(embedder.pooling, str) else embedder.pooling


def role_tokens(model):
    """Return a ColBERT model's tokens before queries and texts."""
    preprocessor = getattr(model, "preprocessor", None)
    tokens = (getattr(preprocessor, f"{role}_token", "") for role in ("query", "text"))
    return [token for token in tokens if token]


def write_modules(embedder, directory):
    """Write an embedder's modules beside the encoder that `to_huggingface` writes.

    Nothing is written if the format cannot describe the embedder; sentence-transformers then uses
    its defaults.
    """
    if not has_place_for(embedder):
        return
    is_late, modes = embedder.has_late_interaction, _modes(embedder)
    # Every version reads flags, but they have only one order.
    poolings = {flag: mode in modes for flag, mode in _FLAGS.items()}
    if modes != [mode for flag, mode in _FLAGS.items() if poolings[flag]]:
        poolings = {"pooling_mode": modes}
    config = {"word_embedding_dimension": embedder.backbone.hidden_dim, **poolings}
    kinds = {"Transformer": None} | ({} if is_late else {"Pooling": config})
    if embedder.projection is not None:
        kinds["Dense"] = {
            "in_features": embedder.projection.kernel.shape[0],
            "out_features": embedder.projection_dim,
            "bias": embedder.projection_bias,
            "activation_function": _DENSE_ACTIVATIONS[embedder.projection_activation],
        }
    if embedder.normalize and not is_late:
        kinds["Normalize"] = None
    types = {"Dense": "pylate.models.Dense.Dense"} if is_late else {}
    write_module_files(embedder, directory, kinds, "sentence_transformers.models", types)
    if embedder.projection is not None:
        place = list(kinds).index("Dense")
        _write_dense(embedder, os.path.join(directory, f"{place}_Dense"))
    if is_late:
        colbert.write_settings(embedder.preprocessor, directory)
    else:
        config = prompts_config(embedder.preprocessor)
        if embedder.truncate_dim is not None:
            config["truncate_dim"] = embedder.truncate_dim
        if config["prompts"] or "truncate_dim" in config:
            write_json(os.path.join(directory, CONFIG), config)


def _write_dense(embedder, folder):
    from safetensors.numpy import save_file

    weights = embedder.projection.weights
    values = {weight.path: np.asarray(ops.convert_to_numpy(weight)) for weight in weights}
    tensors = named_tensors(values, colbert.PROJECTION, "sentence-transformers")
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})


def _embedder(directory, modules):
    """Return the arguments of `BertTextEmbedder`."""
    if colbert.is_stanfords(directory):
        return {"pooling": "tokens", "normalize": True, "projection_dim": colbert.width(directory)}
    kinds = [class_name(module) for module in modules]
    way_out = "Load its encoder with BertBackbone and compute the embeddings yourself."
    if _SPLADE in kinds:
        way_out = "Load it with BertSparseEmbedder."
    of_tokens = "Pooling" not in kinds
    if not _is_ours(kinds):
        raise ValueError(
            f"'{directory}' computes embeddings with {', '.join(kinds)}; kerasbert supports "
            "Transformer, Pooling, Dense, Normalize, in this order, or only Transformer and Dense. "
            f"{way_out}"
        )
    settings = {"normalize": of_tokens or kinds[-1] == "Normalize"}
    if "Dense" in kinds:
        settings |= _dense(folder_of(directory, modules[kinds.index("Dense")]))
    if of_tokens:
        return {"pooling": "tokens", **settings}
    path = os.path.join(folder_of(directory, modules[1]), "config.json")
    config = read_json(path)
    check_fields(config, _POOLING_FIELDS, path)
    _check_width(directory, modules, config, ("word_embedding_dimension", "embedding_dimension"))
    flags = [mode for flag, mode in _FLAGS.items() if config.get(flag)]
    modes = config.get("pooling_mode")
    if modes is None:
        modes = flags or ["mean"]  # As in sentence-transformers.
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not modes or flags and set(flags) != set(map(str, modes)):
        raise ValueError(
            f"'{path}' has pooling_mode={config['pooling_mode']!r}, which must be a name or a list "
            f"of names and agree with its flags ({', '.join(flags) or 'none'}); remove what the "
            "model was not trained with."
        )
    for mode in modes:
        if mode not in _POOLINGS:
            raise ValueError(
                f"'{path}' has the pooling '{mode}'; expected one of {', '.join(_POOLINGS)}. Load "
                "the encoder with BertBackbone and pool its outputs yourself."
            )
    width = huggingface.read_checkpoint(folder_of(directory, modules[0])).encoder["hidden_dim"]
    width = settings.get("projection_dim") or width * len(modes)
    most = read_config(directory).get("truncate_dim")
    if most is not None and most < width:  # A larger value truncates nothing.
        settings["truncate_dim"] = most
    return {"pooling": modes[0] if len(modes) == 1 else modes, **settings}


def _check_width(directory, modules, config, names):
    """Raise if a module's input width is not the encoder's."""
    encoder = huggingface.read_checkpoint(folder_of(directory, modules[0])).encoder["hidden_dim"]
    for name in names:
        if config.get(name, encoder) != encoder:
            raise ValueError(
                f"'{directory}' has {name}={config[name]} in the configuration of a module, but an "
                f"encoder of width {encoder}; download it again."
            )


def _dense(folder):
    """Return the arguments of `BertTextEmbedder` for its dense layer."""
    path = os.path.join(folder, "config.json")
    config = read_json(path)
    check_fields(config, _DENSE_FIELDS, path)
    if config.get("use_residual"):
        raise ValueError(
            f"'{path}' has use_residual=true, which kerasbert does not support; load the encoder "
            "with BertBackbone and compute the embeddings yourself."
        )
    theirs = str(config.get("activation_function", _DENSE_ACTIVATIONS["tanh"]))
    names = {name.rpartition(".")[2]: ours for ours, name in _DENSE_ACTIVATIONS.items()}
    name = theirs.rpartition(".")[2]
    if name not in names or not theirs.startswith("torch."):
        raise ValueError(
            f"'{path}' has activation_function={theirs!r}; expected one of {', '.join(names)} of "
            "torch. Load the encoder with BertBackbone and compute the embeddings yourself."
        )
    if "out_features" not in config:
        raise ValueError(f"'{path}' has no out_features; download it again.")
    return {
        "projection_dim": config["out_features"],
        "projection_bias": config.get("bias", True),
        "projection_activation": names[name],
    }


def _lowercase(make, directory, **overrides):
    """Make a lowercasing tokenizer, as a directory may require of a cased one."""
    tokenizer = make(**overrides)
    if "lowercase" in overrides or getattr(tokenizer, "lowercase", False):
        return tokenizer
    if not hasattr(tokenizer, "lowercase"):
        raise ValueError(
            f"'{directory}' has do_lower_case=true, which {type(tokenizer).__name__} does not "
            "support; pass preprocessor=None, make a preprocessor with that tokenizer, and give it "
            "lowercase texts."
        )
    settings = {"lowercase": True}
    if hasattr(tokenizer, "strip_accents"):
        # `lowercase` would change the default of strip_accents, so its value is kept.
        settings["strip_accents"] = bool(tokenizer.strip_accents)
    return make(**{**settings, **overrides})
