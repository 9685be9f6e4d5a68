"""Every route and every gRPC method says which keys open it, and no other key does."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from fastapi import APIRouter, FastAPI, Request, WebSocket
from fastapi.routing import APIRoute
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from tritonclient.grpc import service_pb2

from rationale_service import app as apps
from rationale_service.app import create_admin_app, create_app, create_backend
from rationale_service.process.listening import listen
from rationale_service.protocols.grpc.server import GrpcServer
from rationale_service.protocols.grpc.servicer import InferenceServicer
from rationale_service.protocols.rest import v1
from rationale_service.protocols.rest.routes import RouteScopes, needs_of
from rationale_service.security.keys import ANY_KEY, NOBODY_NEEDS, Scope, UndeclaredScopesError, needs
from rationale_service.settings import Settings
from tests.service.conftest import gateway
from tests.service.grpc_end import SECONDS, grpc_end
from tests.service.in_process import client_of
from tests.service.security.test_keys import key_file

SESSION = pytest.mark.asyncio(loop_scope="session")

INFER, EXPLAIN, DECIDE, _, REVIEW, AUDIT, ADMIN = (frozenset({scope}) for scope in Scope)
RUNS = INFER | EXPLAIN | DECIDE
ONE_OF_EACH = {str(scope): str(scope) for scope in Scope}


def app_of(repository: Path, **settings: Any) -> FastAPI:
    chosen_settings = Settings(repository=repository, audit="off", **settings)
    return create_app(chosen_settings, create_backend(chosen_settings))


@pytest.fixture(scope="module")
def app(repository: Path) -> FastAPI:
    return app_of(repository)


def needed_by(app: FastAPI, path: str, method: str = "GET") -> frozenset[Scope]:
    return RouteScopes(app.routes).needed(method, path, "")


# --- what needs which scope -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "needed"),
    [
        ("GET", "/", NOBODY_NEEDS),
        ("GET", "/v2", NOBODY_NEEDS),
        ("GET", "/v2/health/live", NOBODY_NEEDS),
        ("GET", "/v2/models/m/versions/1/ready", NOBODY_NEEDS),
        ("GET", "/openapi.json", NOBODY_NEEDS),
        ("GET", "/console", NOBODY_NEEDS),
        ("GET", "/console/views/explain.js", NOBODY_NEEDS),
        ("GET", "/consoles", ANY_KEY),
        ("GET", "/metrics", NOBODY_NEEDS),
        ("GET", "/v1/models/m/features", EXPLAIN),
        ("POST", "/v2/models/m/infer", INFER),
        ("GET", "/v2/models/m/infer", INFER),
        ("OPTIONS", "/v2/models/m/infer", INFER),
        ("POST", "/v2/models/m/versions/1/infer", INFER),
        ("POST", "/v2/models/m_explain/infer", EXPLAIN),
        ("POST", "/v2/models/m_explain_0a1b/versions/1/infer", EXPLAIN),
        ("POST", "/v2/models/m/explain", EXPLAIN),
        ("POST", "/v1/models/m:predict", INFER),
        ("POST", "/v1/models/m:decide", DECIDE),
        ("POST", "/v1/models/m:explain:decide", DECIDE),
        ("POST", "/v1/models/m_explain:decide", DECIDE),
        ("POST", "/v1/models/m_explain:predict", EXPLAIN),
        ("POST", "/v1/models/m:explain", EXPLAIN),
        ("GET", "/v1/models/m:explain", ANY_KEY),  # a model of that name, which there is not
        ("GET", "/v1/decisions/0e7d", AUDIT),
        ("GET", "/v1/decisions", AUDIT),
        ("POST", "/v1/decisions/0e7d:notice", AUDIT),
        ("POST", "/v1/decisions/0e7d:contest", REVIEW | DECIDE),
        ("POST", "/v1/decisions/0e7d:review", REVIEW),
        ("GET", "/v1/decisions/0e7d:history", REVIEW | AUDIT),
        ("GET", "/v2/models/m/explainers/e", ADMIN),
        ("DELETE", "/v2/models/m/explainers", ADMIN),
        ("PUT", "/v2/reference-sets/r", ADMIN),
        ("POST", "/v2/repository/models/m/load", ADMIN),
        ("GET", "/v2/models/m", ANY_KEY),
        ("POST", "/v2/repository/index", ANY_KEY),
        ("GET", "/v2/models/stats", ANY_KEY),
        ("POST", "/v2/logging", ANY_KEY),
        ("GET", "/anything", ANY_KEY),
        ("GET", "/v2/models/a/b/ready", ANY_KEY),
        ("GET", "/v2/models/m/ready/", ANY_KEY),
    ],
)
def test_paths(app: FastAPI, method: str, path: str, needed: frozenset[Scope]) -> None:
    assert needed_by(app, path, method) == needed


def test_every_route_is_open_by_intent_only(app: FastAPI) -> None:
    opened = {getattr(route, "path", None) for route in app.routes if not needs_of(route)}
    assert opened == {
        "/",  # liveness, as KServe's v1 asks for it
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/{model}/ready",
        "/v2/models/{model}/versions/{version}/ready",
        "/docs",
        "/docs/files",
        "/console",
        "/openapi.json",
        "/metrics",
    }


@pytest.mark.parametrize(
    ("method", "needed"),
    [
        ("/inference.GRPCInferenceService/ServerLive", NOBODY_NEEDS),
        ("/grpc.health.v1.Health/Check", NOBODY_NEEDS),
        ("/inference.GRPCInferenceService/ModelInfer", RUNS),
        ("/inference.GRPCInferenceService/ModelStreamInfer", RUNS),
        ("/inference.GRPCInferenceService/ModelConfig", ANY_KEY),
        ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", ANY_KEY),
        ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", ANY_KEY),
        ("/inference.GRPCInferenceService/RepositoryModelLoad", None),
        ("/inference.GRPCInferenceService/Absent", None),
    ],
)
@SESSION
async def test_calls(repository: Path, method: str, needed: frozenset[Scope] | None) -> None:
    assert grpc_server(app_of(repository)).scopes.get(method) == needed


def grpc_server(app: FastAPI) -> GrpcServer:
    with listen("127.0.0.1", 0) as listener:
        return GrpcServer(app.state.gateway, listener)


# --- every route and every method -----------------------------------------------------------------------


def requests_of(routes: list[BaseRoute]) -> Iterator[tuple[str, str, frozenset[Scope]]]:
    """The methods of each route and another one, at a path of it; and the scopes of which each needs one."""
    table = RouteScopes(routes)
    for route in routes:
        assert isinstance(route, Route | Mount)
        path = re.sub(r"{\w+(:path)?}", "score", route.path) + ("/absent" if isinstance(route, Mount) else "")
        methods = ({"GET"} if isinstance(route, Mount) else route.methods) | {"OPTIONS"}
        for method in sorted(methods):
            yield method, path, table.needed("GET" if method == "HEAD" else method, path, "")


@pytest.mark.parametrize("settings", [{}, {"admin_port": 9000, "metrics_scope": "admin"}])
@pytest.mark.parametrize("ending", ["", "%0A"])
@SESSION
async def test_no_other_key_opens_a_route(
    repository: Path, tmp_path: Path, settings: dict[str, Any], ending: str
) -> None:
    """Nobody without a key gets past it, nor anybody with one that lacks the scope, by whichever method.

    A line's end behind a path finds the same route, so that it needs the same key.
    """
    tokens = key_file(tmp_path, **ONE_OF_EACH)
    public = app_of(repository, keys_file=tmp_path / "keys.toml", **settings)
    refused = 0
    for app in (public, create_admin_app(public)):
        async with client_of(app) as client:
            for method, path, needed in requests_of(app.routes):
                statuses = {
                    key: (await client.request(method, path + ending, headers=headers)).status_code
                    for key, headers in {
                        None: {},
                        **{Scope(name): {"X-API-Key": token} for name, token in tokens.items()},
                    }.items()
                    if key is None or key not in needed
                }
                if not needed:
                    assert not {401, 403} & {*statuses.values()}, (method, path)
                    continue
                expected = {None: 401} | dict.fromkeys(set(Scope) - needed, 403)
                assert statuses == expected, (method, path)
                refused += len(statuses)
    assert refused > 300


@SESSION
async def test_no_other_key_opens_a_method(repository: Path, tmp_path: Path) -> None:
    """Methods that nobody implements are refused to whoever has no key, and to who has one as not offered."""
    tokens = key_file(tmp_path, **ONE_OF_EACH)
    services = [
        service
        for package in (service_pb2, health_pb2, reflection_pb2)
        for service in package.DESCRIPTOR.services_by_name.values()
    ]
    paths = [f"/{service.full_name}/{method.name}" for service in services for method in service.methods]
    paths += ["/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/inference.Absent/Method"]
    settings = Settings(repository=repository, audit="off", keys_file=tmp_path / "keys.toml")
    async with grpc_end(settings) as end:
        assert set(end.server.scopes) < set(paths)
        for path in paths:
            needed = end.server.scopes.get(path)
            actual: dict[Scope | None, str] = {None: await code_of(end.channel, path, None)}
            for name, token in tokens.items():
                if needed is None or Scope(name) not in needed:
                    actual[Scope(name)] = await code_of(end.channel, path, token)
            if needed is None:
                assert actual == {None: "UNAUTHENTICATED"} | dict.fromkeys(Scope, "UNIMPLEMENTED"), path
            elif needed:
                refused = dict.fromkeys(set(Scope) - needed, "PERMISSION_DENIED")
                assert actual == {None: "UNAUTHENTICATED"} | refused, path
            else:
                assert not {"UNAUTHENTICATED", "PERMISSION_DENIED"} & {*actual.values()}, path


async def code_of(channel: grpc.aio.Channel, path: str, token: str | None) -> str:
    """The status of a call with an empty message; one answer is enough, for health is watched for ever."""
    metadata = () if token is None else (("x-api-key", token),)
    call = channel.unary_stream(path)(b"", metadata=metadata, timeout=SECONDS)
    try:
        await call.read()
    except grpc.aio.AioRpcError as error:
        return error.code().name
    call.cancel()
    return "OK"


@SESSION
async def test_a_key_lets_pass_what_a_line_end_follows(repository: Path, tmp_path: Path) -> None:
    """The router passes over a line's end behind a path, so that the key has to be the same."""
    tokens = key_file(tmp_path, scoring="infer", analyst="explain")
    settings = Settings(repository=repository, audit="off", keys_file=tmp_path / "keys.toml")
    async with gateway(settings) as client:
        for path in ("/v1/models/score/features", "/v1/models/score/features%0A"):
            actual = {
                name: (await client.get(path, headers={"X-API-Key": token})).status_code
                for name, token in tokens.items()
            }
            assert actual == {"scoring": 403, "analyst": 200}, path


# --- what declares none does not start ------------------------------------------------------------------


async def undeclared(request: Request) -> Response:  # noqa: ARG001
    return Response()


@needs(ADMIN)
async def for_admins(request: Request) -> Response:  # noqa: ARG001
    return Response()


@needs(ADMIN)
async def talking(socket: WebSocket) -> None: ...


def a_route() -> BaseRoute:
    router = APIRouter(prefix="/v2")
    router.get("/new/{model}")(undeclared)
    return router.routes[0]


def an_included_router() -> BaseRoute:
    app, router = FastAPI(), APIRouter()
    router.get("/v2/new")(for_admins)
    app.include_router(router)
    return app.routes[-1]


def a_websocket() -> BaseRoute:
    router = APIRouter()
    router.websocket("/v2/new")(talking)
    return router.routes[0]


@pytest.mark.parametrize(
    ("route", "message"),
    [
        (a_route, r"GET /v2/new/{model} declares no scopes.*@needs"),
        (lambda: Route("/v2/new", undeclared, methods=["POST"]), r"POST /v2/new declares no scopes.*@needs"),
        (lambda: Route("/v2/new", v1.predict), r"GET.* /v2/new declares scopes by its model"),
        (lambda: Mount("/new", StaticFiles()), "mounted at /new declares no scopes.*@needs"),
        (an_included_router, r"app\.routes\.extend"),
        (a_websocket, "WebSocket"),
    ],
)
@pytest.mark.parametrize("routers", ["PUBLIC_ROUTERS", "ADMIN_ROUTERS"])
def test_a_route_without_scopes_does_not_start(
    repository: Path, route: Any, message: str, routers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = app_of(repository, admin_port=9000)
    start = partial(app_of, repository) if routers == "PUBLIC_ROUTERS" else partial(create_admin_app, public)
    added = APIRouter()
    added.routes.append(route())
    monkeypatch.setattr(apps, routers, (*getattr(apps, routers), added))
    with pytest.raises(UndeclaredScopesError, match=message):
        start()


@SESSION
async def test_a_method_without_scopes_does_not_start(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    async def config(self: object, request: object, context: object) -> None: ...

    monkeypatch.setattr(InferenceServicer, "ModelConfig", config)
    with pytest.raises(UndeclaredScopesError, match=r"/inference\.GRPCInferenceService/ModelConfig .*@needs"):
        grpc_server(app)


@SESSION
async def test_a_route_that_comes_later_is_closed(repository: Path) -> None:
    """The routes of an app can change while it runs; what declares nothing then is not answered."""
    app = app_of(repository)
    async with client_of(app) as client:
        assert (await client.get("/v2/health/live")).status_code == 200
        app.routes.append(a_route())
        assert (await client.get("/v2/new/m")).status_code == 500


def test_a_route_for_anybody_runs_as_any_other(app: FastAPI) -> None:
    """Every route that has a document declares its operation's name, by which the document has its scopes."""
    for route in app.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            assert route.operation_id, route.path
