"""A family's names in transformers, and those that most families share with BERT.

Source: `transformers` 5.23; its classes are named beside the tables.
"""

import dataclasses
from collections.abc import Callable

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
        aliases: dict of a key's other name, which takes precedence, to the key.
        ignored: tuple. Keys of `huggingface.REFUSED` without effect here.
        special_ids: tuple. Keys of special tokens in `config.json`.
        token_ids: tuple. Those whose defaults may lie outside a vocabulary.
        no_id: value that stands for an unknown id, if its class does not accept `None`.
        default_ids: dict of key to its default, which is not compared with the tokenizer's id:
            files have it if the key was never set, as those with BERT's class and XLM-R's
            vocabulary.
        head_names: tuple. Prefixes of the heads' weight names, if unusual.
        refused: dict of kind of head to a dict of key to the only supported value.
        inside: tuple. Prefixes of head layers that are named among the encoder's.
        may_lack_segments: bool. Whether its class omits the segment table if there are no segments.
        swapped: string. See `NameMap.swapped`.
        split_heads: dict of name suffix to bool, for matrices with an axis for heads: whether the
            matrix projects into the heads, (D, N, H), or, not transposed, out of them.
        verbatim: function of the encoder's settings; see `NameMap.verbatim`.
        verbatim_head: the same for its heads.
        tied: function of the encoder's settings and `config.json` that returns `Checkpoint.tied`;
            `None` derives it from the heads.
        read: function of `config.json` and its path that returns further encoder settings.
        write: function of the encoder's settings that returns further keys; the reverse of `read`.
        read_head: function of `config.json` and its path that returns further arguments for the
            class of any head.
        write_head: function of a task that returns further keys.
        generation: function of a task and its `config.json` that returns `generation_config.json`
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


def check_head_width(config, path):
    """Raise unless the widths of the rotary heads add up to the encoder's."""
    width, heads = config.get("hidden_size", 768), config.get("num_attention_heads", 12)
    if config.get("head_dim") not in (None, width / heads):
        raise ValueError(
            f"'{path}' has head_dim={config['head_dim']!r} with hidden_size={width} and "
            f"num_attention_heads={heads}; kerasbert only rotates heads over their whole width."
        )


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

# ...ForTokenClassification, ...ForQuestionAnswering and ...ForMultipleChoice of most families
HEADS = {
    "token_classifier": {"logits": "classifier"},
    "question_answering": {"logits": "qa_outputs"},
    "multiple_choice": {"logits": "classifier"},
}

_CLASSIFIER_DROPOUT = {"dropout": ("classifier_dropout", None)}

HEAD_CONFIG = {
    "text_classifier": _CLASSIFIER_DROPOUT,
    "token_classifier": _CLASSIFIER_DROPOUT,
    "multiple_choice": _CLASSIFIER_DROPOUT,
    "masked_lm": {"tie_weights": ("tie_word_embeddings", True)},
}


def mlm_head(dense, norm, output):
    return {"mlm_head/dense": dense, "mlm_head/layer_norm": norm, "mlm_head": output}
