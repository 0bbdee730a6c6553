"""Marian's translation models, as transformers writes them: reading and writing.

Facts follow `transformers` 5.23.
"""

import functools
import os
from dataclasses import dataclass

import numpy as np

from kerasbert._errors import check_fields
from kerasbert.conversion.checkpoint import TensorFiles
from kerasbert.conversion.name_map import NameMap, load_weights
from kerasbert.conversion.writing import named_tensors, values_of
from kerasbert.files import json_in, new_folder, output_folder, write_files, write_json
from kerasbert.loading.names import resolve
from kerasbert.models.building import build_filled
from kerasbert.parts import head_weights
from kerasbert.tokenizers.marian import MarianTokenizer

ACTIVATIONS = {"swish": "swish", "silu": "swish", "relu": "relu", "gelu": "gelu"}
# Fields of config.json by our settings: the name, what it can be, and transformers' default.
FIELDS = {
    "vocabulary_size": ("vocab_size", "count", 58101),
    "num_layers": ("encoder_layers", "count", 12),
    "num_heads": ("encoder_attention_heads", "count", 16),
    "hidden_dim": ("d_model", "count", 1024),
    "intermediate_dim": ("encoder_ffn_dim", "count", 4096),
    "num_decoder_layers": ("decoder_layers", "count", 12),
    "num_decoder_heads": ("decoder_attention_heads", "count", 16),
    "decoder_intermediate_dim": ("decoder_ffn_dim", "count", 4096),
    "dropout": ("dropout", "share", 0.1),
    "attention_dropout": ("attention_dropout", "share", 0.0),
    "max_sequence_length": ("max_position_embeddings", "count", 1024),
    "activation": ("activation_function", "name", "gelu"),
    "scale_embeddings": ("scale_embedding", "flag", False),
}
# What `MarianMTModel` fixes, and fields of which it has, or we have, one value.
FIXED = {"layer_norm_epsilon": 1e-5, "norm_first": False}
ONLY = {
    "normalize_before": False,
    "add_final_layer_norm": False,
    "normalize_embedding": False,
    "static_position_embeddings": True,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
}
TABLE, BIAS = "model.shared.weight", "final_logits_bias"
# The same table under other names, and tables that hold no more than sines.
REPEATED = (
    "lm_head.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
)
SINES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


def _block(ours, theirs, inner):
    return {
        f"{ours}/attention/qkv": f"{theirs}.self_attn.[q_proj|k_proj|v_proj]",
        f"{ours}/attention/output": f"{theirs}.self_attn.out_proj",
        f"{ours}/attention_layer_norm": f"{theirs}.self_attn_layer_norm",
        f"{ours}/intermediate": f"{theirs}.fc1",
        f"{ours}/output": f"{theirs}.fc2",
        f"{ours}/output_layer_norm": f"{theirs}.final_layer_norm",
        **{f"{ours}/{name}": f"{theirs}.{other}" for name, other in inner.items()},
    }


NAMES = NameMap(
    {
        "token_embedding": "model.shared",
        **_block("encoder_layer_{i}", "model.encoder.layers.{i}", {}),
        **_block(
            "decoder_layer_{i}",
            "model.decoder.layers.{i}",
            {
                "cross_attention/query": "encoder_attn.q_proj",
                "cross_attention/kv": "encoder_attn.[k_proj|v_proj]",
                "cross_attention/output": "encoder_attn.out_proj",
                "cross_attention_layer_norm": "encoder_attn_layer_norm",
            },
        ),
    },
    "torch",
    verbatim={"lm_head/bias": BIAS},
)


class _Tensors(TensorFiles):
    """Marian's tensors, the bias of the logits without its axis of one."""

    def __getitem__(self, name):
        value = super().__getitem__(name)
        return value.reshape(-1) if name == BIAS else value

    def shape(self, name):
        shape = super().shape(name)
        return shape[-1:] if name == BIAS else shape


@dataclass(frozen=True)
class MarianCheckpoint:
    """What a directory of Marian's says.

    Args:
        source: string. For errors.
        encoder: dict. Arguments of `TransformerSeq2SeqBackbone`.
        task: dict. Arguments of `TransformerSeq2SeqLM`.
        tensors: mapping of names to arrays, or `None` where no weights are wanted.
        tokenizer: function that makes the tokenizer.
    """

    source: str
    encoder: dict
    task: dict
    tensors: object
    tokenizer: object


def read_checkpoint(preset, load_weights=True):
    """The `MarianCheckpoint` of a directory or a handle; `None` where it is of another kind.

    Raises:
        ValueError: for settings that these classes do not have.
    """
    if not isinstance(preset, (str, os.PathLike)):
        return None  # Others say so.
    directory = resolve(os.fspath(preset), load_weights)
    config = json_in(directory, "config.json")
    if config.get("model_type") != "marian":
        return None
    path = os.path.join(directory, "config.json")
    check_fields(config, {name: kind for name, kind, _ in FIELDS.values()}, path)
    for name, value in ONLY.items():
        if config.get(name, value) != value:
            raise ValueError(
                f"{name}={config[name]!r} in '{path}' is not what kerasbert builds, which is "
                f"{value!r}."
            )
    encoder = {ours: config.get(name, usual) for ours, (name, _, usual) in FIELDS.items()}
    if encoder["activation"] not in ACTIVATIONS:
        raise ValueError(
            f"activation_function={encoder['activation']!r} in '{path}' is unknown; kerasbert has "
            f"{', '.join(ACTIVATIONS)}."
        )
    encoder["activation"] = ACTIVATIONS[encoder["activation"]]
    # Newer directories say how to write in a file of its own.
    written = {**config, **json_in(directory, "generation_config.json")}
    forbidden = [id for ids in written.get("bad_words_ids") or () for id in ids]
    task = {
        "output_bias": True,
        "forbidden_token_ids": forbidden or None,
        "forced_end_token_id": written.get("forced_eos_token_id"),
    }
    return MarianCheckpoint(
        os.fspath(preset),
        {**encoder, **FIXED},
        task,
        _Tensors(directory) if load_weights else None,
        functools.partial(MarianTokenizer.from_files, directory),
    )


def backbone_of(cls, checkpoint, **kwargs):
    """A `TransformerSeq2SeqBackbone`, with the checkpoint's weights where they are wanted."""
    settings = {**checkpoint.encoder, **kwargs}
    if checkpoint.tensors is None:
        return cls(**settings)
    return build_filled(lambda: cls(**settings), lambda model: _fill(model, checkpoint))


def _fill(model, checkpoint):
    tensors = checkpoint.tensors
    for name in REPEATED:
        if name in tensors and not np.array_equal(tensors[name], tensors[TABLE]):
            raise ValueError(
                f"'{checkpoint.source}' has a {name} other than its {TABLE}, and kerasbert has "
                "one table for both."
            )
    others = (*REPEATED, *SINES, BIAS)
    load_weights(model.weights, tensors, NAMES, checkpoint.source, others.__contains__)


def task_of(cls, checkpoint, kwargs):
    """A `TransformerSeq2SeqLM` of a checkpoint and of arguments of `from_preset`."""
    own = {"name", "trainable", "preprocessor", "backbone", *checkpoint.task}
    task = {name: kwargs[name] for name in kwargs if name in own}
    rest = {name: kwargs[name] for name in kwargs if name not in own}
    length = rest.pop("sequence_length", None)
    if "preprocessor" not in task:
        most = {**checkpoint.encoder, **rest}["max_sequence_length"]
        task["preprocessor"] = cls.preprocessor_cls(
            checkpoint.tokenizer(), most if length is None else length
        )

    arguments = {**checkpoint.task, **task}
    backbone = arguments.pop("backbone", None)
    if backbone is None:
        backbone = backbone_of(cls.backbone_cls, checkpoint, **rest)
    model = cls(backbone, **arguments)
    if checkpoint.tensors is not None and model.output_bias and BIAS in checkpoint.tensors:
        load_weights(
            head_weights(model),
            checkpoint.tensors,
            NAMES,
            checkpoint.source,
            lambda name: name != BIAS,
        )
    return model


def write(model, directory):
    """Write a `TransformerSeq2SeqLM` as transformers saves its `MarianMTModel`."""
    from safetensors.numpy import save_file

    backbone = model.backbone
    theirs = {ours: name for name, ours in reversed(ACTIVATIONS.items())}
    wrong = [f"{n}={getattr(backbone, n)!r}" for n in FIXED if getattr(backbone, n) != FIXED[n]]
    if backbone.activation not in theirs:
        wrong.append(f"activation={backbone.activation!r}")
    if wrong:
        raise ValueError(
            f"MarianMTModel cannot hold {', '.join(wrong)}; nothing was written. Use "
            "save_to_preset."
        )
    tokenizer = getattr(model.preprocessor, "tokenizer", None)
    if tokenizer is not None and not isinstance(tokenizer, MarianTokenizer):
        raise ValueError(
            f"transformers has no place for a {type(tokenizer).__name__} beside a MarianMTModel; "
            "set model.preprocessor = None to write the weights alone, or use save_to_preset."
        )
    config = {name: getattr(backbone, ours) for ours, (name, _, _) in FIELDS.items()}
    config |= {"architectures": ["MarianMTModel"], "model_type": "marian", "dtype": "float32"}
    config |= {"decoder_vocab_size": backbone.vocabulary_size, **ONLY}
    config["activation_function"] = theirs[backbone.activation]
    # Without a tokenizer nobody knows, and their defaults may lie outside the vocabulary.
    ids = dict.fromkeys(("pad_token_id", "eos_token_id"))
    if tokenizer is not None:
        ids["pad_token_id"] = tokenizer.pad_token_id
        ids["eos_token_id"] = tokenizer.end_token_id
        ids["decoder_start_token_id"] = tokenizer.start_token_id
    ids["forced_eos_token_id"] = model.forced_end_token_id
    written = {**ids, "max_length": backbone.max_sequence_length}
    if model.forbidden_token_ids:
        written["bad_words_ids"] = [[id] for id in model.forbidden_token_ids]
    values = values_of(model.weights)
    values.setdefault("lm_head/bias", np.zeros(backbone.vocabulary_size, "float32"))
    tensors = named_tensors(values, NAMES, "MarianMTModel")
    tensors[BIAS] = tensors[BIAS][None]
    with new_folder(output_folder(directory, "directory"), keep=True) as folder:
        write_json(os.path.join(folder, "config.json"), {**config, **ids})
        write_json(os.path.join(folder, "generation_config.json"), written)
        if tokenizer is not None:
            special = {"unk": "unk", "eos": "sep", "pad": "pad"}
            settings = {f"{n}_token": getattr(tokenizer, f"{o}_token") for n, o in special.items()}
            settings["tokenizer_class"] = "MarianTokenizer"
            write_files(folder, tokenizer.files())
            write_json(os.path.join(folder, "tokenizer_config.json"), settings)
        path = os.path.join(folder, "model.safetensors")
        save_file(tensors, path, metadata={"format": "pt"})
