"""A run of the Triton that fetch.py made, on one model repository.

    python3 scripts/triton/serve.py --repository model_repository

From Python, `run_triton(repository)` is a context manager that yields the addresses once every model is
ready, and stops the server (SIGTERM: running and queued requests finish) when it is left. Only the
standard library is used.
"""

import argparse
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

DEFAULT_FOLDER = Path(__file__).resolve().parent.parent.parent / ".triton"
CONTROL_MODES = ("explicit", "none", "poll")
ALL = ("*",)  # every model present at the start
ENDS = ("http", "grpc", "metrics")
PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
PORT_TAKEN = "already in use"
START_ATTEMPTS = 3  # a port found free may be taken before the server binds it
DRAIN_TIMEOUT_S = 5  # for running requests; a client that keeps an idle connection open uses it up
TAIL_LINES, LINE_LENGTH = 30, 400
# Triton's own in glog's format, and those that ONNX Runtime writes in colour from inside the backend.
ERROR_LINE = re.compile(r"E\d{4} |error|\x1b\[[\d;]*m\S+ \S+ \[E:onnxruntime:")
COLOUR = re.compile(r"\x1b\[[\d;]*m")


class TritonError(Exception):
    """An error for a server that did not start; the text holds the reason and the log's tail."""


@dataclass(frozen=True)
class TritonAddresses:
    """The server's addresses, each as `host:port`, and the path of its log."""

    http: str
    grpc: str
    metrics: str
    log: Path
    pid: int


def free_ports(host: str, count: int) -> list[int]:
    """Return ports that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((host, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def check_ports(host: str, ports: dict[str, int]) -> None:
    """Raise TritonError if a requested port is taken: another server's answer would pass for ours."""
    for end, port in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise TritonError(
                    f"{host}:{port} cannot be used for {end} ({error.strerror}); "
                    f"choose another with --{end}-port, or 0 for a free one."
                ) from error


def tail(log: Path) -> str:
    """Return the errors in the log, or its last lines if it holds none."""
    lines = log.read_text(errors="replace").splitlines()
    errors = [line for line in lines if ERROR_LINE.match(line)]
    chosen = [COLOUR.sub("", line)[:LINE_LENGTH] for line in (errors or lines)[-TAIL_LINES:]]
    return "\n".join(f"    {line}" for line in chosen) or "    (the log is empty)"


# --- the process --------------------------------------------------------------------------------------


def installed(folder: Path) -> Path:
    """Return the server's own folder. Raise TritonError if fetch.py has not finished."""
    try:
        stamp = json.loads((folder / "stamp.json").read_bytes())
        return folder / str(stamp["server"])
    except (OSError, ValueError, KeyError, TypeError):
        raise TritonError(
            f"no server in {folder}. Run `make triton`, or python3 scripts/triton/fetch.py --into {folder}"
        ) from None


def environment(folder: Path) -> dict[str, str]:
    """Return the server's environment, in which the stub finds the environment's Python first.

    Under numpy 2 the stub answers zeros, without an error. ONNX Runtime sends no usage events
    (docs/security.md).
    """
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")}
    path = os.pathsep.join([str(folder / "venv/bin"), inherited.get("PATH", os.defpath)])
    return {
        **inherited,
        "PATH": path,
        "LD_LIBRARY_PATH": str(folder / "lib"),
        "PYTHONNOUSERSITE": "1",
        "ORT_DISABLE_TELEMETRY": "1",
    }


def command(
    repository: Path, folder: Path, host: str, ports: dict[str, int], control_mode: str, load: Sequence[str]
) -> list[str]:
    server = installed(folder)
    return [
        str(server / "bin/tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={folder / 'backends'}",
        f"--cache-directory={server / 'caches'}",
        f"--model-control-mode={control_mode}",
        *(f"--load-model={name}" for name in load if control_mode == "explicit"),
        "--disable-auto-complete-config",
        "--strict-readiness=false",  # a model that does not load leaves the others served
        "--exit-on-error=false",
        f"--exit-timeout-secs={DRAIN_TIMEOUT_S}",
        *(f"--{end}-address={host}" for end in ENDS),
        *(f"--{end}-port={ports[end]}" for end in ENDS),
        "--allow-gpu-metrics=false",
    ]


def is_ready(address: str) -> bool:
    """Tell whether the server and every model it was told to load are ready."""
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def ending(status: int) -> str:
    """Return the end of a process in words: `with status 1`, `by SIGSEGV`."""
    return f"with status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"


def wait_until_ready(process: subprocess.Popen[bytes], address: str, log: Path, timeout_s: float) -> None:
    """Raise TritonError if the server ended or did not become ready in time."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise TritonError(f"Triton ended {ending(process.returncode)} ({log}):\n{tail(log)}")
        if is_ready(address):
            return
        time.sleep(0.05)
    raise TritonError(f"Triton was not ready after {timeout_s:.0f} s ({log}):\n{tail(log)}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM and wait; send SIGKILL to the whole group if that does not help."""
    process.terminate()
    try:
        process.wait(DRAIN_TIMEOUT_S + 5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with suppress(ProcessLookupError):  # the group is gone with its last process, as it should be
        os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def started(
    arguments: list[str], folder: Path, log: Path, repository: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the server as a process in a group of its own, stopped on the way out.

    It runs in the repository's folder, from which entries name their libraries of kernels.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            arguments,
            env=environment(folder),
            cwd=repository,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        stop(process)


@contextmanager
def run_triton(
    repository: Path,
    *,
    control_mode: str = "explicit",
    load: Sequence[str] = ALL,
    extra: Sequence[str] = (),
    host: str = "127.0.0.1",
    ports: dict[str, int] | None = None,
    log: Path | None = None,
    folder: Path = DEFAULT_FOLDER,
    timeout_s: float = 60,
) -> Iterator[TritonAddresses]:
    """Serve `repository` until the block is left; yield once all models are ready.

    `control_mode` is explicit (then `load` names the models to begin with), none or poll; `extra` holds
    further flags of tritonserver; `ports` by end (http, grpc, metrics), 0 or absent for a free one.

    Raises:
        TritonError: if no server was fetched, it ended early, or it was not ready in time.
    """
    if not repository.is_dir():
        raise TritonError(f"{repository} is not a folder; it should hold one folder per model.")
    if control_mode not in CONTROL_MODES:
        raise TritonError(f"control mode '{control_mode}' is none of {', '.join(CONTROL_MODES)}.")
    fixed = {end: port for end, port in (ports or {}).items() if port}
    check_ports(host, fixed)
    folder = folder.resolve()  # the server runs elsewhere
    log = log or Path(tempfile.mkdtemp(prefix="triton-")) / "triton.log"
    for attempt in range(1, START_ATTEMPTS + 1):
        chosen = {**dict(zip(ENDS, free_ports(host, len(ENDS)), strict=True)), **fixed}
        arguments = command(repository.resolve(), folder, host, chosen, control_mode, load)
        with started([*arguments, *extra], folder, log, repository) as process:
            addresses = {end: f"{host}:{chosen[end]}" for end in ENDS}
            try:
                wait_until_ready(process, addresses["http"], log, timeout_s)
            except TritonError as error:
                if PORT_TAKEN in str(error) and attempt < START_ATTEMPTS and not fixed:
                    continue
                raise
            yield TritonAddresses(**addresses, log=log, pid=process.pid)
            return


# --- the command line ---------------------------------------------------------------------------------


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the Triton that `make triton` fetched.")
    add = parser.add_argument
    add("--repository", type=Path, default=Path("model_repository"), help="one folder per model")
    add("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    for end, port in PORTS.items():
        add(f"--{end}-port", type=int, default=port, help=f"default {port}; 0 takes a free one")
    add("--control-mode", choices=CONTROL_MODES, default="explicit", help="default explicit: by API too")
    add("--load", action="append", metavar="MODEL", help="explicit mode: load this at start, not all")
    add("--log", type=Path, help="file for the server's log (default: a temporary one)")
    add("--triton", type=Path, default=DEFAULT_FOLDER, help="the folder fetch.py made")
    return parser.parse_args()


def main() -> int:
    command_line = options()
    # SIGTERM should leave the block below just as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ports = {end: getattr(command_line, f"{end}_port") for end in ENDS}
    try:
        with run_triton(
            command_line.repository,
            control_mode=command_line.control_mode,
            load=command_line.load or ALL,
            host=command_line.host,
            ports=ports,
            log=command_line.log,
            folder=command_line.triton.resolve(),
        ) as triton:
            print(f"Triton is ready: http {triton.http}, grpc {triton.grpc}, metrics {triton.metrics}")
            print(f"Its log: {triton.log}. Ctrl-C stops it.", flush=True)
            os.waitid(os.P_PID, triton.pid, os.WEXITED | os.WNOWAIT)
            raise TritonError(f"Triton ended by itself ({triton.log}):\n{tail(triton.log)}")
    except (TritonError, OSError) as error:
        print(f"triton: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("triton: stopped", file=sys.stderr)
        return 0


if __name__ == "__main__":
    sys.exit(main())
