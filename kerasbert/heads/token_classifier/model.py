"""Token classification, such as named-entity recognition and part-of-speech tagging.

B batch, T tokens, C classes, N texts, P subwords per text, W words per text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.base.errors import check_value
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.base.head_metrics import TOKEN_CLASSES
from kerasbert.heads.base.headed_task import HeadedTask, HeadSettings, check_classes, class_names
from kerasbert.heads.base.inputs import is_raw, sorted_batches
from kerasbert.heads.base.steps import batch_outputs
from kerasbert.heads.token_classifier.preprocessor import BertTokenClassifierPreprocessor
from kerasbert.layers.crf import CRF, FORBIDDEN
from kerasbert.losses.chains import ChainCrossEntropy, chain_mask
from kerasbert.losses.logits import ClassAccuracy, ClassCrossEntropy
from kerasbert.text.chains import Chains
from kerasbert.text.tagging import TagSet, tag_names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kerasbert.base.aliases import Tensor, Texts


@keras.saving.register_keras_serializable(package="kerasbert")
class BertTokenClassifier(HeadedTask):
    """Tagger of words: named entities, parts of speech or any other label.

    `fit` and `evaluate` take lists of words with labels, or texts with labeled character spans, of
    any length; see `BertTokenClassifierPreprocessor`. The output is logits (B, T, C). Loss and
    accuracy only count subwords with a sample weight above 0.

    Args:
        backbone: a `BertBackbone`.
        num_classes: int. Not needed if `labels` are given.
        preprocessor: a `BertTokenClassifierPreprocessor`, or `None` for preprocessed arrays.
        labels: list of class names such as "O", "B-PER", "I-PER" or, with a `scheme`, of entity
            types such as "PER"; saved in the preset.
        scheme: tagging scheme for entity types: "BIO" (also called "IOB" and "IOB2"), "BIOES"
            ("IOBES"), "BILOU" ("BILUO"), "BMES", "BMEWO" or "IO".
        dropout: dropout before the logits.
        head_activation, head_bias, head_norm, dropout_first, bilstm_units: see
            `BertTextClassifier`.
        crf: whether a conditional random field (`kerasbert.layers.CRF`) scores transitions between
            the labels of neighboring words.

    The six settings before `crf` default to those of the encoder's family.

    With a CRF, the loss is the negative log-likelihood of each text's labels, divided by their
    number. Only labeled subwords are steps of the chain: not padding, unlabeled words and, without
    `label_pieces="all"` in the preprocessor, continuations of words. `tag` and `predict_labels`
    return the best path that the tag scheme allows (Viterbi); probabilities in `tag` and
    `predict_proba` are marginals over such paths. Training allows all transitions: windows of long
    texts may begin inside entities, and labels may break the scheme. `predict` returns class scores
    without transitions. At a learning rate such as 3e-5, transitions would hardly change, so the
    default optimizer and `finetune` train them at 100 times that rate; for your own, pass
    `AdamW(3e-5, learning_rate_multipliers={"crf": 100})`.

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

    # Without a CRF.
    crf, crf_layer = False, None

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
        crf: bool = False,
        **kwargs: Any,
    ) -> None:
        labels = None if labels is None else check_classes(None, labels)[1]
        names = None if labels is None else tag_names(labels, scheme)
        num_classes, names = check_classes(num_classes, names)
        # === Layers ===
        self._set_parts(
            backbone,
            preprocessor,
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

        check_value("crf", crf, "flag")
        if crf:
            allowed = TagSet(class_names(num_classes, names)).allowed()
            self.crf_layer = CRF(
                None if allowed.all() else allowed.tolist(), dtype="float32", name="crf"
            )

        # === Config ===
        self.crf = crf
        self.num_classes = num_classes
        self.labels = labels
        self.scheme = scheme
        logits, _ = self._in_order(self._logits(backbone.input), backbone.input["padding_mask"])
        outputs = self.output_activation(logits)  # (B, T, C)
        if crf:
            outputs = self.crf_layer(outputs)
        super().__init__(inputs=backbone.input, outputs=outputs, **kwargs)

    def default_loss(self) -> Any:
        """Return the loss per subword, averaged by sample weights: cross-entropy, or a CRF's
        negative log-likelihood.
        """
        if self.crf:
            return ChainCrossEntropy(self.crf_layer)
        return ClassCrossEntropy(from_logits=True, reduction="mean_with_sample_weight")

    def default_metrics(self) -> Any:
        """Return the accuracy over the subwords with a weight above 0."""
        return [ClassAccuracy()]

    def learning_rate_multipliers(self) -> dict[str, float] | None:
        """Return a high multiplier for transitions, which must become as large as scores."""
        return {"crf": 100.0} if self.crf else None

    def metric_forms(self) -> Any:
        return TOKEN_CLASSES, self.num_classes

    def compile(
        self, optimizer: Any = "auto", loss: Any = "auto", *, metrics: Any = "auto", **kwargs: Any
    ) -> None:
        """Configure training; see `BertTask.compile`. A CRF only trains with its own loss."""
        if isinstance(loss, ChainCrossEntropy) and self.crf:
            loss = ChainCrossEntropy.from_config(loss.get_config())
            loss.crf = self.crf_layer
        elif isinstance(loss, ChainCrossEntropy) or self.crf and loss not in ("auto", None):
            raise ValueError(
                f"loss={loss!r} does not fit a tagger with crf={self.crf}: a CRF trains with its "
                "own loss, ChainCrossEntropy, and other taggers have no transitions; pass "
                "loss='auto'."
            )
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Tensor, sample_weight: Any = None
    ) -> dict[str, Any]:
        if self.crf:
            # Metrics compare labels with the best path.
            y_pred = self.crf_layer.decoded_scores(y_pred, chain_mask(y, y_pred, sample_weight))
        return super().compute_metrics(x, y, y_pred, sample_weight)

    @property
    def label_names(self) -> list[str]:
        """The class names, or "LABEL_0", "LABEL_1", ... if there are no `labels`."""
        names = None if self.labels is None else tag_names(self.labels, self.scheme)
        return class_names(self.num_classes, names)

    def predict(self, x: Any = None, batch_size: int | None = None, **kwargs: Any) -> Any:
        """Return logits (B, T, C) for preprocessed arrays, or logits per subword for raw input.

        Returns:
            For texts and lists of words of any length, a list of N arrays (P, C) in order: one row
            per subword of `tokenizer.tokenize`.
        """
        if not is_raw(self, x):
            return super().predict(x, batch_size=batch_size, **kwargs)
        pieces = self.preprocessor.read(x)
        return np.split(self._logits_of(pieces, batch_size, **kwargs), pieces.splits[1:-1])

    def predict_proba(self, x: Any, batch_size: int = 32) -> list[np.ndarray]:
        """Return the probabilities of words, as a list of N arrays (W, C); with a CRF, marginals.

        Args:
            x: list of texts or of lists of words.
            batch_size: int.
        """
        pieces, _, probabilities = self._decoded(x, batch_size, "predict_proba()")
        return np.split(probabilities, pieces.unit_splits[1:-1])

    def predict_labels(self, words: Sequence[Any], batch_size: int = 32) -> list[list[str]]:
        """Predict the label of each word.

        Args:
            words: list of N lists of words.
            batch_size: int.

        Returns:
            List of N lists of names. A word without subwords, such as a control character, gets
            "O", or `None` without this label.
        """
        pieces, numbers, _ = self._decoded(words, batch_size, "predict_labels()")
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
            for number, count in zip(numbers, pieces.count, strict=True)
        ]
        splits = pieces.unit_splits
        return [labels[begin:end] for begin, end in zip(splits[:-1], splits[1:])]

    def tag(self, x: Texts, batch_size: int = 32) -> Any:
        """Find entities in texts; other labels than "B-", "I-", ... label each word.

        Args:
            x: a string, a list of strings, or a list of lists of words.
            batch_size: int.

        Returns:
            For each text, a list of dicts in order, without words labeled "O": `label`, `start`,
            `end`, `text` (`text[start:end]`) and `score`, the mean probability of the words'
            labels. For lists of words, `start` and `end` count words, and `text` joins them with
            spaces. For a string, a single list.
        """
        single = isinstance(x, (str, bytes))
        pieces, numbers, probabilities = self._decoded([x] if single else x, batch_size, "tag()")
        tags = TagSet(self.label_names)
        results = []
        splits = pieces.unit_splits
        for row, begin, end in zip(pieces.rows, splits[:-1], splits[1:]):
            there = begin + np.flatnonzero(pieces.count[begin:end])
            best = numbers[there]
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

    def _decoded(self, x, batch_size, method):
        """Return the `Pieces` of texts or words, and their labels and probabilities.

        Returns:
            `(pieces, numbers, probabilities)`: a `Pieces`, ints (units,) and floats (units, C).
        """
        if self.preprocessor is None:
            raise ValueError(
                f"{method} takes texts or lists of words, but this model has no preprocessor."
            )
        pieces = self.preprocessor.read(x)
        logits = self._logits_of(pieces, batch_size, verbose=0).astype("float64")
        if self.crf:
            return pieces, *self._best_paths(pieces, logits)
        logits = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probabilities = logits / logits.sum(axis=-1, keepdims=True)
        probabilities = self.preprocessor.of_units(pieces, probabilities)
        return pieces, probabilities.argmax(axis=-1), probabilities

    def _best_paths(self, pieces, logits):
        there = np.flatnonzero(pieces.count)
        rows = np.repeat(np.arange(len(pieces.rows)), np.diff(pieces.unit_splits))
        numbers = np.zeros(len(pieces.count), "int64")
        probabilities = np.zeros((len(pieces.count), self.num_classes))
        numbers[there], probabilities[there] = self.chains(self.preprocessor).decode(
            logits, pieces.first[there], pieces.count[there], rows[there]
        )
        return numbers, probabilities

    def chains(self, preprocessor: BertTokenClassifierPreprocessor) -> Chains:
        """Return the CRF's scores for decoding, with forbidden transitions."""
        layer = self.crf_layer
        scores = map(keras.ops.convert_to_numpy, (layer.transitions, layer.start, layer.end))
        transitions, start, end = (score.astype("float64") for score in scores)
        if layer.allowed is not None:
            forbidden = np.where(layer.allowed, 0.0, FORBIDDEN)
            transitions += forbidden[:-1, :-1]
            start += forbidden[-1, :-1]
            end += forbidden[:-1, -1]
        return Chains(transitions, start, end, preprocessor.names, preprocessor.label_pieces)

    def _logits_of(self, pieces, batch_size, **kwargs):
        """Return the logits of the subwords of all texts in one array (subwords, C)."""
        dataset, order = sorted_batches(self, pieces, batch_size=batch_size)
        outputs = (row for _, batch in batch_outputs(self, dataset, **kwargs) for row in batch)
        return self.preprocessor.join_windows(pieces, outputs, order)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "labels": self.labels,
            "scheme": self.scheme,
            "crf": self.crf,
        }
