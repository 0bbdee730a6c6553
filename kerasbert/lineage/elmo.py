"""ELMo: words from characters, read forwards and backwards by LSTMs.

N sentences, W words of a sentence, B batch, T tokens (words, and the two ends of a sentence), C
characters of a token, P width of one direction.
"""

import os

import keras
import keras_hub
import numpy as np
from keras import ops

from kerasbert import backend
from kerasbert._errors import check_choice, check_whole
from kerasbert._keywords import ChecksKeywords
from kerasbert.data.batching import sorted_batches
from kerasbert.files import read_json
from kerasbert.layers.elmo import CharacterEncoder, ProjectedLSTMs
from kerasbert.layers.heads import ScalarMix

# Numbers of characters are bytes + 1, and these; 0 is no token.
SENTENCE_BEGIN, SENTENCE_END, WORD_BEGIN, WORD_END, PADDING = range(257, 262)
LAYERS = ("scalar_mix", "all", "last", "tokens")


@keras.saving.register_keras_serializable(package="kerasbert")
class ElmoBackbone(ChecksKeywords, keras_hub.models.Backbone):
    """ELMo's bidirectional language model, up to its vectors of words.

    Inputs are a dict of `character_ids` (B, T, C), as `character_ids()` makes them, and
    `padding_mask` (B, T). Outputs are a dict: `hidden_states`, a list of `num_layers + 1` tensors
    (B, T, 2 * P), first the words' own vectors twice, then each layer forwards and backwards side
    by side, and `sequence_output`, the last of them.

    Args:
        num_layers: int. In each direction.
        units: int. Of the LSTMs' memory.
        projection_dim: int. P.
        filters: list of `(width, count)`, the convolutions over characters.
        character_dim: int. Width of the characters' vectors.
        num_highways: int.
        activation: string. "relu" or "tanh", of the convolutions.
        cell_clip, projection_clip: floats. The most of memory and output; `None` for no limit.
        skip_connections: bool. Each layer but the first adds what it gets to its output.
        num_characters: int.
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
        num_layers,
        units,
        projection_dim,
        filters,
        character_dim=16,
        num_highways=2,
        activation="relu",
        cell_clip=3.0,
        projection_clip=3.0,
        skip_connections=True,
        num_characters=262,
        characters_per_token=50,
        dtype=None,
        **kwargs,
    ):
        for name in ("num_layers", "units", "projection_dim", "character_dim", "num_characters"):
            check_whole(name, locals()[name])
        check_whole("characters_per_token", characters_per_token, 3)
        check_choice("activation", activation, ("relu", "tanh"))
        filters = [(int(width), int(count)) for width, count in filters]
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
                go_backwards=name == "backward",
                dtype=dtype,
                name=name,
            )
            for name in ("forward", "backward")
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

    def read_on(self, inputs, states=None):
        """The outputs, and the states in which the LSTMs end: the next batch may begin with them.

        Args:
            inputs: as of a call.
            states: what it gave of a batch with as many rows; zeros if `None`.

        Returns:
            `(outputs, states)`.
        """
        mask = inputs["padding_mask"]
        x = self.token_encoder(inputs["character_ids"])  # (B, T, P)
        found, last = [], []
        for direction, before in zip(self.directions, states or (None, None)):
            outputs, after = direction(x, padding_mask=mask, initial_states=before)
            found.append(outputs)
            last.append(after)
        hidden = [ops.concatenate(pair, axis=-1) for pair in ((x, x), *zip(*found))]
        return {"hidden_states": hidden, "sequence_output": hidden[-1]}, last

    @classmethod
    def from_files(cls, options, weights, dtype=None):
        """Read a model as bilm-tf and AllenNLP write it.

        Args:
            options: string. The path of an `options.json`.
            weights: string. The path of an `lm_weights.hdf5`.

        Raises:
            ValueError: where a field is missing, or the weights are of other shapes.
        """
        settings = _read_options(options)
        model = cls(**settings, dtype=dtype)
        _load_weights(model, weights)
        return model

    def get_config(self):
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
            "num_characters": self.num_characters,
            "characters_per_token": self.characters_per_token,
        }


@keras.saving.register_keras_serializable(package="kerasbert")
class ElmoEmbedder(ChecksKeywords, keras.Model):
    """Vectors of words from ELMo's layers, for models of one's own or for `embed`.

    The output is (B, T, 2 * P), of all layers (B, T, L, 2 * P) with `layers="all"`.

    Args:
        backbone: an `ElmoBackbone`.
        layers: string. "scalar_mix", a learned average of all layers, "last", "tokens", the words'
            own vectors, or "all".

    Example:

    >>> backbone = ElmoBackbone(
    ...     num_layers=2, units=8, projection_dim=4, filters=[(1, 4), (2, 8)], character_dim=3
    ... )
    >>> vectors = ElmoEmbedder(backbone).embed([["A", "dog", "barks"], ["Yes"]])
    >>> [vector.shape for vector in vectors]
    [(3, 8), (1, 8)]
    """

    def __init__(self, backbone, layers="scalar_mix", **kwargs):
        check_choice("layers", layers, LAYERS)
        mix = ScalarMix(dtype=backbone.dtype_policy, name="scalar_mix")
        inputs = backbone.input
        outputs = _chosen(layers, backbone(inputs)["hidden_states"], mix)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        self.backbone = backbone
        self.mix = mix if layers == "scalar_mix" else None
        self.layers_used = layers

    def embed(self, sentences, stateful=False, batch_size=32):
        """Vectors of the words of sentences.

        Args:
            sentences: a string, whose words are what white space separates, a list of words, or a
                list of N of either.
            stateful: bool. Read the sentences in batches in their order, each of which goes on
                where the one before it ended, as bilm-tf does. The last batch may be smaller.
            batch_size: int.

        Returns:
            A list of N float32 arrays (W, 2 * P), with `layers="all"` (W, L, 2 * P); one array for
            a single sentence.
        """
        check_whole("batch_size", batch_size)
        sentences, single = _as_sentences(sentences)
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

    def get_config(self):
        backbone = keras.saving.serialize_keras_object(self.backbone)
        return {"backbone": backbone, "layers": self.layers_used, "name": self.name}

    @classmethod
    def from_config(cls, config):
        backbone = keras.saving.deserialize_keras_object(config["backbone"])
        return cls(**{**config, "backbone": backbone})


def _chosen(layers, hidden_states, mix):
    """Of all layers' outputs what `layers` of `ElmoEmbedder` says."""
    if layers == "scalar_mix":
        return mix(hidden_states)
    if layers == "all":
        return ops.stack(hidden_states, axis=2)
    return hidden_states[-1 if layers == "last" else 0]


def character_ids(sentences, characters_per_token=50):
    """Sentences of words to the numbers of their characters, with the ends of a sentence.

    A word's characters are its bytes in UTF-8; those that are too many are cut off.

    Args:
        sentences: list of N lists of words.
        characters_per_token: int. C.

    Returns:
        `(ids, mask)`, int32 (N, T, C) and (N, T).

    >>> ids, mask = character_ids([["a"], ["b", "c"]], 4)
    >>> ids[0].tolist()
    [[259, 257, 260, 261], [259, 98, 260, 261], [259, 258, 260, 261], [0, 0, 0, 0]]
    >>> mask.sum(axis=1).tolist()
    [3, 4]
    """
    most = characters_per_token - 2
    rows = []
    for sentence in sentences:
        words = [[byte + 1 for byte in word.encode("utf-8", "replace")[:most]] for word in sentence]
        rows.append([[SENTENCE_BEGIN], *words, [SENTENCE_END]])
    shape = (len(rows), max(map(len, rows), default=0))
    ids, mask = np.zeros((*shape, characters_per_token), "int32"), np.zeros(shape, "int32")
    for i, row in enumerate(rows):
        mask[i, : len(row)] = 1
        ids[i, : len(row)] = PADDING
        for j, characters in enumerate(row):
            ids[i, j, : len(characters) + 2] = [WORD_BEGIN, *characters, WORD_END]
    return ids, mask


def _as_sentences(sentences):
    """`(lists of words, single)`."""
    if isinstance(sentences, str):
        return [sentences.split()], True
    if isinstance(sentences, (dict, bytes)) or not hasattr(sentences, "__iter__"):
        raise ValueError(
            f"embed() takes sentences, strings or lists of words, not {sentences!r} "
            f"({type(sentences).__name__})."
        )
    found = []
    for position, sentence in enumerate(sentences):
        words = sentence.split() if isinstance(sentence, str) else sentence
        if not hasattr(words, "__iter__") or not all(isinstance(word, str) for word in words):
            raise ValueError(
                f"The sentence at position {position} is {sentence!r}; pass a string or a list of "
                "words."
            )
        found.append(list(words))
    if not found:
        raise ValueError("There are no sentences; pass at least one.")
    return found, False


# === The files of bilm-tf ===


def _read_options(path):
    options = read_json(path)
    try:
        lstm, characters = options["lstm"], options["char_cnn"]
        settings = {
            "num_layers": lstm["n_layers"],
            "units": lstm["dim"],
            "projection_dim": lstm["projection_dim"],
            "cell_clip": lstm.get("cell_clip"),
            "projection_clip": lstm.get("proj_clip"),
            "skip_connections": lstm.get("use_skip_connections", False),
            "filters": characters["filters"],
            "character_dim": characters["embedding"]["dim"],
            "num_highways": characters.get("n_highway") or 0,
            "activation": characters["activation"],
            "characters_per_token": characters["max_characters_per_token"],
        }
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"'{os.fspath(path)}' lacks {error}, a setting of ELMo's; fetch it again."
        ) from None
    # Training files say 261, without the padding; files for use say 262.
    return {**settings, "num_characters": 262}


def _load_weights(model, path):
    import h5py

    read = set()
    with h5py.File(path, "r") as file:

        def assign(weight, name, change=lambda x: x):
            if name not in file:
                raise ValueError(f"'{os.fspath(path)}' lacks '{name}'; fetch it again.")
            value = change(file[name][()])
            if tuple(value.shape) != tuple(weight.shape):
                raise ValueError(
                    f"'{name}' in '{os.fspath(path)}' is {tuple(value.shape)} where the options "
                    f"say {tuple(weight.shape)}; the two do not belong together."
                )
            if not np.isfinite(value).all():
                raise ValueError(f"'{name}' in '{os.fspath(path)}' holds NaN or an infinity.")
            weight.assign(value.astype("float32"))
            read.add(name)

        tokens = model.token_encoder
        # Theirs has no row for what is no token.
        assign(tokens.embeddings, "char_embed", lambda x: np.pad(x, ((1, 0), (0, 0))))
        for i, (kernel, bias) in enumerate(tokens.convolutions):
            assign(kernel, f"CNN/W_cnn_{i}", lambda x: x[0])
            assign(bias, f"CNN/b_cnn_{i}")
        for i, highway in enumerate(tokens.highways):
            for (kernel, bias), name in zip(highway, ("carry", "transform")):
                assign(kernel, f"CNN_high_{i}/W_{name}")
                assign(bias, f"CNN_high_{i}/b_{name}")
        assign(tokens.projection_kernel, "CNN_proj/W_proj")
        assign(tokens.projection_bias, "CNN_proj/b_proj")
        for i, direction in enumerate(model.directions):
            for j, rnn in enumerate(direction.rnns):
                prefix = f"RNN_{i}/RNN/MultiRNNCell/Cell{j}/LSTMCell"
                assign(rnn.cell.kernel, f"{prefix}/W_0")
                assign(rnn.cell.bias, f"{prefix}/B")
                assign(rnn.cell.projection, f"{prefix}/W_P_0")
        names = []
        file.visititems(lambda name, x: names.append(name) if isinstance(x, h5py.Dataset) else None)
    left = sorted(set(names) - read - {"softmax/W", "softmax/b"})
    if left:
        raise ValueError(
            f"'{os.fspath(path)}' has {', '.join(left)}, which the options have no layer for; the "
            "two do not belong together."
        )
