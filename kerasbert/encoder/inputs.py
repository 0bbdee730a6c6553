"""The encoder's inputs: missing ones, and rows that begin with padding."""

import warnings

import keras
import numpy as np
from keras import ops


def filled_in(encoder, inputs):
    """Add missing inputs; see `BertBackbone.fill_in`."""
    entities = [name for name in inputs if name.startswith("entity_")]
    if entities:
        raise ValueError(
            f"The inputs have {entities[0]}, but kerasbert reads only the words of LUKE; leave "
            "out inputs whose names begin with 'entity_'."
        )
    if not isinstance(inputs["token_ids"], keras.KerasTensor):
        inputs = {name: ops.convert_to_tensor(value) for name, value in inputs.items()}
    token_ids = inputs["token_ids"]
    if "padding_mask" not in inputs:
        inputs = {**inputs, "padding_mask": ops.ones_like(token_ids, dtype="int32")}
    if not encoder.num_segments:
        inputs = {name: value for name, value in inputs.items() if name != "segment_ids"}
    elif "segment_ids" not in inputs:
        inputs = {**inputs, "segment_ids": ops.zeros_like(token_ids, dtype="int32")}
    if encoder.global_tokens == "given" and "global_attention_mask" not in inputs:
        none = ops.zeros_like(token_ids[..., :1], dtype="int32")  # Tokens after it are local.
        inputs = {**inputs, "global_attention_mask": none}
    return inputs


def warn_of_left_padding(mask, family):
    """Warn about left-padded arrays (B, T), for which transformers uses other positions."""
    if not isinstance(mask, (np.ndarray, list)):
        return
    mask = np.asarray(mask)
    is_left = mask.any(axis=-1) & (mask[..., 0] == 0)
    if is_left.any():
        warnings.warn(
            f"{is_left.sum()} of {is_left.size} rows begin with padding. Positions count from "
            f"the first column here, but from the first token in '{family}' training and "
            "in transformers; pad on the right, as the preprocessors do.",
            stacklevel=5,
        )
