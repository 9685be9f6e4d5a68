"""Acts of administrators: each on record, chained, by whichever process; refused where it cannot be."""

import json
import threading
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from rationale_service.cli.main import app
from rationale_service.decisions.audit.acts import ActLog, AdminAct, record, verify_acts
from rationale_service.decisions.audit.stores.sql import SqlStore
from rationale_service.decisions.audit.stores.store import AuditStore
from rationale_service.errors import StateUnavailableError
from rationale_service.models.live import LiveRepository
from rationale_service.settings import Settings
from tests.service import handmade
from tests.service.conftest import gateway
from tests.service.decisions.audit.test_store import sqlite, store

__all__ = ["sqlite", "store"]  # a fixture, found by its name


def act(number: int) -> AdminAct:
    return AdminAct(
        "ops", "10.0.0.1", "PUT", f"/v2/{number}", 200, "id", {"é": number}, time=f"2026-11-{number:02}"
    )


def test_acts_are_chained_in_order(store: AuditStore) -> None:
    assert list(store.acts()) == []
    assert list(verify_acts(store)) == [0]
    for number in (3, 1, 2):  # as they were added, whatever the clock says
        record(store, act(number))
    assert [row["target"] for row in store.acts()] == ["/v2/3", "/v2/1", "/v2/2"]
    assert [row["number"] for row in store.acts("2026-11-02", "2026-11-03")] == [3]
    assert list(verify_acts(store)) == [3]


def test_processes_add_to_one_chain(url: str) -> None:
    stores = [SqlStore(url) for _ in range(4)]

    def add(sql_store: SqlStore) -> None:
        for number in range(1, 6):
            record(sql_store, act(number))

    threads = [threading.Thread(target=add, args=(sql_store,)) for sql_store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(verify_acts(stores[0])) == [20]
    for sql_store in stores:
        sql_store.close()


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("UPDATE audit_acts SET caller = 'nobody' WHERE number = 2", "row 2: it was altered"),
        ("UPDATE audit_acts SET detail = '{}' WHERE number = 1", "row 1: it was altered"),
        ("DELETE FROM audit_acts WHERE number = 2", "row 3: 1 before it are missing"),
        ("UPDATE audit_acts SET number = 9 WHERE number = 3", "row 9: 6 before it are missing"),
    ],
)
def test_what_was_changed_shows(database: SqlStore, statement: str, fault: str) -> None:
    for number in (1, 2, 3):
        record(database, act(number))
    with database.writing() as connection:
        connection.execute(text(statement))
    assert f"chain acts, {fault}" in [str(each) for each in verify_acts(database)]


def test_only_the_row_that_was_changed_is_named(tmp_path: Path) -> None:
    """One that cannot be read is there: the next follows it. SQLite takes any type."""
    changes = {
        "caller = x'00'": ["row 2: cannot be read: caller cannot have been written so"],
        "status = 'ok', act = x'00'": ["row 2: cannot be read: act, status cannot have been written so"],
        "caller = 'nobody'": ["row 2: it was altered"],
        "hash = 'none'": ["row 2: it was altered", "row 3: it does not follow the one before"],
    }
    for i, (change, faults) in enumerate(changes.items()):
        database = SqlStore(tmp_path / f"{i}.sqlite3")
        for number in (1, 2, 3):
            record(database, act(number))
        with database.writing() as connection:
            connection.execute(text(f"UPDATE audit_acts SET {change} WHERE number = 2"))  # noqa: S608 (above)
        *found, count = verify_acts(database)
        assert ([str(one) for one in found], count) == ([f"chain acts, {one}" for one in faults], 3)
        database.close()


async def test_calls_of_the_admin_api_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handmade.write_score(tmp_path / "models")
    settings = Settings(repository=tmp_path / "models")
    path = "/v2/models/score/explainers/mine"
    async with gateway(settings) as client:
        assert (await client.get("/v2/models/score/explainers")).status_code == 200  # changes nothing
        assert (await client.put(path, json={"method": "nonsense"})).status_code == 422
        assert (await client.put(path, json={"method": "gradient"})).status_code == 202
        assert (await client.delete(f"{path}?x=1", headers={"x-request-id": "mine"})).status_code == 204
        assert (await client.get("/v2/reference-sets/none/rows")).status_code == 404
        assert (await client.post("/v2/repository/models/score/load")).status_code == 200
    monkeypatch.setenv("RATIONALE_REPOSITORY", str(settings.repository))
    shown = CliRunner().invoke(app, ["audit", "acts"])
    rows = [json.loads(line) for line in shown.output.splitlines()]
    assert [(row["act"], row["target"], row["status"]) for row in rows] == [
        ("PUT", path, 422),
        ("PUT", path, 202),
        ("DELETE", f"{path}?x=1", 204),
        ("GET", "/v2/reference-sets/none/rows", 404),
        ("POST", "/v2/repository/models/score/load", 200),
    ]
    assert rows[1]["detail"] == {"method": "gradient"}
    assert rows[2]["request_id"] == "mine"
    assert rows[0]["address"] == "127.0.0.1"
    verified = CliRunner().invoke(app, ["audit", "verify"])
    assert verified.output == "0 decisions, none removed or altered; 5 acts of administrators\n"


async def test_an_act_that_fails_by_a_fault_is_recorded_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handmade.write_score(tmp_path / "models")
    settings = Settings(repository=tmp_path / "models")

    async def broken(*_: object) -> None:
        raise ZeroDivisionError

    async with gateway(settings) as client:
        monkeypatch.setattr(LiveRepository, "unload", broken)
        assert (await client.post("/v2/repository/models/score/unload")).status_code == 500
    store = SqlStore(settings.state_folder / "audit.sqlite3")
    assert [(row["target"], row["status"]) for row in store.acts()] == [
        ("/v2/repository/models/score/unload", 500)
    ]
    store.close()


async def test_an_act_is_recorded_whatever_its_path_holds(tmp_path: Path, url: str) -> None:
    """PostgreSQL takes no NUL in a text."""
    handmade.write_score(tmp_path / "models")
    paths = [f"/v2/models/score/explainers/{name}" for name in ("%00", "a%0Ab", "%FF", "%C3%A9")]
    async with gateway(Settings(repository=tmp_path / "models", audit=url)) as client:
        for path in paths:
            assert (await client.put(path, json={"method": "gradient"})).status_code == 422
    store = SqlStore(url)
    assert [row["target"] for row in store.acts()] == paths
    store.close()


async def test_who_may_not_administer_leaves_no_row(tmp_path: Path) -> None:
    handmade.write_score(tmp_path / "models")
    settings = Settings(repository=tmp_path / "models", host="0.0.0.0")  # noqa: S104  # closed: there are no keys
    async with gateway(settings) as client:
        for call in (client.get, client.delete):
            assert (await call("/v2/models/score/explainers/mine")).status_code == 403
        store = SqlStore(settings.state_folder / "audit.sqlite3")
        assert list(store.acts()) == []
        store.close()


async def test_without_a_record_nothing_is_done(tmp_path: Path) -> None:
    handmade.write_score(tmp_path / "models")
    (tmp_path / "file").write_text("in the way")
    audit = f"sqlite:///{tmp_path}/file/audit.sqlite3"
    async with gateway(Settings(repository=tmp_path / "models", audit=audit)) as client:
        answer = await client.post("/v2/repository/models/score/unload")
        assert answer.status_code == 503
        assert (await client.get("/v2/models/score")).status_code == 200


async def test_without_a_trail_the_log_has_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    handmade.write_score(tmp_path / "models")
    caplog.set_level("INFO")
    async with gateway(Settings(repository=tmp_path / "models", audit="off")) as client:
        answer: httpx.Response = await client.post("/v2/repository/models/score/load")
        assert answer.status_code == 200
    assert "'target': '/v2/repository/models/score/load', 'status': 200" in caplog.text


async def test_an_act_that_cannot_be_recorded_any_more_is_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def gone() -> AuditStore:
        raise StateUnavailableError("the database is gone")

    acts = ActLog(gone)
    with pytest.raises(StateUnavailableError):
        await acts.check()
    await acts.note(act(7))
    (line,) = [each.getMessage() for each in caplog.records if "is not recorded" in each.getMessage()]
    assert "database is gone" in line
    assert all(repr(value) in line for value in ("ops", "10.0.0.1", "PUT", "/v2/7", {"é": 7}))
