"""BERT's pre-training: hidden tokens and next sentences, over one encoder.

B batch, T tokens, D width, P predictions, V tokens of the vocabulary.
"""

import keras
import numpy as np

from kerasbert.families import head_settings
from kerasbert.layers.heads import Pooling
from kerasbert.losses import ClassCrossEntropy, Perplexity, TokenAccuracy, TokenCrossEntropy
from kerasbert.models.backbone import BertBackbone
from kerasbert.models.headed_task import pair_pooling
from kerasbert.models.masked_lm import MaskedHeadSettings, MaskedTask
from kerasbert.parts import own_preprocessor
from kerasbert.preprocessors.pretrainer import BertPretrainerPreprocessor


@keras.saving.register_keras_serializable(package="kerasbert")
class BertPretrainer(MaskedTask):
    """Both tasks that BERT is pre-trained on: hidden tokens, and whether B follows A.

    The inputs are those of `BertMaskedLM`, the outputs a dict of `mlm_logits` (B, P, V) and
    `nsp_logits` (B, 2): 0, B follows A; 1, it does not. With `sentence_order` B always is of the
    text around A: 0, it comes after A; 1, before it. Labels are such a dict of (B, P) and (B,),
    or a tuple of the two; so are sample weights, where those of `nsp_logits` may be left out. The
    loss is the mean over the hidden tokens plus the mean over the pairs. `fit` and `evaluate` take
    pairs of raw strings with labels 0 and 1, and hide tokens themselves.

    Args:
        backbone: a `BertBackbone`, with a pooler for `next_sentence`. Of a left-to-right one, the
            mean over the tokens is taken instead.
        preprocessor: a `BertPretrainerPreprocessor`, or `None` for ready arrays.
        next_sentence: bool. `False` leaves the second task and `nsp_logits` out (RoBERTa).
        sentence_order: bool. What `nsp_logits` tell: the order of A and B (ALBERT), or whether B
            follows A at all. By default as the family's checkpoints were trained.
        dropout: float. Before `nsp_logits`; by default that of the family's checkpoints.
        head_activation: string. See `BertMaskedLM`, as for the next four.
        head_bias: bool.
        head_norm_epsilon: float.
        output_bias: bool.
        tie_weights: bool.

    Example:

    >>> backbone = BertBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> model = BertPretrainer(backbone)
    >>> ids, positions = np.ones((3, 5), "int32"), np.array([[1, 3], [2, 0], [4, 0]])
    >>> outputs = model.predict({"token_ids": ids, "mask_positions": positions}, verbose=0)
    >>> {name: logits.shape for name, logits in outputs.items()}
    {'mlm_logits': (3, 2, 100), 'nsp_logits': (3, 2)}

    Source: Devlin et al. 2019, arXiv 1810.04805, section 3.1; the order of sentences Lan et al.
    2020, arXiv 1909.11942.
    """

    backbone_cls = BertBackbone
    preprocessor_cls = BertPretrainerPreprocessor
    kind = "pretrainer"

    def __init__(
        self,
        backbone,
        preprocessor=None,
        next_sentence=True,
        sentence_order=None,
        dropout=None,
        head_activation=None,
        head_bias=None,
        head_norm_epsilon=None,
        output_bias=None,
        tie_weights=None,
        **kwargs,
    ):
        self._check_encoder(backbone)
        self.pooling = pair_pooling(backbone) if next_sentence else None
        if self.uses_pooler and not backbone.pooler:
            raise ValueError(
                "next_sentence=True needs an encoder with a pooler, and this one has pooler=False; "
                "set next_sentence=False, or pooler=True on the encoder."
            )
        self.backbone = backbone
        self.preprocessor = own_preprocessor(
            backbone, preprocessor, self.preprocessor_cls, next_sentence=next_sentence
        )
        self.next_sentence = next_sentence
        row = head_settings(backbone.family, self.kind)
        self._set_given({"sentence_order": sentence_order, "dropout": dropout}, row)
        self._make_mlm_head(
            MaskedHeadSettings(
                head_activation, head_bias, head_norm_epsilon, output_bias, tie_weights
            )
        )
        inputs = self._masked_inputs()
        positions = inputs["mask_positions"]
        if self.pooling == "mean":
            states = backbone(backbone.input)["sequence_output"]  # (B, T, D)
            outputs = {"mlm_logits": self.mlm_head(states, mask_positions=positions)}  # (B, P, V)
            pooling = Pooling("mean", dtype=backbone.dtype_policy, name="pooling")
            pooled = pooling(states, padding_mask=inputs["padding_mask"])
        else:
            encoded = backbone(backbone.input, positions=positions)
            outputs = {"mlm_logits": self.mlm_head(encoded["sequence_output"])}  # (B, P, V)
            pooled = encoded.get("pooled_output")
        if next_sentence:
            outputs["nsp_logits"] = self._next_sentence_logits(pooled)  # (B, D) -> (B, 2)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def _next_sentence_logits(self, pooled):
        """(B, D) -> (B, 2), by layers named as those of `BertNextSentencePredictor`."""
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
    def needs_pooler(cls, settings):
        return settings.get("next_sentence", True)

    @property
    def uses_pooler(self):
        return self.pooling == "pooler"

    @classmethod
    def output_weight(cls, settings):
        has_pairs = settings.get("next_sentence", True)
        return "logits/kernel" if has_pairs else super().output_weight(settings)

    def default_loss(self):
        """Cross-entropies: a mean over the hidden tokens, and one over the pairs."""
        losses = {"mlm_logits": TokenCrossEntropy()}
        if self.next_sentence:
            # What fills the last batch has no weight.
            losses["nsp_logits"] = ClassCrossEntropy(
                from_logits=True, reduction="mean_with_sample_weight"
            )
        return losses

    def default_metrics(self):
        """Accuracy of each task, and the perplexity of the hidden tokens."""
        metrics = {"mlm_logits": [TokenAccuracy(), Perplexity()]}
        if self.next_sentence:
            metrics["nsp_logits"] = [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
        return metrics

    def predict(self, x=None, batch_size=None, **kwargs):
        if self.next_sentence and self._is_raw(x):
            raise ValueError(
                "predict() takes ready arrays here, as pairs of texts come with labels for "
                "training; call fill_mask(texts), or evaluate(pairs, labels)."
            )
        return super().predict(x, batch_size, **kwargs)

    def complete_targets(self, y, sample_weight):
        y, sample_weight = self._named(y), self._named(sample_weight)
        if sample_weight is not None and self.next_sentence:
            ones = np.ones(len(sample_weight["mlm_logits"]), "float32")
            sample_weight = {"nsp_logits": ones, **sample_weight}
        return y, sample_weight

    def _named(self, parts):
        """Labels or weights as a dict: a tuple has both, an array those of the hidden tokens."""
        if parts is None or isinstance(parts, dict):
            return parts
        parts = parts if isinstance(parts, (tuple, list)) else (parts,)
        return dict(zip(("mlm_logits", "nsp_logits"), parts))

    def _mlm_logits(self, outputs):
        return np.asarray(outputs["mlm_logits"])

    def get_config(self):
        return {
            **super().get_config(),
            "next_sentence": self.next_sentence,
            "sentence_order": self.sentence_order,
            "dropout": self.dropout,
        }
