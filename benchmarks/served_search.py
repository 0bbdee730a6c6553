"""A search from one SavedModel: latency of questions, and agreement with Python's results.

    python benchmarks/served_search.py
    python benchmarks/served_search.py --only float32+reranked --questions 50

10,000 passages of the Brown corpus, of four sentences each, embedded by MiniLM-L6; questions are
TREC's. `export_serving` writes the index. A process that has only TensorFlow and TensorFlow Text,
where kerasbert and KerasHub cannot be imported, loads it in a session as TensorFlow Serving does
and answers the questions. Milliseconds are percentiles, for one question at a time and for batches
of 32. The ids, their order and the scores of each answer are compared with those of `index.search`
for the same question, which is timed in Python, too. Reranker and reader are MiniLM with new heads,
which take as long as trained ones: the reranker reads 50 candidates per question, the reader the 10
hits.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

TOP, PASSAGES, BATCH = 10, 10_000, 32
SETTINGS = {
    "float32": {},
    "float16": {"dtype": "float16"},
    "int8": {"dtype": "int8"},
    "binary": {"dtype": "binary"},
    "reranked": {},
    "reranked, answered": {},
}
HEAVY = 10  # with a reranker or reader, only a tenth of the questions


def client(path, source, target):
    """Return the answers of a process with only TensorFlow and its Text, and their latency."""
    sys.modules.update(dict.fromkeys(("kerasbert", "keras_hub"), None))
    import numpy as np
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    work = json.loads(Path(source).read_text())
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=work["threads"], inter_op_parallelism_threads=work["threads"]
    )
    start = perf_counter()
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        model = tf.compat.v1.saved_model.load(session, ["serve"], path)
        signature = model.signature_def["serving_default"]
        names = sorted(signature.outputs)
        call = session.make_callable(
            [signature.outputs[name].name for name in names], [signature.inputs["query"].name]
        )
        ready = perf_counter() - start

        def timed(batches):
            found, taken = [], []
            for batch in batches:
                batch = np.array([text.encode() for text in batch], object)
                start = perf_counter()
                found.append(dict(zip(names, call(batch))))
                taken.append(1e3 * (perf_counter() - start))
            return found, taken

        timed(work["batches"][:1] + work["singles"][:3])
        found, singles = timed(work["singles"])
        _, batches = timed(work["batches"])
    np.savez(
        target,
        ready=ready,
        singles=singles,
        batches=batches,
        ids=np.concatenate([x["id"] for x in found]),
        scores=np.concatenate([x["score"] for x in found]),
    )


def passages(count, sentences=4):
    import real_data

    texts = []
    for document in real_data.brown_tagged():
        lines = [" ".join(word for word, _ in sentence) for sentence in document]
        for start in range(0, len(lines) - sentences + 1, sentences):
            texts.append(" ".join(lines[start : start + sentences]))
    return random.Random(0).sample(texts, count)


def run(name, index, questions, folder, threads):
    """Return a row of the table."""
    import numpy as np

    import kerasbert

    start = perf_counter()
    path = kerasbert.export_serving(index, folder / name.replace(", ", "-"), top_k=TOP)
    seconds = perf_counter() - start
    files = [file for file in Path(path).rglob("*") if file.is_file()]
    singles = [[text] for text in questions]
    batches = [questions[i : i + BATCH] for i in range(0, len(questions), BATCH)]
    batches = [batch for batch in batches if len(batch) == BATCH] or [questions[:BATCH]]
    work = {"threads": threads, "singles": singles, "batches": batches}
    (folder / "work.json").write_text(json.dumps(work))
    target = folder / "found.npz"
    command = [sys.executable, "-I", __file__, "--client", path, folder / "work.json", target]
    subprocess.run(command, check=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    found = dict(np.load(target))
    index.search(questions[0], TOP)
    taken, same, off = [], 0, 0.0
    for row, question in enumerate(questions):
        start = perf_counter()
        hits = index.search(question, TOP)
        taken.append(1e3 * (perf_counter() - start))
        same += [hit["id"] for hit in hits] == found["ids"][row].tolist()
        off = max(off, np.abs([hit["score"] for hit in hits] - found["scores"][row]).max())

    def percentiles(values):
        return " / ".join(f"{value:.1f}" for value in np.percentile(values, [50, 90, 99]))

    return [
        *(name, percentiles(found["singles"]), percentiles(found["batches"]), percentiles(taken)),
        *(f"{same} of {len(questions)}", f"{off:.1e}"),
        f"{sum(file.stat().st_size for file in files) / 1e6:.0f}",
        f"{os.path.getsize(Path(path) / 'saved_model.pb') / 1e6:.1f}",
        *(f"{float(found['ready']):.1f}", f"{seconds:.0f}"),
    ]


def main(only: str = "", questions: int = 300, count: int = PASSAGES, threads: int = 2):
    import contest
    import keras
    import real_data

    from kerasbert import SearchIndex
    from kerasbert.models import BertQuestionAnswering, BertReranker, BertTextEmbedder

    keras.utils.set_random_seed(0)
    preset = real_data.minilm_dir()
    embedder = BertTextEmbedder.from_preset(preset, normalize=True)
    texts = passages(count)
    start = perf_counter()
    first = SearchIndex(embedder, texts)
    print(f"{count:,} passages embedded in {perf_counter() - start:.0f} s", flush=True)
    vectors = first._vectors.take(range(count))
    models = {
        "reranked": {"reranker": BertReranker.from_preset(preset, new_head=True)},
    }
    models["reranked, answered"] = {
        **models["reranked"],
        "reader": BertQuestionAnswering.from_preset(preset, new_head=True),
    }
    asked = random.Random(0).sample([text for *_, text in real_data.trec_questions()], questions)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in SETTINGS:
            if only and name not in only.split("+"):
                continue
            parts = models.get(name, {})
            index = SearchIndex(embedder, **parts, **SETTINGS[name])
            index.add(texts, vectors=vectors)
            few = asked[: max(questions // HEAVY, BATCH)] if parts else asked
            rows.append(run(name, index, few, Path(folder), threads))
            print(" | ".join(rows[-1]), flush=True)
    print(contest.machine(threads))
    print("load averages", *(f"{x:.1f}" for x in os.getloadavg()))
    columns = ["index", "one, ms p50 / p90 / p99", f"{BATCH}, ms", "Python, one, ms", "same hits"]
    columns += ["scores off", "MB", "of it graph", "loaded, s", "exported, s"]
    print("| " + " | ".join(columns) + " |")
    print("|---|" + "---:|" * (len(columns) - 1))
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        client(*sys.argv[2:])
    else:
        import typer

        typer.run(main)
