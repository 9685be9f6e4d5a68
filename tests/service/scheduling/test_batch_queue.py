"""The batch queue: each caller gets its own rows, and no caller can harm another."""

import asyncio
import dataclasses
import functools
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from rationale_service.engine.scheduling.batch_queue import BatchQueue, Compose
from rationale_service.engine.scheduling.cpu_slots import CpuSlots
from rationale_service.errors import (
    InvalidInputError,
    ModelFailedError,
    NotReadyError,
    QueueFullError,
)
from rationale_service.repository.entry import Entry
from rationale_service.tensors import Tensors
from tests.service.handmade import spec
from tests.service.own_time import skipping

ENTRY = Entry(
    name="double",
    version="1",
    model_path=Path("unused"),
    inputs=(spec("x", "FP32", -1),),
    outputs=(spec("y", "FP32", -1), spec("z", "FP32", -1)),
    max_batch_size=4,
    batching=True,
)


@pytest_asyncio.fixture(autouse=True)
async def seconds_that_take_no_time() -> AsyncIterator[None]:
    with skipping():
        yield


class Doubler:
    """y = 2x, z = −x; remembers its batches, holds them back until `gate` opens, refuses 13."""

    def __init__(self) -> None:
        self.batches: list[list[float]] = []
        self.wanted: list[Sequence[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, _: int, compose: Compose) -> Tensors | None:
        joined = compose()
        return None if joined is None else await self.double(*joined)

    async def double(self, inputs: Tensors, outputs: Sequence[str]) -> Tensors:
        x = inputs["x"]
        self.batches.append(x[:, 0].tolist())
        self.wanted.append(list(outputs))
        await self.gate.wait()
        if 13 in x:
            raise InvalidInputError("13 brings bad luck")
        return {name: {"y": 2 * x, "z": -x}[name] for name in outputs}


def rows(*values: float, width: int = 2) -> Tensors:
    return {"x": np.repeat(np.array(values, np.float32)[:, None], width, axis=1)}


def queue_of(run: Doubler, max_size: int = 100, **changes: Any) -> BatchQueue:
    return BatchQueue(dataclasses.replace(ENTRY, **changes), run, max_size)


async def test_concurrent_requests_share_a_batch_and_get_their_own_rows() -> None:
    run = Doubler()
    queue = queue_of(run, max_queue_delay_s=5)
    batches = [rows(1), rows(2, 3), rows(4)]
    answers = await asyncio.gather(*(queue.submit(inputs, ["y"]) for inputs in batches))
    for inputs, answer in zip(batches, answers, strict=True):
        np.testing.assert_array_equal(answer["y"], 2 * inputs["x"])
    assert run.batches == [[1, 2, 3, 4]]  # full, so it left before its delay
    await queue.close()


async def test_each_caller_gets_the_outputs_it_asked_for() -> None:
    run = Doubler()
    queue = queue_of(run, max_queue_delay_s=0.05)
    first, second = await asyncio.gather(queue.submit(rows(1), ["y"]), queue.submit(rows(2), ["z", "y"]))
    assert (list(first), list(second)) == (["y"], ["z", "y"])
    np.testing.assert_array_equal(second["z"], [[-2, -2]])
    assert run.wanted == [["y", "z"]]
    await queue.close()


async def test_a_request_that_comes_alone_does_not_wait_for_company() -> None:
    queue = queue_of(Doubler(), max_queue_delay_s=60)
    for i in range(5):
        answer = await asyncio.wait_for(queue.submit(rows(i), ["y"]), 5)
        np.testing.assert_array_equal(answer["y"], [[2 * i, 2 * i]])
    await queue.close()


async def test_where_requests_come_in_company_one_waits_for_the_delay() -> None:
    queue = queue_of(Doubler(), max_queue_delay_s=0.05)
    for _ in range(3):
        await asyncio.gather(*(queue.submit(rows(i), ["y"]) for i in range(3)))
    start = asyncio.get_running_loop().time()
    await queue.submit(rows(1), ["y"])
    assert asyncio.get_running_loop().time() - start == pytest.approx(0.05)
    await queue.close()


@pytest.mark.parametrize(("count", "waits_s"), [(2, 60), (3, 60), (4, 0), (8, 0)])
async def test_a_batch_that_is_full_waits_for_no_more(count: int, waits_s: float) -> None:
    """Of at most four rows, among requests that come in company."""
    queue = queue_of(Doubler(), max_queue_delay_s=60)
    for _ in range(3):
        await asyncio.gather(*(queue.submit(rows(i), ["y"]) for i in range(4)))
    start = asyncio.get_running_loop().time()
    await asyncio.gather(*(queue.submit(rows(i), ["y"]) for i in range(count)))
    assert asyncio.get_running_loop().time() - start == pytest.approx(waits_s, abs=0.5)
    await queue.close()


async def test_batches_never_exceed_the_limit_and_keep_order() -> None:
    run = Doubler()
    queue = queue_of(run)
    run.gate.clear()
    waiting = [asyncio.create_task(queue.submit(rows(*range(i * 3, i * 3 + 3)), ["y"])) for i in range(4)]
    await asyncio.sleep(0.01)
    run.gate.set()
    answers = await asyncio.gather(*waiting)
    assert run.batches == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    np.testing.assert_array_equal(answers[3]["y"][:, 0], [18, 20, 22])
    await queue.close()


async def test_other_shapes_are_not_mixed() -> None:
    run = Doubler()
    queue = queue_of(run, max_queue_delay_s=0.02)
    narrow, wide, narrow_too = await asyncio.gather(
        *(queue.submit(rows(i, width=width), ["y"]) for i, width in ((1, 2), (2, 3), (3, 2)))
    )
    assert run.batches == [[1, 3], [2]]
    assert (narrow["y"].shape, wide["y"].shape, narrow_too["y"].shape) == ((1, 2), (1, 3), (1, 2))
    np.testing.assert_array_equal(narrow_too["y"], [[6, 6]])
    await queue.close()


async def test_without_dynamic_batching_requests_run_alone() -> None:
    run = Doubler()
    queue = queue_of(run, batching=False, max_queue_delay_s=5)
    await asyncio.gather(*(queue.submit(rows(i), ["y"]) for i in range(3)))
    assert run.batches == [[0], [1], [2]]
    await queue.close()


async def test_one_bad_request_does_not_spoil_its_mates() -> None:
    run = Doubler()
    queue = queue_of(run, max_queue_delay_s=0.05)
    answers: list[Any] = await asyncio.gather(
        *(queue.submit(rows(i), ["y"]) for i in (1, 13, 3)), return_exceptions=True
    )
    good, bad, other = answers
    assert isinstance(bad, InvalidInputError)
    np.testing.assert_array_equal(good["y"], [[2, 2]])
    np.testing.assert_array_equal(other["y"], [[6, 6]])
    assert run.batches == [[1, 13, 3], [1], [13], [3]]
    await queue.close()


async def test_an_answer_with_too_few_rows_is_refused() -> None:
    async def collapse(_: int, compose: Compose) -> Tensors | None:
        joined = compose()
        return joined and {"y": joined[0]["x"].sum(0, keepdims=True)}

    queue = BatchQueue(ENTRY, collapse, 10)
    with pytest.raises(ModelFailedError, match="mixes the rows"):
        await queue.submit(rows(1, 2), ["y"])
    await queue.close()


async def test_a_waiter_that_leaves_the_queue_frees_its_place() -> None:
    run = Doubler()
    queue = queue_of(run, max_size=2)
    run.gate.clear()
    running = asyncio.create_task(queue.submit(rows(1), ["y"]))
    await asyncio.sleep(0.01)
    leaves, stays = (asyncio.create_task(queue.submit(rows(i), ["y"])) for i in (2, 3))
    await asyncio.sleep(0.01)
    leaves.cancel()
    await asyncio.sleep(0.01)
    newcomer = asyncio.create_task(queue.submit(rows(4), ["y"]))
    run.gate.set()
    answers = await asyncio.gather(running, stays, newcomer)
    assert [answer["y"][0, 0] for answer in answers] == [2, 6, 8]
    assert run.batches == [[1], [3, 4]]
    assert leaves.cancelled()
    await queue.close()


async def test_a_waiter_that_leaves_a_running_batch_does_not_hang_its_mates() -> None:
    run = Doubler()
    queue = queue_of(run)
    run.gate.clear()
    leaves, stays = (asyncio.create_task(queue.submit(rows(i), ["y"])) for i in (1, 2))
    await asyncio.sleep(0.1)
    assert run.batches == [[1, 2]]
    leaves.cancel()
    await asyncio.sleep(0)
    run.gate.set()
    np.testing.assert_array_equal((await stays)["y"], [[4, 4]])
    np.testing.assert_array_equal((await queue.submit(rows(5), ["y"]))["y"], [[10, 10]])
    await queue.close()


async def test_a_full_queue_refuses() -> None:
    run = Doubler()
    queue = queue_of(run, max_size=2)
    run.gate.clear()
    running = asyncio.create_task(queue.submit(rows(0), ["y"]))
    await asyncio.sleep(0.01)
    waiting = [asyncio.create_task(queue.submit(rows(i), ["y"])) for i in (1, 2)]
    await asyncio.sleep(0.01)
    with pytest.raises(QueueFullError, match="2 requests for 'double' are waiting"):
        await queue.submit(rows(3), ["y"])
    run.gate.set()
    answers = await asyncio.gather(running, *waiting)
    assert [answer["y"][0, 0] for answer in answers] == [0, 2, 4]
    await queue.close()


async def test_instances_run_side_by_side() -> None:
    run = Doubler()
    queue = queue_of(run, instances=2, batching=False)
    run.gate.clear()
    waiting = [asyncio.create_task(queue.submit(rows(i), ["y"])) for i in range(3)]
    await asyncio.sleep(0.01)
    assert run.batches == [[0], [1]]
    run.gate.set()
    assert [answer["y"][0, 0] for answer in await asyncio.gather(*waiting)] == [0, 2, 4]
    await queue.close()


async def test_free_instances_share_what_waits() -> None:
    run = Doubler()
    queue = queue_of(run, instances=2, max_batch_size=8)
    run.gate.clear()
    waiting = [asyncio.create_task(queue.submit(rows(i), ["y"])) for i in range(7)]
    await asyncio.sleep(0.01)
    assert run.batches == [[0, 1, 2, 3], [4, 5, 6]]
    run.gate.set()
    await asyncio.gather(*waiting)
    await queue.close()


async def test_a_busy_instance_gets_no_share() -> None:
    run = Doubler()
    queue = queue_of(run, instances=2, max_batch_size=8)
    run.gate.clear()
    first = asyncio.create_task(queue.submit(rows(0), ["y"]))
    await asyncio.sleep(0.01)
    waiting = [asyncio.create_task(queue.submit(rows(i), ["y"])) for i in range(1, 6)]
    await asyncio.sleep(0.01)
    assert run.batches == [[0], [1, 2, 3, 4, 5]]
    run.gate.set()
    await asyncio.gather(first, *waiting)
    await queue.close()


async def test_close_answers_what_was_accepted_and_refuses_the_rest() -> None:
    run = Doubler()
    queue = queue_of(run, max_queue_delay_s=60, max_size=10)
    waiting = [asyncio.create_task(queue.submit(rows(i, i), ["y"])) for i in range(3)]
    await asyncio.sleep(0.01)
    await asyncio.wait_for(queue.close(), 5)
    assert [answer["y"][0, 0] for answer in await asyncio.gather(*waiting)] == [0, 2, 4]
    with pytest.raises(NotReadyError, match="stopping"):
        await queue.submit(rows(9), ["y"])


async def test_a_batch_that_waits_for_its_turn_to_compute_takes_no_one_who_left() -> None:
    run, budget = Doubler(), CpuSlots(1)
    queue = BatchQueue(ENTRY, run, 10, turn=functools.partial(budget.turn, 1, prediction=True))
    async with budget.turn(1, prediction=True):
        leaves, stays = (asyncio.create_task(queue.submit(rows(i), ["y"])) for i in (1, 2))
        await asyncio.sleep(0.01)
        leaves.cancel()
        late = asyncio.create_task(queue.submit(rows(3), ["y"]))
        await asyncio.sleep(0.01)
    await asyncio.gather(stays, late)
    assert run.batches == [[2, 3]]
    await queue.close()


async def test_a_brief_run_for_one_alone_is_made_at_once_and_the_others_of_the_turn_share_a_batch() -> None:
    run = Doubler()
    here: list[float] = []

    def run_here(inputs: Tensors, outputs: Sequence[str]) -> Tensors:
        here.append(inputs["x"][0, 0])
        return dict.fromkeys(outputs, 2 * inputs["x"])

    queue = BatchQueue(ENTRY, run, 10, run_here=run_here)
    answers = await asyncio.gather(*(queue.submit(rows(i), ["y"]) for i in range(4)))
    assert [answer["y"][0, 0] for answer in answers] == [0, 2, 4, 6]
    assert (here, run.batches) == ([0], [[1, 2, 3]])
    await asyncio.sleep(0)
    await queue.submit(rows(5), ["y"])
    assert here == [0, 5]
    await queue.close()


async def test_what_is_not_brief_queues() -> None:
    run = Doubler()
    queue = BatchQueue(ENTRY, run, 10, run_here=lambda _, __: None)
    np.testing.assert_array_equal((await queue.submit(rows(3), ["y"]))["y"], [[6, 6]])
    assert run.batches == [[3]]
    await queue.close()


@pytest.mark.parametrize("ahead", [True, False])
async def test_the_next_batch_begins_in_its_thread_while_the_event_loop_is_busy(ahead: bool) -> None:
    """It takes those that have come meanwhile. Not where others wait for the turn to compute."""
    begun, gates = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]
    batches: list[list[float]] = []

    def compute(compose: Compose) -> Tensors | None:
        joined = compose()
        if joined is None:
            return None
        x = joined[0]["x"]
        batches.append(x[:, 0].tolist())
        if len(batches) <= 2:
            begun[len(batches) - 1].set()
            assert gates[len(batches) - 1].wait(30)
        return {"y": 2 * x}

    with ThreadPoolExecutor(1) as thread:

        async def run(_: int, compose: Compose) -> Tensors | None:
            return await asyncio.wrap_future(thread.submit(compute, compose))

        queue = BatchQueue(ENTRY, run, 10, ahead=lambda: ahead)
        queue.times.learn([(1, 0.1)])
        tasks = [asyncio.create_task(queue.submit(rows(0), ["y"]))]
        while not begun[0].is_set():
            await asyncio.sleep(0.001)
        for i in (1, 2):
            tasks.append(asyncio.create_task(queue.submit(rows(i), ["y"])))
            for _ in range(5):
                await asyncio.sleep(0)
        gates[0].set()
        assert begun[1].wait(30 if ahead else 0.1) == ahead  # no turn of the event loop until here
        gates[1].set()
        answers = await asyncio.gather(*tasks)
        await queue.close()
    assert batches == [[0], [1, 2]]
    assert [answer["y"][0, 0] for answer in answers] == [0, 2, 4]
