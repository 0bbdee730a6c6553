"""`Results`: the dict that `finetune`, `evaluate`, `predict` and `advise` return."""

from kerasbert.base.notebook import summary

_CLASS_SCORES = ("f1", "precision", "recall", "gold")


class Results(dict):
    """A dict of results, of which a notebook shows the most important ones as tables.

    >>> found = Results(task="<b>", split="dev", scores={"accuracy": 0.5})
    >>> "&lt;b&gt;" in found._repr_html_(), "0.5" in found._repr_html_(), found == dict(found)
    (True, True, True)
    """

    def _repr_html_(self) -> str:
        facts = {name: self.get(name) for name in ("task", "preset", "method", "split")}
        facts["examples"] = _counts(self.get("examples"))
        if "runs" in self and self.get("best"):
            facts |= {"best run": self["best"]["run"], "runs": len(self["runs"])}
        for name in ("recommended", "command", "model", "files", "pictures"):
            facts[name] = self.get(name)
        for name in ("advice", "notes"):
            facts[name] = " ".join(self.get(name, ()))
        return summary("Results", facts, *filter(None, _tables(self)))


def _counts(examples):
    """Return numbers of examples: a number, or a list if there are several splits."""
    if isinstance(examples, dict):
        return [f"{count:,} {split}" for split, count in examples.items() if count]
    return examples


def _tables(results):
    """Yield a table of the scores, of the classes, of the methods and of the predictions."""
    split = results.get("split", "dev")
    columns = {split: results.get("scores"), "test": results.get("test_scores")}
    columns = {name: scores for name, scores in columns.items() if scores}
    metrics = dict.fromkeys(metric for scores in columns.values() for metric in scores)
    if columns:
        rows = ([x, *(scores.get(x) for scores in columns.values())] for x in metrics)
        yield [["score", *columns], *rows]
    if classes := results.get("classes"):
        rows = ([name, *(row[x] for x in _CLASS_SCORES)] for name, row in classes.items())
        yield [["class", *_CLASS_SCORES[:-1], "support"], *rows]
    if arms := results.get("arms"):
        scores = ("accuracy", "macro_f1")
        rows = ([x["title"], *(x[name]["value"] for name in scores)] for x in arms.values())
        yield [["method", *scores], *rows]
    if "predictions" in results and "ids" in results:
        yield [["id", "prediction"], *map(list, zip(results["ids"], results["predictions"]))]
