"""Checks of the arguments of searches, and selection of a page of hits."""

from kerasbert.base.errors import check_whole
from kerasbert.base.strict_json import to_json
from kerasbert.search.metadata import check_key
from kerasbert.search.values import is_number


def check_alpha(alpha, keywords):
    """Raise a `ValueError` if the weight of the vectors in a hybrid search is invalid."""
    if alpha is None:
        return
    if not keywords:
        raise ValueError("alpha needs an index with keywords=True; make the index with it.")
    if not is_number(alpha) or not 0 <= alpha <= 1:
        raise ValueError(f"alpha={alpha!r:.50} must be a number from 0 to 1.")


def check_search(top_k, offset, min_score, candidates=None, group_by=None):
    """Raise a `ValueError` if an argument of `search` is invalid."""
    check_whole("top_k", top_k)
    check_whole("offset", offset, least=0)
    if candidates is not None:
        check_whole("candidates", candidates)
    if min_score is not None and not is_number(min_score):
        raise ValueError(f"min_score={min_score!r:.50} must be a number.")
    if group_by is not None:
        check_key(group_by, "group_by")


def best_of_groups(hits, key):
    """Return the first hit of each group of equal metadata values for a key.

    Hits without the key are not grouped; with the key `None`, none are.
    """
    seen, found = set(), []
    for hit in hits:
        value = hit.get("metadata", {}).get(key)
        # As in filters, 1 equals 1.0, but not True.
        group = isinstance(value, bool), to_json(value) if isinstance(value, list) else value
        if value is None or group not in seen:
            found.append(hit)
            seen.add(group)
    return found


def page(hits, offset, count, min_score):
    """Return the hits from `offset` to `count` whose score is at least `min_score`."""
    hits = hits[offset:count]
    return hits if min_score is None else [hit for hit in hits if hit["score"] >= min_score]
