"""Helpers of all export formats: naming of weights, and comparison of settings."""

import inspect
import warnings

import keras
import numpy as np
from keras import ops

from kerasbert.base.keywords import own_class
from kerasbert.base.parts import encoder_of, head_weights
from kerasbert.families import LINEAGE, get_family
from kerasbert.families.settings import BIASED, has_bias
from kerasbert.kinds import KINDS, tables_of

# Settings without effect on outputs.
SOFT = (
    "dropout",
    "attention_dropout",
    "initializer_range",
    "dropout_first",
    "labels",
    "multi_label",
    "characters",
    "max_global_tokens",
)
# Settings without effect on outputs and training.
_NAMES = ("name", "dtype", "trainable", "family", "pooler", "finetuning_learning_rate")

# Activations with two names in Keras.
SAME_ACTIVATIONS = {"swish": "silu"}


def head_kind(model):
    """Return the kind of a task's head; `None` for encoders and for tasks without head weights."""
    kind = tables_of(model)
    # Language models have own classes in transformers.
    has_head = head_weights(model) or kind and KINDS[kind].huggingface
    return kind if model is not encoder_of(model) and has_head else None


def values_of(weights):
    """Return weights as a dict of path to float32 array.

    Raises:
        ValueError: for quantized weights or adapters.
    """
    odd = [w.path for w in weights if not keras.backend.is_float_dtype(w.dtype)]
    if odd:
        raise ValueError(
            f"{odd[0]} is quantized, which other formats do not support; convert the model from "
            "before `quantize`."
        )
    odd = [w.path for w in weights if "/lora_" in w.path]
    if odd:
        raise ValueError(
            f"{odd[0]} belongs to an adapter; save the model with `save_to_preset`, which merges "
            "adapters into the weights, and convert that."
        )
    return {w.path: ops.convert_to_numpy(ops.cast(w, "float32")) for w in weights}


def named_tensors(values, name_map, what):
    """Convert our weights to the other package's tensors, a dict of name to array.

    Args:
        values: dict of path to array.
        name_map: `NameMap`, or `None` for a head that the format does not support.
        what: the format, for error messages.

    Raises:
        ValueError: for weights without a name in the other package, with a list.
    """
    unknown = [path for path in values if name_map is None or name_map.theirs(path) is None]
    if unknown:
        raise ValueError(
            f"{what} has no name for {', '.join(unknown)}; nothing was written. Convert the "
            "encoder alone with task='encoder', or into another format."
        )
    written = (name_map.write(path, value) for path, value in values.items())
    return {name: tensor for tensors in written for name, tensor in tensors.items()}


def canonical(settings, encoder):
    """Normalize an encoder's settings, to compare.

    Args:
        settings: dict, for the class and family of `encoder`.
        encoder: one of our encoders.
    """
    defaults = inspect.signature(own_class(type(encoder)).__init__).parameters
    settings = {
        **{name: p.default for name, p in defaults.items() if p.default is not p.empty},
        **get_family(encoder.family).encoder,
        **settings,
    }
    if "activation" in settings:
        name = settings["activation"]
        settings["activation"] = SAME_ACTIVATIONS.get(name, name)
    if encoder.family in LINEAGE:
        return {name: x for name, x in settings.items() if name not in _NAMES}
    if settings["attention_dropout"] is None:
        settings["attention_dropout"] = settings["dropout"]
    settings["num_groups"] = settings["num_groups"] or settings["num_layers"]
    settings["num_key_value_heads"] = settings["num_key_value_heads"] or settings["num_heads"]
    settings["use_bias"] = [part for part in BIASED if has_bias(settings["use_bias"], part)]
    positions = settings["position_embedding"]
    unused = [] if positions == "learned" else ["position_offset"]
    if positions == "rotary":
        settings["local_rotary_base"] = settings["local_rotary_base"] or settings["rotary_base"]
    else:
        unused += ["rotary_base", "local_rotary_base", "rotary_factor", "rotary_value"]
    if positions == "disentangled" or settings["position_bias"] == "buckets":
        settings["max_relative_positions"] = (
            settings["max_relative_positions"] or settings["max_sequence_length"]
        )
    else:
        unused += ["bucket_size", "max_relative_positions"]
    if positions != "disentangled":
        unused += ["shares_projections"]
    if settings["conv_kernel_size"] is None:
        unused += ["conv_activation"]
    # The first and every n-th layer attend globally.
    if settings["global_every"] is not None:
        settings["global_every"] = min(settings["global_every"], settings["num_layers"])
    if settings["global_tokens"] == "given":  # The same model, with another input.
        settings["global_tokens"] = "by_task"
    if settings["global_tokens"] is None:
        unused += ["sep_token_id"]
    if settings["local_window"] is None or settings["global_every"] == 1:
        unused += ["local_rotary_base", "global_every", "local_window"]
    return {name: x for name, x in settings.items() if name not in (*unused, *_NAMES)}


def check_settings(expected, found, what, remedy):
    """Compare settings with those that a reader finds in the files.

    Args:
        expected: dict. Our settings.
        found: dict. The settings read back.
        what: the format, for error messages.
        remedy: string. What to do, for error messages.

    Returns:
        List of strings: differing settings without effect on outputs.

    Raises:
        ValueError: if settings that affect outputs differ, with a list.
    """
    differ = [name for name in expected if name in found and not _same(expected[name], found[name])]
    wrong = [name for name in differ if name not in SOFT]
    if wrong:
        listed = ", ".join(f"{n}={expected[n]!r} (there {found[n]!r})" for n in wrong)
        raise ValueError(f"{what} cannot hold {listed}; nothing was written. {remedy}")
    return [f"{n}={expected[n]!r} (there {found[n]!r})" for n in differ]


def _same(a, b):
    are_floats = isinstance(a, float) and isinstance(b, float)
    return bool(np.isclose(a, b, rtol=1e-9, atol=0)) if are_floats else a == b


def check_head(model, format):
    """Raise if a format has no place for a part of the head.

    Warn if it has none for the temperature or the null threshold, which do not change the logits.
    """
    what = f"The format '{format}' has no place for the"
    way = "use format='kerasbert', or convert the encoder alone with task='encoder'"
    name = type(model).__name__
    if getattr(model, "bilstm_units", 0):
        raise ValueError(
            f"{what} BiLSTM of this {name} (bilstm_units={model.bilstm_units}); {way}."
        )
    if getattr(model, "crf", False):
        raise ValueError(
            f"{what} transitions of this {name} (crf=True); {way}, or train a tagger without crf."
        )
    long = getattr(model, "long", None)
    if long is not None and long.has_windows:
        raise ValueError(f"{what} windows of this {name} (long='windows'); {way}.")
    if hasattr(model, "calibrate") and model.temperature != 1:
        warnings.warn(
            f"{what} temperature {model.temperature:.3g} of this {name}, so its probabilities are "
            "not calibrated there; divide the logits by it.",
            stacklevel=2,
        )
    if getattr(model, "null_threshold", None) is not None:
        warnings.warn(
            f"{what} null_threshold {model.null_threshold:.3g} of this {name}; compare the null "
            "scores with it.",
            stacklevel=2,
        )
