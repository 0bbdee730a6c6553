"""The paper's ablations at small scale: what each choice of the pre-training is worth.

    python benchmarks/ablations.py FOLDER                      # every row, 2 seeds
    python benchmarks/ablations.py FOLDER --only tasks --steps 4000

Pre-trains an encoder for each row, from the text of `demo_preset.py`, and fine-tunes it on TREC
questions and film reviews. Rows: the tasks (next sentence, none, none and left to right, the last
with a BiLSTM on top), three sizes, the six ways of hiding a token. All take the same steps of as
many examples; a row without next sentence has full sentences. FOLDER keeps text, vocabulary,
examples and results: what is there is not computed again, and what was interrupted goes on.
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
    # 0.02 at the width of BERT base; with it small encoders take some 200 steps longer.
    "encoder": {"dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.05},
    "masker": {"mask_selection_rate": 0.2},  # More to learn from in each step.
}
# Short rows and no dropout: at 128 tokens the loss stays long where attention is not learnt yet.
LENGTH = 32


def _hidden(mask, same, other):
    assert mask + same + other == 100
    shares = {"mask_token_rate": mask / 100, "random_token_rate": other / 100}
    return {"masker": {**BASE["masker"], **shares}}


LEFT_TO_RIGHT = {
    "objective": "full_sentences",
    "encoder": {**BASE["encoder"], "is_causal": True},
}
# Group and name of each row: its arguments of `pretrain`, beside those of `BASE`.
ROWS = {
    ("tasks", "masked words and next sentence"): {},
    ("tasks", "no next sentence"): {"objective": "full_sentences"},
    ("tasks", "no next sentence, left to right"): LEFT_TO_RIGHT,
    ("tasks", "no next sentence, left to right, BiLSTM"): LEFT_TO_RIGHT,
    ("size", "2 x 64"): {"hidden_dim": 64, "num_heads": 1},
    ("size", "2 x 128"): {},
    ("size", "4 x 128"): {"num_layers": 4},
    ("hidden", "80 mask, 10 same, 10 other"): {},
    ("hidden", "100, 0, 0"): _hidden(100, 0, 0),
    ("hidden", "80, 0, 20"): _hidden(80, 0, 20),
    ("hidden", "80, 20, 0"): _hidden(80, 20, 0),
    ("hidden", "0, 20, 80"): _hidden(0, 20, 80),
    ("hidden", "0, 0, 100"): _hidden(0, 0, 100),
}
# Of the head that is fine-tuned.
HEADS = {("tasks", "no next sentence, left to right, BiLSTM"): {"bilstm_units": 128}}
PAIRS = {"trec": quality.trec, "reviews": quality.reviews}


def scores_of(row, seed, folder, steps, train, test):
    """Scores of a row's encoder: held-out masked words, and accuracy on each task."""
    arguments = {"objective": "next_sentence", **BASE, **ROWS[row]}
    pretraining = json.dumps({**arguments, "steps": steps, "seed": seed}, sort_keys=True)
    head = HEADS.get(row, {})
    key = pretraining + json.dumps(head)
    results = folder / "results.jsonl"
    if results.exists():
        for line in results.read_text().splitlines():
            known = json.loads(line)
            if known["key"] == key:  # Rows of two groups may be one and the same.
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
    """Accuracy of an encoder after three epochs over texts of a task, which the seed draws."""
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
    only: Annotated[str, typer.Option(help="groups: tasks, size, hidden")] = "tasks,size,hidden",
    steps: int = 3000,
    seeds: int = 2,
    first_seed: Annotated[int, typer.Option(help="for seeds in processes of their own")] = 0,
    train: Annotated[int, typer.Option(help="texts of a task to train on")] = 3000,
    test: int = 2000,
):
    """Pre-train, fine-tune and tabulate."""
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
