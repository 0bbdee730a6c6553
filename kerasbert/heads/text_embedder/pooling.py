"""Poolings and layers of `BertTextEmbedder`."""

# Minimum number of encoder layers for each choice of `layers`.
LAYERS = {
    "embeddings": 1,
    "second_to_last": 2,
    "last": 1,
    "sum_last_four": 4,
    "concat_last_four": 4,
    "sum_all": 1,
    "scalar_mix": 1,
}
# Modes of `Pooling`, which may be combined in a list.
LISTED = ("mean", "cls", "max")
POOLINGS = (*LISTED, "pooler", "tokens")


def check_pooling(backbone, pooling, layers):
    """Raise if an encoder does not support the pooling and the layers of an embedder."""
    modes = [pooling] if isinstance(pooling, str) else pooling
    allowed = POOLINGS if isinstance(pooling, str) else LISTED
    if not modes or any(mode not in allowed for mode in modes):
        raise ValueError(
            f"pooling={pooling!r} is unknown; use one of {', '.join(POOLINGS)}, or a list of "
            f"some of {', '.join(LISTED)}."
        )
    if layers not in LAYERS:
        raise ValueError(f"layers={layers!r} is unknown; use one of {', '.join(LAYERS)}.")
    if backbone.num_layers < LAYERS[layers]:
        raise ValueError(
            f"layers='{layers}' needs an encoder with at least {LAYERS[layers]} layers, but this "
            f"one has num_layers={backbone.num_layers}; use another of {', '.join(LAYERS)}."
        )
    if pooling != "pooler":
        return
    if not backbone.pooler:
        raise ValueError(
            "pooling='pooler' needs an encoder with a pooler, but this one has pooler=False; "
            "use pooling='mean', 'cls' or 'max'."
        )
    if layers != "last":
        raise ValueError(
            f"pooling='pooler' uses the last layer, not layers='{layers}'; leave out one of the "
            "two."
        )
