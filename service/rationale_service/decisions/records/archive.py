"""Recorded decisions for callers: read them, write their notices, replay them."""

import asyncio
import logging
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rationale.decisions.notice import LOST_PROFILE, TEMPLATES, Notice
from rationale.errors import InvalidOptionError, RepositoryError
from rationale.schema.profile import DecisionProfile
from rationale_service.decisions.audit.rows import Instance, WrongInstanceError, check_times
from rationale_service.decisions.audit.stores.store import DecisionQuery
from rationale_service.decisions.audit.trail import Case, RecordedDecision
from rationale_service.decisions.records.cases import standing_notice
from rationale_service.errors import (
    ConflictError,
    DeadlineError,
    InvalidInputError,
    QueueFullError,
    ServiceError,
    StateUnavailableError,
    UnknownResourceError,
)
from rationale_service.observability.context import current
from rationale_service.repository.entry import Entry
from rationale_service.settings import Settings

if TYPE_CHECKING:
    from rationale_service.decisions.audit.acts import ActLog, AdminAct
    from rationale_service.decisions.audit.ledger import Ledger
    from rationale_service.decisions.records.replay import ReplayedDecision

log = logging.getLogger(__name__)

_ID = re.compile(r"[0-9a-f]{32}")
_READERS = 2
_MOST_COMPARED = 1000  # decisions in a request, which are read one after the other
_REPLAYS_WAITING = 8  # each loads its own model


class Archive:
    """Reader of the trail that the settings name. It records no decisions."""

    def __init__(self, settings: Settings) -> None:
        """Take the settings; the first read opens the trail."""
        self._settings = settings
        self._ledger: Ledger | None = None
        self._opening = threading.Lock()
        self._readers = ThreadPoolExecutor(_READERS, "archive-reader")
        self._replays = ThreadPoolExecutor(1, "archive-replay")  # one at a time holds a second model
        self._waiting = threading.BoundedSemaphore(_REPLAYS_WAITING)
        self._profiles: dict[str, DecisionProfile] = {}  # by their digests

    async def read(self, decision: str, instance: Instance | None = None) -> RecordedDecision:
        """Return a decision as it was answered.

        Args:
            instance: instance of the decision, if the trail keeps only its digest.

        Raises:
            UnknownResourceError: if there is no such decision, or no trail.
            InvalidInputError: if it was on another instance.
            StateUnavailableError: if the trail cannot be read.
        """
        return await asyncio.wrap_future(self._readers.submit(self._read, decision, instance))

    async def case(self, decision: str) -> Case:
        """Return the case of a decision, contest or review. Raises as `read`.

        If the first decision was pruned, the case begins with what is left of it.
        """
        record = await self.read(decision)
        first = record.reviews or record.id
        return await asyncio.wrap_future(self._readers.submit(self._case, first))

    async def latest(self, query: DecisionQuery) -> list[RecordedDecision]:
        """Return the latest decisions of a query, newest first, without inputs.

        Raises:
            UnknownResourceError: if there is no trail.
            InvalidInputError: if a time is none.
            StateUnavailableError: if the trail cannot be read.
        """
        return await asyncio.wrap_future(self._readers.submit(self._latest, query))

    async def replay(
        self, decision: RecordedDecision, deadline_s: float, first: RecordedDecision | None = None
    ) -> "ReplayedDecision":
        """Compute a decision again from the files that made it: see `Replayer.replay`.

        Raises:
            InvalidInputError: if its inputs were kept hashed, and the caller does not send them.
            ConflictError: if its inputs were erased.
            UnknownResourceError: if the repository no longer has the entry that decided.
            QueueFullError: if too many replays wait already.
            DeadlineError: if it takes longer than `deadline_s`.
        """
        if decision.kind == "contest":
            raise ConflictError(
                f"{decision.id} is a contest, and only decisions can be replayed: give the id of a decision"
            )
        if decision.instance is None and decision.kind == "decision":
            raise _unknown_inputs(decision)
        if not self._waiting.acquire(blocking=False):
            raise QueueFullError("too many replays are waiting: try again later")
        future = self._replays.submit(self._replay, decision, first)
        future.add_done_callback(lambda _: self._waiting.release())
        try:
            async with asyncio.timeout_at(deadline_s):
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            raise DeadlineError(
                "the replay took too long: run `rationale replay`, which has no deadline"
            ) from error

    async def profile(self, decision: RecordedDecision, served: Iterable[Entry]) -> DecisionProfile | None:
        """Return the profile that decided; None if the repository no longer has it.

        Args:
            served: the entries in memory, which are looked through first.
        """
        digest = decision.answer["digests"]["profile"]
        if digest not in self._profiles:
            embedded = (entry.manifest.decision for entry in served if entry.manifest is not None)
            self._profiles |= {each.profile.digest: each.profile for each in embedded if each is not None}
        if digest in self._profiles:
            return self._profiles[digest]
        return await asyncio.wrap_future(self._readers.submit(self._profile, decision))

    async def stop(self) -> None:
        """Close the trail; running reads end by themselves."""
        for pool in (self._readers, self._replays):
            pool.shutdown(wait=False, cancel_futures=True)
        if self._ledger is not None:
            await asyncio.to_thread(self._ledger.close)

    def _read(self, decision: str, instance: Instance | None) -> RecordedDecision:
        if not _ID.fullmatch(decision):
            raise UnknownResourceError("a decision's id has 32 digits and letters from a to f")
        with _readable():
            return self._get_ledger().read(decision, instance)

    def _case(self, first: str) -> Case:
        with _readable():
            return Case(self._get_ledger().case(first))

    def _latest(self, query: DecisionQuery) -> list[RecordedDecision]:
        try:
            check_times(query.since, query.until)
        except InvalidOptionError as error:
            raise InvalidInputError(str(error)) from error
        with _readable():
            return self._get_ledger().latest(query)

    def _get_ledger(self) -> "Ledger":
        with self._opening:
            if self._ledger is None:
                from rationale_service.decisions.audit.ledger import open_ledger

                self._ledger = open_ledger(self._settings, is_made=True)
            return self._ledger

    def _profile(self, decision: RecordedDecision) -> DecisionProfile | None:
        from rationale_service.decisions.records.replay import Replayer

        try:
            profile = Replayer(self._settings).profile(decision)
            return self._profiles.setdefault(profile.digest, profile)
        except (InvalidOptionError, RepositoryError) as error:
            log.warning("decision %s: its profile is not found: %s", decision.id, error)
            return None

    def _replay(self, decision: RecordedDecision, first: RecordedDecision | None) -> "ReplayedDecision":
        from rationale_service.decisions.records.replay import Replayer

        try:
            return Replayer(self._settings).replay(decision, first)
        except RepositoryError as error:
            log.warning("decision %s is not replayed: %s", decision.id, error)
            raise UnknownResourceError(
                "the repository no longer has the entry that decided: restore the folder of "
                f"'{decision.model}' from that time, or replay the decision with that folder (`rationale "
                "replay ID --entries FOLDER`)"
            ) from error


@contextmanager
def _readable() -> Iterator[None]:
    """Report a trail that cannot be read to callers; only the log has the reason, which may name machines."""
    try:
        yield
    except WrongInstanceError as error:
        raise InvalidInputError(str(error)) from error
    except (InvalidOptionError, StateUnavailableError) as error:
        log.error("a decision cannot be read: %s", error)
        raise StateUnavailableError(
            "the gateway cannot read the audit trail, or its key does not fit: see the server's log", 5
        ) from error


class ComparedDecisions:
    """Reader of decisions' instances for requests that compare rows with them; it records each such call."""

    def __init__(self, archive: Archive, acts: "ActLog") -> None:
        self._archive = archive
        self._acts = acts

    async def instances(self, decisions: Sequence[str], model: str) -> list[Instance]:
        """Return the instances of decisions of a model.

        Raises:
            InvalidInputError: if there are too many, or one is of another model or its inputs are not kept.
            ServiceError: if `Archive.read` or `ActLog.check` raises it.
        """
        if len(decisions) > _MOST_COMPARED:
            raise InvalidInputError(f"compare_with: {len(decisions)} decisions, more than {_MOST_COMPARED}")
        await self._acts.check()
        status = 500
        try:
            found = [await self._instance(decision, model) for decision in decisions]
            status = 200
        except ServiceError as error:
            status = error.status
            raise
        finally:
            await self._acts.note(_comparison(decisions, model, status))
        return found

    async def _instance(self, decision: str, model: str) -> Instance:
        record = await self._archive.read(decision)
        if record.model != model:
            raise InvalidInputError(
                f"compare_with: decision {decision} belongs to another model than '{model}'"
            )
        if record.kind != "decision":
            raise InvalidInputError(
                f"compare_with: {decision} is a {record.kind}, which has no inputs: give the id of a decision"
            )
        if record.instance is None:
            raise InvalidInputError(
                f"compare_with: the inputs of decision {decision} are {record.kept} in the trail: send the "
                "row instead of the id"
            )
        return record.instance


def _comparison(decisions: Sequence[str], model: str, status: int) -> "AdminAct":
    from rationale_service.decisions.audit.acts import AdminAct

    context = current()
    return AdminAct(
        caller="" if context is None else context.caller.name,
        address="",
        act="COMPARE",
        target=f"/v1/models/{model}:explain",
        status=status,
        request_id="" if context is None else context.request_id,
        detail={"compare_with": list(decisions)},
    )


def write_notice(
    decision: RecordedDecision,
    case: Case,
    profile: DecisionProfile | None,
    template: str,
    variables: Mapping[str, Any],
    *,
    person_declined: bool,
    language: str | None = None,
) -> Notice:
    """Return the notice of a decision from one of Rationale's own templates.

    Args:
        profile: the profile that decided; None if it is lost.

    Raises:
        InvalidInputError: if there is no such template or notice, variables are missing, or a review has
            replaced the decision.
    """
    if template not in TEMPLATES:  # only the command line may name files
        raise InvalidInputError(f"template: must be {' or '.join(TEMPLATES)}")
    try:
        written = standing_notice(
            decision,
            case,
            variables,
            template,
            person_declined=person_declined,
            profile=profile,
            language=language,
        )
    except InvalidOptionError as error:
        raise InvalidInputError(str(error)) from error
    return replace(written, warnings=(LOST_PROFILE, *written.warnings)) if profile is None else written


def _unknown_inputs(decision: RecordedDecision) -> InvalidInputError | ConflictError:
    if decision.kept == "erased":
        return ConflictError(f"the inputs of decision {decision.id} were erased: nobody can compute it again")
    return InvalidInputError(
        f"the trail holds only a digest of decision {decision.id}'s inputs: send them as `instance`"
    )
