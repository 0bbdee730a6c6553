"""Serving of `BertQuestionAnswering`: answers from a context of any length.

N questions, W windows per context, R windows of all contexts, T tokens per row, K answers.
"""

import inspect

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.heads.base import decoding, spans
from kerasbert.heads.base.program import Program
from kerasbert.heads.base.served import MOST_WINDOWS, SHORT, Served, long_text
from kerasbert.text.characters import code_points, substrings
from kerasbert.text.windows import context_windows

_READ = '''\
LENGTH = tokenizer.truncation["max_length"]
QUESTION, STRIDE = {question}, {stride}  # In tokens: longest question, window stride.


@answers("tuples of a question and a context", is_pair)
def answer(examples):
    """Return the best answer with its start, end and score, for each (question, context)."""
    return [best_span(*example) for example in examples]


def windows(question, context):
    """Encode the question with windows of the context that cover all of it."""
    tokenizer.no_truncation()
    row = tokenizer.encode(question, add_special_tokens=False)
    asked = sum(row.attention_mask)
    if asked > QUESTION:
        question, asked = question[: row.offsets[QUESTION - 1][1]], QUESTION
    room = LENGTH - asked - tokenizer.num_special_tokens_to_add(True)
    overlap = max(room - STRIDE, 0)
    tokenizer.enable_truncation(max_length=LENGTH, stride=overlap, strategy="only_second")
    row = tokenizer.encode(question, context)
    return [row, *row.overflowing]


{best_spans}

def best_span(question, context):
    rows = windows(question, context)
    outputs = run(packed(rows))
    # Mask of the context in each row; then, for each of its tokens, the row with most context.
    inside = np.array([[id == 1 for id in row.sequence_ids] for row in rows])
    lengths = inside.sum(axis=1)
    chosen = {{}}
    for window, length in enumerate(lengths.tolist()):
        for place in range(length):
            most = min(place, length - 1 - place) + 0.01 * length
            token = window * min(STRIDE, int(lengths[0])) + place
            if token not in chosen or most > chosen[token][0]:
                chosen[token] = most, window, int(inside[window].argmax()) + place
    if not chosen:
        return "", -1, -1, 0.0
    starts = np.zeros_like(inside)
    for _, window, place in chosen.values():
        starts[window, place] = True
    logits = outputs["start_logits"], outputs["end_logits"]
    settings = {n_best}, {max_answer_length}, {null_threshold}
    spans, scores, _ = best_spans(*logits, starts, inside, *settings)
    window, first, last = spans[0]
    if window < 0:
        return "", -1, -1, float(scores[0])
    start, end = rows[window].offsets[first][0], rows[window].offsets[last][1]
    return context[start:end], start, end, float(scores[0])
'''


class ServedReader(Served):
    """SavedModel signatures of `BertQuestionAnswering`."""

    columns = ("question", "context")
    # Arguments of `answer`, and the servers' `max_windows`.
    _of_answer = {"top_k": 1, "null_threshold": None, "max_answer_length": 30, "n_best": 20}
    settings = {**_of_answer, "max_windows": MOST_WINDOWS}

    @property
    def answer_settings(self):
        """The settings that are arguments of the model's `answer`."""
        return {name: self.settings[name] for name in self._of_answer}

    @property
    def null_threshold(self):
        """The `null_threshold` of the settings, or else the model's."""
        given = self.settings["null_threshold"]
        return self.model.null_threshold if given is None else given

    def program(self):
        own = self.preprocessor
        if own is None:
            return None
        # The code with which `answer` decodes.
        code = "\n\n".join(map(inspect.getsource, (spans.best_spans, spans.pairs)))
        threshold = self.null_threshold
        settings = {
            **self.settings,
            "null_threshold": None if threshold is None else f'float("{threshold}")',
            "question": own.max_query_length,
            "stride": own.stride,
        }
        body = _READ.format(best_spans=code, **settings)
        note = "Contexts may be of any length."
        return Program(body, '"A question?" "Its context."', "[tuple(sys.argv[1:])]", note)

    def page(self):
        return {
            "panel": "answer",
            "question": self.preprocessor.max_query_length,
            "stride": self.preprocessor.stride,
            "longest": self.settings["max_answer_length"],
            "n_best": self.settings["n_best"],
            "top_k": 3,
            # JSON has no infinity.
            "null_threshold": None if self.null_threshold == np.inf else self.null_threshold,
            "has_null": self.null_threshold is not None,
        }

    def pack(self, question, context):
        """Pack windows (N, W, T), of which the first `count` (N,) are not padding.

        Windows have an axis, because servers split batched outputs by rows.
        """
        preprocessor = self.preprocessor
        segments = preprocessor.tokenize((question, context))
        rows, *_ = preprocessor.cut(segments)  # (R,)
        rows = decoding.limit_windows(rows, tf.size(question), self.settings["max_windows"])
        features = self.features_in_graph(preprocessor.assemble(segments))  # (R, T)
        fills = {"token_ids": preprocessor.tokenizer.pad_token_id}
        packed = {}
        for name, x in features.items():
            x = tf.RaggedTensor.from_value_rowids(x, rows, tf.size(question), validate=False)
            packed[name] = x.to_tensor(fills.get(name, 0))
        return {**packed, "count": tf.cast(x.row_lengths(), tf.int32)}

    def answer(self, question, context, limited=True):
        """Compute answers; `limited=False` allows any number of windows."""
        preprocessor = self.preprocessor
        points = code_points(context)
        segments = decoding.with_long_rows(preprocessor.tokenize((question, context)))
        questions, contexts, starts, ends = segments
        rows, begins, lengths = preprocessor.cut(segments)  # (R,)
        most = self.settings["max_windows"] if limited else None
        rows = decoding.limit_windows(rows, tf.size(context), most)
        features = self.features_in_graph(preprocessor.assemble(segments))  # (R, T)
        length = tf.shape(features["token_ids"])[1]

        def both(part):
            outputs = self.graph(part)
            return tf.stack([outputs["start_logits"], outputs["end_logits"]], axis=-1)

        logits = decoding.in_windows(both, features, (length, 2))  # (R, T, 2)
        firsts = tf.gather(contexts.row_starts(), rows) + tf.cast(begins, tf.int64)
        *_, chosen = context_windows(firsts, lengths, tf.size(contexts.values))
        shift = tf.gather(preprocessor.begin_of_context(questions), rows)  # (R,)
        position = tf.range(length) - shift[:, None]  # (R, T)
        inside = (position >= 0) & (position < lengths[:, None])
        element = tf.cast(chosen.row_starts(), tf.int32)[:, None] + position
        flags = tf.concat([chosen.values, [False]], 0)
        counts = inside & tf.gather(flags, tf.where(inside, element, 0))
        splits = tf.searchsorted(rows, tf.range(tf.size(context) + 1))
        top_k = self.settings["top_k"]
        spans, scores, null_scores = decoding.best_spans(
            *(logits[:, :, 0], logits[:, :, 1], counts, inside, splits),
            n_best=self.settings["n_best"],
            max_length=self.settings["max_answer_length"],
            null_threshold=self.null_threshold,
            top_k=top_k,
        )
        window, first, last = tf.unstack(tf.reshape(spans, [-1, 3]), axis=1)  # (N * K,)
        found = window >= 0
        window = tf.where(found, window, 0)
        to_token = firsts - tf.cast(shift, tf.int64)
        first, last = (
            tf.where(found, tf.gather(to_token, window) + tf.cast(x, tf.int64), 0)
            for x in (first, last)
        )
        start, end = (
            tf.where(found, tf.gather(tf.concat([x.flat_values, [0]], 0), i), -1)
            for x, i in ((starts, first), (ends, last))
        )
        example = tf.repeat(tf.range(tf.size(context)), top_k)
        texts = substrings(points, example, tf.maximum(start, 0), tf.maximum(end, 0))
        shape = (-1,) if top_k == 1 else (-1, top_k)
        columns = {"answer": texts, "start": start, "end": end, "score": scores}
        columns = {name: tf.reshape(x, shape) for name, x in columns.items()}
        return {**columns, "null_score": null_scores}

    def probes(self):
        # The model raises an error for contexts without tokens.
        contexts = [
            *SHORT,
            long_text(self, self.preprocessor.stride),
            "Anna met Bob in Rome (Italy) in 1999, not in Paris: 東京ではない。",
        ]
        tokens = self.preprocessor.tokenizer.tokenize(contexts)
        contexts = [text for text, ids in zip(contexts, tokens) if ids]
        questions = ["Who met Bob?", "Где?", "", "日本語?"]
        questions = [questions[i % 4] for i in range(len(contexts))]
        inputs = {"question": questions, "context": contexts}
        return [("serving_default", inputs), ("preprocess", inputs)]

    def expected(self, signature, inputs):
        if signature == "preprocess":
            return self._packed(inputs)
        top_k = self.settings["top_k"]
        rows = self.model.answer(
            inputs["question"], inputs["context"], **{**self.answer_settings, "top_k": top_k + 1}
        )
        clear = []
        for row in rows:
            scores = np.array([answer["score"] for answer in row] + [0.0])
            clear.append((scores[:-1] - scores[1:])[:top_k].min() > self.margin)
        missing = {"answer": "", "start": None, "end": None, "score": 0.0}
        columns = {"null_score": [row[0]["null_score"] for row in rows], "clear": clear}
        for name, fill in missing.items():
            column = [[*(a[name] for a in row), *[fill] * top_k][:top_k] for row in rows]
            column = [[-1 if value is None else value for value in row] for row in column]
            columns[name] = [row[0] for row in column] if top_k == 1 else column
        return columns

    def _packed(self, inputs):
        """Return the expected result of `preprocess`."""
        x = inputs["question"], inputs["context"]
        rows = self.preprocessor.windows(x).examples
        count = np.bincount(rows, minlength=len(x[0]))
        place = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
        found = {"count": count.astype("int32")}
        features = self.preprocessor(x)
        for name in self.model.input:
            values = keras.ops.convert_to_numpy(features[name])  # (R, T)
            fill = self.preprocessor.tokenizer.pad_token_id if name == "token_ids" else 0
            found[name] = np.full((len(count), count.max(), values.shape[1]), fill, "int32")
            found[name][rows, place] = values
        return found

    def example(self):
        return {"question": "Who met Bob?", "context": "Anna met Bob in Rome."}
