"""Panels as HTML and SVG: a row per bar, with its name and number as text, which wraps and can be read out.

Lengths are shares of the width, so pictures fit a telephone and paper. Lines and words take the colour of the
surrounding text, light or dark.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from rationale.pictures.colours import HIGH, LOW, LOWERS, RAISES, blend
from rationale.pictures.markup import SHADES, element
from rationale.pictures.numbers import format_effect, number, score_text, writer
from rationale.pictures.overview import Overview
from rationale.pictures.panels import Bars, Heat, LayerFlow, Panel, Words
from rationale.pictures.png import data_uri, full_colour, grey, heat_map, resize_picture
from rationale.schema.manifest import EmbeddedProfile

_BAR, _SWARM, _CHART = 22, 46, 240  # heights in pixels: a bar's row, a swarm's row, a chart
_THICK, _DOT = 12, 4.8
_GREY = "#808080"
_LINES = (LOWERS, HIGH, LOW, RAISES)
_MARGIN = 2  # percent of the width, left and right
_COLUMNS, _LEVELS = 80, 10  # columns of dots, and colours from low to high
_MOST_WORDS = 4_000
_LISTED = 20  # tokens in the list of numbers
_POINTS = ", in percentage points"
_NEGLIGIBLE = 1e-3  # share of the width; a smaller gap gets no bar


def figures(drawn: Iterable[Panel | Overview]) -> list[Element]:
    """Return the figures of all panels."""
    return [figure for panel in drawn for figure in _DRAW[type(panel)](panel)]


@dataclass(frozen=True)
class _WidthScale:
    """A scale that maps numbers to percent of the width."""

    low: float
    high: float

    @classmethod
    def over(cls, *values: np.ndarray | float | None) -> "_WidthScale":
        """Return a scale that holds all finite values."""
        every = np.concatenate([np.ravel(v) for v in values if v is not None]).astype(np.float64)
        every = every[np.isfinite(every)]
        low, high = (float(every.min()), float(every.max())) if len(every) else (0.0, 0.0)
        return cls(low, high) if high > low else cls(low - 0.5, high + 0.5)

    def percent(self, value: float) -> float:
        """Return the position of a number; the left edge for NaN and infinity."""
        if not np.isfinite(value):
            return float(_MARGIN)
        share = (np.clip(value, self.low, self.high) - self.low) / (self.high - self.low)
        return round(float(_MARGIN + (100 - 2 * _MARGIN) * share), 2)


def _figure(title: str, about: str, *content: Element) -> Element:
    return element("figure", element("figcaption", f"{title} ", element("small", about)), *content)


def _row(
    name: str, number: str, drawn: Sequence[Element], *, end: bool = False, height: int = _BAR
) -> Element:
    """Return a row; screen readers skip its picture, which repeats the number."""
    return element(
        "li",
        element("span", name, class_="name", dir="auto"),
        element("span", number, class_="number"),
        element("svg", *drawn, width="100%", height=height, aria_hidden="true", focusable="false"),
        **({"class_": "end"} if end else {}),
    )


def _bar(scale: _WidthScale, start: float, stop: float, colour: str) -> Element:
    start_percent, end_percent = sorted((scale.percent(start), scale.percent(stop)))
    top = (_BAR - _THICK) / 2
    width = f"{max(round(end_percent - start_percent, 2), 0.3)}%"
    return element("rect", x=f"{start_percent}%", y=top, width=width, height=_THICK, rx=1.5, fill=colour)


def _line(x: float, top: float, bottom: float, **more: object) -> Element:
    return element(
        "line", x1=f"{x}%", x2=f"{x}%", y1=top, y2=bottom, stroke="currentColor", stroke_opacity=0.5, **more
    )


# -- bars ----------------------------------------------------------------------------------------------


def _bars(panel: Bars) -> list[Element]:
    rows = _waterfall(panel) if panel.base is not None and panel.score is not None else _from_zero(panel)
    shapley = "; dots: Shapley values" * (panel.shapley is not None)
    errors = "; lines: one standard error" * (panel.errors is not None)
    about = f"red raises, blue lowers{_POINTS * panel.is_share}{errors}{shapley}"
    return [_figure(panel.title, about, element("ul", *rows))]


def _waterfall(panel: Bars) -> list[Element]:
    """Draw each bar where the one before ends, from the base value down to the score."""
    base, score = float(panel.base or 0), float(panel.score or 0)
    ends = base + np.cumsum(np.nan_to_num(panel.values.astype(np.float64)))
    starts = np.append(base, ends[:-1])
    spread = 0.0 if panel.errors is None else np.nan_to_num(panel.errors)
    scale = _WidthScale.over(starts, ends + spread, ends - spread, score)
    write, mark = writer(panel.values, (base, score), is_share=panel.is_share), "%" * panel.is_share
    rows = [
        _row(
            "base value",
            write(base) + mark,
            [_line(scale.percent(base), _BAR / 2, _BAR), _dot(scale, base)],
            end=True,
        )
    ]
    for i, (label, value) in enumerate(zip(panel.labels, panel.values, strict=True)):
        drawn = [
            _line(scale.percent(starts[i]), 0, _BAR / 2),
            _line(scale.percent(ends[i]), _BAR / 2, _BAR),
            _bar(scale, starts[i], ends[i], RAISES if value >= 0 else LOWERS),
            *_extras(panel, scale, i, starts[i], ends[i]),
        ]
        rows.append(_row(label, _signed(panel, i, write), drawn))
    last = float(ends[-1]) if len(ends) else base
    gap = score - last
    if abs(gap) > _NEGLIGIBLE * (scale.high - scale.low):
        drawn = [_line(scale.percent(last), 0, _BAR / 2), _line(scale.percent(score), _BAR / 2, _BAR)]
        rows.append(
            _row(
                "not explained (completeness gap)",
                format_effect(number, gap * (100 if panel.is_share else 1)),
                [*drawn, _bar(scale, last, score, _GREY)],
            )
        )
    rows.append(
        _row(
            panel.total,
            write(score) + mark,
            [_line(scale.percent(score), 0, _BAR / 2), _dot(scale, score)],
            end=True,
        )
    )
    return rows


def _from_zero(panel: Bars) -> list[Element]:
    spread = 0.0 if panel.errors is None else np.nan_to_num(panel.errors)
    shapley_values = None if panel.shapley is None else panel.shapley.values
    scale = _WidthScale.over(0.0, panel.values + spread, panel.values - spread, shapley_values)
    write = writer(panel.values)
    return [
        _row(
            label,
            _signed(panel, i, write),
            [
                _line(scale.percent(0), 0, _BAR),
                _bar(scale, 0, value, RAISES if value >= 0 else LOWERS),
                *_extras(panel, scale, i, 0, value),
            ],
        )
        for i, (label, value) in enumerate(zip(panel.labels, panel.values, strict=True))
    ]


def _signed(panel: Bars, i: int, write: Callable[[float], str]) -> str:
    effect = format_effect(write, panel.values[i])
    if panel.errors is None or np.isnan(panel.errors[i]):
        return effect
    return f"{effect} ± {number(float(f'{panel.errors[i] * (100 if panel.is_share else 1):.1g}'))}"


def _extras(panel: Bars, scale: _WidthScale, i: int, start: float, end: float) -> list[Element]:
    """Draw the standard error at a bar's end, and the Shapley value."""
    marks = []
    if panel.errors is not None and np.isfinite(panel.errors[i]):
        x1, x2 = (f"{scale.percent(end + side * panel.errors[i])}%" for side in (-1, 1))
        marks.append(
            element("line", x1=x1, x2=x2, y1=_BAR / 2, y2=_BAR / 2, stroke="currentColor", stroke_width=1.5)
        )
    if panel.shapley is not None and np.isfinite(panel.shapley.values[i]):
        marks.append(_dot(scale, start + float(panel.shapley.values[i])))
    return marks


def _dot(scale: _WidthScale, value: float) -> Element:
    return element("circle", cx=f"{scale.percent(value)}%", cy=_BAR / 2, r=4, fill="currentColor")


def _flow(panel: LayerFlow) -> list[Element]:
    """Draw raising sums to the right, lowering sums to the left, and a dot at their total."""
    scale = _WidthScale.over(0.0, panel.raising, panel.lowering, panel.total)
    write = writer([*panel.raising, *panel.lowering], is_share=panel.is_share)
    rows = []
    for label, raising, lowering in zip(panel.labels, panel.raising, panel.lowering, strict=True):
        drawn = [
            _bar(scale, 0, raising, RAISES),
            _bar(scale, lowering, 0, LOWERS),
            _line(scale.percent(0), 0, _BAR),
            _line(scale.percent(panel.total), 0, _BAR, stroke_dasharray="2 3"),
            _dot(scale, raising + lowering),
        ]
        rows.append(_row(label, f"{format_effect(write, raising)} {format_effect(write, lowering)}", drawn))
    points = _POINTS * panel.is_share
    about = f"red raises, blue lowers{points}; dot: their sum; dotted: explained less base value"
    return [_figure(panel.title, about, element("ul", *rows))]


@dataclass(frozen=True)
class ChartLine:
    """A labelled line: values over shares of an axis, from 0 to 1; a range makes it grey and dashed.

    Attributes:
        number: text beside the label.
        range: the least and the largest value at each share.
    """

    label: str
    number: str
    shares: np.ndarray
    values: np.ndarray
    range: tuple[np.ndarray, np.ndarray] | None = None


def lines(title: str, about: str, drawn: Sequence[ChartLine]) -> Element:
    """Draw lines over one axis, with a legend beneath."""
    scale = _WidthScale.over(*(values for line in drawn for values in (line.values, *(line.range or ()))))
    paths, rows = [], []
    for i, line in enumerate(drawn):
        colour = _GREY if line.range else _LINES[i % len(_LINES)]
        dashes = {"stroke_dasharray": "6 4"} if line.range or i >= len(_LINES) else {}
        if line.range:
            band = _points([*line.shares, *line.shares[::-1]], [*line.range[0], *line.range[1][::-1]], scale)
            paths.append(element("polygon", points=band, fill=_GREY, fill_opacity=0.25))
        look = {"stroke": colour, "stroke_width": 2, "vector_effect": "non-scaling-stroke", **dashes}
        points = _points(line.shares, line.values, scale)
        paths.append(element("polyline", points=points, fill="none", **look))
        key = element("line", x1="0%", x2="12%", y1=_BAR / 2, y2=_BAR / 2, **look)
        rows.append(_row(line.label, line.number, [key]))
    size = {"viewBox": f"0 0 1000 {_CHART}", "preserveAspectRatio": "none", "width": "100%", "height": _CHART}
    chart = element("svg", *paths, **size, aria_hidden="true", focusable="false")
    ends = f"{about}, 0 to 100%; from {number(scale.low)} below to {number(scale.high)} above"
    return _figure(title, ends, element("div", chart, class_="chart"), element("ul", *rows))


def _points(shares: Iterable[float], values: Iterable[float], scale: _WidthScale) -> str:
    places = zip(shares, map(scale.percent, values), strict=True)
    return " ".join(f"{1000 * share:.1f},{_CHART * (1 - place / 100):.1f}" for share, place in places)


def levels(
    title: str, about: str, numbers: Sequence[tuple[str, float]], *, is_share: bool = False
) -> Element:
    """Draw numbers without an effect's sign as grey bars; `is_share`: in percent."""
    sizes = np.asarray([size for _, size in numbers])
    scale, write = _WidthScale.over(0.0, sizes), writer(sizes, is_share=is_share)
    rows = (
        _row(
            label,
            write(size) + "%" * is_share,
            [_line(scale.percent(0), 0, _BAR), _bar(scale, 0, size, _GREY)],
        )
        for label, size in numbers
    )
    return _figure(title, about, element("ul", *rows))


def thresholds(embedded: EmbeddedProfile, base: float | None, *, is_share: bool) -> Element:
    """Draw the ranges of scores that approve, decline or go to a person, and the base value."""
    write = functools.partial(score_text, is_share=is_share)
    profile, (least, most) = embedded.profile, embedded.output_range
    scale = _WidthScale.over(least, most, profile.threshold, base)
    low, high = profile.refer or (profile.threshold, profile.threshold)
    below, above = (least, low), (high, most)
    approve, decline = (below, above) if profile.adverse == "above" else (above, below)
    spans = {
        "approve": approve,
        "a person decides": (low, high) if profile.refer else None,
        "decline": decline,
    }
    rows = [
        _row(name, f"{write(span[0])} … {write(span[1])}", [_bar(scale, *span, _GREY)])
        for name, span in spans.items()
        if span is not None
    ]
    if base is not None:
        rows.append(_row("base value", write(base), [_dot(scale, base)], end=True))
    return _figure(
        f"{profile.output}: the decision", f"threshold {write(profile.threshold)}", element("ul", *rows)
    )


# -- many rows -----------------------------------------------------------------------------------------


def _overview(panel: Overview) -> list[Element]:
    labels = [*panel.labels, *[f"{panel.other_features} others together"] * bool(panel.other_features)]
    rows = f"{panel.rows:,} rows" if panel.rows != 1 else "1 row"
    points, factor = _POINTS * panel.is_share, 100 if panel.is_share else 1
    means = list(zip(labels, factor * panel.means, strict=True))
    drawings = [levels(f"{panel.title}: mean |attribution|", f"over {rows}{points}", means)]
    shown = panel.attributions.shape[1]
    if shown > 1:
        which = f"{shown} of {rows}, evenly spaced" if shown < panel.rows else rows
        colours = "violet: low values of the feature, orange: high, grey: no number"
        about = f"a dot for each of {which}{points}; {colours}"
        drawings.append(_figure(f"{panel.title}: attributions", about, element("ul", *_swarm(panel))))
    return drawings


def _swarm(panel: Overview) -> list[Element]:
    scale, rows = _WidthScale.over(0.0, panel.attributions), []
    write = writer(np.abs(panel.attributions).max(axis=1), is_share=panel.is_share)
    for label, attributions, values in zip(panel.labels, panel.attributions, panel.values, strict=True):
        range_ = " … ".join(
            format_effect(write, float(end)) for end in (attributions.min(), attributions.max())
        )
        dots = _dots(scale, attributions, values)
        rows.append(_row(label, range_, [_line(scale.percent(0), 0, _SWARM), dots], height=_SWARM))
    return rows


def _dots(scale: _WidthScale, attributions: np.ndarray, values: np.ndarray) -> Element:
    """Stack the dots of a column, closer together if there are many.

    Dots are round ends of lines of zero length: a few bytes each, and round at every width.
    """
    positions = np.asarray([scale.percent(a) for a in attributions])
    columns = np.round(positions * _COLUMNS / 100)
    order = np.lexsort((values, columns))
    paths: dict[str, list[str]] = {}
    for column in np.unique(columns):
        here = order[columns[order] == column]
        step = min(_DOT, (_SWARM - _DOT - 2) / max(len(here) - 1, 1))
        first = _SWARM / 2 - step * (len(here) - 1) / 2
        for i, k in enumerate(here):
            level = round(float(values[k]) * _LEVELS) / _LEVELS if np.isfinite(values[k]) else None
            colour = _GREY if level is None else blend(LOW, HIGH, level)
            paths.setdefault(colour, []).append(f"M{10 * positions[k]:.0f} {first + i * step:.1f}h0")
    drawn = (
        element("path", d="".join(dots), stroke=colour, vector_effect="non-scaling-stroke")
        for colour, dots in paths.items()
    )
    return element(
        "svg",
        element("g", *drawn, stroke_width=_DOT, stroke_linecap="round", stroke_opacity=0.9, fill="none"),
        viewBox=f"0 0 1000 {_SWARM}",
        preserveAspectRatio="none",
        width="100%",
        height=_SWARM,
    )


# -- images and tokens ---------------------------------------------------------------------------------


def _heat(panel: Heat) -> list[Element]:
    limit = full_colour(panel.values)
    about = f"red raises, blue lowers; full colour {limit:.2g}"
    rows, columns = panel.values.shape
    most = np.unravel_index(int(np.nanargmax(np.abs(np.nan_to_num(panel.values)))), panel.values.shape)
    alt = (
        f"{panel.title}: attributions of {rows} × {columns} pixels, largest "
        f"{panel.values[most]:+.3g} at row {most[0]}, column {most[1]}"
    )
    shown = [] if panel.picture is None else [_image(grey(panel.picture), "the picture that is explained")]
    return [
        _figure(panel.title, about, element("div", *shown, _image(heat_map(panel), alt), class_="images"))
    ]


def _image(pixels: np.ndarray, alt: str) -> Element:
    drawn = resize_picture(pixels)
    return element("img", src=data_uri(drawn), alt=alt, width=drawn.shape[1], height=drawn.shape[0])


def _words(panel: Words) -> list[Element]:
    largest = float(np.abs(np.nan_to_num(panel.values)).max(initial=0))
    shades = np.ceil(np.abs(np.nan_to_num(panel.values)) / (largest or 1.0) * SHADES - 1e-9).astype(int)
    words: list[str | Element] = []
    for word, value, shade in list(zip(panel.words, panel.values, shades, strict=True))[:_MOST_WORDS]:
        class_ = f"{'r' if value >= 0 else 'l'}{shade}"
        words += [] if word.joined else [" "]
        words.append(
            element("span", word.text, class_=class_, title=format_effect(number, value), dir="auto")
        )
    omitted = len(panel.words) - _MOST_WORDS
    if omitted > 0:
        words.append(f" … {omitted:,} more tokens")
    about = f"red raises, blue lowers; full colour {largest:.2g}"
    return [_figure(panel.title, about, element("p", *words, class_="tokens"), _listed(panel))]


def _listed(panel: Words) -> Element:
    """Return a table of the tokens with the largest attributions."""
    order = np.argsort(-np.abs(np.nan_to_num(panel.values)), kind="stable")[:_LISTED]
    write = writer(panel.values[order])
    rows = [
        element(
            "tr",
            element("td", str(k)),
            element("td", panel.words[k].text, dir="auto"),
            element("td", format_effect(write, panel.values[k])),
        )
        for k in order
    ]
    head = element("tr", *(element("th", name, scope="col") for name in ("position", "token", "attribution")))
    few = f"the largest {len(order)} of " * (len(order) < len(panel.words))
    summary = element("summary", f"{few}{len(panel.words)} tokens by their numbers")
    return element("details", summary, element("table", element("thead", head), element("tbody", *rows)))


_DRAW: dict[type, Callable[[Any], list[Element]]] = {
    Bars: _bars,
    LayerFlow: _flow,
    Heat: _heat,
    Overview: _overview,
    Words: _words,
}
