"""`Table`: a family's names in transformers, and those shared with BERT.

"Their" classes, keys and layers are those of `transformers` 5.23, named beside the tables.
"""

import dataclasses
from collections.abc import Callable

from kerasbert.base.errors import check_fields
from kerasbert.kinds import KINDS

# "gelu" is the erf form in transformers, but the tanh form in Google's files.
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

# Keys of the special token ids that some configs have.
SPECIAL_IDS = tuple(f"{role}_token_id" for role in ("pad", "bos", "eos", "cls", "sep", "mask"))


@dataclasses.dataclass(frozen=True)
class Table:
    """A family's names in transformers.

    Args:
        classes: prefix of its class names.
        prefix: prefix of the encoder's weight names in a class with a head.
        config: dict of our encoder setting to `(their key, transformers' default)`.
        encoder: dict of our layer to theirs; see `kerasbert.checkpoints.name_map`.
        heads: dict of kind of head to such a dict of the head's layers.
        head_config: dict of kind of head to its settings, in the form of `config`. A dropout of
            `None` means the encoder's. A third item is a dict of their values to ours.
        model_type: the `model_type` in `config.json`; "" for the family's name.
        marks: dict of key to value in `config.json` that distinguish this family from another one
            with the same `model_type`.
        layout: string. Naming and layout of the encoder's weights; see `name_map.LEAVES`.
        decoder: string. Their layer that repeats the token embedding and the output bias in older
            files; "" for none.
        poolers: tuple. Kinds of heads whose class has a pooler; `None` stands for the bare encoder.
        endings: dict of kind of head to the suffix of its class name, if not `Kind.huggingface`;
            `None` stands for the bare encoder, whose suffix is usually "Model".
        without_class: tuple. Kinds of heads that have weight names, but no class of their own.
        starts_at_padding: whether the first position's row follows that of the padding id.
        has_square_projection: whether embeddings are projected even if they have the encoder's
            width.
        aliases: dict of a key's other name, which takes precedence, to the key.
        ignored: tuple. Keys of `huggingface.REFUSED` that have no effect in this family.
        special_ids: tuple. Keys of special tokens in `config.json`.
        token_ids: tuple. Those of the special tokens whose default ids may lie outside a
            vocabulary.
        no_id: value that stands for an unknown id, if the class does not accept `None`.
        default_ids: dict of key to its default id. It is not compared with the tokenizer's, because
            it may never have been set, such as for BERT's class with XLM-R's vocabulary.
        head_names: tuple. Prefixes of the heads' weight names, if they are unusual.
        unused: tuple. Parts of the names of stored weights that are not read.
        refused: dict of kind of head to a dict of key to the only supported value.
        inside: tuple. Prefixes of head layers whose names are among those of the encoder.
        may_lack_segments: whether the class has no segment table if there are no segments.
        swapped: string. See `NameMap.swapped`.
        orders: function of the encoder's settings; see `NameMap.orders`.
        fixed: function of the encoder's settings that returns redundant tensors of its class, a
            dict of name to array. The encoder's own weights take precedence.
        split_heads: dict of name suffix to bool, for matrices with an axis for heads: true for
            projections into them, (D, N, H), false out of them, not transposed.
        constants: function of `config.json` that returns a dict of a weight's name to that of a
            table, whose first row transformers adds to its rows.
        verbatim: function of the encoder's settings; see `NameMap.verbatim`.
        verbatim_head: function of the encoder's settings, the same for the heads.
        tied: function of the encoder's settings and `config.json` that returns `Checkpoint.tied`;
            `None` derives it from the heads.
        read: function of `config.json` and its path that returns further encoder settings.
        write: function of the encoder's settings that returns further keys; the reverse of `read`.
        read_head: function of `config.json` and its path that returns further arguments for the
            class of any head.
        write_head: function of a task that returns further keys.
        generation: function of a task and its `config.json` that returns `generation_config.json`,
            the reverse of `read_head`, or `None`.
    """

    classes: str
    prefix: str
    config: dict
    encoder: dict
    heads: dict
    head_config: dict
    model_type: str = ""
    marks: dict = dataclasses.field(default_factory=dict)
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
    unused: tuple = ()
    refused: dict = dataclasses.field(default_factory=dict)
    inside: tuple = ()
    may_lack_segments: bool = False
    swapped: str = ""
    orders: Callable = lambda settings: None
    fixed: Callable = lambda settings: {}
    split_heads: dict = dataclasses.field(default_factory=dict)
    constants: Callable = lambda config: {}
    verbatim: Callable = lambda settings: None
    verbatim_head: Callable = lambda settings: None
    tied: Callable = None
    read: Callable = lambda config, path: {}
    write: Callable = lambda settings: {}
    read_head: Callable = lambda config, path: {}
    write_head: Callable = lambda task: {}
    generation: Callable = None

    def of_head(self, kind, tied=True):
        """Return the layer names of a kind of head; `tied` is whether it shares the embeddings.

        >>> from kerasbert.families import TABLES
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
        usual = KINDS[kind].huggingface if kind else "Model"
        return self.classes + self.endings.get(kind, usual)

    def settings_of_head(self, kind):
        """Return the `head_config` of a kind of head and its parts."""
        settings = dict(self.head_config.get(kind, {}))
        for part in KINDS[kind].parts:
            settings |= self.settings_of_head(part)
        return settings

    def has_class(self, kind):
        """Return whether transformers has a class for a kind of head; `None` means the encoder."""
        if kind is None:
            return True
        has_name = bool(KINDS[kind].huggingface and self.of_head(kind))
        return has_name and kind not in self.without_class


def name_of(activation, names=ACTIVATIONS):
    """Return the first of the `names` for one of our activations.

    Others are returned unchanged: reading the file back raises an error.
    """
    return next((name for name, ours in names.items() if ours == activation), activation)


def refuse(path, key, value, fine):
    """Raise a `ValueError` for an unsupported value; `fine` is the supported one."""
    raise ValueError(
        f"'{path}' has {key}={value!r}, which kerasbert does not support; only {key}={fine} can be "
        "loaded."
    )


def check_head_width(config, path):
    """Raise unless the widths of the attention heads add up to the encoder's width."""
    width, heads = config.get("hidden_size", 768), config.get("num_attention_heads", 12)
    if config.get("head_dim") not in (None, width / heads):
        raise ValueError(
            f"'{path}' has head_dim={config['head_dim']!r} with hidden_size={width} and "
            f"num_attention_heads={heads}; kerasbert only rotates heads over their whole width."
        )


def read_rotary(base, known):
    """Return a function that reads the base of the rotary positions from a config.

    It raises an error for other keys that differ from `known`.
    """

    def read(config, path):
        check_head_width(config, path)
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
        if theta is None and config.get("model_type") == "new":  # This type has another default.
            refuse(path, "rope_theta", theta, "a number")
        theta = float(base if theta is None else theta)
        kind, factor = rope.get("rope_type", rope.get("type", "default")), rope.get("factor", 1.0)
        if kind == "default":
            factor = 1.0
        elif kind == "ntk" and rope.get("mixed_b") is None:
            # The original code also slows the fastest rotation.
            width = config.get("hidden_size", 768) // config.get("num_attention_heads", 12)
            theta, factor = theta * factor, factor ** (2 / width)
        elif kind != "linear":
            raise ValueError(
                f"'{path}' scales its rotary positions ({rope}); kerasbert supports only the "
                "rope_type 'default' and 'linear': use a checkpoint with one of these."
            )
        return {"rotary_base": theta, "rotary_factor": float(factor)}

    return read


def write_rotary(settings):
    """Return the keys of rotary positions; the reverse of `read_rotary`."""
    factor = settings.get("rotary_factor", 1.0)
    more = {"rope_type": "default"} if factor == 1 else {"rope_type": "linear", "factor": factor}
    return {"rope_parameters": {**more, "rope_theta": settings["rotary_base"]}}


CONFIG = {
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

ENCODER = {  # BertModel
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


def pre_norm(attention, output, final):
    """Return `ENCODER` with the names of pre-norms and the last norm.

    >>> pre_norm("ln_1", "ln_2", "ln_f")["final_layer_norm"]
    'ln_f'
    """
    others = ("embeddings_layer_norm", "embeddings_projection")
    return {
        **{ours: theirs for ours, theirs in ENCODER.items() if ours not in others},
        "transformer_layer_{i}/attention_layer_norm": f"encoder.layer.{{i}}.{attention}",
        "transformer_layer_{i}/output_layer_norm": f"encoder.layer.{{i}}.{output}",
        "final_layer_norm": final,
    }


# ...ForTokenClassification, ...ForQuestionAnswering and ...ForMultipleChoice of most families
HEADS = {
    "token_classifier": {"logits": "classifier"},
    "question_answering": {"logits": "qa_outputs"},
    "multiple_choice": {"logits": "classifier"},
}

_CLASSIFIER_DROPOUT = {"dropout": ("classifier_dropout", None)}

# For heads that have no dropout setting of their own.
DROPOUT = {"dropout": ("hidden_dropout_prob", 0.1)}

HEAD_CONFIG = {
    "text_classifier": _CLASSIFIER_DROPOUT,
    "token_classifier": _CLASSIFIER_DROPOUT,
    "multiple_choice": _CLASSIFIER_DROPOUT,
    "masked_lm": {"tie_weights": ("tie_word_embeddings", True)},
}


def mlm_head(dense, norm, output):
    return {"mlm_head/dense": dense, "mlm_head/layer_norm": norm, "mlm_head": output}
