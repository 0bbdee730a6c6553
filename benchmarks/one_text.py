"""One text at a time: latency of the inference methods and of transformers' pipelines.

    python benchmarks/one_text.py                        # the included preset of 2 layers
    python benchmarks/one_text.py --preset hf-or-own --rounds 5

All contestants have the same weights, a preset with new heads, which `kerasbert.convert` writes for
transformers. Each method gets 30 sentences of 2 to 30 words, one at a time, after a warm-up on the
same sentences. transformers 5 has no pipelines for `answer`, `follows` and `choose`, so for these
the table has only our latency.
"""

import json
import random
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated

import real_data
import typer
from contest import (
    chosen,
    console,
    disturbed,
    failed,
    machine,
    race,
    ran,
    serve,
    table,
)

SPECS = [
    "transformers/torch/float32",
    *(f"kerasbert/{backend}/float32" for backend in ("tensorflow", "jax", "torch")),
]
# Model class, settings of a new head, transformers' pipeline, and the call.
METHODS = {
    "classify": ("BertTextClassifier", {"labels": ["no", "yes"]}, "text-classification"),
    "embed": ("BertTextEmbedder", {}, "feature-extraction"),
    "tag": (
        "BertTokenClassifier",
        {"labels": ["PER", "LOC"], "scheme": "BIO"},
        "token-classification",
    ),
    "fill_mask": ("BertMaskedLM", {"new_head": True}, "fill-mask"),
    "answer": ("BertQuestionAnswering", {"new_head": True}, None),
    "follows": ("BertNextSentencePredictor", {"new_head": True}, None),
    "choose": ("BertMultipleChoice", {"new_head": True}, None),
}


def sentences(count=30):
    """Return the first 2 to 30 words of some film reviews."""
    found = [text.split() for kind, text in real_data.film_reviews() if kind != "plot"]
    draw = random.Random(0)
    return [" ".join(words[: draw.randint(2, 30)]) for words in draw.sample(found, count)]


def write(preset, folder):
    """Write each method's model in our layout, and in that of transformers."""
    import kerasbert

    for name, (model, settings, _) in METHODS.items():
        made = getattr(kerasbert.models, model).from_preset(preset, **settings)
        made.save_to_preset(Path(folder, name))
        if METHODS[name][2]:
            kerasbert.convert(Path(folder, name), Path(folder, f"{name}.hf"), format="huggingface")


def ours(name, folder):
    import kerasbert

    model = getattr(kerasbert.models, METHODS[name][0]).from_preset(str(Path(folder, name)))
    question = "What did he think of it?"
    return {
        "answer": lambda text: model.answer(question, text),
        "follows": lambda text: model.follows(question, text),
        "choose": lambda text: model.choose(question, [text, "No.", "Nobody knows."]),
        "fill_mask": lambda text: model.fill_mask(f"{text} [MASK]."),
    }.get(name) or getattr(model, name)


def theirs(name, folder):
    from transformers import pipeline

    grouped = {"aggregation_strategy": "simple"} if name == "tag" else {}
    ask = pipeline(METHODS[name][2], str(Path(folder, f"{name}.hf")), **grouped)
    return (lambda text: ask(f"{text} [MASK].")) if name == "fill_mask" else ask


def prepare(spec, settings):
    """Load and warm up; return a function that runs one round over all methods."""
    library, backend, _ = spec.split("/")
    if backend == "torch":
        import torch

        torch.set_num_threads(settings["threads"])
    load = ours if library == "kerasbert" else theirs
    names = [name for name in METHODS if library == "kerasbert" or METHODS[name][2]]
    calls = {name: load(name, settings["folder"]) for name in names}
    texts = sentences()
    for ask in calls.values():
        for text in texts * 3:
            ask(text)

    def run():
        begun = perf_counter()
        spent = {}
        for name, ask in calls.items():
            times = []
            for text in texts * settings["repeats"]:
                start = perf_counter()
                ask(text)
                times.append(1000 * (perf_counter() - start))
            spent[name] = median(times)
        return {"seconds": perf_counter() - begun, "ms": spent}

    return {}, run


def report(children, threads):
    console.print(machine(threads), soft_wrap=True)
    share = f"Others took at most {disturbed(children):.0%} of the machine during a run."
    console.print(share, soft_wrap=True)
    found = {
        child.spec: {
            name: median(done["ms"][name] for done in child.rounds)
            for name in child.rounds[0]["ms"]
        }
        for child in ran(children)
    }
    base = found.get(SPECS[0], {})
    rows = []
    for name in METHODS:
        row = [name]
        for spec in SPECS:
            ms = found.get(spec, {}).get(name)
            ratio = f" ({base[name] / ms:.2f})" if ms and name in base and spec != SPECS[0] else ""
            row.append("-" if ms is None else f"{ms:.1f}{ratio}")
        rows.append(row)
    title = "One text, milliseconds; times transformers in brackets"
    table(title, ("method", *(spec.rpartition("/")[0] for spec in SPECS)), rows)


def main(
    preset: str = "bert_tiny_demo_en_uncased",
    rounds: int = 3,
    repeats: Annotated[int, typer.Option(help="passes over the sentences per round")] = 5,
    threads: int = 2,
    wait: Annotated[int, typer.Option(help="maximum seconds to wait for a quiet machine")] = 60,
    only: Annotated[str, typer.Option(help="comma-separated prefixes of contestants")] = "",
    contestant: Annotated[str, typer.Option(hidden=True)] = "",
    settings: Annotated[str, typer.Option(hidden=True)] = "",
):
    """Send every contestant one sentence at a time; print milliseconds."""
    if contestant:
        serve(prepare, contestant, json.loads(settings))
        return
    with tempfile.TemporaryDirectory() as folder:
        write(preset, folder)
        asked = {"folder": folder, "repeats": repeats, "threads": threads}
        children = race(__file__, chosen(SPECS, only), rounds, threads, asked, wait)
    failed(children)
    report(children, threads)


if __name__ == "__main__":
    typer.run(main)
