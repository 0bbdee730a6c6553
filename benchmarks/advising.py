"""The recommendations of `kerasbert advise` on real texts, and how many flipped labels it finds.

    python benchmarks/advising.py sms --preset bert_tiny_demo_en_uncased --limit 800 --folds 3
    python benchmarks/advising.py trec --limit 500 --folds 2 --arms tfidf,frozen,full
    python benchmarks/advising.py rules

For TREC's questions (six classes) or the messages of the SMS Spam Collection, 5 % of the labels are
flipped to another class. The script counts how many of the rows in `check_labels.csv` have a
flipped label. The encoder is MiniLM-L6 unless `--preset` names another. A run takes from a minute
(`--arms tfidf,frozen`) to half an hour on 2 cores.

`rules` trains nothing. It takes stored test scores of methods with up to 500 labels
(results/few_labels.json and the first table of notes/presets.md) as their true scores, simulates
the out-of-fold predictions on which `advise` would decide, and compares rules by how often the
advised method is within a point of the best one. The simulated errors of two methods on the same
text correlate by 0.5.
"""

import argparse
import csv
import json
import os
import re
from pathlib import Path

import numpy as np
import real_data


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", choices=["trec", "sms", "rules"])
    parser.add_argument("--preset")
    parser.add_argument("--arms", default="tfidf,frozen,setfit,lora,full")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--output", default="advising")
    given = parser.parse_args()
    if given.texts == "rules":
        compare_rules()
        return
    import kerasbert

    if given.texts == "trec":
        rows = [(text, coarse) for coarse, _, text in real_data.trec_questions()]
    else:
        rows = [(text, label) for label, text in real_data.sms_spam()]
    random = np.random.default_rng(7)
    classes = sorted({label for _, label in rows})
    flipped = set(random.permutation(len(rows))[: len(rows) // 20].tolist())
    os.makedirs(given.output, exist_ok=True)
    path = os.path.join(given.output, f"{given.texts}.csv")
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for number, (text, label) in enumerate(rows):
            if number in flipped:
                label = str(random.choice([name for name in classes if name != label]))
            writer.writerow([" ".join(text.split()), label])
    results = kerasbert.advise(
        path,
        given.preset or str(real_data.minilm_dir()),
        os.path.join(given.output, f"{given.texts}_advice"),
        arms=given.arms.split(","),
        folds=given.folds,
        limit=given.limit,
    )
    print(*results["advice"], sep="\n")
    for arm in results["arms"].values():
        scores = [f"{arm[name]['value']:.3f}" for name in ("accuracy", "macro_f1")]
        print(arm["title"], *scores, f"{arm['seconds']} s, {arm['megabytes']} MB")
    # Row numbers start below the header.
    named = [row["line"] - 2 for row in results["check_labels"]]
    hits = len(flipped & set(named))
    share = results["data"]["rows"] / len(rows)
    print(
        f"{len(named)} labels look wrong, {hits} of them are flipped; about "
        f"{share * len(flipped):.0f} of the rows that were tried are."
    )


# === Rules ===

ROW = re.compile(
    r"\| ([\d,]+) \| ([^|]+) \| (0\.\d+) \| (0\.\d+) \| (0\.\d+) \| (?:ahead|level|behind)"
)
METHODS = ("TF-IDF", "kerasbert, frozen", "kerasbert, setfit", "kerasbert, full")  # By cost.


def stored():
    """Return `(labels, scores)` of each stored comparison, the cheapest method first."""
    folder = Path(__file__).parent
    found = []
    for row in json.loads((folder / "results/few_labels.json").read_text("utf-8"))["rows"]:
        name, count = re.match(r"(\w+), (\d+)", row["work"]).groups()
        found.append(
            (int(count) * (6 if name == "TREC" else 2), [row["values"][x] for x in METHODS])
        )
    text = (folder / "notes/presets.md").read_text("utf-8")
    for count, _, *scores in ROW.findall(text):
        if int(count.replace(",", "")) <= 500:
            found.append((int(count), list(map(float, scores))))
    return found


def compare_rules(repeats=100, resamples=300, correlation=0.5):
    """Print how often the rules advise a method within a point of the best, and what they lose."""
    from scipy.stats import norm

    from kerasbert.training import advice

    random, cases, gaps = np.random.default_rng(0), stored(), {}
    for labels, true in cases:
        true = np.array(true)
        for _ in range(repeats):
            shared = random.normal(size=(labels, 1)) * correlation**0.5
            own = random.normal(size=(labels, len(true))) * (1 - correlation) ** 0.5
            right = (shared + own < norm.ppf(true)).astype(float)  # (N, S)
            drawn = random.multinomial(labels, np.full(labels, 1 / labels), resamples)
            scores, samples = right.mean(axis=0), drawn @ right / labels  # (R, S)
            arms = {x: {"accuracy": {"value": value}} for x, value in enumerate(scores)}
            both = {x: np.stack([column, column], axis=1) for x, column in enumerate(samples.T)}
            rules = {"expected score": advice.choose(arms, both, "accuracy")}
            rules["cheapest that may be best"] = next(
                x for x, arm in arms.items() if arm["behind"]["low"] <= 0
            )
            rules["always the cheapest"], rules["always the dearest"] = 0, len(true) - 1
            for limit in (0.0, 0.01, 0.02):
                rules[f"expected score, limit {limit:g}"] = next(
                    x for x, arm in arms.items() if arm["behind"]["value"] <= limit
                )
            for rule, arm in rules.items():
                gaps.setdefault((rule, labels <= 100), []).append(true.max() - true[arm])
    print(f"{len(cases)} comparisons, {repeats} simulations of each")
    for (rule, few), lost in sorted(gaps.items(), key=lambda item: (not item[0][1], item[0][0])):
        lost, size = np.array(lost), "at most 100 labels" if few else "more than 100 labels"
        near = np.mean(lost <= 0.01 + 1e-9)
        print(f"{size}, {rule}: {near:.0%} within a point of the best, {lost.mean():.3f} behind it")


if __name__ == "__main__":
    main()
