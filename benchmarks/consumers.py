"""Compare the outputs of `export_onnx(layout="transformers")` in the packages that load it.

These packages need other versions of `transformers` than the tests of kerasbert, so writing and
reading use separate environments:

    python benchmarks/consumers.py write exported        # where kerasbert is
    pip install "optimum[onnxruntime]" fastembed "sentence-transformers[onnx]"
    python benchmarks/consumers.py read exported
    npm install @huggingface/transformers && node benchmarks/consumers.mjs exported
"""

import json
import os
import sys

import numpy as np

TEXTS = [
    "A good film!",
    "It rained, and the zoo was closed.",
    "한국어 日本語 中文",
    "[MASK] is no mask in a user's text, nor is [SEP].",
    " ".join(["The keeper told the child that it was late."] * 12),
]


def write(folder):
    import keras

    import kerasbert

    keras.utils.set_random_seed(0)
    preset = "bert_tiny_demo_en_uncased"
    embedder = kerasbert.models.BertTextEmbedder.from_preset(preset, normalize=True)
    classifier = kerasbert.models.BertTextClassifier.from_preset(preset, labels=["no", "yes"])
    for name, model in (("embedder", embedder), ("classifier", classifier)):
        kerasbert.export_onnx(model, os.path.join(folder, name), layout="transformers")
    expected = {
        "texts": TEXTS,
        "embedder": embedder.embed(TEXTS).tolist(),
        "classifier": classifier.predict(TEXTS, verbose=0).tolist(),
    }
    with open(os.path.join(folder, "expected.json"), "w", encoding="utf-8") as file:
        json.dump(expected, file)


def by_sentence_transformers(path, texts):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(path, backend="onnx").encode(texts)


def by_optimum(path, texts):
    from optimum.onnxruntime import ORTModelForSequenceClassification
    from transformers import AutoTokenizer

    model = ORTModelForSequenceClassification.from_pretrained(path)
    tokens = AutoTokenizer.from_pretrained(path)(texts, padding=True, return_tensors="pt")
    return model(**tokens).logits.numpy()


def by_fastembed(path, texts):
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        model="exported",
        pooling=PoolingType.MEAN,
        normalization=True,
        # fastembed does not download from this source, because the folder exists.
        sources=ModelSource(hf="nobody/exported"),
        dim=128,
        model_file="onnx/model.onnx",
    )
    return list(TextEmbedding("exported", specific_model_path=path).embed(texts))


def read(folder):
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as file:
        expected = json.load(file)
    for by, name in (
        (by_sentence_transformers, "embedder"),
        (by_fastembed, "embedder"),
        (by_optimum, "classifier"),
    ):
        found = np.array(by(os.path.join(folder, name), expected["texts"]))
        off = np.abs(found - np.array(expected[name])).max()
        print(f"{by.__name__[3:]:22} {name:10} {off:.1e}")


if __name__ == "__main__":
    mode, folder = sys.argv[1:]
    {"write": write, "read": read}[mode](folder)
