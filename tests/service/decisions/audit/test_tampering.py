"""Who may write to the database tampers with it: signed heads in hand, all of it shows.

Two things that look alike are lawful and pass: what is old enough is pruned, and who has the key erases.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from rationale_service.decisions.audit.evidence.heads import SignedHead, heads, read_signed, signed
from rationale_service.decisions.audit.evidence.retention import erase, erasure_of
from rationale_service.decisions.audit.evidence.verify import ChainFault, verify
from rationale_service.decisions.audit.rows import (
    ChainHead,
    InputCodec,
    content_digest,
    digest,
    placed_digest,
)
from rationale_service.decisions.audit.stores.sql import SqlStore
from tests.service.decisions.audit.conftest import KeyPair, decision, ledger_of
from tests.service.decisions.audit.test_verify import execute

KEPT_SINCE = "2024-10-23"
OLD = "2024-01-01T00:00:00.000000+00:00"
ERASED = 5
ROWS = 8

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Trail:
    """A chain of ROWS sealed decisions: the first two are old, and the inputs of ERASED are erased.

    Attributes:
        wrapped: the key of row ERASED, as somebody copied it before.
        heads: signed after that.
    """

    database: SqlStore
    chain: str
    wrapped: str
    heads: list[SignedHead]
    auditor: KeyPair
    stranger: KeyPair

    def execute(self, *statements: str, **values: Any) -> None:
        execute(self.database, *statements, **values)

    def rows(self) -> Rows:
        query = text("SELECT * FROM audit_decisions WHERE chain = :c ORDER BY sequence")
        with self.database.reading() as connection:
            return [dict(row) for row in connection.execute(query, {"c": self.chain}).mappings()]

    def put(self, table: str, row: Mapping[str, Any]) -> None:
        names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
        self.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", **row)  # noqa: S608

    def rewrite(self, rows: Rows) -> None:
        """The chain with these rows, each with its place and digest."""
        self.execute("DELETE FROM audit_decisions")
        head = ChainHead(self.chain)
        for row in rows:
            linked, head = head.append(row)
            self.put("audit_decisions", linked)

    def checkpoint(self, row_number: int, **over: Any) -> None:
        """As if all up to a row had been pruned."""
        row = self.rows()[row_number - 1]
        copied = {name: row[name] for name in ("chain", "sequence", "hash", "previous", "time")}
        checkpoint_row = {**copied, "content": content_digest(row), "pruned": "2026-11-23", **over}
        self.execute("DELETE FROM audit_decisions WHERE sequence <= :at", at=row_number)
        self.put("audit_checkpoints", checkpoint_row)

    def record(self, sequence: int, of: int, key: KeyPair) -> None:
        """That the key of a row was erased, signed for the row `of`."""
        row = self.rows()[of - 1]
        signature = key.private.sign(erasure_of(row, "2026-11-23"))
        identity = self.rows()[sequence - 1]["id"]
        self.put("audit_erasures", {"id": identity, "time": "2026-11-23", "signature": signature})


@pytest.fixture
def trail(database: SqlStore, tmp_path: Path, auditor: KeyPair, stranger: KeyPair) -> Trail:
    key = tmp_path / "key"
    key.write_text("k" * 32)
    ledger = ledger_of(database, InputCodec("sealed", key))
    old = [[decision(i, time=OLD)] for i in (1, 2)]
    ledger.append([*old, *([decision(i)] for i in range(3, ROWS + 1))])
    query = text("SELECT wrapped FROM audit_input_keys WHERE id = :id")
    with database.reading() as connection:
        wrapped = str(connection.execute(query, {"id": decision(ERASED).id}).scalar_one())
    erase(database, decision(ERASED).id, auditor.private)
    file = tmp_path / "heads.json"
    file.write_text(signed(heads(database), auditor.private))
    heads_signed = read_signed(file, [auditor.public])
    return Trail(database, heads_signed[0].chain, wrapped, heads_signed, auditor, stranger)


def altered_with_its_digest(trail: Trail) -> None:
    row = trail.rows()[3] | {"caller": "nobody"}
    trail.execute("UPDATE audit_decisions SET caller = 'nobody', hash = :h WHERE sequence = 4", h=digest(row))


def written_anew(trail: Trail) -> None:
    rows = trail.rows()
    rows[6]["answer"] = rows[6]["answer"].replace("decline", "approve")
    trail.rewrite(rows)


def inserted(trail: Trail) -> None:
    rows = trail.rows()
    trail.rewrite([*rows[:4], {**rows[4], "id": "forged", "key_digest": None}, *rows[4:]])


def as_of_the_issue(trail: Trail) -> None:
    """A checkpoint of what is young is forged from the row itself."""
    trail.execute(
        "INSERT INTO audit_checkpoints SELECT chain, 4, hash, previous, time, :content, time "
        "FROM audit_decisions WHERE sequence = 4",
        "DELETE FROM audit_decisions WHERE sequence <= 4",
        content=content_digest(trail.rows()[3]),
    )


def old_by_its_digest(trail: Trail) -> None:
    """The forged checkpoint says that its row was old, with the digest of that."""
    row = trail.rows()[3] | {"time": OLD}
    trail.checkpoint(4, time=OLD, hash=placed_digest({**row, "content": content_digest(row)}))


def old_and_written_anew(trail: Trail) -> None:
    """And what is left is chained to it."""
    rows = trail.rows()
    rows[3]["time"] = OLD
    trail.rewrite(rows)
    trail.checkpoint(4)


def swapped(table: str) -> Callable[[Trail], None]:
    def swap(trail: Trail) -> None:
        first, second = (decision(i).id for i in (3, 4))
        for of, to in ((first, "x"), (second, first), ("x", second)):
            trail.execute(f"UPDATE {table} SET id = :to WHERE id = :of", of=of, to=to)  # noqa: S608

    return swap


def key_deleted(trail: Trail) -> None:
    trail.execute("DELETE FROM audit_input_keys WHERE id = :id", id=decision(4).id)


def erased_by_a_stranger(trail: Trail) -> None:
    key_deleted(trail)
    trail.record(4, of=4, key=trail.stranger)


def erased_by_the_record_of_another(trail: Trail) -> None:
    key_deleted(trail)
    trail.record(4, of=6, key=trail.auditor)


def key_put_back(trail: Trail) -> None:
    trail.put("audit_input_keys", {"id": decision(ERASED).id, "wrapped": trail.wrapped})


def never_erased(trail: Trail) -> None:
    """The key is back, and the record of its erasure is gone: all as it was written."""
    key_put_back(trail)
    trail.execute("DELETE FROM audit_erasures")


def pruned_rows_put_back(trail: Trail) -> None:
    """Of a chain whose head was signed after they were pruned."""
    rows = trail.rows()[:2]
    assert trail.database.prune(KEPT_SINCE) == 2
    trail.heads[:] = heads(trail.database)
    trail.execute("DELETE FROM audit_checkpoints")
    for row in rows:
        trail.put("audit_decisions", row | {"key_digest": None})


def checkpoint_gone(trail: Trail) -> None:
    assert trail.database.prune(KEPT_SINCE) == 2
    trail.execute("DELETE FROM audit_checkpoints")


TAMPERED: dict[str, Callable[[Trail], None]] = {
    "a row altered": lambda trail: trail.execute("UPDATE audit_decisions SET inputs = '' WHERE sequence = 4"),
    "a row altered with its digest": altered_with_its_digest,
    "a row altered and the chain written anew": written_anew,
    "a row inserted and the chain written anew": inserted,
    "a row removed": lambda trail: trail.execute("DELETE FROM audit_decisions WHERE sequence = 4"),
    "the chain's end removed": lambda trail: trail.execute("DELETE FROM audit_decisions WHERE sequence > 6"),
    "the whole chain removed": lambda trail: trail.execute("DELETE FROM audit_decisions"),
    "the chain renamed": lambda trail: trail.execute("UPDATE audit_decisions SET chain = 'other'"),
    "young rows under a checkpoint": as_of_the_issue,
    "a checkpoint that says old": lambda trail: trail.checkpoint(4, time=OLD),
    "a checkpoint that says old by its digest": old_by_its_digest,
    "rows made old, and pruned": old_and_written_anew,
    "all rows under a checkpoint": lambda trail: trail.checkpoint(ROWS),
    "a checkpoint beyond the end": lambda trail: trail.checkpoint(ROWS, sequence=ROWS + 9, time=OLD),
    "a checkpoint removed": checkpoint_gone,
    "pruned rows put back": pruned_rows_put_back,
    "keys of two rows swapped": swapped("audit_input_keys"),
    "a key deleted": key_deleted,
    "all keys deleted": lambda trail: trail.execute("DELETE FROM audit_input_keys"),
    "an erasure that a stranger signed": erased_by_a_stranger,
    "an erasure that was signed for another row": erased_by_the_record_of_another,
    "an erased key put back": key_put_back,
    "an erased key put back, its record removed": never_erased,
    "the record of an erasure removed": lambda trail: trail.execute("DELETE FROM audit_erasures"),
}


def faults(trail: Trail, kept_since: str | None = KEPT_SINCE) -> list[ChainFault]:
    actual = verify(trail.database, trail.heads, kept_since, [trail.auditor.public])
    return [each for each in actual if isinstance(each, ChainFault)]


@pytest.mark.parametrize("way", TAMPERED)
def test_what_is_tampered_with_shows(trail: Trail, way: str) -> None:
    assert faults(trail) == []
    TAMPERED[way](trail)
    actual = faults(trail)
    assert actual
    assert len({*actual}) == len(actual)
    assert {each.chain for each in actual} <= {trail.chain, "other"}


def test_a_lawful_prune_passes(trail: Trail) -> None:
    assert trail.database.prune(KEPT_SINCE) == 2
    assert faults(trail) == []
    assert [each.sequence for each in faults(trail, None)] == [2]  # where nothing may be pruned


def test_a_signed_erasure_passes(trail: Trail) -> None:
    erase(trail.database, decision(4).id, trail.auditor.private)
    assert faults(trail) == []


def test_a_lawful_prune_of_what_was_erased_passes(trail: Trail) -> None:
    erase(trail.database, decision(2).id, trail.auditor.private)
    trail.heads[:] = heads(trail.database)
    assert trail.heads[0].erased == (2, ERASED)
    assert trail.database.prune(KEPT_SINCE) == 2
    assert faults(trail) == []


def test_without_a_public_key_signatures_are_not_looked_at(trail: Trail) -> None:
    erased_by_a_stranger(trail)
    assert list(verify(trail.database, trail.heads, KEPT_SINCE)) == [ROWS]
