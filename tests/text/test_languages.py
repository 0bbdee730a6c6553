"""Languages of tokenizers: segment ids of rows, preset settings, and rejected input."""

import numpy as np
import pytest

from kerasbert.models import BertMaskedLM, BertMaskedLMPreprocessor
from kerasbert.text.languages import languages_of
from kerasbert.tokenizers import BertTokenizer
from tests.contracts import array, tiny_backbone

NAMES = ["en", "ja", "ko"]
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]


@pytest.mark.backends("torch")
def test_masked_translations(tmp_path):
    backbone = tiny_backbone(num_segments=3, restarts_positions=True)
    preprocessor = BertMaskedLMPreprocessor(
        BertTokenizer([*TOKENS, *map(str, range(17))]),
        sequence_length=16,
        languages=NAMES,
        language=("ko", "en"),
        mask_selection_rate=0.4,
    )
    model = BertMaskedLM(backbone, preprocessor)
    pairs = ["a b c d"] * 8, ["e f"] * 8
    model.fit(pairs, verbose=0)
    model.save_to_preset(tmp_path)
    again = BertMaskedLMPreprocessor.from_preset(tmp_path)
    features, ids, weights = again(pairs)
    mask = array(features["padding_mask"])
    assert array(features["segment_ids"])[0][mask[0]].tolist() == [2] * 6 + [0] * 3
    # Tokens are masked on both sides.
    assert {*"abcdef"} == {TOKENS[i] for i in array(ids)[array(weights) > 0]}
    with pytest.raises(ValueError, match="has 3 languages, but the encoder has embeddings for 2"):
        BertMaskedLM(tiny_backbone(), preprocessor)
    single = BertMaskedLMPreprocessor.from_preset(tmp_path, language="ja")(["a b"])[0]
    assert array(single["segment_ids"])[0, :4].tolist() == [1] * 4


@pytest.mark.backends("torch")
def test_positions_restart_at_the_translation():
    backbone = tiny_backbone(num_segments=3, restarts_positions=True)
    ids = np.array([[5, 6, 7, 5, 6]])
    table = backbone.position_embedding_layer.position_embeddings
    both = backbone({"token_ids": ids, "segment_ids": np.array([[1, 1, 1, 0, 0]])})
    table.assign(array(table) + (np.arange(16) > 2)[:, None])
    same = backbone({"token_ids": ids, "segment_ids": np.array([[1, 1, 1, 0, 0]])})
    other = backbone({"token_ids": ids, "segment_ids": np.array([[1, 1, 1, 1, 1]])})
    both, same, other = (array(x["sequence_output"]) for x in (both, same, other))
    assert np.array_equal(both, same) and not np.allclose(both, other, atol=1e-2)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"languages": ["en", "en"]}, "must be at least one name, without repetitions"),
        ({"languages": []}, "must be at least one name"),
        ({"languages": NAMES, "language": "fr"}, "language='fr' is unknown; use one of en, ja"),
        ({"languages": NAMES, "language": ("en", "ja", "ko")}, "must be a name, or two"),
        ({"language": ("en", "ko")}, "which needs languages="),
        ({"languages": "en"}, "languages='en'"),
    ],
)
def test_what_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        BertTokenizer(TOKENS, **settings)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"num_segments": 1}, "restarts_positions=True needs segments, .* num_segments=1"),
        ({"position_embedding": "rotary"}, "needs position_embedding='learned', got 'rotary'"),
    ],
)
@pytest.mark.backends("torch")
def test_encoders_whose_positions_cannot_restart(settings, message):
    with pytest.raises(ValueError, match=message):
        tiny_backbone(restarts_positions=True, **settings)


def test_ids_of_languages_must_be_whole():
    with pytest.raises(ValueError, match="'c.json' has lang2id=.* ids from 0 to 1"):
        languages_of({"en": 0, "fr": 2}, "c.json")
