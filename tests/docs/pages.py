"""The blocks and the commands of a page.

A comment right before a block tells what is not to be seen of it:

    <!-- not run: needs Docker -->          its commands are looked up, and not run
    <!-- first: cp examples/x.csv x.csv --> what the page supposes, in shell; run before the block
    <!-- slow: half a minute -->            run by `pytest -m slow`
    <!-- warnings of: shap, captum -->      their modules may warn, in this block and later ones of Python
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
_KINDS = (
    "README.md",
    "CONTRIBUTING.md",
    "model_repository/README.md",
    "examples/*/README.md",
    "docs/*.md",
    "docs/methods/*.md",
    "docs/operations/*.md",
    "docs/tutorials/*.md",
)
PAGES = [path.relative_to(ROOT) for kind in _KINDS for path in sorted(ROOT.glob(kind))]
_NOTE = re.compile(r"<!--\s*(not run|first|slow|alone|warnings of)\s*:\s*(.*?)\s*-->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code; `language` is empty where it names none, or has no fence."""

    page: Path
    line: int
    language: str
    text: str
    notes: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Page:
    path: Path
    text: str

    @cached_property
    def blocks(self) -> list[Block]:
        return list(self._blocks())

    @cached_property
    def spans(self) -> list[tuple[int, str]]:
        """Code within the prose: the line where its paragraph begins, and its text."""
        return [
            ((token.map or [0])[0] + 1, " ".join(child.content.split()))
            for token in _tokens(self.text)
            for child in token.children or ()
            if child.type == "code_inline"
        ]

    def _blocks(self) -> Iterator[Block]:
        notes: dict[str, str] = {}
        for token in _tokens(self.text):
            if token.type in ("fence", "code_block"):
                line = (token.map or [0])[0] + 1
                language = token.info.split(" ")[0] if token.type == "fence" else ""
                yield Block(self.path, line, language, token.content, notes)
            notes = dict(_NOTE.findall(token.content)) if token.type == "html_block" else {}


def read(path: Path) -> Page:
    return Page(path, (ROOT / path).read_text(encoding="utf-8"))


def _tokens(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)
