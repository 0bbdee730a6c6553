"""`export_serving` of every task: the SavedModel gives the answers of the inference method."""

import json
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasbert.export import write_saved_model
from kerasbert.metrics.trees import spanning_edges
from kerasbert.models import (
    BertPreprocessor,
    BertTextClassifier,
    BertTextClassifierPreprocessor,
    BertTokenClassifier,
    BertTokenClassifierPreprocessor,
)
from tests.export import tiny
from tests.export.conftest import ONE
from tests.export.test_serving import ODD, TEXTS, session_run

RAW = [text.encode() for text in TEXTS] + ODD
READ = [text.decode("utf-8", "replace") for text in RAW]


def raw(texts):
    """Return strings in lists as bytes in arrays."""
    return write_saved_model._encoded(texts)


def close(found, wanted, atol=1e-5):
    np.testing.assert_allclose(found, wanted, atol=atol, rtol=1e-5)


def check_classifier(model, path):
    a, b = RAW, RAW[::-1]
    pair = READ, READ[::-1]
    for name, inputs, x in (
        ("serving_default", {"text": a}, READ),
        ("pair", {"text": a, "text_b": b}, pair),
    ):
        found = session_run(path, name, **inputs)
        close(found["probabilities"], model.predict_proba(x))
        best = found["probabilities"].argmax(-1)
        assert found["label"].tolist() == [model.label_names[i].encode() for i in best]
    rows = [tf.train.Example(), tf.train.Example()]
    for row, texts in zip(rows, (["a"], ["a", "b"])):
        for name, text in zip(("text", "text_b"), texts):
            row.features.feature[name].bytes_list.value.append(text.encode())
    rows = [row.SerializeToString() for row in rows]
    found = session_run(path, "classify", inputs=rows)
    close(found["scores"][0], model.predict_proba(["a"])[0])
    close(found["scores"][1], model.predict_proba((["a"], ["b"]))[0])
    assert found["classes"].tolist() == 2 * [[name.encode() for name in model.label_names]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="text"):
        session_run(path, "classify", inputs=[tf.train.Example().SerializeToString()])


def check_regressor(model, path):
    close(session_run(path, "serving_default", text=RAW)["score"], model.score(READ))
    found = session_run(path, "pair", text=RAW, text_b=RAW[::-1])["score"]
    close(found, model.score((READ, READ[::-1])))
    row = tf.train.Example()
    row.features.feature["text"].bytes_list.value.append(b"hi")
    found = session_run(path, "regress", inputs=[row.SerializeToString()])["outputs"]
    close(found, model.score(["hi"]))


def check_next_sentence(model, path):
    found = session_run(path, "serving_default", text=RAW, text_b=RAW[::-1])["probability"]
    close(found, model.follows(READ, READ[::-1]))


def check_embedder(model, path):
    found = session_run(path, "serving_default", text=RAW)
    vectors = model.embed(READ)
    if model.pooling != "tokens":
        close(found["embedding"], vectors)
        return
    assert found["count"].tolist() == list(map(len, vectors))
    for row, count, vector in zip(found["embedding"], found["count"], vectors, strict=True):
        close(row[:count], vector)
        assert not row[count:].any()


def check_encoder(model, path):
    preprocessor = BertPreprocessor(tiny.tokenizer(), sequence_length=64)
    found = session_run(path, "serving_default", text=RAW)
    wanted = {k: keras.ops.convert_to_numpy(x) for k, x in model(preprocessor(READ)).items()}
    for name, outputs in wanted.items():
        close(found[name], outputs)
    np.testing.assert_array_equal(found["default"], found["pooled_output"])
    assert set(found) == {*wanted, "default", "padding_mask"}


def check_tagger(model, path):
    long = [" ".join(READ[:50]), "x" * 10_000, "語a " * 500]
    found = session_run(path, "serving_default", text=RAW + raw(long).tolist())
    wanted = model.tag(READ + long)
    assert sum(map(len, wanted)) > 50
    assert found["count"].tolist() == list(map(len, wanted))
    for i, entities in enumerate(wanted):
        for name in ("label", "start", "end", "text"):
            column = [entity[name] for entity in entities]
            got = found[name][i, : len(entities)].tolist()
            assert got == [x.encode() if isinstance(x, str) else x for x in column]
        close(found["score"][i, : len(entities)], [entity["score"] for entity in entities])
    assert (found["start"][found["start"] < 0] == -1).all()


# Joined, the texts have more windows than a server accepts by default.
MANY = {"max_windows": 2000}


def check_reader(model, path, **settings):
    contexts = [x for x in READ if model.preprocessor.tokenizer.tokenize(x)]
    contexts.append(" ".join(READ))
    questions = (READ * 2)[: len(contexts)]
    found = session_run(path, "serving_default", question=raw(questions), context=raw(contexts))
    for i, row in enumerate(model.answer(questions, contexts, **settings)):
        close(found["null_score"][i], row[0]["null_score"], 1e-4)
        for k, answer in enumerate(row):
            got = {name: found[name][i] for name in ("answer", "start", "end", "score")}
            if settings.get("top_k", 1) > 1:
                got = {name: values[k] for name, values in got.items()}
            close(got["score"], answer["score"])
            start, end = (-1 if x is None else x for x in (answer["start"], answer["end"]))
            if (got["start"], got["end"]) != (start, end):
                # In this context, the same words occur twice, with equal probability.
                assert abs(got["score"] - answer["score"]) < 1e-5
                continue
            assert got["answer"] == answer["answer"].encode()
    packed = session_run(path, "preprocess", question=raw(questions), context=raw(contexts))
    rows = model.preprocessor.windows((questions, contexts)).examples
    assert packed["count"].tolist() == np.bincount(rows).tolist() and packed["count"].max() > 1
    features = model.preprocessor((questions, contexts))
    is_there = np.arange(packed["count"].max()) < packed["count"][:, None]  # (N, W)
    for name, wanted in features.items():
        got = packed[name]
        assert got.shape[:2] == is_there.shape and not got[~is_there].any()  # [PAD] is 0.
        np.testing.assert_array_equal(got[is_there], keras.ops.convert_to_numpy(wanted))
    flat = {name: packed[name][is_there] for name in features}
    logits = session_run(path, "tokens", **flat)["start_logits"]
    assert len(logits) == len(rows)
    # Without a token there is no answer.
    nothing = session_run(path, "serving_default", question=[b"who"], context=[b" \0"])
    assert nothing["start"].ravel()[0] == -1 and nothing["answer"].ravel()[0] == b""
    assert np.isfinite(nothing["null_score"]).all()


def check_chooser(model, path):
    choices = [READ[i : i + 1 + i % 4] + ["b"] for i in range(len(READ))]
    padded = [row + [""] * (5 - len(row)) for row in choices]
    found = session_run(path, "serving_default", prompt=RAW, choices=raw(padded))
    for i, row in enumerate(model.choose(READ, choices)):
        close(found["scores"][i, : len(row["scores"])], row["scores"])
        assert not found["scores"][i, len(row["scores"]) :].any()
        close(found["score"][i], row["score"])
        assert found["scores"][i, found["index"][i]] == found["score"][i]
        assert found["choice"][i] == padded[i][found["index"][i]].encode()
    with pytest.raises(tf.errors.InvalidArgumentError, match="has no choices"):
        session_run(path, "serving_default", prompt=[b"a"], choices=[[b"", b""]])


def check_masked(model, path):
    long = " ".join(READ[:50])
    texts = [f"{x[:30]} [MASK]{x[30:]}" for x in READ[:-3]] + [f"{long}[MASK] {long} [MASK]!"]
    texts += ["[MASK]", "a[MASK][MASK]", "\u3000[MASK]b"]
    found = session_run(path, "serving_default", text=raw(texts))
    for i, row in enumerate(model.fill_mask(texts, top_k=3)):
        row = row if isinstance(row[0], list) else [row]
        assert found["count"][i] == len(row)
        for m, place in enumerate(row):
            close(found["score"][i, m], [one["score"] for one in place])
            ids = [one["token_id"] for one in place]
            if found["token_id"][i, m].tolist() == ids:
                for name in ("token", "text"):
                    assert found[name][i, m].tolist() == [one[name].encode() for one in place]
            else:  # If two answers are equally likely, either may be returned.
                assert np.abs(np.diff(found["score"][i, m])).min() < 1e-6
    found = session_run(path, "serving_default", text=[b"none"])
    assert found["count"].tolist() == [0] and found["token_id"].tolist() == [[[-1, -1, -1]]]


def check_reranker(model, path):
    found = session_run(path, "serving_default", text=RAW, text_b=RAW[::-1])["score"]
    close(found, model.score((READ, READ[::-1])))
    assert (found > 0).all() and (found < 1).all() and np.ptp(found) > 0.01


def check_words(model, path):
    vectors = model.embed(READ)
    found = session_run(path, "serving_default", text=RAW)
    for row, tokens, weights, count in zip(
        model.decode(vectors, 3), found["token"], found["weight"], found["count"], strict=True
    ):
        close(weights[:count], [weight for _, weight in row])
        words = [token.encode() for token, _ in row]
        assert tokens[:count].tolist() == words or np.abs(np.diff(weights)).min() < 1e-5
    paired = session_run(path, "pair", text=RAW, text_b=RAW[::-1])["weight"]
    close(paired, -np.sort(-model.embed((READ, READ[::-1])).toarray())[:, :3])


def check_pretrainer(model, path):
    check_masked(model, path)
    found = session_run(path, "pair", text=[b"a", b""], text_b=[b"b", b"b"])["probability"]
    ids = [model.preprocessor.tokenizer.tokenize(x) for x in ("a", "b")]
    row = {"token_ids": np.array([[2, *ids[0], 3, *ids[1], 3]])}
    row["segment_ids"] = np.array([[0, 0, 0, 1, 1]])
    row["mask_positions"] = np.array([[0]])
    logits = model.predict(row, verbose=0)["nsp_logits"][0]
    close(found[0], 1 / (1 + np.exp(logits[1] - logits[0])))


def check_probe(model, path):
    long = " ".join(READ)
    texts = [*READ, long, "語a " * 500, "x" * 10_000]
    found = session_run(path, "serving_default", text=raw(texts))
    pieces, features = model.preprocessor.read(texts), model.preprocessor(texts)
    counts = (keras.ops.convert_to_numpy(features["word_counts"]) > 0).sum(axis=1)
    assert found["count"].tolist() == counts.tolist() and 0 in counts
    assert counts[len(READ)] < np.diff(pieces.unit_splits)[len(READ)]  # The long text is truncated.
    outputs = model.predict(features, verbose=0)
    edges = 0
    for i, (text, count) in enumerate(zip(texts, counts)):
        begin = pieces.unit_splits[i]
        places = range(begin, begin + count)
        spans = [(int(pieces.starts[place]), int(pieces.ends[place])) for place in places]
        assert list(zip(found["start"][i], found["end"][i]))[:count] == spans
        assert found["word"][i].tolist()[:count] == [text[a:b].encode() for a, b in spans]
        assert (found["start"][i, count:] == -1).all() and not any(found["word"][i, count:])
        if model.probe.kind == "depth":
            close(found["depth"][i, :count], outputs[i, :count], 1e-4)
            continue
        wanted = spanning_edges(outputs[i, :count, :count])
        pairs = list(zip(found["first"][i].tolist(), found["second"][i].tolist()))
        assert pairs[: len(wanted)] == sorted(pairs[: len(wanted)])
        assert set(pairs) - {(-1, -1)} == wanted
        edges += len(wanted)
    assert edges > 50 or model.probe.kind == "depth"


def check_causal(model, path):
    texts = [*READ, " ".join(READ), "語a " * 100]
    found = session_run(path, "serving_default", text=raw(texts))
    wanted = model.score(texts)
    assert found["count"].tolist() == list(map(len, wanted)) and max(map(len, wanted)) > 128
    for i, row in enumerate(wanted):
        for name in ("token", "token_id", "start", "end"):
            column = [one[name] for one in row]
            got = found[name][i, : len(row)].tolist()
            assert got == [x.encode() if isinstance(x, str) else x for x in column]
        close(found["score"][i, : len(row)], [one["score"] for one in row], 1e-4)
        assert (found["token_id"][i, len(row) :] == -1).all()


def check_detector(model, path):
    texts = [*READ, " ".join(READ), "語a " * 100]
    found = session_run(path, "serving_default", text=raw(texts))
    wanted = model.detect(texts)
    assert found["count"].tolist() == list(map(len, wanted)) and max(map(len, wanted)) > 128
    for i, row in enumerate(wanted):
        for name in ("text", "start", "end"):
            column = [one[name] for one in row]
            got = found[name][i, : len(row)].tolist()
            assert got == [x.encode() if isinstance(x, str) else x for x in column]
        close(found["score"][i, : len(row)], [one["score"] for one in row])


CAUSAL = {"is_causal": True, "num_segments": 0}


def several_tasks():
    def topic(backbone, tokens):
        packer = BertTextClassifierPreprocessor(tokens, sequence_length=64)
        return BertTextClassifier(backbone, labels=tiny.LABELS, preprocessor=packer)

    def names(backbone, tokens):
        packer = BertTokenClassifierPreprocessor(tokens, sequence_length=64)
        return BertTokenClassifier(
            backbone, labels=["PER", "LOC"], scheme="BIO", preprocessor=packer
        )

    return tiny.tasks(topic=topic, names=names)


def check_tasks(model, path):
    first = session_run(path, "serving_default", text=RAW)
    close(first["probabilities"], model.tasks["topic"].predict_proba(READ))
    close(session_run(path, "topic", text=RAW)["probabilities"], first["probabilities"], 0)
    found = session_run(path, "names", text=RAW)
    assert found["count"].tolist() == list(map(len, model.tasks["names"].tag(READ)))
    signatures = card(path)["signatures"]
    assert {"topic_pair", "topic_classify", "names_tokens", "names_preprocess"} < set(signatures)
    with open(os.path.join(path, "assets.extra", "labels.json"), encoding="utf-8") as file:
        assert json.load(file) == {
            "topic": tiny.LABELS,
            "names": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"],
        }


def card(path):
    with open(os.path.join(path, "assets.extra", "card.json"), encoding="utf-8") as file:
        return json.load(file)


WARMUP = {
    "NextSentencePredictor": [("a", "b")],
    "Reranker": [("a", "b")],
    "QuestionAnswering": [("who", "me"), ("where", "here " * 99)],
    "MultipleChoice": [("who", ["me", "you", "it"])],
}
CHECKS = {
    "TextClassifier": check_classifier,
    "TextRegressor": check_regressor,
    "NextSentencePredictor": check_next_sentence,
    "Reranker": check_reranker,
    "SparseEmbedder": check_words,
    "TextEmbedder": check_embedder,
    "TokenClassifier": check_tagger,
    "QuestionAnswering": check_reader,
    "MultipleChoice": check_chooser,
    "MaskedLM": check_masked,
    "Pretrainer": check_pretrainer,
    "StructuralProbe": check_probe,
    "CausalLM": check_causal,
    "ReplacedTokenDetector": check_detector,
}
FAST = ("TokenClassifier",)


@pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in CHECKS],
)
def test_answers_as_the_model(name, export):
    model = tiny.task(name, encoder_settings=CAUSAL if name == "CausalLM" else None)
    settings = {"top_k": 3} if name in ("MaskedLM", "Pretrainer", "SparseEmbedder") else {}
    if name == "QuestionAnswering":
        settings = MANY
    path = export(model, warmup=WARMUP.get(name, ["short", "long " * 99]), **settings)
    CHECKS[name](model, path)
    check_card(model, path)


@pytest.mark.slow
def test_queries_and_texts_of_late_interaction(export):
    reading = {"query_length": 12, "expand_queries": True, "skiplist_words": [",", "?"]}
    reading |= {"query_token": "[", "text_token": "]"}
    model = tiny.task(
        "TextEmbedder", preprocessor=reading, pooling="tokens", projection_dim=8, normalize=True
    )
    path = export(model, signatures=["query", "text"])
    for role in ("query", "text"):
        found = session_run(path, role, text=RAW)
        vectors = model.embed(READ, role=role)
        for row, mask, vector in zip(found["embedding"], found["vector_mask"], vectors):
            close(row[mask.astype(bool)], vector)


@pytest.mark.slow
def test_queries_of_a_sparse_embedder(export):
    model = tiny.task("SparseEmbedder", preprocessor={"prompts": {"query": "who "}})
    path = export(model, top_k=3, signatures=["query", "serving_default"])
    for signature, role in (("query", "query"), ("serving_default", None)):
        weights = np.sort(model.embed(READ, role=role).toarray(), axis=1)[:, :-4:-1]
        close(session_run(path, signature, text=RAW)["weight"], weights)


@pytest.mark.slow
def test_masked_lm_with_a_decoder_of_its_own(export):
    model = tiny.task("MaskedLM", tie_weights=False)
    check_masked(model, export(model, top_k=3, **ONE))


def check_card(model, path):
    found = card(path)
    assert found["model"] == type(model).__name__ and found["weights"] == "float32"
    assert {"serving_default", "tokens", "preprocess"} <= set(found["signatures"])
    body = found["request"]
    assert json.dumps(body, ensure_ascii=False) in found["curl"]
    (instance,) = body["instances"]
    assert set(instance) == set(found["signatures"]["serving_default"]["inputs"])
    inputs = {name: raw([value]) for name, value in instance.items()}
    outputs = session_run(path, "serving_default", **inputs)
    assert set(outputs) == set(found["signatures"]["serving_default"]["outputs"])
    # Servers join requests to a batch and split its outputs by row.
    for signature in ("serving_default", "preprocess"):
        twice = {name: np.concatenate([x, x, x]) for name, x in inputs.items()}
        outputs = session_run(path, signature, **twice)
        assert {len(value) for value in outputs.values()} == {3}, signature
    assert found["python"] == "import tensorflow_text before tf.saved_model.load"
    assert os.path.getsize(os.path.join(path, "assets.extra", "tf_serving_warmup_requests"))


@pytest.mark.slow
def test_encoder(export):
    model = tiny.shake(tiny.encoder(), 0.2)
    with pytest.raises(ValueError, match=r"no preprocessor, .*; pass preprocessor= a BertPrepr"):
        export(model)
    packer = BertPreprocessor(tiny.tokenizer(), sequence_length=64)
    path = export(model, preprocessor=packer, **ONE)
    check_encoder(model, path)
    bare = tiny.shake(tiny.encoder(pooler=False), 0.2)
    path = export(bare, tokens_only=True)
    assert list(card(path)["signatures"]) == ["tokens"] and "python" not in card(path)
    ids = {name: np.ones((2, 5), "int32") for name in bare.input}
    wanted = keras.ops.convert_to_numpy(bare(ids)["sequence_output"])
    close(session_run(path, "tokens", **ids)["sequence_output"], wanted)


@pytest.mark.slow
def test_tasks(export):
    model = several_tasks()
    check_tasks(model, export(model))


@pytest.mark.slow
@pytest.mark.parametrize("name, settings, preprocessor, arguments", [
    ("TextEmbedder", {"pooling": "tokens", "normalize": True}, {}, {}),
    ("TextEmbedder", {"pooling": ["mean", "max"], "layers": "scalar_mix"}, {}, {}),
    ("TokenClassifier", {}, {"label_pieces": "all", "stride": 7}, {}),
    ("TokenClassifier", {"labels": ["noun", "verb", "O"], "scheme": None}, {}, {}),
    ("TokenClassifier", {"scheme": "BILOU", "bilstm_units": 4}, {}, {}),
    ("TokenClassifier", {"scheme": "BIOES", "crf": True}, {}, {}),
    ("TokenClassifier", {"crf": True}, {"label_pieces": "all", "stride": 7}, {}),
    ("StructuralProbe", {"kind": "depth", "layer": 1}, {"kind": "depth"}, {}),
    ("CausalLM", {"encoder_settings": CAUSAL}, {"add_start_token": True}, {}),
    ("QuestionAnswering", {}, {}, {"top_k": 4, "null_threshold": -1.0, "n_best": 3}),
    ("QuestionAnswering", {}, {}, {"top_k": 2, "null_threshold": 5, "max_answer_length": 1}),
], ids=lambda value: "-".join(value) if isinstance(value, dict) else value)  # fmt: skip
def test_settings(name, settings, preprocessor, arguments, export):
    model = tiny.task(name, preprocessor=preprocessor, **settings)
    many = MANY if name in ("QuestionAnswering", "TokenClassifier") else {}
    path = export(model, **many, **arguments)
    CHECKS[name](model, path, **arguments)
    if arguments:
        assert card(path)["settings"] == {**card(path)["settings"], **arguments}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TextClassifier", "TokenClassifier"])
def test_int8(name, export):
    # In a network with large weights, small differences grow.
    model = tiny.task(name, None, None, {"hidden_dim": 128, "intermediate_dim": 512}, scale=0.1)
    size = sum(4 * weight.numpy().size for weight in model.weights)
    model.quantize("int8")
    path = export(model, **ONE)
    assert os.path.getsize(os.path.join(path, "variables", DATA)) < 0.3 * size
    assert card(path)["weights"] == "int8"
    if name == "TextClassifier":
        found = session_run(path, "serving_default", text=RAW)
        np.testing.assert_allclose(found["probabilities"], model.predict_proba(READ), atol=0.02)


DATA = "variables.data-00000-of-00001"


@pytest.mark.backends("tensorflow")
def test_arguments(export, tmp_path):
    reader, tagger = tiny.task("QuestionAnswering"), tiny.task("TokenClassifier")
    for model, arguments, message in [
        (reader, {"top_k": 0}, "top_k=0 must be a whole number of at least 1"),
        (reader, {"null_threshold": "x"}, "null_threshold='x' must be a number"),
        (reader, {"topk": 1}, "topk=1 is not a setting of this model; it takes top_k, null_"),
        (tagger, {"top_k": 1}, "top_k=1 is not a setting of this model; it takes max_windows"),
        (reader, {"labels": ["a"]}, "this model has no classes"),
        (tagger, {"labels": ["a"]}, "must be 5 different names"),
        (tagger, {"labels": [*"abcde"]}, "must rename the types of the model's own .* same 'B-'"),
        (
            tagger,
            {"signatures": ["pair"]},
            "signatures='pair' is unknown; use one of serving",
        ),
        (tagger, {"signatures": []}, "pass None to write all"),
        (tagger, {"signatures": "tokens", "warmup": ["a"]}, "for 'serving_default', which is not"),
        (tagger, {"tokens_only": True, "warmup": ["a"]}, "for 'serving_default', which is not"),
        (reader, {"warmup": ["a"]}, r"position 0 of warmup is 'a'; pass a tuple \(question, cont"),
        (tagger, {"warmup": [("a", "b")]}, r"is \('a', 'b'\); pass a string"),
    ]:
        with pytest.raises(ValueError, match=message):
            export(model, **arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_other_labels_and_few_signatures(export):
    """The served entity types are those of the `labels` argument."""
    model = tiny.task("TokenClassifier")
    names = ["O", "B-人", "I-人", "B-ort", "I-ort"]
    path = export(model, labels=names, signatures=["serving_default"])
    found = session_run(path, "serving_default", text=RAW)
    renamed = {"PER": "人", "LOC": "ort"}
    for i, entities in enumerate(model.tag(READ)):
        wanted = [renamed[entity["label"]].encode() for entity in entities]
        assert found["label"][i, : len(entities)].tolist() == wanted
    assert list(card(path)["signatures"]) == ["serving_default"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TextClassifier", "TextRegressor", "Reranker", "TextEmbedder"])
@pytest.mark.parametrize(
    "long", ["head_tail", {"mode": "windows", "pooling": "attention", "max_windows": 5}]
)
def test_long_texts(name, long, export):
    model = tiny.task(name, preprocessor={"sequence_length": 16, "long": long})
    path = export(model)
    CHECKS[name](model, path)


@pytest.mark.slow
def test_calibrated_probabilities(export):
    for settings in ({}, {"multi_label": True, "activation": "sigmoid"}):
        model = tiny.task("TextClassifier", temperature=3.0, **settings)
        CHECKS["TextClassifier"](model, export(model, name=f"of_{len(settings)}"))
