"""Adaptive input embeddings and adaptive softmax, for large vocabularies.

B batch, T tokens, D width, V vocabulary size.
"""

import keras
from keras import ops

from kerasbert.backend.layers import at_least_float32
from kerasbert.base.errors import is_whole
from kerasbert.base.keywords import ChecksKeywords


@keras.saving.register_keras_serializable(package="kerasbert")
class AdaptiveEmbedding(ChecksKeywords, keras.layers.Layer):
    """Token embedding in clusters by frequency, narrower for rarer clusters.

    Args:
        vocabulary_size: int. V; ids are sorted by frequency, most frequent first.
        hidden_dim: int. D.
        embedding_dim: width of the first cluster's embeddings; `None` means `hidden_dim`.
        cutoffs: list of ints. First id of each cluster after the first; empty for one cluster.
        division: int. Factor by which the width shrinks per cluster; 1 is a shared table.

    Example:

    >>> layer = AdaptiveEmbedding(100, 8, cutoffs=[10, 50], division=2)
    >>> tuple(layer(np.array([[1, 20, 99]])).shape), [tuple(x.shape) for x in layer.tables]
    ((1, 3, 8), [(10, 8), (40, 4), (50, 2)])

    Source: Baevski and Auli 2019, arXiv 1809.10853.
    """

    def __init__(
        self, vocabulary_size, hidden_dim, embedding_dim=None, cutoffs=(), division=1, **kwargs
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.embedding_dim = embedding_dim
        self.cutoffs = list(cutoffs)
        self.division = division
        ends = [0, *self.cutoffs, vocabulary_size]
        is_rising = all(map(is_whole, ends)) and all(a < b for a, b in zip(ends, ends[1:]))
        if not is_rising:
            raise ValueError(
                f"cutoffs={self.cutoffs} must be increasing integers above 0 and below "
                f"vocabulary_size={vocabulary_size}."
            )
        width = embedding_dim or hidden_dim
        if width // division ** len(self.cutoffs) < 1:
            raise ValueError(
                f"embedding_dim={width} divided by division={division} once per cutoff "
                f"({len(self.cutoffs)}) is below 1; use fewer cutoffs or a larger embedding_dim."
            )

    @property
    def clusters(self):
        """The id range `(first, end)` of each cluster, `end` exclusive."""
        ends = [0, *self.cutoffs, self.vocabulary_size]
        return list(zip(ends, ends[1:]))

    def build(self, inputs_shape=None):
        width = self.embedding_dim or self.hidden_dim
        clusters = [(0, self.vocabulary_size)] if self.division == 1 else self.clusters
        self.tables, self.projections = [], []
        for i, (first, last) in enumerate(clusters):
            narrow = width // self.division**i
            self.tables.append(self._weight(f"table_{i}", (last - first, narrow)))
            if self.division > 1 or width != self.hidden_dim:
                self.projections.append(self._weight(f"projection_{i}", (narrow, self.hidden_dim)))

    def _weight(self, name, shape):
        initializer = keras.initializers.TruncatedNormal(0.0, 0.02)
        return self.add_weight(name=name, shape=shape, initializer=initializer)

    def call(self, inputs):
        """Map ids (B, T) to embeddings (B, T, D), multiplied by the square root of D."""
        ids, total = ops.cast(inputs, "int32"), None
        clusters = [(0, self.vocabulary_size)] if len(self.tables) == 1 else self.clusters
        for i, (first, last) in enumerate(clusters):
            x = ops.take(self.tables[i], ops.clip(ids - first, 0, last - first - 1), axis=0)
            if self.projections:
                x = ops.matmul(x, ops.cast(self.projections[i], x.dtype))
            inside = ops.logical_and(ids >= first, ids < last)[..., None]
            x = x if len(clusters) == 1 else ops.where(inside, x, ops.zeros_like(x))
            total = x if total is None else total + x
        return ops.cast(total, self.compute_dtype) * self.hidden_dim**0.5

    def compute_output_spec(self, inputs):
        return keras.KerasTensor((*inputs.shape, self.hidden_dim), dtype=self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "hidden_dim": self.hidden_dim,
            "embedding_dim": self.embedding_dim,
            "cutoffs": self.cutoffs,
            "division": self.division,
        }


@keras.saving.register_keras_serializable(package="kerasbert")
class AdaptiveSoftmax(ChecksKeywords, keras.layers.Layer):
    """Log-probabilities of tokens by an adaptive softmax, tied to an `AdaptiveEmbedding`.

    The first softmax covers the first cluster and an entry for each further one, which has its own.
    Without cutoffs it is a plain softmax.

    Args:
        embedding: an `AdaptiveEmbedding`, whose tables serve as output weights.
        tied_projections: list of bools, one per cluster. Whether the cluster shares any projection
            of the embedding; `None` shares all.

    Example:

    >>> embedding = AdaptiveEmbedding(100, 8, cutoffs=[10, 50], division=2)
    >>> x = AdaptiveSoftmax(embedding)(embedding(np.array([[1, 20, 99]])))
    >>> tuple(x.shape), round(float(keras.ops.sum(keras.ops.exp(x[0, 0]))), 3)
    ((1, 3, 100), 1.0)

    Source: Grave et al. 2017, arXiv 1609.04309.
    """

    def __init__(self, embedding, tied_projections=None, **kwargs):
        super().__init__(**kwargs)
        self.embedding = embedding
        self.tied_projections = tied_projections
        count = len(embedding.clusters)
        given = tied_projections
        is_list = isinstance(given, (list, tuple)) and all(isinstance(x, bool) for x in given)
        if given is not None and not (is_list and len(given) == count):
            raise ValueError(
                f"tied_projections={tied_projections!r} must be a list of bools, one for each of "
                f"{count} clusters."
            )

    @classmethod
    def from_config(cls, config):
        embedding = keras.saving.deserialize_keras_object(config["embedding"])
        return cls(**{**config, "embedding": embedding})

    def build(self, inputs_shape):
        embedding = self.embedding
        if not embedding.built:
            embedding.build()
            embedding.built = True

        def weight(name, shape, initializer="zeros"):
            return self.add_weight(name=name, shape=shape, initializer=initializer)

        self.biases = [weight(f"bias_{i}", (x.shape[0],)) for i, x in enumerate(embedding.tables)]
        extra = len(embedding.cutoffs)
        if extra:
            self.cluster_kernel = weight("cluster_kernel", (extra, embedding.tables[0].shape[1]))
            self.cluster_bias = weight("cluster_bias", (extra,))
        self.projections = []
        for i, _ in enumerate(embedding.clusters):
            shared = None
            if embedding.projections:
                shared = embedding.projections[i if embedding.division > 1 else 0]
            if shared is not None and self.tied_projections and not self.tied_projections[i]:
                initializer = keras.initializers.TruncatedNormal(0.0, 0.02)
                shared = weight(f"projection_{i}", shared.shape, initializer)
            self.projections.append(shared)

    def call(self, inputs):
        """Map (B, T, D) to log-probabilities (B, T, V), at least float32."""
        embedding, found, head = self.embedding, [], None
        for i, (first, last) in enumerate(embedding.clusters):
            if embedding.division == 1:
                table, bias = embedding.tables[0][first:last], self.biases[0][first:last]
            else:
                table, bias = embedding.tables[i], self.biases[i]
            if i == 0 and embedding.cutoffs:
                table = ops.concatenate([table, self.cluster_kernel], axis=0)
                bias = ops.concatenate([bias, self.cluster_bias], axis=0)
            x = inputs
            if self.projections[i] is not None:
                projection = ops.cast(self.projections[i], x.dtype)
                x = ops.matmul(x, ops.transpose(projection))
            logits = ops.matmul(x, ops.transpose(ops.cast(table, x.dtype)))
            logits = at_least_float32(logits + ops.cast(bias, x.dtype))
            scores = ops.log_softmax(logits, axis=-1)
            if i == 0:
                head = scores
                found.append(scores[..., : last - first])
            else:
                place = embedding.cutoffs[0] + i - 1
                found.append(head[..., place : place + 1] + scores)
        return found[0] if len(found) == 1 else ops.concatenate(found, axis=-1)

    def compute_output_spec(self, inputs):
        shape = (*inputs.shape[:-1], self.embedding.vocabulary_size)
        is_half = self.compute_dtype in ("float16", "bfloat16")
        return keras.KerasTensor(shape, dtype="float32" if is_half else self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "embedding": keras.saving.serialize_keras_object(self.embedding),
            "tied_projections": self.tied_projections,
        }
