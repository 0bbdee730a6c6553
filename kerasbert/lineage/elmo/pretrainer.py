"""ELMo's pretraining: forward and backward language models.

N sentences, B batch, T tokens (words plus sentence start and end), P width of one direction, V
words in the vocabulary.
"""

from __future__ import annotations

import collections
import random
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert import backend
from kerasbert.base.errors import check_whole
from kerasbert.base.files import write_text
from kerasbert.checkpoints import bilm
from kerasbert.heads.base.compiling import KeepsCompile
from kerasbert.layers.elmo import by_inputs
from kerasbert.layers.token_layers import TokenDropout
from kerasbert.lineage.elmo.characters import (
    SPECIAL,
    UNKNOWN_ID,
    character_ids,
    neighbors,
    sentence_words,
)
from kerasbert.lineage.elmo.model import ElmoBackbone, ElmoTask, write_files
from kerasbert.losses.logits import Perplexity, TokenCrossEntropy, token_cross_entropy
from kerasbert.text.batch_plans import bucket_length, similar_length_batches, sorted_batches
from kerasbert.text.batches import Batches, as_tf_data, runs_in_numpy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath

_INPUTS = ("character_ids", "padding_mask")
_OUTPUTS = ("forward_logits", "backward_logits")


def word_vocabulary(sentences: Sequence[str], vocabulary_size: int | None = None) -> list[str]:
    """List the words of sentences by frequency, after `<S>`, `</S>` and `<UNK>`.

    Args:
        sentences: list of strings, split into words at white space, or of lists of words.
        vocabulary_size: maximum size, including these three; `None` keeps all words.

    Returns:
        A list of strings.

    >>> word_vocabulary(["a dog", "a cat"], 4)
    ['<S>', '</S>', '<UNK>', 'a']
    """
    if vocabulary_size is not None:
        check_whole("vocabulary_size", vocabulary_size, len(SPECIAL))
    sentences, _ = sentence_words(sentences, "word_vocabulary()")
    counts = collections.Counter(word for sentence in sentences for word in sentence)
    for word in SPECIAL:
        counts.pop(word, None)
    found = sorted(counts, key=lambda word: (-counts[word], word))
    return [*SPECIAL, *found][:vocabulary_size]


@keras.saving.register_keras_serializable(package="kerasbert")
class ElmoPretrainer(KeepsCompile, ElmoTask):
    """ELMo's forward and backward language models.

    Inputs are those of `ElmoBackbone`. Outputs are a dict of `forward_logits` and `backward_logits`
    (B, T, V), which predict the token after and before each token. The loss is the mean of the two
    cross-entropies. `fit` and `evaluate` take sentences, as strings or lists of words; LSTM states
    start from zeros in each. The softmax covers the whole vocabulary (bilm-tf samples 8,192 words),
    so V should stay in the tens of thousands.

    Args:
        backbone: an `ElmoBackbone`. Its `dropout` also applies to the outputs; the paper uses 0.1.
        vocabulary: list of V strings, from `<S>`, `</S>` and `<UNK>` on, as made by
            `word_vocabulary` or read from bilm-tf's files.

    Example:

    >>> backbone = ElmoBackbone(
    ...     num_layers=1, units=8, projection_dim=4, filters=[(1, 4), (2, 8)], character_dim=3
    ... )
    >>> sentences = ["A dog barks", "A cat", "Yes"]
    >>> model = ElmoPretrainer(backbone, word_vocabulary(sentences))
    >>> history = model.fit(sentences, verbose=0)
    >>> sorted(model.perplexity(sentences))
    ['backward', 'forward', 'mean']

    Source: Peters et al. 2018, arXiv 1802.05365, and its released code, bilm-tf.
    """

    def __init__(self, backbone: ElmoBackbone, vocabulary: Sequence[str], **kwargs: Any) -> None:
        self._check_encoder(backbone)
        vocabulary = list(vocabulary)
        if tuple(vocabulary[: len(SPECIAL)]) != SPECIAL:
            raise ValueError(
                f"vocabulary starts with {vocabulary[:3]} and must start with "
                f"{list(SPECIAL)}; make it with word_vocabulary(sentences)."
            )
        if len(set(vocabulary)) != len(vocabulary):
            word = collections.Counter(vocabulary).most_common(1)[0][0]
            raise ValueError(f"vocabulary contains {word!r} more than once; remove the duplicates.")
        self.backbone = backbone
        self.vocabulary = vocabulary
        dtype = backbone.dtype_policy
        self.dropout_layer = TokenDropout(backbone.dropout, dtype=dtype, name="outputs_dropout")
        self.output_dense = keras.layers.Dense(
            len(vocabulary),
            kernel_initializer=by_inputs(),
            dtype=dtype,
            name="logits",
        )
        states = self.dropout_layer(backbone(backbone.input)["sequence_output"])  # (B, T, 2 * P)
        outputs = {
            name: keras.layers.Activation(None, dtype="float32", name=name)(self.output_dense(half))
            for name, half in zip(_OUTPUTS, ops.split(states, 2, axis=-1))
        }
        super().__init__(inputs=backbone.input, outputs=outputs, **kwargs)

    def compile(
        self, optimizer: Any = "auto", loss: Any = "auto", *, metrics: Any = "auto", **kwargs: Any
    ) -> None:
        """Configure training; the constructor already does so with the defaults.

        Args:
            optimizer: "auto" is Adam at 1e-3, with gradients clipped at 10 as in bilm-tf.
            loss: "auto" is the mean of the two cross-entropies.
            metrics: "auto" is the perplexity of each direction.
            **kwargs: as in `keras.Model.compile`.
        """
        if isinstance(optimizer, str) and optimizer == "auto":
            optimizer = keras.optimizers.Adam(1e-3, global_clipnorm=10.0)
        if isinstance(loss, str) and loss == "auto":
            loss = {name: TokenCrossEntropy() for name in _OUTPUTS}
            kwargs.setdefault("loss_weights", dict.fromkeys(_OUTPUTS, 0.5))
        if isinstance(metrics, str) and metrics == "auto":
            metrics = None
            kwargs.setdefault("weighted_metrics", {name: [Perplexity()] for name in _OUTPUTS})
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        validation_data: Any = None,
        shuffle: bool = True,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Train on sentences or preprocessed arrays; see `keras.Model.fit`.

        Args:
            x: list of strings or of lists of words; or a dict of arrays, with labels and weights.
            batch_size: int, 32 by default.
            validation_data: sentences, or as in `keras.Model.fit`.
            shuffle: whether to shuffle sentences and batches again in every epoch.
        """
        if _are_sentences(validation_data):
            validation_data = self._batches(validation_data, batch_size, None)
        kwargs["validation_data"] = validation_data
        if _are_sentences(x):
            seed = random.randrange(2**31) if shuffle else None
            batches = self._batches(x, batch_size, seed, shuffle)
            return super().fit(batches, shuffle=False, **kwargs)
        return super().fit(x, y, batch_size=batch_size, shuffle=shuffle, **kwargs)

    def evaluate(
        self, x: Any = None, y: Any = None, batch_size: int | None = None, **kwargs: Any
    ) -> Any:
        """Evaluate on sentences or preprocessed arrays; see `keras.Model.evaluate`."""
        if _are_sentences(x):
            return super().evaluate(self._batches(x, batch_size, None), **kwargs)
        return super().evaluate(x, y, batch_size=batch_size, **kwargs)

    def perplexity(self, sentences: Any, batch_size: int = 32) -> dict[str, Any]:
        """Compute the perplexity over words and sentence boundaries.

        Args:
            sentences: as in `fit`.
            batch_size: int.

        Returns:
            A dict of `forward`, `backward` and `mean`, the exponential of the mean of both losses.
        """
        sums, counts = np.zeros(2), np.zeros(2)
        for features, labels, weights in self._batches(sentences, batch_size, None):
            features = keras.tree.map_structure(np.asarray, features)
            logits = backend.predict_batch(self, features)
            for i, name in enumerate(_OUTPUTS):
                weight = np.asarray(weights[name])
                losses = token_cross_entropy(np.asarray(labels[name]), np.asarray(logits[name]))
                sums[i] += (ops.convert_to_numpy(losses) * weight).sum(dtype="float64")
                counts[i] += weight.sum()
        forward, backward = losses = sums / counts
        values = np.exp([forward, backward, losses.mean()]).tolist()
        return dict(zip(("forward", "backward", "mean"), values))

    def _batches(self, sentences, batch_size, seed, shuffle=False):
        """Make batches `(features, labels, weights)` of sentences of similar length."""
        batch_size = 32 if batch_size is None else batch_size
        check_whole("batch_size", batch_size)
        if isinstance(sentences, str):
            raise ValueError("sentences must be a list, got one string; put it in a list.")
        sentences, _ = sentence_words(sentences, "fit()")
        numbers = {word: number for number, word in enumerate(self.vocabulary)}
        ids = [[numbers.get(word, UNKNOWN_ID) for word in sentence] for sentence in sentences]
        lengths = np.array([len(sentence) + 2 for sentence in sentences])

        def make(rows):
            length = bucket_length(lengths[rows].max())
            words, most = [sentences[row] for row in rows], self.backbone.characters_per_token
            features = dict(zip(_INPUTS, character_ids(words, most, length)))
            return features, *neighbors([ids[row] for row in rows], length)

        def plan(epoch):
            if shuffle:
                return similar_length_batches(lengths, batch_size, seed, epoch)
            return sorted_batches(lengths, batch_size)

        batches = Batches(plan, make)
        return batches if runs_in_numpy() else as_tf_data(batches)

    @classmethod
    def from_files(cls, options: Any, weights: Any, vocabulary: AnyPath, dtype: Any = None) -> Self:
        """Read a model with its softmax from bilm-tf's files.

        Args:
            options, weights: see `ElmoBackbone.from_files`.
            vocabulary: path of the vocabulary file, one word per line.
            dtype: string or policy.

        Raises:
            ValueError: if the files do not match each other.
        """
        with open(vocabulary, encoding="utf-8") as file:
            words = file.read().split("\n")
        if words and not words[-1]:
            words.pop()
        backbone = ElmoBackbone(**bilm.read_options(options), dtype=dtype)
        model = cls(backbone, words)
        bilm.read_weights(model.weights, weights)
        return model

    def to_files(self, options: Any, weights: Any, vocabulary: Any) -> None:
        """Write the files that `from_files` reads, in bilm-tf's format."""
        write_files(self, self.backbone, options, weights)
        write_text(vocabulary, "".join(f"{word}\n" for word in self.vocabulary))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "vocabulary": self.vocabulary}


def _are_sentences(x):
    """Return whether `x` holds sentences (strings or lists), not arrays or batches."""
    if isinstance(x, str):
        return True
    return isinstance(x, (list, tuple)) and all(isinstance(row, (str, list)) for row in x)
