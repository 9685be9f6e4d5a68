"""`:decide`: instances in, decisions with reasons out, each written before it is answered."""

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from compiler.decisions.decide import NoReasonsError, decide
from compiler.decisions.rows import decided_of, explained_rows, values_of
from compiler.manifest import Manifest
from service.decisions.trail import AuditTrail, RecordedDecision
from service.errors import NotExplainableError, UndecidedError
from service.faults import Faults
from service.handlers import Call, Read, note
from service.inference.dataplane import DataPlane
from service.inference.features import Instances, form_of
from service.observability.context import current
from service.repository.entry import Entry
from service.tensors import Tensors

Instance = Mapping[str, Any]


class Decider:
    """Decides by the profiles that entries were compiled with."""

    def __init__(self, plane: DataPlane, trail: AuditTrail) -> None:
        self._plane = plane
        self._trail = trail

    async def decide(self, call: Call, read: Read, key: str | None = None) -> list[Mapping[str, Any]]:
        """The decisions, in the order of the instances.

        Each row is run by itself: an answer in a batch may differ in its last bits by what else is in it.

        Args:
            key: an idempotency key: what was decided under it before is answered again.

        Raises:
            ServiceError: what `read`, `ModelRegistry`, `DataPlane` and `AuditTrail` raise.
            NotExplainableError: the model was compiled without a decision profile.
            UndecidedError: a row has no reasons that can be given; nothing is decided then.
        """
        plane, began_s = self._plane, time.monotonic()
        deadline_s = plane.deadline(call.timeout_s)
        await plane.loaded(deadline_s)
        entry = plane.repository.explainer(call.model, call.version)
        manifest = _deciding(entry)
        plane.admit(entry, deadline_s)
        request = await read(deadline_s)
        rows: list[Any] = [] if request.instances is None else request.instances.rows
        note(entry, len(rows))
        context = current()
        caller = "" if context is None else context.caller.name
        inputs = _inputs(entry, manifest, rows, request.faults)
        if key is not None and (found := await self._trail.find(manifest.model, caller, key, rows)):
            return [one.answer for one in found]
        single = [{name: array[i : i + 1] for name, array in inputs.items()} for i in range(len(rows))]
        answers = await asyncio.gather(*(plane.infer(entry, one, None, deadline_s) for one in single))
        latency_ms = (time.monotonic() - (began_s if context is None else context.began_s)) * 1e3
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        made = [
            RecordedDecision(
                decision["id"],
                now,
                manifest.model,
                entry.version,
                caller,
                "" if context is None else context.request_id,
                latency_ms,
                row,
                decision,
                key,
                i,
            )
            for i, (row, one, answer) in enumerate(zip(rows, single, answers, strict=True))
            for decision in [_decision(manifest, row, one, answer, f"instances[{i}]")]
        ]
        return [one.answer for one in await self._trail.record(made)]


def _deciding(entry: Entry) -> Manifest:
    """With a decision profile."""
    if entry.manifest is None or entry.manifest.decision is None:
        raise NotExplainableError(
            f"model '{entry.name}' has no decision profile: compile it with --decision decision.yaml"
        )
    return entry.manifest


def _inputs(entry: Entry, manifest: Manifest, rows: Sequence[Any], faults: Faults) -> Tensors:
    """What the model takes of the instances; knock-outs may look at more."""
    form = form_of(entry, manifest)
    beside = {rule.feature for rule in decided_of(manifest).profile.knock_outs} - {*form.names()}
    own: list[Any] = []
    for i, row in enumerate(rows):
        if isinstance(row, dict):
            for feature in sorted(beside - row.keys()):
                faults.note(f"instances[{i}]: missing feature '{feature}', by which a knock-out declines")
            row = {name: value for name, value in row.items() if name not in beside}
        own.append(row)
    return Instances(own).tensors(entry, manifest, faults)


def _decision(
    manifest: Manifest, row: Instance, inputs: Tensors, answer: Tensors, where: str
) -> dict[str, Any]:
    """One member of `decisions`."""
    decided = decided_of(manifest)
    (explained,) = explained_rows(manifest, answer)
    (values,) = values_of(manifest, inputs)
    try:
        decision = decide(decided, explained, {**row, **values})
    except NoReasonsError as error:
        raise UndecidedError(f"{where}: {error}") from error
    digests = manifest.digests
    return {
        "id": secrets.token_hex(16),
        **decision.as_json(),
        "digests": {
            "model": digests.model,
            "references": digests.references,
            "explainer": digests.explanation,
            "profile": decided.digest,
        },
    }
