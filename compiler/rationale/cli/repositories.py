"""The repository that a command reads: a folder, or a URL, which is pulled first."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from rationale.terminal import reporting_errors


def _local_folder(repository: str | Path) -> Path:
    """Return the repository's folder; pull a URL first."""
    if isinstance(repository, Path) or "://" not in repository:
        return Path(repository)
    with reporting_errors():
        from rationale.artifact.repository.remote import pull_once

        folder, warnings = pull_once(repository)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return folder


Repository = Annotated[
    Path,
    typer.Option(
        help="The model repository: a folder, or a URL (s3://…), which is copied first.",
        metavar="FOLDER|URL",
        parser=_local_folder,
    ),
]
