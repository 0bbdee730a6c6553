"""ELMo: contextual word embeddings from a character CNN and bidirectional LSTMs.

N sentences, W words per sentence, B batch, T tokens (words plus sentence start and end), C
characters per token, P width of one direction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert import backend
from kerasbert.base.errors import check_choice, check_value, check_whole, is_whole
from kerasbert.base.finite import check_outputs, check_targets, with_finite_check
from kerasbert.base.from_preset import FromPreset
from kerasbert.base.memory import keep_freed_memory
from kerasbert.base.process import check_process
from kerasbert.checkpoints import bilm
from kerasbert.encoder import functional
from kerasbert.heads.base.preset_task import PresetTask
from kerasbert.layers.elmo import CharacterEncoder, ProjectedLSTMs
from kerasbert.layers.heads import ScalarMix
from kerasbert.lineage.elmo.characters import character_ids, sentence_words
from kerasbert.text.batch_plans import sorted_batches

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath, Dtype, Tensor

LAYERS = ("scalar_mix", "all", "last", "tokens")


@keras.saving.register_keras_serializable(package="kerasbert")
class ElmoBackbone(FromPreset, functional.Backbone):
    """ELMo's bidirectional language model without its softmax.

    Inputs are a dict of `character_ids` (B, T, C), made by `character_ids()`, and `padding_mask`
    (B, T). Outputs are a dict of `hidden_states`, a list of `num_layers + 1` tensors (B, T, 2 * P),
    and `sequence_output`, the last of them. The first is the context-free word embeddings twice,
    the others each layer's concatenated forward and backward outputs.

    Args:
        num_layers: LSTM layers per direction.
        units: width of the LSTM cell state.
        projection_dim: int. P.
        filters: list of `(width, count)`, one pair per convolution over characters.
        character_dim: width of the character embeddings.
        num_highways: number of highway layers after the convolutions.
        activation: "relu" or "tanh", after the convolutions.
        cell_clip, projection_clip: floats. Clipping of cell state and output; `None` disables it.
        skip_connections: whether layers after the first add their input.
        dropout: dropout on each layer's inputs.
        num_characters: size of the character vocabulary.
        characters_per_token: int. C.
        dtype: string or policy.

    Example:

    >>> backbone = ElmoBackbone(
    ...     num_layers=2, units=8, projection_dim=4, filters=[(1, 4), (2, 8)], character_dim=3
    ... )
    >>> ids, mask = character_ids([["A", "dog", "barks"]])
    >>> outputs = backbone({"character_ids": ids, "padding_mask": mask})
    >>> [tuple(one.shape) for one in outputs["hidden_states"]]
    [(1, 5, 8), (1, 5, 8), (1, 5, 8)]

    Source: Peters et al. 2018, arXiv 1802.05365, and its released code, bilm-tf.
    """

    def __init__(
        self,
        num_layers: int,
        units: int,
        projection_dim: int,
        filters: Sequence[Any],
        character_dim: int = 16,
        num_highways: int = 2,
        activation: str = "relu",
        cell_clip: float | None = 3.0,
        projection_clip: float | None = 3.0,
        skip_connections: bool = True,
        dropout: float = 0.0,
        num_characters: int = 262,
        characters_per_token: int = 50,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        keep_freed_memory()
        for name in ("num_layers", "units", "projection_dim", "character_dim", "num_characters"):
            check_whole(name, locals()[name])
        check_whole("characters_per_token", characters_per_token, 3)
        check_choice("activation", activation, ("relu", "tanh"))
        check_value("dropout", dropout, "share")
        check_whole("num_highways", num_highways, 0)
        for name in ("cell_clip", "projection_clip"):
            check_value(name, locals()[name], "positive?")
        check_value("skip_connections", skip_connections, "flag")
        filters = _checked_filters(filters, characters_per_token)
        # === Layers ===
        self.token_encoder = CharacterEncoder(
            projection_dim,
            filters,
            character_dim,
            num_highways,
            activation,
            num_characters,
            dtype=dtype,
            name="token_encoder",
        )
        self.directions = [
            ProjectedLSTMs(
                num_layers,
                units,
                projection_dim,
                cell_clip,
                projection_clip,
                skip_connections,
                go_backwards=bool(i),
                dropout=dropout,
                dtype=dtype,
                name=f"direction_{i}",
            )
            for i in range(2)
        ]

        # === Config ===
        self.num_layers = num_layers
        self.units = units
        self.projection_dim = projection_dim
        self.filters = filters
        self.character_dim = character_dim
        self.num_highways = num_highways
        self.activation = activation
        self.cell_clip = cell_clip
        self.projection_clip = projection_clip
        self.skip_connections = skip_connections
        self.dropout = dropout
        self.num_characters = num_characters
        self.characters_per_token = characters_per_token

        # === Functional model ===
        inputs = {
            "character_ids": keras.Input(
                (None, characters_per_token), dtype="int32", name="character_ids"
            ),
            "padding_mask": keras.Input((None,), dtype="int32", name="padding_mask"),
        }
        outputs, _ = self.read_on(inputs)
        super().__init__(inputs=inputs, outputs=outputs, dtype=dtype, **kwargs)

    def read_on(self, inputs: Tensor, states: Any = None) -> tuple[Any, Any]:
        """Compute the outputs and final LSTM states, for the next batch.

        Args:
            inputs: dict of the model's inputs.
            states: those of the previous batch of the same size; `None` means zeros.

        Returns:
            `(outputs, states)`.
        """
        mask = inputs["padding_mask"]
        count = None if states is None else keras.tree.flatten(states)[0].shape[0]
        if count is not None and mask.shape[0] is not None and count != mask.shape[0]:
            raise ValueError(
                f"states are of {count} texts, but the inputs have {mask.shape[0]}; pass the "
                "states returned for the same texts, or None for their first segment."
            )
        x = self.token_encoder(inputs["character_ids"])  # (B, T, P)
        found, last = [], []
        for direction, before in zip(self.directions, states or (None, None)):
            outputs, after = direction(x, padding_mask=mask, initial_states=before)
            found.append(outputs)
            last.append(after)
        hidden = [ops.concatenate(pair, axis=-1) for pair in ((x, x), *zip(*found))]
        return {"hidden_states": hidden, "sequence_output": hidden[-1]}, last

    @classmethod
    def from_files(cls, options: AnyPath, weights: AnyPath, dtype: Dtype = None) -> Self:
        """Read a model from the files of bilm-tf and AllenNLP.

        Args:
            options: path of an `options.json`.
            weights: path of an `lm_weights.hdf5`.

        Raises:
            ValueError: if a field is missing or the weights do not match the options.
        """
        settings = bilm.read_options(options)
        bilm.check_options(settings, weights)
        model = cls(**settings, dtype=dtype)
        bilm.read_weights(model.weights, weights)
        return model

    def to_files(self, options: Any, weights: Any) -> None:
        """Write the two files of bilm-tf's format; the arguments are those of `from_files`."""
        write_files(self, self, options, weights)

    # Keras' quantize() would do nothing; its enable_lora() would freeze the whole model.

    def quantize(self, mode: str | None = None, **kwargs: Any) -> None:
        raise ValueError(
            "quantize() does not support ELMo's convolutions and LSTMs; use the model unquantized."
        )

    def enable_lora(self, rank: int, target_layer_names: Sequence[str] | None = None) -> None:
        raise ValueError(
            "enable_lora() adapts attention projections, and ELMo has none; train the whole model "
            "or set trainable=False."
        )

    def get_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "trainable": self.trainable,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "num_layers": self.num_layers,
            "units": self.units,
            "projection_dim": self.projection_dim,
            "filters": [list(one) for one in self.filters],
            "character_dim": self.character_dim,
            "num_highways": self.num_highways,
            "activation": self.activation,
            "cell_clip": self.cell_clip,
            "projection_clip": self.projection_clip,
            "skip_connections": self.skip_connections,
            "dropout": self.dropout,
            "num_characters": self.num_characters,
            "characters_per_token": self.characters_per_token,
        }


def _checked_filters(filters, most):
    """Check and return the `(width, count)` pairs of convolutions; a width is at most `most`."""

    def fits(pair):
        is_pair = isinstance(pair, (list, tuple)) and len(pair) == 2 and all(map(is_whole, pair))
        return is_pair and 1 <= pair[0] <= most and pair[1] >= 1

    if not isinstance(filters, (list, tuple)) or not filters or not all(map(fits, filters)):
        raise ValueError(
            f"filters={filters!r} must be a list of (width, count), whole numbers from 1, with "
            f"widths of at most characters_per_token={most}."
        )
    return [(int(width), int(count)) for width, count in filters]


def write_files(model, backbone, options, weights):
    """Write an `ElmoBackbone`, or a model built on one, to bilm-tf's files."""
    values = ((x, ops.convert_to_numpy(ops.cast(x, "float32"))) for x in model.weights)
    bilm.write_weights(weights, values)
    bilm.write_options(options, backbone)


class ElmoTask(FromPreset, functional.Task):
    """Base class of tasks with an `ElmoBackbone`, which preprocess sentences themselves."""

    backbone_cls = ElmoBackbone
    _check_encoder = PresetTask._check_encoder

    # KerasHub's methods would preprocess arrays with TensorFlow.

    def fit(self, x: Any = None, y: Any = None, **kwargs: Any) -> keras.callbacks.History:
        """See `keras.Model.fit`."""
        check_process()
        check_targets(y, kwargs.get("sample_weight"), self.loss)
        kwargs["callbacks"] = with_finite_check(kwargs.get("callbacks"))
        return keras.Model.fit(self, x, y, **kwargs)

    def evaluate(self, x: Any = None, y: Any = None, **kwargs: Any) -> Any:
        """See `keras.Model.evaluate`."""
        check_process()
        found = keras.Model.evaluate(self, x, y, **kwargs)
        return check_outputs(self, found, may_be_nan=True)

    def predict(self, x: Any, **kwargs: Any) -> Any:
        """See `keras.Model.predict`."""
        check_process()
        return check_outputs(self, keras.Model.predict(self, x, **kwargs))

    def quantize(self, mode: str | None = None, **kwargs: Any) -> None:
        self.backbone.quantize(mode, **kwargs)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["preprocessor"]
        return config


@keras.saving.register_keras_serializable(package="kerasbert")
class ElmoEmbedder(ElmoTask):
    """Computes word embeddings from ELMo's layers.

    The output is (B, T, 2 * P), or (B, T, L, 2 * P) for all L layers with `layers="all"`.

    Args:
        backbone: an `ElmoBackbone`.
        layers: "scalar_mix", a learned weighted average of all layers; "last"; "tokens", the
            context-free word embeddings; or "all".

    Example:

    >>> backbone = ElmoBackbone(
    ...     num_layers=2, units=8, projection_dim=4, filters=[(1, 4), (2, 8)], character_dim=3
    ... )
    >>> vectors = ElmoEmbedder(backbone).embed([["A", "dog", "barks"], ["Yes"]])
    >>> [vector.shape for vector in vectors]
    [(3, 8), (1, 8)]
    """

    def __init__(self, backbone: ElmoBackbone, layers: str = "scalar_mix", **kwargs: Any) -> None:
        self._check_encoder(backbone)
        check_choice("layers", layers, LAYERS)
        mix = ScalarMix(dtype=backbone.dtype_policy, name="scalar_mix")
        inputs = backbone.input
        outputs = _chosen(layers, backbone(inputs)["hidden_states"], mix)
        self.backbone = backbone
        self.mix = mix if layers == "scalar_mix" else None
        self.layers_used = layers
        super().__init__(inputs=inputs, outputs=outputs, compile=False, **kwargs)

    def embed(self, sentences: Any, stateful: bool = False, batch_size: int = 32) -> Any:
        """Embed the words of sentences.

        Args:
            sentences: a string, split into words at white space, or a list of N such strings or
                lists of words.
            stateful: whether sentences keep their order, and LSTM states pass from batch to batch,
                as in bilm-tf.
            batch_size: int.

        Returns:
            A list of N float32 arrays (W, 2 * P), or (W, L, 2 * P) with `layers="all"`. For a
            string, a single array.
        """
        check_whole("batch_size", batch_size)
        sentences, single = sentence_words(sentences, "embed()")
        lengths = [len(sentence) + 2 for sentence in sentences]
        count = len(sentences)
        if stateful:
            batches = [range(i, min(i + batch_size, count)) for i in range(0, count, batch_size)]
        else:
            batches = sorted_batches(lengths, batch_size)
        found, states = [None] * count, None
        for batch in batches:
            most = self.backbone.characters_per_token
            ids, mask = character_ids([sentences[i] for i in batch], most)
            features = {"character_ids": ids, "padding_mask": mask}
            if stateful:
                vectors, states = self._read_on(features, states)
                check_outputs(self, vectors)
            else:
                vectors = np.asarray(backend.predict_batch(self, features))
            for i, row in zip(batch, vectors):
                found[i] = row[1 : lengths[i] - 1].astype("float32")
        return found[0] if single else found

    def _read_on(self, features, states):
        rows = len(features["character_ids"])
        if states is not None:
            states = keras.tree.map_structure(lambda x: x[:rows], states)
        with backend.without_gradients():
            outputs, states = self.backbone.read_on(
                {name: ops.convert_to_tensor(x) for name, x in features.items()}, states
            )
            vectors = _chosen(self.layers_used, outputs["hidden_states"], self.mix)
            return ops.convert_to_numpy(ops.cast(vectors, "float32")), states

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "layers": self.layers_used}


def _chosen(layers, hidden_states, mix):
    """Select or mix the layers' outputs; see `layers` of `ElmoEmbedder`."""
    if layers == "scalar_mix":
        return mix(hidden_states)
    if layers == "all":
        return ops.stack(hidden_states, axis=2)
    return hidden_states[-1 if layers == "last" else 0]
