"""`SearchIndex`: semantic search over a collection of texts.

N: number of texts, Q: number of queries, D': width of the embedder's output, D: width in the index.
"""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.base.errors import did_you_mean
from kerasbert.base.files import new_folder, output_folder, write_json
from kerasbert.heads.text_embedder.model import BertTextEmbedder
from kerasbert.search import index_files
from kerasbert.search.arguments import best_of_groups, check_alpha, check_search, page
from kerasbert.search.collection import TextCollection
from kerasbert.search.columns import BLOCK, read_array
from kerasbert.search.embedding import PROBES, check_models, check_same_model
from kerasbert.search.exports import export_records
from kerasbert.search.filters import check_where
from kerasbert.search.keywords import Keywords, best, fused
from kerasbert.search.passages import PassageSplitter
from kerasbert.search.rows import Rows
from kerasbert.search.second_stage import add_answers, rerank
from kerasbert.search.values import strings
from kerasbert.text.empty import are_empty

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath, Corpus, Dtype, Texts
    from kerasbert.heads.question_answering.model import BertQuestionAnswering

_EMBEDDER = "embedder"


class SearchIndex(TextCollection):
    """Semantic search over texts: `search` returns a query's nearest neighbors.

    Scores are cosines, unless `similarity`, `reranker` or `keywords` change them. By default the
    search is exact: it compares queries with all vectors, and equal scores keep the order of
    adding. Texts without a token known to the embedder are never found, and such queries have no
    hits.

    `len(index)` is the number of texts, iteration yields their ids, and `id in index` looks one up.

    Threads may search while another one changes the index; each search sees it before or after the
    change. An engine serves one thread at a time.

    Args:
        embedder: a `BertTextEmbedder` with a preprocessor, or any object whose `embed(texts,
            batch_size=...)` returns floats (N, D'). If `None`, pass vectors to `add` and
            `search_vectors`.
        texts: list of N strings to start with.
        ids: list of N distinct strings, or of whole numbers; defaults to 0, 1, 2, ...
        reranker: any object whose `rank(query, texts)` returns dicts with `corpus_id`, the position
            in `texts`, and `score`. It reorders the best hits.
        reader: a `BertQuestionAnswering`, which extracts the answer from each hit.
        dtype: storage of vectors: "float32"; "float16" (half the memory); "int8" (a quarter, with
            one scale per vector); or "binary". "binary" compares one bit per dimension, and
            rescores the best `rescore * top_k` texts with int8 vectors, which may stay on disk.
        dims: int. Keep only the first dimensions, for models trained with Matryoshka representation
            learning (Kusupati et al. 2022, arXiv 2205.13147).
        rescore: int. With "binary" or an engine, `rescore * top_k` candidates are rescored. With 0,
            "binary" keeps no int8 vectors: 1/32 of the memory of "float32", but worse hits.
        engine: "exact", or "faiss" or "usearch" for approximate search with these packages (extras
            of the same names), which build a graph at the first search.
        engine_options: dict. For faiss, `factory` and `search`; for usearch, arguments of its
            `Index`; see `kerasbert.search.engines`.
        similarity: "cosine", or "dot" for meaningful vector lengths.
        query_prompt, text_prompt: strings. Prefixes of queries and texts, such as "query: " and
            "passage: ", for models trained with them. `None` uses the `prompts` of the embedder's
            preprocessor.
        batch_size: int.
        metadata: list of N dicts, one per text, as in `add`.
        keywords: whether `search` is hybrid: nearest neighbors fused with a BM25 ranking. Keywords
            are words, and character bigrams in Korean, Japanese and Chinese, counted in memory at
            the first search after a change.
        splitter: a `kerasbert.search.PassageSplitter` for `add_documents`; defaults to
            `PassageSplitter()`.

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
        metadata: Sequence[Mapping[str, Any]] | None = None,
        keywords: bool = False,
        splitter: PassageSplitter | None = None,
    ) -> None:
        check_models(embedder, reranker, reader)
        super().__init__(
            embedder,
            dtype=dtype,
            dims=dims,
            rescore=rescore,
            engine=engine,
            engine_options=engine_options,
            similarity=similarity,
            query_prompt=query_prompt,
            text_prompt=text_prompt,
            batch_size=batch_size,
            splitter=splitter,
        )
        self.reranker, self.reader = reranker, reader
        if not isinstance(keywords, bool):
            raise ValueError(f"keywords={keywords!r:.50} must be True or False.")
        self.keywords, self._keywords = keywords, Keywords()
        if texts is not None:
            self.add(texts, ids, metadata=metadata)

    @classmethod
    def from_documents(
        cls,
        embedder: Any,
        files: Corpus | None = None,
        texts: Sequence[str | Mapping[str, Any]] | None = None,
        *,
        text: str = "text",
        encoding: str | None = None,
        **settings: Any,
    ) -> Self:
        """Make an index of documents, split into passages of whole sentences.

        `search(..., group_by="document")` returns the best passage of each document.

        Args:
            embedder: as in the constructor.
            files, texts, text, encoding: as in `add_documents`.
            **settings: other arguments of the constructor, such as `splitter` and `keywords`.

        Raises:
            ValueError: as from `add_documents` and the constructor.

        >>> class Letters:
        ...     def embed(self, texts, batch_size=32):
        ...         return np.array([[text.count(x) for x in "io"] for text in texts], "float32")
        >>> splitter = PassageSplitter(max_tokens=8, overlap=0)
        >>> documents = ["It rains. It pours. It is wet.", "So cold."]
        >>> index = SearchIndex.from_documents(Letters(), texts=documents, splitter=splitter)
        >>> index.texts
        ['It rains. It pours.', 'It is wet.', 'So cold.']
        >>> [hit["id"] for hit in index.search("in it", group_by="document")]
        ['0#1', '1#0']
        """
        for name in ("ids", "metadata"):
            if name in settings:
                raise ValueError(
                    f"from_documents takes no {name}; give documents an id and other keys in dicts "
                    "of texts=[...]."
                )
        index = cls(embedder, **settings)
        index.add_documents(files, texts, text=text, encoding=encoding)
        return index

    # === Search ===

    def search(
        self,
        queries: Texts,
        top_k: int = 10,
        candidates: int | None = None,
        offset: int = 0,
        min_score: float | None = None,
        exclude: Any = None,
        where: Mapping[str, Any] | None = None,
        alpha: float | None = None,
        group_by: str | None = None,
        **answer_settings: Any,
    ) -> list[Any]:
        """Find the texts nearest to each query.

        Args:
            queries: a string or a list of Q strings.
            top_k: maximum number of hits.
            candidates: number of texts for the reranker, and of each ranking of a hybrid search;
                defaults to five times `offset + top_k`, but at least 50. Pass the same number for
                all pages.
            offset: number of hits to skip.
            min_score: number. Hits with a lower `score` are left out.
            exclude: list or set of ids, or one id, that are not returned. Unknown ids are ignored.
            where: dict. Condition on the metadata, such as `{"lang": "ko", "year": {"$gte":
                2020}}`, with the operators `$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`, `$in`,
                `$nin`, `$contains` (a value in a list), `$and` and `$or`; see
                `kerasbert.search.filters.check_where`. It is applied before ranking. `None` and
                `{}` allow all texts.
            alpha: number from 0 (keywords only) to 1 (vectors only), with `keywords=True`. Weight
                of the cosines in a mean of both scores, each scaled from 0 to 1; 0 and 1 return the
                BM25 score or the cosine. `None` fuses by reciprocal ranks: each ranking adds 1 /
                (60 + r) to the score of its text at rank r.
            group_by: a key of the metadata, such as "document" after `from_documents`. Only the
                best hit per value is returned; texts without the key are not grouped. A reranker or
                keywords group only the `candidates`.
            **answer_settings: arguments of the reader's `answer`, such as `null_threshold`.

        Returns:
            For each query, a list of dicts, the best hit first; for a string, a single list:

            - `id`, `text`, and `metadata` if the index has any,
            - `score`: the cosine; or the reranker's score, with the cosine as `vector_score`; or
              the fused score, with the cosine as `vector_score` and the BM25 score as
              `keyword_score`,
            - `answer`: only with a reader. Its best answer, a dict of `answer`, `start` and `end`
              in the text, `score` and `null_score`.

        >>> index = SearchIndex(None)
        >>> index.add(["one", "two", "half"], vectors=[[1, 0], [0, 1], [1, 1]])
        >>> [hit["text"] for hit in index.search_vectors([1, 0.1], top_k=1, offset=1)]
        ['half']
        >>> [hit["text"] for hit in index.search_vectors([1, 0.1], min_score=0.5, exclude=0)]
        ['half']
        >>> index.update([0, 1, 2], metadata=[{"year": 2019}, {"year": 2021}, {"year": 2023}])
        >>> index.search_vectors([1, 0.1], top_k=1, where={"year": {"$gte": 2020}})[0]["text"]
        'half'
        """
        single = isinstance(queries, str)
        queries = strings([queries] if single else queries, "queries")
        check_search(top_k, offset, min_score, candidates, group_by)
        check_alpha(alpha, self.keywords)
        if answer_settings and self.reader is None:
            name = next(iter(answer_settings))
            known = list(inspect.signature(self.search).parameters)[1:-1]
            others = f"; use {', '.join(known)}, and with a reader settings of its `answer`."
            raise ValueError(
                f"search() has no argument '{name}'" + did_you_mean(name, known, others)
            )
        count = int(top_k) + int(offset)
        pool, is_hybrid = count, self.keywords and alpha != 1
        if self.reranker is not None or is_hybrid:
            pool = max(count, candidates or max(5 * count, 50))
        allowed = self._allowed(exclude, where)
        results = [[] for _ in queries]
        asked = np.flatnonzero(~are_empty(self.embedder, queries)).tolist() if queries else []
        if asked and len(self):
            chosen = [queries[place] for place in asked]
            vectors = None
            if not is_hybrid or alpha != 0:
                vectors = self._compared(self.query_vectors(chosen))
            if is_hybrid:
                found = self._hybrid_hits(chosen, vectors, pool, allowed, alpha)
            else:
                alone = group_by if self.reranker is None else None
                found = self._hits(vectors, pool, allowed, alone)
            for place, hits in zip(asked, found):
                results[place] = hits
        if self.reranker is not None:
            results = [rerank(self.reranker, *pair) for pair in zip(queries, results)]
        results = [best_of_groups(hits, group_by) for hits in results]
        results = [page(hits, offset, count, min_score) for hits in results]
        if self.reader is not None:
            settings = {"batch_size": self.batch_size, **answer_settings}
            add_answers(self.reader, queries, results, settings)
        return results[0] if single else results

    def search_vectors(
        self,
        vectors: Any,
        top_k: int = 10,
        offset: int = 0,
        min_score: float | None = None,
        exclude: Any = None,
        where: Mapping[str, Any] | None = None,
        group_by: str | None = None,
    ) -> list[Any]:
        """Search like `search`, for embeddings (Q, D') or (D',), without reranker and reader."""
        check_search(top_k, offset, min_score, group_by=group_by)
        single = np.ndim(vectors) == 1
        vectors = self._compared(self._checked([vectors] if single else vectors))
        count = int(top_k) + int(offset)
        results = self._hits(vectors, count, self._allowed(exclude, where), group_by)
        results = [page(hits, offset, count, min_score) for hits in results]
        return results[0] if single else results

    def _allowed(self, exclude, where):
        """Return which rows a search may return, bool (N,)."""
        where = check_where(where)
        allowed = self._rows.findable()  # A copy, because other threads may add rows.
        if exclude is not None:
            self._rows.without(exclude, allowed)
        return self._rows.matching(where, allowed)

    def _hits(self, vectors, count, allowed, group_by=None):
        if group_by is not None:
            most, size = int(allowed.sum()), count
            while True:
                found = self._hits(vectors, size, allowed)
                found = [best_of_groups(hits, group_by) for hits in found]
                if size >= most or min(map(len, found), default=count) >= count:
                    return found
                size *= 4
        exact = self.engine == "exact"
        rows, scores = self._neighbors.nearest(vectors, count, allowed, self.rescore, exact)
        results = []
        for some, values in zip(rows, scores):
            some = some[some >= 0]
            pairs = zip(self._rows.records(some), values.tolist())
            results.append([{"id": one["id"], "score": x, **one} for one, x in pairs])
        return results

    def _hybrid_hits(self, queries, vectors, count, allowed, alpha):
        self._keywords.read(self._rows.texts, len(allowed))
        alive, exact = self._rows.findable()[: len(allowed)], self.engine == "exact"
        near = [np.empty(0, "int64")] * len(queries)
        if vectors is not None:
            near, _ = self._neighbors.nearest(vectors, count, allowed, self.rescore, exact)
        results = []
        for place, query in enumerate(queries):
            words = self._keywords.scores(query, alive)
            lists = near[place][near[place] >= 0], best(words, count, allowed)
            rows = np.union1d(*lists)
            parts = {"keyword_score": words[rows]}
            if vectors is None:
                order = np.lexsort((rows, -words[rows]))
                scores = words[rows[order]]
            else:
                found = self._neighbors.vectors.scores(vectors[[place]], rows[None])[0]
                parts = {"vector_score": found, **parts}
                order, scores = fused(rows, parts.values(), lists, alpha)
            columns = {name: part[order].tolist() for name, part in parts.items()}
            records = self._rows.records(rows[order])
            results.append(
                [
                    {"id": one["id"], "score": score, **one, **dict(zip(columns, values))}
                    for one, score, *values in zip(records, scores.tolist(), *columns.values())
                ]
            )
        return results

    # === Files ===

    def save(self, directory: AnyPath, overwrite: bool = False, models: bool = True) -> None:
        """Write the index to a folder, atomically.

        Args:
            directory: string.
            overwrite: whether to replace an index; folders with other files are never replaced.
            models: whether to write the embedder, as a preset in `embedder`. Reranker and reader
                are passed to `load`.

        Raises:
            ValueError: if the folder has other files, or an index and `overwrite=False`, or if the
                embedder was trained meanwhile.
            OSError: if the folder cannot be written, or the disk is full.
        """
        target = output_folder(directory, "directory")
        index_files.check_target(target, overwrite)
        with self._changing, self._neighbors.lock:
            self._check_sample()
            self._save(target, models)

    def _save(self, target, models):
        with new_folder(target, by="save") as folder:
            has_probe = bool(len(self)) and self.embedder is not None
            probe = self._probe() if has_probe else None
            written = index_files.write_files(folder, self._rows, self._neighbors, probe)
            if models and hasattr(self.embedder, "save_to_preset"):
                self.embedder.save_to_preset(os.path.join(folder, _EMBEDDER))
            manifest = {
                **written,
                "embedder_width": self._given_width or 0,
                "embedder": getattr(self.embedder, "name", None) or type(self.embedder).__name__,
                "keywords": self.keywords,
                "splitter": self.splitter.get_config(),
                **{name: getattr(self, name) for name in index_files.SETTINGS},
            }
            write_json(os.path.join(folder, index_files.MANIFEST), manifest)

    def write_rows(self, folder: AnyPath) -> None:
        """Write the columns of all searchable texts, one file each."""
        with self._changing:
            self._check_sample()
            columns = self._rows.columns() | self._neighbors.columns()
            index_files.write_columns(folder, columns, self._rows.findable())

    def export(
        self, format: str, directory: AnyPath, *, name: str = "passages", rows: int = 1_000
    ) -> dict[str, Any]:
        """Write the searchable texts as files for a vector database.

        Args:
            format: "qdrant", "elasticsearch", "opensearch", "vespa" or "pgvector".
            directory, name, rows: as for `kerasbert.search.export_records`. Quantized vectors keep
                their precision.

        Returns:
            A dict of `count`, `files` and `load` (how to load them).
        """
        found = np.flatnonzero(self._rows.findable())
        settings = {"name": name, "rows": rows, "similarity": self.similarity}
        return export_records(self._batches(found), format, directory, **settings)

    def _batches(self, rows):
        for some in np.split(rows, range(BLOCK, len(rows), BLOCK)):
            if len(some):
                columns = self._rows.ids_of(some), self._rows.texts.take(some)
                vectors = self._neighbors.vectors.take(some)
                yield (*columns, vectors, self._rows.metadata_of(some))

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
            mmap: whether to memory-map vectors and texts. `False` reads them into memory and
                verifies their hashes. An engine's file is always read, and verified together with
                its vectors.

        Raises:
            ValueError: if files are missing, damaged or of another version, or the embedder is
                another model.
        """
        directory = os.path.abspath(os.path.expanduser(os.fspath(directory)))
        manifest = index_files.read_manifest(directory)
        preset = os.path.join(directory, _EMBEDDER)
        if embedder is None and os.path.isdir(preset):
            embedder = BertTextEmbedder.from_preset(preset)
        settings = {name: manifest[name] for name in index_files.SETTINGS}
        settings["keywords"] = manifest.get("keywords", False)
        # Earlier indexes have no splitter.
        settings["splitter"] = PassageSplitter.from_config(manifest.get("splitter", {}))
        index = cls(embedder, None, None, reranker, reader, **settings)
        index._read(directory, manifest, mmap)
        return index

    def _read(self, directory, manifest, mmap):
        read_engine = index_files.check_files(directory, manifest, mmap)
        self._rows = Rows.read(directory, manifest, mmap)
        self._given_width = manifest["embedder_width"] or None
        sizes = manifest["rows"], manifest["width"]
        self._neighbors.read(directory, *sizes, mmap, read_engine)
        if manifest["probe"] and self.embedder is not None:
            shape = (len(PROBES), self._given_width)
            expected = read_array(os.path.join(directory, "probe.npy"), shape, "float32")
            mine = self._probe()
            check_same_model(mine, expected, manifest["embedder"])
            self._sample = "", list(PROBES), mine
