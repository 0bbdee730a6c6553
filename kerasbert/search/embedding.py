"""Embedding of texts and queries for an index, and its checks.

N: number of texts, D': width of the embedder's output.
"""

import warnings

import numpy as np

from kerasbert.base.errors import first_line
from kerasbert.kinds import kind_of
from kerasbert.search.vectors import unit_vectors
from kerasbert.text.empty import are_empty

# Models are told apart by their embeddings of these texts of several lengths and scripts.
PROBES = (
    "A cat sat on the mat.",
    "Interest rates rose again in the third quarter, said the central bank on Monday.",
    "서울의 날씨",
    "How?",
)
CHUNK = 8192  # Texts per call of `embed`.
# A model has a cosine of 0.999 to itself in bfloat16, 0.99 in int8.
_ALIKE = 0.98
_NO_SPARSE = (
    "an index takes dense embeddings, such as those of a BertTextEmbedder. Compare sparse "
    "embeddings as SciPy matrices, for example with embedder.similarity(queries, texts)."
)


def embed_in_role(embedder, texts, role, batch_size, prompt=None):
    """Embed texts as "query" or "text"; `prompt=None` uses the embedder's prompt for this role."""
    settings = {"batch_size": batch_size}
    if prompt is not None:
        texts = [prompt + text for text in texts]
    elif getattr(getattr(embedder, "preprocessor", None), "prompts", None):
        settings["role"] = role
    return embedder.embed(list(texts), **settings)


def embed_distinct(embed, texts):
    """Embed distinct texts; return them, their vectors and each text's index.

    Args:
        embed: function of a list of strings that returns vectors.
        texts: list of N strings.
    """
    place = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    distinct = list(place)
    parts = [embed(distinct[i : i + CHUNK]) for i in range(0, len(distinct), CHUNK)]
    places = np.fromiter(map(place.__getitem__, texts), "int64", len(texts))
    return distinct, np.concatenate(parts), places


def find_empty(embedder, texts, ids, stacklevel):
    """Return which texts are empty or have no known token, bool (N,), with a warning."""
    empty = are_empty(embedder, texts)
    if empty.any():
        first = int(np.argmax(empty))
        warnings.warn(
            f"{empty.sum()} of {len(texts)} texts are empty or have no token known to the "
            f"embedder's tokenizer, such as the one with the id {ids[first]!r}, "
            f"{texts[first]!r:.50}. No search finds them.",
            stacklevel=stacklevel + 1,
        )
    return empty


def check_models(embedder, reranker, reader):
    """Raise a `ValueError` if a model cannot be an index's embedder, reranker or reader."""
    for name, part, method in (
        ("embedder", embedder, "embed"),
        ("reranker", reranker, "rank"),
        ("reader", reader, "answer"),
    ):
        if part is not None and not hasattr(part, method):
            raise ValueError(
                f"{name}={type(part).__name__} has no method `{method}`; pass a model that "
                "has it, or None."
            )
    if getattr(embedder, "pooling", None) == "tokens":
        raise ValueError(
            "The embedder has pooling='tokens', which gives one vector per token, but an index "
            "needs one per text; use pooling='mean' or 'cls'."
        )
    kind = kind_of(embedder)
    if kind is not None and kind.vectors == "sparse":
        raise ValueError(f"The embedder is a {type(embedder).__name__}; {_NO_SPARSE}")


def check_vectors(vectors, count=None, width=None, dims=None):
    """Return vectors (N, D') as float32, or raise a `ValueError` if they are invalid.

    Args:
        vectors: any array or nested list of numbers.
        count: int. The expected N; `None` takes any.
        width: int. The expected D'; `None` takes any.
        dims: int. The minimum D'.
    """
    if hasattr(vectors, "tocsr"):
        raise ValueError(f"The vectors are sparse; {_NO_SPARSE}")
    try:
        vectors = np.asarray(vectors)
    except ValueError as error:
        raise ValueError(
            f"Vectors must be numbers (N, D), all of the same width: {first_line(error)}"
        ) from None
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or not vectors.shape[1]:
        raise ValueError(f"Vectors must be numbers (N, D), got {vectors.dtype} {vectors.shape}.")
    if count is not None and len(vectors) != count:
        raise ValueError(
            f"There are {len(vectors)} vectors for {count} texts; pass one vector per text."
        )
    found = vectors.shape[1]
    if found != (width or found):
        raise ValueError(
            f"The vectors have {found} dimensions, but the index has {width}: use "
            "the model of the index, or make a new index."
        )
    if dims is not None and found < dims:
        raise ValueError(f"dims={dims} is more than the {found} dimensions of the vectors.")
    # A row's sum is finite only if all its values are, and needs no temporary array of the same
    # size.
    with np.errstate(over="ignore", invalid="ignore"):
        vectors = vectors.astype("float32", copy=False)
        sums = vectors.sum(axis=1)
    if not np.isfinite(sums).all():
        row = int(np.flatnonzero(~np.isfinite(sums))[0])
        raise ValueError(
            f"Vector {row} has NaN or infinite values; check the model's weights, or compute "
            "in float32."
        )
    return vectors


def check_float16(vectors):
    """Raise a `ValueError` if vectors hold numbers that float16 cannot represent."""
    most = float(np.abs(vectors).max())
    if most > float(np.finfo("float16").max):
        raise ValueError(
            f"The vectors hold {most:.3g}, but float16 ends at 65504; use another dtype, "
            "or similarity='cosine'."
        )


def check_unchanged(vectors, before):
    """Raise a `ValueError` if a model embeds texts (N, D') differently after training."""
    sizes = np.linalg.norm(vectors, axis=1) * np.linalg.norm(before, axis=1)
    products = (vectors * before).sum(axis=1)
    worst = float(np.divide(products, sizes, where=sizes > 0, out=sizes + 1).min())
    if worst < _ALIKE:
        raise ValueError(
            "The embedder has changed since it embedded the texts of the index: its embeddings "
            f"of the same text have a cosine of {worst:.2f}. Make a new index after training."
        )


def check_same_model(mine, expected, name):
    """Raise a `ValueError` if an embedder is not the index's model `name`.

    Both are given as unit vectors (4, D') of `PROBES`.
    """
    # All embeddings of a model may be close to their mean.
    a, b = (x - x.mean(axis=0) for x in (mine, expected))
    like = float((a * b).sum() / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-12))
    if not like >= _ALIKE:  # A damaged file gives NaN.
        raise ValueError(
            f"The embedder is not the model that the index was made with ('{name}'): their "
            f"embeddings of the same texts have a cosine of {like:.2f}. Pass that model, or make "
            "a new index."
        )


def compared(vectors, dims, similarity):
    """Truncate vectors (N, D') to (N, D), of length 1 for cosines."""
    vectors = vectors[:, :dims]
    return unit_vectors(vectors) if similarity == "cosine" else vectors
