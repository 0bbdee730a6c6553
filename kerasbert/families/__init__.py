"""Model families, one file each: settings of encoder and heads, and names in other packages.

`FAMILIES` has the arguments of `kerasbert.models.BertBackbone` in which a family differs from BERT,
and the settings of its published heads; `TABLES` and `KERAS_HUB` have its names in transformers and
KerasHub, and `bert.py` those of Google's checkpoints.
"""

from kerasbert.families import (
    albert,
    bert,
    bert_generation,
    big_bird,
    deberta,
    distilbert,
    electra,
    ernie,
    eurobert,
    gpt,
    jina_bert,
    longformer,
    luke,
    megatron_bert,
    modernbert,
    mpnet,
    nomic_bert,
    rembert,
    roberta,
    roformer,
    xlm,
)
from kerasbert.families.lineage import LINEAGE
from kerasbert.kinds import KINDS

_FILES = (
    *(bert, roberta, distilbert, electra, albert, deberta),
    *(roformer, modernbert, mpnet, nomic_bert, jina_bert, eurobert, longformer),
    *(ernie, megatron_bert, rembert, luke, big_bird, bert_generation, xlm, gpt),
)
FAMILIES = {name: row for file in _FILES for name, row in file.FAMILIES.items()}
TABLES = {name: row for file in _FILES for name, row in file.TABLES.items()}
KERAS_HUB = {name: row for file in _FILES for name, row in getattr(file, "KERAS_HUB", {}).items()}


def get_family(name, families=None):
    """Return a family's row in `families`, by default `FAMILIES` and `LINEAGE`.

    >>> get_family("roberta").encoder["position_offset"]
    2

    Raises:
        ValueError: if there is no such family.
    """
    families = FAMILIES | LINEAGE if families is None else families
    if name not in families:
        raise ValueError(f"Unknown family '{name}'; the families are {', '.join(families)}.")
    return families[name]


def head_settings(family, kind):
    """Return a head's settings: the defaults of its kind, overridden by those of the family.

    Custom tasks (`kind` is `None`) have none.

    >>> head_settings("roberta", "text_classifier")["pooling"]
    'cls'

    Raises:
        ValueError: if there is no such family.
    """
    if kind is None:
        return {}
    row = KINDS[KINDS[kind].tables]
    settings = dict(row.settings)
    for part in row.parts:
        settings |= head_settings(family, part)
    return settings | get_family(family).heads.get(row.name, {})
