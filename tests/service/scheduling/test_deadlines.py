"""The batch queue and time: who would wait too long is refused, and who did is dropped."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from rationale_service.errors import (
    DeadlineError,
    QueueFullError,
)
from rationale_service.tensors import Tensors
from tests.service.scheduling.test_batch_queue import Doubler, queue_of, rows, seconds_that_take_no_time

__all__ = ["seconds_that_take_no_time"]  # a fixture of every test here


async def test_a_deadline_that_is_past_is_refused_before_it_costs_anything() -> None:
    run = Doubler()
    queue = queue_of(run)
    with pytest.raises(DeadlineError, match="passed"):
        await queue.submit(rows(1), ["y"], asyncio.get_running_loop().time() - 0.001)
    assert run.batches == []
    await queue.close()


class Slow(Doubler):
    """Takes `seconds` for each batch, and then what a Doubler takes."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    async def double(self, inputs: Tensors, outputs: Sequence[str]) -> Tensors:
        await asyncio.sleep(self.seconds)
        return await super().double(inputs, outputs)


async def test_who_would_wait_too_long_is_refused_and_told_when_to_come_back() -> None:
    queue = queue_of(Slow(0.1), batching=False)
    now = asyncio.get_running_loop().time
    await queue.submit(rows(0), ["y"])  # teaches how long one takes
    waiting = [asyncio.create_task(queue.submit(rows(i), ["y"])) for i in range(15)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError, match="15 requests") as refusal:
        await queue.submit(rows(99), ["y"], now() + 1)
    assert refusal.value.retry_after_s == 2
    with pytest.raises(QueueFullError):
        queue.admit(now() + 1)
    queue.admit(now() + 60)
    for task in waiting[1:]:
        task.cancel()
    await asyncio.sleep(0.15)
    np.testing.assert_array_equal((await queue.submit(rows(7), ["y"], now() + 1))["y"], [[14, 14]])
    await queue.close()


async def test_an_idle_queue_tries_whatever_the_estimate_says() -> None:
    """Else one slow batch, never corrected, would refuse for ever."""
    run = Slow(0.3)
    queue = queue_of(run)
    await queue.submit(rows(0), ["y"])
    run.seconds = 0
    answer = await queue.submit(rows(1), ["y"], asyncio.get_running_loop().time() + 0.2)
    np.testing.assert_array_equal(answer["y"], [[2, 2]])
    await queue.close()


async def test_a_batch_grows_to_a_share_of_the_time_that_its_members_have_left() -> None:
    run = Doubler()
    queue = queue_of(run, max_batch_size=16)
    queue.times.learn([(1, 10), (4, 40)] * 20)
    run.gate.clear()
    first = asyncio.create_task(queue.submit(rows(0), ["y"]))
    await asyncio.sleep(0.01)
    hasty = asyncio.create_task(queue.submit(rows(1), ["y"], asyncio.get_running_loop().time() + 90))
    patient = [asyncio.create_task(queue.submit(rows(i), ["y"])) for i in range(2, 9)]
    await asyncio.sleep(0.01)
    run.gate.set()
    await asyncio.gather(first, hasty, *patient)
    assert [len(batch) for batch in run.batches[:2]] == [1, 3]
    await queue.close()


async def test_who_cannot_be_answered_in_time_any_more_is_dropped_from_the_batch() -> None:
    run = Slow(0.1)
    queue = queue_of(run)
    await queue.submit(rows(0), ["y"])
    run.gate.clear()
    now = asyncio.get_running_loop().time()
    first = asyncio.create_task(queue.submit(rows(1), ["y"]))
    await asyncio.sleep(0.01)
    hasty = asyncio.create_task(queue.submit(rows(2), ["y"], now + 0.4))
    patient = asyncio.create_task(queue.submit(rows(3), ["y"]))
    await asyncio.sleep(0.35)
    run.gate.set()
    with pytest.raises(DeadlineError, match="too long"):
        await hasty
    await asyncio.gather(first, patient)
    assert run.batches == [[0], [1], [3]]
    await queue.close()


async def test_the_configs_own_timeout_refuses_whoever_waits_longer() -> None:
    run = Doubler()
    queue = queue_of(run, queue_timeout_s=0.05, batching=False)
    run.gate.clear()
    running = asyncio.create_task(queue.submit(rows(1), ["y"]))
    await asyncio.sleep(0.01)
    with pytest.raises(DeadlineError, match="too long"):
        await asyncio.wait_for(queue.submit(rows(2), ["y"]), 5)
    run.gate.set()
    np.testing.assert_array_equal((await running)["y"], [[2, 2]])  # it ran: its time in the queue was short
    assert run.batches == [[1]]
    await queue.close()


async def test_the_configs_own_timeout_can_delay_instead() -> None:
    run = Doubler()
    queue = queue_of(run, queue_timeout_s=0.05, delays_overdue=True, batching=False)
    run.gate.clear()
    running = asyncio.create_task(queue.submit(rows(1), ["y"]))
    await asyncio.sleep(0.01)
    overdue = asyncio.create_task(queue.submit(rows(2), ["y"]))
    await asyncio.sleep(0.1)
    fresh = asyncio.create_task(queue.submit(rows(3), ["y"]))
    await asyncio.sleep(0)
    run.gate.set()
    await asyncio.gather(running, overdue, fresh)
    assert run.batches == [[1], [3], [2]]
    await queue.close()


@pytest.mark.parametrize("delays_overdue", [True, False])
@pytest.mark.parametrize("is_overdue", [True, False])
async def test_who_leaves_the_line_frees_its_place(delays_overdue: bool, is_overdue: bool) -> None:
    """On time, or overdue behind the others: nothing of it counts against those who come later."""
    run = Doubler()
    queue = queue_of(run, 1, queue_timeout_s=0.02, delays_overdue=delays_overdue, batching=False)
    run.gate.clear()
    running = asyncio.create_task(queue.submit(rows(1), ["y"]))
    await asyncio.sleep(0.01)
    leaves = asyncio.create_task(queue.submit(rows(2), ["y"]))
    await asyncio.sleep(0.1 if is_overdue else 0)
    leaves.cancel()
    await asyncio.wait([leaves])
    newcomer = asyncio.create_task(queue.submit(rows(3), ["y"]))
    await asyncio.sleep(0)
    run.gate.set()
    assert [answer["y"][0, 0] for answer in await asyncio.gather(running, newcomer)] == [2, 6]
    assert run.batches == [[1], [3]]
    await queue.close()
