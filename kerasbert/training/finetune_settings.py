"""`FinetuneSettings`: the arguments of `finetune`, with their defaults and checks."""

import dataclasses
from dataclasses import KW_ONLY, dataclass
from typing import Any

from kerasbert.base.aliases import AnyPath
from kerasbert.base.errors import (
    ADVERSARIES,
    LONG_MODES,
    PRECISIONS,
    check_choice,
    check_value,
    check_whole,
    need_packages,
)
from kerasbert.training.settings import Settings, numbers, setting, two_numbers

# Fewer steps leave a new head, and above all one that compares two texts, close to chance.
MIN_STEPS = 100
# Each is the name of its package and of an extra, too.
TRACKERS = ("mlflow", "wandb", "tensorboard")
METHODS = ("full", "lora", "frozen", "setfit")
# Defaults of setfit 1.2; a preset's learning rate takes precedence.
_SETFIT = {"batch_sizes": (16,), "learning_rates": (2e-5,), "epochs": (1,)}
# Logistic regression has neither learning rate nor epochs.
_AT_ONCE = {"batch_sizes": (32,), "learning_rates": (0.0,), "epochs": (1,)}
_HEAD = {"learning_rates": (1e-3,)}


# Panel of the help for the grid's settings.
_SEARCH = "Search, with lists such as 16,32"


@dataclass(frozen=True)
class FinetuneSettings(Settings):
    """The checked arguments of `finetune`.

    >>> FinetuneSettings("rte", "a", "b", epochs=[2, 3, 2], seeds=1).epochs
    (2, 3)
    >>> FinetuneSettings("rte", "a", "b", lora_rank=4).method
    'lora'
    >>> FinetuneSettings("rte", "a", "b", method="lora").lora_rank
    8
    """

    task: Any
    preset: AnyPath
    output: AnyPath
    _: KW_ONLY
    data: str | None = setting(
        None,
        "Folder of the task's official files; otherwise the `datasets` library downloads them.",
        free=True,
    )
    batch_sizes: tuple | list | int | None = setting(
        None,
        "Defaults to those of the task's paper, or to 32 for your files.",
        _SEARCH,
        numbers=int,
        free=True,
    )
    learning_rates: tuple | list | float | None = setting(
        None,
        "Defaults to the rate in PRESET, then to the paper's, or to 3e-5. The papers' rates are "
        "for large encoders.",
        _SEARCH,
        numbers=float,
        free=True,
    )
    epochs: tuple | list | int | None = setting(
        None,
        "Defaults to those of the paper, or for your files to 3 and at least `min_steps`. Each "
        "number of epochs is a separate run, because the learning rate decays to 0 in the last "
        "epoch.",
        _SEARCH,
        numbers=int,
        free=True,
    )
    min_steps: int = setting(
        MIN_STEPS,
        "For your files, train few examples for more than 3 epochs, until there are this many "
        "steps. Has no effect if `epochs` is given, or on the default grids of frozen (for one "
        "class per text) and setfit.",
        "Training",
        min=1,
        free=True,
    )
    seeds: tuple | list | int = setting(
        0, "Random seeds; each setting runs with every seed.", _SEARCH, numbers=int, free=True
    )
    warmup: float | None = setting(None, "Share of the steps used for warmup.", "Training")
    sequence_length: int | None = setting(None, "Maximum tokens per row.", "Training", min=1)
    long: str | dict | None = setting(
        None,
        "What to do with texts of more than `sequence_length` tokens: truncate, head_tail or "
        "windows. In Python also a dict of the arguments of `kerasbert.data.LongTexts`. Defaults "
        "to the setting of PRESET.",
        "Training",
        choices=LONG_MODES,
        metavar="MODE",
    )
    early_stopping: int | None = setting(
        None,
        "Stop after this many epochs without improvement; keep the best epoch. `None` keeps the "
        "weights of the last epoch.",
        "Training",
        min=1,
    )
    class_weights: dict | str | None = setting(
        None,
        'A dict of class to the weight of its examples, or "balanced", which gives all classes the '
        "same total weight. For text classifiers.",
        "Training",
        name="balanced",
        value="balanced",
        help="Weight all classes equally.",
    )
    label_smoothing: float = setting(
        0.0,
        "Share of each label that is spread evenly over all classes.",
        "Training",
    )
    adversarial: str | None = setting(
        None,
        "Adversarial training: fgm (perturbs word embeddings) or awp (perturbs weights). Steps "
        "take about twice the time; see `BertTask.compile`.",
        "Training",
        choices=tuple(ADVERSARIES),
        metavar="METHOD",
    )
    adversarial_strength: float | None = setting(
        None,
        "Norm of the perturbation; for awp, relative to the norm of each weight. "
        "Defaults to 1.0 for fgm and 0.001 for awp.",
        "Training",
    )
    r_drop: float = setting(
        0.0,
        "Weight of R-Drop, which runs each row twice with different dropout and penalizes "
        "different outputs; 1 to 5 in its paper. Steps take twice the time and memory.",
        "Training",
    )
    reinitialize_layers: int | None = setting(
        None,
        "Number of the encoder's last layers that start from random weights, together with the "
        "pooler. Needs the method full.",
        "Training",
        min=1,
    )
    method: str | None = setting(
        None,
        "full, lora (adapters), frozen (only the head) or setfit (for few labels). full trains all "
        "weights. lora trains the head and adapters of the encoder, at higher learning rates (1e-4 "
        "to 1e-3), and merges the adapters into the saved weights. frozen trains only the head; if "
        "each text has one class, by logistic regression on `BertTextEmbedder` embeddings. setfit "
        "first trains this embedder to bring texts of the same class together. Defaults to lora if "
        "`lora_rank` is given, otherwise to full. frozen and setfit have their own default grids.",
        "Training",
        choices=METHODS,
        metavar="METHOD",
    )
    lora_rank: int | None = setting(
        None,
        "Rank of LoRA adapters, which need higher rates. Defaults to 8 for lora.",
        "Training",
        min=1,
    )
    pairs: int | str | None = setting(
        None,
        "For setfit, pairs per text (20), or oversampling, unique, ... With a number n, "
        "each text is in n pairs with texts of its class, and in n pairs with texts of other "
        'classes. "oversampling", "undersampling" and "unique" sample from all pairs, see '
        "`kerasbert.training.setfit.contrastive_pairs`.",
        "Training",
    )
    precision: str | None = setting(
        None,
        "Precision of computations (default: float32); weights stay in float32. `None` means "
        "Keras' global policy.",
        choices=PRECISIONS,
    )
    model: dict | None = setting(
        None,
        "Further argument of from_preset, such as doc_stride=64. A dict.",
        "Training",
        name="set",
    )
    dev_share: float = setting(
        0.1,
        "Share of training examples for validation if there is no dev file. The same examples are "
        "held out in each call.",
        "Training",
        free=True,
    )
    limit: int | None = setting(
        None,
        "Maximum examples per file, for a quick test. They are drawn at random.",
        "Training",
        min=1,
        free=True,
    )
    keep: int = setting(
        1,
        "Number of best runs to keep. With more than one, the saved model is a `BertEnsemble` "
        "of these runs.",
        _SEARCH,
        min=1,
    )
    record_rate: bool = setting(
        False,
        "Record the best learning rate in PRESET, a kerasbert directory. The best rate has the "
        "best mean score over all other settings. It becomes the default of later calls and of "
        "`compile`.",
        _SEARCH,
        free=True,
    )
    part: tuple | str | None = setting(
        None,
        "Run only this part, such as 3/16; without `part`, combine the parts. In Python also "
        "`(3, 16)`. The part has its own folder within `output`. Machines that share `output` can "
        "run parts in parallel. The same call without `part` then takes over the runs of all "
        "parts, trains missing runs and writes the results. With a launcher (`torchrun`, `srun`, "
        "as for `pretrain`), each process runs a part, and the last process to finish combines the "
        "parts.",
        _SEARCH,
        type=str | None,
        metavar="I/N",
        free=True,
    )
    callbacks: tuple | list = setting(
        (),
        "Keras callbacks of `fit`, which see the dev scores of each epoch as `val_<score>`. All "
        "runs get the same objects. The method frozen fits the head of a classifier without `fit` "
        "and callbacks.",
        free=True,
        option=False,
    )
    track: str | None = setting(
        None,
        "Experiment tracker: mlflow, wandb or tensorboard (in OUTPUT/tensorboard). Each training "
        "is a run with its parameters, its losses and scores per epoch and its final scores. The "
        "search is a run with the scores of the saved model, the pictures and the preset. MLflow "
        "and Weights & Biases are configured by their environment variables, such as "
        "`MLFLOW_TRACKING_URI` and `WANDB_PROJECT`.",
        choices=TRACKERS,
        metavar="TRACKER",
        free=True,
    )
    overwrite: bool = setting(False, "Remove existing runs from OUTPUT.", free=True)
    verbose: bool = setting(True, "Whether to show progress.", free=True, option=False)

    def __post_init__(self):
        for name, kind, least in (
            ("batch_sizes", int, 1),
            ("learning_rates", float, 0.0),
            ("epochs", int, 1),
            ("seeds", int, 0),
        ):
            values = getattr(self, name)
            if values is not None or name == "seeds":
                self.choose(**{name: numbers(name, values, kind, least)})
        if self.warmup is not None and not 0 <= self.warmup < 1:
            raise ValueError(
                f"warmup={self.warmup} must be a share of the steps, from 0 to below 1."
            )
        for name in (
            "sequence_length",
            "min_steps",
            "early_stopping",
            "lora_rank",
            "limit",
            "keep",
            "reinitialize_layers",
        ):
            value = getattr(self, name)
            if value is not None:
                check_whole(name, value)
                self.choose(**{name: int(value)})
        if self.long is not None:
            from kerasbert.text.long_texts import LongTexts

            self.choose(long=LongTexts.of(self.long).in_config())
        if self.precision is not None:
            check_choice("precision", self.precision, PRECISIONS)
        if self.part is not None:
            part = two_numbers(self.part, "/")
            if part is None or part[0] > part[1]:
                raise ValueError(
                    f"part={self.part!r} must be its number, from 1, and the number of parts, such "
                    "as '3/16'."
                )
            self.choose(part=part)
        if not isinstance(self.callbacks, (list, tuple)):
            raise ValueError(f"callbacks={self.callbacks!r} must be a list of Keras callbacks.")
        if self.track is not None:
            check_choice("track", self.track, TRACKERS)
            need_packages(f"track={self.track!r}", self.track, self.track)
        self._choose_method()

    def _choose_method(self):
        """Check the method and its settings."""
        from kerasbert.training.setfit import SAMPLING

        method = self.method or ("full" if self.lora_rank is None else "lora")
        check_choice("method", method, METHODS)
        for name, its, default in (("lora_rank", "lora", 8), ("pairs", "setfit", 20)):
            value = getattr(self, name)
            if method != its and value is not None:
                raise ValueError(
                    f"{name}={value!r} needs method='{its}'; leave it out for '{method}'."
                )
            if method == its and value is None:
                self.choose(**{name: default})
        if isinstance(self.pairs, str):
            check_choice("pairs", self.pairs, SAMPLING)
        elif self.pairs is not None:
            check_whole("pairs", self.pairs)
        check_value("label_smoothing", self.label_smoothing, "share")
        from kerasbert.heads.base.regularizing import Regularizer

        regularized = {
            **Regularizer(self.adversarial, self.adversarial_strength, self.r_drop).config(),
            **({"label_smoothing": self.label_smoothing} if self.label_smoothing else {}),
        }
        for name in regularized if method in ("frozen", "setfit") else ():
            raise ValueError(
                f"{name}={getattr(self, name)!r} needs method='full' or 'lora'; leave it out for "
                f"'{method}'."
            )
        if self.reinitialize_layers is not None and method != "full":
            raise ValueError(
                f"reinitialize_layers={self.reinitialize_layers} needs method='full', because "
                f"'{method}' would leave these layers random; omit one of the two."
            )
        if self.record_rate and method in ("frozen", "setfit"):
            raise ValueError(
                f"record_rate=True records a learning rate for whole models, but method='{method}' "
                "does not search for one; leave one of the two out."
            )
        self.choose(method=method)

    def of(self, task):
        """Return the task with the given settings, else those of the method."""
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
