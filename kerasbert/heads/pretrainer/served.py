"""Serving of `BertPretrainer`: masked-token and next-sentence predictions."""

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.heads.base.served import SHORT, Signature, spec
from kerasbert.heads.masked_lm.served import ServedMaskedLM
from kerasbert.heads.next_sentence_predictor.served import follows


class ServedPretrainer(ServedMaskedLM):
    """SavedModel signatures of `BertPretrainer`."""

    _logits = "mlm_logits"

    def text_signatures(self):
        found = super().text_signatures()
        if self.model.next_sentence:
            found["pair"] = Signature(self._pair, {name: spec(name) for name in ("text", "text_b")})
        return found

    def _pair(self, text, text_b):
        features = self.packing.pack(self.packing.tokenize((text, text_b)))
        first = tf.zeros_like(features["token_ids"][:, :1])
        outputs = self.graph(self.features_in_graph({**features, "mask_positions": first}))
        return {"probability": follows(outputs["nsp_logits"])}

    def probes(self):
        pair = ("pair", {"text": SHORT, "text_b": SHORT[::-1]})
        return [*super().probes(), *([pair] if self.model.next_sentence else [])]

    def _pair_expected(self, inputs):
        features = self.packing(tuple(inputs.values()))
        first = np.zeros((len(inputs["text"]), 1), "int32")
        features = {**features, "mask_positions": keras.ops.convert_to_tensor(first)}
        features = {name: keras.ops.cast(features[name], "int32") for name in self.model.input}
        probability = follows(self.run(features)["nsp_logits"])
        return {"probability": keras.ops.convert_to_numpy(probability)}
