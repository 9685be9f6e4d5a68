"""The digest of what a server runs of an entry."""

import hashlib
from pathlib import Path

from rationale.errors import RepositoryError


def graph_digest(version: Path) -> str:
    """Hash the graph, its weights, kernels and probe rows: `sha256sum * | sha256sum` of the folder.

    Raises:
        RepositoryError: a file cannot be read.
    """
    whole = hashlib.sha256()
    try:
        for path in sorted(path for path in version.rglob("*") if path.is_file()):
            with path.open("rb") as file:
                one = hashlib.file_digest(file, "sha256").hexdigest()
            whole.update(f"{one}  {path.relative_to(version).as_posix()}\n".encode())
    except OSError as error:
        raise RepositoryError(f"{version}: cannot be read: {error.strerror}") from error
    return whole.hexdigest()
