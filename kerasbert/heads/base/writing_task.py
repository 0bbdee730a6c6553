"""Base classes of tasks that predict tokens or generate text.

B batch, T tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert.base.errors import is_whole
from kerasbert.base.finite import check_weights
from kerasbert.heads.base.head_metrics import TOKEN_CLASSES
from kerasbert.heads.base.inputs import check_ids
from kerasbert.heads.base.task import BertTask
from kerasbert.losses import Perplexity, TokenAccuracy, TokenCrossEntropy
from kerasbert.samplers import own_sampler

if TYPE_CHECKING:
    from typing import Any


class TokenTask(BertTask):
    """Base class of tasks that predict tokens of the vocabulary."""

    def _needs_labels(self, is_raw):
        return not is_raw  # The preprocessor makes labels from texts.

    def default_loss(self) -> Any:
        """Return the cross-entropy, averaged over the tokens."""
        return TokenCrossEntropy()

    def default_metrics(self) -> Any:
        """Return accuracy and perplexity over the tokens."""
        return [TokenAccuracy(), Perplexity()]

    def metric_forms(self) -> Any:
        return TOKEN_CLASSES, self.backbone.vocabulary_size


class WritingTask(TokenTask):
    """Base class of tasks that generate text."""

    # The sampler of `compile(sampler="auto")`.
    usual_sampler = "top_k"

    def _forget_writing(self):
        """Discard compiled generation functions."""
        self.generate_function = None

    def compile(
        self,
        optimizer: Any = "auto",
        loss: Any = "auto",
        *,
        metrics: Any = "auto",
        sampler: Any = "auto",
        **kwargs: Any,
    ) -> None:
        """Configure training and `generate`; see `BertTask.compile`.

        Args:
            sampler: "top_k", "greedy", "beam", "top_p", "random", or an object of
                `keras_hub.samplers` or `kerasbert.samplers`; "auto" is the class's default.
            optimizer, loss, metrics, **kwargs: see `BertTask.compile`.
        """
        is_auto = isinstance(sampler, str) and sampler == "auto"
        self.sampler = own_sampler(self.usual_sampler if is_auto else sampler)
        self._forget_writing()  # These functions were compiled with the old sampler.
        super().compile(optimizer, loss, metrics=metrics, **kwargs)

    def get_compile_config(self) -> dict[str, Any]:
        config = super().get_compile_config()
        if config and isinstance(config.get("optimizer"), dict):
            # Beside "built", because `keras.models.clone_model` passes on no other entries.
            config["optimizer"]["sampler"] = keras.saving.serialize_keras_object(self.sampler)
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        optimizer = config.get("optimizer")
        sampler = optimizer.pop("sampler", None) if isinstance(optimizer, dict) else None
        super().compile_from_config(config)
        if sampler is not None:
            self.sampler = own_sampler(sampler)

    def quantize(self, mode: str | None = None, **kwargs: Any) -> None:
        super().quantize(mode, **kwargs)
        self._forget_writing()

    def _stops(self, ids):
        """Return the stop tokens as a tuple of ints, or `None` if there are none."""
        if isinstance(ids, str) and ids == "auto":
            if self.preprocessor is None:
                raise ValueError(
                    "stop_token_ids='auto' is the tokenizer's end token, but this model has no "
                    "preprocessor; pass its id, or None to generate up to the maximum length."
                )
            return (self.preprocessor.tokenizer.end_token_id,)
        if ids is None:
            return None
        ids = [ids] if is_whole(ids) or not hasattr(ids, "__iter__") else list(ids)
        count = self.backbone.vocabulary_size
        for id in ids:
            if not is_whole(id) or not 0 <= id < count:
                raise ValueError(
                    f"stop_token_ids has {id!r}; token ids of the encoder are 0 to {count - 1}."
                )
        return tuple(map(int, ids)) or None

    def _check_finite(self):
        """Raise if weights are not finite.

        The generation loop returns no logits to check; this takes about as long as one token.
        """
        weights = [one for one in self.weights if getattr(one.value, "is_fully_addressable", True)]
        # float16 is cast, because the sum of most embedding tables would overflow.
        sums = [
            ops.sum(ops.cast(one.value, "float32") if one.dtype == "float16" else one.value)
            for one in weights
        ]
        doubtful = [one for one, total in zip(weights, sums) if not np.isfinite(float(total))]
        check_weights(doubtful, "The model cannot generate")

    def _named_arrays(self, inputs, names):
        """Convert the inputs of `generate` to NumPy; raise if one of `names` is missing."""
        lacking = [name for name in names if name not in inputs]
        if lacking:
            raise ValueError(
                f"generate() got {', '.join(map(str, inputs)) or 'no arrays'}, but also needs "
                f"{' and '.join(lacking)}."
            )
        inputs = {name: np.asarray(ops.convert_to_numpy(x)) for name, x in inputs.items()}
        check_ids(self, inputs)
        return inputs

    def _checked_rows(self, inputs, side=""):
        """Check and return the ids and mask (B, T) of a side, such as "encoder_".

        The tokens of a row must be at its start.
        """
        ids_name, mask_name = f"{side}token_ids", f"{side}padding_mask"
        ids = inputs[ids_name]
        mask = np.asarray(inputs.get(mask_name, np.ones_like(ids))).astype(bool)
        if ids.ndim != 2 or mask.shape != ids.shape:
            raise ValueError(
                f"{ids_name} has the shape {ids.shape} and {mask_name} {mask.shape}; both must be "
                "(texts, tokens)."
            )
        most = self.backbone.max_sequence_length
        if ids.shape[1] > most:
            raise ValueError(
                f"{ids_name} has {ids.shape[1]} tokens per row, but the encoder has only {most} "
                "positions; shorten the rows."
            )
        for row, there in enumerate(mask):
            count = int(there.sum())
            if not count or not there[:count].all():
                raise ValueError(
                    f"Row {row} of {mask_name} is {there.astype(int).tolist()}; a row must start "
                    "with its tokens, at least one."
                )
        return {ids_name: ids.astype("int32"), mask_name: mask}


def begun(token_ids, is_prompt, stop_token_ids):
    """Replace padding after prompts in rows (B, T) by a token that is not a stop token.

    If the padding token is a stop token, texts would otherwise end at once.
    """
    stops = set(stop_token_ids or ())
    return ops.where(is_prompt, token_ids, min(set(range(len(stops) + 1)) - stops))


def until_stop(token_ids, is_prompt, stop_token_ids):
    """Return a mask of rows (B, T), true up to the first stop token after the prompt."""
    stops = ops.zeros_like(is_prompt)
    for stop in stop_token_ids or ():
        stops = ops.logical_or(stops, token_ids == stop)
    stops = ops.cast(ops.logical_and(stops, ops.logical_not(is_prompt)), "int32")
    return ops.cumsum(stops, axis=-1) - stops == 0
