"""The two stages of SetFit: contrastive text pairs, and a logistic head.

Source: Tunstall et al. 2022, arXiv 2209.11055, and setfit 1.2.

Shapes: N texts, P pairs, D embedding width, C classes.
"""

import numpy as np

from kerasbert.base.errors import is_whole

SAMPLING = ("oversampling", "undersampling", "unique")
# Texts of which all pairs are listed.
MOST_TEXTS = 5000
# Logit of a class without examples, with probability 0.
NEVER = -1e4


def contrastive_pairs(classes, pairs=20, seed=0):
    """Choose pairs of texts of the same class and of different classes.

    Args:
        classes: N names or numbers, one per text.
        pairs: int or string. An int is the number of random pairs of each text with texts of its
            class, and with others, as in the paper. A string samples from all pairs, each text with
            itself included, as in setfit. "oversampling" repeats pairs of the rarer kind (same
            class or different classes) until both are equally frequent; "undersampling" takes only
            as many of each kind as there are of the rarer; "unique" takes each pair once.
        seed: int.

    Returns:
        `(first, second, is_same)`: two arrays of text indices (P,), and float32 (P,), 1 for equal
        classes, else 0.

    Raises:
        ValueError: for a single class, or too many texts to list all pairs.

    Example:

    >>> first, second, is_same = contrastive_pairs(["a", "a", "b"], "unique")
    >>> sorted(zip(first.tolist(), second.tolist(), is_same.tolist()))[:3]
    [(0, 0, 1.0), (0, 1, 1.0), (0, 2, 0.0)]
    >>> [len(part) for part in contrastive_pairs(["a", "a", "b"], "oversampling")]
    [8, 8, 8]
    """
    names, classes = np.unique(np.asarray(classes), return_inverse=True)
    if len(names) < 2:
        raise ValueError(
            f"All examples are of the class '{names[0]}'; SetFit needs at least two classes."
        )
    random = np.random.default_rng(seed)
    if is_whole(pairs):
        first, second = _drawn(classes, pairs, random)
    else:
        first, second = _listed(classes, pairs, random)
    return first, second, (classes[first] == classes[second]).astype("float32")


def _drawn(classes, pairs, random):
    """Draw for each text `pairs` texts of its class (possibly itself), and `pairs` of others."""
    first = np.repeat(np.arange(len(classes)), pairs)
    order = np.argsort(classes, kind="stable")
    counts = np.bincount(classes)
    starts = (np.cumsum(counts) - counts)[classes[first]]
    sizes = counts[classes[first]]
    same = order[starts + random.integers(sizes)]
    # In `order`, other classes are before and after the class.
    place = random.integers(len(classes) - sizes)
    other = order[np.where(place < starts, place, place + sizes)]
    return np.tile(first, 2), np.concatenate([same, other])


def _listed(classes, sampling, random):
    """List all pairs in random order, and sample from them."""
    if len(classes) > MOST_TEXTS:
        raise ValueError(
            f"pairs='{sampling}' lists all pairs, too many for {len(classes):,} texts; pass a "
            "number, such as pairs=20."
        )
    first, second = np.triu_indices(len(classes))
    order = random.permutation(len(first))
    first, second = first[order], second[order]
    is_same = classes[first] == classes[second]
    groups = [np.flatnonzero(is_same), np.flatnonzero(~is_same)]
    sizes = [len(group) for group in groups]
    if sampling != "unique":
        size = max(sizes) if sampling == "oversampling" else min(sizes)
        groups = [np.resize(group, size) for group in groups]  # `resize` repeats or truncates.
    chosen = np.concatenate(groups)
    return first[chosen], second[chosen]


def logistic_head(vectors, classes, num_classes, sample_weight=None):
    """Fit a classification head to embeddings by scikit-learn's logistic regression.

    Args:
        vectors: floats (N, D).
        classes: ints (N,), at least two different ones.
        num_classes: int. C.
        sample_weight: floats (N,). The weight of each example.

    Returns:
        `(kernel, bias)`: float32 (D, C) and (C,). The softmax of `vectors @ kernel + bias` is the
        regression's `predict_proba`. A class without examples has the bias -1e4.

    Example:

    >>> kernel, bias = logistic_head(np.eye(2), np.array([0, 2]), 3)
    >>> (np.eye(2) @ kernel + bias).argmax(-1).tolist()
    [0, 2]
    """
    from sklearn.linear_model import LogisticRegression

    head = LogisticRegression(max_iter=1000).fit(vectors, classes, sample_weight)
    coefficients, intercept = head.coef_, head.intercept_
    if len(coefficients) == 1:  # Of two classes, only the second has coefficients.
        coefficients = np.concatenate([np.zeros_like(coefficients), coefficients])
        intercept = np.array([0.0, *intercept])
    kernel = np.zeros((vectors.shape[1], num_classes), "float32")
    bias = np.full(num_classes, NEVER, "float32")
    kernel[:, head.classes_], bias[head.classes_] = coefficients.T, intercept
    return kernel, bias
