"""Trails in both databases, and decisions to record."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from service.decisions.audit.database import Database
from service.decisions.audit.inputs import Inputs
from service.decisions.audit.ledger import Ledger
from service.decisions.audit.store import AuditStore
from service.decisions.trail import RecordedDecision
from tests.service.decisions.audit.postgres import Postgres, postgres


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """RATIONALE_AUDIT."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'trail' / 'audit.sqlite3'}"
    server: Postgres = request.getfixturevalue("server")
    return server.new_schema()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(url)
    yield database
    database.close()


@pytest.fixture
def ledger(database: Database) -> Ledger:
    return ledger_of(database)


def ledger_of(database: Database, inputs: Inputs | None = None) -> Ledger:
    return Ledger(AuditStore(database, inputs or Inputs()))


def decision(
    i: int, key: str | None = None, place: int = 0, instance: Mapping[str, Any] | None = None, **over: Any
) -> RecordedDecision:
    """The i-th of a day."""
    instance = {"income": 1000.0 + i, "home": "rent\0 é"} if instance is None else instance
    answer = {
        "id": f"{i:032x}",
        "decision": "decline",
        "score": 0.1 + i / 7,
        "reasons": [
            {"code": "R1", "feature": "income", "value": instance.get("income"), "attribution": 0.25},
            {"code": "R2", "feature": "housing", "value": {"value": instance.get("home")}, "share": None},
        ],
        "attributions": {"income": 0.25, "value": -0.5},
    }
    time = f"2026-11-23T10:{i // 60 % 60:02}:{i % 60:02}.000{i % 1000:03}+00:00"
    fields: dict[str, Any] = {
        "id": answer["id"],
        "time": time,
        "model": "credit",
        "version": "1",
        "caller": "shop",
        "request_id": f"request-{i}",
        "latency_ms": 1.1 + i,
        "instance": instance,
        "answer": answer,
        "idempotency_key": key,
        "place": place,
        "runtime": {"graph": "0" * 64, "threads": 2},
    }
    return RecordedDecision(**{**fields, **over})
