"""`rationale explain`: the rows of a file as pictures, on a page that loads nothing or in one SVG file."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from rationale.artifact.compiled import Explanation
from rationale.artifact.entry import open_entry
from rationale.artifact.repository.folder import atomic_file, write
from rationale.artifact.rows import read_inputs
from rationale.decisions.decide import Decision
from rationale.decisions.decided import Undecided, decide_rows, refusals
from rationale.decisions.rows import feature_values
from rationale.errors import InvalidOptionError
from rationale.pictures.figures import figures
from rationale.pictures.markup import element, page, table
from rationale.pictures.numbers import score_text
from rationale.pictures.overview import overviews, tables_of
from rationale.pictures.panels import panels_of
from rationale.pictures.svg import svg
from rationale.pictures.words import NUMBERS, Vocabulary, read_vocabulary
from rationale.portfolios.explain import TARGETS, explained_batches
from rationale.schema.manifest import Manifest
from rationale.schema.request import Progress
from rationale.tables.files import read_columns
from rationale.terminal import manifest_lines

MOST_ROWS, MOST_BARS = 200, 40  # that are drawn: rows, and features of one
MOST_SUMMED = 10_000  # rows that the overview is of
_FACTS = {"explains", "players", "method", "references", "decision", "reasons", "completeness gap"}


def report_file(
    repository: Path,
    name: str,
    file: Path,
    out: Path,
    rows: int | None,
    top: int,
    tokenizer: Path | None,
    progress: Progress,
    named: Sequence[str] = (),
) -> str:
    """Write a page about the rows of a file; return a description of the page.

    Args:
        out: .html.
        rows: number of first rows to draw one by one; None for all.
        top: number of features of a row that get a bar of their own.
        tokenizer: see `read_vocabulary`; without one token ids are shown as numbers.
        named: columns of the file, a table, whose cells name each row beside its number.

    Raises:
        InvalidOptionError, InvalidReferencesError, RepositoryError: if it fails; the message names a remedy.
    """
    if out.suffix.lower() != ".html":
        raise InvalidOptionError(
            f"--html {out}: give a name that ends in .html; --save FILE.svg writes a picture."
        )
    vocabulary = NUMBERS if tokenizer is None else read_vocabulary(tokenizer)
    compiled = open_entry(repository, name)
    manifest, inputs = compiled.manifest, read_inputs(compiled, file)
    count = len(next(iter(inputs.values())))
    drawn = min(count if rows is None else rows, MOST_ROWS, count)
    summed = min(count, MOST_SUMMED) if tables_of(manifest) and count > 1 else 0
    columns = read_columns(file, named, count)
    sections = _Sections(manifest, drawn, min(top, MOST_BARS), vocabulary, columns)
    answers = sections.collect(explained_batches(compiled, inputs, max(drawn, summed), progress))
    over = figures(overviews(answers, summed, sections.top)) if summed else []
    for _ in answers:  # those that the overview did not take
        pass
    omissions = list(_left_out(drawn, summed, count))
    head = [("rows", "; ".join([f"{count:,} of {file.name}", *omissions]))]
    head += [(key, text) for key, text in manifest_lines(manifest) if key in _FACTS]
    head.append(
        ("explainer", f"{manifest.digests.explanation[:12]}, the digest of model, references and options")
    )
    notes = [*manifest.notes, *(f"warning: {warning}" for warning in manifest.warnings)]
    if missing := _unread_features(manifest):
        notes.append(
            f"Nothing is decided here: the profile needs {', '.join(missing)} too (rationale decide)."
        )
    elif manifest.decision is not None:
        notes.append(
            "What is decided here is recorded nowhere; `rationale decide --audit` and the gateway record."
        )
    content = [table(head), *(element("p", note, class_="note") for note in notes)]
    html = page(f"Explanations by {name}", [*content, *over, *sections.elements])
    write(out.parent, {out.name: html}, "--html")
    return "; ".join([f"wrote {out}: {count:,} row{'s' * (count > 1)}", *omissions])


def draw_file(
    repository: Path, name: str, file: Path, out: Path, rows: int | None, top: int, tokenizer: Path | None
) -> str:
    """Draw the first rows of a file as an SVG, and say how many; see `report_file`."""
    vocabulary = NUMBERS if tokenizer is None else read_vocabulary(tokenizer)
    compiled = open_entry(repository, name)
    inputs = read_inputs(compiled, file)
    count = len(next(iter(inputs.values())))
    shown, drawn = min(count if rows is None else rows, MOST_ROWS, count), list[Element]()
    first = 0
    for answer in explained_batches(compiled, inputs, shown):
        here = len(answer[compiled.manifest.explained_value])
        for i in range(here):
            drawn += figures(panels_of(answer, i, first + i + 1, min(top, MOST_BARS), vocabulary, TARGETS))
        first += here
    with atomic_file(out) as partial_file:
        partial_file.write_bytes(svg(drawn))
    return f"wrote {out}: {shown:,} of {count:,} row{'s' * (count > 1)}"


def _left_out(drawn: int, summed: int, count: int) -> Iterator[str]:
    if drawn < count:
        yield f"the first {drawn:,} one by one"
    if 0 < summed < count:
        yield f"the overview is of the first {summed:,}"


@dataclass
class _Sections:
    """A section for each of the first rows."""

    manifest: Manifest
    rows: int
    top: int
    vocabulary: Vocabulary
    columns: Mapping[str, Sequence[Any]]
    elements: list[Element] = field(default_factory=list)

    def collect(self, answers: Iterable[Explanation]) -> Iterator[Explanation]:
        """Yield the same answers; make sections of the first rows on the way."""
        first = 0
        for answer in answers:
            count = len(answer[self.manifest.explained_value])
            here = min(count, self.rows - first)
            decisions = _decisions(answer) if here > 0 else []
            for i in range(here):
                drawn = panels_of(answer, i, first + i + 1, self.top, self.vocabulary, TARGETS)
                more = self.manifest.target_count - TARGETS
                note = element("p", f"{more:,} more targets, of smaller value", class_="note")
                self.elements += [
                    element("h2", self._name_of(first + i)),
                    *decisions[i : i + 1],
                    *figures(drawn),
                ]
                self.elements += [note] if more > 0 else []
            first += count
            yield answer

    def _name_of(self, row: int) -> str:
        """Return a row's number, from 1 as people count, and its cells of the columns that name it."""
        cells = (f"{column} {cells[row]}" for column, cells in self.columns.items())
        return ", ".join([f"Row {row + 1}", *cells])


def _unread_features(manifest: Manifest) -> list[str]:
    """Return features that knock-outs test and the model does not take; with any, nothing is decided."""
    if manifest.decision is None:
        return []
    features = {name for e in manifest.explained for name in e.feature_names or ()}
    return sorted({rule.feature for rule in manifest.decision.profile.knock_outs} - features)


def _decisions(answer: Explanation) -> list[Element]:
    """Return each row's decision by the profile; nothing if there is no profile or it needs more features."""
    manifest, inputs = answer.manifest, answer.inputs
    if manifest.decision is None or _unread_features(manifest):
        return []
    values = feature_values(manifest, inputs)
    faults: dict[int, list[str]] = {}
    for i, fault in refusals(manifest, inputs, values):
        faults.setdefault(i, []).append(fault)
    decided = decide_rows(manifest, answer, values, inputs)
    return [_decision(each, faults.get(i, ()), manifest.decides_share) for i, each in enumerate(decided)]


def _decision(decision: Decision | Undecided, faults: Sequence[str], is_share: bool) -> Element:
    if faults:
        return element("p", f"Not decided: {'; '.join(faults)}")
    if isinstance(decision, Undecided):
        return element("p", f"Not decided: {decision.fault}")
    score, threshold = (score_text(each, is_share) for each in (decision.score, decision.threshold))
    reasons = [element("li", f"{reason.code} {reason.text}") for reason in decision.reasons]
    warnings = [element("p", f"warning: {warning}", class_="note") for warning in decision.warnings]
    listed = [element("ol", *reasons)] if reasons else []
    return element(
        "div",
        element("p", f"{decision.decision.capitalize()}: score {score}, threshold {threshold}"),
        *listed,
        *warnings,
        class_="decision",
    )
