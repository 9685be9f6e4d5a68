"""A Docker engine for tests: the real SDK talks to it over a unix socket; it records and plays a part."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

API_VERSION = "1.45"
NAME = "rationale-triton"
LOG = b"first line\nsecond line\n"


@dataclass
class Engine:
    """What the engine has, and what it was asked. `failures` maps an action to its status and message."""

    socket: Path
    images: set[str] = field(default_factory=set)
    container: str | None = None  # its status; None: there is none
    status_after_start: str = "running"
    failures: dict[str, tuple[int, str]] = field(default_factory=dict)
    pull_events: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    created: dict[str, Any] = field(default_factory=dict)


class Handler(BaseHTTPRequestHandler):
    """The few calls of the Docker Engine API that we use."""

    protocol_version = "HTTP/1.1"
    engine: ClassVar[Engine]
    ROUTES = (
        ("GET", r"/version", "version"),
        ("GET", r"/images/(?P<image>.+)/json", "image"),
        ("POST", r"/images/create", "pull"),
        ("POST", r"/containers/create", "create"),
        ("GET", r"/containers/(?P<id>[^/]+)/json", "inspect"),
        ("POST", r"/containers/[^/]+/start", "start"),
        ("POST", r"/containers/[^/]+/stop", "stop"),
        ("GET", r"/containers/[^/]+/logs", "logs"),
        ("DELETE", r"/containers/[^/]+", "remove"),
    )

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, status: int, body: object) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def done(self) -> None:
        """204: the client has its whole answer with the headers, and may be gone before anything follows."""
        self.send_response(204)
        self.end_headers()

    def handle_call(self) -> None:
        url = urlsplit(self.path)
        path = re.sub(r"^/v[\d.]+", "", url.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        for method, pattern, action in self.ROUTES:
            match = re.fullmatch(pattern, path)
            if match and method == self.command:
                self.engine.asked.append(action)
                if action in self.engine.failures:
                    status, message = self.engine.failures[action]
                    self.answer(status, {"message": message})
                    return
                query = {key: values[0] for key, values in parse_qs(url.query).items()}
                getattr(self, action)(match.groupdict(), query, json.loads(body or b"null"))
                return
        self.answer(501, {"message": f"the fake engine has no {self.command} {path}"})

    do_GET = do_POST = do_DELETE = handle_call  # noqa: N815 (the names http.server looks for)

    def version(self, *_: Any) -> None:
        self.answer(200, {"ApiVersion": API_VERSION, "Version": "28.0.0"})

    def image(self, found: dict[str, str], *_: Any) -> None:
        if found["image"] in self.engine.images:
            self.answer(200, {"Id": "sha256:1", "RepoTags": [found["image"]]})
        else:
            self.answer(404, {"message": f"No such image: {found['image']}"})

    def pull(self, _: Any, query: dict[str, str], __: Any) -> None:
        self.engine.images.add(f"{query['fromImage']}:{query['tag']}")
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in self.engine.pull_events:
            line = json.dumps(event).encode() + b"\r\n"
            self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def create(self, _: Any, query: dict[str, str], body: dict[str, Any]) -> None:
        self.engine.created = {"name": query["name"], **body}
        self.engine.container = "created"
        self.answer(201, {"Id": "c0ffee", "Warnings": []})

    def inspect(self, *_: Any) -> None:
        if self.engine.container is None:
            self.answer(404, {"message": f"No such container: {NAME}"})
            return
        config = {"Tty": False}
        state = {"Status": self.engine.container}
        self.answer(200, {"Id": "c0ffee", "Name": f"/{NAME}", "State": state, "Config": config})

    def start(self, *_: Any) -> None:
        self.engine.container = self.engine.status_after_start
        self.done()

    def stop(self, _: Any, query: dict[str, str], __: Any) -> None:
        self.engine.asked[-1] += f" t={query['t']}"
        self.engine.container = "exited"
        self.done()

    def remove(self, *_: Any) -> None:
        self.engine.container = None
        self.done()

    def logs(self, _: Any, query: dict[str, str], __: Any) -> None:
        """One frame of stdout: [1, 0, 0, 0, length as 4 bytes], then the bytes."""
        self.engine.asked[-1] += f" tail={query['tail']} follow={query.get('follow')}"
        self.answer(200, bytes([1, 0, 0, 0]) + len(LOG).to_bytes(4, "big") + LOG)


class UnixServer(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True

    def get_request(self) -> tuple[Any, Any]:
        request, _ = super().get_request()
        return request, ("local", 0)  # http.server wants an address of two parts


@contextmanager
def fake_engine(socket: Path) -> Iterator[Engine]:
    engine = Engine(socket)
    handler = type("BoundHandler", (Handler,), {"engine": engine})
    with UnixServer(str(socket), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield engine
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def answering(statuses: list[int]) -> Iterator[tuple[int, list[str]]]:
    """An HTTP server that gives these statuses in turn (the last for ever): its port, the paths asked for."""
    paths: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(statuses[min(len(paths), len(statuses)) - 1])
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port, paths
        finally:
            server.shutdown()
            thread.join()
