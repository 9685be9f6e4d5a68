"""The repository that a command reads: a folder, or a URL, which is pulled first."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from rationale.terminal import reporting_errors


def _read(given: str | Path) -> Path:
    if isinstance(given, Path) or "://" not in given:
        return Path(given)
    with reporting_errors():
        from rationale.artifact.remote import pull_once

        folder, warnings = pull_once(given)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return folder


Repository = Annotated[
    Path,
    typer.Option(
        help="The model repository: a folder, or a URL (s3://…), of which a copy is kept.",
        metavar="FOLDER|URL",
        parser=_read,
    ),
]
