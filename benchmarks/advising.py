"""The recommendations of `kerasbert advise` on real texts, and how many flipped labels it finds.

    python benchmarks/advising.py sms --preset bert_tiny_demo_en_uncased --limit 800 --folds 3
    python benchmarks/advising.py trec --limit 500 --folds 2 --arms tfidf,frozen,full

For TREC's questions (six classes) or the messages of the SMS Spam Collection, 5 % of the labels are
flipped to another class. The script counts how many of the rows in `check_labels.csv` have a
flipped label. The encoder is MiniLM-L6 unless `--preset` names another. A run takes from a minute
(`--arms tfidf,frozen`) to half an hour on 2 cores.
"""

import argparse
import csv
import os

import numpy as np
import real_data


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", choices=["trec", "sms"])
    parser.add_argument("--preset")
    parser.add_argument("--arms", default="tfidf,frozen,setfit,lora,full")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--output", default="advising")
    given = parser.parse_args()
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


if __name__ == "__main__":
    main()
