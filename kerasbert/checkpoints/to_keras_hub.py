"""Export to KerasHub presets, by a KerasHub model with our weights."""

import inspect
import os
import warnings

import keras_hub
from keras import ops

from kerasbert.base.files import write_json
from kerasbert.base.keywords import own_class
from kerasbert.base.parts import encoder_of, head_weights
from kerasbert.checkpoints import keras_hub as keras_hub_format
from kerasbert.checkpoints.writing import (
    canonical,
    check_settings,
    head_kind,
    named_tensors,
    values_of,
)
from kerasbert.families import FAMILIES, KERAS_HUB
from kerasbert.kinds import KINDS
from kerasbert.text.packing import TRUNCATE
from kerasbert.text.sentence_piece_families import XLMRobertaTokenizer, original_order

# Arguments with other names in KerasHub.
ARGUMENTS = {"vocab_size": "vocabulary_size"}


def write(model, tokenizer, directory, max_shard_size=None):
    """Write a KerasHub preset.

    Args:
        model: one of our encoders or tasks.
        tokenizer: one of our tokenizers, or `None`.
        directory: an empty directory.
        max_shard_size: maximum size of a file of weights in GB.

    Returns:
        `(name, settings)`: KerasHub's class, and the settings that differ from the model's.

    Raises:
        ValueError: if KerasHub cannot hold the model, before weights are written.
    """
    encoder, kind = encoder_of(model), head_kind(model)
    family = encoder.family
    prefix = _prefix(family)
    their_tokenizer = None if tokenizer is None else _tokenizer(tokenizer, family, prefix)
    settings, values = own_class(type(encoder)).get_config(encoder), values_of(encoder.weights)
    changed = _fold_rows(settings, values, family)
    their_class = getattr(keras_hub.models, f"{prefix}Backbone")
    names = inspect.signature(their_class.__init__).parameters
    arguments = {name: settings.get(ARGUMENTS.get(name, name)) for name in names}
    arguments = {x: value for x, value in arguments.items() if value is not None and x != "dtype"}
    for name, ours in (("embedding_dim", "hidden_dim"), ("num_groups", "num_layers")):
        if name in names:
            arguments.setdefault(name, settings[ours])
    described = {"registered_name": f"keras_hub>{prefix}Backbone", "config": arguments}
    write_json(os.path.join(directory, "config.json"), described)
    found = keras_hub_format.read_checkpoint(directory)
    remedy = "Change them with encoder={...} if that is intended"
    if not settings["pooler"] and found.encoder.get("pooler", family != "distilbert"):
        raise ValueError(
            f"KerasHub's {prefix}Backbone has a pooler, but this model has none; nothing was "
            "written. Use format='huggingface' or 'kerasbert'."
        )
    check_settings(
        {**canonical(settings, encoder), "pooler": settings["pooler"]},
        {
            **canonical(found.encoder, encoder),
            "pooler": found.encoder.get("pooler", settings["pooler"]),
        },
        f"KerasHub's {prefix}Backbone",
        f"{remedy} (the other form of GELU moves outputs by up to 1e-3), or use "
        "format='huggingface'.",
    )
    their_model = their_class(**arguments, dtype="float32")
    tensors = named_tensors(values, found.encoder_map, f"KerasHub's {prefix}Backbone")
    _assign(their_model, tensors, f"{prefix}Backbone")
    if kind is not None:
        their_model = _task(model, kind, prefix, their_model, their_tokenizer, found)
    their_model.save_to_preset(directory, max_shard_size=max_shard_size or 10)
    if their_tokenizer is not None:
        their_tokenizer.save_to_preset(directory)
    return type(their_model).__name__, changed


def _prefix(family):
    if family in KERAS_HUB:
        return KERAS_HUB[family].classes
    raise ValueError(
        f"KerasHub has no {family}; it has {', '.join(KERAS_HUB)}. Use "
        "format='huggingface' or 'kerasbert'."
    )


def _fold_rows(settings, values, family):
    """Remove embedding rows that KerasHub lacks, if outputs stay equal.

    KerasHub's RoBERTa has no rows before the first position, and no segments. A single segment's
    embedding is added to every position.

    Returns:
        The changed settings.
    """
    fixed = KERAS_HUB[family].settings
    path = "position_embedding/embeddings"
    changed = {}
    if fixed.get("position_offset") == 0 and settings["position_offset"]:
        values[path] = values[path][settings["position_offset"] :]
        changed["position_offset"] = 0
    if fixed.get("num_segments") == 0 and settings["num_segments"] == 1:
        values[path] = values[path] + values.pop("segment_embedding/embeddings")
        changed["num_segments"] = 0
    settings.update(changed)
    return changed


def _assign(their_model, tensors, name, weights=None, prefix=""):
    """Assign our tensors to KerasHub's variables, with axes for heads."""
    weights = their_model.weights if weights is None else weights
    variables = {prefix + w.path: w for w in weights}
    missing = sorted(variables.keys() - tensors.keys())
    left = sorted(tensors.keys() - variables.keys())
    if missing or left:
        raise ValueError(
            f"KerasHub's {name} has other weights. It lacks {', '.join(left) or 'none'}; this "
            f"model lacks {', '.join(missing) or 'none'}. Use format='huggingface' or 'kerasbert'."
        )
    for path, variable in variables.items():
        variable.assign(ops.reshape(tensors[path], variable.shape))


def _task(model, kind, prefix, backbone, tokenizer, checkpoint):
    """Make KerasHub's task with our head's weights."""
    name = f"{prefix}{KINDS[kind].keras_hub or '?'}"
    head_map = checkpoint.head_maps.get(kind)
    if head_map is None or not hasattr(keras_hub.models, name):
        raise ValueError(
            f"kerasbert writes no task of KerasHub for the head '{kind}' on {checkpoint.family}; "
            "convert the encoder alone with task='encoder', or use format='huggingface'."
        )
    tensors = named_tensors(values_of(head_weights(model)), head_map, f"KerasHub's {name}")
    cls = getattr(keras_hub.models, name)
    config, names = model.get_config(), inspect.signature(cls.__init__).parameters
    arguments = {
        key: config[key]
        for key in ("num_classes", "dropout", "activation")
        if key in names and config.get(key) is not None
    }
    if "num_classes" in names and "num_classes" not in arguments:
        arguments["num_classes"] = 1
        warnings.warn(
            f"KerasHub has no regressor: this is a {name} of one class; compile it there with "
            "loss='mse'.",
            stacklevel=5,
        )
    preprocessor = None
    if tokenizer is not None:
        ours = model.preprocessor
        is_second = ours is not None and TRUNCATE[ours.truncate] == "only_second"
        settings = (
            {}
            if ours is None
            else {
                "sequence_length": ours.sequence_length,
                "truncate": "waterfall" if is_second else "round_robin",
                "add_start_token": getattr(ours, "add_start_token", None),
                "add_end_token": getattr(ours, "add_end_token", None),
            }
        )
        names = inspect.signature(cls.preprocessor_cls.__init__).parameters
        settings = {name: x for name, x in settings.items() if name in names}
        preprocessor = cls.preprocessor_cls(tokenizer, **settings)
    task = cls(backbone, preprocessor=preprocessor, dtype="float32", **arguments)
    _assign(task, tensors, name, head_weights(task), keras_hub_format._PREFIX)
    return task


def _tokenizer(tokenizer, family, prefix):
    """Make KerasHub's tokenizer with the same vocabulary."""
    cls = getattr(keras_hub.tokenizers, f"{prefix}Tokenizer")
    base = FAMILIES[family].tokenizer.removesuffix("Tokenizer")
    name = type(tokenizer).__name__
    special = [getattr(tokenizer, f"{role}_token", None) for role in ("cls", "sep", "pad", "mask")]
    usual = ["[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    if base in ("Roberta", "XLMRoberta"):
        usual = ["<s>", "</s>", "<pad>", "<mask>"]
    elif base == "Albert":
        usual[2] = "<pad>"
    elif base == "GPT2":
        usual = 4 * ["<|endoftext|>"]
    if name != f"{base}Tokenizer" or special != usual:
        raise ValueError(
            f"KerasHub's {cls.__name__} cannot hold this {name} with the special tokens "
            f"{', '.join(special)}; convert with tokenizer=False, or use format='huggingface'."
        )
    found = [t["content"] for t in tokenizer.added_tokens if not tokenizer._is_control(t)]
    found += tokenizer.markers()
    if found:
        raise ValueError(
            f"KerasHub's {cls.__name__} does not look for added tokens in texts, and this "
            "tokenizer finds "
            f"{', '.join(map(repr, found[:3]))}{', ...' if len(found) > 3 else ''}; convert with "
            "tokenizer=False, or use format='huggingface'."
        )
    for setting in ("normalize", "split_on"):
        value = getattr(tokenizer, setting, None)
        if value:
            raise ValueError(
                f"The tokenizer has {setting}={value!r}, and KerasHub's {cls.__name__} has no such "
                "setting; convert with tokenizer=False, or use format='huggingface'."
            )
    if base == "GPT2":
        vocabulary = {token: id for id, token in enumerate(tokenizer.get_vocabulary())}
        return cls(vocabulary, list(tokenizer.merges))
    if base == "Bert":
        accents = tokenizer.strip_accents
        accents = tokenizer.lowercase if accents is None else accents
        return cls(
            list(tokenizer.get_vocabulary()),
            lowercase=tokenizer.lowercase,
            strip_accents=bool(accents),
            split_on_cjk=tokenizer.split_on_cjk,
            oov_token=tokenizer.unk_token,
            special_tokens_in_strings=tokenizer.special_tokens_in_strings,
        )
    if base == "Roberta":
        vocabulary = {token: id for id, token in enumerate(tokenizer.get_vocabulary())}
        # By default, KerasHub recognizes all special tokens in texts.
        found = tokenizer.special_tokens if tokenizer.special_tokens_in_strings else []
        return cls(vocabulary, list(tokenizer.merges), unsplittable_tokens=found)
    if tokenizer.special_tokens_in_strings:
        raise ValueError(
            f"KerasHub's {cls.__name__} does not find special tokens in texts, but this tokenizer "
            "does (special_tokens_in_strings=True); convert with tokenizer=False, or use "
            "format='huggingface'."
        )
    proto = tokenizer.proto
    if isinstance(tokenizer, XLMRobertaTokenizer):
        proto = original_order(tokenizer)
        if proto is None:
            raise ValueError(
                "The pieces of this XLMRobertaTokenizer are not in the order that KerasHub's ids "
                "require; convert with tokenizer=False, or use format='huggingface'."
            )
    return cls(proto)
