"""Cross-encoders of sentence-transformers: how their logits become scores."""

from kerasbert.base.files import json_in
from kerasbert.checkpoints.sentence_modules import (
    CONFIG,
    class_name,
    folder_of,
    has_modules,
    warn_of_prompt,
)

RERANKER = "CrossEncoder"
# Our names and PyTorch's classes of activations.
_ACTIVATIONS = {
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "linear": "torch.nn.modules.linear.Identity",
}
# Keys of `config.json` with the activation, since and before version 4.
_SINCE_4, _BEFORE_4 = "sentence_transformers", "sbert_ce_default_activation_function"


def is_cross_encoder(directory):
    """Return whether a directory holds a cross-encoder, which scores pairs without embeddings."""
    if has_modules(directory):
        config = json_in(directory, CONFIG)
        return config.get("model_type") == RERANKER
    return not {_SINCE_4, _BEFORE_4}.isdisjoint(json_in(directory, "config.json"))


def cross_encoder_config(reranker):
    """Return a reranker's keys of `config.json` for sentence-transformers 4 and later."""
    return {_SINCE_4: {"activation_fn": _ACTIVATIONS[reranker.activation]}}


def _activation(directory, modules):
    """Return the activation: our name (`None` if unsupported) and its class name."""
    config = json_in(folder_of(directory, modules[0]), "config.json")
    found = (
        json_in(directory, CONFIG).get("activation_fn"),
        (config.get(_SINCE_4) or {}).get("activation_fn"),
        config.get(_BEFORE_4),
    )
    theirs = str(next((name for name in found if name is not None), _ACTIVATIONS["sigmoid"]))
    # Module paths may change between versions.
    names = {path.rpartition(".")[2]: ours for ours, path in _ACTIVATIONS.items()}
    is_torchs = theirs.startswith("torch.")
    return names.get(theirs.rpartition(".")[2]) if is_torchs else None, theirs


def read_reranker(directory, modules):
    """Return the arguments of `BertReranker`."""
    warn_of_prompt(directory)
    ours, _ = _activation(directory, modules)
    return {} if ours is None else {"activation": ours}


def why_no_reranker(directory, modules):
    """Return why the checkpoint cannot be a `BertReranker`, or `None`."""
    if len(modules) > 1:
        return (
            f"'{directory}' scores pairs with {', '.join(map(class_name, modules))}; kerasbert "
            "supports only Transformer. Load its encoder with BertBackbone and compute the scores "
            "yourself."
        )
    ours, theirs = _activation(directory, modules)
    if ours is None:
        return (
            f"'{directory}' turns logits into scores with {theirs!r}, but a BertReranker only with "
            "Sigmoid or Identity; load it with BertTextRegressor, whose score() returns the logits."
        )
    return None
