"""Nothing is answered that is not on the disk, whatever happens to the database; then it goes on."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import Engine, create_engine, event, text

from service.decisions.audit import database as opening
from service.decisions.audit.database import Database
from service.decisions.audit.store import AuditStore
from service.decisions.audit.verify import verify
from service.decisions.audit.writer import DatabaseTrail, trail_of
from service.decisions.trail import NoTrail
from service.errors import ConflictError, QueueFullError, StateUnavailableError
from service.settings import Settings
from tests.service import handmade as made
from tests.service.conftest import gateway
from tests.service.decisions.audit.conftest import decision
from tests.service.decisions.audit.postgres import Postgres

QUEUE = 20
DECIDE = "/v1/models/score:decide"
BODY = {"instances": [dict(zip(made.FEATURES, row, strict=True)) for row in made.X.tolist()[:2]]}


@pytest_asyncio.fixture
async def trail(url: str) -> AsyncIterator[DatabaseTrail]:
    trail = trail_of(Settings(audit=url, max_queue_size=QUEUE))
    assert isinstance(trail, DatabaseTrail)
    yield trail
    await trail.stop()


def ids(url: str) -> list[str]:
    """Of what is in a trail that verifies."""
    store = AuditStore.open(Settings(audit=url))
    with contextlib.closing(store.database):
        assert all(isinstance(each, int) for each in verify(store.database))
        return [one.id for one in store.in_order()]


@contextlib.contextmanager
def locked(url: str) -> Iterator[None]:
    """By somebody else's transaction."""
    engine = create_engine(Database(url).url, isolation_level=None if "sqlite" in url else "READ COMMITTED")
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
    kept = [99, 0, *range(2, QUEUE + 1, 2)]
    assert sorted(ids(url)) == sorted(decision(i).id for i in kept)


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
    answers = await asyncio.gather(*(trail.record([one]) for one in mine))
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
            with pytest.raises(StateUnavailableError, match="the audit trail is not available") as told:
                await trail.record([decision(2)])
            assert told.value.retry_after_s
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

    def small(connection: object, record: object) -> None:
        set_up(connection, record)
        connection.execute("PRAGMA max_page_count = 60")  # type: ignore[attr-defined]

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


async def test_old_decisions_go_by_themselves(url: str) -> None:
    trail = trail_of(Settings(audit=url))
    await trail.record([decision(1, time="2020-01-01T00:00:00.000000+00:00"), decision(2)])
    await trail.stop()
    for months, left in ((0, 2), (25, 1)):
        again = trail_of(Settings(audit=url, audit_retention_months=months))
        again.start()
        end_s = time.monotonic() + 30
        while len(ids(url)) != left and time.monotonic() < end_s:
            await asyncio.sleep(0.05)
        await again.stop()
        assert len(ids(url)) == left


async def test_no_trail_is_made_before_one_is_needed(tmp_path: Path) -> None:
    trail = trail_of(Settings(repository=tmp_path / "models"))
    trail.start()
    await trail.record([])
    await trail.stop()
    assert list(tmp_path.iterdir()) == []
    assert isinstance(trail_of(Settings(audit="off")), NoTrail)


async def test_decisions_over_http(tmp_path: Path, url: str) -> None:
    """Two processes' worth of gateways on one trail: the same key gives the same bytes."""
    made.write_score(tmp_path / "models")
    settings = Settings(repository=tmp_path / "models", audit=url)
    async with gateway(settings) as one, gateway(settings.model_copy(update={"state": tmp_path})) as two:
        first = await one.post(DECIDE, json=BODY, headers={"Idempotency-Key": "k"})
        again = await two.post(DECIDE, json=BODY, headers={"Idempotency-Key": "k"})
        other = await two.post(
            DECIDE, json={"instances": BODY["instances"][:1]}, headers={"Idempotency-Key": "k"}
        )
    assert first.status_code == 200
    assert again.content == first.content
    assert other.status_code == 409
    assert ids(url) == [each["id"] for each in first.json()["decisions"]]


async def test_a_trail_that_is_gone_stops_decisions_alone(tmp_path: Path) -> None:
    made.write_score(tmp_path / "models")
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
