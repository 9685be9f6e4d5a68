"""A repository that the settings name by URL."""

import logging
from pathlib import Path

from rationale.artifact.repository.remote import RemoteRepository, pull_once
from rationale_service.settings import Settings

log = logging.getLogger(__name__)


def remote_of(settings: Settings) -> RemoteRepository | None:
    """Return the remote repository with its copy; None for a folder. Raises InvalidOptionError."""
    url = settings.repository_url
    return None if url is None else RemoteRepository(url, settings.repository_copy)


def local_repository(settings: Settings) -> Path:
    """Return the repository's folder, or an updated copy of a remote one. For commands that read it once.

    Raises:
        InvalidOptionError, RepositoryError: if the repository cannot be read.
    """
    if settings.repository_url is None:
        return Path(settings.repository)
    folder, warnings = pull_once(settings.repository_url, settings.repository_copy)
    for warning in warnings:
        log.warning(warning)
    return folder
