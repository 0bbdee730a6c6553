"""SetFit's two parts: pairs of texts by their classes, and a head on the vectors of texts.

N texts, P pairs, D width of a vector, C classes.

Facts follow Tunstall et al. 2022, arXiv 2209.11055, and setfit 1.2.
"""

import numpy as np

from kerasbert._errors import is_whole

# How many of all pairs are taken.
SAMPLING = ("oversampling", "undersampling", "unique")
# More texts have too many pairs to draw from a list of all.
MOST_TEXTS = 5000
# The logit of a class without an example: its probability is 0.
NEVER = -1e4


def contrastive_pairs(classes, pairs=20, seed=0):
    """Pairs of texts of one class, and of two.

    Args:
        classes: N names or numbers, of the texts.
        pairs: int. For each text so many of its class and as many of other ones, drawn at random,
            as in the paper. Or what to take of all pairs, a text with itself among them, as in
            setfit: "oversampling", all, those of which there are fewer again and again;
            "undersampling", as many of both as there are of the fewer; or "unique", each once.
        seed: int.

    Returns:
        `(first, second, is_same)`: places of texts (P,) twice, and float32 (P,), 1 for one class.

    Raises:
        ValueError: for a single class, and for too many texts to list all pairs.

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
            f"All examples are of the class '{names[0]}'; SetFit compares texts of two classes "
            "or more."
        )
    random = np.random.default_rng(seed)
    if is_whole(pairs):
        first, second = _drawn(classes, pairs, random)
    else:
        first, second = _listed(classes, pairs, random)
    return first, second, (classes[first] == classes[second]).astype("float32")


def _drawn(classes, pairs, random):
    """For each text some of its class, it may be itself, and some of the others."""
    first = np.repeat(np.arange(len(classes)), pairs)
    order = np.argsort(classes, kind="stable")
    counts = np.bincount(classes)
    starts = (np.cumsum(counts) - counts)[classes[first]]
    sizes = counts[classes[first]]
    same = order[starts + random.integers(sizes)]
    # The texts of other classes stand before and behind those of its own.
    place = random.integers(len(classes) - sizes)
    other = order[np.where(place < starts, place, place + sizes)]
    return np.tile(first, 2), np.concatenate([same, other])


def _listed(classes, sampling, random):
    """Some of all pairs, in random order."""
    if len(classes) > MOST_TEXTS:
        raise ValueError(
            f"pairs='{sampling}' lists all pairs, too many of {len(classes):,} texts; pass a "
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
        groups = [np.resize(group, size) for group in groups]  # Again and again.
    chosen = np.concatenate(groups)
    return first[chosen], second[chosen]


def logistic_head(vectors, classes, num_classes, sample_weight=None):
    """The head of a classifier that is scikit-learn's logistic regression on vectors.

    Args:
        vectors: floats (N, D).
        classes: ints (N,), two different ones at least.
        num_classes: int. C.
        sample_weight: floats (N,), what each example counts.

    Returns:
        `(kernel, bias)`: float32 (D, C) and (C,); the softmax of `vectors @ kernel + bias` is what
        the regression's `predict_proba` gives. A class without an example has the bias -1e4.

    Example:

    >>> kernel, bias = logistic_head(np.eye(2), np.array([0, 2]), 3)
    >>> (np.eye(2) @ kernel + bias).argmax(-1).tolist()
    [0, 2]
    """
    from sklearn.linear_model import LogisticRegression

    head = LogisticRegression(max_iter=1000).fit(vectors, classes, sample_weight)
    coefficients, intercept = head.coef_, head.intercept_
    if len(coefficients) == 1:  # Of two classes those of the second one, against zeros.
        coefficients = np.concatenate([np.zeros_like(coefficients), coefficients])
        intercept = np.array([0.0, *intercept])
    kernel = np.zeros((vectors.shape[1], num_classes), "float32")
    bias = np.full(num_classes, NEVER, "float32")
    kernel[:, head.classes_], bias[head.classes_] = coefficients.T, intercept
    return kernel, bias
