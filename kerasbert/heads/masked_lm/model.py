"""Masked language models.

B batch, T tokens, P masked tokens, V vocabulary size.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert import backend
from kerasbert.base.errors import check_whole
from kerasbert.base.keywords import arguments
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.families import head_settings
from kerasbert.families.settings import has_bias
from kerasbert.heads.base.head_metrics import TOKEN_CLASSES
from kerasbert.heads.base.inputs import as_lists, is_raw
from kerasbert.heads.base.task import BertTask
from kerasbert.heads.masked_lm.preprocessor import BertMaskedLMPreprocessor
from kerasbert.layers.heads import MaskedLMHead
from kerasbert.losses import TokenAccuracy, TokenCrossEntropy
from kerasbert.text.batch_plans import sorted_batches
from kerasbert.text.languages import row_segments
from kerasbert.text.texts import text_columns

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor, Texts


@dataclass(frozen=True)
class MaskedHeadSettings:
    """Settings of the head; `None` means the encoder's default."""

    head_activation: str | None = None
    head_bias: bool | None = None
    head_norm_epsilon: float | None = None
    output_bias: bool | None = None
    tie_weights: bool | None = None
    head_dim: int | None = None


def vocabulary_head(task, name, cls=MaskedLMHead, **settings):
    """Return a `MaskedLMHead` for a task's encoder, with the task's `MaskedHeadSettings`."""
    backbone = task.backbone
    return cls(
        backbone.token_embedding,
        activation=task.head_activation,
        layer_norm_epsilon=task.head_norm_epsilon,
        use_bias=task.head_bias,
        norm_bias=has_bias(backbone.use_bias, "norm"),
        output_bias=task.output_bias,
        tie_weights=task.tie_weights,
        transform=task.head_activation is not None,
        hidden_dim=task.head_dim,
        kernel_initializer=keras.initializers.TruncatedNormal(stddev=backbone.initializer_range),
        dtype=backbone.dtype_policy,
        name=name,
        **settings,
    )


def head_config(task):
    """Return the `MaskedHeadSettings` among a class's arguments."""
    names = [x.name for x in fields(MaskedHeadSettings) if x.name in arguments(type(task))]
    config = {name: getattr(task, name) for name in names}
    if config.get("head_dim", 0) is None:
        del config["head_dim"]  # For earlier versions.
    return config


class HasVocabularyHead:
    """Mixin for tasks with a masked-language-model head."""

    @classmethod
    def needs_pooler(cls, settings: Any) -> bool:
        return False

    @classmethod
    def output_weight(cls, settings: Any) -> str:
        if settings.get("output_bias", True):
            return "mlm_head/bias"
        if not settings.get("tie_weights", True):
            return "mlm_head/decoder/kernel"
        # A head without a transform has no weights of its own.
        has_transform = settings.get("head_activation", "") is not None
        return "mlm_head/dense/kernel" if has_transform else None

    def _make_mlm_head(self, given, cls=MaskedLMHead, **settings):
        """Make the head from `MaskedHeadSettings` and further settings of its class."""
        backbone = self.backbone
        defaults = {
            "head_activation": backbone.activation,
            "head_bias": True,
            "head_norm_epsilon": backbone.layer_norm_epsilon,
            "output_bias": True,
            "tie_weights": True,
            "head_dim": None,
            **head_settings(backbone.family, "masked_lm"),
        }
        if defaults["head_activation"] is None and backbone.embedding_dim is not None:
            # Embeddings of another width need a dense layer.
            defaults["head_activation"] = backbone.activation
        self._set_given(vars(given), defaults)
        self.mlm_head = vocabulary_head(self, "mlm_head", cls, **settings)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **head_config(self)}


class MaskedTask(HasVocabularyHead, BertTask):
    """Base class of tasks that predict masked tokens."""

    def _masked_inputs(self):
        """Return the encoder's inputs and the positions of the masked tokens."""
        positions = keras.Input((None,), dtype="int32", name="mask_positions")
        return {**self.backbone.input, "mask_positions": positions}

    def fill_in(self, inputs: Tensor) -> dict[str, Any]:
        """Add missing inputs; without `mask_positions`, predict every token."""
        inputs = self.backbone.fill_in(inputs)
        if "mask_positions" not in inputs:
            positions = ops.cumsum(ops.ones_like(inputs["token_ids"], dtype="int32"), axis=1) - 1
            inputs = {**inputs, "mask_positions": positions}
        return inputs

    def predict(self, x: Any = None, batch_size: int | None = None, **kwargs: Any) -> Any:
        """Return logits of preprocessed arrays or raw texts; see `keras.Model.predict`.

        N raw texts are masked as in `evaluate`, and give logits (N, P, V); shorter texts do not use
        the last slots. To fill a text's own masks, use `fill_mask`.
        """
        if is_raw(self, x):
            self._refuse_masks(x)
        return super().predict(x, batch_size, **kwargs)

    def _refuse_masks(self, x):
        """Raise for texts with mask tokens, which `predict` does not fill."""
        mask = self.preprocessor.tokenizer.mask_token
        for column in self.preprocessor.columns(x)[0]:
            for position, text in enumerate(column):
                if mask in (text.decode("utf-8", "replace") if isinstance(text, bytes) else text):
                    raise ValueError(
                        f"The text at position {position} has a {mask}, but predict() masks tokens "
                        "of its own choice; call fill_mask(texts)."
                    )

    def check_arrays(self, x: Any, y: Any = None) -> None:
        """Raise for positions beyond a row, which would select the next row's tokens."""
        if not isinstance(x, dict) or not isinstance(x.get("mask_positions"), np.ndarray):
            return
        positions, length = x["mask_positions"], np.shape(x["token_ids"])[1]
        wrong = np.argwhere((positions < 0) | (positions >= length))
        if len(wrong):
            row, slot = wrong[0]
            raise ValueError(
                f"mask_positions has {positions[row, slot]} in row {row}, slot {slot}, where "
                f"token_ids has {length} tokens per row; use 0 with weight 0 for empty slots."
            )

    def _needs_labels(self, is_raw):
        return not is_raw  # The preprocessor makes labels from texts.

    def fill_mask(self, texts: Texts, top_k: int = 5, batch_size: int = 32) -> Any:
        """Predict the most likely tokens for the mask tokens in texts.

        In texts longer than `sequence_length`, each mask gets its own window.

        Args:
            texts: a string with one or more mask tokens (`preprocessor.tokenizer.mask_token`), or
                a list of such strings.
            top_k: number of tokens per mask.
            batch_size: int.

        Returns:
            For a text with one mask, a list of dicts, most likely first: `token`, `token_id`,
            `score` (its probability) and `text`, with the token in place of the mask. For several
            masks, a list of such lists, whose `text` keeps the other masks. For a list of texts, a
            list of these results.

        Raises:
            ValueError: for a text without a mask token.
        """
        texts, single = as_lists(self, texts, "fill_mask()")
        columns, _ = text_columns(texts)
        if len(columns) > 1:
            raise ValueError("fill_mask() takes single texts; join the two texts of a pair.")
        check_whole("top_k", top_k)
        texts = [text.decode() if isinstance(text, bytes) else str(text) for text in columns[0]]
        tokenizer = self.preprocessor.tokenizer.with_special_tokens()
        tokens = list(zip(*tokenizer.tokenize_with_offsets(texts), strict=True))
        masks = [
            [place for place, token in enumerate(ids) if token == tokenizer.mask_token_id]
            for ids, _, _ in tokens
        ]
        for position, (text, places) in enumerate(zip(texts, masks, strict=True)):
            if not places:
                short = text if len(text) < 60 else text[:57] + "..."
                raise ValueError(
                    f"The text {short!r} at position {position} has no mask token; write "
                    f"{tokenizer.mask_token} in place of the missing word."
                )
        best = self._best_tokens([ids for ids, _, _ in tokens], masks, top_k, batch_size)
        best, scores = map(np.stack, zip(*best, strict=True))  # (masks of all texts, top_k)
        spans = [
            (row, starts[place], ends[place], ids[place - 1] if place else -1)
            for row, ((ids, starts, ends), places) in enumerate(zip(tokens, masks, strict=True))
            for place in places
        ]
        filled = self.preprocessor.fill_in(texts, spans, best.tolist())
        columns = zip(*filled[:1], best.tolist(), scores.tolist(), *filled[1:], strict=True)
        found = (
            [
                {"token": name, "token_id": id, "score": score, "text": text}
                for name, id, score, text in zip(*row, strict=True)
            ]
            for row in columns
        )
        results = [[next(found) for _ in places] for places in masks]
        results = [rows if len(rows) > 1 else rows[0] for rows in results]
        return results[0] if single else results

    def _best_tokens(self, ids, masks, top_k, batch_size):
        """Yield the `top_k` ids and probabilities of each text's masks."""
        tokenizer = self.preprocessor.tokenizer
        room, frame = self.preprocessor.room, tokenizer.frame
        rows = []  # Token ids and the positions of their masks.
        for tokens, places in zip(ids, masks, strict=True):
            for first, inside in mask_windows(len(tokens), places, room):
                window = tokens[first : first + room]
                row = [*frame.before, *window, *frame.after]
                rows.append((row, [place - first + frame.first for place in inside]))
        found = [None] * len(rows)
        for batch in sorted_batches([len(row) for row, _ in rows], batch_size):
            logits = self._logits_of([rows[i] for i in batch])
            for i, row in zip(batch, logits, strict=True):
                found[i] = [_top(one, top_k) for one in row[: len(rows[i][1])]]
        return iter([best for row in found for best in row])

    def _logits_of(self, rows):
        """Return logits (B, P, tokens) for B rows of `(token ids, mask positions)`."""
        length = self.preprocessor.bucket(max(len(row) for row, _ in rows))
        slots = max(len(places) for _, places in rows)
        pad = self.preprocessor.tokenizer.pad_token_id
        features = {
            "token_ids": [row + [pad] * (length - len(row)) for row, _ in rows],
            "padding_mask": [[1] * len(row) + [0] * (length - len(row)) for row, _ in rows],
            "mask_positions": [places + [0] * (slots - len(places)) for _, places in rows],
        }
        features = {name: np.array(value, "int32") for name, value in features.items()}
        language, _ = row_segments(self.preprocessor.tokenizer, self.preprocessor.num_segments)
        if language:
            features["segment_ids"] = np.full_like(features["token_ids"], language)
        logits = self._mlm_logits(backend.predict_batch(self, features))
        # The embedding table may have more rows than the vocabulary.
        return logits[..., : self.preprocessor.tokenizer.vocabulary_size()]

    def _mlm_logits(self, outputs):
        return np.asarray(outputs)


@keras.saving.register_keras_serializable(package="kerasbert")
class BertMaskedLM(MaskedTask):
    """Masked language model, as in BERT's pre-training.

    The inputs are the encoder's and `mask_positions` int32 (B, P), each below T; the output is
    logits (B, P, V) at these positions or, without `mask_positions`, (B, T, V) at all tokens.
    Labels are token ids (B, P); sample weights (B, P) are 0 in unused slots. `fit` and `evaluate`
    take raw strings and mask their tokens, `fit` again in every epoch.

    Args:
        backbone: a `BertBackbone`; it needs no pooler.
        preprocessor: a `BertMaskedLMPreprocessor`, or `None` for preprocessed arrays.
        head_activation: activation of the head's dense layer.
        head_bias: whether that layer has a bias.
        head_norm_epsilon: epsilon of the norm after that layer.
        output_bias: whether the logits have a bias.
        tie_weights: whether the vocabulary projection uses the token embedding.
        head_dim: width of the dense layer, with `tie_weights=False` (RemBERT); `None` means the
            width of the token embedding.

    The last six default to the encoder's and family's.

    Example:

    >>> backbone = BertBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> model = BertMaskedLM(backbone)
    >>> ids, positions = np.ones((3, 5), "int32"), np.array([[1, 3], [2, 0], [4, 0]])
    >>> model.predict({"token_ids": ids, "mask_positions": positions}, verbose=0).shape
    (3, 2, 100)

    Source: Devlin et al. 2019, arXiv 1810.04805, section 3.1.
    """

    backbone_cls = BertBackbone
    preprocessor_cls = BertMaskedLMPreprocessor
    kind = "masked_lm"

    def __init__(
        self,
        backbone: BertBackbone,
        preprocessor: BertMaskedLMPreprocessor | None = None,
        head_activation: str | None = None,
        head_bias: bool | None = None,
        head_norm_epsilon: float | None = None,
        output_bias: bool | None = None,
        tie_weights: bool | None = None,
        head_dim: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._set_parts(backbone, preprocessor)
        head = MaskedHeadSettings(
            head_activation, head_bias, head_norm_epsilon, output_bias, tie_weights, head_dim
        )
        self._make_mlm_head(head)
        inputs = self._masked_inputs()
        encoded = backbone(backbone.input, positions=inputs["mask_positions"])
        outputs = self.mlm_head(encoded["sequence_output"])  # (B, P, D) -> (B, P, V)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def default_loss(self) -> Any:
        """Return the cross-entropy, averaged over the masked tokens."""
        return TokenCrossEntropy()

    def default_metrics(self) -> Any:
        """Return the accuracy over the masked tokens."""
        return [TokenAccuracy()]

    def metric_forms(self) -> Any:
        return TOKEN_CLASSES, self.backbone.vocabulary_size


def mask_windows(length, places, room):
    """Return windows of `room` tokens around masks: a list of (first token, masks inside).

    In longer texts, each mask gets its own, with the mask centered if possible.

    >>> mask_windows(9, [1, 6], 9), mask_windows(9, [1, 6], 4)
    ([(0, [1, 6])], [(0, [1]), (4, [6])])
    """
    if length <= room:
        return [(0, places)]
    return [(min(max(place - room // 2, 0), length - room), [place]) for place in places]


def _top(logits, count):
    """Return ids and probabilities of the tokens with the `count` largest of logits (V,)."""
    logits = logits.astype("float64")
    count = min(count, len(logits))
    best = np.argpartition(-logits, count - 1)[:count]
    best = best[np.argsort(-logits[best], kind="stable")]
    odds = np.exp(logits - logits.max())
    return best, odds[best] / odds.sum()
