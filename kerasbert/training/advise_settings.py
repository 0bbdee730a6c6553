"""`AdviseSettings`: the arguments of `advise`, with their defaults and checks."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

from kerasbert.base.aliases import AnyPath
from kerasbert.base.errors import PRECISIONS, check_choice, check_whole
from kerasbert.training.settings import Settings, numbers, setting


@dataclass(frozen=True)
class AdviseSettings(Settings):
    """The checked arguments of `advise`. Lists become tuples.

    Two objects are equal if runs with one are comparable to runs with the other.

    >>> AdviseSettings("a.csv", None, "out", shares=0.5, arms="tfidf").shares
    (0.5, 1.0)
    """

    data: Any
    preset: AnyPath | None
    output: AnyPath
    _: KW_ONLY
    columns: tuple | list | str | None = setting(
        None,
        'The text column, or two columns for text pairs; defaults to "text".',
        option=False,
    )
    label: str | None = setting(None, 'The label column; defaults to "label".', option=False)
    encoding: str | None = setting(
        None,
        'Encoding of a file that is not UTF-8, such as "cp949" or "shift_jis".',
        option=False,
    )
    limit: int | None = setting(
        None,
        "Maximum number of rows, for a quick test. Labeled and unlabeled rows are limited, and are "
        "drawn at random.",
        "Your file",
        min=1,
    )
    arms: tuple | list | str | None = setting(
        None,
        "Subset of tfidf,frozen,setfit,lora,full; defaults to all.",
        "Comparison",
        free=True,
        numbers=str,
    )
    folds: int = setting(
        5,
        "Number of cross-validation folds. Classes with fewer different texts than folds are left "
        "out.",
        "Comparison",
        min=2,
    )
    seeds: tuple | list | int = setting(
        0, "Seeds, such as 0,1,2; each draws its own folds.", "Comparison", free=True, numbers=int
    )
    shares: tuple | list | float = setting(
        (0.25, 0.5, 1.0),
        "Shares of the labels, for the learning curve. 1 is always included.",
        "Comparison",
        free=True,
        numbers=float,
    )
    metric: str = setting(
        "macro_f1",
        "Metric to compare by: macro_f1 or accuracy. macro_f1 gives all classes the same weight.",
        "Comparison",
        free=True,
    )
    label_next: int = setting(
        50, "Number of rows to suggest for labeling.", "Comparison", free=True, min=1
    )
    batch_size: int = setting(32, "Examples per step.", "Fine-tuning", min=1)
    learning_rate: float | None = setting(
        None,
        "Defaults to the preset's recorded rate, or to one for its size. The rate for its size is "
        "1e-4 for small encoders and 3e-5 for others. The default for adapters is ten times the "
        "default for other weights, up to 1e-3.",
        "Fine-tuning",
    )
    epochs: int | None = setting(None, "Defaults to 3, or more for few rows.", "Fine-tuning", min=1)
    lora_rank: int = setting(8, "Rank of the adapters.", "Fine-tuning", min=1)
    sequence_length: int = setting(128, "Maximum tokens per row.", "Fine-tuning", min=1)
    precision: str | None = setting(
        None,
        "Precision of computations (default: float32); weights stay in float32. `None` means "
        "Keras' global policy.",
        choices=PRECISIONS,
    )
    overwrite: bool = setting(False, "Remove existing runs from OUTPUT.", free=True)
    verbose: bool = setting(True, "Whether to show progress.", free=True, option=False)

    def __post_init__(self):
        check_choice("metric", self.metric, ("accuracy", "macro_f1"))
        check_whole("folds", self.folds, 2)
        for name in ("batch_size", "epochs", "lora_rank", "sequence_length", "limit", "label_next"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name))
        if self.learning_rate is not None:
            numbers("learning_rate", self.learning_rate, float, 0.0)
        if self.precision is not None:
            check_choice("precision", self.precision, PRECISIONS)
        shares = numbers("shares", self.shares, float, 0.0)
        if max(shares) > 1:
            raise ValueError(f"shares={max(shares):g} must be at most 1, which means all labels.")
        chosen = {
            "seeds": numbers("seeds", self.seeds, int, 0),
            "shares": tuple(sorted({*shares, 1.0})),
        }
        for name in ("columns", "arms"):
            values = getattr(self, name)
            if values is not None:
                values = (values,) if isinstance(values, str) else values
                chosen[name] = tuple(dict.fromkeys(values))
        self.choose(**chosen)
