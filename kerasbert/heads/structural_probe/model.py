"""Structural probes: syntax trees from embeddings, by a linear map.

N sentences, B batch, T tokens, W words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.base.errors import check_whole
from kerasbert.base.parts import own_preprocessor
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.base.inputs import is_raw, sorted_batches
from kerasbert.heads.base.steps import batch_outputs
from kerasbert.heads.base.task import BertTask
from kerasbert.heads.structural_probe.preprocessor import BertStructuralProbePreprocessor
from kerasbert.layers.probe import StructuralProbe, WordMean
from kerasbert.losses import TreeLoss
from kerasbert.metrics.trees import spanning_edges

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor


@keras.saving.register_keras_serializable(package="kerasbert")
class BertStructuralProbe(BertTask):
    """Structural probe: measures how much syntax one layer's embeddings contain.

    `fit` and `evaluate` take a list of sentences, each a string, a list of words or a
    `kerasbert.data.DependencyTree`; labels are a `DependencyTree` for each sentence. Only the
    probe's matrix is trained, without dropout in the encoder. Outputs are float32: squared
    distances (B, W, W) or depths (B, W). W is the width of `word_starts` and `word_counts`; the
    preprocessor pads them to T.

        trees = kerasbert.tasks.read_conllu("en_ewt-ud-train.conllu")
        probe = BertStructuralProbe.from_preset("bert_base_en_uncased", layer=7, new_head=True)
        probe.fit(trees, trees, epochs=10)
        kerasbert.metrics.uuas(held_out, probe.predict(held_out))

    Args:
        backbone: a `BertBackbone`.
        preprocessor: a `BertStructuralProbePreprocessor`, or `None` for preprocessed arrays.
        kind: "distance", the number of edges between words, or "depth", that between a word and the
            root.
        layer: layer to probe, from 1; 0 is the embeddings, -1 the last layer.
        rank: rank of the matrix.

    Example:

    >>> backbone = BertBackbone(
    ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> probe = BertStructuralProbe(backbone, layer=1, rank=4)
    >>> words = {"word_starts": np.array([[1, 2]]), "word_counts": np.array([[1, 2]])}
    >>> probe.predict({"token_ids": np.ones((1, 5), "int32"), **words}, verbose=0).shape
    (1, 2, 2)

    Source: Hewitt and Manning 2019, "A Structural Probe for Finding Syntax in Word
    Representations", NAACL.
    """

    backbone_cls = BertBackbone
    preprocessor_cls = BertStructuralProbePreprocessor
    kind = "structural_probe"

    def __init__(
        self,
        backbone: BertBackbone,
        preprocessor: BertStructuralProbePreprocessor | None = None,
        kind: str = "distance",
        layer: int = -1,
        rank: int = 64,
        **kwargs: Any,
    ) -> None:
        self._check_encoder(backbone)
        check_whole("layer", layer, -1)
        if layer > backbone.num_layers:
            raise ValueError(
                f"layer={layer} exceeds the encoder's {backbone.num_layers} layers; use 0 (the "
                f"embeddings) to {backbone.num_layers}."
            )
        # === Layers ===
        # Keras must not track the encoder, because layers above `layer` are not in this model.
        object.__setattr__(self, "_backbone", backbone)
        self.preprocessor = own_preprocessor(
            backbone, preprocessor, self.preprocessor_cls, kind=kind
        )
        self.word_mean = WordMean(dtype="float32", name="word_mean")
        self.probe = StructuralProbe(kind, rank, dtype="float32", name="probe")

        # === Config ===
        self.layer = layer
        self.rank = rank
        inputs = {
            **backbone.input,
            "word_starts": keras.Input((None,), dtype="int32", name="word_starts"),
            "word_counts": keras.Input((None,), dtype="int32", name="word_counts"),
        }
        x = keras.ops.cast(backbone.hidden_states[layer], "float32")  # (B, T, D)
        words = self.word_mean(
            keras.ops.stop_gradient(x),
            starts=inputs["word_starts"],
            counts=inputs["word_counts"],
        )
        super().__init__(inputs=inputs, outputs=self.probe(words), **kwargs)

    def call(
        self, inputs: Tensor, training: bool | None = None, mask: Tensor = None, **kwargs: Any
    ) -> Tensor:
        return super().call(inputs, training=False, **kwargs)

    def untrained_weights(self) -> list[Any]:
        return self.backbone.weights

    def default_loss(self) -> Any:
        """Return the L1 loss of the paper; see `kerasbert.losses.TreeLoss`."""
        return TreeLoss()

    def default_metrics(self) -> Any:
        """Return no metrics; compute tree metrics with the functions of `kerasbert.metrics`."""
        return []

    def predict(self, x: Any = None, batch_size: int | None = None, **kwargs: Any) -> Any:
        """Predict distances or depths, for preprocessed arrays or sentences.

        Returns:
            For sentences, a list of N arrays, (W, W) or (W,), with W the number of words.

        Raises:
            ValueError: for a sentence longer than `sequence_length`.
        """
        if not is_raw(self, x):
            return super().predict(x, batch_size=batch_size, **kwargs)
        pieces = self.preprocessor.read(x)
        most = self.preprocessor.room
        for position, count in enumerate(np.diff(pieces.splits)):
            if count > most:
                raise ValueError(
                    f"The sentence at position {position} has {count} subwords, but "
                    f"sequence_length={self.preprocessor.sequence_length} leaves room for {most}; "
                    "split it."
                )
        dataset, order = sorted_batches(self, pieces, batch_size=batch_size)
        rows = [row for _, batch in batch_outputs(self, dataset, **kwargs) for row in batch]
        lengths = np.diff(pieces.unit_splits)
        found = [None] * len(rows)
        for place, row in zip(order, rows, strict=True):
            words = slice(lengths[place])
            found[place] = np.asarray(row)[(words,) * row.ndim]
        return found

    def parse(self, words: Any, batch_size: int = 32) -> Any:
        """Predict the edges of sentences: minimum spanning trees of distances.

        Args:
            words: one sentence, as a list of words or a string to split into words; or a list of
                lists of words or of trees.
            batch_size: int.

        Returns:
            For each sentence, a list of pairs of word indices, counted from 0, the smaller first.
            For one sentence, a single list.
        """
        if self.probe.kind != "distance":
            raise ValueError(
                "parse() needs distances of words, but this probe has kind='depth'; build one with "
                "kind='distance', or use the depths of predict()."
            )
        words = list(words) if isinstance(words, tuple) or hasattr(words, "__next__") else words
        # A list of strings is one sentence.
        single = isinstance(words, (str, bytes)) or (
            hasattr(words, "__iter__") and all(isinstance(one, (str, bytes)) for one in words)
        )
        if not single:
            words = self.preprocessor.read(words)
        distances = self.predict([words] if single else words, batch_size=batch_size, verbose=0)
        edges = [sorted(spanning_edges(one)) for one in distances]
        return edges[0] if single else edges

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "kind": self.probe.kind,
            "layer": self.layer,
            "rank": self.rank,
        }
