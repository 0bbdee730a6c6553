"""What notebooks show: summaries of objects as HTML, and a progress bar that replaces itself."""

import html
import sys

# Longer values are cut, because a summary must stay short, and texts from files may be of any size.
MOST_CHARACTERS, MOST_ROWS = 300, 12
_CELL = "text-align:start;vertical-align:top;white-space:normal;overflow-wrap:anywhere"
_NAME = "text-align:start;vertical-align:top;white-space:nowrap"


def summary(title, facts, *tables):
    """Format an object as HTML, for its method `_repr_html_`.

    All texts are escaped, and long values and tables are cut.

    Args:
        title: string.
        facts: dict of name to value; values that are `None` or empty are left out. A value that is
            a list is shown with commas.
        *tables: lists of rows, which are lists of cells; the first row is the header.

    >>> summary("A <b>", {"labels": ["x", "<y>"], "empty": None}).count("&lt;")
    2
    """
    rows = [
        f'<tr><th style="{_NAME}">{_shown(name)}</th><td style="{_CELL}">{_shown(value)}</td></tr>'
        for name, value in facts.items()
        if value is not None and value != "" and value != []
    ]
    parts = [f"<div><strong>{_shown(title)}</strong></div>", f"<table>{''.join(rows)}</table>"]
    for header, *body in tables:
        lines = [_row(header, "th"), *(_row(cells, "td") for cells in body[:MOST_ROWS])]
        parts.append(f"<table>{''.join(lines)}</table>")
        if len(body) > MOST_ROWS:
            parts.append(f"<div>{len(body) - MOST_ROWS:,} more rows</div>")
    return f"<div>{''.join(parts)}</div>"


def _row(cells, tag):
    shown = (f'<{tag} style="{_CELL}">{_shown(cell)}</{tag}>' for cell in cells)
    return f"<tr>{''.join(shown)}</tr>"


def _shown(value):
    """Return a value as escaped text that cannot change the direction of the text around it."""
    if isinstance(value, (list, tuple)):
        more = [f"... ({len(value):,} in total)"] if len(value) > MOST_ROWS else []
        return ", ".join(map(_shown, [*value[:MOST_ROWS], *more]))
    if isinstance(value, bool) or value is None:
        text = "" if value is None else "yes" if value else "no"
    elif isinstance(value, float):
        text = f"{value:.4g}"
    else:
        text = f"{value:,}" if isinstance(value, int) else str(value)
    if len(text) > MOST_CHARACTERS:
        text = text[: MOST_CHARACTERS - 3] + "..."
    return f"<bdi>{html.escape(text)}</bdi>"


def in_notebook():
    """Return whether the output of this process goes to a Jupyter notebook."""
    return type(sys.stdout).__module__.startswith("ipykernel")


class Bar:
    """Progress bar of a notebook. Each update replaces the last one, also in a saved notebook."""

    def __init__(self):
        self._handle = None

    def show(self, done, total, text=""):
        """Show that `done` of `total` steps are done."""
        from IPython.display import display

        line = f"{done:,}/{total:,} {text}".strip()
        bar = f'<progress value="{done}" max="{total}"></progress>'
        content = {"text/plain": line, "text/html": f"{bar} {html.escape(line)}"}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)
