"""What is old enough goes from the beginning of each chain, and the rest still verifies."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import select

from rationale_service.decisions.audit.evidence.heads import heads
from rationale_service.decisions.audit.evidence.retention import months_ago
from rationale_service.decisions.audit.evidence.verify import ChainFault, verify
from rationale_service.decisions.audit.rows import InputCodec, placed_digest
from rationale_service.decisions.audit.stores import sql
from rationale_service.decisions.audit.stores.sql import SqlStore
from rationale_service.decisions.audit.stores.tables import checkpoints
from tests.service.decisions.audit.conftest import decision, ledger_of
from tests.service.decisions.audit.test_ledger import everything
from tests.service.decisions.audit.test_verify import execute

OLD = [f"2024-01-0{day}T00:00:00.000000+00:00" for day in range(1, 6)]
BEFORE = "2024-06"


def pruned(database: SqlStore, before: str = BEFORE) -> int:
    count = 0
    while actual := database.prune(before):
        assert actual <= sql._PRUNED_AT_ONCE, "decisions wait for as many rows"
        count += actual
    return count


@pytest.mark.parametrize("at_once", [1, 2, 2000])
def test_old_rows_go(
    database: SqlStore, at_once: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sql, "_PRUNED_AT_ONCE", at_once)
    key = tmp_path / "key"
    key.write_text("k" * 32)
    first, second, third = (ledger_of(database, InputCodec("sealed", key)) for _ in range(3))
    first.append([[decision(i, time=time)] for i, time in enumerate(OLD)])
    second.append([[decision(10 + i, time=time)] for i, time in enumerate(OLD[:3])])
    third.append([[decision(20)], [decision(21, time=OLD[0])]])  # an old one behind a new one stays
    first.append([[decision(5)], [decision(6)]])
    for number in (1, 3):
        assert database.erase(decision(number).id, BEFORE, "signature")
    before = heads(database)
    assert [head.first for head in before] == [1, 1, 1]

    assert pruned(database) == 8
    assert database.prune(BEFORE) == 0
    assert {row.id for row in first.in_order()} == {decision(i).id for i in (5, 6, 20, 21)}
    remaining_rows = {
        i for i in [*range(1, 7), *range(10, 13), 20, 21] if decision(i).id in everything(database)
    }
    assert remaining_rows == {5, 6, 20, 21}  # no keys of inputs and no erasures of the others either
    assert list(verify(database, before, BEFORE)) == [4]
    after = heads(database)
    assert {(head.first, head.sequence) for head in after} == {(6, 7), (4, 3), (1, 2)}
    assert list(verify(database, after, BEFORE)) == [4]
    first.append([[decision(7)]])
    second.append([[decision(17)]])
    assert list(verify(database, [*before, *after], BEFORE)) == [6]


def test_what_is_pruned_before_its_time_shows(database: SqlStore) -> None:
    ledger = ledger_of(database)
    ledger.append([[decision(1, time=OLD[0])], [decision(2)]])
    signed = heads(database)
    ledger.append([[decision(3)]])
    assert pruned(database, "2027") == 3
    (chain,) = {head.chain for head in signed}
    for kept_since in (BEFORE, None):
        faults = [each for each in verify(database, [], kept_since) if isinstance(each, ChainFault)]
        assert [(each.chain, each.sequence) for each in faults] == [(chain, 3)]
        faults = [each for each in verify(database, signed, kept_since) if isinstance(each, ChainFault)]
        assert [(each.chain, each.sequence) for each in faults] == [(chain, 3), (chain, 2)]
    assert list(verify(database, signed, "2027")) == [0]


def test_at_the_very_time_rows_are_kept(database: SqlStore) -> None:
    """And one that was pruned is a fault: retention ends at the first time that is not before."""
    ledger = ledger_of(database)
    ledger.append([[decision(i, time=OLD[i])] for i in range(3)])
    assert pruned(database, OLD[1]) == 1
    assert {row.id for row in ledger.in_order()} == {decision(i).id for i in (1, 2)}
    signed = heads(database)
    assert pruned(database, BEFORE) == 2
    for rows_sent in ([], signed):
        assert list(verify(database, rows_sent, BEFORE)) == [0]
        assert list(verify(database, rows_sent, OLD[2][:-1])) != [0]  # a prefix of the time is before it
        (fault, _) = verify(database, rows_sent, OLD[2])
        assert isinstance(fault, ChainFault)
        assert "before its time" in fault.text


def test_a_row_is_as_old_as_its_head_said(database: SqlStore) -> None:
    """Though the last that was pruned with it, of a clock that was put back, is older."""
    ledger = ledger_of(database)
    ledger.append([[decision(1, time=OLD[2])]])
    signed = heads(database)
    ledger.append([[decision(2, time=OLD[0])]])
    assert pruned(database) == 2
    assert list(verify(database, signed, OLD[3])) == [0]
    (fault, _) = verify(database, signed, OLD[2])
    assert isinstance(fault, ChainFault)
    assert (fault.sequence, "pruned before its time" in fault.text) == (1, True)


def test_another_checkpoint_than_the_head_s(database: SqlStore) -> None:
    """With a digest of its own that is right."""
    ledger = ledger_of(database)
    ledger.append([[decision(1, time=OLD[0])], [decision(2)]])
    pruned(database)
    signed = heads(database)
    with database.reading() as connection:
        actual = dict(connection.execute(select(checkpoints)).mappings().one())
    other = placed_digest(actual | {"content": "0" * 64})
    execute(database, "UPDATE audit_checkpoints SET content = :c, hash = :h", c="0" * 64, h=other)
    faults = {str(each) for each in verify(database, signed, BEFORE) if isinstance(each, ChainFault)}
    assert any("row 1: has another checkpoint than when the head was signed" in each for each in faults)


def test_a_checkpoint_hides_nothing_behind_it(database: SqlStore) -> None:
    ledger = ledger_of(database)
    ledger.append([[decision(1, time=OLD[0])], [decision(2)], [decision(3)]])
    pruned(database)
    execute(database, "DELETE FROM audit_decisions WHERE sequence = 2")
    faults = [each.sequence for each in verify(database, [], BEFORE) if isinstance(each, ChainFault)]
    assert faults == [2]
    execute(database, "UPDATE audit_checkpoints SET sequence = 2")
    faults = [each.sequence for each in verify(database, [], BEFORE) if isinstance(each, ChainFault)]
    assert faults == [2, 3]


@pytest.mark.parametrize(
    ("now", "months", "then"),
    [
        ((2026, 11, 23), 25, "2024-10-23"),
        ((2026, 3, 31), 1, "2026-02-28"),
        ((2024, 3, 31), 1, "2024-02-29"),
        ((2026, 1, 15), 1, "2025-12-15"),
        ((2026, 12, 15), 12, "2025-12-15"),
        ((2024, 2, 29), 12, "2023-02-28"),
        ((2024, 2, 29), 48, "2020-02-29"),
        ((2025, 2, 28), 12, "2024-02-28"),
        ((2025, 3, 31), 13, "2024-02-29"),
        ((2026, 11, 27), 0, "2026-11-27"),
        ((2026, 11, 27), 12 * 3000, "0001-11-27"),
    ],
)
def test_months(now: tuple[int, int, int], months: int, then: str) -> None:
    assert months_ago(months, datetime(*now, 7, 8, 9, tzinfo=UTC)) == f"{then}T07:08:09.000000+00:00"
