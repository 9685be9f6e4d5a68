"""How long can one request keep the gateway's event loop from its next turn? Each route's longest stall.

    python -m loadtests.checks.stalls [--only canary notice …] [--most-ms 100]

Routes are those that the application registers, methods those of the gRPC service. Each is sent every body of
`loadtests.load.bodies` that is for it, and its documented body with each member in turn replaced by what
costs most: many members, numbers, texts, lists, objects. A stall is the time between two turns of the loop,
as far as the gateway itself computed in it: what other processes take does not count. What took too long is
sent again, up to three times, and counts at its shortest. Ends with 1 where one was longer than `--most-ms`.
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

from loadtests.load.bodies import BODIES, MB, MESSAGES, ROW, TENSOR, Body, field_of, many
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
_DEPTH = 4  # of members in the documented bodies, and of fields in messages
_KNOWN: dict[str, Any] = {  # what the model takes, in place of the document's examples
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


class Watch:
    """Of the event loop that calls `beat`: the longest time between two of its turns."""

    def __init__(self) -> None:
        self._longest_s = 0.0

    async def beat(self) -> None:
        while True:
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            await asyncio.sleep(_BEAT_S)
            stall_s = min(time.perf_counter() - began_s - _BEAT_S, time.process_time() - began_cpu_s)
            self._longest_s = max(self._longest_s, stall_s)

    def answer(self) -> None:
        """Print it, in milliseconds, for each line of stdin, and begin again."""
        for _ in sys.stdin:
            longest_s, self._longest_s = self._longest_s, 0.0
            print(f"{longest_s * 1e3:.1f}", flush=True)


def serve(arguments: Mapping[str, Any]) -> None:
    """Serve as `rationale serve` does, with a watch."""
    import gc

    from rationale_service.configuration import load_settings
    from rationale_service.server import run_server

    watch = Watch()
    beating: list[asyncio.Task[None]] = []

    def announce(line: str) -> None:
        if line.startswith("ready on"):
            beating.append(asyncio.get_running_loop().create_task(watch.beat()))
            threading.Thread(target=watch.answer, daemon=True).start()
        print(line, flush=True)

    gc.disable()
    run_server(load_settings(arguments, None), announce)


@dataclass
class Gateway:
    """One with a watch, in a process of its own."""

    server: Server
    child: subprocess.Popen[str]

    def longest_ms(self) -> float:
        """Since it was asked before."""
        asks, answers = self.child.stdin, self.child.stdout
        if asks is None or answers is None:
            raise RuntimeError("the gateway has no pipes")
        print(file=asks, flush=True)
        return float(answers.readline())

    def ask(self, body: Body, content: bytes) -> bytes:
        """Return the answer; an answer may come, and the connection close, before the whole body is there."""
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
def watched(repository: Path, state: Path) -> Iterator[Gateway]:
    command = [sys.executable, "-m", "loadtests.checks.stalls", "--serve", str(repository)]
    settings = {"RATIONALE_STATE": str(state), "RATIONALE_REQUEST_TIMEOUT_S": str(_TIMEOUT_S)}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    child = subprocess.Popen(command, text=True, env={**os.environ, **settings}, **pipes)  # noqa: S603 (ours)
    try:
        yield Gateway(announced(child), child)
    finally:
        child.kill()
        child.communicate()


@dataclass(frozen=True)
class Case:
    """What is sent to a route, by its name in the table."""

    route: str
    what: str
    send: Callable[[Gateway], object]


def routes(app: FastAPI) -> dict[str, set[str]]:
    """The paths that an application registers, each with the methods that may bring a body."""
    found: dict[str, set[str]] = {}
    for route in app.routes:
        if isinstance(route, Route) and (methods := (route.methods or set()) - {"GET", "HEAD"}):
            found.setdefault(route.path, set()).update(methods)
    return found


def sample(schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int = _DEPTH) -> Any:
    """A value that a schema of the OpenAPI document describes, with every member that it names."""
    if "$ref" in schema:
        return sample(schemas[schema["$ref"].rpartition("/")[2]], schemas, depth)
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return sample(schema[choice][-1 if choice == "oneOf" else 0], schemas, depth)
    match schema.get("type"):
        case "object" if depth:
            members = schema.get("properties", {}).items()
            return {n: _KNOWN[n] if n in _KNOWN else sample(s, schemas, depth - 1) for n, s in members}
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
    """`value` as often as it has members and elements, another one replaced by a mark each time."""
    yield _MARK
    if isinstance(value, dict):
        for name, inner in value.items():
            for each in marked(inner):
                yield {name: each} if each == _MARK and inner is None else {**value, name: each}
    elif isinstance(value, list) and value:
        for each in marked(value[0]):
            yield [each, *value[1:]]


def documented(app: FastAPI) -> dict[tuple[str, str], Any]:
    """By path and method, a body of the OpenAPI document."""
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


def http_cases(app: FastAPI, named: Mapping[str, str]) -> Iterator[Case]:
    """Every route with every hostile value at every member of its body.

    Args:
        named: what stands for the parameters of paths.
    """
    bodies = documented(app)
    for path, methods in sorted(routes(app).items()):
        filled = path.replace("{rest:path}", "x")
        for name, value in named.items():
            filled = filled.replace("{" + name + "}", value)
        query = "?model=credit" if "reference-sets" in path else ""
        for method in sorted(methods):
            body = bodies.get((path, method), {})
            route = Body(filled + query, bytes, method=method)
            for (what, make), each in itertools.product(HOSTILE.items(), marked(body)):
                before, _, after = json.dumps(each, ensure_ascii=False).partition(f'"{_MARK}"')
                where = f" behind {before[-25:]}" if before else ""
                send = partial(send_between, route, before.encode(), make, after.encode())
                yield Case(f"{method} {path}", f"{what}{where}", send)


def send_between(
    route: Body, before: bytes, make: Callable[[], bytes], after: bytes, gateway: Gateway
) -> None:
    gateway.ask(route, before + make() + after)


def known_cases() -> Iterator[Case]:
    """The bodies that were found to hurt, at their routes."""
    for what, body in BODIES.items():
        path = body.path.partition("?")[0].replace("/models/credit", "/models/{model}")
        path = path.replace("/explainers/e", "/explainers/{name}").replace("-sets/r", "-sets/{name}")
        yield Case(f"{body.method} {path}", what, partial(send_between, body, b"", body.make, b""))


def message_cases() -> Iterator[Case]:
    """Every gRPC method of the inference service, with messages of every field of its own."""
    for method in SERVICE.methods:
        path = f"/{SERVICE.full_name}/{method.name}"
        made = {f"many {name}": make for name, make in messages(method.input_type)}
        own = {**made, **(MESSAGES if method.input_type.name == "ModelInferRequest" else {})}
        for what, make in own.items():
            yield Case(f"gRPC {method.name}", what, partial(send_message, path, make))


def send_message(method: str, make: Callable[[], bytes], gateway: Gateway) -> None:
    gateway.call(method, make())


def messages(kind: Descriptor | None, depth: int = _DEPTH) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Each field again and again, in messages of 1 and 4 MB, and within each field that is a message."""
    for field in () if kind is None else kind.fields:
        number = field.number
        if field.type == FieldDescriptor.TYPE_MESSAGE and depth:
            yield f"{field.name} (1 MB)", partial(again, number, b"", 0, MB // 2)
            for name, make in messages(field.message_type, depth - 1):
                yield f"{field.name}.{name}", partial(within, number, make)
        elif field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            yield f"{field.name} (1 MB)", partial(again, number, b"", 0, MB // 2)
            yield f"{field.name} (4 MB)", partial(again, number, b"x", 4 * MB, 1)
        else:
            yield f"{field.name} (1 MB)", partial(again, number, b"\1", MB, 1)
            yield f"{field.name} (4 MB)", partial(again, number, b"\0", 4 * MB, 1)


def again(number: int, content: bytes, size: int, count: int) -> bytes:
    """A field as often as `count` says, each with `size` times the content."""
    return field_of(number, content * size) * count


def within(number: int, make: Callable[[], bytes]) -> bytes:
    return field_of(number, make())


def longest(gateway: Gateway, case: Case, most_ms: float) -> float:
    """Milliseconds of its longest stall; of a few tries the shortest where it is too long."""
    found_ms = float("inf")
    for _ in range(_TRIES):
        gateway.longest_ms()
        case.send(gateway)
        found_ms = min(found_ms, gateway.longest_ms())
        if found_ms <= most_ms:
            break
    return found_ms


@contextlib.contextmanager
def credit_gateway() -> Iterator[tuple[Gateway, list[Case]]]:
    """A gateway of the credit example with its decision profile, and all cases for it."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "models"
        given = {"--references": "near_threshold.csv", "--decision": "decision.yaml"}
        options = [str(each) for name, file in given.items() for each in (name, CREDIT / file)]
        command = [sys.executable, "-m", "rationale_service.cli", "compile", str(CREDIT / "credit.onnx")]
        subprocess.run(  # noqa: S603 (ours)
            [*command, "--name", "credit", *options, "--repository", str(repository)],
            check=True,
            capture_output=True,
        )
        settings = Settings(repository=repository)
        app = create_app(settings, create_backend(settings))
        with watched(repository, Path(folder) / "state") as gateway:
            decided = Body("/v1/models/credit:decide", bytes)
            decision = json.loads(gateway.ask(decided, b'{"instances":[' + ROW + b"]}"))["decisions"][0]["id"]
            named = {"model": "credit", "name": "e", "version": "1", "decision": decision}
            yield gateway, [*http_cases(app, named), *known_cases(), *message_cases()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of routes, or of bodies")
    parser.add_argument("--most-ms", type=float, default=MOST_MS)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve({"repository": given.serve, "port": 0})
        return 0
    worst_ms = 0.0
    print("| route | bodies | longest stall, ms | by |\n|---|---|---|---|")
    with credit_gateway() as (gateway, cases):
        chosen = [each for each in cases if any(part in f"{each.route} {each.what}" for part in given.only)]
        by_route = itertools.groupby(sorted(chosen, key=lambda each: each.route), key=lambda each: each.route)
        for route, of_route in by_route:
            found = [(longest(gateway, case, given.most_ms), case.what) for case in of_route]
            stall_ms, what = max(found)
            print(f"| `{route}` | {len(found)} | {stall_ms:.0f} | {what} |", flush=True)
            worst_ms = max(worst_ms, stall_ms)
    return int(worst_ms > given.most_ms)


if __name__ == "__main__":
    sys.exit(main())
