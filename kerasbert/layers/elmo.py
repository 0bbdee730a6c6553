"""ELMo's layers: the character encoder and the projected LSTMs.

B batch, T tokens, C characters per token, D output width, L layers, U units, P projection width.
"""

import keras
from keras import ops

from kerasbert.base.keywords import ChecksKeywords
from kerasbert.layers.token_layers import TokenDropout


def by_inputs():
    """Return bilm-tf's initializer: normal with standard deviation 1 / sqrt(fan_in)."""
    return keras.initializers.VarianceScaling(1.0, "fan_in", "untruncated_normal")


@keras.saving.register_keras_serializable(package="kerasbert")
class CharacterEncoder(ChecksKeywords, keras.layers.Layer):
    """Token embeddings from characters: convolutions, max pooling, highway layers, projection.

    Args:
        output_dim: int. D.
        filters: list of `(width, count)`, one pair per convolution.
        embedding_dim: width of the character embeddings.
        num_highways: number of highway layers (arXiv 1505.00387) after the convolutions.
        activation: activation of the convolutions, "relu" or "tanh".
        num_characters: number of character ids, including 0 for padding.

    Example:

    >>> encoder = CharacterEncoder(output_dim=6, filters=[(1, 4), (2, 8)], embedding_dim=3)
    >>> tuple(encoder(np.ones((2, 5, 50), "int32")).shape)
    (2, 5, 6)

    Source: Peters et al. 2018, arXiv 1802.05365, and its released code, bilm-tf.
    """

    def __init__(
        self,
        output_dim,
        filters,
        embedding_dim=16,
        num_highways=2,
        activation="relu",
        num_characters=262,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.output_dim = output_dim
        self.filters = [tuple(one) for one in filters]
        self.embedding_dim = embedding_dim
        self.num_highways = num_highways
        self.activation = activation
        self.num_characters = num_characters

    def build(self, inputs_shape):
        uniform = keras.initializers.RandomUniform

        def weight(name, *shape, initializer=None):
            return self.add_weight(name=name, shape=shape, initializer=initializer or by_inputs())

        self.embeddings = weight(
            "embeddings",
            self.num_characters,
            self.embedding_dim,
            initializer=uniform(-1.0, 1.0),
        )
        self.convolutions = [
            (
                weight(
                    f"convolution_{i}_kernel",
                    width,
                    self.embedding_dim,
                    count,
                    initializer=None if self.activation == "tanh" else uniform(-0.05, 0.05),
                ),
                weight(f"convolution_{i}_bias", count, initializer="zeros"),
            )
            for i, (width, count) in enumerate(self.filters)
        ]
        width = sum(count for _, count in self.filters)
        # The gates start nearly closed, so that a layer passes on most of its input.
        carry = keras.initializers.Constant(-2.0)
        self.highways = [
            [
                (
                    weight(f"highway_{i}_{name}_kernel", width, width),
                    weight(
                        f"highway_{i}_{name}_bias",
                        width,
                        initializer=carry if name == "gate" else "zeros",
                    ),
                )
                for name in ("gate", "transform")
            ]
            for i in range(self.num_highways)
        ]
        self.projection_kernel = weight("projection_kernel", width, self.output_dim)
        self.projection_bias = weight("projection_bias", self.output_dim, initializer="zeros")

    def call(self, inputs):
        """Map character ids (B, T, C) to (B, T, D)."""
        batch, tokens, characters = ops.shape(inputs)
        rows = ops.reshape(ops.cast(inputs, "int32"), (-1, characters))
        x = ops.take(self.embeddings, rows, axis=0)  # (B * T, C, E)
        activation = keras.activations.get(self.activation)
        found = []
        for kernel, bias in self.convolutions:
            largest = ops.max(ops.conv(x, kernel, padding="valid"), axis=1)
            found.append(activation(largest + bias))
        x = ops.concatenate(found, axis=-1)
        for (gate, gate_bias), (transform, transform_bias) in self.highways:
            share = ops.sigmoid(ops.matmul(x, gate) + gate_bias)
            x = share * ops.relu(ops.matmul(x, transform) + transform_bias) + (1 - share) * x
        x = ops.matmul(x, self.projection_kernel) + self.projection_bias
        return ops.reshape(x, (batch, tokens, self.output_dim))

    def compute_output_spec(self, inputs):
        return keras.KerasTensor((*inputs.shape[:2], self.output_dim), dtype=self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "filters": [list(one) for one in self.filters],
            "embedding_dim": self.embedding_dim,
            "num_highways": self.num_highways,
            "activation": self.activation,
            "num_characters": self.num_characters,
        }


@keras.saving.register_keras_serializable(package="kerasbert")
class ProjectedLSTMCell(ChecksKeywords, keras.layers.Layer):
    """LSTM cell with an output projection (arXiv 1402.1128), and optional clipping.

    Args:
        units: int. U, the width of the cell state.
        projection_dim: int. P, the width of the output.
        cell_clip, projection_clip: floats. Largest absolute value of the cell state and of the
            output; `None` for no limit.

    Example:

    >>> layer = keras.layers.RNN(ProjectedLSTMCell(8, 4), return_sequences=True)
    >>> tuple(layer(np.ones((2, 5, 4), "float32")).shape)
    (2, 5, 4)
    """

    def __init__(self, units, projection_dim, cell_clip=None, projection_clip=None, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.projection_dim = projection_dim
        self.cell_clip = cell_clip
        self.projection_clip = projection_clip
        # Keras on JAX repeats the first state at masked steps.
        self.state_size = [projection_dim, units]
        self.output_size = projection_dim

    def build(self, inputs_shape):
        self.kernel = self.add_weight(
            name="kernel",
            shape=(inputs_shape[-1] + self.projection_dim, 4 * self.units),
            initializer="glorot_uniform",
        )
        self.bias = self.add_weight(name="bias", shape=(4 * self.units,), initializer="zeros")
        self.projection = self.add_weight(
            name="projection",
            shape=(self.units, self.projection_dim),
            initializer="glorot_uniform",
        )

    def call(self, inputs, states):
        """Map (B, D) and the states (B, P) and (B, U) to the output (B, P) and the new states."""
        output, memory = states
        gates = ops.matmul(ops.concatenate([inputs, output], axis=-1), self.kernel) + self.bias
        enter, candidate, forget, leave = ops.split(gates, 4, axis=-1)
        memory = ops.sigmoid(forget + 1) * memory + ops.sigmoid(enter) * ops.tanh(candidate)
        memory = _clipped(memory, self.cell_clip)
        output = ops.matmul(ops.sigmoid(leave) * ops.tanh(memory), self.projection)
        output = _clipped(output, self.projection_clip)
        return output, [output, memory]

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "projection_dim": self.projection_dim,
            "cell_clip": self.cell_clip,
            "projection_clip": self.projection_clip,
        }


def _clipped(x, most):
    return x if most is None else ops.clip(x, -most, most)


@keras.saving.register_keras_serializable(package="kerasbert")
class ProjectedLSTMs(ChecksKeywords, keras.layers.Layer):
    """Stack of `ProjectedLSTMCell` layers in one direction, with skip connections.

    Args:
        num_layers: int. L.
        units, projection_dim, cell_clip, projection_clip: see `ProjectedLSTMCell`.
        skip_connections: whether layers after the first add their input.
        dropout: dropout of each layer's input in training.
        go_backwards: whether to read each row from its last token to its first.

    Example:

    >>> layers = ProjectedLSTMs(2, 8, 4)
    >>> outputs, states = layers(np.ones((2, 5, 4), "float32"), padding_mask=np.ones((2, 5)))
    >>> [tuple(one.shape) for one in outputs]
    [(2, 5, 4), (2, 5, 4)]
    """

    def __init__(
        self,
        num_layers,
        units,
        projection_dim,
        cell_clip=None,
        projection_clip=None,
        skip_connections=True,
        go_backwards=False,
        dropout=0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_layers = num_layers
        self.units = units
        self.projection_dim = projection_dim
        self.cell_clip = cell_clip
        self.projection_clip = projection_clip
        self.skip_connections = skip_connections
        self.go_backwards = go_backwards
        self.dropout = dropout
        self.dropout_layer = TokenDropout(dropout, dtype=self.dtype_policy, name="dropout")

    def build(self, inputs_shape, padding_mask_shape=None, initial_states_shape=None):
        self.rnns = []
        for i in range(self.num_layers):
            cell = ProjectedLSTMCell(
                self.units,
                self.projection_dim,
                self.cell_clip,
                self.projection_clip,
                dtype=self.dtype_policy,
                name="cell",
            )
            rnn = keras.layers.RNN(
                cell,
                return_sequences=True,
                return_state=True,
                dtype=self.dtype_policy,
                name=f"layer_{i}",
            )
            width = inputs_shape[-1] if i == 0 else self.projection_dim
            rnn.build((*inputs_shape[:-1], width))
            self.rnns.append(rnn)

    def call(self, inputs, padding_mask, initial_states=None, training=False):
        """Compute the outputs and last states of all layers.

        Args:
            inputs: floats (B, T, D).
            padding_mask: (B, T), true or 1 at tokens; padding must be at the end of each row.
            initial_states: list of L pairs of (B, P) and (B, U), as returned; `None` means zeros.
            training: bool.

        Returns:
            `(outputs, states)`: lists of L tensors (B, T, P), and of L pairs.
        """
        mask = ops.cast(padding_mask, "bool")
        x = reversed_rows(inputs, mask) if self.go_backwards else inputs
        outputs, states = [], []
        for i, rnn in enumerate(self.rnns):
            before = None if initial_states is None else list(initial_states[i])
            x = self.dropout_layer(x, training=training)
            found, *last = rnn(x, mask=mask, initial_state=before)
            x = found + x if self.skip_connections and i else found
            outputs.append(reversed_rows(x, mask) if self.go_backwards else x)
            states.append(tuple(last))
        return outputs, states

    def compute_output_spec(self, inputs, padding_mask, initial_states=None, training=False):
        def spec(*shape):
            return keras.KerasTensor((inputs.shape[0], *shape), dtype=self.compute_dtype)

        layers = range(self.num_layers)
        outputs = [spec(inputs.shape[1], self.projection_dim) for _ in layers]
        return outputs, [(spec(self.projection_dim), spec(self.units)) for _ in layers]

    def get_config(self):
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            "units": self.units,
            "projection_dim": self.projection_dim,
            "cell_clip": self.cell_clip,
            "projection_clip": self.projection_clip,
            "skip_connections": self.skip_connections,
            "go_backwards": self.go_backwards,
            "dropout": self.dropout,
        }


def reversed_rows(x, mask):
    """Reverse the tokens of each row of (B, T, D); padding stays in place.

    >>> x = np.array([[[1.0], [2.0], [0.0]]])
    >>> [float(v) for v in reversed_rows(x, np.array([[1, 1, 0]]))[0, :, 0]]
    [2.0, 1.0, 0.0]
    """
    mask = ops.cast(mask, "int32")
    place = ops.cumsum(ops.ones_like(mask), axis=1) - 1  # (B, T)
    other = ops.sum(mask, axis=1, keepdims=True) - 1 - place
    return ops.take_along_axis(x, ops.where(other >= 0, other, place)[..., None], axis=1)
