"""Real texts as files for `kerasbert finetune`, one folder per task.

    python benchmarks/task_files.py files            # 2,000 rows to train on, 500 dev, 500 test
    kerasbert finetune PRESET out --train files/sms/train.csv --dev files/sms/dev.csv

notes/finetuning.md has the commands for all of them, and the results.
"""

import argparse
import csv
import json
import random
from collections import Counter
from pathlib import Path

import real_data
from quality import brown, brown_questions

SEED = 0


def sms():
    """Messages, spam or not."""
    return ["text", "label"], [[text, label] for label, text in real_data.sms_spam()]


def trec():
    """Questions, and which of 6 kinds of answer they ask for."""
    return ["text", "label"], [[text, coarse] for coarse, _, text in real_data.trec_questions()]


def pairs():
    """Pairs of those questions, half of which ask for the same kind of answer."""
    draw = random.Random(SEED)
    kinds = {}
    for coarse, _, text in real_data.trec_questions():
        kinds.setdefault(coarse, []).append(text)
    rows = []
    for coarse, texts in kinds.items():
        others = [text for kind, found in kinds.items() if kind != coarse for text in found]
        for text in texts:
            is_same = draw.random() < 0.5
            second = draw.choice(texts if is_same else others)
            rows.append([text, second, "same" if is_same else "other"])
    return ["first", "second", "label"], rows


def reviews():
    """Three snippets of reviews, and the share of "fresh" ones among them."""
    draw = random.Random(SEED)
    found = [row for row in real_data.film_reviews() if row[0] != "plot"]
    draw.shuffle(found)
    rows = []
    for first in range(0, len(found) - 2, 3):
        three = found[first : first + 3]
        share = sum(kind == "fresh" for kind, _ in three) / 3
        rows.append([" ".join(text for _, text in three), f"{share:.3f}"])
    return ["text", "fresh"], rows


def endings():
    """Sentences of Brown, each with four candidates for the next sentence: the real one, and three
    others.
    """
    draw = random.Random(SEED)
    documents = [
        [" ".join(word for word, _ in sentence) for sentence in document if len(sentence) < 40]
        for document in real_data.brown_tagged()
    ]
    rows = []
    for number, document in enumerate(documents):
        for place in range(0, len(document) - 1, 4):
            others = [draw.choice(draw.choice(documents)) for _ in range(3)]
            right = draw.randrange(4)
            choices = [*others[:right], document[place + 1], *others[right:]]
            rows.append([f"{number}-{place}", document[place], "", *choices, right])
    names = ["video-id", "sent1", "sent2", "ending0", "ending1", "ending2", "ending3", "label"]
    return names, rows


def common_tags():
    """Return sentences of Brown with frequent tags, so that training has all tags."""
    sentences = list(brown())
    counts = Counter(tag for _, tags in sentences for tag in tags)
    return None, [row for row in sentences if min(counts[tag] for tag in row[1]) >= 1000]


def write_table(path, header, rows):
    with open(path.with_suffix(".csv"), "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def write_columns(path, header, rows):
    """Write CoNLL's columns: a word per line, an empty line between sentences."""
    with open(path.with_suffix(".conll"), "w", encoding="utf-8") as file:
        for words, tags in rows:
            file.writelines(f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True))
            file.write("\n")


def write_squad(path, header, rows):
    """Write SQuAD's JSON; a question without an answer is impossible, as in version 2.0."""
    paragraphs = []
    for number, ((question, passage), answer) in enumerate(rows):
        spans = zip(answer["text"], answer["answer_start"], strict=True)
        answers = [{"text": text, "answer_start": start} for text, start in spans]
        asked = {"id": f"{path.name}-{number}", "question": question, "answers": answers}
        asked["is_impossible"] = not answers
        paragraphs.append({"context": passage, "qas": [asked]})
    data = {"version": "v2.0", "data": [{"title": "Brown", "paragraphs": paragraphs}]}
    path.with_suffix(".json").write_text(json.dumps(data, indent=1), encoding="utf-8")


TASKS = {
    "sms": (sms, write_table),
    "trec": (trec, write_table),
    "pairs": (pairs, write_table),
    "reviews": (reviews, write_table),
    "brown": (common_tags, write_columns),
    "questions": (lambda: (None, list(brown_questions())), write_squad),
    "endings": (endings, write_table),
}


def main(folder, train, dev):
    """Write the files of all tasks.

    Args:
        folder: path.
        train: int. Maximum number of training rows.
        dev: int. Number of validation rows, and of test rows.
    """
    for name, (read, write) in TASKS.items():
        header, rows = read()
        random.Random(SEED).shuffle(rows)
        parts = {"dev": rows[:dev], "test": rows[dev : 2 * dev], "train": rows[2 * dev :][:train]}
        target = Path(folder) / name
        target.mkdir(parents=True, exist_ok=True)
        for split, part in parts.items():
            write(target / split, header, part)
        print(name, *(f"{split} {len(part):,}" for split, part in parts.items()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--train", type=int, default=2000, help="training rows (2000)")
    parser.add_argument("--dev", type=int, default=500, help="dev rows, and test rows (500)")
    main(**vars(parser.parse_args()))
