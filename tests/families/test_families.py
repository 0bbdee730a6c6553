"""A family is one file: its settings, and its names in transformers."""

import pathlib

import pytest

from kerasbert import families
from kerasbert.families import FAMILIES, LINEAGE, TABLES, get_family, head_settings
from kerasbert.families.settings import NEEDED, SETTINGS
from kerasbert.kinds import KINDS

FOLDER = pathlib.Path(families.__file__).parent


def test_each_file_of_a_family_is_listed():
    shared = {"__init__", "lineage", "settings", "keras_hub_names", "transformers_names"}
    files = {path.stem for path in FOLDER.glob("*.py")} - shared
    assert files == {file.__name__.rpartition(".")[2] for file in families._FILES}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_known_settings_and_names_for_each(family):
    row, table = FAMILIES[family], TABLES[family]
    assert row.encoder.keys() <= SETTINGS.keys() and row.heads.keys() <= KINDS.keys()
    assert set(NEEDED) - {"intermediate_dim"} <= table.config.keys() <= SETTINGS.keys()
    assert table.heads.keys() | table.head_config.keys() <= KINDS.keys()
    assert {part.partition("/")[0] for part in table.encoder} >= {"token_embedding"}


def test_settings_of_a_head():
    """A head has the settings of its kind, overridden by those of the family. A kind that resembles
    another kind uses the settings of that kind.
    """
    assert head_settings("bert", "token_classifier") == {"pooling": "tokens"}
    assert head_settings("xlm_roberta", "reranker") == head_settings("roberta", "text_classifier")
    both = head_settings("albert", "pretrainer")
    assert both["sentence_order"] and both == head_settings("albert", "next_sentence_predictor")
    assert head_settings("bert", None) == {}


def test_an_unknown_family():
    with pytest.raises(ValueError, match="Unknown family 'klingon'; the families are bert, rob"):
        get_family("klingon")
    assert get_family("xlnet") is LINEAGE["xlnet"]
