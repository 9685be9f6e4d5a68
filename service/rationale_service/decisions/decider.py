"""`:decide`: instances in, decisions with reasons out, each recorded before it is answered.

The drift of recent decisions from the references is measured as the population stability of a window.
"""

import asyncio
import contextlib
import re
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import numpy as np

from rationale.decisions.decided import Undecided, decide_rows, decision_answer, refusals
from rationale.decisions.drift import SCORE, stability_index
from rationale.decisions.rows import feature_values, profile_of
from rationale.schema.manifest import Classes, Manifest
from rationale.schema.profile import KnockOut, ReviewRule
from rationale_service.decisions.audit.rows import Instance, time_text
from rationale_service.decisions.audit.trail import AuditTrail, Case, RecordedDecision, check_repeated
from rationale_service.decisions.options.options import OPTIONS, DecisionOption, OptionSearch
from rationale_service.engine.checks import Faults
from rationale_service.engine.dataplane import DataPlane
from rationale_service.engine.features import form_of, to_tensors
from rationale_service.engine.request import InferenceRequest
from rationale_service.errors import (
    ConflictError,
    DeadlineError,
    MalformedError,
    UndecidedError,
)
from rationale_service.handlers import AdmittedRequest, BodyReader, InferenceCall, Verb, open_request
from rationale_service.observability.context import current
from rationale_service.observability.metrics import Metrics
from rationale_service.repository.entry import Entry
from rationale_service.repository.registry import ModelRegistry
from rationale_service.security import keys
from rationale_service.tensors import Tensors, json_type_name

_AT_ONCE = 32  # rows per turn of the event loop
_MADE_AT_ONCE = 512  # records per turn: they cost a twentieth of a decision
WINDOW = 1000  # decisions
LEAST = 200  # with fewer decisions figures are 0: chance alone would give 9/200
REFRESH_S = 1.0  # a count takes microseconds, figures of 100 features a millisecond
_KEY = re.compile(r"[!-~]{1,255}")
T = TypeVar("T")


class Drift:
    """Windows of each model's last decisions, in this process."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._windows: dict[str, _DecisionWindow] = {}

    def observe(self, manifest: Manifest, answers: Sequence[Mapping[str, Any]]) -> None:
        """Count members of `decisions`; if another entry decides now, the model's window starts again."""
        decided, model = profile_of(manifest), manifest.model
        made_by = (manifest.digests.explanation, decided.digest)
        window = self._windows.get(model)
        if window is None or window.made_by != made_by:
            if window is not None:
                self._metrics.set_drift(model, 0, dict.fromkeys(window.classes, 0.0))
            window = self._windows[model] = _DecisionWindow(made_by, decided.classes)
        if not window.classes:
            return
        window.add(answers)
        now = time.monotonic()
        if now >= window.due_s:
            window.due_s = now + REFRESH_S
            self._metrics.set_drift(model, len(window), window.figures())


class _DecisionWindow:
    """The classes of the last decisions, and the number of decisions in each."""

    def __init__(self, made_by: tuple[str, str], classes: Mapping[str, Classes]) -> None:
        self.made_by, self.classes, self.due_s = made_by, classes, 0.0
        self._keys = tuple(classes)
        most = max((len(feature_classes.bounds) for feature_classes in classes.values()), default=0)
        self._bounds = np.full((len(classes), most), np.inf)
        for row, feature_classes in zip(self._bounds, classes.values(), strict=True):
            row[: len(feature_classes.bounds)] = feature_classes.bounds
        self._counts = np.zeros((len(classes), most + 1), int)
        self._indices = np.arange(len(classes))
        self._last: deque[np.ndarray] = deque()

    def __len__(self) -> int:
        return len(self._last)

    def add(self, answers: Sequence[Mapping[str, Any]]) -> None:
        values = np.array(
            [
                [answer["score"] if key == SCORE else answer["attributions"][key] for key in self._keys]
                for answer in answers
            ]
        )
        self._last.extend(class_indices := (values[:, :, None] > self._bounds).sum(axis=2))
        np.add.at(self._counts, (self._indices, class_indices), 1)
        gone = [self._last.popleft() for _ in range(len(self._last) - WINDOW)]
        if gone:
            np.add.at(self._counts, (self._indices, np.array(gone)), -1)

    def figures(self) -> dict[str, float]:
        """Return the stability index of the score and of each feature; 0 below LEAST decisions."""
        if len(self) < LEAST:
            return dict.fromkeys(self.classes, 0.0)
        counted = zip(self.classes.items(), self._counts, strict=True)
        return {
            key: stability_index(feature_classes, row[: len(feature_classes.shares)])
            for (key, feature_classes), row in counted
        }


@dataclass(frozen=True)
class Correction:
    """A review on corrected inputs, by the entry of the first decision."""

    case: Case
    reviewer: str

    def check(self, manifest: Manifest) -> None:
        """Raise ConflictError if another entry decides now."""
        digests = self.case.first.answer["digests"]
        now = {"explainer": manifest.digests.explanation, "profile": profile_of(manifest).profile.digest}
        if any(digests[name] != digest for name, digest in now.items()):
            raise ConflictError(
                f"decision {self.case.first.id} was made by another version of '{manifest.model}': serve "
                "that version to correct the inputs, or send a person's judgment"
            )

    def applied(self, decision: Mapping[str, Any]) -> dict[str, Any]:
        """Return the decision with the case that it reviews, and its differences from the first decision."""
        difference = difference_of(self.case.first.answer, decision)
        return {
            **decision,
            "reviews": self.case.first.id,
            "reviewer": self.reviewer,
            "difference": difference,
        }


def difference_of(first: Mapping[str, Any], decision: Mapping[str, Any]) -> dict[str, Any]:
    """Return by how much the explained value differs between two decisions, in all and by feature.

    The base value is the same, so that differences of attributions add up, as far as attributions do.
    """
    before, after = first["attributions"], decision["attributions"]
    return {
        "explained_value": decision["explained_value"] - first["explained_value"],
        "attributions": {name: after[name] - before[name] for name in after},
    }


class Decider:
    """Decider by the compiled profiles of entries."""

    def __init__(self, plane: DataPlane, trail: AuditTrail, drift: Drift) -> None:
        self._plane = plane
        self._trail = trail
        self._drift = drift
        self._searches: dict[str, OptionSearch] = {}

    def stop(self) -> None:
        """Begin no more searches of options."""
        for search in self._searches.values():
            search.stop()

    async def decide(
        self,
        call: InferenceCall,
        read: BodyReader,
        key: str | None = None,
        correction: Correction | None = None,
    ) -> list[Mapping[str, Any]]:
        """Return the decisions in the order of the instances: all of them, or an error and none.

        A dry run gives decisions without ids and records none.
        Each row runs alone: in a batch, the last bits of an answer may depend on the other rows.

        Args:
            key: idempotency key; earlier decisions under it are answered again.
            correction: case that the decision reviews, on corrected inputs.

        Raises:
            ServiceError: if `open_request`, `DataPlane` or `AuditTrail` raises it.
            MalformedError: if the key is invalid, or comes with a dry run.
            UndecidedError: if no reasons can be given for a row.
        """
        plane, began_s = self._plane, time.monotonic()
        context = current()
        if context is not None:
            context.decides = True
        check_key(key)
        admitted = await open_request(plane, call, read)
        request, entry = admitted.request, admitted.entry
        manifest, rows, deadline_s = _manifest_of(entry), _rows_of(request), admitted.deadline_s
        caller = "" if context is None else context.caller.name
        _check_options(request, manifest, key)
        reviews = None if correction is None else correction.case.first.id
        if key is not None:
            async with until(deadline_s):
                earlier = await self._trail.find(manifest.model, caller, key, rows)
            if earlier:
                _check_repeated(earlier, request, reviews)
                return await _answers(request, manifest, [decision.answer for decision in earlier])
        decisions = await self._decisions(admitted, correction)
        if request.dry_run:
            dry = [{**decision, "id": None} for decision in decisions]
            return await _answers(request, manifest, dry)
        latency_ms = (time.monotonic() - (began_s if context is None else context.began_s)) * 1e3
        request_id = "" if context is None else context.request_id
        facts = RequestFacts(caller, request_id, latency_ms, key)
        now = None if correction is None else correction.case.time_after()
        records = await _in_turns(
            as_recorded(entry, rows, decisions, plane.backend.runtime(entry), facts, now)
        )
        async with until(deadline_s):
            recorded = await self._trail.record(records)
        if recorded and recorded[0].id != records[0].id:  # another request with the key was first
            _check_repeated(recorded, request, reviews)
        elif recorded:
            for start in range(0, len(recorded), _AT_ONCE):
                self._drift.observe(
                    manifest, [decision.answer for decision in recorded[start : start + _AT_ONCE]]
                )
                await asyncio.sleep(0)
        return await _answers(request, manifest, [decision.answer for decision in recorded])

    async def _decisions(
        self, admitted: AdmittedRequest, correction: Correction | None
    ) -> list[dict[str, Any]]:
        """Return the decisions, with the members of options and of a correction."""
        plane, request, entry, inputs = self._plane, admitted.request, admitted.entry, admitted.inputs
        manifest, rows, deadline_s = _manifest_of(entry), _rows_of(request), admitted.deadline_s
        if correction is not None:
            correction.check(manifest)
        answers = await plane.infer(entry, inputs, None, deadline_s, by_row=True)
        decisions = await decisions_of(manifest, rows, inputs, answers, plane.backend.drift(entry))
        if request.application_ids:
            decisions = await _in_turns(with_ids(decisions, request.application_ids))
        for option in OPTIONS:
            if option.is_recorded and option.name in request.options:
                decisions = await self._search(option).add(entry, rows, inputs, decisions, deadline_s)
        return decisions if correction is None else [correction.applied(each) for each in decisions]

    def _search(self, option: DecisionOption) -> OptionSearch:
        if option.name not in self._searches:
            self._searches[option.name] = option.load().search(self._plane)
        return self._searches[option.name]


@dataclass(frozen=True)
class RequestFacts:
    """A record's facts about the request: see `RecordedDecision`."""

    caller: str
    request_id: str
    latency_ms: float
    key: str | None


async def _in_turns(items: Iterable[T], at_once: int = _MADE_AT_ONCE) -> list[T]:
    """Return items that are made a few in each turn of the event loop."""
    made = list[T]()
    for item in items:
        made.append(item)
        if len(made) % at_once == 0:
            await asyncio.sleep(0)
    return made


async def _answers(
    request: InferenceRequest, manifest: Manifest, decisions: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return recorded decisions with the options that change only answers."""
    answers = [*decisions]
    for option in OPTIONS:
        if not option.is_recorded and option.name in request.options:
            changed = option.load().answered(manifest, answers, request.options[option.name])
            answers = [*await _in_turns(changed, _AT_ONCE)]
    return answers


def with_ids(decisions: Sequence[Mapping[str, Any]], ids: Sequence[str | None]) -> Iterator[dict[str, Any]]:
    """Yield the decisions, each with the lender's own id of its application if it has one."""
    for decision, own in zip(decisions, ids, strict=True):
        yield {**decision} if own is None else {"id": decision["id"], "application_id": own, **decision}


def as_recorded(
    entry: Entry,
    rows: Sequence[Instance],
    decisions: Sequence[Mapping[str, Any]],
    runtime: Mapping[str, Any],
    facts: RequestFacts,
    now: str | None = None,
) -> Iterator[RecordedDecision]:
    """Yield the decisions on `rows` as records for the audit trail.

    Args:
        runtime: runtime of `entry`, from `Backend.runtime`.
        now: time of the decisions; by default the present.
    """
    now = now or time_text()
    ran = {"graph": entry.graph_digest, **runtime}
    for i, (row, decision) in enumerate(zip(rows, decisions, strict=True)):
        yield RecordedDecision(
            decision["id"],
            now,
            entry.explained_model,
            entry.version,
            facts.caller,
            facts.request_id,
            facts.latency_ms,
            row,
            decision,
            facts.key,
            i,
            runtime=ran,
            review_by=review_by(entry.manifest, now) if decision["decision"] == "refer" else None,
        )


def review_by(manifest: Manifest | None, now: str) -> str:
    """Return the deadline of a review that begins to wait now."""
    embedded = None if manifest is None else manifest.decision
    rule = ReviewRule() if embedded is None else embedded.profile.review
    return time_text(datetime.fromisoformat(now) + timedelta(days=rule.days))


def _inputs(_: ModelRegistry, entry: Entry, request: InferenceRequest) -> Tensors:
    return inputs_of(entry, _manifest_of(entry), _rows_of(request), request.faults)


DECIDE = Verb(ModelRegistry.decider, _inputs, scopes=keys.DECIDE, keeps_instances=True)


def _manifest_of(entry: Entry) -> Manifest:
    assert entry.manifest is not None  # noqa: S101 (an entry without one decides nothing)
    return entry.manifest


def _rows_of(request: InferenceRequest) -> list[Any]:
    return [] if request.instances is None else request.instances.rows


def _check_repeated(
    recorded: Sequence[RecordedDecision], request: InferenceRequest, reviews: str | None
) -> None:
    """Raise ConflictError if a request repeats an idempotency key with other content."""
    check_repeated(recorded, request.application_ids, reviews)
    for option in OPTIONS:
        is_asked = option.name in request.options
        if option.member and any((option.member in each.answer) != is_asked for each in recorded):
            raise ConflictError(
                f"the idempotency key '{recorded[0].idempotency_key}' was used "
                f"{'without' if is_asked else 'with'} {option.name}: repeat the same request, or use a new "
                "key"
            )


def _check_options(request: InferenceRequest, manifest: Manifest, key: str | None) -> None:
    """Raise an error if an option does not fit the model, the caller or the other options."""
    context = current()
    for option in OPTIONS:
        if option.name in request.options:
            caller = None if context is None else context.caller
            option.load().demand(manifest, caller, request.options[option.name])
    if request.dry_run and key is not None:
        raise MalformedError("dry_run records nothing that a key could repeat: leave the Idempotency-Key out")


def check_key(key: str | None) -> None:
    if key is not None and not _KEY.fullmatch(key):
        raise MalformedError("Idempotency-Key must be 1 to 255 visible ASCII characters")


@contextlib.asynccontextmanager
async def until(deadline_s: float) -> AsyncIterator[None]:
    """Raise DeadlineError if the trail takes longer."""
    try:
        async with asyncio.timeout_at(deadline_s):
            yield
    except TimeoutError as error:
        raise DeadlineError(
            "the audit trail did not answer in time: send the request again with the same "
            "Idempotency-Key, which returns the same decision if the trail still records it"
        ) from error


def inputs_of(entry: Entry, manifest: Manifest, rows: Sequence[Any], faults: Faults) -> Tensors:
    """Return the model's inputs from the instances, which may have more features for knock-outs.

    Raises:
        InvalidInputError: if they do not fit the model, or have values that the profile does not take.
    """
    profile, form = profile_of(manifest).profile, form_of(entry, manifest)
    knock_outs = [rule for rule in profile.knock_outs if rule.feature not in form.allowed_keys]
    names = {rule.feature for rule in knock_outs}
    own_rows: list[Any] = []
    for i, row in enumerate(rows):
        if isinstance(row, dict):
            for rule in knock_outs:
                if (wrong := _describe_fault(rule, row)) is not None:
                    faults.note(f"instances[{i}]: feature '{rule.feature}' {wrong}")
            row = {name: value for name, value in row.items() if name not in names}
        own_rows.append(row)
    inputs = to_tensors(form, own_rows, faults)
    faults.report()
    bounded = any(rule.is_bounded for rule in profile.features.values())
    values = feature_values(manifest, inputs, rows) if bounded else ()
    for i, fault in refusals(manifest, inputs, values):
        faults.note(f"instances[{i}]: {fault}")
    faults.report()
    return inputs


def _describe_fault(rule: KnockOut, row: Instance) -> str | None:
    """Describe the fault of a feature that only a knock-out uses; None if it is valid."""
    if rule.feature not in row:
        return "is missing, and a knock-out declines by it: send null where it is not known"
    value = row[rule.feature]
    if value is None:
        return None
    kinds: tuple[type, ...] = (bool, int, float)
    expected = "a number"
    if isinstance(rule.equals, str):
        kinds, expected = (str,), "a string"
    return None if type(value) in kinds else f"must be {expected} or null, not {json_type_name(value)[:80]}"


async def decisions_of(
    manifest: Manifest,
    instances: Sequence[Instance],
    inputs: Tensors,
    answers: Tensors,
    drift: float | None = None,
) -> list[dict[str, Any]]:
    """Return the members of `decisions`.

    Args:
        drift: drift of the entry that answered, which each decision reports; see `Backend.drift`.

    Raises:
        UndecidedError: if rows have no reasons; lists them all.
    """
    faults, decisions = Faults(), []
    extra = {} if drift is None else {"drift": drift}
    for start in range(0, len(instances), _AT_ONCE):
        block = slice(start, start + _AT_ONCE)
        of_graph, block_inputs = ({name: a[block] for name, a in of.items()} for of in (answers, inputs))
        values = feature_values(manifest, block_inputs, instances[block])
        for i, decided in enumerate(decide_rows(manifest, of_graph, values, block_inputs), start):
            if isinstance(decided, Undecided):
                faults.add(UndecidedError(f"instances[{i}]: {decided.fault}"))
            else:
                decisions.append({"id": secrets.token_hex(16), **decision_answer(manifest, decided), **extra})
        await asyncio.sleep(0)
    faults.report()
    return decisions
