"""Model families, one file each: settings of encoder and heads, and names in transformers.

A row of `FAMILIES` holds the arguments of `kerasbert.models.BertBackbone` in which the family's
checkpoints differ from BERT, and the settings of its published heads; a row of `TABLES` holds its
names in transformers. Apart from these files, only the name tables of `kerasbert.checkpoints` refer
to families.
"""

from kerasbert.families import (
    albert,
    bert,
    deberta_v3,
    distilbert,
    electra,
    gpt,
    modernbert,
    nomic_bert,
    roberta,
)
from kerasbert.families.lineage import LINEAGE
from kerasbert.kinds import KINDS

_FILES = (bert, roberta, distilbert, electra, albert, deberta_v3, modernbert, nomic_bert, gpt)
FAMILIES = {name: row for file in _FILES for name, row in file.FAMILIES.items()}
TABLES = {name: row for file in _FILES for name, row in file.TABLES.items()}


def get_family(name, families=None):
    """Return the row of a family, by default one of `FAMILIES` or `LINEAGE`.

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
    """Return the settings of a kind of head in a family: the kind's, overridden by the family's.

    A custom task, with a `kind` of `None`, has no settings.

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
