"""Tokenization by the Rust library `tokenizers`.

Shapes: N texts, P pieces of a text.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer

from kerasbert.base.errors import is_whole
from kerasbert.base.strict_json import to_json
from kerasbert.text import ops

if TYPE_CHECKING:
    from typing import Any

_EMPTY = {
    "version": "1.0",
    "added_tokens": [],
    **dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder")),
}
# Ids without a token that every file may have; they take memory, and time in the library.
_MOST_GAPS = 1_000_000
# Fields of older files that the library writes in another form.
_LEGACY = ("add_prefix_space", "str_rep")


def in_form_first(form, normalizer):
    """Return a normalizer (`None` for none) with a Unicode normal form before it."""
    if form is None:
        return normalizer
    steps = [{"type": form}, normalizer]
    return {"type": "Sequence", "normalizers": [step for step in steps if step]}


def _unknown(given, kept, path=""):
    """Return the path of the first field of a file that the library ignores, or `None`."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for name, value in given.items():
            if name in ("vocab", "merges", "added_tokens", *_LEGACY):
                continue
            if name not in kept:
                return repr(f"{path}{name}")
            if found := _unknown(value, kept[name], f"{path}{name}."):
                return found
    elif isinstance(given, list) and isinstance(kept, list):
        steps = enumerate(zip(given, kept))
        return next(filter(None, (_unknown(a, b, f"{path}{i}.") for i, (a, b) in steps)), None)
    return None


def _check_merges(model):
    """Raise if a merge lacks the prefix of inner pieces, at which the library aborts."""
    prefix = model.get("continuing_subword_prefix") if isinstance(model, dict) else None
    for pair in model.get("merges") or () if prefix else ():
        second = pair.split(" ")[-1] if isinstance(pair, str) else pair[-1]
        if not second.startswith(prefix):
            raise ValueError(
                f"The tokenizer.json has the merge {pair!r}, whose second part does not begin with "
                f"continuing_subword_prefix={prefix!r}; download it again."
            )


def _check_ids(model):
    """Raise if an id is much larger than the number of tokens."""
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, dict):
        return
    largest = max(filter(is_whole, vocab.values()), default=0)
    if largest > 2 * len(vocab) + _MOST_GAPS:
        raise ValueError(
            f"This tokenizer.json has {len(vocab):,} tokens, but one has the id {largest:,}; "
            "number the tokens from 0, or download the file again."
        )


class FastEngine:
    """Tokenizes texts in memory by a `tokenizer.json`.

    Args:
        content: dict. The parsed file.
        matches_special: whether to match tokens that the file calls special.

    Raises:
        ValueError: if the library cannot read the content.
    """

    def __init__(self, content: dict[str, Any], matches_special: bool = True) -> None:
        content = {**_EMPTY, **content, "truncation": None, "padding": None}
        _check_ids(content.get("model"))
        _check_merges(content.get("model") or {})
        try:
            self._tokenizer = Tokenizer.from_str(to_json(content, ensure_ascii=False))
        except BaseException as error:
            # A panic of the library is an error that is no `Exception`.
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            raise ValueError(
                f"The library `tokenizers` cannot read this tokenizer.json: {error}; save it again "
                "with the version that made it, or update `tokenizers`."
            ) from None
        unknown = _unknown(content, json.loads(self._tokenizer.to_str()))
        if unknown:
            raise ValueError(
                f"The library `tokenizers` does not know {unknown} in this tokenizer.json, which "
                "may change the tokens; update `tokenizers`, or load the model with "
                "preprocessor=None and pass token ids."
            )
        self._tokenizer.encode_special_tokens = not matches_special

    def encode(self, texts: list[str], offsets: bool = False) -> tuple[ops.Ragged, ...]:
        """Convert texts (N,) to `(ids,)` or, with offsets, `(ids, starts, ends)`, int32 (N, P)."""
        texts = [
            text.decode("utf-8", "replace") if isinstance(text, bytes) else text for text in texts
        ]
        encode = self._tokenizer.encode_batch if offsets else self._tokenizer.encode_batch_fast
        try:
            found = encode(texts, add_special_tokens=False)
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            raise ValueError(
                f"The library `tokenizers` cannot split a text ({error}); use a tokenizer with a "
                "token for unknown words."
            ) from None
        ids = ops.Ragged.from_lists([one.ids for one in found])
        if not offsets:
            return (ids,)
        places = [place for one in found for place in one.offsets]
        starts, ends = np.array(places, "int32").reshape(-1, 2).T
        return ids, ids.with_values(starts), ids.with_values(ends)

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Convert lists of ids to texts."""
        return self._tokenizer.decode_batch(ids, skip_special_tokens=False)

    def content(self) -> dict[str, Any]:
        """Return the `tokenizer.json` in the form in which the library writes it."""
        return json.loads(self._tokenizer.to_str())

    def normalized(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    def vocabulary(self) -> list[str]:
        """Return all tokens by id, with placeholders for ids without a token."""
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        tokens = [f"[no token {id}]" for id in range(max(ids.values(), default=-1) + 1)]
        for token, id in ids.items():
            tokens[id] = token
        return tokens
