"""Each route's longest stall: the time that one request keeps the gateway's event loop from its next turn.

    python -m loadtests.checks.stalls [--only canary notice …] [--most-ms 100]

Routes are those that the application registers, methods those of the gRPC service. Each is sent every body of
`loadtests.load.bodies` that is for it, and its documented body with each member in turn replaced by the most
expensive values: many members, numbers, texts, lists, objects. A stall is the time between two turns of the
loop, as far as the gateway itself computed in it: time of other processes does not count. A request that took
too long is sent again, up to three times, and counts at its shortest. Ends with 1 if one was longer than
`--most-ms`.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
from fastapi import FastAPI
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from starlette.routing import Route
from tritonclient.grpc import service_pb2

from loadtests.load.bodies import BODIES, MB, MESSAGES, ROW, TENSOR, ApiBody, field_of, many
from loadtests.load.bodies import members as few_members
from loadtests.systems.process import Server, announced
from rationale_service.app import create_app, create_backend
from rationale_service.settings import Settings

CREDIT = Path(__file__).parents[2] / "examples" / "credit"
MOST_MS = 100.0
SERVICE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
_BEAT_S = 0.002
_TIMEOUT_S = 120
_TRIES = 3
_MARK = "\N{OBJECT REPLACEMENT CHARACTER}"
_DEPTH = 4  # levels of members in the documented bodies, and of fields in messages
_VALID_VALUES: dict[str, Any] = {  # valid values for the model, in place of the document's examples
    "instances": [{"income": 24500}],
    "references": [{"income": 24500}],
    "inputs": [json.loads(TENSOR)],
    "explainer": "credit_explain",
    "options": {"steps": 1},
}


def _named(count: int) -> bytes:
    return b"{" + b",".join(b'"feature%06d":0' % i for i in range(count)) + b"}"


HOSTILE: dict[str, Callable[[], bytes]] = {
    "80,000 members": lambda: few_members(MB - 5000),
    "900,000 members": lambda: _named(900_000),
    "100,000 members in 10 objects": lambda: many(_named(10_000), 2 * MB),
    "2 million numbers": lambda: many(b"0.12345", 16 * MB - 5000),
    "whole numbers": lambda: many(b"1", MB - 5000),
    "2 million texts": lambda: many(b'"abcde"', 16 * MB - 5000),
    "500,000 lists": lambda: many(b"[0.1]", 3 * MB - 5000),
    "160,000 empty objects": lambda: many(b"{}", MB // 2),
    "400,000 empty lists in lists": lambda: many(b"[[]]", 2 * MB // 2),
    "a text of 16 MB": lambda: b'"' + b"x" * (16 * MB - 5000) + b'"',
    "rows": lambda: many(ROW, 16 * MB - 5000),
    "nested lists": lambda: b"[" * 500 + many(b"0.12345", 15 * MB) + b"]" * 500,
}


class LoopWatch:
    """The longest time between two turns of the event loop that calls `beat`."""

    def __init__(self) -> None:
        self._longest_s = 0.0

    async def beat(self) -> None:
        while True:
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            await asyncio.sleep(_BEAT_S)
            stall_s = min(time.perf_counter() - began_s - _BEAT_S, time.process_time() - began_cpu_s)
            self._longest_s = max(self._longest_s, stall_s)

    def answer(self) -> None:
        """Print the time in milliseconds for each line of stdin, and begin again."""
        for _ in sys.stdin:
            longest_s, self._longest_s = self._longest_s, 0.0
            print(f"{longest_s * 1e3:.1f}", flush=True)


def serve(arguments: Mapping[str, Any]) -> None:
    """Serve as `rationale serve` does, with a watch."""
    import gc

    from rationale_service.configuration import load_settings
    from rationale_service.server import run_server

    watch = LoopWatch()
    beating: list[asyncio.Task[None]] = []

    def announce(line: str) -> None:
        if line.startswith("ready on"):
            beating.append(asyncio.get_running_loop().create_task(watch.beat()))
            threading.Thread(target=watch.answer, daemon=True).start()
        print(line, flush=True)

    gc.disable()
    run_server(load_settings(arguments, None), announce)


@dataclass
class WatchedGateway:
    """A gateway with a watch, in a process of its own."""

    server: Server
    child: subprocess.Popen[str]

    def longest_ms(self) -> float:
        """Return the longest stall since the previous call."""
        asks, answers = self.child.stdin, self.child.stdout
        if asks is None or answers is None:
            raise RuntimeError("the gateway has no pipes")
        print(file=asks, flush=True)
        return float(answers.readline())

    def ask(self, body: ApiBody, content: bytes) -> bytes:
        """Return the answer; it may come, and the connection close, before the whole body is there."""
        url = f"http://{self.server.http}{body.path}"
        with contextlib.suppress(httpx.TransportError):
            return httpx.request(
                body.method, url, content=content, headers=body.headers, timeout=_TIMEOUT_S
            ).content
        return b""

    def call(self, method: str, message: bytes) -> None:
        """Send a message to a method of any kind."""
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        with (
            grpc.insecure_channel(self.server.grpc or "", options) as channel,
            contextlib.suppress(grpc.RpcError),
        ):
            for _ in channel.stream_stream(method)(iter([message]), timeout=_TIMEOUT_S):
                pass


@contextlib.contextmanager
def watched(repository: Path, state: Path) -> Iterator[WatchedGateway]:
    command = [sys.executable, "-m", "loadtests.checks.stalls", "--serve", str(repository)]
    settings = {"RATIONALE_STATE": str(state), "RATIONALE_REQUEST_TIMEOUT_S": str(_TIMEOUT_S)}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    child = subprocess.Popen(command, text=True, env={**os.environ, **settings}, **pipes)  # noqa: S603 (ours)
    try:
        yield WatchedGateway(announced(child), child)
    finally:
        child.kill()
        child.communicate()


@dataclass(frozen=True)
class StallCase:
    """A request to a route, by its name in the table."""

    route: str
    label: str
    send: Callable[[WatchedGateway], object]


def routes(app: FastAPI) -> dict[str, set[str]]:
    """Return the paths that an application registers, each with the methods that may bring a body."""
    methods_by_path: dict[str, set[str]] = {}
    for route in app.routes:
        if isinstance(route, Route) and (methods := (route.methods or set()) - {"GET", "HEAD"}):
            methods_by_path.setdefault(route.path, set()).update(methods)
    return methods_by_path


def sample(schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int = _DEPTH) -> Any:
    """Return a value that a schema of the OpenAPI document describes, with every member that it names."""
    if "$ref" in schema:
        return sample(schemas[schema["$ref"].rpartition("/")[2]], schemas, depth)
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return sample(schema[choice][-1 if choice == "oneOf" else 0], schemas, depth)
    match schema.get("type"):
        case "object" if depth:
            members = schema.get("properties", {}).items()
            return {
                n: _VALID_VALUES[n] if n in _VALID_VALUES else sample(s, schemas, depth - 1)
                for n, s in members
            }
        case "array" if depth:
            return [sample(schema.get("items", {}), schemas, depth - 1)]
        case "number" | "integer":
            return 1
        case "boolean":
            return False
        case "string":
            return "credit"
    return {}


def marked(value: Any) -> Iterator[Any]:
    """Yield `value` as often as it has members and elements, another one replaced by a mark each time."""
    yield _MARK
    if isinstance(value, dict):
        for name, inner in value.items():
            for each in marked(inner):
                yield {name: each} if each == _MARK and inner is None else {**value, name: each}
    elif isinstance(value, list) and value:
        for each in marked(value[0]):
            yield [each, *value[1:]]


def documented(app: FastAPI) -> dict[tuple[str, str], Any]:
    """Return a body of the OpenAPI document by path and method."""
    document = app.openapi()
    schemas = document["components"]["schemas"]
    return {
        (path, method.upper()): sample(
            operation["requestBody"]["content"]["application/json"]["schema"], schemas
        )
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if "requestBody" in operation
    }


def http_cases(app: FastAPI, named: Mapping[str, str]) -> Iterator[StallCase]:
    """Yield every route with every hostile value at every member of its body.

    Args:
        named: values for the parameters of paths.
    """
    bodies = documented(app)
    for path, methods in sorted(routes(app).items()):
        filled = path.replace("{rest:path}", "x")
        for name, value in named.items():
            filled = filled.replace("{" + name + "}", value)
        query = "?model=credit" if "reference-sets" in path else ""
        for method in sorted(methods):
            body = bodies.get((path, method), {})
            route = ApiBody(filled + query, bytes, method=method)
            for (label, make), each in itertools.product(HOSTILE.items(), marked(body)):
                before, _, after = json.dumps(each, ensure_ascii=False).partition(f'"{_MARK}"')
                where = f" behind {before[-25:]}" if before else ""
                send = partial(send_between, route, before.encode(), make, after.encode())
                yield StallCase(f"{method} {path}", f"{label}{where}", send)


def send_between(
    route: ApiBody, before: bytes, make: Callable[[], bytes], after: bytes, gateway: WatchedGateway
) -> None:
    gateway.ask(route, before + make() + after)


def known_cases() -> Iterator[StallCase]:
    """Yield the bodies that are known to cause stalls, at their routes."""
    for label, body in BODIES.items():
        path = body.path.partition("?")[0].replace("/models/credit", "/models/{model}")
        path = path.replace("/explainers/e", "/explainers/{name}").replace("-sets/r", "-sets/{name}")
        yield StallCase(f"{body.method} {path}", label, partial(send_between, body, b"", body.make, b""))


def message_cases() -> Iterator[StallCase]:
    """Yield every gRPC method of the inference service, with messages of every field of its own."""
    for method in SERVICE.methods:
        path = f"/{SERVICE.full_name}/{method.name}"
        cases = {f"many {name}": make for name, make in messages(method.input_type)}
        bodies = {**cases, **(MESSAGES if method.input_type.name == "ModelInferRequest" else {})}
        for label, make in bodies.items():
            yield StallCase(f"gRPC {method.name}", label, partial(send_message, path, make))


def send_message(method: str, make: Callable[[], bytes], gateway: WatchedGateway) -> None:
    gateway.call(method, make())


def messages(kind: Descriptor | None, depth: int = _DEPTH) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield each field many times, in messages of 1 and 4 MB, and within each field that is a message."""
    for field in () if kind is None else kind.fields:
        number = field.number
        if field.type == FieldDescriptor.TYPE_MESSAGE and depth:
            yield f"{field.name} (1 MB)", partial(repeated, number, b"", 0, MB // 2)
            for name, make in messages(field.message_type, depth - 1):
                yield f"{field.name}.{name}", partial(within, number, make)
        elif field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            yield f"{field.name} (1 MB)", partial(repeated, number, b"", 0, MB // 2)
            yield f"{field.name} (4 MB)", partial(repeated, number, b"x", 4 * MB, 1)
        else:
            yield f"{field.name} (1 MB)", partial(repeated, number, b"\1", MB, 1)
            yield f"{field.name} (4 MB)", partial(repeated, number, b"\0", 4 * MB, 1)


def repeated(number: int, content: bytes, size: int, count: int) -> bytes:
    """Return a field as often as `count` says, each with `size` times the content."""
    return field_of(number, content * size) * count


def within(number: int, make: Callable[[], bytes]) -> bytes:
    return field_of(number, make())


def longest(gateway: WatchedGateway, case: StallCase, most_ms: float) -> float:
    """Return the milliseconds of its longest stall; if it is too long, the shortest of a few tries."""
    found_ms = float("inf")
    for _ in range(_TRIES):
        gateway.longest_ms()
        case.send(gateway)
        found_ms = min(found_ms, gateway.longest_ms())
        if found_ms <= most_ms:
            break
    return found_ms


@contextlib.contextmanager
def credit_gateway() -> Iterator[tuple[WatchedGateway, list[StallCase]]]:
    """Yield a gateway of the credit example with its decision profile, and all cases for it."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "models"
        files = {"--references": "near_threshold.csv", "--decision": "decision.yaml"}
        options = [str(each) for name, file in files.items() for each in (name, CREDIT / file)]
        command = [sys.executable, "-m", "rationale_service.cli", "compile", str(CREDIT / "credit.onnx")]
        subprocess.run(  # noqa: S603 (ours)
            [*command, "--name", "credit", *options, "--repository", str(repository)],
            check=True,
            capture_output=True,
        )
        settings = Settings(repository=repository)
        app = create_app(settings, create_backend(settings))
        with watched(repository, Path(folder) / "state") as gateway:
            decided = ApiBody("/v1/models/credit:decide", bytes)
            decision = json.loads(gateway.ask(decided, b'{"instances":[' + ROW + b"]}"))["decisions"][0]["id"]
            named = {"model": "credit", "name": "e", "version": "1", "decision": decision}
            yield gateway, [*http_cases(app, named), *known_cases(), *message_cases()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", default=[""], help="run only routes or bodies whose names contain one of these"
    )
    parser.add_argument("--most-ms", type=float, default=MOST_MS)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve({"repository": options.serve, "port": 0})
        return 0
    worst_ms = 0.0
    print("| route | bodies | longest stall, ms | by |\n|---|---|---|---|")
    with credit_gateway() as (gateway, cases):
        chosen = [
            each for each in cases if any(text in f"{each.route} {each.label}" for text in options.only)
        ]
        by_route = itertools.groupby(sorted(chosen, key=lambda each: each.route), key=lambda each: each.route)
        for route, of_route in by_route:
            stalls = [(longest(gateway, case, options.most_ms), case.label) for case in of_route]
            stall_ms, label = max(stalls)
            print(f"| `{route}` | {len(stalls)} | {stall_ms:.0f} | {label} |", flush=True)
            worst_ms = max(worst_ms, stall_ms)
    return int(worst_ms > options.most_ms)


if __name__ == "__main__":
    sys.exit(main())
