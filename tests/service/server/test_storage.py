"""The state folder: made by the first write, owned by one gateway, whole after a crash."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from service.errors import StateUnavailableError
from service.settings import Settings
from service.storage import Storage


@pytest.fixture
def state(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "repository.state")


NOTE = {"text": "kept", "numbers": [1, 0.5, None, True]}


def test_where_it_is() -> None:
    assert Settings(repository="a/models").state_folder == Path.cwd() / "a" / "models.state"
    assert Settings(repository="a/models", state="b").state_folder == Path("b")
    assert Settings(repository=".").state_folder == Path(f"{Path.cwd()}.state")


def test_nothing_is_made_before_the_first_write(state: Storage) -> None:
    assert not state.exists
    assert not state.folder.exists()
    assert state.read("note") == []
    assert not state.folder.exists()
    state.write(("note", "a", NOTE))
    assert state.exists
    assert state.folder.stat().st_mode & 0o077 == 0
    state.close()
    assert state.read("note") == [NOTE]
    assert state.read("another") == []
    state.close()


def test_records_are_replaced_and_deleted(state: Storage) -> None:
    state.write(("note", "a", NOTE), ("note", "b", NOTE), ("another", "a", NOTE))
    state.write(("note", "a", {"text": "new"}), ("note", "b", None), ("note", "never there", None))
    assert state.read("note") == [{"text": "new"}]
    assert state.read("another") == [NOTE]
    state.close()


def test_a_transaction_is_whole_or_nothing(state: Storage) -> None:
    with pytest.raises(TypeError):
        state.write(("note", "a", NOTE), ("note", "b", {"text": object()}))
    assert state.read("note") == []
    state.close()


def test_one_gateway_at_a_time(state: Storage) -> None:
    state.open()
    other = Storage(state.folder)
    with pytest.raises(StateUnavailableError, match="another gateway"):
        other.open()
    state.close()
    other.open()
    other.close()


DYING = """
import os, sys
from pathlib import Path
from service.storage import Storage

state = Storage(Path(sys.argv[1]))
state.write(("note", "a", {"text": "committed"}))
with state._transaction() as database:
    database.execute("INSERT INTO records VALUES ('note', 'b', '{}')")
    os.kill(os.getpid(), 9)
"""


def test_a_dead_gateway_owns_nothing(state: Storage) -> None:
    child = subprocess.run([sys.executable, "-c", DYING, str(state.folder)], check=False)
    assert child.returncode == -9
    assert state.read("note") == [{"text": "committed"}]
    state.close()


def test_the_state_of_another_version_is_left_alone(state: Storage) -> None:
    state.open()
    state.close()
    with sqlite3.connect(state.folder / "state.sqlite3") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StateUnavailableError, match="another version"):
        state.open()
    with pytest.raises(StateUnavailableError, match="another version"):  # and it was let go in between
        state.open()


def test_damaged_records_and_a_file_in_the_way_are_told(state: Storage, tmp_path: Path) -> None:
    state.folder.mkdir()
    (state.folder / "state.sqlite3").write_bytes(b"no database" * 1000)
    with pytest.raises(StateUnavailableError, match="cannot be read or written"):
        state.open()
    (tmp_path / "file").write_text("")
    with pytest.raises(StateUnavailableError, match="cannot be written"):
        Storage(tmp_path / "file").open()
