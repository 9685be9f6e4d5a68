"""What one of several processes makes, or is told, all of them answer by."""

import io
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.service import patient
from tests.service.child import Child, ready_line, serve, until
from tests.service.explaining import write_plain
from tests.service.references.request_time import R, X, assert_explains, net, tensor
from tests.service.server.test_workers import kill, workers_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("follower")
    net().write(folder / "models", "net")
    return folder


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[tuple[Child, str, str]]:
    """With the address of all, and of any that takes up an administrator's call."""
    with serve("--repository", str(folder / "models"), "--port", "0", "--workers", "2") as child:
        url, _ = ready_line(child)
        yield child, url, url
        child.terminate()
        _, output = child.communicate()
        assert (
            "served from now on: net_explain_" not in output
        )  # as an entry of the repository, which is always loaded


def by_all(ask: Callable[[], httpx.Response]) -> set[int]:
    """The statuses of enough questions, each on a connection of its own, that both workers have some."""
    return {ask().status_code for _ in range(24)}


def explain(url: str, *more: dict[str, object], **parameters: str) -> httpx.Response:
    body = {"inputs": [tensor("x", X), *more], "parameters": parameters}
    return patient.post(f"{url}/v2/models/net/explain", json=body)


@pytest.mark.full
def test_an_explainer(gateway: tuple[Child, str, str]) -> None:
    _, url, admin = gateway
    path = f"{admin}/v2/models/net/explainers/own"
    assert patient.put(path, json={"method": "gradient"}).status_code == 202
    until(lambda: patient.get(path).json()["state"] == "ready")
    assert by_all(lambda: explain(url, explainer="own")) == {200}
    assert patient.delete(path).status_code == 204
    assert by_all(lambda: explain(url, explainer="own")) == {404}


@pytest.mark.full
def test_a_reference_set(gateway: tuple[Child, str, str]) -> None:
    child, url, admin = gateway
    assert by_all(lambda: explain(url, reference_set="own")) == {404}
    file = io.BytesIO()
    np.savez(file, x=R)
    upload: dict[str, Any] = {"content": file.getvalue(), "headers": {"content-type": "application/x-npz"}}
    assert patient.put(f"{admin}/v2/reference-sets/own?model=net", **upload).status_code == 201
    assert by_all(lambda: explain(url, reference_set="own")) == {200}
    assert_explains(explain(url, reference_set="own"), R)
    for killed in workers_of(child):  # who comes in its place knows it, too
        kill(killed)
        until(lambda: len(workers_of(child)) == 2)
        until(lambda: _answers(admin))
        assert by_all(lambda: explain(url, reference_set="own")) == {200}
    assert patient.delete(f"{admin}/v2/reference-sets/own").status_code == 204
    assert by_all(lambda: explain(url, reference_set="own")) == {404}


@pytest.mark.full
def test_references_of_a_request(gateway: tuple[Child, str, str]) -> None:
    """The first to come has what answers them made, by one process for all."""
    _, url, _ = gateway
    assert by_all(lambda: explain(url, tensor("x_references", R))) == {200}
    assert_explains(explain(url, tensor("x_references", R)), R)


@pytest.mark.full
def test_entries_of_the_repository(gateway: tuple[Child, str, str], folder: Path) -> None:
    child, url, admin = gateway
    models = f"{admin}/v2/repository/models"
    assert patient.post(f"{models}/net_explain/unload").status_code == 200
    assert by_all(lambda: explain(url)) == {503}
    kill(workers_of(child)[1])
    until(lambda: len(workers_of(child)) == 2)
    assert by_all(lambda: explain(url)) == {503}
    assert patient.post(f"{models}/net_explain/load").status_code == 200
    assert by_all(lambda: explain(url)) == {200}
    write_plain(folder / "models", "new")
    child.send_signal(signal.SIGHUP)
    until(lambda: by_all(lambda: patient.get(f"{url}/v2/models/new")) == {200})


def _answers(url: str) -> bool:
    try:
        return patient.get(f"{url}/v2/health/ready").status_code == 200
    except httpx.ConnectError:
        return False
