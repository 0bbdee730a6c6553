"""Fine-tuning scores on real text: a preset's weights, random weights, and baselines.

    python benchmarks/quality.py                              # all tasks, 3 seeds, MiniLM-L6
    KERAS_BACKEND=jax python benchmarks/quality.py --only trec --seeds 5
    python benchmarks/quality.py --preset bert_mini_en_uncased --only sms,trec,reviews \\
        --train 100,500,all --min-steps 150 --rate 3e-4 --seeds 5

Reviews are film snippets, fresh or rotten; trec are questions of 6 classes; sms are messages, spam
or not; brown is the part of speech of each word. The seed draws a split: all contestants train on
the same texts and are scored on the same other texts. The preset and the model with random weights
are trained in the same way (AdamW, linear warmup over a tenth of the steps, then linear decay). The
linear model is logistic regression on TF-IDF of words and pairs of words; the most frequent tag is
that of the word in the training texts or, for an unseen word, of all words.

Questions are made from Brown's sentences that begin with a name and a verb ("Who gave orders for
the ship?"), each with a passage of four sentences that contains it; every fifth passage has the
question of another passage, and no answer. Answers are scored as in SQuAD 2.0: by exact match and
F1 of words, where an empty answer is right if the passage has none. A third score is the exact
match on questions that have an answer. The questions follow the text so closely that a rule could
answer them: the scores only show that training finds such a rule.

Distillation uses the reviews, a quarter of which has labels. The teacher is trained on that
quarter. Students with two of its layers are trained on the quarter from labels alone, on the
quarter from labels and soft targets, and, in about the same number of steps, on all texts from soft
targets alone. All students start from the same weights.

Exports compare the score of a model that LoRA trained on trec (which needs a learning rate of about
2e-3) with the scores of its SavedModel and ONNX files, which take raw strings, with merged adapters
and in int8.

The results of each seed are appended to `--output`, one line of JSON each.
"""

import itertools
import json
import os
import random
import re
import runpy
import string
import tempfile
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from statistics import mean, pstdev
from time import perf_counter
from typing import Annotated

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import real_data
import serving
import typer
from contest import console, table
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import kerasbert
from kerasbert.models import (
    BertDistiller,
    BertQuestionAnswering,
    BertTextClassifier,
    BertTokenClassifier,
)


def reviews():
    return [(text, kind) for kind, text in real_data.film_reviews() if kind != "plot"]


def trec():
    return [(text, coarse) for coarse, _, text in real_data.trec_questions()]


def sms():
    return [(text, kind) for kind, text in real_data.sms_spam()]


def brown():
    """Yield words and tags of sentences; of tags such as "nn-tl" (a noun in a title) and "pps+bez",
    only the first part.
    """
    for document in real_data.brown_tagged():
        for sentence in document:
            words, tags = zip(*sentence)
            yield list(words), [re.split(r"(?<=.)[-+](?=\w)", tag)[0] for tag in tags]


# Tags of a name, and of the verb after it, at the beginning of a sentence.
NAME_TAGS = re.compile(r"np(-tl)?|nn-tl|jj-tl")
VERB_TAGS = ("vbd", "vbz", "bedz", "bez", "hvd", "hvz", "dod", "doz", "md")


def brown_questions():
    """Return `((question, passage), answer)`; each sentence is in one passage at most."""
    draw = random.Random(0)
    asked = []
    for document in real_data.brown_tagged():
        for first in range(0, len(document), 4):
            passage = document[first : first + 4]
            named = [place for place, sentence in enumerate(passage) if _name_length(sentence)]
            if not named or sum(map(len, passage)) > 120:
                continue
            place = draw.choice(named)
            count = _name_length(passage[place])
            texts = [_text(sentence) for sentence in passage]
            name = _text(passage[place][:count])
            start = sum(len(text) + 1 for text in texts[:place])
            question = "Who " + _text(passage[place][count:][:12]).rstrip(" .,;:?!\"'-") + "?"
            answer = {"text": [name], "answer_start": [start]}
            asked.append((question, " ".join(texts), answer))
    for i, (question, passage, answer) in enumerate(asked):
        if i % 5 == 4:
            other = asked[(i + len(asked) // 2) % len(asked)][0]
            question, answer = other, {"text": [], "answer_start": []}
        yield (question, passage), answer


def _name_length(sentence):
    """Return the number of words of the name at the beginning of a sentence; 0 if no name and verb
    are there.
    """
    tags = [tag for _, tag in sentence]
    count = next((i for i, tag in enumerate(tags) if not NAME_TAGS.fullmatch(tag)), 0)
    is_name = any(tag.startswith("np") for tag in tags[:count])
    return count if is_name and len(tags) > 7 and tags[count] in VERB_TAGS else 0


def _text(sentence):
    """Join words of the Brown corpus as in printed text."""
    text = " ".join(word for word, _ in sentence)
    text = re.sub(r"`` ?| ?''", '"', text)
    return re.sub(r" ([,.;:?!)])", r"\1", text).replace("( ", "(")


MINILM = "MiniLM-L6"
SEQUENCE_LENGTH = 64  # tokens; nearly all of these texts are shorter


def load(cls, settings, pretrained=True, **arguments):
    """Load the preset with a new head, its encoder with its own weights or random ones."""
    preset = settings["preset"]
    preset = real_data.minilm_dir() if preset == MINILM else preset
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning that the head is new
        return cls.from_preset(preset, load_weights=pretrained, **arguments)


def train_model(model, x, y, settings):
    """Train any model with `fit`, and return it."""
    batch_size = settings["batch_size"]
    steps = -(-len(x[0] if isinstance(x, tuple) else x) // batch_size)  # of an epoch
    epochs = max(settings["epochs"], -(-settings["min_steps"] // steps))
    steps *= epochs
    rate = kerasbert.optimizers.LinearDecay(settings["rate"], steps, warmup_steps=steps // 10)
    model.compile(optimizer=kerasbert.optimizers.AdamW(rate), jit_compile=settings["jit_compile"])
    model.fit(x, y, batch_size=batch_size, epochs=epochs, verbose=settings["verbose"])
    return model


def accuracy_of(model, test):
    return {"accuracy": model.evaluate(*test, verbose=0, return_dict=True)["accuracy"]}


def own_weights(train, test, labels, settings, pretrained=True):
    """Return the accuracy on `test` of the preset, from its own weights or from random ones."""
    cls = BertTextClassifier if isinstance(train[0][0], str) else BertTokenClassifier
    length = settings.get("sequence_length", SEQUENCE_LENGTH)
    head = {"labels": labels, **settings.get("head", {})}
    model = load(cls, settings, pretrained, sequence_length=length, **head)
    train_model(model, *train, settings)
    if cls is BertTokenClassifier:
        show(settings, ((" ".join(words), model.tag([words])[0]) for words in test[0]))
    return accuracy_of(model, test)


def random_weights(train, test, labels, settings):
    return own_weights(train, test, labels, settings, pretrained=False)


def show(settings, rows):
    """Print the first rows, `--show` of them."""
    for _, row in zip(range(settings["show"]), rows):
        console.print(*row, sep="\n    ", soft_wrap=True, markup=False)


def linear(train, test, labels, settings):
    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
        LogisticRegression(C=10, max_iter=1000, random_state=settings["seed"]),
    )
    return {"accuracy": model.fit(*train).score(*test)}


def largest_class(train, test, labels, settings):
    name = Counter(train[1]).most_common(1)[0][0]
    return {"accuracy": float(np.mean([label == name for label in test[1]]))}


def most_frequent_tag(train, test, labels, settings):
    of_word, of_all = defaultdict(Counter), Counter()
    for words, tags in zip(*train):
        for word, tag in zip(words, tags):
            of_word[word][tag] += 1
            of_all[tag] += 1
    best = of_all.most_common(1)[0][0]
    best_of = {word: tags.most_common(1)[0][0] for word, tags in of_word.items()}
    right = [
        best_of.get(word, best) == tag
        for words, tags in zip(*test)
        for word, tag in zip(words, tags)
    ]
    return {"accuracy": float(np.mean(right))}


# Distillation


def teacher(train, test, labels, settings):
    model = load(BertTextClassifier, settings, labels=labels, sequence_length=SEQUENCE_LENGTH)
    settings["models"]["teacher"] = train_model(model, *_labeled(train), settings)
    return accuracy_of(model, test)


def _labeled(train):
    """Return the first quarter, whose labels are used."""
    return [column[: len(column) // 4] for column in train]


def _student(settings):
    return settings["models"]["teacher"].with_layers([0, 3])


def student(train, test, labels, settings):
    return accuracy_of(train_model(_student(settings), *_labeled(train), settings), test)


def taught_student(train, test, labels, settings, **weights):
    model = _student(settings)
    distiller = BertDistiller(model, settings["models"]["teacher"], **weights)
    train_model(distiller, *train, settings)
    model.compile()
    return accuracy_of(model, test)


def soft_targets(train, test, labels, settings):
    return taught_student(_labeled(train), test, labels, settings)


def unlabeled(train, test, labels, settings):
    settings = {**settings, "epochs": -(-settings["epochs"] // 4)}
    return taught_student((train[0], None), test, labels, settings, label_weight=0.0)


# Exports


def lora(train, test, labels, settings):
    """Return MiniLM with adapters of rank 8 on its products; only these and the head train."""
    model = load(BertTextClassifier, settings, labels=labels, sequence_length=SEQUENCE_LENGTH)
    model.backbone.enable_lora(8)
    settings["models"]["lora"] = train_model(model, *train, settings)
    return accuracy_of(model, test)


def saved_model(train, test, labels, settings):
    with tempfile.TemporaryDirectory() as folder:
        kerasbert.export_serving(settings["models"]["lora"], f"{folder}/saved_model", version=1)
        answer = serving.load_saved_model(Path(folder), "kerasbert", "float32", os.cpu_count())
        return _scores_of_answers(answer, folder, test, labels)


def saved_model_int8(train, test, labels, settings):
    """Score the int8 SavedModel; this must be the last export, because it quantizes the model in
    place.
    """
    settings["models"]["lora"].quantize("int8")
    return saved_model(train, test, labels, settings)


def onnx(train, test, labels, settings, precision="float32"):
    with tempfile.TemporaryDirectory() as folder:
        directory = f"{folder}/kerasbert_{precision}"
        kerasbert.export_onnx(settings["models"]["lora"], directory, precision)
        answer = serving.load_onnx(Path(folder), "kerasbert", precision, os.cpu_count())
        return _scores_of_answers(answer, folder, test, labels)


def onnx_int8(train, test, labels, settings):
    return onnx(train, test, labels, settings, "int8")


def openvino_int8(train, test, labels, settings):
    """Score `answer.py` next to the OpenVINO file; activation ranges are calibrated on training
    texts.
    """
    with tempfile.TemporaryDirectory() as folder:
        directory = f"{folder}/openvino"
        model = settings["models"]["lora"]
        kerasbert.export_openvino(model, directory, "int8", texts=list(train[0][:300]))
        answer = runpy.run_path(f"{directory}/answer.py")["answer"]

        def odds(texts):
            rows = map(dict, answer(list(texts)))
            return np.array([[row[label] for label in labels] for row in rows])

        return _scores_of_answers(odds, folder, test, labels)


def _scores_of_answers(answer, folder, test, labels):
    texts, names = test
    rows = [answer(texts[i : i + 32]).argmax(axis=-1) for i in range(0, len(texts), 32)]
    found = [labels[best] for best in np.concatenate(rows)]
    right = [a == b for a, b in zip(found, names, strict=True)]
    size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return {"accuracy": float(np.mean(right)), "MB on disk": size / 1e6}


# Questions


def answers(train, test, labels, settings, pretrained=True):
    """Return the preset's answers, from its own weights or random ones; no threshold is tuned."""
    model = load(
        *(BertQuestionAnswering, settings, pretrained),
        new_head=True,
        sequence_length=160,
        doc_stride=64,
    )
    train_model(model, tuple(map(list, zip(*train[0]))), train[1], settings)
    found = model.answer(*map(list, zip(*test[0])), null_threshold=0.0)
    found = [best[0]["answer"] for best in found]
    rows = (
        (question, passage, f"{text!r}, should be {answer['text']}")
        for text, (question, passage), answer in zip(found, *test)
    )
    show(settings, rows)
    return squad_scores(found, test[1])


def random_answers(train, test, labels, settings):
    return answers(train, test, labels, settings, pretrained=False)


def first_name(train, test, labels, settings):
    found = [re.search(r"[A-Z][\w.]*(?: [A-Z][\w.]*)*|$", passage)[0] for _, passage in test[0]]
    return squad_scores(found, test[1])


def squad_scores(found, expected):
    """Return exact match and F1 as in SQuAD 2.0, ignoring case, punctuation and articles."""
    exact, f1, has_answer = [], [], []
    for text, answer in zip(found, expected, strict=True):
        got, want = map(_words, (text, (answer["text"] or [""])[0]))
        common = sum((Counter(got) & Counter(want)).values())
        exact.append(got == want)
        f1.append(2 * common / (len(got) + len(want)) if got and want else float(got == want))
        has_answer.append(bool(want))
    exact_of_answered = np.mean(np.array(exact)[has_answer])
    return {
        "exact match": float(np.mean(exact)),
        "F1": float(np.mean(f1)),
        "exact match of answers": float(exact_of_answered),
    }


def _words(text):
    text = "".join(char for char in text.lower() if char not in string.punctuation)
    return [word for word in text.split() if word not in ("a", "an", "the")]


PRESET = {"its weights": own_weights, "random weights": random_weights}
OF_TEXTS = {**PRESET, "TF-IDF, logistic regression": linear, "largest class": largest_class}
# The function that makes the pairs, and the contestants.
TASKS = {
    "reviews": (reviews, OF_TEXTS),
    "trec": (trec, OF_TEXTS),
    "sms": (sms, OF_TEXTS),
    "brown": (brown, {**PRESET, "most frequent tag of the word": most_frequent_tag}),
    "questions": (
        brown_questions,
        {
            "its weights": answers,
            "random weights": random_answers,
            "first name of the passage": first_name,
        },
    ),
    "distillation": (
        reviews,
        {
            "teacher, 6 layers": teacher,
            "student, 2 layers, labels": student,
            "student, labels and soft targets": soft_targets,
            "student, soft targets of 4 times the texts": unlabeled,
        },
    ),
    "exports": (
        trec,
        {
            "LoRA, the model itself": lora,
            "LoRA, SavedModel": saved_model,
            "LoRA, ONNX": onnx,
            "LoRA, ONNX, int8": onnx_int8,
            "LoRA, OpenVINO, int8": openvino_int8,
            "LoRA, SavedModel, int8": saved_model_int8,
        },
    ),
}


def main(
    only: Annotated[str, typer.Option(help="comma-separated tasks")] = ",".join(TASKS),
    preset: Annotated[str, typer.Option(help="preset name, handle or folder")] = MINILM,
    train: Annotated[
        str, typer.Option(help="training texts: comma-separated numbers, or all")
    ] = "3000",
    test: Annotated[int, typer.Option(help="test texts")] = 2000,
    seeds: int = 3,
    first_seed: int = 0,
    epochs: int = 3,
    min_steps: Annotated[int, typer.Option(help="minimum number of steps, by more epochs")] = 0,
    batch_size: int = 32,
    rate: float = 5e-5,
    jit_compile: bool = False,
    contestants: Annotated[
        str, typer.Option(help="comma-separated parts of contestants' names")
    ] = "",
    show: Annotated[int, typer.Option(help="number of predictions to print")] = 0,
    verbose: int = 0,
    output: Annotated[Path | None, typer.Option(help="file for the result of each seed")] = None,
):
    """Train and score every contestant on every task; print means over the seeds."""
    settings = {
        "preset": preset,
        "epochs": epochs,
        "min_steps": min_steps,
        "batch_size": batch_size,
        "rate": rate,
        "jit_compile": jit_compile or keras.backend.backend() == "jax",
    }
    for task, size in itertools.product(only.split(","), train.split(",")):
        read, of_task = TASKS[task]
        pairs = list(read())
        size = len(pairs) - test if size == "all" else int(size)
        labels = None
        if task != "questions":
            labels = sorted({one for _, label in pairs for one in np.ravel(label).tolist()})
        found = defaultdict(lambda: defaultdict(list))
        for seed in range(first_seed, first_seed + seeds):
            drawn = random.Random(seed).sample(pairs, len(pairs))
            texts, names = map(list, zip(*drawn, strict=True))
            parts = (texts[test:][:size], names[test:][:size]), (texts[:test], names[:test])
            models = {}  # trained models, for contestants that depend on others
            for name, run in of_task.items():
                if not any(part in name for part in contestants.split(",")):
                    continue
                start = perf_counter()
                keras.utils.set_random_seed(seed)
                more = {"seed": seed, "models": models, "show": show, "verbose": verbose}
                scores = run(*parts, labels, {**settings, **more})
                for score, value in scores.items():
                    found[name][score].append(value)
                row = {
                    "task": task,
                    "seed": seed,
                    "contestant": name,
                    **scores,
                    "seconds": round(perf_counter() - start, 1),
                    "train": len(parts[0][0]),
                    "test": len(parts[1][0]),
                    "backend": keras.backend.backend(),
                    **settings,
                }
                console.print(json.dumps(row), soft_wrap=True)
                if output:
                    with open(output, "a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")
        rows = [
            (
                name,
                score,
                *(f"{value:.3f}" for value in (mean(each), pstdev(each))),
                " ".join(f"{x:.3f}" for x in each),
            )
            for name, scores in found.items()
            for score, each in scores.items()
        ]
        title = f"{task}, {preset}: {size:,} to train, {len(parts[1][0]):,} held out"
        table(title, ("contestant", "score", "mean", "standard deviation", "each seed"), rows)


if __name__ == "__main__":
    typer.run(main)
