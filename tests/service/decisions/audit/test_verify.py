"""Rows that were removed, altered, inserted or moved are shown, each with its chain and number."""

import contextlib
import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from rationale.errors import InvalidOptionError
from rationale_service.decisions.audit.acts import AdminAct, open_act, record, verify_acts
from rationale_service.decisions.audit.evidence.heads import SignedHead, heads, read_signed, signed
from rationale_service.decisions.audit.evidence.signatures import PrivateKey, PublicKey
from rationale_service.decisions.audit.evidence.verify import ChainFault, verify
from rationale_service.decisions.audit.ledger import Ledger
from rationale_service.decisions.audit.rows import GENESIS
from rationale_service.decisions.audit.stores.sql import SqlStore
from rationale_service.errors import StateUnavailableError
from tests.service.decisions.audit.conftest import KeyPair, decision, ledger_of

ROWS = 7


@pytest.fixture
def chain(ledger: Ledger) -> str:
    """Of a trail of two chains; the other has one row."""
    for i in range(0, ROWS - 1, 2):
        ledger.append([[decision(i)], [decision(i + 1)]])
    ledger.append([[decision(ROWS - 1)]])
    (first,) = heads(ledger.store)
    ledger_of(ledger.store).append([[decision(100)]])
    return first.chain


def faults(database: SqlStore, *arguments: Any) -> list[ChainFault]:
    return [each for each in verify(database, *arguments) if isinstance(each, ChainFault)]


def execute(database: SqlStore, *statements: str, **values: Any) -> None:
    with database.writing() as connection:
        for statement in statements:
            connection.execute(text(statement), values)


def test_a_trail_as_it_was_written(database: SqlStore, chain: str) -> None:
    assert list(verify(database)) == [ROWS + 1]
    assert {(head.first, head.sequence) for head in heads(database)} == {(1, ROWS), (1, 1)}
    assert faults(database, heads(database)) == []
    assert len(chain) == 32


def test_the_digest_as_the_docs_say(database: SqlStore, chain: str) -> None:
    previous = "0" * 64
    for row in stored(database, chain):
        columns = (
            "id model version caller request_id latency_ms answer runtime kept inputs key_digest "
            "idempotency_key place kind application_id reviews review_by"
        )
        content = documented_digest([row[name] for name in columns.split()])
        place = [row["chain"], row["sequence"], row["previous"], row["time"], content]
        assert row["previous"] == previous
        assert row["hash"] == documented_digest(place)
        previous = row["hash"]


def documented_digest(columns: list[Any]) -> str:
    array = json.dumps(columns, ensure_ascii=False, separators=(",", ":"))
    return sha256(array.encode()).hexdigest()


def stored(database: SqlStore, chain: str) -> Iterator[dict[str, Any]]:
    query = text("SELECT * FROM audit_decisions WHERE chain = :chain ORDER BY sequence")
    with database.reading() as connection:
        yield from (dict(row) for row in connection.execute(query, {"chain": chain}).mappings())


@pytest.mark.parametrize(
    "column",
    (
        "id time model version caller request_id latency_ms answer runtime kept inputs key_digest kind "
        "application_id reviews review_by"
    ).split(),
)
def test_an_altered_column(database: SqlStore, chain: str, column: str) -> None:
    value = "0.5" if column == "latency_ms" else "'else'"
    statement = f"UPDATE audit_decisions SET {column} = {value} WHERE chain = :c AND sequence = 3"  # noqa: S608
    execute(database, statement, c=chain)
    assert {(each.chain, each.sequence) for each in faults(database)} == {(chain, 3)}


def test_removed_rows(database: SqlStore, chain: str) -> None:
    execute(database, "DELETE FROM audit_decisions WHERE chain = :c AND sequence IN (1, 4, 5)", c=chain)
    assert [str(each).split(": ", 1)[1] for each in faults(database)] == [
        "row 1 is removed",
        "rows 4 to 5 are removed",
    ]


def test_rows_that_changed_places(database: SqlStore, chain: str) -> None:
    execute(
        database,
        "UPDATE audit_decisions SET sequence = 99 WHERE chain = :c AND sequence = 3",
        "UPDATE audit_decisions SET sequence = 3 WHERE chain = :c AND sequence = 5",
        "UPDATE audit_decisions SET sequence = 5 WHERE chain = :c AND sequence = 99",
        c=chain,
    )
    assert {each.sequence for each in faults(database)} == {3, 4, 5, 6}


def test_an_inserted_row(database: SqlStore, chain: str) -> None:
    """Numbered as the one that it pushes away, with its digest as it should be."""
    execute(
        database,
        "UPDATE audit_decisions SET sequence = sequence + 100 WHERE chain = :c AND sequence > 3",
        "UPDATE audit_decisions SET sequence = sequence - 99 WHERE chain = :c AND sequence > 100",
        c=chain,
    )
    third = list(stored(database, chain))[2]
    from rationale_service.decisions.audit.rows import ChainHead

    forged, _ = ChainHead(chain, 3, third["hash"]).append({**third, "id": "forged"})
    names = ", ".join(forged)
    marks = ", ".join(f":{name}" for name in forged)
    execute(database, f"INSERT INTO audit_decisions ({names}) VALUES ({marks})", **forged)  # noqa: S608
    assert {each.sequence for each in faults(database)} == {5, 6, 7, 8}


def test_a_row_that_was_replaced_with_its_digest(database: SqlStore, chain: str) -> None:
    from rationale_service.decisions.audit.rows import digest

    third = list(stored(database, chain))[2] | {"caller": "nobody"}
    execute(
        database,
        "UPDATE audit_decisions SET caller = 'nobody', hash = :h WHERE chain = :c AND sequence = 3",
        c=chain,
        h=digest(third),
    )
    assert [each.sequence for each in faults(database)] == [4]


def test_a_tail_and_a_whole_chain_that_are_gone_show_by_heads_alone(database: SqlStore, chain: str) -> None:
    signed_heads = heads(database)
    (other,) = {head.chain for head in signed_heads} - {chain}
    execute(database, "DELETE FROM audit_decisions WHERE chain = :c AND sequence > 4", c=chain)
    execute(database, "DELETE FROM audit_decisions WHERE chain = :c", c=other)
    assert faults(database) == []
    assert {(each.chain, each.sequence) for each in faults(database, signed_heads)} == {
        (chain, 5),
        (other, 1),
    }


def test_a_chain_that_was_written_anew_shows_by_heads_alone(database: SqlStore, chain: str) -> None:
    signed_heads = [SignedHead(chain, 1, GENESIS, 4, "f" * 64, "2026-11-23T10:00:00.000000+00:00")]
    assert [(each.chain, each.sequence) for each in faults(database, signed_heads)] == [(chain, 4)]


def test_signed_heads(tmp_path: Path, auditor: KeyPair, stranger: KeyPair) -> None:
    head = SignedHead("c", 2, "b" * 64, 3, "a" * 64, "2026-11-23T10:00:00.000000+00:00", (3,))
    file, keys = tmp_path / "heads.json", [auditor.public]
    file.write_text(signed([head], auditor.private))
    assert read_signed(file, keys) == read_signed(file, [stranger.public, *keys]) == [head]
    with pytest.raises(InvalidOptionError, match="public key"):
        read_signed(file, [stranger.public])
    file.write_text(file.read_text().replace('"sequence": 3', '"sequence": 2'))
    with pytest.raises(InvalidOptionError, match="altered"):
        read_signed(file, keys)
    for content in (b"", b"[]", b"{}", b"\xff"):
        file.write_bytes(content)
        with pytest.raises(InvalidOptionError, match="signed heads"):
            read_signed(file, keys)
    file.write_text('{"heads": [], "signature": 1}')
    with pytest.raises(InvalidOptionError, match="public key"):
        read_signed(file, keys)


def test_heads_of_another_version(tmp_path: Path, auditor: KeyPair) -> None:
    document: dict[str, Any] = {"heads": [{"chain": "c", "sequence": 3, "hash": "a" * 64, "count": 3}]}
    file = tmp_path / "heads.json"
    file.write_text(json.dumps(document | {"signature": auditor.private.sign(document)}))
    with pytest.raises(InvalidOptionError, match="`rationale audit heads`"):
        read_signed(file, [auditor.public])
    document = {"version": 2, "heads": []}
    file.write_text(json.dumps(document | {"signature": auditor.private.sign(document)}))
    with pytest.raises(InvalidOptionError, match="has the version 2, and this Rationale reads 1"):
        read_signed(file, [auditor.public])
    document = {"heads": []}  # as 0.1.0 wrote it first
    file.write_text(json.dumps(document | {"signature": auditor.private.sign(document)}))
    assert read_signed(file, [auditor.public]) == []


def test_keys_that_cannot_be_read(auditor: KeyPair) -> None:
    with pytest.raises(InvalidOptionError, match="public key"):
        PublicKey(auditor.private_file)
    with pytest.raises(InvalidOptionError, match="private key"):
        PrivateKey(auditor.public_file)


ALTERED = {"bytes": "X'00FF'", "no UTF-8": "CAST(X'FF41' AS TEXT)", "a text": "'abc'", "a number": "1e308"}


def is_of_its_kind(column: str, value: str) -> bool:
    """SQLite gives a number in a column of text as a text."""
    is_number = column in ("sequence", "latency_ms", "number", "status")
    return {"bytes": False, "no UTF-8": False, "a text": not is_number}.get(value, column != "sequence")


@pytest.mark.parametrize("value", ALTERED)
@pytest.mark.parametrize(
    "column", "chain sequence hash previous id time caller answer inputs latency_ms".split()
)
def test_a_row_that_cannot_be_read_is_named_and_the_others_are_read(
    tmp_path: Path, auditor: KeyPair, column: str, value: str
) -> None:
    """SQLite takes anything in each column."""
    database = SqlStore(f"sqlite:///{tmp_path / 'audit.sqlite3'}")
    ledger = ledger_of(database)
    ledger.append([[decision(i)] for i in range(3)])
    execute(database, f"UPDATE audit_decisions SET {column} = {ALTERED[value]} WHERE sequence = 2")  # noqa: S608
    *actual, rows = verify(database)
    assert rows == 3
    assert actual
    if not is_of_its_kind(column, value):
        assert f": cannot be read: {column} cannot have been written so" in "\n".join(map(str, actual))
        with pytest.raises(StateUnavailableError, match=r"altered, .*`rationale audit verify`"):
            list(ledger.in_order())
    with contextlib.suppress(StateUnavailableError):  # where it is the end of a chain
        signed(heads(database), auditor.private)
    with contextlib.suppress(StateUnavailableError):
        database.prune("2030")
    ledger.close()


@pytest.mark.parametrize("value", ALTERED)
@pytest.mark.parametrize("column", "number hash previous time caller status detail".split())
def test_an_act_that_cannot_be_read_is_named(tmp_path: Path, column: str, value: str) -> None:
    database = SqlStore(f"sqlite:///{tmp_path / 'audit.sqlite3'}")
    act = AdminAct(caller="ops", address="127.0.0.1", act="PUT", target="/v2/x", status=200, request_id="r")
    for _ in range(3):
        record(database, act)
    number = f"UPDATE audit_acts SET {column} = {ALTERED[value]} WHERE number = 3"  # noqa: S608
    with contextlib.suppress(IntegrityError):  # of the number, which alone has to be one
        execute(database, number)
        *actual, _ = verify_acts(database)
        assert actual
        if not is_of_its_kind(column, value):
            assert f"cannot be read: {column} cannot have been written so" in "\n".join(map(str, actual))
            with pytest.raises(StateUnavailableError, match=r"altered, .*`rationale audit verify`"):
                [open_act(row) for row in database.acts()]
            if column != "number" or value == "a number":  # else it is not the last
                with pytest.raises(StateUnavailableError, match="was altered"):
                    record(database, act)
    database.close()
