"""`rationale triton start|stop|logs`: the official Triton container, through the Docker SDK.

The image, its flags and its ports stand here once; docker-compose.yml says the same, and a test compares
them. The SDK is the optional extra `docker`, so it is imported where it is used.
"""

import http.client
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Never

import typer

from compiler.errors import RationaleError

# 26.11 (Triton 2.75): the newest at the time of writing. Needed since 25.07 for the shared-memory holes
# closed there, since the 2026 bulletins for the ways around restricted calls, and for 26.08 and 26.11
# themselves, which repair the dynamic batcher that every entry uses (starvation, use after free).
IMAGE = "nvcr.io/nvidia/tritonserver:26.11-py3"
COMMAND = (
    "tritonserver",
    "--model-repository=/models",
    "--model-control-mode=explicit",  # the gateway loads explainers that are made over its API
    "--load-model=*",
    "--disable-auto-complete-config",
    "--strict-readiness=true",
    "--exit-timeout-secs=30",
)
MODELS = "/models"
PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
ENVIRONMENT = {"ORT_DISABLE_TELEMETRY": "1"}  # ONNX Runtime sends no usage events (docs/security.md)
SECURITY = ("no-new-privileges:true",)
HOST = "127.0.0.1"  # whoever reaches Triton's ports can load its models and read them

CONTAINER = "rationale-triton"
STOP_TIMEOUT_S = 40
POLL_S = 0.5
PROGRESS_S = 5.0
TAIL_LINES = 20

HINTS = {
    "could not select device driver": "--gpu needs NVIDIA's driver and its container toolkit.",
    "port is already allocated": "Choose others with --http-port, --grpc-port and --metrics-port.",
    "address already in use": "Choose others with --http-port, --grpc-port and --metrics-port.",
    "permission denied": "This user may not talk to the engine; is it in the group `docker`?",
    "no such image": "Check --image, and that this machine reaches its registry.",
    "manifest unknown": "Check --image: its registry has no such tag.",
}


class EngineError(RationaleError):
    """The Docker engine, or the container in it, did not do what was asked."""

    status = 503


# --- the engine ---------------------------------------------------------------------------------------


def hint(text: str) -> str:
    """What to do about an engine's message, on a line of its own."""
    found = [advice for words, advice in HINTS.items() if words in text.lower()]
    return f"\n{found[0]}" if found else ""


@contextmanager
def engine() -> Iterator[Any]:
    """A client of the local Docker engine.

    Raises:
        EngineError: the SDK is not installed, no engine answers, or a call to it fails.
    """
    try:
        import docker
        from requests.exceptions import RequestException  # the SDK lets those of its transport through
    except ImportError as error:
        raise EngineError(
            "the Docker SDK is not installed: pip install 'rationale[docker]'\n"
            "Without Docker, `rationale serve` runs the models in its own process."
        ) from error
    try:
        client = docker.from_env()
    except docker.errors.DockerException as error:
        reason = hint(str(error)).strip() or "Is it installed and running? DOCKER_HOST may name another."
        raise EngineError(
            f"no Docker engine answers. {reason}\nWithout one, `rationale serve` runs the models in its own "
            "process, and `make triton` fetches a Triton server that needs no Docker."
        ) from error
    try:
        yield client
    except (docker.errors.DockerException, RequestException) as error:
        text = str(getattr(error, "explanation", None) or error).strip()
        raise EngineError(f"the Docker engine did not do it: {text}{hint(text)}") from error
    finally:
        client.close()


def find(client: Any) -> Any | None:
    """Our container, None where there is none."""
    from docker.errors import NotFound

    try:
        return client.containers.get(CONTAINER)
    except NotFound:
        return None


def have_image(client: Any, image: str) -> bool:
    from docker.errors import ImageNotFound

    try:
        client.images.get(image)
    except ImageNotFound:
        return False
    return True


def pull(client: Any, image: str) -> None:
    """Downloads the image, saying every few seconds how many layers are there."""
    repository, _, tag = image.rpartition(":") if ":" in image.rsplit("/", 1)[-1] else (image, "", "latest")
    say(f"downloading {image}, once (several gigabytes) …")
    layers: dict[str, bool] = {}
    next_s = time.monotonic() + PROGRESS_S
    for event in client.api.pull(repository, tag=tag, stream=True, decode=True):
        if "error" in event:
            raise EngineError(f"{image} cannot be downloaded: {event['error']}{hint(event['error'])}")
        if "id" in event and event["id"] != tag:
            layers[event["id"]] = event.get("status") in ("Pull complete", "Already exists")
        if time.monotonic() > next_s:
            next_s = time.monotonic() + PROGRESS_S
            say(f"  {sum(layers.values())} of {len(layers)} layers")


# --- the container ------------------------------------------------------------------------------------


def container_options(repository: Path, ports: dict[str, int], gpu: bool) -> dict[str, Any]:
    """The arguments of `containers.run`, as the Docker SDK names them."""
    from docker.types import DeviceRequest

    return {
        "name": CONTAINER,
        "command": list(COMMAND),
        "environment": dict(ENVIRONMENT),
        "volumes": {str(repository.resolve()): {"bind": MODELS, "mode": "ro"}},
        "ports": {f"{PORTS[end]}/tcp": (HOST, port) for end, port in ports.items()},
        "security_opt": list(SECURITY),
        "device_requests": [DeviceRequest(count=-1, capabilities=[["gpu"]])] if gpu else [],
        "detach": True,
    }


def is_ready(port: int) -> bool:
    """Whether Triton and all its models are ready."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def log_tail(container: Any) -> str:
    lines = container.logs(tail=TAIL_LINES).decode(errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in lines) or "    (its log is empty)"


def wait_until_ready(container: Any, port: int, timeout_s: float) -> None:
    """Raises EngineError with the log's end where Triton ended, or was not ready in time."""
    begin_s = time.monotonic()
    next_s = begin_s + PROGRESS_S
    while (waited_s := time.monotonic() - begin_s) < timeout_s:
        if is_ready(port):
            return
        container.reload()
        if container.status in ("exited", "dead"):
            raise EngineError(f"Triton ended while starting; the end of its log:\n{log_tail(container)}")
        if time.monotonic() > next_s:
            next_s = time.monotonic() + PROGRESS_S
            say(f"  loading models, {waited_s:.0f} s …")
        time.sleep(POLL_S)
    raise EngineError(
        f"Triton was not ready after {timeout_s:.0f} s (--timeout gives it longer); the end of its log:\n"
        f"{log_tail(container)}"
    )


def check_repository(repository: Path) -> None:
    """Raises EngineError where there is nothing to serve."""
    if not any(repository.glob("*/config.pbtxt")):
        raise EngineError(
            f"{repository} holds no models (folders with a config.pbtxt); `rationale compile` makes them."
        )


def start_container(client: Any, image: str, options: dict[str, Any], timeout_s: float) -> None:
    """Starts the container and waits; one that does not become ready is removed again."""
    old = find(client)
    if old is not None and old.status == "running":
        raise EngineError(f"{CONTAINER} is running already; `rationale triton stop` ends it.")
    if old is not None:
        old.remove(force=True)
    if not have_image(client, image):
        pull(client, image)
    say(f"starting {image} …")
    http_port = options["ports"][f"{PORTS['http']}/tcp"][1]
    try:
        container = client.containers.run(image, **options)
        wait_until_ready(container, http_port, timeout_s)
    except BaseException:  # Ctrl-C too: whatever ends the wait, no half-started server stays
        left = find(client)
        if left is not None:
            left.remove(force=True)
        raise


# --- the command line ---------------------------------------------------------------------------------

app = typer.Typer(
    name="triton",
    help="Run NVIDIA's Triton container on a model repository: start, stop, logs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

PortOption = Annotated[int, typer.Option(min=1, max=65535)]


def say(text: str) -> None:
    print(text, flush=True)


def fail(error: EngineError) -> Never:
    print(f"rationale: {error}", file=sys.stderr)
    raise typer.Exit(2)


@app.command()
def start(
    repository: Annotated[
        Path, typer.Option(help="Folder with the compiled models.", metavar="FOLDER")
    ] = Path("model_repository"),
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Let Triton compute on all GPUs of this machine.")
    ] = False,
    image: Annotated[str, typer.Option(help="Triton's image; 25.07 or newer.")] = IMAGE,
    http_port: PortOption = PORTS["http"],
    grpc_port: PortOption = PORTS["grpc"],
    metrics_port: PortOption = PORTS["metrics"],
    timeout: Annotated[float, typer.Option(help="Seconds to wait for all models.", min=1)] = 300,
) -> None:
    """Start Triton in a container and wait until every model is ready.

    Its ports are open to this machine only. Downloads the image the first time. Needs a Docker engine;
    `rationale serve` needs none, and neither does the Triton that `make triton` fetches.
    """
    ports = {"http": http_port, "grpc": grpc_port, "metrics": metrics_port}
    try:
        check_repository(repository)
        with engine() as client:
            start_container(client, image, container_options(repository, ports, gpu), timeout)
    except EngineError as error:
        fail(error)
    say(f"Triton is ready: http {HOST}:{http_port}, grpc {HOST}:{grpc_port}, metrics {HOST}:{metrics_port}")
    say(f"Next: rationale serve --repository {repository} --triton {HOST}:{grpc_port}")


@app.command()
def stop() -> None:
    """Let running requests finish, then stop and remove the container."""
    try:
        with engine() as client:
            container = find(client)
            if container is None:
                say("Triton is not running.")
                return
            container.stop(timeout=STOP_TIMEOUT_S)
            container.remove(force=True)
    except EngineError as error:
        fail(error)
    say("Triton stopped.")


@app.command()
def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    tail: Annotated[int, typer.Option(help="Lines to begin with.", min=1)] = 100,
) -> None:
    """Print Triton's log."""
    try:
        with engine() as client:
            container = find(client)
            if container is None:
                raise EngineError("Triton is not running; `rationale triton start` starts it.")
            for chunk in container.logs(stream=True, follow=follow, tail=tail):
                sys.stdout.write(chunk.decode(errors="replace"))
                sys.stdout.flush()
    except EngineError as error:
        fail(error)
