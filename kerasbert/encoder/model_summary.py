"""The summary of a model in a notebook: its settings, its parameters and what it can do."""

import math

from kerasbert.base.keywords import config_of
from kerasbert.base.notebook import summary
from kerasbert.base.parts import encoder_of
from kerasbert.kinds import SERVED, kind_of

# Settings of a model that other rows show, or that say nothing to its user.
_ELSEWHERE = ("name", "trainable", "dtype", "backbone", "preprocessor", "labels", "num_classes")


class ShownInNotebooks:
    """Mixin of encoders and tasks that shows their summary in notebooks."""

    def _repr_html_(self) -> str:
        return model_summary(self)


def model_summary(model):
    """Return the summary of an encoder or a task as HTML.

    >>> from kerasbert.models import BertBackbone
    >>> backbone = BertBackbone(
    ...     vocabulary_size=7, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4
    ... )
    >>> "1 layers" in model_summary(backbone), "classify" in model_summary(backbone)
    (True, False)
    """
    encoder, kind = encoder_of(model), kind_of(model)
    count = model.count_params()
    frozen = sum(math.prod(weight.shape) for weight in model.non_trainable_weights)
    name = type(model).__name__
    also = ["fit", "evaluate", "predict", "save_to_preset"]
    if (kind and kind.served) or any(row.model == name for row in SERVED):
        also.append("kerasbert.export_serving(model, directory)")
    facts = {
        "encoder": _encoder(encoder),
        "labels": list(getattr(model, "label_names", None) or ()),
        "settings": [] if model is encoder else _settings(model),
        "parameters": f"{count:,}" + (f", of which {frozen:,} are frozen" if frozen else ""),
        "precision": getattr(encoder.dtype_policy, "name", ""),
        "texts": [] if model is encoder else _texts(getattr(model, "preprocessor", None)),
        "use": f"{kind.method}({kind.usage})" if kind and kind.method else "",
        "also": also,
    }
    return summary(f"{name} {model.name!r}", facts)


def _encoder(encoder):
    """Return the family and the sizes of an encoder."""
    sizes = (("num_layers", "layers"), ("num_heads", "heads"), ("hidden_dim", "wide"))
    parts = [type(encoder).__name__, getattr(encoder, "family", "")]
    found = [(getattr(encoder, name, None), unit) for name, unit in sizes]
    parts += [f"{value:,} {unit}" for value, unit in found if isinstance(value, int)]
    return [part for part in parts if part]


def _settings(model):
    """Return the settings of a head, as `name=value`; of a dict, only the keys."""
    return [
        f"{name}={list(value) if isinstance(value, dict) else value!r}"
        for name, value in config_of(model).items()
        if name not in _ELSEWHERE and value not in (None, False)
    ]


def _texts(preprocessor):
    """Return the tokenizer, and what happens to long texts."""
    if preprocessor is None:
        return "no preprocessor: takes arrays of token ids"
    tokenizer = getattr(preprocessor, "tokenizer", None)
    found = [type(tokenizer).__name__] if tokenizer else []
    for name in ("sequence_length", "long"):
        value = getattr(preprocessor, name, None)
        value = getattr(value, "mode", value)
        found += [] if value is None else [f"{name}={value!r}"]
    return found
