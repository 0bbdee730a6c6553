"""ELECTRA's pre-training: a small generator fills masks, and the encoder finds what it put there.

B batch, T tokens, P predictions, V tokens of the vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert._errors import check_value
from kerasbert._keywords import check_keyword
from kerasbert.layers.replacement import TokenReplacement, at_tokens
from kerasbert.losses.logits import (
    BinaryTokenAccuracy,
    BinaryTokenCrossEntropy,
    Perplexity,
    PositiveShare,
    TokenAccuracy,
    TokenCrossEntropy,
)
from kerasbert.models.backbone import BertBackbone
from kerasbert.models.head_metrics import TOKEN_CLASSES, TOKEN_FLAGS
from kerasbert.models.masked_lm import BertMaskedLM, MaskedTask
from kerasbert.models.replaced_token_detector import BertReplacedTokenDetector
from kerasbert.parts import own_preprocessor
from kerasbert.preprocessors.electra_pretrainer import ElectraPretrainerPreprocessor
from kerasbert.preprocessors.masked_lm import BertMaskedLMPreprocessor
from kerasbert.preprocessors.replaced_token_detector import (
    BertReplacedTokenDetectorPreprocessor,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kerasbert._typing import Tensor

# What a generator has of its own; all else is the encoder's.
OWN = (
    "num_layers",
    "hidden_dim",
    "num_heads",
    "intermediate_dim",
    "dropout",
    "attention_dropout",
)


@keras.saving.register_keras_serializable(package="kerasbert")
class ElectraPretrainer(MaskedTask):
    """Trains an encoder to find the tokens that a small generator, trained beside it, put there.

    The generator is a masked language model with blocks of its own, on the encoder's tables of
    tokens, positions and segments and their norm. A token is drawn from its probabilities for each
    hidden one, without a gradient, and the encoder says of every token whether it was replaced; a
    token that was drawn right was not.

    The inputs are those of `BertMaskedLM`, where position 0 marks an empty slot. The outputs are a
    dict of `mlm_logits` (B, P, V), `token_ids` int32 (B, T), what the encoder saw, and
    `detection_logits` (B, T), above 0 where a token was replaced. Labels are the hidden tokens
    (B, P), and sample weights 0 in slots that are empty, (B, P); or dicts with these as
    `mlm_logits`, where the weights may also have `detection_logits`, (B,) or (B, T). The loss is
    the mean over the hidden tokens, plus 50 times the mean over all tokens of detection. `fit` and
    `evaluate` take raw texts, and hide tokens themselves.

    After training there are two models that share the weights: `pretrainer.detector`, a
    `BertReplacedTokenDetector`, and `pretrainer.masked_lm`, the generator as a `BertMaskedLM`.
    Saved each by itself, both become checkpoints of other packages.

    Args:
        backbone: a `BertBackbone`, the discriminator's; it needs no pooler.
        preprocessor: an `ElectraPretrainerPreprocessor`, or `None` for ready arrays.
        generator: dict. What the generator has otherwise than the encoder: `num_layers`,
            `hidden_dim`, `num_heads`, `intermediate_dim`, `dropout`, `attention_dropout`. By
            default as many layers, a quarter of the width (of 768 a third, as in the paper), heads
            as wide as the encoder's, and four times its width inside.
        mlm_weight: float. What the loss of the generator counts.
        detection_weight: float. What the loss of detection counts.

    Example:

    >>> backbone = BertBackbone.from_family(
    ...     "electra", vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=16,
    ...     intermediate_dim=32, embedding_dim=8,
    ... )
    >>> model = ElectraPretrainer(backbone, generator={"hidden_dim": 4, "num_heads": 1})
    >>> ids, positions = np.ones((3, 5), "int32"), np.array([[1, 3], [2, 0], [4, 0]])
    >>> outputs = model.predict({"token_ids": ids, "mask_positions": positions}, verbose=0)
    >>> {name: outputs[name].shape for name in ("mlm_logits", "detection_logits")}
    {'mlm_logits': (3, 2, 100), 'detection_logits': (3, 5)}

    Source: Clark et al. 2020, arXiv 2003.10555, and its released code.
    """

    backbone_cls = BertBackbone
    preprocessor_cls = ElectraPretrainerPreprocessor
    kind = "electra_pretrainer"

    def __init__(
        self,
        backbone: BertBackbone,
        preprocessor: ElectraPretrainerPreprocessor | None = None,
        generator: Mapping[str, Any] | None = None,
        mlm_weight: float = 1.0,
        detection_weight: float = 50.0,
        **kwargs: Any,
    ) -> None:
        for name, weight in (("mlm_weight", mlm_weight), ("detection_weight", detection_weight)):
            check_value(name, weight, "number")
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = own_preprocessor(backbone, preprocessor, self.preprocessor_cls)
        # Both train as parts of this model. To go on with one by itself, compile it.
        packers = _packers(self.preprocessor) if preprocessor else (None, None)
        self.masked_lm = BertMaskedLM(
            _generator(backbone, generator), packers[0], name="masked_lm", compile=False
        )
        self.detector = BertReplacedTokenDetector(
            backbone, packers[1], name="detector", compile=False
        )
        self.replacement = TokenReplacement(dtype="float32", name="replacement")
        # === Config ===
        self.generator = generator
        self.mlm_weight = mlm_weight
        self.detection_weight = detection_weight
        # === Functional model ===
        positions = keras.Input((None,), dtype="int32", name="mask_positions")
        inputs = {**backbone.input, "mask_positions": positions}
        logits = self.masked_lm(inputs)  # (B, P, V)
        ids = self.replacement(logits, token_ids=inputs["token_ids"], mask_positions=positions)
        found = self.detector({**backbone.input, "token_ids": ids})  # (B, T)
        outputs = {"mlm_logits": logits, "token_ids": ids, "detection_logits": found}
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def default_loss(self) -> Any:
        """Cross-entropies: a mean over the hidden tokens, and one over all tokens."""
        return {"mlm_logits": TokenCrossEntropy(), "detection_logits": BinaryTokenCrossEntropy()}

    def default_loss_weights(self) -> Any:
        return {"mlm_logits": self.mlm_weight, "detection_logits": self.detection_weight}

    def default_metrics(self) -> Any:
        """Accuracy and perplexity of the hidden tokens; of detection four shares.

        `accuracy`; `precision` and `recall` of what was replaced; and `replaced`, the share of the
        tokens that were, without which the accuracy says little.
        """
        return {
            "mlm_logits": [TokenAccuracy(), Perplexity()],
            "detection_logits": [
                BinaryTokenAccuracy(),
                keras.metrics.Precision(name="precision"),
                keras.metrics.Recall(name="recall"),
                PositiveShare(name="replaced"),
            ],
        }

    def metric_forms(self) -> Any:
        return {
            "mlm_logits": (TOKEN_CLASSES, self.backbone.vocabulary_size),
            "detection_logits": (TOKEN_FLAGS, None),
        }

    def _may_go_without_labels(self):
        return False

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Tensor = None,
        sample_weight: Any = None,
        training: bool | None = True,
    ) -> Tensor:
        y, y_pred, weights = self._targets(x, y, y_pred, sample_weight)
        return super().compute_loss(x, y, y_pred, weights, training)

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Tensor, sample_weight: Any = None
    ) -> dict[str, Any]:
        return super().compute_metrics(x, *self._targets(x, y, y_pred, sample_weight))

    def _targets(self, x, y, y_pred, sample_weight):
        """Labels, outputs and weights of both losses; the labels of detection rest on what came."""
        x = self.fill_in(x)
        y, weights = (
            part if isinstance(part, dict) else {"mlm_logits": part} for part in (y, sample_weight)
        )
        hidden = weights.get("mlm_logits")
        if hidden is None:
            hidden = ops.ones(ops.shape(y["mlm_logits"])[:2])
        ids, positions = y_pred["token_ids"], x["mask_positions"]
        is_hidden, was, counts = at_tokens(ops.shape(ids)[1], positions, y["mlm_logits"], hidden)
        is_replaced = ops.logical_and(is_hidden, ids != ops.cast(was, ids.dtype))
        # What stands in a slot without a weight is not known to be the token that was there.
        is_known = ops.logical_or(ops.logical_not(is_hidden), counts > 0)
        mask = ops.logical_and(ops.cast(x["padding_mask"], "bool"), is_known)
        mask = ops.cast(mask, "float32")
        if weights.get("detection_logits") is not None:
            own = ops.cast(weights["detection_logits"], "float32")
            mask = mask * (own[:, None] if len(own.shape) == 1 else own)
        return (
            {"mlm_logits": y["mlm_logits"], "detection_logits": ops.cast(is_replaced, "int32")},
            {name: y_pred[name] for name in ("mlm_logits", "detection_logits")},
            {"mlm_logits": hidden, "detection_logits": mask},
        )

    def _mlm_logits(self, outputs):
        return outputs["mlm_logits"]

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "generator": None if self.generator is None else dict(self.generator),
            "mlm_weight": self.mlm_weight,
            "detection_weight": self.detection_weight,
        }


def _generator(backbone, given):
    """The generator's encoder, on the tables of `backbone`."""
    if not isinstance(backbone, BertBackbone) or hasattr(backbone, "replaced_bases"):
        raise TypeError(
            f"backbone is a {type(backbone).__name__}, and has to be a BertBackbone, the encoder "
            "that learns to find replaced tokens."
        )
    if not isinstance(given, (dict, type(None))):
        raise TypeError(
            f"generator is a {type(given).__name__}, and has to be a dict of its own settings, as "
            "{'num_layers': 4, 'hidden_dim': 64}: it is made on the tables of the encoder."
        )
    given = dict(given or {})
    shared = backbone.get_config()
    for name in given:
        if name in shared and name not in OWN:
            raise ValueError(
                f"generator has {name}={given[name]!r}, which it shares with the encoder; of its "
                f"own it has {', '.join(OWN)}."
            )
        check_keyword("generator", name, OWN)
    width = given.get("hidden_dim", generator_width(backbone.hidden_dim))
    check_value("generator: hidden_dim", width, "count")
    wanted = max(1, width * backbone.num_heads // backbone.hidden_dim)
    heads = next(count for count in range(wanted, 0, -1) if width % count == 0)
    tables = backbone.embedding_dim or backbone.hidden_dim
    settings = {
        **shared,
        "name": "generator",
        "trainable": True,
        "hidden_dim": width,
        "num_heads": heads,
        "intermediate_dim": 4 * width,
        "embedding_dim": None if width == tables else tables,
        "pooler": False,
        "finetuning_learning_rate": None,
        # Of a quantized encoder that of the layers that are not.
        "dtype": getattr(backbone.dtype_policy, "default_policy", backbone.dtype_policy),
        **given,
    }
    if settings["num_groups"] is not None:
        settings["num_groups"] = min(settings["num_groups"], settings["num_layers"])
    # Keras, PyTorch and checkpoints tell weights by their paths: the blocks of both encoders have
    # the same names.
    with keras.name_scope("generator"):
        return BertBackbone(**settings, tables=backbone)


def generator_width(hidden_dim):
    """A quarter of the encoder's width, but for a base encoder a third.

    >>> [generator_width(width) for width in (256, 512, 768, 1024)]
    [64, 128, 256, 256]

    Source: Clark et al. 2020, arXiv 2003.10555, table 6.
    """
    return hidden_dim // 3 if hidden_dim == 768 else max(1, hidden_dim // 4)


def _packers(preprocessor):
    """The preprocessors of the generator and of the detector, which pack as this one does."""
    settings = {name: getattr(preprocessor, name) for name in BertMaskedLMPreprocessor.settings}
    return (
        BertMaskedLMPreprocessor(preprocessor.tokenizer, **settings),
        BertReplacedTokenDetectorPreprocessor(
            preprocessor.tokenizer,
            sequence_length=preprocessor.sequence_length,
            num_segments=preprocessor.num_segments,
        ),
    )
