"""`rationale decide`: the rows of a file decided as `:decide` decides them, one by one, and saved."""

import asyncio
import csv
import getpass
import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from compiler.artefact.entry import open_entry
from compiler.artefact.folder import whole
from compiler.decisions.rows import decided_of, values_of
from compiler.errors import InvalidOptionError
from compiler.evaluate.decisions.decided import read_applicants
from compiler.machine import available_cores
from compiler.manifest import Manifest
from service.backends.devices import Devices
from service.backends.onnxruntime import load_and_time, run, runtime
from service.decisions.decider import Asked, as_recorded, decisions_of, inputs_of
from service.decisions.trail import AuditTrail, NoTrail
from service.errors import InvalidInputError, NotFiniteError, UndecidedError
from service.inference.checks import Faults, check_answer
from service.inference.features import form_of
from service.repository.entry import Entry
from service.repository.registry import read_repository
from service.repository.remote import local_repository
from service.settings import Settings

KINDS = (".csv", ".jsonl")
WITHOUT = "without a decision"
_AT_ONCE = 100  # rows that are written, and synced, together
_REFUSALS = (InvalidInputError, NotFiniteError, UndecidedError)
_REASON = ("code", "text", "feature", "value", "unit", "category", "attribution", "share")
_NUMBERS = ("score", "threshold", "explained_value", "base_value", "completeness_gap")

Tell = Callable[[str, int, int], None]
Line = dict[str, Any]  # of one row: its number in the file, and its decision or why there is none


@dataclass(frozen=True)
class Portfolio:
    """Rows of a file, and what decides them.

    Attributes:
        instances: as a caller of `:decide` would send them.
        digest: of the rows and of what decides them: where it is the same, an interrupted run goes on.
    """

    entry: Entry
    manifest: Manifest
    instances: Sequence[Mapping[str, Any]]
    digest: str


def read_portfolio(settings: Settings, name: str, file: Path) -> Portfolio:
    """Read a portfolio.

    Args:
        file: .csv, .parquet, .npz or .npy, with the columns of the model and of knock-outs.

    Raises:
        RepositoryError, UnknownModelError, NotExplainableError: no such model, or none that decides.
        InvalidOptionError, InvalidReferencesError: rows that do not fit.
    """
    repository = local_repository(settings)
    entry = read_repository(repository, strict=False).decider(name)
    manifest = entry.manifest
    assert manifest is not None  # noqa: S101 (it decides)
    inputs, beside, _ = read_applicants(open_entry(repository, manifest.model), file)
    form = form_of(entry, manifest)
    rows = [
        {name: values[name] for name in form.features}
        | {
            spec.name: inputs[spec.name][i].tolist()
            for spec in form.inputs
            if _is_whole(spec.name, form.features)
        }
        | {column: cells[i] for column, cells in beside.items()}
        for i, values in enumerate(values_of(manifest, inputs))
    ]
    digest = hashlib.sha256(orjson.dumps(rows))
    for part in (manifest.digests.explanation, decided_of(manifest).digest, entry.graph_digest):
        digest.update(f"\0{part}".encode())
    return Portfolio(entry, manifest, rows, digest.hexdigest())


def _is_whole(tensor: str, features: Mapping[str, tuple[str, int]]) -> bool:
    """Tell whether an input has no features with names of their own."""
    return all(owner != tensor for owner, _ in features.values())


def decide_portfolio(
    portfolio: Portfolio, settings: Settings, save: Path, trail: AuditTrail, tell: Tell = lambda *_: None
) -> Counter[str]:
    """Decide every row and save them; returns how many were decided how.

    What is decided stands in a file beside `save` until all is there: called again after it was interrupted,
    with the same rows and entry, it goes on where that ends. A decision that was recorded and not saved is
    found in the trail again.

    Args:
        save: .csv, a row for each and its reasons in columns; .jsonl, whole answers. Replaced where it is.

    Raises:
        InvalidOptionError: it cannot be written.
        StateUnavailableError, ConflictError: the trail cannot be.
    """
    if save.suffix.lower() not in KINDS:
        raise InvalidOptionError(
            f"--save {save}: cannot be written: its name must end in {', '.join(KINDS)}."
        )
    kept = save.with_name(f"{save.name}.{portfolio.digest[:16]}.partial")
    with _told(save):
        done = _resume(kept)
        with kept.open("ab") as file:
            asyncio.run(_decide(portfolio, settings, trail, file, done, tell))
        with whole(save) as part:
            _WRITERS[save.suffix.lower()](part, portfolio.manifest, _lines(kept))
        counts = Counter(_outcome(line) for line in _lines(kept))
        kept.unlink()
    return counts


@contextmanager
def _told(save: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidOptionError(f"--save {save}: cannot be written: {error.strerror or error}.") from error


def _resume(kept: Path) -> int:
    """Count the rows that an interrupted run saved, as whole parts; what is there of another is dropped."""
    if not kept.exists():
        return 0
    count = size = 0
    whole_parts = 0, 0
    with kept.open("r+b") as file:
        for line in file:
            count, size = count + 1, size + len(line)
            if count % _AT_ONCE == 0 and line.endswith(b"\n"):
                whole_parts = count, size
        file.truncate(whole_parts[1])
    return whole_parts[0]


async def _decide(
    portfolio: Portfolio, settings: Settings, trail: AuditTrail, file: Any, done: int, tell: Tell
) -> None:
    entry, rows = portfolio.entry, portfolio.instances
    devices = Devices(settings.device, settings.cpu_fallback, available_cores(), settings.allow_custom_ops)
    sessions, _ = load_and_time(entry, devices=devices)
    device = sessions.devices[0]
    session, ran = sessions.by_device[device], runtime(entry, devices.cores, (device,))
    try:
        for start in range(done, len(rows), _AT_ONCE):
            tell("deciding", start, len(rows))
            part, began_s = rows[start : start + _AT_ONCE], time.monotonic()
            found = [await _decided(portfolio, session, row) for row in part]
            decided = [
                (row, each) for row, each in zip(part, found, strict=True) if not isinstance(each, str)
            ]
            latency_ms = (time.monotonic() - began_s) * 1e3 / len(part)
            asked = Asked(_caller(), "", latency_ms, f"portfolio-{portfolio.digest[:32]}-{start}")
            made = as_recorded(entry, [row for row, _ in decided], [each for _, each in decided], ran, asked)
            recorded = iter(await trail.record(made))
            for i, each in enumerate(found, start):
                line = {"fault": each} if isinstance(each, str) else {"decision": next(recorded).answer}
                file.write(orjson.dumps({"row": i, **line}, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
            file.flush()
            os.fsync(file.fileno())
    finally:
        await trail.stop()


async def _decided(portfolio: Portfolio, session: Any, row: Mapping[str, Any]) -> dict[str, Any] | str:
    """Return the decision on one row, or why there is none."""
    entry, manifest = portfolio.entry, portfolio.manifest
    try:
        inputs = inputs_of(entry, manifest, [row], Faults())
        answers = run(entry, session, inputs, entry.output_names)
        check_answer(entry, answers)
        (decision,) = await decisions_of(manifest, [row], inputs, answers)
    except _REFUSALS as error:
        return str(error).removeprefix("instances[0]: ")
    return decision


def _caller() -> str:
    """Return who the trail says has called: the user of this machine."""
    try:
        return f"rationale decide by {getpass.getuser()}"
    except (OSError, KeyError):  # a user without a name, as in a container
        return f"rationale decide by {os.getuid()}"


def _lines(kept: Path) -> Iterator[Line]:
    with kept.open("rb") as file:
        for line in file:
            yield orjson.loads(line)


def _outcome(line: Line) -> str:
    decision = line.get("decision")
    return WITHOUT if decision is None else str(decision["decision"])


# --- files ----------------------------------------------------------------------------------------------


def _write_csv(path: Path, manifest: Manifest, lines: Iterator[Line]) -> None:
    most = decided_of(manifest).profile.max_reasons
    reasons = [f"reason_{k}_{part}" for k in range(1, most + 1) for part in _REASON]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(
            file, ["row", "id", "decision", *_NUMBERS, *reasons, "warnings", "fault"], lineterminator="\n"
        )
        writer.writeheader()
        for line in lines:
            decision = line.get("decision")
            cells = {"row": line["row"], "fault": line.get("fault")}
            writer.writerow(cells if decision is None else cells | _cells(decision))


def _cells(decision: Mapping[str, Any]) -> dict[str, Any]:
    cells = {name: decision[name] for name in ("id", "decision", *_NUMBERS)}
    for k, reason in enumerate(decision["reasons"], 1):
        cells |= {f"reason_{k}_{part}": _cell(reason[part]) for part in _REASON}
    return cells | {"warnings": "; ".join(decision["warnings"])}


def _cell(value: Any) -> Any:
    """Return the values of a group's members, as JSON."""
    return orjson.dumps(value).decode() if isinstance(value, dict) else value


def _write_jsonl(path: Path, _: Manifest, lines: Iterator[Line]) -> None:
    with path.open("wb") as file:
        file.writelines(orjson.dumps(line) + b"\n" for line in lines)


_WRITERS: dict[str, Callable[[Path, Manifest, Iterator[Line]], None]] = {
    ".csv": _write_csv,
    ".jsonl": _write_jsonl,
}


def trail_for(settings: Settings, *, audited: bool) -> AuditTrail:
    """Return the trail of a portfolio's decisions.

    Raises InvalidOptionError: as `trail_of`; or an audit is requested that the settings switch off.
    """
    if not audited:
        return NoTrail()
    from service.decisions.audit.writer import trail_of

    trail = trail_of(settings)
    if isinstance(trail, NoTrail):
        raise InvalidOptionError(
            "--audit: RATIONALE_AUDIT=off keeps no trail: name a database, or leave it out"
        )
    return trail
