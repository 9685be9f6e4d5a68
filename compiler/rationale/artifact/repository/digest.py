"""The digest of an entry's files that a server runs."""

import hashlib
from pathlib import Path

from rationale.schema.probes import file_digests


def graph_digest(version: Path) -> str:
    """Hash the graph, its weights, kernels and probe rows: `sha256sum * | sha256sum` of the folder.

    Raises:
        RepositoryError: if a file cannot be read.
    """
    lines = (f"{digest}  {name}\n" for name, digest in file_digests(version).items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()
