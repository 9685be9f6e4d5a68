"""The state: made by the first write, shared by replicas, whole after a crash."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text, update

from rationale_service.errors import StateUnavailableError
from rationale_service.settings import Settings
from rationale_service.state import replica, sql
from rationale_service.state.replica import this_process
from rationale_service.state.state import State
from rationale_service.state.tables import leases
from tests.service.decisions.audit.postgres import Postgres

NOTE = {"text": "kept", "numbers": [1, 0.5, None, True]}


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str | None:
    return None if request.param == "sqlite" else str(request.getfixturevalue("server").new_schema())


@pytest.fixture
def state(url: str | None, tmp_path: Path) -> Iterator[State]:
    state = State(tmp_path / "repository.state", url)
    yield state
    state.close()


@pytest.fixture
def other(url: str | None, state: State) -> Iterator[State]:
    """Another replica of the same state."""
    other = State(state.folder, url)
    yield other
    other.close()


def test_where_it_is() -> None:
    assert Settings(repository="a/models").state_folder == Path.cwd() / "a" / "models.state"
    assert Settings(repository="a/models", state="b").state_folder == Path("b")
    assert Settings(repository=".").state_folder == Path(f"{Path.cwd()}.state")
    options: dict[str, Any] = {"state": "postgresql://a:hunter2@c/d", "artifacts": "file:///a"}
    shared = Settings(repository="m", **options)
    assert shared.state_url == "postgresql://a:hunter2@c/d"
    assert shared.state_folder.parent == Path(tempfile.gettempdir())
    assert shared.state_folder != Settings(repository="n", **options).state_folder
    assert "hunter2" not in repr(shared)
    with pytest.raises(ValueError, match="artifacts too"):
        Settings(state="postgresql://a:b@c/d")


def test_nothing_is_made_before_the_first_write(tmp_path: Path) -> None:
    state = State(tmp_path / "repository.state")
    assert not state.exists
    assert (state.read("note"), state.revision(), state.leases(), state.behind(9)) == ([], 0, {}, ())
    state.follow(0)
    assert not state.folder.exists()
    state.write(("note", "a", NOTE))
    assert state.exists
    for path in (state.folder, *state.folder.iterdir()):
        assert path.stat().st_mode & 0o077 == 0
    state.close()
    assert state.read("note") == [NOTE]
    assert state.read("another") == []
    state.close()


def test_records_are_replaced_in_place_and_deleted(state: State) -> None:
    state.write(("note", "b", NOTE), ("note", "c", NOTE), ("another", "a", NOTE))
    state.write(("note", "a", NOTE))
    state.write(("note", "b", {"text": "new"}), ("note", "c", None), ("note", "never there", None))
    assert state.read("note") == [{"text": "new"}, NOTE]  # in the order in which they were added
    assert state.read("another") == [NOTE]


def test_a_transaction_is_whole_or_nothing(state: State) -> None:
    with pytest.raises(TypeError):
        state.write(("note", "a", NOTE), ("note", "b", {"text": object()}))
    assert state.read("note") == []
    assert state.revision() == 0


def test_who_writes_of_an_old_revision_changes_nothing(state: State, other: State) -> None:
    assert state.write(("note", "a", NOTE), since=0) == 1
    assert other.write(("note", "a", {"text": "late"}), since=0) is None
    assert other.snapshot() == (1, {"note": [NOTE]})
    assert other.write(("note", "a", {"text": "in time"}), since=1) == 2
    assert state.write(("note", "b", NOTE)) == 3  # whatever others have written
    assert state.read("note") == [{"text": "in time"}, NOTE]


def test_replicas_know_who_is_behind(state: State, other: State) -> None:
    state.write(("note", "a", NOTE))
    state.follow(1)
    assert state.behind(1) == []
    other.follow(0)
    assert state.behind(1) == [other.replica.id]
    other.follow(1)
    assert state.behind(1) == []
    assert state.behind(2) == [other.replica.id]
    other.close()
    assert state.behind(2) == []


def test_a_lease_is_one_replica_s(state: State, other: State, monkeypatch: pytest.MonkeyPatch) -> None:
    assert state.take("one") == ""
    assert other.take("one") is None
    assert other.take("two") == ""
    assert state.renew("one", {"stage": "compiling"})
    assert not other.renew("one", {})
    held = other.leases()
    assert {name: (lease.holder, lease.note) for name, lease in held.items()} == {
        "one": (state.replica.id, {"stage": "compiling"}),
        "two": (other.replica.id, {}),
    }
    other.release("one")  # not its own
    assert other.take("one") is None
    state.release("one")
    assert other.take("one") == ""
    other.close()  # gives up what it was at
    assert state.take("two") == ""
    monkeypatch.setattr(sql, "LEASE_S", -1.0)
    assert state.renew("two", {})
    assert state.leases() == {}
    assert other.take("two") == state.replica.id  # which took too long
    assert not state.renew("two", {})


DYING = """
import os, sys
from pathlib import Path
from rationale_service.state.state import State

state = State(Path(sys.argv[1]), sys.argv[2] or None)
state.write(("note", "a", {"text": "committed"}))
state.follow(1)
state.take("one")
(state.new_staging() / "rows").write_text("of somebody")
with state.open().writing() as connection:
    connection.exec_driver_sql("INSERT INTO state_records VALUES ('note', 'b', 2, '{}')")
    os.kill(os.getpid(), 9)
"""


def test_what_a_dead_process_was_at_is_taken_over_at_once(state: State, url: str | None) -> None:
    command = [sys.executable, "-c", DYING, str(state.folder), url or ""]
    assert subprocess.run(command, check=False).returncode == -9
    assert state.read("note") == [{"text": "committed"}]
    assert state.behind(9) == []
    assert state.leases() == {}
    assert len(list(state.staging.iterdir())) == 1
    staging = state.new_staging()
    left_by = state.take("one")
    assert left_by
    assert left_by != state.replica.id
    assert list(state.staging.iterdir()) == [staging]  # and what it was making is deleted


def test_a_replica_of_another_machine_is_gone_when_it_is_not_heard_of(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.new_schema()
    state, other = State(tmp_path / "a", url), State(tmp_path / "b", url)
    other.replica = type(other.replica)(f"elsewhere~{os.getpid()}~1~ab")
    other.follow(0)
    assert other.take("one") == ""
    assert state.behind(1) == [other.replica.id]
    assert state.take("one") is None
    with state.open().writing() as connection:
        connection.execute(update(leases).values(until_s=time.time() - 1))
    assert state.take("one") == other.replica.id
    monkeypatch.setattr(sql, "HEARD_S", -1.0)
    assert state.behind(1) == []
    state.close()
    other.close()


def test_what_an_earlier_boot_left_in_a_folder_is_gone(tmp_path: Path) -> None:
    """After a loss of power, or a snapshot of the folder that was restored on another machine."""
    state, other = State(tmp_path / "state"), State(tmp_path / "state")
    _, dot, space = other.replica.id.partition("~")[0].partition(".")
    other.replica = type(other.replica)(f"of-another-boot{dot}{space}~{os.getpid()}~1~ab")
    other.follow(0)
    state.write(("note", "a", NOTE))
    other.follow(0)
    (other.new_staging() / "rows").write_text("of somebody")
    assert state.behind(9) == []
    staging = state.new_staging()
    state.sweep()
    assert list(state.staging.iterdir()) == [staging]
    state.close()
    other.close()


def test_which_process_is_dead() -> None:
    own_identity = this_process()
    assert not own_identity.is_dead(own_identity.id)
    assert not own_identity.is_dead(this_process().id)
    machine, _, started, _ = own_identity.id.split("~")
    assert own_identity.is_dead(f"{machine}~{2**22 + 1}~{started}~ab")
    assert own_identity.is_dead(f"{machine}~{os.getpid()}~1~ab")  # the number is another process's by now
    assert not own_identity.is_dead("elsewhere~1~1~ab")
    assert not own_identity.is_dead("garbage")
    assert own_identity.is_of_another_boot("elsewhere~1~1~ab")
    assert not own_identity.is_of_another_boot(this_process().id)
    boot = machine.partition(".")[0]
    assert not own_identity.is_of_another_boot(f"{boot}.1~1~1~ab")  # in another container, and perhaps alive
    assert not own_identity.is_of_another_boot("garbage")


def test_a_process_that_nobody_waited_for_is_dead() -> None:
    own_identity = this_process()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        other = f"{own_identity.id.partition('~')[0]}~{child.pid}~{replica._start_time(child.pid)}~ab"
        assert not own_identity.is_dead(other)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays as a zombie
        assert own_identity.is_dead(other)


def test_the_state_of_a_newer_version_is_left_alone(state: State, url: str | None, tmp_path: Path) -> None:
    with state.open().writing() as connection:
        connection.execute(text("UPDATE rationale_version SET version_num = '9999'"))
    state.close()
    reopened = State(tmp_path / "repository.state", url)
    for _ in range(2):
        with pytest.raises(StateUnavailableError, match="newer version"):
            reopened.read("note")


def test_damaged_records_and_a_file_in_the_way_are_told(tmp_path: Path) -> None:
    state = State(tmp_path / "state")
    state.folder.mkdir()
    (state.folder / "state.sqlite3").write_bytes(b"no database" * 1000)
    with pytest.raises(StateUnavailableError, match="read"):
        state.read("note")
    (tmp_path / "file").write_text("")
    with pytest.raises(StateUnavailableError, match="be written"):
        State(tmp_path / "file").open()


def test_threads_write_one_after_the_other(state: State) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def add(i: int) -> Any:
        return state.write(("note", str(i), {"i": i}))

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(add, range(40))) == list(range(1, 41))
    assert len(state.read("note")) == 40
