"""Texts to be found by what they mean.

N texts, Q queries, D' width of the embedder's vectors, D of those that are kept.
"""

from __future__ import annotations

import os
import threading
import warnings
from typing import TYPE_CHECKING

import numpy as np

from kerasbert._errors import (
    check_choice,
    check_value,
    check_whole,
    did_you_mean,
    first_line,
    is_whole,
)
from kerasbert.files import (
    check_file,
    check_name,
    check_regular,
    check_space,
    names_in,
    new_folder,
    output_folder,
    read_json,
    settle,
    write_json,
)
from kerasbert.models.text_embedder import BertTextEmbedder
from kerasbert.preprocessors.empty import say_nothing
from kerasbert.search.columns import (
    AGAIN,
    ArrayColumn,
    TextColumn,
    describe_files,
    read_array,
)
from kerasbert.search.engines import ENGINES, REMAKE
from kerasbert.search.vectors import DTYPES, Vectors, unit_vectors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Self

    from numpy.typing import ArrayLike

    from kerasbert._typing import AnyPath, Dtype, Texts
    from kerasbert.models.question_answering import BertQuestionAnswering

FORMAT = 1
MANIFEST = "index.json"
_EMBEDDER = "embedder"
_CHUNK = 8192  # different texts that are embedded in one call
# Vectors of these tell models apart: long and short, and in several scripts.
_PROBES = (
    "A cat sat on the mat.",
    "Interest rates rose again in the third quarter, said the central bank on Monday.",
    "서울의 날씨",
    "How?",
)
# Files that may be memory-mapped, of texts and of vectors.
_MAPPED = ("texts.bin", "ids.bin", "ids.npy")
_VECTORS = ("bits.npy", "vectors.npy", "scales.npy")
_SETTINGS = (
    "dtype",
    "dims",
    "rescore",
    "engine",
    "engine_options",
    "similarity",
    "query_prompt",
    "text_prompt",
    "batch_size",
)
_NO_SPARSE = (
    "an index takes dense vectors, as of a BertTextEmbedder. Compare sparse ones by products of "
    "SciPy's matrices, such as embedder.similarity(queries, texts)."
)


def embed_in_role(embedder, texts, role, batch_size, prompt=None):
    """Vectors of texts as queries or as what is searched; without a prompt with the embedder's."""
    settings = {"batch_size": batch_size}
    if prompt is not None:
        texts = [prompt + text for text in texts]
    elif getattr(getattr(embedder, "preprocessor", None), "prompts", None):
        settings["role"] = role
    return embedder.embed(list(texts), **settings)


class SearchIndex:
    """Texts that are found by their meaning: `search` gives the nearest ones to a query.

    Vectors have the length 1, so scores are cosines. By default each query is compared with all
    vectors, which is exact; equal scores come in the order in which the texts were added.
    A text that is empty, or holds nothing that the embedder's tokenizer knows, is kept but is no
    hit, and as a query it has none.
    Threads may search while another one adds and removes: they find what was there before, or
    after. An engine answers them one after the other.

    Args:
        embedder: a `BertTextEmbedder` with a preprocessor, or anything with
            `embed(texts, batch_size=...)` that gives float (N, D'). Without one, `add` and
            `search_vectors` take vectors.
        texts: list of N strings, to begin with.
        ids: list of N different strings, or of whole numbers; by default 0, 1, 2, ...
        reranker: anything with `rank(query, texts)` that gives a list of dicts with `corpus_id`,
            the place among the texts, and `score`. It puts the best hits into its own order.
        reader: a `BertQuestionAnswering`. It marks the answer in each hit.
        dtype: what a vector is kept in. "float32", "float16" (half the memory), "int8" (a quarter,
            with a scale a vector), or "binary": the search compares one bit a number, and int8
            vectors, which may stay on the disk, score the best `rescore * top_k` once more.
        dims: int. Keep the first numbers of a vector alone, for models that are trained for that
            (Kusupati et al. 2022, arXiv 2205.13147, "Matryoshka").
        rescore: int. How many times `top_k` candidates of "binary", or of an engine, are scored
            again. 0 keeps no int8 vectors: a thirty-second of the memory, and worse hits.
        engine: "exact", or "faiss" or "usearch", packages that compare with a part of the vectors
            (extras of the same names). They draw a graph of them when it is first needed.
        engine_options: dict. For faiss `factory` and `search`, for usearch the arguments of its
            `Index`; see `kerasbert.search.engines`.
        similarity: "cosine", or "dot" for models whose lengths of vectors mean something.
        query_prompt, text_prompt: strings in front of queries and of texts, such as "query: " and
            "passage: ", for models that were trained with them. `None` takes those that the
            embedder's preprocessor has as `prompts`.
        batch_size: int, of the embedder.

    Raises:
        ValueError: in a sentence for settings, texts and ids that are none.
        ImportError: if the package of an engine is missing.

    Example:

    >>> class Letters:
    ...     def embed(self, texts, batch_size=32):
    ...         return np.array([[text.count(x) for x in "abc"] for text in texts], "float32")
    >>> index = SearchIndex(Letters(), ["aab", "bcc", "abc"])
    >>> [(hit["text"], round(hit["score"], 2)) for hit in index.search("aa", top_k=2)]
    [('aab', 0.89), ('abc', 0.58)]
    """

    kind = "search_index"

    def __init__(
        self,
        embedder: Any,
        texts: Sequence[str] | None = None,
        ids: Any = None,
        reranker: Any = None,
        reader: BertQuestionAnswering | None = None,
        dtype: Dtype = "float32",
        dims: int | None = None,
        rescore: int = 4,
        engine: str = "exact",
        engine_options: Mapping[str, Any] | None = None,
        similarity: str = "cosine",
        query_prompt: str | None = None,
        text_prompt: str | None = None,
        batch_size: int = 32,
    ) -> None:
        check_choice("dtype", dtype, DTYPES)
        check_choice("engine", engine, ("exact", *ENGINES))
        check_choice("similarity", similarity, ("cosine", "dot"))
        check_whole("rescore", rescore, least=0)
        check_whole("batch_size", batch_size)
        if dims is not None:
            check_whole("dims", dims)
        for name, prompt in (("query_prompt", query_prompt), ("text_prompt", text_prompt)):
            if not isinstance(prompt, (str, type(None))):
                raise ValueError(f"{name}={prompt!r} is no string; '' is none.")
        for name, part, method in (
            ("embedder", embedder, "embed"),
            ("reranker", reranker, "rank"),
            ("reader", reader, "answer"),
        ):
            if part is not None and not hasattr(part, method):
                raise ValueError(
                    f"{name}={type(part).__name__} has no method `{method}`; pass a model that "
                    "has, or None."
                )
        if getattr(embedder, "pooling", None) == "tokens":
            raise ValueError(
                "The embedder has pooling='tokens', a vector for each token, and an index takes "
                "one a text; use pooling='mean' or 'cls'."
            )
        if getattr(embedder, "kind", None) == "sparse_embedder":
            raise ValueError(f"The embedder is a {type(embedder).__name__}; {_NO_SPARSE}")
        self.embedder, self.reranker, self.reader = embedder, reranker, reader
        self.dtype, self.dims, self.rescore, self.engine = dtype, dims, rescore, engine
        self.engine_options, self.similarity = dict(engine_options or {}), similarity
        self.query_prompt, self.text_prompt = query_prompt, text_prompt
        self.batch_size = batch_size
        self._vectors = None  # `Vectors`, when their width is known
        self._texts = TextColumn()
        self._ids = None  # a column, when it is known whether they are numbers
        self._rows = None  # a dict from ids to rows, when it is needed
        self._alive = np.empty(0, bool)  # rows that were not removed
        self._empty = np.empty(0, bool)  # those whose texts say nothing
        self._given_width = None  # D'
        self._sample = None  # what the embedder gave first: role, texts and their vectors
        self._finder = None  # an engine, when it is needed
        self._changing = threading.RLock()  # held by what changes the texts, or writes them
        self._finding = threading.RLock()  # held by what uses the engine
        if engine != "exact":
            self._new_finder(dims or 8)  # It says now what is wrong with it.
        if texts is not None:
            self.add(texts, ids)

    # === Texts ===

    def __len__(self) -> int:
        return int(self._alive.sum())

    @property
    def ids(self) -> list[Any]:
        """The ids of all texts, in the order in which they were added: a list."""
        return self._ids_of(np.flatnonzero(self._alive))

    @property
    def texts(self) -> list[str]:
        """All texts, in the same order: a list."""
        return self._texts.take(np.flatnonzero(self._alive))

    def add(self, texts: Texts, ids: Any = None, vectors: ArrayLike | None = None) -> None:
        """Add texts. Of equal ones the vector is computed once.

        Args:
            texts: list of N strings.
            ids: list of N ids that are not in the index; by default the next whole numbers.
            vectors: float (N, D'), if they are there already, from the same model.

        Raises:
            ValueError: in a sentence. Nothing was added then.
        """
        texts = _strings(texts, "texts")
        with self._changing:
            self._add(texts, self._new_ids(ids, len(texts)), vectors)

    def _add(self, texts, ids, vectors):
        if vectors is not None:
            vectors = self._checked(vectors, len(texts))
        if not texts:
            return
        empty = np.zeros(len(texts), bool)
        if self.embedder is not None:  # Without one, texts may stand for nothing.
            empty = say_nothing(self.embedder if vectors is None else None, texts)
        if empty.any():
            first = int(np.argmax(empty))
            warnings.warn(
                f"{empty.sum()} of {len(texts)} texts are empty, or hold nothing that the "
                f"embedder's tokenizer knows, such as the one with the id {ids[first]!r}, "
                f"{texts[first]!r:.50}: no search finds them.",
                stacklevel=4,
            )
        places, sample = np.arange(len(texts)), None
        if vectors is None:
            place = {text: i for i, text in enumerate(dict.fromkeys(texts))}
            places = np.fromiter(map(place.__getitem__, texts), "int64", len(texts))
            different = list(place)
            vectors = np.concatenate(
                [
                    self._embed(different[i : i + _CHUNK], "text")
                    for i in range(0, len(different), _CHUNK)
                ]
            )
            some = len(_PROBES)
            sample = "text", different[:some], vectors[:some].copy()
        if self.dtype == "float16" and self.similarity == "dot":
            most = float(np.abs(vectors[:, : self.dims]).max())
            if most > float(np.finfo("float16").max):
                raise ValueError(
                    f"The vectors hold {most:.3g}, and float16 ends at 65504; use another dtype, "
                    "or similarity='cosine'."
                )
        if self._vectors is None:
            self._given_width = vectors.shape[1]
            width = self.dims or self._given_width
            self._vectors = Vectors(width, self.dtype, self._keeps_int8())
        for start in range(0, len(places), _CHUNK):
            self._vectors.append(self._kept(vectors[places[start : start + _CHUNK]]))
        first = len(self._texts)
        self._texts.append(texts)
        self._ids.append(ids)
        if self._rows is not None:
            self._rows.update(zip(ids, range(first, first + len(ids))))
        self._sample = self._sample or sample
        self._empty = np.append(self._empty, empty)
        # Last: a search in another thread looks at these rows alone.
        self._alive = np.append(self._alive, np.ones(len(texts), bool))

    def remove(self, ids: Any) -> None:
        """Remove the texts of some ids: a list, or one id.

        Raises:
            ValueError: if one is not there. Nothing was removed then.
        """
        ids = [ids] if isinstance(ids, str) or is_whole(ids) else _listed(ids, "ids")
        with self._changing:
            places = self._places()
            for id in ids:
                if not (isinstance(id, str) or is_whole(id)) or id not in places:
                    raise ValueError(f"There is no text with the id {id!r} in the index.")
            for id in ids:
                row = places.pop(id, None)
                if row is not None:
                    self._alive[row] = False

    # === Search ===

    def search(
        self, queries: Texts, top_k: int = 10, candidates: int | None = None, **answer_settings: Any
    ) -> list[Any]:
        """The nearest texts of queries.

        Args:
            queries: a string or a list of Q strings.
            top_k: int. The most hits.
            candidates: int. How many of the nearest the reranker reads; by default five times
                `top_k`, and 50 at least.
            **answer_settings: of the reader's `answer`, such as `null_threshold`.

        Returns:
            For each query a list of dicts, best first; one list for a single query:

            - `id`, `text`,
            - `score`: the cosine, or the reranker's score, and `vector_score` is the cosine then,
            - `answer`: with a reader, the best of its `answer`: a dict of `answer`, `start` and
              `end` in the text, `score` and `null_score`.
        """
        single = isinstance(queries, str)
        queries = _strings([queries] if single else queries, "queries")
        check_whole("top_k", top_k)
        if candidates is not None:
            check_whole("candidates", candidates)
        if answer_settings and self.reader is None:
            name = next(iter(answer_settings))
            known = ("top_k", "candidates")
            others = f"; it takes {' and '.join(known)}, and with a reader what its `answer` takes."
            raise ValueError(
                f"search() has no argument '{name}'" + did_you_mean(name, known, others)
            )
        count = top_k
        if self.reranker is not None:
            count = max(top_k, candidates or max(5 * top_k, 50))
        results = []
        if queries:
            results = [[] for _ in queries]
            asked = np.flatnonzero(~say_nothing(self.embedder, queries)).tolist()
            if len(self) and asked:
                vectors = self.query_vectors([queries[place] for place in asked])
                for place, hits in zip(asked, self.search_vectors(vectors, count)):
                    results[place] = hits
        if self.reranker is not None:
            results = [self._reranked(*pair) for pair in zip(queries, results)]
        results = [hits[:top_k] for hits in results]
        if self.reader is not None:
            self._add_answers(queries, results, answer_settings)
        return results[0] if single else results

    def query_vectors(self, queries: Any) -> np.ndarray:
        """The vectors (Q, D') of a list of queries, as `search_vectors` takes them."""
        return self._embed(queries, "query")

    def search_vectors(self, vectors: Any, top_k: int = 10) -> list[Any]:
        """As `search`, of vectors (Q, D') or (D',) of the embedder; without reranker and reader."""
        check_whole("top_k", top_k)
        single = np.ndim(vectors) == 1
        queries = self._kept(self._checked([vectors] if single else vectors))
        rows, scores = self._nearest(queries, top_k)
        results = []
        for some, values in zip(rows, scores):
            some = some[some >= 0]
            found = zip(self._ids_of(some), values.tolist(), self._texts.take(some))
            results.append([{"id": id, "score": score, "text": text} for id, score, text in found])
        return results[0] if single else results

    def _nearest(self, queries, top_k):
        """Rows (Q, K), -1 where there are fewer, and their scores, best first."""
        alive = self._findable()  # Another thread may add rows meanwhile, to a longer one.
        size = int(alive.sum())
        count = min(top_k, size)
        if not count or not len(queries):
            return np.full((len(queries), 0), -1), np.zeros((len(queries), 0), "float32")
        wanted = count
        if self.dtype == "binary" or self.engine != "exact":
            wanted = min(count * max(self.rescore, 1), size)
        if self.engine == "exact":
            rows = self._vectors.nearest(queries, wanted, alive)
        else:
            rows = self._found_by_engine(queries, count, wanted, alive)
        scores = self._vectors.scores(queries, rows)
        order = np.lexsort((rows, -scores), axis=-1)[:, :count]
        return np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1)

    def findable(self) -> int:
        """How many texts a search can find: those that are not empty."""
        return int(self._findable().sum())

    def _findable(self):
        """Rows that a search looks at: a bool array."""
        alive = self._alive
        return alive & ~self._empty[: len(alive)]

    def _found_by_engine(self, queries, count, wanted, alive):
        with self._finding:
            if self._finder is None:
                self._finder = self._new_finder(self._vectors.width)
            if len(self._finder) < len(self._vectors):
                self._finder.add(self._vectors, len(self._finder))
            rows = self._finder.nearest(queries, wanted)
        # What was removed is still in the engine, and what came later too.
        rows[(rows < 0) | (rows >= len(alive))] = -1
        rows[~alive[rows] & (rows >= 0)] = -1
        short = (rows >= 0).sum(axis=1) < count
        if short.any():
            rows[short] = self._vectors.nearest(queries[short], wanted, alive)
        return rows

    def _reranked(self, query, hits):
        if not hits:
            return hits
        ranked = self.reranker.rank(query, [hit["text"] for hit in hits])
        ranked = sorted(ranked, key=lambda one: -one["score"])
        return [
            {
                **hits[one["corpus_id"]],
                "score": float(one["score"]),
                "vector_score": hits[one["corpus_id"]]["score"],
            }
            for one in ranked
        ]

    def _add_answers(self, queries, results, settings):
        nothing = {"answer": "", "start": None, "end": None, "score": 0.0, "null_score": 0.0}
        pairs = [(query, hit) for query, hits in zip(queries, results) for hit in hits]
        for _, hit in pairs:
            hit["answer"] = dict(nothing)
        pairs = [(query, hit) for query, hit in pairs if query.strip() and hit["text"].strip()]
        if not pairs:
            return
        asked = [query for query, _ in pairs], [hit["text"] for _, hit in pairs]
        settings = {"batch_size": self.batch_size, **settings}
        for (_, hit), answers in zip(pairs, self.reader.answer(*asked, **settings)):
            if answers:
                hit["answer"] = answers[0]

    # === Vectors ===

    def _embed(self, texts, role):
        if self.embedder is None:
            raise ValueError(
                "The index has no embedder; pass one, or vectors to `add` and `search_vectors`."
            )
        prompt = self.query_prompt if role == "query" else self.text_prompt
        vectors = embed_in_role(self.embedder, texts, role, self.batch_size, prompt)
        return self._checked(vectors, len(texts))

    def _checked(self, vectors, count=None):
        """Vectors (N, D') as float32; raises a `ValueError` in a sentence for others."""
        if hasattr(vectors, "tocsr"):
            raise ValueError(f"The vectors are sparse; {_NO_SPARSE}")
        try:
            vectors = np.asarray(vectors)
        except ValueError as error:
            raise ValueError(
                f"Vectors have to be numbers (N, D), all of the same width: {first_line(error)}"
            ) from None
        if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or not vectors.shape[1]:
            raise ValueError(
                f"Vectors have to be numbers (N, D), and these are {vectors.dtype} {vectors.shape}."
            )
        if count is not None and len(vectors) != count:
            raise ValueError(f"There are {len(vectors)} vectors for {count} texts.")
        width = vectors.shape[1]
        if width != (self._given_width or width):
            raise ValueError(
                f"The vectors have {width} numbers, and those of the index {self._given_width}: "
                "use the model that the index was made with, or make a new index."
            )
        if self.dims is not None and width < self.dims:
            raise ValueError(f"dims={self.dims} is more than the {width} numbers of a vector.")
        # A sum is finite only where all are, and takes no memory.
        with np.errstate(over="ignore", invalid="ignore"):
            vectors = vectors.astype("float32", copy=False)
            sums = vectors.sum(axis=1)
        if not np.isfinite(sums).all():
            row = int(np.flatnonzero(~np.isfinite(sums))[0])
            raise ValueError(
                f"The vector number {row} holds NaN or infinite numbers; look for them in the "
                "weights of the model, or compute in float32."
            )
        return vectors

    def _kept(self, vectors):
        """Vectors (N, D') as they are compared: float32 (N, D)."""
        vectors = vectors[:, : self.dims]
        return unit_vectors(vectors) if self.similarity == "cosine" else vectors

    def _keeps_int8(self):
        return self.dtype == "binary" and self.rescore > 0

    def _new_finder(self, width):
        try:
            return ENGINES[self.engine](width, self.dtype, **self.engine_options)
        except TypeError as error:
            raise ValueError(
                f"engine_options={self.engine_options}: {error}; see kerasbert.search.engines."
            ) from None

    # === Ids ===

    def _new_ids(self, ids, count):
        """Ids of texts to add, as a list; the column for their kind is made."""
        known = self._places()
        if ids is None:
            if isinstance(self._ids, TextColumn) and len(self._ids):
                raise ValueError("The ids of this index are strings; pass `ids` for new texts too.")
            start = self._next_id()
            ids = list(range(start, start + count))
        ids = _listed(ids, "ids")
        if len(ids) != count:
            raise ValueError(f"There are {len(ids)} ids for {count} texts.")
        are_strings = all(isinstance(id, str) for id in ids)
        if not are_strings and not all(is_whole(id) and -(2**63) <= id < 2**63 for id in ids):
            raise ValueError("ids have to be all strings, or all whole numbers of 64 bits.")
        if not are_strings:
            ids = [int(id) for id in ids]
        seen = set()
        for id in ids:
            if id in known or id in seen:
                where = "already in the index; remove it first" if id in known else "given twice"
                raise ValueError(f"The id {id!r} is {where}.")
            seen.add(id)
        if count:
            if self._ids is None or not len(self._ids):
                self._ids = TextColumn() if are_strings else ArrayColumn(np.empty(0, "int64"))
            elif isinstance(self._ids, TextColumn) != are_strings:
                kinds = ("strings", "whole numbers")
                mine = kinds[not isinstance(self._ids, TextColumn)]
                raise ValueError(f"The ids of this index are {mine}, and {ids[0]!r} is not.")
        return ids

    def _next_id(self):
        if self._ids is None or not len(self._ids):
            return 0
        return max(int(part.max()) for _, part in self._ids.parts() if len(part)) + 1

    def _places(self):
        """The rows of all ids: a dict."""
        if self._rows is None:
            rows = np.flatnonzero(self._alive)
            self._rows = dict(zip(self._ids_of(rows), rows.tolist()))
        return self._rows

    def _ids_of(self, rows):
        if self._ids is None:
            return []
        found = self._ids.take(rows)
        return found if isinstance(found, list) else found.tolist()

    # === Files ===

    def save(self, directory: AnyPath, overwrite: bool = False, models: bool = True) -> None:
        """Write the index to a folder: whole, or not at all.

        Args:
            directory: string.
            overwrite: bool. Whether an index that is there goes. No other folder does.
            models: bool. Whether the embedder is written too, as a preset in the folder
                `embedder`. Reranker and reader never are; pass them to `load`.

        Raises:
            ValueError: if the folder holds something else, or an index without `overwrite`, or if
                the embedder was trained after it gave the index its vectors.
            OSError: if it cannot be written, or the disk has no room for it.
        """
        target = output_folder(directory, "directory")
        self._check_target(target, overwrite)
        with self._changing, self._finding:
            self._check_sample()
            self._save(target, models)

    def _save(self, target, models):
        models = models and hasattr(self.embedder, "save_to_preset")
        # Rows of an engine keep their numbers: what was removed stays, unless that is much.
        keep = self._alive
        if self._finder is not None and 10 * (len(keep) - len(self)) < len(keep):
            keep = np.ones(len(keep), bool)
        with new_folder(target, by="save") as folder:
            self._write_columns(folder, keep)
            np.save(os.path.join(folder, "removed.npy"), np.flatnonzero(keep & ~self._alive))
            empty = np.flatnonzero(self._empty[keep])
            if len(empty):
                np.save(os.path.join(folder, "empty.npy"), empty)
            if self._finder is not None and keep.all():
                self._finder.write(os.path.join(folder, f"engine.{self.engine}"))
            probe = self._probe() if len(self) and self.embedder is not None else None
            if probe is not None:
                np.save(os.path.join(folder, "probe.npy"), probe)
            described = describe_files(folder)
            if models:
                self.embedder.save_to_preset(os.path.join(folder, _EMBEDDER))
            manifest = {
                "format": FORMAT,
                "rows": int(keep.sum()),
                "count": len(self),
                "empty": len(empty),
                "width": self._vectors.width if self._vectors is not None else 0,
                "embedder_width": self._given_width or 0,
                "embedder": getattr(self.embedder, "name", None) or type(self.embedder).__name__,
                "string_ids": isinstance(self._ids, TextColumn),
                "probe": probe is not None,
                "files": described,
                **{name: getattr(self, name) for name in _SETTINGS},
            }
            write_json(os.path.join(folder, MANIFEST), manifest)

    def _check_target(self, target, overwrite):
        names = names_in(target)
        if not names:
            return
        if MANIFEST not in names:
            raise ValueError(
                f"'{target}' is no search index and not empty, and would be replaced; name another "
                "folder."
            )
        if not overwrite:
            raise ValueError(
                f"'{target}' holds a search index already; pass overwrite=True, or name another "
                "folder."
            )

    def write_rows(self, folder: AnyPath) -> None:
        """Write vectors, texts and ids of what can be found to a folder, a file a column."""
        with self._changing:
            self._check_sample()
            self._write_columns(folder, self._findable())

    def _write_columns(self, folder, keep):
        columns = self._columns()
        size = sum(column.size(keep) for column in columns.values())
        check_space(folder, size, "vectors and texts")
        for name, column in columns.items():
            column.write(os.path.join(folder, name), keep)

    def _columns(self):
        """The columns by the names of their files."""
        columns = {"texts.bin": self._texts}
        if self._ids is not None:
            columns["ids.bin" if isinstance(self._ids, TextColumn) else "ids.npy"] = self._ids
        if self._vectors is not None:
            columns |= {f"{name}.npy": x for name, x in self._vectors.columns.items()}
        return columns

    @classmethod
    def load(
        cls,
        directory: AnyPath,
        embedder: Any = None,
        reranker: Any = None,
        reader: Any = None,
        mmap: bool = True,
    ) -> Self:
        """Open an index that `save` wrote.

        Args:
            directory: string.
            embedder: the model that the index was made with; by default the one in the folder.
            reranker, reader: as in the constructor.
            mmap: bool. Leave vectors and texts in their files until they are needed. Otherwise
                they are read into memory, which costs no speed later, and verified against the
                hashes that `save` wrote. An engine's file, which is always read into memory, is
                always verified, together with the vectors that it was built from.

        Raises:
            ValueError: in a sentence, if files are missing or damaged, are of another version, or
                the embedder is another model.
        """
        directory = os.path.abspath(os.path.expanduser(os.fspath(directory)))
        if not os.path.isdir(directory):
            raise ValueError(f"There is no folder '{directory}'; name one that `save` wrote.")
        settle(directory)
        path = os.path.join(directory, MANIFEST)
        if not os.path.exists(path):
            raise ValueError(f"'{directory}' is no search index: it has no {MANIFEST}.")
        manifest = read_json(path)
        _check_manifest(manifest, path)
        preset = os.path.join(directory, _EMBEDDER)
        if embedder is None and os.path.isdir(preset):
            embedder = BertTextEmbedder.from_preset(preset)
        settings = {name: manifest[name] for name in _SETTINGS}
        index = cls(embedder, None, None, reranker, reader, **settings)
        index._read(directory, manifest, mmap)
        return index

    def _read(self, directory, manifest, mmap):
        rows, width = manifest["rows"], manifest["width"]
        self._check_files(directory, manifest, mmap)
        self._texts = TextColumn.read(os.path.join(directory, "texts.bin"), rows, mmap)
        if rows and manifest["string_ids"]:
            self._ids = TextColumn.read(os.path.join(directory, "ids.bin"), rows, mmap)
        elif rows:
            path = os.path.join(directory, "ids.npy")
            self._ids = ArrayColumn(read_array(path, (rows,), "int64", mmap))
        if width:
            self._given_width = manifest["embedder_width"]
            parts = (width, self.dtype, self._keeps_int8(), mmap)
            self._vectors = Vectors.read(directory, rows, *parts)
        self._alive = ~_read_rows(directory, "removed.npy", rows - manifest["count"], rows)
        empty = manifest.get("empty", 0)
        self._empty = np.zeros(rows, bool)
        if empty:  # Indexes of earlier versions have no such file.
            self._empty = _read_rows(directory, "empty.npy", empty, rows)
        path = os.path.join(directory, f"engine.{self.engine}")
        if os.path.exists(path) and "files" in manifest:  # Otherwise it is rebuilt on demand.
            self._finder = self._new_finder(width)
            self._finder.read(path)
            if len(self._finder) > rows:
                raise ValueError(f"'{path}' has more vectors than the index; {REMAKE}.")
        if manifest["probe"] and self.embedder is not None:
            shape = (len(_PROBES), self._given_width)
            self._check_model(
                read_array(os.path.join(directory, "probe.npy"), shape, "float32"), manifest
            )

    def _check_files(self, directory, manifest, mmap):
        """Verify the sizes of all files, and the hashes of those that are read into memory."""
        engine = f"engine.{self.engine}"
        path = os.path.join(directory, engine)
        check_regular(path)
        has_engine = os.path.exists(path)
        files = manifest.get("files")
        if files is None:
            if has_engine:
                warnings.warn(
                    f"'{path}' was written by a version without hashes and is not opened: the "
                    "engine is rebuilt from the vectors. Save the index again to keep it.",
                    stacklevel=4,
                )
            return
        if has_engine and engine not in files:
            raise ValueError(
                f"'{path}' is damaged (the index was saved without an engine); {REMAKE}."
            )
        for name, described in files.items():
            if name == engine:
                if has_engine:
                    check_file(path, described, True, REMAKE)
                continue
            hashed = name not in (*_MAPPED, *_VECTORS) or not mmap
            hashed = hashed or (has_engine and name in _VECTORS)
            hashed = hashed and name != "probe.npy"  # It is compared with the model's embeddings.
            check_file(os.path.join(directory, name), described, hashed, AGAIN)

    def _probe(self):
        """The embedder's vectors of some fixed texts: float32 (4, D')."""
        return unit_vectors(self._embed(_PROBES, ""))

    def _check_sample(self):
        """Raise if the embedder no longer gives what it gave: it learned something since."""
        if self._sample is None or self.embedder is None:
            return
        role, texts, before = self._sample
        a, b = self._embed(texts, role), before
        sizes = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        worst = float(np.divide((a * b).sum(axis=1), sizes, where=sizes > 0, out=sizes + 1).min())
        if worst < 0.98:  # As in `_check_model`.
            raise ValueError(
                "The embedder has changed since it gave the index its vectors: those of the same "
                f"text have a cosine of {worst:.2f}. Make a new index after training."
            )

    def _check_model(self, expected, manifest):
        """Raise unless the embedder's vectors are those that the index was made with."""
        mine = self._probe()
        # All vectors of a model may have much in common: what counts is how they differ.
        a, b = (x - x.mean(axis=0) for x in (mine, expected))
        like = float((a * b).sum() / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-12))
        if not like >= 0.98:  # bfloat16 has 0.999, int8 0.99; of a damaged file it is NaN.
            raise ValueError(
                "The embedder is not the model that the index was made with "
                f"('{manifest['embedder']}'): its vectors of the same texts have a cosine of "
                f"{like:.2f} with those. Pass that model, or make a new index."
            )
        self._sample = "", list(_PROBES), mine


def _listed(values, name, of=""):
    """A list; raises a `ValueError` in a sentence for what is none."""
    if isinstance(values, (str, bytes, dict)) or not hasattr(values, "__iter__"):
        raise ValueError(f"{name}={values!r:.50} has to be a list{of}.")
    return list(values)


def _strings(texts, name):
    """A list of strings; raises a `ValueError` in a sentence for others."""
    texts = _listed(texts, name, " of strings")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{name}[{i}]={text!r:.50} is no string.")
    return [str(text) for text in texts]


def _check_manifest(manifest, path):
    version = manifest.get("format")
    if version != FORMAT:
        raise ValueError(
            f"'{path}' is of format {version!r}, and this version reads {FORMAT}; update "
            "kerasbert, or make the index again."
        )
    for name in ("rows", "count", "width", "embedder_width"):
        if not is_whole(manifest.get(name)) or manifest[name] < 0:
            raise ValueError(f"{name}={manifest.get(name)!r} in '{path}' is no number from 0.")
    check_value("empty", manifest.get("empty", 0), "whole", path)
    missing = [name for name in (*_SETTINGS, "string_ids", "probe") if name not in manifest]
    if missing or manifest["count"] > manifest["rows"]:
        what = f"has no {', '.join(missing)}" if missing else "counts more texts than rows"
        raise ValueError(f"'{path}' {what}; copy the whole index again.")
    width = manifest["dims"] or manifest["embedder_width"]
    if (manifest["rows"] and not manifest["width"]) or manifest["width"] not in (0, width):
        raise ValueError(
            f"width={manifest['width']} in '{path}' cannot be, with dims={manifest['dims']} and "
            f"embedder_width={manifest['embedder_width']}; copy the whole index again."
        )
    if not isinstance(manifest["engine_options"], dict):
        raise ValueError(
            f"engine_options={manifest['engine_options']!r} in '{path}' is no object; copy the "
            "whole index again."
        )
    files = manifest.get("files", {})
    check_value("files", files, "object", path)
    for name, described in files.items():
        check_name(name, path)
        check_value(name, described, "object", path)
        check_value(f"bytes of {name}", described.get("bytes"), "whole", path)
        check_value(f"sha256 of {name}", described.get("sha256"), "name", path)


def _read_rows(directory, name, count, rows):
    """Read the numbers of `count` rows of an index from a file: bools (rows,), true for these."""
    path = os.path.join(directory, name)
    found = read_array(path, (count,), "int64")
    if count and not (0 <= found.min() and found.max() < rows):
        raise ValueError(f"'{path}' names rows that the index does not have; save it anew.")
    mask = np.zeros(rows, bool)
    mask[found] = True
    return mask
