"""Classification of texts and text pairs.

B batch, T tokens, D width, C classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.base.parts import own_preprocessor
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.base.head_metrics import CLASSES, SEVERAL
from kerasbert.heads.base.headed_task import HeadedTask, HeadSettings, check_classes, class_names
from kerasbert.heads.text_classifier.preprocessor import BertTextClassifierPreprocessor
from kerasbert.losses.logits import ClassAccuracy, ClassCrossEntropy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kerasbert.base.aliases import Texts


@keras.saving.register_keras_serializable(package="kerasbert")
class BertTextClassifier(HeadedTask):
    """Classifier of texts or text pairs.

    `fit`, `evaluate` and `predict` take raw strings; the output is logits (B, C).

    Args:
        backbone: a `BertBackbone`.
        num_classes: int. Not needed with `labels`.
        preprocessor: a `BertTextClassifierPreprocessor`, or `None` for preprocessed arrays.
        labels: list of class names, or a dict such as {0: "ham", 1: "spam"}; saved in the preset.
        multi_label: bool. Each class is an independent yes or no; labels are (B, C).
        activation: output activation; `None` gives logits.
        dropout: float. Dropout before the logits.
        pooling: "pooler" (`pooled_output`), "cls", "last", "mean" or "max". The default is "last"
            for GPT and "mean" for other causal encoders, whose [CLS] attends only to itself.
        head_activation: string. Activation of a dense layer before the logits; "none" for no such
            layer, even if the family has one.
        head_bias: bool. Bias of that layer.
        head_norm: bool. Norm after that layer.
        dropout_first: bool. Dropout before that layer too.
        bilstm_units: int. Units per direction of a new BiLSTM before the pooling, which then
            defaults to "mean"; 0 for none. The paper's ablation adds one to a left-to-right
            encoder.
        output_bias: bool. Bias of the logits.
        normalize: bool. Scale the pooled embedding to unit length, as some SetFit models do.

    The last eight default to the settings of the encoder's family.

    Example:

    >>> backbone = BertBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> classifier = BertTextClassifier(backbone, labels=["ham", "spam"])
    >>> arrays = {name: np.ones((3, 5), "int32") for name in backbone.input}
    >>> classifier.predict(arrays, verbose=0).shape
    (3, 2)

    Source: Devlin et al. 2019, arXiv 1810.04805, section 4.1, and 5.1 for the BiLSTM.
    """

    backbone_cls = BertBackbone
    preprocessor_cls = BertTextClassifierPreprocessor
    kind = "text_classifier"

    def __init__(
        self,
        backbone: BertBackbone,
        num_classes: int | None = None,
        preprocessor: BertTextClassifierPreprocessor | None = None,
        labels: Any = None,
        multi_label: bool = False,
        activation: Any = None,
        dropout: float | None = None,
        pooling: str | None = None,
        head_activation: str | None = None,
        head_bias: bool | None = None,
        head_norm: bool | None = None,
        dropout_first: bool | None = None,
        bilstm_units: int | None = None,
        output_bias: bool | None = None,
        normalize: bool | None = None,
        **kwargs: Any,
    ) -> None:
        num_classes, labels = check_classes(num_classes, labels)
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = own_preprocessor(
            backbone,
            preprocessor,
            self.preprocessor_cls,
            labels=labels,
            multi_label=multi_label,
            num_classes=num_classes,
        )
        head = HeadSettings(
            dropout,
            pooling,
            head_activation,
            head_bias,
            head_norm,
            dropout_first,
            bilstm_units,
            output_bias,
            normalize,
        )
        self._make_head(num_classes, head)
        # Losses need float32.
        self.output_activation = keras.layers.Activation(
            activation, dtype="float32", name="predictions"
        )

        # === Config ===
        self.num_classes = num_classes
        self.labels = labels
        self.multi_label = multi_label
        self.activation = keras.activations.get(activation)
        inputs = backbone.input
        outputs = self.output_activation(self._logits(inputs))  # (B, C)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def default_loss(self) -> Any:
        """Cross-entropy; with `multi_label`, binary cross-entropy for each class."""
        if self.multi_label:
            return keras.losses.BinaryCrossentropy(from_logits=self.gives_logits())
        return ClassCrossEntropy(from_logits=self.gives_logits())

    def default_metrics(self) -> Any:
        """Accuracy."""
        if self.multi_label:
            return [keras.metrics.BinaryAccuracy(name="accuracy")]
        return [ClassAccuracy()]

    def metric_forms(self) -> Any:
        return (SEVERAL if self.multi_label else CLASSES), self.num_classes

    def gives_logits(self) -> bool:
        """Return whether the outputs are logits, that is, have no `activation`."""
        return self.activation == keras.activations.linear

    @property
    def label_names(self) -> list[str]:
        """`labels`, or "LABEL_0", "LABEL_1", ... without them."""
        return class_names(self.num_classes, self.labels)

    def predict_proba(self, texts: Texts, batch_size: int = 32) -> Any:
        """Return probabilities (N, C) of N texts in order."""
        outputs = np.asarray(self.predict(texts, batch_size=batch_size, verbose=0), "float64")
        if not self.gives_logits():
            return outputs
        if self.multi_label:
            return 1 / (1 + np.exp(-outputs))
        outputs = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
        return outputs / outputs.sum(axis=-1, keepdims=True)

    def classify(
        self,
        texts: Texts,
        batch_size: int = 32,
        labels: Sequence[str] | None = None,
        template: str = "This example is {}.",
        multi_label: bool = False,
    ) -> Any:
        """Classify texts.

        An entailment (NLI) model can also classify zero-shot, with any `labels`: it predicts the
        label whose sentence the text entails.

            nli = BertTextClassifier.from_preset("hf://cross-encoder/nli-MiniLM2-L6-H768")
            nli.classify("The match ended 2:1.", labels=["sports", "politics"])

        Args:
            texts: a string, a list of strings, or a tuple of two of either for pairs.
            batch_size: int.
            labels: list of strings. Zero-shot classes, for an entailment model and single texts.
            template: string. Sentence for each of `labels`, with "{}" in place of the label.
            multi_label: bool. Score each of `labels` independently.

        Returns:
            For each text, a dict of `label`, `score` (its probability) and `probabilities` by
            name; with `multi_label`, `labels` (probability above 0.5) instead of the first two.
            One dict for a single text.

        Raises:
            ValueError: for `labels` if no class of the model is named "entailment".

        Source of `labels`: Yin et al. 2019, arXiv 1909.00161.
        """
        texts, single = self._as_lists(texts, "classify()")
        if labels is None:
            names, rows = self.label_names, self.predict_proba(texts, batch_size)
            multi_label = self.multi_label
        else:
            names = _check_labels(labels, template, texts)
            rows = self._entailed(texts, names, template, multi_label, batch_size)
        results = [_describe(names, row, multi_label) for row in rows]
        return results[0] if single else results

    def _entailed(self, texts, labels, template, multi_label, batch_size):
        """Return probabilities (N, L) that each of N texts entails each of L labels."""
        yes, no = _entailment(self.label_names)
        sentences = [template.replace("{}", label) for label in labels]
        pairs = [text for text in texts for _ in labels], sentences * len(texts)
        logits = np.asarray(self.predict(pairs, batch_size=batch_size, verbose=0), "float64")
        if not self.gives_logits():
            logits = np.log(np.maximum(logits, 1e-12))
        logits = logits.reshape(len(texts), len(labels), -1)
        if multi_label or len(labels) == 1:
            return 1 / (1 + np.exp(logits[..., no] - logits[..., yes]))
        found = np.exp(logits[..., yes] - logits[..., yes].max(axis=-1, keepdims=True))
        return found / found.sum(axis=-1, keepdims=True)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "labels": self.labels,
            "multi_label": self.multi_label,
            "activation": keras.activations.serialize(self.activation),
        }


def _describe(names, row, multi_label):
    probabilities = {name: float(value) for name, value in zip(names, row, strict=True)}
    if multi_label:
        found = [name for name, value in probabilities.items() if value > 0.5]
        return {"labels": found, "probabilities": probabilities}
    best = int(np.argmax(row))
    return {"label": names[best], "score": float(row[best]), "probabilities": probabilities}


def _check_labels(labels, template, texts):
    if isinstance(texts, tuple):
        raise ValueError("classify(labels=...) takes single texts, got pairs; join each pair.")
    _, labels = check_classes(None, labels)
    if not isinstance(template, str) or "{}" not in template:
        raise ValueError(
            f"template={template!r} must contain '{{}}' in place of the label, as in "
            "'This example is {}.'"
        )
    return labels


def _entailment(names):
    """Return the class numbers of entailment and contradiction (or no entailment)."""
    lower = [name.lower() for name in names]
    yes = [i for i, name in enumerate(lower) if name.startswith(("entail", "함의", "含意"))]
    no = [i for i, name in enumerate(lower) if name.startswith(("contra", "모순", "矛盾", "not"))]
    no = no or [i for i in range(len(names)) if i not in yes and len(names) == 2]
    if len(yes) != 1 or not no:
        raise ValueError(
            "classify(labels=...) needs an entailment model with classes named 'entailment' and "
            f"'contradiction' or 'not_entailment', but the classes are {', '.join(names)}; load "
            "such a model, or name its classes with from_preset(..., labels=[...])."
        )
    return yes[0], no[0]
