"""Tiny presets for the playground: one per kind of head, over all families, with hostile names."""

import os
import warnings

from kerasbert import models
from tests.contracts import bert_tokenizer, perturb, tiny_backbone

WORDS = "the film is good bad ann lives in rome where old play ##ed ##s , . 東 京 서울 은 <".split()
TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK]".split() + WORDS + [f"w{i}" for i in range(4)]
SCRIPT = "<script>window.boom=1</script>"
IMAGE = "<img src=x onerror=window.boom=1>"
# Kind of head, family, and further settings.
PRESETS = {
    "masked": ("MaskedLM", "modernbert", {}),
    IMAGE: ("TextClassifier", "roberta", {"labels": [SCRIPT, "good & bad"]}),
    "deberta": ("TextClassifier", "deberta_v3", {"labels": ["no", "yes"]}),
    "regressor": ("TextRegressor", "distilbert", {}),
    "follows": ("NextSentencePredictor", "bert", {}),
    "reranker": ("Reranker", "xlm_roberta", {}),
    "tagger": ("TokenClassifier", "electra", {"labels": ["O", f"B-{SCRIPT}", f"I-{SCRIPT}"]}),
    "detector": ("ReplacedTokenDetector", "electra", {}),
    "reader": ("QuestionAnswering", "albert", {}),
    "chooser": ("MultipleChoice", "bert", {}),
    "embedder": ("TextEmbedder", "nomic_bert", {}),
    "sparse": ("SparseEmbedder", "distilbert", {}),
    "writer": ("CausalLM", "gpt2", {}),
    "pretrainer": ("Pretrainer", "albert", {}),
}


def make(name):
    """Build the model of a row of `PRESETS`."""
    kind, family, settings = PRESETS[name]
    cls = getattr(models, f"Bert{kind}")
    more = {"max_query_length": 6} if kind == "QuestionAnswering" else {}
    preprocessor = cls.preprocessor_cls(bert_tokenizer(TOKENS), sequence_length=32, **more)
    backbone = tiny_backbone(family, max_sequence_length=32)
    return perturb(cls(backbone, preprocessor=preprocessor, **settings))


def save(directory, names):
    """Write some of them below a directory; return their paths."""
    paths = []
    for name in names:
        paths.append(os.path.join(directory, name))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            make(name).save_to_preset(paths[-1])
    return paths
