"""The parts of one gateway, which routes and gRPC methods use, and their construction."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rationale.artifact.repository.remote import RemoteRepository
from rationale_service.decisions.audit.acts import ActLog
from rationale_service.decisions.audit.trail import AuditTrail, obstacle
from rationale_service.decisions.audit.writer import act_log_of, trail_of
from rationale_service.decisions.decider import Decider, Drift
from rationale_service.decisions.records.archive import Archive, ComparedDecisions
from rationale_service.decisions.records.review import Reviews
from rationale_service.engine.backends.base import Backend
from rationale_service.engine.dataplane import DataPlane
from rationale_service.handlers import InferenceHandler
from rationale_service.models.explainers.artifact_store import ArtifactStore, copies_in
from rationale_service.models.explainers.builder import ReferenceFiles
from rationale_service.models.explainers.records import StateSnapshot
from rationale_service.models.explainers.service import Explainers
from rationale_service.models.live import LiveRepository
from rationale_service.models.references.resolver import ReferenceResolver
from rationale_service.models.references.service import ReferenceSetService
from rationale_service.models.references.store import KIND as SETS
from rationale_service.models.references.store import ReferenceSets
from rationale_service.observability.metrics import Metrics
from rationale_service.observability.otlp import MetricsPush, create_metrics_push
from rationale_service.process.ending import take_steps
from rationale_service.protocols.interceptor import RequestInterceptor, create_interceptor
from rationale_service.repository.registry import ModelRegistry, read_repository
from rationale_service.repository.remote import remote_of
from rationale_service.settings import Settings
from rationale_service.state.blobs import Blobs
from rationale_service.state.state import State

_STOP_S = 5.0  # for the remaining steps after the last answer


@dataclass(eq=False)
class Gateway:
    """One gateway. Each part only uses parts listed above it.

    Attributes:
        interceptor: interceptor that every request passes.
        push: push of the metrics to a collector, if the settings ask for it.
        trail: audit trail that records every decision.
        acts: log that records every call of the admin API.
        archive: reader of the trail.
        remote: remote original of the repository, if the repository is a copy.
        live: follower of changes in the repository.
        handler: handler of predictions and explanations.
        decider: handler of decisions.
        reviews: writer of contests and reviews.
        loading: task that loads the models, from `start` on. The runner of the app checks its result.
    """

    settings: Settings
    metrics: Metrics
    interceptor: RequestInterceptor
    push: MetricsPush | None
    trail: AuditTrail
    acts: ActLog
    archive: Archive
    state: State
    remote: RemoteRepository | None
    plane: DataPlane
    sets: ReferenceSets
    explainers: Explainers
    references: ReferenceSetService
    live: LiveRepository
    handler: InferenceHandler
    decider: Decider
    reviews: Reviews
    loading: asyncio.Task[None] = field(init=False)

    async def start(self) -> None:
        """Begin to load the models; one of several workers returns only when it has loaded them."""
        self.loading = asyncio.create_task(self._load())
        if self.push is not None:
            self.push.start()
        if self.settings.workers > 1:
            await self.plane.loaded()  # until then, other workers serve callers

    async def stop(self) -> None:
        """Refuse new work, answer running requests, and stop every part."""
        self.plane.refuse_new_work()
        self.loading.cancel()
        steps: dict[str, Callable[[], Awaitable[object]]] = {
            "loading": lambda: asyncio.wait([self.loading]),
            "the repository": self.live.stop,
            "explainers": self.explainers.stop,
            "searches of decisions": lambda: asyncio.to_thread(self.decider.stop),
            "models": self.plane.stop,
            "the audit trail": self.trail.stop,
            "the log of acts": self.acts.stop,
            "the archive of decisions": self.archive.stop,
            "the state": lambda: asyncio.to_thread(self.state.close),
        }
        for name, telemetry in (("traces", self.interceptor.tracing), ("metrics", self.push)):
            if telemetry is not None:
                steps[name] = partial(asyncio.to_thread, telemetry.close)
        await take_steps(steps, _STOP_S)

    async def _load(self) -> None:
        _start_if_needed(self.trail, self.plane.repository)  # opens the trail while the models load
        await self.plane.start(self.live.start)
        await self.explainers.resume(self._follow)
        await self.trail.wait_until_open()

    async def _follow(self, snapshot: StateSnapshot) -> None:
        """Adopt the records that other processes of the state have written."""
        await asyncio.to_thread(self.sets.follow, snapshot.other_rows.get(SETS, ()))
        await self.live.follow(snapshot)


def build_gateway(
    settings: Settings,
    backend: Backend,
    metrics: Metrics,
    references: ReferenceFiles | None = None,
    all_started: Callable[[], bool] = lambda: True,
) -> Gateway:
    """Build the parts of a gateway over `backend`. Arguments and errors are those of `create_app`."""
    failed = metrics.dependency
    interceptor = create_interceptor(settings, metrics)
    push = _metrics_push(settings, metrics)
    trail, acts, archive = trail_of(settings, metrics.audit), act_log_of(settings), Archive(settings)
    blobs = None if settings.artifacts is None else Blobs(settings.artifacts, failed("artifacts"))
    state = State(
        settings.state_folder, settings.state_url, is_shared=settings.workers > 1, count=failed("state")
    )
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(state.close)
        remote = remote_of(settings)
        if remote is not None:
            remote.open()
            if remote.fault is not None:
                failed("repository")()
        models = Path(settings.repository) if remote is None else remote.entries
        # Copies of shared entries stay out of the repository, which may be read-only, unless Triton reads it.
        has_copies = (blobs is not None and settings.triton is None) or remote is not None
        artifacts = ArtifactStore(copies_in(state) if has_copies else models, state, blobs)
        repository = read_repository(
            models, strict=settings.strict, refused=None if remote is None else remote.refused
        )
        plane = DataPlane(repository, backend, settings, metrics, partial(obstacle, trail), all_started)
        sets = ReferenceSets(state, blobs)
        sets.recover()
        explainers = Explainers(plane, artifacts, references or sets, settings)
        on_failure.pop_all()
    decider = Decider(plane, trail, Drift(metrics))
    start_trail = partial(_start_if_needed, trail)
    return Gateway(
        settings=settings,
        metrics=metrics,
        interceptor=interceptor,
        push=push,
        trail=trail,
        acts=acts,
        archive=archive,
        state=state,
        remote=remote,
        plane=plane,
        sets=sets,
        explainers=explainers,
        references=ReferenceSetService(sets, explainers, plane, settings.max_reference_bytes),
        live=LiveRepository(explainers, backend, settings, state, start_trail, remote, failed("repository")),
        handler=InferenceHandler(
            plane,
            ReferenceResolver(explainers, sets, settings, metrics),
            ComparedDecisions(archive, acts).instances,
        ),
        decider=decider,
        reviews=Reviews(plane, trail, archive, decider, metrics),
    )


def _start_if_needed(trail: AuditTrail, registry: ModelRegistry) -> None:
    if any(registry.decides(entry) for entry in registry.entries.values()):
        trail.start()


def _metrics_push(settings: Settings, metrics: Metrics) -> MetricsPush | None:
    """Return the push, or None; several workers have none, since rationale_service.workers sends for all."""
    if settings.metrics_endpoint is None or settings.workers > 1:
        return None
    interval_s = settings.metrics_interval_s
    return create_metrics_push(settings.metrics_endpoint, interval_s, lambda: metrics.registry)
