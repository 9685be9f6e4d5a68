"""`rationale decide`: decide the rows of one or more files by the rules of `:decide`, and save them."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, starmap
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson

from rationale.artifact.applicants import applicants_of, read_applicants
from rationale.artifact.repository.folder import atomic_file
from rationale.errors import InvalidOptionError, RationaleError
from rationale.portfolios.answered_files import AnsweredFiles, RowFile, answer_files
from rationale.portfolios.arrow import DIGEST, empty_batch, with_kept
from rationale.portfolios.decisions import (
    PROFILE,
    Further,
    Line,
    check_decisions,
    decision_batch,
    decision_columns,
    write_decisions,
)
from rationale.schema.manifest import Manifest
from rationale.schema.request import Progress, silent
from rationale.tables.files import read_columns
from rationale.tables.written import KeptColumns, check_kept
from rationale_service.decisions.audit.rows import Instance
from rationale_service.decisions.audit.trail import AuditTrail, NoTrail, name_fault
from rationale_service.decisions.options.options import asked_options
from rationale_service.decisions.rows import DecidingEntry, DecisionSession
from rationale_service.repository.remote import local_repository
from rationale_service.settings import Settings

WITHOUT = "without a decision"
_AT_ONCE = 100  # rows that are written and flushed together
_GRAPH, _RECORDED, _OPTIONS = (f"rationale.{name}" for name in ("graph", "recorded", "options"))


def trail_for(settings: Settings, *, audited: bool) -> AuditTrail:
    """Return the trail of a portfolio's decisions.

    Raises InvalidOptionError if `trail_of` does, or if `audited` contradicts the settings.
    """
    if not audited:
        return NoTrail()
    from rationale_service.decisions.audit.writer import trail_of

    trail = trail_of(settings)
    if isinstance(trail, NoTrail):
        raise InvalidOptionError(
            "--audit: RATIONALE_AUDIT=off disables the trail: set RATIONALE_AUDIT to a database, or leave "
            "--audit out"
        )
    return trail


@dataclass(frozen=True)
class OutcomeCounts:
    """Number of rows for each outcome.

    Attributes:
        recorded: number of decisions that this run has added to the audit trail; None without a trail.
    """

    counts: Counter[str]
    recorded: int | None = None

    def __str__(self) -> str:
        """Return a sentence for a terminal."""
        rows, decided = self.counts.total(), self.counts.total() - self.counts[WITHOUT]
        text = f"{rows} rows: " + ", ".join(f"{n} {outcome}" for outcome, n in sorted(self.counts.items()))
        if self.recorded is None:
            return text
        return f"{text}; in the audit trail: {decided - self.recorded} found, {self.recorded} new"


def _new_records(trail: AuditTrail, session: DecisionSession) -> int | None:
    return None if isinstance(trail, NoTrail) else session.new


# --- one file ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Portfolio:
    """Rows of a file, and the entry that decides them.

    Attributes:
        digest: digest of the rows and of the entry; an interrupted run with the same digest goes on.
        kept_columns: columns to copy unchanged.
        application_ids: lender's own id of each row; empty without any.
    """

    deciding: DecidingEntry
    instances: Sequence[Instance]
    digest: str
    kept_columns: KeptColumns = field(default_factory=dict)
    application_ids: Sequence[str | None] = ()


def read_portfolio(
    settings: Settings,
    name: str,
    file: Path,
    keep: Sequence[str] = (),
    *,
    application: str | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Portfolio:
    """Read a portfolio.

    Args:
        file: .csv, .parquet, .xlsx, .npz or .npy, with the columns of the model and of knock-outs.
        keep: columns of a table to copy unchanged.
        application: column with the lender's own ids.
        options: values of the options of `:decide`, by name.

    Raises:
        RepositoryError, UnknownModelError, NotExplainableError: if there is no such model, or it does not
            decide.
        InvalidOptionError, InvalidReferencesError: if rows do not fit.
    """
    deciding = DecidingEntry.of(local_repository(settings), name, options)
    inputs, extra, _ = read_applicants(deciding.compiled, file)
    rows = deciding.instances(inputs, extra)
    check_kept(keep, decision_columns(deciding.manifest, _further(deciding)))
    ids: list[str | None] = []
    if application is not None:
        ids = _application_ids(application, read_columns(file, [application], len(rows))[application])
    kept = read_columns(file, keep, len(rows))
    return Portfolio(deciding, rows, deciding.digest(rows, ids), kept, ids)


def decide_portfolio(
    portfolio: Portfolio, settings: Settings, save: Path, trail: AuditTrail, progress: Progress = silent
) -> OutcomeCounts:
    """Decide every row and save the decisions.

    Decisions go to a file beside `save` until all are there: after an interruption, another call with the
    same rows and entry goes on at its end. The trail returns decisions that were recorded but not saved.

    Args:
        save: file to write or replace: .csv, .parquet and .xlsx with a row for each decision and its reasons
            in columns, .jsonl with whole answers.

    Raises:
        InvalidOptionError: if the file cannot be written.
        StateUnavailableError, ConflictError: if the trail cannot be written.
    """
    check_decisions(save)
    further = _further(portfolio.deciding)
    digest = hashlib.sha256(f"{portfolio.digest}{_asked(portfolio.deciding)}".encode()).hexdigest()
    partial = save.with_name(f"{save.name}.{digest[:16]}.partial")
    with _save_errors_reported(save):
        decided_rows = _resume(partial)
        with partial.open("ab") as file, portfolio.deciding.session(settings, trail) as decide:
            _decide(portfolio, decide, file, decided_rows, progress)
        with atomic_file(save) as partial_file:
            write_decisions(
                partial_file, portfolio.deciding.manifest, _lines(partial), portfolio.kept_columns, further
            )
        counts = Counter(_outcome(line) for line in _lines(partial))
        partial.unlink()
    return OutcomeCounts(counts, _new_records(trail, decide))


@contextmanager
def _save_errors_reported(save: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidOptionError(f"--save {save}: cannot be written: {error.strerror or error}.") from error


def _resume(partial: Path) -> int:
    """Count the rows that an interrupted run saved in whole parts; drop an incomplete part."""
    if not partial.exists():
        return 0
    count = size = 0
    whole_parts = 0, 0
    with partial.open("r+b") as file:
        for line in file:
            count, size = count + 1, size + len(line)
            if count % _AT_ONCE == 0 and line.endswith(b"\n"):
                whole_parts = count, size
        file.truncate(whole_parts[1])
    return whole_parts[0]


def _decide(
    portfolio: Portfolio, decide: DecisionSession, file: Any, start_row: int, progress: Progress
) -> None:
    rows = portfolio.instances
    for start in range(start_row, len(rows), _AT_ONCE):
        block, key = rows[start : start + _AT_ONCE], f"portfolio-{portfolio.digest[:32]}-{start}"
        ids = portfolio.application_ids[start : start + _AT_ONCE]
        lines = decide(block, key, ids, lambda done: progress("deciding", done, len(rows)), start)
        for i, line in enumerate(lines, start):
            file.write(orjson.dumps({"row": i, **line}, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _application_ids(column: str, cells: Sequence[Any]) -> list[str | None]:
    """Return a column's ids; an empty cell has none. Raises InvalidOptionError."""
    ids = [None if cell is None or cell != cell or cell == "" else str(cell) for cell in cells]
    for i, each in enumerate(ids, 1):
        if each is not None and (fault := name_fault(each)) is not None:
            raise InvalidOptionError(f"--application-id: row {i} of the column '{column}' {fault}")
    return ids


def _lines(partial: Path) -> Iterator[Line]:
    with partial.open("rb") as file:
        for line in file:
            yield orjson.loads(line)


def _further(deciding: DecidingEntry) -> Further:
    """Return the columns that a file has besides those of every decision."""
    asked = [option.load() for option, _ in asked_options(deciding.options) if option.is_recorded]
    return [column for module in asked for column in module.columns(deciding.manifest)]


def _asked(deciding: DecidingEntry) -> str:
    """Return the options as a text, by which answers with others are told apart."""
    return ",".join(f"{name}={value}" for name, value in deciding.options.items())


def _outcome(line: Line) -> str:
    decision = line.get("decision")
    return WITHOUT if decision is None else str(decision["decision"])


# --- many files -------------------------------------------------------------------------------------------


def decide_files(
    settings: Settings,
    name: str,
    rows: str,
    save: str,
    trail: AuditTrail,
    keep: Sequence[str] = (),
    progress: Progress = silent,
    *,
    application: str | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[AnsweredFiles, OutcomeCounts]:
    """Decide the rows of parquet files through `answer_files`.

    A file that an interrupted run did not finish is decided from its first row; the trail returns decisions
    that it has already.

    Args:
        keep: columns to copy unchanged.
        application: column with the lender's own ids.
        options: values of the options of `:decide`, by name.

    Raises:
        RepositoryError, UnknownModelError, NotExplainableError: if there is no such model, or it does not
            decide.
        InvalidOptionError, InvalidReferencesError: if files or rows cannot be used.
        StateUnavailableError, ConflictError: if the trail cannot be written.
    """
    deciding = DecidingEntry.of(local_repository(settings), name, options)
    _further(deciding)  # refuses before anything is loaded
    with deciding.session(settings, trail) as decide:
        is_recorded = not isinstance(trail, NoTrail)
        means = _PortfolioAnswers(deciding, decide, tuple(keep), _AT_ONCE, is_recorded, application)
        result = answer_files(rows, save, means, progress)
    counts: Counter[str] = Counter()
    for table in result.columns(["decision"]):
        for outcome in table.column("decision").value_counts().to_pylist():
            counts[outcome["values"] or WITHOUT] += outcome["counts"]
    return result, OutcomeCounts(counts, _new_records(trail, decide))


@dataclass(frozen=True)
class _PortfolioAnswers:
    deciding: DecidingEntry
    decide: DecisionSession
    keep: tuple[str, ...]
    batch_rows: int
    is_recorded: bool
    application: str | None
    stage: str = "deciding"

    def schema(self, table: Any) -> Any:
        none = decision_batch(self._manifest, [], _further(self.deciding))
        schema = with_kept(none, empty_batch(table), self.keep).schema
        explanation, profile, graph = self.deciding.made_by
        made_by = {DIGEST: explanation, PROFILE: profile, _GRAPH: graph}
        marks = {_RECORDED: "yes" if self.is_recorded else "", _OPTIONS: _asked(self.deciding)}
        return schema.with_metadata(made_by | {name: mark for name, mark in marks.items() if mark})

    def answers(self, files: Iterator[tuple[RowFile, Iterator[Any]]]) -> Iterator[Any]:
        return chain.from_iterable(starmap(self._answers_of, files))

    def _answers_of(self, source: RowFile, batches: Iterator[Any]) -> Iterator[Any]:
        first = 0
        place = hashlib.sha256(source.path.encode()).hexdigest()[:8]  # equal rows elsewhere are others
        for batch in batches:
            last = first + batch.num_rows - 1
            try:
                rows = self.deciding.instances(*applicants_of(self.deciding.compiled, batch))
            except RationaleError as error:
                raise type(error)(f"rows {first} to {last}: {error}") from error
            ids: list[str | None] = []
            if self.application is not None:
                if self.application not in batch.schema.names:
                    raise InvalidOptionError(f"--application-id: no column '{self.application}'")
                ids = _application_ids(self.application, batch.column(self.application).to_pylist())
            key = f"portfolio-{self.deciding.digest(rows, ids)[:32]}-{place}-{first}"
            lines = [{"row": i, **line} for i, line in enumerate(self.decide(rows, key, ids), first)]
            answers = decision_batch(self._manifest, lines, _further(self.deciding))
            yield with_kept(answers, batch, self.keep)
            first = last + 1

    @property
    def _manifest(self) -> Manifest:
        return self.deciding.manifest
