"""Changes to the pre-training recipe, compared in equal time and recorded in a log.

    python benchmarks/recipe.py TEXT OUTPUT --seconds 600                 # every row, 2 threads
    python benchmarks/recipe.py TEXT OUTPUT --seconds 60 --rows base,muon
    python benchmarks/recipe.py TEXT OUTPUT --tokens 20000000             # equal tokens instead
    python benchmarks/recipe.py TEXT OUTPUT --rows "muon 3e-3+norm first" # two changes at once
    python benchmarks/recipe.py KO.txt OUTPUT --cased --size 4x256       # another language, a size

TEXT is any input of `kerasbert.pretrain`, such as the text of `demo_preset.py`. Every row trains a
new encoder in a separate process, with the settings of `BASE` and its own in `ROWS`. A
learning-rate schedule needs the number of steps in advance. Therefore, some steps are timed first,
and then the row is trained for the number of steps that fits the budget. Start-up, compiling and
evaluation are not counted.

Rows are compared by bits per character of masked words (fewer are better), which can be compared
between vocabularies of any kind and size. All rows have the same held-out documents. In these,
whole words are masked until 15% of the tokens are masked, with one mask for each subword. The
natural logarithms of the probabilities of the masked subwords are summed, and divided by minus ln 2
and by the number of characters of these subwords. White space does not count, and an unknown token
counts as one character. `word_accuracy` is the share of masked words of which every subword is
predicted correctly. Encoders trained on replaced tokens have neither score. Therefore, every row
also has `questions` and `reviews`: accuracies after fine-tuning on 3,000 TREC questions or film
reviews, means of three draws.

OUTPUT/records.jsonl has one line per row. Finished rows are not run again, and interrupted ones
resume. The encoders stay in OUTPUT/rows.
"""

import hashlib
import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Annotated

import numpy as np
import typer
from contest import console, environment, machine, table

# Settings in addition to those of the encoder of `ablations.py`, which has 2 layers of width 128.
# `phases` and `warmup_steps` are given as shares of the steps, because the budget determines the
# number of steps.
BASE = {
    "vocabulary": {"size": 8192, "unused": 20},
    "objective": "full_sentences",
    "masker": {"mask_selection_rate": 0.3},
    "phases": [(32, 1.0, 128)],
    "optimizer": "adamw",
    "learning_rate": 1e-3,
    "warmup_steps": 0.1,
}
# Settings of each row that differ from the base. A dict updates the dict of the base; other values
# replace the base's value.
ROWS = {
    "base": {},
    "next sentence": {"objective": "next_sentence"},
    "cut sentences": {"cut_sentences": True},
    "replaced tokens": {"objective": "replaced_tokens", "masker": {"mask_selection_rate": 0.15}},
    "15% masked": {"masker": {"mask_selection_rate": 0.15}},
    "40% masked": {"masker": {"mask_selection_rate": 0.4}},
    "40 to 15% masked": {"masker": {"mask_selection_rate": (0.4, 0.15)}},
    "whole words masked": {"masker": {"unit": "word"}},
    "muon": {"optimizer": "muon"},
    "muon 3e-3": {"optimizer": "muon", "learning_rate": 3e-3},
    "adamw 3e-3": {"learning_rate": 3e-3},
    "stays then decays": {"schedule": "wsd"},
    "stays then decays over 40%": {"schedule": "wsd", "decay_share": 0.4},
    "averaged weights": {"ema_momentum": 0.99},
    "batches grow": {"phases": [(32, 0.5, 64), (32, 0.5, 192)]},
    "rows of 128": {"phases": [(128, 1.0, 32)]},
    "rows grow": {"phases": [(32, 0.8, 128), (128, 0.2, 32)]},
    "unigram vocabulary": {"vocabulary": {"kind": "unigram"}},
    "4096 tokens": {"vocabulary": {"size": 4096}},
    "16384 tokens": {"vocabulary": {"size": 16384}},
    "32768 tokens": {"vocabulary": {"size": 32768}},
    "4 layers": {"num_layers": 4},
    "1 layer of 192": {"num_layers": 1, "hidden_dim": 192},
    "norm first": {"encoder": {"norm_first": True}},
    "gated": {"encoder": {"gated_mlp": True}, "intermediate_dim": 352},
    "ModernBERT": {"family": "modernbert", "intermediate_dim": 352},
}
LENGTH, HIDDEN = 32, 0.15  # Row length and share of masked tokens in the evaluation.
# Names of the scores after fine-tuning, and the tasks in `ablations.py`; only for English.
TASKS = {"questions": "trec", "reviews": "reviews"}
PROBE = 60  # Steps that are timed first.


def settings_of(row, size, cased):
    """Return a dict of the base's settings, updated by those of a row; `a+b` combines two rows."""
    from ablations import BASE as SMALL

    layers, width = map(int, size.split("x"))
    found = {**SMALL, **BASE, "num_layers": layers, "hidden_dim": width}
    found["vocabulary"] = {**BASE["vocabulary"], "lowercase": not cased}
    changes = [change for part in row.split("+") for change in ROWS[part].items()]
    for name, value in changes:
        found[name] = {**found.get(name, {}), **value} if isinstance(value, dict) else value
    if "intermediate_dim" in found:  # The rows' values are for a width of 128.
        found["intermediate_dim"] = found["intermediate_dim"] * found["hidden_dim"] // 128
    if found["vocabulary"].get("kind") == "unigram":
        del found["vocabulary"]["unused"]  # Only for WordPiece.
    return found


# === Shared by all rows ===


def texts(corpus, output, share):
    """Return paths of the training text and of the held-out text, one JSON line per document."""
    from kerasbert.base.files import write_text
    from kerasbert.data import documents

    paths = [output / "text" / f"{name}.jsonl" for name in ("train", "held_out")]
    if not all(path.exists() for path in paths):
        found = list(documents(corpus))
        if len(found) < 20:  # Split long documents, so that some parts can be held out.
            parts = ([one[i : i + 50] for i in range(0, len(one), 50)] for one in found)
            found = [part for one in parts for part in one]
        random.Random(0).shuffle(found)
        first = max(1, round(share * len(found)))
        paths[0].parent.mkdir(parents=True, exist_ok=True)
        for path, part in zip(paths, (found[first:], found[:first])):
            lines = (json.dumps({"text": "\n".join(one)}, ensure_ascii=False) for one in part)
            write_text(str(path), "\n".join(lines) + "\n")
    return paths


def vocabulary(train, output, settings):
    """Return the folder of a vocabulary, which is trained if missing."""
    import kerasbert

    folder = output / "vocabularies" / _name(settings)
    if not folder.exists():
        kerasbert.vocab(str(train), str(folder), **settings)
    return folder


def examples(text, output, tokenizer, length, objective, cut, *name):
    """Return the folder of examples, which are made if missing."""
    from kerasbert.data import write_examples

    rows = ("cut",) if cut else ()
    folder = output / "examples" / "-".join((*name, objective, *rows, str(length)))
    settings = {"sequence_length": length, "objective": objective, "sentences": "lines"}
    settings["cut_sentences"] = cut
    write_examples(str(text), str(folder), tokenizer, **settings)
    return str(folder)


def _name(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


# === Steps for a budget ===


def steps_of(phases, total):
    """Return phases with numbers of steps instead of shares, at least one each."""
    return [(length, max(1, round(share * total)), size) for length, share, size in phases]


def seconds_of(log):
    """Return seconds per step in each phase, from its log without the phase's first line."""
    found = {}
    for before, row in zip([{"step": 0}, *log], log):
        found.setdefault(row["phase"], []).append((row["seconds"], row["step"] - before["step"]))
    timed = [[x for x in found[phase][1:] if x[0]] for phase in sorted(found)]
    return [sum(x for x, _ in rows) / sum(n for _, n in rows) for rows in timed]


# === A row ===


def train(row, corpus, output, budget, seed, precision):
    """Train a row within its budget; return its record for the log."""
    from ablations import finetuned

    import kerasbert
    from kerasbert.base.files import json_in, read_log, write_text

    settings = settings_of(row, budget["size"], budget["cased"])
    text, held_out = texts(corpus, output, budget["held_out"])
    words = vocabulary(text, output, settings["vocabulary"])
    from kerasbert.tokenizers import tokenizer_from_files

    tokenizer = tokenizer_from_files(str(words), "bert")
    # Replaced tokens use the examples of full sentences.
    finds_words = settings["objective"] != "replaced_tokens"
    objective = settings["objective"] if finds_words else "full_sentences"
    rows = objective, settings.get("cut_sentences", False)
    made = {
        length: examples(text, output, tokenizer, length, *rows, words.name)
        for length, _, _ in settings["phases"]
    }

    def run(folder, total, **more):
        phases = steps_of(settings["phases"], total)
        total = sum(phase[1] for phase in phases)
        warmup_steps = round(settings["warmup_steps"] * total)
        own = {**settings, "vocabulary": str(words), "phases": phases, "warmup_steps": warmup_steps}
        return kerasbert.pretrain(
            made, str(folder), **own, precision=precision, held_out=0, seed=seed, **more
        )

    folder = output / "rows" / _name([row, settings, budget, seed, precision])
    plan = json_in(str(folder), "plan.json")
    if not plan:
        if budget["steps"]:
            plan = {"steps": budget["steps"]}
        elif budget["tokens"]:
            each = sum(length * share * size for length, share, size in settings["phases"])
            plan = {"steps": round(budget["tokens"] / each)}
        else:
            probe = folder / "probe"
            shares = [share for _, share, _ in settings["phases"]]
            # At least ten steps in each phase, of which the first five are not counted.
            run(probe, max(PROBE, 10 / min(shares)), log_every=5, resume=False, verbose=False)
            each = seconds_of(read_log(str(probe / "log.jsonl")))
            pace = sum(share * seconds for share, seconds in zip(shares, each))
            plan = {"steps": max(1, int(budget["seconds"] / pace))}
        folder.mkdir(parents=True, exist_ok=True)
        write_text(str(folder / "plan.json"), json.dumps(plan))
    every = max(1, plan["steps"] // 20)
    done = run(folder / "run", plan["steps"], log_every=every, evaluate_every=every * 1000)
    log = read_log(str(folder / "run" / "log.jsonl"))
    timed = [line for line in log if line["seconds"]]
    seconds = sum(line["seconds"] for line in timed)
    scores = score(done["preset"], held_out, output, tokenizer, words.name) if finds_words else {}
    for column, task in ({} if budget["cased"] else TASKS).items():
        drawn = [finetuned(done["preset"], task, draw) for draw in range(3)]
        scores[column] = round(mean(drawn), 4)
    return {
        **scores,
        "seconds": round(seconds, 1),
        "steps": done["steps"],
        "tokens": round(sum(x["seconds"] * x["tokens_per_second"] for x in timed)),
        "parameters": done["model"].count_params(),
        "training_loss": log[-1]["mlm_loss"] if "mlm_loss" in log[-1] else log[-1]["loss"],
        "preset": str(Path(done["preset"]).relative_to(output)),
    }


def score(preset, held_out, output, tokenizer, name):
    """Return the bits per character of masked words, and the share of words that are predicted
    correctly.
    """
    from kerasbert.data import read_examples, word_starts
    from kerasbert.models import BertMaskedLM

    model = BertMaskedLM.from_preset(preset)
    folder = examples(held_out, output, tokenizer, LENGTH, "full_sentences", True, "held-out", name)
    hiding = {"mask_selection_rate": HIDDEN, "mask_token_rate": 1.0, "random_token_rate": 0.0}
    batches = read_examples(
        folder,
        256,
        tokenizer=tokenizer,
        masker={**hiding, "unit": "word"},
        num_segments=min(model.backbone.num_segments, 2),
        shuffle_buffer=0,
        repeat=False,
    )
    marks = (token.removeprefix("##").replace("\u2581", "") for token in tokenizer.get_vocabulary())
    characters = np.array([len(token) for token in marks])
    characters[tokenizer.unk_token_id] = 1
    edges = tokenizer.word_edges()
    nats = letters = tokens = right_tokens = words = right_words = 0
    for x, y, weights in batches.as_numpy_iterator():
        logits = np.asarray(model.predict_on_batch(x), "float64")  # (B, P, V)
        rows, slots = np.nonzero(weights["mlm_logits"])
        logits, ids = logits[rows, slots], y["mlm_logits"][rows, slots]  # (N, V), (N,)
        high = logits.max(axis=-1)
        sums = high + np.log(np.exp(logits - high[:, None]).sum(axis=-1))
        nats += (sums - logits[np.arange(len(ids)), ids]).sum()
        letters += characters[ids].sum()
        right = logits.argmax(axis=-1) == ids
        # The number of the word to which each masked token belongs.
        places = x["mask_positions"][rows, slots]
        whole = x["token_ids"].copy()
        whole[rows, places] = ids
        word = np.cumsum(word_starts(whole, edges), axis=1)[rows, places]
        _, of_word = np.unique(np.stack([rows, word]), axis=1, return_inverse=True)
        wrong = np.bincount(of_word.ravel(), ~right)
        tokens, right_tokens = tokens + len(ids), right_tokens + int(right.sum())
        words, right_words = words + len(wrong), right_words + int((wrong == 0).sum())
    return {
        "bits_per_character": round(float(nats / math.log(2) / letters), 4),
        "word_accuracy": round(right_words / words, 4),
        "token_accuracy": round(right_tokens / tokens, 4),
        "characters_per_token": round(float(letters / tokens), 3),
        "masked_words": words,
    }


# === The log ===


def known(output):
    path = output / "records.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def note(output, record):
    """Add a line to the log by replacing the file atomically."""
    from kerasbert.base.files import write_text

    lines = [json.dumps(one, ensure_ascii=False) for one in [*known(output), record]]
    write_text(str(output / "records.jsonl"), "\n".join(lines) + "\n")


def main(
    text: Annotated[Path, typer.Argument(help="a file or folder", exists=True)],
    output: Path,
    rows: Annotated[str, typer.Option(help="comma-separated rows (default: all)")] = "",
    seconds: Annotated[float, typer.Option(help="seconds of training per row")] = 600,
    steps: Annotated[int, typer.Option(help="steps per row, instead of seconds")] = 0,
    tokens: Annotated[int, typer.Option(help="tokens per row, instead of seconds")] = 0,
    held_out: Annotated[float, typer.Option(help="share of held-out documents")] = 0.02,
    seed: int = 0,
    precision: str = "float32",
    backend: str = "tensorflow",
    threads: int = 2,
    gpu: bool = False,
    size: Annotated[str, typer.Option(help="layers x width, unless the row sets it")] = "2x128",
    cased: Annotated[
        bool, typer.Option(help="cased vocabulary, as for Korean and Japanese")
    ] = False,
    child: Annotated[bool, typer.Option(hidden=True)] = False,
):
    """Train rows, each in equal time, and print the table."""
    chosen = rows.split(",") if rows else list(ROWS)
    for name in (part for row in chosen for part in row.split("+")):
        if name not in ROWS:
            raise typer.BadParameter(f"there is no row {name!r}, only {', '.join(ROWS)}.")
    output = output.resolve()
    budget = {"seconds": 0 if steps or tokens else seconds, "steps": steps, "tokens": tokens}
    budget |= {"held_out": held_out, "size": size, "cased": cased}
    same = {**budget, "seed": seed, "precision": precision, "backend": backend, "threads": threads}
    same["text"] = str(text.resolve().name)
    if child:
        found = train(chosen[0], str(text), output, budget, seed, precision)
        settings = json.loads(json.dumps(settings_of(chosen[0], size, cased)))
        note(output, {"row": chosen[0], **found, "budget": same, "settings": settings})
        return
    output.mkdir(parents=True, exist_ok=True)
    done = {}
    for name in chosen:
        there = [x for x in known(output) if x["row"] == name and x["budget"] == same]
        if not there:
            console.print(f"[bold]{name}[/bold]")
            options = {"rows": name, "seconds": seconds, "steps": steps, "tokens": tokens}
            options |= {"held-out": held_out, "seed": seed, "precision": precision}
            options |= {"backend": backend, "threads": threads, "size": size}
            given = [part for x, value in options.items() for part in (f"--{x}", str(value))]
            given += ["--child"] + ["--cased"] * cased
            subprocess.run(
                [sys.executable, __file__, str(text), str(output), *given],
                env=environment(f"kerasbert/{backend}", threads, gpu),
                check=True,
            )
            there = [x for x in known(output) if x["row"] == name and x["budget"] == same]
        done[name] = there[-1]
    columns = ("bits_per_character", "word_accuracy", *TASKS, "seconds", "steps", "tokens")
    columns += ("parameters",)
    best = sorted(done, key=lambda name: done[name].get("bits_per_character", math.inf))
    console.print(machine(threads, gpu))
    title = f"{backend}, {precision}, seed {seed}"
    found = [(x, *(done[x].get(column, "") for column in columns)) for x in best]
    table(title, ("row", *columns), found)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    typer.run(main)
