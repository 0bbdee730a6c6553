"""Diagrams as SVG and bar charts as HTML, in the colors and width of the page around them."""

from html import escape

# The rules name the class of the picture, because they apply to the whole page around it.
_STYLE = (
    "<style>.drawn text{font:13px system-ui,sans-serif;fill:currentColor}"
    ".drawn .t{font-weight:600}.drawn .s{font-size:12px}"
    ".drawn rect{fill:none;stroke:currentColor}.drawn rect.e{fill:#4c78a833}"
    ".drawn rect.a{fill:#f5851833}.drawn rect.f{fill:#54a24b33}.drawn rect.n{fill:#88888833}"
    ".drawn rect.h{fill:#b279a233}.drawn path{stroke:currentColor;fill:none}"
    ".drawn>path{marker-end:url(#a)}</style>"
    '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0L8 4L0 8z" style="fill:currentColor;stroke:none"/></marker></defs>'
)


class _Picture:
    """A diagram of boxes and arrows; its height grows as parts are added."""

    def __init__(self, width):
        self.width, self.height, self.parts = width, 0, []

    def box(self, x, y, width, lines, kind="n"):
        """Draw a box with a title and smaller lines; return the y of its lower edge."""
        height = 14 + 16 * len(lines)
        self.parts.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'
        )
        for number, line in enumerate(lines):
            self.text(x + width / 2, y + 19 + 16 * number, line, "t" if number == 0 else "s")
        return y + height

    def text(self, x, y, line, kind="s", anchor="middle"):
        self.parts.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(line)}</text>'
        )
        self.height = max(self.height, y + 8)

    def arrow(self, *points):
        steps = "L".join(f"{x:g} {y:g}" for x, y in points)
        self.parts.append(f'<path d="M{steps}"/>')
        self.height = max(self.height, *(y for _, y in points))

    def frame(self, x, y, width, height):
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" '
            'stroke-dasharray="4 3"/>'
        )
        self.height = max(self.height, y + height + 2)

    def svg(self, title, kind="", extra=""):
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height:g}" '
            f'role="img" aria-label="{escape(title)}" class="drawn {kind}">{extra}{_STYLE}'
            + "".join(self.parts)
            + "</svg>\n"
        )


def encoder(name, settings):
    """Draw an encoder.

    Args:
        name: string. The family.
        settings: dict. All arguments of `BertBackbone`, including defaults.
    """
    get = settings.get
    width = get("hidden_dim", "D")
    picture = _Picture(430)
    x, w, mid = 90, 250, 215
    learned = get("position_embedding") == "learned"
    lines = [
        "embeddings",
        f"{_count(get('vocabulary_size'))} tokens x {get('embedding_dim') or width}",
    ]
    if learned:
        lines.append(f"+ {_count(get('max_sequence_length'))} positions")
    if get("num_segments"):
        lines.append(f"+ {get('num_segments')} segment{'s' if get('num_segments') > 1 else ''}")
    picture.text(mid, 14, "token_ids (B, T)" + (", segment_ids" if get("num_segments") else ""))
    y = picture.box(x, 36, w, lines, "e")
    picture.arrow((mid, 18), (mid, 36))
    for shown, line in (
        (get("embeddings_norm"), "norm"),
        (get("embedding_dim"), f"dense {get('embedding_dim')} to {width}"),
    ):
        if shown:
            picture.arrow((mid, y), (mid, y + 14))
            y = picture.box(x, y + 14, w, [line], "n")
    top = y + 16
    picture.arrow((mid, y), (mid, top + 20))
    y = top + 20
    attention = ["self-attention", f"{get('num_heads', 'N')} heads"]
    if get("is_causal"):
        attention.append("each token sees earlier tokens")
    if get("position_embedding") not in ("learned", "none"):
        attention.append(f"{get('position_embedding')} positions")
    if get("position_bias"):
        attention.append(f"position bias: {get('position_bias')}")
    if get("local_window"):
        attention.append(
            f"local window of {get('local_window')}, global in 1 of {get('global_every')} layers"
        )
    middle = get("intermediate_dim", "I")
    feed = ["gated feed-forward" if get("gated_mlp") else "feed-forward"]
    feed.append(f"{width} to {middle} to {width}, {get('activation')}")
    for lines, kind in ((attention, "a"), (feed, "f")):
        start = y
        if get("norm_first"):
            y = picture.box(x, y, w, ["norm"], "n")
            picture.arrow((mid, y), (mid, y + 14))
            y += 14
        y = picture.box(x, y, w, lines, kind)
        picture.arrow((mid, y), (mid, y + 20))
        # The residual connection.
        picture.arrow(
            (mid, start - 8), (x + w + 24, start - 8), (x + w + 24, y + 12), (mid + 4, y + 12)
        )
        picture.text(x + w + 34, y + 16, "+", "t")
        y += 20
        if not get("norm_first"):
            y = picture.box(x, y, w, ["norm"], "n")
            if kind == "a":
                picture.arrow((mid, y), (mid, y + 20))
            y += 20
    repeat = get("num_layers", "L")
    picture.frame(x - 26, top, w + 82, y - top - 8)
    picture.text(x - 34, (top + y) / 2, f"{repeat} x", "t", "end")
    if get("num_groups"):
        picture.text(x - 34, (top + y) / 2 + 16, "shared", "s", "end")
    if get("norm_first"):
        y = picture.box(x, y + 6, w, ["norm"], "n")
        picture.arrow((mid, y), (mid, y + 16))
        y += 16
    else:
        picture.arrow((mid, y - 20), (mid, y + 8))
        y += 8
    picture.text(mid, y + 14, f"sequence_output (B, T, {width})")
    if get("pooler"):
        y = y + 22
        picture.arrow((mid, y), (mid, y + 18))
        y = picture.box(x, y + 18, w, ["pooler", "first token, dense, tanh"], "h")
        picture.arrow((mid, y), (mid, y + 18))
        picture.text(mid, y + 32, f"pooled_output (B, {width})")
    return picture.svg(f"The encoder of {name}")


def chain(name, steps, narrow=False):
    """Draw boxes from left to right, or from top to bottom if `narrow`, with arrows between them.

    Args:
        name: string. What the picture shows.
        steps: list of `(title, lines, kind)`, one per box.
    """
    width = 344 if narrow else 760
    picture = _Picture(width)
    gap, y = 22, 8
    each = width - 16 if narrow else (width - 16 - gap * (len(steps) - 1)) / len(steps)
    tallest = max(len(lines) for _, lines, _ in steps)
    for number, (title, lines, kind) in enumerate(steps):
        x = 8 if narrow else 8 + (each + gap) * number
        height = 40 + 18 * (len(lines) if narrow else tallest)
        picture.parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y}" width="{each:g}" height="{height}" rx="8"/>'
        )
        picture.text(x + each / 2, y + 22, title, "t")
        for row, line in enumerate(lines):
            style = "t" if line.startswith("\u201c") else "s"
            picture.text(x + each / 2, y + 46 + 18 * row, line, style)
        picture.height = max(picture.height, y + height + 4)
        if narrow:
            if number + 1 < len(steps):
                picture.arrow((width / 2, y + height), (width / 2, y + height + gap))
            y += height + gap
        elif number + 1 < len(steps):
            picture.arrow((x + each, y + height / 2), (x + each + gap, y + height / 2))
    dark = (
        "<style>.overview{color:#24292f}"
        "@media(prefers-color-scheme:dark){.overview{color:#e6edf3}}</style>"
    )
    return picture.svg(name, "overview narrow" if narrow else "overview", dark)


def head(name, rows, output):
    """Draw a head, from the encoder's output down to its own.

    Args:
        name: string. Its class.
        rows: list of strings. Its operations, in order.
        output: string. Name and shape of its output.
    """
    picture = _Picture(176)
    picture.text(88, 16, name, "t")
    y = 22
    for row in rows:
        picture.arrow((88, y), (88, y + 16))
        y = picture.box(4, y + 16, 168, [row], "h") + 2
    picture.arrow((88, y), (88, y + 16))
    picture.text(88, y + 32, output)
    return picture.svg(f"{name}: {', '.join(rows)}; {output}", "head")


def batches(name, lengths, groups, bucket):
    """Draw the rows of batches, with the tokens of each row and its padding.

    Args:
        name: string. What the picture shows.
        lengths: ints. Tokens of each text.
        groups: list of lists of ints, the texts of each batch.
        bucket: function that maps the longest row of a batch to the length of all its rows.

    Returns:
        `(picture, share)`, the picture and the share of padding.
    """
    scale, y = 4, 6
    longest = max(bucket(max(lengths[one] for one in group)) for group in groups)
    picture = _Picture(longest * scale + 12)
    real = total = 0
    for group in groups:
        width = bucket(max(lengths[one] for one in group))
        for one in group:
            for length, kind in ((width, "n"), (lengths[one], "a")):
                picture.parts.append(
                    f'<rect class="{kind}" x="6" y="{y}" width="{length * scale}" height="10"/>'
                )
            real, total, y = real + lengths[one], total + width, y + 13
        y += 8
    picture.height = y
    return picture.svg(name), 1 - real / total


def bars(unit, rows, command=""):
    """Return a table as a bar chart.

    Args:
        rows: list of `(name, {series: number})`.
    """
    largest = max(value for _, series in rows for value in series.values())
    names = list(dict.fromkeys(key for _, series in rows for key in series))
    out = ['<figure class="bars">']
    keys = "".join(f'<span class="key s{n}">{escape(name)}</span>' for n, name in enumerate(names))
    out.append(f"<figcaption>{escape(unit)}{keys if len(names) > 1 else ''}</figcaption>")
    for name, series in rows:
        out.append(f'<div class="row"><span>{escape(name)}</span>')
        for key, value in series.items():
            own = " own" if "kerasbert" in name + key else ""
            shown = f"{value:,.0f}" if value >= 1000 else f"{value:g}"
            out.append(
                f'<div class="bar s{names.index(key)}{own}">'
                f'<i style="width:{80 * value / largest:.1f}%"></i><b>{shown}</b></div>'
            )
        out.append("</div>")
    if command:
        out.append(f"<code>{escape(command)}</code>")
    return "".join(out) + "</figure>\n"


def _count(value):
    return f"{value:,}" if isinstance(value, int) else "V"
