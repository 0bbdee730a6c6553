"""Features that must work on JAX or PyTorch in an environment without TensorFlow.

Usage: KERAS_BACKEND=jax python tests/without_tensorflow.py
"""

import importlib.util
import json
import os
import tempfile

import keras
import numpy as np
from safetensors.numpy import save_file

import kerasbert

WIDTH = 8
VOCABULARY = "[PAD] [UNK] [CLS] [SEP] [MASK] good bad film a the it was".split()
VOCABULARY += [f"word{i}" for i in range(50 - len(VOCABULARY))]


def checkpoint(directory):
    """Write a tiny BERT as transformers would, and return its configuration."""
    config = {
        "model_type": "bert",
        "vocab_size": 50,
        "hidden_size": WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 20,
    }
    layer = "encoder.layer.0"
    shapes = {
        "embeddings.word_embeddings.weight": (50, WIDTH),
        "embeddings.position_embeddings.weight": (20, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        "pooler.dense.weight": (WIDTH, WIDTH),
        "pooler.dense.bias": (WIDTH,),
        f"{layer}.intermediate.dense.weight": (16, WIDTH),
        f"{layer}.intermediate.dense.bias": (16,),
        f"{layer}.output.dense.weight": (WIDTH, 16),
        f"{layer}.output.dense.bias": (WIDTH,),
        f"{layer}.attention.output.dense.weight": (WIDTH, WIDTH),
        f"{layer}.attention.output.dense.bias": (WIDTH,),
    }
    for name in ("query", "key", "value"):
        shapes[f"{layer}.attention.self.{name}.weight"] = (WIDTH, WIDTH)
        shapes[f"{layer}.attention.self.{name}.bias"] = (WIDTH,)
    for norm in ("embeddings", f"{layer}.attention.output", f"{layer}.output"):
        shapes[f"{norm}.LayerNorm.weight"] = (WIDTH,)
        shapes[f"{norm}.LayerNorm.bias"] = (WIDTH,)
    random = np.random.default_rng(0)
    tensors = {name: random.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    with open(os.path.join(directory, "config.json"), "w") as file:
        json.dump(config, file)
    save_file(tensors, os.path.join(directory, "model.safetensors"))
    return tensors


def answers_questions(backbone, arrays):
    """Train on arrays with more than one output."""
    model = kerasbert.models.BertQuestionAnswering(backbone)
    model.optimizer.learning_rate = 1e-2
    best = np.argmax(arrays["token_ids"], axis=1)
    y = {"start_logits": best, "end_logits": best}
    before = model.evaluate(arrays, y, verbose=0)[0]
    model.fit(arrays, y, epochs=5, verbose=0)
    assert model.evaluate(arrays, y, verbose=0)[0] < before
    assert model.predict(arrays, verbose=0)["end_logits"].shape == (64, 7)


def reads_corpora(directory):
    """Read documents and sentences, and train a vocabulary, from running prose."""
    from kerasbert.data import documents

    path = os.path.join(directory, "prose.txt")
    with open(path, "w", encoding="utf-8") as file:
        file.write("The film was good. 그 영화는 좋았다. 映画はよかった。" * 20)
    [document] = documents(path, sentences="split")
    assert len(document) == 60, document
    done = kerasbert.vocab(path, os.path.join(directory, "vocab"), size=200, strip_accents=False)
    assert done["unknown"] == 0, done


def takes_texts(directory):
    """Train and predict on raw strings; other calls raise an error that names TensorFlow."""
    with open(os.path.join(directory, "vocab.txt"), "w") as file:
        file.writelines(f"{token}\n" for token in VOCABULARY)
    classifier = kerasbert.models.BertTextClassifier.from_preset(directory, labels=["bad", "good"])
    done = kerasbert.convert(classifier, os.path.join(directory, "with_tokenizer"))
    assert done["tokenizer"] == "BertTokenizer"
    texts, labels = ["good film", "it was bad"] * 8, ["good", "bad"] * 8
    assert classifier.preprocessor.tokenizer("good film") == [5, 7]
    classifier.optimizer.learning_rate = 1e-2
    history = classifier.fit(
        texts, labels, batch_size=4, epochs=8, validation_split=0.25, class_weight="balanced"
    ).history
    assert history["loss"][-1] < history["loss"][0], history
    assert classifier.predict(texts * 80, verbose=0).shape == (1280, 2)
    assert classifier.evaluate(texts, labels, verbose=0)[0] < history["loss"][0]
    assert {row["label"] for row in classifier.classify(texts[:2])} <= {"good", "bad"}
    backbone = classifier.backbone
    tokenizer = classifier.preprocessor.tokenizer
    models = kerasbert.models

    def task(name, **settings):
        preprocessor = getattr(models, f"{name}Preprocessor")(
            tokenizer, sequence_length=12, **settings
        )
        settings.pop("max_query_length", None)
        return getattr(models, name)(backbone, preprocessor=preprocessor, **settings)

    masked = task("BertMaskedLM")
    masked.fit(texts, batch_size=4, verbose=0)
    assert "[MASK]" not in masked.fill_mask("the [MASK] was good")[0]["text"]
    tagger = task("BertTokenClassifier", labels=["O", "B-X", "I-X"])
    tagger.fit(texts, [[(0, 4, "X")] if text[0] == "g" else [] for text in texts], verbose=0)
    assert isinstance(tagger.tag("good film"), list)
    answering = task("BertQuestionAnswering", max_query_length=4)
    answering.fit((["a"] * 4, ["it was good"] * 4), [(7, 11)] * 4, verbose=0)
    assert answering.answer("a", "it was good")
    embedder = task("BertTextEmbedder")
    embedder.compile(loss=kerasbert.losses.MultipleNegativesRanking())
    embedder.fit((texts[:2], texts[:2]), verbose=0)
    index = kerasbert.SearchIndex(embedder, texts[:2])
    assert index.search("good film", top_k=1)[0]["text"] == "good film"
    try:
        kerasbert.export_serving(classifier, os.path.join(directory, "served"))
    except ImportError as error:
        assert "needs TensorFlow and TensorFlow Text on every Keras backend" in str(error)
        assert "pip install tensorflow tensorflow-text" in str(error)
    else:
        raise AssertionError("export_serving needs TensorFlow, and nothing said so")
    return classifier


def pretrains(directory):
    """Pre-train from text files to a preset; examples are written and read, and the training is
    resumed.
    """
    corpus, out = os.path.join(directory, "corpus.txt"), os.path.join(directory, "pretrained")
    with open(corpus, "w", encoding="utf-8") as file:
        for number in range(4000):
            file.write(f"the film was good\nit was a bad {VOCABULARY[number % 12]}\n그 영화\n\n")
    encoder = {"num_layers": 1, "hidden_dim": 8, "num_heads": 2, "lowercase": False}
    arguments = {
        **encoder,
        "vocabulary": os.path.join(directory, "vocab.txt"),
        "phases": [(16, 50, 8)],
        "learning_rate": 1e-2,
        "log_every": 10,
        "evaluate_every": 50,
        "held_out": 0.2,
        "verbose": False,
    }
    done = kerasbert.pretrain(corpus, out, workers=2, **arguments)
    assert done["steps"] == 50 and done["scores"]["loss"] < 3, done["scores"]
    again = kerasbert.pretrain(corpus, out, workers=2, **arguments)
    assert again["scores"] == done["scores"]
    assert kerasbert.models.BertMaskedLM.from_preset(done["preset"]).fill_mask("the [MASK] was")
    detector = {**arguments, "objective": "replaced_tokens", "phases": [(16, 3, 8)]}
    kerasbert.pretrain(corpus, f"{out}_detector", workers=1, **detector)


def reads_generators(classifier):
    """Generators and `PyDataset`s of texts, in training, validation and inference."""

    class Texts(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, number):
            return ["good film", "it was bad"], ["good", "bad"]

    def generated():
        return (batch for batch in Texts())

    history = classifier.fit(Texts(), epochs=2, validation_data=generated(), verbose=0).history
    assert len(history["val_loss"]) == 2
    assert classifier.predict((x for x, _ in generated()), verbose=0).shape == (6, 2)
    np.testing.assert_allclose(
        classifier.evaluate(generated(), verbose=0), classifier.evaluate(Texts(), verbose=0)
    )


def main():
    keras.utils.set_random_seed(0)
    spec = importlib.util.find_spec("tensorflow")
    # An uninstalled package may leave an empty folder, which has no file of its own.
    assert spec is None or spec.origin is None, "TensorFlow is installed here"
    with tempfile.TemporaryDirectory() as directory:
        tensors = checkpoint(directory)
        classifier = kerasbert.models.BertTextClassifier.from_preset(
            directory, num_classes=2, preprocessor=None
        )
        loaded = keras.ops.convert_to_numpy(classifier.backbone.token_embedding.embeddings)
        np.testing.assert_array_equal(loaded, tensors["embeddings.word_embeddings.weight"])
        token_ids = np.random.default_rng(1).integers(0, 50, (64, 7)).astype("int32")
        arrays = {
            "token_ids": token_ids,
            "segment_ids": np.zeros_like(token_ids),
            "padding_mask": np.ones_like(token_ids),
        }
        classifier.optimizer.learning_rate = 1e-2
        y = token_ids[:, 1] % 2
        before = classifier.evaluate(arrays, y, verbose=0)[0]
        classifier.fit(arrays, y, epochs=20, verbose=0)
        after = classifier.evaluate(arrays, y, verbose=0)[0]
        assert after < before, (before, after)
        assert classifier.predict(arrays, verbose=0).shape == (64, 2)
        embedder = kerasbert.models.BertTextEmbedder(classifier.backbone, layers="scalar_mix")
        assert embedder.predict(arrays, verbose=0).shape == (64, WIDTH)
        saved = os.path.join(directory, "saved")
        classifier.save_to_preset(saved)
        again = kerasbert.models.BertTextClassifier.from_preset(saved)
        np.testing.assert_allclose(
            again.predict(arrays, verbose=0), classifier.predict(arrays, verbose=0), atol=1e-5
        )
        answers_questions(classifier.backbone, arrays)
        converted = os.path.join(directory, "converted")
        kerasbert.convert(classifier, converted)
        again = kerasbert.models.BertTextClassifier.from_preset(converted, preprocessor=None)
        np.testing.assert_allclose(
            again.predict(arrays, verbose=0), classifier.predict(arrays, verbose=0), atol=1e-5
        )
        reads_generators(takes_texts(directory))
        pretrains(directory)
        reads_corpora(directory)
    print(f"without TensorFlow, on {keras.config.backend()}: loaded, trained, saved")


if __name__ == "__main__":
    main()
