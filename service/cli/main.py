"""The command line `rationale`: the compiler's commands, and the service's."""

import os
from pathlib import Path
from typing import Annotated

import typer

from compiler.cli.compile import app as app
from compiler.terminal import told_plainly
from service.cli.keys import app as keys_app
from service.cli.triton import app as triton_app

app.add_typer(triton_app, name="triton")
app.add_typer(keys_app, name="keys")

Repository = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the compiled models. Default: model_repository.",
        metavar="FOLDER",
        show_default=False,
    ),
]
Strict = Annotated[
    bool | None,
    typer.Option(
        "--strict",
        help="Do not start where an entry is broken. Default: serve the others, and tell of it.",
        show_default=False,
    ),
]
Watch = Annotated[
    float | None,
    typer.Option(
        help="Look so often whether entries of the repository are new, changed or gone, and take that up. "
        "Default: only on SIGHUP, or when asked through the admin API.",
        metavar="SECONDS",
        show_default=False,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        help="Where models run: cpu, cuda, or auto: as the instance_group of each says. Default: auto.",
        metavar="auto|cpu|cuda",
        show_default=False,
    ),
]
Host = Annotated[
    str | None,
    typer.Option(help="Address to listen on. Default: 127.0.0.1, this machine only.", show_default=False),
]
Port = Annotated[
    int | None,
    typer.Option(
        help="Port to listen on; 0 takes a free one. Default: 8080.", min=0, max=65535, show_default=False
    ),
]
GrpcPort = Annotated[
    str | None,
    typer.Option(
        help="Port of the gRPC end; 0 takes a free one, off switches it off. "
        "Default: 8081, or a free one with --port 0.",
        metavar="PORT|off",
        show_default=False,
    ),
]
Triton = Annotated[
    str | None,
    typer.Option(
        help="Run the models in the Triton server at this gRPC address, such as localhost:8001, "
        "which serves the same repository. Default: run them in this process.",
        metavar="HOST:PORT",
        show_default=False,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Processes that serve on the same ports; each has the models in its memory. One process has one "
        "core for all that is not the models' computation. Default: 1.",
        metavar="N",
        min=1,
        max=64,
        show_default=False,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        help="TOML file with settings, such as `port = 9000`. Flags and environment variables come first.",
        metavar="FILE",
        show_default=False,
    ),
]

KeysFile = Annotated[
    Path | None,
    typer.Option(
        help="Keys that callers need; `rationale keys new` makes one. Default: none, everybody may ask.",
        metavar="FILE",
        show_default=False,
    ),
]
AdminPort = Annotated[
    int | None,
    typer.Option(
        help="Port of its own for the admin API and /metrics, on this machine only unless "
        "RATIONALE_ADMIN_HOST says otherwise; 0 takes a free one. Default: they are on --port.",
        min=0,
        max=65535,
        show_default=False,
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(
        help="Certificate chain (PEM): HTTP and gRPC over TLS alone.", metavar="FILE", show_default=False
    ),
]
TlsKey = Annotated[Path | None, typer.Option(help="Its private key.", metavar="FILE", show_default=False)]
TlsClientCa = Annotated[
    Path | None,
    typer.Option(
        help="Mutual TLS: callers need a certificate of this authority.", metavar="FILE", show_default=False
    ),
]


@app.command()
def serve(
    repository: Repository = None,
    strict: Strict = None,
    watch: Watch = None,
    device: Device = None,
    host: Host = None,
    port: Port = None,
    grpc_port: GrpcPort = None,
    workers: Workers = None,
    triton: Triton = None,
    config: Config = None,
    keys_file: KeysFile = None,
    admin_port: AdminPort = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
) -> None:
    """Serve predictions and explanations over HTTP and gRPC.

    Speaks the Open Inference Protocol under /v2 (with the verb explain added) and KServe's v1 with named
    features under /v1; /docs describes both. Speaks the Open Inference Protocol over gRPC as well, where
    MODEL_explain is what explains MODEL. Prints its addresses when every model is loaded and warmed up.
    SIGTERM and Ctrl-C finish the running requests, then exit; SIGHUP reads the repository, keys and
    certificates again.

    Each flag can also be an environment variable, RATIONALE_REPOSITORY, RATIONALE_PORT …, or a line of the
    --config file; some settings have no flag. docs/settings.md lists them.
    """
    flags = {
        "repository": repository,
        "strict": strict,
        "watch_s": watch,
        "device": device,
        "host": host,
        "port": port,
        "grpc_port": grpc_port,
        "workers": workers,
        "triton": triton,
        "keys_file": keys_file,
        "admin_port": admin_port,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_client_ca": tls_client_ca,
    }
    # Before gRPC is loaded: else it tells on stderr of every compile worker that is started.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    with told_plainly():
        from service.configuration import load_settings
        from service.signals import ignore_hangup

        ignore_hangup()
        settings = load_settings(flags, config)
        if settings.workers > 1:
            from service.workers import run_workers

            raise typer.Exit(run_workers(settings, _announce))
        from service.server import run_server

        run_server(settings, _announce)


def _announce(line: str) -> None:
    print(line, flush=True)


@app.command()
def demo() -> None:
    """Show the whole path: compile a small credit model, serve it, ask over HTTP, explain its decisions."""
    from service.cli.demo import run_demo

    raise typer.Exit(run_demo())
