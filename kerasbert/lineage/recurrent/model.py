"""Sequence-to-sequence language model on recurrent networks with attention (2015).

N pairs, B batch, S source tokens, T target tokens, V vocabulary.
"""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert import backend
from kerasbert.heads.base.inputs import as_lists, sorted_batches
from kerasbert.heads.base.steps import each_batch
from kerasbert.layers.heads import MaskedLMHead
from kerasbert.lineage.recurrent.backbone import RecurrentSeq2SeqBackbone
from kerasbert.lineage.recurrent.preprocessor import RecurrentSeq2SeqLMPreprocessor
from kerasbert.lineage.seq2seq.task import Seq2SeqTask

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Texts


class Alignment(typing.NamedTuple):
    """Attention of a target's tokens to the tokens of its source.

    Attributes:
        source: list of S strings, the source's tokens and the end token.
        target: list of T strings, the target's tokens and the end token.
        weights: float32 (T, S). Attention weights when each target token was predicted; rows sum
            to 1.
    """

    source: list
    target: list
    weights: np.ndarray


@keras.saving.register_keras_serializable(package="kerasbert")
class RecurrentSeq2SeqLM(Seq2SeqTask):
    """Sequence-to-sequence language model with recurrent networks and attention.

    The output is logits (B, T, V) of the target's next tokens. `fit` and `evaluate` take raw
    strings, `fit((sources, targets))`, and train by teacher forcing. Preprocessed arrays have the
    next tokens (B, T) as labels and sample weights (B, T), 0 at padding. `translate` and `generate`
    decode by greedy or beam search, and `align` returns the attention weights.

    Args:
        backbone: a `RecurrentSeq2SeqBackbone`.
        preprocessor: a `RecurrentSeq2SeqLMPreprocessor`, or `None` for preprocessed arrays.
        tie_weights: whether the logits share the token embedding, unlike in the papers.

    Example:

    >>> backbone = RecurrentSeq2SeqBackbone(vocabulary_size=100, num_layers=1, hidden_dim=8)
    >>> model = RecurrentSeq2SeqLM(backbone)
    >>> inputs = {"encoder_token_ids": [[5, 7, 9]], "decoder_token_ids": [[1, 0, 0, 0]],
    ...           "decoder_padding_mask": [[1, 0, 0, 0]]}
    >>> model.generate(inputs, stop_token_ids=None)["decoder_token_ids"].shape
    (1, 4)

    Source: Bahdanau et al. 2015, arXiv 1409.0473; Luong et al. 2015, arXiv 1508.04025.
    """

    backbone_cls = RecurrentSeq2SeqBackbone
    preprocessor_cls = RecurrentSeq2SeqLMPreprocessor

    def __init__(
        self,
        backbone: RecurrentSeq2SeqBackbone,
        preprocessor: RecurrentSeq2SeqLMPreprocessor | None = None,
        tie_weights: bool = False,
        **kwargs: Any,
    ) -> None:
        self._set_parts(backbone, preprocessor)
        # === Layers ===
        self.lm_head = MaskedLMHead(
            backbone.token_embedding,
            tie_weights=tie_weights,
            transform=False,
            dtype=backbone.dtype_policy,
            name="lm_head",
        )
        self.tie_weights = tie_weights

        # === Functional model ===
        inputs = backbone.input
        outputs = self.lm_head(backbone(inputs)["decoder_sequence_output"])  # (B, T, V)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def compile(
        self, optimizer: Any = "auto", loss: Any = "auto", *, metrics: Any = "auto", **kwargs: Any
    ) -> None:
        """Configure training and generation.

        The default optimizer is Adam at 1e-3, with gradients clipped to a norm of 1. See
        `BertTask.compile`.
        """
        if isinstance(optimizer, str) and optimizer == "auto":
            optimizer = keras.optimizers.Adam(1e-3, global_clipnorm=1.0)
        super().compile(optimizer, loss, metrics=metrics, **kwargs)

    def align(self, sources: Texts, targets: Texts = None, batch_size: int = 32) -> Any:
        """Return the attention of each target token to the tokens of its source.

        Args:
            sources: a string, or a list of N strings.
            targets: the same for the targets; `None` translates the sources by greedy search.
            batch_size: int.

        Returns:
            An `Alignment`, or a list of N; see `kerasbert.visualize.alignment_map`.
        """
        if targets is None:
            targets = self.translate(sources, num_beams=1, batch_size=batch_size)
        texts, single = as_lists(self, (sources, targets), "align()")
        batches, order = sorted_batches(self, texts, batch_size=batch_size)
        name_of = self.preprocessor.tokenizer.id_to_token

        def step(batch):
            x, y, weights = batch
            features = {name: np.asarray(value, "int32") for name, value in x.items()}
            maps = np.asarray(backend.predict_batch(self.backbone, features)["attention_weights"])
            found = []
            for ids, mask, following, kept, own in zip(
                features["encoder_token_ids"],
                features["encoder_padding_mask"] > 0,
                np.asarray(y),
                np.asarray(weights) > 0,
                maps,
            ):
                source = [name_of(int(id)) for id in ids[mask]]
                target = [name_of(int(id)) for id in following[kept]]
                found.append(Alignment(source, target, own[kept][:, mask]))
            return found, {"outputs": maps}

        parts = each_batch(self, "predict", step, batches, verbose=0)
        found = [one for part in parts for one in part]
        found = [found[i] for i in np.argsort(order)]
        return found[0] if single else found

    # === Generation; see `Seq2SeqTask` ===

    def _read_source(self, token_ids, padding_mask):
        backbone = self.backbone
        memory, states = backbone.encoder(backbone.embed(token_ids), padding_mask=padding_mask)
        read = backbone.decoder.read_memory(memory, padding_mask)
        return {**read, **{f"state_{i}": state for i, state in enumerate(states)}}

    def _fresh_cache(self, prompt_ids, first, read, length):
        decoder = self.backbone.decoder
        count = sum(name.startswith("state_") for name in read)
        states = decoder.fresh_states(read[f"state_{i}"] for i in range(count))
        if prompt_ids.shape[1] == 1:
            return states  # The first step reads the prompt token.
        return decoder.states_after(self.backbone.embed(prompt_ids), first - 1, states, read)

    def _decode_next(self, token_ids, read, cache, index):
        x = self.backbone.embed(token_ids)[:, 0]
        outputs, _, states = self.backbone.decoder.step(x, cache, read)
        return outputs[:, None], states

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "tie_weights": self.tie_weights}
