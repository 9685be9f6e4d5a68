"""Pictures of explanations, as PNG, SVG and PDF by matplotlib (the extra `plots`), or as a page.

A page holds words as text, for which matplotlib is not needed, and everything else as PNGs.
"""

import base64
import io
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from compiler.errors import InvalidOptionError
from compiler.explanations.panels import Bars, Flow, Heat, Panel, Words

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

PAGE, PICTURES = ".html", (".png", ".svg", ".pdf")
MOST_PANELS, MOST_BARS = 12, 40
RAISES, LOWERS = "#d6604d", "#4393c3"  # red and blue that most colour-blind people tell apart
_WIDTH_IN, _MOST_IN, _DPI, _POINTS = 8.0, 200, 150, 72  # points of an inch
_BAR_IN, _TITLE_IN, _HEAT_IN, _LINE_IN = 0.26, 0.95, 3.2, 0.3
_WORD_PT, _GAP_PT, _MARGIN_PT = 10, 7, 14
_BRIGHT = 99.5  # percentile of |attribution| that has the full colour: single pixels would take it all
_DARKEST = 0.8  # of a word's shade, so that it can be read


def fitting(panels: Sequence[Panel], kind: str, most: int = MOST_PANELS) -> list[Panel]:
    """Return the first panels, as many as a file of this kind holds.

    Raises:
        InvalidOptionError: not even one; matplotlib is needed and not installed.
    """
    if kind == PAGE:
        return list(panels[:most])
    matplotlib_or_advice()
    heights = np.cumsum([_height(panel) for panel in panels[:most]])
    count = int((heights <= _MOST_IN).sum())
    if not count:
        raise InvalidOptionError(f"the words of a row fill {heights[0]:.0f} inches: draw them to a .html.")
    return list(panels[:count])


def drawing(panels: Sequence[Panel], kind: str) -> bytes:
    """Return the content of a file.

    Raises:
        InvalidOptionError: matplotlib is needed and not installed.
    """
    return _page(panels) if kind == PAGE else picture(panels, kind.removeprefix("."))


# -- pictures ------------------------------------------------------------------------------------------


def matplotlib_or_advice() -> Any:
    """Return matplotlib; raise InvalidOptionError where it is not installed."""
    try:
        import_module("matplotlib.figure")
    except ModuleNotFoundError as error:
        raise InvalidOptionError(
            "no plots: matplotlib is not installed. pip install 'rationale[plots]'"
        ) from error
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
        places = figure.subfigures(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for panel, place in zip(panels, places, strict=True):
            _DRAW[type(panel)](panel, place)
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


def _bars(panel: Bars, place: "SubFigure") -> None:
    axes = place.subplots()
    y, values = np.arange(len(panel.values)), panel.values
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
    axes.bar_label(ends, [f"{value:+.3g}" for value in values], padding=3, fontsize="x-small")
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


def _flow(panel: Flow, place: "SubFigure") -> None:
    """Draw what raises to the right, what lowers to the left, and a mark at the sum, from the inputs down."""
    axes = place.subplots()
    y = np.arange(len(panel.labels))
    axes.barh(y, panel.raising, color=RAISES, label="raises")
    axes.barh(y, panel.lowering, color=LOWERS, label="lowers")
    axes.plot(panel.raising + panel.lowering, y, "D", color="black", markersize=3.5, label="sum")
    axes.axvline(panel.due, color="0.3", linewidth=0.8, linestyle=":", label="explained less base value")
    axes.axvline(0, color="0.3", linewidth=0.8)
    place.legend(loc="outside lower center", ncols=4, fontsize="x-small", frameon=False)
    axes.set_yticks(y, panel.labels, fontsize="small")
    axes.set_ylim(len(y) - 0.5, -0.5)
    axes.tick_params(axis="x", labelsize="small")
    axes.set_xlabel("attribution", fontsize="small")
    axes.set_title(panel.title, fontsize="medium", loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _heat(panel: Heat, place: "SubFigure") -> None:
    """Draw the picture, and the attributions over it, paler where they are small."""
    limit = float(np.percentile(np.abs(panel.values), _BRIGHT)) or float(np.abs(panel.values).max()) or 1.0
    shape = panel.values.shape
    if panel.picture is None:
        axes, over = None, place.subplots()
    else:
        axes, over = place.subplots(1, 2)
        axes.imshow(panel.picture, cmap="gray", vmin=0, vmax=1, aspect=_aspect(shape))
        over.imshow(panel.picture, cmap="gray", vmin=0, vmax=1, alpha=0.4, aspect=_aspect(shape))
    opacity = np.clip(np.abs(panel.values) / limit, 0, 1) if panel.picture is not None else None
    image = over.imshow(
        panel.values, cmap="RdBu_r", vmin=-limit, vmax=limit, alpha=opacity, aspect=_aspect(shape)
    )
    bar = place.colorbar(_opaque(image), ax=over, shrink=0.8)
    bar.ax.tick_params(labelsize="x-small")
    for each in filter(None, (axes, over)):
        each.set_xticks([])
        each.set_yticks([])
    place.suptitle(panel.title, fontsize="medium", x=0.02, ha="left")


def _aspect(shape: tuple[int, ...]) -> Literal["equal", "auto"]:
    """Return the aspect: pixels are square, but for pictures that would be lines."""
    return "equal" if max(shape) <= 4 * min(shape) else "auto"


def _opaque(image: Any) -> Any:
    """Return a colour bar's scale without the picture's opacities."""
    from matplotlib.cm import ScalarMappable

    return ScalarMappable(norm=image.norm, cmap=image.cmap)


def _words(panel: Words, place: "SubFigure") -> None:
    axes = place.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, _WIDTH_IN * _POINTS)
    height = _HEIGHTS[Words](panel) * _POINTS
    axes.set_ylim(height, 0)
    axes.text(_MARGIN_PT, 0.25 * _POINTS, f"{panel.title}  ({_scale(panel)})", fontsize="medium", va="center")
    for (x, line), word, shade in zip(_places(panel), panel.words, _shades(panel.values), strict=True):
        y = (0.65 + line * _LINE_IN) * _POINTS
        box = {"facecolor": shade, "edgecolor": "none", "boxstyle": "square,pad=0.2"}
        axes.text(x, y, word.text, fontsize=_WORD_PT, va="center", bbox=box)


def _places(panel: Words) -> list[tuple[float, int]]:
    """Return where each word begins: points from the left, and its line."""
    places, x, line = [], float(_MARGIN_PT), 0
    for word in panel.words:
        width = _width(word.text)
        x += (_GAP_PT / 2 if word.joined else _GAP_PT) * (x > _MARGIN_PT)
        if x + width > _WIDTH_IN * _POINTS - _MARGIN_PT and x > _MARGIN_PT:
            x, line = float(_MARGIN_PT), line + 1
        places.append((x, line))
        x += width
    return places


@lru_cache(maxsize=1 << 16)
def _width(text: str) -> float:
    """Return the width in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    return float(text_to_path.get_text_width_height_descent(text, FontProperties(size=_WORD_PT), False)[0])


def _lines_of(panel: Words) -> int:
    return max((line for _, line in _places(panel)), default=0) + 1


def _scale(panel: Words) -> str:
    return f"red raises, blue lowers; full colour {np.abs(panel.values).max(initial=0):.2g}"


def _shades(values: np.ndarray) -> list[str]:
    """Return colours from white to that of the sign."""
    largest = float(np.abs(values).max(initial=0)) or 1.0
    return [_blend(RAISES if v >= 0 else LOWERS, _DARKEST * abs(v) / largest) for v in values]


def _blend(colour: str, share: float) -> str:
    """Return a share of a colour on white."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 + (part - 255) * share):02x}" for part in parts)


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


# -- pages ---------------------------------------------------------------------------------------------

_HEAD = """<!doctype html>
<html><head><meta charset="utf-8"><title>Explanations</title><style>
body { font: 16px/2 sans-serif; max-width: 50em; margin: 2em auto; color: #111; background: #fff }
h2 { font-size: 1em; margin: 1.5em 0 0 } h2 small { color: #555; font-weight: normal }
span { padding: .15em .25em; border-radius: .2em } img { max-width: 100% }
</style></head><body>
"""


def _page(panels: Sequence[Panel]) -> bytes:
    parts = (_text(panel) if isinstance(panel, Words) else _embedded(panel) for panel in panels)
    return "\n".join([_HEAD, *parts, "</body></html>\n"]).encode()


def _text(panel: Words) -> str:
    words = (
        " " * (not word.joined)
        + f'<span style="background:{shade}" title="{value:+.4g}">{escape(word.text)}</span>'
        for word, shade, value in zip(panel.words, _shades(panel.values), panel.values, strict=True)
    )
    return f"<h2>{escape(panel.title)} <small>{_scale(panel)}</small></h2>\n<p>{''.join(words)}</p>"


def _embedded(panel: Panel) -> str:
    data = base64.b64encode(picture([panel])).decode()
    return f'<p><img alt="{escape(panel.title)}" src="data:image/png;base64,{data}"></p>'
