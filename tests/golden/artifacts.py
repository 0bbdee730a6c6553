"""Small files of every kind that kerasbert writes, which later versions must read with equal
results.

    python tests/golden/artifacts.py tests/golden/artifacts.tar.xz

writes presets, `.keras` files, checkpoints in other packages' formats, exports and examples for
pre-training with the installed kerasbert, on TensorFlow, with their expected results: the digest of
every weight, outputs for fixed arrays, and answers for fixed texts. `artifacts.tar.xz` was made by
version 0.1.0 at 633f197, and `test_artifacts.py` reads it; it is not regenerated when the code
changes, because it stands for users' existing files.
"""

import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile

TEXTS = ["a red fox ran home.", "no", "größe 3, café [MASK] 東京!"]
PAIR = (TEXTS, ["it was late", "why? because", "yes"])
SENTENCES = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "Größe, café and naïve are words with accents; 東京 and 서울 are cities.",
]
# The inference method of each class, and its inputs.
QUESTIONS = {
    "BertTextClassifier": ("classify", (TEXTS,)),
    "BertTextRegressor": ("score", (TEXTS,)),
    "BertTokenClassifier": ("tag", (TEXTS,)),
    "BertQuestionAnswering": ("answer", ("who ran?", "a red fox ran home, and it was late.")),
    "BertMultipleChoice": ("choose", ("a fox", ["ran home", "no", "was late"])),
    "BertMaskedLM": ("fill_mask", ("a {mask} fox ran.",)),
    "BertPretrainer": ("fill_mask", ("a {mask} fox ran.",)),
    "BertNextSentencePredictor": ("follows", PAIR),
    "BertTextEmbedder": ("embed", (TEXTS,)),
}


# --- recorded values, for the writer and for the test ---


def digests(model):
    """Return shape, type and sha256 of each weight by path, in order; repeated names are numbered.

    `bfloat16` is converted to float32, because not every backend exports it.
    """
    import keras
    import numpy as np

    found = {}
    for weight in model.weights:
        value = weight.value
        if keras.backend.standardize_dtype(value.dtype) == "bfloat16":
            value = keras.ops.cast(value, "float32")
        value = np.ascontiguousarray(keras.ops.convert_to_numpy(value))
        path, number = weight.path, 1
        while path in found:
            number += 1
            path = f"{weight.path} {number}"
        digest = hashlib.sha256(value.tobytes()).hexdigest()[:16]
        found[path] = [list(value.shape), str(value.dtype), digest]
    return found


def features(model, seed=5):
    """Return fixed arrays for a model's inputs: three rows of 7 tokens, two of them padded."""
    import numpy as np

    if hasattr(model, "tasks"):
        return {name: features(task) for name, task in model.tasks.items()}
    random = np.random.default_rng(seed)
    shape = (3, 2, 7) if len(model.input["token_ids"].shape) == 3 else (3, 7)
    lengths = np.broadcast_to(np.array([7, 4, 5]).reshape(3, *[1] * (len(shape) - 1)), shape)
    mask = np.arange(7) < lengths
    made = {
        "token_ids": random.integers(1, 30, shape) * mask,
        "padding_mask": mask,
        "segment_ids": random.integers(0, 2, shape) * mask,
        "mask_positions": np.array([[0, 2], [1, 3], [2, 4]]),
    }
    if "segment_ids" in model.input:
        most = getattr(model, "backbone", model).num_segments
        made["segment_ids"] = made["segment_ids"] % most
    return {name: made[name].astype("int32") for name in model.input}


def outputs(model):
    """Return its outputs for `features`, as nested lists of floats."""
    import keras

    def plain(value):
        return keras.ops.convert_to_numpy(keras.ops.cast(value, "float32")).tolist()

    return keras.tree.map_structure(plain, model(features(model)))


def answers(model):
    """Return its method's answers to the fixed texts, for JSON."""
    name, question = QUESTIONS.get(type(model).__name__, (None, None))
    if name is None or getattr(model, "preprocessor", None) is None:
        return None
    if name == "fill_mask":
        mask = model.preprocessor.tokenizer.mask_token
        question = [text.format(mask=mask) for text in question]
    return json.loads(json.dumps(getattr(model, name)(*question), default=lambda x: x.tolist()))


def said(model):
    return {
        "class": type(model).__name__,
        "weights": digests(model),
        "outputs": outputs(model),
        "answers": answers(model),
    }


def load(cls, folder):
    """Load a model from a preset or another package's checkpoint."""
    # Other packages do not store window lengths.
    windows = {"sequence_length": 24, "max_query_length": 8, "doc_stride": 6}
    return cls.from_preset(folder, **windows if cls.__name__ == "BertQuestionAnswering" else {})


def first_batch(folder):
    """Return the first batch of examples for pre-training in a folder, as nested lists."""
    import keras

    from kerasbert.data import read_examples

    batch = next(iter(read_examples(folder, 4, masking="static").as_numpy_iterator()))
    return json.loads(json.dumps(keras.tree.map_structure(lambda x: x.tolist(), batch)))


# --- the models ---


def _tokenizers():
    """Return a small tokenizer of each class by family, trained on the sentences."""
    import io

    import sentencepiece
    from tokenizers import ByteLevelBPETokenizer

    from kerasbert import tokenizers

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = sorted(set("".join(SENTENCES + TEXTS).lower()) | set("abcdefghijklmnopqrstuvwxyz"))
    letters = [letter for letter in letters if not letter.isspace() and letter not in "[]"]
    words = special + letters + [f"##{letter}" for letter in letters] + ["fox", "red", "home"]
    trainer = ByteLevelBPETokenizer()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer.train_from_iterator(
        SENTENCES * 3, vocab_size=290, show_progress=False, special_tokens=names
    )
    model = json.loads(trainer.to_str())["model"]
    vocabulary, merges = model["vocab"], [tuple(pair) for pair in model["merges"]]
    ours = dict(zip(names, ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]))
    modern = {ours.get(token, token): id for token, id in vocabulary.items()}

    def sentence_piece(**settings):
        data = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(SENTENCES * 3),
            model_writer=data,
            hard_vocab_limit=False,
            minloglevel=2,
            vocab_size=120,
            **settings,
        )
        return data.getvalue()

    albert = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
    albert["control_symbols"] = "[CLS],[SEP],[MASK]"
    bert = tokenizers.BertTokenizer(words, lowercase=True)
    return {
        "bert": bert,
        "distilbert": bert,
        "electra": bert,
        "roberta": tokenizers.RobertaTokenizer(vocabulary=vocabulary, merges=merges),
        "modernbert": tokenizers.ModernBertTokenizer(vocabulary=modern, merges=merges),
        "xlm_roberta": tokenizers.XLMRobertaTokenizer(
            proto=sentence_piece(unk_id=0, bos_id=1, eos_id=2, pad_id=-1)
        ),
        "albert": tokenizers.AlbertTokenizer(proto=sentence_piece(**albert)),
    }


def _shake(model):
    """Move each weight, so that every bias and gain matters."""
    import keras
    import numpy as np

    random = np.random.default_rng(3)
    for weight in model.weights:
        if keras.backend.is_float_dtype(weight.dtype):
            weight.assign(random.normal(0, 0.3, weight.shape).astype("float32"))
    return model


SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}
SIZES["max_sequence_length"] = 48
FAMILY_SIZES = {
    "electra": {"embedding_dim": 6},
    "albert": {"embedding_dim": 6, "num_layers": 4, "num_groups": 2},
    "modernbert": {"num_layers": 4, "local_window": 4},
}


def _models():
    """Yield `(name, model)` for every class of model and every family, each on its own encoder."""
    from kerasbert import models

    tokens = _tokenizers()

    def encoder(family="bert", **settings):
        return models.BertBackbone.from_family(
            family,
            vocabulary_size=tokens[family].vocabulary_size(),
            **{**SIZES, **FAMILY_SIZES.get(family, {}), **settings},
        )

    def task(name, family="bert", backbone=None, **settings):
        own = {"sequence_length": 48}
        if name == "QuestionAnswering":
            own |= {"sequence_length": 24, "max_query_length": 8, "doc_stride": 6}
        preprocessor = getattr(models, f"Bert{name}Preprocessor")(tokens[family], **own)
        backbone = backbone or encoder(family)
        model = getattr(models, f"Bert{name}")(backbone, preprocessor=preprocessor, **settings)
        return _shake(model)

    labels = ["ham", "spam", "größer ✓"]
    heads = {
        "TextClassifier": {"labels": labels},
        "TextRegressor": {},
        "TokenClassifier": {"labels": ["PER", "LOC"], "scheme": "BIO"},
        "QuestionAnswering": {},
        "MultipleChoice": {},
        "MaskedLM": {},
        "NextSentencePredictor": {},
        "Pretrainer": {},
        "TextEmbedder": {"normalize": True},
    }
    for name, settings in heads.items():
        yield name, task(name, **settings)
    for family in tokens:
        for name in ("TextClassifier", "TokenClassifier", "MaskedLM"):
            if family != "bert":
                yield f"{family}-{name}", task(name, family, **heads[name])
    yield "encoder", _shake(encoder())
    yield "several_labels", task("TextClassifier", labels=labels, multi_label=True)
    yield "probabilities", task("TextClassifier", labels=labels, activation="softmax")
    yield "bilstm", task("TokenClassifier", labels=["A", "B"], bilstm_units=4)
    yield "scalar_mix", task("TextEmbedder", layers="scalar_mix", pooling="max")
    left_to_right = encoder(is_causal=True)
    yield "left_to_right", task("TextClassifier", backbone=left_to_right, labels=labels)
    bfloat16 = encoder(dtype="mixed_bfloat16")
    yield "bfloat16", task("TextClassifier", backbone=bfloat16, labels=labels)
    int8 = task("TextClassifier", labels=labels)
    int8.quantize("int8")
    yield "int8", int8
    lora = task("TextClassifier", labels=labels)
    lora.backbone.enable_lora(2)
    yield "lora", _shake(lora)
    shared = encoder()
    both = {
        "topic": task("TextClassifier", backbone=shared, labels=labels),
        "spans": task("TokenClassifier", backbone=shared, **heads["TokenClassifier"]),
    }
    yield "several_tasks", models.BertMultiTask(both)
    teacher = task("TextClassifier", labels=labels)
    yield "distiller", models.BertDistiller(teacher.with_layers([0, 1]), teacher)


# --- writing ---


def write(folder):
    """Write every artifact into a folder; return the expected results by path."""
    import kerasbert
    from kerasbert.data import write_examples

    made, expected = dict(_models()), {}

    def place(*parts):
        path = os.path.join(folder, *parts)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    for name, model in made.items():
        if name not in ("distiller", "lora"):
            model.save_to_preset(place("presets", name))
            expected[f"presets/{name}"] = said(model)
        model.save(place("keras", f"{name}.keras"))
        expected[f"keras/{name}.keras"] = said(model)
    plain = [name for name in made if name[0].isupper() or "-" in name or name == "encoder"]
    for format in ("huggingface", "google", "keras_hub"):
        for name in plain:
            target = place("converted", format, name)
            try:
                kerasbert.convert(made[name], target, format=format)
            except ValueError as error:  # The format cannot store this model.
                print(f"not in {format}: {name}: {str(error)[:90]}")
                continue
            expected[f"converted/{format}/{name}"] = said(load(type(made[name]), target))
    for name in ("TextClassifier", "TokenClassifier", "QuestionAnswering", "MaskedLM", "encoder"):
        if name != "encoder":
            kerasbert.export_serving(made[name], place("served", name))
            expected[f"served/{name}"] = said(made[name])
    kerasbert.export_onnx(made["TextClassifier"], place("onnx", "TextClassifier"))
    expected["onnx/TextClassifier"] = said(made["TextClassifier"])
    kerasbert.export_litert(made["TextClassifier"], place("litert", "TextClassifier"))
    expected["litert/TextClassifier"] = said(made["TextClassifier"])
    corpus = place("corpus.txt")
    with open(corpus, "w", encoding="utf-8") as file:
        for number in range(12):
            file.write("\n".join([*SENTENCES, TEXTS[0], f"number {number} was here."]) + "\n\n")
    tokenizer = made["MaskedLM"].preprocessor.tokenizer
    write_examples(corpus, place("examples"), tokenizer, sequence_length=32, workers=1)
    expected["examples"] = {"batch": first_batch(place("examples"))}
    return expected


def main(target):
    import kerasbert

    with tempfile.TemporaryDirectory() as folder:
        expected = write(folder)
        said = {"version": kerasbert.__version__, "expected": expected}
        with open(os.path.join(folder, "expected.json"), "w", encoding="utf-8") as file:
            json.dump(said, file, ensure_ascii=False)
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w:xz", preset=9) as archive:
            for name in sorted(os.listdir(folder)):
                archive.add(os.path.join(folder, name), name, filter=_anonymous)
    with open(target, "wb") as file:
        file.write(data.getvalue())
    print(f"{len(expected)} artifacts, {len(data.getvalue()):,} bytes")


def _anonymous(entry):
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(sys.argv[1])
