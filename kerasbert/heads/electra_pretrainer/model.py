"""ELECTRA pre-training: the encoder detects tokens that a small generator replaced.

B batch, T tokens, P masked tokens, V vocabulary size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.base.errors import check_value
from kerasbert.base.keywords import check_keyword
from kerasbert.base.parts import own_preprocessor
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.base.head_metrics import TOKEN_CLASSES, TOKEN_FLAGS
from kerasbert.heads.electra_pretrainer.preprocessor import ElectraPretrainerPreprocessor
from kerasbert.heads.masked_lm.model import BertMaskedLM, MaskedTask
from kerasbert.heads.masked_lm.preprocessor import BertMaskedLMPreprocessor
from kerasbert.heads.replaced_token_detector.model import BertReplacedTokenDetector
from kerasbert.heads.replaced_token_detector.preprocessor import (
    BertReplacedTokenDetectorPreprocessor,
)
from kerasbert.layers.replacement import TokenReplacement, at_tokens
from kerasbert.losses.logits import (
    BinaryTokenAccuracy,
    BinaryTokenCrossEntropy,
    Perplexity,
    PositiveShare,
    TokenAccuracy,
    TokenCrossEntropy,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kerasbert.base.aliases import Tensor

# Settings that the generator does not share with the encoder.
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
    """ELECTRA pre-training: an encoder learns to detect tokens replaced by a small generator.

    The generator, a masked language model with its own blocks on the encoder's embedding layers, is
    trained jointly. It samples a token for each masked one, without a gradient. The encoder
    predicts whether each token was replaced; correctly sampled ones were not.

    The inputs are those of `BertMaskedLM`; position 0 marks an empty slot. The outputs are a dict
    of `mlm_logits` (B, P, V), `token_ids` int32 (B, T), the encoder's input, and `detection_logits`
    (B, T), above 0 for a replaced token. Labels are the masked tokens (B, P), with sample weights
    (B, P) of 0 in empty slots. Both may be dicts with the key `mlm_logits`, and weights may have
    `detection_logits`, (B,) or (B, T). The loss is `mlm_weight` times the mean over masked tokens
    plus `detection_weight` times the mean over all tokens. `fit` and `evaluate` take raw texts and
    mask their tokens.

    Two models share the trained weights, to save and export: `pretrainer.detector`, a
    `BertReplacedTokenDetector`, and `pretrainer.masked_lm`, the generator as a `BertMaskedLM`.

    Args:
        backbone: a `BertBackbone`, the discriminator; it needs no pooler.
        preprocessor: an `ElectraPretrainerPreprocessor`, or `None` for preprocessed arrays.
        generator: dict. The generator's `num_layers`, `hidden_dim`, `num_heads`,
            `intermediate_dim`, `dropout`, `attention_dropout`. Defaults: the same number of layers,
            a quarter of the width (a third of 768, as in the paper), heads of the same width, and
            an `intermediate_dim` of four times `hidden_dim`.
        mlm_weight: weight of the generator's loss.
        detection_weight: weight of the detection loss.

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
    loss_needs_labels = True
    allows_r_drop = False

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
        # Generator and detector are not compiled, because they train as parts of this model.
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
        """Return the mean cross-entropy of masked tokens and the mean binary one of all tokens."""
        return {"mlm_logits": TokenCrossEntropy(), "detection_logits": BinaryTokenCrossEntropy()}

    def default_loss_weights(self) -> Any:
        return {"mlm_logits": self.mlm_weight, "detection_logits": self.detection_weight}

    def default_metrics(self) -> Any:
        """Return accuracy and perplexity of the masked tokens, and four metrics of detection.

        These are `accuracy`, `precision` and `recall` of replaced tokens, and `replaced`, their
        share, which is the error rate of always predicting 0.
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
        """Return the labels, outputs and weights of both losses.

        The detection labels are computed from the sampled tokens.
        """
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
        # In slots of weight 0, labels may differ from the original tokens.
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
    """Return the generator's encoder, with the embedding layers of `backbone`."""
    if not isinstance(backbone, BertBackbone) or hasattr(backbone, "replaced_bases"):
        raise TypeError(
            f"backbone must be a BertBackbone, the encoder that detects replaced tokens; got a "
            f"{type(backbone).__name__}."
        )
    if not isinstance(given, (dict, type(None))):
        raise TypeError(
            "generator must be a dict of settings such as {'num_layers': 4, 'hidden_dim': 64}; got "
            f"a {type(given).__name__}."
        )
    given = dict(given or {})
    shared = backbone.get_config()
    for name in given:
        if name in shared and name not in OWN:
            raise ValueError(
                f"generator has {name}={given[name]!r}, which it shares with the encoder; its own "
                f"settings are {', '.join(OWN)}."
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
        # The dtype policy of a quantized encoder's other layers.
        "dtype": getattr(backbone.dtype_policy, "default_policy", backbone.dtype_policy),
        **given,
    }
    if settings["num_groups"] is not None:
        settings["num_groups"] = min(settings["num_groups"], settings["num_layers"])
    # Weights are identified by path, and both encoders' blocks have the same names.
    with keras.name_scope("generator"):
        return BertBackbone(**settings, tables=backbone)


def generator_width(hidden_dim):
    """Return a quarter of the encoder's width, or a third for a base encoder.

    >>> [generator_width(width) for width in (256, 512, 768, 1024)]
    [64, 128, 256, 256]

    Source: Clark et al. 2020, arXiv 2003.10555, table 6.
    """
    return hidden_dim // 3 if hidden_dim == 768 else max(1, hidden_dim // 4)


def _packers(preprocessor):
    """Return preprocessors for generator and detector."""
    settings = {name: getattr(preprocessor, name) for name in BertMaskedLMPreprocessor.settings}
    return (
        BertMaskedLMPreprocessor(preprocessor.tokenizer, **settings),
        BertReplacedTokenDetectorPreprocessor(
            preprocessor.tokenizer,
            sequence_length=preprocessor.sequence_length,
            num_segments=preprocessor.num_segments,
        ),
    )
