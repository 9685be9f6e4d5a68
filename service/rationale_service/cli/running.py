"""The gateway's run, for the commands that serve."""

import gc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from rationale_service.cli.reporting import reporting_errors


def run_gateway(flags: Mapping[str, Any], config: Path | None = None) -> None:
    """Serve until a signal, in one process or several.

    Args:
        flags: settings by name; None for a flag that the user left out.
        config: settings file.
    """
    # Set this before gRPC is loaded: otherwise gRPC reports every start of a compile worker on stderr.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    with reporting_errors():
        from rationale_service.configuration import load_settings
        from rationale_service.process.signals import ignore_hangup

        ignore_hangup()
        settings = load_settings(flags, config)
        if settings.workers > 1:
            from rationale_service.workers import run_workers

            raise typer.Exit(run_workers(settings, announce))
        gc.disable()  # until all is loaded, since those objects stay
        from rationale_service.server import run_server

        run_server(settings, announce)


def announce(line: str) -> None:
    """Print a line for the starter of the gateway."""
    print(line, flush=True)
