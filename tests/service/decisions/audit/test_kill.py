"""`rationale serve` is killed under load: each decision and review that it answered is in the trail, once."""

import json
import random
import ssl
import threading
import time
from pathlib import Path

import httpx
import pytest

from rationale_service.decisions.audit.evidence.verify import verify
from rationale_service.decisions.audit.ledger import Ledger
from rationale_service.decisions.audit.rows import InputCodec
from rationale_service.decisions.audit.stores.sql import SqlStore
from rationale_service.decisions.audit.trail import RecordedDecision
from tests.service import handmade, patient
from tests.service.child import ready_line, serve, until
from tests.service.decisions.audit.postgres import Postgres

CLIENTS = 8
LOADED_S = 0.5
TIMES, MANY_TIMES = 3, 100
INSTANCES = [dict(zip(handmade.FEATURES, row, strict=True)) for row in handmade.X.tolist()]
HEADER = "Idempotency-Key"
REVIEWS: dict[str, dict[str, object]] = {
    "contest": {"reason": "It is another person's"},
    "review": {"reviewer": "M. Officer", "decision": "decline", "reasons": [{"text": "It is confirmed"}]},
}
_CONTEXT = ssl.create_default_context()  # each client would read all authorities again


class Client:
    """Asks until the gateway is gone; the last request of a life is repeated in the next one, with its key.

    Attributes:
        answered: what it was answered, by key.
        open_key: of the request that was never answered.
        case: first decision of what is reviewed.
    """

    def __init__(self, name: str) -> None:
        self.named, self.asked = name, 0
        self.answered: dict[str, list[dict[str, object]]] = {}
        self.open_key: str | None = None
        self.case = ""

    def live(self, url: str) -> None:
        with httpx.Client(timeout=60, verify=_CONTEXT) as client:
            while True:
                key = self.open_key or self._new_key()
                self.open_key = key
                body = {"instances": [INSTANCES[0], INSTANCES[len(key) % len(INSTANCES)]]}
                try:
                    answer = client.post(f"{url}/v1/models/score:decide", json=body, headers={HEADER: key})
                except httpx.TransportError:
                    return
                assert answer.status_code == 200, answer.text
                assert key not in self.answered
                self.answered[key] = answer.json()["decisions"]
                self.open_key = None

    def live_reviewing(self, url: str) -> None:
        """Contest the first decision of all, or judge it, until the gateway is gone."""
        with httpx.Client(timeout=60, verify=_CONTEXT) as client:
            while True:
                key = self.open_key or self._new_key()
                self.open_key = key
                verb = ("contest", "review")[int(key.rpartition("-")[2]) % 2]
                try:
                    path = f"{url}/v1/decisions/{self.case}:{verb}"
                    answer = client.post(path, json=REVIEWS[verb], headers={HEADER: key})
                except httpx.TransportError:
                    return
                assert answer.status_code == 200, answer.text
                assert key not in self.answered
                self.answered[key] = [answer.json()]
                self.open_key = None

    def _new_key(self) -> str:
        self.asked += 1
        return f"{self.named}-{self.asked}"


@pytest.mark.full
def test_it_is_killed_with_sqlite(tmp_path: Path) -> None:
    killed(tmp_path, f"sqlite:///{tmp_path / 'audit.sqlite3'}", TIMES)


@pytest.mark.full
def test_it_is_killed_with_postgresql(tmp_path: Path, server: Postgres) -> None:
    killed(tmp_path, server.new_schema(), TIMES)


@pytest.mark.slow
def test_it_is_killed_a_hundred_times_with_sqlite(tmp_path: Path) -> None:
    killed(tmp_path, f"sqlite:///{tmp_path / 'audit.sqlite3'}", MANY_TIMES)


@pytest.mark.slow
def test_it_is_killed_a_hundred_times_with_postgresql(tmp_path: Path, server: Postgres) -> None:
    killed(tmp_path, server.new_schema(), MANY_TIMES)


@pytest.mark.full
def test_it_is_killed_while_people_review_with_sqlite(tmp_path: Path) -> None:
    killed(tmp_path, f"sqlite:///{tmp_path / 'audit.sqlite3'}", TIMES, is_reviewing=True)


@pytest.mark.full
def test_it_is_killed_while_people_review_with_postgresql(tmp_path: Path, server: Postgres) -> None:
    killed(tmp_path, server.new_schema(), TIMES, is_reviewing=True)


@pytest.mark.slow
def test_it_is_killed_a_hundred_times_while_people_review_with_sqlite(tmp_path: Path) -> None:
    killed(tmp_path, f"sqlite:///{tmp_path / 'audit.sqlite3'}", MANY_TIMES, is_reviewing=True)


@pytest.mark.slow
def test_it_is_killed_a_hundred_times_while_people_review_with_postgresql(
    tmp_path: Path, server: Postgres
) -> None:
    killed(tmp_path, server.new_schema(), MANY_TIMES, is_reviewing=True)


def killed(folder: Path, url: str, times: int, *, is_reviewing: bool = False) -> None:
    repository = folder / "repository"
    handmade.write_score(repository)
    clients = [Client(f"client-{i}") for i in range(CLIENTS)]
    if is_reviewing:
        with serve("--repository", str(repository), "--port", "0", RATIONALE_AUDIT=url) as gateway:
            address, _ = ready_line(gateway)
            for client in clients:
                body = {"instances": INSTANCES[:1]}
                answer = patient.post(f"{address}/v1/models/score:decide", json=body)
                client.case = answer.json()["decisions"][0]["id"]
    for _ in range(times):
        answer_count = answers(clients)
        with serve("--repository", str(repository), "--port", "0", RATIONALE_AUDIT=url) as gateway:
            address, _ = ready_line(gateway)
            living = [
                threading.Thread(
                    target=client.live_reviewing if is_reviewing else client.live, args=(address,)
                )
                for client in clients
            ]
            for thread in living:
                thread.start()
            until(lambda answer_count=answer_count: answers(clients) > answer_count + CLIENTS)
            time.sleep(random.uniform(0, LOADED_S))  # noqa: S311
            gateway.kill()
            for thread in living:
                thread.join()
    check(SqlStore(url), clients, times, [client.case for client in clients] if is_reviewing else None)


def answers(clients: list[Client]) -> int:
    return sum(len(client.answered) for client in clients)


def check(database: SqlStore, clients: list[Client], times: int, cases: list[str] | None) -> None:
    recorded: dict[str, list[RecordedDecision]] = {}
    ledger, moves = Ledger(database, InputCodec()), 0
    for decision in ledger.in_order():
        if cases is not None and decision.id in cases:
            events = len(ledger.case_of(decision).events)
            assert events > 1  # the decision, and reviews of it
            moves += events
            continue
        recorded.setdefault(decision.idempotency_key or "", []).append(decision)
    assert cases is None or moves > times * len(cases)
    actual = list(verify(database))
    database.close()
    answered = {key: decisions for client in clients for key, decisions in client.answered.items()}
    unanswered = {client.open_key for client in clients}
    assert len(answered) > times * CLIENTS
    for key, decisions in answered.items():
        rows = sorted(recorded[key], key=lambda decision: decision.place)
        assert [decision.place for decision in rows] == ([0, 1] if cases is None else [0])
        assert json.loads(json.dumps([decision.answer for decision in rows])) == decisions
    for key in recorded.keys() - answered.keys():
        assert key in unanswered
        assert len(recorded[key]) == (2 if cases is None else 1)
    assert actual[-1] == sum(map(len, recorded.values())) + len(cases or ())
    assert all(isinstance(each, int) for each in actual)
    print(f"{len(answered)} requests answered, {len(recorded)} recorded")
