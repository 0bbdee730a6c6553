"""Reader of Hugging Face checkpoints, by the tables of `families`.

Source: `transformers` 5.23.
"""

import functools
import os
import reprlib

from kerasbert.base.errors import check_fields, check_heads, is_whole, need_fields
from kerasbert.base.files import json_in, read_json
from kerasbert.checkpoints.checkpoint import Checkpoint
from kerasbert.checkpoints.huggingface_tensors import HuggingFaceTensors
from kerasbert.checkpoints.lineage import LINEAGE_TABLES
from kerasbert.checkpoints.name_map import NameMap
from kerasbert.checkpoints.sizes import check_layers
from kerasbert.families import TABLES, get_family
from kerasbert.families.settings import LINEAGE_SETTINGS, NEEDED, SETTINGS
from kerasbert.families.transformers_names import ACTIVATIONS, SPECIAL_IDS, refuse
from kerasbert.kinds import KINDS
from kerasbert.text.languages import languages_of
from kerasbert.text.subword import in_languages
from kerasbert.tokenizers import tokenizer_from_files

ALL_TABLES = TABLES | LINEAGE_TABLES
_IDS = (*SPECIAL_IDS, "unk_token_id")
# Fields of heads and families, with allowed values; see `check_value`.
_FIELDS = {
    "classifier_dropout": "share?",
    "classifier_dropout_prob": "share?",
    "qa_dropout": "share?",
    "seq_classif_dropout": "share?",
    "summary_last_dropout": "share?",
    "summary_type": "name",
    "summary_use_proj": "flag",
    "summary_activation": "name?",
    "is_decoder": "flag",
    "use_task_id": "flag",
    "rotary_value": "flag",
    "norm_bias": "flag",
    "attention_bias": "flag",
    "mlp_bias": "flag",
    "num_key_value_heads": "count?",
    "decoder_bias": "flag",
    "classifier_bias": "flag",
    "classifier_pooling": "name",
    "classifier_activation": "name",
    "global_attn_every_n_layers": "count",
    "n_inner": "count?",
    "scale_attn_weights": "flag",
    "scale_attn_by_inverse_layer_idx": "flag",
    "embd_pdrop": "share",
    "layer_types": "names?",
    "rope_parameters": "object?",
    "rope_scaling": "object?",
    "rope_theta": "base?",
    "global_rope_theta": "base?",
    "local_rope_theta": "base?",
    "tie_word_embeddings": "flag",
    "num_labels": "count",
    "id2label": "object?",
    "problem_type": "name?",
    "label2id": "object?",
    **dict.fromkeys(_IDS, "whole?"),
    # Several tokens may end generation.
    **dict.fromkeys(("bos_token_id", "eos_token_id", "decoder_start_token_id"), "ids?"),
    "cls_dropout": "share?",
    "pooler_dropout": "share?",
    "pooler_hidden_act": "name",
    "architectures": "names?",
    # Settings of sentence-transformers' cross-encoders.
    "sentence_transformers": "object?",
    "sbert_ce_default_activation_function": "name?",
}
_TIED = ("tie_word_embeddings", True)
PROBLEMS = ("single_label_classification", "multi_label_classification", "regression")
# Settings that change outputs and that no released encoder of these families uses.
REFUSED = {
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "position_embedding_type": ("absolute", None),
    "per_layer_config": (None, {}),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
}
# Fields of generation_config.json that our `generate` does not support, with the values that have
# no effect.
GENERATION = {
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty"), (1.0, None)),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), (0, None)),
    **dict.fromkeys(("min_length", "min_new_tokens"), (0, None)),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens"), (None, [])),
    **dict.fromkeys(("forced_bos_token_id", "exponential_decay_length_penalty"), (None,)),
    **dict.fromkeys(("sequence_bias", "watermarking_config", "stop_strings"), (None,)),
    **dict.fromkeys(("guidance_scale", "penalty_alpha"), (None, 1.0, 0.0)),
}
# Fields that our `generate` supports only for encoder-decoders.
_GENERATION_OF_CAUSAL = {"bad_words_ids": (None, []), "forced_eos_token_id": (None,)}
# Model types of checkpoints from before transformers supported their family.
FIRST_TYPES = {"new": "gte"}
# Prefixes of heads' weights, which may stay unread in a class without that head.
_HEADS = (
    "cls.",
    "classifier.",
    "lm_head.",
    "qa_outputs.",
    "pre_classifier.",
    "vocab_transform.",
    "vocab_layer_norm.",
    "vocab_projector.",
    "generator_predictions.",
    "generator_lm_head.",
    "discriminator_predictions.",
    "predictions.",
    "sop_classifier.",
    "sequence_summary.",
    "score.",
    "multiple_choice_head.",
    "head.",
    "decoder.",
    "pooler.",
    "logits_proj.",
    "lm_loss.",
    "start_logits.",
    "end_logits.",
    "answer_class.",
    "crit.",
    "lm_predictions.",
    "mask_predictions.",
)


def is_mine(directory):
    """Return whether the directory's `config.json` was written by transformers."""
    return not {"model_type", "hidden_size"}.isdisjoint(json_in(directory, "config.json"))


def read_checkpoint(directory):
    """Describe the checkpoint in a Hugging Face directory.

    Returns:
        A `Checkpoint`.

    Raises:
        ValueError: for an unsupported model type or setting.
    """
    path = os.path.join(directory, "config.json")
    config = read_json(path)
    # Early BERT configurations have no model_type.
    names = {name: (row.model_type or name).replace("_", "-") for name, row in ALL_TABLES.items()}
    types = {names[name]: name for name, row in ALL_TABLES.items() if not row.marks} | FIRST_TYPES
    model_type = str(config.get("model_type", "bert")).replace("_", "-")
    marked = (
        name
        for name, row in ALL_TABLES.items()
        if row.marks and names[name] == model_type and row.marks.items() <= config.items()
    )
    family = next(marked, types.get(model_type))
    if family is None:
        known = ", ".join(types)
        raise ValueError(
            f"'{path}' has model_type '{config['model_type']}', which kerasbert does not support; "
            f"expected one of {known}."
        )
    table = ALL_TABLES[family]
    config |= {key: config[alias] for alias, key in table.aliases.items() if alias in config}
    for key, fine in REFUSED.items():
        if key not in table.ignored and config.get(key, fine[0]) not in fine:
            raise ValueError(
                f"'{path}' has {key}={config[key]!r}, which kerasbert does not support; "
                f"only {key}={fine[0]!r} can be loaded."
            )
    known = SETTINGS | LINEAGE_SETTINGS
    kinds = {key: known[ours] for ours, (key, _) in table.config.items()}
    needed = (table.config[name][0] for name in NEEDED if name in table.config)
    need_fields(config, needed, path)
    if table.no_id is not None:
        unknown = {key for key in _IDS if config.get(key) == table.no_id}
        config |= dict.fromkeys(unknown)
    check_fields(config, _FIELDS | kinds, path)
    _check_sizes(table, config, path)
    if config.get("problem_type") not in (None, *PROBLEMS):
        refuse(path, "problem_type", config["problem_type"], " or ".join(map(repr, PROBLEMS)))
    tied = config.get(*table.settings_of_head("masked_lm").get("tie_weights", _TIED))
    encoder = _encoder_settings(table, config, path)
    repeated = _tied(table, encoder, config) if tied else {}
    names = {kind: table.of_head(kind, tied) for kind in KINDS}
    return Checkpoint(
        source=directory,
        family=family,
        encoder=encoder,
        tensors=HuggingFaceTensors(directory, table, tied, table.constants(config)),
        encoder_map=encoder_map(table, encoder),
        head_maps={
            kind: NameMap(layers, "torch", table.verbatim_head(encoder))
            for kind, layers in names.items()
            if layers
        },
        head={kind: read_head_settings(table, kind, config, path) for kind in KINDS},
        preprocessor={"reranker": _length(directory, encoder)},
        longest=tokenizer_length(directory),
        num_segments=_num_segments(directory, encoder),
        classes=functools.partial(_classes, config, path),
        tied=repeated,
        is_head=lambda name: name.startswith(table.head_names or _HEADS),
        tokenizer=functools.partial(_tokenizer, directory, family, table, encoder),
        refused=_no_single_label(config, path)
        | _no_generation(directory)
        | {
            kind: f"'{path}' has {key}={config[key]!r}, which kerasbert does not support; only "
            f"{key}={fine!r} can be loaded for the head '{kind}'. Pass new_head=True for a new one."
            for kind, settings in table.refused.items()
            for key, fine in settings.items()
            if config.get(key, fine) != fine
        },
        token_ids={
            key: config[key] for key in (*table.special_ids, "mask_token_id") if key in config
        },
        default_ids=table.default_ids,
    )


def _check_sizes(table, config, path):
    """Raise if sizes in `config.json` contradict each other."""

    def said(ours):
        key, default = table.config[ours]
        return config.get(key, default), key

    for ours in ("num_heads", "num_decoder_heads"):
        if ours in table.config:
            check_heads(said("hidden_dim")[0], *said(ours), said("hidden_dim")[1], path)
    for ours in ("num_layers", "num_decoder_layers"):
        if ours in table.config:
            check_layers(said(ours)[0], os.path.dirname(path))
    size, key = said("vocabulary_size")
    for name in table.special_ids:
        id = config.get(name)
        if is_whole(id) and id != table.default_ids.get(name) and id >= size:
            raise ValueError(
                f"'{path}' has {name}={id} with {key}={size}, so ids must be from 0 to {size - 1}; "
                "set both to the values that the model was trained with."
            )


def _encoder_settings(table, config, path):
    settings = {ours: config.get(key, default) for ours, (key, default) in table.config.items()}
    if "activation" in settings:
        name = table.config["activation"][0]
        settings["activation"] = _activation(name, settings["activation"], path)
    if table.starts_at_padding:
        # The position table begins with unused rows.
        padding = config.get("pad_token_id")
        offset = 2 if padding is None else padding + 1
        if offset >= settings["max_sequence_length"]:
            raise ValueError(
                f"'{path}' has max_position_embeddings={settings['max_sequence_length']}, which "
                f"leaves no position after pad_token_id={padding}; set both to the values that the "
                "model was trained with."
            )
        settings["position_offset"] = offset
        settings["max_sequence_length"] -= offset
    layers, groups = settings["num_layers"], settings.get("num_groups")
    some = range(min(layers, 1000))  # More are an error of `check_layers`.
    if groups and any(int(i / (layers / groups)) != i * groups // layers for i in some):
        raise ValueError(
            f"'{path}' has num_hidden_layers={layers} and num_hidden_groups={groups}, for which "
            "transformers rounds a layer's group down by one too many and kerasbert does not; use "
            "a number of layers that is a multiple of the groups."
        )
    is_square = settings.get("embedding_dim") == settings["hidden_dim"]
    if is_square and not table.has_square_projection:
        settings["embedding_dim"] = None
    return settings | table.read(config, path)


def _activation(key, name, path):
    if name not in ACTIVATIONS:
        raise ValueError(
            f"'{path}' has {key}='{name}', which kerasbert does not support; expected one of "
            f"{', '.join(ACTIVATIONS)}."
        )
    return ACTIVATIONS[name]


def read_head_settings(table, kind, config, path):
    """Return the arguments of a head's class, except output classes.

    Args:
        table: a `Table`.
        kind: string.
        config: dict. `config.json`.
        path: the file, for errors.
    """
    found = {}
    for ours, (key, default, *names) in table.settings_of_head(kind).items():
        value = config.get(key, default)
        if names:
            if value not in names[0]:
                refuse(path, key, value, " or ".join(map(repr, names[0])))
            value = names[0][value]
        elif ours == "dropout" and value is None:
            value = config.get(*table.config["dropout"])
        elif ours == "head_activation":
            # Without an activation, the dense layer remains.
            value = _activation(key, "linear" if value is None else value, path)
        found[ours] = value
    return found | (table.read_head(config, path) if kind in table.heads else {})


def _classes(config, path):
    """Return the arguments of `BertTextClassifier` for classes."""
    problem = config.get("problem_type")
    if problem == "regression":
        raise ValueError(
            f"'{path}' has problem_type 'regression': its head returns a number, not classes. Load "
            "it with BertTextRegressor, or pass num_classes or labels for a new head."
        )
    names = config.get("id2label")
    wrong = _wrong_labels(config)
    if wrong:
        raise ValueError(
            f"'{path}' has {wrong}; correct it, or pass num_classes or labels for a new head."
        )
    if names:
        classes = {"labels": [str(names[key]) for key in sorted(names, key=int)]}
    else:
        classes = {"num_classes": config.get("num_labels", 2)}
    return {**classes, "multi_label": problem == "multi_label_classification"}


def _wrong_labels(config):
    """Describe what is wrong with the configured classes, or return `None`."""
    names, count = config.get("id2label"), config.get("num_labels")
    numbers = config.get("label2id") or {}
    if not names:
        return None
    said = f"id2label={reprlib.repr(names)}"
    keys = [int(key) if str(key).isdecimal() else -1 for key in names]
    if sorted(keys) != list(range(len(names))):
        return f"{said}, whose keys must be the class ids from 0 to {len(names) - 1}"
    found = [str(name) for name in names.values() if not isinstance(name, (dict, list))]
    if len(found) < len(names) or None in names.values() or len(set(found)) < len(found):
        return f"{said}, whose values must be distinct names"
    if count not in (None, len(names)):
        return f"num_labels={count} with {said}, which names {len(names)} classes"
    for key, name in zip(keys, found, strict=True):
        if str(numbers.get(name, key)) != str(key):
            return f"label2id={reprlib.repr(numbers)}, which contradicts {said}"
    return None


def _length(directory, encoder):
    """Return the argument with a cross-encoder's maximum length, as in sentence-transformers."""
    lengths = [tokenizer_length(directory), encoder.get("max_sequence_length")]
    lengths = [x for x in lengths if x is not None]
    return {"sequence_length": int(min(lengths))} if lengths else {}


def tokenizer_length(directory):
    """Return the maximum length of a directory's tokenizer, or `None`."""
    config = json_in(directory, "tokenizer_config.json")
    path = os.path.join(directory, "tokenizer_config.json")
    check_fields(config, {"model_max_length": "length?", "max_len": "length?"}, path)
    # max_len is the name in early files.
    return config.get("model_max_length", config.get("max_len"))


def _num_segments(directory, encoder):
    """Return 1 if the tokenizer gives both texts of a pair the same segment id, else 2."""
    if encoder.get("num_segments", 2) < 2 or encoder.get("restarts_positions"):
        # The preprocessor uses a lower number of the encoder, or languages.
        return 2
    config = json_in(directory, "tokenizer_config.json")
    path = os.path.join(directory, "tokenizer_config.json")
    check_fields(config, {"model_input_names": "names?"}, path)
    names = config.get("model_input_names")
    if names and "token_type_ids" not in names:
        return 1
    rest = [json_in(directory, "tokenizer.json").get("post_processor")]
    second = {"Sequence": {"id": "B", "type_id": 0}}
    while rest:
        step = rest.pop()
        if not isinstance(step, dict):
            continue
        pair, inner = step.get("pair"), step.get("processors")
        if step.get("type") == "RobertaProcessing" or isinstance(pair, list) and second in pair:
            return 1
        rest += inner if isinstance(inner, list) else []
    return 2


def _tokenizer(directory, family, table, encoder, **settings):
    """Return a directory's tokenizer; raise if its padding shifts positions."""
    side = json_in(directory, "tokenizer_config.json").get("padding_side")
    padding = json_in(directory, "tokenizer.json").get("padding") or {}
    side = str(side or padding.get("direction") or "right").lower()
    tokenizer = tokenizer_from_files(directory, family, **settings)
    settings = {**get_family(family).encoder, **encoder}
    if settings.get("restarts_positions"):
        tokenizer = _with_languages(tokenizer, directory, settings["num_segments"])
    learned = settings.get("position_embedding", "learned") == "learned"
    moves = learned and not table.starts_at_padding and not settings.get("is_causal")
    if side != "right" and moves and not getattr(tokenizer, "marks_last", False):
        raise ValueError(
            f"The tokenizer in '{directory}' has padding_side='{side}', which in transformers "
            "shifts the positions of the tokens, while kerasbert pads on the right; set it to "
            "'right' if the model was trained with that, or load the model with preprocessor=None "
            "and pass token ids."
        )
    return tokenizer


def _with_languages(tokenizer, directory, count):
    """Return a tokenizer with the names of the languages that an encoder embeds."""
    path = os.path.join(directory, "config.json")
    config = read_json(path)
    check_fields(config, {"lang2id": "object?", "lang_id": "whole?"}, path)
    names, default = tokenizer.languages, config.get("lang_id") or 0
    if names is None:
        numbers = config.get("lang2id") or {str(id): id for id in range(count)}
        names = languages_of(numbers, path)
    if len(names) != count or default >= count:
        raise ValueError(
            f"'{path}' has n_langs={count}, but lang2id names {len(names)} languages, and lang_id "
            f"is {default}; they must agree: set them to the values the model was trained with."
        )
    language = tokenizer.language or (names[default] if default else None)
    return in_languages(tokenizer, names, language)


def label_count(config):
    """Return the number of outputs of a classification head, counted as in transformers."""
    return len(config.get("id2label") or ()) or config.get("num_labels", 2)


def has_one_number(config):
    """Return whether a config of transformers describes a regression head."""
    is_open = config.get("problem_type") in (None, "regression")
    return label_count(config) == 1 and is_open


def _no_single_label(config, path):
    """Return a dict of "reranker" to the reason why the head is none, or empty."""
    count = label_count(config)
    if count == 1:
        return {}
    return {
        "reranker": f"'{path}' has {count} labels, but a BertReranker has one score; load it with "
        "BertTextClassifier, or pass new_head=True for a new head."
    }


def _no_generation(directory):
    """Return a dict of kind of head to why its generation settings are unsupported."""
    config, refused = json_in(directory, "generation_config.json"), {}
    path = os.path.join(directory, "generation_config.json")
    ends = config.get("eos_token_id")
    known = {"seq2seq_lm": GENERATION, "causal_lm": GENERATION | _GENERATION_OF_CAUSAL}
    for kind, fine in known.items():
        names = [name for name, values in fine.items() if config.get(name) not in values]
        names += ["eos_token_id"] if isinstance(ends, list) and len(ends) > 1 else []
        if names:
            refused[kind] = (
                f"'{path}' has {names[0]}={reprlib.repr(config[names[0]])}, which generate() does "
                "not support; remove it if you do not need it, or load the encoder alone."
            )
    return refused


def encoder_map(table, settings):
    """Return the `NameMap` of an encoder with its family's `table`."""
    return NameMap(
        table.encoder,
        table.layout,
        table.verbatim(settings),
        inner=settings.get("num_inner_repetitions", 1),
        swapped=table.swapped,
        orders=table.orders(settings),
    )


def _tied(table, encoder, config):
    """Return the dict `tied` of a `Checkpoint`."""
    if table.tied is not None:
        return table.tied(encoder, config)
    tokens = table.encoder["token_embedding"] + ".weight"
    output = table.of_head("masked_lm").get("mlm_head")
    if output is None:
        following = table.of_head("causal_lm").get("lm_head/decoder")
        return {} if following is None else {f"{following}.weight": tokens}
    decoder = table.decoder or output
    tied = {f"{decoder}.weight": tokens}
    return tied if decoder == output else {**tied, f"{decoder}.bias": f"{output}.bias"}
