"""`rationale triton start|stop|logs`: the official Triton container, through the Docker SDK.

docker-compose.yml, the chart and docs/operations/triton.md use the same settings, and tests compare them.
The SDK is the optional extra `docker`.
"""

import http.client
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from rationale.distribution import install
from rationale.errors import RationaleError
from rationale_service.cli.reporting import reporting_errors

# 26.11 (Triton 2.75): the newest at the time of writing. Needed since 25.07 for the shared-memory holes
# closed there, since the 2026 bulletins for the ways around restricted calls, and for 26.08 and 26.11
# themselves, which repair the dynamic batcher that every entry uses (starvation, use after free).
IMAGE = "nvcr.io/nvidia/tritonserver:26.11-py3"
COMMAND = (
    "tritonserver",
    "--model-repository=/models",
    "--model-control-mode=explicit",  # so that the gateway can load explainers
    "--load-model=*",
    "--disable-auto-complete-config",
    "--strict-readiness=false",  # one broken model must not stop the others
    "--exit-on-error=false",
    "--exit-timeout-secs=30",
)
PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
HOST = "127.0.0.1"  # whoever reaches Triton's ports can load its models and read them
OPTIONS = {
    "name": "rationale-triton",
    "environment": {"ORT_DISABLE_TELEMETRY": "1"},  # ONNX Runtime sends no usage events (docs/security.md)
    "security_opt": ["no-new-privileges:true"],
    "working_dir": "/models",  # base of entries' paths of libraries of kernels
}
STOP_TIMEOUT_S = 40
HINTS = {
    "could not select device driver": "--gpu needs NVIDIA's driver and its container toolkit.",
    "port is already allocated": "Choose others with --http-port, --grpc-port and --metrics-port.",
    "address already in use": "Choose others with --http-port, --grpc-port and --metrics-port.",
    "permission denied": "This user may not talk to the engine; is it in the group `docker`?",
    "manifest": "Check --image: its registry has no such tag.",
    "pull access denied": "Check --image: its registry has no such image for this user.",
    "/v2/": "Check --image, and that this machine reaches its registry.",
    "fetching server api version": "Is a Docker engine installed and running? DOCKER_HOST may name another.\n"
    "Without one, `rationale serve` runs the models in its own process, and `make triton` fetches a Triton "
    "server that needs no Docker.",
}
app = typer.Typer(
    name="triton",
    help="Run NVIDIA's Triton container on a model repository: start, stop, logs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port of this machine for this protocol.")]


class EngineError(RationaleError):
    """A failure of the Docker engine or of the container in it."""


@contextmanager
def containers() -> Iterator[Any]:
    """Yield the local engine's containers. Raises EngineError without SDK or engine, or if a call fails."""
    try:
        import docker
    except ImportError as error:
        raise EngineError(
            f"the Docker SDK is not installed: {install('docker')}\n"
            "Without Docker, `rationale serve` runs the models in its own process."
        ) from error
    try:
        with closing(docker.from_env()) as client:
            yield client.containers
    except (docker.errors.DockerException, OSError) as error:  # requests' errors are OSErrors
        text = str(getattr(error, "explanation", None) or error)
        hints = [hint for words, hint in HINTS.items() if words in text.lower()]
        raise EngineError("\n".join([f"the Docker engine failed: {text}", *hints[:1]])) from error


def find(engine: Any) -> Any:
    """Return Triton's container, or None."""
    matches = engine.list(all=True, filters={"name": f"^/?{OPTIONS['name']}$"}, ignore_removed=True)
    return matches[0] if matches else None


def is_ready(port: int) -> bool:
    """Tell whether Triton and all its models are ready."""
    with closing(http.client.HTTPConnection(HOST, port, timeout=5)) as connection:
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False


def wait_until_ready(container: Any, port: int, timeout_s: float) -> None:
    """Wait until Triton is ready. Raises EngineError with the log's end if it ended or took too long."""
    end_s = time.monotonic() + timeout_s
    while not is_ready(port):
        container.reload()
        if container.status != "running":
            fault = "Triton ended while starting"
        elif time.monotonic() > end_s:
            fault = f"Triton was not ready after {timeout_s:g} s (--timeout gives it longer)"
        else:
            time.sleep(0.5)
            continue
        raise EngineError(f"{fault}; the end of its log:\n{container.logs(tail=20).decode(errors='replace')}")


@app.command()
def start(
    repository: Annotated[
        Path, typer.Option(help="Folder with the compiled models.", metavar="FOLDER")
    ] = Path("model_repository"),
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Let Triton compute on all GPUs of this machine.")
    ] = False,
    image: Annotated[str, typer.Option(help="Triton's image, 25.07 or newer.")] = IMAGE,
    http_port: Port = PORTS["http"],
    grpc_port: Port = PORTS["grpc"],
    metrics_port: Port = PORTS["metrics"],
    timeout: Annotated[float, typer.Option(help="Seconds to wait for all models.", min=1)] = 300,
) -> None:
    """Start Triton in a container and wait until every model is ready.

    The ports are open to this machine only. The first start downloads the image (several gigabytes). The
    command needs a Docker engine; `rationale serve` and the Triton of `make triton` work without one.
    """
    ports = {"http": http_port, "grpc": grpc_port, "metrics": metrics_port}
    with reporting_errors(), containers() as engine:
        from docker.types import DeviceRequest

        if not any(repository.glob("*/config.pbtxt")):
            raise EngineError(f"{repository} contains no models; write one with `rationale compile`.")
        if (old := find(engine)) and old.status == "running":
            raise EngineError(f"{old.name} is running already; stop it with `rationale triton stop`.")
        if old:
            old.remove()
        print(f"starting {image}; the first time it is downloaded …", flush=True)
        try:
            container = engine.run(
                image,
                list(COMMAND),
                detach=True,
                volumes={str(repository.resolve()): {"bind": "/models", "mode": "ro"}},
                ports={f"{PORTS[end]}/tcp": (HOST, port) for end, port in ports.items()},
                device_requests=[DeviceRequest(count=-1, capabilities=[["gpu"]])] if gpu else [],
                **OPTIONS,
            )
            wait_until_ready(container, http_port, timeout)
        except BaseException:  # Ctrl-C too: never leave a half-started server
            if unready_container := find(engine):
                unready_container.remove(force=True)
            raise
    print("Triton is ready:", ", ".join(f"{end} {HOST}:{port}" for end, port in ports.items()))
    print(f"Next: rationale serve --repository {repository} --triton {HOST}:{grpc_port}")


@app.command()
def stop() -> None:
    """Let running requests finish, then stop and remove the container."""
    with reporting_errors(), containers() as engine:
        container = find(engine)
        if container:
            container.stop(timeout=STOP_TIMEOUT_S)
            container.remove(force=True)
    print("Triton stopped." if container else "Triton is not running.")


@app.command()
def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C.")] = False,
    tail: Annotated[int, typer.Option(help="Print this many earlier lines first.", min=1)] = 100,
) -> None:
    """Print Triton's log."""
    with reporting_errors(), containers() as engine:
        container = find(engine)
        if not container:
            raise EngineError("Triton is not running; start it with `rationale triton start`.")
        for chunk in container.logs(stream=True, follow=follow, tail=tail):
            print(chunk.decode(errors="replace"), end="", flush=True)
