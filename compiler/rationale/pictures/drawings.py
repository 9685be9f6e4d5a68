"""Pictures of explanations as PNG, SVG and PDF, by matplotlib (the extra `plots`)."""

import io
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rationale.distribution import install
from rationale.errors import InvalidOptionError
from rationale.pictures.colours import LOWERS, RAISES, blend
from rationale.pictures.numbers import signed, writer
from rationale.pictures.panels import Bars, Flow, Heat, Panel, Words
from rationale.pictures.png import full_colour

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

PICTURES = (".png", ".svg", ".pdf")
MOST_PANELS, MOST_BARS = 12, 40
_WIDTH_IN, _MOST_IN, _DPI, _POINTS = 8.0, 200, 150, 72  # points of an inch
_BAR_IN, _TITLE_IN, _HEAT_IN, _LINE_IN = 0.26, 0.95, 3.2, 0.3
_WORD_PT, _GAP_PT, _MARGIN_PT = 10, 7, 14
_DARKEST = 0.8  # of a word's shade, so that it can be read


def fitting(panels: Sequence[Panel], most: int = MOST_PANELS) -> list[Panel]:
    """Return the first panels, as many as a file holds.

    Raises:
        InvalidOptionError: not even one; matplotlib is not installed.
    """
    matplotlib_or_advice()
    heights = np.cumsum([_height(panel) for panel in panels[:most]])
    count = int((heights <= _MOST_IN).sum())
    if not count:
        raise InvalidOptionError(
            f"the words of a row fill {heights[0]:.0f} inches: draw them on a page, with --html."
        )
    return list(panels[:count])


def matplotlib_or_advice() -> Any:
    """Return matplotlib; raise InvalidOptionError where it is not installed."""
    try:
        import_module("matplotlib.figure")
    except ModuleNotFoundError as error:
        raise InvalidOptionError(f"no plots: matplotlib is not installed: {install('plots')}") from error
    return import_module("matplotlib")


def picture(panels: Sequence[Panel], kind: str = "png") -> bytes:
    """Draw panels one below the other.

    Raises:
        InvalidOptionError: matplotlib is not installed.
    """
    matplotlib = matplotlib_or_advice()
    from matplotlib.figure import Figure

    heights = [_height(panel) for panel in panels]
    with matplotlib.rc_context({"text.parse_math": False, "svg.hashsalt": "rationale"}):
        figure = Figure(figsize=(_WIDTH_IN, sum(heights)), dpi=_DPI, layout="constrained")
        parts = figure.subfigures(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for panel, part in zip(panels, parts, strict=True):
            _DRAW[type(panel)](panel, part)
        stream = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # what its font lacks is drawn as a box
            figure.savefig(stream, format=kind, metadata=_UNDATED.get(kind))
    return stream.getvalue()


def png(figure: "Figure") -> bytes:
    """Return a figure's file."""
    stream = io.BytesIO()
    save: Callable[..., None] = figure.savefig
    save(stream, format="png")
    return stream.getvalue()


_UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # the same explanation, the same file


def _bars(panel: Bars, subfigure: "SubFigure") -> None:
    axes = subfigure.subplots()
    y, values, write = np.arange(len(panel.values)), panel.values, writer(panel.values)
    axes.barh(y, values, color=np.where(values >= 0, RAISES, LOWERS), xerr=panel.errors, capsize=2)
    if panel.shapley:
        due = panel.shapley
        axes.errorbar(
            due.values,
            y,
            xerr=due.errors,
            fmt="D",
            color="black",
            markersize=3.5,
            capsize=2,
            label="Shapley value",
        )
        axes.legend(loc="best", fontsize="small", frameon=False)
    ends = axes.barh(y, _ends(panel), alpha=0)
    axes.bar_label(ends, [signed(write, value) for value in values], padding=3, fontsize="x-small")
    axes.axvline(0, color="0.3", linewidth=0.8)
    axes.set_yticks(y, panel.labels, fontsize="small")
    axes.set_ylim(len(y) - 0.5, -0.5)
    axes.margins(x=0.18)
    axes.tick_params(axis="x", labelsize="small")
    axes.set_xlabel("attribution", fontsize="small")
    axes.set_title(panel.title, fontsize="medium", loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _ends(panel: Bars) -> np.ndarray:
    """Return [F]: how far right (of a negative value, left) a bar and what is drawn over it reach."""
    sign = np.where(panel.values >= 0, 1, -1)
    drawn = [(panel.values, panel.errors)]
    drawn += [(panel.shapley.values, panel.shapley.errors)] if panel.shapley else []
    ends = [sign * values + (0 if errors is None else np.nan_to_num(errors)) for values, errors in drawn]
    return np.asarray(sign * np.max(ends, axis=0))


def _flow(panel: Flow, subfigure: "SubFigure") -> None:
    """Draw what raises to the right, what lowers to the left, and a mark at the sum, from the inputs down."""
    axes = subfigure.subplots()
    y = np.arange(len(panel.labels))
    axes.barh(y, panel.raising, color=RAISES, label="raises")
    axes.barh(y, panel.lowering, color=LOWERS, label="lowers")
    axes.plot(panel.raising + panel.lowering, y, "D", color="black", markersize=3.5, label="sum")
    axes.axvline(panel.due, color="0.3", linewidth=0.8, linestyle=":", label="explained less base value")
    axes.axvline(0, color="0.3", linewidth=0.8)
    subfigure.legend(loc="outside lower center", ncols=4, fontsize="x-small", frameon=False)
    axes.set_yticks(y, panel.labels, fontsize="small")
    axes.set_ylim(len(y) - 0.5, -0.5)
    axes.tick_params(axis="x", labelsize="small")
    axes.set_xlabel("attribution", fontsize="small")
    axes.set_title(panel.title, fontsize="medium", loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _heat(panel: Heat, subfigure: "SubFigure") -> None:
    """Draw the picture, and the attributions over it, paler where they are small."""
    limit = full_colour(panel.values)
    shape = panel.values.shape
    if panel.picture is None:
        axes, over = None, subfigure.subplots()
    else:
        axes, over = subfigure.subplots(1, 2)
        axes.imshow(panel.picture, cmap="gray", vmin=0, vmax=1, aspect=_aspect(shape))
        over.imshow(panel.picture, cmap="gray", vmin=0, vmax=1, alpha=0.4, aspect=_aspect(shape))
    opacity = np.clip(np.abs(panel.values) / limit, 0, 1) if panel.picture is not None else None
    image = over.imshow(
        panel.values, cmap="RdBu_r", vmin=-limit, vmax=limit, alpha=opacity, aspect=_aspect(shape)
    )
    bar = subfigure.colorbar(_opaque(image), ax=over, shrink=0.8)
    bar.ax.tick_params(labelsize="x-small")
    for each in filter(None, (axes, over)):
        each.set_xticks([])
        each.set_yticks([])
    subfigure.suptitle(panel.title, fontsize="medium", x=0.02, ha="left")


def _aspect(shape: tuple[int, ...]) -> Literal["equal", "auto"]:
    """Return the aspect: pixels are square, but for pictures that would be lines."""
    return "equal" if max(shape) <= 4 * min(shape) else "auto"


def _opaque(image: Any) -> Any:
    """Return a colour bar's scale without the picture's opacities."""
    from matplotlib.cm import ScalarMappable

    return ScalarMappable(norm=image.norm, cmap=image.cmap)


def _words(panel: Words, subfigure: "SubFigure") -> None:
    axes = subfigure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, _WIDTH_IN * _POINTS)
    height = _HEIGHTS[Words](panel) * _POINTS
    axes.set_ylim(height, 0)
    axes.text(_MARGIN_PT, 0.25 * _POINTS, f"{panel.title}  ({_scale(panel)})", fontsize="medium", va="center")
    for (x, line), word, shade in zip(_positions(panel), panel.words, _shades(panel.values), strict=True):
        y = (0.65 + line * _LINE_IN) * _POINTS
        box = {"facecolor": shade, "edgecolor": "none", "boxstyle": "square,pad=0.2"}
        axes.text(x, y, word.text, fontsize=_WORD_PT, va="center", bbox=box)


def _positions(panel: Words) -> list[tuple[float, int]]:
    """Return where each word begins: points from the left, and its line."""
    positions, x, line = [], float(_MARGIN_PT), 0
    for word in panel.words:
        width = _width(word.text)
        x += (_GAP_PT / 2 if word.joined else _GAP_PT) * (x > _MARGIN_PT)
        if x + width > _WIDTH_IN * _POINTS - _MARGIN_PT and x > _MARGIN_PT:
            x, line = float(_MARGIN_PT), line + 1
        positions.append((x, line))
        x += width
    return positions


@lru_cache(maxsize=1 << 16)
def _width(text: str) -> float:
    """Return the width in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    return float(text_to_path.get_text_width_height_descent(text, FontProperties(size=_WORD_PT), False)[0])


def _lines_of(panel: Words) -> int:
    return max((line for _, line in _positions(panel)), default=0) + 1


def _scale(panel: Words) -> str:
    return f"red raises, blue lowers; full colour {np.abs(panel.values).max(initial=0):.2g}"


def _shades(values: np.ndarray) -> list[str]:
    """Return colours from white to that of the sign."""
    largest = float(np.abs(values).max(initial=0)) or 1.0
    return [blend("#ffffff", RAISES if v >= 0 else LOWERS, _DARKEST * abs(v) / largest) for v in values]


_HEIGHTS: dict[type, Callable[[Any], float]] = {
    Bars: lambda panel: _TITLE_IN + _BAR_IN * len(panel.values),
    Heat: lambda _: _HEAT_IN,
    Flow: lambda panel: _TITLE_IN + _LINE_IN + _BAR_IN * len(panel.labels),
    Words: lambda panel: 0.6 + _LINE_IN * _lines_of(panel),
}


def _height(panel: Panel) -> float:
    """Return the height in inches."""
    return _HEIGHTS[type(panel)](panel)


_DRAW: dict[type, Callable[[Any, "SubFigure"], None]] = {
    Bars: _bars,
    Flow: _flow,
    Heat: _heat,
    Words: _words,
}
