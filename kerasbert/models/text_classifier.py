"""Classification of texts and pairs of texts.

B batch, T tokens, D width, C classes.
"""

import keras
import numpy as np

from kerasbert.families import get_family
from kerasbert.layers.block import activation_function, layer_norm, only_blocks_remat
from kerasbert.layers.heads import Pooling
from kerasbert.models.backbone import BertBackbone
from kerasbert.models.task import BertTask
from kerasbert.preprocessors.text_classifier import BertTextClassifierPreprocessor


@keras.saving.register_keras_serializable(package="kerasbert")
class BertTextClassifier(BertTask):
    """A classifier of texts, or of pairs of texts.

    `fit`, `evaluate` and `predict` take raw strings; the output is logits (B, C).

    Args:
        backbone: a `BertBackbone`.
        num_classes: int. Or give `labels`.
        preprocessor: a `BertTextClassifierPreprocessor`, or `None` for ready arrays.
        labels: list of names, one a class; they are kept in the preset.
        multi_label: bool. Each class is a yes or no of its own; labels are (B, C).
        activation: of the output; `None` gives logits.
        dropout: float. Before the logits.
        pooling: "pooler" (`pooled_output`), "cls" or "mean".
        head_activation: string. A dense layer with this activation before the logits; `None` for
            none.
        head_bias: bool. The bias of that layer.
        head_norm: bool. A norm after it.
        dropout_first: bool. Dropout before that layer too.

    The last five follow the encoder's family where they are not given.

    Example:

    >>> backbone = BertBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> classifier = BertTextClassifier(backbone, labels=["ham", "spam"])
    >>> arrays = {name: np.ones((3, 5), "int32") for name in backbone.input}
    >>> classifier.predict(arrays, verbose=0).shape
    (3, 2)

    Source: Devlin et al. 2019, arXiv 1810.04805, section 4.1.
    """

    backbone_cls = BertBackbone
    preprocessor_cls = BertTextClassifierPreprocessor
    head = "text_classifier"

    def __init__(
        self,
        backbone,
        num_classes=None,
        preprocessor=None,
        labels=None,
        multi_label=False,
        activation=None,
        dropout=None,
        pooling=None,
        head_activation=None,
        head_bias=None,
        head_norm=None,
        dropout_first=None,
        **kwargs,
    ):
        if isinstance(labels, str):
            raise ValueError(f"labels={labels!r} is one string; pass a list of names.")
        labels = None if labels is None else [str(label) for label in labels]
        num_classes = _check_classes(num_classes, labels)
        family = get_family(backbone.family).classifier

        def setting(name, value, default):
            return family.get(name, default) if value is None else value

        dropout = setting("dropout", dropout, backbone.dropout)
        pooling = setting("pooling", pooling, "pooler" if backbone.pooler else "cls")
        head_activation = setting("head_activation", head_activation, None)
        head_bias = setting("head_bias", head_bias, True)
        head_norm = setting("head_norm", head_norm, False)
        dropout_first = setting("dropout_first", dropout_first, False)
        if pooling == "pooler" and not backbone.pooler:
            raise ValueError(
                "pooling='pooler' needs an encoder with a pooler, and this one has pooler=False; "
                "use pooling='cls' or 'mean'."
            )
        self._adopt_preprocessor(
            backbone,
            preprocessor,
            labels=labels,
            multi_label=multi_label,
            num_classes=num_classes,
        )

        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        dtype = backbone.dtype_policy

        def initializer():
            return keras.initializers.TruncatedNormal(stddev=backbone.initializer_range)

        self.pooling_layer = None
        if pooling != "pooler":
            self.pooling_layer = Pooling(pooling, dtype=dtype, name="pooling")
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=dtype, name="classifier_dropout")
        self.head_dense = None
        self.head_norm_layer = None
        if head_activation is not None:
            self.head_dense = keras.layers.Dense(
                backbone.hidden_dim,
                activation=activation_function(head_activation),
                use_bias=head_bias,
                kernel_initializer=initializer(),
                dtype=dtype,
                name="head_dense",
            )
            if head_norm:
                self.head_norm_layer = layer_norm(
                    backbone.layer_norm_epsilon, backbone.use_bias, dtype, "head_norm"
                )
        self.output_dense = keras.layers.Dense(
            num_classes, kernel_initializer=initializer(), dtype=dtype, name="logits"
        )
        # Losses and probabilities are computed in float32 whatever the encoder runs in.
        self.output_activation = keras.layers.Activation(
            activation, dtype="float32", name="predictions"
        )

        # === Functional model ===
        if backbone.pooler and pooling != "pooler":
            # Nothing trains it here, but weight decay would shrink it.
            backbone.pooled_dense.trainable = False
        inputs = backbone.input
        outputs = backbone(inputs)
        if self.pooling_layer is None:
            x = outputs["pooled_output"]  # (B, D)
        else:
            x = self.pooling_layer(outputs["sequence_output"], padding_mask=inputs["padding_mask"])
        if dropout_first:
            x = self.dropout_layer(x)
        if self.head_dense is not None:
            x = self.head_dense(x)
            if self.head_norm_layer is not None:
                x = self.head_norm_layer(x)
        x = self.output_dense(self.dropout_layer(x))  # (B, C)

        # === Config ===
        self.num_classes = num_classes
        self.labels = labels
        self.multi_label = multi_label
        self.activation = keras.activations.get(activation)
        self.dropout = dropout
        self.pooling = pooling
        self.head_activation = head_activation
        self.head_bias = head_bias
        self.head_norm = head_norm
        self.dropout_first = dropout_first
        super().__init__(inputs=inputs, outputs=self.output_activation(x), **kwargs)
        only_blocks_remat([self, *self.operations])

    def compile(self, optimizer="auto", loss="auto", *, metrics="auto", **kwargs):
        """Configure training; "auto" takes what fine-tuning BERT takes.

        Args:
            optimizer: "auto" is AdamW at 5e-5, decay 0.01 but on norms and biases, clipped at 1.
            loss: "auto" is cross-entropy, a binary one for each class with `multi_label`.
            metrics: "auto" is accuracy.
            **kwargs: as in `keras.Model.compile`.
        """
        from_logits = self.activation == keras.activations.linear
        self._auto_optimizer = optimizer == "auto"
        if self._auto_optimizer:
            optimizer = keras.optimizers.AdamW(
                5e-5, weight_decay=0.01, epsilon=1e-6, global_clipnorm=1.0
            )
            optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        if loss == "auto" and self.multi_label:
            loss = keras.losses.BinaryCrossentropy(from_logits=from_logits)
        elif loss == "auto":
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
        if metrics == "auto" and self.multi_label:
            threshold = 0.0 if from_logits else 0.5
            metrics = [keras.metrics.BinaryAccuracy(threshold=threshold, name="accuracy")]
        elif metrics == "auto":
            metrics = [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)

    @property
    def label_names(self):
        """`labels`, or "LABEL_0", "LABEL_1", ... where there are none."""
        return self.labels or [f"LABEL_{i}" for i in range(self.num_classes)]

    def predict_proba(self, texts, batch_size=32):
        """Probabilities (N, C) of N texts, in their order."""
        outputs = np.asarray(self.predict(texts, batch_size=batch_size, verbose=0), "float64")
        if self.activation != keras.activations.linear:
            return outputs
        if self.multi_label:
            return 1 / (1 + np.exp(-outputs))
        outputs = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
        return outputs / outputs.sum(axis=-1, keepdims=True)

    def classify(self, texts, batch_size=32):
        """Name the class of each text.

        Args:
            texts: a string, a list of strings, or a tuple of two of either for pairs.
            batch_size: int.

        Returns:
            For each text a dict of `label`, `score` (its probability) and `probabilities` by
            name; with `multi_label`, `labels` with a probability above 0.5 in place of the first
            two. One dict for a single text.
        """
        if self.preprocessor is None:
            raise ValueError("classify() takes texts, and this model has no preprocessor.")
        parts = texts if isinstance(texts, tuple) else (texts,)
        single = all(isinstance(part, str) for part in parts)
        if single:
            parts = tuple([part] for part in parts)
        rows = self.predict_proba(parts if len(parts) > 1 else parts[0], batch_size)
        results = [self._describe(row) for row in rows]
        return results[0] if single else results

    def _describe(self, row):
        probabilities = {
            name: float(value) for name, value in zip(self.label_names, row, strict=True)
        }
        if self.multi_label:
            names = [name for name, value in probabilities.items() if value > 0.5]
            return {"labels": names, "probabilities": probabilities}
        best = int(np.argmax(row))
        return {
            "label": self.label_names[best],
            "score": float(row[best]),
            "probabilities": probabilities,
        }

    def get_config(self):
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "labels": self.labels,
            "multi_label": self.multi_label,
            "activation": keras.activations.serialize(self.activation),
            "dropout": self.dropout,
            "pooling": self.pooling,
            "head_activation": self.head_activation,
            "head_bias": self.head_bias,
            "head_norm": self.head_norm,
            "dropout_first": self.dropout_first,
        }


def _check_classes(num_classes, labels):
    if labels is None and num_classes is None:
        raise ValueError(
            "A classifier needs its classes: pass num_classes=2, or labels=['ham', 'spam']."
        )
    if labels is None:
        if not isinstance(num_classes, int) or num_classes < 1:
            raise ValueError(f"num_classes={num_classes!r} has to be a whole number from 1.")
        return num_classes
    if len(set(labels)) != len(labels) or not labels:
        raise ValueError(f"labels={labels} has to hold at least one name, each once.")
    if num_classes not in (None, len(labels)):
        raise ValueError(f"num_classes={num_classes}, but labels has {len(labels)} names.")
    return len(labels)
