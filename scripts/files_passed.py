"""Counts of the project's files that one compile and one request pass through, for a reader to open.

    python scripts/files_passed.py
    python scripts/files_passed.py --list decide

A file counts if one of its functions is called, in whichever thread, once the same has run before. The
compile is of a perceptron with six nodes by DeepSHAP; the requests are `:explain` and `:decide` in JSON over
HTTP.
"""

import argparse
import logging
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import numpy as np
import onnx
import uvicorn

from rationale import DeepShap, compile_model
from rationale_service.app import create_app, create_backend
from rationale_service.engine.backends import onnxruntime
from rationale_service.process.listening import listen
from rationale_service.protocols.rest.server import uvicorn_config
from rationale_service.settings import Settings

ROOT = Path(__file__).parents[1]
PROJECT = tuple(f"{ROOT / package}/" for package in ("compiler", "service"))
NAMES = ["income", "debt", "age"]
INSTANCES = [dict(zip(NAMES, (1.0, 2.0, 3.0), strict=True))]
PROFILE = {"output": "y", "threshold": 1.0, "adverse": "below"}  # everybody is declined, and gets reasons
WARM = 3  # runs before those that count
COMPILES, REQUESTS = 2, 50  # a queue takes some to learn that its model is brief
PATIENCE_S = 60


class Tracer:
    """The files of functions that are called while it counts, in threads that start after it."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._is_counting = False
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def passed(self, run: Callable[[], object], times: int) -> list[str]:
        """Return the files that `run` passes through when it is warm: the smallest set of several runs.

        A request that meets another one, or a busy machine, passes through more.
        """
        runs = []
        for _ in range(WARM + times):
            self._files.clear()
            self._is_counting = True
            run()
            self._is_counting = False
            runs.append(sorted(self._files))
        return min(runs[WARM:], key=len)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if self._is_counting and event == "call" and file.startswith(PROJECT):
            self._files.add(str(Path(file).relative_to(ROOT)))


def perceptron() -> onnx.ModelProto:
    """Return a perceptron of two layers as six nodes."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        perceptron (float[N, 3] x) => (float[N, 1] y) {
            h = MatMul (x, W)  a = Add (h, b)  r = Relu (a)
            o = MatMul (r, V)  s = Add (o, c)  y = Sigmoid (s)
        }
    """)
    rng = np.random.default_rng(0)
    for name, shape in {"W": (3, 4), "b": (4,), "V": (4, 1), "c": (1,)}.items():
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def references() -> DeepShap:
    """Return DeepSHAP with five references."""
    return DeepShap(np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32))


@contextmanager
def serving(repository: Path) -> Iterator[httpx.Client]:
    """Yield a client of a gateway that serves the repository from a thread of this process."""
    onnxruntime._INSTANT_S = PATIENCE_S  # the way of a brief model, on a slow machine as on a fast one
    settings = Settings(repository=repository, request_timeout_s=PATIENCE_S)
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn_config(create_app(settings, create_backend(settings))))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
            wait_until_ready(client)
            yield client
    finally:
        server.should_exit = True
        thread.join()


def wait_until_ready(client: httpx.Client) -> None:
    """Return when the gateway is ready. Raise TimeoutError if it never is."""
    end_s = time.monotonic() + PATIENCE_S
    while client.get("/v2/health/ready").status_code != httpx.codes.OK:
        if time.monotonic() > end_s:
            raise TimeoutError(f"the gateway was not ready within {PATIENCE_S} s")
        time.sleep(0.05)


def ask(client: httpx.Client, verb: str) -> None:
    """Send a request. Raise httpx.HTTPStatusError if it is refused."""
    client.post(f"/v1/models/credit:{verb}", json={"instances": INSTANCES}).raise_for_status()


def counted() -> dict[str, list[str]]:
    """Return the files that a compile, an explanation and a decision pass through."""
    tracer = Tracer()
    files = {"compile": tracer.passed(lambda: compile_model(perceptron(), references()), COMPILES)}
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "models"
        compiled = compile_model(perceptron(), references(), feature_names=NAMES, decision=PROFILE)
        compiled.write(repository, "credit")
        with serving(repository) as client:
            for verb in ("explain", "decide"):
                files[verb] = tracer.passed(partial(ask, client, verb), REQUESTS)
    return files


def main() -> None:
    """Print the numbers of files, and with --list their names."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--list", choices=("compile", "explain", "decide"), help="print these files too")
    listed = parser.parse_args().list
    logging.disable()
    files_by_verb = counted()
    for file in files_by_verb.get(listed, ()):
        print(file)
    for verb, files in files_by_verb.items():
        print(f"{len(files):4} {verb}")


if __name__ == "__main__":
    main()
