"""Settings of `pretrain`, `finetune` and `advise`, shared by Python, command line and files."""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from kerasbert.base.errors import PRECISIONS, check_choice, check_value, check_whole, need_packages
from kerasbert.data.sentence_pairs import OBJECTIVES
from kerasbert.heads.electra_pretrainer.preprocessor import MASKING
from kerasbert.training.setfit import SAMPLING

Result = TypeVar("Result")

# Peak learning rates: BERT's, one for batches of several hundred, and the one that
# `benchmarks/recipe.py` found for new encoders.
RATES = {"adamw": 1e-4, "lamb": 1e-3, "muon": 3e-3}


def takes_settings(kind: type) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Make a function accept a dataclass's fields as keywords, and receive them as `settings`."""
    fields = dataclasses.fields(kind)
    keywords = [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default)
        for one in fields
    ]

    def decorate(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            given = {one.name: kwargs.pop(one.name) for one in fields if one.name in kwargs}
            # Anything left over is not a setting; Python raises the usual TypeError.
            return function(*args, **kwargs, settings=kind(**given))

        signature = inspect.signature(function)
        shown = [one for one in signature.parameters.values() if one.name != "settings"]
        call.__signature__ = signature.replace(parameters=[*shown, *keywords])
        return call

    return decorate


class Phase(NamedTuple):
    """A part of a training at one sequence length."""

    sequence_length: int
    steps: int
    batch_size: int


# Fields that may change when a training is resumed.
_free = functools.partial(field, compare=False)


@dataclass(frozen=True)
class PretrainSettings:
    """The keywords of `pretrain`, which documents them, checked and with defaults filled in.

    Settings are equal if a training with one can be resumed with the other; only compared fields
    are saved.

    >>> settings = PretrainSettings(steps=1000, optimizer="lamb")
    >>> settings.phases[0], settings.learning_rate, settings.warmup_steps, settings.log_every
    (Phase(sequence_length=128, steps=900, batch_size=256), 0.001, 200, 10)
    >>> settings == PretrainSettings(steps=1000, optimizer="lamb", workers=2)
    True
    """

    preset: str | os.PathLike | None = None
    num_layers: int | None = None
    hidden_dim: int | None = None
    num_heads: int | None = None
    intermediate_dim: int | None = None
    family: str | None = None
    encoder: dict | None = None
    generator: dict | None = None
    teacher: str | os.PathLike | None = None
    teacher_weight: float | None = None
    vocabulary: object = None
    vocabulary_size: int = 30522
    lowercase: bool = True
    reading: dict | None = None
    objective: str = "next_sentence"
    cut_sentences: bool = False
    steps: int = _free(default=1_000_000)
    batch_size: int = _free(default=256)
    phases: list | None = None
    optimizer: str | None = None
    learning_rate: float | None = None
    schedule: str = "linear"
    warmup_steps: int | None = None
    decay_share: float | None = None
    weight_decay: float = 0.01
    ema_momentum: float | None = None
    optimizer_state: str = "new"
    finetuning_learning_rate: float | None = _free(default=None)
    accumulate: int = 1
    precision: str = "float32"
    masking: str = "dynamic"
    masker: dict | None = None
    copies: int = 1
    held_out: float = 0.01
    seed: int = 0
    log_every: int | None = None
    evaluate_every: int | None = _free(default=None)
    checkpoint_every: int | None = _free(default=None)
    resume: bool = _free(default=True)
    jit_compile: bool | str = _free(default="auto")
    devices: int | None = _free(default=None)
    mesh: tuple | None = _free(default=None)
    tensorboard: bool = _free(default=False)
    callbacks: tuple = _free(default=())
    card: dict | None = _free(default=None)
    workers: int | None = _free(default=None)
    verbose: bool = _free(default=True)

    def __post_init__(self):
        if self.optimizer is None:
            self._choose(optimizer=self._optimizer())
        for name, known in (
            ("objective", (*OBJECTIVES, "replaced_tokens")),
            ("optimizer", RATES),
            ("schedule", ("linear", "wsd")),
            ("optimizer_state", ("new", "kept")),
            ("masking", ("dynamic", "static")),
            ("precision", PRECISIONS),
        ):
            check_choice(name, getattr(self, name), known)
        if isinstance(self.held_out, bool) or not 0 <= self.held_out < 1:
            raise ValueError(f"held_out={self.held_out!r} must be a share from 0 to below 1.")
        for name in ("decay_share", "ema_momentum"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not 0 < value <= 1):
                raise ValueError(f"{name}={value!r} must be a share above 0, up to 1.")
        if self.schedule == "wsd":
            self._choose(decay_share=self.decay_share or 0.2)
        elif self.decay_share is not None:
            raise ValueError(
                f"decay_share={self.decay_share!r} needs schedule='wsd'; leave it out for "
                f"{self.schedule!r}."
            )
        if self.ema_momentum == 1:
            raise ValueError("ema_momentum=1 would keep the first weights for good; use 0.999.")
        if self.optimizer_state == "kept" and self.preset is None:
            raise ValueError(
                "optimizer_state='kept' continues an earlier training: pass its output as `preset`."
            )
        if self.generator and not self.replaces:
            raise ValueError(
                f"generator={self.generator!r} needs objective='replaced_tokens'; leave it "
                f"out for {self.objective!r}."
            )
        if self.teacher is not None and self.replaces:
            raise ValueError(
                f"teacher={self.teacher!r} cannot be used with objective='replaced_tokens'; leave "
                "it out, or use another objective."
            )
        if self.teacher_weight is not None and self.teacher is None:
            raise ValueError(
                f"teacher_weight={self.teacher_weight!r} needs a `teacher`; pass one, or leave it "
                "out."
            )
        if self.cut_sentences and self.has_pairs:
            raise ValueError(
                "cut_sentences=True needs rows without pairs: use objective='full_sentences' or "
                f"'replaced_tokens', or leave it out for {self.objective!r}."
            )
        self._choose(phases=self._phases())
        if self.learning_rate is None:
            self._choose(learning_rate=RATES[self.optimizer])
        if self.warmup_steps is None:
            self._choose(warmup_steps=_warmup(self.total))
        self._choose(log_every=self.log_every or min(max(self.total // 200, 10), 100))
        unit = self.log_every
        check_whole("log_every", unit)
        every = self.evaluate_every or _multiple(self.total // 20, unit)
        saved = self.checkpoint_every or _multiple(min(1000, every), unit)
        for name, value in (("evaluate_every", every), ("checkpoint_every", saved)):
            check_whole(name, value)
            if value % unit:
                raise ValueError(f"{name}={value} must be a multiple of log_every={unit}.")
        self._choose(evaluate_every=every, checkpoint_every=saved)
        self._choose(**{name: getattr(self, name) or None for name in _DICTS})
        self._check_rates()
        self._check_devices()
        if self.tensorboard:
            need_packages("tensorboard=True", "tensorboard", "tensorboard")

    def _choose(self, **values):
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _optimizer(self):
        """Choose Muon where it was measured: for new encoders that predict masked words."""
        is_new = self.preset is None or self.optimizer_state == "kept"
        return "muon" if is_new and not self.replaces else "adamw"

    def _phases(self):
        phases = self.phases if self.phases is None else list(self.phases)
        if phases is None:
            check_whole("steps", self.steps)
            last = self.steps // 10
            phases = [(128, self.steps - last, self.batch_size), (512, last, self.batch_size)]
            phases = [phase for phase in phases if phase[1]]
        check_whole("accumulate", self.accumulate)
        for number, phase in enumerate(phases):
            if len(phase) != 3:
                raise ValueError(
                    f"phases[{number}]={phase!r} must be (sequence_length, steps, batch_size), "
                    "such as (128, 9000, 256)."
                )
            for name, value in zip(("sequence_length", "steps", "batch_size"), phase):
                check_whole(f"phases[{number}]: {name}", value)
            if phase[2] % self.accumulate:
                raise ValueError(
                    f"accumulate={self.accumulate} does not divide the batch_size {phase[2]} of "
                    f"phases[{number}]; an update is computed in that many equal parts."
                )
        if not phases:
            raise ValueError(
                "phases is empty; pass at least one (sequence_length, steps, batch_size)."
            )
        return [Phase(*phase) for phase in phases]

    def _check_rates(self):
        """Check a masking rate that changes during the training."""
        rates = (self.masker or {}).get("mask_selection_rate")
        if not isinstance(rates, (list, tuple)):
            return
        is_rate = [type(rate) in (int, float) and 0 < rate <= 1 for rate in rates]
        if len(rates) != 2 or not all(is_rate):
            raise ValueError(
                f"mask_selection_rate={rates!r} must be one share of the tokens, or two, for the "
                "start and the end of the training, such as (0.3, 0.15)."
            )
        if self.masking == "static":
            raise ValueError(
                f"mask_selection_rate={rates!r} changes during the training, but masking='static' "
                "masks tokens only once; use 'dynamic', or one rate."
            )

    def _check_devices(self):
        check_value("devices", self.devices, "count?")
        if self.mesh is None:
            return
        if self.devices is not None:
            raise ValueError(
                f"devices={self.devices} and mesh={self.mesh} both set the number of devices; "
                "leave one out."
            )
        parts = self.mesh.split("x") if isinstance(self.mesh, str) else self.mesh
        try:
            mesh = tuple(map(int, parts))
            if len(mesh) != 2 or min(mesh) < 1:
                raise ValueError
            self._choose(mesh=mesh)
        except (TypeError, ValueError):
            raise ValueError(
                f"mesh={self.mesh!r} must be two numbers, such as (2, 4) or '2x4': the devices "
                "that share the rows of a batch, and those that each layer is sharded over."
            ) from None

    def check_replicas(self, replicas):
        """Raise a `ValueError` unless the number of devices divides the rows of every batch."""
        for number, phase in enumerate(self.phases):
            rows = phase.batch_size // self.accumulate
            if rows % replicas:
                raise ValueError(
                    f"The {replicas} devices do not divide the {rows} rows of a batch of "
                    f"phases[{number}]; pass a batch_size that is a multiple of "
                    f"{replicas * self.accumulate}."
                )

    @property
    def replaces(self):
        """Whether the encoder learns to detect tokens replaced by a jointly trained generator."""
        return self.objective == "replaced_tokens"

    @property
    def rows(self):
        """The objective that the examples are made for."""
        return "full_sentences" if self.replaces else self.objective

    @property
    def has_pairs(self):
        """Whether the examples are text pairs for a second task."""
        return self.rows != "full_sentences"

    @property
    def hiding(self):
        """Settings of `mask_tokens`, with the last masking rate, or `None` for its defaults."""
        masker = {**MASKING, **(self.masker or {})} if self.replaces else self.masker
        rates = (masker or {}).get("mask_selection_rate")
        if isinstance(rates, (list, tuple)):
            return {**masker, "mask_selection_rate": rates[1]}
        return masker

    def hiding_in(self, number):
        """Return `hiding` for a phase, with a changing masking rate as `read_examples` takes it."""
        rates = (self.masker or {}).get("mask_selection_rate")
        if not isinstance(rates, (list, tuple)):
            return self.hiding
        first = sum(phase.steps for phase in self.phases[:number])
        steps = self.phases[number].steps
        ends = [
            rates[0] + (rates[1] - rates[0]) * step / self.total for step in (first, first + steps)
        ]
        return {**self.hiding, "mask_selection_rate": (*ends, steps * self.accumulate)}

    @property
    def total(self):
        """Number of steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    @property
    def lengths(self):
        """The phases' distinct sequence lengths."""
        return list(dict.fromkeys(phase.sequence_length for phase in self.phases))

    def compared(self):
        """Return the settings that a resumed training must share, as a dict."""
        return {x.name: getattr(self, x.name) for x in dataclasses.fields(self) if x.compare}


_DICTS = ("encoder", "generator", "reading", "masker")


def _warmup(steps):
    """Return BERT's hundredth of the steps, but at least 1 / (1 - beta_2), or a fifth if less.

    Ma and Yarats 2021, arXiv 1910.04209, recommend 2 / (1 - beta_2) for Adam.

    >>> _warmup(1_000_000), _warmup(20_000), _warmup(100)
    (10000, 1000, 20)
    """
    return max(steps // 100, min(steps // 5, 1000))


def _multiple(value, unit):
    """Return the largest multiple of a unit up to a value, at least one unit."""
    return max(1, value // unit) * unit


METHODS = ("full", "lora", "frozen", "setfit")
# Defaults of setfit 1.2; a preset may record another learning rate.
_SETFIT = {"batch_sizes": (16,), "learning_rates": (2e-5,), "epochs": (1,)}
# A head fitted by logistic regression has neither learning rate nor epochs.
_AT_ONCE = {"batch_sizes": (32,), "learning_rates": (0.0,), "epochs": (1,)}
# Training only the head needs a high learning rate.
_HEAD = {"learning_rates": (1e-3,)}


@dataclass(frozen=True)
class FinetuneSettings:
    """The keywords of `finetune`, which documents them, checked and with lists as tuples.

    >>> FinetuneSettings(epochs=[2, 3, 2], seeds=1).epochs
    (2, 3)
    >>> FinetuneSettings(lora_rank=4).method, FinetuneSettings(method="lora").lora_rank
    ('lora', 8)
    """

    data: str | None = None
    batch_sizes: tuple | None = None
    learning_rates: tuple | None = None
    epochs: tuple | None = None
    seeds: tuple = 0
    warmup: float | None = None
    sequence_length: int | None = None
    early_stopping: int | None = None
    class_weights: dict | str | None = None
    method: str | None = None
    lora_rank: int | None = None
    pairs: int | str | None = None
    precision: str | None = None
    model: dict | None = None
    dev_share: float = 0.1
    limit: int | None = None
    record_rate: bool = False
    part: tuple | None = None
    overwrite: bool = False
    verbose: bool = True

    def __post_init__(self):
        for name, kind, least in (
            ("batch_sizes", int, 1),
            ("learning_rates", float, 0.0),
            ("epochs", int, 1),
            ("seeds", int, 0),
        ):
            values = getattr(self, name)
            if values is not None or name == "seeds":
                object.__setattr__(self, name, _numbers(name, values, kind, least))
        if self.warmup is not None and not 0 <= self.warmup < 1:
            raise ValueError(
                f"warmup={self.warmup} must be a share of the steps, from 0 to below 1."
            )
        for name in ("sequence_length", "early_stopping", "lora_rank", "limit"):
            value = getattr(self, name)
            if value is not None:
                check_whole(name, value)
                object.__setattr__(self, name, int(value))
        if self.precision is not None:
            check_choice("precision", self.precision, PRECISIONS)
        if self.part is not None:
            object.__setattr__(self, "part", _part(self.part))
        self._choose_method()

    def _choose_method(self):
        """Check the method and the settings that belong to one method."""
        method = self.method or ("full" if self.lora_rank is None else "lora")
        check_choice("method", method, METHODS)
        for name, its, default in (("lora_rank", "lora", 8), ("pairs", "setfit", 20)):
            value = getattr(self, name)
            if method != its and value is not None:
                raise ValueError(
                    f"{name}={value!r} needs method='{its}'; leave it out for '{method}'."
                )
            if method == its and value is None:
                object.__setattr__(self, name, default)
        if isinstance(self.pairs, str):
            check_choice("pairs", self.pairs, SAMPLING)
        elif self.pairs is not None:
            check_whole("pairs", self.pairs)
        if self.record_rate and method in ("frozen", "setfit"):
            raise ValueError(
                f"record_rate=True records a learning rate for whole models, but method='{method}' "
                "does not search for one; leave one of the two out."
            )
        object.__setattr__(self, "method", method)

    def of(self, task):
        """Return the task with its settings replaced by the given ones, or else the method's."""
        names = {one.name for one in dataclasses.fields(task.settings)}
        given = {x: value for x, value in vars(self).items() if x in names and value is not None}
        own = _SETFIT if self.method == "setfit" else {}
        if self.method == "frozen":
            own = _AT_ONCE if task.has_one_class else _HEAD
        for name in ("learning_rates", "epochs") if own is _AT_ONCE else ():
            if name in given:
                raise ValueError(
                    f"{name}={list(given[name])} has no effect with method='frozen', which fits a "
                    "text classifier's head at once, by logistic regression; leave it out."
                )
        settings = dataclasses.replace(task.settings, **{**own, **given})
        return dataclasses.replace(task, settings=settings)


def _part(given):
    """Parse a part such as the third of 16, `(3, 16)` or "3/16".

    >>> _part("3/16")
    (3, 16)
    """
    try:
        number, count = map(int, given.split("/") if isinstance(given, str) else given)
        if not 1 <= number <= count:
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(
            f"part={given!r} must be its number, from 1, and the number of parts, such as '3/16'."
        ) from None
    return number, count


@dataclass(frozen=True)
class AdviseSettings:
    """The keywords of `advise`, which documents them, checked and with lists as tuples.

    Settings are equal if their runs are comparable.

    >>> AdviseSettings(shares=0.5, arms="tfidf").shares
    (0.5, 1.0)
    """

    columns: tuple | None = None
    label: str | None = None
    encoding: str | None = None
    arms: tuple | None = _free(default=None)
    folds: int = 5
    seeds: tuple = _free(default=0)
    shares: tuple = _free(default=(0.25, 0.5, 1.0))
    metric: str = _free(default="macro_f1")
    batch_size: int = 32
    learning_rate: float | None = None
    epochs: int | None = None
    lora_rank: int = 8
    sequence_length: int = 128
    precision: str | None = None
    limit: int | None = None
    label_next: int = _free(default=50)
    overwrite: bool = _free(default=False)
    verbose: bool = _free(default=True)

    def __post_init__(self):
        check_choice("metric", self.metric, ("accuracy", "macro_f1"))
        check_whole("folds", self.folds, 2)
        for name in ("batch_size", "epochs", "lora_rank", "sequence_length", "limit", "label_next"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name))
        if self.learning_rate is not None:
            _numbers("learning_rate", self.learning_rate, float, 0.0)
        if self.precision is not None:
            check_choice("precision", self.precision, PRECISIONS)
        shares = _numbers("shares", self.shares, float, 0.0)
        if max(shares) > 1:
            raise ValueError(f"shares={max(shares):g} must be at most 1, which means all labels.")
        chosen = {
            "seeds": _numbers("seeds", self.seeds, int, 0),
            "shares": tuple(sorted({*shares, 1.0})),
        }
        for name in ("columns", "arms"):
            values = getattr(self, name)
            if values is not None:
                values = (values,) if isinstance(values, str) else values
                chosen[name] = tuple(dict.fromkeys(values))
        for name, value in chosen.items():
            object.__setattr__(self, name, value)

    def compared(self):
        """Return the settings that all runs in a folder must share, as a dict."""
        return {x.name: getattr(self, x.name) for x in dataclasses.fields(self) if x.compare}


def _numbers(name, values, kind, least):
    """Return one number or several as a tuple without repetitions."""
    values = values if isinstance(values, (list, tuple)) else (values,)
    for value in values:
        if kind is int:
            check_whole(name, value, least)
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or not value > least:
            raise ValueError(f"{name}={value!r} must be a number above {least}.")
    if not values:
        raise ValueError(f"{name} is empty; pass at least one number.")
    return tuple(dict.fromkeys(map(kind, values)))
