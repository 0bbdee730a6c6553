"""Multiple choice: select the text that best fits a prompt.

B batch, C choices, T tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.base.head_metrics import PLACES
from kerasbert.heads.base.headed_task import HeadedTask, HeadSettings
from kerasbert.heads.base.inputs import as_lists, is_raw
from kerasbert.heads.multiple_choice.preprocessor import BertMultipleChoicePreprocessor
from kerasbert.layers.heads import MISSING, ChoicesToRows, RowsToChoices
from kerasbert.losses.logits import ClassAccuracy, ClassCrossEntropy

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Texts


@keras.saving.register_keras_serializable(package="kerasbert")
class BertMultipleChoice(HeadedTask):
    """Multiple-choice model: selects the answer to a question or the ending of a story.

    `fit`, `evaluate` and `predict` take raw strings: prompts, each with a list of any number of
    choices. Preprocessed arrays are (B, C, T); the `padding_mask` of a missing choice is all 0.
    The output is one logit per choice, (B, C); the logit of a missing choice is -1e9.

    Args:
        backbone: a `BertBackbone`.
        preprocessor: a `BertMultipleChoicePreprocessor`, or `None` for preprocessed arrays.
        dropout, pooling, head_activation, head_bias, head_norm, dropout_first, bilstm_units: see
            `BertTextClassifier`.

    Example:

    >>> backbone = BertBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> model = BertMultipleChoice(backbone)
    >>> model.predict({"token_ids": np.ones((3, 4, 5), "int32")}, verbose=0).shape
    (3, 4)

    Source: Devlin et al. 2019, arXiv 1810.04805, section 4.4 (SWAG).
    """

    backbone_cls = BertBackbone
    preprocessor_cls = BertMultipleChoicePreprocessor
    kind = "multiple_choice"
    output_padding = MISSING

    def __init__(
        self,
        backbone: BertBackbone,
        preprocessor: BertMultipleChoicePreprocessor | None = None,
        dropout: float | None = None,
        pooling: str | None = None,
        head_activation: str | None = None,
        head_bias: bool | None = None,
        head_norm: bool | None = None,
        dropout_first: bool | None = None,
        bilstm_units: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._set_parts(backbone, preprocessor)
        self._make_head(
            1,
            HeadSettings(
                dropout, pooling, head_activation, head_bias, head_norm, dropout_first, bilstm_units
            ),
        )
        inputs = {
            name: keras.Input((None, None), dtype="int32", name=name) for name in backbone.input
        }
        logits = self._logits(ChoicesToRows(name="choices_to_rows")(inputs))  # (B * C, 1)
        # Losses need float32.
        outputs = RowsToChoices(dtype="float32", name="rows_to_choices")(
            logits, padding_mask=inputs["padding_mask"]
        )  # (B, C)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def default_loss(self) -> Any:
        """Return the cross-entropy over the choices."""
        return ClassCrossEntropy(from_logits=True)

    def default_metrics(self) -> Any:
        """Return the accuracy."""
        return [ClassAccuracy()]

    def metric_forms(self) -> Any:
        return PLACES, None

    def predict(self, x: Any = None, batch_size: int | None = None, **kwargs: Any) -> Any:
        """Return logits (N, C) of raw texts or arrays, in the order of `x`.

        Each prompt with a choice is a row, batched by length and counted by `batch_size`. C is the
        largest number of choices.
        """
        if not is_raw(self, x):
            return super().predict(x, batch_size=batch_size, **kwargs)
        (prompts, choices), _ = self.preprocessor.columns(x)
        (prompts, choices), is_there = by_pairs(prompts, choices)
        logits = np.full(is_there.shape, MISSING, "float32")
        rows = prompts, [[choice] for choice in choices]
        logits[is_there] = super().predict(rows, batch_size=batch_size, **kwargs)[:, 0]
        return logits

    def check_arrays(self, x: Any, y: Any = None) -> None:
        if not isinstance(x, dict) or "token_ids" not in x:
            return
        names = [name for name in ("token_ids", "segment_ids", "padding_mask") if name in x]
        arrays = {name: _array(x[name], name) for name in names}
        shape = arrays["token_ids"].shape
        if len(shape) != 3 or 0 in shape:
            raise ValueError(
                f"token_ids has the shape {shape}, but {type(self).__name__} expects (examples, "
                "choices, tokens)."
            )
        for name, array in arrays.items():
            if array.shape != shape:
                raise ValueError(f"{name} has the shape {array.shape}, but token_ids has {shape}.")
        if "padding_mask" in arrays:
            present = arrays["padding_mask"].any(axis=-1)  # (B, C)
        else:
            present = np.ones(shape[:2], bool)
        for position in np.flatnonzero(~present.any(axis=-1))[:1]:
            raise ValueError(
                f"The example at position {position} has no choices: its padding_mask is all 0."
            )
        y = None if y is None else _array(y, "y")
        if y is None or y.size != len(present):
            return  # Keras raises its own error for wrong sizes.
        y = y.reshape(-1)
        inside = (y >= 0) & (y < shape[1])
        inside &= present[np.arange(len(y)), np.where(inside, y, 0).astype(int)]
        for position in np.flatnonzero(~inside)[:1]:
            raise ValueError(
                f"The label {y[position]} at position {position} is not one of its choices, "
                f"{np.flatnonzero(present[position]).tolist()}."
            )

    def choose(self, prompt: Texts, choices: Any, batch_size: int = 32) -> Any:
        """Choose one of the choices of each prompt.

        Args:
            prompt: a string or a list of N strings.
            choices: a list of strings, or N such lists of any length.
            batch_size: number of choices per batch.

        Returns:
            For each prompt, a dict of `choice`, its `index`, its `score` (probability) and the
            `scores` of all choices. For a string, a single dict.
        """
        (prompts, choices), single = as_lists(self, (prompt, choices), "choose()")
        logits = self.predict((prompts, choices), batch_size=batch_size, verbose=0)
        results = []
        for row, names in zip(logits.astype("float64"), choices, strict=True):
            scores = np.exp(row[: len(names)] - row.max())
            scores /= scores.sum()
            best = int(np.argmax(scores))
            results.append(
                {
                    "choice": names[best],
                    "index": best,
                    "score": float(scores[best]),
                    "scores": scores.tolist(),
                }
            )
        return results[0] if single else results


def by_pairs(prompts, choices):
    """Pair each choice with its prompt.

    Returns:
        `((prompts, choices), is_there)`: two lists of strings, for the true values of `is_there`
        (N, C).

    >>> by_pairs(["a", "b"], [["c"], ["d", "e"]])[0]
    (['a', 'b', 'b'], ['c', 'd', 'e'])
    """
    counts = np.array([len(row) for row in choices])
    prompts = [prompt for prompt, row in zip(prompts, choices, strict=True) for _ in row]
    is_there = np.arange(counts.max()) < counts[:, None]
    return (prompts, [choice for row in choices for choice in row]), is_there


def _array(value, name):
    try:
        is_tensor = keras.ops.is_tensor(value)
        return keras.ops.convert_to_numpy(value) if is_tensor else np.asarray(value)
    except ValueError:
        raise ValueError(
            f"{name} is ragged: examples differ in their numbers of choices or tokens; pad them, "
            "with a padding_mask of all 0 for missing choices."
        ) from None
