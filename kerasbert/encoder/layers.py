"""Checks of an encoder's settings, its layers, and copies of them."""

import keras
from keras import ops

from kerasbert.base.errors import check_choice, check_heads, check_whole, is_whole
from kerasbert.base.keywords import config_of
from kerasbert.families.settings import (
    GLOBAL_TOKENS,
    POSITION_BIASES,
    POSITION_EMBEDDINGS,
    has_bias,
)
from kerasbert.layers.attention import AttentionMask
from kerasbert.layers.block import TransformerBlock, layer_norm
from kerasbert.layers.convolution import TokenConvolution
from kerasbert.layers.disentangled_attention import own_attention, shared_distances
from kerasbert.layers.embeddings import PositionEmbedding
from kerasbert.layers.global_attention import GlobalTokens, own_global_attention
from kerasbert.layers.position_bias import shared_bias
from kerasbert.layers.token_layers import TokenDense, TokenDropout

# Embedding layers, which two encoders may share.
_EMBEDDINGS = (
    "token_embedding",
    "position_embedding_layer",
    "segment_embedding",
    "embeddings_layer_norm",
)


def check_settings(encoder):
    """Raise for settings of a `BertBackbone` that are invalid or cannot be combined."""
    heads, width = encoder.num_heads, encoder.hidden_dim
    check_heads(width, heads)
    if encoder.num_key_value_heads is not None:
        check_heads(heads, encoder.num_key_value_heads, "num_key_value_heads", "num_heads")
    check_choice("position_embedding", encoder.position_embedding, POSITION_EMBEDDINGS)
    if encoder.position_bias is not None:
        check_choice("position_bias", encoder.position_bias, POSITION_BIASES)
    if encoder.global_tokens is not None:
        check_choice("global_tokens", encoder.global_tokens, GLOBAL_TOKENS)
    windows = encoder.local_window
    if isinstance(windows, (list, tuple)) and len(windows) != encoder.num_layers:
        raise ValueError(
            f"local_window={windows} has {len(windows)} windows for num_layers="
            f"{encoder.num_layers}; pass one for each layer, or a number for all."
        )
    if encoder.position_embedding == "rotary" and width // heads % 2:
        raise ValueError(
            f"hidden_dim={width} gives {heads} heads of width {width // heads}; rotary positions "
            "need an even width."
        )
    if encoder.restarts_positions:
        if encoder.position_embedding != "learned":
            raise ValueError(
                f"restarts_positions=True needs position_embedding='learned', got "
                f"{encoder.position_embedding!r}: relative positions depend only on the distance "
                "of two tokens, so they cannot restart at the second text."
            )
        if encoder.num_segments < 2:
            raise ValueError(
                "restarts_positions=True needs segments, by which the encoder finds the second "
                f"text; got num_segments={encoder.num_segments}, set it to 2 or more."
            )
    if encoder.num_groups is not None and not 1 <= encoder.num_groups <= encoder.num_layers:
        raise ValueError(
            f"num_groups must be None or between 1 and num_layers={encoder.num_layers}, got "
            f"{encoder.num_groups}."
        )


def make_layers(encoder, tables, dtype):
    """Make the layers of a `BertBackbone` and set them as its attributes.

    Args:
        encoder: a `BertBackbone` that has its settings as attributes.
        tables: an encoder whose embedding layers this one shares, or `None`.
        dtype: dtype or policy of the layers.
    """

    def initializer():
        return keras.initializers.TruncatedNormal(stddev=encoder.initializer_range)

    def norm(name):
        return layer_norm(
            *(encoder.layer_norm_epsilon, encoder.use_bias, dtype, name), encoder.rms_norm
        )

    def optional(is_used, layer, *args, initializes="kernel", **settings):
        """Make a layer if it is used, else return `None`.

        An unused initializer would change the seeds of later ones.
        """
        if not is_used:
            return None
        own = {"_".join(filter(None, (initializes, "initializer"))): initializer()}
        return layer(*args, **own, dtype=dtype, **settings)

    # === Embeddings ===
    if tables is not None:
        for name in _EMBEDDINGS:
            setattr(encoder, name, getattr(tables, name))
    else:
        width = encoder.embedding_dim or encoder.hidden_dim
        encoder.token_embedding = keras.layers.ReversibleEmbedding(
            encoder.vocabulary_size,
            width,
            embeddings_initializer=initializer(),
            dtype=dtype,
            name="token_embedding",
        )
        encoder.position_embedding_layer = optional(
            encoder.position_embedding == "learned",
            PositionEmbedding,
            encoder.max_sequence_length,
            initializes="",
            offset=encoder.position_offset,
            name="position_embedding",
        )
        encoder.segment_embedding = optional(
            encoder.num_segments,
            keras.layers.Embedding,
            encoder.num_segments,
            width,
            initializes="embeddings",
            name="segment_embedding",
        )
        encoder.embeddings_layer_norm = (
            norm("embeddings_layer_norm") if encoder.embeddings_norm else None
        )
    encoder.embeddings_dropout = TokenDropout(
        encoder.dropout, dtype=dtype, name="embeddings_dropout"
    )
    encoder.embeddings_projection = optional(
        encoder.embedding_dim is not None,
        TokenDense,
        encoder.hidden_dim,
        name="embeddings_projection",
    )
    # === Relative positions and masks, which all layers share ===
    encoder.distance_embedding = shared_distances(encoder, initializer(), dtype)
    encoder.position_bias_layer = (
        None if encoder.position_bias is None else shared_bias(encoder, initializer(), dtype)
    )
    has_convolution = encoder.conv_kernel_size is not None
    if has_convolution and encoder.is_causal:
        raise ValueError(
            f"conv_kernel_size={encoder.conv_kernel_size} needs is_causal=False: a convolution "
            "reads later tokens too."
        )
    encoder.convolution = optional(
        has_convolution,
        TokenConvolution,
        encoder.conv_kernel_size,
        encoder.conv_activation,
        dropout=encoder.dropout,
        layer_norm_epsilon=encoder.layer_norm_epsilon,
        norm_bias=has_bias(encoder.use_bias, "norm"),
        name="convolution",
    )
    encoder.global_tokens_layer = (
        None
        if encoder.global_tokens is None
        else GlobalTokens(encoder.max_global_tokens, name="global_tokens")
    )
    # One mask per window, in the order of the layers that use them first.
    windows = [window_of(encoder, i) for i in range(encoder.num_layers)]
    kinds = list(dict.fromkeys(windows))
    encoder.mask_of_layer = [kinds.index(window) for window in windows]
    local = [window for window in kinds if window is not None]
    encoder.attention_masks = [
        AttentionMask(encoder.is_causal, window, name=_mask_name(window, local)) for window in kinds
    ]
    # === Blocks, in the order in which they run; layers may share a block, which then repeats ===
    attention = own_attention if encoder.global_tokens is None else own_global_attention
    inner, groups = encoder.num_inner_repetitions, encoder.num_groups or encoder.num_layers
    unique = [
        TransformerBlock(
            encoder.num_heads,
            encoder.intermediate_dim,
            activation=encoder.activation,
            dropout=encoder.dropout,
            attention_dropout=encoder.attention_dropout,
            layer_norm_epsilon=encoder.layer_norm_epsilon,
            norm_first=encoder.norm_first,
            attention_norm=i > 0 or not lacks_first_norm(encoder),
            gated_mlp=encoder.gated_mlp,
            use_bias=encoder.use_bias,
            rotary_base=_rotary_base(encoder, i // inner),
            rotary_factor=encoder.rotary_factor,
            rotary_value=encoder.rotary_value,
            num_key_value_heads=encoder.num_key_value_heads,
            rms_norm=encoder.rms_norm,
            kernel_initializer=initializer(),
            attention=attention(encoder, initializer(), dtype),
            dtype=dtype,
            name=f"transformer_layer_{i}",
        )
        for i in range(groups * inner)
    ]
    encoder.transformer_layers = [
        unique[i * groups // encoder.num_layers * inner + repetition]
        for i in range(encoder.num_layers)
        for repetition in range(inner)
    ]
    has_final_norm = encoder.norm_first and encoder.final_norm
    encoder.final_layer_norm = norm("final_layer_norm") if has_final_norm else None
    encoder.pooled_dense = optional(
        encoder.pooler,
        keras.layers.Dense,
        encoder.hidden_dim,
        activation="tanh",
        name="pooled_dense",
    )


def _rotary_base(encoder, layer):
    """Return the base of a layer's rotary angles, or `None` for other positions."""
    if encoder.position_embedding != "rotary":
        return None
    is_global = window_of(encoder, layer) is None
    return encoder.rotary_base if is_global else encoder.local_rotary_base or encoder.rotary_base


def window_of(encoder, layer):
    """Return a layer's local window, or `None` if the layer attends to all tokens."""
    every, window = encoder.global_every, encoder.local_window
    if every is not None and layer % every == 0:
        return None
    return window[layer] if isinstance(window, (list, tuple)) else window


def _mask_name(window, local):
    """Return the name of a window's mask; `local` lists the windows that are not `None`."""
    if window is None:
        return "attention_mask"
    place = local.index(window)
    return f"local_attention_mask_{place}" if place else "local_attention_mask"


def lacks_first_norm(encoder):
    """Return whether layer 0 has no norm before attention."""
    return encoder.norm_first and encoder.embeddings_norm and not encoder.first_attention_norm


def copy_layers(encoder, layers):
    """Return a new encoder with copies of some layers; see `BertBackbone.with_layers`."""
    for place, layer in enumerate(layers):
        if not is_whole(layer) or not 0 <= layer < encoder.num_layers:
            raise ValueError(
                f"Layer {layer!r} does not exist; the encoder's {encoder.num_layers} layers are "
                f"numbered from 0 to {encoder.num_layers - 1}."
            )
        differs = (window_of(encoder, place) is None) != (window_of(encoder, layer) is None)
        if differs or (lacks_first_norm(encoder) and (place == 0) != (layer == 0)):
            raise ValueError(
                f"Layer {layer} is of another kind than layer {place}, which it would become: one "
                f"of {encoder.global_every} layers is global, and with norm_first layer 0 lacks a "
                "norm; choose a layer of the same kind."
            )
    inner = encoder.num_inner_repetitions
    # The first block of each layer.
    blocks = [encoder.transformer_layers[layer * inner] for layer in layers]
    settings = {**config_of(encoder), "num_layers": len(layers), "trainable": True}
    if isinstance(encoder.local_window, (list, tuple)):
        settings["local_window"] = [encoder.local_window[layer] for layer in layers]
    if encoder.num_groups is not None:
        groups = list(dict.fromkeys(map(id, blocks)))
        settings["num_groups"] = len(groups)
        if any(id(b) != groups[i * len(groups) // len(blocks)] for i, b in enumerate(blocks)):
            raise ValueError(
                f"The layers {layers} cannot share weights in groups as in this encoder; "
                "choose the same number from each group, in order."
            )
    settings.pop("name")
    model = type(encoder).from_config(settings)
    for place, copy in enumerate(model.transformer_layers):
        block = encoder.transformer_layers[layers[place // inner] * inner + place % inner]
        copy.set_weights(block.get_weights())
    inside = {id(w) for block in model.transformer_layers for w in block.weights}
    own = {weight.path: weight for weight in encoder.weights}
    for weight in model.weights:
        if id(weight) not in inside:
            # Copied, because JAX would share the memory and donate it in training.
            weight.assign(ops.convert_to_numpy(own[weight.path]))
    return model


def reinitialize_layers(encoder, count):
    """Give the pooler and the last layers new weights; see `BertBackbone.reinitialize_layers`."""
    check_whole("count", count)
    if count > encoder.num_layers:
        raise ValueError(
            f"count={count} is more than the encoder's {encoder.num_layers} layers; pass at most "
            f"{encoder.num_layers}."
        )
    if encoder.num_groups is not None:
        raise ValueError(
            f"The layers of this encoder share weights (num_groups={encoder.num_groups}), so the "
            "last ones cannot be initialized alone."
        )
    layers = encoder.transformer_layers[-count * encoder.num_inner_repetitions :]
    if encoder.pooled_dense is not None:
        layers = [*layers, encoder.pooled_dense]
    new = []
    for layer in layers:
        config = layer.get_config()
        # The new block builds its attention.
        (config.get("attention") or {}).pop("build_config", None)
        new.append(type(layer).from_config(config))
        new[-1].build((None, None, encoder.hidden_dim))
        if [weight.shape for weight in new[-1].weights] != [
            weight.shape for weight in layer.weights
        ]:
            raise ValueError(
                f"'{layer.name}' has LoRA adapters or is quantized; initialize layers before that."
            )
    for one, layer in zip(new, layers, strict=True):
        layer.set_weights(one.get_weights())
