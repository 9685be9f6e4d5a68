"""The state folder: made by the first write, owned by one gateway, whole after a crash."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from service.errors import StateUnavailableError
from service.settings import Settings
from service.storage import Base, Storage


class Note(Base):
    __tablename__ = "test_notes"
    text: Mapped[str] = mapped_column(primary_key=True)


@pytest.fixture
def state(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "repository.state")


def notes(state: Storage) -> list[str]:
    with state.session() as session:
        return list(session.scalars(sa.select(Note.text)))


def test_where_it_is() -> None:
    assert Settings(repository="a/models").state_folder == Path.cwd() / "a" / "models.state"
    assert Settings(repository="a/models", state="b").state_folder == Path("b")
    assert Settings(repository=".").state_folder == Path(f"{Path.cwd()}.state")


def test_nothing_is_made_before_the_first_write(state: Storage) -> None:
    assert not state.exists
    assert not state.folder.exists()
    with state.session() as session:
        session.add(Note(text="kept"))
    assert state.exists
    assert state.folder.stat().st_mode & 0o077 == 0
    state.close()
    assert notes(state) == ["kept"]
    state.close()


def test_a_transaction_is_whole_or_nothing(state: Storage) -> None:
    def half() -> None:
        with state.session() as session:
            session.add(Note(text="lost"))
            session.flush()
            raise KeyError

    with pytest.raises(KeyError):
        half()
    assert notes(state) == []
    state.close()


def test_one_gateway_at_a_time(state: Storage) -> None:
    state.open()
    other = Storage(state.folder)
    with pytest.raises(StateUnavailableError, match="another gateway"):
        other.open()
    state.close()
    other.open()
    other.close()


def test_a_dead_gateway_owns_nothing(state: Storage) -> None:
    code = f"""
import os
from pathlib import Path
from tests.service.server.test_storage import Note, Storage
state = Storage(Path({str(state.folder)!r}))
with state.session() as session:
    session.add(Note(text="committed"))
with state.session() as session:
    session.add(Note(text="on the way"))
    session.flush()
    os.kill(os.getpid(), 9)
"""
    child = subprocess.run([sys.executable, "-c", code], check=False)
    assert child.returncode == -9
    assert notes(state) == ["committed"]
    state.close()


def test_a_newer_state_is_left_alone(state: Storage) -> None:
    state.open()
    state.close()
    with sqlite3.connect(state.folder / "state.sqlite3") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StateUnavailableError, match="newer version"):
        state.open()
    with pytest.raises(StateUnavailableError, match="newer version"):  # and it was let go in between
        state.open()


def test_damaged_records_and_a_file_in_the_way_are_told(state: Storage, tmp_path: Path) -> None:
    state.folder.mkdir()
    (state.folder / "state.sqlite3").write_bytes(b"no database" * 1000)
    with pytest.raises(StateUnavailableError, match="cannot be read or written"):
        state.open()
    (tmp_path / "file").write_text("")
    with pytest.raises(StateUnavailableError, match="cannot be written"):
        Storage(tmp_path / "file").open()
