"""`rationale demo`: compile the credit example, serve it, ask over HTTP, print what a loan officer can read.

Compiler and gateway run as children, through the command line that users have: what the demo shows is what
they get. Every child is gone when the demo ends, however it ends.
"""

import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from rich.console import Console

from compiler.errors import RationaleError
from compiler.manifest import EXPLAIN_SUFFIX, FILE_NAME, Manifest
from service.cli.demo_report import Applicant, Latency, report

NAME = "credit"
OUTPUT = "default_probability"
FILES = ("credit.onnx", "references.csv", "applicants.json")
CLI = (sys.executable, "-m", "service.cli")
READY = re.compile(r"ready on http://127\.0\.0\.1:(\d+)")
COMPILE_TIMEOUT_S = 300.0
READY_TIMEOUT_S = 120.0
REQUEST_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
WARM_UP, REPEATS = 5, 50
KEPT_LINES = 15


class DemoError(RationaleError):
    """A step failed: which one, why, and the last lines of the child that did it."""

    def __init__(self, step: str, why: str, lines: Sequence[str] = ()) -> None:
        self.step, self.why = step, why
        tail = "".join(f"\n  | {line}" for line in list(lines)[-KEPT_LINES:])
        super().__init__(f"{step} failed: {why}{tail}")


def run_demo(folder: Path | None = None, console: Console | None = None) -> int:
    """Returns the exit status: 0, 1 when a step failed (it is named on the console), 130 after Ctrl-C."""
    console = console or Console()
    try:
        with stopped_by_signals(), TemporaryDirectory(prefix="rationale-demo-") as workspace:
            show(find_example(folder), Path(workspace), console)
    except DemoError as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    return 0


def show(example: Path, workspace: Path, console: Console) -> None:
    repository = workspace / "model_repository"
    with step(console, f"compiling {NAME}.onnx with its references"):
        manifest = compile_example(example, repository, workspace)
    instances = read_instances(example)
    with serving(repository, workspace, console) as port, closing(connect(port)) as connection:
        with step(console, f"asking it over HTTP for {len(instances)} applicants"):
            applicants = ask_for_applicants(connection, instances)
        with step(console, f"measuring the latency, {REPEATS} requests each"):
            latency = measure(connection, instances[:1])
    report(console, manifest, applicants, latency, example)


# --- the steps ---


def find_example(folder: Path | None) -> Path:
    """The folder given, else the checkout's `examples/credit`, else the copy that the wheel carries.

    Raises:
        DemoError: it is not there, or a file of it is missing.
    """
    package = Path(__file__).resolve().parent.parent
    known = (package.parent / "examples" / NAME, package / "_examples" / NAME)
    found = folder.resolve() if folder else next((path for path in known if path.is_dir()), None)
    if found is None:
        raise DemoError("finding the example", f"neither of these exists: {known[0]}, {known[1]}")
    missing = [name for name in FILES if not (found / name).is_file()]
    if missing:
        raise DemoError("finding the example", f"{found} has no {', '.join(missing)}")
    return found


def compile_example(example: Path, repository: Path, workspace: Path) -> Manifest:
    arguments = ["compile", str(example / FILES[0]), "--method", "deepshap", "--name", NAME]
    arguments += ["--references", str(example / FILES[1]), "--repository", str(repository)]
    arguments += ["--output", OUTPUT]
    try:
        done = subprocess.run(  # noqa: S603 (our own command line)
            [*CLI, *arguments],
            cwd=workspace,
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=COMPILE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise DemoError("`rationale compile`", f"not done after {COMPILE_TIMEOUT_S:.0f} s") from error
    lines = done.stdout.splitlines()
    if done.returncode:
        raise DemoError("`rationale compile`", f"it ended with status {done.returncode}", lines)
    try:
        return Manifest.read(repository / f"{NAME}{EXPLAIN_SUFFIX}" / FILE_NAME)
    except RationaleError as error:
        raise DemoError("`rationale compile`", str(error), lines) from error


def read_instances(example: Path) -> list[dict[str, float]]:
    path = example / FILES[2]
    try:
        instances: list[dict[str, float]] = json.loads(path.read_text(encoding="utf-8"))["instances"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DemoError("reading the applicants", f'{path} is not {{"instances": [...]}}: {error}') from error
    return instances


def ask_for_applicants(
    connection: http.client.HTTPConnection, instances: list[dict[str, float]]
) -> list[Applicant]:
    answer = ask(connection, "explain", instances)
    try:
        return [
            Applicant(
                features=instance,
                base=explanation["base_value"],
                probability=explanation["explained_value"],
                effects=explanation["attributions"],
                gap=explanation["completeness_gap"],
            )
            for instance, explanation in zip(instances, answer["explanations"], strict=True)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise DemoError(":explain", f"not the answer that was expected ({error!r}): {answer}") from error


def measure(connection: http.client.HTTPConnection, instances: list[dict[str, float]]) -> Latency:
    """Medians over one connection, in milliseconds, as a client meets them."""
    median = {verb: median_ms(connection, verb, instances) for verb in ("predict", "explain")}
    return Latency(median["predict"], median["explain"], REPEATS)


def median_ms(connection: http.client.HTTPConnection, verb: str, instances: list[dict[str, float]]) -> float:
    taken = []
    for _ in range(WARM_UP + REPEATS):
        started = time.perf_counter()
        ask(connection, verb, instances)
        taken.append(time.perf_counter() - started)
    return 1e3 * statistics.median(taken[WARM_UP:])


# --- HTTP ---


def connect(port: int) -> http.client.HTTPConnection:
    """http.client rather than urllib: one connection is kept, and no proxy of the environment is asked."""
    return http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_TIMEOUT_S)


def ask(connection: http.client.HTTPConnection, verb: str, instances: list[dict[str, float]]) -> Any:
    """Raises DemoError for every answer but 200 with JSON."""
    path = f"/v1/models/{NAME}:{verb}"
    body = json.dumps({"instances": instances}).encode()
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise DemoError(f"POST {path}", repr(error)) from error
    if response.status != http.client.OK:
        raise DemoError(f"POST {path}", f"status {response.status}: {text[:500]}")
    try:
        return json.loads(text)
    except ValueError as error:
        raise DemoError(f"POST {path}", f"the answer is not JSON: {text[:500]}") from error


# --- children ---


@contextmanager
def serving(repository: Path, workspace: Path, console: Console) -> Iterator[int]:
    """The port of a `rationale serve` that is ready; it is gone afterwards.

    Raises:
        DemoError: it does not become ready; and what the body raises, with the gateway's last lines.
    """
    lines: deque[str] = deque(maxlen=KEPT_LINES)
    ports: Queue[int | None] = Queue()
    process = subprocess.Popen(  # noqa: S603 (our own command line)
        [*CLI, "serve", "--repository", str(repository), "--port", "0"],
        cwd=workspace,
        env=child_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    reader = threading.Thread(target=follow, args=(process, lines, ports), daemon=True)
    try:
        try:
            reader.start()
            with step(console, "starting the gateway"):
                port = wait_until_ready(ports)
            yield port
        finally:
            stop(process)
            reader.join(STOP_TIMEOUT_S)
    except DemoError as error:  # after the end, so that the gateway's last lines are there
        raise DemoError(error.step, error.why, lines) from error


def follow(process: subprocess.Popen[str], lines: deque[str], ports: Queue[int | None]) -> None:
    """Reads the child to its end, so that it never waits for a reader; a last None says that it ended."""
    if process.stdout is None:
        return
    with process.stdout as output:
        for line in output:
            lines.append(line.rstrip())
            if ready := READY.search(line):
                ports.put(int(ready.group(1)))
    ports.put(None)


def wait_until_ready(ports: Queue[int | None]) -> int:
    try:
        port = ports.get(timeout=READY_TIMEOUT_S)
    except Empty as error:
        raise DemoError("`rationale serve`", f"not ready after {READY_TIMEOUT_S:.0f} s") from error
    if port is None:
        raise DemoError("`rationale serve`", "it ended before it was ready")
    return port


def stop(process: subprocess.Popen[str]) -> None:
    """Asks it to end, then makes it; also when a second Ctrl-C cuts the asking short."""
    try:
        process.terminate()
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def child_environment() -> dict[str, str]:
    """The reader's own settings stay out; lines come as they are written, uncoloured and unwrapped."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RATIONALE_")}
    return {**own, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "COLUMNS": "120"}


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as an exception does, so that its child and files go too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


@contextmanager
def step(console: Console, what: str) -> Iterator[None]:
    """A spinner on a terminal while it lasts; a line with the time it took, once it is done."""
    started = time.monotonic()
    with console.status(what, spinner="line"):
        yield
    console.print(f"{what}: {time.monotonic() - started:.1f} s", style="dim", highlight=False)
