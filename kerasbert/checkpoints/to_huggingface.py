"""Export to Hugging Face checkpoints, by the reader's tables.

Source: `transformers` 5.23.
"""

import os
import warnings

import numpy as np

from kerasbert.base.files import write_files, write_json
from kerasbert.base.keywords import own_class
from kerasbert.base.parts import encoder_of, head_weights, tells_segments
from kerasbert.checkpoints import huggingface, sentence_transformers
from kerasbert.checkpoints.cross_encoders import cross_encoder_config
from kerasbert.checkpoints.huggingface import ALL_TABLES
from kerasbert.checkpoints.lineage import split_heads
from kerasbert.checkpoints.sentence_transformers import EMBEDDER, RERANKER, has_place_for
from kerasbert.checkpoints.writing import (
    SAME_ACTIVATIONS,
    canonical,
    check_settings,
    head_kind,
    named_tensors,
    values_of,
)
from kerasbert.families.transformers_names import ACTIVATIONS, name_of
from kerasbert.kinds import kind_of
from kerasbert.text.transformers_files import transformers_files

REMEDY = "Change the setting with encoder={...}, or use format='kerasbert'."


def architecture(family, kind):
    """Return the class name in transformers for a family and a kind of head.

    >>> architecture("roberta", "text_classifier")
    'RobertaForSequenceClassification'

    Raises:
        ValueError: if transformers has no such class.
    """
    table = ALL_TABLES[family]
    if not table.has_class(kind):
        raise ValueError(
            f"transformers has no class for the head '{kind}' alone on {family}; convert the "
            "encoder alone with task='encoder', or use format='kerasbert'."
        )
    return table.class_of(kind)


def write(model, tokenizer, directory, max_shard_size=None, token_ids=None):
    """Write a model as transformers saves it, and an embedder as sentence-transformers does.

    Args:
        model: an encoder or a task.
        tokenizer: a tokenizer, or `None`.
        directory: an empty directory.
        max_shard_size: maximum size of a weight file in GB.
        token_ids: dict. The `token_ids` of a `Checkpoint`, without a tokenizer.

    Returns:
        `(architecture, settings)`: the class in transformers, and encoder settings changed to fit
        it.

    Raises:
        ValueError: if transformers cannot hold the model, before weights are written.
    """
    encoder, kind = encoder_of(model), _kind_there(model)
    family = encoder.family
    name = architecture(family, kind)
    settings = own_class(type(encoder)).get_config(encoder)
    weights = _without_pooler(model, encoder.weights, name, kind)
    values, head = values_of(weights), values_of(head_weights(model))
    changed = _fill_rows(settings, values, family, tokenizer)
    config = config_of(model, settings, tokenizer, token_ids)
    write_json(os.path.join(directory, "config.json"), config)
    table = ALL_TABLES[family]
    if kind is not None and table.generation is not None:
        path = os.path.join(directory, "generation_config.json")
        write_json(path, table.generation(model, config))
    if tokenizer is not None:
        files = transformers_files(
            tokenizer,
            family,
            _longest(model, settings),
            tells_segments(model),
            finds_special=hasattr(model, "fill_mask"),
            also=sentence_transformers.role_tokens(model),
        )
        write_files(directory, files)
    checkpoint = huggingface.read_checkpoint(directory)
    check_settings(
        canonical(settings, encoder), canonical(checkpoint.encoder, encoder), name, REMEDY
    )
    tensors = named_tensors(values, checkpoint.encoder_map, name)
    tensors = table.fixed(settings) | split_heads(tensors, table, settings["num_heads"])
    if kind is not None:
        tensors = {table.prefix + key: value for key, value in tensors.items()}
        for key, value in named_tensors(head, checkpoint.head_maps.get(kind), name).items():
            tensors[(table.prefix if key.startswith(table.inside) else "") + key] = value
        if not getattr(model, "tie_weights", True) and table.decoder:
            # transformers has this bias twice, and uses the decoder's.
            bias = table.of_head("masked_lm")["mlm_head"] + ".bias"
            tensors[bias] = tensors[table.decoder + ".bias"]
    _save(tensors, directory, max_shard_size)
    sentence_transformers.write(model, directory)
    return name, changed


def _kind_there(model):
    """Return the kind of head in transformers; `None` for an embedder, whose projection is in
    another folder.
    """
    kind = head_kind(model)
    is_apart = sentence_transformers.class_of(model) == EMBEDDER and has_place_for(model)
    return None if is_apart else kind


def config_of(model, settings, tokenizer, token_ids=None):
    """Return the `config.json` of a model.

    Args:
        model: an encoder or a task.
        settings: dict. The settings of its encoder.
        tokenizer: a tokenizer, or `None`.
        token_ids: dict. See `write`.

    Raises:
        ValueError: for a head or a setting that transformers does not have.
    """
    encoder, kind = encoder_of(model), _kind_there(model)
    family = encoder.family
    # An encoder's config omits defaults.
    settings = {**{name: getattr(encoder, name) for name in encoder.setting_names}, **settings}
    config = {"architectures": [architecture(family, kind)], **_encoder_config(settings, family)}
    ids = _token_ids(tokenizer, config, family, token_ids)
    no_id = ALL_TABLES[family].no_id
    config |= {key: no_id if id is None else id for key, id in ids.items()}
    config |= _class_config(model)
    config |= _head_config(model, kind, config, family)
    if kind is not None:
        config |= ALL_TABLES[family].write_head(model)
    return {**config, "dtype": "float32"}


def _without_pooler(model, weights, name, kind):
    """Return the encoder's weights, without a pooler that transformers lacks."""
    encoder = encoder_of(model)
    has_pooler = kind in ALL_TABLES[encoder.family].poolers
    if has_pooler == encoder.pooler:
        return weights
    if has_pooler and kind is None:
        warnings.warn(
            f"{name} of transformers has a pooler, but this encoder has none: load it there with "
            "add_pooling_layer=False.",
            stacklevel=6,
        )
        return weights
    if has_pooler:
        raise ValueError(
            f"{name} of transformers has a pooler, but this model has none; convert the encoder "
            "alone with task='encoder', or use format='kerasbert'."
        )
    if kind is None:
        raise ValueError(
            f"{name} of transformers has no pooler, so pooled_output would be lost; pass "
            "encoder={'pooler': False} to drop it."
        )
    warnings.warn(
        f"{name} of transformers has no pooler: {encoder.pooled_dense.name} is dropped; the "
        "outputs do not depend on it.",
        stacklevel=6,
    )
    inner = {id(weight) for weight in encoder.pooled_dense.weights}
    return [weight for weight in weights if id(weight) not in inner]


def _fill_rows(settings, values, family, tokenizer):
    """Add zero rows that embedding tables have in transformers.

    For example, KerasHub's RoBERTa lacks segments and rows before the first position.

    Returns:
        The changed settings.
    """
    changed = {}
    table = ALL_TABLES[family]
    has_segments = "segment_embedding" in table.encoder and not table.may_lack_segments
    if has_segments and not settings["num_segments"]:
        width = settings["embedding_dim"] or settings["hidden_dim"]
        values["segment_embedding/embeddings"] = np.zeros((1, width), "float32")
        changed["num_segments"] = 1
    if table.starts_at_padding and not settings["position_offset"]:
        offset = 2 if tokenizer is None else tokenizer.pad_token_id + 1
        path = "position_embedding/embeddings"
        values[path] = np.pad(values[path], ((offset, 0), (0, 0)))
        changed["position_offset"] = offset
    settings.update(changed)
    return changed


def _encoder_config(settings, family):
    """Return the config for an encoder's settings; the reverse of reading it."""
    table = ALL_TABLES[family]
    config = {"model_type": table.model_type or family.replace("_", "-")}
    config |= {key: settings[ours] for ours, (key, _) in table.config.items()}
    if "activation" in table.config:
        config[table.config["activation"][0]] = _activation(settings["activation"])
    if "embedding_size" in config:
        config["embedding_size"] = settings["embedding_dim"] or settings["hidden_dim"]
    if "num_hidden_groups" in config:
        config["num_hidden_groups"] = settings["num_groups"] or settings["num_layers"]
    if table.starts_at_padding:
        config["max_position_embeddings"] += settings["position_offset"]
        config["pad_token_id"] = settings["position_offset"] - 1
    return config | table.write(settings)


def _activation(name):
    theirs = name_of(SAME_ACTIVATIONS.get(name, name))
    if theirs not in ACTIVATIONS:
        raise ValueError(
            f"transformers has no activation '{name}'; use one of "
            f"{', '.join(sorted(set(ACTIVATIONS.values())))}. {REMEDY}"
        )
    return theirs


def _token_ids(tokenizer, config, family, known):
    """Return the ids of special tokens.

    Without a tokenizer, these are the `known` ids, or `None` where transformers' defaults may be
    outside the vocabulary.
    """
    table = ALL_TABLES[family]
    if tokenizer is None and known is not None:
        # RoBERTa's padding id defines where positions begin and is already in the config.
        return {key: id for key, id in known.items() if key not in config}
    if tokenizer is None:
        ids = dict.fromkeys(table.token_ids)
        return ids | {key: config[key] for key in ("pad_token_id",) if key in config}
    if config.get("pad_token_id", tokenizer.pad_token_id) != tokenizer.pad_token_id:
        raise ValueError(
            f"transformers counts RoBERTa's positions from pad_token_id + 1: position_offset="
            f"{config['pad_token_id'] + 1} needs a tokenizer with pad_token_id="
            f"{config['pad_token_id']}, but this one has {tokenizer.pad_token_id}. Convert with "
            "tokenizer=False, or use format='kerasbert'."
        )
    ours = {"bos": "cls", "eos": "sep", "decoder_start": "start"}
    roles = {key: key.removesuffix("_token_id") for key in table.special_ids}
    return {
        key: getattr(tokenizer, f"{ours.get(role, role)}_token_id") for key, role in roles.items()
    }


def _longest(model, settings):
    """Return the maximum length of the tokenizer or, for a reranker, of its preprocessor."""
    if sentence_transformers.class_of(model) == RERANKER and model.preprocessor is not None:
        return model.preprocessor.sequence_length
    return settings.get("max_sequence_length")


def _class_config(model):
    """Describe the classes: the reverse of `huggingface._classes`."""
    if sentence_transformers.class_of(model) == RERANKER:
        return {"num_labels": 1, **cross_encoder_config(model)}
    count = getattr(model, "num_classes", None)
    if count is None:
        kind = kind_of(model)
        is_number = kind is not None and kind.explains == "number"
        return {"num_labels": 1, "problem_type": "regression"} if is_number else {}
    config = {"num_labels": count}
    if getattr(model, "labels", None):
        config["id2label"] = {str(id): label for id, label in enumerate(model.label_names)}
        config["label2id"] = {label: id for id, label in enumerate(model.label_names)}
    if getattr(model, "multi_label", False):
        config["problem_type"] = "multi_label_classification"
    elif count == 1:
        # With one label, transformers would assume regression.
        config["problem_type"] = "single_label_classification"
    return config


def _head_config(model, kind, config, family):
    """Return the config for a head's settings: the reverse of `huggingface.read_head_settings`."""
    found = {}
    settings = ALL_TABLES[family].settings_of_head(kind) if kind else {}
    for ours, (key, _, *names) in settings.items():
        value = getattr(model, ours)
        for same in names:
            value = next((theirs for theirs, x in same.items() if x == value), value)
        value = _activation(value) if ours == "head_activation" else value
        found[key] = config.get(key, value)  # The encoder's value takes precedence.
    return found


def _save(tensors, directory, max_shard_size):
    """Write `model.safetensors`, or its shards with an index."""
    from safetensors.numpy import save_file

    shards, size, limit = [{}], 0, (max_shard_size or np.inf) * 1024**3
    for name, value in tensors.items():
        if shards[-1] and size + value.nbytes > limit:
            shards.append({})
            size = 0
        shards[-1][name] = value
        size += value.nbytes
    names = ["model.safetensors"]
    if len(shards) > 1:
        names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
        weight_map = {key: file for file, shard in zip(names, shards) for key in shard}
        total = sum(value.nbytes for value in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        write_json(os.path.join(directory, "model.safetensors.index.json"), index)
    for name, shard in zip(names, shards):
        save_file(shard, os.path.join(directory, name), metadata={"format": "pt"})
