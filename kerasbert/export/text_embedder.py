"""What is served of `BertTextEmbedder`: a vector a text, or one a token."""

import keras

from kerasbert.conversion import sentence_transformers
from kerasbert.export.encoder import vectors_of_tokens
from kerasbert.export.program import of_texts
from kerasbert.export.served import Served, ServedTexts


class ServedEmbedder(ServedTexts):
    """`BertTextEmbedder`."""

    output = "embedding"

    def program(self):
        if self.model.pooling == "tokens":
            return of_texts("The vectors of the tokens", vectors_of_tokens("embedding"))
        prompt = "" if self.preprocessor is None else self.preprocessor.prompt()
        return of_texts("The vector", 'return outputs["embedding"]', prompt=prompt)

    def decode(self, outputs, features):
        if self.model.pooling != "tokens":
            return outputs
        return {**outputs, "count": keras.ops.sum(features["padding_mask"], axis=-1)}

    def run_as_transformers(self, features):
        # The tokens' vectors, which sentence-transformers makes one of.
        outputs = Served(self.model.backbone).run_as_transformers(features)
        return {"sequence_output": outputs["sequence_output"]}

    def check_transformers(self):
        model = self.model
        if not sentence_transformers.has_place_for(model):
            raise ValueError(
                f"sentence-transformers has no place for pooling={model.pooling!r} with layers="
                f"{model.layers_used!r}; use layout='kerasbert', whose graph gives the vectors."
            )

    def write_as_transformers(self, folder):
        sentence_transformers.write_modules(self.model, folder)
