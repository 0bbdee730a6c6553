"""Sequence-to-sequence language model on the original transformer (2017), for translation.

B batch, T target tokens, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.base.errors import is_whole
from kerasbert.layers.heads import MaskedLMHead
from kerasbert.lineage.seq2seq.backbone import TransformerSeq2SeqBackbone
from kerasbert.lineage.seq2seq.preprocessor import TransformerSeq2SeqLMPreprocessor
from kerasbert.lineage.seq2seq.task import Seq2SeqTask
from kerasbert.losses import TokenCrossEntropy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from kerasbert.base.aliases import Found


@keras.saving.register_keras_serializable(package="kerasbert")
class TransformerSeq2SeqLM(Seq2SeqTask):
    """Sequence-to-sequence language model, for example for translation.

    The output is logits (B, T, V) of the target's next tokens. `fit` and `evaluate` take raw
    strings, `fit((sources, targets))`, or preprocessed arrays, with the next tokens (B, T) as
    labels and sample weights (B, T), 0 at padding.

    The paper trains with `compile(Adam(WarmupInverseSqrt(d**-0.5 * 4000**-0.5, 4000), beta_1=0.9,
    beta_2=0.98, epsilon=1e-9))`, where d is `hidden_dim`, and a label smoothing of 0.1, as in
    `compile(loss="auto")`.

    Args:
        backbone: a `TransformerSeq2SeqBackbone`.
        preprocessor: a `TransformerSeq2SeqLMPreprocessor`, or `None` for preprocessed arrays.
        output_bias: whether each token's logit has a bias (Marian's `final_logits_bias`).
        forbidden_token_ids: list of ints. Tokens that are never generated (Marian's
            `bad_words_ids`).
        forced_end_token_id: int. Token that is always generated at the last position.

    Example:

    >>> backbone = TransformerSeq2SeqBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> model = TransformerSeq2SeqLM(backbone)
    >>> inputs = {"encoder_token_ids": [[5, 7, 9]], "decoder_token_ids": [[1, 0, 0, 0]],
    ...           "decoder_padding_mask": [[1, 0, 0, 0]]}
    >>> model.generate(inputs, stop_token_ids=None)["decoder_token_ids"].shape
    (1, 4)

    Source: Vaswani et al. 2017, arXiv 1706.03762; Junczys-Dowmunt et al. 2018, arXiv 1804.00344
    (Marian).
    """

    backbone_cls = TransformerSeq2SeqBackbone
    preprocessor_cls = TransformerSeq2SeqLMPreprocessor

    def __init__(
        self,
        backbone: TransformerSeq2SeqBackbone,
        preprocessor: TransformerSeq2SeqLMPreprocessor | None = None,
        output_bias: bool = False,
        forbidden_token_ids: Sequence[int] | None = None,
        forced_end_token_id: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._set_parts(backbone, preprocessor)
        forced = [] if forced_end_token_id is None else [forced_end_token_id]
        count = backbone.vocabulary_size
        for id in [*(forbidden_token_ids or ()), *forced]:
            if not is_whole(id) or not 0 <= id < count:
                raise ValueError(
                    f"forbidden_token_ids={forbidden_token_ids} and forced_end_token_id="
                    f"{forced_end_token_id} contain {id!r}; ids must be from 0 to {count - 1}."
                )
        # === Layers ===
        self.lm_head = MaskedLMHead(
            backbone.token_embedding,
            output_bias=output_bias,
            transform=False,
            dtype=backbone.dtype_policy,
            name="lm_head",
        )
        self.output_bias = output_bias
        self.forbidden_token_ids = forbidden_token_ids
        self.forced_end_token_id = forced_end_token_id

        # === Functional model ===
        inputs = backbone.input
        outputs = self.lm_head(backbone(inputs)["decoder_sequence_output"])  # (B, T, V)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    @classmethod
    def from_source(cls, source: Found, load_weights: bool = True, **kwargs: Any) -> Self:
        head = None if source.is_own else source.head_maps.get(cls.kind)
        if head is not None:
            # An output bias only if the checkpoint has one.
            (bias,) = head.theirs("lm_head/bias")
            kwargs.setdefault("output_bias", not load_weights or bias in source.tensors)
        return super().from_source(source, load_weights, **kwargs)

    # === Training ===

    def default_loss(self) -> Any:
        """Return the cross-entropy with label smoothing of 0.1, averaged over the tokens."""
        return TokenCrossEntropy(label_smoothing=0.1)

    # === Generation; see `Seq2SeqTask` ===

    def _read_source(self, token_ids, padding_mask):
        backbone = self.backbone
        keys_values = backbone.keys_values(backbone.encode(token_ids, padding_mask))
        read = {f"memory_{i}": one for i, one in enumerate(keys_values)}
        return {**read, "memory_mask": padding_mask}

    def _fresh_cache(self, prompt_ids, first, read, length):
        backbone = self.backbone
        heads = backbone.num_decoder_heads
        shape = (ops.shape(prompt_ids)[0], 2, length, heads, backbone.hidden_dim // heads)
        cache = tuple(ops.zeros(shape, dtype=self.compute_dtype) for _ in backbone.decoder_layers)
        if prompt_ids.shape[1] == 1:
            return cache  # The first step reads the prompt token.
        return self._decode_next(prompt_ids, read, cache, 0)[1]

    def _decode_next(self, token_ids, read, cache, index):
        keys_values = tuple(read[f"memory_{i}"] for i in range(len(cache)))
        return self.backbone.decode_with_cache(
            token_ids, read["memory_mask"], keys_values, cache, index
        )

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "output_bias": self.output_bias,
            "forbidden_token_ids": self.forbidden_token_ids,
            "forced_end_token_id": self.forced_end_token_id,
        }
