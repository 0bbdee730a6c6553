"""Typical user code; `test_annotations.py` checks its types with Pyright, and nothing runs it."""

from typing import Any, assert_type

import keras
import numpy as np

import kerasbert
from kerasbert import SearchIndex, convert, export_serving, finetune, models, optimizers
from kerasbert.losses import MultipleNegativesRanking
from kerasbert.models import BertBackbone, BertTextClassifier
from kerasbert.preprocessors import BertTextClassifierPreprocessor
from kerasbert.tokenizers import BertTokenizer

PRESET = "bert_tiny_demo_en_uncased"


def classifier(texts: list[str], labels: np.ndarray) -> BertTextClassifier:
    model = BertTextClassifier.from_preset(PRESET, labels=["bad", "good"])
    assert_type(model, BertTextClassifier)
    history = model.fit(texts, labels, batch_size=16, epochs=2)
    assert_type(history, keras.callbacks.History)
    print(history.history["loss"], model.evaluate(texts, labels), model.label_names)
    logits: np.ndarray = model.predict(texts)
    print(logits.argmax(-1), model.classify(texts), model.classify("One text."))
    model.compile(optimizer=optimizers.AdamW(optimizers.LinearDecay(3e-5, steps=100)))
    model.save_to_preset("saved")
    return kerasbert.models.BertTextClassifier.from_preset("saved")


def other_heads(texts: list[str]) -> None:
    models.BertTokenClassifier.from_preset(PRESET, labels=["PER"]).tag("Kim Minji spoke.")
    models.BertQuestionAnswering.from_preset("saved").answer("Who?", "A context.", top_k=3)
    models.BertMaskedLM.from_preset(PRESET).fill_mask("A [MASK] film.", top_k=2)
    models.BertTextRegressor.from_preset(PRESET, new_head=True).score(texts)
    models.BertNextSentencePredictor.from_preset(PRESET).follows("One.", "Two.")
    models.BertMultipleChoice.from_preset(PRESET, new_head=True).choose("A text", ["so", "or so"])
    models.BertCausalLM.from_preset("saved").generate("Once upon a time", max_length=20)
    ranked = models.BertReranker.from_preset("saved").rank("A query", texts, top_k=1)
    print(ranked[0]["score"])


def search(texts: list[str]) -> None:
    embedder = models.BertTextEmbedder.from_preset(PRESET, pooling="mean", normalize=True)
    assert_type(embedder, models.BertTextEmbedder)
    print(embedder.embed(texts).shape)
    embedder.compile(loss=MultipleNegativesRanking(scale=20.0))
    embedder.fit((texts, texts))
    index = SearchIndex(embedder, texts)
    index.add(["Another text."])
    print(index.search("A query", top_k=2)[0]["text"], len(index))
    index.save("index")
    again = SearchIndex.load("index")
    assert_type(again, SearchIndex)
    print(again.search(["A query"]))


def parts() -> np.ndarray:
    tokenizer = BertTokenizer.from_preset(PRESET)
    assert_type(tokenizer, BertTokenizer)
    assert_type(BertTokenizer.presets, dict[str, Any])
    preprocessor = BertTextClassifierPreprocessor(tokenizer, sequence_length=64)
    backbone = BertBackbone.from_preset(PRESET, load_weights=False)
    print(backbone.with_layers([0]).get_config()["num_layers"], sorted(BertBackbone.presets))
    model = BertTextClassifier(backbone, num_classes=2, preprocessor=preprocessor)
    return model.predict(["A text."])


def functions(model: BertTextClassifier) -> None:
    print(convert(PRESET, "there", format="huggingface")["written"])
    path: str = export_serving(model, "served")
    found = finetune("sst2", PRESET, path, learning_rates=[3e-5], epochs=2)
    kerasbert.pretrain("books", output=path, num_layers=2, phases=[(128, 900, 64)], mesh="2x4")
    print(kerasbert.advise("reviews.csv", PRESET, path, arms="tfidf")["advice"])
    print(found["scores"], kerasbert.evaluate(model, "dev.csv")["scores"])
    print(kerasbert.tasks.get_task("rte").main_metric, kerasbert.builtin_presets()[PRESET])
    print(kerasbert.metrics.macro_f1([0, 1], [0, 1]) + 1.0)
