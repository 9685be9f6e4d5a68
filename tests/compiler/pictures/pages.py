"""What a browser would see of markup: elements with their attributes, and text."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = ("img", "meta")


@dataclass
class Seen:
    """An element; `text` is all that is in it."""

    tag: str
    attributes: dict[str, str]
    text: str = ""
    inside: tuple[str, ...] = ()


@dataclass
class Page(HTMLParser):
    """Markup as it was parsed."""

    markup: str
    elements: list[Seen] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[Seen] = []
        self.feed(self.markup)
        self.close()
        assert [seen.tag for seen in self._open] == [], "not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        inside = tuple(seen.tag for seen in self._open)
        seen = Seen(tag, {name: value or "" for name, value in attrs}, inside=inside)
        self.elements.append(seen)
        if tag not in VOID:
            self._open.append(seen)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        for seen in self._open:
            seen.text += data

    def of(self, tag: str, class_: str | None = None) -> list[Seen]:
        return [
            seen
            for seen in self.elements
            if seen.tag == tag and class_ in (None, seen.attributes.get("class"))
        ]

    def rows(self) -> list[tuple[str, str]]:
        """Names and numbers of all rows of bars."""
        names = [seen.text for seen in self.of("span", "name")]
        return list(zip(names, [seen.text for seen in self.of("span", "number")], strict=True))


def percent(text: str) -> float:
    assert text.endswith("%")
    return float(text[:-1])
