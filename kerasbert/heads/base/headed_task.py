"""Base class of tasks with a head on pooled or token embeddings.

The head has an optional BiLSTM, dense layer and norm.

B batch, T tokens, D width, U logits.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert.backend.layers import unit_length
from kerasbert.base.errors import check_value, check_whole
from kerasbert.base.keywords import arguments
from kerasbert.families import head_settings
from kerasbert.heads.base.task import BertTask
from kerasbert.layers.block import layer_norm
from kerasbert.layers.global_attention import rule_mask
from kerasbert.layers.heads import BiLSTM, ChoicesToRows, Pooling, last_positions
from kerasbert.layers.token_layers import activation_function
from kerasbert.layers.windows import WindowPooling
from kerasbert.text.class_numbers import check_positions
from kerasbert.text.names import composed
from kerasbert.text.texts import label_list

if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True)
class HeadSettings:
    """Settings of the head; `None` means the family's default."""

    dropout: float | None = None
    pooling: str | None = None
    head_activation: str | None = None
    head_bias: bool | None = None
    head_norm: bool | None = None
    dropout_first: bool | None = None
    bilstm_units: int | None = None
    output_bias: bool | None = None
    normalize: bool | None = None


def check_vector_norm(normalize):
    """Raise if a head's `normalize` is a Unicode form instead of a bool."""
    if isinstance(normalize, str):
        raise ValueError(
            f"normalize={normalize!r} is a Unicode form of texts, but a model's normalize is a "
            "bool for embeddings; pass it to the preprocessor: preprocessor.normalize = "
            f"{normalize!r}."
        )
    check_value("normalize", normalize, "flag?")


class HeadedTask(BertTask):
    """Base class of tasks with logits per text or token."""

    # Layers that run the encoder on windows, and pool their embeddings.
    windows_to_rows = window_pooling = None

    @classmethod
    def needs_pooler(cls, settings: Any) -> bool:
        return not settings.get("bilstm_units") and super().needs_pooler(settings)

    @property
    def uses_pooler(self) -> bool:
        return self.pooling == "pooler"

    def check_arrays(self, x: Any, y: Any = None) -> None:
        super().check_arrays(x, y)
        if y is None or not getattr(self, "labels", None) or getattr(self, "multi_label", False):
            return
        shape = np.shape(y)
        if len(shape) < len(self.output.shape) or shape[-1] == 1:  # Class indices.
            check_positions(self.label_names, y)

    def _make_head(self, units, given):
        """Make the layers of the head.

        Args:
            units: int. U, the number of logits.
            given: a `HeadSettings`.
        """
        backbone = self.backbone
        check_vector_norm(given.normalize)
        defaults = {
            "dropout": backbone.dropout,
            "pooling": "pooler" if backbone.pooler else "cls",
            "head_activation": None,
            "head_bias": True,
            "head_norm": False,
            "dropout_first": False,
            "output_bias": True,
            "bilstm_units": 0,
            "normalize": False,
            **head_settings(backbone.family, self.kind),
        }
        # In causal encoders, the first token attends only to itself.
        is_usual = defaults["pooling"] in ("pooler", "cls")
        if (given.bilstm_units or backbone.is_causal) and is_usual:
            defaults["pooling"] = "mean"
        self._set_given(vars(given), defaults)
        self.global_tokens = defaults.get("global_tokens")  # For `global_tokens="by_task"`.
        check_whole("bilstm_units", self.bilstm_units, 0)
        if self.pooling == "pooler" and self.bilstm_units:
            raise ValueError(
                "pooling='pooler' uses the encoder's pooled_output, which bypasses the BiLSTM of "
                f"bilstm_units={self.bilstm_units}; use pooling='mean' or 'cls'."
            )
        if self.pooling == "pooler" and not backbone.pooler:
            raise ValueError(
                "pooling='pooler' needs an encoder with a pooler, but this one has pooler=False; "
                "use pooling='cls' or 'mean'."
            )
        dtype = backbone.dtype_policy

        def dense(units, name, **settings):
            initializer = keras.initializers.TruncatedNormal(stddev=backbone.initializer_range)
            return keras.layers.Dense(
                units, kernel_initializer=initializer, dtype=dtype, name=name, **settings
            )

        self.bilstm = (
            BiLSTM(self.bilstm_units, dtype=dtype, name="bilstm") if self.bilstm_units else None
        )
        self.pooling_layer = None
        if self.pooling not in ("pooler", "tokens"):
            # As for "cls", the encoder returns a single token.
            is_one = self.pooling == "last" and self.bilstm is None
            mode = "cls" if is_one else "mean" if self.pooling == "late" else self.pooling
            self.pooling_layer = Pooling(mode, dtype=dtype, name="pooling")
        self.dropout_layer = keras.layers.Dropout(
            self.dropout, dtype=dtype, name="classifier_dropout"
        )
        self.head_dense = None
        self.head_norm_layer = None
        if self.head_activation not in (None, "none"):
            self.head_dense = dense(
                backbone.hidden_dim,
                "head_dense",
                activation=activation_function(self.head_activation),
                use_bias=self.head_bias,
            )
            if self.head_norm:
                self.head_norm_layer = layer_norm(
                    backbone.layer_norm_epsilon, backbone.use_bias, dtype, "head_norm"
                )
        self.output_dense = dense(units, "logits", use_bias=self.output_bias)
        if self.long.has_windows:
            self.windows_to_rows = ChoicesToRows(name="windows_to_rows")
            self.window_pooling = WindowPooling(
                self.long.pooling, dtype=dtype, name="window_pooling"
            )

    def _with_global_tokens(self, inputs):
        """Add the mask of this head's default global tokens, if any."""
        encoder, rule = self.backbone, self.global_tokens
        if getattr(encoder, "global_tokens", None) != "by_task" or rule is None:
            return inputs
        tokenizer = getattr(self.preprocessor, "tokenizer", None)
        id = getattr(tokenizer, "sep_token_id", None)
        if rule != "first" and id not in (None, encoder.sep_token_id):
            raise ValueError(
                f"The encoder's sep_token_id is {encoder.sep_token_id}, but the tokenizer's is "
                f"{id}; build the encoder with sep_token_id={id}."
            )
        mask = rule_mask(rule, inputs["token_ids"], encoder.sep_token_id)
        return {**inputs, "global_attention_mask": mask}

    def _logits(self, inputs):
        """Compute logits (B, U) from the encoder's inputs; (B, T, U) with `pooling="tokens"`.

        With windows, the inputs are (B, W, T).
        """
        rows = inputs if self.windows_to_rows is None else self.windows_to_rows(inputs)
        x = self._features(rows)
        if self.pooling != "late":
            x = self._join_windows(x, inputs)
        if self.normalize:
            x = unit_length(x)
        if self.dropout_first:
            x = self.dropout_layer(x)
        if self.head_dense is not None:
            x = self.head_dense(x)
            if self.head_norm_layer is not None:
                x = self.head_norm_layer(x)
        if self.pooling == "late":
            x = self.pooling_layer(x, padding_mask=rows["padding_mask"])
            x = self._join_windows(x, inputs)
        return self.output_dense(self.dropout_layer(x))

    def _join_windows(self, x, inputs):
        """Pool embeddings of windows (B * W, D) to (B, D)."""
        if self.window_pooling is None:
            return x
        return self.window_pooling(x, padding_mask=inputs["padding_mask"])

    def _in_order(self, logits, padding_mask):
        """Put logits (B, T, U) and the mask (B, T) in the order `[CLS] text [SEP] [PAD]`."""
        return logits, padding_mask

    def _features(self, inputs):
        """Compute the head's inputs: (B, D), or (B, T, D) if it computes each token."""
        inputs = self._with_global_tokens(inputs)
        if self.pooling in ("pooler", "cls", "last") and self.bilstm is None:
            # The last feed-forward computes only the used token.
            places = ops.zeros_like(inputs["token_ids"][:, :1])
            if self.pooling == "last":
                places = last_positions(inputs["padding_mask"])
            outputs = self.backbone(inputs, positions=places)
        else:
            outputs = self.backbone(inputs)
        if self.pooling == "pooler":
            x = outputs["pooled_output"]  # (B, D)
        else:
            # (B, T, D), or (B, 1, D) with "cls", and (B, T)
            x, mask = outputs["sequence_output"], inputs["padding_mask"]
            if self.bilstm is not None:
                x = self.bilstm(x, padding_mask=mask)  # (B, T, 2 * bilstm_units)
            if self.pooling_layer is not None and self.pooling != "late":
                x = self.pooling_layer(x, padding_mask=mask)  # (B, D)
        return x

    def get_config(self) -> dict[str, Any]:
        # Settings that a class fixes are not among its arguments.
        names = arguments(type(self))
        given = {f.name: getattr(self, f.name) for f in fields(HeadSettings) if f.name in names}
        # Without the default, earlier versions can read the config.
        long = {"long": self.long.in_config()} if self.long.has_windows else {}
        return {**super().get_config(), **given, **long}


def pair_pooling(backbone):
    """Return the pooling of a next-sentence head: BERT's pooler, or the mean in causal encoders,
    whose first token attends only to itself.
    """
    return "mean" if backbone.is_causal else "pooler"


def check_classes(num_classes, labels):
    """Check the number or names of classes.

    Returns:
        `(num_classes, labels)`; `labels` is a list of strings, or `None`.
    """
    labels = label_list(labels)
    if labels is None and num_classes is None:
        raise ValueError(
            "A classifier needs its classes: pass num_classes=2, or labels=['ham', 'spam']."
        )
    if labels is None:
        check_whole("num_classes", num_classes)
        return num_classes, None
    if len(set(map(composed, labels))) != len(labels) or not labels:
        raise ValueError(f"labels={labels} must be at least one name, without repetitions.")
    if num_classes not in (None, len(labels)):
        raise ValueError(f"num_classes={num_classes}, but labels has {len(labels)} names.")
    return len(labels), labels


def check_zero_shot(labels, template, texts):
    """Return the `labels` of a zero-shot `classify`, or raise if it cannot use its arguments."""
    if isinstance(texts, tuple):
        raise ValueError("classify(labels=...) takes single texts, got pairs; join each pair.")
    _, labels = check_classes(None, labels)
    if not isinstance(template, str) or "{}" not in template:
        raise ValueError(
            f"template={template!r} must contain '{{}}' in place of the label, as in "
            "'This example is {}.'"
        )
    return labels


def class_names(num_classes, labels):
    """Return `labels`, or the names "LABEL_0", "LABEL_1", ... if there are none."""
    return labels or [f"LABEL_{i}" for i in range(num_classes)]
