"""BERT under another name."""

import dataclasses

from kerasbert.families import bert
from kerasbert.families.settings import Family

FAMILIES = {"other_bert": Family()}
TABLES = {
    "other_bert": dataclasses.replace(
        bert.TABLES["bert"], classes="OtherBert", prefix="other_bert."
    ),
}
