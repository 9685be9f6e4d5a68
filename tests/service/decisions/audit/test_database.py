"""Tables are made and migrated once, by whoever opens a trail first; passwords are told to nobody."""

import contextlib
import socket
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from pydantic import ValidationError
from sqlalchemy import MetaData, inspect, text

from rationale.errors import InvalidOptionError
from rationale_service.configuration import load_settings
from rationale_service.decisions.audit.evidence.verify import verify
from rationale_service.decisions.audit.ledger import Ledger, open_ledger, place_of
from rationale_service.decisions.audit.rows import InputCodec
from rationale_service.decisions.audit.stores.sql import SqlStore
from rationale_service.decisions.audit.stores.tables import metadata
from rationale_service.errors import StateUnavailableError, UnknownResourceError
from rationale_service.settings import Settings
from rationale_service.state import database as opening
from rationale_service.state.sql import StateDatabase
from rationale_service.state.tables import metadata as state
from tests.service.decisions.audit.conftest import decision, ledger_of
from tests.service.decisions.audit.postgres import Postgres

SECRET = "hunter2"  # noqa: S105


def test_migrations_make_the_tables_of_this_version(database: SqlStore) -> None:
    database.probe()
    with database.writing() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": opening.VERSIONS, "compare_type": True}
        )
        expected = MetaData()
        for table in (*state.tables.values(), *metadata.tables.values()):
            table.to_metadata(expected)
        assert compare_metadata(context, expected) == []
        assert set(inspect(connection).get_table_names()) == {*expected.tables, opening.VERSIONS}


def test_several_open_a_new_trail_at_once(url: str) -> None:
    """One of them for the state, which may be in the same database."""
    databases, state = [SqlStore(url) for _ in range(6)], StateDatabase(url)
    with ThreadPoolExecutor(len(databases) + 1) as pool:
        revision = pool.submit(state.revision)
        assert list(pool.map(lambda store: list(verify(store)), databases)) == [[0]] * len(databases)
        assert revision.result() == 0
    for store in (*databases, state):
        store.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL has half a second for an answer."""
    monkeypatch.setattr(opening, "_ANSWER_S", 0.5)


@pytest.mark.usefixtures("impatient")
def test_a_server_that_is_frozen_is_given_up(server: Postgres) -> None:
    """Its kernel goes on acknowledging, so that TCP finds nothing wrong."""
    database = SqlStore(server.new_schema())
    database.probe()
    refused = pytest.raises(StateUnavailableError, match=r"within 0\.5 s")
    with refused, database.writing() as connection, server.frozen():
        connection.execute(text("SELECT 1"))
    database.probe()
    with server.frozen():
        began_s = time.monotonic()
        with pytest.raises(StateUnavailableError, match=r"^the audit trail"):
            database.probe()
        assert time.monotonic() - began_s < 2 * opening._CONNECT_S
    database.probe()
    database.close()


@pytest.mark.usefixtures("impatient")
def test_a_server_is_not_waited_for_where_another_holds_a_lock(server: Postgres) -> None:
    url = server.new_schema()
    database, other = SqlStore(url), SqlStore(url)
    database.probe()
    with contextlib.suppress(StateUnavailableError), other.writing() as connection:
        connection.execute(text("LOCK TABLE input_keys"))
        with pytest.raises(StateUnavailableError, match=r"statement timeout|not answered"):
            database.probe()
        time.sleep(1)  # longer than a client may leave what it locks
        database.probe()
    for store in (database, other):
        store.close()


@pytest.mark.usefixtures("impatient")
def test_a_whole_table_is_read_as_long_as_it_takes(server: Postgres) -> None:
    database = SqlStore(server.new_schema())
    with database.reading(60) as connection:
        connection.execute(text("SELECT pg_sleep(1)"))
        time.sleep(1)
        connection.execute(text("SELECT 1"))
    with pytest.raises(StateUnavailableError), database.reading() as connection:
        connection.execute(text("SELECT pg_sleep(1)"))
    database.close()


def test_a_new_file_waits_for_another_that_writes(tmp_path: Path) -> None:
    """SQLite does not wait before it changes the journal's mode."""
    file = tmp_path / "audit.sqlite3"
    with contextlib.closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        other.execute("CREATE TABLE other (x)")
        other.execute("BEGIN IMMEDIATE")
        end = threading.Timer(0.3, other.execute, ["COMMIT"])
        end.start()
        database = SqlStore(file)
        assert list(verify(database)) == [0]
        database.close()
        end.join()


def test_a_database_without_an_encoding_keeps_text(server: Postgres) -> None:
    """A cluster that was made without a locale has SQL_ASCII."""
    url = server.new_database("ascii", "SQL_ASCII")
    database = SqlStore(url)
    try:
        ledger_of(database).append([[decision(1, model="Kreditwürdigkeit")]])
        assert [row["model"] for row in database.in_order(None, None, None)] == ["Kreditwürdigkeit"]
        assert list(verify(database)) == [1]
    finally:
        database.close()
        server.drop_database("ascii")


def test_a_trail_of_a_newer_version_is_left_alone(url: str, database: SqlStore) -> None:
    ledger_of(database).append([[decision(1)]])
    with database.writing() as connection:
        connection.execute(text("UPDATE rationale_version SET version_num = '9999'"))
    newer = SqlStore(url)
    with pytest.raises(StateUnavailableError, match="newer version"):
        newer.probe()
    assert list(verify(database)) == [1]


def test_a_trail_of_two_chains_of_migrations_is_left_alone(url: str, database: SqlStore) -> None:
    """Of before the first release."""
    with database.writing() as connection:
        connection.execute(text("DROP TABLE rationale_version"))
        connection.execute(text("CREATE TABLE audit_version (version_num VARCHAR(32))"))
    with pytest.raises(StateUnavailableError, match=r"version before 0\.1\.0 .* audit_version"):
        SqlStore(url).probe()


def test_a_file_is_its_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "lib" / "state"
    database = SqlStore(folder / "audit.sqlite3")
    assert not folder.exists()
    database.probe()
    for path in (folder, *folder.iterdir()):
        assert path.stat().st_mode & 0o077 == 0
    with database.reading() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2
    database.close()


def test_a_reader_makes_nothing(tmp_path: Path) -> None:
    settings = Settings(repository=tmp_path / "models")
    store = open_ledger(settings)
    with pytest.raises(StateUnavailableError, match="no audit"):
        store.read("one")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UnknownResourceError, match="is off"):
        open_ledger(Settings(audit="off"))


def test_where_it_is(tmp_path: Path) -> None:
    assert place_of(Settings(state=tmp_path)) == tmp_path / "audit.sqlite3"
    assert place_of(Settings(audit="off")) is None
    driver = SqlStore("postgres://a:b@c/d").url.drivername
    assert driver == SqlStore("postgresql://a:b@c/d").url.drivername == "postgresql+psycopg"


@pytest.mark.parametrize(
    "url",
    [
        *("", "on", "mysql://u:hunter2@h/d", "postgresql://u:hunter2@h", "sqlite://", "http://h:x/", "//"),
        *("sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"),
    ],
)
def test_urls_of_no_database(url: str) -> None:
    with pytest.raises(InvalidOptionError, match="URL") as caught:
        open_ledger(Settings(audit=url))
    assert SECRET not in str(caught.value)


def test_a_file_that_is_moved_is_written_no_more(tmp_path: Path) -> None:
    file = tmp_path / "audit.sqlite3"
    database = SqlStore(file)
    ledger = ledger_of(database)
    ledger.append([[decision(1)]])
    file.rename(tmp_path / "elsewhere")
    with pytest.raises(StateUnavailableError, match="moved"):
        ledger.append([[decision(2)]])
    ledger.append([[decision(3)]])
    assert list(verify(database)) == [1]


def test_garbage_in_the_place_of_a_database(tmp_path: Path) -> None:
    file = tmp_path / "audit.sqlite3"
    file.write_bytes(b"this is no database" * 1000)
    with pytest.raises(StateUnavailableError, match="not a database"):
        SqlStore(file).probe()
    with pytest.raises(StateUnavailableError, match="written"):
        SqlStore(tmp_path).probe()


def test_a_password_is_told_to_nobody(server: Postgres, tmp_path: Path) -> None:
    url = f"postgresql://nobody:{SECRET}@/none?host={tmp_path}"
    settings = Settings(audit=url)
    assert SECRET not in repr(settings)
    assert SECRET not in str(settings.model_dump_json())
    for refusing in (url, server.new_schema().replace("postgres:secret", f"nobody:{SECRET}")):
        with pytest.raises(StateUnavailableError) as caught:
            SqlStore(refusing).probe()
        assert SECRET not in str(caught.value)


def test_of_what_a_server_says_the_first_line_is_told() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(StateUnavailableError, match=r"connection .*failed") as caught:
        SqlStore(f"postgresql://a:b@127.0.0.1:{port}/d").probe()
    assert "\n" not in str(caught.value)


def test_settings_that_make_no_sense() -> None:
    for wrong in ({"audit_inputs": "open"}, {"audit_retention_months": -1}):
        with pytest.raises((ValidationError, InvalidOptionError)):
            load_settings(wrong)


def test_what_was_deleted_is_in_no_file_any_more(tmp_path: Path) -> None:
    """The key of erased inputs, among them: SQLite would leave it on a free page."""
    key_file = tmp_path / "key"
    key_file.write_bytes(b"k" * 32)
    file = tmp_path / "audit.sqlite3"
    ledger = Ledger(SqlStore(file), InputCodec("sealed", key_file))
    ledger.append([[decision(number)] for number in range(1, 4)])
    row = ledger.store.read(decision(2).id)
    assert row is not None
    wrapped = str(row["wrapped"]).encode()
    ledger.close()
    assert wrapped in file.read_bytes()
    assert ledger.store.erase(decision(2).id, "2026-11-24T00:00:00+00:00", "signature")
    ledger.close()
    assert not any(wrapped in path.read_bytes() for path in tmp_path.iterdir())


def test_a_connection_keeps_its_promises_however_sqlite_was_built(tmp_path: Path) -> None:
    """What is deleted is overwritten, and a transaction is on the disk when it ends."""
    with contextlib.closing(sqlite3.connect(tmp_path / "audit.sqlite3")) as connection:
        for setting in ("secure_delete=OFF", "synchronous=OFF", "journal_mode=DELETE"):
            connection.execute(f"PRAGMA {setting}")
        opening._set_up(connection, None)
        names = ("secure_delete", "synchronous", "journal_mode")
        found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]
    assert found == [1, 2, "wal"]
