"""Preprocessing for dense embedders of texts and pairs."""

from __future__ import annotations

import collections
import random
import zlib
from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base.errors import check_choice, check_value, check_whole
from kerasbert.base.keywords import config_of
from kerasbert.heads.base.long_preprocessor import LongTextPreprocessor
from kerasbert.text import ops
from kerasbert.text.batch_plans import given_batches, similar_length_batches
from kerasbert.text.batches import Batches, as_tensors, batch_dataset, map_ahead, runs_in_numpy
from kerasbert.text.text_warnings import looking, looks_of
from kerasbert.text.texts import label_rows, number_rows, weights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Self

    from kerasbert.base.aliases import Tensor
    from kerasbert.text.subword import SubwordTokenizer

# Built-in roles of texts in retrieval.
ROLES = ("query", "text")
# Maximum number of batches that are searched for a row to swap.
MOST_TRIED = 20


@keras.saving.register_keras_serializable(package="kerasbert")
class BertTextEmbedderPreprocessor(LongTextPreprocessor):
    """Packs texts or pairs like `BertPreprocessor`; labels `y` are embeddings (B, D').

    For custom losses, labels may also be numbers (B,) or class names.

    Texts to compare, such as a question and its passage, are not packed into one row, but passed in
    columns; see `column_batches`.

    Queries and texts may be preprocessed differently, by `for_role(role)`. Without labels, or with
    three or more columns, the first has the role "query" and the others "text".

    Args:
        tokenizer, sequence_length, truncate, num_segments: as for `BertPreprocessor`.
        prompts: dict of role to prompt, for models trained with prompts: `{"query": "query: ",
            "text": "passage: "}`. Other roles are allowed.
        role: default role of texts; `None` for none.
        query_token, text_token: strings. Token after the first token of each query or text,
            PyLate's prefix; "" for none.
        query_length: maximum tokens per query; `None` means `sequence_length`.
        expand_queries: whether mask tokens, with embeddings, pad queries to `query_length`.
        attend_to_expansion: whether other tokens attend to these mask tokens.
        skiplist_words: list of strings. Tokens without embeddings in texts, such as punctuation.
        long: as for `BertTextClassifierPreprocessor`; "windows" needs embedders of texts, not of
            tokens.

    With any of the six settings before `long`, features have a `vector_mask` (B, T), true for
    tokens with embeddings.

    Raises:
        ValueError: for labels that are not vectors of finite numbers of one width, prompts that are
            not strings, and unknown tokens.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "fine", "awful"]
    >>> preprocessor = BertTextEmbedderPreprocessor(BertTokenizer(tokens, lowercase=True))
    >>> features, y = preprocessor(["Fine", "Awful"], [[1.0, 2.0], [3.0, 4.0]])
    >>> tuple(y.shape)
    (2, 2)
    >>> late = BertTextEmbedderPreprocessor(
    ...     BertTokenizer(tokens), query_length=5, expand_queries=True, skiplist_words=["awful"]
    ... )
    >>> [np.asarray(x)[0].tolist() for x in late.for_role("query")(["fine"]).values()][0]
    [2, 5, 3, 4, 4]
    >>> np.asarray(late.for_role("text")(["fine awful"])["vector_mask"])[0, :4].tolist()
    [True, True, False, True]

    Source of roles: Khattab and Zaharia 2020, "ColBERT", arXiv 2004.12832, section 3.2; names and
    defaults of checkpoints as in PyLate 1.6.
    """

    # Key of the sequence length in checkpoints.
    kind = "text_embedder"
    settings = (
        *LongTextPreprocessor.settings,
        "prompts",
        "role",
        "query_token",
        "text_token",
        "query_length",
        "expand_queries",
        "attend_to_expansion",
        "skiplist_words",
    )

    def __init__(
        self,
        tokenizer: SubwordTokenizer,
        sequence_length: int = 512,
        truncate: str = "longest_first",
        num_segments: int = 2,
        prompts: Mapping[str, Any] | None = None,
        role: str | None = None,
        query_token: str = "",
        text_token: str = "",
        query_length: int | None = None,
        expand_queries: bool = False,
        attend_to_expansion: bool = False,
        skiplist_words: Sequence[str] = (),
        long: Any = "truncate",
        **kwargs: Any,
    ) -> None:
        super().__init__(tokenizer, sequence_length, truncate, num_segments, long=long, **kwargs)
        for name, value in (
            ("expand_queries", expand_queries),
            ("attend_to_expansion", attend_to_expansion),
        ):
            check_value(name, value, "flag")
        if query_length is not None:
            check_whole("query_length", query_length, max(tokenizer.frame.count(2), 1))
        if isinstance(skiplist_words, str) or not all(isinstance(x, str) for x in skiplist_words):
            raise ValueError(f"skiplist_words={skiplist_words!r:.60} must be a list of strings.")
        for name, token in (("query_token", query_token), ("text_token", text_token)):
            if token and tokenizer.vocabulary is not None and token not in tokenizer.vocabulary:
                raise ValueError(
                    f"{name}={token!r} is not in the vocabulary; use one of its tokens, such as "
                    "'[unused0]' if it exists, or '' for none."
                )
        prompts = {} if prompts is None else prompts
        pairs = prompts.items() if isinstance(prompts, dict) else [(None,)]
        if not all(isinstance(part, str) for pair in pairs for part in pair):
            raise ValueError(
                f"prompts={prompts!r} must be a dict of strings, such as "
                "{'query': 'query: ', 'text': 'passage: '}."
            )
        self.prompts = dict(prompts)
        self.check_role(role)
        self.role = role
        self.query_token = query_token
        self.text_token = text_token
        self.query_length = query_length
        self.expand_queries = expand_queries
        self.attend_to_expansion = attend_to_expansion
        self.skiplist_words = list(skiplist_words)
        if self.long.has_windows and self.has_roles:
            raise ValueError(
                "long='windows' pools the tokens of a text into one embedding, but query_token, "
                "text_token, query_length, expand_queries and skiplist_words are for embeddings of "
                "tokens; use long='head_tail' or 'truncate', or leave these out."
            )

    # === Roles ===

    @property
    def has_roles(self) -> bool:
        """Whether roles differ in other settings than prompts."""
        return bool(
            self.query_token
            or self.text_token
            or self.query_length is not None
            or self.expand_queries
            or self.skiplist_words
        )

    @property
    def roles(self) -> list[str]:
        """Names of the roles whose texts need their own preprocessing."""
        known = dict.fromkeys((*ROLES, *self.prompts))
        return [role for role in known if self.for_role(role) is not self]

    def check_role(self, role: str) -> None:
        """Raise an error for an unknown role."""
        if role is not None:
            check_choice("role", role, dict.fromkeys((*ROLES, *self.prompts)))

    def for_role(self, role: str) -> Self:
        """Return the preprocessor for a role: "query", "text" or a key of `prompts`.

        For roles without settings and `None`, it is the preprocessor itself.
        """
        self.check_role(role)
        if role is None or not (self.has_roles or role in self.prompts):
            return self
        key = (role, self.tokenizer, *(repr(getattr(self, name)) for name in self.settings))
        # `setattr` would make Keras track it.
        made = self.__dict__.setdefault("_of_roles", {})
        if key not in made:
            config = {**config_of(self), "tokenizer": self.tokenizer, "role": role}
            one = type(self).from_config(config)
            if role == "query" and self.query_length is not None:
                one.sequence_length = self.query_length
            made[key] = one
        return made[key]

    @property
    def prompt(self) -> str:
        """The prompt before each text."""
        return self.prompts.get(self.role, "")

    def _tokenize_columns(self, columns, most=None):
        self._check_prompt(columns)
        return super()._tokenize_columns(columns, most)

    def _tokenize_in_graph(self, columns):
        self._check_prompt(columns)
        return super()._tokenize_in_graph(columns)

    def _check_prompt(self, columns):
        if len(columns) > 1 and self.prompt:
            raise ValueError(
                f"The prompt {self.prompt!r} is for single texts, but got pairs; use role=None."
            )

    def _tokens(self, texts):
        if self.prompt:
            texts = ops.strings_join(self.prompt, texts)
        tokens = super()._tokens(texts)
        token = {"query": self.query_token, "text": self.text_token}.get(self.role)
        if not token:
            return tokens
        first = ops.column(tokens, self.tokenizer.token_to_id(token))
        return ops.concat([first, tokens], axis=1)

    def pack(self, segments: Any, length: int | None = None) -> Any:
        is_expanded = self.role == "query" and self.expand_queries
        features = super().pack(segments, self.sequence_length if is_expanded else length)
        if not self.has_roles:
            return features
        ids, mask = features["token_ids"], features["padding_mask"]
        if is_expanded:
            features["token_ids"] = ops.where(mask, ids, self.tokenizer.mask_token_id)
            features["vector_mask"] = ops.ones_like(mask)
            if self.attend_to_expansion:
                features["padding_mask"] = ops.ones_like(mask)
            return features
        if self.role == "text" and self.skiplist_words:
            words = set(self.skiplist_words)
            tokens = enumerate(self.tokenizer.get_vocabulary())
            skipped = np.asarray([id for id, token in tokens if token in words], "int32")
            mask = mask & ~ops.reduce_any(ids[:, :, None] == skipped, axis=-1)
        return {**features, "vector_mask": mask}

    def check_labels(self, y: Any, count: int) -> np.ndarray:
        rows = label_rows(y, count)
        widths = [len(row) if isinstance(row, list) else None for row in rows]
        if rows and all(isinstance(row, str) for row in rows):
            return np.unique(rows, return_inverse=True)[1].astype("int32")
        if not any(isinstance(row, (list, str)) for row in rows):
            return super().check_labels(number_rows(y, count, np.isfinite, "finite numbers"), count)
        for position, row in enumerate(rows):
            if widths[position] is None or widths[position] != widths[0]:
                raise ValueError(
                    f"The label at position {position} is {str(row)[:60]}, but that of the first "
                    f"text is {str(rows[0])[:60]}; pass one vector for each text, all of the same "
                    "width."
                )
        try:
            vectors = np.asarray(rows, "float32")
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"The labels are not vectors of numbers: {error}; pass floats."
            ) from error
        if vectors.ndim != 2 or not np.isfinite(vectors).all():
            raise ValueError(
                f"The labels have shape {vectors.shape} or hold NaN or infinity; pass one "
                "vector of finite numbers for each text."
            )
        return vectors

    def check_labels_in_graph(self, y: Any) -> Tensor:
        if y.shape.rank not in (None, 1, 2):
            raise ValueError(
                f"The dataset yields labels of shape {y.shape}; yield one vector for each text."
            )
        return ops.cast(y, "float32") if y.shape.rank == 2 else y

    # === Columns: texts to compare, not to pack together ===

    def column_batches(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int = 32,
        shuffle: bool = True,
        coarse: bool = False,
    ) -> Any:
        """Batch columns of texts for losses that compare embeddings.

        A batch is `(x, y)` or `(x, y, sample_weight)`, where `x` is a tuple of feature dicts, one
        per column, each padded on its own. Equal texts are put into different batches if possible.

        Args:
            x: a tuple of lists of strings, one list per column.
            y: numbers (N,), or scores of a teacher (N, ...). `None` numbers the texts, int32 (B,
                C); equal texts have equal numbers.
            sample_weight, batch_size, shuffle: as for `batches`.
            coarse: whether to pad to few lengths, for models compiled for each combination.

        Returns:
            A `tf.data.Dataset`; on JAX and PyTorch a `keras.utils.PyDataset`.
        """
        check_whole("batch_size", batch_size)
        readers, segments, labels, sample_weight = self._read_compared(x, y, sample_weight)
        if labels.ndim == 1 and np.isin(labels, (0, 1)).all():
            labels = labels.astype("int32")
        lengths = sum(
            np.asarray(one.packed_lengths((segment,))) for one, segment in zip(readers, segments)
        )
        seed = random.randrange(2**31)

        def plan(epoch):
            if not shuffle:
                return given_batches(lengths, batch_size)
            batches = similar_length_batches(lengths, batch_size, seed, epoch)
            return batches if y is not None else _without_repeats(batches, labels)

        def make(rows):
            parts = [ops.gather(segment, rows) for segment in segments]
            chosen = [None if target is None else ops.gather(target, rows) for target in targets]
            return _assemble_columns(readers, parts, *chosen, coarse=coarse)

        targets = [labels, sample_weight]
        if runs_in_numpy():
            return Batches(plan, make)
        with tf.device("cpu"):
            segments = list(map(ops.as_tensor, segments))
            targets = [None if t is None else tf.constant(t) for t in targets]
            return batch_dataset(plan, make)

    def column_batch(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Make one batch of columns of texts in memory: `(x, y)` or `(x, y, sample_weight)`.

        Float labels stay floats: other batches may have more values than 0 and 1.
        """
        return as_tensors(_assemble_columns(*self._read_compared(x, y, sample_weight)))

    def _read_compared(self, x, y, sample_weight):
        """Check and tokenize columns.

        Returns:
            `(readers, segments, y, sample_weight)`: the preprocessor and tokens of each column,
            labels or text numbers, and weights.
        """
        columns = self._read_columns(x)
        count = len(columns[0])
        is_one = columns[0] == columns[1]  # each text is compared with itself
        readers = self._readers(len(columns), y is not None or is_one)
        y = _text_numbers(columns) if y is None else self._column_labels(y, count)
        sample_weight = None if sample_weight is None else weights(sample_weight, count)
        segments = [
            one._tokenize_columns([column], most=one.sequence_length)[0]
            for one, column in zip(readers, columns)
        ]
        for one, column, segment in zip(readers, columns, segments):
            looks_of(one).at_cut(one, [column], (segment,))
        return readers, segments, y, sample_weight

    def _readers(self, count, is_alike):
        """Return the preprocessor for each column: the first holds queries, the others texts.

        Two labeled or equal columns have no roles: similarity is symmetric.
        """
        if count == 2 and is_alike and not self.has_roles:
            return [self, self]
        return [self.for_role(ROLES[min(i, 1)]) for i in range(count)]

    def map_columns(self, dataset: Any) -> Any:
        """Preprocess a `tf.data.Dataset` of batches of columns."""

        @tf.autograph.experimental.do_not_convert
        def make(*batch):
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
            columns = [ops.convert_to_tensor(one) for one in keras.tree.flatten(x)]
            readers = self._readers(len(columns), y is not None)
            if y is None:
                y = ops.stack(columns, axis=1)
                y = ops.cast(tf.strings.to_hash_bucket_fast(y, 2**31 - 1), "int32")
            segments = [one._tokenize_in_graph([c])[0] for one, c in zip(readers, columns)]
            return _assemble_columns(readers, segments, y, sample_weight)

        return map_ahead(looking(self, dataset), make)

    def _read_columns(self, x):
        columns = [self.columns(column)[0] for column in x]
        if any(len(column) != 1 for column in columns):
            raise ValueError("A column to compare holds pairs; pass a tuple of lists of strings.")
        columns = [column for (column,) in columns]
        if len(set(map(len, columns))) != 1:
            raise ValueError(
                f"The columns have {', '.join(str(len(column)) for column in columns)} texts; "
                "pass the same number in each."
            )
        return columns

    def _column_labels(self, y, count):
        """Check labels of columns; return int32 if all are the integers 0 and 1, else float32."""
        for position, row in enumerate(label_rows(y, count)):
            if isinstance(row, str):
                raise ValueError(
                    f"The label at position {position} is {row!r}; for texts to compare pass "
                    "numbers, 1 for matching texts and 0 for others."
                )
        y = self.check_labels(y, count)
        is_yes_or_no = y.dtype.kind in "iub" and y.ndim == 1 and np.isin(y, (0, 1)).all()
        return y.astype("int32" if is_yes_or_no else "float32")


def _assemble_columns(readers, segments, y, sample_weight=None, coarse=False):
    """Assemble tokenized columns into a batch `(x, y)` or `(x, y, sample_weight)`."""
    x = []
    for one, segment in zip(readers, segments):
        length = ops.reduce_max(one.packed_lengths((segment,)))
        if coarse:
            most = one.sequence_length
            steps = [2**power for power in range(4, 20) if 2**power < most]
            steps = np.array([*steps, *(x for x in one.long.buckets(most) if x >= most)], "int32")
            length = ops.gather(steps, ops.searchsorted(steps, [length])[0])
        x.append(one.pack((segment,), length))
    return keras.utils.pack_x_y_sample_weight(tuple(x), y, sample_weight)


def _text_numbers(columns):
    """Number the texts of C columns, int32 (N, C); equal texts have equal numbers.

    The numbers are hashes, so that all processes agree; two texts collide with a probability of one
    in two billion.
    """
    read = (text if isinstance(text, bytes) else text.encode() for c in columns for text in c)
    numbers = np.fromiter((zlib.crc32(text) >> 1 for text in read), "int32")
    return numbers.reshape(len(columns), -1).T


def _without_repeats(batches, numbers):
    """Rearrange rows into batches without repeated texts if possible.

    Args:
        batches: list of int arrays (B,).
        numbers: ints (N, C). Text numbers of each row.

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
    # Repeated texts remain in the last batches; swap them with rows of others.
    for place in repeating:
        for i in range(len(found[place])):
            _swap(found, place, i, texts)
    return [np.array(rows) for rows in found]


def _swap(batches, place, i, texts):
    """Swap a row whose texts repeat in its batch with a fitting row of another batch."""
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
