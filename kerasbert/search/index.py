"""`SearchIndex`: semantic search over a collection of texts.

N: number of texts, Q: queries, D': width of the embedder's output, D: dimensions that are kept.
"""

from __future__ import annotations

import os
import threading
import warnings
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.base.errors import (
    check_choice,
    check_value,
    check_whole,
    did_you_mean,
    first_line,
    is_whole,
)
from kerasbert.base.files import (
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
from kerasbert.heads.text_embedder.model import BertTextEmbedder
from kerasbert.search.columns import (
    AGAIN,
    ArrayColumn,
    TextColumn,
    describe_files,
    read_array,
)
from kerasbert.search.engines import ENGINES, REMAKE
from kerasbert.search.vectors import DTYPES, Vectors, unit_vectors
from kerasbert.text.empty import say_nothing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Self

    from numpy.typing import ArrayLike

    from kerasbert.base.aliases import AnyPath, Dtype, Texts
    from kerasbert.heads.question_answering.model import BertQuestionAnswering

FORMAT = 1
MANIFEST = "index.json"
_EMBEDDER = "embedder"
_CHUNK = 8192  # Distinct texts that are embedded per call.
# Embeddings of these texts tell models apart; they are long and short, in several scripts.
_PROBES = (
    "A cat sat on the mat.",
    "Interest rates rose again in the third quarter, said the central bank on Monday.",
    "서울의 날씨",
    "How?",
)
# Files of texts and of vectors that may be memory-mapped.
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
    "an index takes dense embeddings, such as those of a BertTextEmbedder. Compare sparse ones as "
    "SciPy matrices, such as with embedder.similarity(queries, texts)."
)


def embed_in_role(embedder, texts, role, batch_size, prompt=None):
    """Embed texts in a role, "query" or "text"; without `prompt`, use the embedder's own."""
    settings = {"batch_size": batch_size}
    if prompt is not None:
        texts = [prompt + text for text in texts]
    elif getattr(getattr(embedder, "preprocessor", None), "prompts", None):
        settings["role"] = role
    return embedder.embed(list(texts), **settings)


class SearchIndex:
    """Semantic search over texts: `search` returns a query's nearest neighbors.

    Scores are cosines. By default the search is exact: it compares queries with all vectors, and
    ties keep the order of adding. Texts that are empty, or have no token known to the embedder's
    tokenizer, are stored but never found; such queries have no hits.

    Threads may search while another thread adds or removes texts: they see the state before or
    after the change. An engine serves threads one at a time.

    Args:
        embedder: a `BertTextEmbedder` with a preprocessor, or any object with
            `embed(texts, batch_size=...)` that returns floats (N, D'). If `None`, pass vectors to
            `add` and `search_vectors`.
        texts: list of N strings to start with.
        ids: list of N distinct strings, or of whole numbers; defaults to 0, 1, 2, ...
        reranker: any object with `rank(query, texts)` that returns a list of dicts with
            `corpus_id`, the position in `texts`, and `score`. It reorders the best hits.
        reader: a `BertQuestionAnswering`, which extracts the answer from each hit.
        dtype: storage of vectors. "float32"; "float16" (half the memory); "int8" (a quarter, with
            one scale per vector); or "binary": the search compares one bit per dimension, and int8
            vectors, which may stay on disk, rescore the best `rescore * top_k`.
        dims: int. Keep only the first dimensions, for models trained with Matryoshka representation
            learning (Kusupati et al. 2022, arXiv 2205.13147).
        rescore: int. With "binary" or an engine, rescore `rescore * top_k` candidates. With 0,
            "binary" keeps no int8 vectors: 1/32 of the memory, with worse hits.
        engine: "exact", or "faiss" or "usearch" for approximate search with these packages (extras
            of the same names). They build a graph at the first search.
        engine_options: dict. For faiss `factory` and `search`, for usearch the arguments of its
            `Index`; see `kerasbert.search.engines`.
        similarity: "cosine", or "dot" for models whose vector lengths are meaningful.
        query_prompt, text_prompt: strings. Prefixes of queries and texts, such as "query: " and
            "passage: ", for models trained with them. `None` uses the `prompts` of the embedder's
            preprocessor.
        batch_size: int.

    Raises:
        ValueError: for invalid settings, texts or ids.
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
                raise ValueError(f"{name} must be a string ('' for none), got {prompt!r}.")
        for name, part, method in (
            ("embedder", embedder, "embed"),
            ("reranker", reranker, "rank"),
            ("reader", reader, "answer"),
        ):
            if part is not None and not hasattr(part, method):
                raise ValueError(
                    f"{name}={type(part).__name__} has no method `{method}`; pass a model that "
                    "has it, or None."
                )
        if getattr(embedder, "pooling", None) == "tokens":
            raise ValueError(
                "The embedder has pooling='tokens', which gives one vector per token, but an index "
                "needs one per text; use pooling='mean' or 'cls'."
            )
        if getattr(embedder, "kind", None) == "sparse_embedder":
            raise ValueError(f"The embedder is a {type(embedder).__name__}; {_NO_SPARSE}")
        self.embedder, self.reranker, self.reader = embedder, reranker, reader
        self.dtype, self.dims, self.rescore, self.engine = dtype, dims, rescore, engine
        self.engine_options, self.similarity = dict(engine_options or {}), similarity
        self.query_prompt, self.text_prompt = query_prompt, text_prompt
        self.batch_size = batch_size
        self._vectors = None  # `Vectors`, once their width is known.
        self._texts = TextColumn()
        self._ids = None  # A column, once the type of the ids is known.
        self._rows = None  # A dict of id to row, built when needed.
        self._alive = np.empty(0, bool)  # Rows that were not removed.
        self._empty = np.empty(0, bool)  # Rows of texts without a known token.
        self._given_width = None  # D'
        self._sample = None  # The first output of the embedder: role, texts and their vectors.
        self._finder = None  # An engine, built when needed.
        self._changing = threading.RLock()  # Held while texts are changed or written.
        self._finding = threading.RLock()  # Held while the engine is used.
        if engine != "exact":
            self._new_finder(dims or 8)  # Report invalid engine options early.
        if texts is not None:
            self.add(texts, ids)

    # === Texts ===

    def __len__(self) -> int:
        return int(self._alive.sum())

    @property
    def ids(self) -> list[Any]:
        """The ids of all texts, in the order of adding."""
        return self._ids_of(np.flatnonzero(self._alive))

    @property
    def texts(self) -> list[str]:
        """All texts, in the same order."""
        return self._texts.take(np.flatnonzero(self._alive))

    def add(self, texts: Texts, ids: Any = None, vectors: ArrayLike | None = None) -> None:
        """Add texts. Duplicate texts are embedded once.

        Args:
            texts: list of N strings.
            ids: list of N ids that are not in the index; defaults to the next whole numbers.
            vectors: float (N, D'). Precomputed embeddings from the same model.

        Raises:
            ValueError: for invalid arguments; nothing is added then.
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
        if self.embedder is not None:  # Without an embedder, texts may be placeholders.
            empty = say_nothing(self.embedder if vectors is None else None, texts)
        if empty.any():
            first = int(np.argmax(empty))
            warnings.warn(
                f"{empty.sum()} of {len(texts)} texts are empty or have no token known to the "
                f"embedder's tokenizer, such as the one with the id {ids[first]!r}, "
                f"{texts[first]!r:.50}. No search finds them.",
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
                    f"The vectors hold {most:.3g}, but float16 ends at 65504; use another dtype, "
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
        # Must come last: other threads search only rows that `_alive` covers.
        self._alive = np.append(self._alive, np.ones(len(texts), bool))

    def remove(self, ids: Any) -> None:
        """Remove texts by a list of ids or one id.

        Raises:
            ValueError: if an id is not in the index; nothing is removed then.
        """
        ids = [ids] if isinstance(ids, str) or is_whole(ids) else _listed(ids, "ids")
        with self._changing:
            places = self._places()
            for id in ids:
                if not (isinstance(id, str) or is_whole(id)) or id not in places:
                    raise ValueError(f"The index has no text with the id {id!r}.")
            for id in ids:
                row = places.pop(id, None)
                if row is not None:
                    self._alive[row] = False

    # === Search ===

    def search(
        self, queries: Texts, top_k: int = 10, candidates: int | None = None, **answer_settings: Any
    ) -> list[Any]:
        """Find the texts nearest to each query.

        Args:
            queries: a string or a list of Q strings.
            top_k: int. Maximum number of hits.
            candidates: int. Number of nearest texts that the reranker scores; defaults to five
                times `top_k`, but at least 50.
            **answer_settings: passed to the reader's `answer`, such as `null_threshold`.

        Returns:
            A list of dicts per query, best first; one list for a string:

            - `id`, `text`,
            - `score`: the cosine; or the reranker's score, with the cosine as `vector_score`,
            - `answer`: with a reader, its best answer, a dict of `answer`, `start` and `end` in the
              text, `score` and `null_score`.
        """
        single = isinstance(queries, str)
        queries = _strings([queries] if single else queries, "queries")
        check_whole("top_k", top_k)
        if candidates is not None:
            check_whole("candidates", candidates)
        if answer_settings and self.reader is None:
            name = next(iter(answer_settings))
            known = ("top_k", "candidates")
            others = f"; use {' and '.join(known)}, and with a reader settings of its `answer`."
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
        """Embed a list of queries as vectors (Q, D') for `search_vectors`."""
        return self._embed(queries, "query")

    def search_vectors(self, vectors: Any, top_k: int = 10) -> list[Any]:
        """Search with embeddings (Q, D') or (D',), without reranker and reader; see `search`."""
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
        """Return rows (Q, K), padded with -1, and their scores, best first."""
        alive = self._findable()  # A copy; another thread may add rows meanwhile.
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
        """Return the number of texts that a search can find."""
        return int(self._findable().sum())

    def _findable(self):
        """Return a bool array of the rows that a search considers."""
        alive = self._alive
        return alive & ~self._empty[: len(alive)]

    def _found_by_engine(self, queries, count, wanted, alive):
        with self._finding:
            if self._finder is None:
                self._finder = self._new_finder(self._vectors.width)
            if len(self._finder) < len(self._vectors):
                self._finder.add(self._vectors, len(self._finder))
            rows = self._finder.nearest(queries, wanted)
        # The engine also has rows that were removed, or added after `alive` was read.
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
                "The index has no embedder; pass one, or pass vectors to `add` and "
                "`search_vectors`."
            )
        prompt = self.query_prompt if role == "query" else self.text_prompt
        vectors = embed_in_role(self.embedder, texts, role, self.batch_size, prompt)
        return self._checked(vectors, len(texts))

    def _checked(self, vectors, count=None):
        """Return vectors (N, D') as float32, or raise a `ValueError` if they are invalid."""
        if hasattr(vectors, "tocsr"):
            raise ValueError(f"The vectors are sparse; {_NO_SPARSE}")
        try:
            vectors = np.asarray(vectors)
        except ValueError as error:
            raise ValueError(
                f"Vectors must be numbers (N, D), all of the same width: {first_line(error)}"
            ) from None
        if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or not vectors.shape[1]:
            raise ValueError(
                f"Vectors must be numbers (N, D), got {vectors.dtype} {vectors.shape}."
            )
        if count is not None and len(vectors) != count:
            raise ValueError(
                f"There are {len(vectors)} vectors for {count} texts; pass one vector per text."
            )
        width = vectors.shape[1]
        if width != (self._given_width or width):
            raise ValueError(
                f"The vectors have {width} dimensions, but the index has {self._given_width}: use "
                "the model of the index, or make a new index."
            )
        if self.dims is not None and width < self.dims:
            raise ValueError(
                f"dims={self.dims} is more than the {width} dimensions of the vectors."
            )
        # A row sum is finite only if all its values are, and needs no temporary array.
        with np.errstate(over="ignore", invalid="ignore"):
            vectors = vectors.astype("float32", copy=False)
            sums = vectors.sum(axis=1)
        if not np.isfinite(sums).all():
            row = int(np.flatnonzero(~np.isfinite(sums))[0])
            raise ValueError(
                f"Vector {row} has NaN or infinite values; check the model's weights, or compute "
                "in float32."
            )
        return vectors

    def _kept(self, vectors):
        """Return vectors (N, D') in the form that is compared: float32 (N, D)."""
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
        """Return ids for new texts as a list, and create the column for their type if needed."""
        known = self._places()
        if ids is None:
            if isinstance(self._ids, TextColumn) and len(self._ids):
                raise ValueError(
                    "The ids of this index are strings; pass `ids` for new texts, too."
                )
            start = self._next_id()
            ids = list(range(start, start + count))
        ids = _listed(ids, "ids")
        if len(ids) != count:
            raise ValueError(f"There are {len(ids)} ids for {count} texts; pass one id per text.")
        are_strings = all(isinstance(id, str) for id in ids)
        if not are_strings and not all(is_whole(id) and -(2**63) <= id < 2**63 for id in ids):
            raise ValueError("ids must be all strings, or all whole numbers of 64 bits.")
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
                raise ValueError(f"The ids of this index are {mine}, but {ids[0]!r} is not.")
        return ids

    def _next_id(self):
        if self._ids is None or not len(self._ids):
            return 0
        return max(int(part.max()) for _, part in self._ids.parts() if len(part)) + 1

    def _places(self):
        """Return a dict of id to row."""
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
        """Write the index to a folder, atomically.

        Args:
            directory: string.
            overwrite: bool. Replace an existing index; other folders are never replaced.
            models: bool. Also write the embedder, as a preset in the subfolder `embedder`.
                Reranker and reader are not written; pass them to `load`.

        Raises:
            ValueError: if the folder has other files, or an index without `overwrite`, or if the
                embedder was trained after it embedded the texts.
            OSError: if the folder cannot be written, or the disk is full.
        """
        target = output_folder(directory, "directory")
        self._check_target(target, overwrite)
        with self._changing, self._finding:
            self._check_sample()
            self._save(target, models)

    def _save(self, target, models):
        models = models and hasattr(self.embedder, "save_to_preset")
        # Keep removed rows unless they are many, so that the engine's row numbers stay valid.
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
                f"'{target}' is not empty and has no search index, so it is not replaced; choose "
                "another folder."
            )
        if not overwrite:
            raise ValueError(
                f"'{target}' already has a search index; pass overwrite=True, or choose another "
                "folder."
            )

    def write_rows(self, folder: AnyPath) -> None:
        """Write vectors, texts and ids of all findable texts to a folder, one file per column."""
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
        """Return the columns by file name."""
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
        """Load an index that `save` wrote.

        Args:
            directory: string.
            embedder: the model that the index was made with; defaults to the one in the folder.
            reranker, reader: as in the constructor.
            mmap: bool. Memory-map vectors and texts. `False` reads them into memory, so searches
                need no disk access, and verifies them against the hashes from `save`. An engine's
                file is always read and verified, with the vectors that it was built from.

        Raises:
            ValueError: if files are missing, damaged or of another version, or if the embedder is
                another model.
        """
        directory = os.path.abspath(os.path.expanduser(os.fspath(directory)))
        if not os.path.isdir(directory):
            raise ValueError(f"There is no folder '{directory}'; pass one that `save` wrote.")
        settle(directory)
        path = os.path.join(directory, MANIFEST)
        if not os.path.exists(path):
            raise ValueError(f"'{directory}' is not a search index: it has no {MANIFEST}.")
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
        if empty:  # Indexes of earlier versions lack this file.
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
                    f"'{path}' was written by a version without hashes and is not loaded: the "
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
            hashed = hashed and name != "probe.npy"  # Compared with the model's output instead.
            check_file(os.path.join(directory, name), described, hashed, AGAIN)

    def _probe(self):
        """Return the embeddings of the probe texts: float32 (4, D')."""
        return unit_vectors(self._embed(_PROBES, ""))

    def _check_sample(self):
        """Raise if the embedder was trained since it embedded the first texts."""
        if self._sample is None or self.embedder is None:
            return
        role, texts, before = self._sample
        a, b = self._embed(texts, role), before
        sizes = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        worst = float(np.divide((a * b).sum(axis=1), sizes, where=sizes > 0, out=sizes + 1).min())
        if worst < 0.98:  # As in `_check_model`.
            raise ValueError(
                "The embedder has changed since it embedded the texts of the index: its embeddings "
                f"of the same text have a cosine of {worst:.2f}. Make a new index after training."
            )

    def _check_model(self, expected, manifest):
        """Raise if the embedder is not the model that the index was made with."""
        mine = self._probe()
        # A model's embeddings may share a large common part; compare without it.
        a, b = (x - x.mean(axis=0) for x in (mine, expected))
        like = float((a * b).sum() / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-12))
        if not like >= 0.98:  # bfloat16 gives 0.999, int8 0.99; a damaged file gives NaN.
            raise ValueError(
                "The embedder is not the model that the index was made with "
                f"('{manifest['embedder']}'): their embeddings of the same texts have a cosine of "
                f"{like:.2f}. Pass that model, or make a new index."
            )
        self._sample = "", list(_PROBES), mine


def _listed(values, name, of=""):
    """Return values as a list, or raise a `ValueError` for strings, dicts and scalars."""
    if isinstance(values, (str, bytes, dict)) or not hasattr(values, "__iter__"):
        raise ValueError(f"{name} must be a list{of}, got {values!r:.50}.")
    return list(values)


def _strings(texts, name):
    """Return a list of strings, or raise a `ValueError` if any is not."""
    texts = _listed(texts, name, " of strings")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{name}[{i}] must be a string, got {text!r:.50}.")
    return [str(text) for text in texts]


def _check_manifest(manifest, path):
    version = manifest.get("format")
    if version != FORMAT:
        raise ValueError(
            f"'{path}' has format {version!r}, but this version reads {FORMAT}; update kerasbert, "
            "or make the index again."
        )
    for name in ("rows", "count", "width", "embedder_width"):
        if not is_whole(manifest.get(name)) or manifest[name] < 0:
            raise ValueError(
                f"{name}={manifest.get(name)!r} in '{path}' must be a whole number from 0; copy "
                "the whole index again."
            )
    check_value("empty", manifest.get("empty", 0), "whole", path)
    missing = [name for name in (*_SETTINGS, "string_ids", "probe") if name not in manifest]
    if missing or manifest["count"] > manifest["rows"]:
        what = f"has no {', '.join(missing)}" if missing else "counts more texts than rows"
        raise ValueError(f"'{path}' {what}; copy the whole index again.")
    width = manifest["dims"] or manifest["embedder_width"]
    if (manifest["rows"] and not manifest["width"]) or manifest["width"] not in (0, width):
        raise ValueError(
            f"width={manifest['width']} in '{path}' contradicts dims={manifest['dims']} and "
            f"embedder_width={manifest['embedder_width']}; copy the whole index again."
        )
    if not isinstance(manifest["engine_options"], dict):
        raise ValueError(
            f"engine_options={manifest['engine_options']!r} in '{path}' must be an object; copy "
            "the whole index again."
        )
    files = manifest.get("files", {})
    check_value("files", files, "object", path)
    for name, described in files.items():
        check_name(name, path)
        check_value(name, described, "object", path)
        check_value(f"bytes of {name}", described.get("bytes"), "whole", path)
        check_value(f"sha256 of {name}", described.get("sha256"), "name", path)


def _read_rows(directory, name, count, rows):
    """Read `count` row numbers from a file and return them as a bool mask (rows,)."""
    path = os.path.join(directory, name)
    found = read_array(path, (count,), "int64")
    if count and not (0 <= found.min() and found.max() < rows):
        raise ValueError(f"'{path}' has row numbers outside the index; copy the whole index again.")
    mask = np.zeros(rows, bool)
    mask[found] = True
    return mask
