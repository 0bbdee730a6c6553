"""Serving of `SearchIndex`, with reranker and reader.

N texts, T distinct texts, D embedding width, Q queries, C candidates, K hits, P pairs of a query
and a text.
"""

import copy
import dataclasses
import functools
import itertools
import os

import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base.files import read_json, write_json
from kerasbert.base.paths import inside
from kerasbert.base.strict_json import to_json
from kerasbert.heads.base.served import SHORT, Signature, spec
from kerasbert.heads.base.served_models import load, quantization_modes, saved_class, served
from kerasbert.heads.multi_task.served import ServedTasks
from kerasbert.kinds import KINDS, SEARCH_INDEX
from kerasbert.search import served_filters
from kerasbert.search.arguments import check_alpha
from kerasbert.search.filters import where_inputs, wheres_of
from kerasbert.search.served_keywords import ServedKeywords
from kerasbert.search.served_rows import ServedRows, most, number_of, rows_in
from kerasbert.text.empty import BLANK, are_empty

_PARTS = {
    "embedder": "text_embedder",
    "reranker": "reranker",
    "reader": "question_answering",
}
# Saved arguments of the index.
_SETTINGS = ("dtype", "dims", "similarity", "rescore", "query_prompt", "keywords")
# White space that `str.strip` removes, for a regular expression.
_BLANK = r"[\t-\r\x1c-\x20\x{85}\p{Z}]*"
_TINY = np.finfo("float32").tiny
_NO_ANSWER = {"answer": "", "start": -1, "end": -1, "score": 0.0, "null_score": 0.0}


@dataclasses.dataclass
class SavedIndex:
    """The models, settings and rows of an index, to write a SavedModel.

    `rows` is a dict of arrays (N, ...), except for "texts", a list of T byte strings. "text_of"
    (N,) is the position of each row's text in this list.
    """

    embedder: object
    reranker: object
    reader: object
    settings: dict
    rows: dict

    kind = SEARCH_INDEX.name


class ServedIndex(ServedTasks):
    """SavedModel signatures of `SearchIndex`."""

    columns = ("query",)
    first = "embedder"
    _own = {"top_k": 10, "candidates": None, "alpha": None}

    def __init__(self, model, preprocessor=None, labels=None, settings=None):
        self.model, self.preprocessor = model, None
        _check(model, preprocessor)
        models = {name: getattr(model, name) for name in _PARTS}
        self.parts = {name: served(part) for name, part in models.items() if part is not None}
        self.settings = settings or {}

    @property
    def own_labels(self):
        return None

    @property
    def title(self):
        return "SearchIndex"

    @property
    def models(self):
        return [part.model for part in self.parts.values()]

    @property
    def settings(self):
        reader = self.parts.get("reader")
        found = {**reader.settings} if reader else {}
        return {**found, **self._own}

    @settings.setter
    def settings(self, settings):
        self._own = {name: settings.get(name, value) for name, value in self._own.items()}
        check_alpha(self._own["alpha"], self._has_keywords)
        if self._own["alpha"] == 0:
            raise ValueError(
                "alpha=0 searches by keywords alone, which an exported index does not support; use "
                "alpha=None or a number above 0."
            )
        if "reader" in self.parts:
            others = {name: x for name, x in settings.items() if name not in self._own}
            self.parts["reader"].settings = {**self.parts["reader"].settings, **others}

    def model_settings(self):
        return self.settings

    # === Between processes ===

    def save(self, folder):
        os.makedirs(os.path.join(folder, "rows"))
        self.model.write_rows(os.path.join(folder, "rows"))
        parts = {}
        for name, part in self.parts.items():
            part.model.save_to_preset(os.path.join(folder, name))
            modes = quantization_modes(part.model)
            parts[name] = [saved_class(part.model), next(iter(modes), None)]
        settings = {name: getattr(self.model, name) for name in _SETTINGS}
        write_json(os.path.join(folder, "index.json"), {"parts": parts, "settings": settings})

    @classmethod
    def read(cls, folder):
        """Return the `SavedIndex` that `save` wrote."""
        index = read_json(os.path.join(folder, "index.json"))
        return SavedIndex(
            **_models_in(folder, index["parts"]),
            settings=index["settings"],
            rows=rows_in(os.path.join(folder, "rows"), index["settings"]["keywords"]),
        )

    def reload(self, folder, name, mode):
        index = copy.copy(self.model)
        parts = read_json(os.path.join(folder, "index.json"))["parts"]
        for part, model in _models_in(folder, parts).items():
            setattr(index, part, model)
        return type(self)(index, settings=self.settings)

    @functools.cached_property
    def rows(self):
        """The rows of the index as variables."""
        settings, embedder = self.model.settings, self.model.embedder
        width = settings["dims"] or embedder.output.shape[-1]
        return ServedRows(self.model.rows, width, settings["rescore"])

    @property
    def _has_keywords(self):
        is_saved = isinstance(self.model, SavedIndex)
        return self.model.settings["keywords"] if is_saved else self.model.keywords

    @property
    def is_hybrid(self):
        return self._has_keywords and self._own["alpha"] != 1

    def more_bytes(self):
        return self.rows.more_bytes()

    # === Signatures ===

    def signatures(self, tokens_only=False):
        if tokens_only:
            raise ValueError(
                "A SearchIndex takes strings only; export its embedder with tokens_only=True."
            )
        found = super().signatures(tokens_only)
        query, top_k = spec("query"), spec("top_k", dtype="int32")
        return {
            "serving_default": Signature(self.answer, {"query": query}),
            "search": Signature(
                lambda query, top_k: self._graph(query, top_k), {"query": query, "top_k": top_k}
            ),
            **self._filtered(query, top_k),
            **{name: one for name, one in found.items() if name != "serving_default"},
        }

    def _filtered(self, query, top_k):
        """Return the signature with filters, if the index has metadata."""
        if not self._has_metadata:
            return {}
        inputs = {"query": query, "top_k": top_k, **served_filters.INPUTS}
        return {"search_where": Signature(lambda **x: self._where_graph(**x), inputs)}

    @property
    def _has_metadata(self):
        is_saved = isinstance(self.model, SavedIndex)
        return "metadata" in self.model.rows if is_saved else self.model.has_metadata

    def answer(self, query):
        return self._graph(query, tf.fill(tf.shape(query), self.settings["top_k"]))

    @functools.cached_property
    def _graph(self):
        """The traced function of `_search`, which both signatures share."""
        specs = [spec("query"), spec("top_k", dtype="int32")]
        return tf.function(self._search, specs, autograph=False)

    @functools.cached_property
    def _where_graph(self):
        """The traced function of `_search` with conditions."""

        def search(query, top_k, **conditions):
            rows = self.rows
            filters = served_filters.ServedFilters(rows.read, rows.sizes(), len(rows))
            return self._search(query, top_k, filters.allowed(**conditions))

        return tf.function(search, autograph=False)

    def _search(self, query, top_k, allowed=None):
        """Return the hits of queries (Q,), at most `top_k` (Q,) per query, in the graph.

        With `allowed`, bool (Q, N), only these rows are searched.
        """
        limit = len(self.rows) if allowed is None else number_of(allowed)
        top_k = tf.minimum(tf.maximum(top_k, 0), limit)
        top_k = tf.where(self._says_nothing(query), 0, top_k)
        vectors = self._vectors(query)
        found = self._ranked(query, vectors, top_k, limit, allowed)
        there = tf.sequence_mask(top_k, most(top_k))  # (Q, K)
        place = found.pop("row")[:, : tf.shape(there)[1]]
        found = {name: x[:, : tf.shape(there)[1]] for name, x in found.items()}
        texts = self.rows.take("text_of", place)  # (Q, K)
        found["id"] = self.rows.take("ids", place)
        found["text"] = self.rows.take("texts", texts)
        if self._has_metadata:
            found["metadata"] = self.rows.take("metadata", place)
        fills = {"text": "", "metadata": "", "id": "" if found["id"].dtype == tf.string else -1}
        found = {
            name: tf.where(there, x, tf.constant(fills.get(name, 0), x.dtype))
            for name, x in found.items()
        }
        if "reader" in self.parts:
            found |= self._answers(query, texts, found["text"], there)
        return {**found, "count": top_k}

    def _says_nothing(self, query):
        """Return which queries are empty: bool (Q,); see `are_empty`."""
        preprocessor = self.parts["embedder"].preprocessor
        (tokens,) = preprocessor.tokenize((query,))
        known = tf.cast(tokens.values != preprocessor.tokenizer.unk_token_id, tf.int32)
        known = tf.math.unsorted_segment_sum(known, tokens.value_rowids(), tokens.nrows())
        return tf.strings.regex_full_match(query, BLANK) | (known == 0)

    def _vectors(self, query):
        """Embed queries (Q,) for comparison: float32 (Q, D)."""
        part, settings = self.parts["embedder"], self.model.settings
        if settings["query_prompt"] is None:
            read = part.preprocessor.for_role("query")
            features = part.features_in_graph(read.pack(read.tokenize((query,))))
        else:
            features = part.pack(tf.strings.join([settings["query_prompt"], query]))
        vectors = part.rows_graph(features)["embedding"]
        vectors = vectors[:, : settings["dims"]]
        if settings["similarity"] == "dot":
            return vectors
        return vectors / tf.maximum(tf.norm(vectors, axis=-1, keepdims=True), _TINY)

    # === Models that read the query with a text ===

    def _ranked(self, query, vectors, top_k, limit, allowed):
        """Return the rows (Q, C) of queries and their scores, best first."""
        is_reranked, is_hybrid = bool(self.parts.get("reranker")), self.is_hybrid
        if not (is_reranked or is_hybrid):
            return self.rows.nearest(vectors, top_k, allowed)
        counts = tf.maximum(top_k, self.settings["candidates"] or tf.maximum(5 * top_k, 50))
        counts = tf.where(top_k > 0, tf.minimum(counts, limit), 0)
        if is_hybrid:
            keywords = ServedKeywords(self.rows, self.settings["alpha"])
            found = keywords.fused(query, vectors, counts, allowed)
            there = found.pop("there")
        else:
            found = self.rows.nearest(vectors, counts, allowed)
            there = tf.sequence_mask(counts, most(counts))
            found["vector_score"] = found["score"]
        return self._reranked(query, found, there, top_k) if is_reranked else found

    def _reranked(self, query, found, there, top_k):
        texts = self.rows.take("text_of", found["row"])
        part = self.parts["reranker"]

        def logits(query, text):
            return {"logits": part.rows_graph(part.pack(query, text))["logits"]}

        logits = self._of_pairs(logits, query, texts, there, {"logits": -np.inf})["logits"]
        logits, order = tf.math.top_k(logits, most(top_k))
        found = {name: tf.gather(x, order, batch_dims=1) for name, x in found.items()}
        return {**found, "score": part.decode({"logits": logits}, None)["score"]}

    def _answers(self, query, texts, strings, there):
        blank = [tf.strings.regex_full_match(x, _BLANK) for x in (query, strings)]
        there &= ~(blank[0][:, None] | blank[1])
        # Not limited, because the texts come from the index, not from the request.
        answer = functools.partial(self.parts["reader"].answer, limited=False)
        found = self._of_pairs(answer, query, texts, there, _NO_ANSWER)
        return _named(found)

    def _of_pairs(self, function, query, texts, there, fills):
        """Apply a function to distinct pairs of queries (Q,) and texts (Q, C).

        Args:
            function: maps two tensors of P strings, queries and texts, to a dict of tensors (P,).
            there: bool (Q, C). Which pairs to apply it to.
            fills: dict. For each result, the value of the other pairs.
        """
        width = len(self.model.rows["texts"])
        pairs = tf.where(there)  # (P, 2)
        keys = pairs[:, 0] * width + tf.cast(tf.boolean_mask(texts, there), tf.int64)
        keys, place = tf.unique(keys)
        found = function(tf.gather(query, keys // width), self.rows.take("texts", keys % width))
        # Place 0 has the fill value.
        place = tf.scatter_nd(pairs, place + 1, tf.shape(texts, tf.int64))
        return {
            name: tf.gather(tf.concat([tf.constant([fill], x.dtype), x], axis=0), place)
            for name, fill, x in ((name, fill, found[name]) for name, fill in fills.items())
        }

    # === Checks ===

    def probes(self):
        queries = [*SHORT, "Who? " * 40]
        return [
            ("serving_default", {"query": queries[:4]}),
            ("search", {"query": queries, "top_k": [3] * len(queries)}),
            *self._probes_of_filters(queries[:1]),
            *super().probes(),
        ]

    def _probes_of_filters(self, queries):
        """Return requests without and with filters by metadata."""
        if not self._has_metadata:
            return []
        some = self.model.get(list(itertools.islice(self.model, 100)))
        first = next((one["metadata"] for one in some if one["metadata"]), {})
        wheres = [{}]
        for key, value in list(first.items())[:8]:
            is_list = isinstance(value, list)
            wheres.append({key: {"$contains": value[0]} if is_list and value else {"$ne": ""}})
            if not is_list:
                order = "$eq" if isinstance(value, bool) else "$gte"
                wheres.append({key: {order: value}})
        return [
            ("search_where", {"query": queries, "top_k": [3], **where_inputs([where])})
            for where in wheres
        ]

    def expected(self, signature, inputs):
        if signature not in ("serving_default", "search", "search_where"):
            return super().expected(signature, inputs)
        conditions = {name: x for name, x in inputs.items() if name in served_filters.INPUTS}
        (where,) = wheres_of(conditions) if conditions else (None,)
        count = inputs.get("top_k", [self.settings["top_k"]])[0]
        empty = are_empty(self.model.embedder, inputs["query"])
        asked = [query for query, is_empty in zip(inputs["query"], empty) if not is_empty]
        found, clear_there = self._hits(asked, count, where)
        most = len(found[0])
        clear = np.full((len(empty), most), True)
        clear[~empty] = clear_there
        if not most:
            return {"count": [0] * len(empty)}
        nothing = {name: 0 for name in found[0][0]}
        nothing |= {"text": "", "id": "" if isinstance(found[0][0]["id"], str) else -1}
        nothing |= {"metadata": ""} if self._has_metadata else {}
        if "reader" in self.parts:
            nothing |= _named(_NO_ANSWER)
        found = iter(found)
        rows = [[nothing] * most if is_empty else next(found) for is_empty in empty]
        columns = {name: [[hit[name] for hit in hits] for hits in rows] for name in nothing}
        counts = [0 if is_empty else most for is_empty in empty]
        return {**columns, "count": counts, "clear": clear}

    def _hits(self, queries, count, where):
        """Return the index's own hits for queries, and which of them are clear.

        A hit is clear if the scores before and after it differ by more than the margin, so that
        rounding cannot change its rank.
        """
        index, own = copy.copy(self.model), self._own["candidates"]
        index.engine, index.reader, candidates = "exact", None, None
        is_binary, is_hybrid = index.dtype == "binary", self.is_hybrid
        has_pool = index.reranker is not None or is_hybrid
        sure = np.full(len(queries), True)
        if is_binary or has_pool:
            vectors = index.query_vectors(queries)
        # The bit of a value near 0 depends on rounding.
        if is_binary:
            sure &= np.abs(vectors).min(axis=1) > 0.01 * self.margin * np.abs(vectors).max()
        if has_pool:
            candidates = max(count, own or max(5 * count, 50))
            near = index.search_vectors(vectors, candidates + 1, where=where)
            for row, hits in enumerate(near):
                gaps = -np.diff([hit["score"] for hit in hits]) > self.margin
                # In a hybrid search, every candidate's rank counts.
                sure[row] &= gaps.all() if is_hybrid else gaps[candidates - 1 :].all()
        # One hit more, to compare the last with, unless a larger `top_k` changes the candidates.
        more = candidates != count if has_pool else not is_binary
        alpha = self._own["alpha"]
        rows = index.search(queries, count + more, candidates, where=where, alpha=alpha)
        scores = np.array([[hit["score"] for hit in hits] for hits in rows])
        ahead = scores[:, :-1] - scores[:, 1:] > self.margin
        if is_hybrid and index.reranker is None:
            # Reciprocal ranks are exact; scaling may multiply rounding errors.
            ahead = scores[:, :-1] - scores[:, 1:] > (-1 if alpha is None else 10 * self.margin)
        is_all = scores.shape[1] < count + more or scores.shape[1] == index.findable()
        ahead = np.pad(ahead, [(0, 0), (1, 0)], constant_values=True)
        ahead = np.pad(ahead, [(0, 0), (0, 1)], constant_values=bool(is_all))
        clear = (ahead[:, :-1] & ahead[:, 1:] & sure[:, None])[:, :count]
        rows = [hits[:count] for hits in rows]
        for hit in itertools.chain(*rows):
            if "metadata" in hit:
                hit["metadata"] = to_json(hit["metadata"])
        if "reader" in self.parts:
            clear &= self._read(queries, rows)
        return rows, clear

    def _read(self, queries, rows):
        """Add the reader's answers to hits, and return which are clear: bool (Q, K).

        An answer is clear if its score leads the second answer's by more than the margin.
        """
        reader = self.parts["reader"]
        settings, pairs = {**reader.answer_settings, "top_k": 2}, []
        clear = np.full((len(rows), len(rows[0])), True)
        for row, (query, hits) in enumerate(zip(queries, rows)):
            for place, hit in enumerate(hits):
                hit |= _named(_NO_ANSWER)
                if query.strip() and hit["text"].strip():
                    pairs.append((row, place, query, hit))
        if not pairs:
            return clear
        asked = [query for *_, query, _ in pairs], [hit["text"] for *_, hit in pairs]
        for (row, place, _, hit), found in zip(pairs, reader.model.answer(*asked, **settings)):
            best, second = found[0], found[1]["score"] if len(found) > 1 else 0
            hit |= _named({name: -1 if x is None else x for name, x in best.items()})
            clear[row, place] = best["score"] - second > self.margin
        return clear

    def warmup_inputs(self, item):
        return ("serving_default", {"query": [item]}) if isinstance(item, str) else None

    def wanted_item(self):
        return "a string"

    def example(self):
        return {"query": "What is there about this?"}


def _named(answer):
    """Rename an answer's `score` to `answer_score`, because hits have a `score`."""
    return {"answer_score" if name == "score" else name: x for name, x in answer.items()}


def _models_in(folder, parts):
    models = dict.fromkeys(_PARTS)
    for name, (kind, mode) in parts.items():
        path = inside(folder, name, os.path.join(folder, "index.json"))
        models[name], _ = load(path, kind, mode)
    return models


def _check(index, preprocessor):
    """Raise if an index or one of its models cannot run in a graph."""
    if preprocessor is not None:
        raise ValueError(
            "preprocessor=... is only for a BertBackbone; the models inside an index have their "
            "own."
        )
    for name, kind in _PARTS.items():
        model = getattr(index, name)
        if model is None and name != "embedder":
            continue
        if getattr(model, "kind", None) != kind:
            what = "None" if model is None else f"a {type(model).__name__}"
            raise ValueError(
                f"The index's {name} is {what}, which TensorFlow's graph does not support; "
                f"export_serving takes an index with a {KINDS[kind].model}."
            )
        if model.preprocessor is None:
            raise ValueError(
                f"The index's {name} has no preprocessor, so it cannot take raw strings; set "
                f"its `preprocessor` to a {KINDS[kind].model}Preprocessor."
            )
    if hasattr(index, "write_rows") and not index.findable():
        raise ValueError("The index has no texts to retrieve; add some before the export.")
