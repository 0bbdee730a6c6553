"""Exports of `export_serving` run without Keras: in C, and in TensorFlow 2.12.1.

That TensorFlow stands for servers of its time; TensorFlow Serving 2.13 to 2.19 have its TensorFlow
Text.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import real_data
import tensorflow as tf
import tensorflow_text as tf_text

from kerasbert.export import write_saved_model
from kerasbert.families import get_family
from kerasbert.models import BertTextEmbedder
from kerasbert.tokenizers import (
    AlbertTokenizer,
    ModernBertTokenizer,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)
from tests.export import tiny
from tests.export.conftest import ONE
from tests.export.test_serving import ODD, TEXTS, session_run

pytestmark = pytest.mark.slow

OLD = "2.12.1"
OPS = ("fast_wordpiece_tokenizer", "normalize_ops", "regex_split_ops", "sentencepiece_tokenizer")
# The old environment only runs the C++ loader, on byte strings.
OLD_CLIENT = """
import importlib.util, json, os, sys
import numpy as np
import tensorflow as tf
assert tf.__version__ == sys.argv[1], tf.__version__
folder = os.path.dirname(importlib.util.find_spec("tensorflow_text").origin)
for name in sys.argv[2].split(","):
    tf.load_op_library(os.path.join(folder, "python", "ops", f"_{name}.so"))
answers = []
for path, name, inputs in json.load(open(sys.argv[3])):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        signature = tf.compat.v1.saved_model.load(session, ["serve"], path).signature_def[name]
        feeds = {
            signature.inputs[key].name: np.array([bytes.fromhex(x) for x in column], object)
            for key, column in inputs.items()
        }
        outputs = {key: tensor.name for key, tensor in signature.outputs.items()}
        found = session.run(outputs, feeds)
    answers.append({
        key: np.vectorize(bytes.hex, otypes=[object])(x).tolist() if x.dtype == object
        else x.tolist() for key, x in found.items()
    })
json.dump(answers, open(sys.argv[4], "w"))
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Run the program in C: a function from a SavedModel, inputs, an output and texts to lines."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = os.path.dirname(tf.__file__)
    program = tmp_path_factory.mktemp("client") / "client"
    libraries = ["libtensorflow_cc.so.2", "libtensorflow_framework.so.2"]
    subprocess.run(
        [compiler, Path(__file__).with_name("client.c"), "-o", program]
        + [f"-I{folder}/include", f"-L{folder}", f"-Wl,-rpath,{folder}"]
        + [f"-l:{name}" for name in libraries],
        check=True,
    )
    ops = os.path.join(os.path.dirname(tf_text.__file__), "python", "ops")

    def run(path, signature, output, columns):
        names = write_saved_model._read(path).meta_graphs[0].signature_def[signature]
        inputs = [names.inputs[key].name.split(":")[0] for key in columns]
        operation, index = names.outputs[output].name.split(":")
        texts = [text for row in zip(*columns.values()) for text in row]
        done = subprocess.run(
            [program, path, ",".join(os.path.join(ops, f"_{name}.so") for name in OPS)]
            + [",".join(inputs), operation, index],
            input="".join(f"{text}\n" for text in texts).encode(),
            capture_output=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout.decode().split("\n")[:-1]

    return run


def test_c(client, export):
    model = tiny.task("TextClassifier")
    path = export(model, "classifier", signatures=["serving_default", "pair"])
    texts = [text for text in TEXTS if "\n" not in text]
    labels = client(path, "serving_default", "label", {"text": texts})
    assert labels == [answer["label"] for answer in model.classify(texts)]
    scores = client(path, "pair", "score", {"text": texts, "text_b": texts[::-1]})
    wanted = model.predict_proba((texts, texts[::-1])).max(-1)
    np.testing.assert_allclose(np.array(scores, float), wanted, atol=1e-5)
    tagger = tiny.task("TokenClassifier")
    path = export(tagger, "tagger", **ONE)
    counts = client(path, "serving_default", "count", {"text": texts})
    assert counts == [str(len(row)) for row in tagger.tag(texts)]
    text = " ".join(texts)
    starts = client(path, "serving_default", "start", {"text": [text]})
    assert starts == [str(entity["start"]) for entity in tagger.tag(text)]


@pytest.fixture(scope="module")
def old_tensorflow():
    """The Python of a cached environment with only the old TensorFlow."""
    folder = Path(real_data.cache_dir()) / f"tensorflow-{OLD}"
    python, done = folder / "bin" / "python", folder / "complete"
    if not done.exists():
        if sys.version_info[:2] > (3, 11):
            pytest.skip(f"TensorFlow {OLD} needs Python 3.11 or older")
        for command in (
            [sys.executable, "-m", "venv", "--clear", folder],
            [python, "-m", "pip", "install", "-q", f"tensorflow-cpu=={OLD}"],
            [python, "-m", "pip", "install", "-q", "--no-deps", f"tensorflow-text=={OLD}"],
        ):
            found = subprocess.run(command, capture_output=True, text=True)
            if found.returncode:
                reason = (found.stderr.strip().splitlines() or ["no reason given"])[-1]
                pytest.skip(f"TensorFlow {OLD} cannot be installed: {reason}")
        done.touch()
    return python


SMALL = {"modernbert": {"num_layers": 4, "local_window": 4}, "albert": {"embedding_dim": 8}}


def tagger(family, tokens):
    """Return a tagger of a family whose answers reveal each character's position."""
    settings = {**get_family(family).encoder, "family": family, **SMALL.get(family, {})}
    return tiny.task("TokenClassifier", tokens, encoder_settings=settings)


def modern_byte_pairs():
    """Return a byte-pair tokenizer with runs of spaces as tokens, as in ModernBERT."""
    runs = ["  ", "   "]
    added = [{"content": run, "normalized": True} for run in runs]
    special = "[CLS] [PAD] [SEP] [UNK] [MASK]"
    return tiny.byte_pairs(ModernBertTokenizer, special, runs=runs, added_tokens=added)


def sentence_pieces(kind, **settings):
    """Return a tokenizer of `kind`, trained on a few words."""
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 20),
        model_writer=model,
        vocab_size=250,
        character_coverage=1.0,
        hard_vocab_limit=False,
        minloglevel=2,
        **settings,
    )
    return kind(model.getvalue())


XLM_ROBERTA = {"bos_id": 1, "eos_id": 2, "unk_id": 0}
ALBERT = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
ALBERT["control_symbols"] = "[CLS],[SEP],[MASK]"


def test_old_tensorflow(old_tensorflow, export, tmp_path):
    """Every task that decodes in the graph, each kind of tokenizer, and int8."""
    roberta = tiny.byte_pairs(RobertaTokenizer, "<s> <pad> </s> <unk> <mask>")
    models = {
        "classifier": tiny.task("TextClassifier"),
        "tagger": tiny.task("TokenClassifier"),
        "reader": tiny.task("QuestionAnswering"),
        "masked": tiny.task("MaskedLM"),
        "xlm_roberta": tagger("xlm_roberta", sentence_pieces(XLMRobertaTokenizer, **XLM_ROBERTA)),
        "albert": tagger("albert", sentence_pieces(AlbertTokenizer, **ALBERT)),
        "roberta": tagger("roberta", roberta),
        "modernbert": tagger("modernbert", modern_byte_pairs()),
        "int8": tiny.task("TextClassifier"),
    }
    models["int8"].quantize("int8")
    texts = [text.encode() for text in (*TEXTS, "two  and three   spaces")] + ODD
    jobs = []
    for name, model in models.items():
        path = export(model, name, **ONE)
        inputs = {"text": texts}
        if name == "reader":
            inputs = {"question": texts[::-1], "context": texts}
        if name == "masked":
            inputs = {"text": [b"a [MASK] " + text for text in texts]}
        jobs.append((path, "serving_default", inputs))
    source, target = tmp_path / "jobs.json", tmp_path / "answers.json"
    rows = [(p, n, {k: [x.hex() for x in v] for k, v in i.items()}) for p, n, i in jobs]
    source.write_text(json.dumps(rows))
    script = tmp_path / "old.py"
    script.write_text(OLD_CLIENT)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "KERAS_BACKEND")}
    subprocess.run(
        [old_tensorflow, script, OLD, ",".join(OPS), source, target],
        env=environment,
        cwd=tmp_path,
        check=True,
    )
    for (path, name, inputs), answers in zip(jobs, json.loads(target.read_text()), strict=True):
        new = session_run(path, name, **{k: np.array(v, object) for k, v in inputs.items()})
        for key, values in new.items():
            if values.dtype == object:
                hexed = np.vectorize(bytes.hex, otypes=[object])(values)
                assert (np.array(answers[key], object) == hexed).mean() > 0.999, (path, key)
            else:
                # A value that is rounded the other way in int8 differs by one of 127 steps.
                atol = 0.05 if path.endswith("int8/1") else 1e-4
                np.testing.assert_allclose(answers[key], values, atol=atol, err_msg=f"{path} {key}")


def test_real_texts(export):
    """The MiniLM encoder on reviews and on Korean, Japanese and Chinese, short and long."""
    model = BertTextEmbedder.from_preset(real_data.or_skip(real_data.minilm_dir))
    reviews = [text for _, text in real_data.or_skip(real_data.film_reviews)]
    texts = reviews[:100] + [" ".join(reviews[i : i + 1 + i % 12]) for i in range(200, 300)]
    for lines in (real_data.korean_text, real_data.japanese_text, real_data.chinese_text):
        texts += real_data.or_skip(lines)[50:150]
    path = export(model, **ONE)
    vectors = [
        session_run(path, "serving_default", text=write_saved_model._encoded(texts[i : i + 25]))
        for i in range(0, len(texts), 25)
    ]
    found = np.concatenate([row["embedding"] for row in vectors])
    assert found.shape == (500, 384)
    np.testing.assert_allclose(found, model.embed(texts), atol=1e-5)
