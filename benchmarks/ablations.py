"""The paper's ablations at small scale: the contribution of each pre-training choice.

    python benchmarks/ablations.py FOLDER                      # every row, 2 seeds
    python benchmarks/ablations.py FOLDER --only tasks --steps 4000

Pre-trains an encoder for each row on the text of `demo_preset.py`, and fine-tunes it on TREC
questions and film reviews. The rows are in three groups: tasks (with and without next sentence
prediction, left to right, and left to right with a BiLSTM on top), three sizes, and six masking
rules. All rows train for the same number of steps with equal batch sizes; rows without next
sentence prediction use full sentences. FOLDER keeps the text, vocabulary, examples and results:
finished work is not repeated, and an interrupted run resumes.
"""

import hashlib
import json
import random
from collections import defaultdict
from pathlib import Path
from statistics import mean, pstdev
from typing import Annotated

import demo_preset
import keras
import quality
import typer
from contest import console, table

import kerasbert
from kerasbert.data import write_examples
from kerasbert.tokenizers import BertTokenizer

BASE = {
    "num_layers": 2,
    "hidden_dim": 128,
    # BERT-base uses 0.02, with which small encoders need some 200 steps more.
    "encoder": {"dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.05},
    "masker": {"mask_selection_rate": 0.2},  # More predictions per step.
}
# Short rows and no dropout, because with 128 tokens it takes long until attention is learned.
LENGTH = 32


def _masking(mask, same, other):
    assert mask + same + other == 100
    shares = {"mask_token_rate": mask / 100, "random_token_rate": other / 100}
    return {"masker": {**BASE["masker"], **shares}}


LEFT_TO_RIGHT = {
    "objective": "full_sentences",
    "encoder": {**BASE["encoder"], "is_causal": True},
}
# Group and name of each row, with its arguments of `pretrain` in addition to `BASE`.
ROWS = {
    ("tasks", "masked words and next sentence"): {},
    ("tasks", "no next sentence"): {"objective": "full_sentences"},
    ("tasks", "no next sentence, left to right"): LEFT_TO_RIGHT,
    ("tasks", "no next sentence, left to right, BiLSTM"): LEFT_TO_RIGHT,
    ("size", "2 x 64"): {"hidden_dim": 64, "num_heads": 1},
    ("size", "2 x 128"): {},
    ("size", "4 x 128"): {"num_layers": 4},
    ("masking", "80 mask, 10 same, 10 other"): {},
    ("masking", "100, 0, 0"): _masking(100, 0, 0),
    ("masking", "80, 0, 20"): _masking(80, 0, 20),
    ("masking", "80, 20, 0"): _masking(80, 20, 0),
    ("masking", "0, 20, 80"): _masking(0, 20, 80),
    ("masking", "0, 0, 100"): _masking(0, 0, 100),
}
# Settings of the head for fine-tuning, by row.
HEADS = {("tasks", "no next sentence, left to right, BiLSTM"): {"bilstm_units": 128}}
PAIRS = {"trec": quality.trec, "reviews": quality.reviews}


def scores_of(row, seed, folder, steps, train, test):
    """Return the accuracies of a row's encoder on held-out masked words and on each task."""
    arguments = {"objective": "next_sentence", **BASE, **ROWS[row]}
    pretraining = json.dumps({**arguments, "steps": steps, "seed": seed}, sort_keys=True)
    head = HEADS.get(row, {})
    key = pretraining + json.dumps(head)
    results = folder / "results.jsonl"
    if results.exists():
        for line in results.read_text().splitlines():
            known = json.loads(line)
            if known["key"] == key:  # Two groups may share a row.
                return known["scores"]
    name = hashlib.sha256(pretraining.encode()).hexdigest()[:16]
    made = kerasbert.pretrain(
        str(folder / "examples" / arguments["objective"]),
        str(folder / name),
        **arguments,
        vocabulary=str(folder / "vocabulary"),
        phases=[(LENGTH, steps, 128)],
        optimizer="adamw",
        learning_rate=1e-3,
        warmup_steps=steps // 3,
        log_every=10,
        evaluate_every=max(steps // 40, 1) * 10,
        precision="mixed_bfloat16",
        held_out=0.02,
        seed=seed,
    )
    scores = {"mlm_accuracy": made["scores"]["mlm_accuracy"]}
    if "nsp_accuracy" in made["scores"]:
        scores["nsp_accuracy"] = made["scores"]["nsp_accuracy"]
    for task in PAIRS:
        scores[task] = finetuned(made["preset"], task, seed, train, test, head)
    with open(results, "a", encoding="utf-8") as file:
        file.write(json.dumps({"key": key, "row": row, "seed": seed, "scores": scores}) + "\n")
    return scores


def finetuned(preset, task, seed, train=3000, test=2000, head=None):
    """Return the accuracy of an encoder after three epochs on texts of a task that the seed
    draws.
    """
    drawn = random.Random(seed).sample(PAIRS[task](), train + test)
    texts, names = map(list, zip(*drawn, strict=True))
    settings = {
        "preset": preset,
        "sequence_length": LENGTH,
        "epochs": 3,
        "min_steps": 0,
        "batch_size": 32,
        "rate": 3e-4,
        "head": head or {},
        "jit_compile": keras.backend.backend() == "jax",
        "show": 0,
        "verbose": 0,
    }
    keras.utils.set_random_seed(seed)
    parts = (texts[:train], names[:train]), (texts[train:], names[train:])
    return quality.own_weights(*parts, sorted(set(names)), settings)["accuracy"]


def main(
    folder: Path,
    only: Annotated[
        str, typer.Option(help="comma-separated groups: tasks, size, masking")
    ] = "tasks,size,masking",
    steps: int = 3000,
    seeds: int = 2,
    first_seed: Annotated[
        int, typer.Option(help="first seed, to run seeds in separate processes")
    ] = 0,
    train: Annotated[int, typer.Option(help="training texts per task")] = 3000,
    test: int = 2000,
):
    """Pre-train, fine-tune and print the table."""
    if not (folder / "text").exists():
        demo_preset.text(folder / "text")
    if not (folder / "vocabulary").exists():
        kerasbert.vocab(str(folder / "text"), str(folder / "vocabulary"), size=8192, unused=20)
    tokenizer = BertTokenizer(str(folder / "vocabulary" / "vocab.txt"), lowercase=True)
    for objective in ("next_sentence", "full_sentences"):
        made = folder / "examples" / objective
        settings = {"objective": objective, "sequence_length": LENGTH, "copies": 2}
        write_examples(str(folder / "text"), str(made), tokenizer, **settings)
    for group in only.split(","):
        found = defaultdict(lambda: defaultdict(list))
        for row in ROWS:
            for seed in range(first_seed, first_seed + seeds):
                if row[0] == group:
                    scores = scores_of(row, seed, folder, steps, train, test)
                    for name, value in scores.items():
                        found[row[1]][name].append(value)
                    console.print(row, seed, scores, soft_wrap=True)
        names = ["mlm_accuracy", "nsp_accuracy", *PAIRS]
        rows = [
            (name, *(_shown(scores.get(score)) for score in names))
            for name, scores in found.items()
        ]
        table(
            f"{group}: {steps:,} steps, seeds {first_seed} to {first_seed + seeds - 1}",
            ("row", *names),
            rows,
        )


def _shown(values):
    return f"{mean(values):.3f} ± {pstdev(values):.3f}" if values else ""


if __name__ == "__main__":
    typer.run(main)
