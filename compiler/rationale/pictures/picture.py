"""Pictures of an answer and of a combined graph that notebooks display automatically."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np

from rationale.errors import InvalidOptionError
from rationale.pictures.figures import figures, levels, thresholds
from rationale.pictures.markup import element, fragment, page, table
from rationale.pictures.overview import Overview, overviews
from rationale.pictures.panels import ExplanationLike, Panel, element_name, panels_of
from rationale.pictures.svg import svg
from rationale.pictures.words import NUMBERS, Vocabulary, read_vocabulary, vocabulary_of
from rationale.schema.manifest import Manifest

ROWS, TARGETS, TOP = 3, 3, 10  # limits shown: rows of an answer, targets of a row, features of a target
_NAMES, _BASES, _RULES = 40, 12, 400  # limits listed: features of an input, base values, operators

Tokens = Sequence[str] | str | Path | None


@dataclass(frozen=True)
class Picture:
    """The result of `answer.plot()`: a notebook displays it, and `save` writes it.

    Attributes:
        title: title of the page.
        drawn: panels of rows, and overviews of many.
        note: text about rows and targets that are left out.
    """

    title: str
    drawn: tuple[Panel | Overview, ...]
    note: str = ""

    def __repr__(self) -> str:
        return f"Picture({self.title!r}, {len(self.drawn)} drawn)"

    def _repr_html_(self) -> str:
        return fragment(self.content())

    def save(self, path: str | Path) -> None:
        """Write a page (.html) or a picture (.svg).

        Raises:
            InvalidOptionError: if the name has another ending, or the file cannot be written.
        """
        kind = Path(path).suffix.lower()
        if kind == ".html":
            content = page(self.title, self.content())
        elif kind == ".svg":
            content = svg(self.content())
        else:
            raise InvalidOptionError(f"{path}: its name must end in .html or .svg.")
        try:
            Path(path).write_bytes(content)
        except OSError as error:
            raise InvalidOptionError(f"{path}: cannot be written: {error.strerror or error}.") from error

    def content(self) -> Iterator[Element]:
        """Yield the elements of the picture."""
        yield from figures(self.drawn)
        if self.note:
            yield element("p", self.note, class_="note")


def answer_picture(
    answer: ExplanationLike, rows: int | Iterable[int] | None, targets: int, top: int, tokens: Tokens
) -> Picture:
    """Return the picture of an answer, for `Explanation.plot`."""
    for name, number in (("top", top), ("targets", targets)):
        if number < 1:
            raise InvalidOptionError(f"plot({name}={number}): give 1 or more.")
    count = len(answer[answer.manifest.explained_value])
    chosen = _chosen(rows, count)
    vocabulary = _vocabulary(tokens)
    drawn: list[Panel | Overview] = []
    if rows is None and count > 1:
        drawn += overviews([answer], count, top)
    for i in chosen:
        row = f"{i + 1}, index {answer.index[i]}" if len(answer.index) else i + 1
        drawn += panels_of(answer, i, row, top, vocabulary, targets)
    title = f"{answer.manifest.explained_output} explained by {answer.manifest.method.name}"
    return Picture(title, tuple(drawn), _left_out(answer, len(chosen), targets) if rows is None else "")


def _chosen(rows: int | Iterable[int] | None, count: int) -> list[int]:
    if rows is None:
        return list(range(min(ROWS, count)))
    chosen = [rows] if isinstance(rows, int | np.integer) else list(rows)
    if not chosen or not all(isinstance(i, int | np.integer) and 0 <= i < count for i in chosen):
        raise InvalidOptionError(f"plot(rows={rows!r}): give rows of the answer, 0 to {count - 1}.")
    return [int(i) for i in chosen]


def _vocabulary(tokens: Tokens) -> Vocabulary:
    if tokens is None:
        return NUMBERS
    return (
        read_vocabulary(Path(tokens), "tokens") if isinstance(tokens, str | Path) else vocabulary_of(tokens)
    )


def _left_out(answer: ExplanationLike, shown: int, targets: int) -> str:
    count, every = answer[answer.manifest.explained_value].shape
    parts = []
    if shown < count:
        parts.append(f"the first {shown} of {count:,} rows are shown one by one: plot(rows=[…]) shows others")
    if targets < every:
        parts.append(f"of {every:,} targets those {targets} of the largest value: see plot(targets=…)")
    return "; ".join(parts)


def answer_html(answer: ExplanationLike) -> str:
    """Return an answer as HTML: the request, an overview of all rows, and the first rows."""
    manifest = answer.manifest
    count, targets = answer[manifest.explained_value].shape
    lines = [
        ("explained", f"{manifest.explained_output} by {manifest.method.name}"),
        ("rows", f"{count:,}" + f", {targets:,} targets each" * (targets > 1)),
        ("arrays", ", ".join(f"{name} {list(array.shape)}" for name, array in answer.items())),
    ]
    picture = answer_picture(answer, None, TARGETS, TOP, None)
    return fragment([table(lines), *picture.content()])


def compiled_html(manifest: Manifest, conversion: str | None) -> str:
    """Return a combined graph as HTML: its explained output, measurements and base values."""
    from rationale.terminal import manifest_lines  # late: only this function needs its tables

    lines = [*manifest_lines(manifest), ("explainer", manifest.digests.explanation[:12])]
    if conversion:
        lines.insert(0, ("converted", conversion))
    content = [table(lines), *_inputs(manifest), *_rules(manifest), *_starts(manifest)]
    notes = [*manifest.notes, *(f"warning: {warning}" for warning in manifest.warnings)]
    content += [element("p", note, class_="note") for note in notes]
    return fragment(content)


def _starts(manifest: Manifest) -> Iterator[Element]:
    """Draw the base values, or with a decision profile its thresholds."""
    bases = manifest.references.base_value if manifest.references else None
    if manifest.decision is not None:
        explains_score = manifest.explained_output == manifest.decision.profile.tensor
        base = bases[0] if bases and explains_score else None
        yield thresholds(manifest.decision, base, is_share=manifest.decides_share)
    elif bases and len(bases) > 1 and manifest.targets != "predicted":
        named = [(element_name(manifest, t), b) for t, b in zip(manifest.targets, bases, strict=True)]
        few = f", the first {_BASES} of {len(bases):,}" * (len(bases) > _BASES)
        about = f"the mean outputs over the references{few}"
        yield levels("base values", about, named[:_BASES], is_share=manifest.explains_share)


def _inputs(manifest: Manifest) -> Iterator[Element]:
    """Yield the names of features that somebody gave."""
    for name, feature_names in (manifest.given_names or {}).items():
        more = f" and {len(feature_names) - _NAMES:,} more" * (len(feature_names) > _NAMES)
        summary = element("summary", f"{len(feature_names):,} features of {name}")
        yield element("details", summary, element("p", ", ".join(feature_names[:_NAMES]) + more, dir="auto"))


def _rules(manifest: Manifest) -> Iterator[Element]:
    """Yield the rule of each operator, if rules propagate relevance."""
    from rationale.terminal import shorten_rule

    if rules := manifest.rules:
        more = f", the first {_RULES}" * (len(rules) > _RULES)
        summary = element("summary", f"the rules of {len(rules):,} operators{more}")
        lines = [(f"{rule.operator} {rule.name}", shorten_rule(rule.rule)) for rule in rules[:_RULES]]
        yield element("details", summary, table(lines))
