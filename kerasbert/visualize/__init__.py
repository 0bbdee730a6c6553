"""Figures for notebooks and papers: attention, predictions, attributions and training curves.

    attention = kerasbert.visualize.attention(model, "The cat sat on the mat.")
    kerasbert.visualize.attention_grid(attention)                   # every layer and head
    kerasbert.visualize.alignment_map(translator.align("A fine film."))  # source and target
    kerasbert.visualize.attributions(classifier, "A fine film.")    # each word's contribution
    kerasbert.visualize.logit_lens(masked_lm, "A [MASK] film.")     # each layer's predictions
    kerasbert.visualize.entities(text, tagger.tag(text))            # highlighted
    kerasbert.visualize.answers(context, reader.answer(question, context))
    kerasbert.visualize.dependency_arcs(tree, probe.parse(tree.words))
    kerasbert.visualize.embedding_map(embedder.embed(texts), labels)
    kerasbert.visualize.training_curves(model.fit(...))

Notebooks display the results: a matplotlib `Figure` (`savefig` writes it; needs `pip install
matplotlib`) or, for highlighted texts, an `Html` (`save` writes it).
"""

from kerasbert.base import host  # noqa: F401
from kerasbert.visualize.arcs import dependency_arcs
from kerasbert.visualize.attention import (
    Attention,
    alignment_map,
    attention,
    attention_grid,
    attention_lines,
    attention_map,
)
from kerasbert.visualize.attributions import Attributions, attribution_bars, attributions
from kerasbert.visualize.calibration import label_curves, reliability_diagram
from kerasbert.visualize.logit_lens import LogitLens, logit_lens, logit_lens_grid
from kerasbert.visualize.predictions import confusion_matrix, embedding_map, masked_words
from kerasbert.visualize.spans import Html, answers, entities
from kerasbert.visualize.training import finetuning_curves, training_curves

__all__ = [
    "Attention",
    "Attributions",
    "Html",
    "LogitLens",
    "alignment_map",
    "answers",
    "attention",
    "attention_grid",
    "attention_lines",
    "attention_map",
    "attribution_bars",
    "attributions",
    "confusion_matrix",
    "dependency_arcs",
    "embedding_map",
    "entities",
    "finetuning_curves",
    "label_curves",
    "logit_lens",
    "logit_lens_grid",
    "masked_words",
    "reliability_diagram",
    "training_curves",
]
