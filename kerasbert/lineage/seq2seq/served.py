"""Serving of `TransformerSeq2SeqLM`: the score of a target text given its source.

N pairs, B batch, T tokens per row.
"""

import functools

import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base.parts import encoder_of
from kerasbert.heads.base import decoding
from kerasbert.heads.base.served import PROSE, SHORT, Served
from kerasbert.heads.base.served import spec as tensor_spec
from kerasbert.lineage.seq2seq.task import TargetScorer


class ServedSeq2SeqLM(Served):
    """SavedModel signatures of `TransformerSeq2SeqLM`."""

    columns = ("source", "target")

    @functools.cached_property
    def _scores(self):
        """The scores (B,) of targets, as a graph function."""
        scorer = TargetScorer(self.model)
        specs = {
            **self.token_specs(),
            "token_ids": tensor_spec("token_ids", 2, "int32"),
            "padding_mask": tensor_spec("padding_mask", 2, "int32"),
        }
        return tf.function(lambda x: scorer(x), input_signature=[specs], autograph=False)

    def random_features(self):
        random, batches = np.random.default_rng(0), []
        for batch, length in self._shapes():
            found = {}
            for side in ("encoder", "decoder"):
                mask = np.arange(length) < random.integers(1, length + 1, (batch, 1))
                ids = random.integers(0, encoder_of(self.model).vocabulary_size, mask.shape)
                found |= {f"{side}_token_ids": ids, f"{side}_padding_mask": mask}
            batches.append({name: x.astype("int32") for name, x in found.items()})
        return batches

    def _assembled(self, source, target):
        preprocessor = self.preprocessor
        return preprocessor.assemble(preprocessor.tokenize((source, target)))

    def pack(self, source, target):
        return self.features_in_graph(self._assembled(source, target)[0])

    def answer(self, source, target):
        features, following, weights = self._assembled(source, target)
        features = self.features_in_graph(features)
        features |= {"token_ids": following, "padding_mask": tf.cast(weights, tf.int32)}
        return {"score": decoding.in_windows(self._scores, features, ())}

    def probes(self):
        texts = [*SHORT, PROSE]
        return [("serving_default", {"source": texts, "target": texts[::-1]})]

    def expected(self, signature, inputs):
        return {"score": self.model.score(inputs["source"], inputs["target"])}
