"""ERNIE: BERT under another name."""

import dataclasses

from kerasbert.families import bert
from kerasbert.families.settings import Family

FAMILIES = {"ernie": Family()}
TABLES = {
    "ernie": dataclasses.replace(bert.TABLES["bert"], classes="Ernie", prefix="ernie."),
}
