"""Reranking by a cross-encoder.

B batch, C texts per query, T tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.base.head_metrics import PAIRS
from kerasbert.heads.base.headed_task import HeadedTask, HeadSettings
from kerasbert.heads.base.inputs import as_lists, best_first, check_ranked, is_dataset, is_raw
from kerasbert.heads.base.steps import discard_steps
from kerasbert.heads.multiple_choice.model import by_pairs
from kerasbert.heads.reranker.preprocessor import BertRerankerPreprocessor
from kerasbert.layers.heads import MISSING, ChoicesToRows, RowsToChoices
from kerasbert.losses.logits import PairAccuracy, PairCrossEntropy, PairSquaredError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kerasbert.base.aliases import Tensor, Texts

ACTIVATIONS = ("sigmoid", "linear")
# These replace Keras' own losses, which treat numbers (B,) as a single row.
_LOSSES = {
    "bce": PairCrossEntropy,
    "binarycrossentropy": PairCrossEntropy,
    "mse": PairSquaredError,
    "meansquarederror": PairSquaredError,
}


@keras.saving.register_keras_serializable(package="kerasbert")
class BertReranker(HeadedTask):
    """Cross-encoder: reads a query and a text together and scores their relevance.

    `fit`, `evaluate` and `predict` take raw strings; the output is one logit per pair, (B,).
    Labels are between 0 and 1, or any numbers with `compile(loss="mse")`. For listwise training,
    pass queries with lists of texts, of any length, and lists of grades, such as 0 to 3. The output
    is then (B, C), with -1e9 for missing texts, as the losses and metrics of keras-rs
    (`pip install keras-rs`) expect:

        reranker = BertReranker.from_preset("bert_base_en_uncased", new_head=True)
        reranker.compile(loss=keras_rs.losses.ListMLELoss(), metrics=[keras_rs.metrics.NDCG(k=10)])
        reranker.fit((["who?"], [["me", "noon"]]), [[2, 0]])

    Args:
        backbone: a `BertBackbone`.
        preprocessor: a `BertRerankerPreprocessor`, or `None` for preprocessed arrays.
        activation: string. How `score` and `rank` convert logits: "sigmoid" (0 to 1), or "linear"
            or `None` (unchanged), which losses on lists or labels outside 0 to 1 need. Checkpoints
            of sentence-transformers set it.
        dropout, pooling, head_activation, head_bias, head_norm, dropout_first, bilstm_units,
            output_bias, long: see `BertTextClassifier`.

    Example:

    >>> backbone = BertBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> reranker = BertReranker(backbone)
    >>> reranker.predict({"token_ids": np.ones((3, 5), "int32")}, verbose=0).shape
    (3,)
    >>> reranker.predict({"token_ids": np.ones((3, 4, 5), "int32")}, verbose=0).shape
    (3, 4)

    Source: Nogueira and Cho 2019, "Passage Re-ranking with BERT", arXiv 1901.04085.
    """

    backbone_cls = BertBackbone
    preprocessor_cls = BertRerankerPreprocessor
    kind = "reranker"
    takes_long = True
    output_padding = MISSING

    def __init__(
        self,
        backbone: BertBackbone,
        preprocessor: BertRerankerPreprocessor | None = None,
        activation: str | None = "sigmoid",
        dropout: float | None = None,
        pooling: str | None = None,
        head_activation: str | None = None,
        head_bias: bool | None = None,
        head_norm: bool | None = None,
        dropout_first: bool | None = None,
        bilstm_units: int | None = None,
        output_bias: bool | None = None,
        long: Any = None,
        **kwargs: Any,
    ) -> None:
        self.activation = "linear" if activation is None else activation
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"activation={activation!r} is unknown; use one of {', '.join(ACTIVATIONS)}."
            )
        self._set_parts(backbone, preprocessor, long=long)
        self._make_head(
            1,
            HeadSettings(
                dropout,
                pooling,
                head_activation,
                head_bias,
                head_norm,
                dropout_first,
                bilstm_units,
                output_bias,
            ),
        )
        self.lists_to_pairs = ChoicesToRows(name="lists_to_pairs")
        self.pairs_to_lists = RowsToChoices(dtype="float32", name="pairs_to_lists")
        # Losses need float32.
        inputs = self._window_inputs()
        outputs = ops.cast(self._logits(inputs)[:, 0], "float32")  # (B,)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        self.input_spec = None  # Inputs with lists of texts have one more axis.

    def call(
        self, inputs: Tensor, training: bool | None = None, mask: Tensor = None, **kwargs: Any
    ) -> Tensor:
        if len(inputs["token_ids"].shape) == self._pair_rank:
            return super().call(inputs, training=training, **kwargs)
        inputs = self.fill_in(inputs)
        logits = super().call(self.lists_to_pairs(inputs), training=training, **kwargs)  # (B * C,)
        return self.pairs_to_lists(logits, padding_mask=inputs["padding_mask"])  # (B, C)

    # === Pairs and lists, whose arrays differ in rank ===

    @property
    def _pair_rank(self):
        """Number of axes of the token ids of pairs; those of lists have one more."""
        return 3 if self.long.has_windows else 2

    def _has_open_outputs(self, batches):
        return super()._has_open_outputs(batches) or _rank(batches) == self._pair_rank + 1

    def _expect_batches(self, method, batches):
        step = {"fit": "train", "evaluate": "test"}.get(method, method.partition("_")[0])
        discard_steps(self, _rank(batches), step)

    def default_loss(self) -> Any:
        """Return the binary cross-entropy of pairs, in which all lists have the same weight."""
        return PairCrossEntropy()

    def default_metrics(self) -> Any:
        """Return the accuracy."""
        return [PairAccuracy()]

    def metric_forms(self) -> Any:
        return PAIRS, None

    def compile(
        self, optimizer: Any = "auto", loss: Any = "auto", *, metrics: Any = "auto", **kwargs: Any
    ) -> None:
        """Configure training; see `BertTask.compile`.

        Args:
            optimizer, **kwargs: see `BertTask.compile`.
            loss: "auto" and "bce" take labels from 0 to 1; "mse" any numbers, or for lists grades
                of at least 0. All lists weigh the same. Or, for lists, a loss of keras-rs.
            metrics: "auto" is accuracy with the default loss, and no metrics with other losses.
        """
        if isinstance(loss, str):
            is_auto = loss == "auto"
            loss = _LOSSES.get(loss.replace("_", "").lower(), lambda: loss)()
        else:
            is_auto = isinstance(loss, PairCrossEntropy)
        if isinstance(metrics, str) and metrics == "auto" and not is_auto:
            metrics = None
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)

    def _check_labels(self, y):
        if y is None or not isinstance(getattr(self, "loss", None), PairCrossEntropy):
            return
        rows = keras.ops.convert_to_numpy(y) if keras.ops.is_tensor(y) else y
        rows = [row if isinstance(row, (list, tuple)) else np.ravel(row) for row in rows]
        for position, row in enumerate(rows):
            for label in row:
                if not 0 <= label <= 1 and not (label == -1 and len(row) > 1):
                    raise ValueError(
                        f"The label at position {position} has {label}, but the default loss takes "
                        "0 to 1; divide by the largest, use compile(loss='mse') or, for lists of "
                        "grades, a loss of keras-rs."
                    )

    def predict(self, x: Any = None, batch_size: int | None = None, **kwargs: Any) -> np.ndarray:
        """Return logits of raw texts or arrays, in the order of `x`.

        They are (N,) for pairs and (N, C) for lists, with C the largest number of texts and -1e9
        for missing ones. `batch_size` counts texts, batched by length.
        """
        if not is_raw(self, x):
            return super().predict(x, batch_size=batch_size, **kwargs)
        columns, batched = self.preprocessor.columns(x)
        if not batched or isinstance(columns[1][0], (str, bytes)):
            return super().predict(columns if batched else x, batch_size=batch_size, **kwargs)
        pairs, is_there = by_pairs(*columns)
        logits = np.full(is_there.shape, MISSING, "float32")
        logits[is_there] = super().predict(pairs, batch_size=batch_size, **kwargs)
        return logits

    def score(self, pairs: Texts, batch_size: int = 32) -> Any:
        """Score the relevance of each text to its query: logits with `activation` applied.

        Args:
            pairs: a list of pairs, a tuple of queries and texts, or a tuple `(query, text)`.
            batch_size: int.

        Returns:
            float32 (N,), or a float for a single pair. For queries with lists of texts, a list
            of such arrays.
        """
        (queries, texts), single = as_lists(self, pairs, "score()")
        logits = self.predict((queries, texts), batch_size=batch_size, verbose=0)
        scores = self._scores(logits)
        if scores.ndim == 2:
            lists = [row[: len(its)] for row, its in zip(scores, texts, strict=True)]
            return lists[0] if single else lists
        return float(scores[0]) if single else scores

    def _scores(self, logits):
        logits = np.asarray(logits, "float64")
        if self.activation == "sigmoid":
            logits = np.exp(-np.logaddexp(0, -logits))
        return logits.astype("float32")

    def rank(
        self,
        query: str,
        texts: Sequence[str],
        top_k: int | None = None,
        batch_size: int = 32,
        return_texts: bool = False,
    ) -> list[dict[str, Any]]:
        """Rank texts by relevance to a query, like `rank` of sentence-transformers.

        Args:
            query: string.
            texts: list of strings.
            top_k: number of texts to return; `None` for all.
            batch_size: int.
            return_texts: whether to return the texts too.

        Returns:
            A list of dicts, best first: `corpus_id` (the index in `texts`), `score` and optionally
            `text`. Ties keep the given order.
        """
        texts = check_ranked(query, texts, top_k)
        if not texts:
            return []
        (queries, read), _ = as_lists(self, ([query] * len(texts), texts), "rank()")
        # Rounding may differ between rows, so equal texts run once.
        places = {text: place for place, text in enumerate(dict.fromkeys(read))}
        pairs = queries[: len(places)], list(places)
        logits = self.predict(pairs, batch_size=batch_size, verbose=0)
        logits = logits[[places[text] for text in read]]
        # The sigmoid rounds high logits to 1.
        return best_first(logits, self._scores(logits), texts, top_k, return_texts)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "activation": self.activation}


def _rank(x):
    """Return the rank of the token ids in features, a batch, batches or a dataset, or `None`."""
    x = x.element_spec if is_dataset(x) else x
    while isinstance(x, (tuple, list)) and x:
        x = x[0]
    ids = x.get("token_ids") if isinstance(x, dict) else None
    return None if ids is None else np.ndim(ids) if isinstance(ids, list) else len(ids.shape)
