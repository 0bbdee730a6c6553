"""A few labels per class: our SetFit and setfit, fine-tuning, frozen features and TF-IDF.

    python benchmarks/few_labels.py FOLDER
    python benchmarks/few_labels.py FOLDER --labels 64 --seeds 0 --texts trec --only kerasbert
    python benchmarks/few_labels.py FOLDER --labels "" # only prints the table of finished runs

MiniLM-L6 on TREC's questions (6 classes), film reviews (fresh or rotten) and messages (spam or
not): the seed draws `--labels` texts per class for training, the same for all contestants, and 500
other texts for the test. The score is accuracy, for messages macro F1. Each run is a separate
process; FOLDER keeps its result, and finished runs are not repeated.

- tfidf: words and pairs of words, TF-IDF, logistic regression.
- kerasbert/frozen: `finetune(method="frozen")`.
- kerasbert/full: plain fine-tuning with mean pooling, 25 epochs, peak learning rate 1e-4, batches
  of 16.
- kerasbert/setfit and setfit: 10 pairs of the same class and of other classes for each text, one
  epoch, batches of 16, peak learning rate 2e-5, then logistic regression. setfit runs with its
  defaults and the same `num_iterations`; it is omitted if it is not installed (`pip install
  setfit`).

The runs use PyTorch unless KERAS_BACKEND is set. There is no validation set, because nothing is
selected.
"""

import csv
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated

import real_data
import typer
from contest import console, table

METHODS = ("tfidf", "kerasbert/frozen", "kerasbert/full", "kerasbert/setfit", "setfit")
PAIRS, BATCH, LENGTH, TESTED = 10, 16, 64, 500
RATES = {"setfit": 2e-5, "full": 1e-4}
SCORES = {"trec": "accuracy", "reviews": "accuracy", "spam": "macro_f1"}


def rows_of(name):
    """Return all texts with their classes."""
    if name == "trec":
        return [(text, kind) for kind, _, text in real_data.trec_questions()]
    if name == "spam":
        return [(text, kind) for kind, text in real_data.sms_spam()]
    return [(text, kind) for kind, text in real_data.film_reviews() if kind != "plot"]


def drawn(name, labels, seed):
    """Return `(train, test)`: the given number of rows per class, and other rows."""
    rows = sorted(set(rows_of(name)))
    random.Random(seed).shuffle(rows)
    train, rest, counts = [], [], {}
    for row in rows:
        counts[row[1]] = counts.get(row[1], 0) + 1
        (train if counts[row[1]] <= labels else rest).append(row)
    return train, rest[:TESTED]


def score(name, gold, predictions):
    from sklearn.metrics import accuracy_score, f1_score

    if SCORES[name] == "accuracy":
        return accuracy_score(gold, predictions)
    return f1_score(gold, predictions, average="macro")


def tfidf_model():
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    return make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
        LogisticRegression(max_iter=1000, C=10),
    )


def tfidf(train, test, seed):
    model = tfidf_model().fit(*zip(*train))
    return model.predict([text for text, _ in test]).tolist()


def kerasbert(method, train, test, seed):
    os.environ.setdefault("KERAS_BACKEND", "torch")
    from kerasbert import finetune
    from kerasbert.models import BertTextClassifier
    from kerasbert.tasks import file_task

    settings = {"learning_rates": RATES[method], "batch_sizes": BATCH} if method in RATES else {}
    if method == "full":
        settings |= {"epochs": 25, "model": {"pooling": "mean"}}
    if method == "setfit":
        settings |= {"pairs": PAIRS}
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        # The dev set is scored in each epoch, but selects nothing in a single run.
        for name, rows in (("train", train), ("dev", test[:8])):
            paths[name] = os.path.join(folder, f"{name}.csv")
            with open(paths[name], "w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([("text", "label"), *rows])
        results = finetune(
            file_task(**paths),
            real_data.minilm_dir(),
            os.path.join(folder, "out"),
            method=method,
            seeds=seed,
            sequence_length=LENGTH,
            verbose=False,
            **settings,
        )
        model = BertTextClassifier.from_preset(results["model"])
        return [row["label"] for row in model.classify([text for text, _ in test])]


def setfit(train, test, seed):
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    texts, labels = zip(*train)
    with tempfile.TemporaryDirectory() as folder:
        model = SetFitModel.from_pretrained(real_data.minilm_dir(), device="cpu")
        model.model_body.max_seq_length = LENGTH
        arguments = TrainingArguments(
            output_dir=folder,
            batch_size=BATCH,
            num_epochs=1,
            num_iterations=PAIRS,
            body_learning_rate=RATES["setfit"],
            seed=seed,
            report_to="none",
            save_strategy="no",
            show_progress_bar=False,
        )
        dataset = Dataset.from_dict({"text": texts, "label": labels})
        Trainer(model=model, args=arguments, train_dataset=dataset).train()
        return list(map(str, model.predict([text for text, _ in test])))


def run(method, texts, labels, seed):
    """Return the score of a run."""
    train, test = drawn(texts, labels, seed)
    own = {"tfidf": tfidf, "setfit": setfit}.get(method)
    if own is None:
        predictions = kerasbert(method.partition("/")[2], train, test, seed)
    else:
        predictions = own(train, test, seed)
    return score(texts, [kind for _, kind in test], predictions)


def listed(text, kind=str):
    return [kind(part) for part in text.split(",") if part]


def main(
    folder: Annotated[Path, typer.Argument(help="Folder for the results.")],
    labels: Annotated[
        str, typer.Option(help="Comma-separated numbers of labels per class.")
    ] = "8,16,64",
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds.")] = "0,1",
    texts: Annotated[
        str, typer.Option(help="Comma-separated: trec, reviews, spam.")
    ] = "trec,reviews,spam",
    only: Annotated[str, typer.Option(help="Comma-separated prefixes of methods.")] = "",
    one: Annotated[str | None, typer.Option(hidden=True)] = None,
):
    """Run what is missing, and print the table."""
    results = folder / "results.jsonl"
    if one is not None:
        key = json.loads(one)
        line = json.dumps({"key": key, "score": run(*key)})
        with open(results, "a", encoding="utf-8") as file:
            file.write(line + "\n")
        return
    folder.mkdir(parents=True, exist_ok=True)
    done = read(results)
    beginnings = tuple(listed(only)) or ("",)
    methods = [name for name in METHODS if name.startswith(beginnings)]
    if importlib.util.find_spec("setfit") is None:
        methods = [name for name in methods if name != "setfit"]
    keys = [
        [method, name, count, seed]
        for count in listed(labels, int)
        for seed in listed(seeds, int)
        for name in listed(texts)
        for method in methods
    ]
    for key in keys:
        if tuple(key) in done:
            continue
        console.print("running", *key)
        command = [sys.executable, __file__, str(folder), "--one", json.dumps(key)]
        if subprocess.run(command, capture_output=True).returncode:
            console.print("failed", *key)
    show(read(results))


def read(path):
    """Return scores by method, texts, labels and seed."""
    if not path.exists():
        return {}
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {tuple(row["key"]): row["score"] for row in rows}


def show(done):
    columns = sorted({key[1:3] for key in done}, key=lambda x: (list(SCORES).index(x[0]), x[1]))
    rows = []
    for method in METHODS:
        cells = []
        for column in columns:
            values = [done[key] for key in done if key[0] == method and key[1:3] == column]
            spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
            cells.append(f"{mean(values):.3f}{spread} ({len(values)})" if values else "")
        rows.append([method, *cells])
    table(
        "Mean and deviation over seeds (how many)",
        ["", *(f"{name}, {count} a class" for name, count in columns)],
        rows,
    )


if __name__ == "__main__":
    typer.run(main)
