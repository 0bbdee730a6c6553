"""Ensembles: several tasks of one kind that predict together.

K members, B batch, T tokens, C classes.
"""

from __future__ import annotations

import functools
import os
import shutil
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert.base.errors import check_whole
from kerasbert.base.files import write_json
from kerasbert.base.keywords import config_of
from kerasbert.base.parts import same_tokens
from kerasbert.checkpoints.own import OwnPreset
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.base.inputs import as_lists, is_raw
from kerasbert.heads.base.task import BertTask
from kerasbert.heads.ensemble.mean import Mean, combined
from kerasbert.kinds import KINDS, kind_of, kinds_with
from kerasbert.text.preprocessor import BertPreprocessor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath, Found

# Equal attributes of members, and their names in errors.
_SHARED = {
    "label_names": "classes",
    "multi_label": "multi_label",
    "scheme": "scheme",
    "activation": "activation",
}
# Attributes for the methods of the members' class.
_COPIED = ("num_classes", "labels", "multi_label", "scheme", "lists_to_pairs", "pairs_to_lists")
# Arguments of `from_preset` for single members.
_OF_ONE = ("backbone", "preprocessor", "num_classes", "labels", "new_head")


@keras.saving.register_keras_serializable(package="kerasbert")
class BertEnsemble(BertTask):
    """Ensemble of fine-tuned tasks, such as runs with different seeds or encoders.

    An ensemble has the inference methods of its members (`classify`, `score`, `rank`, `tag`,
    `answer` or `choose`), and is an instance of their class. It averages the members' class
    probabilities (per token, for taggers) and numbers. For rerankers, question answering and
    multiple choice, it averages the logits of pairs, positions and choices.

    If the members have equal preprocessors, `predict` and `evaluate` also take preprocessed arrays,
    and the exports, such as `export_serving` and `export_onnx`, write one graph. The members may
    also have different tokenizers or sequence lengths. Taggers must split texts into the same
    words. Answers of question answering models are merged by their spans, with mean probabilities.
    `evaluate` raises an error, because the members cannot share batches.

    `predict` returns logits as its members do; for classes, those of the mean probabilities,
    calibrated by the members' `temperature`. Train and calibrate the members first; an ensemble's
    `fit` and `calibrate` raise an error.

    `save_to_preset` writes each member's preset to `members/0`, `members/1` and so on;
    `from_preset` of this class or of the members' class loads the folder.

    Args:
        members: list of task models of one class with equal, equally ordered classes: classifiers,
            regressors, rerankers, taggers, question answering or multiple choice.

    Raises:
        ValueError: if the members do not match, with the first difference.

    Example:

    >>> from kerasbert.models import BertTextClassifier
    >>> def classifier():
    ...     backbone = BertBackbone(
    ...         vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ...     )
    ...     return BertTextClassifier(backbone, labels=["ham", "spam"])
    >>> ensemble = BertEnsemble([classifier(), classifier()])
    >>> isinstance(ensemble, BertTextClassifier)
    True
    >>> ensemble.predict({"token_ids": np.ones((3, 5), "int32")}, verbose=0).shape
    (3, 2)

    Source: Devlin et al. 2019, arXiv 1810.04805, table 2 (an ensemble of 7 SQuAD models).
    """

    backbone_cls = BertBackbone
    preprocessor_cls = BertPreprocessor
    kind = "ensemble"

    def __new__(cls, members: Sequence[Any], *args: Any, **kwargs: Any) -> Self:
        return super().__new__(class_of(_checked(members)[0].kind))

    def __init__(self, members: Sequence[Any], **kwargs: Any) -> None:
        members = _checked(members)
        first = members[0]
        self.members = members
        self.shares_inputs = _difference(members) is None
        self.long = first.long
        self.backbone, self.preprocessor = first.backbone, first.preprocessor
        for name in _COPIED:
            if hasattr(first, name):
                setattr(self, name, getattr(first, name))
        # Rerankers apply their activation, a string, after the graph.
        scores = isinstance(getattr(first, "activation", None), str)
        self.activation = first.activation if scores else keras.activations.linear
        inputs = _inputs(first)
        if not self.shares_inputs:
            inputs = {str(i): _inputs(member, f"{i}_") for i, member in enumerate(members)}
        # Layers of a graph must have distinct names, so `Mean` wraps the members.
        outputs = Mean(members, name="mean")(inputs)
        self.output_activation = keras.layers.Activation(None, dtype="float32", name="predictions")
        outputs = keras.tree.map_structure(self.output_activation, outputs)
        BertTask.__init__(self, inputs=inputs, outputs=outputs, **kwargs)
        self.input_spec = None  # Lists of texts for rerankers have one more axis.

    @property
    def uses_pooler(self) -> bool:
        return any(member.uses_pooler for member in self.members)

    def untrained_weights(self) -> list[Any]:
        return [weight for member in self.members for weight in member.untrained_weights()]

    def quantize(self, mode: str | None = None, **kwargs: Any) -> None:
        """Quantize the encoders of all members, for example to int8."""
        for member in {id(one.backbone): one for one in self.members}.values():  # May be shared.
            member.quantize(mode, **kwargs)
        self.test_function = self.predict_function = None

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """Raise an error, because members are trained separately."""
        raise ValueError("An ensemble is not trained as a whole; train its members, one by one.")

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Compute loss and metrics; see `BertTask.evaluate`."""
        if not self.shares_inputs:
            raise ValueError(
                f"evaluate() needs batches for all members, but {_difference(self.members)}; use "
                "kerasbert.evaluate(model, file), which scores predictions."
            )
        return super().evaluate(x, *args, **kwargs)

    def predict(self, x: Any = None, batch_size: int | None = None, **kwargs: Any) -> Any:
        """Return the combined outputs, in the form of the members' `predict`."""
        if self.shares_inputs:
            return super().predict(x, batch_size=batch_size, **kwargs)
        if not is_raw(self, x) or isinstance(self, (_Tagging, _Answering)):
            raise ValueError(
                f"predict() cannot combine these inputs, because {_difference(self.members)}; "
                f"use {KINDS[self.kind].method}() with texts."
            )
        found = [member.predict(x, batch_size=batch_size, **kwargs) for member in self.members]
        return ops.convert_to_numpy(combined(self.members, found))

    def _expect_batches(self, method, batches):
        # Compiled steps have the members' temperatures as constants.
        temperatures = [getattr(member, "temperature", 1.0) for member in self.members]
        if self.__dict__.setdefault("_temperatures", temperatures) != temperatures:
            self.__dict__["_temperatures"] = temperatures
            self.test_function = self.predict_function = None

    def check_export(self) -> None:
        """Raise unless the members have equal preprocessors."""
        if not self.shares_inputs:
            raise ValueError(
                f"An ensemble is exported as one graph, but {_difference(self.members)}; export "
                "each member, or train all members with the same tokenizer and sequence length."
            )

    # === Saving ===

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Raise an error, because a `.keras` file stores a shared tokenizer only once."""
        raise ValueError("An ensemble is saved as a folder; use save_to_preset and from_preset.")

    def get_config(self) -> dict[str, Any]:
        """Raise an error, because a config cannot hold the members."""
        raise ValueError(
            "An ensemble has no config; use save_to_preset and from_preset, or make an ensemble of "
            "copies of its members."
        )

    def _save_in(self, folder: AnyPath, **kwargs: Any) -> None:
        os.makedirs(os.path.join(folder, "members"))
        for number, member in enumerate(self.members):
            member.save_to_preset(_member_in(folder, number), **kwargs)
        describe_members(folder, len(self.members))

    @classmethod
    def from_source(cls, source: Found, load_weights: bool = True, **kwargs: Any) -> Self:
        if not source.is_own or not is_ensemble(source.task()[0]):
            raise ValueError(
                f"'{source.source}' is not an ensemble; load tasks with their own class, and pass "
                "a list of them to BertEnsemble."
            )
        return cls.from_members(source, load_weights, cls, **kwargs)

    @classmethod
    def from_members(
        cls, source: Found, load_weights: bool, wanted: type[Any], **kwargs: Any
    ) -> Self:
        """Load the ensemble in an `OwnPreset` for a call of `wanted.from_preset`.

        Raises:
            ValueError: if its members are of another class, or an argument is for single members.
        """
        for name in _OF_ONE:
            if kwargs.get(name) is not None:
                raise ValueError(
                    f"{name}={kwargs[name]!r} cannot be set on the ensemble '{source.source}'; "
                    f"load one of its members, '{_member_in(source.source, 0)}'."
                )
        own = cls.class_in(source.directory)
        if not issubclass(own, wanted):
            raise ValueError(
                f"'{source.source}' is an ensemble of a {KINDS[own.kind].model}, not a "
                f"{wanted.__name__}; load it with the former class, or with BertEnsemble."
            )
        task = KINDS[own.kind].load("model")
        paths = [_member_in(source.directory, i) for i in range(_count(source))]
        return BertEnsemble([task.from_preset(path, load_weights, **kwargs) for path in paths])

    @staticmethod
    def class_in(directory: AnyPath) -> type[Any]:
        """Return the class of the ensemble in a preset directory."""
        first = None
        for number in range(_count(OwnPreset(directory))):
            member = OwnPreset(_member_in(directory, number))
            found = kind_of(member.task()[0]) if os.path.isdir(member.directory) else None
            if found is None or not found.data or found is not (first or found):
                wanted = "task that an ensemble can have" if first is None else first.model
                raise ValueError(
                    f"The ensemble in '{directory}' is incomplete: '{member.directory}' is not a "
                    f"{wanted}; save or download it again."
                )
            first = found
        return class_of(first.name)


# === Inference methods of members with different tokenizers ===


class _Tagging:
    """Tagging of words by members that may have different tokenizers."""

    def _decoded(self, x, batch_size, method):
        if self.shares_inputs:
            return super()._decoded(x, batch_size, method)
        x = list(x)
        found = [member._decoded(x, batch_size, method) for member in self.members]
        pieces = found[0][0]
        for other, *_ in found[1:]:
            # Words without subwords, such as control characters, have no probabilities.
            same = np.array_equal(other.unit_splits, pieces.unit_splits)
            if not same or not np.array_equal(other.count > 0, pieces.count > 0):
                raise ValueError(
                    "The members of this ensemble split these texts into different words; pass "
                    "lists of words, or use members whose preprocessors split texts equally."
                )
        probabilities = np.mean([of_member for *_, of_member in found], axis=0)
        return pieces, probabilities.argmax(axis=-1), probabilities


class _Answering:
    """Question answering by members that may have different tokenizers or lengths."""

    @property
    def null_threshold(self):
        """The mean of the members' thresholds, or `None` if a member has none."""
        found = [member.null_threshold for member in self.members]
        return None if None in found else float(np.mean(found))

    def answer(
        self,
        question,
        context,
        top_k=1,
        null_threshold=None,
        max_answer_length=30,
        n_best=20,
        batch_size=32,
    ):
        settings = (max_answer_length, n_best, batch_size)
        if self.shares_inputs:
            return super().answer(question, context, top_k, null_threshold, *settings)
        check_whole("top_k", top_k)
        (questions, contexts), _ = as_lists(self, (question, context), "answer()")
        # "No answer" may be one more result.
        found = [
            member.answer(questions, contexts, n_best + 1, null_threshold, *settings)
            for member in self.members
        ]
        results = [_merged(answers, text)[:top_k] for *answers, text in zip(*found, contexts)]
        return results[0] if isinstance(question, (str, bytes)) else results


def _merged(answers, context):
    """Merge the answers of K members to one question by their spans, with mean probabilities."""
    odds = {}
    for row in (row for rows in answers for row in rows):
        span = row["start"], row["end"]
        odds[span] = odds.get(span, 0.0) + row["score"] / len(answers)
    null_score = float(np.mean([rows[0]["null_score"] for rows in answers]))
    return [
        {
            "answer": "" if start is None else context[start:end],
            "start": start,
            "end": end,
            "score": score,
            "null_score": null_score,
        }
        for (start, end), score in sorted(odds.items(), key=lambda item: -item[1])
    ]


# Classes for members that cannot share batches, by `Kind.labels`.
_METHODS = {"tag": (_Tagging,), "answer": (_Answering,)}


@functools.cache
def class_of(kind):
    """Return the ensemble class of a kind: it inherits `BertEnsemble` and the kind's class."""
    row = KINDS[kind]
    task = row.load("model")
    bases = (*_METHODS.get(row.labels, ()), BertEnsemble, task)
    same = {name: getattr(task, name) for name in ("backbone_cls", "preprocessor_cls", "kind")}
    return type("BertEnsemble", bases, {**same, "__module__": __name__})


def is_ensemble(cls):
    """Return whether a class is `BertEnsemble` or one of its subclasses."""
    return isinstance(cls, type) and issubclass(cls, BertEnsemble)


# === Files ===


def _member_in(folder, number):
    return os.path.join(folder, "members", str(number))


def describe_members(folder, count):
    """Complete the preset of an ensemble in the folder of its members.

    Args:
        folder: string.
        count: int. The number of members.
    """
    first = OwnPreset(_member_in(folder, 0))
    found, config = first.task()
    # The folder can then load the first member's tokenizer.
    for name in ("config.json", "preprocessor.json", "tokenizer.json"):
        if os.path.exists(first.path(name)):
            shutil.copyfile(first.path(name), os.path.join(folder, name))
    if os.path.isdir(first.path("assets")):
        shutil.copytree(first.path("assets"), os.path.join(folder, "assets"))
    task = {
        "module": "kerasbert.models",
        "class_name": KINDS[found.kind].model,
        "registered_name": keras.saving.get_registered_name(BertEnsemble),
        "config": {"members": count, "labels": config.get("labels")},
    }
    write_json(os.path.join(folder, "task.json"), task)


def _count(source):
    """Return the number of members of the ensemble in an `OwnPreset`."""
    count = source.config("task.json").get("members")
    check_whole(f"members in '{source.path('task.json')}'", count)
    return count


# === Checks ===


def _checked(members):
    """Return the members as a list, or raise if they do not match."""
    if isinstance(members, BertTask) or not isinstance(members, (list, tuple)) or not members:
        raise ValueError(f"members must be a list of task models, got {members!r}.")
    first = members[0]
    for place, member in enumerate(members):
        row = kind_of(member)
        is_fit = row is not None and row.data and isinstance(member, row.load("model"))
        if not is_fit or isinstance(member, BertEnsemble):
            known = ", ".join(kind.model for kind in kinds_with("data"))
            raise ValueError(
                f"The member at position {place} is a {type(member).__name__}; an ensemble has "
                f"members of one of these classes: {known}."
            )
        if member.kind != first.kind:
            raise ValueError(
                f"The member at position {place} is a {type(member).__name__}, but the first is a "
                f"{type(first).__name__}; members must be of one class."
            )
        if getattr(member, "crf", False):
            raise ValueError(
                f"The member at position {place} has crf=True, whose class scores cannot be "
                "averaged without the transitions; an ensemble has taggers with crf=False."
            )
        if member in members[:place]:
            raise ValueError(
                f"The member at position {place} occurs twice; pass a separate model per member."
            )
        for name, called in _SHARED.items():
            own, other = getattr(member, name, None), getattr(first, name, None)
            if name == "activation" and not isinstance(other, str):
                continue  # Logits and probabilities can be combined.
            if own != other:
                raise ValueError(
                    f"The member at position {place} has {_shown(called, own, other)}; members "
                    "must have the same classes in the same order, and equal settings."
                )
    return list(members)


def _shown(called, own, other):
    """Describe the first difference between two values of `_SHARED`."""
    if not isinstance(own, list) or not isinstance(other, list):
        return f"{called}={own!r}, but the first has {other!r}"
    if len(own) != len(other):
        return f"{len(own)} {called}, but the first has {len(other)}"
    place = next(i for i, pair in enumerate(zip(own, other)) if pair[0] != pair[1])
    return f"the class {own[place]!r} at index {place}, but the first has {other[place]!r}"


def _difference(members):
    """Return why members cannot share batches, or `None` if they can."""
    first = members[0]
    for place, member in enumerate(members[1:], start=1):
        if difference := _packed_differently(first, member):
            return f"the member at position {place} {difference}"
    return None


def _packed_differently(first, other):
    if first.input.keys() != other.input.keys():
        names = ", ".join(sorted(first.input.keys() ^ other.input.keys()))
        return f"differs from the first in its inputs ({names})"
    one, two = first.preprocessor, other.preprocessor
    if one is None and two is None:
        return None
    if one is None or two is None or type(one) is not type(two):
        return "has another kind of preprocessor than the first"
    if not same_tokens(one.tokenizer, two.tokenizer):
        return "has another tokenizer than the first"
    unlike = {"name", "dtype", "tokenizer"}
    settings, others = config_of(one), config_of(two)
    for name in sorted((settings.keys() | others.keys()) - unlike):
        one, two = settings.get(name), others.get(name)
        if one != two:
            return f"has {name}={two!r} where the first has {one!r}"
    return None


def _inputs(task, prefix=""):
    """Return new symbolic inputs like those of a task."""
    return {
        name: keras.Input(x.shape[1:], dtype=x.dtype, name=prefix + name)
        for name, x in task.input.items()
    }
