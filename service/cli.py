"""The command line `rationale`: what the compiler offers, and `serve`."""

import sys
from pathlib import Path
from typing import Annotated, Any, Never

import typer

from compiler.cli import app
from compiler.errors import RationaleError
from service.docker_engine import app as triton_app

app.add_typer(triton_app, name="triton")

Repository = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the compiled models. Default: model_repository.",
        metavar="FOLDER",
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
Triton = Annotated[
    str | None,
    typer.Option(
        help="Run the models in the Triton server at this gRPC address, such as localhost:8001, "
        "which serves the same repository. Default: run them in this process.",
        metavar="HOST:PORT",
        show_default=False,
    ),
]


@app.command()
def serve(repository: Repository = None, host: Host = None, port: Port = None, triton: Triton = None) -> None:
    """Serve predictions and explanations over HTTP.

    Speaks the Open Inference Protocol under /v2 (with the verb explain added) and KServe's v1 with named
    features under /v1; /docs describes both. Prints its address when every model is loaded and warmed up.
    SIGTERM and Ctrl-C finish the running requests, then exit.

    Each flag can also be an environment variable, RATIONALE_REPOSITORY, RATIONALE_PORT …, and some settings
    have no flag: docs/settings.md lists them.
    """
    from pydantic import ValidationError

    given: dict[str, Any] = {"repository": repository, "host": host, "port": port, "triton": triton}
    try:
        from service.server import run_server
        from service.settings import Settings

        settings = Settings(**{name: value for name, value in given.items() if value is not None})
        run_server(settings, announce=lambda line: print(line, flush=True))
    except ValidationError as error:
        first = error.errors()[0]
        fail(f"setting {'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}")
    except RationaleError as error:
        fail(str(error))


@app.command()
def demo(
    folder: Annotated[
        Path | None,
        typer.Option(
            help="An example folder. Default: the credit example.", metavar="FOLDER", show_default=False
        ),
    ] = None,
) -> None:
    """Show the whole path: compile a small credit model, serve it, ask over HTTP, explain its decisions."""
    from service.demo import run_demo

    raise typer.Exit(run_demo(folder))


def fail(message: str) -> Never:
    """Says what is wrong on stderr and exits with status 2."""
    print(f"rationale: {message}", file=sys.stderr)
    raise typer.Exit(2)


if __name__ == "__main__":
    app()
