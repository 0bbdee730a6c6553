"""Labeled and unlabeled texts from a file, for `advise`.

N labeled rows, C classes.
"""

import hashlib
import unicodedata
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from kerasbert.heads.base.data import column_of, first_table, name_in, texts_of, written
from kerasbert.tasks.own import file_task


@dataclass
class Rows:
    """Texts of a file, with their line or row numbers.

    Args:
        x: tuple of one list of N texts, or two lists for pairs.
        places: list of N ints. Line or row numbers.
        unit: string. What `places` counts, "line" or "row".
        names: tuple of strings. Names of the text columns.
    """

    x: tuple
    places: list
    unit: str
    names: tuple

    def __len__(self):
        return len(self.places)

    def take(self, rows):
        """Return the texts of some rows: a list, or a tuple of two lists for text pairs."""
        columns = tuple([column[row] for row in rows] for column in self.x)
        return columns if len(columns) > 1 else columns[0]

    def part(self, rows):
        """Return some rows as new `Rows`."""
        columns = tuple([column[row] for row in rows] for column in self.x)
        return Rows(columns, [self.places[row] for row in rows], self.unit, self.names)

    def keys(self):
        """Return a key per row, without case, width and extra spaces."""
        return [tuple(map(plain, texts)) for texts in zip(*self.x)]


@dataclass
class Labeled:
    """The data of `advise`.

    Args:
        rows: the labeled `Rows`.
        y: int array (N,). Indices into `labels`.
        labels: tuple of the C classes.
        groups: int array (N,). Rows with equal texts have the same number.
        pool: the unlabeled `Rows`, without repeated or labeled texts.
        notes: sentences about omitted or repeated rows.
    """

    rows: Rows
    y: np.ndarray
    labels: tuple
    groups: np.ndarray
    pool: Rows
    notes: list = field(default_factory=list)

    def __len__(self):
        return len(self.rows)

    def digest(self):
        """Return a hash of the labeled texts and their labels."""
        named = [self.labels[number] for number in self.y]
        return digest_of(*self.rows.x, named)

    def folds(self, count, seed):
        """Return each row's fold (N,), stratified by class and shared by equal texts."""
        from sklearn.model_selection import StratifiedKFold

        _, first, inverse = np.unique(self.groups, return_index=True, return_inverse=True)
        found = np.zeros(len(first), int)
        split = StratifiedKFold(count, shuffle=True, random_state=seed)
        for fold, (_, held_out) in enumerate(split.split(first, self.y[first])):
            found[held_out] = fold
        return found[inverse]

    def subset(self, rows, share, seed):
        """Draw a share of some rows, at least one row per class.

        With the same seed, a larger share contains a smaller one.

        Args:
            rows: int array of row indices.
            share: float.
            seed: int or list of ints.
        """
        rows = np.random.default_rng(seed).permutation(rows)
        kept = []
        for number in range(len(self.labels)):
            own = rows[self.y[rows] == number]
            kept.append(own[: max(1, round(share * len(own)))] if len(own) else own)
        return np.sort(np.concatenate(kept))


def plain(text):
    """Normalize case, character width and spaces.

    >>> plain("Ｇood  Film ") == plain("good film")
    True
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def digest_of(*columns):
    """Return a short hash of columns of strings."""
    digest = hashlib.sha256()
    for column in columns:
        for value in column:
            digest.update(repr(value).encode("utf-8", "surrogatepass"))
        digest.update(b"|")
    return digest.hexdigest()[:16]


def read_labeled(data, settings):
    """Read a file for `advise`.

    Args:
        data: string. See `kerasbert.tasks.file_task`; rows with an empty label form the pool.
        settings: `AdviseSettings`.

    Returns:
        A `Labeled`.

    Raises:
        ValueError: if labels are not classes, or too few.
    """
    task = file_task(
        train=data,
        columns=settings.columns,
        label=settings.label,
        encoding=settings.encoding,
        name="advise",
    )
    table, notes = first_table(task), []
    unit = table.unit
    x = tuple(texts_of(table, column_of(task, table, name)) for name in task.columns)
    every = Rows(x, list(table.numbers), unit, task.columns)
    values = table.column(name_in(task, table, task.label), " for the labels")
    if not task.has_one_class:
        raise ValueError(
            f"{table.source} has lists of labels, but advise needs one class per text; train a "
            "multi-label classifier with `kerasbert finetune`."
        )
    labels = [written(*value) if isinstance(value, list) else written(value) for value in values]

    blank = [i for i, texts in enumerate(zip(*x)) if not any(text.strip() for text in texts)]
    if blank:
        notes.append(
            f"{_count(len(blank), 'row')} without text {_are(len(blank))} left out, the first in "
            f"{unit} {every.places[blank[0]]}."
        )
    there = sorted(set(range(len(every))) - set(blank))
    marked = _drawn([i for i in there if labels[i]], settings.limit, "labeled rows", notes)
    others = [i for i in there if not labels[i]]
    if not marked:
        raise ValueError(f"{table.source} has no labeled texts; label some rows first.")
    _check_classes(table.source, [labels[i] for i in marked])

    keys = every.keys()
    marked = _frequent(marked, labels, keys, settings.folds, table.source, notes)
    there = {labels[i] for i in marked}
    names = [name for name in task.labels if name in there]
    number = {name: place for place, name in enumerate(names)}
    group = {}
    groups = [group.setdefault(keys[i], len(group)) for i in marked]
    y = np.asarray([number[labels[i]] for i in marked])
    _note_equal(groups, y, notes)

    known, fresh = set(group), []
    for i in others:
        if keys[i] not in known:
            known.add(keys[i])
            fresh.append(i)
    if len(fresh) < len(others):
        notes.append(
            f"{_count(len(others) - len(fresh), 'unlabeled row')} with the text of another row "
            f"{_are(len(others) - len(fresh))} left out."
        )
    fresh = _drawn(fresh, settings.limit, "unlabeled rows", notes)
    return Labeled(
        every.part(marked), y, tuple(names), np.asarray(groups), every.part(fresh), notes
    )


def _drawn(rows, limit, what, notes):
    """Draw at most `limit` rows at random, with a fixed seed."""
    if limit is None or len(rows) <= limit:
        return rows
    notes.append(
        f"With limit={limit}, only {limit:,} of the {len(rows):,} {what} are used, drawn at random."
    )
    return sorted(np.random.default_rng(0).permutation(rows)[:limit].tolist())


def _check_classes(source, labels):
    """Raise if labels are all equal, scores or free text."""
    counts = Counter(labels)
    if len(counts) == 1:
        raise ValueError(
            f"All {len(labels)} labels in {source} are {labels[0]!r}; label rows of another class "
            "too."
            if len(labels) > 1
            else f"{source} has one labeled row; label at least two rows of each class."
        )
    try:
        numbers = {float(label) for label in counts}
    except ValueError:
        numbers = set()
    if len(numbers) > 20 or (len(numbers) > 5 and any(not x.is_integer() for x in numbers)):
        raise ValueError(
            f"The labels in {source} are {len(numbers)} different numbers ({min(numbers):g} to "
            f"{max(numbers):g}), scores rather than classes; train on them with `kerasbert "
            "finetune --head text_regressor`, or rename them if they are classes."
        )
    if len(labels) > 50 and len(counts) > 0.5 * len(labels):
        raise ValueError(
            f"{source} has {len(counts):,} different labels for {len(labels):,} rows, too many "
            "for classes; name the label column with --label (label=)."
        )


def _frequent(marked, labels, keys, folds, source, notes):
    """Keep rows of classes with a distinct text per fold."""
    texts = {}
    for i in marked:
        # Equal texts share a fold, and count for the first one's class.
        texts.setdefault(keys[i], labels[i])
    counts = Counter(texts.values())
    rare = {labels[i]: counts[labels[i]] for i in marked if counts[labels[i]] < folds}
    kept = [i for i in marked if labels[i] not in rare]
    if len({labels[i] for i in kept}) < 2:
        shown = ", ".join(f"{name!r} {count}" for name, count in sorted(rare.items())[:5])
        raise ValueError(
            f"{source} has too few labels for folds={folds}: at least two classes need as many "
            f"different texts, but these have fewer: {shown}; label more"
            + (", or set --folds 2 (folds=2)." if folds > 2 else ".")
        )
    if rare:
        shown = ", ".join(map(repr, sorted(rare)[:5])) + (", ..." if len(rare) > 5 else "")
        missing = _count(len(marked) - len(kept), "row")
        notes.append(
            f"{_count(len(rare), 'class')} with fewer different texts than the {folds} folds "
            f"({shown}; {missing}) {_are(len(rare))} left out: scores need a text per fold."
        )
        kept = _frequent(kept, labels, keys, folds, source, notes)
    return kept


def _note_equal(groups, y, notes):
    """Add notes on repeated texts and on texts with several labels."""
    sizes = Counter(groups)
    repeated = sum(size - 1 for size in sizes.values())
    several = len(set(zip(groups, y.tolist()))) - len(sizes)
    if repeated:
        notes.append(
            f"{_count(repeated, 'row')} {'repeats' if repeated == 1 else 'repeat'} the text of "
            "another row; equal texts share a fold, so that none is both trained on and scored."
        )
    if several:
        notes.append(
            f"{_count(several, 'text')} {'has' if several == 1 else 'have'} more than one label; "
            "see check_labels.csv."
        )


def _count(number, what):
    """Format a number with its noun.

    >>> _count(1, "row"), _count(2000, "class")
    ('1 row', '2,000 classes')
    """
    end = "" if number == 1 else "es" if what.endswith("s") else "s"
    return f"{number:,} {what}{end}"


def _are(number):
    return "is" if number == 1 else "are"
