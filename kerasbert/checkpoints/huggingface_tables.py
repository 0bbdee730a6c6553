"""The names of settings and weights in transformers: one table per family.

Source: `transformers` 5.23; its classes are named beside the tables.
"""

import dataclasses
from collections.abc import Callable

from kerasbert.base.errors import check_fields, check_value, is_whole
from kerasbert.families import has_bias, head_settings
from kerasbert.kinds import KINDS

# transformers' activations. "gelu" is the erf form here, but the tanh form in Google's files.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_approximate",
    "gelu_fast": "gelu_approximate",
    "gelu_pytorch_tanh": "gelu_approximate",
    "gelu_accurate": "gelu_approximate",
    "gelu_python_tanh": "gelu_approximate",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu6": "relu6",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "mish": "mish",
    "linear": "linear",
}

# Keys of special token ids, which some configs repeat beside the tokenizer's.
SPECIAL_IDS = tuple(f"{role}_token_id" for role in ("pad", "bos", "eos", "cls", "sep", "mask"))


@dataclasses.dataclass(frozen=True)
class Table:
    """A family's names in transformers.

    Args:
        classes: string. Prefix of its class names.
        prefix: string. Prefix of the encoder's weight names in a class with a head.
        config: dict of our encoder setting to `(their key, transformers' default)`.
        encoder: dict of our layer to theirs; see `kerasbert.checkpoints.name_map`.
        heads: dict of kind of head to such a dict of its layers.
        head_config: dict of kind of head to its settings, in the form of `config`. A dropout of
            `None` is the encoder's.
        model_type: string. The `model_type` in `config.json`; "" for the family's name.
        layout: string. Naming and layout of the encoder's weights; see `name_map.LEAVES`.
        decoder: string. Their layer that repeats the token embedding and the output bias in older
            files; "" for none.
        poolers: tuple. Kinds of heads whose class has a pooler, `None` for the bare encoder.
        endings: dict of kind of head to the suffix of its class name, if not `Kind.huggingface`.
        without_class: tuple. Kinds of heads with weight names, but without a class of their own.
        starts_at_padding: bool. Whether positions count from the row after the padding's.
        has_square_projection: bool. Whether embeddings of the encoder's width are projected too.
        aliases: dict of another name of a key, which takes precedence, to the key.
        ignored: tuple. Keys of `huggingface.REFUSED` without effect here.
        special_ids: tuple. Keys of special tokens in `config.json`.
        token_ids: tuple. Those whose defaults may lie outside a vocabulary.
        no_id: value that stands for an unknown id, if its class does not accept `None`.
        default_ids: dict of key to its default, which is not taken as the tokenizer's id: files
            have it if nobody set the key, such as those of XLM-R's vocabulary in BERT's class.
        head_names: tuple. Prefixes of the heads' weight names, if unusual.
        refused: dict of kind of head to a dict of key to the only supported value.
        inside: tuple. Prefixes of head layers that are named among the encoder's.
        may_lack_segments: bool. Whether its class has no segment table without segments.
        swapped: string. See `NameMap.swapped`.
        split_heads: dict of name suffix to bool, for matrices with an axis for heads: whether the
            matrix projects into the heads, (D, N, H), or, not transposed, out of them.
        verbatim: function of the encoder's settings; see `NameMap.verbatim`.
        verbatim_head: function of the encoder's settings; the same for its heads.
        tied: function of the encoder's settings and `config.json`, that returns a dict of each
            tensor that repeats another to that other, unless the heads define it.
        read: function of `config.json` and its path, that returns further encoder settings.
        write: function of the encoder's settings, that returns further keys; the reverse of `read`.
        read_head: function of `config.json` and its path, that returns further arguments for the
            class of any head.
        write_head: function of a task, that returns further keys.
        generation: function of a task and its `config.json`, that returns `generation_config.json`
            with the reverse of `read_head`; `None` writes no such file.
    """

    classes: str
    prefix: str
    config: dict
    encoder: dict
    heads: dict
    head_config: dict
    model_type: str = ""
    layout: str = "torch"
    decoder: str = ""
    poolers: tuple = ()
    endings: dict = dataclasses.field(default_factory=dict)
    without_class: tuple = ("pretrainer",)
    starts_at_padding: bool = False
    has_square_projection: bool = True
    aliases: dict = dataclasses.field(default_factory=dict)
    ignored: tuple = ()
    special_ids: tuple = SPECIAL_IDS
    token_ids: tuple = ()
    no_id: int | None = None
    default_ids: dict = dataclasses.field(default_factory=lambda: {"pad_token_id": 0})
    head_names: tuple = None
    refused: dict = dataclasses.field(default_factory=dict)
    inside: tuple = ()
    may_lack_segments: bool = False
    swapped: str = ""
    split_heads: dict = dataclasses.field(default_factory=dict)
    verbatim: Callable = lambda settings: None
    verbatim_head: Callable = lambda settings: None
    tied: Callable = None
    read: Callable = lambda config, path: {}
    write: Callable = lambda settings: {}
    read_head: Callable = lambda config, path: {}
    write_head: Callable = lambda task: {}
    generation: Callable = None

    def of_head(self, kind, tied=True):
        """Return the layer names of a kind of head; `tied` tells whether embeddings are tied.

        >>> TABLES["electra"].of_head("masked_lm", tied=False)["mlm_head/decoder"]
        'generator_lm_head'
        """
        names = dict(self.heads.get(kind, {}))
        for part in KINDS[kind].parts:
            names |= self.of_head(part, tied)
        if kind == "masked_lm" and names and not tied:
            decoder = self.decoder or names["mlm_head"]
            names |= {"mlm_head": decoder, "mlm_head/decoder": decoder}
        return names

    def class_of(self, kind):
        """Return the class name of a kind of head; `None` is the encoder alone."""
        ending = self.endings.get(kind, KINDS[kind].huggingface) if kind else "Model"
        return self.classes + ending

    def settings_of_head(self, kind):
        """Return the `head_config` of a kind of head and its parts."""
        settings = dict(self.head_config.get(kind, {}))
        for part in KINDS[kind].parts:
            settings |= self.settings_of_head(part)
        return settings

    def has_class(self, kind):
        """Return whether transformers has a class for a kind of head; `None` is the encoder."""
        if kind is None:
            return True
        has_name = bool(KINDS[kind].huggingface and self.of_head(kind))
        return has_name and kind not in self.without_class


def refuse(path, key, value, fine):
    """Raise a `ValueError` for an unsupported value; `fine` describes the supported one."""
    raise ValueError(
        f"'{path}' has {key}={value!r}, which kerasbert does not support; only {key}={fine} can be "
        "loaded."
    )


def _check_head_width(config, path):
    """Raise if rotary heads are not exactly as wide as the encoder has room for."""
    width, heads = config.get("hidden_size", 768), config.get("num_attention_heads", 12)
    if config.get("head_dim") not in (None, width / heads):
        raise ValueError(
            f"'{path}' has head_dim={config['head_dim']!r} with hidden_size={width} and "
            f"num_attention_heads={heads}; kerasbert only rotates heads over their whole width."
        )


# === ModernBERT ===


def _local_attention(config, path):
    """Return the local window in tokens; `sliding_window`, from version 5 on, is half of it."""
    local, half = config.get("local_attention", 128), config.get("sliding_window")
    if half in (None, -1):
        return local
    check_value("sliding_window", half, "whole", path)
    if "local_attention" in config and (local or 0) // 2 != half:
        raise ValueError(
            f"'{path}' has local_attention={local!r} with sliding_window={half!r}, which is not "
            "half of it; remove the one that the model was not trained with."
        )
    return local if "local_attention" in config else 2 * half


def _read_modernbert(config, path):
    keys = {"norm_bias": ["norm"], "attention_bias": ["attention"]}
    keys["mlp_bias"] = ["intermediate", "output"]
    biased = [part for key, parts in keys.items() if config.get(key) for part in parts]
    use_bias = bool(biased) if len(biased) in (0, 4) else biased
    _check_head_width(config, path)
    layers = config.get("num_hidden_layers", 22)
    every = config.get("global_attn_every_n_layers", 3)
    types = config.get("layer_types")
    if types is not None:
        if len(types) != layers:
            raise ValueError(
                f"'{path}' has {len(types)} layer_types with num_hidden_layers={layers}; each "
                "layer must have one: remove what the model was not trained with."
            )
        full = [i for i, kind in enumerate(types) if kind == "full_attention"]
        every = full[1] - full[0] if len(full) > 1 else layers
        if full != list(range(0, layers, every)):
            raise ValueError(
                f"'{path}' has global attention in layers {full}; kerasbert supports it only in "
                "every n-th layer from the first."
            )
    ropes = config.get("rope_parameters") or {}
    bases = {}
    for ours, kind, old, default in (
        ("rotary_base", "full_attention", "global_rope_theta", 160000.0),
        ("local_rotary_base", "sliding_attention", "local_rope_theta", 10000.0),
    ):
        rope = ropes.get(kind) or {}
        check_value(f"rope_parameters[{kind!r}]", rope, "object", path)
        check_fields(rope, {"rope_theta": "base?"}, path)
        if rope.get("rope_type", "default") != "default" or config.get("rope_scaling"):
            raise ValueError(
                f"'{path}' scales its rotary positions ({rope or config['rope_scaling']}); "
                "kerasbert supports only the default form."
            )
        base = rope.get("rope_theta", config.get(old))
        bases[ours] = float(default if base is None else base)
    window = _local_attention(config, path)
    return {**bases, "global_every": every, "use_bias": use_bias, "local_window": window}


def _write_modernbert(settings):
    every = settings["global_every"]
    kinds = ("sliding_attention", "full_attention")
    bases = settings["local_rotary_base"] or settings["rotary_base"], settings["rotary_base"]
    return {
        "norm_bias": has_bias(settings["use_bias"], "norm"),
        "attention_bias": has_bias(settings["use_bias"], "attention"),
        "mlp_bias": has_bias(settings["use_bias"], "output"),
        "embedding_dropout": settings["dropout"],
        "global_attn_every_n_layers": every,
        "layer_types": [kinds[i % every == 0] for i in range(settings["num_layers"])],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": base} for kind, base in zip(kinds, bases)
        },
        # The keys of versions before 5.
        "local_rope_theta": bases[0],
        "global_rope_theta": bases[1],
    }


def _read_modernbert_decoder(config, path):
    local = _local_attention(config, path)
    # The decoder's window counts the token itself, and half of the encoder's range.
    window = None if not local else max(2 * (local // 2 - 1), 1)
    return {**_read_modernbert(config, path), "local_window": window}


def _write_modernbert_decoder(settings):
    window = settings["local_window"]
    local = None if window is None else 2 * (window // 2 + 1)
    return {**_write_modernbert(settings), "local_attention": local}


# === GPT ===


def _read_gpt2(config, path):
    return {"intermediate_dim": config.get("n_inner") or 4 * config.get("n_embd", 768)}


def _write_gpt2(settings):
    inner, width = settings["intermediate_dim"], settings["hidden_dim"]
    return {"embd_pdrop": settings["dropout"], "n_inner": None if inner == 4 * width else inner}


# OpenAIGPTModel's "gelu" is the tanh form.
_GPT_ACTIVATIONS = {"gelu": "gelu_approximate", "relu": "relu", "silu": "silu", "swish": "silu"}


def _read_gpt(config, path):
    name = config.get("afn", "gelu")
    if name not in _GPT_ACTIVATIONS:
        raise ValueError(
            f"'{path}' has afn={name!r}; transformers' OpenAIGPTModel supports only "
            f"{', '.join(_GPT_ACTIVATIONS)}."
        )
    return {
        "activation": _GPT_ACTIVATIONS[name],
        "intermediate_dim": 4 * config.get("n_embd", 768),
    }


def _write_gpt(settings):
    names = {ours: name for name, ours in reversed(_GPT_ACTIVATIONS.items())}
    activation = settings["activation"]
    return {"embd_pdrop": settings["dropout"], "afn": names.get(activation, activation)}


# === DeBERTa ===

# Keys that change outputs: the only value of DeBERTa-v3, and transformers' default.
_DEBERTA = {
    "conv_kernel_size": (0, 0),
    "relative_attention": (True, False),
    "position_biased_input": (False, True),
    "share_att_key": (True, False),
    "norm_rel_ebd": ("layer_norm", "none"),
    "type_vocab_size": (0, 0),
}


def _read_deberta(config, path):
    def refuse(key, value, fine):
        raise ValueError(
            f"'{path}' has {key}={value!r}, which kerasbert does not support; only {key}={fine!r} "
            "can be loaded: use a DeBERTa-v3 checkpoint, such as 'deberta_v3_base_en'."
        )

    for key, (fine, default) in _DEBERTA.items():
        value = config.get(key, default)
        if value != fine:
            refuse(key, value, fine)
    terms = config.get("pos_att_type")
    names = terms.lower().split("|") if isinstance(terms, str) else terms
    if not isinstance(names, list) or {str(x).strip() for x in names} != {"p2c", "c2p"}:
        refuse("pos_att_type", terms, ["p2c", "c2p"])
    width, heads = config.get("hidden_size", 1536), config.get("num_attention_heads", 24)
    for key, fine in (
        ("embedding_size", width),
        ("pooler_hidden_size", width),
        ("attention_head_size", width // heads),
    ):
        if config.get(key, fine) != fine:
            refuse(key, config[key], fine)
    found = {}
    for ours, key in (
        ("bucket_size", "position_buckets"),
        ("max_relative_positions", "max_relative_positions"),
    ):
        value = config.get(key, -1)
        if not is_whole(value):
            raise ValueError(f"{key}={value!r} in '{path}' must be a whole number.")
        found[ours] = value if value > 0 else None  # -1 means none.
    return found


def _write_deberta(settings):
    return {
        **{key: fine for key, (fine, _) in _DEBERTA.items()},
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": settings["bucket_size"] or -1,
        "max_relative_positions": settings["max_relative_positions"] or -1,
        "pooler_hidden_size": settings["hidden_dim"],
    }


# === NomicBERT and GTE ===

# Options of their original code, with the values of all their checkpoints. NomicBERT's
# rotary_scaling_factor only applies beyond max_trained_positions, our last position.
_NOMIC = {
    "activation_function": "swiglu",
    "prenorm": False,
    "parallel_block": False,
    "causal": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "use_rms_norm": False,
    "num_experts": 0,
}
_GTE = {
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
    "pack_qkv": True,
}


def _read_rotary(base, known):
    """Make a reader of rotary positions with one base, that refuses other values than `known`."""

    def read(config, path):
        _check_head_width(config, path)
        for key, fine in known.items():
            if config.get(key, fine) not in (fine, None):
                refuse(path, key, config[key], repr(fine))
        kind = config.get("position_embedding_type")
        if kind not in (None, "rope", "rotary"):
            refuse(path, "position_embedding_type", kind, "'rope'")
        rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
        kinds = {"rope_theta": "base?", "factor": "factor", "partial_rotary_factor": "number"}
        check_fields(rope, kinds, path)
        if rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
            refuse(path, "partial_rotary_factor", rope, "1.0")
        theta = rope.get("rope_theta", config.get("rope_theta"))
        if theta is None and config.get("model_type") == "new":  # It has another default.
            refuse(path, "rope_theta", theta, "a number")
        theta = float(base if theta is None else theta)
        kind, factor = rope.get("rope_type", rope.get("type", "default")), rope.get("factor", 1.0)
        if kind == "default":
            factor = 1.0
        elif kind == "ntk" and rope.get("mixed_b") is None:
            # The original code's larger base, which slows the fastest rotation too.
            width = config.get("hidden_size", 768) // config.get("num_attention_heads", 12)
            theta, factor = theta * factor, factor ** (2 / width)
        elif kind != "linear":
            raise ValueError(
                f"'{path}' scales its rotary positions ({rope}); kerasbert supports only the "
                "rope_type 'default' and 'linear': use a checkpoint with one of these."
            )
        return {"rotary_base": theta, "rotary_factor": float(factor)}

    return read


def _write_rotary(settings):
    factor = settings.get("rotary_factor", 1.0)
    more = {"rope_type": "default"} if factor == 1 else {"rope_type": "linear", "factor": factor}
    return {"rope_parameters": {**more, "rope_theta": settings["rotary_base"]}}


# === The tables ===

_BERT_CONFIG = {
    "vocabulary_size": ("vocab_size", 30522),
    "num_layers": ("num_hidden_layers", 12),
    "num_heads": ("num_attention_heads", 12),
    "hidden_dim": ("hidden_size", 768),
    "intermediate_dim": ("intermediate_size", 3072),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "max_sequence_length": ("max_position_embeddings", 512),
    "num_segments": ("type_vocab_size", 2),
    "activation": ("hidden_act", "gelu"),
    "layer_norm_epsilon": ("layer_norm_eps", 1e-12),
    "initializer_range": ("initializer_range", 0.02),
}
_BERT = {  # BertModel
    "token_embedding": "embeddings.word_embeddings",
    "position_embedding": "embeddings.position_embeddings",
    "segment_embedding": "embeddings.token_type_embeddings",
    "embeddings_layer_norm": "embeddings.LayerNorm",
    "embeddings_projection": "embeddings_project",
    "transformer_layer_{i}/attention/qkv": "encoder.layer.{i}.attention.self.[query|key|value]",
    "transformer_layer_{i}/attention/output": "encoder.layer.{i}.attention.output.dense",
    "transformer_layer_{i}/attention_layer_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "transformer_layer_{i}/intermediate": "encoder.layer.{i}.intermediate.dense",
    "transformer_layer_{i}/output": "encoder.layer.{i}.output.dense",
    "transformer_layer_{i}/output_layer_norm": "encoder.layer.{i}.output.LayerNorm",
    "pooled_dense": "pooler.dense",
}
# ...ForTokenClassification, ...ForQuestionAnswering and ...ForMultipleChoice of most families
_BERT_HEADS = {
    "token_classifier": {"logits": "classifier"},
    "question_answering": {"logits": "qa_outputs"},
    "multiple_choice": {"logits": "classifier"},
}
_CLASSIFIER_DROPOUT = {"dropout": ("classifier_dropout", None)}
_BERT_HEAD_CONFIG = {
    "text_classifier": _CLASSIFIER_DROPOUT,
    "token_classifier": _CLASSIFIER_DROPOUT,
    "multiple_choice": _CLASSIFIER_DROPOUT,
    "masked_lm": {"tie_weights": ("tie_word_embeddings", True)},
}


def _mlm_head(dense, norm, output):
    return {"mlm_head/dense": dense, "mlm_head/layer_norm": norm, "mlm_head": output}


def _roberta(classes, **config):
    """Make the table of RobertaModel and XLMRobertaModel, which differ only in their vocabulary."""
    return Table(
        classes=classes,
        prefix="roberta.",
        config={**_BERT_CONFIG, **config},
        encoder=_BERT,
        heads={
            **_BERT_HEADS,
            "text_classifier": {"head_dense": "classifier.dense", "logits": "classifier.out_proj"},
            "masked_lm": _mlm_head("lm_head.dense", "lm_head.layer_norm", "lm_head"),
        },
        head_config={
            **_BERT_HEAD_CONFIG,
            "multiple_choice": {"dropout": ("hidden_dropout_prob", 0.1)},
        },
        decoder="lm_head.decoder",
        poolers=(None, "multiple_choice"),
        starts_at_padding=True,
        default_ids={},  # Positions count from the padding id.
    )


_NOT_DEBERTAS = (
    "position_embedding",
    "segment_embedding",
    "embeddings_projection",
    "pooled_dense",
)
_DEBERTA_POOLED = {"head_dense": "pooler.dense", "logits": "classifier"}
_DEBERTA_CLASSES = {
    "dropout": ("cls_dropout", None),
    "head_activation": ("pooler_hidden_act", "gelu"),
}
_ROTARY_HEADS = {
    "text_classifier": {"head_dense": "pooler.dense", "logits": "classifier"},
    "token_classifier": {"logits": "classifier"},
}
_DISTILBERT_HEAD = {"head_dense": "pre_classifier", "logits": "classifier"}
_ALBERT_GROUP = "encoder.albert_layer_groups.{i}.albert_layers.{j}"
_ALBERT_DROPOUT = {"dropout": ("classifier_dropout_prob", 0.1)}
_MODERNBERT_HEAD = {"head_dense": "head.dense", "head_norm": "head.norm", "logits": "classifier"}
_MODERNBERT_DENSE = {
    "head_activation": ("classifier_activation", "gelu"),
    "head_bias": ("classifier_bias", False),
}
_MODERNBERT_TOKENS = {**_MODERNBERT_DENSE, "dropout": ("classifier_dropout", 0.0)}
_MODERNBERT_POOLED = {**_MODERNBERT_TOKENS, "pooling": ("classifier_pooling", "cls")}
_MODERNBERT_CONFIG = {
    "vocabulary_size": ("vocab_size", 50368),
    "num_layers": ("num_hidden_layers", 22),
    "num_heads": ("num_attention_heads", 12),
    "hidden_dim": ("hidden_size", 768),
    "intermediate_dim": ("intermediate_size", 1152),
    "dropout": ("mlp_dropout", 0.0),
    "attention_dropout": ("attention_dropout", 0.0),
    "max_sequence_length": ("max_position_embeddings", 8192),
    "activation": ("hidden_activation", "gelu"),
    "layer_norm_epsilon": ("norm_eps", 1e-5),
    "initializer_range": ("initializer_range", 0.02),
    "local_window": ("local_attention", 128),
}
_MODERNBERT_IDS = {
    "pad_token_id": 50283,
    "bos_token_id": 50281,
    "eos_token_id": 50282,
    "cls_token_id": 50281,
    "sep_token_id": 50282,
}


def _modernbert(qkv):
    """Return the layers of ModernBERT and its decoder, which differ in one name."""
    return {
        "token_embedding": "embeddings.tok_embeddings",
        "embeddings_layer_norm": "embeddings.norm",
        "transformer_layer_{i}/attention/qkv": f"layers.{{i}}.attn.{qkv}",
        "transformer_layer_{i}/attention/output": "layers.{i}.attn.Wo",
        "transformer_layer_{i}/attention_layer_norm": "layers.{i}.attn_norm",
        "transformer_layer_{i}/intermediate": "layers.{i}.mlp.Wi",
        "transformer_layer_{i}/output": "layers.{i}.mlp.Wo",
        "transformer_layer_{i}/output_layer_norm": "layers.{i}.mlp_norm",
        "final_layer_norm": "final_norm",
    }


_GPT_CONFIG = {
    "vocabulary_size": ("vocab_size", 50257),
    "num_layers": ("n_layer", 12),
    "num_heads": ("n_head", 12),
    "hidden_dim": ("n_embd", 768),
    "dropout": ("resid_pdrop", 0.1),
    "attention_dropout": ("attn_pdrop", 0.1),
    "layer_norm_epsilon": ("layer_norm_epsilon", 1e-5),
    "initializer_range": ("initializer_range", 0.02),
}
_GPT_ALIASES = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
}


def _gpt(tokens, positions, **more):
    """Return the layers of both GPTs."""
    return {
        "token_embedding": tokens,
        "position_embedding": positions,
        "transformer_layer_{i}/attention/qkv": "h.{i}.attn.c_attn",
        "transformer_layer_{i}/attention/output": "h.{i}.attn.c_proj",
        "transformer_layer_{i}/attention_layer_norm": "h.{i}.ln_1",
        "transformer_layer_{i}/intermediate": "h.{i}.mlp.c_fc",
        "transformer_layer_{i}/output": "h.{i}.mlp.c_proj",
        "transformer_layer_{i}/output_layer_norm": "h.{i}.ln_2",
        **more,
    }


_GPT_HEADS = {
    "causal_lm": {"lm_head/decoder": "lm_head"},
    "text_classifier": {"logits": "score"},
}
_GPT_HEAD_CONFIG = {"causal_lm": {"tie_weights": ("tie_word_embeddings", True)}}
TABLES = {
    "bert": Table(
        classes="Bert",
        prefix="bert.",
        config=_BERT_CONFIG,
        encoder=_BERT,
        heads={
            **_BERT_HEADS,
            "text_classifier": {"logits": "classifier"},
            "next_sentence_predictor": {"logits": "cls.seq_relationship"},
            "masked_lm": _mlm_head(
                "cls.predictions.transform.dense",
                "cls.predictions.transform.LayerNorm",
                "cls.predictions",
            ),
        },
        head_config=_BERT_HEAD_CONFIG,
        decoder="cls.predictions.decoder",
        poolers=(
            None,
            "text_classifier",
            "next_sentence_predictor",
            "multiple_choice",
            "pretrainer",
        ),
        without_class=(),
    ),
    "roberta": _roberta("Roberta", vocabulary_size=("vocab_size", 50265)),
    "xlm_roberta": _roberta("XLMRoberta"),
    "distilbert": Table(
        classes="DistilBert",
        prefix="distilbert.",
        config={
            "vocabulary_size": ("vocab_size", 30522),
            "num_layers": ("n_layers", 6),
            "num_heads": ("n_heads", 12),
            "hidden_dim": ("dim", 768),
            "intermediate_dim": ("hidden_dim", 3072),
            "dropout": ("dropout", 0.1),
            "attention_dropout": ("attention_dropout", 0.1),
            "max_sequence_length": ("max_position_embeddings", 512),
            "activation": ("activation", "gelu"),
            "initializer_range": ("initializer_range", 0.02),
        },
        encoder={  # DistilBertModel
            "token_embedding": "embeddings.word_embeddings",
            "position_embedding": "embeddings.position_embeddings",
            "embeddings_layer_norm": "embeddings.LayerNorm",
            "transformer_layer_{i}/attention/qkv": (
                "transformer.layer.{i}.attention.[q_lin|k_lin|v_lin]"
            ),
            "transformer_layer_{i}/attention/output": "transformer.layer.{i}.attention.out_lin",
            "transformer_layer_{i}/attention_layer_norm": "transformer.layer.{i}.sa_layer_norm",
            "transformer_layer_{i}/intermediate": "transformer.layer.{i}.ffn.lin1",
            "transformer_layer_{i}/output": "transformer.layer.{i}.ffn.lin2",
            "transformer_layer_{i}/output_layer_norm": "transformer.layer.{i}.output_layer_norm",
        },
        heads={
            **_BERT_HEADS,
            "text_classifier": _DISTILBERT_HEAD,
            "multiple_choice": _DISTILBERT_HEAD,
            "masked_lm": _mlm_head("vocab_transform", "vocab_layer_norm", "vocab_projector"),
        },
        head_config={
            "text_classifier": {"dropout": ("seq_classif_dropout", 0.2)},
            "token_classifier": {"dropout": ("dropout", 0.1)},
            "question_answering": {"dropout": ("qa_dropout", 0.1)},
            "multiple_choice": {"dropout": ("seq_classif_dropout", 0.2)},
            "masked_lm": _BERT_HEAD_CONFIG["masked_lm"],
        },
        aliases={
            "hidden_size": "dim",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
        },
    ),
    "electra": Table(
        classes="Electra",
        prefix="electra.",
        config={
            **_BERT_CONFIG,
            "num_heads": ("num_attention_heads", 4),
            "hidden_dim": ("hidden_size", 256),
            "intermediate_dim": ("intermediate_size", 1024),
            "embedding_dim": ("embedding_size", 128),
        },
        encoder=_BERT,  # ElectraModel
        heads={
            **_BERT_HEADS,
            "text_classifier": {"head_dense": "classifier.dense", "logits": "classifier.out_proj"},
            "multiple_choice": {"head_dense": "sequence_summary.summary", "logits": "classifier"},
            "replaced_token_detector": {
                "head_dense": "discriminator_predictions.dense",
                "logits": "discriminator_predictions.dense_prediction",
            },
            "masked_lm": _mlm_head(
                "generator_predictions.dense",
                "generator_predictions.LayerNorm",
                "generator_lm_head",
            ),
        },
        head_config={
            **_BERT_HEAD_CONFIG,
            "replaced_token_detector": {"head_activation": ("hidden_act", "gelu")},
            "multiple_choice": {
                "dropout": ("summary_last_dropout", 0.1),
                "head_activation": (
                    "summary_activation",
                    head_settings("electra", "multiple_choice")["head_activation"],
                ),
            },
        },
        has_square_projection=False,
        refused={
            "multiple_choice": {
                "summary_type": "first",
                "summary_use_proj": True,
                "summary_proj_to_labels": False,
            }
        },
    ),
    "albert": Table(
        classes="Albert",
        prefix="albert.",
        config={
            **_BERT_CONFIG,
            "vocabulary_size": ("vocab_size", 30000),
            "num_heads": ("num_attention_heads", 64),
            "hidden_dim": ("hidden_size", 4096),
            "intermediate_dim": ("intermediate_size", 16384),
            "dropout": ("hidden_dropout_prob", 0.0),
            "attention_dropout": ("attention_probs_dropout_prob", 0.0),
            "activation": ("hidden_act", "gelu_new"),
            "embedding_dim": ("embedding_size", 128),
            "num_groups": ("num_hidden_groups", 1),
            "num_inner_repetitions": ("inner_group_num", 1),
        },
        encoder={  # AlbertModel
            "token_embedding": "embeddings.word_embeddings",
            "position_embedding": "embeddings.position_embeddings",
            "segment_embedding": "embeddings.token_type_embeddings",
            "embeddings_layer_norm": "embeddings.LayerNorm",
            "embeddings_projection": "encoder.embedding_hidden_mapping_in",
            "transformer_layer_{i}/attention/qkv": f"{_ALBERT_GROUP}.attention.[query|key|value]",
            "transformer_layer_{i}/attention/output": f"{_ALBERT_GROUP}.attention.dense",
            "transformer_layer_{i}/attention_layer_norm": f"{_ALBERT_GROUP}.attention.LayerNorm",
            "transformer_layer_{i}/intermediate": f"{_ALBERT_GROUP}.ffn",
            "transformer_layer_{i}/output": f"{_ALBERT_GROUP}.ffn_output",
            "transformer_layer_{i}/output_layer_norm": f"{_ALBERT_GROUP}.full_layer_layer_norm",
            "pooled_dense": "pooler",
        },
        heads={
            **_BERT_HEADS,
            "text_classifier": {"logits": "classifier"},
            # Sentence order, only in AlbertForPreTraining.
            "next_sentence_predictor": {"logits": "sop_classifier.classifier"},
            "masked_lm": _mlm_head("predictions.dense", "predictions.LayerNorm", "predictions"),
        },
        head_config={
            "text_classifier": _ALBERT_DROPOUT,
            "token_classifier": _ALBERT_DROPOUT,
            "next_sentence_predictor": _ALBERT_DROPOUT,
            "multiple_choice": _ALBERT_DROPOUT,
            "masked_lm": _BERT_HEAD_CONFIG["masked_lm"],
        },
        decoder="predictions.decoder",
        poolers=(None, "text_classifier", "multiple_choice", "pretrainer"),
        without_class=("next_sentence_predictor",),
    ),
    "deberta_v3": Table(
        classes="DebertaV2",
        model_type="deberta-v2",
        prefix="deberta.",
        config={
            **{ours: names for ours, names in _BERT_CONFIG.items() if ours != "num_segments"},
            "vocabulary_size": ("vocab_size", 128100),
            "num_layers": ("num_hidden_layers", 24),
            "num_heads": ("num_attention_heads", 24),
            "hidden_dim": ("hidden_size", 1536),
            "intermediate_dim": ("intermediate_size", 6144),
            "layer_norm_epsilon": ("layer_norm_eps", 1e-7),
        },
        encoder={  # DebertaV2Model
            **{ours: theirs for ours, theirs in _BERT.items() if ours not in _NOT_DEBERTAS},
            "transformer_layer_{i}/attention/qkv": (
                "encoder.layer.{i}.attention.self.[query_proj|key_proj|value_proj]"
            ),
            "distance_embedding": "encoder.rel_embeddings",
            "distance_embedding/layer_norm": "encoder.LayerNorm",
        },
        # The checkpoints were not trained with transformers' masked-LM class.
        heads={
            **_BERT_HEADS,
            "text_classifier": _DEBERTA_POOLED,
            "multiple_choice": _DEBERTA_POOLED,
        },
        head_config={
            "text_classifier": _DEBERTA_CLASSES,
            "token_classifier": {"dropout": ("hidden_dropout_prob", 0.1)},
            "multiple_choice": _DEBERTA_CLASSES,
        },
        refused={
            "text_classifier": {"pooler_dropout": 0},
            "multiple_choice": {"pooler_dropout": 0},
        },
        read=_read_deberta,
        write=_write_deberta,
    ),
    # These two use the names in the files; transformers renames them on loading.
    "nomic_bert": Table(
        classes="NomicBert",
        prefix="nomic_bert.",
        config={
            **_BERT_CONFIG,
            "vocabulary_size": ("vocab_size", 30528),
            "dropout": ("hidden_dropout_prob", 0.0),
            "attention_dropout": ("attention_probs_dropout_prob", 0.0),
            "max_sequence_length": ("max_position_embeddings", 2048),
            "activation": ("hidden_act", "silu"),
        },
        encoder={  # NomicBertModel
            "token_embedding": "embeddings.word_embeddings",
            "segment_embedding": "embeddings.token_type_embeddings",
            "embeddings_layer_norm": "emb_ln",
            "transformer_layer_{i}/attention/qkv": "encoder.layers.{i}.attn.Wqkv",
            "transformer_layer_{i}/attention/output": "encoder.layers.{i}.attn.out_proj",
            "transformer_layer_{i}/attention_layer_norm": "encoder.layers.{i}.norm1",
            "transformer_layer_{i}/intermediate": "encoder.layers.{i}.mlp.[fc12|fc11]",
            "transformer_layer_{i}/output": "encoder.layers.{i}.mlp.fc2",
            "transformer_layer_{i}/output_layer_norm": "encoder.layers.{i}.norm2",
        },
        heads={
            **_ROTARY_HEADS,
            "masked_lm": _mlm_head(
                "cls.predictions.transform.dense",
                "cls.predictions.transform.layer_norm",
                "cls.predictions",
            ),
        },
        head_config=_BERT_HEAD_CONFIG,
        model_type="nomic_bert",
        decoder="cls.predictions.decoder",
        aliases={
            "n_embd": "hidden_size",
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "n_inner": "intermediate_size",
            "resid_pdrop": "hidden_dropout_prob",
            "attn_pdrop": "attention_probs_dropout_prob",
            "max_trained_positions": "max_position_embeddings",
            "layer_norm_epsilon": "layer_norm_eps",
            "rotary_emb_base": "rope_theta",
        },
        ignored=("position_embedding_type",),
        inside=("pooler.",),
        read=_read_rotary(1000.0, _NOMIC),
        write=_write_rotary,
    ),
    "gte": Table(
        classes="Gte",
        prefix="gte.",
        config={
            **_BERT_CONFIG,
            "vocabulary_size": ("vocab_size", 250048),
            "attention_dropout": ("attention_probs_dropout_prob", 0.0),
            "max_sequence_length": ("max_position_embeddings", 8192),
            "num_segments": ("type_vocab_size", 1),
        },
        encoder={  # GteModel
            "token_embedding": "embeddings.word_embeddings",
            "segment_embedding": "embeddings.token_type_embeddings",
            "embeddings_layer_norm": "embeddings.LayerNorm",
            "transformer_layer_{i}/attention/qkv": "encoder.layer.{i}.attention.qkv_proj",
            "transformer_layer_{i}/attention/output": "encoder.layer.{i}.attention.o_proj",
            "transformer_layer_{i}/attention_layer_norm": "encoder.layer.{i}.attn_ln",
            "transformer_layer_{i}/intermediate": "encoder.layer.{i}.mlp.up_gate_proj",
            "transformer_layer_{i}/output": "encoder.layer.{i}.mlp.down_proj",
            "transformer_layer_{i}/output_layer_norm": "encoder.layer.{i}.mlp_ln",
        },
        heads={
            **_ROTARY_HEADS,
            "masked_lm": _mlm_head("lm_head.dense", "lm_head.norm", "lm_head.decoder"),
        },
        head_config=_BERT_HEAD_CONFIG,
        ignored=("position_embedding_type",),
        inside=("pooler.",),
        may_lack_segments=True,
        swapped="/intermediate",
        read=_read_rotary(160000.0, _GTE),
        write=_write_rotary,
    ),
    "gpt2": Table(
        classes="GPT2",
        prefix="transformer.",
        layout="conv1d",
        config={
            **_GPT_CONFIG,
            "max_sequence_length": ("n_positions", 1024),
            "activation": ("activation_function", "gelu_new"),
        },
        encoder=_gpt("wte", "wpe", final_layer_norm="ln_f"),  # GPT2Model
        heads={
            **_GPT_HEADS,
            "token_classifier": {"logits": "classifier"},
            "question_answering": {"logits": "qa_outputs"},
        },
        head_config={
            **_GPT_HEAD_CONFIG,
            "token_classifier": {"dropout": ("classifier_dropout", 0.1)},
        },
        aliases=_GPT_ALIASES,
        token_ids=("bos_token_id", "eos_token_id"),
        default_ids={"bos_token_id": 50256, "eos_token_id": 50256},
        read=_read_gpt2,
        write=_write_gpt2,
    ),
    "gpt": Table(
        classes="OpenAIGPT",
        model_type="openai-gpt",
        prefix="transformer.",
        layout="conv1d",
        config={
            **_GPT_CONFIG,
            "vocabulary_size": ("vocab_size", 40478),
            "max_sequence_length": ("n_positions", 512),
            "activation": ("afn", "gelu"),
        },
        encoder=_gpt("tokens_embed", "positions_embed"),  # OpenAIGPTModel
        heads=_GPT_HEADS,
        head_config=_GPT_HEAD_CONFIG,
        aliases=_GPT_ALIASES,
        read=_read_gpt,
        write=_write_gpt,
    ),
    "modernbert_decoder": Table(
        classes="ModernBertDecoder",
        prefix="model.",
        config=_MODERNBERT_CONFIG,
        encoder=_modernbert("[q_proj|k_proj|v_proj]"),  # ModernBertDecoderModel
        heads={
            "text_classifier": _MODERNBERT_HEAD,
            "causal_lm": {
                "lm_head/dense": "lm_head.dense",
                "lm_head/layer_norm": "lm_head.norm",
                "lm_head": "decoder",
                "lm_head/decoder": "decoder",
            },
        },
        head_config={
            "text_classifier": {
                **_MODERNBERT_TOKENS,
                "output_bias": ("classifier_bias", False),
            },
            "causal_lm": {
                **_MODERNBERT_DENSE,
                **_BERT_HEAD_CONFIG["masked_lm"],
                "output_bias": ("decoder_bias", True),
            },
        },
        endings={"causal_lm": "ForCausalLM"},
        ignored=("position_embedding_type",),
        token_ids=tuple(_MODERNBERT_IDS),
        no_id=-1,
        default_ids=_MODERNBERT_IDS,
        read=_read_modernbert_decoder,
        write=_write_modernbert_decoder,
    ),
    "modernbert": Table(
        classes="ModernBert",
        prefix="model.",
        config=_MODERNBERT_CONFIG,
        encoder=_modernbert("Wqkv"),  # ModernBertModel
        heads={
            "text_classifier": _MODERNBERT_HEAD,
            "token_classifier": _MODERNBERT_HEAD,
            "question_answering": _MODERNBERT_HEAD,
            "multiple_choice": _MODERNBERT_HEAD,
            "masked_lm": _mlm_head("head.dense", "head.norm", "decoder"),
        },
        head_config={
            "text_classifier": _MODERNBERT_POOLED,
            "token_classifier": _MODERNBERT_TOKENS,
            "question_answering": _MODERNBERT_TOKENS,
            "multiple_choice": _MODERNBERT_POOLED,
            "masked_lm": {
                **_MODERNBERT_DENSE,
                **_BERT_HEAD_CONFIG["masked_lm"],
                "output_bias": ("decoder_bias", True),
            },
        },
        ignored=("position_embedding_type",),  # Positions are always rotary.
        token_ids=tuple(_MODERNBERT_IDS),
        default_ids=_MODERNBERT_IDS,
        read=_read_modernbert,
        write=_write_modernbert,
    ),
}
