"""Three gateways on one PostgreSQL and one S3: what one makes, all serve; whoever dies is replaced."""

import contextlib
import io
import json
import os
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rationale_service.decisions.audit.evidence.verify import verify
from rationale_service.decisions.audit.ledger import Ledger
from rationale_service.decisions.audit.rows import InputCodec
from rationale_service.decisions.audit.stores.sql import SqlStore
from rationale_service.decisions.audit.trail import RecordedDecision
from tests.service import handmade, patient
from tests.service.child import until
from tests.service.decisions.audit.postgres import Postgres
from tests.service.references.request_time import OTHER, R, X, assert_explains, expected, net, tensor
from tests.service.state.cluster import BUCKET, S3, Cluster, cluster, dump

INSTANCES = [dict(zip(handmade.FEATURES, row, strict=True)) for row in handmade.X.tolist()]
_CONTEXT = ssl.create_default_context()


@contextlib.contextmanager
def replicas(count: int, folder: Path, server: Postgres, storage: S3) -> Iterator[Cluster]:
    net().write(folder / "models", "net")
    handmade.write_score(folder / "models")
    with cluster(folder, server, storage) as actual:
        for number in range(count):
            actual.start(number)
        yield actual


@pytest.fixture
def alone(tmp_path: Path, server: Postgres, storage: S3) -> Iterator[Cluster]:
    """One replica."""
    with replicas(1, tmp_path, server, storage) as actual:
        yield actual


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, server: Postgres, storage: S3) -> Iterator[Cluster]:
    with replicas(3, tmp_path_factory.mktemp("three"), server, storage) as actual:
        yield actual


@pytest.fixture
def three(running: Cluster) -> Iterator[Cluster]:
    """Three replicas, which all tests share: each leaves them running, and its explainer is deleted here."""
    yield running
    patient.delete(f"{running.urls[0]}/v2/models/net/explainers/mine")
    by_all(running, lambda url: explain(url, explainer="mine").status_code == 404)


def explain(url: str, *more: dict[str, object], **parameters: str) -> httpx.Response:
    body = {"inputs": [tensor("x", X), *more], "parameters": parameters}
    return patient.post(f"{url}/v2/models/net/explain", json=body)


def put_set(url: str, name: str, rows: np.ndarray) -> httpx.Response:
    file = io.BytesIO()
    np.savez(file, x=rows)
    headers = {"content-type": "application/x-npz"}
    return patient.put(f"{url}/v2/reference-sets/{name}?model=net", content=file.getvalue(), headers=headers)


def by_all(three: Cluster, holds: Callable[[str], bool]) -> None:
    """It comes to hold for every replica; prints after how long, which is 2 s at most on a quiet machine."""
    began_s = time.monotonic()
    for url in three.urls:
        until(partial(holds, url))
    print(f"by all after {time.monotonic() - began_s:.2f} s")


def test_what_one_makes_all_serve_and_what_one_deletes_is_nowhere(three: Cluster, storage: S3) -> None:
    first, second, third = three.urls
    compiles = _compiles(three)
    assert put_set(first, "own", R).status_code == 201
    by_all(three, lambda url: patient.get(f"{url}/v2/reference-sets/own").status_code == 200)
    path = "v2/models/net/explainers/mine"
    spec = {"method": "deepshap", "reference_set": "own", "targets": "all"}
    assert patient.put(f"{second}/{path}", json=spec).status_code == 202
    assert patient.settled(f"{second}/{path}")["state"] == "ready"
    by_all(three, lambda url: explain(url, explainer="mine").status_code == 200)
    for url in three.urls:
        assert_explains(explain(url, explainer="mine"), R)
        assert patient.get(f"{url}/{path}").json()["serving"]["digest"]
    assert_explains(explain(third, reference_set="own"), R)  # made when the set was put, by one of them
    stored_objects = storage.objects_of(
        three.folder.name
    )  # others in moto are of other tests of this process
    assert {name.split("/")[1] for name in stored_objects} == {"artifacts", "references"}
    compiles = _compiles(three) - compiles
    assert compiles == 2  # this explainer, and the one that explains by default with the set

    row = R[0].tobytes()
    assert _holding(three, storage, row) != []
    assert patient.delete(f"{third}/v2/reference-sets/own?force=true").status_code == 204
    by_all(three, lambda url: explain(url, explainer="mine").status_code == 404)
    by_all(three, lambda url: patient.get(f"{url}/v2/reference-sets/own").status_code == 404)
    until(lambda: _holding(three, storage, row) == [])
    assert storage.objects_of(three.folder.name) == []


def _compiles(three: Cluster) -> float:
    return sum(
        float(line.split()[1])
        for url in three.urls
        for line in patient.get(f"{url}/metrics").text.splitlines()
        if line.startswith('rationale_compile_duration_seconds_count{outcome="ready"}')
    )


def _holding(three: Cluster, storage: S3, row: bytes) -> list[str]:
    """Files, objects and tables that hold a row of the references."""
    files = [p for p in three.folder.rglob("*") if p.is_file() and row in p.read_bytes()]
    objects = [name for name, content in storage.objects().items() if row in content]
    return [*map(str, files), *objects] + ["database"] * (row in dump(three.database))


@pytest.mark.full
def test_a_compile_whose_process_dies_is_finished_by_another(three: Cluster) -> None:
    path = "v2/models/net/explainers/mine"
    (_, first), (_, second) = three.running[0], three.running[1]
    assert patient.put(f"{first}/{path}", json={"method": "gradient", "targets": "all"}).status_code == 202
    three.kill(0)
    status = patient.settled(f"{second}/{path}")
    assert (status["state"], status["error"]) == ("ready", None)
    by_all(three, lambda url: explain(url, explainer="mine").status_code == 200)
    restarted = three.start(0)
    assert explain(restarted, explainer="mine").status_code == 200


@pytest.mark.full
def test_what_was_left_behind_goes_at_the_next_start(alone: Cluster, storage: S3) -> None:
    """Of a process that was killed before its record, and of a machine that was away at a deletion."""
    path = "v2/models/net/explainers/mine"
    assert patient.put(f"{alone.urls[0]}/{path}", json={"method": "gradient"}).status_code == 202
    assert patient.settled(f"{alone.urls[0]}/{path}")["state"] == "ready"
    alone.stop(0)
    (name,) = storage.objects_of(alone.folder.name)
    folder = name.rpartition("/")[0]
    storage.client().put_object(Bucket=BUCKET, Key=f"{folder}/left.tar", Body=b"rows of somebody")
    leftover = alone.copies(0) / "net_explain_left"
    leftover.mkdir()
    os.utime(leftover, (0, 0))
    url = alone.start(0)
    assert storage.objects_of(alone.folder.name) == [name]
    assert not leftover.exists()
    assert explain(url, explainer="mine").status_code == 200


@pytest.mark.full
def test_a_decision_s_key_holds_for_all(three: Cluster) -> None:
    headers = {"Idempotency-Key": "application-1"}
    answers = [
        patient.post(f"{url}/v1/models/score:decide", json={"instances": INSTANCES[:1]}, headers=headers)
        for url in three.urls
    ]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["decisions"][0]["id"] for answer in answers}) == 1
    assert len(_recorded(three)["application-1"]) == 1


@pytest.mark.full
def test_what_is_unloaded_is_unloaded_by_all(three: Cluster) -> None:
    models = "v2/repository/models/score"
    assert patient.post(f"{three.urls[0]}/{models}/unload").status_code == 200
    by_all(three, lambda url: patient.get(f"{url}/v2/models/score/ready").status_code != 200)
    three.stop(2)
    assert patient.get(f"{three.start(2)}/v2/models/score/ready").status_code != 200
    assert patient.post(f"{three.urls[1]}/{models}/load").status_code == 200
    by_all(three, lambda url: patient.get(f"{url}/v2/models/score/ready").status_code == 200)


@pytest.mark.full
def test_killed_under_load(three: Cluster) -> None:
    killed(three, 3)


@pytest.mark.slow
def test_killed_fifty_times_under_load(three: Cluster) -> None:
    killed(three, 50)


@pytest.mark.full
def test_without_the_database_requests_are_answered_and_nothing_is_made(
    three: Cluster, server: Postgres
) -> None:
    path = "v2/models/net/explainers/mine"
    server.stop()
    try:
        for url in three.urls:
            assert explain(url).status_code == 200
            answer = patient.put(f"{url}/{path}", json={"method": "gradient"})
            assert answer.status_code == 503
            assert "not available" in answer.json()["detail"]
            assert "secret" not in answer.text
    finally:
        server.start()
    until(
        lambda: patient.put(f"{three.urls[0]}/{path}", json={"method": "gradient"}).status_code in (200, 202)
    )
    assert patient.settled(f"{three.urls[0]}/{path}")["state"] == "ready"
    by_all(three, lambda url: explain(url, explainer="mine").status_code == 200)


@pytest.mark.full
def test_a_replica_starts_without_the_database(three: Cluster, server: Postgres) -> None:
    """It answers by the models of its repository, and by explainers when the database is there."""
    path = "v2/models/net/explainers/mine"
    assert patient.put(f"{three.urls[0]}/{path}", json={"method": "gradient"}).status_code == 202
    assert patient.settled(f"{three.urls[0]}/{path}")["state"] == "ready"
    three.stop(2)
    server.stop()
    try:
        url = three.start(2)
        assert explain(url).status_code == 200
        assert explain(url, explainer="mine").status_code == 404
    finally:
        server.start()
    until(lambda: explain(url, explainer="mine").status_code == 200)


class ClusterCaller:
    """Asks whoever is there for decisions and explanations; a decision that was lost is asked for again.

    Attributes:
        answered: decisions, by key.
        fault: the first answer that was wrong.
    """

    def __init__(self, name: str, three: Cluster) -> None:
        self.name, self._three, self.asked, self.explained = name, three, 0, 0
        self.answered: dict[str, Any] = {}
        self.fault: str | None = None
        self.ending = threading.Event()
        self._wanted = {"a": expected(R), "b": expected(OTHER)}

    def live(self) -> None:
        draw = random.Random(self.name)  # noqa: S311
        with httpx.Client(timeout=60, verify=_CONTEXT) as client:
            while not self.ending.is_set() and self.fault is None:
                self.asked += 1
                self._decide(client, draw)
                self._explain(client, draw)

    def _decide(self, client: httpx.Client, draw: random.Random) -> None:
        key = f"{self.name}-{self.asked}"
        body = {"instances": [INSTANCES[0], INSTANCES[self.asked % len(INSTANCES)]]}
        while key not in self.answered and self.fault is None:
            try:
                url = draw.choice(self._three.urls)
                answer = client.post(
                    f"{url}/v1/models/score:decide", json=body, headers={"Idempotency-Key": key}
                )
            except (httpx.TransportError, IndexError):
                time.sleep(0.02)
                continue
            if answer.status_code == 200:
                self.answered[key] = answer.json()["decisions"]
            elif answer.status_code not in (429, 503, 504):
                self.fault = answer.text

    def _explain(self, client: httpx.Client, draw: random.Random) -> None:
        """By a set that comes and goes: answered with all of one content, or refused."""
        body = {"inputs": [tensor("x", X)], "parameters": {"reference_set": "moving"}}
        try:
            answer = client.post(f"{draw.choice(self._three.urls)}/v2/models/net/explain", json=body)
        except (httpx.TransportError, IndexError):
            return
        if answer.status_code != 200:
            if answer.status_code not in (404, 429, 503, 504):
                self.fault = answer.text
            return
        outputs = {o["name"]: np.reshape(o["data"], o["shape"]) for o in answer.json()["outputs"]}
        near = [
            np.allclose(outputs["x_attributions"], expected["x_attributions"], rtol=1e-4, atol=1e-5)
            for expected in self._wanted.values()
        ]
        self.explained += 1
        if not any(near):
            self.fault = "an explanation by neither of the sets"


def killed(three: Cluster, times: int) -> None:
    """Kill random replicas while decisions are made, and a reference set changes its content."""
    draw = random.Random(5)  # noqa: S311
    callers = [ClusterCaller(f"caller-{i}-of-{times}", three) for i in range(4)]
    threads = [threading.Thread(target=caller.live) for caller in callers]
    for thread in threads:
        thread.start()
    try:
        for turn in range(times):
            url = draw.choice(three.urls)
            status = put_set(url, "moving", R if turn % 2 else OTHER)
            assert status.status_code in (200, 201, 503), status.text
            time.sleep(draw.uniform(0, 1.5))
            number = draw.choice([*three.running])
            three.kill(number)
            three.start(number)
    finally:
        for caller in callers:
            caller.ending.set()
        for thread in threads:
            thread.join()
    assert [caller.fault for caller in callers] == [None] * 4
    recorded = {key: rows for key, rows in _recorded(three).items() if f"-of-{times}-" in key}
    answered = {key: decisions for caller in callers for key, decisions in caller.answered.items()}
    assert len(answered) > 10 * times
    assert recorded.keys() == answered.keys()
    for key, decisions in answered.items():
        rows = sorted(recorded[key], key=lambda decision: decision.place)
        assert [decision.place for decision in rows] == [0, 1]
        assert json.loads(json.dumps([decision.answer for decision in rows])) == decisions
    print(f"{times} kills, {len(answered)} requests decided, {sum(c.explained for c in callers)} explained")


def _recorded(three: Cluster) -> dict[str, list[RecordedDecision]]:
    """What the trail holds, by key; its chains are whole."""
    database = SqlStore(three.database)
    collected: dict[str, list[RecordedDecision]] = {}
    for decision in Ledger(database, InputCodec()).in_order():
        collected.setdefault(decision.idempotency_key or "", []).append(decision)
    assert all(isinstance(each, int) for each in verify(database))
    database.close()
    return collected
