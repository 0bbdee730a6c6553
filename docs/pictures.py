"""Diagrams as SVG and bar charts as HTML, in the colors and width of the page around them."""

from html import escape

_STYLE = (
    "<style>text{font:13px system-ui,sans-serif;fill:currentColor}.t{font-weight:600}"
    ".s{font-size:11px;opacity:.75}rect{fill:none;stroke:currentColor}"
    ".e{fill:#4c78a833}.a{fill:#f5851833}.f{fill:#54a24b33}.n{fill:#88888833}.h{fill:#b279a233}"
    "path{stroke:currentColor;fill:none;marker-end:url(#a)}</style>"
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


def overview(families, kinds, formats, exports):
    """Draw an overview of the package: input formats, the encoder, the heads and export formats."""
    picture = _Picture(760)
    rows = max(len(families), len(kinds), 9)
    height = 40 + 17 * rows

    def column(x, width, title, lines, kind):
        picture.parts.append(
            f'<rect class="{kind}" x="{x}" y="8" width="{width}" height="{height}" rx="8"/>'
        )
        picture.text(x + width / 2, 28, title, "t")
        gap = (height - 40) / max(len(lines), 1)
        for number, line in enumerate(lines):
            picture.text(x + width / 2, 48 + gap * (number + 0.35), line)
        picture.height = max(picture.height, height + 12)

    middle = 8 + height / 2
    column(8, 150, "from", formats, "n")
    column(190, 170, "one encoder", families, "a")
    column(392, 190, "heads", kinds, "h")
    column(614, 138, "to", exports, "f")
    for x in (158, 360, 582):
        picture.arrow((x, middle), (x + 32, middle))
    dark = "<style>svg{color:#24292f}@media(prefers-color-scheme:dark){svg{color:#e6edf3}}</style>"
    return picture.svg(
        "Text and checkpoints go through one encoder and its heads to servers", "overview", dark
    )


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
