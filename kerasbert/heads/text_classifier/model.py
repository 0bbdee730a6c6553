"""Classification of texts and text pairs.

B batch, T tokens, D width, C classes.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.base.errors import check_value
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.base.head_metrics import CLASSES, SEVERAL
from kerasbert.heads.base.headed_task import (
    HeadedTask,
    HeadSettings,
    check_classes,
    check_zero_shot,
    class_names,
)
from kerasbert.heads.base.inputs import as_lists
from kerasbert.heads.text_classifier.confidence import class_thresholds, describe, log_odds
from kerasbert.heads.text_classifier.preprocessor import BertTextClassifierPreprocessor
from kerasbert.losses.logits import ClassAccuracy, ClassCrossEntropy
from kerasbert.metrics.calibration import fit_temperature
from kerasbert.metrics.thresholds import best_threshold, conformal_threshold

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
        num_classes: int. Not needed if `labels` are given.
        preprocessor: a `BertTextClassifierPreprocessor`, or `None` for preprocessed arrays.
        labels: list of class names, or a dict such as {0: "ham", 1: "spam"}; saved in the preset.
        multi_label: whether each class is an independent yes or no; labels are then (B, C).
        activation: output activation; `None` gives logits.
        dropout: dropout before the logits.
        pooling: "pooler" (`pooled_output`), "cls", "last", "mean", "max", or "late", the mean after
            the head's dense layer (EuroBERT). Defaults to "last" for GPT and "mean" for other
            causal encoders, whose [CLS] attends only to itself.
        head_activation: activation of a dense layer before the logits; "none" for none, even if the
            family has one.
        head_bias: whether that layer has a bias.
        head_norm: whether a norm follows that layer.
        dropout_first: whether dropout also precedes that layer.
        bilstm_units: units per direction of a new BiLSTM before the pooling, which then defaults to
            "mean" (an ablation of BERT's paper); 0 for none.
        output_bias: whether the logits have a bias.
        normalize: whether the pooled embedding is scaled to unit length, as in some SetFit models.
        temperature: divisor of the logits for calibrated probabilities; see `calibrate`.
        long: string, dict or `kerasbert.data.LongTexts`. For texts that do not fit into a row;
            `None` means the preprocessor's. With "windows", preprocessed arrays are (B, W, T), with
            `padding_mask` 0 for missing windows.

    `pooling` to `normalize` default to the family's settings.

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
    takes_long = True
    # For ensembles, whose constructor does not set it.
    temperature = 1.0

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
        temperature: float = 1.0,
        long: Any = None,
        **kwargs: Any,
    ) -> None:
        num_classes, labels = check_classes(num_classes, labels)
        # === Layers ===
        self._set_parts(
            backbone,
            preprocessor,
            long=long,
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
        check_value("temperature", temperature, "positive")
        self.temperature = float(temperature)
        inputs = self._window_inputs()
        outputs = self.output_activation(self._logits(inputs))  # (B, C)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def default_loss(self) -> Any:
        """Return the cross-entropy or, with `multi_label`, the binary cross-entropy per class."""
        if self.multi_label:
            return keras.losses.BinaryCrossentropy(from_logits=self.gives_logits())
        return ClassCrossEntropy(from_logits=self.gives_logits())

    def default_metrics(self) -> Any:
        """Return the accuracy."""
        if self.multi_label:
            return [keras.metrics.BinaryAccuracy(name="accuracy")]
        return [ClassAccuracy()]

    def metric_forms(self) -> Any:
        return (SEVERAL if self.multi_label else CLASSES), self.num_classes

    def gives_logits(self) -> bool:
        """Return whether the outputs have no `activation`."""
        return self.activation == keras.activations.linear

    @property
    def label_names(self) -> list[str]:
        """`labels`, or the names "LABEL_0", "LABEL_1", ... if there are none."""
        return class_names(self.num_classes, self.labels)

    def predict_proba(self, texts: Texts, batch_size: int = 32) -> Any:
        """Return probabilities (N, C) of N texts in order, calibrated by the `temperature`."""
        if self.temperature == 1 and not self.gives_logits():
            return self._predicted(texts, batch_size)
        outputs = self._calibrated_logits(texts, batch_size)
        if self.multi_label:
            return 1 / (1 + np.exp(-outputs))
        outputs = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
        return outputs / outputs.sum(axis=-1, keepdims=True)

    def _predicted(self, texts, batch_size):
        return np.asarray(self.predict(texts, batch_size=batch_size, verbose=0), "float64")

    def _calibrated_logits(self, texts, batch_size):
        outputs = self._predicted(texts, batch_size)
        if not self.gives_logits():
            outputs = log_odds(outputs, self.multi_label)
        return outputs / self.temperature

    def classify(
        self,
        texts: Texts,
        batch_size: int = 32,
        labels: Sequence[str] | None = None,
        template: str = "This example is {}.",
        multi_label: bool = False,
        threshold: Any = None,
    ) -> Any:
        """Classify texts.

        An entailment (NLI) model also classifies zero-shot, with any `labels`: the one whose
        sentence the text entails.

            nli = BertTextClassifier.from_preset("hf://cross-encoder/nli-MiniLM2-L6-H768")
            nli.classify("The match ended 2:1.", labels=["sports", "politics"])

        Args:
            texts: a string, a list of strings, or a tuple of two of either for pairs.
            batch_size: int.
            labels: list of strings. Zero-shot classes, for an entailment model and single texts.
            template: sentence for each of `labels`, with "{}" in place of the label.
            multi_label: whether each of `labels` is scored independently.
            threshold: the probability that a class must exceed: a number, a list per class, or a
                dict by name, as from `tune_thresholds`. `None` means 0.5 with `multi_label`,
                otherwise no threshold. In a dict, one of two classes is enough; the other has 1
                minus it.

        Returns:
            For each text, a dict of `label`, `score` (its probability) and `probabilities` by name.
            The label is the most probable class above its threshold, or `None`, with the highest
            probability as score. With `multi_label`, `labels`, all above their thresholds, replaces
            the first two. For a single text, a single dict.

        Raises:
            ValueError: for `labels` if no class of the model is named "entailment", and for
                thresholds that do not fit the classes.

        Source of `labels`: Yin et al. 2019, arXiv 1909.00161.
        """
        texts, single = as_lists(self, texts, "classify()")
        if labels is None:
            names, rows = self.label_names, self.predict_proba(texts, batch_size)
            multi_label = self.multi_label
        else:
            names = check_zero_shot(labels, template, texts)
            rows = self._entailed(texts, names, template, multi_label, batch_size)
        limits = None if threshold is None else class_thresholds(threshold, names, multi_label)
        results = [describe(names, row, multi_label, limits) for row in rows]
        return results[0] if single else results

    # === Confidence ===

    def forget_calibration(self) -> None:
        if self.temperature != 1:
            warnings.warn(
                f"Training resets the temperature of {self.temperature:.3g}, with which the "
                "classifier was calibrated, to 1; call calibrate() again afterwards.",
                stacklevel=3,
            )
            self.temperature = 1.0

    def _held_out(self, x, y, batch_size, method):
        """Return class indices (N,), or rows of 0 and 1 (N, C), and the probabilities (N, C)."""
        texts, single = as_lists(self, x, f"{method}()")
        if single or not len(texts[0] if isinstance(texts, tuple) else texts):
            raise ValueError(f"{method}() needs held-out texts with labels; pass lists of both.")
        count = len(texts[0] if isinstance(texts, tuple) else texts)
        y = self.preprocessor.check_labels(y, count)
        if not np.isin(y, (0, 1)).all() and y.ndim == 2:
            raise ValueError(f"{method}() needs class names as labels, got probabilities.")
        y = y.argmax(axis=-1) if y.ndim == 2 and not self.multi_label else y
        return y, self.predict_proba(texts, batch_size)

    def calibrate(self, x: Any, y: Any, batch_size: int = 32) -> float:
        """Fit the temperature to held-out texts, so that probabilities match frequencies.

        Presets and exports keep the temperature; training resets it.

        Args:
            x: texts outside the training data, as for `fit`.
            y: their labels.
            batch_size: int.

        Returns:
            The temperature; above 1, the classifier was overconfident.

        Raises:
            ValueError: for an ensemble, which is saved as its members.

        Source: Guo et al. 2017, arXiv 1706.04599, section 4.2.
        """
        if hasattr(self, "members"):
            raise ValueError(
                "An ensemble cannot be calibrated, because it is saved as its members."
            )
        before, self.temperature = self.temperature, 1.0
        try:
            y, rows = self._held_out(x, y, batch_size, "calibrate")
            if self.multi_label:  # Each class has the answers no and yes.
                y, rows = y.astype(int).ravel(), np.stack([1 - rows, rows], axis=-1).reshape(-1, 2)
            before = fit_temperature(y, rows)
        finally:
            self.temperature = before
        return self.temperature

    def tune_thresholds(
        self, x: Any, y: Any, precision: float | None = None, batch_size: int = 32
    ) -> dict[str, float]:
        """Return the best threshold of each class on held-out texts, for `classify`.

        Each class is tuned alone. For two exclusive classes without `precision`, the second class'
        F1 is maximized, as in `finetune`.

        Args:
            x: texts outside the training data, as for `fit`.
            y: their labels.
            precision: float. `None` maximizes F1; otherwise, recall is maximized with at least this
                precision.
            batch_size: int.

        Raises:
            ValueError: if a class has no text, or cannot reach the precision.
        """
        y, rows = self._held_out(x, y, batch_size, "tune_thresholds")
        names = self.label_names
        is_of = y > 0 if self.multi_label else y[:, None] == np.arange(len(names))
        found = {}
        for number, name in enumerate(names):
            if not is_of[:, number].any():
                raise ValueError(
                    f"None of the {len(y)} held-out texts is of the class {name!r}, so it has no "
                    "threshold; add some."
                )
            try:
                found[name] = best_threshold(is_of[:, number], rows[:, number], precision)
            except ValueError as error:
                raise ValueError(f"The class {name!r}: {error}") from None
        if len(names) == 2 and not self.multi_label and precision is None:
            found[names[0]] = 1 - found[names[1]]
        return found

    def conformal_threshold(
        self, x: Any, y: Any, coverage: float = 0.9, batch_size: int = 32
    ) -> float:
        """Return the threshold of `class_sets` for a coverage, from held-out texts.

        Args:
            x: texts outside the training data, as for `fit`.
            y: their labels.
            coverage: minimum probability that a set contains the true class.
            batch_size: int.

        Raises:
            ValueError: for a multi-label classifier, and for too few texts.

        Source: see `kerasbert.metrics.conformal_threshold`.
        """
        if self.multi_label:
            raise ValueError(
                "conformal_threshold() is for one class per text, but this classifier is "
                "multi-label; use tune_thresholds(precision=...)."
            )
        return conformal_threshold(
            *self._held_out(x, y, batch_size, "conformal_threshold"), coverage
        )

    def class_sets(self, texts: Texts, threshold: float, batch_size: int = 32) -> Any:
        """Return all classes whose probability is at least `threshold`, the most probable first.

        Args:
            texts: as for `classify`.
            threshold: float. With that of `conformal_threshold`, the set of a new text contains the
                true class with at least the probability `coverage`. Sets may be empty.
            batch_size: int.

        Returns:
            A list of class names per text; for a single text, one list.
        """
        class_thresholds(threshold, self.label_names[:1], False)
        texts, single = as_lists(self, texts, "class_sets()")
        names, sets = self.label_names, []
        for row in self.predict_proba(texts, batch_size):
            order = np.argsort(-row, kind="stable")
            sets.append([names[i] for i in order if row[i] >= threshold])
        return sets[0] if single else sets

    def _entailed(self, texts, labels, template, multi_label, batch_size):
        """Return probabilities (N, L) that each of N texts entails each of L labels."""
        yes, no = _entailment(self.label_names)
        sentences = [template.replace("{}", label) for label in labels]
        pairs = [text for text in texts for _ in labels], sentences * len(texts)
        logits = self._calibrated_logits(pairs, batch_size)
        logits = logits.reshape(len(texts), len(labels), -1)
        if multi_label or len(labels) == 1:
            return 1 / (1 + np.exp(logits[..., no] - logits[..., yes]))
        found = np.exp(logits[..., yes] - logits[..., yes].max(axis=-1, keepdims=True))
        return found / found.sum(axis=-1, keepdims=True)

    def get_config(self) -> dict[str, Any]:
        # Without the default, earlier versions can read the config.
        temperature = {} if self.temperature == 1 else {"temperature": self.temperature}
        return {
            **super().get_config(),
            **temperature,
            "num_classes": self.num_classes,
            "labels": self.labels,
            "multi_label": self.multi_label,
            "activation": keras.activations.serialize(self.activation),
        }


def _entailment(names):
    """Return the class indices of "entailment", and of "contradiction" or "not_entailment"."""
    lower = [name.lower() for name in names]
    yes = [i for i, name in enumerate(lower) if name.startswith(("entail", "함의", "含意"))]
    no = [i for i, name in enumerate(lower) if name.startswith(("contra", "모순", "矛盾", "not"))]
    no = no or [i for i in range(len(names)) if i not in yes and len(names) == 2]
    if len(yes) != 1 or not no:
        raise ValueError(
            "classify(labels=...) needs an entailment model with classes named 'entailment' and "
            f"'contradiction' or 'not_entailment', but the classes are {', '.join(names)}; load "
            "such a model, name its classes with from_preset(..., labels=[...]), or use "
            "BertTextEmbedder.classify."
        )
    return yes[0], no[0]
