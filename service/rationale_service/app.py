"""The gateway as an ASGI application."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse, Response

from rationale.distribution import version
from rationale.errors import InvalidOptionError
from rationale_service.console.page import add_console
from rationale_service.decisions.archive import Archive
from rationale_service.decisions.audit.writer import act_log_of, trail_of
from rationale_service.decisions.decider import Decider, Drift
from rationale_service.decisions.trail import AuditTrail
from rationale_service.engine.backends.base import Backend
from rationale_service.engine.dataplane import DataPlane
from rationale_service.handlers import Handler
from rationale_service.models.explainers.artifact_store import ArtifactStore, copies_in
from rationale_service.models.explainers.builder import ReferenceFiles
from rationale_service.models.explainers.records import Known
from rationale_service.models.explainers.service import Explainers
from rationale_service.models.live import LiveRepository
from rationale_service.models.references.resolver import ReferenceResolver
from rationale_service.models.references.service import ReferenceSetService
from rationale_service.models.references.store import KIND as SETS
from rationale_service.models.references.store import ReferenceSets
from rationale_service.observability.metrics import Metrics
from rationale_service.observability.otlp import MetricsPush, create_metrics_push
from rationale_service.observability.tracing import create_tracing
from rationale_service.process.ending import take_steps
from rationale_service.protocols.interceptor import RequestInterceptor
from rationale_service.protocols.rest import canary as routes_canary
from rationale_service.protocols.rest import decisions as routes_decisions
from rationale_service.protocols.rest import explainers as routes_admin
from rationale_service.protocols.rest import features as routes_features
from rationale_service.protocols.rest import openapi, problems
from rationale_service.protocols.rest import references as routes_references
from rationale_service.protocols.rest import repository as routes_repository
from rationale_service.protocols.rest import v1 as routes_v1
from rationale_service.protocols.rest import v2 as routes_v2
from rationale_service.protocols.rest.administration import only_admins
from rationale_service.protocols.rest.endpoint import LENGTH_HEADER
from rationale_service.protocols.rest.server import HttpMiddleware, NamedHosts
from rationale_service.repository.registry import ModelRegistry, read_repository
from rationale_service.repository.remote import remote_of
from rationale_service.security.keys import Keyring, is_loopback, read_keyring, scopes_of
from rationale_service.security.rate_limit import RateLimits
from rationale_service.security.tls import triton_tls
from rationale_service.security.tokens import TokenIssuer
from rationale_service.settings import Settings
from rationale_service.state.blobs import Blobs
from rationale_service.state.state import State

DESCRIPTION = """
Why did the model decide this? Predictions and their explanations, at the speed of the prediction.

* **/v1** takes and gives named features.
* **/v2** is the Open Inference Protocol, as Triton and KServe speak it, with the verb `explain` added.

Errors are problem documents (RFC 9457), with the member `error` for clients of the Open Inference Protocol.
"""

_STOP_S = 5.0  # for what is left when requests are answered

Lifespan = Callable[[FastAPI], contextlib.AbstractAsyncContextManager[None]]
# The admin API, wherever it is bound.
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
DOCUMENTED = (routes_v2.documented, routes_v1.documented)
ADMIN_ROUTERS: tuple[APIRouter, ...] = (
    routes_admin.router,
    routes_canary.router,
    routes_references.router,
    routes_repository.admin,
)


def create_app(
    settings: Settings,
    backend: Backend,
    metrics: Metrics | None = None,
    references: ReferenceFiles | None = None,
) -> FastAPI:
    """Create the gateway over `backend`.

    It answers at once and is ready when every entry is loaded and warmed; `app.state.loading` is the
    task that loads them: whoever runs the app looks how that ends.

    Args:
        metrics: those that the backend counts in too; None makes some.
        references: where the reference sets of explainers are; None for the state folder.

    Raises:
        RepositoryError: the repository is missing, empty or broken; the task, where nothing can be loaded.
        InvalidOptionError: as `create_interceptor`, `create_metrics_push` and `trail_of` do, and for
            artifacts that make no sense.
        StateUnavailableError: the state cannot be read.
    """
    metrics = metrics or Metrics()
    interceptor = create_interceptor(settings, metrics)
    push = _metrics_push(settings, metrics)
    trail, acts, archive = trail_of(settings, metrics.audit), act_log_of(settings), Archive(settings)
    failed = metrics.dependency
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
        # Copies of what machines share leave the repository as it is, but for a Triton: it may be read-only.
        has_copies = (blobs is not None and settings.triton is None) or remote is not None
        artifacts = ArtifactStore(copies_in(state) if has_copies else models, state, blobs)
        repository = read_repository(
            models, strict=settings.strict, refused=None if remote is None else remote.refused
        )
        plane = DataPlane(repository, backend, settings, metrics)
        sets = ReferenceSets(state, blobs)
        sets.recover()
        explainers = Explainers(plane, artifacts, references or sets, settings)
        on_failure.pop_all()

    start_trail = partial(_start_where_needed, trail)
    live = LiveRepository(explainers, backend, settings, state, start_trail, remote, failed("repository"))
    explainers.following.followed = partial(_follow, sets, live)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.loading = asyncio.create_task(_load(plane, live, explainers, trail))
        if push is not None:
            push.start()
        if settings.workers > 1:
            await plane.loaded()  # until then, others have the callers
        try:
            yield
        finally:
            plane.refuse_new_work()
            app.state.loading.cancel()
            steps: dict[str, Callable[[], Awaitable[object]]] = {
                "loading": lambda: asyncio.wait([app.state.loading]),
                "the repository": live.stop,
                "explainers": explainers.stop,
                "models": plane.stop,
                "the audit trail": trail.stop,
                "the log of acts": acts.stop,
                "the archive of decisions": archive.stop,
                "the state": lambda: asyncio.to_thread(state.close),
            }
            for name, telemetry in (("traces", interceptor.tracing), ("metrics", push)):
                if telemetry is not None:
                    steps[name] = partial(asyncio.to_thread, telemetry.close)
            await take_steps(steps, _STOP_S)

    app = _new_app(interceptor, settings, lifespan, DOCUMENTED)
    app.state.handler = Handler(plane, ReferenceResolver(explainers, sets, settings, metrics))
    app.state.decider = Decider(plane, trail, Drift(metrics))
    plane.obstacle = app.state.decider.obstacle
    app.state.plane = plane
    app.state.explainers = explainers
    app.state.acts = acts
    app.state.archive = archive
    app.state.live = live
    app.state.remote = remote
    if isinstance(explainers, Explainers):
        app.state.references = ReferenceSetService(sets, explainers, plane, settings.max_reference_bytes)
    app.state.settings = settings
    app.state.metrics = metrics
    app.state.interceptor = interceptor
    _add_routes(app, settings)
    return app


def _add_routes(app: FastAPI, settings: Settings) -> None:
    if settings.cors_origins:
        _allow_origins(app, settings.cors_origins)
    _demand_host(app, settings.hosts, settings.host)
    app.routes.extend([*routes_v2.inference, *routes_v1.inference])
    app.include_router(routes_repository.index)
    app.include_router(routes_repository.router)  # before v2: /v2/models/stats is no model
    app.include_router(routes_v2.health)
    app.include_router(routes_v2.router)
    app.include_router(routes_v2.unoffered)
    app.include_router(routes_v1.root)
    app.include_router(routes_v1.router)
    app.include_router(routes_decisions.router)
    app.include_router(routes_features.router)
    if settings.console:
        add_console(app)
    if settings.admin_port is None:
        _add_admin_routes(app)


async def _load(plane: DataPlane, live: LiveRepository, explainers: Explainers, trail: AuditTrail) -> None:
    _start_where_needed(trail, plane.repository)  # it opens while the models are loaded
    await plane.start(live.start)
    await explainers.resume()
    await trail.opened()


def _start_where_needed(trail: AuditTrail, registry: ModelRegistry) -> None:
    if any(registry.decides(entry) for entry in registry.entries.values()):
        trail.start()


def create_admin_app(app: FastAPI) -> FastAPI:
    """Create what the admin port serves of the gateway `app`: its admin API, its metrics and its health."""
    admin = _new_app(app.state.interceptor, app.state.settings, None)
    _demand_host(admin, app.state.settings.hosts, app.state.settings.admin_end)
    admin.state = app.state
    admin.include_router(routes_v2.health)
    admin.include_router(routes_repository.index)
    _add_admin_routes(admin)
    return admin


def _new_app(
    interceptor: RequestInterceptor,
    settings: Settings,
    lifespan: Lifespan | None,
    documented: Sequence[openapi.Documented] = (),
) -> FastAPI:
    app = FastAPI(
        title="Rationale",
        version=version(),
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # it would name the caller's Host
        telemetry={"tracing": False, "metrics": False, "logs": False},  # ours tell more, and ask less
    )
    app.add_middleware(
        HttpMiddleware, interceptor=interceptor, needed_for_metrics=scopes_of(settings.metrics_scope)
    )
    problems.install(app)
    openapi.add_page(app)
    openapi.install(app, problems.problem_responses(401, 403, 429), documented)
    return app


def _demand_host(app: FastAPI, named: Sequence[str] | None, end: str) -> None:
    """Answer requests to these hosts alone; an end on loopback is asked by a name of loopback.

    A page that has its own name lead to 127.0.0.1 (DNS rebinding) would read answers as its own.
    """
    hosts = named or ({*_LOOPBACK, end} if is_loopback(end) else ["*"])
    app.add_middleware(NamedHosts, allowed_hosts=sorted(hosts), www_redirect=False)


def _allow_origins(app: FastAPI, origins: Sequence[str]) -> None:
    """Let pages of these origins call and read, but not administer. Around all: a preflight has no key."""
    app.add_middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["GET", "HEAD", "POST"],
        allow_headers=["*"],
        expose_headers=["Retry-After", "x-request-id", LENGTH_HEADER],
    )


def _add_admin_routes(app: FastAPI) -> None:
    for router in ADMIN_ROUTERS:
        app.include_router(router, dependencies=[Depends(only_admins)])
    app.get(
        "/metrics",
        summary="What the gateway counts, for Prometheus",
        tags=["server"],
        operation_id="metrics",
        response_class=PlainTextResponse,
    )(_metrics)


async def _follow(sets: ReferenceSets, live: LiveRepository, known: Known) -> None:
    """Go by what other processes of the state have written."""
    await asyncio.to_thread(sets.follow, known.others.get(SETS, ()))
    await live.follow(known)


def create_interceptor(settings: Settings, metrics: Metrics) -> RequestInterceptor:
    """Create what every request passes.

    Raises:
        InvalidOptionError: the keys cannot be read, or tracing or the storage of rates is not installed.
    """
    keyring = read_keys(settings)
    failed, storage = metrics.dependency, settings.rate_limit_storage
    limits = RateLimits(settings.rate_limit_per_s, settings.rate_limit_burst, storage, failed("rates"))
    endpoint = settings.trace_endpoint
    tracing = create_tracing(endpoint, settings.trace_ratio, failed("traces")) if endpoint else None
    issuer = None if settings.jwt_issuer is None else TokenIssuer(settings, failed("tokens"))
    return RequestInterceptor(keyring, limits, metrics, tracing, issuer)


def _metrics_push(settings: Settings, metrics: Metrics) -> MetricsPush | None:
    if (
        settings.metrics_endpoint is None or settings.workers > 1
    ):  # rationale_service.workers sends what all count
        return None
    interval_s = settings.metrics_interval_s
    return create_metrics_push(settings.metrics_endpoint, interval_s, lambda: metrics.registry)


def read_keys(settings: Settings) -> Keyring:
    """Read the API keys. Raises InvalidOptionError.

    That is raised also where a key file holds none: it may be on its way to the disk.
    """
    inline = settings.keys.get_secret_value() if settings.keys else None
    keyring = read_keyring(
        settings.keys_file,
        inline,
        admin_is_local=is_loopback(settings.admin_end),
        is_local=is_loopback(settings.host),
    )
    if settings.keys_file is not None and not keyring.keys:
        raise InvalidOptionError(
            f"the key file {settings.keys_file} holds no keys: everybody would be let in. Make one with "
            "`rationale keys new NAME --scope infer --file …`, or serve without a key file"
        )
    return keyring if settings.jwt_issuer is None else replace(keyring, anyone=None)


def _metrics(request: Request) -> Response:
    """Return the page; no coroutine: it takes milliseconds for many models, and is written in a thread."""
    metrics: Metrics = request.app.state.metrics
    page, content_type = metrics.exposition(request.headers.get("accept", ""))
    return Response(page, headers={"Content-Type": content_type})


def create_backend(settings: Settings, metrics: Metrics | None = None) -> Backend:
    """Create the backend that the settings name, counting in `metrics`.

    Each imports what it needs and no more.
    """
    if settings.triton is not None:
        from rationale_service.engine.backends.triton import TritonBackend

        return TritonBackend(
            settings.triton,
            settings.triton_wait_s,
            settings.max_queue_size,
            triton_tls(settings),
            metrics,
            is_shared=settings.workers > 1 or settings.state_url is not None,
            allows_drift=settings.allow_drift,
        )
    from rationale_service.engine.backends.devices import Devices
    from rationale_service.engine.backends.onnxruntime import OnnxRuntimeBackend

    return OnnxRuntimeBackend(settings.max_queue_size, metrics, Devices.chosen(settings))
