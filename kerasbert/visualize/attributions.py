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
from kerasbert.base.errors import check_choice, check_whole
from kerasbert.base.parts import encoder_of
from kerasbert.kinds import kind_of
from kerasbert.visualize.explained_output import AT_TOKENS, floats, output_of
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
# Distinct with red-green color blindness.
_FOR, _AGAINST = "#2f6fd0", "#d9641a"


@dataclasses.dataclass
class Attributions:
    """The contribution of each word and token of a text to an output of a model.

    A notebook displays the text, with words that raise the output in blue, and that lower it in
    orange.

    Attributes:
        texts: tuple of one or two strings.
        words: list of W strings.
        spans: int array (W, 3). Each word's text (0 or 1), start and end, in characters.
        scores: float array (W,). Each word's score, the sum of the scores of its tokens.
        tokens: list of T strings, with special tokens such as `[CLS]`.
        token_scores: float array (T,).
        target: name of the explained output.
        method: string. See `attributions`.
        output: float. Value of the explained output, a logit for classes of models without
            activation; `None` for attention rollout.
        baseline_output: the output's value for the baseline (integrated gradients only).
        error: the difference of the sum of `token_scores` and `output - baseline_output`
            (integrated gradients only), smaller with more steps.
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

    Integrated gradients average the gradient on a line from a baseline's token embeddings to the
    text's. Scores sum to the difference of both outputs, up to the numerical `error`. Gradient
    times input is cheaper, but without this sum, and scores may have the wrong sign. Attention
    rollout estimates from all layers' attention how much of each token reaches the position that
    the head reads, without target and sign.

    Args:
        model: a task of `kerasbert.models` with a preprocessor: a text or token classifier,
            regressor, reranker, next-sentence predictor, masked language model or question
            answering model. `attention_rollout` takes any task on a `BertBackbone`.
        text: string, or a pair of strings; `(question, context)` for question answering.
        target: the output to explain: name or index of a class, or a token or id for a masked
            language model. `None` means the most probable.
        at: position of the output: a character position for a token classifier, the index of a
            mask for a masked language model, the answer's `(start, end)` in the context for
            question answering. `None` means the first position, or the best answer.
        method: "integrated_gradients", "gradient_x_input" or "attention_rollout".
        baseline: string. What replaces all tokens except special ones: "mask", the mask token;
            "pad", the padding token; or "zero", a vector of zeros. Defaults to "mask", or to "pad"
            without a mask token.
        steps: number of Gauss-Legendre quadrature points of integrated gradients.

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
    vectors = floats(embedding(ops.convert_to_tensor(read.features["token_ids"])))  # (1, T, E)

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
    # The line's two ends have weight 0: only their outputs are needed.
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
    """Return the embedding (E,) by which the baseline replaces a token's embedding."""
    if baseline == "zero":
        return np.zeros(vectors.shape[-1], "float32")
    token = tokenizer.mask_token_id if baseline == "mask" else tokenizer.pad_token_id
    return floats(embedding(ops.convert_to_tensor([[token]], "int32")))[0, 0]


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

    Token ids have no gradient, unlike these vectors.
    """
    here = threading.get_ident()
    with _LOCK:
        # A quantized layer runs `quantized_call` instead of `call`.
        usual = {name: getattr(embedding, name) for name in ("call", "quantized_call")}

        def instead(name):
            def call(inputs, *args, **kwargs):
                # Further arguments mean the reverse direction.
                if args or kwargs or threading.get_ident() != here:
                    return usual[name](inputs, *args, **kwargs)
                return ops.cast(vectors, embedding.compute_dtype)

            return call

        # Set in `__dict__`, because Keras tracks assigned attributes.
        embedding.__dict__.update({name: instead(name) for name in usual})
        try:
            yield
        finally:
            for name in usual:
                del embedding.__dict__[name]


def _rollout(model, read, at):
    """Return how much of each token reaches the head's position: (T,), with sum 1."""
    inside = encoder_of(model).feature_model(output_hidden_states=False, output_attentions=True)
    maps = [floats(x)[0].mean(axis=0) for x in inside(read.features, training=False)["attentions"]]
    kind = kind_of(model)
    by_place = kind and kind.explains in AT_TOKENS
    length = len(read.tokens)
    # In causal attention, only the last token attends to all.
    is_last = encoder_of(model).is_causal or getattr(model, "pooling", None) == "last"
    place = length - 1 if is_last else 0
    if by_place:
        place = output_of(model, read, None, at).place
    if not length:
        return np.zeros(0)
    reached = np.eye(length)[place]
    for image in reversed(maps):
        # Attention and the residual connection (the identity matrix) have equal weights.
        step = image[:length, :length].astype("float64") + np.eye(length)
        reached = reached @ (step / step.sum(-1, keepdims=True))
    return reached


# === Figures ===


@style()
def attribution_bars(attributions: Attributions, top: int | None = None) -> Figure:
    """Draw each word's contribution as a bar, in the order of the text.

    Args:
        attributions: `Attributions`.
        top: number of words to draw, by absolute score; `None` draws all.

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
