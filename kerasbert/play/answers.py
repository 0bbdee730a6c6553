"""Answers to the playground's requests, as plain data for its page.

A request is an untrusted dict; anything wrong with it raises a one-line `ValueError`, and a
`RequestError` for what a reader of the page can do wrong. Spans count characters (code points).

T tokens, L layers, N heads.
"""

import numpy as np

from kerasbert import visualize
from kerasbert.base.errors import check_choice, is_whole
from kerasbert.base.parts import encoder_of
from kerasbert.kinds import KINDS, kind_of
from kerasbert.play.errors import RequestError
from kerasbert.search.index import SearchIndex
from kerasbert.visualize.attributions import METHODS
from kerasbert.visualize.tokens import is_readable

MOST_CHARACTERS = 5_000
MOST_TEXTS, MOST_SHORT_TEXTS = 2_000, 100
MOST_TOKENS = 128  # Maximum number of tokens in the attention panel.
_CHUNK = 32  # Number of texts that are embedded between two updates of the progress.


def describe(model):
    """Return a description of a model for the page, as a dict."""
    encoder, kind = encoder_of(model), getattr(model, "kind", None)
    tokenizer = model.preprocessor.tokenizer
    row = kind_of(model)
    panels = list(row.panels) if row else []
    if is_readable(model):
        panels.append("attention")
    labels = getattr(model, "label_names", None)
    return {
        "class": type(model).__name__,
        "kind": kind,
        "family": getattr(encoder, "family", ""),
        "parameters": int(model.count_params()),
        "layers": int(getattr(encoder, "num_layers", 0)),
        "heads": int(getattr(encoder, "num_heads", 0)),
        "mask": tokenizer.mask_token or "",
        "labels": list(labels) if labels else [],
        "pair": bool(row and row.takes_pairs),
        "panels": [*panels, "tokens"],
    }


def answer(model, panel, ask):
    """Answer a panel's request to a model; return plain data.

    Args:
        model: a task with a preprocessor.
        panel: string, one of `PANELS`.
        ask: dict. The request.

    Raises:
        ValueError: for a request that is invalid or too large.
    """
    check_choice("panel", panel, PANELS)
    if panel not in describe(model)["panels"]:
        raise ValueError(f"A {type(model).__name__} has no panel '{panel}'.")
    return PANELS[panel](model, ask)


# === Requests ===


def _text(ask, name, most=MOST_CHARACTERS):
    text = ask.get(name)
    if not isinstance(text, str):
        raise ValueError(f"{name} must be a text, got {text!r:.60}.")
    if len(text) > most:
        raise RequestError(
            f"{name} has {len(text):,} characters; the limit is {most:,}.",
            "long",
            field=name,
            count=len(text),
            most=most,
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(
            f"{name} has an incomplete character (an unpaired surrogate); type it again.",
            "incomplete",
            field=name,
        ) from None
    return text


def _filled(ask, name):
    text = _text(ask, name)
    if not text.strip():
        raise RequestError(f"{name} is empty; enter a text.", "empty", field=name)
    return text


def check_texts(ask, name, most):
    """Return a request's list of texts, without empty ones."""
    texts = ask.get(name)
    if not isinstance(texts, list):
        raise ValueError(f"{name} must be a list of texts, one per line.")
    if len(texts) > most:
        raise RequestError(
            f"{name} has {len(texts):,} lines; the limit is {most:,}.",
            "lines",
            field=name,
            count=len(texts),
            most=most,
        )
    texts = [_text({"a line": text}, "a line") for text in texts]
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise RequestError(f"{name} has no text; enter one per line.", "empty", field=name)
    return texts


def _several(ask, name, most):
    """Return a request's list of at least two texts."""
    texts = check_texts(ask, name, most)
    if len(texts) < 2:
        raise RequestError(
            f"{name} has one text; enter two or more, one per line.", "few", field=name
        )
    return texts


def _whole(ask, name, least, most, default):
    value = ask.get(name, default)
    if not is_whole(value) or not least <= value <= most:
        raise ValueError(f"{name}={value!r:.60} must be a whole number from {least} to {most}.")
    return int(value)


def _pair(ask):
    """Return a text, or a pair if the request has a second one."""
    text, second = _filled(ask, "text"), ask.get("text_b") or ""
    return (text, _text({"text_b": second}, "text_b")) if second else text


def _round(values, digits=4):
    return np.round(np.asarray(values, "float64"), digits).tolist()


# === Panels ===


def _fill(model, ask):
    text = _filled(ask, "text")
    top_k = _whole(ask, "top_k", 1, 50, 8)
    tokenizer = model.preprocessor.tokenizer
    if tokenizer.mask_token not in text:
        raise RequestError(
            f"text has no {tokenizer.mask_token}.", "mask", mask=tokenizer.mask_token
        )
    try:
        lens = visualize.logit_lens(model, text, top_k=top_k, places="masks")
    except ValueError as error:  # The mask is in the truncated part.
        raise RequestError(str(error), "cut", mask=tokenizer.mask_token) from None
    gaps = [
        [
            [
                {"token": _readable(tokenizer, id, name), "score": round(float(score), 5)}
                for id, name, score in zip(lens.token_ids[layer, gap], names[gap], scores[gap])
            ]
            for layer, (names, scores) in enumerate(zip(lens.best, lens.scores))
        ]
        for gap in range(len(lens.tokens))
    ]
    return {"gaps": gaps}


def _readable(tokenizer, id, name):
    """Return a token as text, because byte-pair vocabularies encode spaces and accents."""
    if name.startswith("##") or id in tokenizer.special_token_ids:
        return name
    return tokenizer.detokenize([int(id)]).strip() or name


def _classify(model, ask):
    text = _pair(ask)
    if KINDS[model.kind].takes_pairs and isinstance(text, str):
        raise RequestError("This model compares two texts; enter the second one, too.", "second")
    method = ask.get("method", "integrated_gradients")
    check_choice("method", method, METHODS)
    found = _classes(model, text)
    target = ask.get("target")
    if target is not None:
        check_choice("target", target, [one["name"] for one in found["classes"]])
    if not is_readable(model):
        return found  # Attributions are not supported for this model.
    if target is not None and not hasattr(model, "label_names"):
        # If the classes have no names, use their indices.
        target = [one["name"] for one in found["classes"]].index(target)
    if found["one"]:
        target = None
    steps = _whole(ask, "steps", 1, 200, 32)
    shares = visualize.attributions(model, text, target=target, method=method, steps=steps)
    found["words"] = [
        {"of": of, "start": start, "end": end, "score": round(float(score), 5)}
        for (of, start, end), score in zip(shares.spans.tolist(), shares.scores)
    ]
    found["target"] = shares.target
    for name in ("output", "baseline_output", "error"):
        value = getattr(shares, name)
        found[name] = None if value is None else float(f"{value:.5g}")
    return found


def _classes(model, text):
    """Return the classes and probabilities of a text.

    The entry `one` is true for a model that returns a single score and has no classes.
    """
    row = KINDS[model.kind]
    if row.explains == "number":
        score = getattr(model, "score", None) or getattr(model, row.method)
        return {"one": True, "classes": [_class("score", score([text])[0])]}
    if hasattr(model, "follows"):
        share = model.follows(*text)
        names = ("follows", "does not follow")
        return {"one": False, "classes": [_class(names[0], share), _class(names[1], 1 - share)]}
    found = model.classify(text)["probabilities"]
    return {"one": False, "classes": [_class(name, share) for name, share in found.items()]}


def _class(name, score):
    return {"name": str(name), "score": round(float(np.squeeze(score)), 5)}


def _tag(model, ask):
    text = _filled(ask, "text")
    found = [{"label": "", **one} for one in getattr(model, KINDS[model.kind].method)(text)]
    return {"spans": _scored(found, ("start", "end", "label"), 4)}


def _answer(model, ask):
    question, context = _filled(ask, "text"), _filled(ask, "text_b")
    found = model.answer(question, context, top_k=_whole(ask, "top_k", 1, 10, 3))
    return {"answers": _scored(found, ("answer", "start", "end"), 5)}


def _scored(found, keys, digits):
    """Return the values of `keys` and the rounded score of each of a model's results."""
    return [
        {**{key: one[key] for key in keys}, "score": round(float(one["score"]), digits)}
        for one in found
    ]


def _choose(model, ask):
    found = model.choose(_filled(ask, "text"), _several(ask, "texts", 10))
    return {"scores": _round(found["scores"])}


def _write(model, ask):
    text = _filled(ask, "text")
    count = _whole(ask, "count", 1, 60, 20)
    length = len(model.preprocessor.tokenizer.tokenize(text)) + 2 + count
    length = min(length, model.preprocessor.sequence_length)
    return {"text": model.generate(text, max_length=length, strip_prompt=True)}


def _similar(model, ask):
    texts = _several(ask, "texts", MOST_SHORT_TEXTS)
    found = _similarities(model, texts)
    return {"texts": texts, "similarities": _round(found, 3), "points": _round(_map(found), 3)}


def _similarities(model, texts):
    """Compute pairwise similarities (N, N), with 1 on the diagonal."""
    if getattr(model, "pooling", None) == "tokens":  # For late interaction, the mean of MaxSim.
        rows = [_unit(row) for row in model.embed(texts)]
        found = np.array([[(a @ b.T).max(1).mean() for b in rows] for a in rows])
        return (found + found.T) / 2
    vectors = model.embed(texts)
    vectors = vectors.toarray() if hasattr(vectors, "toarray") else vectors
    vectors = _unit(np.asarray(vectors, "float64"))
    return vectors @ vectors.T


def _unit(vectors):
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def _map(similarities):
    """Project texts to points (N, 2) whose distances reflect the similarities.

    Classical scaling (Torgerson 1952), which for cosine similarities is PCA.
    """
    centered = similarities - similarities.mean(0) - similarities.mean(1)[:, None]
    values, vectors = np.linalg.eigh(centered + similarities.mean())
    best = np.argsort(-values)[:2]
    points = vectors[:, best] * np.sqrt(np.maximum(values[best], 0))
    return np.pad(points, ((0, 0), (0, 2 - points.shape[1])))


def _attention(model, ask):
    text = _pair(ask)
    layer = _whole(ask, "layer", 0, encoder_of(model).num_layers - 1, 0)
    if len(model.preprocessor.tokenizer.tokenize("".join(text))) > MOST_TOKENS:
        raise RequestError(
            f"The text has more than {MOST_TOKENS} tokens; shorten it.", "tokens", most=MOST_TOKENS
        )
    found = visualize.attention(model, text)
    return {"tokens": found.tokens, "weights": _round(found.weights[layer], 3)}


def _tokens(model, ask):
    text = _text(ask, "text")
    tokenizer = model.preprocessor.tokenizer.with_special_tokens()
    ids, starts, ends = tokenizer.tokenize_with_offsets(text)
    unknown = getattr(tokenizer, "unk_token_id", None)
    return {
        "vocabulary": int(tokenizer.vocabulary_size()),
        "tokens": [
            {
                "id": int(id),
                "name": tokenizer.id_to_token(id),
                "start": int(start),
                "end": int(end),
                "unknown": id == unknown,
            }
            for id, start, end in zip(ids, starts, ends)
        ],
    }


# === Search ===


def make_index(model, texts, progress):
    """Build the index for `search`: a `SearchIndex`, or only the texts.

    It is the texts if the model has no dense embeddings.

    Args:
        progress: function of the number of embedded texts.
    """
    if KINDS[model.kind].vectors != "dense" or model.pooling == "tokens":
        if len(texts) > MOST_SHORT_TEXTS:
            raise RequestError(
                f"A {type(model).__name__} reads all texts again for each query, so it takes up to "
                f"{MOST_SHORT_TEXTS} texts, got {len(texts):,}.",
                "lines",
                field="texts",
                count=len(texts),
                most=MOST_SHORT_TEXTS,
            )
        progress(len(texts))
        return texts
    index = SearchIndex(model)
    for first in range(0, len(texts), _CHUNK):
        index.add(texts[first : first + _CHUNK])
        progress(min(first + _CHUNK, len(texts)))
    return index


def search(model, index, ask):
    """Return the texts of an index that best match a query."""
    query = _filled(ask, "text")
    top_k = _whole(ask, "top_k", 1, 50, 5)
    if isinstance(index, SearchIndex):
        hits = index.search(query, top_k=top_k)
        hits = [{"text": hit["text"], "score": round(float(hit["score"]), 4)} for hit in hits]
        return {"hits": hits}
    if KINDS[model.kind].vectors == "sparse":
        vectors = model.embed([query, *index]).toarray()
        scores = vectors[1:] @ vectors[0]
        order = np.argsort(-scores, kind="stable")[:top_k]
        found = [(int(place), scores[place]) for place in order]
    else:
        found = [(one["corpus_id"], one["score"]) for one in model.rank(query, index, top_k)]
    return {"hits": [{"text": index[i], "score": round(float(score), 4)} for i, score in found]}


PANELS = {
    "fill": _fill,
    "classify": _classify,
    "tag": _tag,
    "answer": _answer,
    "choose": _choose,
    "write": _write,
    "similar": _similar,
    "search": None,  # This panel needs two requests: `make_index` and `search`.
    "attention": _attention,
    "tokens": _tokens,
}
