"""Bytes that are held at one time are bounded, and given back."""

import math
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

from rationale_service.engine.large_requests import SMALL, MemoryLimit
from rationale_service.errors import QueueFullError
from rationale_service.settings import Settings
from tests.service.conftest import gateway
from tests.service.handmade import X

ROWS = {"x": np.zeros((5, 4), np.float32)}  # 80 bytes
TEXTS = {"t": np.array([b"a" * 100, b"b" * 60], dtype=np.object_)}


def test_the_sum_is_bounded_and_given_back() -> None:
    budget = MemoryLimit(200)
    with budget.reserve(ROWS), budget.reserve(ROWS):
        with pytest.raises(QueueFullError, match=r"160 bytes .* 200"), budget.reserve(ROWS):
            pass
        budget.check(40)
    with budget.reserve(ROWS), budget.reserve(ROWS):
        pass


def test_one_large_request_alone_is_let_in() -> None:
    budget = MemoryLimit(10)
    with budget.reserve(ROWS), pytest.raises(QueueFullError):
        budget.check(1)
    budget.check(1)


def test_one_large_request_that_grows_is_let_in_while_it_is_alone() -> None:
    budget = MemoryLimit(2 * SMALL)
    with budget.growing() as grow:
        for _ in range(4):
            grow(SMALL)
        with budget.growing() as another, pytest.raises(QueueFullError):
            another(1)
    with budget.growing() as another, budget.growing() as grow:
        another(1)
        with pytest.raises(QueueFullError):
            grow(2 * SMALL)


def test_texts_count_with_their_length() -> None:
    budget = MemoryLimit(160)
    with budget.reserve(TEXTS), pytest.raises(QueueFullError):
        budget.check(0)


def test_a_quarter_is_kept_for_small_requests() -> None:
    budget = MemoryLimit(8 * SMALL)
    with budget.growing() as large, budget.growing() as another, budget.growing() as small:
        large(3 * SMALL)
        another(3 * SMALL)
        with pytest.raises(QueueFullError, match=f"{6 * SMALL} bytes .* {6 * SMALL}"):
            large(1)
        small(SMALL)
        with budget.reserve(ROWS):
            pass
        with pytest.raises(QueueFullError):
            small(1)  # no longer a small one


async def test_an_answer_counts_with_its_inputs(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserved, reserve = list[int](), MemoryLimit.reserve_bytes

    def noted(limit: MemoryLimit, size: int) -> AbstractContextManager[None]:
        reserved.append(size)
        return reserve(limit, size)

    monkeypatch.setattr(MemoryLimit, "reserve_bytes", noted)
    tensor = {"name": "x", "shape": [2, 4], "datatype": "FP32", "data": X[:2].tolist()}
    async with gateway(Settings(repository=repository)) as client:
        answer = await client.post("/v2/models/score/explain", json={"inputs": [tensor]})
    sizes = [
        math.prod(output["shape"]) * int(output["datatype"][2:]) // 8 for output in answer.json()["outputs"]
    ]
    assert reserved[0] == X[:2].nbytes + sum(sizes)  # before it runs; what is written counts again


async def test_a_request_is_refused_before_its_body_is_read_if_no_byte_is_free(repository: Path) -> None:
    async with gateway(Settings(repository=repository, max_queue_bytes=4 * SMALL)) as client:
        plane = client._transport.app.state.gateway.plane  # type: ignore[attr-defined]
        entry, deadline_s = plane.repository.entry("score"), plane.deadline()
        plane.budget.take(4 * SMALL)
        plane.admit(entry, deadline_s)  # exactly full: what needs nothing has room
        plane.budget.give_back(4 * SMALL)
        plane.budget.take(4 * SMALL + 1)
        with pytest.raises(QueueFullError, match=f"{4 * SMALL + 1} bytes"):
            plane.admit(entry, deadline_s)
        plane.budget.give_back(4 * SMALL + 1)
        plane.admit(entry, deadline_s)
