"""Drawing of docs/architecture.svg: the stages of a compile, and the layers of the compiler's packages.

Stages are read from their functions' annotations, layers from the import contract in pyproject.toml.
"""

import tomllib
from collections.abc import Iterator
from html import escape
from importlib import import_module
from inspect import signature
from operator import attrgetter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "architecture.svg"

STAGES = {
    "lower": "lowering",
    "Engine.select": "methods.engine",
    "prepare_references": "methods.references",
    "combine": "methods.engine",
    "fit": "graph.memory.fit",
    "finish": "artifact.finishing.finish",
    "check": "artifact.checks.check",
    "describe": "artifact.describe",
}
WIDTH, ROW, LEFT, RIGHT = 1080, 27, 20, 270
STYLE = """
text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: #1f2933 }
.name { font-weight: 600 }
.title { font-weight: 600; font-size: 14px }
.about, .flow { fill: #52606d; font-size: 12px }
.stage { fill: #e3f0fb; stroke: #6aa3d5 } .layer { fill: #f5f7fa; stroke: #cbd2d9 } .back { fill: #ffffff }
line { stroke: #6aa3d5; stroke-width: 1.5 }
"""


def layers() -> list[str]:
    """Return packages from the top to the bottom."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rows = next(c["layers"] for c in contracts if c.get("containers") == ["rationale"])
    return [name.strip() for row in rows for name in row.split("|")]


def about(package: str) -> str:
    """Return the first line of a package's docstring."""
    return (import_module(f"rationale.{package}").__doc__ or "").split("\n")[0].rstrip(".").replace("`", "")


def flows() -> Iterator[tuple[str, str]]:
    """Yield each stage with its result."""
    for name, module in STAGES.items():
        result = signature(attrgetter(name)(import_module(f"rationale.{module}"))).return_annotation
        yield name, getattr(result, "__name__", str(result))


def picture() -> str:
    """Return the drawing as SVG."""
    rows = layers()
    top = 64
    height = top + ROW * max(len(rows), 2 * len(STAGES) + 2) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}">',
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{height}"/>',
        _text(LEFT, 30, "title", "compile_model"),
        _text(LEFT, 50, "flow", "a model and a method"),
        _text(RIGHT, 30, "title", "compiler/rationale/"),
        _text(RIGHT, 50, "about", "each package imports those below it alone"),
    ]
    for i, (name, result) in enumerate(flows()):
        y = top + 2 * ROW * i
        parts += [
            f'<rect class="stage" x="{LEFT}" y="{y}" width="170" height="{ROW - 3}" rx="4"/>',
            _text(LEFT + 10, y + 17, "name", name),
            f'<line x1="{LEFT + 20}" x2="{LEFT + 20}" y1="{y + ROW - 3}" y2="{y + 2 * ROW}"/>',
            _text(LEFT + 30, y + 43, "flow", result),
        ]
    parts.append(_text(LEFT, top + 2 * ROW * len(STAGES) + 18, "flow", "Compiled: write it, or explain rows"))
    wide = WIDTH - RIGHT - 20
    for i, package in enumerate(rows):
        y = top + ROW * i
        parts += [
            f'<rect class="layer" x="{RIGHT}" y="{y}" width="{wide}" height="{ROW - 3}" rx="4"/>',
            _text(RIGHT + 10, y + 17, "name", package),
            _text(RIGHT + 120, y + 17, "about", about(package)),
        ]
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, kind: str, text: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(text)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
