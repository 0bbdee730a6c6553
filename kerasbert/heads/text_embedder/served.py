"""Serving of `BertTextEmbedder`: embeddings of texts or tokens.

Each role with its own preprocessing has a signature named after it, mainly `query` and `text`.
"""

import functools

import keras

from kerasbert.checkpoints import sentence_transformers
from kerasbert.heads.base.program import of_texts
from kerasbert.heads.base.served import SHORT, Served, Signature
from kerasbert.heads.base.served_texts import ServedTexts
from kerasbert.heads.encoder.served import vectors_of_tokens


class ServedInRoles(ServedTexts):
    """Base class for tasks that compare texts, with a signature per role."""

    output = "embedding"

    @property
    def roles(self):
        return getattr(self.preprocessor, "roles", ())

    def text_signatures(self):
        found = super().text_signatures()
        for role in self.roles:
            answer = functools.partial(self._answer_as, role)
            found[role] = Signature(answer, self.column_specs())
        return found

    def _answer_as(self, role, text):
        read = self.preprocessor.for_role(role)
        return self.answer_rows(self.features_in_graph(read.pack(read.tokenize((text,)))))

    def probes(self):
        return [*super().probes(), *((role, {"text": SHORT}) for role in self.roles)]

    def read(self, signature, inputs):
        read = self.preprocessor
        if signature in self.roles:
            read = read.for_role(signature)
        return self.model.fill_in(read(tuple(inputs.values())))


class ServedEmbedder(ServedInRoles):
    """SavedModel signatures of `BertTextEmbedder`."""

    def features_in_graph(self, features):
        if self.model.has_late_interaction:
            # A preprocessor without roles does not return a `vector_mask`.
            features = {"vector_mask": features["padding_mask"], **features}
        return super().features_in_graph(features)

    def random_features(self):
        if not self.model.has_late_interaction:
            return super().random_features()
        return [{**x, "vector_mask": x["padding_mask"]} for x in super().random_features()]

    def program(self):
        if self.model.has_late_interaction:
            return None
        if self.model.pooling == "tokens":
            return of_texts("the embeddings of the tokens", vectors_of_tokens("embedding"))
        prompt = getattr(self.preprocessor, "prompt", "")
        return of_texts("the embedding", 'return outputs["embedding"]', prompt=prompt)

    def decode(self, outputs, features):
        if self.model.pooling != "tokens":
            return outputs
        if self.model.has_late_interaction:
            return {**outputs, "vector_mask": features["vector_mask"]}
        return {**outputs, "count": keras.ops.sum(features["padding_mask"], axis=-1)}

    def run_as_transformers(self, features):
        # sentence-transformers pools the token embeddings itself, so return these.
        outputs = Served(self.model.backbone).run_as_transformers(features)
        return {"sequence_output": outputs["sequence_output"]}

    def check_transformers(self):
        model = self.model
        if not sentence_transformers.has_place_for(model):
            raise ValueError(
                f"sentence-transformers does not support pooling={model.pooling!r} with layers="
                f"{model.layers_used!r}; use layout='kerasbert', whose graph returns embeddings."
            )

    def write_as_transformers(self, folder):
        sentence_transformers.write_modules(self.model, folder)
