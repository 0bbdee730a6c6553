"""Read and write the directories of sentence-transformers.

They hold a Hugging Face encoder with the modules that pool its outputs to embeddings, a
cross-encoder (a Hugging Face classifier of one label), a sparse encoder (a masked language model
with SPLADE pooling), or a ColBERT model of PyLate or Stanford.

Source: `sentence-transformers` 6.2 and the files of its earlier versions.
"""

import collections
import dataclasses
import functools
import os
import warnings

import numpy as np
from keras import ops

from kerasbert.base.errors import check_fields
from kerasbert.base.files import inside, json_in, read_json, write_json
from kerasbert.checkpoints import colbert, huggingface
from kerasbert.checkpoints.checkpoint import TensorFiles
from kerasbert.checkpoints.writing import named_tensors

# One flag per pooling, in the order in which several are concatenated; later versions write names.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_CONFIG = colbert.PYLATE  # PyLate writes into the same file.
# Names in these files for the role of searched texts; ours is the first.
_TEXT_ROLES = ("text", "document", "passage", "corpus")
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
# Prompts are prefixes of texts; `activation_fn` is applied to logits.
_CONFIG_FIELDS = {
    "prompts": "texts?",
    "default_prompt_name": "name?",
    "activation_fn": "name?",
    "model_type": "name?",
    "truncate_dim": "count?",
}
# Keras' names of the activations of a dense layer.
_DENSE_ACTIVATIONS = {
    "tanh": "torch.nn.modules.activation.Tanh",
    "relu": "torch.nn.modules.activation.ReLU",
    "gelu": "torch.nn.modules.activation.GELU",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    None: "torch.nn.modules.linear.Identity",
}
# Before version 5.4, masked language models had a module class of their own.
_ENCODERS = ("Transformer", "MLMTransformer")
_SPLADE = "SpladePooling"
# First modules of models that encode queries and texts differently or by a table alone.
_SEVERAL = ("Router", "SparseStaticEmbedding")
# Our settings of a sparse embedder: their name and the allowed values, the default first.
_SPLADE_SETTINGS = {
    "pooling": ("pooling_strategy", ("max", "sum")),
    "activation": ("activation_function", ("relu", "log1p_relu")),
}
# Our names of the activations of a cross-encoder's logits.
_ACTIVATIONS = {
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "linear": "torch.nn.modules.linear.Identity",
}
# Keys of `config.json` with that activation, since version 4 and before.
_SINCE_4, _BEFORE_4 = "sentence_transformers", "sbert_ce_default_activation_function"
# setfit stores a scikit-learn head as a pickle.
_SETFIT_HEAD = "model_head.pkl"
_SETFIT_REFUSAL = (
    "'{}' keeps the head of setfit in model_head.pkl, a pickle, which could run any code and is "
    "never opened; load the encoder with BertTextEmbedder, or train a new head with "
    "kerasbert.finetune(..., method='frozen') on the labeled texts."
)
# The settings file of the encoder's module has a name for each model type.
_TRANSFORMER_SETTINGS = [
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
# Further settings in it that change the encoder's inputs.
_REFUSED = (
    *("processing_kwargs", "processor_kwargs", "tokenizer_args", "config_kwargs", "config_args"),
    *("query_length", "document_length", "query_expansion"),
)


def is_mine(directory):
    """Return whether a directory has one of these formats, supported or not."""
    if not _has_modules(directory):
        return is_cross_encoder(directory) or colbert.is_stanfords(directory)
    return _kind(_modules(directory)[0]) in (*_ENCODERS, *_SEVERAL)


def is_cross_encoder(directory):
    """Return whether a directory holds a cross-encoder, which scores pairs without embeddings."""
    if _has_modules(directory):
        config = json_in(directory, _CONFIG)
        return config.get("model_type") == "CrossEncoder"
    return not {_SINCE_4, _BEFORE_4}.isdisjoint(json_in(directory, "config.json"))


def is_sparse(directory):
    """Return whether a directory holds a sparse encoder."""
    return _has_modules(directory) and _SPLADE in map(_kind, _modules(directory))


def _has_modules(directory):
    return os.path.exists(os.path.join(directory, "modules.json"))


def read_checkpoint(directory):
    """Describe the checkpoint in a directory: its encoder's, with the settings of the modules.

    Returns:
        A `Checkpoint`.

    Raises:
        ValueError: as for a Hugging Face directory, or if the list of modules is broken or has no
            encoder that both queries and texts share.
    """
    alone = [{"path": "", "type": "Transformer"}]
    modules = _modules(directory) if _has_modules(directory) else alone
    if _kind(modules[0]) in _SEVERAL:
        raise ValueError(
            f"'{directory}' begins with {_kind(modules[0])}, which encodes queries and texts "
            "differently, but kerasbert has one encoder for both; load one of its encoders by its "
            "folder."
        )
    folder = _path(directory, modules[0])
    checkpoint = huggingface.read_checkpoint(folder)
    found = ((json_in(folder, name), name) for name in _TRANSFORMER_SETTINGS)
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
    kind, read, refused = "text_embedder", _embedder, checkpoint.refused
    reading, more = {"sequence_length": length}, {}
    dense = _dense_folder(directory, modules)
    if is_cross_encoder(directory):
        kind, read = "reranker", _reranker
        refusal = _no_reranker(directory, modules)
        refused = {kind: refusal, **refused} if refusal else refused
    elif is_sparse(directory):
        kind, read = "sparse_embedder", _sparse_embedder
        checkpoint.head["text_embedder"] = functools.partial(_embedder, directory, modules)
    elif dense is not None:
        tensors = checkpoint.tensors
        if dense != folder:
            tensors = _Joined(tensors, TensorFiles(dense))
        more = {
            "tensors": tensors,
            "head_maps": {**checkpoint.head_maps, kind: colbert.PROJECTION},
            "is_head": lambda name: name.startswith("linear.") or checkpoint.is_head(name),
        }
        if not any(_kind(module) == "Pooling" for module in modules):
            longest = checkpoint.encoder["max_sequence_length"]
            reading = colbert.read_settings(directory, longest)
    if os.path.exists(os.path.join(directory, _SETFIT_HEAD)):
        refused = {**refused, "text_classifier": _SETFIT_REFUSAL.format(directory)}
    head = functools.partial(read, directory, modules)
    if any(_kind(module) in ("Pooling", _SPLADE) for module in modules):
        reading = {**reading, **_prompts(directory, modules)}
    return dataclasses.replace(
        checkpoint,
        source=directory,
        head={**checkpoint.head, kind: head},
        preprocessor={kind: reading},
        # The maximum length of texts to embed does not limit a new head.
        longest=None if kind == "text_embedder" else checkpoint.longest,
        tokenizer=make,
        refused=refused,
        **more,
    )


class _Joined(collections.ChainMap):
    """The tensors of an encoder and those of a dense layer in another folder."""

    def shape(self, name):
        return next(part.shape(name) for part in self.maps if name in part)

    def size(self):
        return sum(part.size() for part in self.maps)


def _dense_folder(directory, modules):
    """Return the folder with a dense layer's weights, `None` without a supported one."""
    if not _has_modules(directory):
        return directory if colbert.is_stanfords(directory) else None
    kinds = [_kind(module) for module in modules]
    if "Dense" not in kinds or not _is_ours(kinds):
        return None
    return _path(directory, modules[kinds.index("Dense")])


def _is_ours(kinds):
    """Return whether an embedder supports modules of these kinds in this order."""
    in_order = [kind for kind in ("Transformer", "Pooling", "Dense", "Normalize") if kind in kinds]
    return kinds == ["Transformer", "Dense"] or kinds == in_order and kinds[1:2] == ["Pooling"]


# === Cross-encoders ===


def cross_encoder_config(reranker):
    """Return a reranker's keys of `config.json` for sentence-transformers 4 and later."""
    return {_SINCE_4: {"activation_fn": _ACTIVATIONS[reranker.activation]}}


def _activation(directory, modules):
    """Return the activation of the logits: our name, `None` if unsupported, and theirs."""
    config = json_in(_path(directory, modules[0]), "config.json")
    found = (
        json_in(directory, _CONFIG).get("activation_fn"),
        (config.get(_SINCE_4) or {}).get("activation_fn"),
        config.get(_BEFORE_4),
    )
    theirs = str(next((name for name in found if name is not None), _ACTIVATIONS["sigmoid"]))
    # The module path of the classes may change between versions.
    names = {path.rpartition(".")[2]: ours for ours, path in _ACTIVATIONS.items()}
    is_torchs = theirs.startswith("torch.")
    return names.get(theirs.rpartition(".")[2]) if is_torchs else None, theirs


def _reranker(directory, modules):
    """Return the arguments of `BertReranker`."""
    _warn_of_prompt(directory)
    ours, _ = _activation(directory, modules)
    return {} if ours is None else {"activation": ours}


def _no_reranker(directory, modules):
    """Return why the checkpoint cannot be a `BertReranker`, as a sentence; `None` if it can."""
    if len(modules) > 1:
        return (
            f"'{directory}' scores pairs with {', '.join(map(_kind, modules))}; kerasbert supports "
            "only Transformer. Load its encoder with BertBackbone and compute the scores yourself."
        )
    ours, theirs = _activation(directory, modules)
    if ours is None:
        return (
            f"'{directory}' turns logits into scores with {theirs!r}, but a BertReranker only with "
            "Sigmoid or Identity; load it with BertTextRegressor, whose score() returns the logits."
        )
    return None


# === Sparse encoders ===


def _sparse_embedder(directory, modules):
    """Return the arguments of `BertSparseEmbedder`."""
    kinds = [_kind(module) for module in modules]
    if len(kinds) != 2 or kinds[0] not in _ENCODERS or kinds[1] != _SPLADE:
        raise ValueError(
            f"'{directory}' computes sparse embeddings with {', '.join(kinds)}; kerasbert supports "
            f"only Transformer and {_SPLADE}. Load its encoder with BertMaskedLM and compute them "
            "yourself."
        )
    path = os.path.join(_path(directory, modules[1]), "config.json")
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
    _write_modules(embedder, directory, kinds, "sentence_transformers.sparse_encoder.models")
    config = {"model_type": "SparseEncoder", **_prompts_config(embedder.preprocessor)}
    write_json(os.path.join(directory, _CONFIG), config)


# === Embedders ===


def has_place_for(embedder):
    """Return whether these directories can describe how an embedder computes its embeddings."""
    if embedder.layers_used != "last" or embedder.projection_activation not in _DENSE_ACTIVATIONS:
        return False
    if embedder.has_late_interaction:
        # PyLate always normalizes and cannot store truncate_dim.
        is_whole = embedder.normalize and embedder.truncate_dim is None
        return is_whole and embedder.preprocessor is not None
    return set(_modes(embedder)) <= set(_POOLINGS)


def _modes(embedder):
    return [embedder.pooling] if isinstance(embedder.pooling, str) else embedder.pooling


def role_tokens(model):
    """Return the tokens that a ColBERT model puts before queries and texts."""
    preprocessor = getattr(model, "preprocessor", None)
    tokens = (getattr(preprocessor, f"{role}_token", "") for role in ("query", "text"))
    return [token for token in tokens if token]


def write_modules(embedder, directory):
    """Write an embedder's modules beside the encoder that `to_huggingface` writes.

    Nothing is written if these files cannot describe it; readers then apply their defaults.
    """
    if not has_place_for(embedder):
        return
    is_late, modes = embedder.has_late_interaction, _modes(embedder)
    # Every version reads the flags, but they only express one order.
    poolings = {flag: mode in modes for flag, mode in _FLAGS.items()}
    if modes != [mode for flag, mode in _FLAGS.items() if poolings[flag]]:
        poolings = {"pooling_mode": modes}
    config = {"word_embedding_dimension": embedder.backbone.hidden_dim, **poolings}
    kinds = {"Transformer": None} | ({} if is_late else {"Pooling": config})
    if embedder.projection is not None:
        kinds["Dense"] = _dense_config(embedder)
    if embedder.normalize and not is_late:
        kinds["Normalize"] = None
    types = {"Dense": "pylate.models.Dense.Dense"} if is_late else {}
    _write_modules(embedder, directory, kinds, "sentence_transformers.models", types)
    if embedder.projection is not None:
        place = list(kinds).index("Dense")
        _write_dense(embedder, os.path.join(directory, f"{place}_Dense"))
    if is_late:
        colbert.write_settings(embedder.preprocessor, directory)
    else:
        config = _prompts_config(embedder.preprocessor)
        if embedder.truncate_dim is not None:
            config["truncate_dim"] = embedder.truncate_dim
        if config["prompts"] or "truncate_dim" in config:
            write_json(os.path.join(directory, _CONFIG), config)


def _write_modules(embedder, directory, kinds, package, types=None):
    """Write `modules.json` and the modules, given as a dict of class to config or `None`."""
    types = {kind: f"{package}.{kind}" for kind in kinds} | (types or {})
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": "" if i == 0 else f"{i}_{kind}",
            "type": types[kind],
        }
        for i, kind in enumerate(kinds)
    ]
    for module, config in zip(modules[1:], [*kinds.values()][1:], strict=True):
        folder = os.path.join(directory, module["path"])
        os.mkdir(folder)
        if config is not None:
            write_json(os.path.join(folder, "config.json"), config)
    most = embedder.backbone.max_sequence_length
    length = getattr(embedder.preprocessor, "sequence_length", most)
    # Lowercasing is left to the tokenizer's own setting.
    settings = {"max_seq_length": length, "do_lower_case": False}
    write_json(os.path.join(directory, "modules.json"), modules)
    write_json(os.path.join(directory, _TRANSFORMER_SETTINGS[0]), settings)


def _write_dense(embedder, folder):
    from safetensors.numpy import save_file

    weights = embedder.projection.weights
    values = {weight.path: np.asarray(ops.convert_to_numpy(weight)) for weight in weights}
    tensors = named_tensors(values, colbert.PROJECTION, "sentence-transformers")
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})


def _dense_config(embedder):
    return {
        "in_features": embedder.projection.kernel.shape[0],
        "out_features": embedder.projection_dim,
        "bias": embedder.projection_bias,
        "activation_function": _DENSE_ACTIVATIONS[embedder.projection_activation],
    }


def _modules(directory):
    path = os.path.join(directory, "modules.json")
    modules = read_json(path, list)
    try:
        modules = sorted(modules, key=lambda module: module["idx"])
        if not all(isinstance(module[key], str) for module in modules for key in ("path", "type")):
            raise TypeError("a path or type is not a string")
        if not modules:
            raise TypeError("it is empty")
        return modules
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"'{path}' is not a list of modules ({error!r}); download it again."
        ) from error


def _kind(module):
    """Return a module's class name without its path, which differs between versions."""
    return module["type"].rpartition(".")[2]


def _path(directory, module):
    source = os.path.join(directory, "modules.json")
    path = module["path"]
    return inside(directory, path, source, nested=True) if path else directory


def _embedder(directory, modules):
    """Arguments of `BertTextEmbedder`."""
    if colbert.is_stanfords(directory):
        return {"pooling": "tokens", "normalize": True, "projection_dim": colbert.width(directory)}
    kinds = [_kind(module) for module in modules]
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
        settings |= _dense(_path(directory, modules[kinds.index("Dense")]))
    if of_tokens:
        return {"pooling": "tokens", **settings}
    path = os.path.join(_path(directory, modules[1]), "config.json")
    config = read_json(path)
    check_fields(config, _POOLING_FIELDS, path)
    _check_width(directory, modules, config, ("word_embedding_dimension", "embedding_dimension"))
    flags = [mode for flag, mode in _FLAGS.items() if config.get(flag)]
    modes = config.get("pooling_mode")
    if modes is None:
        modes = flags or ["mean"]  # As sentence-transformers reads flags that are all false.
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
    width = huggingface.read_checkpoint(_path(directory, modules[0])).encoder["hidden_dim"]
    width = settings.get("projection_dim") or width * len(modes)
    most = _config(directory).get("truncate_dim")
    if most is not None and most < width:  # A larger value truncates nothing.
        settings["truncate_dim"] = most
    return {"pooling": modes[0] if len(modes) == 1 else modes, **settings}


def _check_width(directory, modules, config, names):
    """Raise if a module is configured for inputs of another width than the encoder's."""
    encoder = huggingface.read_checkpoint(_path(directory, modules[0])).encoder["hidden_dim"]
    for name in names:
        if config.get(name, encoder) != encoder:
            raise ValueError(
                f"'{directory}' has {name}={config[name]} in the configuration of a module, but an "
                f"encoder of width {encoder}; download it again."
            )


def _dense(folder):
    """Return the arguments of `BertTextEmbedder` that describe its dense layer."""
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


def _config(directory):
    config = json_in(directory, _CONFIG)
    check_fields(config, _CONFIG_FIELDS, os.path.join(directory, _CONFIG))
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ValueError(
            f"'{os.path.join(directory, _CONFIG)}' has default_prompt_name={default!r}, which is "
            f"not one of its prompts ({', '.join(prompts) or 'it has none'}); set it to one of "
            "them or to null."
        )
    return config


def _warn_of_prompt(directory):
    config = _config(directory)
    prompt = (config.get("prompts") or {}).get(config.get("default_prompt_name"))
    if prompt:
        warnings.warn(
            f"'{directory}' puts the prompt {prompt!r} before each text, but kerasbert does not; "
            "add it to your texts.",
            stacklevel=6,
        )


def _prompts(directory, modules):
    """Return the preprocessor's prompts by role and the default role."""
    config = _config(directory)
    prompts = {role: prompt for role, prompt in (config.get("prompts") or {}).items() if prompt}
    if not prompts:
        return {}
    pooling = [module for module in modules if _kind(module) == "Pooling"]
    pooling = pooling and json_in(_path(directory, pooling[0]), "config.json")
    if pooling and not pooling.get("include_prompt", True):
        warnings.warn(
            f"'{directory}' has prompts that are left out of pooling (include_prompt=false), which "
            "kerasbert does not support; it is loaded without them.",
            stacklevel=6,
        )
        return {}
    role = config.get("default_prompt_name")
    theirs = next((name for name in _TEXT_ROLES if name in prompts), None)
    if theirs:
        prompts = {"text" if name == theirs else name: x for name, x in prompts.items()}
        role = "text" if role == theirs else role
    return {"prompts": prompts, "role": role if role in prompts else None}


def _prompts_config(preprocessor):
    """Return the settings for the prompts of a preprocessor or `None`."""
    prompts, role = getattr(preprocessor, "prompts", {}), getattr(preprocessor, "role", None)
    names = {"text": _TEXT_ROLES[1]}
    return {
        "prompts": {names.get(name, name): prompt for name, prompt in prompts.items()},
        "default_prompt_name": names.get(role, role) if prompts else None,
    }


def _lowercase(make, directory, **overrides):
    """Make a tokenizer that lowercases first, as these directories can require of a cased one."""
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
        # `lowercase` would change the default of strip_accents, so the current value is kept.
        settings["strip_accents"] = bool(tokenizer.strip_accents)
    return make(**{**settings, **overrides})
