"""`rationale backup`: copy the data of a gateway on this machine while it runs."""

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from rationale.errors import InvalidOptionError
from rationale.terminal import Panel
from rationale_service.cli.audit import Config, Repository
from rationale_service.cli.reporting import reporting_errors

if TYPE_CHECKING:
    from rationale_service.settings import Settings
    from rationale_service.state.database import Database

app = typer.Typer()

STATE, REPOSITORY, AUDIT = "state", "repository", "audit.sqlite3"  # names in the copy
_OF_PROCESSES = ("state_leases", "state_replicas")  # tables that a restored state lacks
_ATTEMPTS = 5  # tries for an entry that is replaced during the copy


@app.command(rich_help_panel=Panel.SERVE)
def backup(
    into: Annotated[
        Path,
        typer.Argument(help="New folder for the copy. A failed backup leaves none.", metavar="FOLDER"),
    ],
    repository: Repository = None,
    config: Config = None,
) -> None:
    """Copy state, audit trail and repository of this machine, while the gateway runs.

    To restore, use FOLDER/state as the state folder and FOLDER/repository as the repository. The command does
    not copy database servers and buckets, but lists them: docs/backup.md tells how to save those. Run it as
    the gateway's user.
    """
    with reporting_errors(), _errors_reported(into):
        from rationale_service.configuration import load_settings

        settings = load_settings({"repository": repository}, config)
        entries = Path(settings.repository) if settings.repository_url is None else None
        if entries is not None and not entries.is_dir():
            raise InvalidOptionError(f"there is no repository {entries}: give it with --repository")
        with _new_folder(into) as folder:
            for line in [*_copy_state(settings, folder / STATE), *_copy_audit(settings, folder / STATE)]:
                print(line)
            # Entries come last, since they exist before the records that name them.
            copied = 0 if entries is None else _copy_entries(entries, folder / REPOSITORY)
        if entries is None:
            print(f"{REPOSITORY}: not copied: it is at {settings.repository_url}")
        else:
            print(f"{REPOSITORY}: {copied} folders and files of {entries}")
        print(f"written to {into}")


def _copy_state(settings: "Settings", target: Path) -> Iterator[str]:
    from rationale_service.state.sql import StateDatabase
    from rationale_service.state.state import DATABASE

    target.mkdir()
    database = StateDatabase(settings.state_url or settings.state_folder / DATABASE)
    if not database.is_sqlite:
        yield "not copied: the state, which is in the database of RATIONALE_STATE"
    elif _file(database).is_file():
        copy = target / DATABASE
        _copy_database(_file(database), copy)
        with contextlib.closing(sqlite3.connect(copy)) as connection, connection:
            for table in _OF_PROCESSES:
                connection.execute(f"DELETE FROM {table}")  # noqa: S608  # a constant
        references = settings.state_folder / "references"
        if references.is_dir():
            shutil.copytree(references, target / "references", ignore=shutil.ignore_patterns(".*"))
        yield f"{STATE}/{DATABASE}: explainers and reference sets"
    if settings.artifacts is not None:
        yield "not copied: explainers and reference sets at RATIONALE_ARTIFACTS"


def _copy_audit(settings: "Settings", target: Path) -> Iterator[str]:
    from rationale_service.decisions.audit.ledger import open_store
    from rationale_service.decisions.audit.stores.sql import SqlStore

    store = open_store(settings)
    if store is None:
        return
    if not isinstance(store, SqlStore) or not store.is_sqlite:
        yield "not copied: the audit trail, which is in the database of RATIONALE_AUDIT or RATIONALE_STATE"
    elif _file(store).is_file():
        _copy_database(_file(store), target / AUDIT)
        yield f"{STATE}/{AUDIT}: the audit trail"


def _file(database: "Database") -> Path:
    return Path(database.url.database or "")


def _copy_database(source: Path, target: Path) -> None:
    """Copy one snapshot, without waiting for writers or holding them up."""
    uri = f"file:{quote(str(source.absolute()))}?mode=rw"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        connection.execute("VACUUM INTO ?", (str(target),))


def _copy_entries(repository: Path, target: Path) -> int:
    target.mkdir()
    paths = [path for path in sorted(repository.iterdir()) if not path.name.startswith(".")]
    return sum(_copy_entry(path, target / path.name) for path in paths)


def _copy_entry(source: Path, target: Path) -> bool:
    """Copy one snapshot of an entry, even if renames replace it meanwhile; return False if it vanished."""
    for _ in range(_ATTEMPTS):
        before = None
        try:
            before = source.stat().st_ino
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copy2(source, target)
            if source.stat().st_ino == before:
                return True
        except (FileNotFoundError, shutil.Error):
            if source.exists() and source.stat().st_ino == before:
                raise
        if target.is_dir():
            shutil.rmtree(target)
        if not source.exists():
            return False
    raise InvalidOptionError(f"{source} changes too often to copy: run the backup while nothing is compiled")


@contextlib.contextmanager
def _new_folder(into: Path) -> Iterator[Path]:
    """Yield a folder that becomes `into` at the end without an error."""
    if into.exists():
        raise InvalidOptionError(f"{into} exists already: give a new folder")
    parent = into.absolute().parent
    if not parent.is_dir():
        raise InvalidOptionError(f"the folder {parent} does not exist: make it first")
    with tempfile.TemporaryDirectory(dir=parent, prefix=f".{into.name}-") as hidden:
        folder = Path(hidden) / into.name
        folder.mkdir(0o700)  # rows of real people
        yield folder
        folder.rename(into)


@contextlib.contextmanager
def _errors_reported(into: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, shutil.Error, sqlite3.Error) as error:
        raise InvalidOptionError(f"cannot write {into}: {error}") from error
