"""Attributions: how much each word of a text contributes to a model's output.

T tokens, W words, E width of the token embeddings, R rows per batch, S steps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import html
import threading
from typing import TYPE_CHECKING

import numpy as np
from keras import ops

from kerasbert import backend
from kerasbert.base.errors import check_choice, check_whole, is_whole
from kerasbert.base.parts import encoder_of
from kerasbert.heads.base.spans import MASKED
from kerasbert.kinds import kind_of, kinds_with
from kerasbert.text.class_numbers import class_numbers
from kerasbert.text.names import known_name
from kerasbert.visualize.figures import new_figure, style
from kerasbert.visualize.spans import BOX, marked
from kerasbert.visualize.tokens import read_text

if TYPE_CHECKING:
    from typing import Any

    from matplotlib.figure import Figure

METHODS = ("integrated_gradients", "gradient_x_input", "attention_rollout")
BASELINES = ("mask", "pad", "zero")
# Tokens per batch. With 12 layers of width 768, gradients take about 120 kB per token and layer.
_TOKENS = 1024
_FOR, _AGAINST = "#2f6fd0", "#d9641a"  # Distinguishable with red-green color blindness.


@dataclasses.dataclass
class Attributions:
    """The contribution of each word and token of a text to an output of a model.

    A notebook displays the text, with words that raise the output in blue and others in orange.

    Attributes:
        texts: tuple of one or two strings.
        words: list of W strings.
        spans: int array (W, 3): each word's text (0 or 1), and its start and end there in
            characters.
        scores: float array (W,). Sums over each word's tokens.
        tokens: list of T strings, with special tokens such as `[CLS]`.
        token_scores: float array (T,).
        target: string. The explained output.
        method: string.
        output: float. The explained output: for classes a logit, unless the model has an
            activation. `None` for attention rollout.
        baseline_output: float. Its value at the baseline (integrated gradients only).
        error: float. How much the sum of `token_scores` differs from `output - baseline_output`
            (integrated gradients only). More steps reduce it.
    """

    texts: tuple
    words: list
    spans: np.ndarray
    scores: np.ndarray
    tokens: list
    token_scores: np.ndarray
    target: str
    method: str
    output: float | None = None
    baseline_output: float | None = None
    error: float | None = None

    def _repr_html_(self):
        most = max(np.abs(self.scores).max(initial=0), 1e-12)
        parts = []
        for number, text in enumerate(self.texts):
            marks = [
                {"start": start, "end": end, "label": "", "hint": f"{score:+.4f}"}
                | {"color": _tint(score / most)}
                for (of, start, end), score in zip(self.spans.tolist(), self.scores)
                if of == number and start < end
            ]
            parts.append(f'<div dir="auto">{marked(text, marks)}</div>')
        return (
            f'<div style="{BOX}"><small>{html.escape(self._title())}</small>{"".join(parts)}</div>'
        )

    def _title(self):
        title = f"{self.method.replace('_', ' ')}: {self.target}"
        if self.output is not None:
            title += f", {self.output:.3f}"
        if self.error is not None:
            title += f" from {self.baseline_output:.3f} for the baseline (error {self.error:.1e})"
        return title


def _tint(share):
    """Return a CSS color, from white at 0 to blue at 1 and orange at -1."""
    color = _FOR if share > 0 else _AGAINST
    return f"{color}{round(min(abs(share), 1) * 160):02x}"


def attributions(
    model: Any,
    text: Any,
    target: Any = None,
    at: Any = None,
    method: str = "integrated_gradients",
    baseline: Any = None,
    steps: int = 32,
) -> Attributions:
    """Attribute an output of a model to the words of its text.

    Integrated gradients follow the token embeddings on a straight line from a baseline to the
    text, and sum to the difference of the two outputs; `error` says how exactly. Gradient times
    input is a cheap approximation in one step, which has no such sum and may get a word's sign
    wrong where the gradient changes along the line. Attention rollout estimates from all layers'
    attention how much of each token reaches the position that the head reads; it has no target or
    sign.

    Args:
        model: a task of `kerasbert.models` with a preprocessor: a text or token classifier,
            regressor, reranker, next-sentence predictor, masked language model or question
            answering model. `attention_rollout` takes any task on a `BertBackbone`.
        text: string, or a pair of strings; `(question, context)` for question answering.
        target: the output to explain: the name or number of a class, or a token or its id for a
            masked language model. `None` takes the most probable one.
        at: position of the output: a character position for a token classifier, the index of a
            mask for a masked language model, the answer's `(start, end)` in the context for
            question answering. `None` takes the first, or the best answer.
        method: "integrated_gradients", "gradient_x_input" or "attention_rollout".
        baseline: what replaces all tokens but special ones: "mask", the mask token; "pad", the
            padding token; or "zero", a vector of zeros. Defaults to "mask", which means "an unknown
            word" to an encoder that never saw the other two in training, or to "pad" where the
            vocabulary has no mask.
        steps: int. Number of Gauss-Legendre quadrature points of integrated gradients.

    Returns:
        `Attributions`.

    Raises:
        ValueError: if the task has no such target or position.

    >>> from kerasbert.models import BertBackbone, BertTextClassifier
    >>> from kerasbert.models import BertTextClassifierPreprocessor
    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "play", "##ed"]
    >>> backbone = BertBackbone(
    ...     vocabulary_size=8, num_layers=1, num_heads=2, hidden_dim=4, intermediate_dim=4
    ... )
    >>> preprocessor = BertTextClassifierPreprocessor(BertTokenizer(tokens, lowercase=True))
    >>> model = BertTextClassifier(backbone, labels=["no", "yes"], preprocessor=preprocessor)
    >>> found = attributions(model, "Played good", target="yes")
    >>> found.words, len(found.tokens), found.error < 1e-3
    (['Played', 'good'], 5, True)

    Sources: Sundararajan et al. 2017, arXiv 1703.01365; Shrikumar et al. 2016, arXiv 1605.01713;
    Abnar and Zuidema 2020, arXiv 2005.00928.
    """
    check_choice("method", method, METHODS)
    check_whole("steps", steps)
    read = read_text(model, text, "attributions()")
    if method == "attention_rollout":
        return _of_words(read, _rollout(model, read, at), "attention", method)
    tokenizer = model.preprocessor.tokenizer
    if baseline is None:
        baseline = "pad" if tokenizer.mask_token is None else "mask"
    check_choice("baseline", baseline, BASELINES)
    if baseline == "mask" and tokenizer.mask_token is None:
        raise ValueError("baseline='mask': the vocabulary has no mask token; use 'pad' or 'zero'.")
    output = output_of(model, read, target, at)
    embedding = encoder_of(model).token_embedding
    vectors = _array(embedding(ops.convert_to_tensor(read.features["token_ids"])))  # (1, T, E)

    def values(vectors):
        with giving(embedding, vectors):
            return output.read(model(output.features(vectors.shape[0]), training=False))

    if method == "gradient_x_input":
        value, gradient = backend.value_and_gradient(values, vectors)
        scores = (gradient * vectors)[0].sum(-1)
        return _of_words(read, scores, output.name, method, float(value[0]))
    blank = _blank(embedding, tokenizer, baseline, vectors)
    length = len(read.tokens)
    other = vectors.copy()
    other[0, :length][~read.framing()] = blank
    points, shares = np.polynomial.legendre.leggauss(steps)
    points, shares = (points + 1) / 2, shares / 2
    # The ends of the line have weight 0; they are only evaluated for their outputs.
    points, shares = np.append(points, [0, 1]), np.append(shares, [0, 0])
    rows = max(1, min(_TOKENS // vectors.shape[1], len(points)))
    ends, gradient = [], np.zeros(vectors.shape[1:], "float64")
    for first in range(0, len(points), rows):
        # All batches have the same number of rows, because JAX compiles for each shape.
        part = np.resize(points[first : first + rows], rows)
        weight = np.zeros(rows)
        weight[: len(shares[first : first + rows])] = shares[first : first + rows]
        between = other + part[:, None, None].astype("float32") * (vectors - other)
        value, slope = backend.value_and_gradient(values, between)
        gradient += np.einsum("r,rtd->td", weight, slope.astype("float64"))
        ends.extend(value[: len(points) - first])
    scores = (gradient * (vectors - other)[0]).sum(-1)
    before, value = float(ends[-2]), float(ends[-1])
    error = abs(scores.sum() - (value - before))
    return _of_words(read, scores, output.name, method, value, before, float(error))


def _blank(embedding, tokenizer, baseline, vectors):
    """Return the embedding (E,) that the baseline puts in place of a token."""
    if baseline == "zero":
        return np.zeros(vectors.shape[-1], "float32")
    token = tokenizer.mask_token_id if baseline == "mask" else tokenizer.pad_token_id
    return _array(embedding(ops.convert_to_tensor([[token]], "int32")))[0, 0]


def _array(x):
    return ops.convert_to_numpy(ops.cast(x, "float32"))


def _of_words(read, scores, target, method, *values):
    scores = np.asarray(scores, "float64")[: len(read.tokens)]
    spans, sums = read.words(scores)
    words = [read.texts[text][start:end] for text, start, end in spans]
    return Attributions(
        read.texts, words, spans, sums, read.tokens, scores, target, method, *values
    )


_LOCK = threading.RLock()


@contextlib.contextmanager
def giving(embedding, vectors):
    """Replace an embedding layer's output by vectors (R, T, E), in this thread only.

    Token ids have no gradient, so it is taken with respect to these vectors.
    """
    here = threading.get_ident()
    with _LOCK:
        # A quantized layer runs `quantized_call`.
        usual = {name: getattr(embedding, name) for name in ("call", "quantized_call")}

        def instead(name):
            def call(inputs, *args, **kwargs):
                # Further arguments ask for the reverse direction, from vectors to logits.
                if args or kwargs or threading.get_ident() != here:
                    return usual[name](inputs, *args, **kwargs)
                return ops.cast(vectors, embedding.compute_dtype)

            return call

        # Set in `__dict__`, because Keras would track attributes.
        embedding.__dict__.update({name: instead(name) for name in usual})
        try:
            yield
        finally:
            for name in usual:
                del embedding.__dict__[name]


# === The explained output ===


@dataclasses.dataclass
class Output:
    """An output of a model.

    Attributes:
        name: string.
        read: function from the model's outputs for R rows to floats (R,).
        arrays: dict of int arrays (1, ...): the model's inputs.
        place: int. Position of the token where it is read.
    """

    name: str
    read: object
    arrays: dict
    place: int = 0

    def features(self, rows):
        """Return the model's inputs repeated for rows that only differ in their vectors."""
        return {name: np.repeat(x, rows, axis=0) for name, x in self.arrays.items()}


def output_of(model, read, target, at):
    """Return the `Output` that the arguments of `attributions` select."""
    kind = kind_of(model)
    if kind is None or not kind.explains:
        raise ValueError(
            f"attributions() does not support a {type(model).__name__}; it supports "
            f"{', '.join(row.name for row in kinds_with('explains'))}, and "
            "method='attention_rollout' any task."
        )
    if kind.takes_pairs and len(read.texts) != 2:
        raise ValueError(f"A {type(model).__name__} takes a pair of texts, got one.")
    return _OUTPUTS[kind.explains](model, read, target, at)


def _chosen(target, names, values):
    """Return the index of the target class, or of the largest of the values (C,)."""
    if target is None:
        return int(np.argmax(values))
    if isinstance(target, str):
        found = known_name(target, names)
        check_choice("target", target if found is None else found, names)
        return names.index(found)
    if is_whole(target) and (numbers := class_numbers(names)):
        return numbers.number(target, f"target={target}")
    if not is_whole(target) or not 0 <= target < len(names):
        raise ValueError(f"target={target!r} is not a class; the classes are {', '.join(names)}.")
    return int(target)


def _no_place(at):
    if at is not None:
        raise ValueError(f"at={at!r}: this model has one output for the whole text; omit at.")


def _class(model, read, target, at):
    _no_place(at)
    values = _array(model(read.features, training=False))[0]
    names = list(getattr(model, "label_names", ()) or ("follows", "does not follow"))
    number = _chosen(target, names, values)
    return Output(names[number], lambda outputs: outputs[:, number], read.features)


def _number(model, read, target, at):
    _no_place(at)
    if target is not None:
        raise ValueError(f"target={target!r}: this model has one output; omit target.")
    return Output("score", lambda outputs: outputs, read.features)


def _token_class(model, read, target, at):
    inside = np.flatnonzero(~read.framing())
    if at is None:
        there = inside[:1]
    else:
        if not is_whole(at):
            raise ValueError(f"at={at!r} must be a character position in the text.")
        _, starts, ends = read.spans[inside].T
        there = inside[(starts <= at) & (at < ends)][:1]
    if not len(there):
        raise ValueError(f"at={at}: no token to explain there in {read.texts[0][:40]!r}.")
    place = int(there[0])
    names = list(model.label_names)
    number = _chosen(target, names, _array(model(read.features, training=False))[0, place])
    name = f"{names[number]} at {read.tokens[place]!r}"
    return Output(name, lambda outputs: outputs[:, place, number], read.features, place)


def _hidden_word(model, read, target, at):
    tokenizer = model.preprocessor.tokenizer
    masks = np.flatnonzero(read.ids == tokenizer.mask_token_id)
    number = 0 if at is None else at
    if not is_whole(number) or not 0 <= number < len(masks):
        raise ValueError(
            f"at={number!r}: the text has {len(masks)} mask tokens, numbered from 0; put "
            f"{tokenizer.mask_token} where a word is to be explained."
        )
    place = int(masks[number])
    arrays = {**read.features, "mask_positions": np.array([[place]], "int32")}

    def logits(outputs):
        return (outputs["mlm_logits"] if isinstance(outputs, dict) else outputs)[:, 0]

    if target is None:
        found = _array(logits(model(arrays, training=False)))[0]
        token = int(np.argmax(found[: tokenizer.vocabulary_size()]))
    else:
        token = _token(tokenizer, target)
    name = tokenizer.id_to_token(token)
    return Output(name, lambda outputs: logits(outputs)[:, token], arrays, place)


def _token(tokenizer, target):
    """Return the id of a token given by its name in the vocabulary or its text."""
    if is_whole(target):
        tokenizer.id_to_token(int(target))  # Raises ValueError for an unknown id.
        return int(target)
    if not isinstance(target, str):
        raise ValueError(f"target={target!r} must be a token or a token id.")
    if target in tokenizer.get_vocabulary():
        return tokenizer.token_to_id(target)
    ids = tokenizer.tokenize(target)
    if len(ids) != 1:
        raise ValueError(
            f"target={target!r} is {len(ids)} tokens, but a mask stands for one; name one token."
        )
    return int(ids[0])


def _answer(model, read, target, at):
    if target is not None:
        raise ValueError(f"target={target!r}: choose the answer with at=(start, end) instead.")
    inside = np.flatnonzero(read.spans[:, 0] == 1)
    starts, ends = read.spans[inside, 1], read.spans[inside, 2]
    if at is None:
        outputs = model(read.features, training=False)
        first, last = (_array(outputs[name])[0, inside] for name in ("start_logits", "end_logits"))
        sums = np.where(np.tri(len(inside), dtype=bool).T, first[:, None] + last, MASKED)
        first, last = np.unravel_index(sums.argmax(), sums.shape) if len(inside) else (0, 0)
    else:
        try:
            start, end = map(int, at)
        except (TypeError, ValueError):
            raise ValueError(
                f"at={at!r} must be a pair (start, end) of character positions in the context."
            ) from None
        there = np.flatnonzero((ends > start) & (starts < end))
        first, last = (there[0], there[-1]) if len(there) else (0, -1)
    if last < first or not len(inside):
        raise ValueError(f"The context has no tokens at={at!r}, or they were truncated.")
    name = read.texts[1][starts[first] : ends[last]]
    first, last = int(inside[first]), int(inside[last])

    def both(outputs):
        return outputs["start_logits"][:, first] + outputs["end_logits"][:, last]

    return Output(name, both, read.features, first)


# By `Kind.explains`.
_OUTPUTS = {
    "class": _class,
    "number": _number,
    "token_class": _token_class,
    "masked_token": _hidden_word,
    "answer": _answer,
}
_AT_TOKENS = ("token_class", "masked_token", "answer")


def _rollout(model, read, at):
    """Compute how much of each token reaches the position that is read: floats (T,), sum 1."""
    inside = encoder_of(model).feature_model(output_hidden_states=False, output_attentions=True)
    maps = [_array(x)[0].mean(axis=0) for x in inside(read.features, training=False)["attentions"]]
    kind = kind_of(model)
    by_place = kind and kind.explains in _AT_TOKENS
    length = len(read.tokens)
    # With causal attention, only the last token attends to the whole text.
    is_last = encoder_of(model).is_causal or getattr(model, "pooling", None) == "last"
    place = length - 1 if is_last else 0
    if by_place:
        place = output_of(model, read, None, at).place
    if not length:
        return np.zeros(0)
    reached = np.eye(length)[place]
    for image in reversed(maps):
        # Attention and the residual connection count equally.
        step = image[:length, :length].astype("float64") + np.eye(length)
        reached = reached @ (step / step.sum(-1, keepdims=True))
    return reached


# === Figures ===


@style()
def attribution_bars(attributions: Attributions, top: int | None = None) -> Figure:
    """Draw each word's contribution to the output as a bar, in the order of the text.

    Args:
        attributions: `Attributions`.
        top: int. Number of words to draw, those with the largest scores; `None` draws all.

    Returns:
        A `Figure`.

    >>> found = Attributions(
    ...     ("so good",), ["so", "good"], np.array([[0, 0, 2], [0, 3, 7]]), np.array([-0.1, 2]),
    ...     [], np.array([]), "yes", "gradient_x_input",
    ... )
    >>> [label.get_text() for label in attribution_bars(found).axes[0].get_yticklabels()]
    ['so', 'good']
    """
    count = len(attributions.words)
    if not count:
        raise ValueError("attributions has no words to draw: the text is empty.")
    places = np.arange(count)
    if top is not None:
        check_whole("top", top)
        places = np.sort(np.argsort(-np.abs(attributions.scores), kind="stable")[:top])
    scores = attributions.scores[places]
    figure = new_figure(5, 0.9 + 0.26 * len(places))
    axes = figure.subplots()
    rows = np.arange(len(places))
    axes.barh(rows, scores, color=[_FOR if score > 0 else _AGAINST for score in scores])
    axes.set_yticks(rows, [attributions.words[i] for i in places])
    axes.set(ylim=(len(places) - 0.5, -0.5), title=attributions._title())
    axes.title.set_wrap(True)
    axes.tick_params(axis="y", length=0)
    axes.axvline(0, color="0.4", linewidth=0.8)
    return figure
