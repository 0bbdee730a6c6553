"""Translation language modeling (XLM): finding translations with and without it.

    KERAS_BACKEND=torch python benchmarks/translation.py FOLDER

Encoders of 2 x 128 learn from Korean and English, or Japanese and English sentences of LibreOffice
(its messages and its help, the largest source of `preset_pairs.py`), for `--steps` steps. Both
encoders of a seed have the same sentences, vocabulary and initial weights, and 64 sentences per
step:

- "sentences": each sentence is masked alone.
- "translations": half of the pairs are masked as one row, the other half as single sentences.

Then 500 held-out sentences are embedded (mean of the tokens of the last layer), and the nearest of
the 500 English sentences by cosine is compared with the translation, and the other way around.
"same tokens" needs no training: TF-IDF of the tokens, which finds names, numbers and English words
in the other language. FOLDER keeps the results, and finished runs are not repeated. Intervals are
95% t intervals over the seeds.
"""

import json
import random
from pathlib import Path
from typing import Annotated

import numpy as np
import preset_pairs
import typer
from contest import table
from crf import interval
from sklearn.feature_extraction.text import TfidfVectorizer

import kerasbert
from kerasbert.models import BertTextEmbedder, BertTextEmbedderPreprocessor
from kerasbert.tokenizers import BertTokenizer

HELD_OUT, LENGTH, PER_STEP, TOKENS = 500, 64, 64, 4000
SHORTEST, LONGEST = 15, 120  # characters of the English sentence
# Rows per pair of sentences, which give both kinds of rows the same number of sentences per step.
ROWS_PER_PAIR = {"sentences": 2, "translations": 1.5}


def pairs(language, folder):
    """Return `(sentence, English sentence)` without repetitions; the first are held out."""
    path = folder / f"{language}.json"
    if not path.exists():
        found, _ = preset_pairs.made(language, False, only="^LibreOffice")
        path.write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
    unique = {}
    for text, english in json.loads(path.read_text(encoding="utf-8")):
        if SHORTEST <= len(english) <= LONGEST:
            unique.setdefault(english.lower(), (text, english))
    return list(unique.values())


def write_rows(path, rows, language):
    text = "".join(f"{a}\t{b}\n" for a, b in rows)
    path.write_text(f"{language}\ten\n{text}", encoding="utf-8")
    return str(path)


def accuracies(own, english):
    """Return the share of nearest neighbors that are translations, in both directions, in %."""
    similar, right = own @ english.T, np.arange(len(own))
    return [100 * float((similar.argmax(axis) == right).mean()) for axis in (1, 0)]


def score(kind, language, seed, steps, train, test, folder):
    """Train an encoder and return its accuracies."""
    rows = []
    for position, (text, english) in enumerate(train):
        is_pair = kind == "translations" and position % 2
        rows += [(text, english)] if is_pair else [(text, ""), ("", english)]
    random.Random(seed).shuffle(rows)
    output = folder / f"{language}_{kind}_{seed}"
    batch = round(PER_STEP * ROWS_PER_PAIR[kind] / 2)
    made = kerasbert.pretrain(
        write_rows(folder / f"{output.name}.tsv", rows, language),
        str(output),
        objective="translation",
        languages=[language, "en"],
        vocabulary=str(folder / f"vocabulary_{language}"),
        family="xlm",
        num_layers=2,
        hidden_dim=128,
        num_heads=2,
        phases=[(LENGTH, steps, batch)],
        held_out=0.02,
        evaluate_every=steps,
        seed=seed,
        workers=1,
        verbose=False,
    )
    vectors = []
    for name, texts in zip((language, "en"), zip(*test)):
        packer = BertTextEmbedderPreprocessor.from_preset(
            made["preset"], sequence_length=LENGTH, language=name
        )
        model = BertTextEmbedder.from_preset(
            made["preset"], preprocessor=packer, pooling="mean", normalize=True
        )
        vectors.append(model.embed(list(texts)))
    return accuracies(*vectors)


def main(
    folder: Annotated[Path, typer.Argument(help="Folder for data, encoders and results.")],
    steps: Annotated[int, typer.Option(help="Steps of each training.")] = 1000,
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 5,
    languages: Annotated[str, typer.Option(help="ko,ja or one of them")] = "ko,ja",
):
    """Run what is missing, and print the table."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.jsonl"
    rows = map(json.loads, path.read_text().splitlines()) if path.exists() else []
    done = {tuple(row["key"]): row["accuracies"] for row in rows}
    splits, lines = {}, []
    for language in languages.split(","):
        found = pairs(language, folder)
        test, train = found[:HELD_OUT], found[HELD_OUT:]
        splits[language] = train, test
        vocabulary = folder / f"vocabulary_{language}"
        if not vocabulary.exists():
            text = write_rows(folder / f"{language}.tsv", train, language)
            kerasbert.vocab(
                text,
                vocabulary,
                size=TOKENS,
                lowercase=False,
                text_key=[language, "en"],
            )
    for seed in range(seeds):
        for language, (train, test) in splits.items():
            for kind in ROWS_PER_PAIR:
                key = kind, language, seed, steps
                if key not in done:
                    done[key] = score(*key, train, test, folder)
                    with open(path, "a") as file:
                        file.write(json.dumps({"key": key, "accuracies": done[key]}) + "\n")
    for language, (train, test) in splits.items():
        tokenizer = BertTokenizer(folder / f"vocabulary_{language}")
        counts = TfidfVectorizer(analyzer=tokenizer)
        own, english = zip(*test)
        counts.fit([*own, *english])
        plain = accuracies(counts.transform(own), counts.transform(english).toarray())
        lines.append([f"{language}, same tokens", *(f"{x:.1f}" for x in plain)])
        values = {
            kind: np.array([done[kind, language, seed, steps] for seed in range(seeds)])
            for kind in ROWS_PER_PAIR
        }
        for kind, x in values.items():
            lines.append([f"{language}, {kind}", *map(interval, x.T)])
        gain = values["translations"] - values["sentences"]
        lines.append([f"{language}, gain", *map(interval, gain.T)])
        print(f"{language}: {len(train):,} pairs to train on")
    table(f"{steps} steps, {seeds} seeds", ["encoder", "to English", "from English"], lines)


if __name__ == "__main__":
    typer.run(main)
