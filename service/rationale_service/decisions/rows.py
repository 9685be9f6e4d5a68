"""Decisions on rows of files, one by one, by the rules of `:decide`."""

import asyncio
import getpass
import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson

from rationale.artifact.compiled import Compiled
from rationale.artifact.entry import open_entry
from rationale.decisions.rows import feature_values, profile_of
from rationale.portfolios.decisions import Line
from rationale.schema.machine import available_cores
from rationale.schema.manifest import Manifest
from rationale_service.decisions.audit.rows import Instance
from rationale_service.decisions.audit.trail import AuditTrail, RecordedDecision
from rationale_service.decisions.decider import RequestFacts, as_recorded, decisions_of, inputs_of, with_ids
from rationale_service.decisions.options.options import OptionSearch, asked_options
from rationale_service.engine.backends.devices import Devices
from rationale_service.engine.backends.onnxruntime import ReadyEntry, load_warmed, run, runtime
from rationale_service.engine.checks import Faults, check_answer
from rationale_service.engine.features import form_of
from rationale_service.errors import ErasedInputsError, InvalidInputError, NotFiniteError, UndecidedError
from rationale_service.repository.entry import Entry
from rationale_service.repository.registry import ModelRegistry, read_repository
from rationale_service.settings import Settings
from rationale_service.tensors import Tensors

_REFUSALS = (InvalidInputError, NotFiniteError, UndecidedError)

_ERASED = "the inputs of this decision were erased: the values of its reasons are not shown"


@dataclass(frozen=True, eq=False)
class DecidingEntry:
    """An entry that decides; it converts and decides rows.

    Attributes:
        registry: the entries of the repository.
        options: values of the options of `:decide`, by name.
    """

    entry: Entry
    manifest: Manifest
    compiled: Compiled
    registry: ModelRegistry
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, repository: Path, name: str, options: Mapping[str, Any] = MappingProxyType({})
    ) -> "DecidingEntry":
        """Open an entry.

        Args:
            options: values of the options of `:decide`, by name; false or None is as if it were not there.

        Raises:
            RepositoryError, UnknownModelError, NotExplainableError: if there is no such model, or it does not
                decide.
            ServiceError: if the model does not have an option.
        """
        registry = read_repository(repository, strict=False)
        entry = registry.decider(name)
        manifest = entry.manifest
        assert manifest is not None  # noqa: S101 (it decides)
        asked = asked_options(options)
        for option, value in asked:
            option.load().demand(manifest, None, value)
        own = {option.name: value for option, value in asked}
        return cls(entry, manifest, open_entry(repository, manifest.model), registry, own)

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
        plane = _LocalPlane(self.registry, devices)
        warmed = plane.warmed(self.entry)
        ran = runtime(self.entry, devices.cores, warmed.sessions.devices[:1])
        asked = asked_options(self.options)
        searches = [option.load().search(plane) for option, _ in asked if option.is_recorded]
        with asyncio.Runner() as runner:
            try:
                yield DecisionSession(self, plane, ran, trail, runner, searches)
            finally:
                for search in searches:
                    search.stop()
                runner.run(trail.stop())


class _LocalPlane:
    """Runs entries of a repository in this process, each loaded when it is first needed."""

    def __init__(self, repository: ModelRegistry, devices: Devices) -> None:
        self.repository, self._devices = repository, devices
        self._ready = dict[Entry, ReadyEntry]()

    def warmed(self, entry: Entry) -> ReadyEntry:
        """Return an entry's sessions."""
        if entry not in self._ready:
            self._ready[entry] = load_warmed(entry, devices=self._devices)
        return self._ready[entry]

    async def infer(
        self,
        entry: Entry,
        inputs: Tensors,
        outputs: Sequence[str] | None,
        _: float,
        *,
        by_row: bool = False,
    ) -> Tensors:
        """Run an entry, without a deadline; see `DataPlane.infer`."""
        sessions = self.warmed(entry).sessions
        run_rows = partial(
            run, entry, sessions.by_device[sessions.devices[0]], outputs=outputs or entry.output_names
        )
        rows = len(next(iter(inputs.values())))
        if not by_row or rows == 1:
            return run_rows(inputs)
        each = [run_rows({name: array[i : i + 1] for name, array in inputs.items()}) for i in range(rows)]
        return {name: np.concatenate([answers[name] for answers in each]) for name in each[0]}


class DecisionSession:
    """Function that decides rows and records their decisions, under a key that is a digest of the rows.

    Attributes:
        new: number of decisions that this session has recorded; the trail had the others before.
    """

    def __init__(
        self,
        deciding: DecidingEntry,
        plane: _LocalPlane,
        ran: Mapping[str, Any],
        trail: AuditTrail,
        runner: asyncio.Runner,
        searches: Sequence[OptionSearch] = (),
    ) -> None:
        self.new = 0
        self._deciding, self._plane, self._ran = deciding, plane, ran
        self._trail, self._runner, self._searches = trail, runner, searches

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
        recorded = await self._record(
            list(as_recorded(self._deciding.entry, own_rows, answers, self._ran, facts))
        )
        answers = [_with_additions(one, each) for one, each in zip(recorded, answers, strict=True)]
        for option, value in asked_options(self._deciding.options):
            if not option.is_recorded:
                answers = [*option.load().answered(self._deciding.manifest, answers, value)]
        decisions = iter(answers)
        return [
            {"fault": each} if isinstance(each, str) else {"decision": next(decisions)} for each in outcomes
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
            answers = await self._plane.infer(entry, inputs, None, math.inf)
            check_answer(entry, answers)
            drift = self._plane.warmed(entry).drift
            decisions = await decisions_of(manifest, [row], inputs, answers, drift)
            decisions = [*with_ids(decisions, [application_id])]
            if decisions[0]["decision"] != "approve":  # an approval has neither reasons nor plans
                for search in self._searches:
                    decisions = await search.add(entry, [row], inputs, decisions, math.inf)
        except _REFUSALS as error:
            return str(error).removeprefix("instances[0]: ")
        return decisions[0]


def _with_additions(recorded: Mapping[str, Any], decided: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded answer with the additions of options that an earlier run did not have."""
    reasons = zip(decided["reasons"], recorded["reasons"], strict=True)
    return {**decided, **recorded, "reasons": [{**now, **then} for now, then in reasons]}


def _is_whole(tensor: str, features: Mapping[str, tuple[str, int]]) -> bool:
    """Tell whether an input has no named features."""
    return all(owner != tensor for owner, _ in features.values())


def _caller() -> str:
    """Return the caller's name for the trail: the user of this machine."""
    try:
        return f"rationale decide by {getpass.getuser()}"
    except (OSError, KeyError):  # a user without a name, as in a container
        return f"rationale decide by {os.getuid()}"
