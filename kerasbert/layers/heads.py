"""Layers of task heads.

B batch, C choices, T tokens, D width, E embedding width, P predictions, U units, V vocabulary size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.backend.layers import highest_of_tokens, matmul_transposed, tokens_at
from kerasbert.base import keras_internals
from kerasbert.base.errors import check_choice
from kerasbert.base.keywords import ChecksKeywords
from kerasbert.layers.block import layer_norm, only_blocks_remat
from kerasbert.layers.token_layers import TokenDense, activation_function

if TYPE_CHECKING:
    from typing import Any, Self

    from kerasbert.base.aliases import Tensor

# Logit of a missing choice: finite, to avoid NaN, with probability 0.
MISSING = -1e9
# Ways to pool a vocabulary word's weights over tokens.
WORD_POOLINGS = ("max", "sum")
SPARSITIES = ("relu", "log1p_relu")


@keras.saving.register_keras_serializable(package="kerasbert")
class Pooling(ChecksKeywords, keras.layers.Layer):
    """Pooling of token embeddings into one embedding per text.

    Args:
        mode: "cls" (first token), "last" (last token), "mean" or "max" (over all tokens except
            padding; zeros without any).

    Example:

    >>> x = np.array([[[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]]])
    >>> [float(v) for v in Pooling("mean")(x, padding_mask=np.array([[1, 1, 0]]))[0]]
    [2.0, 3.0]
    """

    def __init__(self, mode: str = "cls", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if mode not in ("cls", "last", "mean", "max"):
            raise ValueError(f"Unknown pooling mode '{mode}'; use 'cls', 'last', 'mean' or 'max'.")
        self.mode = mode
        self.built = True

    def call(self, inputs: Tensor, padding_mask: Tensor = None) -> Tensor:
        """Map (B, T, D) and a mask (B, T) to (B, D)."""
        if self.mode == "cls":
            return inputs[:, 0, :]
        if self.mode == "last":
            if padding_mask is None:
                return inputs[:, -1, :]
            return tokens_at(inputs, last_positions(padding_mask))[:, 0, :]
        if padding_mask is None:
            return (ops.mean if self.mode == "mean" else ops.max)(inputs, axis=1)
        if self.mode == "max":
            mask = ops.cast(padding_mask, "bool")[:, :, None]  # (B, T, 1)
            largest = ops.max(ops.where(mask, inputs, ops.full_like(inputs, float("-inf"))), axis=1)
            return ops.where(ops.any(mask, axis=1), largest, ops.zeros_like(largest))
        weights = ops.cast(padding_mask, inputs.dtype)[:, :, None]
        total = ops.sum(inputs * weights, axis=1)
        return total / ops.maximum(ops.sum(weights, axis=1), ops.cast(1e-9, inputs.dtype))

    def compute_output_spec(self, inputs: Tensor, padding_mask: Tensor = None) -> Any:
        return keras.KerasTensor((inputs.shape[0], inputs.shape[-1]), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "mode": self.mode}


def last_positions(padding_mask):
    """Return the last token's position in each row of a mask (B, T), int32 (B, 1), 0 without
    tokens.

    >>> [int(place) for place in last_positions(np.array([[1, 1, 0], [0, 1, 1]]))[:, 0]]
    [1, 2]
    """
    mask = ops.cast(padding_mask, "int32")
    places = ops.cumsum(ops.ones_like(mask), axis=1) - 1
    return ops.max(places * mask, axis=1, keepdims=True)


@keras.saving.register_keras_serializable(package="kerasbert")
class BiLSTM(ChecksKeywords, keras.layers.Layer):
    """Bidirectional LSTM that concatenates the outputs and skips padding.

    Args:
        units: U, units per direction.

    Example:

    >>> tuple(BiLSTM(4)(np.ones((2, 5, 8)), padding_mask=np.ones((2, 5))).shape)
    (2, 5, 8)

    Source: Graves and Schmidhuber 2005, doi 10.1016/j.neunet.2005.06.042.
    """

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units

    def build(self, inputs_shape: Any, padding_mask_shape: Any = None) -> None:
        def lstm(name, **settings):
            layer = keras.layers.LSTM(
                self.units,
                return_sequences=True,
                # cuDNN does not run under XLA, and supports neither padding before tokens nor rows
                # of padding.
                use_cudnn=False,
                dtype=self.dtype_policy,
                name=name,
                **settings,
            )
            layer.build(inputs_shape)
            return layer

        self.forward_lstm = lstm("forward")
        self.backward_lstm = lstm("backward", go_backwards=True)
        only_blocks_remat(keras_internals.flatten_layers(self, include_self=False))

    def call(self, inputs: Tensor, padding_mask: Tensor = None) -> Tensor:
        """Map (B, T, D) and a mask (B, T) to (B, T, 2 * U)."""
        mask = None if padding_mask is None else ops.cast(padding_mask, "bool")
        backward = ops.flip(self.backward_lstm(inputs, mask=mask), axis=1)
        return ops.concatenate([self.forward_lstm(inputs, mask=mask), backward], axis=-1)

    def compute_output_spec(self, inputs: Tensor, padding_mask: Tensor = None) -> Any:
        return keras.KerasTensor((*inputs.shape[:-1], 2 * self.units), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable(package="kerasbert")
class ChoicesToRows(ChecksKeywords, keras.layers.Layer):
    """Layer that flattens choices, or windows, into rows for the encoder.

    Example:

    >>> inputs = {name: np.ones((2, 4, 5), "int32") for name in ("token_ids", "padding_mask")}
    >>> tuple(ChoicesToRows()(inputs)["token_ids"].shape)
    (8, 5)
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.built = True

    def call(self, inputs: Tensor) -> Tensor:
        """Map a dict of (B, C, T), with `padding_mask`, to a dict of (B * C, T).

        Choices of several windows, (B, C, W, T), become (B * C, W, T).
        """
        rows = {name: ops.reshape(x, (-1, *ops.shape(x)[2:])) for name, x in inputs.items()}
        mask = ops.cast(rows["padding_mask"], "int32")
        flat = ops.reshape(mask, (ops.shape(mask)[0], -1))
        # Attention over no tokens is undefined, so a missing choice's first token is unmasked.
        is_missing = ops.cast(ops.sum(flat, axis=-1, keepdims=True) == 0, "int32")  # (B * C, 1)
        is_first = ops.cast(ops.arange(ops.shape(flat)[-1], dtype="int32") == 0, "int32")
        flat = flat + is_missing * is_first
        return {**rows, "padding_mask": ops.reshape(flat, ops.shape(mask))}

    def compute_output_spec(self, inputs: Tensor) -> Any:
        return {
            name: keras.KerasTensor((None, *x.shape[2:]), dtype=x.dtype)
            for name, x in inputs.items()
        }


@keras.saving.register_keras_serializable(package="kerasbert")
class RowsToChoices(ChecksKeywords, keras.layers.Layer):
    """Layer that reshapes the logits of rows back into choices; missing choices get -1e9.

    Example:

    >>> logits = np.array([[1.0], [2.0], [3.0], [4.0]])
    >>> mask = np.array([[[1, 1], [1, 0]], [[1, 1], [0, 0]]])
    >>> [float(v) for v in RowsToChoices()(logits, padding_mask=mask)[1]]
    [3.0, -1000000000.0]
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.built = True

    def call(self, logits: Tensor, padding_mask: Tensor) -> Tensor:
        """Map logits (B * C, 1) and the mask (B, C, T) or (B, C, W, T) to (B, C)."""
        logits = ops.reshape(logits, ops.shape(padding_mask)[:2])
        is_there = ops.any(padding_mask, axis=tuple(range(2, len(padding_mask.shape))))
        return ops.where(is_there, logits, ops.cast(MISSING, logits.dtype))

    def compute_output_spec(self, logits: Tensor, padding_mask: Tensor) -> Any:
        return keras.KerasTensor(padding_mask.shape[:2], dtype=self.compute_dtype)


@keras.saving.register_keras_serializable(package="kerasbert")
class MaskedLMHead(ChecksKeywords, keras.layers.Layer):
    """Masked language model head: dense layer, norm, then projection to vocabulary logits.

    The projection, most of a small model's cost, runs only at the P masked positions. Its kernel is
    the token embedding or, with `tie_weights=False`, a dense layer `decoder`.

    Args:
        token_embedding: the encoder's `keras.layers.ReversibleEmbedding` (V, E).
        activation: activation of the dense layer; see `activation_function`.
        layer_norm_epsilon: float.
        use_bias: whether the dense layer has a bias.
        norm_bias: whether the norm has a bias.
        output_bias: whether the logits have a bias per vocabulary entry.
        tie_weights: whether the projection shares the token embedding's weights.
        transform: whether there are a dense layer and a norm, unlike in GPT. Without them, `inputs`
            must have the embedding's width.
        hidden_dim: width of the dense layer, with `tie_weights=False` (RemBERT); `None` means the
            embedding's.
        kernel_initializer: an initializer.

    Raises:
        ValueError: if the weights are tied and `hidden_dim` is not the width of the embedding.

    Example:

    >>> embedding = keras.layers.ReversibleEmbedding(9, 4)
    >>> head = MaskedLMHead(embedding)
    >>> x = np.ones((2, 5, 8), "float32")
    >>> tuple(head(x, mask_positions=np.array([[1, 3, 4], [2, 0, 0]])).shape)
    (2, 3, 9)

    Source: Devlin et al. 2019, arXiv 1810.04805, and its released code.
    """

    def __init__(
        self,
        token_embedding: keras.layers.Layer,
        activation: str = "gelu_approximate",
        layer_norm_epsilon: float = 1e-12,
        use_bias: bool = True,
        norm_bias: bool = True,
        output_bias: bool = True,
        tie_weights: bool = True,
        transform: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        hidden_dim: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        width = token_embedding.output_dim
        if tie_weights and hidden_dim not in (None, width):
            raise ValueError(
                f"The dense layer of the masked-LM head has width {hidden_dim}, but the token "
                f"embedding, whose weights it shares, has width {width}; pass tie_weights=False."
            )
        self.token_embedding = token_embedding
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.use_bias = use_bias
        self.norm_bias = norm_bias
        self.output_bias = output_bias
        self.tie_weights = tie_weights
        self.transform = transform
        self.hidden_dim = hidden_dim
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, inputs_shape: Any, mask_positions_shape: Any = None) -> None:
        if not self.token_embedding.built:
            self.token_embedding.build()
        width = self.hidden_dim or self.token_embedding.output_dim
        dtype = self.dtype_policy
        self.dense = self.layer_norm = None
        if self.transform:
            self.dense = TokenDense(
                width,
                activation=activation_function(self.activation),
                use_bias=self.use_bias,
                kernel_initializer=self.kernel_initializer.clone(),
                dtype=dtype,
                name="dense",
            )
            self.dense.build(inputs_shape)
            epsilon = self.layer_norm_epsilon
            self.layer_norm = layer_norm(epsilon, self.norm_bias, dtype, "layer_norm")
            self.layer_norm.build((*inputs_shape[:-1], width))
        self.decoder = None
        if not self.tie_weights:
            self.decoder = keras.layers.Dense(
                self.token_embedding.input_dim,
                use_bias=False,
                kernel_initializer=self.kernel_initializer.clone(),
                dtype=dtype,
                name="decoder",
            )
            self.decoder.build((None, width))
        self.bias = None
        if self.output_bias:
            # Logits are float32 under any dtype policy.
            self.bias = self.add_weight(
                name="bias",
                shape=(self.token_embedding.input_dim,),
                initializer="zeros",
                autocast=False,
            )
        only_blocks_remat(keras_internals.flatten_layers(self, include_self=False))

    def call(self, inputs: Tensor, mask_positions: Tensor = None) -> Tensor:
        """Map (B, T, D) and int positions (B, P), all below T, to float32 logits (B, P, V).

        Without positions, return the logits (B, T, V) of all tokens.
        """
        x = inputs if mask_positions is None else tokens_at(inputs, mask_positions)  # (B, P, D)
        return self._biased(self._projected(self._transformed(x)))

    def _transformed(self, x):
        """Map (B, P, D) to (B, P, E)."""
        return self.layer_norm(self.dense(x)) if self.transform else x

    def _projected(self, x):
        """Map (B, P, E) to float32 (B, P, V), without the bias."""
        batch, slots, width = ops.shape(x)
        logits = ops.cast(self._project(ops.reshape(x, (-1, width))), "float32")
        return ops.reshape(logits, (batch, slots, self.token_embedding.input_dim))

    def _biased(self, logits):
        return logits if self.bias is None else logits + ops.cast(self.bias, logits.dtype)

    def _project(self, x):
        """Map (B * P, E) to (B * P, V)."""
        if self.decoder is not None:
            return self.decoder(x)
        embedding = self.token_embedding
        if embedding.quantization_mode is not None:
            return embedding(x, reverse=True)
        return matmul_transposed(x, ops.cast(embedding.embeddings, x.dtype))

    def compute_output_spec(self, inputs: Tensor, mask_positions: Tensor = None) -> Any:
        tokens = inputs.shape[:2] if mask_positions is None else mask_positions.shape
        return keras.KerasTensor((*tokens, self.token_embedding.input_dim), dtype="float32")

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "token_embedding": keras.saving.serialize_keras_object(self.token_embedding),
            "activation": self.activation,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "use_bias": self.use_bias,
            "norm_bias": self.norm_bias,
            "output_bias": self.output_bias,
            "tie_weights": self.tie_weights,
            "transform": self.transform,
            "hidden_dim": self.hidden_dim,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        embedding = keras.saving.deserialize_keras_object(config["token_embedding"])
        return cls(**{**config, "token_embedding": embedding})


class WordWeights(MaskedLMHead):
    """Sparse embedding of a text over the vocabulary (SPLADE), from a `MaskedLMHead`.

    A weight is the maximum or the sum of log(1 + relu(logit)) over the tokens, mostly 0. "max"
    first takes the maximum logit, to save memory.

    Args:
        pooling: "max" or "sum", over the tokens that are not padding.
        sparsity: "relu", or "log1p_relu", log(1 + x) of each token's weight.
        **kwargs: see `MaskedLMHead`.

    Example:

    >>> layer = WordWeights(keras.layers.ReversibleEmbedding(9, 4))
    >>> tuple(layer(np.ones((2, 5, 8), "float32"), padding_mask=np.ones((2, 5), "int32")).shape)
    (2, 9)

    Sources: Formal et al. 2021, SPLADE, arXiv 2107.05720 (the sum) and 2109.10086 (the maximum);
    Geng et al. 2025, arXiv 2504.14839 (two logarithms).
    """

    def __init__(
        self,
        token_embedding: keras.layers.Layer,
        pooling: str = "max",
        sparsity: str = "relu",
        **kwargs: Any,
    ) -> None:
        check_choice("pooling", pooling, WORD_POOLINGS)
        check_choice("sparsity", sparsity, SPARSITIES)
        super().__init__(token_embedding, **kwargs)
        self.pooling = pooling
        self.sparsity = sparsity

    def build(self, inputs_shape: Any, padding_mask_shape: Any = None) -> None:
        super().build(inputs_shape)

    def call(self, inputs: Tensor, padding_mask: Tensor) -> Tensor:
        """Map (B, T, D) and a mask (B, T) to float32 (B, V), zeros for rows of padding."""
        mask = ops.cast(padding_mask, "bool")[:, :, None]  # (B, T, 1)
        if self.pooling == "sum":
            logits = self._biased(self._projected(self._transformed(inputs)))
            weights = self._weights(logits)  # (B, T, V)
            return ops.sum(ops.where(mask, weights, 0.0), axis=1)
        weights = self._weights(self.highest_logits(inputs, padding_mask))
        return ops.where(ops.any(mask, axis=1), weights, 0.0)

    def highest_logits(self, inputs: Tensor, padding_mask: Tensor) -> Tensor:
        """Return each word's largest logit, without padding: float32 (B, V)."""
        mask = ops.cast(padding_mask, "bool")[:, :, None]  # (B, T, 1)
        x = self._transformed(inputs)  # (B, T, E)
        # The first token in place of padding changes no maximum, and is faster than masking logits.
        first = ops.argmax(ops.cast(padding_mask, "int32"), axis=1)[:, None]
        x = ops.where(mask, x, tokens_at(x, first))
        return self._biased(highest_of_tokens(self._projected(x)))

    def _weights(self, logits):
        weights = ops.log1p(ops.relu(logits))
        return weights if self.sparsity == "relu" else ops.log1p(weights)

    def compute_output_spec(self, inputs: Tensor, padding_mask: Tensor) -> Any:
        return keras.KerasTensor((inputs.shape[0], self.token_embedding.input_dim), dtype="float32")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "pooling": self.pooling, "sparsity": self.sparsity}


@keras.saving.register_keras_serializable(package="kerasbert")
class ScalarMix(ChecksKeywords, keras.layers.Layer):
    """Learned weighted average of layers: `gamma * sum(softmax(scalars) * layers)`.

    It is initialized to the plain average.

    Example:

    >>> x = np.ones((1, 2, 3), "float32")
    >>> [float(v) for v in ScalarMix()([x, 3 * x])[0, 0]]
    [2.0, 2.0, 2.0]

    Source: Peters et al. 2018, arXiv 1802.05365, equation 1.
    """

    def build(self, inputs_shape: Any) -> None:
        # Half precision would change the weights by 1%.
        full = {"autocast": False}
        self.scalars = self.add_weight(
            shape=(len(inputs_shape),), initializer="zeros", name="scalars", **full
        )
        self.gamma = self.add_weight(shape=(), initializer="ones", name="gamma", **full)

    def call(self, inputs: Tensor) -> Tensor:
        """Map a list of L tensors (B, T, D) to (B, T, D)."""
        shares = self.gamma * ops.softmax(self.scalars)  # (L,)
        mix = sum(ops.multiply(shares[i], x) for i, x in enumerate(inputs))
        return ops.cast(mix, self.compute_dtype)

    def compute_output_spec(self, inputs: Tensor) -> Any:
        return keras.KerasTensor(inputs[0].shape, dtype=self.compute_dtype)
