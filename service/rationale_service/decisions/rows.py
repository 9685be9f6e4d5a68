"""Decisions on rows of files, one by one, by the rules of `:decide`."""

import asyncio
import getpass
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import orjson

from rationale.artifact.compiled import Compiled
from rationale.artifact.entry import open_entry
from rationale.decisions.rows import feature_values, profile_of
from rationale.portfolios.decisions import Line
from rationale.schema.machine import available_cores
from rationale.schema.manifest import Manifest
from rationale_service.decisions.decider import RequestFacts, as_recorded, decisions_of, inputs_of, with_ids
from rationale_service.decisions.trail import AuditTrail, RecordedDecision
from rationale_service.engine.backends.devices import Devices
from rationale_service.engine.backends.onnxruntime import ReadyEntry, load_warmed, run, runtime
from rationale_service.engine.checks import Faults, check_answer
from rationale_service.engine.features import form_of
from rationale_service.errors import ErasedInputsError, InvalidInputError, NotFiniteError, UndecidedError
from rationale_service.repository.entry import Entry
from rationale_service.repository.registry import read_repository
from rationale_service.settings import Settings
from rationale_service.tensors import Tensors

_REFUSALS = (InvalidInputError, NotFiniteError, UndecidedError)

Instance = Mapping[str, Any]  # in the form of `:decide`
_ERASED = "the inputs of this decision were erased: the values of its reasons are not shown"


@dataclass(frozen=True, eq=False)
class DecidingEntry:
    """An entry that decides; it converts and decides rows.

    Attributes:
        plain: the plain model, which scores changed rows, if decisions come with recourse.
    """

    entry: Entry
    manifest: Manifest
    compiled: Compiled
    plain: Entry | None = None

    @classmethod
    def of(cls, repository: Path, name: str, *, recourse: bool = False) -> "DecidingEntry":
        """Open an entry.

        Args:
            recourse: whether each decision that is no approval tells what would have changed it.

        Raises:
            RepositoryError, UnknownModelError, NotExplainableError: if there is no such model, or it does not
                decide.
        """
        registry = read_repository(repository, strict=False)
        entry = registry.decider(name)
        manifest = entry.manifest
        assert manifest is not None  # noqa: S101 (it decides)
        plain = registry.entries.get(manifest.model, entry) if recourse else None
        return cls(entry, manifest, open_entry(repository, manifest.model), plain)

    def digest(self, rows: Sequence[Instance], application_ids: Sequence[str | None] = ()) -> str:
        """Return a digest of rows, of their applications and of the entry that decides them."""
        digest = hashlib.sha256(orjson.dumps(rows))
        if application_ids:
            digest.update(orjson.dumps(application_ids))
        for identity in self.made_by:
            digest.update(f"\0{identity}".encode())
        return digest.hexdigest()

    @property
    def made_by(self) -> tuple[str, ...]:
        """Digests of the explanation, the profile and the graph that decide."""
        profile = profile_of(self.manifest).digest
        return self.manifest.digests.explanation, profile, str(self.entry.graph_digest)

    def instances(
        self, inputs: Mapping[str, np.ndarray], extra: Mapping[str, Sequence[Any]]
    ) -> list[Instance]:
        """Return rows in the form in which a caller of `:decide` would send them.

        Args:
            inputs: inputs of the model, [N, …] each.
            extra: columns for knock-outs.
        """
        form = form_of(self.entry, self.manifest)
        return [
            {name: values[name] for name in form.features}
            | {
                spec.name: inputs[spec.name][i].tolist()
                for spec in form.inputs
                if _is_whole(spec.name, form.features)
            }
            | {column: cells[i] for column, cells in extra.items()}
            for i, values in enumerate(feature_values(self.manifest, inputs))
        ]

    @contextmanager
    def session(self, settings: Settings, trail: AuditTrail) -> Iterator["DecisionSession"]:
        """Yield a function that decides and records rows; stop the trail afterwards.

        Raises:
            StateUnavailableError, ConflictError: if the trail cannot be written.
        """
        devices = replace(Devices.chosen(settings), cores=available_cores())
        warmed = load_warmed(self.entry, devices=devices)
        plain = None if self.plain is None else (self.plain, load_warmed(self.plain, devices=devices))
        with asyncio.Runner() as runner:
            try:
                yield DecisionSession(
                    self,
                    warmed,
                    runtime(self.entry, devices.cores, warmed.sessions.devices[:1]),
                    trail,
                    runner,
                    plain,
                )
            finally:
                runner.run(trail.stop())


class DecisionSession:
    """Function that decides rows and records their decisions, under a key that is a digest of the rows.

    Attributes:
        new: number of decisions that this session has recorded; the trail had the others before.
    """

    def __init__(
        self,
        deciding: DecidingEntry,
        warmed: ReadyEntry,
        ran: Mapping[str, Any],
        trail: AuditTrail,
        runner: asyncio.Runner,
        plain: tuple[Entry, ReadyEntry] | None = None,
    ) -> None:
        self.new = 0
        self._deciding, self._drift, self._ran = deciding, warmed.drift, ran
        self._session = warmed.sessions.by_device[warmed.sessions.devices[0]]
        self._trail, self._runner = trail, runner
        self._recourse = None if plain is None else _recourse(deciding, self._session, *plain)

    def __call__(
        self,
        rows: Sequence[Instance],
        key: str,
        application_ids: Sequence[str | None] = (),
        begin: Callable[[int], None] = lambda _: None,
        first: int = 0,
    ) -> list[Line]:
        """Return a line for each row; decisions under the key that the trail has are not recorded again.

        Args:
            application_ids: lender's own id of each row; empty without any.
            begin: a function that is called with each row's number before the row is decided.
            first: the number of the first row.
        """
        ids = application_ids or [None] * len(rows)
        return self._runner.run(self._lines(rows, key, ids, begin, first))

    async def _lines(
        self,
        rows: Sequence[Instance],
        key: str,
        application_ids: Sequence[str | None],
        begin: Callable[[int], None],
        first: int,
    ) -> list[Line]:
        began_s, outcomes = time.monotonic(), list[dict[str, Any] | str]()
        for i, (row, application_id) in enumerate(zip(rows, application_ids, strict=True), first):
            begin(i)
            outcomes.append(await self._decide_row(row, application_id))
        decided = [(row, each) for row, each in zip(rows, outcomes, strict=True) if not isinstance(each, str)]
        facts = RequestFacts(_caller(), "", (time.monotonic() - began_s) * 1e3 / max(len(rows), 1), key)
        own_rows, answers = [row for row, _ in decided], [each for _, each in decided]
        recorded = iter(
            await self._record(list(as_recorded(self._deciding.entry, own_rows, answers, self._ran, facts)))
        )
        return [
            {"fault": each} if isinstance(each, str) else {"decision": _with_recourse(next(recorded), each)}
            for each in outcomes
        ]

    async def _record(self, decisions: Sequence[RecordedDecision]) -> list[Mapping[str, Any]]:
        """Record decisions; return the answers that the trail has."""
        try:
            recorded = await self._trail.record(decisions)
        except ErasedInputsError as error:  # the key proves that the rows are the same
            recorded = error.decisions
        self.new += sum(
            ours.id == recorded_decision.id
            for ours, recorded_decision in zip(decisions, recorded, strict=True)
        )
        return [
            {**recorded_decision.answer, "warnings": [*recorded_decision.answer["warnings"], _ERASED]}
            if recorded_decision.kept == "erased"
            else recorded_decision.answer
            for recorded_decision in recorded
        ]

    async def _decide_row(self, row: Instance, application_id: str | None) -> dict[str, Any] | str:
        """Return the decision on one row, or the reason for which there is none."""
        entry, manifest = self._deciding.entry, self._deciding.manifest
        try:
            inputs = inputs_of(entry, manifest, [row], Faults())
            answers = run(entry, self._session, inputs, entry.output_names)
            check_answer(entry, answers)
            decisions = await decisions_of(manifest, [row], inputs, answers, self._drift)
        except _REFUSALS as error:
            return str(error).removeprefix("instances[0]: ")
        (decision,) = with_ids(decisions, [application_id])
        if self._recourse is None or decision["decision"] == "approve":
            return decision
        (values,) = feature_values(manifest, inputs, [row])
        return {**decision, "recourse": self._recourse(inputs, values, decision)}


def _recourse(
    deciding: DecidingEntry, session: ort.InferenceSession, plain: Entry, warmed: ReadyEntry
) -> Callable[[Tensors, Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]:
    """Return a function that returns the recourse of a decision, from its row, its values and its answer."""
    import onnx

    from rationale.recourse.entry import RunEntry, recourse_finder
    from rationale_service.decisions.recourse import recourse_of

    entry, own = deciding.entry, warmed.sessions.by_device[warmed.sessions.devices[0]]
    graph = onnx.load(entry.model_path, load_external_data=False)
    run_entry = RunEntry(
        deciding.manifest,
        partial(run, plain, own, outputs=plain.output_names),
        partial(run, entry, session, outputs=entry.output_names),
    )
    return partial(recourse_of, recourse_finder(deciding.manifest, graph), run_entry)


def _with_recourse(recorded: Mapping[str, Any], decided: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a recorded answer with its recourse, which is new if an earlier run recorded none."""
    return {"recourse": decided["recourse"], **recorded} if "recourse" in decided else recorded


def _is_whole(tensor: str, features: Mapping[str, tuple[str, int]]) -> bool:
    """Tell whether an input has no named features."""
    return all(owner != tensor for owner, _ in features.values())


def _caller() -> str:
    """Return the caller's name for the trail: the user of this machine."""
    try:
        return f"rationale decide by {getpass.getuser()}"
    except (OSError, KeyError):  # a user without a name, as in a container
        return f"rationale decide by {os.getuid()}"
