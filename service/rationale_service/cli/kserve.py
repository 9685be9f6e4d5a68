"""`rationale kserve`: the gateway in an InferenceService, with KServe's arguments."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from rationale.errors import InvalidOptionError
from rationale.terminal import Panel
from rationale_service.cli.reporting import reporting_errors
from rationale_service.cli.running import run_gateway

app = typer.Typer()

_MOUNT = Path("/mnt/models")  # KServe's mount of STORAGE_URI
_STATE = "RATIONALE_STATE"


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, rich_help_panel=Panel.SERVE
)
def kserve(
    context: typer.Context,
    model_name: Annotated[
        str,
        typer.Option(
            "--model_name",
            help="The InferenceService's name, which is also the model's name in the repository.",
        ),
    ],
    model_dir: Annotated[
        Path, typer.Option("--model_dir", help="The repository, as KServe mounts it.", metavar="FOLDER")
    ] = _MOUNT,
    predictor_host: Annotated[
        str | None,
        typer.Option(
            "--predictor_host",
            help="KServe passes it to explainers. The gateway never calls it, because the explaining graph "
            "also predicts.",
            show_default=False,
        ),
    ] = None,
    http_port: Annotated[int, typer.Option("--http_port", help="Port for HTTP.")] = 8080,
    grpc_port: Annotated[int, typer.Option("--grpc_port", help="Port for gRPC.")] = 8081,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            help="KServe's containerConcurrency; Knative applies it, and the gateway ignores it. Set "
            "RATIONALE_WORKERS for the number of processes.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve a model in KServe: as the predictor of an InferenceService, or as its explainer.

    KServe sends only :explain to an explainer, and everything else to the predictor. So the gateway works
    best as the predictor, which answers :predict, :explain and :decide (deploy/kserve has examples of both).
    Every setting of docs/settings.md can be an environment variable of the container.
    """
    with reporting_errors():
        _check(model_dir, model_name)
    for argument in context.args:
        print(f"warning: {argument} is unknown, so the gateway ignores it", file=sys.stderr)
    if predictor_host is not None:
        print(f"explains with its own graph and does not call the predictor {predictor_host}", flush=True)
    if workers is not None:
        print(
            f"containerConcurrency is {workers}; RATIONALE_WORKERS says how many processes serve", flush=True
        )
    if not os.environ.get(_STATE):
        os.environ[_STATE] = str(Path(tempfile.gettempdir()) / "rationale.state")
        print(
            "warning: explainers made over the API and the audit trail are lost with this pod: set "
            f"{_STATE} to a folder of a volume, or to a database",
            file=sys.stderr,
        )
    everywhere = "0.0.0.0"  # noqa: S104  # of the pod, whose address KServe calls
    run_gateway({"repository": model_dir, "host": everywhere, "port": http_port, "grpc_port": grpc_port})


def _check(repository: Path, name: str) -> None:
    """Raise InvalidOptionError if the mounted folder lacks the model that KServe will ask for."""
    if (repository / name / "config.pbtxt").is_file():
        return
    if (repository / "config.pbtxt").is_file():
        raise InvalidOptionError(
            f"{repository} is an entry, not a repository: set STORAGE_URI to the folder above it"
        )
    entries = sorted(path.parent.name for path in repository.glob("*/config.pbtxt"))
    there = f"it holds {', '.join(entries)}" if entries else "it holds no entry of `rationale compile`"
    raise InvalidOptionError(
        f"{repository} has no model '{name}', the InferenceService's name, by which KServe sends requests: "
        f"{there}. Compile with --name {name}, or give the InferenceService the model's name"
    )
