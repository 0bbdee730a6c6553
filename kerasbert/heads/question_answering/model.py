"""Extractive question answering: answers are spans of a context.

B batch, T tokens, N questions, W windows of their contexts.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert.base.errors import check_whole
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.base.head_metrics import PLACES
from kerasbert.heads.base.headed_task import HeadedTask, HeadSettings
from kerasbert.heads.base.inputs import as_lists, is_raw
from kerasbert.heads.base.spans import MASKED, best_spans
from kerasbert.heads.base.steps import predict_texts
from kerasbert.heads.question_answering.preprocessor import BertQuestionAnsweringPreprocessor
from kerasbert.text.windows import most_context

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Texts

_OUTPUTS = ("start_logits", "end_logits")


@keras.saving.register_keras_serializable(package="kerasbert")
class BertQuestionAnswering(HeadedTask):
    """Extractive question answering on contexts of any length.

    The output is a dict of `start_logits` and `end_logits`, float32 (B, T), for the first and the
    last token of the answer. A span that is only the first token, `[CLS]`, means "no answer".
    Padding has the logit -1e9. Labels are token positions, int (B,), in a dict with the same names.

    `fit` and `evaluate` take raw questions, contexts and answers; each window of a context is an
    example (see `BertQuestionAnsweringPreprocessor`). For raw texts, `predict` returns a row per
    window of `preprocessor.windows(x)`, (W, T), padded to the longest. `answer` combines a
    context's windows.

    A model that is trained on unanswerable questions can return "no answer" if its `null_threshold`
    is set. `fit` on such questions as raw texts sets it to 0, and `finetune` to the value that is
    best on the dev examples; presets and exports keep it.

    Args:
        backbone: a `BertBackbone`.
        preprocessor: a `BertQuestionAnsweringPreprocessor`, or `None` for preprocessed arrays.
        dropout, head_activation, head_bias, head_norm, dropout_first, bilstm_units: see
            `BertTextClassifier`.
        null_threshold: float. Default of `answer`; `None` for a model that was not trained on
            unanswerable questions.

    Example:

    >>> backbone = BertBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> model = BertQuestionAnswering(backbone)
    >>> outputs = model.predict({"token_ids": np.ones((3, 5), "int32")}, verbose=0)
    >>> outputs["start_logits"].shape, outputs["end_logits"].shape
    ((3, 5), (3, 5))

    Source: Devlin et al. 2019, arXiv 1810.04805, sections 4.2 and 4.3.
    """

    backbone_cls = BertBackbone
    preprocessor_cls = BertQuestionAnsweringPreprocessor
    kind = "question_answering"
    output_padding = MASKED

    def __init__(
        self,
        backbone: BertBackbone,
        preprocessor: BertQuestionAnsweringPreprocessor | None = None,
        dropout: float | None = None,
        head_activation: str | None = None,
        head_bias: bool | None = None,
        head_norm: bool | None = None,
        dropout_first: bool | None = None,
        bilstm_units: int | None = None,
        null_threshold: float | None = None,
        **kwargs: Any,
    ) -> None:
        _check_threshold(null_threshold)
        self.null_threshold = null_threshold
        self._set_parts(backbone, preprocessor)
        self._make_head(
            2,
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
        inputs = backbone.input
        # Losses need float32.
        logits, mask = self._in_order(self._logits(inputs), inputs["padding_mask"])
        logits = ops.cast(logits, "float32")  # (B, T, 2)
        is_token = ops.cast(mask, "bool")  # (B, T)
        outputs = {
            name: ops.where(is_token, logits[:, :, i], MASKED) for i, name in enumerate(_OUTPUTS)
        }
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def default_loss(self) -> Any:
        """Return the cross-entropy over the positions, for the start and for the end."""
        return {
            name: keras.losses.SparseCategoricalCrossentropy(from_logits=True) for name in _OUTPUTS
        }

    def default_loss_weights(self) -> Any:
        """Return weights with which the loss is the mean of the two losses."""
        return dict.fromkeys(_OUTPUTS, 0.5)

    def default_metrics(self) -> Any:
        """Return the accuracy of the start and that of the end."""
        return {
            name: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")] for name in _OUTPUTS
        }

    def metric_forms(self) -> Any:
        return dict.fromkeys(_OUTPUTS, (PLACES, None))

    def fit(
        self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any
    ) -> keras.callbacks.History:
        """Train on raw texts or preprocessed arrays; see `BertTask.fit`."""
        if y is not None and is_raw(self, x):
            y = self.preprocessor.spans(x, y)
            if self.null_threshold is None and (y < 0).any():
                self.null_threshold = 0.0
        return super().fit(x, y, *args, **kwargs)

    def forget_calibration(self) -> None:
        if self.null_threshold:
            warnings.warn(
                f"Training resets the null_threshold of {self.null_threshold:.3g}, which was tuned "
                "on other weights, to 0.",
                stacklevel=3,
            )
            self.null_threshold = 0.0

    def answer(
        self,
        question: Texts,
        context: Texts,
        top_k: int = 1,
        null_threshold: float | None = None,
        max_answer_length: int = 30,
        n_best: int = 20,
        batch_size: int = 32,
    ) -> Any:
        """Answer questions from contexts of any length.

        Args:
            question: a string or a list of N strings.
            context: like `question`.
            top_k: maximum number of answers.
            null_threshold: float. A `null_score` above it means no answer. `None` means the model's
                own; if that is `None` too, or with infinity, there is always an answer.
            max_answer_length: maximum number of tokens in an answer.
            n_best: number of starts and of ends that are combined per window. Also the number of
                best spans whose probabilities, with that of "no answer", sum to 1.
            batch_size: int.

        Returns:
            For each question, a list of dicts, best first; with a finite threshold, "no answer" is
            among them:

            - `answer`: the text from the context, or "" for no answer,
            - `start`, `end`: its position, `context[start:end]`; `None` for no answer,
            - `score`: the probability among the `n_best` spans and, with a threshold, "no answer",
              whose logit is lowered by the threshold, if it is finite,
            - `null_score`: the logits of "no answer" minus those of the best span.

            If `question` is a string, a single list.

        Source: released code of Devlin et al. 2019 (see `best_spans`). Without a span by its rules,
        all tokens are paired.
        """
        check_whole("top_k", top_k)
        check_whole("max_answer_length", max_answer_length)
        check_whole("n_best", n_best)
        _check_threshold(null_threshold)
        null_threshold = self.null_threshold if null_threshold is None else null_threshold
        texts, _ = as_lists(self, (question, context), "answer()")
        single = isinstance(question, (str, bytes))
        windows = self.preprocessor.windows(texts)
        logits = predict_texts(self, windows, batch_size, verbose=0)
        results = []
        for example, rows in enumerate(_rows_of(windows.examples)):
            ends = _in_context(windows, rows, logits["start_logits"].shape[1])
            starts = ends.copy()
            starts[ends] = _counting(windows, rows)
            spans, scores, null_score = best_spans(
                *(logits[name][rows] for name in _OUTPUTS),
                starts,
                ends,
                n_best,
                max_answer_length,
                null_threshold,
            )
            results.append(
                [
                    {
                        **_describe(windows, example, rows, span),
                        "score": float(score),
                        "null_score": null_score,
                    }
                    for span, score in zip(spans[:top_k], scores[:top_k], strict=True)
                ]
            )
        return results[0] if single else results

    def get_config(self) -> dict[str, Any]:
        # The default is left out, so that earlier versions can read the config.
        threshold = self.null_threshold
        own = {} if threshold is None else {"null_threshold": float(threshold)}
        return {**super().get_config(), **own}


def _check_threshold(threshold):
    if threshold is None:
        return
    if not isinstance(threshold, (int, float, np.number)) or not threshold > -np.inf:
        raise ValueError(f"null_threshold must be a number or None, got {threshold!r}.")


def _rows_of(examples):
    """Return a slice of rows for each example."""
    bounds = np.searchsorted(examples, np.arange(examples[-1] + 2))
    return [slice(*bound) for bound in zip(bounds[:-1], bounds[1:])]


def _in_context(windows, rows, length):
    """Return whether each token belongs to the context: bool (rows, T)."""
    position = np.arange(length) - windows.positions[rows, None]
    return (position >= 0) & (position < windows.lengths[rows, None])


def _counting(windows, rows):
    """Return which context tokens may start an answer, in one array.

    Of overlapping windows, only the one in which a token has the most context counts.
    """
    begins = windows.begins[rows]
    return most_context(np.zeros_like(begins), begins, begins + windows.lengths[rows])


def _describe(windows, example, rows, span):
    window, first, last = span
    if window < 0:
        return {"answer": "", "start": None, "end": None}
    row = rows.start + window
    to_token = windows.begins[row] - windows.positions[row]
    start = int(windows.starts[example][first + to_token])
    end = int(windows.ends[example][last + to_token])
    return {"answer": windows.contexts[example][start:end], "start": start, "end": end}
