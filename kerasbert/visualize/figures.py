"""Shared code of figures: style and fonts, lazy import of matplotlib, saving."""

import contextlib
import functools
import io
import logging
import warnings

from kerasbert.base.errors import how_to_install
from kerasbert.base.files import new_file

# CJK fonts, for characters that matplotlib's default font lacks.
_FONTS = (
    "Noto Sans CJK KR",
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Noto Sans KR",
    "Noto Sans JP",
    "Noto Sans SC",
    "Source Han Sans",
    "NanumGothic",
    "NanumBarunGothic",
    "Malgun Gothic",
    "AppleGothic",
    "Apple SD Gothic Neo",
    "IPAGothic",
    "IPAexGothic",
    "TakaoGothic",
    "Yu Gothic",
    "Meiryo",
    "MS Gothic",
    "Hiragino Sans",
    "Microsoft YaHei",
    "PingFang SC",
    "SimHei",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "Arial Unicode MS",
)
_DPI = 120


@contextlib.contextmanager
def style():
    """Context manager and decorator with installed CJK fonts, without warnings about missing
    glyphs.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    try:
        import matplotlib.figure
        from matplotlib import font_manager
    except ImportError as error:
        raise ImportError(f"Figures need matplotlib; run {how_to_install('plot')}.") from error
    there = {font.name for font in font_manager.fontManager.ttflist}
    settings = {
        "font.family": ["DejaVu Sans", *(name for name in _FONTS if name in there)],
        "axes.titlesize": "medium",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "text.parse_math": False,  # A dollar sign in a text must not start a formula.
    }
    logger = logging.getLogger("matplotlib.font_manager")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with matplotlib.rc_context(settings), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")
            warnings.filterwarnings("ignore", "Matplotlib currently does not support")
            yield
    finally:
        logger.setLevel(level)


def new_figure(width, height):
    """Create an empty figure, sized in inches; call it inside `style`."""
    return _figure_class()(figsize=(width, height), layout="constrained")


@functools.cache
def _figure_class():
    from matplotlib.figure import Figure

    class StyledFigure(Figure):
        """A figure that notebooks display, and that matplotlib always renders inside `style`."""

        def draw(self, renderer):
            with style():
                super().draw(renderer)

        def get_tightbbox(self, *args, **kwargs):
            with style():
                return super().get_tightbbox(*args, **kwargs)

        def _repr_png_(self):
            # Notebooks display matplotlib's own figures only after the import of pyplot.
            file = io.BytesIO()
            self.savefig(file, format="png", dpi=_DPI)
            return file.getvalue()

    return StyledFigure


def save(figure, path):
    """Write a figure atomically as a PNG file."""
    with new_file(path) as file:
        figure.savefig(file, format="png", dpi=_DPI)


def close_grid(axes, labels_x, labels_y, size):
    """Label an image's columns and rows in a font size (0 for none), and remove its frame."""
    labels_x, labels_y = (labels if size else [] for labels in (labels_x, labels_y))
    axes.set_xticks(range(len(labels_x)), labels_x, rotation=90, fontsize=size or None)
    axes.set_yticks(range(len(labels_y)), labels_y, fontsize=size or None)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
