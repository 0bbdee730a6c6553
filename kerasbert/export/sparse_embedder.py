"""What is served of `BertSparseEmbedder`: the words of a text that weigh most.

N texts, K words of a text, V tokens of the vocabulary.
"""

import numpy as np
from keras import ops

from kerasbert.backend.tensorflow import tf
from kerasbert.export.program import of_texts
from kerasbert.export.text_embedder import ServedInRoles

_WORDS = """\
found = []
for row in outputs["embedding"][:, : tokenizer.get_vocab_size()]:
    best = np.argsort(-row, kind="stable")[:{top_k}].tolist()
    found.append([(tokenizer.id_to_token(i), float(row[i])) for i in best if row[i] > 0])
return found
"""


class ServedSparseEmbedder(ServedInRoles):
    """`BertSparseEmbedder`."""

    settings = {"top_k": 256}

    def program(self):
        prompt = getattr(self.preprocessor, "prompt", "")
        return of_texts("The words that weigh most", _WORDS.format(**self.settings), prompt=prompt)

    def decode(self, outputs, features):
        """Ids and weights of the K heaviest words; -1 and 0 where there are fewer."""
        tokens = self.preprocessor.tokenizer.vocabulary_size()
        weights = outputs["embedding"][:, :tokens]  # (N, V)
        weights, ids = ops.top_k(weights, min(self.settings["top_k"], tokens))
        is_there = weights > 0
        return {
            "token_id": ops.where(is_there, ops.cast(ids, "int32"), -1),
            "weight": weights,
            "count": ops.sum(ops.cast(is_there, "int32"), axis=-1),
        }

    def answer_rows(self, features):
        found = super().answer_rows(features)
        # The last one is what -1 reads.
        names = tf.constant([*self.preprocessor.tokenizer.get_vocabulary(), ""])
        places = tf.where(found["token_id"] < 0, tf.size(names) - 1, found["token_id"])
        return {"token": tf.gather(names, places), **found}

    def expected(self, signature, inputs):
        found = super().expected(signature, inputs)
        if signature == "preprocess":
            return found
        names = np.array([*self.preprocessor.tokenizer.get_vocabulary(), ""], object)
        weights = found["weight"]
        # Words may change places, but not their weights, where two weigh nearly the same.
        gaps = weights[:, :-1] - weights[:, 1:]
        gaps = np.where(weights[:, :-1] > 0, gaps, np.inf).min(axis=1, initial=np.inf)
        last = np.where(weights[:, -1] > 0, 0.0, np.inf)  # What comes after it is not known.
        clear = np.minimum(gaps, last) > self.margin
        tokens = names[found["token_id"]].tolist()
        return {"token": tokens, **found, "clear": clear.tolist()}

    def check_transformers(self):
        raise ValueError(
            "transformers has no place for the weights of words, which are made of its logits; "
            "use layout='kerasbert', whose graph gives the weights."
        )
