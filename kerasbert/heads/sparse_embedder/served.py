"""Serving of `BertSparseEmbedder`: the words with the largest weights.

N texts, K words per text, V tokens in the vocabulary.
"""

import numpy as np
from keras import ops

from kerasbert.backend.tensorflow import tf
from kerasbert.heads.base.program import of_texts
from kerasbert.heads.text_embedder.served import ServedInRoles

_WORDS = """\
found = []
for row in outputs["embedding"][:, : tokenizer.get_vocab_size()]:
    best = np.argsort(-row, kind="stable")[:{top_k}].tolist()
    found.append([(tokenizer.id_to_token(i), float(row[i])) for i in best if row[i] > 0])
return found
"""


class ServedSparseEmbedder(ServedInRoles):
    """SavedModel signatures of `BertSparseEmbedder`."""

    settings = {"top_k": 256}

    def program(self):
        prompt = getattr(self.preprocessor, "prompt", "")
        return of_texts("the heaviest words", _WORDS.format(**self.settings), prompt=prompt)

    def decode(self, outputs, features):
        """Return ids and weights of the K largest weights; -1 and 0 if missing."""
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
        # The id -1 maps to the last name, which is empty.
        names = tf.constant([*self.preprocessor.tokenizer.get_vocabulary(), ""])
        places = tf.where(found["token_id"] < 0, tf.size(names) - 1, found["token_id"])
        return {"token": tf.gather(names, places), **found}

    def expected(self, signature, inputs):
        found = super().expected(signature, inputs)
        if signature == "preprocess":
            return found
        names = np.array([*self.preprocessor.tokenizer.get_vocabulary(), ""], object)
        weights = found["weight"]
        # Words with nearly equal weights may be in the other order, so only weights count there.
        gaps = weights[:, :-1] - weights[:, 1:]
        gaps = np.where(weights[:, :-1] > 0, gaps, np.inf).min(axis=1, initial=np.inf)
        last = np.where(weights[:, -1] > 0, 0.0, np.inf)  # Unknown next weight.
        clear = np.minimum(gaps, last) > self.margin
        tokens = names[found["token_id"]].tolist()
        return {"token": tokens, **found, "clear": clear.tolist()}

    def check_transformers(self):
        raise ValueError(
            "transformers has no class for word weights, which are computed from its logits; use "
            "layout='kerasbert', whose graph returns the weights."
        )
