"""HTML elements with escaped content, the style of all pictures, and pages that load nothing."""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element, tostring

from rationale.pictures.colours import LOWERS, RAISES

SHADES = 10  # steps of a token's colour
_DEEPEST = 0.65  # opacity of the last step: words stay readable on it, on white and on black
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # characters that no page may contain

Content = str | Element


def element(tag: str, /, *content: Content, **attributes: object) -> Element:
    """Create an element; `class_` becomes the attribute class, and `stroke_width` stroke-width."""
    node = Element(tag, {_attribute(name): _clean(str(value)) for name, value in attributes.items()})
    for item in content:
        if isinstance(item, Element):
            node.append(item)
        elif len(node):
            node[-1].tail = (node[-1].tail or "") + _clean(item)
        else:
            node.text = (node.text or "") + _clean(item)
    return node


def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _clean(text: str) -> str:
    """Return text without control characters and lone surrogates, which no page may contain."""
    return _CONTROL.sub("\ufffd", text).encode("utf-8", "replace").decode()


def table(lines: Iterable[tuple[str, str]]) -> Element:
    """Create a table of named lines."""
    rows = (
        element("tr", element("th", name, scope="row"), element("td", text, dir="auto"))
        for name, text in lines
    )
    return element("table", element("tbody", *rows))


def number_table(heads: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]], label: str) -> Element:
    """Create a table that scrolls in its place if it is wider than the page.

    Args:
        heads: the name of each column, and whether it holds numbers, which stand below each other.
        label: the name of the table, for screen readers.
    """
    look = [{"class_": "number"} if is_number else {} for _, is_number in heads]
    head = (element("th", name, scope="col", **kind) for (name, _), kind in zip(heads, look, strict=True))
    lines = (
        element("tr", *(element("td", cell, **kind) for cell, kind in zip(row, look, strict=True)))
        for row in rows
    )
    content = element("table", element("thead", element("tr", *head)), element("tbody", *lines))
    return element("div", content, class_="scroll", tabindex=0, role="region", aria_label=label)


def fragment(content: Iterable[Element]) -> str:
    """Return HTML for a notebook: the style and the content, without a script."""
    return tostring(
        element("div", element("style", STYLE), *content, class_="rationale"), "unicode", method="html"
    )


def csp_hash(text: str) -> str:
    """Return the hash by which a Content-Security-Policy allows an inline script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def page(title: str, content: Iterable[Element]) -> bytes:
    """Return a page that loads and runs nothing; its policy allows only its own style and images."""
    style = _PAGE_STYLE + STYLE
    policy = (
        f"default-src 'none'; style-src '{csp_hash(style)}'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", style),
    )
    body = element("body", element("main", element("h1", title), *content, class_="rationale"))
    markup: str = tostring(element("html", head, body, lang="en"), "unicode", method="html")
    return f"<!doctype html>\n{markup}\n".encode()


def shade(name: str) -> tuple[str, float]:
    """Return the colour and opacity of a token's class: r1 to r10 raise, l1 to l10 lower."""
    return RAISES if name[0] == "r" else LOWERS, _DEEPEST * int(name[1:]) / SHADES


def _shades() -> str:
    """Return the CSS rules of token classes."""
    shades = {f"{sign}{step}": shade(f"{sign}{step}") for sign in "rl" for step in range(1, SHADES + 1)}
    return "\n".join(
        f".rationale .{name} {{ background: {colour}{round(255 * opacity):02x} }}"
        for name, (colour, opacity) in shades.items()
    )


_RULES = f"""
.rationale {{ font: 14px/1.45 system-ui, sans-serif; max-width: 54em; overflow-wrap: anywhere }}
.rationale figure {{ margin: 1.2em 0; padding: 0; container-type: inline-size; break-inside: avoid }}
.rationale figcaption, .rationale h3 {{ font-size: 1em; font-weight: 600; margin: 0 0 .3em;
text-align: left }}
.rationale small, .rationale .note {{ font-size: .9em; font-weight: 400; opacity: .8 }}
.rationale ul {{ list-style: none; margin: 0; padding: 0 }}
.rationale ul li {{ display: grid; grid-template-columns: minmax(0, 1fr) auto; column-gap: .8em; margin: 0 }}
.rationale ul li > svg {{ grid-column: 1 / -1; overflow: visible }}
.rationale ul li.end {{ font-weight: 600 }}
.rationale .number {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }}
@container (min-width: 32em) {{
.rationale ul {{ display: grid; grid-template-columns: minmax(0, 36%) auto minmax(0, 1fr); column-gap: .8em }}
.rationale ul li {{ grid-column: 1 / -1; grid-template-columns: subgrid; align-items: center }}
.rationale ul li > svg {{ grid-column: 3 }}
}}
.rationale tr {{ background: none }}
.rationale table {{ border-collapse: collapse; margin: .3em 0 1em; border: 0 }}
.rationale th, .rationale td {{ text-align: left; vertical-align: top; padding: .15em 1em .15em 0; border: 0;
background: none; font-size: 1em; white-space: normal }}
.rationale th {{ font-weight: 400; opacity: .8; white-space: nowrap }}
.rationale th.number, .rationale td.number {{ text-align: right; padding: .15em 0 .15em 1em }}
.rationale .scroll {{ overflow-x: auto; overflow-wrap: normal }}
.rationale .tokens {{ line-height: 2.1; margin: 0 }}
.rationale .tokens span {{ padding: .15em .25em; border-radius: .2em; print-color-adjust: exact;
-webkit-print-color-adjust: exact }}
.rationale .images {{ display: flex; flex-wrap: wrap; gap: .8em }}
@container (min-width: 32em) {{
.rationale .images img {{ max-width: calc(50% - .4em) }}
}}
.rationale img {{ max-width: 100%; height: auto; margin: 0; image-rendering: pixelated }}
.rationale summary {{ cursor: pointer }}
{_shades()}
"""
STYLE = _RULES.replace(".rationale ", ".rationale:not(#_) ")  # the id outweighs a front end's own rules
_PAGE_STYLE = """
:root { color-scheme: light dark }
body { margin: 0; padding: 1.2em; background: Canvas; color: CanvasText }
main { margin: 0 auto }
.rationale { font-size: 15px }
@media (min-width: 1800px) {
main.rationale:not(#_) { max-width: 124em; display: grid; grid-template-columns: repeat(2, minmax(0, 1fr));
column-gap: 4em; align-items: start }
main > :not(figure) { grid-column: 1 / -1 }
}
h1 { font-size: 1.5em; margin: 0 0 .5em }
h2 { font-size: 1.2em; margin: 2em 0 0; border-top: 1px solid #88888866; padding-top: .8em }
@media print { :root { color-scheme: light } body { padding: 0 } h2 { break-after: avoid } }
"""
