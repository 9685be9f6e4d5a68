"""The repository of the settings, where a URL names it."""

import logging
from pathlib import Path

from rationale.artifact.remote import RemoteRepository, pulled
from rationale_service.settings import Settings

log = logging.getLogger(__name__)


def remote_of(settings: Settings) -> RemoteRepository | None:
    """Return it and its copy; None where the repository is a folder. Raises InvalidOptionError."""
    url = settings.repository_url
    return None if url is None else RemoteRepository(url, settings.repository_copy)


def local_repository(settings: Settings) -> Path:
    """Return the folder to read, of a copy that is brought up to date. For commands that read it once.

    Raises:
        InvalidOptionError, RepositoryError: it cannot be read.
    """
    if settings.repository_url is None:
        return Path(settings.repository)
    folder, warnings = pulled(settings.repository_url, settings.repository_copy)
    for warning in warnings:
        log.warning(warning)
    return folder
