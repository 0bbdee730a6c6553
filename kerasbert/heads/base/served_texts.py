"""`ServedTexts`, for tasks with one answer per text or pair.

N texts, T tokens per row, C classes.
"""

import functools

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.heads.base.by_length import by_length
from kerasbert.heads.base.served import LONG, SHORT, Served, Signature, are_texts, spec
from kerasbert.text.packing import TRUNCATE


def of_classes(task, labels, activation, pair=False):
    """Return `Served.page` of classifiers, with results as bars.

    Args:
        labels: list of C strings.
        activation: "softmax", "sigmoid", or "none" for other scores.
        pair: whether two texts are required.
    """
    own = {"output": task.output, "labels": labels, "activation": activation}
    truncate = TRUNCATE[task.preprocessor.truncate]
    return {"panel": "classify", **own, "pair": pair, "pairs": True, "truncate": truncate}


class ServedTexts(Served):
    """Base class of tasks with one answer per text or pair."""

    takes = ("serving_default", "pair")
    # Name, method and numeric output of the signature of `tf.train.Example`s, for classes with
    # `answer_examples(inputs)`, which computes it in the graph.
    of_examples = None

    def text_signatures(self):
        found = super().text_signatures()
        if "pair" in self.takes:
            found["pair"] = Signature(self.answer, {x: spec(x) for x in ("text", "text_b")})
        if self.of_examples:
            name, method, _ = self.of_examples
            specs = {"inputs": spec("inputs")}
            found[name] = Signature(lambda inputs: self.answer_examples(inputs), specs, method)
        return found

    def answer(self, **columns):
        return self.answer_rows(self.pack(**columns))

    def pack(self, text, text_b=None):
        """Convert strings (N,) to the network's inputs (N, T), in the graph."""
        columns = (text,) if text_b is None else (text, text_b)
        preprocessor = self.preprocessor
        return self.features_in_graph(preprocessor.pack(preprocessor.tokenize(columns)))

    def pack_examples(self, inputs):
        """Pack serialized `tf.train.Example`s with `text` and an optional `text_b`."""
        preprocessor = self.preprocessor
        texts = tf.io.FixedLenFeature([], tf.string), tf.io.RaggedFeature(tf.string)
        parsed = tf.io.parse_example(inputs, dict(zip(("text", "text_b"), texts)))
        second = parsed["text_b"]
        has_second = second.row_lengths() > 0  # (N,)
        second = second[:, :1].to_tensor("", shape=(None, 1))[:, 0]
        a, b = preprocessor.tokenize((parsed["text"], second))
        lengths = [preprocessor.packed_lengths(x) for x in ((a,), (a, b))]
        length = preprocessor.bucket(tf.reduce_max(tf.where(has_second, lengths[1], lengths[0])))
        one, two = (preprocessor.pack(x, length) for x in ((a,), (a, b)))
        shape = [-1] + [1] * (one["token_ids"].shape.rank - 1)
        has_second = tf.reshape(has_second, shape)
        rows = {name: tf.where(has_second, two[name], one[name]) for name in one}
        return self.features_in_graph(rows)

    @functools.cached_property
    def rows_graph(self):
        """`graph`, run on a few rows of similar length at a time.

        With an axis for tokens, all rows run at once.
        """
        outputs = self.graph.get_concrete_function().structured_outputs
        if len(outputs) > 1 or any(None in x.shape[1:] for x in outputs.values()):
            return self.graph
        (name,) = outputs
        rows = by_length(lambda features: self.graph(features)[name])
        specs = [self.token_specs()]
        return tf.function(lambda features: {name: rows(features)}, specs, autograph=False)

    def answer_rows(self, features):
        """Compute the answers for packed rows in the graph."""
        return self.decode(self.rows_graph(features), features)

    def decode(self, outputs, features):
        """Convert the outputs of `tokens` to answers, on any backend."""
        return outputs

    def probes(self):
        single = [("serving_default", {"text": texts}) for texts in (SHORT, LONG)]
        pairs = [
            ("serving_default" if "pair" not in self.takes else "pair", {"text": a, "text_b": b})
            for a, b in ((SHORT, SHORT[::-1]), (LONG, LONG[::-1]))
        ]
        packed = ("preprocess", dict(zip(self.columns, (SHORT, SHORT[::-1]))))
        found = [packed, *(single if len(self.columns) == 1 else []), *pairs]
        if self.of_examples:
            mixed = [(text,) if i % 2 else (text, SHORT[-i]) for i, text in enumerate(SHORT)]
            found.append((self.of_examples[0], {"inputs": mixed}))
        return found

    def read(self, signature, inputs):
        """Return the network's inputs for the inputs of a signature, on any backend."""
        return self.preprocessor(tuple(inputs.values()))

    def expected(self, signature, inputs):
        features = self.read(signature, inputs)
        features = {name: keras.ops.cast(features[name], "int32") for name in self.model.input}
        if signature == "preprocess":
            return {name: keras.ops.convert_to_numpy(x) for name, x in features.items()}
        outputs = self.decode(self.run(features), features)
        return {name: keras.ops.convert_to_numpy(x) for name, x in outputs.items()}

    def expected_of_examples(self, inputs):
        """Return the reference numbers (N, ...) of the signature `of_examples`."""
        rows = [
            ServedTexts.expected(self, "", {x: [text] for x, text in zip(("text", "text_b"), row)})
            for row in inputs["inputs"]
        ]
        return np.concatenate([row[self.of_examples[2]] for row in rows])

    def warmup_inputs(self, item):
        if "pair" in self.takes and are_texts(item) and len(item) == 2:
            return "pair", {"text": [item[0]], "text_b": [item[1]]}
        return super().warmup_inputs(item)

    def wanted_item(self):
        return "a string, or a tuple of two" if "pair" in self.takes else super().wanted_item()
