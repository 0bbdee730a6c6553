"""The encoder of the BERT family.

B batch, T tokens, D width (`hidden_dim`), E embedding width, N heads.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.backend.attention import is_seen
from kerasbert.backend.layers import tokens_at
from kerasbert.base.process import check_process
from kerasbert.encoder.feature_model import FeatureModel
from kerasbert.encoder.inputs import filled_in, warn_of_left_padding
from kerasbert.encoder.layers import (
    check_settings,
    copy_layers,
    make_layers,
    reinitialize_layers,
)
from kerasbert.encoder.preset_backbone import PresetBackbone
from kerasbert.families import FAMILIES, get_family
from kerasbert.families.settings import SETTINGS
from kerasbert.layers.embeddings import restarted_positions
from kerasbert.layers.global_attention import check_global_mask, rule_mask
from kerasbert.text.preprocessor import BertPreprocessor
from kerasbert.tokenizers import CLASSES as TOKENIZERS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from numpy.typing import ArrayLike

    from kerasbert.base.aliases import Tensor

# Settings that version 0.1.0 does not have.
NEW_SETTINGS = (
    *("finetuning_learning_rate", "rotary_factor", "position_bias", "first_attention_norm"),
    *("rotary_value", "num_key_value_heads", "rms_norm", "shares_projections"),
    *("conv_kernel_size", "conv_activation", "global_tokens", "max_global_tokens"),
    *("sep_token_id", "restarts_positions", "final_norm"),
)


@keras.saving.register_keras_serializable(package="kerasbert")
class BertBackbone(PresetBackbone):
    """Transformer encoder; the defaults are BERT's, other settings give other families.

    Inputs are a dict of `token_ids` (B, T), `segment_ids` (B, T) if the family has segments, and
    `padding_mask` (B, T), true or 1 at tokens. The last two are optional in calls on arrays.
    Outputs are a dict of `sequence_output` (B, T, D) and, with a pooler, `pooled_output` (B, D).

    Args:
        vocabulary_size: int.
        num_layers: int.
        num_heads: int. Must divide `hidden_dim`.
        hidden_dim: int.
        intermediate_dim: width of the feed-forward.
        dropout: dropout of the embeddings and of each sublayer's output.
        max_sequence_length: number of positions.
        num_segments: int. 0 for families without segments.
        attention_dropout: dropout of the attention maps; `None` means `dropout`.
        activation: a Keras activation, "gelu_approximate" (tanh form of GELU) or "quick_gelu"
            (sigmoid form).
        layer_norm_epsilon: float.
        pooler: whether a dense layer with tanh on the first token computes `pooled_output`.
        embedding_dim: width of the embeddings, which are then projected to `hidden_dim` (ALBERT,
            ELECTRA); `None` means `hidden_dim`.
        embeddings_norm: whether a norm follows the embeddings (GPT has none).
        num_groups: number of groups of layers that share weights (ALBERT); `None` shares none.
        num_inner_repetitions: number of blocks per layer (ALBERT).
        position_embedding: "learned", "rotary", "none" or, in the attention of all layers,
            "disentangled" (DeBERTa).
        position_offset: row of the first position in the learned table (RoBERTa: 2).
        restarts_positions: whether learned positions restart at the first token of another segment
            than the first (XLM's translation language modeling, in which segments are languages).
        bucket_size: number of buckets of relative positions per side, for disentangled positions
            and `position_bias="buckets"`; `None` (disentangled only) means one per distance.
        max_relative_positions: limit to which relative positions are clipped; `None` means
            `max_sequence_length`.
        rotary_base: base of the rotary angles.
        local_rotary_base: base of the rotary angles in local layers; `None` means `rotary_base`.
        rotary_factor: divisor of rotary positions (GTE).
        rotary_value: bool. Rotary positions of values too (small RoFormers).
        num_key_value_heads: number of heads of keys and values, a divisor of `num_heads`
            (grouped-query attention, EuroBERT); `None` means `num_heads`.
        rms_norm: bool. Root-mean-square norms instead of layer norms (EuroBERT).
        shares_projections: bool. For disentangled positions: whether distances share the tokens'
            norm and projections, unlike in the first DeBERTa.
        conv_kernel_size: number of tokens, odd, of a convolution of the embeddings that is added to
            the first layer's output (DeBERTa-v2); `None` for no convolution.
        conv_activation: activation of the convolution.
        position_bias: bias of attention scores by relative position: "buckets", learned and shared
            by all layers (MPNet), "alibi" (Jina-BERT v2), or `None`.
        local_window: int. Local layers attend to `local_window // 2` tokens on each side; `None`
            makes all layers global. A list has one window for each layer (Longformer).
        global_every: int. n: if `local_window` is set, layers 0, n, 2n, ... attend globally; `None`
            makes all layers local.
        global_tokens: which tokens attend to all and are attended to by all, with own projections
            (Longformer); `None` for encoders without these. "by_task" follows transformers: the
            first token in classifiers, the question in question answering, the choice in multiple
            choice, and none elsewhere. "first", "before_separator", "after_separator" and "none"
            are the same for every head. "given" adds the input `global_attention_mask`, (B, T), 1
            at global tokens, which raw texts lack; calls of the encoder take it with any of these
            values.
        max_global_tokens: maximum number of global tokens per row, which limits memory.
        sep_token_id: id of the separator, where "before_separator" ends.
        norm_first: whether layers are pre-norm, with a final norm, instead of post-norm.
        first_attention_norm: whether, with `norm_first` and `embeddings_norm`, the first layer has
            a norm before attention (RoBERTa-PreLayerNorm).
        final_norm: whether a pre-norm encoder has a final norm (FlauBERT has none).
        gated_mlp: whether the feed-forward is gated.
        use_bias: whether projections and norms have biases; or a list of parts: "attention",
            "intermediate", "output", "norm" (NomicBERT: ["norm"]).
        is_causal: whether attention is left-to-right (an ablation in BERT's paper).
        initializer_range: standard deviation of the truncated normal initializer.
        family: string. Family of the checkpoint; determines conversion and the heads' defaults.
        finetuning_learning_rate: recommended peak learning rate for fine-tuning these weights, the
            default of `finetune` and `compile`; `None` if unknown. Saved only in presets of this
            package.
        dtype: string or policy, for example "mixed_bfloat16".

    Example:

    >>> backbone = BertBackbone(
    ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> outputs = backbone({"token_ids": np.ones((3, 5), "int32")})
    >>> tuple(outputs["sequence_output"].shape), tuple(outputs["pooled_output"].shape)
    ((3, 5, 16), (3, 16))

    Source: Devlin et al. 2019, arXiv 1810.04805; for its relatives, see `kerasbert/families/`.
    """

    setting_names = tuple(SETTINGS)

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        dropout: float = 0.1,
        max_sequence_length: int = 512,
        num_segments: int = 2,
        attention_dropout: float | None = None,
        activation: str = "gelu_approximate",
        layer_norm_epsilon: float = 1e-12,
        pooler: bool = True,
        embedding_dim: int | None = None,
        embeddings_norm: bool = True,
        num_groups: int | None = None,
        num_inner_repetitions: int = 1,
        position_embedding: str = "learned",
        position_offset: int = 0,
        bucket_size: int | None = 256,
        max_relative_positions: int | None = None,
        rotary_base: float = 10000.0,
        local_rotary_base: float | None = None,
        local_window: int | Sequence[int] | None = None,
        global_every: int | None = 1,
        norm_first: bool = False,
        gated_mlp: bool = False,
        use_bias: bool | Sequence[str] = True,
        is_causal: bool = False,
        initializer_range: float = 0.02,
        family: str = "bert",
        finetuning_learning_rate: float | None = None,
        rotary_factor: float = 1.0,
        position_bias: str | None = None,
        first_attention_norm: bool = False,
        rotary_value: bool = False,
        num_key_value_heads: int | None = None,
        rms_norm: bool = False,
        shares_projections: bool = True,
        conv_kernel_size: int | None = None,
        conv_activation: str = "tanh",
        global_tokens: str | None = None,
        max_global_tokens: int = 256,
        sep_token_id: int | None = None,
        restarts_positions: bool = False,
        final_norm: bool = True,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        check_process()
        # `tables` is an encoder with shared embedding layers, as in ELECTRA's pre-training. A saved
        # encoder has its own.
        tables = kwargs.pop("tables", None)
        attention_dropout = dropout if attention_dropout is None else attention_dropout
        self._set_settings(locals(), SETTINGS)
        get_family(family, FAMILIES)  # Raises for an unknown family.
        check_settings(self)
        make_layers(self, tables, dtype)
        self.cls_token_index = 0

        # === Functional model ===
        names = ["token_ids", "segment_ids", "padding_mask"]
        if not num_segments:
            names.remove("segment_ids")
        if global_tokens == "given":
            names.append("global_attention_mask")
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
        hidden_states, _ = self._encode(inputs)
        outputs = self._named_outputs(hidden_states)
        # Symbolic outputs of the embeddings and of each layer.
        self.hidden_states = tuple(hidden_states)
        super().__init__(inputs=inputs, outputs=outputs, dtype=dtype, **kwargs)

    @classmethod
    def from_family(cls, family: str, **settings: Any) -> Self:
        """Build an encoder with the settings of a family in `kerasbert.families`.

        `settings` take precedence over the family's.

        >>> BertBackbone.from_family(
        ...     "distilbert", vocabulary_size=9, num_layers=1, num_heads=1, hidden_dim=4,
        ...     intermediate_dim=4,
        ... ).num_segments
        0
        """
        return cls(**{**get_family(family).encoder, "family": family, **settings})

    def with_layers(self, layers: Sequence[int]) -> Self:
        """Return a new, trainable encoder with copies of some layers, for example a student.

        Args:
            layers: list of ints. Layers to copy, counted from 0.

        >>> backbone = BertBackbone(
        ...     vocabulary_size=9, num_layers=4, num_heads=1, hidden_dim=4, intermediate_dim=4
        ... )
        >>> backbone.with_layers([0, 2]).num_layers
        2
        """
        return copy_layers(self, list(layers))

    def reinitialize_layers(self, count: int) -> None:
        """Give the last layers and the pooler new, random weights, before fine-tuning.

        With few labels, new ones may train more reliably.

        Args:
            count: number of layers, counted from the last.

        >>> backbone = BertBackbone(
        ...     vocabulary_size=9, num_layers=2, num_heads=1, hidden_dim=4, intermediate_dim=4
        ... )
        >>> backbone.reinitialize_layers(1)

        Source: Zhang et al. 2021, arXiv 2006.05987.
        """
        reinitialize_layers(self, count)

    def _embed(self, inputs, start_index=None):
        """Embed tokens, whose first position is `start_index` (by default 0): (B, T, D)."""
        x = self.token_embedding(inputs["token_ids"])  # (B, T, E)
        if self.position_embedding_layer is not None:
            where = {"start_index": start_index}
            if self.restarts_positions and start_index is None:
                where = {"position_ids": restarted_positions(inputs["segment_ids"])}
            # TensorFlow's `+` rejects different dtypes of quantized tables.
            x = ops.add(x, self.position_embedding_layer(x, **where))
        if self.segment_embedding is not None:
            x = ops.add(x, self.segment_embedding(inputs["segment_ids"]))
        if self.embeddings_layer_norm is not None:
            x = self.embeddings_layer_norm(x)
        x = self.embeddings_dropout(x)
        return x if self.embeddings_projection is None else self.embeddings_projection(x)

    def _of_block(self, values, block):
        """Select a block's value from `values`, which has one for each of `attention_masks`."""
        return values[self.mask_of_layer[block // self.num_inner_repetitions]]

    def _global_tokens(self, inputs):
        """Return the outputs of `GlobalTokens`, or `None` if all tokens are local."""
        mask, rule = inputs.get("global_attention_mask"), self.global_tokens
        if mask is None and rule not in (None, "by_task", "given", "none"):
            mask = rule_mask(rule, inputs["token_ids"], self.sep_token_id)
        if mask is None:
            return None
        return self.global_tokens_layer(mask, padding_mask=inputs["padding_mask"])

    def _attention_inputs(self, x, mask, given=None):
        """Return the further arguments of attention layers that use `mask`, or `None` for none."""
        if given is not None:
            return given
        if self.position_bias_layer is not None:
            return {"bias": self.position_bias_layer(x, attention_mask=mask)}
        return None if self.distance_embedding is None else self.distance_embedding(x)

    def _encode(self, inputs, attention_scores=False, positions=None):
        """Return the outputs of the embeddings and all layers, and all attention maps.

        With `positions` (B, P), the last layer's output is (B, P, D).
        """
        x = self._embed(inputs)
        padding_mask, found, given = inputs["padding_mask"], self._global_tokens(inputs), None
        keys = {}
        if found is not None:
            given = {**found, "padding_mask": padding_mask}
            keys = {name: found[name] for name in ("is_global", "global_ranks")}
        masks = [
            mask(padding_mask, by_blocks=not attention_scores, **keys)
            for mask in self.attention_masks
        ]
        shared = [self._attention_inputs(x, mask, given) for mask in masks]
        hidden_states, maps = [x], []
        inner = self.num_inner_repetitions
        for i, block in enumerate(self.transformer_layers):
            is_last = i == len(self.transformer_layers) - 1
            convolves = self.convolution is not None and i == inner - 1
            x = block(
                x,
                attention_mask=self._of_block(masks, i),
                return_attention_scores=attention_scores,
                positions=positions if is_last and not convolves else None,
                attention_inputs=self._of_block(shared, i),
            )
            if attention_scores:
                x, scores = x
            if convolves:
                mask = inputs["padding_mask"]
                x = self.convolution(hidden_states[0], padding_mask=mask, residual=x)
                x = tokens_at(x, positions) if is_last and positions is not None else x
            if (i + 1) % inner:
                continue  # A layer's output is that of its last block.
            hidden_states.append(x)
            if attention_scores:
                maps.append(scores)
        if self.final_layer_norm is not None:
            hidden_states[-1] = self.final_layer_norm(x)
        return hidden_states, maps

    def call_with_cache(
        self, token_ids: ArrayLike, cache: Tensor, cache_update_index: int
    ) -> tuple[Any, ...]:
        """Compute the last layer's output (B, S, D) for S tokens that follow those in a cache.

        Args:
            token_ids: ints (B, S).
            cache: tuple of a tensor (B, 2, T, N, H) for each block: keys and values of T tokens, of
                which those from `cache_update_index` on are not yet filled.
            cache_update_index: position of the first of the S tokens.

        Returns:
            `(outputs, cache)`; the new cache includes the S tokens.
        """
        inputs = {"token_ids": token_ids, "segment_ids": ops.zeros_like(token_ids)}
        x = self._embed(inputs, cache_update_index)
        count, length = ops.shape(token_ids)[1], ops.shape(cache[0])[2]
        queries = cache_update_index + ops.arange(count, dtype="int32")
        keys = ops.arange(length, dtype="int32")
        shared = None
        if self.position_bias_layer is not None:
            bias = self.position_bias_layer.between(count, length, cache_update_index)
            shared = {"bias": bias}
        masks = [
            is_seen(queries, keys, mask.is_causal, mask.window) for mask in self.attention_masks
        ]
        filled = []
        for i, block in enumerate(self.transformer_layers):
            x, own = block(
                x,
                attention_mask=self._of_block(masks, i),  # (S, T)
                cache=cache[i],
                cache_update_index=cache_update_index,
                attention_inputs=shared,
            )
            filled.append(own)
        x = x if self.final_layer_norm is None else self.final_layer_norm(x)
        return x, tuple(filled)

    def _named_outputs(self, hidden_states):
        outputs = {"sequence_output": hidden_states[-1]}
        if self.pooled_dense is not None:
            outputs["pooled_output"] = self.pooled_dense(hidden_states[-1][:, 0, :])
        return outputs

    def feature_model(
        self, output_hidden_states: bool = True, output_attentions: bool = False
    ) -> keras.Model:
        """Return a model with the same weights and more outputs.

        Args:
            output_hidden_states: bool. Add `hidden_states`: `num_layers + 1` tensors (B, T, D),
                embeddings first.
            output_attentions: bool. Add `attentions`: `num_layers` tensors (B, N, T, T).

        Returns:
            A `keras.Model` with the encoder's inputs and a dict of outputs.

        >>> backbone = BertBackbone(
        ...     vocabulary_size=9, num_layers=2, num_heads=1, hidden_dim=4, intermediate_dim=4
        ... )
        >>> model = backbone.feature_model(output_attentions=True)
        >>> ids, mask = np.ones((1, 3), "int32"), np.ones((1, 3), "int32")
        >>> outputs = model({"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": mask})
        >>> len(outputs["hidden_states"]), tuple(outputs["attentions"][0].shape)
        (3, (1, 1, 3, 3))
        """
        return FeatureModel(self, output_hidden_states, output_attentions)

    def call(
        self,
        inputs: Tensor,
        training: bool | None = None,
        mask: Tensor = None,
        positions: Tensor = None,
        **kwargs: Any,
    ) -> Tensor:
        """Run the encoder; see the class.

        With `positions` (B, P), `sequence_output` is (B, P, D). This saves most of the last
        feed-forward, a sixth of a mini encoder's cost.
        """
        check_process()
        inputs = self.fill_in(inputs)  # JAX's `fit` skips `__call__`.
        # A mask that is no symbolic input bypasses the functional model.
        is_given = "global_attention_mask" in inputs and self.global_tokens != "given"
        if positions is None and not is_given:
            return super().call(inputs, training=training, mask=None, **kwargs)
        if positions is None or self.pooled_dense is None:
            return self._named_outputs(self._encode(inputs, positions=positions)[0])
        # The pooler reads the first token.
        places = ops.pad(positions, [[0, 0], [1, 0]])
        outputs = self._named_outputs(self._encode(inputs, positions=places)[0])
        return {**outputs, "sequence_output": outputs["sequence_output"][:, 1:]}

    def compute_output_spec(
        self,
        inputs: Tensor,
        training: bool | None = None,
        mask: Tensor = None,
        positions: Tensor = None,
    ) -> Any:
        inputs = {name: x for name, x in inputs.items() if name in self.input}
        outputs = super().compute_output_spec(inputs, training=training, mask=mask)
        if positions is None:
            return outputs
        tokens = outputs["sequence_output"]
        shape = (*positions.shape, tokens.shape[-1])
        return {**outputs, "sequence_output": keras.KerasTensor(shape, dtype=tokens.dtype)}

    def check_padding(self, inputs: Tensor) -> None:
        """Warn about left-padded arrays, for which transformers uses other positions."""
        check_global_mask(self, inputs)
        if self.position_offset:
            warn_of_left_padding(inputs.get("padding_mask"), self.family)

    def fill_in(self, inputs: Tensor) -> dict[str, Any]:
        """Add missing inputs: segment 0 for all tokens, and a mask without padding.

        Raises:
            ValueError: for inputs of entities, which LUKE has in transformers only.
        """
        return filled_in(self, inputs)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        # Without defaults of newer settings, version 0.1.0 can read the config.
        defaults = inspect.signature(BertBackbone.__init__).parameters
        for name in NEW_SETTINGS:
            if config.get(name) == defaults[name].default:
                config.pop(name, None)
        has_buckets = config.get("position_bias") == "buckets"
        if config.get("position_embedding") != "disentangled" and not has_buckets:
            for name in ("bucket_size", "max_relative_positions"):
                config.pop(name, None)
        return config


# KerasHub's loader finds tokenizers and preprocessors by backbone.
for _cls in (BertPreprocessor, *TOKENIZERS):
    _cls.backbone_cls = BertBackbone
