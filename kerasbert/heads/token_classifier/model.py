"""Token classification, such as named-entity recognition and part-of-speech tagging.

B batch, T tokens, C classes, N texts, P subwords per text, W words per text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.base.parts import own_preprocessor
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.base.head_metrics import TOKEN_CLASSES
from kerasbert.heads.base.headed_task import HeadedTask, HeadSettings, check_classes, class_names
from kerasbert.heads.token_classifier.preprocessor import BertTokenClassifierPreprocessor
from kerasbert.losses.logits import ClassAccuracy, ClassCrossEntropy
from kerasbert.text.tagging import TagSet, tag_names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kerasbert.base.aliases import Texts


@keras.saving.register_keras_serializable(package="kerasbert")
class BertTokenClassifier(HeadedTask):
    """Tagger of words: named entities, parts of speech or any other label.

    `fit` and `evaluate` take lists of words with labels, or texts with labeled character spans, of
    any length; see `BertTokenClassifierPreprocessor`. The output is logits (B, T, C). Loss and
    accuracy only count subwords with a sample weight above 0.

    Args:
        backbone: a `BertBackbone`.
        num_classes: int. Not needed with `labels`.
        preprocessor: a `BertTokenClassifierPreprocessor`, or `None` for preprocessed arrays.
        labels: list of class names such as "O", "B-PER", "I-PER" or, with a `scheme`, of entity
            types such as "PER"; saved in the preset.
        scheme: string. Tagging scheme for entity types: "BIO" (also called "IOB" and "IOB2"),
            "BIOES" ("IOBES"), "BILOU" ("BILUO"), "BMES", "BMEWO" or "IO".
        dropout: float. Dropout before the logits.
        head_activation, head_bias, head_norm, dropout_first, bilstm_units: see
            `BertTextClassifier`.

    The last six default to the settings of the encoder's family.

    Example:

    >>> backbone = BertBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> tagger = BertTokenClassifier(backbone, labels=["PER", "LOC"], scheme="BIO")
    >>> tagger.label_names
    ['O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC']
    >>> tagger.predict({"token_ids": np.ones((3, 7), "int32")}, verbose=0).shape
    (3, 7, 5)

    Source: Devlin et al. 2019, arXiv 1810.04805, section 5.3.
    """

    backbone_cls = BertBackbone
    preprocessor_cls = BertTokenClassifierPreprocessor
    kind = "token_classifier"

    def __init__(
        self,
        backbone: BertBackbone,
        num_classes: int | None = None,
        preprocessor: BertTokenClassifierPreprocessor | None = None,
        labels: Any = None,
        scheme: str | None = None,
        dropout: float | None = None,
        head_activation: str | None = None,
        head_bias: bool | None = None,
        head_norm: bool | None = None,
        dropout_first: bool | None = None,
        bilstm_units: int | None = None,
        **kwargs: Any,
    ) -> None:
        labels = None if labels is None else check_classes(None, labels)[1]
        names = None if labels is None else tag_names(labels, scheme)
        num_classes, names = check_classes(num_classes, names)
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = own_preprocessor(
            backbone,
            preprocessor,
            self.preprocessor_cls,
            labels=labels,
            scheme=scheme,
            num_classes=num_classes,
        )
        self._make_head(
            num_classes,
            HeadSettings(
                dropout,
                "tokens",
                head_activation,
                head_bias,
                head_norm,
                dropout_first,
                bilstm_units,
            ),
        )
        # Losses need float32.
        self.output_activation = keras.layers.Activation(None, dtype="float32", name="predictions")

        # === Config ===
        self.num_classes = num_classes
        self.labels = labels
        self.scheme = scheme
        outputs = self.output_activation(self._logits(backbone.input))  # (B, T, C)
        super().__init__(inputs=backbone.input, outputs=outputs, **kwargs)

    def default_loss(self) -> Any:
        """Cross-entropy, averaged over the subwords with sample weights."""
        return ClassCrossEntropy(from_logits=True, reduction="mean_with_sample_weight")

    def default_metrics(self) -> Any:
        """Accuracy over the subwords with a weight above 0."""
        return [ClassAccuracy()]

    def metric_forms(self) -> Any:
        return TOKEN_CLASSES, self.num_classes

    @property
    def label_names(self) -> list[str]:
        """The class names, or "LABEL_0", "LABEL_1", ... without `labels`."""
        names = None if self.labels is None else tag_names(self.labels, self.scheme)
        return class_names(self.num_classes, names)

    def predict(self, x: Any = None, batch_size: int | None = None, **kwargs: Any) -> Any:
        """Return logits (B, T, C) of preprocessed arrays, or logits per subword of raw input.

        Returns:
            For texts and lists of words of any length, a list of N arrays (P, C) in order: one row
            per subword of `tokenizer.tokenize`, without special tokens.
        """
        if not self._is_raw(x):
            return super().predict(x, batch_size=batch_size, **kwargs)
        pieces = self.preprocessor.read(x)
        return np.split(self._logits_of(pieces, batch_size, **kwargs), pieces.splits[1:-1])

    def predict_proba(self, x: Any, batch_size: int = 32) -> list[np.ndarray]:
        """Return the probabilities of words, as a list of N arrays (W, C).

        Args:
            x: list of texts or of lists of words.
            batch_size: int.
        """
        pieces, probabilities = self._probabilities(x, batch_size, "predict_proba()")
        return np.split(probabilities, pieces.unit_splits[1:-1])

    def predict_labels(self, words: Sequence[Any], batch_size: int = 32) -> list[list[str]]:
        """Predict the label of each word.

        Args:
            words: list of N lists of words.
            batch_size: int.

        Returns:
            List of N lists of names. A word without subwords, such as a control character, gets
            "O", or `None` if there is no such label.
        """
        pieces, probabilities = self._probabilities(words, batch_size, "predict_labels()")
        if not pieces.words:
            raise ValueError(
                "predict_labels() takes lists of words and returns one label per word, got texts; "
                "use tag() for texts."
            )
        names = self.label_names
        nothing = "O"
        if nothing not in names:
            outside = TagSet(names).outside
            nothing = None if outside is None else names[outside]
        labels = [
            names[number] if count else nothing
            for number, count in zip(probabilities.argmax(-1), pieces.count, strict=True)
        ]
        splits = pieces.unit_splits
        return [labels[begin:end] for begin, end in zip(splits[:-1], splits[1:])]

    def tag(self, x: Texts, batch_size: int = 32) -> Any:
        """Find the entities of texts; if labels are not "B-", "I-", ..., label each word.

        Args:
            x: a string, a list of strings, or a list of lists of words.
            batch_size: int.

        Returns:
            For each text, a list of dicts in order, without words labeled "O": `label`, `start`,
            `end`, `text` (`text[start:end]`) and `score`, the mean probability of the words'
            labels. For lists of words, `start` and `end` count words instead of characters, and
            `text` joins them with spaces. One list for a single string.
        """
        single = isinstance(x, (str, bytes))
        pieces, probabilities = self._probabilities([x] if single else x, batch_size, "tag()")
        tags = TagSet(self.label_names)
        results = []
        splits = pieces.unit_splits
        for row, begin, end in zip(pieces.rows, splits[:-1], splits[1:]):
            there = begin + np.flatnonzero(pieces.count[begin:end])
            best = probabilities[there].argmax(axis=-1)
            scores = probabilities[there, best]
            found = []
            for label, first, past in tags.entities(best):
                start = int(pieces.starts[there[first]])
                stop = int(pieces.ends[there[past - 1]])
                found.append(
                    {
                        "label": label,
                        "start": start,
                        "end": stop,
                        "text": " ".join(row[start:stop]) if pieces.words else row[start:stop],
                        "score": float(scores[first:past].mean()),
                    }
                )
            results.append(found)
        return results[0] if single else results

    def _probabilities(self, x, batch_size, method):
        """Return the `Pieces` of texts or lists of words, and probabilities (units, C)."""
        if self.preprocessor is None:
            raise ValueError(
                f"{method} takes texts or lists of words, but this model has no preprocessor."
            )
        pieces = self.preprocessor.read(x)
        logits = self._logits_of(pieces, batch_size, verbose=0).astype("float64")
        logits = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probabilities = logits / logits.sum(axis=-1, keepdims=True)
        return pieces, self.preprocessor.of_units(pieces, probabilities)

    def _logits_of(self, pieces, batch_size, **kwargs):
        """Return logits (subwords of all texts, C)."""
        dataset, order = self._sorted_batches(pieces, batch_size=batch_size)
        outputs = (row for _, batch in self._batch_outputs(dataset, **kwargs) for row in batch)
        return self.preprocessor.join_windows(pieces, outputs, order)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "labels": self.labels,
            "scheme": self.scheme,
        }
