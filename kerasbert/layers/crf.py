"""The transition scores of a conditional random field (CRF).

B batch, T tokens, C classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert.backend import chains
from kerasbert.base.keywords import ChecksKeywords

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor

# Score of a forbidden transition: far below trained scores, but finite, so that a chain without an
# allowed path gives no NaN.
FORBIDDEN = -1e4


@keras.saving.register_keras_serializable(package="kerasbert")
class CRF(ChecksKeywords, keras.layers.Layer):
    """Linear-chain conditional random field over the labeled tokens of each row.

    The score of a sequence of classes is the sum of class scores (emissions), a transition score
    for each pair of neighbors, and scores of the first and last class. Masked tokens, such as
    padding and continuations of words, are skipped, so that their neighbors are adjacent.
    Transition scores begin at 0. All sums are float32.

    Called on emissions, the layer returns them unchanged: it only holds the weights.

    Args:
        allowed: nested list of bools (C + 1, C + 1). Whether class j may follow class i; row C is
            the beginning and column C the end of a text. Only for `best_path`, `marginals` and
            `decoded_scores`. `None` allows all.

    Example:

    >>> crf = CRF()
    >>> emissions, labels = crf(np.zeros((1, 3, 2), "float32")), np.array([[0, 1, 1]])
    >>> losses = crf.losses_of_tokens(emissions, labels, np.ones((1, 3)))
    >>> [round(float(loss), 4) for loss in losses[0]]
    [0.6931, 0.6931, 0.6931]
    >>> np.asarray(crf.best_path(np.array([[[2.0, 1.0], [0.0, 1.0]]]), np.ones((1, 2)))).tolist()
    [[0, 1]]

    Source: Lafferty et al. 2001, "Conditional Random Fields", ICML; Lample et al. 2016,
    arXiv 1603.01360.
    """

    def __init__(self, allowed: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.allowed = allowed

    def build(self, inputs_shape: Any) -> None:
        count = inputs_shape[-1]
        full = {"initializer": "zeros", "autocast": False}
        self.transitions = self.add_weight(shape=(count, count), name="transitions", **full)
        self.start = self.add_weight(shape=(count,), name="start", **full)
        self.end = self.add_weight(shape=(count,), name="end", **full)
        self._in_last_loss = _InLastLoss(count)

    def call(self, inputs: Tensor) -> Tensor:
        """Return emissions (B, T, C) unchanged."""
        return inputs

    def compute_output_spec(self, inputs: Tensor) -> Any:
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)

    def losses_of_tokens(self, emissions: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """Return each token's term of the negative log-likelihood of the labels.

        It is the negative log-probability of its label, given emissions and earlier labels. Terms
        add up to a row's negative log-likelihood.

        Args:
            emissions: floats (B, T, C).
            labels: ints (B, T).
            mask: (B, T). Nonzero for the tokens of the chain.

        Returns:
            float32 (B, T), 0 outside the chain.
        """
        transitions, start, end = weights = self._weights()
        self._in_last_loss.assign(weights)
        is_in = ops.cast(mask, "bool")
        labels = ops.where(is_in, ops.cast(labels, "int32"), 0)
        order, places, counts = chains.compacted(is_in)
        emissions = chains.with_ends(_in_order(emissions, order), counts, start, end)
        labels = ops.take_along_axis(labels, order, axis=1)
        scores = chains.conditional_scores(emissions, labels, counts, transitions[None])
        losses = ops.sparse_categorical_crossentropy(labels, scores, from_logits=True)
        return ops.where(is_in, ops.take_along_axis(losses, places, axis=1), 0.0)

    def best_path(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """Return the classes of the best allowed path (Viterbi), int32 (B, T).

        Tokens outside the chain have the highest emission.

        Args:
            emissions: floats (B, T, C).
            mask: (B, T). Nonzero for the tokens of the chain.
        """
        return self._best_path(*self._chain(emissions, mask, self._weights()), emissions, mask)

    def marginals(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """Return the probability of each class at each token over all allowed paths, (B, T, C).

        Tokens outside the chain have the softmax of the emissions. For arguments, see `best_path`.
        """
        return self._marginals(*self._chain(emissions, mask, self._weights()), emissions, mask)

    def decoded_scores(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """Return scores (B, T, C) for metrics, with the transitions of the last computed loss.

        They are logarithms of the marginals, but highest at the class of the best path. For
        arguments, see `best_path`.
        """
        chain = self._chain(emissions, mask, self._in_last_loss.values())
        scores = ops.log(ops.maximum(self._marginals(*chain, emissions, mask), 1e-30))
        best = self._best_path(*chain, emissions, mask)[:, :, None]
        is_best = best == ops.arange(ops.shape(scores)[-1], dtype="int32")
        highest = ops.max(scores, axis=-1, keepdims=True)
        return ops.where(is_best, highest + 1e-6, scores)

    def _weights(self):
        return [ops.convert_to_tensor(w) for w in (self.transitions, self.start, self.end)]

    def _chain(self, emissions, mask, weights):
        """Return the arguments of `chains.best_path`, and the step of each token."""
        transitions, start, end = weights
        if self.allowed is not None:
            scores = ops.convert_to_tensor(np.where(self.allowed, 0.0, FORBIDDEN), "float32")
            transitions = transitions + scores[:-1, :-1]
            start, end = start + scores[-1, :-1], end + scores[:-1, -1]
        order, places, counts = chains.compacted(mask)
        emissions = chains.with_ends(_in_order(emissions, order), counts, start, end)
        return (emissions, counts, transitions[None]), places

    def _best_path(self, chain, places, emissions, mask):
        found = ops.take_along_axis(chains.best_path(*chain), places, axis=1)
        alone = ops.cast(ops.argmax(emissions, axis=-1), "int32")
        return ops.where(ops.cast(mask, "bool"), found, alone)

    def _marginals(self, chain, places, emissions, mask):
        found = _in_order(chains.marginals(*chain), places)
        alone = ops.softmax(ops.cast(emissions, "float32"), axis=-1)
        return ops.where(ops.cast(mask, "bool")[:, :, None], found, alone)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "allowed": self.allowed}


class _InLastLoss(keras.metrics.Metric):
    """The transitions with which the last loss was computed.

    On JAX, only variables of metrics have current values where a step computes metrics.
    """

    def __init__(self, classes):
        super().__init__(name="crf_in_last_loss")
        self.parts = [
            self.add_variable(shape, initializer="zeros", name=name)
            for name, shape in (
                ("transitions", (classes, classes)),
                ("start", (classes,)),
                ("end", (classes,)),
            )
        ]

    def assign(self, values):
        for part, value in zip(self.parts, values, strict=True):
            part.assign(ops.stop_gradient(value))

    def values(self):
        return [ops.convert_to_tensor(part) for part in self.parts]

    def update_state(self, *args, **kwargs):
        """Do nothing; the loss assigns the values."""

    def reset_state(self):
        """Keep the values."""

    def result(self):
        return {}


def _in_order(x, order):
    """Reorder the tokens of (B, T, C), as float32."""
    index = ops.broadcast_to(order[:, :, None], ops.shape(x))
    return ops.take_along_axis(ops.cast(x, "float32"), index, axis=1)
