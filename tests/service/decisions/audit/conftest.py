"""Trails in both databases, and decisions to record."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rationale_service.decisions.audit.evidence.signatures import PrivateKey, PublicKey
from rationale_service.decisions.audit.ledger import Ledger
from rationale_service.decisions.audit.rows import InputCodec
from rationale_service.decisions.audit.stores.sql import SqlStore
from rationale_service.decisions.audit.stores.store import AuditStore
from rationale_service.decisions.audit.trail import RecordedDecision
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
def database(url: str) -> Iterator[SqlStore]:
    database = SqlStore(url)
    yield database
    database.close()


@pytest.fixture
def ledger(database: SqlStore) -> Ledger:
    return ledger_of(database)


@dataclass(frozen=True)
class KeyPair:
    """Files of an Ed25519 key."""

    private_file: Path
    public_file: Path

    @property
    def private(self) -> PrivateKey:
        return PrivateKey(self.private_file)

    @property
    def public(self) -> PublicKey:
        return PublicKey(self.public_file)


def key_pair(folder: Path) -> KeyPair:
    key, pem = Ed25519PrivateKey.generate(), serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    pair = KeyPair(folder / "private.pem", folder / "public.pem")
    pair.private_file.write_bytes(private)
    pair.public_file.write_bytes(public)
    return pair


@pytest.fixture(scope="session")
def auditor(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    """Who signs heads and erasures."""
    return key_pair(tmp_path_factory.mktemp("auditor"))


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return key_pair(tmp_path_factory.mktemp("stranger"))


def ledger_of(store: AuditStore, inputs: InputCodec | None = None) -> Ledger:
    return Ledger(store, inputs or InputCodec())


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
            {
                "code": "R1",
                "feature": "income",
                "value": instance.get("income"),
                "attribution": 0.25,
                "unit": "EUR",
                "category": instance.get("income"),
                "shown": f"Income: {instance.get('income')}",
            },
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
