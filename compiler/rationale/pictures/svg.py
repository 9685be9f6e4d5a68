"""Figures as one SVG file: the elements of `figures.py`, one below the other, on white."""

import unicodedata
from collections.abc import Iterable, Iterator
from xml.etree.ElementTree import Element, tostring

from rationale.pictures.markup import element, shade

_WIDTH, _PAD, _LINE, _GAP = 800, 16, 20, 24  # pixels
_NUMBER, _DRAWN = 400, 412  # right end of numbers, left end of bars
_EM, _SMALL, _BASELINE = 13, 11, 15
_CHARACTER = 0.56  # average width in ems; East Asian characters take a whole em
_SPACE, _INSET = 5, 3
_STYLE = {"font_family": "system-ui, sans-serif", "font_size": _EM, "fill": "currentColor", "color": "#222"}


def svg(figures: Iterable[Element]) -> bytes:
    """Return an SVG file of figures and notes, one below the other, without style sheet or script."""
    drawn: list[Element] = []
    bottom = float(_PAD)
    for figure in figures:
        for block in figure if figure.tag == "figure" else [figure]:
            for elements, height in _laid_out(block, bottom):
                drawn += elements
                bottom += height
        bottom += _GAP
    size = {"width": _WIDTH, "height": round(bottom), "viewBox": f"0 0 {_WIDTH} {bottom:.0f}"}
    white = element("rect", width="100%", height="100%", fill="#ffffff")
    root = element("svg", white, *drawn, xmlns="http://www.w3.org/2000/svg", **size, **_STYLE)
    markup: str = tostring(root, "unicode")
    return f"{markup}\n".encode()


def _laid_out(block: Element, top: float) -> Iterator[tuple[list[Element], float]]:
    """Yield the lines of a block: their elements and height."""
    match block.tag, block.get("class"):
        case "figcaption", _:
            title, about = block.text or "", "".join(block[0].itertext())
            small = _text(about, _PAD, top + _BASELINE + _LINE, font_size=_SMALL, opacity=0.8)
            yield [_text(title.strip(), _PAD, top + _BASELINE, font_weight=600), small], 2.2 * _LINE
        case "ul", _:
            for row in block:
                height = float(row[-1].get("height", _LINE))
                yield _row(row, top, height), height
                top += height
        case "div", "images":
            yield _images(block, top)
        case "p", "tokens":
            yield _words(block, top)
        case "p", "note":
            yield [_text(block.text or "", _PAD, top + _BASELINE, font_size=_SMALL)], _LINE


def _row(row: Element, top: float, height: float) -> list[Element]:
    name, number, drawn = row
    weight = {"font_weight": 600} if row.get("class") == "end" else {}
    middle = top + height / 2 + 4
    limit = _NUMBER - _PAD - _width(number.text or "") - _SPACE
    for key, place in (("x", _DRAWN), ("y", top), ("width", _WIDTH - _DRAWN - _PAD)):
        drawn.set(key, f"{place:g}")
    return [
        _text(name.text or "", _PAD, middle, most=limit, **weight),
        _text(number.text or "", _NUMBER, middle, text_anchor="end", **weight),
        drawn,
    ]


def _images(block: Element, top: float) -> tuple[list[Element], float]:
    """Draw images side by side, smaller if they are too wide; return them and their height."""
    widths = [int(image.get("width", 1)) for image in block]
    scale = min(1.0, (_WIDTH - _PAD * (1 + len(widths))) / sum(widths))
    images, x, tallest = [], float(_PAD), 0.0
    for image, width in zip(block, widths, strict=True):
        height = int(image.get("height", 1)) * scale
        place = {"x": round(x), "y": round(top), "width": round(width * scale), "height": round(height)}
        title = element("title", image.get("alt", ""))
        images.append(element("image", title, href=image.get("src"), image_rendering="pixelated", **place))
        x, tallest = x + width * scale + _PAD, max(tallest, height)
    return images, tallest


def _words(block: Element, top: float) -> tuple[list[Element], float]:
    """Draw words on their shades, in as many lines as they need; return them and their height."""
    drawn, x, line, gap = list[Element](), float(_PAD), 0, 0
    for word in block:
        text = word.text or ""
        width = min(_width(text) + 2 * _INSET, _WIDTH - 2 * _PAD)
        if x + gap + width > _WIDTH - _PAD and x > _PAD:
            x, line, gap = float(_PAD), line + 1, 0
        x += gap
        y = top + line * 1.4 * _LINE
        colour, opacity = shade(word.get("class", ""))
        box = {"x": f"{x:.1f}", "y": f"{y:g}", "width": f"{width:.1f}", "height": _LINE, "rx": 3}
        drawn.append(element("rect", **box, fill=colour, fill_opacity=opacity))
        drawn.append(_text(text, x + _INSET, y + _BASELINE, most=width - 2 * _INSET))
        x, gap = x + width, _SPACE if word.tail else 0
    return drawn, (line + 1) * 1.4 * _LINE


def _text(text: str, x: float, baseline: float, *, most: float | None = None, **more: object) -> Element:
    """Write one line of text, compressed if it is wider than `most`."""
    limit = _WIDTH - _PAD - x if most is None else most
    fits = {} if _width(text) < limit else {"textLength": f"{limit:.1f}", "lengthAdjust": "spacingAndGlyphs"}
    return element("text", text, x=f"{x:.1f}", y=f"{baseline:.1f}", **fits, **more)


def _width(text: str) -> float:
    """Estimate the width of a text in pixels, since the viewer chooses the font."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return _EM * (wide + _CHARACTER * (len(text) - wide))
