"""Attention maps: what the heads of an encoder attend to.

L layers, N heads, T tokens.
"""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.base.errors import is_whole
from kerasbert.base.parts import encoder_of
from kerasbert.visualize.figures import close_grid, new_figure, style
from kerasbert.visualize.tokens import read_text

if TYPE_CHECKING:
    from typing import Any

    from matplotlib.figure import Figure

_COLORS = "Blues"
_MOST_INCHES = 20


class Attention(typing.NamedTuple):
    """Attention weights of an encoder over the tokens of a text.

    Attributes:
        tokens: list of T strings.
        weights: float32 (L, N, T, T). Rows are one token's attention to all tokens, with sum 1
            unless special tokens are left out.
    """

    tokens: list
    weights: np.ndarray


def attention(model: Any, text: Any, special_tokens: bool = True) -> Attention:
    """Run a model's encoder over a text and return its attention weights.

    Args:
        model: any task of `kerasbert.models` with a preprocessor.
        text: string, or a pair of strings, truncated to the preprocessor's length. A mask token in
            it counts as one token.
        special_tokens: bool. `False` leaves out special tokens such as `[CLS]` and `[SEP]`, which
            get most of the attention in many heads, without rescaling.

    Returns:
        An `Attention`. Tokens are named by their characters, with "##" if they continue a word.

    >>> from kerasbert.models import BertBackbone, BertTextEmbedder, BertTextEmbedderPreprocessor
    >>> from kerasbert.tokenizers import BertTokenizer
    >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cats", "play", "##ed"]
    >>> backbone = BertBackbone(
    ...     vocabulary_size=8, num_layers=2, num_heads=2, hidden_dim=4, intermediate_dim=4
    ... )
    >>> preprocessor = BertTextEmbedderPreprocessor(BertTokenizer(words, lowercase=True))
    >>> found = attention(BertTextEmbedder(backbone, preprocessor), "Cats played")
    >>> found.tokens, found.weights.shape
    (['[CLS]', 'Cats', 'play', '##ed', '[SEP]'], (2, 2, 5, 5))
    """
    read = read_text(model, text, "attention()")
    inside = encoder_of(model).feature_model(output_hidden_states=False, output_attentions=True)
    maps = inside(read.features, training=False)["attentions"]
    weights = np.stack([keras.ops.convert_to_numpy(keras.ops.cast(x[0], "float32")) for x in maps])
    kept = np.arange(len(read.tokens))
    if not special_tokens:
        kept = kept[~read.framing()]
    weights = weights[:, :, kept[:, None], kept]
    return Attention([read.tokens[i] for i in kept], weights)


@style()
def attention_map(attention: Attention, layer: int = -1, head: int | None = None) -> Figure:
    """Draw the attention map of one head.

    Args:
        attention: an `Attention`, or a pair of tokens and weights.
        layer: int, from 0; negative numbers count from the last.
        head: int. `None` averages all heads.

    Returns:
        A `Figure` with a row for each attending token, and a column for each attended token.

    >>> figure = attention_map((["a", "b"], np.full((1, 1, 2, 2), 0.5)), head=0)
    >>> figure.axes[0].get_title()
    'layer 0, head 0'
    """
    tokens, weights = _checked(attention)
    layer = _index(layer, len(weights), "layer")
    if head is None:
        image, title = weights[layer].mean(axis=0), f"layer {layer}, mean of heads"
    else:
        head = _index(head, weights.shape[1], "head")
        image, title = weights[layer, head], f"layer {layer}, head {head}"
    figure, axes = _drawn_map(image, tokens, tokens)
    axes.set(title=title, xlabel="attended to", ylabel="attending")
    return figure


@style()
def alignment_map(alignment: Any) -> Figure:
    """Draw the attention of a target's tokens to its source.

    Args:
        alignment: an `Alignment` of `RecurrentSeq2SeqLM.align`, or a tuple of source tokens, target
            tokens, and weights (T, S).

    Returns:
        A `Figure` with a row for each target token, and a column for each source token.

    >>> figure = alignment_map((["un", "chat"], ["a", "cat", "."], np.full((3, 2), 0.5)))
    >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
    ('source', 'target')
    """
    source, target, weights = alignment
    weights = np.asarray(weights)
    if weights.shape != (len(target), len(source)) or not weights.size:
        raise ValueError(
            f"alignment must have weights of shape ({len(target)}, {len(source)}) for its "
            f"{len(target)} target and {len(source)} source tokens, got {weights.shape}."
        )
    figure, axes = _drawn_map(weights, list(source), list(target))
    axes.set(xlabel="source", ylabel="target")
    return figure


def _drawn_map(image, columns, rows):
    """Draw attention weights (rows, columns) with their tokens; return the figure and its axes."""
    width, height = (min(max(3.0, 0.28 * len(tokens)), _MOST_INCHES) for tokens in (columns, rows))
    figure = new_figure(width + 1.6, height + 1)
    axes = figure.subplots()
    shown = axes.imshow(image, cmap=_COLORS, vmin=0, vmax=max(image.max(), 1e-9))
    figure.colorbar(shown, label="attention weight", shrink=0.7)
    inches = min(width / len(columns), height / len(rows))
    close_grid(axes, columns, rows, _font_size(inches, 10))
    return figure, axes


@style()
def attention_grid(attention: Any, layers: Any = None, heads: Any = None) -> Figure:
    """Draw a grid of attention maps, a row per layer and a column per head.

    Each map's color scale is from 0 to its largest weight.

    Args:
        attention: see `attention_map`.
        layers, heads: lists of ints; `None` draws all.

    Returns:
        A `Figure`, with the tokens at its left and bottom edges where they fit.

    >>> figure = attention_grid((["a", "b"], np.full((2, 3, 2, 2), 0.5)), heads=[0, 2])
    >>> len(figure.axes)
    4
    """
    tokens, weights = _checked(attention)
    layers = _indices(layers, len(weights), "layer")
    heads = _indices(heads, weights.shape[1], "head")
    side = min(max(1.2, 0.13 * len(tokens)), _MOST_INCHES / max(len(layers), len(heads)))
    size = _font_size(side / len(tokens), 8)
    figure = new_figure(side * len(heads) * 1.06 + 1.2, side * len(layers) * 1.06 + 1.2)
    grid = figure.subplots(len(layers), len(heads), squeeze=False)
    for row, layer in enumerate(layers):
        for column, head in enumerate(heads):
            axes = grid[row, column]
            image = weights[layer, head]
            axes.imshow(image, cmap=_COLORS, vmin=0, vmax=max(image.max(), 1e-9))
            first, last = column == 0, row == len(layers) - 1
            close_grid(axes, tokens if last else [], tokens if first else [], size)
            axes.spines[:].set(visible=True, color="0.8")
            if row == 0:
                axes.set_title(f"head {head}")
            if first:
                axes.set_ylabel(f"layer {layer}")
    return figure


@style()
def attention_lines(
    attention: Any, layer: int = -1, heads: Any = None, token: Any = None
) -> Figure:
    """Draw attention as lines from attending tokens on the left to attended tokens on the right.

    Args:
        attention: see `attention_map`.
        layer: int. See `attention_map`.
        heads: int or list of ints. Each head has its own color; `None` draws all.
        token: int or string. The only attending token to draw, by position or name in
            `attention.tokens`; `None` draws all.

    Returns:
        A `Figure`. Stronger attention is more opaque.

    >>> figure = attention_lines((["a", "b"], np.full((1, 1, 2, 2), 0.5)), token="b")
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['a', 'a', 'b', 'b']
    """
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgb

    tokens, weights = _checked(attention)
    layer = _index(layer, len(weights), "layer")
    heads = _indices([heads] if is_whole(heads) else heads, weights.shape[1], "head")
    looking = range(len(tokens))
    if token is not None:
        if isinstance(token, str):
            if token not in tokens:
                raise ValueError(f"token={token!r} is not among the tokens: {', '.join(tokens)}.")
            token = tokens.index(token)
        looking = [_index(token, len(tokens), "token")]
    height = min(max(2.0, 0.3 * len(tokens)), _MOST_INCHES)
    figure = new_figure(6, height + 0.8)
    axes = figure.subplots()
    size = _font_size(height / len(tokens), 11)
    for place, name in enumerate(tokens):
        weight = "bold" if len(looking) == 1 and place == looking[0] else "normal"
        axes.text(-0.02, place, name, ha="right", va="center", fontsize=size, weight=weight)
        axes.text(1.02, place, name, ha="left", va="center", fontsize=size)
    # Heads' lines end at different heights, so that none hides another.
    ends = np.linspace(-0.35, 0.35, len(heads) + 2)[1:-1]
    width = np.clip(50 * height / len(tokens) / len(heads), 0.8, 2)
    for number, (head, end) in enumerate(zip(heads, ends)):
        color = f"C{number % 10}"
        pairs = [(i, j) for i in looking for j in range(len(tokens))]
        colors = [(*to_rgb(color), np.clip(weights[layer, head, i, j], 0, 1)) for i, j in pairs]
        lines = [((0, i), (1, j + end)) for i, j in pairs]
        axes.add_collection(LineCollection(lines, colors=colors, linewidths=width))
        axes.plot([], [], color=color, linewidth=2, label=f"{head}")
    axes.set(xlim=(-0.45, 1.45), ylim=(len(tokens) - 0.5, -0.5), title=f"layer {layer}")
    axes.set_axis_off()
    figure.legend(
        title="head" if len(heads) == 1 else "heads",
        loc="outside lower center",
        ncols=min(len(heads), 8),
        frameon=False,
        handlelength=1,
    )
    return figure


def _checked(attention):
    """Return tokens and weights with matching shapes."""
    tokens, weights = attention
    tokens, weights = list(tokens), np.asarray(weights)
    if weights.ndim != 4 or weights.shape[2:] != (len(tokens), len(tokens)) or not weights.size:
        raise ValueError(
            f"attention must have weights of shape (layers, heads, {len(tokens)}, {len(tokens)}) "
            f"for its {len(tokens)} tokens, got {weights.shape}."
        )
    return tokens, weights


def _index(value, count, what):
    if not is_whole(value):
        raise ValueError(f"{what}={value!r} must be a whole number.")
    if not -count <= value < count:
        raise ValueError(f"{what}={value} is out of range; the {count} are numbered from 0.")
    return int(value) % count


def _indices(values, count, what):
    if values is None:
        return list(range(count))
    found = [_index(value, count, what) for value in values]
    if not found:
        raise ValueError(f"{what}s=[] leaves nothing to draw; use None for all.")
    return found


def _font_size(inches, most):
    """Return the font size in points for a line spacing in inches, or 0."""
    points = 72 * inches * 0.75
    return min(points, most) if points >= 4 else 0
