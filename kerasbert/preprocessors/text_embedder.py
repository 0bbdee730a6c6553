"""Preprocessing for vectors of texts and pairs."""

import collections
import random

import keras
import numpy as np

from kerasbert._errors import check_whole
from kerasbert.backend.tensorflow import tf
from kerasbert.data.batching import (
    batch_dataset,
    given_batches,
    map_ahead,
    similar_length_batches,
)
from kerasbert.preprocessors.packing import BertPreprocessor, as_tensors
from kerasbert.preprocessors.texts import label_rows, number_rows, weights

# In so many batches a place is looked for, for a row whose texts its own batch has already.
MOST_TRIED = 20
# What texts are to a search. A model may know other roles.
ROLES = ("query", "text")


class Prompted(list):
    """Texts with their prompt in front."""


def _joined(prompt, text):
    return prompt.encode() + text if isinstance(text, bytes) else prompt + text


@keras.saving.register_keras_serializable(package="kerasbert")
class BertTextEmbedderPreprocessor(BertPreprocessor):
    """Packs texts or pairs as `BertPreprocessor` does; labels `y` are vectors (B, D').

    For a loss of one's own, they may also be numbers (B,), or names of classes.

    Texts that are compared, such as a question and its passage, are not packed into a row but stand
    in columns; see `column_batches`.

    Takes the arguments of `BertPreprocessor`, and

    Args:
        prompts: dict of a role to what stands in front of each text in it, for models that were
            trained so: `{"query": "query: ", "text": "passage: "}`. Columns that are compared
            without labels, and three or more, are a query and texts.
        role: string. The role of texts of which nothing else is said; `None` puts nothing there.

    Raises:
        ValueError: for labels that are no vectors of finite numbers, all of one width, with their
            position; for prompts that are no strings.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "fine", "awful"]
    >>> preprocessor = BertTextEmbedderPreprocessor(BertTokenizer(tokens, lowercase=True))
    >>> features, y = preprocessor(["Fine", "Awful"], [[1.0, 2.0], [3.0, 4.0]])
    >>> tuple(y.shape)
    (2, 2)
    """

    # Checkpoints say how long the texts of their embedder are.
    kind = "text_embedder"
    settings = (*BertPreprocessor.settings, "prompts", "role")

    def __init__(
        self,
        tokenizer,
        sequence_length=512,
        truncate="longest_first",
        num_segments=2,
        prompts=None,
        role=None,
        **kwargs,
    ):
        super().__init__(tokenizer, sequence_length, truncate, num_segments, **kwargs)
        prompts = {} if prompts is None else prompts
        pairs = prompts.items() if isinstance(prompts, dict) else [(None,)]
        if not all(isinstance(part, str) for pair in pairs for part in pair):
            raise ValueError(
                f"prompts={prompts!r} is no dict of strings; pass one such as "
                "{'query': 'query: ', 'text': 'passage: '}."
            )
        self.prompts, self.role = dict(prompts), role
        self.prompt(None)

    # === Prompts ===

    def prompt(self, role=None):
        """What stands in front of a text in a role; `None` is that of this preprocessor.

        Queries and texts of a model without a prompt for them are as other texts.
        """
        role = self.role if role is None else role
        if role in self.prompts:
            return self.prompts[role]
        if role in ROLES and role != self.role:
            return self.prompt(None)
        if role is None or role in ROLES:
            return ""
        known = ", ".join(map(repr, dict.fromkeys((*ROLES, *self.prompts))))
        raise ValueError(f"role={role!r} has no prompt; use one of {known}, or add it to prompts.")

    def prompted(self, texts, role):
        """A list of texts with the prompt of a role, which `columns` takes as they are."""
        prompt = self.prompt(role)
        return Prompted(_joined(prompt, text) for text in texts)

    def columns(self, x, role=None):
        """Read texts in memory, and put the prompt of a role in front, once."""
        if isinstance(x[0] if isinstance(x, tuple) and x else x, Prompted):
            return (x if isinstance(x, tuple) else (x,)), True
        columns, batched = self.plain_columns(x)
        if role is not None and len(columns) > 1:
            raise ValueError(f"role={role!r} is of texts, and pairs have none; leave it out.")
        return (self.prompted(columns[0], role), *columns[1:]), batched

    def plain_columns(self, x):
        """As `columns`, without a prompt."""
        return super().columns(x)

    def columns_in_graph(self, x):
        first, *others = super().columns_in_graph(x)
        return [self._prompted_in_graph(first, None), *others]

    def _prompted_in_graph(self, texts, role):
        prompt = self.prompt(role)
        return tf.strings.join([prompt, texts]) if prompt else texts

    def _roles(self, count, is_labelled):
        """The roles of `count` columns that are compared."""
        if is_labelled and count == 2:  # How similar two texts are has no direction.
            return [None] * count
        return ["query", *["text"] * (count - 1)]

    # === Labels ===

    def check_labels(self, y, count):
        rows = label_rows(y, count)
        widths = [len(row) if isinstance(row, list) else None for row in rows]
        if rows and all(isinstance(row, str) for row in rows):
            return np.unique(rows, return_inverse=True)[1].astype("int32")
        if not any(isinstance(row, (list, str)) for row in rows):
            return super().check_labels(number_rows(y, count, np.isfinite, "finite numbers"), count)
        for position, row in enumerate(rows):
            if widths[position] is None or widths[position] != widths[0]:
                raise ValueError(
                    f"The label at position {position} is {str(row)[:60]}, where that of the "
                    f"first text is {str(rows[0])[:60]}; pass one vector for each text, all of "
                    "the same width."
                )
        try:
            vectors = np.asarray(rows, "float32")
        except (TypeError, ValueError) as error:
            raise ValueError(f"The labels are no vectors of numbers: {error}.") from error
        if vectors.ndim != 2 or not np.isfinite(vectors).all():
            raise ValueError(
                f"The labels have the shape {vectors.shape} or hold NaN or infinity; pass one "
                "vector of finite numbers for each text."
            )
        return vectors

    def check_labels_in_graph(self, y):
        if y.shape.rank not in (None, 1, 2):
            raise ValueError(
                f"The dataset gives labels of shape {y.shape}; give one vector for each text."
            )
        return tf.cast(y, tf.float32) if y.shape.rank == 2 else y

    # === Columns: rows of two texts or more that are compared, and not packed together ===

    def column_batches(
        self, x, y=None, sample_weight=None, batch_size=32, shuffle=True, coarse=False
    ):
        """Batches of columns of texts, for the losses of `kerasbert.losses` that compare vectors.

        A batch is `(x, y)` or `(x, y, sample_weight)`, and `x` a tuple of the dicts of a call, one
        for each column, each padded for itself. Equal texts are kept out of a batch as far as
        there are others.

        Args:
            x: a tuple of lists of strings, one list a column.
            y: numbers (N,), or scores (N, ...) of a teacher. `None` makes numbers of texts, int32
                (B, C), equal ones for equal texts of the batch.
            sample_weight, batch_size, shuffle: as of `batches`. Without a new order batches are
                those of the order given.
            coarse: bool. Pad to few lengths, for a model that is compiled for each combination.

        Returns:
            A `tf.data.Dataset`.
        """
        check_whole("batch_size", batch_size)
        segments, labels, sample_weight = self._read_compared(x, y, sample_weight)
        if labels.ndim == 1 and np.isin(labels, (0, 1)).all():
            labels = labels.astype("int32")
        with tf.device("cpu"):
            targets = [None if t is None else tf.constant(t) for t in (labels, sample_weight)]
        lengths = sum(np.asarray(self.packed_lengths((segment,))) for segment in segments)
        seed = random.randrange(2**31)

        def plan(epoch):
            if not shuffle:
                return given_batches(lengths, batch_size)
            batches = similar_length_batches(lengths, batch_size, seed, epoch)
            return batches if y is not None else _without_repeats(batches, labels)

        def make(rows):
            parts = [tf.gather(segment, rows) for segment in segments]
            chosen = [None if target is None else tf.gather(target, rows) for target in targets]
            return self._assemble_columns(parts, *chosen, coarse=coarse)

        with tf.device("cpu"):
            return batch_dataset(plan, make)

    def column_batch(self, x, y=None, sample_weight=None):
        """One batch of columns, of texts in memory: `(x, y)` or `(x, y, sample_weight)`.

        Labels that are floats stay so, as other batches may hold more than 0 and 1.
        """
        segments, y, sample_weight = self._read_compared(x, y, sample_weight)
        with tf.device("cpu"):
            return as_tensors(self._assemble_columns(segments, y, sample_weight))

    def _read_compared(self, x, y, sample_weight):
        """Checked and tokenized: segments, labels or the numbers of the texts, and weights."""
        columns = self._read_columns(x, y is not None)
        count = len(columns[0])
        y = _text_numbers(columns) if y is None else self._column_labels(y, count)
        sample_weight = None if sample_weight is None else weights(sample_weight, count)
        with tf.device("cpu"):
            return self._tokenize_columns(columns, most=self.sequence_length), y, sample_weight

    def map_columns(self, dataset):
        """Preprocess a `tf.data.Dataset` of batches of columns, with labels or without."""

        @tf.autograph.experimental.do_not_convert
        def make(*batch):
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
            columns = [tf.convert_to_tensor(one) for one in keras.tree.flatten(x)]
            roles = self._roles(len(columns), y is not None)
            columns = list(map(self._prompted_in_graph, columns, roles))
            if y is None:
                _, y = tf.unique(tf.concat(columns, 0))
                y = tf.transpose(tf.reshape(y, (len(columns), -1)))
            return self._assemble_columns(self._tokenize_in_graph(columns), y, sample_weight)

        return map_ahead(dataset, make)

    def _assemble_columns(self, segments, y, sample_weight=None, coarse=False):
        x = []
        for segment in segments:
            length = tf.reduce_max(self.packed_lengths((segment,)))
            if coarse:
                steps = [2**power for power in range(4, 20) if 2**power < self.sequence_length]
                steps = tf.constant([*steps, self.sequence_length])
                length = tf.gather(steps, tf.searchsorted(steps, [length])[0])
            x.append(self.pack((segment,), length))
        return keras.utils.pack_x_y_sample_weight(tuple(x), y, sample_weight)

    def _read_columns(self, x, is_labelled):
        columns = [self.plain_columns(column)[0] for column in x]
        if any(len(column) != 1 for column in columns):
            raise ValueError(
                "A column holds pairs where texts are compared; pass a tuple of lists of strings."
            )
        columns = [column for (column,) in columns]
        if len(set(map(len, columns))) != 1:
            raise ValueError(
                f"The columns have {', '.join(str(len(column)) for column in columns)} texts; "
                "they must have the same number."
            )
        is_one = columns[0] == columns[1]  # A text and itself.
        return list(map(self.prompted, columns, self._roles(len(columns), is_labelled or is_one)))

    def _column_labels(self, y, count):
        """Labels of columns: int32 where all are 0 or 1 and whole numbers, else float32."""
        y = self.check_labels(y, count)
        is_yes_or_no = y.dtype.kind in "iub" and y.ndim == 1 and np.isin(y, (0, 1)).all()
        return y.astype("int32" if is_yes_or_no else "float32")


def _text_numbers(columns):
    """Numbers of the texts of C columns, equal ones for equal texts: int32 (N, C)."""
    texts = {}
    rows = [[texts.setdefault(text, len(texts)) for text in column] for column in columns]
    return np.array(rows, "int32").T


def _without_repeats(batches, numbers):
    """The same rows in batches of the same sizes, in which no text is twice, where that can be.

    Args:
        batches: list of int arrays (B,).
        numbers: ints (N, C). Of the texts of each row.

    >>> numbers = np.array([[0, 1], [0, 2], [3, 4], [5, 6]])
    >>> [batch.tolist() for batch in _without_repeats([[0, 1], [2, 3]], numbers)]
    [[0, 2], [1, 3]]
    """
    texts = [set(row) for row in numbers.tolist()]
    waiting = collections.deque(row for batch in batches for row in batch)
    found, repeating = [], []
    for batch in batches:
        rows, seen, passed = [], set(), []
        while len(rows) < len(batch) and waiting:
            row = waiting.popleft()
            if seen & texts[row]:
                passed.append(row)
            else:
                rows.append(row)
                seen |= texts[row]
        missing = len(batch) - len(rows)
        if missing:
            repeating.append(len(found))
        found.append(rows + passed[:missing])
        waiting.extendleft(reversed(passed[missing:]))
    # Repeats end in the last batches; there they change places with rows of the others.
    for place in repeating:
        for i in range(len(found[place])):
            _swap(found, place, i, texts)
    return [np.array(rows) for rows in found]


def _swap(batches, place, i, texts):
    """Put another row where a batch has one whose texts it has twice; stay where none fits."""
    rows = batches[place]
    others = set().union(*(texts[row] for row in rows[:i] + rows[i + 1 :]))
    own = texts[rows[i]]
    if not others & own:
        return
    for batch in batches[:MOST_TRIED]:
        for j, row in enumerate(batch):
            if batch is rows or others & texts[row]:
                continue
            if not own & set().union(*(texts[one] for one in batch[:j] + batch[j + 1 :])):
                rows[i], batch[j] = row, rows[i]
                return
