"""Result files of the benchmarks, and the tables of README.md that are rendered from them.

    python benchmarks/peers.py --save    # writes results/*.json and renders README.md
    python benchmarks/page.py            # renders README.md after a result file was edited

A result file describes one run: `title`, `about` (the workload), `command`, `date`, `machine`,
`versions`, `note` and `rows`. A row has `work`, `unit` and `values`, a dict of contestant to
number, or to a list with one number per seed or race. `times_peer` has the speedups over the best
peer if they were measured in one race; `memory_mb` has the peak memory of each process.
"""

import json
from pathlib import Path

from kerasbert.base.files import write_text

HERE = Path(__file__).parent
BEGIN, END = "<!-- The results begin -->", "<!-- The results end -->"
BEHIND = 0.95
# The result files of each section of the page, in order.
SPEEDS = {
    "Inference": (
        *("one_text", "one_text_minilm", "embedding", "serving", "serving_two_clients"),
        *("generation", "long_texts", "start"),
    ),
    "Searching": ("search", "reranking"),
    "Training": ("finetuning", "finetuning_reviews", "training_embedders"),
    "Pre-training": ("pretraining", "pretraining_gpu"),
    "Preparing data": ("tokenizer", "masking", "examples"),
}
SCORES = {"Quality": ("quality", "few_labels")}
BACKENDS = {"TensorFlow": "tensorflow", "JAX": "jax", "PyTorch": "torch"}


def read(name):
    """Return the result file of this name as a dict."""
    return json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))


def save(name, result):
    """Write a result file with a line per row, so that a diff shows the changes."""
    result = dict(result)
    rows = [json.dumps(row, ensure_ascii=False) for row in result.pop("rows")]
    head = json.dumps(result, ensure_ascii=False, indent=1).removesuffix("\n}")
    text = head + ',\n "rows": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n"
    write_text(str(HERE / "results" / f"{name}.json"), text)


def best_peer(row):
    """Return the fastest contestant that is not ours, or `None`."""
    peers = {x: first(v) for x, v in row["values"].items() if not x.startswith("kerasbert")}
    if not peers:
        return None
    return (min if less_is_better(row["unit"]) else max)(peers, key=peers.get)


def ratio(row, contestant):
    """Return how many times as fast as the best peer a contestant is; `None` without a peer.

    The ratio is the measured one in `times_peer`, if any, or else the quotient of the values.
    """
    peer = best_peer(row)
    if peer is None or contestant in row.get("times_peer", {}):
        return row.get("times_peer", {}).get(contestant)
    own, other = first(row["values"][contestant]), first(row["values"][peer])
    return other / own if less_is_better(row["unit"]) else own / other


def less_is_better(unit):
    return unit in ("ms", "s")


def first(value):
    return value[0] if isinstance(value, list) else value


def render():
    """Render the tables of all sections as Markdown."""
    parts = []
    for section, names in SPEEDS.items():
        results = [read(name) for name in names]
        head = ("work", "unit", "best peer", *BACKENDS, "other forms")
        rows = [_speeds(row) for result in results for row in result["rows"]]
        parts += [f"### {section}", _table(head, rows, "llr" + "r" * len(BACKENDS) + "l")]
        parts.append("\n".join(map(_source, results)))
    for section, names in SCORES.items():
        parts.append(f"### {section}")
        for result in map(read, names):
            names = list(result["rows"][0]["values"])
            rows = [
                (row["work"], *(number(row["values"].get(name), ".3f") for name in names))
                for row in result["rows"]
            ]
            parts += [_table((result["title"], *names), rows, "l" + "r" * len(names))]
            parts.append(_source(result))
    return "\n\n".join(parts)


def _speeds(row):
    peer = best_peer(row)
    ours = {x.removeprefix("kerasbert"): x for x in row["values"] if x.startswith("kerasbert")}
    cells = [row["work"], row["unit"], "-"]
    if peer:
        cells[2] = f"{number(row['values'][peer])} {peer}"
    for backend in BACKENDS.values():
        name = ours.pop(f"/{backend}", None)
        cells.append(_with_ratio(row, name) if name else "-")
    others = [f"{form[1:]} {_with_ratio(row, name)}".strip() for form, name in ours.items()]
    return [*cells, ", ".join(others) or "-"]


def _with_ratio(row, name):
    times = ratio(row, name)
    text = number(row["values"][name])
    if times is None:
        return text
    behind = round(times, 2) <= BEHIND
    return f"{text} (**{times:.2f}**)" if behind else f"{text} ({times:.2f})"


def number(value, form=","):
    """Format a number, or the numbers of all seeds or races."""
    if value is None:
        return "-"
    return ", ".join(format(one, form) for one in (value if isinstance(value, list) else [value]))


def _source(result):
    facts = [f"`{result['command']}`", result["machine"] or "machine not recorded"]
    facts += [result["versions"] or "versions not recorded"]
    facts += [result["about"], result["note"]]
    return f"- **{result['title']}**, {result['date']}: " + "; ".join(filter(None, facts)) + "."


def _table(head, rows, alignment):
    marks = {"l": "---", "r": "---:"}
    lines = [head, [marks[one] for one in alignment], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page():
    """Return README.md with its tables rendered again."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{render()}\n\n{END}{rest.split(END)[1]}"


def main():
    write_text(str(HERE / "README.md"), page())


if __name__ == "__main__":
    main()
