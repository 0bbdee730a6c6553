"""Tasks on one vector a text or a token: perhaps a dense layer and a norm, then logits.

B batch, T tokens, D width, U logits.
"""

import keras

from kerasbert.families import get_family
from kerasbert.layers.block import activation_function, layer_norm
from kerasbert.layers.heads import Pooling
from kerasbert.models.task import BertTask

_SETTINGS = (
    "dropout",
    "pooling",
    "head_activation",
    "head_bias",
    "head_norm",
    "dropout_first",
)


class HeadedTask(BertTask):
    """Base of the tasks that compute logits from one vector a text or a token."""

    freezes_pooler = False

    def _make_head(self, backbone, units, **given):
        """Make the layers of the head.

        Args:
            backbone: a `BertBackbone`.
            units: int. U, the number of logits.
            **given: those of `_SETTINGS` that the caller gave; `None` follows the family's row.
        """
        defaults = {
            "dropout": backbone.dropout,
            "pooling": "pooler" if backbone.pooler else "cls",
            "head_activation": None,
            "head_bias": True,
            "head_norm": False,
            "dropout_first": False,
            **getattr(get_family(backbone.family), self.head),
        }
        for name in _SETTINGS:
            value = given.pop(name, None)
            setattr(self, name, defaults[name] if value is None else value)
        if self.pooling == "pooler" and not backbone.pooler:
            raise ValueError(
                "pooling='pooler' needs an encoder with a pooler, and this one has pooler=False; "
                "use pooling='cls' or 'mean'."
            )
        dtype = backbone.dtype_policy

        def dense(units, name, **settings):
            initializer = keras.initializers.TruncatedNormal(stddev=backbone.initializer_range)
            return keras.layers.Dense(
                units, kernel_initializer=initializer, dtype=dtype, name=name, **settings
            )

        self.pooling_layer = None
        if self.pooling not in ("pooler", "tokens"):
            self.pooling_layer = Pooling(self.pooling, dtype=dtype, name="pooling")
        self.dropout_layer = keras.layers.Dropout(
            self.dropout, dtype=dtype, name="classifier_dropout"
        )
        self.head_dense = None
        self.head_norm_layer = None
        if self.head_activation is not None:
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
        self.output_dense = dense(units, "logits")
        if backbone.pooler and self.pooling != "pooler":
            # Nothing trains it here, but weight decay would shrink it.
            self.freezes_pooler = backbone.pooled_dense.trainable
            backbone.pooled_dense.trainable = False

    def _logits(self, inputs):
        """Logits (B, U) of the encoder's inputs, (B, T, U) with `pooling="tokens"`."""
        outputs = self.backbone(inputs)
        if self.pooling == "tokens":
            x = outputs["sequence_output"]  # (B, T, D)
        elif self.pooling == "pooler":
            x = outputs["pooled_output"]  # (B, D)
        else:
            x = self.pooling_layer(outputs["sequence_output"], padding_mask=inputs["padding_mask"])
        if self.dropout_first:
            x = self.dropout_layer(x)
        if self.head_dense is not None:
            x = self.head_dense(x)
            if self.head_norm_layer is not None:
                x = self.head_norm_layer(x)
        return self.output_dense(self.dropout_layer(x))

    def get_config(self):
        return {**super().get_config(), **{name: getattr(self, name) for name in _SETTINGS}}
