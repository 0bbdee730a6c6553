"""Serving of `BertMultiTask`: the signatures of all its tasks; names begin with the task's name."""

from kerasbert.heads.base.served import Served
from kerasbert.heads.base.served_models import served


class ServedTasks(Served):
    """SavedModel signatures of `BertMultiTask`."""

    def __init__(self, model, preprocessor=None, labels=None, settings=None):
        super().__init__(model)
        self.parts = {name: served(task) for name, task in model.tasks.items()}
        self.labels = labels
        self.first = next(iter(self.parts))
        self.columns = self.parts[self.first].columns

    @property
    def labels(self):
        """A dict of task name to labels, without tasks that have no labels."""
        return {name: part.labels for name, part in self.parts.items() if part.labels}

    @labels.setter
    def labels(self, labels):
        for name, names in (labels or {}).items():
            self.parts[name].labels = names

    @property
    def own_labels(self):
        return {name: part.own_labels for name, part in self.parts.items() if part.own_labels}

    def model_settings(self):
        return {name: part.settings for name, part in self.parts.items() if part.settings}

    def signatures(self, tokens_only=False):
        found = {}
        for name, part in self.parts.items():
            for key, signature in part.signatures(tokens_only).items():
                key = self._name(name, key)
                if key in {*found, "serving_default"}:
                    raise ValueError(
                        f"Two signatures would be named '{key}'; rename one of the tasks."
                    )
                found[key] = signature
        if not tokens_only:
            found["serving_default"] = found[self.first]
        return found

    @staticmethod
    def _name(task, signature):
        return task if signature == "serving_default" else f"{task}_{signature}"

    def batches(self):
        """Yield `(signature, features)` of the token signatures of all tasks."""
        for name, part in self.parts.items():
            for signature, features in part.batches():
                yield self._name(name, signature), features

    def probes(self):
        return [
            (self._name(name, signature), inputs)
            for name, part in self.parts.items()
            for signature, inputs in part.probes()
        ]

    def _part(self, signature):
        """Return a signature's task (the longest matching name), and its name there."""
        names = [n for n in self.parts if signature == n or signature.startswith(f"{n}_")]
        name = max(names, key=len)
        return self.parts[name], signature[len(name) + 1 :] or "serving_default"

    def expected(self, signature, inputs):
        part, own = self._part(signature)
        return part.expected(own, inputs)

    def check_transformers(self):
        raise ValueError(
            "transformers has no class for several tasks; export each of model.tasks separately, "
            "or use layout='kerasbert'."
        )

    def tokens_of(self, signature, features):
        part, own = self._part(signature)
        return part.tokens_of(own, features)

    def warmup_inputs(self, item):
        found = self.parts[self.first].warmup_inputs(item)
        return found and (self._name(self.first, found[0]), found[1])

    def wanted_item(self):
        return self.parts[self.first].wanted_item()

    def example(self):
        return self.parts[self.first].example()
