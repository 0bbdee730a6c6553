"""Hostile and fuzzed files: each loads correctly, or raises a ValueError or OSError of one
sentence.

    python -m tests.campaigns.hostile --cases 500 --seed 1 [--only word_piece records]

`--cases` counts for each kind of files. Hypothesis draws one or two changes of valid files: bytes
are cut, flipped and inserted, and JSON values are removed, swapped and set to unexpected ones. No
case may take more than `SECONDS` of CPU time, or `MEMORY` bytes more than the cases before it. A
case that hangs or crashes ends the run; the output names the file in which it is stored.
"""

import argparse
import bz2
import contextlib
import faulthandler
import gzip
import importlib
import io
import json
import lzma
import math
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import warnings

import keras
import numpy as np

import kerasbert
from kerasbert import SearchIndex, data, models, tasks, tokenizers
from kerasbert.search import embed_corpus, read_vectors
from kerasbert.text.byte_pair import byte_characters
from kerasbert.text.transformers_files import transformers_files
from tests.peers import Peer

embed_rows = importlib.import_module("kerasbert.search.embed_corpus")._rows
hypothesis, st = Peer("hypothesis"), Peer("hypothesis.strategies")

SECONDS = 20
MEMORY = 1 << 30
HANGS = 600
DEEP = 10**9  # Replaced by lists that are nested deeper than the JSON reader accepts.
VALUES = [
    *(None, True, False, -1, 0, 1, 7, 10**6, 10**9, 2**31, 2**63, 10**30, -0.5, 1e308, math.nan),
    *(math.inf, "", "x", "7", "[MASK]", "/etc/passwd", "../..", "\ud800", "\0", "é" * 300, [], {}),
    *([[]], [1], ["a", "b"], {"a": 1}, {"type": "Sequence"}, DEEP),
]
TEXTS = ["The quick [MASK] fox.", "", "x" * 300 + " 北京 é"]
LINES = ["the quick brown fox", "a lazy dog", "it rains in the city", "he went home by train"]


# === Changes ===


def change(draw, files):
    """Apply one or two changes to files; return a dict of name to bytes, and a description."""
    files, said = dict(files), []
    # The HDF5 library crashes on some of these, whoever calls it.
    names = sorted(name for name in files if not name.endswith(".h5"))
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(names))
        files[name], what = change_file(draw, files[name])
        said.append(f"{name}: {what}")
    return files, "; ".join(said)


def change_file(draw, content):
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):  # For the second change of a file.
        value = None
    if isinstance(value, (dict, list)) and draw(st.integers(0, 3)):
        value, what = change_json(draw, value)
        return json.dumps(value).replace(str(DEEP), "[" * 99_999 + "]" * 99_999).encode(), what
    at = draw(st.integers(0, len(content)))
    kind = draw(st.sampled_from(["cut", "flip", "insert", "remove", "repeat"]))
    if kind == "cut":
        return content[:at], f"cut at {at}"
    if kind == "flip" and at < len(content):
        bit = draw(st.integers(0, 7))
        return content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :], f"flip {at}"
    size = draw(st.integers(1, 9))
    if kind == "remove":
        return content[:at] + content[at + size :], f"remove {size} at {at}"
    if kind == "repeat":
        return content[:at] + content[max(at - 99, 0) :], f"repeat 99 at {at}"
    more = draw(st.one_of(st.binary(min_size=1, max_size=9), st.text(max_size=5).map(_utf8)))
    return content[:at] + more + content[at:], f"insert {more!r} at {at}"


def _utf8(text):
    return text.encode("utf-8", "surrogatepass")


def change_json(draw, value):
    """Replace a value somewhere in JSON; return it and a description."""
    parent, at, path = None, value, []
    while isinstance(at, (dict, list)) and at and (parent is None or draw(st.integers(0, 4))):
        keys = sorted(at) if isinstance(at, dict) else range(len(at))
        key = draw(st.sampled_from(keys))
        parent, at = at, at[key]
        path.append(key)
    if parent is None:
        return [value], "a list around"
    kind = draw(st.sampled_from(["set", "set", "set", "remove", "copy", "more"]))
    key, where = path[-1], "/".join(map(str, path))
    if kind == "remove":
        del parent[key]
    elif kind == "copy":
        other = draw(st.sampled_from(sorted(parent) if isinstance(parent, dict) else [0]))
        parent[key] = parent[other]
    elif kind == "more" and isinstance(at, dict):
        at[draw(st.sampled_from(["x", "", "id", "\ud800"]))] = draw(st.sampled_from(VALUES))
    elif kind == "more" and isinstance(at, list):
        at.append(draw(st.sampled_from(VALUES)))
    else:
        new = draw(st.sampled_from(VALUES))
        parent[key] = new
        where += f"={'deep' if new is DEEP else repr(new)[:20]}"
    return value, f"{kind} {where}"


# === Kinds of files: valid content, and a reader ===


def _read_folder(folder):
    found = {}
    for at, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(at, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read()
    return found


def _saved(save):
    """Return the files that `save` writes into a folder."""
    with tempfile.TemporaryDirectory() as folder:
        save(folder)
        return _read_folder(folder)


def _word_pieces():
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] the quick fox a city in . x ##x".split()
    return tokenizers.BertTokenizer([*words, "北", "京"], lowercase=True)


def _byte_pairs():
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *byte_characters(), "th", "the", "Ġt"]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    return tokenizers.RobertaTokenizer(vocabulary, ["t h", "th e", "Ġ t"])


def _pieces():
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 3),
        model_writer=model,
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols="[CLS],[SEP],[MASK]",
    )
    return tokenizers.AlbertTokenizer(model.getvalue())


def _tokenizer(make, family, without=()):
    def files():
        made = transformers_files(make(), family, 64, True)
        return {name: content for name, content in made.items() if name not in without}

    def load(folder, use):
        tokenizer = tokenizers.tokenizer_from_files(folder, family)
        if use:  # Tracing takes a while.
            size = tokenizer.vocabulary_size()
            assert all(0 <= id < size for row in tokenizer(TEXTS) for id in row)

    return files, load


def _records(plain):
    def save(folder):
        corpus = os.path.join(folder, "corpus.txt")
        with open(corpus, "w", encoding="utf-8") as file:
            file.write("\n\n".join("\n".join(LINES) for _ in range(12)))
        records = os.path.join(folder, "records")
        settings = {"sequence_length": 16, "block_bytes": 300, "blocks_per_shard": 2, "workers": 1}
        data.write_examples(corpus, records, _word_pieces(), **settings)
        os.remove(corpus)
        if plain:
            os.remove(os.path.join(records, "manifest.json"))

    def load(folder, use):
        source = os.path.join(folder, "records")
        batches = data.read_examples(source, 4, masking="static", repeat=False)
        if use:
            for x, _, _ in batches:
                assert (x["token_ids"].numpy() >= 0).all()

    return lambda: _saved(save), load


def _model():
    tokenizer = _word_pieces()
    backbone = models.BertBackbone(
        vocabulary_size=tokenizer.vocabulary_size(),
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=32,
    )
    preprocessor = models.BertTextClassifierPreprocessor(tokenizer, sequence_length=32)
    return models.BertTextClassifier(backbone, labels=["a", "b"], preprocessor=preprocessor)


def _checkpoint(format):
    def save(folder):
        from kerasbert import convert

        convert(_model(), os.path.join(folder, "model"), format=format)

    def load(folder, use):
        model = models.BertTextClassifier.from_preset(os.path.join(folder, "model"))
        assert all(np.isfinite(keras.ops.convert_to_numpy(w)).all() for w in model.weights)
        if use and model.preprocessor is not None:
            for answer in model.classify(TEXTS):
                assert 0 <= answer["score"] <= 1

    return lambda: _saved(save), load


def _shards(what):
    """A folder of embeddings or predictions: reading it fails or returns what was written."""
    whole = []

    def rows(folder):
        if what == "predictions":
            return list(kerasbert.read_predictions(folder))
        return [list(zip(*part[:2], part[2].tolist())) for part in read_vectors(folder)]

    def save(folder):
        corpus, out = os.path.join(folder, "corpus.txt"), os.path.join(folder, "out")
        with open(corpus, "w", encoding="utf-8") as file:
            file.write("\n".join(LINES))
        if what == "predictions":
            kerasbert.predict_corpus(_model(), corpus, out, rows=2)
        else:
            embed_corpus(corpus, out, _embedder(), rows=2, format=what)
        os.remove(corpus)
        whole[:] = rows(out)

    def load(folder, use):
        assert rows(os.path.join(folder, "out")) == whole

    return lambda: _saved(save), load


def _embedder():
    task = _model()
    preprocessor = models.BertTextEmbedderPreprocessor(
        task.preprocessor.tokenizer, sequence_length=32
    )
    return models.BertTextEmbedder(task.backbone, preprocessor)


def _index(engine):
    """A search index: loading it fails, or it returns the same hits."""
    vectors = np.random.default_rng(0).normal(size=(40, 16)).astype("float32")
    whole = []

    def found(index):
        return [[hit["id"] for hit in hits] for hits in index.search_vectors(vectors, 3)]

    def save(folder):
        index = SearchIndex(None, engine=engine)
        index.add([f"text {i}" for i in range(40)], [f"id {i}" for i in range(40)], vectors)
        whole[:] = found(index)
        index.save(os.path.join(folder, "index"))

    def load(folder, use):
        # `mmap=False`, because memory-mapped files are not verified.
        index = SearchIndex.load(os.path.join(folder, "index"), mmap=False)
        if index.similarity == "cosine" and index.engine_options == {} and index.dims is None:
            assert found(index) == whole or index.engine != engine
        assert all(isinstance(text, str) for text in index.texts)

    return lambda: _saved(save), load


def _corpus(name, pack):
    rows = "".join(json.dumps(row) + "\n" for row in _ROWS).encode()

    def load(folder, use):
        path = os.path.join(folder, name)
        assert all(isinstance(x, str) for document in data.documents(path) for x in document)
        if name.endswith((".jsonl", ".gz")):
            list(embed_rows(name, path, {"text": ["text"], "id": None}))

    return lambda: {name: pack(rows)}, load


def _parquet(rows):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist([json.loads(row) for row in rows.splitlines()])
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file)
    return file.getvalue()


_SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "t",
            "paragraphs": [
                {
                    "context": "The city is old and it rains.",
                    "qas": [
                        {
                            "id": str(i),
                            "question": "What is old?",
                            "answers": [{"text": "city", "answer_start": 4}],
                        }
                        for i in range(3)
                    ],
                }
            ],
        }
    ],
}
_ROWS = [{"text": f"line {i}, it rains", "label": "ab"[i % 2], "id": i} for i in range(6)]


def _table(name, content, head):
    def load(folder, use):
        task = tasks.file_task(train=os.path.join(folder, name), head=head)
        task.read("train")

    return lambda: {name: content}, load


KINDS = {
    "word_piece": _tokenizer(_word_pieces, "bert"),
    "word_piece_json": _tokenizer(_word_pieces, "bert", ["vocab.txt"]),
    "byte_pair": _tokenizer(_byte_pairs, "roberta", ["tokenizer.json"]),
    "byte_pair_json": _tokenizer(_byte_pairs, "roberta", ["vocab.json", "merges.txt"]),
    "sentence_piece": _tokenizer(_pieces, "albert", ["tokenizer.json"]),
    "sentence_piece_json": _tokenizer(_pieces, "albert", ["spiece.model"]),
    "records": _records(plain=False),
    "records_alone": _records(plain=True),
    "preset": _checkpoint("kerasbert"),
    "huggingface": _checkpoint("huggingface"),
    "csv": _table(
        "a.csv",
        b"text,label\n" + b"".join(b'"it rains, %d",%d\n' % (i, i % 2) for i in range(6)),
        "text_classifier",
    ),
    "json_lines": _table(
        "a.jsonl", "".join(json.dumps(row) + "\n" for row in _ROWS).encode(), "text_classifier"
    ),
    "json": _table("a.json", json.dumps(_ROWS).encode(), "text_classifier"),
    "vectors": _shards("npy"),
    "vectors_parquet": _shards("parquet"),
    "predictions": _shards("predictions"),
    "index": _index("exact"),
    "index_usearch": _index("usearch"),
    "index_faiss": _index("faiss"),
    "corpus_gz": _corpus("a.jsonl.gz", gzip.compress),
    "corpus_xz": _corpus("a.jsonl.xz", lzma.compress),
    "corpus_bz2": _corpus("a.jsonl.bz2", bz2.compress),
    "corpus_parquet": _corpus("a.parquet", _parquet),
    "squad": _table("a.json", json.dumps(_SQUAD).encode(), "question_answering"),
    "conll": _table(
        "a.conll", b"Ann B-PER\nLee I-PER\nran O\n\nin O\nRome B-LOC\n", "token_classifier"
    ),
}


# === Running ===


def run_kind(name, cases, seed, last):
    """Run the cases of a kind; return `(cases, cases that loaded, failures)`."""
    make, load = KINDS[name]
    valid = make()
    count, loaded, failures = 0, 0, []
    # The first use of TensorFlow and Keras takes memory for other reasons.
    for use in (False, True):
        assert _outcome(load, valid, use) is None

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.data())
    def one(drawn):
        nonlocal count, loaded
        files, said = change(drawn.draw, valid)
        use = drawn.draw(st.integers(0, 9)) == 0
        with open(last, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{name} (seed {seed}): {said}, used: {use}\n")
        count += 1
        found = _outcome(load, files, use)
        loaded += found is None
        if found and not found.startswith("refused"):
            failures.append(f"{name}: {said}: {found}")

    one()
    return count, loaded, failures


def _outcome(load, files, use):
    """Return `None` for files that load, "refused: ..." for one sentence, else the fault."""
    folder = tempfile.mkdtemp(prefix="hostile-")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    faulthandler.dump_traceback_later(HANGS, exit=True, file=sys.__stderr__)
    try:
        for name, content in files.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load(folder, use)
        found = None
    except (ValueError, OSError) as error:
        text = str(error).strip()
        is_sentence = text and "\n" not in text and not isinstance(error, UnicodeError)
        what = "refused" if is_sentence else f"{type(error).__name__}, not one sentence"
        found = f"{what}: {text[:300]}"
    except Exception as error:
        found = f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        faulthandler.cancel_dump_traceback_later()
        shutil.rmtree(folder, ignore_errors=True)
    seconds = time.process_time() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    if seconds > SECONDS:
        found = f"took {seconds:.0f} s of the processor ({found})"
    if grown > MEMORY:
        found = f"took {grown:,} bytes of memory ({found})"
    return found


def run(cases, seed, only=None, say=print):
    """Test all kinds; return the failures."""
    failures = []
    folder = tempfile.mkdtemp(prefix="hostile-")
    last = os.path.join(folder, "last case")
    say(f"the case that runs is in '{last}'")
    for name in only or KINDS:
        began = time.monotonic()
        count, loaded, failed = run_kind(name, cases, seed, last)
        keras.utils.clear_session()
        seconds = time.monotonic() - began
        say(f"{name}: {count} cases, {loaded} loaded, {len(failed)} failures, {seconds:.0f} s")
        for failure in failed:
            say(f"    {failure}")
        failures += failed
    shutil.rmtree(folder)
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--only", nargs="+", choices=KINDS)
    arguments = parser.parse_args()
    with contextlib.suppress(AttributeError):
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    print(f"cases {arguments.cases} of each kind, seed {arguments.seed}")
    failures = run(arguments.cases, arguments.seed, arguments.only)
    print(f"{len(failures)} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
