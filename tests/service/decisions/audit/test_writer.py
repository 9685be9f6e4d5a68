"""Nothing is answered that is not on the disk, whatever happens to the database; then it goes on."""

import asyncio
import contextlib
import errno
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import pytest_asyncio
from pydantic import SecretStr
from sqlalchemy import Engine, create_engine, event, text
from tritonclient.grpc import service_pb2 as pb

from rationale.errors import InvalidOptionError
from rationale_service.decisions.audit import writer
from rationale_service.decisions.audit.evidence.retention import months_ago
from rationale_service.decisions.audit.evidence.verify import verify
from rationale_service.decisions.audit.ledger import open_ledger
from rationale_service.decisions.audit.stores import sql
from rationale_service.decisions.audit.stores.sql import SqlStore
from rationale_service.decisions.audit.trail import NoTrail
from rationale_service.decisions.audit.writer import DatabaseTrail, trail_of
from rationale_service.errors import ConflictError, QueueFullError, StateUnavailableError
from rationale_service.observability.metrics import Metrics
from rationale_service.settings import Settings
from rationale_service.state import database as opening
from tests.service import handmade
from tests.service.conftest import gateway
from tests.service.decisions.audit.conftest import decision
from tests.service.decisions.audit.postgres import Postgres
from tests.service.grpc_end import grpc_end

QUEUE = 20
DECIDE = "/v1/models/score:decide"
BODY = {"instances": [dict(zip(handmade.FEATURES, row, strict=True)) for row in handmade.X.tolist()[:2]]}
UNAVAILABLE = "urn:rationale:problem:state-unavailable"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at the trail every moment."""
    monkeypatch.setattr(writer, "_LOOK_S", 0.05)
    monkeypatch.setattr(writer, "_LOOK_AGAIN_S", 0.05)
    monkeypatch.setattr(opening, "_BUSY_S", 0.5)


@pytest_asyncio.fixture
async def trail(url: str) -> AsyncIterator[DatabaseTrail]:
    trail = trail_of(Settings(audit=url, max_queue_size=QUEUE))
    assert isinstance(trail, DatabaseTrail)
    yield trail
    await trail.stop()


def ids(url: str) -> list[str]:
    """Of what is in a trail that verifies."""
    store = open_ledger(Settings(audit=url))
    with contextlib.closing(store):
        assert all(isinstance(each, int) for each in verify(store.store, [], months_ago(25)))
        return [decision.id for decision in store.in_order()]


@contextlib.contextmanager
def locked(url: str) -> Iterator[None]:
    """By somebody else's transaction."""
    engine = create_engine(SqlStore(url).url, isolation_level=None if "sqlite" in url else "READ COMMITTED")
    with engine.connect() as connection:
        if "sqlite" in url:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.execute(text("LOCK TABLE audit_decisions IN EXCLUSIVE MODE"))
        yield
        connection.rollback()
    engine.dispose()


async def test_many_requests_share_a_transaction(trail: DatabaseTrail, url: str) -> None:
    await trail.record([decision(99)])
    commits: list[object] = []

    def count(connection: object) -> None:
        commits.append(connection)

    event.listen(Engine, "commit", count)
    try:
        with locked(url):
            waiting = [asyncio.create_task(trail.record([decision(i)])) for i in range(QUEUE)]
            await asyncio.sleep(0.3)
            assert not any(task.done() for task in waiting)
            commits.clear()
        answers = await asyncio.gather(*waiting)
    finally:
        event.remove(Engine, "commit", count)
    assert answers == [[decision(i)] for i in range(QUEUE)]
    assert len(commits) <= 2
    assert sorted(ids(url)) == sorted(decision(i).id for i in (*range(QUEUE), 99))


async def test_a_row_that_no_store_takes_fails_alone(trail: DatabaseTrail, url: str) -> None:
    await trail.record([decision(99)])
    bad = replace(decision(3), caller="jwt:\ud800")
    sent = [bad if i == 3 else decision(i) for i in range(QUEUE)]
    with locked(url):
        waiting = [asyncio.create_task(trail.record([item])) for item in sent]
        await asyncio.sleep(0.3)
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    refused = answers.pop(3)
    assert isinstance(refused, StateUnavailableError)
    assert answers == [[item] for item in sent if item is not bad]
    assert trail.fault is None
    assert sorted(ids(url)) == sorted(item.id for item in (*sent, decision(99)) if item is not bad)


async def test_who_does_not_wait_is_not_recorded_and_too_many_are_refused(
    trail: DatabaseTrail, url: str
) -> None:
    await trail.record([decision(99)])
    with locked(url):
        first = asyncio.create_task(trail.record([decision(0)]))
        await asyncio.sleep(0.3)  # the thread is at it
        waiting = [asyncio.create_task(trail.record([decision(1 + i)])) for i in range(QUEUE)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await trail.record([decision(98)])
        for task in waiting[::2]:
            task.cancel()
        await asyncio.wait(waiting[::2])
    await asyncio.gather(first, *waiting[1::2])
    recorded_numbers = [99, 0, *range(2, QUEUE + 1, 2)]
    assert sorted(ids(url)) == sorted(decision(i).id for i in recorded_numbers)


async def test_searches_end(trail: DatabaseTrail) -> None:
    """Each makes room for the next: more of them than may wait at once, one by one."""
    for i in range(QUEUE + 1):
        assert list(await trail.find("credit", "shop", f"key-{i}", [{}])) == []


async def test_who_leaves_while_it_is_written_leaves_the_thread_alive(trail: DatabaseTrail, url: str) -> None:
    await trail.record([decision(99)])
    with locked(url):
        writing = asyncio.create_task(trail.record([decision(0)]))
        await asyncio.sleep(0.3)  # the thread is at it
        writing.cancel()
        await asyncio.wait([writing])
    async with asyncio.timeout(30):
        await trail.record([decision(1)])
    assert sorted(ids(url)) == sorted(decision(i).id for i in (99, 0, 1))


async def test_it_stops_when_all_is_written(url: str) -> None:
    trail = trail_of(Settings(audit=url))
    waiting = [asyncio.create_task(trail.record([decision(i)])) for i in range(50)]
    await asyncio.sleep(0)
    await trail.stop()
    await asyncio.gather(*waiting)
    assert len(ids(url)) == 50


async def test_keys_at_the_same_time(trail: DatabaseTrail, url: str) -> None:
    instance = {"income": 1}
    mine = [decision(i, "key", instance=instance) for i in range(10)]
    answers = await asyncio.gather(*(trail.record([item]) for item in mine))
    assert answers == [answers[0]] * 10
    assert await trail.find("credit", "shop", "key", [instance]) == list(answers[0])
    with pytest.raises(ConflictError):
        await trail.find("credit", "shop", "key", [{"income": 2}])
    with pytest.raises(ConflictError):
        await trail.record([decision(11, "key")])
    assert len(ids(url)) == 1


async def test_a_server_that_is_restarted(server: Postgres) -> None:
    url = server.new_schema()
    trail = trail_of(Settings(audit=url))
    await trail.record([decision(1)])
    server.stop()
    try:
        for _ in range(2):
            with pytest.raises(StateUnavailableError, match="audit trail") as caught:
                await trail.record([decision(2)])
            assert caught.value.retry_after_s
        with pytest.raises(StateUnavailableError):
            await trail.find("credit", "shop", "key", [])
    finally:
        server.start()
    await trail.record([decision(3)])
    await trail.stop()
    assert ids(url) == [decision(1).id, decision(3).id]


async def test_a_database_that_is_not_there_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    url = f"sqlite:///{tmp_path}/state/audit.sqlite3"
    trail = trail_of(Settings(audit=url))
    trail.start()
    with pytest.raises(StateUnavailableError):
        await trail.record([decision(1)])
    (tmp_path / "state").unlink()
    await trail.record([decision(2)])
    await trail.stop()
    assert ids(url) == [decision(2).id]


async def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests of many rows: what does not fit leaves nothing behind."""
    url = f"sqlite:///{tmp_path}/audit.sqlite3"
    set_up = opening._set_up

    def small(connection: sqlite3.Connection, record: object) -> None:
        set_up(connection, record)
        connection.execute("PRAGMA max_page_count = 60")

    monkeypatch.setattr(opening, "_set_up", small)
    trail = trail_of(Settings(audit=url))
    await trail.record([decision(1)])
    with pytest.raises(StateUnavailableError):
        await trail.record([decision(i) for i in range(1000, 2000)])
    await trail.record([decision(2)])
    await trail.stop()
    assert ids(url) == [decision(1).id, decision(2).id]


async def test_a_locked_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_BUSY_S", 0.1)
    url = f"sqlite:///{tmp_path}/audit.sqlite3"
    trail = trail_of(Settings(audit=url))
    await trail.record([decision(1)])
    with locked(url), pytest.raises(StateUnavailableError):
        await trail.record([decision(2)])
    await trail.record([decision(3)])
    await trail.stop()
    assert ids(url) == [decision(1).id, decision(3).id]


async def test_old_decisions_go_by_themselves(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In as many batches as they need, one after the other."""
    monkeypatch.setattr(sql, "_PRUNED_AT_ONCE", 2)
    trail = trail_of(Settings(audit=url))
    old = [decision(number, time="2020-01-01T00:00:00.000000+00:00") for number in range(3, 8)]
    await trail.record([*old, decision(2)])
    await trail.stop()
    for months, row_count in ((0, 6), (25, 1)):
        reopened = trail_of(Settings(audit=url, audit_retention_months=months))
        reopened.start()
        end_s = time.monotonic() + 30
        while len(ids(url)) != row_count and time.monotonic() < end_s:
            await asyncio.sleep(0.05)
        await reopened.stop()
        assert len(ids(url)) == row_count


@pytest.mark.parametrize("form", ["hashed", "sealed"])
def test_inputs_that_need_a_key_are_refused_at_the_start(form: Literal["hashed", "sealed"]) -> None:
    with pytest.raises(InvalidOptionError, match="audit_key_file"):
        trail_of(Settings(audit_inputs=form))


async def test_no_trail_is_made_before_one_is_needed(tmp_path: Path) -> None:
    trail = trail_of(Settings(repository=tmp_path / "models"))
    await trail.record([])
    await trail.wait_until_open()
    await trail.stop()
    assert trail.fault is None
    assert list(tmp_path.iterdir()) == []
    assert isinstance(trail_of(Settings(audit="off")), NoTrail)


@pytest.mark.usefixtures("quick")
async def test_it_is_made_at_the_start_and_looked_at_without_leaving_anything(url: str) -> None:
    trail = trail_of(Settings(audit=url))
    trail.start()
    assert trail.fault is not None  # not open yet
    await trail.wait_until_open()
    assert trail.fault is None
    await asyncio.sleep(0.3)  # some looks
    await trail.record([decision(1)])
    await trail.stop()
    assert ids(url) == [decision(1).id]
    database = SqlStore(url)
    with database.reading() as connection:
        assert connection.execute(text("SELECT count(*) FROM audit_input_keys")).scalar() == 0
    database.close()


async def test_what_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_BUSY_S", 0.3)
    url = f"sqlite:///{tmp_path}/audit.sqlite3"
    metrics = Metrics()
    sample_value = metrics.registry.get_sample_value
    trail = trail_of(Settings(audit=url, max_queue_size=1), metrics.audit)
    await trail.record([decision(1)])
    with locked(url):
        first = asyncio.create_task(trail.record([decision(2), decision(3)]))
        await asyncio.sleep(0.1)  # the thread is at it
        second = asyncio.create_task(trail.record([decision(4)]))
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await trail.record([decision(5)])
        assert sample_value("rationale_audit_waiting") == 3
        with pytest.raises(StateUnavailableError):
            await first
        assert sample_value("rationale_audit_unavailable") == 1
        assert sample_value("rationale_audit_write_failures_total") == 1
    await second
    await trail.stop()
    assert sample_value("rationale_audit_waiting") == 0
    assert sample_value("rationale_audit_unavailable") == 0
    assert sample_value("rationale_audit_write_failures_total") == 1
    assert sample_value("rationale_audit_write_seconds_count") == 2


@pytest.mark.usefixtures("quick")
async def test_an_outage_is_told_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").write_text("in the way")
    trail = trail_of(Settings(audit=f"sqlite:///{tmp_path}/state/audit.sqlite3"))

    async def refused(times: int) -> None:
        for _ in range(times):
            with pytest.raises(StateUnavailableError):
                await trail.record([decision(1)])

    await refused(20)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "refused: " in caplog.text
    monkeypatch.setattr(writer, "_LOG_S", 0.0)  # a minute later
    await refused(1)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    monkeypatch.setattr(writer, "_LOG_S", 60.0)
    await refused(3)
    (tmp_path / "state").unlink()
    while trail.fault is not None:
        await asyncio.sleep(0.02)
    await trail.stop()
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR", "WARNING"]
    assert caplog.records[-1].message.endswith("recorded again (3 refused since the line before)")
    assert sum(map(int, re.findall(r"(\d+) refused since", caplog.text))) == 24
    assert not any(record.exc_info for record in caplog.records)


def test_outages_one_after_the_other_are_logged_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that comes and goes would fill the log."""
    outage = writer._Outage(Metrics().audit)
    for _ in range(3):
        outage.begin("down", 2)
        outage.end()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    monkeypatch.setattr(writer, "_LOG_S", 0.0)  # a minute later
    outage.begin("down", 1)
    outage.end()
    assert caplog.messages[2:] == [
        "decisions are refused: down (5 refused since the line before)",
        "the audit trail is back, and decisions are recorded again",
    ]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", ["probe", "append", "prune"])
async def test_a_thread_that_hangs_is_told_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As on a disk that is frozen: no time limit of a driver ends the call."""
    monkeypatch.setattr(writer, "_STUCK_S", 0.2)
    monkeypatch.setattr(writer, "_STUCK_AGAIN_S", 0.2)
    monkeypatch.setattr(writer, "_WATCH_S", 0.02)
    monkeypatch.setattr(writer, "_LOOK_S", 60.0)  # during an outage it is looked at more often
    hangs, thawed = threading.Event(), threading.Event()
    method = getattr(SqlStore, name)

    def hanging(*arguments: Any) -> Any:
        hangs.set()
        thawed.wait()
        return method(*arguments)

    monkeypatch.setattr(SqlStore, name, hanging)
    metrics = Metrics()
    trail = trail_of(Settings(audit=f"sqlite:///{tmp_path}/audit.sqlite3"), metrics.audit)
    written = asyncio.create_task(trail.record([decision(1)])) if name == "append" else None
    trail.start()
    await asyncio.to_thread(hangs.wait)
    while metrics.registry.get_sample_value("rationale_audit_unavailable") != 1:
        await asyncio.sleep(0.02)
    assert trail.fault is not None
    for call in (trail.record([decision(2)]), trail.find("score", "", "key", [])):
        with pytest.raises(StateUnavailableError, match="later"):  # at once
            await asyncio.wait_for(call, 1)
    thawed.set()
    async with asyncio.timeout(30):
        while trail.fault is not None:
            await asyncio.sleep(0.02)
    if written is not None:
        await written
    await trail.record([decision(3)])
    await trail.stop()
    assert metrics.registry.get_sample_value("rationale_audit_unavailable") == 0


async def test_one_request_in_a_while_finds_out_whether_the_trail_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others need not wait as long as it does."""
    monkeypatch.setattr(writer, "_STUCK_AGAIN_S", 0.1)
    hangs, thawed = threading.Event(), threading.Event()

    def failing(*_: object) -> None:
        raise StateUnavailableError("the server has not answered within 10 s")

    def hanging(*_: object) -> None:
        hangs.set()
        thawed.wait()
        failing()

    monkeypatch.setattr(SqlStore, "probe", failing)
    monkeypatch.setattr(SqlStore, "append", hanging)
    trail = trail_of(Settings(audit=f"sqlite:///{tmp_path}/audit.sqlite3"))
    trail.start()
    await trail.wait_until_open()
    first = asyncio.create_task(trail.record([decision(1)]))
    await asyncio.to_thread(hangs.wait)
    await asyncio.sleep(0.2)
    with pytest.raises(StateUnavailableError, match="later"):
        await asyncio.wait_for(trail.record([decision(2)]), 1)
    thawed.set()
    with pytest.raises(StateUnavailableError, match="later"):
        await first
    await trail.stop()


async def test_a_stop_does_not_wait_for_a_thread_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_STUCK_S", 0.1)
    monkeypatch.setattr(writer, "_STUCK_AGAIN_S", 0.1)
    hangs, thawed = threading.Event(), threading.Event()

    def hanging(_: SqlStore) -> None:
        hangs.set()
        thawed.wait()

    closed = list[bool]()
    monkeypatch.setattr(SqlStore, "probe", hanging)
    monkeypatch.setattr(SqlStore, "close", lambda _: closed.append(thawed.is_set()))
    trail = trail_of(Settings(audit=f"sqlite:///{tmp_path}/audit.sqlite3"))
    trail.start()
    await asyncio.to_thread(hangs.wait)
    await asyncio.sleep(0.2)
    await asyncio.wait_for(trail.stop(), 1)
    assert closed == []  # the thread still writes to the store
    thawed.set()


@pytest.mark.usefixtures("quick")
async def test_looks_that_fail_refuse_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []

    def probe(_: SqlStore) -> None:
        looks.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(SqlStore, "probe", probe)
    monkeypatch.setattr(writer, "_LOG_S", 0.0)
    trail = trail_of(Settings(audit=f"sqlite:///{tmp_path}/audit.sqlite3"))
    trail.start()
    while len(looks) < 3:
        await asyncio.sleep(0.02)
    await trail.stop()
    (record,) = caplog.records
    assert record.message == "decisions are refused: OSError: [Errno 24] Too many open files"


@pytest.mark.usefixtures("quick")
async def test_pruning_without_a_descriptor_left_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruned: list[object] = []

    def prune(*_: object) -> int:
        pruned.append(1)
        if len(pruned) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return 0

    monkeypatch.setattr(writer, "_PRUNE_AGAIN_S", 0.05)
    monkeypatch.setattr(SqlStore, "prune", prune)
    trail = trail_of(Settings(audit=f"sqlite:///{tmp_path}/audit.sqlite3"))
    trail.start()
    while len(pruned) < 2:
        await asyncio.sleep(0.02)
    await trail.stop()
    (record,) = caplog.records
    assert record.exc_info is None
    assert "could not be pruned, which is tried again: OSError: [Errno 24] Too many" in record.message


# What happens to a trail in a process: its disk is full, or no descriptor is left.
PROCESS = """
import asyncio, os, resource, sys
from pathlib import Path
from rationale_service.decisions.audit import writer
from rationale_service.decisions.audit.stores import sql
from rationale_service.errors import StateUnavailableError
from rationale_service.settings import Settings
from tests.service.decisions.audit.conftest import decision

writer._LOOK_AGAIN_S = 0.05
file = sys.argv[1]
trail = writer.trail_of(Settings(audit=f"sqlite:///{file}"))

async def works_again():
    while trail.fault is not None:
        await asyncio.sleep(0.02)
    await trail.record([decision(60)])
    await trail.stop()
"""
FULL = """
async def main():
    await trail.record([decision(1)])
    written = Path(f"{file}-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (written, resource.RLIM_INFINITY))
    refused = 0
    for i in range(2, 52):
        try:
            await trail.record([decision(i)])
        except StateUnavailableError:
            refused += 1
    await asyncio.sleep(0.5)  # some looks
    print(refused, trail.fault)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await works_again()

asyncio.run(main())
"""
NO_DESCRIPTORS = """
async def main():
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    while len(held) < 64:
        try:
            held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            break
    for _ in range(int(sys.argv[2])):
        os.close(held.pop())
    trail.start()
    await trail.wait_until_open()
    print(trail.fault)
    for one in held:
        os.close(one)
    await works_again()

asyncio.run(main())
"""


def test_a_disk_that_is_full_for_a_while(tmp_path: Path) -> None:
    file = tmp_path / "audit.sqlite3"
    command = [sys.executable, "-c", PROCESS + FULL, str(file)]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    assert process.stdout.startswith("50 the audit trail cannot be read or written: ")
    refused, back = process.stderr.splitlines()
    assert refused.startswith("decisions are refused: the audit trail cannot be read or written: ")
    assert back.endswith("recorded again (49 refused since the line before)")
    assert ids(f"sqlite:///{file}") == [decision(1).id, decision(60).id]


@pytest.mark.full
@pytest.mark.parametrize(
    ("descriptors", "message"),
    [(0, "[Errno 24] Too many open files"), (2, "unable to open database file")],
)
def test_a_start_without_descriptors(tmp_path: Path, descriptors: int, message: str) -> None:
    file = tmp_path / "audit.sqlite3"
    command = [sys.executable, "-c", PROCESS + NO_DESCRIPTORS, str(file), str(descriptors)]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    assert message in process.stdout
    refused, back = process.stderr.splitlines()
    assert message in refused
    assert "recorded again" in back
    assert ids(f"sqlite:///{file}") == [decision(60).id]


async def test_decisions_over_http(tmp_path: Path, url: str) -> None:
    """Two processes' worth of gateways on one trail: the same key gives the same bytes."""
    handmade.write_score(tmp_path / "models")
    settings = Settings(repository=tmp_path / "models", audit=url)
    async with (
        gateway(settings) as first_client,
        gateway(settings.model_copy(update={"state": SecretStr(str(tmp_path))})) as second,
    ):
        first = await first_client.post(DECIDE, json=BODY, headers={"Idempotency-Key": "k"})
        repeated = await second.post(DECIDE, json=BODY, headers={"Idempotency-Key": "k"})
        other = await second.post(
            DECIDE, json={"instances": BODY["instances"][:1]}, headers={"Idempotency-Key": "k"}
        )
    assert first.status_code == 200
    assert repeated.content == first.content
    assert other.status_code == 409
    assert ids(url) == [each["id"] for each in first.json()["decisions"]]


@contextlib.contextmanager
def frozen(url: str, request: pytest.FixtureRequest) -> Iterator[None]:
    """The server, or another process in the middle of a transaction on the file."""
    server: Postgres = request.getfixturevalue("server")
    with locked(url) if "sqlite" in url else server.frozen():
        yield


@contextlib.contextmanager
def out_of_reach(url: str, request: pytest.FixtureRequest) -> Iterator[None]:
    """The database."""
    if "sqlite" not in url:
        server: Postgres = request.getfixturevalue("server")
        server.stop()
        try:
            yield
        finally:
            server.start()
        return
    folder = Path(SqlStore(url).url.database or "").parent
    folder.rename(folder.with_name("elsewhere"))
    folder.write_text("in the way")
    yield
    folder.unlink()
    folder.with_name("elsewhere").rename(folder)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("befallen", [out_of_reach, frozen])
async def test_a_model_is_not_ready_to_decide_while_there_is_no_trail(
    tmp_path: Path,
    url: str,
    request: pytest.FixtureRequest,
    befallen: Callable[[str, pytest.FixtureRequest], AbstractContextManager[None]],
) -> None:
    """It still predicts, and the server is ready. Nobody has to ask for a decision to find out."""
    handmade.write_score(tmp_path / "models")
    handmade.write_gradient(tmp_path / "models")
    settings = Settings(repository=tmp_path / "models", audit=url)
    every = dict.fromkeys(("score", "score_explain", "slope", "slope_explain"), True)
    async with gateway(settings) as client, grpc_end(settings) as end:

        async def ready() -> tuple[dict[str, bool], ...]:
            """By HTTP, gRPC and the index."""
            answers = {name: await client.get(f"/v2/models/{name}/ready") for name in every}
            over_grpc = {
                name: (await end.stub.ModelReady(pb.ModelReadyRequest(name=name))).ready for name in every
            }
            listed = (await client.post("/v2/repository/index", json={"ready": True})).json()
            names = {model["name"] for model in listed}
            refused = answers["score"]
            if refused.status_code != 200:
                assert (refused.status_code, refused.json()["type"]) == (503, UNAVAILABLE)
                assert "no decision" in refused.json()["detail"]
            actual = {name: answer.status_code == 200 for name, answer in answers.items()}
            return actual, over_grpc, {name: name in names for name in every}

        async def until(expected: dict[str, bool]) -> None:
            end_s = time.monotonic() + 30
            while await ready() != (expected,) * 3:
                assert time.monotonic() < end_s
                await asyncio.sleep(0.05)
            assert (await client.get("/v1/models/score")).json()["ready"] == expected["score"]

        await until(every)
        with befallen(url, request):
            await until(every | {"score": False, "score_explain": False})
            assert (await client.get("/v2/health/ready")).status_code == 200
            assert (await client.post("/v1/models/score:explain", json=BODY)).status_code == 200
            assert (await client.post(DECIDE, json=BODY)).json()["type"] == UNAVAILABLE
        await until(every)
        assert (await client.post(DECIDE, json=BODY)).status_code == 200


@pytest.mark.usefixtures("quick")
async def test_a_model_that_is_loaded_later_opens_the_trail(tmp_path: Path) -> None:
    handmade.write_gradient(tmp_path / "models")
    (tmp_path / "state").write_text("in the way")
    settings = Settings(repository=tmp_path / "models", audit=f"sqlite:///{tmp_path}/state/audit.sqlite3")
    async with gateway(settings) as client:
        handmade.write_score(tmp_path / "models")
        refused = await client.post("/v2/repository/models/score/load")  # it could not be put on record
        assert refused.status_code == 503
        await client._transport.app.state.gateway.live.scan()  # type: ignore[attr-defined]  # as at SIGHUP
        answer = await client.get("/v2/models/score/ready")
        assert (answer.status_code, answer.json()["type"]) == (503, UNAVAILABLE)
        (tmp_path / "state").unlink()
        while (await client.get("/v2/models/score/ready")).status_code != 200:
            await asyncio.sleep(0.05)
    assert (tmp_path / "state" / "audit.sqlite3").is_file()


async def test_without_a_trail_a_model_decides_and_is_ready(tmp_path: Path) -> None:
    handmade.write_score(tmp_path / "models")
    (tmp_path / "models.state").write_text("in the way")
    async with gateway(Settings(repository=tmp_path / "models", audit="off")) as client:
        assert (await client.get("/v2/models/score/ready")).status_code == 200
        assert (await client.post(DECIDE, json=BODY)).status_code == 200


async def test_a_trail_that_is_gone_stops_decisions_alone(tmp_path: Path) -> None:
    handmade.write_score(tmp_path / "models")
    (tmp_path / "state").write_text("in the way")
    settings = Settings(repository=tmp_path / "models", audit=f"sqlite:///{tmp_path}/state/audit.sqlite3")
    async with gateway(settings) as client:
        refused = await client.post(DECIDE, json=BODY)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert str(tmp_path) not in refused.text
        assert (await client.post("/v1/models/score:explain", json=BODY)).status_code == 200
        assert (await client.get("/v2/health/ready")).status_code == 200
        (tmp_path / "state").unlink()
        assert (await client.post(DECIDE, json=BODY)).status_code == 200
