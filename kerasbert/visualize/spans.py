"""Highlighted text as HTML: entities, and answers in their context.

Positions are counted in characters (code points) of the text, as by `tag` and `answer`.
"""

from __future__ import annotations

import html
import itertools
import os
from typing import TYPE_CHECKING

from kerasbert.base.files import write_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from kerasbert.base.aliases import AnyPath, Texts

# Light enough for black text, and easy to tell apart.
_COLORS = (
    "#ffd6a5",
    "#a0e8af",
    "#b4c7ff",
    "#ffb3c1",
    "#fdf08a",
    "#d0b8f5",
    "#9be7f0",
    "#e2c9a8",
    "#c9e265",
    "#f3b0e3",
)
# Each paragraph has its own text direction. Text is always black on white.
BOX = (
    "white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:plaintext;text-align:start;"
    "line-height:1.9;padding:0.6em 0.8em;background:#fff;color:#111;"
)
_MARK = "color:#111;padding:0.15em 0;border-radius:0.25em;"
_NAME = (
    "font-size:0.65em;font-weight:bold;letter-spacing:0.03em;margin-inline:0.4em 0.2em;"
    "padding:0.1em 0.4em;border-radius:0.3em;background:#fff;color:#333;border:1px solid "
)


class Html:
    """HTML that a notebook displays. `str` returns the HTML, and `save` writes it as a page."""

    def __init__(self, content: str) -> None:
        self.content = content

    def _repr_html_(self):
        return self.content

    def __str__(self):
        return self.content

    def __repr__(self):
        return f"<Html of {len(self.content)} characters; show it in a notebook, or save() it>"

    def save(self, path: AnyPath) -> None:
        """Write a standalone HTML page.

        Args:
            path: path of the file.
        """
        write_text(
            os.fspath(path),
            f'<!DOCTYPE html>\n<html><meta charset="utf-8"><body>{self.content}</body></html>\n',
        )


def entities(
    text: Texts, entities: Sequence[dict[str, Any]], colors: Mapping[str, Any] | None = None
) -> Html:
    """Highlight the entities of a text, each with its label.

    Args:
        text: a string, or a list of words.
        entities: the result of `BertTokenClassifier.tag`: dicts of `start`, `end`, `label`, and
            optionally `score`, which is shown as a tooltip; or tuples `(start, end, label)`. The
            first of overlapping entities sets the color; others are underlined.
        colors: dict of some or all labels to CSS colors.

    Returns:
        An `Html`.

    >>> str(entities("Ann <3 Rome", [(0, 3, "PER")])).count("&lt;3")
    1
    """
    spans = [_span(entity) for entity in entities]
    if not isinstance(text, str):
        words = list(text)
        starts = list(itertools.accumulate((len(word) + 1 for word in words), initial=0))
        for span in spans:
            _check(span, len(words), "words")
            last = span["end"] - 1
            span["start"], span["end"] = starts[span["start"]], starts[last] + len(words[last])
        text = " ".join(words)
    labels = list(dict.fromkeys(span["label"] for span in spans))
    colors = {**dict(zip(labels, itertools.cycle(_COLORS))), **(colors or {})}
    for span in spans:
        span["color"] = colors[span["label"]]
        span["hint"] = span["label"]
        if span.get("score") is not None:
            span["hint"] += f" {span['score']:.3f}"
    return Html(f'<div dir="auto" style="{BOX}">{marked(text, spans)}</div>')


def answers(context: str, answers: Sequence[dict[str, Any]], question: str | None = None) -> Html:
    """Highlight answers in their context.

    Args:
        context: string.
        answers: the result of `BertQuestionAnswering.answer`: dicts of `start`, `end` and `score`,
            best first, where `start=None` means no answer.
        question: string. It is shown above the context.

    Returns:
        An `Html`. Less probable answers are lighter.

    >>> found = [{"answer": "noon", "start": 9, "end": 13, "score": 0.9, "null_score": -5.0}]
    >>> "noon</mark>" in str(answers("Lunch at noon.", found, "When?"))
    True
    """
    spans, nothing = [], ""
    best = max((answer["score"] for answer in answers), default=1) or 1
    for rank, answer in enumerate(answers, start=1):
        name = f"{rank} · {answer['score']:.2f}" if len(answers) > 1 else f"{answer['score']:.2f}"
        if answer["start"] is None:
            nothing = f'<div style="color:#a00">No answer ({html.escape(name)})</div>'
            continue
        share = 0.2 + 0.8 * answer["score"] / best
        color = f"rgb({_mix(255, 255, share)},{_mix(255, 200, share)},{_mix(255, 60, share)})"
        spans.append(
            {
                "start": answer["start"],
                "end": answer["end"],
                "label": name,
                "color": color,
                "hint": f"score {answer['score']:.4f}",
            }
        )
    if not answers:
        nothing = '<div style="color:#a00">No answer</div>'
    title = f'<div dir="auto"><b>{html.escape(question)}</b></div>' if question else ""
    body = f'<div dir="auto">{marked(context, spans)}</div>'
    return Html(f'<div style="{BOX}">{title}{nothing}{body}</div>')


def marked(text, spans):
    """Return a text as HTML with its spans: dicts of `start`, `end`, `label`, `hint`, `color`."""
    for span in spans:
        _check(span, len(text), "characters")
    edges = sorted({0, len(text), *(span[side] for span in spans for side in ("start", "end"))})
    parts = []
    for begin, end in zip(edges, edges[1:]):
        over = [span for span in spans if span["start"] <= begin and end <= span["end"]]
        piece = html.escape(text[begin:end])
        if over:
            look = f"background:{over[0]['color']};{_MARK}"
            if len(over) > 1:  # Each further span is an underline.
                lines = (f"0 {3 * i}px 0 {span['color']}" for i, span in enumerate(over[1:], 1))
                look += f"box-shadow:{','.join(lines)};"
            hint = html.escape(", ".join(span["hint"] for span in over))
            piece = f'<mark style="{html.escape(look)}" title="{hint}">{piece}</mark>'
        parts.append(piece)
        for span in spans:
            if span["end"] == end and span["label"]:
                # `bdi` isolates the label's text direction.
                look = html.escape(_NAME + span["color"])
                parts.append(
                    f'<bdi style="{look};user-select:none">{html.escape(span["label"])}</bdi>'
                )
    return "".join(parts)


def _span(entity):
    is_dict = isinstance(entity, dict)
    span = entity if is_dict else dict(zip(("start", "end", "label"), entity, strict=True))
    return span | {"label": str(span["label"])}


def _check(span, length, unit):
    start, end = span["start"], span["end"]
    if not 0 <= start < end <= length:
        raise ValueError(
            f"The span {start}:{end} ({span['label']!r}) is outside the text of {length} {unit}; "
            "pass the text that it was found in."
        )


def _mix(start, end, share):
    return round(start + (end - start) * share)
