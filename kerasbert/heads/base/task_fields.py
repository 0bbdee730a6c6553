"""Parts of a data task: fine-tuning settings, published scores, and the source of the data."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kerasbert.optimizers import FINETUNING_LEARNING_RATE

if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True)
class Settings:
    """Fine-tuning settings, with one value or several values to search for each.

    Args:
        batch_sizes, learning_rates, epochs: tuples. `learning_rates=None` means the preset's
            learning rate, or 3e-5 if it has none. `epochs=None` means 3, or as many as
            `finetune` needs for `min_steps`.
        warmup: share of warmup steps; the learning rate then decays to 0.
        sequence_length: maximum tokens per row.

    >>> len(Settings().grid()), Settings(epochs=(3,)).grid()[0]
    (18, {'batch_size': 16, 'learning_rate': 5e-05, 'epochs': 3})

    Source: Devlin et al. 2019, arXiv 1810.04805, appendix A.3.
    """

    batch_sizes: tuple = (16, 32)
    learning_rates: tuple | None = (5e-5, 3e-5, 2e-5)
    epochs: tuple | None = (2, 3, 4)
    warmup: float = 0.1
    sequence_length: int = 128

    def grid(self) -> list[dict[str, Any]]:
        """Return all combinations, as dicts of `batch_size`, `learning_rate` and `epochs`."""
        names = ("batch_size", "learning_rate", "epochs")
        rates = self.learning_rates or (FINETUNING_LEARNING_RATE,)
        values = (self.batch_sizes, rates, self.epochs or (3,))
        return [dict(zip(names, point)) for point in itertools.product(*values)]


@dataclass(frozen=True)
class Published:
    """A published score.

    Args:
        model: name in the publication, such as "BERT-Base".
        split: "dev" or "test".
        metric: name in the task's scores.
        value: float. A fraction, like our scores.
        where: string. Paper and table.
    """

    model: str
    split: str
    metric: str
    value: float
    where: str


@dataclass(frozen=True)
class Source:
    """Source of a task's data, and format of its files.

    Args:
        page: string. Download page.
        license: string. License of the data; "" if it is too long to state here and is on `page`.
        files: dict of split to a path in the folder, or to a tuple of alternative paths.
        columns: dict of column name to its name in the files, if different, or to the column number
            in files with one word per line.
        header: tuple. Column names of files without a header.
        values: tuple. Labels as written in the files, if different from the class names.
        id: column of the ids. For your own files the default is "id", if its values are unique;
            otherwise examples are numbered from 0.
        quotes: whether values may be enclosed in `"`; by default only in `.csv`.
        comment: prefix of lines to leave out, in files with one word per line.
        encoding: encoding of your own files, if they are not UTF-8 and have no byte-order mark.
        dataset: tuple. Arguments of `datasets.load_dataset`; empty for none.
        splits: dict of split to its name in the `datasets` library, if different.
    """

    page: str = ""
    license: str = ""
    files: dict = field(default_factory=dict)
    columns: dict = field(default_factory=dict)
    header: tuple = ()
    values: tuple = ()
    id: str = ""
    quotes: bool | None = None
    comment: str | None = None
    encoding: str | None = None
    dataset: tuple = ()
    splits: dict = field(default_factory=lambda: {"dev": "validation"})
