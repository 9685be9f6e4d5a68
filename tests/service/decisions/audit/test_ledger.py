"""Each request is recorded whole and once, in threads and processes, and shown as it was answered."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, text

from rationale.errors import InvalidOptionError
from rationale_service.decisions.audit.evidence.retention import erase
from rationale_service.decisions.audit.evidence.verify import verify
from rationale_service.decisions.audit.ledger import Ledger
from rationale_service.decisions.audit.rows import InputCodec, Row, WrongInstanceError
from rationale_service.decisions.audit.stores.sql import SqlStore
from rationale_service.decisions.audit.stores.tables import decisions
from rationale_service.errors import ConflictError, StateUnavailableError, UnknownResourceError
from tests.service.decisions.audit.conftest import KeyPair, decision, ledger_of
from tests.service.decisions.audit.memory import MemoryStore
from tests.service.decisions.audit.test_verify import execute


def as_json(answer: object) -> object:
    return json.loads(json.dumps(answer))


def count(database: SqlStore) -> int:
    with database.reading() as connection:
        return connection.execute(select(func.count()).select_from(decisions)).scalar_one()


def test_what_was_recorded_is_read_again(ledger: Ledger) -> None:
    batch = [decision(3, "key", 0), decision(2, "key", 1)]
    assert ledger.append([[decision(1)], batch]) == [[decision(1)], batch]
    store = ledger
    for recorded in (decision(1), *batch):
        assert store.read(recorded.id) == recorded
    assert [recorded.id for recorded in store.in_order()] == [decision(i).id for i in (1, 2, 3)]
    assert [
        recorded.id for recorded in store.in_order(since="2026-11-23T10:00:02", until=decision(3).time)
    ] == [decision(2).id]
    assert list(store.in_order(model="another")) == []
    with pytest.raises(UnknownResourceError, match="no decision 'none'"):
        store.read("none")


@pytest.mark.parametrize("end", ["since", "until"])
@pytest.mark.parametrize(
    ("given", "is_time"),
    [
        ("2026", True),
        ("2026-11", True),
        ("2026-11-23T10:00:02.000003+00:00", True),
        ("tomorrow", False),
        ("", False),
        ("2026-11-23 10:00", False),
        ("2026-11-23T10:00:02+01:00", False),  # another place's hour
        ("2026-11-23T10:00:02Z", False),
    ],
)
def test_decisions_are_asked_for_by_times(ledger: Ledger, end: str, given: str, is_time: bool) -> None:
    """Rows are compared by their texts: one in another form would leave rows out, or let all pass."""
    ledger.append([[decision(1)]])
    with contextlib.nullcontext() if is_time else pytest.raises(InvalidOptionError, match="is not a time"):
        is_there = (given < decision(1).time) == (end == "since")
        ends = (given, None) if end == "since" else (None, given)
        assert len(list(ledger.in_order(*ends))) == is_there


def test_a_key_gives_what_was_decided_by_it(ledger: Ledger) -> None:
    batch = [decision(1, "key", 0), decision(2, "key", 1)]
    ledger.append([batch])
    instances = [member.instance or {} for member in batch]
    assert ledger.find("credit", "shop", "key", instances) == batch
    turned = [dict(reversed([*instance.items()])) for instance in instances]
    assert ledger.find("credit", "shop", "key", turned) == batch
    for other in (("credit", "else", "key"), ("else", "shop", "key"), ("credit", "shop", "else")):
        assert ledger.find(*other, instances) == []
    for wrong in (instances[:1], instances[::-1], [instances[0], {**instances[1], "income": 1}]):
        with pytest.raises(ConflictError, match=r"'key'.* other instances"):
            ledger.find("credit", "shop", "key", wrong)


def test_a_key_that_was_there_first(ledger: Ledger, database: SqlStore) -> None:
    """In the same transaction, in an earlier one, and in another process's."""
    mine, repeated, other = (
        decision(1, "k"),
        decision(2, "k", instance=decision(1).instance),
        decision(3, "k"),
    )
    first, second, third = ledger.append([[mine], [repeated], [other]])
    assert [first, second] == [[mine], [mine]]
    assert isinstance(third, ConflictError)
    free = decision(4)
    behind = ledger_of(database).append([[repeated], [free], [other]])
    assert behind[:2] == [[mine], [free]]
    assert isinstance(behind[2], ConflictError)
    assert count(database) == 2
    assert list(verify(database)) == [2]


@pytest.mark.parametrize("writers", [4])
def test_threads_that_race_for_keys(database: SqlStore, writers: int) -> None:
    """In opposite orders, which must not end in a deadlock."""
    keys = [f"key-{i}" for i in range(12)]

    def write(writer: int) -> list[str]:
        ledger = ledger_of(database)
        mine = [decision(i, key, instance={"income": 1.0}, id=f"{writer}-{i}") for i, key in enumerate(keys)]
        ways = mine if writer % 2 else mine[::-1]
        answers: list[Any] = [
            answer
            for half in (ways[:6], ways[6:])
            for answer in ledger.append([[request] for request in half])
        ]
        return sorted(f"{answer[0].idempotency_key} {answer[0].id}" for answer in answers)

    database.probe()
    with ThreadPoolExecutor(writers) as pool:
        answered = list(pool.map(write, range(writers)))
    assert all(answer == answered[0] for answer in answered)
    assert count(database) == len(keys)
    assert list(verify(database)) == [len(keys)]


def test_rows_of_one_transaction_stand_by_their_keys(database: SqlStore) -> None:
    """In every process: of two that insert the same keys, one waits for the other and not both."""
    ledger = ledger_of(database)
    now = decision(0).time
    ledger.append([[decision(i, key, time=now)] for i, key in enumerate(("c", "a", None, "b"))])
    assert [row.idempotency_key for row in ledger.in_order()] == [None, "a", "b", "c"]


PROCESS = """
import sys
from tests.service.decisions.audit.conftest import KeyPair, decision, ledger_of
from rationale_service.decisions.audit.stores.sql import SqlStore
url, name = sys.argv[1:]
ledger = ledger_of(SqlStore(url))
sys.stdin.read()
for i in range(30):
    made = decision(i, f"key-{i}", instance={"income": 1.0}, id=f"{name}-{i}")
    ((answer,),) = ledger.append([[made]])
    print(answer.id)
"""


@pytest.mark.full
def test_processes_that_race_for_keys_and_make_the_tables(url: str, database: SqlStore) -> None:
    command = [sys.executable, "-c", PROCESS, url]
    racing = [
        subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in "ab"
    ]
    answers = [child.communicate("")[0].split() for child in racing]
    assert len(answers[0]) == 30
    assert answers[0] == answers[1]
    assert count(database) == 30
    assert list(verify(database)) == [30]


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text("k" * 44 + "\n")
    return file


def everything(database: SqlStore) -> str:
    """Return what all tables hold."""
    with database.reading() as connection:
        return str([[*connection.execute(select(table))] for table in decisions.metadata.sorted_tables])


def test_a_line_end_is_no_part_of_a_key(database: SqlStore, key_file: Path) -> None:
    recorded = decision(5, "key")
    ledger_of(database, InputCodec("hashed", key_file)).append([[recorded]])
    key_file.write_text(key_file.read_text().strip())
    ledger = ledger_of(database, InputCodec("hashed", key_file))
    assert ledger.read(recorded.id, recorded.instance) == replace(recorded, kept="hashed")


def test_hashed_inputs_are_shown_to_who_has_them(database: SqlStore, key_file: Path) -> None:
    ledger = ledger_of(database, InputCodec("hashed", key_file))
    recorded = decision(5, "key")
    ledger.append([[recorded]])
    assert "1005.0" not in everything(database)  # with its point, which no digest has
    assert "rent" not in everything(database)
    ledger_of(database).append([[decision(7)]])
    assert "1007.0" in everything(database)
    assert ledger.read(recorded.id, recorded.instance) == replace(recorded, kept="hashed")
    assert [each.id for each in ledger.find("credit", "shop", "key", [recorded.instance or {}])] == [
        recorded.id
    ]
    blind = ledger.read(recorded.id)
    assert blind.instance is None
    assert [reason["value"] for reason in blind.answer["reasons"]] == [None, None]
    assert blind.answer["attributions"] == recorded.answer["attributions"]
    with pytest.raises(WrongInstanceError):
        ledger.read(recorded.id, {"income": 1006.0, "home": "rent"})
    with pytest.raises(ConflictError):
        ledger.find("credit", "shop", "key", [{"income": 1}])


def test_sealed_inputs_are_erased_and_the_chain_is_not(
    database: SqlStore, key_file: Path, auditor: KeyPair
) -> None:
    ledger = ledger_of(database, InputCodec("sealed", key_file))
    first, second = decision(5, "key"), decision(6)
    ledger.append([[first], [second]])
    assert "1005.0" not in everything(database)
    assert ledger.read(first.id) == replace(first, kept="sealed")
    assert [each.id for each in ledger.find("credit", "shop", "key", [first.instance or {}])] == [first.id]
    with pytest.raises(ConflictError, match="other instances"):
        ledger.find("credit", "shop", "key", [second.instance or {}])

    erase(database, first.id, auditor.private)
    erased = ledger.read(first.id)
    assert erased.instance is None
    assert erased.kept == "erased"
    assert [reason["value"] for reason in erased.answer["reasons"]] == [None, None]
    assert ledger.read(second.id).instance == second.instance
    assert list(verify(database)) == [2]
    with pytest.raises(ConflictError, match="be shown"):
        ledger.find("credit", "shop", "key", [first.instance or {}])
    with pytest.raises(ConflictError, match="erased already"):
        erase(database, first.id, auditor.private)
    with pytest.raises(UnknownResourceError):
        erase(database, "none", auditor.private)


@pytest.mark.parametrize("erased", [(0,), (1,), (0, 1)])
def test_a_request_with_an_erased_decision_is_not_shown(
    erased: tuple[int, ...], database: SqlStore, key_file: Path, auditor: KeyPair
) -> None:
    ledger = ledger_of(database, InputCodec("sealed", key_file))
    batch = [decision(5, "key", 0), decision(6, "key", 1)]
    ledger.append([batch])
    instances = [each.instance or {} for each in batch]
    assert len(ledger.find("credit", "shop", "key", instances)) == len(batch)
    for place in erased:
        erase(database, batch[place].id, auditor.private)
    with pytest.raises(ConflictError, match="be shown"):
        ledger.find("credit", "shop", "key", instances)


@pytest.mark.parametrize(
    ("form", "moved"),
    [
        ("hashed", ("text",)),  # which has no key beside it
        ("sealed", ("text",)),
        ("sealed", ("wrapped",)),
        ("sealed", ("text", "wrapped")),
    ],
)
def test_inputs_open_under_their_own_id_alone(form: Any, moved: tuple[str, ...], key_file: Path) -> None:
    inputs, instance = InputCodec(form, key_file), {"income": 1}
    mine, others_stored = (
        dict(zip(("text", "wrapped"), inputs.keep(name, instance, ["v"]), strict=True)) for name in "ab"
    )
    assert inputs.show("a", form, **mine, instance=instance) == (instance, ["v"])
    with pytest.raises(InvalidOptionError, match=r"decision a cannot be decrypted"):
        inputs.show("a", form, **{**mine, **{name: others_stored[name] for name in moved}}, instance=instance)


def test_what_is_erased_is_overwritten(tmp_path: Path, key_file: Path, auditor: KeyPair) -> None:
    """In the file and its journal: nothing of the key is left in pages that are free."""
    file = tmp_path / "audit.sqlite3"
    with contextlib.closing(SqlStore(f"sqlite:///{file}")) as database:
        ledger_of(database, InputCodec("sealed", key_file)).append([[decision(i)] for i in range(3)])
        with database.reading() as connection:
            query = text("SELECT wrapped FROM audit_input_keys WHERE id = :id")
            wrapped = str(connection.execute(query, {"id": decision(1).id}).scalar_one()).encode()
        database.forget()
        assert wrapped in file.read_bytes()
        erase(database, decision(1).id, auditor.private)
        assert all(wrapped not in path.read_bytes() for path in tmp_path.glob("audit.sqlite3*"))


def test_plain_inputs_are_not_erased(ledger: Ledger, database: SqlStore, auditor: KeyPair) -> None:
    ledger.append([[decision(1)]])
    with pytest.raises(ConflictError, match=r"plain: .*sealed"):
        erase(database, decision(1).id, auditor.private)


def test_a_key_that_was_tampered_with_is_not_erased(
    database: SqlStore, key_file: Path, auditor: KeyPair
) -> None:
    """Its erasure would hide the one, and leave the other's inputs readable."""
    ledger_of(database, InputCodec("sealed", key_file)).append([[decision(i)] for i in (1, 2, 3)])
    first, second, third = (decision(i).id for i in (1, 2, 3))
    execute(database, "DELETE FROM audit_input_keys WHERE id = :id", id=first)
    execute(database, "DELETE FROM audit_input_keys WHERE id = :id", id=third)
    execute(database, "UPDATE audit_input_keys SET id = :to WHERE id = :id", id=second, to=third)
    with pytest.raises(ConflictError, match="records no erasure"):
        erase(database, first, auditor.private)
    with pytest.raises(ConflictError, match="the key of another decision"):
        erase(database, third, auditor.private)
    assert {each.sequence for each in verify(database) if not isinstance(each, int)} == {1, 2, 3}


def test_another_key_opens_nothing(
    ledger: Ledger, database: SqlStore, key_file: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_text("o" * 44)
    ledger_of(database, InputCodec("sealed", key_file)).append([[decision(5)]])
    with pytest.raises(InvalidOptionError, match="another key"):
        ledger_of(database, InputCodec("plain", other)).read(decision(5).id)
    with pytest.raises(InvalidOptionError, match="RATIONALE_AUDIT_KEY_FILE"):
        ledger.read(decision(5).id)
    assert [row.instance for row in ledger.in_order(with_inputs=False)] == [None]


@pytest.mark.parametrize(
    ("column", "garbage"),
    [
        *(("answer", text) for text in ("else", "", "null", "5", "[1]")),
        *(("inputs", text) for text in ("else", "", "null", "[]", "{}", '{"instance": {}, "values": []}')),
        ("runtime", "else"),
    ],
)
def test_a_row_that_was_altered_is_not_shown(
    database: SqlStore, ledger: Ledger, column: str, garbage: str
) -> None:
    ledger.append([[decision(1)], [decision(2)]])
    execute(database, f"UPDATE audit_decisions SET {column} = :v WHERE sequence = 1", v=garbage)  # noqa: S608
    with pytest.raises(StateUnavailableError, match="altered"):
        ledger.read(decision(1).id)
    assert ledger.read(decision(2).id) == decision(2)


def test_keys_that_are_none(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("secret")
    with pytest.raises(InvalidOptionError, match=r"\b6 bytes.*\b32\b"):
        InputCodec("sealed", short)
    with pytest.raises(InvalidOptionError, match="trail's key"):
        InputCodec("hashed", tmp_path / "missing")
    with pytest.raises(InvalidOptionError, match="need a key"):
        InputCodec("hashed")


@pytest.mark.parametrize("is_written", [True, False], ids=["written", "not written"])
def test_after_a_transaction_of_unknown_result_a_new_chain_begins(is_written: bool) -> None:
    """Its rows may be there: one more in their places would look like tampering."""

    class Cut(MemoryStore):
        is_cut = False

        def append(self, rows: Sequence[Row], keys: Mapping[str, str]) -> None:
            if is_written or not self.is_cut:
                super().append(rows, keys)
            if self.is_cut:
                raise StateUnavailableError("the connection is gone")

    store = Cut()
    ledger = Ledger(store, InputCodec())
    ledger.append([[decision(1)]])
    store.is_cut = True
    with pytest.raises(StateUnavailableError):
        ledger.append([[decision(2)]])
    store.is_cut = False
    ledger.append([[decision(3)], [decision(4)]])
    chains = [(row["chain"], row["sequence"]) for row in store.in_order(None, None, None)]
    assert len({chain for chain, _ in chains}) == 2
    assert len(set(chains)) == len(chains) == 3 + is_written
    assert [number for _, number in chains[-2:]] == [1, 2]
    assert list(verify(store)) == [len(chains)]
