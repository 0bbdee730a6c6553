"""Similarities of embeddings, and the base class of losses on embeddings.

B batch, C columns of texts (such as query, positive and negative passage), N = C - 1 columns after
the first, D embedding width.

Embeddings are (B, C, D), or (B, C, T, D) with `similarity="maxsim"`: one per token, 0 at padding.
Losses named as in sentence-transformers 6.2 (Reimers and Gurevych 2019, arXiv 1908.10084) have the
same formulas and defaults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.backend.layers import unit_length

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Dtype, Tensor


NEVER = -1e9


def cosine(x, y):
    """Return the cosine similarities (...) of two tensors of vectors (..., D)."""
    return ops.sum(unit_length(x) * unit_length(y), axis=-1)


def _distance(x, y):
    """Return Euclidean distances (...) of two tensors of vectors (..., D), with gradient 0 at 0."""
    squares = ops.sum(ops.square(x - y), axis=-1)
    is_zero = squares <= 0
    return ops.where(is_zero, 0.0, ops.sqrt(ops.where(is_zero, 1.0, squares)))


DISTANCES = {"euclidean": _distance, "cosine": lambda x, y: 1 - cosine(x, y)}


SIMILARITIES = ("cosine", "dot", "maxsim")


def max_similarity(queries: Tensor, texts: Tensor) -> Tensor:
    """Compute MaxSim: the sum over query tokens of the largest dot product with a text token.

    Args:
        queries: floats (Q, S, D), one embedding per token, zeros at padding.
        texts: floats (N, T, D), one embedding per token, zeros at padding.

    Returns:
        Floats (Q, N).

    Example:

    >>> queries = np.array([[[1, 0], [0, 1], [0, 0]]], "float32")
    >>> texts = np.array([[[-1, 0], [0, 0]], [[1, 0], [0, 2]]], "float32")
    >>> ops.convert_to_numpy(max_similarity(queries, texts)).tolist()
    [[-1.0, 3.0]]

    Source: Khattab and Zaharia 2020, "ColBERT", arXiv 2004.12832, equation 3.
    """
    queries, texts = map(ops.convert_to_tensor, (queries, texts))
    count, length, width = ops.shape(queries)
    tokens = ops.reshape(texts, (-1, width))  # (N * T, D)
    products = ops.matmul(ops.reshape(queries, (-1, width)), ops.transpose(tokens))
    products = ops.reshape(products, (count, length, *ops.shape(texts)[:2]))  # (Q, S, N, T)
    return ops.sum(_best(products, texts), axis=1)


def _best(products, texts):
    """Return the maximum (..., N) of products (..., N, T) over T; 0 for a text without tokens."""
    is_token = ops.any(texts != 0, axis=-1)  # (N, T)
    best = ops.max(ops.where(is_token, products, NEVER), axis=-1)
    # Padding in queries needs no mask: its products are all 0.
    return ops.where(ops.any(is_token, axis=-1), best, 0.0)


def all_similar(similarity, queries, texts):
    """Compute similarities of all pairs: (Q, ..., D) and (N, ..., D) to (Q, N)."""
    if similarity == "maxsim":
        return max_similarity(queries, texts)
    if similarity == "cosine":
        queries, texts = unit_length(queries), unit_length(texts)
    return ops.matmul(queries, ops.transpose(texts))


def similar(similarity, queries, texts):
    """Compute similarities of corresponding rows of two tensors (B, ..., D): (B,)."""
    if similarity == "maxsim":
        products = ops.matmul(queries, ops.transpose(texts, (0, 2, 1)))  # (B, S, T)
        return ops.sum(_best(ops.transpose(products, (1, 0, 2)), texts), axis=0)
    return cosine(queries, texts) if similarity == "cosine" else ops.sum(queries * texts, axis=-1)


def numbers(loss, y_true, y_pred):
    """Return the labels as (B,), in the dtype of the embeddings."""
    if len(y_true.shape) > 1 and y_true.shape[1] != 1:
        raise ValueError(
            f"{type(loss).__name__} expected one number per row as labels, got shape "
            f"{tuple(y_true.shape)}; pass a list of numbers as y, or use MultipleNegativesRanking "
            "for pairs without labels."
        )
    return ops.reshape(ops.cast(y_true, y_pred.dtype), (-1,))


class VectorLoss(keras.losses.Loss):
    """Base class of losses on embeddings.

    Args:
        settings: settings of the subclass. They become attributes, and part of the config.
    """

    least, most, what = 2, 2, "pairs of texts"
    # Valid labels; `None` allows all.
    label_range = None

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = None,
        dtype: Dtype = None,
        **settings: Any,
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.settings = settings
        for key, value in settings.items():
            setattr(self, key, value)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self.settings}

    def columns(self, y_pred: Tensor) -> tuple[Any, ...]:
        """Check the shape of embeddings (B, C, ...) and split them into C of (B, ...)."""
        shape = tuple(y_pred.shape)
        of_tokens = self.settings.get("similarity") == "maxsim"
        if (len(shape) == 4) != of_tokens and len(shape) in (3, 4):
            one, other = ("text", "token") if of_tokens else ("token", "text")
            raise ValueError(
                f"{type(self).__name__} expected one embedding per {other}, got one per {one}, "
                f"shape {shape}; use similarity='maxsim' with pooling='tokens', and other "
                "similarities and losses with other poolings."
            )
        if len(shape) != 3 + of_tokens or not self.least <= shape[1] <= (self.most or shape[1]):
            raise ValueError(
                f"{type(self).__name__} expected embeddings of {self.what}, got shape {shape}; "
                "pass a tuple of lists of texts to fit(), one list per column."
            )
        return [y_pred[:, column] for column in range(shape[1])]


def check_widths(y_true, y_pred):
    """Raise if target embeddings have another width than the model's."""
    if y_true.shape[-1] not in (None, y_pred.shape[-1]):
        raise ValueError(
            f"The labels are embeddings of width {y_true.shape[-1]}, but the model's have width "
            f"{y_pred.shape[-1]}; pass embeddings of that width, or classes as a flat list."
        )
