"""BERT pre-training: masked language modeling and next-sentence prediction.

B batch, T tokens, D width, P masked tokens, V vocabulary size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert import backend
from kerasbert.base.errors import check_value
from kerasbert.base.parts import same_tokens
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.families import head_settings
from kerasbert.heads.base.head_metrics import CLASSES, TOKEN_CLASSES
from kerasbert.heads.base.headed_task import pair_pooling
from kerasbert.heads.base.inputs import is_raw
from kerasbert.heads.masked_lm.model import MaskedHeadSettings, MaskedTask
from kerasbert.heads.pretrainer.preprocessor import BertPretrainerPreprocessor
from kerasbert.heads.text_embedder.model import BertTextEmbedder
from kerasbert.layers.heads import Pooling
from kerasbert.layers.replacement import at_tokens
from kerasbert.losses.logits import ClassCrossEntropy, Perplexity, TokenAccuracy, TokenCrossEntropy
from kerasbert.losses.similarity import DISTANCES

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor


@keras.saving.register_keras_serializable(package="kerasbert")
class BertPretrainer(MaskedTask):
    """BERT with both pre-training heads: masked tokens and next sentences.

    The inputs are those of `BertMaskedLM`. The outputs are a dict of `mlm_logits` (B, P, V) and
    `nsp_logits` (B, 2): class 0 if text B follows text A, and 1 if not. With `sentence_order`, the
    texts are adjacent: 0 if B comes after A, 1 if before. Labels and sample weights are dicts with
    the same names, (B, P) and (B,), or tuples; weights of `nsp_logits` are optional. The loss is
    the mean over the masked tokens plus the mean over the pairs. `fit` and `evaluate` take pairs of
    raw strings with labels 0 and 1, and mask their tokens.

    Args:
        backbone: a `BertBackbone`. `next_sentence` needs one with a pooler, or a causal one, which
            uses mean pooling.
        preprocessor: a `BertPretrainerPreprocessor`, or `None` for preprocessed arrays.
        next_sentence: bool. `False` leaves out the second task and `nsp_logits` (RoBERTa).
        sentence_order: whether to predict the order of A and B (ALBERT) instead of whether B
            follows A. Defaults to the family's setting.
        dropout: dropout before `nsp_logits`. Defaults to the family's setting.
        head_activation, head_bias, head_norm_epsilon, output_bias, tie_weights, head_dim: see
            `BertMaskedLM`.
        teacher: a `BertTextEmbedder` with the same tokenizer and embeddings of the encoder's width,
            or `None`. The masked text's mean-pooled embedding, the output `vectors` (B, D), learns
            the teacher's embedding of the original text: the loss adds `teacher_weight` times the
            mean of 1 - cosine. The teacher is neither trained nor saved.
        teacher_weight: float.

    Example:

    >>> backbone = BertBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> model = BertPretrainer(backbone)
    >>> ids, positions = np.ones((3, 5), "int32"), np.array([[1, 3], [2, 0], [4, 0]])
    >>> outputs = model.predict({"token_ids": ids, "mask_positions": positions}, verbose=0)
    >>> {name: logits.shape for name, logits in outputs.items()}
    {'mlm_logits': (3, 2, 100), 'nsp_logits': (3, 2)}

    Sources: Devlin et al. 2019, arXiv 1810.04805, section 3.1; Lan et al. 2020, arXiv 1909.11942
    (sentence order); Sanh et al. 2019, arXiv 1910.01108 (a teacher, there per token).
    """

    backbone_cls = BertBackbone
    preprocessor_cls = BertPretrainerPreprocessor
    kind = "pretrainer"
    allows_r_drop = False
    _teacher = None

    def __init__(
        self,
        backbone: BertBackbone,
        preprocessor: BertPretrainerPreprocessor | None = None,
        next_sentence: bool = True,
        sentence_order: bool | None = None,
        dropout: float | None = None,
        head_activation: str | None = None,
        head_bias: bool | None = None,
        head_norm_epsilon: float | None = None,
        output_bias: bool | None = None,
        tie_weights: bool | None = None,
        teacher: BertTextEmbedder | None = None,
        teacher_weight: float = 10.0,
        head_dim: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._set_parts(backbone, preprocessor, next_sentence=next_sentence)
        self.pooling = pair_pooling(backbone) if next_sentence else None
        if self.uses_pooler and not backbone.pooler:
            raise ValueError(
                "next_sentence=True needs an encoder with a pooler, but this one has pooler=False; "
                "set next_sentence=False, or pooler=True on the encoder."
            )
        self.next_sentence = next_sentence
        row = head_settings(backbone.family, self.kind)
        self._set_given({"sentence_order": sentence_order, "dropout": dropout}, row)
        self._make_mlm_head(
            MaskedHeadSettings(
                head_activation, head_bias, head_norm_epsilon, output_bias, tie_weights, head_dim
            )
        )
        inputs = self._masked_inputs()
        positions = inputs["mask_positions"]
        self._set_teacher(teacher, teacher_weight)
        if self.pooling == "mean" or teacher is not None:
            encoded = backbone(backbone.input)
            states = encoded["sequence_output"]  # (B, T, D)
            outputs = {"mlm_logits": self.mlm_head(states, mask_positions=positions)}  # (B, P, V)
            pooling = Pooling("mean", dtype=backbone.dtype_policy, name="pooling")
            mean = pooling(states, padding_mask=inputs["padding_mask"])
            pooled = mean if self.pooling == "mean" else encoded.get("pooled_output")
            if teacher is not None:
                outputs["vectors"] = mean
        else:
            encoded = backbone(backbone.input, positions=positions)
            outputs = {"mlm_logits": self.mlm_head(encoded["sequence_output"])}  # (B, P, V)
            pooled = encoded.get("pooled_output")
        if next_sentence:
            outputs["nsp_logits"] = self._next_sentence_logits(pooled)  # (B, D) -> (B, 2)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        if teacher is not None:
            self._vector_loss = keras.metrics.Mean(name="vector_loss")

    def _set_teacher(self, teacher, weight):
        # Keras must not track the teacher, because it is not saved.
        object.__setattr__(self, "_teacher", teacher)
        self.teacher_weight = weight
        if teacher is None:
            return
        check_value("teacher_weight", weight, "number")
        if not isinstance(teacher, BertTextEmbedder):
            raise TypeError(
                f"teacher must be a BertTextEmbedder, got {type(teacher).__name__}; pass for "
                "example BertTextEmbedder.from_preset('minilm_mini_demo_en')."
            )
        width = teacher.output.shape[1:]
        if width != (self.backbone.hidden_dim,):
            raise ValueError(
                f"The teacher's embeddings have shape {width}, but the encoder has hidden_dim="
                f"{self.backbone.hidden_dim}; use a teacher and an encoder of the same width."
            )
        ours, theirs = self.preprocessor, teacher.preprocessor
        if ours and theirs and not same_tokens(ours.tokenizer, theirs.tokenizer):
            raise ValueError(
                "The teacher has another tokenizer than the encoder; use the teacher's vocabulary "
                "for the encoder, or a teacher with the encoder's vocabulary."
            )
        if ours and ours.sequence_length > teacher.backbone.max_sequence_length:
            raise ValueError(
                f"The teacher has {teacher.backbone.max_sequence_length} positions, but rows have "
                f"up to {ours.sequence_length} tokens; reduce sequence_length."
            )

    @property
    def non_trainable_variables(self) -> list[Any]:
        # Compiled steps on JAX get only listed variables.
        own = super().non_trainable_variables
        return own if self._teacher is None else [*own, *self._teacher.variables]

    def _next_sentence_logits(self, pooled):
        """Map (B, D) to (B, 2) with layers named as in `BertNextSentencePredictor`."""
        dtype = self.backbone.dtype_policy
        initializer = keras.initializers.TruncatedNormal(stddev=self.backbone.initializer_range)
        self.dropout_layer = keras.layers.Dropout(
            self.dropout, dtype=dtype, name="classifier_dropout"
        )
        self.output_dense = keras.layers.Dense(
            2, kernel_initializer=initializer, dtype=dtype, name="logits"
        )
        activation = keras.layers.Activation(None, dtype="float32", name="nsp_logits")
        return activation(self.output_dense(self.dropout_layer(pooled)))

    @classmethod
    def needs_pooler(cls, settings: Any) -> bool:
        return settings.get("next_sentence", True)

    @property
    def uses_pooler(self) -> bool:
        return self.pooling == "pooler"

    @classmethod
    def output_weight(cls, settings: Any) -> str:
        has_pairs = settings.get("next_sentence", True)
        return "logits/kernel" if has_pairs else super().output_weight(settings)

    def default_loss(self) -> Any:
        """Return the mean cross-entropy over the masked tokens, and that over the pairs."""
        losses = {"mlm_logits": TokenCrossEntropy()}
        if self.next_sentence:
            # Weighted means, because padding rows of the last batch have weight 0.
            losses["nsp_logits"] = ClassCrossEntropy(
                from_logits=True, reduction="mean_with_sample_weight"
            )
        return losses

    def default_metrics(self) -> Any:
        """Return the accuracy of each task, and the perplexity of the masked tokens."""
        metrics = {"mlm_logits": [TokenAccuracy(), Perplexity()]}
        if self.next_sentence:
            metrics["nsp_logits"] = [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
        return metrics

    def metric_forms(self) -> Any:
        forms = {"mlm_logits": (TOKEN_CLASSES, self.backbone.vocabulary_size)}
        return {**forms, "nsp_logits": (CLASSES, 2)} if self.next_sentence else forms

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Tensor = None,
        sample_weight: Any = None,
        training: bool | None = True,
    ) -> Tensor:
        if self._teacher is None:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        y, sample_weight = self._named(y), self._named(sample_weight)
        loss = super().compute_loss(x, y, _logits(y_pred), sample_weight, training)
        distance = self._vector_distance(x, y, y_pred["vectors"], sample_weight)
        self._vector_loss.update_state(distance)
        return loss + self.teacher_weight * distance

    def _vector_distance(self, x, y, vectors, sample_weight):
        """Compute the mean of 1 - cosine between vectors (B, D) and the teacher's."""
        x = self.fill_in(x)
        ids, labels = x["token_ids"], y["mlm_logits"]
        weights = (sample_weight or {}).get("mlm_logits")
        is_used = ops.ones(ops.shape(labels)[:1]) if weights is None else ops.any(weights > 0, 1)
        is_used = ops.cast(is_used, "float32")  # (B,), 0 for padding rows, which have no masks.
        is_hidden, was = at_tokens(ops.shape(ids)[1], x["mask_positions"], labels)
        ids = ops.where(is_hidden, ops.cast(was, ids.dtype), ids)
        given = self._teacher.fill_in({"token_ids": ids, "padding_mask": x["padding_mask"]})
        with backend.without_gradients():
            wanted = self._teacher({name: given[name] for name in self._teacher.input})
        wanted, found = (ops.cast(x, "float32") for x in (ops.stop_gradient(wanted), vectors))
        distance = DISTANCES["cosine"](wanted, found) * is_used
        return ops.sum(distance) / ops.maximum(ops.sum(is_used), 1)

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Tensor, sample_weight: Any = None
    ) -> dict[str, Any]:
        return super().compute_metrics(x, y, _logits(y_pred), sample_weight)

    def predict(self, x: Any = None, batch_size: int | None = None, **kwargs: Any) -> Any:
        if self.next_sentence and is_raw(self, x):
            raise ValueError(
                "predict() of a model with next_sentence=True takes preprocessed arrays, got raw "
                "texts; call fill_mask(texts), or evaluate(pairs, labels)."
            )
        return super().predict(x, batch_size, **kwargs)

    def complete_targets(self, y: Any, sample_weight: Any) -> Any:
        y, sample_weight = self._named(y), self._named(sample_weight)
        if sample_weight is not None and self.next_sentence:
            ones = np.ones(len(sample_weight["mlm_logits"]), "float32")
            sample_weight = {"nsp_logits": ones, **sample_weight}
        return y, sample_weight

    def _named(self, parts):
        """Return labels or weights as a dict; an array alone belongs to the masked tokens."""
        if parts is None or isinstance(parts, dict):
            return parts
        parts = parts if isinstance(parts, (tuple, list)) else (parts,)
        return dict(zip(("mlm_logits", "nsp_logits"), parts))

    def _mlm_logits(self, outputs):
        return np.asarray(outputs["mlm_logits"])

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "next_sentence": self.next_sentence,
            "sentence_order": self.sentence_order,
            "dropout": self.dropout,
        }


def _logits(outputs):
    """Return the outputs that have labels: all but `vectors`."""
    return {name: values for name, values in outputs.items() if name != "vectors"}
