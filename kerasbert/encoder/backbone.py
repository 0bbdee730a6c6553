"""The encoder of the BERT family.

B batch, T tokens, D width (`hidden_dim`), E embedding width, N heads.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert import backend
from kerasbert.base.errors import check_choice, check_heads, is_whole
from kerasbert.base.keywords import config_of
from kerasbert.base.process import check_process
from kerasbert.encoder.building import backbone_of, own_backbone
from kerasbert.encoder.feature_model import FeatureModel
from kerasbert.encoder.preset_backbone import PresetBackbone
from kerasbert.families import FAMILIES, get_family
from kerasbert.families.settings import POSITION_EMBEDDINGS, SETTINGS
from kerasbert.layers.attention import AttentionMask
from kerasbert.layers.block import TransformerBlock, layer_norm
from kerasbert.layers.dense import TokenDense
from kerasbert.layers.disentangled_attention import own_attention, shared_distances
from kerasbert.layers.dropout import TokenDropout
from kerasbert.layers.embeddings import PositionEmbedding
from kerasbert.text.packing import BertPreprocessor
from kerasbert.tokenizers import CLASSES as TOKENIZERS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from numpy.typing import ArrayLike

    from kerasbert.base.aliases import Found, Tensor

# Embedding layers, which two encoders may share.
_EMBEDDINGS = (
    "token_embedding",
    "position_embedding_layer",
    "segment_embedding",
    "embeddings_layer_norm",
)


@keras.saving.register_keras_serializable(package="kerasbert")
class BertBackbone(PresetBackbone):
    """Transformer encoder: BERT by default, its relatives with other settings.

    Inputs are a dict of `token_ids` (B, T), `segment_ids` (B, T) if the family has segments, and
    `padding_mask` (B, T), true or 1 at tokens. The last two are optional in calls on arrays.
    Outputs are a dict of `sequence_output` (B, T, D) and, with a pooler, `pooled_output` (B, D).

    Args:
        vocabulary_size: int.
        num_layers: int.
        num_heads: int. Must divide `hidden_dim`.
        hidden_dim: int.
        intermediate_dim: int. Width of the feed-forward.
        dropout: float. Dropout of the embeddings and of each sublayer's output.
        max_sequence_length: int. Number of positions.
        num_segments: int. 0 for families without segments.
        attention_dropout: float. Dropout of the attention maps; `None` takes `dropout`.
        activation: string. A Keras activation, "gelu_approximate" (tanh form of GELU) or
            "quick_gelu" (sigmoid form).
        layer_norm_epsilon: float.
        pooler: bool. Dense layer with tanh on the first token, for `pooled_output`.
        embedding_dim: int. Width of embeddings that are projected to `hidden_dim` (ALBERT,
            ELECTRA).
        embeddings_norm: bool. Norm of the embeddings (GPT has none).
        num_groups: int. Number of groups of layers that share weights (ALBERT); `None` shares none.
        num_inner_repetitions: int. Number of blocks per layer (ALBERT).
        position_embedding: "learned", "rotary" or, in the attention of all layers, "disentangled"
            (DeBERTa).
        position_offset: int. Row of the first position in the learned table (RoBERTa: 2).
        bucket_size: int. Number of buckets of relative positions per side, for disentangled
            positions; `None` makes one per distance.
        max_relative_positions: int. Limit to which disentangled distances are clipped; `None` takes
            `max_sequence_length`.
        rotary_base: float. Base of the rotary angles.
        local_rotary_base: float. The same for local layers; `None` takes `rotary_base`.
        rotary_factor: float. Divisor of rotary positions (GTE).
        local_window: int. Local layers attend to `local_window // 2` tokens on each side; `None`
            makes all layers global.
        global_every: int. With a window, layers 0, n, 2n, ... attend globally.
        norm_first: bool. Pre-norm, with a final norm, instead of post-norm.
        gated_mlp: bool. Gated feed-forward.
        use_bias: bool. Biases in the layers' projections and norms; or a list of parts with
            biases: "attention", "intermediate", "output", "norm" (NomicBERT: ["norm"]).
        is_causal: bool. Left-to-right attention (the paper's ablation).
        initializer_range: float. Standard deviation of the truncated normal initializer.
        family: string. Family of the checkpoint; determines conversion and the heads' defaults.
        finetuning_learning_rate: float. Recommended peak learning rate for fine-tuning these
            weights, the default of `finetune` and the tasks' `compile`; `None` if unknown. Saved
            in presets of this package only.
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
        local_window: int | None = None,
        global_every: int = 1,
        norm_first: bool = False,
        gated_mlp: bool = False,
        use_bias: bool | Sequence[str] = True,
        is_causal: bool = False,
        initializer_range: float = 0.02,
        family: str = "bert",
        finetuning_learning_rate: float | None = None,
        rotary_factor: float = 1.0,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        check_process()
        # An encoder whose embedding layers this one shares, as in ELECTRA's pre-training. Saved
        # encoders have their own.
        tables = kwargs.pop("tables", None)
        attention_dropout = dropout if attention_dropout is None else attention_dropout
        self._set_settings(locals(), SETTINGS)
        get_family(family, FAMILIES)  # Raises for an unknown family.
        check_heads(hidden_dim, num_heads)
        check_choice("position_embedding", position_embedding, POSITION_EMBEDDINGS)
        if position_embedding == "rotary" and hidden_dim // num_heads % 2:
            raise ValueError(
                f"hidden_dim={hidden_dim} gives {num_heads} heads of width "
                f"{hidden_dim // num_heads}; rotary positions need an even width."
            )
        if num_groups is not None and not 1 <= num_groups <= num_layers:
            raise ValueError(
                f"num_groups must be None or between 1 and num_layers={num_layers}, got "
                f"{num_groups}."
            )

        def initializer():
            return keras.initializers.TruncatedNormal(stddev=initializer_range)

        # === Layers ===
        if tables is None:
            self._make_embeddings(initializer, dtype)
        else:
            for name in _EMBEDDINGS:
                setattr(self, name, getattr(tables, name))
        self.embeddings_dropout = TokenDropout(dropout, dtype=dtype, name="embeddings_dropout")
        self.embeddings_projection = None
        if embedding_dim is not None:
            self.embeddings_projection = TokenDense(
                hidden_dim,
                kernel_initializer=initializer(),
                dtype=dtype,
                name="embeddings_projection",
            )
        self.distance_embedding = shared_distances(self, initializer(), dtype)
        # Global layers use the first mask, local layers the last.
        self.attention_masks = [AttentionMask(is_causal, name="attention_mask")]
        if local_window is not None:
            self.attention_masks.append(
                AttentionMask(is_causal, local_window, name="local_attention_mask")
            )
        # Blocks in the order they run, with repetitions if layers share weights.
        groups = num_groups or num_layers
        unique = [
            TransformerBlock(
                num_heads,
                intermediate_dim,
                activation=activation,
                dropout=dropout,
                attention_dropout=attention_dropout,
                layer_norm_epsilon=layer_norm_epsilon,
                norm_first=norm_first,
                # With pre-norm, the embeddings' norm replaces the first norm of layer 0.
                attention_norm=not (norm_first and embeddings_norm and i == 0),
                gated_mlp=gated_mlp,
                use_bias=use_bias,
                rotary_base=(
                    None
                    if position_embedding != "rotary"
                    else rotary_base
                    if local_window is None or i // num_inner_repetitions % global_every == 0
                    else local_rotary_base or rotary_base
                ),
                rotary_factor=rotary_factor,
                kernel_initializer=initializer(),
                attention=own_attention(self, initializer(), dtype),
                dtype=dtype,
                name=f"transformer_layer_{i}",
            )
            for i in range(groups * num_inner_repetitions)
        ]
        self.transformer_layers = [
            unique[i * groups // num_layers * num_inner_repetitions + inner]
            for i in range(num_layers)
            for inner in range(num_inner_repetitions)
        ]
        self.final_layer_norm = (
            layer_norm(layer_norm_epsilon, use_bias, dtype, "final_layer_norm")
            if norm_first
            else None
        )
        self.pooled_dense = None
        if pooler:
            self.pooled_dense = keras.layers.Dense(
                hidden_dim,
                activation="tanh",
                kernel_initializer=initializer(),
                dtype=dtype,
                name="pooled_dense",
            )

        self.cls_token_index = 0

        # === Functional model ===
        names = ["token_ids", "segment_ids", "padding_mask"]
        if not num_segments:
            names.remove("segment_ids")
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
        hidden_states, _ = self._encode(inputs)
        outputs = self._named_outputs(hidden_states)
        # `num_layers + 1` symbolic tensors, embeddings first.
        self.hidden_states = tuple(hidden_states)
        super().__init__(inputs=inputs, outputs=outputs, dtype=dtype, **kwargs)

    def _make_embeddings(self, initializer, dtype):
        """Make the layers of `_EMBEDDINGS`."""
        width = self.embedding_dim or self.hidden_dim
        self.token_embedding = keras.layers.ReversibleEmbedding(
            self.vocabulary_size,
            width,
            embeddings_initializer=initializer(),
            dtype=dtype,
            name="token_embedding",
        )
        self.position_embedding_layer = None
        if self.position_embedding == "learned":
            self.position_embedding_layer = PositionEmbedding(
                self.max_sequence_length,
                offset=self.position_offset,
                initializer=initializer(),
                dtype=dtype,
                name="position_embedding",
            )
        self.segment_embedding = None
        if self.num_segments:
            self.segment_embedding = keras.layers.Embedding(
                self.num_segments,
                width,
                embeddings_initializer=initializer(),
                dtype=dtype,
                name="segment_embedding",
            )
        self.embeddings_layer_norm = None
        if self.embeddings_norm:
            self.embeddings_layer_norm = layer_norm(
                self.layer_norm_epsilon, self.use_bias, dtype, "embeddings_layer_norm"
            )

    @classmethod
    def from_family(cls, family: str, **settings: Any) -> Self:
        """Build an encoder with the settings of a family in `kerasbert.families`.

        `settings` take precedence.

        >>> BertBackbone.from_family(
        ...     "distilbert", vocabulary_size=9, num_layers=1, num_heads=1, hidden_dim=4,
        ...     intermediate_dim=4,
        ... ).num_segments
        0
        """
        return cls(**{**get_family(family).encoder, "family": family, **settings})

    @classmethod
    def from_source(cls, source: Found, load_weights: bool = True, **kwargs: Any) -> Self:
        build = own_backbone if source.is_own else backbone_of
        return build(cls, source, load_weights, **kwargs)

    def with_layers(self, layers: Sequence[int]) -> Self:
        """Return a new encoder with copies of some layers, for example a student to distill.

        It is trainable even if this encoder is frozen, as a teacher is.

        Args:
            layers: list of ints. Layers to copy, from 0, for example every other.

        >>> backbone = BertBackbone(
        ...     vocabulary_size=9, num_layers=4, num_heads=1, hidden_dim=4, intermediate_dim=4
        ... )
        >>> backbone.with_layers([0, 2]).num_layers
        2
        """
        layers = list(layers)
        for place, layer in enumerate(layers):
            if not is_whole(layer) or not 0 <= layer < self.num_layers:
                raise ValueError(
                    f"Layer {layer!r} does not exist; the encoder's {self.num_layers} layers are "
                    f"numbered from 0 to {self.num_layers - 1}."
                )
            differs = (place % self.global_every == 0) != (layer % self.global_every == 0)
            is_first = self.norm_first and self.embeddings_norm  # Layer 0 has no first norm.
            if differs or (is_first and (place == 0) != (layer == 0)):
                raise ValueError(
                    f"Layer {layer} is of another kind than layer {place}, which it would become: "
                    f"every {self.global_every}th is global, and with norm_first layer 0 lacks a "
                    "norm; choose a layer of the same kind."
                )
        inner = self.num_inner_repetitions
        blocks = [self.transformer_layers[layer * inner] for layer in layers]  # The first of each.
        settings = {**config_of(self), "num_layers": len(layers), "trainable": True}
        if self.num_groups is not None:
            groups = list(dict.fromkeys(map(id, blocks)))
            settings["num_groups"] = len(groups)
            if any(id(b) != groups[i * len(groups) // len(blocks)] for i, b in enumerate(blocks)):
                raise ValueError(
                    f"The layers {layers} cannot share weights in groups as in this encoder; "
                    "choose the same number from each group, in order."
                )
        settings.pop("name")
        model = type(self).from_config(settings)
        for place, copy in enumerate(model.transformer_layers):
            block = self.transformer_layers[layers[place // inner] * inner + place % inner]
            copy.set_weights(block.get_weights())
        inside = {id(w) for block in model.transformer_layers for w in block.weights}
        own = {weight.path: weight for weight in self.weights}
        for weight in model.weights:
            if id(weight) not in inside:
                # JAX would share the tensor's memory and donate it in training.
                weight.assign(ops.convert_to_numpy(own[weight.path]))
        return model

    def _embed(self, inputs, start_index=None):
        """Embed tokens, giving (B, T, D), from position `start_index` on (by default 0)."""
        x = self.token_embedding(inputs["token_ids"])  # (B, T, E)
        if self.position_embedding_layer is not None:
            # Quantized tables differ in dtype, which TensorFlow's `+` rejects.
            x = ops.add(x, self.position_embedding_layer(x, start_index=start_index))
        if self.segment_embedding is not None:
            x = ops.add(x, self.segment_embedding(inputs["segment_ids"]))
        if self.embeddings_layer_norm is not None:
            x = self.embeddings_layer_norm(x)
        x = self.embeddings_dropout(x)
        return x if self.embeddings_projection is None else self.embeddings_projection(x)

    def _mask_of(self, masks, block):
        """Select a block's mask from those of `attention_masks`."""
        return masks[0 if block // self.num_inner_repetitions % self.global_every == 0 else -1]

    def _encode(self, inputs, attention_scores=False, positions=None):
        """Return every layer's output (embeddings first) and every layer's attention maps.

        The last layer's output is (B, P, D) where `positions` (B, P) are given.
        """
        x = self._embed(inputs)
        masks = [
            mask(inputs["padding_mask"], by_blocks=not attention_scores)
            for mask in self.attention_masks
        ]
        shared = None if self.distance_embedding is None else self.distance_embedding(x)
        hidden_states, maps = [x], []
        inner = self.num_inner_repetitions
        for i, block in enumerate(self.transformer_layers):
            x = block(
                x,
                attention_mask=self._mask_of(masks, i),
                return_attention_scores=attention_scores,
                positions=positions if i == len(self.transformer_layers) - 1 else None,
                attention_inputs=shared,
            )
            if attention_scores:
                x, scores = x
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
        """Compute the last layer's output (B, S, D), with the preceding tokens in a cache.

        Args:
            token_ids: ints (B, S).
            cache: tuple of a tensor (B, 2, T, N, H) for each block: keys and values of T tokens,
                not yet filled from `cache_update_index` on.
            cache_update_index: int. Position of the first of the S tokens.

        Returns:
            `(outputs, cache)`.
        """
        inputs = {"token_ids": token_ids, "segment_ids": ops.zeros_like(token_ids)}
        x = self._embed(inputs, cache_update_index)
        queries = cache_update_index + ops.arange(ops.shape(token_ids)[1], dtype="int32")
        keys = ops.arange(ops.shape(cache[0])[2], dtype="int32")
        masks = [
            backend.is_seen(queries, keys, mask.is_causal, mask.window)
            for mask in self.attention_masks
        ]
        filled = []
        for i, block in enumerate(self.transformer_layers):
            x, own = block(
                x,
                attention_mask=self._mask_of(masks, i),  # (S, T)
                cache=cache[i],
                cache_update_index=cache_update_index,
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

    def __call__(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
        check_process()  # Before the first tensor exists, for which JAX may compile.
        if isinstance(inputs, dict) and "token_ids" in inputs:
            self.check_padding(inputs)
            inputs = self.fill_in(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def call(
        self,
        inputs: Tensor,
        training: bool | None = None,
        mask: Tensor = None,
        positions: Tensor = None,
        **kwargs: Any,
    ) -> Tensor:
        """With `positions` (B, P), return `sequence_output` (B, P, D) for these tokens only.

        The last layer's feed-forward, a sixth of a mini encoder's cost, then runs only for them.
        """
        check_process()
        inputs = self.fill_in(inputs)  # On JAX, `fit` and `predict` skip `__call__`.
        if positions is None:
            return super().call(inputs, training=training, mask=None, **kwargs)
        if self.pooled_dense is None:
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
        outputs = super().compute_output_spec(inputs, training=training, mask=mask)
        if positions is None:
            return outputs
        tokens = outputs["sequence_output"]
        shape = (*positions.shape, tokens.shape[-1])
        return {**outputs, "sequence_output": keras.KerasTensor(shape, dtype=tokens.dtype)}

    def check_padding(self, inputs: Tensor) -> None:
        """Warn about left-padded arrays, for which transformers uses other positions."""
        mask = inputs.get("padding_mask")
        if not self.position_offset or not isinstance(mask, (np.ndarray, list)):
            return
        mask = np.asarray(mask)
        is_left = mask.any(axis=-1) & (mask[..., 0] == 0)
        if is_left.any():
            warnings.warn(
                f"{is_left.sum()} of {is_left.size} rows begin with padding. Positions count from "
                f"the first column here, but from the first token in '{self.family}' training and "
                "in transformers; pad on the right, as the preprocessors do.",
                stacklevel=4,
            )

    def fill_in(self, inputs: Tensor) -> dict[str, Any]:
        """Add missing inputs: segment 0 for all tokens, and a mask without padding."""
        if not isinstance(inputs["token_ids"], keras.KerasTensor):
            inputs = {name: ops.convert_to_tensor(value) for name, value in inputs.items()}
        token_ids = inputs["token_ids"]
        if "padding_mask" not in inputs:
            inputs = {**inputs, "padding_mask": ops.ones_like(token_ids, dtype="int32")}
        if not self.num_segments:
            inputs = {name: value for name, value in inputs.items() if name != "segment_ids"}
        elif "segment_ids" not in inputs:
            inputs = {**inputs, "segment_ids": ops.zeros_like(token_ids, dtype="int32")}
        return inputs

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        # Earlier versions can read configs without these settings.
        for name, unused in (("finetuning_learning_rate", None), ("rotary_factor", 1.0)):
            if config.get(name) == unused:
                config.pop(name, None)
        if config.get("position_embedding") != "disentangled":
            for name in ("bucket_size", "max_relative_positions"):
                config.pop(name, None)
        return config


# KerasHub's loader finds a preset's tokenizer and preprocessor by the backbone's class.
for _cls in (BertPreprocessor, *TOKENIZERS):
    _cls.backbone_cls = BertBackbone
