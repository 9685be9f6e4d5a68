"""The gateway as an ASGI application."""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from fastapi import APIRouter, FastAPI, Request
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse, Response

from rationale.distribution import version
from rationale_service.console.page import add_console
from rationale_service.engine.backends.base import Backend
from rationale_service.models.explainers.builder import ReferenceFiles
from rationale_service.observability.metrics import Metrics
from rationale_service.protocols.gateway import Gateway, build_gateway
from rationale_service.protocols.rest import (
    canary,
    decisions,
    explainers,
    features,
    openapi,
    problems,
    repository,
    v1,
    v2,
)
from rationale_service.protocols.rest import references as reference_sets
from rationale_service.protocols.rest.endpoint import LENGTH_HEADER, gateway_of
from rationale_service.protocols.rest.routes import RouteScopes
from rationale_service.protocols.rest.server import HttpMiddleware, NamedHosts
from rationale_service.security.keys import Scopes, is_loopback, needs, scopes_of
from rationale_service.security.tls import triton_tls
from rationale_service.settings import Settings

DESCRIPTION = """
Why did the model decide this? Predictions and their explanations, at the speed of the prediction.

* **/v1** takes and gives named features.
* **/v2** is the Open Inference Protocol, as Triton and KServe speak it, with the verb `explain` added.

Errors are problem documents (RFC 9457), with the member `error` for clients of the Open Inference Protocol.
"""

Lifespan = Callable[[FastAPI], contextlib.AbstractAsyncContextManager[None]]
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
PUBLIC_ROUTERS: tuple[APIRouter, ...] = (
    v2.inference,  # the most frequent first
    v1.inference,
    repository.index,
    repository.router,  # before v2: /v2/models/stats is no model
    v2.health,
    v2.router,
    v2.unoffered,
    v1.root,
    v1.router,
    decisions.router,
    features.router,
)
# The admin API, wherever it is bound.
ADMIN_ROUTERS: tuple[APIRouter, ...] = (
    explainers.router,
    canary.router,
    reference_sets.router,
    repository.admin,
)
ADMIN_PORT_ROUTERS: tuple[APIRouter, ...] = (v2.health, repository.index)


def create_app(
    settings: Settings,
    backend: Backend,
    metrics: Metrics | None = None,
    references: ReferenceFiles | None = None,
    all_started: Callable[[], bool] = lambda: True,
) -> FastAPI:
    """Create the gateway over `backend`: `app.state.gateway`.

    It answers at once and is ready when every entry is loaded and warmed: see `Gateway.loading`.

    Args:
        metrics: those that the backend counts in too; None makes some.
        references: where the reference sets of explainers are; None for the state folder.
        all_started: returns whether the other processes that share the ports have started.

    Raises:
        RepositoryError: the repository is missing, empty or broken; `loading`, if nothing can be loaded.
        InvalidOptionError: as `create_interceptor`, `create_metrics_push` and `trail_of` do, and for
            artifacts that make no sense.
        StateUnavailableError: the state cannot be read.
        UndeclaredScopesError: a route does not say which keys open it.
    """
    gateway = build_gateway(settings, backend, metrics or Metrics(), references, all_started)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await gateway.start()
        try:
            yield
        finally:
            await gateway.stop()

    is_admin = settings.admin_port is None
    routers = [*PUBLIC_ROUTERS, *(ADMIN_ROUTERS if is_admin else ())]
    return _new_app(gateway, routers, settings.host, lifespan, is_public=True, is_admin=is_admin)


def create_admin_app(app: FastAPI) -> FastAPI:
    """Create what the admin port serves of the gateway `app`: its admin API, its metrics and its health."""
    gateway: Gateway = app.state.gateway
    routers = [*ADMIN_PORT_ROUTERS, *ADMIN_ROUTERS]
    return _new_app(gateway, routers, gateway.settings.admin_end, is_admin=True)


def _new_app(
    gateway: Gateway,
    routers: Sequence[APIRouter],
    end: str,
    lifespan: Lifespan | None = None,
    *,
    is_public: bool = False,
    is_admin: bool = False,
) -> FastAPI:
    """Create an app of a gateway, which listens on the host `end`. Raises UndeclaredScopesError."""
    settings = gateway.settings
    app = FastAPI(
        title="Rationale",
        version=version(),
        description=DESCRIPTION,
        lifespan=lifespan,
        openapi_url=None,  # `openapi.install` serves it
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # it would name the caller's Host
        telemetry={"tracing": False, "metrics": False, "logs": False},  # ours tell more, and ask less
    )
    app.state.gateway = gateway
    for router in routers:
        app.routes.extend(router.routes)
    problems.install(app)
    openapi.install(app, problems.problem_responses(401, 403, 429))
    openapi.add_page(app)
    if is_public and settings.console:
        add_console(app)
    if is_admin:
        _add_metrics(app, scopes_of(settings.metrics_scope))
    app.add_middleware(HttpMiddleware, interceptor=gateway.interceptor, scopes=RouteScopes(app.routes))
    if is_public and settings.cors_origins:
        _allow_origins(app, settings.cors_origins)
    _demand_host(app, settings.hosts, end)
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


def _add_metrics(app: FastAPI, scopes: Scopes) -> None:
    @app.get(
        "/metrics",
        summary="What the gateway counts, for Prometheus",
        tags=["server"],
        operation_id="metrics",
        response_class=PlainTextResponse,
    )
    @needs(scopes)
    def metrics(request: Request) -> Response:  # no coroutine: many models take it milliseconds, in a thread
        page, content_type = gateway_of(request).metrics.exposition(request.headers.get("accept", ""))
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
