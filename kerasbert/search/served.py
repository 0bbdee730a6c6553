"""Serving of `SearchIndex`: retrieve texts for a query, rerank them and extract answers.

Embeddings, texts and ids are variables; as constants they could exceed the graph's size limit.
TensorFlow has no search engines, so each query is compared with all embeddings.

N texts, T distinct ones, D embedding width, Q queries, C candidates, K hits, P pairs of a query
and a text.
"""

import copy
import dataclasses
import functools
import itertools
import os

import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base.files import inside, read_json, write_json
from kerasbert.heads.base.served import (
    SHORT,
    Signature,
    load,
    quantization_modes,
    saved_class,
    served,
    spec,
)
from kerasbert.heads.multi_task.served import ServedTasks
from kerasbert.kinds import KINDS, SEARCH_INDEX
from kerasbert.text.empty import BLANK, say_nothing

_PARTS = {
    "embedder": "text_embedder",
    "reranker": "reranker",
    "reader": "question_answering",
}
# Settings of an index that are saved with its rows and models.
_SETTINGS = ("dtype", "dims", "similarity", "rescore", "query_prompt")
# Number of extra candidates to rescore, because the last digits of matrix products depend on a
# vector's position.
_SPARE = 8
_BYTES = 1 << 25  # Approximate memory for the products of a block of vectors with all queries.
# White space that `str.strip` removes.
_BLANK = r"[\t-\r\x1c-\x20\x{85}\p{Z}]*"
_NO_ANSWER = {"answer": "", "start": -1, "end": -1, "score": 0.0, "null_score": 0.0}


@dataclasses.dataclass
class SavedIndex:
    """An index in the process that writes the SavedModel: its models, settings and rows.

    `rows` is a dict of arrays (N, ...), except "texts", a list of T byte strings. "text_of" (N,) is
    the position of each row's text in this list.
    """

    embedder: object
    reranker: object
    reader: object
    settings: dict
    rows: dict

    kind = SEARCH_INDEX.name


def _rows_in(folder):
    """Read `SavedIndex.rows` from the files of `SearchIndex.write_rows`."""
    rows = {}
    for name in sorted(os.listdir(folder)):
        stem, _, suffix = name.partition(".")
        if suffix == "npy":
            rows[stem] = np.load(os.path.join(folder, name), mmap_mode="r")
        elif suffix == "bin":
            rows[stem] = _strings_in(os.path.join(folder, name))
    places = {}
    numbers = [places.setdefault(text, len(places)) for text in rows["texts"]]
    return {**rows, "texts": list(places), "text_of": np.array(numbers, "int32")}


def _strings_in(path):
    data, ends = np.memmap(path, "uint8", "r"), np.load(f"{path}.ends.npy").tolist()
    parts = (data[start:end].tobytes() for start, end in itertools.pairwise([0, *ends]))
    # Servers that answer in JSON reject lone surrogates.
    return [part.decode("utf-8", "surrogatepass").encode("utf-8", "replace") for part in parts]


class ServedIndex(ServedTasks):
    """Signatures of `SearchIndex`."""

    columns = ("query",)
    first = "embedder"
    _own = {"top_k": 10, "candidates": None}

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
            rows=_rows_in(os.path.join(folder, "rows")),
        )

    def anew(self, folder, name, mode):
        index = copy.copy(self.model)
        parts = read_json(os.path.join(folder, "index.json"))["parts"]
        for part, model in _models_in(folder, parts).items():
            setattr(index, part, model)
        return type(self)(index, settings=self.settings)

    # === Variables ===

    @functools.cached_property
    def variables(self):
        """The rows, by name."""
        # Created outside the traced graph, where the values would become constants first.
        with tf.init_scope():
            return {
                name: tf.Variable(_as_tensor(rows), trainable=False, name=name)
                for name, rows in self.model.rows.items()
            }

    def _rows_of(self, name, rows):
        """Return rows of a variable.

        The variable is read explicitly: once `tf.gather` has read a variable itself, every other
        read copies all of it, which took a second for a million vectors.
        """
        return tf.gather(self.variables[name].read_value(), rows)

    def more_bytes(self):
        size = 0
        for rows in self.model.rows.values():
            if isinstance(rows, list):
                # A string is stored after its length, at seven bits per byte.
                lengths = np.array([len(row) for row in rows], "int64")
                size += int(lengths.sum() + sum((lengths >= 1 << 7 * i).sum() for i in range(5)))
                size += int((lengths == 0).sum())
            else:
                size += rows.nbytes
        return size

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
            **{name: one for name, one in found.items() if name != "serving_default"},
        }

    def answer(self, query):
        return self._graph(query, tf.fill(tf.shape(query), self.settings["top_k"]))

    @functools.cached_property
    def _graph(self):
        """`_search`, traced once for both signatures."""
        specs = [spec("query"), spec("top_k", dtype="int32")]
        return tf.function(self._search, specs, autograph=False)

    def _search(self, query, top_k):
        """Find the hits of queries (Q,) in the graph, at most `top_k` (Q,) per query."""
        rows = len(self.model.rows["text_of"])
        top_k = tf.clip_by_value(top_k, 0, rows)
        top_k = tf.where(self._says_nothing(query), 0, top_k)
        vectors = self._vectors(query)
        if "reranker" in self.parts:
            found = self._reranked(query, vectors, top_k)
        else:
            found = self._nearest(vectors, top_k)
        there = tf.sequence_mask(top_k, _most(top_k))  # (Q, K)
        place = found.pop("row")[:, : tf.shape(there)[1]]
        found = {name: x[:, : tf.shape(there)[1]] for name, x in found.items()}
        texts = self._rows_of("text_of", place)  # (Q, K)
        found["id"] = self._rows_of("ids", place)
        found["text"] = self._rows_of("texts", texts)
        fills = {"text": "", "id": "" if found["id"].dtype == tf.string else -1}
        found = {
            name: tf.where(there, x, tf.constant(fills.get(name, 0), x.dtype))
            for name, x in found.items()
        }
        if "reader" in self.parts:
            found |= self._answers(query, texts, found["text"], there)
        return {**found, "count": top_k}

    def _says_nothing(self, query):
        """Return which queries (Q,) are empty and have no hits; see `say_nothing`."""
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

    @property
    def _width(self):
        """D."""
        return self.model.settings["dims"] or self.model.embedder.output.shape[-1]

    # === Nearest neighbors ===

    def _nearest(self, queries, counts):
        """Return `row` and `score` (Q, C), neighbors of queries (Q, D); -inf beyond `counts`."""
        rows = len(self.model.rows["text_of"])
        is_binary = "bits" in self.variables
        wanted = counts
        if is_binary:
            wanted = tf.minimum(counts * max(self.model.settings["rescore"], 1), rows)
        candidates = self._candidates(queries, _most(wanted) + (0 if is_binary else _SPARE))
        if is_binary:  # More candidates would give other results than the index.
            there = tf.sequence_mask(wanted, tf.shape(candidates)[1])
            candidates = tf.where(there, candidates, rows)
        # Sorted, so that the first row wins ties.
        candidates = tf.sort(candidates, axis=-1)
        scores = tf.reduce_sum(
            self._taken(tf.minimum(candidates, rows - 1)) * queries[:, None], axis=-1
        )
        scores = tf.where(candidates < rows, scores, -np.inf)
        scores, order = tf.math.top_k(scores, _most(counts))
        there = tf.sequence_mask(counts, _most(counts))
        found = tf.where(there, tf.gather(candidates, order, batch_dims=1), 0)
        return {"row": found, "score": tf.where(there, scores, -np.inf)}

    def _candidates(self, queries, count):
        """Return the rows (Q, C) with the largest products, best first, computed by blocks."""
        variables, rows = self.variables, len(self.model.rows["text_of"])
        compare = self._bit_scores if "bits" in variables else self._products
        if "bits" in variables:
            queries = _to_bits(queries)
        count = tf.minimum(count, rows)
        number = tf.shape(queries)[0]
        # The XOR of bits has an entry for each query, row and word.
        width = queries.shape[1] if "bits" in variables else 1
        block = tf.clip_by_value(_BYTES // (8 * width * tf.maximum(number, 1)), 256, 1 << 16)

        def step(start, best, found):
            scores = compare(queries, start, start + block)  # (Q, rows of the block)
            size = tf.shape(scores)[1]
            scores, place = tf.math.top_k(scores, tf.minimum(count, size))
            best = tf.concat([best, scores], axis=1)
            found = tf.concat([found, start + place], axis=1)
            best, order = tf.math.top_k(best, tf.minimum(count, tf.shape(best)[1]))
            return start + block, best, tf.gather(found, order, batch_dims=1)

        none = tf.zeros([number, 0]), tf.zeros([number, 0], tf.int32)
        shapes = [tf.TensorShape(shape) for shape in ((), (None, None), (None, None))]
        _, _, found = tf.while_loop(
            lambda start, *_: start < rows,
            step,
            (tf.constant(0), *none),
            shape_invariants=tuple(shapes),
            parallel_iterations=1,
        )
        return found

    def _products(self, queries, start, stop):
        vectors = tf.cast(self.variables["vectors"][start:stop], tf.float32)
        scores = tf.matmul(queries, vectors, transpose_b=True)
        if "scales" in self.variables:
            scores *= self.variables["scales"][start:stop]
        return scores

    def _bit_scores(self, queries, start, stop):
        differ = tf.bitwise.bitwise_xor(queries[:, None], self.variables["bits"][start:stop])
        counts = tf.cast(tf.raw_ops.PopulationCount(x=differ), tf.float32)
        return -tf.reduce_sum(counts, axis=-1)

    def _taken(self, rows):
        """Return the vectors (Q, C, D) of rows (Q, C), in the highest precision available."""
        if "vectors" not in self.variables:
            bits = self._rows_of("bits", rows)
            bits = tf.bitcast(bits, tf.uint8)[..., None]  # (Q, C, words, 8, 1)
            ones = tf.bitwise.bitwise_and(bits, tf.constant(_BITS, tf.uint8)) > 0
            width = self._width
            ones = tf.reshape(ones, [*tf.unstack(tf.shape(rows)), -1])[..., :width]
            return tf.where(ones, 1.0, -1.0) / np.float32(np.sqrt(width))
        vectors = tf.cast(self._rows_of("vectors", rows), tf.float32)
        if "scales" in self.variables:
            vectors *= self._rows_of("scales", rows)[..., None]
        return vectors

    # === Models that read the query with a text ===

    def _reranked(self, query, vectors, top_k):
        rows = len(self.model.rows["text_of"])
        candidates = self.settings["candidates"]
        counts = tf.maximum(top_k, candidates or tf.maximum(5 * top_k, 50))
        counts = tf.where(top_k > 0, tf.minimum(counts, rows), 0)
        found = self._nearest(vectors, counts)
        texts = self._rows_of("text_of", found["row"])
        part = self.parts["reranker"]

        def logits(query, text):
            return {"logits": part.rows_graph(part.pack(query, text))["logits"]}

        there = tf.sequence_mask(counts, _most(counts))
        logits = self._of_pairs(logits, query, texts, there, {"logits": -np.inf})["logits"]
        logits, order = tf.math.top_k(logits, _most(top_k))
        row, score = (tf.gather(found[x], order, batch_dims=1) for x in ("row", "score"))
        scores = part.decode({"logits": logits}, None)["score"]
        return {"row": row, "score": scores, "vector_score": score}

    def _answers(self, query, texts, strings, there):
        blank = [tf.strings.regex_full_match(x, _BLANK) for x in (query, strings)]
        there &= ~(blank[0][:, None] | blank[1])
        # The texts are the index's own, so a request cannot make them longer.
        answer = functools.partial(self.parts["reader"].answer, limited=False)
        found = self._of_pairs(answer, query, texts, there, _NO_ANSWER)
        return _named(found)

    def _of_pairs(self, function, query, texts, there, fills):
        """Apply a function to queries (Q,) with texts (Q, C), once per distinct pair.

        Args:
            function: maps two tensors of P strings to a dict of tensors (P,).
            there: bool (Q, C). Which pairs are needed.
            fills: dict. Values for the other pairs.
        """
        width = len(self.model.rows["texts"])
        pairs = tf.where(there)  # (P, 2)
        keys = pairs[:, 0] * width + tf.cast(tf.boolean_mask(texts, there), tf.int64)
        keys, place = tf.unique(keys)
        found = function(tf.gather(query, keys // width), self._rows_of("texts", keys % width))
        # Place 0 has the fill value; the pairs follow.
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
            *super().probes(),
        ]

    def expected(self, signature, inputs):
        if signature not in ("serving_default", "search"):
            return super().expected(signature, inputs)
        count = inputs.get("top_k", [self.settings["top_k"]])[0]
        empty = say_nothing(self.model.embedder, inputs["query"])
        asked = [query for query, is_empty in zip(inputs["query"], empty) if not is_empty]
        found, clear_there = self._hits(asked, count)
        most = len(found[0])  # All queries have the same number of hits.
        clear = np.full((len(empty), most), True)
        clear[~empty] = clear_there
        nothing = {name: 0 for name in found[0][0]}
        nothing |= {"text": "", "id": "" if isinstance(found[0][0]["id"], str) else -1}
        if "reader" in self.parts:
            nothing |= _named(_NO_ANSWER)
        found = iter(found)
        rows = [[nothing] * most if is_empty else next(found) for is_empty in empty]
        columns = {name: [[hit[name] for hit in hits] for hits in rows] for name in nothing}
        counts = [0 if is_empty else most for is_empty in empty]
        return {**columns, "count": counts, "clear": clear}

    def _hits(self, queries, count):
        """Return the index's own hits for queries, and which lead the next one by the margin."""
        index, own = copy.copy(self.model), self._own["candidates"]
        index.engine, index.reader, candidates = "exact", None, None
        is_binary, is_reranked = index.dtype == "binary", index.reranker is not None
        sure = np.full(len(queries), True)
        if is_binary or is_reranked:
            vectors = index.query_vectors(queries)
        if is_binary:  # A value near 0 may round to the other bit, which changes the candidates.
            sure &= np.abs(vectors).min(axis=1) > 0.01 * self.margin * np.abs(vectors).max()
        if is_reranked:
            candidates = max(count, own or max(5 * count, 50))
            for row, hits in enumerate(index.search_vectors(vectors, candidates + 1)):
                last = [hit["score"] for hit in hits[-2:]]
                sure[row] &= len(hits) <= candidates or last[0] - last[1] > self.margin
        # An extra hit shows by how much the last one leads, unless it would change the candidates.
        more = candidates != count if is_reranked else not is_binary
        rows = index.search(queries, count + more, candidates)
        scores = np.array([[hit["score"] for hit in hits] for hits in rows])
        ahead = scores[:, :-1] - scores[:, 1:] > self.margin
        is_all = scores.shape[1] < count + more or scores.shape[1] == index.findable()
        ahead = np.pad(ahead, [(0, 0), (1, 0)], constant_values=True)
        ahead = np.pad(ahead, [(0, 0), (0, 1)], constant_values=bool(is_all))
        clear = (ahead[:, :-1] & ahead[:, 1:] & sure[:, None])[:, :count]
        rows = [hits[:count] for hits in rows]
        if "reader" in self.parts:
            clear &= self._read(queries, rows)
        return rows, clear

    def _read(self, queries, rows):
        """Add the reader's answers to hits, and return which are clear: bool (Q, K)."""
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
            threshold = settings["null_threshold"]
            if threshold is not None:
                clear[row, place] &= abs(best["null_score"] - threshold) > self.margin
        return clear

    def warmup_inputs(self, item):
        return ("serving_default", {"query": [item]}) if isinstance(item, str) else None

    def wanted_item(self):
        return "a string"

    def example(self):
        return {"query": "What is there about this?"}


_TINY = np.finfo("float32").tiny
_BITS = [128, 64, 32, 16, 8, 4, 2, 1]


def _named(answer):
    """Rename an answer's score, because the hit has a score too."""
    return {"answer_score" if name == "score" else name: x for name, x in answer.items()}


def _most(counts):
    """Return the largest number, or 0 if there are none."""
    return tf.reduce_max(tf.concat([counts, [0]], 0))


def _to_bits(vectors):
    """Pack signs as `kerasbert.search.vectors.to_bits` does, in the graph: int64 (Q, words)."""
    words = -(-vectors.shape[1] // 64)
    ones = tf.pad(vectors > 0, [[0, 0], [0, words * 64 - vectors.shape[1]]])
    ones = tf.cast(tf.reshape(ones, [-1, words, 8, 8]), tf.int32)
    return tf.bitcast(tf.cast(tf.reduce_sum(ones * _BITS, axis=-1), tf.uint8), tf.int64)


def _as_tensor(rows):
    if isinstance(rows, list):
        return tf.constant(np.array(rows, object))
    # TensorFlow also counts the bits of signed words.
    return tf.constant(rows.view("int64") if rows.dtype == "uint64" else rows)


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
