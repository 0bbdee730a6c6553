"""Read Hugging Face checkpoints (configurations and tensors) by the tables of `families`.

Source: `transformers` 5.23.
"""

import functools
import os
import reprlib

from kerasbert.base.errors import check_fields, check_heads, is_whole, need_fields
from kerasbert.base.files import json_in, read_json
from kerasbert.checkpoints.checkpoint import Checkpoint, TensorFiles
from kerasbert.checkpoints.lineage import LINEAGE_TABLES
from kerasbert.checkpoints.name_map import NameMap
from kerasbert.checkpoints.sizes import check_layers
from kerasbert.families import TABLES, get_family
from kerasbert.families.settings import LINEAGE_SETTINGS, NEEDED, SETTINGS
from kerasbert.families.transformers_names import ACTIVATIONS, SPECIAL_IDS, refuse
from kerasbert.kinds import KINDS
from kerasbert.tokenizers import tokenizer_from_files

ALL_TABLES = TABLES | LINEAGE_TABLES
_IDS = (*SPECIAL_IDS, "unk_token_id")
# Fields of the heads and of all families, each with its allowed values; see `check_value`.
_FIELDS = {
    "classifier_dropout": "share?",
    "classifier_dropout_prob": "share?",
    "qa_dropout": "share?",
    "seq_classif_dropout": "share?",
    "summary_last_dropout": "share?",
    "summary_type": "name",
    "summary_use_proj": "flag",
    "summary_activation": "name?",
    "norm_bias": "flag",
    "attention_bias": "flag",
    "mlp_bias": "flag",
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
    # Generation may end at one of several tokens.
    **dict.fromkeys(("bos_token_id", "eos_token_id", "decoder_start_token_id"), "ids?"),
    "cls_dropout": "share?",
    "pooler_dropout": "share?",
    "pooler_hidden_act": "name",
    "architectures": "names?",
    # Settings of sentence-transformers' cross-encoders.
    "sentence_transformers": "object?",
    "sbert_ce_default_activation_function": "name?",
}
PROBLEMS = ("single_label_classification", "multi_label_classification", "regression")
# Fields with a fixed set of values.
_CHOICES = {"problem_type": PROBLEMS, "classifier_pooling": ("cls", "mean")}
# Settings that change outputs and that no released encoder of these families uses.
REFUSED = {
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "position_embedding_type": ("absolute", None),
    "per_layer_config": (None, {}),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
}
# Fields of generation_config.json that only transformers' `generate` follows, with the values that
# have no effect.
GENERATION = {
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty"), (1.0, None)),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), (0, None)),
    **dict.fromkeys(("min_length", "min_new_tokens"), (0, None)),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens"), (None, [])),
    **dict.fromkeys(("forced_bos_token_id", "exponential_decay_length_penalty"), (None,)),
    **dict.fromkeys(("sequence_bias", "watermarking_config", "stop_strings"), (None,)),
    **dict.fromkeys(("guidance_scale", "penalty_alpha"), (None, 1.0, 0.0)),
}
# Further fields that our `generate` follows, but not for causal models.
_GENERATION_OF_CAUSAL = {"bad_words_ids": (None, []), "forced_eos_token_id": (None,)}
# Model types that checkpoints had before transformers supported the family.
FIRST_TYPES = {"new": "gte"}
# Model types that resemble a supported one: why they are not supported, and what to do.
OTHERS = {
    "deberta": "the first DeBERTa, which projects relative positions with weights of their own and "
    "which kerasbert does not support; use a DeBERTa-v3 checkpoint, such as 'deberta_v3_base_en'.",
}
# Prefixes of head weights, which may stay unread if another class is loaded.
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
# Buffers, which are not weights.
_BUFFERS = (
    "embeddings.position_ids",
    "embeddings.token_type_ids",
    "rotary_emb.",
    # Marian's sinusoidal position tables.
    "coder.embed_positions.",
    "pos_emb.inv_freq",
    # GPT-2's causal masks.
    ".attn.bias",
    ".attn.masked_bias",
)


def is_mine(directory):
    """Return whether the directory's `config.json` is one of transformers."""
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
    types = {(row.model_type or name).replace("_", "-"): name for name, row in ALL_TABLES.items()}
    types |= FIRST_TYPES
    model_type = str(config.get("model_type", "bert")).replace("_", "-")
    family = types.get(model_type)
    if model_type in OTHERS:
        raise ValueError(f"'{path}' has model_type '{model_type}', {OTHERS[model_type]}")
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
    for key, choices in _CHOICES.items():
        if config.get(key) not in (None, *choices):
            refuse(path, key, config[key], " or ".join(map(repr, choices)))
    tied = config.get("tie_word_embeddings", True)
    encoder = _encoder_settings(table, config, path)
    repeated = _tied(table, encoder, config) if tied else {}
    names = {kind: table.of_head(kind, tied) for kind in KINDS}
    return Checkpoint(
        source=directory,
        family=family,
        encoder=encoder,
        tensors=_Tensors(directory, table, tied),
        encoder_map=NameMap(
            table.encoder,
            table.layout,
            table.verbatim(encoder),
            inner=encoder.get("num_inner_repetitions", 1),
            swapped=table.swapped,
        ),
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
    """Raise if sizes contradict each other; errors name the keys of the file."""

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
        # The position table includes the rows before the first position.
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
    some = range(min(layers, 1000))  # A larger number is refused where the layers are counted.
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
    """Return the arguments of the class of a kind of head, except those that describe its classes.

    Args:
        table: a `Table`.
        kind: string.
        config: dict. The contents of `config.json`.
        path: string. The file, for errors.
    """
    found = {}
    for ours, (key, default) in table.settings_of_head(kind).items():
        value = config.get(key, default)
        if ours == "dropout" and value is None:
            value = config.get(*table.config["dropout"])
        elif ours == "head_activation":
            value = _activation(
                key, "linear" if value is None else value, path
            )  # Without an activation, the dense layer is still there.
        found[ours] = value
    return found | (table.read_head(config, path) if kind in table.heads else {})


def _classes(config, path):
    """Return the arguments of `BertTextClassifier` that describe its classes."""
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
    """Describe what is wrong with the configured classes; return `None` if nothing is."""
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
    """Return a cross-encoder's maximum length, found as sentence-transformers does."""
    lengths = [tokenizer_length(directory), encoder.get("max_sequence_length")]
    lengths = [x for x in lengths if x is not None]
    return {"sequence_length": int(min(lengths))} if lengths else {}


def tokenizer_length(directory):
    """Return the maximum length of a directory's tokenizer, or `None` if it states none."""
    config = json_in(directory, "tokenizer_config.json")
    path = os.path.join(directory, "tokenizer_config.json")
    check_fields(config, {"model_max_length": "length?", "max_len": "length?"}, path)
    # max_len is the name in early files.
    return config.get("model_max_length", config.get("max_len"))


def _num_segments(directory, encoder):
    """Return 1 if the tokenizer gives both texts of a pair the same segment id, else 2."""
    if encoder.get("num_segments", 2) < 2:
        return 2  # The encoder's own, lower number applies.
    config = json_in(directory, "tokenizer_config.json")
    path = os.path.join(directory, "tokenizer_config.json")
    check_fields(config, {"model_input_names": "names?"}, path)
    names = config.get("model_input_names")
    if names and "token_type_ids" not in names:
        return 1
    frame = json_in(directory, "tokenizer.json").get("post_processor") or {}
    pair = frame.get("pair") if isinstance(frame, dict) else None
    second = {"Sequence": {"id": "B", "type_id": 0}}
    return 1 if isinstance(pair, list) and second in pair else 2


def _tokenizer(directory, family, table, encoder, **settings):
    """Return the tokenizer of a directory; its padding must not shift the tokens' positions."""
    side = json_in(directory, "tokenizer_config.json").get("padding_side")
    padding = json_in(directory, "tokenizer.json").get("padding") or {}
    side = str(side or padding.get("direction") or "right").lower()
    tokenizer = tokenizer_from_files(directory, family, **settings)
    settings = {**get_family(family).encoder, **encoder}
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


def label_count(config):
    """Return the number of outputs of a classification head, found as transformers does."""
    return len(config.get("id2label") or ()) or config.get("num_labels", 2)


def _no_single_label(config, path):
    """Return why a head is not a reranker's, as a dict by kind of head; empty if it is."""
    count = label_count(config)
    if count == 1:
        return {}
    return {
        "reranker": f"'{path}' has {count} labels, but a BertReranker has one score; load it with "
        "BertTextClassifier, or pass new_head=True for a new head."
    }


def _no_generation(directory):
    """Return why generation_config.json is not supported, as a dict by kind of head."""
    config, refused = json_in(directory, "generation_config.json"), {}
    path = os.path.join(directory, "generation_config.json")
    ends = config.get("eos_token_id")
    for kind in ("seq2seq_lm", "causal_lm"):
        fine = GENERATION if kind == "seq2seq_lm" else GENERATION | _GENERATION_OF_CAUSAL
        names = [name for name, values in fine.items() if config.get(name) not in values]
        names += ["eos_token_id"] if isinstance(ends, list) and len(ends) > 1 else []
        if names:
            refused[kind] = (
                f"'{path}' has {names[0]}={reprlib.repr(config[names[0]])}, which generate() does "
                "not support; remove it if you do not need it, or load the encoder alone."
            )
    return refused


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


class _Tensors(TensorFiles):
    """Tensors by name, without the model's prefix ("bert.", "roberta.", "model.", ...)."""

    def __init__(self, directory, table, tied):
        super().__init__(directory)
        self.split_heads = table.split_heads
        self.anchor = table.encoder["token_embedding"] + ".weight"
        # An untied decoder has a bias of its own, which is the one that is used.
        self.unused = None
        if not tied and table.decoder:
            output = table.of_head("masked_lm")["mlm_head"]
            self.unused = f"{output}.bias", f"{table.decoder}.bias"

    def rename(self, names):
        found = [name for name in names if name == self.anchor or name.endswith("." + self.anchor)]
        if len(found) != 1:
            raise ValueError(
                f"'{self.directory}' has {len(found)} tensors named '...{self.anchor}', expected "
                "one; it is not an encoder of the family that its config.json names."
            )
        prefix = found[0].removesuffix(self.anchor)
        renamed = {}
        for name in names:
            if any(part in name for part in _BUFFERS):
                continue
            # Old checkpoints name the weights of a norm gamma and beta.
            ours = name.removeprefix(prefix)
            for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
                if ours.endswith(old):
                    ours = ours.removesuffix(old) + new
            # A matrix with an axis for heads is not a torch layer and so lacks ".weight".
            renamed[f"{ours}.weight" if ours.endswith(tuple(self.split_heads)) else ours] = name
        if self.unused is not None and self.unused[0] in renamed:
            # Files that store both biases as one have it only under the first name.
            renamed.setdefault(self.unused[1], renamed.pop(self.unused[0]))
        return renamed

    def _is_into_heads(self, name):
        """Return whether the named matrix projects into heads; `None` without an axis for heads."""
        ends = (into for end, into in self.split_heads.items() if name.endswith(f"{end}.weight"))
        return next(ends, None)

    def __getitem__(self, name):
        value, into = super().__getitem__(name), self._is_into_heads(name)
        if into is None or value.ndim != 3:
            return value
        whole = value.reshape(len(value), -1)
        return whole.T if into else whole

    def shape(self, name):
        shape, into = super().shape(name), self._is_into_heads(name)
        if into is None or len(shape) != 3:
            return shape
        whole = (shape[0], shape[1] * shape[2])
        return whole[::-1] if into else whole
