"""Logit lens: the tokens that each layer of a masked language model would predict.

L layers, T tokens, K best tokens, V tokens in the vocabulary, D width.
"""

from __future__ import annotations

import dataclasses
import html
from typing import TYPE_CHECKING

import numpy as np
from keras import ops

from kerasbert.base.errors import check_whole
from kerasbert.base.parts import encoder_of
from kerasbert.layers.heads import MaskedLMHead, WordWeights
from kerasbert.visualize.figures import new_figure, style
from kerasbert.visualize.tokens import read_text

if TYPE_CHECKING:
    from typing import Any

    from matplotlib.figure import Figure

# Maximum positions per batch, to limit the memory for logits.
_AT_ONCE = 128


@dataclasses.dataclass
class LogitLens:
    """The tokens that each layer predicts at each position of a text.

    A notebook displays a table with a row per layer.

    Attributes:
        tokens: list of T strings.
        best: list (L + 1) of lists (T) of K strings, the most probable first, for embeddings and
            layers.
        token_ids: int array (L + 1, T, K).
        scores: float array (L + 1, T, K). Probabilities.
    """

    tokens: list
    best: list
    token_ids: np.ndarray
    scores: np.ndarray

    def _repr_html_(self):
        def cell(name, score):
            return (
                f'<td title="{score:.4f}" style="text-align:center;color:#111;'
                f'background:rgba(47,111,208,{0.6 * score:.3f})">{html.escape(name)}</td>'
            )

        head = "".join(f"<th>{html.escape(token)}</th>" for token in self.tokens)
        rows = [
            f"<tr><th>{_layer(layer)}</th>"
            + "".join(cell(names[0], row[0]) for names, row in zip(self.best[layer], scores))
            + "</tr>"
            for layer, scores in reversed(list(enumerate(self.scores)))
        ]
        look = "background:#fff;color:#111;font-size:0.9em"
        return f'<table style="{look}"><tr><th></th>{head}</tr>{"".join(rows)}</table>'


def _layer(number):
    return "embeddings" if number == 0 else f"layer {number}"


def logit_lens(model: Any, text: str, top_k: int = 5, places: str | None = None) -> LogitLens:
    """Apply a masked language model's head to the output of every layer.

    Any final norm (`norm_first`, as in ModernBERT) is applied before the head, so that the last
    layer gives the model's predictions.

    Args:
        model: a `BertMaskedLM` or `BertPretrainer` with a preprocessor.
        text: string, with or without mask tokens, or a pair of strings.
        top_k: int. K.
        places: "masks" for mask tokens only; `None` for all tokens.

    Returns:
        A `LogitLens`.

    Raises:
        ValueError: if the model has no masked language modeling head, or the text no mask token for
            `places="masks"`.

    >>> from kerasbert.models import BertBackbone, BertMaskedLM, BertMaskedLMPreprocessor
    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cats", "play", "##ed"]
    >>> backbone = BertBackbone(
    ...     vocabulary_size=8, num_layers=2, num_heads=2, hidden_dim=4, intermediate_dim=4
    ... )
    >>> preprocessor = BertMaskedLMPreprocessor(BertTokenizer(tokens, lowercase=True))
    >>> found = logit_lens(BertMaskedLM(backbone, preprocessor), "Cats [MASK]", top_k=3)
    >>> found.tokens, found.scores.shape
    (['[CLS]', 'Cats', '[MASK]', '[SEP]'], (3, 4, 3))

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
    """
    head = getattr(model, "mlm_head", None)
    if not isinstance(head, MaskedLMHead) or isinstance(head, WordWeights):
        raise ValueError(
            f"logit_lens() needs the head of a masked language model, and a "
            f"{type(model).__name__} has none; load a BertMaskedLM."
        )
    check_whole("top_k", top_k)
    read = read_text(model, text, "logit_lens()")
    tokenizer, encoder = model.preprocessor.tokenizer, encoder_of(model)
    kept = np.arange(len(read.tokens))
    if places == "masks":
        kept = np.flatnonzero(read.ids == tokenizer.mask_token_id)
        if not len(kept):
            raise ValueError(
                f"text has no {tokenizer.mask_token}; use places=None to read all tokens."
            )
    elif places is not None:
        raise ValueError(f"places={places!r} is unknown; use 'masks' or None.")
    states = encoder.feature_model()(read.features, training=False)["hidden_states"]
    norm = encoder.final_layer_norm
    ids, scores = [], []
    for number, x in enumerate(states):
        # The last layer's states are already normalized.
        if norm is not None and number < len(states) - 1:
            x = norm(x)
        parts = [kept[i : i + _AT_ONCE] for i in range(0, len(kept), _AT_ONCE)]
        best = [_best(head, x, part, top_k, tokenizer.vocabulary_size()) for part in parts]
        for found, column in zip((ids, scores), zip(*best)):
            found.append(np.concatenate(column))
    ids = np.stack(ids)
    names = [[[tokenizer.id_to_token(id) for id in row] for row in layer] for layer in ids.tolist()]
    return LogitLens([read.tokens[i] for i in kept], names, ids, np.stack(scores))


def _best(head, x, places, count, vocabulary_size):
    """Return the ids (P, K) and probabilities of the best tokens at P positions of (1, T, D)."""
    logits = head(x, mask_positions=ops.convert_to_tensor(places[None], "int32"))[0]
    # The embedding may have more rows than there are tokens; these are left out.
    logits = ops.convert_to_numpy(logits).astype("float64")[:, :vocabulary_size]
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    odds /= odds.sum(-1, keepdims=True)
    best = np.argsort(-odds, axis=-1, kind="stable")[:, :count]
    return best, np.take_along_axis(odds, best, axis=-1)


@style()
def logit_lens_grid(lens: LogitLens) -> Figure:
    """Draw a `LogitLens` with a row per layer, the last at the top, and a column per token.

    Args:
        lens: a `LogitLens`.

    Returns:
        A `Figure`. Tokens in darker cells are more probable.

    >>> ids, scores = np.zeros((2, 1, 1), int), np.ones((2, 1, 1))
    >>> lens = LogitLens(["[MASK]"], [[["a"]], [["b"]]], ids, scores)
    >>> [text.get_text() for text in logit_lens_grid(lens).axes[0].texts]
    ['a', 'b']
    """
    scores = lens.scores[:, :, 0]
    layers, count = scores.shape
    figure = new_figure(min(1.6 + 0.9 * count, 40), 1 + 0.34 * layers)
    axes = figure.subplots()
    axes.imshow(scores, cmap="Blues", vmin=0, vmax=1.4, aspect="auto", origin="lower")
    for layer in range(layers):
        for place in range(count):
            name = lens.best[layer][place][0]
            axes.text(place, layer, name, ha="center", va="center", fontsize=9)
    axes.set_xticks(range(count), lens.tokens, rotation=90 if count > 12 else 0)
    axes.set_yticks(range(layers), [_layer(layer) for layer in range(layers)])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure
