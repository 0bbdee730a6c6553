"""Special tokens that stand in raw texts: found or not in KerasHub's form as in ours."""

import keras_hub
import pytest
import tensorflow as tf

import kerasbert
from tests.contracts import tiny_backbone

pytestmark = pytest.mark.backends("tensorflow")  # Tokenizers run in its graph everywhere.

GELU = {"activation": "gelu", "pooler": False}
ROWS = [
    ("BertTokenizer", "bert", {}),
    ("RobertaTokenizer", "roberta", GELU),
    ("XLMRobertaTokenizer", "xlm_roberta", GELU),
    ("AlbertTokenizer", "albert", {"activation": "gelu_approximate"}),
]


def texts(tokenizer):
    cls, sep, mask = tokenizer.cls_token, tokenizer.sep_token, tokenizer.mask_token
    return [f"the{mask}fox", f"{cls}the{sep}fox{mask}.", f"{mask}{sep}"]


@pytest.mark.peers
@pytest.mark.parametrize("name, family, settings", ROWS)
def test_keras_hub(name, family, settings, make, tmp_path):
    def convert(finds, folder):
        # KerasHub's ALBERT leaves texts as they are.
        plain = {"lowercase": False, "keep_accents": True} if family == "albert" else {}
        ours = make(name, special_tokens_in_strings=finds, **plain)
        model = tiny_backbone(family, vocabulary_size=ours.vocabulary_size(), **settings)
        out = str(tmp_path / folder)
        kerasbert.convert(model, out, format="keras_hub", tokenizer=ours)
        theirs = getattr(keras_hub.tokenizers, name).from_preset(out)
        found = [[int(id) for id in ids] for ids in theirs(texts(ours))]
        assert found == ours(texts(ours))
        # Inside a pipeline other code of theirs runs.
        dataset = tf.data.Dataset.from_tensor_slices(texts(ours)).map(theirs)
        assert [ids.numpy().tolist() for ids in dataset] == found
        again = type(ours).from_preset(out, **plain)
        assert again.special_tokens_in_strings == finds
        assert again(texts(ours)) == found

    convert(False, "plain")
    if name in ("BertTokenizer", "RobertaTokenizer"):
        convert(True, "finds")
    else:
        with pytest.raises(ValueError, match="does not find special tokens in texts"):
            convert(True, "finds")
