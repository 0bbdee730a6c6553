"""Base class of `SearchIndex`: a collection of texts with ids, metadata and embeddings.

N: number of texts, D': width of the embedder's output.
"""

from __future__ import annotations

import functools
import itertools
import threading
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.base.errors import check_choice, check_whole, need_packages
from kerasbert.base.notebook import summary
from kerasbert.search.documents import DOCUMENT, passages_of, read_documents
from kerasbert.search.embedding import (
    CHUNK,
    PROBES,
    check_float16,
    check_unchanged,
    check_vectors,
    compared,
    embed_distinct,
    embed_in_role,
    find_empty,
)
from kerasbert.search.engines import ENGINES
from kerasbert.search.filters import check_where
from kerasbert.search.metadata import check_metadata, merged
from kerasbert.search.neighbors import Neighbors
from kerasbert.search.passages import PassageSplitter
from kerasbert.search.rows import Rows
from kerasbert.search.values import is_id, listed, strings
from kerasbert.search.vectors import DTYPES, unit_vectors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    import pandas as pd
    from numpy.typing import ArrayLike

    from kerasbert.base.aliases import Corpus, Dtype, Texts


# Number of texts that the summary in a notebook shows, and the settings among them.
_SHOWN = 3
_SETTINGS = ("dtype", "dims", "engine", "similarity", "query_prompt", "text_prompt")


class TextCollection:
    """Collection of texts in the order of adding, with methods that read and change it.

    The arguments are those of `SearchIndex`.
    """

    def __init__(
        self,
        embedder: Any,
        *,
        dtype: Dtype,
        dims: int | None,
        rescore: int,
        engine: str,
        engine_options: Mapping[str, Any] | None,
        similarity: str,
        query_prompt: str | None,
        text_prompt: str | None,
        batch_size: int,
        splitter: PassageSplitter | None,
    ) -> None:
        if not isinstance(splitter, (PassageSplitter, type(None))):
            raise ValueError(
                f"splitter={splitter!r:.50} must be a kerasbert.search.PassageSplitter."
            )
        check_choice("dtype", dtype, DTYPES)
        check_choice("engine", engine, ("exact", *ENGINES))
        check_choice("similarity", similarity, ("cosine", "dot"))
        check_whole("rescore", rescore, least=0)
        check_whole("batch_size", batch_size)
        if dims is not None:
            check_whole("dims", dims)
        for name, prompt in (("query_prompt", query_prompt), ("text_prompt", text_prompt)):
            if not isinstance(prompt, (str, type(None))):
                raise ValueError(f"{name} must be a string ('' for none), got {prompt!r}.")
        self.embedder = embedder
        self.dtype, self.dims, self.rescore, self.engine = dtype, dims, rescore, engine
        self.engine_options, self.similarity = dict(engine_options or {}), similarity
        self.query_prompt, self.text_prompt = query_prompt, text_prompt
        self.batch_size, self.splitter = batch_size, splitter or PassageSplitter()
        self._rows = Rows()
        self._neighbors = Neighbors(dtype, engine, self.engine_options, rescore > 0)
        self._given_width = None  # The width D'.
        self._sample = None  # Texts that the embedder embedded first: role, texts and vectors.
        self._changing = threading.RLock()  # Held while texts are changed or written.
        if engine != "exact":
            self._neighbors.new_engine(dims or 8)  # Report invalid engine options early.

    def _repr_html_(self):
        rows, embedder = self.get(self.ids[:_SHOWN]), self.embedder
        name = getattr(embedder, "name", "")
        given = {name: getattr(self, name) for name in _SETTINGS}
        facts = {
            "texts": len(self),
            "findable": self.findable(),
            "embedder": [] if embedder is None else [type(embedder).__name__, name],
            "settings": [f"{name}={value!r}" for name, value in given.items() if value],
            "metadata": sorted({key for row in rows for key in row.get("metadata", ())}),
            "use": 'search("A query", top_k=10)',
            "also": ["add", "remove", "save", "kerasbert.export_serving(index, directory)"],
        }
        table = [["id", "text"], *([row["id"], row["text"]] for row in rows)]
        return summary(type(self).__name__, facts, *([table] if rows else []))

    # === Reading ===

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, id: Any) -> bool:
        return id in self._rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.ids)

    @property
    def ids(self) -> list[Any]:
        """The ids of all texts, in the order of adding."""
        return self._rows.ids_of(np.flatnonzero(self._rows.alive))

    @property
    def has_metadata(self) -> bool:
        """Whether any text has or had metadata."""
        return self._rows.metadata is not None

    @property
    def texts(self) -> list[str]:
        """All texts, in the order of adding."""
        return self._rows.texts.take(np.flatnonzero(self._rows.alive))

    def get(self, ids: Any = None, where: Mapping[str, Any] | None = None) -> Any:
        """Return texts by a list of ids, one id, or a condition on metadata.

        Args:
            ids: list of ids or one id; `None` for all texts.
            where: dict. As in `SearchIndex.search`.

        Returns:
            A list of dicts of `id`, `text` and, if the index has any, `metadata`, in the order of
            the ids; for one id, a single dict, or `None` if `where` excludes it.

        Raises:
            ValueError: if an id is not in the index, or `where` is invalid.

        >>> import kerasbert
        >>> index = kerasbert.SearchIndex(None)
        >>> index.add(["one", "two"], vectors=[[1, 0], [0, 1]])
        >>> index.get([1, 0])
        [{'id': 1, 'text': 'two'}, {'id': 0, 'text': 'one'}]
        >>> 1 in index, 2 in index, list(index)
        (True, False, [0, 1])
        """
        single, where, alive = is_id(ids), check_where(where), self._rows.alive
        rows = np.flatnonzero(alive)
        if ids is not None:
            rows = np.array(self._rows.of_ids([ids] if single else listed(ids, "ids")), "int64")
        if where is not None:
            # Another thread may have added rows meanwhile.
            mask = np.ones(max(len(alive), int(rows.max(initial=-1)) + 1), bool)
            rows = rows[self._rows.matching(where, mask)[rows]]
        found = self._rows.records(rows)
        return next(iter(found), None) if single else found

    def to_pandas(self) -> pd.DataFrame:
        """Return all texts as a data frame with columns `id`, `text` and one per metadata key.

        The metadata keys "id" and "text" become the columns "metadata.id" and "metadata.text".
        """
        need_packages("to_pandas", "data", "pandas")
        import pandas

        records = []
        for record in self.get():
            fields = record.pop("metadata", {})
            names = {key: f"metadata.{key}" if key in record else key for key in fields}
            records.append({**record, **{names[key]: value for key, value in fields.items()}})
        return pandas.DataFrame(records, columns=None if records else ["id", "text"])

    def findable(self) -> int:
        """Return the number of texts that a search can find."""
        return int(self._rows.findable().sum())

    # === Changing ===

    def add(
        self,
        texts: Texts,
        ids: Any = None,
        vectors: ArrayLike | None = None,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> None:
        """Add texts. Duplicate texts are embedded once.

        Args:
            texts: list of N strings, or a column of a table.
            ids: list of N ids that are not in the index; defaults to the next whole numbers.
            vectors: float (N, D'). Embeddings of the texts that the same model computed earlier.
            metadata: list of N dicts, or a table with a column for each key, by which searches
                filter with `where`. Values are strings (dates in ISO form), numbers, bools, or
                lists of these. Keys with the value `None` are left out.

        Raises:
            ValueError: if an argument is invalid; nothing is added then.
        """
        texts = strings(texts, "texts")
        metadata = check_metadata(metadata, len(texts))
        with self._changing:
            self._add(texts, self._rows.new_ids(ids, len(texts)), vectors, metadata)

    def add_documents(
        self,
        files: Corpus | None = None,
        texts: Sequence[str | Mapping[str, Any]] | None = None,
        *,
        text: str = "text",
        encoding: str | None = None,
        replace: bool = False,
    ) -> None:
        """Split documents into passages with `splitter`, and add these.

        The id of a passage is its document's id and its number, such as "terms.txt#0". Its metadata
        are the document's and

        - `document`: the document's id, a string: the path of its file; its `id` or "_id"; else the
          file's path and row number, or a number per text,
        - `title`: the key `title` of the document; for a text file, the first `# heading` of
          Markdown, or the file's name,
        - `start`, `end`: the passage's position in the document's text, in characters; each line
          end counts as one.

        Args:
            files: path of a file or a folder, a pattern, or a list of these. Tables and JSON lines
                (`.csv`, `.jsonl`, `.parquet`, `.xlsx`, ...) have a document per row; every other
                file is one document. Files may be compressed (`.gz`).
            texts: list of documents in memory: strings, or dicts with the key `text`; or a table of
                pandas, polars, PyArrow or `datasets` with a document per row.
            text: string. The key or column of the text. All other columns become metadata.
            encoding: encoding of files that are not UTF-8, such as "cp949" or "shift_jis".
            replace: whether to replace documents that are in the index.

        Raises:
            ValueError: if a file cannot be read, a document is in the index, or an argument is
                invalid; nothing changes then.

        >>> import kerasbert
        >>> class Letters:
        ...     def embed(self, texts, batch_size=32):
        ...         return [[text.count("i"), text.count("o")] for text in texts]
        >>> index = kerasbert.SearchIndex(Letters())
        >>> index.add_documents(texts=[{"id": "wet", "title": "Rain", "text": "It rains."}])
        >>> index.get("wet#0")["metadata"]
        {'document': 'wet', 'title': 'Rain', 'start': 0, 'end': 9}
        """
        with self._changing:
            known = self._rows.having(DOCUMENT)
            numbers = (str(number) for number in itertools.count())
            free = functools.partial(next, (id for id in numbers if id not in known))
            found = read_documents(files, texts, text, encoding, free)
            there = [id for id, *_ in found if id in known]
            if there and not replace:
                raise ValueError(
                    f"The document {there[0]!r:.90} is already in the index; pass replace=True to "
                    "replace its passages."
                )
            passages = passages_of(found, self.splitter, self.embedder, self.text_prompt)
            replaced = self._rows.ids_of([row for id in there for row in known[id]])
            taken = self._rows.places.keys() & set(passages[1]) - set(replaced)
            if taken:
                raise ValueError(
                    f"The index has a text with the id {min(taken)!r:.90} of a passage, which is "
                    "not of this document; remove the text, or give the document another id."
                )
            ids = self._rows.new_ids(passages[1], len(passages[1]), replace=bool(replaced))
            self._add(passages[0], ids, None, passages[2], replaced)

    def upsert(
        self,
        texts: Texts,
        ids: Any,
        vectors: ArrayLike | None = None,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> None:
        """Add texts like `add`, replacing those with the same ids.

        A replaced text loses its metadata and moves to the end of the index. Memory of the old text
        is freed by saving and loading.

        Args:
            texts: list of N strings.
            ids: list of N distinct ids.
            vectors, metadata: as in `add`.

        Raises:
            ValueError: if an argument is invalid; nothing changes then.

        >>> import kerasbert
        >>> index = kerasbert.SearchIndex(None)
        >>> index.add(["one", "two"], ids=["a", "b"], vectors=[[1, 0], [0, 1]])
        >>> index.upsert(["first", "third"], ids=["a", "c"], vectors=[[1, 0], [1, 1]])
        >>> index.ids, index.texts
        (['b', 'a', 'c'], ['two', 'first', 'third'])
        """
        texts = strings(texts, "texts")
        metadata = check_metadata(metadata, len(texts))
        with self._changing:
            self._add(texts, self._rows.new_ids(ids, len(texts), replace=True), vectors, metadata)

    def update(
        self,
        ids: Any,
        texts: Texts | None = None,
        vectors: ArrayLike | None = None,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> None:
        """Change texts or metadata of ids that are in the index.

        Args:
            ids: list of N distinct ids.
            texts: list of N strings, which move to the end of the index; `None` keeps the texts.
            vectors: as in `add`.
            metadata: list of N dicts, merged into the texts' metadata; the value `None` removes a
                key.

        Raises:
            ValueError: if an id is not in the index, or an argument is invalid; nothing changes
                then.

        >>> import kerasbert
        >>> index = kerasbert.SearchIndex(None)
        >>> index.add(["one"], vectors=[[1, 0]], metadata=[{"year": 2020, "lang": "en"}])
        >>> index.update([0], metadata=[{"year": 2021, "lang": None}])
        >>> index.get(0)
        {'id': 0, 'text': 'one', 'metadata': {'year': 2021}}
        """
        if texts is None and (vectors is not None or metadata is None):
            raise ValueError("update needs texts or metadata; vectors belong to texts.")
        ids = listed(ids, "ids")
        texts = None if texts is None else strings(texts, "texts")
        with self._changing:
            ids = self._rows.new_ids(ids, len(ids if texts is None else texts), replace=True)
            rows = self._rows.of_ids(ids)
            fields = self._rows.metadata_of(rows)
            if metadata is not None:
                fields = merged(fields, metadata)
            if texts is None:
                self._rows.set_metadata(rows, fields)
            else:
                self._add(texts, ids, vectors, fields)

    def _add(self, texts, ids, vectors, metadata, replaced=()):
        """Add texts, and remove the ids `replaced` at the same time."""
        if vectors is not None:
            vectors = self._checked(vectors, len(texts))
        if not texts:
            self._rows.remove(replaced)
            return
        empty = np.zeros(len(texts), bool)
        if self.embedder is not None:  # Without an embedder, texts may be placeholders.
            tokenizing = self.embedder if vectors is None else None
            empty = find_empty(tokenizing, texts, ids, stacklevel=4)
        places, sample = np.arange(len(texts)), None
        if vectors is None:
            distinct, vectors, places = embed_distinct(lambda x: self._embed(x, "text"), texts)
            some = len(PROBES)
            sample = "text", distinct[:some], vectors[:some].copy()
        if self.dtype == "float16" and self.similarity == "dot":
            check_float16(vectors[:, : self.dims])
        self._given_width = vectors.shape[1]
        for start in range(0, len(places), CHUNK):
            self._neighbors.append(self._compared(vectors[places[start : start + CHUNK]]))
        self._sample = self._sample or sample
        # Extended last, because other threads search only the rows that it has.
        self._rows.append(texts, ids, empty, metadata, replaced)

    def remove(self, ids: Any) -> None:
        """Remove texts by a list of ids or one id.

        Raises:
            ValueError: if an id is not in the index; nothing is removed then.
        """
        with self._changing:
            self._rows.remove([ids] if is_id(ids) else listed(ids, "ids"))

    # === Vectors ===

    def _embed(self, texts, role):
        if self.embedder is None:
            raise ValueError(
                "The index has no embedder; pass one, or pass vectors to `add` and "
                "`search_vectors`."
            )
        prompt = self.query_prompt if role == "query" else self.text_prompt
        vectors = embed_in_role(self.embedder, texts, role, self.batch_size, prompt)
        return self._checked(vectors, len(texts))

    def _checked(self, vectors, count=None):
        return check_vectors(vectors, count, self._given_width, self.dims)

    def _compared(self, vectors):
        return compared(vectors, self.dims, self.similarity)

    def _probe(self):
        """Return the embedder's unit vectors of the texts in `PROBES`: float32 (4, D')."""
        return unit_vectors(self._embed(PROBES, ""))

    def _check_sample(self):
        """Raise if the embedder was trained since it embedded the first texts."""
        if self._sample is not None and self.embedder is not None:
            role, texts, before = self._sample
            check_unchanged(self._embed(texts, role), before)

    def query_vectors(self, queries: Any) -> np.ndarray:
        """Embed a list of queries as vectors (Q, D') for `search_vectors`."""
        return self._embed(queries, "query")
