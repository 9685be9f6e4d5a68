"""Stands in for `python -m service.cli`, to bring about what a sound one never does.

    stub_cli.py MODE FOLDER compile|serve ARGUMENTS…

MODE says what goes wrong. FOLDER holds `manifest.json`, which `compile` copies, and the file `pids`, to which
every child adds its process id. Nothing of the project is imported: a child then starts at once.
"""

import json
import os
import shutil
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def explanation(instance: dict[str, float]) -> dict[str, object]:
    """The feature at place i gets (−1)^i · 0.01 · i: the tenth, −0.09, is the largest. They sum to −0.05."""
    effects = {name: (-1) ** i * 0.01 * i for i, name in enumerate(instance)}
    return {
        "base_value": 0.1,
        "explained_value": 0.05,
        "target": 0,
        "attributions": effects,
        "completeness_gap": 1.5e-8,
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # header and body in one packet: two would wait 40 ms for each other
    mode = ""

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        instances = json.loads(self.rfile.read(length))["instances"]
        verb = self.path.removeprefix("/v1/models/credit:")
        if self.mode == "hangs" and verb == "explain":
            print("asked, and will not answer", flush=True)
            time.sleep(60)
        answer: dict[str, object] = {"predictions": [[0.05] for _ in instances]}
        if verb == "explain":
            answer["explanations"] = [explanation(instance) for instance in instances]
        if self.mode == "answers otherwise":
            answer = {"predictions": []}
        body = b"<html>" if self.mode == "no json" else json.dumps(answer).encode()
        if self.mode == "refuses":
            print("the log of the gateway", flush=True)
        self.send_response(503 if self.mode == "refuses" else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    mode, folder, command, *arguments = sys.argv[1:]
    with Path(folder, "pids").open("a") as file:
        file.write(f"{os.getpid()}\n")
    if command == "compile":
        if mode == "does not compile":
            sys.exit("credit.onnx: operator Wobble has no rule")
        if mode != "writes nothing":
            entry = Path(arguments[arguments.index("--repository") + 1]) / "credit_explain"
            entry.mkdir(parents=True)
            shutil.copy(Path(folder, "manifest.json"), entry / "explanation.json")
        return
    if mode == "does not start":
        sys.exit("the port is taken")
    if mode == "never ready":
        time.sleep(60)
    if mode in ("ignores SIGTERM", "hangs"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    Handler.mode = mode
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"ready on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
