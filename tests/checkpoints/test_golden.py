"""Names and shapes of every weight, frozen: a rename breaks users' saved presets.

After an intended change, rewrite the file: `python -m tests.checkpoints.test_golden`.
"""

import json
import pathlib

import pytest

from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.text_classifier.model import BertTextClassifier
from tests.contracts import FAMILY_SETTINGS

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "weights.json"
SIZES = {"vocabulary_size": 11, "num_layers": 2, "num_heads": 2, "hidden_dim": 8}


def weights(family):
    backbone = BertBackbone.from_family(
        family, **SIZES, intermediate_dim=12, max_sequence_length=16
    )
    classifier = BertTextClassifier(backbone, num_classes=3)
    return {weight.path: list(weight.shape) for weight in classifier.weights}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILY_SETTINGS)
def test_names_and_shapes(family):
    assert weights(family) == json.loads(GOLDEN.read_text())[family]


if __name__ == "__main__":
    lines = [
        f'  "{family}": {{\n'
        + ",\n".join(f'    "{path}": {shape}' for path, shape in weights(family).items())
        + "\n  }"
        for family in FAMILY_SETTINGS
    ]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
