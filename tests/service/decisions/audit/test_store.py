"""What every audit store does. To hold another one against it, add it to STORES."""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rationale_service.decisions.audit.evidence.heads import heads
from rationale_service.decisions.audit.evidence.retention import erase
from rationale_service.decisions.audit.evidence.verify import verify
from rationale_service.decisions.audit.ledger import Ledger
from rationale_service.decisions.audit.rows import ChainHead, InputCodec, Row, checkpoint_of
from rationale_service.decisions.audit.stores.sql import SqlStore
from rationale_service.decisions.audit.stores.store import AuditStore, DecisionQuery, DuplicateError
from rationale_service.decisions.audit.trail import RecordedDecision
from tests.service.decisions.audit.conftest import KeyPair, decision, ledger_of
from tests.service.decisions.audit.memory import MemoryStore
from tests.service.decisions.audit.postgres import Postgres
from tests.service.decisions.reviews.test_cases import case_of

OLD, BEFORE = "2024-01-01T00:00:00.000000+00:00", "2024-06"
Make = Callable[[pytest.FixtureRequest, Path], AuditStore]


def sqlite(_: pytest.FixtureRequest, folder: Path) -> AuditStore:
    return SqlStore(folder / "audit.sqlite3")


def postgresql(request: pytest.FixtureRequest, _: Path) -> AuditStore:
    server: Postgres = request.getfixturevalue("server")
    return SqlStore(server.new_schema())


def memory(_: pytest.FixtureRequest, __: Path) -> AuditStore:
    return MemoryStore()


STORES = (sqlite, postgresql, memory)


@pytest.fixture(params=STORES, ids=lambda make: make.__name__)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AuditStore]:
    make: Make = request.param
    with contextlib.closing(make(request, tmp_path)) as store:
        yield store


@pytest.fixture
def sealed(tmp_path: Path) -> InputCodec:
    key = tmp_path / "key"
    key.write_text("k" * 32)
    return InputCodec("sealed", key)


def rows_of(*recorded: RecordedDecision, chain: str = "c", first: int = 1) -> list[Row]:
    """As a ledger appends them, in a chain of this name."""
    store, head, rows = MemoryStore(), ChainHead(chain, first - 1), list[Row]()
    ledger_of(store).append([recorded])
    for item in recorded:
        row = store.read(item.id) or {}
        row, head = head.append({k: v for k, v in row.items() if k not in ("wrapped", "erased", "signature")})
        rows.append(row)
    return rows


def ids(rows: Iterator[Row] | list[Row]) -> list[str]:
    return [row["id"] for row in rows]


def everything(store: AuditStore) -> list[object]:
    return [(chain.name, chain.checkpoint, list(chain.rows)) for chain in store.chains()]


def test_an_empty_one(store: AuditStore) -> None:
    store.probe()
    assert store.read("none") is None
    assert store.find("credit", "shop", "key") == []
    assert list(store.in_order(None, None, None)) == []
    assert list(store.chains()) == []
    assert store.ends() == []
    assert store.prune("2027") == 0
    assert not store.erase("none", OLD, "signature")
    assert everything(store) == []


def test_a_row_is_read_as_it_was_written(store: AuditStore) -> None:
    (first, second) = rows_of(decision(1), decision(2))
    store.append([first, second], {first["id"]: "wrapped"})
    store.close()  # opened again by what comes next
    more = {"erased": None, "signature": None}
    assert store.read(first["id"]) == {**first, "wrapped": "wrapped", **more}
    assert store.read(second["id"]) == {**second, "wrapped": None, **more}
    assert isinstance(first["latency_ms"], float)
    assert json.loads(first["inputs"])["instance"]["home"] == "rent\0 é"


def test_a_request_is_found_in_the_order_of_its_instances(store: AuditStore) -> None:
    store.append(rows_of(*(decision(i, "key", 3 - i) for i in range(4)), decision(4, "another")), {})
    assert ids(store.find("credit", "shop", "key")) == [decision(i).id for i in (3, 2, 1, 0)]
    for other in (("else", "shop", "key"), ("credit", "else", "key"), ("credit", "shop", "else")):
        assert store.find(*other) == []


@pytest.mark.parametrize(
    "twice",
    [
        decision(9, id=decision(1).id),
        decision(9, "key", 0),
    ],
    ids=["id", "key"],
)
def test_what_is_there_already_takes_all_along(store: AuditStore, twice: RecordedDecision) -> None:
    store.append(rows_of(decision(1, "key"), decision(2), decision(3)), {})  # many have no key
    before = everything(store)
    new, repeated = rows_of(decision(8), twice, chain="d")
    for rows in ([new, repeated], [repeated, new]):
        with pytest.raises(DuplicateError):
            store.append(rows, {new["id"]: "wrapped"})
    assert everything(store) == before
    store.append([new], {})
    assert (store.read(new["id"]) or {})["wrapped"] is None


def test_rows_by_time(store: AuditStore) -> None:
    early, late = "2026-11-22T23:59:59.999999+00:00", "2026-11-24T00:00:00.000000+00:00"
    store.append(rows_of(decision(1), decision(2, time=late), decision(3, model="other"), chain="b"), {})
    store.append(rows_of(decision(4, time=early), decision(5, time=decision(1).time), chain="a"), {})

    def numbers(since: str | None = None, until: str | None = None, model: str | None = None) -> list[int]:
        return [int(decision_id, 16) for decision_id in ids(store.in_order(since, until, model))]

    assert numbers() == [4, 5, 1, 3, 2]
    assert numbers(since="2026-11-23") == [5, 1, 3, 2]
    assert numbers(until="2026-11-24") == [4, 5, 1, 3]
    assert numbers("2026-11-23", "2026-11-24", "credit") == [5, 1]
    assert numbers(since=late) == [2]
    assert numbers(until=early) == numbers(model="none") == []


def test_chains_are_those_of_one_moment(store: AuditStore) -> None:
    for i, chain in enumerate("ba"):
        rows = rows_of(decision(10 * i), decision(10 * i + 1), chain=chain)
        store.append(rows, {rows[0]["id"]: "wrapped"})
    reading = store.chains()
    first = next(reading)
    store.append(rows_of(decision(7), chain="c"), {})
    store.append(rows_of(decision(8), chain="b", first=3), {})
    actual = [
        (chain.name, [(row["sequence"], row["wrapped"]) for row in chain.rows])
        for chain in itertools.chain([first], reading)
    ]
    rows_of_each = [(1, "wrapped"), (2, None)]
    assert actual == [("a", rows_of_each), ("b", rows_of_each)]
    assert [chain.name for chain in store.chains()] == ["a", "b", "c"]


def test_ends(store: AuditStore) -> None:
    old, young = rows_of(decision(1, time=OLD), decision(2)), rows_of(decision(3), decision(4), chain="d")
    store.append([*old, *young], {row["id"]: "wrapped" for row in young})
    assert store.erase(young[1]["id"], OLD, "signature")
    assert store.prune(BEFORE) == 1
    first, second = store.ends()
    assert (first.name, first.last and first.last["hash"], first.erased) == ("c", old[1]["hash"], ())
    assert first.checkpoint is not None
    assert checkpoint_of(old[0]).items() <= first.checkpoint.items()
    assert (second.name, second.checkpoint, second.erased) == ("d", None, (2,))
    store.prune("2027")
    store.prune("2027")
    assert [ends.last for ends in store.ends()] == [None, None]


def test_pruning_stops_at_the_first_that_is_not_older(store: AuditStore) -> None:
    kept_since = decision(3).time
    rows = rows_of(decision(1, time=OLD), decision(2, time=OLD), decision(3), decision(4, time=OLD))
    store.append(rows, {row["id"]: "wrapped" for row in rows})
    assert store.erase(rows[1]["id"], OLD, "signature")
    assert store.prune(OLD) == 0
    assert store.prune(kept_since) == 2
    assert store.prune(kept_since) == 0
    ((_, checkpoint, remaining_rows),) = [(c.name, c.checkpoint, list(c.rows)) for c in store.chains()]
    assert ids(remaining_rows) == [rows[2]["id"], rows[3]["id"]]
    assert [row["wrapped"] for row in remaining_rows] == ["wrapped"] * 2
    assert checkpoint is not None
    assert checkpoint_of(rows[1]).items() <= checkpoint.items()
    assert not store.erase(rows[0]["id"], OLD, "signature")  # its key went along


@pytest.mark.parametrize(
    "names",
    [
        ["refer"],
        ["decline"],
        ["decline", "contest"],
        ["refer", "contest", "judged"],
        ["decline", "contest", "corrected to refer"],  # a review that waits for another one
        ["refer", "corrected to refer", "corrected"],
        ["decline", "judged", "contest"],
    ],
    ids="-".join,
)
def test_what_waits_for_a_review_is_what_its_case_says(store: AuditStore, names: list[str]) -> None:
    case, now = case_of(*names), "2026-12-02T12"
    store.append(rows_of(*case.events), {})
    due = [event.review_by or "" for event in case.waiting]
    late = sum(review_by < now for review_by in due)
    assert store.waiting(now) == ({"credit": (len(due), late)} if due else {})
    waiting = store.latest(DecisionQuery(is_open=True))
    assert ids(waiting)[::-1] == [event.id for event in case.waiting]


def test_an_erasure_is_recorded_once(store: AuditStore) -> None:
    (row,) = rows_of(decision(1))
    store.append([row], {row["id"]: "wrapped"})
    assert store.erase(row["id"], OLD, "first")
    assert not store.erase(row["id"], BEFORE, "second")
    actual = store.read(row["id"]) or {}
    assert (actual["wrapped"], actual["erased"], actual["signature"]) == (None, OLD, "first")
    assert actual["hash"] == row["hash"]


def test_one_of_several_threads_writes_a_key(store: AuditStore) -> None:
    store.probe()

    def write(thread: int) -> bool:
        try:
            store.append(rows_of(decision(thread, "key"), chain=f"chain {thread}"), {})
        except DuplicateError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(write, range(8))) == 1
    assert len(store.find("credit", "shop", "key")) == 1


def test_a_trail_of_it_holds_what_was_decided(
    store: AuditStore, sealed: InputCodec, auditor: KeyPair
) -> None:
    """Recorded, found, shown, erased, pruned and verified."""
    old, request = decision(1, time=OLD), [decision(2, "key", 0), decision(3, "key", 1)]
    ledger = Ledger(store, sealed)
    ledger.append([[old], request])
    other = Ledger(store, sealed)
    repeated = [decision(12, "key", 0, request[0].instance), decision(13, "key", 1, request[1].instance)]
    assert [
        [item.id for item in answer] for answer in other.append([repeated]) if isinstance(answer, list)
    ] == [[item.id for item in request]]
    assert ledger.read(old.id).instance == old.instance
    signed = heads(store)
    erase(store, request[0].id, auditor.private)
    assert ledger.read(request[0].id).kept == "erased"
    assert store.prune(BEFORE) == 1
    assert [item.id for item in ledger.in_order()] == [item.id for item in request]
    assert list(verify(store, [*signed, *heads(store)], BEFORE, [auditor.public])) == [2]
